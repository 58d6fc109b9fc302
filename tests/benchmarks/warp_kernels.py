"""Warp's side of the benchmarks, as its documentation writes kernels: at the top of a module, with evaluated annotations."""

import warp as wp


@wp.kernel
def empty(
    a: wp.array(dtype=float),
    b: wp.array(dtype=float),
    c: wp.array(dtype=float),
    d: wp.array(dtype=float),
    e: wp.array(dtype=float),
):
    pass


@wp.kernel
def saxpy(x: wp.array(dtype=float), y: wp.array(dtype=float), a: float):
    i = wp.tid()
    y[i] = a * x[i] + y[i]


@wp.kernel
def normalize_cross(a: wp.array(dtype=wp.vec3), b: wp.array(dtype=wp.vec3), c: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    c[i] = wp.cross(wp.normalize(a[i]), wp.normalize(b[i]))


@wp.kernel
def transformed(m: wp.array(dtype=wp.mat33), v: wp.array(dtype=wp.vec3), out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = m[i] * v[i]


@wp.kernel
def stencil(a: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    if i > 0 and j > 0 and i < a.shape[0] - 1 and j < a.shape[1] - 1:
        out[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])


@wp.kernel
def add(a: wp.array(dtype=float), b: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = a[i] + b[i]


@wp.kernel
def scale(x: wp.array(dtype=float), s: float, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = x[i] * s


@wp.kernel
def square_of_sum(a: wp.array(dtype=float), b: wp.array(dtype=float), s: float, out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = (a[i] * s + b[i]) ** 2.0


def scaled_twice(x: wp.array(dtype=float), s: float, out: wp.array(dtype=float)):
    once, twice = wp.empty_like(x), wp.empty_like(x)
    wp.launch(scale, x.shape, [x, s], [once], device="cpu")
    wp.launch(scale, x.shape, [once, s], [twice], device="cpu")
    wp.launch(add, x.shape, [once, twice], [out], device="cpu")


def jax_add():
    """Return the kernel `add` as a JAX function."""
    return wp.jax_kernel(add)


def jax_square_of_sum():
    """Return the kernel `square_of_sum` as a JAX function with gradients."""
    return wp.jax_kernel(square_of_sum, enable_backward=True)


def jax_scaled_twice():
    """Return `scaled_twice` as a JAX function."""
    return wp.jax_callable(scaled_twice)


@wp.kernel
def saxpy_with_adjoint(x: wp.array(dtype=float), y: wp.array(dtype=float), out: wp.array(dtype=float), a: float):
    i = wp.tid()
    out[i] = a * x[i] + y[i]


@wp.kernel
def polynomial_with_adjoint(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    t = x[i]
    if t > 0.5:
        out[i] = ((3.0 * t - 2.0) * t + 1.0) * t
    else:
        out[i] = (t - 4.0) * t


@wp.kernel
def elementary_with_adjoint(x: wp.array(dtype=float), out: wp.array(dtype=float)):
    i = wp.tid()
    out[i] = wp.sin(x[i]) * wp.exp(-x[i]) + wp.sqrt(x[i] + 1.0) * wp.cos(x[i])


@wp.kernel
def stencil_with_adjoint(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)):
    i, j = wp.tid()
    if i > 0 and j > 0 and i < x.shape[0] - 1 and j < x.shape[1] - 1:
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@wp.kernel
def loop_with_adjoint(x: wp.array(dtype=float), out: wp.array(dtype=float), trips: int):
    i = wp.tid()
    s = x[i]
    for _ in range(trips):
        s = s + 0.1 * s * (1.0 - s)
    out[i] = s
