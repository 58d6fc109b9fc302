"""Kernels as JAX functions: inputs and outputs, numbers, launch and output dimensions, in-out arguments, and batches."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import numbridge as nb


@nb.kernel
def triple(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = 3.0 * x[i]


@nb.kernel
def add(a: nb.array[int], b: nb.array[int], out: nb.array[int]):
    i = nb.tid()
    out[i] = a[i] + b[i]


@nb.kernel
def sums_of_neighbours(
    a: nb.array[float], b: nb.array[float], c: nb.array[float], ab: nb.array[float], bc: nb.array[float]
):
    i = nb.tid()
    ab[i] = a[i] + b[i]
    bc[i] = b[i] + c[i]


@nb.kernel
def sincos(angle: nb.array[float], sin_out: nb.array[float], cos_out: nb.array[float]):
    i = nb.tid()
    sin_out[i] = nb.sin(angle[i])
    cos_out[i] = nb.cos(angle[i])


@nb.kernel
def squares(out: nb.array[int]):
    i = nb.tid()
    out[i] = i * i


@nb.kernel
def scale(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


@nb.kernel
def matmul(a: nb.array2d[float], b: nb.array2d[float], c: nb.array2d[float]):
    i, j = nb.tid()
    total = nb.float32(0)
    for k in range(a.shape[1]):
        total += a[i, k] * b[k, j]
    c[i, j] = total


@nb.kernel
def halves_and_ends(x: nb.array[float], halves: nb.array[float], ends: nb.array[float]):
    i = nb.tid()
    halves[i] = 0.5 * x[i]
    if i == 0:
        ends[0] = x[0]
        ends[1] = x[x.shape[0] - 1]


@nb.kernel
def row_sums(matrix: nb.array2d[float], sums: nb.array[float]):
    i, j = nb.tid()
    nb.atomic_add(sums, i, matrix[i, j])


@nb.kernel
def diagonals(out: nb.array3d[float]):
    i = nb.tid()
    for k in range(3):
        out[i, k, k] = k + 1.0


@nb.kernel
def turned(points: nb.array2d[float], by: nb.array3d[float], out: nb.array2d[float]):
    i = nb.tid()
    for row in range(2):
        out[i, row] = by[i, row, 0] * points[i, 0] + by[i, row, 1] * points[i, 1]


@nb.kernel
def lookup(table: nb.array[float], indices: nb.array[int], out: nb.array[float]):
    i = nb.tid()
    out[i] = table[indices[i]]


def inputs_and_outputs() -> None:
    """Inputs come first; what is left are outputs, and their number is said where it is not one."""
    f = nb.jax_kernel(triple)
    (out,) = jax.jit(lambda: f(jnp.arange(8, dtype=jnp.float32)))()
    print("triple:", out)
    (out,) = jax.jit(nb.jax_kernel(add))(jnp.arange(4), jnp.ones(4, jnp.int32))
    print("add:", out)
    ones = jnp.ones(3)
    print("sums:", jax.jit(nb.jax_kernel(sums_of_neighbours, num_outputs=2))(ones, 2 * ones, 3 * ones))
    s, c = jax.jit(nb.jax_kernel(sincos, num_outputs=2))(jnp.linspace(0, 2 * np.pi, 32))
    assert np.allclose(s * s + c * c, 1, atol=1e-5)
    # Without inputs, launch_dims decides how large the output is.
    print("squares:", nb.jax_kernel(squares)(launch_dims=4)[0])


def numbers() -> None:
    """A number may be static, and is then an attribute of the program, or traced like any other JAX value."""
    f, x = nb.jax_kernel(scale), jnp.arange(4, dtype=jnp.float32)
    print("constant:", jax.jit(lambda x: f(x, 2.0)[0])(x))
    print("static:  ", jax.jit(f, static_argnums=1)(x, 3.0)[0])
    print("traced:  ", jax.jit(f)(x, 4.0)[0])


def dimensions() -> None:
    """Launch and output dimensions are those of the first array, unless a call says otherwise."""
    f = nb.jax_kernel(matmul)

    @jax.jit
    def products(a1: jax.Array, b1: jax.Array, a2: jax.Array, b2: jax.Array) -> tuple[jax.Array, jax.Array]:
        return f(a1, b1, launch_dims=(3, 4))[0], f(a2, b2, launch_dims=(4, 3))[0]

    one, two = products(jnp.full((3, 2), 2.0), jnp.full((2, 4), 3.0), jnp.full((4, 2), 2.0), jnp.full((2, 3), 3.0))
    print("products:", one.shape, two.shape)
    assert (one == 12).all() and (two == 12).all()

    g, x = nb.jax_kernel(halves_and_ends, num_outputs=2), jnp.arange(5, dtype=jnp.float32)
    print("one shape for all outputs:", [out.shape for out in g(x, output_dims=6)])
    print("a shape for each:", g(x, output_dims={"halves": 5, "ends": 2}))
    print("and launch dimensions:", g(x, launch_dims=3, output_dims={"halves": 5, "ends": 2}))


def small_matrices() -> None:
    """Vectors and matrices are the inner axes of an array, and a thread goes through those itself."""
    (out,) = jax.jit(lambda: nb.jax_kernel(diagonals)(launch_dims=4, output_dims=(4, 3, 3)))()
    np.testing.assert_array_equal(out, np.broadcast_to(np.diag([1.0, 2.0, 3.0]), (4, 3, 3)))
    points, quarter = jnp.arange(10.0).reshape(5, 2), jnp.broadcast_to(jnp.array([[0.0, -1.0], [1.0, 0.0]]), (5, 2, 2))
    (out,) = jax.jit(nb.jax_kernel(turned, launch_dims=5, output_dims=(5, 2)))(points, quarter)
    np.testing.assert_array_equal(out, jnp.stack([-points[:, 1], points[:, 0]], 1))
    print("points, turned:", out.tolist())


def in_out_arguments() -> None:
    """An in-out argument starts with what is passed; a donated one is changed in place."""
    f = jax.jit(nb.jax_kernel(row_sums, in_out_argnames=["sums"]), donate_argnums=1)
    sums = jnp.zeros(3)
    where = sums.unsafe_buffer_pointer()
    (out,) = f(jnp.arange(12.0).reshape(3, 4), sums)
    print("row sums:", out, "in place:", out.unsafe_buffer_pointer() == where)


def batches() -> None:
    """Under vmap a kernel sees one element of the batch at a time, and what is not batched is the same for all."""
    a = jnp.arange(12).reshape(3, 4)
    print("batch of sums:", jax.jit(jax.vmap(nb.jax_kernel(add)))(a, jnp.ones((3, 4), jnp.int32))[0].tolist())

    matrices = jnp.arange(24.0).reshape(2, 3, 4)
    f = nb.jax_kernel(row_sums, in_out_argnames=["sums"])
    for axis in range(3):
        want = jnp.moveaxis(matrices, axis, 0).sum(2)
        (out,) = jax.jit(jax.vmap(f, in_axes=(axis, 0)))(matrices, jnp.zeros(want.shape))
        np.testing.assert_allclose(out, want)

    table = jnp.arange(100, dtype=jnp.float32)
    indices = jax.random.randint(jax.random.key(42), (20, 50), 0, 100, dtype=jnp.int32)
    for method in ("broadcast_all", "expand_dims", "sequential"):
        g = nb.jax_kernel(lookup, vmap_method=method)
        (out,) = jax.jit(jax.vmap(partial(g, launch_dims=50), in_axes=(None, 0)))(table, indices)
        np.testing.assert_array_equal(out, table[indices])
        (out,) = jax.jit(jax.vmap(partial(g, launch_dims=20), in_axes=(None, 1)))(table, indices)
        np.testing.assert_array_equal(out, table[indices].T)
        # A call may choose a method of its own.
        (out,) = jax.vmap(partial(g, launch_dims=50, vmap_method="sequential"), in_axes=(None, 0))(table, indices)
        np.testing.assert_array_equal(out, table[indices])
    print("a table looked up by batches of indices:", out.shape)


if __name__ == "__main__":
    for part in (inputs_and_outputs, numbers, dimensions, small_matrices, in_out_arguments, batches):
        part()
