"""Whether arrays are long enough for a launch: as Python asks it, with a message, and as rows that compiled code goes through.

How far threads go is read from a kernel's source: see `language.reaches`. Layout of the rows: `table_layout`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.errors import NumbridgeValueError
from numbridge.kernels.language.launch_sizes import (
    Along,
    Atom,
    Choice,
    Extent,
    Number,
    Quotient,
    Size,
    Total,
)
from numbridge.kernels.language.reaches import Reach, reaches_of
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.parameter_types import ArrayType, ParameterType, is_signed
from numbridge.kernels.readers import Description

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel
    from numbridge.kernels.launch import Geometry
    from numbridge.kernels.variant import Variant

__all__ = ["check_extents", "extent_rows"]

_ALONG = {"dim": nb.REACH_DIM, "blockDim": nb.REACH_BLOCK, "gridDim": nb.REACH_GRID}
_LAUNCHES_WAY = "pass a longer array, launch fewer threads, or guard what those beyond its end must not take"
_GUARDS_WAY = "pass a longer array, or end the loop or the guard around it earlier"
_OPERATORS_WAY = "expand it, or pass launch_dims; an output gets the extents of output_dims"


@dataclass(frozen=True)
class _Launch:
    """What a launch knows of itself, as `launch_sizes.Known` asks for it."""

    counts: Mapping[str, Sequence[int]]
    shapes: Mapping[str, Sequence[int]]
    numbers: Mapping[str, Any]

    def along(self, kind: str, axis: int) -> Any:
        counts = self.counts.get(kind, ())
        return counts[axis] if axis < len(counts) else None

    def shape(self, parameter: str) -> Any:
        return self.shapes.get(parameter)

    def number(self, parameter: str) -> Any:
        return operator.index(self.numbers[parameter]) if parameter in self.numbers else None

    def choose(self, of: Callable[..., Any], left: Any, right: Any) -> Any:
        return of(left, right)


def check_extents(
    kernel: Kernel, variant: Variant, geometry: Geometry, arguments: Sequence[Any], found: Sequence[Description]
) -> None:
    """Refuse arrays that some thread of a launch is sure to overrun.

    Parameters
    ----------
    kernel : Kernel
        What is launched.
    variant : Variant
        What was compiled for the arguments.
    geometry : Geometry
        The launch.
    arguments, found : sequence
        What it is launched on, and what that turned out to be.

    Raises
    ------
    NumbridgeValueError
        Naming the array, its shape, how long it must be, and the expression that takes an element beyond its end.
    """
    dims, parameters = geometry.dims, variant.parameters
    if 0 in dims:
        return
    shapes = {p.name: d.shape[: p.ndim] for p, d in zip(parameters, found, strict=True) if isinstance(p, ArrayType)}
    given = zip(parameters, found, arguments, strict=True)
    counts = {"dim": dims}
    # On CUDA, what is launched over so many threads is in blocks of the hardware's.
    if variant.launch_function == 0 or geometry.place.form != "masked":
        counts |= {"blockDim": geometry.block, "gridDim": geometry.grid}
    launch = _Launch(counts, shapes, {p.name: argument for p, d, argument in given if _is_whole(p, d)})
    for reach in reaches_of(kernel):
        if reach.missing(launch, operator.lt):
            way = _GUARDS_WAY if not reach.by_all else _OPERATORS_WAY if geometry.is_followed else _LAUNCHES_WAY
            what = "parameter" if reach.extents is None else "local or shared memory"
            refusal = reach.refusal(launch, dims, way)
            raise NumbridgeValueError(f"launch of kernel {kernel.name!r}, {what} {reach.array!r}: {refusal}")


def extent_rows(
    reaches: Sequence[Reach], parameters: Sequence[ParameterType], found: Sequence[Description]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how compiled code asks the same, for arguments like those that were `found`: rows of `REACH_SIZE` bytes."""
    rows = _Rows(parameters, found)
    for needs in dict.fromkeys(reach.needs for reach in reaches):
        rows.add(needs, [reach for reach in reaches if reach.needs == needs])
    return np.array(rows.rows, np.int64).reshape(-1, nb.REACH_SIZE // 8)


def _is_whole(parameter: ParameterType, found: Description) -> bool:
    """Tell whether an argument is an integer that a kernel takes as a signed one."""
    return is_signed(parameter) and found.kind == nb.CLASS_INT


class _UnknownError(Exception):
    """Raised for a size of which compiled code knows a part only."""


class _Rows:
    """Rows as they are made: each gives a number, by its place, or asks something of such numbers."""

    def __init__(self, parameters: Sequence[ParameterType], found: Sequence[Description]) -> None:
        self.arrays = {p.name: (k, p.ndim) for k, p in enumerate(parameters) if isinstance(p, ArrayType)}
        given = enumerate(zip(parameters, found, strict=True))
        self.numbers = {p.name: k for k, (p, d) in given if _is_whole(p, d)}
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.known: dict[tuple[int, int, int], int] = {}

    def add(self, needs: Sequence[Size], reaches: Sequence[Reach]) -> None:
        """Add rows that ask whether all arrays are long enough, if what is needed for any thread to come there is positive."""
        before, known = len(self.rows), dict(self.known)
        asked = []
        try:
            for need in needs:
                place = self.size(need)
                asked.append(len(self.rows))
                self.rows.append((nb.REACH_IF, place, 0, 0, 0))
        except _UnknownError:
            del self.rows[before:]
            self.known = known
            return
        for reach in reaches:
            array, rank = self.arrays.get(reach.array, (0, 0))
            extent = reach.axis
            if not reach.is_along(rank if reach.extents is None else len(reach.extents)):
                continue
            if reach.extents is not None:
                array, extent = -1, reach.extents[reach.axis]
            try:
                moved = self.size(Size(reach.least.terms)) if reach.least.terms else -1
            except _UnknownError:
                continue
            self.rows.append((nb.REACH_LEAST, array, extent, moved, reach.least.constant))
        for place in asked:
            operation, number, *_ = self.rows[place]
            self.rows[place] = (operation, number, len(self.rows), 0, 0)
        if asked:
            # What stands behind the first question may not have been worked out.
            self.known = {key: place for key, place in self.known.items() if place < asked[0]}

    def size(self, size: Size) -> int:
        """Return the place of a size."""
        total = None
        for atoms, factor in size.terms:
            product = None if factor == 1 else self.number(factor)
            for atom in atoms:
                place = self.atom(atom)
                product = place if product is None else self.row(nb.REACH_TIMES, product, place)
            total = product if total is None or product is None else self.row(nb.REACH_PLUS, total, product)
        if total is None:
            return self.number(size.constant)
        return self.row(nb.REACH_PLUS, total, self.number(size.constant)) if size.constant else total

    def number(self, value: int) -> int:
        """Return the place of a constant."""
        return self.row(nb.REACH_NUMBER, value)

    def atom(self, atom: Atom) -> int:
        """Return the place of an atom."""
        match atom:
            case Along(kind, axis):
                return self.row(_ALONG[kind], axis)
            case Extent(name, axis) if axis < self.arrays.get(name, (0, 0))[1]:
                return self.row(nb.REACH_EXTENT, self.arrays[name][0], axis)
            case Total(name) if name in self.arrays:
                axes = tuple(Extent(name, axis) for axis in range(self.arrays[name][1]))
                return self.size(Size(((axes, 1),))) if axes else self.number(1)
            case Number(name) if name in self.numbers:
                return self.row(nb.REACH_GIVEN, self.numbers[name])
            case Choice(is_smaller, left, right):
                return self.row(nb.REACH_SMALLER if is_smaller else nb.REACH_LARGER, self.size(left), self.size(right))
            case Quotient(left, right):
                return self.row(nb.REACH_QUOTIENT, self.size(left), self.size(right))
        raise _UnknownError

    def row(self, operation: int, left: int = 0, right: int = 0) -> int:
        """Return the place of what an operation gives, which is worked out once."""
        key = (operation, left, right)
        if key not in self.known:
            self.known[key] = len(self.rows)
            self.rows.append((*key, 0, 0))
        return self.known[key]
