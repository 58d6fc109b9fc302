"""Mathematical functions of float64: their values everywhere, and that loops with them run in lanes."""

from __future__ import annotations

import itertools
import math
import platform
from typing import Any

import mpmath
import numpy as np
import pytest
from numba import types
from numba.core import config
from numba.core.registry import cpu_target

import numbridge as nb
from lane_checks import check, floats, widths
from numbridge.kernels import variant
from numbridge.kernels.arithmetic import cpu_math, double_math
from numbridge.kernels.launch import launch


@nb.kernel
def circular(x, out):
    i = nb.tid()
    out[0, i] = math.sin(x[i])
    out[1, i] = np.cos(x[i])
    out[2, i] = math.tan(x[i])
    out[3, i] = np.arctan(x[i])
    out[4, i] = math.asin(x[i])
    out[5, i] = np.arccos(x[i])


@nb.kernel
def exponential(x, out):
    i = nb.tid()
    out[0, i] = math.exp(x[i])
    out[1, i] = np.expm1(x[i])
    out[2, i] = math.sinh(x[i])
    out[3, i] = np.cosh(x[i])
    out[4, i] = math.tanh(x[i])
    out[5, i] = np.exp2(x[i])


@nb.kernel
def logarithmic(x, out):
    i = nb.tid()
    out[0, i] = np.log(x[i])
    out[1, i] = math.log1p(x[i])
    out[2, i] = np.log2(x[i])
    out[3, i] = math.log10(x[i])
    out[4, i] = math.asinh(x[i])
    out[5, i] = np.arccosh(x[i])
    out[6, i] = math.atanh(x[i])
    out[7, i] = np.cbrt(x[i])


@nb.kernel
def of_two(x, y, out):
    i = nb.tid()
    out[0, i] = x[i] ** y[i]
    out[1, i] = np.arctan2(x[i], y[i])
    out[2, i] = math.hypot(x[i], y[i])


@nb.kernel
def errors(x, out):
    i = nb.tid()
    out[0, i] = math.erf(x[i])
    out[1, i] = math.erfc(x[i])


def of_more_digits(function: Any) -> Any:
    """Return a function of mpmath for arrays, with a result of more digits than float64 has."""

    def computed(x: np.ndarray) -> np.ndarray:
        found = np.empty_like(x)
        with mpmath.workdps(30):
            for k, number in enumerate(x):
                exact = function(mpmath.mpf(float(np.clip(number, -30, 30))))
                found[k] = np.longdouble(str(exact)) or np.copysign(0, number)
        return found

    return computed


# The functions of each kernel, and how far they may be from the true value in units in the last place.
BOUNDS = {
    circular: {np.sin: 0.9, np.cos: 0.9, np.tan: 1.1, np.arctan: 0.8, np.arcsin: 1.3, np.arccos: 1.3},
    exponential: {np.exp: 0.9, np.expm1: 1.2, np.sinh: 2.5, np.cosh: 1.4, np.tanh: 2.5, np.exp2: 0.8},
    errors: {of_more_digits(mpmath.erf): 1.0, of_more_digits(mpmath.erfc): 1.2},
    logarithmic: {
        np.log: 0.9,
        np.log1p: 0.9,
        np.log2: 0.8,
        np.log10: 0.8,
        np.arcsinh: 1.3,
        np.arccosh: 1.9,
        np.arctanh: 1.1,
        np.cbrt: 0.6,
    },
}

EDGES = [709.782712893384, 709.7827128933841, 710.4758600739439, 710.475860073944, 745.1332191019411, 745.1332191019412]
EDGES += [0.0, 5e-324, 1e-310, 2.2250738585072014e-308, 1e-20, 0.5, 1.0, 2.0**60, 2.0**61, 1.7976931348623157e308]
EDGES += [7 / 16, 11 / 16, 19 / 16, 39 / 16, 0.5**0.5, 2.0**0.5, 20.0, 40.0, math.log(2) / 2, 1 - 2**-53, 22.0, 37.5]
EDGES += [2.0**30, 2.0**52, 2.0**53, math.pi / 4, math.pi, 6381956970095103.0 * 2.0**797, np.inf]

random = np.random.default_rng(3)


def any_bits(n: int) -> np.ndarray:
    """Return numbers of all magnitudes, signs and kinds."""
    return random.integers(-(1 << 63), (1 << 63) - 1, n, dtype=np.int64).view(np.float64)


def multiples_of_right_angles(n: int) -> np.ndarray:
    """Return the numbers on both sides of multiples of pi / 2, of which hardly anything remains."""
    k = np.concatenate([np.arange(1, n), random.integers(1, 1 << 31, n)]).astype(np.longdouble)
    near = (k * np.longdouble(math.pi / 2) + k * np.longdouble(6.123233995736766e-17)).astype(np.float64)
    return np.concatenate([near, np.nextafter(near, 0), np.nextafter(near, np.inf)])


def arguments() -> np.ndarray:
    return np.concatenate(
        [
            [np.nan, *EDGES, *(-edge for edge in EDGES)],
            *([np.nextafter(e, way) * s for e in EDGES] for way in (-np.inf, np.inf) for s in (-1, 1)),
            any_bits(40_000),
            multiples_of_right_angles(10_000),
            random.choice([-1.0, 1.0], 40_000) * np.exp(random.uniform(-744, 709, 40_000)),
            *(random.uniform(-far, far, 40_000) for far in (0.5, 3, 25, 750, 2e9)),
        ]
    )


def check_near(found: np.ndarray, true: np.ndarray, bound: float, *given: np.ndarray) -> None:
    """Compare with results of more digits; what is infinite, or none, or a zero with a sign, must be just that."""
    rounded = true.astype(np.float64)
    finite = np.isfinite(found) & np.isfinite(rounded)
    near = np.spacing(np.abs(rounded[finite]))
    distance = np.abs(found[finite].astype(np.longdouble) - true[finite]) / near
    worst = int(np.argmax(distance))
    assert distance[worst] <= bound, [float(distance[worst]), *(x[finite][worst] for x in given), found[finite][worst]]
    same = (np.isnan(found) & np.isnan(rounded)) | (found == rounded)
    same = np.where(finite, (np.signbit(found) == np.signbit(rounded)) | (found != 0) | (rounded != 0), same)
    assert same.all(), [*(x[~same] for x in given), found[~same], rounded[~same]]


needs_more_digits = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="no type of more digits to compare with"
)


@pytest.mark.one_in(2)
@needs_more_digits
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fastmath", [False, True])
@pytest.mark.parametrize("kernel", BOUNDS, ids=lambda kernel: kernel.name)
def test_functions_are_as_near_to_the_true_value_as_they_say(kernel, fastmath):
    x, bounds = arguments(), BOUNDS[kernel]
    if kernel is errors:  # mpmath takes its time, and these are all in a small range
        x = np.concatenate(
            [x[::100], random.uniform(-6, 6, 2000), random.uniform(1, 28, 2000), random.uniform(-1, 1, 2000)]
        )
    out = np.full((len(bounds), len(x)), 7.0)
    launch(nb.kernel(fastmath=fastmath)(kernel.function), len(x), [x, out])
    for row, (function, bound) in zip(out, bounds.items(), strict=True):
        check_near(row, function(x.astype(np.longdouble)), bound, x)


PAIRS = {np.power: 0.8, np.arctan2: 0.9, np.hypot: 1.1}
CORNERS = [
    0.0,
    5e-324,
    1e-310,
    0.25,
    0.5,
    1.0,
    1 + 2**-52,
    1.5,
    2.0,
    2.5,
    3.0,
    1e9,
    2.0**52,
    2.0**53,
    2.0**53 + 2,
    1.7e308,
    np.inf,
]


def pairs() -> np.ndarray:
    """Return pairs of special numbers, of any numbers, near ones, and those whose power is barely finite or not quite zero."""
    corners = [np.nan, *CORNERS, *(-corner for corner in CORNERS)]
    log_sizes = random.uniform(-744, 709, (2, 40_000))
    base, near_one = np.exp(log_sizes[0]), 1 + np.exp(random.uniform(-36, -1, 40_000)) * random.choice([-1, 1], 40_000)
    ends = random.uniform(-745, 709.8, 40_000)
    parts = [
        np.array(list(itertools.product(corners, corners))).T,
        any_bits(80_000).reshape(2, -1),
        random.uniform(-3, 3, (2, 40_000)),
        np.exp(log_sizes) * random.choice([-1.0, 1.0], log_sizes.shape),
        np.exp(random.uniform(-744, -690, (2, 40_000))),
        [random.uniform(0.5, 2, 40_000), random.uniform(-1000, 1000, 40_000)],
        [np.exp(random.uniform(-740, -690, 40_000)), np.exp(random.uniform(-730, -20, 40_000))],
        [np.round(random.uniform(-50, 50, 40_000)), np.round(random.uniform(-50, 200, 40_000))],
        [base, ends / np.log(base)],
        [near_one, ends / np.log(near_one)],
    ]
    return np.concatenate(parts, axis=1)


@needs_more_digits
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("fastmath", [False, True])
def test_functions_of_two_numbers_are_as_near_to_the_true_value_as_they_say(fastmath):
    x, y = (row.copy() for row in pairs())
    out = np.full((len(PAIRS), len(x)), 7.0)
    launch(nb.kernel(fastmath=fastmath)(of_two.function), len(x), [x, y, out])
    for row, (function, bound) in zip(out, PAIRS.items(), strict=True):
        check_near(row, function(x.astype(np.longdouble), y.astype(np.longdouble)), bound, x, y)


WRITTEN = [0.0, 1.0, 2.0, 3.0, -1.0, 0.5]


@nb.kernel
def written_powers(x, out):
    i = nb.tid()
    out[0, i] = x[i] ** 0.0
    out[1, i] = math.pow(x[i], 1.0)
    out[2, i] = x[i] ** 2.0
    out[3, i] = np.power(x[i], 3.0)
    out[4, i] = x[i] ** -1.0
    out[5, i] = x[i] ** 0.5


@needs_more_digits
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_few_exponents_that_are_written_out_take_a_few_instructions(monkeypatch):
    def refused(*_):
        raise AssertionError("an exponent that is known goes through a logarithm")

    monkeypatch.setattr(variant, "compiled_or_stored", lambda key, compiled: (compiled(), False))
    monkeypatch.setitem(double_math.FUNCTIONS, "pow", refused)
    x = arguments()
    out = np.full((len(WRITTEN), len(x)), 7.0)
    launch(written_powers, len(x), [x, out])
    for row, exponent in zip(out, WRITTEN, strict=True):
        check_near(row, np.power(x.astype(np.longdouble), np.longdouble(exponent)), 1.0, x)


@pytest.mark.parametrize("kernel", BOUNDS, ids=lambda kernel: kernel.name)
def test_numbers_in_a_vector_and_alone_give_the_same_bits(kernel):
    x = np.concatenate([random.uniform(-30, 30, 1000), random.uniform(-1, 1, 500), random.uniform(-1e12, 1e12, 500)])
    together = np.zeros((len(BOUNDS[kernel]), len(x)))
    launch(kernel, len(x), [x, together])
    for k in range(0, len(x), 37):
        one = np.zeros((len(BOUNDS[kernel]), 1))
        launch(kernel, 1, [x[k : k + 1].copy(), one])
        assert one[:, 0].tobytes() == together[:, k].tobytes()


@nb.kernel
def whole(k, n, out):
    i = nb.tid()
    out[0, i] = math.exp2(k[i])
    out[1, i] = math.log2(math.exp2(k[i]))
    out[2, i] = math.log10(n[i])


def test_whole_results_are_exact():
    k, digits = np.arange(-1074.0, 1024.0), np.arange(23)
    out = np.zeros((3, len(k)))
    launch(whole, len(k), [k, np.resize(10.0**digits, len(k)), out])
    assert (out[0] == [math.ldexp(1.0, int(power)) for power in k]).all()
    assert (out[1] == k).all()
    assert (out[2] == np.resize(digits, len(k))).all()


@nb.kernel
def scattered(x, out):
    i = nb.tid()
    out[int(x[i])] = x[i] ** 0.7 + math.log(x[i]) + math.sin(x[i])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="others always multiply and add at once")
@pytest.mark.parametrize(("features", "is_arithmetic"), [("", False), ("+avx2,-fma", False), ("+avx2,+fma", True)])
def test_code_for_a_cpu_that_does_not_multiply_and_add_at_once_calls_the_library(monkeypatch, features, is_arithmetic):
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    assert (math.sin in cpu_math._replacements.__wrapped__(alone=False)) == is_arithmetic


@pytest.mark.parametrize(
    ("kinds", "called"),
    [
        ((types.float64,) * 2, []),
        ((types.float32,) * 2, []),
        ((types.float64, types.int64), [math.pow, np.hypot]),
        # Both are converted to the same type for atan2.
        ((types.float32, types.int16), [math.pow, np.hypot]),
        ((types.float32, types.float64), [np.hypot]),
    ],
)
def test_functions_of_mixed_types_are_the_library_s_unless_they_are_converted_to_one(kinds, called):
    functions = {plain: cpu_math.replacement(plain, alone=False) for plain in (math.pow, math.atan2, np.hypot)}
    cpu_target.typing_context.refresh()
    assert [plain for plain, own in functions.items() if cpu_math.is_library_call(own, kinds)] == called


def test_what_the_library_computes_sooner_is_its_own_where_nothing_is_vectorised(monkeypatch):
    made = []
    plain = variant.compiled_or_stored
    monkeypatch.setattr(variant, "compiled_or_stored", lambda *given: made.append(plain(*given)) or made[-1])
    x = np.arange(50) + 0.25
    out = np.zeros(50)
    launch(scattered, 50, [x, out])
    np.testing.assert_allclose(out, x**0.7 + np.log(x) + np.sin(x), rtol=1e-14)
    code = b"".join(b"".join(compiled.objects) for compiled, _ in made)
    assert b"\0pow\0" in code
    assert b"\0log\0" in code


@nb.kernel
def winding(x, y):
    i = nb.tid()
    a, b = x[i], 0.5
    for _ in range(20):
        c, d = a + math.sin(a) * math.cos(b), b + math.sin(b - a) * math.cos(a)
        a, b = c + math.sin(c) * math.cos(d), d + math.sin(d - c) * math.cos(c)
    y[i] = a


def test_numbers_of_a_vector_that_are_seldom_large_take_one_test_together(monkeypatch):
    made = []
    plain = variant.compiled_or_stored
    monkeypatch.setattr(variant, "compiled_or_stored", lambda *given: made.append(plain(*given)) or made[-1])
    launch(winding, 100, [np.linspace(0, 1, 100), np.zeros(100)])
    # A branch for each number makes 200 kB of it, and takes LLVM five times as long.
    assert sum(len(code) for compiled, _ in made for code in compiled.objects) < 120_000


@nb.kernel
def sines(x, out):
    i = nb.tid()
    out[0, i] = math.sin(x[i])
    out[1, i] = math.cos(x[i])
    out[2, i] = math.tan(x[i])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_large_numbers_among_others_are_reduced_as_exactly():
    x = np.concatenate([10.0 ** np.arange(309), 2.0 ** np.arange(1024), np.linspace(1, 20, 500), [np.inf] * 3])
    x = random.permutation(np.concatenate([x, -x]))
    out = np.zeros((3, len(x)))
    launch(sines, len(x), [x, out])
    with mpmath.workprec(1300):
        for row, function in zip(out, (mpmath.sin, mpmath.cos, mpmath.tan), strict=True):
            for found, number in zip(row, x, strict=True):
                if np.isinf(number):
                    assert np.isnan(found)
                    continue
                exact = function(mpmath.mpf(float(number)))
                assert abs(float(found - exact)) <= 1.1 * np.spacing(abs(found)), (function.__name__, number, found)


@nb.kernel
def of_a_constant(out):
    i = nb.tid()
    out[i] = math.sin(1e300) + math.tan(-(2.0**40)) * i


def test_a_constant_is_reduced_where_nothing_else_is():
    out = np.zeros(20)
    launch(of_a_constant, 20, [out])
    with mpmath.workprec(1300):
        sine, tangent = float(mpmath.sin(mpmath.mpf(1e300))), float(mpmath.tan(mpmath.mpf(-(2.0**40))))
    np.testing.assert_allclose(out, sine + tangent * np.arange(20), rtol=1e-14)


def population(x, y):
    i, j = nb.tid()
    size = abs(x[i + j])
    for _ in range(20):
        size += 0.1 * size**0.7 - 0.2 * size**1.3
    y[i + j] = math.log2(size) + math.exp2(-size)


def turns(x, y):
    i, j = nb.tid()
    angle = x[i + j]
    for _ in range(20):
        angle = math.atan2(angle + 0.1, 1.0 - angle) - math.asin(0.3 * angle) + 0.1 * math.acos(0.2 * angle)
    y[i + j] = angle


def diffusion(x, y):
    i, j = nb.tid()
    front = x[i + j]
    for _ in range(20):
        front += 0.1 * math.erfc(front) - 0.05 * math.erf(math.hypot(front, 1.0)) - 0.01 * math.asinh(front)
    y[i + j] = front


def newton(x, y):
    i, j = nb.tid()
    guess = 0.0
    for _ in range(30):
        guess += x[i + j] * math.exp(-guess) - math.tanh(guess) * 0.1
    y[i + j] = guess


def orbit(x, y):
    i, j = nb.tid()
    angle = x[i + j]
    while abs(angle) < 2.5:
        angle += 0.3 * math.sin(angle) + 0.1 * math.cos(angle) ** 2 + 0.01
        if angle > 2.0:
            angle *= 1.0 + math.tan(0.1 * angle) ** 2 + 0.1 * math.sin(1e12 * x[i + j])
    y[i + j] = angle


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [newton, orbit, population, turns, diffusion])
def test_loops_with_functions_run_in_lanes(function):
    values = [np.linspace(0.1, 2, 200), np.zeros(200)]
    assert function.__name__ in widths(nb.kernel(function), values)
    check(function, lambda n: [floats(n, dtype=np.float64), np.zeros(n)])
    nb.launch(nb.kernel(function), (1, 200), values)
    wanted = np.zeros(200)
    nb.launch(nb.kernel(simd=False)(function), (1, 200), [values[0], wanted])
    np.testing.assert_allclose(values[1], wanted, rtol=1e-10)
