"""Operations on numbers give the numbers of NumPy and Python, on the CPU and on CUDA alike."""

from __future__ import annotations

import contextlib
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numba import cuda, float64, njit

import numbridge as nb
from emulated_cuda import emulated_cuda, on_both
from numbridge.kernels.launch import launch

FLOATS = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, -7.0, 0.1, 1e-40, 1e30, -1e30, np.inf, -np.inf, np.nan]


def pairs(numbers, dtype):
    """Return all pairs of some numbers, in two arrays."""
    return [side.copy() for side in np.array([*itertools.product(numbers, numbers)], dtype).T]


def assert_same(got, expected, within=0.0):
    """Check that numbers are equal, up to rounding, signs of zeros included."""
    assert np.allclose(got, expected, rtol=within, atol=0, equal_nan=True), (got, expected)
    known = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got)[known], np.signbit(expected)[known]), (got, expected)


@nb.func
def remainder_of(a, b):
    return a % b


@nb.kernel
def divisions(x, y, out):
    i = nb.tid()
    a, b = x[i], y[i]
    out[0, i] = a // b
    out[1, i] = remainder_of(a, b)
    out[2, i], out[3, i] = divmod(a, b)
    out[4, i] = np.floor_divide(a, b)
    out[5, i] = np.remainder(a, b)
    out[6, i], out[7, i] = np.divmod(a, b)
    c, d = a, a
    c //= b
    d %= b
    out[8, i] = c
    out[9, i] = d
    out[10, i] = np.fmod(a, b)


def divided(x, y):
    """Return what `divisions` computes."""
    with np.errstate(all="ignore"):
        both = np.divmod(x, y)
        return np.stack([*both * 5, np.fmod(x, y)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_divisions_of_floats(dtype):
    x, y = pairs(FLOATS, dtype)
    for got in on_both(divisions, len(x), [x, y, np.zeros((11, len(x)), dtype)]):
        assert_same(got, divided(x, y))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_are_exact(dtype):
    random = np.random.default_rng(3)
    x, y = random.normal(size=(2, 400)) * 10.0 ** random.uniform(-12, 12, (2, 400))
    whole = random.integers(1, 1 << 20, 400) * np.array(0.1, dtype)
    x, y = (np.concatenate(parts).astype(dtype) for parts in ((x, whole), (y, np.full(400, 0.1))))
    for got in on_both(divisions, len(x), [x, y, np.zeros((11, len(x)), dtype)]):
        assert_same(got, divided(x, y))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_divisions_of_integers(dtype):
    info = np.iinfo(dtype)
    x, y = pairs([0, 1, -1, 2, -2, 3, -7, info.min, info.max], dtype)
    expected = divided(x, y)
    if dtype is not np.int64:
        expected = expected.astype(np.int64)
        # Operators compute in 64 bits, where nothing overflows
        wide = np.array(np.divmod(x.astype(np.int64), np.where(y == 0, 1, y).astype(np.int64))) * (y != 0)
        expected[[0, 1, 2, 3, 8, 9]] = np.tile(wide, (3, 1))
    for got in on_both(divisions, len(x), [x, y, np.zeros((11, len(x)), expected.dtype)]):
        assert np.array_equal(got, expected), np.argwhere(got != expected)


@nb.kernel
def overflowing_divisions(x, w, out):
    i = nb.tid()
    a, b = x[i], w[i]
    out[0, i] = a // (b * 4)
    out[1, i] = a % (b * 4)
    out[2, i] = (a * 4) // b
    out[3, i] = (a * 4) % b
    out[4, i], out[5, i] = divmod(a * 4, b * 4)
    out[6, i] = np.floor_divide(a * 4, b)
    out[7, i] = np.remainder(a, b * 4)
    out[8, i] = np.fmod(a, b * 4)
    trips = 0
    for _ in range(0, a, b):
        trips += 1
        break
    out[9, i] = trips
    # A branch tells LLVM something, too, and a remainder of a sum begins with one.
    d = b * 4
    if d > 10:
        out[10, i] = a // d
    out[11, i] = (a * 2 + 1) % (d * -2)


def test_divisors_that_overflow_end_no_process():
    """To LLVM `b * 4` is not zero where `b` is not, nor is `a * 4` the least integer where `a` is no quarter of it."""
    least = -(2**63)
    a, b = pairs([least, -(2**61), -7, 1, 2**61, 2**62, -(2**62), 2**63 - 1, -1], np.int64)
    out = np.zeros((12, len(a)), np.int64)
    launch(overflowing_divisions, len(a), [a, b, out])
    fits = (np.abs(a / 2**61) < 1) & (np.abs(b / 2**61) < 1)
    a, b, out = a[fits], b[fits], out[:, fits]
    expected = [
        a // (b * 4),
        a % (b * 4),
        a * 4 // b,
        a * 4 % b,
        a // b,
        a % b * 4,
        a * 4 // b,
        a % (b * 4),
        np.fmod(a, b * 4),
    ]
    assert np.array_equal(out[:9], expected), (out, expected)
    assert np.array_equal(out[9], (a < 0) == (b < 0))
    assert np.array_equal(out[10], np.where(b * 4 > 10, a // (b * 4), 0))
    assert np.array_equal(out[11], (a * 2 + 1) % (b * -8))


@nb.kernel
def unsigned_with_signed(x, n, out):
    i = nb.tid()
    a, b = x[i], n[i]
    out[0, i] = a // b
    out[1, i] = a % b
    out[2, i] = a % 10
    out[3, i] = b // a
    out[4, i] = b % a
    out[5, i] = (a - b) % 7
    out[6, i] = np.left_shift(a, 1)
    out[7, i] = np.right_shift(a, i)
    out[8, i] = np.bitwise_and(a, 255)
    out[9, i] = np.bitwise_xor(3, a)


def test_unsigned_integers_of_64_bits_beside_signed_ones():
    """Of which Numba takes large ones for negative where it divides, and refuses to shift by a plain number."""
    x, n = pairs([0, 1, 7, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1], object)
    n[::2] -= 2**63 + 3
    keep = np.array([-(2**63) <= b < 2**63 for b in n])
    x, n = x[keep], n[keep]
    expected = [
        [
            *(a // b if b else 0, a % b if b else 0, a % 10, b // a if a else 0, b % a if a else 0, wrapped(a - b) % 7),
            *(a << 1, a >> min(i, 63), a & 255, a ^ 3),
        ]
        for i, (a, b) in enumerate(zip(x, n, strict=True))
    ]
    expected = np.array([[wrapped(number) for number in row] for row in expected]).T
    for got in on_both(
        unsigned_with_signed, len(x), [x.astype(np.uint64), n.astype(np.int64), np.zeros_like(expected)]
    ):
        assert np.array_equal(got, expected), np.argwhere(got != expected)


def wrapped(number):
    """Return the int64 with the lowest bits of an integer."""
    return (number + 2**63) % 2**64 - 2**63


@nb.kernel
def whole_powers(x, n, out):
    i = nb.tid()
    out[0, i] = x[i] ** n[i]
    out[1, i] = np.power(x[i], n[i])
    power = x[i]
    power **= n[i]
    out[2, i] = power
    out[3, i] = np.lcm(x[i], n[i])


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_powers_and_multiples_of_integers_are_exact(dtype):
    """Beyond 53 bits, too, which are those of the floating-point numbers that Numba's go through."""
    x, n = pairs([0, 1, 2, 3, 5, 39, 2**61 + 1], dtype)
    if dtype is np.int64:
        x = np.concatenate([x, -x, [-1, -1, 1, 5]])
        n = np.concatenate([n, n, [-3, -(2**63), -1, -2]])
    both = list(zip(x.tolist(), n.tolist(), strict=True))
    power = [a**b if abs(a) < 2 and b < 0 else pow(a, b, 2**64) if b >= 0 else 0 for a, b in both]
    expected = np.array([[int(a) % 2**64 for a in power]] * 3 + [[math.lcm(a, b) % 2**64 for a, b in both]], np.uint64)
    for got in on_both(whole_powers, len(x), [x, n, np.zeros((4, len(x)), dtype)]):
        fits = expected[3] < 2**63
        assert np.array_equal(got[:3].view(np.uint64), expected[:3])
        assert np.array_equal(got[3, fits].view(np.uint64), expected[3, fits])


@nb.kernel
def every_step(x, w, out):
    i = nb.tid()
    part = x[:: w[0] * 4]
    out[i] = part.shape[0]


def test_a_step_that_overflows_is_zero():
    x, out = np.zeros(8, np.int64), np.zeros(8, np.int64)
    launch(every_step, 8, [x, np.array([1]), out])
    assert (out == 2).all()
    with pytest.raises(nb.KernelError, match="slice step cannot be zero"):
        launch(every_step, 8, [x, np.array([2**62]), out])


@nb.kernel
def signs(x, out):
    i = nb.tid()
    out[i] = np.sign(x[i])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64, np.int16])
def test_signs_of_integers(dtype):
    x = np.array([0, 1, 5, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    for got in on_both(signs, len(x), [x, np.zeros(len(x))]):
        assert np.array_equal(got, np.sign(x))


@njit(error_model="numpy")
def quotient_of(a, b):
    return a // b


def first_remainder(x, y, out):
    out[0] = x % y


@nb.kernel
def quotients(x, y, out):
    i = nb.tid()
    out[i] = x[i] // y[i]


@nb.kernel
def rings(x, y, out):
    i = nb.tid()
    a, b = x[i], y[i]
    out[0, i] = (a + 1) % b
    out[1, i] = (a - 1) % b
    out[2, i] = (a - 1 + b) % b
    c = a + b
    c %= b
    out[3, i] = c


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_remainders_of_sums(dtype):
    """Of which most are next to the divisor, and need no division. A sum that is too large has no value, as in Numba."""
    info = np.iinfo(dtype)
    x, y = pairs([*range(-6, 7), info.min // 4, info.max // 4], dtype)
    a, b = x.astype(np.int64), y.astype(np.int64)
    with np.errstate(all="ignore"):
        expected = np.stack([np.remainder(c, b) for c in (a + 1, a - 1, a - 1 + b, a + b)])
    for got in on_both(rings, len(x), [x, y, np.zeros((4, len(x)), np.int64)]):
        assert np.array_equal(got, expected)


def test_compiled_functions_of_others_are_as_before():
    least = np.iinfo(np.int64).min
    x, y, out = np.array([least]), np.array([-1]), np.zeros(1, np.int64)
    launch(quotients, 1, [x, y, out])
    assert out[0] == least
    assert quotient_of(least, -1) == 0  # Numba's
    kinds = (float64, float64, float64[::1])
    before, _ = cuda.compile_ptx(first_remainder, kinds, cc=(9, 0))
    with emulated_cuda() as device:
        launch(divisions, 1, [device.on_device(a) for a in (np.ones(1), np.ones(1), np.zeros((11, 1)))])
    after, _ = cuda.compile_ptx(first_remainder, kinds, cc=(9, 0))
    assert before.count("\n") == after.count("\n")


@nb.kernel
def remainders(x, y, out):
    i = nb.tid()
    out[i] = x[i] % y[i]


def test_derivative_of_a_remainder():
    x, y = np.array([1.0, -1.0, 7.5, 1e17]), np.array([np.inf, 3.0, -2.0, 3.0])
    given = [x, y, np.zeros(4)]
    found = np.zeros((2, 2, 4))
    launch(remainders, 4, given, adj_inputs=[*found[0], np.ones(4)], adjoint=True)
    with emulated_cuda() as device:
        there = [[device.on_device(a.copy()) for a in values] for values in (given, [np.ones(4)])]
        by = [device.on_device(a) for a in found[1]]
        launch(remainders, 4, there[0], adj_inputs=[*by, *there[1]], adjoint=True)
    assert np.array_equal(*found), found
    assert np.array_equal(found[0], [[1, 1, 1, 1], [0, 1, 4, -np.floor(1e17 / 3)]])


@nb.kernel
def truncated(x, y, out):
    i = nb.tid()
    out[0, i] = math.fmod(x[i], y[i])
    out[1, i] = np.fmod(x[i], y[i])


def by_second(x, y, place):
    """Return the mean of the derivatives of `truncated` by its second argument."""
    seeds = np.full((2, len(x)), 0.5, x.dtype)
    arrays = [x, y, np.zeros((2, len(x)), x.dtype), np.zeros_like(x), np.zeros_like(x), seeds]
    with place() if place else contextlib.nullcontext() as device:
        *given, by_x, by_y, seeds = [device.on_device(a) for a in arrays] if place else arrays
        launch(truncated, len(x), given, adj_inputs=[by_x, by_y, seeds], adjoint=True)
    return arrays[4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", [None, emulated_cuda])
def test_derivative_of_a_truncated_remainder(place, dtype):
    """The quotient may be beyond every integer type, and rounds to one more where the dividend is just below a multiple."""
    below = np.nextafter(dtype(3) * dtype(0.1), dtype(0))
    x = np.array([7.5, -7.5, 7.5, 1.0, 1e30, -1e30, below, np.inf, np.nan, 1.0], dtype)
    y = np.array([2.0, 2.0, -2.0, np.inf, 3.0, 1e-4, 0.1, 1.0, 1.0, 0.0], dtype)
    exact = [Fraction(a) / Fraction(b) for a, b in zip(x[4:7].tolist(), y[4:7].tolist(), strict=True)]
    expected = np.array([-3, 3, 3, 0, *(-math.trunc(each) for each in exact), *[np.nan] * 3], dtype)
    found = by_second(x, y, place)
    assert np.allclose(found, expected, rtol=2 * np.finfo(dtype).eps, atol=0, equal_nan=True), (found, expected)


@nb.func
def remainder_times(b):
    return math.fmod(7.5, b) * b


@nb.kernel
def curvatures(y, out):
    i = nb.tid()
    out[i] = nb.grad(nb.grad(remainder_times))(y[i])


def test_second_derivative_of_a_truncated_remainder():
    y, out = np.array([2.0, -2.0, 100.0]), np.zeros(3)
    launch(curvatures, 3, [y, out])
    assert out.tolist() == [-6, 6, 0]


@nb.kernel
def inverses(x, y, out):
    i = nb.tid()
    out[0, i] = math.asinh(x[i]) + 0.0 * y[i]
    out[1, i] = math.expm1(-x[i])
    out[2, i] = math.atan2(x[i], y[i])


@nb.kernel
def angles(x, y, out):
    i = nb.tid()
    out[0, i] = math.asin(x[i]) + 0.0 * y[i]
    out[1, i] = math.acos(x[i])
    out[2, i] = math.atanh(x[i])


ANGLES = [
    lambda a, b: 1 / np.sqrt((1 - a) * (1 + a)),
    lambda a, b: -1 / np.sqrt((1 - a) * (1 + a)),
    lambda a, b: 1 / ((1 - a) * (1 + a)),
]
INVERSES = [lambda a, b: 1 / np.hypot(a, 1), lambda a, b: -np.exp(-a), lambda a, b: b / (a * a + b * b)]


@pytest.mark.parametrize(
    ("kernel", "x", "y", "by_x"),
    [
        (angles, [0.3, 0.99999, 0.99976, -0.9998], np.ones(4), ANGLES),
        (inverses, [0.3, 20.0, 1e-23, 1e20, 1e-30], [2.0, 1.0, 2e-23, 1e20, 3e-30], INVERSES),
    ],
)
def test_derivatives_in_float32_keep_their_digits(kernel, x, y, by_x):
    """Next to 1 `1 - a * a` has few, and squares are zero or infinite where the numbers are far from it."""
    x, y = np.array(x, np.float32), np.array(y, np.float32)
    for row, function in enumerate(by_x):
        found, seeds = np.zeros_like(x), np.zeros((3, len(x)), np.float32)
        seeds[row] = 1
        launch(kernel, len(x), [x, y, np.zeros_like(seeds)], adj_inputs=[found, np.zeros_like(y), seeds], adjoint=True)
        assert np.allclose(found, function(x.astype(float), y.astype(float)), rtol=1e-6, atol=0), (row, found)


@nb.kernel
def extremes(x, y, out):
    i = nb.tid()
    out[0, i] = min(x[i], y[i])
    out[1, i] = max(x[i], y[i])
    out[2, i] = min(x[i], y[i], 1.5)


@pytest.mark.parametrize("dtypes", [(np.float32, np.float32), (np.float64, np.float64), (np.float32, np.float64)])
def test_extremes_keep_their_first_argument(dtypes):
    x, y = (side.astype(dtype) for side, dtype in zip(pairs(FLOATS, np.float64), dtypes, strict=True))
    both = [*zip(x.tolist(), y.tolist(), strict=True)]
    expected = np.array([[min(a, b), max(a, b), min(a, b, 1.5)] for a, b in both]).T
    for got in on_both(extremes, len(x), [x, y, np.zeros((3, len(x)))]):
        assert_same(got, expected)


@nb.kernel
def roundings(x, digits, out):
    i = nb.tid()
    for k in range(digits.shape[0]):
        out[k, i] = round(x[i], digits[k])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_to_digits(dtype):
    x = np.array([*FLOATS, 1.256, -12345.678, 0.5, 1.5, 1e22, 1e38], dtype)
    digits = np.array([2, 0, -2, 20, 23, 300, -300, 400, -400])
    expected = np.array([[round(each, count) for each in x.tolist()] for count in digits.tolist()]).astype(dtype)
    for got in on_both(roundings, len(x), [x, digits, np.zeros_like(expected)]):
        assert_same(got, expected, 1e-15 if dtype is np.float64 else 1e-7)


@nb.kernel
def complex_powers(z, w, out):
    i = nb.tid()
    out[0, i] = z[i] ** w[i]
    out[1, i] = np.power(z[i], w[i])
    out[2, i] = z[i] ** -1
    out[3, i] = z[i] ** 2
    power = z[i]
    power **= w[i]
    out[4, i] = power


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_powers_of_complex_numbers(dtype):
    z, w = pairs([complex(a, b) for a in (0.0, -0.0, 1.0, -2.5) for b in (0.0, -0.0, 1.0, -2.5)], dtype)
    with np.errstate(all="ignore"):
        power = np.power(z, w)
        expected = np.stack([power, power, np.power(z, dtype(-1)), z * z, power])
    within = 3e-6 if dtype is np.complex64 else 1e-13
    for got in on_both(complex_powers, len(z), [z, w, np.zeros_like(expected)]):
        assert np.allclose(got, expected, rtol=within, atol=0, equal_nan=True)


@nb.kernel
def of_numpy(x, n, z, out, whole, planes):
    i = nb.tid()
    out[0, i] = np.ldexp(x[i], n[i])
    out[1, i] = np.spacing(x[i])
    whole[i] = math.gcd(n[i], 12)
    planes[0, i] = np.log1p(z[i])
    planes[1, i] = np.expm1(z[i])
    planes[2, i] = np.rint(z[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_that_numba_cuda_has_no_code_for(dtype):
    x = np.array(FLOATS, dtype)
    n = np.array([3, -3, 10**12, -(10**12), 7, -8, 0, 12, 9, 5, 2, 1, 4, 6, 30])
    n[2:4] = n[3], n[2]
    z = np.array([complex(a, b) for a in (1e-9, 0.3, -1.5) for b in (0.0, 1e-9, 0.5, -2.0, 2.5)]).astype(
        np.result_type(dtype, np.complex64)
    )
    with np.errstate(all="ignore"):
        expected = np.stack([np.ldexp(x, n), np.spacing(x)])
        planes = np.stack([np.log1p(z), np.expm1(z), np.rint(z)])
    for place in (None, emulated_cuda):
        made = [np.zeros_like(expected), np.zeros_like(n), np.zeros_like(planes)]
        if place is None:
            launch(of_numpy, len(x), [x, n, z, *made])
        else:
            with place() as device:
                launch(of_numpy, len(x), [device.on_device(a) for a in (x, n, z, *made)])
        assert_same(made[0], expected)
        assert np.array_equal(made[1], np.gcd(n, 12))
        within = 2e-6 if dtype is np.float32 else 1e-13
        # log1p is the logarithm of a sum in NumPy, too
        assert np.allclose(made[2], planes, rtol=within, atol=within / 100)
        assert np.allclose(made[2][1].real, planes[1].real, rtol=within, atol=0)
