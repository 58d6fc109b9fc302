"""`sum`, `any` and `all` of generator expressions in kernels: what Python makes of them, on both targets, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import on_both
from kernel_as_python import check_threads

N = 3
HERE = 0


@nb.func
def weighted(row, weight):
    return sum(weight * value for value in row)


def of_a_row(x, y):
    i = nb.tid()
    y[i] = sum(v * v for v in x[i])


def of_indices(x, y):
    i = nb.tid()
    y[i] = 2.0 * sum(x[i, k] * x[0, k] for k in range(x.shape[1])) + sum(x[i, k] for k in range(N) if x[i, k] > 0.0)


def in_conditions(x, y):
    i = nb.tid()
    if any(x[i, k] > 1.0 for k in range(N)) and not all(v > 0 for v in x[i]):
        y[i] = 1.0 + x[i, 0] ** 2
    else:
        y[i] = x[i, 1] * 3 if all(v < 1.0 for v in x[i]) else x[i, 2]


def of_pairs(x, y):
    i = nb.tid()
    y[i] = sum((x[i, a] * x[b % 2, a] for a in range(3) for b in range(a) if (a + b) % 2), 0.5)


def within_each_other(x, y):
    i = nb.tid()
    y[i] = sum(sum(x[i, a] * x[b, a] for a in range(3)) for b in range(2) if all(v < 9 for v in x[b]))


def of_what_changes(x, y):
    i = nb.tid()
    s = x[i, 0]
    n = 2
    s = sum(s * v for v in x[i, :n])
    n = 1
    y[i] = s + sum(a * b for a, b in zip(x[i], x[0])) + sum(v for v in x[i, n:])  # noqa: B905 - Numba takes no `strict`


def with_names_of_its_own(x, y):
    i = nb.tid()
    total, start, item = x[i, 0], 2.0, x[i, 1]
    y[i] = sum(total * item * start for _ in range(3)) + sum((1 for v in x[i] if v > 0.1), start=start)


def in_a_lambda(x, y):
    i = nb.tid()
    f = lambda t: sum(t * x[i, k] for k in range(3))  # noqa: E731
    y[i] = f(x[i, 0]) + f(2.0) + weighted(x[i], x[0, 0])


def on_several_lines(x, y):
    i = nb.tid()
    y[i] = sum(
        v * w
        for v in x[i]
        for w in (1.0, 2.0)
    )  # fmt: skip


def with_other_names_for_things(x, y):
    i = nb.tid()
    row, size = x[i], len
    y[i] = sum(row[k] * (k + size(row)) for k in range(size(row)))


def of_functions_that_use_names_of_its_own(x, y):
    i = nb.tid()
    total, start = x[i, 0], 2.0
    f = lambda t: total * t + start  # noqa: E731
    g = lambda row: sum(f(v) for v in row)  # noqa: E731
    y[i] = sum(f(v) for v in x[i]) + g(x[0])


def stored_at_what_is_counted(x, y):
    i = nb.tid()
    a, b = 2.0, 3.0
    y[sum(1 for k in range(i) if k < a * i)] = sum(b * v for v in x[i])


def beside_a_constant(x, y):
    i = nb.tid()
    a = x[i, 0]
    y[i] = nb.static(sum(k for k in range(N))) + sum(a * v for v in x[i]) + sum(v for v in x[0])


def of_what_others_count(x, y):
    i = nb.tid()
    a = 2
    y[i] = sum(k * x[i, 0] for k in range(sum(k * a for k in range(3)))) + sum(a * v for v in x[i])
    y[i] += sum(x[i, k] for k in range((lambda t: t + a)(1)))


def around(weights):
    def of_what_is_around(x, y):
        i = nb.tid()
        y[i] = sum(weights[k] * x[i, k] for k in range(len(weights)))

    return of_what_is_around


FUNCTIONS = [
    *(
        of_a_row,
        of_indices,
        in_conditions,
        of_pairs,
        within_each_other,
        of_what_changes,
        with_names_of_its_own,
        in_a_lambda,
    ),
    *(on_several_lines, with_other_names_for_things, around((1.0, -2.0, 3.0))),
    *(of_functions_that_use_names_of_its_own, stored_at_what_is_counted, beside_a_constant, of_what_others_count),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_generators(function):
    random = np.random.default_rng(3)
    check_threads(function, random.normal(size=(5, N)), random.normal(size=5), atol=1e-14, weighted=weighted.function)


@nb.kernel
def of_vectors(x: nb.array[nb.vec3], y: nb.array[nb.vec3]):
    i = nb.tid()
    y[i] = sum((float(k) * x[k] for k in range(x.shape[0])), nb.vec3())


def test_vectors_are_added_to_one_that_begins():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for made in on_both(of_vectors, 2, [x, np.zeros((2, 3), np.float32)]):
        assert np.array_equal(made, np.tile(np.arange(4) @ x, (2, 1)))


@nb.kernel
def by_blocks(x, y):
    place = cuda.threadIdx
    y[cuda.grid(1)] = sum(x[place.x, k] * nb.tid() for k in range(N))


def test_threads_are_asked_for_within():
    x = np.arange(12.0).reshape(4, 3)
    for made in on_both(by_blocks, 4, [x, np.zeros(4)]):
        assert np.array_equal(made, x.sum(1) * np.arange(4))


def of_two_names(x, y):
    y[nb.tid()] = sum(x for x in x[0])


def of_a_maximum(x, y):
    y[nb.tid()] = max(v for v in x[0])


def of_a_list(x, y):
    y[nb.tid()] = sum([2 * v for v in x[0]])


def of_too_much(x, y):
    y[nb.tid()] = any((v > 0 for v in x[0]), 2)


def of_a_variable(x, y):
    sum = x[0, 0]
    y[nb.tid()] = sum(v for v in x[0])


def that_assigns(x, y):
    if any((found := v) > 0.0 for v in x[0]):
        y[nb.tid()] = found


def that_hides_what_is_used(x, y):
    weight = x[0, 0]
    f = lambda t: t * weight  # noqa: E731
    y[nb.tid()] = sum(f(weight) for weight in x[0])


def that_never_runs(x, y):
    if False:
        y[nb.tid()] = sum(v for v in x[0])


def that_is_kept(x, y):
    values = (v for v in x[0])
    y[nb.tid()] = sum(values)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (of_two_names, "'x' names what is gone through here, and each part of it; give one another name"),
        (that_assigns, "'found' is assigned in a generator, and is a variable outside of it; write a for loop"),
        (that_never_runs, "Python leaves this out, since it never runs, .*; leave it out, too"),
        (
            that_hides_what_is_used,
            "this calls a function that uses 'weight' of .*, and has a variable of that name; rename one",
        ),
        (of_a_list, r"a comprehension cannot be .*; write a for loop, or a generator in sum\(...\), any\(...\) or all"),
        *(
            (function, "a generator expression, except in .*, cannot be used in a kernel; write a for loop")
            for function in (of_a_maximum, of_too_much, of_a_variable, that_is_kept)
        ),
    ],
)
def test_what_is_no_loop(function, text):
    with pytest.raises(nb.KernelError, match=rf"^{text}.*\n  .*test_generators"):
        nb.kernel(function)


@nb.kernel
def of_narrow_rows(x, y):
    i = nb.tid()
    y[i] = sum(v for v in x[i]) + sum(a * b for a, b in zip(x[i], x[0]))  # noqa: B905 - Numba takes no `strict`
    for k, v in enumerate(x[i]):
        y[i] += k * v


def test_rows_of_different_narrow_types_are_told_apart():
    for kind in (np.float16, nb.bfloat16, np.float32, nb.float8_e5m2):
        y = np.zeros(2)
        nb.launch(of_narrow_rows, 2, [np.ones((2, N)).astype(kind), y])
        assert y.tolist() == [9.0, 9.0]
