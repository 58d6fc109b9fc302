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

from numbridge.kernels.errors import BufferAccessError, KernelError
from numbridge.kernels.intrinsics import tid
from numbridge.kernels.kernel import kernel
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
    def fused(x, y):
        i = tid()
        y[i] = cuda.fma(x[i], x[i], 1.0)

    with pytest.raises(KernelError, match=re.escape("cuda.fma has no derivative here")):
        launch(fused, 1, [by_x, np.zeros(1)], adj_inputs=[np.zeros(1), np.ones(1)], adjoint=True)


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
