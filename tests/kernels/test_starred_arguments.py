"""Device functions that take any number of arguments, and tuples whose elements are passed one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import on_both

PAIR = (2.0, 3.0)


@nb.func
def line(t, a, b=1.0):
    return t * a + b


@cuda.jit(device=True)
def total(first, *rest):
    s = first
    for number in rest:
        s = s * 0.5 + number
    return s + len(rest) * rest[-1]


@nb.func
def passed_on(*numbers):
    return total(*numbers) * total(*numbers, 2.0)


@nb.func
def applied(f, numbers):
    return f(*numbers)


@nb.func
def here(*arrays):
    i = nb.tid()
    s = 0.0
    for a in arrays:
        s += a[i] * a[0]
    return s


@nb.func
def scaled_into(out, factor, *arrays):
    for a in arrays:
        out[nb.tid()] += a[nb.tid()] * factor


@nb.kernel
def calls(x, y, z):
    i = nb.tid()
    both = (x[i], 0.5)
    y[i] = line(x[i], *PAIR) + line(*both) * max(*both, 0.25) + applied(line, both) + passed_on(*both, x[0])
    y[i] += here(x, x) * here(*(x,)) + math.atan2(*both)
    scaled_into(z, *both[1:], x, *(x, x)[1:])


def by_hand(x):
    def added(first, *rest):
        s = first
        for number in rest:
            s = s * 0.5 + number
        return s + len(rest) * rest[-1]

    y = x * 2 + 3 + (x * 0.5 + 1) * np.maximum(np.maximum(x, 0.5), 0.25) + x * 0.5 + 1
    y = y + added(x, 0.5, x[0]) * added(x, 0.5, x[0], 2.0)
    return y + 2 * (x * x[0]) ** 2 + np.arctan2(x, 0.5)


def test_arguments_on_both_targets():
    x = np.random.default_rng(1).uniform(0.2, 1.5, 9)
    for target in on_both(calls, 9, [x, np.zeros(9), np.zeros(9)]):
        assert np.allclose(target, x)
    y, z = np.zeros(9), np.zeros(9)
    nb.launch(calls, 9, [x, y, z])
    assert np.allclose(y, by_hand(x), rtol=1e-14)
    assert np.allclose(z, x)
    assert calls.source.written({"x": 1, "y": 1, "z": 1}) == {"y", "z"}


def test_gradients():
    x = np.random.default_rng(2).uniform(0.2, 1.5, 9)
    made, weights = np.zeros(9), np.linspace(0.5, 2.0, 9)
    adjoints = [weights.copy(), 3 * weights]
    nb.launch(calls, 9, [x], [np.zeros(9), np.zeros(9)], adj_inputs=[made], adj_outputs=adjoints, adjoint=True)
    for k in range(9):
        step = 1e-6 * (np.arange(9) == k)
        wanted = ((by_hand(x + step) - by_hand(x - step)) @ weights) / 2e-6 + 3 * weights[k]
        assert math.isclose(made[k], wanted, rel_tol=1e-6)
    assert ".visible .entry" in calls.adjoint(["x", "y", "z"]).ptx(*[x] * 6, capability=(9, 0))


@cuda.jit(device=True)
def turned(*given):
    tile = cuda.shared.array(8, np.float64)
    j = cuda.threadIdx.x
    tile[j] = given[0][cuda.grid(1)] * given[-1]
    cuda.syncthreads()
    return tile[7 - j]


@nb.kernel
def in_blocks(x, y):
    y[cuda.grid(1)] = turned(x, 2.0) + turned(*(x, 3, 4.0))


def test_functions_that_wait_and_make_memory_take_any_number():
    x, y = np.arange(16.0), np.zeros(16)
    in_blocks[2, 8](x, y)
    assert (y == 6 * np.concatenate([x[7::-1], x[:7:-1]])).all()
    made = np.zeros(16)
    nb.launch(in_blocks, 16, [x], [y], adj_inputs=[made], adj_outputs=[x.copy()], adjoint=True, block_dim=8)
    assert (made == 6 * np.concatenate([x[7::-1], x[:7:-1]])).all()
    assert "bar.sync" in in_blocks.ptx(x, y, capability=(9, 0))


def ranges(x):
    pair = (0, 2)
    for k in range(*pair):
        x[k] = 1.0


def shown(x):
    pair = (x[0], 2)
    print(*pair)


def elsewhere(x):
    pair = (x[0], *PAIR)
    x[0] = pair[1]


def beside_a_function(x):
    pair = (x[0], x[1])
    x[0] = applied(line, *(pair,))


def uneven(x):
    x[0] = total(1.0, x[0], 2)


def none_at_all(x):
    x[0] = total(1.0)


def atomic(x):
    pair = (0, x[1])
    nb.atomic_add(x, *pair)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (ranges, r"range takes its arguments one by one; write the elements out\n(.|\n)*range\(\*pair\)"),
        (shown, "print takes its arguments one by one"),
        (elsewhere, "a starred expression outside of the arguments of a call cannot be used in a kernel"),
        (beside_a_function, "line is a function, beside which nothing can be starred; write the elements out"),
        (uneven, r"this tuple has parts of different types \(float64, int\), and is not looped over; make them alike"),
        (none_at_all, "this tuple is empty, and is not looped over; pass one element at least"),
        (atomic, "atomic_add takes its arguments one by one"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_not_starred(function, text):
    with pytest.raises(nb.KernelError, match=text):
        nb.kernel(function)[1, 1](np.zeros(3))


def test_a_kernel_takes_the_arguments_that_it_names():
    def any_number(x, *rest):
        x[0] = 1.0

    with pytest.raises(nb.KernelError, match=r"\*rest: a kernel takes a fixed number of parameters; name them"):
        nb.kernel(any_number)
