"""Kernels whose elements are vectors, matrices and quaternions, or whose threads loop over the grid, with arguments.

What the CPU makes of them is tested elsewhere; here it is what CUDA's code, on a GPU and emulated, is compared with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

import numbridge as nb

N = 70
random = np.random.default_rng(17)


def uniform(*shape: int, low: float = 0.3, high: float = 1.6) -> np.ndarray:
    return random.uniform(low, high, shape)


@nb.kernel
def over_the_grid(x, y):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        y[i] = x[i] * y[i] * y[i]


@nb.kernel
def sum_over_the_grid(x, total):
    s = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        s += x[i] * x[i]
    nb.atomic_add(total, 0, s)


@nb.kernel
def carried_over_the_grid(x, y):
    last = 1.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        last = last * x[i] + 0.5
        y[i] = last


@nb.kernel
def operations(
    v: nb.array[nb.vec3d], m: nb.array[nb.mat33d], q: nb.array[nb.quatd], out: nb.array[nb.vec3d], r: nb.array[nb.quatd]
):
    i = nb.tid()
    unit = nb.normalize(q[i])
    turned = nb.quat_rotate(unit, v[i])
    out[i] = m[i] @ turned + nb.cross(v[i], turned) / nb.length(turned) - 0.5 * out[i]
    r[i] = unit * q[i]


@nb.kernel
def matrices(m: nb.array[nb.mat33d], v: nb.array[nb.vec3d], out: nb.array[nb.mat33d]):
    i = nb.tid()
    out[i] = nb.inverse(m[i]) @ nb.outer(v[i], v[i]) + nb.transpose(m[i]) * nb.determinant(m[i])


@nb.kernel
def parts(v: nb.array[nb.vec3d], m: nb.array[nb.mat33d], out: nb.array[nb.vec3d]):
    i = nb.tid()
    m[i][1] = v[i] * v[i][0]
    m[i][0, 2] = v[i].y * v[i].z
    out[i].x = m[i][0, 2] * out[i].x
    out[i][1] += nb.dot(v[i], m[i][1])


@nb.kernel
def added_up(v: nb.array[nb.vec3d], to: nb.array[nb.int32], sums: nb.array[nb.vec3d], squares: nb.array[nb.mat33d]):
    i = nb.tid()
    nb.atomic_add(sums, to[i], 2.0 * v[i])
    nb.atomic_add(squares, to[i], nb.outer(v[i], v[i]))


@nb.kernel
def at_poles(v: nb.array[nb.vec3d], s: nb.array[nb.float64], out: nb.array[nb.vec3d], sizes: nb.array[nb.float64]):
    i = nb.tid()
    out[i] = v[i] / s[i] + nb.normalize(v[i])
    sizes[i] = nb.length(v[i])


@nb.func
def turned(v):
    a, b, c = v
    return nb.vec3d(b, c, a)


@nb.kernel
def apart(v: nb.array[nb.vec3d], m: nb.array[nb.mat33d], q: nb.array[nb.quatd], out: nb.array[nb.vec3d]):
    i = nb.tid()
    a, b, c = turned(v[i])
    for row in m[i]:
        row[0] *= a
        for k, part in enumerate(row[1:]):
            c += part * row[0] * (k + 1)
    v[i][:2] = out[i][1:] * b
    m[i][1:, :2] = m[i][:2, 1:]
    m[i][:, 2] = turned(out[i])
    out[i] = nb.vec3d(q[i][::2], c) + m[i] @ v[i]


def _with_zeros(values: np.ndarray, step: int) -> np.ndarray:
    values[::step] = 0
    return values


_TURNS = uniform(N, 4, low=-1, high=1)
# Kernel, extent, and arguments. 64 threads run over a grid of 90 elements.
CASES: list[tuple[Any, ...]] = [
    (over_the_grid, 64, uniform(90), uniform(90)),
    (sum_over_the_grid, 64, uniform(90), uniform(1)),
    (carried_over_the_grid, 64, uniform(90), uniform(90)),
    (operations, N, uniform(N, 3), uniform(N, 3, 3), _TURNS, uniform(N, 3), uniform(N, 4)),
    (matrices, N, uniform(N, 3, 3) + 2 * np.eye(3), uniform(N, 3), uniform(N, 3, 3)),
    (parts, N, uniform(N, 3), uniform(N, 3, 3), uniform(N, 3)),
    (apart, N, uniform(N, 3), uniform(N, 3, 3), uniform(N, 4), uniform(N, 3)),
    (added_up, N, uniform(N, 3), random.integers(0, 5, N).astype(np.int32), uniform(5, 3), uniform(5, 3, 3)),
    (at_poles, N, _with_zeros(uniform(N, 3), 5), _with_zeros(uniform(N), 7), uniform(N, 3), uniform(N)),
]


def name_of(case: tuple[Any, ...]) -> str:
    """Return a test's name."""
    return str(case[0].name)


def results(case: tuple[Any, ...], place: Any) -> list[np.ndarray]:
    """Launch a kernel, then its adjoint, over arrays that `place` gives, and return what all of them hold afterwards.

    Parameters
    ----------
    case : tuple
        One of `CASES`.
    place : callable
        ``place(array)`` returns an array on a device that starts as one of NumPy's, and a function that returns its contents.
    """
    kernel, dim, *values = case
    seeds = np.random.default_rng(5)
    by = [seeds.normal(size=v.shape) if v.dtype.kind == "f" else None for v in values]
    placed = [place(v.copy()) for v in values]
    again = [place(v.copy()) for v in values]
    adjoints = [None if v is None else place(v) for v in by]
    nb.launch(kernel, dim, [a for a, _ in placed], block_dim=32)
    given = [None if a is None else a[0] for a in adjoints]
    nb.launch(kernel, dim, [a for a, _ in again], adj_inputs=given, adjoint=True, block_dim=32)
    return [found() for _, found in (*placed, *(a for a in adjoints if a is not None))]


def check(case: tuple[Any, ...], place: Any) -> None:
    """Check that a device gives what the CPU gives, poles included."""
    wanted = results(case, lambda v: (v, lambda: v))
    found = results(case, place)
    for here, there in zip(wanted, found, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-10, atol=1e-10, equal_nan=True)
