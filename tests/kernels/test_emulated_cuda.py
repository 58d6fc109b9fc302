"""Kernels that were compiled for CUDA, run: their PTX on the CPU, through the real launch. They must give what the CPU's give."""

from __future__ import annotations

import math
import random

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from numba.np import ufunc_db

import element_cases
import numbridge as nb
from adjoint_as_python import float_arrays
from adjoint_cases import CASES, name_of
from adjoint_programs import Writer, arguments, declared
from emulated_cuda import emulated_cuda
from numbridge.kernels.adjoint.rules import RULES
from numbridge.kernels.launch import launch
from ptx_emulator.execution import BadAccessError


@pytest.fixture
def device():
    with emulated_cuda() as emulation:
        yield emulation


def copied(values):
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


def there(device, values):
    """Return arguments with their arrays on the device; the memory stays that of the NumPy arrays."""
    return [device.on_device(v) if isinstance(v, np.ndarray) else v for v in values]


def close(one, other):
    """Tell whether results agree up to the rounding of functions, which libdevice computes as well as libm, but not alike."""
    within = 5e-6 if one.dtype.itemsize == 4 or one.dtype == np.complex64 else 1e-12
    return np.allclose(one, other, rtol=within, atol=within, equal_nan=True)


def on_both(device, kernel, dim, values, **options):
    """Launch on the CPU and on the device, check that both leave the same in their arrays, and return the device's."""
    here, emulated = copied(values), copied(values)
    launch(kernel, dim, here, **options)
    launch(kernel, dim, there(device, emulated), **options)
    for one, other in zip(here, emulated, strict=True):
        assert not isinstance(one, np.ndarray) or close(one, other), (kernel, one, other)
    return emulated


def adjoints_on_both(device, kernel, dim, values, seed=3):
    """Launch the adjoint on the CPU and on the device, and check that both give the same gradients."""
    normal = np.random.default_rng(seed).normal
    arrays = float_arrays(values)
    given = [
        normal(size=v.shape).astype(v.dtype) if k in arrays else np.zeros(()) if isinstance(v, float) else None
        for k, v in enumerate(values)
    ]
    here, emulated = copied(given), copied(given)
    launch(kernel, dim, there(device, copied(values)), adj_inputs=there(device, emulated), adjoint=True)
    launch(kernel, dim, copied(values), adj_inputs=here, adjoint=True)
    for one, other in zip(here, emulated, strict=True):
        assert one is None or close(one, other), (kernel, one, other)


# Their adjoints, which run most of a kernel again, are all there.
@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_kernels(device, case):
    kernel, dim, *values = case
    on_both(device, kernel, dim, values)


@pytest.mark.one_in(3, first=1)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_adjoints(device, case):
    kernel, dim, *values = case
    adjoints_on_both(device, kernel, dim, values)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", range(8))
def test_random_programs(device, number):
    choices = random.Random(1000 + number)
    kernel, values = declared(Writer(choices.randrange).program()), arguments(number)
    on_both(device, kernel, 2, values)
    adjoints_on_both(device, kernel, 2, values)


# The shapes of launches


@nb.kernel
def places(out):
    i, j, k, m = nb.tid()
    out[i, j, k, m] = ((i * 10 + j) * 10 + k) * 10 + m


def test_four_dimensions_and_strides(device):
    memory = np.zeros((5, 4, 3, 2), np.int64)
    values = np.asfortranarray(memory)[::-1, :, ::-1]
    launch(places, memory.shape, there(device, [values]))
    i, j, k, m = np.indices(memory.shape)
    assert np.array_equal(values, ((i * 10 + j) * 10 + k) * 10 + m)


@nb.kernel
def counted(out, total):
    i = nb.tid()
    out[i] += 1
    nb.atomic_add(total, 0, i)


@pytest.mark.parametrize(("dim", "block", "blocks"), [(1000, 64, 0), (1000, 64, 3), (5000, 1024, 1), (1, 32, 0)])
def test_grids_that_are_smaller_than_the_launch(device, dim, block, blocks):
    out, total = np.zeros(dim, np.int32), np.zeros(1, np.int64)
    launch(counted, dim, there(device, [out, total]), block_dim=block, max_blocks=blocks)
    assert (out == 1).all() and total[0] == dim * (dim - 1) // 2


@nb.kernel
def over_the_grid(x, y):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        if x[i] > 0.2:
            y[i] = x[i] * y[i] * y[i]


def test_loops_over_the_grid(device):
    """Of which the CPU's text, and with it the CPU's derivative, has none: launches ask that one what they must keep."""
    values = np.random.default_rng(2).normal(size=(2, 90))
    on_both(device, over_the_grid, 64, [*values], block_dim=32)
    adjoints_on_both(device, over_the_grid, 64, [*values])


@cuda.jit
def reversed_in_blocks(x):
    shared = cuda.shared.array(32, np.float32)
    i = cuda.threadIdx.x
    shared[i] = x[cuda.blockIdx.x * 32 + i]
    cuda.syncthreads()
    x[cuda.blockIdx.x * 32 + i] = shared[31 - i]


def test_shared_memory_and_barriers(device):
    x = np.arange(96, dtype=np.float32)
    nb.kernel(reversed_in_blocks)[3, 32](device.on_device(x))
    assert np.array_equal(x, np.arange(96).reshape(3, 32)[:, ::-1].ravel())


@nb.kernel
def shown(x):
    i = nb.tid()
    print("element", i, "is", x[i])


def test_printing(device):
    nb.launch(shown, 2, there(device, [np.array([0.5, -3.0])]))
    assert "".join(device.printed) == "element 0 is 0.500000\nelement 1 is -3.000000\n"


# What kernels must not touch


@nb.kernel
def beyond(x, y):
    i = nb.tid()
    # A launch would refuse what every thread is sure to come to.
    if x[i] == 0:
        y[i + 1] = x[i]


def launched_beyond(x, y, *, protected=False):
    with emulated_cuda() as device:
        arrays = there(device, [x, y])
        if protected:
            device.protect(y)
        launch(beyond, 4, arrays)


def test_the_emulation_finds_what_lies_beyond_an_array():
    x, y = np.zeros(4, np.float32), np.zeros(5, np.float32)
    text = r"'st\.global\.\w+\s.*', writes 4 bytes at 0x[0-9a-f]+; the kernel's memory is"
    with pytest.raises(BadAccessError, match=text):
        launched_beyond(x, y[:4])
    assert not y[4]
    launched_beyond(x, y)


def test_the_emulation_finds_what_may_not_be_written():
    with pytest.raises(BadAccessError, match="read only"):
        launched_beyond(np.zeros(4, np.float32), np.zeros(5, np.float32), protected=True)


# Types


@nb.kernel
def halved(x, y):
    i = nb.tid()
    y[i] = x[i] * 0.5 + y[i]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_floating_types(device, name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    values = np.random.default_rng(5).normal(size=(2, 9))
    one, two = copied([*values.astype(dtype)]), copied([*values.astype(dtype)])
    launch(halved, 9, one)
    launch(halved, 9, there(device, two))
    assert np.array_equal(one[1].view(np.uint8), two[1].view(np.uint8))


@nb.kernel
def curved(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i // 2]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_adjoints_of_16_bits_are_added_up_in_memory_in_between(device, name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    values, cotangents = np.random.default_rng(9).normal(size=(2, 2, 40)).astype(dtype)
    made = []
    for place in (lambda v: v, device.on_device):
        by = copied([*cotangents])
        launch(curved, 40, [place(v) for v in copied([*values])], adj_inputs=[place(v) for v in by], adjoint=True)
        made.append(np.array(by).astype(np.float64))
    assert np.allclose(*made, rtol=1e-2, atol=1e-2) and not np.allclose(made[1][0], cotangents[0].astype(np.float64))


@nb.kernel
def turned(m, v, out):
    i = nb.tid()
    out[i] = nb.normalize(nb.transpose(m[i]) @ v[i]) + nb.cross(v[i], m[i][0])


@pytest.mark.parametrize("scalar", [np.float32, np.float64])
def test_vectors_and_matrices(device, scalar):
    vector, matrix = nb.vector(3, scalar), nb.matrix((3, 3), scalar)
    normal = np.random.default_rng(6).normal
    kinds, values = (matrix, vector, vector), [normal(size=(7, *k)).astype(scalar) for k in ((3, 3), (3,), (3,))]
    given = [normal(size=v.shape).astype(scalar) for v in values]
    made = []
    for place in (lambda v: v, device.on_device):
        inputs, by = copied(values), copied(given)
        wrapped = [[nb.asarray(place(v), dtype=k) for k, v in zip(kinds, each, strict=True)] for each in (inputs, by)]
        launch(turned, 7, wrapped[0])
        launch(turned, 7, wrapped[0], adj_inputs=wrapped[1], adjoint=True)
        made.append([*inputs, *by])
    assert all(close(one, other) for one, other in zip(*made, strict=True))
    assert not np.array_equal(made[1][3], given[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", element_cases.CASES, ids=element_cases.name_of)
def test_elements_and_loops_over_the_grid(device, case):
    element_cases.check(case, lambda values: (device.on_device(values), lambda: values))


@nb.kernel
def narrowed(x, y):
    i = nb.tid()
    y[i] = np.float16(x[i])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int32])
def test_conversion_to_the_float16_of_numba(device, dtype):
    x, y = np.arange(-2, 3).astype(dtype), np.zeros(5, dtype)
    launch(narrowed, 5, there(device, [x, y]))
    assert np.array_equal(y, x)


class Held:
    """An array on the device that kernels find as a global; every one of them looks the same."""

    def __init__(self, values):
        self.values = values

    def __str__(self):
        return "an array"

    @property
    def __cuda_array_interface__(self):
        shape, kind = self.values.shape, self.values.dtype.str
        return {
            "shape": shape,
            "typestr": kind,
            "data": (self.values.ctypes.data, False),
            "version": 3,
            "strides": None,
        }


def test_global_arrays_on_the_device_are_read_where_they_are(device):
    held = None

    @nb.kernel
    def copied_from_global(out):
        i = nb.tid()
        out[i] = held[i]

    for number in (1, 2):
        held, out = Held(np.full(3, number, np.float32)), np.zeros(3, np.float32)
        device.on_device(held.values)
        for more in (0, 5):
            held.values[1] = number + more
            launch(copied_from_global, 3, there(device, [out]))
            assert out.tolist() == [number, number + more, number]


PARTICLE = np.dtype([("x", np.float64), ("alive", np.bool_), ("v", np.float32, (2,))], align=True)


@nb.kernel
def moved(particles, dt: float):
    i = nb.tid()
    if particles[i].alive:
        particles[i].x += dt * particles[i].v[1]


def test_records(device):
    made = np.zeros(6, PARTICLE)
    made["x"], made["alive"], made["v"] = np.arange(6), [1, 0, 1, 1, 0, 1], np.arange(12).reshape(6, 2)
    one, two = made.copy(), made.copy()
    launch(moved, 6, [one, 0.5])
    words = two.view(np.uint64).reshape(6, -1)
    launch(moved, 6, [nb.asarray(device.on_device(words), dtype=PARTICLE), 0.5])
    assert np.array_equal(one, two) and not np.array_equal(two, made)


@nb.kernel
def atomics(out, old, x):
    i = nb.tid()
    old[i] = nb.atomic_add(out, 0, x[i])
    nb.atomic_min(out, 1, x[i])
    nb.atomic_max(out, 2, x[i])
    nb.atomic_sub(out, 3, x[i])
    nb.atomic_exch(out, 4, x[i])
    nb.atomic_cas(out, 5, x[0] - x[0], x[i])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64])
def test_atomics(device, dtype):
    x = np.arange(1, 9).astype(dtype)
    out, old = np.array([0, 3, 3, 99, 0, 0], dtype), np.zeros(8, dtype)
    launch(atomics, 8, there(device, [out, old, x]))
    assert out.tolist() == [36, 1, 8, 63, 8, 1] and old[-1] == 28


# NumPy's functions


_WITHIN = {np.arccosh: "(1.1 + abs({}))", **dict.fromkeys((np.arcsin, np.arccos, np.arctanh), "(0.3 * {})")}


def _functions(kind):
    """Return NumPy's functions of numbers of a type that the CPU compiles, by the types of their results: Numba's table."""
    found = {}
    for ufunc in sorted(ufunc_db.get_ufuncs(), key=lambda each: each.__name__):
        head = f"{kind * ufunc.nin}->"
        results = [loop.removeprefix(head) for loop in ufunc_db.get_ufunc_info(ufunc) if loop.startswith(head)]
        if results and len(results[0]) == 1:
            found.setdefault(results[0], []).append(ufunc)
    return found


def _calling(ufuncs):
    """Return a kernel that calls each of some functions."""
    lines = ["def calling(x, z, y):", "    i = tid()"]
    for k, ufunc in enumerate(ufuncs):
        x = _WITHIN.get(ufunc, "{}").format("x[i]")
        lines.append(f"    y[i, {k}] = np.{ufunc.__name__}({x}{', z[i]' if ufunc.nin == 2 else ''})")
    return declared("\n".join(lines) + "\n", np=np)


@pytest.mark.one_in(3, first=1)
@pytest.mark.parametrize("kind", "fdFli")
def test_functions_of_numpy(device, kind):
    random = np.random.default_rng(8)
    x, z = random.uniform(0.1, 3, (2, 6)) if kind in "fdF" else random.integers(1, 9, (2, 6))
    x, z = ((each + 0.5j if kind == "F" else each).astype(kind) for each in (x, z))
    for result, ufuncs in _functions(kind).items():
        on_both(device, _calling(ufuncs), 6, [x, z, np.zeros((6, len(ufuncs)), result)])
        if kind == result == "d":
            smooth = [ufunc for ufunc in ufuncs if ufunc.__name__ in RULES]
            assert len(smooth) > 20
            adjoints_on_both(device, _calling(smooth), 6, [x, z, np.zeros((6, len(smooth)))])


@nb.kernel
def roots(x, y):
    i = nb.tid()
    y[i] = cuda.cbrt(x[i]) + math.fmod(x[i], 5.0)


def test_a_function_of_cuda_has_its_derivative_there(device):
    adjoints_on_both(device, roots, 3, [np.array([8.0, 2.0, 0.3]), np.zeros(3)])


BASE = 10


@nb.kernel
def logarithms(x, base, out):
    i = nb.tid()
    out[0, i] = math.log(x[i], BASE)
    out[1, i] = math.log(x[i], 2.0)
    out[2, i] = math.log(x[i], base[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logarithms_to_a_base(device, dtype):
    x, base = np.array([1000.0, 8.0], dtype), np.array([10.0, 0.5], dtype)
    out = on_both(device, logarithms, 2, [x, base, np.zeros((3, 2), dtype)])[-1]
    expected = [[math.log(number, of) for number in x.tolist()] for of in (10, 2)] + [[3.0, -3.0]]
    assert np.allclose(out, expected, rtol=1e-6)
    adjoints_on_both(device, logarithms, 2, [x, base, np.zeros((3, 2), dtype)])


@nb.kernel
def rounded(x, out):
    i = nb.tid()
    out[0, i] = np.round(x[i])
    out[1, i] = np.round(x[i], 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_with_numpy(device, dtype):
    x = np.array([0.5, 1.5, -2.5, 0.26, -np.inf, np.nan], dtype)
    out = on_both(device, rounded, len(x), [x, np.zeros((2, len(x)), dtype)])[-1]
    assert np.allclose(out, [np.round(x), np.round(x, 1)], equal_nan=True)
