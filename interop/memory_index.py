"""Things by the arrays that they are about, found again through any array that shares memory with those.

Arrays are sorted by address, apart for each order of magnitude of their sizes, so that finding what shares memory with one
takes no longer the more of them there are.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from numbridge.kernels.adjoint.overlap import share_memory
from numbridge.kernels.readers import Description

__all__ = ["MemoryIndex", "place_of"]

Thing = TypeVar("Thing")


def place_of(found: Description) -> tuple[Any, ...]:
    """Return where and how an array lies: arrays of one place are the same memory, read in the same way."""
    return found.data, found.shape, found.strides, found.tag


class MemoryIndex(Generic[Thing]):
    """Arrays, each with any number of things; one without elements shares memory with none."""

    def __init__(self) -> None:
        self._things: dict[tuple[Any, ...], tuple[Description, list[Thing]]] = {}
        # Bits of the size -> sorted (first address, the one after the last, place)
        self._sorted: dict[int, list[tuple[int, int, tuple[Any, ...]]]] = {}

    def add(self, found: Description, *things: Thing) -> None:
        """Add an array with some things; one that is here already gets them too."""
        place, (low, high) = place_of(found), found.extent
        if place not in self._things and high > low:
            bisect.insort(self._sorted.setdefault((high - low).bit_length(), []), (low, high, place))
            self._things[place] = found, []
        if high > low:
            self._things[place][1].extend(things)

    def arrays(self, found: Description) -> list[Description]:
        """Return the arrays that share memory with one."""
        return [self._things[place][0] for place in self._places(found)]

    def things(self, found: Description) -> list[Thing]:
        """Return everything of the arrays that share memory with one."""
        return [thing for place in self._places(found) for thing in self._things[place][1]]

    def shares(self, found: Description) -> bool:
        """Return whether any array shares memory with one."""
        return next(self._places(found), None) is not None

    def take(self, found: Description) -> list[Thing]:
        """Return everything of the arrays that share memory with one, and forget these arrays."""
        taken = []
        for place in list(self._places(found)):
            other, things = self._things.pop(place)
            low, high = other.extent
            arrays = self._sorted[(high - low).bit_length()]
            del arrays[bisect.bisect_left(arrays, (low, high, place))]
            taken += things
        return taken

    def __iter__(self) -> Iterator[Description]:
        """Iterate over the arrays."""
        return (found for found, _ in self._things.values())

    def _places(self, found: Description) -> Iterator[tuple[Any, ...]]:
        low, high = found.extent
        for bits, arrays in self._sorted.items():
            first = bisect.bisect_left(arrays, (low - (1 << bits),))
            last = bisect.bisect_left(arrays, (high,))
            for _, other_high, place in arrays[first:last]:
                if other_high > low and share_memory(self._things[place][0], found):
                    yield place
