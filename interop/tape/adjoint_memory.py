"""The adjoints of a tape's arrays, laid out like the arrays themselves.

Arrays that may share memory belong to one region; a region's adjoint is one block, in which the adjoint of an array lies
where the array lies in the region. So views, slices and other frameworks' tensors over the same memory share adjoints as
they share memory. Nothing is allocated before an adjoint is asked for, and what a gradient starts from stays where it is until
then. An adjoint lies where its array does: in the CPU's memory it is a NumPy array, on a CUDA device an `Array`.
"""

from __future__ import annotations

import bisect
import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numbridge.kernels import scalars
from numbridge.kernels.element_types.element_arguments import full_shape
from numbridge.kernels.element_types.elements import float_fields
from numbridge.kernels.errors import BufferAccessError
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Description
from numbridge.tape import device_adjoints
from numbridge.tape.places import Place

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = ["Adjoint", "AdjointMemory", "Region", "add", "clear", "is_zero"]

Adjoint: TypeAlias = "NDArray[Any] | Array"
_HOST = -1
# Bytes of memory over which a pass is worth avoiding
LARGE = 1 << 20


class Region:
    """Some memory, and its adjoint once that has been asked for.

    Attributes
    ----------
    low, high : int
        First address, and the one after the last.
    ordinal : int
        Of the CUDA device whose memory it is; -1 for the CPU's.
    reached : bool
        Whether a gradient has been put here.
    parts : dict
        The adjoints of arrays that are known, by the id of what describes them.
    """

    __slots__ = ("_block", "_lent", "dtype", "high", "low", "ordinal", "parts", "reached")

    def __init__(self, low: int, high: int, dtype: np.dtype[Any], ordinal: int = _HOST) -> None:
        self.low, self.high, self.dtype, self.ordinal = low, high, dtype, ordinal
        self.reached = False
        self.parts: dict[int, Adjoint] = {}
        self._block: Any = None
        self._lent: NDArray[Any] | None = None

    def is_filled_by(self, found: Description) -> bool:
        """Tell whether an array in the CPU's memory is all of this region, without gaps and in the order of its indices."""
        return (
            self.ordinal == _HOST
            and self.dtype.fields is None
            and bool(found.word & nb.CONTIGUOUS)
            and found.extent == (self.low, self.high)
        )

    def borrow(self, found: Description, values: NDArray[Any]) -> bool:
        """Begin with somebody else's values as the adjoint of a large array, if nothing is here yet and it is all there is.

        They are copied when the adjoint is asked for, or by `own`; until then they must not change.
        """
        if not (self.is_large and self.is_untouched) or values.dtype != self.dtype or not self.is_filled_by(found):
            return False
        self._lent = values
        return True

    @property
    def is_large(self) -> bool:
        """Whether a pass over its memory, which is the CPU's, takes longer than to find out that it may be left out."""
        return self.high - self.low >= LARGE and self.ordinal == _HOST

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has asked for an adjoint yet, so that all of it is zero."""
        return self._block is None and self._lent is None

    def read(self, found: Description) -> Adjoint:
        """Return the adjoint of an array that fills this region, only to be read: what was borrowed, if kernels can read that."""
        return self.adjoint(found) if self._lent is None or not self._lent.flags.carray else self._lent

    def drop(self) -> None:
        """Make the adjoint zero, without a pass over its memory."""
        self.parts.clear()
        self._block = self._lent = None

    def take(self, adjoint: NDArray[Any]) -> None:
        """Make new memory the adjoint of an array that fills this region."""
        self.parts.clear()
        self._block = adjoint.reshape(-1)

    def own(self) -> None:
        """Copy what was borrowed."""
        if self._lent is not None:
            # As a sum that begins with zero, which makes 0.0 of -0.0
            self._block = np.add(self._lent, self.dtype.type(0), np.empty(self._lent.shape, self.dtype)).reshape(-1)
            self._lent = None

    def adjoint(self, found: Description) -> Adjoint:
        """Return the adjoint of an array that lies in this region, zero at first; elements are its last dimensions."""
        if self._lent is not None:
            self.own()
        if self._block is None:
            size = -(-(self.high - self.low) // self.dtype.itemsize)
            self._block = np.zeros(size, self.dtype) if self.ordinal == _HOST else self._device_zeros(size)
        if self.ordinal != _HOST:
            return device_adjoints.like(self._block, found.data - self.low, found)
        if (
            found.shape == self._block.shape
            and found.data == self.low
            and found.word & nb.CONTIGUOUS
            and found.element is None
        ):
            whole: Adjoint = self._block
            return whole
        is_record = self.dtype.fields is not None
        shape, strides = found.shape if is_record else full_shape(found), found.strides
        if 0 in shape:
            return np.zeros(shape, self.dtype)
        if found.element is not None and not is_record:
            strides = (*strides, *np.empty(found.element.extents, self.dtype).strides)
        return np.ndarray(shape, self.dtype, self._block, found.data - self.low, strides)

    def copy(self) -> Region:
        """Return a region of the same memory whose adjoint is a copy of this one's."""
        made = Region(self.low, self.high, self.dtype, self.ordinal)
        made.reached = self.reached
        self.own()
        if self._block is not None:
            made._block = self._block.copy() if self.ordinal == _HOST else self._block.clone()
        return made

    def _device_zeros(self, size: int) -> Adjoint:
        return device_adjoints.zeros(size, scalars.scalar_of(self.dtype), self.ordinal)


class AdjointMemory:
    """The regions of some arrays of floating-point numbers.

    Parameters
    ----------
    places : iterable of sequence of Place
        Where some of them lie.
    arrays : iterable of Description
        The others.
    are_apart : bool
        Whether no two of them lie in each other's reach: then each has a region of its own, which is made when it is asked for.

    Raises
    ------
    BufferAccessError
        If arrays of different dtypes, or of the CPU and a CUDA device, may share memory.
    """

    def __init__(
        self, places: Iterable[Sequence[Place]], arrays: Iterable[Description], *, are_apart: bool = False
    ) -> None:
        # What has been described once is one object wherever it is met. These are held, so that no other gets the id of one.
        self._places, self._arrays = [*places], [*arrays]
        self._at: dict[int, Region] = {}
        # All regions, by their first addresses, once somebody has asked for one that only these tell
        self._sorted: tuple[list[int], list[Region]] | None = None
        self._borrowing: list[Region] = []
        # Whether a region is large, so that launches may ask which
        self.has_large = False
        if not are_apart:
            self._sort()

    def _sort(self) -> tuple[list[int], list[Region]]:
        """Find all regions; those that have been made stay."""
        given = {id(place.found): place.found for places in self._places for place in places}
        given.update((id(found), found) for found in self._arrays)
        starts: list[int] = []
        regions: list[Region] = []
        last: Region | None = None
        for found in sorted(given.values(), key=_extent):
            low, high = found.extent
            if last is not None and low < last.high:
                _check_alike(last, found)
                last.high = max(last.high, high)
                self.has_large |= last.is_large
            elif last is None or high > low or last.low != low:
                last = self._at.get(id(found)) or self._made(found)
                regions.append(last)
                starts.append(low)
            if high > low:
                self._at[id(found)] = last
        self._sorted = starts, regions
        return self._sorted

    def _made(self, found: Description) -> Region:
        low, high = found.extent
        region = Region(low, high, _dtype_of(found.tag), found.device_id if found.is_on_cuda else _HOST)
        if high - low >= LARGE:
            self.has_large = True
        return region

    def region(self, found: Description) -> Region | None:
        """Return the region that an array lies in, or None."""
        known = self._at.get(id(found))
        if known is not None:
            return known
        starts, regions = self._sorted or self._sort()
        low, high = found.extent
        place = bisect.bisect_right(starts, low) - 1
        region = regions[place] if place >= 0 else None
        if region is None or high > region.high:
            return None
        ordinal = found.device_id if found.is_on_cuda else _HOST
        return region if (region.dtype, region.ordinal) == (_dtype_of(found.tag), ordinal) else None

    def at(self, place: Place) -> Region:
        """Return the region of a place, of an array that this was made for."""
        found = place.found
        region = self._at.get(id(found))
        if region is None:
            if self._sorted is None:
                region = self._at[id(found)] = self._made(found)
            else:
                region = self.region(found)
                assert region is not None
        return region

    def of_each(self, places: Iterable[Place]) -> list[Region]:
        """Return the region of each of some places."""
        known, regions = self._at, []
        for place in places:
            region = known.get(id(place.found))
            regions.append(self.at(place) if region is None else region)
        return regions

    def parts(self, regions: Iterable[Region], places: Iterable[Place]) -> list[Adjoint]:
        """Return the adjoint of each of some places, which lie in these regions."""
        parts = []
        for region, place in zip(regions, places):  # noqa: B905 - for each a region
            known = region.parts.get(id(place.found))
            parts.append(self.part(region, place.found) if known is None else known)
        return parts

    def adjoint(self, place: Place) -> Adjoint:
        """Return the adjoint of a place, of an array that this was made for; the same one every time."""
        return self.part(self.at(place), place.found)

    def part(self, region: Region, found: Description) -> Adjoint:
        """Return the adjoint of an array that lies in a region; the same one every time if this was made for the array."""
        adjoint = region.parts.get(id(found))
        if adjoint is None:
            adjoint = region.adjoint(found)
            if id(found) in self._at:
                region.parts[id(found)] = adjoint
        return adjoint

    def start(self, place: Place, values: Adjoint) -> None:
        """Add to the adjoint of an array what a gradient starts from, which must not change before it is owned."""
        found, region = place.found, self.at(place)
        region.reached = True
        if self.has_large and isinstance(values, np.ndarray) and region.borrow(found, values):
            self._borrowing.append(region)
        else:
            add(self.part(region, found), values)

    def own(self) -> None:
        """Copy what is borrowed still."""
        for region in self._borrowing:
            region.own()
        self._borrowing.clear()


def _check_alike(region: Region, found: Description) -> None:
    """Refuse arrays that share a region and cannot share adjoints."""
    dtype = _dtype_of(found.tag)
    if region.dtype != dtype:
        raise BufferAccessError(
            f"arrays of {region.dtype} and {dtype} share memory, through which no gradient can be carried; use arrays of one "
            "dtype"
        )
    if region.ordinal != (found.device_id if found.is_on_cuda else _HOST):
        raise BufferAccessError(
            "arrays on the CPU and on a CUDA device share memory, through which no gradient can be carried; use arrays on one "
            "device"
        )


def _float_parts(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield what of a gradient is floating-point numbers, on its memory: all of it, or those fields of its records."""
    if values.dtype.fields is None:
        return iter((values,))
    return (functools.reduce(lambda part, name: part[name], path, values) for path in float_fields(values.dtype))


def add(gradient: Adjoint, more: Adjoint) -> None:
    """Add to a gradient, of real numbers what is real; the fields of records that have none stay as they are."""
    if not isinstance(gradient, np.ndarray):
        device_adjoints.add(gradient, more)  # type: ignore[arg-type]
        return
    if gradient.dtype.fields is None:
        assert isinstance(more, np.ndarray)
        # The gradient of what real numbers were copied to may be complex.
        np.add(gradient, more.real if gradient.dtype.kind == "f" else more, gradient)
        return
    for part, other in zip(_float_parts(gradient), _float_parts(more), strict=True):  # type: ignore[arg-type]
        np.add(part, other, out=part)


def clear(gradient: Adjoint) -> None:
    """Set a gradient to zero."""
    if isinstance(gradient, np.ndarray):
        gradient[...] = 0
    else:
        from numbridge.storage import cupy_memory

        cupy_memory.assign(gradient, ..., 0)


def is_zero(gradient: Adjoint) -> bool:
    """Tell whether a gradient is zero; waits for the device that it is on."""
    values = gradient if isinstance(gradient, np.ndarray) else gradient.numpy()
    return not any(part.any() for part in _float_parts(values))


_extent = operator.attrgetter("extent")


@functools.cache
def _dtype_of(tag: int) -> np.dtype[Any]:
    """Return the dtype of what a packed data type is in memory: of its records, or of its numbers."""
    found = Description(tag)
    if found.element is not None and found.element.fields is not None:
        return found.element.fields
    assert found.scalar is not None
    return found.scalar.numpy
