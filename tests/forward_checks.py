"""Whether `forward_programs` give, on the CPU and on an emulated device, what their text gives in Python, thread by thread."""

from __future__ import annotations

import enum
import itertools
import linecache
import math
import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda, njit

import numbridge as nb
from emulated_cuda import emulated_cuda
from forward_expressions import LARGE, ROW, TABLE_SIZE, WHOLE
from forward_programs import Kept, Program, Writer
from kernel_as_python import Threads, View

RECORD = np.dtype([("flag", np.uint8), ("x", np.float32), ("mass", np.float64), ("kind", np.int16)])
TABLE = np.arange(-8, 8, dtype=np.int16)[::-1].copy()
HALVES = (np.arange(16) - 7.0).astype(np.float32) / 2
LEVEL, SLOPE, SIZES = 5, 0.75, (3, 1, 4)


class Kind(enum.IntEnum):
    LOW = 2
    HIGH = 11


class Settings:
    offset = 9


HELPERS = """
@nb.func
def clamped(value, most):
    if value > most:
        return most
    if value < -most:
        return -most
    return value


@nb.func
def trimmed(value):
    return math.fmod(np.floor(value), 32.0)


@nb.func
def tamed(z):
    return complex(trimmed(z.real), trimmed(z.imag))


@nb.func
def bent(p):
    return nb.vec3(trimmed(p[0]), trimmed(p[1]), trimmed(p[2]))


@nb.func
def cycled(p):
    a, b, c = p
    return nb.vec3(nb.vec2(b, c), a)


@nb.func
def most_of(p):
    most = p[0]
    for part in p[1:]:
        most = max(most, part)
    return most


@nb.func
def applied(function, a, b):
    return function(a, b)


@nb.func
def sum_of(row):
    total = 0
    for value in row:
        total += value
    return total


@nb.func
def span_of(row):
    low, high = 100, -100
    for k in range(row.shape[0]):
        low, high = min(low, row[k]), max(high, row[k])
    return high - low if high >= low else 0


@nb.func
def alternating_of(row):
    total, sign = 0, 1
    for k in range(len(row) - 1, -1, -1):
        total += sign * row[k]
        sign = -sign
    return total


@nb.func
def pair_of(a, b=2):
    if a > b:
        return a, b
    return b, a


@nb.func
def turned_of(a, b):
    a, b = -b, a
    return a, b


@nb.func
def count_of(first, *others):
    count = 0
    for other in others:
        if other == first:
            count += 1
            continue
        if other > 90:
            break
    else:
        count += 1
    return count


"""
_CONSTANTS = {"LEVEL": LEVEL, "SLOPE": SLOPE, "SIZES": SIZES, "LENGTH": ROW, "Kind": Kind, "Settings": Settings}


def made(program: Program) -> Any:
    """Return the function that a program is, for `nb.kernel`."""
    text = HELPERS + program.text
    name = f"<forward {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names = {
        "nb": nb,
        "np": np,
        "math": math,
        "cuda": cuda,
        "njit": njit,
        "TABLE": TABLE,
        "HALVES": HALVES,
        **_CONSTANTS,
    }
    exec(compile(text, name, "exec"), names)
    function = names["generated"]
    ranks = {
        name: nb.array(dtype=nb.vec3, ndim=program.rank)
        for name, kept in program.arrays.items()
        if kept.use == "vectors"
    }
    function.__annotations__ = ranks
    return function


def values(rng: np.random.Generator, kept: Kept, dims: tuple[int, ...]) -> np.ndarray:
    shape = {"p": dims[:1], "table": (TABLE_SIZE,), "totals": (TABLE_SIZE,)}.get(kept.use, dims)
    shape = (*shape, ROW) if kept.use == "rows" else (*shape, 3) if kept.use == "vectors" else shape
    if kept.use == "p":
        return rng.permutation(dims[0]).astype(kept.dtype)
    if kept.dtype == "record":
        made = np.zeros(shape, RECORD)
        for name, most in (("flag", WHOLE), ("x", LARGE), ("mass", LARGE), ("kind", WHOLE)):
            made[name] = rng.integers(0 if name == "flag" else -most, most, shape, endpoint=True)
        return made
    dtype = np.dtype(getattr(ml_dtypes, kept.dtype) if kept.dtype == "bfloat16" else kept.dtype)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -WHOLE, WHOLE, shape, endpoint=True).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    halves = rng.integers(-LARGE * 4, LARGE * 4, shape, endpoint=True) / 4
    return (halves + (1j * np.floor(halves[::-1]) if dtype.kind == "c" else 0)).astype(dtype)


LAYOUTS = ("plain", "plain", "apart", "reversed", "columns", "offset")
EXTENTS = {1: (1, 2, 17, 40, 100, 0, 64), 2: (1, 2, 5, 9, 17, 0), 3: (1, 2, 3, 6, 9), 4: (1, 2, 3, 4)}
# How a program is compiled: what `nb.kernel` is told
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"simd": False},
    {"simd": True},
    {"check_bounds": True},
    {"check_races": True},
)


def laid_out(array: np.ndarray, way: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the memory of an array, which holds ones beside it, and the array that lies in it in some way."""
    if way in ("plain", "columns"):
        memory = array.copy(order="C" if way == "plain" else "F")
        return memory, memory
    if way == "offset":
        memory = np.ones(array.size + 7, array.dtype)
        view = memory[3 : 3 + array.size].reshape(array.shape)
    else:
        memory = np.ones([2 * extent + 1 for extent in array.shape], array.dtype)
        ends = (0, None, 2) if way == "apart" else (None, 0, -2)
        view = memory[tuple(slice(*ends) for _ in array.shape)]
        view = view[tuple(slice(extent) for extent in array.shape)]
    view[...] = array
    return memory, view


def overlapping(memory: np.ndarray, by: int) -> dict[str, np.ndarray]:
    return {"ra": memory[..., :ROW], "rb": memory[..., by : by + ROW]}


@dataclass
class Launch:
    """One launch of a program: threads, blocks, the arrays as they are before it, and the other arguments."""

    program: Program
    shape: tuple[int, ...]
    blocks: tuple[tuple[int, ...], tuple[int, ...]]
    arrays: dict[str, np.ndarray]
    shared: np.ndarray
    others: dict[str, Any]

    def given(self, layouts: dict[str, str]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the memory of new arrays, and the arrays."""
        made = {name: laid_out(array, layouts[name]) for name, array in self.arrays.items()}
        if self.program.overlap is not None:
            both = self.shared.copy()
            made |= {name: (both, row) for name, row in overlapping(both, self.program.overlap).items()}
        made |= {name: made[of] for name, of in self.program.aliases.items()}
        return {name: memory for name, (memory, _) in made.items()}, {name: array for name, (_, array) in made.items()}

    def as_python(self, layouts: dict[str, str]) -> dict[str, np.ndarray]:
        """Return the memory of all arrays after the launch, by the text in Python."""
        memory, arrays = self.given(layouts)
        threads, sizes = Threads(), self.shape
        if self.program.way != "launch":
            grid, block = self.blocks
            threads.grid, threads.block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
            sizes = tuple(g * b for g, b in zip(grid, block, strict=True))
        names = threads.names() | {"TABLE": View(TABLE), "HALVES": View(HALVES), **_CONSTANTS}
        exec(compile(HELPERS + self.program.text, "<forward>", "exec"), names)
        views = {name: View(array, self.program.arrays[name].use == "vectors") for name, array in arrays.items()}
        others = {
            name: View(value)
            if isinstance(value, np.ndarray)
            else value.item()
            if isinstance(value, np.generic)
            else value
            for name, value in self.others.items()
        }
        for ids in itertools.product(*map(range, sizes)):
            threads.ids = ids
            names["generated"](**views, **others)
        return memory

    def compiled(self, kernel: Any, layouts: dict[str, str], *, device: bool) -> dict[str, np.ndarray]:
        """Return the memory of all arrays after the launch."""
        memory, arrays = self.given(layouts)
        given = [*arrays.values(), *self.others.values()]
        if not device:
            self._launch(kernel, given)
            return memory
        with emulated_cuda() as emulation:
            there = {id(value): emulation.on_device(value) for value in given if isinstance(value, np.ndarray)}
            self._launch(kernel, [there.get(id(value), value) for value in given])
        return memory

    def _launch(self, kernel: Any, given: list[Any]) -> None:
        if self.program.way == "launch":
            nb.launch(kernel, self.shape, given)
        else:
            kernel[self.blocks](*given)


def chosen(seed: int, turn: int, program: Program, *, small: bool) -> Launch:
    """Return a launch of a program; those of a program differ in sizes and numbers, but not in types."""
    fixed, choices, rng = random.Random(seed), random.Random(seed * 7 + turn), np.random.default_rng((seed, turn))
    dims = tuple(choices.choice(EXTENTS[program.rank]) for _ in range(program.rank))
    dims = tuple(min(extent, 5) for extent in dims) if small else dims
    beyond = program.way == "launch" and not program.flat
    extents = tuple(extent + (choices.choice((0, 0, 0, 1, 3)) if beyond else 0) for extent in dims)
    shape = (math.prod(dims),) if program.flat else tuple(dims[axis] for axis in program.order)
    block = tuple(choices.choice((1, 2, 3, 4, 8) if len(shape) > 1 else (1, 7, 32, 64)) for _ in shape)
    grid = tuple(max(1, -(-extent // size)) for extent, size in zip(shape, block, strict=True))
    grid = tuple(choices.choice((1, 2, size)) for size in grid) if program.way == "stride" else grid
    arrays = {name: values(rng, kept, extents) for name, kept in program.arrays.items()}
    shared = (
        values(rng, program.arrays["ra"], (*extents, 2)).reshape(*extents, 2 * ROW)
        if program.overlap is not None
        else arrays["p"]
    )
    number = fixed.choice((int, int, np.int32, np.int64, np.int8, np.int16, bool))
    others: dict[str, Any] = {
        "n": extents[0],
        "m": number(choices.randrange(6)),
        "a": choices.choice((0.25, -2.0, 3.0, 1.5)),
    }
    if program.has_more:
        others["opt"] = values(rng, Kept("float32", "read"), extents) if fixed.randrange(2) else None
        others["ts"] = tuple(choices.randrange(-9, 50) for _ in range(3))
    return Launch(program, shape, (grid, block), arrays, shared, others | {"depth": choices.randrange(16)})


def write(seed: int) -> Program:
    return Writer(random.Random(seed).randrange).program()


def runs_on_cuda(seed: int) -> bool:
    """Tell whether a program's arrays can be those of a device, which holds no records."""
    return "rec" not in write(seed).arrays


def check(seed: int, *, device: bool = False) -> None:
    """Compare what a program leaves on the CPU, or on an emulated device, with what it leaves in Python."""
    program, choices = write(seed), random.Random(seed)
    are_plain = choices.randrange(2)
    layouts = {
        name: "plain" if are_plain or kept.use == "vectors" else choices.choice(LAYOUTS)
        for name, kept in program.arrays.items()
    }
    function, ways = made(program), ({},) if device else (WAYS[seed % len(WAYS)], {})[: 1 + (seed % 8 == 1)]
    kernels = [(way, nb.kernel(**way)(function)) for way in ways]
    for turn in range(1 if device else 3):
        launch = chosen(seed, turn, program, small=device)
        wanted = launch.as_python(layouts)
        for way, kernel in kernels:
            found = launch.compiled(kernel, layouts, device=device)
            for name, memory in found.items():
                about = f"{name} of seed {seed}, {way}, {launch.shape}, {launch.blocks}, {launch.others}, {layouts}\n{program}"
                np.testing.assert_array_equal(memory, wanted[name], f"{about}\n{program.text}")
