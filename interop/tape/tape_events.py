"""What a tape has recorded, one event after another, and how gradients go back through those that are no launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.arrays.array import Array
from numbridge.bridges.convert import asarray
from numbridge.kernels.devices import Device
from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.readers import Description
from numbridge.storage.element_views import packed
from numbridge.tape.adjoint_memory import Adjoint, AdjointMemory, add, clear, is_zero
from numbridge.tape.places import Place

if TYPE_CHECKING:
    from numbridge.tape.tape_launches import Recipe

__all__ = [
    "CopyEvent",
    "Event",
    "FillEvent",
    "FunctionEvent",
    "LaunchEvent",
    "OpaqueEvent",
    "check_opaque",
    "gradient_like",
    "reverse_copy",
    "reverse_function",
]


@dataclass(eq=False, slots=True)
class Event:
    """Something that happened; `places` are those of floating arrays that a gradient may pass through."""

    places: Sequence[Place]


class LaunchEvent(Event):
    """A launch to be reversed.

    Attributes
    ----------
    recipe : Recipe
        How; `places` are those of its active arguments.
    geometry : Geometry
        Of the launch.
    arguments : sequence
        What it was launched with; for those that have been overwritten since, the copies that were kept.
    wholes : sequence of Place or None
        Where each array among the arguments lies.
    at : sequence of Place or None
        Where the launch loads from each, which may be some of its rows; None for a copy.
    made : list of Place
        Where it stored to its active arguments.
    touched : list of Place
        Where it did either.
    reads : tuple of int
        The arguments whose contents the adjoint reads and which have not been kept yet.
    lost : tuple of int
        Those that had changed before they could be.
    dependencies : tuple of Dependency
        The variables that it was compiled with.
    """

    __slots__ = ("arguments", "at", "dependencies", "geometry", "lost", "made", "reads", "recipe", "touched", "wholes")

    def __init__(self, recipe: Recipe, geometry: Any, arguments: Sequence[Any], at: Sequence[Place | None]) -> None:
        self.recipe, self.geometry = recipe, geometry
        self.arguments, self.wholes, self.at = arguments, at, at
        places: list[Any] = [*map(at.__getitem__, recipe.active)]
        self.places = self.touched = places
        self.made = [places[n] for n in recipe.written]
        self.reads, self.dependencies = recipe.reads, recipe.dependencies
        self.lost: tuple[int, ...] = ()

    def narrow(self, loaded: Sequence[Place | None], stored: Sequence[Place | None]) -> None:
        """Say which parts of its arguments the launch loads from, and stores to."""
        self.at = loaded
        active, written = self.recipe.active, self.recipe.signature.written
        made: list[Any] = [stored[k] for k in active if k in written]
        self.made = made
        self.touched = list(dict.fromkeys([*(place for k in active if (place := loaded[k]) is not None), *made]))

    def keep(self, k: int, copy: Any) -> None:
        """Have a copy of an argument in its place, which is about to be overwritten."""
        self.arguments = [copy if n == k else argument for n, argument in enumerate(self.arguments)]
        self.at = [None if n == k else place for n, place in enumerate(self.at)]
        self.reads = tuple(n for n in self.reads if n != k)


@dataclass(eq=False)
class OpaqueEvent(Event):
    """A launch, or something else, that no gradient can pass back through; `is_unrecorded`: a launch that asked for that."""

    why: str = ""
    is_unrecorded: bool = False


@dataclass(eq=False)
class FillEvent(Event):
    """All of an array was set to values on which nothing depends."""


@dataclass(eq=False)
class CopyEvent(Event):
    """One array was copied into another, which may be new."""


@dataclass(eq=False)
class FunctionEvent(Event):
    """A user's own step."""

    backward: Callable[[], None] = lambda: None
    given: list[Array] = field(default_factory=list)


def gradient_like(gradient: Adjoint, found: Description) -> Array:
    """Return a gradient as an array of the elements that another has, on the same memory."""
    if isinstance(gradient, Array):
        return gradient
    element = found.element
    if element is None:
        return asarray(gradient)
    if element.fields is not None:
        gradient = gradient[..., None].view(element.scalar.numpy)
    return packed(asarray(gradient), element)


def check_opaque(event: OpaqueEvent, memory: AdjointMemory) -> None:
    """Refuse that a gradient comes to what no gradient can pass."""
    for place in event.places:
        if memory.at(place).reached and not is_zero(memory.adjoint(place)):
            raise NumbridgeError(
                f"backward: a gradient comes to an array that was written by {event.why}; gradients go on through launches that "
                "are recorded and can be differentiated, copies, fill_, zero_, assign and record_func"
            )


def reverse_copy(event: CopyEvent, memory: AdjointMemory) -> None:
    """Carry the gradient of a copy to what was copied, which may lie on another device."""
    source, made = event.places
    if memory.at(made).reached:
        adjoint = memory.adjoint(made)
        add(memory.adjoint(source), _beside(adjoint, made.found, source.found))
        clear(adjoint)
        memory.at(source).reached = True


def _beside(adjoint: Adjoint, found: Description, other: Description) -> Adjoint:
    """Return the adjoint of an array where another one lies, copied if that is elsewhere."""
    if not other.is_on_cuda:
        return adjoint if isinstance(adjoint, np.ndarray) else adjoint.numpy()
    return gradient_like(adjoint, found).to(Device("cuda", other.device_id))


def reverse_function(event: FunctionEvent, memory: AdjointMemory) -> None:
    """Call a user's own step, with the gradients of its arrays in their places for so long."""
    before = []
    for array, place in zip(event.given, event.places, strict=True):
        state = array._extra
        before.append((array, state, None if state is None else (state.required, state.gradient)))
        array.requires_grad = True
        assert array._extra is not None
        array._extra.gradient = gradient_like(memory.adjoint(place), place.found)
        memory.at(place).reached = True
    try:
        event.backward()
    finally:
        for array, state, held in before:
            array._extra = state
            if state is not None and held is not None:
                state.required, state.gradient = held
