"""An adjoint that is passed for what a kernel only stores is read and left as it was; None is an array's own gradient."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import numbridge as nb
from emulated_cuda import emulated_cuda
from numbridge.kernels.errors import BufferAccessError, NumbridgeValueError

N = 6
PAIR = np.dtype([("a", np.float32), ("b", np.float64)], align=True)


@nb.kernel
def squares(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def twice(x, y):
    i = nb.tid()
    y[i] = x[i]
    if x[i] > 2.0:
        y[i] = 3.0 * x[i]


@nb.kernel
def rows(x, y):
    i = nb.tid()
    for k in range(y.shape[1]):
        y[i, k] = x[i] * k


@nb.kernel
def in_place(x):
    i = nb.tid()
    x[i] = 3.0 * x[i]


@nb.kernel
def added_up(x, y):
    i = nb.tid()
    nb.atomic_add(y, 0, 2.0 * x[i])


@nb.kernel
def reread(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]
    y[i] = y[i] * x[i]


@nb.kernel
def longer(x: nb.array[nb.vec3], y: nb.array[nb.vec3]):
    i = nb.tid()
    y[i] = x[i]
    y[i] = x[i] * 2.0


@nb.kernel
def pairs(x, y):
    i = nb.tid()
    for _ in range(2):
        y[i].a = 2.0 * x[i]
    y[i].b = 3.0 * x[i]


def points(*shape):
    return np.linspace(1, 4, int(np.prod(shape))).reshape(shape)


def by_input(kernel, x, y, by_y, dim=N, give=np.asarray):
    by_x = np.zeros_like(x, by_y.dtype if x.dtype.itemsize == 2 else None)
    nb.launch(kernel, dim, [give(x)], [give(y)], adj_inputs=[give(by_x)], adj_outputs=[give(by_y)], adjoint=True)
    return by_x


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("kernel", "shape", "wanted"),
    [
        (squares, (N,), lambda x, by: 2 * x * by),
        (twice, (N,), lambda x, by: np.where(x > 2, 3 * by, by)),
        (rows, (N, 3), lambda x, by: by @ np.arange(3)),
        (added_up, (N,), lambda x, by: np.full(N, 2 * by[0])),
    ],
)
def test_what_is_passed_for_an_output_is_left_alone(kernel, shape, wanted, where):
    x, by_y = points(N), points(*shape)
    before = by_y.copy()
    with emulated_cuda() as device:
        by_x = by_input(kernel, x, np.zeros(shape), by_y, give=device.on_device if where == "cuda" else np.asarray)
    assert np.allclose(by_x, wanted(x, before))
    assert (by_y == before).all()


def test_the_element_types_records_and_narrow_numbers():
    x, by_y = points(N, 3).astype(np.float32), points(N, 3).astype(np.float32)
    before = by_y.copy()
    assert np.allclose(by_input(longer, x, np.zeros_like(x), by_y), 2 * before) and (by_y == before).all()
    seeds = np.ones(N, PAIR)
    assert np.allclose(by_input(pairs, points(N), np.zeros(N, PAIR), seeds), 5.0)
    assert (seeds == np.ones(N, PAIR)).all()
    for kernel, factor in ((squares, 2.0), (twice, 1.0)):
        x, by_y = np.ones(N, ml_dtypes.bfloat16), np.ones(N, ml_dtypes.bfloat16)
        assert (by_input(kernel, x, np.zeros_like(x), by_y) == factor).all() and (by_y == 1).all()


@pytest.mark.parametrize("kernel", [squares, twice])
def test_an_expanded_gradient_of_an_output_is_read(kernel):
    x, by_y = torch.full((N,), 1.5), torch.ones(()).expand(N)
    by_x = torch.zeros(N)
    nb.launch(kernel, N, [x], [torch.zeros(N)], adj_inputs=[by_x], adj_outputs=[by_y], adjoint=True)
    assert by_x.tolist() == [3.0 if kernel is squares else 1.0] * N


def test_what_the_kernel_reads_and_writes_has_its_adjoint_in_place():
    by_x = np.ones(N)
    nb.launch(in_place, N, [points(N)], adj_inputs=[by_x], adjoint=True)
    assert (by_x == 3).all()
    by_y = np.ones(N)
    assert np.allclose(by_input(reread, points(N), np.zeros(N), by_y), 3 * points(N) ** 2) and (by_y == 0).all()
    with pytest.raises(BufferAccessError, match="expanded view"):
        nb.launch(in_place, N, [torch.ones(N)], adj_inputs=[torch.ones(()).expand(N)], adjoint=True)


class Square(torch.autograd.Function):
    """As Warp's documentation writes one, with the gradient passed on as torch gives it."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        ctx.x, ctx.y = x.detach(), y.detach()
        nb.launch(squares, N, [nb.from_torch(ctx.x)], [nb.from_torch(ctx.y)])
        return y

    @staticmethod
    def backward(ctx, by_y):
        by_x = torch.zeros_like(ctx.x)
        given = {"adj_inputs": [nb.from_torch(by_x)], "adj_outputs": [nb.from_torch(by_y)], "adjoint": True}
        nb.launch(squares, N, [nb.from_torch(ctx.x)], [nb.from_torch(ctx.y)], **given)
        return by_x


def test_a_gradient_that_torch_passes_to_several_functions():
    x = torch.linspace(1, 4, N, requires_grad=True)
    seeds = torch.ones(N)
    (Square.apply(x) + x).backward(seeds)
    assert torch.allclose(x.grad, 2 * x.detach() + 1) and seeds.tolist() == [1.0] * N
    x.grad = None
    Square.apply(x).sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach())


def test_none_is_the_gradient_of_an_array_that_requires_one():
    x, y = nb.array(points(N), requires_grad=True), nb.zeros(N, nb.float64, requires_grad=True)
    y.grad.fill_(1.0)
    for given in ({}, {"adj_inputs": [None], "adj_outputs": [None]}):
        y.grad.fill_(1.0)
        nb.launch(squares, N, [x], [y], adjoint=True, **given)
    assert np.allclose(x.grad.numpy(), 4 * points(N))
    # The array's own gradient goes on as in a tape: what was stored depends on nothing before.
    assert not y.grad.numpy().any()
    by_y = np.ones(N)
    nb.launch(squares, N, [x], [y], adj_outputs=[by_y], adjoint=True)
    assert np.allclose(x.grad.numpy(), 6 * points(N)) and by_y.all()


def test_none_is_a_gradient_that_was_set():
    by_x = torch.zeros(N, dtype=torch.float64)
    x, y = nb.from_torch(torch.from_numpy(points(N)), grad=by_x), nb.zeros(N, nb.float64)
    y.grad = np.ones(N)
    nb.launch(squares, N, [x], [y], adj_inputs=[None], adj_outputs=[None], adjoint=True)
    assert np.allclose(by_x, 2 * points(N))


def test_none_for_what_has_no_gradient_of_its_own_is_no_gradient():
    x, by_x = points(N), np.zeros(N)
    with pytest.raises(NumbridgeValueError, match=r"without an adjoint; give some .* requires_grad=True"):
        nb.launch(squares, N, [x], [np.zeros(N)], adjoint=True)
    with pytest.raises(NumbridgeValueError, match=r"without an adjoint of what it writes \(y\)"):
        nb.launch(squares, N, [x], [nb.zeros(N, nb.float64)], adj_inputs=[by_x], adjoint=True)
    assert not by_x.any()
