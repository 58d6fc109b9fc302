"""Random kernels that load from rows and columns beside their own, and store into one element, for threads that take several ids.

A program is text, made of a stream of choices. All its numbers are whole and small, in whatever dtype, so that every order of
operations and every fusion of them gives the same bits. Indices stay within arrays of `MARGIN` more rows and columns than ids, or
are negative, and then count from the end. No id loads what another one stores.
"""

from __future__ import annotations

import linecache
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import numbridge as nb
from emulated_cuda import emulated_cuda
from numbridge.kernels.cuda_backend.ids_together import ids_together
from numbridge.kernels.launch import launch
from numbridge.kernels.readers import describe
from numbridge.kernels.variant import variants_of

DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64", "float32", "float64")
ROWS, COLUMNS = (5, 8, 12, 17, 5, 8, 12, 17, 1, 0), (33, 40, 64, 70, 96, 131, 40, 64, 70, 2, 1, 0)
MARGIN = 6
# How far an index may be from an id, and how large a number may become, which all dtypes hold
_FARTHEST, _LARGEST = 3, 1 << 22
_VALUE = 4
_OWN = ("i", "j", "q")
_IDS = ("g", "h", "i", "j")


@nb.func
def bounded(a, b):
    if a > b:
        return b
    return a


@dataclass(frozen=True)
class _Index:
    """An index: how it is written, and how far from an id of its axis it is at least and at most."""

    text: str
    low: int = 0
    high: int = 0


class Writer:
    """Writes one program; `pick(n)` is the next choice, below `n`."""

    def __init__(self, pick: Callable[[int], int], *, unsigned: tuple[bool, bool] = (False, False)) -> None:
        self.pick, self.unsigned = pick, unsigned
        self.rank = (2, 2, 2, 3, 4)[pick(5)]
        self.ids = _IDS[-self.rank :]
        # Variables: rows, columns, and numbers with the largest that they may be
        self.rows = {"i": _Index("i")}
        self.has_alias, self.moved = bool(pick(2)), False
        self.columns = {"j": _Index("j"), "q": _Index("q")} if self.has_alias else {"j": _Index("j")}
        self.numbers: dict[str, int] = {}
        self.stores_its_own = False

    def one_of(self, *forms: Any) -> Any:
        return forms[self.pick(len(forms))]

    def row(self) -> _Index:
        """Write a row down, which may depend on the column."""
        kind = self.pick(16)
        if kind < 10:
            return self._moved(self._known(self.rows))
        if kind < 12:
            return _Index(self.one_of("p[i]", "p[p[i]]", "0", "-1", "min(i, 2)", "int(0.5 * i)", "abs(i)"))
        if kind < 14:
            return _Index(self.one_of("np.int32(i)", "np.uint32(i)", "np.uint64(i)", "np.int16(i)", "max(i - 1, 0)"))
        return _Index(self.one_of("j % n", "p[j % n]", "(i + j) % n", "(i if j > 3 else 0)"))

    def column(self) -> _Index:
        kind = self.pick(16)
        if kind < 14:
            return self._moved(self._known(self.columns))
        return _Index(
            self.one_of("np.int32(j)", "j // 2", "max(j - 1, 0)", "0", "p[i] % m", "(j ^ 1) % m", "np.uint32(j)")
        )

    def _known(self, variables: dict[str, _Index]) -> _Index:
        known = [*variables.values()]
        return known[-1] if self.pick(2) else known[self.pick(len(known))]

    def _moved(self, index: _Index) -> _Index:
        by = (0, 0, 0, 0, 1, -1, 1, -1, 2, -3)[self.pick(10)]
        if not by or index.low + by < -_FARTHEST or index.high + by > _FARTHEST:
            return index
        forms = [f"{index.text} + {by}", f"{by} + {index.text}"] if by > 0 else [f"{index.text} - {-by}"]
        return _Index(self.one_of(*forms), index.low + by, index.high + by)

    def place(self, column: str = "") -> str:
        outer = [self.one_of(axis, axis, axis, "0", f"({axis} + 1) % 2") for axis in self.ids[:-2]]
        return ", ".join([*outer, self.row().text, column or self.column().text])

    def number(self, depth: int = 2) -> tuple[str, int]:
        """Write a number down; return the largest that it may be, too."""
        if not depth or not self.pick(5):
            return self._leaf()
        (one, most), (two, other) = self.number(depth - 1), self.number(depth - 1)
        kind = self.pick(12)
        if kind < 3 and most * other < _LARGEST:
            return f"({one} * {two})", most * other
        if kind == 3:
            return f"({one} if {self.condition()} else {two})", max(most, other)
        if kind == 4:
            return f"{self.one_of('min', 'max', 'bounded')}({one}, {two})", max(most, other)
        if kind == 5:
            return f"{self.one_of('abs', 'np.int32', 'np.float64', 'float', 'int', 'np.int64', '-')}({one})", most
        if kind == 6 and most + other < _LARGEST:
            return f"({one} + ({self.condition()} and {self.condition()}))", most + 1
        if most + other < _LARGEST:
            return f"({one} {self.one_of('+', '-')} {two})", most + other
        return one, most

    def _leaf(self) -> tuple[str, int]:
        kind = self.pick(12)
        if kind < 4:
            return self._neighbours(), 2 * _VALUE
        if kind < 7:
            return self._loaded(self.place()), _VALUE
        if kind < 9 and self.numbers:
            return [*self.numbers.items()][self.pick(len(self.numbers))]
        if kind == 9 and not self.pick(2):
            own = "q" if self.has_alias else "j"
            return f"z[{', '.join([*self.ids[:-1], own])}]", _VALUE
        return self.one_of("a", "2", "-1", "1"), _VALUE

    def _neighbours(self) -> str:
        """Write down two elements of a row, one beside the other."""
        return self._both(self.place(self._known(self.columns).text))

    def _both(self, place: str) -> str:
        beside = f"{place} {self.one_of('+', '-')} 1"
        return f"({self._loaded(place)} {self.one_of('+', '-')} {self._loaded(beside)})"

    def _loaded(self, place: str) -> str:
        return f"np.int64(x[{place}])" if self.unsigned[0] else f"x[{place}]"

    def condition(self) -> str:
        kind = self.pick(6)
        if kind < 2:
            return f"{self.number(0)[0]} {self.one_of('<', '>=', '==')} {self.number(0)[0]}"
        forms = (
            "j > 0",
            "i > 0",
            "j % 3 > 0",
            "j < m - 1",
            "i < n - 1",
            "j % 2 == 0",
            "0 < j < m - 1",
            "a > 1",
            "i + j > 4",
        )
        return self.one_of(*forms)

    def statement(self, level: int) -> list[str]:
        kind = self.pick(14)
        if kind < 4:
            name, (text, most) = self.one_of("t", "u", "v"), self.number()
            return self._assigned(self.numbers, name, most, f"{name} = {text}", level)
        if kind < 6:
            name, index = self.one_of("r", "r", "s"), self.row()
            return self._assigned(self.rows, name, _Index(name, index.low, index.high), f"{name} = {index.text}", level)
        if kind < 8:
            name, index = self.one_of("k", "k", "j"), self.column()
            name = "k" if name == "j" and not self.has_alias else name
            self.moved |= name == "j"
            return self._assigned(
                self.columns, name, _Index(name, index.low, index.high), f"{name} = {index.text}", level
            )
        if kind == 8 and "t" in self.numbers and self.numbers["t"] < _LARGEST // 2:
            text, most = self.number(1)
            return self._assigned(
                self.numbers, "t", self.numbers["t"] + most, f"t {self.one_of('+=', '-=')} {text}", level
            )
        if kind == 9:
            return self._augmented(level)
        if kind == 10 and not level and {"t", "u"} <= {*self.numbers}:
            self.numbers["t"], self.numbers["u"] = self.numbers["u"], self.numbers["t"]
            return ["t, u = u, t"]
        if kind == 11 and not level:
            r, k = self.row(), self.column()
            self.rows["r"], self.columns["k"] = _Index("r", r.low, r.high), _Index("k", k.low, k.high)
            return [f"r, k = {r.text}, {k.text}"]
        if kind == 12 and not level:
            one, two = self.number(1), self.number(1)
            self.numbers |= {"t": one[1], "u": two[1]}
            return [f"t, u = {one[0]}, {two[0]}"]
        return self._branch(level)

    def turn(self) -> list[str]:
        """Write down elements of a row, and of where its name or that of a column says afterwards."""
        outer = "".join(f"{axis}, " for axis in self.ids[:-2])
        start = self.one_of("r = i", "r = i", "r = p[i]", "r = (i + j) % n")
        j = self.columns["j"]
        self.rows["r"], self.columns["k"] = _Index("r"), _Index("k", j.low, j.high)
        first, second = (self._both(f"{outer}r, k") for _ in range(2))
        changes = [line for _ in range(1 + self.pick(4) // 3) for line in self._change()]
        self.numbers |= {"t": 2 * _VALUE, "u": 2 * _VALUE}
        return [start, "k = j", f"t = {first}", *changes, f"u = {second}"]

    def _change(self) -> list[str]:
        name, variables = self.one_of(("r", self.rows), ("r", self.rows), ("k", self.columns))
        made, old = (self.row() if name == "r" else self.column()), variables[name]
        kind = self.pick(4)
        if kind == 0 and abs(old.low) < _FARTHEST and abs(old.high) < _FARTHEST:
            by = self.one_of(1, -1)
            variables[name] = _Index(name, old.low + by, old.high + by)
            return [f"{name} += {by}"]
        variables[name] = _Index(name, made.low, made.high)
        if kind == 1:
            variables[name] = _Index(name, min(made.low, old.low), max(made.high, old.high))
            return [f"if {self.condition()}:", f"    {name} = {made.text}"]
        other = "s" if name == "r" else "l"
        return [f"{name} = {made.text}"] if kind == 2 else [f"{name}, {other} = {made.text}, {name}"]

    def _augmented(self, level: int) -> list[str]:
        variables = self.one_of(self.rows, self.columns)
        index = variables[[*variables][self.pick(len(variables))]]
        by = self.one_of(1, -1)
        if index.text in _OWN or index.low + by < -_FARTHEST or index.high + by > _FARTHEST:
            return []
        made = _Index(index.text, index.low + by, index.high + by)
        return self._assigned(variables, index.text, made, f"{index.text} {'+' if by > 0 else '-'}= 1", level)

    def _assigned(self, variables: Any, name: str, value: Any, text: str, level: int) -> list[str]:
        """Return an assignment; below a condition only variables that there are take part, for which both must do."""
        if level:
            if name not in variables:
                return []
            old = variables[name]
            if isinstance(old, _Index):
                value = _Index(name, min(old.low, value.low), max(old.high, value.high))
            else:
                value = max(old, value)
        variables[name] = value
        return [text]

    def _branch(self, level: int) -> list[str]:
        if level > 1:
            return []
        head = f"if {self.condition()}:"
        body = [line for _ in range(1 + self.pick(2)) for line in self.statement(level + 1)]
        other = [line for _ in range(self.pick(2)) for line in self.statement(level + 1)]
        made = [head, *(f"    {line}" for line in body or ["pass"])]
        return [*made, "else:", *(f"    {line}" for line in other)] if other else made

    def program(self) -> str:
        lines = [f"{', '.join(self.ids)} = nb.tid()", *(["q = j"] if self.has_alias else [])]
        for _ in range(self.pick(4)):
            lines += self.statement(0)
        if not self.pick(3):
            lines += [f"if {self.condition()}:", "    return"]
        lines += self.turn() if self.pick(4) else []
        # So that rows are shared
        outer = "".join(f"{axis}, " for axis in self.ids[:-2])
        up, down = (self._loaded(f"{outer}{row}, {self.column().text}") for row in ("i", "i + 1"))
        value = f"{self.number(1)[0]} + {self._neighbours()} + {up} - {down}"
        value = " + ".join([value, *(name for name in ("t", "u") if name in self.numbers)])
        own = "q" if self.has_alias and (self.moved or self.pick(2)) else "j"
        others = (f"p[i], {own}", f"i, {own} + 1", f"i + 1, {own}", f"n - 1 - i, {own}", f"i, ({own} + 1) % m")
        at = self.one_of(*[f"i, {own}"] * 8, *others)
        self.stores_its_own = at == f"i, {own}"
        value = f"abs({value})" if self.unsigned[1] else value
        store = f"y[{outer}{at}] {self.one_of('=', '=', '=', '+=')} {value}"
        lines += [store] if self.pick(3) else [f"if {self.condition()}:", f"    {store}"]
        return "\n".join(["def generated(x, y, z, p, a, n, m):", *(f"    {line}" for line in lines), ""])


def made(text: str) -> Any:
    """Return the kernel that a text is."""
    name = f"<stencil {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"nb": nb, "np": np, "bounded": bounded}
    exec(compile(text, name, "exec"), namespace)
    return nb.kernel(namespace["generated"])


def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: Any, odd: int) -> np.ndarray:
    """Return whole numbers in memory that is aligned to two elements, or if `odd` is 1 to one."""
    count = math.prod(shape)
    memory = np.zeros(count + 2, dtype)
    first = memory.ctypes.data // memory.itemsize % 2 ^ odd
    made = memory[first : first + count].reshape(shape)
    made[...] = rng.integers(0 if made.dtype.kind == "u" else -_VALUE, _VALUE, shape, endpoint=True)
    return made


def check(seed: int, launches: int = 3) -> bool:
    """Compare what a program leaves on the CPU and on an emulated device; tell whether threads of the latter take two columns."""
    choices, has_pairs = random.Random(seed), False
    while not has_pairs:
        x, y, z = (choices.choice(DTYPES) for _ in range(3))
        # Unsigned numbers are loaded from x alone, where they become signed ones.
        z = "int32" if y[0] == "u" or z[0] == "u" else choices.choice((y, z))
        writer = Writer(choices.randrange, unsigned=(x[0] == "u", y[0] == "u"))
        text = writer.program()
        kernel = made(text)
        p = np.zeros(4, np.int32 if seed % 4 else np.int64)
        has_pairs = _has_pairs(kernel, [*(np.zeros((4,) * writer.rank, dtype) for dtype in (x, y, z)), p, 1, 4, 4])
        if not choices.randrange(8):
            break
    for number in range(launches):
        n, m = choices.choice(ROWS[: None if number else 8]), choices.choice(COLUMNS[: None if number else 9])
        block_dim, max_blocks = (choices.choice((32, 64, 96, 16)), choices.choice((1, 3, 0))) if number else (32, 1)
        is_one = writer.stores_its_own and y == z and choices.random() < 0.3
        extents = [(*(2,) * (writer.rank - 2), n + MARGIN, _wide(choices, m)) for _ in range(2)]
        kinds = [(x, extents[0]), (y, extents[1])] if is_one else [(x, extents[0]), (y, extents[1]), (z, extents[1])]
        odd = [number and not choices.randrange(5) for _ in kinds]
        arrays = [
            [
                numbers(np.random.default_rng((seed, number, k)), shape, dtype, odd[k])
                for k, (dtype, shape) in enumerate(kinds)
            ]
            for _ in range(2)
        ]
        rows = np.random.default_rng((seed, number)).permutation(max(n, 1)).astype(p.dtype)
        scalars = (choices.randrange(1, 4), n, m)
        dim = (*extents[0][:-2], n, m)
        here, there = arrays
        given = [here[0], here[1], here[-1], rows, *scalars]
        launch(kernel, dim, given)
        with emulated_cuda() as device:
            one, other, *_ = passed = [device.on_device(array) for array in there]
            launch(
                kernel,
                dim,
                [one, other, passed[-1], device.on_device(rows), *scalars],
                block_dim=block_dim,
                max_blocks=max_blocks,
            )
        for mine, its in zip(here, there, strict=True):
            about = f"seed {seed}, launch {number}: {kinds}, {dim}, {odd}, {block_dim} in {max_blocks}\n{text}"
            np.testing.assert_array_equal(its, mine, about)
    return has_pairs


def _wide(choices: random.Random, columns: int) -> int:
    """Return how wide an array for so many columns is: mostly such that its rows are aligned to two elements."""
    least = columns + MARGIN
    return least + (least % 2 if choices.randrange(5) else choices.randrange(2))


def _has_pairs(kernel: Any, arguments: Sequence[Any]) -> bool:
    variants = variants_of(kernel)
    types, weak = variants.types(arguments, [describe(argument) for argument in arguments])
    found = ids_together(variants.emitted(types, weak, "cuda"), types)
    return found is not None and bool(found.pairs)
