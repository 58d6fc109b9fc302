"""The handler for CUDA that answers XLA's calls, with kernels that run: their PTX on the CPU, over emulated devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from block_dim_cases import TILE, factors, places, places3, products
from call_frames import OPTIONS, Made, accumulate, add, scale
from emulated_cuda import emulated_cuda
from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as wl
from numbridge.jax_ffi.plan import Number, by_reference
from numbridge.jax_ffi.signature import NamedDims
from numbridge.kernels import scalars
from numbridge.kernels.cuda_backend import cuda_driver


@pytest.fixture
def device():
    with emulated_cuda() as emulation:
        for ordinal in range(cuda_driver.devices().driver.count()):
            cuda_driver.devices().prepare(ordinal)
        yield emulation


def run(device, made, arrays):
    """Run a frame through the handler for CUDA; its arrays are the device's."""
    for array in arrays:
        device.on_device(array)
    call = made.call
    levels = int(made.words[wl.WORD_LEVELS // 8])
    targets.enter_cuda(call.kernel, call.types, call.weak, by_reference(call.types, call.slots), levels)
    assert made.run(targets.room().cuda_handler) == 0, made.errors


def called(device, kernel, inputs, results, given=None, **options):
    """Call a kernel as XLA does; `results` are written, and `given` are the frame's own arguments if these are others."""
    made = Made(kernel, inputs, results, given=given, **options)
    run(device, made, [a for a in [*(given or inputs), *results] if isinstance(a, np.ndarray)])
    return results


def in_a_batch(device, kernel, inputs, results, levels=1, **options):
    """Call a kernel as `jax.vmap` does: arrays have `levels` leading axes, of extent 1 where nothing is mapped."""
    one = [a[(0,) * levels + (...,)] if isinstance(a, np.ndarray) else a for a in inputs]
    made = Made(kernel, one, [r[(0,) * levels] for r in results], WORD_LEVELS=levels, **options)
    operands = [a for a in inputs if isinstance(a, np.ndarray)]
    made.frame.args.args, made.frame.rets.rets = made._buffers(operands), made._buffers(results)
    run(device, made, [*operands, *results])
    return results


def floats(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def test_a_call(device):
    a, b = floats(1000), floats(1000)[::-1].copy()
    (out,) = called(device, add, [a, b], [np.full(1000, np.nan, np.float32)])
    assert np.array_equal(out, a + b)


def test_numbers_by_value_and_by_reference(device):
    x, s, out = floats(6, 300), np.array(0.5, np.float32), np.zeros((6, 300), np.float32)
    called(device, scale, [x, s, Number(int, 5)], [out])
    assert np.array_equal(out, x * s + 5)
    called(device, scale, [x, Number(float, 2.5), Number(int, -3)], [out])
    assert np.allclose(out, x * np.float32(2.5) - 3, rtol=1e-6)


def test_numbers_of_an_eager_call(device):
    x, out = floats(6, 300), np.zeros((6, 300), np.float32)
    numbers = np.zeros(8, np.uint32)
    numbers[:1].view(np.float32)[:] = 0.25
    numbers[4:6].view(np.int64)[:] = 7
    packed = [x, Number(float, None, packed=True), Number(int, None, packed=True)]
    called(device, scale, packed, [out], given=[numbers, x])
    assert np.array_equal(out, x * np.float32(0.25) + 7)


def test_results_start_as_they_must(device):
    x, total = floats(5), np.array([10.0], np.float32)
    results = [np.full(n, np.nan, np.float32) for n in (1, 5)]
    options = replace(OPTIONS, launch_dims=5)
    sums, seen = called(device, accumulate, [x, total], results, in_out=["total"], options=options)
    assert np.allclose(sums, 10 + x.sum()) and seen.tolist() == [0, *x[1:]] and total == 10


@pytest.mark.parametrize(("mapped", "extent"), [((1, 3), 3), ((3, 1), 3), ((3, 3), 3), ((1, 70000), 70000)])
def test_batches(device, mapped, extent):
    a, b = floats(mapped[0], 10), floats(mapped[1], 10)
    (out,) = in_a_batch(device, add, [a, b], [np.full((extent, 10), np.nan, np.float32)])
    assert np.array_equal(out, a + b)


def test_batches_of_batches(device):
    a, b = floats(1, 4, 10), floats(3, 1, 10)
    (out,) = in_a_batch(device, add, [a, b], [np.full((3, 4, 10), np.nan, np.float32)], levels=2)
    assert np.array_equal(out, a + b)


def test_a_batch_of_numbers(device):
    x, s = floats(1, 6, 3), np.array([0.5, -2.0], np.float32)
    (out,) = in_a_batch(device, scale, [x, s, Number(int, 5)], [np.zeros((2, 6, 3), np.float32)])
    assert np.allclose(out, x * s[:, None, None] + 5, rtol=1e-6)


def test_results_of_a_batch_start_as_they_must(device):
    x, total = floats(3, 5), np.array([[10.0], [20.0], [30.0]], np.float32)
    results = [np.full(shape, np.nan, np.float32) for shape in ((3, 1), (3, 5))]
    options = {"in_out": ["total"], "options": replace(OPTIONS, launch_dims=5)}
    sums, seen = in_a_batch(device, accumulate, [x, total], results, **options)
    assert np.allclose(sums, total + x.sum(1, keepdims=True)) and np.array_equal(seen[:, 1:], x[:, 1:])
    assert not seen[:, 0].any()


@nb.kernel
def stencil(x: nb.array2d[float], s: float, out: nb.array2d[float]):
    i, j = nb.tid()
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        out[i, j] = s * (x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@pytest.mark.parametrize("columns", [128, 127])
def test_batches_of_stencils(device, columns):
    """Threads of a large grid take pairs of columns where rows are aligned to them, in each element of a batch."""
    x, s = np.floor(4 * floats(24, 22, columns)), np.arange(-8, 16).astype(np.float32)
    options = replace(OPTIONS, block_dim=32)
    (out,) = in_a_batch(device, stencil, [x, s], [np.full(x.shape, 7, np.float32)], options=options)
    inner = x[:, :-2, 1:-1] + x[:, 2:, 1:-1] + x[:, 1:-1, :-2] + x[:, 1:-1, 2:]
    assert np.array_equal(out[:, 1:-1, 1:-1], s[:, None, None] * inner)


@nb.kernel
def through_shared(x: nb.array[float], out: nb.array[float]):
    here = cuda.shared.array(256, nb.float32)
    i = nb.tid()
    here[i % 256] = x[i]
    cuda.syncthreads()
    out[i] = here[255 - i % 256]


def test_what_is_a_blocks_own_is_a_launch_for_each_element(device, monkeypatch):
    # Nothing is compiled for the CPU, which has no blocks.
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    x = floats(3, 256)
    (out,) = in_a_batch(device, through_shared, [x], [np.zeros((3, 256), np.float32)])
    assert np.array_equal(out, x[:, ::-1])


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("block", [(2, 3, 4), (1, 3), 4], ids=repr)
def test_blocks_of_a_given_shape(device, symbolic, block):
    dims = (5, 6, 7)
    options = replace(OPTIONS, launch_dims=dims, output_dims=NamedDims((("out", (*dims, 12)),)), block_dim=block)
    (out,) = called(device, places3, [], [np.full((*dims, 12), -1, np.int32)], options=options, symbolic=symbolic)
    assert np.array_equal(out, places(dims, block if isinstance(block, tuple) else (block,)))


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_product_of_matrices_in_tiles(device, symbolic):
    a, b = factors()
    options = replace(OPTIONS, launch_dims=(8, 16), output_dims=(8, 16), block_dim=(TILE, TILE))
    (c,) = called(device, products, [a, b], [np.zeros((8, 16), np.float32)], options=options, symbolic=symbolic)
    assert np.allclose(c, a @ b, atol=1e-5)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("block", [(1, 2, 8), (4, 4), 32], ids=repr)
def test_blocks_of_a_kernel_that_does_not_ask(device, symbolic, block):
    x = floats(3, 4, 5, 6)
    options = replace(OPTIONS, block_dim=block)
    (out,) = called(device, copied4, [x], [np.full(x.shape, np.nan, np.float32)], options=options, symbolic=symbolic)
    assert np.array_equal(out, x)


@nb.kernel
def copied4(x: nb.array4d[float], out: nb.array4d[float]):
    i, j, k, m = nb.tid()
    out[i, j, k, m] += x[i, j, k, m]


@nb.kernel
def turned(m: nb.array[nb.mat22], s: float, v: nb.vec2, out: nb.array[nb.vec2], total: nb.array[float]):
    i = nb.tid()
    out[i] = m[i] @ v * s
    nb.atomic_add(total, 0, s)


def test_a_batch_of_matrices_with_vectors_and_numbers_by_reference(device):
    m, s, v = floats(2, 5, 2, 2), np.array([0.5, 3.0], np.float32), floats(1, 2)
    results = [np.full(shape, np.nan, np.float32) for shape in ((2, 5, 2), (2, 1))]
    options = replace(OPTIONS, launch_dims=5, output_dims=NamedDims((("out", 5), ("total", 1))))
    out, total = in_a_batch(device, turned, [m, s, v], results, options=options)
    assert np.allclose(out, np.einsum("bnij,j->bni", m, v[0]) * s[:, None, None], rtol=1e-5)
    assert np.allclose(total[:, 0], 5 * s)


@nb.kernel
def powers(x: nb.array1d[float], y: nb.array1d[float], n: int):
    i = nb.tid()
    y[i] = x[i]
    for _ in range(n):
        y[i] = y[i] * y[i]


def test_an_adjoint_that_needs_memory_is_no_code_for_the_compiled_handler(device):
    adjoint = powers.adjoint(["x", "y"])
    types = adjoint.typed(
        targets.types_of(powers, [(scalars.by_name("float32"), 1)] * 2 + [(scalars.by_name("int32"), None)], "float32"),
        "float32",
    )
    with pytest.raises(
        nb.NumbridgeError, match=r"measured by a launch from Python.*\n.*test_emulated_jax.py:\d+:\d+\n.*y\[i\]\n +\^"
    ):
        targets.enter_cuda(adjoint, types, "float32")
    targets.enter_cuda(powers, types[:3], "float32")


def test_the_adjoint_of_a_product_in_tiles_needs_no_memory_in_a_call(device):
    """Each trip of its loop fills the tiles before it reads them."""
    adjoint = products.adjoint(["a", "b", "c"])
    arrays = targets.types_of(products, [(scalars.by_name("float32"), 2)] * 3, "float32")
    targets.enter_cuda(adjoint, adjoint.typed(arrays, "float32"), "float32")
