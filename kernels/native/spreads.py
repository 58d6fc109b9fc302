"""Compiled: what tuples among the arguments of a launch hold, one by one.

A kernel becomes another for each way in which tuples among its arguments are built, which takes what they hold (see
`language.tuple_parameters`). A *spread* says how they are built, in numbers, so that compiled code finds that kernel's variants;
`spread_table` fills it in. The GIL must be held.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import object_layout as py
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import external, load_i64, native, stack, store_i64
from numbridge.kernels.native.reading import intp, items_of

tuple_size = external("PyTuple_Size", intp, intp)

# Where a tuple that has been entered goes on: its items, which of them is next, and how many there are
_ITEMS, _NEXT, _COUNT, _LEVEL = 0, 8, 16, 24


@native
def spread_out(spread, arguments, count, target):
    """Write the addresses of arguments, and of what tuples among them hold; False if these are built in another way."""
    if load_i64(spread, nb.SPREAD_COUNT) != count:
        return False
    levels, node = stack(_LEVEL * (nb.MAX_DEPTH + 1)), spread + nb.SPREAD_NODES
    level, filled = levels, types.int64(0)
    store_i64(level, _ITEMS, arguments)
    store_i64(level, _NEXT, 0)
    store_i64(level, _COUNT, count)
    while True:
        k = load_i64(level, _NEXT)
        if k == load_i64(level, _COUNT):
            if level == levels:
                return True
            level -= _LEVEL
            continue
        store_i64(level, _NEXT, k + 1)
        one, kind = load_i64(load_i64(level, _ITEMS), 8 * k), load_i64(node, nb.NODE_TYPE)
        if kind == 0:
            store_i64(target, 8 * filled, one)
            filled += 1
        else:
            size = load_i64(node, nb.NODE_COUNT)
            if load_i64(one, py.OBJECT_TYPE) != kind:
                return False
            # None has no items.
            if size != nb.NODE_OF_NONE:
                if tuple_size(one) != size:
                    return False
                level += _LEVEL
                store_i64(level, _ITEMS, items_of(one))
                store_i64(level, _NEXT, 0)
                store_i64(level, _COUNT, size)
        node += nb.NODE_SIZE
