"""Indices as boxes: what a kernel's indices and guards come to where a launch decides them, whatever arrays hold.

Each thread index and each loop variable runs from one size to another, independently of the others, so an index in which each
occurs once reaches the ends that interval arithmetic gives it (Moore, Interval Analysis, 1966). A guard that compares one of them
with a size leaves a box; what other guards leave is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from numbridge.kernels.language.comparisons import MIRRORED
from numbridge.kernels.language.launch_sizes import (
    ONE,
    ZERO,
    Along,
    Size,
    larger,
    quotient,
    smaller,
)

__all__ = ["KINDS", "Box", "Operation", "Span", "Value", "Variable", "ends", "moved", "of_threads"]

KINDS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
_OF_BOXES = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_AXES = 3  # of blocks


@dataclass(frozen=True)
class Variable:
    """What runs from somewhere to somewhere: a thread's index, its place in its block, its block, or a loop's variable.

    Attributes
    ----------
    kind : {'own', 'threadIdx', 'blockIdx', 'loop'}
        Which.
    number : int
        The axis, or which loop.
    """

    kind: Literal["own", "threadIdx", "blockIdx", "loop"]
    number: int

    @property
    def group(self) -> tuple[bool, int]:
        """What it shares with those that it depends on: a thread's index tells its block and its place in that."""
        return self.kind == "loop", self.number


@dataclass(frozen=True)
class Operation:
    """What a kernel makes of variables and sizes: one of `KINDS`, ``min`` or ``max``."""

    kind: str
    left: Value
    right: Value


Value = Size | Variable | Operation


@dataclass(frozen=True)
class Span:
    """From where to where a variable runs, both ends included, and whether it takes all integers between."""

    first: Size
    last: Size
    is_dense: bool = True

    @property
    def need(self) -> Size:
        """What is positive where there is anything in it."""
        return self.last - self.first + 1


def of_threads(rank: int) -> dict[Variable, Span]:
    """Return where threads' indices run, and their places in blocks: none of them is beyond the launch's extents."""
    spans = {}
    for axis in range(rank):
        count, size = Size.of(Along("dim", axis)), Size.of(Along("blockDim", axis))
        spans[Variable("own", axis)] = Span(ZERO, count - 1)
        if rank > _AXES:
            continue  # the last two share an axis of blocks
        spans[Variable("threadIdx", axis)] = Span(ZERO, smaller(size, count) - 1)
        spans[Variable("blockIdx", axis)] = Span(ZERO, quotient(count - 1, size))
    return spans


@dataclass(frozen=True)
class Ends:
    """Between which integers an index is that reaches both.

    Attributes
    ----------
    least, greatest : Size
        Which.
    by : frozenset
        What it is made of, by groups of variables.
    is_dense : bool
        Whether it takes all between.
    """

    least: Size
    greatest: Size
    by: frozenset[tuple[bool, int]] = frozenset()
    is_dense: bool = True


def ends(value: Value, spans: Mapping[Variable, Span]) -> Ends | None:
    """Return between which integers an index is that reaches both, or None if that is not seen."""
    if isinstance(value, Size):
        return Ends(value, value)
    if isinstance(value, Variable):
        span = spans.get(value)
        return None if span is None else Ends(span.first, span.last, frozenset((value.group,)), span.is_dense)
    left, right = ends(value.left, spans), ends(value.right, spans)
    # What occurs twice does not take every pair of values.
    if left is None or right is None or left.by & right.by:
        return None
    found = _ends_of(value.kind, left, right)
    is_dense = left.is_dense and right.is_dense and (value.kind != "*" or not left.by | right.by)
    return None if found is None else Ends(*found, left.by | right.by, is_dense)


def _ends_of(kind: str, left: Ends, right: Ends) -> tuple[Size, Size] | None:
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
        fixed, run = (left, right) if not left.by else (right, left)
        sides = run.least * fixed.least, run.greatest * fixed.least
        return smaller(*sides), larger(*sides)
    divisor = right.least
    if right.by:
        return None
    if kind == "//":
        return quotient(left.least, divisor), quotient(left.greatest, divisor)
    # Of numbers from 0 on, in a row, those up to the divisor are their own remainders; where it is not positive, 0 is one.
    most = larger(divisor, ONE) - 1
    return (ZERO, smaller(left.greatest, most)) if left.least == ZERO and left.is_dense else None


def moved(value: Value) -> tuple[Variable | None, int, Size] | None:
    """Return the variable in what is ``v + c`` or ``c - v``, with its sign, and the rest; no variable for ``c``."""
    if isinstance(value, Size):
        return None, 0, value
    if isinstance(value, Variable):
        return value, 1, ZERO
    if value.kind not in ("+", "-"):
        return None
    left, right = moved(value.left), moved(value.right)
    if left is None or right is None or (left[0] is not None and right[0] is not None):
        return None
    sign = 1 if value.kind == "+" else -1
    rest = left[2] + right[2] if sign > 0 else left[2] - right[2]
    return (left[0], left[1], rest) if left[0] is not None else (right[0], sign * right[1], rest)


@dataclass(frozen=True)
class Box:
    """What is known where a kernel's text is read.

    Attributes
    ----------
    spans : mapping of Variable to Span
        Where variables run.
    names : mapping of str to Value
        What local names stand for.
    needs : tuple of Size
        What else must be positive for all threads to come here.
    """

    spans: Mapping[Variable, Span]
    names: Mapping[str, Value]
    needs: tuple[Size, ...]

    def all_needs(self) -> tuple[Size, ...]:
        """Return what must be positive for any thread to come here, but for what always is."""
        needs = (*self.needs, *(span.need for variable, span in self.spans.items() if not self._is_implied(variable)))
        return tuple(dict.fromkeys(need for need in needs if not (need - 1).is_never_negative))

    def _is_implied(self, variable: Variable) -> bool:
        """Tell whether a variable runs where there is any thread's index: the first of these has the first place of a block."""
        return variable.kind != "own" and Variable("own", variable.number) in self.spans and variable.kind != "loop"

    def where(self, left: Value, operation: type[ast.cmpop], right: Value) -> Box | None:
        """Return what is known where a comparison holds, or None if those that pass are no box."""
        one, two = moved(left), moved(right)
        if one is None or two is None or operation not in _OF_BOXES:
            return None
        (variable, sign, more), (other, other_sign, bound) = one, two
        if variable is not None and other is not None:
            return None
        if variable is None:
            variable, sign, more, bound, operation = other, other_sign, bound, more, MIRRORED[operation]
        if variable is None:
            return self._where_all(more, operation, bound) if operation is not ast.NotEq else None
        bound = bound - more
        if sign < 0:
            bound, operation = -bound, MIRRORED[operation]
        span = self.spans.get(variable)
        if span is None or not span.is_dense:
            return None
        first, last = span.first, span.last
        if operation is ast.NotEq:
            if bound not in (first, last):
                return None
            return self._narrowed(variable, Span(first + 1, last) if bound == first else Span(first, last - 1))
        if operation in (ast.Gt, ast.GtE, ast.Eq):
            first = larger(first, bound + 1 if operation is ast.Gt else bound)
        if operation in (ast.Lt, ast.LtE, ast.Eq):
            last = smaller(last, bound - 1 if operation is ast.Lt else bound)
        return self._narrowed(variable, Span(first, last))

    def without(self, variable: Variable) -> Box:
        """Return what is known apart from a variable and those that depend on it."""
        return replace(self, spans={v: span for v, span in self.spans.items() if v.group != variable.group})

    def within(self, variable: Variable, start: Value, stop: Value) -> Box | None:
        """Return what is known in a loop from `start` up to `stop`, or None if the trips of all threads together are no box.

        Where threads make trips of their own, what these depend on is not known any more: not each of them makes each trip.
        """
        one, two = ends(start, self.spans), ends(stop, self.spans)
        if one is None or two is None:
            return None
        needs, by = self.needs, one.by | two.by
        if one.by & two.by:
            first, last = moved(start), moved(stop)
            # Both are one index at some distances.
            if first is None or last is None or first[:2] != last[:2] or not (one.is_dense and two.is_dense):
                return None
            # As many trips for each thread
            needs = (*needs, last[2] - first[2])
        return self._apart_from(by, needs).over(variable, Span(one.least, two.greatest - 1))

    def _apart_from(self, by: frozenset[tuple[bool, int]], needs: tuple[Size, ...]) -> Box:
        """Return what is known apart from some groups of variables, and of `needs` and theirs."""
        gone = [v for v in self.spans if v.group in by]
        theirs = tuple(self.spans[v].need for v in gone if not self._is_implied(v))
        return replace(self, spans={v: s for v, s in self.spans.items() if v not in gone}, needs=(*needs, *theirs))

    def over(self, variable: Variable, span: Span) -> Box:
        """Return what is known where one more variable runs."""
        return replace(self, spans={**self.spans, variable: span})

    def _narrowed(self, variable: Variable, span: Span) -> Box:
        box = self.without(variable).over(variable, span)
        place = Variable("threadIdx", variable.number)
        if variable.kind == "own" and span.first == ZERO and place in self.spans:
            # The first threads have the first places of a block.
            box = box.over(place, Span(ZERO, smaller(self.spans[place].last, span.last)))
        return box

    def _where_all(self, left: Size, operation: type[ast.cmpop], right: Size) -> Box:
        """Return what is known where a comparison holds that is the same for all threads."""
        if operation in (ast.Gt, ast.GtE):
            left, operation, right = right, MIRRORED[operation], left
        needs = [right - left if operation is ast.Lt else right - left + 1]
        needs += [left - right + 1] if operation is ast.Eq else []
        return replace(self, needs=(*self.needs, *needs))
