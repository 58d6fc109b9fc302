"""Compiled: memory for stacks of adjoints (see `cpu_backend.cpu_stack`), large pieces of which are kept for the next stack.

A loop that changes arrays may push a hundred megabytes, and the next launch as many again. C's allocator gives such memory back
to the system, which takes several times as long to hand it out anew, page by page, as a stack takes to fill it. So pieces are
kept in the process's state, up to a limit for all together. A piece is kept, and taken, in one exchange of a word, so that
threads need no lock; its own first word says how large it is. All runs without the GIL.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import exchange_i64, external, load_i64, native, replace_i64, store_i64, symbol

intp = types.int64
state = symbol("numbridge_state")
reallocate = external("realloc", intp, intp, intp)
free = external("free", types.void, intp)
copy = external("memcpy", intp, intp, intp, intp)

# Smaller ones are quick to get. All together take no more than a framework's own cache of memory would.
LEAST, MOST_OF_ALL = 1 << 17, 1 << 28
FIRST = 1 << 12

EXPORTS = {
    "numbridge_stack_grow": ("grow", "int64(int64)"),
    "numbridge_stack_free": ("release", "void(int64)"),
}


@native
def count_kept(size):
    """Count so many bytes more, or fewer, among those that are kept; return how many there are then."""
    while True:
        kept = load_i64(state(), nb.STATE_SPARE_BYTES)
        if replace_i64(state(), nb.STATE_SPARE_BYTES, kept, kept + size) == kept:
            return kept + size


@native
def taken(least):
    """Return a piece that was kept, of so many bytes at least, or 0; smaller ones that are met are let go."""
    for k in range(nb.SPARE_COUNT):
        place = nb.STATE_SPARE + 8 * k
        piece = exchange_i64(state(), place, 0) if load_i64(state(), place) != 0 else 0
        if piece != 0:
            size = load_i64(piece, 0)
            count_kept(-size)
            if size >= least:
                return piece
            free(piece)
    return 0


@native
def grow(stack):
    """Double a stack's memory, at least; return 0 if there is none, which leaves the stack as it is."""
    old, capacity = load_i64(stack, nb.STACK_MEMORY), max(2 * load_i64(stack, nb.STACK_CAPACITY), FIRST)
    memory = taken(capacity) if capacity >= LEAST else 0
    if memory != 0:
        capacity = load_i64(memory, 0)
        if old != 0:
            copy(memory, old, load_i64(stack, nb.STACK_HEIGHT))
            free(old)
    else:
        memory = reallocate(old, capacity)
        if memory == 0:
            return 0
    store_i64(stack, nb.STACK_MEMORY, memory)
    store_i64(stack, nb.STACK_CAPACITY, capacity)
    return 1


@native
def release(stack):
    """Give a stack's memory back, or keep it for another stack; the stack is empty then."""
    memory, capacity = load_i64(stack, nb.STACK_MEMORY), load_i64(stack, nb.STACK_CAPACITY)
    store_i64(stack, nb.STACK_MEMORY, 0)
    store_i64(stack, nb.STACK_CAPACITY, 0)
    store_i64(stack, nb.STACK_HEIGHT, 0)
    if capacity >= LEAST:
        if count_kept(capacity) <= MOST_OF_ALL:
            store_i64(memory, 0, capacity)
            for k in range(nb.SPARE_COUNT):
                place = nb.STATE_SPARE + 8 * k
                if load_i64(state(), place) == 0 and replace_i64(state(), place, 0, memory) == 0:
                    return
        count_kept(-capacity)
    free(memory)
