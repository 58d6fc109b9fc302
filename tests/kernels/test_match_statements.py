"""`match` statements in kernels: the case that runs is Python's, on both targets, and gradients follow it."""

from __future__ import annotations

import enum

import numpy as np
import pytest

import numbridge as nb
from emulated_cuda import on_both
from kernel_as_python import run_threads


class Kind(enum.IntEnum):
    FIXED = 0
    FREE = 1
    DRIVEN = -2


class Level:
    LOW = 0.5


def of_constants(k, x, y):
    i = nb.tid()
    match k[i]:
        case 0:
            y[i] = x[i]
        case 1 | 2:
            y[i] = 2.0 * x[i]
        case -2:
            y[i] = x[i] * x[i]
        case _:
            y[i] = -x[i]


def of_members(k, x, y):
    i = nb.tid()
    match k[i]:
        case Kind.FIXED:
            return
        case Kind.FREE | Kind.DRIVEN if x[i] > 0.0:
            y[i] = x[i] ** 3
        case Kind.FREE:
            y[i] = 1.0


def with_names(k, x, y):
    i = nb.tid()
    match k[i] + 1:
        case n if n > 2:
            y[i] = x[i] * n
        case 1 | 2 as one:
            y[i] = x[i] + one
        case other:
            y[i] = other * x[i] * x[i]


def with_names_that_stay(k, x, y):
    i = nb.tid()
    n = 7
    match k[i]:
        case n if n > 1:
            y[i] = x[i]
        case 5:
            y[i] = 3.0
    y[i] += n * x[i]


def of_tuples(k, x, y):
    i = nb.tid()
    match k[i], x[i] > 0.0:
        case (0, _):
            y[i] = 1.0
        case (1 | 2, 1):
            y[i] = 2.0 * x[i]
        case (n, 0) if n != 1:
            y[i] = 9.0
        case (_, _):
            y[i] = 3.0 * x[i]


def of_pairs(k, x, y):
    i = nb.tid()
    match k[i], k[0]:
        case (0, _):
            y[i] = 1.0
        case (1 | 2, 0) | (-2, _):
            y[i] = 2.0 * x[i]
        case (n, m):
            y[i] = n * x[i] + m


def that_change_what_is_matched(k, x, y):
    i = nb.tid()
    a, b, more = k[i], 2, 9
    match a, b:
        case (c, a) if c > 1:
            y[i] = x[i] * c
        case (1, n):
            y[i] = n * x[i]
        case (b, a):
            y[i] = (10 * a + b) * x[i]
    match a:
        case n if (a := more) < n:
            y[i] = 0.0
        case 2:
            y[i] += 100.0 * x[i]


def within_loops_and_each_other(k, x, y):
    i = nb.tid()
    matched = 0.0
    for step in range(5):
        match step:
            case 1:
                continue
            case 4:
                break
            case _:
                match k[i] * step:
                    case 0:
                        matched += x[i]
                    case 2:
                        matched += 2.0 * x[i]
    match x[i] - Level.LOW:
        case 0.0:
            matched = 100.0
    y[i] = matched


FUNCTIONS = [of_constants, of_members, with_names, with_names_that_stay, of_pairs, within_loops_and_each_other]
FUNCTIONS.append(that_change_what_is_matched)


def by_python(function, k, x):
    y = np.zeros(len(x))
    run_threads(function, len(x), k, x, y)
    return y


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_cases_are_those_of_python(function):
    random = np.random.default_rng(2)
    k = np.array([0, 1, 2, -2, 3, 0, 1, 2, -2, 5])
    x, weights, kernel = random.normal(size=10), random.normal(size=10), nb.kernel(function)
    x[1] = 0.5
    wanted = by_python(function, k, x)
    for made in on_both(kernel, 10, [k, x, np.zeros(10)]):
        np.testing.assert_allclose(made, wanted, rtol=1e-14)
    seeds = [None, np.zeros(10), weights.copy()]
    nb.launch(kernel, 10, [k, x, np.zeros(10)], adj_inputs=seeds, adjoint=True)
    near = x + np.where(x == 0.5, 0, 1e-6), x - np.where(x == 0.5, 0, 1e-6)
    slopes = weights * (by_python(function, k, near[0]) - by_python(function, k, near[1])) / 2e-6
    np.testing.assert_allclose(np.where(x == 0.5, 0, seeds[1]), slopes, rtol=1e-6, atol=1e-8)


@nb.kernel
def of_what_may_be_missing(mask, y):
    i = nb.tid()
    match mask:
        case None:
            y[i] = 1.0
        case _:
            y[i] = mask[i]


def test_arguments_that_are_none():
    y = np.zeros(3)
    nb.launch(of_what_may_be_missing, 3, [None, y])
    assert np.array_equal(y, [1, 1, 1])
    nb.launch(of_what_may_be_missing, 3, [np.arange(3.0), y])
    assert np.array_equal(y, [0, 1, 2])


@nb.func
def sign_of(a):
    match a > 0.0, a < 0.0:
        case (above, below):
            return 1.0 if above else -1.0 if below else 0.0


@nb.kernel
def of_functions(x, y):
    y[nb.tid()] = sign_of(x[nb.tid()])


def test_functions_return_in_cases():
    x = np.array([2.0, 0.0, -3.0])
    for made in on_both(of_functions, 3, [x, np.zeros(3)]):
        assert np.array_equal(made, np.sign(x))


def of_a_class(k, x, y):
    match k[0]:
        case int():
            y[0] = 1.0


def of_a_mapping(k, x, y):
    match k[0]:
        case {"a": 1}:
            y[0] = 1.0


def of_a_star(k, x, y):
    match k[0], k[1]:
        case (1, *_):
            y[0] = 1.0


def of_truth(k, x, y):
    match k[0]:
        case True:
            y[0] = 1.0


def of_another_length(k, x, y):
    match k[0], k[1]:
        case (1, 2, 3):
            y[0] = 1.0


def of_a_whole_tuple(k, x, y):
    match k[0], k[1]:
        case both:
            y[0] = both[0]


@pytest.mark.parametrize(
    "function",
    [of_a_class, of_a_mapping, of_a_star, of_another_length, of_a_whole_tuple],
    ids=lambda function: function.__name__,
)
def test_patterns_that_kernels_do_not_have(function):
    with pytest.raises(
        nb.KernelError, match=r"^patterns in a kernel are constants, .*; write it with if and elif\n  .*\n +case "
    ):
        nb.kernel(function)


def test_a_name_and_a_condition():
    with pytest.raises(
        nb.KernelError, match=r"a name is given to part of .*; write it with if and elif\n  .*\n +case "
    ):
        nb.kernel(of_tuples)


def test_truth_is_no_pattern():
    with pytest.raises(
        nb.KernelError, match=r"^True and False as patterns fit .*; write 1 and 0, or if and else\n  .*\n +case "
    ):
        nb.kernel(of_truth)
