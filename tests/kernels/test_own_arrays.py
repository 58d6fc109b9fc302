"""Small arrays that kernels and functions make for themselves with NumPy's functions, and memory that is returned."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from numba import cuda

import lane_checks
import numbridge as nb
from adjoint_programs import declared
from emulated_cuda import on_both

ROWS = np.int64(2)


@nb.func
def spread(x, i):
    t = np.zeros((ROWS, 3))
    for k in range(3):
        t[k % ROWS, k] = x[(i + k) % x.shape[0]] * (k + 1)
    return np.sum(t) * t[1, 1] + t[0, 1]


@nb.func
def into(t, v):
    for k in range(t.size):
        t[k] += v * k


@nb.kernel
def makes_arrays(x, y):
    i = nb.tid()
    t = np.ones(4, np.float64)
    u = np.empty((2, 2), dtype=float)
    n = np.zeros(2, np.int32)
    into(t, x[i])
    for k in range(3):
        u[k % 2, 1] = t[k] * x[i]
        n[k % 2] += k
    y[i] = t @ t + u[0, 1] * u[1, 1] * n[0] + spread(x, i) + spread(x, i + 1) * n[1]


def by_hand(x):
    def spreads(i):
        t = np.zeros((2, 3))
        for k in range(3):
            t[k % 2, k] = x[(i + k) % x.size] * (k + 1)
        return t.sum() * t[1, 1] + t[0, 1]

    y = np.zeros(x.size)
    for i, v in enumerate(x):
        t = 1 + v * np.arange(4)
        y[i] = t @ t + t[2] * v * t[1] * v * 2 + spreads(i) + spreads(i + 1)
    return y


def test_arrays_on_both_targets():
    x = np.random.default_rng(1).uniform(0.3, 1.2, 7)
    for y in on_both(makes_arrays, 7, [x, np.full(7, 9.0)]):
        assert np.allclose(y, by_hand(x), rtol=1e-14)


def test_gradients():
    x = np.random.default_rng(2).uniform(0.3, 1.2, 7)
    made = np.zeros(7)
    nb.launch(makes_arrays, 7, [x], [np.zeros(7)], adj_inputs=[made], adj_outputs=[np.ones(7)], adjoint=True)
    for k in range(7):
        step = 1e-6 * (np.arange(7) == k)
        assert math.isclose(made[k], (by_hand(x + step) - by_hand(x - step)).sum() / 2e-6, rel_tol=1e-6)
    assert ".visible .entry" in makes_arrays.adjoint(["x", "y"]).ptx(x, x, x, x, capability=(9, 0))


def own_rows(x, y, trips):
    i, j = nb.tid()
    t = np.zeros(4, np.float32)
    s = x[i + j]
    for k in range(trips):
        t[k % 4] += s * x[i + j]
        s = s * 0.5 + t[(k + 1) % 4]
    y[i + j] = s + t.sum()


def test_lanes_and_threads_compute_the_same():
    lane_checks.check(own_rows, lambda n: [lane_checks.floats(n), lane_checks.floats(n), 6])
    kernel = nb.kernel(own_rows)
    for n in (1, 7, 16, 37):
        values = [lane_checks.floats(n), lane_checks.floats(n), 6]
        together, alone = (lane_checks.gradients(kernel, values, dims) for dims in ((1, n), (n, 1)))
        assert all(map(lane_checks.is_close, together, alone))


def test_each_call_begins_anew():
    @nb.func
    def counted(v):
        t = np.zeros(3)
        for k in range(3):
            t[k] += v
        return t[0] + t[1] + t[2]

    @nb.kernel
    def calls(x, y):
        i = nb.tid()
        for k in range(4):
            y[i] += counted(x[i] * k)

    x, y, made = np.arange(1.0, 4.0), np.zeros(3), np.zeros(3)
    nb.launch(calls, 3, [x, y])
    assert (y == 18 * x).all()
    nb.launch(calls, 3, [x], [y], adj_inputs=[made], adj_outputs=[np.ones(3)], adjoint=True)
    assert (made == 18).all()


# What is refused


def in_a_loop(x, y):
    for k in range(3):
        t = np.zeros(3)
        t[k] = x[k]
        y[k] = t[k]


def of_any_size(x, y):
    t = np.zeros(x.shape[0])
    y[0] = t[0]


def of_halves(x, y):
    t = np.zeros(3, "float16")
    y[0] = t[0]


@nb.func
def returned(v):
    t = cuda.local.array(3, np.float64)
    t[0] = v
    return t


@nb.func
def among_others(v):
    made = np.zeros(3)
    u = made
    return v, (u[1:], 2.0)


@nb.func
def the_same(a, b):
    return (b, a)


@nb.func
def handed_through(v):
    t = np.ones(3)
    return the_same(t, v)


@nb.func
def of_elements(v):
    t = np.ones((3, 2))
    n = t[1, 0] * v
    return n, t.shape[0], len(t), t[0, 1]


def calls_returned(x, y):
    y[0] = returned(x[0])[0]


def calls_among_others(x, y):
    v, (u, w) = among_others(x[0])
    y[0] = u[0] * v * w


def calls_handed_through(x, y):
    v, t = handed_through(x[0])
    y[0] = t[0] * v


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            in_a_loop,
            r"np.zeros in a loop would make an array in each trip; make it before the loop, and assign t\[:\] = 0 in it",
        ),
        (of_any_size, "np.zeros makes an array, for which kernels have no memory; use cuda.local.array"),
        (of_halves, "np.zeros makes an array, for which kernels have no memory; use cuda.local.array"),
        (calls_returned, "returned returns memory that it has made, which ends with the function; make it where"),
        (calls_among_others, "among_others returns memory that it has made, which ends with the function"),
        (calls_handed_through, "handed_through returns memory that it has made, which ends with the function"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refusals(function, text):
    kernel, x, y = nb.kernel(function), np.ones(3), np.zeros(3)
    with pytest.raises(nb.KernelError, match=text) as caught:
        nb.launch(kernel, 1, [x, y])
    assert "^" in str(caught.value)
    with pytest.raises(nb.KernelError):
        kernel.ptx(x, y, capability=(9, 0))
    with pytest.raises(nb.KernelError):
        nb.launch(kernel, 1, [x], [y], adj_inputs=[np.zeros(3)], adj_outputs=[np.ones(3)], adjoint=True)


def test_numbers_of_own_memory_are_returned():
    @nb.kernel
    def calls(x, y):
        i = nb.tid()
        n, a, b, c = of_elements(x[i])
        y[i] = n * a + b + c

    for y in on_both(calls, 3, [np.arange(3.0), np.zeros(3)]):
        assert y.tolist() == [4, 7, 10]


def test_derivatives_say_where_arrays_are_made():
    @nb.kernel
    def copies(x, y):
        y[nb.tid()] = np.copy(x)[0]

    with pytest.raises(
        nb.KernelUnsupportedError, match=r"np.copy makes an array, for which kernels have no memory here"
    ):
        copies.adjoint(["x", "y"]).forall(1)(*(np.ones(3) for _ in range(4)))


@nb.kernel
def aligned(x, y):
    t = cuda.threadIdx.x
    here, there = cuda.local.array(99, nb.float32, alignment=64), cuda.shared.array(4, nb.float32, 128)
    for k in range(99):
        here[k] = k
    there[t] = here[int(x[t])] + 1
    cuda.syncthreads()
    y[t] = there[3 - t]


def test_alignment():
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    aligned[1, 4](x, y)
    assert y.tolist() == [4, 3, 2, 1]
    text = aligned.ptx(x, y, capability=(9, 0))
    assert re.search(r"\.local \.align 64 ", text) and re.search(r"\.shared \.align 128 ", text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("alignment=3", r"(?s)alignment of cuda\.local\.array must be a constant, a power of two from 8 on.*\^"),
        ("alignment=4", "a power of two from 8 on"),
        ("alignment=n", "must be a constant"),
        ("alignment=16.0", "must be a constant"),
        ("align=16", r"cuda\.local\.array\(shape, dtype, alignment=None\) takes nothing else"),
        ("None, 16", r"cuda\.local\.array\(shape, dtype, alignment=None\) takes nothing else"),
    ],
)
def test_alignments_that_there_are_not(given, message):
    text = (
        f"def calls(x, n):\n    i = nb.tid()\n    made = cuda.local.array(3, np.float64, {given})\n    x[i] = made[0]"
    )
    made = declared(text, nb.kernel, cuda=cuda, nb=nb, np=np)
    with pytest.raises(nb.KernelError, match=message):
        nb.launch(made, 1, [np.ones(1), 8])


PAIR = np.dtype([("count", np.uint32), ("value", np.float64)], align=True)


@nb.kernel
def pairs_between(x, y):
    t = cuda.threadIdx.x
    pairs = cuda.shared.array(4, PAIR)
    pairs[t].count = t
    pairs[t].value = x[t]
    cuda.syncthreads()
    y[t] = pairs[3 - t].value * pairs[t].count


def test_shared_records():
    x, y = np.arange(1.0, 5), np.zeros(4)
    pairs_between[1, 4](x, y)
    assert y.tolist() == [0, 3, 4, 3]
    with pytest.raises(nb.KernelUnsupportedError, match=r"(?s)shared arrays of records have no derivative.*\^"):
        pairs_between.adjoint(["x", "y"])[1, 4](x, y, np.zeros(4), np.ones(4))


@nb.kernel
def annotated(x, y):
    i = nb.tid()
    t: np.ndarray = np.zeros(3)
    t[0] = x[i]
    v: nb.vec2 = nb.vec2(1.0, 2.0)
    v.x = t[0] * 2.0
    y[i] = v.x * t[0] + t[1]


@nb.kernel
def annotated_in_a_loop(x, y):
    for _ in range(2):
        t: np.ndarray = np.zeros(3)
        y[0] = t[0]


def test_variables_may_be_annotated():
    x, y, given = np.arange(3.0), np.zeros(3), np.zeros(3)
    nb.launch(annotated, 3, [x, y])
    np.testing.assert_array_equal(y, 2 * x * x)
    nb.launch(annotated, 3, [x, y], adj_inputs=[given, np.ones(3)], adjoint=True)
    np.testing.assert_array_equal(given, 4 * x)
    with pytest.raises(nb.KernelError, match=r"np\.zeros in a loop would make an array in each trip"):
        nb.launch(annotated_in_a_loop, 1, [x, y])
