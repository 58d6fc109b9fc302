"""The kernels that the command line launches. They hold no annotations that a type checker could read."""

from __future__ import annotations

import numbridge as nb

__all__ = ["add", "empty_of_five", "empty_of_one", "empty_of_three", "five_points", "saxpy", "square"]


@nb.kernel
def saxpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


@nb.kernel
def square(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def add(x: nb.array[float], y: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] + y[i]


@nb.kernel
def empty_of_one(a):
    pass


@nb.kernel
def empty_of_three(a, b, c):
    pass


@nb.kernel
def empty_of_five(a, b, c, d, e):
    pass


@nb.kernel
def five_points(a, out):
    i, j = nb.tid()
    if i > 0 and j > 0 and i < a.shape[0] - 1 and j < a.shape[1] - 1:
        out[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])
