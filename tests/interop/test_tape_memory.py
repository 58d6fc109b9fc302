"""Which memory a tape takes for gradients, and what it does to that of others."""

from __future__ import annotations

import math

import numpy as np
import pytest

import numbridge as nb


@nb.kernel
def square(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


def leaf(n=3):
    return nb.array(np.arange(1.0, n + 1), requires_grad=True, device="cpu")


def fresh(n=3):
    return nb.zeros(n, dtype=nb.float64, device="cpu")


def recorded(x, kernel=square):
    """Record a launch; return the tape, and what it wrote."""
    y = fresh(x.shape[0])
    with nb.Tape() as tape:
        nb.launch(kernel, x.shape[0], [x], [y])
    return tape, y


@pytest.mark.parametrize("make", [list, np.array, nb.array], ids=["list", "numpy", "numbridge"])
def test_what_a_gradient_starts_from_is_only_read(make):
    x = leaf()
    tape, y = recorded(x)
    given = make([1.0, 2.0, 3.0])
    tape.backward(grads={y: given})
    assert list(np.asarray(given)) == [1, 2, 3] and x.grad.list() == [2, 8, 18]
    assert tape.gradients[y].list() == [0, 0, 0]


def test_the_gradient_of_what_no_launch_wrote_is_no_view_of_what_was_given():
    x, given = leaf(), np.array([1.0, 2.0, 3.0])
    tape, y = recorded(x)
    tape.backward(grads={x: given, y: np.zeros(3)})
    given[:] = 7
    assert tape.gradients[x].list() == x.grad.list() == [1, 2, 3]


def test_gradients_that_are_given_for_one_array_and_its_parts_add_up():
    x = leaf()
    tape, y = recorded(x)
    whole, part = np.ones(3), np.array([1.0, 0.0])
    tape.backward(grads=[(y, whole), (y[1:], part), (y, whole)])
    assert x.grad.list() == [4, 12, 12] and whole.tolist() == [1, 1, 1] and part.tolist() == [1, 0]


def test_a_gradient_that_is_an_array_of_the_launch():
    x = leaf()
    tape, y = recorded(x)
    tape.backward(grads={y: x})
    assert x.list() == [1, 2, 3] and x.grad.list() == [2, 8, 18]


def test_a_gradient_that_is_the_one_it_is_added_to():
    x = leaf()
    x.grad = np.array([1.0, 1.0, 2.0])
    tape, y = recorded(x)
    tape.backward(grads={y: x.grad})
    assert x.grad.list() == [3, 5, 14]


def test_what_is_given_may_change_while_a_step_of_ones_own_runs():
    x, given = leaf(), np.ones(3)
    tape, y = recorded(x)
    with tape:
        nb.launch(square, 3, [x], [y])
        z = fresh()
        tape.record_func(lambda: given.fill(100), [z, x])
    tape.backward(grads={y: given})
    assert x.grad.list() == [2, 4, 6]


def test_a_gradient_that_cannot_be_added_leaves_the_tape_as_it_was():
    x = leaf()
    tape, y = recorded(x)
    with pytest.raises(TypeError):
        tape.backward(grads={y: np.ones(3) * 1j})
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == [2, 4, 6]


def test_a_zero_with_a_sign_has_none():
    x = leaf()
    tape, y = recorded(x)
    tape.backward(grads={x: np.full(3, -0.0), y: np.zeros(3)})
    assert [math.copysign(1, g) for g in tape.gradients[x].list()] == [1, 1, 1]
