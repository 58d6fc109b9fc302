"""Kernels inside JAX on a real GPU: the compiled handler on XLA's stream, callbacks, and functions of several kernels."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb


@nb.kernel
def axpy(x: nb.array[float], a: float, y: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = a * x[i] + y[i]


@nb.kernel
def table(x: nb.array2d[float], scale: nb.int64, out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = x[i, j] * scale + i * 1000 + j


@nb.kernel
def row_sums(m: nb.array2d[float], sums: nb.array[float], seen: nb.array[nb.int32]):
    i, j = nb.tid()
    nb.atomic_add(sums, i, m[i, j])
    if j == 1:
        seen[i] = 1


def on_gpu(*shape):
    return jax.device_put(np.random.default_rng(0).normal(size=shape).astype(np.float32), jax.devices("cuda")[0])


@pytest.fixture(autouse=True)
def gpu():
    with jax.default_device(jax.devices("cuda")[0]):
        yield


@pytest.mark.parametrize("n", [1, 1000, 1 << 20])
def test_static_traced_and_eager_numbers(n):
    f, x, y = nb.jax_kernel(axpy), on_gpu(n), on_gpu(n) + 1
    want = np.float32(2.5) * np.asarray(x) + np.asarray(y)
    for run in (
        jax.jit(lambda x, y: f(x, 2.5, y)),
        jax.jit(lambda x, y: f(x, jnp.float32(2.5), y)),
        lambda x, y: f(x, 2.5, y),
    ):
        (out,) = run(x, y)
        assert out.devices() == x.devices()
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)


def test_one_call_after_the_other_in_one_program():
    f = nb.jax_kernel(axpy)

    def repeat(x, y):
        for k in range(50):
            y = jnp.tanh(f(x, 0.1 * k, y)[0])
        return y

    x, y = on_gpu(5000), on_gpu(5000) * 0.5
    want = np.asarray(y)
    for k in range(50):
        want = np.tanh(np.float32(0.1 * k) * np.asarray(x) + want)
    np.testing.assert_allclose(jax.jit(repeat)(x, y), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(7, 900), (900, 3), (1, 1)])
def test_two_dimensions(shape):
    x = on_gpu(*shape)
    want = np.asarray(x) * 5 + np.arange(shape[0])[:, None] * 1000 + np.arange(shape[1])
    np.testing.assert_allclose(jax.jit(lambda x: nb.jax_kernel(table)(x, 5)[0])(x), want, rtol=1e-5)


def test_in_out_arguments_and_what_is_not_written():
    f = nb.jax_kernel(row_sums, 2, in_out_argnames=["sums"], output_dims=20)
    m, start = on_gpu(10, 33), on_gpu(10)
    sums, seen = jax.jit(f)(m, start)
    np.testing.assert_allclose(sums, np.asarray(m).sum(1) + np.asarray(start), rtol=1e-4, atol=1e-4)
    assert seen.tolist() == [1] * 10 + [0] * 10


@pytest.mark.parametrize("method", ["broadcast_all", "sequential"])
def test_batches(method):
    f = functools.partial(nb.jax_kernel(axpy), vmap_method=method)
    x, a, y = on_gpu(6, 100), on_gpu(6), on_gpu(100)
    (out,) = jax.jit(jax.vmap(f, (0, 0, None)))(x, a, y)
    np.testing.assert_allclose(out, np.asarray(a)[:, None] * np.asarray(x) + np.asarray(y), rtol=1e-4, atol=1e-5)


def test_callbacks_are_ordered_on_the_stream():
    def function(inputs, outputs, attrs, ctx):
        assert ctx.device.is_cuda and ctx.stream is not None
        nb.launch(axpy, inputs[0].shape, [inputs[0], attrs["a"], inputs[1], outputs[0]])

    nb.register_ffi_callback("gpu_axpy", function)
    x, y = on_gpu(1000), on_gpu(1000)
    call = jax.ffi.ffi_call("gpu_axpy", jax.ShapeDtypeStruct(x.shape, x.dtype))
    out = jax.jit(lambda x, y: jnp.sin(call(jnp.cos(x), y, a=2.0)))(x, y)
    np.testing.assert_allclose(out, np.sin(2 * np.cos(np.asarray(x)) + np.asarray(y)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", list(nb.GraphMode))
def test_several_kernels(mode):
    def function(x: nb.array[float], a: float, out: nb.array[float]):
        once = nb.zeros(x.shape, device="cuda") if mode is nb.GraphMode.NONE else nb.zeros(x.shape)
        nb.launch(axpy, x.shape, [x, a, x], [once])
        nb.launch(axpy, x.shape, [once, a, x], [out])

    x = on_gpu(1000)
    (out,) = jax.jit(nb.jax_callable(function, graph_mode=mode), static_argnums=1)(x, 3.0)
    np.testing.assert_allclose(out, 13 * np.asarray(x), rtol=1e-5)


def test_graphs_of_our_own():
    """Replayed on the same buffers and captured for others, with the values of each call."""

    def function(x: nb.array[float], a: float, out: nb.array[float]):
        once = nb.zeros(x.shape)
        nb.launch(axpy, x.shape, [x, a, x], [once])
        nb.launch(axpy, x.shape, [once, a, x], [out])

    f = nb.jax_callable(function, graph_mode=nb.GraphMode.NUMBRIDGE, graph_cache_max=2)
    jitted, kept = jax.jit(f, static_argnums=1), []
    for k in range(8):
        x = on_gpu(1000) + k
        kept.append((x, jitted(x, 3.0)[0]))
    for x, out in kept:
        np.testing.assert_allclose(out, 13 * np.asarray(x), rtol=1e-5)
    assert f.graph_cache_size == 2
    f.clear_graph_cache()
    np.testing.assert_allclose(jitted(x, 3.0)[0], 13 * np.asarray(x), rtol=1e-5)
    assert f.graph_cache_size == 1


def test_an_array_that_is_dropped_while_a_kernel_reads_it_is_safe():
    @nb.kernel
    def slowly(x, rounds, y):
        i = nb.tid()
        s = 0.0
        for _ in range(rounds):
            s = s * 0.5 + 1.0
        y[i] = x[i] if s >= 0.0 else s

    n = 1 << 20
    y, grow = nb.zeros(n, device="cuda"), jax.jit(lambda: jnp.full(n, -1, jnp.float32))
    nb.launch(slowly, n, [jnp.full(n, 6, jnp.float32), np.int64(1), y])
    jax.block_until_ready(grow())
    for _ in range(3):
        x = jax.block_until_ready(jnp.full(n, 6, jnp.float32))
        nb.launch(slowly, n, [x, np.int64(1_000_000), y])
        del x
        jax.block_until_ready([grow() for _ in range(8)])
        assert (y.numpy() == 6).all()
