"""The vector types of numba.cuda, `cuda.float32x2` and its siblings: on the CPU what they are on CUDA, with derivatives."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda.vector_types import vector_types

import numbridge as nb
from adjoint_programs import declared
from emulated_cuda import on_both
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.language.vector_types import VECTOR_TYPES, scalar_name
from numbridge.kernels.launch import launch

CAPABILITY = (9, 0)
SCALARS = sorted({scalar_name(vector) for vector in VECTOR_TYPES.values()})


def test_all_types_are_there():
    assert [*VECTOR_TYPES] == [*vector_types]
    assert all(vector._fields == vector_types[name].attr_names for name, vector in VECTOR_TYPES.items())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scalar", SCALARS)
def test_construction(scalar):
    v1, v2, v3, v4 = (f"cuda.{scalar}x{count}" for count in range(1, 5))
    lines = [
        f"one = {v1}(x[i])",
        f"two = {v2}(one, x[i] + 1)",
        f"three = {v3}(two, 7)",
        f"four = {v4}(one, two, True)",
        f"all = {v4}(three.z, {v3}(three))",
        f"more = {v4}(two, {v2}(2.75, one))",
    ]
    sizes = {"one": 1, "two": 2, "three": 3, "four": 4, "all": 4, "more": 4}
    stored = [f"{name}.{axis}" for name, size in sizes.items() for axis in "xyzw"[:size]]
    lines += [f"y[i, {k}] = {value}" for k, value in enumerate(stored)]
    made = declared("\n    ".join(["def calls(x, y):", "i = tid()", *lines]), kernel, cuda=cuda)
    x = np.array([1, 100, -2.5, 40])
    x = np.abs(x) if scalar.startswith("u") else x
    here, there = on_both(made, 4, [x, np.zeros((4, len(stored)))])
    np.testing.assert_array_equal(here, there)
    with np.errstate(all="ignore"):
        a, b, last = (
            x.astype(np.int64).astype(scalar),
            (x + 1).astype(np.int64).astype(scalar),
            np.array(2).astype(scalar),
        )
    if scalar.startswith("float"):
        a, b, last = x.astype(scalar), (x + 1).astype(scalar), 2.75
    wanted = [a, a, b, a, b, 7, a, a, b, 1, 7, a, b, 7, a, b, last, a]
    np.testing.assert_array_equal(here, np.stack([np.broadcast_to(column, 4) for column in wanted], 1))


@nb.func
def turned(v, w):
    return cuda.float32x4(v.w, cuda.float2(v.x, v.y), w)


@kernel
def turns(x, y):
    i = tid()
    v = cuda.float4(x[i], x[i] * x[i], 1, 2.5)
    if x[i] > 0:
        v = cuda.float4(cuda.float3(v.x, v.y, v.z), 2 * x[i])
    for _ in range(2):
        v = turned(v, v.z)
    y[i] = v.x + 2 * v.y * v.x + 3 * v.z + 4 * v.w


def turned_by_numpy(x):
    v = [x, x * x, np.ones_like(x), np.where(x > 0, 2 * x, 2.5)]
    for _ in range(2):
        v = [v[3], v[0], v[1], v[2]]
    return v[0] + 2 * v[1] * v[0] + 3 * v[2] + 4 * v[3]


X = np.linspace(-1, 1, 40).astype(np.float32)


def test_in_functions_and_loops():
    here, there = on_both(turns, 40, [X, np.zeros_like(X)])
    np.testing.assert_allclose(here, turned_by_numpy(X), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(there, here, rtol=1e-6, atol=1e-6)


def test_derivatives():
    by_x = np.zeros_like(X)
    turns.adjoint(["x", "y"]).forall(40)(X, np.zeros_like(X), by_x, np.ones_like(X))
    wide = X.astype(np.float64)
    slope = (turned_by_numpy(wide + 1e-6) - turned_by_numpy(wide - 1e-6)) / 2e-6
    np.testing.assert_allclose(by_x, slope, rtol=1e-5, atol=1e-5)
    assert turns.adjoint(["x", "y"]).cubin(X, X, X, X, capability=CAPABILITY)


@kernel
def exchanged(x, y):
    i, t = cuda.grid(1), cuda.threadIdx.x
    shared = cuda.shared.array(4, nb.float32)
    v = cuda.float2(x[i], 3 * x[i])
    shared[t] = v.x
    cuda.syncthreads()
    if t > 0:
        v = cuda.float2(shared[t - 1], v.y)
    cuda.syncthreads()
    y[i] = v.x * v.y


def test_vectors_of_threads_that_work_together():
    x = np.arange(1, 9, dtype=np.float32)
    wanted = np.where(np.arange(8) % 4, np.roll(x, 1), x) * 3 * x
    here, by_x = np.zeros_like(x), np.zeros_like(x)
    exchanged[2, 4](x, here)
    np.testing.assert_array_equal(here, wanted)
    exchanged.adjoint(["x", "y"])[2, 4](x, here, by_x, np.ones_like(x))
    before = np.where(np.arange(8) % 4, np.roll(3 * x, 1), 3 * x)
    after = np.where(np.arange(8) % 4 == 3, 0, np.roll(3 * x, -1))
    np.testing.assert_allclose(by_x, before + after + np.where(np.arange(8) % 4, 0, 3 * x))


@kernel
def narrowed(x, y):
    i = tid()
    y[i] = x[i] * cuda.float2(x[i], 0).x + cuda.int2(x[i], 3).x * cuda.double1(x[i]).x


def test_derivatives_through_conversions():
    x, by_x = np.array([1.5, -2.25, 3.75]), np.zeros(3)
    narrowed.adjoint(["x", "y"]).forall(3)(x, np.zeros(3), by_x, np.ones(3))
    np.testing.assert_array_equal(by_x, 2 * x + np.trunc(x))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y[i] = cuda.float2(x[i]).x", r"(?s)cuda\.float32x2 is made of 2 numbers, or of vectors of float32.*\^"),
        ("y[i] = cuda.float2(cuda.double1(x[i]), x[i]).x", r"cuda\.float32x2 is made of 2 numbers"),
        ("y[i] = cuda.float2(x, x[i]).x", r"cuda\.float32x2 is made of 2 numbers"),
        ("y[i] = cuda.float2(x=x[i], y=x[i]).x", r"cuda\.float32x2 takes its arguments by position"),
        ("y[i] = cuda.float2(x[i], x[i]).z", r"(?s)\bz\b.*\^"),
        ("v = cuda.float2(x[i], x[i])\n    v.x = 3.0", r"(?s)\bx\b.*\^"),
        ("v = cuda.local.array(2, cuda.float2)\n    y[i] = v[0].x", r"(?s)a dtype such as numpy.float32.*\^"),
    ],
)
def test_mistakes(line, message):
    made = declared(f"def calls(x, y):\n    i = tid()\n    {line}", kernel, cuda=cuda)
    with pytest.raises(nb.KernelError, match=message):
        launch(made, 1, [np.ones(1), np.ones(1)])
    with pytest.raises(nb.KernelError):
        made.ptx(np.ones(1), np.ones(1), capability=CAPABILITY)


def test_mistakes_in_derivatives():
    made = declared("def calls(x, y):\n    i = tid()\n    y[i] = cuda.float2(x[i]).x", kernel, cuda=cuda)
    with pytest.raises(nb.KernelError, match=r"(?s)cuda\.float32x2 is made of 2 numbers, or of vectors.*\^"):
        made.adjoint(["x", "y"]).forall(1)(*[np.ones(1) for _ in range(4)])
