"""Finding out where a framework's tensor object keeps what DLPack does not tell, by looking at live tensors.

Offsets are never assumed: a field is where, over several very different tensors, memory holds exactly what the framework's
own Python attribute says, and nowhere else. Memory is read through the kernel (``process_vm_readv``), which refuses a bad
address instead of crashing. Knows no framework.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.native.object_layout import Span

__all__ = ["only", "peek", "where"]

_WORD = 8


def peek(address: int, size: int = _WORD) -> int | None:
    """Return the unsigned integer of `size` bytes at an address, or None if it cannot be read."""
    read = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if read is None or address <= 0:
        return None
    room = ctypes.create_string_buffer(size)
    here, there = Span(ctypes.addressof(room), size), Span(address, size)
    count = ctypes.c_ulong(1)
    done = read(os.getpid(), ctypes.byref(here), count, ctypes.byref(there), count, ctypes.c_ulong(0))
    return int.from_bytes(room.raw, "little") if done == size else None


def where(base: Callable[[Any], int], wanted: Sequence[tuple[Any, int]], limit: int, size: int = _WORD) -> set[int]:
    """Return the offsets from ``base(object)`` at which every object's memory holds what is wanted of it.

    Parameters
    ----------
    base : callable
        Gives the address to start from.
    wanted : sequence of (object, int)
        The objects, and the value that the field must have in each.
    limit : int
        How far to look, in bytes.
    size : int
        Width of the field, in bytes.
    """
    return {
        offset
        for offset in range(0, limit, size)
        if all(peek(base(obj) + offset, size) == value for obj, value in wanted)
    }


def only(found: set[int]) -> int | None:
    """Return the one offset of a set, or None if there is none or more than one."""
    return next(iter(found)) if len(found) == 1 else None
