"""Random kernels: loops of every kind, jumps, branches, arrays changed in place, computed indices.

A program is text, made of a stream of choices, so that hypothesis can shrink it. Threads stay apart: `y` is changed in
the thread's own row only, `z` only by atomic additions. Values stay bounded, because everything that is assigned passes
through a bounded function now and then.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float64

from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.intrinsics import atomic_add, tid

FLOATS = ("s", "t", "u")
INTEGERS = ("m", "p")
WIDTH = 4


@func
def blend(a, b):
    if a > b:
        return a - 0.5 * b * b
    return math.sin(a) * b


class Writer:
    """Writes one program; `pick(n)` is the next choice, below `n`."""

    def __init__(self, pick: Callable[[int], int]) -> None:
        self.pick = pick
        self.lines: list[str] = []
        self.loops = 0
        self.budget = 14

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def integer(self) -> str:
        forms = ("m", "p", "i", "0", "1", "index[i]", "index[{0}]", "({0} * 2 + 1)", "(m + p)", "n")
        return forms[self.pick(len(forms))].format(INTEGERS[self.pick(2)])

    def place(self) -> str:
        return f"({self.integer()}) % {WIDTH}"

    def real(self, depth: int = 2) -> str:
        leaves = ("s", "t", "u", "x[{p}]", "y[i, {p}]", "a", "0.7", "1.3", "x[{p}]", "y[i, {p}]", "s", "t")
        if depth == 0 or self.pick(4) == 0:
            return leaves[self.pick(len(leaves))].format(p=self.place())
        forms = (
            *("({0} + {1})", "({0} - {1})", "({0} * {1})", "{0} * {1} * 0.5", "{0} / (1.5 + {1} * {1})"),
            *("math.sin({0})", "math.cos({0} + 0.3)", "math.exp(-abs({0}))", "math.tanh({0})", "-{0}"),
            *("math.sqrt(1.0 + {0} * {0})", "min({0}, {1})", "max({0}, {1})", "abs({0})", "({0}) ** 2"),
            *("blend({0}, {1})", "({0} if {2} else {1})", "math.atan2({0}, 2.0 + {1} * {1})", "({0} + m)"),
        )
        form = forms[self.pick(len(forms))]
        parts = [self.real(depth - 1) for _ in range(2 if "{1}" in form else 1)]
        return form.format(*parts, self.condition(0) if "{2}" in form else "") if "{1}" in form else form.format(*parts)

    def bounded(self) -> str:
        forms = ("math.sin({0})", "math.tanh({0})", "0.5 * ({0})", "{0}", "1.2 * math.sin({0})")
        return forms[self.pick(len(forms))].format(self.real())

    def condition(self, depth: int = 1) -> str:
        forms = ("{0} > {1}", "{0} < 0.4", "{i} % 2 == 0", "{i} > 1", "not {0} > 0.1", "{0} > 0.2 and {i} < 3")
        form = forms[self.pick(len(forms))]
        return form.format(self.real(depth), self.real(depth) if "{1}" in form else "", i=self.integer())

    def block(self, depth: int, in_loop: bool, level: int) -> None:
        for _ in range(1 + self.pick(3)):
            self.statement(depth, in_loop, level)

    def statement(self, depth: int, in_loop: bool, level: int) -> None:
        self.budget -= 1
        kinds = ["float", "float", "store", "augment", "integer", "atomic"]
        if level > 0 and self.budget > 0:
            kinds += ["if", "if", "for", "for", "while", "swap"]
        if in_loop:
            kinds += ["break", "continue"]
        kinds += ["return"] if self.pick(12) == 0 else []
        getattr(self, f"_{kinds[self.pick(len(kinds))]}")(depth, in_loop, level)

    def _float(self, depth: int, in_loop: bool, level: int) -> None:
        self.line(depth, f"{FLOATS[self.pick(3)]} = {self.bounded()}")

    def _swap(self, depth: int, in_loop: bool, level: int) -> None:
        self.line(depth, f"s, t = t, {self.bounded()}")

    def _store(self, depth: int, in_loop: bool, level: int) -> None:
        self.line(depth, f"y[i, {self.place()}] = {self.bounded()}")

    def _augment(self, depth: int, in_loop: bool, level: int) -> None:
        target = (f"y[i, {self.place()}]", "s", "u")[self.pick(3)]
        operator, value = (("+=", self.bounded()), ("*=", f"math.cos({self.real(1)})"), ("-=", self.bounded()))[
            self.pick(3)
        ]
        self.line(depth, f"{target} {operator} {value}")

    def _integer(self, depth: int, in_loop: bool, level: int) -> None:
        self.line(depth, f"{INTEGERS[self.pick(2)]} = ({self.integer()} + {self.integer()}) % 5")

    def _atomic(self, depth: int, in_loop: bool, level: int) -> None:
        self.line(depth, f"atomic_add(z, {self.place()}, {self.bounded()})")

    def _if(self, depth: int, in_loop: bool, level: int) -> None:
        self.line(depth, f"if {self.condition()}:")
        self.block(depth + 1, in_loop, level - 1)
        if self.pick(2):
            self.line(depth, "else:")
            self.block(depth + 1, in_loop, level - 1)

    def _for(self, depth: int, in_loop: bool, level: int) -> None:
        self.loops += 1
        heads = ("range(3)", "range(n)", "range(n, 0, -1)", "range(1, n + 2, 2)", "range(m)", "range(5, m, -2)")
        self.line(depth, f"for k{self.loops} in {heads[self.pick(len(heads))]}:")
        if self.pick(2):
            self.line(depth + 1, f"m = (m + k{self.loops}) % 5")
        self.block(depth + 1, True, level - 1)

    def _while(self, depth: int, in_loop: bool, level: int) -> None:
        self.loops += 1
        count = f"w{self.loops}"
        self.line(depth, f"{count} = 0")
        test = (f"{count} < 4", f"{count} < n", f"{count} < 5 and {self.condition(0)}")[self.pick(3)]
        self.line(depth, f"while {test}:")
        self.line(depth + 1, f"{count} += 1")
        self.block(depth + 1, True, level - 1)

    def _jump(self, depth: int, statement: str) -> None:
        self.line(depth, f"if {self.condition()}:")
        self.line(depth + 1, statement)

    def _break(self, depth: int, in_loop: bool, level: int) -> None:
        self._jump(depth, "break")

    def _continue(self, depth: int, in_loop: bool, level: int) -> None:
        self._jump(depth, "continue")

    def _return(self, depth: int, in_loop: bool, level: int) -> None:
        self._jump(depth, "return")

    def program(self) -> str:
        self.line(0, "def generated(x, y, z, index, a, n):")
        for text in ("i = tid()", "s = x[i]", "t = a * x[1]", "u = 0.5", "m = i", "p = index[i]"):
            self.line(1, text)
        for _ in range(2 + self.pick(4)):
            self.statement(1, False, 3)
        self.line(1, f"y[i, {self.place()}] = s * t + math.sin(u) * y[i, 0]")
        return "\n".join(self.lines) + "\n"


class ScratchWriter(Writer):
    """Writes programs with two arrays of the thread's own, `c` and `d`, that loops fill, change and read in many ways."""

    def scratch(self) -> str:
        return "cd"[self.pick(2)]

    def real(self, depth: int = 2) -> str:
        if self.pick(3) == 0:
            return f"{self.scratch()}[{self.place()}]"
        return super().real(depth)

    def statement(self, depth: int, in_loop: bool, level: int) -> None:
        kind = self.pick(10)
        if kind < 3:
            self._fill(depth, level)
        elif kind == 3:
            self._total(depth)
        elif kind == 4:
            self._cell(depth)
        else:
            super().statement(depth, in_loop, level)

    def span(self, depth: int) -> str:
        spans = ("4", "4", "4", "n % 5", "1, 4", "m % 5", "p % 4 + 1", "2", "k % 5")
        # The outer loops' variable is there in their bodies only.
        return f"range({spans[self.pick(len(spans) - (depth < 2))]})"

    def _trips(self, depth: int) -> str:
        self.loops += 1
        self.line(depth, f"for j{self.loops} in {self.span(depth)}:")
        return f"j{self.loops}"

    def _fill(self, depth: int, level: int) -> None:
        array, other = self.scratch(), self.scratch()
        if self.pick(5) == 0 and level > 0:
            self.line(depth, f"if {('n > 2', self.condition())[self.pick(2)]}:")
            self._fill(depth + 1, level - 1)
            if self.pick(3):
                self.line(depth, "else:")
                self._fill(depth + 1, level - 1)
            return
        j = self._trips(depth)
        if self.pick(6) == 0:
            self.line(depth + 1, f"if {(f'{j} > 1', self.condition())[self.pick(2)]}:")
            depth += 1
        values = (
            *(f"math.sin(s + {j})", f"x[{j}] * t", f"math.tanh({self.real(1)})", f"math.sin({other}[{j}] + s)"),
            *(f"{array}[{j}] * math.cos(t)", f"0.5 * {other}[3 - {j}] + u", f"{array}[({j} + 1) % 4] * 0.5"),
        )
        places = (j, j, j, j, f"3 - {j}", f"({j} + m) % 4", f"({j} + k) % 4")
        place = places[self.pick(len(places) - (depth < 3))]
        self.line(depth + 1, f"{array}[{place}] = {values[self.pick(len(values))]}")

    def _total(self, depth: int) -> None:
        j = self._trips(depth)
        total = FLOATS[self.pick(3)]
        self.line(depth + 1, f"{total} = 0.7 * {total} + math.sin({self.scratch()}[{j}] * {self.real(1)})")

    def _cell(self, depth: int) -> None:
        places = ("0", "1", "2", "n % 4", self.place(), "k % 4")
        place = places[self.pick(len(places) - (depth < 2))]
        self.line(depth, f"{self.scratch()}[{place}] = {self.bounded()}")

    def program(self) -> str:
        self.line(0, "def generated(x, y, z, index, a, n):")
        for text in ("i = tid()", "s = x[i]", "t = a * x[1]", "u = 0.5", "m = i", "p = index[i]"):
            self.line(1, text)
        for array in "cd":
            self.line(1, f"{array} = cuda.local.array({WIDTH}, float64)")
        for _ in range(self.pick(3)):
            self._fill(1, 0)
        heads = ("for k in range(n + 2):", "for k in range(6):", "for k in range(n):")
        for _ in range(1 + self.pick(2)):
            self.line(1, heads[self.pick(len(heads))])
            for _ in range(2 + self.pick(3)):
                self.statement(2, True, 2)
            if self.pick(3) == 0:
                self.statement(1, False, 2)
        self.line(1, f"y[i, {self.place()}] = s * t + math.sin(u) * y[i, 0] + c[1] * {self.real(1)}")
        return "\n".join(self.lines) + "\n"


def declared(text: str, decorate: Callable[[Any], Any] = kernel, **more: Any) -> Any:
    """Return the kernel that a program's text declares; its source can be read as if from a file, `more` are its globals."""
    filename = f"<generated {hash(text):x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names: dict[str, Any] = {"tid": tid, "atomic_add": atomic_add, "math": math, "blend": blend}
    names |= {"cuda": cuda, "float64": float64}
    exec(compile(text, filename, "exec"), names | more, declares := {})
    return decorate(*declares.values())


def arguments(seed: int) -> list[Any]:
    """Return arguments for a generated kernel and two threads."""
    random = np.random.default_rng(seed)
    x, y = random.uniform(-1.2, 1.4, WIDTH), random.uniform(-1.2, 1.4, (2, WIDTH))
    return [x, y, random.normal(size=WIDTH), random.integers(0, WIDTH, WIDTH + 1), 0.8, int(random.integers(0, 5))]
