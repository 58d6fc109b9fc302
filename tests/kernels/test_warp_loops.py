"""Blocks whose threads come to operations of their warp together need no coroutines: the same bits, and the same errors."""

# ruff: noqa: B007 - kernels as users write them

from __future__ import annotations

import ast

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from block_loop_programs import copies, derivatives, in_loops, same
from numbridge.kernels.cpu_backend.blocks.branches import first_waits, waits_for_lanes
from numbridge.kernels.cpu_backend.blocks.exchange import Exchange
from numbridge.kernels.cpu_backend.blocks.keeping import Keeper
from numbridge.kernels.cpu_backend.blocks.order import Order
from numbridge.kernels.cpu_backend.blocks.reading import _Reader
from numbridge.kernels.geometry import geometry_of
from numbridge.kernels.launch import launcher

FULL = 0xFFFFFFFF
random = np.random.default_rng(7)


def floats(*shape, dtype=np.float32):
    return random.uniform(0.2, 1.2, shape).astype(dtype)


@nb.func
def sum_of_warp(value):
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, offset)
    return value


@nb.func
def largest_of_warp(value):
    offset = 16
    while offset > 0:
        value = max(value, cuda.shfl_xor_sync(FULL, value, offset))
        offset >>= 1
    return value


def sums(x, y):
    """Sums of blocks: of warps first, then the first warp adds those up."""
    shared = cuda.shared.array(32, np.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    lane, warp = t % 32, t // 32
    value = sum_of_warp(x[i])
    if lane == 0:
        shared[warp] = value
    cuda.syncthreads()
    if warp == 0:
        value = shared[lane] if lane < (cuda.blockDim.x + 31) // 32 else np.float32(0)
        value = sum_of_warp(value)
        if t == 0:
            y[cuda.blockIdx.x] = value


def shares(x, y):
    """Two such sums, of which all threads of the block learn; rows in a loop."""
    shared = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    lane, warp, warps = t & 31, t >> 5, (cuda.blockDim.x + 31) >> 5
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        value = x[row, t]
        largest = largest_of_warp(value)
        if lane == 0:
            shared[warp] = largest
        cuda.syncthreads()
        if t < 32:
            largest = largest_of_warp(shared[lane] if lane < warps else np.float32(-1))
            if lane == 0:
                shared[0] = largest
        cuda.syncthreads()
        value = value / shared[0]
        cuda.syncthreads()
        total = sum_of_warp(value)
        if lane == 0:
            shared[warp] = total
        cuda.syncthreads()
        if warp == 0:
            total = sum_of_warp(shared[lane] if lane < warps else np.float32(0))
            if lane == 0:
                shared[0] = total
        else:
            value = value * 1.0
        cuda.syncthreads()
        y[row, t] = value / shared[0]
        cuda.syncthreads()


def elected(x, y):
    """Votes, some of masks that name some lanes only, and a lane that each thread names for itself."""
    i, lane = cuda.grid(1), cuda.laneid
    large = x[i] > 0.7
    ballot = cuda.ballot_sync(FULL, large)
    before = 0
    for k in range(32):
        before += (ballot >> k) & 1 if k < lane else 0
    y[i, 0] = before
    y[i, 1] = cuda.any_sync(0xFFFF, x[i] > 1.1)
    y[i, 2] = cuda.all_sync(0xF0, lane < 8)
    y[i, 3] = cuda.eq_sync(FULL, lane // 64)
    y[i, 4] = cuda.shfl_sync(0x0FFFFFFF, x[i], (lane * 5 + 3) % 40)
    y[i, 5] = cuda.shfl_up_sync(-1, i, lane)
    y[i, 6] = cuda.shfl_xor_sync(0xFFFF00FF, np.int32(i), 9)
    y[i, 7] = cuda.shfl_down_sync(FULL, np.float64(x[i]), 33)


def passed_on(x, y):
    """What lanes tell each other through memory, between two of their meetings; some threads have returned."""
    shared = cuda.shared.array(96, np.float32)
    i, t, lane = cuda.grid(1), cuda.threadIdx.x, cuda.laneid
    shared[t] = 0.5
    cuda.syncwarp()
    if x[i] > 0.9:
        return
    for k in range(3):
        other = shared[t - lane + (lane + 1) % 16]
        cuda.syncwarp()
        shared[t] = x[i] + other
        cuda.syncwarp()
        x[i] = 0.5 * shared[t - lane + (lane + 3) % 16]
        cuda.syncwarp()
    y[i] = cuda.shfl_down_sync(FULL, x[i], 1) + cuda.ballot_sync(FULL, 1) % 1024


def some_lanes(x, y):
    """Lanes go their own way, and name no others, up to the next barrier; the last way ends with the kernel."""
    i, t, lane = cuda.grid(1), cuda.threadIdx.x, cuda.laneid
    value = x[i]
    if lane < 8:
        value += cuda.shfl_xor_sync(0xFF, value, 3)
    cuda.syncthreads()
    if t >= 32:
        value -= cuda.shfl_up_sync(FULL, value, 1)
    left = cuda.syncthreads_count(int(value > 0))
    y[i] = value + left
    if lane % 3 == 1:
        y[i] += cuda.shfl_down_sync(FULL, value, 3)


@nb.func
def lane_behind(count):
    return (cuda.laneid + count) % 32


@nb.func
def turned(value):
    lane = cuda.laneid
    return cuda.shfl_sync(FULL, value, lane_behind(1)) * (lane + 1)


def asked_in_functions(x, y):
    """Asks for its lane in functions, of which one waits."""
    i = cuda.grid(1)
    y[i] = turned(x[i]) + lane_behind(3)


def added_up(x, y):
    """One thread adds for its block, behind the branch of the warp that has the sum."""
    shared = cuda.shared.array(32, np.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    value = sum_of_warp(x[i])
    if t % 32 == 0:
        shared[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = sum_of_warp(shared[t] if t < (cuda.blockDim.x + 31) // 32 else np.float32(0))
    if t == 0:
        cuda.atomic.add(y, cuda.blockIdx.x, value)


def added_in_turns(x, y):
    """All threads add floats at last: of each warp first those that have not waited."""
    total = cuda.shared.array(1, np.float32)
    t = cuda.threadIdx.x
    value = x[cuda.grid(1)]
    if t == 0:
        total[0] = 0.125
    cuda.syncthreads()
    if t % 32 % 7 < 3 and t < 70:
        for k in range(2):
            value += cuda.shfl_down_sync(FULL, value, 1 + k)
    y[cuda.grid(1)] = cuda.atomic.add(total, 0, value)


def compacted(x, y):
    """What is large, side by side for each warp."""
    i = cuda.grid(1)
    large = x[i] > 0.6
    ballot = cuda.ballot_sync(FULL, large)
    if large:
        y[i - cuda.laneid + cuda.popc(ballot & cuda.lanemask_lt())] = x[i]


CASES = {
    compacted: (2 * 96, 96, lambda: [floats(192), np.zeros(192, np.float32)]),
    added_up: (4 * 96, 96, lambda: [floats(384), np.zeros(4, np.float32)]),
    added_in_turns: (2 * 96, 96, lambda: [floats(192), np.zeros(192, np.float32)]),
    asked_in_functions: (4 * 64, 64, lambda: [floats(256), np.zeros(256, np.float32)]),
    sums: (4 * 96, 96, lambda: [floats(384), np.zeros(4, np.float32)]),
    shares: (2 * 96, 96, lambda: [floats(5, 96), np.zeros((5, 96), np.float32)]),
    elected: (3 * 64, 64, lambda: [floats(192), np.zeros((192, 8))]),
    passed_on: (2 * 96, 96, lambda: [floats(192), np.zeros(192, np.float32)]),
    some_lanes: (2 * 80, 80, lambda: [floats(160), np.zeros(160, np.float32)]),
}


def both(function):
    return nb.kernel(function), nb.kernel(simd=False)(function)


def launched(kernel, dim, block, values):
    given = copies(values)
    launcher(kernel, geometry_of(kernel, dim, block))(*given)
    return given


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_both_roads_give_the_same_bits(function):
    (dim, block, make), (one, other) = CASES[function], both(function)
    values = make()
    # The block is as large as it should be, ends within a warp, or is less than one.
    for smaller in (block, block - 9, 21):
        if function is shares and smaller < block:
            continue  # it divides by what all of its threads have added
        where = dim // block * smaller
        result = launched(one, where, smaller, values)
        same(result, launched(other, where, smaller, values), f"{function.__name__} in blocks of {smaller}")
        assert any(a.tobytes() != b.tobytes() for a, b in zip(result, values, strict=True))
    for less in (3, 14):  # threads beyond the launch do not run; of each warp enough do to write what the others read
        if function is not shares:
            same(*(launched(kernel, dim - less, block, values) for kernel in (one, other)), function.__name__)
    assert in_loops(one) and not in_loops(other)


def test_answers():
    x = floats(384)
    _, y = launched(nb.kernel(sums), 384, 96, [x, np.zeros(4, np.float32)])
    np.testing.assert_allclose(y, x.reshape(4, 96).sum(1), rtol=1e-5)
    x = floats(5, 96)
    _, y = launched(nb.kernel(shares), 192, 96, [x, np.zeros_like(x)])
    np.testing.assert_allclose(y, x / x.sum(1, keepdims=True), rtol=1e-5)
    x = floats(192)
    _, y = launched(nb.kernel(elected), 192, 64, [x, np.zeros((192, 8))])
    large = (x > 0.7).reshape(-1, 32)
    np.testing.assert_array_equal(y[:, 0], (large.cumsum(1) - large).ravel())
    # Lanes 4 to 7 are asked, and whoever asks; 32 lanes beyond are none at all, as of 33 the low five bits count.
    np.testing.assert_array_equal(y[:, 2], np.tile(np.arange(32) < 8, 6))
    np.testing.assert_array_equal(y[:, 7].reshape(-1, 32), x.reshape(-1, 32)[:, np.r_[1:32, 31]])


@nb.func
def with_warps(x, y, t):
    value = x[t]
    if t < 32:
        value += cuda.shfl_down_sync(FULL, value, 7)
    cuda.syncthreads()
    y[t] = value + cuda.shfl_xor_sync(FULL, value, 2) * (cuda.ballot_sync(FULL, t % 3 == 0) % 128)


def in_two_axes(x, y):
    with_warps(x, y, cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y)


def in_three_axes(x, y):
    with_warps(x, y, cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z))


@pytest.mark.parametrize("shape", [(16, 5), (5, 16), (4, 4, 5)])
def test_warps_go_along_x_first_in_blocks_of_several_axes(shape):
    one, other = both(in_two_axes if len(shape) == 2 else in_three_axes)
    values = [floats(80), np.zeros(80, np.float32)]
    for dims in (shape, tuple(extent - 1 for extent in shape)):
        same(*(launched(kernel, dims, shape, values) for kernel in (one, other)), f"{dims} threads in {shape}")
    assert in_loops(one)


@pytest.mark.parametrize("function", [sums, shares, asked_in_functions], ids=lambda function: function.__name__)
def test_derivatives_are_the_same(function):
    (dim, block, make), (one, other) = CASES[function], both(function)
    values = make()
    (made, looping), (wanted, without) = (
        derivatives(kernel, geometry_of(kernel, dim, block), values) for kernel in (one, other)
    )
    for a, b in zip(made, wanted, strict=True):
        same(a, b, f"derivatives of {function.__name__}")
    # What is kept of a loop that some threads alone go round differs between threads, in an adjoint.
    assert looping[1] and not any(without)


# Who waits in vain


def names_others(x, y):
    t = cuda.threadIdx.x
    value = x[t]
    if t >= 40 or t < 32:
        value += cuda.shfl_down_sync(FULL, value, 1)
    cuda.syncthreads()
    y[t] = value


def syncs_apart(x, y):
    t = cuda.threadIdx.x
    for k in range(3):
        if t % 2 == 0 or k < 2:
            cuda.syncwarp()
        cuda.syncthreads()
    y[t] = x[t]


def votes_apart(x, y):
    t = cuda.threadIdx.x
    votes = 0
    if t % 32 < 20 and t > 31:
        votes = cuda.any_sync(0x1FFFFF, x[t] > 0.5)
    y[t] = votes + cuda.syncthreads_count(1)


@pytest.mark.parametrize(
    ("function", "thread", "mask"),
    [(names_others, 40, FULL), (syncs_apart, 0, FULL), (votes_apart, 32, 0x1FFFFF)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_lanes_that_wait_in_vain_are_told_of(function, thread, mask):
    said = rf"in block 1, thread {thread} waits for lanes {mask:#010x} of its warp, and not all of these come"
    values = [floats(64), np.zeros(64, np.float32)]
    for kernel in both(function):
        # Of the first block no lanes are missing.
        with pytest.raises(nb.KernelError, match=said.replace("block 1", "block [01]")):
            launched(kernel, 128, 64, values)
    one, _ = both(function)
    with pytest.raises(nb.KernelError):
        launched(one, 64, 64, values)
    assert in_loops(one)
    if function is not syncs_apart:  # a smaller block has no such lanes
        launched(one, 32, 32, values)


# What remains to coroutines


def names_lanes_apart(x, y):
    t = cuda.threadIdx.x
    y[t] = cuda.shfl_xor_sync(0xFF << (cuda.laneid & 24), x[t], 1)


def meets_elsewhere(x, y):
    """Lanes that do not take the branch come to another operation of their warp, which the CPU takes for the same."""
    t = cuda.threadIdx.x
    value = x[t]
    if t < 20:
        value += cuda.shfl_down_sync(FULL, value, 1)
    value += 2 * cuda.shfl_down_sync(FULL, value, 2)
    y[t] = value


def may_end(x, y):
    t = cuda.threadIdx.x
    value = x[t]
    if t < 20:
        value += cuda.shfl_down_sync(FULL, value, 1)
    if x.shape[0] > 1000:
        cuda.syncthreads()
    y[t] = value


def adds_before_others(x, y):
    """Lanes that do not take the branch add before those that do."""
    t, total = cuda.threadIdx.x, cuda.shared.array(1, np.float32)
    if t == 0:
        total[0] = 0
    cuda.syncthreads()
    value = x[t]
    if t < 20:
        value += cuda.shfl_down_sync(0xFFFFF, value, 1)
    y[t] = cuda.atomic.add(total, 0, value)
    cuda.syncthreads()
    y[t] += total[0]


def adds_around(x, y):
    """A warp adds before and behind its meeting, and only then the next one."""
    t, total = cuda.threadIdx.x, cuda.shared.array(1, np.float32)
    if t == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, x[t])
    value = cuda.shfl_down_sync(FULL, x[t], 1)
    y[t] = cuda.atomic.add(total, 0, value)


def differs_between_warps(x, y):
    t = cuda.threadIdx.x
    value = x[t]
    for k in range(t // 32 + 1):
        value += cuda.shfl_down_sync(FULL, value, 1)
    y[t] = value


def waits_behind_a_branch(x, y):
    """Threads come to two barriers at once, of which the one stands in a branch that all take."""
    t, shared = cuda.threadIdx.x, cuda.shared.array(64, np.float32)
    shared[t] = x[t]
    if x.shape[0] > 10:
        y[t] = 1
        if t < 40:
            cuda.syncthreads()
            shared[t] = 2 * shared[63 - t]
    cuda.syncthreads()
    y[t] += shared[63 - t]


@pytest.mark.parametrize(
    "function",
    [
        names_lanes_apart,
        meets_elsewhere,
        may_end,
        adds_before_others,
        adds_around,
        differs_between_warps,
        waits_behind_a_branch,
    ],
    ids=lambda function: function.__name__,
)
def test_other_kernels_keep_their_coroutines(function):
    one, other = both(function)
    values = [floats(64), np.zeros(64, np.float32)]
    same(*(launched(kernel, 64, 64, values) for kernel in (one, other)), function.__name__)
    assert not in_loops(one) and not in_loops(other)


def in_no_turns(keeper, parts, *given):
    for part in parts:
        part.in_turns = False
    FINISH(keeper, parts, *given)


FINISH = Keeper.finish


@pytest.mark.parametrize(
    ("function", "owner", "name", "answer"),
    [
        (meets_elsewhere, _Reader, "_come_to_block", lambda reader, following: True),
        (added_in_turns, Keeper, "finish", in_no_turns),
        (adds_around, Order, "check", lambda order, nodes, since: since),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_would_be_wrong_is_seen(function, owner, name, answer, monkeypatch, tmp_path):
    monkeypatch.setattr(nb.config, "kernel_cache_dir", str(tmp_path))  # code of another making is not to be kept
    monkeypatch.setattr(owner, name, answer)
    one, other = both(function)
    values = [floats(64), np.zeros(64, np.float32)]
    wanted = launched(other, 64, 64, values)
    with pytest.raises((AssertionError, nb.KernelError), match=f"{function.__name__}"):
        same(launched(one, 64, 64, values), wanted, function.__name__)
    assert in_loops(one)


# Text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("_nb_block_syncthreads(c, t)", {"block"}),
        ("a = 1\nm = _nb_block_any_sync(c, t, 1, 2)", {"others"}),
        ("for k in range(n):\n    _nb_block_syncthreads(c, t)\n_nb_block_syncwarp(c, t, 1)", {"block", "others"}),
        ("if n:\n    _nb_block_syncthreads(c, t)\nelse:\n    a = 1", {"block", "end"}),
        ("if n:\n    _nb_block_syncthreads(c, t)\nelse:\n    _nb_block_syncthreads(c, t)", {"block"}),
        ("a = 1", {"end"}),
        ("_nb_add(x, 0, 1)\n_nb_block_syncthreads(c, t)", {"order", "block"}),
    ],
)
def test_where_threads_wait_first(text, found):
    assert first_waits(ast.parse(text).body, lambda node: "_nb_add" in ast.unparse(node)) == found


def test_branches_that_wait_for_lanes_alone():
    text = "for k in range(3):\n    m = _nb_block_shfl_sync(c, t, 1, 2, 3)"
    assert waits_for_lanes(ast.parse(text).body)
    assert not waits_for_lanes(ast.parse(f"{text}\n_nb_block_syncthreads(c, t)").body)
    assert not waits_for_lanes(ast.parse("m = _nb_block_activemask(c, t)").body)


def test_exchanges_have_a_name_for_each_type():
    names = {Exchange("shfl_sync", kind, kind, each).name for kind in ("int32", "float32") for each in (False, True)}
    assert len(names) == 4
