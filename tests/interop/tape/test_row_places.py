"""States that are rows of one array: a tape keeps and looks at those that a launch touches."""

import numpy as np
import pytest
import torch

import numbridge as nb

N = 5
generator = np.random.default_rng(7)
START = generator.uniform(0.5, 1.5, N)


@nb.kernel
def follow(x, t):
    i = nb.tid()
    x[t, i] = x[t - 1, i] * nb.sin(x[t - 1, (i + 1) % x.shape[1]])


@nb.kernel
def between(x, y, source, target):
    i = nb.tid()
    y[target, i] = x[source, i] * nb.exp(0.5 * x[source, (i + 1) % x.shape[1]])


@nb.kernel
def multiply(x, source, target):
    i = nb.tid()
    x[target, i] = x[target, i] * x[source, i]


@nb.kernel
def scatter(x, y, source, target):
    i = nb.tid()
    nb.atomic_add(y, (target, (i + 1) % x.shape[1]), x[source, i] * x[source, i])


@nb.kernel
def squares_of_last(x, loss):
    i = nb.tid()
    nb.atomic_add(loss, 0, x[-1, i] * x[-1, i])


@nb.kernel
def squares_of_all(x, loss):
    t, i = nb.tid()
    nb.atomic_add(loss, 0, x[t, i] * x[t, i])


def _states(rows):
    x = nb.zeros((rows, N), dtype=np.float64, requires_grad=True)
    x.numpy()[0] = START
    return x


def _loss():
    return nb.zeros(1, dtype=np.float64, requires_grad=True)


def _followed(x):
    for t in range(1, len(x)):
        x[t] = x[t - 1] * np.sin(np.roll(x[t - 1], -1))
    return x


def _derivative(function, rows, direction):
    """Return the derivative of a loss by the first row, by a complex step."""
    x = np.zeros((rows, N), complex)
    x[0] = START + 1e-30j * direction
    return function(x).imag * 1e30


def test_nothing_is_kept_for_rows_that_others_leave_alone():
    rows, direction = 6, generator.normal(size=N)
    x, loss = _states(rows), _loss()
    with nb.Tape() as tape:
        for t in range(1, rows):
            nb.launch(follow, N, [x, t])
        nb.launch(squares_of_last, N, [x, loss])
    assert tape.kept_bytes == 0
    tape.backward(loss)
    wanted = _derivative(lambda z: (_followed(z)[-1] ** 2).sum(), rows, direction)
    np.testing.assert_allclose(x.grad.numpy()[0] @ direction, wanted, rtol=1e-12)


def test_only_rows_that_are_touched_are_looked_at(monkeypatch):
    from numbridge.tape import remembered_contents

    looked_at = []
    checksum = remembered_contents._checksum

    def noted(place):
        looked_at.append(place.found.shape)
        return checksum(place)

    monkeypatch.setattr(remembered_contents, "_checksum", noted)
    x, loss = _states(9), _loss()
    with nb.Tape() as tape:
        for t in range(1, 9):
            nb.launch(follow, N, [x, np.int64(t)])
        nb.launch(squares_of_last, N, [x, loss])
    tape.backward(loss)
    assert set(looked_at) == {(1, N), (1,)}


def test_rows_that_are_overwritten_later_are_kept():
    x, loss, direction = _states(3), _loss(), generator.normal(size=N)
    order = [1, 2, 1, 2, 1, 2]
    with nb.Tape() as tape:
        for t in order:
            nb.launch(follow, N, [x, t])
        nb.launch(multiply, N, [x, 1, 2])
        nb.launch(multiply, N, [x, 2, 0])  # what the first launch has read
        nb.launch(squares_of_all, x.shape, [x, loss])
    assert tape.kept_bytes > 0
    tape.backward(loss)

    def simulated(z):
        for t in order:
            z[t] = z[t - 1] * np.sin(np.roll(z[t - 1], -1))
        z[2] = z[2] * z[1]
        z[0] = z[0] * z[2]
        return (z**2).sum()

    np.testing.assert_allclose(x.grad.numpy()[0] @ direction, _derivative(simulated, 3, direction), rtol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_rows_has_the_right_gradient(seed):
    random, rows = np.random.default_rng(seed), 4
    steps = [(random.integers(3), *map(int, random.integers(-1, rows, 2))) for _ in range(12)]
    steps = [(kind, a, b) for kind, a, b in steps if a % rows != b % rows]
    x, loss, direction = _states(rows), _loss(), random.normal(size=N)
    with nb.Tape() as tape:
        for kind, a, b in steps:
            if kind == 1:
                nb.launch(multiply, N, [x, a, b])
            else:
                nb.launch(scatter if kind else between, N, [x, x, a, b])
        nb.launch(squares_of_all, x.shape, [x, loss])
    tape.backward(loss)

    def simulated(z):
        for kind, a, b in steps:
            if kind == 0:
                z[b] = z[a] * np.exp(0.5 * np.roll(z[a], -1))
            elif kind == 1:
                z[b] = z[b] * z[a]
            else:
                z[b] += np.roll(z[a] ** 2, 1)
        return (z**2).sum()

    np.testing.assert_allclose(
        x.grad.numpy()[0] @ direction, _derivative(simulated, rows, direction), rtol=1e-10, atol=1e-12
    )


def test_one_array_may_be_passed_twice_for_rows_of_its_own_only():
    x = _states(3)
    with nb.Tape():
        nb.launch(between, N, [x, x, 0, 1])
        with pytest.raises(nb.BufferAccessError, match=r"the parameters 'x' and 'y' share memory"):
            nb.launch(between, N, [x, x, 1, 1])
        with pytest.raises(nb.BufferAccessError, match=r"the parameters 'x' and 'y' share memory"):
            nb.launch(between, N, [x, x, 2, -1])


@nb.kernel
def scatter_into_the_same(x, t):
    i = nb.tid()
    nb.atomic_add(x, (t, (i + 1) % x.shape[1]), x[t - 1, i] * x[t - 1, i])


def test_what_is_read_where_others_add_is_passed_apart():
    x, loss, direction = _states(3), _loss(), generator.normal(size=N)
    with (
        nb.Tape(),
        pytest.raises(nb.KernelUnsupportedError, match="on a tape an array may be passed for two, if each touches"),
    ):
        nb.launch(scatter_into_the_same, N, [x, 1])
    with nb.Tape() as tape:
        nb.launch(scatter, N, [x, x, 0, 1])
        nb.launch(scatter, N, [x, x, 1, 2])
        nb.launch(squares_of_last, N, [x, loss])
    tape.backward(loss)
    wanted = _derivative(lambda z: (np.roll(np.roll(z[0] ** 2, 1) ** 2, 1) ** 2).sum(), 3, direction)
    np.testing.assert_allclose(x.grad.numpy()[0] @ direction, wanted, rtol=1e-12)


def test_a_row_that_something_else_has_changed_is_noticed():
    x, loss = _states(4), _loss()
    with nb.Tape() as tape:
        for t in range(1, 4):
            nb.launch(follow, N, [x, t])
        nb.launch(squares_of_last, N, [x, loss])
    x.numpy()[1, 2] += 1.0
    with pytest.raises(nb.NumbridgeError, match="has been changed since the launch"):
        tape.backward(loss)


def test_a_row_that_something_else_sets_stops_its_gradient():
    x, loss = _states(4), _loss()
    with nb.Tape() as tape:
        nb.launch(follow, N, [x, 1])
        x.numpy()[1] = 1.0
        nb.launch(follow, N, [x, 2])
        nb.launch(follow, N, [x, 3])
        nb.launch(squares_of_last, N, [x, loss])
    with pytest.raises(nb.NumbridgeError, match="something that the tape is not told of, such as NumPy"):
        tape.backward(loss)


def test_gradients_of_rows_are_retained():
    x, loss = _states(4), _loss()
    x.retain_grad = True
    with nb.Tape() as tape:
        for t in range(1, 4):
            nb.launch(follow, N, [x, t])
        nb.launch(squares_of_last, N, [x, loss])
    tape.backward(loss)
    states = [torch.tensor(START, requires_grad=True)]
    for _ in range(3):
        states.append(states[-1] * torch.sin(torch.roll(states[-1], -1)))
    wanted = torch.autograd.grad((states[-1] ** 2).sum(), states)
    np.testing.assert_allclose(x.grad.numpy(), torch.stack(wanted).numpy(), rtol=1e-12)


def test_rows_of_a_tensor():
    start, states = torch.tensor(START)[None].requires_grad_(), torch.zeros(4, N, dtype=torch.float64)
    direction, loss = generator.normal(size=N), _loss()
    with nb.Tape() as tape:
        nb.launch(between, N, [start, states, 0, 0])
        for t in range(1, 4):
            nb.launch(follow, N, [states, t])
        nb.launch(squares_of_last, N, [states, loss])
    assert tape.kept_bytes == 0
    tape.backward(loss)

    def simulated(z):
        z[0] = z[0] * np.exp(0.5 * np.roll(z[0], -1))
        return (_followed(z)[-1] ** 2).sum()

    np.testing.assert_allclose(start.grad[0].numpy() @ direction, _derivative(simulated, 4, direction), rtol=1e-12)


def test_a_tape_whose_rows_are_used_may_go_back_again():
    x, loss = _states(4), _loss()
    with nb.Tape() as tape:
        for t in range(1, 4):
            nb.launch(follow, N, [x, t])
        nb.launch(squares_of_last, N, [x, loss])
    tape.backward(loss, retain_graph=True)
    once = x.grad.numpy().copy()
    tape.backward(loss)
    np.testing.assert_allclose(x.grad.numpy(), 2 * once, rtol=1e-15)


STATE = np.dtype([("x", np.float64), ("count", np.int64)], align=True)


@nb.kernel
def follow_records(s, t):
    i = nb.tid()
    s[t, i].x = s[t - 1, i].x * nb.sin(s[t - 1, (i + 1) % s.shape[1]].x)


@nb.kernel
def squares_of_last_records(s, loss):
    i = nb.tid()
    nb.atomic_add(loss, 0, s[-1, i].x * s[-1, i].x)


def test_rows_of_records():
    s, loss, direction = nb.zeros((4, N), dtype=STATE, requires_grad=True), _loss(), generator.normal(size=N)
    s.numpy()["x"][0] = START
    with nb.Tape() as tape:
        for t in range(1, 4):
            nb.launch(follow_records, N, [s, t])
        nb.launch(squares_of_last_records, N, [s, loss])
    assert tape.kept_bytes == 0
    tape.backward(loss)
    wanted = _derivative(lambda z: (_followed(z)[-1] ** 2).sum(), 4, direction)
    np.testing.assert_allclose(s.grad.numpy()["x"][0] @ direction, wanted, rtol=1e-12)


@nb.kernel
def follow_in_tuple(states, t):
    x, y = states
    i = nb.tid()
    before = y[t - 1]
    row = x[t]
    row[i] = before[i] * nb.sin(before[(i + 1) % y.shape[1]])
    y[t, i] = row[i]


def test_rows_of_arrays_in_a_tuple_and_rows_that_have_a_name():
    x, y, loss, direction = _states(4), _states(4), _loss(), generator.normal(size=N)
    with nb.Tape() as tape:
        for t in range(1, 4):
            nb.launch(follow_in_tuple, N, [(x, y), t])
        nb.launch(squares_of_last, N, [y, loss])
    assert tape.kept_bytes == 0
    tape.backward(loss)
    wanted = _derivative(lambda z: (_followed(z)[-1] ** 2).sum(), 4, direction)
    np.testing.assert_allclose(y.grad.numpy()[0] @ direction, wanted, rtol=1e-12)


@nb.kernel
def store_twice(x, t):
    i = nb.tid()
    before = x[t - 1, i]
    x[t, i] = before * before
    x[t, i] = before * nb.sin(x[t - 1, i])


def test_going_back_stores_nothing_in_what_launches_have_made():
    start, states = torch.tensor(START)[None].requires_grad_(), torch.zeros(4, N, dtype=torch.float64)
    direction = generator.normal(size=N)
    with nb.Tape() as tape:
        nb.launch(between, N, [start, states, 0, 0])
        for t in (1, 2, 3, 1):
            nb.launch(store_twice, N, [states, t])
    factor = torch.ones(4, N, dtype=torch.float64, requires_grad=True)
    product = (factor * states).sum()
    left, version = states.clone(), states._version
    tape.backward(grads=[(states, torch.ones(4, N, dtype=torch.float64))])
    assert states._version == version
    product.backward()  # which PyTorch refuses where what it has kept was stored to
    np.testing.assert_array_equal(factor.grad.numpy(), left.numpy())

    def simulated(z):
        z[0] = z[0] * np.exp(0.5 * np.roll(z[0], -1))
        for t in (1, 2, 3, 1):
            z[t] = z[t - 1] * np.sin(z[t - 1])
        return z.sum()

    np.testing.assert_allclose(start.grad[0].numpy() @ direction, _derivative(simulated, 4, direction), rtol=1e-12)
