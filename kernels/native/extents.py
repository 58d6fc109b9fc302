"""Compiled: whether no thread of a launch is sure to go beyond the end of an array.

Rows say what to ask (see `extent_checks`). They find extents and integers where a block of arguments has them, so every road on
which arguments are laid out asks in one way. Layout: `table_layout`.
"""

from __future__ import annotations

from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import inlined, load_i64, native, stack, store_i64

_FAR = 2.0**62


@native
def given_by(row, sizes, block, geometry):
    """Return what a row about a launch gives."""
    operation, a, b = load_i64(row, nb.REACH_OPERATION), load_i64(row, nb.REACH_A), load_i64(row, nb.REACH_B)
    if operation == nb.REACH_NUMBER:
        return a
    if operation == nb.REACH_ALONG:
        return load_i64(geometry, a)
    if operation == nb.REACH_GIVEN:
        # The block has room for 64 bits, of which those of the integer come first.
        return load_i64(block, a) << b >> b
    left, right = load_i64(sizes, 8 * a), load_i64(sizes, 8 * b)
    if operation == nb.REACH_PLUS:
        return left + right
    if operation == nb.REACH_TIMES:
        return left * right
    if operation == nb.REACH_SMALLER:
        return left if left < right else right
    if operation == nb.REACH_LARGER:
        return left if left > right else right
    # Nothing is sure of a quotient by what is not positive; Python knows.
    return left // right if right > 0 else 0


@native
def is_far(operation, left, right):
    """Tell whether 64 bits may not hold a sum or a product."""
    a, b = float(left), float(right)
    return abs(a * b if operation == nb.REACH_TIMES else a + b) > _FAR


@inlined
def long_enough(rows, count, block, geometry):
    """Tell whether all arrays are long enough for a launch of a thread or more.

    Where this tells that one is too short, Python is to be asked again: so it does, too, where 64 bits may not hold a number.
    """
    sizes, resumed = stack(8 * count), 0
    for k in range(count):
        if k < resumed:
            continue
        row = rows + k * nb.REACH_SIZE
        operation, a, b = load_i64(row, nb.REACH_OPERATION), load_i64(row, nb.REACH_A), load_i64(row, nb.REACH_B)
        if operation == nb.REACH_LEAST:
            place, more = load_i64(row, nb.REACH_C), load_i64(row, nb.REACH_D)
            moved = load_i64(sizes, 8 * place) if place >= 0 else 0
            extent = load_i64(block, a) if a >= 0 else b
            if extent < more + moved or is_far(nb.REACH_PLUS, more, moved):
                return False
        elif operation == nb.REACH_IF:
            if load_i64(sizes, 8 * a) <= 0:
                resumed = b
        else:
            is_made = operation == nb.REACH_PLUS or operation == nb.REACH_TIMES
            if is_made and is_far(operation, load_i64(sizes, 8 * a), load_i64(sizes, 8 * b)):
                return False
            store_i64(sizes, 8 * k, given_by(row, sizes, block, geometry))
    return True
