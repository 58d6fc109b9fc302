"""Gradients of what arrays hold last, for those that retain theirs: a tape's own end up at what the arrays held first.

A gradient is kept when the backward pass comes to the launch, or the copy, that last wrote to the array, or to a part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from numbridge.arrays.array import Array
from numbridge.arrays.gradients import retains_gradient
from numbridge.kernels.adjoint.overlap import share_memory
from numbridge.kernels.readers import Description, describe
from numbridge.storage import cupy_memory
from numbridge.tape.adjoint_memory import Adjoint, AdjointMemory, Region, clear
from numbridge.tape.places import Place, Places
from numbridge.tape.tape_events import CopyEvent, Event, FunctionEvent, LaunchEvent

__all__ = ["RetainedGradients", "retained_gradients"]


def retained_gradients(arrays: Collection[Array], places: Places, memory: AdjointMemory) -> RetainedGradients | None:
    """Return the gradients of those of some arrays that retain theirs, or None without any; parameters as of the class."""
    for array in arrays:
        if array._extra is not None and array._extra.retained:
            return RetainedGradients([other for other in arrays if retains_gradient(other)], places, memory)
    return None


class RetainedGradients:
    """The gradients of arrays that retain theirs.

    Parameters
    ----------
    arrays : iterable of Array
        No views of arrays with gradients: these themselves.
    places : Places
        Where what was recorded lies.
    memory : AdjointMemory
        In which the backward pass carries gradients.
    """

    def __init__(self, arrays: Iterable[Array], places: Places, memory: AdjointMemory) -> None:
        self._memory = memory
        self._entries = [_Retained(found, places.find(found)) for found in map(describe, arrays)]

    def keep_before(self, event: Event) -> None:
        """Keep the gradients of what an event wrote, before it is reversed, unless it was written again later."""
        for entry in self._entries:
            for place in _written(event):
                if place in entry.place.links and place not in entry.kept:
                    reached = self._memory.at(place).reached
                    entry.kept[place] = _copy(self._memory.adjoint(place)) if reached else None

    def part(self, found: Description) -> Adjoint | None:
        """Return the gradient of an array, after the backward pass, if it shares memory with one that retains its own."""
        for entry in self._entries:
            if entry.kept and share_memory(found, entry.found):
                return entry.region(self._memory).adjoint(found)
        return None


class _Retained:
    def __init__(self, found: Description, place: Place) -> None:
        self.found, self.place = found, place
        # Place -> its gradient, or None for zero; what was written later comes first.
        self.kept: dict[Place, Adjoint | None] = {}
        self._region: Region | None = None

    def region(self, memory: AdjointMemory) -> Region:
        """Return the gradients of the memory that the array lies in: what was kept, elsewhere what has come about."""
        if self._region is None:
            self._region = memory.at(self.place).copy()
            for place, gradient in reversed(self.kept.items()):
                _assign(self._region.adjoint(place.found), gradient)
        return self._region


def _written(event: Event) -> Sequence[Place]:
    if isinstance(event, LaunchEvent):
        return event.made
    if isinstance(event, FunctionEvent):
        return ()  # whose function itself says what is left of its arrays' gradients
    return event.places[1:] if isinstance(event, CopyEvent) else event.places


def _copy(gradient: Adjoint) -> Adjoint:
    return gradient.copy() if isinstance(gradient, np.ndarray) else gradient.clone()


def _assign(gradient: Adjoint, values: Adjoint | None) -> None:
    if values is None:
        clear(gradient)
    elif isinstance(gradient, np.ndarray):
        gradient[...] = values
    else:
        cupy_memory.assign(gradient, ..., values)
