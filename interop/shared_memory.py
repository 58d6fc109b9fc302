"""Facts about memory that arrays and tensors share: which tensor still is an array's memory, and what was only lent.

A JAX array's memory may be handed on to a framework whose tensors cannot say that they must not be written. Its addresses
are remembered here as long as the memory lives, so that numbridge still knows it when it comes back under another name: as a
slice, detached, or through a third framework. Names no framework.
"""

from __future__ import annotations

import weakref
from typing import Any

from numbridge.array import Array, native
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb

__all__ = ["is_lent", "is_own", "keep_lent", "lend", "read_only"]

# (id of the owner, first address, address behind the last) of everything lent
_lent: dict[tuple[int, int, int], None] = {}


def is_own(array: Array, tensor: Any) -> bool:
    """Tell whether a tensor that an array came from still is that memory; ``t_()`` or ``.data = ...`` change it in place."""
    mine, theirs = native().describe(array), native().describe(tensor)
    if mine[1:3] != theirs[1:3] or mine[0] & 0xFFFFFFFF != theirs[0] & 0xFFFFFFFF:
        return False
    return all(extent < 2 or a == b for extent, a, b in zip(mine[2], mine[3], theirs[3], strict=True))


def lend(array: Array) -> None:
    """Remember that an immutable array's memory was handed on to a tensor that cannot say so."""
    owner = native().owner(array._record)
    first, behind = _span(array)
    lease = (id(owner), first, behind)
    # A capsule cannot be watched. It holds a tensor whose memory was lent before, and that lease lives as long as it does.
    if lease in _lent or not type(owner).__weakrefoffset__:
        return
    _lent[lease] = None
    weakref.finalize(owner, _lent.pop, lease, None).atexit = False


def _span(array: Array) -> tuple[int, int]:
    """Return the lowest address of an array's elements and the address behind the highest."""
    _, data, shape, strides, _ = native().describe(array)
    if 0 in shape:
        return data, data
    reach = [step * (extent - 1) for extent, step in zip(shape, strides, strict=True)]
    return data + sum(r for r in reach if r < 0), data + sum(r for r in reach if r > 0) + array.itemsize


def is_lent(address: int) -> bool:
    """Tell whether an address lies in memory that was lent."""
    # A copy, since leases end whenever their memory does.
    return bool(_lent) and any(first <= address < behind for _, first, behind in list(_lent))


def keep_lent(found: Any) -> Any:
    """Return an Array or a descriptor that was made of a tensor, read-only if the tensor's memory was lent."""
    if not _lent:
        return found
    word, data, *_ = native().describe(found)
    if word & nb.READ_ONLY or not is_lent(data):
        return found
    if not isinstance(found, Array):
        return read_only(found, dl.RECORD_IMMUTABLE)
    found._record = read_only(found._record, dl.RECORD_IMMUTABLE)
    return found


def read_only(record: Any, flags: int = 0) -> Any:
    """Return a record of the same memory that says that it must not be written."""
    word, data, shape, strides, ordinal = native().describe(record)
    size = (word >> 8 & 0xFF) >> 3
    steps = tuple(step // size for step in strides)
    kind = dl.CUDA_HOST if word & nb.PINNED else word >> nb.WORD_DEVICE & 0xFF
    return native().new_record(record, data, word & 0xFFFFFFFF, kind, ordinal, shape, steps, flags | dl.FLAG_READ_ONLY)
