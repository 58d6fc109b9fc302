"""Vectors and matrices by value, and records, inside JAX."""

from __future__ import annotations

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from call_frames import Elsewhere, Made
from compiled_calls import jax_callable, jax_kernel
from fake_cuda import fake_cuda
from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as wl
from numbridge.jax_ffi.plan import Number, by_reference
from numbridge.kernels.cuda_backend import cuda_driver

N = 5
PARTICLE = np.dtype([("x", np.float32), ("v", np.float32, 3), ("id", np.int64)], align=True)


@nb.kernel
def moved(x: nb.array[nb.vec3], m: nb.mat33, s: float, t: nb.vec3, out: nb.array[nb.vec3]):
    i = nb.tid()
    out[i] = m @ x[i] * s + t


def moved_in_jax(x, m, s, t):
    return x @ jnp.asarray(m).T * s + jnp.asarray(t)


@nb.kernel
def advance(p: nb.array(dtype=PARTICLE), dt: float, out: nb.array(dtype=PARTICLE)):
    i = nb.tid()
    out[i].x = p[i].x + dt * p[i].v[0]
    for k in range(3):
        out[i].v[k] = p[i].v[k]
    out[i].id = p[i].id + 1


def values(*shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


X, M, T = values(N, 3), values(3, 3), values(3)
M_VALUE, T_VALUE = nb.mat33(np.asarray(M)), nb.vec3(np.asarray(T))


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "given", [(M_VALUE, 2.0, T_VALUE), (M, 2.0, T_VALUE), (M_VALUE, jnp.float32(2), T), (M, 2.0, T)]
)
def test_static_and_traced_values(given):
    f = jax_kernel(moved)
    wanted = moved_in_jax(X, M, 2.0, T)
    close(f(X, *given)[0], wanted)
    close(jax.jit(lambda x: f(x, *given)[0])(X), wanted)
    traced = [k for k, value in enumerate(given) if isinstance(value, jax.Array)]

    def some(*moving):
        every = list(given)
        for k, value in zip(traced, moving, strict=True):
            every[k] = value
        return f(X, *every)[0]

    close(jax.jit(some)(*(given[k] for k in traced)), wanted)


def test_another_value_compiles_nothing_when_it_is_no_part_of_a_program():
    f = jax_kernel(moved)
    f(X, M_VALUE, 1.0, T_VALUE)
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", None)
        close(f(X, nb.mat33(2.0), 1.0, nb.vec3(1.0))[0], moved_in_jax(X, np.full((3, 3), 2.0), 1.0, np.ones(3)))


def test_a_static_value_is_an_attribute():
    text = jax.jit(lambda x: jax_kernel(moved)(x, M_VALUE, 2.0, T_VALUE)[0]).lower(X).as_text()
    (call,) = (line for line in text.splitlines() if "numbridge_launch" in line)
    assert "(tensor<5x3xf32>) -> tensor<5x3xf32>" in call


def test_derivatives_by_values():
    f = jax_kernel(moved, enable_backward=True)
    w = values(N, 3) + 1

    def loss(function):
        return lambda x, m, s, t: (jnp.sin(function(x, m, s, t)) * w).sum()

    ours, theirs = loss(lambda *a: f(*a)[0]), loss(moved_in_jax)
    given, every = (X, M, jnp.float32(1.5), T), (0, 1, 2, 3)
    for transform in (
        lambda g: jax.grad(g, every)(*given),
        lambda g: jax.jvp(g, given, given),
        lambda g: jax.hessian(g, (1, 3))(*given),
        lambda g: jax.vmap(jax.grad(g, every), (None, 0, None, 0))(X, values(4, 3, 3), given[2], values(4, 3)),
    ):
        got, wanted = jax.jit(lambda transform=transform: transform(ours))(), transform(theirs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), got, wanted)
    close(jax.grad(lambda x: ours(x, M_VALUE, 1.5, T_VALUE))(X), jax.grad(theirs)(X, M, 1.5, T))


@pytest.mark.parametrize("method", ["broadcast_all", "expand_dims", "sequential"])
def test_batches_of_values(method):
    f = jax_kernel(moved, vmap_method=method)
    m, t = values(4, 3, 3), values(4, 3)
    got = jax.jit(jax.vmap(lambda m, t: f(X, m, 2.0, t)[0]))(m, t)
    close(got, jax.vmap(lambda m, t: moved_in_jax(X, m, 2.0, t))(m, t))


@pytest.mark.parametrize("mode", list(nb.GraphMode))
def test_values_in_a_callable(mode):
    def function(x: nb.array1d[nb.vec3], m: nb.mat33, t: nb.vec3, out: nb.array1d[nb.vec3]):
        once = nb.zeros(x.shape, dtype=nb.vec3)
        nb.launch(moved, x.shape, [x, m, 1.0, t], [once])
        nb.launch(moved, x.shape, [once, m, 2.0, nb.vec3(1.0)], [out])

    f = jax_callable(function, graph_mode=mode)
    wanted = moved_in_jax(moved_in_jax(X, M, 1.0, T), M, 2.0, jnp.ones(3))
    close(f(X, M_VALUE, T_VALUE)[0], wanted)
    close(f(X, M, T)[0], wanted)
    close(jax.jit(lambda x, m: f(x, m, T_VALUE)[0])(X, M), wanted)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((M, 1.0, nb.vec4(1.0)), r"argument 't': wanted vec3, got vec4\(1.0, 1.0, 1.0, 1.0\); pass nb.vec3\(...\)"),
        ((M, 1.0, 2.0), r"argument 't': wanted vec3, got .*; pass nb.vec3"),
        ((M, T_VALUE, T), r"argument 's': wanted float32, got vec3\(.*; pass a number"),
        ((T, 1.0, T), r"argument 'm': wanted a mat33, got float32\[3\]; pass an array of shape \(3, 3\)"),
        ((M, 1.0, jnp.ones(3, complex)), r"argument 't': wanted float32, got complex64\[3\]"),
    ],
)
def test_values_that_do_not_fit(arguments, text):
    f = jax_kernel(moved)
    for run in (lambda: f(X, *arguments), lambda: jax.jit(lambda x: f(x, *arguments))(X)):
        with pytest.raises(nb.NumbridgeError, match=text):
            run()


# --------------------------------------------------------------------------------------------------------------------
# Records


def particles(*shape):
    random = np.random.default_rng(2)
    made = np.zeros(shape, PARTICLE)
    made["x"], made["v"], made["id"] = random.normal(size=shape), random.normal(size=(*shape, 3)), 7
    return made


def as_bytes(records):
    return jnp.asarray(records.view(np.uint8).reshape(*records.shape, -1))


def as_records(array):
    return np.ascontiguousarray(array).view(PARTICLE)[..., 0]


def check_advanced(got, given, dt):
    np.testing.assert_allclose(got["x"], given["x"] + dt * given["v"][..., 0], rtol=1e-6)
    np.testing.assert_array_equal(got["v"], given["v"])
    np.testing.assert_array_equal(got["id"], given["id"] + 1)


def test_records_are_bytes():
    given, f = particles(N), jax_kernel(advance)
    for wrap in (lambda g: g, jax.jit):
        (out,) = wrap(f)(as_bytes(given), 0.5)
        assert out.shape == (N, PARTICLE.itemsize) and out.dtype == jnp.uint8
        check_advanced(as_records(out), given, 0.5)
    (out,) = jax.jit(jax_kernel(advance, output_dims=N))(as_bytes(given), jnp.float32(0.5))
    check_advanced(as_records(out), given, 0.5)


def test_batches_of_records():
    given = particles(3, N)
    (out,) = jax.jit(jax.vmap(jax_kernel(advance), (0, None)))(as_bytes(given), 0.5)
    check_advanced(as_records(out), given, 0.5)


@pytest.mark.parametrize("mode", [nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE])
def test_records_in_a_callable(mode):
    def function(p: nb.array(dtype=PARTICLE), out: nb.array(dtype=PARTICLE)):
        assert p.shape == (N,)
        once = nb.zeros(p.shape, dtype=PARTICLE)
        nb.launch(advance, p.shape, [p, 0.5], [once])
        nb.launch(advance, p.shape, [once, 0.0], [out])

    given = particles(N)
    (out,) = jax.jit(jax_callable(function, graph_mode=mode))(as_bytes(given))
    given["x"] += 0.5 * given["v"][:, 0]
    given["id"] += 1
    check_advanced(as_records(out), given, 0.0)


def test_records_that_do_not_fit():
    f = jax_kernel(advance)
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"argument 'p': wanted array1d\[.*\(\.\.\., 24\), got shape \(5, 16\)"
    ):
        f(jnp.zeros((N, 16), jnp.uint8), 0.5)
    with pytest.raises(nb.NumbridgeTypeError, match=r"argument 'p': .*pass its bytes, records.view\(np.uint8\)"):
        f(jnp.zeros((N, PARTICLE.itemsize), jnp.int32), 0.5)

    def function(p: nb.array(dtype=PARTICLE), out: nb.array(dtype=PARTICLE)):
        pass

    with pytest.raises(nb.KernelUnsupportedError, match=r"GraphMode.NONE: parameter 'p' has records of"):
        jax_callable(function, graph_mode=nb.GraphMode.NONE)


# --------------------------------------------------------------------------------------------------------------------
# On CUDA


@pytest.fixture
def driver():
    with fake_cuda() as found:
        for ordinal in range(found.count()):
            cuda_driver.devices().prepare(ordinal)
        yield found


def launched_with(driver, made, kinds):
    call, levels = made.call, int(made.words[wl.WORD_LEVELS // 8])
    targets.enter_cuda(call.kernel, call.types, call.weak, by_reference(call.types, call.slots), levels)
    handler = targets.room().cuda_handler
    assert made.run(handler) == 0 and made.errors == []
    return driver.launches[-1].values(kinds)


def test_values_on_cuda(driver):
    """A static value is a parameter for each component; one that is data is read where it lies."""
    x, out = (Elsewhere(k << 20, (N, 3), np.dtype(np.float32)) for k in (1, 2))
    t = Elsewhere(9 << 20, (3,), np.dtype(np.float32))
    array, real = [ctypes.c_int64] * 7, ctypes.c_float
    numbers = Number(nb.mat33, M_VALUE), Number(float, 2.5)
    found = launched_with(
        driver, Made(moved, [x, *numbers, t], [out]), [*array, *[real] * 10, *array, *array, ctypes.c_int64]
    )
    assert found[7:16] == np.asarray(M).reshape(-1).tolist() and found[16] == 2.5
    assert found[17:24] == [0, 0, 1, 12, 9 << 20, 1, 12]
    numbers = [Number(nb.mat33, M_VALUE), Number(float, 2.5), Number(nb.vec3, T_VALUE)]
    found = launched_with(driver, Made(moved, [x, *numbers], [out]), [*array, *[real] * 13, *array, ctypes.c_int64])
    assert found[17:20] == np.asarray(T).tolist()
    batch = Made(moved, [x, *numbers[:2], t], [out], WORD_LEVELS=1)
    batch.frame.args.args = batch._buffers(
        [Elsewhere(1 << 20, (1, N, 3), x.dtype), Elsewhere(9 << 20, (2, 3), x.dtype)]
    )
    batch.frame.rets.rets = batch._buffers([Elsewhere(2 << 20, (2, N, 3), x.dtype)])
    kinds = [*array, *[real] * 10, *array, *array, *[ctypes.c_int64] * 5]
    assert launched_with(driver, batch, kinds)[-5:] == [N, 2, 0, 12, 60]


def test_words_that_end_before_a_value(driver):
    x, out = (Elsewhere(k << 20, (N, 3), np.dtype(np.float32)) for k in (1, 2))
    made = Made(moved, [x, Number(nb.mat33, M_VALUE), Number(float, 2.5), Number(nb.vec3, T_VALUE)], [out])
    targets.enter_cuda(made.call.kernel, made.call.types, made.call.weak)
    place = (wl.WORD_PARAMETERS + 3 * wl.SLOT_SIZE + wl.SLOT_VALUE) // 8
    made.words[place] += 16
    assert made.run(targets.room().cuda_handler) == 77
    assert driver.launches == []


def test_derivatives_do_not_end_at_records():
    """Bytes have no derivative in JAX, so what comes out of a kernel that makes records would seem to depend on nothing."""

    @nb.kernel
    def make(x: nb.array[float], p: nb.array[PARTICLE]):
        i = nb.tid()
        p[i].x = x[i] * x[i]

    @nb.kernel
    def scale(x: nb.array[float], p: nb.array[PARTICLE], y: nb.array[float]):
        i = nb.tid()
        y[i] = p[i].x * x[i]

    made = jax_kernel(make, output_dims=N, enable_backward=True)
    scaled = jax_kernel(scale, output_dims=N, enable_backward=True)
    x = jnp.arange(N, dtype=jnp.float32) + 1
    with pytest.raises(nb.KernelUnsupportedError, match=r"result 'p': it has records.*stop_gradient"):
        jax.grad(lambda x: scaled(x, made(x)[0])[0].sum())(x)
    by_x = jax.grad(lambda x: scaled(x, made(jax.lax.stop_gradient(x))[0])[0].sum())(x)
    np.testing.assert_allclose(by_x, x * x)
