"""Functions that launch several kernels, inside JAX: traced into one program, or called each time.

`nb.jax_callable` runs an annotated function once on stand-ins for its arrays, and what it launches becomes part of JAX's program.
With `GraphMode.NONE` the function is called each time, and may look at values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import numbridge as nb


@nb.kernel
def scale(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


@nb.kernel
def scale_rows(x: nb.array2d[float], s: float, out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = x[i, j] * s


@nb.kernel
def largest(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    nb.atomic_max(out, 0, x[i])


# Annotated like a kernel: inputs, then outputs.
def scale_both(a: nb.array[float], b: nb.array2d[float], s: float, c: nb.array[float], d: nb.array2d[float]):
    """Launch two kernels that have nothing to do with each other."""
    nb.launch(scale, dim=a.shape, inputs=[a, s], outputs=[c])
    nb.launch(scale_rows, dim=b.shape, inputs=[b, s], outputs=[d])


def normalise(x: nb.array[float], out: nb.array[float]):
    """Divide by the largest element, which must be looked at: only where the function is called each time."""
    top = nb.zeros(1)
    nb.launch(largest, dim=x.shape, inputs=[x], outputs=[top])
    nb.launch(scale, dim=x.shape, inputs=[x, 1.0 / top[0].item()], outputs=[out])


def main() -> None:
    """Run both functions, jitted, in a batch, and in each mode that they allow."""
    a = jnp.arange(10, dtype=jnp.float32)
    b = a.reshape(5, 2)
    for mode in nb.GraphMode:
        f = nb.jax_callable(scale_both, num_outputs=2, graph_mode=mode)
        run = jax.jit(lambda a, b, f=f: f(a, b, 2.0, output_dims={"c": a.shape, "d": b.shape}))
        c, d = run(a, b)
        np.testing.assert_array_equal(c, 2 * a)
        np.testing.assert_array_equal(d, 2 * b)
        print(mode, c, d.tolist())
    batch = jax.vmap(
        nb.jax_callable(scale_both, num_outputs=2, output_dims={"c": 10, "d": (5, 2)}), in_axes=(None, None, 0)
    )
    print("for three factors:", [out.shape for out in jax.jit(batch)(a, b, jnp.arange(3.0))])

    g = jax.jit(nb.jax_callable(normalise, graph_mode=nb.GraphMode.NONE))
    print("normalised:", g(a)[0])
    try:
        jax.jit(nb.jax_callable(normalise))(a)
    except nb.BufferAccessError as error:
        print("traced:", error)


if __name__ == "__main__":
    main()
