"""Kernels whose loops read what they have stored, inside JAX: their adjoints remember nothing, and so run on CUDA as well."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from numbridge.kernels.adjoint.derive import derived
from numbridge.kernels.parameter_types import ArrayType
from numbridge.kernels.scalars import scalar_of

STEPS, N = 7, 20


@nb.kernel
def relaxed(x: nb.array2d[float], y: nb.array2d[float]):
    i = nb.tid()
    y[0, i] = x[0, i]
    for t in range(1, x.shape[0]):
        y[t, i] = math.tanh(y[t - 1, i]) * x[t, i] + 0.5 * y[t - 1, i]


def by_scan(x):
    def step(held, row):
        held = jnp.tanh(held) * row + 0.5 * held
        return held, held

    return jnp.concatenate([x[:1], jax.lax.scan(step, x[0], x[1:])[1]])


@pytest.fixture
def by_kernel():
    made = nb.jax_kernel(relaxed, launch_dims=N, output_dims=(STEPS, N), enable_backward=True)
    return lambda x: made(x)[0]


def weighted(f):
    weights = jnp.cos(jnp.arange(STEPS * N, dtype=jnp.float32)).reshape(STEPS, N)
    return lambda x: jnp.sum(weights * f(x) ** 2)


X = np.random.default_rng(2).uniform(-1, 1, (STEPS, N)).astype(np.float32)


def test_gradients_are_those_of_a_scan(by_kernel):
    np.testing.assert_allclose(by_kernel(X), by_scan(X), rtol=1e-5, atol=1e-6)
    want = jax.grad(weighted(by_scan))(X)
    for gradient in (jax.grad(weighted(by_kernel)), jax.jit(jax.grad(weighted(by_kernel)))):
        np.testing.assert_allclose(gradient(X), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(X, np.random.default_rng(2).uniform(-1, 1, (STEPS, N)).astype(np.float32))


def test_what_is_read_again_afterwards_is_unchanged(by_kernel):
    """The adjoint stores to memory of its own, whoever else holds what the kernel made."""

    @jax.jit
    def both(x):
        y, pull = jax.vjp(by_kernel, x)
        (first,), (again,) = pull(jnp.ones_like(y)), pull(y)
        return y, first, again, pull(jnp.ones_like(y))[0]

    y, first, _, again = both(X)
    np.testing.assert_array_equal(y, by_kernel(X))
    np.testing.assert_array_equal(first, again)


def test_batches_and_second_derivatives(by_kernel):
    many = jnp.stack([X, -X, 2 * X])
    got, want = (jax.vmap(jax.grad(weighted(f)))(many) for f in (by_kernel, by_scan))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

    def along(f):
        return jax.grad(lambda x: jnp.vdot(jax.grad(weighted(f))(x), jnp.sin(x)))(X)

    np.testing.assert_allclose(along(by_kernel), along(by_scan), rtol=2e-3, atol=2e-4)


def test_nothing_is_measured_on_cuda():
    """XLA's stream cannot wait for how much a launch has to remember: see `stacks_on_cuda`."""
    types = tuple(ArrayType(p.name, scalar_of(np.float32), 2, True, p.name == "y") for p in relaxed.parameters)
    plans = [derived(relaxed, "adjoint", ("x", "y"), restores=r).plan(types, "float32", "cuda") for r in (False, True)]
    assert [plan.measured is None for plan in plans] == [True, False]
