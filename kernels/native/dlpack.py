"""Compiled: DLPack's ways in and out of a record: taking a capsule's tensor over, and lending a record's as one.

Exported DLPack tensors hold a reference to the record's capsule and point at the record's own shape and strides, so an export
allocates one small block. Deleters may be called from any thread, with or without the GIL, and do nothing once Python has
ended; everything else needs the GIL.

A consumer may call a deleter while it holds a lock, which it also takes to give back other memory. Then the deleter must neither
wait for the GIL, whose holder may wait for that lock, nor drop a reference, behind which may lie such memory. So once there is
such a consumer, deleters only put exports aside. Python's main thread drops them soon, and so does the next export.

The built-in functions here return None, having written nothing, where the caller must take the slow road and explain.
Source of the layouts: `dlpack_layout`.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.cuda_entry import call_three, current_stream
from numbridge.kernels.native.entry import dict_get, none, to_address
from numbridge.kernels.native.memory import (
    exchange_i64,
    external,
    function_symbol,
    indirect,
    load_i32,
    load_i64,
    load_u32,
    native,
    replace_i64,
    stack,
    store_i32,
    store_i64,
    store_u32,
    text,
)
from numbridge.kernels.native.reading import (
    capsule_is_valid,
    capsule_pointer,
    clear_error,
    decrease,
    increase,
    intp,
    item,
    record_at,
    state,
)
from numbridge.kernels.native.records import (
    ALIGNMENT,
    allocate_bytes,
    free_bytes,
    from_int,
    give_none,
    new_block,
    new_capsule,
    no_memory,
    wrap,
)

EXPORTS = {
    "numbridge_delete_legacy": ("delete_legacy", "void(int64)"),
    "numbridge_delete_versioned": ("delete_versioned", "void(int64)"),
    "numbridge_release_put_aside": ("release_put_aside", "int64(int64)"),
    "numbridge_drop_legacy": ("drop_legacy", "void(int64)"),
    "numbridge_drop_versioned": ("drop_versioned", "void(int64)"),
    "numbridge_consume": ("consume", "int64(int64, int64)"),
    "numbridge_export_legacy": ("export_legacy", "int64(int64, int64)"),
    "numbridge_export_versioned": ("export_versioned", "int64(int64, int64)"),
    "numbridge_export_to": ("export_to", "int64(int64, int64, int64)"),
    "numbridge_export_plain": ("export_plain", "int64(int64, int64)"),
    "numbridge_export_aligned": ("export_aligned", "int64(int64, int64)"),
}

rename_capsule = external("PyCapsule_SetName", types.int32, intp, intp)
hold_gil = external("PyGILState_Ensure", types.int32)
drop_gil = external("PyGILState_Release", types.void, types.int32)
initialized = external("Py_IsInitialized", types.int32)
call_from_main_thread = external("Py_AddPendingCall", types.int32, intp, intp)
delete_legacy_address = function_symbol("numbridge_delete_legacy")
delete_versioned_address = function_symbol("numbridge_delete_versioned")
release_put_aside_address = function_symbol("numbridge_release_put_aside")
drop_legacy_address = function_symbol("numbridge_drop_legacy")
drop_versioned_address = function_symbol("numbridge_drop_versioned")
call_to_object = indirect(types.int32, 2)

# An export that is put aside, in place of what its consumer knew of it: the one before it, and the capsule that it refers to
_ASIDE_NEXT, _ASIDE_CAPSULE = 0, 8


@native
def take_over(managed, tensor, kind, flags):
    """Return a record that owns a managed tensor; its deleter runs when the record ends."""
    ndim = types.int64(load_i32(tensor, dl.NDIM))
    record = new_block(ndim)
    if record == 0:
        return 0
    shape, strides, count = load_i64(tensor, dl.SHAPE), load_i64(tensor, dl.STRIDES), 1
    for k in range(ndim - 1, -1, -1):
        extent = load_i64(shape, 8 * k)
        store_i64(record, dl.RECORD_SHAPE + 8 * k, extent)
        step = load_i64(strides, 8 * k) if strides != 0 else max(count, 1)
        store_i64(record, dl.RECORD_SHAPE + 8 * (ndim + k), step)
        count *= extent
    store_i64(record, dl.DATA, load_i64(tensor, dl.DATA) + load_i64(tensor, dl.BYTE_OFFSET))
    store_u32(record, dl.DTYPE, load_u32(tensor, dl.DTYPE))
    store_i32(record, dl.DEVICE_TYPE, load_i32(tensor, dl.DEVICE_TYPE))
    store_i32(record, dl.DEVICE_ID, load_i32(tensor, dl.DEVICE_ID))
    store_i64(record, dl.RECORD_FLAGS, flags & dl.FLAG_READ_ONLY)
    store_i64(record, dl.RECORD_MANAGED, managed)
    store_i64(record, dl.RECORD_MANAGED_KIND, kind)
    return record


@native
def is_usable(tensor):
    """Tell whether a tensor has a rank and extents that there are, and memory if it has elements."""
    ndim = types.int64(load_i32(tensor, dl.NDIM))
    if ndim < 0 or ndim > nb.READ_MAX_RANK:
        return False
    shape, smallest = load_i64(tensor, dl.SHAPE), 1
    for k in range(ndim):
        smallest = min(smallest, load_i64(shape, 8 * k))
    return smallest == 0 or (smallest > 0 and load_i64(tensor, dl.DATA) != 0)


@native
def consume(self, capsule):
    """``consume(capsule)``: a record's capsule that takes a DLPack capsule over; None if it is none, was used, or is unusable."""
    record = 0
    if capsule_is_valid(capsule, text("dltensor_versioned")) != 0:
        managed = capsule_pointer(capsule, text("dltensor_versioned"))
        if load_u32(managed, dl.MANAGED_MAJOR) == dl.MAJOR_VERSION and is_usable(managed + dl.MANAGED_TENSOR):
            flags = load_i64(managed, dl.MANAGED_FLAGS)
            record = take_over(managed, managed + dl.MANAGED_TENSOR, dl.MANAGED_VERSIONED, flags)
            if record != 0:
                rename_capsule(capsule, text("used_dltensor_versioned"))
    elif capsule_is_valid(capsule, text("dltensor")) != 0:
        managed = capsule_pointer(capsule, text("dltensor"))
        if is_usable(managed + dl.LEGACY_TENSOR):
            record = take_over(managed, managed + dl.LEGACY_TENSOR, dl.MANAGED_LEGACY, 0)
        if record != 0:
            rename_capsule(capsule, text("used_dltensor"))
    return wrap(record) if record != 0 else give_none()


@native
def put_aside(managed, capsule):
    """Remember a deleted export for `release_put_aside`."""
    store_i64(managed, _ASIDE_CAPSULE, capsule)
    last = load_i64(state(), nb.STATE_PUT_ASIDE)
    while True:
        store_i64(managed, _ASIDE_NEXT, last)
        found = replace_i64(state(), nb.STATE_PUT_ASIDE, last, managed)
        if found == last:
            break
        last = found
    # Where Python has no room for more calls, it has one to come, or the next export does it.
    call_from_main_thread(release_put_aside_address(), 0)


@native
def release_put_aside(argument):
    """Drop the references of all exports that were put aside, with the GIL; return 0, as a pending call of Python's must."""
    managed = exchange_i64(state(), nb.STATE_PUT_ASIDE, 0)
    while managed != 0:
        following = load_i64(managed, _ASIDE_NEXT)
        decrease(load_i64(managed, _ASIDE_CAPSULE))
        free_bytes(managed)
        managed = following
    return 0


@native
def give_back(managed, context):
    """Drop an export's reference, with the GIL, and free its memory."""
    decrease(load_i64(managed, context))
    free_bytes(managed)


@native
def delete_export(managed, context):
    """Give an exported tensor back: from any thread, with or without the GIL."""
    if initialized() == 0:
        return
    if load_i64(state(), nb.STATE_RELEASES_LATER) != 0:
        put_aside(managed, load_i64(managed, context))
        return
    gil = hold_gil()
    give_back(managed, context)
    drop_gil(gil)


@native
def delete_legacy(managed):
    """The deleter of a legacy export."""
    delete_export(managed, dl.LEGACY_CONTEXT)


@native
def delete_versioned(managed):
    """The deleter of a versioned export."""
    delete_export(managed, dl.MANAGED_CONTEXT)


@native
def drop_legacy(capsule):
    """The destructor of a legacy capsule: deletes what nobody consumed."""
    if capsule_is_valid(capsule, text("dltensor")) != 0:
        give_back(capsule_pointer(capsule, text("dltensor")), dl.LEGACY_CONTEXT)


@native
def drop_versioned(capsule):
    """The destructor of a versioned capsule: deletes what nobody consumed."""
    if capsule_is_valid(capsule, text("dltensor_versioned")) != 0:
        give_back(capsule_pointer(capsule, text("dltensor_versioned")), dl.MANAGED_CONTEXT)


@native
def copy_tensor(record, target):
    """Copy a record's ``DLTensor``; shape and strides stay in the record."""
    for k in range(0, dl.DLTENSOR_SIZE, 8):
        store_i64(target, k, load_i64(record, k))


@native
def new_managed(size):
    """Return memory for a new managed tensor, or 0."""
    if load_i64(state(), nb.STATE_PUT_ASIDE) != 0:
        release_put_aside(0)
    return allocate_bytes(size)


@native
def managed_legacy(capsule, record):
    """Return a new ``DLManagedTensor`` of a record, or 0."""
    managed = new_managed(dl.LEGACY_SIZE)
    if managed != 0:
        copy_tensor(record, managed + dl.LEGACY_TENSOR)
        increase(capsule)
        store_i64(managed, dl.LEGACY_CONTEXT, capsule)
        store_i64(managed, dl.LEGACY_DELETER, delete_legacy_address())
    return managed


@native
def managed_versioned(capsule, record):
    """Return a new ``DLManagedTensorVersioned`` of a record, or 0."""
    managed = new_managed(dl.MANAGED_SIZE)
    if managed != 0:
        copy_tensor(record, managed + dl.MANAGED_TENSOR)
        store_u32(managed, dl.MANAGED_MAJOR, types.uint32(dl.MAJOR_VERSION))
        store_u32(managed, dl.MANAGED_MINOR, types.uint32(dl.MINOR_VERSION))
        flags = load_i64(record, dl.RECORD_FLAGS) & (dl.FLAG_READ_ONLY | dl.FLAG_COPIED)
        store_i64(managed, dl.MANAGED_FLAGS, flags)
        increase(capsule)
        store_i64(managed, dl.MANAGED_CONTEXT, capsule)
        store_i64(managed, dl.MANAGED_DELETER, delete_versioned_address())
    return managed


@native
def export_legacy(self, capsule):
    """``export_legacy(record)``: a capsule ``dltensor``."""
    record = record_at(capsule)
    managed = managed_legacy(capsule, record) if record != 0 else 0
    if managed == 0:
        return no_memory()
    result = new_capsule(managed, text("dltensor"), drop_legacy_address())
    if result == 0:
        give_back(managed, dl.LEGACY_CONTEXT)
    return result


@native
def export_versioned(self, capsule):
    """``export_versioned(record)``: a capsule ``dltensor_versioned``."""
    record = record_at(capsule)
    managed = managed_versioned(capsule, record) if record != 0 else 0
    if managed == 0:
        return no_memory()
    result = new_capsule(managed, text("dltensor_versioned"), drop_versioned_address())
    if result == 0:
        give_back(managed, dl.MANAGED_CONTEXT)
    return result


@native
def export_to(self, arguments, count):
    """``export_to(record, address)``: hand the tensor to a framework's ``managed_tensor_to_py_object_no_sync``."""
    capsule = load_i64(arguments, 0)
    record = record_at(capsule)
    managed = managed_versioned(capsule, record) if record != 0 else 0
    if managed == 0:
        return no_memory()
    out = stack(16)
    store_i64(out, 0, 0)
    # On failure the framework has set the exception; whether it kept the tensor is not specified, and a small leak is
    # better than a second deletion.
    if call_to_object(to_address(load_i64(arguments, 8)), managed, out) != 0:
        return 0
    return load_i64(out, 0)


@native
def plain_record(array):
    """Return the record of an ``Array`` without source or gradient state, writable, no stride negative; else 0."""
    if load_i64(array, py.OBJECT_TYPE) != load_i64(state(), nb.STATE_ARRAY_TYPE):
        return 0
    source = load_i64(array, load_i64(state(), nb.STATE_ARRAY_SOURCE))
    if source != none() or load_i64(array, load_i64(state(), nb.STATE_ARRAY_EXTRA)) != none():
        return 0
    record = record_at(load_i64(array, load_i64(state(), nb.STATE_ARRAY_RECORD)))
    if record == 0 or load_i64(record, dl.RECORD_FLAGS) & ~dl.RECORD_HAS_STREAM != 0:
        return 0
    ndim, strides = types.int64(load_i32(record, dl.NDIM)), load_i64(record, dl.STRIDES)
    lowest = 0
    for k in range(ndim):
        lowest = min(lowest, load_i64(strides, 8 * k))
    return record if lowest >= 0 else 0


@native
def is_in_order(record, function):
    """Tell whether memory is used on the stream that a framework's ``current_work_stream`` names, or on the CPU."""
    kind, device = load_i32(record, dl.DEVICE_TYPE), types.int64(load_i32(record, dl.DEVICE_ID))
    if kind == dl.CPU:
        return True
    driver = load_i64(state(), nb.STATE_DRIVER)
    if kind != dl.CUDA or driver == 0 or function == 0:
        return False
    used, out = load_i64(record, dl.RECORD_STREAM), stack(16)
    if load_i64(record, dl.RECORD_FLAGS) & dl.RECORD_HAS_STREAM == 0:
        used = current_stream(driver, device)
    store_i64(out, 0, 0)
    if call_three(function, dl.CUDA, device, out) != 0:
        clear_error()
        return False
    return load_i64(out, 0) == used


@native
def export_plain(self, array):
    """``export_plain(array)`` with self = (address, stream): `export_to` of an array that needs no thought, or None.

    On CUDA it needs none if it is used on the framework's current stream, which the function at `stream` knows.
    """
    record = plain_record(array)
    if record == 0 or not is_in_order(record, to_address(item(self, 1))):
        return give_none()
    capsule = load_i64(array, load_i64(state(), nb.STATE_ARRAY_RECORD))
    managed, out = managed_versioned(capsule, record), stack(16)
    if managed == 0:
        return no_memory()
    store_i64(out, 0, 0)
    if call_to_object(to_address(item(self, 0)), managed, out) != 0:
        return 0
    return load_i64(out, 0)


@native
def export_aligned(self, array):
    """``export_aligned(array)`` with self = ({tag: anything},): `export_legacy` of an array that needs no thought, or None.

    It is dense, aligned as XLA asks, of one of these dtypes, and on the CPU.
    """
    record, count = plain_record(array), 1
    if record == 0 or load_i32(record, dl.DEVICE_TYPE) != dl.CPU:
        return give_none()
    capsule = load_i64(array, load_i64(state(), nb.STATE_ARRAY_RECORD))
    if (load_i64(record, dl.DATA) + load_i64(record, dl.BYTE_OFFSET)) & (ALIGNMENT - 1) != 0:
        return give_none()
    ndim, strides = types.int64(load_i32(record, dl.NDIM)), load_i64(record, dl.STRIDES)
    for k in range(ndim - 1, -1, -1):
        if load_i64(strides, 8 * k) != count:
            return give_none()
        count *= load_i64(record, dl.RECORD_SHAPE + 8 * k)
    tag = from_int(types.int64(load_u32(record, dl.DTYPE)))
    known = dict_get(item(self, 0), tag)
    decrease(tag)
    return export_legacy(self, capsule) if known != 0 else give_none()
