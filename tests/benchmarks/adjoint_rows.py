"""Adjoints against Warp's on the CPU, and what they cost beside what they are the adjoint of.

Those that the command line compares as well are defined there."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import numbridge as nb
from numbridge.command_line.adjoint_kernels import loop, polynomial
from numbridge.command_line.adjoint_work import ADJOINTS, adjoint

TESTS = Path(__file__).resolve().parents[1]
# What the ratio to Warp must not exceed.
LIMITS = {
    "saxpy": 0.15,
    "polynomial with a branch": 0.2,
    "sin, exp, sqrt, cos": 0.5,
    "five-point stencil": 0.6,
    "loop of 50 trips": 1.5,
}


def once(bench: Any, threads: str) -> None:
    """Measure every kernel in this process."""
    for name in ADJOINTS:
        bench.take(adjoint(name, threads), {"Warp": LIMITS[name]})
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
