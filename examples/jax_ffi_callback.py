"""A Python function as a target of JAX's foreign function interface, which launches kernels on the buffers that it gets.

Lower than `nb.jax_callable`: the function gets lists of arrays and a dictionary of attributes, and whoever calls it says what the
results look like.
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


def scale_both(inputs: list[nb.Array], outputs: list[nb.Array], attrs: dict[str, object], ctx: object) -> None:
    """Scale two arrays by the attribute ``scale``."""
    a, b = inputs
    c, d = outputs
    nb.launch(scale, dim=a.shape, inputs=[a, attrs["scale"]], outputs=[c])
    nb.launch(scale_rows, dim=b.shape, inputs=[b, attrs["scale"]], outputs=[d])


def fail(inputs: list[nb.Array], outputs: list[nb.Array], attrs: dict[str, object], ctx: object) -> None:
    """Raise; the caller sees the traceback."""
    raise ValueError("something is wrong with the input")


def main() -> None:
    """Register both functions and call them."""
    nb.register_ffi_callback("example_scale_both", scale_both)
    nb.register_ffi_callback("example_fail", fail)
    a = jnp.arange(10, dtype=jnp.float32)
    b = a.reshape(5, 2)
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct(b.shape, b.dtype)]
    call = jax.ffi.ffi_call("example_scale_both", results)
    c, d = jax.jit(lambda a, b: call(a, b, scale=2.0))(a, b)
    print(c, d.tolist())
    np.testing.assert_array_equal(c, 2 * a)
    np.testing.assert_array_equal(d, 2 * b)
    try:
        jax.block_until_ready(jax.ffi.ffi_call("example_fail", results[0])(a))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        print("an exception becomes an error of XLA:", str(error).strip().splitlines()[-1])


if __name__ == "__main__":
    main()
