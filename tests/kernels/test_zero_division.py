"""Divisions by zero: infinities and NaN, as NumPy and CUDA have them, and no exception that ends a launch."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from numba import complex128, cuda, njit

import numbridge as nb
from emulated_cuda import on_both
from numbridge.kernels.language.emission import emit
from numbridge.kernels.launch import launch

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5, -1e-30]


@nb.kernel
def powers(x, out):
    i = nb.tid()
    out[i, 0] = x[i] ** -1
    out[i, 1] = x[i] ** -2
    out[i, 2] = pow(x[i], -3)
    inverse = x[i]
    inverse **= -4
    out[i, 3] = inverse


@nb.kernel
def powers_in_loop(x, n, out):
    i = nb.tid()
    for k in range(n.shape[0]):
        out[i, k] = x[i] ** n[k]


@nb.kernel
def powers_of_block(x, out):
    i = cuda.grid(1)
    cuda.syncthreads()
    out[i, 0] = x[i] ** -1
    out[i, 1] = math.pow(x[i], -2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_zero(dtype):
    x = np.array(SPECIAL, dtype)
    for kernel, exponents, more in (
        (powers, [-1, -2, -3, -4], ()),
        (powers_in_loop, [-2, -1, 0, 1, 2, 3], (np.array([-2, -1, 0, 1, 2, 3]),)),
    ):
        with np.errstate(all="ignore"):
            expected = np.power(x[:, None], np.array(exponents, dtype))
        for got in on_both(kernel, len(x), [x, *more, np.zeros_like(expected)]):
            assert np.allclose(got, expected, rtol=1e-6, equal_nan=True), (kernel, got, expected)
            # zeros and infinities of the right sign
            assert np.array_equal(np.signbit(got)[~np.isnan(got)], np.signbit(expected)[~np.isnan(got)])


def test_powers_of_zero_in_blocks():
    x, out = np.array([0.0, -0.0, 2.0, 4.0]), np.zeros((4, 2))
    powers_of_block[2, 2](x, out)
    assert np.array_equal(out, [[np.inf, np.inf], [-np.inf, np.inf], [0.5, 0.25], [0.25, 0.0625]])


@nb.kernel
def inverses(x, out):
    i = nb.tid()
    out[i] = x[i] ** -1


def test_derivative_of_a_power_of_zero():
    x, gradient = np.array([0.0, 2.0]), np.zeros(2)
    launch(inverses, 2, [x, np.zeros(2)], adj_inputs=[gradient, np.ones(2)], adjoint=True)
    assert np.array_equal(gradient, [-np.inf, -0.25])


@njit(error_model="numpy")
def inverse(x):
    return x**-1


def test_compiled_functions_of_others_are_as_before():
    # Numba keeps what it compiled for this power; the kernel has its own, and leaves Numba's as it is.
    with pytest.raises(ZeroDivisionError):
        inverse(0.0)
    out = np.zeros(2)
    launch(inverses, 2, [np.array([0.0, 2.0]), out])
    assert np.array_equal(out, [np.inf, 0.5])
    inverses_of_float32 = np.zeros(2, np.float32)
    launch(inverses, 2, [np.array([0, 2], np.float32), inverses_of_float32])
    assert np.array_equal(inverses_of_float32, [np.inf, 0.5])
    with pytest.raises(ZeroDivisionError):
        inverse(np.float32(0))


@nb.kernel
def of_integer(x, n, out):
    i = nb.tid()
    out[i] = x[i] ** n[i]


@nb.kernel
def of_float(x, p, out):
    i = nb.tid()
    out[i] = math.pow(x[i], p[i])


ZEROS = [(0.0, 0, 0.0), (0.0, 1, 1.0), (0.0, 2, 0.0), (0.0, 3, 0.0), (-0.0, 0, 0.0), (-0.0, 1, 1.0), (-0.0, 3, 0.0)]
INFINITE = [(0.0, -1, -np.inf), (0.0, -2, -np.inf), (-0.0, -1, -np.inf), (-0.0, -2, np.inf)]
OTHERS = [(2.0, 0, 0.0), (2.0, 3, 12.0), (-2.0, 3, 12.0), (2.0, -1, -0.25), (np.inf, 0, 0.0)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kernel", "kind"), [(of_integer, np.int32), (of_integer, np.int64), (of_float, None)])
def test_derivatives_of_powers_by_a_base_of_zero(kernel, kind, dtype):
    bases, exponents, expected = np.array(ZEROS + INFINITE + OTHERS).T
    x, n = bases.astype(dtype), exponents.astype(kind or dtype)
    gradient, of_exponent = np.zeros_like(x), None if kind else np.zeros_like(x)
    ones = np.ones_like(x)
    launch(kernel, len(x), [x, n, np.zeros_like(x)], adj_inputs=[gradient, of_exponent, ones], adjoint=True)
    assert np.array_equal(gradient, expected), gradient
    if of_exponent is not None:
        logarithms = np.array([0, 0, 0, 0, 0, 0, 0, -np.inf, -np.inf, np.inf, -np.inf])
        assert np.array_equal(of_exponent[: len(logarithms)], logarithms), of_exponent


def test_second_derivatives_of_powers_by_a_base_of_zero():
    x, n = np.zeros(4), np.array([0, 1, 2, 3])
    tangent = of_integer.tangent(["x", "out"])
    by_x, by_v = np.zeros(4), np.zeros(4)
    adjoint = tangent.adjoint(["x", "_nb_tan_x", "_nb_tan_out"])
    adjoint.forall(4)(x, n, np.zeros(4), np.ones(4), np.zeros(4), by_x, by_v, np.ones(4))
    assert np.array_equal(by_x, [0, 0, 2, 0])
    assert np.array_equal(by_v, [0, 1, 0, 0])
    # p x ** (p - 1), by x and by p
    x, p = np.array([0.0, 0.0, 0.0, 2.0]), np.array([1.0, 2.0, 3.0, 0.0])
    by_x, by_p = np.zeros(4), np.zeros(4)
    adjoint = of_float.tangent(["x", "out"]).adjoint(["x", "p", "_nb_tan_out"])
    adjoint.forall(4)(x, p, np.zeros(4), np.ones(4), np.zeros(4), by_x, by_p, np.ones(4))
    assert np.array_equal(by_x, [0, 2, 0, 0])
    assert np.array_equal(by_p[1:], [0, 0, 0.5])


@nb.kernel
def quotients(z, w, out):
    i = nb.tid()
    out[i, 0] = z[i] / w[i]
    out[i, 1] = 1 / w[i]
    out[i, 2] = w[i].real / w[i]
    out[i, 3] = z[i] / w[i].imag
    quotient = z[i]
    quotient /= w[i]
    out[i, 4] = quotient
    out[i, 5] = z[i]
    out[i, 5] /= w[i]
    out[i, 6] = inverse_of(w[i])
    out[i, 7] = w[i].real / w[i].imag


@nb.func
def inverse_of(z):
    return 1.0 / z


def quotients_in_numpy(z, w):
    """Return what `quotients` computes."""
    with np.errstate(all="ignore"):
        one = w.dtype.type(1)
        columns = [z / w, one / w, w.real.astype(w.dtype) / w, z / w.imag.astype(w.dtype), z / w, z / w, one / w]
        return np.stack([*columns, (w.real / w.imag).astype(w.dtype)], 1)


def is_alike(one, other):
    """Tell whether complex numbers are equal up to rounding, part by part."""
    within = 1e-6 if one.dtype == np.complex64 else 1e-14
    return all(
        np.allclose(*parts, rtol=within, atol=0, equal_nan=True)
        for parts in ((one.real, other.real), (one.imag, other.imag))
    )


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_quotients(dtype):
    parts = [0.0, -0.0, 1.0, -2.5, np.inf, np.nan]
    numbers = np.array([complex(re, im) for re in parts for im in parts], dtype)
    z, w = (side.reshape(-1).copy() for side in np.meshgrid(numbers, numbers))
    expected = quotients_in_numpy(z, w)
    for got in on_both(quotients, len(z), [z, w, np.zeros_like(expected)]):
        differ = [(z[i], w[i], k) for i, k in np.ndindex(got.shape) if not is_alike(got[i, k], expected[i, k])]
        assert not differ, differ[:20]


def test_complex_quotients_are_those_of_numba():
    random = np.random.default_rng(0)
    z, w = random.normal(size=(2, 1000, 2)).view(complex)[..., 0]
    out = np.zeros((1000, 8), complex)
    launch(quotients, 1000, [z, w, out])
    divided = njit(lambda z, w: z / w)
    assert np.array_equal(out[:, 0], [divided(*pair) for pair in zip(z, w, strict=True)])


def quotient_by_literal(x, out):
    i = nb.tid()
    out[i] = (1.0 / (x[i] + 0j)).real


def quotient_by_maker(x, out):
    i = nb.tid()
    out[i] = (1.0 / complex(x[i], 0.0)).real


def quotient_by_numpy(x, out):
    i = nb.tid()
    out[i] = (1.0 / np.complex64(x[i])).real


def quotient_by_cmath(x, out):
    i = nb.tid()
    out[i] = (1.0 / (cmath.exp(x[i]) - 1)).real


def quotient_by_numba(x, out):
    i = nb.tid()
    numbers = cuda.local.array(1, complex128)
    numbers[0] = x[i]
    out[i] = (1.0 / numbers[0]).real


MAKERS = [quotient_by_literal, quotient_by_maker, quotient_by_numpy, quotient_by_cmath, quotient_by_numba]


@pytest.mark.parametrize("function", MAKERS)
def test_complex_numbers_that_a_kernel_makes(function):
    for got in on_both(nb.kernel(function), 1, [np.zeros(1), np.zeros(1)]):
        assert np.array_equal(got, [np.inf])


waves = np.dtype([("height", "c16"), ("length", "f8")], align=True)


@nb.kernel
def of_records(wave, out):
    i = nb.tid()
    wave[i].height /= wave[i].length
    out[i] = wave[i].height / (wave[i].height - wave[i].height)


def test_complex_fields_of_records():
    wave = np.array([(1 + 2j, 0.0), (1 + 2j, 2.0)], waves)
    out = np.zeros(2, complex)
    launch(of_records, 2, [wave, out])
    assert is_alike(wave["height"], np.array([complex(np.inf, np.inf), 0.5 + 1j]))
    assert np.isnan(out[0]) and is_alike(out[1:], np.array([complex(np.inf, np.inf)]))


@nb.kernel
def in_steps(z, w, k, out):
    i = nb.tid()
    n = 0
    while n < 2:
        z[i, k[i]] /= w[i]
        n += 1
    row = z[i]
    row[0] /= w[i]
    out[i] = z[i, 0]


def test_augmented_divisions_of_parts():
    z, w = np.full((2, 2), 8 + 8j), np.array([0j, 2 + 0j])
    expected = np.array([[complex(np.inf, np.inf), 8 + 8j], [1 + 1j, 8 + 8j]])
    out = np.zeros(2, complex)
    launch(in_steps, 2, [z, w, np.zeros(2, np.int64), out])
    assert is_alike(z, expected)
    assert np.array_equal(out, z[:, 0])


def test_other_kernels_divide_as_they_are_written():
    assert "_nb_divide" not in emit(inverses_by_division.source, "float64").text
    assert "_nb_divide" in emit(inverses_by_division.source, "float64", has_complex=True).text


@nb.kernel
def inverses_by_division(x, out):
    i = nb.tid()
    out[i] = 1.0 / x[i]


def test_a_refused_division_is_said_in_plain_words():
    v, z = np.zeros((1, 3), np.float32), np.zeros(1, np.complex64)
    with pytest.raises(nb.NumbridgeError, match="there is no vec3 / complex64"):
        launch(by_complex, 1, [nb.from_numpy(v, nb.vec3), z, z])


@nb.kernel
def by_complex(v: nb.array[nb.vec3], z, out):
    i = nb.tid()
    out[i] = (v[i] / z[i])[0]


@nb.kernel
def remainders(n, m, out):
    i = nb.tid()
    out[0, i] = np.remainder(n[i], m[i])
    out[1, i] = np.mod(n[i], m[i])
    out[2, i], out[3, i] = np.divmod(n[i], m[i])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_remainders_of_the_least_integer(dtype):
    least = np.iinfo(dtype).min
    n, m = np.array([[least, least, 7, -7, 7], [-1, 2, 0, 3, -1]], dtype)
    out = np.zeros((4, 5), dtype)
    launch(remainders, 5, [n, m, out])
    with np.errstate(all="ignore"):
        assert np.array_equal(out, [n % m, n % m, *np.divmod(n, m)])
