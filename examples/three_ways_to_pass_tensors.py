"""Three ways to pass a framework's tensors to a launch, and what each costs: converted, as descriptors, and directly.

A conversion makes an array of numbridge's, with gradients and methods; `return_ctype=True` leaves out what a launch does
not need; direct passing leaves out the conversion. Where tensors are the same each time, converting once is as good as any.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import paddle
import torch

import numbridge as nb

N, ROUNDS = 100, 2000


@nb.kernel
def saxpy(x: nb.array[float], y: nb.array[float], a: float):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


def microseconds(run: Callable[[], object]) -> float:
    """Return the best of three averages."""
    averages = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(ROUNDS):
            run()
        averages.append((time.perf_counter() - start) / ROUNDS * 1e6)
    return min(averages)


def ways(x, y, convert: Callable[..., nb.Array]) -> dict[str, Callable[[], object]]:
    """Return the launches, on the tensors of one framework and with its conversion."""
    mine = convert(x), convert(y)
    fast = saxpy.forall(N)
    return {
        "converted each time": lambda: nb.launch(saxpy, N, [convert(x), convert(y), 1.0]),
        "converted once": lambda: nb.launch(saxpy, N, [*mine, 1.0]),
        "return_ctype=True": lambda: nb.launch(
            saxpy, N, [convert(x, return_ctype=True), convert(y, return_ctype=True), 1.0]
        ),
        "direct": lambda: nb.launch(saxpy, N, [x, y, 1.0]),
        "direct, forall": lambda: fast(x, y, 1.0),
    }


def main() -> None:
    """Time every way on torch's and Paddle's tensors; all of them must have added x to y as often."""
    for name, x, y, convert in (
        ("torch", torch.ones(N), torch.zeros(N), nb.from_torch),
        ("paddle", paddle.ones([N]), paddle.zeros([N]), nb.from_paddle),
    ):
        launches = 0
        for way, run in ways(x, y, convert).items():
            print(f"{name:7s} {way:20s} {microseconds(run):7.2f} us")
            launches += 3 * ROUNDS
        assert np.array_equal(y.numpy(), np.full(N, launches, np.float32))


if __name__ == "__main__":
    main()
