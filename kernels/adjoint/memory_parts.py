"""Parts of elements in memory whose components are stored one by one: which numbers of an array they are.

Threads may store different components of one element, so a store to one of them may not touch the others. An array of which
a kernel stores parts is therefore its components throughout its program, which are its last dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from numba import types

from numbridge.kernels.adjoint.bindings import View
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.ir import Array, Compute, Function, Value
from numbridge.kernels.element_types.elements import ElementType, component, vector

__all__ = ["ComponentRangeError", "MemoryPart", "NeedsComponentsError", "whole_element"]


class NeedsComponentsError(Exception):
    """A part of an element of an array is stored, of which the program does not know the components."""

    def __init__(self, array: Array) -> None:
        super().__init__(array.name)
        self.memory = memory_key(array)


class ComponentRangeError(Exception):
    """An element has no component of a constant index; this says so in words."""


def memory_key(array: Array) -> str | int:
    """Return what is the same for an array whenever its program is built."""
    return array.place if array.kind == "shared" else array.name


@dataclass(frozen=True)
class MemoryPart:
    """A part of an element.

    Attributes
    ----------
    view : View
        The part's numbers, but for those before `first`, and those beyond its end.
    element : ElementType or None
        What the part is; None for a number.
    first : int
        Where it begins along the last dimension.
    """

    view: View
    element: ElementType | None
    first: int = 0

    def named(self, construct: Construct, name: str) -> MemoryPart | None:
        """Return the part of a name, or None if there is none."""
        if self.element is not None and self.element.family == "complex":
            place = {"real": 0, "imag": 1}.get(name)
            return None if place is None else MemoryPart(_extended(self.view, construct.constant(place)), None)
        found = None if self.element is None else component(self.element, name)
        if found is None:
            return None
        first, element = self.first + found[0], found[1]
        if element is not None:
            return MemoryPart(self.view, element, first)
        return MemoryPart(_extended(self.view, construct.constant(first)), None)

    def at(self, construct: Construct, index: Sequence[Value]) -> MemoryPart | None:
        """Return the component, or the row of a matrix, of an index, or None if the index has too many dimensions."""
        part = self
        for axis, value in enumerate(index):
            if part.element is None or not isinstance(value.type, types.Integer):
                return None
            extent, *rest = part.element.extents
            if type(value.constant) is int and not -extent <= value.constant < extent:
                raise ComponentRangeError(
                    f"index {value.constant} is out of range for axis {axis} of a {_name(self.element)}, whose extent is {extent}"
                )
            row = vector(rest[0], part.element.scalar) if rest else None
            part = MemoryPart(_extended(part.view, _place(construct, value, extent, part.first)), row)
        return part

    def numbers(self, construct: Construct) -> list[View]:
        """Return its numbers, in row-major order."""
        extents = () if self.element is None else self.element.extents
        return [
            replace(self.view, index=(*self.view.index, *(construct.constant(self.first + k) for k in place)))
            for place in itertools.product(*map(range, extents))
        ]


def whole_element(view: View) -> MemoryPart | None:
    """Return an element whose components can be stored, or None for anything else."""
    whole = view.array.whole
    return MemoryPart(view, whole.element) if whole is not None and view.is_element else None


def _name(element: ElementType | None) -> str:
    assert element is not None
    return element.name


def _extended(view: View, place: Value) -> View:
    return replace(view, index=(*view.index, place))


def _place(construct: Construct, index: Value, extent: int, first: int) -> Value:
    """Return the place of a component; one beyond the extent is the first, as in elements that are values."""
    if type(index.constant) is int:
        return construct.constant(first + index.constant % extent)
    made = construct.value("place", types.int64)
    text = f"_nb_wrap({{0}}, {extent})" + (f" + {first}" if first else "")
    construct.add(Compute(made, Function("element_place", text, None), [index]))
    return made
