"""Derivatives of 16-bit floats inside JAX: computed in float32, added up in float32, rounded once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from compiled_calls import jax_callable, jax_kernel
from numbridge.jax_ffi.derivative import Form, planned
from numbridge.jax_ffi.plan import Operand, Options, plan_call
from numbridge.jax_ffi.signature import signature
from numbridge.kernels import variant
from numbridge.kernels.variant import variants_of

HALVES = pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])


@nb.kernel
def curved(x: nb.array, w: nb.array, s: float, y: nb.array):
    i = nb.tid()
    y[i] = nb.sin(x[i]) * w[0] * s


def curved_in_jax(x, w, s):
    return jnp.sin(x) * w[0] * s


@nb.kernel
def multiplied(x, a, y):
    i = nb.tid()
    y[i] = a * x[i]


@nb.kernel
def spread(x: nb.array, y: nb.array):
    i = nb.tid()
    y[i] = x[0] * x[0]


def wide(value):
    return np.asarray(value, np.float32)


def values(*shape):
    return jnp.asarray(np.random.default_rng(0).uniform(0.2, 1.2, shape), jnp.float32)


def close(got, wanted, dtype, factor=4):
    precision = float(jnp.finfo(dtype).eps)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(wide(a), wide(b), rtol=factor * precision, atol=factor * precision)


@HALVES
def test_gradients_and_tangents(dtype):
    f = jax_kernel(curved, enable_backward=True)
    x, w, s = values(7).astype(dtype), values(1).astype(dtype), jnp.float32(1.5)
    c = values(7) - 0.5
    ours = jax.jit(lambda x, w, s: (f(x, w, s)[0].astype(jnp.float32) * c).sum())
    theirs = lambda x, w, s: (curved_in_jax(x, w, s) * c).sum()  # noqa: E731 - as the line before
    single = (x.astype(jnp.float32), w.astype(jnp.float32), s)
    got = jax.grad(ours, (0, 1, 2))(x, w, s)
    assert [g.dtype for g in got] == [dtype, dtype, jnp.float32]
    close(got, jax.grad(theirs, (0, 1, 2))(*single), dtype)
    got = jax.jvp(lambda *a: f(*a)[0], (x, w, s), (x, w, s))
    assert got[1].dtype == dtype
    close(got, jax.jvp(curved_in_jax, single, single), dtype)
    got = jax.hessian(ours, (0, 2))(x, w, s)
    close(got, jax.hessian(theirs, (0, 2))(*single), dtype, 8)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn])
def test_numbers_by_value_are_computed_with_in_single_precision(dtype):
    f, x = jax_kernel(multiplied, enable_backward=True), values(5)
    a = jnp.asarray(1.5, dtype)
    for given in (a, np.asarray(a)[()]):
        for run in (f, jax.jit(f), lambda x, a: jax.jit(lambda x: f(x, a))(x)):
            (y,) = run(x, given)
            assert y.dtype == jnp.float32
            np.testing.assert_array_equal(y, 1.5 * x)
    rows = jax.vmap(lambda a: f(x, a)[0])(jnp.stack([a, 2 * a]))
    np.testing.assert_array_equal(rows, jnp.stack([1.5 * x, 3 * x]))
    gradient = jax.grad(lambda a: f(x, a)[0].sum())(a)
    assert gradient.dtype == dtype
    close(gradient, x.sum(), dtype)


@HALVES
def test_batches(dtype):
    f = jax_kernel(curved, enable_backward=True)
    x, w = values(3, 7).astype(dtype), values(1).astype(dtype)
    got = jax.jit(jax.grad(lambda x, w: jax.vmap(lambda x: f(x, w, 2.0)[0])(x).astype(jnp.float32).sum(), (0, 1)))(x, w)
    single = x.astype(jnp.float32), w.astype(jnp.float32)
    close(got, jax.grad(lambda x, w: curved_in_jax(x, w, 2.0).sum(), (0, 1))(*single), dtype, 8)


@HALVES
def test_many_small_parts_add_up(dtype):
    """In 16 bits, the sum would stop growing long before."""
    n, part = 4096, 1e-3
    f = jax_kernel(spread, launch_dims=n, enable_backward=True)
    _, pull = jax.vjp(lambda x: f(x)[0], jnp.full(1, 0.5, dtype))
    (got,) = pull(jnp.full(n, part, dtype))
    assert got.dtype == dtype
    np.testing.assert_allclose(wide(got), n * float(dtype(part)), rtol=float(jnp.finfo(dtype).eps))


@HALVES
@pytest.mark.parametrize("mode", [nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE])
def test_in_a_callable(dtype, mode):
    def function(x: nb.array, w: nb.array, y: nb.array):
        once = nb.zeros(x.shape, dtype=x.dtype)
        nb.launch(curved, x.shape, [x, w, 1.0], [once])
        nb.launch(curved, x.shape, [once, w, 1.0], [y])

    f = jax_callable(function, graph_mode=mode, enable_backward=True)
    x, w = values(7).astype(dtype), values(1).astype(dtype)
    got = jax.jit(jax.grad(lambda x, w: f(x, w)[0].astype(jnp.float32).sum(), (0, 1)))(x, w)
    single = x.astype(jnp.float32), w.astype(jnp.float32)
    twice = lambda x, w: curved_in_jax(curved_in_jax(x, w, 1.0), w, 1.0).sum()  # noqa: E731
    close(got, jax.grad(twice, (0, 1))(*single), dtype, 8)


@HALVES
@pytest.mark.parametrize("directions", [(), ((0, 1),)])
def test_adjoints_compile_for_cuda(dtype, directions):
    """Of the kernel, and of its tangent; every adjoint is float32."""
    options = Options(None, None, "broadcast_all", 256, False, None, True)
    operands = [Operand((7,), np.dtype(dtype), False), Operand((1,), np.dtype(dtype), False)]
    found = signature("kernel 'curved'", curved.parameters, 1, None)
    call = plan_call(curved, found, options, [*operands, Operand((), np.dtype(np.float32), False)])
    count = 3 + sum(map(len, directions)) + 1
    call = planned(Form(call, (), directions, (0,), (0, 1), (), ((),) * count)).call
    adjoints = {kind.name: kind.scalar.name for kind in call.types if kind.name.startswith("_nb_adj")}
    assert set(adjoints.values()) == {"float32"} and len(adjoints) >= 3
    emitted = variants_of(call.kernel).emitted(call.types, call.weak, "cuda")
    code = variant._cuda_code(call.kernel, emitted, call.types, (9, 0), "masked")
    assert code.compiled.objects[0][:4] == b"\x7fELF"
