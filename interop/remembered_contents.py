"""What arrays held at some time, as checksums: whether something that nobody was told of has changed them since.

NumPy writes to memory without a trace, so the contents themselves are looked at. A checksum costs one pass over the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from numbridge.kernels.adjoint.overlap import on_memory, share_memory
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import Description
from numbridge.memory import native

__all__ = ["RememberedContents"]

_WORD = 8


class RememberedContents:
    """Checksums of arrays on the CPU, by where they lie."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Any, ...], tuple[Description, tuple[int, int]]] = {}
        self._now: dict[tuple[Any, ...], tuple[int, int]] = {}

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


def _checksum(found: Description) -> tuple[int, int]:
    # An expanded array may be far larger than its memory.
    once = tuple(
        0 if step == 0 and length else slice(None) for step, length in zip(found.strides, found.shape, strict=True)
    )
    values: Any = np.ascontiguousarray(on_memory(found)[once]).reshape(-1)
    if not values.size:
        return 0, 0
    flat = values.view(np.uint8)
    words = flat.size // _WORD
    return native().checksum(flat.ctypes.data, words), zlib.crc32(flat[words * _WORD :])
