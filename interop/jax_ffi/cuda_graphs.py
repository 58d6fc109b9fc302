"""Compiled: the handler of a plan on CUDA, which replays a CUDA graph of its launches.

A graph holds addresses and extents, so there is one for each set of buffers that XLA passes: batches of other sizes come at the
same addresses, too. As many as the plan's capacity says are kept for each device. The first execution on some buffers captures
the launches on a stream of its own. When there is no room, the graph that was not used for the longest time is updated to these
buffers: both have the same nodes. While XLA itself captures the stream, the launches go there as they are, into XLA's graph.

A graph must not be used by two threads at once, so all of this happens under the plan's lock, without the GIL and without
calling Python. A graph that is in use by the device may be updated or destroyed: the driver lets what was launched finish.

Functions of the driver: CUDA Driver API (cuda.h), ``cuStreamIsCapturing``, ``cuStreamBeginCapture``, ``cuStreamEndCapture``,
``cuGraphInstantiateWithFlags``, ``cuGraphExecUpdate``, ``cuGraphLaunch``, ``cuKernelGetFunction``. Importing this module imports
Numba.
"""

from __future__ import annotations

from numba import types

from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.compiled import (
    acquire,
    args_array,
    args_size,
    buffer_at,
    buffer_data,
    buffer_dims,
    buffer_rank,
    find_code,
    is_answered,
    release_lock,
    report,
    rets_array,
    rets_size,
    room,
)
from numbridge.jax_ffi.compiled_plan import lay_out_step, plan_of, step_room
from numbridge.jax_ffi.cuda_compiled import code_of, enter_context, execute, leave_context, where_to_run
from numbridge.kernels.native.memory import (
    external,
    indirect,
    inlined,
    load_i32,
    load_i64,
    native,
    stack,
    store_i64,
)

EXPORTS = {
    "numbridge_xla_plan_cuda": ("handle", "int64(int64)"),
    "numbridge_xla_forget_graphs": ("forget", "void(int64, int64)"),
}

allocate = external("malloc", types.int64, types.int64)
release = external("free", types.void, types.int64)
call_one, call_two, call_three = (indirect(types.int32, count) for count in (1, 2, 3))

# CUstream_flags, CUstreamCaptureMode: the capture must not be disturbed by, nor disturb, what other threads do.
NON_BLOCKING, RELAXED = 1, 2
UPDATE_RESULT_SIZE = 32


@inlined
def refused(code):
    """Return the outcome of a CUresult."""
    return nb.DONE if code == 0 else nb.DRIVER_REFUSED | types.int64(code) << 8


@native
def explain_step(frame, step, outcome):
    """Return what `report` says of one step."""
    out = stack(step_room(step))
    lay_out_step(frame, step, out)
    return report(out, outcome)


@native
def find_kernels(frame, plan):
    """Let the code of every step be there, which may have to be compiled; return XLA's error, or 0."""
    step = plan + nb.PLAN_STEPS
    for _ in range(load_i64(plan, nb.PLAN_COUNT)):
        if code_of(step + load_i64(step, nb.STEP_WORDS)) == 0:
            error = explain_step(frame, step, nb.UNKNOWN_ON_CUDA)
            if error != 0:
                return error
        step += load_i64(step, nb.STEP_SIZE)
    return 0


@native
def launch_step(frame, step, stream):
    """Launch one step on a stream; return the outcome."""
    out = stack(step_room(step))
    lay_out_step(frame, step, out)
    return execute(out, stream)


@native
def launch_steps(frame, plan, stream, where):
    """Launch all steps on a stream; return the outcome, with the step that failed, or 0, in `where`."""
    step = plan + nb.PLAN_STEPS
    for _ in range(load_i64(plan, nb.PLAN_COUNT)):
        store_i64(where, 0, step)
        outcome = launch_step(frame, step, stream)
        if outcome != nb.DONE:
            return outcome
        step += load_i64(step, nb.STEP_SIZE)
    store_i64(where, 0, 0)
    return nb.DONE


# --------------------------------------------------------------------------------------------------------------------
# The graphs of a plan


@inlined
def buffer_of(frame, k):
    """Return a buffer, operands first."""
    operands = load_i64(frame, args_size)
    array = load_i64(frame, args_array) if k < operands else load_i64(frame, rets_array)
    return buffer_at(array, k if k < operands else k - operands)


@native
def fits(frame, graph, ordinal):
    """Tell whether a graph is for this device and these buffers: their addresses, and their extents, as launches have them."""
    if load_i64(graph, nb.GRAPH_ORDINAL) != ordinal:
        return False
    known = graph + nb.GRAPH_BUFFERS
    end = known + 8 * load_i64(graph, nb.GRAPH_COUNT)
    for k in range(load_i64(frame, args_size) + load_i64(frame, rets_size)):
        buffer = buffer_of(frame, k)
        rank, dims = load_i64(buffer, buffer_rank), load_i64(buffer, buffer_dims)
        if known + 16 + 8 * rank > end:
            return False
        differences = load_i64(known, 0) ^ load_i64(buffer, buffer_data) | load_i64(known, 8) ^ rank
        for axis in range(rank):
            differences |= load_i64(known, 16 + 8 * axis) ^ load_i64(dims, 8 * axis)
        if differences != 0:
            return False
        known += 16 + 8 * rank
    return known == end


@native
def count_words(frame):
    """Return how many words the addresses, ranks and extents of the buffers take."""
    count = 0
    for k in range(load_i64(frame, args_size) + load_i64(frame, rets_size)):
        count += 2 + load_i64(buffer_of(frame, k), buffer_rank)
    return count


@native
def remember_buffers(frame, graph):
    """Write the addresses, ranks and extents of the buffers into a graph, as `fits` reads them."""
    target = graph + nb.GRAPH_BUFFERS
    for k in range(load_i64(frame, args_size) + load_i64(frame, rets_size)):
        buffer = buffer_of(frame, k)
        rank, dims = load_i64(buffer, buffer_rank), load_i64(buffer, buffer_dims)
        store_i64(target, 0, load_i64(buffer, buffer_data))
        store_i64(target, 8, rank)
        for axis in range(rank):
            store_i64(target, 16 + 8 * axis, load_i64(dims, 8 * axis))
        target += 16 + 8 * rank


@inlined
def take(graphs, previous, graph):
    """Take a graph out of the list; `previous` is where the list, or the graph before it, refers to it."""
    store_i64(previous, 0, load_i64(graph, nb.GRAPH_NEXT))
    store_i64(graphs, nb.GRAPHS_COUNT, load_i64(graphs, nb.GRAPHS_COUNT) - 1)


@inlined
def put_first(graphs, graph):
    """Put a graph in front of the list."""
    store_i64(graph, nb.GRAPH_NEXT, load_i64(graphs, nb.GRAPHS_HEAD))
    store_i64(graphs, nb.GRAPHS_HEAD, graph)
    store_i64(graphs, nb.GRAPHS_COUNT, load_i64(graphs, nb.GRAPHS_COUNT) + 1)


@inlined
def find_graph(frame, graphs, ordinal):
    """Return the graph for this device and these buffers, now in front of the list, or 0."""
    previous = graphs + nb.GRAPHS_HEAD
    graph = load_i64(previous, 0)
    while graph != 0:
        if fits(frame, graph, ordinal):
            take(graphs, previous, graph)
            put_first(graphs, graph)
            return graph
        previous = graph + nb.GRAPH_NEXT
        graph = load_i64(previous, 0)
    return 0


@native
def take_oldest(graphs, ordinal):
    """Take that graph out of the list which a device did not use for the longest time, if it has no room for another; or 0."""
    previous, oldest, count = graphs + nb.GRAPHS_HEAD, 0, 0
    graph = load_i64(previous, 0)
    while graph != 0:
        if load_i64(graph, nb.GRAPH_ORDINAL) == ordinal:
            oldest, count = previous, count + 1
        previous = graph + nb.GRAPH_NEXT
        graph = load_i64(previous, 0)
    capacity = load_i64(graphs, nb.GRAPHS_CAPACITY)
    if oldest == 0 or capacity < 0 or count < capacity:
        return 0
    graph = load_i64(oldest, 0)
    take(graphs, oldest, graph)
    return graph


@native
def capture_on(frame, plan, stream, where, captured):
    """Capture the launches on a stream that nobody else uses; return the outcome, with the CUgraph, or 0, in `captured`."""
    begun = refused(call_two(load_i64(room(), nb.ROOM_CAPTURE_BEGIN), stream, RELAXED))
    if begun != nb.DONE:
        return begun
    outcome = launch_steps(frame, plan, stream, where)
    ended = refused(call_two(load_i64(room(), nb.ROOM_CAPTURE_END), stream, captured))
    return ended if outcome == nb.DONE else outcome


@native
def capture(frame, plan, where, captured):
    """Capture the launches; return the outcome, with the CUgraph, or 0, in `captured`."""
    place, step = stack(16), plan + nb.PLAN_STEPS
    store_i64(captured, 0, 0)
    for _ in range(load_i64(plan, nb.PLAN_COUNT)):
        # A kernel is loaded when it is first used, which waits for the device, and that cannot be captured.
        handle_of = load_i64(code_of(step + load_i64(step, nb.STEP_WORDS)), nb.CODE_HANDLE)
        loaded = refused(call_two(load_i64(room(), nb.ROOM_KERNEL_LOAD), place, handle_of))
        if loaded != nb.DONE:
            return loaded
        step += load_i64(step, nb.STEP_SIZE)
    created = refused(call_two(load_i64(room(), nb.ROOM_STREAM_CREATE), place, NON_BLOCKING))
    if created != nb.DONE:
        return created
    outcome = capture_on(frame, plan, load_i64(place, 0), where, captured)
    destroyed = refused(call_one(load_i64(room(), nb.ROOM_STREAM_DESTROY), load_i64(place, 0)))
    return destroyed if outcome == nb.DONE else outcome


@native
def instantiate(frame, graphs, ordinal, captured):
    """Make a CUgraph executable, and enter it in front of the list; return the outcome."""
    count = count_words(frame)
    graph, place = take_oldest(graphs, ordinal), stack(UPDATE_RESULT_SIZE)
    if graph != 0 and load_i64(graph, nb.GRAPH_COUNT) != count:
        # Of other buffers, whose extents it has no room for
        call_one(load_i64(room(), nb.ROOM_EXEC_DESTROY), load_i64(graph, nb.GRAPH_EXEC))
        release(graph)
        graph = 0
    if graph != 0:
        executable = load_i64(graph, nb.GRAPH_EXEC)
        if call_three(load_i64(room(), nb.ROOM_EXEC_UPDATE), executable, captured, place) != 0:
            call_one(load_i64(room(), nb.ROOM_EXEC_DESTROY), executable)
            release(graph)
            graph = 0
    if graph == 0:
        made = refused(call_three(load_i64(room(), nb.ROOM_INSTANTIATE), place, captured, 0))
        if made != nb.DONE:
            return made
        graph = allocate(nb.GRAPH_BUFFERS + 8 * count)
        store_i64(graph, nb.GRAPH_EXEC, load_i64(place, 0))
        store_i64(graph, nb.GRAPH_ORDINAL, ordinal)
        store_i64(graph, nb.GRAPH_COUNT, count)
    remember_buffers(frame, graph)
    put_first(graphs, graph)
    return nb.DONE


@native
def replay(frame, plan, graphs, place, where):
    """Launch the graph for these buffers, which is made if it is not there; return the outcome. Needs the plan's lock."""
    captured, ordinal = stack(16), load_i64(place, 8)
    graph = find_graph(frame, graphs, ordinal)
    if graph == 0:
        outcome = capture(frame, plan, where, captured)
        if outcome == nb.DONE:
            outcome = instantiate(frame, graphs, ordinal, load_i64(captured, 0))
        if load_i64(captured, 0) != 0:
            call_one(load_i64(room(), nb.ROOM_GRAPH_DESTROY), load_i64(captured, 0))
        if outcome != nb.DONE:
            return outcome
        graph = load_i64(graphs, nb.GRAPHS_HEAD)
    return refused(call_two(load_i64(room(), nb.ROOM_GRAPH_LAUNCH), load_i64(graph, nb.GRAPH_EXEC), load_i64(place, 0)))


@native
def forget(graphs, keep):
    """Destroy all graphs of a plan but the last `keep` of each device."""
    acquire(load_i64(graphs, nb.GRAPHS_LOCK), types.int32(1))
    previous = graphs + nb.GRAPHS_HEAD
    graph = load_i64(previous, 0)
    while graph != 0:
        newer, count = load_i64(graphs, nb.GRAPHS_HEAD), 0
        while newer != graph:
            count += 1 if load_i64(newer, nb.GRAPH_ORDINAL) == load_i64(graph, nb.GRAPH_ORDINAL) else 0
            newer = load_i64(newer, nb.GRAPH_NEXT)
        if count < keep:
            previous = graph + nb.GRAPH_NEXT
        else:
            take(graphs, previous, graph)
            call_one(load_i64(room(), nb.ROOM_EXEC_DESTROY), load_i64(graph, nb.GRAPH_EXEC))
            release(graph)
        graph = load_i64(previous, 0)
    release_lock(load_i64(graphs, nb.GRAPHS_LOCK))


# --------------------------------------------------------------------------------------------------------------------
# The handler


@native
def run(frame, plan, graphs, place, where):
    """Run a plan whose kernels are there; return the outcome, with the step that failed, or 0, in `where`."""
    status, stream = stack(16), load_i64(place, 0)
    store_i64(where, 0, 0)
    store_i64(status, 0, 0)
    asked = refused(call_two(load_i64(room(), nb.ROOM_IS_CAPTURING), stream, status))
    if asked != nb.DONE:
        return asked
    if load_i32(status, 0) != 0 or load_i64(graphs, nb.GRAPHS_CAPACITY) == 0:
        return launch_steps(frame, plan, stream, where)
    acquire(load_i64(graphs, nb.GRAPHS_LOCK), types.int32(1))
    outcome = replay(frame, plan, graphs, place, where)
    release_lock(load_i64(graphs, nb.GRAPHS_LOCK))
    return outcome


@native
def run_or_explain(frame, place):
    """Run a plan; return XLA's error, or 0."""
    plan, where = plan_of(frame), stack(16)
    if plan == 0:
        return report(frame, nb.WRONG_WORDS)
    error = find_kernels(frame, plan)
    if error != 0:
        return error
    low, high, table = load_i64(plan, nb.PLAN_KEY), load_i64(plan, nb.PLAN_KEY_HIGH), room() + nb.ROOM_GRAPHS
    graphs = find_code(load_i64(table, 0), low, high)
    if graphs == 0:
        error = report(frame, nb.UNKNOWN_PLAN)
        if error != 0:
            return error
        graphs = find_code(load_i64(table, 0), low, high)
    outcome = run(frame, plan, graphs, place, where)
    if outcome == nb.DONE:
        return 0
    step = load_i64(where, 0)
    return report(frame, outcome) if step == 0 else explain_step(frame, step, outcome)


@native
def handle(frame):
    """The handler: ``XLA_FFI_Error* handle(XLA_FFI_CallFrame*)``."""
    place, error = stack(16), stack(8)
    if is_answered(frame, 0, error):
        return load_i64(error, 0)
    unknown = where_to_run(frame, place)
    if unknown != 0:
        return unknown
    failed = enter_context(load_i64(place, 8), error)
    if failed != 0:
        return report(frame, nb.DRIVER_REFUSED | failed << 8)
    return leave_context(frame, error, run_or_explain(frame, place))
