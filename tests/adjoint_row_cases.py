"""Kernels that make one number of a row, a slice or a whole array, by NumPy's functions: cases of the adjoint tests."""

from __future__ import annotations

import math

import numba
import numpy as np
from numba import cuda

from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.intrinsics import atomic_add, tid

cuda_local = cuda.local.array
random = np.random.default_rng(23)


def uniform(*shape):
    return random.uniform(0.2, 1.7, shape)


@kernel
def totals(x, y):
    i = tid()
    y[i] = np.sum(x[i]) * x[i, 1:].sum() + np.prod(x[i, ::2]) * x[i].mean() - sum(x[i, ::-1]) * np.mean(x[0]) + y[i]
    y[i] += sum((x[i, 0], y[i]), x[0, 0]) * sum(x[i], y[i])


@kernel
def of_all(x, y):
    i = tid()
    y[i] = np.sum(x) * x[i, 0] + x[1:].mean() * x[i, 1] + x[:, ::-2].sum() ** 2 + np.max(x[:, i:]) * x.min()


@kernel
def spread(x, y):
    i = tid()
    y[i] = np.var(x[i]) * x[i, 0] + x[i, 1:].std() + math.sqrt(x.var())


@kernel
def ends_of_rows(x, y):
    i = tid()
    s = np.max(x[i]) * x[i, 1:].min() + max(x[:, i]) * np.amin(x) + min(x[i, ::2]) * np.amax(x[i, :3])
    y[i] = s * x[i, np.argmin(x[i])] + x[np.argmax(x) // x.shape[1], 0] * s * s


@kernel
def products_of_rows(x, w, y):
    i = tid()
    y[i, 0] = np.dot(x[i], w[:, 1]) * y[i, 1]
    y[i, 1] = x[i] @ x[0] + np.vdot(x[i, ::2], w[::2, i % 3]) + x[i, 1:].dot(w[1:, 0]) * y[i, 0]


@func
def normed(row):
    return row @ row / math.sqrt(np.sum(row) + row.max())


@numba.njit
def scaled(row, other):
    return np.prod(row) * other.sum()


@kernel
def in_functions(x, y):
    i = tid()
    y[i] = normed(x[i]) * scaled(x[i], x[0]) + normed(x[i, ::-2])


@kernel
def of_local_memory(x, y):
    i = tid()
    few = cuda_local(4, np.float64)
    many = cuda_local((5, 3), np.float64)
    for j in range(4):
        few[j] = x[i] * x[j]
    for j in range(5):
        for k in range(3):
            many[j, k] = few[k] * x[j] + few[3]
    y[i] = np.sum(few) * many.mean() + few @ few + np.max(many) * few[1:].min() + np.dot(many[i], many[0])


@kernel
def carried_on(x, w, y, n):
    i = tid()
    s = x[i, 0]
    for k in range(n):
        s = s * 0.3 + math.sin(s * np.dot(x[k], w) * 0.1) * np.sum(x[k, : k + 1]) * 0.2
        if x[k].max() > 1.2:
            s += x[k] @ x[i] * 0.1
    y[i] = s


@kernel
def changed_between(x, y):
    i = tid()
    total = np.sum(y[i])
    for k in range(y.shape[1]):
        y[i, k] = y[i, k] * x[k] + total * y[i].max()
    y[i, 0] += y[i] @ x


@kernel
def of_nothing(x, y, n):
    i = tid()
    y[i] = np.sum(x[i, n:]) + np.prod(x[i, n:]) * x[i, 0] + x[i, n:] @ x[i, n:]


@kernel
def of_integers(x, places, y):
    i = tid()
    y[i] = x[np.max(places[i])] * np.sum(places) + places[i].mean() * x[np.argmin(places[i])] ** 2 + sum(places[i])


@kernel
def added_together(x, w, y):
    i = tid()
    atomic_add(y, 0, np.sum(x[i]) * np.max(x[i]))
    atomic_add(y, i % 2, x[i] @ w)


ROWS = [
    (totals, 3, uniform(3, 11), uniform(3)),
    (totals, 3, uniform(3, 1), uniform(3)),
    (of_all, 3, uniform(3, 12), uniform(3)),
    (spread, 3, uniform(3, 5), uniform(3)),
    (ends_of_rows, 3, uniform(3, 9), uniform(3)),
    (products_of_rows, 5, uniform(5, 10), uniform(10, 3), uniform(5, 2)),
    (in_functions, 3, uniform(3, 6), uniform(3)),
    (of_local_memory, 3, uniform(5), uniform(3)),
    (carried_on, 3, uniform(7, 4), uniform(4), uniform(3), 7),
    (changed_between, 2, uniform(5), uniform(2, 5)),
    (of_nothing, 2, uniform(2, 4), uniform(2), 4),
    (of_integers, 3, uniform(5), np.array([[0, 4, 1], [2, 2, 3], [3, 1, 1]]), uniform(3)),
    (added_together, 4, uniform(4, 6), uniform(6), uniform(2)),
]
