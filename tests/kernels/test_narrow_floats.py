"""Floating types of 8 and 16 bits in kernels: every bit pattern read, every rounding written, arithmetic in float32."""

import math

import numpy as np
import pytest
import torch
from numba import njit

import numbridge as nb
from emulated_cuda import emulated_cuda, on_both

NARROW = [nb.float16, nb.bfloat16, nb.float8_e4m3fn, nb.float8_e5m2]
RNG = np.random.default_rng(3)


@nb.kernel
def convert(x, y):
    i = nb.tid()
    y[i] = x[i]


@nb.kernel
def axpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


@nb.func
def halved(value):
    return value * 0.5


@nb.kernel
def halve(x, y):
    i = nb.tid()
    y[i] = halved(x[i])


@njit
def larger(value, other):
    return value if value > other else other


@nb.kernel
def at_least(x, y):
    i = nb.tid()
    y[i] = larger(x[i], y[i]) + larger(x[i], 0.5)


def every_number(kind):
    bits = np.dtype(kind).itemsize * 8
    return np.arange(1 << bits, dtype=f"u{bits // 8}").view(kind)


def hard_numbers(kind, dtype):
    """Return numbers of all sizes, all midpoints of neighbours, and what lies just beside them."""
    with np.errstate(all="ignore"):
        finite = every_number(kind).astype(np.float64)
        finite = np.sort(finite[np.isfinite(finite)])
        middle = (finite[:-1] + finite[1:]) / 2
        scattered = RNG.standard_normal(20000) * 10.0 ** RNG.integers(-12, 12, 20000)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 464, 465, 65519, 65520, 1e30, 1e-40]
        values = np.concatenate([scattered, finite, middle, special]).astype(dtype)
        return np.concatenate([values, np.nextafter(values, dtype(np.inf)), np.nextafter(values, dtype(-np.inf))])


@pytest.mark.parametrize("kind", NARROW, ids=lambda kind: kind.__name__)
def test_every_number_is_read(kind):
    x = every_number(kind)
    y, wanted = np.zeros(len(x), np.float32), x.astype(np.float32)
    nb.launch(convert, len(x), [x, y])
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(np.signbit(y)[~np.isnan(y)], np.signbit(wanted)[~np.isnan(y)])


@pytest.mark.parametrize("kind", NARROW, ids=lambda kind: kind.__name__)
def test_float32_is_rounded_to_nearest_even(kind):
    x = hard_numbers(kind, np.float32)
    y = np.zeros(len(x), kind)
    nb.launch(convert, len(x), [x, y])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y.astype(np.float32), x.astype(kind).astype(np.float32))


@pytest.mark.parametrize("kind", NARROW, ids=lambda kind: kind.__name__)
def test_float64_is_rounded_once(kind):
    """ml_dtypes rounds to float32 first: never is its result nearer, and at an equal distance ours is the even one."""
    x = hard_numbers(kind, np.float64)
    y = np.zeros(len(x), kind)
    nb.launch(convert, len(x), [x, y])
    with np.errstate(all="ignore"):
        ours, theirs = y.astype(np.float64), x.astype(kind).astype(np.float64)
        finite = np.isfinite(ours) & np.isfinite(theirs) & np.isfinite(x)
        distance, other = abs(ours - x)[finite], abs(theirs - x)[finite]
    assert (distance <= other).all()
    even = y[finite].view(f"u{np.dtype(kind).itemsize}") & 1 == 0
    assert even[(distance == other) & (ours[finite] != theirs[finite])].all()
    with np.errstate(all="ignore"):
        exact = x == x.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(ours)[exact], np.isnan(theirs)[exact])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
def test_arithmetic_is_float32(kind):
    x, y = (torch.randn(1000, generator=torch.Generator().manual_seed(k)).to(kind) for k in (1, 2))
    wanted = (0.5 * x.float() + y.float()).to(kind)
    nb.launch(axpy, 1000, [x, y, 0.5])
    assert torch.equal(y, wanted)


@pytest.mark.parametrize("kind", NARROW, ids=lambda kind: kind.__name__)
def test_functions_take_them(kind):
    x, y = np.array([1.0, -3.0, 4.0]).astype(kind), np.zeros(3, np.float32)
    nb.launch(halve, 3, [x, y])
    assert y.tolist() == [0.5, -1.5, 2.0]


@nb.kernel
def through_numpy(x, y):
    i = nb.tid()
    y[i] = np.sqrt(x[i]) + np.maximum(x[i], x[0]) + np.abs(-x[i]) + np.add(x[i], 1) + np.isnan(x[i]) + np.floor(x[i])


@nb.kernel
def through_numpy_in_a_loop(x, y):
    i = nb.tid()
    for k in range(4):
        y[i] += np.sqrt(x[(i + k) % x.size])


@pytest.mark.parametrize("kind", NARROW, ids=lambda kind: kind.__name__)
def test_functions_of_numpy_take_them(kind):
    x, y = np.array([1.0, 4.0, 2.25]).astype(kind), np.zeros(3, np.float32)
    f = x.astype(np.float32)
    wanted = np.sqrt(f) + np.maximum(f, f[0]) + f + (f + 1) + np.floor(f)
    nb.launch(through_numpy, 3, [x, y])
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    with emulated_cuda() as emulation:
        y[:] = 0
        nb.launch(through_numpy, 3, [emulation.on_device(x), emulation.on_device(y)])
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    y[:] = 0
    nb.launch(through_numpy_in_a_loop, 3, [x, y])
    np.testing.assert_allclose(y, np.sqrt(f).sum() + np.sqrt(f), rtol=1e-6)


def test_integers_comparisons_functions_and_branches():
    @nb.kernel
    def several(x, i16, y):
        i = nb.tid()
        v = x[i]
        if v > 0.0:
            w = nb.sqrt(v) + abs(-v) + max(v, x[0])
        else:
            w = v
        y[i] = w + i16[i]
        y[i] += 1

    x, k = np.array([4, -2, 9], nb.bfloat16), np.array([1, 2, 3], np.int16)
    y = np.zeros(3, nb.bfloat16)
    nb.launch(several, 3, [x, k, y])
    assert y.astype(float).tolist() == [12.0, 1.0, 25.0]


@pytest.mark.parametrize("kind", NARROW, ids=lambda kind: kind.__name__)
def test_functions_of_njit_take_and_return_them(kind):
    x, here, there = np.array([4, -2, 1], kind), np.array([1, 3, 2], kind), np.array([1, 3, 2], kind)
    nb.launch(at_least, 3, [x, here])
    with emulated_cuda() as device:
        nb.launch(at_least, 3, [device.on_device(x), device.on_device(there)])
    assert here.astype(float).tolist() == there.astype(float).tolist() == [8, 3.5, 3]


@nb.kernel
def functions_of_math(x, y):
    i = nb.tid()
    y[0, i] = math.exp(x[i])
    y[1, i] = math.sqrt(x[i]) * 1e-3 + math.fabs(x[i])
    y[2, i] = math.sin(x[i])
    y[3, i] = math.floor(x[i]) * 4.0 + math.tanh(x[i])


@pytest.mark.parametrize("kind", NARROW[:3], ids=lambda kind: kind.__name__)
def test_functions_of_math_compute_in_float32(kind):
    x = np.array([14.5, 0.3, 3.14], kind)
    wide = x.astype(np.float64)
    wanted = [np.exp(wide), np.sqrt(wide) * 1e-3 + wide, np.sin(wide), np.floor(wide) * 4 + np.tanh(wide)]
    for found in on_both(functions_of_math, 3, [x, np.zeros((4, 3), np.float32)]):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert "half" not in functions_of_math.ptx(x, np.zeros((4, 3), np.float32), capability=(9, 0), plain=True)


def test_elements_of_narrow_floats():
    @nb.kernel
    def double(x: nb.array[nb.vec3h], y: nb.array[nb.vec3h]):
        i = nb.tid()
        y[i] = x[i] * 2.0 + nb.vec3h(1.0, 0.0, 0.0) * nb.dot(x[i], x[i])

    x, y = torch.ones(4, 3, dtype=torch.float16), torch.zeros(4, 3, dtype=torch.float16)
    nb.launch(double, 4, [x, y])
    assert y.tolist() == [[5, 2, 2]] * 4


def test_scalars_of_narrow_floats_are_refused():
    @nb.kernel
    def scale(x: nb.array[float], a: nb.float16):
        x[nb.tid()] *= a

    with pytest.raises(nb.NumbridgeError, match="float16"):
        nb.launch(scale, 3, [np.ones(3, np.float32), 2.0])


@pytest.mark.parametrize("kind", [np.complex64, np.complex128])
def test_complex_arithmetic(kind):
    @nb.kernel
    def square(z, out):
        i = nb.tid()
        out[i] = z[i] * z[i].conjugate() / (z[i] + 1.0) - abs(z[i]) * 1j

    z = (RNG.standard_normal(8) + 1j * RNG.standard_normal(8)).astype(kind)
    out = np.zeros(8, kind)
    nb.launch(square, 8, [z, out])
    wanted = z * z.conj() / (z + 1) - abs(z) * 1j
    np.testing.assert_allclose(out, wanted, rtol=1e-5 if kind is np.complex64 else 1e-13)


def test_atomics_name_the_narrow_type_that_they_lack():
    @nb.kernel
    def count(x):
        i = nb.tid()
        nb.atomic_add(x, i, 1)

    with pytest.raises(nb.KernelError, match=r"not on float16; use an array of float32"):
        nb.launch(count, 1, [np.zeros(1, np.float16)])
