"""Kernels launched on the CPU over NumPy memory: forms of launch, types, indices, weak literals, refusals."""

from __future__ import annotations

import importlib.util
import math
import pickle
import re
from copy import copy as shallow
from copy import deepcopy
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, njit
from numba.core import config as numba_config

from numbridge.kernels.annotations import array1d, array2d
from numbridge.kernels.errors import (
    BufferAccessError,
    ConversionError,
    DeviceError,
    KernelError,
    KernelUnsupportedError,
    NumbridgeError,
    NumbridgeTypeError,
    NumbridgeValueError,
)
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.intrinsics import (
    atomic_add,
    atomic_cas,
    atomic_exch,
    atomic_max,
    atomic_min,
    atomic_sub,
    tid,
)
from numbridge.kernels.language.source import FunctionSource
from numbridge.kernels.launch import Launch, launch
from numbridge.kernels.variant import MASKED, variants_of


@kernel
def saxpy(x, y, a):
    i = tid()
    y[i] = a * x[i] + y[i]


@func
def squared(value):
    return 0.5 * value * value


@kernel
def annotated(x: array1d[float], out: array2d[float], count: int, scale: float):
    i = tid()
    out[i, 0] = x[i] * scale + count


@kernel
def indices4(out):
    i, j, k, m = tid()
    out[i, j, k, m] = 1000 * i + 100 * j + 10 * k + m + 1


@kernel
def indices3(out):
    i, j, k = tid()
    out[i, j, k] += 100 * i + 10 * j + k + 1


@kernel
def indices2(out):
    i, j = cuda.grid(2)
    out[i, j] += 10 * i + j + 1


@kernel
def histogram(values, counts):
    atomic_add(counts, values[tid()], 1)


@kernel
def literals(x, out):
    i = tid()
    out[i] = squared(x[i]) + math.pi


@kernel
def looped(x, out):
    i = tid()
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k]
    out[i] = total


@kernel
def negative(x, out):
    i = tid()
    out[-1 - i] = x[-1 - i]


def ones(n=8, dtype=np.float32):
    return np.ones(n, dtype), np.full(n, 3, dtype)


def test_launch_writes_into_the_very_memory():
    x, y = ones()
    launch(saxpy, 8, [x], [y, 2.0])
    assert (y == 5).all()
    saxpy.forall(8)(x, y, 2.0)
    assert (y == 7).all()
    saxpy[2, 4](x, y, 1.0)
    assert (y == 8).all()
    launch(saxpy, dim=(3,), inputs=[x, y, 1.0], device="cpu")
    assert (y == [9, 9, 9, 8, 8, 8, 8, 8]).all()


def test_dim_zero_runs_nothing_and_still_checks_its_arguments():
    x, y = ones()
    launch(saxpy, 0, [x, y, 2.0])
    assert (y == 3).all()
    with pytest.raises(NumbridgeTypeError):
        launch(saxpy, 0, [x, y])


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (3, 1, 2, 1), (0, 2, 2, 2), (7, 1, 1, 300)])
def test_four_indices(shape):
    out = np.zeros(shape, np.int64)
    launch(indices4, shape, [out])
    i, j, k, m = np.indices(shape)
    assert (out == 1000 * i + 100 * j + 10 * k + m + 1).all()


@pytest.mark.parametrize("shape", [(40, 50, 60), (1, 130000, 1), (130000, 1, 1), (2, 1, 70001), (3, 5, 7)])
def test_every_thread_runs_once_however_the_work_is_shared(shape):
    out = np.zeros(shape, np.int64)
    launch(indices3, shape, [out])
    i, j, k = np.indices(shape)
    assert (out == 100 * i + 10 * j + k + 1).all()


@pytest.mark.parametrize("shape", [(300, 400), (1, 200001), (200001, 1), (257, 513)])
def test_two_indices_from_cuda_grid(shape):
    out = np.zeros(shape, np.int64)
    launch(indices2, shape, [out])
    i, j = np.indices(shape)
    assert (out == 10 * i + j + 1).all()


def test_ids_past_dim_do_not_run():
    out = np.zeros((4, 6), np.int64)
    launch(indices2, (2, 3), [out])
    assert (out[2:] == 0).all() and (out[:, 3:] == 0).all() and (out[:2, :3] > 0).all()


def test_numba_form_masks_nothing_and_registers_match():
    @kernel
    def registers(out):
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = cuda.blockIdx.x, cuda.threadIdx.x, cuda.gridDim.x, cuda.gridsize(1)

    out = np.full((12, 4), -1, np.int64)
    registers[3, 4](out)
    assert (out[:, 0] == np.arange(12) // 4).all() and (out[:, 1] == np.arange(12) % 4).all()
    assert (out[:, 2] == 3).all() and (out[:, 3] == 12).all()


def test_grid_stride_loop():
    @kernel
    def stride(x, out):
        for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
            out[i] = 2 * x[i]

    x, out = np.arange(1000.0), np.zeros(1000)
    stride[2, 32](x, out)
    assert (out == 2 * x).all()


def test_existing_cuda_jit_function():
    @cuda.jit
    def double(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = 2.0 * x[i]

    wrapped = kernel(double)
    x, out = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    wrapped[1, 64](x, out)
    assert (out == 2 * x).all()


def test_local_arrays_and_device_functions_of_numba():
    @njit
    def cubed(v):
        return v * v * v

    @kernel
    def local(x, out):
        i = tid()
        scratch = cuda.local.array((2, 2), np.float32)
        for k in range(4):
            scratch[k // 2, k % 2] = x[i] + k
        out[i] = cubed(scratch[0, 1] + scratch[1, 1])

    x, out = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    launch(local, 300, [x, out])
    assert np.allclose(out, (2 * x + 4) ** 3)


CACHED_BY_NUMBA = """
from numba import njit

@njit(cache=True)
def weighted(values, weight):
    total = 0.0
    for k, value in enumerate(values):
        total += (k >> 1) * weight * value
    return total
"""


def imported_anew(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_that_numba_has_in_its_own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_config, "CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "cached_by_numba.py"
    file.write_text(CACHED_BY_NUMBA)
    x, y = np.arange(4.0), np.zeros(4)
    assert imported_anew(file).weighted(x, 2.0) == 10
    weighted = imported_anew(file).weighted

    @kernel
    def uses_it(x, y, weight):
        i = tid()
        y[i] = weighted(x, weight)

    assert weighted(x, 2.0) == 10
    assert weighted.stats.cache_hits
    launch(uses_it, 4, [x, y, 3.0])
    assert (y == 15).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_of_every_width(dtype):
    x, y = np.arange(8).astype(dtype), np.full(8, 3, dtype)
    launch(saxpy, 8, [x, y, 2])
    assert (y == 2 * np.arange(8) + 3).all() and y.dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_floating_types(dtype):
    x, y = np.arange(8).astype(dtype), np.full(8, 3, dtype)
    launch(saxpy, 8, [x, y, 2.5])
    assert (y == 2.5 * np.arange(8) + 3).all()


@pytest.mark.parametrize("number", [np.float16(2), np.float32(2), np.float64(2), np.int8(2), np.uint64(2), True + True])
def test_numpy_scalars(number):
    x, y = ones()
    launch(saxpy, 8, [x, y, number])
    assert (y == 5).all()
    refused(NumbridgeTypeError, "'a'.*is no array", lambda: launch(saxpy, 8, [x, y, np.str_("2")]), y)
    refused(NumbridgeTypeError, "from_dlpack", lambda: launch(saxpy, 8, [x.__dlpack__(), y, 2.0]), y)


def test_half_precision_is_computed_in_float32():
    half = np.ones(8, np.float16)
    launch(saxpy, 8, [half, half, 2.0])
    assert (half == 3).all()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_are_made_of_two(dtype):
    @kernel
    def make(x, out):
        i = tid()
        out[i] = complex(x[i].imag, 2) * complex(0.1, -1) + complex(x[i])

    x, out = np.array([1 + 2j, -3j]).astype(dtype), np.zeros(2, dtype)
    launch(make, 2, [x, out])
    real = dtype(0).real.dtype.type
    wanted = (x.imag + 2j) * dtype(complex(real(0.1), -1)) + x
    np.testing.assert_allclose(out, wanted, rtol=1e-6 if dtype == np.complex64 else 1e-15)


def test_complex_scalars():
    x, y = np.arange(8).astype(np.complex64), np.zeros(8, np.complex64)
    launch(saxpy, 8, [x, y, 2 + 1j])
    assert (y == (2 + 1j) * np.arange(8)).all()


def test_booleans():
    @kernel
    def invert(x, out, flag):
        i = tid()
        out[i] = x[i] != flag

    x, out = np.array([True, False, True]), np.zeros(3, np.bool_)
    launch(invert, 3, [x, out, True])
    assert (out == ~x).all()


def test_literals_take_the_kernels_floating_type():
    for dtype in (np.float32, np.float64):
        x, out = np.linspace(0, 1, 50).astype(dtype), np.zeros(50, dtype)
        launch(literals, 50, [x, out])
        half, pi = dtype(0.5), dtype(math.pi)
        assert (out == half * x * x + pi).all()
    report = literals.explain(np.zeros(3, np.float32), np.zeros(3, np.float32))
    assert report.variant.weak_float == "float32" and report.float64_lines == ()
    assert "_nb_float32(0.5)" in report.source


def test_explain_shows_where_float64_remains():
    @kernel
    def silent(x, out):
        i = tid()
        out[i] = 0.5 + i * x[i]

    report = silent.explain(np.zeros(3, np.float32), np.zeros(3, np.float32))
    assert repr(report) == str(report)  # what prompts and notebooks show
    assert report.float64_lines == ("out[i] = 0.5 + i * x[i]",)
    assert "float64 arithmetic remains" in str(report) and "x: float32[::1]" in str(report)


def test_strided_reversed_broadcast_and_offset_views():
    base = np.arange(40, dtype=np.float32)
    for view in (base[::2], base[::-2], base[5:25], np.broadcast_to(np.float32(7), (20,))):
        out = np.zeros(20, np.float32)
        launch(saxpy, 20, [view, out, 1.0])
        assert (out == view).all()
    target = np.zeros(40, np.float32)
    launch(saxpy, 20, [base[:20], target[::-2], 1.0])
    assert (target[::-2] == base[:20]).all() and (target[::2] == 0).all()


def test_scalars_and_arrays_of_rank_zero_and_sixteen():
    @kernel
    def point(x, out):
        out[()] = x[()] + 1

    x, out = np.array(4.0), np.array(0.0)
    launch(point, 1, [x, out])
    assert out == 5
    deep, total = np.ones((1,) * 15 + (3,), np.float32), np.zeros(1, np.float32)

    @kernel
    def many(x, total):
        total[0] = x[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]

    launch(many, 1, [deep, total])
    assert total[0] == 1


def test_empty_arrays():
    launch(looped, 0, [np.zeros(0, np.float32), np.zeros(0, np.float32)])
    out = np.full(3, 9.0, np.float32)
    launch(looped, 3, [np.zeros(0, np.float32), out])
    assert (out == 0).all()


def test_negative_indices_wrap():
    x, out = np.arange(5.0), np.zeros(5)
    launch(negative, 5, [x, out])
    assert (out == x).all()
    counts = np.zeros(4, np.int64)
    launch(histogram, 4, [np.array([-1, -1, -2, 0]), counts])
    assert counts.tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
def test_atomics(dtype):
    @kernel
    def atomics(values, out, old):
        i = tid()
        atomic_add(out, 0, values[i])
        atomic_sub(out, 1, values[i])
        atomic_min(out, 2, values[i])
        atomic_max(out, 3, values[i])
        cuda.atomic.add(out, 4, values[i])
        if i == 7:
            old[0] = atomic_exch(out, 5, values[i])
            old[1] = atomic_cas(out, 6, values[0], values[i])
            old[2] = atomic_cas(out, 7, values[0], values[i])

    values = np.arange(100_000).astype(dtype) % 50
    out = np.array([0, 5000000, 100, 0, 1, 3, 0, 1], dtype)
    old = np.zeros(3, dtype)
    launch(atomics, values.size, [values, out, old])
    total = values.astype(np.int64).sum()
    assert out.tolist() == [total, 5000000 - total, 0, 49, total + 1, 7, 7, 1]
    assert old.tolist() == [3, 0, 1]


@kernel
def at_places_of_one_number(x, place):
    i = tid()
    atomic_add(x, (i,), 1.0)
    cuda.atomic.add(x, (i,), 1.0)
    alone = (place,)
    atomic_max(x, alone, 9.0)
    atomic_add(x, (-1,), 0.5)


def test_atomics_at_an_index_that_is_a_tuple_of_one_number():
    x = np.zeros(5)
    launch(at_places_of_one_number, 3, [x, 3])
    assert x.tolist() == [2, 2, 2, 9, 1.5]
    assert "atom" in at_places_of_one_number.ptx(x, 3, capability=(9, 0))


def test_atomics_in_two_dimensions():
    @kernel
    def rows(matrix, sums):
        i, j = tid()
        atomic_add(sums, i, 0, matrix[i, j])

    matrix, sums = np.ones((300, 400), np.float32), np.zeros((300, 1), np.float32)
    launch(rows, matrix.shape, [matrix, sums])
    assert (sums == 400).all()


def test_one_launcher_serves_every_type():
    run = saxpy.forall(8)
    for dtype in (
        np.float32,
        np.int16,
        np.float64,
        np.float32,
        np.complex64,
        np.int16,
        np.uint8,
        np.int8,
        np.int64,
        np.int32,
    ):
        for step in (1, 2):
            x, y = np.ones(16, dtype)[::step], np.ones(16, dtype)[::step]
            run(x, y, 2)
            assert (y[:8] == 3).all()


def test_warps_names_of_a_recorded_launch():
    x, y = ones()
    command = launch(saxpy, 8, [x, y, 0.0], record_cmd=True)
    command.set_params_from_ctypes([y, x, 1.0])
    command.set_param_at_index_from_ctype(2, 2.0)
    command.set_param_by_name_from_ctype("y", y)
    command.set_param_by_name_from_ctype("x", x)
    command.launch()
    assert (y == 5).all() and (x == 1).all()


def test_recorded_launch():
    x, y = ones()
    command = launch(saxpy, 8, [x, y, 2.0], record_cmd=True)
    assert isinstance(command, Launch) and (y == 3).all()
    command.launch()
    assert (y == 5).all()
    command.set_param_at_index(2, 0.0)
    command.set_param_by_name("y", x)
    command.set_dim(4)
    command.launch()
    assert (x == 1).all() and (y == 5).all()
    command.set_params([x, y, 1.0])
    command.launch()
    assert y.tolist() == [6, 6, 6, 6, 5, 5, 5, 5]
    for wrong in (None, 3, np.zeros((3, 8)), {"x": x, "y": y, "a": 1.0}):  # rows are no arguments
        with pytest.raises(
            NumbridgeTypeError, match=r"values is of type .*; it must be a list of the kernel's arguments"
        ):
            command.set_params(wrong)
    with pytest.raises(NumbridgeValueError, match="none at 3"):
        command.set_param_at_index(3, 0)
    with pytest.raises(NumbridgeValueError, match="not 'z'"):
        command.set_param_by_name("z", 0)


def test_a_global_that_changes_compiles_anew():
    saved = globals()["FACTOR"]
    try:
        out = np.zeros(1)
        launch(reads_global, 1, [out])
        globals()["FACTOR"] = 7
        launch(reads_global, 1, [out])
        assert out[0] == 7
    finally:
        globals()["FACTOR"] = saved


FACTOR = 3


@kernel
def reads_global(out):
    out[tid()] = FACTOR


def test_a_closure_and_a_device_function_that_change_compile_anew():
    amount = 1.0

    @func
    def inner(v):
        return v + amount

    @kernel
    def outer(out):
        i = tid()
        out[i] = inner(out[i])

    out = np.zeros(2)
    launch(outer, 2, [out])
    amount = 10.0
    launch(outer, 2, [out])
    assert (out == 11).all()

    @func
    def inner(v):  # noqa: F811 - the redefinition is what is tested
        return v * amount

    launch(outer, 2, [out])
    assert (out == 110).all()


def test_device_functions_have_names():
    made = [func(name=f"times {factor}")(lambda v, factor=factor: v * factor) for factor in (2, 3)]
    assert [repr(function) for function in made] == ["<device function times 2>", "<device function times 3>"]

    @func()
    def plain(v):
        return v + 1

    @func(name="another name")
    def named(v):
        return plain(v) + 1

    @kernel
    def outer(out):
        i = tid()
        out[i] = named(out[i])

    out = np.zeros(2)
    launch(outer, 2, [out])
    assert (out == 2).all() and (plain.name, named(3)) == ("plain", 5)


class Settings:
    WEIGHT = 2.0


def test_an_attribute_of_a_class_that_changes_compiles_anew():
    @kernel
    def weighted(out):
        out[tid()] = Settings.WEIGHT

    out = np.zeros(2)
    launch(weighted, 2, [out])
    launch(weighted, 2, [out])
    assert (out == 2).all()
    try:
        Settings.WEIGHT = 5.0
        launch(weighted, 2, [out])
        assert (out == 5).all()
    finally:
        Settings.WEIGHT = 2.0


def test_views_and_hidden_writes_never_reach_read_only_memory():
    @kernel
    def through_flat(x, out):
        x.flat[0] = 7
        out[0] = 1

    @kernel
    def through_row(x, out):
        row = x[tid()]
        row += 1
        out[0] = 1

    @kernel
    def through_loop(x, out):
        for row in x:
            row[0] = 7
        out[0] = 1

    x, out = np.zeros((3, 3)), np.zeros(1)
    x.flags.writeable = False
    for hidden in (through_flat, through_row, through_loop):
        with pytest.raises(NumbridgeError):
            launch(hidden, 1, [x, out])
    assert (x == 0).all() and out[0] == 0


def refused(error, text, run, *arrays):
    before = [array.copy() for array in arrays]
    with pytest.raises(error, match=text) as caught:
        run()
    assert isinstance(caught.value, NumbridgeError)
    for array, copy in zip(arrays, before, strict=True):
        assert (array == copy).all()


def test_read_only_arrays_are_not_written():
    x, y = ones()
    y.flags.writeable = False
    refused(BufferAccessError, "'saxpy', parameter 'y'.*read-only", lambda: launch(saxpy, 8, [x, y, 2.0]), y)
    launch(saxpy, 8, [y, x, 2.0])
    assert (x == 7).all()


def test_expanded_views_are_not_written():
    base = np.zeros(1, np.float32)
    view = np.lib.stride_tricks.as_strided(base, (8,), (0,))
    x, _ = ones()
    refused(BufferAccessError, "'y'.*expanded view", lambda: launch(saxpy, 8, [x, view, 2.0]), base)


def test_misaligned_and_foreign_arrays():
    x, y = ones()
    raw = np.zeros(33, np.uint8)
    odd = raw[1:].view(np.float32)
    refused(BufferAccessError, "'x'.*not aligned", lambda: launch(saxpy, 8, [odd, y, 2.0]), y)
    refused(ConversionError, "'x'.*byte order", lambda: launch(saxpy, 8, [x.astype(">f4"), y, 2.0]), y)
    refused(ConversionError, "'x'.*no counterpart", lambda: launch(saxpy, 8, [x.astype("M8[s]"), y, 2.0]), y)
    masked = np.ma.array(x, mask=[True] * 8)
    refused(BufferAccessError, "'x'.*mask", lambda: launch(saxpy, 8, [masked, y, 2.0]), y)
    given = type("Given", (), {"__array__": lambda self, dtype=None, copy=None: masked})()
    refused(BufferAccessError, "'x'.*mask", lambda: launch(saxpy, 8, [given, y, 2.0]), y)


def test_record_field_views_with_odd_byte_strides():
    records = np.zeros(5, [("tag", np.int32), ("value", np.float32), ("more", np.int32)])
    records["value"] = np.arange(5)
    out = np.zeros(5, np.float32)
    launch(saxpy, 5, [records["value"], out, 1.0])
    assert (out == np.arange(5)).all()


def test_wrong_ranks_and_dtypes_of_annotated_parameters():
    x, out = np.ones(4, np.float32), np.zeros((4, 1), np.float32)
    launch(annotated, 4, [x, out, 2, 3.0])
    assert (out == 5).all()
    launch(annotated, 4, [x, out, np.int8(1), 3])
    assert (out == 4).all()
    cases = [
        ([out, out, 1, 1.0], NumbridgeTypeError, "'x': wanted array1d.*1 dimension, got a 2-d array.*shape"),
        ([x.astype(np.float64), out, 1, 1.0], NumbridgeTypeError, "'x': wanted elements of float32, got.*float64"),
        ([x, out, 1.5, 1.0], NumbridgeTypeError, "'count': wanted int32, got the float 1.5"),
        ([x, out, 2**40, 1.0], NumbridgeValueError, "'count': 1099511627776 does not fit into int32"),
        ([x, out, 1, 1j], NumbridgeTypeError, "'scale': wanted float32, got the complex"),
        ([x, out, 1, x], NumbridgeTypeError, "'scale': wanted a scalar float32, got a 1-d array"),
        ([1.0, out, 1, 1.0], NumbridgeTypeError, "'x': wanted array1d.*got the float 1.0"),
        ([x, out, 1], NumbridgeTypeError, r"takes 4 arguments \(x, out, count, scale\), got 3"),
        (["x", out, 1, 1.0], NumbridgeTypeError, "'x'.*builtins.str is no array"),
        ([None, out, 1, 1.0], KernelError, "'x' is None, and the kernel uses it here"),
        ([x, out, None, 1.0], NumbridgeTypeError, "'count': wanted a scalar int32, got None; pass a number"),
        ([x, out, 1, "2"], NumbridgeTypeError, "'scale': wanted a scalar float32, got '2'; pass a number"),
    ]
    for arguments, error, text in cases:
        refused(error, text, lambda arguments=arguments: launch(annotated, 4, arguments), out)


def test_a_two_dimensional_array_for_a_one_dimensional_use():
    x, y = np.ones((8, 2), np.float32), np.ones((8, 2), np.float32)
    refused(KernelError, "'saxpy' does not compile", lambda: launch(saxpy, 8, [x, y, 2.0]), y)


@func
def unknown_attribute(v):
    w = v + 1
    return w.nothing


@kernel
def calls_unknown_attribute(x, y, a):
    i = tid()
    y[i] = unknown_attribute(x[i]) * a


@kernel
def adds_a_tuple(x, y, a):
    i = tid()
    if a > 1:
        y[i] = 1.0
    else:
        y[i] = (
            x[i]
            + (a, 2)
        )  # fmt: skip


@kernel
def assigns_a_slice(x, y, a):
    i = tid()
    y[i : i + 2] = x[i] * a


@kernel
def replaces_a_part(x, y, a):
    i = tid()
    v = x[i]
    v[0] = a
    y[i] = v


@kernel
def counts_extents(x, y, a):
    i = tid()
    y[i] = x.shape.count(3)


@pytest.mark.parametrize(
    ("wrong", "problem", "line", "capability"),
    [
        (calls_unknown_attribute, "a float64 has no .nothing: elements are numbers", "return w.nothing", None),
        (calls_unknown_attribute, "a float64 has no .nothing: elements are numbers", "return w.nothing", (9, 0)),
        (adds_a_tuple, r"there is no float32 \+ tuple", "y[i] = (", None),
        (replaces_a_part, "a float32 is a number, and is indexed here like an array", "v[0] = a", None),
        (counts_extents, "Unknown attribute 'count' of type UniTuple", "y[i] = x.shape.count(3)", None),
    ],
)
def test_what_does_not_compile_is_shown_in_the_kernel_itself(wrong, problem, line, capability):
    x, y = ones()
    source = Path(__file__).read_text().split("\n")
    number = next(n for n, text in enumerate(source, 1) if text.strip() == line)
    column = len(source[number - 1]) - len(source[number - 1].lstrip()) + 1
    place = f"{re.escape(__file__)}:{number}:{column}\n    {re.escape(line)}\n    \\^"
    with pytest.raises(KernelError, match=f"does not compile for .*{problem}.*\n  {place}") as caught:
        wrong.ptx(x, y, 2.0, capability=capability) if capability else launch(wrong, 8, [x, y, 2.0])
    assert ("Numba says:" in str(caught.value)) == (wrong is counts_extents) and (y == ones()[1]).all()
    assert "Failed in nopython" not in str(caught.value) and caught.value.__suppress_context__


def undecorated(value):
    return value


@kernel
def calls_a_python_function(x, y, a):
    i = tid()
    y[i] = undecorated(x[i])


def test_a_function_that_was_not_decorated_is_named():
    x, y = ones()
    wanted = r"undecorated is a Python function, which kernels cannot call; decorate it with @nb.func\n.*\n.*\n +\^$"
    refused(KernelError, wanted, lambda: launch(calls_a_python_function, 8, [x, y, 2.0]), y)


@pytest.mark.parametrize("name", ["inputs", "outputs"])
@pytest.mark.parametrize("value", [np.ones((3, 8)), "x", 3], ids=["array", "str", "int"])
def test_arguments_come_in_a_list(name, value):
    wanted = rf"'saxpy': {name} is of type \w+; it must be a list of the kernel's arguments, such as {name}=\[x, y\]"
    with pytest.raises(NumbridgeTypeError, match=wanted):
        launch(saxpy, 8, **{name: value})


def test_arguments_may_come_in_other_iterables():
    x, y = ones()
    launch(saxpy, 8, iter([x]), {"y": y, "a": 2.0}.values())
    assert (y == 5).all()


def test_slices_cannot_be_assigned():
    x, y = np.ones((4, 4)), np.ones((4, 4))
    refused(
        KernelError,
        r"write a loop over the elements, or let rows .*\n  .*\n    y\[i : i",
        lambda: launch(assigns_a_slice, 4, [x, y, 2.0]),
        y,
    )


@kernel
def a_chain_of_variables(x):
    i = tid()
    a = x[i]
    b = a + a
    c = b - a + b
    d = c - b + c
    e = d - c + d
    f = e - d + e
    g = f - e + f
    h = g - f + g
    k = h - g + h
    m = k - h + k
    n = m - k + m
    o = n - m + n
    x[o - n] = o + n


def test_a_chain_of_variables_is_followed_once(monkeypatch):
    followed, resolve = [], FunctionSource.resolve
    monkeypatch.setattr(FunctionSource, "resolve", lambda source, node: followed.append(node) or resolve(source, node))
    x = np.zeros(1, np.int64)
    launch(a_chain_of_variables, 1, [x])
    assert len(followed) < 2000, "each variable is read again for every path through the others to it"


def test_integers_beyond_64_bits():
    x, y = ones()
    refused(NumbridgeValueError, "'a'.*does not fit into int64", lambda: launch(saxpy, 8, [x, y, 2**70]), y)


@kernel
def keep(out, value):
    i = tid()
    out[i] = value


@kernel
def keep_int32(out, value: np.int32):
    i = tid()
    out[i] = value


@kernel
def keep_int64(out, value: np.int64):
    i = tid()
    out[i] = value


@kernel
def keep_uint64(out, value: np.uint64):
    i = tid()
    out[i] = value


@kernel
def keep_float(out, value: float):
    i = tid()
    out[i] = value


@pytest.mark.parametrize(
    "value", [2**53 + 1, np.int64(2**53 + 1), np.uint64(2**53 + 1), -(2**62) - 1, np.int64(-(2**62) - 1)]
)
def test_integers_keep_all_their_bits(value):
    out = np.zeros(2, np.int64)
    launch(keep_int64, 2, [out, value])
    assert out.tolist() == [value] * 2


@pytest.mark.parametrize("large", [2**63, 2**64 - 5, np.uint64(2**63), np.uint64(2**64 - 5)])
def test_integers_between_63_and_64_bits(large):
    small = type(large)(5)
    for taken in (keep_int32, keep_int64):
        out = np.zeros(4, np.int64)
        launch(taken, 4, [out, small])
        assert out.tolist() == [5] * 4
        for _ in range(2):  # the variant that took the small one must not take the large one
            refused(
                NumbridgeValueError,
                "'value'.*does not fit into int",
                lambda k=taken, o=out: launch(k, 4, [o, large]),
                out,
            )
    for taken, dtype in ((keep_uint64, np.uint64), (keep_float, np.float32)):
        out = np.zeros(4, dtype)
        for value in (small, large, small, large):
            launch(taken, 4, [out, value])
            assert out.tolist() == [dtype(value)] * 4


def test_integers_that_no_annotation_widens():
    out = np.zeros(4, np.uint64)
    refused(NumbridgeValueError, "'value'.*does not fit into int64", lambda: launch(keep, 4, [out, 2**63]), out)
    launch(keep, 4, [out, np.uint64(2**63)])
    assert out.tolist() == [2**63] * 4
    for value in (-1, np.int64(-1)):
        refused(NumbridgeValueError, "does not fit into uint64", lambda v=value: launch(keep_uint64, 4, [out, v]), out)


@pytest.mark.parametrize("number", [Fraction(1, 2), Decimal("0.5")])
def test_numbers_that_kernels_do_not_know(number):
    out = np.zeros(4)
    refused(NumbridgeTypeError, r"'value'.*pass float\(x\)", lambda: launch(keep, 4, [out, number]), out)


def test_kernels_and_device_functions_are_pickled_by_name():
    for thing in (saxpy, squared):
        assert pickle.loads(pickle.dumps(thing)) is thing
        assert deepcopy(thing) is thing and shallow(thing) is thing


def test_dimensions_are_checked():
    x, y = ones()
    cases = [
        ((8, 1), NumbridgeValueError, "has 2 dimension"),
        (-1, NumbridgeValueError, "negative extent"),
        (1.5, NumbridgeTypeError, "wanted an int or a tuple"),
        ((1, 1, 1, 1, 1), NumbridgeValueError, "1 to 4 dimensions"),
        ((), NumbridgeValueError, "1 to 4 dimensions"),
        (None, NumbridgeTypeError, "wanted an int"),
    ]
    for dim, error, text in cases:
        refused(error, text, lambda dim=dim: launch(saxpy, dim, [x, y, 2.0]), y)
    with pytest.raises(NumbridgeValueError, match="more threads than 64 bits"):
        launch(indices2, (2**40, 2**40), [np.zeros((1, 1))])
    with pytest.raises(NumbridgeValueError, match="more threads than 64 bits"):
        saxpy[2**40, 2**40](x, y, 2.0)
    for block_dim, error in ((0, NumbridgeValueError), (-5, NumbridgeValueError), ("3", NumbridgeTypeError)):
        with pytest.raises(error, match=r"block_dim.*wanted an int from 1"):
            launch(saxpy, 8, [x, y, 2.0], block_dim=block_dim)
    with pytest.raises(NumbridgeValueError, match="asks for 4 thread indices"):
        indices4[(1, 1, 1), (2, 2, 2)](np.zeros((2, 2, 2, 2)))
    for record_cmd in (False, True):
        with pytest.raises(NumbridgeTypeError, match="wanted a kernel"):
            launch(ones, 1, [], record_cmd=record_cmd)
    with pytest.raises(DeviceError, match="needs CUDA"):
        launch(saxpy, 8, [x, y, 2.0], device="cuda:0")
    with pytest.raises(DeviceError, match="on a stream needs CUDA"):
        launch(saxpy, 8, [x, y, 2.0], stream=1)
    with pytest.raises(DeviceError, match="needs CUDA"):
        saxpy[1, 8, 5](x, y, 1.0)
    with pytest.raises(NumbridgeError, match=re.escape("nb.launch(saxpy, dim, [arguments])")):
        saxpy(x, y, 1.0)


def test_what_exists_only_on_cuda_is_named_with_its_place():
    @kernel
    def slept(x):
        cuda.nanosleep(5)
        x[0] = 1

    with pytest.raises(KernelUnsupportedError, match=r"cuda\.nanosleep exists only on CUDA") as caught:
        launch(slept, 1, [np.zeros(1, np.float32)])
    message = str(caught.value)
    assert f"{__file__}:" in message and "cuda.nanosleep(5)" in message and "^" in message


def test_a_kernel_that_raises_ends_its_launch():
    @kernel
    def raising(x):
        i = tid()
        if x[i] < 0:
            raise ValueError("negative")
        x[i] = 1

    x = np.zeros(5)
    launch(raising, 5, [x])
    assert (x == 1).all()
    with pytest.raises(
        KernelError, match=r"'raising' raised an exception(?s:.)*raise ValueError\(\"negative\"\)\n *\^"
    ):
        launch(raising, 5, [np.full(5, -1.0)])


@njit
def checked(a):
    if a < 0:
        raise ValueError("negative")
    return 1.0


@njit
def checked_twice(a):
    return checked(a) * checked(a + 1)


@pytest.mark.parametrize(
    "called", [checked, checked_twice, njit(lambda a: 1.0 * checked(a))], ids=["itself", "inside", "unread"]
)
def test_a_function_of_numba_that_raises_ends_the_launch(called):
    @kernel
    def calling(x):
        i = tid()
        x[i] = called(x[i])

    x = np.zeros(5)
    launch(calling, 5, [x])
    assert (x == 1).all()
    with pytest.raises(KernelError, match=r"'calling' raised an exception"):
        launch(calling, 5, [np.full(5, -1.0)])


def test_each_place_that_may_have_raised_is_shown():
    @kernel
    def all_three(x):
        i = tid()
        assert x[i] < 3, "large"
        assert x[i] > -3, "small"
        assert x[i] != 2, "small"

    for given, shown in ((5.0, ["x[i] < 3"]), (-5.0, ["x[i] > -3", "x[i] != 2"]), (2.0, ["x[i] > -3", "x[i] != 2"])):
        with pytest.raises(KernelError, match="may do so here") as caught:
            launch(all_three, 1, [np.full(1, given)])
        places = str(caught.value).partition("may do so here")[2]
        # Those from which the exception may have come, which tells itself by its text
        assert [text for text in ("x[i] < 3", "x[i] > -3", "x[i] != 2") if text in places] == shown


@pytest.mark.parametrize(
    ("array", "advice"),
    [
        (np.zeros(1, "M8[s]"), r"array\.view\(np\.int64\)"),
        (np.array(["a"]), "characters or bytes as an array of integers"),
        (np.array([1.0], object), r"array\.astype"),
        (np.zeros(1, np.longdouble), r"array\.astype"),
        (np.float32, "is a class and no array; pass an instance"),
    ],
)
def test_what_to_do_with_what_is_no_array_of_numbers(array, advice):
    with pytest.raises(TypeError, match=rf"parameter 'x'.*{advice}"):
        launch(scale_up, 1, [array])


@kernel
def scale_up(x):
    x[tid()] *= 2


def test_arguments_by_name_are_refused():
    with pytest.raises(NumbridgeTypeError, match=r"inputs is of type dict; it must be a list"):
        launch(scale_up, 1, {"x": np.zeros(1)})


def test_many_types_do_not_confuse_the_table():
    variants = variants_of(saxpy)
    y = np.ones(4, np.float32)
    for _ in range(3):
        launch(saxpy, 4, [y, y, 1.0])
    used = [address for address in variants.table(MASKED).tolist() if address]
    assert len(used) == len(set(used))


def test_the_same_array_twice():
    x = np.ones(8, np.float32)
    launch(saxpy, 8, [x, x, 1.0])
    assert (x == 2).all()


@kernel
def gathered(x, total, least, most, rest):
    i = tid()
    atomic_add(total, (), x[i])
    atomic_min(least, (), x[i])
    atomic_max(most, (), x[i])
    atomic_sub(rest, (), x[i])


def test_atomics_work_on_arrays_of_rank_0():
    # What is launched is compiled for CUDA, too, whose own atomics have no index for such arrays.
    total, least, most, rest = np.array(0.0), np.array(9.0), np.array(-9.0), np.array(10.0)
    gathered.forall(4)(np.array([1.0, -2.0, 5.0, 3.0]), total, least, most, rest)
    assert (total.item(), least.item(), most.item(), rest.item()) == (7, -2, 5, 3)


@kernel
def scaled_by_one(x, s, y):
    i = tid()
    y[i] = x[i] * s[()]


def test_the_adjoint_of_an_array_of_rank_0_adds_up_all_threads():
    x, s, y, by_x, by_s = np.arange(3.0), np.array(2.0), np.zeros(3), np.zeros(3), np.zeros(())
    launch(scaled_by_one, 3, [x, s], [y], adj_inputs=[by_x, by_s], adj_outputs=[np.ones(3)], adjoint=True)
    assert by_x.tolist() == [2, 2, 2] and by_s.item() == 3
    derivative = scaled_by_one.adjoint(["x", "s", "y"])
    assert derivative.cubin(x, s, y, by_x, by_s, np.ones(3), capability=(9, 0)).startswith(b"\x7fELF")


@kernel
def by_steps(x, y, step: int):
    i = tid()
    y[i] = x[::step][i]


@kernel
def by_no_step(x, y):
    i = tid()
    y[i] = x[3::-0][i]


def test_a_slice_without_a_step_ends_the_launch():
    x, y = np.arange(4.0), np.zeros(2)
    for step, expected in ((2, [0, 2]), (-1, [3, 2])):
        launch(by_steps, 2, [x, y, step])
        assert y.tolist() == expected
    with pytest.raises(KernelError, match=r"(?s)a slice with a step of zero.*may do so here\n.*x\[::step\]\[i\]\n.*\^"):
        launch(by_steps, 2, [x, y, 0])
    with pytest.raises(KernelError, match="a slice with a step of zero"):
        launch(by_no_step, 2, [x, y])


@kernel
def counted_from(x, y, first):
    i = tid()
    for k, value in enumerate(x, start=first):
        y[i] += k * value


def test_enumerate_takes_its_first_number_by_name():
    x, y, by_x = np.arange(4.0), np.zeros(2), np.zeros(4)
    launch(counted_from, 2, [x, y, 3])
    assert y.tolist() == [sum(k * value for k, value in enumerate(x, start=3))] * 2
    launch(counted_from, 2, [x, y, 3], adj_inputs=[by_x, np.ones(2), None], adjoint=True)
    assert by_x.tolist() == [6, 8, 10, 12]


@kernel
def of_a_tuple(x, y, k):
    i = tid()
    parts = (1.0, 2.0, x[i])
    y[i] = parts[k]


@kernel
def of_a_shape(x, y, k):
    i = tid()
    y[i] = x.shape[k - 2]


@kernel
def trips_of_no_length(x, y, k):
    i = tid()
    for j in range(0, 3, k - 3):
        y[i] = 0.5 * y[i] + x[j]


@kernel
def of_a_view(x, y, k):
    i = tid()
    first, second = x[:k]
    y[i] = first + second


@func
def below_three(k):
    if k < 3:
        return 1.0
    return None


@kernel
def of_a_function(x, y, k):
    i = tid()
    y[i] = x[i] * below_three(k)


@pytest.mark.parametrize("kernel", [of_a_tuple, of_a_shape, trips_of_no_length, of_a_view, of_a_function])
@pytest.mark.parametrize("n", [4, 200_000])
def test_what_numba_raises_by_itself_ends_the_launch(kernel, n):
    """Numba printed it and went on, with the arrays partly written."""
    x, y = np.ones(n), np.zeros(n)
    launch(kernel, n, [x, y, 2])
    with pytest.raises(
        KernelError,
        match=r"raised an exception .* a range .* step of zero, an index beyond the end .* returns nothing where",
    ):
        launch(kernel, n, [x, y, 3])


@kernel
def to_float8(x, y):
    i = tid()
    y[i] = ml_dtypes.float8_e5m2(x[i])


def test_a_call_of_a_narrow_type_is_refused_with_what_to_do():
    with pytest.raises(KernelError, match=r"float8_e5m2\(...\) makes no number in a kernel: .*; leave the conversion"):
        launch(to_float8, 2, [np.ones(2, np.float32), np.zeros(2, np.float16)])


@kernel
def scaled_whatever(x: array1d[Any], y: array1d(dtype=Any), s: Any):
    i = tid()
    y[i] = x[i] * s


def test_any_is_no_annotation():
    for dtype in (np.float32, np.float64, np.int64):
        x, y = np.ones(3, dtype), np.zeros(3, dtype)
        launch(scaled_whatever, 3, [x, y, 2])
        assert (y == 2).all()
    with pytest.raises(NumbridgeTypeError, match="parameter 'x'"):
        launch(scaled_whatever, 3, [np.ones((3, 1)), np.zeros(3), 2])
