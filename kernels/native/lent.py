"""Compiled: which memory is lent, that is, must not be written under any name although its name cannot say so.

The pieces lie in one block, sorted by their first address, and each knows how far it and those before it reach, so that
an address is looked up by bisection. Pieces may overlap and repeat; each ends by itself. All of this runs under the GIL and
calls nothing that could let go of it, so that a reader never meets a block half changed.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import external, load_i64, native, store_i64, symbol

intp = types.int64
state = symbol("numbridge_state")

resize = external("realloc", intp, intp, intp)
move = external("memmove", intp, intp, intp, intp)
int_value = external("PyLong_AsLongLong", intp, intp)
address_value = external("PyLong_AsVoidPtr", intp, intp)
new_int = external("PyLong_FromLongLong", intp, intp)
no_memory = external("PyErr_NoMemory", intp)

FIRST_ROOM = 32

EXPORTS = {
    "numbridge_lend": ("lend", "int64(int64, int64, int64)"),
    "numbridge_end_lease": ("end_lease", "int64(int64, int64, int64)"),
    "numbridge_lent_at": ("lent_at", "int64(int64, int64)"),
}


@native
def place_behind(pieces, count, address):
    """Return how many pieces begin at or before an address."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if load_i64(pieces, middle * nb.LENT_SIZE + nb.LENT_FIRST) <= address:
            low = middle + 1
        else:
            high = middle
    return low


@native
def lent_bits(pieces, address, wanted):
    """Return the bits of a lent piece in which `address` lies, if it has `wanted` (READ_ONLY or IMMUTABLE), or 0."""
    k = place_behind(pieces, load_i64(state(), nb.STATE_LENT_COUNT), address) - 1
    while k >= 0 and load_i64(pieces, k * nb.LENT_SIZE + nb.LENT_REACH) > address:
        piece = pieces + k * nb.LENT_SIZE
        bits = load_i64(piece, nb.LENT_BITS)
        if load_i64(piece, nb.LENT_BEHIND) > address and bits & wanted != 0:
            return bits
        k -= 1
    return 0


@native
def extend_reach(pieces, count, start):
    """Renew how far the pieces from `start` on reach."""
    reach = load_i64(pieces, (start - 1) * nb.LENT_SIZE + nb.LENT_REACH) if start > 0 else 0
    for k in range(start, count):
        piece = pieces + k * nb.LENT_SIZE
        reach = max(reach, load_i64(piece, nb.LENT_BEHIND))
        store_i64(piece, nb.LENT_REACH, reach)


@native
def with_room(count):
    """Return the block of pieces, with room for one more than `count`, or 0."""
    pieces, room = load_i64(state(), nb.STATE_LENT), load_i64(state(), nb.STATE_LENT_ROOM)
    if count < room:
        return pieces
    room = max(2 * room, FIRST_ROOM)
    pieces = resize(pieces, room * nb.LENT_SIZE)
    if pieces != 0:
        store_i64(state(), nb.STATE_LENT, pieces)
        store_i64(state(), nb.STATE_LENT_ROOM, room)
    return pieces


@native
def lend(self, arguments, argument_count):
    """``lend(first, behind, bits)``: remember a piece of memory, for each call once."""
    count = load_i64(state(), nb.STATE_LENT_COUNT)
    pieces = with_room(count)
    if pieces == 0:
        return no_memory()
    first = address_value(load_i64(arguments, 0))
    k = place_behind(pieces, count, first)
    piece = pieces + k * nb.LENT_SIZE
    move(piece + nb.LENT_SIZE, piece, (count - k) * nb.LENT_SIZE)
    store_i64(piece, nb.LENT_FIRST, first)
    store_i64(piece, nb.LENT_BEHIND, address_value(load_i64(arguments, 8)))
    store_i64(piece, nb.LENT_BITS, int_value(load_i64(arguments, 16)))
    extend_reach(pieces, count + 1, k)
    store_i64(state(), nb.STATE_LENT_COUNT, count + 1)
    return new_int(count + 1)


@native
def end_lease(self, arguments, argument_count):
    """``end_lease(first, behind, bits)``: forget a piece that was lent, one of those that are alike."""
    pieces, count = load_i64(state(), nb.STATE_LENT), load_i64(state(), nb.STATE_LENT_COUNT)
    first, behind = address_value(load_i64(arguments, 0)), address_value(load_i64(arguments, 8))
    bits = int_value(load_i64(arguments, 16))
    k = place_behind(pieces, count, first) - 1
    while k >= 0 and load_i64(pieces, k * nb.LENT_SIZE + nb.LENT_FIRST) == first:
        piece = pieces + k * nb.LENT_SIZE
        if load_i64(piece, nb.LENT_BEHIND) == behind and load_i64(piece, nb.LENT_BITS) == bits:
            move(piece, piece + nb.LENT_SIZE, (count - k - 1) * nb.LENT_SIZE)
            count -= 1
            extend_reach(pieces, count, k)
            store_i64(state(), nb.STATE_LENT_COUNT, count)
            break
        k -= 1
    return new_int(count)


@native
def lent_at(self, address):
    """``lent_at(address)``: the bits of immutable memory that was lent and holds an address, or 0."""
    if load_i64(state(), nb.STATE_LENT_COUNT) == 0:
        return new_int(0)
    return new_int(lent_bits(load_i64(state(), nb.STATE_LENT), address_value(address), nb.IMMUTABLE))
