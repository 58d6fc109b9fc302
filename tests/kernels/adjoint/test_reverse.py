"""Reverse mode against central differences: every construct, every rule, random programs; run as plain Python."""

# ruff: noqa: B007 - kernels as users write them, with loop variables and locals that nothing reads

from __future__ import annotations

import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from adjoint_as_python import adjoint_of, check, check_directions, is_same, oracle, replay, run_adjoint
from adjoint_cases import CASES, name_of
from adjoint_programs import Writer, arguments, declared
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid

PROGRAMS = int(os.environ.get("NUMBRIDGE_ADJOINT_PROGRAMS", "50"))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_adjoint_is_the_gradient(case):
    check(*case)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_program_computes_what_the_kernel_computes(case):
    declared_kernel, dim, *values = case
    dim = (dim,) if isinstance(dim, int) else dim
    expected = oracle(declared_kernel, dim, values)
    copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    replay(declared_kernel, dim, copies)
    for got, wanted in zip(copies, expected, strict=True):
        assert is_same(declared_kernel, got, wanted)


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=PROGRAMS == 90,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(st.randoms(use_true_random=False), st.integers(0, 1000))
def test_random_programs(random, seed):
    kernel, values = declared(Writer(random.randrange).program()), arguments(seed)
    assume(is_finite(kernel, values))
    check_directions(kernel, 2, *values)


def is_finite(kernel, values):
    """Tell whether a program's results are numbers: one that squares over and over may leave their range."""
    copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    with np.errstate(over="ignore", invalid="ignore"):
        replay(kernel, (2,), copies)
    return all(np.isfinite(v).all() for v in copies)


def test_text_is_the_same_every_time():
    for case in CASES[:12]:
        texts = {adjoint_of(case[0], case[2:])[0].text for _ in range(2)}
        assert len(texts) == 1


ONE = {
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "asinh": math.asinh,
    "atanh": math.atanh,
    "exp": math.exp,
    "expm1": math.expm1,
    "exp2": np.exp2,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "cbrt": np.cbrt,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "erf": math.erf,
    "erfc": math.erfc,
    "degrees": math.degrees,
    "radians": math.radians,
    "floor": math.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "sign": np.sign,
    "fabs": math.fabs,
    "abs": abs,
    "absolute": np.absolute,
    "negative": np.negative,
    "arcsin": np.arcsin,
    "deg2rad": np.deg2rad,
    "round": round,
    "gamma": math.gamma,
    "lgamma": math.lgamma,
}
TWO = {
    "pow": math.pow,
    "atan2": math.atan2,
    "hypot": math.hypot,
    "fmod": np.fmod,
    "copysign": math.copysign,
    "min": min,
    "max": max,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.true_divide,
    "power": np.power,
    "remainder": np.remainder,
    "floor_divide": np.floor_divide,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "logaddexp": np.logaddexp,
    "logaddexp2": np.logaddexp2,
    "float_power": np.float_power,
    "nextafter": math.nextafter,
}


def unary(function):
    @kernel
    def applies(x, y):
        i = tid()
        y[i] = function(x[i])

    return applies


def binary(function):
    @kernel
    def applies(x, z, y):
        i = tid()
        y[i] = function(x[i], z[i])

    return applies


@pytest.mark.parametrize("function", ONE.values(), ids=ONE)
def test_rule_of_one_argument(function):
    check(unary(function), 4, np.array([0.13, 0.37, 0.62, 0.94]), np.ones(4))


OF_NEGATIVES = [abs, math.fabs, np.sign, math.sin, math.atan, np.cbrt, math.erf, math.gamma, math.lgamma]


@pytest.mark.parametrize("function", OF_NEGATIVES, ids=str)
def test_rule_of_a_negative_argument(function):
    check(unary(function), 3, np.array([-0.13, -1.37, -2.62]), np.ones(3))


def test_rule_of_acosh():
    check(unary(math.acosh), 3, np.array([1.1, 1.7, 3.0]), np.ones(3))


@kernel
def scaled(x, y):
    i = tid()
    y[i] = math.ldexp(x[i], i - 2) * x[i]


def test_rule_of_ldexp():
    check(scaled, 4, np.array([0.7, 0.0, -1.9, 2.3]), np.ones(4))


def test_logarithms_of_sums_with_nothing_in_them():
    """As where sums begin: the logarithm of zero has a share of nothing, or the whole of what is nothing itself."""
    x, z = np.array([-np.inf, 0.5, -np.inf]), np.array([0.5, -np.inf, -np.inf])
    for function in (np.logaddexp, np.logaddexp2):
        adjoints = {"x": np.zeros(3), "z": np.zeros(3), "y": np.ones(3)}
        run_adjoint(binary(function), (3,), [x, z, np.zeros(3)], adjoints)
        assert (adjoints["x"].tolist(), adjoints["z"].tolist()) == ([0, 1, 1], [1, 0, 1])


@pytest.mark.parametrize("missing", [0, 1])
def test_of_a_number_and_none_the_number_has_the_derivative(missing):
    given = [np.array([2.0]), np.array([3.0])]
    given[missing][:] = np.nan
    for function in (np.fmin, np.fmax):
        adjoints = {"x": np.zeros(1), "z": np.zeros(1), "y": np.ones(1)}
        run_adjoint(binary(function), (1,), [*given, np.zeros(1)], adjoints)
        assert [adjoints["x"][0], adjoints["z"][0]] == [float(missing == 1), float(missing == 0)]


@pytest.mark.parametrize("function", TWO.values(), ids=TWO)
def test_rule_of_two_arguments(function):
    x, z = np.array([0.7, 1.9, 2.3, 0.4]), np.array([1.3, 0.6, 0.9, 1.1])
    check(binary(function), 4, x, z, np.ones(4))


IN_JAX = {
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "asinh": jnp.arcsinh,
    "atanh": jnp.arctanh,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "exp2": jnp.exp2,
    "log": jnp.log,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "cbrt": jnp.cbrt,
    "square": jnp.square,
    "reciprocal": jnp.reciprocal,
    "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc,
    "lgamma": jax.scipy.special.gammaln,
    "gamma": jax.scipy.special.gamma,
    "logaddexp": jnp.logaddexp,
    "logaddexp2": jnp.logaddexp2,
    "degrees": jnp.degrees,
    "radians": jnp.radians,
    "abs": jnp.abs,
    "negative": jnp.negative,
    "pow": jnp.power,
    "atan2": jnp.arctan2,
    "hypot": jnp.hypot,
    "min": jnp.minimum,
    "max": jnp.maximum,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "remainder": jnp.remainder,
}


@pytest.mark.parametrize("name", IN_JAX)
def test_rules_agree_with_jax(name):
    x, z = np.array([0.13, 0.37, 0.62, 0.94]), np.array([0.41, 0.29, 0.77, 0.58])
    one = name in ONE
    arguments = [x, np.zeros(4)] if one else [x, z, np.zeros(4)]
    adjoints = {"x": np.zeros(4), "z": np.zeros(4), "y": np.ones(4)}
    made = unary(ONE[name]) if one else binary(TWO[name])
    run_adjoint(made, (4,), arguments, adjoints)
    places = (0,) if one else (0, 1)
    with jax.enable_x64(True):
        wanted = jax.grad(lambda *values: IN_JAX[name](*values).sum(), argnums=places)(
            *map(jnp.asarray, arguments[:-1])
        )
    for place in places:
        np.testing.assert_allclose(adjoints["xz"[place]], wanted[place], rtol=1e-12)


@kernel
def operators(x, z, y):
    i = tid()
    a, b = x[i], z[i]
    y[i, 0] = a**b + a**2 + b**3 + a**-1 + a**0.5 + 2.0**a
    y[i, 1] = a % b - b % a + a // b + (-a) % b + 3.0 * a / b
    y[i, 2] = -a + +b - abs(a - b) + min(a, b, 1.0) * max(a, b, 1.0, a * b)
    y[i, 3] = pow(a, b) * (a > b) + (a if a > b else b) + float(int(a * 3.0)) + a**i
    y[i, 4] = min((a, b * b)) * max((a, b, 0.8)) + max((a * b,)) * min((2, x.size))


def test_operators():
    check(operators, 3, np.array([0.7, 1.9, 2.3]), np.array([1.3, 0.6, 0.9]), np.ones((3, 5)))


@kernel
def at_ties(x, z, y):
    i = tid()
    y[i, 0] = min(x[i], z[i])
    y[i, 1] = max(x[i], z[i])
    y[i, 2] = abs(x[i] - z[i])
    y[i, 3] = x[i] % z[i]
    y[i, 4] = x[i] ** (z[i] - z[i])
    y[i, 5] = (x[i] - z[i]) ** 1.0


def test_ties_follow_numpy():
    x, z = np.array([1.5]), np.array([1.5])
    expected = [(1, 0), (1, 0), (0, 0), (1, -1), (0, math.log(1.5) - math.log(1.5)), (1, -1)]
    for column, (by_x, by_z) in enumerate(expected):
        adjoints = {"x": np.zeros(1), "z": np.zeros(1), "y": np.zeros((1, 6))}
        adjoints["y"][0, column] = 1
        run_adjoint(at_ties, (1,), [x, z, np.ones((1, 6))], adjoints)
        assert (adjoints["x"][0], adjoints["z"][0]) == (by_x, by_z), column


@kernel
def powers_of_zero(x, y):
    i = tid()
    y[i] = x[i] ** 2 + x[i] ** 1.0 + x[i] ** 3 + 2.0 ** x[i]


def test_powers_at_zero_are_finite():
    adjoints = {"x": np.zeros(1), "y": np.ones(1)}
    run_adjoint(powers_of_zero, (1,), [np.zeros(1), np.zeros(1)], adjoints)
    assert adjoints["x"][0] == 1 + math.log(2)


@kernel
def rounded_constant(x, y):
    i = tid()
    y[i] = np.float32(0.1) * x[i]


def test_a_constant_keeps_its_own_rounding():
    adjoints = {"x": np.zeros(1), "y": np.ones(1)}
    run_adjoint(rounded_constant, (1,), [np.ones(1), np.zeros(1)], adjoints)
    assert adjoints["x"][0] == float(np.float32(0.1))


@kernel
def guarded(x, y):
    i = tid()
    if x[i] > 0.0:
        y[i] = math.sqrt(x[i])
    else:
        y[i] = 0.0


def test_the_branch_not_taken_adds_nothing():
    adjoints = {"x": np.zeros(2), "y": np.ones(2)}
    run_adjoint(guarded, (2,), [np.array([0.0, 4.0]), np.zeros(2)], adjoints)
    assert adjoints["x"].tolist() == [0, 0.25]


@kernel
def long_loop(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n):
        s = s + 0.001 * math.sin(s)
    y[i] = s


@kernel
def long_while(x, y, n):
    i = tid()
    s = x[i]
    k = 0
    while k < n:
        s = s + 0.001 * math.sin(s)
        k += 1
    y[i] = s


@pytest.mark.parametrize("looped", [long_loop, long_while])
@pytest.mark.parametrize("trips", [1, 1023, 1024, 1025, 2048, 2049, 5000])
def test_long_loops_are_checkpointed(looped, trips):
    check(looped, 1, np.array([0.3]), np.zeros(1), trips, tolerance=1e-4)


@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize("trips", [3, 4, 15, 16, 17, 64, 100])
@pytest.mark.parametrize("looped", [long_loop, long_while])
def test_any_number_of_slots_will_do(looped, trips, slots, monkeypatch):
    monkeypatch.setattr("numbridge.kernels.adjoint.forward_sweep.slots_for", lambda sizes, most: slots)
    check(looped, 1, np.array([0.3]), np.zeros(1), trips)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_construct_with_two_slots(case, monkeypatch):
    monkeypatch.setattr("numbridge.kernels.adjoint.forward_sweep.slots_for", lambda sizes, most: 2)
    check(*case)
