"""The comparison with whatever peers are installed: launches, conversions, a kernel, calls inside jit, first launches.

Each piece of work is done by all contestants in this process, in turns, and medians are compared: the machine is noisy, so
read ratios, not times. It measures the CPU. The repository's own benchmarks, `nox -s benchmarks`, go further.
"""

from __future__ import annotations

import datetime
import functools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import numbridge as nb
from numbridge.command_line.installed import absent, is_there, version
from numbridge.command_line.sample_kernels import add, empty_of_five, empty_of_one, saxpy
from numbridge.command_line.timing import timed

__all__ = ["Work", "facts", "first_launches", "measure", "works"]

PEERS = ("numpy", "numba", "torch", "paddlepaddle", "jax", "warp-lang", "apache-tvm-ffi")
_TENSORS = ("numpy", "torch", "paddle", "jax")
Contestants = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Work:
    """A piece of work, and who does it; the first contestant is ours.

    Attributes
    ----------
    name : str
        What is done.
    prepare : callable
        Makes the contestants, each a function of nothing. What is not installed is not among them.
    missing : str or None
        Why it cannot be measured here.
    """

    name: str
    prepare: Callable[[], Contestants]
    missing: str | None = None


def works() -> list[Work]:
    """Return everything that is measured."""
    launches = [
        Work(f"launch, {count} {name} tensor{'s' * (count > 1)}", functools.partial(_launch, name, count), absent(name))
        for name in _TENSORS
        for count in (1, 5)
    ]
    conversions = [
        Work(f"{way}_{name}", functools.partial(_conversion, way, name), absent(name))
        for name in _TENSORS
        for way in ("from", "to")
    ]
    return [
        *launches,
        *conversions,
        Work("saxpy, 4M float32", _saxpy),
        Work("100 adds of 16 numbers in one jit", functools.partial(_jitted, 16, 100), absent("jax")),
        Work("add of 1M numbers in a jit", functools.partial(_jitted, 1 << 20, 1), absent("jax")),
    ]


def measure(work: Work, rounds: int) -> dict[str, float]:
    """Return the median microseconds of each contestant."""
    contestants = work.prepare()
    counts = {}
    for name, run in contestants.items():
        run()
        counts[name] = max(1, min(100_000, int(0.005 / max(timed(run, 1), 1e-8))))
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            found[name].append(timed(run, counts[name]))
    return {name: statistics.median(times) * 1e6 for name, times in found.items()}


def facts(rows: Mapping[str, Mapping[str, float]], missing: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Return what was measured, with date, machine and versions, as plain values that JSON can hold."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numbridge", *PEERS)},
        "rounds": rounds,
        "unit": "us",
        "rows": [{"work": work, "times": dict(times)} for work, times in rows.items()],
        "missing": dict(missing),
    }


def _warp() -> Any:
    """Return Warp's kernels, or None."""
    if not is_there("warp"):
        return None
    from numbridge.command_line import warp_peer

    return warp_peer


def _tensor(name: str, n: int = 16) -> Any:
    return nb.convert(nb.ones(n, device="cpu"), name)


def _launch(name: str, count: int) -> Contestants:
    kernel = {1: empty_of_one, 5: empty_of_five}[count]
    tensors = [_tensor(name) for _ in range(count)]
    found: dict[str, Callable[[], object]] = {
        "numbridge, forall": functools.partial(kernel.forall(1), *tensors),
        "numbridge, nb.launch": functools.partial(nb.launch, kernel, 1, tensors),
    }
    # Of these, Warp takes only tensors of NumPy and PyTorch as they are.
    if name in ("numpy", "torch") and (warp := _warp()) is not None:
        found["Warp"] = functools.partial(warp.launch, kernel.name, 1, tensors)
    return found


def _conversion(way: str, name: str) -> Contestants:
    ours = getattr(nb, f"{way}_{name}")
    found: dict[str, Callable[[], object]] = {
        "numbridge": functools.partial(ours, _tensor(name) if way == "from" else nb.ones(16, device="cpu"))
    }
    if _warp() is not None:
        import warp as wp

        theirs = getattr(wp, f"{way}_{name}", None)
        given = _tensor(name) if way == "from" else wp.ones(16, dtype=float, device="cpu")
        if name == "numpy":
            theirs = functools.partial(wp.from_numpy, device="cpu") if way == "from" else wp.array.numpy
        if theirs is not None:
            found["Warp"] = functools.partial(theirs, given)
    if name in ("torch", "jax", "numpy"):
        found.update(_dlpack(way, name))
    return found


def _dlpack(way: str, name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the framework's own way to take an array of NumPy's."""
    if way == "to" and name == "torch":
        import torch

        yield "torch.from_numpy", functools.partial(torch.from_numpy, np.ones(16, np.float32))
    if way == "to" and name == "jax":
        import jax.dlpack

        yield "jax.dlpack.from_dlpack", functools.partial(jax.dlpack.from_dlpack, nb.to_numpy(nb.ones(16)))
    if way == "to" and name == "numpy" and is_there("torch"):
        import torch

        yield "Tensor.numpy", torch.ones(16).numpy


def _saxpy() -> Contestants:
    n = 1 << 22

    def pair() -> tuple[Any, Any]:
        # Each contestant has arrays of its own: on shared ones, whoever comes second would find them in the cache.
        return np.ones(n, np.float32), np.ones(n, np.float32)

    x, y = pair()

    def with_numpy() -> None:
        np.add(np.multiply(x, np.float32(0.5)), y, out=y)

    found: dict[str, Callable[[], object]] = {
        "numbridge": functools.partial(saxpy.forall(n), *pair(), 0.5),
        "NumPy": with_numpy,
        "Numba prange": functools.partial(_numba_saxpy(), *pair(), np.float32(0.5)),
    }
    if absent("torch") is None:
        import torch

        tx, ty = map(torch.from_numpy, pair())
        found["torch"] = functools.partial(ty.add_, tx, alpha=0.5)
    if (warp := _warp()) is not None:
        import warp as wp

        found["Warp"] = functools.partial(
            warp.launch, "saxpy", n, [*(wp.from_numpy(a, device="cpu") for a in pair()), 0.5]
        )
    return found


def _numba_saxpy() -> Callable[..., object]:
    import numba

    @numba.njit(parallel=True)
    def run(x: Any, y: Any, a: Any) -> None:
        for i in numba.prange(x.size):
            y[i] = a * x[i] + y[i]

    return run  # type: ignore[no-any-return]


def _jitted(size: int, times: int) -> Contestants:
    import jax

    cpu = jax.local_devices(backend="cpu")[0]
    x = jax.device_put(np.ones(size, np.float32), cpu)
    ours = nb.jax_kernel(add)
    calls: dict[str, Callable[..., Any]] = {"numbridge": lambda a, b: ours(a, b)[0]}
    # Without fusion each add is an operation of its own, as ours are; with it, all of them would be one loop.
    calls["XLA, not fused"] = lambda a, b: a + b
    if (warp := _warp()) is not None:
        theirs = warp.jax_add()
        calls["Warp"] = lambda a, b: theirs(a, b)[0]

    def contestant(call: Callable[..., Any]) -> Callable[[], object]:
        def repeat(a: Any, b: Any) -> Any:
            for _ in range(times):
                a = call(a, b)
            return a

        jitted = jax.jit(repeat, compiler_options={"xla_disable_hlo_passes": "fusion"})
        return lambda: jax.block_until_ready(jitted(x, x))

    return {name: contestant(call) for name, call in calls.items()}


_FIRST = """
import time
import numpy as np
import numbridge as nb

@nb.kernel
def first(x):
    i = nb.tid()
    x[i] = x[i] + 1

x = np.zeros(10)
start = time.perf_counter()
nb.launch(first, 10, [x])
print(time.perf_counter() - start)
"""


def first_launches() -> dict[str, float]:
    """Return the microseconds of a first launch in a new process: with nothing in the cache, then with everything."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "first.py"
        script.write_text(_FIRST)
        environment = os.environ | {"NUMBRIDGE_CACHE_DIR": str(Path(folder) / "cache")}
        command = [sys.executable, str(script)]
        runs = [
            float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
            for _ in range(4)
        ]
    return {"numbridge, cold": runs[0] * 1e6, "numbridge, warm cache": statistics.median(runs[1:]) * 1e6}
