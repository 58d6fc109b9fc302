"""Moves 100 points to the origin with Adam, through each of the four ways in which an optimiser can get at the gradient.

`from_torch` and `from_paddle` start from a framework's tensor, `to_torch` and `to_paddle` from an array of numbridge's.
Whichever it is, tensor and array are the same memory with the same gradient: what `Tape.backward` leaves in it, the
framework's optimiser reads, and the points that the optimiser moves are those that the next launch sees.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import torch

import numbridge as nb

POINTS, STEPS, RATE = 100, 500, 0.1
DEVICE = "cpu"  # where gradients run, in this version


@nb.kernel
def squared_norm(points: nb.array2d[float], total: nb.array1d[float]):
    i = nb.tid()
    nb.atomic_add(total, 0, points[i, 0] ** 2.0 + points[i, 1] ** 2.0)


def minimise(points: nb.Array, step: Callable[[], None]) -> float:
    """Take 500 steps, each along a gradient of its own, and return the loss after the last."""
    total = nb.zeros(1, device=points.device)
    for _ in range(STEPS):
        total.zero_()
        with nb.Tape() as tape:
            nb.launch(squared_norm, POINTS, [points], [total])
        tape.backward(loss=total)
        step()
    total.zero_()
    nb.launch(squared_norm, POINTS, [points], [total], record_tape=False)
    return float(total.numpy()[0])


def stepping(optimiser: torch.optim.Optimizer) -> Callable[[], None]:
    """Return one step of an optimiser of torch's, which forgets the gradient afterwards."""

    def step() -> None:
        optimiser.step()
        optimiser.zero_grad()

    return step


def stepping_paddle(tensor: paddle.Tensor) -> Callable[[], None]:
    """Return one step of Paddle's Adam on a tensor, which forgets the gradient afterwards."""
    optimiser = paddle.optimizer.Adam(learning_rate=RATE, parameters=[tensor])

    def step() -> None:
        optimiser.step()
        optimiser.clear_grad()

    return step


def through_from_torch(start: np.ndarray) -> float:
    """Optimise a tensor, which kernels see as an array."""
    points = torch.tensor(start, requires_grad=True)
    return minimise(nb.from_torch(points), stepping(torch.optim.Adam([points], lr=RATE)))


def through_to_torch(start: np.ndarray) -> float:
    """Optimise an array, which torch sees as a tensor."""
    points = nb.array(start, device=DEVICE, requires_grad=True)
    return minimise(points, stepping(torch.optim.Adam([nb.to_torch(points)], lr=RATE)))


def through_from_paddle(start: np.ndarray) -> float:
    """Optimise a Paddle tensor, which kernels see as an array."""
    points = paddle.to_tensor(start, place=DEVICE, stop_gradient=False)
    return minimise(nb.from_paddle(points), stepping_paddle(points))


def through_to_paddle(start: np.ndarray) -> float:
    """Optimise an array, which Paddle sees as a tensor."""
    points = nb.array(start, device=DEVICE, requires_grad=True)
    return minimise(points, stepping_paddle(nb.to_paddle(points)))


def main() -> None:
    """Go all four ways from the same points."""
    start = np.random.default_rng(42).normal(size=(POINTS, 2)).astype(np.float32)
    print(f"at the start: {(start**2).sum():.3f}")
    for way in (through_from_torch, through_to_torch, through_from_paddle, through_to_paddle):
        loss = way(start)
        print(f"{way.__name__}: {loss:.3g}")
        assert loss < 1e-6, (way.__name__, loss)


if __name__ == "__main__":
    main()
