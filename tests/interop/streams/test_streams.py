"""Streams, events and graphs by what they ask of CuPy, which no device answers here: a module that notes what it is told."""

from __future__ import annotations

import contextlib
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest

import numbridge as nb
from emulated_cupy import emulated_devices
from fake_cuda import fake_cuda
from numbridge.arrays import creation
from numbridge.streams import graphs, streams


class NotedStream:
    """A stream that notes what it is told, by CuPy's names."""

    def __init__(self, noted: list, ptr: int, priority: int = 0) -> None:
        self.noted, self.ptr, self.priority = noted, ptr, priority
        self.is_non_blocking, self.capturing = True, False

    def use(self) -> None:
        self.noted.append(("use", self.ptr))

    def wait_event(self, event) -> None:
        self.noted.append(("wait", self.ptr, event.after))

    def synchronize(self) -> None:
        self.noted.append(("synchronize", self.ptr))

    def begin_capture(self) -> None:
        self.capturing = True
        self.noted.append(("begin", self.ptr))

    def end_capture(self):
        self.capturing = False
        self.noted.append(("end", self.ptr))
        return SimpleNamespace(launch=lambda stream: self.noted.append(("launch", stream.ptr)))

    def is_capturing(self) -> bool:
        return self.capturing


class NotedEvent:
    """An event that knows the stream that recorded it last."""

    def __init__(self, **options) -> None:
        self.after = None

    def record(self, stream) -> None:
        self.after = stream.ptr


@pytest.fixture
def cupy(monkeypatch):
    noted: list = []
    made: dict[int, NotedStream] = {7: NotedStream(noted, 7)}
    handles = itertools.count(100)

    def stream(non_blocking, priority=0):
        return made.setdefault(handle := next(handles), NotedStream(noted, handle, priority))

    cuda = SimpleNamespace(
        Device=lambda ordinal: contextlib.nullcontext(),
        Stream=stream,
        Event=NotedEvent,
        get_current_stream=lambda: made[7],
        runtime=SimpleNamespace(CUDARuntimeError=RuntimeError),
    )
    module = SimpleNamespace(cuda=cuda, noted=noted, streams=made)
    for room in (streams, graphs):
        monkeypatch.setattr(room, "cupy", lambda: module)
    monkeypatch.setattr(
        streams, "lent_stream", lambda handle, ordinal: made.setdefault(handle, NotedStream(noted, handle))
    )
    with fake_cuda():
        yield module


def test_a_stream_that_becomes_current_may_wait_for_the_one_before(cupy):
    stream = nb.Stream(priority=-1)
    nb.set_stream(stream)
    nb.set_stream(stream, sync=True)
    assert cupy.noted == [("use", 100), ("wait", 100, 7), ("use", 100)]
    assert (stream.priority, stream.is_blocking, stream.is_capturing) == (-1, False, False)
    del cupy.noted[:]
    nb.set_stream(7, sync=True)  # the current one itself, which has nothing to wait for
    assert cupy.noted == [("use", 7)]


def test_waiting_by_warps_names(cupy):
    stream = nb.Stream()
    nb.wait_stream(other_stream=stream)
    stream.wait_stream(other_stream=nb.get_stream())
    nb.synchronize_stream(stream)
    nb.synchronize_stream("cuda:0")
    nb.synchronize_stream(nb.get_device("cuda:0"))
    nb.synchronize_stream()
    assert cupy.noted == [("wait", 7, 100), ("wait", 100, 7), ("synchronize", 100), *[("synchronize", 7)] * 3]
    with pytest.raises(nb.NumbridgeTypeError, match="enable_timing=True"):
        nb.get_event_elapsed_time(start_event=nb.Event(), end_event=nb.Event())


@pytest.mark.parametrize("call", [nb.wait_event, nb.synchronize_event, lambda event: nb.get_stream().wait_event(event)])
def test_what_is_no_event_is_refused(cupy, call):
    with pytest.raises(nb.NumbridgeTypeError, match=r"event is None; it must be an nb\.Event"):
        call(None)
    with pytest.raises(nb.NumbridgeTypeError, match=r"event is 7; it must be an nb\.Event"):
        nb.record_event(7)
    with pytest.raises(nb.NumbridgeTypeError, match="end_event is None"):
        nb.get_event_elapsed_time(nb.Event(enable_timing=True), None)


@pytest.mark.parametrize("call", [nb.wait_stream, nb.set_stream])
def test_no_stream_is_no_new_one(cupy, call):
    with pytest.raises(nb.NumbridgeTypeError, match=r"the stream is None; .*nb\.get_stream\(\) is the current one"):
        call(None)
    assert not cupy.noted


def test_a_capture_has_a_stream_of_its_own(cupy):
    with nb.ScopedCapture(force_module_load=False) as capture:
        pass
    capture.graph.launch()
    nb.capture_launch(capture.graph, stream=capture._stream)
    wanted = [("wait", 100, 7), ("use", 100), ("begin", 100), ("end", 100), ("use", 7), ("launch", 7), ("launch", 100)]
    assert cupy.noted == wanted


def test_a_capture_of_somebody_elses_is_neither_begun_nor_ended(cupy):
    cupy.streams[7].capturing = True
    with nb.ScopedCapture(external=True) as capture:
        assert nb.get_stream().is_capturing
    assert capture.graph is None
    nb.capture_begin(external=True)
    assert nb.capture_end() is None
    assert not {"begin", "end", "wait"} & {told[0] for told in cupy.noted} and cupy.streams[7].capturing
    # What is begun afterwards on the same stream is ended, and is a graph.
    nb.capture_begin(stream=7)
    assert isinstance(nb.capture_end(stream=7), nb.Graph)


def test_a_capture_of_somebody_elses_must_be_there(cupy):
    wanted = "capture_begin: external=True, and nobody records <Stream 0x7 on cuda:0>; pass the stream that is recorded"
    with pytest.raises(nb.DeviceError, match=re.escape(wanted)):
        nb.capture_begin(external=True)
    with pytest.raises(nb.DeviceError, match=re.escape(wanted)), nb.ScopedCapture(external=True):
        pass


@pytest.mark.parametrize("begin", [nb.capture_begin, nb.ScopedCapture])
def test_all_kernels_cannot_be_loaded_beforehand(begin, cupy):
    with pytest.raises(
        nb.NumbridgeValueError, match=r"force_module_load=True: a kernel is compiled.*launch what will be"
    ):
        begin(force_module_load=True)


def test_a_copy_on_a_stream(cupy, monkeypatch):
    with emulated_devices(has_streams=False):
        x, y = nb.array([1.0, 2.0], device="cuda:0"), nb.zeros(2, device="cuda:0")
        host = np.zeros(2, np.float32)
        during = []
        noted = creation.ScopedStream.__enter__
        monkeypatch.setattr(
            creation.ScopedStream, "__enter__", lambda scope: during.append(scope.stream.cuda_stream) or noted(scope)
        )
        nb.copy(y, x, stream=nb.Stream("cuda:0"))
        nb.copy(host, x, stream=nb.Stream("cuda:0"))
        assert during == [100, 101] and y.list() == [1.0, 2.0] and host.tolist() == [1.0, 2.0]
        assert cupy.noted == [("wait", 100, 7), ("use", 100), ("use", 7), ("wait", 101, 7), ("use", 101), ("use", 7)]
        with pytest.raises(nb.DeviceError, match="copy: the stream lies on cuda:1, and this is work of cuda:0"):
            nb.copy(y, x, stream=nb.Stream("cuda:1"))


def test_a_copy_on_the_host_needs_no_stream():
    y = np.zeros(2, np.float32)
    nb.copy(y, [1.0, 2.0], stream=object())
    assert y.tolist() == [1.0, 2.0]
