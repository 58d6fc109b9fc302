"""Derivatives by hand are given what their function is given, however it is called, and ask for their thread as it may."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba import cuda

import numbridge as nb

X = np.array([1.5, 2.0, 4.0])


@nb.func
def weighed(a, b=2.0, c=3.0):
    return a * b * b + c * c * c * a


@nb.func_grad(weighed)
def weighed_by_hand(a, b, c, cotangent):
    return cotangent * (b * b + c**3), 2 * a * b * cotangent, 3 * c * c * a * cotangent


@nb.func
def through(a):
    return weighed(c=1.0, b=4.0, a=a)


@numba.njit("float64(int64, float64)")
def declared(n, u):
    return n * u * u


@nb.func
def counted(a):
    r, n = 1.0, 0
    while abs(r * r - a) > 1e-12 and n < 50:
        r, n = 0.5 * (r + a / r), n + 1
    return n, r, n


@nb.func_grad(counted)
def counted_by_hand(a, cotangent):
    return 0.5 * cotangent / counted(a)[1]


@nb.func
def placed(s):
    return s * s * (1 + cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x)


@nb.func_grad(placed)
def placed_by_hand(s, cotangent):
    return 2.0 * s * cotangent * (1 + cuda.grid(1))


@nb.func
def squared(s):
    return s * s


@nb.func_grad(squared)
def squared_by_hand(s, cotangent):
    return 2.0 * s * cotangent * (1 + nb.tid())


@nb.kernel
def defaults(x, y):
    i = nb.tid()
    y[i] = weighed(x[i])


@nb.kernel
def by_name(x, y):
    i = nb.tid()
    y[i] = weighed(c=1.0, b=4.0, a=x[i])


@nb.kernel
def last_by_default(x, y):
    i = nb.tid()
    y[i] = weighed(b=x[i], a=0.5)


@nb.kernel
def of_a_signature(x, y):
    i = nb.tid()
    y[i] = declared(u=x[i], n=3)


@nb.kernel
def beside_integers(x, y):
    i = nb.tid()
    _, r, n = counted(x[i])
    y[i] = r + n


@nb.kernel
def of_its_place(x, y):
    i = nb.tid()
    y[i] = placed(x[i])


@nb.kernel
def of_the_thread(x, y):
    i = nb.tid()
    y[i] = squared(x[i])


@nb.kernel
def within(x, y):
    i = nb.tid()
    y[i] = nb.grad(through)(x[i])


SLOPES = {
    defaults: 31.0 + 0 * X,
    by_name: 17.0 + 0 * X,
    last_by_default: X,
    of_a_signature: 6 * X,
    beside_integers: 0.5 / np.sqrt(X),
    of_its_place: 2 * X * [1, 2, 3],
    of_the_thread: 2 * X * [1, 2, 3],
}


@pytest.mark.parametrize(("kernel", "wanted"), SLOPES.items(), ids=[kernel.name for kernel in SLOPES])
def test_gradients_by_either_mode(kernel, wanted):
    gradient, tangent = np.zeros(3), np.zeros(3)
    nb.launch(kernel, 3, [X], [np.zeros(3)], adj_inputs=[gradient], adj_outputs=[np.ones(3)], adjoint=True)
    kernel.tangent(["x", "y"]).forall(3)(X, np.zeros(3), np.ones(3), tangent)
    assert np.allclose(gradient, wanted) and np.allclose(tangent, wanted)
    assert ".visible .entry" in kernel.adjoint(["x", "y"]).ptx(X, X, X, X, capability=(9, 0))


def test_a_gradient_within_a_kernel():
    y = np.zeros(3)
    nb.launch(within, 3, [X, y])
    assert np.allclose(y, 17.0)
