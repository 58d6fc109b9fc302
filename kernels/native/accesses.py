"""Compiled: what threads of a launch that is checked for data races do to elements, noted one after the other.

The launch runs its threads in turn, so that nothing here is done by two at once. Each element that is touched has an entry in a
table, which is found by its address; there stand the last threads that have read it, stored into it and changed it atomically,
with what they had waited for. Two threads are ordered if they belong to one block and have waited for it a different number of
times, or to one warp and the later one knows that the wait for lanes which followed is over: because it waited with that lane,
or with one that knew (these are vector clocks, within a warp). Elements are what is loaded or stored at once: of vectors,
matrices and complex numbers each component. Where numbers of different sizes overlap, they are the bytes.

Of those that read an element two are kept, the last one and the farthest from it: of another block, if there is any, or of
another warp that has waited for the block as often. That is enough to find one that a thread is not ordered with, if there is
one. Likewise of those that store what is there, and of those that change it atomically. Of those that store something else the
last one is enough: who is not ordered with one before would have been found.
"""

from __future__ import annotations

from numba import types

from numbridge.kernels.native import access_layout as at
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import (
    exchange_i64,
    external,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    native,
    store_i64,
    symbol,
)

intp = types.int64
state = symbol("numbridge_races")
clear_allocate = external("calloc", intp, intp, intp)
free = external("free", types.void, intp)
sleep = external("usleep", types.int32, types.int32)

EXPORTS = {
    "numbridge_races_begin": ("begin", "int64(int64, int64, int64)"),
    "numbridge_races_watch": ("watch", "int64(int64, int64, int64, int64, int64)"),
    "numbridge_races_thread": ("thread", "void()"),
    "numbridge_races_block": ("block", "void(int64, int64, int64)"),
    "numbridge_races_of_block": ("of_block", "void(int64)"),
    "numbridge_races_resume": ("resume", "void(int64, int64, int64)"),
    "numbridge_races_forget": ("forget", "void()"),
    "numbridge_races_touch": ("touch", "void(int64, int64, int64, int64, int64)"),
    "numbridge_races_end": ("end", "int64(int64)"),
}

# Microseconds between two looks whether another launch is still checked
PAUSE = 100
FIRST_ROOM = 1 << 12
FIRST_RANGES = 64


@native
def word(place):
    return load_i64(state(), 8 * place)


@native
def put(place, value):
    store_i64(state(), 8 * place, value)


@native
def begin(program, geometry, rank):
    """Begin to check a launch, once no other is checked; return how many threads it has, or -1 if there is no memory."""
    while exchange_i64(state(), 8 * at.CHECK_LOCK, 1) != 0:
        sleep(PAUSE)
    put(at.CHECK_PROGRAM, program)
    put(at.CHECK_RANK, rank)
    total = 1
    for k in range(nb.MAX_DIMS):
        extent = load_i64(geometry, 8 * k)
        put(at.CHECK_DIMS + k, extent)
        if k < rank:
            total *= extent
        elif rank == 0:
            total *= max(extent, 1)
    put(at.CHECK_THREAD, -1)
    put(at.CHECK_EPOCH, 0)
    put(at.CHECK_BLOCK, 0)
    put(at.CHECK_BLOCK_SIZE, 0)
    put(at.CHECK_COUNT, 0)
    put(at.CHECK_GENERATION, 1)
    put(at.CHECK_SHARED_GENERATION, 1)
    put(at.CHECK_CAPACITY, FIRST_ROOM)
    put(at.CHECK_TABLE, clear_allocate(FIRST_ROOM, at.ELEMENT_SIZE))
    put(at.CHECK_ROW_COUNT, 0)
    put(at.CHECK_ROW_ROOM, FIRST_RANGES)
    put(at.CHECK_ROWS, clear_allocate(FIRST_RANGES, 8 * at.ROW_WORDS))
    put(at.CHECK_CLOCKS, 0)
    put(at.CHECK_GRIDS, 0)
    put(at.CHECK_BYTES, 0)
    put(at.RACE_PROGRAM, 0)
    put(at.RACE_LACKING, 0)
    if word(at.CHECK_TABLE) == 0 or word(at.CHECK_ROWS) == 0:
        lacks(FIRST_ROOM * at.ELEMENT_SIZE)
        return -1
    return total


@native
def lacks(size):
    """Write down that there is no memory."""
    put(at.RACE_LACKING, size)
    put(at.RACE_PROGRAM, word(at.CHECK_PROGRAM))


@native
def watch(low, high, parameter, number, ndim):
    """Have memory watched, that of a parameter or of a block, with numbers of a size; return where its row lies, or 0."""
    count = word(at.CHECK_ROW_COUNT)
    rows, size = word(at.CHECK_ROWS), 8 * at.ROW_WORDS
    for k in range(count):
        row = rows + k * size
        overlaps = load_i64(row, 8 * at.ROW_LOW) < high and low < load_i64(row, 8 * at.ROW_HIGH)
        if overlaps and load_i64(row, 8 * at.ROW_NUMBER) != number:
            put(at.CHECK_BYTES, 1)
    if number == 0:
        put(at.CHECK_BYTES, 1)
    if parameter == at.IN_SHARED_MEMORY:
        for k in range(count):
            if load_i64(rows + k * size, 8 * at.ROW_LOW) == low and load_i64(rows + k * size, 8 * at.ROW_HIGH) == high:
                return rows + k * size
    if count == word(at.CHECK_ROW_ROOM):
        wide = clear_allocate(2 * count, size)
        if wide == 0:
            lacks(2 * count * size)
            return 0
        for k in range(count * at.ROW_WORDS):
            store_i64(wide, 8 * k, load_i64(rows, 8 * k))
        free(rows)
        put(at.CHECK_ROWS, wide)
        put(at.CHECK_ROW_ROOM, 2 * count)
        rows = wide
    row = rows + count * size
    store_i64(row, 8 * at.ROW_LOW, low)
    store_i64(row, 8 * at.ROW_HIGH, high)
    store_i64(row, 8 * at.ROW_PARAMETER, parameter)
    store_i64(row, 8 * at.ROW_NUMBER, number)
    store_i64(row, 8 * at.ROW_NDIM, ndim)
    put(at.CHECK_ROW_COUNT, count + 1)
    return row


@native
def thread():
    """Say that the next thread begins, in a launch whose threads do not wait for each other."""
    put(at.CHECK_THREAD, word(at.CHECK_THREAD) + 1)


@native
def block(number, size, together):
    """Say that a block begins, one of so many that run at once: if it is the only one, in the memory of the one before."""
    put(at.CHECK_BLOCK, number)
    put(at.CHECK_BLOCK_SIZE, size)
    if together == 1:
        put(at.CHECK_SHARED_GENERATION, word(at.CHECK_SHARED_GENERATION) + 1)
    if word(at.CHECK_CLOCKS) == 0:
        put(at.CHECK_CLOCKS, clear_allocate(size * together, 8 * at.CLOCK_WORDS))
        put(at.CHECK_CLOCK_COUNT, size * together)
        if word(at.CHECK_CLOCKS) == 0:
            lacks(size * together * 8 * at.CLOCK_WORDS)


@native
def clock_of(number):
    """Return where a thread of a block has its clock."""
    return word(at.CHECK_CLOCKS) + number % word(at.CHECK_CLOCK_COUNT) * 8 * at.CLOCK_WORDS


@native
def of_block(place):
    """Say which thread of the block begins."""
    put(at.CHECK_THREAD, word(at.CHECK_BLOCK) * word(at.CHECK_BLOCK_SIZE) + place)
    put(at.CHECK_EPOCH, 0)
    if word(at.CHECK_CLOCKS) != 0:
        clock = clock_of(word(at.CHECK_THREAD))
        for k in range(at.CLOCK_WORDS):
            store_i64(clock, 8 * k, 0)


@native
def lane_of(number):
    """Return which lane of its warp a thread is."""
    return number % word(at.CHECK_BLOCK_SIZE) % nb.WARP_SIZE


@native
def learn(clock, own, group):
    """Have a lane know what those of a group know, with which it has waited."""
    waits = load_i64(clock, 8 * own)
    for lane in range(nb.WARP_SIZE):
        if (group >> lane) & 1 != 0 and lane != own:
            other = clock + (lane - own) * 8 * at.CLOCK_WORDS
            for k in range(nb.WARP_SIZE):
                # Lanes go on in the order of their numbers: those behind this one have not counted their wait yet.
                known = load_i64(other, 8 * k) + (1 if k == lane and lane > own else 0)
                store_i64(clock, 8 * k, max(known, load_i64(clock, 8 * k)))
            if lane < own:
                # The first one of them has learnt it from all already.
                break
    store_i64(clock, 8 * own, waits + 1)


@native
def forget():
    """Take all that was done for ordered with what comes."""
    put(at.CHECK_GENERATION, word(at.CHECK_GENERATION) + 1)
    put(at.CHECK_SHARED_GENERATION, word(at.CHECK_SHARED_GENERATION) + 1)


@native
def resume(number, waited, group):
    """Say which thread goes on, after it has waited for something; if for lanes, with which."""
    put(at.CHECK_THREAD, number)
    if word(at.CHECK_CLOCKS) == 0:
        return
    clock, own = clock_of(number), lane_of(number)
    if waited == nb.WAITS_FOR_LANES:
        learn(clock, own, group)
    elif waited == nb.WAITS_FOR_BLOCK:
        for k in range(nb.WARP_SIZE):
            store_i64(clock, 8 * k, 0)
        store_i64(clock, 8 * at.CLOCK_BLOCK, load_i64(clock, 8 * at.CLOCK_BLOCK) + 1)
    elif waited == nb.WAITS_FOR_TURN:
        forget()
    elif waited == nb.WAITS_FOR_GRID:
        waits = load_i64(clock, 8 * at.CLOCK_GRID) + 1
        store_i64(clock, 8 * at.CLOCK_GRID, waits)
        # The first one that goes on finds what was done before the wait; the others also what was done after it.
        if waits > word(at.CHECK_GRIDS):
            put(at.CHECK_GRIDS, waits)
            forget()
    put(at.CHECK_EPOCH, load_i64(clock, 8 * at.CLOCK_BLOCK) << at.LANES_BITS | load_i64(clock, 8 * own) << at.LINE_BITS)


@native
def row_of(address):
    """Return the row of the memory to which an address belongs, or 0."""
    rows, size = word(at.CHECK_ROWS), 8 * at.ROW_WORDS
    for k in range(word(at.CHECK_ROW_COUNT)):
        row = rows + k * size
        if load_i64(row, 8 * at.ROW_LOW) <= address and address < load_i64(row, 8 * at.ROW_HIGH):
            return row
    return 0


@native
def slot_of(table, capacity, address):
    """Return where an address has its entry, or where there is room for it."""
    mixed = (address ^ (address >> 15)) * 2654435761
    place = (mixed ^ (mixed >> 17)) & (capacity - 1)
    while True:
        entry = table + place * at.ELEMENT_SIZE
        key = load_i64(entry, at.ELEMENT_KEY)
        if key == address or key == 0:
            return entry
        place = (place + 1) & (capacity - 1)


@native
def widen():
    """Give the table twice the room; tell whether there was memory for that."""
    table, capacity = word(at.CHECK_TABLE), word(at.CHECK_CAPACITY)
    wide = clear_allocate(2 * capacity, at.ELEMENT_SIZE)
    if wide == 0:
        lacks(2 * capacity * at.ELEMENT_SIZE)
        return False
    for k in range(capacity):
        old = table + k * at.ELEMENT_SIZE
        if load_i64(old, at.ELEMENT_KEY) != 0:
            new = slot_of(wide, 2 * capacity, load_i64(old, at.ELEMENT_KEY))
            for offset in range(0, at.ELEMENT_SIZE, 8):
                store_i64(new, offset, load_i64(old, offset))
    free(table)
    put(at.CHECK_TABLE, wide)
    put(at.CHECK_CAPACITY, 2 * capacity)
    return True


@native
def entry_of(address, generation):
    """Return the entry of an address, without what is forgotten; or 0 if there is no memory for it."""
    entry = slot_of(word(at.CHECK_TABLE), word(at.CHECK_CAPACITY), address)
    if load_i64(entry, at.ELEMENT_KEY) == 0:
        if 2 * word(at.CHECK_COUNT) >= word(at.CHECK_CAPACITY):
            if not widen():
                return 0
            entry = slot_of(word(at.CHECK_TABLE), word(at.CHECK_CAPACITY), address)
        put(at.CHECK_COUNT, word(at.CHECK_COUNT) + 1)
        store_i64(entry, at.ELEMENT_KEY, address)
    if load_i64(entry, at.ELEMENT_GENERATION) != generation:
        store_i64(entry, at.ELEMENT_GENERATION, generation)
        for offset in range(at.ELEMENT_READ, at.ELEMENT_SIZE, 8):
            store_i64(entry, offset, 0)
    return entry


@native
def block_of(number):
    """Return the block of a thread; where threads do not wait for each other, each is one by itself."""
    size = word(at.CHECK_BLOCK_SIZE)
    return number // size if size > 0 else number


@native
def meets(entry, slot):
    """Tell whether the thread that runs is not ordered with the one in a slot."""
    who, how = load_i64(entry, slot) - 1, load_i64(entry, slot + 8)
    own, epoch = word(at.CHECK_THREAD), word(at.CHECK_EPOCH)
    if who < 0 or who == own:
        return False
    if block_of(who) != block_of(own):
        return True
    if (how ^ epoch) >> at.LANES_BITS != 0:
        return False
    size = word(at.CHECK_BLOCK_SIZE)
    if who % size // nb.WARP_SIZE != own % size // nb.WARP_SIZE:
        return True
    waits = (how >> at.LINE_BITS) & ((1 << (at.LANES_BITS - at.LINE_BITS)) - 1)
    return load_i64(clock_of(own), 8 * lane_of(who)) <= waits


@native
def note(entry, slot, line):
    """Note the thread that runs in a slot."""
    store_i64(entry, slot, word(at.CHECK_THREAD) + 1)
    store_i64(entry, slot + 8, word(at.CHECK_EPOCH) | line)


@native
def distance(entry, slot):
    """Return how far the thread that runs is from the one in a slot: 3 if in another block, 0 if it is ordered with it."""
    if not meets(entry, slot):
        return 0
    who, own, size = load_i64(entry, slot) - 1, word(at.CHECK_THREAD), word(at.CHECK_BLOCK_SIZE)
    if block_of(who) != block_of(own):
        return 3
    return 2 if who % size // nb.WARP_SIZE != own % size // nb.WARP_SIZE else 1


@native
def note_also(entry, slot, line):
    """Note the thread that runs in the first of two slots, and keep the farther of two others in the second."""
    if load_i64(entry, slot) != word(at.CHECK_THREAD) + 1 and distance(entry, slot) >= distance(
        entry, slot + at.SLOT_SIZE
    ):
        store_i64(entry, slot + at.SLOT_SIZE, load_i64(entry, slot))
        store_i64(entry, slot + at.SLOT_SIZE + 8, load_i64(entry, slot + 8))
    note(entry, slot, line)


@native
def met(entry, slot):
    """Return which of two slots has a thread with which the one that runs is not ordered, or 0."""
    if meets(entry, slot):
        return slot
    return slot + at.SLOT_SIZE if meets(entry, slot + at.SLOT_SIZE) else 0


@native
def is_of_both(entry, first, line):
    """Tell whether a thread has read the element where it has stored into it, and where another reads it now."""
    read = at.ELEMENT_READ if load_i64(entry, at.ELEMENT_READ) == first + 1 else at.ELEMENT_READ + at.SLOT_SIZE
    lines = (1 << at.LINE_BITS) - 1
    return (
        load_i64(entry, read) == first + 1
        and load_i64(entry, read + 8) & lines == line
        and load_i64(entry, at.ELEMENT_CHANGE + 8) & lines == line
    )


@native
def lies_in(row, address):
    """Tell whether an address belongs to an element of what is watched, and not to what lies between two of them."""
    low, count = load_i64(row, 8 * at.ROW_LOW), load_i64(row, 8 * at.ROW_NDIM)
    rest, itemsize = address - low, load_i64(row, 8 * at.ROW_HIGH) - low
    if rest < 0 or rest >= itemsize or count > at.ROW_MOST_DIMS:
        return 0 <= rest < itemsize
    for k in range(count):
        extent = load_i64(row, 8 * (at.ROW_SHAPE + k))
        itemsize -= abs(load_i64(row, 8 * (at.ROW_STRIDES + k))) * (extent - 1)
    # The longest strides first, which are each shorter than the one before.
    bound = rest + 1
    while bound > 0:
        longest = 0
        for k in range(count):
            stride = abs(load_i64(row, 8 * (at.ROW_STRIDES + k)))
            if longest < stride < bound:
                longest = stride
        most = 0
        for k in range(count):
            if abs(load_i64(row, 8 * (at.ROW_STRIDES + k))) == longest:
                most += load_i64(row, 8 * (at.ROW_SHAPE + k)) - 1
        if longest > 0:
            rest -= min(rest // longest, most) * longest
        bound = longest
    return rest < itemsize


@native
def report(entry, slot, did, now, line, address):
    """Write down that the thread that runs meets the one in a slot."""
    first, size, row = load_i64(entry, slot) - 1, 8 * at.ROW_WORDS, row_of(address)
    for k in range(word(at.CHECK_ROW_COUNT)):
        if lies_in(word(at.CHECK_ROWS) + k * size, address):
            row = word(at.CHECK_ROWS) + k * size
            break
    put(at.RACE_FIRST, first)
    put(at.RACE_FIRST_DID, did)
    put(at.RACE_FIRST_LINE, load_i64(entry, slot + 8) & ((1 << at.LINE_BITS) - 1))
    put(at.RACE_SECOND, word(at.CHECK_THREAD))
    put(at.RACE_SECOND_DID, now)
    put(at.RACE_SECOND_LINE, line)
    put(at.RACE_IS_UPDATE, did == at.CHANGES and now == at.READS and is_of_both(entry, first, line))
    put(at.RACE_RANK, word(at.CHECK_RANK))
    for k in range(nb.MAX_DIMS):
        put(at.RACE_DIMS + k, word(at.CHECK_DIMS + k))
    put(at.RACE_BLOCK_SIZE, word(at.CHECK_BLOCK_SIZE))
    put(at.RACE_OFFSET, address - load_i64(row, 8 * at.ROW_LOW))
    put(at.RACE_ALSO, at.IN_SHARED_MEMORY)
    for k in range(word(at.CHECK_ROW_COUNT)):
        other = word(at.CHECK_ROWS) + k * size
        if other != row and lies_in(other, address):
            put(at.RACE_ALSO, load_i64(other, 8 * at.ROW_PARAMETER))
    for k in range(at.ROW_WORDS):
        put(at.RACE_ROW + k, load_i64(row, 8 * k))
    put(at.RACE_PROGRAM, word(at.CHECK_PROGRAM))


@native
def held(address, size):
    """Return the bits of a number in memory."""
    if size == 1:
        return intp(load_u8(address, 0))
    if size == 2:
        return intp(load_u16(address, 0))
    if size == 4:
        return intp(load_u32(address, 0))
    return load_i64(address, 0)


@native
def touch_element(address, size, did, line, bits):
    """Note what the thread that runs does to an element."""
    if word(at.RACE_PROGRAM) != 0:
        return
    row = row_of(address)
    if row == 0:
        return
    is_shared = load_i64(row, 8 * at.ROW_PARAMETER) == at.IN_SHARED_MEMORY
    generation = word(at.CHECK_SHARED_GENERATION) if is_shared else word(at.CHECK_GENERATION)
    entry = entry_of(address, generation)
    if entry == 0:
        return
    now = did
    if did == at.CHANGES and size > 0 and held(address, size) == bits:
        now = at.STORES_THE_SAME
    change = at.ELEMENT_CHANGE if now != at.STORES_THE_SAME and meets(entry, at.ELEMENT_CHANGE) else 0
    read = met(entry, at.ELEMENT_READ) if now == at.CHANGES or now == at.CHANGES_ATOMICALLY else 0
    same = met(entry, at.ELEMENT_SAME) if now == at.CHANGES or now == at.CHANGES_ATOMICALLY else 0
    atomic = met(entry, at.ELEMENT_ATOMIC) if now != at.CHANGES_ATOMICALLY else 0
    if change != 0:
        report(entry, change, at.CHANGES, now, line, address)
    elif same != 0:
        report(entry, same, at.STORES_THE_SAME, now, line, address)
    elif read != 0:
        report(entry, read, at.READS, now, line, address)
    elif atomic != 0:
        report(entry, atomic, at.CHANGES_ATOMICALLY, now, line, address)
    if now == at.READS:
        note_also(entry, at.ELEMENT_READ, line)
    elif now == at.STORES_THE_SAME:
        note_also(entry, at.ELEMENT_SAME, line)
    elif now == at.CHANGES_ATOMICALLY:
        note_also(entry, at.ELEMENT_ATOMIC, line)
    else:
        note(entry, at.ELEMENT_CHANGE, line)


@native
def touch(address, size, did, line, bits):
    """Note what the thread that runs does to a number; of a store, that it stores these bits, unless it is of no known size."""
    if word(at.CHECK_BYTES) != 0 and size > 1:
        for k in range(size):
            touch_element(address + k, 1, did, line, (bits >> 8 * k) & 255)
    else:
        touch_element(address, size, did, line, bits)


@native
def end(failed):
    """End the check, and let another begin; return how the launch has ended: 1 if something was found."""
    found = word(at.RACE_PROGRAM)
    if found != 0:
        # Kept until somebody asks, which may be when other launches are checked.
        told = at.CHECK_TOLD
        while word(told) != 0 and told + at.RACE_WORDS < at.CHECK_WORDS:
            told += at.RACE_WORDS
        for k in range(1, at.RACE_WORDS):
            put(told + k, word(at.RACE_PROGRAM + k))
        put(told, found)
    free(word(at.CHECK_TABLE))
    free(word(at.CHECK_ROWS))
    free(word(at.CHECK_CLOCKS))
    exchange_i64(state(), 8 * at.CHECK_LOCK, 0)
    return 1 if found != 0 else failed
