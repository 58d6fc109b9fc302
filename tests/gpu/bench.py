"""Measures launches and kernels on this machine's GPU against its peers, in one run, and writes docs/benchmarks/<gpu>.json.

Host times are medians of rounds that alternate between the contestants; device times are of CUDA events. `--out FOLDER` writes
the file there as well. What cannot be measured stands there with the reason, and keeps nothing else from being measured. What the
tests came to, which `conftest.py` wrote to the file that NUMBRIDGE_GPU_RESULTS names, is summed up there too.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from numbridge.command_line.comparison import CUDA_PEERS
from numbridge.command_line.cuda_work import EMPTY_C, LAUNCHES, cuda_works
from numbridge.command_line.sample_kernels import empty_of_three
from numbridge.kernels.cuda_backend import cuda_driver

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 15
PEERS = ("numbridge", "numba", "torch", "jax", "numpy", *CUDA_PEERS)

# A copy moves 8 bytes per element, as the stencil does, and saxpy 12: 90% of its bandwidth is so much of its time.
LIMITS = {
    "CUDA: 3 cupy arrays, empty kernel, forall": {
        "numba.cuda": 1 / 15,
        "CuPy RawKernel": 0.7,
        "bare cuLaunchKernel": 2.0,
    },
    "CUDA: 5 torch tensors, empty kernel, forall": {"numba.cuda": 1 / 15, "bare cuLaunchKernel": 2.0},
    "CUDA: from_torch": {"torch.from_dlpack": 0.5},
    "CUDA: to_torch": {"torch.from_dlpack": 0.5},
    "CUDA: saxpy, 256M float32": {
        "a copy, which moves 2/3 of it": 1.5 / 0.9,
        "CuPy": 1.0,
        "torch.compile": 1.05,
    },
    "CUDA: five-point stencil, 16384 x 16384 float32": {
        "a copy, which moves as much": 1 / 0.9,
        "CuPy RawKernel": 1.0,
        "torch.compile": 1.05,
    },
}


class Bench:
    """Collects rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def take(self, work, more):
        """Measure a row of the comparison, with further contestants: callables, or figures in microseconds."""
        figures = {name: value for name, value in more.items() if not callable(value)}
        runs = {name: value for name, value in more.items() if callable(value)}

        def prepare():
            (ours, run), *peers = (work.prepare() | runs).items()
            return {ours: run} | {name: theirs for name, theirs in peers if self.can_run(work.name, name, theirs)}

        (row,) = dataclasses.replace(work, prepare=prepare).rows(ROUNDS)
        (_, ours), *peers = (dict(row.values) | figures).items()
        if not peers:
            self.rows.append({"work": work.name, "against": None, "ours": ours, "unit": row.unit})
            print(f"{work.name:50s} {'':30s} {ours:12.3f} {row.unit}", flush=True)
        for name, theirs in peers:
            self.add(work.name, name, ours, theirs, LIMITS.get(work.name, {}).get(name))

    def can_run(self, work, name, run):
        """Tell whether a contestant can do its work here."""
        with self.noted(work, name):
            run()
            return True
        return False

    @contextlib.contextmanager
    def noted(self, work: str, against: str | None = None) -> Iterator[None]:
        """Note what keeps something from being measured, and go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a peer raises
            said = f"{type(error).__name__}: {error}"[:1000]
            self.rows.append({"work": work, "against": against, "error": said})
            print(f"{work:50s} {against or '':30s} {said}", flush=True)

    def add(self, work, against, ours, theirs, limit):
        row = {"work": work, "against": against, "ours": ours, "theirs": theirs, "unit": "us"}
        row |= {"ratio": ours / theirs, "limit": limit, "holds": None if limit is None else ours / theirs <= limit}
        self.rows.append(row)
        mark = {None: "", True: "ok", False: "MISSED"}[row["holds"]]
        wanted = "" if limit is None else f"<= {limit:.3f}"
        print(
            f"{work:50s} {against:30s} {ours:12.3f} {theirs:12.3f} us {row['ratio']:8.3f} {wanted:9s} {mark}",
            flush=True,
        )


def empty_kernels():
    """Return the handles of empty kernels of three arrays.

    Ours, which has only its dimension, as a CUkernel, and as the CUfunction that this is in the current context; and CuPy's
    CUfunction, which has three pointers. What a kernel's parameters are, only a CUfunction is asked.
    """
    import cupy
    from cuda.bindings import driver

    # A context must be current before a CUkernel has a CUfunction.
    cupy.cuda.Device(0).use()
    cupy.cuda.runtime.free(0)
    code = compile(empty_of_three)
    kernel = cuda_driver.devices().load(code[0], code[1], 0)
    failed, function = driver.cuKernelGetFunction(driver.CUkernel(kernel))
    assert failed == driver.CUresult.CUDA_SUCCESS, failed
    return kernel, int(function), cupy.RawKernel(EMPTY_C, "empty").kernel.ptr


def bare_launch(handle, *, in_one_piece=0):
    """Return a call that does nothing but cuLaunchKernel of an empty kernel, so many times, from compiled code.

    The driver is given where each parameter lies, or all of them in one piece of so many bytes, laid out as the kernel has them.
    """
    import ctypes

    from numba import cfunc, types

    from numbridge.kernels.native.memory import indirect

    launch = cuda_driver.devices().launch_function(cooperative=False)
    call = indirect(types.int32, 11)
    number = ctypes.c_int64()
    places = (ctypes.c_void_p * 64)(*[ctypes.addressof(number)] * 64)
    size, buffer = ctypes.c_size_t(in_one_piece), (ctypes.c_char * 4096)()
    # CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END
    pieces = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    one, other = (0, ctypes.addressof(pieces)) if in_one_piece else (ctypes.addressof(places), 0)

    @cfunc("int64(int64)")
    def many(count):
        failed = 0
        for _ in range(count):
            failed += call(launch, handle, 1, 1, 1, 256, 1, 1, 0, 0, one, other)
        return failed

    return many.ctypes, (number, places, size, buffer, pieces)


def parameter_bytes(function):
    """Return the size of all parameters of a CUfunction, as it has them in memory."""
    import ctypes

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
    ask = kind(cuda_driver.driver().address("cuFuncGetParamInfo"))
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    total = count = 0
    while ask(function, count, ctypes.byref(offset), ctypes.byref(size)) == 0:
        total, count = offset.value + size.value, count + 1
    return total


def compile(kernel):
    from numbridge.kernels.variant import compile_for

    example = np.zeros(10, np.float32)
    made = compile_for(kernel, [example] * len(kernel.parameters), None)
    return made.compiled.objects[0], made.compiled.names["kernel"]


def bare_microseconds():
    """Return the median times of bare launches, by what is launched; the first is what our launches contain."""
    ours, function, pointers = empty_kernels()
    launches = {
        "bare cuLaunchKernel": bare_launch(ours),
        "bare, parameters in one piece": bare_launch(ours, in_one_piece=parameter_bytes(function)),
        "bare, of its CUfunction": bare_launch(function),
        "bare, of RawKernel's": bare_launch(pointers),
    }
    found = {name: [] for name in launches}
    for _ in range(ROUNDS):
        for name, (many, _) in launches.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            failed = many(LAUNCHES)
            assert failed == 0, f"{name}: CUresults of {LAUNCHES} launches add up to {failed}"
            found[name].append((time.perf_counter() - start) / LAUNCHES * 1e6)
    torch.cuda.synchronize()
    return {name: statistics.median(times) for name, times in found.items()}


def saxpy_by_torch():
    n = 256 << 20
    x, y = torch.ones(n, device="cuda"), torch.ones(n, device="cuda")
    run = torch.compile(lambda x, y: y.copy_(0.0 * x + y))
    return lambda: run(x, y)


def stencil_by_torch():
    m = 16384
    a, out = torch.rand(m, m, device="cuda"), torch.zeros(m, m, device="cuda")

    @torch.compile
    def step(a, out):
        out[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])

    return lambda: step(a, out)


def tests() -> dict[str, object]:
    """Return what the tests came to: how many of each file passed, failed, and are there, and what the failed ones said."""
    name = os.environ.get("NUMBRIDGE_GPU_RESULTS")
    files, failures = outcomes(Path(name)) if name else ({}, {})
    looked = sanitizers(Path(name).parent) if name else {}
    return {**when(), "files": files, "failures": failures} | ({"sanitizers": looked} if looked else {})


def outcomes(path: Path) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Return what one run of tests wrote to a file, by file and by test."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    there: collections.Counter[str] = collections.Counter()
    found: dict[str, str] = {}
    failures: dict[str, str] = {}
    for line in lines:
        there.update(line.get("collected", {}))
        # A test that passed may fail afterwards, when the device is asked; the first message says most.
        if "test" in line and found.get(line["test"]) != "failed":
            found[line["test"]] = line["outcome"]
        if line.get("outcome") == "failed":
            failures.setdefault(line["test"], line["said"])
    files = {}
    for file, count in there.items():
        counts = collections.Counter(outcome for test, outcome in found.items() if test.startswith(f"{file}::"))
        files[file] = {"tests": count, "not run": count - counts.total(), **counts}
    return files, failures


def sanitizers(folder: Path) -> dict[str, dict[str, object]]:
    """Return what compute-sanitizer's tools looked at, and how often they reported what.

    What they report begins with a line that is not indented, after equals signs: an error, a race, or that they ended early;
    where it happened follows, and stays in the log.
    """
    found = {}
    for path in sorted(folder.glob("*check.txt")):
        said = re.findall(r"========= (\S.*)$", path.read_text(errors="replace"), re.MULTILINE)
        said = [line for line in said if "COMPUTE-SANITIZER" not in line and " SUMMARY: " not in line]
        said = [line.partition(" at ")[0] for line in said]
        files, failures = outcomes(path.with_suffix(".jsonl"))
        found[path.stem] = {
            "tests": sum(counts["tests"] for counts in files.values()),
            "not run": sum(counts["not run"] for counts in files.values()),
            "failures": failures,
            "reports": dict(collections.Counter(said).most_common(20)),
        }
    return found


def when() -> dict[str, str]:
    """Return the date, and the commit if it is known."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": date, "commit": os.environ.get("NUMBRIDGE_COMMIT") or said_by("git", "rev-parse", "HEAD")}


@functools.cache
def said_by(*command: str) -> str:
    """Return what a program prints, nothing if it is not there; it is asked once."""
    with contextlib.suppress(OSError):
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def write(bench: Bench, folders: list[Path]) -> None:
    gpu, versions = cuda_driver.driver().name(0), {}
    for name in PEERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    facts = {
        **when(),
        "gpu": gpu,
        "driver": said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "python": platform.python_version(),
        "versions": versions,
        "tests": tests(),
        "rows": bench.rows,
    }
    for path in result_files(folders):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=1) + "\n")


def result_files(folders: list[Path]) -> list[Path]:
    """Return the files of this GPU."""
    name = re.sub(r"\W+", "-", cuda_driver.driver().name(0).lower()).strip("-")
    return [folder / f"{name}.json" for folder in folders]


def main() -> None:
    """Run every group, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tests", action="store_true", help="only write down what the tests have come to since")
    chosen = parser.parse_args()
    bench, folders = Bench(), [ROOT / "docs" / "benchmarks", *([chosen.out] if chosen.out else [])]
    if chosen.tests:
        for path in result_files(folders):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"tests": tests()}, indent=1) + "\n")
        return
    write(bench, folders)
    bare = {}
    with bench.noted("CUDA: bare cuLaunchKernel"):
        bare = bare_microseconds()
    # Made when its row is measured, so that two programs' arrays are never there at once.
    more = {
        "CUDA: 3 cupy arrays, empty kernel, forall": lambda: bare,
        "CUDA: 5 torch tensors, empty kernel, forall": lambda: bare,
        "CUDA: saxpy, 256M float32": lambda: {"torch.compile": saxpy_by_torch()},
        "CUDA: five-point stencil, 16384 x 16384 float32": lambda: {"torch.compile": stencil_by_torch()},
    }
    for work in cuda_works():
        with bench.noted(work.name):
            if work.missing is not None:
                raise RuntimeError(work.missing)
            bench.take(work, more.get(work.name, dict)())
        write(bench, folders)


if __name__ == "__main__":
    main()
