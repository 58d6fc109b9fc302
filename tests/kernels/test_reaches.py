"""Arrays that every thread of a launch would overrun are refused, and none that some thread may spare.

So are elements that threads are sure to change at once, of which `test_clashes` says more.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from numba import cuda, float64, njit

import numbridge as nb
from fake_cuda import cuda_array, fake_cuda
from numbridge.kernels import launch as launch_module
from numbridge.kernels.extent_checks import check_extents
from numbridge.kernels.language.clashes import Clash
from numbridge.kernels.language.reaches import reaches_of
from written_kernels import made


@nb.func
def positive(v):
    if v < 0.0:
        raise ValueError("negative")
    return v


@njit
def root(v):
    assert v >= 0.0
    return v**0.5


@nb.func
def far(i, more=2):
    start = i
    return start + more


@nb.func
def nearest(i, n):
    unused = 0
    for k in range(n):
        unused += k
    return min(i, n)


@nb.func
def halved(n):
    steps = n
    while steps > 1:
        steps -= 2
    return steps


@nb.func
def put(array, a, b, n):
    if a != 0:
        array[a - 1, b] = 0.5
    for k in range(b):
        if k >= n:
            return
        array[a, far(k, 0)] = 0.5
    array[far(i=b), more_of(a)] = 0.25


@njit
def more_of(i):
    return i + MORE


@cuda.jit(device=True)
def below(array, a, b):
    if a >= 3:
        return array[a - 3, b]
    return array[a, b + 1]


MORE = 1


FUNCTIONS = {"far": far, "nearest": nearest, "halved": halved, "put": put, "below": below}


def reaches(body, parameters="x, y, n, m", index="i", **names):
    """Return what is reached by the lines of a body, as ``(parameter, axis, least extent)``, and what is needed for that."""
    head = f"    {index} = nb.tid()\n" if index else ""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    found = reaches_of(made(f"def k({parameters}):\n{head}{lines}", **names)[0])
    return {(r.array, r.axis, str(r.least), *map(str, r.needs)) for r in found}


@pytest.mark.parametrize(
    ("body", "index", "wanted"),
    [
        ("y[i] = x[i]", "i", {("x", 0, "dim[0]"), ("y", 0, "dim[0]")}),
        ("y[i] = x[i + 1] - x[i]", "i", {("x", 0, "dim[0] + 1"), ("y", 0, "dim[0]")}),
        ("y[i] = x[2 + i]", "i", {("x", 0, "dim[0] + 2"), ("y", 0, "dim[0]")}),
        # The first threads count from the end.
        ("y[0] = x[i - 3]", "i", {("x", 0, "dim[0] - 3"), ("x", 0, "3"), ("y", 0, "1")}),
        ("y[i] = x[i - 1] + x[i + 1]", "i", {("x", 0, "dim[0] + 1"), ("y", 0, "dim[0]")}),
        ("y[i] = x[3 - i]", "i", {("x", 0, "4"), ("x", 0, "dim[0] - 4"), ("y", 0, "dim[0]")}),
        ("y[-2] = x[4]", "i", {("x", 0, "5"), ("y", 0, "2")}),
        (
            "y[j, i] = x[i, 3]",
            "i, j",
            {("x", 0, "dim[0]"), ("x", 1, "4"), ("y", 0, "dim[1]"), ("y", 1, "dim[0]")},
        ),
        ("y[i, :] = x[1:]", "i", {("y", 0, "dim[0]")}),
        ("y[i, :] = x[i, 2:]", "i", {("y", 0, "dim[0]")}),
        (
            "y[i][j] = x[i][2][j]",
            "i, j",
            {("x", 0, "dim[0]"), ("x", 1, "3"), ("x", 2, "dim[1]"), ("y", 0, "dim[0]"), ("y", 1, "dim[1]")},
        ),
        ("y[..., i] = x[None, i]", "i", set()),
        ("nb.atomic_add(y, 0, x[i])", "i", {("x", 0, "dim[0]"), ("y", 0, "1")}),
        ("nb.atomic_cas(y, i, 0.0, x[i])", "i", {("x", 0, "dim[0]"), ("y", 0, "dim[0]")}),
        ("cuda.atomic.add(y, (i, 1), x[i])", "i", {("x", 0, "dim[0]"), ("y", 0, "dim[0]"), ("y", 1, "2")}),
        ("y[int(x[i])] = 1", "i", {("x", 0, "dim[0]")}),
        ("c = 2\ny[i + c] = x[c]", "i", {("x", 0, "3"), ("y", 0, "dim[0] + 2")}),
        ("y[i + N] = x[N]", "i", {("x", 0, "6"), ("y", 0, "dim[0] + 5")}),
        ("y[0] = x[3]", "", {("x", 0, "4"), ("y", 0, "1")}),
        # What the launch decides besides
        ("y[i + n] = x[n - 1]", "i", {("x", 0, "n"), ("x", 0, "-n + 1"), ("y", 0, "dim[0] + n"), ("y", 0, "-n")}),
        (
            "k: int = x.shape[0] - 1\ny[k] = x[min(i + 1, k)]",
            "i",
            {("y", 0, "x.shape[0]"), ("y", 0, "-x.shape[0] + 1")},
        ),
        (
            "y[i * x.shape[1] + j] = x[i, j]",
            "i, j",
            {
                ("x", 0, "dim[0]"),
                ("x", 1, "dim[1]"),
                ("y", 0, "dim[0] * x.shape[1] + dim[1] - x.shape[1]"),
            },
        ),
        (
            "y[i] = x[i // 3, i % 3]",
            "i",
            {
                ("x", 0, "(dim[0] - 1) // (3) + 1"),
                ("x", 1, "min(dim[0], 3)"),
                ("y", 0, "dim[0]"),
            },
        ),
        (
            "y[i % n] = x[(i // 2) % 3]",
            "i",
            {("x", 0, "min((dim[0] - 1) // (2), 2) + 1"), ("y", 0, "min(dim[0], max(n, 1))")},
        ),
        (
            "a = cuda.grid(1)\ny[a] = x[cuda.blockDim.x * cuda.blockIdx.x + cuda.threadIdx.x]",
            "",
            {
                ("x", 0, "dim[0]"),
                ("y", 0, "dim[0]"),
            },
        ),
        (
            "a = cuda.threadIdx.y + cuda.blockIdx.y * cuda.blockDim.y\ny[a] = x[cuda.threadIdx.x]",
            "",
            {("x", 0, "min(blockDim[0], dim[0])"), ("y", 0, "dim[1]")},
        ),
        # No pair of an index and itself but those on the diagonal
        ("y[i * n + i] = x[i - i]", "i", set()),
        ("y[2 * i % n] = 1", "i", set()),
        ("y[i % x.shape[0]] = 1\nx[i] = 0", "i", {("x", 0, "dim[0]"), ("y", 0, "min(dim[0], max(x.shape[0], 1))")}),
        # Guards
        ("if i < n:\n    y[i] = x[i]", "i", {(a, 0, "min(dim[0], n)", "min(dim[0], n)") for a in "xy"}),
        ("if i >= n:\n    return\ny[i] = x[i]", "i", {(a, 0, "min(dim[0], n)", "min(dim[0], n)") for a in "xy"}),
        ("if i < x.shape[0]:\n    y[i] = x[i]", "i", {("y", 0, *2 * ["min(dim[0], x.shape[0])"])}),
        ("if i < x.size:\n    y[i] = x[i]", "i", {(a, 0, *2 * ["min(dim[0], x.size)"]) for a in "xy"}),
        (
            "if 0 < i < len(x) - 1:\n    y[i] = x[i + 1] - x[i - 1]",
            "i",
            {
                ("y", 0, "min(dim[0], x.shape[0] - 1)", "min(dim[0], x.shape[0] - 1) - 1"),
            },
        ),
        (
            "if i + 1 < n and 2 <= j:\n    y[i, j] = 0",
            "i, j",
            {
                ("y", 0, "min(dim[0], n - 1)", "min(dim[0], n - 1)", "dim[1] - 2"),
                ("y", 1, "dim[1]", "min(dim[0], n - 1)", "dim[1] - 2"),
            },
        ),
        (
            "if i >= n or not j < m:\n    return\ny[i, j] = 0",
            "i, j",
            {
                ("y", 0, "min(dim[0], n)", "min(dim[0], n)", "min(dim[1], m)"),
                ("y", 1, "min(dim[1], m)", "min(dim[0], n)", "min(dim[1], m)"),
            },
        ),
        (
            "if n - i > 0:\n    y[i] = 0\nelse:\n    x[i] = 0",
            "i",
            {
                ("x", 0, "dim[0]", "dim[0] - max(n, 0)"),
                ("y", 0, *2 * ["min(dim[0], n)"]),
            },
        ),
        (
            "if i == n:\n    y[i] = x[n]",
            "i",
            {(a, 0, "min(dim[0], n + 1)", "-max(n, 0) + min(dim[0], n + 1)") for a in "y"}
            | {("x", 0, "n + 1", "-max(n, 0) + min(dim[0], n + 1)"), ("x", 0, "-n", "-max(n, 0) + min(dim[0], n + 1)")},
        ),
        (
            "if n > 3:\n    y[i] = 0\nelse:\n    y[i + 1] = 0",
            "i",
            {
                ("y", 0, "dim[0]", "n - 3"),
                ("y", 0, "dim[0] + 1", "-n + 4"),
            },
        ),
        ("if i < n and x[i] > 0:\n    y[i] = 1", "i", {("x", 0, *2 * ["min(dim[0], n)"])}),
        (
            "y[0] = x[i] if i < n else y[i]",
            "i",
            {
                ("x", 0, *2 * ["min(dim[0], n)"]),
                ("y", 0, "dim[0]", "dim[0] - max(n, 0)"),
                ("y", 0, "1"),
            },
        ),
        (
            "if i >= n:\n    x[i] = 0\n    return\ny[i] = 0",
            "i",
            {
                ("x", 0, "dim[0]", "dim[0] - max(n, 0)"),
                ("y", 0, *2 * ["min(dim[0], n)"]),
            },
        ),
        # Loops
        (
            "for k in range(n):\n    y[i] += x[i, k]",
            "i",
            {
                ("x", 0, "dim[0]", "n"),
                ("x", 1, "n", "n"),
                ("y", 0, "dim[0]", "n"),
            },
        ),
        (
            "for k in range(x.shape[1]):\n    y[i] += x[i, k] * x[k, i]",
            "i",
            {
                ("x", 0, "dim[0]", "x.shape[1]"),
                ("x", 0, "x.shape[1]", "x.shape[1]"),
                ("x", 1, "dim[0]", "x.shape[1]"),
                ("y", 0, "dim[0]", "x.shape[1]"),
            },
        ),
        (
            "for k in range(2, n):\n    j = i + k\n    y[j] = x[k - 2]",
            "i",
            {
                ("x", 0, "n - 2", "n - 2"),
                ("y", 0, "dim[0] + n - 1", "n - 2"),
            },
        ),
        ("for k in range(n - 1, -1, -1):\n    y[k] = x[n - 1 - k]", "i", {("x", 0, "n", "n"), ("y", 0, "n", "n")}),
        ("for k in range(1, n, 3):\n    y[k] = 0", "i", {("y", 0, "3 * (n - 2) // (3) + 2", "3 * (n - 2) // (3) + 1")}),
        ("for k in range(n):\n    for l in range(3):\n        y[3 * k + l] = 0", "i", {("y", 0, "3 * n", "n")}),
        (
            "for k in range(n):\n    if k > 1:\n        y[k] = x[k]\n    else:\n        y[k + 1] = 0",
            "i",
            {
                ("x", 0, "n", "n - 2"),
                ("y", 0, "n", "n - 2"),
                ("y", 0, "min(n, 2) + 1", "min(n, 2)"),
            },
        ),
        ("for k in range(n):\n    if k < 2:\n        continue\n    y[k] = 0", "i", {("y", 0, "n", "n - 2")}),
        (
            "for k in range(n):\n    while x[k] > 0:\n        break\n    y[k] = 0",
            "i",
            {
                ("x", 0, "n", "n"),
                ("y", 0, "n", "n"),
            },
        ),
        (
            "for k in range(cuda.grid(1), n, cuda.gridsize(1)):\n    y[k] = 0",
            "",
            {
                ("y", 0, "n", "-blockDim[0] * gridDim[0] + dim[0] + 1", "n"),
            },
        ),
        (
            "g, h = cuda.gridsize(2)\na, b = cuda.grid(2)\nfor k in range(b, n, h):\n    y[a, k] = x[a]\n    y[b] = 0",
            "",
            {
                ("x", 0, "dim[0]", "-blockDim[1] * gridDim[1] + dim[1] + 1", "n"),
                ("y", 0, "dim[0]", "-blockDim[1] * gridDim[1] + dim[1] + 1", "n"),
                ("y", 1, "n", "-blockDim[1] * gridDim[1] + dim[1] + 1", "n"),
            },
        ),
        # Places in blocks, and memory of threads and blocks
        (
            "t, b = cuda.threadIdx.x, cuda.blockIdx.x\nx[t, b] = y[b - t]",
            "",
            {("x", 0, "min(blockDim[0], dim[0])"), ("x", 1, "(dim[0] - 1) // (blockDim[0]) + 1")},
        ),
        (
            "if cuda.threadIdx.x < 4:\n    x[cuda.threadIdx.x] = y[cuda.grid(1)]",
            "",
            {("x", 0, "min(min(blockDim[0], dim[0]), 4)")},
        ),
        (
            "s = cuda.shared.array((4, 8), np.float32)\nt = cuda.threadIdx.x\ns[t, 0] = 1\nif i < n:\n    s[3, t] = 1",
            "i",
            {
                ("s", 0, "min(blockDim[0], dim[0])"),
                ("s", 1, "min(min(blockDim[0], dim[0]), min(dim[0], n))", "min(dim[0], n)"),
            },
        ),
        (
            "s = cuda.local.array(shape=N, dtype=np.float32)\nfor k in range(n):\n    s[k] = s[4 - k]",
            "",
            {("s", 0, "n", "n")},
        ),
        ("s = cuda.shared.array(0, np.float32)\ns[i] = 1", "i", {("s", 0, "dim[0]")}),
        (
            "s = cuda.shared.array(dtype='float32', shape=(0,))\ns[i] = s[i + 1]",
            "i",
            {("s", 0, "dim[0]"), ("s", 0, "dim[0] + 1")},
        ),
        ("s = cuda.shared.array(0, float)\ns[i] = 1", "i", set()),
        ("s = cuda.shared.array(0, x.dtype)\ns[i] = 1", "i", set()),
        ("s = x\nif n > 0:\n    s = cuda.local.array(2, np.float32)\ns[2] = 1", "i", set()),
        # What only some threads come to, or not in each trip
        ("if x[i] > 0:\n    y[i] = 1", "i", {("x", 0, "dim[0]")}),
        ("if i < j:\n    y[i] = 1", "i, j", set()),
        ("if i != n:\n    y[i] = 1", "i", set()),
        ("if i < n and i != m:\n    y[i] = 1", "i", set()),
        ("if not (i < n and j < m):\n    y[i] = 1", "i, j", set()),
        ("while x[0] > y[i]:\n    y[i] += x[i]", "i", {("x", 0, "1"), ("y", 0, "dim[0]")}),
        ("for k in range(int(x[i])):\n    y[i] += k", "i", {("x", 0, "dim[0]")}),
        # Trips that threads make by their own number
        ("for k in range(i):\n    y[k] = 1", "i", {("y", 0, "dim[0] - 1", "dim[0] - 1")}),
        ("for k in range(i, n):\n    y[k + 1] = 1", "i", {("y", 0, "n + 1", "n")}),
        (
            "for k in range(i, j):\n    y[i, k] = x[k]",
            "i, j",
            {("x", 0, "dim[1] - 1", "dim[1] - 1"), ("y", 1, "dim[1] - 1", "dim[1] - 1")},
        ),
        (
            "for k in range(i - n, i + n + 1):\n    y[k] = 1",
            "i",
            {("y", 0, "dim[0] + n", "2 * n + 1", "dim[0] + 2 * n")},
        ),
        ("for k in range(i - 1, -1, -1):\n    y[k] = 1", "i", {("y", 0, "dim[0] - 1", "dim[0] - 1")}),
        (
            "if i > n:\n    for k in range(i):\n        for l in range(k, i):\n            y[l] = 1\n        y[k] = 1",
            "i",
            {("y", 0, "dim[0] - 1", "dim[0] - max(n, -1) - 1", "dim[0] - 1")},
        ),
        ("for k in range(i * 2, i * 3):\n    y[k] = 1", "i", set()),
        (
            "if i != 0:\n    y[i - 1] = x[i + 1]",
            "i",
            {("y", 0, "dim[0] - 1", "dim[0] - 1"), ("x", 0, "dim[0] + 1", "dim[0] - 1")},
        ),
        ("if i == 0:\n    y[9] = 1\nelse:\n    y[-i] = 1", "i", {("y", 0, "10"), ("y", 0, "dim[0] - 1", "dim[0] - 1")}),
        # Loops that count by themselves
        ("k = 0\nwhile k < n:\n    y[k] = x[k + 1]\n    k += 1", "i", {("y", 0, "n", "n"), ("x", 0, "n + 1", "n")}),
        ("k = n\nwhile 0 <= k:\n    y[k] = 1\n    k -= 1\ny[k] = 1", "i", {("y", 0, "n + 1", "n + 1")}),
        ("k = i + 1\nwhile k != n:\n    y[k] = 1\n    k += 1", "i", set()),
        ("k = i\nwhile n > k:\n    y[k] = 1\n    k += 1", "i", {("y", 0, "n", "n")}),
        ("k = 0\nwhile k < 9:\n    y[k] = 1\n    k += 2", "i", {("y", 0, "9")}),
        ("k = 0\nwhile k < 9:\n    y[k] = 1\n    k -= 1", "i", set()),
        ("k = 0\nwhile k < 9:\n    if x[0] > 1:\n        continue\n    y[k] = 1\n    k += 1", "i", set()),
        ("k = 0\nwhile k < 9:\n    y[k] = 1\n    if y[k] > 1:\n        break\n    k += 1", "i", set()),
        ("k = 0\nfor l in range(n):\n    while k < 9:\n        y[k] = 1\n        k += 1", "i", set()),
        (
            "for l in range(n):\n    k = l\n    while k < 9:\n        y[k] = 1\n        k += 1",
            "i",
            {("y", 0, "9", "n")},
        ),
        (
            "k = cuda.threadIdx.x\nwhile k < n:\n    y[k] = 1\n    k += cuda.blockDim.x",
            "i",
            {("y", 0, "n", "-blockDim[0] + dim[0] + 1", "n")},
        ),
        (
            "for k in range(cuda.threadIdx.x, n, cuda.blockDim.x):\n    y[k] = 1",
            "i",
            {("y", 0, "n", "-blockDim[0] + dim[0] + 1", "n")},
        ),
        (
            "k = i\nwhile k < n:\n    y[k] = 1\n    k += cuda.gridsize(1)",
            "i",
            {("y", 0, "n", "-blockDim[0] * gridDim[0] + dim[0] + 1", "n")},
        ),
        # Device functions
        ("put(y, i, j, n)", "i, j", {("y", 0, "dim[0] - 1", "dim[0] - 1"), ("y", 1, "dim[1]", "dim[0] - 1")}),
        (
            "y[far(i)] = x[far(i, 3), far(more=n, i=4)]",
            "i",
            {("x", 0, "dim[0] + 3"), ("x", 1, "n + 5"), ("x", 1, "-n - 4"), ("y", 0, "dim[0] + 2")},
        ),
        (
            "y[nearest(i, 9)] = below(x, i, n)",
            "i",
            {
                ("x", 0, "dim[0] - 3", "dim[0] - 3"),
                ("x", 0, "min(dim[0], 3)"),
                ("x", 1, "-n", "dim[0] - 3"),
                ("x", 1, "-n - 1"),
                ("x", 1, "n + 2"),
                ("y", 0, "min(dim[0], 10)"),
            },
        ),
        # What it returns is not what it began to count with.
        ("y[halved(i)] = x[halved(9)]", "i", set()),
        ("for k in range(n):\n    y[k] = 1\n    if y[0] > 1:\n        break", "i", set()),
        ("for k in range(n):\n    if y[0] > 1:\n        continue\n    y[k] = 1", "i", {("y", 0, "1", "n")}),
        ("for k in range(n):\n    k += 1\n    y[k] = 1", "i", {("y", 0, "1", "n")} - {("y", 0, "1", "n")}),
        ("for k in range(n):\n    x[0] = 1\nl = k + 1\nfor k in range(m):\n    y[l] = 1", "i", {("x", 0, "1", "n")}),
        ("for k in range(cuda.grid(1), n, 2):\n    y[k] = 0", "", set()),
        ("for k in range(0, n, m):\n    y[k] = 0", "", set()),
        ("y[0] = x[i] if x[1] > 0 else y[i]", "i", {("x", 0, "2"), ("y", 0, "1")}),
        ("a = x[1] > 0 and x[i] > 0 or y[i] > 0", "i", {("x", 0, "2")}),
        ("a = i < x[0] < x[i]", "i", {("x", 0, "1")}),
        ("y[0] = 1\nif x[i] > 0:\n    return\ny[i] = 1", "i", {("x", 0, "dim[0]"), ("y", 0, "1")}),
        ("y[0] = 1\nassert x[i] > 0\ny[i] = 1", "i", {("y", 0, "1")}),
        ("y[0] = 1\nfor k in range(2):\n    if k > i:\n        return\ny[i] = 1", "i", {("y", 0, "1")}),
        ("if i >= n:\n    if x[i] > 0:\n        return\ny[i] = 1", "i", {("x", 0, "dim[0]", "dim[0] - max(n, 0)")}),
        ("y[i] = positive(x[0])", "i", set()),
        ("y[i] = root(x[0])", "i", set()),
        # What is no index of the thread, or another array
        ("i = i * 2\ny[i] = x[i]", "i", set()),
        ("n = 2\nn = 3\ny[n] = x[n]", "i", set()),
        ("y = x\ny[i] = 1\nx[i] = 1", "i", {("x", 0, "dim[0]")}),
        ("if n > 3:\n    y = x\ny[i] = 1", "i", set()),
        # Other names of arrays
        ("b = x\ny[0] = b[i]", "i", {("x", 0, "dim[0]"), ("y", 0, "1")}),
        ("a, (b, c) = x, (y, n)\na[i] = b[c]", "i", {("x", 0, "dim[0]"), ("y", 0, "n + 1"), ("y", 0, "-n")}),
        ("a = x\na = y\na[i] = 1", "i", set()),
        ("a = x\nput(a, i, j, n)", "i, j", {("x", 0, "dim[0] - 1", "dim[0] - 1"), ("x", 1, "dim[1]", "dim[0] - 1")}),
        ("for a in (x, y):\n    a[i] = 1", "i", {("x", 0, "dim[0]"), ("y", 0, "dim[0]")}),
        ("for k, a in enumerate((x, y)):\n    a[k + 2] = 1", "i", {("x", 0, "3"), ("y", 0, "4")}),
        ("for a, b in zip((x, y), (y, x)):\n    a[1] = b[1]", "i", {("x", 0, "2"), ("y", 0, "2")}),
        ("for a in (x, y):\n    if a[0] > 1:\n        break\n    a[i] = 1", "i", set()),
        ("for a in (x, y):\n    a[0] = 1\na[i] = 1", "i", {("x", 0, "1"), ("y", 0, "1")}),
        ("y[i * 2] = x[True]", "i", {("y", 0, "2 * dim[0] - 1")}),
    ],
)
def test_what_threads_are_sure_to_come_to(body, index, wanted):
    assert reaches(body, index=index, np=np, N=5, positive=positive, root=root, **FUNCTIONS) == wanted


@pytest.mark.parametrize(
    "body",
    [
        "if i <= x.shape[0] // n:\n    y[1] = 1.0",
        "for k in range(x.shape[0] // n + 1):\n    y[1] = 1.0",
        "if 3 // n >= 0:\n    y[1] = 1.0",
        "y[(i % n) * (n - 2)] = 1.0",
        "y[(i % -3) * (0 - 5) - 9] = 1.0",
    ],
)
def test_a_divisor_that_is_not_positive(body):
    lines = "".join(f"    {line}\n" for line in ["i = nb.tid()", *body.splitlines()])
    kernel, _ = made(f"def k(x, y, n):\n{lines}")
    x, y = f32(7), f32(32)[:1]
    for _ in range(2):
        nb.launch(kernel, 3, [x, f32(11) if "%" in body else y, -3])
    if "//" in body:
        with pytest.raises(nb.NumbridgeValueError, match="parameter 'y'"):
            nb.launch(kernel, 3, [x, y, 3])


@nb.func
def first_of(row, is_there):
    return row[0] if is_there else 0.0


@pytest.mark.parametrize(
    ("line", "is_element"),
    [
        ("r = x[i]\n    if i < x.shape[0]:\n        y[i] = r[0]", False),
        ("y[i] = x[i].shape[0]", False),
        ("r = x[i, :]\n    if i < x.shape[0]:\n        y[i] = r[1]", False),
        ("y[i] = first_of(x[i], i < x.shape[0])", False),
        ("y[i] = x[i][0]", True),
        ("y[i] = x[i, 0]", True),
        ("x[i] = 2.0", True),
        ("x[i][1] = 2.0", True),
    ],
)
def test_a_view_of_a_row_reads_nothing(line, is_element):
    kernel, _ = made(f"def k(x, y):\n    i = nb.tid()\n    {line}\n", first_of=first_of)
    rows, y = f32(8, 4), f32(5)
    for x in (rows, rows[:3], rows[:3]):
        if is_element and len(x) == 3:
            with pytest.raises(nb.NumbridgeValueError, match=r"'x': its shape is \(3, 4\).* so axis 0 must have 5"):
                nb.launch(kernel, 5, [x, y])
        else:
            nb.launch(kernel, 5, [x, y])
    if is_element:
        nb.launch(kernel, 3, [rows[:3], y])


@pytest.mark.parametrize("guard", ["i > -N", "not i < -N + 1"])
def test_globals_that_are_unsigned(guard):
    kernel, function = made(f"def k(y):\n    i = nb.tid()\n    if {guard}:\n        y[5] = 1\n", N=np.uint32(3))
    y = f32(9) * 0
    nb.launch(kernel, 3, [y[:2]])
    assert not y.any()
    function.__globals__["N"] = np.int32(3)
    with pytest.raises(nb.NumbridgeValueError, match="'y': its shape is"):
        nb.launch(kernel, 3, [y[:2]])


def test_a_kernel_that_checks_its_indices_says_itself_which_is_wrong():
    kernel = nb.kernel(check_bounds=True)(shifted.function)
    assert reaches_of(shifted) and not reaches_of(kernel)
    with pytest.raises(IndexError, match="index 3 is out of range"):
        nb.launch(kernel, 3, [np.ones(3, np.float32), np.zeros(3, np.float32)])


INDICES = (
    "t",
    "c",
    "t + j",
    "i",
    "j",
    "i + 1",
    "j + 2",
    "2 + i",
    "i - 1",
    "j - 3",
    "0",
    "2",
    "-1",
    "-3",
    "n",
    "i + n",
    "j // 2",
    "i % m",
    "n - i",
    "far(i, n)",
    "far(j)",
    "nearest(i + 1, n)",
    "halved(j)",
)
IN_LOOPS = ("k", "k + i", "j - k", "k + 1", "2 * k", "k // 2", "k % m", "min(k, n)", "l", "k + l")
GUARDS = (
    "i < n",
    "i >= m",
    "0 < i < n",
    "i + 1 < n and j > 0",
    "j < n or i >= m",
    "not j == m",
    "n - j > 1",
    "n > m",
    "m <= 2",
    "t < n",
    "2 > c and i < n",
    "i != 0",
    "0 != j - m or n != m",
    "i != 2 and i != 3",
)
RANGES = ("n", "m, n", "n, 0, -1", "0, n, 2", "m, -2, -3", "x.shape[0]", "len(y) - 1", "3", "int(2 * v[i])")
COUNTING = (
    ("0", "{} < n", "+= 1"),
    ("i", "n >= {}", "+= 1"),
    ("j + 1", "{} < 6", "+= 2"),
    ("far(i)", "{} >= 0", "-= 1"),
    ("t", "{} < 4", "+= b"),
    ("n", "m < {}", "-= 2"),
)
BY_THREADS = (
    "i",
    "j + 1",
    "i, n",
    "i, j",
    "j - 1, j + n",
    "i - 1, -1, -1",
    "i // 2, 2 * j",
    "n - i",
    "far(j, i)",
    "i, i % m",
)


@st.composite
def programs(draw, is_simple=False):
    """Draw a body of accesses, some of which only some threads come to; and whether all of them come to all."""
    element = st.builds(
        "{}[{}, {}]".format, st.sampled_from("wxyz"), st.sampled_from(INDICES), st.sampled_from(INDICES)
    )
    within = st.sampled_from((*INDICES[:7], *IN_LOOPS))
    looped = st.builds("{}[{}, {}]".format, st.sampled_from("wxyz"), within, within)

    within = st.sampled_from((*INDICES[:7], *(index for index in IN_LOOPS if "l" not in index)))
    in_one_loop = st.builds("{}[{}, {}]".format, st.sampled_from("wxyz"), within, within)

    def store(kind):
        form = draw(
            st.sampled_from(
                ("{0} = {1} + 0.5", "{0} += 0.5 * {1}", "{0} = {1} - {0}", "{0} = {0} / 2.0", "{0} = max({1}, {0})")
            )
        )
        return form.format(draw(kind), draw(kind))

    def block(kind, depth, loops):
        """Return some lines, the names of the loops around them being known."""
        lines = []
        for _ in range(draw(st.integers(1, 2 if depth else 3))):
            one = draw(
                st.sampled_from(
                    ("plain", "plain", "if", "if", "for", "for", "while", "end", "either", "and", "unknown", "call")
                )
            )
            one = "plain" if depth > 2 or (loops > 1 and one in ("for", "while")) else one
            if one == "plain":
                lines += [store(kind)]
            elif one in ("if", "unknown"):
                head = draw(st.sampled_from(GUARDS)) if one == "if" else f"{draw(kind)} > 0.6"
                lines += [f"if {head}:", *indented(block(kind, depth + 1, loops))]
                if draw(st.booleans()):
                    lines += ["else:", *indented(block(kind, depth + 1, loops))]
            elif one == "for":
                name, inner = "kl"[loops], looped if loops else in_one_loop
                lines += [
                    f"for {name} in range({draw(st.sampled_from(RANGES + BY_THREADS))}):",
                    *indented(block(inner, depth + 1, loops + 1)),
                ]
            elif one == "while":
                name, inner = "kl"[loops], looped if loops else in_one_loop
                begin, test, step = draw(st.sampled_from(COUNTING))
                within = [line.replace("continue", "break") for line in block(inner, depth + 1, loops + 1)]
                lines += [f"{name} = {begin}", f"while {test.format(name)}:", *indented([*within, f"{name} {step}"])]
            elif one == "end":
                ends = ("return", "continue", "break") if loops else ("return",)
                lines += [
                    f"if {draw(st.sampled_from(GUARDS))}:",
                    f"    {store(kind)}",
                    f"    {draw(st.sampled_from(ends))}",
                ]
            elif one == "call":
                names = [draw(st.sampled_from(("x", "y", "z"))), *(draw(st.sampled_from(INDICES[3:13])) for _ in "ab")]
                lines += [draw(st.sampled_from(("put({}, {}, {}, n)", "v[2] = below({}, {}, {})"))).format(*names)]
            elif one == "either":
                lines += [f"v[0] = {draw(kind)} if {draw(st.sampled_from(GUARDS))} else {draw(kind)}"]
            else:
                lines += [f"is_far = j > {draw(kind)} and {draw(kind)} > 0.0", f"v[1] = {draw(kind)}"]
        return lines

    if is_simple:
        return [store(element) for _ in range(draw(st.integers(1, 4)))]
    return block(element, 0, 0)


def indented(lines):
    return [f"    {line}" for line in lines]


class Watched:
    """An array that notes which threads change an element as they find it."""

    def __init__(self, array):
        self.array, self.shape, self.size = array, array.shape, array.size
        self.thread, self.found, self.changed_by = None, set(), {}

    def __len__(self):
        return len(self.array)

    def place(self, index):
        places = index if isinstance(index, tuple) else (index,)
        return tuple(k % extent for k, extent in zip(places, self.shape, strict=False))

    def __getitem__(self, index):
        self.found.add((self.thread, self.place(index)))
        return self.array[index]

    def __setitem__(self, index, value):
        self.array[index] = value
        if (self.thread, self.place(index)) in self.found:
            self.changed_by.setdefault(self.place(index), set()).add(self.thread)
        self.found.clear()


def is_overrun(function, dims, arguments, block=(1, 1), clashes=None):
    """Tell whether a run of all threads in plain Python takes an element that an array does not have.

    The names of arrays of which several threads change an element are added to `clashes`.
    """
    names = function.__code__.co_varnames
    watched = {name: Watched(a.copy()) for name, a in zip(names, arguments, strict=False) if isinstance(a, np.ndarray)}
    arguments = [watched.get(name, a) for name, a in zip(names, arguments, strict=False)]
    local, space = SimpleNamespace(array=np.zeros), dict(function.__globals__)
    blocks = {}
    function.__globals__["below"] = below.py_func
    try:
        for i, j in np.ndindex(*dims):
            place, number = SimpleNamespace(x=i % block[0]), SimpleNamespace(y=j // block[1])
            size, in_block = SimpleNamespace(x=block[0]), (i // block[0], j // block[1])
            for array in (*watched.values(), *blocks.values()):
                array.thread = i, j

            def shared_array(shape, dtype, key=in_block, thread=(i, j)):
                memory = blocks.setdefault(key, Watched(np.zeros(shape, dtype)))
                memory.thread = thread
                return memory

            shared = SimpleNamespace(array=shared_array)
            function.__globals__["cuda"] = SimpleNamespace(
                threadIdx=place, blockIdx=number, blockDim=size, local=local, shared=shared
            )
            function.__globals__["nb"] = SimpleNamespace(tid=lambda i=i, j=j: (i, j))
            function(*arguments)
    except IndexError:
        return True
    finally:
        function.__globals__.update(space)
    if clashes is not None:
        arrays = (*watched.items(), *(("w", memory) for memory in blocks.values()))
        clashes.update(name for name, array in arrays if any(len(by) > 1 for by in array.changed_by.values()))
    return False


@dataclass(frozen=True)
class Launch:
    """What a launch knows of itself."""

    dims: tuple
    arguments: dict
    blocks: tuple = (1, 1)

    def along(self, kind, axis):
        threads, block = self.dims[axis], self.blocks[axis]
        return {"dim": threads, "blockDim": block, "gridDim": -(-threads // block)}[kind]

    def shape(self, name):
        return self.arguments[name].shape

    def number(self, name):
        return self.arguments[name]

    def choose(self, of, left, right):
        return of(left, right)


def drawn(lines, memory):
    """Return the kernel of some lines, and the same as plain Python, with local and shared memory of so many elements."""
    head = (
        "i, j = nb.tid()",
        "t, c, b = cuda.threadIdx.x, cuda.blockIdx.y, cuda.blockDim.x",
        f"z = cuda.local.array({memory}, np.float64)",
        f"w = cuda.shared.array({memory}, np.float64)",
    )
    return made("\n".join(["def k(x, y, v, n, m):", *indented([*head, *lines]), ""]), np=np, **FUNCTIONS)


DIMS, BLOCKS = st.tuples(*[st.integers(0, 4)] * 2), st.tuples(*[st.integers(1, 3)] * 2)
NUMBERS, SEEDS = st.tuples(st.integers(-1, 6), st.integers(-2, 6).filter(bool)), st.integers(0, 2**32 - 1)


@settings(max_examples=350, deadline=None)
@given(
    st.one_of(programs(), programs(), programs(is_simple=True)),
    DIMS,
    BLOCKS,
    st.tuples(*[st.integers(1, 7)] * 4),
    NUMBERS,
    SEEDS,
)
def test_random_programs_against_plain_python(lines, dims, block, shape, numbers, seed):
    kernel, function = drawn(lines, (4, 3))
    random = np.random.default_rng(seed)
    arguments = [*(random.random(extents) for extents in (shape[:2], shape[2:], (8,))), *numbers]
    launch = Launch(dims, dict(zip("xyvnm", arguments, strict=True)), block)
    reaches = () if 0 in dims else [reach for reach in reaches_of(kernel) if not isinstance(reach, Clash)]
    is_refused = any(reach.missing(launch, operator.lt) for reach in reaches)
    overruns = bool(is_overrun(function, dims, arguments, block))
    assert overruns or not is_refused, lines
    # How far a loop has come where it ends is not known.
    is_straight = all(line.startswith(("w[", "x[", "y[", "z[")) for line in lines)
    is_straight = is_straight and not any(re.search(r"n - i|halved", line) for line in lines)
    event(f"refused {is_refused}, overruns {overruns}")
    assert is_refused or not (is_straight and overruns), lines


@settings(max_examples=350, deadline=None)
@given(programs(), DIMS, BLOCKS, NUMBERS, SEEDS)
def test_what_threads_of_random_programs_change_at_once(lines, dims, block, numbers, seed):
    kernel, function = drawn(lines, (40, 40))
    random = np.random.default_rng(seed)
    arguments = [*(random.random(extents) for extents in ((40, 40), (40, 40), (8,))), *numbers]
    launch = Launch(dims, dict(zip("xyvnm", arguments, strict=True)), block)
    found = () if 0 in dims else [reach for reach in reaches_of(kernel) if isinstance(reach, Clash)]
    refused, changed = {clash.array for clash in found if clash.missing(launch, operator.lt)}, set()
    assume(not is_overrun(function, dims, arguments, block, changed))
    event(f"refused {bool(refused)}, changed {bool(changed)}")
    assert refused <= changed, lines


COMPILED = (
    "if i < n:\n    y[i, 0] = x[0, i]",
    "if i >= n or j >= x.shape[0]:\n    return\ny[i, j] = 1",
    "for k in range(x.shape[1]):\n    y[i, j] += x[i, k] * x[k, j]",
    "for k in range(m, n, 2):\n    y[k, i] = x[i, k + j]",
    "if 0 < i < x.shape[0] - 1 and 0 < j:\n    y[i, j] = x[i - 1, j + n]",
    "y[i // 2, i % 3] = x[(i * n + j) // 5, min(i, m)]",
    "if n > m:\n    for k in range(x.size):\n        y[0, k - i] = 1",
    "y[n - m, i - n] = 1\nif i < x.shape[0] - j:\n    x[i, j] = 1",
    "if j < y.size // 4 and i < x.shape[1] * n - m:\n    y[j, i] = 1",
)


@pytest.mark.parametrize("body", COMPILED)
def test_compiled_code_decides_as_python_does(body, monkeypatch):
    kernel, function = made(
        f"def k(x, y, n, m):\n    i, j = nb.tid()\n{''.join(f'    {line}' for line in body.splitlines(True))}\n"
    )
    asked = []
    monkeypatch.setattr(
        launch_module, "check_extents", lambda *arguments: asked.append(arguments) or check_extents(*arguments)
    )
    random, outcomes = np.random.default_rng(1), set()
    nb.launch(kernel, (1, 1), [np.ones((64, 64)), np.ones((64, 64)), 1, 1])
    for _ in range(300):
        dims, rows, columns = (tuple(random.integers(0 if k == 0 else 1, 6, 2).tolist()) for k in range(3))
        # What lies behind the ends is memory, too.
        arrays = [np.zeros(4096)[: a * b].reshape(a, b) for a, b in zip(rows, columns, strict=True)]
        arguments = [*arrays, *random.integers(-1, 6, 2).tolist()]
        launch = Launch(dims, dict(zip("xynm", arguments, strict=True)))
        is_short = 0 not in dims and any(reach.missing(launch, operator.lt) for reach in reaches_of(kernel))
        if not is_short and is_overrun(function, dims, arguments):
            continue
        asked.clear()
        if is_short:
            with pytest.raises(nb.NumbridgeValueError, match=r"of kernel 'k', parameter '[xy]': its shape is"):
                nb.launch(kernel, dims, arguments)
            assert not any(array.base.any() for array in arrays)
        else:
            nb.launch(kernel, dims, arguments)
        assert bool(asked) == is_short
        outcomes.add(is_short)
    assert outcomes == {False, True}


@nb.kernel
def shifted(x, y):
    i = nb.tid()
    y[i] = x[i + 1]


@nb.kernel
def tiled(x, y):
    tile = cuda.shared.array(32, np.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i]
    cuda.syncthreads()
    y[i] = tile[t]


@nb.kernel
def shifted_by(y, n):
    i = nb.tid()
    y[i + n] = 1.0


@nb.kernel
def guarded(x, y, n):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < n:
        y[i] = x[i]


@nb.kernel
def product(a: nb.array2d[float], b: nb.array2d[float], c: nb.array2d[float]):
    i, j = nb.tid()
    s = 0.0
    for k in range(a.shape[1]):
        s += a[i, k] * b[k, j]
    c[i, j] = s


@nb.kernel
def firsts(x: nb.array[float], n: int, y: nb.array[float]):
    i = nb.tid()
    if i < n:
        y[i] = x[i]


@nb.kernel
def scaled(x, s: float):
    i, j = nb.tid()
    x[i, j] *= s


@nb.kernel
def unit(x: nb.array[nb.vec3], out: nb.array[float]):
    i = nb.tid()
    out[i] = nb.length(x[i])


def f32(*shape):
    return np.ones(shape, np.float32)


WAYS = {
    "launch": lambda kernel, dim, *arguments: nb.launch(kernel, dim, [*arguments]),
    "forall": lambda kernel, dim, *arguments: kernel.forall(dim)(*arguments),
    "brackets": lambda kernel, dim, *arguments: kernel[dim, 1](*arguments),
    "recorded": lambda kernel, dim, *arguments: nb.launch(kernel, dim, [*arguments], record_cmd=True).launch(),
    "in a block": lambda kernel, dim, *arguments: nb.launch(kernel, dim, [*arguments], block_dim=32),
}


@pytest.mark.parametrize("launched", WAYS.values(), ids=WAYS)
def test_a_launch_is_refused_before_anything_is_written(launched):
    x, y = f32(5), f32(5) * 0
    for _ in range(2):  # the second time the compiled entry knows the arguments
        with pytest.raises(
            nb.NumbridgeValueError, match=r"parameter 'x': its shape is \(5,\).* over \(5,\) takes x\[i \+ 1\]"
        ):
            launched(shifted, 5, x, y)
        assert not y.any()
        launched(shifted, 4, x, y)
        assert y.tolist() == [1, 1, 1, 1, 0]
        y[:] = 0
    for short in (y[:3], y[1:4], y[:0], y[::2]):
        with pytest.raises(nb.NumbridgeValueError, match=rf"parameter 'y': its shape is \({len(short)},\)"):
            launched(shifted, 4, x, short)
    assert not y.any()
    launched(shifted, 0, x[:0], y[:0])  # no thread, no element


def test_the_message():
    with pytest.raises(nb.NumbridgeValueError) as caught:
        nb.launch(scaled, (2, 4), [f32(2, 3), 2.0])
    first, *place = str(caught.value).splitlines()
    assert first == (
        "launch of kernel 'scaled', parameter 'x': its shape is (2, 3), and each thread of a launch over (2, 4) takes x[i, j], "
        "so axis 1 must have 4 elements or more; kernels do not broadcast: pass a longer array, launch fewer threads, or guard "
        "what those beyond its end must not take"
    )
    assert "test_reaches.py" in place[0] and place[1].strip() == "x[i, j] *= s" and place[2].strip() == "^"


def test_messages_of_guards_and_loops():
    with pytest.raises(nb.NumbridgeValueError) as caught:
        nb.launch(product, (3, 4), [f32(3, 5), f32(4, 4), f32(3, 4)])
    first, *place = str(caught.value).splitlines()
    assert first == (
        "launch of kernel 'product', parameter 'b': its shape is (4, 4), and a launch over (3, 4) takes b[k, j] with k = 4, so "
        "axis 0 must have 5 elements or more: pass a longer array, or end the loop or the guard around it earlier"
    )
    assert place[1].strip() == "s += a[i, k] * b[k, j]" and place[2].index("^") == place[1].index("b[k")
    with pytest.raises(
        nb.NumbridgeValueError, match=r"a launch over \(256,\) takes y\[i\] with i = 99, so axis 0 must have 100"
    ):
        guarded[2, 128](f32(100), f32(99), 100)
    guarded[2, 128](f32(100), f32(100), 100)
    guarded[2, 128](f32(100), f32(99), 99)
    guarded[2, 128](f32(100), f32(99), np.int32(99))


def test_blocks_that_are_larger_than_their_memory():
    x, y = f32(64), f32(64) * 0
    for _ in range(2):
        with pytest.raises(nb.NumbridgeValueError) as caught:
            tiled[1, 64](x, y)
        first, *place = str(caught.value).splitlines()
        assert first == (
            "launch of kernel 'tiled', local or shared memory 'tile': its shape is (32,), and a launch over (64,) in blocks of "
            "(64,) takes tile[t] with t = 63, so axis 0 must have 64 elements or more: make it larger, or launch smaller blocks"
        )
        assert place[1].strip() == "tile[t] = x[i]" and not y.any()
        tiled[2, 32](x, y)
        assert y.all()
        y[:] = 0
    nb.launch(tiled, 20, [x, y], block_dim=64)  # no thread has a place from 32 on
    with pytest.raises(nb.NumbridgeValueError, match=r"over \(40,\) in blocks of \(64,\) takes tile\[t\] with t = 39"):
        nb.launch(tiled, 40, [x, y], block_dim=64)


@nb.func
def put(memory, place, value):
    memory[place] = value


@nb.kernel
def of_numbers(x):
    kept = cuda.shared.array(0, float64)
    t = cuda.threadIdx.x
    put(kept, t, x[t])
    cuda.syncthreads()
    x[t] = kept[cuda.blockDim.x - 1 - t]


@nb.kernel
def of_vectors(x):
    kept = cuda.shared.array(0, nb.vec3)
    t = cuda.threadIdx.x
    kept[t] = nb.vec3(x[t], 0.0, 0.0)
    cuda.syncthreads()
    x[t] = kept[cuda.blockDim.x - 1 - t][0]


@nb.kernel
def of_bytes(x):
    kept = cuda.shared.array(0, nb.uint8)
    t = cuda.threadIdx.x
    kept[t] = int(x[t])
    cuda.syncthreads()
    x[t] = kept[cuda.blockDim.x - 1 - t]


@pytest.mark.parametrize(("kernel", "size"), [(of_numbers, 8), (of_vectors, 12), (of_bytes, 1)])
def test_memory_that_a_launch_brings_and_that_is_too_small(kernel, size):
    x = np.arange(16, dtype=np.float32)
    for _ in range(2):
        for brought in (16 * size - 1, 1):
            wanted = f"launch it with {16 * size} bytes of shared memory or more, or in smaller blocks"
            with pytest.raises(
                nb.NumbridgeValueError, match=rf"'kept': its shape is \({brought // size},\).*: {wanted}\n"
            ):
                kernel[1, 16, 0, brought](x)
        kernel[1, 16, 0, 16 * size](x)
    assert (x == np.arange(16)).all()  # reversed twice
    kernel[1, 8, 0, 8 * size](x)
    assert (x[:8] == np.arange(8)[::-1]).all()


def test_an_integer_that_is_no_size():
    @nb.kernel
    def below(y, n: float):
        i = nb.tid()
        if i < n:
            y[i] = 1.0

    y = f32(3)
    nb.launch(below, 3, [y, 2.5])
    nb.launch(below, 3, [y, 2])
    with pytest.raises(nb.NumbridgeValueError, match="must have 9223372036854775807 elements"):
        nb.launch(shifted_by, 1, [y, 2**63 - 2])


BIG = {"FARTHEST": 2**63 - 1}


@pytest.mark.parametrize(
    ("body", "number", "length"),
    [
        ("if i < n:\n    y[i + n] = 1.0", 2**63 - 1, 2**63 + 3),
        ("y[i + n * n] = 1.0", 2**32, 2**64 + 4),
        ("y[i + n * n] = 1.0", -(2**32) - 1, 2**64 + 2**33 + 5),
        ("if n * n > 5:\n    y[i - n] = 1.0", -(2**32), 2**32 + 4),
        ("for k in range(n * n):\n    y[k] = 1.0", 2**32, 2**64),
        ("y[i + FARTHEST] = 1.0", 0, 2**63 + 3),
        ("y[FARTHEST] = 1.0", 0, 2**63),
        ("y[0] = n\ny[n - FARTHEST] = 1.0", -5, 2**63 + 4),
    ],
)
def test_what_64_bits_do_not_hold_does_not_come_back_into_an_array(body, number, length):
    kernel, _ = made(
        f"def k(y, n):\n    i = nb.tid()\n{''.join(f'    {line}' for line in body.splitlines(True))}\n", **BIG
    )
    y = np.zeros(64)
    with pytest.raises(nb.NumbridgeValueError, match=f"axis 0 must have {length} elements"):
        nb.launch(kernel, 4, [y[:8], number])
    assert not y.any()


def test_integers_that_are_far_and_in_range():
    kernel, _ = made("def k(y, n):\n    i = nb.tid()\n    if i + n < FARTHEST:\n        y[i - n + n] = 1.0\n", **BIG)
    for number, wanted in ((2**62, 4), (-(2**63) + 1, 4), (2**63 - 3, 2)):
        y = np.zeros(4)
        nb.launch(kernel, 4 if wanted == 4 else 2, [y, number])
        assert y.tolist() == [1.0] * wanted + [0.0] * (4 - wanted)


def test_arrays_of_other_frameworks_and_of_vectors():
    out = torch.zeros(3)
    for x in (f32(2, 3), torch.ones(2, 3), jnp.ones((2, 3)), nb.ones(2, dtype=nb.vec3)):
        with pytest.raises(nb.NumbridgeValueError, match=r"'x': its shape is \(2.*takes x\[i\], so axis 0 must have 3"):
            nb.launch(unit, 3, [x, out])
        nb.launch(unit, 2, [x, out])
        assert out.tolist() == [pytest.approx(3**0.5)] * 2 + [0]
        out.zero_()


def test_a_recorded_launch_that_is_given_other_extents():
    x, y = f32(5), f32(5) * 0
    command = nb.launch(shifted, 4, [x, y], record_cmd=True)
    command.launch()
    command.set_dim(5)
    with pytest.raises(nb.NumbridgeValueError, match="so axis 0 must have 6"):
        command.launch()
    command.set_param_by_name("x", f32(6) * 2)
    command.launch()
    assert y.tolist() == [2] * 5


def test_a_global_that_changes():
    kernel, function = made("def k(y):\n    i = nb.tid()\n    y[i + M] = 1\n", M=1)
    y = f32(4) * 0
    nb.launch(kernel, 3, [y])
    function.__globals__["M"] = 2
    for _ in range(2):
        with pytest.raises(nb.NumbridgeValueError, match=r"takes y\[i \+ M\], so axis 0 must have 5"):
            nb.launch(kernel, 3, [y])
    nb.launch(kernel, 2, [y])
    assert y.tolist() == [0, 1, 1, 1]


def test_adjoints_and_tapes():
    x, y = nb.ones(4, dtype=float, requires_grad=True), nb.zeros(4, dtype=float, requires_grad=True)
    with nb.Tape() as tape:
        with pytest.raises(nb.NumbridgeValueError, match="parameter 'x'"):
            nb.launch(shifted, 4, [x, y])
        nb.launch(shifted, 3, [x, y])
    tape.backward(grads={y: nb.ones(4, dtype=float)})
    assert x.grad.numpy().tolist() == [0, 1, 1, 1]
    with pytest.raises(nb.NumbridgeValueError, match=r"adjoint of shifted.*parameter 'x': its shape is \(4,\)"):
        nb.launch(shifted, 4, [x], [y], [x.grad], [y.grad], adjoint=True)
    adjoint = shifted.adjoint(["x", "y"])
    with pytest.raises(nb.NumbridgeValueError, match="parameter 'x'"):
        adjoint.forall(4)(f32(4), f32(4), f32(4), f32(4))


def test_on_cuda_nothing_is_launched():
    with fake_cuda() as driver:
        for _ in range(2):
            for x, y in ((4, 4), (5, 3)):
                arrays = [cuda_array((n,), address=0x7000_0000 + 4096 * n) for n in (x, y)]
                with pytest.raises(nb.NumbridgeValueError, match="of a launch over"):
                    nb.launch(shifted, 4, arrays)
            assert not driver.launches
            nb.launch(shifted, 4, [cuda_array((n,), address=0x7000_0000 + 4096 * n) for n in (5, 4)])
            assert len(driver.launches) == 1
            driver.launches.clear()


def test_launches_that_jax_traces():
    def twice(x: nb.array[float], y: nb.array[float]):
        nb.launch(shifted, x.shape[0], [x, y])

    with pytest.raises(nb.NumbridgeValueError, match=r"'x': its shape is \(4,\)"):
        nb.jax_callable(twice)(jnp.ones(4))


def test_guards_and_loops_that_jax_traces():
    matmul = nb.jax_kernel(product, launch_dims=(3, 4), output_dims=(3, 4))
    assert matmul(jnp.ones((3, 5)), jnp.ones((5, 4)))[0].tolist() == [[5.0] * 4] * 3
    with pytest.raises(
        nb.NumbridgeValueError, match=r"argument 'b': its shape is \(4, 4\), .* takes b\[k, j\] with k = 4"
    ):
        jax.jit(matmul)(jnp.ones((3, 5)), jnp.ones((4, 4)))
    kernel, x = nb.jax_kernel(firsts, launch_dims=4), jnp.arange(3.0)

    @partial(jax.jit, static_argnums=(1, 2))
    def first(x, n, output_dims):
        return kernel(x, n, output_dims=output_dims)

    assert first(x, 3, 3)[0].tolist() == [0, 1, 2]
    with pytest.raises(nb.NumbridgeValueError, match=r"output 'y': its shape is \(2,\), .* takes y\[i\] with i = 2"):
        first(x, 3, 2)
    # A number that is traced says nothing.
    assert jax.jit(lambda n: kernel(x, n, output_dims=3)[0])(2)[:2].tolist() == [0, 1]


OUTSIDE = np.array([1.0, 2.0])


@nb.func
def from_outside(place):
    return OUTSIDE[place]


@nb.kernel
def takes_from_outside(x):
    i = nb.tid()
    x[i] = from_outside(i)


@nb.kernel
def takes_as_far_as_there_is(x):
    i = nb.tid()
    if i < OUTSIDE.shape[0]:
        x[i] = OUTSIDE[i] + OUTSIDE[-1]


@nb.kernel
def in_memory_of_its_own(x):
    i = nb.tid()
    kept = np.zeros(3)
    kept[i] = 5.0
    x[i] = kept[0] + kept[1] + kept[2]


def test_arrays_from_outside_and_those_that_a_thread_makes(monkeypatch):
    text = r"array from outside 'OUTSIDE': its shape is \(2,\), .*takes OUTSIDE\[place\], so axis 0 must have 5 .*: take a longer"
    x = f32(5) * 0
    with pytest.raises(nb.NumbridgeValueError, match=text):
        nb.launch(takes_from_outside, 5, [x])
    with pytest.raises(nb.NumbridgeValueError, match=text):
        nb.launch(takes_from_outside, 5, [x], adj_inputs=[f32(5)], adjoint=True)
    with pytest.raises(
        nb.NumbridgeValueError, match=r"memory 'kept': its shape is \(3,\), .* takes kept\[i\], so axis 0"
    ):
        nb.launch(in_memory_of_its_own, 5, [x])
    assert not x.any()
    nb.launch(takes_as_far_as_there_is, 5, [x])
    assert x.tolist() == [3, 4, 0, 0, 0]
    nb.launch(takes_from_outside, 2, [x])
    nb.launch(in_memory_of_its_own, 3, [x])
    assert x.tolist() == [5, 5, 5, 0, 0]
    monkeypatch.setitem(globals(), "OUTSIDE", np.arange(5.0))
    nb.launch(takes_from_outside, 5, [x])
    assert x.tolist() == [0, 1, 2, 3, 4]
    monkeypatch.undo()
    with pytest.raises(nb.NumbridgeValueError, match=text):
        nb.launch(takes_from_outside, 5, [x])
