"""JAX's ways to find a mistake, with kernels: checks for NaN and infinity, and programs that run step by step."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import pytest

import numbridge as nb

modes = pytest.mark.parametrize("mode", list(nb.GraphMode))
wraps = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
fuses = pytest.mark.parametrize("fuse", [None, False])
minus = -jnp.ones(3)
large = jnp.full(3, 1e38)
NAN = r"there is NaN in its results, and jax_debug_nans is set"
INFINITE = r"there is an infinite number in its results, and jax_debug_infs is set"


@nb.kernel
def rooted(x: nb.array[float], a: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = nb.sqrt(x[i]) * a


@nb.kernel
def doubled(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = 2.0 * x[i]


def twofold(x: nb.array[float], a: float, out: nb.array[float]):
    between = nb.zeros(x.shape)
    nb.launch(rooted, x.shape, [x, a], [between])
    nb.launch(doubled, x.shape, [between], [out])


@wraps
@fuses
def test_a_kernel_that_makes_nan_is_named(wrap, fuse):
    f = wrap(nb.jax_kernel(rooted, fuse=fuse))
    with jax.debug_nans(True):
        assert f(jnp.ones(3), 2.0)[0].tolist() == [2.0] * 3
        with pytest.raises(FloatingPointError, match=f"kernel 'rooted' under JAX: {NAN}") as caught:
            f(minus, 2.0)
        assert isinstance(caught.value, nb.NonFiniteError)
        with pytest.raises(FloatingPointError, match="kernel 'rooted' under JAX"):
            jax.vmap(f, in_axes=(0, None))(jnp.stack([minus, minus]), 2.0)
    # What is no more asked for is no more checked.
    assert jnp.isnan(f(minus, 2.0)[0]).all()


@wraps
@fuses
def test_a_kernel_that_makes_an_infinite_number_is_named(wrap, fuse):
    f = wrap(nb.jax_kernel(rooted, fuse=fuse))
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=f"kernel 'rooted' under JAX: {INFINITE}"):
        f(large, 1e30)
    # NaN is none.
    with jax.debug_infs(True):
        assert jnp.isnan(f(minus, 2.0)[0]).all()


@wraps
def test_a_gradient_that_is_nan_says_whose(wrap):
    f = nb.jax_kernel(rooted, enable_backward=True)
    gradient = wrap(jax.grad(lambda x: f(x, 0.0)[0].sum()))
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=f"kernel 'rooted', gradient, under JAX: {NAN}"):
        gradient(jnp.zeros(3))


@wraps
@pytest.mark.parametrize("mode", [nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE])
def test_the_launch_of_a_callable_is_named(wrap, mode):
    f = wrap(nb.jax_callable(twofold, graph_mode=mode))
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=f"kernel 'rooted' under JAX: {NAN}"):
        f(minus, 2.0)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=f"kernel 'doubled' under JAX: {INFINITE}"):
        f(jnp.full(3, 4.0), 1e38)


@modes
@wraps
@pytest.mark.parametrize("option", [contextlib.nullcontext, jax.disable_jit])
def test_step_by_step(mode, wrap, option):
    with option():
        f = wrap(nb.jax_callable(twofold, graph_mode=mode))
        assert f(jnp.ones(3), 2.0)[0].tolist() == [4.0] * 3
