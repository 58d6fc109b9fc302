"""Sums, products and extremes of rows in kernels: what they give, and their gradients, in lanes and thread by thread.

That their derivatives are right is checked with the other cases of the adjoint tests (`adjoint_row_cases`).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda

import lane_checks
import numbridge as nb
from emulated_cuda import emulated_cuda, on_both

random = np.random.default_rng(5)


@nb.kernel
def totals(x, y):
    i = nb.tid()
    y[i, 0] = np.sum(x[i])
    y[i, 1] = x[i].mean()
    y[i, 2] = np.prod(x[i])
    y[i, 3] = sum(x[i])


@nb.kernel
def totals_in_loops(x, y):
    i = nb.tid()
    s, p, t = 0.0, 1.0, 0
    for k in range(x.shape[1]):
        s += x[i, k]
        p *= x[i, k]
        t = t + x[i, k]
    y[i, 0], y[i, 1], y[i, 2], y[i, 3] = s, s / x.shape[1], p, t


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_added_in_the_order_of_a_loop(dtype):
    x = random.normal(size=(5, 301)).astype(dtype)
    made, wanted = np.zeros((2, 5, 4), dtype)
    nb.launch(totals, 5, [x, made])
    nb.launch(totals_in_loops, 5, [x, wanted])
    assert made.tobytes() == wanted.tobytes()


@nb.kernel
def within_a_kernel_of_gradients(x, y):
    i = nb.tid()
    y[i, 0] = np.sum(x[i])
    y[i, 1] = x[i].mean()
    y[i, 2] = np.prod(x[i])
    y[i, 3] = sum(x[i]) + 0.0 * nb.grad(nb.sin)(x[i, 0])


def test_a_program_adds_as_numba_does():
    x = random.normal(size=(5, 301))
    made, wanted = np.zeros((2, 5, 4))
    nb.launch(within_a_kernel_of_gradients, 5, [x, made])
    nb.launch(totals, 5, [x, wanted])
    assert np.array_equal(made, wanted)


SPECIAL = [
    [1.0, 3.0, 3.0, -2.0, -2.0],
    [math.nan, 1.0, 2.0, 0.0, 3.0],
    [1.0, math.nan, 5.0, math.nan, -1.0],
    [-math.inf, -math.inf, -math.inf, -math.inf, -math.inf],
    [math.inf, -math.inf, math.inf, 0.0, -math.inf],
    [-0.0, 0.0, -0.0, 0.0, 0.0],
]


@nb.kernel
def extremes(x, y, whole):
    i = nb.tid()
    y[i, 0], y[i, 1] = np.max(x[i]), np.amin(x[i])
    y[i, 2], y[i, 3] = x[i].max(), x[i, ::-1].min()
    y[i, 4], y[i, 5] = np.argmax(x[i]), x[i].argmin()
    whole[i, 0], whole[i, 1] = np.max(x), x.min()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.uint64, np.bool_])
def test_extremes_are_those_of_numpy(dtype):
    x = np.array(SPECIAL[:1] if dtype in (np.int16, np.uint64) else SPECIAL)
    x = (np.abs(x) if dtype is np.uint64 else x).astype(dtype)
    y, whole = np.zeros((len(x), 6)), np.zeros((len(x), 2))
    nb.launch(extremes, len(x), [x, y, whole])
    rows = [[r.max(), r.min(), r.max(), r.min(), r.argmax(), r.argmin()] for r in x]
    assert np.array_equal(y, np.array(rows, float), equal_nan=True)
    assert np.array_equal(whole, np.tile([x.max(), x.min()], (len(x), 1)).astype(float), equal_nan=True)


@nb.kernel
def passing_over_nan(x, y):
    i = nb.tid()
    y[i, 0], y[i, 1] = np.nanmax(x[i]), np.nanmin(x[i, ::-1])
    y[i, 2], y[i, 3] = np.nanmax(x), np.nanmin(x)
    y[i, 4] = np.count_nonzero(x[i]) + 10 * np.count_nonzero(x)


@pytest.mark.one_in(2, first=1)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.uint64, np.bool_])
def test_nan_is_passed_over_and_what_is_not_zero_counted(dtype):
    x = np.array(SPECIAL[:1] if dtype in (np.int16, np.uint64) else [*SPECIAL, [math.nan, -math.inf, *[math.nan] * 3]])
    x = (np.abs(x) if dtype is np.uint64 else x).astype(dtype)
    here, there = on_both(passing_over_nan, len(x), [x, np.zeros((len(x), 5))])
    of_all = [np.nanmax(x), np.nanmin(x)]
    wanted = [[np.nanmax(r), np.nanmin(r), *of_all, np.count_nonzero(r) + 10 * np.count_nonzero(x)] for r in x]
    assert np.array_equal(here, np.array(wanted, float))
    assert np.array_equal(there, here)


@nb.kernel
def of_numbers(x, y):
    i = nb.tid()
    y[i] = np.nanmax(x[i]) * 2.0 + np.nanmin(x[i]) * np.count_nonzero(x[i])


def test_gradients_go_to_what_is_no_nan():
    x = np.array(
        [[math.nan, 3.0, 3.0, 1.0], [math.nan] * 4, [math.nan, math.nan, -math.inf, math.nan], [0.0, 0.0, 2.0, 0.0]]
    )
    g, one = np.zeros_like(x), np.ones(4)
    nb.launch(of_numbers, 4, [x], [np.zeros(4)], adj_inputs=[g], adj_outputs=[one], adjoint=True)
    assert g.tolist() == [[0, 2, 0, 4], [6, 0, 0, 0], [0, 0, 6, 0], [1, 0, 2, 0]]
    made = np.zeros(1)
    nb.launch(of_numbers, 1, [np.full((1, 2), math.nan), made])
    assert np.isnan(made).all()


@nb.kernel
def largest(x, y):
    i = nb.tid()
    y[i] = np.max(x[i]) * 2.0 + min(x[i]) + x[i, np.argmin(x[i])]


def test_a_tie_gives_its_gradient_to_the_first():
    x = np.array([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    g, one = np.zeros_like(x), np.ones(2)
    nb.launch(largest, 2, [x], [np.zeros(2)], adj_inputs=[g], adj_outputs=[one], adjoint=True)
    assert g.tolist() == [[2, 2, 0, 0], [4, 0, 0, 0]]


# Products of rows


@nb.kernel
def products(x, w, y):
    i = nb.tid()
    y[i, 0] = np.dot(x[i], w[:, 1])
    y[i, 1] = x[i, ::2] @ w[::-2, 0]
    y[i, 2] = np.vdot(x[i], w[:, 2]) + x[i].dot(x[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("of_x", "of_w"),
    [
        (np.float64, np.float64),
        (np.float32, np.float64),
        (np.int32, np.float32),
        (np.int16, np.int64),
        (np.complex128, np.complex128),
        (np.complex64, np.float64),
    ],
)
def test_products_of_rows_that_numba_does_not_take(of_x, of_w):
    x, w = (random.normal(size=(4, 7)) * 9).astype(of_x), (random.normal(size=(7, 3)) * 9).astype(of_w)
    if x.dtype.kind == "c":
        x *= 1 + 0.5j
    y = np.zeros((4, 3), np.result_type(of_x, of_w))
    wanted = np.stack([x @ w[:, 1], x[:, ::2] @ w[::-2, 0], x.conj() @ w[:, 2] + x @ x[0]], axis=1)
    here, there = on_both(products, 4, [x, w, y])
    for made in (here, there):
        assert np.allclose(made, wanted, rtol=1e-5 if y.dtype.itemsize == 4 else 1e-6)


@nb.kernel
def of_rows(x, y):
    i = nb.tid()
    y[i] = np.max(x[i]) + np.min(x) + x[i] @ x[0] + np.dot(x[i], x[i, ::-1]) + x[i].sum()


def test_rows_on_cuda():
    x, y = random.normal(size=(4, 9)).astype(np.float32), np.zeros(4, np.float32)
    here, there = on_both(of_rows, 4, [x, y])
    assert np.allclose(here, there, rtol=1e-5)


@nb.kernel
def from_an_end(x, w, y, n):
    i = nb.tid()
    y[i] = np.max(x[i, n:]) * x[i, 0] + x[i] @ w + np.argmax(x[i, n:])


@pytest.mark.parametrize(("length", "n"), [(4, 4), (3, 0)], ids=["no elements", "other lengths"])
def test_what_numpy_raises_ends_the_launch_and_no_derivative_reads_beyond(length, n):
    x, w, y = np.ones((2, 4)), np.ones(length), np.zeros(2)
    with pytest.raises(
        nb.KernelError, match="the greatest of no elements, and the product of rows of different lengths"
    ):
        nb.launch(from_an_end, 2, [x, w, y, n])
    gx, gw, gy = np.zeros((3, 4)), np.zeros(length + 2), np.ones(2)
    given = {"adj_inputs": [gx[:2], gw[:length], gy, None], "adjoint": True}
    nb.launch(from_an_end, 2, [x, w, y, n], **given)
    assert not gx[2:].any() and not gw[length:].any()
    with emulated_cuda() as device:  # which notices what is read outside of an array
        there = [device.on_device(a) for a in (x, w, y)]
        adjoints = [device.on_device(a) for a in (gx[:2].copy(), gw[:length].copy(), np.ones(2))]
        nb.launch(from_an_end, 2, [*there, n], adj_inputs=[*adjoints, None], adjoint=True)


# Lanes, and blocks


def through_rows(x, w, y, trips):
    i, j = nb.tid()
    k = i + j
    s = x[k, 0]
    for t in range(trips):
        s = s * 0.5 + np.sum(x[k, t % 3 :]) * 0.1 + np.mean(w) * math.sin(s) + np.prod(x[k, :3])
    y[k] = s * sum(w)


def rows(n):
    return [lane_checks.floats(n, 5), lane_checks.floats(6), lane_checks.floats(n), 4]


def test_lanes_compute_what_threads_do():
    lane_checks.check(through_rows, rows)


def with_products(x, w, y, trips):
    i, j = nb.tid()
    k = i + j
    s = x[k, 0]
    for t in range(trips):
        s = s * 0.5 + (x[k] @ w) * math.sin(s) + x[k].max() * x[k, t]
    y[k] = s * np.dot(x[k, ::2], w[::2]) + min(x[k])


@pytest.mark.parametrize("function", [through_rows, with_products], ids=lambda function: function.__name__)
def test_gradients_in_lanes_are_those_of_threads(function):
    kernel = nb.kernel(function)
    for n in (1, 7, 16, 37, 150):
        values = [lane_checks.floats(n, 5), lane_checks.floats(5), lane_checks.floats(n), 4]
        for one, other in zip(*lane_checks.both_ways(kernel, values, n), strict=True):
            assert one.tobytes() == other.tobytes()
        together, alone = (lane_checks.gradients(kernel, values, dims) for dims in ((1, n), (n, 1)))
        assert all(map(lane_checks.is_close, together, alone)), n


@nb.kernel
def of_a_tile(x, w, y):
    tile = cuda.shared.array((4, 3), np.float64)
    i, j = cuda.grid(1), cuda.threadIdx.x
    for k in range(3):
        tile[j, k] = x[i] * w[k] + x[i] ** 2
    cuda.syncthreads()
    y[i] = np.sum(tile) * tile[j].max() + tile[j] @ tile[3 - j] + np.max(tile[:, 1]) * np.dot(tile[0], w)


@pytest.mark.parametrize("blocks", [1, 3])
def test_gradients_of_shared_memory(blocks):
    n = 4 * blocks
    given = [random.uniform(0.5, 1.5, n), random.uniform(0.5, 1.5, 3)]
    adjoints = [np.zeros(n), np.zeros(3)]
    nb.launch(
        of_a_tile, n, given, [np.zeros(n)], adj_inputs=adjoints, adj_outputs=[np.ones(n)], adjoint=True, block_dim=4
    )

    def total(moved):
        y = np.zeros(n)
        nb.launch(of_a_tile, n, moved, [y], block_dim=4)
        return y.sum()

    for place, made in enumerate(adjoints):
        for k in range(made.size):
            sides = [
                [a + step * (np.arange(a.size) == k) * (p == place) for p, a in enumerate(given)]
                for step in (1e-6, -1e-6)
            ]
            assert math.isclose(made[k], (total(sides[0]) - total(sides[1])) / 2e-6, rel_tol=1e-6)


@nb.kernel
def gradient_of_a_complex_sum(z, y):
    i = nb.tid()
    y[i] = np.sum(z[i]) * np.dot(z[i], z[0]) + np.vdot(z[i], z[0]) * np.prod(z[i]) + z[i].mean() * np.var(z[i])


def test_complex_rows():
    z = random.normal(size=(3, 4)) + 1j * random.normal(size=(3, 4))
    made = np.zeros_like(z)

    def total(moved):
        y = np.zeros(3, complex)
        nb.launch(gradient_of_a_complex_sum, 3, [moved, y])
        return y.real.sum()

    y = np.zeros(3, complex)
    nb.launch(
        gradient_of_a_complex_sum, 3, [z], [y], adj_inputs=[made], adj_outputs=[np.ones(3, complex)], adjoint=True
    )
    for place in np.ndindex(z.shape):
        for unit in (1, 1j):
            step = np.zeros_like(z)
            step[place] = 1e-6 * unit
            sides = z + step, z - step
            slope = (total(sides[0]) - total(sides[1])) / 2e-6
            assert math.isclose((made[place] * np.conj(unit)).real, slope, rel_tol=1e-6, abs_tol=1e-6)
