"""Kernels with slices, and with loops over what slices and arrays hold: cases of the adjoint tests."""

# ruff: noqa: B905 - the zip of kernels has no `strict`

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.intrinsics import atomic_add, tid

cuda_local = cuda.local.array
random = np.random.default_rng(11)
WEIGHTS = np.array([0.3, -1.1, 0.7])


def uniform(*shape):
    return random.uniform(0.2, 1.7, shape)


@func
def norm(row):
    s = 0.0
    for v in row:
        s += v * v
    return math.sqrt(s)


@func
def ends(row):
    return row[0] * row[-1] + row[-2] * len(row)


@kernel
def slices(x, y):
    i = tid()
    row = x[i, :]
    part = x[i, 1:4]
    back = x[i, ::-2]
    tail = x[i][-2:100]
    y[i] = row[-1] * part[0] + part[-1] * back[0] - math.sin(back[1] * tail[0]) + tail.shape[0] * part.size * row[0]


@kernel
def columns(x, y):
    i = tid()
    column = x[:, 1]
    inner = x[1:, 1:][::-1]
    y[i] = column[i] * norm(x[i]) + norm(column[1:]) + inner[0, -1] * inner[-1][0] + ends(x[i][1:-1])


@kernel
def written_slices(x, y, z):
    i = tid()
    row = y[i, 1:]
    for k in range(len(row)):
        row[k] = x[k] * row[k] + row[k - 1]
    y[i, ::3][0] *= x[0]
    row[-1:][0] += row[0] * row[1]
    atomic_add(z[1:3], i % 2, row[1] * x[i])


@kernel
def reassigned(x, y, a, b):
    i = tid()
    s = x[0, 0]
    start = a
    part = x[i, start:b]
    start = 0
    for k in range(x.shape[0]):
        row = x[k, start:]
        if k % 2 == 0:
            row = x[i, ::-1]
        start = start + 1
        if row[0] > 0.5:
            chosen = x[k]
        else:
            chosen = x[k + 0, 1:]
        s = s * row[0] + math.sin(chosen[1]) * part[k % 2]
    other = x[i] if s > 1.0 else x[0]
    y[i] = s * other[-1]
    if s > 0.2:
        late = x[2 - i, 1:]
        for extent in x.shape:
            y[i] += extent * s
    if s > 0.2:
        y[i] *= late[1]


@kernel
def filled(x, y):
    i = tid()
    t = cuda_local(5, np.float64)
    u = cuda_local((3, 14), np.float64)
    t[:] = 0.0
    t[1:3] = x[i] * x[i]
    u[:, :] = t[1]
    u[1] = x[i]
    u[2, ::2] = t[0] + 1
    y[i, 1:] = t[2] * y[i, 0]
    y[i, :1] = u[0, 3] * u[1, 2] + u[2, 1] * u[2, 2] + t[4]


@kernel
def elements(x, y):
    i = tid()
    s = 0.0
    for row in x:
        t = 1.0
        for v in row[1:]:
            t *= v
        s += t
    for w in WEIGHTS:
        s = s * w + x[i, 0]
    for k, v in enumerate(x[i], 2):
        s += math.sin(k * v)
        if k > 3:
            break
    y[i] = s * v


@kernel
def pairs(x, y, n):
    i = tid()
    s = 0.0
    for a, b in zip(x[i], y[i, 1:]):
        s += a * b * s + a
    for k, (m, (a, b)) in enumerate(zip(range(n, 9, 2), zip(x[0], x[i, ::-1]))):
        if m > 6:
            continue
        s = s + a * b * m * k
    for place in (0, 2, 1):
        s *= x[i, place]
    for scale in (x[i, 0], x[i, 1]):
        s += scale * scale
    y[i, 0] = s


@kernel
def stored_in_the_loop(x, y):
    i = tid()
    t = cuda_local(4, np.float64)
    t[:] = x[i]
    for k, v in enumerate(t):
        if k < 3:
            t[k + 1] = v * t[k + 1] + x[k]
    s = 0.0
    for v in t[::-1]:
        s = s * v + v
    y[i] = s


SLICES = [
    (slices, 3, uniform(3, 5), uniform(3)),
    (columns, 3, uniform(3, 4), uniform(3)),
    (written_slices, 2, uniform(4), uniform(2, 4), uniform(3)),
    (reassigned, 3, uniform(3, 4), uniform(3), 1, -1),
    (filled, 3, uniform(3), uniform(3, 4)),
    (elements, 3, uniform(3, 4), uniform(3)),
    (pairs, 3, uniform(3, 4), uniform(3, 4), 1),
    (stored_in_the_loop, 3, uniform(4), uniform(3)),
]
