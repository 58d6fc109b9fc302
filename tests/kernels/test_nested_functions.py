"""Functions and lambdas within kernels and device functions."""

import sys

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import emulated_cuda
from numbridge.kernels.errors import KernelError

FACTOR = 3.0
offset = 10.0


@nb.func
def applied(function, x):
    return function(x) + 1


def captures():
    inner = 0.5

    @nb.kernel
    def kernel(x, y):
        i = nb.tid()
        a = x[i]

        def scaled(b, c=2.0):
            """Use all kinds of variables."""
            return (a + b * c) * FACTOR + inner

        plus = lambda b: scaled(b) + a  # noqa: E731
        y[i] = scaled(2.0) + plus(1.0) + scaled(c=1.0, b=a)

    return kernel, lambda a: (a + 4) * 3 + 0.5 + (a + 2) * 3 + 0.5 + a + (a + a) * 3 + 0.5


def as_they_are_when_called():
    @nb.kernel
    def kernel(x, y):
        i = nb.tid()
        a = 1.0

        def put(value):
            y[i] += value

        def value():
            return a

        for k in range(3):
            a += k
            put(value() * x[i])

    return kernel, lambda a: (1 + 2 + 4) * a


def deep_and_recursive():
    @nb.func
    def outside(a, n):
        def power(m):
            def step():
                return a * power(m - 1)

            if m == 0:
                return 1.0
            return step()

        return power(n)

    @nb.kernel
    def kernel(x, y):
        i = nb.tid()
        y[i] = outside(x[i], 3)

    return kernel, lambda a: a**3


def passed_on():
    @nb.kernel
    def kernel(x, y):
        i = nb.tid()
        square = lambda t: t * t  # noqa: E731
        again = square
        y[i] = applied(square, x[i]) + applied(lambda t: t + 1, x[i]) + again(2.0) + (lambda t: 2 * t)(x[i])

    return kernel, lambda a: a * a + 1 + a + 2 + 4 + 2 * a


def aliases():
    @nb.kernel
    def kernel(x, y):
        thread, block = cuda.threadIdx, cuda.blockIdx
        width = cuda.blockDim
        maximum = max

        def index():
            return thread.x + block.x * width.x

        i = index()
        if i < y.shape[0]:
            y[i] = maximum(x[index()], 2.0)

    return kernel, lambda a: np.maximum(a, 2)


def gradients():
    @nb.kernel
    def kernel(x, y):
        i = nb.tid()

        def cube(t):
            return t * t * t

        y[i] = nb.grad(cube)(x[i])

    return kernel, lambda a: 3 * a * a


ALL = (captures, as_they_are_when_called, deep_and_recursive, passed_on, aliases, gradients)


@pytest.mark.parametrize("made", ALL, ids=lambda made: made.__name__)
def test_functions_within_functions(made):
    kernel, wanted = made()
    x, y = np.array([1.0, 2.0, 5.0]), np.zeros(3)
    nb.launch(kernel, 3, [x, y])
    np.testing.assert_array_equal(y, wanted(x))


@pytest.mark.parametrize("made", [captures, as_they_are_when_called], ids=lambda made: made.__name__)
def test_on_cuda(made):
    kernel, wanted = made()
    x = np.array([1.0, 2.0, 5.0])
    there = np.zeros(3)
    with emulated_cuda() as device:
        nb.launch(kernel, 3, [device.on_device(x), device.on_device(there)])
    np.testing.assert_array_equal(there, wanted(x))


@pytest.mark.parametrize(("made", "slope"), [(captures, 13), (as_they_are_when_called, 7)])
def test_gradients_go_through_them(made, slope):
    kernel, _ = made()
    x, y = nb.array([1.0, 2.0], requires_grad=True), nb.zeros(2, requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(kernel, 2, [x, y])
    tape.backward(grads={y: nb.ones(2)})
    assert x.grad.list() == [slope, slope]


def test_what_they_read_is_looked_at_before_each_launch(monkeypatch):
    @nb.kernel
    def moved(x, y):
        i = nb.tid()
        further = lambda a: a + offset  # noqa: E731
        y[i] = further(x[i])

    x, y = np.ones(1), np.zeros(1)
    nb.launch(moved, 1, [x, y])
    assert y.tolist() == [11.0]
    monkeypatch.setattr(sys.modules[__name__], "offset", 20.0)
    nb.launch(moved, 1, [x, y])
    assert y.tolist() == [21.0]


def test_what_they_write_is_known():
    @nb.kernel
    def kernel(x, y):
        i = nb.tid()

        def put(array, value):
            array[i] = value
            y[i] = value

        put(x, 1.0)

    x, y = np.zeros(2), np.zeros(2)
    y.flags.writeable = False
    with pytest.raises(nb.NumbridgeError, match=r"parameter 'y'.*read-only"):
        nb.launch(kernel, 2, [x, y])
    assert x.tolist() == [0.0, 0.0]


def test_functions_in_static_expressions_are_pythons():
    numbers = (3, 1, 2)

    @nb.kernel
    def kernel(x):
        i = nb.tid()

        def least():
            return nb.static(max(numbers, key=lambda n: -n))

        x[i] = nb.static(max(numbers, key=lambda n: n)) + least()

    x = np.zeros(1)
    nb.launch(kernel, 1, [x])
    assert x.tolist() == [4.0]


def test_a_source_that_is_asked_for_twice_is_the_same():
    kernel, _ = captures()
    scaled = kernel.source._nested["scaled"]
    first = scaled.source
    del scaled.source  # as for two threads that ask at once
    assert scaled.source.parameters == first.parameters == ("a", "b", "c")


def passes_on(x):
    i = nb.tid()
    x[i] = applied(lambda t: t + i, x[i])


def twice(x):
    i = nb.tid()
    if i > 0:

        def f(t):
            return t
    else:

        def f(t):
            return 2 * t

    x[i] = f(x[i])


def assigned(x):
    i = nb.tid()

    def f(t):
        return t

    f = x[i]  # noqa: F811
    x[i] = f


def decorated(x):
    i = nb.tid()

    @nb.func
    def f(t):
        return t

    x[i] = f(x[i])


def default(x):
    i = nb.tid()

    def f(t, u=FACTOR):
        return t * u

    x[i] = f(x[i])


def hidden(x):
    i = nb.tid()

    def f():
        return i

    def g(i):
        return f() + i

    x[i] = g(1)


def outer_variable(x):
    i = nb.tid()

    def f():
        nonlocal i
        i += 1

    f()
    x[i] = i


def assigned_in_a_call(x):
    i = nb.tid()
    s = 5.0
    t = x[i]

    def f(a):
        return a + s

    x[i] = f(t if t > 0.0 else (s := t))


REFUSED = {
    assigned_in_a_call: "'s' is assigned here, and used by the function that is called; assign it in a statement before",
    passes_on: r"'lambda_1' uses 'i' of passes_on, so it can be called here and not passed on; give it that as an argument",
    twice: "the function 'f' is defined more than once; give each a name of its own",
    assigned: "'f' is a function within assigned, too; give each a name of its own",
    decorated: "'f' within a function is decorated; leave the decorator out",
    default: "the default FACTOR of a function within a function is not written out; pass it at the call",
    hidden: "'g' calls one that uses 'i' of hidden, and has a variable of that name; rename one of the two",
    outer_variable: "nonlocal cannot be used in a device function",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_is_refused_is_shown(function):
    x = np.zeros(1)
    with pytest.raises(KernelError, match=f"{REFUSED[function]}[^\n]*\n.*test_nested_functions.py:"):
        nb.launch(nb.kernel(function), 1, [x])
    assert x.tolist() == [0.0]
