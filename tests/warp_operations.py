"""Kernels whose lanes work together in warps, with arguments and the answers that NumPy gives.

They are spelled as numba.cuda spells them, and use only what CUDA defines: every lane that a mask names gets there or has
returned, and every thread of a block reaches its barriers. Where a kernel runs is no matter of this module.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, int32

import numbridge as nb
from block_cases import Case, numbers, of_count, rows, typed

FULL = 0xFFFFFFFF


@nb.kernel
def warp_sums(x, out):
    i = cuda.grid(1)
    value = x[i]
    offset = 16
    while offset:
        value += cuda.shfl_down_sync(FULL, value, offset)
        offset //= 2
    if cuda.laneid == 0:
        out[i // 32] = value


@nb.kernel
def warp_maxima(x, out):
    i = cuda.grid(1)
    value = x[i]
    for step in range(5):
        value = max(value, cuda.shfl_xor_sync(FULL, value, 1 << step))
    out[i] = value


@nb.kernel
def warp_scans(x, out):
    i = cuda.grid(1)
    lane = cuda.laneid
    value = x[i]
    for step in range(5):
        other = cuda.shfl_up_sync(FULL, value, 1 << step)
        if lane >= 1 << step:
            value += other
    out[i] = value


@nb.kernel
def neighbours(x, before, behind):
    # Beyond the warp's ends, a lane gets its own value back.
    i = cuda.grid(1)
    before[i] = cuda.shfl_up_sync(FULL, x[i], 3)
    behind[i] = cuda.shfl_down_sync(FULL, x[i], 5)


@nb.kernel
def gathered(x, order, out):
    # Of the lane's number, the lowest five bits count.
    i = cuda.grid(1)
    out[i] = cuda.shfl_sync(FULL, x[i], order[i])


@nb.kernel
def sums_of_eights(x, out):
    # Four groups of one warp, each with a mask of its own
    i = cuda.grid(1)
    lane = cuda.laneid
    mask = 0xFF << (lane & 24)
    value = x[i]
    for step in range(3):
        value += cuda.shfl_xor_sync(mask, value, 1 << step)
    out[i] = value


@nb.kernel
def votes(x, limit, out, ballots):
    i = cuda.grid(1)
    out[i, 0] = cuda.all_sync(FULL, x[i] < limit)
    out[i, 1] = cuda.any_sync(FULL, x[i] < limit)
    out[i, 2] = cuda.eq_sync(FULL, x[i] < limit)
    ballots[i] = cuda.ballot_sync(FULL, x[i] < limit)


@nb.kernel
def compacted(x, out, counts):
    i = cuda.grid(1)
    keeps = x[i] > 0
    ballot = cuda.ballot_sync(FULL, keeps)
    if keeps:
        out[i // 32, cuda.popc(ballot & cuda.lanemask_lt())] = x[i]
    if cuda.laneid == 31:
        counts[i // 32] = cuda.popc(ballot)


@nb.kernel
def grouped(x, masks):
    i = cuda.grid(1)
    masks[i] = cuda.match_any_sync(FULL, x[i])


@nb.kernel
def grouped_within_halves(x, masks):
    # The halves of a warp go separate ways.
    i = cuda.grid(1)
    if cuda.laneid < 16:
        masks[i] = cuda.match_any_sync(0x0000FFFF, x[i])
    else:
        masks[i] = cuda.match_any_sync(0xFFFF0000, x[i] // 2)


@nb.kernel
def all_alike(x, masks, alike):
    i = cuda.grid(1)
    mask, same = cuda.match_all_sync(FULL, x[i])
    masks[i] = mask
    alike[i] = same


@nb.kernel
def sums_of_what_there_is(x, out):
    # The last warp of the block has fewer lanes than 32.
    i = cuda.grid(1)
    lane = cuda.laneid
    lanes = min(32, x.size - (i - lane))
    mask = (1 << lanes) - 1
    value = x[i]
    offset = 16
    while offset:
        other = cuda.shfl_down_sync(mask, value, offset)
        if lane + offset < lanes:
            value += other
        offset //= 2
    if lane == 0:
        out[i // 32] = value


@nb.kernel
def votes_of_those_who_stay(x, out):
    # Lanes that have returned are waited for by none, though the mask names them.
    i = cuda.grid(1)
    if cuda.laneid % 3 == 1:
        return
    out[i] = cuda.ballot_sync(FULL, x[i] > 0)


@nb.kernel
def turned_in_parts(x, out):
    # Each side of the branch meets by itself, and the other side does not take part.
    shared = cuda.shared.array(64, int32)
    i, t, lane = cuda.grid(1), cuda.threadIdx.x, cuda.laneid
    shared[t] = x[i]
    if lane < 12:
        cuda.syncwarp(0x00000FFF)
        out[i] = shared[t - lane + 11 - lane]
    else:
        cuda.syncwarp(0xFFFFF000)
        out[i] = -shared[t - lane + 43 - lane]


@nb.kernel
def warp_rounds(x, out):
    # What a warp writes is read by its other lanes between two meetings, round after round.
    shared = cuda.shared.array(64, int32)
    i, t, lane = cuda.grid(1), cuda.threadIdx.x, cuda.laneid
    shared[t] = x[i]
    cuda.syncwarp()
    for turn in range(5):
        value = shared[t - lane + (lane + 1) % 32] + turn * shared[t]
        cuda.syncwarp()
        shared[t] = value
        cuda.syncwarp()
    out[i] = shared[t]


@nb.kernel
def lanes(out):
    x, y, z = cuda.grid(3)
    out[z, y, x, 0] = cuda.laneid
    out[z, y, x, 1] = cuda.lanemask_lt()
    out[z, y, x, 2] = cuda.warpsize


@nb.kernel
def active(out):
    out[cuda.grid(1)] = cuda.activemask()


@nb.kernel
def aggregated(x, total, places):
    # One atomic addition for each warp, and a place for each lane that asks for one
    i = cuda.grid(1)
    ballot = cuda.ballot_sync(FULL, x[i] % 3 == 0)
    leader = cuda.ffs(ballot) - 1
    begin = int32(0)
    if ballot != 0 and cuda.laneid == leader:
        begin = cuda.atomic.add(total, 0, cuda.popc(ballot))
    begin = cuda.shfl_sync(FULL, begin, leader)
    if x[i] % 3 == 0:
        places[begin + cuda.popc(ballot & cuda.lanemask_lt())] += 1


@nb.kernel
def differing_distances(x, up, across):
    # Each lane names its own distance.
    i = cuda.grid(1)
    up[i] = cuda.shfl_up_sync(FULL, x[i], cuda.laneid % 5)
    across[i] = cuda.shfl_xor_sync(FULL, x[i], cuda.laneid % 4)


@nb.kernel
def ranks_of_values(x, out):
    # One round for each value that the warp holds: its lanes leave the loop, the mask that goes on names the others.
    i = cuda.grid(1)
    lane = cuda.laneid
    left = cuda.ballot_sync(FULL, True)
    turn = 0
    while True:
        leader = cuda.ffs(left) - 1
        chosen = cuda.shfl_sync(left, x[i], leader)
        same = x[i] == chosen
        group = cuda.ballot_sync(left, same)
        if same:
            out[i] = 100 * turn + cuda.popc(group & ((1 << lane) - 1))
            break
        left &= ~group
        turn += 1


@nb.kernel
def rows_of_blocks(x, out):
    # Warps run over the rows of a block that is 12 threads wide.
    column, row = cuda.grid(2)
    out[row, column] = cuda.shfl_down_sync(FULL, x[row, column], 1)


@nb.kernel
def strided_sums(x, out):
    # Warps go round the loop a different number of times.
    lane = cuda.laneid
    total = x[0] - x[0]
    for begin in range(cuda.grid(1) - lane, x.size, cuda.gridsize(1)):
        value = x[begin + lane] if begin + lane < x.size else x[0] - x[0]
        offset = 16
        while offset:
            value += cuda.shfl_down_sync(FULL, value, offset)
            offset >>= 1
        total += value
    if lane == 0:
        cuda.atomic.add(out, 0, total)


# What NumPy says of them. A row is a warp's 32 lanes.


def packed(flags: np.ndarray) -> np.ndarray:
    """Return 32 flags of the last axis as the bits of an int32, which is what numba.cuda makes of a mask."""
    return (flags.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)


def alike(x: np.ndarray) -> np.ndarray:
    """Return for each element which of its warp are equal to it."""
    return packed(rows(x)[:, :, None] == rows(x)[:, None, :]).ravel()


def voted(x, limit, out, ballots):
    below = rows(x < limit)
    told = [below.all(1), below.any(1), below.all(1) | ~below.any(1)]
    return [np.repeat(np.stack(told, 1), 32, 0).astype(out.dtype), np.repeat(packed(below), 32)]


def kept(x, out, counts):
    for row, found in zip(rows(x), out, strict=True):
        found[: (row > 0).sum()] = row[row > 0]
    return [out, (rows(x) > 0).sum(1).astype(counts.dtype)]


def alike_within_halves(x, masks):
    return [alike(np.where(np.arange(x.size) % 32 < 16, x, 10_000 + x // 2))]


def whether_alike(x, masks, told):
    same = np.repeat((rows(x) == rows(x)[:, :1]).all(1), 32)
    return [np.where(same, -1, 0).astype(masks.dtype), same.astype(told.dtype)]


def stayed(x, out):
    stay = np.arange(32) % 3 != 1
    return [np.where(stay, packed((rows(x) > 0) & stay)[:, None], out.reshape(-1, 32)).ravel()]


def rounds_of_rows(x, out):
    found = rows(x)
    for turn in range(5):
        found = np.roll(found, -1, 1) + turn * found
    return [found.ravel()]


def places_in_warps(out):
    place = np.arange(out[..., 0].size).reshape(out.shape[:3])
    return [np.stack([place % 32, (1 << place % 32) - 1, np.full(place.shape, 32)], -1).astype(out.dtype)]


def placed(x, total, places):
    count = (x % 3 == 0).sum()
    return [np.array([count], total.dtype), (np.arange(places.size) < count).astype(places.dtype)]


def distances(x, up, across):
    lane = np.arange(32)
    behind = np.where(lane >= lane % 5, lane - lane % 5, lane)
    return [rows(x)[:, behind].ravel(), rows(x)[:, lane ^ lane % 4].ravel()]


def ranks(x, out):
    found = np.zeros_like(rows(out))
    for row, of in zip(rows(x), found, strict=True):
        values = [*dict.fromkeys(row.tolist())]
        for k, value in enumerate(row.tolist()):
            of[k] = 100 * values.index(value) + row[:k].tolist().count(value)
    return [found.ravel()]


def next_of_rows(x, out):
    found = rows(x)
    return [found[:, np.r_[1:32, 31]].reshape(x.shape)]


CASES = [
    *typed(warp_sums, lambda x: rows(x).sum(1), 192, 6),
    *typed(warp_maxima, lambda x: np.repeat(rows(x).max(1), 32), 128, 128),
    *typed(warp_scans, lambda x: rows(x).cumsum(1).ravel(), 64, 64),
    Case(
        "neighbours",
        neighbours,
        1,
        64,
        of_count(64, (64,), (64,)),
        lambda x, before, behind: [
            rows(x)[:, np.r_[0:3, 0:29]].ravel(),
            rows(x)[:, np.r_[5:32, 27:32]].ravel(),
        ],
    ),
    Case(
        "gathered",
        gathered,
        1,
        64,
        lambda: [numbers(64, np.float64), numbers(64, np.int32, 100), np.zeros(64)],
        lambda x, order, out: [np.take_along_axis(rows(x), rows(order) % 32, 1).ravel()],
    ),
    Case(
        "sums of eights",
        sums_of_eights,
        2,
        64,
        of_count(128, (128,)),
        lambda x, out: [np.repeat(x.reshape(-1, 8).sum(1), 8).astype(x.dtype)],
    ),
    *(
        Case(
            f"votes below {limit}",
            votes,
            1,
            96,
            lambda limit=limit: [np.sort(numbers(96)), limit, np.zeros((96, 3), np.int8), np.zeros(96, np.int32)],
            voted,
        )
        for limit in (-2000, 100, 2000)
    ),
    Case("compacted", compacted, 2, 64, of_count(128, (4, 32), (4,)), kept),
    *(
        Case(
            f"grouped, {np.dtype(dtype).name}",
            grouped,
            1,
            64,
            lambda dtype=dtype: [numbers(64, dtype, 4), np.zeros(64, np.int32)],
            lambda x, masks: [alike(x)],
        )
        for dtype in (np.int32, np.int64, np.float32, np.float64)
    ),
    Case("grouped within halves", grouped_within_halves, 1, 64, of_count(64, (64,), high=5), alike_within_halves),
    Case(
        "all alike",
        all_alike,
        1,
        96,
        lambda: [
            np.repeat(numbers(48), 2) * np.repeat(np.int32([1, 0, 1]), 32),
            np.zeros(96, np.int32),
            np.zeros(96, np.bool_),
        ],
        whether_alike,
    ),
    Case(
        "sums of what there is",
        sums_of_what_there_is,
        1,
        77,
        of_count(77, (3,)),
        lambda x, out: [np.array([x[:32].sum(), x[32:64].sum(), x[64:].sum()], x.dtype)],
    ),
    Case("votes of those who stay", votes_of_those_who_stay, 1, 64, of_count(64, (64,)), stayed),
    Case(
        "turned in parts",
        turned_in_parts,
        2,
        64,
        of_count(128, (128,)),
        lambda x, out: [np.concatenate([rows(x)[:, 11::-1], -rows(x)[:, :11:-1]], 1).ravel()],
    ),
    Case("warp rounds", warp_rounds, 2, 64, of_count(128, (128,)), rounds_of_rows),
    Case("lanes", lanes, (1, 1, 1), (5, 3, 6), lambda: [np.zeros((6, 3, 5, 3), np.int64)], places_in_warps),
    Case(
        "active",
        active,
        2,
        64,
        lambda: [np.zeros(128, np.uint32)],
        lambda out: [np.full(128, 0xFFFFFFFF, np.uint32)],
    ),
    Case("aggregated", aggregated, 2, 64, of_count(128, (1,), (128,)), placed),
    Case("differing distances", differing_distances, 1, 64, of_count(64, (64,), (64,)), distances),
    Case("ranks of values", ranks_of_values, 1, 64, of_count(64, (64,), high=4), ranks),
    Case(
        "rows of blocks",
        rows_of_blocks,
        (1, 2),
        (12, 8),
        lambda: [numbers(192).reshape(16, 12), np.zeros((16, 12), np.int32)],
        next_of_rows,
    ),
    Case(
        "strided sums",
        strided_sums,
        2,
        96,
        of_count(500, (1,), dtype=np.float64),
        lambda x, out: [np.array([x.sum()])],
    ),
]
