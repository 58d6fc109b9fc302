"""Forward mode against central differences and against reverse mode; second derivatives by reversing tangents."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adjoint_as_python import (
    adjoint_of,
    check,
    differences,
    float_arrays,
    floats_of,
    program_of,
    run_adjoint,
    run_second,
    run_tangent,
)
from adjoint_cases import CASES, name_of
from adjoint_programs import Writer, arguments, declared
from numbridge.kernels.adjoint.emit import program_text
from numbridge.kernels.errors import KernelError, KernelUnsupportedError, NumbridgeTypeError
from numbridge.kernels.kernel import func, func_grad, kernel
from numbridge.kernels.language.intrinsics import tid


def random_like(names, values, seed=3):
    random = np.random.default_rng(seed)
    made = {name: random.normal(size=np.shape(values[name])) for name in names}
    return {name: value if value.ndim else float(value) for name, value in made.items()}


def dot(a, b):
    return sum(float((np.asarray(a[name]) * np.asarray(b[name])).sum()) for name in a if name in b)


def jvp_against_vjp(kernel_, dim, values):
    dim = (dim,) if isinstance(dim, int) else dim
    by_name = {p.name: v for p, v in zip(kernel_.parameters, values, strict=True)}
    names = floats_of(kernel_, values)
    tangents = random_like(names, by_name)
    arrays = [n for n in names if isinstance(by_name[n], np.ndarray)]
    cotangents = random_like(arrays, by_name, seed=4)
    after = run_tangent(kernel_, dim, values, tangents)
    adjoints = {name: value.copy() for name, value in cotangents.items()}
    run_adjoint(kernel_, dim, values, adjoints)
    forwards, backwards = dot(cotangents, after), dot(adjoints, tangents)
    assert math.isclose(forwards, backwards, rel_tol=1e-9, abs_tol=1e-9), (forwards, backwards)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_tangent_agrees_with_adjoint(case):
    jvp_against_vjp(case[0], case[1], case[2:])


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(st.randoms(use_true_random=False), st.integers(0, 1000))
def test_random_programs(random, seed):
    text = Writer(random.randrange).program()
    jvp_against_vjp(declared(text), 2, arguments(seed))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_second_derivatives(case):
    """The gradient of <w, J(x) v> by x, against differences of J(x)ᵀ w along v; by v, against J(x)ᵀ w itself."""
    kernel_, dim, *values = case
    dim = (dim,) if isinstance(dim, int) else dim
    by_name = {p.name: v for p, v in zip(kernel_.parameters, values, strict=True)}
    names = floats_of(kernel_, values)
    tangents = random_like(names, by_name)
    weights = random_like([n for n in names if isinstance(by_name[n], np.ndarray)], by_name, seed=4)

    def gradient(step):
        moved = [v + step * tangents[n] if n in tangents else v for n, v in by_name.items()]
        adjoints = {name: value.copy() for name, value in weights.items()}
        run_adjoint(kernel_, dim, moved, adjoints)
        return adjoints

    got = run_second(kernel_, dim, values, tangents, weights)
    first, plus, minus = gradient(0.0), gradient(1e-5), gradient(-1e-5)
    for name in names:
        second = (np.asarray(plus.get(name, 0.0)) - np.asarray(minus.get(name, 0.0))) / 2e-5
        scale = 1 + np.abs(second).max(initial=0)
        assert np.allclose(got.get(name, 0.0), second, rtol=1e-4, atol=1e-5 * scale), name
        assert np.allclose(got.get(f"_nb_tan_{name}", 0.0), first.get(name, 0.0), rtol=1e-9, atol=1e-9), name


@kernel
def rosenbrock(x, loss):
    i = tid()
    a, b = x[2 * i], x[2 * i + 1]
    loss[i] = (1.0 - a) ** 2 + 100.0 * (b - a * a) ** 2


def test_hessian_vector_product():
    x, v = np.array([0.3, -0.7]), np.array([1.1, 0.4])
    got = run_second(rosenbrock, (1,), [x, np.zeros(1)], {"x": v, "loss": np.zeros(1)}, {"loss": np.ones(1)})
    a, b = x
    hessian = np.array([[2 - 400 * (b - 3 * a * a), -400 * a], [-400 * a, 200.0]])
    assert np.allclose(got["x"], hessian @ v)


@func
def cube(x):
    return x * x * x


@func_grad(cube)
def cube_grad(x, cotangent):
    # Wrong on purpose by a factor, so that it shows who is asked.
    return 6.0 * x * x * cotangent


@func
def polar(x, y, n):
    return math.hypot(x, y) * n, math.atan2(y, x)


@func_grad(polar)
def polar_grad(x, y, n, radius, angle):
    r = math.hypot(x, y)
    s = radius * n
    for _k in range(1):
        s = s + 0.0
    return s * x / r - angle * y / (r * r), s * y / r + angle * x / (r * r), 0


@kernel
def by_hand(x, y):
    i = tid()
    if x[i] > 0.5:
        y[i] = cube(x[i])
    else:
        y[i] = cube(2.0 * x[i]) + x[i]


@kernel
def by_hand_in_a_loop(x, y, n):
    i = tid()
    s = x[i]
    for k in range(n):
        p, q = polar(s, x[k], 2)
        s = p * 0.3 + math.sin(q)
    y[i] = s


def test_a_derivative_by_hand_is_used():
    x = np.array([0.3, 0.9])
    adjoints = {"x": np.zeros(2), "y": np.ones(2)}
    run_adjoint(by_hand, (2,), [x, np.zeros(2)], adjoints)
    assert np.allclose(adjoints["x"], [2 * 6 * 0.6**2 + 1, 6 * 0.9**2])
    after = run_tangent(by_hand, (2,), [x, np.zeros(2)], {"x": np.ones(2), "y": np.zeros(2)})
    assert np.allclose(after["y"], adjoints["x"])


def test_derivatives_by_hand_in_loops():
    values = [np.array([0.3, 0.9, 1.2]), np.zeros(3), 3]
    check(by_hand_in_a_loop, 3, *values)
    jvp_against_vjp(by_hand_in_a_loop, 3, values)


def test_derivatives_by_hand_are_checked():
    with pytest.raises(KernelError, match="cube has a derivative already: cube_grad"):
        func_grad(cube)(lambda x, c: c)
    with pytest.raises(NumbridgeTypeError, match=r"wanted a function decorated with @nb\.func"):
        func_grad(math.sin)

    @func
    def plain(x, y):
        return x * y

    with pytest.raises(KernelError, match="arguments and then one cotangent"):

        @func_grad(plain)
        def too_few(x, y):
            return x, y

    with pytest.raises(KernelError, match=r"may end here without a value; return one on every path\n.*\n *if x > 0"):

        @func_grad(plain)  # noqa: RET503 - what is refused
        def ends(x, y, c):
            if x > 0:
                return y * c, x * c

    with pytest.raises(KernelError, match="returns nothing here; return a value"):

        @func_grad(plain)
        def returns_nothing(x, y, c):
            if x > 0:
                return  # noqa: RET502 - what is refused
            return y * c, x * c

    @func_grad(plain)
    def returns_one(x, y, c):
        return c

    @kernel
    def uses(x, y):
        i = tid()
        y[i] = plain(x[i], 2.0)

    with pytest.raises(KernelUnsupportedError, match="must return one number for each of the 2 arguments"):
        adjoint_of(uses, [np.ones(2), np.ones(2)])


def test_tangents_of_differences():
    case = next(c for c in CASES if c[0].name == "in_place_nested")
    kernel_, dim, *values = case
    names = [p.name for p in kernel_.parameters]
    tangents = random_like(["y", "x"], dict(zip(names, values, strict=True)))
    after = run_tangent(kernel_, (dim,), values, tangents)
    for k in float_arrays(values):
        weight = {k: np.ones(values[k].shape)}
        gradients = differences(kernel_, (dim,), values, weight)
        expected = sum(float((gradients[m] * tangents[names[m]]).sum()) for m in gradients)
        assert math.isclose(after[names[k]].sum(), expected, rel_tol=1e-5, abs_tol=1e-6)


def test_program_text_is_deterministic():
    for case in CASES[:6]:
        texts = {program_text(program_of(case[0], case[2:]), "p") for _ in range(2)}
        assert len(texts) == 1
