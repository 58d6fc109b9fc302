"""Memory of the stacks of adjoints on the CPU: large pieces are kept for the next stack, each for one, and up to a limit."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

import numbridge as nb
from numbridge.kernels.machine import machine
from numbridge.kernels.native import stacks
from numbridge.kernels.native import table_layout as layout

STEPS = 3000


def step_by_step(u, steps, out):
    """Every step but the first overwrites what the adjoint of the one before reads."""
    for _ in range(steps):
        for i in range(1, u.shape[0]):
            u[i] = u[i] - u[i] * u[i - 1]
    out[0] = u[u.shape[0] - 1]


def state(offset):
    return int(machine().state[offset // 8])


def kept():
    """Return the addresses and sizes of the pieces that are kept."""
    places = (state(layout.STATE_SPARE + 8 * k) for k in range(layout.SPARE_COUNT))
    return {place: ctypes.c_int64.from_address(place).value for place in places if place}


class Stack:
    """A stack that is asked for more memory than it has, and given back, from Python."""

    def __init__(self, size):
        self.words = np.zeros(layout.STACK_SIZE // 8, np.int64)
        while self.capacity < size:
            assert call("numbridge_stack_grow", ctypes.c_int64, self.words) == 1

    @property
    def memory(self):
        return int(self.words[layout.STACK_MEMORY // 8])

    @property
    def capacity(self):
        return int(self.words[layout.STACK_CAPACITY // 8])

    def numbers(self):
        return np.ctypeslib.as_array((ctypes.c_int64 * (self.capacity // 8)).from_address(self.memory))

    def free(self):
        call("numbridge_stack_free", None, self.words)
        assert not self.words.any()


def call(name, answer, words):
    return ctypes.CFUNCTYPE(answer, ctypes.c_int64)(machine().addresses[name])(words.ctypes.data)


@pytest.fixture
def nothing_kept():
    """Let go of what other tests have left, by stacks that take all of it."""
    held = []
    while kept():
        held.append(Stack(max(kept().values())))
    assert state(layout.STATE_SPARE_BYTES) == 0
    yield
    for one in held:
        one.free()


@pytest.mark.usefixtures("nothing_kept")
def test_the_next_launch_takes_what_the_last_one_left():
    made = nb.kernel(step_by_step)
    u = np.linspace(0.01, 0.02, 40)
    first = u.copy()
    answers, pieces = [], []
    for _ in range(3):
        by_u, by_out = np.zeros_like(u), np.ones(1)
        nb.launch(made, 1, [u, STEPS], [np.zeros(1)], adjoint=True, adj_inputs=[by_u, None], adj_outputs=[by_out])
        assert np.array_equal(u, first)
        answers.append(by_u)
        pieces.append(kept())
    # Two words for each element that is overwritten
    assert sum(pieces[0].values()) >= 16 * STEPS * (len(u) - 1) and pieces[0] == pieces[1] == pieces[2]
    assert sum(pieces[0].values()) == state(layout.STATE_SPARE_BYTES)
    assert np.array_equal(answers[0], answers[1]) and np.array_equal(answers[0], answers[2]) and answers[0].any()


@pytest.mark.usefixtures("nothing_kept")
def test_a_stack_keeps_what_it_holds_when_it_takes_a_piece():
    large = Stack(4 * stacks.LEAST)
    place, size = large.memory, large.capacity
    large.numbers()[:] = -1
    large.free()
    assert kept() == {place: size}
    small = Stack(stacks.LEAST // 2)
    held = np.arange(small.capacity // 8)
    small.numbers()[:] = held
    small.words[layout.STACK_HEIGHT // 8] = small.capacity
    assert call("numbridge_stack_grow", ctypes.c_int64, small.words) == 1
    assert small.memory == place and small.capacity == size and not kept()
    assert np.array_equal(small.numbers()[: len(held)], held)
    small.free()
    assert kept() == {place: size}


@pytest.mark.usefixtures("nothing_kept")
def test_pieces_that_are_too_small_are_let_go():
    small, large = Stack(stacks.LEAST), Stack(8 * stacks.LEAST)
    assert small.capacity < large.capacity
    small.free()
    other = Stack(stacks.LEAST // 2)
    other.words[layout.STACK_CAPACITY // 8] = large.capacity // 2  # it asks for twice as much as it is said to have
    assert call("numbridge_stack_grow", ctypes.c_int64, other.words) == 1
    assert other.capacity == large.capacity and not kept() and state(layout.STATE_SPARE_BYTES) == 0
    for one in (large, other):
        one.free()


@pytest.mark.usefixtures("nothing_kept")
def test_no_more_is_kept_than_the_limit():
    size = stacks.MOST_OF_ALL // 4
    many = [Stack(size) for _ in range(6)]
    for one in many:
        one.free()
    assert len(kept()) == 4 and state(layout.STATE_SPARE_BYTES) == stacks.MOST_OF_ALL
    # Nor more pieces than there is room for
    for one in [Stack(size) for _ in range(4)] + [Stack(stacks.LEAST) for _ in range(layout.SPARE_COUNT)]:
        one.words[layout.STACK_CAPACITY // 8] = stacks.LEAST
        one.free()
    assert len(kept()) == layout.SPARE_COUNT
    assert state(layout.STATE_SPARE_BYTES) == layout.SPARE_COUNT * stacks.LEAST


@pytest.mark.usefixtures("nothing_kept")
def test_no_two_stacks_have_one_piece():
    wrong = []

    def work(number):
        for k in range(300):
            one = Stack(stacks.LEAST << (k + number) % 2)
            numbers = one.numbers()
            numbers[:] = number
            if not (numbers == number).all():
                wrong.append(number)
            one.free()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(kept().values()) == state(layout.STATE_SPARE_BYTES) and 1 <= len(kept()) <= len(threads)


def between(u, a, b, out):
    for _ in range(3):
        for i in range(a, b):
            u[i] = 0.5 * u[i] * u[i] + u[i - 1]
        for i in range(b, a, -2):
            u[i] = u[i] * u[i - 1]
    out[0] = u[b]


@pytest.mark.parametrize("kind", [np.int8, np.uint32, np.uint64])
@pytest.mark.parametrize("bounds", [(1, 6), (6, 1), (3, 3)], ids=str)
def test_loops_over_ranges_of_any_integers_find_their_room(kind, bounds):
    made = nb.kernel(between)
    u = np.linspace(0.5, 0.9, 8)

    def gradient(*ends):
        by_u, given = np.zeros_like(u), u.copy()
        nb.launch(
            made,
            1,
            [given, *ends],
            [np.zeros(1)],
            adjoint=True,
            adj_inputs=[by_u, None, None],
            adj_outputs=[np.ones(1)],
        )
        assert np.array_equal(given, u)
        return by_u

    def end(start):
        given, out = start.copy(), np.zeros(1)
        nb.launch(made, 1, [given, *bounds], [out])
        return out[0]

    found = gradient(*map(kind, bounds))
    assert np.array_equal(found, gradient(*bounds))
    step = 1e-6
    differences = [(end(u + step * along) - end(u - step * along)) / (2 * step) for along in np.eye(len(u))]
    np.testing.assert_allclose(found, differences, rtol=1e-6, atol=1e-8)


LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def upwards(u, low, high, out):
    for _ in range(3):
        for i in range(low, high):
            u[i] = u[i] * u[i - 1]
        for i in range(high, low, -2):
            u[i] = u[i] + u[i] * u[i - 1]
        for i in range(1, 4):
            u[i] = u[i] * u[i - 1]
    out[0] = u[3]


@pytest.mark.parametrize("bounds", [(MOST, LEAST), (MOST, -2), (5, LEAST + 2)], ids=str)
def test_the_bounds_of_an_empty_range_may_be_as_far_apart_as_integers_are(bounds):
    """As those are of what nothing has been found of: the least of nothing, and the greatest."""

    made = nb.kernel(upwards)
    u = np.linspace(0.5, 0.9, 6)

    def gradient(low, high):
        by_u, given, out = np.zeros_like(u), u.copy(), [np.zeros(1)]
        how = {"adj_inputs": [by_u, None, None], "adj_outputs": [np.ones(1)]}
        nb.launch(made, 1, [given, low, high], out, adjoint=True, **how)
        assert np.array_equal(given, u)
        return by_u

    assert np.array_equal(gradient(*bounds), gradient(3, 3))
