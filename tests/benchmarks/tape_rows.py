"""Tapes against Warp's: many small launches are recorded, and gone back through."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import warp as wp
import warp_kernels

import numbridge as nb

LAUNCHES, SIZE, LARGE = 100, 1000, 1_000_000


@nb.kernel
def square(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


def _chain(count: int, size: int, check_contents: bool) -> Callable[[], None]:
    """Return a chain of launches of ours, from the first array to the last, and back."""
    first, *others = (nb.ones(size, dtype=nb.float32, device="cpu") for _ in range(count + 1))
    first.requires_grad = True
    arrays, seed = [first, *others], nb.ones(size, dtype=nb.float32, device="cpu")

    def run() -> None:
        with nb.Tape(check_contents=check_contents) as tape:
            for x, y in itertools.pairwise(arrays):
                nb.launch(square, size, [x], [y])
        tape.backward(grads={arrays[-1]: seed})

    return run


def _peers_chain(count: int, size: int) -> Callable[[], None]:
    """Return the same of Warp's, which keeps a gradient for each array."""
    ones = np.ones(size, np.float32)
    arrays = [wp.array(ones, dtype=float, device="cpu", requires_grad=True) for _ in range(count + 1)]
    seed = wp.array(ones, dtype=float, device="cpu")

    def run() -> None:
        with wp.Tape() as tape:
            for x, y in itertools.pairwise(arrays):
                wp.launch(warp_kernels.square, size, [x], [y], device="cpu")
        tape.backward(grads={arrays[-1]: seed})
        tape.zero()

    return run


def chains(bench: Any) -> None:
    """Compare chains of launches, of small arrays and of large ones, with and without a look at contents."""
    for count, size, limits in (
        (1, SIZE, (1.2, 1.2)),
        (LAUNCHES, SIZE, (1.0, 0.9)),
        (10, LARGE, (None, None)),
    ):
        for check_contents, limit in zip((True, False), limits, strict=True):
            looked = "contents checked" if check_contents else "contents not checked"
            bench.compare(
                f"a tape of {count} launch{'es' if count > 1 else ''}, {size} elements, and back, {looked}",
                _chain(count, size, check_contents),
                {"Warp, which checks none": (_peers_chain(count, size), limit)},
            )
