"""Finding out where a framework's tensor object keeps what DLPack does not tell, by looking at live tensors.

Offsets are never assumed: a field is where, over several very different tensors, memory holds exactly what the framework's
own Python attribute says, and nowhere else. Memory is read through the kernel (``process_vm_readv``), which refuses a bad
address instead of crashing. Knows no framework.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from numbridge.kernels.native.object_layout import Span

__all__ = ["only", "peek", "undisturbed", "version", "where"]

_WORD = 8
_Found = TypeVar("_Found")


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


def version(
    make: Callable[[], Any],
    base: Callable[[Any], int],
    write: Callable[[Any], Any],
    count: Callable[[Any], int],
    limit: int,
) -> tuple[int, int] | None:
    """Return where the pointer to the version counter lies, and where behind it the 32-bit count; None if unsure.

    Parameters
    ----------
    make : callable
        Returns a new object.
    base : callable
        Gives the address of an object's implementation.
    write : callable
        Counts an object's version up by one.
    count : callable
        Gives an object's version.
    limit : int
        How far to look in the implementation, in bytes.
    """
    found = {(o, c) for o in range(0, limit, _WORD) for c in range(0, 40, 4)}
    for steps in (3, 7, 12):
        obj = make()
        for _ in range(2):
            for _ in range(steps):
                write(obj)
            start = base(obj)
            found = {(o, c) for o, c in found if (pointer := peek(start + o)) and peek(pointer + c, 4) == count(obj)}
            # A shared pointer has two words, and either may lead to the count.
            counts = {(peek(start + o) or 0) + c for o, c in found}
    return min(found) if len(counts) == 1 else None


def undisturbed(probe: Callable[[], _Found | None]) -> _Found | None:
    """Return what `probe` finds in a thread of its own, or None if it fails.

    Inference mode, fake tensors, vmap, default devices and the like are states of a thread. Tensors that are made in one of
    them are not ordinary, and would be taken as the measure of what is.
    """
    from concurrent.futures import ThreadPoolExecutor  # which imports much, for frameworks alone

    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(probe)
        return None if probing.exception() is not None else probing.result()


def only(found: set[int]) -> int | None:
    """Return the one offset of a set, or None if there is none or more than one."""
    return next(iter(found)) if len(found) == 1 else None
