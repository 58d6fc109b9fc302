"""Functions that are passed to device functions: device functions, atomic operations, numba.cuda's functions of numbers."""

import linecache
import math

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import emulated_cuda


@nb.func
def doubled(x):
    return x + x


@nb.func
def squared(x):
    return x * x


@cuda.jit(device=True)
def put(a, i, value):
    a[i] = value


@nb.func
def applied(function, x):
    return function(x)


@nb.func
def stored(function, a, i, value):
    function(a, i, value)


@nb.kernel
def both(x, y):
    i = nb.tid()
    y[i] = applied(doubled, x[i]) + applied(squared, x[i])


@nb.kernel
def summed(x, y):
    i = nb.tid()
    stored(cuda.atomic.add, y, 0, x[i])
    stored(nb.atomic_max, y, 1, x[i])
    stored(put, y, i + 2, applied(cuda.popc, i) * x[i])


X = np.array([1.0, 2.0, 5.0])
GIVEN = {both: ([3.0, 8.0, 35.0], [4.0, 6.0, 12.0]), summed: ([8.0, 5.0, 0.0, 2.0, 5.0], None)}


@pytest.mark.parametrize("kernel", GIVEN, ids=lambda kernel: kernel.name)
def test_functions_are_passed(kernel):
    wanted, _ = GIVEN[kernel]
    x, here, there = X.copy(), np.zeros(len(wanted)), np.zeros(len(wanted))
    x.flags.writeable = False
    nb.launch(kernel, 3, [x, here])
    with emulated_cuda() as device:
        nb.launch(kernel, 3, [device.on_device(x), device.on_device(there)])
    assert here.tolist() == there.tolist() == wanted


@nb.kernel
def total(x, y):
    i = nb.tid()
    stored(cuda.atomic.add, y, 0, applied(squared, x[i]))


@pytest.mark.parametrize(("kernel", "size", "wanted"), [(both, 3, [4.0, 6.0, 12.0]), (total, 1, [2.0, 4.0, 10.0])])
def test_they_have_derivatives(kernel, size, wanted):
    gradient = np.zeros(3)
    nb.launch(kernel, 3, [X, np.zeros(size)], adj_inputs=[gradient, np.ones(size)], adjoint=True)
    assert gradient.tolist() == wanted


@nb.func
def shifted(x):
    return x + nb.tid()


@nb.kernel
def shifts(x, y):
    i = nb.tid()
    y[i] = shifted(applied(doubled, x[i]))


def test_functions_that_ask_for_their_thread_are_called():
    y = np.zeros(3)
    nb.launch(shifts, 3, [X, y])
    assert y.tolist() == [2.0, 5.0, 12.0]


@nb.kernel
def asks(x, y):
    i = nb.tid()
    y[i] = applied(shifted, x[i])


@nb.kernel
def runs_a_kernel(x, y):
    i = nb.tid()
    y[i] = applied(both, x[i])


@pytest.mark.parametrize(
    ("kernel", "message"),
    [(asks, "shifted asks for its thread"), (runs_a_kernel, "both is a kernel, which only a launch")],
)
def test_what_cannot_be_passed(kernel, message):
    with pytest.raises(nb.KernelError, match=message):
        nb.launch(kernel, 3, [X, np.zeros(3)])


activation = math.sin


class Choices:
    activation = math.sin


@nb.kernel
def activated(x, y):
    i = nb.tid()
    y[i, 0] = activation(x[i])
    y[i, 1] = applied(activation, x[i])
    y[i, 2] = nb.grad(activation)(x[i])
    y[i, 3] = Choices.activation(x[i])


def test_names_of_library_functions_are_looked_up_again(monkeypatch):
    given = np.array([0.5, 1.0, 1.5])

    def launched():
        y = np.zeros((3, 4))
        nb.launch(activated, 3, [given, y])
        return y.T

    assert np.allclose(launched(), [np.sin(given), np.sin(given), np.cos(given), np.sin(given)])
    monkeypatch.setitem(globals(), "activation", math.exp)
    assert np.allclose(launched(), [np.exp(given)] * 3 + [np.sin(given)])
    monkeypatch.setattr(Choices, "activation", math.cos)
    assert np.allclose(launched(), [np.exp(given)] * 3 + [np.cos(given)])
    monkeypatch.setitem(globals(), "activation", squared)
    assert np.allclose(launched(), [given**2, given**2, 2 * given, np.cos(given)])
    # What was of a library when the tape recorded it
    x, y = nb.array(given, requires_grad=True), nb.zeros((3, 4), dtype=nb.float64)
    monkeypatch.setitem(globals(), "activation", math.sin)
    with nb.Tape() as tape:
        nb.launch(activated, 3, [x, y])
    monkeypatch.setitem(globals(), "activation", math.cos)
    with pytest.raises(nb.KernelError, match="'activation', which the kernel reads, has changed"):
        tape.backward(grads={y: np.ones((3, 4))})


tripled, raised = nb.func(lambda x: 3 * x), cuda.jit(device=True)(lambda x, by=1.0: x + by)  # fmt: skip
é = nb.func(lambda x: x * x); ü = nb.func(lambda x: x + 0.5 if x > 1 else x)  # noqa: E702  # fmt: skip


def adding(by):
    return nb.func(lambda x: x + by)


one, two = adding(1), adding(2)


@nb.kernel
def of_lambdas(x, y):
    i = nb.tid()
    y[i, 0], y[i, 1], y[i, 2], y[i, 3] = tripled(x[i]), raised(x[i]), é(x[i]), ü(x[i])
    y[i, 4], y[i, 5], y[i, 6] = one(x[i]), two(x[i]), applied(tripled, x[i])


def test_lambdas_are_device_functions():
    y, wanted = np.zeros((2, 7)), [[3, 2, 1, 1, 2, 3, 3], [6, 3, 4, 2.5, 3, 4, 6]]
    nb.launch(of_lambdas, 2, [np.array([1.0, 2.0]), y])
    assert y.tolist() == wanted
    with emulated_cuda() as emulation:
        y[:] = 0
        nb.launch(of_lambdas, 2, [emulation.on_device(np.array([1.0, 2.0])), emulation.on_device(y)])
    assert y.tolist() == wanted


def test_gradients_of_lambdas():
    x = nb.array([1.0, 2.0], dtype=nb.float64, device="cpu", requires_grad=True)
    y = nb.zeros((2, 7), dtype=nb.float64, device="cpu", requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(of_lambdas, 2, [x, y])
    tape.backward(grads={y: nb.ones((2, 7), dtype=nb.float64, device="cpu")})
    assert x.grad.list() == [3 + 1 + 2 + 1 + 1 + 1 + 3, 3 + 1 + 4 + 1 + 1 + 1 + 3]


def test_lambdas_that_are_kernels():
    with pytest.raises(nb.KernelError, match="is a lambda, and a kernel has statements; write a def"):
        nb.kernel(lambda x: x)


def test_functions_without_a_source():
    made, text = {"nb": nb}, "add = nb.func(lambda x: x + 1)\ndef fill(x):\n    x[nb.tid()] = add(1)\n"
    exec(text, made)
    with pytest.raises(
        nb.KernelError, match=r"source of fill \(<string>:2\) cannot be read.*linecache\.cache\[name\] = "
    ):
        nb.kernel(made["fill"])
    with pytest.raises(nb.KernelError, match=r"source of <lambda> \(<string>:1\) cannot be read"):
        _ = made["add"].source
    exec(compile(text, "<stdin>", "exec"), made)
    with pytest.raises(
        nb.KernelError, match=r"fill \(<stdin>:2\) cannot be read.*prompt keeps no source before Python 3\.13"
    ):
        nb.kernel(made["fill"])
    exec(compile(text, "gone.py", "exec"), made)
    with pytest.raises(nb.KernelError, match=r"fill \(gone.py:2\) cannot be read.* not there: bring the .py along"):
        nb.kernel(made["fill"])
    linecache.cache["<fill>"] = len(text), None, text.splitlines(True), "<fill>"
    exec(compile(text, "<fill>", "exec"), made)
    x = np.zeros(2)
    nb.launch(nb.kernel(made["fill"]), 2, [x])
    assert x.tolist() == [2, 2]
