"""Random programs to be recorded by a tape: launches of kernels of many kinds, and what arrays do by themselves, on a few arrays.

A program is text, made of a stream of choices. Its kernels are those below, since each has to be compiled. What is random is what
they are launched on: whole arrays, rows, columns, diagonals, parts, turned round and transposed, so that what a launch writes is
often a part of what another one has read, or all of it.

Threads stay apart, so that the order in which they run makes no difference, and values stay small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import numbridge as nb

SIDE = 5


@nb.kernel
def product(x, y, out):
    i = nb.tid()
    out[i] = x[i] * y[i]


@nb.kernel
def in_place(x, s):
    i = nb.tid()
    x[i] = math.sin(s * x[i]) + 0.3


@nb.kernel
def added(x, y):
    """Linear, so that nothing is read."""
    i = nb.tid()
    y[i] = 0.5 * y[i] - 0.7 * x[i]


@nb.kernel
def chain(x, y, z):
    i = nb.tid()
    y[i] = math.sin(x[i])
    z[i] = y[i] * y[i] * x[i]


@nb.kernel
def chain_in_place(x, y, z):
    """Of `z` its adjoint reads what was there before, of `y` what is there afterwards."""
    i = nb.tid()
    y[i] = 0.5 * y[i] + math.cos(x[i])
    z[i] = math.sin(z[i] * y[i])


@nb.kernel
def stored_twice(x, y, z):
    i = nb.tid()
    y[i] = x[i] * x[i]
    z[i] = math.cos(y[i])
    y[i] = math.sin(y[i] + z[i])


@nb.kernel
def chosen(x, y, limit):
    """Some threads store, which what is overwritten decides; some elements are read and stored, some only stored."""
    i = nb.tid()
    if y[i] > limit:
        y[i] = x[i] * x[i]
    elif x[i] > limit:
        y[i] = y[i] * x[i]


@nb.kernel
def neighbours(x, y):
    i = nb.tid()
    y[i] = x[i] * x[(i + 1) % x.shape[0]] + math.sin(x[i - 1])


@nb.kernel
def permuted(x, index, y):
    """Threads store to each other's places, but each to one alone."""
    i = nb.tid()
    y[index[i]] = math.sin(y[index[i]] + x[i]) + x[index[i]] * x[i]


@nb.kernel
def scattered(x, index, y):
    i = nb.tid()
    nb.atomic_add(y, index[i] // 2, 0.5 * x[i] * x[index[i]])


@nb.kernel
def turned(index, by):
    i = nb.tid()
    index[i] = (index[i] + by) % index.shape[0]


@nb.kernel
def rows_forwards(x, y, z):
    i = nb.tid()
    for t in range(1, y.shape[0]):
        y[t, i] = math.sin(y[t - 1, i]) * x[t, i] + 0.5 * y[t - 1, i]
    z[i] = z[i] + y[y.shape[0] - 1, i] * y[1, i]


@nb.kernel
def rows_backwards(x, y, s):
    """What the first pass reads of rows, the second one stores again."""
    i = nb.tid()
    for _ in range(2):
        for t in range(y.shape[0] - 2, -1, -1):
            y[t, i] = math.cos(y[t + 1, i]) * x[t + 1, i] + s * x[t, i]


@nb.kernel
def rows_ahead(x, y, z):
    """Each trip reads what the next one stores, after its own store."""
    i = nb.tid()
    for t in range(y.shape[0] - 1):
        y[t, i] = math.sin(x[t, i])
        z[i] = 0.5 * z[i] + y[t + 1, i] * y[t + 1, i] * y[t, i]


@nb.kernel
def one_row(x, y, z, m):
    """Which row, only the launch tells."""
    i = nb.tid()
    y[m, i] = x[i] * x[i]
    z[i] = math.sin(y[0, i] * y[m, i])


@nb.kernel
def plane(x, y, z):
    i, j = nb.tid()
    y[i, j] = math.sin(x[j, i]) * x[j, i]
    z[j, i] = z[j, i] * y[i, j] + y[i, j]


@nb.kernel
def without_bits(x, bits, y):
    i = nb.tid()
    bits[i] = 0
    y[i] = x[i] * x[i]


@dataclass(frozen=True)
class Form:
    """How a kernel is launched: a letter for each parameter, capital for those that it writes, and what gives it its threads.

    ``v`` is a vector, ``m`` and ``t`` are a matrix and one of the transposed shape, ``i`` is the array of integers, ``s`` is a
    number, and ``k`` that of a row. For arrays that are all contiguous another one is compiled, so a kernel is launched on such
    ones only, or never.
    """

    kernel: Any
    parameters: str
    is_contiguous: bool = False
    threads: str = "v"


FORMS = (
    Form(product, "vvV"),
    Form(in_place, "Vs"),
    Form(added, "vV", True),
    Form(chain, "vVV", True),
    Form(chain_in_place, "vVV", True),
    Form(stored_twice, "vVV"),
    Form(chosen, "vVs", True),
    Form(neighbours, "vV", True),
    Form(permuted, "viV"),
    Form(scattered, "viV", True),
    Form(turned, "Ik", True),
    Form(rows_forwards, "mMV", True),
    Form(rows_backwards, "mMs"),
    Form(rows_ahead, "mMV"),
    Form(one_row, "vMVk"),
    Form(plane, "tMT", threads="m"),
)
KERNELS = {kernel.name: kernel for kernel in (*(form.kernel for form in FORMS), without_bits)}
MATRICES, VECTORS, OF_NUMPY = ("a", "b", "c"), ("p", "q", "r"), "w"
NAMES = (*MATRICES, *VECTORS, OF_NUMPY)


@dataclass
class Recorded:
    """A program.

    Attributes
    ----------
    text : str
        A function of all arrays that are there at first, which returns these and those that were made. It also takes what it
        calls with the number of each step that it has made, from one on.
    after : str
        A function of these, which changes some of them and is not recorded.
    leaves : tuple of str
        The arrays that require a gradient.
    retained : tuple of str
        Those of them that retain the gradient of what they hold last.
    seeds : tuple of int
        Which of the arrays that it returns may have a cotangent.
    written : dict of str to NDArray
        The last step that was passed each element of a leaf to write to, or 0.
    """

    text: str
    after: str
    leaves: tuple[str, ...]
    retained: tuple[str, ...]
    seeds: tuple[int, ...]
    written: dict[str, Any]

    def functions(self) -> tuple[Callable[..., list[Any]], Callable[..., None]]:
        """Return both functions."""
        exec(self.text + self.after, {"nb": nb, **KERNELS}, declared := {})
        return declared["generated"], declared["after"]

    def __str__(self) -> str:
        """Return its text, and what requires a gradient."""
        told = ("leaves", self.leaves), ("retained", self.retained), ("seeds", self.seeds)
        return f"# {'; '.join(f'{name}: {value}' for name, value in told)}\n{self.text}{self.after}"


def initial(seed: int) -> dict[str, Any]:
    """Return what the arrays hold at first."""
    random = np.random.default_rng(seed)
    values = {name: random.uniform(-1.2, 1.4, (SIDE, SIDE)) for name in (*MATRICES, OF_NUMPY)}
    values |= {name: random.uniform(-1.2, 1.4, SIDE) for name in VECTORS}
    return {name: values[name] for name in NAMES} | {"index": random.permutation(SIDE)}


@dataclass
class RecordedWriter:
    """Writes one program; `pick(n)` is the next choice, below `n`.

    One that `hides` changes arrays also in ways that a tape is not told of, or cannot reverse; what it begins and ends with is
    copied then, so that the tape sees all of it. Where arrays lie is known by arrays of NumPy's, of which the texts of views are
    evaluated as well.
    """

    pick: Callable[[int], int]
    hides: bool = False
    lines: list[str] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=lambda: {name: 0 * value for name, value in initial(0).items()})
    # What has been used before, by its shape: it is likely to be used again
    used: dict[tuple[int, ...], list[str]] = field(default_factory=dict)
    varied: list[Any] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)
    steps: int = 0
    # Whether there are no views
    is_whole: bool = False

    def one_of(self, forms: Sequence[Any]) -> Any:
        return forms[self.pick(len(forms))]

    def value(self, text: str) -> Any:
        return eval(text, {}, self.arrays)

    # Views

    def span(self, length: int) -> str:
        """Return an axis of a view, of an array's axis."""
        if self.pick(3) == 0:
            start = SIDE - 1 - self.pick(SIDE - length + 1)
            return f"{start}:{start - length if start >= length else ''}:-1"
        if length == 3 and self.pick(3) == 0:
            return self.one_of(("::2", "::-2"))
        start = self.pick(SIDE - length + 1)
        return ":" if length == SIDE else f"{start}:{start + length}"

    def vector(self, length: int) -> str:
        kind = self.pick(10)
        if kind < 3:
            name = self.one_of(VECTORS)
            return name if length == SIDE and self.pick(2) else f"{name}[{self.span(length)}]"
        name = self.one_of([name for name in self.arrays if self.arrays[name].ndim == 2])
        if kind < 6:
            return f"{name}[{self.pick(SIDE)}, {self.span(length)}]"
        if kind < 8:
            return f"{name}[{self.span(length)}, {self.pick(SIDE)}]"
        flat = f"{name}.reshape({SIDE * SIDE})"
        if kind == 8:
            return f"{flat}[::{SIDE + 1}][:{length}]"
        start = self.pick(SIDE * SIDE - length + 1)
        return f"{flat}[{start}:{start + length}]"

    def matrix(self, rows: int, columns: int) -> str:
        name = self.one_of([name for name in self.arrays if self.arrays[name].ndim == 2])
        if self.pick(4) == 0:
            return f"{name}[{self.span(columns)}, {self.span(rows)}].T"
        return name if rows == columns == SIDE and self.pick(2) else f"{name}[{self.span(rows)}, {self.span(columns)}]"

    def view(self, *shape: int) -> str:
        if self.is_whole:
            return self.one_of(
                [name for name, array in self.arrays.items() if array.shape == shape and name != "index"]
            )
        before = self.used.setdefault(shape, [])
        if before and self.pick(3):
            return self.one_of(before)
        made = (self.vector if len(shape) == 1 else self.matrix)(*shape)
        before.append(made)
        return made

    def of_methods(self, *shape: int) -> str:
        """Return a view of an array of numbridge's."""
        while (made := self.view(*shape)).startswith(OF_NUMPY):
            pass
        return made

    # What is done

    def share(self, one: str, other: str) -> bool:
        return np.shares_memory(self.value(one), self.value(other))

    def is_varied(self, text: str) -> bool:
        return any(np.shares_memory(self.value(text), other) for other in self.varied)

    def note(self, read: Sequence[str], written: Sequence[str], by: Sequence[str] | None = None) -> None:
        """Follow what depends on a leaf: what is written, if any of some arrays does."""
        self.touched.update(text[0] if text[:5] != "index" else "index" for text in (*read, *written))
        for text in written:
            # Zeros elsewhere: these numbers only tell where views lie
            self.value(text)[...] = self.steps + 1
        if any(map(self.is_varied, (*read, *written) if by is None else by)):
            self.varied += map(self.value, (text for text in written if text != "index"))

    def launch(self) -> None:
        """Launch a kernel, unless no arguments that will do are found."""
        form = self.one_of([form for form in FORMS if form.is_contiguous or not self.is_whole])
        length = SIDE if "i" in form.parameters.lower() else self.extent()
        rows = self.extent()
        for _ in range(20):
            arguments = [self.argument(letter.lower(), rows, length) for letter in form.parameters]
            written = [a for a, letter in zip(arguments, form.parameters, strict=True) if letter.isupper()]
            arrays = [a for a, letter in zip(arguments, form.parameters, strict=True) if letter not in "sk"]
            is_contiguous = all(self.value(a).flags.c_contiguous for a in arrays)
            # Refused, where a gradient passes
            is_apart = sum(self.share(one, other) for one in written for other in arrays) == len(written)
            if is_contiguous == form.is_contiguous and (is_apart or self.pick(200) == 0):
                break
        else:
            return
        self.note([a for a in arrays if a not in written], written)
        fewer = self.one_of((1, 1, 2, length)) if "I" not in form.parameters and self.pick(4) == 0 else 0
        dim = f"({rows}, {length - fewer})" if form.threads == "m" else length - fewer
        name = form.kernel.name
        if self.hides and self.pick(6) == 0:
            self.lines.append(f"nb.launch({name}, {dim}, [{', '.join(arguments)}], record_tape=False)")
        elif self.pick(3):
            self.lines.append(f"nb.launch({name}, {dim}, [{', '.join(arguments)}])")
        else:
            self.lines.append(f"{name}.forall({dim})({', '.join(arguments)})")

    def extent(self) -> int:
        return SIDE if self.is_whole else self.one_of((SIDE, SIDE, 4, 3))

    def argument(self, letter: str, rows: int, length: int) -> str:
        match letter:
            case "v":
                return self.view(length)
            case "m":
                return self.view(rows, length)
            case "t":
                return self.view(length, rows)
            case "i":
                return "index"
            case "s":
                return self.one_of(("0.4", "0.7", "1.1"))
        return str(self.pick(rows))

    def shape(self) -> tuple[int, ...]:
        return (
            (SIDE, SIDE)[self.pick(2) :]
            if self.is_whole
            else self.one_of(((SIDE,), (3,), (SIDE, SIDE), (4, SIDE), (3, 3)))
        )

    def set_to_a_number(self) -> None:
        made = self.of_methods(*self.shape())
        self.note([], [made], by=[])
        self.lines.append(f"{made}.{self.one_of(('zero_()', 'fill_(0.6)'))}")

    def copied(self) -> None:
        shape = self.shape()
        for _ in range(20):
            made, given = self.of_methods(*shape), self.view(*shape)
            if not self.share(made, given):
                break
        self.note([given], [made], by=[given])
        self.lines.append(self.one_of((f"{made}.assign({given})", f"nb.copy({made}, {given})")))

    def cloned(self) -> None:
        given = self.of_methods(SIDE, SIDE)
        name = "defgh"[len(self.arrays) - len(NAMES) - 1]
        self.arrays[name] = np.zeros((SIDE, SIDE))
        self.note([given], [name])
        self.lines.append(f"{name} = {self.one_of((f'{given}.clone()', f'nb.clone({given})', f'nb.array({given})'))}")

    def hidden(self) -> None:
        """Change elements by others, or as integers, unless no arrays that will do are found."""
        if self.pick(3) == 0:
            made = self.of_methods(*self.shape())
            self.note([], [made], by=[])
            self.lines.append(f"{made}.numpy()[...] = 0.25")
            return
        x, made, y = (self.view(SIDE), self.of_methods(SIDE), self.view(SIDE))
        is_contiguous = all(self.value(a).flags.c_contiguous for a in (x, made, y))
        if not is_contiguous or self.share(x, made) or self.share(x, y) or self.share(made, y):
            return
        if self.pick(2):
            self.note([], [made], by=[])
            self.lines.append(f"{made}.view(nb.int64).zero_()")
        else:
            self.note([x], [y])
            self.note([], [made], by=[])
            self.lines.append(f"nb.launch(without_bits, {SIDE}, [{x}, {made}.view(nb.int64), {y}])")

    def statement(self) -> None:
        if self.hides and self.pick(5) == 0:
            self.hidden()
            return
        kind = self.pick(20)
        if kind < 15:
            self.launch()
        elif kind < 17:
            self.set_to_a_number()
        elif kind < 19 or len(self.arrays) > len(NAMES) + 3:
            self.copied()
        else:
            self.cloned()

    def function(self, head: str, least: int, most: int, *, tells: bool = False) -> str:
        self.lines = [head]
        for _ in range(least + self.pick(most - least + 1)):
            before = len(self.lines)
            while len(self.lines) == before:
                self.statement()
            self.steps += 1
            self.lines += [f"at({self.steps})"] if tells else []
        return "\n    ".join(self.lines) + "\n"

    def program(self) -> Recorded:
        leaves = [name for name in (*MATRICES, *VECTORS) if self.pick(2)] or ["a"]
        self.varied += map(self.value, leaves)
        self.is_whole = self.pick(4) == 0
        retained = [name for name in leaves if self.pick(8) == 0 and not self.hides]
        text = self.function(f"def generated({', '.join(self.arrays)}, at):", 2, 8, tells=True)
        last = {name: self.arrays[name].copy() for name in leaves}
        made = [name for name in self.arrays if name != "index"]
        if self.hides:
            head, body = text.split("\n", 1)
            text = f"{head}\n    copies = [{', '.join(f'{name}.clone()' for name in leaves)}]\n{body}"
        returned = [f"nb.array({name})" if self.hides else name for name in made]
        text += f"    return [{', '.join(returned)}, index]\n"
        seeds = tuple(k for k, name in enumerate(made) if name in self.touched and self.is_varied(name))
        after = self.function(f"def after({', '.join((*made, 'index'))}):", 1, 3)
        return Recorded(text, after, tuple(leaves), tuple(retained), seeds, last)
