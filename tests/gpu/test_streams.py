"""Streams on a real GPU: a slow kernel on one, a reader on another, in every combination; graphs; events."""

from __future__ import annotations

import functools
import gc

import numpy as np
import pytest

import numbridge as nb

# Their clocks, and what else runs, decide how long kernels take.
pytestmark = pytest.mark.alone

SLOW = 0.25  # seconds


@nb.kernel
def slowly(x, rounds, value):
    i = nb.tid()
    s = 0.0
    for _ in range(rounds):
        s = s * 0.5 + 1.0
    # s is never negative, so this is `value`; the compiler does not know.
    x[i] = value if s >= 0.0 else s


@nb.kernel
def copied(x, y):
    i = nb.tid()
    y[i] = x[i]


@pytest.fixture
def torch():
    import torch

    return torch


@pytest.fixture
def cp():
    import cupy

    return cupy


@functools.cache
def rounds():
    """Return for how many rounds `slowly` takes SLOW, as timed here."""
    a, start, end = nb.zeros(32, device="cuda"), nb.Event(enable_timing=True), nb.Event(enable_timing=True)
    stream, once = nb.Stream(), np.int64(1_000_000)
    for _ in range(2):  # the first compiles, and wakes the device up
        stream.record_event(start)
        nb.launch(slowly, 32, [a, once, 1.0], stream=stream)
        stream.record_event(end)
    return np.int64(once * SLOW * 1e3 / nb.get_event_elapsed_time(start, end))


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """Compile before anything is timed: what is slow would be over by then."""
    a, b = nb.zeros(32, device="cuda"), nb.zeros(32, device="cuda")
    nb.launch(slowly, 32, [a, rounds(), 1.0])
    nb.launch(copied, 32, [a, b])
    nb.synchronize()
    assert b.list() == [1] * 32


def test_torch_s_current_stream_is_used(torch):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.zeros(32, device="cuda")
        nb.launch(slowly, 32, [x, rounds(), 7.0])
        assert not side.query(), "the launch is not on torch's stream, or too short"
        y = x * 2
    side.synchronize()
    assert y.tolist() == [14] * 32


def test_an_array_of_a_torch_tensor_follows_torch_s_stream(torch):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        t = torch.zeros(32, device="cuda")
        a = nb.from_torch(t)
        nb.launch(slowly, 32, [t, rounds(), 3.0])
        assert not side.query()
        # Reading through the array waits for torch's stream.
        assert a.numpy().tolist() == [3] * 32


def test_mixed_streams_are_ordered(torch, cp):
    side, other = torch.cuda.Stream(), cp.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(side), other:
        t, c = torch.zeros(32, device="cuda"), cp.zeros(32, np.float32)
        nb.launch(copied, 32, [t, c])  # both kinds of arrays have been read when time matters
        t.fill_(0)  # and torch's kernel is loaded, which may wait for the device
        nb.launch(slowly, 32, [t, rounds(), 5.0])
        nb.launch(copied, 32, [t, c])
        t.fill_(9)  # on torch's stream, after the copy
        assert not other.done
        assert c.get().tolist() == [5] * 32


def test_a_scoped_stream(cp):
    a = nb.zeros(32, device="cuda")
    nb.synchronize()
    stream = nb.Stream()
    with nb.ScopedStream(stream):
        nb.launch(slowly, 32, [a, rounds(), 4.0])
        assert not stream.is_complete
        assert cp.cuda.Stream.null.done
    stream.synchronize()
    assert a.list() == [4] * 32


def test_a_block_that_is_freed_while_a_kernel_reads_it_is_safe(cp):
    source, target = nb.full(1 << 20, 6.0, device="cuda"), nb.zeros(1 << 20, device="cuda")
    gate = nb.zeros(32, device="cuda")
    nb.synchronize()
    stream = nb.Stream()
    nb.launch(slowly, 32, [gate, rounds(), 1.0], stream=stream)
    nb.launch(copied, 1 << 20, [source, target], stream=stream)
    del source
    gc.collect()
    for _ in range(4):
        nb.full(1 << 20, -1.0, device="cuda")
    stream.synchronize()
    assert (target.numpy() == 6).all()


def test_page_locked_memory_that_is_dropped_while_it_is_copied_is_safe():
    stream, n = nb.Stream(), 1 << 20
    gate, there = nb.zeros(32, device="cuda"), nb.full(n, 7.0, device="cuda")
    nb.synchronize()
    with nb.ScopedStream(stream):
        source, target = nb.full(n, 6.0, pinned=True), nb.zeros(n, pinned=True)
        nb.launch(slowly, 32, [gate, rounds(), 1.0])
        made = source.to("cuda")
        nb.copy(target, there)
        assert not stream.is_complete, "a copy waited for the device"
        del source, target
        gc.collect()
        others = [nb.full(n, -1.0, pinned=True) for _ in range(4)]
        stream.synchronize()
    assert (made.numpy() == 6).all()
    assert all((other.numpy() == -1).all() for other in others)


def test_events_and_waiting():
    first, second = nb.Stream(), nb.Stream()
    a, b = nb.zeros(32, device="cuda"), nb.zeros(32, device="cuda")
    nb.synchronize()
    start, end = nb.Event(enable_timing=True), nb.Event(enable_timing=True)
    first.record_event(start)
    nb.launch(slowly, 32, [a, rounds(), 2.0], stream=first)
    first.record_event(end)
    second.wait_event(end)
    nb.launch(copied, 32, [a, b], stream=second)
    second.synchronize()
    assert b.list() == [2] * 32
    assert nb.get_event_elapsed_time(start, end) > 1e3 * SLOW / 4
    assert end.is_complete


def test_streams_cross_between_frameworks(torch, cp):
    s = nb.Stream()
    assert nb.stream_to_torch(s).cuda_stream == s.cuda_stream == nb.stream_to_cupy(s).ptr
    t = torch.cuda.Stream()
    assert nb.stream_from_torch(t).cuda_stream == t.cuda_stream
    with torch.cuda.stream(t):
        assert nb.stream_from_torch().cuda_stream == t.cuda_stream
    with cp.cuda.Stream() as c:
        assert nb.get_stream().cuda_stream == c.ptr == nb.stream_from_cupy().cuda_stream


def test_our_graph():
    x, y = nb.full(32, 3.0, device="cuda"), nb.zeros(32, device="cuda")
    nb.launch(copied, 32, [x, y])  # compiled before it is recorded
    y.zero_()
    with nb.ScopedCapture() as capture:
        nb.launch(copied, 32, [x, y])
    assert y.list() == [0] * 32
    nb.capture_launch(capture.graph)
    assert y.list() == [3] * 32
    x.fill_(8)
    capture.graph.launch()
    assert y.list() == [8] * 32


def test_torch_s_graph(torch):
    x, y = torch.full((32,), 3.0, device="cuda"), torch.zeros(32, device="cuda")
    nb.launch(copied, 32, [x, y])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        nb.launch(copied, 32, [x, y])
    y.zero_()
    x.fill_(11)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [11] * 32


def test_arrays_of_other_streams_in_torch_s_graph(torch, cp):
    """What the graph does not hold cannot order it, and does not break it: torch waits for everything before."""
    x, ours, cupy_s = torch.full((32,), 3.0, device="cuda"), nb.zeros(32, device="cuda"), cp.zeros(32, np.float32)
    graph, stream = torch.cuda.CUDAGraph(), nb.Stream()
    nb.launch(
        copied, 32, [ours, cupy_s], stream=stream
    )  # what is kept until it is done is looked after in a capture too
    with torch.cuda.graph(graph):
        nb.launch(copied, 32, [x, ours])
        nb.launch(copied, 32, [ours, x], stream=nb.stream_from_torch())
        nb.launch(copied, 32, [x, cupy_s])
    x.fill_(11)
    graph.replay()
    torch.cuda.synchronize()
    assert ours.list() == cupy_s.tolist() == [11] * 32


def test_a_kernel_is_first_compiled_and_loaded_in_a_capture(torch):
    @nb.kernel
    def doubled(x):
        i = nb.tid()
        x[i] = 2 * x[i]

    x, graph = torch.full((32,), 3.0, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        nb.launch(doubled, 32, [x])
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [6] * 32


def test_the_caller_s_device_stays_current(torch):
    assert torch.cuda.current_device() == 0
    nb.launch(copied, 32, [torch.ones(32, device="cuda"), torch.zeros(32, device="cuda")])
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("use_nvtx", [False, True])
def test_timers_wait_for_the_device(use_nvtx):
    a = nb.zeros(32, device="cuda")
    with nb.ScopedTimer("slow", print=False, use_nvtx=use_nvtx, synchronize=True) as timer:
        nb.launch(slowly, 32, [a, rounds(), 1.0])
    assert nb.get_stream().is_complete
    assert use_nvtx or timer.elapsed > 1e3 * SLOW / 4
