"""Kernels under `jax.vmap`: every method, any axes, what is not batched, batches of batches."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from compiled_calls import jax_kernel
from numbridge.jax_ffi.signature import VMAP_METHODS

methods = pytest.mark.parametrize("method", VMAP_METHODS)
jitted = pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])


@nb.kernel
def add(a: nb.array[float], b: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = a[i] + b[i]


@nb.kernel
def outer(a: nb.array2d[float], b: nb.array[float], s: float, out: nb.array2d[float], total: nb.array[float]):
    i, j = nb.tid()
    out[i, j] = a[i, j] * b[j] + s
    nb.atomic_add(total, i, a[i, j])


@nb.kernel
def lookup(table: nb.array[float], indices: nb.array[int], out: nb.array[float]):
    i = nb.tid()
    out[i] = table[indices[i]]


@nb.kernel
def row_sums(m: nb.array2d[float], sums: nb.array1d[float]):
    i, j = nb.tid()
    nb.atomic_add(sums, i, m[i, j])


def values(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@methods
@jitted
def test_both_batched(method, wrap):
    a, b = values(3, 4), values(3, 4, seed=1)
    (out,) = wrap(jax.vmap(jax_kernel(add, vmap_method=method)))(a, b)
    np.testing.assert_allclose(out, a + b)
    (out,) = wrap(jax.vmap(lambda x, y: jax_kernel(add)(x, y, vmap_method=method), in_axes=1, out_axes=1))(a, b)
    np.testing.assert_allclose(out, a + b)


@methods
def test_any_axes(method):
    """Every choice of axes for three arguments, of which some are not batched, against a loop."""
    shapes = {"a": (2, 3), "b": (3,), "s": ()}
    f = jax_kernel(outer, num_outputs=2, vmap_method=method, output_dims={"out": (2, 3), "total": 2})
    for axes in itertools.product((None, 0, 1, 2), (None, 0, 1), (None, 0)):
        if axes == (None, None, None):
            continue
        given = [
            values(*(shape if axis is None else (*shape[:axis], 5, *shape[axis:])), seed=k)
            for k, (shape, axis) in enumerate(zip(shapes.values(), axes, strict=True))
        ]
        out, total = jax.vmap(f, in_axes=axes)(*given)
        for k in range(5):
            a, b, s = (x if axis is None else jnp.take(x, k, axis) for x, axis in zip(given, axes, strict=True))
            np.testing.assert_allclose(out[k], a * b + s, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(total[k], a.sum(1), rtol=1e-5, atol=1e-6)


@methods
@jitted
def test_a_table_that_is_not_batched(method, wrap):
    table, indices = values(100), jnp.asarray(np.random.default_rng(0).integers(0, 100, (20, 50)), jnp.int32)
    f = jax_kernel(lookup, vmap_method=method)
    (out,) = wrap(jax.vmap(partial(f, launch_dims=50), in_axes=(None, 0)))(table, indices)
    np.testing.assert_array_equal(out, table[indices])
    (out,) = wrap(jax.vmap(partial(f, launch_dims=20), in_axes=(None, 1)))(table, indices)
    np.testing.assert_array_equal(out, table[indices].T)


@methods
def test_tables_and_indices_that_are_batched_apart(method):
    tables, indices = values(4, 10), jnp.asarray(np.random.default_rng(0).integers(0, 10, (6, 3)), jnp.int32)
    f = partial(jax_kernel(lookup, vmap_method=method), launch_dims=3)
    (out,) = jax.jit(jax.vmap(jax.vmap(f, in_axes=(0, None)), in_axes=(None, 0)))(tables, indices)
    np.testing.assert_array_equal(out, jnp.stack([tables[:, row] for row in indices]))
    (out,) = jax.vmap(jax.vmap(f, in_axes=(None, 0)), in_axes=(0, None))(tables, indices)
    np.testing.assert_array_equal(out, tables[:, indices])
    (out,) = jax.vmap(jax.vmap(f, in_axes=(None, 0)), in_axes=(None, 0))(tables[0], indices.reshape(2, 3, 3))
    np.testing.assert_array_equal(out, tables[0][indices.reshape(2, 3, 3)])


@methods
def test_three_levels(method):
    a, b = values(2, 3, 4, 5), values(3, 5, seed=1)
    f = jax_kernel(add, vmap_method=method)
    inner = jax.vmap(f, in_axes=(0, None))
    (out,) = jax.jit(jax.vmap(jax.vmap(inner, in_axes=(0, 0)), in_axes=(0, None)))(a, b)
    np.testing.assert_allclose(out, a + b[None, :, None])


@methods
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_in_out_arguments(method, axis):
    f = jax_kernel(row_sums, in_out_argnames=["sums"], vmap_method=method)
    matrices = values(2, 3, 4)
    want = jnp.moveaxis(matrices, axis, 0).sum(2)
    (out,) = jax.jit(jax.vmap(f, in_axes=(axis, 0)))(matrices, jnp.zeros(want.shape))
    np.testing.assert_allclose(out, want, rtol=1e-5)
    (out,) = jax.jit(jax.vmap(f, in_axes=(axis, None)))(matrices, jnp.ones(want.shape[1]))
    np.testing.assert_allclose(out, want + 1, rtol=1e-5, atol=1e-6)
    (out,) = jax.vmap(f, in_axes=(None, 0))(matrices[0], jnp.zeros((5, 3)))
    np.testing.assert_allclose(out, jnp.broadcast_to(matrices[0].sum(1), (5, 3)), rtol=1e-5)


def test_nothing_is_broadcast_that_is_not_batched():
    """The program of a batch reads the one table that there is."""
    table, indices = jnp.zeros(1000), jnp.zeros((7, 5), jnp.int32)
    f = jax.vmap(partial(jax_kernel(lookup), launch_dims=5), in_axes=(None, 0))
    text = jax.jit(f).lower(table, indices).as_text()
    assert "tensor<1x1000xf32>" in text and "tensor<7x1000xf32>" not in text


def test_one_call_or_one_for_each():
    a = jnp.zeros((7, 5))
    texts = {
        m: jax.jit(jax.vmap(jax_kernel(add, vmap_method=m))).lower(a, a).as_text()
        for m in ("broadcast_all", "sequential")
    }
    assert "while" not in texts["broadcast_all"] and "while" in texts["sequential"]


def test_empty_batches():
    f = jax.vmap(jax_kernel(add))
    assert f(jnp.zeros((0, 4)), jnp.zeros((0, 4)))[0].shape == (0, 4)
    assert f(jnp.zeros((4, 0)), jnp.zeros((4, 0)))[0].shape == (4, 0)


def test_batches_of_large_launches_are_shared_out():
    a, b = values(3, 300_000), values(300_000, seed=1)
    (out,) = jax.jit(jax.vmap(jax_kernel(add), in_axes=(0, None)))(a, b)
    np.testing.assert_allclose(out, a + b, rtol=1e-6)


def test_scalars_of_a_shared_out_batch():
    @nb.kernel
    def scale(x: nb.array[float], s: float, out: nb.array[float]):
        i = nb.tid()
        out[i] = x[i] * s

    x, s = jnp.ones(7), jnp.arange(50_000.0)
    (out,) = jax.jit(jax.vmap(jax_kernel(scale), in_axes=(None, 0)))(x, s)
    np.testing.assert_array_equal(out, jnp.broadcast_to(s[:, None], (50_000, 7)))
