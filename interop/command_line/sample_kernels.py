"""The kernels that the command line launches. They hold no annotations that a type checker could read."""

from __future__ import annotations

import numbridge as nb

__all__ = ["add", "empty_of_five", "empty_of_one", "saxpy", "square"]


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
def empty_of_five(a, b, c, d, e):
    pass
