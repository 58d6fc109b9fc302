"""Gradients within kernels, differentiated again by every framework."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch

import numbridge as nb


@nb.func
def well(a, k):
    if a > 1.0:
        return k * (a * a - 1.0) ** 2
    return k * nb.exp(a) * a * a


@nb.kernel
def slopes(x: nb.array1d[nb.float64], k: nb.array1d[nb.float64], y: nb.array1d[nb.float64]):
    i = nb.tid()
    y[i] = nb.grad(well)(x[i], k[0])[0]


X, K = np.array([-0.5, 0.3, 1.5, 2.0]), np.array([1.7])


def well_of(x, k):
    return jnp.where(x > 1, k * (x * x - 1) ** 2, k * jnp.exp(x) * x * x)


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def expected(order):
    """Return derivatives of the well by `x`: of the kernel's results, and those of the sum of these by `k`."""
    found = well_of
    for _ in range(order):
        found = jax.grad(found)
    return np.array([found(x, K[0]) for x in X])


def test_tape():
    x, k, y = nb.array(X, requires_grad=True), nb.array(K, requires_grad=True), nb.zeros(4, dtype=nb.float64)
    with nb.Tape() as tape:
        nb.launch(slopes, 4, [x, k], [y])
    assert np.allclose(y.numpy(), expected(1))
    tape.backward(grads={y: np.ones(4)})
    assert np.allclose(x.grad.numpy(), expected(2)) and np.allclose(k.grad.numpy(), expected(1).sum() / K)


def test_torch():
    op = nb.torch_op(slopes, outputs="y", name="grads::slopes")
    x, k = torch.tensor(X, requires_grad=True), torch.tensor(K, requires_grad=True)
    assert np.allclose(op(x, k).detach(), expected(1))
    (second,) = torch.autograd.grad(op(x, k).sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    assert np.allclose(second.detach(), expected(2)) and np.allclose(third, expected(3))
    compiled = torch.compile(lambda x, k: op(x, k).sum(), backend="aot_eager", fullgraph=True)
    x.grad = None
    compiled(x, k).backward()
    assert np.allclose(x.grad, expected(2)) and np.allclose(k.grad, expected(1).sum() / K)


def test_paddle():
    op = nb.paddle_op(slopes, outputs="y")
    x, k = paddle.to_tensor(X, stop_gradient=False), paddle.to_tensor(K, stop_gradient=False)
    op(x, k).sum().backward()
    assert np.allclose(x.grad.numpy(), expected(2)) and np.allclose(k.grad.numpy(), expected(1).sum() / K)


def test_jax():
    op = nb.jax_kernel(slopes, enable_backward=True)
    x, k = jnp.array(X), jnp.array(K)

    def total(x, k):
        return op(x, k)[0].sum()

    assert np.allclose(jax.jit(op)(x, k)[0], expected(1))
    assert np.allclose(jax.jit(jax.grad(total))(x, k), expected(2))
    assert np.allclose(jax.grad(lambda x: jax.grad(total)(x, k).sum())(x), expected(3))
    (rows,) = jax.jit(jax.vmap(op, in_axes=(0, None)))(jnp.stack([x, x + 0.1]), k)
    assert np.allclose(rows[0], expected(1)) and rows.shape == (2, 4)


def test_arrays_that_only_gradients_read_are_arrays_of_an_operator():
    @nb.func
    def looked_up(a, table):
        return a * table[0]

    @nb.kernel
    def scaled(x, table, y):
        i = nb.tid()
        y[i], _ = nb.grad(looked_up)(x[i], table)

    op = nb.torch_op(scaled, outputs="y", launch_dims=lambda x, table: x.shape[0])
    x, table = torch.ones(3, requires_grad=True), torch.tensor([2.5], requires_grad=True)
    assert op(x, table).tolist() == [2.5] * 3
    op(x, table).sum().backward()
    assert table.grad.tolist() == [3.0] and (x.grad is None or not x.grad.any())


@nb.func
def product(a, b):
    return a * b


@nb.kernel
def sum_of_gradient(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    for d in nb.grad(product)(x[i], 2.0):
        y[i] += d * d


@nb.kernel
def numbered_gradient(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    for k, d in enumerate(nb.grad(product)(x[i], 2.0)):
        y[i] += k * d * d


@pytest.mark.parametrize(("kernel", "before"), [(sum_of_gradient, 4), (numbered_gradient, 0)])
def test_loops_over_a_gradient(kernel, before):
    x, y = nb.array([1.0, 3.0], requires_grad=True), nb.zeros(2, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(kernel, 2, [x], [y])
    assert y.numpy().tolist() == [before + 1, before + 9]
    tape.backward(grads={y: np.ones(2)})
    assert x.grad.numpy().tolist() == [2, 6]
