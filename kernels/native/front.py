"""Compiled: the calls that launch, up to the launcher: `launch`, `Kernel.forall` and ``kernel[blocks, threads]``.

Each stands before a Python function of the same parameters (see `machine.front`), and answers the usual call by itself: a
kernel, extents of plain ints, a device or a shape of blocks, and lists of arguments. What those make of the kernel is
remembered in its ``launchers``, by the block or device or what stands for brackets, and then by the extents; or for a launch
by how many extents there are, whose plan is then made here, of that of any others. Any other call goes to the Python function,
with the same arguments: it refuses, or does the work and remembers.

``STATE_FRONT`` holds the tuple whose places are said in `table_layout`. The GIL must be held.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.entry import (
    answered,
    attempt,
    has_spreads,
    launch_spread,
    none,
    to_address,
)
from numbridge.kernels.native.memory import external, inlined, load_i64, native, stack, store_i64, symbol
from numbridge.kernels.native.reading import (
    call_with,
    clear_error,
    decrease,
    error_occurred,
    increase,
    int_value,
    intp,
    item,
    state,
)

EXPORTS = {
    "numbridge_front_launch": ("launch", "int64(int64, int64, int64, int64)"),
    "numbridge_front_forall": ("forall", "int64(int64, int64, int64, int64)"),
    "numbridge_front_configure": ("configure", "int64(int64, int64, int64, int64)"),
}

type_of_ints, type_of_tuples, type_of_lists = symbol("PyLong_Type"), symbol("PyTuple_Type"), symbol("PyList_Type")
type_of_texts = symbol("PyUnicode_Type")
attribute = external("PyObject_GetAttr", intp, intp, intp)
dict_get = external("PyDict_GetItemWithError", intp, intp, intp)
tuple_size = external("PyTuple_Size", intp, intp)
list_size = external("PyList_Size", intp, intp)
list_item = external("PyList_GetItem", intp, intp, intp)
list_as_tuple = external("PyList_AsTuple", intp, intp)
tuple_slice = external("PyTuple_GetSlice", intp, intp, intp, intp)
is_subtype = external("PyType_IsSubtype", types.int32, intp, intp)
self_of = external("PyCFunction_GetSelf", intp, intp)

# Places of a call's arguments, in the order in which they are passed; block and device go by name here.
KERNEL, EXTENTS, INPUTS, OUTPUTS, BLOCK, DEVICE = range(6)
_PLACES = 6
# What `launch.missed` takes before a kernel's arguments: kernel, extents, block, device
_BEFORE = 4
_MOST_THREADS = (1 << 63) - 1


@inlined
def type_of(value):
    """Return the address of an object's type."""
    return load_i64(value, py.OBJECT_TYPE)


@native
def is_plain(extents):
    """Tell whether extents are an int or a tuple of ints: equal ones of these types are the same, which True and 1.0 are not."""
    kind = type_of(extents)
    if kind == type_of_ints():
        return True
    if kind != type_of_tuples():
        return False
    for k in range(tuple_size(extents)):  # noqa: SIM110 - compiled code has no generators
        if type_of(item(extents, k)) != type_of_ints():
            return False
    return True


@native
def is_plain_configuration(configuration):
    """Tell whether all that stands in the brackets of ``kernel[blocks, threads]`` is plain."""
    if type_of(configuration) != type_of_tuples():
        return False
    for k in range(tuple_size(configuration)):  # noqa: SIM110 - compiled code has no generators
        if not is_plain(item(configuration, k)):
            return False
    return True


@native
def remembered(front, kernel, block, extents):
    """Return a new reference to what a kernel remembers for plain extents in a block, or what stands there; or 0."""
    if type_of(kernel) != item(front, nb.FRONT_KERNEL):
        return 0
    tables = attribute(kernel, item(front, nb.FRONT_TABLES))
    if tables == 0:
        clear_error()
        return 0
    table = dict_get(tables, block)
    found = dict_get(table, extents) if table != 0 else 0
    if found != 0:
        increase(found)
    decrease(tables)
    return found


@inlined
def sorted_out(front, given, arguments, count, names, most):
    """Put arguments that are passed by position, `most` at most, or by name into their places; False where one has none."""
    for k in range(_PLACES):
        store_i64(given, 8 * k, 0)
    if count > most:
        return False
    for k in range(count):
        store_i64(given, 8 * k, load_i64(arguments, 8 * k))
    passed = tuple_size(names) if names != 0 else 0
    for k in range(passed):
        place = 0
        # The names in calls that were compiled are interned. Others are left to Python.
        while place < _PLACES and item(names, k) != item(front, nb.FRONT_NAMES + place):
            place += 1
        if place == _PLACES or load_i64(given, 8 * place) != 0:
            return False
        store_i64(given, 8 * place, load_i64(arguments, 8 * (count + k)))
    return load_i64(given, 8 * KERNEL) != 0 and load_i64(given, 8 * EXTENTS) != 0


@native
def as_plain(extents):
    """Return a new reference to extents as an int or a tuple; 0 with no error for what only Python can tell.

    Lists and subclasses of tuples, such as `torch.Size`, are copied.
    """
    kind = type_of(extents)
    if kind == type_of_ints() or kind == type_of_tuples():
        increase(extents)
        return extents
    copy = 0
    if kind == type_of_lists():
        copy = list_as_tuple(extents)
    elif is_subtype(kind, type_of_tuples()) != 0:
        copy = tuple_slice(extents, 0, tuple_size(extents))
    else:
        return 0
    if copy == 0:
        clear_error()
    return copy


@native
def where(front, given):
    """Return a new reference to what a kernel remembers launchers by, besides the extents: a block or a device's name; or 0."""
    block, device = load_i64(given, 8 * BLOCK), load_i64(given, 8 * DEVICE)
    if device == 0 or device == none():
        key = block if block != 0 else item(front, nb.FRONT_BLOCK)
        if not is_plain(key):
            return 0
        increase(key)
        return key
    if block != 0:
        return 0
    if type_of(device) == type_of_texts():
        increase(device)
        return device
    if type_of(device) != item(front, nb.FRONT_DEVICE):
        return 0
    name = attribute(device, item(front, nb.FRONT_DEVICE_NAME))
    if name == 0:
        clear_error()
    return name


@native
def known_launcher(front, given):
    """Return a new reference to the launcher of arguments in their places, or 0."""
    extents = as_plain(load_i64(given, 8 * EXTENTS))
    if extents == 0:
        return 0
    found = 0
    if is_plain(extents):
        key = where(front, given)
        if key != 0:
            found = remembered(front, load_i64(given, 8 * KERNEL), key, extents)
            decrease(key)
    decrease(extents)
    return found


@native
def count_of(extents, target):
    """Write plain extents as numbers; return how many there are, or 0 for what only Python can tell: too many, or too large."""
    is_one = type_of(extents) == type_of_ints()
    rank, overflow = 1 if is_one else tuple_size(extents), stack(16)
    if rank > nb.MAX_DIMS:
        return 0
    total = 1
    for k in range(rank):
        extent = int_value(extents if is_one else item(extents, k), overflow)
        if load_i64(overflow, 0) & 0xFFFFFFFF != 0 or extent < 0:
            return 0
        if extent != 0 and total > _MOST_THREADS // extent:
            return 0
        total *= extent
        store_i64(target, 8 * k, extent)
    return rank


@inlined
def lay_out_hardware(plan, flags, total, rank):
    """Write the grid of a plan whose extents are written, and the block if it goes with them: `block_dims.cuda_shapes`."""
    along = stack(24)
    store_i64(along, 0, total if flags & nb.PLAN_COUNTED != 0 else 1)
    store_i64(along, 8, 1)
    store_i64(along, 16, 1)
    for k in range(0 if flags & nb.PLAN_COUNTED != 0 else rank):
        # A fourth index shares z with its neighbour.
        place = 8 * min(k if flags & nb.PLAN_FIRST != 0 else rank - 1 - k, 2)
        store_i64(along, place, load_i64(along, place) * load_i64(plan, nb.PLAN_DIMS + 8 * k))
    if flags & nb.PLAN_SHAPED == 0:
        rest = load_i64(plan, nb.PLAN_BLOCK) * load_i64(plan, nb.PLAN_BLOCK + 8) * load_i64(plan, nb.PLAN_BLOCK + 16)
        for axis in range(3):
            size, most = 1, min(rest, nb.MAX_BLOCK_Z) if axis == 2 else rest
            while size < most and size < load_i64(along, 8 * axis):
                size *= 2
            size = min(size, most)
            if rest % size != 0:
                size = 1
            store_i64(plan, nb.PLAN_CUDA_BLOCK + 8 * axis, size)
            rest //= size
        store_i64(plan, nb.PLAN_CUDA_BLOCK, load_i64(plan, nb.PLAN_CUDA_BLOCK) * rest)
    for axis in range(3):
        size = load_i64(plan, nb.PLAN_CUDA_BLOCK + 8 * axis)
        blocks = (load_i64(along, 8 * axis) + size - 1) // size
        most = nb.MAX_GRID_X if axis == 0 else nb.MAX_GRID_Y if axis == 1 else nb.MAX_GRID_Z
        # Where threads know their block, none may run the threads of several: CUDA refuses what it has not.
        store_i64(plan, nb.PLAN_CUDA_GRID + 8 * axis, blocks if flags & nb.PLAN_FIRST != 0 else min(blocks, most))


@inlined
def lay_out_plan(plan, other, dims, rank):
    """Write the plan of extents, of that of other extents of the same kernel in the same blocks: `geometry.geometry_of`."""
    for at in range(0, nb.PLAN_SIZE, 8):
        store_i64(plan, at, load_i64(other, at))
    total = 1
    for k in range(rank):
        total *= load_i64(dims, 8 * k)
    flags = load_i64(plan, nb.PLAN_FLAGS)
    store_i64(plan, nb.PLAN_TOTAL, total)
    for k in range(rank):
        store_i64(plan, nb.PLAN_DIMS + 8 * k, load_i64(dims, 8 * k))
    for k in range(3):
        extent, size = load_i64(dims, 8 * k) if k < rank else 1, load_i64(plan, nb.PLAN_BLOCK + 8 * k)
        store_i64(plan, nb.PLAN_GRID + 8 * k, (extent + size - 1) // size)
    lay_out_hardware(plan, flags, total, rank)
    if flags & nb.PLAN_COUNTED != 0:
        store_i64(plan, nb.PLAN_DIMS, total)
        for k in range(1, nb.MAX_DIMS):
            store_i64(plan, nb.PLAN_DIMS + 8 * k, 0)


@native
def launcher_like(front, given, rank):
    """Return a new reference to a launcher of as many extents, or 0; the GIL is held until its plan has been read."""
    key, found = where(front, given), 0
    if key != 0:
        found = remembered(front, load_i64(given, 8 * KERNEL), key, item(front, nb.FRONT_ANY + rank))
        decrease(key)
    return found


@inlined
def length(sequence):
    """Return how many a list or tuple holds; an argument that was left out, none; anything else, -1."""
    if sequence == 0:
        return 0
    if type_of(sequence) == type_of_lists():
        return list_size(sequence)
    return tuple_size(sequence) if type_of(sequence) == type_of_tuples() else -1


@inlined
def gather(sequence, count, target):
    """Store new references to all items: others may take them out of a list while the kernel runs."""
    for k in range(count):
        one = list_item(sequence, k) if type_of(sequence) == type_of_lists() else item(sequence, k)
        increase(one)
        store_i64(target, 8 * k, one)


@native
def launch_over(front, given, extents, dims, rank):
    """Launch over extents; return what Python gets, or 0 with no error where only Python can tell."""
    inputs, outputs = load_i64(given, 8 * INPUTS), load_i64(given, 8 * OUTPUTS)
    before, after = length(inputs), length(outputs)
    if before < 0 or after < 0 or before + after > nb.MAX_ARGUMENTS:
        return 0
    like = launcher_like(front, given, rank)
    if like == 0:
        return 0
    count = before + after
    plan, call = stack(nb.PLAN_SIZE), stack(8 * (count + _BEFORE))
    passed = call + 8 * _BEFORE
    lay_out_plan(plan, to_address(item(self_of(like), 0)), dims, rank)
    gather(inputs, before, passed)
    gather(outputs, after, passed + 8 * before)
    answer = launch_spread(plan, passed, count) if has_spreads(plan) else 0
    if answer == 0 and error_occurred() == 0:
        outcome = attempt(plan, passed, count)
        if outcome == nb.MISSED:
            # With what was read, since reading may run code that changes the lists.
            block, device = load_i64(given, 8 * BLOCK), load_i64(given, 8 * DEVICE)
            store_i64(call, 0, load_i64(given, 8 * KERNEL))
            store_i64(call, 8, extents)
            store_i64(call, 16, block if block != 0 else item(front, nb.FRONT_BLOCK))
            store_i64(call, 24, device if device != 0 else none())
            answer = call_with(item(front, nb.FRONT_MISSED), call, count + _BEFORE, 0)
        else:
            answer = answered(self_of(like), outcome, passed, count)
    for k in range(count):
        decrease(load_i64(passed, 8 * k))
    decrease(like)
    return answer


@native
def launch(self, arguments, count, names):
    """Launch as `numbridge.kernels.launch.launch` does."""
    front, given, dims = load_i64(state(), nb.STATE_FRONT), stack(8 * _PLACES), stack(8 * nb.MAX_DIMS)
    if sorted_out(front, given, arguments, count, names, BLOCK):
        extents = as_plain(load_i64(given, 8 * EXTENTS))
        rank = count_of(extents, dims) if extents != 0 and is_plain(extents) else 0
        answer = launch_over(front, given, extents, dims, rank) if rank > 0 else 0
        if extents != 0:
            decrease(extents)
        if answer != 0 or error_occurred() != 0:
            return answer
    return call_with(item(front, nb.FRONT_LAUNCH), arguments, count, names)


@native
def forall(self, arguments, count, names):
    """Return the launcher that `Kernel.forall` does."""
    front, given = load_i64(state(), nb.STATE_FRONT), stack(8 * _PLACES)
    # The block may be passed third.
    placed = INPUTS if count == INPUTS + 1 and names == 0 else count
    if sorted_out(front, given, arguments, placed, names, INPUTS):
        if count > placed:
            store_i64(given, 8 * BLOCK, load_i64(arguments, 8 * placed))
        if load_i64(given, 8 * INPUTS) == 0 and load_i64(given, 8 * OUTPUTS) == 0:
            known = known_launcher(front, given)
            if known != 0:
                return known
    return call_with(item(front, nb.FRONT_FORALL), arguments, count, names)


@native
def configure(self, arguments, count, names):
    """Return the launcher that ``kernel[blocks, threads]`` does."""
    front = load_i64(state(), nb.STATE_FRONT)
    if count == 2 and names == 0:
        kernel, configuration = load_i64(arguments, 0), load_i64(arguments, 8)
        if is_plain_configuration(configuration):
            known = remembered(front, kernel, item(front, nb.FRONT_BRACKETS), configuration)
            if known != 0:
                return known
    return call_with(item(front, nb.FRONT_CONFIGURE), arguments, count, names)
