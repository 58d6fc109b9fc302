"""Arrays within a function that launches kernels: views, values and facts are those of Arrays, in whatever mode it runs."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb

modes = pytest.mark.parametrize("mode", list(nb.GraphMode))
traced = pytest.mark.parametrize("mode", [nb.GraphMode.JAX, nb.GraphMode.NUMBRIDGE])
grid = jnp.arange(12.0).reshape(3, 4)


@nb.kernel
def double(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = 2.0 * x[i]


@nb.kernel
def double2(x: nb.array2d[float], out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = 2.0 * x[i, j]


@nb.kernel
def lengths(v: nb.array2d[nb.vec3], out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = nb.length(v[i, j]) + float(10 * i + j)


@modes
def test_transposed_views(mode):
    def function(x: nb.array2d[float], out: nb.array2d[float]):
        assert x.T.shape == x.transpose(-1, 0).shape == x.transpose((1, 0)).shape == (4, 3)
        nb.launch(double2, (4, 3), [x.T, out.T])
        nb.launch(double, 3, [x.T[0], out.transpose(1, 0)[-1]])

    (out,) = nb.jax_callable(function, graph_mode=mode)(grid)
    assert (out == (2 * grid).at[:, -1].set(2 * grid[:, 0])).all()


@modes
def test_transposed_views_of_vectors(mode):
    def function(v: nb.array2d[nb.vec3], out: nb.array2d[float]):
        nb.launch(lengths, (3, 2), [v.T], [out.T])

    v = jnp.arange(18.0).reshape(2, 3, 3)
    (out,) = nb.jax_callable(function, graph_mode=mode)(v)
    expected = jnp.linalg.norm(v, axis=-1) + jnp.arange(2.0)[:, None] + 10 * jnp.arange(3.0)
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_derivatives_through_transposed_views_and_written_parts():
    def function(x: nb.array2d[float], out: nb.array2d[float]):
        nb.launch(double2, (4, 3), [x.T, out.T])
        out[1] = x[0, 0]
        out[2, 1:3] = x[0, :2]

    def expected(x):
        return (2 * x).at[1].set(x[0, 0]).at[2, 1:3].set(x[0, :2])

    f = nb.jax_callable(function, enable_backward=True)
    gradients = [jax.grad(lambda x, run=run: (run(x) ** 2).sum())(grid) for run in (lambda x: f(x)[0], expected)]
    np.testing.assert_allclose(*gradients)


@modes
def test_parts_that_are_written(mode):
    def function(x: nb.array2d[float], out: nb.array2d[float]):
        out[0] = 3
        out[1, 1:] = [1.5, 2.5, 3.5]
        out[..., 0] = x[:, 1]
        out[2:, ::2] = np.array([[7.0], [8.0]])[:1]
        out[1:2].fill_(x[2])
        out[1, 3] = np.float64(0.5)

    (out,) = nb.jax_callable(function, graph_mode=mode)(grid)
    assert out.tolist() == [[1, 3, 3, 3], [8, 9, 10, 0.5], [7, 0, 7, 0]]


@traced
def test_whole_views_are_written_without_a_scatter(mode):
    """With jaxlib 0.10.2, XLA ends the process where one is reversed that writes all, as in `x[::-1].at[...].set(zeros)`."""

    def function(x: nb.array2d[float], out: nb.array2d[float]):
        zeros = nb.zeros(4)
        out.fill_(1)
        out[0, ::-1][...] = zeros
        out[1][::-1][None, :][0] = [1.0, 2.0, 3.0, 4.0]
        out[2:, ::-1][:, :] = x[:1]
        out[None][..., None][0] = out[:, :, None]

    f = jax.jit(nb.jax_callable(function, graph_mode=mode))
    assert f(grid)[0].tolist() == [[0] * 4, [4, 3, 2, 1], [3, 2, 1, 0]]

    def whole(x: nb.array2d[float], out: nb.array2d[float]):
        out[...].assign(x[:])

    f = jax.jit(nb.jax_callable(whole, graph_mode=mode))
    assert "scatter" not in f.lower(grid).as_text() and (f(grid)[0] == grid).all()


@pytest.mark.parametrize("read", [lambda out: out, jnp.asarray], ids=["numbridge", "jax"])
@traced
def test_parts_are_read_before_they_are_written(mode, read):
    """XLA moves a reshape before an update, and runs that in place: https://github.com/openxla/xla/issues/49176."""

    def function(x: nb.array1d[float], out: nb.array1d[float]):
        nb.launch(double, 4, [x, out])
        out[1:] = read(out)[:-1]

    f = nb.jax_callable(function, graph_mode=mode)
    reshaped = jax.jit(lambda x: f(x)[0].reshape(1, 4, 1))
    assert reshaped(grid[0] + 1).ravel().tolist() == [2, 2, 4, 6]


@modes
def test_vectors_that_are_written(mode):
    def function(v: nb.array1d[nb.vec3], out: nb.array1d[nb.vec3]):
        out.fill_(nb.vec3(1, 2, 3))
        out[1] = v[0]
        out[2:] = nb.vec3(4, 5, 6)

    (out,) = nb.jax_callable(function, graph_mode=mode)(jnp.full((3, 3), 9.0))
    assert out.tolist() == [[1, 2, 3], [9, 9, 9], [4, 5, 6]]


@modes
def test_copies_of_what_is_not_contiguous(mode):
    def function(x: nb.array2d[float], out: nb.array2d[float]):
        out[:2].contiguous().fill_(1)
        out[:, 1].contiguous().fill_(2)
        out.T.contiguous().fill_(3)
        copy = x[0].clone()
        assert x.read_only and copy.writable and out.T.writable
        # An input's views are contiguous or not as an Array's are, and a copy may be written.
        x[:, 0].contiguous().fill_(4)

    (out,) = nb.jax_callable(function, graph_mode=mode)(grid)
    assert out.tolist() == [[1] * 4, [1] * 4, [0] * 4]


@modes
def test_new_arrays_of_what_arrays_hold(mode):
    def function(x: nb.array2d[float], v: nb.array1d[nb.vec3], out: nb.array2d[float]):
        copy, flat = nb.array(x[:, 0]), nb.array(x, shape=12)
        copy.fill_(7)
        nb.launch(double, 3, [flat[:3], out[0, :3]])
        out[1, :3] = copy
        out[2] = nb.array(x[2], dtype=nb.int32)
        wide, vectors = nb.array(x, dtype=nb.float64), nb.array(x[:, 1:], dtype=nb.vec3)
        assert wide.dtype == nb.float64 and wide.shape == (3, 4) and vectors.shape == (3,)
        assert nb.array(v).dtype is nb.array(vectors).dtype is nb.vec3
        out[0, 3:] = wide[0, 3:]

    (out,) = nb.jax_callable(function, graph_mode=mode)(grid, jnp.ones((2, 3)))
    assert out.tolist() == [[0, 2, 4, 3], [7, 7, 7, 0], [8, 9, 10, 11]]


@modes
def test_copies_of_the_standard_library(mode):
    def function(x: nb.array2d[float], out: nb.array2d[float]):
        out.fill_(1)
        view, whole, deep = copy.copy(out[1]), copy.copy(x), copy.deepcopy([out, x])
        out.fill_(2)
        nb.launch(double, 4, [x[0], whole[0]])
        out[0], out[1], out[2, :2], out[2, 2:] = whole[0], view, deep[0][0, :2], deep[1][2, 2:]

    (out,) = nb.jax_callable(function, graph_mode=mode)(grid)
    assert out.tolist() == [[0, 2, 4, 6], [1] * 4, [1, 1, 10, 11]]


@modes
def test_facts(mode):
    seen = []

    def function(x: nb.array2d[float], v: nb.array1d[nb.vec3], out: nb.array2d[float]):
        views = [
            x,
            x[1:],
            x[:, 1:],
            x[:, :1],
            x[0],
            x.T,
            x.T.T,
            x.reshape(4, 3),
            x.reshape(-1)[2:5],
            x[1:1, :2],
            v[::2],
            v[None],
        ]
        seen.append([(a.shape, a.is_contiguous, a.itemsize, a.nbytes, a.size, a.ndim, a.read_only) for a in views])
        out.zero_()

    nb.jax_callable(function, graph_mode=mode)(grid, jnp.ones((5, 3)))
    x, v = nb.array(np.asarray(grid)), nb.array(np.ones((5, 3)), nb.vec3)
    views = [
        x,
        x[1:],
        x[:, 1:],
        x[:, :1],
        x[0],
        x.T,
        x.T.T,
        x.reshape(4, 3),
        x.reshape(-1)[2:5],
        x[1:1, :2],
        v[::2],
        v[None],
    ]
    assert seen[0] == [(a.shape, a.is_contiguous, a.itemsize, a.nbytes, a.size, a.ndim, True) for a in views]


@traced
def test_operations_of_jax_between_launches(mode):
    def function(x: nb.array2d[float], out: nb.array2d[float]):
        half = nb.zeros(x.shape)
        nb.launch(double2, x.shape, [jnp.sin(jnp.asarray(x)), half])
        half[1:] = jnp.cos(jnp.asarray(half)[:-1])
        nb.launch(double2, x.shape, [half], [out])

    def expected(x):
        half = 2 * jnp.sin(x)
        return 2 * half.at[1:].set(jnp.cos(half[:-1]))

    f = nb.jax_callable(function, graph_mode=mode, enable_backward=True)
    np.testing.assert_allclose(f(grid)[0], expected(grid), rtol=1e-5, atol=1e-6)
    gradients = [jax.grad(lambda x, run=run: (run(x) ** 2).sum())(grid) for run in (lambda x: f(x)[0], expected)]
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-5)


@modes
def test_conversions_to_jax_between_launches(mode):
    def function(x: nb.array2d[float], out: nb.array2d[float]):
        assert nb.asarray(x) is x and nb.convert(x, "numbridge") is x
        nb.launch(double2, x.shape, [nb.to_jax(x) + 1, out])
        nb.launch(double2, x.shape, [nb.convert(out, "jax") * x.shape[0], out])

    (out,) = jax.jit(nb.jax_callable(function, graph_mode=mode))(grid)
    np.testing.assert_array_equal(out, 12 * (grid + 1))


@traced
def test_loops_of_jax_with_arrays_of_their_own(mode):
    def function(x: nb.array[float], out: nb.array[float]):
        def body(total, row):
            doubled = nb.zeros(x.shape)
            nb.launch(double, x.shape, [total + row], [doubled])
            return jnp.asarray(doubled), ()

        out.assign(jax.lax.scan(body, jnp.asarray(x), jnp.ones((3, 4)))[0])

    f = nb.jax_callable(function, graph_mode=mode, enable_backward=True)
    assert f(grid[1])[0].tolist() == (8 * grid[1] + 14).tolist()
    assert jax.grad(lambda x: f(x)[0].sum())(grid[1]).tolist() == [8.0] * 4


LOOPS = {
    "loop": lambda write: jax.lax.fori_loop(0, 3, lambda _, c: write() or c, 0),
    "branch": lambda write: jax.lax.cond(True, lambda: write() or 0, lambda: 0),
    "jit": lambda write: jax.jit(lambda: write() or 0)(),
}


@traced
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("part", [slice(None), slice(1, 3)], ids=["whole", "view"])
def test_arrays_from_outside_are_not_written_within_loops_of_jax(mode, loop, part):
    def function(x: nb.array[float], out: nb.array[float]):
        total = nb.zeros(x.shape)
        LOOPS[loop](lambda: nb.launch(double, x[part].shape, [x[part]], [total[part]]))
        out.fill_(1)

    message = (
        r"<traced array 'a temporary': float32\[4\]> is written within a function that JAX traces by itself, such as"
    )
    with pytest.raises(nb.BufferAccessError, match=message):
        nb.jax_callable(function, graph_mode=mode)(grid[0])


@traced
@pytest.mark.parametrize("loop", LOOPS)
def test_constants_are_not_written_within_loops_of_jax(mode, loop):
    """They exist outside, too, and would be written whatever a branch takes, and however often a loop runs."""

    def function(x: nb.array[float], out: nb.array[float]):
        LOOPS[loop](lambda: out.assign(np.ones(4, np.float32)) and None)

    with pytest.raises(
        nb.BufferAccessError, match=r"'out': float32\[4\]> is written within a function that JAX traces"
    ):
        nb.jax_callable(function, graph_mode=mode)(grid[0])


LATE = {
    "launch": lambda kept: nb.launch(double, 3, [np.ones(4, np.float32), kept]),
    "launch that reads": lambda kept: nb.launch(double, 3, [kept, np.ones(4, np.float32)]),
    "fill_": lambda kept: kept.fill_(1),
    "assign": lambda kept: kept.assign(np.ones(4, np.float32)),
    "item": lambda kept: kept.__setitem__(0, 1.0),
    "view": lambda kept: kept[:2].zero_(),
    "copy": lambda kept: kept.clone().zero_(),
}


@traced
@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("call", [lambda f: f(), lambda f: jax.jit(lambda x: f())(1)], ids=["outside", "in a program"])
def test_arrays_that_are_kept_are_not_written_later(mode, late, call):
    kept = []

    def function(x: nb.array[float], out: nb.array[float]):
        kept[:] = [out, nb.zeros(4), nb.zeros(5)[1:]]
        nb.launch(double, 4, [x, out])

    f = nb.jax_callable(function, graph_mode=mode)
    assert (f(grid[0])[0] == 2 * grid[0]).all()
    for array, name in zip(kept, ("out", "a temporary", "a temporary"), strict=True):
        with pytest.raises(nb.BufferAccessError, match=f"the traced array '{name}.* was kept after the function"):
            call(lambda array=array: LATE[late](array))


WRONG = {
    "axes": (lambda x, out: x.transpose(0, 0), ValueError, r"axes \(0, 0\) do not name each of the 2 axes once"),
    "reshape": (lambda x, out: x.reshape(5, -1), ValueError, r"12 elements cannot have the shape \(5, -1\)"),
    "broadcast": (
        lambda x, out: out.__setitem__(0, [1.0, 2.0]),
        ValueError,
        r"array\[...\] = value: values of shape \(2,\) cannot be broadcast to <traced array 'out': float32\[4\]>",
    ),
    "input": (lambda x, out: x.__setitem__(0, 1), BufferError, r"<traced array 'x'.* is an input of the function"),
    "index": (lambda x, out: out.__setitem__(np.array([0]), 1), TypeError, r"a view takes ints, slices"),
    "strides": (lambda x, out: x.strides, BufferError, r"<traced array 'x'.* has no memory: .*GraphMode.NONE"),
    "others": (lambda x, out: nb.convert(x, "torch"), BufferError, r"<traced array 'x'.* has no memory"),
    "bytes": (lambda x, out: x.view(nb.int32), BufferError, r"<traced array 'x'.* has no memory"),
}


@traced
@pytest.mark.parametrize("case", WRONG)
def test_what_they_refuse(case, mode):
    wrong, kind, message = WRONG[case]

    def function(x: nb.array2d[float], out: nb.array2d[float]):
        wrong(x, out)

    with pytest.raises(kind, match=message) as caught:
        nb.jax_callable(function, graph_mode=mode)(grid)
    assert isinstance(caught.value, nb.NumbridgeError)
