"""``launch(..., adjoint=True)`` takes the arguments of a launch that say how and where it runs, and heeds them."""

from __future__ import annotations

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import emulated_cuda
from fake_cuda import cuda_array, fake_cuda
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.errors import DeviceError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.language import source
from numbridge.kernels.launch import launch

N = 100


@nb.kernel
def by_the_block(x, y):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    y[i] = x[i] * x[i] * cuda.blockDim.x + cuda.threadIdx.x * x[i]


@nb.kernel
def squares(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def powers(x, y, n: int):
    i = nb.tid()
    for _ in range(n):
        y[i] = y[i] * y[i] * x[i]


def values(dtype=np.float64):
    return [np.linspace(0.5, 2, N).astype(dtype), np.zeros(N, dtype)]


@pytest.mark.parametrize("block", [32, 64, 256])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_the_adjoint_sees_the_block_of_its_launch(block, where):
    (x, y), by_x, by_y = values(), np.zeros(N), np.ones(N)
    with emulated_cuda() as device:
        there = device.on_device if where == "cuda" else np.asarray
        given = {"adj_inputs": [there(by_x)], "adj_outputs": [there(by_y)]}
        launch(by_the_block, N, [there(x)], [there(y)], **given, adjoint=True, block_dim=block)
        launch(by_the_block, N, [there(x)], [there(y)], block_dim=block)
    places = np.arange(N) % block
    assert np.allclose(y, x * x * block + places * x)
    assert np.allclose(by_x, 2 * x * block + places)


@pytest.fixture
def driver():
    with fake_cuda() as fake:
        yield fake


def arrays(count, dtype=np.float32, stream=None):
    return [cuda_array((N,), dtype, address=0x7000_0000 + (k << 20), stream=stream) for k in range(count)]


def launched(driver, kernel=squares, more=(), dtype=np.float32, **how):
    """Launch an adjoint on arrays of stream 0x77 and return the driver's calls."""
    x, y, by_x, by_y = arrays(4, dtype, stream=0x77)
    del driver.calls[:]
    given = {"adj_inputs": [by_x, by_y, *(None for _ in more)]}
    launch(kernel, N, [x, y, *more], **given, adjoint=True, **how)
    return driver.calls


def test_grids_and_blocks_on_cuda(driver):
    launched(driver)
    launched(driver, block_dim=32)
    launched(driver, block_dim=32, max_blocks=2)
    launched(driver, max_blocks=1, block_dim=np.int64(64))
    shapes = [(d.grid[0], d.block[0]) for d in driver.launches]
    assert shapes == [(1, 256), (4, 32), (2, 32), (1, 64)]


def test_a_small_grid_has_every_gradient():
    (x, y), by_x = values(), np.zeros(N)
    with emulated_cuda() as device:
        on = device.on_device
        given = {"adj_inputs": [on(by_x), on(np.ones(N))], "adjoint": True}
        launch(squares, N, [on(x), on(y)], **given, block_dim=32, max_blocks=2)
    assert np.allclose(by_x, 2 * x)


def test_a_named_stream_is_launched_on_and_nothing_is_ordered_around_it(driver):
    assert [c for c in launched(driver) if c[0] == "launch"] == [("launch", 0x77)]
    calls = launched(driver, stream=0x31)
    assert [c for c in calls if c[0] in ("launch", "record", "wait")] == [("launch", 0x31)]
    # No framework knows that the arguments are used there, so they are kept until the stream has done the launch.
    assert [c[2] for c in calls if c[0] == "keep"] == [0x31]


def test_memory_in_between_is_given_in_the_order_of_the_named_stream(driver):
    calls = launched(driver, dtype=ml_dtypes.bfloat16, stream=0x31)
    assert {c[-1] for c in calls if c[0] in ("allocate", "free", "launch")} == {0x31}
    assert sum(c[0] == "launch" for c in calls) == 4  # two adjoints to float32, the adjoint, and one back
    assert not [c for c in calls if c[0] in ("record", "wait")]


def test_stacks_are_measured_and_given_as_the_launch_is_told():
    x, y, by_x, by_y = np.full(N, 1.01), np.ones(N), np.zeros(N), np.ones(N)
    wanted = by_x.copy()
    launch(powers, N, [x, y.copy(), 4], adj_inputs=[wanted, by_y.copy(), None], adjoint=True)
    with emulated_cuda() as device:
        on = device.on_device
        given = {"adj_inputs": [on(by_x), on(by_y), None], "adjoint": True}
        driver = cuda_driver.devices().driver
        del driver.calls[:], driver.launches[:]
        launch(powers, N, [on(x), on(y), 4], **given, stream=0x31, block_dim=32, max_blocks=2)
        assert [(d.grid[0], d.block[0], d.stream) for d in driver.launches] == [(2, 32, 0x31)] * 2
    assert np.allclose(by_x, wanted) and by_x.any()


def test_the_device_is_where_the_arguments_must_lie(driver):
    (x, y), by_x = values(), np.zeros(N)
    launch(squares, N, [x, y], adj_inputs=[by_x, np.ones(N)], adjoint=True, device="cpu")
    assert np.allclose(by_x, 2 * x)
    with pytest.raises(DeviceError, match="device='cuda:0' was asked for"):
        launch(squares, N, [x, y], adj_inputs=[by_x, np.ones(N)], adjoint=True, device="cuda:0")
    with pytest.raises(DeviceError, match="device='cuda:1' was asked for"):
        launched(driver, device="cuda:1")
    assert np.allclose(by_x, 2 * x) and driver.launches == []
    launched(driver, device="cuda:0")
    assert len(driver.launches) == 1


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"block_dim": 0}, NumbridgeValueError, "block_dim of kernel 'squares': wanted an int from 1 to 1024, got 0"),
        ({"max_blocks": -1}, NumbridgeValueError, "max_blocks of kernel 'squares': wanted 0 or more, got -1"),
        ({"stream": "x"}, NumbridgeTypeError, r"stream is 'x'; it must be an nb\.Stream"),
        ({"device": "cuda:7"}, DeviceError, "there is no device 'cuda:7'"),
    ],
)
def test_what_no_launch_takes_is_refused(driver, how, error, match):
    with pytest.raises(error, match=match):
        launched(driver, **how)
    assert driver.launches == []


def test_a_recorded_adjoint_is_launched_again_with_what_was_changed():
    (x, y), by_x, by_y = values(), np.zeros(N), np.ones(N)
    command = launch(squares, N, [x], [y], adj_inputs=[by_x], adj_outputs=[by_y], adjoint=True, record_cmd=True)
    assert not by_x.any()
    command.launch()
    assert np.allclose(by_x, 2 * x) and by_y.all()
    other, more = np.zeros(N), np.full(N, 3.0)
    command.set_param_by_name("x", other, adjoint=True)
    command.set_param_at_index_from_ctype(1, more, adjoint=True)
    command.set_param_by_name("x", x + 1)
    command.set_dim(10)
    copy.copy(command).launch()
    assert np.allclose(by_x, 2 * x) and np.allclose(other[:10], 6 * (x[:10] + 1)) and not other[10:].any()
    command.set_param_at_index(1, None, adjoint=True)
    with pytest.raises(NumbridgeValueError, match=r"without an adjoint of what it writes \(y\)"):
        command.launch()


def test_a_recorded_adjoint_takes_the_gradients_of_arrays():
    x, y = (nb.array(v, requires_grad=True) for v in values())
    y.grad.fill_(1.0)
    command = launch(squares, N, [x, y], adj_inputs=[None, None], adjoint=True, record_cmd=True)
    command.launch()
    assert np.allclose(x.grad.numpy(), 2 * x.numpy())


def test_a_recorded_adjoint_on_a_stream_of_its_own(driver):
    x, y, by_x, by_y = arrays(4, stream=0x77)
    command = launch(squares, N, [x, y], adj_inputs=[by_x, by_y], adjoint=True, record_cmd=True, block_dim=32)
    command.launch()
    command.launch(stream=0x31)
    assert [(d.stream, d.block[0]) for d in driver.launches] == [(0x77, 32), (0x31, 32)]


def test_what_has_no_adjoints_takes_none():
    (x, y), by_x = values(), np.zeros(N)
    with pytest.raises(NumbridgeValueError, match="go with adjoint=True, and adjoint is False"):
        launch(squares, N, [x, y], adj_inputs=[by_x, np.ones(N)], record_cmd=True)
    with pytest.raises(NumbridgeValueError, match="adj_inputs has 1 entries for 2 arguments"):
        launch(squares, N, [x, y], adj_inputs=[by_x], adjoint=True, record_cmd=True)
    command = launch(squares, N, [x, y], record_cmd=True)
    with pytest.raises(NumbridgeValueError, match="has no adjoints to set; record one with adjoint=True"):
        command.set_param_at_index(0, by_x, adjoint=True)


def test_a_derivative_by_hand_may_come_after_gradients_without():
    @nb.func
    def outer(x):
        return 2.0 * inner(x)

    @nb.func
    def inner(x):
        return x * x

    @nb.kernel
    def doubled(x, y):
        i = nb.tid()
        y[i] = outer(x[i])

    def gradients():
        x, by_x = np.full(N, 3.0), np.zeros(N)
        launch(doubled, N, [x], [np.zeros(N)], adj_inputs=[by_x], adj_outputs=[np.ones(N)], adjoint=True)
        own, y = nb.array(x, requires_grad=True), nb.zeros(N, dtype=nb.float64)
        with nb.Tape() as tape:
            launch(doubled, N, [own], [y])
        tape.backward(grads={y: nb.ones(N, dtype=nb.float64)})
        return by_x[0], own.grad.numpy()[0]

    assert gradients() == (12, 12)

    @nb.func_grad(inner)
    def inner_grad(x, cotangent):
        return 100.0 * cotangent

    assert gradients() == (200, 200)


def test_adjoints_of_new_shapes_do_not_read_the_program_again(monkeypatch):
    def run(n):
        (x, y), by_x, by_y = (values()[0][:n].copy(), np.zeros(n)), np.zeros(n), np.ones(n)
        launch(squares, n, [x, y], adj_inputs=[by_x, by_y], adjoint=True)
        assert np.allclose(by_x, 2 * x)

    run(3)
    read: list[Any] = []
    visit = source.Program._visit
    monkeypatch.setattr(
        source.Program, "_visit", lambda self, *given: read.append(self.root.name) or visit(self, *given)
    )
    for n in range(4, 9):
        run(n)
    assert read == []
