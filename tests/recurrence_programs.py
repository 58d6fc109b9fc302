"""Random kernels of loops whose trips read what other trips have stored: recurrences of many kinds, in rows of a thread's own.

Columns are threads, so that these run together, and indices of rows are made of the counters of loops, which may count from the
end: what a trip reads may have been stored by an earlier one, by itself, or be stored by a later one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from adjoint_programs import declared

ROWS = 6
RANGES = (
    *("range(R)", "range(1, R)", "range(R - 1)", "range(R - 1, -1, -1)", "range(R - 2, -1, -1)", "range(0, R, 2)"),
    *("range(n)", "range(1, n)", "range(n - 1)", "range(n - 2, -1, -1)", "range(m)", "range(1, n, 2)", "range(3)"),
)
INNER_RANGES = ("range({})", "range({} + 1, n)", "range({}, R)", "range({} + 1)")
PLACES = (
    *("{v}", "{v}", "{v}", "{v}", "{v} - 1", "{v} - 1", "{v} - 1", "{v} + 1", "{v} + 1", "R - 1 - {v}", "n - 1 - {v}"),
    *("n - {v} - 2", "2 * {v}", "{v} % 3", "{v} // 2"),
)
PLACES_OF_TWO = ("{v} - {w}", "{v} + {w}", "{v} - {w} - 1", "abs({v} - {w})")
VALUES = (
    *("{0} * {1}", "math.sin({0}) + {1}", "0.5 * {0} + 0.3 * {1}", "0.3 * {0} * {0} + {1}", "s * {0}", "0.7 * {0}"),
    *("math.cos(s + {0})", "{0} - s * {1}", "math.exp(-{0} * {0}) * {1}"),
)
GUARDS = (
    "",
    "",
    "if i < x.shape[1]:",
    "if i < x.shape[1]:",
    "if i < x.shape[1] and x[0, i] > -0.5:",
    "if x[1, i] > 0.5:",
)


class RecurrenceWriter:
    """Writes one program; `pick(n)` is the next choice, below `n`."""

    def __init__(self, pick: Callable[[int], int]) -> None:
        self.pick = pick
        self.lines: list[str] = []
        self.loops = 0
        self.budget = 3 + 2 * pick(3)

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def one_of(self, forms: Any) -> Any:
        return forms[self.pick(len(forms))]

    def place(self, counters: list[str]) -> str:
        if not counters or self.pick(5) == 0:
            return self.one_of(("0", "1", "2", "R - 1"))
        forms = PLACES + (PLACES_OF_TWO if len(counters) > 1 else ())
        return self.one_of(forms).format(v=self.one_of(counters), w=self.one_of(counters))

    def element(self, counters: list[str], arrays: str = "xyzyz") -> str:
        return f"{self.one_of(arrays)}[{self.place(counters)}, i]"

    def value(self, counters: list[str]) -> str:
        return self.one_of(VALUES).format(self.element(counters), self.element(counters))

    def store(self, depth: int, counters: list[str]) -> None:
        sign = self.one_of(("=", "=", "=", "+=", "*="))
        self.line(depth, f"{self.element(counters, 'yz')} {sign} {self.value(counters)}")

    def statement(self, depth: int, counters: list[str]) -> None:
        self.budget -= 1
        kind = self.pick(100)
        if kind < 50 or self.budget <= 0:
            self.store(depth, counters)
        elif kind < 62:
            self.line(depth, f"s = math.sin({self.value(counters)})")
        elif kind < 75:
            last = (counters or ["m"])[-1]
            self.line(
                depth, f"if {self.one_of((f'{self.element(counters)} > 0.4', f'{last} % 2 == 0', f'{last} > 1'))}:"
            )
            self.block(depth + 1, counters, 2)
            if self.pick(5) < 2:
                self.line(depth, "else:")
                self.block(depth + 1, counters, 2)
        elif len(counters) < 3:
            self.loop(depth, counters)
        else:
            self.store(depth, counters)

    def block(self, depth: int, counters: list[str], most: int) -> None:
        for _ in range(1 + self.pick(most)):
            self.statement(depth, counters)

    def loop(self, depth: int, counters: list[str]) -> None:
        self.loops += 1
        counter = f"k{self.loops}"
        forms = RANGES + INNER_RANGES * 2 if counters else RANGES
        self.line(depth, f"for {counter} in {self.one_of(forms).format(*counters[-1:])}:")
        self.block(depth + 1, [*counters, counter], 3)
        if self.pick(10) == 0:
            self.line(depth + 1, "if y[0, i] > 0.9:")
            self.line(depth + 2, "break")

    def program(self) -> str:
        self.line(0, "def generated(x, y, z, m):")
        self.line(1, "i = cuda.grid(1)")
        guard = self.one_of(GUARDS)
        if guard:
            self.line(1, guard)
        depth = 2 if guard else 1
        self.line(depth, "n = y.shape[0]")
        self.line(depth, "s = 0.5")
        if self.pick(3) == 0:
            self.statement(depth, [])
        for _ in range(1 + self.pick(3)):
            self.loop(depth, [])
        if self.pick(3) == 0:
            self.line(depth, f"{self.element([], 'yz')} += s")
        return "\n".join(self.lines) + "\n"


def runs_well(text: str, values: list[Any]) -> bool:
    """Tell whether a program stays within its arrays, and its numbers small."""
    x, y, z, m = values
    arrays = [array.copy() for array in (x, y, z)]
    exec(text.replace("cuda.grid(1)", "thread[0]"), names := {"math": math, "R": ROWS, "thread": [0]})
    try:
        with np.errstate(all="ignore"):
            for names["thread"][0] in range(x.shape[1]):
                names["generated"](*arrays, m)
    except (IndexError, OverflowError, ValueError):
        return False
    return all(np.isfinite(array).all() and np.abs(array).max() < 100 for array in arrays)


def recurrence(number: int, threads: int) -> tuple[str, Any, list[Any]] | None:
    """Return a program of a number, its kernel and arguments for some threads; None of one that does not run well."""
    choices = random.Random(number)
    text = RecurrenceWriter(choices.randrange).program()
    uniform = np.random.default_rng(number).uniform
    values = [*(uniform(0.1, 1, (ROWS, threads)) for _ in range(3)), choices.randrange(ROWS)]
    if not runs_well(text, values):
        return None
    return text, declared(text, R=ROWS, cuda=cuda), values
