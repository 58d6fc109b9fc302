"""What the source of a kernel gives in Python, one thread after the other: the names that it reads, over NumPy's memory.

Numbers are Python's, which hold any integer, and every float of a kernel whose floats are exact; arrays convert what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import numbridge as nb
from emulated_cuda import on_both


def plain(value: Any) -> Any:
    """Return a number of NumPy's as Python's, and anything else as it is."""
    if isinstance(value, np.ndarray | np.void):
        return value
    return value.item() if isinstance(value, np.number | np.bool_) else float(value)


def run_threads(function: FunctionType, count: int, *arguments: Any, **names: Any) -> None:
    """Run a kernel's function for each thread of a launch over one dimension; `names` are further globals of it."""
    thread = [0]
    around = {**function.__globals__, "nb": SimpleNamespace(tid=lambda: thread[0], static=lambda value: value), **names}
    called = FunctionType(function.__code__, around, function.__name__, None, function.__closure__)
    for thread[0] in range(count):
        called(*arguments)


def check_threads(
    function: FunctionType, x: np.ndarray, weights: np.ndarray, *, atol: float = 0.0, **names: Any
) -> None:
    """Check that a kernel of an array, and of one number for each row of it, does what its function does in Python.

    On both targets; and its adjoint, for these weights of the numbers, gives the function's differences.
    """

    def by_python(x: np.ndarray) -> np.ndarray:
        y = np.zeros(len(x))
        run_threads(function, len(x), x, y, **names)
        return y

    kernel, wanted = nb.kernel(function), by_python(x)
    for made in on_both(kernel, len(x), [x, np.zeros(len(x))]):
        np.testing.assert_allclose(made, wanted, rtol=1e-12, atol=atol)
    seeds = [np.zeros_like(x), weights.copy()]
    nb.launch(kernel, len(x), [x, np.zeros(len(x))], adj_inputs=seeds, adjoint=True)
    for index in np.ndindex(*x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][index] += 1e-6
        moved[1][index] -= 1e-6
        slope = (weights * (by_python(moved[0]) - by_python(moved[1]))).sum() / 2e-6
        assert abs(seeds[0][index] - slope) < 1e-6 * (1 + abs(slope))


class View:
    """An array of a kernel, or a row or slice of one; one of vectors has their components as the last dimension."""

    def __init__(self, memory: np.ndarray, vectors: bool = False) -> None:
        self.memory, self._vectors = memory, vectors
        self.shape = memory.shape[:-1] if vectors else memory.shape
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: Any) -> Any:
        found = self.memory[at]
        if isinstance(found, np.void):
            return Record(found, self.memory, at)
        if not isinstance(found, np.ndarray):
            return plain(found)
        if self._vectors and found.ndim == 1:
            return Vector([plain(one) for one in found], found)
        return View(found, self._vectors)

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(value, View):
            value = value.memory.copy()
        elif isinstance(value, Record):
            value = value.element
        elif isinstance(value, Vector):
            value = value.parts
        self.memory[at] = value if isinstance(value, np.void) else np.asarray(value).astype(self.memory.dtype)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def sum(self) -> Any:
        return sum(self)

    def max(self) -> Any:
        return max(self)

    def min(self) -> Any:
        return min(self)


class Record:
    """A record of an array, whose fields are memory."""

    def __init__(self, element: np.void, memory: np.ndarray, at: Any) -> None:
        object.__setattr__(self, "element", element)
        object.__setattr__(self, "place", (memory, at))

    def __getattr__(self, name: str) -> Any:
        memory, at = self.place
        return plain(memory[name][at])

    def __setattr__(self, name: str, value: Any) -> None:
        memory, at = self.place
        memory[name][at] = np.asarray(value).astype(memory.dtype[name])

    __getitem__, __setitem__ = __getattr__, __setattr__


class Vector:
    """A vector, by value; `memory` is where it was loaded, whose components can be stored one by one."""

    def __init__(self, parts: Sequence[Any], memory: np.ndarray | None = None) -> None:
        self.parts, self._memory = list(parts), memory

    def __getitem__(self, at: Any) -> Any:
        return Vector(self.parts[at]) if isinstance(at, slice) else self.parts[at]

    def __setitem__(self, at: int, value: Any) -> None:
        assert self._memory is not None
        self._memory[at] = value

    def __add__(self, other: Vector) -> Vector:
        return Vector([a + b for a, b in zip(self.parts, other.parts, strict=True)])

    def __sub__(self, other: Vector) -> Vector:
        return Vector([a - b for a, b in zip(self.parts, other.parts, strict=True)])

    def __mul__(self, by: Any) -> Vector:
        return Vector([a * by for a in self.parts])

    __rmul__ = __mul__

    def __truediv__(self, by: Any) -> Vector:
        return Vector([a / by for a in self.parts])

    def __neg__(self) -> Vector:
        return Vector([-a for a in self.parts])


def _vector(*given: Any) -> Vector:
    return Vector([part for one in given for part in (one.parts if isinstance(one, Vector) else [one])])


def _cross(a: Vector, b: Vector) -> Vector:
    return Vector([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def _converted(dtype: Any) -> Any:
    return lambda value: np.asarray(value).astype(dtype).item()


def _of_number(function: Any) -> Any:
    return lambda *numbers: plain(function(*numbers))


def _own(shape: Any, dtype: Any, fill: Any) -> View:
    return View(np.full(shape, fill, dtype))


_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
_NUMPY = (
    "floor",
    "ceil",
    "rint",
    "trunc",
    "minimum",
    "maximum",
    "square",
    "fabs",
    "fmin",
    "fmax",
    "abs",
    "mod",
)
_NUMPY += ("bitwise_and", "floor_divide", "left_shift", "isfinite", "logical_xor", "logical_and", "sqrt")


def _atomic(function: Any) -> Any:
    def change(array: View, at: Any, value: Any) -> None:
        array[at] = function(array[at], value)

    return change


_ADD, _MAX, _MIN = _atomic(lambda a, b: a + b), _atomic(max), _atomic(min)


class Threads:
    """The names of a kernel's source, as one thread of a launch sees them."""

    def __init__(self) -> None:
        self.ids: tuple[int, ...] = ()
        self.block = self.grid = (1, 1, 1)
        dtypes = {name: Dtype(name) for name in _DTYPES}
        arrays = {
            "zeros": lambda shape, dtype=np.float64: _own(shape, name_of(dtype), 0),
            "ones": lambda shape, dtype=np.float64: _own(shape, name_of(dtype), 1),
            "sum": sum,
            "max": max,
            "min": min,
            "prod": math.prod,
            "dot": lambda a, b: sum(x * y for x, y in zip(a, b, strict=True)),
            "bool_": bool,
            "sign": lambda a: _of_number(np.sign)(a + 0),  # NumPy's takes no truth values
            "where": lambda condition, a, b: a if condition else b,
            "clip": lambda a, a_min, a_max: min(a if a_min is None else max(a, a_min), a_max),
        }
        self.np = SimpleNamespace(**dtypes, **arrays, **{name: _of_number(getattr(np, name)) for name in _NUMPY})
        self.math = math
        self.nb = SimpleNamespace(
            tid=lambda: self.ids[0] if len(self.ids) == 1 else self.ids,
            vec3=_vector,
            vec2=_vector,
            dot=lambda a, b: sum(x * y for x, y in zip(a.parts, b.parts, strict=True)),
            length_sq=lambda a: sum(x * x for x in a.parts),
            cw_mul=lambda a, b: Vector([x * y for x, y in zip(a.parts, b.parts, strict=True)]),
            cross=_cross,
            atomic_add=_ADD,
            atomic_max=_MAX,
            atomic_min=_MIN,
            func=lambda function: function,
            float16=np.float16,
            bfloat16=ml_dtypes.bfloat16,
            **dtypes,
        )
        # What is in memory at first is no number that a program may have expected.
        local = SimpleNamespace(array=lambda shape, dtype: _own(shape, name_of(dtype), 77))
        self.cuda = SimpleNamespace(
            local=local,
            atomic=SimpleNamespace(add=_ADD),
            grid=lambda rank: self.ids[0] if rank == 1 else self.ids[:rank],
            gridsize=self._grid_size,
            blockIdx=_Axes(lambda axis: self._ids(axis) // self.block[axis]),
            threadIdx=_Axes(lambda axis: self._ids(axis) % self.block[axis]),
            blockDim=_Axes(lambda axis: self.block[axis]),
            gridDim=_Axes(lambda axis: self.grid[axis]),
        )

    def _ids(self, axis: int) -> int:
        return self.ids[axis] if axis < len(self.ids) else 0

    def _grid_size(self, rank: int) -> Any:
        sizes = tuple(b * g for b, g in zip(self.block, self.grid, strict=True))
        return sizes[0] if rank == 1 else sizes[:rank]

    def names(self) -> dict[str, Any]:
        return {"np": self.np, "math": self.math, "nb": self.nb, "cuda": self.cuda, "njit": lambda **_: lambda f: f}


class Dtype:
    """A dtype, which converts a number."""

    def __init__(self, name: str) -> None:
        self.name, self._convert = name, _converted(name)

    def __call__(self, value: Any) -> Any:
        return self._convert(value)


def name_of(dtype: Any) -> Any:
    return dtype.name if isinstance(dtype, Dtype) else dtype


class _Axes:
    def __init__(self, of_axis: Any) -> None:
        self._of_axis = of_axis

    def __getattr__(self, name: str) -> int:
        return int(self._of_axis("xyz".index(name)))
