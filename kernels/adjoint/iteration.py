"""Loops over the elements of something: an array, a slice, a vector, a tuple, `enumerate`, `zip`, and ranges within these.

Each is a loop over the numbers of its trips, in which the elements are chosen by that number. What is looped over, and how
often, is decided once, before the loop; an element is read at the beginning of its trip. Loops over a range alone are
`build`'s.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numba import types

from numbridge.kernels.adjoint import inference, windows
from numbridge.kernels.adjoint.assignments import Assignments
from numbridge.kernels.adjoint.bindings import Binding, View, kinds
from numbridge.kernels.adjoint.element_program import known, part
from numbridge.kernels.adjoint.ir import Value
from numbridge.kernels.adjoint.record_program import Records
from numbridge.kernels.adjoint.windows import Window
from numbridge.kernels.compilation.integer_rules import not_an_integer
from numbridge.kernels.language.tuple_parameters import remade

__all__ = ["Elements", "Iteration"]


@dataclass(frozen=True)
class Elements:
    """What a loop goes through: how many there are, and what gives one of them, in a trip, by its number.

    That must be a constant where the elements are `apart`, as arrays are: the trips are written out then.
    """

    count: Value
    element: Callable[[Value], Binding]
    apart: bool = False


class Iteration(Assignments):
    """Reads what loops go through."""

    def _elements(self, node: ast.expr) -> Elements:
        called = self._static(node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and called in (enumerate, zip, range):
            if node.keywords and called is not enumerate:
                raise self._refused(node, f"{called.__name__} is called with named arguments; pass them by position")
            if called is enumerate:
                return self._enumerated(node)
            return self._together(node) if called is zip else self._range_elements(node)
        return self._elements_of(node, self._expression(node))

    def _elements_of(self, node: ast.expr, found: Binding) -> Elements:
        if isinstance(found, tuple):
            return self._items(node, found)
        element = self._iterated(found)
        if element is not None and isinstance(found, Value):
            return Elements(self.constant(element.extents[0]), lambda k: known(part(self, found, [k])))
        extents = self._extents(found) if isinstance(found, View | Window | Records) else []
        if not extents:
            raise self._refused(
                node,
                "only loops over range(...), arrays, vectors, tuples, enumerate(...) and zip(...) have a derivative",
            )
        if isinstance(found, Records):
            return Elements(extents[0](), lambda k: dataclasses.replace(found, index=(*found.index, k)))
        return Elements(extents[0](), lambda k: self._loaded(self._narrowed(node, found, [k])))

    def _enumerated(self, node: ast.Call) -> Elements:
        """Return numbers beside elements; the first of the numbers is evaluated once."""
        given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "start")]
        if len(given) != len(node.args) + len(node.keywords) or not 1 <= len(given) <= 2 or not node.args:
            raise self._refused(node, "enumerate takes something to loop over, and the number of the first")
        inner = self._elements(given[0])
        start = self._whole_number(given[1]) if len(given) == 2 else self.constant(0)
        one = self.constant(1)
        return Elements(inner.count, lambda k: (windows.moved(self, k, start, one), inner.element(k)), inner.apart)

    def _together(self, node: ast.Call) -> Elements:
        """Return elements of several beside each other, as many as the shortest has."""
        inner = [self._elements(argument) for argument in node.args]
        if not inner:
            raise self._refused(node, "zip needs something to loop over")
        count = inner[0].count
        for other in inner[1:]:
            count = self._smaller(count, other.count)
        return Elements(count, lambda k: tuple(one.element(k) for one in inner), any(one.apart for one in inner))

    def _range_elements(self, node: ast.Call) -> Elements:
        bounds = self._bounds(node)
        kind = inference.range_type(bounds)
        given = [windows.as_int64(self, bound) for bound in bounds]
        one = self.constant(1)
        start, stop, step = [self.constant(0), *given, one] if len(given) == 1 else [*given, one][:3]
        if not step.constant:
            raise self._refused(
                node, "the step of a range beside others is a constant that is not zero; loop over range(...)"
            )
        count = windows.counted(self, start, stop, step)
        return Elements(count, lambda k: self.cast(windows.moved(self, k, start, step), kind))

    def _bounds(self, node: ast.Call) -> list[Value]:
        """Return the bounds of a range as integers."""
        bounds = [self._scalar(argument) for argument in node.args]
        if not bounds or len(bounds) > 3:
            raise self._refused(node, "range takes one to three integers")
        for bound, argument in zip(bounds, node.args, strict=True):
            if not isinstance(bound.type, types.Integer | types.Boolean):
                raise self._refused(argument, not_an_integer(bound.type))
        kind = inference.range_type(bounds)
        return [self.cast(bound, kind) if isinstance(bound.type, types.Boolean) else bound for bound in bounds]

    def _whole_number(self, node: ast.expr) -> Value:
        value = self._scalar(node)
        if not isinstance(value.type, types.Integer):
            raise self._refused(node, "enumerate begins with an integer; convert with int(...)")
        return windows.as_int64(self, value)

    def _items(self, node: ast.expr, items: Sequence[Binding]) -> Elements:
        """Return what a tuple holds: numbers of one type are chosen by the number of a trip."""
        count = self.constant(len(items))
        if not all(map(_is_of_numbers, items)):
            return Elements(count, lambda k: items[k.constant], apart=True)
        if len(set(map(kinds, items))) != 1:
            raise self._refused(node, "only a tuple of numbers of one type can be looped over; write its elements out")
        return Elements(count, self._nth(node, items))

    def _nth(self, node: ast.expr, items: Sequence[Binding]) -> Callable[[Value], Binding]:
        """Return what chooses one of the items by its number: of tuples, one in each column."""
        if isinstance(items[0], tuple):
            columns = [self._nth(node, column) for column in zip(*items, strict=True)]
            return lambda k: remade(items[0], (column(k) for column in columns))
        return lambda k: self._chosen(node, items, k)


def _is_of_numbers(item: Binding) -> bool:
    return all(map(_is_of_numbers, item)) if isinstance(item, tuple) else isinstance(item, Value)
