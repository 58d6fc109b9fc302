"""Device functions that call each other, or themselves with another function: on the CPU, and as PTX."""

import math

import numpy as np
import pytest
from numba import cuda

from emulated_cuda import emulated_cuda
from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.launch import launch


@func
def is_even(n):
    return 1 if n == 0 else is_odd(n - 1)


@func
def is_odd(n):
    return 0 if n == 0 else is_even(n - 1)


@func
def ackermann(m, n):
    if m == 0:
        return n + 1
    return ackermann(m - 1, 1) if n == 0 else ackermann(m - 1, ackermann(m, n - 1))


@func
def squared(x):
    return x * x


@func
def applied(function, x):
    return function(x)


@func
def square_and_one(x):
    return applied(squared, x) + 1.0


@func
def twice(x):
    return applied(square_and_one, x) + applied(squared, x)


@kernel
def parities(x, y):
    i = cuda.grid(1)
    y[i] = is_even(i) + 10 * is_odd(i)


@kernel
def one_parity(x, y):
    i = cuda.grid(1)
    y[i] = is_odd(i)


@kernel
def of_itself(x, y):
    i = cuda.grid(1)
    y[i] = ackermann(2, i)


@kernel
def through_itself(x, y):
    i = cuda.grid(1)
    y[i] = applied(square_and_one, x[i])


@kernel
def through_itself_thrice(x, y):
    i = cuda.grid(1)
    y[i] = applied(twice, x[i]) + applied(square_and_one, x[i]) + applied(squared, x[i])


WANTED = {
    parities: [1, 10, 1, 10],
    one_parity: [0, 1, 0, 1],
    of_itself: [3, 5, 7, 9],
    through_itself: [1, 2, 5, 10],
    through_itself_thrice: [2, 6, 18, 38],
}


@pytest.mark.parametrize("which", WANTED, ids=lambda which: which.name)
def test_functions_that_come_back_to_themselves(which):
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    launch(which, 4, [x, y])
    assert y.tolist() == WANTED[which]
    y[:] = math.nan
    with emulated_cuda() as emulation:
        launch(which, 4, [emulation.on_device(x), emulation.on_device(y)])
    assert y.tolist() == WANTED[which]


@func
def endless(n):
    return endless(n - 1)


@kernel
def never_ends(x):
    x[0] = endless(3)


def test_a_function_that_only_calls_itself():
    with pytest.raises(
        KernelError, match="a function that calls itself needs a path that returns a number without doing so"
    ):
        launch(never_ends, 1, [np.zeros(1)])
