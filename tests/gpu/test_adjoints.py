"""Adjoints on a real GPU give what the CPU's give, also those that remember what loops overwrite."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from numbridge.kernels.adjoint import stacks_on_cuda
from numbridge.kernels.errors import DeviceError, KernelUnsupportedError


@nb.kernel
def wave(x, y):
    i = nb.tid()
    y[i] = math.sin(x[i]) * y[i]


@nb.kernel
def triangle(y, x):
    i = nb.tid()
    for k in range(i % 7):
        for m in range(k % 3):
            y[i] = y[i] * x[m] + math.sin(y[i])


@nb.kernel
def until_small(y, x):
    i = nb.tid()
    while y[i] > 0.1:
        y[i] = y[i] * x[i] - 0.01


@nb.kernel
def as_often_as_it_says(y, x, counts):
    i = nb.tid()
    for k in range(3):
        for _ in range(counts[i, k]):
            y[i, k] = y[i, k] * x[i]
            counts[i, (k + 1) % 3] = (counts[i, (k + 1) % 3] + 1) % 4


@nb.kernel
def in_local_memory(x, y):
    held = cuda.local.array(4, np.float64)
    i = nb.tid()
    for k in range(4):
        held[k] = x[k] * x[i]
    for k in range(1, 4):
        held[k] = held[k] * held[k - 1]
    y[i] = held[3] + held[1]


@nb.kernel
def grown(y, n):
    i = nb.tid()
    for _ in range(n):
        y[i] = y[i] + 0.001 * y[i] * (1.0 - y[i])


@nb.kernel
def squares(y, n):
    i = nb.tid()
    for _ in range(n):
        y[i] = y[i] * y[i] * 0.7


COUNT = 1000
random = np.random.default_rng(3)
y, x = random.uniform(0.1, 0.9, (2, COUNT))
CASES = [
    (wave, y, x),
    (triangle, y, x),
    (triangle, y.astype(np.float32), x.astype(np.float32)),
    (until_small, y, x),
    (as_often_as_it_says, random.uniform(0.5, 1.5, (COUNT, 3)), x + 0.5, random.integers(0, 4, (COUNT, 3))),
    (in_local_memory, x, y),
    (squares, y, 5),
]


@pytest.fixture
def cp():
    import cupy

    return cupy


def gradients(kernel, values, by, place):
    """Launch an adjoint over arrays in a place, check that the arguments are as they were, and return the gradients."""
    arguments, adjoints = ([place(v) if isinstance(v, np.ndarray) else v for v in each] for each in (values, by))
    nb.launch(kernel, COUNT, arguments, adj_inputs=adjoints, adjoint=True)
    for given, value in zip(arguments, values, strict=True):
        assert not isinstance(value, np.ndarray) or (nb.asarray(given).numpy() == value).all()
    return [nb.asarray(a).numpy() for a in adjoints if a is not None]


@pytest.mark.parametrize("threads", [1 << 18, 256])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1].dtype}")
def test_gradients_are_the_cpu_s(cp, monkeypatch, case, threads):
    monkeypatch.setattr(stacks_on_cuda, "_MOST_THREADS", threads)
    kernel, *values = case
    by = [np.ones_like(v) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else None for v in values]
    here = gradients(kernel, values, by, np.array)
    there = gradients(kernel, values, by, cp.asarray)
    # Where rounding decides when a loop ends, CPU and GPU may end a few of them a trip apart.
    within = 2e-4 if values[0].dtype == np.float32 else 1e-10
    for one, other in zip(here, there, strict=True):
        apart = ~np.isclose(one, other, rtol=within, atol=within)
        assert apart.mean() <= (0.01 if kernel is until_small else 0), (one[apart], other[apart])
    assert any((a != 1).any() for a in there)


@pytest.mark.parametrize("count", [1, 1000])
def test_many_trips(cp, count):
    y = np.random.default_rng(4).uniform(0.1, 0.9, COUNT)
    here, there = (gradients(grown, [y, count], [np.ones(COUNT), None], place)[0] for place in (np.array, cp.asarray))
    assert np.allclose(here, there, rtol=1e-10) and (there != 1).all()


@pytest.mark.alone
def test_memory_of_stacks_is_given_back(cp):
    values, by = [cp.full(COUNT, 0.5), 2000], [cp.ones(COUNT), None]
    nb.launch(squares, COUNT, values, adj_inputs=by, adjoint=True)
    nb.synchronize()
    before = cp.cuda.runtime.memGetInfo()[0]
    for _ in range(20):
        nb.launch(squares, COUNT, values, adj_inputs=by, adjoint=True)
    nb.synchronize()
    # One launch takes 1024 threads * 3 * 2000 entries * 8 bytes, about 50 MB.
    assert before - cp.cuda.runtime.memGetInfo()[0] < 60e6


def test_too_little_memory_is_said_before_anything_is_written(cp):
    y, by = cp.full(1 << 18, 0.5), cp.ones(1 << 18)
    with pytest.raises(DeviceError, match=r"adjoint of squares needs \d+ bytes of memory on cuda:0"):
        nb.launch(squares, y.size, [y, 1_000_000], adj_inputs=[by, None], adjoint=True)
    assert (y == 0.5).all() and (by == 1).all()


def test_a_capture_is_refused(cp):
    y, by = cp.full(COUNT, 0.5), cp.ones(COUNT)
    with nb.ScopedCapture() as capture:
        with pytest.raises(KernelUnsupportedError, match="that no graph captures"):
            nb.launch(squares, COUNT, [y, 3], adj_inputs=[by, None], adjoint=True)
        nb.launch(wave, COUNT, [by, y])
    nb.capture_launch(capture.graph)
    assert np.allclose(y.get(), 0.5 * math.sin(1.0)) and (by == 1).all()


def test_backward_of_an_operator():
    import torch

    op = nb.torch_op(squares_of, outputs="y", name="test_gpu_squares_of")
    found = []
    for device in ("cpu", "cuda"):
        x = torch.linspace(0.1, 0.9, COUNT, dtype=torch.float64, device=device, requires_grad=True)
        op(x, 4).sum().backward()
        found.append(x.grad.cpu())
    assert torch.allclose(*found, rtol=1e-10)


@nb.kernel
def squares_of(x, y, n):
    i = nb.tid()
    y[i] = x[i]
    for _ in range(n):
        y[i] = y[i] * y[i] + 0.1
