"""Which framework an object belongs to, and the room that knows that framework.

A framework's *room* is the module ``numbridge.bridges.<framework>_bridge``. All rooms have the names of `Room`, so that arrays
and `convert` need not know which framework they speak to. Nothing here imports a framework: one whose objects arrive
has been imported by somebody else.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from numbridge.kernels.errors import NumbridgeValueError
from numbridge.kernels.readers import Reader

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = ["FRAMEWORKS", "Room", "bridge_for_type", "bridge_named", "resolve"]

FRAMEWORKS = ("numpy", "torch", "paddle", "jax", "cupy")
_TOP_LEVEL = {**{name: name for name in FRAMEWORKS}, "jaxlib": "jax"}


class Room(Protocol):
    """What every framework's room has, under the same names."""

    NAME: str

    def reader(self, kind: type) -> Reader | None:
        """Return how objects of a class are read natively, or None to let the protocols decide."""

    def wrap_object(self, obj: Any) -> Array:
        """Return an Array that shares the object's memory."""

    def unwrap_array(self, array: Array) -> Any:
        """Return the framework's object that shares the array's memory."""

    def requires_grad_of(self, obj: Any) -> bool:
        """Tell whether the framework differentiates with respect to the object."""

    def gradient_of(self, obj: Any, create: bool) -> Array | None:
        """Return the object's gradient, made of zeros first if there is none and `create` is true."""

    def set_gradient(self, obj: Any, gradient: Array | None) -> None:
        """Make an array, or nothing, the object's gradient."""

    def check_deposit(self, obj: Any) -> None:
        """Refuse to add to the object's gradient while the framework itself is about to."""


def bridge_named(name: str) -> Room:
    """Return the room of a framework.

    Raises
    ------
    NumbridgeValueError
        If numbridge has no room for it.
    """
    if name not in FRAMEWORKS:
        raise NumbridgeValueError(f"numbridge has no bridge to {name!r}; it has {', '.join(FRAMEWORKS)}")
    return cast(Room, importlib.import_module(f"numbridge.bridges.{name}_bridge"))


def _room_of(kind: type) -> Room | None:
    """Return the room of the framework that a class comes from, or None; a subclass belongs to its base's."""
    for base in kind.__mro__:
        framework = _TOP_LEVEL.get(str(base.__module__).partition(".")[0])
        if framework is not None:
            return bridge_named(framework)
    return None


bridge_for_type: Callable[[type], Room | None] = functools.cache(_room_of)


def resolve(kind: type) -> Reader | None:
    """Return how a framework wants its objects read, or None for a class of no framework."""
    room = bridge_for_type(kind)
    return None if room is None else room.reader(kind)
