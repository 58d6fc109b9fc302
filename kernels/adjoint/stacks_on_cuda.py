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
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels import cuda_driver, scalars, watching
from numbridge.kernels.adjoint.measured import without_stacks
from numbridge.kernels.adjoint.stack_kernels import measuring, with_memory
from numbridge.kernels.argument_streams import argument_stream, launch_streams
from numbridge.kernels.element_arguments import element_flags, full_shape, full_strides
from numbridge.kernels.errors import DeviceError
from numbridge.kernels.grid_source import fewer_blocks
from numbridge.kernels.launch import Geometry, launcher
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import Description, describe
from numbridge.kernels.stack_layout import ENTRY, GROUP
from numbridge.kernels.variant import variants_of

if TYPE_CHECKING:
    from numbridge.kernels.adjoint.derive import Derivative, Plan

__all__ = ["launch_with_stacks"]

_MOST_THREADS = 1 << 18
_WORD = scalars.by_name("int64").tag


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
    with _Room.of(adjoint, plan, arguments, found, geometry.stream) as room:
        ends = np.cumsum(GROUP * _counted(adjoint, plan, geometry, arguments, found, room))
        memory = _memory(adjoint, room, int(ends[-1]))
        places = room.words(len(ends) + 1)
        room.copy_in(places, np.concatenate([[0], ends]))
        launcher(with_memory(adjoint), geometry)(*arguments, memory, places)


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
    room: _Room,
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


def _memory(adjoint: Derivative, room: _Room, entries: int) -> Any:
    try:
        return room.words(entries)
    except DeviceError as error:
        raise DeviceError(
            f"the {adjoint.name} needs {ENTRY * entries} bytes of memory on cuda:{room.ordinal} to remember what its loops "
            f"overwrite, and did not get them; nothing has been written. Free memory, launch over fewer elements at a time, or "
            f"store into another array than the loop reads ({error})"
        ) from error


class _Room:
    """Device memory for the time that a launch's stream needs it; all work on it is queued there.

    Attributes
    ----------
    ordinal, stream : int
        The device, and the stream.
    """

    def __init__(self, ordinal: int, stream: int, is_ordered: bool) -> None:
        self.ordinal, self.stream, self._is_ordered = ordinal, stream, is_ordered
        self._devices = cuda_driver.devices()
        self._addresses: list[int] = []

    @classmethod
    @contextlib.contextmanager
    def of(
        cls,
        adjoint: Derivative,
        plan: Plan,
        arguments: Sequence[Any],
        found: Sequence[Description],
        named: int | None,
    ) -> Iterator[_Room]:
        """Give the room of a launch, which may be told its stream, and take the memory back at the end.

        Raises
        ------
        StackMemoryError
            If a graph captures the launch.
        """
        assert plan.measured is not None
        ordinal = next(d.device_id for d in found if d.is_on_cuda)
        chosen, streams = launch_streams(arguments, found) if named is None else (named, [named])
        if any(cuda_driver.devices().is_capturing(ordinal, stream) for stream in {chosen, *streams}):
            raise without_stacks(adjoint.name, plan.measured)
        room = cls(ordinal, chosen, named is not None)
        try:
            yield room
        finally:
            for address in room._addresses:
                room._devices.free(ordinal, address, chosen)

    def _allocate(self, size: int) -> int:
        address = self._devices.allocate(self.ordinal, max(size, ENTRY), self.stream)
        self._addresses.append(address)
        return address

    def _record(self, address: int, tag: int, shape: tuple[int, ...], strides: Any = None, flags: int = 0) -> Any:
        return machine().new_record(None, address, tag, dl.CUDA, self.ordinal, shape, strides, flags, self.stream)

    def words(self, count: int, *, zeroed: bool = False) -> Any:
        """Return a new array of int64."""
        address = self._allocate(ENTRY * count)
        if zeroed:
            self._devices.clear(self.ordinal, address, ENTRY * count, self.stream)
        return self._record(address, _WORD, (count,))

    def copy_of(self, argument: Any, found: Description) -> Any:
        """Return a copy of an array, with its strides."""
        if not self._is_ordered:
            self._devices.order(self.ordinal, argument_stream(argument, self.ordinal), self.stream)
        low, high = found.extent
        address = self._allocate(high - low)
        self._devices.copy(self.ordinal, address, low, high - low, self.stream)
        scalar = found.scalar
        assert scalar is not None
        strides = tuple(step // scalar.itemsize for step in full_strides(found))
        place = address + found.data - low
        return self._record(place, scalar.tag, full_shape(found), strides, element_flags(found.element))

    def copy_in(self, words: Any, values: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Copy from host memory into such an array."""
        self._devices.copy_in(self.ordinal, describe(words).data, values, self.stream)

    def copied_out(self, words: Any, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return what such an array holds when the stream has come here, which this waits for."""
        values = np.zeros(count, np.int64)
        self._devices.copy_out(self.ordinal, values, describe(words).data, self.stream)
        return values
