"""Compiled: the calls that launch, up to the launcher: `launch`, `Kernel.forall` and ``kernel[blocks, threads]``.

Each stands before a Python function of the same parameters (see `machine.front`), and answers the usual call by itself: a kernel,
extents of plain ints that were asked for before, a device or a shape of blocks, and lists of arguments. What those make of the
kernel is remembered in its ``launchers``, by the block or device or what stands for brackets, and then by the extents. Any other
call goes to the Python function, with the same arguments: it refuses, or does the work and remembers.

``STATE_FRONT`` holds the tuple whose places are said in `table_layout`. The GIL must be held.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.entry import MAX_ARGUMENTS, none
from numbridge.kernels.native.memory import external, inlined, load_i64, native, stack, store_i64, symbol
from numbridge.kernels.native.reading import call_with, clear_error, decrease, increase, intp, item, state

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

# Places of a call's arguments, in the order in which they are passed; block and device go by name here.
KERNEL, EXTENTS, INPUTS, OUTPUTS, BLOCK, DEVICE = range(6)
_PLACES = 6


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
def launch(self, arguments, count, names):
    """Launch as `numbridge.kernels.launch.launch` does."""
    front, given = load_i64(state(), nb.STATE_FRONT), stack(8 * _PLACES)
    if sorted_out(front, given, arguments, count, names, BLOCK):
        inputs, outputs = load_i64(given, 8 * INPUTS), load_i64(given, 8 * OUTPUTS)
        before, after = length(inputs), length(outputs)
        if before >= 0 and after >= 0 and before + after <= MAX_ARGUMENTS:
            known = known_launcher(front, given)
            if known != 0:
                total = before + after
                passed = stack(8 * total)
                gather(inputs, before, passed)
                gather(outputs, after, passed + 8 * before)
                answer = call_with(known, passed, total, 0)
                for k in range(total):
                    decrease(load_i64(passed, 8 * k))
                decrease(known)
                if answer == 0:
                    return 0
                decrease(answer)
                increase(none())
                return none()
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
