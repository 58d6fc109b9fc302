"""Compiled: the handler that XLA calls on CUDA, from a call frame to ``cuLaunchKernel`` on XLA's stream.

The same words as on the CPU (see `compiled`), with three differences. Everything goes to the stream that XLA names, and nothing
waits for it, so XLA may record the call into a command buffer. Scalars that are data lie in device memory, so the kernel was
compiled to read them there (*by reference*), and the code of a kernel is found by its key and by which ones these are. A batch is
one launch of code that was compiled for its number of axes; where a kernel does not allow that, one for each element.

Functions of the driver: CUDA Driver API (cuda.h), ``cuLaunchKernel``, ``cuMemcpyDtoDAsync``, ``cuMemsetD8Async``,
``cuCtxGetCurrent``, ``cuCtxPushCurrent``, ``cuCtxPopCurrent``. Importing this module imports Numba.
"""

from __future__ import annotations

from numba import types

from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.compiled import (
    args_array,
    args_size,
    buffer_at,
    buffer_data,
    buffer_dims,
    buffer_of,
    check_buffer,
    count_rows,
    find_code,
    frame_api,
    is_answered,
    lay_out_array,
    lay_out_geometry,
    lay_out_row,
    lay_out_static,
    move_to,
    rank_of,
    read_extents,
    report,
    rets_array,
    rets_size,
    room,
    state,
    words_of,
)
from numbridge.kernels.native import table_layout as core
from numbridge.kernels.native.cuda_entry import blocks_along
from numbridge.kernels.native.memory import indirect, inlined, load_i32, load_i64, native, stack, store_i64

EXPORTS = {"numbridge_xla_handle_cuda": ("handle", "int64(int64)")}

call_one = indirect(types.int32, 1)
call_memory = indirect(types.int32, 4)
call_launch = indirect(types.int32, 11)
call_api = indirect(types.int64, 1)

frame_context = xla.XLA_FFI_CallFrame.ctx.offset
stream_get = xla.XLA_FFI_Api.XLA_FFI_Stream_Get.offset
ordinal_get = xla.XLA_FFI_Api.XLA_FFI_DeviceOrdinal_Get.offset
question_context, answer_place = xla.XLA_FFI_Stream_Get_Args.ctx.offset, xla.XLA_FFI_Stream_Get_Args.stream.offset
question_size = answer_place + 8

SCALAR_AS_ARRAY = 64


@inlined
def ask(frame, function, question):
    """Ask XLA for something of the context, which is then in the question; return its error, or 0."""
    store_i64(question, 0, question_size)
    store_i64(question, 8, 0)
    store_i64(question, question_context, load_i64(frame, frame_context))
    store_i64(question, answer_place, 0)
    return call_api(load_i64(load_i64(frame, frame_api), function), question)


@inlined
def references(words):
    """Return which parameters are scalars in device memory, as bits."""
    mask = 0
    for k in range(load_i64(words, nb.WORD_COUNT)):
        kind = load_i64(words, nb.WORD_PARAMETERS + k * nb.SLOT_SIZE + nb.SLOT_KIND)
        if kind == nb.TRACED or kind == nb.PACKED:
            mask |= 1 << k
    return mask


@inlined
def code_of(words):
    """Return the code of a call site's kernel, or 0."""
    low = load_i64(words, nb.WORD_KEY) ^ load_i64(words, nb.WORD_LEVELS)
    high = load_i64(words, nb.WORD_KEY_HIGH) ^ references(words)
    return find_code(load_i64(room(), nb.ROOM_CUDA_TABLE), low, high)


@inlined
def lay_out_reference(address, itemsize, target):
    """Write a scalar in device memory as the value of a Numba array of one element."""
    store_i64(target, 0, 0)
    store_i64(target, 8, 0)
    store_i64(target, core.VALUE_COUNT, 1)
    store_i64(target, core.VALUE_ITEMSIZE, itemsize)
    store_i64(target, core.VALUE_DATA, address)
    store_i64(target, core.VALUE_SHAPE, 1)
    store_i64(target, core.VALUE_SHAPE + 8, itemsize)


@native
def prepare_result(slot, buffer, args, levels, extents, size, stream):
    """Give a result its first contents, in the order of the stream; return the CUresult."""
    total = size
    for level in range(levels):
        total *= load_i64(extents, 8 * level)
    alias, data = load_i64(slot, nb.SLOT_ALIAS), load_i64(buffer, buffer_data)
    if total <= 0:
        return types.int32(0)
    if alias >= 0:
        source = load_i64(buffer_at(args, alias), buffer_data)
        return (
            call_memory(load_i64(room(), nb.ROOM_COPY), data, source, total, stream)
            if source != data
            else types.int32(0)
        )
    if load_i64(slot, nb.SLOT_FILL) != 0:
        return call_memory(load_i64(room(), nb.ROOM_FILL), data, 0, total, stream)
    return types.int32(0)


@native
def lay_out_buffer(slot, args, rets, levels, extents, target, row, stream):
    """Write one parameter that comes from a buffer; return DONE or what is wrong."""
    kind, ndim = load_i64(slot, nb.SLOT_KIND), rank_of(slot)
    itemsize, buffer = load_i64(slot, nb.SLOT_ITEMSIZE), buffer_of(slot, args, rets)
    inner = load_i64(slot, nb.SLOT_NDIM) >> nb.INNER_SHIFT
    wrong = check_buffer(buffer, load_i64(slot, nb.SLOT_TYPE), levels + ndim + inner)
    if wrong != nb.DONE:
        return wrong
    size = itemsize
    if kind == nb.TRACED:
        lay_out_reference(load_i64(buffer, buffer_data), itemsize, target)
    else:
        size = lay_out_array(buffer, levels, ndim, itemsize, target)
    if levels > 0:
        store_i64(row, nb.ROW_BASE, load_i64(buffer, buffer_data))
        store_i64(row, nb.ROW_BYTES, 0)
        wrong = lay_out_row(row, buffer, levels, extents, size, kind == nb.RESULT)
    if kind == nb.RESULT and wrong == nb.DONE:
        failed = types.int64(prepare_result(slot, buffer, args, levels, extents, size, stream))
        if failed != 0:
            return nb.DRIVER_REFUSED | failed << 8
    return wrong


@inlined
def lay_out_packed(slot, args, target):
    """Write a scalar of an eager call, which lies in the operand into which all of them are packed."""
    buffer = buffer_at(args, 0)
    wrong = check_buffer(buffer, xla.CODE_UINT32, 1)
    if wrong == nb.DONE:
        offset = load_i64(slot, nb.SLOT_INDEX) * nb.SCALAR_ROOM
        if 4 * load_i64(load_i64(buffer, buffer_dims), 0) < offset + nb.SCALAR_ROOM:
            return nb.WRONG_DIMS
        lay_out_reference(load_i64(buffer, buffer_data) + offset, load_i64(slot, nb.SLOT_ITEMSIZE), target)
    return wrong


@native
def lay_out(words, args, rets, levels, extents, block, rows, row_size, stream):
    """Write all parameters into the block and, for a batch, its rows; return DONE, or what is wrong with which one."""
    offset, row = 0, rows
    for k in range(load_i64(words, nb.WORD_COUNT)):
        slot, target = words + nb.WORD_PARAMETERS + k * nb.SLOT_SIZE, block + offset
        kind, wrong, size = load_i64(slot, nb.SLOT_KIND), nb.DONE, SCALAR_AS_ARRAY
        if kind == nb.STATIC:
            size = lay_out_static(words, slot, target)
            wrong = nb.DONE if size > 0 else nb.WRONG_DIMS
        elif kind == nb.PACKED:
            wrong = lay_out_packed(slot, args, target)
        else:
            wrong = lay_out_buffer(slot, args, rets, levels, extents, target, row, stream)
            if kind != nb.TRACED:
                size = (8 * (5 + 2 * rank_of(slot)) + 15) & ~15
            if levels > 0:
                store_i64(row, nb.ROW_TARGET, offset + core.VALUE_DATA)
                row += row_size
        if wrong != nb.DONE:
            # What the driver refused says so itself; its code takes the place of the parameter's number.
            return wrong if wrong & 0xFF == nb.DRIVER_REFUSED else wrong | k << 8
        offset += size
    return nb.DONE


@inlined
def lay_out_blocks(words, code, geometry, grid):
    """Write how many blocks of a known shape lie along x, y and z; of four indices the last two share z."""
    rank, first = load_i64(words, nb.WORD_RANK), load_i64(code, nb.CODE_FIRST) != 0
    for axis in range(3):
        extent, limit = types.int64(1), core.MAX_GRID_X if axis == 0 else core.MAX_GRID_Y
        if axis < rank:
            extent = load_i64(geometry, 8 * (axis if first else rank - 1 - axis))
        if axis == 2 and rank == 4:
            extent *= load_i64(geometry, 24)
        size = load_i64(grid, 24 + 8 * axis)
        store_i64(grid, 8 * axis, min((extent + size - 1) // size, limit))


@inlined
def lay_out_grid(words, code, geometry, total, grid):
    """Write the grid and the block: those of the call site, or where it does not know its extents, simple ones."""
    for k in range(6):
        store_i64(grid, 8 * k, load_i64(words, nb.WORD_CUDA_GRID + 8 * k))
    if load_i64(grid, 0) == 0 and load_i64(grid, 24) != 0:
        lay_out_blocks(words, code, geometry, grid)
    elif load_i64(grid, 0) == 0:
        rank, size = load_i64(words, nb.WORD_RANK), 1
        for k in range(3):
            size *= load_i64(words, nb.WORD_BLOCK + 8 * k)
        along = total
        if load_i64(code, nb.CODE_RANK) > 0:
            along = load_i64(geometry, 0 if load_i64(code, nb.CODE_FIRST) != 0 else 8 * (rank - 1))
        store_i64(grid, 0, (along + size - 1) // size)
        store_i64(grid, 8, min(total // along, core.MAX_GRID_Y))
        store_i64(grid, 16, 1)
        store_i64(grid, 24, size)
        store_i64(grid, 32, 1)
        store_i64(grid, 40, 1)


@inlined
def fill_places(code, block, geometry, places):
    """Write the address of each of the kernel's parameters: those in the block, then the launch's dimensions."""
    offsets, count = load_i64(code, nb.CODE_PLACES), load_i64(code, nb.CODE_PLACE_COUNT)
    for k in range(count):
        store_i64(places, 8 * k, block + load_i64(offsets, 8 * k))
    for k in range(load_i64(code, nb.CODE_DIM_COUNT)):
        store_i64(places, 8 * (count + k), geometry + 8 * k)


@inlined
def lay_out_batch(words, call, elements, values):
    """Write what follows the dimensions in a kernel for batches: how many elements, extents, and steps of each array."""
    levels, extents = load_i64(call, nb.CALL_LEVELS), load_i64(call, nb.CALL_EXTENTS)
    store_i64(values, 0, elements)
    for level in range(1, levels):
        store_i64(values, 8 * level, load_i64(extents, 8 * level))
    at, row = values + 8 * levels, load_i64(call, nb.CALL_ROWS)
    for k in range(load_i64(words, nb.WORD_COUNT)):
        kind = load_i64(words, nb.WORD_PARAMETERS + k * nb.SLOT_SIZE + nb.SLOT_KIND)
        if kind == nb.STATIC:
            continue
        for level in range(levels):
            # The numbers of an eager call are the same for all elements.
            step = 0 if kind == nb.PACKED else load_i64(row, nb.ROW_STRIDES + 8 * level)
            store_i64(at, 8 * level, step)
        at += 8 * levels
        if kind != nb.PACKED:
            row += load_i64(call, nb.CALL_ROW_SIZE)


@inlined
def launch(code, grid, stream, places):
    """Launch; return the CUresult."""
    together = load_i64(code, nb.CODE_TOGETHER)
    return call_launch(
        load_i64(code, nb.CODE_LAUNCH),
        load_i64(code, nb.CODE_HANDLE),
        blocks_along(grid, 0, together),
        blocks_along(grid, 1, together),
        load_i64(grid, 16),
        load_i64(grid, 24),
        load_i64(grid, 32),
        load_i64(grid, 40),
        0,
        stream,
        places,
        0,
    )


@native
def launch_batch(words, code, call, elements, grid, stream, places, before):
    """Launch a batch at once; `before` parameters have their places. Return the CUresult."""
    levels = load_i64(code, nb.CODE_LEVELS)
    count = levels * (1 + load_i64(code, nb.CODE_ARRAYS))
    values = stack(8 * count)
    lay_out_batch(words, call, elements, values)
    for k in range(count):
        store_i64(places, 8 * (before + k), values + 8 * k)
    if load_i64(code, nb.CODE_RANK) < 3:
        store_i64(grid, 16, min(elements, core.MAX_GRID_Z))
    return types.int64(launch(code, grid, stream, places))


@native
def execute(frame, stream):
    """Answer a call; return DONE or what kept it from running, with a number above the lowest byte."""
    words = words_of(frame)
    if words == 0:
        return nb.WRONG_WORDS
    code = code_of(words)
    if code == 0:
        return nb.UNKNOWN_ON_CUDA
    if load_i64(frame, args_size) != load_i64(words, nb.WORD_OPERANDS):
        return nb.WRONG_COUNT
    if load_i64(frame, rets_size) != load_i64(words, nb.WORD_RESULTS):
        return nb.WRONG_COUNT
    args, rets, levels = load_i64(frame, args_array), load_i64(frame, rets_array), load_i64(words, nb.WORD_LEVELS)
    block, geometry = stack(load_i64(code, nb.CODE_CUDA_BLOCK)), stack(core.PLAN_SIZE - core.PLAN_DIMS)
    count, row_size = (count_rows(words) if levels > 0 else 0), nb.ROW_STRIDES + 8 * levels
    extents, rows, call, grid = stack(8 * levels + 8), stack(count * row_size + 8), stack(nb.CALL_SIZE), stack(48)
    total, elements = lay_out_geometry(words, args, geometry), read_extents(rets, levels, extents)
    if elements < 0:
        return nb.WRONG_RANK
    outcome = lay_out(words, args, rets, levels, extents, block, rows, row_size, stream)
    if outcome != nb.DONE or total <= 0:
        return outcome
    if load_i64(code, nb.CODE_RANK) == 0:
        store_i64(geometry, 0, total)
    lay_out_grid(words, code, geometry, total, grid)
    before = load_i64(code, nb.CODE_PLACE_COUNT) + load_i64(code, nb.CODE_DIM_COUNT)
    places = stack(8 * (before + load_i64(code, nb.CODE_LEVELS) * (1 + load_i64(code, nb.CODE_ARRAYS))) + 16)
    fill_places(code, block, geometry, places)
    store_i64(call, nb.CALL_LEVELS, levels)
    store_i64(call, nb.CALL_EXTENTS, extents)
    store_i64(call, nb.CALL_COUNT, count)
    store_i64(call, nb.CALL_ROWS, rows)
    store_i64(call, nb.CALL_ROW_SIZE, row_size)
    if load_i64(code, nb.CODE_LEVELS) > 0 and elements > 0:
        failed = launch_batch(words, code, call, elements, grid, stream, places, before)
        return nb.DONE if failed == 0 else nb.DRIVER_REFUSED | failed << 8
    for element in range(elements):
        if levels > 0:
            move_to(call, block, element)
        failed = types.int64(launch(code, grid, stream, places))
        if failed != 0:
            return nb.DRIVER_REFUSED | failed << 8
    return nb.DONE


@native
def execute_or_explain(frame, stream):
    """Answer a call; return XLA's error, or 0."""
    outcome = execute(frame, stream)
    if outcome == nb.UNKNOWN_ON_CUDA:
        error = report(frame, outcome)
        if error != 0:
            return error
        outcome = execute(frame, stream)
    return 0 if outcome == nb.DONE else report(frame, outcome)


@inlined
def enter_context(ordinal, pushed):
    """Make a device's context current, and note whether it has to be taken away again; return the CUresult."""
    driver, out = load_i64(state(), core.STATE_DRIVER), stack(16)
    store_i64(pushed, 0, 0)
    if driver == 0:
        return types.int64(0)
    context = load_i64(load_i64(driver, core.DRIVER_CONTEXTS), 8 * ordinal)
    store_i64(out, 0, 0)
    if context == 0 or (call_one(load_i64(driver, core.DRIVER_CONTEXT_GET), out) == 0 and load_i64(out, 0) == context):
        return types.int64(0)
    failed = types.int64(call_one(load_i64(driver, core.DRIVER_CONTEXT_PUSH), context))
    store_i64(pushed, 0, 1 if failed == 0 else 0)
    return failed


@inlined
def leave_context(frame, pushed, error):
    """Undo `enter_context`; return the error of what ran in between, or that of the driver."""
    if load_i64(pushed, 0) == 0:
        return error
    driver, out = load_i64(state(), core.STATE_DRIVER), stack(16)
    failed = types.int64(call_one(load_i64(driver, core.DRIVER_CONTEXT_POP), out))
    return report(frame, nb.DRIVER_REFUSED | failed << 8) if error == 0 and failed != 0 else error


@inlined
def where_to_run(frame, place):
    """Ask XLA for the stream and the device, which are written behind each other; return its error, or 0."""
    question = stack(question_size)
    error = ask(frame, stream_get, question)
    if error != 0:
        return error
    store_i64(place, 0, load_i64(question, answer_place))
    error = ask(frame, ordinal_get, question)
    store_i64(place, 8, types.int64(load_i32(question, answer_place)))
    return error


@native
def handle(frame):
    """The handler: ``XLA_FFI_Error* handle(XLA_FFI_CallFrame*)``."""
    place, error = stack(16), stack(8)
    if is_answered(frame, xla.COMMAND_BUFFER_COMPATIBLE, error):
        return load_i64(error, 0)
    refused = where_to_run(frame, place)
    if refused != 0:
        return refused
    failed = enter_context(load_i64(place, 8), error)
    if failed != 0:
        return report(frame, nb.DRIVER_REFUSED | failed << 8)
    return leave_context(frame, error, execute_or_explain(frame, load_i64(place, 0)))
