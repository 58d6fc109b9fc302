"""Programs whose answers by Warp are wrong: each returns what Warp answers. The same in numbridge is in `answers_numbridge`."""

# ruff: noqa: UP018, RUF046 - Warp needs float(1.0) and int(0), where a variable is changed in a loop.
# No `from __future__ import annotations`: Warp takes the annotations as they are.

from functools import partial

import numpy as np
import warp as wp

wp.config.log_level = wp.LOG_ERROR
wp.init()


def gradients(kernel, dim, inputs, outputs):
    """Return the gradient of the first output's sum by each input that has one."""
    with wp.Tape() as tape:
        wp.launch(kernel, dim, inputs=inputs, outputs=outputs, device="cpu")
    tape.backward(grads={outputs[0]: wp.ones_like(outputs[0])})
    return inputs[0].grad.numpy().tolist()


def numbers(*values, dtype=float):
    return wp.array(values, dtype=dtype, device="cpu", requires_grad=dtype is float)


def product_in_a_loop():
    @wp.kernel
    def product(x: wp.array(dtype=float), out: wp.array(dtype=float), n: int):
        p = float(1.0)
        for k in range(n):
            p = p * x[k]
        out[0] = p

    return gradients(product, 1, [numbers(2.0, 3.0, 4.0)], [numbers(0.0), 3])


def sine_of_sine():
    @wp.kernel
    def seventeen(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        s = x[i]
        for _ in range(17):
            s = wp.sin(s)
        out[i] = s

    return gradients(seventeen, 1, [numbers(1.0)], [numbers(0.0)])


def newton():
    @wp.kernel
    def root(a: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        x = float(1.0)
        while wp.abs(x * x - a[i]) > 1.0e-5:
            x = 0.5 * (x + a[i] / x)
        out[i] = x

    return gradients(root, 1, [numbers(2.0)], [numbers(0.0)])


def index_that_advances():
    @wp.kernel
    def walk(
        x: wp.array(dtype=float),
        after: wp.array(dtype=int),
        out: wp.array(dtype=float),
        n: int,
    ):
        j = int(0)
        s = float(0.0)
        for _ in range(n):
            s = s + x[j] * x[j]
            j = after[j]
        out[0] = s

    x, after = numbers(2.0, 3.0, 4.0), numbers(2, 0, 1, dtype=int)
    return gradients(walk, 1, [x, after], [numbers(0.0), 3])


def square_in_place():
    @wp.kernel
    def square(y: wp.array(dtype=float)):
        i = wp.tid()
        y[i] = y[i] * y[i]

    y = numbers(3.0)
    with wp.Tape() as tape:
        wp.launch(square, 1, [y], device="cpu")
    tape.backward(grads={y: numbers(1.0)})
    return y.grad.numpy().tolist()


def input_overwritten_later():
    @wp.kernel
    def square(x: wp.array(dtype=float), y: wp.array(dtype=float)):
        i = wp.tid()
        y[i] = x[i] * x[i]

    @wp.kernel
    def one_more(x: wp.array(dtype=float)):
        i = wp.tid()
        x[i] = x[i] + 1.0

    x, y = numbers(3.0), numbers(0.0)
    with wp.Tape() as tape:
        wp.launch(square, 1, [x], [y], device="cpu")
        wp.launch(one_more, 1, [x], device="cpu")
    tape.backward(grads={y: numbers(1.0)})
    return x.grad.numpy().tolist()


def force_of_a_potential():
    @wp.func
    def potential(x: float):
        return x * x * x

    @wp.kernel
    def force(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = wp.grad(potential)(x[i])

    return gradients(force, 1, [numbers(1.0)], [numbers(0.0)])


def value_of_an_atomic():
    @wp.kernel
    def running(
        x: wp.array(dtype=float),
        out: wp.array(dtype=float),
        total: wp.array(dtype=float),
    ):
        i = wp.tid()
        out[i] = wp.atomic_add(total, 0, x[i])

    return gradients(running, 2, [numbers(1.0, 2.0)], [numbers(0.0, 0.0), numbers(0.0)])


@wp.kernel
def sevens(x: wp.array(dtype=float)):
    i = wp.tid()
    x[i] = 7.0


def function_of_torch():
    import torch

    @wp.kernel
    def square(x: wp.array(dtype=float), y: wp.array(dtype=float)):
        i = wp.tid()
        y[i] = x[i] * x[i]

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = wp.from_torch(x, requires_grad=True)
            ctx.y = wp.zeros(3, device="cpu", requires_grad=True)
            wp.launch(square, 3, [ctx.x], [ctx.y], device="cpu")
            return wp.to_torch(ctx.y)

        @staticmethod
        def backward(ctx, by_y):
            ctx.y.grad = wp.from_torch(by_y.clone())
            adjoints = {"adj_inputs": [ctx.x.grad], "adj_outputs": [ctx.y.grad]}
            wp.launch(square, 3, [ctx.x], [ctx.y], device="cpu", **adjoints, adjoint=True)
            return wp.to_torch(ctx.x.grad)

    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    Square.apply(x).sum().backward()
    return x.grad.tolist()


def read_only_memory():
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    wp.launch(sevens, 3, [x], device="cpu")
    return x.tolist()


def immutable_array():
    import jax.numpy as jnp

    x = jnp.ones(3)
    wp.launch(sevens, 3, [wp.from_jax(x)], device="cpu")
    return x.tolist()


def input_of_a_jit():
    import jax
    import jax.numpy as jnp

    @wp.kernel
    def through(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        x[i] = 7.0
        out[i] = x[i]

    x = jnp.ones(3)
    jax.block_until_ready(jax.jit(wp.jax_kernel(through))(x))
    return x.tolist()


def two_dimensions_for_one():
    x = np.zeros((2, 3), np.float32)
    wp.launch(sevens, 2, [x], device="cpu")
    return x.tolist()


def negative_bit():
    import torch

    # The imaginary part of a conjugate: torch keeps 2 and -1, and negates when it reads.
    x = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    return wp.from_torch(x).numpy().tolist()


def number_that_does_not_fit():
    @wp.kernel
    def store(n: int, out: wp.array(dtype=int)):
        out[0] = n

    out = np.zeros(1, np.int32)
    wp.launch(store, 1, [2**32 + 5, out], device="cpu")
    return out.tolist()


def prefix_sum_under_vmap():
    import jax
    import jax.numpy as jnp

    @wp.kernel
    def prefix(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        s = float(0.0)
        for k in range(i + 1):
            s = s + x[k]
        out[i] = s

    (out,) = jax.vmap(wp.jax_kernel(prefix))(jnp.ones((2, 3)))
    return out.tolist()


def shape_under_vmap():
    import jax
    import jax.numpy as jnp

    @wp.kernel
    def length(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = float(x.shape[0])

    (out,) = jax.vmap(wp.jax_kernel(length))(jnp.ones((2, 3)))
    return out.tolist()


def tables_under_vmap():
    import jax
    import jax.numpy as jnp

    @wp.kernel
    def look_up(
        table: wp.array(dtype=float),
        index: wp.array(dtype=int),
        out: wp.array(dtype=float),
    ):
        i = wp.tid()
        out[i] = table[index[i]]

    tables = jnp.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    index = jnp.array([2, 0], dtype=jnp.int32)
    call = partial(wp.jax_kernel(look_up), launch_dims=2)
    (out,) = jax.vmap(call, in_axes=(0, None))(tables, index)
    return out.tolist()
