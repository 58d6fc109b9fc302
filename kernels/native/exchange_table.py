"""Compiled: the functions in the DLPack exchange table of `Array`, by which other compiled code reads and makes arrays.

They answer as DLPack's header says: 0, or -1 with an exception. The GIL must be held, except by `exchange_allocate`.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.cuda_entry import current_stream
from numbridge.kernels.native.dlpack import copy_tensor, drop_gil, hold_gil, managed_versioned, take_over
from numbridge.kernels.native.entry import none
from numbridge.kernels.native.memory import (
    external,
    indirect,
    load_i32,
    load_i64,
    load_u32,
    native,
    stack,
    store_i64,
    symbol,
    text,
)
from numbridge.kernels.native.reading import call_with, decrease, intp, record_at, state
from numbridge.kernels.native.records import allocated, new_array, no_memory, wrap

EXPORTS = {
    "numbridge_exchange_read": ("exchange_read_array", "int32(int64, int64)"),
    "numbridge_exchange_from_object": ("exchange_from_object", "int32(int64, int64)"),
    "numbridge_exchange_to_object": ("exchange_to_object", "int32(int64, int64)"),
    "numbridge_exchange_allocate": ("exchange_allocate", "int32(int64, int64, int64, int64)"),
    "numbridge_exchange_stream": ("exchange_stream", "int32(int32, int32, int64)"),
}

set_error = external("PyErr_SetString", types.void, intp, intp)
buffer_error = symbol("numbridge_BufferError")
type_error = symbol("numbridge_TypeError")
call_allocator_error = indirect(types.void, 3)


@native
def record_in(array):
    """Return the capsule in an ``Array`` object, or 0 with a TypeError."""
    kind = load_i64(array, py.OBJECT_TYPE)
    capsule = 0
    if kind == load_i64(state(), nb.STATE_ARRAY_TYPE):
        capsule = load_i64(array, load_i64(state(), nb.STATE_ARRAY_RECORD))
    if capsule == 0:
        set_error(type_error(), text("numbridge: this is not a numbridge.Array"))
    return capsule


@native
def announced(array, capsule):
    """Tell the lender of a read-only Array, whose consumer may not heed the flag, and of one of elements, which may be records.

    False with an exception.
    """
    lender, flags = load_i64(state(), nb.STATE_LENDER), load_i64(record_at(capsule), dl.RECORD_FLAGS)
    if lender == 0 or (flags & dl.FLAG_READ_ONLY == 0 and flags >> dl.RECORD_INNER & 3 == 0):
        return True
    arguments = stack(16)
    store_i64(arguments, 0, array)
    answer = call_with(lender, arguments, 1, 0)
    if answer == 0:
        return False
    decrease(answer)
    return True


@native
def exchange_read_array(array, tensor):
    """``dltensor_from_py_object_no_sync``: refuses read-only arrays, since a ``DLTensor`` cannot say so."""
    capsule = record_in(array)
    if capsule == 0:
        return types.int32(-1)
    record = record_at(capsule)
    if load_i64(record, dl.RECORD_FLAGS) & dl.FLAG_READ_ONLY:
        message = text("numbridge: a read-only Array cannot be read through a DLTensor, which has no read-only flag")
        set_error(buffer_error(), message)
        return types.int32(-1)
    if not announced(array, capsule):
        return types.int32(-1)
    copy_tensor(record, tensor)
    return types.int32(0)


@native
def exchange_from_object(array, out):
    """``managed_tensor_from_py_object_no_sync``."""
    capsule = record_in(array)
    if capsule == 0 or not announced(array, capsule):
        return types.int32(-1)
    managed = managed_versioned(capsule, record_at(capsule))
    store_i64(out, 0, managed)
    if managed == 0:
        no_memory()
        return types.int32(-1)
    return types.int32(0)


@native
def exchange_to_object(managed, out):
    """``managed_tensor_to_py_object_no_sync``: an Array that takes the tensor over."""
    flags = load_i64(managed, dl.MANAGED_FLAGS)
    record = take_over(managed, managed + dl.MANAGED_TENSOR, dl.MANAGED_VERSIONED, flags)
    if record == 0:
        no_memory()
        return types.int32(-1)
    capsule = wrap(record)
    array = new_array(capsule, none()) if capsule != 0 else 0
    store_i64(out, 0, array)
    return types.int32(0 if array != 0 else -1)


@native
def element_count(tensor):
    """Return the number of elements of a ``DLTensor``."""
    count, shape = 1, load_i64(tensor, dl.SHAPE)
    for k in range(types.int64(load_i32(tensor, dl.NDIM))):
        count *= load_i64(shape, 8 * k)
    return count


@native
def exchange_allocate(prototype, out, context, report):
    """``managed_tensor_allocator``: new memory on the CPU like the prototype's; may be called without the GIL."""
    device = load_i32(prototype, dl.DEVICE_TYPE)
    if device != dl.CPU:
        call_allocator_error(
            report, context, text("NotImplementedError"), text("numbridge allocates for others on the CPU")
        )
        return types.int32(-1)
    gil = hold_gil()
    ndim, shape = types.int64(load_i32(prototype, dl.NDIM)), load_i64(prototype, dl.SHAPE)
    tag = types.int64(load_u32(prototype, dl.DTYPE))
    itemsize = ((tag >> 8 & 0xFF) * (tag >> 16) + 7) >> 3
    record = allocated(ndim, tag, element_count(prototype) * itemsize, False)
    managed = 0
    if record != 0:
        count = 1
        for k in range(ndim - 1, -1, -1):
            store_i64(record, dl.RECORD_SHAPE + 8 * k, load_i64(shape, 8 * k))
            store_i64(record, dl.RECORD_SHAPE + 8 * (ndim + k), max(count, 1))
            count *= load_i64(shape, 8 * k)
        capsule = wrap(record)
        if capsule != 0:
            managed = managed_versioned(capsule, record)
            decrease(capsule)
    drop_gil(gil)
    store_i64(out, 0, managed)
    if managed == 0:
        call_allocator_error(report, context, text("MemoryError"), text("numbridge could not allocate the tensor"))
        return types.int32(-1)
    return types.int32(0)


@native
def exchange_stream(device_type, device_id, out):
    """``current_work_stream``: the current stream of a CUDA device; the CPU has none."""
    driver = load_i64(state(), nb.STATE_DRIVER)
    on_cuda = device_type == dl.CUDA or device_type == dl.CUDA_MANAGED
    stream = current_stream(driver, types.int64(device_id)) if on_cuda and driver != 0 else 0
    store_i64(out, 0, stream)
    return types.int32(0)
