"""DLPack capsules of arrays, where more must be said or done than to hand the memory over: read-only memory, copies, devices.

Arrays call this; making arrays of capsules is in `dlpack`.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any

from numbridge.kernels.devices import get_devices
from numbridge.kernels.errors import BufferAccessError, NumbridgeTypeError
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.storage.element_views import refuse_records, scalar_shape
from numbridge.storage.memory import native, row_of

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = ["copied_for", "legacy_capsule", "marked_copy", "pair", "prepare_for_consumers"]

# It holds a lock while it calls a deleter, as 3.3 does (`PaddleDeleterManager`), and the memory behind may be its own again.
_LOCKING = "paddle"


def pair(name: str, given: Any) -> tuple[int, int] | None:
    """Return a version, or a device, as a pair of ints; None is none."""
    if given is None:
        return None
    try:
        first, second = map(operator.index, given)
    except (TypeError, ValueError):
        raise NumbridgeTypeError(f"__dlpack__: {name} is {given!r}; it must be a pair of ints, or None") from None
    return first, second


def prepare_for_consumers(array: Array) -> None:
    """Look at an array of which a capsule is about to be handed out, to whomever, and see to it that it can be given back.

    Raises
    ------
    BufferAccessError
        If a stride is negative: of such a tensor torch ends the process, and Paddle copies as many bytes as it has not.
    ConversionError
        If the array holds records, which DLPack does not have.
    """
    word = native().word(array)
    if word & nb.ELEMENTS:
        refuse_records(array, "DLPack")
    if not word & nb.CONTIGUOUS and any(step < 0 for step in array.strides):
        raise BufferAccessError(
            f"an Array with negative strides {array.strides} cannot be exported by DLPack, since not all consumers take it; "
            "array.clone() copies it, and NumPy shares it as np.asarray(array)"
        )
    if _LOCKING in sys.modules:
        native().release_later()


def legacy_capsule(array: Array) -> Any:
    """Return a legacy DLPack capsule that shares an array's memory.

    Raises
    ------
    BufferAccessError
        If the array is read-only.
    """
    if array.read_only:
        raise BufferAccessError(
            "a legacy DLPack capsule cannot say that memory is read-only, and this Array is; pass array.clone(), or "
            "ask for a versioned capsule: array.__dlpack__(max_version=(1, 0))"
        )
    return native().export_legacy(array._record)


def marked_copy(made: Array) -> Any:
    """Return the record of a copy that says, in DLPack's own flag, that it is one."""
    kind, ordinal = made.__dlpack_device__()
    place = (made.ptr, row_of(made).tag, kind, ordinal)
    return native().new_record(made._record, *place, scalar_shape(made), None, dl.FLAG_COPIED)


def copied_for(array: Array, wanted: tuple[int, ...], copy: bool | None) -> Array:
    """Return a copy on the DLPack device, its type and ordinal, that a consumer asked for.

    Raises
    ------
    BufferAccessError
        If `copy` is false, or numbridge has no such device.
    """
    names = {device.name for device in get_devices()}
    name = "cpu" if wanted[0] == dl.CPU else f"cuda:{wanted[1]}" if wanted[0] == dl.CUDA else ""
    if copy is False or name not in names:
        why = "copy=False forbids the copy" if copy is False else f"numbridge copies to {', '.join(sorted(names))}"
        raise BufferAccessError(f"dl_device is {wanted}, and the array lies on {array.__dlpack_device__()}; {why}")
    return array.to(name, copy=True)
