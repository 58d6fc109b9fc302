"""What launches, kernels and adjoints cost on a CUDA device, beside numba.cuda, CuPy, Triton, torch and Warp where installed.

Launches are timed on the host, with an empty queue at the start of each turn, so that nobody waits for the device; kernels on
the device, by events on the current stream.
"""

from __future__ import annotations

import functools
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import numbridge as nb
from numbridge.bridges.installed import absent, is_there
from numbridge.command_line.adjoint_work import ADJOINTS, adjoint_on, title
from numbridge.command_line.launch_work import warp_kernels
from numbridge.command_line.sample_kernels import add, empty_of_five, empty_of_three, five_points, saxpy
from numbridge.command_line.timing import timed
from numbridge.command_line.work import Contestants, Row, Work
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.storage.cupy_memory import cupy

__all__ = ["EMPTY_C", "LAUNCHES", "CudaWork", "cuda_works"]

BLOCK = 256
# Fewer launches than a driver's queue holds, so that none of them waits for the device.
LAUNCHES = 300
# Between two events on the device
CALLS = 10
_EMPTY = {3: empty_of_three, 5: empty_of_five}
EMPTY_C = 'extern "C" __global__ void empty(float* a, float* b, float* c) {}'
_ADD_C = """extern "C" __global__ void add(const float* x, const float* y, float* out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}"""
_STENCIL_C = """extern "C" __global__ void five_points(const float* a, float* out, long long n, long long m) {
    long long j = blockIdx.x * (long long)blockDim.x + threadIdx.x, i = blockIdx.y;
    if (i > 0 && j > 0 && i < n - 1 && j < m - 1)
        out[i * m + j] = 0.2f * (a[i * m + j] + a[(i - 1) * m + j] + a[(i + 1) * m + j] + a[i * m + j - 1] + a[i * m + j + 1]);
}"""


@dataclass(frozen=True)
class CudaWork(Work):
    """A piece of work on a CUDA device.

    Attributes
    ----------
    on_device : bool
        Whether the time is the device's, and not the host's.
    """

    frameworks: tuple[str, ...] = ("cupy",)
    on_device: bool = False

    @property
    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""
        if not cuda_driver.driver_count():
            return "there is no CUDA device here"
        return next((f"{name}: {why}" for name in self.frameworks if (why := _absent(name))), None)

    def rows(self, rounds: int) -> list[Row]:
        """Return the median microseconds of each contestant."""
        contestants = self.prepare()
        wait = cupy().cuda.get_current_stream().synchronize
        for run in contestants.values():
            run()
        found: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, run in contestants.items():
                wait()
                found[name].append(_on_device(run) if self.on_device else 1e6 * timed(run, LAUNCHES))
        wait()
        return [Row(self.name, {name: statistics.median(times) for name, times in found.items()})]


def _absent(name: str) -> str | None:
    if (why := absent(name)) is not None or name != "torch":
        return why
    import torch

    return None if torch.cuda.is_available() else "installed without CUDA"


def _on_device(run: Callable[[], object]) -> float:
    """Return the microseconds of a call on the device."""
    first, last = cupy().cuda.Event(), cupy().cuda.Event()
    first.record()
    for _ in range(CALLS):
        run()
    last.record()
    last.synchronize()
    return 1e3 * float(cupy().cuda.get_elapsed_time(first, last)) / CALLS


def cuda_works() -> list[CudaWork]:
    """Return everything that is measured on a CUDA device."""
    host = (
        ("3 cupy arrays, empty kernel", _cupy_launch, ("cupy",)),
        ("sum of 2 cupy arrays of 256", _cupy_sum, ("cupy",)),
        ("5 torch tensors, empty kernel", _torch_launch, ("cupy", "torch")),
    )
    return [
        *(CudaWork(f"CUDA: {what}, forall", prepare, needed) for what, prepare, needed in host),
        CudaWork("CUDA: from_torch", _from_torch, ("cupy", "torch")),
        CudaWork("CUDA: to_torch", _to_torch, ("cupy", "torch")),
        CudaWork("CUDA: saxpy, 256M float32", functools.partial(_saxpy, 256 << 20), on_device=True),
        CudaWork(
            "CUDA: five-point stencil, 16384 x 16384 float32", functools.partial(_stencil, 1 << 14), on_device=True
        ),
        *(
            CudaWork(
                f"CUDA: {title(name, 'on the device', 'cuda')}",
                functools.partial(adjoint_on, name, "cuda"),
                on_device=True,
            )
            for name in ADJOINTS
        ),
    ]


def _cupy_launch() -> Contestants:
    arrays = [cupy().ones(16, np.float32) for _ in range(3)]
    raw = cupy().RawKernel(EMPTY_C, "empty")
    return {
        "numbridge": functools.partial(_EMPTY[3].forall(BLOCK), *arrays),
        "numba.cuda": functools.partial(_numba_empty(3), *arrays),
        "CuPy RawKernel": lambda: raw((1,), (BLOCK,), tuple(arrays)),
    }


def _cupy_sum() -> Contestants:
    x, y, out = (cupy().ones(BLOCK, np.float32) for _ in range(3))
    raw, count = cupy().RawKernel(_ADD_C, "add"), np.int64(BLOCK)
    return {
        "numbridge": functools.partial(add.forall(BLOCK), x, y, out),
        "numba.cuda": functools.partial(_numba_sum(), x, y, out),
        "CuPy RawKernel": lambda: raw((1,), (BLOCK,), (x, y, out, count)),
    }


_OF_CUPY = "numbridge, of cupy arrays"


def _torch_launch() -> Contestants:
    import torch

    tensors, arrays = [torch.ones(16, device="cuda") for _ in range(5)], [cupy().ones(16, np.float32) for _ in range(5)]
    found: dict[str, Callable[[], object]] = {
        "numbridge": functools.partial(_EMPTY[5].forall(BLOCK), *tensors),
        # The same without what torch is asked: where its tensors lie, and on which stream it works
        _OF_CUPY: functools.partial(_EMPTY[5].forall(BLOCK), *arrays),
        "numba.cuda": functools.partial(_numba_empty(5), *tensors),
    }
    if is_there("triton"):
        from numbridge.command_line import triton_peer

        found["Triton"] = functools.partial(triton_peer.empty_of_five[(1,)], *tensors)
    if (warp := warp_kernels()) is not None:
        found["wp.launch, tensors direct"] = functools.partial(warp.launch, "empty_of_five", BLOCK, tensors, "cuda")
    return found


def _numba_empty(count: int) -> Callable[..., object]:
    from numba import cuda

    def three(a: Any, b: Any, c: Any) -> None:
        pass

    def five(a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
        pass

    with warnings.catch_warnings():
        # One block is what an empty kernel needs.
        warnings.simplefilter("ignore")
        return cuda.jit({3: three, 5: five}[count])[1, BLOCK]  # type: ignore[no-any-return]


def _numba_sum() -> Callable[..., object]:
    from numba import cuda

    def run(x: Any, y: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + y[i]

    with warnings.catch_warnings():
        # One block is what so small a kernel needs.
        warnings.simplefilter("ignore")
        return cuda.jit(run)[1, BLOCK]  # type: ignore[no-any-return]


def _numba_saxpy(n: int) -> Callable[..., object]:
    from numba import cuda

    def run(x: Any, y: Any, a: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + y[i]

    return cuda.jit(run)[-(-n // BLOCK), BLOCK]  # type: ignore[no-any-return]


def _from_torch() -> Contestants:
    import torch

    given = torch.ones(16, device="cuda")
    found: dict[str, Callable[[], object]] = {"numbridge": functools.partial(nb.from_torch, given)}
    if warp_kernels() is not None:
        import warp as wp

        found["Warp"] = functools.partial(wp.from_torch, given)
    return found | {"torch.from_dlpack": functools.partial(torch.from_dlpack, given)}


def _to_torch() -> Contestants:
    import torch

    given = nb.ones(16, device="cuda")
    found: dict[str, Callable[[], object]] = {"numbridge": functools.partial(nb.to_torch, given)}
    if warp_kernels() is not None:
        import warp as wp

        found["Warp"] = functools.partial(wp.to_torch, wp.ones(16, dtype=float, device="cuda"))
    return found | {"torch.from_dlpack": functools.partial(torch.from_dlpack, given)}


# What several ids of one thread at once are worth: `nb.kernel(simd=)`
_ALONE = "numbridge, one id after the other"


def _alone(kernel: nb.Kernel) -> nb.Kernel:
    return nb.kernel(simd=False)(kernel.function)


def _saxpy(n: int) -> Contestants:
    x, y = (cupy().ones(n, np.float32) for _ in range(2))
    fused = cupy().ElementwiseKernel("float32 x, float32 a", "float32 y", "y = a * x + y", "numbridge_saxpy")
    zero = np.float32(0)
    found: dict[str, Callable[[], object]] = {
        "numbridge": functools.partial(saxpy.forall(n), x, y, 0.0),
        _ALONE: functools.partial(_alone(saxpy).forall(n), x, y, 0.0),
        "numba.cuda": functools.partial(_numba_saxpy(n), x, y, zero),
        "CuPy": lambda: fused(x, zero, y),
        "a copy, which moves 2/3 of it": lambda: y.data.copy_from_device_async(x.data, x.nbytes),
    }
    if _absent("torch") is None:
        import torch

        tx, ty = torch.from_dlpack(x), torch.from_dlpack(y)
        found["torch"] = functools.partial(ty.add_, tx, alpha=0.0)
        if is_there("triton"):
            from numbridge.command_line import triton_peer

            run = triton_peer.saxpy[(-(-n // triton_peer.BLOCK),)]
            found["Triton"] = functools.partial(run, tx, ty, 0.0, n, triton_peer.BLOCK)
    if (warp := warp_kernels()) is not None:
        import warp as wp

        wx, wy = (wp.array(a, copy=False) for a in (x, y))
        found["Warp"] = functools.partial(warp.launch, "saxpy", n, [wx, wy, 0.0], "cuda")
    return found


def _stencil(side: int) -> Contestants:
    a, out = cupy().ones((side, side), np.float32), cupy().zeros((side, side), np.float32)
    raw = cupy().RawKernel(_STENCIL_C, "five_points")
    grid = (-(-side // BLOCK), side)
    found: dict[str, Callable[[], object]] = {
        "numbridge": functools.partial(five_points.forall((side, side)), a, out),
        _ALONE: functools.partial(_alone(five_points).forall((side, side)), a, out),
        "CuPy RawKernel": lambda: raw(grid, (BLOCK,), (a, out, np.int64(side), np.int64(side))),
        "a copy, which moves as much": lambda: out.data.copy_from_device_async(a.data, a.nbytes),
    }
    if _absent("torch") is None:
        import torch

        ta, tout = torch.from_dlpack(a), torch.from_dlpack(out)

        def step() -> None:
            tout[1:-1, 1:-1] = 0.2 * (ta[1:-1, 1:-1] + ta[:-2, 1:-1] + ta[2:, 1:-1] + ta[1:-1, :-2] + ta[1:-1, 2:])

        found["torch"] = step
    return found
