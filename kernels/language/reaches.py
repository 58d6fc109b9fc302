"""How far a kernel goes into its arrays whatever they hold, which says how long they must be for a launch.

Only what is sure counts: that some thread of the launch comes to an element, since nothing that a launch does not decide leads
around it. What it decides are thread indices, extents, numbers passed by value, guards that compare these, and loops whose ranges
are made of them. A launch over an array that is shorter would read or write what is not the array's. Nothing is launched or
compiled here.

Indices are read as boxes: each thread index and each loop variable runs from one size to another, independently of the others, so
an index in which each occurs once reaches the ends that interval arithmetic gives it (Moore, Interval Analysis, 1966).
"""

from __future__ import annotations

import ast
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.language.indexing import atomic_index, elements_of, moves_axes, own_axis
from numbridge.kernels.language.intrinsics import intrinsic_of
from numbridge.kernels.language.kernel_syntax import may_raise
from numbridge.kernels.language.launch_sizes import (
    ONE,
    ZERO,
    Dim,
    Extent,
    GridSize,
    Known,
    Number,
    Quotient,
    Size,
    Total,
    larger,
    smaller,
)
from numbridge.kernels.language.source import FunctionSource, Program, call_rank

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = ["Reach", "reaches_of"]


@dataclass(frozen=True)
class Reach:
    """How far some thread of a launch is sure to go along one axis of a parameter.

    Attributes
    ----------
    parameter : str
        Which array.
    axis : int
        Which of its axes, not counting those of vectors and matrices.
    least : Size
        How long the axis must be.
    needs : tuple of Size
        What must be positive for any thread to go there.
    index : Size
        The index that is furthest.
    written : str
        That index as it is written; empty if it is a thread's own, at a constant distance, or constant.
    text : str
        The expression.
    place : str
        Where it stands: file, line, column, and the line with a caret.
    by_all : bool
        Whether all threads come there, and not only those that pass guards, in trips of loops.
    """

    parameter: str
    axis: int
    least: Size
    needs: tuple[Size, ...]
    index: Size
    written: str
    text: str
    place: str
    by_all: bool

    def missing(self, known: Known, is_shorter: Callable[[Any, Any], bool | None]) -> bool | None:
        """Tell whether an array is too short for a launch; None where symbolic extents do not tell.

        Parameters
        ----------
        known : Known
            The launch.
        is_shorter : callable
            Whether an extent is less than another, or None.
        """
        shape, least = known.shape(self.parameter), self.least.value(known)
        if shape is None or self.axis >= len(shape) or least is None:
            return False
        is_short = is_shorter(shape[self.axis], least)
        if is_short is not False:
            for need in self.needs:
                size = need.value(known)
                if size is None or (is_idle := is_shorter(size, 1)):
                    return False
                is_short = None if is_idle is None else is_short
        return is_short

    def refusal(self, known: Known, dims: Sequence[Any], way: str) -> str:
        """Return the end of the message about an array that is shorter; `way` is what to do."""
        takes = f"a launch over {tuple(dims)} takes {self.text}"
        takes = (
            f"{takes} with {self.written} = {self.index.value(known)}" if self.written else f"each thread of {takes}"
        )
        return (
            f"its shape is {tuple(known.shape(self.parameter))}, and {takes}, so axis {self.axis} must have "
            f"{self.least.value(known)} elements or more{'; kernels do not broadcast' if self.by_all else ''}: {way}\n"
            f"  {self.place}"
        )


def reaches_of(kernel: Kernel) -> tuple[Reach, ...]:
    """Return how far threads of a kernel are sure to go, with the globals as they are now: what is furthest for each axis.

    A kernel that checks its indices goes nowhere that it does not look at first.
    """
    source: FunctionSource = kernel.source
    if kernel.checks_bounds:
        return ()
    return source.found("reaches", lambda: _reaches_in(source), Dependency.is_unchanged)


def _reaches_in(source: FunctionSource) -> tuple[Reach, ...]:
    if _calls_may_raise(source):
        return ()
    reading = _Reading(source)
    reading.walk(source.tree.body, _Context(reading.threads, {}, ()))
    furthest: list[Reach] = []
    for reach in reading.found:
        if not any(_implies(other, reach) for other in furthest):
            furthest = [other for other in furthest if not _implies(reach, other)]
            furthest.append(reach)
    return tuple(furthest)


def _implies(one: Reach, other: Reach) -> bool:
    """Tell whether an axis that is long enough for one way to reach it is for another."""
    if (one.parameter, one.axis) != (other.parameter, other.axis) or not {*one.needs} <= {*other.needs}:
        return False
    return (one.least - other.least).is_never_negative


def _calls_may_raise(source: FunctionSource) -> bool:
    """Tell whether a function that the kernel calls may end a thread."""
    program = Program(source)
    called = [function for function in program.sources if function is not source]
    functions = (*called, *program.compiled_sources())
    return any(function is None or any(map(may_raise, function.nodes)) for function in functions)


# --------------------------------------------------------------------------------------------------------------------
# Indices


@dataclass(frozen=True)
class _Variable:
    """A thread index or a loop's variable: one of those that run independently of each other."""

    key: Any


@dataclass(frozen=True)
class _Operation:
    """What a kernel makes of variables and sizes."""

    kind: str
    left: _Value
    right: _Value


_Value = Size | _Variable | _Operation


@dataclass(frozen=True)
class _Span:
    """From where to where a variable runs, both ends included, and whether it takes all integers between."""

    first: Size
    last: Size
    is_dense: bool = True

    @property
    def need(self) -> Size:
        """What is positive where there is anything in it."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class _Ends:
    """The least and the greatest that an index comes to, the variables that it is made of, and whether it takes all between."""

    least: Size
    greatest: Size
    by: frozenset[Any] = frozenset()
    is_dense: bool = True


_KINDS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}


def _ends(value: _Value, spans: Mapping[Any, _Span]) -> _Ends | None:
    """Return between which integers an index is that reaches both, or None if that is not seen."""
    if isinstance(value, Size):
        return _Ends(value, value)
    if isinstance(value, _Variable):
        span = spans.get(value.key)
        return None if span is None else _Ends(span.first, span.last, frozenset((value.key,)), span.is_dense)
    left, right = _ends(value.left, spans), _ends(value.right, spans)
    # What occurs twice does not take every pair of values.
    if left is None or right is None or left.by & right.by:
        return None
    found = _ends_of(value.kind, left, right)
    is_dense = left.is_dense and right.is_dense and (value.kind != "*" or not left.by | right.by)
    return None if found is None else _Ends(*found, left.by | right.by, is_dense)


def _ends_of(kind: str, left: _Ends, right: _Ends) -> tuple[Size, Size] | None:
    if kind == "+":
        return left.least + right.least, left.greatest + right.greatest
    if kind == "-":
        return left.least - right.greatest, left.greatest - right.least
    if kind in ("min", "max"):
        chosen = smaller if kind == "min" else larger
        return chosen(left.least, right.least), chosen(left.greatest, right.greatest)
    if kind == "*":
        if right.least.is_never_negative and (left.least.is_never_negative or not right.by):
            return left.least * right.least, left.greatest * right.greatest
        if left.least.is_never_negative and not left.by:
            return left.least * right.least, left.greatest * right.greatest
        if left.by and right.by:
            return None
        fixed, moved = (left, right) if not left.by else (right, left)
        ends = moved.least * fixed.least, moved.greatest * fixed.least
        return smaller(*ends), larger(*ends)
    divisor = right.least
    if right.by:
        return None
    if kind == "//":
        return _quotient(left.least, divisor), _quotient(left.greatest, divisor)
    # Of numbers from 0 on, in a row, those up to the divisor are their own remainders.
    return (ZERO, smaller(left.greatest, divisor - 1)) if left.least == ZERO and left.is_dense else None


def _quotient(left: Size, right: Size) -> Size:
    if not left.terms and not right.terms and right.constant > 0:
        return Size((), left.constant // right.constant)
    return left if right == ONE else Size.of(Quotient(left, right))


def _moved(value: _Value) -> tuple[Any, int, Size] | None:
    """Return the variable in what is ``c``, ``v + c`` or ``c - v``, with its sign, and the rest; the key is None for ``c``."""
    if isinstance(value, Size):
        return None, 0, value
    if isinstance(value, _Variable):
        return value.key, 1, ZERO
    if value.kind not in ("+", "-"):
        return None
    left, right = _moved(value.left), _moved(value.right)
    if left is None or right is None or (left[0] is not None and right[0] is not None):
        return None
    sign = 1 if value.kind == "+" else -1
    rest = left[2] + right[2] if sign > 0 else left[2] - right[2]
    return (left[0], left[1], rest) if left[0] is not None else (right[0], sign * right[1], rest)


# --------------------------------------------------------------------------------------------------------------------
# Statements


@dataclass(frozen=True)
class _Context:
    """What is known where a kernel's text is read.

    Attributes
    ----------
    spans : mapping
        Where variables run, by their keys.
    names : mapping of str to _Value
        What local names stand for.
    needs : tuple of Size
        What else must be positive for all threads to come here.
    """

    spans: Mapping[Any, _Span]
    names: Mapping[str, _Value]
    needs: tuple[Size, ...]

    def all_needs(self) -> tuple[Size, ...]:
        """Return what must be positive for any thread to come here, but for what always is."""
        needs = (*self.needs, *(span.need for span in self.spans.values()))
        return tuple(dict.fromkeys(need for need in needs if not (need - 1).is_never_negative))

    def where(self, left: _Value, operation: ast.cmpop, right: _Value) -> _Context | None:
        """Return what is known where a comparison holds, or None if those that pass are no box."""
        ends = _moved(left), _moved(right)
        if ends[0] is None or ends[1] is None:
            return None
        (key, sign, more), (other, other_sign, bound) = ends
        if key is not None and other is not None:
            return None
        if key is None:
            key, sign, more, bound, operation = other, other_sign, bound, more, _mirrored(operation)
        if key is None:
            return self._where_all(more, operation, bound)
        bound = bound - more
        if sign < 0:
            bound, operation = -bound, _mirrored(operation)
        span = self.spans.get(key)
        if span is None or not span.is_dense:
            return None
        first, last = span.first, span.last
        if isinstance(operation, ast.Gt | ast.GtE | ast.Eq):
            first = larger(first, bound + 1 if isinstance(operation, ast.Gt) else bound)
        if isinstance(operation, ast.Lt | ast.LtE | ast.Eq):
            last = smaller(last, bound - 1 if isinstance(operation, ast.Lt) else bound)
        if isinstance(operation, ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq):
            return replace(self, spans={**self.spans, key: _Span(first, last)})
        return None

    def _where_all(self, left: Size, operation: ast.cmpop, right: Size) -> _Context | None:
        """Return what is known where a comparison holds that is the same for all threads."""
        match operation:
            case ast.Lt():
                needs = [right - left]
            case ast.LtE():
                needs = [right - left + 1]
            case ast.Gt():
                needs = [left - right]
            case ast.GtE():
                needs = [left - right + 1]
            case ast.Eq():
                needs = [right - left + 1, left - right + 1]
            case _:
                return None
        return replace(self, needs=(*self.needs, *needs))


def _mirrored(operation: ast.cmpop) -> ast.cmpop:
    match operation:
        case ast.Lt():
            return ast.Gt()
        case ast.LtE():
            return ast.GtE()
        case ast.Gt():
            return ast.Lt()
        case ast.GtE():
            return ast.LtE()
    return operation


def _inverse(operation: ast.cmpop) -> ast.cmpop | None:
    match operation:
        case ast.Lt():
            return ast.GtE()
        case ast.LtE():
            return ast.Gt()
        case ast.Gt():
            return ast.LtE()
        case ast.GtE():
            return ast.Lt()
        case ast.NotEq():
            return ast.Eq()
    return None


_LEAVES = ast.Return | ast.Break | ast.Continue


class _Reading:
    """One reading of where threads of a kernel are sure to come."""

    def __init__(self, source: FunctionSource) -> None:
        self.source = source
        self.found: list[Reach] = []
        names = [node.id for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        self.once = {name for name in names if names.count(name) == 1}
        # Under a name that is assigned, another array or number may be meant.
        self.given = frozenset(source.parameters) - {*names}
        self.threads = {axis: _Span(ZERO, Size.of(Dim(axis)) - 1) for axis in range(source.index_rank)}
        self._keys = itertools.count()

    def walk(self, body: Sequence[ast.stmt], context: _Context) -> _Context | None:
        """Read statements that all threads of a context come to; return the context of those that go on, or None."""
        for statement in body:
            after = self._statement(statement, context)
            if after is None:
                return None
            context = after
        return context

    def _statement(self, node: ast.stmt, context: _Context) -> _Context | None:
        match node:
            case ast.If(test, body, orelse):
                return self._branch(node, self._tested(test, context), context, body, orelse)
            case ast.For():
                self._expression(node.iter, context)
                self._loop(node, context)
                return None if _ends_threads(node) else context
            case ast.While(test=test):
                self._tested(test, context)
                return None if _ends_threads(node) else context
            case ast.Return() | ast.Break() | ast.Continue() | ast.Assert() | ast.Raise():
                return None
        for part in ast.iter_child_nodes(node):
            self._expression(part, context)
        if _ends_threads(node):
            return None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self._assigned(node.targets[0], node.value, context)
        return context

    def _branch(
        self,
        node: ast.stmt,
        sides: tuple[_Context | None, _Context | None],
        context: _Context,
        body: Sequence[ast.stmt],
        orelse: Sequence[ast.stmt],
    ) -> _Context | None:
        """Read both sides of a branch, each where it is known who takes it."""
        gone = []
        for side, part in zip(sides, (body, orelse), strict=True):
            if side is not None:
                self.walk(part, side)
            gone.append(_leaves(part, _LEAVES))
        if not any(gone):
            return context
        # Those go on who take the other side, if this one ends for all who take it.
        for here, part, there, leaves in zip(gone, (body, orelse), sides[::-1], gone[::-1], strict=True):
            if here and not leaves and there is not None and isinstance(part[-1], _LEAVES | ast.Raise):
                return replace(there, names=context.names)
        return None

    def _loop(self, node: ast.For, context: _Context) -> None:
        """Read a loop's body, if the launch decides its trips, and all of them are made."""
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        within = (n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name) and n.id == name)
        if not name or name in context.names or any(isinstance(n.ctx, ast.Store) for n in within):
            return
        if _leaves(node.body, ast.Break):
            return
        key = f"loop {next(self._keys)}"
        trips = self._trips(node.iter, context, key)
        if trips is not None:
            self.walk(node.body, replace(trips, names={**context.names, name: _Variable(key)}))

    def _trips(self, node: ast.expr, context: _Context, key: str) -> _Context | None:
        """Return what is known in a loop over ``range(...)``, whose variable has a key; or None."""
        match node:
            case ast.Call(func, [_, *_] as arguments, []) if self._is(func, range):
                values = [self._value(argument, context) for argument in arguments]
            case _:
                return None
        match values:
            case [_Variable(axis), Size() as stop, Size(((((GridSize(along),), 1),)), 0)] if axis == along:
                return self._strided(axis, stop, context, key)
            case [Size() as stop]:
                return self._over(_Span(ZERO, stop - 1), context, key)
            case [Size() as start, Size() as stop]:
                return self._over(_Span(start, stop - 1), context, key)
            case [Size() as start, Size() as stop, Size((), by)] if by:
                trips = _quotient((stop - start if by > 0 else start - stop) - 1, Size((), abs(by)))
                last = start + trips * Size((), by)
                return self._over(_Span(*((start, last) if by > 0 else (last, start)), abs(by) == 1), context, key)
        return None

    def _over(self, span: _Span, context: _Context, key: str) -> _Context:
        return replace(context, spans={**context.spans, key: span})

    def _strided(self, axis: int, stop: Size, context: _Context, key: str) -> _Context | None:
        """Return what is known in a loop that goes over the grid, of which all threads together make all trips."""
        threads = Size.of(Dim(axis))
        if context.spans.get(axis) != _Span(ZERO, threads - 1):
            return None
        # None of them has its own index in each of these trips; and where only some threads of the grid run, some are not made.
        spans = {other: span for other, span in context.spans.items() if other != axis}
        needs = (*context.needs, threads - Size.of(GridSize(axis)) + 1)
        return self._over(_Span(ZERO, stop - 1), replace(context, spans=spans, needs=needs), key)

    def _assigned(self, target: ast.expr, value: ast.expr, context: _Context) -> _Context:
        """Keep what names stand for from here on."""
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        parts = (
            self._parts(value, len(targets), context)
            if isinstance(target, ast.Tuple)
            else [self._value(value, context)]
        )
        kept = {
            named.id: part
            for named, part in zip(targets, parts, strict=False)
            if isinstance(named, ast.Name) and named.id in self.once and part is not None
        }
        return replace(context, names={**context.names, **kept}) if kept else context

    # Values

    def _parts(self, node: ast.expr, count: int, context: _Context) -> list[_Value | None]:
        """Return what so many names are assigned together."""
        match node:
            case ast.Tuple(parts) if len(parts) == count:
                return [self._value(part, context) for part in parts]
            case ast.Attribute(ast.Name(name), "shape") if name in self.given:
                return [Size.of(Extent(name, axis)) for axis in range(count)]
            case ast.Call():
                found = self._of_threads(node)
                return found if len(found) == count else []
        return []

    def _of_threads(self, node: ast.Call) -> list[_Value | None]:
        """Return the numbers of threads that a call gives, or nothing."""
        static = self.source.resolve(node.func)
        called = None if static is None else intrinsic_of(static.value)
        if called is None or called.kind not in ("tid", "grid", "gridsize"):
            return []
        axes = range(call_rank(self.source, node, called))
        if called.kind == "gridsize":
            return [Size.of(GridSize(axis)) for axis in axes]
        return [_Variable(axis) for axis in axes]

    def _value(self, node: ast.expr, context: _Context) -> _Value | None:
        """Return what an expression is, or None if it is more than the launch decides."""
        constant = self.source.fold(node)
        if isinstance(constant, int | np.integer) and not isinstance(constant, bool):
            return Size((), int(constant))
        match node:
            case ast.Name(name) if name in context.names:
                return context.names[name]
            case ast.Name(name) if name in self.given:
                return Size.of(Number(name))
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(int() as axis)) if (
                name in self.given
            ):
                return Size.of(Extent(name, axis)) if axis >= 0 and axis is not True else None
            case ast.Attribute(ast.Name(name), "size") if name in self.given:
                return Size.of(Total(name))
            case ast.Call(func, [ast.Name(name)], []) if name in self.given and self._is(func, len):
                return Size.of(Extent(name, 0))
            case ast.Call(func, [inner], []) if self._is(func, int):
                return self._value(inner, context)
            case ast.Call(func, [left, right], []) if self._is(func, min) or self._is(func, max):
                return self._made("min" if self._is(func, min) else "max", left, right, context)
            case ast.Call():
                found = self._of_threads(node)
                return found[0] if len(found) == 1 else None
            case ast.UnaryOp(ast.USub(), inner):
                return self._made("-", ast.Constant(0), inner, context)
            case ast.BinOp(left, operation, right):
                axis = own_axis(self.source, node)
                kind = _KINDS.get(type(operation))
                if axis is not None:
                    return _Variable(axis)
                return None if kind is None else self._made(kind, left, right, context)
        return None

    def _made(self, kind: str, left: ast.expr, right: ast.expr, context: _Context) -> _Value | None:
        parts = self._value(left, context), self._value(right, context)
        if parts[0] is None or parts[1] is None:
            return None
        made = _Operation(kind, parts[0], parts[1])
        ends = _ends(made, context.spans)
        return ends.least if ends is not None and not ends.by else made

    def _is(self, node: ast.expr, builtin: Any) -> bool:
        static = self.source.resolve(node) if isinstance(node, ast.Name) else None
        return static is not None and static.value is builtin

    # What is evaluated

    def _tested(self, test: ast.expr, context: _Context) -> tuple[_Context | None, _Context | None]:
        """Read a condition; return what is known where it holds and where it does not, or None where that is no box."""
        match test:
            case ast.UnaryOp(ast.Not(), inner):
                return self._tested(inner, context)[::-1]
            case ast.BoolOp(operation, parts):
                return self._joined(operation, parts, context)
            case ast.Compare(left, operations, rights):
                return self._compared(left, operations, rights, context)
        self._expression(test, context)
        return None, None

    def _joined(
        self, operation: ast.boolop, parts: Sequence[ast.expr], context: _Context
    ) -> tuple[_Context | None, _Context | None]:
        """Read conditions that are joined: each is come to where those before it did not decide."""
        side = 0 if isinstance(operation, ast.And) else 1
        on: _Context | None = context
        for part in parts:
            if on is None:
                break
            on = self._tested(part, on)[side]
        return (on, None) if side == 0 else (None, on)

    def _compared(
        self, left: ast.expr, operations: Sequence[ast.cmpop], rights: Sequence[ast.expr], context: _Context
    ) -> tuple[_Context | None, _Context | None]:
        self._expression(left, context)
        on: _Context | None = context
        for first, operation, second in zip((left, *rights), operations, rights, strict=False):
            if on is None:
                break
            self._expression(second, on)
            on = self._where(first, operation, second, on)
        inverse = _inverse(operations[0]) if len(operations) == 1 else None
        return on, None if inverse is None else self._where(left, inverse, rights[0], context)

    def _where(self, left: ast.expr, operation: ast.cmpop, right: ast.expr, context: _Context) -> _Context | None:
        sides = self._value(left, context), self._value(right, context)
        return None if sides[0] is None or sides[1] is None else context.where(sides[0], operation, sides[1])

    def _expression(self, node: ast.AST, context: _Context) -> None:
        """Read what is evaluated of an expression."""
        match node:
            case ast.IfExp(test, body, orelse):
                for side, part in zip(self._tested(test, context), (body, orelse), strict=True):
                    if side is not None:
                        self._expression(part, side)
                return
            case ast.BoolOp() | ast.Compare() | ast.UnaryOp(ast.Not()):
                self._tested(node, context)
                return
            case ast.Subscript(ast.Name(name), part):
                self._reached(node, name, elements_of(part), context)
            case ast.Call(args=[ast.Name(name), *_]):
                index = atomic_index(self.source, node)
                if index is not None:
                    self._reached(node, name, index, context)
        for child in ast.iter_child_nodes(node):
            self._expression(child, context)

    def _reached(self, node: ast.expr, name: str, index: Sequence[ast.expr], context: _Context) -> None:
        if name not in self.given:
            return
        text, place = f"{name}[{', '.join(map(ast.unparse, index))}]", self.source.excerpt(node)
        for axis, part in enumerate(index):
            if moves_axes(self.source, part):
                return
            value = self._value(part, context)
            ends = None if value is None else _ends(value, context.spans)
            if value is None or ends is None:
                continue
            by_all = context.spans == self.threads and not context.needs
            moved = _moved(value)
            is_plain = by_all and moved is not None and not moved[2].terms
            there = "" if is_plain else ast.unparse(part)
            ways = [(ends.greatest, ends.greatest + 1)]
            # What is negative counts from the end. Guards are not read for that: where they are right, it does not come to it.
            ways += [(ends.least, -ends.least)] if not ends.least.has_choice else []
            for furthest, least in ways:
                if not (Size.of(Extent(name, axis)) - least).is_never_negative:
                    reach = Reach(name, axis, least, context.all_needs(), furthest, there, text, place, by_all)
                    self.found.append(reach)


def _ends_threads(node: ast.AST) -> bool:
    """Tell whether a thread may end in a statement."""
    return any(isinstance(part, ast.Return) or may_raise(part) for part in ast.walk(node))


def _leaves(body: Sequence[ast.stmt], kinds: type[ast.stmt] | types.UnionType) -> bool:
    """Tell whether a thread may leave statements, by ending or by those of some kinds that are not about a loop within."""
    for node in body:
        if _ends_threads(node) or isinstance(node, kinds):
            return True
        inner = (
            [] if isinstance(node, ast.For | ast.While) else [*getattr(node, "body", []), *getattr(node, "orelse", [])]
        )
        if _leaves(inner, kinds):
            return True
    return False
