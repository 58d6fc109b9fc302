"""Kernels whose threads work together and that have derivatives, with arguments; and what tells whether these are right."""

# ruff: noqa: B007, B905 - kernels as users write them

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import cuda

import numbridge as nb
from numbridge.kernels.geometry import Geometry, geometry_of
from numbridge.kernels.launch import launcher
from numbridge.kernels.variant import Place

ALL = 0xFFFFFFFF
random = np.random.default_rng(11)


def uniform(*shape: int, low: float = 0.3, high: float = 1.6) -> np.ndarray:
    return random.uniform(low, high, shape)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape)


@nb.kernel
def sums_of_squares(x, y):
    """A tree, whose adjoint needs nothing of what it added."""
    shared = cuda.shared.array(64, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i] * x[i] if i < x.shape[0] else 0.0
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            shared[t] += shared[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        y[cuda.blockIdx.x] = shared[0]


@nb.kernel
def products(x, y):
    """A tree, whose adjoint needs what it multiplied, on every level."""
    shared = cuda.shared.array(32, np.float64)
    t = cuda.threadIdx.x
    shared[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    stride = 16
    while stride > 0:
        if t < stride:
            shared[t] *= shared[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        y[cuda.blockIdx.x] = shared[0]


@nb.kernel
def stepped(x, y, n):
    """Steps of a map of neighbours, in place between two barriers."""
    shared = cuda.shared.array(48, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    for k in range(n):
        value = math.sin(shared[t] + 0.5 * shared[(t + 1) % 48] * shared[(t + 5) % 48])
        cuda.syncthreads()
        shared[t] = value
        cuda.syncthreads()
    y[i] = shared[47 - t]


@nb.kernel
def matmul(a, b, c):
    """Tiles in shared memory, which every trip overwrites."""
    tile_a = cuda.shared.array((8, 8), np.float64)
    tile_b = cuda.shared.array((8, 8), np.float64)
    ty, tx = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8
    blocks = (b.shape[1] + 7) // 8
    row, column = cuda.blockIdx.x // blocks * 8 + ty, cuda.blockIdx.x % blocks * 8 + tx
    total = 0.0
    for k in range((a.shape[1] + 7) // 8):
        tile_a[ty, tx] = a[row, k * 8 + tx] if row < a.shape[0] and k * 8 + tx < a.shape[1] else 0.0
        tile_b[ty, tx] = b[k * 8 + ty, column] if k * 8 + ty < b.shape[0] and column < b.shape[1] else 0.0
        cuda.syncthreads()
        for j in range(8):
            total += tile_a[ty, j] * tile_b[j, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@nb.kernel
def softmax(x, y):
    """Rows of a block: the largest, then what they add up to, by barriers and by lanes."""
    shared = cuda.shared.array(64, np.float64)
    totals = cuda.shared.array(2, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    largest = shared[0]
    for k in range(1, 64):
        largest = max(largest, shared[k])
    value = math.exp(x[i] - largest)
    total = value
    offset = 16
    while offset > 0:
        total += cuda.shfl_down_sync(ALL, total, offset)
        offset //= 2
    if t % 32 == 0:
        totals[t // 32] = total
    cuda.syncthreads()
    y[i] = value / (totals[0] + totals[1])


@nb.func
def warp_total(value):
    value += cuda.shfl_xor_sync(ALL, value, 16)
    value += cuda.shfl_xor_sync(ALL, value, 8)
    value += cuda.shfl_xor_sync(ALL, value, 4)
    value += cuda.shfl_xor_sync(ALL, value, 2)
    return value + cuda.shfl_xor_sync(ALL, value, 1)


@nb.kernel
def normalised(x, y, sharpness):
    """Mean and variance of a warp, twice in one function."""
    i = cuda.grid(1)
    mean = warp_total(x[i]) / 32.0
    variance = warp_total((x[i] - mean) ** 2) / 32.0
    y[i] = (x[i] - mean) / math.sqrt(variance + sharpness)


@nb.kernel
def exchanged(x, lanes, y):
    """Every exchange between lanes, with lanes beyond the warp and lanes that are not there."""
    i = cuda.grid(1)
    lane = lanes[i]
    a = cuda.shfl_sync(ALL, x[i], lane)
    b = cuda.shfl_up_sync(ALL, x[i] * a, 3)
    c = cuda.shfl_down_sync(ALL, x[i] * b, 7)
    d = cuda.shfl_xor_sync(ALL, c * c, 21)
    e = cuda.shfl_sync(ALL, math.sin(d), 4)
    y[i] = a * b + c * d + x[i] * e


@nb.kernel
def halves(x, y):
    """Halves of a warp on different ways."""
    i, lane = cuda.grid(1), cuda.laneid
    value = x[i]
    if lane < 16:
        value = value * cuda.shfl_xor_sync(0x0000FFFF, value, 5)
    else:
        value = value + math.exp(cuda.shfl_sync(0xFFFF0000, value, 20))
    y[i] = value * value


@nb.kernel
def guarded(x, y):
    """Threads that leave before the first barrier."""
    shared = cuda.shared.array(64, np.float64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i >= x.shape[0]:
        return
    shared[t] = x[i] * x[i]
    cuda.syncthreads()
    last = min(cuda.blockDim.x, x.shape[0] - cuda.blockIdx.x * cuda.blockDim.x) - 1
    y[i] = shared[t] * shared[last - t]


@nb.kernel
def added_in_block(x, y):
    """Atomic additions to shared memory, by lanes' own counts."""
    sums = cuda.shared.array(4, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t < 4:
        sums[t] = 1.0
    cuda.syncthreads()
    cuda.atomic.add(sums, i % 4, math.exp(x[i]))
    cuda.syncthreads()
    if t < 4:
        cuda.atomic.add(y, t, 2.0 * sums[t])


@nb.kernel
def layer_normalised(x, y, sharpness):
    """Atomic additions to shared memory, of which the adjoint needs the totals."""
    sums = cuda.shared.array(2, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t < 2:
        sums[t] = 0.0
    cuda.syncthreads()
    nb.atomic_add(sums, 0, x[i])
    cuda.syncthreads()
    mean = sums[0] / 64.0
    nb.atomic_add(sums, 1, (x[i] - mean) ** 2)
    cuda.syncthreads()
    y[i] = (x[i] - mean) / math.sqrt(sums[1] / 64.0 + sharpness)


@nb.kernel
def totals_of_rounds(x, y, n):
    """Totals that grow from round to round, added to in a loop of each thread's own, and read in others."""
    sums = cuda.shared.array(4, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i]
    if t < 4:
        sums[t] = 0.1
    cuda.syncthreads()
    for k in range(n):
        for j in range(3):
            cuda.atomic.add(sums, (t + j) % 4, 0.02 * value * value)
        cuda.syncthreads()
        for j in range(4):
            value = math.sin(value + sums[j])
        cuda.syncthreads()
    y[i] = value * sums[t % 4]


@nb.kernel
def smoothed(x, y):
    """A row with its halo, on a grid of two axes."""
    tile = cuda.shared.array((6, 10), np.float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    gx, gy = cuda.grid(2)
    tile[ty + 1, tx + 1] = x[gy, gx] * x[gy, gx]
    if tx == 0:
        tile[ty + 1, 0] = x[gy, max(gx - 1, 0)]
        tile[ty + 1, 9] = x[gy, min(gx + 8, x.shape[1] - 1)]
    if ty == 0:
        tile[0, tx + 1] = x[max(gy - 1, 0), gx]
        tile[5, tx + 1] = x[min(gy + 4, x.shape[0] - 1), gx]
    cuda.syncthreads()
    around = tile[ty, tx + 1] * tile[ty + 2, tx + 1] + tile[ty + 1, tx] * tile[ty + 1, tx + 2]
    y[gy, gx] = tile[ty + 1, tx + 1] * around


@nb.kernel
def scanned(x, y):
    """Hillis and Steele's scan of products, with two arrays in turn."""
    both = cuda.shared.array((2, 32), np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    now = 0
    both[0, t] = x[i]
    cuda.syncthreads()
    for level in range(5):
        other = 1 - now
        if t >= 1 << level:
            both[other, t] = both[now, t] * both[now, t - (1 << level)]
        else:
            both[other, t] = both[now, t]
        cuda.syncthreads()
        now = other
    y[i] = both[now, t]


@nb.kernel
def until_still(x, y, limit):
    """As many rounds as a block needs, which its threads decide together."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i]
    shared[t] = value
    rounds = 0
    while cuda.syncthreads_or(1 if shared[t] > limit else 0) and rounds < 50:
        value = 0.5 * (shared[t] + math.sin(shared[31 - t])) * 0.9
        cuda.syncthreads()
        shared[t] = value
        rounds += 1
    cuda.syncthreads()
    y[i] = shared[(t + 1) % 32] * rounds


@nb.kernel
def rounds_within_rounds(x, y, n):
    """Loops of barriers in loops of barriers, with a thread's own loop that stores between them."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for k in range(4):
        if t < 8:
            shared[4 * t + k] = x[cuda.blockIdx.x * 32 + 4 * t + k]
    cuda.syncthreads()
    for a in range(n):
        for k in range(4):
            if t < 8:
                shared[4 * t + k] = math.sin(shared[4 * t + k]) + 0.1 * shared[4 * t + k] ** 2
        cuda.syncthreads()
        for b in range(a):
            value = shared[t] * math.cos(shared[31 - t])
            cuda.syncthreads()
            shared[t] = value
            cuda.syncthreads()
        own = shared[(t + a) % 32]
        cuda.syncthreads()
        shared[t] += own * own
        cuda.syncthreads()
    y[i] = shared[t]


@nb.kernel
def forces(x: nb.array[nb.vec3d], strength: nb.float64, out: nb.array[nb.vec3d]):
    """Vectors in shared memory, tile by tile, and a number that every thread gives a gradient to."""
    tile = cuda.shared.array(16, nb.vec3d)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    total = nb.vec3d()
    for k in range(x.shape[0] // 16):
        tile[t] = x[k * 16 + t]
        cuda.syncthreads()
        for j in range(16):
            away = tile[j] - x[i]
            total += away * strength / (nb.dot(away, away) + 0.5)
        cuda.syncthreads()
    out[i] = total


@nb.kernel
def counted(x, y):
    """What threads learn of each other in numbers that carry no gradient: how many, and which."""
    shared = cuda.shared.array(32, np.int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    above = 1 if x[i] > 1.0 else 0
    shared[t] = above + t
    count = cuda.syncthreads_count(above)
    votes = cuda.ballot_sync(ALL, above)
    like = cuda.match_any_sync(ALL, above) & 7
    if cuda.any_sync(ALL, above) and not cuda.all_sync(ALL, above):
        y[i] = x[i] ** 2 * count + math.sin(x[i]) * shared[31 - t] + (votes & 3) + like * x[i]
    else:
        y[i] = x[i]


@nb.kernel
def overwritten(x, y):
    """Shared memory that other threads store to again, without a loop."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    a = shared[31 - t] * shared[t]
    cuda.syncthreads()
    shared[(t + 3) % 32] = a * a
    cuda.syncthreads()
    b = shared[t] * math.sin(shared[(t + 1) % 32])
    cuda.syncthreads()
    if t % 2 == 0:
        shared[t] = b
    cuda.syncthreads()
    y[i] = shared[t] * shared[31 - t] * a


@nb.kernel
def reversed_in_blocks(x, y):
    """Nothing but a barrier, whose adjoint needs nothing of the way forth."""
    shared = cuda.shared.array(64, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    y[i] = shared[63 - t] + 0.5 * shared[(t + 7) % 64]


@nb.kernel
def stored_last(x, y, n):
    """Trips that end with stores, which those of the next wait for."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[31 - t] = x[i]
    for _ in range(n):
        cuda.syncthreads()
        value = math.sin(shared[t] * shared[(t + 3) % 32])
        cuda.syncthreads()
        shared[(t + 5) % 32] = value + 0.1 * x[i]
    cuda.syncthreads()
    y[i] = shared[t] * shared[31 - t]


@nb.kernel
def across_branches(x, y):
    """Lanes of two branches that wait for each other, of which those in the first read what those in the second store."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t >= 16:
        cuda.syncwarp(ALL)
        value = math.sin(shared[t - 16])
    else:
        shared[t] = x[i] * x[i]
        cuda.syncwarp(ALL)
        value = x[i]
    y[i] = value * x[i]


@nb.kernel
def backwards_in_part(x, y, n):
    """A block of which only some threads are there, whose memory begins where none of these would."""
    shared = cuda.shared.array(64, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    count = min(cuda.blockDim.x, x.shape[0] - cuda.blockIdx.x * cuda.blockDim.x)
    shared[63 - t] = x[i]
    cuda.syncthreads()
    for _ in range(n):
        value = math.sin(shared[63 - t] + shared[63 - (t + 1) % count] * shared[63 - (t + 5) % count])
        cuda.syncthreads()
        shared[63 - t] = value
        cuda.syncthreads()
    y[i] = shared[63 - t] * shared[64 - count + t]


@nb.kernel
def halved_while_any(x, y):
    """A tree that waits in the condition of its loop alone."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    stride = 16
    while cuda.syncthreads_or(1 if stride > 0 else 0):
        if t < stride:
            shared[t] += 0.5 * shared[t + stride]
        stride //= 2
    y[i] = shared[0] * (t + 1) + shared[(t + 1) % 32]


@nb.kernel
def read_between_additions(x, y, z):
    """A total that some threads use before all add to it once more."""
    total = cuda.shared.array(1, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t == 0:
        total[0] = 0.1
    cuda.syncthreads()
    nb.atomic_add(total, 0, 0.1 * x[i])
    cuda.syncthreads()
    if t % 2 == 0:
        y[i] = math.sin(x[i] * total[0])
    cuda.syncthreads()
    nb.atomic_add(total, 0, 0.1 * x[i] * x[i])
    cuda.syncthreads()
    z[i] = math.cos(x[i] * total[0])


@nb.kernel
def guarded_rounds(x, y, n):
    """Threads that leave before loops in which the others share memory."""
    shared = cuda.shared.array(64, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i >= x.shape[0]:
        return
    count = min(cuda.blockDim.x, x.shape[0] - cuda.blockIdx.x * cuda.blockDim.x)
    shared[63 - t] = x[i]
    cuda.syncthreads()
    for _ in range(n):
        value = math.sin(shared[63 - t] + shared[63 - (t + 1) % count] * shared[63 - (t + 5) % count])
        cuda.syncthreads()
        shared[63 - t] = value
        cuda.syncthreads()
    y[i] = shared[63 - t] * shared[64 - count + t]


@nb.kernel
def across_branches_in_memory(x, y, z):
    """Lanes of two branches that meet in an array of the launch."""
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t >= 16:
        cuda.syncwarp(ALL)
        value = math.sin(z[i - 16])
    else:
        z[i] = x[i] * x[i]
        cuda.syncwarp(ALL)
        value = x[i]
    y[i] = value * x[i]


@nb.kernel
def histograms(x, y):
    """Each thread adds to several places in a loop of its own, and counts others."""
    sums = cuda.shared.array(4, np.float64)
    counts = cuda.shared.array(4, np.int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i]
    if t < 4:
        sums[t] = 0.0
        counts[t] = 0
    cuda.syncthreads()
    for j in range(40):
        value = math.sin(value + 0.1 * j)
        cuda.atomic.add(sums, (j + t) % 4, value * 0.01 * j)
        cuda.atomic.add(counts, int(x[i] * 2.0 + j) % 4, 1)
    cuda.syncthreads()
    y[i] = math.sin(sums[t % 4] * x[i]) * counts[t % 4]


@nb.kernel
def asked_in_turn(x, y, n):
    """Conditions of loops in which threads wait only if something else holds."""
    shared = cuda.shared.array(32, np.float64)
    used = cuda.shared.array(32, np.bool_)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    used[t] = x[i] > 0.9
    k = 0
    while k < n and cuda.syncthreads_or(1 if shared[t] > 0.1 else 0):
        value = shared[31 - t] * (0.9 if used[t] else 0.8)
        cuda.syncthreads()
        shared[t] = math.sin(value)
        k += 1
    cuda.syncthreads()
    y[i] = shared[(t + 1) % 32] * shared[t]


@nb.kernel
def in_place(x, n):
    """An array that a block changes in place, step by step."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for k in range(n):
        shared[t] = x[i] * x[i]
        cuda.syncthreads()
        x[i] = x[i] - 0.2 * shared[(t + 1) % 32] * x[i]
        cuda.syncthreads()


@nb.kernel
def parts_of_vectors(x, y):
    """Vectors of which each component is stored by another thread, and all are read by others."""
    shared = cuda.shared.array(16, nb.vec3d)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t // 3][t % 3] = x[i]
    cuda.syncthreads()
    v = shared[15 - t // 3]
    mixed = nb.dot(v, v) * v[t % 3]
    cuda.syncthreads()
    shared[t // 3][t % 3] += 0.1 * mixed
    cuda.syncthreads()
    y[i] = nb.length_sq(shared[(t + 5) % 16]) * shared[t // 3].y


@nb.kernel
def parts_of_matrices(x, y, n):
    """Numbers and rows of matrices in turn, and all of one by one thread."""
    shared = cuda.shared.array((2, 4), nb.mat22d)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    row = shared[t // 16]
    row[t % 16 // 4][t // 2 % 2][t % 2] = x[i]
    cuda.syncthreads()
    for k in range(n):
        m = shared[t // 16, (t % 16 // 4 + k) % 4]
        cuda.syncthreads()
        if t % 2 == 0:
            shared[t // 16, t % 16 // 4][t // 2 % 2] = m[t // 2 % 2] * m[0, 1]
        cuda.syncthreads()
        if t == 5:
            shared[1, k % 4] = shared[0, k % 4] @ shared[1, 2]
        cuda.syncthreads()
    y[i] = nb.trace(shared[t // 16, t % 4] @ shared[0, 1])


@nb.kernel
def attended(query, keys, values, out):
    """Attention, a tile of keys and values at a time, with the softmax carried along."""
    tile_k = cuda.shared.array(32, np.float64)
    tile_v = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    highest, total, mean = -1e9, 0.0, 0.0
    for tile in range(keys.shape[0] // 32):
        tile_k[t] = keys[tile * 32 + t]
        tile_v[t] = values[tile * 32 + t]
        cuda.syncthreads()
        for j in range(32):
            score = query[i] * tile_k[j]
            higher = max(highest, score)
            scale, weight = math.exp(highest - higher), math.exp(score - higher)
            total = total * scale + weight
            mean = mean * scale + weight * tile_v[j]
            highest = higher
        cuda.syncthreads()
    out[i] = mean / total


@nb.kernel
def rows_with_halo(x, y):
    """Each trip fills a row, and some threads its ends, before all read their neighbours."""
    row = cuda.shared.array(36, np.float64)
    t = cuda.threadIdx.x
    carried = 1.0
    for k in range(x.shape[0]):
        row[t + 2] = x[k, t] * carried
        if t < 2:
            row[t] = x[k, t] * x[k, 31 - t]
            row[t + 34] = 0.5 * x[k, t]
        cuda.syncthreads()
        carried = math.sin(row[t] * row[t + 4] + row[t + 2])
        cuda.syncthreads()
        y[k, t] = carried


@nb.kernel
def twice_a_trip(x, y, n):
    """The same memory, filled and read twice in each trip, the second time from what was read the first time."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    value = x[i]
    for k in range(n):
        shared[t] = math.sin(value)
        cuda.syncthreads()
        total = 0.0
        for j in range(3):
            total += shared[(t + j) % 32] * shared[(t + 5 * j + k) % 32]
        cuda.syncthreads()
        shared[t] = math.cos(total)
        cuda.syncthreads()
        for j in range(2):
            value += 0.3 * shared[31 - t] * shared[(t + j) % 32]
        cuda.syncthreads()
    y[i] = value


@nb.kernel
def two_halves_in_turn(x, y, n):
    """Each trip reads the half that the trip before stored."""
    shared = cuda.shared.array(64, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    for k in range(n):
        here, there = k % 2 * 32, (k + 1) % 2 * 32
        value = 0.0
        for j in range(3):
            value += shared[here + (t + j) % 32] * shared[here + 31 - t]
        shared[there + t] = math.sin(value)
        cuda.syncthreads()
    y[i] = shared[n % 2 * 32 + t]


@nb.kernel
def changed_after_a_loop(x, y, n):
    """Each trip waits after it has read, and behind the loop the memory changes."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    total = 0.3
    for k in range(n):
        total += math.sin(shared[(t + 1) % 32] * total)
        cuda.syncthreads()
    shared[t] = math.sin(total)
    cuda.syncthreads()
    y[i] = total * shared[31 - t]


@nb.kernel
def changed_after_loops_in_each_trip(x, y, n):
    """Filled by each trip, and read in a loop with barriers before it changes."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    total = x[i]
    for k in range(n):
        shared[t] = math.sin(total + k)
        cuda.syncthreads()
        for j in range(3):
            total += math.sin(shared[(t + 1) % 32] * total)
            cuda.syncthreads()
        shared[t] = math.cos(total)
        cuda.syncthreads()
        for j in range(3):
            total += math.sin(shared[(t + 1) % 32] * total)
            cuda.syncthreads()
    y[i] = total


@nb.kernel
def changed_after_a_loop_of_lanes(x, y, n):
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncwarp()
    total = 0.3
    for k in range(n):
        for j in range(2):
            total += math.sin(shared[(t + 1) % 32] * total)
            cuda.syncwarp()
    shared[t] = math.sin(total)
    cuda.syncwarp()
    y[i] = total * shared[31 - t]


Case = tuple[Any, Any, int, list[Any]]


@nb.kernel
def shared_slices(x, y):
    """Slices of shared memory, through which threads read what others stored."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    s = cuda.shared.array(32, np.float64)
    s[t] = x[i]
    cuda.syncthreads()
    left, right = s[:16], s[16:][::-1]
    total = 0.0
    for a, b in zip(left, right):
        total += a * b
    cuda.syncthreads()
    s[t:][0] *= total
    cuda.syncthreads()
    y[i] = s[1:][(t + 3) % 31] * right[t % 16] * x[i]


@nb.kernel
def soft_dtw(d, r, gamma: nb.float64):
    """Soft dynamic time warping (Cuturi and Blondel, 2017): threads go through a matrix in memory, diagonal by diagonal."""
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    for p in range(d.shape[1] + d.shape[2] - 1):
        j = p - t
        if t < d.shape[1] and j >= 0 and j < d.shape[2]:
            above, left, both = -r[b, t, j + 1] / gamma, -r[b, t + 1, j] / gamma, -r[b, t, j] / gamma
            most = max(above, left, both)
            total = math.exp(above - most) + math.exp(left - most) + math.exp(both - most)
            r[b, t + 1, j + 1] = d[b, t, j] - gamma * (math.log(total) + most)
        cuda.syncthreads()


@nb.kernel
def in_turn_in_memory(x, y, lines, n):
    """Threads exchange through arrays of the launch, in loops within loops, with several intervals between barriers."""
    i, t, b = cuda.grid(1), cuda.threadIdx.x, cuda.blockIdx.x
    line = lines[b]
    line[t] = x[i]
    cuda.syncthreads()
    carried = 1.0
    for k in range(n):
        right = line[(t + 1) % 16] * carried
        cuda.syncthreads()
        line[t] = math.sin(right + x[i])
        cuda.syncthreads()
        for j in range(k + 1):
            left = line[(t + 15) % 16]
            cuda.syncthreads()
            line[15 - t] = 0.5 * left * line[15 - t]
            cuda.syncthreads()
            x[b * 16 + (t + j) % 16] *= 1.0 + 0.1 * line[t]
            cuda.syncthreads()
        carried = 0.5 * carried + line[(t + k) % 16]
        cuda.syncthreads()
        line[(t + k) % 16] = carried * line[(t + k) % 16]
        cuda.syncthreads()
    y[i] = carried * line[t]


@nb.kernel
def vectors_in_memory(x: nb.array[nb.vec3d], y: nb.array[nb.vec3d], n):
    """Threads exchange vectors, and wait in a condition."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    left = n
    while cuda.syncthreads_or(int(left > t % 3)):
        other = x[i - t + (t + 3) % 16]
        cuda.syncthreads()
        x[i - t + (t + 5) % 16] = nb.cross(other, x[i - t + (t + 5) % 16]) + 0.3 * other
        left -= 1
    y[i] = x[i]


@nb.kernel
def all_store_alike(x, y, sums, n):
    """All threads store the same, to one element; CUDA lets one of them do so."""
    shared = cuda.shared.array(2, np.float64)
    i, b = cuda.grid(1), cuda.blockIdx.x
    shared[0], sums[b, 0] = x[0], x[1] * x[2]
    cuda.syncthreads()
    a = x[i]
    for _ in range(n):
        a = math.sin(a * shared[0] * sums[b, 0])
    for k in range(n):
        cuda.syncthreads()
        a = 0.9 * a + math.sin(sums[b, 1] + shared[0])
        cuda.syncthreads()
        sums[b, 1] = x[b] * (k + 1)
        if cuda.threadIdx.x < 4:
            shared[0] = 0.5 * x[1]
    cuda.syncthreads()
    shared[0] = x[1]
    cuda.syncthreads()
    y[i] = a * shared[0] * sums[b, 1]


@nb.func
def kept_for_all(value, t):
    """Threads store a number, if it is positive, and read that of the next thread: integers have memory of their own."""
    kept = cuda.shared.array(16, np.float64)
    if value > 0:
        kept[t] = 0.5 * value * value
    cuda.syncthreads()
    found = kept[(t + 1) % 16]
    cuda.syncthreads()
    return found


@nb.kernel
def memory_of_each_type(x, y, n):
    i, t = cuda.grid(1), cuda.threadIdx.x
    a = kept_for_all(x[i], t)
    b = kept_for_all(t + n, t)
    y[i] = kept_for_all(-x[i], t) * a + b * kept_for_all(-n, t) * x[i]


@nb.kernel
def overwritten_alike(x, y, n):
    """All threads store the same where a loop of their own has read, of which four have stored the same before."""
    shared = cuda.shared.array(1, np.float64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t < 4:
        shared[0] = x[0]
    cuda.syncthreads()
    a = x[i]
    for _ in range(n):
        a = math.sin(a * shared[0])
    cuda.syncthreads()
    shared[0] = x[1]
    cuda.syncthreads()
    y[i] = a * shared[0]


@nb.kernel
def rows_and_columns(x, y, line):
    """Threads store at other places in turn; some trips wait more often than others, for what they read alone."""
    b, i, j = cuda.blockIdx.x, cuda.threadIdx.x % 8, cuda.threadIdx.x // 8
    for k in range(4):
        line[b, i * 8 + j] = math.sin(line[b, i * 8 + j] + x[b * 64 + i])
        cuda.syncthreads()
        value = line[b, (i * 3 + 8 * j) % 64]
        if k > 1:
            cuda.syncthreads()
            value *= math.sin(x[(cuda.threadIdx.x * k) % 64] * 3.0)
            cuda.syncthreads()
            cuda.syncthreads()
        cuda.syncthreads()
        line[b, j * 8 + i] = value * line[b, j * 8 + i]
        cuda.syncthreads()
    y[cuda.grid(1)] = line[b, cuda.threadIdx.x]


@nb.kernel
def types_alike(x, y, n):
    """Threads store flags, small numbers and matrices alike, at the end of each trip."""
    flags, counts = cuda.shared.array(4, np.bool_), cuda.shared.array(4, np.int8)
    turned = cuda.shared.array(4, nb.mat22d)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if t < 4:
        flags[t], counts[t] = x[t] > 0.5, np.int8(4 * x[t])
        turned[t] = nb.mat22d(x[t], 0.5, 0.2, x[t + 4])
    cuda.syncthreads()
    a = x[i]
    for k in range(n):
        cuda.syncthreads()
        a = 0.9 * a + math.sin(a * turned[k % 4][1, 1]) + (0.3 if flags[k % 4] else 0.1 * counts[k % 4])
        cuda.syncthreads()
        flags[(k + 1) % 4], counts[(k + 1) % 4] = x[1] * (k + 1) > 0.7, np.int8(3 * x[2] + k)
        turned[(k + 1) % 4] = nb.mat22d(0.1, x[k], 0.4, x[1] * (k + 1))
    cuda.syncthreads()
    y[i] = a * turned[1][0, 1] + turned[2][1, 1] * counts[3]


@nb.kernel
def vectors_alike(x: nb.array[nb.vec3d], y: nb.array[nb.vec3d], sums: nb.array[nb.vec3d], n):
    """Halves of a block store the same vectors, one of which changes in part only."""
    shared = cuda.shared.array(16, nb.vec3d)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t % 16] = x[i - t + t % 16]
    cuda.syncthreads()
    for k in range(n):
        found, own = shared[(t + k) % 16], shared[t % 16]
        cuda.syncthreads()
        sums[0] = nb.vec3d(x[0][0], 0.25, x[1][2])
        shared[t % 16] = nb.vec3d(0.7 * own[0], x[t % 16][1] * (k + 1), own[2])
        cuda.syncthreads()
        x[i] += nb.cross(found, sums[0])
        cuda.syncthreads()
    y[i] = shared[(t + 1) % 16] + x[i]


@nb.kernel
def vectors_alike_in_turn(x: nb.array[nb.vec3d], y: nb.array[nb.vec3d], sums: nb.array[nb.vec3d], n):
    """Halves of a block store the same vectors, which both have read before either does."""
    shared = cuda.shared.array(16, nb.vec3d)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t % 16] = x[i - t + t % 16]
    cuda.syncthreads()
    for k in range(n):
        found, mine = shared[(t + k) % 16], shared[t % 16]
        cuda.syncthreads()
        sums[0] = nb.vec3d(x[0][0], 0.25, x[1][2])
        shared[t % 16] = nb.vec3d(0.7 * mine[0], x[t % 16][1] * (k + 1), mine[2])
        cuda.syncthreads()
        x[i] += nb.cross(found, sums[0])
        cuda.syncthreads()
    y[i] = shared[(t + 1) % 16] + x[i]


CASES: list[Case] = [
    (shared_slices, 64, 32, [uniform(64), zeros(64)]),
    (sums_of_squares, 128, 64, [uniform(128), zeros(2)]),
    (products, 64, 32, [uniform(64, low=0.8, high=1.2), zeros(2)]),
    (stepped, 96, 48, [uniform(96), zeros(96), 4]),
    (stepped, 96, 48, [uniform(96), zeros(96), 70]),
    (matmul, 6 * 64, 64, [uniform(13, 21), uniform(21, 17), zeros(13, 17)]),
    (softmax, 128, 64, [uniform(128), zeros(128)]),
    (normalised, 96, 96, [uniform(96), zeros(96), 0.25]),
    (exchanged, 96, 64, [uniform(96), random.integers(0, 64, 96), zeros(96)]),
    (exchanged, 84, 64, [uniform(84), random.integers(0, 64, 84), zeros(84)]),
    (halves, 64, 64, [uniform(64), zeros(64)]),
    (guarded, 128, 64, [uniform(100), zeros(100)]),
    (guarded, 100, 64, [uniform(100), zeros(100)]),
    (added_in_block, 96, 32, [uniform(96), zeros(4)]),
    (layer_normalised, 128, 64, [uniform(128), zeros(128), 0.3]),
    (totals_of_rounds, 64, 32, [uniform(64), zeros(64), 4]),
    (smoothed, (24, 8), (8, 4), [uniform(8, 24), zeros(8, 24)]),
    (scanned, 64, 32, [uniform(64), zeros(64)]),
    (until_still, 64, 32, [uniform(64), zeros(64), 0.4]),
    (rounds_within_rounds, 64, 32, [uniform(64), zeros(64), 4]),
    (forces, 48, 16, [uniform(48, 3), 0.7, zeros(48, 3)]),
    (counted, 64, 32, [uniform(64), zeros(64)]),
    (overwritten, 64, 32, [uniform(64), zeros(64)]),
    (reversed_in_blocks, 128, 64, [uniform(128), zeros(128)]),
    (stored_last, 64, 32, [uniform(64), zeros(64), 5]),
    (across_branches, 64, 32, [uniform(64), zeros(64)]),
    (backwards_in_part, 90, 64, [uniform(90), zeros(90), 3]),
    (halved_while_any, 64, 32, [uniform(64), zeros(64)]),
    (read_between_additions, 64, 32, [uniform(64), zeros(64), zeros(64)]),
    (guarded_rounds, 128, 64, [uniform(90), zeros(90), 3]),
    (across_branches_in_memory, 64, 32, [uniform(64), zeros(64), uniform(64)]),
    (histograms, 64, 32, [uniform(64), zeros(64)]),
    (asked_in_turn, 64, 32, [uniform(64), zeros(64), 4]),
    (in_place, 64, 32, [uniform(64), 6]),
    (parts_of_vectors, 96, 48, [uniform(96), zeros(96)]),
    (parts_of_matrices, 64, 32, [uniform(64), zeros(64), 3]),
    (attended, 64, 32, [uniform(64), uniform(96), uniform(96), zeros(64)]),
    (rows_with_halo, 32, 32, [uniform(5, 32), zeros(5, 32)]),
    (twice_a_trip, 64, 32, [uniform(64), zeros(64), 3]),
    (two_halves_in_turn, 64, 32, [uniform(64), zeros(64), 4]),
    (soft_dtw, 2 * 32, 32, [uniform(2, 7, 9), uniform(2, 8, 10), 0.8]),
    (in_turn_in_memory, 32, 16, [uniform(32), zeros(32), uniform(2, 16), 3]),
    (vectors_in_memory, 32, 16, [uniform(32, 3), zeros(32, 3), 2]),
    (all_store_alike, 32, 16, [uniform(32), zeros(32), uniform(2, 2), 3]),
    (memory_of_each_type, 32, 16, [uniform(32), zeros(32), 3]),
    (overwritten_alike, 32, 16, [uniform(32), zeros(32), 3]),
    (types_alike, 32, 16, [uniform(32), zeros(32), 3]),
    (rows_and_columns, 128, 64, [uniform(128), zeros(128), uniform(2, 64)]),
    (vectors_alike, 32, 32, [uniform(32, 3), zeros(32, 3), uniform(2, 3), 2]),
    (vectors_alike_in_turn, 32, 32, [uniform(32, 3), zeros(32, 3), uniform(2, 3), 2]),
    (changed_after_a_loop, 64, 32, [uniform(64), zeros(64), 3]),
    (changed_after_loops_in_each_trip, 64, 32, [uniform(64), zeros(64), 3]),
    (changed_after_a_loop_of_lanes, 64, 32, [uniform(64), zeros(64), 3]),
]
# What a lane takes from one that is not there, CUDA does not define.
ON_CUDA = [case for case in CASES if case[1] != 84]


def name_of(case: Case) -> str:
    """Return what tests call a case."""
    kernel, dim, _, arguments = case
    numbers = [str(a) for a in arguments if not isinstance(a, np.ndarray)]
    return "-".join([kernel.name, str(dim).replace(" ", ""), *numbers])


def geometry(case: Case) -> Geometry:
    """Return how a case is launched: over a number of threads, or as blocks of several axes."""
    kernel, dim, block, _ = case
    if isinstance(dim, int):
        return geometry_of(kernel, dim, block)
    grid = tuple(threads // size for threads, size in zip(dim, block, strict=True))
    shape, blocks = (*block, 1), (*grid, 1)
    return Geometry(dim, shape, blocks, shape, blocks, Place("plain"))


def floats(case: Case) -> list[str]:
    """Return the parameters by which a case has a derivative."""
    names = [p.name for p in case[0].parameters]
    return [
        n
        for n, a in zip(names, case[3], strict=True)
        if isinstance(a, float) or getattr(a, "dtype", None) == np.float64
    ]


def copies(values: Sequence[Any]) -> list[Any]:
    """Return arguments with arrays of their own."""
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


def arrays(values: Sequence[Any]) -> list[np.ndarray]:
    """Return those of some arguments that carry a gradient, a float as an array of one."""
    return [
        np.asarray(v, np.float64) for v in values if isinstance(v, float) or getattr(v, "dtype", None) == np.float64
    ]


def weights(case: Case, seed: int = 5) -> list[np.ndarray]:
    """Return cotangents of what a case leaves in its arrays, and zero for numbers."""
    normal = np.random.default_rng(seed).normal
    return [normal(size=a.shape) if a.shape else np.zeros(()) for a in arrays(case[3])]


def adjoints(case: Case, run: Callable[..., None]) -> list[np.ndarray]:
    """Return the gradients that an adjoint gives, which `run` launches."""
    found = weights(case)
    run(*copies(case[3]), *found)
    return found


def check_on_cuda(case: Case, there: Callable[[np.ndarray], Any], back: Callable[[Any], np.ndarray]) -> None:
    """Check that arrays on CUDA, which `there` and `back` copy or share, get the gradients of those on the CPU."""
    run = case[0].adjoint(floats(case)).over(geometry(case))
    given = [there(v) if isinstance(v, np.ndarray) else v for v in [*copies(case[3]), *weights(case)]]
    run(*given)
    for one, other in zip(adjoints(case, run), given[len(case[3]) :], strict=True):
        assert np.allclose(one, back(other), rtol=1e-10, atol=1e-11)


def moved(values: Sequence[Any], direction: Sequence[np.ndarray], step: float) -> list[Any]:
    """Return arguments that carry a gradient moved in a direction, and the others as they are."""
    ways, found = iter(direction), copies(values)
    for k, value in enumerate(found):
        if isinstance(value, float):
            found[k] = value + step * float(next(ways))
        elif getattr(value, "dtype", None) == np.float64:
            found[k] = value + step * next(ways)
    return found


def check_differences(
    results: Callable[[float], list[np.ndarray]], expected: Sequence[np.ndarray], within: float
) -> None:
    """Check how arrays change with a step, by differences of the fourth order; one of two steps must be a good one."""
    worst = []
    for step in (2e-6, 1e-7):
        ends = [results(k * step) for k in (1, -1, 2, -2)]
        changes = [(8 * (a - b) - (c - d)) / (12 * step) for a, b, c, d in zip(*ends, strict=True)]
        errors = [np.abs(e - c).max() / max(np.abs(c).max(), 1) for e, c in zip(expected, changes, strict=True)]
        worst.append(max(errors))
    assert min(worst) <= within, worst


def check(case: Case) -> None:
    """Check that an adjoint is the transpose of the tangent, and that this is how a case changes in a random direction."""
    kernel, _, _, values = case
    run = launcher(kernel, geometry(case))
    given, found = weights(case), adjoints(case, kernel.adjoint(floats(case)).over(geometry(case)))
    direction = [np.random.default_rng(9).normal(size=a.shape) for a in arrays(values)]
    tangents = [float(d) if not d.shape else d.copy() for d in direction]
    kernel.tangent(floats(case)).over(geometry(case))(*copies(values), *tangents)
    expected = [(w * t).sum() for w, t in zip(given, tangents, strict=True)]
    got = [(g * d).sum() for g, d in zip(found, direction, strict=True)]
    assert np.isfinite(sum(got)) and abs(sum(got) - sum(expected)) <= 1e-9 * sum(map(abs, [*got, *expected])) + 1e-12

    def results(step: float) -> list[np.ndarray]:
        end = moved(values, direction, step)
        run(*end)
        return [a for a in arrays(end) if a.shape]

    check_differences(results, [t for t in tangents if isinstance(t, np.ndarray)], 1e-6)


def check_second(case: Case) -> None:
    """Check the adjoint of a tangent: in a direction, it is how the adjoint changes."""
    kernel, _, _, values = case
    where, names = geometry(case), floats(case)
    run = kernel.adjoint(names).over(where)
    direction = [np.random.default_rng(9).normal(size=a.shape) for a in arrays(values)]
    tangent = kernel.tangent(names)
    of_tangents = [f"{tangent.prefix}{name}" for name in names]
    second = tangent.adjoint([*names, *of_tangents])
    given, found = weights(case), [np.zeros(a.shape) for a in arrays(values)]
    tangents = [float(d) if not d.shape else d.copy() for d in direction]
    second.over(where)(*copies(values), *tangents, *found, *given)
    check_differences(lambda step: adjoints((*case[:3], moved(values, direction, step)), run), found, 1e-5)
