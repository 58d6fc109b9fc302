"""On which stream an array is used: compiled code and Python say the same, of an array and of every view of it."""

from __future__ import annotations

import ctypes

import pytest

import numbridge as nb
from fake_cuda import ExchangeTable, cuda_array, fake_cuda, tensor_class
from numbridge.kernels.cuda_backend.argument_streams import argument_stream, launch_streams
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import capture, describe
from numbridge.storage.memory import wrap
from numbridge.storage.stream_order import producer_stream


@nb.kernel
def filled(x: nb.array(dtype=nb.float32)):
    i = nb.tid()
    x[i] = 1.0


@nb.kernel
def touched(x, y):
    i = nb.tid()
    y[i] = 1.0


class Producer:
    """An array of another library, which says on which stream it works."""

    def __init__(self, **stream):
        place = {"data": (0x7000_0000, False), "version": 3, **stream}
        self.__cuda_array_interface__ = {"shape": (24,), "typestr": "<f4", **place}


class Exporter:
    """What has DLPack and nothing else."""

    def __dlpack_device__(self):
        return dl.CUDA, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        return machine().export_versioned(cuda_array((24,)))


Tensor = tensor_class(ExchangeTable(0x42))


class Adapted(tensor_class(ExchangeTable(0x43, reads=False))):
    """A framework's tensor that its table cannot lend, and DLPack can."""

    __dlpack_device__, __dlpack__ = Exporter.__dlpack_device__, Exporter.__dlpack__


# What an array is made of, and the stream that it is used on; None is the current one
PRODUCERS = {
    "interface": (lambda: Producer(stream=0x55), 0x55),
    "interface on the default stream": (lambda: Producer(stream=1), 0),
    "interface without a stream": (Producer, None),
    "record": (lambda: cuda_array((24,), stream=0x77), 0x77),
    "record without a stream": (lambda: cuda_array((24,)), None),
    "record in managed memory": (lambda: cuda_array((24,), stream=0x77, device=dl.CUDA_MANAGED), 0x77),
    "framework": (lambda: Tensor(24), 0x42),
    "framework through DLPack": (lambda: Adapted(24), 0x43),
    "DLPack": (Exporter, None),
}
VIEWS = {
    "itself": lambda a: a,
    "slice": lambda a: a[2:],
    "strided slice": lambda a: a[::-2],
    "slice of a slice": lambda a: a[2:][1:],
    "reshaped": lambda a: a.reshape(4, 6)[1],
    "transposed": lambda a: a.reshape(4, 6).T[2],
    "row": lambda a: list(a.reshape(4, 6))[3],
    "of another dtype": lambda a: a.view(nb.int32).view(nb.float32),
    "components of vectors": lambda a: a.view(nb.vec2)[1:].view(nb.float32)[0],
    "as vectors and back": lambda a: nb.asarray(a.reshape(12, 2), dtype=nb.vec2).view(nb.float32).flatten(),
    "captured": capture,
    "captured record": lambda a: capture(a._record),
    "view of a captured one": lambda a: wrap(capture(a))[1:],
}


@pytest.fixture(params=[0, 0x99])
def current(request):
    """The current stream of numbridge and CuPy."""
    return request.param


@pytest.fixture
def driver(current):
    function = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(lambda ordinal: current)
    with fake_cuda() as fake:
        fake.follow(ctypes.cast(function, ctypes.c_void_p).value)
        yield fake


def streams_of_calls(driver):
    """Return the stream that each call was given, in order."""
    calls = [c for c in driver.calls if c[0] in ("record", "wait", "launch")]
    return [(c[0], c[2] if c[0] == "record" else c[1]) for c in calls]


def around(stream, launched):
    """Return the calls of a launch on one stream, ordered around another."""
    launch = [("launch", launched)]
    if stream == launched:
        return launch
    return [("record", stream), ("wait", launched), *launch, ("record", launched), ("wait", stream)]


@pytest.mark.parametrize("made", PRODUCERS)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_used_on_the_stream_of_its_producer(driver, current, made, view):
    producer, stream = PRODUCERS[made]
    stream = current if stream is None else stream
    argument = VIEWS[view](nb.asarray(producer()))
    nb.launch(filled, describe(argument).shape[0], [argument])
    assert streams_of_calls(driver) == around(stream, current or stream)
    assert argument_stream(argument, 0) == stream
    if isinstance(argument, nb.Array):
        assert producer_stream(argument) == stream
        assert argument.__cuda_array_interface__["stream"] == (stream or 1)


@pytest.mark.parametrize("made", PRODUCERS)
def test_a_producer_itself_is_used_on_its_stream(driver, current, made):
    producer, stream = PRODUCERS[made]
    stream = current if stream is None else stream
    argument = producer()
    nb.launch(filled, 3, [argument])
    assert streams_of_calls(driver) == around(stream, current or stream)
    assert argument_stream(argument, 0) == stream


@pytest.mark.parametrize("made", PRODUCERS)
def test_a_launch_goes_where_it_is_said(driver, current, made):
    argument, other = nb.asarray(PRODUCERS[made][0]())[1:], cuda_array((4,), address=0x7100_0000, stream=0x33)
    arguments = [argument, 3, other]
    chosen, streams = launch_streams(arguments, [describe(a) for a in arguments])
    assert streams == [argument_stream(argument, 0), 0x33] and chosen == (current or streams[0])
    nb.launch(touched, 3, [argument, other])
    assert ("launch", chosen) in streams_of_calls(driver)


def test_a_view_outlives_its_producer_on_its_stream(driver, current):
    view = nb.asarray(Producer(stream=0x55)).reshape(4, 6)[1:]
    view = view[0]
    nb.launch(filled, 3, [view])
    assert streams_of_calls(driver) == around(0x55, current or 0x55)


def test_work_on_a_view_from_python_waits_for_its_producer(driver, current):
    nb.asarray(Producer(stream=0x55))[2:].__dlpack__(stream=0x44)
    assert streams_of_calls(driver) == [("record", 0x55), ("wait", 0x44)]
