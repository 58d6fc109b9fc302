"""`cuda.ldcg` and its siblings: loads and stores with hints for a GPU's caches, which are loads and stores on the CPU."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda import ldca, stwb

import numbridge as nb
from adjoint_programs import declared
from emulated_cuda import on_both
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch

LOADS, STORES = ("ldca", "ldcg", "ldcs", "ldlu", "ldcv"), ("stcg", "stcs", "stwb", "stwt")
CAPABILITY = (9, 0)


def moving(load, store):
    return declared(
        f"def moves(x, y):\n    i = tid()\n    cuda.{store}(y, (i, 1), 2 * cuda.{load}(x, i))", kernel, cuda=cuda
    )


@kernel
def by_their_names(x, y):
    i = tid()
    stwb(y, -1 - i, ldca(x, i) if i > 0 else x[i])


@pytest.mark.parametrize(("load", "store"), list(zip(LOADS, (*STORES, "stcg"), strict=True)))
def test_loads_and_stores(load, store):
    made = moving(load, store)
    x = np.arange(1.0, 6)
    here, there = on_both(made, 5, [x, np.zeros((5, 2))])
    np.testing.assert_array_equal(here, np.stack([0 * x, 2 * x], 1))
    np.testing.assert_array_equal(there, here)
    text = made.ptx(x, here, capability=CAPABILITY)
    assert f"ld.global.{load[2:]}.b64" in text and f"st.global.{store[2:]}.b64" in text


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "float16", "float32", "bool"])
def test_types(dtype):
    x = np.array([1, 0, 3, 1]).astype(dtype)
    here, there = on_both(by_their_names, 4, [x, np.zeros_like(x)])
    np.testing.assert_array_equal(here, x[::-1])
    np.testing.assert_array_equal(there, x[::-1])


def test_what_is_stored_to_is_written():
    x, y = np.ones(3), np.zeros(3)
    x.flags.writeable = False
    launch(by_their_names, 3, [x, y])
    y.flags.writeable = False
    with pytest.raises(nb.BufferAccessError, match="'y'"):
        launch(by_their_names, 3, [x, y])


def test_extents_are_checked():
    with pytest.raises(ValueError, match=r"parameter 'y': its shape is \(4, 2\)"):
        launch(moving("ldcg", "stcs"), 5, [np.ones(5), np.ones((4, 2))])
    with pytest.raises(ValueError, match=r"parameter 'x': its shape is \(4,\)"):
        launch(moving("ldcg", "stcs"), 5, [np.ones(4), np.ones((5, 2))])


@nb.func
def squared(x, i):
    found = cuda.ldcs(x, i)
    return found * found


@kernel
def squares(x, y):
    i = tid()
    cuda.stcg(y, i, squared(x, i))


def test_derivatives():
    x, by_x = np.array([1.0, -2, 3]), np.zeros(3)
    squares.adjoint(["x", "y"]).forall(3)(x, np.zeros(3), by_x, np.ones(3))
    np.testing.assert_array_equal(by_x, 2 * x)
    assert squares.adjoint(["x", "y"]).cubin(x, x, x, x, capability=CAPABILITY)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y[i] = cuda.ldca(x)", r"(?s)cuda\.ldca\(array, index\) takes 2 arguments by position.*\^"),
        ("y[i] = cuda.ldca(array=x, i=i)", r"cuda\.ldca\(array, index\) takes 2 arguments by position"),
        ("cuda.stwt(y, i)", r"cuda\.stwt\(array, index, value\) takes 3 arguments by position"),
        ("y[i] = cuda.stwt(y, i, 1)", r"(?s)returns nothing; make a statement of it.*\^"),
    ],
)
def test_mistakes(line, message):
    with pytest.raises(nb.KernelError, match=message):
        launch(declared(f"def calls(x, y):\n    i = tid()\n    {line}", kernel, cuda=cuda), 1, [np.ones(1)] * 2)


@kernel
def followed(x, y):
    i = tid()
    while cuda.ldcg(x, i) > i:
        i = x[i]
    y[i] = 1


@kernel
def waits(x, y):
    i = tid()
    while cuda.ldcv(x, 0) == 0:
        y[i] += 1


def test_loops():
    here, there = on_both(followed, 1, [np.array([2, 1, 3, 3]), np.zeros(4)])
    assert here.tolist() == there.tolist() == [0, 0, 0, 1]
    with pytest.raises(nb.KernelUnsupportedError, match=r"(?s)waits by cuda\.ldcv, .* may never end there; ask by.*\^"):
        launch(waits, 1, [np.zeros(1), np.zeros(1)])


def test_hints_by_another_name():
    cached = cuda.ldca

    @kernel
    def loads(x, y):
        i = tid()
        y[i] = cached(x, i)

    assert loads.ptx(np.ones(1), np.ones(1), capability=CAPABILITY)
    with pytest.raises(nb.KernelUnsupportedError, match=r"(?s)the CPU knows cuda\.ldca by that name only.*\^"):
        launch(loads, 1, [np.ones(1), np.ones(1)])


@kernel
def rows(x, y):
    i = tid()
    cuda.stcg(y, i, cuda.ldca(x, i))


@kernel
def places(x, y):
    place = cuda.grid(2)
    cuda.stcg(y, place, cuda.ldca(x, place))


def test_one_index_for_each_dimension():
    x = np.ones((2, 2))
    for given, name in (([x, x[0].copy()], "x"), ([x[0], x.copy()], "y")):
        with pytest.raises(nb.KernelError, match=rf"(?s)needs 2 indices of {name}, one for each dimension.*\^"):
            launch(rows, 2, given)
        with pytest.raises(nb.KernelError, match=rf"needs 2 indices of {name}, one for each"):
            rows.ptx(*given, capability=CAPABILITY)
    here, there = on_both(places, (2, 2), [x, np.zeros((2, 2))])
    assert np.all(here == 1) and np.all(there == 1)


def test_what_cuda_has_no_hints_for():
    with pytest.raises(nb.KernelError, match=r"cuda\.ldca takes an array of numbers, got"):
        rows.ptx(*(nb.zeros(2, nb.vec3, device="cpu") for _ in range(2)), capability=CAPABILITY)
