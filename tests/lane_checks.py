"""Whether threads that run together in lanes compute what each computes alone.

Threads run together along a launch's last dimension. So a launch of (1, n) threads runs them in lanes, and one of (n, 1) runs
the same code for one thread after another: kernels add both indices up.
"""

from __future__ import annotations

import re

import numpy as np

import numbridge as nb

COUNTS = (1, 7, 8, 15, 16, 17, 37, 64, 150)
TRIPS = 11
random = np.random.default_rng(11)


def floats(*shape, dtype=np.float32):
    return random.uniform(-1, 1, shape).astype(dtype)


def integers(*shape, low=0, high=100, dtype=np.int64):
    return random.integers(low, high, shape).astype(dtype)


class Strided:
    """An array whose elements lie apart, and in the opposite order."""

    def __init__(self, *shape, dtype=np.float32):
        self.base = floats(*(2 * extent for extent in shape), dtype=dtype)
        self.slices = tuple(slice(None, None, -2) for _ in shape)


def copied(values):
    """Return arguments with arrays of the same contents and strides, but of their own."""
    return [
        v.base.copy()[v.slices] if isinstance(v, Strided) else v.copy() if isinstance(v, np.ndarray) else v
        for v in values
    ]


def widths(kernel, values):
    """Return how many threads each body of a kernel runs together, where there are so many."""
    source = kernel.explain(*copied(values)).source
    found = re.findall(r"# _nb_lanes_\w+ is (\w+) for (\d+) threads at once", source)
    return {name: int(width) for name, width in reversed(found)}


def both_ways(kernel, values, n):
    """Return the arrays after a launch of threads that run together, and after one of threads that run alone."""
    results = []
    for dims in ((1, n), (n, 1)):
        given = copied(values)
        nb.launch(kernel, dims, given)
        results.append([value for value in given if isinstance(value, np.ndarray)])
    return results


def is_close(value, wanted):
    value, wanted = (np.asarray(v, np.float64) for v in (value, wanted))
    scale = 1 + np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
    return np.allclose(value, wanted, rtol=2e-4, atol=2e-4 * scale, equal_nan=True)


def vectors(n):
    return [floats(n), floats(n), TRIPS]


def check(function, make):
    kernel = nb.kernel(simd=True)(function)
    for n in COUNTS:
        values = make(n)
        if n == COUNTS[0]:
            assert function.__name__ in widths(kernel, values)
        for together, alone in zip(*both_ways(kernel, values, n), strict=True):
            assert together.tobytes() == alone.tobytes(), (n, together, alone)


def gradients(kernel, values, dims):
    """Return the adjoints of all floating arguments, of outputs whose adjoints are ones."""
    values = copied(values)
    floating = [v if isinstance(v, np.ndarray) else np.asarray(v) for v in values]
    adjoints = [
        None if part.dtype.kind != "f" else np.ones_like(v) if v is part else np.zeros(part.shape, values[0].dtype)
        for v, part in zip(values, floating, strict=True)
    ]
    nb.launch(kernel, dims, values, adj_inputs=adjoints, adjoint=True)
    return [adjoint for adjoint in adjoints if adjoint is not None]
