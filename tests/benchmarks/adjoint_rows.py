"""Adjoints against Warp's on the CPU, and what they cost beside what they are the adjoint of.

Warp's documentation is followed in how its adjoints are launched. Its answer for loops that overwrite a variable is wrong; it
is timed all the same.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import numbridge as nb

COUNT = 1 << 22
SIDE = 1 << 11
TRIPS, LOOPS = 50, 400_000
TESTS = Path(__file__).resolve().parents[1]


@nb.kernel
def saxpy(x, y, out, a):
    i = nb.tid()
    out[i] = a * x[i] + y[i]


@nb.kernel
def polynomial(x, out):
    i = nb.tid()
    t = x[i]
    if t > 0.5:
        out[i] = ((3.0 * t - 2.0) * t + 1.0) * t
    else:
        out[i] = (t - 4.0) * t


@nb.kernel
def elementary(x, out):
    i = nb.tid()
    out[i] = math.sin(x[i]) * math.exp(-x[i]) + math.sqrt(x[i] + 1.0) * math.cos(x[i])


@nb.kernel
def stencil(x, out):
    i, j = nb.tid()
    if i > 0 and j > 0 and i < x.shape[0] - 1 and j < x.shape[1] - 1:
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@nb.kernel
def loop(x, out, trips):
    i = nb.tid()
    s = x[i]
    for _ in range(trips):
        s = s + 0.1 * s * (1.0 - s)
    out[i] = s


# name -> kernel, number of arrays that are read, shape, further arguments, what the ratio to Warp must not exceed
WORK: dict[str, tuple[Any, int, tuple[int, ...], tuple[Any, ...], float]] = {
    "saxpy": (saxpy, 2, (COUNT,), (2.0,), 0.15),
    "polynomial with a branch": (polynomial, 1, (COUNT,), (), 0.2),
    "sin, exp, sqrt, cos": (elementary, 1, (COUNT,), (), 0.5),
    "five-point stencil": (stencil, 1, (SIDE, SIDE), (), 0.6),
    f"loop of {TRIPS} trips": (loop, 1, (LOOPS,), (TRIPS,), 1.5),
}


def title(name: str, threads: str) -> str:
    """Return the name of a row."""
    shape = " x ".join(map(str, WORK[name][2]))
    return f"adjoint of {name}, {shape} float32, {threads}"


def arrays(name: str) -> tuple[list[np.ndarray], list[np.ndarray], tuple[Any, ...]]:
    """Return a kernel's arrays, as many for their adjoints, and its further arguments."""
    _, reads, shape, more, _ = WORK[name]
    random = np.random.default_rng(0)
    given = [random.random(shape, np.float32) for _ in range(reads + 1)]
    return given, [np.zeros(shape, np.float32) for _ in range(reads)] + [np.ones(shape, np.float32)], more


def ours(name: str) -> Callable[[], object]:
    """Return a launch of an adjoint."""
    kernel, _, shape, _, _ = WORK[name]
    given, adjoints, more = arrays(name)
    last = [None] * len(more)
    return lambda: nb.launch(kernel, shape, [*given, *more], adj_inputs=[*adjoints, *last], adjoint=True)


def theirs(name: str) -> Callable[[], object]:
    """Return a launch of Warp's adjoint."""
    import warp as wp
    import warp_kernels

    kernel, _, shape, _, _ = WORK[name]
    found, further, more = arrays(name)
    given, adjoints = ([wp.array(a, dtype=float, device="cpu") for a in group] for group in (found, further))
    kernel = getattr(warp_kernels, f"{kernel.name}_with_adjoint")

    def run() -> None:
        wp.launch(
            kernel,
            shape,
            inputs=[*given[:-1]],
            outputs=[given[-1], *more],
            adj_inputs=[*adjoints[:-1]],
            adj_outputs=[adjoints[-1], *more],
            device="cpu",
            adjoint=True,
        )

    return run


def once(bench: Any, threads: str) -> None:
    """Measure every kernel in this process."""
    for name, (*_, limit) in WORK.items():
        bench.compare(title(name, threads), ours(name), {"Warp": (theirs(name), limit)})
    if threads != "1 thread" or bench.only not in LONG_LOOP:
        return
    x, out = np.random.default_rng(0).random(2000, np.float32), np.zeros(2000, np.float32)
    by_x, by_out = np.zeros_like(x), np.ones_like(x)
    bench.compare(
        LONG_LOOP,
        lambda: nb.launch(loop, 2000, [x, out, 1000], adj_inputs=[by_x, by_out, None], adjoint=True),
        {"the kernel itself": (lambda: nb.launch(loop, 2000, [x, out, 1000]), 4.0)},
    )


LONG_LOOP = "adjoint of a loop of 1000 trips, 2000 float32, 1 thread"
_FIRST = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import numbridge as nb
from adjoint_cases import long_one

x, a, y = np.ones(6, np.float32), np.ones(4, np.float32), np.zeros(6, np.float32)
adjoints = [np.zeros_like(x), np.zeros_like(a), np.ones_like(y), None]
nb.launch(long_one, 6, [x, a, y, 6])
start = time.perf_counter()
nb.launch(long_one, 6, [x, a, y, 6], adj_inputs=adjoints, adjoint=True)
print(time.perf_counter() - start)
"""


def first(rounds: int) -> tuple[float, float]:
    """Return the time in ms of the first launch of a 60-line kernel's adjoint: compiled, and found in the cache."""
    compiled, cached = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for found in (compiled, cached):
                environment = os.environ | {"NUMBRIDGE_CACHE_DIR": folder}
                command = [sys.executable, "-c", _FIRST, str(TESTS)]
                done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
                found.append(json.loads(done.stdout) * 1e3)
    return statistics.median(compiled), statistics.median(cached)


def operator(bench: Any) -> None:
    """Compare a kernel as an operator of torch with an `autograd.Function` that does nothing."""
    import torch

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, by_y: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return torch.empty_like(x)

    op, x, by_y = nb.torch_op(polynomial, "out"), torch.rand(16, requires_grad=True), torch.ones(16)
    bench.compare(
        "torch_op, forward and backward, 16 elements",
        lambda: op(x).backward(by_y),
        {"autograd.Function doing nothing": (lambda: Nothing.apply(x).backward(by_y), 1.3)},
    )
