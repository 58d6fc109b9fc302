"""The programs of `answers_warp` and of `answers_exchange` in numbridge: each returns what numbridge answers, or raises."""

from __future__ import annotations

from functools import partial

import numpy as np

import numbridge as nb


def gradients(kernel, dim, inputs, outputs):
    """Return the gradient of the first output's sum by the first input."""
    with nb.Tape() as tape:
        nb.launch(kernel, dim, inputs, outputs)
    tape.backward(grads={outputs[0]: nb.ones_like(outputs[0])})
    return inputs[0].grad.numpy().tolist()


def numbers(*values, dtype=nb.float32):
    return nb.array(values, dtype=dtype, device="cpu", requires_grad=dtype is nb.float32)


def product_in_a_loop():
    @nb.kernel
    def product(x: nb.array[float], out: nb.array[float], n: int):
        p = 1.0
        for k in range(n):
            p = p * x[k]
        out[0] = p

    return gradients(product, 1, [numbers(2.0, 3.0, 4.0)], [numbers(0.0), 3])


def sine_of_sine():
    @nb.kernel
    def seventeen(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        s = x[i]
        for _ in range(17):
            s = nb.sin(s)
        out[i] = s

    return gradients(seventeen, 1, [numbers(1.0)], [numbers(0.0)])


def newton():
    @nb.kernel
    def root(a: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        x = 1.0
        while abs(x * x - a[i]) > 1.0e-5:
            x = 0.5 * (x + a[i] / x)
        out[i] = x

    return gradients(root, 1, [numbers(2.0)], [numbers(0.0)])


def index_that_advances():
    @nb.kernel
    def walk(x: nb.array[float], after: nb.array[int], out: nb.array[float], n: int):
        j = 0
        s = 0.0
        for _ in range(n):
            s = s + x[j] * x[j]
            j = after[j]
        out[0] = s

    return gradients(walk, 1, [numbers(2.0, 3.0, 4.0), numbers(2, 0, 1, dtype=nb.int32)], [numbers(0.0), 3])


def square_in_place():
    @nb.kernel
    def square(y: nb.array[float]):
        i = nb.tid()
        y[i] = y[i] * y[i]

    y = numbers(3.0)
    with nb.Tape() as tape:
        nb.launch(square, 1, [y])
    tape.backward(grads={y: numbers(1.0)})
    return y.grad.numpy().tolist()


def input_overwritten_later():
    @nb.kernel
    def square(x: nb.array[float], y: nb.array[float]):
        i = nb.tid()
        y[i] = x[i] * x[i]

    @nb.kernel
    def one_more(x: nb.array[float]):
        i = nb.tid()
        x[i] = x[i] + 1.0

    x, y = numbers(3.0), numbers(0.0)
    with nb.Tape() as tape:
        nb.launch(square, 1, [x], [y])
        nb.launch(one_more, 1, [x])
    tape.backward(grads={y: numbers(1.0)})
    return x.grad.numpy().tolist()


def force_of_a_potential():
    @nb.func
    def potential(x: float):
        return x * x * x

    @nb.kernel
    def force(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = nb.grad(potential)(x[i])

    return gradients(force, 1, [numbers(1.0)], [numbers(0.0)])


def value_of_an_atomic():
    @nb.kernel
    def running(x: nb.array[float], out: nb.array[float], total: nb.array[float]):
        i = nb.tid()
        out[i] = nb.atomic_add(total, 0, x[i])

    return gradients(running, 2, [numbers(1.0, 2.0)], [numbers(0.0, 0.0), numbers(0.0)])


@nb.kernel
def sevens(x: nb.array[float]):
    i = nb.tid()
    x[i] = 7.0


def function_of_torch():
    import torch

    @nb.kernel
    def square(x: nb.array[float], y: nb.array[float]):
        i = nb.tid()
        y[i] = x[i] * x[i]

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = nb.from_torch(x, requires_grad=True)
            ctx.y = nb.zeros(3, device="cpu", requires_grad=True)
            nb.launch(square, 3, [ctx.x], [ctx.y], device="cpu")
            return nb.to_torch(ctx.y)

        @staticmethod
        def backward(ctx, by_y):
            ctx.y.grad = nb.from_torch(by_y.clone())
            adjoints = {"adj_inputs": [ctx.x.grad], "adj_outputs": [ctx.y.grad], "adjoint": True}
            nb.launch(square, 3, [ctx.x], [ctx.y], device="cpu", **adjoints)
            return nb.to_torch(ctx.x.grad)

    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    Square.apply(x).sum().backward()
    return x.grad.tolist()


def read_only_memory():
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    nb.launch(sevens, 3, [x])
    return x.tolist()


def immutable_array():
    import jax.numpy as jnp

    x = jnp.ones(3)
    nb.launch(sevens, 3, [nb.from_jax(x)])
    return x.tolist()


def input_of_a_jit():
    import jax
    import jax.numpy as jnp

    @nb.kernel
    def through(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        x[i] = 7.0
        out[i] = x[i]

    x = jnp.ones(3)
    jax.block_until_ready(jax.jit(nb.jax_kernel(through))(x))
    return x.tolist()


def two_dimensions_for_one():
    x = np.zeros((2, 3), np.float32)
    nb.launch(sevens, 2, [x])
    return x.tolist()


def negative_bit():
    import torch

    x = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    return nb.from_torch(x).numpy().tolist()


def number_that_does_not_fit():
    @nb.kernel
    def store(n: int, out: nb.array[int]):
        out[0] = n

    out = np.zeros(1, np.int32)
    nb.launch(store, 1, [2**32 + 5, out])
    return out.tolist()


def prefix_sum_under_vmap():
    import jax
    import jax.numpy as jnp

    @nb.kernel
    def prefix(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        s = 0.0
        for k in range(i + 1):
            s = s + x[k]
        out[i] = s

    (out,) = jax.vmap(nb.jax_kernel(prefix))(jnp.ones((2, 3)))
    return out.tolist()


def shape_under_vmap():
    import jax
    import jax.numpy as jnp

    @nb.kernel
    def length(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = nb.float32(x.shape[0])

    (out,) = jax.vmap(nb.jax_kernel(length))(jnp.ones((2, 3)))
    return out.tolist()


def tables_under_vmap():
    import jax
    import jax.numpy as jnp

    @nb.kernel
    def look_up(table: nb.array[float], index: nb.array[int], out: nb.array[float]):
        i = nb.tid()
        out[i] = table[index[i]]

    tables = jnp.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    index = jnp.array([2, 0], dtype=jnp.int32)
    call = partial(nb.jax_kernel(look_up), launch_dims=2)
    (out,) = jax.vmap(call, in_axes=(0, None))(tables, index)
    return out.tolist()


def negative_bit_through_tvm_ffi():
    return negative_bit()


def immutable_array_through_tvm_ffi():
    return immutable_array()
