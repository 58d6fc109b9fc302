"""Slices of arrays: a window names the elements of an array that a slice selects, and is memory as the array is.

What a slice selects is worked out once, where the slice stands, as Python does it: its bounds are clipped, and its length
follows. An access to a window is then an access to the array itself at a computed place, so that no derivative knows of
slices. This module adds the integers that takes to a program, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from numba import types

from numbridge.kernels.adjoint.bindings import View
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.ir import Array, Compute, Function, If, Raise, Value

__all__ = [
    "Axis",
    "Cut",
    "Span",
    "Window",
    "as_int64",
    "axes_of",
    "counted",
    "cut",
    "mapped",
    "moved",
    "open_axes",
    "place",
    "united",
    "window",
]


@dataclass(frozen=True)
class Cut:
    """A slice as it is written: its parts are integers of 64 bits, or None where nothing is written."""

    start: Value | None
    stop: Value | None
    step: Value | None


@dataclass(frozen=True)
class Span:
    """The places ``start + k * step`` along an axis of an array, for `length` values of k."""

    start: Value
    step: Value
    length: Value


# What is known of an axis: the place along it, the places that slices have left, or None for all of it.
Axis = Value | Span | None


@dataclass(frozen=True)
class Window:
    """What slices select of an array: what is known of each of its axes, of which a `Span` is one at least."""

    array: Array
    axes: tuple[Axis, ...]


def window(array: Array, axes: Sequence[Axis]) -> View | Window:
    """Return what some axes select; where no slice is left, that is an element or the rows behind some indices."""
    axes = list(axes)
    while axes and axes[-1] is None:
        axes.pop()
    if all(isinstance(axis, Value) for axis in axes):
        return View(array, tuple(axis for axis in axes if isinstance(axis, Value)))
    missing = View(array).ndim - len(axes)
    return Window(array, (*axes, *[None] * missing))


def axes_of(view: View | Window) -> tuple[Axis, ...]:
    """Return what is known of each axis."""
    if isinstance(view, Window):
        return view.axes
    return (*view.index, *[None] * (view.ndim - len(view.index)))


def open_axes(view: View | Window) -> list[int]:
    """Return the axes that no index has been given for."""
    return [k for k, axis in enumerate(axes_of(view)) if not isinstance(axis, Value)]


def cut(
    construct: Construct, axis: Span | None, given: Cut, extent: Callable[[], Value], sure: Collection[Value] = ()
) -> Span | None:
    """Return what a slice leaves of an axis, whose whole extent is `extent`; integers that are `sure` are not negative."""
    step = construct.constant(1) if given.step is None else given.step
    if given.stop is None and step.constant == 1 and (given.start is None or given.start.constant == 0):
        return axis
    if step.constant is None:
        _check_step(construct, step)
    whole = extent() if axis is None else axis.length
    start = _start(construct, given.start, whole, step, sure=_is_sure(given.start, sure))
    stop = _stop(construct, given.stop, whole, step, sure=_is_sure(given.stop, sure))
    length = _length(construct, start, stop, step)
    if axis is None:
        return Span(start, step, length)
    return Span(moved(construct, start, axis.start, axis.step), _product(construct, step, axis.step), length)


def place(construct: Construct, axis: Span | None, index: Value, *, nonnegative: bool) -> Value:
    """Return the place along an array's axis of an index into a window; one that is negative counts from its end."""
    if axis is None:
        return index  # which the array's own extent is added to
    index = as_int64(construct, index)
    if index.constant is not None:
        if index.constant < 0:
            index = _sum(construct, axis.length, index)
    elif not nonnegative:
        text = "{0} if {0} >= 0 else {0} + {1}"
        index = _made(construct, "place", text, lambda k, n: k if k >= 0 else k + n, index, axis.length)
    return moved(construct, index, axis.start, axis.step)


def as_int64(construct: Construct, value: Value) -> Value:
    """Return an integer as one of 64 bits; what is longer is no index of any array."""
    if type(value.constant) in (int, bool):
        return construct.constant(int(value.constant))
    return construct.cast(value, types.int64)


def united(
    construct: Construct,
    sides: tuple[View | Window, View | Window],
    extents: Sequence[Callable[[], Value]],
    merge: Callable[[Value, Value], Value],
) -> View | Window | None:
    """Return what two views of one array are where either may be meant, or None if they cannot be one.

    Parameters
    ----------
    construct : Construct
        Where integers are added.
    sides : tuple
        The views.
    extents : sequence of callables
        The extents of the array's axes.
    merge : callable
        Returns the integer that is one of two, by which view is meant.
    """
    first, second = sides
    if first.array is not second.array:
        return None
    made: list[Axis] = []
    for a, b, extent in zip(axes_of(first), axes_of(second), extents, strict=False):
        if isinstance(a, Value) != isinstance(b, Value):
            return None
        if isinstance(a, Value) and isinstance(b, Value):
            made.append(merge(a, b))
        elif a is None and b is None:
            made.append(None)
        else:
            one, other = _whole(construct, a, extent), _whole(construct, b, extent)
            made.append(
                Span(merge(one.start, other.start), merge(one.step, other.step), merge(one.length, other.length))
            )
    return window(first.array, made)


def mapped(view: View | Window, change: Callable[[Value], Value]) -> View | Window:
    """Return a view whose integers are what others have become."""
    made: list[Axis] = []
    for axis in axes_of(view):
        if isinstance(axis, Span):
            made.append(Span(change(axis.start), change(axis.step), change(axis.length)))
        else:
            made.append(axis if axis is None else change(axis))
    return window(view.array, made)


def _whole(construct: Construct, axis: Axis, extent: Callable[[], Value]) -> Span:
    if isinstance(axis, Span):
        return axis
    return Span(construct.constant(0), construct.constant(1), extent())


def counted(construct: Construct, start: Value, stop: Value, step: Value) -> Value:
    """Return how many places lie from a start to a stop, a step apart that is a constant."""
    return _length(construct, start, stop, step)


def moved(construct: Construct, index: Value, start: Value, step: Value) -> Value:
    """Return the place of a number in a sequence of integers."""
    return _sum(construct, start, _product(construct, index, step))


def _check_step(construct: Construct, step: Value) -> None:
    """End the thread where a step is zero, as the kernel does."""
    zero = construct.apply("eq", step, construct.constant(0))
    failed = Raise('raise ValueError("slice step cannot be zero")', place=construct.place)
    construct.add(If(zero, [failed], [], []))


def _is_sure(value: Value | None, sure: Collection[Value]) -> bool:
    if value is None or value.constant is not None:
        return value is not None and bool(value.constant >= 0)
    return value in sure


def _start(construct: Construct, bound: Value | None, whole: Value, step: Value, *, sure: bool) -> Value:
    if bound is None:
        return _by_sign(construct, step, lambda: construct.constant(0), lambda: _less_one(construct, whole))
    if sure and step.constant is not None and step.constant > 0:
        return bound  # beyond the end nothing is left, wherever that would begin
    return _clipped(construct, bound, whole, step, sure=sure)


def _stop(construct: Construct, bound: Value | None, whole: Value, step: Value, *, sure: bool) -> Value:
    if bound is None:
        return _by_sign(construct, step, lambda: whole, lambda: construct.constant(-1))
    return _clipped(construct, bound, whole, step, sure=sure)


def _clipped(construct: Construct, bound: Value, whole: Value, step: Value, *, sure: bool) -> Value:
    """Return a bound as Python clips it: to the extent, or one below it where the step is negative."""
    ahead = _text("{0} if {0} < {1} else {1}", "{1} + {0} if {1} + {0} > 0 else 0", bound, sure=sure)
    back = _text("{0} if {0} < {1} else {1} - 1", "{1} + {0} if {1} + {0} >= 0 else -1", bound, sure=sure)
    return _by_sign(
        construct,
        step,
        lambda: _made(construct, "bound", ahead, lambda b, n: slice(b, None).indices(n)[0], bound, whole),
        lambda: _made(construct, "bound", back, lambda b, n: slice(b, None, -1).indices(n)[0], bound, whole),
    )


def _text(above: str, below: str, bound: Value, *, sure: bool) -> str:
    """Return the text for a bound of either sign, as far as the sign is not known."""
    if sure or bound.constant is not None:
        return above if sure else below
    return f"({above}) if {{0}} >= 0 else ({below})"


def _length(construct: Construct, start: Value, stop: Value, step: Value) -> Value:
    ahead = "({1} - {0} - 1) // {2} + 1 if {1} > {0} else 0"
    back = "({0} - {1} - 1) // -{2} + 1 if {0} > {1} else 0"
    if step.constant == 1:
        ahead = "{1} - {0} if {1} > {0} else 0"
    elif step.constant == -1:
        back = "{0} - {1} if {0} > {1} else 0"
    return _by_sign(
        construct,
        step,
        lambda: _made(construct, "length", ahead, _count, start, stop, step),
        lambda: _made(construct, "length", back, _count, start, stop, step),
    )


def _count(start: int, stop: int, step: int) -> int:
    return len(range(start, stop, step))


def _by_sign(construct: Construct, step: Value, ahead: Callable[[], Value], back: Callable[[], Value]) -> Value:
    """Return one of two integers by the sign of a step."""
    if step.constant is not None:
        return back() if step.constant < 0 else ahead()
    forwards, backwards = ahead(), back()
    return construct.select(construct.apply("lt", step, construct.constant(0)), backwards, forwards)


def _less_one(construct: Construct, value: Value) -> Value:
    return _sum(construct, value, construct.constant(-1))


def _sum(construct: Construct, a: Value, b: Value) -> Value:
    if a.constant is not None and b.constant is not None:
        return construct.constant(a.constant + b.constant)
    if a.constant == 0 or b.constant == 0:
        return b if a.constant == 0 else a
    return construct.apply("add", a, b)


def _product(construct: Construct, a: Value, b: Value) -> Value:
    if a.constant is not None and b.constant is not None:
        return construct.constant(a.constant * b.constant)
    if a.constant == 1 or b.constant == 1:
        return b if a.constant == 1 else a
    return construct.apply("mul", a, b)


def _made(construct: Construct, base: str, text: str, known: Callable[..., int], *arguments: Value) -> Value:
    """Return an integer that a text computes of others, or that is `known` where these are."""
    if all(argument.constant is not None for argument in arguments):
        return construct.constant(known(*(argument.constant for argument in arguments)))
    made = construct.value(base, types.int64)
    construct.add(Compute(made, Function("window", text, None), list(arguments)))
    return made
