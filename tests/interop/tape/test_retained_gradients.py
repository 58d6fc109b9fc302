"""Gradients of intermediate arrays: those of what an array holds last, where it retains its gradient."""

from __future__ import annotations

import re

import numpy as np
import paddle
import pytest
import torch

import numbridge as nb


@nb.kernel
def square(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def triple(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = 3.0 * x[i]


@nb.kernel
def double_in_place(y: nb.array[float]):
    i = nb.tid()
    y[i] = 2.0 * y[i]


@nb.kernel
def total(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    nb.atomic_add(out, 0, x[i])


def retained(size: int = 2, **more) -> nb.Array:
    return nb.zeros(size, requires_grad=True, retain_grad=True, **more)


def given() -> nb.Array:
    return nb.array([1.0, 2.0], requires_grad=True)


@pytest.mark.parametrize("retains", [False, True])
def test_the_gradient_of_an_intermediate_array(retains):
    x, y, loss = given(), nb.zeros(2, requires_grad=True, retain_grad=retains), nb.zeros(1)
    z = nb.zeros(2)
    with nb.Tape() as tape:
        nb.launch(square, 2, [x], [y])
        nb.launch(square, 2, [y], [z])
        nb.launch(total, 2, [z], [loss])
    tape.backward(loss)
    assert x.grad.list() == [4.0, 32.0]
    assert y.grad.list() == tape.gradients[y].list() == ([2.0, 8.0] if retains else [0.0, 0.0])
    assert tape.gradients[y[1:]].list() == ([8.0] if retains else [0.0])
    assert tape.gradients[x].list() == [4.0, 32.0]


def test_it_is_added_to_what_was_there_and_zeroed_by_the_tape():
    x, y, z = given(), retained(), nb.zeros(2)
    y.grad = nb.array([100.0, 200.0])
    with nb.Tape() as tape:
        nb.launch(square, 2, [x], [y])
        nb.launch(square, 2, [y], [z])
    tape.backward(grads={z: [1.0, 1.0]}, retain_graph=True)
    tape.backward(grads={z: [1.0, 1.0]})
    assert y.grad.list() == [104.0, 216.0]
    tape.zero()
    assert y.grad.list() == [0.0, 0.0]


def test_a_loss_and_an_output_keep_what_came_in():
    x, y, loss = given(), retained(), retained(1)
    with nb.Tape() as tape:
        nb.launch(square, 2, [x], [y])
        nb.launch(total, 2, [y], [loss])
    tape.backward(loss)
    assert loss.grad.list() == [1.0] and y.grad.list() == [1.0, 1.0] and x.grad.list() == [2.0, 4.0]


def test_what_is_written_again_has_the_gradient_of_what_it_holds_last():
    x, y, first, second = given(), retained(), nb.zeros(2), nb.zeros(2)
    with nb.Tape() as tape:
        nb.launch(triple, 2, [x], [y])
        nb.launch(square, 2, [y], [first])
        nb.launch(square, 2, [x], [y])
        nb.launch(square, 2, [y], [second])
    tape.backward(grads={first: [1.0, 1.0], second: [1.0, 1.0]})
    assert y.grad.list() == [2.0, 8.0]
    assert x.grad.list() == [2 * 9 * 1 + 4 * 1, 2 * 9 * 2 + 4 * 8]


def test_what_is_not_read_after_its_last_change_has_none():
    x, y, z = given(), retained(), nb.zeros(2)
    with nb.Tape() as tape:
        nb.launch(triple, 2, [x], [y])
        nb.launch(square, 2, [y], [z])
        y.zero_()
    tape.backward(grads={z: [1.0, 1.0]})
    assert y.grad.list() == [0.0, 0.0] and x.grad.list() == [18.0, 36.0]


def test_what_is_changed_in_place():
    x, y, z = given(), retained(), nb.zeros(2)
    with nb.Tape() as tape:
        nb.launch(triple, 2, [x], [y])
        nb.launch(double_in_place, 2, [y])
        nb.launch(triple, 2, [y], [z])
    tape.backward(grads={z: [1.0, 1.0]})
    assert y.grad.list() == [3.0, 3.0] and x.grad.list() == [18.0, 18.0]


def test_parts_of_an_array_that_are_written_by_themselves():
    """A simulation whose states are the rows of one array: each row keeps its gradient."""
    states = nb.zeros((4, 2), requires_grad=True, retain_grad=True)
    states[0] = [1.0, 2.0]
    loss = nb.zeros(1)
    with nb.Tape() as tape:
        for k in range(3):
            nb.launch(triple, 2, [states[k]], [states[k + 1]])
        nb.launch(total, 2, [states[3]], [loss])
        nb.launch(total, 2, [states[1]], [loss])
    tape.backward(loss)
    assert states.grad.list() == [[30.0, 30.0], [10.0, 10.0], [3.0, 3.0], [1.0, 1.0]]
    assert states[1].grad.list() == tape.gradients[states[1]].list() == [10.0, 10.0]
    assert states[1].retain_grad


def test_copies_and_functions():
    x, y, z, out = given(), retained(), retained(), retained()
    with nb.Tape() as tape:
        nb.copy(y, x)
        nb.launch(triple, 2, [y], [z])
        nb.launch(square, 2, [z], [out], record_tape=False)

        def back():
            z.grad.assign(2 * z.numpy() * out.grad.numpy())

        tape.record_func(back, [z, out])
    tape.backward(grads={out: [1.0, 1.0]})
    assert z.grad.list() == [6.0, 12.0] and y.grad.list() == [18.0, 36.0] and x.grad.list() == [18.0, 36.0]
    assert out.grad.list() == [1.0, 1.0]


def test_elements_and_records():
    @nb.kernel
    def scale(x: nb.array[nb.vec2], y: nb.array[nb.vec2], factor: float):
        i = nb.tid()
        y[i] = factor * x[i]

    x = nb.ones(3, nb.vec2, requires_grad=True)
    y, z = nb.zeros(3, nb.vec2, requires_grad=True, retain_grad=True), nb.zeros(3, nb.vec2)
    with nb.Tape() as tape:
        nb.launch(scale, 3, [x, y, 2.0])
        nb.launch(scale, 3, [y, z, 5.0])
    tape.backward(grads={z: np.ones((3, 2), np.float32)})
    assert (y.grad.numpy() == 5).all() and (x.grad.numpy() == 10).all()


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_arrays_on_tensors(framework):
    tensor = torch.zeros(2) if framework == "torch" else paddle.zeros([2])
    adopt = nb.from_torch if framework == "torch" else nb.from_paddle
    x, z = given(), nb.zeros(2)
    y = adopt(tensor, requires_grad=True, retain_grad=True)
    with nb.Tape() as tape:
        nb.launch(square, 2, [x], [y])
        nb.launch(square, 2, [y], [z])
    tape.backward(grads={z: [1.0, 1.0]})
    assert y.grad.list() == [2.0, 8.0] and x.grad.list() == [4.0, 32.0]


def test_where_it_may_be_said():
    values = np.ones(2, np.float32)
    like = {"requires_grad": True, "retain_grad": True}
    arrays = [
        nb.array(values, **like),
        *(make(2, **like) for make in (nb.zeros, nb.ones, nb.empty)),
        nb.full(2, 3.0, **like),
        nb.full_like(values, 3.0, **like),
        *(make(values, **like) for make in (nb.zeros_like, nb.ones_like, nb.empty_like, nb.clone, nb.from_numpy)),
    ]
    assert all(array.retain_grad and array.requires_grad for array in arrays)
    assert not nb.clone(arrays[0]).retain_grad and not nb.zeros_like(arrays[0]).retain_grad
    array = arrays[0]
    array.requires_grad = False
    assert not array.retain_grad
    array.requires_grad = True
    assert not array.retain_grad
    array.retain_grad = True
    assert array.retain_grad
    array.retain_grad = False
    assert not array.retain_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda: nb.zeros(2, retain_grad=True),
        lambda: nb.array([1.0], retain_grad=True),
        lambda: nb.from_numpy(np.ones(2), retain_grad=True),
        lambda: nb.from_torch(torch.ones(2), retain_grad=True),
        lambda: setattr(nb.ones(2), "retain_grad", True),
    ],
)
def test_without_a_gradient_there_is_none_to_keep(make):
    wanted = (
        "retain_grad=True of an array that requires no gradient, and has none to keep; pass requires_grad=True, too"
    )
    with pytest.raises(nb.NumbridgeValueError, match=re.escape(wanted)):
        make()
    nb.ones(2).retain_grad = False
