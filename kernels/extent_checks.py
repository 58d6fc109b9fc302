"""Whether arrays are long enough for a launch, and threads apart: as Python asks it, and as rows that compiled code goes through.

How far threads go, and what they clash on, is read from a kernel's source: see `language.reaches`. Layout of the rows:
`table_layout`; what goes through them: `native.extents`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.errors import NumbridgeValueError
from numbridge.kernels.language.clashes import Clash
from numbridge.kernels.language.launch_sizes import (
    ZERO,
    Along,
    Atom,
    Choice,
    Extent,
    Number,
    Quotient,
    Size,
    Total,
)
from numbridge.kernels.language.reaches import Demand, reaches_of
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.parameter_types import ArrayType, ParameterType, block_offsets, is_signed
from numbridge.kernels.readers import Description

if TYPE_CHECKING:
    from numbridge.kernels.geometry import Geometry
    from numbridge.kernels.kernel import Kernel
    from numbridge.kernels.variant import Variant

__all__ = ["Launched", "atoms_of", "check_extents", "extent_rows", "refused", "whole_numbers"]

_GEOMETRY = {"dim": nb.PLAN_DIMS, "blockDim": nb.PLAN_BLOCK, "gridDim": nb.PLAN_GRID, "shared": nb.PLAN_SHARED}
_LAUNCHES_WAY = "pass a longer array, launch fewer threads, or guard what those beyond its end must not take"
_GUARDS_WAY = "pass a longer array, or end the loop or the guard around it earlier"
_OPERATORS_WAY = "expand it, or pass launch_dims"
_OUTPUTS = "an output gets the extents of output_dims"


@dataclass(frozen=True)
class Launched:
    """What a launch knows of itself, as `launch_sizes.Known` asks for it.

    Attributes
    ----------
    counts : mapping of str to sequence of int
        How many there are along each axis, by the kinds of `launch_sizes.Along`.
    shapes : mapping of str to sequence of int
        The extents of arrays, without those of vectors and matrices.
    numbers : mapping of str to int
        The signed integers that are passed by value.
    """

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
    """Refuse arrays that some thread of a launch is sure to overrun, and elements that several are sure to change at once.

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
        Naming the array, its shape, how long it must be, and the expression that takes an element beyond its end; or what several
        threads change.
    """
    dims, parameters = geometry.dims, variant.parameters
    if 0 in dims:
        return
    shapes = {p.name: d.shape[: p.ndim] for p, d in zip(parameters, found, strict=True) if isinstance(p, ArrayType)}
    given = zip(parameters, found, arguments, strict=True)
    counts = {"dim": dims, "shared": (geometry.place.shared,)}
    # On CUDA, what is launched over so many threads is in blocks of the hardware's.
    if variant.launch_function == 0 or geometry.place.form != "masked":
        counts |= {"blockDim": geometry.block, "gridDim": geometry.grid}
    launch = Launched(counts, shapes, {p.name: argument for p, d, argument in given if _is_whole(p, d)})
    refusal = refused(reaches_of(kernel), launch, is_followed=geometry.is_followed, called=kernel.label)
    if refusal is not None:
        raise NumbridgeValueError(f"launch of kernel {kernel.name!r}, {refusal}")


def refused(
    reaches: Sequence[Demand], launch: Launched, *, is_followed: bool, called: Callable[[str], str] = str
) -> str | None:
    """Return what the first array that is too short for a launch is, or what threads change at once, and what to do, or None.

    Parameters
    ----------
    reaches : sequence of Reach or Clash
        How far threads of the kernel are sure to go along axes of its arrays, and what they clash on.
    launch : Launched
        The launch, of a thread or more.
    is_followed : bool
        Whether a framework makes it, whose users say what its outputs are.
    called : callable
        Gives what messages call a parameter.
    """
    for reach in reaches:
        if not reach.missing(launch, operator.lt):
            continue
        if isinstance(reach, Clash):
            said = reach.refusal(launch.counts["dim"])
        else:
            way = _GUARDS_WAY if not reach.by_all else _OPERATORS_WAY if is_followed else _LAUNCHES_WAY
            said = reach.refusal(launch, launch.counts["dim"], f"{way}; {_OUTPUTS}" if is_followed else way)
        return f"{reach.memory or 'parameter'} {called(reach.array)!r}: {said}"
    return None


def atoms_of(reaches: Sequence[Demand]) -> frozenset[Atom]:
    """Return what decides how long arrays must be, and whether threads clash."""
    return frozenset[Atom]().union(*(size.atoms for reach in reaches for size in reach.sizes))


def whole_numbers(parameters: Sequence[ParameterType], found: Sequence[Description]) -> list[str]:
    """Return the parameters that are signed integers to a kernel, and to whoever passed them."""
    return [p.name for p, d in zip(parameters, found, strict=True) if _is_whole(p, d)]


def extent_rows(
    reaches: Sequence[Demand], parameters: Sequence[ParameterType], numbers: Collection[str]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how compiled code asks the same, where arguments are laid out: rows of `REACH_SIZE` bytes.

    Parameters
    ----------
    reaches : sequence of Reach or Clash
        How far threads of the kernel are sure to go along axes of its arrays, and what they clash on.
    parameters : sequence of ParameterType
        What it was compiled for.
    numbers : collection of str
        The signed integers among its parameters of which that may be asked.
    """
    rows = _Rows(parameters, numbers)
    for needs in dict.fromkeys(reach.needs for reach in reaches):
        rows.add(needs, [reach for reach in reaches if reach.needs == needs])
    # What 64 bits do not hold is beyond all extents as well at their end.
    ends = np.iinfo(np.int64)
    held = [[min(max(number, ends.min), ends.max) for number in row] for row in rows.rows]
    return np.array(held, np.int64).reshape(-1, nb.REACH_SIZE // 8)


def _is_whole(parameter: ParameterType, found: Description) -> bool:
    """Tell whether an argument is an integer that a kernel takes as a signed one."""
    return is_signed(parameter) and found.kind == nb.CLASS_INT


class _UnknownError(Exception):
    """Raised for a size of which compiled code knows a part only."""


class _Rows:
    """Rows as they are made: each gives a number, by its place, or asks something of such numbers."""

    def __init__(self, parameters: Sequence[ParameterType], numbers: Collection[str]) -> None:
        placed = [*zip(parameters, block_offsets(parameters), strict=False)]
        # Of arrays, where their extents lie and how many; of integers, where they lie, and the bits that they do not have.
        self.arrays = {p.name: (at + nb.VALUE_SHAPE, p.ndim) for p, at in placed if isinstance(p, ArrayType)}
        self.numbers = {p.name: (at, 64 - 8 * p.scalar.itemsize) for p, at in placed if p.name in numbers}
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.known: dict[tuple[int, int, int], int] = {}

    def add(self, needs: Sequence[Size], reaches: Sequence[Demand]) -> None:
        """Add rows that ask whether all arrays are long enough, if what is needed for any thread to come there is positive.

        Where threads clash then, that is no question: nothing is long enough.
        """
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
            if isinstance(reach, Clash):
                # What is passed by value each thread has for itself.
                if reach.is_shared or reach.array in self.arrays:
                    self.rows.append((nb.REACH_LEAST, -1, 0, -1, 1))
                continue
            first, rank = self.arrays.get(reach.array, (0, 0))
            if not reach.is_along(rank if reach.extents is None else len(reach.extents)):
                continue
            place, extent = (first + 8 * reach.axis, ZERO) if reach.extents is None else (-1, reach.extents[reach.axis])
            least = reach.least - Size(extent.terms)
            try:
                moved = self.size(Size(least.terms)) if least.terms else -1
            except _UnknownError:
                continue
            self.rows.append((nb.REACH_LEAST, place, extent.constant, moved, least.constant))
        for row in asked:
            operation, number, *_ = self.rows[row]
            self.rows[row] = (operation, number, len(self.rows), 0, 0)
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
                return self.row(nb.REACH_ALONG, _GEOMETRY[kind] - nb.PLAN_DIMS + 8 * axis)
            case Extent(name, axis) if axis < self.arrays.get(name, (0, 0))[1]:
                return self.row(nb.REACH_GIVEN, self.arrays[name][0] + 8 * axis)
            case Total(name) if name in self.arrays:
                axes = tuple(Extent(name, axis) for axis in range(self.arrays[name][1]))
                return self.size(Size(((axes, 1),))) if axes else self.number(1)
            case Number(name) if name in self.numbers:
                return self.row(nb.REACH_GIVEN, *self.numbers[name])
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
