"""Programs with a tape, each on any device: they return arrays, of which every device must give the same."""

from __future__ import annotations

import gc

import numpy as np

import numbridge as nb


@nb.kernel
def square(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


@nb.kernel
def add_to(x, y):
    i = nb.tid()
    y[i] = y[i] + x[i]


@nb.kernel
def total(y, loss):
    i = nb.tid()
    nb.atomic_add(loss, 0, y[i])


@nb.kernel
def transposed(x, y):
    i, j = nb.tid()
    y[j, i] = x[i, j] * x[i, j]


@nb.kernel
def lengths(v: nb.array(dtype=nb.vec3), y: nb.array(dtype=nb.float32)):
    i = nb.tid()
    y[i] = nb.dot(v[i], v[i])


@nb.kernel
def scaled(v: nb.array(dtype=nb.vec3), s: nb.array(dtype=nb.float32), out: nb.array(dtype=nb.vec3)):
    i = nb.tid()
    out[i] = s[i] * v[i]


@nb.kernel
def in_place(x, n):
    i = nb.tid()
    for _ in range(n):
        x[i] = x[i] * x[i] + 0.25


@nb.kernel
def rows_of_rows(x, y, z):
    """Each row is made of the one before, which the launch itself has stored."""
    i = nb.tid()
    y[0, i] = x[i] * x[i]
    for t in range(1, y.shape[0]):
        y[t, i] = 0.5 * y[t - 1, i] * y[t - 1, i] + x[i]
    z[i] = y[y.shape[0] - 1, i] * y[0, i]


@nb.kernel(enable_backward=False)
def without_adjoint(x, y):
    i = nb.tid()
    y[i] = x[i]


VALUES = np.float32([0.5, -1.0, 2.0, 3.0])


def given(place, values=VALUES, **options):
    return nb.array(values, device=place, requires_grad=True, **options)


def empty(place, shape=4, **options):
    return nb.zeros(shape, device=place, **options)


def one_launch(place):
    x, y = given(place), empty(place)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
    tape.backward(grads={y: VALUES + 1})
    return [x.grad]


def a_loss_twice(place):
    x, y, loss = given(place), empty(place), empty(place, 1)
    for _ in range(2):
        loss.zero_()
        with nb.Tape() as tape:
            nb.launch(square, 4, [x], [y])
            nb.launch(total, 4, [y], [loss])
        tape.backward(loss)
    return [x.grad, loss]


def overwritten(place):
    x, y, z = given(place), empty(place), empty(place)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
        nb.launch(square, 4, [y], [z])
        nb.launch(square, 4, [z], [y])
        nb.launch(add_to, 4, [z], [y])
        y_now = y.clone()
        y.fill_(7.0)
        nb.launch(square, 4, [y_now], [z])
    assert tape.kept_bytes > 0
    tape.backward(grads={z: [1.0, 0.0, 2.0, -1.0]})
    return [x.grad, z]


def a_gradient_of_the_device(place):
    x, y = given(place), empty(place)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
    tape.backward(grads={y: nb.array(VALUES, device=place, dtype=nb.float64)})
    return [x.grad]


def views(place):
    x, y = given(place, np.arange(8, dtype=np.float32)), empty(place, 8)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x[::2]], [y[:4]])
        nb.launch(square, 4, [y[3::-1]], [y[4:]])
    tape.backward(grads={y: np.arange(8, dtype=np.float32)})
    return [x.grad, y]


def two_dimensions(place):
    values = np.arange(6, dtype=np.float64).reshape(2, 3)
    x, y = given(place, values), empty(place, (3, 2), dtype=nb.float64)
    with nb.Tape() as tape:
        nb.launch(transposed, (2, 3), [x], [y])
        copy = y.clone()
    tape.backward(grads={copy: values.T + 1, y: values.T})
    return [x.grad]


def vectors(place):
    v = given(place, np.arange(12, dtype=np.float32).reshape(4, 3), dtype=nb.vec3)
    s, w, y = given(place), empty(place, 4, dtype=nb.vec3), empty(place)
    with nb.Tape() as tape:
        nb.launch(scaled, 4, [v, s], [w])
        nb.launch(lengths, 4, [w], [y])
        nb.launch(scaled, 4, [v, y], [w])
    tape.backward(grads={y: VALUES, w: np.ones((4, 3), np.float32)})
    return [v.grad, s.grad, w]


def loops_in_place(place):
    x, y = given(place, VALUES / 4), empty(place)
    with nb.Tape() as tape:
        y.zero_()
        nb.launch(add_to, 4, [x], [y])
        nb.launch(in_place, 4, [y, 3])
    tape.backward(grads={y: VALUES})
    return [x.grad, y]


def a_step_of_ones_own(place):
    x, y, z = given(place), nb.array(VALUES, device=place), empty(place)

    def back():
        nb.launch(add_to, 4, [y.grad], [x.grad], record_tape=False)

    with nb.Tape() as tape:
        tape.record_func(back, [x, y])
        nb.launch(square, 4, [y], [z])
    tape.backward(grads={z: VALUES})
    return [x.grad, tape.gradients[x]]


def narrow(place):
    x, y = given(place, dtype=nb.float16), empty(place, dtype=nb.float16)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
        z = y.clone()
    tape.backward(grads={z: VALUES, y: VALUES})
    return [x.grad]


def nothing_in_it(place):
    x, y = given(place, VALUES[:0]), empty(place, 0)
    with nb.Tape() as tape:
        nb.launch(square, 0, [x], [y])
    tape.backward(grads={y: VALUES[:0]})
    return [y]


def retained(place):
    x, rows, z = given(place), empty(place, (3, 4), requires_grad=True, retain_grad=True), empty(place)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [rows[1]])
        nb.launch(square, 4, [rows[1]], [rows[2]])
        nb.launch(square, 4, [rows[2]], [z])
    tape.backward(grads={z: VALUES})
    return [x.grad, rows.grad, tape.gradients[rows[1]]]


def as_launches_leave_them(place):
    """The second launch overwrites what the adjoint of the first one reads, and nobody what that of the second one does."""
    x, y, z = given(place, VALUES / 4), empty(place, (5, 4)), empty(place)
    with nb.Tape() as tape:
        nb.launch(rows_of_rows, 4, [x], [y, z])
        assert tape.kept_bytes == 0
        nb.launch(rows_of_rows, 4, [z], [y, x])
    assert tape.kept_bytes == y.nbytes + x.nbytes
    tape.backward(grads={x: VALUES, y: np.ones((5, 4), np.float32)})
    return [x.grad, x, y]


PROGRAMS = [
    *(one_launch, a_loss_twice, overwritten, a_gradient_of_the_device, views, two_dimensions, vectors, loops_in_place),
    *(a_step_of_ones_own, narrow, nothing_in_it, retained, as_launches_leave_them),
]


@nb.kernel
def squared(x):
    i = nb.tid()
    x[i] = x[i] * x[i]


@nb.kernel
def descend(x, gradient):
    i = nb.tid()
    x[i] = x[i] - 0.05 * gradient[i]


def step(x, rows, z, loss):
    """One step of an optimisation, whose launches overwrite what adjoints read."""
    loss.zero_()
    x.grad.zero_()
    with nb.Tape() as tape:
        nb.launch(rows_of_rows, 4, [x], [rows, z])
        nb.launch(squared, 4, [z])
        nb.launch(square, 4, [z], [rows[0]])
        nb.launch(total, 4, [rows[0]], [loss])
    assert tape.kept_bytes > 0
    tape.backward(loss)
    nb.launch(descend, 4, [x, x.grad], record_tape=False)


def optimised(place, run):
    """The array, its gradient and the loss after `run` has repeated a step of an optimisation."""
    x, rows, z, loss = given(place, VALUES / 8), empty(place, (5, 4)), empty(place), empty(place, 1)
    x.grad.zero_()
    run(lambda: step(x, rows, z, loss))
    return [x, x.grad, loss]


def three_times(run):
    for _ in range(3):
        run()


def by_a_graph(run):
    """Record it once, let go of whatever that has made, and launch the graph three times."""
    with nb.ScopedCapture() as capture:
        run()
    gc.collect()
    for _ in range(3):
        nb.capture_launch(capture.graph)
