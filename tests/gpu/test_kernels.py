"""Kernels on a real GPU: what they compute, in every form of launch."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numba import cuda

import numbridge as nb


@nb.kernel
def saxpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


@nb.kernel
def number1(x):
    i = nb.tid()
    x[i] = i


@nb.kernel
def number2(x):
    i, j = nb.tid()
    x[i, j] = i * 1000 + j


@nb.kernel
def number3(x):
    i, j, k = nb.tid()
    x[i, j, k] = (i * 100 + j) * 100 + k


@nb.kernel
def number4(x):
    i, j, k, m = nb.tid()
    x[i, j, k, m] = ((i * 10 + j) * 10 + k) * 10 + m


@pytest.fixture
def cp():
    import cupy

    return cupy


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "complex64"])
def test_saxpy_on_cupy_s_arrays(cp, dtype):
    x, y = cp.arange(1000).astype(dtype), cp.ones(1000, dtype)
    nb.launch(saxpy, 1000, [x, y, np.dtype(dtype).type(3)])
    assert (y.get() == 3 * np.arange(1000).astype(dtype) + 1).all()


@pytest.mark.parametrize(
    ("kernel", "shape", "scale"),
    [
        (number1, (1000,), (1,)),
        (number2, (7, 900), (1000, 1)),
        (number2, (900, 3), (1000, 1)),
        (number3, (3, 50, 70), (10000, 100, 1)),
        (number4, (3, 5, 7, 9), (1000, 100, 10, 1)),
    ],
)
@pytest.mark.parametrize("options", [{}, {"block_dim": 33}, {"max_blocks": 2}, {"block_dim": 1024, "max_blocks": 1}])
def test_every_id_runs_and_none_beyond(cp, kernel, shape, scale, options):
    whole = cp.full(tuple(n + 2 for n in shape), -1, np.int64)
    part = whole[tuple(slice(1, -1) for _ in shape)]
    nb.launch(kernel, shape, [part], **options)
    expected = sum(s * i for s, i in zip(scale, np.indices(shape), strict=True))
    assert (part.get() == expected).all()
    assert int((whole.get() == -1).sum()) == whole.size - part.size


def test_more_than_2_to_the_31_threads(cp):
    @nb.kernel
    def mark(x):
        i = nb.tid()
        x[i] = 1

    x = cp.zeros((1 << 31) + 1000, np.int8)
    nb.launch(mark, x.size, [x])
    assert int(x.sum(dtype=np.int64)) == x.size


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_large_launches_of_several_ids_for_each_thread(cp, dtype):
    x = cp.arange(5_000_011).astype(dtype)
    y = cp.ones_like(x)
    nb.launch(saxpy, x.size, [x, y, np.dtype(dtype).type(3)])
    assert (y == 3 * x + 1).all()


@nb.kernel
def summed(x, y):
    i, j = nb.tid()
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        y[i, j] = x[i, j] + x[i - 1, j] + 2 * x[i + 1, j] + 3 * x[i, j - 1] + 4 * x[i, j + 1]


# Pairs of columns, and single ones where rows are not aligned
@pytest.mark.parametrize("shape", [(2050, 4100), (2051, 4099), (70_000, 64)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_large_stencils(cp, shape, dtype, transposed):
    x, y = cp.random.default_rng(0).integers(-99, 99, shape).astype(dtype), cp.full(shape, 7, dtype)
    if transposed:
        x, y = x.T, y.T
    nb.launch(summed, x.shape, [x, y])
    inner = x[1:-1, 1:-1] + x[:-2, 1:-1] + 2 * x[2:, 1:-1] + 3 * x[1:-1, :-2] + 4 * x[1:-1, 2:]
    assert (y[1:-1, 1:-1] == inner).all()
    y[1:-1, 1:-1] = 7
    assert (y == 7).all()


def test_shared_memory_syncthreads_and_warp_operations(cp):
    @nb.kernel
    def reverse(x, y):
        shared = cuda.shared.array(128, nb.float32)
        i, t = cuda.grid(1), cuda.threadIdx.x
        shared[t] = x[i]
        cuda.syncthreads()
        y[i] = shared[cuda.blockDim.x - 1 - t]

    @nb.kernel
    def neighbour(x, y):
        i = cuda.grid(1)
        y[i] = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)

    x, y = cp.arange(512, dtype=np.float32), cp.zeros(512, np.float32)
    reverse[4, 128](x, y)
    assert (y.get() == np.arange(512).reshape(4, 128)[:, ::-1].ravel()).all()
    nb.launch(reverse, 512, [x, y], block_dim=128)
    assert (y.get() == np.arange(512).reshape(4, 128)[:, ::-1].ravel()).all()
    neighbour[4, 128](x, y)
    inner = np.arange(512) % 32 != 31
    assert (y.get()[inner] == (np.arange(512) + 1)[inner]).all()


def test_dynamic_shared_memory_beyond_48_kilobytes(cp):
    @nb.kernel
    def through(x):
        shared = cuda.shared.array(0, nb.float64)
        t = cuda.threadIdx.x
        last = 10_000 - 1 - t
        shared[last] = x[t]
        cuda.syncthreads()
        x[t] = 2 * shared[last]

    @nb.kernel
    def beside(x):
        shared, constant = cuda.shared.array(0, nb.float64), cuda.shared.array(2560, nb.float64)
        t = cuda.threadIdx.x
        shared[5000 - t], constant[2559 - t] = x[t], x[t] + 1
        cuda.syncthreads()
        x[t] = shared[5000 - t] + constant[2559 - t]

    x = cp.ones(256)
    for size in (80_000, 100_000, 80_008, 100_000):
        through[1, 256, None, size](x)
    assert (x.get() == 16).all()
    # 20 KiB of constant shape leave 28 of the 48 KiB that are granted unasked.
    beside[1, 256, None, 8 * 5001](x)
    assert (x.get() == 33).all()
    with pytest.raises(nb.DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        through[1, 256, None, 10_000_000](x)


def test_a_cooperative_kernel(cp):
    @nb.kernel
    def spread(x):
        i = cuda.grid(1)
        if i == 0:
            x[0] = 5.0
        cuda.cg.this_grid().sync()
        x[i] = x[0] + i

    x = cp.zeros(512, np.float32)
    spread[4, 128](x)
    assert (x.get() == 5 + np.arange(512)).all()


def test_atomics(cp):
    @nb.kernel
    def count(x, m, e, c):
        i = nb.tid()
        nb.atomic_add(x, -1, 1.0)
        nb.atomic_max(m, 0, i)
        nb.atomic_exch(e, 0, 2.5)
        nb.atomic_cas(c, 0, -0.0, 7.0)

    x, m, e, c = (cp.zeros(1, t) for t in (np.float32, np.int64, np.float32, np.float64))
    nb.launch(count, 10_000, [x, m, e, c])
    assert [float(v[0]) for v in (x, m, e, c)] == [10_000, 9_999, 2.5, 7.0]


def test_existing_cuda_jit_kernels_and_device_functions(cp):
    @cuda.jit(device=True)
    def square(v):
        return v * v

    @cuda.jit
    def old(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = square(x[i])

    kernel, x = nb.kernel(old), cp.arange(100, dtype=np.float64)
    kernel[4, 32](x)
    assert (x.get() == np.arange(100.0) ** 2).all()


def test_threads_launch_at_once(cp):
    arrays = [cp.zeros(1000, np.float32) for _ in range(8)]
    run = saxpy.forall(1000)

    def work(y):
        with cp.cuda.Stream(non_blocking=True) as stream:
            x = cp.ones(1000, np.float32)
            for _ in range(500):
                run(x, y, 1.0)
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(y,)) for y in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((y.get() == 500).all() for y in arrays)


def test_no_launch_grows_memory_or_references(cp):
    import sys

    x, y = cp.ones(10, np.float32), cp.ones(10, np.float32)
    run = saxpy.forall(10)
    run(x, y, 0.0)
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(100_000):
        run(x, y, 0.0)
    cp.cuda.runtime.deviceSynchronize()
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before


def test_an_error_of_the_kernel_is_reported_by_name(tmp_path):
    # A broken context breaks everything after it, so a process of its own dies of it.
    import subprocess
    import sys
    import textwrap

    program = """
        import cupy, numbridge as nb

        @nb.kernel
        def wild(x, at):
            i = nb.tid()
            x[at[i]] = 1.0

        nb.launch(wild, 10, [cupy.zeros(10), cupy.full(10, 1 << 40)])
        try:
            nb.synchronize()
        except nb.DeviceError as error:
            print(error)
    """
    (file := tmp_path / "wild.py").write_text(textwrap.dedent(program))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300, check=False)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done.stderr
