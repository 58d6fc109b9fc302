"""Measures launches and kernels on this machine's GPU against its peers, in one run, and writes docs/benchmarks/<gpu>.json.

Host times are medians of rounds that alternate between the contestants; device times are of CUDA events. `--out FOLDER` writes
the file there as well.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import time
from pathlib import Path

import cupy
import numpy as np
import torch
from numba import cuda

import numbridge as nb
from numbridge.kernels import cuda_driver

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 15
PEERS = ("numbridge", "numba", "numba-cuda", "torch", "jax", "cupy-cuda13x", "numpy")


@nb.kernel
def empty3(a, b, c):
    pass


@nb.kernel
def empty5(a, b, c, d, e):
    pass


@nb.kernel
def saxpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


@nb.kernel
def stencil(a, out):
    i, j = nb.tid()
    if i > 0 and j > 0 and i < a.shape[0] - 1 and j < a.shape[1] - 1:
        out[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])


class Bench:
    """Collects rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, work, against, ours, theirs, limit, unit="us"):
        row = {"work": work, "against": against, "ours": ours, "theirs": theirs, "unit": unit}
        row |= {"ratio": ours / theirs, "limit": limit, "holds": ours / theirs <= limit}
        self.rows.append(row)
        mark = "ok" if row["holds"] else "MISSED"
        print(
            f"{work:45s} {against:30s} {ours:12.3f} {theirs:12.3f} {unit} {row['ratio']:8.3f} <= {limit:.3f} {mark}",
            flush=True,
        )

    def host(self, work, ours, peers, count=300):
        """Compare host time per call; the queue is emptied between rounds so that nobody waits for it."""
        contestants = [ours, *(run for run, _ in peers.values())]
        times = [[] for _ in contestants]
        for run in contestants:
            run()
        for _ in range(ROUNDS):
            for run, found in zip(contestants, times, strict=True):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(count):
                    run()
                found.append((time.perf_counter() - start) / count * 1e6)
        medians = [statistics.median(found) for found in times]
        for (name, (_, limit)), theirs in zip(peers.items(), medians[1:], strict=True):
            self.add(work, name, medians[0], theirs, limit)

    def device(self, work, ours, peers, count=10):
        """Compare device time per call, by events on the default stream."""
        contestants = [ours, *(run for run, _ in peers.values())]
        times = [[] for _ in contestants]
        for run in contestants:
            run()
        for _ in range(ROUNDS):
            for run, found in zip(contestants, times, strict=True):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                for _ in range(count):
                    run()
                end.record()
                end.synchronize()
                found.append(start.elapsed_time(end) / count * 1e3)
        medians = [statistics.median(found) for found in times]
        for (name, (_, limit)), theirs in zip(peers.items(), medians[1:], strict=True):
            self.add(work, name, medians[0], theirs, limit)


def bare_launch():
    """Return a call that does nothing but cuLaunchKernel of an empty kernel, 1,000 times, from compiled code."""
    import ctypes

    from numba import cfunc, types

    from numbridge.kernels.native.memory import indirect

    devices = cuda_driver.devices()
    devices.prepare(0)
    code = compile(empty3)
    handle, launch = devices.load(code[0], code[1]), devices.launch_function(cooperative=False)
    call = indirect(types.int32, 11)
    places = (ctypes.c_void_p * 64)(*[ctypes.addressof(ctypes.c_int64())] * 64)
    address = ctypes.addressof(places)

    @cfunc("int64(int64)")
    def many(count):
        failed = 0
        for _ in range(count):
            failed += call(launch, handle, 1, 1, 1, 256, 1, 1, 0, 0, address, 0)
        return failed

    return many.ctypes, places


def compile(kernel):
    from numbridge.kernels.variant import compile_for

    example = np.zeros(10, np.float32)
    made = compile_for(kernel, [example] * len(kernel.parameters), None)
    return made.compiled.objects[0], made.compiled.names["kernel"]


def launches(bench: Bench) -> None:
    cupys = [cupy.ones(10, np.float32) for _ in range(3)]
    torches = [torch.ones(10, device="cuda") for _ in range(5)]
    three, five = empty3.forall(256), empty5.forall(256)

    @cuda.jit
    def numba3(a, b, c):
        pass

    @cuda.jit
    def numba5(a, b, c, d, e):
        pass

    raw = cupy.RawKernel('extern "C" __global__ void empty(float* a, float* b, float* c) {}', "empty")
    many, keep = bare_launch()
    torch.cuda.synchronize()
    bare = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        assert many(300) == 0
        bare.append((time.perf_counter() - start) / 300 * 1e6)
        torch.cuda.synchronize()
    n3, n5 = numba3[1, 256], numba5[1, 256]
    bench.host(
        "launch, 3 CuPy arrays, empty kernel",
        lambda: three(*cupys),
        {
            "numba.cuda": (lambda: n3(*cupys), 1 / 15),
            "CuPy RawKernel": (lambda: raw((1,), (256,), tuple(cupys)), 0.7),
        },
    )
    bench.add(
        "launch, 3 CuPy arrays, empty kernel",
        "bare cuLaunchKernel",
        bench.rows[-1]["ours"],
        statistics.median(bare),
        2.0,
    )
    bench.host(
        "launch, 5 torch tensors, empty kernel", lambda: five(*torches), {"numba.cuda": (lambda: n5(*torches), 1 / 15)}
    )
    bench.add(
        "launch, 5 torch tensors, empty kernel",
        "bare cuLaunchKernel",
        bench.rows[-1]["ours"],
        statistics.median(bare),
        2.0,
    )
    del keep


def conversions(bench: Bench) -> None:
    t = torch.ones(10, 10, device="cuda")
    a = nb.zeros((10, 10), device="cuda")
    bench.host(
        "from_torch on CUDA", lambda: nb.from_torch(t), {"torch.from_dlpack": (lambda: torch.from_dlpack(t), 0.5)}
    )
    bench.host("to_torch on CUDA", lambda: nb.to_torch(a), {"torch.from_dlpack": (lambda: torch.from_dlpack(a), 0.5)})


def kernels(bench: Bench) -> None:
    n = 256 << 20
    x, y = torch.ones(n, device="cuda"), torch.ones(n, device="cuda")
    run = saxpy.forall(n)
    cx, cy = cupy.from_dlpack(x), cupy.from_dlpack(y)
    fused = cupy.ElementwiseKernel("float32 x, float32 a", "float32 y", "y = a * x + y", "numbridge_saxpy")
    compiled = torch.compile(lambda x, y: y.copy_(0.0 * x + y))
    bench.device(
        "saxpy, 256M float32",
        lambda: run(x, y, 0.0),
        {
            # A copy moves 8 bytes per element and saxpy 12, so 90% of its bandwidth is 1.5 / 0.9 of its time.
            "device-to-device copy (bandwidth)": (lambda: x.copy_(y), 1.5 / 0.9),
            "CuPy": (lambda: fused(cx, np.float32(0), cy), 1.0),
            "torch.compile": (lambda: compiled(x, y), 1.05),
        },
    )


def stencils(bench: Bench) -> None:
    m = 16384
    a, out = torch.rand(m, m, device="cuda"), torch.zeros(m, m, device="cuda")
    step = stencil.forall((m, m))

    def torch_step(a, out):
        out[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])

    compiled_step = torch.compile(torch_step)
    ca, cout = cupy.from_dlpack(a), cupy.from_dlpack(out)
    bench.device(
        "five-point stencil, 16384 x 16384 float32",
        lambda: step(a, out),
        {
            "device-to-device copy (bandwidth)": (lambda: out.copy_(a), 1 / 0.9),
            "CuPy": (lambda: torch_step(ca, cout), 1.0),
            "torch.compile": (lambda: compiled_step(a, out), 1.05),
        },
    )


def write(bench: Bench, folders: list[Path]) -> None:
    gpu = cuda_driver.driver().name(0)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    versions = {}
    for name in PEERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": os.environ.get("NUMBRIDGE_COMMIT") or commit,
        "gpu": gpu,
        "python": platform.python_version(),
        "versions": versions,
        "tests": os.environ.get("NUMBRIDGE_GPU_TESTS", "not run"),
        "rows": bench.rows,
    }
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\W+", "-", gpu.lower()).strip("-")
        (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def main() -> None:
    """Run every group, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    bench = Bench()
    for group in (launches, conversions, kernels, stencils):
        group(bench)
        write(bench, [ROOT / "docs" / "benchmarks", *([chosen.out] if chosen.out else [])])


if __name__ == "__main__":
    main()
