"""Facts about memory that arrays and tensors share: which tensor still is an array's memory, and what must stay read-only.

Names no framework; what was lent to one is in `leases`.
"""

from __future__ import annotations

from typing import Any

from numbridge.arrays.array import Array
from numbridge.kernels.element_types.elements import by_number
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.storage.element_views import unpacked
from numbridge.storage.leases import any_lent, is_lent
from numbridge.storage.memory import native, packed_record

__all__ = ["is_own", "keep_lent", "read_only"]


def is_own(array: Array, tensor: Any) -> bool:
    """Tell whether a tensor that an array came from still is that memory; ``t_()`` or ``.data = ...`` change it in place."""
    mine, theirs = native().describe(unpacked(array)), native().describe(tensor)
    if mine[1:3] != theirs[1:3] or mine[0] & 0xFFFFFFFF != theirs[0] & 0xFFFFFFFF:
        return False
    return all(extent < 2 or a == b for extent, a, b in zip(mine[2], mine[3], theirs[3], strict=True))


def keep_lent(found: Any) -> Any:
    """Return an Array or a descriptor that was made of a tensor, read-only if the tensor's memory was lent."""
    if not any_lent():
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
    return packed_record(
        record, by_number(native().word(record) >> nb.WORD_ELEMENT & 0xFFFF), flags | dl.FLAG_READ_ONLY
    )
