"""Adjoints compile to PTX and cubins for CUDA, without a GPU; what cannot is refused with its place."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numba import cuda

from adjoint_cases import CASES, name_of, saxpy
from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.kernel import kernel

CAPABILITY = (9, 0)


def derivative_of(mode, kernel, arguments, dtype):
    """Return a kernel's adjoint or tangent by all its floating arrays, and arguments for it."""
    narrow = [a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in arguments]
    pairs = zip(kernel.parameters, narrow, strict=True)
    arrays = {p.name: a for p, a in pairs if isinstance(a, np.ndarray) and a.dtype.kind == "f"}
    return getattr(kernel, mode)([*arrays]), [*narrow, *map(np.zeros_like, arrays.values())]


def ptx_of(kernel, arguments, dtype):
    derivative, given = derivative_of("adjoint", kernel, arguments, dtype)
    return derivative.ptx(*given, capability=CAPABILITY)


STACKED = {"squares_in_a_loop", "prefix_products", "in_place_nested", "local_memory"}


@pytest.mark.parametrize("case", [c for c in CASES if c[0].name not in STACKED], ids=name_of)
def test_adjoint_compiles_to_a_cubin(case):
    derivative, given = derivative_of("adjoint", case[0], case[2:], np.float32)
    assert ".visible .entry" in derivative.ptx(*given, capability=CAPABILITY)
    assert derivative.cubin(*given, capability=CAPABILITY).startswith(b"\x7fELF")


@pytest.mark.parametrize("case", CASES[::6], ids=name_of)
def test_tangent_compiles_to_a_cubin(case):
    derivative, given = derivative_of("tangent", case[0], case[2:], np.float64)
    assert derivative.cubin(*given, capability=CAPABILITY).startswith(b"\x7fELF")


def test_float64_and_atomics():
    case = next(c for c in CASES if c[0].name == "gather")
    assert re.search(r"atom(\.\w+)*\.add\.f64", ptx_of(case[0], case[2:], np.float64))


@pytest.mark.parametrize("name", sorted(STACKED))
def test_what_needs_a_stack_is_refused(name):
    case = next(c for c in CASES if c[0].name == name)
    with pytest.raises(KernelUnsupportedError, match=r"overwrites.*\n.*adjoint_cases.py:\d+:\d+\n"):
        ptx_of(case[0], case[2:], np.float64)


def test_gradients_by_numbers_are_refused():
    x, y = np.ones(3), np.ones(3)
    with pytest.raises(KernelUnsupportedError, match=r"gradients by numbers \('a'\).*arrays of one element"):
        saxpy.adjoint(["x", "y", "a"]).ptx(x, y, 2.0, x, y, np.zeros(()), capability=CAPABILITY)


@kernel
def strided(x, y, n):
    start = cuda.grid(1)
    for k in range(start, n, cuda.gridsize(1)):
        y[k] = x[k] * x[k]


def test_grid_stride_loops():
    x = np.ones(4, np.float32)
    ptx = strided.adjoint(["x", "y"]).ptx(x, x, 4, x, x, capability=CAPABILITY, plain=True)
    assert "%nctaid.x" in ptx
