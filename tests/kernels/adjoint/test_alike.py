"""Threads that store the same number into one element, without waiting for each other: the gradient is that of one store."""

from __future__ import annotations

import re

import numpy as np
import pytest

import numbridge as nb


@nb.kernel
def rows(x, y, squares):
    i, j = nb.tid()
    total = 0.0
    for k in range(x.shape[1]):
        total += x[i, k] * x[i, k]
    squares[i] = total
    y[i, j] = x[i, j] / total


@nb.kernel
def columns_of_vectors(x: nb.array2d[nb.vec3d], y: nb.array2d[nb.vec3d], first: nb.array1d[nb.vec3d]):
    i, j = nb.tid()
    first[j] = nb.cross(x[0, j], x[1, j])
    y[i, j] = 2.0 * x[i, j]


@nb.kernel
def one_number(x, y, product):
    i, j = nb.tid()
    product[()] = x[0, 1] * x[2, 0]
    y[i, j] = x[i, j]


@nb.kernel
def first_of_row(x, y, row):
    """Only one thread of a row stores, and it reads what it stored."""
    i, j = nb.tid()
    y[i, j] = x[i, j]
    if j == 0:
        row[i] = 2.0 * x[i, 0]
        for k in range(x.shape[1]):
            row[i] = row[i] * x[i, k]


def filled(*shape):
    return np.random.default_rng(3).uniform(0.5, 1.5, shape)


CASES = [
    (rows, (40, 7), (40, 7), (40,)),
    (columns_of_vectors, (9, 33), (9, 33, 3), (33, 3)),
    (one_number, (16, 8), (16, 8), ()),
    (first_of_row, (16, 8), (16, 8), (16,)),
]


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "tape"])
@pytest.mark.parametrize(("kernel", "dim", "shape", "stored"), CASES, ids=lambda value: getattr(value, "name", None))
def test_one_thread_hands_on_the_gradient(kernel, dim, shape, stored, by_hand):
    def results(x):
        y, z = np.zeros(shape), np.zeros(stored)
        nb.launch(kernel, dim, [x], [y, z])
        return y, z

    x, by_y, by_z = filled(*shape), filled(*shape), filled(*stored)
    if by_hand:
        y, z, gradient = np.zeros(shape), np.zeros(stored), np.zeros(shape)
        nb.launch(kernel, dim, [x], [y, z], adj_inputs=[gradient], adj_outputs=[by_y, by_z.copy()], adjoint=True)
    else:
        held = nb.array(x, requires_grad=True, dtype=nb.vec3d if len(shape) == 3 else None)
        y, z = (nb.array(np.zeros(s), requires_grad=True, dtype=held.dtype) for s in (shape, stored))
        with nb.Tape() as tape:
            nb.launch(kernel, dim, [held], [y, z])
        tape.backward(grads={y: nb.array(by_y, dtype=held.dtype), z: nb.array(by_z, dtype=held.dtype)})
        gradient = held.grad.numpy()
    way, step = np.random.default_rng(4).normal(size=shape), 1e-6
    ends = [results(x + sign * step * way) for sign in (1, -1)]
    change = sum(((a - b) * w).sum() for a, b, w in zip(*ends, (by_y, by_z), strict=True)) / (2 * step)
    assert abs((gradient * way).sum() - change) < 1e-6 * max(abs(change), 1)


def test_on_cuda_it_is_one_instruction_that_takes_the_gradient():
    """Lanes of a warp would all read it before any of them left zero."""
    x, y, z = filled(4, 4), np.zeros((4, 4)), np.zeros(4)
    ptx = rows.adjoint(["x", "y", "squares"]).ptx(x, y, z, x.copy(), y.copy(), z.copy(), capability=(9, 0))
    assert re.search(r"atom(\.\w+)*\.exch\.b64", ptx)


@nb.kernel
def rows_read_back(x, y, squares):
    i, j = nb.tid()
    squares[i] = x[i, 0] * x[i, 1]
    y[i, j] = x[i, j] / squares[i]


def test_what_all_store_and_read_again_is_refused():
    x, y, z, by_x, by_y, by_z = (np.ones((4, 4)[:n]) for n in (2, 2, 1, 2, 2, 1))
    with pytest.raises(
        nb.KernelUnsupportedError, match="several threads store into this element of 'squares'"
    ) as caught:
        nb.launch(rows_read_back, (4, 4), [x], [y, z], adj_inputs=[by_x], adj_outputs=[by_y, by_z], adjoint=True)
    assert "squares[i] = x[i, 0] * x[i, 1]" in str(caught.value)
    assert all((a == 1).all() for a in (x, y, z, by_x, by_y, by_z))
