"""Compiled: the handler that XLA calls, from a call frame to the kernel's loop. No Python runs on this road, nor is the GIL held.

`handle` reads the words of its call site, finds the kernel's code by its key, lays buffers and scalars out as Numba values,
and runs the same loop as an ordinary launch, on the same threads. A batch (`jax.vmap`) is a loop around that, in which an
argument whose extent is 1 stays where it is: no kernel ever sees a batch axis. What is wrong with a call is explained by a
Python function (`ROOM_REPORT`), which is also asked for code that this process has not loaded yet.

Source of the layouts: `call_frame_layout`, `words_layout` and, for values, geometry and threads, the launcher's `table_layout`.
Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from numba import types

from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import words_layout as nb
from numbridge.kernels.native import table_layout as core
from numbridge.kernels.native.entry import share
from numbridge.kernels.native.extents import long_enough
from numbridge.kernels.native.memory import (
    external,
    function_symbol,
    indirect,
    inlined,
    load_i8,
    load_i32,
    load_i64,
    native,
    stack,
    store_i8,
    store_i32,
    store_i64,
    store_u32,
    symbol,
    text,
)

EXPORTS = {
    "numbridge_xla_piece": ("piece", "void(int64, int64, int64, int64)"),
    "numbridge_xla_handle": ("handle", "int64(int64)"),
}

intp = types.int64
state = symbol("numbridge_state")
room = symbol("numbridge_xla_room")
piece_address = function_symbol("numbridge_xla_piece")
copy_bytes = external("memcpy", intp, intp, intp, intp)
fill_bytes = external("memset", intp, intp, types.int32, intp)
initialized = external("Py_IsInitialized", types.int32)
hold_gil = external("PyGILState_Ensure", types.int32)
drop_gil = external("PyGILState_Release", types.void, types.int32)
from_int = external("PyLong_FromLongLong", intp, intp)
to_address = external("PyLong_AsVoidPtr", intp, intp)
clear_error = external("PyErr_Clear", types.void)
decrease = external("Py_DecRef", types.void, intp)
call_with = external("PyObject_Vectorcall", intp, intp, intp, intp, intp)
acquire = external("PyThread_acquire_lock", types.int32, intp, types.int32)
release_lock = external("PyThread_release_lock", types.void, intp)
run_range = indirect(types.int64, 4)
thread_count = indirect(types.int32, 0)
parallel_for = indirect(types.void, 8)
create_error = indirect(types.int64, 1)

frame_extension, frame_api = xla.XLA_FFI_CallFrame.extension_start.offset, xla.XLA_FFI_CallFrame.api.offset
frame_stage = xla.XLA_FFI_CallFrame.stage.offset
args_size = xla.XLA_FFI_CallFrame.args.offset + xla.XLA_FFI_Args.size.offset
args_array = xla.XLA_FFI_CallFrame.args.offset + xla.XLA_FFI_Args.args.offset
rets_size = xla.XLA_FFI_CallFrame.rets.offset + xla.XLA_FFI_Rets.size.offset
rets_array = xla.XLA_FFI_CallFrame.rets.offset + xla.XLA_FFI_Rets.rets.offset
attrs_size = xla.XLA_FFI_CallFrame.attrs.offset + xla.XLA_FFI_Attrs.size.offset
attrs_types = xla.XLA_FFI_CallFrame.attrs.offset + xla.XLA_FFI_Attrs.types.offset
attrs_array = xla.XLA_FFI_CallFrame.attrs.offset + xla.XLA_FFI_Attrs.attrs.offset
array_type, array_size = xla.XLA_FFI_Array.dtype.offset, xla.XLA_FFI_Array.size.offset
array_data = xla.XLA_FFI_Array.data.offset
buffer_type, buffer_data = xla.XLA_FFI_Buffer.dtype.offset, xla.XLA_FFI_Buffer.data.offset
buffer_rank, buffer_dims = xla.XLA_FFI_Buffer.rank.offset, xla.XLA_FFI_Buffer.dims.offset
extension_type, extension_next = xla.XLA_FFI_InternalExtension.type.offset, xla.XLA_FFI_InternalExtension.next.offset
extension_metadata = xla.XLA_FFI_Metadata_Extension.metadata.offset
metadata_major = xla.XLA_FFI_Metadata.api_version.offset + xla.XLA_FFI_Api_Version.major_version.offset
metadata_minor = xla.XLA_FFI_Metadata.api_version.offset + xla.XLA_FFI_Api_Version.minor_version.offset
metadata_traits = xla.XLA_FFI_Metadata.traits.offset
# Up to the last field that is read or written; a newer header may add fields behind it.
metadata_known, frame_known = metadata_traits + 4, xla.XLA_FFI_CallFrame.future.offset
error_create = xla.XLA_FFI_Api.XLA_FFI_Error_Create.offset
error_message, error_code = xla.XLA_FFI_Error_Create_Args.message.offset, xla.XLA_FFI_Error_Create_Args.errc.offset
error_size = error_code + 4

ATTRIBUTES = 2  # "kernel", for people, and "words"; XLA sorts them by name


@inlined
def buffer_at(array, index):
    """Return the buffer at a position of a frame's arguments or results."""
    return load_i64(array, 8 * index)


@inlined
def words_of(frame):
    """Return the words of the call site, or 0 if they are not numbridge's."""
    if load_i64(frame, attrs_size) != ATTRIBUTES or load_i32(load_i64(frame, attrs_types), 4) != xla.ATTRIBUTE_ARRAY:
        return 0
    array = load_i64(load_i64(frame, attrs_array), 8)
    words, count = load_i64(array, array_data), load_i64(array, array_size)
    if load_i32(array, array_type) != xla.CODE_INT64 or count < nb.WORD_PARAMETERS // 8:
        return 0
    parameters = load_i64(words, nb.WORD_COUNT)
    if load_i64(words, nb.WORD_MAGIC) != nb.WORDS_MAGIC or load_i64(words, nb.WORD_LENGTH) != count:
        return 0
    return words if count >= (nb.WORD_PARAMETERS + parameters * nb.SLOT_SIZE) // 8 else 0


@inlined
def find_code(table, low, high):
    """Return the code of the kernel with a key, or 0."""
    mask = load_i64(table, nb.INDEX_MASK)
    slot = low & mask
    while True:
        code = load_i64(table, nb.INDEX_SLOTS + 8 * slot)
        if code == 0 or (load_i64(code, nb.CODE_KEY) == low and load_i64(code, nb.CODE_KEY_HIGH) == high):
            return code
        slot = (slot + 1) & mask


@inlined
def dimension(words, args, k):
    """Return a launch dimension, which is a number or the extent of an operand."""
    value = load_i64(words, nb.WORD_DIMS + 8 * k)
    if value >= 0:
        return value
    place = -1 - value
    buffer = buffer_at(args, place >> nb.REFERENCE_SHIFT)
    return load_i64(load_i64(buffer, buffer_dims), 8 * (place & nb.REFERENCE_MASK))


@inlined
def lay_out_geometry(words, args, geometry):
    """Write dimensions, block and grid as a variant wants them; return the number of threads."""
    rank, total, base = load_i64(words, nb.WORD_RANK), 1, core.PLAN_DIMS
    for k in range(rank):
        extent = dimension(words, args, k)
        store_i64(geometry, 8 * k, extent)
        total *= extent
    for k in range(rank, core.MAX_DIMS):
        store_i64(geometry, 8 * k, 0)
    for k in range(3):
        block, grid = load_i64(words, nb.WORD_BLOCK + 8 * k), load_i64(words, nb.WORD_GRID + 8 * k)
        # A division takes as long as the rest of this function, so the grid comes along where it can.
        if grid == 0:
            grid = (load_i64(geometry, 8 * k) + block - 1) // block
        store_i64(geometry, core.PLAN_BLOCK - base + 8 * k, block)
        store_i64(geometry, core.PLAN_GRID - base + 8 * k, grid)
    store_i64(geometry, core.PLAN_SHARED - base, 0)
    return total


@inlined
def lay_out_array(buffer, levels, ndim, itemsize, target):
    """Write a buffer as the value of a Numba array, leaving out its batch axes; return its size in bytes."""
    dims, count = load_i64(buffer, buffer_dims) + 8 * levels, 1
    store_i64(target, 0, 0)
    store_i64(target, 8, 0)
    store_i64(target, core.VALUE_ITEMSIZE, itemsize)
    store_i64(target, core.VALUE_DATA, load_i64(buffer, buffer_data))
    for k in range(ndim - 1, -1, -1):
        extent = load_i64(dims, 8 * k)
        store_i64(target, core.VALUE_SHAPE + 8 * k, extent)
        store_i64(target, core.VALUE_SHAPE + 8 * (ndim + k), count * itemsize)
        count *= extent
    store_i64(target, core.VALUE_COUNT, count)
    return count * itemsize


@inlined
def check_buffer(buffer, kind, rank):
    """Return what is wrong with a buffer's type, or DONE."""
    if load_i32(buffer, buffer_type) != kind:
        return nb.WRONG_TYPE
    return nb.DONE if load_i64(buffer, buffer_rank) == rank else nb.WRONG_RANK


@native
def copy_scalar(target, source, size):
    """Copy a scalar of up to 16 bytes."""
    for k in range(size):
        store_i8(target, k, load_i8(source, k))


@native
def lay_out_row(row, buffer, levels, extents, size, result):
    """Write how far apart the batch elements of a buffer are; return DONE or WRONG_DIMS."""
    dims, step = load_i64(buffer, buffer_dims), size
    for level in range(levels - 1, -1, -1):
        extent, wanted = load_i64(dims, 8 * level), load_i64(extents, 8 * level)
        if extent != wanted and (extent != 1 or result):
            return nb.WRONG_DIMS
        store_i64(row, nb.ROW_STRIDES + 8 * level, 0 if extent == 1 else step)
        step *= extent
    return nb.DONE


@inlined
def prepare_result(slot, buffer, args, levels, extents, size):
    """Give a result its first contents: those of the operand that it stands for, zeros, or nothing."""
    total = size
    for level in range(levels):
        total *= load_i64(extents, 8 * level)
    alias = load_i64(slot, nb.SLOT_ALIAS)
    data = load_i64(buffer, buffer_data)
    if alias >= 0:
        source = load_i64(buffer_at(args, alias), buffer_data)
        if source != data and total > 0:
            copy_bytes(data, source, total)
    elif load_i64(slot, nb.SLOT_FILL) != 0 and total > 0:
        fill_bytes(data, types.int32(0), total)


@inlined
def rank_of(slot):
    """Return the rank of a parameter, without the dimensions of its elements."""
    return load_i64(slot, nb.SLOT_NDIM) & nb.RANK_MASK


@inlined
def buffer_of(slot, args, rets):
    """Return the buffer that a parameter comes from."""
    index = load_i64(slot, nb.SLOT_INDEX)
    return buffer_at(rets if load_i64(slot, nb.SLOT_KIND) == nb.RESULT else args, index)


@inlined
def lay_out_buffer(slot, args, rets, levels, extents, target, row):
    """Write one parameter that comes from a buffer; return DONE or what is wrong."""
    kind, ndim = load_i64(slot, nb.SLOT_KIND), rank_of(slot)
    itemsize, buffer = load_i64(slot, nb.SLOT_ITEMSIZE), buffer_of(slot, args, rets)
    inner = load_i64(slot, nb.SLOT_NDIM) >> nb.INNER_SHIFT
    wrong = check_buffer(buffer, load_i64(slot, nb.SLOT_TYPE), levels + ndim + inner)
    if wrong != nb.DONE:
        return wrong
    size = itemsize
    if kind == nb.TRACED:
        copy_scalar(target, load_i64(buffer, buffer_data), itemsize)
    else:
        size = lay_out_array(buffer, levels, ndim, itemsize, target)
    if levels > 0:
        store_i64(row, nb.ROW_TARGET, 0)
        store_i64(row, nb.ROW_BASE, load_i64(buffer, buffer_data))
        store_i64(row, nb.ROW_BYTES, itemsize if kind == nb.TRACED else 0)
        wrong = lay_out_row(row, buffer, levels, extents, size, kind == nb.RESULT)
    if kind == nb.RESULT and wrong == nb.DONE:
        prepare_result(slot, buffer, args, levels, extents, size)
    return wrong


@inlined
def lay_out_packed(slot, args, target):
    """Copy a scalar out of the operand into which an eager call packs all of its own; return DONE or what is wrong."""
    buffer = buffer_at(args, 0)
    wrong = check_buffer(buffer, xla.CODE_UINT32, 1)
    if wrong == nb.DONE:
        offset = load_i64(slot, nb.SLOT_INDEX) * nb.SCALAR_ROOM
        if 4 * load_i64(load_i64(buffer, buffer_dims), 0) < offset + nb.SCALAR_ROOM:
            return nb.WRONG_DIMS
        copy_scalar(target, load_i64(buffer, buffer_data) + offset, nb.SCALAR_ROOM)
    return wrong


@inlined
def lay_out_static(words, slot, target):
    """Write a parameter that the words hold; return how many bytes it takes, or 0 if they do not hold it."""
    size = load_i64(slot, nb.SLOT_ITEMSIZE)
    if load_i64(slot, nb.SLOT_NDIM) == 0:
        store_i64(target, 0, load_i64(slot, nb.SLOT_VALUE))
        store_i64(target, 8, load_i64(slot, nb.SLOT_VALUE + 8))
    else:
        place = load_i64(slot, nb.SLOT_VALUE)
        if place + size > 8 * load_i64(words, nb.WORD_LENGTH):
            return 0
        copy_bytes(target, words + place, size)
    return (size + 15) & ~15


@inlined
def lay_out(words, args, rets, levels, extents, block, rows, row_size):
    """Write all parameters into the block and, for a batch, its rows; return DONE, or what is wrong with which one."""
    offset, row = 0, rows
    for k in range(load_i64(words, nb.WORD_COUNT)):
        slot, target = words + nb.WORD_PARAMETERS + k * nb.SLOT_SIZE, block + offset
        kind, wrong, size = load_i64(slot, nb.SLOT_KIND), nb.DONE, nb.SCALAR_ROOM
        if kind == nb.STATIC:
            size = lay_out_static(words, slot, target)
            wrong = nb.DONE if size > 0 else nb.WRONG_DIMS
        elif kind == nb.PACKED:
            wrong = lay_out_packed(slot, args, target)
        else:
            wrong = lay_out_buffer(slot, args, rets, levels, extents, target, row)
            bytes_of = load_i64(slot, nb.SLOT_ITEMSIZE) if kind == nb.TRACED else 8 * (5 + 2 * rank_of(slot))
            size = (bytes_of + 15) & ~15
            if levels > 0:
                store_i64(row, nb.ROW_TARGET, offset + (0 if kind == nb.TRACED else core.VALUE_DATA))
                row += row_size
        if wrong != nb.DONE:
            return wrong | k << 8
        offset += size
    return nb.DONE


@inlined
def count_rows(words):
    """Return how many parameters come from buffers."""
    count = 0
    for k in range(load_i64(words, nb.WORD_COUNT)):
        kind = load_i64(words, nb.WORD_PARAMETERS + k * nb.SLOT_SIZE + nb.SLOT_KIND)
        count += 1 if kind != nb.STATIC and kind != nb.PACKED else 0
    return count


@native
def move_to(call, block, element):
    """Point the block at one element of the batch."""
    levels, extents = load_i64(call, nb.CALL_LEVELS), load_i64(call, nb.CALL_EXTENTS)
    row = load_i64(call, nb.CALL_ROWS)
    for _ in range(load_i64(call, nb.CALL_COUNT)):
        rest, at = element, load_i64(row, nb.ROW_BASE)
        for level in range(levels - 1, -1, -1):
            extent = load_i64(extents, 8 * level)
            at += rest % extent * load_i64(row, nb.ROW_STRIDES + 8 * level)
            rest //= extent
        target, size = block + load_i64(row, nb.ROW_TARGET), load_i64(row, nb.ROW_BYTES)
        if size == 0:
            store_i64(target, 0, at)
        else:
            copy_scalar(target, at, size)
        row += load_i64(call, nb.CALL_ROW_SIZE)


@native
def run_batch(call, first, last):
    """Run threads `first` to `last` of all batch elements, one after the other; return what a raising kernel left."""
    size, per = load_i64(call, nb.CALL_BLOCK_SIZE), load_i64(call, nb.CALL_PER)
    block, geometry = stack(size), load_i64(call, nb.CALL_GEOMETRY)
    copy_bytes(block, load_i64(call, nb.CALL_BLOCK), size)
    element, failed = first // per, 0
    while first < last and failed == 0:
        start = element * per
        stop = min(last, start + per)
        move_to(call, block, element)
        failed = run_range(load_i64(call, nb.CALL_RUN), block, geometry, first - start, stop - start)
        first, element = stop, element + 1
    return failed


@native
def run_span(call, first, last):
    """Run a share of a call."""
    if load_i64(call, nb.CALL_LEVELS) != 0:
        return run_batch(call, first, last)
    block, geometry = load_i64(call, nb.CALL_BLOCK), load_i64(call, nb.CALL_GEOMETRY)
    return run_range(load_i64(call, nb.CALL_RUN), block, geometry, first, last)


@native
def piece(arguments, dims, steps, call):
    """Run the share of a call that the threading layer hands to one of its threads."""
    grain, total = load_i64(call, nb.CALL_GRAIN), load_i64(call, nb.CALL_TOTAL)
    first = load_i64(arguments, 0) * grain
    failed = run_span(call, first, min(first + load_i64(dims, 0) * grain, total))
    if failed != 0:
        store_i64(call, nb.CALL_FAILED, failed)


@native
def run_shared(call, shares):
    """Run a call on the threading layer's threads, in such shares as `CODE_GRAIN` tells."""
    threads = types.int64(thread_count(load_i64(state(), core.STATE_THREAD_COUNT)))
    total = load_i64(call, nb.CALL_TOTAL)
    grain = share(total, threads, shares)
    dims, steps, arguments = stack(16), stack(16), stack(16)
    store_i64(call, nb.CALL_GRAIN, grain)
    store_i64(dims, 0, (total + grain - 1) // grain)
    store_i64(steps, 0, 1)
    store_i64(arguments, 0, 0)
    lock = load_i64(state(), core.STATE_LOCK)
    if lock != 0:
        acquire(lock, types.int32(1))
    layer = load_i64(state(), core.STATE_PARALLEL_FOR)
    parallel_for(layer, piece_address(), arguments, dims, steps, call, 0, 1, threads)
    if lock != 0:
        release_lock(lock)
    return load_i64(call, nb.CALL_FAILED)


@inlined
def run(call, code):
    """Run a call that has been laid out."""
    total = load_i64(call, nb.CALL_TOTAL)
    if total <= 0:
        return 0
    if total < load_i64(code, nb.CODE_SERIAL_BELOW) or load_i64(state(), core.STATE_PARALLEL_FOR) == 0:
        return run_span(call, 0, total)
    return run_shared(call, load_i64(code, nb.CODE_GRAIN))


@inlined
def read_extents(rets, levels, extents):
    """Write the batch's extents, which every result has in front; return how many elements it has, or -1."""
    elements, first = 1, buffer_at(rets, 0)
    if load_i64(first, buffer_rank) < levels:
        return -1
    for level in range(levels):
        extent = load_i64(load_i64(first, buffer_dims), 8 * level)
        store_i64(extents, 8 * level, extent)
        elements *= extent
    return elements


@native
def batch_of_numbers(call):
    """Tell whether a scalar is another one for each element of the batch."""
    row = load_i64(call, nb.CALL_ROWS)
    for _ in range(load_i64(call, nb.CALL_COUNT)):
        if load_i64(row, nb.ROW_BYTES) != 0:
            for level in range(load_i64(call, nb.CALL_LEVELS)):
                if load_i64(row, nb.ROW_STRIDES + 8 * level) != 0:
                    return True
        row += load_i64(call, nb.CALL_ROW_SIZE)
    return False


@native
def first_short(call, code, elements):
    """Return the first element of a batch of which a thread is sure to go beyond the end of an array, or -1."""
    rows, count = load_i64(code, nb.CODE_REACHES), load_i64(code, nb.CODE_REACH_COUNT)
    block, geometry = load_i64(call, nb.CALL_BLOCK), load_i64(call, nb.CALL_GEOMETRY)
    # Extents are the same for all.
    for element in range(elements if batch_of_numbers(call) else min(elements, 1)):
        move_to(call, block, element)
        if not long_enough(rows, count, block, geometry):
            return element
    return -1


@inlined
def execute(frame, asks):
    """Answer a call; return DONE or what kept it from running, with a number above the lowest byte.

    With `asks`, arrays must be long enough where the call alone tells.
    """
    words = words_of(frame)
    if words == 0:
        return nb.WRONG_WORDS
    low, high = load_i64(words, nb.WORD_KEY), load_i64(words, nb.WORD_KEY_HIGH)
    code = find_code(load_i64(room(), nb.ROOM_TABLE), low, high)
    if code == 0:
        return nb.UNKNOWN_KERNEL
    if load_i64(frame, args_size) != load_i64(words, nb.WORD_OPERANDS):
        return nb.WRONG_COUNT
    if load_i64(frame, rets_size) != load_i64(words, nb.WORD_RESULTS):
        return nb.WRONG_COUNT
    args, rets = load_i64(frame, args_array), load_i64(frame, rets_array)
    levels, size = load_i64(words, nb.WORD_LEVELS), load_i64(code, nb.CODE_BLOCK_SIZE)
    block, geometry, call = stack(size), stack(core.PLAN_SIZE - core.PLAN_DIMS), stack(nb.CALL_SIZE)
    count, row_size = (count_rows(words) if levels > 0 else 0), nb.ROW_STRIDES + 8 * levels
    extents, rows = stack(8 * levels + 8), stack(count * row_size + 8)
    per, elements = lay_out_geometry(words, args, geometry), read_extents(rets, levels, extents)
    if elements < 0:
        return nb.WRONG_RANK
    outcome = lay_out(words, args, rets, levels, extents, block, rows, row_size)
    if outcome != nb.DONE:
        return outcome
    store_i64(call, nb.CALL_RUN, load_i64(code, nb.CODE_RUN))
    store_i64(call, nb.CALL_BLOCK, block)
    store_i64(call, nb.CALL_BLOCK_SIZE, size)
    store_i64(call, nb.CALL_GEOMETRY, geometry)
    store_i64(call, nb.CALL_PER, per)
    store_i64(call, nb.CALL_TOTAL, per * elements)
    store_i64(call, nb.CALL_FAILED, 0)
    store_i64(call, nb.CALL_LEVELS, levels)
    store_i64(call, nb.CALL_EXTENTS, extents)
    store_i64(call, nb.CALL_COUNT, count)
    store_i64(call, nb.CALL_ROWS, rows)
    store_i64(call, nb.CALL_ROW_SIZE, row_size)
    if load_i64(words, nb.WORD_UNKNOWN) & load_i64(code, nb.CODE_DECIDES) != 0 and asks and per > 0:
        short = first_short(call, code, elements)
        if short >= 0:
            return nb.TOO_SHORT | short << 8
    return nb.DONE if run(call, code) == 0 else nb.RAISED


@native
def answer_metadata(extension, traits):
    """Tell XLA which version of the interface this handler was made for, and what it may do with it."""
    while extension != 0:
        if load_i32(extension, extension_type) == xla.EXTENSION_METADATA:
            metadata = load_i64(extension, extension_metadata)
            if load_i64(metadata, 0) >= metadata_known:
                store_i32(metadata, metadata_major, types.int32(load_i64(room(), nb.ROOM_MAJOR)))
                store_i32(metadata, metadata_minor, types.int32(load_i64(room(), nb.ROOM_MINOR)))
                store_u32(metadata, metadata_traits, types.uint32(traits))
            return True
        extension = load_i64(extension, extension_next)
    return False


@native
def plain_error(frame, message):
    """Return an XLA error with a constant text."""
    arguments = stack(error_size + 4)
    store_i64(arguments, 0, error_size)
    store_i64(arguments, 8, 0)
    store_i64(arguments, error_message, message)
    store_i32(arguments, error_code, types.int32(xla.INTERNAL))
    return create_error(load_i64(load_i64(frame, frame_api), error_create), arguments)


@native
def report(frame, outcome):
    """Ask Python: return the XLA error that it made, or 0 if it could mend what was missing."""
    if initialized() == 0:
        return plain_error(frame, text("numbridge: Python has ended, so this call cannot be explained"))
    gil, arguments = hold_gil(), stack(16)
    store_i64(arguments, 0, from_int(frame))
    store_i64(arguments, 8, from_int(outcome))
    answer, error = call_with(load_i64(room(), nb.ROOM_REPORT), arguments, 2, 0), 0
    decrease(load_i64(arguments, 0))
    decrease(load_i64(arguments, 8))
    if answer != 0:
        error = to_address(answer)
        decrease(answer)
    else:
        clear_error()
    drop_gil(gil)
    return error if answer != 0 else plain_error(frame, text("numbridge: a call failed, and so did its explanation"))


@inlined
def is_answered(frame, traits, error):
    """Answer what is no execution; tell whether that was it, with XLA's error, or 0, in `error`."""
    extension = load_i64(frame, frame_extension)
    store_i64(error, 0, 0)
    if extension != 0 and answer_metadata(extension, traits):
        return True
    if load_i64(frame, 0) < frame_known:
        message = text("numbridge: XLA's call frame is smaller than the header that numbridge knows")
        store_i64(error, 0, plain_error(frame, message))
        return True
    return load_i32(frame, frame_stage) != xla.STAGE_EXECUTE


@native
def try_again(frame, outcome):
    """Ask Python about an execution that has not been done, and repeat it if it may be; return XLA's error, or 0."""
    asks = True
    # Code that is missing is compiled once, and extents that wrap around are looked at once.
    for _ in range(2):
        error = report(frame, outcome)
        if error != 0:
            return error
        asks = asks and outcome & 0xFF != nb.TOO_SHORT
        outcome = execute(frame, asks)
        if outcome == nb.DONE:
            return 0
    return report(frame, outcome)


@inlined
def answer(frame):
    """Answer an execution; return XLA's error, or 0."""
    outcome = execute(frame, True)
    return 0 if outcome == nb.DONE else try_again(frame, outcome)


@native
def handle(frame):
    """The handler: ``XLA_FFI_Error* handle(XLA_FFI_CallFrame*)``."""
    error = stack(8)
    return load_i64(error, 0) if is_answered(frame, xla.COMMAND_BUFFER_COMPATIBLE, error) else answer(frame)
