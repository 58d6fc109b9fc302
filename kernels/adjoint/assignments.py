"""Assignments in a kernel: to variables, elements of arrays, and parts of vectors and matrices."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numba import types

from numbridge.kernels.adjoint import complex_program, inference
from numbridge.kernels.adjoint.bindings import Binding, View, kind_name
from numbridge.kernels.adjoint.calls import Calls
from numbridge.kernels.adjoint.construct import ARITHMETIC
from numbridge.kernels.adjoint.element_program import (
    components,
    known,
    part,
    replaced,
    with_component_at,
    with_named_part,
)
from numbridge.kernels.adjoint.expressions import has_slice
from numbridge.kernels.adjoint.ir import Array, If, Loop, Raise, Region, Store, Value
from numbridge.kernels.adjoint.memory_parts import MemoryPart, NeedsComponentsError, whole_element
from numbridge.kernels.adjoint.record_program import MOST_COPIED, Records, copied_parts, inner_places, same_record
from numbridge.kernels.adjoint.scope import COUNTED
from numbridge.kernels.adjoint.windows import Window
from numbridge.kernels.element_types.component_range import unpacked_wrongly
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.element_types.numba_elements import numba_element
from numbridge.kernels.language.element_stores import PARTS

__all__ = ["Assignments"]

MOST_WRITTEN_OUT = 32  # stores of one value to a slice, which are a loop where they are more, or where nobody knows


@dataclass(frozen=True)
class _Place:
    """Where something can be stored: what reads it, and what writes it.

    `part` is the part of an element in memory that this is, if its components can be stored, and `memory` the array of whose
    elements it is one, if they cannot. `is_slice` tells that it is a slice of a vector or a matrix.
    """

    read: Callable[[], Binding]
    write: Callable[[Binding], None]
    part: MemoryPart | None = None
    memory: Array | None = None
    is_slice: bool = False


class Assignments(Calls):
    """Reads assignments."""

    def _unpacked(self, target: ast.Tuple, value: Binding) -> Binding:
        """Return the elements of an array for as many names; another number of them raises an exception, as in the kernel.

        Of a vector these are its components, and of a matrix its rows.
        """
        element = self._iterated(value)
        if element is not None and isinstance(value, Value):
            if len(target.elts) != element.extents[0]:
                raise self._refused(target, unpacked_wrongly(element, len(target.elts)))
            return tuple(known(part(self, value, [self.constant(k)])) for k in range(element.extents[0]))
        if not isinstance(value, View | Window) or not self._extents(value):
            return value
        count, wanted = self._extents(value)[0](), self.constant(len(target.elts))
        with self._into([]):
            self.add(Raise('raise ValueError("an array of another length is unpacked")'))
            failed = self.region
        self.add(If(self._checked(target, ARITHMETIC["eq"], [count, wanted]), [], failed, []))
        return tuple(self._loaded(self._narrowed(target, value, [self.constant(k)])) for k in range(len(target.elts)))

    def _assign(self, target: ast.expr, value: Binding) -> None:
        match target:
            case ast.Name():
                value = self._env[target.id] = self._as_declared(target, target.id, value)
                if isinstance(value, View) and value.array in self.locals and not value.array.label:
                    value.array.label = target.id  # what messages call it
            case ast.Tuple():
                value = self._unpacked(target, value)
                if not isinstance(value, tuple) or len(value) != len(target.elts):
                    raise self._refused(
                        target, "only a tuple of as many values can be unpacked here; assign them one by one"
                    )
                for element, part in zip(target.elts, value, strict=True):
                    self._assign(element, part)
            case ast.Subscript() | ast.Attribute():
                self._place(target).write(value)
            case _:
                raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")

    def _place(self, target: ast.expr) -> _Place:
        """Return what reads and what writes a variable, an element of an array, or a part of a vector or matrix."""
        if isinstance(target, ast.Name):
            name = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            return _Place(lambda: self._name(name), lambda value: self._assign(target, value))
        if not isinstance(target, ast.Subscript | ast.Attribute):
            raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")
        outer = self._place(target.value) if self._is_place(target.value) else None
        if outer is not None and outer.part is not None and has_slice(target):
            return self._slice_in_memory(target, outer.part)
        if outer is not None and outer.part is not None:
            return self._place_in_memory(target, self._part_in_memory(target, outer.part))
        owner = self._expression(target.value) if outer is None else outer.read()
        if isinstance(owner, Value) and inference.element_of(owner.type) is not None and outer is not None:
            if outer.is_slice:
                raise self._refused(
                    target, "a slice of a vector or a matrix is a value of its own; store into the whole"
                )
            if has_slice(target):
                return self._slice_place(target, owner, outer)
            return self._part_place(target, owner, outer)
        if isinstance(owner, Records):
            return self._memory_place(target, self._within_records(target, owner))
        if isinstance(owner, tuple) and isinstance(target, ast.Subscript):
            item = self._item(target, owner)
            return _Place(lambda: item, lambda value: self._assign_item(target))
        if isinstance(target, ast.Attribute):
            raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")
        return self._memory_place(target, self._indexed(target, owner))

    def _memory_place(self, target: ast.expr, found: View | Window | Records | MemoryPart) -> _Place:
        if isinstance(found, MemoryPart):
            return self._place_in_memory(target, found)
        if isinstance(found, Window) or (isinstance(found, View) and not found.is_element):
            return _Place(lambda: found, lambda value: self._fill(target, found, value))
        if isinstance(found, Records):
            if len(found.index) != found.ndim:
                return _Place(lambda: found, lambda value: self._whole_row(target))
            return _Place(lambda: found, lambda value: self._copy_record(target, found, value))
        part = whole_element(found)
        if part is not None:
            return self._place_in_memory(target, part)
        # What the thread has to itself is replaced as a whole.
        shared_by = found.array if found.array.kind in ("parameter", "shared") else None
        return _Place(lambda: self._load(found), lambda value: self._store(target, found, value), memory=shared_by)

    def _place_in_memory(self, target: ast.expr, part: MemoryPart) -> _Place:
        return _Place(lambda: self._part_loaded(part), lambda value: self._store_part(target, part, value), part)

    def _is_place(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in PARTS
        return isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and node.id in self._env)

    def _assign_item(self, target: ast.expr) -> None:
        raise self._refused(target, "tuples cannot be changed; make a new one")

    def _whole_row(self, target: ast.expr) -> None:
        raise self._refused(
            target, "a whole row cannot be assigned to in a kernel that is differentiated; write a loop"
        )

    def _fill(self, target: ast.expr, found: View | Window, value: Binding) -> None:
        """Store one value to all elements of some rows, or of a slice."""
        if not isinstance(value, Value):
            raise self._refused(
                target,
                "only a number can be assigned to a whole row or slice, for there is no memory for a copy; write a loop",
            )
        if (
            inference.element_of(value.type) is None
            and inference.element_of(found.array.whole or found.array.dtype) is None
        ):
            value = self.cast(value, found.array.dtype)
        self._fill_along(target, found, value, [extent() for extent in self._extents(found)])

    def _fill_along(
        self, target: ast.expr, found: View | Window | MemoryPart, value: Value, extents: Sequence[Value]
    ) -> None:
        if not extents or isinstance(found, MemoryPart):
            self._memory_place(target, found).write(value)
            return
        known = [extent.constant for extent in extents if extent.constant is not None]
        if 0 in known:
            return
        if len(known) == len(extents) and math.prod(known) <= MOST_WRITTEN_OUT:
            for k in range(known[0]):
                self._fill_along(target, self._narrowed(target, found, [self.constant(k)]), value, extents[1:])
            return
        index = self.value("k", types.int64)
        self._nonnegative[index] = COUNTED
        body: Region = []
        with self._into(body):
            self._fill_along(target, self._narrowed(target, found, [index]), value, extents[1:])
        self.add(Loop(index, [self.constant(0), extents[0], self.constant(1)], [], None, body, []))

    def _part_place(self, target: ast.Subscript | ast.Attribute, owner: Value, outer: _Place) -> _Place:
        """Return what reads and writes a part of an element: to write one is to replace the whole."""
        if outer.memory is not None:
            raise NeedsComponentsError(outer.memory)
        index = [] if isinstance(target, ast.Attribute) else self._integers(target)

        def put(value: Binding) -> None:
            made = None
            if isinstance(value, Value):
                if isinstance(target, ast.Attribute):
                    made = with_named_part(self, owner, target.attr, value)
                else:
                    made = replaced(self, owner, index, value)
            if made is None:
                raise self._refused(target, f"this does not fit into a part of {kind_name(owner)}")
            outer.write(made)

        if isinstance(target, ast.Attribute):
            return _Place(lambda: self._part_named(target, owner), put)
        return _Place(lambda: self._part_at(target, owner, index), put)

    def _slice_place(self, target: ast.Subscript, owner: Value, outer: _Place) -> _Place:
        """Return what reads and writes a slice of an element, of which to write is to replace the whole."""
        if outer.memory is not None:
            raise NeedsComponentsError(outer.memory)
        places, kind = self._slice_of(target, owner)

        def put(value: Binding) -> None:
            made = owner
            for place, number in zip(places, self._numbers_of(target, kind, value), strict=True):
                made = with_component_at(self, made, place, number)
            outer.write(made)

        return _Place(lambda: self._sliced(target, owner), put, is_slice=True)

    def _slice_in_memory(self, target: ast.Subscript, owner: MemoryPart) -> _Place:
        """Return what reads and writes a slice of an element in memory, and nothing else of it."""
        places, kind = self._slice_of(target, owner)
        views = owner.numbers(self)

        def put(value: Binding) -> None:
            for place, number in zip(places, self._numbers_of(target, kind, value), strict=True):
                self._store(target, views[place], number)

        return _Place(lambda: self._sliced(target, owner), put, is_slice=True)

    def _numbers_of(self, target: ast.expr, wanted: ElementType, value: Binding) -> Sequence[Value]:
        """Return the components of what is stored into a slice of a vector or a matrix."""
        if not isinstance(value, Value) or inference.element_of(value.type) is not wanted:
            what = kind_name(value) if isinstance(value, Value) else "this"
            raise self._refused(target, f"{what} does not fit into a slice that is a {wanted.name}; make one")
        return components(self, value)

    def _store(self, target: ast.expr, view: View, value: Binding) -> None:
        if not isinstance(value, Value):
            raise self._refused(target, "only a number can be stored into an element of an array")
        if inference.complex_of(view.array.dtype) is not None:
            value = self._complex_or_not(value, view.array.dtype)
        if (inference.element_of(value.type) or inference.element_of(view.array.dtype)) and (
            value.type != view.array.dtype
        ):
            raise self._refused(
                target, f"{kind_name(value)} cannot be stored into an array of {kind_name(view.array)}; make one"
            )
        if view.array.kind == "constant":
            raise self._refused(
                target, f"{view.array.called} is a constant array of the program; pass it as an argument"
            )
        self._as_wholes.add(view.array)
        self.add(Store(view.array, list(view.index), self.cast(value, view.array.dtype)))

    def _complex_or_not(self, value: Value, kind: Any) -> Value:
        """Return a number, which may be real, as a complex one; vectors and matrices stay what they are."""
        is_number = complex_program.has_complex(value) or inference.element_of(value.type) is None
        return self.cast(value, kind) if is_number else value

    def _store_part(self, target: ast.expr, part: MemoryPart, value: Binding) -> None:
        """Store all numbers of a part of an element, and no others."""
        if isinstance(value, Value) and part.element is not None and part.element.family == "complex":
            value = self._complex_or_not(value, numba_element(part.element))
        given = inference.element_of(value.type) if isinstance(value, Value) else None
        if not isinstance(value, Value) or given is not part.element:
            wanted = "a number" if part.element is None else part.element.name
            what = "this" if not isinstance(value, Value) else kind_name(value)
            raise self._refused(target, f"{what} does not fit into a part of an element that is {wanted}; make one")
        numbers = [value] if given is None else components(self, value)
        for view, number in zip(part.numbers(self), numbers, strict=True):
            self._store(target, view, number)

    def _copy_record(self, target: ast.expr, to: Records, value: Binding) -> None:
        if not isinstance(value, Records) or len(value.index) != value.ndim or not same_record(to.type, value.type):
            raise self._refused(
                target, f"only a record of the same dtype can be stored into {to.name}; store its fields"
            )
        pairs = [
            (self._leaf(target, a), self._leaf(target, b), inner)
            for a, b in zip(copied_parts(to), copied_parts(value), strict=True)
            for inner in inner_places(a.extents[len(to.extents) :])
        ]
        if len(pairs) > MOST_COPIED:
            raise self._refused(
                target, f"a record of {len(pairs)} numbers is copied at once; copy its fields in a loop"
            )
        made = []
        for goal, source, inner in pairs:  # everything is read before anything is written
            index = tuple(self.constant(k) for k in inner)
            made.append(
                (View(goal.array, (*goal.index, *index)), self._load(View(source.array, (*source.index, *index))))
            )
        for view, loaded in made:
            self._store(target, view, loaded)

    def _augment(self, node: ast.AugAssign) -> None:
        place = self._place(node.target)
        held = place.read()
        if isinstance(held, View | Window | Records) and not isinstance(node.target, ast.Name):
            self._whole_row(node.target)
        if place.is_slice:
            text = ast.unparse(node.target)
            raise self._refused(node, f"a slice of a vector is not computed with in place; write {text} = {text} + ...")
        if not isinstance(held, Value):
            raise self._refused(node, "an augmented assignment needs a number here; assign to the elements one by one")
        place.write(self._binary(node, node.op, held, self._value(node.value)))
