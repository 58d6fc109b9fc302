"""What gradients cost: adjoints of whole kernels, launched as Warp's documentation launches its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import numbridge as nb
from numbridge.bridges.installed import is_there
from numbridge.command_line import adjoint_kernels as ours
from numbridge.command_line.work import Contestants, Work

__all__ = ["ADJOINTS", "adjoint", "adjoint_on", "shape_on", "title"]

COUNT = 1 << 22
SIDE = 1 << 11
TRIPS, LOOPS = 50, 400_000
# On CUDA arrays are so many times as long: a kernel that takes less time than a launch cannot be timed between two events.
LONGER_ON_CUDA = 8

# name → kernel, number of arrays that are read, shape, further arguments
ADJOINTS: dict[str, tuple[Any, int, tuple[int, ...], tuple[Any, ...]]] = {
    "saxpy": (ours.saxpy, 2, (COUNT,), (2.0,)),
    "polynomial with a branch": (ours.polynomial, 1, (COUNT,), ()),
    "sin, exp, sqrt, cos": (ours.elementary, 1, (COUNT,), ()),
    "five-point stencil": (ours.stencil, 1, (SIDE, SIDE), ()),
    f"loop of {TRIPS} trips": (ours.loop, 1, (LOOPS,), (TRIPS,)),
}


def shape_on(name: str, device: str) -> tuple[int, ...]:
    """Return the extents of a kernel's arrays on a device."""
    first, *rest = ADJOINTS[name][2]
    return (first if device == "cpu" else LONGER_ON_CUDA * first, *rest)


def title(name: str, threads: str, device: str = "cpu") -> str:
    """Return the name of a row; `threads` says how many there are."""
    shape = " x ".join(map(str, shape_on(name, device)))
    return f"adjoint of {name}, {shape} float32, {threads}"


def adjoint(name: str, threads: str = "all threads") -> Work:
    """Return the adjoint of one of the kernels; how many threads there are is the process's, `threads` only says it."""
    return Work(title(name, threads), functools.partial(adjoint_on, name, "cpu"))


def adjoint_on(name: str, device: str) -> Contestants:
    """Return who computes the adjoint of one of the kernels on a device."""
    found = {"numbridge": _ours(name, device)}
    if is_there("warp"):
        found["Warp"] = _warp(name, device)
    return found


def _arrays(name: str, device: str) -> tuple[list[Any], list[Any], tuple[Any, ...]]:
    """Return a kernel's arrays, as many for their adjoints, and its further arguments."""
    _, reads, short, more = ADJOINTS[name]
    shape, random = shape_on(name, device), np.random.default_rng(0)
    given = [np.resize(random.random(short, np.float32), shape) for _ in range(reads + 1)]
    return given, [np.zeros(shape, np.float32) for _ in range(reads)] + [np.ones(shape, np.float32)], more


def _ours(name: str, device: str) -> Callable[[], object]:
    kernel, shape = ADJOINTS[name][0], shape_on(name, device)
    found, further, more = _arrays(name, device)
    # NumPy's own arrays on the CPU, which is what people have there.
    given, adjoints = (found, further) if device == "cpu" else (_moved(found, device), _moved(further, device))
    last = [None] * len(more)
    return lambda: nb.launch(kernel, shape, [*given, *more], adj_inputs=[*adjoints, *last], adjoint=True)


def _moved(arrays: list[Any], device: str) -> list[Any]:
    return [nb.from_numpy(a).to(device) for a in arrays]


def _warp(name: str, device: str) -> Callable[[], object]:
    import warp as wp

    from numbridge.command_line import warp_adjoints

    kernel, shape = ADJOINTS[name][0], shape_on(name, device)
    found, further, more = _arrays(name, device)
    given, adjoints = ([wp.array(a, dtype=float, device=device) for a in group] for group in (found, further))
    theirs = getattr(warp_adjoints, kernel.name)

    def run() -> None:
        wp.launch(
            theirs,
            shape,
            inputs=[*given[:-1]],
            outputs=[given[-1], *more],
            adj_inputs=[*adjoints[:-1]],
            adj_outputs=[adjoints[-1], *more],
            device=device,
            adjoint=True,
        )

    return run
