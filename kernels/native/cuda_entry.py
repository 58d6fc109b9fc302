"""Compiled: from laid-out arguments to ``cuLaunchKernel``, on the right device, on the right stream.

A launch goes to the stream that the plan names; else to the current stream of numbridge and CuPy, if that is not the
default one (somebody chose it); else to the stream of the first CUDA array. Arrays of other streams are ordered before and
after the launch with an event, unless the plan names a stream: then order is the caller's. A graph's capture cannot order work
that is not in it, so around a launch that is captured only streams of captures are ordered. Nothing here waits for a device.

Source of the layouts: `table_layout`; of the functions: CUDA Driver API (cuda.h), ``cuLaunchKernel``,
``cuLaunchCooperativeKernel`` (the same without the last argument), ``cuEventRecord``, ``cuStreamWaitEvent``,
``cuStreamIsCapturing``. The GIL must be held; it is given up around the launch itself, which blocks while the device's queue
is full.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import external, indirect, inlined, load_i32, load_i64, native, stack, store_i64
from numbridge.kernels.native.reading import clear_error, intp, state

save_thread = external("PyEval_SaveThread", intp)
restore_thread = external("PyEval_RestoreThread", types.void, intp)
call_launch = indirect(types.int32, 11)
# What `find_streams` returns where a framework does not know its stream, and the CUresult that this becomes
UNKNOWN_STREAM, INVALID_HANDLE = -2, 400
call_one = indirect(types.int32, 1)
call_two = indirect(types.int32, 2)
call_three = indirect(types.int32, 3)
call_current_stream = indirect(types.int64, 1)


@inlined
def is_on_cuda(reading):
    """Tell whether a reading is an array in CUDA memory."""
    word = load_i64(reading, nb.READ_WORD)
    device = word >> nb.WORD_DEVICE & 0xFF
    return word >> nb.WORD_CLASS & nb.CLASS_MASK == nb.CLASS_ARRAY and (device == dl.CUDA or device == dl.CUDA_MANAGED)


@inlined
def on_device(spec, readings, count):
    """Tell whether the arrays in CUDA memory lie on the specialisation's device; true for the CPU's."""
    if load_i64(spec, nb.SPEC_LAUNCH) == 0:
        return True
    device = load_i64(spec, nb.SPEC_DEVICE)
    for k in range(count):
        reading = readings + k * nb.READ_SIZE
        if is_on_cuda(reading) and load_i64(reading, nb.READ_DEVICE_ID) != device:
            return False
    return True


@native
def current_stream(driver, device):
    """Return the current stream of what has none of its own; 0 is the default stream."""
    function = load_i64(driver, nb.DRIVER_CURRENT_STREAM)
    return call_current_stream(function, device) if function != 0 else 0


@native
def find_streams(readings, count, device, current):
    """Let every reading in CUDA memory know its stream; return the first (0 without any), or UNKNOWN_STREAM.

    `current` is the stream of what has none of its own.
    """
    entry, stream, first, out = 0, 0, nb.NO_STREAM, stack(16)
    for k in range(count):
        reading = readings + k * nb.READ_SIZE
        if not is_on_cuda(reading):
            continue
        if load_i64(reading, nb.READ_STREAM) == nb.NO_STREAM:
            # Arguments of one framework come in a row, and have one stream.
            if entry == 0 or load_i64(reading, nb.READ_STREAM_ENTRY) != entry:
                entry = load_i64(reading, nb.READ_STREAM_ENTRY)
                function = load_i64(entry, nb.ENTRY_STREAM)
                store_i64(out, 0, 0)
                if function == 0:
                    stream = current
                elif call_three(function, dl.CUDA, device, out) == 0:
                    stream = load_i64(out, 0)
                else:
                    clear_error()
                    return UNKNOWN_STREAM
            store_i64(reading, nb.READ_STREAM, stream)
        if first == nb.NO_STREAM:
            first = load_i64(reading, nb.READ_STREAM)
    return 0 if first == nb.NO_STREAM else first


@native
def order(driver, event, first, second):
    """Make what comes next on stream `second` wait for what stream `first` has been given; return the CUresult."""
    failed = call_two(load_i64(driver, nb.DRIVER_EVENT_RECORD), event, first)
    if failed == 0:
        failed = call_three(load_i64(driver, nb.DRIVER_STREAM_WAIT), second, event, 0)
    return failed


@native
def is_capturing(driver, stream):
    """Tell whether a graph captures a stream; the default stream, which is no graph's, may be refused an answer."""
    status = stack(16)
    store_i64(status, 0, 0)
    return call_two(load_i64(driver, nb.DRIVER_IS_CAPTURING), stream, status) == 0 and load_i32(status, 0) != 0


@native
def order_all(driver, event, readings, count, stream, before):
    """Order each other stream among the readings before or after `stream`, if they can be."""
    last = stream
    for k in range(count):
        reading = readings + k * nb.READ_SIZE
        other = load_i64(reading, nb.READ_STREAM)
        if is_on_cuda(reading) and other != stream and other != last:
            last = other
            if is_capturing(driver, stream) and not is_capturing(driver, other):
                continue
            failed = order(driver, event, other, stream) if before else order(driver, event, stream, other)
            if failed != 0:
                return failed
    return types.int32(0)


@inlined
def fill_places(spec, plan, block, places):
    """Write the address of each of the kernel's parameters: those in the block, then the plan's dimensions."""
    offsets, count = load_i64(spec, nb.SPEC_PLACES), load_i64(spec, nb.SPEC_PLACE_COUNT)
    for k in range(count):
        store_i64(places, 8 * k, block + load_i64(offsets, 8 * k))
    for k in range(load_i64(spec, nb.SPEC_DIM_COUNT)):
        store_i64(places, 8 * (count + k), plan + nb.PLAN_DIMS + 8 * k)


@inlined
def blocks_along(grid, axis, together):
    """Return how many blocks of a grid are launched along x or y, where a thread of a large one takes several ids.

    It takes `together` along x, or if that is negative what the layout of SPEC_TOGETHER says.
    """
    blocks = load_i64(grid, 8 * axis)
    if together > 0:
        count = together if axis == 0 else 1
    else:
        count = 1 + (-together >> nb.TOGETHER_COLUMNS) if axis == 0 else -together & nb.TOGETHER_ROWS
    if count > 1 and load_i64(grid, 0) * load_i64(grid, 8) * load_i64(grid, 16) >= nb.LARGE_GRID:
        return (blocks + count - 1) // count
    return blocks


@native
def call_driver(spec, plan, stream, places):
    """Launch, without the GIL; return the CUresult."""
    grid, block = nb.PLAN_CUDA_GRID, nb.PLAN_CUDA_BLOCK
    together = load_i64(spec, nb.SPEC_TOGETHER)
    thread = save_thread()
    failed = call_launch(
        load_i64(spec, nb.SPEC_LAUNCH),
        load_i64(spec, nb.SPEC_HANDLE),
        blocks_along(plan + grid, 0, together),
        blocks_along(plan + grid, 1, together),
        load_i64(plan, grid + 16),
        load_i64(plan, block),
        load_i64(plan, block + 8),
        load_i64(plan, block + 16),
        load_i64(plan, nb.PLAN_SHARED),
        stream,
        places,
        0,
    )
    restore_thread(thread)
    return failed


@native
def launch_ordered(driver, spec, plan, readings, count, places):
    """Choose the stream, order the others around it, and launch; the context is current."""
    device = load_i64(spec, nb.SPEC_DEVICE)
    if load_i64(plan, nb.PLAN_FLAGS) & nb.PLAN_HAS_STREAM != 0:
        return call_driver(spec, plan, load_i64(plan, nb.PLAN_STREAM), places)
    chosen = current_stream(driver, device)
    first = find_streams(readings, count, device, chosen)
    if first == UNKNOWN_STREAM:
        return types.int32(INVALID_HANDLE)
    stream = chosen if chosen != 0 else first
    event = load_i64(load_i64(driver, nb.DRIVER_EVENTS), 8 * device)
    failed = order_all(driver, event, readings, count, stream, True)
    if failed == 0:
        failed = call_driver(spec, plan, stream, places)
    if failed == 0:
        failed = order_all(driver, event, readings, count, stream, False)
    return failed


@native
def launch_on_device(spec, plan, readings, count, block):
    """Launch a CUDA variant on arguments that are laid out in `block`; return the CUresult, 0 for success."""
    if load_i64(plan, nb.PLAN_TOTAL) <= 0:
        return types.int64(0)
    driver, out = load_i64(state(), nb.STATE_DRIVER), stack(16)
    places = stack(8 * (load_i64(spec, nb.SPEC_PLACE_COUNT) + load_i64(spec, nb.SPEC_DIM_COUNT)) + 16)
    fill_places(spec, plan, block, places)
    context = load_i64(load_i64(driver, nb.DRIVER_CONTEXTS), 8 * load_i64(spec, nb.SPEC_DEVICE))
    store_i64(out, 0, 0)
    failed = call_one(load_i64(driver, nb.DRIVER_CONTEXT_GET), out)
    if failed != 0:
        return types.int64(failed)
    foreign = load_i64(out, 0) != context
    if foreign:
        failed = call_one(load_i64(driver, nb.DRIVER_CONTEXT_PUSH), context)
        if failed != 0:
            return types.int64(failed)
    failed = launch_ordered(driver, spec, plan, readings, count, places)
    if foreign:
        popped = call_one(load_i64(driver, nb.DRIVER_CONTEXT_POP), out)
        failed = failed if failed != 0 else popped
    return types.int64(failed)
