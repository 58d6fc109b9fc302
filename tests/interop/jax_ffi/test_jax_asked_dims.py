"""Dims that functions of the inputs say: `jax_kernel` and `jax_callable` take them as `torch_op` does."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from numbridge.jax_ffi.targets import TARGET

METHODS = ["broadcast_all", "expand_dims", "sequential", "sequential_unrolled", "legacy_vectorized"]


@nb.kernel
def valid(x: nb.array1d[float], w: nb.array1d[float], y: nb.array1d[float]):
    i = nb.tid()
    total = nb.float32(0.0)
    for k in range(w.shape[0]):
        total += x[i + k] * w[k]
    y[i] = total


@nb.kernel
def repeated(x: nb.array1d[float], n: int, y: nb.array1d[float], last: nb.array1d[int]):
    i = nb.tid()
    for k in range(n):
        y[n * i + k] = x[i]
    last[i] = n * i


@nb.kernel
def moved(points: nb.array1d[nb.vec3], by: nb.vec3, out: nb.array1d[nb.vec3]):
    i = nb.tid()
    out[i + 1] = points[i] + by


def valid_dims(x, w):
    return x.shape[0] - w.shape[0] + 1


def both(x: nb.array1d[float], w: nb.array1d[float], y: nb.array1d[float]):
    nb.launch(valid, y.shape, [x, w], [y])


def pair_of(wrapped):
    """Return the same function as a kernel's and as that of a function that launches it."""
    if wrapped == "kernel":
        return nb.jax_kernel(valid, launch_dims=valid_dims, output_dims=valid_dims, enable_backward=True)
    return nb.jax_callable(both, output_dims=valid_dims, enable_backward=True)


def plain(x, w):
    return jnp.stack([x[k : x.shape[0] - w.shape[0] + 1 + k] * w[k] for k in range(w.shape[0])]).sum(0)


rng = np.random.default_rng(0)
x9, w3 = jnp.asarray(rng.normal(size=9), jnp.float32), jnp.asarray(rng.normal(size=3), jnp.float32)
wrappings = pytest.mark.parametrize("wrapped", ["kernel", "callable"])


@wrappings
def test_shapes_follow_the_inputs(wrapped):
    f = pair_of(wrapped)
    jitted = jax.jit(f)
    for n, k in ((9, 3), (9, 1), (20, 7), (3, 3)):
        x, w = jnp.asarray(rng.normal(size=n), jnp.float32), jnp.asarray(rng.normal(size=k), jnp.float32)
        for run in (f, jitted):
            (y,) = run(x, w)
            assert y.shape == (n - k + 1,)
            np.testing.assert_allclose(y, np.convolve(x, w[::-1], "valid"), rtol=1e-5, atol=1e-5)
    assert f(np.asarray(x9), w=np.asarray(w3))[0].shape == (7,)
    shown = jax.eval_shape(f, jax.ShapeDtypeStruct((30,), jnp.float32), w3)
    assert shown[0].shape == (28,)


@wrappings
def test_derivatives(wrapped):
    f = pair_of(wrapped)

    def of(function):
        return lambda x, w: jnp.sin(function(x, w)).sum()

    ours, theirs = of(lambda x, w: f(x, w)[0]), of(plain)
    for transform in (
        lambda g: jax.grad(g, (0, 1)),
        lambda g: jax.jit(jax.grad(g, (0, 1))),
        lambda g: jax.hessian(g, (0, 1)),
        lambda g: jax.grad(jax.checkpoint(g), (0, 1)),
    ):
        made, wanted = transform(ours)(x9, w3), transform(theirs)(x9, w3)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), made, wanted)


@pytest.mark.one_in(3)
@wrappings
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("axes", [(0, 0), (1, None), (None, 0)])
def test_batches_are_not_seen(wrapped, method, axes):
    f, seen = pair_of(wrapped), []

    def dims(x, w):
        seen.append((x.shape, w.shape))
        return valid_dims(x, w)

    options = {"output_dims": dims, "vmap_method": method} | ({"launch_dims": dims} if wrapped == "kernel" else {})
    given = [
        a if axis is None else jnp.stack([a * s for s in (1.0, -2.0, 0.5, 3.0)], axis)
        for a, axis in zip((x9, w3), axes, strict=True)
    ]

    def ours(x, w):
        return f(x, w, **options)[0]

    def gradients(function):
        return jax.vmap(jax.grad(lambda x, w: jnp.sin(function(x, w)).sum(), (0, 1)), axes)(*given)

    np.testing.assert_allclose(jax.vmap(ours, axes)(*given), jax.vmap(plain, axes)(*given), rtol=1e-5, atol=1e-5)
    for made, wanted in zip(gradients(ours), gradients(plain), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-5)
    assert set(seen) == {((9,), (3,))}


@wrappings
def test_symbolic_dimensions(wrapped):
    f = pair_of(wrapped)
    given = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n", constraints=["n >= 3"]), jnp.float32)
    checks = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
    made = jax.export.export(jax.jit(lambda x: f(x, w3)[0]), disabled_checks=checks)(given)
    for n in (3, 9, 40):
        x = jnp.asarray(rng.normal(size=n), jnp.float32)
        np.testing.assert_allclose(made.call(x), plain(x, w3), rtol=1e-5, atol=1e-5)


def test_symbolic_dimensions_that_the_function_cannot_compare():
    f = nb.jax_kernel(valid, output_dims=lambda x, w: 3 if x.shape[0] > 7 else 4, launch_dims=3)
    given = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n"), jnp.float32)
    with pytest.raises(jax.errors.InconclusiveDimensionOperation) as caught:
        jax.export.export(jax.jit(lambda x: f(x, w3)[0]))(given)
    assert "in the function that is output_dims of kernel 'valid' under JAX" in caught.value.__notes__


def test_numbers_are_what_the_call_has():
    f = nb.jax_kernel(
        repeated, 2, launch_dims=lambda x, n: x.shape, output_dims=lambda x, n: {"y": n * x.shape[0], "last": x.shape}
    )
    x = jnp.arange(3.0)
    for n in (1, 2, 5, np.int32(4)):
        for run in (f, jax.jit(f, static_argnums=1), lambda x, n: jax.jit(lambda x: f(x, n))(x)):
            y, last = run(x, n)
            np.testing.assert_array_equal(y, np.repeat(np.arange(3.0), n))
            np.testing.assert_array_equal(last, n * np.arange(3))
    # An array that holds a value now may be asked for it; one that is traced may not.
    assert nb.jax_kernel(repeated, 2, launch_dims=3, output_dims=lambda x, n: 3 * int(n))(x, jnp.int32(2))[0].shape == (
        6,
    )


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (lambda x, n: 3 * int(n), "the function asks for a value of x or n, which JAX traces; .*static_argnames"),
        (lambda x, n: 3 if n > 1 else 4, "the function asks for a value of x or n, which JAX traces"),
        (lambda x, n: len(range(n)), "the function asks for a value of x or n, which JAX traces"),
        (lambda x, n: int(np.asarray(x).sum()), "the function asks for a value of x or n, which JAX traces"),
        (lambda x, n: 3 * n, "dimensions are ints, or tuples of ints, that are known when JAX traces the call"),
        (lambda x, n: (3, "n"), r"wanted an int or a tuple of ints, got \(3, 'n'\)"),
        (lambda x, n: -1, "-1 has a negative extent"),
        (lambda x, n: len, "wanted an int or a tuple of ints, got <built-in function len>"),
    ],
)
@pytest.mark.parametrize("option", ["launch_dims", "output_dims"])
def test_what_a_function_may_not_say(dims, message, option):
    f = nb.jax_kernel(repeated, 2, **{option: dims})
    with pytest.raises(nb.NumbridgeError, match=rf"^kernel 'repeated': {option}: {message}"):
        jax.jit(f)(jnp.arange(3.0), 2)


def test_mistakes_of_and_about_a_function():
    x = jnp.arange(3.0)
    for option in ("launch_dims", "output_dims"):
        wanted = rf"^kernel 'repeated': {option} is a function whose parameters are \(x\); it is called with the inputs \(x, n\)"
        with pytest.raises(nb.NumbridgeTypeError, match=wanted):
            nb.jax_kernel(repeated, 2, **{option: lambda x: x.shape})
        with pytest.raises(nb.NumbridgeTypeError, match=wanted):
            nb.jax_kernel(repeated, 2)(x, 2, **{option: lambda x: x.shape})
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"^function 'both': output_dims is a function whose .*inputs \(x, w\)"
    ):
        nb.jax_callable(both, output_dims=lambda x: x.shape)
    with pytest.raises(AttributeError, match="shpae") as caught:
        nb.jax_kernel(repeated, 2, output_dims=lambda x, n: x.shpae)(x, 2)
    assert caught.value.__notes__ == ["in the function that is output_dims of kernel 'repeated' under JAX"]
    f = nb.jax_kernel(valid, output_dims=valid_dims, launch_dims=valid_dims)
    with pytest.raises(nb.NumbridgeTypeError, match="argument 'w': wanted a JAX array or a number, got list"):
        f(x, [1.0, 2.0])
    with pytest.raises(nb.NumbridgeTypeError, match=r"takes 2 argument\(s\) \(x, w\), got 1"):
        f(x)
    with pytest.raises(nb.NumbridgeValueError, match="output_dims has no entry for 'last'"):
        nb.jax_kernel(repeated, 2, output_dims=lambda x, n: {"y": 6})(x, 2)
    with pytest.raises(nb.NumbridgeValueError, match=r"argument 'x': .*takes x\[i \+ k\]"):
        nb.jax_kernel(valid, launch_dims=lambda x, w: x.shape)(x, w3)


def test_no_dims_are_the_default():
    f = nb.jax_kernel(repeated, 2, launch_dims=lambda x, n: None, output_dims=lambda x, n: None)
    y, last = f(jnp.arange(3.0), 1)
    assert y.tolist() == [0, 1, 2] and last.shape == (3,)


def test_the_last_dimensions_are_those_of_elements():
    points = jnp.arange(6.0).reshape(2, 3)
    for dims in (lambda p, by: p.shape[0] + 1, lambda p, by: (p.shape[0] + 1, 3)):
        f = nb.jax_kernel(moved, launch_dims=lambda p, by: len(p), output_dims=dims)
        for run, by in ((f, nb.vec3(1.0, 0.0, 0.0)), (f, jnp.array([1.0, 0, 0])), (jax.jit(f), jnp.array([1.0, 0, 0]))):
            np.testing.assert_array_equal(run(points, by)[0], [[0, 0, 0], [1, 1, 2], [4, 4, 5]])


def test_a_function_of_an_element_sees_it():
    f = nb.jax_kernel(moved, launch_dims=lambda p, by: len(p), output_dims=lambda p, by: len(p) + int(by[0]))
    assert f(jnp.ones((2, 3)), nb.vec3(4.0, 0.0, 0.0))[0].shape == (6, 3)


def test_copies_and_pickles():
    f = nb.jax_kernel(valid, launch_dims=valid_dims, output_dims=valid_dims)
    assert copy.deepcopy(f) is f
    assert pickle.loads(pickle.dumps(f)) is f


def test_a_function_that_has_no_hash():
    class Dims:
        __hash__ = None

        def __call__(self, x, w):
            return valid_dims(x, w)

    f = nb.jax_kernel(valid, launch_dims=Dims())
    for run in (f, jax.jit(f), jax.jit(lambda x, w: f(x, w, output_dims=Dims()))):
        np.testing.assert_allclose(run(x9, w3)[0], plain(x9, w3), rtol=1e-5, atol=1e-5)


def test_other_functions_of_a_call_replace_them():
    f = nb.jax_kernel(valid, launch_dims=valid_dims, output_dims=valid_dims)
    y = f(x9, w3, launch_dims=2, output_dims=lambda x, w: x.shape)[0]
    assert y.shape == x9.shape and not y[2:].any()
    np.testing.assert_allclose(y[:2], plain(x9, w3)[:2], rtol=1e-5, atol=1e-5)


def test_functions_that_python_runs_each_time():
    def summed(x: nb.array1d[float], y: nb.array1d[float]):
        y.numpy()[...] = x.numpy().reshape(2, -1).sum(0)

    f = nb.jax_callable(summed, graph_mode=nb.GraphMode.NONE, output_dims=lambda x: x.shape[0] // 2)
    x = jnp.arange(12.0).reshape(2, 6)
    for run in (f, jax.jit(f)):
        assert run(x[0])[0].tolist() == [3, 5, 7]
    assert jax.vmap(lambda x: f(x)[0])(x).tolist() == [[3, 5, 7], [15, 17, 19]]
    g = nb.jax_callable(both, graph_mode=nb.GraphMode.NUMBRIDGE, output_dims=valid_dims)
    np.testing.assert_allclose(jax.jit(g)(x9, w3)[0], plain(x9, w3), rtol=1e-5, atol=1e-5)
