"""What numba.cuda allows in other spellings: lists in loops, indices under other names, hints, names of dtypes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import emulated_cuda

if TYPE_CHECKING:
    from elsewhere import Storage  # type: ignore[import-not-found]


@cuda.jit
def neighbours(x, y):
    i, j = cuda.grid(2)
    if i >= x.shape[0] or j >= x.shape[1]:
        return
    for di, dj in [(-1, 0), (1, 0), (0, -1), (0, 1)]:
        if 0 <= i + di < x.shape[0] and 0 <= j + dj < x.shape[1]:
            y[i, j] += x[i + di, j + dj] * x[i, j]
    for k, weight in enumerate([x[i, j], 2.0 * x[i, j]]):
        y[i, j] += k * weight


def sums_of_neighbours(x):
    padded = np.pad(x, 1)
    return x * (padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]) + 2 * x


X = np.random.default_rng(0).normal(size=(5, 6))


def test_loops_go_through_lists():
    y = np.zeros_like(X)
    nb.kernel(neighbours)[(2, 2), (4, 4)](X, y)
    assert np.allclose(y, sums_of_neighbours(X))


def test_loops_go_through_lists_on_cuda():
    y = np.zeros_like(X)
    with emulated_cuda() as device:
        nb.kernel(neighbours)[(2, 2), (4, 4)](device.on_device(X), device.on_device(y))
    assert np.allclose(y, sums_of_neighbours(X))


def test_loops_through_lists_have_gradients():
    x, y = nb.array(X, requires_grad=True), nb.array(np.zeros_like(X), requires_grad=True)
    with nb.Tape() as tape:
        nb.kernel(neighbours)[(2, 2), (4, 4)](x, y)
    tape.backward(grads={y: np.ones_like(X)})
    padded = np.pad(X, 1)
    expected = 2 * (padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]) + 2
    assert np.allclose(x.grad.numpy(), expected)


def test_other_lists_are_refused():
    with pytest.raises(nb.KernelUnsupportedError, match="a list cannot be used in a kernel"):

        @nb.kernel
        def keeps(x):
            found = [1, 2]
            x[0] = found[1]


@cuda.jit
def places(x):
    block, size, thread = cuda.blockIdx, cuda.blockDim, cuda.threadIdx
    x[block.x * size.x + thread.x, thread.y] = 100 * block.x + 10 * thread.x + thread.y


def test_indices_have_other_names():
    x = np.zeros((6, 2), np.int64)
    nb.kernel(places)[2, (3, 2)](x)
    assert x.tolist() == [[100 * (i // 3) + 10 * (i % 3) + j for j in range(2)] for i in range(6)]


@cuda.jit
def scaled(x: Storage, n: int, factor: float, y: np.array) -> None:
    i = cuda.grid(1)
    if i < n:
        y[i] = factor * x[i]


def test_hints_of_cuda_jit_functions_change_no_number():
    """`float` under `nb.kernel` is float32; numba.cuda ignores it."""
    y = np.zeros(3)
    nb.kernel(scaled)[1, 4](np.ones(3), 3, 0.1, y)
    assert (y == 0.1).all()


@cuda.jit
def declared(x: nb.array[nb.float64], factor: float):
    x[cuda.grid(1)] = factor


@cuda.jit
def misspelt(x: nb.arry[float]):
    x[0] = 0.0


@cuda.jit
def narrow(x: np.ndarray, factor: np.float32):
    x[cuda.grid(1)] = factor


def test_annotations_of_numbridge_are_kept():
    x = np.zeros(3)
    nb.kernel(declared)[1, 3](x, 0.1)
    assert (x == np.float32(0.1)).all()
    nb.kernel(narrow)[1, 3](x, 0.2)
    assert (x == np.float32(0.2)).all()
    with pytest.raises(nb.KernelError, match="annotations of 'x' cannot be evaluated"):
        nb.kernel(misspelt)


@cuda.jit
def with_dtypes(x, y):
    i, t = cuda.grid(1), cuda.threadIdx.x
    own = cuda.local.array(2, "float64")
    tile = cuda.shared.array(shape=4, dtype=x.dtype)
    own[0] = math.sin(x[i])
    tile[t] = x[i]
    cuda.syncthreads()
    y[i] = own[0] * tile[3 - t]


def test_dtypes_may_be_named_or_those_of_arrays_where_there_is_a_gradient():
    x0 = np.arange(4.0)
    x, y = nb.array(x0, requires_grad=True), nb.array(np.zeros(4), requires_grad=True)
    with nb.Tape() as tape:
        nb.kernel(with_dtypes)[1, 4](x, y)
    tape.backward(grads={y: np.ones(4)})
    assert np.allclose(x.grad.numpy(), np.cos(x0) * x0[::-1] + np.sin(x0[::-1]))


@cuda.jit
def with_default(x, factor=2.0):
    x[cuda.grid(1)] *= factor


def test_parameters_may_have_defaults_which_a_launch_passes():
    kernel, x = nb.kernel(with_default), nb.array(np.ones(3), requires_grad=True)
    with nb.Tape() as tape:
        kernel[1, 3](x, 3.0)
    tape.backward(grads={x: np.ones(3)})
    assert x.numpy().tolist() == x.grad.numpy().tolist() == [3] * 3
    with pytest.raises(nb.NumbridgeTypeError, match=r"takes 2 arguments \(x, factor\), got 1"):
        kernel[1, 3](x)


@pytest.fixture
def a_device_to_compile_for(monkeypatch):
    """Let `cuda.jit` compile for what its signatures say without a GPU, as it does where it decorates; kernels it only notes."""
    from numba.cuda import dispatcher

    device, noted = SimpleNamespace(compute_capability=(9, 0)), SimpleNamespace(entry_point=None)

    def compile_kernel(dispatcher, kinds):
        dispatcher.overloads[kinds] = noted

    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    monkeypatch.setattr(dispatcher.CUDADispatcher, "compile", compile_kernel)


@pytest.mark.usefixtures("a_device_to_compile_for")
def test_numbers_are_converted_to_what_a_signature_says():
    @cuda.jit("int32(int32, float32)", device=True)
    def cut(n, weight):
        return 2.75 * n * weight

    @cuda.jit("void(float64[:], int8, float32, complex64, boolean)")
    def kernel(y, n, weight, z, flag):
        y[0] = cut(3.9, 1.1)
        y[1] = cuda.popc(n)
        y[2] = weight
        y[3] = z.imag if flag else 0.0

    y = np.zeros(4)
    made = nb.kernel(kernel)
    made[1, 1](y, -1, 0.1, 0.1j, True)
    expected = [int(2.75 * 3 * np.float32(1.1)), 8, np.float32(0.1), np.float32(0.1)]
    assert y.tolist() == expected
    there = np.zeros(4)
    with emulated_cuda() as device:
        made[1, 1](device.on_device(there), -1, 0.1, 0.1j, True)
    assert there.tolist() == expected
    with pytest.raises(nb.NumbridgeTypeError, match=r"parameter 'n'.*int8"):
        made[1, 1](y, 2.5, 0.1, 0.1j, True)
    with pytest.raises(nb.NumbridgeError, match=r"parameter 'n'.*int8"):
        made[1, 1](y, 300, 0.1, 0.1j, True)


@pytest.mark.usefixtures("a_device_to_compile_for")
def test_gradients_go_through_what_a_signature_converts():
    @cuda.jit("float32(float32)", device=True)
    def square(x):
        return x * x

    @nb.kernel
    def kernel(x, y):
        i = nb.tid()
        y[i] = square(x[i])

    x = nb.array([1.0, 2.0], dtype=nb.float64, requires_grad=True)
    y = nb.zeros(2, dtype=nb.float64, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(kernel, 2, [x, y])
    tape.backward(grads={y: nb.ones(2, dtype=nb.float64)})
    assert x.grad.list() == [2.0, 4.0]


@pytest.mark.usefixtures("a_device_to_compile_for")
def test_several_signatures_convert_nothing():
    @cuda.jit(["float32(float32)", "float64(float64)"], device=True)
    def third(x):
        return x / 3.0

    @nb.kernel
    def kernel(y: nb.array[nb.float64], z: nb.array[nb.float32], x: nb.float64):
        y[0] = third(x)
        z[0] = third(nb.float32(x))

    y, z = np.zeros(1), np.zeros(1, np.float32)
    nb.launch(kernel, 1, [y, z, 1.0])
    assert y[0] == 1 / 3
    assert z[0] == np.float32(1) / np.float32(3)
