"""The kernels whose adjoints are compared. They hold no annotations that a type checker could read."""

from __future__ import annotations

import math

import numbridge as nb

__all__ = ["elementary", "loop", "polynomial", "saxpy", "stencil"]


@nb.kernel
def saxpy(x, y, out, a):
    i = nb.tid()
    out[i] = a * x[i] + y[i]


@nb.kernel
def polynomial(x, out):
    i = nb.tid()
    t = x[i]
    if t > 0.5:
        out[i] = ((3.0 * t - 2.0) * t + 1.0) * t
    else:
        out[i] = (t - 4.0) * t


@nb.kernel
def elementary(x, out):
    i = nb.tid()
    out[i] = math.sin(x[i]) * math.exp(-x[i]) + math.sqrt(x[i] + 1.0) * math.cos(x[i])


@nb.kernel
def stencil(x, out):
    i, j = nb.tid()
    if i > 0 and j > 0 and i < x.shape[0] - 1 and j < x.shape[1] - 1:
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@nb.kernel
def loop(x, out, trips):
    i = nb.tid()
    s = x[i]
    for _ in range(trips):
        s = s + 0.1 * s * (1.0 - s)
    out[i] = s
