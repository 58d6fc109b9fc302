"""Blocks whose threads come to each barrier together need no coroutines, and compute to the last bit what coroutines compute."""

# ruff: noqa: B007 - kernels as users write them

from __future__ import annotations

import ast
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from block_loop_programs import SHAPES, check, copies, derivatives, in_loops, same
from numbridge.kernels.cpu_backend.blocks.keeping import Keeper
from numbridge.kernels.cpu_backend.blocks.name_webs import split_names
from numbridge.kernels.cpu_backend.blocks.order import Order
from numbridge.kernels.geometry import geometry_of
from numbridge.kernels.launch import launcher

# NUMBRIDGE_BLOCK_PROGRAMS is how many random programs are compared.
PROGRAMS = int(os.environ.get("NUMBRIDGE_BLOCK_PROGRAMS", "2"))
random = np.random.default_rng(3)


def floats(*shape, dtype=np.float32):
    return random.uniform(0.2, 1.2, shape).astype(dtype)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs(seed, tmp_path):
    shape, real = SHAPES[seed % len(SHAPES)], ("float32", "float64")[seed // 2 % 2]
    taken = check(seed, tmp_path, shape=shape, real=real, gradients=seed % 3 == 0)
    # An adjoint may keep on a stack of each thread how often it must go round barriers.
    assert all(taken[:1] + taken[2:])


# Kernels, where they run, and their arguments


def tiles(a, b, c):
    of_a, of_b = cuda.shared.array((16, 16), np.float32), cuda.shared.array((16, 16), np.float32)
    i, j = nb.tid()
    row, column = cuda.threadIdx.x, cuda.threadIdx.y
    total = 0.0
    for k in range(0, a.shape[1], 16):
        of_a[row, column] = a[i, k + column]
        of_b[row, column] = b[k + row, j]
        cuda.syncthreads()
        for n in range(16):
            total += of_a[row, n] * of_b[n, column]
        cuda.syncthreads()
    c[i, j] = total


def tiles_along_x(a, b, c):
    of_a, of_b = cuda.shared.array((8, 8), np.float64), cuda.shared.array((8, 8), np.float64)
    j, i = cuda.grid(2)
    row, column = cuda.threadIdx.y, cuda.threadIdx.x
    total = 0.0
    for k in range(0, a.shape[1], 8):
        of_a[row, column] = a[i, k + column]
        of_b[row, column] = b[k + row, j]
        cuda.syncthreads()
        for n in range(8):
            total += of_a[row, n] * of_b[n, column]
        cuda.syncthreads()
    c[i, j] = total


def sums(x, out):
    shared = cuda.shared.array(128, np.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


def softmax(x, y):
    total = cuda.shared.array(64, np.float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    value = math.exp(x[row, t])
    total[t] = value
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            total[t] += total[t + stride]
        cuda.syncthreads()
        stride //= 2
    y[row, t] = value / total[0]


def stencil(x, n, y):
    """Returns early: of some blocks all threads do, and what follows must not be read for them."""
    shared = cuda.shared.array(34, np.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    for k in range(t, 34, cuda.blockDim.x):
        shared[k] = 0.0
    cuda.syncthreads()
    if i >= n[0]:
        return
    scale = n[1 + cuda.blockIdx.x]
    shared[t + 1] = x[i]
    cuda.syncthreads()
    if x[i] > 1.15:
        return
    y[i] = (shared[t] + shared[t + 1] + shared[t + 2]) * scale


def returns_twice(x, y):
    shared = cuda.shared.array(40, np.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared[t] = x[i]
    cuda.syncthreads()
    if t % 5 == 3:
        return
    y[i] = shared[39 - t]
    left = cuda.syncthreads_count(t % 2)
    if x[i] > 0.7:
        return
    y[i] += left
    fewer = cuda.syncthreads_count(1)
    every = cuda.syncthreads_and(int(t < 39))
    some = cuda.syncthreads_or(int(t == 37))
    y[i] += 100 * fewer + 1000 * every + 3000 * some


def scattered(x, out, places):
    """Adds floats up in the order of threads, where they lie along another axis than the first."""
    total, counter = cuda.shared.array(4, np.float32), cuda.shared.array(1, np.int32)
    i, j = nb.tid()
    row, column = cuda.threadIdx.x, cuda.threadIdx.y
    if row == 0 and column < 4:
        total[column] = 0.0
    if row + column == 0:
        counter[0] = 0
    cuda.syncthreads()
    value = x[i, j]
    for k in range(3):
        cuda.atomic.add(total, (k + row) % 4, value * k)
    cuda.syncthreads()
    cuda.atomic.add(total, 1, value)
    places[i, j] = cuda.atomic.add(counter, 0, 1)
    cuda.syncthreads()
    out[i, j] = total[column % 4]


def ordered_rows(x, out):
    """Adds to rows and columns of shared memory, as the adjoint of a product does, in loops that all threads run alike."""
    rows, columns = cuda.shared.array((8, 20), np.float32), cuda.shared.array((20, 40), np.float32)
    i, j = nb.tid()
    row, column = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(20):
        rows[row, k] = 0.0
        columns[k, column] = 0.0
    cuda.syncthreads()
    for k in range(20):
        cuda.atomic.add(rows, (row, k), x[i, j] * k)
        cuda.atomic.add(columns, (k, column), x[i, j] / (k + 1))
    cuda.syncthreads()
    total = 0.0
    for k in range(20):
        total += rows[row, k] * columns[k, column]
    out[i, j] = total


def windows(x, y, n):
    """A window over what neighbours hold, of a length that is known at the launch alone."""
    shared = cuda.shared.array(96, np.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    if t < 32:
        shared[t + 64] = 0.5
    cuda.syncthreads()
    total = 0.0
    for k in range(n):
        total += shared[t + k] * (k + 1)
    cuda.syncthreads()
    y[i] = total


@nb.func
def turned(shared, t, value):
    cuda.syncthreads()
    shared[t] = value
    cuda.syncthreads()
    return shared[47 - t]


def in_functions(x, y, n):
    shared = cuda.shared.array(48, np.float32)
    own = cuda.local.array((3, 2), np.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for k in range(3):
        own[k, 0] = k
        own[k, 1] = x[i]
    positive = x[i] > 0.6
    for k in range(n):
        own[k % 3, 1] += turned(shared, t, own[(k + 1) % 3, 1] + (0.25 if positive else own[t % 3, 0]))
        positive = own[k % 3, 1] > 1.5 and not positive
    y[i] = own[0, 1] + own[1, 1] + own[2, 1]


def in_three_axes(x, y):
    shared = cuda.shared.array((3, 4, 5), np.float32)
    i, j, k = nb.tid()
    a, b, c = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    if a == 0 and b == 0 and c == 0:
        for n in range(60):
            shared[n // 20, n // 5 % 4, n % 5] = -1.0
    cuda.syncthreads()
    shared[a, b, c] = x[i, j, k]
    cuda.syncthreads()
    y[i, j, k] = shared[2 - a, 3 - b, 4 - c] + 10.0 * cuda.blockIdx.x + cuda.threadIdx.y + 0.5 * cuda.gridDim.z


def alike_in_some(x, y):
    """Has an array in which all threads have the same, until those in a branch with a barrier change theirs."""
    own, t = cuda.local.array(2, np.float32), cuda.threadIdx.x
    own[0] = 1.0
    own[1] = 2.0
    if t < 20:
        own[0] = 7.0
        cuda.syncthreads()
        own[1] = x[5]
    y[t] = own[0] + own[1]


def from_the_end(x, y):
    """Adds to places that are one for two columns, as the one counts from the end, in blocks that run along the other axis."""
    total = cuda.shared.array(8, np.float32)
    i, j = cuda.grid(2)
    if j == 0:
        total[i] = 0.0
    cuda.syncthreads()
    cuda.atomic.add(total, j - 4, x[i, j])
    cuda.syncthreads()
    y[i, j] = total[i]


def below_largest(x, y):
    """Looks for the largest of as many numbers as LLVM once took minutes for."""
    shared = cuda.shared.array(64, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    largest = shared[0]
    for k in range(1, 64):
        largest = max(largest, shared[k])
    y[i] = math.exp(x[i] - largest)


def matrix(n, m):
    return lambda: [floats(n, m), np.zeros((n, m), np.float32)]


CASES = {
    below_largest: (2 * 64, 64, lambda: [floats(128, dtype=float), np.zeros(128)]),
    tiles: ((32, 48), (16, 16), lambda: [floats(32, 64), floats(64, 48), np.zeros((32, 48), np.float32)]),
    tiles_along_x: (
        (24, 16),
        (8, 8),
        lambda: [floats(16, 32, dtype=float), floats(32, 24, dtype=float), np.zeros((16, 24))],
    ),
    sums: (5 * 128, 128, lambda: [floats(600), np.zeros(5, np.float32)]),
    softmax: (6 * 64, 64, matrix(6, 64)),
    stencil: (4 * 32, 32, lambda: [floats(128), np.array([50, 2, 3], np.int64), np.zeros(128, np.float32)]),
    returns_twice: (3 * 40, 40, lambda: [floats(120), np.zeros(120, np.float32)]),
    scattered: (
        (16, 40),
        (8, 20),
        lambda: [floats(16, 40), np.zeros((16, 40), np.float32), np.zeros((16, 40), np.int32)],
    ),
    ordered_rows: ((16, 80), (8, 40), matrix(16, 80)),
    windows: (3 * 64, 64, lambda: [floats(192), np.zeros(192, np.float32), 29]),
    in_functions: (4 * 48, 48, lambda: [floats(192), np.zeros(192, np.float32), 7]),
    alike_in_some: (32, 32, lambda: [floats(32), np.zeros(32, np.float32)]),
    from_the_end: ((8, 12), (8, 12), matrix(8, 12)),
    in_three_axes: ((6, 8, 10), (3, 4, 5), lambda: [floats(6, 8, 10), np.zeros((6, 8, 10), np.float32)]),
}


def both(function):
    return nb.kernel(function), nb.kernel(simd=False)(function)


def launched(kernel, dim, block, values, dynamic=0):
    given, where = copies(values), geometry_of(kernel, dim, block)
    launcher(kernel, replace(where, place=replace(where.place, shared=dynamic)))(*given)
    return given


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_both_roads_give_the_same_bits(function):
    (dim, block, make), (one, other) = CASES[function], both(function)
    values = make()
    result = launched(one, dim, block, values)
    same(result, launched(other, dim, block, values), function.__name__)
    assert in_loops(one) and not in_loops(other)
    assert any(a.tobytes() != b.tobytes() for a, b in zip(result, values, strict=True) if isinstance(a, np.ndarray))
    text = one.explain(*values).source
    assert "_nb_whole_block" in text and "_nb_start" not in text


@pytest.mark.parametrize("function", [in_three_axes, returns_twice, sums], ids=lambda function: function.__name__)
def test_threads_beyond_the_launch_do_not_run(function):
    (dim, block, make), (one, other) = CASES[function], both(function)
    for less in (1, 2, 3):
        dims = dim - 7 * less if isinstance(dim, int) else tuple(extent - less for extent in dim)
        values = make()
        if function is returns_twice:  # all of what it reads, some thread has written before
            values[0][:] = 0.3
        if function is sums:
            block = 32 * less
            dims = 5 * block
        results = [launched(kernel, dims, block, values) for kernel in (one, other)]
        if function is not returns_twice:
            same(*results, f"{function.__name__} of {dims} threads")
        else:
            there = dims - dims % 40
            same(*([v[:there] for v in result] for result in results), f"{function.__name__} of {dims} threads")
            assert not results[0][1][dims:].any()
    assert in_loops(one)


@pytest.mark.parametrize(
    "function", [tiles, sums, softmax, windows, in_functions], ids=lambda function: function.__name__
)
def test_derivatives_need_no_coroutines_either(function):
    (dim, block, make), (one, other) = CASES[function], both(function)
    if function is tiles:
        dim = block  # several blocks would add to the same elements, in whatever order workers come to them
    values = make()
    (made, looping), (wanted, without) = (
        derivatives(kernel, geometry_of(kernel, dim, block), values) for kernel in (one, other)
    )
    for a, b in zip(made, wanted, strict=True):
        same(a, b, f"derivatives of {function.__name__}")
    assert all(looping) and not any(without)


def test_answers():
    a, b = floats(32, 64), floats(64, 48)
    c = launched(nb.kernel(tiles), (32, 48), (16, 16), [a, b, np.zeros((32, 48), np.float32)])[2]
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    x = floats(6, 64)
    y = launched(nb.kernel(softmax), 6 * 64, 64, [x, np.zeros_like(x)])[1]
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)
    x = np.full(120, 0.5, np.float32)
    y = launched(nb.kernel(returns_twice), 120, 40, [x, np.zeros_like(x)])[1]
    # Of 40 threads 32 go on, 16 of them odd; the last one is among them.
    t = np.arange(120) % 40
    odd = sum(1 for k in range(40) if k % 5 != 3 and k % 2)
    assert (y == np.where(t % 5 == 3, 0, 0.5 + odd + 3200 + 3000)).all()


def test_what_all_threads_read_is_not_read_for_blocks_in_which_none_is_left():
    values = CASES[stencil][2]()
    y = launched(nb.kernel(stencil), 128, 32, values)[2]  # the fourth block would read beyond the end
    assert not y[50:].any() and y[:50].any()


# Dynamic shared memory


def in_dynamic_memory(x, y):
    """Has several arrays in its dynamic memory: one behind another, and one that shows the bits of both, also in a function."""
    n, t, i = cuda.blockDim.x, cuda.threadIdx.x, cuda.grid(1)
    values = cuda.shared.array(0, np.float32)
    bits = cuda.shared.array(0, np.int32)
    behind = bits[n:]
    values[t] = x[i]
    behind[t] = t * 3 % 7
    cuda.syncthreads()
    # Nobody stores to `values` from here on.
    bits[t] = bits[t] ^ (1 << 20)
    cuda.syncthreads()
    y[i] = values[n - 1 - behind[t]] + first_of_dynamic_memory() * values[5]


@nb.func
def first_of_dynamic_memory():
    return cuda.shared.array(0, np.float32)[0]


def added_in_dynamic_memory(x, y):
    """Adds to one element as a number of either type, one after the other."""
    t, values, bits = cuda.threadIdx.x, cuda.shared.array(0, np.float32), cuda.shared.array(0, np.int32)
    if t == 0:
        values[0] = 1.5
    steps = x.shape[0]
    cuda.syncthreads()
    for k in range(2):
        cuda.atomic.add(values, 0, x[t] * steps)
        steps = steps + 1
        cuda.atomic.add(bits, 0, 1 + k)
        if steps > 1000:
            cuda.syncthreads()
    cuda.syncthreads()
    y[t] = values[0]


def test_dynamic_memory_needs_no_coroutines():
    one, other = both(in_dynamic_memory)
    values = [floats(96), np.zeros(96, np.float32)]
    results = [launched(kernel, 96, 32, values, 8 * 32) for kernel in (one, other)]
    same(*results, "in_dynamic_memory")
    assert in_loops(one) and not in_loops(other)
    turned = (values[0].view(np.int32) ^ 1 << 20).view(np.float32).reshape(3, 32)
    behind = turned[:, 31 - np.arange(32) * 3 % 7]
    np.testing.assert_array_equal(results[0][1].reshape(3, 32), behind + turned[:, :1] * turned[:, 5:6])


def test_dynamic_memory_is_one_whatever_its_type():
    one, other = both(added_in_dynamic_memory)
    values = [floats(32), np.zeros(32, np.float32)]
    same(*(launched(kernel, 32, 32, values, 64) for kernel in (one, other)), "added_in_dynamic_memory")
    assert not in_loops(one)


# What would be wrong is seen


def test_the_order_of_threads_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(nb.config, "kernel_cache_dir", str(tmp_path))  # code of another making is not to be kept
    monkeypatch.setattr(Order, "must_be_in_order", lambda order, part, axis: False)
    dim, block, make = CASES[scattered]
    values = make()
    one, other = both(scattered)
    results = [launched(kernel, dim, block, values) for kernel in (one, other)]
    assert in_loops(one)
    with pytest.raises(AssertionError, match="scattered"):
        same(*results, "scattered")


def test_what_takes_little_is_computed_again_and_not_kept(monkeypatch, tmp_path):
    dim, block, make = CASES[tiles]
    one, _ = both(tiles)
    values = make()
    wanted = launched(one, dim, block, values)
    assert "_nb_kept_value_" not in one.explain(*values).source
    monkeypatch.setattr(nb.config, "kernel_cache_dir", str(tmp_path))
    monkeypatch.setattr(Keeper, "_again", lambda keeper, names: [])
    one, _ = both(tiles)
    same(wanted, launched(one, dim, block, values), "tiles")
    assert "_nb_kept_value_" in one.explain(*values).source


# What remains to coroutines


def waits_in_a_varying_loop(x, y):
    t = cuda.threadIdx.x
    total = 0.0
    for k in range(t % 2 * 0 + int(x[t] * 0.0) + 2):
        cuda.syncthreads()
        total += x[t]
    y[t] = total


def raises(x, y):
    t = cuda.threadIdx.x
    cuda.syncthreads()
    if x[t] > 100:
        raise ValueError("large")
    y[t] = x[t]


def waits_on_memory(x, y):
    shared, t = cuda.shared.array(1, np.float32), cuda.threadIdx.x
    shared[0] = 3.0
    cuda.syncthreads()
    while shared[0] > 0:
        cuda.syncthreads()
        if t == 0:
            shared[0] -= 1.0
        cuda.syncthreads()
    y[t] = shared[0] + x[t]


def adds_twice(x, y):
    """Adds to one element in two places of the text; a statement that runs once stands between them."""
    total, t = cuda.shared.array(1, np.float32), cuda.threadIdx.x
    if t == 0:
        total[0] = 0.0
    cuda.syncthreads()
    steps = x.shape[0]
    for k in range(2):
        cuda.atomic.add(total, 0, x[t] * steps)
        steps = steps + 1
        cuda.atomic.add(total, 0, x[t] / steps)
        if steps > 1000:
            cuda.syncthreads()
    cuda.syncthreads()
    y[t] = total[0]


@pytest.mark.parametrize(
    "function",
    [waits_in_a_varying_loop, raises, waits_on_memory, adds_twice],
    ids=lambda function: function.__name__,
)
def test_other_kernels_keep_their_coroutines(function):
    one, other = both(function)
    values = [floats(32), np.zeros(32, np.float32)]
    same(*(launched(kernel, 32, 32, values) for kernel in (one, other)), function.__name__)
    assert not in_loops(one) and not in_loops(other)


@nb.kernel
def slots(values, counts, places):
    taken = cuda.shared.array(8, np.int32)
    sums = cuda.shared.array(1, np.float64)
    t = cuda.threadIdx.x
    if t < 8:
        taken[t] = 0
    if t == 0:
        sums[0] = 0.0
    cuda.syncthreads()
    places[t] = cuda.atomic.add(taken, values[t], 1)
    cuda.atomic.sub(sums, 0, 0.5 * t)
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(counts, t, taken[t])
    if t == 8:
        cuda.atomic.add(counts, 8, int(sums[0]))


def test_what_a_block_adds_to_its_own_memory_is_not_locked():
    values = random.integers(0, 8, 64)
    counts, places = np.zeros(9, np.int64), np.zeros(64, np.int64)
    slots[1, 64](values, counts, places)
    assert counts.tolist() == [*np.bincount(values, minlength=8), -int(0.5 * sum(range(64)))]
    assert places.tolist() == [int((values[:t] == values[t]).sum()) for t in range(64)]
    text = str(slots.explain(values, counts, places).source)
    assert (
        "_nb_atomic_alone_add(shared" in text
        and "_nb_atomic_alone_sub(shared" in text
        and "_nb_add_either(_nb_private0, counts" in text
    )


@nb.kernel
def smoothed(x, w, y, sums):
    near = cuda.shared.array(72, np.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    near[t] = x[i]
    if t < 8:
        near[t + 64] = x[i + 64]
    cuda.syncthreads()
    s = 0.0
    for k in range(9):
        s += w[k] * near[t + k]
    y[i] = s
    cuda.atomic.sub(sums, (i % 3, 0), s)


def test_each_worker_has_copies_of_what_many_threads_add_to():
    n = 64 * 1024
    x, w = floats(n + 64), floats(9)
    places = np.arange(n)[:, None] + np.arange(9)
    wanted = x[places] @ w
    y, sums = nb.zeros(n, dtype=nb.float32, requires_grad=True), np.zeros((3, 2), np.float32)
    x, w = nb.array(x, requires_grad=True), nb.array(w, requires_grad=True)
    with nb.Tape() as tape:
        smoothed[n // 64, 64](x, w, y, sums)
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(sums, [[-wanted[k::3].sum(), 0] for k in range(3)], rtol=1e-4)
    weights = floats(n)
    tape.backward(grads={y: nb.array(weights)})
    np.testing.assert_allclose(w.grad.numpy(), weights @ x.numpy()[places], rtol=1e-4)
    adjoint = np.zeros(n + 64)
    np.add.at(adjoint, places, weights[:, None] * w.numpy())
    np.testing.assert_allclose(x.grad.numpy(), adjoint, rtol=1e-4)
    assert "_nb_sub_either(_nb_private0, sums" in str(smoothed.explain(x, w, y, sums).source)


def test_a_result_that_is_read_is_that_of_the_array_itself():
    counts, places = np.zeros(1, np.int64), np.full(512 * 64, -1, np.int64)
    first_come[512, 64](counts, places)
    assert sorted(places) == list(range(512 * 64)) and counts[0] == 512 * 64


@nb.kernel
def first_come(counts, places):
    ready = cuda.shared.array(1, np.int32)
    i = cuda.grid(1)
    if cuda.threadIdx.x == 0:
        ready[0] = 1
    cuda.syncthreads()
    places[i] = cuda.atomic.add(counts, 0, ready[0])


def test_checked_indices_keep_their_coroutines():
    checked = nb.kernel(check_bounds=True)(sums)
    values = CASES[sums][2]()
    launched(checked, 640, 128, values)
    assert not in_loops(checked)
    with pytest.raises(nb.NumbridgeIndexError, match=r"index [234] is out of range"):
        launched(checked, 640, 128, [values[0], np.zeros(2, np.float32)])


# Names


def names_of(text):
    tree = ast.parse(text).body[0]
    split_names(tree)
    return ast.unparse(tree)


def test_a_name_that_serves_two_purposes_becomes_two():
    text = "def f(n):\n    a = n\n    b = a\n    for k in range(n):\n        a = k\n        b = b + a\n    return b"
    assert names_of(text) == text.replace("        a = k\n        b = b + a", "        a_v2 = k\n        b = b + a_v2")


@pytest.mark.parametrize(
    "text",
    [
        "def f(n):\n    a = 0\n    for k in range(n):\n        a = a + k\n    return a",
        "def f(n):\n    a = 0\n    if n:\n        a = 1\n    return a",
        "def f(n):\n    a = 0\n    while True:\n        if a > n:\n            break\n        a = a + 1\n    return a",
        "def f(n):\n    while n > 0:\n        n = n - 1\n    return n",
        "def f(n):\n    a = 0\n    a += n\n    return a",
    ],
)
def test_a_name_that_a_use_may_see_from_two_places_stays_one(text):
    assert names_of(text) == text
