"""Loops, and kernels, that leave arrays as they read them: which ones, what their reverse spares, and that gradients are right.

That an adjoint gives the same, to the last bit, where it is given arrays as the kernel has left them, `check` looks at itself.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import numbridge as nb
from adjoint_as_python import (
    adjoint_of,
    check,
    check_directions,
    copied,
    floats_of,
    function,
    measured_and_taken,
    over,
    program_of,
)
from numbridge.kernels.adjoint.activity import Activity, Needs
from numbridge.kernels.adjoint.ir import Loop, walk
from numbridge.kernels.adjoint.reverse import reverse
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from recurrence_programs import recurrence

ROWS, THREADS = 5, 2
random = np.random.default_rng(3)


def arrays(count):
    return [random.uniform(0.3, 1.2, (ROWS, THREADS)) for _ in range(count)]


def recurrence_of_order_one(x, y):
    i = tid()
    for k in range(1, y.shape[0]):
        y[k, i] = math.sin(y[k - 1, i]) * x[k, i]


def backwards(x, y):
    i = tid()
    for k in range(y.shape[0] - 2, -1, -1):
        y[k, i] = x[k, i] * y[k + 1, i] * y[k + 1, i]


def steps_of_time(x, y):
    i = tid()
    for t in range(1, y.shape[0]):
        for j in range(3):
            y[t, i] = y[t, i] + y[t - 1, i] * y[t - 1, i] * x[j, i]


def from_the_other_end(x, y):
    i = tid()
    n = y.shape[0]
    for k in range(n - 1):
        y[n - 2 - k, i] = math.exp(-y[n - 1 - k, i]) * x[k, i]


def even_from_odd(x, y):
    i = tid()
    for k in range(2):
        y[2 * k, i] = y[2 * k + 1, i] * y[2 * k + 1, i] * x[k, i]


def below_the_diagonal(x, y):
    """The trips of each inner loop read the row of the outer one, and store to those below."""
    i = tid()
    for j in range(y.shape[0]):
        for k in range(j + 1, y.shape[0]):
            y[k, i] = x[k, i] - y[j, i] * y[j, i]


def linear(x, y):
    """Nothing that is overwritten takes part in a derivative."""
    i = tid()
    for k in range(y.shape[0]):
        for j in range(y.shape[0] - 1):
            y[j, i] = 0.5 * y[j, i] + 0.25 * y[j + 1, i] + x[k, i]


def in_place(x, y):
    i = tid()
    for k in range(y.shape[0]):
        y[k, i] = y[k, i] * y[k, i] + x[k, i]


def again_and_again(x, y):
    i = tid()
    for k in range(y.shape[0]):
        y[0, i] = math.sin(y[0, i]) * x[k, i]


def from_the_end(x, y):
    """The first trip reads the last element, which the last trip stores."""
    i = tid()
    for k in range(y.shape[0]):
        y[k, i] = math.sin(y[k - 1, i]) * x[k, i]


def read_ahead(x, y):
    i = tid()
    for k in range(y.shape[0] - 1):
        y[k + 1, i] = y[k + 1, i] + x[k, i]
        y[k, i] = y[k + 1, i] * y[k + 1, i]


def by_turns(x, y):
    i = tid()
    for k in range(y.shape[0]):
        y[(k + 1) % 2, i] = y[k % 2, i] * y[k % 2, i] * x[k, i]


def under_the_diagonal_twice(x, y):
    """The outer loop reads what its later trips store again."""
    i = tid()
    for j in range(2):
        for k in range(1, y.shape[0]):
            y[k, i] = math.sin(y[k - 1, i]) * x[j, i]


SETTLED = {
    recurrence_of_order_one: "k",
    backwards: "k",
    steps_of_time: "t",
    from_the_other_end: "k",
    even_from_odd: "k",
    below_the_diagonal: "j",
    linear: "k",
    under_the_diagonal_twice: "k",
    in_place: "",
    again_and_again: "",
    from_the_end: "",
    read_ahead: "",
    by_turns: "",
}


def settled_loops(function, values):
    """Return the counters of the loops that leave `y` as their trips read it."""
    program = program_of(kernel(function), values)
    needs = Needs(Activity(program, ["x", "y"]))
    loops = [op for op in walk(program.body) if isinstance(op, Loop)]
    found = [
        op.index.name.rpartition("_")[0] for op in loops for array in needs.restored_after(op) if array.name == "y"
    ]
    return "".join(found)


@pytest.mark.parametrize("function", SETTLED, ids=lambda function: function.__name__)
def test_gradients(function):
    values = arrays(2)
    made = check(kernel(function), THREADS, *values)
    backwards = made.text[made.text.index(" - 1, -1, -1):") :] if made.stacks else ""
    # What runs again stores only what the same trip reads after that.
    repeated = [line for line in backwards.splitlines() if line.strip().startswith("y[")]
    assert bool(repeated) == (function in (read_ahead, under_the_diagonal_twice)), made.text


@pytest.mark.parametrize("function", [f for f in SETTLED if f is not linear], ids=lambda function: function.__name__)
def test_which_loops(function):
    assert settled_loops(function, arrays(2)) == SETTLED[function]


def test_what_nobody_reads_is_not_stored_again():
    made, _ = adjoint_of(kernel(linear), arrays(2))
    assert not made.stacks and not made.writes


def eliminated(x, y):
    """What later trips store to lies behind the row and the column that this one reads."""
    i = tid()
    n = y.shape[0]
    for j in range(n):
        for k in range(j + 1, n):
            for m in range(j + 1, n):
                y[k, m, i] = y[k, m, i] - y[k, j, i] * y[j, m, i] * x[k, i]


def test_gaussian_elimination():
    values = [random.uniform(0.3, 1.2, (4, THREADS)), random.uniform(0.3, 1.2, (4, 4, THREADS))]
    check(kernel(eliminated), THREADS, *values)
    assert settled_loops(eliminated, values) == "j"


def test_random_recurrences():
    """Against differences, run as Python; and that their stacks take what is counted on CUDA."""
    checked = with_stacks = settled = 0
    for number in range(240):
        found = recurrence(number, THREADS)
        if found is None:
            continue
        text, made, values = found
        check_directions(made, THREADS, *values)
        counts = measured_and_taken(made, THREADS, values)
        if counts is not None:
            assert counts[0] == counts[1], text
            with_stacks += 1
            needs = Needs(Activity(program_of(made, values), ["x", "y", "z"]))
            settled += any(isinstance(op, Loop) and needs.restored_after(op) for op in needs.survey.ops)
        checked += 1
    assert checked > 60 and with_stacks > 35 and settled > 18, (checked, with_stacks, settled)


def gradients_of(made, program, values):
    """Return what an adjoint makes of random cotangents, and whether arrays ended as they were."""
    normal = np.random.default_rng(8).normal
    adjoints = [normal(size=values[0].shape) for _ in made.arrays]
    run, given = function(made.text, made.name, program.namespace), copied(values)
    over((THREADS,), lambda *index: run(*index[: len(program.hidden)], *given, *adjoints))
    return adjoints, all(np.array_equal(one, other) for one, other in zip(given, values, strict=True))


def test_what_nobody_asks_for_afterwards_is_not_remembered():
    """Where arrays need not end as they were, gradients are the same, and recurrences have no stacks."""
    spared = changed = 0
    for number in range(200):
        found = recurrence(number, THREADS)
        if found is None:
            continue
        text, made, values = found
        ways = []
        for restores in (True, False):
            program = program_of(made, values)
            ways.append((reverse(program, floats_of(made, values), "adjoint", restores=restores), program, values))
        (one, is_restored), (other, is_kept) = (gradients_of(*way) for way in ways)
        assert is_restored and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)), text
        assert is_kept or ways[1][0].writes
        spared += ways[0][0].stacks > ways[1][0].stacks
        changed += not is_kept
    assert spared > 0 and changed > 6, (spared, changed)


@pytest.mark.parametrize("function", [recurrence_of_order_one, backwards, steps_of_time, below_the_diagonal])
def test_recurrences_without_stacks(function):
    values = arrays(2)
    made = reverse(program_of(kernel(function), values), ["x", "y"], "adjoint", restores=False)
    assert not made.stacks and "_nb_stack" not in made.text and made.writes == {"y"}


@pytest.mark.parametrize("function", SETTLED, ids=lambda function: function.__name__)
def test_which_arrays_may_be_given_as_they_were_left(function):
    made, _ = adjoint_of(kernel(function), arrays(2))
    is_left = SETTLED[function] and function not in (linear, under_the_diagonal_twice)
    assert made.lasting == ({"y"} if is_left else set())


def test_asking_which_arrays_last_changes_nothing():
    needs = Needs(Activity(program_of(kernel(backwards), arrays(2)), ["x", "y"]))
    found = [(needs.lasting(), needs.left, needs.snapshot, {*needs.values}, {*needs.replayed}) for _ in range(2)]
    assert found[0] == found[1] and found[0][0] == {"y"} and needs.snapshot


def stored_and_read(x, y, z):
    i = tid()
    y[0, i] = math.exp(x[0, i])
    z[0, i] = y[0, i] * y[0, i] * z[1, i]


def read_and_stored(x, y, z):
    i = tid()
    z[0, i] = y[0, i] * y[0, i]
    y[0, i] = x[0, i]


def both_of_one(x, y, z):
    """Of the old contents there is only a multiple."""
    i = tid()
    y[0, i] = 0.5 * y[0, i] + x[0, i]
    z[0, i] = z[0, i] + math.sin(y[0, i])


def stored_in_a_branch(x, y, z):
    i = tid()
    if x[0, i] > 0.7:
        y[0, i] = x[1, i]
    z[0, i] = y[0, i] * y[0, i]


def read_in_the_other_branch(x, y, z):
    """No thread does both, but that is not looked at."""
    i = tid()
    if x[0, i] > 0.7:
        z[0, i] = y[0, i] * y[0, i]
    else:
        y[0, i] = x[1, i]


def chosen_by_what_changes(x, y, z):
    i = tid()
    if y[0, i] > 0.7:
        z[0, i] = x[0, i] * x[0, i]
    y[0, i] = x[1, i]


def chosen_by_what_changed(x, y, z):
    i = tid()
    y[0, i] = x[1, i]
    if y[0, i] > 0.7:
        z[0, i] = x[0, i] * x[0, i]


def of_a_neighbour(x, y, z):
    """Who stores y[1, i] to thread i - 1's place may come before or after it."""
    i = tid()
    y[0, i] = x[0, i]
    z[0, i] = y[1, (i + 1) % 2] * y[1, (i + 1) % 2]


def rows_of_others(x, y, z):
    """Each thread has a column of y, but reads a row of what others store to."""
    i = tid()
    y[i, 0] = x[0, i]
    z[0, i] = y[0, i] * y[0, i]


def by_an_unknown_index(x, y, z):
    i = tid()
    j = int(x[0, i] * 2.0)
    y[j, i] = x[1, i]
    z[0, i] = y[0, i] * y[0, i]
    y[j + 1, i] = x[2, i]


def a_loop_after_another(x, y, z):
    i = tid()
    for k in range(y.shape[0]):
        y[k, i] = math.sin(x[k, i])
    for k in range(y.shape[0]):
        z[k, i] = y[k, i] * y[k, i]


def a_loop_before_another(x, y, z):
    i = tid()
    for k in range(y.shape[0]):
        z[k, i] = y[k, i] * y[k, i]
    for k in range(y.shape[0]):
        y[k, i] = math.sin(x[k, i])


def atomically(x, y, z):
    i = tid()
    nb.atomic_add(y, (0, i), x[0, i])
    z[0, i] = z[1, i] * x[1, i]


ONCE = {
    stored_and_read: "yz",
    read_and_stored: "",
    both_of_one: "y",
    stored_in_a_branch: "y",
    read_in_the_other_branch: "",
    chosen_by_what_changes: "",
    chosen_by_what_changed: "y",
    of_a_neighbour: "",
    rows_of_others: "",
    by_an_unknown_index: "",
    a_loop_after_another: "y",
    a_loop_before_another: "",
    atomically: "z",
}


@pytest.mark.parametrize("function", ONCE, ids=lambda function: function.__name__)
def test_arrays_that_a_kernel_leaves_as_it_reads_them(function):
    made = kernel(function)
    given, _ = adjoint_of(made, arrays(3))
    assert given.lasting == set(ONCE[function]), given.text
    if function not in (of_a_neighbour, rows_of_others):  # of which differences depend on who comes first
        check(made, THREADS, *arrays(3))


@pytest.mark.parametrize("function", [read_and_stored, a_loop_before_another, by_an_unknown_index])
def test_what_is_stored_after_it_was_read_cannot_be_taken_as_it_was_left(function):
    with pytest.raises(nb.KernelUnsupportedError, match="'y' here, after it has read it"):
        adjoint_of(kernel(function), arrays(3), left=["y"])


def cumulated(x, y, n):
    i, j = tid()
    k = i + j
    for t in range(1, n):
        y[t, k] = math.sin(y[t - 1, k]) * x[t, k] + y[t - 1, k]
    for t in range(n - 2, -1, -1):
        y[t, k] = y[t, k] * x[t, k] - y[t + 1, k]


def in_some_threads(x, y, n):
    i, j = tid()
    k = i + j
    if x[0, k] > 0.0:
        for t in range(1, n):
            y[t, k] = math.sin(y[t - 1, k]) * x[t, k]
            if x[t, k] > 0.3:
                y[t, k] = y[t, k] * y[t, k]
    y[0, k] = y[0, k] * y[n - 1, k]


def twice_in_place(x, y, n):
    i, j = tid()
    k = i + j
    for s in range(3):
        for t in range(n):
            y[t, k] = math.sin(y[t, k] * x[s, k]) + 0.5 * math.cos(y[t - 1, k])


@pytest.mark.parametrize("function", [cumulated, in_some_threads, twice_in_place], ids=lambda f: f.__name__)
@pytest.mark.parametrize("threads", [5, 16, 37])
def test_threads_that_run_together_have_one_stack(function, threads):
    from lane_checks import gradients

    made = nb.kernel(function)
    values = [*(np.random.default_rng(threads).uniform(-1, 1, (ROWS, threads)) for _ in range(2)), ROWS]
    together, alone = (gradients(made, values, dims) for dims in ((1, threads), (threads, 1)))
    for one, other in zip(together, alone, strict=True):
        assert np.allclose(one, other, rtol=1e-12, atol=1e-12)
    assert "_nb_lanes_" in made.adjoint(["x", "y"]).explain(*values, *together).source
