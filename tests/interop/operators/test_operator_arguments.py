"""Operators whose outputs have no dtype that would be right, or whose arguments are too short: both are refused."""

from __future__ import annotations

import numba
import numpy as np
import pytest

import numbridge as nb


@nb.kernel
def picked(index, x, y):
    i = nb.tid()
    y[i] = 0.5 * x[index[i]]


@nb.kernel
def picked_singles(index, x, y: nb.array[float]):
    i = nb.tid()
    y[i] = 0.5 * x[index[i]]


@nb.kernel
def weighed(w, x, y):
    i = nb.tid()
    y[i] = w[i] * x[i]


INDEX, X = np.array([2, 0, 1]), np.array([1.5, 2.5, 3.5], np.float32)
MAKERS = {"torch": nb.torch_op, "paddle": nb.paddle_op}


@pytest.fixture(params=MAKERS)
def framework(request):
    pytest.importorskip(request.param)
    return request.param


def given(framework, *arrays):
    return [nb.convert(array.copy(), framework) for array in arrays]


@pytest.mark.parametrize("dtype", [np.int64, np.int32, bool])
def test_an_output_is_not_made_of_the_integers_that_come_before_floats(framework, dtype):
    op = MAKERS[framework](picked, outputs="y", name=f"{framework}_{np.dtype(dtype)}_picked")
    name = np.dtype(dtype).name
    wanted = (
        rf"output 'y': its dtype is not annotated, and the first tensor, 'index', holds \S*{name}, while 'x' holds "
        r"floating-point numbers; annotate it, as in y: nb.array\[float\]"
    )
    for _ in range(3):  # the quick ways have to refuse it too
        with pytest.raises(nb.NumbridgeTypeError, match=wanted):
            op(*given(framework, (INDEX % 2).astype(dtype), X))
    # The same shape has had a launch by now
    assert op(*given(framework, INDEX, INDEX.astype(np.int64))).numpy().tolist() == [0, 1, 0]
    with pytest.raises(nb.NumbridgeTypeError, match=wanted):
        op(*given(framework, (INDEX % 2).astype(dtype), X))


@nb.kernel
def times(x, a, y):
    i = nb.tid()
    y[i] = a * x[i]


@nb.kernel
def times_annotated(x, a: float, y: nb.array[float]):
    i = nb.tid()
    y[i] = a * x[i]


def test_a_number_among_integers(framework):
    op = MAKERS[framework](times, outputs="y", name=f"{framework}_times")
    integers, floats = given(framework, INDEX, X)
    for _ in range(2):
        for number in (0.5, np.float32(0.5), *given(framework, np.array(0.5, np.float32))):
            wanted = "the first tensor, 'x', holds .*int64, while 'a' (is a floating-point number|holds)"
            with pytest.raises(nb.NumbridgeTypeError, match=wanted):
                op(integers, number)
        assert op(integers, 2).numpy().tolist() == [4, 0, 2]
        assert op(floats, 2).numpy().tolist() == op(floats, 2.0).numpy().tolist() == [3, 5, 7]
    op = MAKERS[framework](times_annotated, outputs="y", name=f"{framework}_times_annotated")
    assert op(integers, 0.5).numpy().tolist() == [1, 0, 0.5]


def test_a_number_among_integers_under_jax():
    jnp, f = pytest.importorskip("jax.numpy"), nb.jax_kernel(times)
    for number in (0.5, np.float32(0.5), jnp.float32(0.5)):
        with pytest.raises(
            nb.NumbridgeTypeError, match=r"'y': .*the arguments have 2 different dtypes \(float32, int32\)"
        ):
            f(jnp.arange(3), number)
    assert f(jnp.arange(3), 2)[0].tolist() == [0, 2, 4]
    assert f(jnp.arange(3.0), 2)[0].tolist() == f(jnp.arange(3.0), 2.0)[0].tolist() == [0, 2, 4]
    assert nb.jax_kernel(times_annotated)(jnp.arange(3), 0.5)[0].tolist() == [0, 0.5, 1]


def test_annotated_outputs_and_floats_that_come_first(framework):
    op = MAKERS[framework](picked_singles, outputs="y", name=f"{framework}_picked_singles")
    assert op(*given(framework, INDEX, X)).numpy().tolist() == [1.75, 0.75, 1.25]
    op = MAKERS[framework](weighed, outputs="y", name=f"{framework}_weighed")
    for _ in range(2):
        assert op(*given(framework, X, INDEX)).numpy().tolist() == [3.0, 0.0, 3.5]


def test_tensors_without_data():
    torch = pytest.importorskip("torch")
    op = nb.torch_op(picked, outputs="y", name="meta_picked")
    with pytest.raises(nb.NumbridgeTypeError, match="its dtype is not annotated"):
        op(torch.ones(3, dtype=torch.int64, device="meta"), torch.ones(3, device="meta"))


@nb.kernel
def biased(x, b, y):
    i, j = nb.tid()
    y[i, j] = x[i, j] + b[j]


@nb.kernel
def guarded(x, w, y):
    i = nb.tid()
    y[i] = x[i]
    if i < w.shape[0]:
        y[i] = x[i] * w[i]


def test_an_argument_that_every_thread_overruns(framework):
    op = MAKERS[framework](biased, outputs="y", name=f"{framework}_biased")
    x, b = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    for _ in range(2):  # after a launch the quick ways are taken
        for short in (b[:2], b[:0]):
            wanted = rf"'b': its shape is \({len(short)},\), and each thread of a launch over \(2, 3\) .*: expand it"
            with pytest.raises(nb.NumbridgeValueError, match=wanted):
                op(*given(framework, x, short))
        assert op(*given(framework, x, b)).numpy().tolist() == [[1, 2, 3]] * 2
        assert op(*given(framework, x, np.arange(5, dtype=np.float32))).numpy().tolist() == [[1, 2, 3]] * 2
        assert op(*given(framework, x[:, :0], b[:0])).numpy().shape == (2, 0)


def test_an_argument_that_only_some_threads_read(framework):
    op = MAKERS[framework](guarded, outputs="y", name=f"{framework}_guarded")
    for _ in range(2):
        assert op(*given(framework, X, 2 * X[:1])).numpy().tolist() == [4.5, 2.5, 3.5]


def test_an_output_that_every_thread_overruns(framework):
    op = MAKERS[framework](weighed, outputs="y", output_dims=2, name=f"{framework}_short_weighed")
    for _ in range(2):
        with pytest.raises(
            nb.NumbridgeValueError,
            match=r"'y': its shape is \(2,\), .* over \(3,\) takes y\[i\], .*an output gets the extents of output_dims",
        ):
            op(*given(framework, X, X))


def test_within_jax_too():
    jnp = pytest.importorskip("jax.numpy")
    x, b = jnp.ones((2, 3)), jnp.arange(3.0)
    f = nb.jax_kernel(biased)
    with pytest.raises(
        nb.NumbridgeValueError, match=r"argument 'b': its shape is \(2,\), .* over \(2, 3\) takes b\[j\], so axis 0"
    ):
        f(x, b[:2])
    assert f(x, b)[0].tolist() == [[1, 2, 3]] * 2 and f(x[:, :0], b[:0])[0].shape == (2, 0)
    with pytest.raises(
        nb.NumbridgeValueError, match=r"output 'y': its shape is \(2, 2\), .*takes y\[i, j\], .*or pass output_dims"
    ):
        nb.jax_kernel(biased, output_dims=(2, 2))(x, b)
    assert nb.jax_kernel(guarded)(b, b[:1] + 2.0)[0].tolist() == [0, 1, 2]


@nb.func
def put(place, y, value=1.0, scale=2.0):
    y[place] = value * scale


@numba.njit
def put_by_numba(place, y, scale):
    y[place] = scale


@nb.kernel
def puts(x, y):
    i = nb.tid()
    put(scale=x[i], y=y, place=i)


@nb.kernel
def puts_by_numba(x, y):
    i = nb.tid()
    put_by_numba(i, scale=x[i], y=y)


@pytest.mark.parametrize("kernel", [puts, puts_by_numba], ids=lambda kernel: kernel.name)
def test_what_only_functions_use_as_arrays_is_known_for_such(framework, kernel):
    op = MAKERS[framework](kernel, outputs="y", name=f"{framework}_{kernel.name}")
    assert np.array_equal(op(*given(framework, X)), X)
