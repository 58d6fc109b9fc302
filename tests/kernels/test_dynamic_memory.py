"""Kernels with dynamic shared memory: launches that bring none are refused, on the CPU and on CUDA, and touch nothing."""

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import emulated_cuda

NONE = r"'{}' uses dynamic shared memory, cuda.shared.array\(0, dtype\), and this launch brings none; launch it by {}\[blocks"


@pytest.fixture(params=["cpu", "cuda"])
def on(request):
    if request.param == "cpu":
        yield lambda array: array
        return
    with emulated_cuda() as device:
        yield device.on_device


@nb.kernel
def turned(x: nb.array[float], y: nb.array[float]):
    i, t = nb.tid(), cuda.threadIdx.x
    given = cuda.shared.array(0, np.float32)
    given[t] = x[i]
    cuda.syncthreads()
    y[i] = given[cuda.blockDim.x - 1 - t]


@nb.func
def through(value):
    given = cuda.shared.array(dtype=np.float32, shape=(0,))
    given[cuda.threadIdx.x] = value
    cuda.syncthreads()
    return given[0]


@nb.kernel
def first(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = through(x[i])


@nb.kernel
def of_vectors(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    given = cuda.shared.array(0, nb.vec3)
    given[cuda.threadIdx.x] = nb.vec3(x[i], x[i], x[i])
    cuda.syncthreads()
    y[i] = given[0].x


WAYS = {
    "launch": lambda kernel, *arguments: nb.launch(kernel, 8, arguments, block_dim=8),
    "recorded": lambda kernel, *arguments: nb.launch(kernel, 8, arguments, record_cmd=True).launch(),
    "forall": lambda kernel, *arguments: kernel.forall(8)(*arguments),
    "blocks": lambda kernel, *arguments: kernel[1, 8](*arguments),
    "none": lambda kernel, *arguments: kernel[1, 8, 0, 0](*arguments),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", [turned, first, of_vectors], ids=lambda kernel: kernel.name)
def test_launches_that_bring_none(on, kernel, way):
    x, y = np.arange(8, dtype=np.float32), np.full(8, -1, np.float32)
    for _ in range(2):
        with pytest.raises(nb.KernelError, match=NONE.format(kernel.name, kernel.name)) as caught:
            WAYS[way](kernel, on(x), on(y))
        assert f"{__file__}:" in str(caught.value) and "cuda.shared.array(" in str(caught.value).splitlines()[-2]
    assert (y == -1).all()


def test_launches_that_bring_some_are_right_before_and_after_one_without(on):
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    for _ in range(2):
        y[:] = 0
        turned[2, 4, 0, 16](on(x), on(y))
        assert y.tolist() == [3, 2, 1, 0, 7, 6, 5, 4]
        with pytest.raises(nb.KernelError, match="brings none"):
            turned[2, 4](on(x), on(y))
    assert y.tolist() == [3, 2, 1, 0, 7, 6, 5, 4]


SIZE = 8


@nb.kernel
def of_a_global_size(x: nb.array[float], y: nb.array[float]):
    i, t = nb.tid(), cuda.threadIdx.x
    given = cuda.shared.array(SIZE, np.float32)
    given[t] = x[i]
    cuda.syncthreads()
    y[i] = given[7 - t]


def test_a_size_that_becomes_zero_is_noticed(monkeypatch):
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    run = of_a_global_size.forall(8)
    run(x, y)
    assert y.tolist() == x[::-1].tolist()
    monkeypatch.setitem(globals(), "SIZE", 0)
    y[:] = -1
    with pytest.raises(nb.KernelError, match="brings none"):
        run(x, y)
    assert (y == -1).all()
    of_a_global_size[1, 8, 0, 32](x, y)
    assert y.tolist() == x[::-1].tolist()


def test_operators_of_torch():
    import torch

    op, x = nb.torch_op(turned, outputs="y", block_dim=8), torch.arange(8.0)
    for tensor in (x, x.clone().requires_grad_()):
        with pytest.raises(nb.KernelError, match=NONE.format("turned", "turned")):
            op(tensor)


def test_operators_of_paddle():
    paddle = pytest.importorskip("paddle")
    op = nb.paddle_op(turned, outputs="y", block_dim=8)
    with pytest.raises(nb.KernelError, match=NONE.format("turned", "turned")):
        op(paddle.arange(8, dtype="float32"))


def test_calls_under_jax():
    import jax

    x = np.arange(8, dtype=np.float32)

    def plan(x: nb.array[float], y: nb.array[float]):
        turned[1, 8, 0, 32](x, y)

    for f in (nb.jax_kernel(turned, block_dim=8), jax.jit(nb.jax_kernel(turned)), nb.jax_callable(plan)):
        with pytest.raises(nb.KernelError, match=r"'turned' uses dynamic shared memory.*a program of JAX brings none"):
            f(x)
