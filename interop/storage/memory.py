"""Arrays as memory: how one is adopted, allocated and wrapped, before it has any methods.

`Array` itself is in `numbridge.arrays.array`, which builds on this and enters its class here. Nothing native is loaded before
the first array exists.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.bridges import bridge
from numbridge.kernels import readers, scalars
from numbridge.kernels.devices import CPU, Device, get_device
from numbridge.kernels.element_types.element_arguments import element_flags, inner_strides
from numbridge.kernels.element_types.elements import ElementType, by_number, dtype_of
from numbridge.kernels.errors import ConversionError, NumbridgeTypeError, NumbridgeValueError, shown
from numbridge.kernels.machine import Machine, machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import object_layout as layout
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.numpy_arrays import records_of
from numbridge.kernels.scalars import Scalar
from numbridge.storage import strided

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = [
    "adopt",
    "allocate",
    "array_class",
    "element_of",
    "native",
    "packed_record",
    "row_of",
    "unknown_tag",
    "wrap",
]

_starting = threading.RLock()
_LARGEST = (1 << 63) - 1
_class: type[Array]


def array_class(kind: type[Array]) -> type[Array]:
    """Decorate the class that arrays are of, which has the slots ``_record``, ``_source`` and ``_extra``."""
    global _class  # noqa: PLW0603 - there is one class, and this is where it becomes known
    _class = kind
    return kind


@functools.cache
def native() -> Machine:
    """Return the compiled functions, which by then know the class `Array`; `numbridge` uses this, not `machine`."""
    # The cache alone would let two threads that come first both start.
    with _starting:
        return _start()


@functools.cache
def _start() -> Machine:
    compiled = machine()
    sample = wrap(compiled.allocate((), scalars.tag_of("uint8"), 1, True))
    slots = {name: _slot_offset(name) for name in ("_record", "_source", "_extra")}
    for name, offset in slots.items():
        if ctypes.c_void_p.from_address(id(sample) + offset).value != id(getattr(sample, name)):
            raise NumbridgeTypeError("this Python lays its objects out in a way that numbridge does not know")
    compiled.set_array_type(_class, slots["_record"], slots["_source"], slots["_extra"])
    readers.reader_of(sample)
    readers.reader_of(sample._record)
    return compiled


def _slot_offset(name: str) -> int:
    """Return where in an array a slot lies, in bytes, from the slot's descriptor."""
    definition = ctypes.c_int64.from_address(id(_class.__dict__[name]) + layout.MEMBER_DESCR_DEF).value
    return ctypes.c_int64.from_address(definition + layout.MEMBER_OFFSET).value


def _resolve(kind: type) -> readers.Reader | None:
    return readers.Reader(nb.RECORD, _slot_offset("_record"), "numbridge record") if kind is _class else None


# Registered with the import, since a framework's tensor may reach a kernel before any array exists.
readers.add_resolver(_resolve)
readers.add_resolver(bridge.resolve)


def wrap(record: Any, source: Any = None) -> Array:
    """Return an Array around a record's capsule; `source` is the framework object that it was adopted from."""
    made: Array = object.__new__(_class)
    made._record, made._source, made._extra = record, source, None
    return made


def adopt(obj: Any) -> Array:
    """Return an Array that shares the memory of any array-like object and keeps it alive.

    Raises
    ------
    NumbridgeError
        If the object is no array, or its memory or dtype cannot be described; the message says why.
    """
    compiled = native()
    found = compiled.adopt(obj)
    if found is None:
        readers.reader_of(obj)
        found = compiled.adopt(obj)
    if found is None:
        found = _records(obj)
    if found is None:
        raise _refusal(obj)
    made: Array = found
    return made


def _records(obj: Any) -> Array | None:
    """Return an Array of records on the memory of a structured NumPy array; None for anything else."""
    if not isinstance(obj, np.ndarray) or obj.dtype.names is None or isinstance(obj, np.ma.MaskedArray):
        return None
    return wrap(records_of(obj), obj)


def _refusal(obj: Any) -> Exception:
    description = readers.describe(obj)
    if description.is_array and description.scalar is None:
        return unknown_tag(description.tag)
    return readers.unreadable(obj)


def unknown_tag(tag: int) -> ConversionError:
    """Return the error for a DLPack data type that the dtype table lacks."""
    code, bits, lanes = tag & 0xFF, tag >> 8 & 0xFF, tag >> 16
    return ConversionError(
        f"the DLPack data type (code {code}, {bits} bits, {lanes} lanes) has no counterpart; numbridge has "
        f"{', '.join(row.name for row in scalars.ALL)}, each with one lane"
    )


def row_of(array: Array) -> Scalar:
    """Return the row of an array's dtype in the dtype table; that of the components of vectors and matrices."""
    tag = native().word(array) & 0xFFFFFFFF
    element = by_number(tag >> nb.WORD_ELEMENT)
    row = scalars.by_tag(tag) if element is None else element.scalar
    if row is None:
        raise unknown_tag(tag)
    return row


def element_of(array: Array) -> ElementType | None:
    """Return the vector or matrix type of an array's elements, or None for scalars."""
    return by_number(native().word(array) >> nb.WORD_ELEMENT & 0xFFFF)


def packed_record(record: Any, element: ElementType | None, flags: int = 0) -> Any:
    """Return a record of a record's memory whose last dimensions are those of an element, or all scalars for None.

    Whether they fit has been checked. `flags` come on top of those that it has.
    """
    word, address, shape, strides, ordinal = native().describe(record)
    size, held = (word >> 8 & 0xFF) >> 3, by_number(word >> nb.WORD_ELEMENT & 0xFFFF)
    tag = word & 0xFFFFFFFF
    if held is not None and held.fields is not None and element is not None:
        held = element  # whose components the fields are
    if held is not None:
        shape, strides, tag = (*shape, *held.extents), (*strides, *inner_strides(held)), held.scalar.tag
    device = dl.CUDA_HOST if word & nb.PINNED else word >> nb.WORD_DEVICE & 0xFF
    flags |= (dl.FLAG_READ_ONLY if word & nb.READ_ONLY else 0) | (dl.RECORD_IMMUTABLE if word & nb.IMMUTABLE else 0)
    steps = tuple([step // size for step in strides])
    place = (address, tag, device, ordinal)
    return native().new_record(record, *place, shape, steps, flags | element_flags(element))


def allocate(
    shape: Any, dtype: Any, device: Device | str | None = None, *, zeroed: bool, pinned: bool = False
) -> Array:
    """Return a new C-contiguous array with memory of its own: 64-byte aligned on the CPU, of CuPy's pool on CUDA.

    The dtype may be a vector or matrix type; the shape does not count its dimensions.

    Raises
    ------
    NumbridgeValueError
        If the shape is impossible or too large to address, or pinned memory is asked of a CUDA device.
    MemoryError
        If there is not that much memory.
    """
    found = dtype_of(dtype)
    if isinstance(found, ElementType):
        inner = found.extents
        made = allocate((*strided.extents(shape), *inner), found.scalar, device, zeroed=zeroed, pinned=pinned)
        made._record = packed_record(made._record, found)
        return made
    extents, row = strided.extents(shape), found
    size = math.prod(extents) * row.itemsize
    # As in NumPy, an extent of 0 makes no others smaller: strides count them.
    if math.prod([max(extent, 1) for extent in extents]) * row.itemsize > _LARGEST:
        raise NumbridgeValueError(f"an array of shape {shown(extents)} and dtype {row.name} is too large to address")
    place = CPU if pinned and device is None else get_device(device)
    if not (pinned or place.is_cuda):
        try:
            return wrap(native().allocate(extents, row.tag, size, zeroed))
        except MemoryError:
            raise MemoryError(f"an array of shape {extents} and dtype {row.name} needs {size} bytes") from None
    from numbridge.storage import cupy_memory

    if not pinned:
        return cupy_memory.allocate(extents, row, size, place, zeroed=zeroed)
    if place.is_cuda:
        raise NumbridgeValueError(f"pinned memory is the host's, and the device is {place}; drop one of the two")
    return cupy_memory.pinned(extents, row, size, zeroed=zeroed)
