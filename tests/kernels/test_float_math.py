"""Mathematical functions of float32: their values everywhere, and where which function is called."""

from __future__ import annotations

import ast
import itertools
import math

import numpy as np
import pytest

import numbridge as nb
from numbridge.kernels import variant
from numbridge.kernels.arithmetic import float_math
from numbridge.kernels.arithmetic.cpu_math import calls_chosen, substituted
from numbridge.kernels.launch import launch

LARGE = [2.0**45, 2.0**53, 2.0**45 + 2.0**22, 2.0**67, 2.0**89, 2.0**111, 3.4028235e38, np.inf]
SIZES = [0.0, 1e-45, 1e-38, 0.5, 1.0, 2.0, 2.5, 3.0, 88.7, 89.0, 103.9, 104.1, *LARGE]
SPECIAL = np.array([np.nan, *SIZES, *(-size for size in SIZES)], np.float32)


@nb.kernel
def circular(x, out):
    i = nb.tid()
    out[0, i] = math.sin(x[i])
    out[1, i] = math.cos(x[i])
    out[2, i] = math.tan(x[i])
    out[3, i] = math.asin(x[i])
    out[4, i] = math.acos(x[i])
    out[5, i] = np.arctan(x[i])


@nb.kernel
def hyperbolic(x, out):
    i = nb.tid()
    out[0, i] = math.sinh(x[i])
    out[1, i] = math.cosh(x[i])
    out[2, i] = math.tanh(x[i])
    out[3, i] = math.asinh(x[i])
    out[4, i] = np.arccosh(x[i])
    out[5, i] = math.atanh(x[i])


@nb.kernel
def exponential(x, out):
    i = nb.tid()
    out[0, i] = math.exp(x[i])
    out[1, i] = math.exp2(x[i])
    out[2, i] = math.expm1(x[i])
    out[3, i] = math.log(x[i])
    out[4, i] = math.log2(x[i])
    out[5, i] = math.log10(x[i])
    out[6, i] = math.log1p(x[i])
    out[7, i] = math.erf(x[i])
    out[8, i] = math.erfc(x[i])


@nb.kernel
def binary(x, y, out):
    i = nb.tid()
    out[0, i] = x[i] ** y[i]
    out[1, i] = math.atan2(x[i], y[i])
    out[2, i] = math.hypot(x[i], y[i])


TRUE = {
    circular: [np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan],
    hyperbolic: [np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh, np.arctanh],
    exponential: [
        np.exp,
        np.exp2,
        np.expm1,
        np.log,
        np.log2,
        np.log10,
        np.log1p,
        np.vectorize(math.erf),
        np.vectorize(math.erfc),
    ],
    binary: [np.power, np.arctan2, np.hypot],
}


def every(step: int, start: int = 0) -> np.ndarray:
    """Return floats of all magnitudes, signs and kinds: every `step`-th of the patterns of 32 bits."""
    return np.arange(start, 1 << 32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def computed(kernel, *arguments):
    out = np.full((len(TRUE[kernel]), len(arguments[0])), 7, np.float32)
    launch(kernel, len(arguments[0]), [*arguments, out])
    return out


def ulps(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return how far results are from the true ones, in units in the last place; infinite if not even of their kind."""
    rounded = true.astype(np.float32)
    finite = np.isfinite(found) & np.isfinite(rounded)
    same = (np.isnan(found) & np.isnan(rounded)) | (found == rounded)
    near = np.spacing(np.where(finite, np.abs(rounded), np.float32(1))).astype(np.float64)
    distance = np.where(finite, np.abs(found.astype(np.float64) - np.where(finite, true, 0)) / near, np.inf)
    distance = np.where(same & ~finite, 0, distance)
    zero = (rounded == 0) & (np.signbit(found) != np.signbit(rounded))
    return np.where(zero, np.inf, distance)


@pytest.mark.parametrize("kernel", [circular, hyperbolic, exponential], ids=lambda kernel: kernel.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_one_number_are_within_0_52_units_of_the_last_place(kernel):
    x = np.concatenate([SPECIAL, every(40_009), np.linspace(-20, 20, 20_001, dtype=np.float32)])
    found = computed(kernel, x)
    for row, function in zip(found, TRUE[kernel], strict=True):
        distance = ulps(row, function(x.astype(np.float64)))
        worst = int(np.argmax(distance))
        assert distance[worst] <= 0.52, (function, x[worst], row[worst])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_of_two_numbers_are_within_0_56_units_of_the_last_place():
    pairs = np.array(list(itertools.product(SPECIAL, SPECIAL)), np.float32).T
    random = np.random.default_rng(0)
    wide = random.permutation(every(80_021)), random.permutation(every(80_021, 5))
    near = random.uniform(-9, 9, (2, 50_000)).astype(np.float32)
    x, y = (np.concatenate(parts) for parts in zip(pairs, wide, np.abs(near), near, strict=True))
    found = computed(binary, x, y)
    for row, function in zip(found, TRUE[binary], strict=True):
        distance = ulps(row, function(x.astype(np.float64), y.astype(np.float64)))
        worst = int(np.argmax(distance))
        assert distance[worst] <= 0.56, (function.__name__, x[worst], y[worst], row[worst])


THIRD = 3.0
POWERS = [2.0, 3.0, -1.0, -2.0, 5.0, 15.0, 0.0]


@nb.kernel
def whole_powers(x, out):
    i = nb.tid()
    out[0, i] = x[i] ** 2.0
    out[1, i] = x[i] ** THIRD
    out[2, i] = x[i] ** -1.0
    out[3, i] = x[i] ** -2.0
    out[4, i] = math.pow(x[i], 5.0)
    out[5, i] = np.power(x[i], 15.0)
    out[6, i] = x[i] ** 0.0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whole_numbers_as_exponents_are_multiplied_out(monkeypatch):
    def refused(*_):
        raise AssertionError("an exponent that is known goes through a logarithm")

    monkeypatch.setattr(variant, "compiled_or_stored", lambda key, compiled: (compiled(), False))
    monkeypatch.setitem(float_math.FUNCTIONS, "pow", refused)
    x = np.concatenate([SPECIAL, every(400_009)])
    out = np.empty((len(POWERS), len(x)), np.float32)
    launch(whole_powers, len(x), [x, out])
    for row, exponent in zip(out, POWERS, strict=True):
        distance = ulps(row, np.power(x.astype(np.longdouble), exponent))
        worst = int(np.argmax(distance))
        assert distance[worst] <= 0.5001, (exponent, x[worst], row[worst])


@nb.kernel
def mixed(x, out):
    i = nb.tid()
    if x[i] > 0.25:
        out[i] = math.sin(x[i]) * math.exp(-x[i]) + x[i] ** 0.3
    else:
        out[i] = math.tanh(x[i]) + math.log1p(abs(x[i]))


def test_a_number_gives_the_same_bits_wherever_it_stands():
    x = np.random.default_rng(1).normal(size=200_000).astype(np.float32)
    whole = np.empty_like(x)
    launch(mixed, len(x), [x, whole])
    for start, length in [(0, 1), (1, 2), (3, 15), (5, 33), (64, 127), (100, 1001)]:
        part = np.empty(length, np.float32)
        launch(mixed, length, [x[start : start + length], part])
        np.testing.assert_array_equal(part, whole[start : start + length])
    strided = np.empty((len(x), 2), np.float32)
    launch(mixed, len(x), [x, strided[:, 1]])
    np.testing.assert_array_equal(strided[:, 1], whole)


def iterated(x, out):
    i = nb.tid()
    s = x[i]
    for _ in range(40):
        s = math.cos(s)
    out[i] = s


@nb.kernel
def straight(x, out):
    i = nb.tid()
    out[i] = math.cos(x[i])


def test_only_a_loop_that_waits_for_each_result_calls_the_library(monkeypatch):
    made = []
    plain = variant.compiled_or_stored
    monkeypatch.setattr(variant, "compiled_or_stored", lambda *given: made.append(plain(*given)) or made[-1])
    x = np.linspace(0, 1, 50, dtype=np.float32)
    # Threads that run together wait for no single result.
    for kernel in (nb.kernel(simd=False)(iterated), nb.kernel(iterated), straight):
        launch(kernel, 50, [x, np.empty_like(x)])
    of_the_cpu = [compiled for compiled, _ in made if "ptx" not in compiled.facts]
    assert [b"cosf" in b"".join(compiled.objects) for compiled in of_the_cpu] == [True, False, False]


@pytest.mark.parametrize("dtype", [np.float16, nb.bfloat16])
def test_numbers_of_16_bits_take_the_arithmetic_of_float32_and_leave_it_as_it_was(monkeypatch, dtype):
    made = []
    monkeypatch.setattr(
        variant, "compiled_or_stored", lambda key, compiled: (made.append(compiled()) or made[-1], False)
    )
    results = []
    # Numba converts these numbers to float32, which asks for a code for the same types of arguments.
    for kind in (np.float32, dtype, np.float32):
        x = np.linspace(-2, 2, 50).astype(kind)
        out = np.zeros(50, np.float32)
        launch(nb.kernel(straight.function), 50, [x, out])
        results.append(ulps(out, np.cos(x.astype(np.float64))).max())
    assert not any(b"cosf" in b"".join(compiled.objects) for compiled in made if "ptx" not in compiled.facts)
    assert max(results) < 0.52


@nb.kernel
def other_types(x, n, out):
    i = nb.tid()
    out[0, i] = math.exp(x[i])
    out[1, i] = math.sqrt(n[i]) + math.atan2(n[i], n[i])
    out[2, i] = n[i] ** 3 + x[i] ** 0.5


def test_other_types_are_as_they_were():
    x, n = np.array([0.5, 2.0]), np.array([1, 7])
    out = np.empty((3, 2))
    launch(other_types, 2, [x, n, out])
    want = [np.exp(x), np.sqrt(n) + np.pi / 4, n**3 + np.sqrt(x)]
    np.testing.assert_allclose(out, want, rtol=1e-15)


LOOPS = {
    "for j in range(n):\n        out[j] = math.exp(x[j])": True,
    "for j in range(n):\n        t = x[j]\n        out[j] = math.exp(t)": True,
    "for j in range(n):\n        if x[j] > 0:\n            t = x[j]\n            out[j] = math.exp(t)": True,
    "for j in range(3):\n        s = math.exp(s)": True,
    "for j in range(n):\n        s = math.exp(s)": False,
    "for j in range(n):\n        s += math.exp(x[j])": False,
    "for j in range(n):\n        if x[j] > 0:\n            s = x[j]\n        out[j] = math.exp(s)": False,
    "for j in range(n):\n        if x[j] > 0:\n            break\n        out[j] = math.exp(x[j])": False,
    "for j in range(n):\n        for k in range(n):\n            t = x[j]\n        out[j] = math.exp(x[j])": False,
    "while n > 0:\n        n -= 1\n        out[n] = math.exp(x[n])": False,
    "for j in range(n):\n        x[j] = 0\n    s = math.exp(s)": False,
}


@pytest.mark.parametrize("body", LOOPS)
def test_calls_are_chosen_by_the_loop_around_them(body):
    text = f"def kernel(i, x, n, out):\n    s = x[i]\n    {body}\n    out[i] = s\n"
    names = substituted({"math": math})
    made = calls_chosen(ast.parse(f"{text}\ndef _nb_run(n):\n    kernel(n)"), names, fastmath=False)
    assert ("_nb_library_math" not in ast.unparse(made)) == LOOPS[body]


MEETING = {
    "out[i] = math.log(x[i])": False,
    "k = i // 2\n    out[k + x.shape[0]] = math.log(x[i])": False,
    "out[int(x[i])] = math.log(x[i])": True,
    "k = int(x[i])\n    j = k + 1\n    out[i] = x[j] * math.log(x[i])": True,
    "_nb_atomic_max(out, i, math.log(x[i]))": True,
    "_nb_add(out, 0, math.log(x[i]))": True,
    "_nb_add_private(out, 0, math.log(x[i]))": False,
    "out[int(x[i])] = 1\n    for j in range(n):\n        out[j] = math.log(x[j])": False,
    "for j in range(n):\n        out[int(x[j])] = math.log(x[j])": True,
    "out[int(x[i])] = f(x[i])": True,
    "out[i] = f(x[i])": False,
}


@pytest.mark.parametrize("body", MEETING)
def test_threads_that_meet_in_memory_are_not_taken_for_vectors(body):
    text = f"def f(t):\n    return math.log(t) ** t\n\ndef kernel(i, x, n, out):\n    {body}\n\ndef _nb_run(n):\n    kernel(n)"
    names = substituted({"math": math})
    made = ast.unparse(calls_chosen(ast.parse(text), names, fastmath=False))
    assert ("_nb_alone_math" in made) == MEETING[body]
    assert ("_nb_alone__nb_power" in made) == (MEETING[body] and "f(" in body)
    assert "_nb_alone_" not in ast.unparse(calls_chosen(ast.parse(text), names, fastmath=False, lanes=True))


def test_a_sum_may_be_vectorised_with_fastmath_and_a_function_is_as_the_loop_that_calls_it():
    summed = "def kernel(x, n):\n    s = x[0]\n    for j in range(n):\n        s += math.exp(x[j])"
    chained = (
        "def f(t):\n    return math.exp(t)\n\ndef kernel(x, n):\n    s = x[0]\n    for j in range(n):\n        s = f(s)"
    )
    independent = chained.replace("s = f(s)", "x[j] = f(x[j])")
    for text, fastmath, own in [
        (summed, True, True),
        (summed.replace("x[j])", "x[j] + s)"), True, False),
        (chained, False, False),
        (independent, False, True),
    ]:
        names = substituted({"math": math})
        made = calls_chosen(ast.parse(f"{text}\n\ndef _nb_run(n):\n    kernel(n)"), names, fastmath=fastmath)
        assert ("_nb_library_math" not in ast.unparse(made)) == own, text


@nb.kernel
def into_rows(x, out):
    i = nb.tid()
    np.exp(x[i], out[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_numpy_fill_rows(dtype):
    x, out = np.arange(6, dtype=dtype).reshape(2, 3), np.zeros((2, 3), dtype)
    launch(into_rows, 2, [x, out])
    assert np.allclose(out, np.exp(x))
