"""Compiled: the entry through which every launch goes, from Python arguments to the kernel's loop.

`launch` is a built-in function (``METH_FASTCALL``) whose ``self`` is the tuple ``(plan address, slow road, failure, ...)``.
It reads each argument once, recognises a compiled variant by comparing words, lays the arguments out as Numba values,
and runs the variant without the GIL. No Python runs on this road. Whatever is not recognised goes to the slow road,
a Python function that gets the same arguments and explains or compiles; nothing has been written by then. A variant for CUDA
is launched by the driver: see `cuda_entry`.

Source of the layouts: `table_layout`. ``parallel_for`` is Numba's threading layer (numba/np/ufunc/tbbpool.cpp).
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.cuda_entry import launch_on_device, on_device, restore_thread, save_thread
from numbridge.kernels.native.extents import long_enough
from numbridge.kernels.native.memory import (
    external,
    function_symbol,
    indirect,
    inlined,
    load_i8,
    load_i64,
    native,
    stack,
    store_f32,
    store_f64,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
    symbol,
)
from numbridge.kernels.native.memory import load_f64 as load_real
from numbridge.kernels.native.reading import (
    call_with,
    count_version,
    count_version_behind,
    decrease,
    error_occurred,
    increase,
    intp,
    item,
    leave_to_python,
    read,
    release,
    state,
)
from numbridge.kernels.native.spreads import spread_out

# In order: what a function names must have been loaded before it.
EXPORTS = {
    "numbridge_piece": ("piece", "void(int64, int64, int64, int64)"),
    "numbridge_launch": ("launch", "int64(int64, int64, int64, int64)"),
}

none = symbol("_Py_NoneStruct")
piece_address = function_symbol("numbridge_piece")
to_address = external("PyLong_AsVoidPtr", intp, intp)
dict_get = external("PyDict_GetItem", intp, intp, intp)
from_int = external("PyLong_FromLongLong", intp, intp)
acquire = external("PyThread_acquire_lock", types.int32, intp, types.int32)
release_lock = external("PyThread_release_lock", types.void, intp)
compare = external("memcmp", types.int32, intp, intp, intp)
run_range = indirect(types.int64, 4)
thread_count = indirect(types.int32, 0)
parallel_for = indirect(types.void, 8)

CELL_CONTENTS = 16
FEW_AT_ONCE = 16  # threads that run in lanes: see `cpu_backend.lanes`


@native
def inner_fits(reading, parameter):
    """Tell whether an array's last dimensions are those of an element, dense in C order."""
    inner, outer = load_i64(parameter, nb.PARAM_INNER), load_i64(parameter, nb.PARAM_NDIM)
    shape, strides = load_i64(reading, nb.READ_SHAPE), load_i64(reading, nb.READ_STRIDES)
    dense = load_i64(reading, nb.READ_WORD) & nb.CONTIGUOUS != 0
    unit, step = load_i64(reading, nb.READ_STRIDE_UNIT), load_i64(inner, nb.INNER_ITEMSIZE)
    for k in range(load_i64(inner, nb.INNER_RANK) - 1, -1, -1):
        extent, place = load_i64(inner, nb.INNER_EXTENTS + 8 * k), 8 * (outer + k)
        if load_i64(shape, place) != extent:
            return False
        if not dense and extent != 1 and load_i64(strides, place) * unit != step:
            return False
        step *= extent
    return True


@inlined
def matches(plan, spec, readings, count):
    """Tell whether the arguments are those that the specialisation was compiled for."""
    if load_i64(spec, nb.SPEC_COUNT) != count:
        return False
    for k in range(count):
        parameter = spec + nb.SPEC_PARAMETERS + k * nb.PARAM_SIZE
        word = load_i64(readings + k * nb.READ_SIZE, nb.READ_WORD)
        if word & load_i64(parameter, nb.PARAM_MASK) != load_i64(parameter, nb.PARAM_WANT):
            return False
        if load_i64(parameter, nb.PARAM_INNER) != 0 and not inner_fits(readings + k * nb.READ_SIZE, parameter):
            return False
    return on_device(spec, readings, count) and globals_hold(plan, spec)


@inlined
def globals_hold(plan, spec):
    """Tell whether every global and closure value that the variant was compiled with is still the same object.

    An array must also hold the same elements.
    One without a container was made by evaluating an expression: only the slow road, which has done that again, knows.
    """
    count, base = load_i64(spec, nb.SPEC_GLOBAL_COUNT), load_i64(spec, nb.SPEC_GLOBALS)
    for k in range(count):
        seen = base + k * nb.GLOBAL_SIZE
        container, name = load_i64(seen, nb.GLOBAL_CONTAINER), load_i64(seen, nb.GLOBAL_NAME)
        if container == 0:
            if load_i64(plan, nb.PLAN_FLAGS) & nb.PLAN_GUARDS_PASSED == 0:
                return False
            continue
        now = dict_get(container, name) if name != 0 else load_i64(container, CELL_CONTENTS)
        if now != load_i64(seen, nb.GLOBAL_VALUE):
            return False
        size = load_i64(seen, nb.GLOBAL_BYTES)
        if size != 0:
            data = load_i64(seen, nb.GLOBAL_DATA)
            if load_i64(now, py.ARRAY_DATA) != data or compare(data, load_i64(seen, nb.GLOBAL_COPY), size) != 0:
                return False
    return True


@inlined
def find_variant(plan, readings, count):
    """Return the first specialisation of the kernel that matches, or 0."""
    variants = load_i64(plan, nb.PLAN_VARIANTS)
    for k in range(nb.MAX_VARIANTS):
        spec = load_i64(variants, 8 * k)
        if spec == 0:
            return 0
        if matches(plan, spec, readings, count):
            return spec
    return 0


@inlined
def arrays_suffice(spec, plan, block):
    """Tell whether no thread is sure to go beyond the end of an array, or that has been looked at."""
    if load_i64(plan, nb.PLAN_TOTAL) <= 0 or load_i64(plan, nb.PLAN_FLAGS) & nb.PLAN_GUARDS_PASSED != 0:
        return True
    rows, count = load_i64(spec, nb.SPEC_REACHES), load_i64(spec, nb.SPEC_REACH_COUNT)
    return long_enough(rows, count, block, plan + nb.PLAN_DIMS)


@native
def permitted(parameter, reading, argument):
    """Ask the framework whether an argument may be written to, or read without a warning; clear what it raises."""
    written = load_i64(parameter, nb.PARAM_WRITTEN) != 0
    guard = load_i64(load_i64(reading, nb.READ_ENTRY), nb.ENTRY_GUARD if written else nb.ENTRY_LOST_GRADIENT)
    if guard == 0:
        return True
    answer = call_with(guard, argument, 1, 0)
    if answer == 0:
        leave_to_python()
        return False
    decrease(answer)
    return answer == none()


@inlined
def autograd_agrees(spec, plan, readings, count, arguments):
    """Ask the framework about each argument that carries autograd state."""
    flags = load_i64(plan, nb.PLAN_FLAGS)
    if flags & nb.PLAN_GUARDS_PASSED:
        return True
    # No gradient is lost where the framework itself follows the launch.
    askable = nb.GUARDED if flags & nb.PLAN_FOLLOWED else -1
    for k in range(count):
        reading = readings + k * nb.READ_SIZE
        parameter = spec + nb.SPEC_PARAMETERS + k * nb.PARAM_SIZE
        asks = load_i64(parameter, nb.PARAM_ASKS) & askable
        if load_i64(reading, nb.READ_WORD) & asks != 0 and not permitted(parameter, reading, arguments + 8 * k):
            return False
    return True


@native
def fits(value, bits, signed):
    """Tell whether an integer can be held by a type of `bits` bits."""
    if bits == 64:
        return signed or value >= 0
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    return low <= value and value <= high


@native
def store_integer(target, value, bits):
    """Store the low `bits` bits."""
    if bits == 8:
        store_i8(target, 0, types.int8(value))
    elif bits == 16:
        store_i16(target, 0, types.int16(value))
    elif bits == 32:
        store_i32(target, 0, types.int32(value))
    else:
        store_i64(target, 0, value)


@native
def lay_out_scalar(reading, tag, target):
    """Convert a scalar to its parameter's type; return False if it does not fit."""
    code, bits = tag & 0xFF, tag >> 8 & 0xFF
    word = load_i64(reading, nb.READ_WORD)
    if word & nb.TOO_BIG:
        return False
    real = load_real(reading, nb.READ_REAL)
    if code == 2 or code == 5:
        # A real scalar for a complex parameter has no imaginary part; only complex readings fill one in.
        is_complex = word >> nb.WORD_CLASS & nb.CLASS_MASK == nb.CLASS_COMPLEX
        imaginary = load_real(reading, nb.READ_IMAGINARY) if is_complex else 0.0
        if (bits >> 1 if code == 5 else bits) == 32:
            store_f32(target, 0, types.float32(real))
            if code == 5:
                store_f32(target, 4, types.float32(imaginary))
        else:
            store_f64(target, 0, real)
            if code == 5:
                store_f64(target, 8, imaginary)
        return True
    value = load_i64(reading, nb.READ_INTEGER)
    # Of unsigned readings, only those beyond int64 look negative.
    if word & 0xFF == 1 and value < 0 and not (code == 1 and bits == 64):
        return False
    exact = word & 0xFFFFFFFF == tag
    if code != 6 and not exact and not fits(value, bits, code == 0):
        return False
    store_integer(target, value, bits)
    return True


@native
def copy_element(source, target, size):
    """Copy an element's bytes."""
    for k in range(size):
        store_i8(target, k, load_i8(source, k))


@inlined
def lay_out_array(reading, target, ndim, itemsize):
    """Write a reading as the value of a Numba array, of which `ndim` dimensions count."""
    shape, strides = load_i64(reading, nb.READ_SHAPE), load_i64(reading, nb.READ_STRIDES)
    unit = load_i64(reading, nb.READ_STRIDE_UNIT)
    store_i64(target, 0, 0)
    store_i64(target, 8, 0)
    store_i64(target, nb.VALUE_ITEMSIZE, itemsize)
    store_i64(target, nb.VALUE_DATA, load_i64(reading, nb.READ_DATA))
    count = 1
    for k in range(ndim - 1, -1, -1):
        extent = load_i64(shape, 8 * k)
        step = load_i64(strides, 8 * k) * unit if strides != 0 else count * itemsize
        store_i64(target, nb.VALUE_SHAPE + 8 * k, extent)
        store_i64(target, nb.VALUE_SHAPE + 8 * (ndim + k), step)
        count *= extent
    store_i64(target, nb.VALUE_COUNT, count)


@inlined
def lay_out(spec, readings, count, block):
    """Write all arguments into the variant's block; return False if a scalar does not fit its parameter."""
    for k in range(count):
        parameter = spec + nb.SPEC_PARAMETERS + k * nb.PARAM_SIZE
        reading, target = readings + k * nb.READ_SIZE, block + load_i64(parameter, nb.PARAM_OFFSET)
        tag = load_i64(parameter, nb.PARAM_TAG)
        if tag == 0:
            lay_out_array(reading, target, load_i64(parameter, nb.PARAM_NDIM), load_i64(parameter, nb.PARAM_ITEMSIZE))
        elif tag == nb.ELEMENT_TAG:
            copy_element(load_i64(reading, nb.READ_DATA), target, load_i64(parameter, nb.PARAM_ITEMSIZE))
        elif not lay_out_scalar(reading, tag, target):
            return False
    return True


@inlined
def count_versions(spec, readings, count):
    """Count up the version of each written tensor whose framework keeps one, so that its autograd sees the write."""
    for k in range(count):
        reading = readings + k * nb.READ_SIZE
        if load_i64(spec + nb.SPEC_PARAMETERS + k * nb.PARAM_SIZE, nb.PARAM_WRITTEN) != 0:
            implementation = load_i64(reading, nb.READ_IMPLEMENTATION)
            if implementation != 0:
                count_version(load_i64(reading, nb.READ_ENTRY), implementation)
            elif load_i64(reading, nb.READ_OWNER) != 0:
                count_version_behind(load_i64(reading, nb.READ_OWNER))


@native
def piece(arguments, dims, steps, work):
    """Run the share of the work that the threading layer hands to one of its threads."""
    grain, total = load_i64(work, nb.WORK_GRAIN), load_i64(work, nb.WORK_TOTAL)
    first = load_i64(arguments, 0) * grain
    last = min(first + load_i64(dims, 0) * grain, total)
    failed = run_range(
        load_i64(work, nb.WORK_RUN), load_i64(work, nb.WORK_BLOCK), load_i64(work, nb.WORK_GEOMETRY), first, last
    )
    if failed != 0:
        store_i64(work, nb.WORK_FAILED, failed)


@inlined
def share(total, threads, grain):
    """Return how many threads of a launch one piece of work takes: a whole multiple of those that run together."""
    least, pieces = grain & ((1 << nb.GRAIN_PIECES) - 1), grain >> nb.GRAIN_PIECES
    # Where there are not so many that every worker has some to run at once, fewer are.
    while least > FEW_AT_ONCE and total < threads * least:
        least = least // 2
    each = threads * pieces * least
    return (total + each - 1) // each * least


@native
def run_shared(spec, block, geometry, total):
    """Run the variant over `total` threads, shared out among the threading layer's threads."""
    threads = types.int64(thread_count(load_i64(state(), nb.STATE_THREAD_COUNT)))
    grain = share(total, threads, load_i64(spec, nb.SPEC_GRAIN))
    work, dims, steps, arguments = stack(nb.WORK_SIZE), stack(16), stack(16), stack(16)
    store_i64(work, nb.WORK_RUN, load_i64(spec, nb.SPEC_RUN))
    store_i64(work, nb.WORK_BLOCK, block)
    store_i64(work, nb.WORK_GEOMETRY, geometry)
    store_i64(work, nb.WORK_TOTAL, total)
    store_i64(work, nb.WORK_GRAIN, grain)
    store_i64(work, nb.WORK_FAILED, 0)
    # The layer adds begin * step to each "array" address: with address 0 and step 1 a piece learns its first index.
    store_i64(dims, 0, (total + grain - 1) // grain)
    store_i64(steps, 0, 1)
    store_i64(arguments, 0, 0)
    lock = load_i64(state(), nb.STATE_LOCK)
    if lock != 0:
        acquire(lock, types.int32(1))
    parallel_for(load_i64(state(), nb.STATE_PARALLEL_FOR), piece_address(), arguments, dims, steps, work, 0, 1, threads)
    if lock != 0:
        release_lock(lock)
    return load_i64(work, nb.WORK_FAILED)


@inlined
def run(spec, plan, block):
    """Run the variant over the plan's threads, without the GIL; return what a raising kernel left."""
    total, geometry = load_i64(plan, nb.PLAN_TOTAL), plan + nb.PLAN_DIMS
    # A kernel of a microsecond keeps the GIL: giving it up and taking it back would cost other threads more.
    if total < load_i64(spec, nb.SPEC_BRIEF_BELOW):
        return run_range(load_i64(spec, nb.SPEC_RUN), block, geometry, 0, total) if total > 0 else 0
    if total <= 0:
        return 0
    thread = save_thread()
    if total < load_i64(spec, nb.SPEC_SERIAL_BELOW):
        failed = run_range(load_i64(spec, nb.SPEC_RUN), block, geometry, 0, total)
    else:
        failed = run_shared(spec, block, geometry, total)
    restore_thread(thread)
    return failed


@inlined
def threads_missing(spec, plan):
    """Tell whether the launch is large and the threading layer has not been started."""
    large = load_i64(plan, nb.PLAN_TOTAL) >= load_i64(spec, nb.SPEC_SERIAL_BELOW)
    return large and load_i64(state(), nb.STATE_PARALLEL_FOR) == 0 and load_i64(spec, nb.SPEC_LAUNCH) == 0


@inlined
def is_announced(plan):
    """Tell whether nobody watches launches, or this one has been told of."""
    return load_i64(state(), nb.STATE_WATCHED) == 0 or load_i64(plan, nb.PLAN_FLAGS) & nb.PLAN_GUARDS_PASSED != 0


@inlined
def launch_readings(plan, arguments, readings, count):
    """Launch on arguments that have been read; return LAUNCHED, MISSED, RAISED, or DRIVER_FAILED plus the CUresult."""
    spec = find_variant(plan, readings, count)
    if spec == 0 or threads_missing(spec, plan):
        return nb.MISSED
    block = stack(load_i64(spec, nb.SPEC_BLOCK_SIZE))
    if not lay_out(spec, readings, count, block) or not arrays_suffice(spec, plan, block):
        return nb.MISSED
    if not autograd_agrees(spec, plan, readings, count, arguments):
        return nb.MISSED
    count_versions(spec, readings, count)
    if load_i64(spec, nb.SPEC_LAUNCH) != 0:
        failed = launch_on_device(spec, plan, readings, count, block)
        return nb.LAUNCHED if failed == 0 else nb.DRIVER_FAILED + failed
    return nb.LAUNCHED if run(spec, plan, block) == 0 else nb.RAISED


@native
def report_driver(function, code):
    """Let Python raise the error of a CUresult."""
    argument = stack(16)
    number = from_int(code)
    if number == 0:
        return 0
    store_i64(argument, 0, number)
    answer = call_with(function, argument, 1, 0)
    decrease(number)
    return answer


@inlined
def read_all(arguments, readings, scratch, count):
    """Read the arguments, in an order in which none has changed since it was read.

    While an adapter or a producer of buffers runs, which may let go of the GIL, others may be given other memory; those that are
    held stay as they are.
    """
    last_held = types.int64(0)
    for k in range(count):
        read(load_i64(arguments, 8 * k), readings + k * nb.READ_SIZE, scratch + 64 * k)
        if load_i64(readings + k * nb.READ_SIZE, nb.READ_HOLD) != nb.HOLD_NOTHING:
            last_held = k
    for k in range(last_held):
        if load_i64(readings + k * nb.READ_SIZE, nb.READ_HOLD) == nb.HOLD_NOTHING:
            read(load_i64(arguments, 8 * k), readings + k * nb.READ_SIZE, scratch + 64 * k)


@native
def attempt(plan, arguments, count):
    """Read the arguments and launch on them; return what `launch_readings` does."""
    if count > nb.MAX_ARGUMENTS or not is_announced(plan):
        return nb.MISSED
    readings, scratch = stack(count * nb.READ_SIZE), stack(count * 64)
    read_all(arguments, readings, scratch, count)
    outcome = launch_readings(plan, arguments, readings, count)
    for k in range(count):
        release(readings + k * nb.READ_SIZE)
    return outcome


@native
def answered(self, outcome, arguments, count):
    """Return what Python gets of an outcome; `self` is that of `launch`."""
    if outcome == nb.LAUNCHED:
        increase(none())
        return none()
    if outcome >= nb.DRIVER_FAILED:
        return report_driver(item(self, 3), outcome - nb.DRIVER_FAILED)
    return call_with(item(self, 1 if outcome == nb.MISSED else 2), arguments, count, 0)


@native
def launch_spread(plan, arguments, count):
    """Launch on what tuples among the arguments hold; return what Python gets, or 0 with no error where only Python can tell."""
    table, target, other = load_i64(plan, nb.PLAN_SPREADS), stack(8 * nb.MAX_LEAVES), stack(nb.PLAN_SIZE)
    for k in range(nb.MAX_SPREADS):
        spread = load_i64(table, 8 * k)
        if spread == 0:
            return 0
        if not spread_out(spread, arguments, count, target):
            continue
        for at in range(0, nb.PLAN_SIZE, 8):
            store_i64(other, at, load_i64(plan, at))
        store_i64(other, nb.PLAN_VARIANTS, load_i64(spread, nb.SPREAD_VARIANTS))
        leaves, answers = load_i64(spread, nb.SPREAD_LEAVES), load_i64(spread, nb.SPREAD_ANSWERS)
        # It keeps the code alive; the spread may be gone as soon as other code runs.
        increase(answers)
        outcome = attempt(other, target, leaves)
        answer = 0 if outcome == nb.MISSED else answered(answers, outcome, target, leaves)
        decrease(answers)
        # Where this one has an array, another may have a tuple, or None.
        if outcome != nb.MISSED:
            return answer
    return 0


@inlined
def has_spreads(plan):
    """Tell whether the kernel has been launched with tuples."""
    return load_i64(load_i64(plan, nb.PLAN_SPREADS), 0) != 0


@native
def launch(self, arguments, count, names):
    """Launch; ``self`` is (plan address, slow road, failure, failure of the driver, arguments by name, ...)."""
    if names != 0:
        return call_with(item(self, 4), arguments, count, names)
    plan = to_address(item(self, 0))
    if has_spreads(plan):
        answer = launch_spread(plan, arguments, count)
        if answer != 0 or error_occurred() != 0:
            return answer
    return answered(self, attempt(plan, arguments, count), arguments, count)
