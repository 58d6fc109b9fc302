"""Compiled: a checksum of memory, about as fast as it can be read.

Eight words are taken at a time, each into a sum of its own. A step maps different sums, and different words, to different
ones, so no change of a single word goes unseen; others go unseen about once in 2**64 times. The sums begin far apart, and are
put together in an order, so that words which change places between them are seen too. Large memory is cut into chunks, which
the threading layer's threads share; each chunk's sum is taken with the chunk's number, and then they are added.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.cuda_entry import restore_thread, save_thread
from numbridge.kernels.native.entry import acquire, parallel_for, release_lock, thread_count
from numbridge.kernels.native.memory import (
    external,
    function_symbol,
    inlined,
    load_i64,
    load_u8,
    native,
    stack,
    store_i64,
)
from numbridge.kernels.native.reading import state

intp = types.int64
address_value = external("PyLong_AsVoidPtr", intp, intp)
new_int = external("PyLong_FromLongLong", intp, intp)
shared_piece = function_symbol("numbridge_checksum_piece")

FACTOR = -7046029254386353131  # 2**64 divided by the golden ratio, odd
LOW_HALF = (1 << 32) - 1
# Digits of pi, without the highest bit of each word.
FIRST, SECOND, THIRD, FOURTH = 0x243F6A8885A308D3, 0x13198A2E03707344, 0x24093822299F31D0, 0x082EFA98EC4E6C89
FIFTH, SIXTH, SEVENTH, EIGHTH = 0x452821E638D01377, 0x3E5466CF34E90C6C, 0x40AC29B7C97C50DD, 0x3F84D5B5B5470917

CHUNK = 1 << 18  # bytes
# Below this it takes longer to wake the others.
SHARED_FROM = 1 << 20
PIECES_PER_THREAD = 4

# In order: what a function names must have been loaded before it.
EXPORTS = {
    "numbridge_checksum_piece": ("piece", "void(int64, int64, int64, int64)"),
    "numbridge_checksum": ("checksum", "int64(int64, int64, int64)"),
}


@inlined
def step(total, word):
    """Take a word into a sum: the product moves differences up, the shift moves them down again."""
    product = (total ^ word) * FACTOR
    return product ^ (product >> 32 & LOW_HALF)


@native
def of_bytes(place, size):
    """Return the checksum of memory; of a last word that is not whole, the bytes that are missing are zero."""
    first, second, third, fourth = FIRST, SECOND, THIRD, FOURTH
    fifth, sixth, seventh, eighth = FIFTH, SIXTH, SEVENTH, EIGHTH
    while size >= 64:
        first = step(first, load_i64(place, 0))
        second = step(second, load_i64(place, 8))
        third = step(third, load_i64(place, 16))
        fourth = step(fourth, load_i64(place, 24))
        fifth = step(fifth, load_i64(place, 32))
        sixth = step(sixth, load_i64(place, 40))
        seventh = step(seventh, load_i64(place, 48))
        eighth = step(eighth, load_i64(place, 56))
        place += 64
        size -= 64
    while size >= 8:
        first = step(first, load_i64(place, 0))
        place += 8
        size -= 8
    if size > 0:
        word = types.int64(0)
        for k in range(size):
            word |= types.int64(load_u8(place, k)) << (8 * k)
        first = step(first, word)
    total = step(step(first, FOURTH), second)
    total = step(step(total, FIRST), third)
    total = step(step(total, SECOND), fourth)
    total = step(step(total, THIRD), fifth)
    total = step(step(total, EIGHTH), sixth)
    total = step(step(total, FIFTH), seventh)
    return step(step(total, SIXTH), eighth)


@native
def of_chunks(place, size, first, last):
    """Return the sum of the checksums of chunks, each with its number."""
    total = types.int64(0)
    for k in range(first, last):
        start = k * CHUNK
        total += step(step(SEVENTH + k, of_bytes(place + start, min(CHUNK, size - start))), EIGHTH)
    return total


@native
def piece(arguments, dims, steps, work):
    """Sum up the share of the chunks that the threading layer hands to one of its threads."""
    place, size = load_i64(work, nb.SUM_PLACE), load_i64(work, nb.SUM_SIZE)
    chunks, grain = load_i64(work, nb.SUM_CHUNKS), load_i64(work, nb.SUM_GRAIN)
    begin = load_i64(arguments, 0)
    for k in range(begin, begin + load_i64(dims, 0)):
        total = of_chunks(place, size, k * grain, min((k + 1) * grain, chunks))
        store_i64(load_i64(work, nb.SUM_TOTALS), 8 * k, total)


@native
def of_shared(place, size, chunks):
    """Return the sum of all chunks, shared out among the threading layer's threads."""
    threads = types.int64(thread_count(load_i64(state(), nb.STATE_THREAD_COUNT)))
    grain = max(1, chunks // (threads * PIECES_PER_THREAD))
    pieces = (chunks + grain - 1) // grain
    work, dims, steps, arguments = stack(nb.SUM_WORK), stack(16), stack(16), stack(16)
    totals = stack(8 * pieces)
    store_i64(work, nb.SUM_PLACE, place)
    store_i64(work, nb.SUM_SIZE, size)
    store_i64(work, nb.SUM_CHUNKS, chunks)
    store_i64(work, nb.SUM_GRAIN, grain)
    store_i64(work, nb.SUM_TOTALS, totals)
    store_i64(dims, 0, pieces)
    store_i64(steps, 0, 1)
    store_i64(arguments, 0, 0)
    lock = load_i64(state(), nb.STATE_LOCK)
    if lock != 0:
        acquire(lock, types.int32(1))
    parallel_for(load_i64(state(), nb.STATE_PARALLEL_FOR), shared_piece(), arguments, dims, steps, work, 0, 1, threads)
    if lock != 0:
        release_lock(lock)
    total = types.int64(0)
    for k in range(pieces):
        total += load_i64(totals, 8 * k)
    return total


@native
def checksum(self, arguments, count):
    """``checksum(address, size)``: the checksum of so many bytes."""
    place, size = address_value(load_i64(arguments, 0)), address_value(load_i64(arguments, 8))
    if size <= CHUNK:
        return new_int(of_bytes(place, size))
    chunks = (size + CHUNK - 1) // CHUNK
    thread = save_thread()
    if size >= SHARED_FROM and load_i64(state(), nb.STATE_PARALLEL_FOR) != 0:
        total = of_shared(place, size, chunks)
    else:
        total = of_chunks(place, size, 0, chunks)
    restore_thread(thread)
    return new_int(total)
