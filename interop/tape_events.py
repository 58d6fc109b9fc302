"""What a tape has recorded, one event after another, and how gradients go back through those that are no launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numbridge.adjoint_memory import AdjointMemory, Region, add, float_parts
from numbridge.array import Array
from numbridge.convert import asarray
from numbridge.element_views import packed
from numbridge.kernels.dependencies import Dependency
from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.readers import Description

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "CopyEvent",
    "Event",
    "FillEvent",
    "FunctionEvent",
    "LaunchEvent",
    "OpaqueEvent",
    "check_opaque",
    "gradient_like",
    "region_of",
    "reverse_copy",
    "reverse_function",
]


@dataclass(eq=False)
class Event:
    """Something that happened; `arrays` are the floating arrays that a gradient may pass through."""

    arrays: list[Description] = field(default_factory=list)


@dataclass(eq=False)
class LaunchEvent(Event):
    """A launch to be reversed.

    `active` are the parameters with an adjoint, `written` those of them that the kernel writes, `reads` those whose
    contents the adjoint reads and which have not been kept yet; `lost` had changed before they could be. `snapshot` are those
    that the launch itself changes first, `dependencies` the variables that it was compiled with.
    """

    kernel: Kernel = None  # type: ignore[assignment]
    geometry: Any = None
    arguments: list[Any] = field(default_factory=list)
    found: dict[str, Description] = field(default_factory=dict)
    active: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    dependencies: tuple[Dependency, ...] = ()
    reads: set[str] = field(default_factory=set)
    snapshot: tuple[str, ...] = ()
    lost: list[str] = field(default_factory=list)


@dataclass(eq=False)
class OpaqueEvent(Event):
    """A launch, or something else, that no gradient can pass back through."""

    why: str = ""


@dataclass(eq=False)
class FillEvent(Event):
    """All of an array was set to values on which nothing depends."""


@dataclass(eq=False)
class CopyEvent(Event):
    """One array was copied into a new one."""


@dataclass(eq=False)
class FunctionEvent(Event):
    """A user's own step."""

    backward: Callable[[], None] = lambda: None
    given: list[Array] = field(default_factory=list)


def region_of(memory: AdjointMemory, found: Description) -> Region:
    """Return the region of an array that a tape has recorded."""
    region = memory.region(found)
    assert region is not None
    return region


def gradient_like(gradient: NDArray[Any], found: Description) -> Array:
    """Return a gradient as an array of the elements that another has, on the same memory."""
    element = found.element
    if element is None:
        return asarray(gradient)
    if element.fields is not None:
        gradient = gradient[..., None].view(element.scalar.numpy)
    return packed(asarray(gradient), element)


def check_opaque(event: OpaqueEvent, memory: AdjointMemory) -> None:
    """Refuse that a gradient comes to what no gradient can pass."""
    for found in event.arrays:
        region = region_of(memory, found)
        if region.reached and any(part.any() for part in float_parts(region.adjoint(found))):
            raise NumbridgeError(
                f"backward: a gradient comes to an array that was written by {event.why}; gradients go on through launches that "
                "are recorded and can be differentiated, copies, fill_, zero_, assign and record_func"
            )


def reverse_copy(event: CopyEvent, memory: AdjointMemory) -> None:
    """Carry the gradient of a copy to what was copied."""
    source, made = (region_of(memory, found) for found in event.arrays)
    if made.reached:
        adjoint = made.adjoint(event.arrays[1])
        add(source.adjoint(event.arrays[0]), adjoint)
        adjoint[...] = 0
        source.reached = True


def reverse_function(event: FunctionEvent, memory: AdjointMemory) -> None:
    """Call a user's own step, with the gradients of its arrays in their places for so long."""
    before = []
    for array, found in zip(event.given, event.arrays, strict=True):
        region = region_of(memory, found)
        state = array._extra
        before.append((array, state, None if state is None else (state.required, state.gradient)))
        array.requires_grad = True
        assert array._extra is not None
        array._extra.gradient = gradient_like(region.adjoint(found), found)
        region.reached = True
    try:
        event.backward()
    finally:
        for array, state, held in before:
            array._extra = state
            if state is not None and held is not None:
                state.required, state.gradient = held
