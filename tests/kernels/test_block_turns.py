"""Loops in which the threads of a block take turns, within kernels that share memory: bit for bit what coroutines compute.

Random loops: of the grid and of a block, as ``for`` and as ``while``, from many beginnings, by many steps, up to limits that few
threads or none come to, with jumps, nested ones, and additions to shared memory in them.
"""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from adjoint_programs import declared
from block_loop_programs import copies, in_loops, same
from numbridge.kernels.geometry import geometry_of
from numbridge.kernels.launch import launcher

BLOCK = 48
STARTS = (
    *(
        "cuda.grid(1)",
        "t",
        "t + cuda.blockIdx.x * cuda.blockDim.x",
        "cuda.blockDim.x * cuda.blockIdx.x + t",
        "i",
        "i + 3",
    ),
    *("2 * t", "i - 5", "t * t", "n - t", "x.shape[0] - i"),
)
STEPS = (
    *("cuda.gridsize(1)", "cuda.blockDim.x * cuda.gridDim.x", "cuda.blockDim.x", "48", "stride", "7"),
    *("2 * cuda.blockDim.x", "n", "cuda.gridsize(1) // 2"),
)
LIMITS = ("x.shape[0]", "x.size", "n", "200", "n - 4", "m", "x.shape[0] - n", "width", "n * 2")
BODIES = (
    ("s += x[k % 300]",),
    ("s = s * 0.5 + x[k % 300] * y[i % 300]", "c += 1"),
    ("cuda.atomic.add(count, (k * 7) % 32, 1)",),
    ("cuda.atomic.add(count, k % 32, k)", "s += x[k % 300]"),
    ("cuda.atomic.max(count, k % 32, k * 3 % 17)",),
    ("cuda.atomic.sub(count, k % 32, 2)", "cuda.atomic.xor(count, (k + 1) % 32, k)"),
    ("cuda.atomic.add(total, k % 32, x[k % 300])",),
    ("c += cuda.atomic.add(count, k % 32, 1)",),
    ("total[t % 32] += x[k % 300]",) * 1,
    ("for j in range(3):", "    s += x[(k + j) % 300] * j"),
    ("if x[k % 300] > 0.9:", "    s += x[k % 300]"),
    ("s += x[k % 300]", "if s > 9.0:", "    break"),
    ("for j in range(t, 100, cuda.blockDim.x):", "    s += x[(k + j) % 300] * j"),
)


def program(number):
    choices = random.Random(number)
    lines = ["def generated(x, y, n, m, out, counts):"]
    lines += [
        f"    {line}" for line in ("total = cuda.shared.array(32, float64)", "count = cuda.shared.array(32, int32)")
    ]
    lines += [
        f"    {line}" for line in ("t, i = cuda.threadIdx.x, cuda.grid(1)", "s, c = 0.0, 0", "width = x.shape[0]")
    ]
    lines += ["    stride = cuda.blockDim.x * cuda.gridDim.x"]
    lines += ["    if t < 32:", "        total[t] = 0.5", "        count[t] = 1", "    cuda.syncthreads()"]
    for _ in range(choices.choice((1, 1, 2))):
        start, step, limit = choices.choice(STARTS), choices.choice(STEPS), choices.choice(LIMITS)
        body = choices.choice(BODIES)
        if choices.random() < 0.5:
            lines.append(f"    for k in range({start}, {limit}, {step}):")
            lines += [f"        {line}" for line in body]
        else:
            sign = choices.choice(("k < {}", "{} > k", "k < {}", "k <= {}", "k != {} and k < 500"))
            lines += [f"    k = {start}", f"    while {sign.format(limit)}:"]
            lines += [f"        {line}" for line in body]
            lines.append(f"        {choices.choice(('k += {}', 'k = k + {}', 'k = {} + k')).format(step)}")
            lines.append("    c += k")
        if choices.random() < 0.7:
            lines.append("    cuda.syncthreads()")
    lines += ["    cuda.syncthreads()", "    out[i] = s + total[t % 32]", "    counts[i] = c + count[t % 32]"]
    return "\n".join(lines) + "\n"


def launched(kernel, blocks, values):
    given = copies(values)
    launcher(kernel, geometry_of(kernel, blocks * BLOCK, BLOCK))(*given)
    return given


def values_of(number, n, m):
    uniform = np.random.default_rng(number).uniform
    x, y = uniform(0.1, 1, 300), uniform(0.1, 1, 300)
    return [x, y, n, m, np.zeros(5 * BLOCK), np.zeros(5 * BLOCK, np.int64)]


def both(number):
    text = program(number)
    return text, *(
        declared(text, how, cuda=cuda, float64=np.float64, int32=np.int32) for how in (nb.kernel, nb.kernel(simd=False))
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("number", range(24))
def test_random_turns(number):
    text, one, other = both(number)
    for blocks, (n, m) in itertools.product((1, 3), ((96, 300), (250, 1), (5, -3))):
        values = values_of(number, n, m)
        same(launched(one, blocks, values), launched(other, blocks, values), text)
    assert not in_loops(other)


def summed(x, out):
    shared, t, s = cuda.shared.array(BLOCK, np.float64), cuda.threadIdx.x, 0.0
    for k in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        s += x[k]
    shared[t] = s
    cuda.syncthreads()
    if t == 0:
        for j in range(1, BLOCK):
            s += shared[j]
        out[cuda.blockIdx.x] = s


def summed_as_long_as(x, out):
    shared, t, s = cuda.shared.array(BLOCK, np.float64), cuda.threadIdx.x, 0.0
    k = t + cuda.blockIdx.x * cuda.blockDim.x
    stride = cuda.blockDim.x * cuda.gridDim.x
    while k < x.size:
        s += x[k]
        k += stride
    shared[t] = s
    cuda.syncthreads()
    if t == 0:
        for j in range(1, BLOCK):
            s += shared[j]
        out[cuda.blockIdx.x] = s


def counted(x, out):
    shared, t = cuda.shared.array(64, np.int32), cuda.threadIdx.x
    for k in range(t, 64, cuda.blockDim.x):
        shared[k] = 0
    cuda.syncthreads()
    for k in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(shared, int(x[k] * 64), 1)
    cuda.syncthreads()
    for k in range(t, 64, cuda.blockDim.x):
        cuda.atomic.add(out, k, shared[k])


@pytest.mark.parametrize("function", [summed, summed_as_long_as, counted], ids=lambda function: function.__name__)
@pytest.mark.parametrize("size", [0, 1, 47, 48, 144, 145, 1000])
def test_known_loops_run_in_lanes(function, size):
    x = np.random.default_rng(1).uniform(0, 1, size)
    one, other = nb.kernel(function), nb.kernel(simd=False)(function)
    out = np.zeros(64, np.int32) if function is counted else np.zeros(3)
    results = [launched(kernel, 3, [x, out]) for kernel in (one, other)]
    same(*results, function.__name__)
    if function is counted:
        assert np.array_equal(results[0][1], np.bincount((x * 64).astype(int), minlength=64))
    else:
        assert np.allclose(results[0][1].sum(), x.sum())
    source = one.explain(x, out).source
    assert in_loops(one) and re.search(r"_nb_lanes_\w*part_\d+\(", source) and "_nb_common_of_1" in source


def alike(x, out):
    """All threads begin at one number, so that they make the same trips."""
    shared, t, s = cuda.shared.array(BLOCK, np.float64), cuda.threadIdx.x, 0.0
    for k in range(2, x.shape[0], 5):
        s += x[k] * t
    shared[t] = s
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = shared[BLOCK - 1]


def test_loops_that_all_threads_run_alike_stay_as_they_are():
    x, out = np.random.default_rng(1).uniform(0, 1, 100), np.zeros(3)
    one, other = nb.kernel(alike), nb.kernel(simd=False)(alike)
    same(*(launched(kernel, 3, [x, out]) for kernel in (one, other)), "alike")
    assert in_loops(one) and "_nb_common_of" not in one.explain(x, out).source
