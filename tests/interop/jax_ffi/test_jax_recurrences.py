"""Kernels whose loops read what they have stored, inside JAX: their adjoints remember nothing, and so run on CUDA as well.

First gradients take what the kernel has stored as it is.
"""

from __future__ import annotations

import math
import re

import jax
import jax.export
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from numbridge.jax_ffi.targets import TARGET
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


@nb.kernel
def in_two_steps(x: nb.array[float], w: nb.array[float], y: nb.array[float], n: nb.array[int], z: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * w[i]
    n[i] = 1 if y[i] > 0.0 else 2
    z[i] = math.sin(y[i]) * w[i]


@nb.kernel
def moved_on(x: nb.array[float], held: nb.array2d[float]):
    i = nb.tid()
    for t in range(1, held.shape[0]):
        held[t, i] = held[t - 1, i] * x[i] + held[t, i]


def moved_on_by_jnp(x, held):
    rows = [held[0]]
    for row in held[1:]:
        rows.append(rows[-1] * x + row)
    return jnp.stack(rows)


def taken(function, *values):
    """Return what each derivative in a program takes: the kinds of its operands."""
    found = []

    def look(program):
        for eqn in program.eqns:
            if eqn.primitive.name == "numbridge_derivative":
                found.append([kind for kind, _ in eqn.params["form"].sources])
            for inner in jax.extend.core.jaxprs_in_params(eqn.params):
                look(inner)

    look(jax.make_jaxpr(function)(*values).jaxpr)
    return found


def test_a_gradient_takes_the_result_as_it_is(by_kernel):
    assert taken(jax.grad(weighted(by_kernel)), X) == [["primal", "left", "cotangent"]]
    text = jax.jit(jax.grad(weighted(by_kernel))).lower(X).as_text()
    calls = re.findall(r"custom_call @numbridge_launch\(.*: \((.*)\) -> ", text)
    assert [call.count("tensor") for call in calls] == [1, 3]
    pull = jax.vjp(by_kernel, X)[1]
    np.testing.assert_allclose(
        pull(jnp.ones_like(X))[0], jax.vjp(by_scan, X)[1](jnp.ones_like(X))[0], rtol=1e-4, atol=1e-5
    )


def test_tangents_do_without(by_kernel):
    got, want = (jax.jvp(f, (X,), (jnp.sin(X),))[1] for f in (by_kernel, by_scan))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    got, want = (jax.jvp(jax.grad(weighted(f)), (X,), (jnp.sin(X),))[1] for f in (by_kernel, by_scan))
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("method", ["broadcast_all", "expand_dims", "sequential", "sequential_unrolled"])
def test_batches_of_every_kind(method):
    made = nb.jax_kernel(relaxed, launch_dims=N, output_dims=(STEPS, N), enable_backward=True, vmap_method=method)
    many = jnp.stack([X, -X, 2 * X])

    def pulls(f, x, by_y):
        return jax.vjp(f, x)[1](by_y)[0]

    for axes in ((0, 0), (None, 0), (0, None)):
        given = [many if axis == 0 else X for axis in axes]
        got, want = (
            jax.vmap(lambda x, g, f=f: pulls(f, x, g), in_axes=axes)(*given) for f in (lambda x: made(x)[0], by_scan)
        )
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    got, want = (jax.jacrev(f)(X) for f in (lambda x: made(x)[0], by_scan))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_one_of_several_results_is_taken():
    f = nb.jax_kernel(in_two_steps, num_outputs=3, enable_backward=True)
    x, w = X[0], X[1]

    def twin(x, w):
        return x * w, None, jnp.sin(x * w) * w

    for use in (lambda y, _, z: (y**2).sum(), lambda y, _, z: z.sum(), lambda y, _, z: (y * z).sum()):
        for by in ((0,), (1,), (0, 1)):
            got, want = (
                jax.jit(jax.grad(lambda x, w, g=g, use=use: use(*g(x, w)), argnums=by))(x, w) for g in (f, twin)
            )
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    got, want = (jax.hessian(lambda x, g=g: g(x, w)[2].sum())(x) for g in (f, twin))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_results_that_take_the_place_of_inputs():
    f = nb.jax_kernel(moved_on, in_out_argnames=["held"], num_outputs=1, launch_dims=N, enable_backward=True)
    x, held = X[0], X.copy()
    assert taken(jax.grad(lambda x, h: f(x, h)[0].sum(), argnums=(0, 1)), x, held)[0].count("left") == 1
    for by in (0, 1, (0, 1)):
        got, want = (
            jax.jit(jax.grad(lambda x, h, g=g: (g(x, h) ** 2).sum(), argnums=by))(x, held)
            for g in (lambda x, h: f(x, h)[0], moved_on_by_jnp)
        )
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(held, X)


def test_what_is_not_saved_is_computed_again(by_kernel):
    got = jax.jit(jax.grad(weighted(jax.checkpoint(by_kernel))))(X)
    np.testing.assert_allclose(got, jax.grad(weighted(by_scan))(X), rtol=1e-4, atol=1e-5)

    def steps(f):
        return lambda x: jax.lax.scan(lambda held, _: (f(held), None), x, None, length=3)[0].sum()

    got, want = (jax.jit(jax.grad(steps(f)))(X) for f in (by_kernel, by_scan))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_a_gradient_that_is_exported(by_kernel):
    made = jax.export.export(
        jax.jit(jax.grad(weighted(by_kernel))), disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(TARGET)]
    )(X)
    got = jax.export.deserialize(made.serialize()).call(X)
    np.testing.assert_allclose(got, jax.grad(weighted(by_scan))(X), rtol=1e-4, atol=1e-5)
