"""How far a kernel goes into its arrays whatever they hold, which says how long they must be for a launch.

Only what every thread comes to counts: an element at one of its indices, at a constant distance from that, or at a constant
place, outside of branches and of loops, and before anything that may end a thread. A launch over an array that is shorter would
read or write what is not the array's. Nothing is launched or compiled here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.language.indexing import atomic_index, elements_of, index_names, moves_axes
from numbridge.kernels.language.kernel_syntax import may_raise
from numbridge.kernels.language.source import FunctionSource, Program

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = ["Reach", "reaches_of"]


@dataclass(frozen=True)
class Reach:
    """How far every thread of a launch goes along one axis of a parameter.

    Attributes
    ----------
    parameter : str
        Which array.
    axis : int
        Which of its axes, not counting those of vectors and matrices.
    index : int or None
        The thread index that it goes by; None where all threads go to the same place.
    more : int
        How much further than that.
    text : str
        The expression.
    place : str
        Where it stands: file, line, column, and the line with a caret.
    """

    parameter: str
    axis: int
    index: int | None
    more: int
    text: str
    place: str

    def least(self, dims: Sequence[Any]) -> Any:
        """Return how long the axis must be for a launch that has threads; extents may be symbolic."""
        return (1 if self.index is None else dims[self.index]) + self.more

    def refusal(self, shape: Sequence[Any], dims: Sequence[Any], way: str) -> str:
        """Return the end of the message about an array of a shape that is shorter; `way` is what to do."""
        return (
            f"its shape is {tuple(shape)}, and each thread of a launch over {tuple(dims)} takes {self.text}, so axis {self.axis} "
            f"must have {self.least(dims)} elements or more; kernels do not broadcast: {way}\n  {self.place}"
        )


def reaches_of(kernel: Kernel) -> tuple[Reach, ...]:
    """Return how far each thread of a kernel goes, with the globals as they are now: what is furthest for each axis.

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
    furthest: dict[tuple[str, int, int | None], Reach] = {}
    for reach in reading.all():
        key = reach.parameter, reach.axis, reach.index
        if key not in furthest or furthest[key].more < reach.more:
            furthest[key] = reach
    return tuple(reach for reach in furthest.values() if not _is_implied(reach, furthest))


def _is_implied(reach: Reach, furthest: dict[tuple[str, int, int | None], Reach]) -> bool:
    """Tell whether a constant place is reached by way of a thread index, too, however few threads there are."""
    ways = (found for (name, axis, _), found in furthest.items() if (name, axis) == (reach.parameter, reach.axis))
    return reach.index is None and any(way.index is not None and way.more >= reach.more for way in ways)


def _calls_may_raise(source: FunctionSource) -> bool:
    """Tell whether a function that the kernel calls may end a thread."""
    program = Program(source)
    called = [function for function in program.sources if function is not source]
    functions = (*called, *program.compiled_sources())
    return any(function is None or any(map(may_raise, function.nodes)) for function in functions)


class _Reading:
    """One reading of what every thread of a kernel comes to."""

    def __init__(self, source: FunctionSource) -> None:
        self.source = source
        self.numbers = {name: number for number, name in enumerate(index_names(source) or ())}
        named = (node for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        # Under a name that is assigned, another array may be meant.
        self.arrays = frozenset(source.parameters) - {node.id for node in named}

    def all(self) -> Iterator[Reach]:
        """Yield every place that is reached, in order."""
        for node in _always(self.source.tree.body):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                yield from self._reached(node, node.value.id, elements_of(node.slice))
            elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
                index = atomic_index(self.source, node)
                if index is not None:
                    yield from self._reached(node, node.args[0].id, index)

    def _reached(self, node: ast.expr, name: str, index: Sequence[ast.expr]) -> Iterator[Reach]:
        if name not in self.arrays:
            return
        text, place = f"{name}[{', '.join(map(ast.unparse, index))}]", self.source.excerpt(node)
        for axis, part in enumerate(index):
            if moves_axes(self.source, part):
                return
            for number, more in self._furthest(part):
                yield Reach(name, axis, number, more, text, place)

    def _furthest(self, part: ast.expr) -> Iterator[tuple[int | None, int]]:
        """Yield the thread index that an index goes by, and how much further it goes.

        What counts from the end goes as far from there.
        """
        constant = self._constant(part)
        if constant is not None:
            yield None, constant if constant >= 0 else -constant - 1
            return
        number, more = self._moved(part)
        if number is not None:
            yield number, more
            if more < 0:
                # The first threads count from the end.
                yield None, -more - 1

    def _moved(self, part: ast.expr) -> tuple[int | None, int]:
        """Return the thread index in ``i``, ``i + 1``, ``1 + i`` or ``i - 1``, and what is added; or None."""
        match part:
            case ast.Name(name):
                return self.numbers.get(name), 0
            case ast.BinOp(ast.Name(name), ast.Add() | ast.Sub() as operation, moved):
                sign = 1 if isinstance(operation, ast.Add) else -1
            case ast.BinOp(moved, ast.Add(), ast.Name(name)):
                sign = 1
            case _:
                return None, 0
        by = self._constant(moved)
        return (None, 0) if by is None else (self.numbers.get(name), sign * by)

    def _constant(self, part: ast.expr) -> int | None:
        value = self.source.fold(part)
        return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None


def _always(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield what every thread evaluates of a kernel's statements, up to where a thread may end."""
    for statement in body:
        yield from _evaluated(statement)
        if any(isinstance(node, ast.Return) or may_raise(node) for node in ast.walk(statement)):
            return


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.If(test=first) | ast.While(test=first) | ast.IfExp(test=first) | ast.For(iter=first):
            yield from _evaluated(first)
        case ast.BoolOp(values=[first, *_]):
            yield from _evaluated(first)
        case ast.Compare(left, _, [first, *_]):
            yield from _evaluated(left)
            yield from _evaluated(first)
        case ast.Assert() | ast.Raise():
            return
        case _:
            yield node
            for child in ast.iter_child_nodes(node):
                yield from _evaluated(child)
