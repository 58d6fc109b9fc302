"""Compiled: records (numbridge's native array blocks), their capsules, and the DLPack ways in and out.

A record lives in a ``PyCapsule`` named ``numbridge.record``; its destructor gives back what the record owns. Exported
DLPack tensors hold a reference to that capsule and point at the record's own shape and strides, so an export allocates one
small block. Deleters may be called from any thread, with or without the GIL, and do nothing once Python has ended.

The built-in functions here return None, having written nothing, where the caller must take the slow road and explain.
Source of the layouts: `dlpack_layout`. The GIL must be held, except for the deleters.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.cuda_entry import current_stream
from numbridge.kernels.native.entry import dict_get, none, to_address
from numbridge.kernels.native.memory import (
    external,
    function_symbol,
    indirect,
    load_i32,
    load_i64,
    load_u32,
    native,
    stack,
    store_i32,
    store_i64,
    store_u32,
    symbol,
    text,
)
from numbridge.kernels.native.reading import (
    call_with,
    capsule_is_valid,
    capsule_pointer,
    decrease,
    increase,
    intp,
    read,
    release,
    state,
)

EXPORTS = {
    "numbridge_destroy_record": ("destroy_record", "void(int64)"),
    "numbridge_delete_legacy": ("delete_legacy", "void(int64)"),
    "numbridge_delete_versioned": ("delete_versioned", "void(int64)"),
    "numbridge_drop_legacy": ("drop_legacy", "void(int64)"),
    "numbridge_drop_versioned": ("drop_versioned", "void(int64)"),
    "numbridge_capture": ("capture", "int64(int64, int64)"),
    "numbridge_adopt": ("adopt", "int64(int64, int64)"),
    "numbridge_describe": ("describe", "int64(int64, int64)"),
    "numbridge_word": ("word_of", "int64(int64, int64)"),
    "numbridge_owner": ("owner_of", "int64(int64, int64)"),
    "numbridge_new_record": ("new_record", "int64(int64, int64, int64)"),
    "numbridge_allocate": ("allocate", "int64(int64, int64, int64)"),
    "numbridge_consume": ("consume", "int64(int64, int64)"),
    "numbridge_export_legacy": ("export_legacy", "int64(int64, int64)"),
    "numbridge_export_versioned": ("export_versioned", "int64(int64, int64)"),
    "numbridge_export_to": ("export_to", "int64(int64, int64, int64)"),
    "numbridge_export_plain": ("export_plain", "int64(int64, int64)"),
    "numbridge_export_aligned": ("export_aligned", "int64(int64, int64)"),
    "numbridge_to_numpy": ("to_numpy", "int64(int64, int64)"),
    "numbridge_exchange_read": ("exchange_read_array", "int32(int64, int64)"),
    "numbridge_exchange_from_object": ("exchange_from_object", "int32(int64, int64)"),
    "numbridge_exchange_to_object": ("exchange_to_object", "int32(int64, int64)"),
    "numbridge_exchange_allocate": ("exchange_allocate", "int32(int64, int64, int64, int64)"),
    "numbridge_exchange_stream": ("exchange_stream", "int32(int32, int32, int64)"),
}

allocate_bytes = external("malloc", intp, intp)
allocate_zeroed = external("calloc", intp, intp, intp)
free_bytes = external("free", types.void, intp)
new_capsule = external("PyCapsule_New", intp, intp, intp, intp)
rename_capsule = external("PyCapsule_SetName", types.int32, intp, intp)
new_view = external("PyMemoryView_FromObject", intp, intp)
new_tuple = external("PyTuple_New", intp, intp)
set_item = external("PyTuple_SetItem", types.int32, intp, intp, intp)
tuple_size = external("PyTuple_Size", intp, intp)
tuple_item = external("PyTuple_GetItem", intp, intp, intp)
to_int = external("PyLong_AsLongLong", intp, intp)
from_int = external("PyLong_FromLongLong", intp, intp)
from_word = external("PyLong_FromUnsignedLongLong", intp, types.uint64)
allocate_object = external("PyType_GenericAlloc", intp, intp, intp)
set_error = external("PyErr_SetString", types.void, intp, intp)
error_occurred = external("PyErr_Occurred", intp)
no_memory = external("PyErr_NoMemory", intp)
initialized = external("Py_IsInitialized", types.int32)
hold_gil = external("PyGILState_Ensure", types.int32)
drop_gil = external("PyGILState_Release", types.void, types.int32)
buffer_error = symbol("numbridge_BufferError")
type_error = symbol("numbridge_TypeError")
destroy_address = function_symbol("numbridge_destroy_record")
delete_legacy_address = function_symbol("numbridge_delete_legacy")
delete_versioned_address = function_symbol("numbridge_delete_versioned")
drop_legacy_address = function_symbol("numbridge_drop_legacy")
drop_versioned_address = function_symbol("numbridge_drop_versioned")
call_deleter = indirect(types.void, 1)
call_to_object = indirect(types.int32, 2)
call_allocator_error = indirect(types.void, 3)
new_numpy = indirect(types.int64, 8)
set_base = indirect(types.int32, 2)

ALIGNMENT = 64  # what XLA asks of memory that it shares on the CPU
STREAM_ARGUMENT = 8  # the position of the last argument of `new_record`


@native
def give_none():
    """Return a new reference to None."""
    increase(none())
    return none()


@native
def record_at(capsule):
    """Return the address of the record in a capsule, or 0 without an exception."""
    if capsule_is_valid(capsule, text("numbridge.record")) == 0:
        return 0
    return capsule_pointer(capsule, text("numbridge.record"))


@native
def new_block(ndim):
    """Allocate a record for `ndim` dimensions, with nothing in it."""
    record = allocate_bytes(dl.RECORD_SHAPE + 16 * ndim)
    if record != 0:
        store_i32(record, dl.NDIM, types.int32(ndim))
        store_i64(record, dl.SHAPE, record + dl.RECORD_SHAPE)
        store_i64(record, dl.STRIDES, record + dl.RECORD_SHAPE + 8 * ndim)
        store_i64(record, dl.BYTE_OFFSET, 0)
        store_i64(record, dl.RECORD_FLAGS, 0)
        store_i64(record, dl.RECORD_OWNER, 0)
        store_i64(record, dl.RECORD_MANAGED, 0)
        store_i64(record, dl.RECORD_MANAGED_KIND, dl.MANAGED_NONE)
    return record


@native
def give_up(record):
    """Give back everything that a record owns, and the record."""
    kind, managed = load_i64(record, dl.RECORD_MANAGED_KIND), load_i64(record, dl.RECORD_MANAGED)
    if kind == dl.MANAGED_MALLOC:
        free_bytes(managed)
    elif kind != dl.MANAGED_NONE:
        deleter = load_i64(managed, dl.LEGACY_DELETER if kind == dl.MANAGED_LEGACY else dl.MANAGED_DELETER)
        if deleter != 0:
            call_deleter(deleter, managed)
    owner = load_i64(record, dl.RECORD_OWNER)
    if owner != 0:
        decrease(owner)
    free_bytes(record)


@native
def destroy_record(capsule):
    """The destructor of a record's capsule."""
    give_up(capsule_pointer(capsule, text("numbridge.record")))


@native
def wrap(record):
    """Put a record into a capsule; on failure the record is given up and 0 is returned with an exception."""
    capsule = new_capsule(record, text("numbridge.record"), destroy_address())
    if capsule == 0:
        give_up(record)
    return capsule


@native
def in_elements(record, reading, ndim, itemsize):
    """Copy shape and strides into a record, strides in elements; return False where a stride is no whole number."""
    shape, strides = load_i64(reading, nb.READ_SHAPE), load_i64(reading, nb.READ_STRIDES)
    unit, count = load_i64(reading, nb.READ_STRIDE_UNIT), 1
    for k in range(ndim - 1, -1, -1):
        extent = load_i64(shape, 8 * k)
        step = load_i64(strides, 8 * k) * unit if strides != 0 else count * itemsize
        if step % itemsize != 0 and extent > 1:
            return False
        store_i64(record, dl.RECORD_SHAPE + 8 * k, extent)
        # An extent of 0 or 1 leaves the stride without meaning; the contiguous one is what every consumer accepts.
        store_i64(record, dl.RECORD_SHAPE + 8 * (ndim + k), step // itemsize if extent > 1 else max(count, 1))
        count *= extent
    return True


@native
def record_of(reading, obj):
    """Return a new record of what was read from `obj`, or 0."""
    word = load_i64(reading, nb.READ_WORD)
    if word >> nb.WORD_CLASS & nb.CLASS_MASK != nb.CLASS_ARRAY or word & nb.UNSURE:
        return 0
    inner = word >> nb.WORD_INNER & 3
    ndim, itemsize = (word >> nb.WORD_NDIM & 0xFF) + inner, (word >> 8 & 0xFF) >> 3
    record = new_block(ndim)
    if record == 0:
        return 0
    if itemsize == 0 or not in_elements(record, reading, ndim, itemsize):
        free_bytes(record)
        return 0
    store_i64(record, dl.DATA, load_i64(reading, nb.READ_DATA))
    device = dl.CUDA_HOST if word & nb.PINNED else word >> nb.WORD_DEVICE & 0xFF
    store_i32(record, dl.DEVICE_TYPE, types.int32(device))
    store_i32(record, dl.DEVICE_ID, types.int32(load_i64(reading, nb.READ_DEVICE_ID)))
    flags, tag = dl.FLAG_READ_ONLY if word & nb.READ_ONLY else 0, word & 0xFFFFFFFF
    if inner != 0:
        flags |= tag >> nb.WORD_ELEMENT << dl.RECORD_ELEMENT | inner << dl.RECORD_INNER
        tag = tag & 0xFFFF | 1 << 16
    store_u32(record, dl.DTYPE, types.uint32(tag))
    store_i64(record, dl.RECORD_FLAGS, flags | (dl.RECORD_IMMUTABLE if word & nb.IMMUTABLE else 0))
    # A buffer must stay exported as long as its memory is used: a memoryview is what holds an export.
    if load_i64(reading, nb.READ_HOLD) == nb.HOLD_BUFFER:
        owner = new_view(obj)
    else:
        increase(obj)
        owner = obj
    store_i64(record, dl.RECORD_OWNER, owner)
    if owner == 0:
        free_bytes(record)
        return 0
    return record


@native
def captured(obj):
    """Return a new capsule with a record that shares the memory of `obj`, or 0, with or without an exception."""
    reading, scratch = stack(nb.READ_SIZE), stack(64)
    read(obj, reading, scratch)
    if load_i64(reading, nb.READ_HOLD) == nb.HOLD_OBJECT:
        # The adapter's capsule is that record already: the reading's reference becomes the caller's.
        capsule = load_i64(reading, nb.READ_HELD)
        word = load_i64(reading, nb.READ_WORD)
        # An element by value is no array, and its memory no one else's to write; a NumPy array that comes so has records.
        has_records = load_i64(load_i64(reading, nb.READ_ENTRY), nb.ENTRY_KIND) == nb.NUMPY
        if word != 0 and word >> nb.WORD_CLASS & nb.CLASS_MASK != nb.CLASS_ELEMENT and not has_records:
            return capsule
        decrease(capsule)
        return 0
    record = record_of(reading, obj)
    release(reading)
    return wrap(record) if record != 0 else 0


@native
def capture(self, obj):
    """``capture(obj)``: a record's capsule that shares the object's memory and keeps it alive, or None."""
    capsule = captured(obj)
    if capsule == 0 and error_occurred() == 0:
        return give_none()
    return capsule


@native
def new_array(capsule, source):
    """Return a new ``Array`` around a record's capsule, whose reference it takes."""
    array = allocate_object(load_i64(state(), nb.STATE_ARRAY_TYPE), 0)
    if array == 0:
        decrease(capsule)
        return 0
    store_i64(array, load_i64(state(), nb.STATE_ARRAY_RECORD), capsule)
    increase(source)
    store_i64(array, load_i64(state(), nb.STATE_ARRAY_SOURCE), source)
    increase(none())
    store_i64(array, load_i64(state(), nb.STATE_ARRAY_EXTRA), none())
    return array


@native
def is_known(tag):
    """Tell whether the dtype table has this data type; the table itself is in `numbridge.kernels.scalars`."""
    code, bits = tag & 0xFF, tag >> 8 & 0xFF
    if tag >> 16 != 1:
        return False
    if code <= 2:
        return bits == 16 or bits == 32 or bits == 64 or (bits == 8 and code != 2)
    if code == 5:
        return bits == 64 or bits == 128
    return (code == 4 and bits == 16) or ((code == 6 or code == 10 or code == 12) and bits == 8)


@native
def adopt(self, obj):
    """``adopt(obj)``: an ``Array`` that shares the object's memory and remembers the object, or None."""
    capsule = captured(obj)
    if capsule == 0:
        return give_none() if error_occurred() == 0 else 0
    if not is_known(types.int64(load_u32(capsule_pointer(capsule, text("numbridge.record")), dl.DTYPE))):
        decrease(capsule)
        return give_none()
    return new_array(capsule, obj)


@native
def int_tuple(base, count, scale):
    """Return a tuple of `count` 64-bit numbers, each times `scale`."""
    result = new_tuple(count)
    for k in range(count):
        set_item(result, k, from_int(load_i64(base, 8 * k) * scale))
    return result


@native
def default_strides(shape, ndim, itemsize):
    """Return the tuple of C-contiguous strides in bytes."""
    result, step = new_tuple(ndim), itemsize
    for k in range(ndim - 1, -1, -1):
        set_item(result, k, from_int(step))
        step *= load_i64(shape, 8 * k)
    return result


@native
def describe(self, obj):
    """``describe(obj)``: (word, data, shape, strides in bytes, device ordinal), or (word,) for what is not an array."""
    reading, scratch = stack(nb.READ_SIZE), stack(64)
    read(obj, reading, scratch)
    word = load_i64(reading, nb.READ_WORD)
    is_array = word >> nb.WORD_CLASS & nb.CLASS_MASK == nb.CLASS_ARRAY
    result = new_tuple(5 if is_array else 1)
    set_item(result, 0, from_word(types.uint64(word)))
    if is_array:
        ndim, itemsize = word >> nb.WORD_NDIM & 0xFF, (word >> 8 & 0xFF) >> 3
        shape, strides = load_i64(reading, nb.READ_SHAPE), load_i64(reading, nb.READ_STRIDES)
        set_item(result, 1, from_int(load_i64(reading, nb.READ_DATA)))
        set_item(result, 2, int_tuple(shape, ndim, 1))
        if strides != 0:
            set_item(result, 3, int_tuple(strides, ndim, load_i64(reading, nb.READ_STRIDE_UNIT)))
        else:
            set_item(result, 3, default_strides(shape, ndim, itemsize))
        set_item(result, 4, from_int(load_i64(reading, nb.READ_DEVICE_ID)))
    release(reading)
    return result


@native
def word_of(self, obj):
    """``word(obj)``: the word alone, without the tuple that `describe` builds."""
    reading, scratch = stack(nb.READ_SIZE), stack(64)
    read(obj, reading, scratch)
    word = load_i64(reading, nb.READ_WORD)
    release(reading)
    return from_word(types.uint64(word))


@native
def owner_of(self, capsule):
    """``owner(record)``: the object whose memory this is, or None for our own memory or a DLPack tensor's."""
    record = record_at(capsule)
    owner = load_i64(record, dl.RECORD_OWNER) if record != 0 else 0
    if owner == 0:
        return give_none()
    increase(owner)
    return owner


@native
def root(owner):
    """Return what a view must keep alive: behind a record that only borrows its memory, that record's owner."""
    while True:
        record = record_at(owner)
        if record == 0 or load_i64(record, dl.RECORD_MANAGED) != 0 or load_i64(record, dl.RECORD_OWNER) == 0:
            return owner
        owner = load_i64(record, dl.RECORD_OWNER)


@native
def fill_shape(record, shape, ndim):
    """Copy a tuple of extents into a record and make it C-contiguous; return the number of elements."""
    count = 1
    for k in range(ndim - 1, -1, -1):
        extent = to_int(tuple_item(shape, k))
        store_i64(record, dl.RECORD_SHAPE + 8 * k, extent)
        store_i64(record, dl.RECORD_SHAPE + 8 * (ndim + k), max(count, 1))
        count *= extent
    return count


@native
def new_record(self, arguments, count):
    """``new_record(owner, data, tag, device_type, device_id, shape, strides, flags[, stream])``.

    Strides are in elements, or None. A `stream` is the one on which the memory's producer works.
    """
    shape, strides = load_i64(arguments, 40), load_i64(arguments, 48)
    ndim = tuple_size(shape)
    record = new_block(ndim)
    if record == 0:
        return no_memory()
    # Views of views keep the first owner alive, not each other: a chain would be freed recursively.
    owner = root(load_i64(arguments, 0))
    increase(owner)
    store_i64(record, dl.RECORD_OWNER, owner)
    store_i64(record, dl.DATA, to_address(load_i64(arguments, 8)))
    store_u32(record, dl.DTYPE, types.uint32(to_int(load_i64(arguments, 16))))
    store_i32(record, dl.DEVICE_TYPE, types.int32(to_int(load_i64(arguments, 24))))
    store_i32(record, dl.DEVICE_ID, types.int32(to_int(load_i64(arguments, 32))))
    fill_shape(record, shape, ndim)
    if strides != none():
        for k in range(ndim):
            store_i64(record, dl.RECORD_SHAPE + 8 * (ndim + k), to_int(tuple_item(strides, k)))
    flags = to_int(load_i64(arguments, 56))
    if count > STREAM_ARGUMENT:
        store_i64(record, dl.RECORD_STREAM, to_address(load_i64(arguments, 8 * STREAM_ARGUMENT)))
        flags |= dl.RECORD_HAS_STREAM
    store_i64(record, dl.RECORD_FLAGS, flags)
    if error_occurred() != 0:
        give_up(record)
        return 0
    return wrap(record)


@native
def allocated(ndim, tag, byte_count, zeroed):
    """Return a record with memory of its own on the CPU, 64-byte aligned, or 0."""
    record = new_block(ndim)
    if record == 0:
        return 0
    size = byte_count + ALIGNMENT
    memory = allocate_zeroed(size, 1) if zeroed else allocate_bytes(size)
    if memory == 0:
        free_bytes(record)
        return 0
    store_i64(record, dl.RECORD_MANAGED, memory)
    store_i64(record, dl.RECORD_MANAGED_KIND, dl.MANAGED_MALLOC)
    store_i64(record, dl.DATA, (memory + ALIGNMENT - 1) & ~(ALIGNMENT - 1))
    store_u32(record, dl.DTYPE, types.uint32(tag))
    store_i32(record, dl.DEVICE_TYPE, types.int32(dl.CPU))
    store_i32(record, dl.DEVICE_ID, types.int32(0))
    return record


@native
def allocate(self, arguments, count):
    """``allocate(shape, tag, bytes, zeroed)``: a record's capsule with new memory on the CPU."""
    shape = load_i64(arguments, 0)
    ndim = tuple_size(shape)
    zeroed = to_int(load_i64(arguments, 24)) != 0
    record = allocated(ndim, to_int(load_i64(arguments, 8)), to_int(load_i64(arguments, 16)), zeroed)
    if record == 0:
        return no_memory()
    fill_shape(record, shape, ndim)
    return wrap(record)


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
def consume(self, capsule):
    """``consume(capsule)``: a record's capsule that takes a DLPack capsule over, or None if it is none or was used."""
    record = 0
    if capsule_is_valid(capsule, text("dltensor_versioned")) != 0:
        managed = capsule_pointer(capsule, text("dltensor_versioned"))
        if load_u32(managed, dl.MANAGED_MAJOR) == dl.MAJOR_VERSION:
            flags = load_i64(managed, dl.MANAGED_FLAGS)
            record = take_over(managed, managed + dl.MANAGED_TENSOR, dl.MANAGED_VERSIONED, flags)
            if record != 0:
                rename_capsule(capsule, text("used_dltensor_versioned"))
    elif capsule_is_valid(capsule, text("dltensor")) != 0:
        managed = capsule_pointer(capsule, text("dltensor"))
        record = take_over(managed, managed + dl.LEGACY_TENSOR, dl.MANAGED_LEGACY, 0)
        if record != 0:
            rename_capsule(capsule, text("used_dltensor"))
    return wrap(record) if record != 0 else give_none()


@native
def delete_export(managed, context):
    """Give an exported tensor back: from any thread, with or without the GIL."""
    if initialized() == 0:
        return
    gil = hold_gil()
    decrease(load_i64(managed, context))
    drop_gil(gil)
    free_bytes(managed)


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
        delete_legacy(capsule_pointer(capsule, text("dltensor")))


@native
def drop_versioned(capsule):
    """The destructor of a versioned capsule: deletes what nobody consumed."""
    if capsule_is_valid(capsule, text("dltensor_versioned")) != 0:
        delete_versioned(capsule_pointer(capsule, text("dltensor_versioned")))


@native
def copy_tensor(record, target):
    """Copy a record's ``DLTensor``; shape and strides stay in the record."""
    for k in range(0, dl.DLTENSOR_SIZE, 8):
        store_i64(target, k, load_i64(record, k))


@native
def managed_legacy(capsule, record):
    """Return a new ``DLManagedTensor`` of a record, or 0."""
    managed = allocate_bytes(dl.LEGACY_SIZE)
    if managed != 0:
        copy_tensor(record, managed + dl.LEGACY_TENSOR)
        increase(capsule)
        store_i64(managed, dl.LEGACY_CONTEXT, capsule)
        store_i64(managed, dl.LEGACY_DELETER, delete_legacy_address())
    return managed


@native
def managed_versioned(capsule, record):
    """Return a new ``DLManagedTensorVersioned`` of a record, or 0."""
    managed = allocate_bytes(dl.MANAGED_SIZE)
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
        delete_legacy(managed)
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
        delete_versioned(managed)
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
def is_plain(array):
    """Tell whether an object is an ``Array`` on the CPU, without source or gradient state, writable, no stride negative."""
    if load_i64(array, py.OBJECT_TYPE) != load_i64(state(), nb.STATE_ARRAY_TYPE):
        return False
    source = load_i64(array, load_i64(state(), nb.STATE_ARRAY_SOURCE))
    if source != none() or load_i64(array, load_i64(state(), nb.STATE_ARRAY_EXTRA)) != none():
        return False
    record = record_at(load_i64(array, load_i64(state(), nb.STATE_ARRAY_RECORD)))
    if record == 0 or load_i64(record, dl.RECORD_FLAGS) != 0 or load_i32(record, dl.DEVICE_TYPE) != dl.CPU:
        return False
    ndim, strides = types.int64(load_i32(record, dl.NDIM)), load_i64(record, dl.STRIDES)
    lowest = 0
    for k in range(ndim):
        lowest = min(lowest, load_i64(strides, 8 * k))
    return lowest >= 0


@native
def export_plain(self, array):
    """``export_plain(array)`` with self = (address,): `export_to` of an array that needs no thought, or None."""
    if not is_plain(array):
        return give_none()
    capsule = load_i64(array, load_i64(state(), nb.STATE_ARRAY_RECORD))
    managed, out = managed_versioned(capsule, record_at(capsule)), stack(16)
    if managed == 0:
        return no_memory()
    store_i64(out, 0, 0)
    if call_to_object(to_address(load_i64(self, py.TUPLE_ITEMS)), managed, out) != 0:
        return 0
    return load_i64(out, 0)


@native
def export_aligned(self, array):
    """``export_aligned(array)`` with self = ({tag: anything},): `export_legacy` of an array that needs no thought, or None.

    It is dense, aligned as XLA asks, and of one of these dtypes.
    """
    if not is_plain(array):
        return give_none()
    capsule = load_i64(array, load_i64(state(), nb.STATE_ARRAY_RECORD))
    record, count = record_at(capsule), 1
    if (load_i64(record, dl.DATA) + load_i64(record, dl.BYTE_OFFSET)) & (ALIGNMENT - 1) != 0:
        return give_none()
    ndim, strides = types.int64(load_i32(record, dl.NDIM)), load_i64(record, dl.STRIDES)
    for k in range(ndim - 1, -1, -1):
        if load_i64(strides, 8 * k) != count:
            return give_none()
        count *= load_i64(record, dl.RECORD_SHAPE + 8 * k)
    tag = from_int(types.int64(load_u32(record, dl.DTYPE)))
    known = dict_get(load_i64(self, py.TUPLE_ITEMS), tag)
    decrease(tag)
    return export_legacy(self, capsule) if known != 0 else give_none()


@native
def to_numpy(self, obj):
    """``to_numpy(array or record)``: a NumPy array on the memory; None off the CPU, or for an unknown dtype or object.

    ``self`` is (PyArray_Type, NewFromDescr, SetBaseObject, {tag: dtype}).
    """
    capsule = obj
    if load_i64(obj, py.OBJECT_TYPE) == load_i64(state(), nb.STATE_ARRAY_TYPE):
        capsule = load_i64(obj, load_i64(state(), nb.STATE_ARRAY_RECORD))
    record = record_at(capsule)
    if record == 0 or (load_i32(record, dl.DEVICE_TYPE) != dl.CPU and load_i32(record, dl.DEVICE_TYPE) != dl.CUDA_HOST):
        return give_none()
    tag = from_int(types.int64(load_u32(record, dl.DTYPE)))
    descriptor = dict_get(load_i64(self, py.TUPLE_ITEMS + 24), tag)
    decrease(tag)
    if descriptor == 0:
        return give_none()
    ndim = types.int64(load_i32(record, dl.NDIM))
    itemsize = types.int64(load_u32(record, dl.DTYPE) >> 8 & 0xFF) >> 3
    strides = stack(8 * ndim + 8)
    for k in range(ndim):
        store_i64(strides, 8 * k, load_i64(record, dl.RECORD_SHAPE + 8 * (ndim + k)) * itemsize)
    flags = 0 if load_i64(record, dl.RECORD_FLAGS) & dl.FLAG_READ_ONLY else py.ARRAY_WRITEABLE
    increase(descriptor)  # NewFromDescr steals it
    array = new_numpy(
        to_address(load_i64(self, py.TUPLE_ITEMS + 8)),
        load_i64(self, py.TUPLE_ITEMS),
        descriptor,
        ndim,
        record + dl.RECORD_SHAPE,
        strides,
        load_i64(record, dl.DATA) + load_i64(record, dl.BYTE_OFFSET),
        flags,
        0,
    )
    if array == 0:
        return 0
    increase(capsule)  # SetBaseObject steals it
    if set_base(to_address(load_i64(self, py.TUPLE_ITEMS + 16)), array, capsule) != 0:
        decrease(array)
        return 0
    return array


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
    copy_tensor(record, tensor)
    return types.int32(0)


@native
def announced(array, capsule):
    """Tell the lender of a read-only Array, since its consumer may not heed the flag; False with an exception."""
    lender = load_i64(state(), nb.STATE_LENDER)
    if lender == 0 or not load_i64(record_at(capsule), dl.RECORD_FLAGS) & dl.FLAG_READ_ONLY:
        return True
    arguments = stack(16)
    store_i64(arguments, 0, array)
    answer = call_with(lender, arguments, 1, 0)
    if answer == 0:
        return False
    decrease(answer)
    return True


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
