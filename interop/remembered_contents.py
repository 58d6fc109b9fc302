"""What arrays held at some time, as checksums: whether something that nobody was told of has changed them since.

NumPy writes to memory without a trace, so the contents themselves are looked at. A checksum costs one pass over the memory, at
the speed of the memory where it is large.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from numbridge.kernels.adjoint.overlap import on_memory, share_memory
from numbridge.kernels.intrinsics import tid
from numbridge.kernels.kernel import kernel
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import Description
from numbridge.kernels.watching import unseen

__all__ = ["RememberedContents"]


class RememberedContents:
    """Checksums of arrays on the CPU, by where they lie."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], tuple[Description, int]] = {}
        self._now: dict[tuple[Any, ...], int] = {}

    def remember(self, arrays: Iterable[Description]) -> None:
        """Remember what arrays hold now; what is remembered of an array already stays."""
        for found in arrays:
            if found.device_type == dl.CPU and _place(found) not in self._sums:
                self._sums[_place(found)] = found, _checksum(found)

    def forget(self, changed: Description) -> None:
        """Forget every array that shares memory with one that is about to change."""
        for key in [key for key, (found, _) in self._sums.items() if share_memory(found, changed)]:
            del self._sums[key]

    def look_again(self) -> None:
        """Say that arrays may have changed: until the next time, each is looked at once."""
        self._now.clear()

    def holds(self, found: Description) -> bool:
        """Return whether an array holds what was remembered of it; where nothing is, it does."""
        key = _place(found)
        if key not in self._sums:
            return True
        if key not in self._now:
            self._now[key] = _checksum(found)
        return self._sums[key][1] == self._now[key]


def _place(found: Description) -> tuple[Any, ...]:
    return found.data, found.shape, found.strides, found.tag


# Words side by side are summed side by side, so that LLVM sums them in vectors.
LANES = 64
ROWS = 512  # that one thread sums
LEAST = 1 << 16  # bytes below which the C library is as fast


@kernel
def _sum_rows(words, sums):  # type: ignore[no-untyped-def]
    # Fletcher's checksum in each lane: the second sum depends on the order of the words. Folded, words such as those of 1.0
    # and 2.0, which differ in their highest bits only, cannot cancel out at a distance that is a large power of two.
    i = tid()
    for row in range(i * ROWS, min(i * ROWS + ROWS, words.shape[0])):
        for lane in range(LANES):
            word = words[row, lane]
            total = sums[i, lane] + (word ^ (word >> np.uint64(32)))
            sums[i, lane] = total
            sums[i, lane + LANES] += total


def _checksum(found: Description) -> int:
    values: Any = np.ascontiguousarray(on_memory(found)).reshape(-1)
    if not values.size:
        return 0
    held = values.view(np.uint8)
    start = 0
    if held.size >= LEAST and held.ctypes.data % 8 == 0:
        words = held[: held.size // (8 * LANES) * 8 * LANES].view(np.uint64).reshape(-1, LANES)
        sums: Any = np.zeros((-(-len(words) // ROWS), 2 * LANES), np.uint64)
        with unseen():
            _sum_rows.forall(len(sums))(words, sums)
        start = zlib.crc32(sums)
        held = held[words.nbytes :]
    return zlib.crc32(held, start)
