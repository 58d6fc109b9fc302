"""The comparison with whatever peers are installed: launches, conversions, kernels, adjoints, JAX, processes, memory.

Each piece of work is done by all contestants in this process, in turns, and medians are compared: the machine is noisy, so
read ratios, not times. It measures the CPU, and a CUDA device where there is one. The repository's own benchmarks,
`nox -s benchmarks`, take the same rows for the CPU and more.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from numbridge.bridges.installed import version
from numbridge.command_line.adjoint_work import ADJOINTS, adjoint
from numbridge.command_line.cuda_work import cuda_works
from numbridge.command_line.kernel_work import calls_in_one_jit, one_call_in_a_jit, saxpy_of
from numbridge.command_line.launch_work import TENSORS, conversion, launch
from numbridge.command_line.memory_work import Memory
from numbridge.command_line.process_work import FirstLaunch
from numbridge.command_line.work import Measurement, Row
from numbridge.kernels.cuda_backend import cuda_driver

__all__ = ["CUDA_PEERS", "PEERS", "facts", "works"]

PEERS = ("numpy", "numba", "torch", "paddlepaddle", "jax", "warp-lang", "apache-tvm-ffi")
CUDA_PEERS = ("numba-cuda", "cupy-cuda13x", "cupy-cuda12x", "triton")


def works() -> list[Measurement]:
    """Return everything that is measured."""
    return [
        *(launch(name, count, way) for name in TENSORS for count in (1, 5) for way in ("forall", "nb.launch")),
        *(conversion(way, name) for name in TENSORS for way in ("from", "to")),
        saxpy_of(1 << 22),
        *map(adjoint, ADJOINTS),
        calls_in_one_jit(200),
        one_call_in_a_jit(),
        FirstLaunch(),
        *(Memory(kind, name) for kind in ("launch", "from") for name in TENSORS),
        *(cuda_works() if cuda_driver.driver_count() else ()),
    ]


def facts(rows: Sequence[Row], missing: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Return what was measured, with date, machine and versions, as plain values that JSON can hold."""
    gpu = cuda_driver.driver().name(0) if cuda_driver.driver_count() else None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "gpu": gpu,
        "versions": {name: version(name) for name in ("numbridge", *PEERS, *(CUDA_PEERS if gpu else ()))},
        "rounds": rounds,
        "rows": [asdict(row) for row in rows],
        "missing": dict(missing),
    }
