"""Measures numbridge against its peers in one run, and writes the ratios as JSON and as a table under docs/benchmarks/.

Each row alternates between the contestants, so that both see the same machine, and compares medians. The machine is noisy:
read ratios, not times. `--quick` takes fewer rounds; `--only TEXT` runs the rows whose name contains the text.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import adjoint_rows
import numpy as np

import numbridge as nb

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "benchmarks"
ROUNDS = 21
PEERS = ("numba", "torch", "paddlepaddle", "jax", "warp-lang", "apache-tvm-ffi", "numpy")


@dataclass
class Row:
    """One line of the table: our median, a peer's, their ratio, and what the ratio must not exceed."""

    work: str
    against: str
    ours: float
    theirs: float
    limit: float
    unit: str = "us"
    ratio: float = field(init=False)
    holds: bool = field(init=False)

    def __post_init__(self) -> None:
        self.ratio = self.ours / self.theirs
        self.holds = self.ratio <= self.limit


@nb.kernel
def empty(a, b, c, d, e):
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


@nb.kernel
def normalize_cross(a: nb.array[nb.vec3], b: nb.array[nb.vec3], c: nb.array[nb.vec3]):
    i = nb.tid()
    c[i] = nb.cross(nb.normalize(a[i]), nb.normalize(b[i]))


@nb.kernel
def normalize_cross_by_hand(a, b, c):
    i = nb.tid()
    x, y, z, u, v, w = a[i, 0], a[i, 1], a[i, 2], b[i, 0], b[i, 1], b[i, 2]
    p, q = nb.sqrt(x * x + y * y + z * z), nb.sqrt(u * u + v * v + w * w)
    s, t = 1.0 / p if p > 0.0 else 0.0, 1.0 / q if q > 0.0 else 0.0
    x, y, z, u, v, w = x * s, y * s, z * s, u * t, v * t, w * t
    c[i, 0] = y * w - z * v
    c[i, 1] = z * u - x * w
    c[i, 2] = x * v - y * u


@nb.kernel
def transformed(m: nb.array[nb.mat33], v: nb.array[nb.vec3], out: nb.array[nb.vec3]):
    i = nb.tid()
    out[i] = m[i] @ v[i]


@nb.kernel
def transformed_by_hand(m, v, out):
    i = nb.tid()
    x, y, z = v[i, 0], v[i, 1], v[i, 2]
    out[i, 0] = m[i, 0, 0] * x + m[i, 0, 1] * y + m[i, 0, 2] * z
    out[i, 1] = m[i, 1, 0] * x + m[i, 1, 1] * y + m[i, 1, 2] * z
    out[i, 2] = m[i, 2, 0] * x + m[i, 2, 1] * y + m[i, 2, 2] * z


class Bench:
    """Measures and collects rows."""

    def __init__(self, rounds: int, only: str) -> None:
        self.rounds = rounds
        self.quick = rounds < ROUNDS
        self.only = only
        self.rows: list[Row] = []

    def compare(
        self, work: str, ours: Callable[[], object], peers: dict[str, tuple[Callable[[], object], float]]
    ) -> None:
        """Measure one piece of work of ours and its peers, given as name -> (callable, limit of the ratio)."""
        if self.only not in work:
            return
        contestants = [ours, *(peer for peer, _ in peers.values())]
        counts = [self._calibrated(run) for run in contestants]
        times: list[list[float]] = [[] for _ in contestants]
        for _ in range(self.rounds):
            for run, count, found in zip(contestants, counts, times, strict=True):
                found.append(_timed(run, count))
        medians = [statistics.median(found) * 1e6 for found in times]
        for (name, (_, limit)), theirs in zip(peers.items(), medians[1:], strict=True):
            self.add(Row(work, name, medians[0], theirs, limit))

    def add(self, row: Row) -> None:
        """Keep a row and print it."""
        self.rows.append(row)
        mark = "ok" if row.holds else "MISSED"
        line = f"{row.work:45s} {row.against:28s} {row.ours:12.3f} {row.theirs:12.3f} {row.unit}"
        print(f"{line}  {row.ratio:7.3f} (must be <= {row.limit:.3f})  {mark}", flush=True)

    def _calibrated(self, run: Callable[[], object]) -> int:
        """Return how many calls take about 20 ms."""
        run()
        once = max(_timed(run, 3), 1e-8)
        return max(1, min(100_000, int(0.02 / once)))


def _timed(run: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def _tvm_empty() -> Callable[..., object]:
    import tvm_ffi.cpp

    parameters = ", ".join(f"tvm::ffi::TensorView {name}" for name in "abcde")
    module = tvm_ffi.cpp.load_inline(
        name="numbridge_empty", cpp_sources=f"void empty({parameters}) {{}}", functions=["empty"]
    )
    return module.empty


def entries(bench: Bench) -> None:
    """Five tensors into an empty kernel."""
    import jax.numpy as jnp
    import paddle
    import torch
    import warp as wp
    import warp_kernels

    peer, run = _tvm_empty(), empty.forall(1)
    tensors = {
        "torch": torch.ones(10),
        "paddle": paddle.ones([10]),
        "jax": jnp.ones(10),
        "numpy": np.ones(10, np.float32),
    }
    limits = {"torch": 0.7, "paddle": 0.6, "jax": 0.25, "numpy": 0.6}
    for name, x in tensors.items():
        run(x, x, x, x, x)
        # tvm-ffi takes no NumPy arrays: its own best, with torch tensors, stands in.
        y = tensors["torch"] if name == "numpy" else x
        against = "tvm-ffi C++ function (torch)" if name == "numpy" else "tvm-ffi C++ function"
        bench.compare(
            f"5 {name} tensors, empty kernel, forall",
            lambda x=x: run(x, x, x, x, x),
            {against: (lambda y=y: peer(y, y, y, y, y), limits[name])},
        )

    x = tensors["torch"]
    bench.compare(
        "5 torch tensors, empty kernel, nb.launch",
        lambda: nb.launch(empty, 1, [x, x, x, x, x]),
        {
            "wp.launch, tensors direct": (
                lambda: wp.launch(warp_kernels.empty, 1, [x, x, x, x, x], device="cpu"),
                1 / 25,
            )
        },
    )


def conversions(bench: Bench) -> None:
    """from_* and to_*."""
    import jax.numpy as jnp
    import paddle
    import torch
    import warp as wp

    sources = {
        "torch": torch.ones(10, 10),
        "paddle": paddle.ones([10, 10]),
        "numpy": np.ones((10, 10), np.float32),
        "jax": jnp.ones((10, 10)),
    }
    peers = {
        "torch": wp.from_torch,
        "paddle": wp.from_paddle,
        "numpy": lambda x: wp.from_numpy(x, device="cpu"),
        "jax": wp.from_jax,
    }
    for name, x in sources.items():
        ours, theirs = getattr(nb, f"from_{name}"), peers[name]
        bench.compare(f"from_{name}", functools.partial(ours, x), {"Warp": (functools.partial(theirs, x), 1 / 8)})
    a = nb.zeros((10, 10), dtype=nb.float32)
    w = wp.zeros((10, 10), dtype=float, device="cpu")
    bench.compare("to_torch", lambda: nb.to_torch(a), {"Warp": (lambda: wp.to_torch(w), 1 / 4)})
    bench.compare("to_paddle", lambda: nb.to_paddle(a), {"Warp": (lambda: wp.to_paddle(w), 1 / 4)})
    bench.compare("to_numpy", lambda: nb.to_numpy(a), {"Warp": (w.numpy, 1 / 4)})
    import jax.dlpack

    memory = nb.zeros((10, 10)).numpy()  # aligned, so that JAX shares it
    bench.compare(
        "to_jax",
        lambda: nb.to_jax(a),
        {
            "Warp": (lambda: wp.to_jax(w), 0.7),
            "jax.dlpack.from_dlpack(NumPy)": (lambda: jax.dlpack.from_dlpack(memory), 1.1),
        },
    )


def scaled_twice(x: nb.array[float], s: float, out: nb.array[float]):
    once, twice = nb.empty_like(x), nb.empty_like(x)
    nb.launch(jax_scale, x.shape, [x, s], [once])
    nb.launch(jax_scale, x.shape, [once, s], [twice])
    nb.launch(jax_add, x.shape, [once, twice], [out])


@nb.kernel
def jax_add(a: nb.array[float], b: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = a[i] + b[i]


@nb.kernel
def jax_scale(x: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * s


@nb.kernel
def square_of_sum(a: nb.array[float], b: nb.array[float], s: float, out: nb.array[float]):
    i = nb.tid()
    out[i] = (a[i] * s + b[i]) ** 2


def _idle_call() -> Callable[..., object]:
    """Return a JAX function whose handler returns at once: what XLA's own part of a call costs."""
    import jax
    from numba import cfunc

    from numbridge.jax_ffi import compiled, targets
    from numbridge.kernels.native.memory import load_i64

    targets.room()
    answer, extension_at = compiled.answer_metadata, compiled.frame_extension

    @cfunc("int64(int64)", _nrt=False)
    def idle(frame):
        extension = load_i64(frame, extension_at)
        if extension != 0:
            answer(extension)
        return 0

    _kept.append(idle)
    jax.ffi.register_ffi_target("numbridge_idle", jax.ffi.pycapsule(idle.address), platform="cpu")
    return lambda a, b: jax.ffi.ffi_call("numbridge_idle", jax.ShapeDtypeStruct(a.shape, a.dtype))(a, b)


_kept: list[object] = []


def inside_jax(bench: Bench) -> None:
    """Kernels inside JAX, against Warp's and XLA's own operations."""
    import jax
    import jax.numpy as jnp
    import warp_kernels

    ours, theirs = nb.jax_kernel(jax_add), warp_kernels.jax_add()
    calls = {"ours": lambda a, b: ours(a, b)[0], "Warp": lambda a, b: theirs(a, b)[0], "XLA": lambda a, b: a + b}

    def many(call: Callable[..., object], **options: object) -> Callable[..., object]:
        def repeat(a: object, b: object) -> object:
            for _ in range(200):
                a = call(a, b)
            return a

        return jax.jit(repeat, **options)

    def ready(call: Callable[..., object], *arguments: object, times: int = 1) -> Callable[[], object]:
        def run() -> None:
            for _ in range(times):
                result = call(*arguments)
            jax.block_until_ready(result)

        return run

    x = jnp.ones(16)
    # Without fusion each add is an operation of its own, as ours are; with it, all 200 are one loop.
    alone = {"xla_disable_hlo_passes": "fusion"}
    bench.compare(
        "200 calls in one jit, 16 elements",
        ready(many(calls["ours"]), x, x),
        {
            "Warp jax_kernel": (ready(many(calls["Warp"]), x, x), 1 / 100),
            "XLA add, not fused": (ready(many(calls["XLA"], compiler_options=alone), x, x), 1.5),
            "a handler that does nothing": (ready(many(_idle_call()), x, x), 2.0),
        },
    )
    bench.compare(
        "100 calls of a jitted function with one call, 16 elements",
        ready(jax.jit(calls["ours"]), x, x, times=100),
        {"the same with an XLA add": (ready(jax.jit(calls["XLA"]), x, x, times=100), 1.1)},
    )
    large = jnp.ones(1 << 20)
    bench.compare(
        "add of 1M elements in a jit",
        ready(jax.jit(calls["ours"]), large, large),
        {
            "XLA": (ready(jax.jit(calls["XLA"]), large, large), 1.2),
            "Warp jax_kernel": (ready(jax.jit(calls["Warp"]), large, large), 1 / 2),
        },
    )
    bench.compare(
        "100 eager jax_kernel calls, 16 elements",
        ready(ours, x, x, times=100),
        {"jnp.add, eager": (ready(jnp.add, x, x, times=100), 3.0)},
    )
    squared = {"ours": nb.jax_kernel(square_of_sum, enable_backward=True), "Warp": warp_kernels.jax_square_of_sum()}
    both = {
        name: jax.jit(jax.value_and_grad(lambda a, b, f=f: f(a, b, 2.0)[0].sum(), argnums=(0, 1)))
        for name, f in squared.items()
    }
    for size, limit in ((16, 1 / 10), (1 << 20, 1 / 2)):
        given = jnp.ones(size)
        bench.compare(
            f"value_and_grad through a kernel, {size} elements",
            ready(both["ours"], given, given),
            {"Warp jax_kernel": (ready(both["Warp"], given, given), limit)},
        )
    together, peer = nb.jax_callable(scaled_twice), warp_kernels.jax_scaled_twice()
    bench.compare(
        "200 jax_callables of 3 kernels in one jit",
        ready(many(lambda a, b: together(a, 0.5)[0]), x, x),
        {"Warp jax_callable": (ready(many(lambda a, b: peer(a, 0.5)[0]), x, x), 1 / 50)},
    )


PROCESSES, ADJOINT_PROCESSES = 7, 3


def kernels(bench: Bench) -> None:
    """Whole kernels on large arrays, each time in a process of its own.

    Where a process happens to place code and data changes a loop's time by up to a factor of two (Warp's saxpy takes 25 ms in
    some and 45 ms in others), so a process counts once, and medians are taken over processes.
    """
    in_processes(bench, "kernels", KERNELS, PROCESSES, os.environ)


def in_processes(
    bench: Bench, group: str, works: Iterable[str], processes: int, environment: Mapping[str, str]
) -> None:
    """Run a group's rows in several processes, and keep their medians."""
    found: dict[tuple[str, str], list[Row]] = {}
    for _ in range(processes if any(bench.only in work for work in works) else 0):
        command = [sys.executable, __file__, "--once", group, "--only", bench.only, *(["--quick"] * bench.quick)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        for values in json.loads(done.stdout.splitlines()[-1]):
            row = Row(*values)
            found.setdefault((row.work, row.against), []).append(row)
    for rows in found.values():
        ours, theirs = (statistics.median(values) for values in zip(*((r.ours, r.theirs) for r in rows), strict=True))
        bench.add(Row(rows[0].work, rows[0].against, ours, theirs, rows[0].limit))


KERNELS = (
    "saxpy, 16M float32",
    "five-point stencil, 4096 x 4096 float32",
    "normalise and cross, 4M vec3",
    "mat33 x vec3, 1M",
    "axpy, 16M bfloat16",
)


def kernels_once(bench: Bench) -> None:
    """Whole kernels on large arrays, in this process."""
    import numba
    import torch
    import warp as wp
    import warp_kernels

    @numba.njit(parallel=True)
    def numba_saxpy(x, y, a):
        for i in numba.prange(x.size):
            y[i] = a * x[i] + y[i]

    # Each contestant has arrays of its own: on shared ones, whoever comes second would find them in the cache.
    n, zero = 1 << 24, np.float32(0)
    x, y = np.ones(n, np.float32), np.ones(n, np.float32)
    px, py = x.copy(), y.copy()
    wx, wy = wp.ones(n, dtype=float, device="cpu"), wp.ones(n, dtype=float, device="cpu")
    run = saxpy.forall(n)
    bench.compare(
        KERNELS[0],
        lambda: run(x, y, 0.0),
        {
            "Warp": (lambda: wp.launch(warp_kernels.saxpy, n, [wx, wy, 0.0], device="cpu"), 1 / 6),
            "Numba prange": (lambda: numba_saxpy(px, py, zero), 1.05),
        },
    )
    m = 4096
    a, out = np.random.default_rng(0).random((m, m), np.float32), np.zeros((m, m), np.float32)
    wa, wout = (wp.array(image, dtype=float, device="cpu") for image in (a, out))
    na, nout = a.copy(), out.copy()
    ta, tout = torch.tensor(a), torch.tensor(out)
    step = stencil.forall((m, m))

    def with_(p, q):
        q[1:-1, 1:-1] = 0.2 * (p[1:-1, 1:-1] + p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:])

    bench.compare(
        KERNELS[1],
        lambda: step(a, out),
        {
            "Warp": (lambda: wp.launch(warp_kernels.stencil, (m, m), [wa, wout], device="cpu"), 1 / 8),
            "NumPy": (lambda: with_(na, nout), 1 / 8),
            "torch eager": (lambda: with_(ta, tout), 1 / 8),
        },
    )
    element_kernels(bench)
    b, c = torch.randn(n).bfloat16(), torch.randn(n).bfloat16()
    tb, tc, add = b.clone(), c.clone(), saxpy.forall(n)
    bench.compare(
        KERNELS[4],
        lambda: add(b, c, 0.0),
        {"torch": (lambda: torch.add(tc, tb, alpha=0.0, out=tc), 1.3)},
    )


def element_kernels(bench: Bench) -> None:
    """Kernels on vectors and matrices, in this process."""
    import warp as wp
    import warp_kernels

    rng = np.random.default_rng(0)
    for work, n, kernel, by_hand, warp_kernel, shapes in (
        (KERNELS[2], 1 << 22, normalize_cross, normalize_cross_by_hand, warp_kernels.normalize_cross, ((3,), (3,))),
        (KERNELS[3], 1 << 20, transformed, transformed_by_hand, warp_kernels.transformed, ((3, 3), (3,))),
    ):
        given = [rng.standard_normal((n, *shape), np.float32) for shape in (*shapes, (3,))]
        copies = [array.copy() for array in given]
        theirs = [wp.array(array, dtype=wp.mat33 if array.ndim == 3 else wp.vec3, device="cpu") for array in given]
        bench.compare(
            work,
            functools.partial(kernel.forall(n), *given),
            {
                "Warp": (functools.partial(wp.launch, warp_kernel, n, theirs, device="cpu"), 1 / 3),
                "the same by hand on (n, 3)": (functools.partial(by_hand.forall(n), *copies), 1.1),
            },
        )


THREADS = {"1 thread": "1", "all threads": str(os.cpu_count())}


def adjoints(bench: Bench) -> None:
    """Adjoints of whole kernels, as `kernels` measures them, with and without threads; then what they cost at first."""
    for threads, count in THREADS.items():
        works = [*(adjoint_rows.title(name, threads) for name in adjoint_rows.WORK), adjoint_rows.LONG_LOOP]
        in_processes(bench, f"adjoints, {threads}", works, ADJOINT_PROCESSES, os.environ | {"NUMBA_NUM_THREADS": count})
    if bench.only in "torch_op, forward and backward, 16 elements":
        adjoint_rows.operator(bench)
    if bench.only in "first launch of the adjoint of 60 lines":
        compiled, cached = adjoint_rows.first(3)
        bench.add(Row("first launch of the adjoint of 60 lines", "2 s", compiled, 2000.0, 1.0, "ms"))
        bench.add(Row("the same in a second process, warm cache", "100 ms", cached, 100.0, 1.0, "ms"))


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


def processes(bench: Bench) -> None:
    """Import time, and the first launch of a second process."""
    if bench.only in "import numbridge":
        times = {name: [] for name in ("numbridge", "numba")}
        for _ in range(max(3, bench.rounds)):
            for name, found in times.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", f"import {name}"], check=True)
                found.append(time.perf_counter() - start)
        medians = {name: statistics.median(found) * 1e3 for name, found in times.items()}
        bench.add(
            Row("import numbridge (whole process)", "import numba", medians["numbridge"], medians["numba"], 1.5, "ms")
        )
    if bench.only in "first launch in a second process":
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "first.py"
            script.write_text(_FIRST)
            found = []
            for _ in range(1 + max(3, bench.rounds)):
                done = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
                found.append(float(done.stdout) * 1e3)
        row = Row(
            "first launch in a second process, warm cache", "300 ms", statistics.median(found[1:]), 300.0, 1.0, "ms"
        )
        bench.add(row)


def write(bench: Bench) -> None:
    """Write what was measured, with versions, machine and commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("numbridge", *PEERS)},
        "rounds": bench.rounds,
        "rows": [asdict(row) for row in bench.rows],
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "cpu.json").write_text(json.dumps(facts, indent=1) + "\n")
    head = "| work | against | ours | theirs | ratio | must be |  |\n|---|---|---|---|---|---|---|\n"
    lines = [
        f"| {r.work} | {r.against} | {r.ours:.3g} {r.unit} | {r.theirs:.3g} {r.unit} | {r.ratio:.3f} | ≤ {r.limit:.3f} | "
        f"{'' if r.holds else 'missed'} |"
        for r in bench.rows
    ]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    about = f"Measured {facts['date']} at commit `{commit[:12]}` on {facts['machine']}, Python {facts['python']}; {versions}."
    text = f"# Benchmarks on the CPU\n\n{about}\nMedians of {bench.rounds} alternating rounds; read the ratios.\n\n"
    (FOLDER / "cpu.md").write_text(text + head + "\n".join(lines) + "\n")


def main() -> None:
    """Run the groups and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--once", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    import warp as wp

    wp.config.log_level = wp.LOG_ERROR
    wp.init()
    bench = Bench(5 if chosen.quick else ROUNDS, chosen.only)
    if chosen.once:
        group, _, threads = chosen.once.partition(", ")
        kernels_once(bench) if group == "kernels" else adjoint_rows.once(bench, threads)
        print(json.dumps([(row.work, row.against, row.ours, row.theirs, row.limit) for row in bench.rows]))
        return
    for group in (entries, conversions, inside_jax, kernels, adjoints, processes):
        group(bench)
    if not chosen.only:
        write(bench)


if __name__ == "__main__":
    main()
