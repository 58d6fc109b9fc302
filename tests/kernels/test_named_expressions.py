"""`:=` in kernels: what it keeps and what it gives are Python's, on both targets, and gradients follow it."""

from __future__ import annotations

import numpy as np
import pytest

import numbridge as nb
from kernel_as_python import check_threads


def in_conditions(x, y):
    i = nb.tid()
    if (v := x[i, 0]) > 0.5:
        y[i] = v * v
    elif (w := v + x[i, 1]) > 0.0:
        y[i] = w * v
    else:
        y[i] = v - w


def in_a_loop(x, y):
    i = nb.tid()
    total, s = 0.0, abs(x[i, 0]) + 1.0
    while (t := s * 0.5) > 0.1:
        s = t
        if (n := int(t * 10)) % 2 == 1:
            continue
        if n > 8 and t > 0.9:
            break
        total += t * n
    y[i] = total + s + t


def in_a_loop_with_an_end(x, y):
    i = nb.tid()
    s, n = x[i, 0], 0
    while (t := s) < 4.0:
        s = t * t + 1.0
        n += 1
        if n > 3:
            break
    else:
        s += n
    y[i] = s * t


def in_values(x, y):
    i = nb.tid()
    y[i] = (a := x[i, 0] * 2.0) + (b := a * x[i, 1]) * a + b
    y[i] += (c := a * b)
    d = e = (f := c + 1.0)
    y[i] *= d + e + f


def in_calls_and_indices(x, y):
    i = nb.tid()
    y[i] = max(u := x[i, 0], 0.25) * u + x[i, (k := int(x[i, 1] > 0.0) + 1)] * k


def in_parts(x, y):
    i = nb.tid()
    p, q = (r := x[i, 0] + 1.0), x[i, 1] * r
    y[i] = (r if (s := p * q) > 0.0 else q) * s
    for k in range(n := 1 + int(s > 0.0)):
        y[i] += k * n


def that_a_function_reads(x, y):
    i = nb.tid()
    s = 5.0

    def shifted(a):
        return a + s

    y[i] = shifted(s := x[i, 0]) * shifted(1.0)


@nb.func
def halved(a):
    return 0.5 * a


def of_functions(x, y):
    i = nb.tid()
    k = 0
    while (k := k + 1) < 4:
        if (v := halved(x[i, k % 3])) > 0.0:
            y[i] += v * halved(v)


def that_comes_first(x, y):
    i = nb.tid()
    v = 2.0
    y[i] = (v := x[i, 0] + 1.0) * v + v


FUNCTIONS = [
    *(
        in_conditions,
        in_a_loop,
        in_a_loop_with_an_end,
        in_values,
        in_calls_and_indices,
        in_parts,
        that_a_function_reads,
        of_functions,
        that_comes_first,
    ),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_is_assigned_within_an_expression(function):
    random = np.random.default_rng(4)
    check_threads(function, random.normal(size=(8, 3)), random.normal(size=8), halved=halved.function)


def on_some_ways(x, y):
    y[0] = x[0, 0] > 0.0 and (v := x[0, 1] * 2.0) > v


def after_it_is_read(x, y):
    v = 1.0
    y[0] = v + (v := x[0, 1] * 2.0)


def after_something_that_acts(x, y):
    y[0] = nb.atomic_add(y, 0, 1.0) + (v := nb.atomic_add(y, 0, 2.0)) * v


def after_a_function_has_read_it(x, y):
    s = 5.0
    y[0] = (lambda a: a + s)(1.0) + (s := x[0, 0] * 2.0)


def in_a_loop_that_ends_another(x, y):
    for _ in range(3):
        while (v := x[0, 1] * 2.0) > 1.0:
            x[0, 1] -= v
            if v > 3.0:
                break
        else:
            break


def in_a_chain(x, y):
    y[0] = 0.0 < x[0, 0] < (v := x[0, 1] * 2.0) < v


@pytest.mark.parametrize(
    "function",
    [
        on_some_ways,
        after_it_is_read,
        after_a_function_has_read_it,
        after_something_that_acts,
        in_a_loop_that_ends_another,
        in_a_chain,
    ],
    ids=lambda function: function.__name__,
)
def test_what_would_be_moved_elsewhere_is_refused(function):
    with pytest.raises(
        nb.KernelError, match=r"[sv] := of more than a variable cannot be used .*; assign it in a statement bef"
    ):
        nb.launch(nb.kernel(function), 1, [np.ones((1, 2)), np.zeros(1)])


def test_a_generator_assigns_nothing():
    def witness(x, y):
        v = 0.0
        if any((v := value) > 1.0 for value in x[0]):
            y[0] = v

    with pytest.raises(
        nb.KernelError, match=r"'v' is assigned in a generator, and is a variable outside of it; write a for loop"
    ):
        nb.kernel(witness)
