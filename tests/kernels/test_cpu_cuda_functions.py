"""Functions of numba.cuda that need no block of threads, and its random numbers, on the CPU: the values that CUDA gives."""

import math
import re

import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import (
    init_xoroshiro128p_state,
    init_xoroshiro128p_states_cpu,
    xoroshiro128p_dtype,
    xoroshiro128p_normal_float64,
    xoroshiro128p_uniform_float32,
)

from emulated_cuda import emulated_cuda, on_both
from numbridge.kernels.errors import BufferAccessError, KernelError
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch


@kernel
def bits(x, out):
    i = tid()
    out[i, 0] = cuda.popc(x[i])
    out[i, 1] = cuda.clz(x[i])
    out[i, 2] = cuda.selp(x[i] > 5, 1, 2)
    cuda.threadfence()


@kernel
def first_set(x, out):
    i = tid()
    out[i] = cuda.ffs(x[i])


@kernel
def reversed_bits(x, out):
    i = tid()
    out[i] = cuda.brev(x[i])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_bits(dtype):
    width, limits = np.dtype(dtype).itemsize * 8, np.iinfo(dtype)
    x = np.array([0, 1, 6, 100, limits.min, limits.max, limits.max - 3], dtype)
    raw = [int(value) % (1 << width) for value in x]
    out = np.zeros((len(x), 3), np.int64)
    launch(bits, len(x), [x, out])
    wanted = [[r.bit_count(), width - r.bit_length(), 1 if v > 5 else 2] for r, v in zip(raw, x, strict=True)]
    assert out.tolist() == wanted
    if width >= 32:  # numba.cuda compiles these for no other
        found = np.zeros(len(x), np.int64)
        launch(first_set, len(x), [x, found])
        assert found.tolist() == [(r & -r).bit_length() for r in raw]
    if dtype in ("uint32", "uint64"):
        launch(reversed_bits, len(x), [x, x])
        assert x.tolist() == [int(f"{r:0{width}b}"[::-1], 2) for r in raw]


@kernel
def parts(x, y, out):
    i = tid()
    out[i, 0] = cuda.fma(x[i], y[i], 2.0)
    out[i, 1] = cuda.cbrt(x[i])
    out[i, 2] = math.fmod(x[i], y[i])
    rest, whole = math.modf(x[i])
    out[i, 3] = rest
    out[i, 4] = whole


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@np.errstate(invalid="ignore")
def test_functions_of_floats(dtype):
    x = np.array([1.5, -7.25, 27.0, np.inf, -np.inf, -0.0, np.nan, 1e-3], dtype)
    y = np.array([2, 3, -4, 1, 1, 1, 1, 0], dtype)
    out = np.zeros((len(x), 5), dtype)
    launch(parts, len(x), [x, y, out])
    wanted = np.stack([x * y + 2, np.cbrt(x), np.fmod(x, y), *np.modf(x)], 1)
    np.testing.assert_allclose(out, wanted, rtol=1e-6 if dtype == "float32" else 1e-14)
    numbers = ~np.isnan(wanted)
    assert (np.signbit(out) == np.signbit(wanted))[numbers].all()


def test_one_rounding():
    x = np.array([1 + 2.0**-12], np.float32)
    out = np.zeros((1, 5), np.float32)
    launch(parts, 1, [x, x, out])
    assert out[0, 0] == np.float32(float(x[0]) ** 2 + 2)


def test_remainders_of_integers_are_floats():
    @kernel
    def remainder(x, y, out):
        i = tid()
        out[i] = math.fmod(x[i], y[i]) / 2

    out = np.zeros(2)
    launch(remainder, 2, [np.array([7, -7]), np.array([4, 4]), out])
    assert out.tolist() == [1.5, -1.5]


def test_derivatives():
    @kernel
    def root(x, y):
        i = tid()
        y[i] = cuda.cbrt(x[i]) + math.fmod(x[i], 5.0)

    by_x = np.zeros(1)
    launch(root, 1, [np.array([8.0]), np.zeros(1)], adj_inputs=[by_x, np.ones(1)], adjoint=True)
    assert by_x[0] == pytest.approx(1 / 12 + 1)

    @kernel
    def fenced(x, y):
        i = tid()
        y[i] = x[i]
        cuda.threadfence()

    with pytest.raises(KernelError, match=re.escape("cuda.threadfence has no derivative here")):
        launch(fenced, 1, [by_x, np.zeros(1)], adj_inputs=[np.zeros(1), np.ones(1)], adjoint=True)


@kernel
def of_bits(x, masks, y):
    i = tid()
    total = 0.0
    for j in range(cuda.popc(masks[i])):
        factor = cuda.selp(cuda.ffs(masks[j]) > 1, x[i], 2.0 * x[j])
        total = cuda.fma(x[i], total, x[j] * factor)
    y[i] = x[i] * cuda.clz(masks[i]) + (cuda.brev(masks[i]) & 1) + total


def wanted_of_bits(x, masks):
    y = np.zeros(len(x))
    for i, mask in enumerate(map(int, masks)):
        total = 0.0
        for j in range(mask.bit_count()):
            factor = 2.0 * x[j] if int(masks[j]) & 1 else x[i]
            total = x[i] * total + x[j] * factor
        y[i] = x[i] * (32 - mask.bit_length()) + (mask >> 31) + total
    return y


def test_derivatives_where_bits_decide():
    generator = np.random.default_rng(3)
    x, direction, weights = generator.normal(size=(3, 40))
    masks = generator.integers(0, 1 << 32, 40, dtype=np.uint32)
    y = np.zeros(40)
    launch(of_bits, 40, [x, masks, y])
    np.testing.assert_allclose(y, wanted_of_bits(x, masks), rtol=1e-10)
    step = 1e-6 * direction
    differences = (wanted_of_bits(x + step, masks) - wanted_of_bits(x - step, masks)) @ weights / 2e-6
    by_x = np.zeros(40)
    of_bits.adjoint(["x", "y"]).forall(40)(x, masks, y.copy(), by_x, weights.copy())
    np.testing.assert_allclose(by_x @ direction, differences, rtol=1e-6)
    with emulated_cuda() as emulation:
        there = np.zeros(40)
        given = (x, masks, y.copy(), there, weights.copy())
        of_bits.adjoint(["x", "y"]).forall(40)(*map(emulation.on_device, given))
    np.testing.assert_allclose(there, by_x, rtol=1e-12)


@kernel
def draw(states, out):
    i = tid()
    out[i, 0] = xoroshiro128p_uniform_float32(states, i)
    out[i, 1] = xoroshiro128p_normal_float64(states, i)


def test_random_numbers():
    states = np.zeros(2000, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 7, 0)
    wanted, out = np.zeros((2, 2)), np.zeros((2000, 2))
    for i in range(2):
        copy = states.copy()
        wanted[i] = xoroshiro128p_uniform_float32(copy, i), xoroshiro128p_normal_float64(copy, i)
    before = states.copy()
    launch(draw, 2000, [states, out])
    assert (out[:2] == wanted).all() and not (states == before).any()
    assert abs(out.mean(0) - (0.5, 0)).max() < 0.05 and abs(out.std(0) - (math.sqrt(1 / 12), 1)).max() < 0.05


def test_states_are_written_to():
    states = np.zeros(1, xoroshiro128p_dtype)
    states.flags.writeable = False
    with pytest.raises(BufferAccessError, match=r"'states'.*read-only"):
        launch(draw, 1, [states, np.zeros((1, 2))])


def test_states_from_seeds():
    @kernel
    def start(states, seed):
        i = tid()
        init_xoroshiro128p_state(states, i, seed)

    states, wanted = np.zeros(1, xoroshiro128p_dtype), np.zeros(1, xoroshiro128p_dtype)
    launch(start, 1, [states, 42])
    init_xoroshiro128p_states_cpu(wanted, 42, 0)
    assert states.tolist() == wanted.tolist()


@kernel
def nearest(x, y, out):
    i = tid()
    out[i] = math.remainder(x[i], y[i])


def expected_remainder(x, y):
    return math.nan if math.isinf(x) or y == 0 else math.remainder(x, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_the_nearest_multiple(dtype):
    generator, limits = np.random.default_rng(4), np.finfo(dtype)
    special = [
        0.0,
        -0.0,
        1.5,
        -2.5,
        3,
        5,
        -7,
        limits.max,
        limits.tiny,
        limits.smallest_subnormal,
        np.inf,
        -np.inf,
        np.nan,
    ]
    pairs = np.stack(np.meshgrid(special, special), -1).reshape(-1, 2)
    drawn = generator.normal(size=(300, 2)) * 10.0 ** generator.integers(-20, 20, (300, 2))
    x, y = np.concatenate([pairs, drawn, generator.integers(-9, 9, (200, 2)) / 2]).astype(dtype).T.copy()
    here, there = on_both(nearest, len(x), [x, y, np.zeros_like(x)])
    wanted = np.array([expected_remainder(float(a), float(b)) for a, b in zip(x, y, strict=True)])
    for found in (here, there):
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found[wanted == 0]), np.signbit(wanted[wanted == 0]))


def test_derivatives_of_remainders():
    x, y = np.array([7.3, -7.3, 2.2, 5.9]), np.array([2.0, 2.0, -1.5, 4.0])
    by_x, by_y = np.zeros(4), np.zeros(4)
    nearest.adjoint(["x", "y", "out"]).forall(4)(x, y, np.zeros(4), by_x, by_y, np.ones(4))
    np.testing.assert_array_equal(by_x, 1)
    np.testing.assert_array_equal(by_y, -np.rint(x / y))


@kernel
def counted(x, out):
    i = tid()
    out[i] = x[i].bit_count()


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "int32"])
def test_bit_count(dtype):
    x = np.array([0, 1, 77, np.iinfo(dtype).max], dtype)
    here, there = on_both(counted, 4, [x, np.zeros(4, np.int64)])
    assert here.tolist() == there.tolist() == [int(value).bit_count() for value in x]
