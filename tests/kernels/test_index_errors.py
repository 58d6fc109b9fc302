"""What is said of the mistakes with indices that many make first."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, njit

import numbridge as nb


@nb.kernel
def two_indices(x):
    i = cuda.grid(1)
    x[i, i] = 1.0


@nb.kernel
def three_indices(x):
    x[cuda.grid(3)] = 1.0


@nb.kernel
def half_an_index(x):
    i = cuda.grid(1)
    x[i / 2] = 1.0


@nb.kernel
def reads_half(x):
    i, j = cuda.grid(2)
    x[i] = x[j * 0.5]


@nb.kernel
def row_in_element(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


@njit("float64(float64[:], int64)")
def declared_for_arrays(x, i):
    return 2.0 * x[i]


@nb.kernel
def reads_through_a_declaration(x, y):
    i = nb.tid()
    y[i] = declared_for_arrays(x, i)


@nb.kernel
def in_a_mixed_tuple(x):
    if x[0] in (1, x[1]):
        x[0] = 2.0


@nb.kernel
def makes_zeros(x):
    x[0] = np.zeros(3)[0]


@nb.kernel
def stores_no_number(x, p):
    x[nb.tid()] = p


@nb.kernel
def greatest_of_a_truth_value(x):
    i = nb.tid()
    x[i] = max(x[i] > 0, 0.5)


X = np.ones(4)


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        (two_indices, [X], "an array of float64 with 1 dimension is indexed by 2 numbers"),
        (three_indices, [X], "an array of float64 with 1 dimension is indexed by 3 numbers"),
        (
            half_an_index,
            [X],
            r"an index is an integer, and this is a float64; divide with //, or convert with int\(...\)",
        ),
        (reads_half, [X], "an index is an integer, and this is a float64"),
        (
            row_in_element,
            [np.ones((4, 4)), X],
            "an element of an array of float64 with 1 dimension is a number, and this stores an",
        ),
        (row_in_element, [np.array(3.0), X], r"with 0 dimensions is indexed by a number; index it by \[\(\)\]"),
        (stores_no_number, [X, np.array(3.0)], r"an array of shape \(\) is stored in an element here.*\[\(\)\] behind"),
        (
            in_a_mixed_tuple,
            [X],
            r"`in` looks into a tuple of numbers of one type only; convert them, or compare with each",
        ),
        (
            reads_through_a_declaration,
            [X.astype(np.float32), X],
            r"declared_for_arrays is compiled for the types that its decorator declares, not for \(array of float32, int",
        ),
        (makes_zeros, [X], r"np.zeros makes an array, for which kernels have no memory; use cuda.local.array"),
    ],
)
def test_wrong_indices_are_said_in_the_words_of_the_kernel(kernel, arguments, message):
    with pytest.raises(nb.KernelError, match=message) as caught:
        kernel[1, 4](*arguments)
    assert "^" in str(caught.value)


def test_the_greatest_of_a_truth_value_is_converted_on_cuda():
    x = X.copy()
    with pytest.raises(nb.KernelError, match=r"max does not take \(bool, float64\); convert the truth value with int"):
        greatest_of_a_truth_value.ptx(x, capability=(9, 0))
