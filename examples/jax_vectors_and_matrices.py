"""Arrays of vectors and matrices inside JAX: their components are the last dimensions of JAX's arrays.

A kernel sees an array of `nb.vec3` where JAX has one of shape (n, 3). Shapes of outputs may be given either way.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import numbridge as nb


@nb.kernel
def vecmat(
    a: nb.array[float],
    b: nb.array[nb.vec3],
    c: nb.array[nb.mat22],
    # outputs
    d: nb.array[float],
    e: nb.array[nb.vec3],
    f: nb.array[nb.mat22],
):
    i = nb.tid()
    d[i] = a[i] + nb.length(b[i])
    e[i] = a[i] * b[i]
    f[i] = c[i] @ nb.transpose(c[i])


@nb.kernel
def diagonal(output: nb.array[nb.mat33]):
    i = nb.tid()
    output[i] = nb.mat33(1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 3.0)


@nb.kernel
def scale(a: nb.array[float], s: float, output: nb.array[float]):
    i = nb.tid()
    output[i] = a[i] * s


@nb.kernel
def scale_vec(a: nb.array[nb.vec2], s: float, output: nb.array[nb.vec2]):
    i = nb.tid()
    output[i] = a[i] * s


# Annotated like a kernel: inside, `b.shape` has no component dimensions.
def scale_both(a: nb.array[float], b: nb.array[nb.vec2], s: float, c: nb.array[float], d: nb.array[nb.vec2]):
    """Launch two kernels, one of which sees vectors."""
    nb.launch(scale, dim=a.shape, inputs=[a, s], outputs=[c])
    nb.launch(scale_vec, dim=b.shape, inputs=[b, s], outputs=[d])


def shapes() -> None:
    """Give the shapes of outputs in either convention."""
    n = 10
    a = jnp.arange(n, dtype=jnp.float32)
    b = jnp.ones((n, 3), dtype=jnp.float32)
    c = jnp.ones((n, 2, 2), dtype=jnp.float32)
    run = nb.jax_kernel(vecmat, num_outputs=3)
    for dims in (
        None,
        n,
        {"d": n, "e": n, "f": n},
        {"d": n, "e": (n, 3), "f": (n, 2, 2)},
        {"d": a.shape, "e": b.shape, "f": c.shape},
    ):
        d, e, f = jax.jit(partial(run, output_dims=dims))(a, b, c)
        print(f"output_dims={dims}: {d.shape} {e.shape} {f.shape}")
        np.testing.assert_allclose(d, a + np.sqrt(3), rtol=1e-6)
        np.testing.assert_array_equal(e, a[:, None] * b)
        np.testing.assert_array_equal(f, 2 * c)
    (made,) = jax.jit(partial(nb.jax_kernel(diagonal), launch_dims=4))()
    np.testing.assert_array_equal(made, np.tile(np.diag([1.0, 2.0, 3.0]), (4, 1, 1)))
    batched = jax.vmap(run, in_axes=(None, 0, None))(a, jnp.stack([b, 2 * b]), c)
    print("for a batch of b:", [x.shape for x in batched])


def gradients() -> None:
    """Differentiate by an array of vectors."""
    run = nb.jax_kernel(scale_vec, num_outputs=1, enable_backward=True)

    @partial(jax.jit, static_argnames=["s"])
    def loss(a, s):
        (out,) = run(a, s)
        return jnp.sum(out)

    a = jnp.arange(10, dtype=jnp.float32).reshape(5, 2)
    (by_a,) = jax.grad(loss, argnums=(0,))(a, 3.0)
    print("the gradient is 3 everywhere:", by_a.tolist())


def several() -> None:
    """Launch several kernels, in each mode."""
    a = jnp.arange(10, dtype=jnp.float32)
    b = a.reshape(5, 2)
    for mode in nb.GraphMode:
        f = nb.jax_callable(scale_both, num_outputs=2, graph_mode=mode)
        c, d = jax.jit(lambda a, b, f=f: f(a, b, 2.0, output_dims={"c": a.shape, "d": b.shape}))(a, b)
        np.testing.assert_array_equal(c, 2 * a)
        np.testing.assert_array_equal(d, 2 * b)
        print(mode, d.tolist())


if __name__ == "__main__":
    shapes()
    gradients()
    several()
