"""What is ordered by events, and kept until it was used, where the streams of a device run as late as they can."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import numbridge as nb
from late_cuda import late_cuda


@pytest.fixture
def late():
    with late_cuda() as found:
        yield found


@nb.kernel
def square(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def cube(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i] * x[i]


@nb.kernel
def clear(x: nb.array[float]):
    i = nb.tid()
    x[i] = 0.0


X = np.array([1.0, 2.0, 3.0, 4.0])


def leaf():
    x = nb.array(X, dtype=float, device="cuda:0", requires_grad=True)
    x.grad.zero_()
    return x


def zeros():
    return nb.zeros(4, device="cuda:0", requires_grad=True)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_tape_goes_back_on_the_streams_of_its_launches(late, is_first):
    x, y, seed, own = leaf(), zeros(), nb.ones(4, device="cuda:0"), nb.Stream("cuda:0")
    late.run()
    with nb.Tape() as tape:
        nb.launch(square, 4, [x, y], stream=own)
    late.run()
    tape.backward(grads={y: seed})
    late.run(own.cuda_stream if is_first else 0)
    assert x.grad.numpy().tolist() == (2 * X).tolist() and y.numpy().tolist() == (X**2).tolist()


def test_what_a_tape_keeps_it_copies_before_the_launch_that_overwrites_it(late):
    x, y, z, seed, own = leaf(), zeros(), zeros(), nb.ones(4, device="cuda:0"), nb.Stream("cuda:0")
    late.run()
    with nb.Tape() as tape:
        nb.launch(square, 4, [x, y], stream=own)
        nb.launch(cube, 4, [y, z], stream=own)
        nb.launch(clear, 4, [y], stream=own)
    late.run(0)
    tape.backward(grads={z: seed})
    late.run()
    assert x.grad.numpy().tolist() == (6 * X**5).tolist() and tape.kept_bytes == 16


def test_a_launch_that_somebody_captures_draws_no_other_stream_into_the_graph(late):
    x, y, own = leaf(), zeros(), nb.Stream("cuda:0")
    late.run()
    late.driver.capturing.add(own.cuda_stream)
    late.driver.calls.clear()
    with nb.Tape():
        nb.launch(square, 4, [x, y], stream=own)
    assert not [call for call in late.driver.calls if call[0] in ("record", "wait")]


def test_a_gradient_that_a_launch_makes_is_there_before_it_is_added_to(late):
    x, y, own = nb.array(X, dtype=float, device="cuda:0", requires_grad=True), zeros(), nb.Stream("cuda:0")
    y.grad.fill_(1.0)
    own.wait_stream(nb.get_stream())
    nb.launch(square, 4, [x], [y], adjoint=True, stream=own)
    late.run(own.cuda_stream)
    assert x.grad.numpy().tolist() == (2 * X).tolist()


@pytest.mark.parametrize(
    "source", [lambda: [5.0, 6.0, 7.0, 8.0], lambda: nb.array([5.0, 6.0, 7.0, 8.0], device="cuda:0")]
)
def test_what_is_copied_on_a_stream_is_there_until_it_was(late, source):
    x, own = nb.zeros(4, device="cuda:0"), nb.Stream("cuda:0")
    nb.copy(x, source(), stream=own)
    other = nb.full(4, 99.0, device="cuda:0")
    late.run(0)
    own.synchronize()
    assert x.numpy().tolist() == [5, 6, 7, 8] and other.numpy().tolist() == [99] * 4


def test_a_graph_that_is_dropped_has_its_memory_until_it_has_run(late):
    out, own = nb.zeros(3, device="cuda:0"), nb.Stream("cuda:0")
    with nb.ScopedCapture(stream=own) as capture:
        out.assign(nb.full(3, 5.0, device="cuda:0"))
    capture.graph.launch()  # on the default stream
    del capture
    gc.collect()
    with nb.ScopedStream(own, sync_enter=False):
        other = nb.full(3, 99.0, device="cuda:0")
    while len(late.queues[0]) > 2:
        late.step(0)
    late.run(own.cuda_stream)
    assert out.numpy().tolist() == [5] * 3 and other.numpy().tolist() == [99] * 3


def test_a_graph_has_what_an_assignment_copies_to_itself(late):
    x, own = nb.array(X, dtype=float, device="cuda:0"), nb.Stream("cuda:0")
    late.run()
    with nb.ScopedCapture(stream=own) as capture:
        x[1:].assign(x[:-1])
    with nb.ScopedStream(own):
        other = nb.full(3, 99.0, device="cuda:0")
        own.synchronize()
    capture.graph.launch()
    late.run()
    assert x.numpy().tolist() == [1, 1, 2, 3] and other.numpy().tolist() == [99] * 3


def test_a_stream_that_is_recorded_already(late):
    own = nb.Stream("cuda:0")
    nb.capture_begin(stream=own)
    with pytest.raises(nb.DeviceError, match=r"capture_begin: <Stream .*> cannot be recorded now.*nb\.capture_end\(\)"):
        nb.capture_begin(stream=own)
    nb.capture_end(stream=own)


class Foreign:
    """A stream of another library, which says where it lies."""

    device_index = 1
    cuda_stream = 0x9000


def test_streams_lie_where_they_say(late):
    assert nb.Stream(cuda_stream=Foreign()).device == nb.get_device("cuda:1")
    with nb.ScopedStream(Foreign()) as own:
        assert own.device == nb.get_device("cuda:1") and nb.get_stream("cuda:0").cuda_stream == 0
    with pytest.raises(nb.DeviceError, match="copy: the stream lies on cuda:1, and this is work of cuda:0"):
        nb.copy(nb.zeros(2, device="cuda:0"), [1.0, 2.0], stream=Foreign())
    with pytest.raises(nb.DeviceError, match="ScopedCapture: the stream lies on cuda:1"):
        nb.ScopedCapture("cuda:0", stream=Foreign())
    with pytest.raises(nb.NumbridgeTypeError, match=f"stream is {1 << 70}, which is no handle"):
        nb.Stream("cuda:0", cuda_stream=1 << 70)
