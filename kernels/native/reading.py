"""Compiled: a Python object is read into a *reading*, whatever framework it comes from.

`read` looks the object's type up in the reader table and follows the way that is registered there: the framework's own
DLPack exchange function, NumPy's array structure, the buffer protocol, a numbridge record, or (once through Python) an
adapter that turns the object into a record. It never raises: what it cannot read has the word 0 or the bit UNSURE, and
the caller takes the slow road, which explains.

Source of the layouts: `dlpack_layout`, `object_layout`, `table_layout`. The GIL must be held.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.lent import lent_bits
from numbridge.kernels.native.memory import (
    external,
    indirect,
    inlined,
    load_f32,
    load_f64,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    native,
    store_f64,
    store_i64,
    store_u32,
    symbol,
    text,
)

intp, double = types.int64, types.float64
state = symbol("numbridge_state")
python_true = symbol("_Py_TrueStruct")

get_buffer = external("PyObject_GetBuffer", types.int32, intp, intp, types.int32)
release_buffer = external("PyBuffer_Release", types.void, intp)
clear_error = external("PyErr_Clear", types.void)
error_matches = external("PyErr_ExceptionMatches", types.int32, intp)
interrupt_again = external("PyErr_SetInterrupt", types.void)
keyboard_interrupt = symbol("numbridge_KeyboardInterrupt")
increase = external("Py_IncRef", types.void, intp)
decrease = external("Py_DecRef", types.void, intp)
capsule_is_valid = external("PyCapsule_IsValid", types.int32, intp, intp)
capsule_pointer = external("PyCapsule_GetPointer", intp, intp, intp)
call_with = external("PyObject_Vectorcall", intp, intp, intp, intp, intp)
float_value = external("PyFloat_AsDouble", double, intp)
unsigned_value = external("PyLong_AsUnsignedLongLong", types.uint64, intp)
error_occurred = external("PyErr_Occurred", intp)
int_value = external("PyLong_AsLongLongAndOverflow", intp, intp, intp)
complex_real = external("PyComplex_RealAsDouble", double, intp)
complex_imaginary = external("PyComplex_ImagAsDouble", double, intp)
exchange_read = indirect(types.int32, 2)

# PyTupleObject (Include/cpython/tupleobject.h): its size without the items, 24, and 32 since 3.14, which put a hash before them
_TUPLE_ITEMS = tuple.__basicsize__


@native
def leave_to_python():
    """Clear an error that the slow road will meet again. An interrupt it would not: that comes again as soon as Python runs."""
    interrupted = error_matches(keyboard_interrupt()) != 0
    clear_error()
    if interrupted:
        interrupt_again()


@inlined
def item(items, k):
    """Return the object at place `k` of a tuple, which stays the tuple's."""
    return load_i64(items_of(items), 8 * k)


@inlined
def items_of(items):
    """Return where the addresses of a tuple's items lie."""
    return items + _TUPLE_ITEMS


@inlined
def entry_of(kind):
    """Return the table entry of the type at address `kind`, or 0."""
    base, mask = load_i64(state(), nb.STATE_TABLE), load_i64(state(), nb.STATE_TABLE_MASK)
    slot = (kind >> 4) & mask
    while True:
        entry = base + slot * nb.ENTRY_SIZE
        found = load_i64(entry, nb.ENTRY_TYPE)
        if found == kind:
            return entry
        if found == 0:
            return 0
        slot = (slot + 1) & mask


@inlined
def alignment(tag):
    """Return the alignment in bytes of an element; a complex number's is its part's."""
    size = (tag >> 8 & 0xFF) >> 3
    return size >> 1 if tag & 0xFF == 5 else size


@native
def has_elements(out, ndim):
    """Tell whether no extent of what was read is 0."""
    shape, smallest = load_i64(out, nb.READ_SHAPE), 1
    for k in range(ndim):
        smallest = min(smallest, load_i64(shape, 8 * k))
    return smallest > 0


@inlined
def array_word(out, tag, ndim, device, data, bits):
    """Store the word of an array whose shape and strides are already in `out`."""
    if ndim < 0 or ndim > nb.READ_MAX_RANK:
        store_i64(out, nb.READ_WORD, nb.UNSURE)
        return
    shape, strides, unit = (
        load_i64(out, nb.READ_SHAPE),
        load_i64(out, nb.READ_STRIDES),
        load_i64(out, nb.READ_STRIDE_UNIT),
    )
    expected = (tag >> 8 & 0xFF) >> 3
    positions, empty, repeated, contiguous = data, False, False, True
    if strides != 0:
        for k in range(ndim - 1, -1, -1):
            extent, step = load_i64(shape, 8 * k), load_i64(strides, 8 * k) * unit
            if extent != 1:
                contiguous &= step == expected
                repeated |= step == 0
                positions |= step
                empty |= extent == 0
            expected *= extent
    word = tag | ndim << nb.WORD_NDIM | nb.CLASS_ARRAY << nb.WORD_CLASS | device << nb.WORD_DEVICE | bits
    if contiguous or empty:
        word |= nb.CONTIGUOUS
    elif repeated:
        word |= nb.REPEATED
    if positions & (alignment(tag) - 1) != 0 and not empty:
        word |= nb.MISALIGNED
    # Freed memory has address 0.
    if data >= 0 and data < nb.LOWEST_ADDRESS and has_elements(out, ndim):
        word = nb.UNSURE
    if load_i64(state(), nb.STATE_LENT_COUNT) != 0:
        word |= lent_bits(load_i64(state(), nb.STATE_LENT), data, nb.IMMUTABLE)
    store_i64(out, nb.READ_DATA, data)
    store_i64(out, nb.READ_WORD, word)


@inlined
def read_dltensor(tensor, out, bits):
    """Read a ``DLTensor``; shape and strides stay where they are, strides count elements."""
    tag, ndim = types.int64(load_u32(tensor, dl.DTYPE)), load_i32(tensor, dl.NDIM)
    # So many lanes are none of a producer's; in a word they would name an element type.
    if tag >> 31 != 0:
        tag &= 0xFFFF
    device = types.int64(load_i32(tensor, dl.DEVICE_TYPE))
    # Page-locked host memory is host memory.
    if device == dl.CUDA_HOST:
        device = dl.CPU
        bits |= nb.PINNED
    store_i64(out, nb.READ_SHAPE, load_i64(tensor, dl.SHAPE))
    store_i64(out, nb.READ_STRIDES, load_i64(tensor, dl.STRIDES))
    store_i64(out, nb.READ_STRIDE_UNIT, (tag >> 8 & 0xFF) >> 3)
    store_i64(out, nb.READ_DEVICE_ID, types.int64(load_i32(tensor, dl.DEVICE_ID)))
    data = load_i64(tensor, dl.DATA) + load_i64(tensor, dl.BYTE_OFFSET)
    array_word(out, tag, types.int64(ndim), device, data, bits)


@native
def as_elements(out, flags):
    """Let a reading of scalars be one of elements, which a record's flags name."""
    inner, word = flags >> dl.RECORD_INNER & 3, load_i64(out, nb.READ_WORD)
    word &= ~(0xFFFF << nb.WORD_ELEMENT)
    word |= (flags >> dl.RECORD_ELEMENT & 0xFFFF) << nb.WORD_ELEMENT | inner << nb.WORD_INNER
    word -= inner << nb.WORD_NDIM
    if flags & dl.RECORD_VALUE:
        word += (nb.CLASS_ELEMENT - nb.CLASS_ARRAY) << nb.WORD_CLASS
    store_i64(out, nb.READ_WORD, word)


@inlined
def read_record(record, out):
    """Read a numbridge record."""
    flags = load_i64(record, dl.RECORD_FLAGS)
    bits = nb.READ_ONLY if flags & dl.FLAG_READ_ONLY else 0
    if flags & dl.RECORD_IMMUTABLE:
        bits |= nb.IMMUTABLE
    if flags & dl.RECORD_HAS_STREAM:
        store_i64(out, nb.READ_STREAM, load_i64(record, dl.RECORD_STREAM))
    if flags & dl.RECORD_ASKS_STREAM:
        store_i64(out, nb.READ_STREAM_ENTRY, load_i64(record, dl.RECORD_STREAM))
    store_i64(out, nb.READ_OWNER, load_i64(record, dl.RECORD_OWNER))
    read_dltensor(record, out, bits)
    if flags >> dl.RECORD_ELEMENT != 0:
        as_elements(out, flags)


@native
def record_at(capsule):
    """Return the address of the record in a capsule, or 0 without an exception."""
    if capsule_is_valid(capsule, text("numbridge.record")) == 0:
        return 0
    return capsule_pointer(capsule, text("numbridge.record"))


@native
def root(owner):
    """Return what a view must keep alive: behind a record that only borrows its memory, that record's owner."""
    while True:
        record = record_at(owner)
        if record == 0 or load_i64(record, dl.RECORD_MANAGED) != 0 or load_i64(record, dl.RECORD_OWNER) == 0:
            return owner
        owner = load_i64(record, dl.RECORD_OWNER)


@inlined
def read_capsule(capsule, out):
    """Read a record's capsule; a DLPack capsule is left alone, since reading it would not consume it."""
    record = record_at(capsule)
    if record != 0:
        read_record(record, out)


@inlined
def mark_lent(out):
    """Make a reading read-only if its memory was lent as such: what lies behind it may be unable to say so."""
    word = load_i64(out, nb.READ_WORD)
    if load_i64(state(), nb.STATE_LENT_COUNT) != 0 and word != 0:
        bits = lent_bits(load_i64(state(), nb.STATE_LENT), load_i64(out, nb.READ_DATA), nb.READ_ONLY)
        store_i64(out, nb.READ_WORD, word | bits)


@inlined
def refuse_freed(out, entry):
    """Be unsure of a view into memory that was freed, which therefore begins at address 0: its own lies behind that."""
    word, data = load_i64(out, nb.READ_WORD), load_i64(out, nb.READ_DATA)
    offset = load_i64(load_i64(out, nb.READ_IMPLEMENTATION), load_i64(entry, nb.ENTRY_OFFSET))
    if load_i64(entry, nb.ENTRY_OFFSET_BYTES) == 0:
        offset *= (word >> 8 & 0xFF) >> 3
    if offset > 0 and data - offset < nb.LOWEST_ADDRESS and has_elements(out, word >> nb.WORD_NDIM & 0xFF):
        store_i64(out, nb.READ_WORD, nb.UNSURE)


@inlined
def read_exchange(obj, entry, out, tensor):
    """Read through the framework's exchange function, after its key set says that the object is an ordinary one."""
    bits = load_i64(entry, nb.ENTRY_FLAGS)
    chain = load_i64(entry, nb.ENTRY_IMPLEMENTATION)
    if chain != 0:
        implementation = load_i64(obj, chain)
        store_i64(out, nb.READ_IMPLEMENTATION, implementation)
        if implementation == 0:
            return
        # A bit outside the allowed ones (sparse, conjugated, negated, functional...) makes memory mean something else.
        if load_i64(implementation, load_i64(entry, nb.ENTRY_KEYS)) & ~load_i64(entry, nb.ENTRY_ALLOWED) != 0:
            store_i64(out, nb.READ_WORD, nb.UNSURE)
            return
        if load_i64(implementation, load_i64(entry, nb.ENTRY_AUTOGRAD)) != 0:
            bits |= nb.GUARDED | nb.TRACKED
    if exchange_read(load_i64(entry, nb.ENTRY_FUNCTION), obj, tensor) != 0:
        clear_error()
        return
    read_dltensor(tensor, out, bits)
    if chain != 0 and load_i64(entry, nb.ENTRY_OFFSET) != 0:
        refuse_freed(out, entry)
    mark_lent(out)


@inlined
def numpy_tag(descriptor):
    """Return the tag of a NumPy dtype, or 0."""
    number = load_i32(descriptor, py.DESCR_TYPE_NUM)
    if number < 0 or number >= load_i64(state(), nb.STATE_NUMPY_TAG_COUNT):
        return 0
    if load_u8(descriptor, py.DESCR_BYTEORDER) == py.DESCR_OTHER_ORDER:
        return 0
    return load_i64(load_i64(state(), nb.STATE_NUMPY_TAGS), 8 * types.int64(number))


@inlined
def read_numpy(obj, out):
    """Read a NumPy array from its C structure."""
    tag = numpy_tag(load_i64(obj, py.ARRAY_DESCR))
    if tag == 0:
        return
    bits = 0 if load_i32(obj, py.ARRAY_FLAGS) & py.ARRAY_WRITEABLE else nb.READ_ONLY
    store_i64(out, nb.READ_SHAPE, load_i64(obj, py.ARRAY_SHAPE))
    store_i64(out, nb.READ_STRIDES, load_i64(obj, py.ARRAY_STRIDES))
    store_i64(out, nb.READ_STRIDE_UNIT, 1)
    store_i64(out, nb.READ_DEVICE_ID, 0)
    ndim = types.int64(load_i32(obj, py.ARRAY_NDIM))
    array_word(out, tag, ndim, dl.CPU, load_i64(obj, py.ARRAY_DATA), bits)


@native
def read_fields(obj, fields, out):
    """Read an array object in CUDA memory from its C++ fields."""
    descriptor = load_i64(obj, load_i64(fields, nb.FIELD_DTYPE))
    tag = numpy_tag(descriptor)
    if tag == 0:
        return
    shape = load_i64(obj, load_i64(fields, nb.FIELD_SHAPE))
    ndim = (load_i64(obj, load_i64(fields, nb.FIELD_SHAPE_END)) - shape) >> 3
    memory = load_i64(obj, load_i64(fields, nb.FIELD_MEMORY))
    store_i64(out, nb.READ_SHAPE, shape)
    store_i64(out, nb.READ_STRIDES, load_i64(obj, load_i64(fields, nb.FIELD_STRIDES)))
    store_i64(out, nb.READ_STRIDE_UNIT, 1)
    store_i64(out, nb.READ_DEVICE_ID, types.int64(load_i32(memory, load_i64(fields, nb.FIELD_ORDINAL))))
    array_word(out, tag, ndim, dl.CUDA, load_i64(memory, load_i64(fields, nb.FIELD_ADDRESS)), 0)


@native
def format_tag(code, second, size):
    """Return the tag of a `struct` format character and an item size, or 0."""
    if code == 102 or code == 100 or code == 101:  # f d e
        return 2 | size << 11 | 1 << 16
    if code == 90 and (second == 102 or second == 100):  # Zf Zd
        return 5 | size << 11 | 1 << 16
    if code == 63:  # ?
        return 6 | size << 11 | 1 << 16
    if code == 98 or code == 104 or code == 105 or code == 108 or code == 113:  # b h i l q
        return size << 11 | 1 << 16
    if code == 66 or code == 72 or code == 73 or code == 76 or code == 81:  # B H I L Q
        return 1 | size << 11 | 1 << 16
    return 0


@native
def buffer_tag(buffer):
    """Return the tag of a ``Py_buffer``'s elements, or 0; the format may name the machine's own byte order."""
    form, size = load_i64(buffer, py.BUFFER_FORMAT), load_i64(buffer, py.BUFFER_ITEMSIZE)
    if form == 0:
        return 1 | 8 << 8 | 1 << 16
    first = load_u8(form, 0)
    if first == 61 or first == 64 or first == 60:  # = @ <
        form += 1
    code = load_u8(form, 0)
    if code == 0:
        return 0
    second = load_u8(form, 1)
    if second != 0 and (code != 90 or load_u8(form, 2) != 0):
        return 0
    return format_tag(types.int64(code), types.int64(second), size)


@native
def read_buffer(obj, out):
    """Read through the buffer protocol; the buffer stays exported until the reading is released."""
    buffer = out + nb.READ_BUFFER
    if get_buffer(obj, buffer, types.int32(py.PYBUF_STRIDED_FORMAT)) != 0:
        leave_to_python()
        return
    store_i64(out, nb.READ_HOLD, nb.HOLD_BUFFER)
    tag = buffer_tag(buffer)
    if tag == 0:
        return
    store_i64(out, nb.READ_SHAPE, load_i64(buffer, py.BUFFER_SHAPE))
    store_i64(out, nb.READ_STRIDES, load_i64(buffer, py.BUFFER_STRIDES))
    store_i64(out, nb.READ_STRIDE_UNIT, 1)
    store_i64(out, nb.READ_DEVICE_ID, 0)
    bits = nb.READ_ONLY if load_i32(buffer, py.BUFFER_READONLY) != 0 else 0
    bits |= load_i64(load_i64(out, nb.READ_ENTRY), nb.ENTRY_FLAGS)
    ndim = types.int64(load_i32(buffer, py.BUFFER_NDIM))
    array_word(out, tag, ndim, dl.CPU, load_i64(buffer, py.BUFFER_DATA), bits)


@native
def read_adapted(obj, entry, out, arguments):
    """Let the adapter of the type turn the object into a record's capsule, and read that."""
    store_i64(arguments, 0, obj)
    capsule = call_with(load_i64(entry, nb.ENTRY_ADAPTER), arguments, 1, 0)
    if capsule == 0:
        leave_to_python()
        return
    store_i64(out, nb.READ_HOLD, nb.HOLD_OBJECT)
    store_i64(out, nb.READ_HELD, capsule)
    read_capsule(capsule, out)
    mark_lent(out)


@native
def number(out, kind, tag, bits):
    """Store the word of a scalar."""
    store_i64(out, nb.READ_WORD, tag | kind << nb.WORD_CLASS | bits)


@native
def read_large_int(obj, out):
    """Read a Python int beyond int64."""
    value = unsigned_value(obj)
    too_big = error_occurred() != 0
    if too_big:
        clear_error()
    store_i64(out, nb.READ_INTEGER, types.int64(value))
    store_f64(out, nb.READ_REAL, double(value))
    number(out, nb.CLASS_INT, 1 | 64 << 8 | 1 << 16, nb.TOO_BIG if too_big else 0)


@native
def read_python_int(obj, out, scratch):
    """Read a Python int as int64, as uint64 where only that holds it; one beyond 64 bits is marked."""
    value = int_value(obj, scratch)
    overflow = load_i32(scratch, 0)
    if overflow > 0:
        read_large_int(obj, out)
        return
    store_i64(out, nb.READ_INTEGER, value)
    store_f64(out, nb.READ_REAL, double(value))
    number(out, nb.CLASS_INT, 0 | 64 << 8 | 1 << 16, nb.TOO_BIG if overflow < 0 else 0)


@native
def integer_at(obj, code, bits):
    """Return the integer of a NumPy scalar object, as 64 bits."""
    if bits == 8:
        return types.int64(load_u8(obj, py.SCALAR_VALUE)) if code != 0 else types.int64(load_i8(obj, py.SCALAR_VALUE))
    if bits == 16:
        return types.int64(load_u16(obj, py.SCALAR_VALUE)) if code != 0 else types.int64(load_i16(obj, py.SCALAR_VALUE))
    if bits == 32:
        return types.int64(load_u32(obj, py.SCALAR_VALUE)) if code != 0 else types.int64(load_i32(obj, py.SCALAR_VALUE))
    return load_i64(obj, py.SCALAR_VALUE)


@native
def read_numpy_scalar(obj, entry, out):
    """Read a NumPy scalar object; its dtype is binding, so the word is marked strong."""
    tag = load_i64(entry, nb.ENTRY_FUNCTION)
    code, bits = tag & 0xFF, tag >> 8 & 0xFF
    if bits == 0:  # a NumPy scalar that is no number: text, time, a record
        return
    if code == 2 and bits >= 32:
        real = load_f64(obj, py.SCALAR_VALUE) if bits == 64 else double(load_f32(obj, py.SCALAR_VALUE))
        store_f64(out, nb.READ_REAL, real)
        number(out, nb.CLASS_FLOAT, tag, nb.STRONG)
    elif code == 5:
        wide = bits == 128
        real = load_f64(obj, py.SCALAR_VALUE) if wide else double(load_f32(obj, py.SCALAR_VALUE))
        imaginary = load_f64(obj, py.SCALAR_VALUE + 8) if wide else double(load_f32(obj, py.SCALAR_VALUE + 4))
        store_f64(out, nb.READ_REAL, real)
        store_f64(out, nb.READ_IMAGINARY, imaginary)
        number(out, nb.CLASS_COMPLEX, tag, nb.STRONG)
    elif code == 6 or code <= 1:
        value = integer_at(obj, code, bits)
        store_i64(out, nb.READ_INTEGER, value)
        # An unsigned value beyond int64 is only right for a parameter of its own type.
        real = double(types.uint64(value)) if code == 1 else double(value)
        store_f64(out, nb.READ_REAL, real)
        number(out, nb.CLASS_BOOL if code == 6 else nb.CLASS_INT, tag, nb.STRONG)


@native
def read_python_scalar(obj, kind, out, scratch):
    """Read a Python float, int, bool or complex."""
    if kind == nb.PY_FLOAT:
        store_f64(out, nb.READ_REAL, float_value(obj))
        number(out, nb.CLASS_FLOAT, 2 | 64 << 8 | 1 << 16, 0)
    elif kind == nb.PY_INT:
        read_python_int(obj, out, scratch)
    elif kind == nb.PY_BOOL:
        value = 1 if obj == python_true() else 0
        store_i64(out, nb.READ_INTEGER, value)
        store_f64(out, nb.READ_REAL, double(value))
        number(out, nb.CLASS_BOOL, 6 | 8 << 8 | 1 << 16, 0)
    else:
        store_f64(out, nb.READ_REAL, complex_real(obj))
        store_f64(out, nb.READ_IMAGINARY, complex_imaginary(obj))
        number(out, nb.CLASS_COMPLEX, 5 | 128 << 8 | 1 << 16, 0)


@native
def read(obj, out, scratch):
    """Read the object at `obj` into the reading at `out`; `scratch` is a `DLTensor`'s room that outlives the reading."""
    store_i64(out, nb.READ_WORD, 0)
    store_i64(out, nb.READ_HOLD, nb.HOLD_NOTHING)
    store_i64(out, nb.READ_IMPLEMENTATION, 0)
    store_i64(out, nb.READ_STREAM, nb.NO_STREAM)
    store_i64(out, nb.READ_OWNER, 0)
    entry = entry_of(load_i64(obj, py.OBJECT_TYPE))
    store_i64(out, nb.READ_ENTRY, entry)
    store_i64(out, nb.READ_STREAM_ENTRY, entry)
    if entry == 0:
        return
    kind = load_i64(entry, nb.ENTRY_KIND)
    if kind == nb.EXCHANGE:
        read_exchange(obj, entry, out, scratch)
    elif kind == nb.NUMPY:
        read_numpy(obj, out)
    elif kind == nb.BUFFER:
        read_buffer(obj, out)
    elif kind == nb.RECORD:
        capsule = load_i64(obj, load_i64(entry, nb.ENTRY_FUNCTION))
        if capsule != 0:
            read_capsule(capsule, out)
    elif kind == nb.CAPSULE:
        read_capsule(obj, out)
    elif kind == nb.FIELDS:
        read_fields(obj, load_i64(entry, nb.ENTRY_FUNCTION), out)
    elif kind == nb.NUMPY_SCALAR:
        read_numpy_scalar(obj, entry, out)
    elif kind >= nb.PY_FLOAT:
        read_python_scalar(obj, kind, out, scratch)
    # A buffer that could not be had, or of a dtype without a format, may still have an adapter.
    if load_i64(out, nb.READ_WORD) == 0 and load_i64(entry, nb.ENTRY_ADAPTER) != 0:
        release(out)
        read_adapted(obj, entry, out, scratch)


@native
def count_version(entry, implementation):
    """Count up the version that a tensor's framework keeps, if it does, so that its autograd sees a write."""
    where = load_i64(entry, nb.ENTRY_VERSION)
    counter = load_i64(implementation, where) if where != 0 else 0
    if counter != 0:
        at = load_i64(entry, nb.ENTRY_COUNTER)
        store_u32(counter, at, types.uint32(load_u32(counter, at) + 1))


@native
def count_version_behind(owner):
    """Count up the version of the tensor, if it is one, from which memory is taken, by one record or by several in turn."""
    tensor = root(owner)
    entry = entry_of(load_i64(tensor, py.OBJECT_TYPE))
    chain = load_i64(entry, nb.ENTRY_IMPLEMENTATION) if entry != 0 else 0
    implementation = load_i64(tensor, chain) if chain != 0 else 0
    if implementation != 0:
        count_version(entry, implementation)


@native
def release(out):
    """Give back what a reading holds."""
    hold = load_i64(out, nb.READ_HOLD)
    if hold == nb.HOLD_BUFFER:
        release_buffer(out + nb.READ_BUFFER)
    elif hold == nb.HOLD_OBJECT:
        decrease(load_i64(out, nb.READ_HELD))
    store_i64(out, nb.READ_HOLD, nb.HOLD_NOTHING)
