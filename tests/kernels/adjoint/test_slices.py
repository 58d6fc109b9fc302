"""Slices and loops over elements in kernels that are differentiated: what they select is what Python selects.

NUMBRIDGE_COMPILED_SLICES is how many random kernels are compiled, and may be followed by a comma and the first one's number.
"""

from __future__ import annotations

import os
import random as standard_random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adjoint_as_python import check, oracle, replay, run_adjoint
from adjoint_cases import name_of
from adjoint_programs import declared
from adjoint_row_cases import ROWS
from adjoint_slice_cases import SLICES
from adjoint_slice_programs import SliceWriter
from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch

PROGRAMS = int(os.environ.get("NUMBRIDGE_ADJOINT_PROGRAMS", "70"))
COUNT, FIRST = map(int, [*os.environ.get("NUMBRIDGE_COMPILED_SLICES", "2").split(","), "0"][:2])


def random_program(random, seed, **how):
    writer = SliceWriter(random.randrange, **how)
    text = writer.program()
    return text, declared(text), writer.arguments(seed)


@settings(
    max_examples=PROGRAMS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(st.randoms(use_true_random=False), st.integers(0, 1000))
def test_random_programs_with_slices(random, seed):
    text, kernel, values = random_program(random, seed)
    copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    replay(kernel, (1,), copies)
    for got, wanted in zip(copies, oracle(kernel, (1,), values), strict=True):
        assert np.array_equal(got, wanted), text
    check(kernel, 1, *values)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [*SLICES, *ROWS], ids=name_of)
def test_the_kernels_themselves_compile(case):
    base, dim, *values = case
    given = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    launch(base, dim, given)
    for got, wanted in zip(given, oracle(base, (dim,), values), strict=True):
        assert np.allclose(got, wanted, rtol=1e-13)
    assert ".visible .entry" in base.ptx(*given, capability=(9, 0))


@pytest.mark.parametrize("number", range(FIRST, FIRST + COUNT))
def test_compiled_random_slices(number):
    """The compiled kernel against plain Python, and its compiled adjoint against the same text run as Python."""
    text, base, values = random_program(standard_random.Random(number), number)
    copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    launch(base, 1, copies)
    for got, wanted in zip(copies, oracle(base, (1,), values), strict=True):
        assert np.allclose(got, wanted, rtol=1e-13), text
    cotangents = {name: np.random.default_rng(1).normal(size=values[k].shape) for k, name in enumerate("xyz")}
    wanted = {name: value.copy() for name, value in cotangents.items()}
    run_adjoint(base, (1,), values, wanted)
    base.adjoint(["x", "y", "z"]).forall(1)(*values, *cotangents.values())
    for name, got in cotangents.items():
        assert np.allclose(got, wanted[name], rtol=1e-9, atol=1e-12), text


@kernel
def chosen_at_run_time(x, y, a, b, c, d, e):
    i = tid()
    part = x[i, a:b:c][d:e]
    y[i, 0] = part.size
    for k in range(len(part)):
        y[i, k + 1] = part[k] * part[k - len(part)] + y[i, k + 1]


def bounds(random):
    step = int(random.choice([-3, -2, -1, 1, 2, 4]))
    return [int(random.integers(-9, 10)) for _ in range(2)], step, [int(random.integers(-9, 10)) for _ in range(2)]


def test_compiled_slices_are_those_of_numpy():
    """One compiled kernel, its adjoint and its tangent, for many slices of arrays of many sizes."""
    random = np.random.default_rng(5)
    adjoint, tangent = (getattr(chosen_at_run_time, mode)(["x", "y"]) for mode in ("adjoint", "tangent"))
    lengths = set()
    for _ in range(400):
        (a, b), c, (d, e) = bounds(random)
        x, y = random.normal(size=(2, random.integers(0, 7))), random.normal(size=(2, 8))
        places = np.arange(x.shape[1])[a:b:c][d:e]
        lengths.add(places.size)
        chosen, after = slice(1, 1 + places.size), y.copy()
        after[:, 0] = places.size
        after[:, chosen] += x[:, places] ** 2

        given = y.copy()
        launch(chosen_at_run_time, 2, [x, given, a, b, c, d, e])
        assert np.allclose(given, after, rtol=1e-14)

        by_x, by_y = random.normal(size=x.shape), random.normal(size=y.shape)
        wanted, rest = by_x.copy(), by_y.copy()
        wanted[:, places] += 2 * x[:, places] * by_y[:, chosen]
        rest[:, 0] = 0
        adjoint.forall(2)(x, y.copy(), a, b, c, d, e, by_x, by_y)
        assert np.allclose(by_x, wanted, rtol=1e-14) and np.allclose(by_y, rest, rtol=1e-14)

        by_x, by_y = random.normal(size=x.shape), random.normal(size=y.shape)
        moved = by_y.copy()
        moved[:, 0] = 0
        moved[:, chosen] += 2 * x[:, places] * by_x[:, places]
        tangent.forall(2)(x, y.copy(), a, b, c, d, e, by_x, by_y)
        assert np.allclose(by_y, moved, rtol=1e-14)
    assert lengths >= set(range(5))


def test_a_step_of_zero_ends_the_kernel_and_its_derivatives():
    x, y = np.ones((2, 3)), np.ones((2, 8))
    given = [x, y, 0, 2, 0, 0, 1]
    for run in (chosen_at_run_time, chosen_at_run_time.adjoint(["x", "y"]), chosen_at_run_time.tangent(["x", "y"])):
        more = [] if run is chosen_at_run_time else [np.ones((2, 3)), np.ones((2, 8))]
        with pytest.raises(
            KernelError, match=r"raised an exception in one of its threads.*a slice with a step of zero"
        ):
            run.forall(2)(*given, *more)
