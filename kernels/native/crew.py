"""Compiled: the threads of a block on the CPU, which one worker runs in turn from one place where they wait to the next.

Each thread is a coroutine (LLVM's "switched-resume lowering", https://llvm.org/docs/Coroutines.html) that says what it waits
for before it suspends itself. Here is who goes on when: lanes of a warp once all that they name have come, threads of a block
once none of them runs. A thread that asks memory for what others do there lets those run first. A thread that is through is
waited for by nobody, as on a GPU; a lane that a warp lacks neither.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import external, load_i64, native, store_i64, symbol

intp = types.int64
state = symbol("numbridge_state")
allocate = external("malloc", intp, intp)
free = external("free", types.void, intp)

# Frames hold vectors, of up to 64 bytes.
ALIGNMENT = 64

EXPORTS = {
    "numbridge_crew_begin": ("begin", "int64(int64, int64)"),
    "numbridge_crew_frame": ("frame", "int64(int64, int64, int64)"),
    "numbridge_crew_memory": ("memory", "int64(int64, int64, int64)"),
    "numbridge_crew_lend": ("lend", "int64(int64, int64, int64)"),
    "numbridge_crew_take_back": ("take_back", "void(int64, int64)"),
    "numbridge_crew_run": ("run", "int64(int64, int64)"),
    "numbridge_crew_end": ("end", "void(int64)"),
    "numbridge_grid_begin": ("begin_grid", "int64(int64)"),
    "numbridge_grid_add": ("add_crew", "int64(int64, int64, int64, int64)"),
    "numbridge_grid_run": ("run_grid", "int64(int64, int64)"),
    "numbridge_grid_end": ("end_grid", "void(int64, int64)"),
}


@intrinsic
def resume(typing_context: Any, handle: Any) -> Any:
    """Let a coroutine go on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.coro.resume")
        builder.call(function, [builder.inttoptr(arguments[0], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@native
def obtain(size):
    """Return new memory, or 0 if there is none, which is written down."""
    address = allocate(size)
    if address == 0:
        store_i64(state(), nb.STATE_LACKING, size)
    return address


@native
def begin(count, dynamic):
    """Return a new crew of so many threads with so many bytes of dynamic shared memory, or 0."""
    crew = obtain(nb.CREW_SIZE + nb.THREAD_SIZE * count)
    if crew == 0:
        return 0
    for k in range(nb.CREW_SIZE // 8):
        store_i64(crew, 8 * k, 0)
    store_i64(crew, nb.CREW_COUNT, count)
    if dynamic > 0:
        store_i64(crew, nb.CREW_DYNAMIC, obtain(dynamic))
        store_i64(crew, nb.CREW_DYNAMIC_SIZE, dynamic)
        if load_i64(crew, nb.CREW_DYNAMIC) == 0:
            free(crew)
            return 0
    return crew


@native
def frame(crew, thread, size):
    """Return the memory of a thread's coroutine, of which all have the same size, or 0."""
    if load_i64(crew, nb.CREW_FRAMES) == 0:
        step = (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        store_i64(crew, nb.CREW_FRAME_SIZE, step)
        store_i64(crew, nb.CREW_FRAMES, obtain(step * load_i64(crew, nb.CREW_COUNT) + ALIGNMENT))
    frames = load_i64(crew, nb.CREW_FRAMES)
    if frames == 0:
        store_i64(crew, nb.CREW_FAILED, nb.CREW_RAISED)
        return 0
    first = (frames + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    return first + thread * load_i64(crew, nb.CREW_FRAME_SIZE)


@native
def memory(crew, key, size):
    """Return the static shared memory under a key, which whichever thread asks first makes, or 0."""
    piece = load_i64(crew, nb.CREW_SHARED)
    while piece != 0 and load_i64(piece, nb.PIECE_KEY) != key:
        piece = load_i64(piece, nb.PIECE_NEXT)
    if piece == 0:
        piece = obtain(nb.PIECE_MEMORY + size)
        if piece == 0:
            return 0
        store_i64(piece, nb.PIECE_KEY, key)
        store_i64(piece, nb.PIECE_NEXT, load_i64(crew, nb.CREW_SHARED))
        store_i64(crew, nb.CREW_SHARED, piece)
    return piece + nb.PIECE_MEMORY


@native
def unlink(crew, lent):
    """Take memory out of what a crew has lent."""
    before, after = load_i64(lent, nb.LOAN_BEFORE), load_i64(lent, nb.LOAN_AFTER)
    if after != 0:
        store_i64(after, nb.LOAN_BEFORE, before)
    if before != 0:
        store_i64(before, nb.LOAN_AFTER, after)
    else:
        store_i64(crew, nb.CREW_LOANS, after)


@native
def lend(crew, memory, size):
    """Return memory of so many bytes with what some, or none, held; or 0, which leaves it as it is."""
    lent = obtain(nb.LOAN_MEMORY + size)
    if lent == 0:
        return 0
    if memory != 0:
        old = memory - nb.LOAN_MEMORY
        for k in range(0, load_i64(old, nb.LOAN_SIZE), 8):
            store_i64(lent, nb.LOAN_MEMORY + k, load_i64(memory, k))
        unlink(crew, old)
        free(old)
    following = load_i64(crew, nb.CREW_LOANS)
    store_i64(lent, nb.LOAN_BEFORE, 0)
    store_i64(lent, nb.LOAN_AFTER, following)
    store_i64(lent, nb.LOAN_SIZE, size)
    if following != 0:
        store_i64(following, nb.LOAN_BEFORE, lent)
    store_i64(crew, nb.CREW_LOANS, lent)
    return lent + nb.LOAN_MEMORY


@native
def take_back(crew, memory):
    """Free what was lent to a thread, if anything was."""
    if memory != 0:
        unlink(crew, memory - nb.LOAN_MEMORY)
        free(memory - nb.LOAN_MEMORY)


@native
def end(crew):
    """Free a crew with all its memory."""
    while load_i64(crew, nb.CREW_LOANS) != 0:
        take_back(crew, load_i64(crew, nb.CREW_LOANS) + nb.LOAN_MEMORY)
    piece = load_i64(crew, nb.CREW_SHARED)
    while piece != 0:
        following = load_i64(piece, nb.PIECE_NEXT)
        free(piece)
        piece = following
    free(load_i64(crew, nb.CREW_DYNAMIC))
    free(load_i64(crew, nb.CREW_FRAMES))
    free(crew)


@native
def lanes_of(threads, first, last, lane):
    """Return which lanes a lane waits for: those that it names, without those that are through or not there."""
    named = load_i64(threads, (first + lane) * nb.THREAD_SIZE + nb.THREAD_MASK) | (1 << lane)
    found = 0
    for k in range(last - first):
        waits = load_i64(threads, (first + k) * nb.THREAD_SIZE + nb.THREAD_WAITS)
        if (named >> k) & 1 != 0 and waits != nb.IS_THROUGH:
            found |= 1 << k
    return found


@native
def have_come(threads, first, group, mask):
    """Tell whether all lanes of a group wait for lanes, and name the same ones."""
    for k in range(nb.WARP_SIZE):
        thread, named = threads + (first + k) * nb.THREAD_SIZE, (group >> k) & 1 != 0
        if named and load_i64(thread, nb.THREAD_WAITS) != nb.WAITS_FOR_LANES:
            return False
        if named and load_i64(thread, nb.THREAD_MASK) != mask:
            return False
    return True


@native
def lanes_at(threads, first, last, place):
    """Return which lanes wait at a place."""
    found = 0
    for k in range(last - first):
        thread = threads + (first + k) * nb.THREAD_SIZE
        waits, mask = load_i64(thread, nb.THREAD_WAITS), load_i64(thread, nb.THREAD_MASK)
        if waits == nb.WAITS_AT_PLACE and mask == place:
            found |= 1 << k
    return found


@native
def find_groups(threads, first, last, kind):
    """Find the lanes that may go on of those that wait in one way, and with whom each does; return which they are."""
    found = 0
    for k in range(last - first):
        thread = threads + (first + k) * nb.THREAD_SIZE
        if load_i64(thread, nb.THREAD_WAITS) == kind:
            mask = load_i64(thread, nb.THREAD_MASK)
            if kind == nb.WAITS_AT_PLACE:
                group = lanes_at(threads, first, last, mask)
            else:
                group = lanes_of(threads, first, last, k)
            if kind == nb.WAITS_AT_PLACE or have_come(threads, first, group, mask):
                store_i64(thread, nb.THREAD_GROUP, group)
                found |= 1 << k
    return found


@native
def let_lanes_through(threads, first, last):
    """Let those lanes of a warp go on that have all come; return which they are."""
    found = find_groups(threads, first, last, nb.WAITS_FOR_LANES)
    if found == 0:
        # Nobody else can come to where lanes wait for whoever comes.
        found = find_groups(threads, first, last, nb.WAITS_AT_PLACE)
    for k in range(last - first):
        if (found >> k) & 1 != 0:
            thread = threads + (first + k) * nb.THREAD_SIZE
            # What was told is kept apart: whoever goes on may tell the next thing before others have heard this.
            store_i64(thread, nb.THREAD_TOLD, load_i64(thread, nb.THREAD_GIVEN))
            store_i64(thread, nb.THREAD_WAITS, nb.WAITS_FOR_NOTHING)
    return found


@native
def run_warp(threads, first, last):
    """Run the threads of a warp until each waits for the block, is through, or waits for lanes that do not come."""
    while True:
        in_lanes = 0
        for k in range(first, last):
            thread = threads + k * nb.THREAD_SIZE
            if load_i64(thread, nb.THREAD_WAITS) == nb.WAITS_FOR_NOTHING:
                resume(load_i64(thread, nb.THREAD_HANDLE))
            waits = load_i64(thread, nb.THREAD_WAITS)
            if waits == nb.WAITS_FOR_LANES or waits == nb.WAITS_AT_PLACE:
                in_lanes += 1
        if in_lanes == 0 or let_lanes_through(threads, first, last) == 0:
            return 0


@native
def report_stuck(threads, count, block, kind):
    """Write down which thread of a block waits in vain in some way."""
    for k in range(count):
        thread = threads + k * nb.THREAD_SIZE
        if load_i64(thread, nb.THREAD_WAITS) == kind:
            store_i64(state(), nb.STATE_STUCK_THREAD, k)
            store_i64(state(), nb.STATE_STUCK_MASK, load_i64(thread, nb.THREAD_MASK))
            store_i64(state(), nb.STATE_STUCK, block + 1)
            return nb.CREW_STUCK
    return nb.CREW_STUCK


@native
def let_take_turns(threads, count):
    """Let the threads go on that have let others run first; return how many they are."""
    found = 0
    for k in range(count):
        thread = threads + k * nb.THREAD_SIZE
        if load_i64(thread, nb.THREAD_WAITS) == nb.WAITS_FOR_TURN:
            store_i64(thread, nb.THREAD_WAITS, nb.WAITS_FOR_NOTHING)
            found += 1
    return found


@native
def run(crew, block):
    """Run the threads of a block until all are through, or wait for all blocks; return how that ended."""
    count, threads = load_i64(crew, nb.CREW_COUNT), crew + nb.CREW_SIZE
    while True:
        first = 0
        while first < count:
            run_warp(threads, first, min(first + nb.WARP_SIZE, count))
            first += nb.WARP_SIZE
        failed = load_i64(crew, nb.CREW_FAILED)
        if failed != 0:
            return failed
        if let_take_turns(threads, count) > 0:
            continue
        arrived, told, in_lanes, at_grid = 0, 0, 0, 0
        for k in range(count):
            thread = threads + k * nb.THREAD_SIZE
            waits = load_i64(thread, nb.THREAD_WAITS)
            if waits == nb.WAITS_FOR_BLOCK:
                arrived += 1
                if load_i64(thread, nb.THREAD_GIVEN) != 0:
                    told += 1
                store_i64(thread, nb.THREAD_WAITS, nb.WAITS_FOR_NOTHING)
            elif waits == nb.WAITS_FOR_LANES:
                in_lanes += 1
            elif waits == nb.WAITS_FOR_GRID:
                at_grid += 1
        if in_lanes > 0:
            return report_stuck(threads, count, block, nb.WAITS_FOR_LANES)
        if arrived == 0:
            return nb.CREW_AT_GRID if at_grid > 0 else nb.CREW_DONE
        if at_grid > 0:
            return report_stuck(threads, count, block, nb.WAITS_FOR_GRID)
        store_i64(crew, nb.CREW_ARRIVED, arrived)
        store_i64(crew, nb.CREW_TRUE, told)


@native
def begin_grid(blocks):
    """Return room for the crews of so many blocks, none of which is there yet, or 0."""
    crews = obtain(8 * blocks)
    for k in range(blocks if crews != 0 else 0):
        store_i64(crews, 8 * k, 0)
    return crews


@native
def add_crew(crews, block, count, dynamic):
    """Return the new crew of a block, or 0; see `begin`."""
    crew = begin(count, dynamic)
    store_i64(crews, 8 * block, crew)
    return crew


@native
def run_grid(crews, blocks):
    """Run the threads of all blocks, one block after another from one place where they wait for all to the next."""
    while True:
        at_grid = 0
        for block in range(blocks):
            ended = run(load_i64(crews, 8 * block), block)
            if ended == nb.CREW_AT_GRID:
                at_grid += 1
            elif ended != nb.CREW_DONE:
                return ended
        if at_grid == 0:
            return nb.CREW_DONE
        for block in range(blocks):
            crew = load_i64(crews, 8 * block)
            for k in range(load_i64(crew, nb.CREW_COUNT)):
                thread = crew + nb.CREW_SIZE + k * nb.THREAD_SIZE
                if load_i64(thread, nb.THREAD_WAITS) == nb.WAITS_FOR_GRID:
                    store_i64(thread, nb.THREAD_WAITS, nb.WAITS_FOR_NOTHING)


@native
def end_grid(crews, blocks):
    """Free the crews that are there."""
    for block in range(blocks):
        if load_i64(crews, 8 * block) != 0:
            end(load_i64(crews, 8 * block))
    free(crews)
