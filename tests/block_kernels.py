"""Kernels whose threads work together in blocks, with arguments and the answers that NumPy gives; `CASES` has those of warps too.

They are spelled as numba.cuda spells them, and use only what CUDA defines: every lane that a mask names gets there or has
returned, and every thread of a block reaches its barriers. Where a kernel runs is no matter of this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32

import numbridge as nb
import warp_operations
from block_cases import Case, numbers, of_count, rows
from warp_operations import FULL

TILE = 16


@nb.kernel
def block_sums(x, out):
    shared = cuda.shared.array(128, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


@nb.func
def warp_sum(value):
    for step in range(5):
        value += cuda.shfl_xor_sync(FULL, value, 16 >> step)
    return value


@nb.kernel
def sums_of_warp_sums(x, out):
    partial = cuda.shared.array(32, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    total = warp_sum(x[i])
    if t % 32 == 0:
        partial[t // 32] = total
    cuda.syncthreads()
    if t < 32:
        total = warp_sum(partial[t] if t < cuda.blockDim.x // 32 else int32(0))
        if t == 0:
            cuda.atomic.add(out, 0, total)


@nb.kernel
def block_scans(x, out):
    one = cuda.shared.array(256, int32)
    other = cuda.shared.array(256, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    one[t] = x[i]
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        other[t] = one[t] + (one[t - step] if t >= step else 0)
        cuda.syncthreads()
        one[t] = other[t]
        cuda.syncthreads()
        step *= 2
    out[i] = one[t]


@nb.kernel
def block_votes(x, limit, out):
    i = cuda.grid(1)
    below = int32(x[i] < limit)
    out[i, 0] = cuda.syncthreads_count(below)
    out[i, 1] = cuda.syncthreads_and(below)
    out[i, 2] = cuda.syncthreads_or(below)


@nb.kernel
def fast_matmul(a, b, c):
    # The example of Numba's documentation for matrices of any size
    a_tile = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    b_tile = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for tile in range((a.shape[1] + TILE - 1) // TILE):
        a_tile[ty, tx] = 0
        b_tile[ty, tx] = 0
        if y < a.shape[0] and tx + tile * TILE < a.shape[1]:
            a_tile[ty, tx] = a[y, tx + tile * TILE]
        if x < b.shape[1] and ty + tile * TILE < b.shape[0]:
            b_tile[ty, tx] = b[ty + tile * TILE, x]
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@nb.kernel
def transposed(x, out):
    tile = cuda.shared.array((32, 33), float32)
    column, row = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(ty, 32, cuda.blockDim.y):
        if row + k < x.shape[0] and column + tx < x.shape[1]:
            tile[k, tx] = x[row + k, column + tx]
    cuda.syncthreads()
    for k in range(ty, 32, cuda.blockDim.y):
        if column + k < x.shape[1] and row + tx < x.shape[0]:
            out[column + k, row + tx] = tile[tx, k]


@nb.kernel
def histogram(x, counts):
    shared = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        shared[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(shared, x[i], 1)
    cuda.syncthreads()
    if t < 16:
        cuda.atomic.add(counts, t, shared[t])


@nb.kernel
def reversed_dynamically(x, out):
    shared = cuda.shared.array(0, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i]
    cuda.syncthreads()
    out[i] = shared[cuda.blockDim.x - 1 - t] + shared.size


@nb.kernel
def two_in_one_dynamic_array(x, out):
    shared = cuda.shared.array(0, int32)
    n, i, t = cuda.blockDim.x, cuda.grid(1), cuda.threadIdx.x
    low, high = shared[:n], shared[n : 2 * n]
    low[t] = x[i]
    high[n - 1 - t] = 2 * x[i]
    cuda.syncthreads()
    out[i] = low[(t + 1) % n] - high[(t + 1) % n]


@nb.kernel
def differences_of_positions(x: nb.array[nb.vec3], out: nb.array[nb.vec3]):
    shared = cuda.shared.array(32, nb.vec3)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i]
    cuda.syncthreads()
    apart = shared[(t + 1) % 32] - shared[(t + 31) % 32]
    out[i] = 2.0 * apart + x[i]


@nb.kernel
def smoothed(x, out):
    # With two elements on either side, which the first threads fetch
    shared = cuda.shared.array(36, int32)
    i, t, n = cuda.grid(1), cuda.threadIdx.x, cuda.blockDim.x
    shared[t + 2] = x[i] if i < x.size else 0
    if t < 2:
        shared[t] = x[i - 2] if i >= 2 else 0
        shared[t + n + 2] = x[i + n] if i + n < x.size else 0
    cuda.syncthreads()
    if i < x.size:
        total = 0
        for k in range(5):
            total += shared[t + k]
        out[i] = total


@nb.kernel
def sorted_blocks(x, out):
    # Bitonic: all reach each barrier, in a loop within a loop.
    shared = cuda.shared.array(64, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i]
    size = 2
    while size <= 64:
        stride = size // 2
        while stride > 0:
            cuda.syncthreads()
            other = t ^ stride
            if other > t:
                low, high = shared[t], shared[other]
                if (low > high) == (t & size == 0):
                    shared[t], shared[other] = high, low
            stride //= 2
        size *= 2
    cuda.syncthreads()
    out[i] = shared[t]


@nb.func
def exchanged(shared, t, value):
    shared[t] = value
    cuda.syncthreads()
    found = shared[t ^ 1]
    cuda.syncthreads()
    return found


@nb.kernel
def barriers_in_functions(x, rounds, out):
    # How often all meet is an argument of the launch.
    shared = cuda.shared.array(64, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    value = x[i]
    for turn in range(rounds):
        value = exchanged(shared, t, value + t + turn)
    out[i] = value


@nb.kernel
def some_blocks(x, out):
    # A barrier under a condition that holds for all threads of a block, or for none
    shared = cuda.shared.array(32, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if cuda.blockIdx.x % 2:
        shared[t] = x[i]
        cuda.syncthreads()
        out[i] = shared[31 - t]
        return
    out[i] = -x[i]


@nb.kernel
def turned_cubes(x, out):
    shared = cuda.shared.array((2, 3, 4), int32)
    i, j, k = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    shared[i, j, k] = x[cuda.blockIdx.y, i, j, k]
    cuda.syncthreads()
    out[cuda.blockIdx.y, i, j, k] = shared[1 - i, 2 - j, 3 - k]


@nb.kernel
def extremes(x, out):
    low = cuda.shared.array(1, int32)
    high = cuda.shared.array(1, int32)
    column, row = cuda.grid(2)
    first = cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0
    if first:
        low[0] = 1 << 30
        high[0] = -(1 << 30)
    cuda.syncthreads()
    cuda.atomic.min(low, 0, x[row, column])
    cuda.atomic.max(high, 0, x[row, column])
    cuda.syncthreads()
    if first:
        out[cuda.blockIdx.y, cuda.blockIdx.x, 0] = low[0]
        out[cuda.blockIdx.y, cuda.blockIdx.x, 1] = high[0]


@nb.kernel
def kept_across_barriers(x, v: nb.array[nb.vec3], out, w: nb.array[nb.vec3]):
    # Everything that a thread has of its own is there after each barrier: numbers, tuples, elements, views and local arrays.
    shared = cuda.shared.array(48, int32)
    own = cuda.local.array(4, int32)
    i, t, n = cuda.grid(1), cuda.threadIdx.x, cuda.blockDim.x
    pair, element, view, z = (x[i], t), v[i], x[i:], complex(x[i], t)
    for k in range(4):
        own[k] = x[i] * k
    total = 0
    for k in range(3):
        shared[t] = own[k + 1] + pair[1]
        cuda.syncthreads()
        for j in range(k, 4, 2):
            total += shared[(t + j) % n] * (j + 1)
            own[j] += 1
        element = element + v[i] * float32(k)
        cuda.syncthreads()
    out[i] = total + pair[0] + own[3] + view[0] + int(z.imag)
    w[i] = element


@nb.kernel
def spread(x, out):
    # Until nothing changes in the block, which each thread learns at a barrier
    shared = cuda.shared.array(64, int32)
    i, t, n = cuda.grid(1), cuda.threadIdx.x, cuda.blockDim.x
    shared[t] = x[i]
    cuda.syncthreads()
    rounds = 0
    while True:
        largest = max(shared[t], shared[max(t - 1, 0)], shared[min(t + 1, n - 1)])
        changed = int32(largest != shared[t])
        if not cuda.syncthreads_or(changed):
            break
        shared[t] = largest
        rounds += 1
        cuda.syncthreads()
    out[i] = 1000 * rounds + shared[t]


@nb.kernel
def branches_of_blocks(x, limit, out):
    # Both sides have barriers, and which is taken is the same for a whole block.
    shared = cuda.shared.array(32, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i]
    cuda.syncthreads()
    if cuda.blockIdx.x < limit:
        for k in range(6):
            if k == cuda.blockIdx.x + 3:
                break
            value = shared[(t + 1) % 32]
            cuda.syncthreads()
            if k % 2:
                continue
            shared[t] = value + k
            cuda.syncthreads()
        cuda.syncthreads()
    else:
        value = shared[31 - t]
        cuda.syncthreads()
        shared[t] = -value
        cuda.syncthreads()
    out[i] = shared[t ^ 1]


@cuda.jit(device=True)
def total_before(shared, value):
    """Return the sum of the values of the threads before this one, and the sum of all."""
    t = cuda.threadIdx.x
    shared[t] = value
    cuda.syncthreads()
    before = 0
    for k in range(t):
        before += shared[k]
    total = before
    for k in range(t, cuda.blockDim.x):
        total += shared[k]
    cuda.syncthreads()
    return before, total


@nb.kernel
def compacted_blocks(x, out, counts):
    shared = cuda.shared.array(96, int32)
    i = cuda.grid(1)
    place, total = total_before(shared, int32(x[i] % 2 == 0))
    if x[i] % 2 == 0:
        out[cuda.blockIdx.x, place] = x[i]
    weight, _ = total_before(shared, x[i])
    if cuda.threadIdx.x == cuda.blockDim.x - 1:
        counts[cuda.blockIdx.x, 0] = total
        counts[cuda.blockIdx.x, 1] = weight + x[i]


@nb.kernel
def forces(x: nb.array[nb.vec3], out: nb.array[nb.vec3]):
    # All pairs, a tile of positions at a time
    tile = cuda.shared.array(32, nb.vec3)
    i, t = cuda.grid(1), cuda.threadIdx.x
    total = nb.vec3(0.0, 0.0, 0.0)
    for begin in range(0, x.shape[0], 32):
        tile[t] = x[begin + t]
        cuda.syncthreads()
        for k in range(32):
            apart = tile[k] - x[i]
            total += apart * nb.dot(apart, apart)
        cuda.syncthreads()
    out[i] = total


@nb.kernel
def dynamic_positions(x: nb.array[nb.vec3], out: nb.array[nb.vec3]):
    shared = cuda.shared.array(0, nb.vec3)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i]
    cuda.syncthreads()
    out[i] = shared[cuda.blockDim.x - 1 - t]


@nb.kernel
def products_of_matrices(x: nb.array[nb.mat22], out: nb.array[nb.mat22]):
    shared = cuda.shared.array(16, nb.mat22)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i]
    cuda.syncthreads()
    out[i] = shared[t] @ shared[(t + 1) % 16]


def reversed_in_blocks(kind: Any) -> Any:
    """Return a kernel with shared memory of a type."""

    @nb.kernel
    def reversed_of_a_type(x, out):
        shared = cuda.shared.array(40, kind)
        i, t = cuda.grid(1), cuda.threadIdx.x
        shared[t] = x[i]
        cuda.syncthreads()
        out[i] = shared[cuda.blockDim.x - 1 - t]

    return reversed_of_a_type


@nb.kernel
def tickets(x, drawn, last):
    # Atomics on shared memory return what it held: each thread draws a number of its own.
    counter = cuda.shared.array(2, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t < 2:
        counter[t] = 0
    cuda.syncthreads()
    number = cuda.atomic.add(counter, 0, 1)
    cuda.atomic.max(counter, 1, x[i])
    cuda.atomic.add(drawn, (cuda.blockIdx.x, number), 1)
    cuda.syncthreads()
    if number == cuda.blockDim.x - 1:
        last[cuda.blockIdx.x, 0] = counter[0]
        last[cuda.blockIdx.x, 1] = counter[1]


@nb.kernel
def cooled(x, steps, out):
    # Jacobi's iteration on a block of 8 x 8, in two planes of one shared array
    plane = cuda.shared.array((2, 8, 8), float32)
    column, row = cuda.threadIdx.x, cuda.threadIdx.y
    plane[0, row, column] = x[row, column]
    plane[1, row, column] = x[row, column]
    cuda.syncthreads()
    now = 0
    for _ in range(steps):
        if 0 < row < 7 and 0 < column < 7:
            beside = plane[now, row, column - 1] + plane[now, row, column + 1]
            plane[1 - now, row, column] = (
                beside + plane[now, row - 1, column] + plane[now, row + 1, column]
            ) / float32(4)
        now = 1 - now
        cuda.syncthreads()
    out[row, column] = plane[now, row, column]


# What NumPy says of them


def counted(x, limit, out):
    count = np.repeat((x < limit).reshape(-1, 96).sum(1), 96)
    return [np.stack([count, count == 96, count > 0], 1).astype(out.dtype)]


def rounds_of_blocks(x, rounds, out):
    found, t = x.reshape(-1, 64), np.arange(64, dtype=x.dtype)
    for turn in range(rounds):
        found = (found + t + turn)[:, t ^ 1]
    return [found.ravel().astype(out.dtype)]


def every_other_reversed(x, out):
    found = -rows(x)
    found[1::2] = -found[1::2, ::-1]
    return [found.ravel()]


def one_from_two(x, out):
    found = x.reshape(-1, 24)
    return [(np.roll(found, -1, 1) - 2 * np.roll(found[:, ::-1], -1, 1)).ravel()]


def differences_of_rows(x, out):
    found = x.reshape(-1, 32, 3)
    return [(2 * (np.roll(found, -1, 1) - np.roll(found, 1, 1)) + found).reshape(x.shape)]


def extremes_of_tiles(x, out):
    tiles = x.reshape(2, 8, 3, 4)
    return [np.stack([tiles.min((1, 3)), tiles.max((1, 3))], -1)]


def kept_of_blocks(x, v, out, w):
    found, t = x.reshape(-1, 48), np.arange(48)
    own = [found * k for k in range(4)]
    total = np.zeros_like(found)
    for k in range(3):
        shared = own[k + 1] + t
        for j in range(k, 4, 2):
            total += np.roll(shared, -j, 1) * (j + 1)
            own[j] = own[j] + 1
    return [(total + found + own[3] + found + t).ravel().astype(out.dtype), v * 4]


def spread_in_blocks(x, out):
    found = x.reshape(-1, 64).copy()
    for row in found:
        rounds = 0
        while True:
            largest = np.maximum(row, np.maximum(np.r_[row[:1], row[:-1]], np.r_[row[1:], row[-1:]]))
            if (largest == row).all():
                break
            row[:] = largest
            rounds += 1
        row[:] += 1000 * rounds
    return [found.ravel()]


def branched(x, limit, out):
    found = rows(x).copy()
    for block, row in enumerate(found):
        if block >= limit:
            row[:] = -row[::-1]
            continue
        for k in range(min(6, block + 3)):
            if k % 2 == 0:
                row[:] = np.roll(row, -1) + k
    return [found[:, np.arange(32) ^ 1].ravel()]


def compacted_evenly(x, out, counts):
    found = x.reshape(-1, 96)
    for row, of, count in zip(found, out, counts, strict=True):
        even = row[row % 2 == 0]
        of[: even.size] = even
        count[:] = even.size, row.sum()
    return [out, counts]


def forces_of_all(x, out):
    apart = x[None, :] - x[:, None]
    return [(apart * (apart * apart).sum(-1, keepdims=True)).sum(1)]


def cooled_evenly(x, steps, out):
    for _ in range(steps):
        after = x.copy()
        after[1:-1, 1:-1] = (((x[1:-1, :-2] + x[1:-1, 2:]) + x[:-2, 1:-1]) + x[2:, 1:-1]) / np.float32(4)
        x = after
    return [x]


def drawn_by_all(x, drawn, last):
    found = x.reshape(-1, 50)
    return [np.ones_like(drawn), np.stack([np.full(len(found), 50), found.max(1)], 1).astype(last.dtype)]


CASES = [
    *warp_operations.CASES,
    Case(
        "block sums",
        block_sums,
        3,
        128,
        of_count(300, (3,), dtype=np.float32),
        lambda x, out: [np.array([x[:128].sum(), x[128:256].sum(), x[256:].sum()], x.dtype)],
    ),
    Case(
        "sums of warp sums",
        sums_of_warp_sums,
        2,
        256,
        of_count(512, (1,)),
        lambda x, out: [np.array([x.sum()], x.dtype)],
    ),
    Case(
        "block scans",
        block_scans,
        2,
        200,
        of_count(400, (400,)),
        lambda x, out: [x.reshape(2, 200).cumsum(1).ravel().astype(x.dtype)],
    ),
    *(
        Case(
            f"block votes below {limit}",
            block_votes,
            2,
            96,
            lambda limit=limit: [np.sort(numbers(192)), limit, np.full((192, 3), 9, np.int32)],
            counted,
        )
        for limit in (-2000, 0, 2000)
    ),
    Case(
        "matrix product",
        fast_matmul,
        (3, 2),
        (TILE, TILE),
        lambda: [
            numbers(20 * 37, np.float32).reshape(20, 37),
            numbers(37 * 41, np.float32, 9).reshape(37, 41),
            np.zeros((20, 41), np.float32),
        ],
        lambda a, b, c: [a @ b],
    ),
    Case(
        "transposed",
        transposed,
        (2, 3),
        (32, 8),
        lambda: [numbers(70 * 50, np.float32).reshape(70, 50), np.zeros((50, 70), np.float32)],
        lambda x, out: [x.T],
    ),
    Case(
        "histogram",
        histogram,
        3,
        64,
        lambda: [numbers(500, np.int32) % 16, np.zeros(16, np.int32)],
        lambda x, counts: [np.bincount(x, minlength=16).astype(counts.dtype)],
    ),
    Case(
        "reversed dynamically",
        reversed_dynamically,
        2,
        48,
        of_count(96, (96,), dtype=np.float32),
        lambda x, out: [x.reshape(2, 48)[:, ::-1].ravel() + 50],
        shared=200,
    ),
    Case(
        "two in one dynamic array",
        two_in_one_dynamic_array,
        2,
        24,
        of_count(48, (48,)),
        one_from_two,
        shared=2 * 24 * 4,
    ),
    Case(
        "differences of positions",
        differences_of_positions,
        2,
        32,
        lambda: [numbers(192, np.float32).reshape(64, 3), np.zeros((64, 3), np.float32)],
        differences_of_rows,
    ),
    Case(
        "smoothed",
        smoothed,
        3,
        32,
        of_count(90, (90,)),
        lambda x, out: [np.convolve(x, np.ones(5, x.dtype), "same")],
    ),
    Case(
        "sorted blocks",
        sorted_blocks,
        2,
        64,
        of_count(128, (128,)),
        lambda x, out: [np.sort(x.reshape(2, 64), 1).ravel()],
    ),
    Case(
        "barriers in functions",
        barriers_in_functions,
        2,
        64,
        lambda: [numbers(128), 5, np.zeros(128, np.int32)],
        rounds_of_blocks,
    ),
    Case("some blocks", some_blocks, 4, 32, of_count(128, (128,)), every_other_reversed),
    Case(
        "turned cubes",
        turned_cubes,
        (1, 2),
        (2, 3, 4),
        lambda: [numbers(48).reshape(2, 2, 3, 4), np.zeros((2, 2, 3, 4), np.int32)],
        lambda x, out: [x[:, ::-1, ::-1, ::-1]],
    ),
    Case(
        "extremes",
        extremes,
        (3, 2),
        (4, 8),
        lambda: [numbers(192).reshape(16, 12), np.zeros((2, 3, 2), np.int32)],
        extremes_of_tiles,
    ),
    Case(
        "kept across barriers",
        kept_across_barriers,
        2,
        48,
        lambda: [
            numbers(96),
            numbers(288, np.float32).reshape(96, 3),
            np.zeros(96, np.int32),
            np.zeros((96, 3), np.float32),
        ],
        kept_of_blocks,
    ),
    Case("spread", spread, 2, 64, of_count(128, (128,), high=100), spread_in_blocks),
    Case(
        "branches of blocks",
        branches_of_blocks,
        5,
        32,
        lambda: [numbers(160), 4, np.zeros(160, np.int32)],
        branched,
    ),
    Case("compacted blocks", compacted_blocks, 2, 96, of_count(192, (2, 96), (2, 2)), compacted_evenly),
    Case(
        "forces",
        forces,
        2,
        32,
        lambda: [numbers(192, np.float32, 5).reshape(64, 3), np.zeros((64, 3), np.float32)],
        forces_of_all,
    ),
    Case(
        "dynamic positions",
        dynamic_positions,
        2,
        20,
        lambda: [numbers(120, np.float32).reshape(40, 3), np.zeros((40, 3), np.float32)],
        lambda x, out: [x.reshape(2, 20, 3)[:, ::-1].reshape(40, 3)],
        shared=20 * 12,
    ),
    Case(
        "products of matrices",
        products_of_matrices,
        2,
        16,
        lambda: [numbers(128, np.float32, 50).reshape(32, 2, 2), np.zeros((32, 2, 2), np.float32)],
        lambda x, out: [(x.reshape(2, 16, 2, 2) @ np.roll(x.reshape(2, 16, 2, 2), -1, 1)).reshape(x.shape)],
    ),
    *(
        Case(
            f"reversed in blocks, {name}",
            reversed_in_blocks(getattr(np, name)),
            2,
            40,
            of_count(80, (80,), high=100, dtype=getattr(np, name)),
            lambda x, out: [x.reshape(2, 40)[:, ::-1].ravel()],
        )
        for name in ("bool_", "int8", "uint16", "int64", "float16", "float64", "complex64")
    ),
    Case("one thread", reversed_in_blocks(np.int32), 3, 1, of_count(3, (3,)), lambda x, out: [x]),
    Case("tickets", tickets, 2, 50, of_count(100, (2, 50), (2, 2)), drawn_by_all),
    Case(
        "cooled",
        cooled,
        1,
        (8, 8),
        lambda: [numbers(64, np.float32).reshape(8, 8), 7, np.zeros((8, 8), np.float32)],
        cooled_evenly,
    ),
    Case(
        "sums of a thousand threads",
        sums_of_warp_sums,
        1,
        1024,
        of_count(1024, (1,)),
        lambda x, out: [np.array([x.sum()], x.dtype)],
    ),
]
