"""Gradients through complex arrays under torch, Paddle and JAX: in each one's own convention, against its own functions."""

from __future__ import annotations

import cmath

import jax
import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch
from jax.test_util import check_grads

import numbridge as nb


@nb.kernel
def mixed(x, y, out):
    i = nb.tid()
    out[i] = (2.0 * x[i] - 1j * y[i].conjugate()) / (x[i] + 3.0) + x[i] * abs(y[i]) + cmath.exp(x[i] * y[i])


@nb.kernel
def sizes(z, w, out: nb.array[nb.float64]):
    i = nb.tid()
    turned = z[i] * w[i]
    out[i] = turned.real * turned.real + turned.imag * turned.imag


def by_torch(x, y):
    return (2.0 * x - 1j * y.conj()) / (x + 3.0) + x * y.abs() + (x * y).exp()


def by_jax(x, y):
    return (2.0 * x - 1j * jnp.conj(y)) / (x + 3.0) + x * jnp.abs(y) + jnp.exp(x * y)


def values(seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=5) + 1j * random.normal(size=5) for _ in range(2)]


def tensors():
    return [torch.tensor(value, requires_grad=True) for value in values()]


# torch


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_torch_to_second_order_in_both_modes():
    op, (x, y) = nb.torch_op(mixed, outputs=["out"]), tensors()
    assert torch.autograd.gradcheck(op, (x, y)) and torch.autograd.gradgradcheck(op, (x, y))
    moved = tuple(torch.tensor(value) for value in values(3))
    found, wanted = torch.func.jvp(op, (x, y), moved)[1], torch.func.jvp(by_torch, (x, y), moved)[1]
    torch.testing.assert_close(found, wanted)


def test_torch_gradients_that_are_conjugated_lazily():
    op = nb.torch_op(mixed, outputs=["out"])

    def loss(function, x, y):
        return function(x, y).conj().abs().sum() + (function(x.conj(), y).conj() * x).real.sum()

    found, wanted = tensors(), tensors()
    loss(op, *found).backward()
    loss(by_torch, *wanted).backward()
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_torch_from_complex_and_real_to_real():
    op = nb.torch_op(sizes, outputs=["out"], output_dims=5)
    z, w = tensors()[0], torch.rand(5, dtype=torch.float64, requires_grad=True)
    op(z, w).sum().backward()
    torch.testing.assert_close(z.grad, 2 * z.detach() * w.detach() ** 2)
    torch.testing.assert_close(w.grad, 2 * z.detach().abs() ** 2 * w.detach())


def test_torch_tensors_on_a_tape():
    x, y = tensors()
    out = torch.zeros(5, dtype=torch.complex128)
    with nb.Tape() as tape:
        nb.launch(mixed, 5, [x, y, out])
    seed = values(1)[0]
    tape.backward(grads={out: torch.tensor(seed)})
    wanted = tensors()
    by_torch(*wanted).backward(torch.tensor(seed))
    for a, b in zip((x, y), wanted, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


# Paddle


def test_paddle_to_second_order():
    """Paddle's own functions of parts have no second derivative, so gradients are given."""
    op, seeds = nb.paddle_op(mixed, outputs=["out"]), values(1)
    x, y = (paddle.to_tensor(value, stop_gradient=False) for value in values())
    given = [[paddle.to_tensor(seed)] for seed in seeds]
    first = paddle.grad([op(x, y)], [x, y], grad_outputs=given[0], create_graph=True)
    second = paddle.grad([first[0]], [x, y], grad_outputs=given[1])
    wanted, given = tensors(), [torch.tensor(seed) for seed in seeds]
    by = torch.autograd.grad(by_torch(*wanted), wanted, given[0], create_graph=True)
    by += torch.autograd.grad(by[0], wanted, given[1])
    for a, b in zip([*first, *second], by, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-9)


# JAX


@pytest.fixture
def wide():
    with jax.enable_x64(True):
        yield


def under_jax():
    def run(x, y):
        return nb.jax_kernel(mixed, enable_backward=True)(x, y)[0]

    return run


def squares(function, y):
    return lambda x: jnp.sum(jnp.abs(function(x, y)) ** 2)


def test_jax_derivatives(wide):
    f, (x, y) = under_jax(), map(jnp.asarray, values())
    check_grads(f, (x, y), order=2, modes=["fwd", "rev"], atol=1e-5, rtol=1e-5)
    for by in (0, 1):
        found, wanted = (
            jax.jit(jax.grad(lambda x, y, g=g: jnp.sum(jnp.abs(g(x, y)) ** 2), by))(x, y) for g in (f, by_jax)
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
    twice = [jax.grad(lambda x, g=g: jnp.sum(jnp.abs(jax.grad(squares(g, y))(x)) ** 2))(x) for g in (f, by_jax)]
    np.testing.assert_allclose(*twice, rtol=1e-9)
    rows = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(*(jax.vmap(jax.grad(squares(g, y)))(rows) for g in (f, by_jax)), rtol=1e-10)
    holomorphic = (jax.grad(lambda z, g=g: g(z[None], y[:1])[0], holomorphic=True)(x[0]) for g in (f, by_jax))
    np.testing.assert_allclose(*holomorphic, rtol=1e-12)


def test_jax_from_complex_to_real_and_back(wide):
    norm = nb.jax_kernel(sizes, enable_backward=True)
    z, w = jnp.asarray(values()[0]), jnp.arange(5.0) + 1
    by_z, by_w = jax.grad(lambda z, w: norm(z, w)[0].sum(), (0, 1))(z, w)
    np.testing.assert_allclose(by_z, 2 * jnp.conj(z) * w**2, rtol=1e-12)
    np.testing.assert_allclose(by_w, 2 * jnp.abs(z) ** 2 * w, rtol=1e-12)
    through = jax.grad(lambda r: norm(r + 2j * r, w)[0].sum())(w)
    np.testing.assert_allclose(through, 10 * w**3, rtol=1e-12)


def test_several_kernels_under_jax(wide):
    def chained(x: nb.array[nb.complex128], y: nb.array[nb.complex128], out: nb.array[nb.float64]):
        between = nb.zeros_like(x)
        nb.launch(mixed, x.shape, [x, y], [between])
        nb.launch(sizes, x.shape, [between, y], [out])

    f = nb.jax_callable(chained, enable_backward=True)
    x, y = map(jnp.asarray, values())

    def whole(x, y):
        return jnp.abs(by_jax(x, y) * y) ** 2

    for by in (0, 1):
        found = jax.jit(jax.grad(lambda x, y: f(x, y)[0].sum(), by))(x, y)
        np.testing.assert_allclose(found, jax.grad(lambda x, y: whole(x, y).sum(), by)(x, y), rtol=1e-10)


def test_a_complex_number_by_value_has_no_derivative_under_jax(wide):
    @nb.kernel
    def scaled(x, factor: nb.complex128, out):
        i = nb.tid()
        out[i] = x[i] * factor

    f, x = nb.jax_kernel(scaled, enable_backward=True), jnp.asarray(values()[0])
    by_x = jax.grad(lambda x: f(x, 2 - 1j)[0].real.sum())(x)
    np.testing.assert_allclose(by_x, np.full(5, 2 - 1j), rtol=1e-12)
    with pytest.raises(
        nb.KernelUnsupportedError, match=r"'factor': it is complex128 by value.*an array of one element"
    ):
        jax.grad(lambda factor: f(x, factor)[0].real.sum())(jnp.asarray(2 - 1j))
