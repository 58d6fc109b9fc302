"""What has no derivative is refused before anything runs, with its place, a caret and the way out."""

# ruff: noqa: B905 - the zip of kernels has no `strict`

from __future__ import annotations

import math
import random as standard_random
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

from adjoint_as_python import check, run_adjoint
from numbridge.kernels.element_types.elements import vec2
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.intrinsics import atomic_add, atomic_exch, atomic_max, tid
from numbridge.kernels.launch import launch


@func
def endless(value, n):
    if n == 0:
        return value
    return endless(value, n - 1)


@kernel
def spacing(x, y):
    i = tid()
    y[i] = np.spacing(x[i])


@kernel
def noise(x, y):
    i = tid()
    y[i] = x[i] * standard_random.random()


@kernel
def sliced(x, y):
    i = tid()
    part = slice(0, 2)
    y[i] = x[part][0]


@kernel
def indexed_by_an_array(x, y):
    i = tid()
    y[i] = x[y][0]


@kernel
def new_dimension(x, y):
    i = tid()
    y[i] = x[None, :][0, i]


@kernel
def too_many_indices(x, y):
    i = tid()
    y[i] = x[1:][0, i]


@kernel
def no_step(x, y):
    i = tid()
    y[i] = x[::0][0]


@kernel
def real_bound(x, y):
    i = tid()
    y[i] = x[: x[0]][0]


@kernel
def either_array(x, y):
    i = tid()
    if i > 0:
        part = x[1:]
    else:
        part = y[1:]
    y[i] = part[0]


@kernel
def rows_or_their_parts(x, y):
    i = tid()
    t = cuda.local.array((2, 3), np.float64)
    t[:] = x[i]
    if i > 0:
        part = t[1:]
    else:
        part = t[1]
    y[i] = part[0]


@kernel
def slice_of_the_last_trip(x, y):
    i = tid()
    for k in range(3):
        part = x[k:]
        y[i] += part[0]
    if x[i] > 1:
        part = x[1:]
    y[i] = part[0]


@kernel
def slice_of_an_earlier_trip(x, y):
    i = tid()
    for k in range(3):
        if k == 0:
            part = x[i:]
        y[i] += part[0]


@kernel
def tuple_of_an_earlier_trip(x, y):
    i = tid()
    for k in range(3):
        if k == 0:
            both = (x[1:], x[i])
        y[i] += both[0][0] * both[1]


@kernel
def tuple_of_another_length(x, y):
    i = tid()
    both = (x[i], 1.0)
    for k in range(3):
        both = (both[0], both[1], x[k])
    y[i] = both[0]


@kernel
def tuple_of_other_parts(x, y):
    i = tid()
    both = (vec2(x[i], 1.0), x[0])
    for _ in range(3):
        both = (both[1], both[0])
    y[i] = x[i]


@kernel
def carried_slice(x, y):
    i = tid()
    part = x[:]
    s = 0.0
    for _ in range(2):
        s += part[0]
        part = part[1:]
    y[i] = s


@kernel
def slice_afterwards(x, y):
    i = tid()
    for k in range(2):
        part = x[k:]
    y[i] = part[0]


@kernel
def copied_slice(x, y):
    y[1:] = x[:-1]


@kernel
def augmented_slice(x, y):
    y[:] += x[0]


@kernel
def filled_by_a_tuple(x, y):
    y[:2] = (x[0], x[1])


@kernel
def whole_row(x, y):
    i = tid()
    y[i] = np.any(x) * x[i]


@kernel
def along_an_axis(x, y):
    i = tid()
    y[i] = np.sum(x, 0)


@kernel
def of_greatest_part(x, y):
    z = cuda.local.array(2, np.complex128)
    y[0] = np.max(z)


@kernel
def unassigned(x, y):
    i = tid()
    for k in range(3):
        if k == 0:
            t = x[i]
        else:
            t = t * x[i]
    y[i] = t


@kernel
def recursive(x, y):
    i = tid()
    y[i] = endless(x[i], 3)


@kernel
def maximum(x, y):
    i = tid()
    atomic_max(y, 0, x[i])


@kernel
def exchanged(x, y):
    i = tid()
    atomic_exch(y, i, x[i])


@kernel
def returned(x, y):
    i = tid()
    y[i] = atomic_add(y, 0, x[i]) * x[i]


@kernel
def read_after_atomic(x, y):
    i = tid()
    atomic_add(y, 0, x[i])
    x[i] = y[0] * y[1]


@kernel
def neighbours(x, y):
    i = tid()
    if i > 0 and i < x.shape[0]:
        x[i] = x[i - 1] * y[i]


@kernel
def neighbours_in_slices(x, y):
    i = tid()
    part = x[i : i + 2]
    x[i] = part[1] * y[i]


@kernel
def neighbours_of_the_first(x, y):
    i = tid()
    y[i] = 2.0 * x[i]
    if i < x.shape[0] - 1:
        x[i] = y[i + 1]


@kernel
def iterated(x, y):
    i = tid()
    s = 0.0
    for value in x[i]:
        s += value * x[i]
    y[i] = s


@kernel
def mixed_tuple(x, y):
    i = tid()
    for value in (1, x[i]):
        y[i] += value


@kernel
def nothing_together(x, y):
    i = tid()
    for value in zip():
        y[i] += value[0]


@kernel
def unsteady_range(x, y):
    i = tid()
    for k, value in zip(range(0, 3, i + 1), x):
        y[i] += k * value


@kernel
def text(x, y):
    i = tid()
    name = "a"
    y[i] = x[i] * name


@kernel
def assigned_in_test(x, y):
    i = tid()
    s = x[i]
    while s > 0.1 and (t := s) > 0.05:
        s = t * 0.5
    y[i] = s


@kernel
def named(x, y):
    i = tid()
    y[i] = round(x[i], ndigits=2)


@kernel
def swapped(x, y):
    i = tid()
    now, then = x, y
    for _ in range(3):
        then[i] = 2.0 * now[i]
        now, then = then, now


@kernel
def transposed(x, y):
    i = tid()
    a = cuda.local.array((2, 2), np.float64)
    a[:] = x[i]
    b = a.transpose()
    y[i] = b[0, 1]


@kernel
def transposed_by_name(x, y):
    i = tid()
    a = cuda.local.array((2, 2), np.float64)
    a[:] = x[i]
    y[i] = a.T[0, 1]


@kernel
def reshaped(x, y):
    i = tid()
    a = cuda.local.array((2, 2), np.float64)
    a[:] = x[i]
    b = a.reshape(4)
    y[i] = b[1]


@kernel
def summed(x, y):
    i = tid()
    a = cuda.local.array((2, 2), np.float64)
    a[:] = x[i]
    y[i] = a.cumsum()[1]


@kernel
def filled(x, y):
    i = tid()
    a = cuda.local.array(2, np.float64)
    a.fill(x[i])
    y[i] = a[1]


@kernel
def with_strides(x, y):
    i = tid()
    y[i] = x[i] * x.strides[0]


@kernel
def among_a_row(x, y):
    i = tid()
    if x[i] in x:
        y[i] = 2.0 * x[i]


@kernel
def in_a_range(x, y):
    i = tid()
    if i in range(1, 3):
        y[i] = 2.0 * x[i]


@kernel
def after_a_tuple(x, y):
    i = tid()
    if i in (1, 2) == (1, 2):
        y[i] = 2.0 * x[i]


@kernel
def product_of_arrays(x, y):
    a = cuda.local.array((2, 2), np.float64)
    y[0] = (x @ a)[0]


@kernel
def product_into(x, y):
    np.dot(x, x, y)


REFUSED = [
    (
        product_of_arrays,
        "@ is differentiated for two rows; of matrices it makes an array, so write loops over them",
        "x @ a",
    ),
    (product_into, "np.dot is differentiated where it takes two rows and nothing else", "np.dot(x, x, y)"),
    (
        among_a_row,
        "gradients follow `in` only into a tuple of numbers; compare with each element in a loop",
        "x[i] in x",
    ),
    (
        in_a_range,
        "gradients follow `in` only into a tuple of numbers; compare with the ends of the range",
        "range(1, 3)",
    ),
    (after_a_tuple, "a tuple cannot be compared with what follows it here; write two comparisons", "i in (1, 2) =="),
    (transposed, "do not follow .transpose of an array; swap the indices of its elements instead", "a.transpose()"),
    (transposed_by_name, "do not follow .T of an array; swap the indices of its elements instead", "a.T[0, 1]"),
    (reshaped, "do not follow .reshape of an array; index its elements by its own dimensions", "a.reshape(4)"),
    (summed, "do not follow .cumsum of an array; write a loop over its elements", "a.cumsum()"),
    (filled, "do not follow .fill of an array; assign a slice, as in a[:] = value", "a.fill(x[i])"),
    (with_strides, "do not follow .strides of an array; use its elements, shape, ndim, size or dtype", "x.strides[0]"),
    (
        swapped,
        "may be another array in every trip of this loop; give one array a dimension more, and choose by an index: both[",
        "then[i] = 2.0 * now[i]",
    ),
    (spacing, "spacing has no derivative here; give one with @nb.func_grad", "y[i] = np.spacing(x[i])"),
    (noise, "random has no derivative here; write it as a function decorated with @nb.func", "random.random()"),
    (sliced, "slice has no derivative here", "part = slice(0, 2)"),
    (indexed_by_an_array, "an index is an integer, or a slice a:b, in a kernel that is differentiated", "x[y][0]"),
    (new_dimension, "an index is an integer, or a slice a:b, in a kernel that is differentiated", "x[None, :]"),
    (too_many_indices, "x has 1 dimension(s), and more indices are given", "x[1:][0, i]"),
    (no_step, "the step of a slice is not zero; write another", "x[::0][0]"),
    (real_bound, "the parts of a slice are integers; convert with int(...)", "x[: x[0]][0]"),
    (either_array, "part is not the same array, or not a number, on every path to here; use each", "y[i] = part[0]"),
    (rows_or_their_parts, "part is not the same array", "y[i] = part[0]"),
    (carried_slice, "may be another array in every trip of this loop", "s += part[0]"),
    (slice_of_the_last_trip, "may be another array in every trip of this loop", "y[i] = part[0]"),
    (slice_of_an_earlier_trip, "may be another array in every trip of this loop", "y[i] += part[0]"),
    (
        tuple_of_an_earlier_trip,
        "both is assigned in a loop, and is neither a number nor a tuple of numbers there",
        "y[i] += both[0][0] * both[1]",
    ),
    (
        tuple_of_another_length,
        "both is a tuple at first and something else later in this loop; rename one",
        "both = (both[0], both[1], x[k])",
    ),
    (
        tuple_of_other_parts,
        "both is a tuple at first and something else later in this loop",
        "both = (both[1], both[0])",
    ),
    (slice_afterwards, "may be another array in every trip of this loop", "y[i] = part[0]"),
    (copied_slice, "only a number can be assigned to a whole row or slice", "y[1:] = x[:-1]"),
    (augmented_slice, "a whole row cannot be assigned to", "y[:] += x[0]"),
    (filled_by_a_tuple, "only a number can be assigned to a whole row or slice", "y[:2] = (x[0], x[1])"),
    (mixed_tuple, "only a tuple of numbers of one type can be looped over", "for value in (1, x[i]):"),
    (nothing_together, "zip needs something to loop over", "for value in zip():"),
    (unsteady_range, "the step of a range beside others is a constant", "zip(range(0, 3, i + 1), x)"),
    (whole_row, "is given an array, through which gradients do not pass; use a loop", "np.any(x)"),
    (along_an_axis, "np.sum is differentiated where it takes one array and nothing else; write a loop", "np.sum(x, 0)"),
    (of_greatest_part, "max of complex numbers has no derivative; compare their parts in a loop", "np.max(z)"),
    (unassigned, "t may not have been assigned here; assign it on every path before this", "t = t * x[i]"),
    (recursive, "endless calls itself", "return endless(value, n - 1)"),
    (maximum, "atomic_max on 'y' has no derivative; use atomic_add", "atomic_max(y, 0, x[i])"),
    (exchanged, "atomic_exch on 'y' has no derivative", "atomic_exch(y, i, x[i])"),
    (returned, "the value that an atomic operation returns carries no gradient", "atomic_add(y, 0, x[i])"),
    (read_after_atomic, "the kernel changes atomically; read it in another kernel", "x[i] = y[0] * y[1]"),
    (neighbours, "'x' here that another thread writes", "x[i] = x[i - 1] * y[i]"),
    (neighbours_in_slices, "'x' here that another thread writes", "x[i] = part[1] * y[i]"),
    (neighbours_of_the_first, "'y' here that another thread writes", "x[i] = y[i + 1]"),
    (
        iterated,
        "only loops over range(...), arrays, vectors, tuples, enumerate(...) and zip(...) have a derivative",
        "for value in x[i]:",
    ),
    (text, "'a' cannot be used in a kernel that is differentiated, but to compare it; use numbers", "x[i] * name"),
    (assigned_in_test, "a while condition that assigns (:=) has no derivative", "while s > 0.1 and (t := s) > 0.05:"),
    (named, "round is called with named arguments; pass them by position", "round(x[i], ndigits=2)"),
]


@pytest.mark.parametrize(("refused", "message", "line"), REFUSED, ids=[case[0].name for case in REFUSED])
def test_refused_with_its_place(refused, message, line):
    x, y = np.ones(3), np.full(3, 2.0)
    with pytest.raises(KernelUnsupportedError) as caught:
        launch(refused, 3, [x, y], adj_inputs=[np.zeros(3), np.ones(3)], adjoint=True)
    said = str(caught.value)
    assert message in said and line in said
    place, shown, caret = said.splitlines()[-3:]
    assert place.strip().startswith(f"{__file__}:")
    number, column = map(int, place.rsplit(":", 2)[1:])
    source = Path(__file__).read_text().splitlines()[number - 1]
    assert shown.strip() == source.strip() and caret.index("^") - 4 == column - 1 - (len(source) - len(source.lstrip()))
    assert (x == 1).all() and (y == 2).all()


@kernel
def scratch(x, t, y):
    i = tid()
    t[i] = x[i] * 2.0
    y[i] = t[i] * t[i]


def test_a_gradient_that_would_be_lost_on_its_way_is_refused():
    x, t, y = np.ones(3), np.ones(3), np.ones(3)
    with pytest.raises(
        KernelUnsupportedError, match="a gradient passes through the array 't', for which no adjoint is given"
    ):
        launch(scratch, 3, [x, t, y], adj_inputs=[np.zeros(3), None, np.ones(3)], adjoint=True)
    by_x = np.zeros(3)
    launch(scratch, 3, [x, t, y], adj_inputs=[by_x, np.zeros(3), np.ones(3)], adjoint=True)
    assert by_x.tolist() == [8, 8, 8]


@kernel
def counted(x, y, counter):
    i = tid()
    atomic_add(counter, 0, 1)
    y[i] = x[i] * 2.0


@kernel
def slotted(x, y, counter):
    i = tid()
    slot = atomic_add(counter, 0, 1)
    y[slot] = x[i] * x[i]


def test_a_returned_value_that_is_not_needed_is_allowed():
    counter, by_x = np.zeros(1, np.int64), np.zeros(3)
    launch(counted, 3, [np.ones(3), np.ones(3), counter], adj_inputs=[by_x, np.ones(3), None], adjoint=True)
    assert by_x.tolist() == [2, 2, 2] and counter[0] == 0


def test_a_returned_value_that_is_needed_is_refused():
    counter = np.zeros(1, np.int64)
    with pytest.raises(KernelUnsupportedError, match="this atomic operation returned, which it cannot get again"):
        launch(slotted, 3, [np.ones(3), np.ones(3), counter], adj_inputs=[np.zeros(3), np.ones(3), None], adjoint=True)


@kernel
def unused_spacing(x, y):
    i = tid()
    y[i] = x[i] * 2.0
    t = np.spacing(x[i])
    if t > 5e-16:
        y[i] = 0.0


def test_functions_without_a_derivative_may_decide_branches():
    adjoints = {"x": np.zeros(2), "y": np.ones(2)}
    run_adjoint(unused_spacing, (2,), [np.array([2.0, 7.0]), np.zeros(2)], adjoints)
    assert adjoints["x"].tolist() == [2, 0]


@kernel
def red_and_black(x, n):
    i = tid()
    if i % 2 == 0 and i > 0 and i < n - 1:
        x[i] = 0.5 * (x[i - 1] + x[i + 1])


def test_threads_that_take_turns_do_not_race():
    by_x = np.ones(5)
    launch(red_and_black, 5, [np.ones(5), 5], adj_inputs=[by_x, None], adjoint=True)
    assert by_x.tolist() == [1, 1.5, 0, 1.5, 1]


def test_reserved_names_are_refused():
    with pytest.raises(KernelError, match="reserved: generated names start with _nb_"):

        @kernel
        def reserved(x):
            _nb_adj_x = tid()
            x[_nb_adj_x] = 1.0


@kernel
def clashing(x, x_1, adj_x, value_1, y):
    i = tid()
    s_1 = x[i] * x_1[i]
    value_2 = s_1 * adj_x[i]
    y[i] = value_2 * value_1[i] * s_1


def test_names_that_look_generated_do_not_clash():
    values = [np.array([1.5]), np.array([2.0]), np.array([3.0]), np.array([0.5]), np.zeros(1)]
    adjoints = {name: np.zeros(1) for name in ("x", "x_1", "adj_x", "value_1")} | {"y": np.ones(1)}
    run_adjoint(clashing, (1,), values, adjoints)
    x, x_1, adj_x, value_1, _ = (float(v[0]) for v in values)
    expected = {"x": 2 * x * x_1**2 * adj_x * value_1, "x_1": 2 * x_1 * x**2 * adj_x * value_1}
    expected |= {"adj_x": (x * x_1) ** 2 * value_1, "value_1": (x * x_1) ** 2 * adj_x}
    for name, value in expected.items():
        assert math.isclose(adjoints[name][0], value), name


@kernel
def disguised(x, y, n):
    i = tid()
    adj_x = i + 2
    tan_x = i + 3
    keep1_s = i + 1
    s = x[i]
    p = x[i] * adj_x * tan_x
    for trip1 in range(n):
        s = s * keep1_s * x[i] + trip1
    y[i] = s * p


def test_integers_that_look_generated_do_not_clash():
    check(disguised, 2, np.array([0.7, 1.2]), np.zeros(2), 3)
