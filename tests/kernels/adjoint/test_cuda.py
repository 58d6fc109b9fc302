"""Adjoints compile for CUDA and reach the driver, without a GPU; what cannot is refused with its place."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
from numba import cuda

from adjoint_as_python import floats_of
from adjoint_cases import CASES, name_of, prefix_products, saxpy
from fake_cuda import cuda_array, fake_cuda, parameter_kinds
from numbridge.kernels.errors import BufferAccessError, DeviceError, KernelUnsupportedError
from numbridge.kernels.kernel import kernel
from numbridge.kernels.launch import launch


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


STACKED = {"squares_in_a_loop", "prefix_products", "in_place_nested", "local_memory"}


@pytest.mark.parametrize("case", [c for c in CASES if c[0].name not in STACKED], ids=name_of)
def test_adjoint_compiles_to_ptx(case):
    assert ".visible .entry" in ptx_of(case[0], case[2:], np.float32)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_tangent_compiles_to_ptx(case):
    assert ".visible .entry" in ptx_of(case[0], case[2:], np.float32, "tangent")


def test_float64_and_atomics():
    case = next(c for c in CASES if c[0].name == "gather")
    assert re.search(r"atom(\.\w+)*\.add\.f64", ptx_of(case[0], case[2:], np.float64))


@pytest.mark.parametrize("name", sorted(STACKED))
def test_what_needs_a_stack_is_refused(name):
    case = next(c for c in CASES if c[0].name == name)
    with pytest.raises(KernelUnsupportedError, match=r"overwrites.*\n.*adjoint_cases.py:\d+:\d+\n"):
        ptx_of(case[0], case[2:], np.float64)


@pytest.fixture
def driver():
    with fake_cuda() as fake:
        yield fake


def arrays(*shapes):
    """Return arrays that say that they lie in CUDA memory, one behind the other."""
    return [cuda_array(shape, address=0x7000_0000 + (k << 20)) for k, shape in enumerate(shapes)]


def test_an_adjoint_is_launched_with_its_adjoints_behind_the_arguments(driver):
    x, y, by_x, by_y, by_a = arrays((100,), (100,), (100,), (100,), ())
    driver.parameters = 5 * 7 - 2 + 1 + 1
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
    x, y, by_x, by_y = arrays((5,), (5,), (5,), (5,))
    with pytest.raises(KernelUnsupportedError, match="overwrites"):
        launch(prefix_products, 1, [x, y], adj_inputs=[by_x, by_y], adjoint=True)
    assert not driver.launches


@kernel
def strided(x, y, n):
    start = cuda.grid(1)
    for k in range(start, n, cuda.gridsize(1)):
        y[k] = x[k] * x[k]


def test_grid_stride_loops():
    x = np.ones(4, np.float32)
    ptx = strided.adjoint(["x", "y"]).ptx(x, x, 4, x, x, capability=(9, 0), plain=True)
    assert "%nctaid.x" in ptx
