"""What NumPy's functions make one number of: all elements of an array or a slice, or the products of two rows.

They become loops over the elements, in the order in which Numba's own code goes through them. Of the greatest and the least
element the loop looks for the place alone, which has no gradient, and the element is read there: so the loop need not run
backward, and a tie's gradient goes to the first. What Numba refuses when the kernel runs, such as the greatest of no elements,
is left to the kernel, but no derivative touches memory that is not there.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types

from numbridge.kernels.adjoint import complex_program, inference
from numbridge.kernels.adjoint.bindings import Binding, View
from numbridge.kernels.adjoint.construct import HELD
from numbridge.kernels.adjoint.expressions import Expressions
from numbridge.kernels.adjoint.ir import Carried, Compute, Function, If, Loop, Raise, Region, Value
from numbridge.kernels.adjoint.memory_parts import MemoryPart
from numbridge.kernels.adjoint.scope import COUNTED
from numbridge.kernels.adjoint.windows import Window

__all__ = ["METHODS", "REDUCTIONS", "Reductions"]

REDUCTIONS: dict[Any, str] = {
    np.sum: "sum",
    np.prod: "prod",
    np.mean: "mean",
    np.var: "var",
    np.std: "std",
    **dict.fromkeys((np.max, np.amax), "max"),
    **dict.fromkeys((np.min, np.amin), "min"),
    np.argmax: "argmax",
    np.argmin: "argmin",
    np.nanmax: "nanmax",
    np.nanmin: "nanmin",
    np.count_nonzero: "count_nonzero",
    np.dot: "dot",
    np.vdot: "vdot",
}
METHODS = frozenset(REDUCTIONS.values()) - {"vdot", "nanmax", "nanmin", "count_nonzero"}
_PRODUCTS = ("dot", "vdot")
# Loops over fewer elements, where their number is a constant, are written out.
_MOST_WRITTEN_OUT = 8
_BIT_OR, _BIT_AND = Function("integer", "{0} | {1}", operator.or_), Function("integer", "{0} & {1}", operator.and_)

_Step = Callable[[list[Value], list[Value], tuple[Value, ...]], list[Value]]


class Reductions(Expressions):
    """Reads calls that make one number of arrays."""

    # Whether a program may be differentiated, and whether it prints and fails as what runs in its kernel's place does
    derived = True
    prints = False

    def _reduced(self, node: ast.expr, name: str, what: str, given: Sequence[Binding]) -> Value:
        """Return what one of the functions above makes of its arguments, which are arrays."""
        views = [view for view in given if isinstance(view, View | Window) and self._extents(view)]
        wanted = 2 if name in _PRODUCTS else 1
        if len(given) != wanted or len(views) != wanted:
            takes = "two rows" if wanted == 2 else "one array"
            raise self._refused(
                node,
                f"{what} is differentiated where it takes {takes} and nothing else; write a loop over the elements",
            )
        kinds = [self._number_kind(node, what, view) for view in views]
        if name in _PRODUCTS:
            return self._product_of_rows(node, what, views, conjugated=name == "vdot")
        if name in ("sum", "prod"):
            kind, product = _accumulator(kinds[0]), name == "prod"
            start = self.cast(self.constant(1), kind) if product else self.zero(kind)
            return self._total(node, views[0], kind, start, ast.Mult() if product else ast.Add())
        if name in ("mean", "var", "std"):
            return self._moment(node, name, views[0], kinds[0])
        if name == "count_nonzero":
            return self._count(node, views[0], kinds[0])
        return self._extreme(node, name, views[0])

    def _count(self, node: ast.expr, view: View | Window, kind: Any) -> Value:
        """Return how many elements are not zero."""
        if inference.complex_of(kind) is not None:
            raise self._refused(
                node, "count_nonzero of complex numbers has no derivative; compare their parts in a loop"
            )

        def step(held: list[Value], items: list[Value], places: tuple[Value, ...]) -> list[Value]:
            differs = self.cast(self.apply("ne", items[0], self.zero(kind)), types.int64)
            return [self.apply("add", held[0], differs)]

        return self._folded(node, [view], self._extents_of(view), [self.constant(0)], step)[0]

    def _number_kind(self, node: ast.expr, what: str, view: View | Window) -> Any:
        """Return the type of the numbers in an array."""
        array = view.array
        kind = array.whole or array.dtype
        if isinstance(view, View) and view.part is not None:
            return kind.dtype
        element = inference.element_of(kind)
        if element is not None and element.family != "complex":
            raise self._refused(node, f"{what} of {element.name} has no derivative; write a loop over the elements")
        return kind

    def _folded(
        self,
        node: ast.expr,
        views: Sequence[View | Window | MemoryPart],
        extents: Sequence[Value],
        held: list[Value],
        step: _Step,
        places: tuple[Value, ...] = (),
    ) -> list[Value]:
        """Return what some numbers are after a step for the elements at each place of views of the same extents."""
        if not extents:
            return step(held, [self._loaded(view) for view in views], places)
        known = [extent.constant for extent in extents if extent.constant is not None]
        if len(known) == len(extents) and math.prod(known) <= _MOST_WRITTEN_OUT:
            for k in range(known[0]):
                at = self.constant(k)
                rows = [self._row(node, view, at) for view in views]
                held = self._folded(node, rows, extents[1:], held, step, (*places, at))
            return held
        index = self.value("k", types.int64)
        self._nonnegative[index] = COUNTED
        phis = [self.value("held", value.type) for value in held]
        body: Region = []
        with self._into(body):
            rows = [self._row(node, view, index) for view in views]
            made = self._folded(node, rows, extents[1:], phis, step, (*places, index))
            following = [self.cast(value, phi.type) for value, phi in zip(made, phis, strict=True)]
        results = [self.value("held", value.type) for value in held]
        carried = [Carried(*four) for four in zip(phis, held, following, results, strict=True)]
        self.add(Loop(index, [self.constant(0), extents[0], self.constant(1)], [], None, body, carried))
        return results

    def _row(self, node: ast.expr, view: View | Window | MemoryPart, at: Value) -> View | Window | MemoryPart:
        assert not isinstance(view, MemoryPart)  # which has no extents left
        return self._narrowed(node, view, [at])

    def _extents_of(self, view: View | Window) -> list[Value]:
        return [extent() for extent in self._extents(view)]

    def _size(self, extents: Sequence[Value]) -> Value:
        if all(extent.constant is not None for extent in extents):
            return self.constant(math.prod(extent.constant for extent in extents))
        size = extents[0]
        for extent in extents[1:]:
            size = self.apply("mul", size, extent)
        return size

    def _total(
        self, node: ast.expr, view: View | Window, kind: Any, start: Value, op: ast.operator | None = None
    ) -> Value:
        """Return what a start becomes when all elements are added to it, or it is multiplied by them."""
        op = op or ast.Add()

        def step(held: list[Value], items: list[Value], places: tuple[Value, ...]) -> list[Value]:
            return [self.cast(self._binary(node, op, held[0], items[0]), kind)]

        return self._folded(node, [view], self._extents_of(view), [start], step)[0]

    def _is_sequence(self, found: Binding) -> bool:
        return self._is_row(found) or (isinstance(found, tuple) and all(isinstance(item, Value) for item in found))

    def _sum_of_python(self, node: ast.expr, found: Binding, start: Binding = None) -> Value:
        """Return what Python's `sum` does; Numba gives it the type that the start and the elements have in common."""
        added = self.constant(0) if start is None else self._as_value(node, start)
        if isinstance(found, tuple):
            for item in found:
                added = self._binary(node, ast.Add(), added, item)
            return added
        item = self.zero(self._number_kind(node, "sum", found))
        with self._into([]):
            kind = self._binary(node, ast.Add(), added, item).type
        return self._total(node, found, kind, self.cast(added, kind))

    def _moment(self, node: ast.expr, name: str, view: View | Window, kind: Any) -> Value:
        """Return the mean, or the variance or its root, of which Numba adds up the squares in float64."""
        kind = types.float64 if isinstance(kind, types.Integer | types.Boolean) else kind
        size = self._size(self._extents_of(view))
        mean = self.cast(self._binary(node, ast.Div(), self._total(node, view, kind, self.zero(kind)), size), kind)
        if name == "mean":
            return mean

        def step(held: list[Value], items: list[Value], places: tuple[Value, ...]) -> list[Value]:
            apart = self._binary(node, ast.Sub(), items[0], mean)
            parts = complex_program.parts(self, apart) if complex_program.has_complex(apart) else [apart]
            square, *more = (self._binary(node, ast.Mult(), part, part) for part in parts)
            for other in more:
                square = self._binary(node, ast.Add(), square, other)
            return [self._binary(node, ast.Add(), held[0], square)]

        (squares,) = self._folded(node, [view], self._extents_of(view), [self.zero(types.float64)], step)
        variance = self._binary(node, ast.Div(), squares, size)
        return variance if name == "var" else self._binary(node, ast.Pow(), variance, self.constant(0.5, literal=True))

    def _product_of_rows(
        self, node: ast.expr, what: str, views: Sequence[View | Window], *, conjugated: bool = False
    ) -> Value:
        """Return the sum of the products of two rows; Numba's own is BLAS's, whose last digits are others."""
        if any(len(self._extents(view)) != 1 for view in views):
            raise self._refused(
                node, f"{what} is differentiated for two rows; of matrices it makes an array, so write loops over them"
            )
        if not self.derived:
            raise self._refused(node, f"{what} adds in an order of its own; write a loop")
        first, second = (self._extents_of(view)[0] for view in views)
        if self.prints:
            self._fail_unless(
                self.apply("eq", first, second), "incompatible array sizes for np.dot(a, b) (vector * vector)"
            )

        def product(items: list[Value]) -> Value:
            left = complex_program.conjugate(self, items[0]) if conjugated else items[0]
            return self._binary(node, ast.Mult(), left, items[1])

        with self._into([]):
            kind = product([self.zero(self._number_kind(node, what, view)) for view in views]).type

        def step(held: list[Value], items: list[Value], places: tuple[Value, ...]) -> list[Value]:
            return [self._binary(node, ast.Add(), held[0], product(items))]

        return self._folded(node, views, [self._smaller(first, second)], [self.zero(kind)], step)[0]

    def _smaller(self, a: Value, b: Value) -> Value:
        if a.constant is not None and b.constant is not None:
            return a if a.constant <= b.constant else b
        return a if a is b else self.select(self.apply("lt", b, a), b, a)

    def _is_row(self, found: Binding) -> bool:
        return isinstance(found, View | Window) and len(self._extents(found)) == 1

    def _extreme(self, node: ast.expr, name: str, view: View | Window, *, of_python: bool = False) -> Value:
        """Return the greatest or the least element, or its place among all.

        The first NaN is either, but for Python's functions, and for those that pass NaN over.
        """
        kind = self._number_kind(node, name, view)
        if inference.complex_of(kind) is not None:
            raise self._refused(node, f"{name} of complex numbers has no derivative; compare their parts in a loop")
        extents = self._extents_of(view)
        key = "gt" if name.endswith("max") else "lt"
        passes_nan = name.startswith("nan") and isinstance(kind, types.Float)
        start = self.constant(np.nan if passes_nan else _bound(kind, least=key == "gt"), kind)

        def step(held: list[Value], items: list[Value], places: tuple[Value, ...]) -> list[Value]:
            best, item = held[0], self.value("item", kind)
            self.add(Compute(item, Function(HELD, "{0}", None), [items[0]]))
            takes = self.apply(key, item, best)
            if passes_nan:
                is_first = self._checked(node, _BIT_AND, [self.apply("ne", best, best), self.apply("eq", item, item)])
                takes = self._checked(node, _BIT_OR, [takes, is_first])
            elif isinstance(kind, types.Float):
                unordered = self.apply("ne", item, item)
                if of_python:  # which compares with what it begins with, and then with numbers that are greater
                    unordered = self._checked(
                        node, _BIT_AND, [unordered, self.apply("eq", places[0], self.constant(0))]
                    )
                takes = self._checked(node, _BIT_OR, [takes, unordered])
                takes = self._checked(node, _BIT_AND, [takes, self.apply("eq", best, best)])
            chosen = [self.select(takes, *pair) for pair in zip(places, held[1:], strict=True)]
            return [self.select(takes, item, best), *chosen]

        zero = self.constant(0)
        _, *places = self._folded(node, [view], extents, [start, *[zero] * len(extents)], step)
        self._nonnegative |= dict.fromkeys((place for place in places if place.constant is None), COUNTED)
        size = self._size(extents)
        filled = (
            self.constant(size.constant > 0, literal=True)
            if size.constant is not None
            else self.apply("gt", size, zero)
        )
        if self.prints or not self.derived:
            self._fail_unless(filled, f"zero-size array to reduction operation {name}, which has no identity")
        if name.startswith("arg"):
            flat = places[0]
            for place, extent in zip(places[1:], extents[1:], strict=True):
                flat = self.apply("add", self.apply("mul", flat, extent), place)
            return flat
        made: Value = self._choice(
            node, filled, lambda: self._loaded(self._narrowed(node, view, places)), lambda: self.zero(kind)
        )
        return made

    def _fail_unless(self, condition: Value, message: str) -> None:
        """End the thread, as the kernel does, in a program that runs in its place."""
        with self._into([]):
            self.add(Raise(f"raise ValueError({message!r})"))
            failed = self.region
        if condition.constant is None or not condition.constant:
            self.add(If(condition, [], failed, []))


def _accumulator(kind: Any) -> Any:
    """Return the type in which NumPy adds up and multiplies numbers of a type."""
    if isinstance(kind, types.Boolean):
        return types.int64
    if isinstance(kind, types.Integer):
        return types.int64 if kind.signed else types.uint64
    return kind


def _bound(kind: Any, *, least: bool) -> Any:
    """Return the least or the greatest number of a type."""
    if isinstance(kind, types.Boolean):
        return not least
    if isinstance(kind, types.Integer):
        return int(kind.minval if least else kind.maxval)
    return -np.inf if least else np.inf
