"""Warp's kernels whose adjoints are compared. It may be imported only where Warp is installed."""

# No `from __future__ import annotations`: Warp takes the annotations as they are.

import warp as wp

__all__ = ["elementary", "loop", "polynomial", "saxpy", "stencil"]


@wp.kernel
def saxpy(x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float), a: float):
    i = wp.tid()
    out[i] = a * x[i] + y[i]


@wp.kernel
def polynomial(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    t = x[i]
    if t > 0.5:
        out[i] = ((3.0 * t - 2.0) * t + 1.0) * t
    else:
        out[i] = (t - 4.0) * t


@wp.kernel
def elementary(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = wp.sin(x[i]) * wp.exp(-x[i]) + wp.sqrt(x[i] + 1.0) * wp.cos(x[i])


@wp.kernel
def stencil(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    if i > 0 and j > 0 and i < x.shape[0] - 1 and j < x.shape[1] - 1:
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@wp.kernel
def loop(x: wp.array(dtype=float), out: wp.array(dtype=float), trips: int):
    i = wp.tid()
    s = x[i]
    for _ in range(trips):
        s = s + 0.1 * s * (1.0 - s)
    out[i] = s
