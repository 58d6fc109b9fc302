"""Measures numbridge against its peers in one run, and writes the ratios as JSON and as a table under docs/benchmarks/.

What `python -m numbridge bench` measures is defined there, and has its limits here; other rows are defined here.

Each row alternates between the contestants, so that both see the same machine, and compares medians. The machine is noisy:
read ratios, not times. `--quick` takes fewer rounds; `--only TEXT` runs the rows whose name contains the text.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import adjoint_rows
import numpy as np
from numba import cuda, float32

import numbridge as nb
from numbridge.command_line.adjoint_kernels import stencil
from numbridge.command_line.adjoint_work import ADJOINTS, title
from numbridge.command_line.comparison import facts
from numbridge.command_line.drawing import shown
from numbridge.command_line.kernel_work import calls_in_one_jit, one_call_in_a_jit, repeated, saxpy_of
from numbridge.command_line.launch_work import TENSORS, conversion, launch
from numbridge.command_line.memory_work import Memory
from numbridge.command_line.process_work import FirstLaunch, with_bytecode
from numbridge.command_line.sample_kernels import add as jax_add
from numbridge.command_line.sample_kernels import saxpy
from numbridge.command_line.timing import alternating
from numbridge.command_line.work import Row as Measured
from numbridge.command_line.work import Work

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "benchmarks"
ROUNDS = 21
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass
class Row:
    """One line of the table: our figure, a peer's, their ratio, and what the ratio must not exceed, if that is said."""

    work: str
    against: str
    ours: float
    theirs: float
    limit: float | None
    unit: str = "us"
    ratio: float | None = field(init=False)
    holds: bool = field(init=False)

    def __post_init__(self) -> None:
        # Memory may not have grown at all.
        self.ratio = self.ours / self.theirs if self.theirs else None
        self.holds = self.limit is None or (self.ratio is not None and self.ratio <= self.limit)

    def cells(self) -> list[str]:
        """Return the row as text."""
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        limit = "" if self.limit is None else f"≤ {self.limit:.3g}"
        figures = [shown(value, self.unit) for value in (self.ours, self.theirs)]
        return [self.work, self.against, *figures, ratio, limit if self.holds else f"{limit}, missed"]


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


@nb.kernel
def product(a, b, c):
    i, j = nb.tid()
    s = 0.0
    for k in range(a.shape[1]):
        s += a[i, k] * b[k, j]
    c[i, j] = s


@nb.kernel
def histogram(places, counts):
    i = nb.tid()
    nb.atomic_add(counts, places[i], 1)


@nb.kernel
def springs(x, ends, lengths, stiffness, f):
    k = nb.tid()
    i, j = ends[k, 0], ends[k, 1]
    d = x[i] - x[j]
    length = nb.length(d)
    force = d * (stiffness * (length - lengths[k]) / length)
    nb.atomic_sub(f, i, force)
    nb.atomic_add(f, j, force)


@nb.kernel
def all_pairs(x, masses, energies, n):
    i = nb.tid()
    total = 0.0
    for j in range(n):
        if j != i:
            total += masses[i] * masses[j] / (nb.length(x[i] - x[j]) + 0.01)
    energies[i] = total


@nb.kernel
def normals(x, corners, sums):
    t = nb.tid()
    i, j, k = corners[t, 0], corners[t, 1], corners[t, 2]
    normal = nb.cross(x[j] - x[i], x[k] - x[i])
    nb.atomic_add(sums, i, normal)
    nb.atomic_add(sums, j, normal)
    nb.atomic_add(sums, k, normal)


@nb.kernel
def five_by_five(x, w, y):
    i, j = nb.tid()
    total = 0.0
    for a in range(5):
        for b in range(5):
            total += w[a, b] * x[i + a, j + b]
    y[i, j] = total


@nb.kernel
def saxpy_over_grid(x, y, a):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        y[i] = a * x[i] + y[i]


@nb.kernel
def scaled_by_blocks(x, y, a):
    for i in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            y[i, j] = a * x[i, j] + y[i, j]


@nb.kernel
def scaled_by_threads(x, y, a):
    i, j = nb.tid()
    y[i, j] = a * x[i, j] + y[i, j]


@nb.kernel
def nothing_of_tuples(outs, ins):
    pass


@nb.kernel
def nothing_of_five(a, b, c, d, e):
    pass


@nb.kernel
def product_over_grid(x, y, total):
    s = 0.0
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        s += x[i] * y[i]
    cuda.atomic.add(total, 0, s)


@nb.kernel
def periodic(x, y):
    i, j = nb.tid()
    n, m = x.shape
    y[i, j] = 0.25 * (x[(i + 1) % n, j] + x[(i - 1 + n) % n, j] + x[i, (j + 1) % m] + x[i, (j - 1 + m) % m])


@nb.kernel
def periodic_by_one_index(x, y, w: int, h: int):
    i = nb.tid()
    r, c = i // w, i % w
    left, right = (c - 1 + w) % w, (c + 1) % w
    up, down = (r - 1 + h) % h, (r + 1) % h
    y[i] = 0.25 * (x[r * w + left] + x[r * w + right] + x[up * w + c] + x[down * w + c])


@nb.kernel
def weighted(x, w, y):
    i = nb.tid()
    for k in range(w.shape[0]):
        total = 0.0
        for j in range(w.shape[1]):
            total += w[k, j] * x[i, j]
        y[i, k] = total


@nb.kernel
def sum_in_blocks(x, total):
    shared, t, s = cuda.shared.array(256, float32), cuda.threadIdx.x, float32(0.0)
    for k in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        s += x[k]
    shared[t] = s
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.add(total, 0, shared[0])


@nb.kernel
def relaxed(x, y):
    i = nb.tid()
    y[0, i] = x[0, i]
    for k in range(1, x.shape[0]):
        y[k, i] = math.tanh(y[k - 1, i]) * x[k, i] + 0.5 * y[k - 1, i]


@nb.kernel
def burgers(u):
    for t in range(u.shape[0] - 1):
        for i in range(1, u.shape[1] - 1):
            steepest = u[t, i] - u[t, i - 1]
            bent = u[t, i - 1] - 2.0 * u[t, i] + u[t, i + 1]
            u[t + 1, i] = u[t, i] - 0.1 * u[t, i] * steepest + 0.05 * bent


@nb.kernel
def squared_error(x, y, total):
    i = nb.tid()
    d = x[i] - y[i]
    nb.atomic_add(total, 0, d * d)


@nb.kernel
def mandelbrot(trips, most):
    i, j = nb.tid()
    a = 3.0 * float(j) / float(trips.shape[1]) - 2.0
    b = 3.0 * float(i) / float(trips.shape[0]) - 1.5
    x = 0.0
    y = 0.0
    k = 0
    while k < most and x * x + y * y < 4.0:
        x, y = x * x - y * y + a, 2.0 * x * y + b
        k += 1
    trips[i, j] = k


class Bench:
    """Measures and collects rows."""

    def __init__(self, rounds: int, only: str) -> None:
        self.rounds = rounds
        self.quick = rounds < ROUNDS
        self.only = only
        self.rows: list[Row] = []

    def compare(
        self, work: str, ours: Callable[[], object], peers: Mapping[str, tuple[Callable[[], object], float | None]]
    ) -> None:
        """Measure one piece of work of ours and its peers, given as name -> (callable, limit of the ratio, if there is one)."""
        if self.only in work:
            contestants = {"numbridge": ours} | {name: peer for name, (peer, _) in peers.items()}
            self.judge(
                Measured(work, alternating(contestants, self.rounds, 0.02)), {n: m for n, (_, m) in peers.items()}
            )

    def take(self, work: Work, limits: Mapping[str, float], **more: Callable[[], object]) -> None:
        """Measure one piece of work of the comparison, with the limits of the ratios to the peers."""
        if self.only in work.name:
            contestants = {**work.prepare(), **{name.replace("_", " "): run for name, run in more.items()}}
            self.judge(Measured(work.name, alternating(contestants, self.rounds, 0.02)), limits)

    def judge(self, measured: Measured, limits: Mapping[str, float | None]) -> None:
        """Keep what was measured as one row for each peer; a peer without a limit is only shown."""
        (_, ours), *peers = measured.values.items()
        for name, theirs in peers:
            self.add(Row(measured.work, name, ours, theirs, limits.get(name), measured.unit))

    def add(self, row: Row) -> None:
        """Keep a row and print it."""
        self.rows.append(row)
        print(
            "  ".join(f"{cell:{width}}" for cell, width in zip(row.cells(), (60, 28, 9, 9, 6, 0), strict=True)),
            flush=True,
        )


FORALL_LIMITS = {"torch": 0.7, "paddle": 0.6, "jax": 0.25, "numpy": 0.6}


def entries(bench: Bench) -> None:
    """Tensors into an empty kernel."""
    for count in (1, 5):
        for name in TENSORS:
            limits = {"tvm-ffi C++ function": FORALL_LIMITS[name], "Numba njit": 1.0}
            bench.take(launch(name, count, "forall"), limits)
            bench.take(launch(name, count, "nb.launch"), {"wp.launch, tensors direct": 1 / 25})
    tensors = [np.zeros(8, np.float32) for _ in range(5)]
    in_tuples, one_by_one = nothing_of_tuples.forall(8), nothing_of_five.forall(8)
    bench.compare(
        "5 numpy tensors in two tuples, empty kernel, forall",
        lambda: in_tuples((tensors[0], tensors[1]), (tensors[2], tensors[3], tensors[4])),
        {"the same without tuples": (lambda: one_by_one(*tensors), 2.0)},
    )


TO_LIMITS = {"torch": 1 / 4, "paddle": 1 / 4, "numpy": 1 / 4, "jax": 0.7}


def conversions(bench: Bench) -> None:
    """from_* and to_*."""
    for name in TENSORS:
        bench.take(conversion("from", name), {"Warp": 1 / 8})
        bench.take(conversion("to", name), {"Warp": TO_LIMITS[name], "jax.dlpack.from_dlpack(NumPy)": 1.1})


def scaled_twice(x: nb.array[float], s: float, out: nb.array[float]):
    once, twice = nb.empty_like(x), nb.empty_like(x)
    nb.launch(jax_scale, x.shape, [x, s], [once])
    nb.launch(jax_scale, x.shape, [once, s], [twice])
    nb.launch(jax_add, x.shape, [once, twice], [out])


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
            answer(extension, 0)
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

    ours, x, times = nb.jax_kernel(jax_add), jnp.ones(16), 200

    def ready(call: Callable[..., object], *arguments: object, times: int = 1) -> Callable[[], object]:
        def run() -> None:
            for _ in range(times):
                result = call(*arguments)
            jax.block_until_ready(result)

        return run

    bench.take(calls_in_one_jit(times), {"Warp jax_kernel": 1 / 100, "XLA add, not fused": 1.5})
    bench.take(
        calls_in_one_jit(times, fuse=False),
        {"Warp jax_kernel": 1 / 100, "a handler that does nothing": 2.0},
        a_handler_that_does_nothing=repeated(_idle_call(), times, x),
    )
    single = {"ours": lambda a, b: ours(a, b)[0], "XLA": lambda a, b: a + b}
    bench.compare(
        "100 calls of a jitted function with one call, 16 elements",
        ready(jax.jit(single["ours"]), x, x, times=100),
        {"the same with an XLA add": (ready(jax.jit(single["XLA"]), x, x, times=100), 1.1)},
    )
    bench.take(one_call_in_a_jit(), {"XLA": 1.2, "Warp jax_kernel": 1 / 2})
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
        repeated(lambda a, _: together(a, 0.5)[0], times, x),
        {"Warp jax_callable": (repeated(lambda a, _: peer(a, 0.5)[0], times, x), 1 / 50)},
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


SAXPY = saxpy_of(1 << 24)
KERNELS = (
    SAXPY.name,
    "five-point stencil, 4096 x 4096 float32",
    "normalise and cross, 4M vec3",
    "mat33 x vec3, 1M",
    "axpy, 16M bfloat16",
    "product of 512 x 512 float32, a sum in each thread",
    "Mandelbrot set, 1024 x 1024, up to 200 trips in each thread",
    "sum of squared errors, 4M float32, atomic_add to one number",
    "histogram of 4M int32, atomic_add to 256 numbers",
    "adjoint of 32 inputs times 16 x 32 weights, 20,000 threads",
    "97,000 springs of a cloth, atomic_add to 16,384 vec3",
    "normals of 180,000 triangles, atomic_add to 90,000 vec3",
    "adjoint of energies of all pairs of 1,500 vec3",
    "convolution of 1024 x 1024 with 5 x 5 float32",
    "saxpy in a loop over a grid of 65,536 threads, 16M float32",
    "sum of products in a loop over a grid of 65,536 threads, 4M float32",
    "five-point stencil with periodic boundaries, 1024 x 1024 float32",
    "the same by one index, 1M float32",
    "adjoint of the product of 256 x 256 float32",
    "exp, tanh and log1p, 4M float64",
    "product of 512 x 512 float32 in tiles of shared memory",
    "softmax of 20,000 rows of 64 float32, a block for each",
    "sums of 1M edges by 64 features, atomic_add to 100,000 x 64 float32",
    "4096 rows of 4096 float32, blocks that take them and threads that take turns",
    "sum of 4M float32 in shared memory, 64 blocks of 256 threads that take turns",
    "adjoint of 64 steps of a recurrence, 16,384 of them side by side",
    "adjoint of 200 steps of Burgers' equation over 1,000 cells, one thread",
)


def kernels_once(bench: Bench) -> None:
    """Whole kernels on large arrays, in this process."""
    import torch
    import warp as wp

    from numbridge.command_line import warp_adjoints

    bench.take(SAXPY, {"Warp": 1 / 6, "Numba prange": 1.05, "NumPy": 1.0, "torch": 1.05})
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
            "Warp": (lambda: wp.launch(warp_adjoints.stencil, (m, m), [wa, wout], device="cpu"), 1 / 8),
            "NumPy": (lambda: with_(na, nout), 1 / 8),
            "torch eager": (lambda: with_(ta, tout), 1 / 8),
        },
    )
    element_kernels(bench)
    cloth(bench)
    mesh(bench)
    pairs(bench)
    convolution(bench)
    as_for_cuda(bench)
    n = 1 << 24
    b, c = torch.randn(n).bfloat16(), torch.randn(n).bfloat16()
    tb, tc, add = b.clone(), c.clone(), saxpy.forall(n)
    bench.compare(
        KERNELS[4],
        lambda: add(b, c, 0.0),
        {"torch": (lambda: torch.add(tc, tb, alpha=0.0, out=tc), 1.3)},
    )
    products(bench)
    doubles(bench)
    blocks(bench)
    edges(bench)
    sets(bench)
    losses(bench)


def products(bench: Bench) -> None:
    """A kernel with a loop in each thread, in this process."""
    import numba
    import warp as wp
    import warp_kernels

    n = 512
    factors = np.random.default_rng(0).random((3, n, n), np.float32)
    theirs = [wp.array(array, dtype=float, device="cpu") for array in factors]
    a, b, c = factors.copy()

    @numba.njit(parallel=True)
    def by_numba(a, b, c):
        for i in numba.prange(n):
            for j in range(n):
                s = np.float32(0.0)
                for k in range(n):
                    s += a[i, k] * b[k, j]
                c[i, j] = s

    bench.compare(
        KERNELS[5],
        functools.partial(product.forall((n, n)), *factors),
        {
            "Warp": (lambda: wp.launch(warp_kernels.product, (n, n), theirs, device="cpu"), 1 / 8),
            "Numba prange": (lambda: by_numba(a, b, c), 1 / 4),
        },
    )

    n = 256
    values = np.random.default_rng(0).random((3, n, n), np.float32)
    adjoints = np.ones_like(values)
    theirs, theirs_back = (
        [wp.array(array, dtype=float, device="cpu") for array in made] for made in (values, adjoints)
    )
    derivative = product.adjoint(["a", "b", "c"]).forall((n, n))

    def by_warp():
        options = {"adj_inputs": theirs_back, "adjoint": True, "device": "cpu"}
        wp.launch(warp_kernels.product, (n, n), theirs, **options)

    bench.compare(
        "adjoint of the product of 256 x 256 float32",
        functools.partial(derivative, *values, *adjoints),
        {"Warp": (by_warp, 1 / 10), "torch": (_products_by_torch(values, adjoints[2]), None)},
    )


def _products_by_torch(values, adjoint) -> Callable[[], object]:
    """Return what the adjoint of a product is by a library: two products."""
    import torch

    a, b, back = (torch.tensor(array) for array in (values[0], values[1], adjoint))
    return lambda: (back @ b.T, a.T @ back)


@nb.kernel
def growth(x: nb.array[nb.float64], y: nb.array[nb.float64]):
    i = nb.tid()
    y[i] = math.exp(-x[i]) * math.tanh(x[i]) + math.log1p(x[i])


def doubles(bench: Bench) -> None:
    """Mathematical functions of float64, in this process."""
    import torch

    x = np.random.default_rng(0).random(1 << 22)
    y = np.empty_like(x)
    tx = torch.tensor(x)
    bench.compare(
        "exp, tanh and log1p, 4M float64",
        functools.partial(growth.forall(x.size), x, y),
        {
            "NumPy": (lambda: np.exp(-x) * np.tanh(x) + np.log1p(x), 0.5),
            "torch": (lambda: torch.exp(-tx) * torch.tanh(tx) + torch.log1p(tx), 1.0),
        },
    )


TILE, WIDTH = 16, 64


@nb.kernel
def product_in_tiles(a: nb.array2d[float], b: nb.array2d[float], c: nb.array2d[float]):
    left, right = cuda.shared.array((TILE, TILE), np.float32), cuda.shared.array((TILE, TILE), np.float32)
    i, j = cuda.grid(2)
    ti, tj = cuda.threadIdx.x, cuda.threadIdx.y
    s = np.float32(0.0)
    for first in range(0, a.shape[1], TILE):
        left[ti, tj] = a[i, first + tj]
        right[ti, tj] = b[first + ti, j]
        cuda.syncthreads()
        for k in range(TILE):
            s += left[ti, k] * right[k, tj]
        cuda.syncthreads()
    c[i, j] = s


@nb.kernel
def softmax_by_block(x: nb.array2d[float], y: nb.array2d[float]):
    shared = cuda.shared.array(WIDTH, np.float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    shared[t] = x[row, t]
    cuda.syncthreads()
    step = WIDTH // 2
    while step > 0:
        if t < step:
            shared[t] = max(shared[t], shared[t + step])
        cuda.syncthreads()
        step //= 2
    e = math.exp(x[row, t] - shared[0])
    cuda.syncthreads()
    shared[t] = e
    cuda.syncthreads()
    step = WIDTH // 2
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        cuda.syncthreads()
        step //= 2
    y[row, t] = e / shared[0]


def blocks(bench: Bench) -> None:
    """Kernels whose threads work together, in this process."""
    import torch

    n, rows = 512, 20_000
    factors = np.random.default_rng(0).random((3, n, n), np.float32)
    others, tiles = factors.copy(), n // TILE
    bench.compare(
        "product of 512 x 512 float32 in tiles of shared memory",
        functools.partial(product_in_tiles[(tiles, tiles), (TILE, TILE)], *factors),
        {"a sum in each thread": (functools.partial(product.forall((n, n)), *others), 1.25)},
    )
    x, out = np.random.default_rng(0).random((rows, WIDTH), np.float32), np.empty((rows, WIDTH), np.float32)
    given = torch.tensor(x)
    bench.compare(
        "softmax of 20,000 rows of 64 float32, a block for each",
        functools.partial(softmax_by_block[rows, WIDTH], x, out),
        {"torch": (lambda: torch.softmax(given, 1), 1.0)},
    )


@nb.kernel
def sum_edges(source: nb.array[int], target: nb.array[int], x: nb.array2d[float], out: nb.array2d[float]):
    e, f = nb.tid()
    nb.atomic_add(out, target[e], f, x[source[e], f])


def edges(bench: Bench) -> None:
    """A layer of a graph: what edges add to nodes, in this process."""
    import warp as wp
    import warp_kernels

    nodes, count, features = 100_000, 1_000_000, 64
    random = np.random.default_rng(0)
    ends = random.integers(0, nodes, (2, count)).astype(np.int32)
    x, out = random.random((nodes, features), np.float32), np.zeros((nodes, features), np.float32)
    kinds = (int, int, float, float)
    theirs = [wp.array(a, dtype=kind, device="cpu") for a, kind in zip((*ends, x, out), kinds, strict=True)]
    bench.compare(
        "sums of 1M edges by 64 features, atomic_add to 100,000 x 64 float32",
        functools.partial(sum_edges.forall((count, features)), *ends, x, out),
        {"Warp": (lambda: wp.launch(warp_kernels.sum_edges, (count, features), theirs, device="cpu"), 1.0)},
    )


def sets(bench: Bench) -> None:
    """A kernel with a loop that each thread leaves in its own time, in this process."""
    import numba
    import warp as wp
    import warp_kernels

    n, most = 1024, 200
    ours, further = np.zeros((2, n, n), np.int32)
    theirs = wp.zeros((n, n), dtype=wp.int32, device="cpu")

    @numba.njit(parallel=True)
    def by_numba(trips, most):
        for i in numba.prange(n):
            for j in range(n):
                a = np.float32(3.0) * np.float32(j) / np.float32(n) - np.float32(2.0)
                b = np.float32(3.0) * np.float32(i) / np.float32(n) - np.float32(1.5)
                x = y = np.float32(0.0)
                k = 0
                while k < most and x * x + y * y < np.float32(4.0):
                    x, y = x * x - y * y + a, np.float32(2.0) * x * y + b
                    k += 1
                trips[i, j] = k

    bench.compare(
        KERNELS[6],
        lambda: mandelbrot.forall((n, n))(ours, most),
        {
            "Warp": (lambda: wp.launch(warp_kernels.mandelbrot, (n, n), [theirs, most], device="cpu"), 1 / 4),
            "Numba prange": (lambda: by_numba(further, most), 1 / 2),
        },
    )
    assert np.array_equal(ours, further)


def losses(bench: Bench) -> None:
    """Kernels in which all threads add to one number, or to few, in this process."""
    import torch
    import warp as wp
    import warp_kernels

    n = 1 << 22
    x, y = np.random.default_rng(0).random((2, n), np.float32)
    total, found = np.zeros(1, np.float32), wp.zeros(1, dtype=float, device="cpu")
    theirs = [wp.array(array, dtype=float, device="cpu") for array in (x, y)]
    tx, ty = torch.from_numpy(x.copy()), torch.from_numpy(y.copy())
    bench.compare(
        KERNELS[7],
        functools.partial(squared_error.forall(n), x, y, total),
        {
            "Warp": (lambda: wp.launch(warp_kernels.squared_error, n, [*theirs, found], device="cpu"), 1 / 2),
            "torch": (lambda: torch.nn.functional.mse_loss(tx, ty, reduction="sum"), 1.0),
        },
    )
    places, counts = np.random.default_rng(0).integers(0, 256, n).astype(np.int32), np.zeros(256, np.int32)
    given = [wp.array(array, dtype=wp.int32, device="cpu") for array in (places, counts)]
    bench.compare(
        KERNELS[8],
        functools.partial(histogram.forall(n), places, counts),
        {
            "Warp": (lambda: wp.launch(warp_kernels.histogram, n, given, device="cpu"), 1.0),
            "NumPy bincount": (lambda: np.bincount(places, minlength=256), 1.0),
        },
    )
    rows = 20_000
    shapes = (rows, 32), (16, 32), (rows, 16)
    values, adjoints = ([np.random.default_rng(k).random(s, np.float32) for s in shapes] for k in (1, 2))
    wide = [[wp.array(array, dtype=float, device="cpu") for array in arrays] for arrays in (values, adjoints)]
    ours = {"adj_inputs": adjoints[:2], "adj_outputs": adjoints[2:], "adjoint": True}
    theirs_too = {"adj_inputs": wide[1][:2], "adj_outputs": wide[1][2:], "adjoint": True, "device": "cpu"}
    bench.compare(
        KERNELS[9],
        lambda: nb.launch(weighted, rows, values[:2], values[2:], **ours),
        {"Warp": (lambda: wp.launch(warp_kernels.weighted, rows, wide[0][:2], wide[0][2:], **theirs_too), 1 / 2)},
    )


def element_kernels(bench: Bench) -> None:
    """Kernels on vectors and matrices, in this process."""
    import numba
    import warp as wp
    import warp_kernels

    @numba.njit(parallel=True, fastmath=True)
    def in_order(m, v, out):
        """Read and write as many bytes as matrices times vectors, one after another: what memory allows."""
        for i in numba.prange(len(out)):
            out[i] = m[0, i] + m[1, i] + m[2, i] + v[i]

    rng = np.random.default_rng(0)
    for work, n, kernel, by_hand, warp_kernel, shapes in (
        (KERNELS[2], 1 << 22, normalize_cross, normalize_cross_by_hand, warp_kernels.normalize_cross, ((3,), (3,))),
        (KERNELS[3], 1 << 20, transformed, transformed_by_hand, warp_kernels.transformed, ((3, 3), (3,))),
    ):
        given = [rng.standard_normal((n, *shape), np.float32) for shape in (*shapes, (3,))]
        copies = [array.copy() for array in given]
        theirs = [wp.array(array, dtype=wp.mat33 if array.ndim == 3 else wp.vec3, device="cpu") for array in given]
        flat = [array.reshape((3, -1) if array.ndim == 3 else -1) for array in copies]
        memory = (
            {"the same bytes in order": (functools.partial(in_order, *flat), None)} if kernel is transformed else {}
        )
        bench.compare(
            work,
            functools.partial(kernel.forall(n), *given),
            {
                "Warp": (functools.partial(wp.launch, warp_kernel, n, theirs, device="cpu"), 1 / 3),
                "the same by hand on (n, 3)": (functools.partial(by_hand.forall(n), *copies), 1.1),
                **memory,
            },
        )


def cloth(bench: Bench) -> None:
    """Forces of springs between the particles of a cloth, of which each adds to those of two."""
    import warp as wp
    import warp_kernels

    side = 128
    number = np.arange(side * side, dtype=np.int32).reshape(side, side)
    # Neighbours along both axes, theirs, and those along both diagonals
    steps = ((0, 1), (1, 0), (0, 2), (2, 0), (1, 1), (1, -1))
    pairs = [
        np.stack([number[: side - a, max(0, -b) : side - max(0, b)], number[a:, max(0, b) : side + min(0, b)]], axis=-1)
        for a, b in steps
    ]
    ends = np.concatenate([pair.reshape(-1, 2) for pair in pairs])
    x = np.random.default_rng(0).normal(size=(side * side, 3)).astype(np.float32)
    lengths, f = np.ones(len(ends), np.float32), np.zeros_like(x)
    ours = [nb.from_numpy(x, dtype=nb.vec3), ends, lengths, 10.0, nb.from_numpy(f, dtype=nb.vec3)]
    theirs = [
        wp.array(x, dtype=wp.vec3, device="cpu"),
        wp.array(ends, dtype=wp.int32, device="cpu"),
        wp.array(lengths, dtype=float, device="cpu"),
        10.0,
        wp.array(f.copy(), dtype=wp.vec3, device="cpu"),
    ]
    bench.compare(
        KERNELS[10],
        functools.partial(springs.forall(len(ends)), *ours),
        {"Warp": (lambda: wp.launch(warp_kernels.springs, len(ends), theirs, device="cpu"), 1.5)},
    )


def mesh(bench: Bench) -> None:
    """Normals of triangles, each added to those of three points."""
    import warp as wp
    import warp_kernels

    side = 300
    first = (np.arange(side - 1)[:, None] * side + np.arange(side - 1)).reshape(-1, 1)
    corners = np.concatenate([first + np.array(part) for part in ((0, 1, side), (1, side + 1, side))]).astype(np.int32)
    x = np.random.default_rng(0).random((side * side, 3), np.float32)
    sums = np.zeros_like(x)
    theirs = [wp.array(x, dtype=wp.vec3, device="cpu"), wp.array(corners, device="cpu")]
    theirs.append(wp.array(sums, dtype=wp.vec3, device="cpu"))
    ours = [nb.from_numpy(x, dtype=nb.vec3), corners, nb.from_numpy(sums, dtype=nb.vec3)]
    bench.compare(
        KERNELS[11],
        functools.partial(normals.forall(len(corners)), *ours),
        {"Warp": (lambda: wp.launch(warp_kernels.normals, len(corners), theirs, device="cpu"), 1.5)},
    )


def pairs(bench: Bench) -> None:
    """Gradients of the energies between all pairs of particles."""
    import warp as wp
    import warp_kernels

    n, rng = 1500, np.random.default_rng(0)
    arrays = [rng.random((n, 3), np.float32), rng.random(n, np.float32), np.zeros(n, np.float32)]
    adjoints = [np.zeros_like(arrays[0]), np.zeros_like(arrays[1]), np.ones_like(arrays[2])]
    kinds = wp.vec3, float, float
    values, theirs = (
        [wp.array(array, dtype=kind, device="cpu") for array, kind in zip(group, kinds, strict=True)]
        for group in (arrays, adjoints)
    )
    ours = [
        [nb.from_numpy(array, dtype=nb.vec3 if array.ndim == 2 else None) for array in group]
        for group in (arrays, adjoints)
    ]
    bench.compare(
        KERNELS[12],
        lambda: nb.launch(all_pairs, n, [*ours[0], n], adj_inputs=[*ours[1], None], adjoint=True),
        {
            "Warp": (
                lambda: wp.launch(
                    warp_kernels.all_pairs,
                    n,
                    [*values, n],
                    adj_inputs=[*theirs, None],
                    adjoint=True,
                    device="cpu",
                ),
                0.5,
            )
        },
    )


def convolution(bench: Bench) -> None:
    """A loop of few trips within another, in each thread."""
    import torch
    import warp as wp
    import warp_kernels

    m, rng = 1024, np.random.default_rng(0)
    given = [rng.random((m + 4, m + 4), np.float32), rng.random((5, 5), np.float32), np.zeros((m, m), np.float32)]
    theirs = [wp.array(array, dtype=float, device="cpu") for array in given]
    image, weights = (torch.tensor(array)[None, None] for array in given[:2])
    bench.compare(
        KERNELS[13],
        functools.partial(five_by_five.forall((m, m)), *given),
        {
            "Warp": (lambda: wp.launch(warp_kernels.five_by_five, (m, m), theirs, device="cpu"), 0.5),
            "torch conv2d": (lambda: torch.nn.functional.conv2d(image, weights), None),
        },
    )


def recurrences(bench: Bench) -> None:
    """The adjoint of a loop that reads what it has stored, in this process."""
    import warp as wp
    import warp_kernels

    shape = (64, 1 << 14)
    values, adjoints = ([np.random.default_rng(k).random(shape, np.float32) for _ in range(2)] for k in (1, 2))
    theirs, by_theirs = ([wp.array(array, dtype=float, device="cpu") for array in made] for made in (values, adjoints))
    peer = {"adj_inputs": by_theirs[:1], "adj_outputs": by_theirs[1:], "adjoint": True, "device": "cpu"}
    bench.compare(
        KERNELS[25],
        lambda: nb.launch(relaxed, shape[1], values, adj_inputs=adjoints, adjoint=True),
        {"Warp": (lambda: wp.launch(warp_kernels.relaxed, shape[1], theirs[:1], theirs[1:], **peer), 0.5)},
    )
    u, by_u = (np.random.default_rng(k).random((200, 1000), np.float32) for k in (1, 2))
    (wu, by_wu), other = (wp.array(array, dtype=float, device="cpu") for array in (u, by_u)), u.copy()
    peer = {"inputs": [wu], "adj_inputs": [by_wu], "adjoint": True, "device": "cpu"}
    bench.compare(
        KERNELS[26],
        lambda: nb.launch(burgers, 1, [u], adj_inputs=[by_u], adjoint=True),
        {
            "Warp": (lambda: wp.launch(warp_kernels.burgers, 1, **peer), 0.5),
            "the kernel itself": (lambda: nb.launch(burgers, 1, [other]), None),
        },
    )


def as_for_cuda(bench: Bench) -> None:
    """Kernels as they are written for CUDA, in this process."""
    import numba
    import warp as wp
    import warp_kernels

    n, rng = 1 << 24, np.random.default_rng(0)
    (x, y), (a, b) = rng.random((2, n), np.float32), rng.random((2, n), np.float32)
    bench.compare(
        KERNELS[14],
        functools.partial(saxpy_over_grid[256, 256], x, y, 0.5),
        {"a thread for each element": (functools.partial(saxpy.forall(n), a, b, 0.5), 1.2)},
    )
    m = 1 << 12
    rows = [array.reshape(m, m) for array in (x, y, a, b)]
    bench.compare(
        KERNELS[23],
        functools.partial(scaled_by_blocks[256, 128], *rows[:2], 0.5),
        {"a thread for each element": (functools.partial(scaled_by_threads.forall((m, m)), *rows[2:], 0.5), 1.2)},
    )
    n, total = 1 << 22, np.zeros(1, np.float32)

    @numba.njit(parallel=True)
    def sum_of(x):
        found = np.float32(0.0)
        for k in numba.prange(x.size):
            found += x[k]
        return found

    bench.compare(
        KERNELS[24],
        functools.partial(sum_in_blocks[64, 256], x[:n], total),
        {"Numba prange": (lambda: sum_of(a[:n]), 1.2)},
    )
    recurrences(bench)
    bench.compare(
        KERNELS[15],
        functools.partial(product_over_grid[256, 256], x[:n], y[:n], total),
        {"NumPy dot": (lambda: np.dot(a[:n], b[:n]), 2.0)},
    )
    m = 1024
    given = [rng.random((m, m), np.float32), np.zeros((m, m), np.float32)]
    theirs = [wp.array(array, dtype=float, device="cpu") for array in given]
    bench.compare(
        KERNELS[16],
        functools.partial(periodic.forall((m, m)), *given),
        {"Warp": (lambda: wp.launch(warp_kernels.periodic, (m, m), theirs, device="cpu"), 1 / 8)},
    )
    flat = [array.reshape(-1) for array in given]
    peer = [wp.array(array, dtype=float, device="cpu") for array in flat]
    bench.compare(
        KERNELS[17],
        functools.partial(periodic_by_one_index.forall(m * m), *flat, m, m),
        {"Warp": (lambda: wp.launch(warp_kernels.periodic_by_one_index, m * m, [*peer, m, m], device="cpu"), 1 / 3)},
    )


THREADS = {"1 thread": "1", "all threads": str(os.cpu_count())}


def adjoints(bench: Bench) -> None:
    """Adjoints of whole kernels, as `kernels` measures them, with and without threads; then what they cost at first."""
    for threads, count in THREADS.items():
        works = [*(title(name, threads) for name in ADJOINTS), adjoint_rows.LONG_LOOP]
        in_processes(bench, f"adjoints, {threads}", works, ADJOINT_PROCESSES, os.environ | {"NUMBA_NUM_THREADS": count})
    if bench.only in "torch_op, forward and backward, 16 elements":
        adjoint_rows.operator(bench)
    if bench.only in "first launch of the adjoint of 60 lines":
        compiled, cached = adjoint_rows.first(3)
        bench.add(Row("first launch of the adjoint of 60 lines", "2 s", compiled, 2000.0, 1.0, "ms"))
        bench.add(Row("the same in a second process, warm cache", "100 ms", cached, 100.0, 1.0, "ms"))


def tapes(bench: Bench) -> None:
    """Launches that are recorded, and their gradients."""
    import tape_rows  # which imports Warp

    tape_rows.chains(bench)


def processes(bench: Bench) -> None:
    """Import time, and the first launch of a second process."""
    if bench.only in "import numbridge":
        times = {name: [] for name in ("numbridge", "numba")}
        for _ in range(max(3, bench.rounds)):
            for name, found in times.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, "-c", f"import {name}"], env=with_bytecode(), check=True)
                found.append(time.perf_counter() - start)
        medians = {name: statistics.median(found) * 1e3 for name, found in times.items()}
        bench.add(
            Row("import numbridge (whole process)", "import numba", medians["numbridge"], medians["numba"], 1.5, "ms")
        )
    first = FirstLaunch()
    if bench.only in first.name:
        for measured in first.rows(bench.rounds):
            bench.judge(measured, {})
            if measured.work.endswith("on disk") and measured.unit == "us":
                ours = measured.values["numbridge"] / 1e3
                bench.add(Row(measured.work, "300 ms", ours, 300.0, 1.0, "ms"))


def memory(bench: Bench) -> None:
    """How memory grows over ten thousand calls."""
    for kind in ("launch", "from"):
        for name in TENSORS:
            work = Memory(kind, name)
            for measured in work.rows(bench.rounds) if bench.only in work.name else ():
                bench.judge(measured, {})


def table(found: Mapping[str, Any], rows: Iterable[Row]) -> str:
    """Return what was measured as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    where = f"at commit `{found['commit'][:12]}` on {found['machine']}, Python {found['python']}"
    about = f"Measured {found['date']} {where}; {versions}."
    text = f"# Benchmarks on the CPU\n\n{about}\nMedians of {found['rounds']} alternating rounds; read the ratios.\n\n"
    head = "| work | against | ours | theirs | ratio | must be |\n|---|---|---|---|---|---|\n"
    # A figure and its unit stay on one line.
    lines = (
        f"| {work} | {against} | {' | '.join(figure.replace(' ', NO_BREAK, 1) for figure in figures)} |"
        for work, against, *figures in (row.cells() for row in rows)
    )
    return text + head + "\n".join(lines) + "\n"


def write(bench: Bench) -> None:
    """Write what was measured, with versions, machine and commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    found = facts([], {}, bench.rounds) | {"commit": commit, "rows": [asdict(row) for row in bench.rows]}
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "cpu.json").write_text(json.dumps(found, indent=1) + "\n")
    (FOLDER / "cpu.md").write_text(table(found, bench.rows))


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
    for group in (entries, conversions, inside_jax, kernels, adjoints, tapes, processes, memory):
        group(bench)
    if not chosen.only:
        write(bench)


if __name__ == "__main__":
    main()
