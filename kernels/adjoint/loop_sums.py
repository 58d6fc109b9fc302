"""Elements that a loop reads trip after trip: they are read once, and what their adjoints receive is added once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from numba import types

from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Compute,
    Load,
    Loop,
    Meet,
    Op,
    Shape,
    Store,
    Value,
    same_index,
    walk,
)
from numbridge.kernels.adjoint.survey import Survey

__all__ = ["LoopSum", "RepeatedLoad", "repeated_loads"]


@dataclass(frozen=True)
class RepeatedLoad:
    """A load of the same element in each trip, with what computes its index within the loop."""

    load: Load
    index: list[Op]


@dataclass(frozen=True)
class LoopSum:
    """What one element's adjoint receives in a loop: the first of the loads of it, and the variable's name."""

    load: Load
    name: str

    def is_of(self, array: Array, index: list[Value]) -> bool:
        """Tell whether this is the sum for an element."""
        return self.load.array is array and same_index(self.load.index, index)


def repeated_loads(loop: Loop, survey: Survey, *, apart: bool) -> Iterator[RepeatedLoad]:
    """Yield loads of a loop that find the same in each trip, and whose elements' adjoints nothing in it asks for.

    Neither the thread changes these elements, nor others for which it waits there. `apart` tells that no two adjoints share
    memory.
    """
    inner = list(walk([loop]))
    changed = {op.array for op in survey.ops if isinstance(op, Store | Atomic)}
    changed_here = {op.array for op in inner if isinstance(op, Store | Atomic)}
    if changed_here and not apart:
        return
    kept = changed if any(isinstance(op, Meet) for op in inner) else changed_here
    for op in walk(loop.body):
        if isinstance(op, Load) and op.array.kind in ("parameter", "shared") and op.array not in kept:
            index = _computed_before(op, loop, survey)
            if index is not None:
                yield RepeatedLoad(op, index)


def _computed_before(load: Load, loop: Loop, survey: Survey) -> list[Op] | None:
    """Return the operations of a loop that compute an index, if nothing in them changes from trip to trip, or None."""
    found: dict[Op, None] = {}

    def reach(value: Value) -> bool:
        op = survey.definers.get(value)
        if op is None or not survey.is_within(op, loop):
            return True
        if isinstance(op, Compute) and (not isinstance(value.type, types.Integer) or not all(map(reach, op.arguments))):
            return False
        found[op] = None
        return isinstance(op, Compute | Shape)

    return list(found) if all(map(reach, load.index)) else None
