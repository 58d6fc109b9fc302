"""Tapes over arrays on a real GPU, of numbridge, CuPy and torch: their gradients are those that the CPU's have."""

from __future__ import annotations

import numpy as np
import pytest

import numbridge as nb
from tape_programs import PROGRAMS, VALUES, by_a_graph, optimised, square, three_times, total


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients(program):
    wanted, found = program("cpu"), program("cuda:0")
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.device == nb.get_device("cuda:0") and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)


def test_a_graph_of_launches_and_of_their_gradients():
    def and_others_use_memory(run):
        by_a_graph(run)
        # What the graph writes to is nobody else's.
        for made in [nb.ones(n, device="cuda") for n in (1, 4, 20, 100, 1000)]:
            assert made.numpy().all()

    wanted, found = optimised("cpu", three_times), optimised("cuda:0", and_others_use_memory)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)


def test_gradients_of_torch_s_tensors():
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.tensor(VALUES, device="cuda", requires_grad=True)
        y, loss = torch.zeros(4, device="cuda"), torch.zeros(1, device="cuda")
        with nb.Tape() as tape:
            nb.launch(square, 4, [x], [y])
            nb.launch(total, 4, [y], [loss])
        tape.backward(loss)
        assert x.grad.is_cuda and torch.allclose(x.grad, 2 * x.detach())


def test_gradients_by_cupy_s_arrays():
    import cupy

    x, y = nb.array(VALUES, device="cuda", requires_grad=True), cupy.zeros(4, np.float32)
    with nb.Tape() as tape:
        nb.launch(square, 4, [x], [y])
    tape.backward(grads=[(y, cupy.asarray(VALUES))])  # pairs, because CuPy's arrays have no hash
    np.testing.assert_allclose(x.grad.numpy(), 2 * VALUES**2)


@nb.kernel
def squared_norms(points: nb.array2d[float], norms: nb.array1d[float]):
    i = nb.tid()
    norms[i] = points[i, 0] * points[i, 0] + points[i, 1] * points[i, 1]


def test_adam_moves_points_on_the_gpu():
    import torch

    points = torch.rand((100, 2), device="cuda", requires_grad=True)
    shared, norms, loss = nb.from_torch(points), nb.zeros(100, device="cuda"), nb.zeros(1, device="cuda")
    optimiser, first = torch.optim.Adam([points], lr=0.05), 0.0
    for _ in range(100):
        optimiser.zero_grad()
        loss.zero_()
        with nb.Tape() as tape:
            nb.launch(squared_norms, 100, [shared], [norms])
            nb.launch(total, 100, [norms], [loss])
        tape.backward(loss)
        optimiser.step()
        first = first or float(loss.numpy()[0])
    assert float(loss.numpy()[0]) < 0.01 * first
