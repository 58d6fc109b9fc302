"""Which dtype an operator's output has that is not annotated, and where there is none that would be right."""

from __future__ import annotations

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
