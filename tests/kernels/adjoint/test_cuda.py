"""Adjoints compile for CUDA and reach the driver, without a GPU; what cannot is refused with its place."""

from __future__ import annotations

import ctypes
import re

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from adjoint_as_python import floats_of
from adjoint_cases import CASES, name_of, saxpy
from fake_cuda import cuda_array, fake_cuda, parameter_kinds
from numbridge.kernels.errors import BufferAccessError, DeviceError, KernelUnsupportedError
from numbridge.kernels.geometry import Geometry
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch
from numbridge.kernels.variant import Place


def ptx_of(kernel, arguments, dtype, mode="adjoint"):
    """Return the PTX of a kernel's adjoint or tangent, as a launch over CUDA arrays compiles it."""
    given = [a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in arguments]
    given = [dtype(a) if isinstance(a, float) else a for a in given]
    wanted = floats_of(kernel, arguments)
    places = [p.name for p in kernel.parameters]
    more = [np.zeros(np.shape(given[places.index(name)]), dtype) for name in wanted]
    if mode == "tangent":
        more = [m if m.shape else dtype(1) for m in more]
    return getattr(kernel, mode)(wanted).ptx(*given, *more, capability=(9, 0))


# test_emulated_cuda.py runs the adjoints of all of them in double precision.
@pytest.mark.parametrize("case", CASES[::3], ids=name_of)
def test_adjoint_compiles_to_ptx(case):
    assert ".visible .entry" in ptx_of(case[0], case[2:], np.float32)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_tangent_compiles_to_ptx(case):
    assert ".visible .entry" in ptx_of(case[0], case[2:], np.float32, "tangent")


def test_float64_and_atomics():
    case = next(c for c in CASES if c[0].name == "gather")
    assert re.search(r"atom(\.\w+)*\.add\.f64", ptx_of(case[0], case[2:], np.float64))


@kernel
def decided_before(x, y):
    i = tid()
    u = 0.5
    if u + 0.7 > 0.2 and 1 < 3:
        y[i] = x[i] * y[i] * y[i]
    else:
        y[i] = x[i] * y[i]
    y[i] = y[i] * y[i]


def test_branches_that_are_never_taken():
    x = np.ones(3)
    ptx = decided_before.adjoint(["x", "y"]).ptx(x, x, x, x, capability=(9, 0))
    assert "setp.ge" in ptx and ptx.count("setp") <= 2


@pytest.fixture
def driver():
    with fake_cuda() as fake:
        yield fake


def arrays(*shapes):
    """Return arrays that say that they lie in CUDA memory, one behind the other."""
    return [cuda_array(shape, address=0x7000_0000 + (k << 20)) for k, shape in enumerate(shapes)]


def test_an_adjoint_is_launched_with_its_adjoints_behind_the_arguments(driver):
    x, y, by_x, by_y, by_a = arrays((100,), (100,), (100,), (100,), ())
    launch(saxpy, 100, [x, y, 2.5], adj_inputs=[by_x, by_y, by_a], adjoint=True)
    (done,) = driver.launches
    kinds = [*parameter_kinds([1, 1], [ctypes.c_float], 0), *parameter_kinds([1, 1, 0], [], 1)]
    values = done.values(kinds)
    assert values[4::7][:2] == [0x7000_0000, 0x7010_0000] and values[14] == 2.5
    assert values[15:][4::7] == [0x7020_0000, 0x7030_0000, 0x7040_0000]
    assert values[-1] == 100 and (done.grid, done.block) == ((1, 1, 1), (256, 1, 1))


def test_adjoints_on_cuda_are_checked_as_on_the_cpu(driver):
    x, y, by_x = arrays((100,), (100,), (100,))
    with pytest.raises(DeviceError, match="different devices"):
        launch(saxpy, 100, [x, y, 2.5], adj_inputs=[np.zeros(100, np.float32), by_x, None], adjoint=True)
    with pytest.raises(BufferAccessError, match="'_nb_adj_y' shares memory with the argument 'y'"):
        launch(saxpy, 100, [x, y, 2.5], adj_inputs=[by_x, y, None], adjoint=True)
    assert not driver.launches


@kernel
def curved(x, y):
    i = tid()
    y[i] = x[i] * x[i]


def halves(dtype, *shapes, **more):
    return [cuda_array(shape, dtype, address=0x7000_0000 + (k << 20), **more) for k, shape in enumerate(shapes)]


def told(driver):
    """Return the allocations, launches and frees of a driver, in order: what, and on which stream."""
    return [(c[0], c[-1]) for c in driver.calls if c[0] in ("allocate", "launch", "free")]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_adjoints_of_16_bits_are_added_up_in_float32(driver, dtype):
    curved.adjoint(["x", "y"]).forall(100)(*halves(dtype, *[(100,)] * 4))
    assert [what for what, _ in told(driver)] == ["allocate", "launch"] * 2 + ["launch"] * 3 + ["free"] * 2
    assert {stream for _, stream in told(driver)} == {0}
    assert [c[2] for c in driver.calls if c[0] == "allocate"] == [400, 400]
    blocks = [c[1] for c in driver.calls if c[0] == "allocate"]
    assert {c[1] for c in driver.calls if c[0] == "free"} == {*blocks}
    kinds = parameter_kinds([1, 1], [], 1)
    one, two, *_ = driver.launches
    assert [launched.values(kinds)[4::7] for launched in (one, two)] == [
        [0x7020_0000, blocks[0]],
        [0x7030_0000, blocks[1]],
    ]
    *_, first, second = driver.launches
    back = [launched.values(kinds)[4::7] for launched in (first, second)]
    assert back == [[blocks[0], 0x7020_0000], [blocks[1], 0x7030_0000]]
    assert one.kernel == two.kernel != first.kernel == second.kernel


def test_adjoints_of_16_bits_may_be_strided(driver):
    x, y, other = halves(np.float16, *[(100,)] * 3)
    strided = cuda_array((100,), np.float16, address=0x7A00_0000, strides=(3,))
    curved.adjoint(["x", "y"]).forall(100)(x, y, strided, other)
    values = driver.launches[0].values(parameter_kinds([1, 1], [], 1))
    assert values[4] == 0x7A00_0000 and values[6] == 6 and values[13] == 4
    rows = cuda_array((4, 5), np.float16, address=0x7A00_0000, strides=(9, 1))
    *arrays, other = halves(np.float16, *[(4, 5)] * 3)
    flat_rows.adjoint(["x", "y"]).forall((4, 5))(*arrays, rows, other)
    values = driver.launches[-5].values(parameter_kinds([2, 2], [], 2))
    assert values[4:9] == [0x7A00_0000, 4, 5, 18, 2]
    deep = halves(np.float16, *[(1, 1, 1, 1, 2)] * 4)
    with pytest.raises(KernelUnsupportedError, match=r"argument '_nb_adj_x'.*on CUDA it may have up to 4 dimensions"):
        launch(flat_rows_5d, 2, deep[:2], adj_inputs=deep[2:], adjoint=True)


@kernel
def flat_rows_5d(x, y):
    i = tid()
    y[0, 0, 0, 0, i] = x[0, 0, 0, 0, i] * x[0, 0, 0, 0, i]


@kernel
def flat_rows(x, y):
    i, j = tid()
    y[i, j] = x[i, j] * x[i, j]


def test_adjoints_of_16_bits_follow_the_stream_that_is_named(driver):
    x, y, by_x, by_y = halves(np.float16, *[(100,)] * 4)
    geometry = Geometry((100,), (256, 1, 1), (1, 1, 1), (256, 1, 1), (1, 1, 1), Place(), 0x99)
    curved.adjoint(["x", "y"]).over(geometry)(x, y, by_x, by_y)
    assert {stream for _, stream in told(driver)} == {0x99} and len(told(driver)) == 9
    assert not [call for call in driver.calls if call[0] == "wait"]


def test_memory_in_between_is_of_the_stream_of_its_adjoint(driver):
    x, y, by_x, by_y = halves(np.float16, *[(100,)] * 4, stream=0x77)
    curved.adjoint(["x", "y"]).forall(100)(x, y, by_x, by_y)
    calls = [c for c in driver.calls if c[0] in ("allocate", "record", "wait", "launch", "free")]
    assert [c[0] for c in calls] == [*("allocate", "launch") * 2, *["launch"] * 3, *["free"] * 2]
    assert {c[-1] for c in calls} == {0x77}


def test_memory_in_between_is_ordered_with_the_current_stream(driver):
    function = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(lambda ordinal: 0x99)
    driver.follow(ctypes.cast(function, ctypes.c_void_p).value)
    x, y, by_x, by_y = halves(np.float16, *[(100,)] * 4, stream=0x77)
    curved.adjoint(["x", "y"]).forall(100)(x, y, by_x, by_y)
    calls = [(c[0], c[1] if c[0] == "wait" else c[-1]) for c in driver.calls if c[0] in ("wait", "launch")]
    assert calls == [("wait", 0x99), ("launch", 0x99), ("wait", 0x77)] * 5
    assert {call[-1] for call in driver.calls if call[0] in ("allocate", "free")} == {0x77}


def test_memory_in_between_is_given_back_when_a_launch_fails(driver):
    driver.fail["launch"] = 700
    x, y, by_x, by_y = halves(np.float16, *[(100,)] * 4)
    with pytest.raises(DeviceError, match="refused the launch"):
        curved.adjoint(["x", "y"]).forall(100)(x, y, by_x, by_y)
    calls = [c[0] for c in driver.calls]
    assert calls.count("allocate") == calls.count("free") == 1


@kernel
def strided(x, y, n):
    start = cuda.grid(1)
    for k in range(start, n, cuda.gridsize(1)):
        y[k] = x[k] * x[k]


def test_grid_stride_loops():
    x = np.ones(4, np.float32)
    ptx = strided.adjoint(["x", "y"]).ptx(x, x, 4, x, x, capability=(9, 0), plain=True)
    assert "%nctaid.x" in ptx
