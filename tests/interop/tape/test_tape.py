"""Tape: launches recorded and reversed, over arrays of every framework, views, slices and memory that is overwritten."""

from __future__ import annotations

import gc
import math
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch

import numbridge as nb
from numbridge.kernels.watching import is_watched
from numbridge.tape.places import Place


@nb.kernel
def square(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def sine(x, y):
    i = nb.tid()
    y[i] = math.sin(x[i])


@nb.kernel
def product(x, y, out):
    i = nb.tid()
    out[i] = x[i] * y[i]


@nb.kernel
def total(x, loss):
    i = nb.tid()
    nb.atomic_add(loss, 0, x[i])


@nb.kernel
def in_place(y):
    i = nb.tid()
    y[i] = y[i] * y[i] * y[i]


@nb.kernel
def double(x, y):
    i = nb.tid()
    y[i] = 2.0 * x[i]


@nb.kernel(enable_backward=False)
def undifferentiated(x, y):
    i = nb.tid()
    y[i] = x[i] + 1.0


@nb.kernel
def unsupported(x, y):
    i = nb.tid()
    y[i] = np.spacing(x[i])


def leaf(*values):
    return nb.array(list(values), dtype=nb.float64, requires_grad=True)


def fresh(n=3):
    return nb.zeros(n, dtype=nb.float64)


def test_several_launches():
    x, y, z, loss = leaf(0.1, 0.2, 0.3), fresh(), fresh(), fresh(1)
    with nb.Tape() as tape:
        nb.launch(sine, 3, [x], [y])
        nb.launch(product, 3, [x, y], [z])
        nb.launch(total, 3, [z], [loss])
    tape.backward(loss)
    v = x.numpy()
    assert np.allclose(x.grad.numpy(), np.sin(v) + v * np.cos(v))
    assert np.allclose(tape.gradients[y].numpy(), 0) and np.allclose(tape.gradients[loss].numpy(), 1)
    assert tape.kept_bytes == 0


def test_jax_agrees():
    x, y, z, loss = leaf(0.4, 0.5, 0.6), fresh(), fresh(), fresh(1)
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(sine, 3, [y], [z])
        nb.launch(product, 3, [z, x], [y])
        nb.launch(total, 3, [y], [loss])
    tape.backward(loss)
    with jax.enable_x64(True):
        expected = jax.grad(lambda v: (jnp.sin(v * v) * v).sum())(jnp.asarray(x.numpy().copy()))
    assert np.allclose(x.grad.numpy(), expected)


@pytest.mark.parametrize("form", ["launch", "forall", "configured", "recorded"])
def test_every_form_of_launch_is_recorded(form):
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    launches = {
        "launch": lambda: nb.launch(square, 3, [x, y]),
        "forall": lambda: square.forall(3)(x, y),
        "configured": lambda: square[1, 3](x, y),
        "recorded": nb.launch(square, 3, [x, y], record_cmd=True).launch,
    }
    launches[form]()  # known to compiled code already, so that only the watching sends it over the slow road
    with nb.Tape() as tape:
        launches[form]()
    tape.backward(grads={y: [1.0, 1.0, 1.0]})
    assert x.grad.list() == [2, 4, 6]


def test_an_input_that_a_later_launch_overwrites_is_kept():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(square, 3, [y], [z])
        nb.launch(sine, 3, [z], [y])
        nb.launch(double, 3, [z], [x])
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [4, 32, 108]
    # y for its square, z for its sine: not x, which is needed too, until it is overwritten.
    assert tape.kept_bytes == 2 * 24


def test_what_no_adjoint_reads_is_not_kept():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        for _ in range(4):
            nb.launch(double, 3, [x], [y])
            nb.launch(double, 3, [y], [x])
    tape.backward(grads={x: np.ones(3)})
    assert x.grad.list() == [256] * 3 and tape.kept_bytes == 0


def test_in_place_launches():
    y = leaf(0.5, 0.9, 1.1)
    start = y.numpy().copy()
    with nb.Tape() as tape:
        nb.launch(in_place, 3, [y])
        nb.launch(in_place, 3, [y])
    tape.backward(grads=[(y, np.ones(3))])
    assert np.allclose(y.grad.numpy(), 9 * start**8)
    assert np.allclose(y.numpy(), start**9) and tape.kept_bytes == 48


def test_launches_after_the_tape_cannot_spoil_it():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
    double.forall(3)(y, x)
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == [2, 4, 6] and not is_watched()


def test_methods_of_arrays_cannot_spoil_it():
    for change in (lambda a: a.fill_(9), lambda a: a.zero_(), lambda a: a.assign([7.0, 8.0, 9.0])):
        x, y = leaf(1.0, 2.0, 3.0), fresh()
        with nb.Tape() as tape:
            nb.launch(square, 3, [x], [y])
            change(x)
            nb.launch(product, 3, [x, x], [fresh()])
        x[0] = 5.0
        tape.backward(grads={y: np.ones(3)})
        assert x.grad.list() == [2, 4, 6]


def test_filling_ends_a_gradient():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        y.fill_(2.0)
        nb.launch(product, 3, [x, y], [z])
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [2, 2, 2]


def test_clone_carries_gradients():
    x, z = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        y = nb.clone(x)
        nb.launch(square, 3, [y], [z])
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [2, 4, 6]


@nb.kernel
def doubled(x, y):
    i = nb.tid()
    y[i] = 2.0 * x[i]


def copied_whole(z, y):
    nb.copy(z, y)


def copied_in_part(z, y):
    nb.copy(z, y, dest_offset=1, src_offset=0, count=2)


def assigned_to_a_view(z, y):
    z[::2].assign(y[1:])


@pytest.mark.parametrize(
    ("write", "sources"),
    [(nb.Array.assign, [0, 1, 2]), (copied_whole, [0, 1, 2]), (copied_in_part, [0, 1]), (assigned_to_a_view, [1, 2])],
)
@pytest.mark.parametrize("dtype", [nb.float32, nb.float64])
def test_copies_into_arrays_that_are_there_carry_gradients(write, sources, dtype):
    x, y, z, w = leaf(1.0, 2.0, 3.0), fresh(), nb.zeros(3, dtype), nb.zeros(3, dtype)
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [z])  # what is overwritten carries nothing on
        nb.launch(square, 3, [x], [y])
        z.zero_()
        write(z, y)
        nb.launch(square, 3, [z], [w])
        y.zero_()
    tape.backward(grads={w: np.ones(3)})
    values = x.numpy()
    assert x.grad.list() == [4 * v**3 if k in sources else 0 for k, v in enumerate(values)]


def test_what_a_copy_leaves_has_its_gradient_still():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(square, 3, [y], [z])
        nb.copy(z, y, dest_offset=0, src_offset=2, count=1)
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [0, 32, 4 * 27 + 6]


def test_a_copy_of_an_array_that_requires_a_gradient_and_of_a_tensor():
    x, t, y, z = leaf(1.0, 2.0, 3.0), torch.ones(3, requires_grad=True), fresh(), fresh()
    with nb.Tape() as tape:
        y.assign(x)
        nb.copy(z, t)
        nb.launch(product, 3, [y, z], [w := fresh()])
    tape.backward(grads={w: np.ones(3)})
    assert x.grad.list() == [1, 1, 1] and t.grad.tolist() == [1, 2, 3]


def test_backward_without_a_loss_takes_the_gradients_of_what_was_written():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(square, 3, [y], [z])
    x.grad.fill_(1.0)
    z.grad = np.ones(3)
    tape.backward(retain_graph=True)
    assert x.grad.list() == [1 + 4 * k**3 for k in (1, 2, 3)]
    assert z.grad.list() == [0, 0, 0]  # it has gone on to what z was made of
    x.grad.zero_()
    y.grad = np.array([0.0, 0.5, 0.5])
    tape.backward(retain_graph=True)
    assert x.grad.list() == [0, 2, 3]
    with pytest.raises(nb.NumbridgeValueError, match="or an array that was written and has a grad other than zero"):
        tape.backward()


def test_copies_that_are_not_recorded_are_refused():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    expanded = nb.from_torch(torch.ones(1).expand(3), requires_grad=True)
    with nb.Tape():
        for write, target, source in (
            (nb.Array.__setitem__, y, x),
            (nb.Array.fill_, y, x),
            (nb.copy, y, expanded),
            (nb.copy, x[1:], x[:2]),
        ):
            with pytest.raises(nb.NumbridgeError, match="is not recorded, unless it is a copy"):
                write(target, *([slice(None)] if write is nb.Array.__setitem__ else []), source)
    assert x.list() == [1, 2, 3] and y.list() == [0, 0, 0]


def test_a_part_that_was_set_refuses_a_gradient():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        y[0] = 4.0
        nb.launch(square, 3, [y], [z])
    with pytest.raises(nb.NumbridgeError, match=r"was written by array\[...\] = value"):
        tape.backward(grads={z: np.ones(3)})


def test_the_same_array_twice():
    x, z = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(product, 3, [x, x], [z])
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [2, 4, 6]
    with nb.Tape(), pytest.raises(nb.BufferAccessError, match="share memory, and the kernel writes"):
        nb.launch(product, 3, [z, x, x])


def test_views_and_slices():
    x, y, loss = nb.array(np.arange(1.0, 7.0), requires_grad=True), fresh(6), fresh(1)
    with nb.Tape() as tape:
        nb.launch(square, 3, [x[::2]], [y[3:]])
        nb.launch(square, 3, [x[1::2]], [y[:3]])
        nb.launch(sine, 2, [y[2:4]], [y[4:]])
        nb.launch(total, 6, [y], [loss])
    tape.backward(loss)

    def forward(v):
        squares = jnp.concatenate([v[1::2] ** 2, v[::2] ** 2])
        return jnp.concatenate([squares[:4], jnp.sin(squares[2:4])]).sum()

    with jax.enable_x64(True):
        expected = jax.grad(forward)(jnp.arange(1.0, 7.0))
    assert np.allclose(x.grad.numpy(), expected)
    assert np.allclose(tape.gradients[x[1:3]].numpy(), expected[1:3])


def test_two_dimensional_views():
    @nb.kernel
    def rows(a, out):
        i, j = nb.tid()
        nb.atomic_add(out, i, a[i, j] * a[i, j])

    a, out = nb.array(np.arange(6.0).reshape(2, 3), requires_grad=True), fresh(3)
    with nb.Tape() as tape:
        nb.launch(rows, (3, 2), [a.T], [out])
    tape.backward(grads={out: np.ones(3)})
    assert np.allclose(a.grad.numpy(), 2 * a.numpy())


def test_gradients_accumulate():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    tape = nb.Tape()
    for _ in range(2):
        with tape:
            nb.launch(square, 3, [x], [y])
        tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == [4, 8, 12]
    tape.zero()
    assert x.grad.list() == [0, 0, 0]


def test_a_gradient_that_was_there_is_no_cotangent():
    x, y = leaf(1.0, 2.0, 3.0), leaf(0.0, 0.0, 0.0)
    y.grad.fill_(100)
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == [2, 4, 6] and y.grad.list() == [100, 100, 100]


def test_nothing_is_recorded_that_needs_no_gradient():
    x, y = fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(unsupported, 3, [x], [y])
    assert not is_watched()
    with pytest.raises(nb.NumbridgeError, match="so every gradient would be zero; launch in the with block"):
        tape.backward(grads={y: np.ones(3)})


def test_what_cannot_be_differentiated_is_refused_before_it_runs():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape(), pytest.raises(nb.KernelUnsupportedError, match="no derivative"):
        nb.launch(unsupported, 3, [x], [y])
    assert y.list() == [0, 0, 0]


def test_launches_without_a_derivative():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(undifferentiated, 3, [x], [y])
        nb.launch(square, 3, [x], [z])
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [2, 4, 6]
    with nb.Tape() as tape:
        nb.launch(undifferentiated, 3, [x], [y])
        nb.launch(square, 3, [y], [z])
    with pytest.raises(
        nb.NumbridgeError, match="written by kernel 'undifferentiated', declared with enable_backward=False"
    ):
        tape.backward(grads={z: np.ones(3)})


@pytest.mark.parametrize("how", [{}, {"device": "cpu"}, {"max_blocks": 1}, {"block_dim": 32}], ids=repr)
def test_launches_that_are_not_to_be_recorded(how):
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y], record_tape=False, **how)
        nb.launch(square, 3, [y], [z])
    with pytest.raises(nb.NumbridgeError, match="launched with record_tape=False"):
        tape.backward(grads={z: np.ones(3)})
    by_x = fresh()
    with nb.Tape() as tape:
        given = {"adj_inputs": [by_x], "adj_outputs": [np.ones(3)], "adjoint": True}
        nb.launch(square, 3, [x], [y], **given, record_tape=False, **how)
        nb.launch(square, 3, [by_x], [z])
    with pytest.raises(nb.NumbridgeError, match="the adjoint of square, which is not differentiated again"):
        tape.backward(grads={z: np.ones(3)})
    assert by_x.list() == [2, 4, 6]


@nb.kernel
def sevenfold_until(x: nb.array[float], y: nb.array[float], limit: float):
    i = nb.tid()
    y[i] = 7.0 * x[i]
    if x[i] > limit:
        raise ValueError("too large")


@pytest.mark.parametrize("check_contents", [True, False])
@pytest.mark.parametrize("is_read", [True, False])
def test_no_gradient_passes_what_a_launch_that_raised_has_written(check_contents, is_read) -> None:
    x, y, z = nb.array([1.0, 2.0], requires_grad=True), nb.zeros(2), nb.zeros(2)
    with nb.Tape(check_contents) as tape:
        nb.launch(square, 2, [x], [y])
        with pytest.raises(nb.KernelError, match="too large"):
            nb.launch(sevenfold_until, 2, [x, y, 1.5])
        if is_read:
            nb.launch(square, 2, [y], [z])
    with pytest.raises(nb.NumbridgeError, match="was written by kernel 'sevenfold_until', which raised"):
        tape.backward(grads={z if is_read else y: [1.0, 1.0]})


def test_what_a_launch_that_raised_has_written_may_be_overwritten() -> None:
    x, y = nb.array([1.0, 2.0], requires_grad=True), nb.zeros(2)
    with nb.Tape() as tape:
        with pytest.raises(nb.KernelError, match="too large"):
            nb.launch(sevenfold_until, 2, [x, y, 1.5])
        nb.launch(square, 2, [x], [y])
    tape.backward(grads={y: [1.0, 1.0]})
    assert x.grad.list() == [2, 4]


def test_errors():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    tape = nb.Tape()
    with tape:
        nb.launch(square, 3, [x], [y])
        with pytest.raises(nb.NumbridgeError, match="still records"):
            tape.backward(grads={y: np.ones(3)})
    with pytest.raises(nb.NumbridgeValueError, match="needs a loss, or grads"):
        tape.backward()
    with pytest.raises(nb.NumbridgeValueError, match=r"the loss has shape \(3,\)"):
        tape.backward(y)
    with pytest.raises(nb.NumbridgeValueError, match=r"the gradient has shape \(2,\), and its array \(3,\)"):
        tape.backward(grads={y: [1.0, 2.0]})
    with pytest.raises(nb.NumbridgeTypeError, match="floating-point"):
        tape.backward(grads={nb.zeros(3, dtype=int): [1, 2, 3]})
    tape.backward(grads={y: np.ones(3)})
    with pytest.raises(KeyError):
        tape.gradients[fresh()]
    assert len(tape.gradients) == 2 and {id(a) for a in tape.gradients} == {id(x), id(y)}


def test_a_tape_that_needs_nothing_kept_serves_a_whole_optimisation():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(double, 3, [y], [z])
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [4, 8, 12] and not is_watched()
    # Each time it is the gradient at what x holds then, whoever has changed it.
    np.asarray(x)[:] = 5.0, 6.0, 7.0
    tape.zero()
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [20, 24, 28]
    nb.launch(double, 3, [fresh()], [x])
    tape.zero()
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [0, 0, 0] and tape.kept_bytes == 0


def test_a_tape_that_has_lost_something_is_used_up():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as chain:
        nb.launch(square, 3, [x], [y])
        nb.launch(square, 3, [y], [z])
    chain.backward(grads={z: np.ones(3)})
    with nb.Tape() as overwritten:
        nb.launch(square, 3, [x], [y])
    x.fill_(7.0)
    overwritten.backward(grads={y: np.ones(3)})
    with nb.Tape() as refused:
        nb.launch(square, 3, [x], [y])
    np.asarray(x)[:] = 8.0
    with pytest.raises(nb.NumbridgeError, match="has been changed since the launch"):
        refused.backward(grads={y: np.ones(3)})
    for tape in chain, overwritten, refused:
        with pytest.raises(nb.NumbridgeError, match=r"used up.* retain_graph=True"):
            tape.backward(grads={y: np.ones(3)})


def test_a_tape_that_is_reset_checks_contents_as_before():
    tape = nb.Tape(check_contents=False)
    for given in (1.0, 2.0):
        x, y = leaf(given), fresh(1)
        with tape:
            nb.launch(square, 1, [x], [y])
        np.asarray(x)[:] = 10.0
        tape.backward(grads={y: np.ones(1)})
        assert x.grad.list() == [20.0]


def test_going_back_again():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(square, 3, [y], [z])
    tape.backward(grads={z: np.ones(3)}, retain_graph=True)
    assert x.grad.list() == [4, 32, 108] and tape.kept_bytes == 0
    # What is overwritten in between is kept, and each time gradients start anew and are added.
    y.fill_(7.0)
    x.grad.zero_()
    tape.backward(grads={y: [1.0, 0.0, 0.0]}, retain_graph=True)
    assert x.grad.list() == [2, 0, 0] and tape.gradients[y].list() == [0, 0, 0]
    nb.launch(double, 3, [z], [x])
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [6, 32, 108] and tape.kept_bytes == 48 and not is_watched()
    with pytest.raises(nb.NumbridgeError, match="used up"):
        tape.backward(grads={z: np.ones(3)})


def test_going_back_again_through_launches_in_place():
    y = leaf(0.5, 0.9, 1.1)
    start = y.numpy().copy()
    with nb.Tape() as tape:
        nb.launch(in_place, 3, [y])
        nb.launch(in_place, 3, [y])
    for count in (1, 2, 3):
        tape.backward(grads=[(y, np.ones(3))], retain_graph=True)
        assert np.allclose(y.grad.numpy(), count * 9 * start**8)
    assert np.allclose(y.numpy(), start**9) and tape.kept_bytes == 48 and is_watched()
    tape.reset()
    assert not is_watched()


def test_rows_of_a_jacobian():
    x, y, z = leaf(0.5, 1.5, 2.5), fresh(), fresh(1)
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        nb.launch(total, 3, [y], [z])
    rows = []
    for unit in np.eye(3):
        tape.backward(grads={y: unit}, retain_graph=True)
        rows.append(tape.gradients[x].numpy().copy())
    assert np.allclose(rows, np.diag([1.0, 3.0, 5.0]))
    tape.zero()
    tape.backward(z)
    assert np.allclose(x.grad.numpy(), [1.0, 3.0, 5.0])


def test_reset_forgets():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
    assert is_watched()
    tape.reset()
    assert not is_watched()
    with pytest.raises(nb.NumbridgeError, match="no recorded launch has made the loss"):
        tape.backward(grads={y: np.ones(3)})


def test_reset_sets_gradients_to_zero():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    tape = nb.Tape()
    for _ in range(2):
        with tape:
            nb.launch(square, 3, [x], [y])
        tape.backward(grads={y: np.ones(3)})
        assert x.grad.list() == [2, 4, 6]
        tape.reset()
        assert x.grad.list() == [0, 0, 0]
    for count in (1, 2):  # a tape that is entered again leaves gradients
        with tape:
            nb.launch(square, 3, [x], [y])
        tape.backward(grads={y: np.ones(3)})
        assert x.grad.list() == [2 * count, 4 * count, 6 * count]


def test_zero_makes_no_gradients():
    t, y = torch.ones(3, requires_grad=True), nb.zeros(3)
    with nb.Tape() as tape:
        nb.launch(square, 3, [nb.from_torch(t)], [y])
    tape.zero()
    assert t.grad is None


def test_a_step_of_ones_own_stands_for_the_launches_that_were_not_recorded():
    x, z = leaf(1.0, 2.0, 3.0), fresh()
    scratch = [fresh(), fresh()]

    def solved(given, result):
        """Multiply by 8, in launches that no tape records."""
        before = given
        for after in (*scratch, result):
            nb.launch(doubled, 3, [before], [after], record_tape=False)
            before = after

        def back():
            given.grad.assign(given.grad.numpy() + 8.0 * result.grad.numpy())

        tape.record_func(back, [given, result])

    y, w = fresh(), fresh()
    with nb.Tape() as tape:
        solved(x, y)
        nb.launch(square, 3, [y], [w])
        solved(w, z)
    tape.backward(grads={z: np.ones(3)})
    assert x.grad.list() == [8 * 2 * 8 * k * 8 for k in (1, 2, 3)]


def test_a_step_of_ones_own_stands_for_nothing_else():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(doubled, 3, [x], [y], record_tape=False)
        tape.record_func(lambda: None, [z])
    with pytest.raises(nb.NumbridgeError, match="launched with record_tape=False"):
        tape.backward(grads={y: np.ones(3), z: np.ones(3)})


def test_a_tape_that_is_dropped_watches_no_more():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
    gone = weakref.ref(tape)
    del tape
    gc.collect()
    assert gone() is None and not is_watched()


def test_a_tape_that_is_dropped_lets_everything_go_at_once():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    gc.collect()
    gc.disable()
    try:
        with nb.Tape() as tape:
            nb.launch(square, 3, [x], [y])
            nb.launch(square, 3, [y[::-1]], [z])
        gone = [weakref.ref(array) for array in (x, y, z)]
        del tape, x, y, z
        assert [array() for array in gone] == [None] * 3
        assert not any(type(found) is Place for found in gc.get_objects())
    finally:
        gc.enable()


def test_what_a_step_of_ones_own_launches_another_tape_records():
    x, y, z = leaf(1, 2, 3), fresh(), fresh()

    def back():
        nb.launch(square, 3, [x], [z])

    with nb.Tape() as inner:
        nb.launch(square, 3, [x], [y])
        inner.record_func(back, [y])
        nb.launch(square, 3, [x], [fresh()])
    with nb.Tape() as outer:
        inner.backward(grads={y: np.ones(3)})
    inner_gradient = x.grad.numpy().copy()
    outer.backward(grads={z: np.ones(3)})
    assert np.array_equal(x.grad.numpy() - inner_gradient, 2 * x.numpy())
    # The adjoints of the launches are no part of it.
    assert outer.visualize().count("shape=box") == 1


def test_record_func():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()

    def backward():
        gradient = x.grad.numpy()
        gradient += 3 * x.numpy() ** 2 * y.grad.numpy()
        y.grad.zero_()

    with nb.Tape() as tape:
        y.assign(x.numpy() ** 3)
        tape.record_func(backward, [x, y])
        nb.launch(square, 3, [y], [z])
    tape.backward(grads={z: np.ones(3)})
    assert np.allclose(x.grad.numpy(), 6 * np.array([1.0, 2.0, 3.0]) ** 5)
    assert not y.requires_grad
    with pytest.raises(nb.NumbridgeTypeError, match="wanted arrays of numbridge"):
        tape.record_func(backward, [np.zeros(3)])


def test_inner_tapes_record_alone():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as outer:
        nb.launch(square, 3, [x], [y])
        with nb.Tape() as inner:
            nb.launch(sine, 3, [x], [z])
    inner.backward(grads={z: np.ones(3)})
    assert np.allclose(x.grad.numpy(), np.cos([1, 2, 3]))
    outer.backward(grads={y: np.ones(3)})
    assert np.allclose(x.grad.numpy(), np.cos([1, 2, 3]) + np.array([2, 4, 6]))


def test_other_threads_are_not_recorded():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        other = threading.Thread(target=lambda: nb.launch(double, 3, [x], [y]))
        other.start()
        other.join()
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == [2, 4, 6]


def test_torch_tensors():
    t = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    y, loss = torch.zeros(3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    with nb.Tape() as tape:
        nb.launch(square, 3, [t], [y])
        nb.launch(total, 3, [y], [loss])
    tape.backward(loss)
    assert t.grad.tolist() == [2, 4, 6] and tape.gradients[y].list() == [0, 0, 0]


def test_arrays_from_torch_share_the_gradient():
    t = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    a = nb.from_torch(t)
    y = nb.zeros(3)
    with nb.Tape() as tape:
        nb.launch(square, 3, [a], [y])
        nb.launch(double, 3, [nb.from_torch(t)], [nb.zeros(3)])
    tape.backward(grads={y: torch.ones(3)})
    assert t.grad.tolist() == [2, 4, 6] and a.grad.ptr == t.grad.data_ptr()


def test_paddle_tensors():
    t = paddle.to_tensor([1.0, 2.0, 3.0], stop_gradient=False)
    y = np.zeros(3, np.float32)
    with nb.Tape() as tape:
        nb.launch(square, 3, [nb.from_paddle(t)], [y])
    tape.backward(grads=[(y, np.ones(3))])
    assert t.grad.tolist() == [2, 4, 6]


def test_memory_of_two_dtypes_is_refused():
    x = leaf(1.0, 2.0, 3.0)
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [fresh()])
        nb.launch(double, 6, [nb.array(np.zeros(6, np.float32), requires_grad=True)], [x.view(nb.float32)])
    with pytest.raises(nb.BufferAccessError, match="share memory, through which no gradient can be carried"):
        tape.backward(grads={x: np.ones(3)})


def test_many_threads_and_elements():
    n = 200_000
    x = nb.array(np.linspace(0, 1, n), requires_grad=True)
    y, loss = nb.zeros(n, dtype=nb.float64), fresh(1)
    with nb.Tape() as tape:
        nb.launch(square, n, [x], [y])
        nb.launch(total, n, [y], [loss])
    tape.backward(loss)
    assert np.allclose(x.grad.numpy(), 2 * x.numpy())


def test_arrays_of_half_precision():
    @nb.kernel
    def doubled_square(x, y):
        i = nb.tid()
        y[i] = 2.0 * x[i] * x[i]

    x, y = nb.array([0.5, 1.0, 2.0], dtype=nb.float16, requires_grad=True), nb.zeros(3, dtype=nb.float16)
    with nb.Tape() as tape:
        nb.launch(doubled_square, 3, [x], [y])
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.dtype == nb.float16 and x.grad.list() == [2.0, 4.0, 8.0]


def scribble_with_numpy(x):
    np.asarray(x)[...] = 100.0


def scribble_with_torch(x):
    torch.from_dlpack(x).fill_(100.0)


@pytest.mark.parametrize("scribble", [scribble_with_numpy, scribble_with_torch])
def test_contents_that_change_behind_the_tape_are_refused(scribble):
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
    scribble(x)
    with pytest.raises(nb.NumbridgeError, match="parameter 'x' of kernel 'square' has been changed since the launch"):
        tape.backward(grads={y: np.ones(3)})
    assert not x.grad.numpy().any()


@pytest.mark.parametrize("count", [1, 3, 7, 8, 64, 1001])
def test_every_change_of_contents_is_seen(count):
    x, y = nb.array(np.linspace(1, 2, count, dtype=np.float32), requires_grad=True), nb.zeros(count)
    with nb.Tape() as tape:
        nb.launch(square, count, [x], [y])
    contents, grads = np.asarray(x), {y: np.ones(count)}
    before = contents.copy()
    for change in (contents * -1, contents[::-1].copy(), np.roll(contents, 8), np.nextafter(contents, 0)):
        contents[...] = change
        if not np.array_equal(change, before):
            with pytest.raises(nb.NumbridgeError, match="has been changed since the launch"):
                tape.backward(grads=grads, retain_graph=True)
        contents[...] = before
    for place in {0, count // 2, count - 1}:
        contents[place] = np.nextafter(contents[place], 0)
        with pytest.raises(nb.NumbridgeError, match="has been changed since the launch"):
            tape.backward(grads=grads, retain_graph=True)
        contents[...] = before
    tape.backward(grads=grads)
    assert np.array_equal(x.grad.numpy(), 2 * before)


def test_contents_that_change_before_they_could_be_kept_are_refused():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
    scribble_with_numpy(x)
    nb.launch(in_place, 3, [x])
    with pytest.raises(nb.NumbridgeError, match="has been changed since the launch"):
        tape.backward(grads={y: np.ones(3)})


def test_contents_that_no_adjoint_reads_may_change():
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(double, 3, [x], [y])
        nb.launch(square, 3, [x], [z])
    scribble_with_numpy(x)
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == [2.0, 2.0, 2.0]


def test_strided_contents_are_compared_too():
    base = np.arange(12.0).reshape(3, 4)
    x, y = nb.from_numpy(base[:, ::-2], requires_grad=True), nb.zeros((3, 2), dtype=nb.float64)
    with nb.Tape() as tape:
        nb.launch(square_2d, (3, 2), [x], [y])
    base[:, ::2] = -1.0
    base[2, 1] += 1.0
    with pytest.raises(nb.NumbridgeError, match="has been changed since the launch"):
        tape.backward(grads={y: np.ones((3, 2))}, retain_graph=True)
    base[2, 1] -= 1.0
    tape.backward(grads={y: np.ones((3, 2))})
    assert np.array_equal(x.grad.numpy(), 2 * base[:, ::-2])


@nb.kernel
def scaled_by_first(x, w, y):
    i = nb.tid()
    y[i] = w[i, 1 << 39] * x[i]


def test_of_expanded_contents_only_the_memory_is_looked_at():
    base = np.array([2.0, 3.0])
    w = np.lib.stride_tricks.as_strided(base, (2, 1 << 40), (8, 0), writeable=False)
    x, y = leaf(1.0, 1.0), fresh(2)
    with nb.Tape() as tape:
        nb.launch(scaled_by_first, 2, [x, w], [y])
    base[1] = 5.0
    with pytest.raises(nb.NumbridgeError, match="parameter 'w' of kernel 'scaled_by_first' has been changed"):
        tape.backward(grads={y: np.ones(2)}, retain_graph=True)
    base[1] = 3.0
    tape.backward(grads={y: np.ones(2)})
    assert x.grad.list() == [2.0, 3.0]


def test_one_tape_serves_an_optimisation_where_adjoints_read_only_what_is_given():
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
    for step in range(4):
        x.grad.zero_()
        tape.backward(grads={y: np.ones(3)}, retain_graph=True)
        assert x.grad.list() == [2.0 + 2 * step, 4.0 + 2 * step, 6.0 + 2 * step]
        values = np.asarray(x)
        values += 1.0


@pytest.mark.parametrize("way", ["chain", "in place", "kept", "by hand"])
def test_a_tape_that_is_kept_does_not_mix_contents(way):
    x, y, z = leaf(1.0, 2.0, 3.0), fresh(), fresh()
    with nb.Tape() as tape:
        nb.launch(square, 3, [x], [y])
        if way == "chain":
            nb.launch(square, 3, [y], [z])
        elif way == "in place":
            nb.launch(in_place, 3, [y])
        elif way == "by hand":
            tape.record_func(lambda: None, [y])
    if way == "kept":
        nb.launch(in_place, 3, [x])
    last = z if way == "chain" else y
    tape.backward(grads={last: np.ones(3)}, retain_graph=True)
    scribble_with_numpy(x)
    if way == "kept":
        tape.backward(grads={last: np.ones(3)})
        assert x.grad.list() == [4.0, 8.0, 12.0]
        return
    with pytest.raises(nb.NumbridgeError, match="has been changed since the launch"):
        tape.backward(grads={last: np.ones(3)}, retain_graph=True)


@nb.kernel
def place_of_larger(x, place):
    i = nb.tid()
    place[i] = 1 if x[1] > x[0] else 0


@nb.kernel
def at_place(x, place, y):
    i = nb.tid()
    y[i] = x[place[i]] * x[place[i]]


def test_a_tape_that_is_kept_does_not_mix_old_indices_with_new_contents():
    x, place, y = leaf(1.0, 2.0), np.zeros(1, np.int64), fresh(1)
    with nb.Tape() as tape:
        nb.launch(place_of_larger, 1, [x, place])
        nb.launch(at_place, 1, [x, place], [y])
    tape.backward(grads={y: np.ones(1)}, retain_graph=True)
    assert x.grad.list() == [0.0, 4.0]
    np.asarray(x)[:] = 5.0, 1.0
    with pytest.raises(nb.NumbridgeError, match="parameter 'x' of kernel 'at_place' has been changed since the launch"):
        tape.backward(grads={y: np.ones(1)}, retain_graph=True)


FACTOR = 3.0


@nb.kernel
def multiplied(x, y):
    i = nb.tid()
    y[i] = FACTOR * x[i]


@nb.kernel
def square_2d(x, y):
    i, j = nb.tid()
    y[i, j] = x[i, j] * x[i, j]


def test_globals_that_are_rebound_before_going_back_are_refused(monkeypatch):
    x, y = leaf(1.0, 2.0, 3.0), fresh()
    with nb.Tape() as tape:
        nb.launch(multiplied, 3, [x], [y])
    monkeypatch.setattr(f"{__name__}.FACTOR", 100.0)
    with pytest.raises(nb.NumbridgeError, match="'FACTOR', which the kernel reads, has changed since the kernel ran"):
        tape.backward(grads={y: np.ones(3)}, retain_graph=True)
    monkeypatch.undo()
    tape.backward(grads={y: np.ones(3)})
    assert x.grad.list() == [3.0, 3.0, 3.0]


def test_a_gradient_that_cannot_be_added_to_is_refused_before_any_is():
    first, second, y, z = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), nb.zeros(3), nb.zeros(3)
    second.grad = torch.zeros(1).expand(3)
    with nb.Tape() as tape:
        nb.launch(square, 3, [nb.from_torch(first)], [y])
        nb.launch(square, 3, [nb.from_torch(second)], [z])
    with pytest.raises(nb.BufferAccessError, match=r"backward adds to it, and it is an expanded view.*strides \(0,\)"):
        tape.backward(grads={y: np.ones(3), z: np.ones(3)}, retain_graph=True)
    assert first.grad is None or not first.grad.any()
    second.grad = None
    tape.backward(grads={y: np.ones(3), z: np.ones(3)})
    assert first.grad.tolist() == second.grad.tolist() == [2.0] * 3


def test_a_gradient_of_text_is_refused():
    x, y = leaf(1.0, 2.0), fresh(2)
    with nb.Tape() as tape:
        nb.launch(square, 2, [x], [y])
    with pytest.raises(nb.NumbridgeTypeError, match="the gradient is an array of <U1; give one of numbers"):
        tape.backward(grads={y: np.array(["a", "b"])})


def test_a_tensor_that_is_turned_meanwhile_is_told_of():
    x, y = torch.ones(2, 3, requires_grad=True), nb.zeros((2, 3))
    a = nb.from_torch(x)
    with torch.no_grad():
        x.t_()
    with nb.Tape() as tape:
        nb.launch(square_2d, (2, 3), [a], [y])
    with pytest.raises(
        nb.NumbridgeValueError, match=r"array of shape \(2, 3\) has shape \(3, 2\); its tensor has been given"
    ):
        tape.backward(grads={y: np.ones((2, 3))})
