"""Adjoints whose threads remember what loops overwrite, launched on CUDA: measured first, then given exactly that memory.

Two launches. The first counts the entries on the stacks of each group of threads; it works on copies of what it would
change. The host waits for the launch's stream to read the counts, allocates the memory, and launches the adjoint with it.
Nothing of the caller's has been written when the memory is not to be had. All memory is the driver's, given and taken back
in the order of the stream.

Stacks belong to threads of the grid, which use them for one id after the other, so the memory does not grow with the launch:
beyond as many threads as the largest GPUs run at once, ids wait for their turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels import watching
from numbridge.kernels.adjoint.measured import without_stacks
from numbridge.kernels.adjoint.stack_kernels import measuring, with_memory
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.argument_streams import launch_streams
from numbridge.kernels.cuda_backend.grid_source import fewer_blocks
from numbridge.kernels.cuda_backend.launch_memory import LaunchMemory
from numbridge.kernels.cuda_backend.stack_layout import GROUP
from numbridge.kernels.geometry import Geometry
from numbridge.kernels.launch import launcher
from numbridge.kernels.readers import Description, cuda_ordinal, describe
from numbridge.kernels.variant import variants_of

if TYPE_CHECKING:
    from numbridge.kernels.adjoint.derive import Derivative, Plan

__all__ = ["launch_with_stacks"]

_MOST_THREADS = 1 << 18


def launch_with_stacks(
    adjoint: Derivative, run: Callable[..., None], where: Callable[[], Geometry], arguments: Sequence[Any]
) -> None:
    """Launch an adjoint, with memory for its stacks where it needs that.

    Parameters
    ----------
    adjoint : Derivative
        What to launch.
    run : callable
        Launches it as it is.
    where : callable
        Returns the geometry of the launch.
    arguments : sequence
        Its arguments.

    Raises
    ------
    StackMemoryError
        If a graph captures the launch, which cannot wait then.
    DeviceError
        If there is not enough memory for the stacks; nothing has been written then.
    """
    found = [describe(argument) for argument in arguments]
    plan = _plan(adjoint, arguments, found) if any(d.is_on_cuda for d in found) else None
    if plan is None or plan.measured is None:
        run(*arguments)
        return
    geometry = _with_fewer_threads(plan, where())
    if not math.prod(geometry.dims) or not _threads(geometry):
        return
    with _room(adjoint, plan, arguments, found, geometry.stream) as room:
        ends = np.cumsum(GROUP * _counted(adjoint, plan, geometry, arguments, found, room))
        memory, places = room.words(int(ends[-1])), room.words(len(ends) + 1)
        room.copy_in(places, np.concatenate([[0], ends]))
        launcher(with_memory(adjoint), geometry)(*arguments, memory, places)


def _room(
    adjoint: Derivative, plan: Plan, arguments: Sequence[Any], found: Sequence[Description], named: int | None
) -> contextlib.AbstractContextManager[LaunchMemory]:
    """Return the memory of a launch, which may be told its stream; or refuse it, where it cannot wait."""
    assert plan.measured is not None
    ordinal = cuda_ordinal(found)
    assert ordinal is not None
    stream, others = launch_streams(arguments, found) if named is None else (named, [])
    if any(cuda_driver.devices().is_capturing(ordinal, each) for each in {stream, *others}):
        raise without_stacks(adjoint.name, plan.measured)
    return LaunchMemory(f"the {adjoint.name}", ordinal, stream, is_ordered=named is not None)


def _plan(adjoint: Derivative, arguments: Sequence[Any], found: Sequence[Description]) -> Plan:
    """Check the arguments, and return what the adjoint is for them."""
    types, weak = variants_of(adjoint).types(arguments, found)
    return adjoint.plan(types[: len(adjoint.base.parameters)], weak, "cuda")


def _with_fewer_threads(plan: Plan, geometry: Geometry) -> Geometry:
    """Return a geometry whose threads take several ids each where there are many, unless the kernel may notice."""
    if geometry.place.form != "masked" or any(not name.startswith("_nb_i") for name in plan.hidden):
        return geometry
    blocks = max(_MOST_THREADS // math.prod(geometry.cuda_block), 1)
    return dataclasses.replace(geometry, cuda_grid=fewer_blocks(geometry.cuda_grid, blocks))


def _threads(geometry: Geometry) -> int:
    return math.prod(geometry.cuda_grid) * math.prod(geometry.cuda_block)


def _counted(
    adjoint: Derivative,
    plan: Plan,
    geometry: Geometry,
    arguments: Sequence[Any],
    found: Sequence[Description],
    room: LaunchMemory,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the most entries that one thread has, for each group of threads, and in it for each stack."""
    assert plan.measured is not None
    count = -(-_threads(geometry) // GROUP) * plan.measured.stacks
    needs = room.words(count, zeroed=True)
    given = [
        room.copy_of(argument, description) if parameter.name in plan.measured.changes else argument
        for parameter, argument, description in zip(adjoint.base.parameters, arguments, found, strict=False)
    ]
    with watching.unrecorded():
        launcher(measuring(adjoint), geometry)(*given, needs)
    return room.copied_out(needs, count)
