"""Arrays of vectors and matrices in `jax_kernel` and `jax_callable`: shapes, derivatives, batches, refusals."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from compiled_calls import jax_callable, jax_kernel

N = 5


@nb.kernel
def turned(m: nb.array1d[nb.mat33], v: nb.array1d[nb.vec3], out: nb.array1d[nb.vec3], size: nb.array1d[float]):
    i = nb.tid()
    out[i] = nb.cross(m[i] @ v[i], v[i])
    size[i] = nb.length(out[i])


def turned_in_jax(m, v):
    out = jnp.cross(jnp.einsum("nij,nj->ni", m, v), v)
    return out, jnp.linalg.norm(out, axis=-1)


def values(*shape):
    return jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)


@nb.kernel
def grid_of_vectors(a: nb.array2d[nb.vec3], out: nb.array2d[nb.vec3]):
    i, j = nb.tid()
    out[i, j] = a[i, j] * 2.0


@pytest.mark.parametrize("dims", [None, N, (N,), {"out": (N, 3), "size": N}, {"out": [N], "size": (N,)}])
def test_output_dims_in_either_convention(dims):
    m, v = values(N, 3, 3), values(N, 3)
    run = jax_kernel(turned, num_outputs=2, output_dims=dims)
    for f in (run, jax.jit(run)):
        for got, wanted in zip(f(m, v), turned_in_jax(m, v), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_two_dimensions_of_vectors():
    a = values(4, 3, 3)
    for dims in (None, (4, 3, 3), [4, 3, 3]):
        (out,) = jax_kernel(grid_of_vectors, output_dims=dims)(a)
        np.testing.assert_array_equal(out, 2 * a)


def test_rank_of_the_annotation_decides_what_a_shape_has():
    @nb.kernel
    def ones(out: nb.array2d[nb.vec3]):
        i, j = nb.tid()
        out[i, j] = nb.vec3(1.0)

    for dims in ((2, 3), (2, 3, 3)):
        (out,) = jax_kernel(ones, launch_dims=(2, 3), output_dims=dims)()
        assert out.shape == (2, 3, 3) and (out == 1).all()


def test_gradients_and_hessians():
    m, v, w = values(N, 3, 3), values(N, 3), values(N, 3)
    run = jax_kernel(turned, num_outputs=2, enable_backward=True)

    def loss(f):
        return lambda m, v: (f(m, v)[0] * w).sum() + (f(m, v)[1] ** 2).sum()

    for got, wanted in zip(
        jax.jit(jax.grad(loss(run), argnums=(0, 1)))(m, v),
        jax.grad(loss(turned_in_jax), argnums=(0, 1))(m, v),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    tangents = (values(N, 3, 3) + 1, values(N, 3) - 1)
    for got, wanted in zip(jax.jvp(run, (m, v), tangents)[1], jax.jvp(turned_in_jax, (m, v), tangents)[1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    got = jax.hessian(loss(run), argnums=1)(m, v)
    np.testing.assert_allclose(got, jax.hessian(loss(turned_in_jax), argnums=1)(m, v), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["broadcast_all", "expand_dims", "sequential", "sequential_unrolled"])
def test_vmap(method):
    m, v = values(2, 4, N, 3, 3), values(4, N, 3)
    run = jax_kernel(turned, num_outputs=2, vmap_method=method, enable_backward=True)
    f = jax.vmap(jax.vmap(run), in_axes=(0, None))
    wanted = jax.vmap(jax.vmap(turned_in_jax), in_axes=(0, None))(m, v)
    for got, value in zip(jax.jit(f)(m, v), wanted, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6)
    by_v = jax.grad(lambda v: f(m, v)[0].sum())(v)
    wanted = jax.grad(lambda v: jax.vmap(jax.vmap(turned_in_jax), in_axes=(0, None))(m, v)[0].sum())(v)
    np.testing.assert_allclose(by_v, wanted, rtol=1e-4, atol=1e-4)


@nb.kernel
def pushed(x: nb.array1d[nb.vec3], s: float, v: nb.array1d[nb.vec3]):
    i = nb.tid()
    v[i] += x[i] * s


def test_in_out_arguments_and_traced_numbers():
    x, v = values(N, 3), values(N, 3) + 1
    run = jax_kernel(pushed, in_out_argnames=["v"], enable_backward=True)
    (got,) = jax.jit(run)(x, jnp.float32(2.0), v)
    np.testing.assert_allclose(got, v + 2 * x, rtol=1e-6)
    by_s = jax.grad(lambda s: run(x, s, v)[0].sum())(jnp.float32(2.0))
    np.testing.assert_allclose(by_s, x.sum(), rtol=1e-5)


def test_export_with_a_symbolic_length():
    (n,) = jax.export.symbolic_shape("n")
    run = jax.jit(jax_kernel(turned, num_outputs=2))
    shapes = [jax.ShapeDtypeStruct((n, 3, 3), jnp.float32), jax.ShapeDtypeStruct((n, 3), jnp.float32)]
    check = jax.export.DisabledSafetyCheck.custom_call("numbridge_launch")
    exported = jax.export.export(run, disabled_checks=[check])(*shapes)
    again = jax.export.deserialize(exported.serialize())
    m, v = values(N, 3, 3), values(N, 3)
    np.testing.assert_allclose(again.call(m, v)[0], turned_in_jax(m, v)[0], rtol=1e-5, atol=1e-6)


def doubled_and_turned(
    m: nb.array1d[nb.mat33], v: nb.array1d[nb.vec3], out: nb.array1d[nb.vec3], size: nb.array1d[float]
):
    twice = nb.zeros(v.shape, dtype=nb.vec3)
    assert v.shape == (N,) and v.dtype is nb.vec3 and twice.shape == (N,)
    twice.fill_(1.0)
    nb.launch(pushed, v.shape, [v, 2.0], [twice])
    nb.launch(turned, v.shape, [m, twice], [out, size])


@pytest.mark.parametrize("mode", list(nb.GraphMode))
def test_functions_that_launch_kernels(mode):
    m, v = values(N, 3, 3), values(N, 3)
    f = jax_callable(doubled_and_turned, num_outputs=2, graph_mode=mode, output_dims={"out": (N, 3), "size": N})
    for got, wanted in zip(jax.jit(f)(m, v), turned_in_jax(m, 2 * v + 1), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_gradients_through_functions_that_launch_kernels():
    m, v = values(N, 3, 3), values(N, 3)
    f = jax_callable(doubled_and_turned, num_outputs=2, enable_backward=True, output_dims=N)
    got = jax.grad(lambda v: f(m, v)[0].sum())(v)
    wanted = jax.grad(lambda v: turned_in_jax(m, 2 * v + 1)[0].sum())(v)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def views(v: nb.array2d[nb.vec3], out: nb.array2d[nb.vec3]):
    rest = v.reshape(3, 4)
    assert v[..., 0].shape == (4,) and v[1].shape == (3,)
    nb.launch(grid_of_vectors, (3, 4), [rest], [out.reshape(3, 4)])
    nb.launch(pushed, 3, [v[1], 1.0], [out[1, ...]])


def test_views_keep_elements_whole():
    v = values(4, 3, 3)
    (out,) = jax.jit(jax_callable(views))(v)
    np.testing.assert_allclose(out, (2 * v).at[1].add(v[1]), rtol=1e-6)


@nb.kernel
def anything(x, out):
    i = nb.tid()
    out[i] = x[i]


def through_anything(v: nb.array[nb.vec3], out: nb.array[nb.vec3]):
    nb.launch(anything, v.shape, [v], [out])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: jax_kernel(turned, 2)(values(N, 3, 3), values(N, 4)),
            r"argument 'v'.*\(\.\.\., 3\), got shape \(5, 4\)",
        ),
        (
            lambda: jax_kernel(turned, 2)(values(N, 3, 3), values(2, N, 3)),
            "of 1 dimension.* beside the last 1 of vec3",
        ),
        (
            lambda: jax_kernel(turned, 2)(values(N, 3, 3), jnp.ones((N, 3), int)),
            r"argument 'v'.*use x.astype\('float32'\)",
        ),
        (
            lambda: jax_kernel(turned, 2, output_dims=(2, N))(values(N, 3, 3), values(N, 3)),
            "output 'out'.*pass output_dims",
        ),
        (lambda: jax_callable(through_anything)(values(N, 3)), r"'x': got .*annotate it as nb.array\[nb.vec3\]"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(nb.NumbridgeError, match=text):
        call()
