"""Where a tape's arrays lie: one place for each, which knows what shares memory with it and what the tape knows of it.

Places are sorted by address, apart for each order of magnitude of their sizes, so that finding what shares memory with a new
one takes no longer the more of them there are. Once found, it is known: places that share memory are linked.
"""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from numbridge.kernels.adjoint.overlap import repeats, share_memory
from numbridge.kernels.element_types.elements import has_gradient
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import Description

__all__ = ["Place", "Places", "has_floats"]

_BEYOND = 1 << 64


@functools.cache
def has_floats(tag: int) -> bool:
    """Tell whether arrays of a packed data type have gradients."""
    found = Description(tag)
    return found.scalar is not None and has_gradient(found.element, found.scalar)


class Place:
    """Some memory, read in one way.

    Attributes
    ----------
    found : Description
        An array that lies here.
    links : list of Place
        The places that share memory with this one, itself among them; none if it has no elements. It only grows, so that
        another thread may be going through it.
    is_float, is_on_cpu, repeats, is_empty : bool
        Whether arrays here have gradients; lie in the CPU's memory; have elements with several indices; have no elements.
    is_varied, meets_varied : bool
        Whether what lies here depends on something that requires a gradient; or what shares memory with it does.
    is_leaf, meets_leaf : bool
        Whether what was recorded here required a gradient itself; or what shares memory with it did.
    holder : object
        What holds the memory that was recorded, even if a tensor is given other memory.
    is_made : bool
        Whether it was written while the tape recorded.
    reads : list of (int, int)
        Which of the tape's events are launches whose adjoints read this, as which argument, and have kept no copy of it.
    checksum, looked_at : int
        What `RememberedContents` saw here last, and in which of its rounds.
    read, carried : int or None
        The checksums that it remembers for adjoints, and for gradients that are carried through.
    parts : dict or None
        The places of some of its rows, by the first and the last.
    """

    # Most places never differ from these.
    holder: Any = None
    is_varied = meets_varied = is_leaf = meets_leaf = is_made = is_empty = False
    checksum, looked_at = 0, -1
    read: int | None = None
    carried: int | None = None
    parts: dict[tuple[int, int], Place] | None = None

    def __init__(self, found: Description, links: list[Place]) -> None:
        self.found = found
        self.links = links
        self.reads: list[tuple[int, int]] = []
        self.is_float = has_floats(found.tag)
        self.is_on_cpu = found.device_type == dl.CPU
        if 0 in found.shape:
            self.is_empty = True
        self.repeats = repeats(found)
        for other in links:
            if other.is_varied:
                self.meets_varied = True
            if other.is_leaf:
                self.meets_leaf = True

    def meets(self, other: Place) -> bool:
        """Tell whether two places share memory; both must be kept."""
        (low, high), (other_low, other_high) = self.found.extent, other.found.extent
        if low >= other_high or other_low >= high:
            return False
        return other in self.links if len(self.links) < len(other.links) else self in other.links

    def vary(self) -> None:
        """Say that what lies here depends on something that requires a gradient."""
        if not self.is_varied:
            self.is_varied = True
            for other in self.links:
                other.meets_varied = True

    def require(self) -> None:
        """Say that what lies here requires a gradient."""
        if not self.is_leaf:
            self.is_leaf = True
            for other in self.links:
                other.meets_leaf = True

    def beneath(self) -> list[Place]:
        """Return what carries gradients in this memory, if it is read as something that has none."""
        return [other for other in self.links if other.is_float and (other.is_varied or other.is_leaf)]


class Places:
    """Places, found by the arrays that lie there."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Place] = {}
        # Launches of other threads look for what they overwrite while one is recorded.
        self._lock = threading.Lock()
        # Bits of the size -> first addresses, sorted, and the places that begin there
        self._sorted: dict[int, tuple[list[int], list[Place]]] = {}
        # Those to be sorted once one is looked for that does not lie beyond them all
        self._unsorted: list[Place] = []
        self._low, self._high = _BEYOND, 0
        # Whether none lies in another's reach, and each has elements
        self._are_apart = True

    def __del__(self) -> None:
        """Let places go at once, not when somebody looks for objects that hold each other."""
        for place in self._known.values():
            place.links.clear()
            place.parts = None

    def find(self, found: Description) -> Place:
        """Return where an array lies; a place that is new is not kept, and those that it is linked to do not know it."""
        place = self._known.get(found.place)
        if place is None:
            with self._lock:
                place = Place(found, self._sharing(found))
        return place

    def keep(self, found: Description) -> Place:
        """Return where an array lies, which is known from now on."""
        return self._known.get(found.place) or self._new(found)

    def keep_each(self, found: Sequence[Description], positions: Sequence[int]) -> list[Place | None]:
        """Return where those of some arguments lie that are arrays, as `keep` does."""
        at: list[Place | None] = [None] * len(found)
        for k in positions:
            at[k] = self._known.get(found[k].place) or self._new(found[k])
        return at

    def are_apart(self, arrays: Iterable[Description]) -> bool:
        """Tell whether some arrays are among those that lie here, and of all of these none lies in another's reach."""
        for found in arrays if self._are_apart else ():
            place = self._known.get(found.place)
            if place is None or place.found is not found:
                return False
        return self._are_apart

    def _new(self, found: Description) -> Place:
        low, high = found.extent
        with self._lock:
            is_beyond = low >= self._high or high <= self._low
            links = [] if is_beyond else self._sharing(found)
            place = Place(found, links)
            if high > low:
                for other in links:
                    other.links.append(place)
                links.append(place)
                self._unsorted.append(place)
                if low < self._low:
                    self._low = low
                if high > self._high:
                    self._high = high
            else:
                self._are_apart = False
            self._known[found.place] = place
        return place

    def _sort(self) -> None:
        for place in self._unsorted:
            low, high = place.found.extent
            starts, places = self._sorted.setdefault((high - low).bit_length(), ([], []))
            position = bisect.bisect_left(starts, low)
            places.insert(position, place)
            starts.insert(position, low)
        self._unsorted.clear()

    def __iter__(self) -> Iterator[Place]:
        """Iterate over the places that are known."""
        return iter(self._known.values())

    def _sharing(self, found: Description) -> list[Place]:
        """Return the places that are known and share memory with an array."""
        if self._unsorted:
            self._sort()
        low, high = found.extent
        sharing = []
        for bits, (starts, places) in self._sorted.items():
            first = bisect.bisect_left(starts, low - (1 << bits))
            near = places[first : bisect.bisect_left(starts, high, first)]
            near = [place for place in near if place.found.extent[1] > low]
            if near:
                self._are_apart = False
                sharing += [place for place in near if share_memory(place.found, found)]
        return sharing
