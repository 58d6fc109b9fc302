"""Numbers of 64 bits inside JAX, whose setting for them may change between calls and with each thread."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb

fuses = pytest.mark.parametrize("fuse", [None, False])


@nb.kernel
def scale(x, a, out):
    i = nb.tid()
    out[i] = a * x[i]


@nb.kernel
def narrowed(x: nb.array[nb.float64], a, out: nb.array[float]):
    i = nb.tid()
    out[i] = a * x[i]


def wide_ones(count):
    with jax.enable_x64(True):
        return jnp.ones(count)


@pytest.fixture
def explicitly_allowed():
    before = jax.config.jax_explicit_x64_dtypes
    jax.config.update("jax_explicit_x64_dtypes", "allow")
    yield
    jax.config.update("jax_explicit_x64_dtypes", before)


@fuses
@pytest.mark.parametrize("order", [(True, False, True), (False, True, False)], ids=["wide first", "narrow first"])
def test_a_number_beside_an_array_of_numpy_has_the_width_of_each_call(fuse, order):
    f, x = nb.jax_kernel(scale, fuse=fuse), np.array([1.0, 2.0, 3.0])
    for wide in order:
        with jax.enable_x64(wide):
            (out,) = f(x, 2.5)
            assert out.dtype == (np.float64 if wide else np.float32)
            assert out.tolist() == [2.5, 5, 7.5]


@fuses
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_wide_arrays_are_wide_without_64_bits(fuse, wrap):
    f, x = nb.jax_kernel(scale, fuse=fuse, enable_backward=True), wide_ones((2, 3) if wrap is jax.vmap else 3)
    (out,) = wrap(lambda x: f(x, 1.0 + 2.0**-40))(x)
    assert out.dtype == np.float64 and (np.asarray(out) == 1.0 + 2.0**-40).all()
    (gradient,) = jax.vjp(wrap(lambda x: f(x, 1.0 + 2.0**-40)[0]), x)[1](x)
    assert gradient.dtype == np.float64 and (np.asarray(gradient) == 1.0 + 2.0**-40).all()


@fuses
@pytest.mark.parametrize("a", [2.5, jnp.float32(2.5), np.float64(2.5)], ids=["python", "float32", "float64"])
@pytest.mark.parametrize("traced", [False, True])
def test_wide_arguments_and_narrow_results_without_64_bits(fuse, a, traced):
    f, x = nb.jax_kernel(narrowed, fuse=fuse, enable_backward=True), wide_ones(3)
    (out,) = jax.jit(f)(x, a) if traced else f(x, a)
    assert out.dtype == np.float32 and out.tolist() == [2.5] * 3
    gradient = jax.grad(lambda x: f(x, a)[0].sum())(x)
    assert gradient.dtype == np.float64 and gradient.tolist() == [2.5] * 3


@fuses
def test_dtypes_that_are_asked_for(fuse, explicitly_allowed):
    f, x = nb.jax_kernel(scale, fuse=fuse, enable_backward=True), jnp.ones(3, "float64")
    for run in (f, jax.jit(f)):
        (out,) = run(x, 2.5)
        assert out.dtype == np.float64 and out.tolist() == [2.5] * 3
    assert jax.grad(lambda x: (f(x, 2.5)[0] ** 2).sum())(x).tolist() == [12.5] * 3


@pytest.mark.parametrize("mode", list(nb.GraphMode))
def test_dtypes_that_are_asked_for_in_a_callable(mode, explicitly_allowed):
    def twice(x: nb.array[nb.float64], out: nb.array[nb.float64]):
        half = nb.zeros(x.shape, dtype=nb.float64)
        nb.launch(scale, x.shape, [x, 2.0], [half])
        nb.launch(scale, x.shape, [half, 1.0 + 2.0**-40], [out])

    (out,) = nb.jax_callable(twice, graph_mode=mode)(jnp.ones(3, "float64"))
    assert out.dtype == np.float64 and out.tolist() == [2.0 + 2.0**-39] * 3


@pytest.mark.parametrize("mode", list(nb.GraphMode))
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_wide_arrays_and_temporaries_of_a_callable_without_64_bits(mode, wrap):
    def halfway(x: nb.array, out: nb.array):
        half = nb.zeros(x.shape, dtype=nb.float64)
        third = nb.full(x.shape, 1.0 + 2.0**-40, dtype=nb.float64)
        half[:1].assign(x[1:2])
        out[2:].fill_(2.0 + 2.0**-40)
        nb.launch(scale, 1, [half[:1], 2.0], [out[:1]])
        nb.launch(scale, 1, [third[:1], 2.0], [out[1:2]])

    (out,) = wrap(nb.jax_callable(halfway, graph_mode=mode))(wide_ones(3))
    assert out.dtype == np.float64 and out.tolist() == [2.0, 2.0 + 2.0**-39, 2.0 + 2.0**-40]


@nb.kernel
def beyond_one(x: nb.array[float], v: nb.vec3d, s: nb.float64, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] + 2.0**40 * (v[0] - 1.0) + 2.0**40 * (s - 1.0)


@fuses
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_wide_numbers_and_vectors_by_value_without_64_bits(fuse, wrap):
    f, above = nb.jax_kernel(beyond_one, fuse=fuse), 1.0 + 2.0**-40
    (out,) = wrap(lambda x: f(x, nb.vec3d(above, 0.0, 0.0), above))(jnp.ones(2, jnp.float32))
    assert out.tolist() == [3, 3]


@fuses
def test_narrow_values_for_wide_parameters_without_64_bits(fuse):
    f, above = nb.jax_kernel(beyond_one, fuse=fuse), 1.0 + 2.0**-20
    (out,) = jax.jit(f)(jnp.ones(2), jnp.array([above, 0.0, 0.0]), above)
    assert out.tolist() == [1 + 2.0**21] * 2


def test_a_function_that_python_runs_has_the_widths_of_its_trace():
    def width(x: nb.array[float], out: nb.array[int]):
        out.fill_(jnp.result_type(float).itemsize)

    f = jax.jit(nb.jax_callable(width, graph_mode=nb.GraphMode.NONE))
    with jax.enable_x64(True):
        wide = f.lower(jnp.ones(3, np.float32)).compile()
    narrow = f.lower(jnp.ones(3, np.float32)).compile()
    # As in XLA's own threads, in which nothing was said of 64 bits.
    assert wide(jnp.ones(3, np.float32))[0].tolist() == [8, 8, 8]
    with jax.enable_x64(True):
        assert narrow(jnp.ones(3, np.float32))[0].tolist() == [4, 4, 4]
