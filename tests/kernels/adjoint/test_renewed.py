"""Scratch memory that each trip of a loop fills: what of it is kept for the way back, and that gradients are right either way."""

# ruff: noqa: B007 - kernels as users write them, with loop variables that nothing reads

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from numba import cuda, float64

from adjoint_as_python import (
    check_directions,
    copied,
    float_arrays,
    floats_of,
    function,
    measured_and_taken,
    over,
    program_of,
)
from adjoint_programs import ScratchWriter, arguments, declared
from block_gradient_cases import attended, matmul, rows_with_halo, twice_a_trip, two_halves_in_turn
from numbridge.kernels.adjoint import activity
from numbridge.kernels.adjoint.build import build
from numbridge.kernels.adjoint.ir import Load, Store
from numbridge.kernels.adjoint.renewed import Renewed
from numbridge.kernels.adjoint.reverse import reverse
from numbridge.kernels.adjoint.settled import Settled
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.language.rewriting import rewrite
from numbridge.kernels.parameter_types import ArrayType, ScalarType
from numbridge.kernels.scalars import scalar_of

N = 4


def filled_whole(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for k in range(n):
        for j in range(N):
            c[j] = math.sin(x[j] + total)
        for j in range(N):
            total += c[j] * c[N - 1 - j]
    y[i] = total


def filled_in_part(x, y, n):
    """The first n, of which the rest never takes part."""
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for k in range(5):
        for j in range(n):
            c[j] = math.sin(x[j] + total)
        for j in range(n):
            total += c[j] * c[n - 1 - j]
    y[i] = total


def filled_by_name(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for k in range(n):
        c[0] = math.sin(total)
        c[1] = c[0] * x[k % N]
        total += c[0] * c[1]
    y[i] = total


def filled_on_both_sides(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for k in range(n):
        if total > 0.6:
            for j in range(N):
                c[j] = math.sin(x[j] + total)
        else:
            for j in range(N):
                c[j] = math.cos(x[j] * total)
        for j in range(N):
            total += 0.3 * c[j] * c[N - 1 - j]
    y[i] = total


def filled_on_both_sides_of_each_element(x, y, n):
    i = tid()
    c = cuda.local.array((N, N), float64)
    total = 0.3
    for k in range(n):
        for j in range(N):
            if x[j] * total > 0.3:
                for m in range(N):
                    c[j, m] = math.sin(x[j] + total)
            else:
                for m in range(N):
                    c[j, m] = x[m] * total
        for j in range(N):
            total += 0.1 * c[j, (j + k) % N] * c[1, j]
    y[i] = total


def filled_where_a_condition_held_before(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    c[3] = 0.5
    total = 0.3
    for k in range(n):
        if i > 0:
            c[3] = math.sin(total)
        for j in range(3):
            c[j] = math.sin(x[j] + total)
        for j in range(N):
            total += 0.3 * c[j] * c[N - 1 - j]
    y[i] = total


def filled_before(x, y, n):
    """By a loop that reads nothing, for loops that store nothing."""
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = math.sin(x[j])
    total = 0.3
    for k in range(n):
        total += math.sin(c[k % N] * total)
    for k in range(n):
        total *= 1.0 + 0.1 * c[k % N]
    y[i] = total


def filled_by_two_loops(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for k in range(n):
        for j in range(N):
            c[j] = math.sin(x[j] + total)
        total += c[0] * c[k % N]
    for k in range(n):
        for j in range(N):
            c[j] = x[j] * total
        total += c[1] * c[k % N] * 0.1
    y[i] = total


def changed_in_the_trip(x, y, n):
    """Filled, then changed in place more than once, between which it is read."""
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for k in range(n):
        for j in range(N):
            c[j] = math.sin(x[j] + total)
        for j in range(N):
            total += c[j] * c[N - 1 - j] * 0.2
        for j in range(N):
            c[j] = math.cos(c[j] * c[N - 1 - j])
        for j in range(N):
            total += c[j] * c[(j + k) % N] * 0.2
    y[i] = total


def read_under_a_branch(x, y, n):
    """What the branch reads, it may read again after the second filling."""
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for k in range(n):
        for j in range(N):
            c[j] = math.sin(x[j] + k)
        if x[k % N] > 0.5:
            total += math.sin(c[1])
        for j in range(N):
            c[j] = math.cos(x[j] * k)
        total += c[0] * c[k % N]
    y[i] = total


CHANGED = (changed_in_the_trip, read_under_a_branch)


def read_after_the_loop(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for j in range(N):
        c[j] = 0.0
    for k in range(n):
        for j in range(N):
            c[j] = math.sin(x[j] + total)
        total += c[0] * c[k % N]
    y[i] = total * c[2] * math.sin(c[1])


@func
def norm(x, start):
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = math.sin(x[j] * start)
    total = 0.1
    for j in range(N):
        total += c[j] * c[j]
    return total


def within_a_function(x, y, n):
    i = tid()
    total = 0.3
    for k in range(n):
        total = norm(x, total)
    y[i] = total


FILLED = (
    filled_whole,
    filled_in_part,
    filled_by_name,
    filled_on_both_sides,
    filled_on_both_sides_of_each_element,
    filled_where_a_condition_held_before,
    filled_before,
    filled_by_two_loops,
    read_after_the_loop,
    within_a_function,
)


def in_turn(x, y, n):
    """Each trip reads what the one before stored."""
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = x[j]
    total = 0.3
    for k in range(n):
        c[k % N] = math.sin(total)
        total += c[(k + 1) % N] * c[k % N]
    y[i] = total


def more_each_time(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = x[j]
    total = 0.3
    for k in range(n):
        for j in range(k % N):
            c[j] = math.sin(total + x[j])
        for j in range(N):
            total += 0.3 * c[j] * c[N - 1 - j]
    y[i] = total


def read_first(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = x[j]
    total = 0.3
    for k in range(n):
        total += math.sin(c[k % N] * total)
        for j in range(N):
            c[j] = math.sin(total + x[j])
    y[i] = total


def read_while_it_is_filled(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = x[j]
    total = 0.3
    for k in range(n):
        for j in range(N):
            c[j] = math.sin(total * c[(j + 1) % N])
        for j in range(N):
            total += 0.3 * c[j] * c[j]
    y[i] = total


def on_a_condition(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = x[j]
    total = 0.3
    for k in range(n):
        if total * (k % 3) > 0.6:
            for j in range(N):
                c[j] = math.sin(total + x[j])
        for j in range(N):
            total += 0.3 * c[j] * c[N - 1 - j]
    y[i] = total


def on_a_condition_of_the_element(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = x[j]
    total = 0.3
    for k in range(n):
        for j in range(N):
            if (j + k) % 3 > 0:
                c[j] = math.sin(total + x[j])
        for j in range(N):
            total += 0.3 * c[j] * c[N - 1 - j]
    y[i] = total


def anywhere(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = x[j]
    total = 0.3
    for k in range(n):
        for j in range(N):
            c[(j * j + k) % N] = math.sin(total + x[j])
        total += 0.3 * c[1] * c[2]
    y[i] = total


def by_loops_of_which_one_fills_less(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    total = 0.3
    for k in range(n):
        for j in range(N):
            c[j] = math.sin(x[j] + total)
        total += c[0] * c[k % N]
    for k in range(n):
        for j in range(2):
            c[j] = x[j] * total
        total += c[1] * c[k % N] * 0.1
    y[i] = total


def diagonal(x, y, n):
    """The first trip's diagonal is all that the second loop finds filled of it."""
    i = tid()
    c = cuda.local.array((N, N), float64)
    for j in range(N):
        for m in range(N):
            c[j, m] = x[j] * x[m]
    total = 0.3
    for k in range(n):
        for j in range(N):
            c[j, j] = math.sin(x[j] + total)
        for j in range(N):
            c[j, (j + k) % N] += total
        for j in range(N):
            total += 0.1 * c[j, (j + 1) % N] * c[j, j]
    y[i] = total


def under_a_branch_before_it_changes(x, y, n):
    """What the branch reads may be read on the way back only, when later stores have changed it."""
    i = tid()
    c = cuda.local.array(N, float64)
    for j in range(N):
        c[j] = math.sin(x[j])
    total = 0.3
    if x[0] > 0:
        total = math.sin(c[1] * total)
    for k in range(n):
        for j in range(N):
            c[j] = math.cos(x[j] * total)
        total += 0.2 * c[0] * c[k % N]
    y[i] = total


def in_a_loop_that_may_not_run(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    c[0] = 0.4
    total = 0.3
    for k in range(6):
        for m in range(n - 1):
            c[0] = math.sin(total + m)
        total += c[0] * x[k % N]
        c[0] = math.cos(total)
    y[i] = total


def where_a_condition_may_never_hold(x, y, n):
    i = tid()
    c = cuda.local.array(N, float64)
    c[0] = 0.4
    total = 0.3
    for k in range(6):
        if n > 2:
            c[0] = math.sin(total)
        total += c[0] * x[k % N]
        c[0] = math.cos(total)
    y[i] = total


def by_sides_that_are_mirrored(x, y, n):
    """Both sides store to the same elements over all trips of the loops around them, but not what the other leaves out."""
    i = tid()
    c = cuda.local.array((N, N), float64)
    for j in range(N):
        for m in range(N):
            c[j, m] = x[j] * x[m]
    total = 0.3
    for k in range(n):
        for j in range(N):
            for m in range(N):
                if j > m:
                    c[j, m] = math.sin(total + x[j])
                else:
                    c[m, j] = math.cos(total * x[m])
        total += math.sin(c[0, 1] * total)
        c[0, 1] = math.sin(total)
    y[i] = total


def by_rows_or_columns(x, y, n):
    i = tid()
    c = cuda.local.array((N, N), float64)
    for j in range(N):
        for m in range(N):
            c[j, m] = x[j] * x[m]
    total = 0.3
    for k in range(n):
        for j in range(N):
            if j > 1:
                for m in range(N):
                    c[j, m] = math.sin(total + x[j])
            else:
                for m in range(N):
                    c[m, j] = math.cos(total * x[m])
        total += math.sin(c[0, 2] * total)
        c[0, 2] = math.sin(total)
    y[i] = total


NOT_FILLED = (
    by_sides_that_are_mirrored,
    by_rows_or_columns,
    in_a_loop_that_may_not_run,
    where_a_condition_may_never_hold,
    in_turn,
    more_each_time,
    read_first,
    read_while_it_is_filled,
    on_a_condition,
    on_a_condition_of_the_element,
    anywhere,
    by_loops_of_which_one_fills_less,
    diagonal,
    under_a_branch_before_it_changes,
)


def values(n):
    return np.random.default_rng(n).uniform(0.2, 1.2, N), np.zeros(2), n


def every_array(survey):
    return {op.array for op in survey.ops if isinstance(op, Load | Store)}


def made_with(slots, written, given, *, renewed=True, monkeypatch=None):
    """Return an adjoint, and the gradients that it gives for random cotangents."""
    program = program_of(written, given)
    with monkeypatch.context() as patch:
        if not renewed:
            patch.setattr(activity, "Renewed", lambda survey, arrays: Renewed(survey, ()))
            # Nor is anything found where the trips of a recurrence left it.
            patch.setattr(
                activity, "Settled", lambda program, survey, arrays: Settled(program, survey, every_array(survey))
            )
        made = reverse(program, floats_of(written, given), "adjoint", slots=slots)
    run = function(made.text, made.name, program.namespace)
    names = [p.name for p in written.parameters]
    normal = np.random.default_rng(3).normal
    found = {names[k]: normal(size=given[k].shape) for k in float_arrays(given)}
    arrays = copied(given)
    results = over(
        (2,), lambda i: run(*(i, *arrays)[: len(program.hidden) + len(arrays)], *(found[a] for a in made.arrays))
    )
    for one, other in zip(arrays, given, strict=True):
        assert np.array_equal(one, other, equal_nan=True)
    return made, [*found.values(), np.sum(results, axis=0) if made.scalars else np.zeros(0)]


@pytest.mark.parametrize("n", [0, 1, 3, 7, 12])
@pytest.mark.parametrize("written", [*FILLED, *CHANGED, *NOT_FILLED], ids=lambda f: f.__name__)
def test_gradients_are_differences(monkeypatch, written, n):
    n = n % (N + 1) if written is filled_in_part else n
    check_directions(kernel(written), 2, *values(n))
    whole = made_with(1024, kernel(written), values(n), monkeypatch=monkeypatch)[1]
    for one, other in zip(made_with(2, kernel(written), values(n), monkeypatch=monkeypatch)[1], whole, strict=True):
        assert np.allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("written", FILLED, ids=lambda f: f.__name__)
def test_what_is_filled_first_is_not_kept(monkeypatch, written):
    made, _ = made_with(1024, kernel(written), values(3), monkeypatch=monkeypatch)
    assert made.stacks == 0, made.text


@pytest.mark.parametrize("written", [*CHANGED, *NOT_FILLED], ids=lambda f: f.__name__)
def test_the_rest_is_kept(monkeypatch, written):
    made, _ = made_with(1024, kernel(written), values(3), monkeypatch=monkeypatch)
    assert made.stacks > 0, made.text


def vector(name, rank=1):
    return ArrayType(name, scalar_of(np.dtype("float64")), rank, True, True)


def test_shared_memory_that_is_filled_first_is_not_kept():
    def stacks(written, *types):
        types = [ScalarType(kind, scalar_of(np.dtype("int64"))) if kind == "n" else vector(*kind) for kind in types]
        program = build(rewrite(written.source, "float64", gradients=True), types)
        return reverse(program, [p.name for p in program.parameters if p.name != "n"], "adjoint").stacks

    assert stacks(matmul, ("a", 2), ("b", 2), ("c", 2)) == 0
    assert stacks(attended, ("query",), ("keys",), ("values",), ("out",)) == 0
    assert stacks(rows_with_halo, ("x", 2), ("y", 2)) == 0
    assert stacks(twice_a_trip, ("x",), ("y",), "n") == 0
    assert stacks(two_halves_in_turn, ("x",), ("y",), "n") > 0


def test_what_changes_within_a_trip_is_kept_for_that_trip():
    few, many = (measured_and_taken(kernel(changed_in_the_trip), 1, values(n))[0] for n in (2, 30))
    assert few == many


def test_forward_sweeps_do_not_fill_what_they_do_not_read(monkeypatch):
    def linear(x, w, y):
        i = tid()
        c = cuda.local.array(N, float64)
        total = 0.0
        for k in range(x.shape[0]):
            for j in range(N):
                c[j] = math.sin(x[k] * w[j])
            for j in range(N):
                total += c[j] * w[N - 1 - j]
        y[i] = total

    given = (np.linspace(0.1, 0.9, 7), np.linspace(0.4, 1.0, N), np.zeros(2))
    check_directions(kernel(linear), 2, *given)
    made, _ = made_with(1024, kernel(linear), given, monkeypatch=monkeypatch)
    # Once to get what the trip read of the array, and once for the derivative.
    assert made.text.count("math.sin") == 1 and made.text.count("math.cos") == 1, made.text


def test_random_programs(monkeypatch):
    fewer = 0
    for number in range(60):
        choices = random.Random(number)
        written, given = declared(ScratchWriter(choices.randrange).program()), arguments(number)
        with np.errstate(over="ignore", invalid="ignore"):
            kept, expected = made_with(1024, written, given, renewed=False, monkeypatch=monkeypatch)
            for slots in (1024, 2):
                made, found = made_with(slots, written, given, monkeypatch=monkeypatch)
                for one, other in zip(found, expected, strict=True):
                    assert np.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True), made.text
        fewer += made.stacks < kept.stacks
    assert fewer > 6, fewer


def test_stacks_of_random_programs_are_counted_exactly():
    with_stacks = 0
    for number in range(50):
        choices = random.Random(number)
        written, given = declared(ScratchWriter(choices.randrange).program()), arguments(number)
        with np.errstate(over="ignore", invalid="ignore"):
            found = measured_and_taken(written, 2, given)
        if found is not None:
            counted, taken, counting = found
            assert counted == taken, counting.text
            with_stacks += 1
    assert with_stacks > 30, with_stacks
