"""Which arrays may share memory in a derivative: what is found out at once agrees with the checks one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from numbridge.kernels.adjoint.overlap import are_apart, check_overlaps, repeats, share_memory
from numbridge.kernels.adjoint.prefixes import ADJOINT
from numbridge.kernels.errors import BufferAccessError
from numbridge.kernels.readers import describe

WORDS = 32


def _part(random, block):
    """Return a part of a block: a slice, backward too, one of no elements, windows that overlap, or columns."""
    start, length = int(random.integers(0, WORDS)), int(random.integers(0, 7))
    kind = random.integers(0, 5)
    if kind == 0:
        return block[start : start + length : 2]
    if kind == 1:
        return block[start : start + length][::-1]
    if kind == 2:
        rows = block[: WORDS - WORDS % 4].reshape(-1, 4)
        return rows[start % len(rows) :, start % 4 : start % 4 + 2]
    if kind == 3 and start + 4 <= WORDS:
        return np.lib.stride_tricks.sliding_window_view(block[start : start + 4], 3, writeable=True)
    return block[start : start + length]


def _outcome(found):
    """Return what the checks one by one say of arrays, of which the first half are arguments, which the kernel writes."""
    arguments = [f"x{k}" for k in range(len(found) // 2)]
    adjoints = [f"{ADJOINT}{name}" for name in arguments] + [f"{ADJOINT}y"] * (len(found) % 2)
    try:
        return check_overlaps(
            "test", arguments, set(arguments), adjoints, dict(zip(arguments + adjoints, found, strict=True))
        )
    except BufferAccessError:
        return "refused"


def test_nothing_is_refused_of_arrays_that_are_apart():
    random = np.random.default_rng(1)
    seen = set()
    for _ in range(2000):
        parts = [
            _part(random, np.zeros(WORDS) if random.integers(0, 2) else _BLOCK) for _ in range(random.integers(1, 6))
        ]
        apart, outcome = are_apart(map(describe, parts)), _outcome([*map(describe, parts)])
        assert outcome is True or not apart, [(part.shape, part.strides) for part in parts]
        seen.add((apart, outcome))
    assert seen >= {(True, True), (False, True), (False, "refused")}


_BLOCK = np.zeros(WORDS)


@pytest.mark.parametrize(
    ("parts", "apart"),
    [
        ([_BLOCK[:4], _BLOCK[4:8]], True),
        ([_BLOCK[4:8], _BLOCK[:4], _BLOCK[8:]], True),
        ([_BLOCK[:4], _BLOCK[3:8]], False),
        ([_BLOCK[:8], _BLOCK[2:4], _BLOCK[8:]], False),
        # In each other's reach, and without an element in common: looked at one by one
        ([_BLOCK[::2], _BLOCK[1::2]], False),
        ([np.lib.stride_tricks.sliding_window_view(_BLOCK, 3)], False),
        ([np.broadcast_to(_BLOCK[:1], 4), _BLOCK[1:]], True),
    ],
)
def test_arrays_are_apart_in_any_order(parts, apart):
    assert all(are_apart(map(describe, order)) is apart for order in itertools.permutations(parts))


def test_an_array_without_gaps_repeats_nothing():
    assert not repeats(describe(_BLOCK)) and not repeats(describe(_BLOCK[::-1]))
    assert repeats(describe(np.lib.stride_tricks.sliding_window_view(_BLOCK, 3)))


def test_an_array_without_elements_shares_nothing_of_one_around_it():
    x = np.zeros((6, 2))
    assert not share_memory(describe(x[3:3]), describe(x))
    assert not share_memory(describe(x), describe(x[3:3]))
    assert share_memory(describe(x[3:4]), describe(x))
    assert not share_memory(describe(x[3:4]), describe(x[4:]))
