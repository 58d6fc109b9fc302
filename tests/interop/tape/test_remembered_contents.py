"""Checksums of arrays: equal for equal contents however they lie in memory, and different after any change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from numbridge.kernels.cpu_backend.threads import start_threads
from numbridge.kernels.machine import machine
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import describe
from numbridge.tape.places import Places
from numbridge.tape.remembered_contents import RememberedContents, _checksum

SIZES = [1, 3, 4, 100, 8195, 200_001]


def checksum(array):
    return _checksum(Places().find(describe(array)))


@pytest.mark.parametrize("size", SIZES)
def test_where_contents_lie_makes_no_difference(size):
    held = np.random.default_rng(0).random(size)
    apart = np.zeros(2 * size)
    apart[::2] = held
    assert checksum(held) == checksum(held.copy()) == checksum(apart[::2])
    assert checksum(held) == checksum(held[::-1].copy()[::-1])


def test_memory_at_odd_addresses_has_checksums():
    odd = np.zeros(8 * 65536 + 4, np.uint8)[4:].view(np.float64)
    before = checksum(odd)
    odd[65536 // 2] = 1
    assert checksum(odd) != before


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint64, np.bool_])
def test_a_change_of_one_element_is_seen(size, dtype):
    held = np.random.default_rng(1).integers(0, 2, size).astype(dtype)
    before = checksum(held)
    for place in {0, size // 2, size - 1, min(size - 1, 3)}:
        old = held[place]
        held[place] = not old
        assert checksum(held) != before
        held[place] = old
    assert checksum(held) == before


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_what_only_changes_places_is_seen(dtype):
    held = np.ones(1 << 20, dtype)
    held[0] = 2
    before, order = checksum(held), np.arange(1 << 20).astype(dtype)
    for distance in (1, 4, 64, 512, 4096, 1 << 15, 1 << 17, 1 << 18, 1 << 19):
        moved = np.ones(1 << 20, dtype)
        moved[distance] = 2
        assert checksum(moved) != before, distance
    changed = [order[::-1], np.roll(order, 1), np.roll(order, 32768), np.sort(order)[::-1]]
    assert all(checksum(other) != checksum(order) for other in changed)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_few_words_of_few_values_have_checksums_of_their_own(dtype):
    found = {checksum(np.array(values, dtype)) for values in itertools.product((0, 1, 2, -1), repeat=6)}
    assert len(found) == 4**6


def test_each_array_is_looked_at_once_until_it_is_said_that_it_may_have_changed(monkeypatch):
    looked = []
    monkeypatch.setattr("numbridge.tape.remembered_contents._checksum", lambda place: looked.append(place) or 7)
    places, contents = Places(), RememberedContents()
    place = places.keep(describe(np.ones(4)))
    contents.remember_read(place)
    contents.remember_carried([place, place], [])
    assert len(looked) == 1
    contents.look_again()
    assert contents.holds_read(place) and contents.changed([place]) == []
    assert len(looked) == 2
    contents.remember_carried([], [place])
    assert contents.changed([place]) == [] and len(looked) == 3


def test_large_memory_has_the_same_checksum_whoever_shares_the_work():
    held = np.random.default_rng(2).integers(0, 256, (3 << 20) + 5, np.uint8)
    start_threads()
    found = {checksum(held) for _ in range(20)}
    parallel = machine().state[nb.STATE_PARALLEL_FOR // 8]
    try:
        machine().state[nb.STATE_PARALLEL_FOR // 8] = 0
        assert found == {checksum(held)}
    finally:
        machine().state[nb.STATE_PARALLEL_FOR // 8] = parallel


def test_whole_chunks_that_change_places_are_seen():
    chunks = np.random.default_rng(3).integers(0, 256, (16, 1 << 18), np.uint8)
    before = checksum(chunks)
    for first, second in itertools.combinations(range(16), 2):
        moved = chunks.copy()
        moved[[first, second]] = chunks[[second, first]]
        assert checksum(moved) != before


@pytest.mark.parametrize("size", range(1, 18))
def test_the_last_bytes_count(size):
    held = np.zeros(size, np.uint8)
    found = {checksum(held)}
    for place in range(size):
        for value in (1, 128, 255):
            held[place] = value
            found.add(checksum(held))
        held[place] = 0
    assert len(found) == 1 + 3 * size
