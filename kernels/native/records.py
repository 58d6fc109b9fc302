"""Compiled: records (native blocks that say where an array lies and who keeps its memory alive), and their capsules.

A record lives in a ``PyCapsule`` named ``numbridge.record``; its destructor gives back what the record owns. `dlpack` and
`exchange_table` are the ways by which other libraries read and make them.

The built-in functions here return None, having written nothing, where the caller must take the slow road and explain.
Source of the layouts: `dlpack_layout`. The GIL must be held.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
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
    text,
)
from numbridge.kernels.native.reading import (
    call_with,
    capsule_pointer,
    clear_error,
    count_version_behind,
    decrease,
    entry_of,
    exchange_read,
    increase,
    intp,
    item,
    read,
    read_buffer,
    record_at,
    release,
    root,
    state,
)

EXPORTS = {
    "numbridge_destroy_record": ("destroy_record", "void(int64)"),
    "numbridge_drop_managed": ("drop_managed", "void(int64)"),
    "numbridge_capture": ("capture", "int64(int64, int64)"),
    "numbridge_adopt": ("adopt", "int64(int64, int64)"),
    "numbridge_describe": ("describe", "int64(int64, int64)"),
    "numbridge_word": ("word_of", "int64(int64, int64)"),
    "numbridge_owner": ("owner_of", "int64(int64, int64)"),
    "numbridge_hold": ("hold", "int64(int64, int64, int64)"),
    "numbridge_written": ("written", "int64(int64, int64)"),
    "numbridge_new_record": ("new_record", "int64(int64, int64, int64)"),
    "numbridge_allocate": ("allocate", "int64(int64, int64, int64)"),
    "numbridge_to_numpy": ("to_numpy", "int64(int64, int64)"),
}

allocate_bytes = external("malloc", intp, intp)
allocate_zeroed = external("calloc", intp, intp, intp)
free_bytes = external("free", types.void, intp)
new_capsule = external("PyCapsule_New", intp, intp, intp, intp)
new_view = external("PyMemoryView_FromObject", intp, intp)
new_tuple = external("PyTuple_New", intp, intp)
set_item = external("PyTuple_SetItem", types.int32, intp, intp, intp)
tuple_size = external("PyTuple_Size", intp, intp)
tuple_item = external("PyTuple_GetItem", intp, intp, intp)
to_int = external("PyLong_AsLongLong", intp, intp)
from_int = external("PyLong_FromLongLong", intp, intp)
from_word = external("PyLong_FromUnsignedLongLong", intp, types.uint64)
allocate_object = external("PyType_GenericAlloc", intp, intp, intp)
error_occurred = external("PyErr_Occurred", intp)
no_memory = external("PyErr_NoMemory", intp)
destroy_address = function_symbol("numbridge_destroy_record")
drop_address = function_symbol("numbridge_drop_managed")
call_deleter = indirect(types.void, 1)
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
        store_i64(record, dl.RECORD_KEPT, 0)
        store_i64(record, dl.RECORD_MANAGED, 0)
        store_i64(record, dl.RECORD_MANAGED_KIND, dl.MANAGED_NONE)
    return record


@native
def delete_managed(managed, place):
    """Call the deleter of a framework's managed tensor, which lies at a place of it."""
    deleter = load_i64(managed, place)
    if deleter != 0:
        call_deleter(deleter, managed)


@native
def give_up(record):
    """Give back everything that a record owns, and the record."""
    kind, managed = load_i64(record, dl.RECORD_MANAGED_KIND), load_i64(record, dl.RECORD_MANAGED)
    if kind == dl.MANAGED_MALLOC:
        free_bytes(managed)
    elif kind != dl.MANAGED_NONE:
        delete_managed(managed, dl.LEGACY_DELETER if kind == dl.MANAGED_LEGACY else dl.MANAGED_DELETER)
    owner, kept = load_i64(record, dl.RECORD_OWNER), load_i64(record, dl.RECORD_KEPT)
    if owner != 0:
        decrease(owner)
    if kept != 0:
        decrease(kept)
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
def managed_of(exporter, obj):
    """Return a capsule that holds an object's memory by a managed tensor of its framework's, or 0."""
    made = stack(8)
    if exchange_read(exporter, obj, made) != 0:
        clear_error()
        return 0
    managed = load_i64(made, 0)
    capsule = new_capsule(managed, text("numbridge.managed"), drop_address())
    if capsule == 0:
        clear_error()
        delete_managed(managed, dl.MANAGED_DELETER)
    return capsule


@native
def drop_managed(capsule):
    """The destructor of a capsule of `managed_of`."""
    delete_managed(capsule_pointer(capsule, text("numbridge.managed")), dl.MANAGED_DELETER)


@native
def keep(record, reading, obj):
    """Hold the memory of an object that may be given other memory while the record lives, such as by ``x.data = y``."""
    entry = load_i64(reading, nb.READ_ENTRY)
    keeper, exporter = load_i64(entry, nb.ENTRY_KEEPER), load_i64(entry, nb.ENTRY_EXPORTER)
    if exporter != 0:
        store_i64(record, dl.RECORD_KEPT, managed_of(exporter, obj))
    if keeper != 0:
        arguments = stack(8)
        store_i64(arguments, 0, obj)
        kept = call_with(keeper, arguments, 1, 0)
        if kept == 0:
            clear_error()
        store_i64(record, dl.RECORD_KEPT, kept)


@native
def is_in_cuda_memory(record):
    """Tell whether a record's memory is used on streams."""
    device = load_i32(record, dl.DEVICE_TYPE)
    return device == dl.CUDA or device == dl.CUDA_MANAGED


@native
def set_stream(record, flag, value):
    """Let a record of CUDA memory know the stream that it is used on: RECORD_HAS_STREAM and a handle, or who is asked."""
    store_i64(record, dl.RECORD_STREAM, value)
    store_i64(record, dl.RECORD_FLAGS, load_i64(record, dl.RECORD_FLAGS) | flag)


@native
def follow(record, entry):
    """Let a record that knows no stream be used on that of a framework, if the type with this table entry is one's."""
    known = load_i64(record, dl.RECORD_FLAGS) & (dl.RECORD_HAS_STREAM | dl.RECORD_ASKS_STREAM)
    if known == 0 and entry != 0 and is_in_cuda_memory(record) and load_i64(entry, nb.ENTRY_STREAM) != 0:
        set_stream(record, dl.RECORD_ASKS_STREAM, entry)


@native
def inherit_stream(record, owner):
    """Let a record be used on the stream of what its memory is taken from: another record, or an object of a framework."""
    source = record_at(owner)
    if source == 0:
        follow(record, entry_of(load_i64(owner, py.OBJECT_TYPE)))
    elif is_in_cuda_memory(record):
        known = load_i64(source, dl.RECORD_FLAGS) & (dl.RECORD_HAS_STREAM | dl.RECORD_ASKS_STREAM)
        if known != 0:
            set_stream(record, known, load_i64(source, dl.RECORD_STREAM))


@native
def record_of(reading, obj, owner):
    """Return a new record of what was read from `obj`, which keeps `owner` alive, or 0."""
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
    increase(owner)
    store_i64(record, dl.RECORD_OWNER, owner)
    keep(record, reading, obj)
    if load_i64(reading, nb.READ_STREAM) != nb.NO_STREAM:
        set_stream(record, dl.RECORD_HAS_STREAM, load_i64(reading, nb.READ_STREAM))
    else:
        follow(record, load_i64(reading, nb.READ_STREAM_ENTRY))
    return record


@native
def view_of_buffer(reading, obj):
    """Return a memoryview of an object, and read its buffer in the place of one that was read of the object; 0 with an exception.

    A buffer must stay exported as long as its memory is used, and a memoryview is what holds an export. Each may be of other
    memory, where an object makes it when it is asked; so what is read is the one that is held.
    """
    release(reading)
    store_i64(reading, nb.READ_WORD, 0)
    view = new_view(obj)
    if view == 0:
        return 0
    read_buffer(view, reading)
    return view


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
            # A tensor that DLPack lends is used on its framework's stream, too.
            record = record_at(capsule)
            follow(record, load_i64(reading, nb.READ_STREAM_ENTRY))
            if word & nb.READ_ONLY:  # which memory that was lent is, whatever the record says
                store_i64(record, dl.RECORD_FLAGS, load_i64(record, dl.RECORD_FLAGS) | dl.FLAG_READ_ONLY)
            return capsule
        decrease(capsule)
        return 0
    owner = obj
    if load_i64(reading, nb.READ_HOLD) == nb.HOLD_BUFFER:
        owner = view_of_buffer(reading, obj)
        if owner == 0:
            return 0
    record = record_of(reading, obj, owner)
    release(reading)
    if owner != obj:
        decrease(owner)
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
def hold(self, arguments, count):
    """``hold(record, object)``: let a record hold an object as long as it lives; return what it holds, which may be another."""
    record, obj = record_at(load_i64(arguments, 0)), load_i64(arguments, 8)
    kept = load_i64(record, dl.RECORD_KEPT)
    if kept == 0:
        increase(obj)
        store_i64(record, dl.RECORD_KEPT, obj)
        kept = obj
    increase(kept)
    return kept


@native
def written(self, capsule):
    """``written(record)``: tell the framework whose tensor's memory this is that something has been written there."""
    count_version_behind(capsule)
    return give_none()


@native
def kept_behind(owner):
    """Return what holds the memory of a record beside its owner, or 0; see `root`."""
    while True:
        record = record_at(owner)
        if record == 0 or load_i64(record, dl.RECORD_MANAGED) != 0 or load_i64(record, dl.RECORD_OWNER) == 0:
            return 0
        kept = load_i64(record, dl.RECORD_KEPT)
        if kept != 0:
            return kept
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

    Strides are in elements, or None. A `stream` is the one on which the memory's producer works; without it, memory is used on
    the stream of the owner: a record, whose view this is, or an object of a framework.
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
    kept = kept_behind(load_i64(arguments, 0))
    if kept != 0:
        increase(kept)
        store_i64(record, dl.RECORD_KEPT, kept)
    store_i64(record, dl.DATA, to_address(load_i64(arguments, 8)))
    store_u32(record, dl.DTYPE, types.uint32(to_int(load_i64(arguments, 16))))
    store_i32(record, dl.DEVICE_TYPE, types.int32(to_int(load_i64(arguments, 24))))
    store_i32(record, dl.DEVICE_ID, types.int32(to_int(load_i64(arguments, 32))))
    fill_shape(record, shape, ndim)
    if strides != none():
        for k in range(ndim):
            store_i64(record, dl.RECORD_SHAPE + 8 * (ndim + k), to_int(tuple_item(strides, k)))
    store_i64(record, dl.RECORD_FLAGS, to_int(load_i64(arguments, 56)))
    if count > STREAM_ARGUMENT:
        set_stream(record, dl.RECORD_HAS_STREAM, to_address(load_i64(arguments, 8 * STREAM_ARGUMENT)))
    else:
        inherit_stream(record, load_i64(arguments, 0))
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
    descriptor = dict_get(item(self, 3), tag)
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
        to_address(item(self, 1)),
        item(self, 0),
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
    if set_base(to_address(item(self, 2)), array, capsule) != 0:
        decrease(array)
        return 0
    return array
