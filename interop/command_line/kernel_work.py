"""What whole kernels cost: alone, and inside programs that JAX compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import numbridge as nb
from numbridge.bridges.installed import absent
from numbridge.command_line.launch_work import warp_kernels
from numbridge.command_line.sample_kernels import add, saxpy
from numbridge.command_line.work import Contestants, Work

__all__ = ["calls_in_one_jit", "one_call_in_a_jit", "repeated", "saxpy_of"]


def saxpy_of(count: int) -> Work:
    """Return ``y = a x + y`` on arrays that are larger than a cache; `count` is a multiple of a million (2^20)."""
    return Work(f"saxpy, {count >> 20}M float32", functools.partial(_saxpy, count))


def _saxpy(n: int) -> Contestants:
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
    if (warp := warp_kernels()) is not None:
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


def calls_in_one_jit(times: int, *, fuse: bool | None = None) -> Work:
    """Return additions of 16 numbers in one program of XLA's, each a call; without `fuse` each one runs the compiled handler."""
    # Without fusion each add of XLA's is an operation of its own, as a call of the handler is; with it, all of them are one loop.
    peers = {"XLA add, not fused": "fusion"} if fuse is False else {"XLA add, not fused": "fusion", "XLA add": ""}
    return Work(
        f"{times} calls {'of the handler ' if fuse is False else ''}in one jit, 16 elements",
        functools.partial(_jitted, 16, times, fuse, peers),
        ("jax",),
    )


def one_call_in_a_jit() -> Work:
    """Return one addition of a million numbers, as a program of XLA's."""
    return Work("add of 1M elements in a jit", functools.partial(_jitted, 1 << 20, 1, None, {"XLA": ""}), ("jax",))


def _jitted(size: int, times: int, fuse: bool | None, peers: Mapping[str, str]) -> Contestants:
    """Return programs of `times` additions; `peers` are XLA's own, each with the pass that is left out."""
    import jax

    cpu = jax.local_devices(backend="cpu")[0]
    x = jax.device_put(np.ones(size, np.float32), cpu)
    ours = nb.jax_kernel(add, fuse=fuse)
    calls: dict[str, Callable[..., Any]] = {"numbridge": lambda a, b: ours(a, b)[0]}
    if (warp := warp_kernels()) is not None:
        theirs = warp.jax_add()
        calls["Warp jax_kernel"] = lambda a, b: theirs(a, b)[0]
    calls |= dict.fromkeys(peers, lambda a, b: a + b)
    return {name: repeated(call, times, x, without=peers.get(name, "")) for name, call in calls.items()}


def repeated(call: Callable[..., Any], times: int, x: Any, without: str = "") -> Callable[[], object]:
    """Return one compiled program that makes `times` calls in a row, compiled without a pass of XLA's."""
    import jax

    def repeat(a: Any, b: Any) -> Any:
        for _ in range(times):
            a = call(a, b)
        return a

    options = {"xla_disable_hlo_passes": without} if without else None
    jitted = jax.jit(repeat, compiler_options=options)
    return lambda: jax.block_until_ready(jitted(x, x))
