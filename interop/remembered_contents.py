"""What arrays held at some time, as checksums: whether something that nobody was told of has changed them since.

NumPy writes to memory without a trace, so the contents themselves are looked at. A checksum costs one pass over the memory.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from numbridge.kernels.adjoint.overlap import on_memory, share_memory
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Description
from numbridge.memory import native
from numbridge.memory_index import MemoryIndex, place_of

__all__ = ["Checksums", "RememberedContents"]

_WORD = 8


class Checksums:
    """Checksums of what arrays on the CPU hold now; each is looked at once until it is said that it may have changed."""

    def __init__(self) -> None:
        self._now: dict[tuple[Any, ...], tuple[Description, tuple[int, int]]] = {}

    def of(self, found: Description) -> tuple[int, int]:
        """Return the checksum of an array."""
        place = place_of(found)
        if place not in self._now:
            self._now[place] = found, _checksum(found)
        return self._now[place][1]

    def look_again(self, changed: Description | None = None) -> None:
        """Say that arrays may have changed: all, or what shares memory with one."""
        if changed is None:
            self._now.clear()
            return
        for place in [place for place, (found, _) in self._now.items() if share_memory(found, changed)]:
            del self._now[place]


class RememberedContents:
    """Checksums that arrays on the CPU had, by where they lie; one that is not watchful remembers nothing."""

    def __init__(self, now: Checksums, *, watchful: bool = True) -> None:
        self._now, self._watchful = now, watchful
        self._sums: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._arrays: MemoryIndex[tuple[Any, ...]] = MemoryIndex()

    def remember(self, arrays: Iterable[Description]) -> None:
        """Remember what arrays hold now; what is remembered of an array already stays."""
        for found in arrays:
            place = place_of(found)
            if self._watchful and found.device_type == dl.CPU and place not in self._sums:
                self._sums[place] = self._now.of(found)
                self._arrays.add(found, place)

    def forget(self, changed: Description) -> None:
        """Forget every array that shares memory with one that is about to change."""
        for place in self._arrays.take(changed):
            del self._sums[place]

    def renew(self, changed: Description) -> None:
        """Remember what every array that shares memory with one holds now."""
        for found in self._arrays.arrays(changed):
            self._sums[place_of(found)] = self._now.of(found)

    def holds(self, found: Description) -> bool:
        """Return whether an array holds what was remembered of it; where nothing is, it does."""
        place = place_of(found)
        return place not in self._sums or self._sums[place] == self._now.of(found)

    def changed(self, found: Description) -> list[Description]:
        """Return those arrays sharing memory with one that do not hold what was remembered of them."""
        return [other for other in self._arrays.arrays(found) if not self.holds(other)]


def _checksum(found: Description) -> tuple[int, int]:
    if found.has(nb.CONTIGUOUS):
        low, high = found.extent
        return _checksum_of_bytes(low, high - low)
    # An expanded array may be far larger than its memory.
    once = tuple(
        0 if step == 0 and length else slice(None) for step, length in zip(found.strides, found.shape, strict=True)
    )
    values: Any = np.ascontiguousarray(on_memory(found)[once])
    return _checksum_of_bytes(values.ctypes.data, values.nbytes)


def _checksum_of_bytes(address: int, size: int) -> tuple[int, int]:
    words = size // _WORD
    rest = ctypes.string_at(address + _WORD * words, size - _WORD * words)
    return native().checksum(address, words), zlib.crc32(rest)
