"""Kernels that check their indices on the CPU: what is out of range ends the launch, and the error shows it."""

from __future__ import annotations

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numba import cuda

import numbridge as nb
from numbridge.kernels.cpu_backend import bounds


@nb.func
def fetch(x, i, j):
    return x[i, j]


@nb.kernel(check_bounds=True)
def everywhere(x: nb.array2d[float], v: nb.array[nb.vec3], y: nb.array[float], t):
    i, j = nb.tid()
    row = x[i]
    v[i][1] = 2.0
    part = x[i, 0:2]
    y[0] = fetch(x, i, j - 2) + row[-3] + v[i][2] + part[1]
    nb.atomic_add(y, t, 1.0)


def launch(rows=4, t=1, x=(4, 3), v=4, y=2):
    arrays = [np.ones(x, np.float32), np.ones((v, 3), np.float32), np.zeros(y, np.float32)]
    nb.launch(everywhere, (rows, 3), [*arrays, t])
    return arrays


@pytest.mark.parametrize(
    ("sizes", "text", "line"),
    [
        ({"rows": 5}, "index 4 is out of range for axis 0 of x, whose extent is 4;", "row = x[i]"),
        ({"v": 2}, "index 2 is out of range for axis 0 of v, whose extent is 2;", "v[i][1] = 2.0"),
        (
            {"x": (4, 1)},
            r"index -3 is out of range for axis 0 of row, whose extent is 1;|index -2 .* axis 1 of x",
            "[i",
        ),
        ({"x": (4, 2)}, "index -3 is out of range for axis 0 of row, whose extent is 2;", "row[-3]"),
        ({"y": 0}, "index 0 is out of range for axis 0 of y, whose extent is 0;", "y[0] ="),
        ({"t": 2}, "index 2 is out of range for axis 0 of y, whose extent is 2;", "nb.atomic_add(y, t, 1.0)"),
        ({"t": -3}, "index -3 is out of range for axis 0 of y, whose extent is 2;", "nb.atomic_add(y, t, 1.0)"),
    ],
)
def test_each_access_is_checked(sizes, text, line):
    with pytest.raises(nb.NumbridgeIndexError, match=text) as caught:
        launch(**sizes)
    assert isinstance(caught.value, IndexError)
    assert line in str(caught.value) and "test_bounds.py:" in str(caught.value)
    assert bounds.FOUND[bounds.SITE] == 0


def test_an_error_keeps_no_argument():
    x = np.ones((4, 2), np.float32)
    gone = weakref.ref(x)
    with pytest.raises(nb.NumbridgeIndexError):
        nb.launch(everywhere, (4, 3), [x, np.ones((4, 3), np.float32), np.zeros(2, np.float32), 1])
    del x
    assert gone() is None


def test_what_is_in_range_is_not_touched():
    _, v, y = launch(t=-2)
    assert y[0] > 0 and y[1] == 0
    assert (v[:, 1] == 2).all()


@nb.kernel(check_bounds=True)
def shift(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i + 1]


def test_on_many_threads_the_first_found_is_told():
    x = np.ones(1_000_000, np.float32)
    for _ in range(3):
        with pytest.raises(IndexError, match="index 1000000 is out of range for axis 0 of x, whose extent is 1000000"):
            nb.launch(shift, 1_000_000, [x, np.zeros_like(x)])
    nb.launch(shift, 999_999, [x, x.copy()])
    y = torch.zeros(3)
    with pytest.raises(IndexError, match=r"kernel 'shift': index 3 .* of x"):
        nb.launch(shift, 3, [torch.ones(3), y])
    assert y[:2].tolist() == [1, 1]


@nb.kernel(check_bounds=True)
def tuples(x, n: int):
    i = nb.tid()
    mixed, same, extents = (1, 2.5), (1.0, 2.0), x.shape
    x[i] = mixed[0] + mixed[1] + same[n] + extents[0]


def test_tuples_are_indexed_as_ever():
    x = np.zeros(2)
    nb.launch(tuples, 2, [x, 1])
    assert x.tolist() == [7.5, 7.5]


@nb.kernel(check_bounds=True)
def uneven_tuples(x, n: int):
    i = nb.tid()
    mixed = (1, 2.5, x)
    x[i] = mixed[-2] + (n, 0.5)[-1] + mixed[2][0] + mixed[-1][-1]


def test_negative_constants_are_places_of_tuples():
    x = np.zeros(1)
    nb.launch(uneven_tuples, 1, [x, 1])
    assert x.tolist() == [3.0]


@nb.func
def fifth(row):
    return row[5]


def of_a_row(x, y):
    row = x[nb.tid()]
    y[0] = row[5]


def into_a_row(x, y):
    row = x[nb.tid()]
    row[5] = 1.0


def added_to_a_row(x, y):
    x[nb.tid()][-6] += 1.0


def in_a_function(x, y):
    y[0] = fifth(x[nb.tid()])


def of_a_slice(x, y):
    y[0] = x[min(nb.tid(), 2)][1:][4]


def of_local_memory(x, y):
    own = cuda.local.array(5, np.float64)
    own[0] = x[nb.tid(), 0]
    y[0] = own[0] + own[5]


def beside_a_call(x, y):
    y[0] = x[max(nb.tid(), 0)][nb.tid() + 5]


ROWS = [of_a_row, into_a_row, added_to_a_row, in_a_function, of_a_slice, of_local_memory, beside_a_call]


@pytest.mark.parametrize("function", ROWS, ids=lambda function: function.__name__)
def test_constants_are_checked_in_rows_and_own_memory(function):
    memory = np.zeros((3, 12))
    kernel = nb.kernel(check_bounds=True)(function)
    with pytest.raises(
        nb.NumbridgeIndexError, match=r"index (4|5|-6) is out of range for axis 0 of .*, whose extent is [45];"
    ):
        nb.launch(kernel, 2, [memory[:, 3:8], np.zeros(1)])
    assert not memory.any()


@nb.func
def squared(t):
    return t * t


@nb.kernel(check_bounds=True)
def slope(x, y):
    row = x[nb.tid()]
    pair = (0.5, row)
    y[0] = nb.grad(squared)(row[5]) + pair[-1][-1]


def test_constants_are_checked_beside_gradients():
    y = np.zeros(1)
    with pytest.raises(nb.NumbridgeIndexError, match="index 5 is out of range for axis 0 of row, whose extent is 5"):
        nb.launch(slope, 1, [np.ones((1, 5)), y])
    nb.launch(slope, 1, [np.full((1, 6), 3.0), y])
    assert y[0] == 9


@nb.kernel(check_bounds=True)
def unsigned(x: nb.array[nb.uint64], y: nb.array[float]):
    i = nb.tid()
    y[x[i]] = 1.0


def test_a_large_unsigned_index_is_no_negative_one():
    with pytest.raises(IndexError, match="axis 0 of y, whose extent is 2"):
        nb.launch(unsigned, 1, [np.full(1, 2**64 - 1, np.uint64), np.zeros(2, np.float32)])


def test_inside_jax_the_error_of_xla_says_it():
    call = nb.jax_kernel(shift)
    with pytest.raises(jax.errors.JaxRuntimeError, match="index 4 is out of range for axis 0 of x, whose extent is 4"):
        jax.block_until_ready(call(jnp.ones(4)))


def test_gradients_of_a_checked_kernel():
    x, by_x = np.ones(3, np.float32), np.zeros(3, np.float32)
    y, by_y = np.zeros(2, np.float32), np.ones(2, np.float32)
    nb.launch(shift, 2, [x], [y], adj_inputs=[by_x], adj_outputs=[by_y], adjoint=True)
    assert by_x.tolist() == [0, 1, 1]


def test_the_setting_and_the_environment(run_python):
    def plain(x):
        x[nb.tid()] = 1.0

    assert nb.kernel(plain).options["check_bounds"] is False
    nb.config.check_bounds = True
    try:
        assert nb.kernel(plain).options["check_bounds"] is True
        assert nb.kernel(check_bounds=False)(plain).options["check_bounds"] is False
    finally:
        nb.config.check_bounds = False
    script = (
        "import os; os.environ['NUMBRIDGE_CHECK_BOUNDS'] = '1'\nimport numbridge as nb; print(nb.config.check_bounds)"
    )
    assert run_python(script) == "True\n"
