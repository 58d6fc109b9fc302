"""Tapes over arrays on CUDA devices, which are emulated: what they give must be what they give on the CPU."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import numbridge as nb
from emulated_cupy import emulated_devices
from fake_cuda import cuda_array
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.scalars import scalar_of
from numbridge.storage.memory import wrap
from tape_programs import (
    PROGRAMS,
    VALUES,
    by_a_graph,
    empty,
    given,
    one_launch,
    optimised,
    square,
    three_times,
    total,
    without_adjoint,
)


@pytest.fixture
def devices():
    with emulated_devices() as emulation:
        yield emulation


@pytest.mark.one_in(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients(devices, program):
    wanted, found = program("cpu"), program("cuda:0")
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.device == nb.get_device("cuda:0") and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)
        assert np.any(theirs.numpy()) or not theirs.size


def test_two_devices_have_their_own_adjoints(devices):
    x, y = given("cuda:0"), empty("cuda:0")
    a, b = given("cuda:1"), empty("cuda:1")
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
        nb.launch(square, 4, [a], [b])
    tape.backward(grads={y: VALUES, b: 2 * VALUES})
    assert x.grad.device.ordinal == 0 and np.array_equal(x.grad.numpy(), 2 * VALUES**2)
    assert a.grad.device.ordinal == 1 and np.array_equal(a.grad.numpy(), 4 * VALUES**2)
    assert tape.gradients[a].device.ordinal == 1


@pytest.mark.parametrize(
    ("place", "other"), [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:1")]
)
@pytest.mark.parametrize("dtype", [nb.float32, nb.float16, nb.vec2])
def test_gradients_of_copies_on_other_devices(devices, place, other, dtype):
    """They come back to where the array lies that was copied."""
    values = VALUES.reshape(2, 2) if dtype is nb.vec2 else VALUES
    x = nb.array(values, dtype=dtype, device=place, requires_grad=True)
    with nb.Tape() as tape:
        first, second = x.to(other, copy=True), nb.array(x[:1], device=other)
    tape.backward(grads={first: 2 * values, second: values[:1]})
    assert x.grad.device == nb.get_device(place)
    assert np.array_equal(x.grad.numpy(), [*(3 * values[:1]), *(2 * values[1:])])


def test_what_has_no_adjoint_is_refused(devices):
    x, y, z = given("cuda:0"), empty("cuda:0"), empty("cuda:0")
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
        nb.launch(without_adjoint, 4, [y], [z])
    with pytest.raises(
        nb.NumbridgeError, match="was written by kernel 'without_adjoint', declared with enable_backward=False"
    ):
        tape.backward(grads={z: VALUES})


def test_a_copy_into_page_locked_memory_is_not_lost(devices):
    host = np.zeros(4, VALUES.dtype)
    tag = scalar_of(host.dtype).tag
    pinned = wrap(machine().new_record(host, host.ctypes.data, tag, dl.CUDA_HOST, 0, (4,), None, 0))
    x = nb.array(VALUES, device="cuda:0", requires_grad=True)
    with (
        nb.Tape(),
        pytest.raises(nb.NumbridgeError, match="assign of an array that carries a gradient is not recorded"),
    ):
        nb.copy(pinned, x)
    with nb.Tape():
        nb.copy(pinned, nb.array(VALUES, device="cuda:0"))
    assert np.array_equal(host, VALUES)


def test_gradients_of_the_wrong_shape_are_refused(devices):
    x, y = given("cuda:0"), empty("cuda:0")
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
    with pytest.raises(nb.NumbridgeValueError, match=r"the gradient has shape \(3,\), and its array \(4,\)"):
        tape.backward(grads={y: VALUES[:3]})
    assert not x.grad.numpy().any()


def test_no_memory_of_a_device_is_left(devices):
    one_launch("cuda:0")
    before = len(devices._memory)
    for program in PROGRAMS:
        program("cuda:0")
    gc.collect()
    assert len(devices._memory) == before


def test_real_numbers_that_are_copied_to_complex_ones(devices):
    def copied(device):
        x, z = given(device), nb.zeros(4, nb.complex128, device=device, requires_grad=True)
        with nb.Tape() as tape:
            nb.copy(z, x)
        tape.backward(grads={z: VALUES * (1 + 2j)})
        with nb.Tape() as tape:
            y = x.clone()
        with pytest.raises(nb.NumbridgeTypeError, match="the gradient is complex, and its array has real numbers"):
            tape.backward(grads={y: VALUES * 1j})
        return x.grad.numpy()

    np.testing.assert_allclose(copied("cuda:0"), VALUES)
    np.testing.assert_allclose(copied("cpu"), VALUES)


def test_a_graph_of_launches_and_of_their_gradients(devices):
    wanted, found = optimised("cpu", three_times), optimised("cuda:0", by_a_graph)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)
    assert np.any(found[1].numpy())


def test_a_graph_keeps_memory_as_long_as_it_is_there(devices):
    x, y, loss = given("cuda:0"), empty("cuda:0"), empty("cuda:0", 1)
    x.grad.zero_()
    before = len(devices._memory)
    with nb.ScopedCapture() as capture:
        with nb.Tape() as tape:
            nb.launch(square, 4, [x], [y])
            nb.launch(total, 4, [y], [loss])
        tape.backward(loss)
    del tape
    gc.collect()
    held = len(devices._memory)
    assert held > before
    nb.capture_launch(capture.graph)
    assert np.array_equal(x.grad.numpy(), 2 * VALUES)
    del capture
    gc.collect()
    assert len(devices._memory) == held  # since it may run still
    devices._driver.done.update(range(0xE000, 0xF000))
    nb.synchronize()
    assert len(devices._memory) < held


@pytest.mark.parametrize("retain_graph", [False, True])
def test_a_graph_keeps_the_copies_that_a_tape_has_made_before(devices, retain_graph):
    x, y, made, one = given("cuda:0"), empty("cuda:0"), empty("cuda:0"), nb.ones(4, nb.float64, device="cuda:0")
    x.grad.zero_()
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [made])
        nb.launch(square, 4, [made], [y])
        made.zero_()
    assert tape.kept_bytes
    with nb.ScopedCapture() as capture:
        tape.backward(grads={y: one}, retain_graph=retain_graph)
    del tape
    gc.collect()
    for _ in range(2):
        x.grad.zero_()
        nb.capture_launch(capture.graph)
        np.testing.assert_allclose(x.grad.numpy(), 4 * VALUES**3, rtol=1e-5)


def test_a_graph_keeps_what_is_allocated_on_streams_that_have_joined_it(devices):
    stream = nb.Stream("cuda:0")
    before = len(devices._memory)
    with nb.ScopedCapture() as capture:
        devices._driver.capturing.add(stream.cuda_stream)
        with nb.ScopedStream(stream):
            nb.zeros(4, device="cuda:0")
        devices._driver.capturing.discard(stream.cuda_stream)
        with nb.ScopedStream(stream):
            nb.zeros(4, device="cuda:0")
    assert len(devices._memory) == before + 1
    del capture
    gc.collect()
    assert len(devices._memory) == before


def test_a_graph_keeps_what_is_kept_by_graphs_that_it_launches(devices):
    before = len(devices._memory)
    with nb.ScopedCapture() as inner:
        nb.zeros(4, device="cuda:0")
    with nb.ScopedCapture() as outer:
        nb.capture_launch(inner.graph)
    del inner
    gc.collect()
    assert len(devices._memory) == before + 1
    del outer
    gc.collect()
    assert len(devices._memory) == before


def test_what_is_allocated_after_somebody_else_has_ended_a_graph_is_not_kept(devices):
    stream = nb.Stream("cuda:0")
    before = len(devices._memory)
    with nb.ScopedStream(stream):
        nb.capture_begin()
        nb.zeros(4, device="cuda:0")
        stream._stream.end_capture()
        nb.zeros(4, device="cuda:0")
        gc.collect()
        assert len(devices._memory) == before


def test_what_a_graph_cannot_record_of_gradients_is_refused(devices):
    x, y = given("cuda:0"), empty("cuda:0")
    there = nb.array(VALUES, device="cuda:0")
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
    with nb.ScopedCapture():
        with pytest.raises(
            nb.NumbridgeError, match=r"lies on the host \(ndarray\), and the graph that is recorded on cuda:0"
        ):
            tape.backward(grads={y: VALUES}, retain_graph=True)
        with pytest.raises(
            nb.NumbridgeError, match="looks for gradients that are not zero, and while a graph is recorded"
        ):
            tape.backward(retain_graph=True)
        tape.backward(grads={y: there}, retain_graph=True)
    stream = nb.Stream("cuda:0")
    stream._stream.begin_capture()
    with nb.ScopedStream(stream), pytest.raises(nb.NumbridgeError, match="somebody else records a graph on cuda:0"):
        tape.backward(grads={y: there})
    with nb.Tape() as other:
        copy = x.clone()
    with nb.ScopedStream(stream), pytest.raises(nb.NumbridgeError, match="somebody else records a graph on cuda:0"):
        other.backward(grads={copy: there})
    stream._stream.end_capture()
    # As torch does, whose tensors say so: the launches go to the stream of their arguments.
    devices._driver.capturing.add(0x77)
    theirs = wrap(cuda_array((4,), address=devices.allocate(16), stream=0x77))
    with nb.Tape() as other:
        nb.launch(square, 4, [x], [theirs])
    with pytest.raises(nb.NumbridgeError, match="somebody else records a graph on cuda:0"):
        other.backward(grads={theirs: there})
    devices._driver.capturing.discard(0x77)
    tape.backward(grads={y: there})
    assert np.array_equal(x.grad.numpy(), 2 * VALUES**2)
