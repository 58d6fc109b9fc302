"""What small calls cost: launches of empty kernels, and conversions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import numbridge as nb
from numbridge.bridges.installed import is_there
from numbridge.command_line.sample_kernels import empty_of_five, empty_of_one
from numbridge.command_line.work import Contestants, Work

__all__ = ["TENSORS", "conversion", "launch", "warp_kernels"]

TENSORS = ("numpy", "torch", "paddle", "jax")
_EMPTY = {1: empty_of_one, 5: empty_of_five}


def launch(name: str, count: int, way: str) -> Work:
    """Return the launch of an empty kernel on tensors of a framework; `way` is ``"forall"`` or ``"nb.launch"``."""
    prepare = {"forall": _forall, "nb.launch": _nb_launch}[way]
    plural = "s" * (count > 1)
    return Work(f"{count} {name} tensor{plural}, empty kernel, {way}", functools.partial(prepare, name, count), (name,))


def conversion(way: str, name: str) -> Work:
    """Return a conversion; `way` is ``"from"`` or ``"to"``."""
    return Work(f"{way}_{name}", functools.partial(_conversion, way, name), (name,))


def warp_kernels() -> Any:
    """Return the module of Warp's kernels, or None."""
    if not is_there("warp"):
        return None
    from numbridge.command_line import warp_peer

    return warp_peer


def _tensor(name: str, n: int = 16) -> Any:
    return nb.convert(nb.ones(n, device="cpu"), name)


def _forall(name: str, count: int) -> Contestants:
    tensors = [_tensor(name) for _ in range(count)]
    found: dict[str, Callable[[], object]] = {"numbridge": functools.partial(_EMPTY[count].forall(1), *tensors)}
    if is_there("tvm_ffi"):
        from numbridge.command_line import tvm_peer

        found["tvm-ffi C++ function"] = functools.partial(tvm_peer.nothing(), *tensors)
    if name == "numpy":
        found["Numba njit"] = functools.partial(_numba_empty(count), *tensors)
    return found


def _numba_empty(count: int) -> Callable[..., object]:
    import numba

    def one(a: Any) -> None:
        pass

    def five(a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
        pass

    return numba.njit({1: one, 5: five}[count])  # type: ignore[no-any-return]


def _nb_launch(name: str, count: int) -> Contestants:
    kernel, tensors = _EMPTY[count], [_tensor(name) for _ in range(count)]
    found: dict[str, Callable[[], object]] = {"numbridge": functools.partial(nb.launch, kernel, 1, tensors)}
    # Of these, Warp takes only tensors of NumPy and PyTorch as they are.
    if name in ("numpy", "torch") and (warp := warp_kernels()) is not None:
        found["wp.launch, tensors direct"] = functools.partial(warp.launch, kernel.name, 1, tensors)
    return found


def _conversion(way: str, name: str) -> Contestants:
    given = _tensor(name) if way == "from" else nb.ones(16, device="cpu")
    found: dict[str, Callable[[], object]] = {"numbridge": functools.partial(getattr(nb, f"{way}_{name}"), given)}
    if is_there("warp"):
        found["Warp"] = _warp_conversion(way, name)
    found.update(_own_way(way, name))
    return found


def _warp_conversion(way: str, name: str) -> Callable[[], object]:
    import warp as wp

    warp_kernels()  # quietens Warp
    wp.init()
    if way == "from":
        more = {"device": "cpu"} if name == "numpy" else {}
        return functools.partial(getattr(wp, f"from_{name}"), _tensor(name), **more)
    array = wp.ones(16, dtype=float, device="cpu")
    return array.numpy if name == "numpy" else functools.partial(getattr(wp, f"to_{name}"), array)


def _own_way(way: str, name: str) -> Contestants:
    """Return the framework's own way to share an array of NumPy's, or to be shared as one."""
    if way == "to" and name == "torch":
        import torch

        return {"torch.from_numpy": functools.partial(torch.from_numpy, np.ones(16, np.float32))}
    if way == "to" and name == "jax":
        import jax.dlpack

        # Memory of ours is aligned, so that JAX shares it.
        aligned = nb.to_numpy(nb.ones(16, device="cpu"))
        return {"jax.dlpack.from_dlpack(NumPy)": functools.partial(jax.dlpack.from_dlpack, aligned)}
    if way == "to" and name == "numpy" and is_there("torch"):
        import torch

        return {"Tensor.numpy": torch.ones(16).numpy}
    return {}
