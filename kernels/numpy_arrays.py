"""What reading NumPy's arrays takes beside compiled code: a check of their layout, records, masks, and why one cannot be read."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.element_types.elements import record_type
from numbridge.kernels.errors import BufferAccessError, ConversionError
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import object_layout as layout

__all__ = ["array_of_record", "check_layout", "is_masked", "records_of", "refuse_mask", "why_unreadable"]


def check_layout() -> None:
    """Check on a live array that NumPy's structures have the layout that compiled code relies on.

    Raises
    ------
    ConversionError
        If they have another.
    """
    sample = np.zeros((3, 5), np.float32)[::2, 1:]

    def field(offset: int, of: int = id(sample)) -> int:
        return ctypes.c_int64.from_address(of + offset).value

    descriptor = field(layout.ARRAY_DESCR)
    found = (
        field(layout.ARRAY_DATA),
        field(layout.ARRAY_NDIM) & 0xFFFFFFFF,
        field(0, field(layout.ARRAY_SHAPE)),
        field(0, field(layout.ARRAY_STRIDES)),
        field(layout.DESCR_TYPE_NUM, descriptor) & 0xFFFFFFFF,
        bool(field(layout.ARRAY_FLAGS) & layout.ARRAY_WRITEABLE),
    )
    wanted = (sample.ctypes.data, 2, 2, sample.strides[0], sample.dtype.num, True)
    if found != wanted:
        raise ConversionError(f"NumPy {np.__version__} lays its arrays out in a way that numbridge does not know")


class _MemoryOfRecord:
    """What NumPy makes an array without dimensions of, on the memory of a record, and keeps."""

    def __init__(self, record: np.void) -> None:
        # NumPy hands a record's memory out as read-only, whether or not it is.
        held = np.ndarray((), record.dtype, buffer=record)
        self.record = record
        self.__array_interface__ = {
            "version": 3,
            "shape": (),
            "typestr": f"|V{record.dtype.itemsize}",  # NumPy cannot write down all dtypes of records
            "data": (held.ctypes.data, not record.flags.writeable),
        }


def array_of_record(record: np.void) -> np.ndarray[Any, Any]:
    """Return an array without dimensions on the memory of a record, writable if the record is."""
    array = np.asarray(_MemoryOfRecord(record))
    return array.view(record.dtype)


def records_of(array: np.ndarray[Any, Any]) -> Any:
    """Return a record's capsule for an array of a structured dtype, as elements of that dtype, on its memory.

    Raises
    ------
    ConversionError
        If its dtype is not structured, holds Python objects, or is not in this machine's byte order.
    BufferAccessError
        If its strides are no multiples of the words that its records are made of.
    """
    if array.dtype.names is None:
        raise ConversionError(f"a NumPy array of dtype {array.dtype!r} has no counterpart")
    kind = record_type(array.dtype)
    step = kind.scalar.itemsize
    if any(stride % step for stride in array.strides):
        raise BufferAccessError(
            f"a NumPy array of records with strides {array.strides} bytes is not aligned to {step} bytes; pass a copy"
        )
    flags = kind.number << dl.RECORD_ELEMENT | 1 << dl.RECORD_INNER
    flags |= 0 if array.flags.writeable else dl.FLAG_READ_ONLY
    strides = (*(stride // step for stride in array.strides), 1)
    place = (array.ctypes.data, kind.scalar.tag, dl.CPU, 0)
    return machine().new_record(array, *place, (*array.shape, *kind.extents), strides, flags)


def is_masked(kind: type) -> bool:
    """Tell whether a type is that of masked arrays; who has one has imported NumPy's module of them, which takes a while."""
    return issubclass(kind, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def refuse_mask(obj: Any) -> Any:
    """Raise: what takes a masked array's place would have to know its mask."""
    raise BufferAccessError(
        "a NumPy masked array would lose its mask; pass array.data (and array.mask as an argument of its own) or "
        "array.filled(value)"
    )


def why_unreadable(array: np.ndarray[Any, Any]) -> Exception:
    """Return the error that says why a NumPy array cannot be read, and what to do."""
    if array.dtype.names is not None:
        try:
            records_of(array)
        except (ConversionError, BufferAccessError) as error:
            return error
    if not array.dtype.isnative:
        return ConversionError(
            f"a NumPy array of dtype {array.dtype.str!r} is not in this machine's byte order; use "
            "array.astype(array.dtype.newbyteorder('='))"
        )
    if machine().describe(array)[0] == 0:
        return ConversionError(
            f"a NumPy array of dtype {array.dtype!r} has no counterpart; numbridge has "
            f"{', '.join(row.name for row in scalars.ALL)}; {_remedy(array.dtype)}"
        )
    return BufferAccessError(
        f"a NumPy array with strides {array.strides} bytes, no multiples of its item size {array.itemsize}, cannot be "
        "expressed in DLPack; pass it to a kernel as it is, or use np.ascontiguousarray(array), which copies"
    )


def _remedy(dtype: np.dtype[Any]) -> str:
    """Return what to do with an array of a dtype that kernels do not have."""
    if dtype.kind in "mM":
        return "use array.view(np.int64), which shares the memory and counts the time's unit"
    if dtype.kind in "SUT" or dtype.type is np.void:
        return "pass its characters or bytes as an array of integers"
    return "use array.astype(...), which copies"
