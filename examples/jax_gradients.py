"""Derivatives of kernels inside JAX: gradients by arrays and numbers, several outputs, second order, and a training loop.

With `enable_backward=True` a kernel is a differentiable function. Its derivatives are generated from its source, in forward and
reverse mode and to any order, and are kernels themselves.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import numbridge as nb


@nb.kernel
def square_of_sum(a: nb.array[float], b: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = (a[i] * s + b[i]) ** 2


@nb.kernel
def square_and_product(
    a: nb.array[float], b: nb.array[float], s: float, square: nb.array[float], product: nb.array[float]
):
    i = nb.tid()
    square[i] = a[i] ** 2
    product[i] = a[i] * b[i] * s


@nb.kernel
def scale_points(points: nb.array2d[float], s: float, out: nb.array2d[float]):
    i = nb.tid()
    for k in range(points.shape[1]):
        out[i, k] = points[i, k] * s


@nb.kernel
def rosenbrock(points: nb.array2d[float], out: nb.array[float]):
    i = nb.tid()
    x, y = points[i, 0], points[i, 1]
    out[i] = (1.0 - x) ** 2 + 100.0 * (y - x * x) ** 2


@nb.kernel
def diffuse(rate: float, field: nb.array[float], following: nb.array[float]):
    i = nb.tid()
    n = field.shape[0]
    following[i] = field[i] + rate * (field[(i + 1) % n] - 2.0 * field[i] + field[(i + n - 1) % n])


@nb.kernel
def accumulate(x: nb.array[float], total: nb.array[float]):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i] * x[i])


def gradients() -> None:
    """A number may be static, or traced; by a traced one there is a gradient too."""
    f = nb.jax_kernel(square_of_sum, enable_backward=True)
    a, b = jnp.arange(16, dtype=jnp.float32), jnp.ones(16)

    @partial(jax.jit, static_argnames=["s"])
    def loss(a: jax.Array, b: jax.Array, s: float) -> jax.Array:
        return f(a, b, s)[0].sum()

    by_a, by_b = jax.grad(loss, argnums=(0, 1))(a, b, 2.0)
    np.testing.assert_allclose(by_a, 4 * (2 * a + 1))
    np.testing.assert_allclose(by_b, 2 * (2 * a + 1))
    by_s = jax.jit(jax.grad(lambda s: f(a, b, s)[0].sum()))(2.0)
    np.testing.assert_allclose(by_s, (2 * a * (2 * a + 1)).sum())
    print("gradients:", by_a[:3], by_b[:3], by_s)


def several_outputs() -> None:
    """What is not used of the outputs costs nothing."""
    f = nb.jax_kernel(square_and_product, num_outputs=2, enable_backward=True)
    a, b = jnp.arange(16, dtype=jnp.float32), jnp.full(16, 3.0)

    def loss(a: jax.Array, b: jax.Array, s: float) -> jax.Array:
        square, product = f(a, b, s)
        return jnp.sum(square + product)

    by_a, by_b = jax.grad(loss, argnums=(0, 1))(a, b, 2.0)
    np.testing.assert_allclose(by_a, 2 * a + 6)
    np.testing.assert_allclose(by_b, 2 * a)
    np.testing.assert_allclose(jax.grad(lambda a: f(a, b, 2.0)[1].sum())(a), jnp.full(16, 6.0))
    print("two outputs:", by_a[:3], by_b[:3])


def arrays_of_points() -> None:
    """Points are rows, and one thread works on each: launch dimensions are the caller's choice."""
    f = nb.jax_kernel(scale_points, output_dims=(5, 2), launch_dims=5, enable_backward=True)
    points = jnp.arange(10, dtype=jnp.float32).reshape(5, 2)
    gradient = jax.jit(jax.grad(lambda points: f(points, 3.0)[0].sum()))(points)
    assert (gradient == 3).all() and gradient.shape == (5, 2)
    print("of points:", gradient.tolist())


def every_transformation() -> None:
    """Derivatives compose with each other and with everything else: here second derivatives, of a batch."""
    f = nb.jax_kernel(rosenbrock, launch_dims=1, enable_backward=True)

    def at(point: jax.Array) -> jax.Array:
        return f(point[None])[0][0]

    points = jnp.array([[0.0, 0.0], [1.0, 1.0], [-1.2, 1.0]])
    hessians = jax.jit(jax.vmap(jax.hessian(at)))(points)
    x, y = points[:, 0], points[:, 1]
    np.testing.assert_allclose(hessians[:, 0, 0], 2 - 400 * (y - 3 * x * x), rtol=1e-5)
    np.testing.assert_allclose(hessians[:, 0, 1], -400 * x, rtol=1e-5)
    value, slope = jax.jvp(at, (points[2],), (jnp.array([1.0, 0.0]),))
    print("hessian at the minimum:", hessians[1].tolist(), "value and slope:", value, slope)

    # Newton's method in a compiled loop.
    step = jax.jit(lambda _, p: p - jnp.linalg.solve(jax.hessian(at)(p), jax.grad(at)(p)))
    minimum = jax.lax.fori_loop(0, 8, step, points[2])
    np.testing.assert_allclose(minimum, 1, atol=1e-3)
    print("Newton's method from (-1.2, 1):", minimum)


def through_time() -> None:
    """A simulation is differentiated by its coefficient, step by step, with states recomputed where memory is short."""
    f = nb.jax_kernel(diffuse, enable_backward=True)
    start = jnp.zeros(64).at[20:30].set(1.0)

    def simulate(rate: jax.Array) -> jax.Array:
        @jax.checkpoint
        def step(field: jax.Array, _: None) -> tuple[jax.Array, None]:
            return f(rate, field)[0], None

        return jax.lax.scan(step, start, length=50)[0]

    seen = simulate(jnp.float32(0.3))
    loss = jax.jit(jax.value_and_grad(lambda rate: ((simulate(rate) - seen) ** 2).sum()))
    rate = jnp.float32(0.1)
    for _ in range(100):
        value, slope = loss(rate)
        rate = rate - 0.02 * slope
    np.testing.assert_allclose(rate, 0.3, atol=1e-3)
    print("the rate that was used:", rate, "loss:", value)


def in_out_arguments() -> None:
    """An in-out argument is both input and output, so it has a gradient as one and a cotangent as the other."""
    f = nb.jax_kernel(accumulate, in_out_argnames=["total"], enable_backward=True)
    x, total = jnp.arange(4.0), jnp.array([10.0])
    by_x, by_total = jax.grad(lambda x, t: f(x, t)[0][0], argnums=(0, 1))(x, total)
    np.testing.assert_allclose(by_x, 2 * x)
    np.testing.assert_allclose(by_total, 1)
    print("in-out:", by_x, by_total)


def of_several_kernels() -> None:
    """A function that launches several kernels is differentiated as a whole."""

    def smooth(field: nb.array[float], rate: float, total: nb.array[float]) -> None:
        middle, last = nb.empty_like(field), nb.empty_like(field)
        nb.launch(diffuse, field.shape, [rate, field], [middle])
        nb.launch(diffuse, field.shape, [rate, middle], [last])
        nb.launch(accumulate, field.shape, [last], [total])

    f = nb.jax_callable(smooth, output_dims=1, enable_backward=True)
    field = jnp.sin(jnp.arange(8.0))
    gradient = jax.jit(jax.grad(lambda field: f(field, 0.25)[0][0]))(field)

    def wanted(field: jax.Array) -> jax.Array:
        for _ in range(2):
            field = field + 0.25 * (jnp.roll(field, -1) - 2 * field + jnp.roll(field, 1))
        return (field**2).sum()

    np.testing.assert_allclose(gradient, jax.grad(wanted)(field), rtol=1e-4, atol=1e-6)
    print("of three launches:", gradient[:3])


if __name__ == "__main__":
    for part in (
        gradients,
        several_outputs,
        arrays_of_points,
        every_transformation,
        through_time,
        in_out_arguments,
        of_several_kernels,
    ):
        part()
