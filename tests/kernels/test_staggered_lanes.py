"""Loops that neighbouring threads leave at different times run together, and compute to the last bit what each computes alone.

Threads that have left wait: they hold what they held, and touch no memory. Many of the loops here would end the process if they
did: a waiting thread's index lies far outside, or its division traps.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda, float32

import numbridge as nb
from lane_checks import TRIPS, both_ways, check, floats, gradients, integers, is_close, vectors, widths

FAR = 1 << 40
LOWEST = -(1 << 63)


@nb.func
def escape(a, b, trips):
    x = 0.0
    y = 0.0
    for k in range(trips):
        x, y = x * x - y * y + a, 2.0 * x * y + b
        if x * x + y * y > 4.0:
            return k
    return trips


def mandelbrot(x, y, n):
    a, b = nb.tid()
    i = a + b
    y[i] = escape(2.0 * x[i] - 0.5, x[i // 2], 9 * n)


def own_trips(x, y, n):
    a, b = nb.tid()
    s = x[a + b]
    for k in range(a + b):
        s = s * 0.5 + x[k]
    while s < 3.0:
        s += abs(x[a + b]) + 0.5
    y[a + b] = s


def kepler(x, y, n):
    a, b = nb.tid()
    i = a + b
    angle = x[i]
    change = 1.0
    trips = 0
    while abs(change) > 1e-6 and trips < 50:
        change = (angle - 0.7 * math.sin(angle) - x[i]) / (1.0 - 0.7 * math.cos(angle))
        angle -= change
        trips += 1
    y[i] = angle + trips


def pairs(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for j in range(i + 1, x.shape[0]):
        s = s * 0.9 + x[j] * x[i]
    for j in range(i, -1, -1):
        s = math.sin(s) - x[j]
    for j in range(x.shape[0] - 1, i, -3):
        s = s * x[j] + 0.1
    y[i] = s


def follows_a_list(x, y, following, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    at = i
    while at < FAR:
        s = s * 0.5 + x[at]
        y[i] -= x[at]
        at = following[at]
    y[i] += s


def sparse_rows(x, y, starts, columns, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(starts[i], starts[i + 1]):
        s += x[columns[k]] * x[k % x.shape[0]]
    y[i] = s


def traps(x, y, n):
    a, b = nb.tid()
    i = a + b
    divisor = x[i] - 6
    total = 0
    while divisor != -1:
        total += LOWEST // divisor + LOWEST % divisor
        divisor = divisor + 1 if divisor < -1 else divisor - 1
    y[i] = total


def nested(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    outer = 0
    while outer < 2 + i % 5:
        inner = 0
        while True:
            s = s * 0.8 + x[i] * inner
            if s > 0.5 + outer:
                break
            for k in range(3):
                s += 0.1 * k
                if k == 1:
                    continue
                s -= 0.02
            for k in range(inner % 3, i % 4):
                s += x[k]
                if s > 2.0:
                    break
            inner += 1
            if inner > 6:
                break
            s = math.cos(s)
        outer += 1
        y[i] += s
    y[i] += outer


def leaves_early(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for k in range(n):
        s = s * 1.3 + 0.2
        if s > 1.5:
            y[i] = s
            return
        if k % 4 == 3:
            continue
        for j in range(k):
            s += 0.01 * j
            if s < -1.0:
                y[i] = -s
                return
    y[i] = 100.0 + s


def own_memory(x, y, n):
    a, b = nb.tid()
    i = a + b
    kept = cuda.local.array(16, float32)
    for k in range(16):
        kept[k] = x[i] * k
    at = i % 16
    trips = 0
    while kept[at] < 3.0 and trips < 40:
        kept[at] += 0.5 + abs(x[i])
        at = (at * 5 + 3) % 16
        trips += 1
    s = 0.0
    for k in range(16):
        s += kept[k]
    y[i] = s * trips


def branches(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    found = False
    place = -1
    for k in range(n + i % 7):
        if s > 0.8:
            s -= x[k % x.shape[0]] if k > 2 else 1.5
            if not found:
                found = True
                place = k
        elif s < -2.0:
            break
        else:
            s += 0.3
    y[i] = s + place if found else s


def elements(x: nb.array1d[nb.vec3], y: nb.array1d[nb.vec3], m: nb.array1d[nb.mat33], n):
    a, b = nb.tid()
    i = a + b
    v = x[i]
    trips = 0
    while nb.length_sq(v) < 4.0 and trips < n:
        v = v * 1.2 + m[i] * v * 0.1
        if v[trips % 3] > 0.5:
            v = nb.cross(v, x[i]) + nb.vec3(0.1, 0.2, 0.3)
        trips += 1
    y[i] = v * float32(trips)


def begins_while_others_wait(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for k in range(i % 3):
        start = i - n
        s += start
        for j in range(start, start + 2 + k):
            s = s * 0.5 + j
    y[i] = s


def counts_from_the_end_while_others_wait(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    m = x.shape[0]
    k = 0
    while k < i % 3:
        at = i - m
        s += at
        for j in range(k + 2):
            s = s * 0.5 + j
        s = s * 0.7 + x[at]
        k += 1
    y[i] = s


def counts_as_far_as_integers_go(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    trips = 0
    for _ in range(-1 - LOWEST - i % 5, -1 - LOWEST, 3):
        s = s * 0.5 + 1.0
        trips += 1
        if trips > 9:
            break
    for _ in range(LOWEST + i % 5, LOWEST, -3):
        s = s * 0.5 - 1.0
        trips += 1
        if trips > 9:
            break
    y[i] = s + trips


def integers_only(x, y, n):
    a, b = nb.tid()
    i = a + b
    value = x[i] + 1
    trips = 0
    while value != 1 and trips < 60:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        trips += 1
    y[i] = trips


def of_lists(n):
    following = np.where(np.arange(n) + n // 3 + 1 < n, np.arange(n) + n // 3 + 1, FAR)
    return [floats(n), floats(n), following, TRIPS]


def of_rows(n):
    starts = np.concatenate([[0], np.cumsum(np.arange(n) * 7 % 13)])
    return [floats(max(n, 1)), floats(n), starts, integers(starts[-1], high=n), TRIPS]


OF_VECTORS = (
    *(mandelbrot, own_trips, kepler, pairs, nested, leaves_early, own_memory, branches, begins_while_others_wait),
    *(counts_from_the_end_while_others_wait, counts_as_far_as_integers_go),
)
CASES = dict.fromkeys(OF_VECTORS, vectors) | {
    follows_a_list: of_lists,
    sparse_rows: of_rows,
    traps: lambda n: [integers(n, high=12), integers(n), TRIPS],
    integers_only: lambda n: [integers(n), integers(n), TRIPS],
    elements: lambda n: [floats(n, 3), floats(n, 3), floats(n, 3, 3), TRIPS],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("function", "make"), CASES.items(), ids=[f.__name__ for f in CASES])
def test_threads_that_leave_a_loop_wait(function, make):
    check(function, make)


@pytest.mark.parametrize("function", [kepler, nested, branches])
def test_in_double_precision(function):
    check(function, lambda n: [floats(n, dtype=np.float64), floats(n, dtype=np.float64), TRIPS])


def test_values_are_those_of_numpy():
    n, angles = 400, np.linspace(0.0, 3.0, 400)
    y = np.zeros(n)
    nb.launch(nb.kernel(simd=True)(kepler), (1, n), [angles, y, 0])
    solved = angles + 0.0
    for _ in range(60):
        solved -= (solved - 0.7 * np.sin(solved) - angles) / (1.0 - 0.7 * np.cos(solved))
    trips = np.round(y - solved)
    np.testing.assert_allclose(y - trips, solved, rtol=1e-9)
    assert len(set(trips)) > 2


def counts(x, z, slots, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    while s < 5.0:
        s += 0.5 + i % 3
        nb.atomic_add(slots, 0, 1)
        nb.atomic_add(slots, 1 + i % 3, 1)
        nb.atomic_add(z, 0, 0.5)
        nb.atomic_max(z, 1, s)


def test_only_threads_that_are_in_the_loop_add():
    n = 53
    kernel, values = nb.kernel(simd=True)(counts), [np.zeros(n, np.float32), floats(2), np.zeros(4, np.int64), 0]
    assert widths(kernel, values)
    for _, z, slots in both_ways(kernel, values, n):
        trips = np.array([10, 4, 2])[np.arange(n) % 3]
        assert slots.tolist() == [trips.sum(), *(trips[k::3].sum() for k in range(3))]
        assert z[0] == pytest.approx(values[1][0] + 0.5 * trips.sum(), rel=1e-5)
        assert z[1] == 6.0


def locks(x, y, lock, n):
    a, b = nb.tid()
    i = a + b
    while nb.atomic_cas(lock, 0, 0, 1) != 0:
        pass
    y[0] = 0.5 * y[0] + x[i]
    nb.atomic_exch(lock, 0, 0)


def flags(x, y, lock, n):
    a, b = nb.tid()
    i = a + b
    waits = True
    while waits:
        if lock[i] >= i:
            waits = False
    y[i] = x[i]
    lock[i + 1] = i + 1


@pytest.mark.parametrize("function", [locks, flags])
def test_threads_run_alone_where_one_may_wait_for_another(function):
    n = 20
    kernel, values = nb.kernel(simd=True)(function), [floats(n), floats(n), np.zeros(n + 1, np.int64), 0]
    assert not widths(kernel, values)
    for results in both_ways(kernel, values, n):
        if function is flags:
            assert np.array_equal(results[1], values[0])
        else:
            assert not results[2].any()


def gathers(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(i % 50):
        s += x[(k * k) % 40]
        s = s * x[i * k % 40]
    y[i] = s


def scatters(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    k = i
    while s < 5.0:
        s += 0.5 + i % 3
        k = (k * 7 + 1) % 40
        nb.atomic_add(y, k, s)


def scatters_around_a_loop(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    k = i
    while s < 5.0:
        for _ in range(n):
            s += 0.5 * math.sin(s) + 1.0
        k = (k * 7 + 1) % 40
        nb.atomic_add(y, k, s)


@pytest.mark.parametrize(
    ("function", "wide"),
    [
        (scatters, 0),
        (scatters_around_a_loop, 0),
        (mandelbrot, 64),
        (kepler, 64),
        (pairs, 64),
        (gathers, 0),
        (branches, 64),
    ],
)
def test_threads_run_together_where_that_is_faster(function, wide):
    found = widths(nb.kernel(function), vectors(400))
    assert found == ({function.__name__: wide} if wide else {})


@pytest.mark.parametrize("function", [own_trips, pairs, sparse_rows])
def test_gradients(function):
    for n in (8, 37):
        values = CASES[function](n)
        wanted = gradients(nb.kernel(simd=False)(function), values, (1, n))
        for simd, dims in ((True, (1, n)), (True, (n, 1)), (None, (1, n))):
            found = gradients(nb.kernel(simd=simd)(function), values, dims)
            assert all(is_close(adjoint, other) for adjoint, other in zip(found, wanted, strict=True)), (simd, dims)
