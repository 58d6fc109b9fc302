"""Random kernels that slice arrays and go through what the slices hold, as text, made of a stream of choices.

What a slice leaves is known while the text is written, so that every index has an element. Bounds are left out, written as
numbers, or are parameters, and lie beyond the ends, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

MOST = 5  # extent
BOUNDS = tuple(f"b{k}" for k in range(12))


class SliceWriter:
    """Writes one program for one thread; `pick(n)` is the next choice, below `n`."""

    def __init__(self, pick: Callable[[int], int], *, literals: bool = True) -> None:
        self.pick = pick
        self.literals = literals
        self.bounds: list[int] = []
        self.lines = [f"def generated(x, y, z, {', '.join(BOUNDS)}):", "    i = tid()", "    count = 0"]
        self.x = np.zeros((pick(MOST + 1), pick(MOST + 1)))
        self.z = np.zeros((1 + pick(MOST), 1 + pick(MOST)))

    def number(self, value: int) -> str:
        """Return an integer as a literal or as a parameter."""
        if len(self.bounds) == len(BOUNDS) or (self.literals and self.pick(2)):
            return str(value)
        self.bounds.append(value)
        return BOUNDS[len(self.bounds) - 1]

    def slice(self) -> tuple[str, slice]:
        """Return a slice as text, and the slice."""
        start, stop = (None if self.pick(3) == 0 else self.pick(4 * MOST) - 2 * MOST for _ in range(2))
        step = (None, None, 1, 2, 3, -1, -2, -7)[self.pick(8)]
        texts = ["" if value is None else self.number(value) for value in (start, stop, step)]
        return ":".join(texts if step is not None else texts[:2]), slice(start, stop, step)

    def index(self, shape: tuple[int, ...], *, must_slice: bool) -> tuple[str, Any] | None:
        """Return what stands in brackets behind something of a shape, and what it is."""
        texts, parts = [], []
        dots = not must_slice and self.pick(4) == 0
        for axis in range(1 + self.pick(len(shape))):
            if dots and self.pick(2):
                dots = False
                texts.append("...")
                parts.append(Ellipsis)
                rest = self.pick(2)
                shape = shape[:axis] + shape[len(shape) - rest :]
            if axis >= len(shape):
                break
            if shape[axis] and not must_slice and self.pick(3) == 0:
                place = self.pick(2 * shape[axis]) - shape[axis]
                texts.append(self.number(place))
                parts.append(place)
            else:
                text, part = self.slice()
                texts.append(text)
                parts.append(part)
        if texts in ([], ["..."]):  # Numba has no ellipsis alone
            return None
        return ", ".join(texts), tuple(parts)

    def selected(self, name: str, array: np.ndarray, *, must_slice: bool = False) -> tuple[str, Any]:
        """Return a text of one to three subscripts, and what it selects."""
        text = name
        for _ in range(1 + self.pick(3)):
            if np.ndim(array) == 0:
                break
            chosen = self.index(array.shape, must_slice=must_slice)
            if chosen is None:
                continue
            text, array = f"{text}[{chosen[0]}]", array[chosen[1]]
            if self.pick(3) == 0 and np.ndim(array):
                self.line(1, f"part{len(self.lines)} = {text}")
                text = f"part{len(self.lines) - 1}"
        return text, array

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def used(self, depth: int, value: str) -> None:
        """Write a statement that uses a number."""
        self.line(depth, f"y[count % 7] = y[count % 7] * 0.5 + {value} * {value}")
        self.line(depth, "count += 1")

    def read(self, depth: int, text: str, shape: tuple[int, ...]) -> None:
        """Write what goes through the elements of something."""
        if not shape:
            self.used(depth, f"({text})")
            return
        name, kind = f"v{len(self.lines)}", self.pick(6)
        more = f"k{name}"
        if kind == 0:
            self.line(depth, f"for {more} in range(len({text})):")
            self.line(depth + 1, f"count += {text}.shape[0] + {text}.size + {text}.ndim")
            self.read(depth + 1, f"{text}[{more}]", shape[1:])
        elif kind == 1:
            self.line(depth, f"for {more} in range(-len({text}), 0):")
            self.read(depth + 1, f"{text}[{more}]", shape[1:])
        elif kind == 2:
            self.line(depth, f"for {name} in {text}:")
            self.read(depth + 1, name, shape[1:])
        elif kind == 3:
            self.line(depth, f"for {more}, {name} in enumerate({text}, {self.number(self.pick(9) - 4)}):")
            self.line(depth + 1, f"count += {more} * {more}")
            self.read(depth + 1, name, shape[1:])
        else:
            self.zipped(depth, text, shape, name)

    def zipped(self, depth: int, text: str, shape: tuple[int, ...], name: str) -> None:
        start, stop = (self.number(self.pick(9) - 4) for _ in range(2))
        other = (f"range({start}, {stop}, {(1, 2, -1)[self.pick(3)]})", "y", "y[1::3]", f"enumerate({text})")[
            self.pick(4)
        ]
        pattern = (f"(k{name}, o{name})", f"{name}") if other.startswith("enum") else (f"o{name}", name)
        self.line(depth, f"for {', '.join(pattern)} in zip({other}, {text}):")
        if other.startswith("enum"):
            self.line(depth + 1, f"count += k{name}")
            self.read(depth + 1, f"o{name}", shape[1:])
        else:
            self.line(depth + 1, f"y[0] = y[0] * 0.9 + o{name} * 0.1")
        self.read(depth + 1, name, shape[1:])

    def program(self) -> str:
        """Return the whole text."""
        text, found = self.selected("x", self.x)
        self.read(1, text, np.shape(found))
        filled, _ = self.selected("z", self.z, must_slice=True)
        if "[" in filled:
            self.line(1, f"{filled} = y[0] * z[0, 0]")
        text, found = self.selected("z", self.z)
        self.read(1, text, np.shape(found))
        return "\n".join(self.lines) + "\n"

    def arguments(self, seed: int) -> list[Any]:
        """Return arguments for the program, with the bounds that it expects."""
        random = np.random.default_rng(seed)
        bounds = [*self.bounds, *[0] * (len(BOUNDS) - len(self.bounds))]
        return [*(random.uniform(0.3, 1.2, shape) for shape in (self.x.shape, (7,), self.z.shape)), *bounds]
