"""In which order the CPU's loops over a kernel's threads are nested, where the kernel's indices tell how its memory lies.

On a GPU threads run side by side along the first index, so that kernels for CUDA index images as ``x, y = cuda.grid(2)`` and
``image[y, x]``; those of arrays in Python's order have the last index there, ``i, j = nb.tid()`` and ``a[i, j]``. The CPU's inner
loop takes the index along which neighbours find their elements side by side. Threads are not ordered among themselves, so any
order is right.

This module reads a kernel's source, and compiles nothing.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from numbridge.kernels.language.indexing import place_of
from numbridge.kernels.language.source import FunctionSource, Program, index_uses
from numbridge.kernels.parameter_types import ArrayType, ParameterType

__all__ = ["loop_order"]

# What happens in a loop counts this many times as much.
_IN_LOOP = 8
# Of how many calls the functions are read, which may call others in turn
_MOST_CALLS = 200
# How many axes away the next element is taken to be that is found by an index out of memory.
_ANYWHERE = 2
# What stands for an axis along which a number is another in the next block only.
_OF_BLOCKS = 8

_Far = Mapping[int, int]
"""By how many extents a number differs from a thread to the next along each axis that it depends on, or from block to block."""


def loop_order(source: FunctionSource, parameters: Sequence[ParameterType]) -> tuple[int, ...]:
    """Return for each loop over a kernel's threads, the outermost first, which thread index it runs along.

    Parameters
    ----------
    source : FunctionSource
        The kernel.
    parameters : sequence of ParameterType
        Its types. Nothing is known of how arrays lie that are not contiguous.
    """
    axes = range(source.index_rank)
    arrays = {p.name: p.name for p in parameters if isinstance(p, ArrayType) and p.contiguous}
    if len(axes) < 2 or not arrays:
        return tuple(axes)
    distance: Counter[int] = Counter()
    reading = _Reading(Program(source), source, arrays, {}, (), iter(range(_MOST_CALLS)))
    for weight, far in reading.accesses(source.tree.body, 1):
        for axis in axes:
            distance[axis] += weight * far.get(axis, far.get(_OF_BLOCKS + axis, 0))
    return tuple(sorted(axes, key=lambda axis: -distance[axis]))


def _furthest(parts: Sequence[_Far], more: int = 0) -> dict[int, int]:
    found: dict[int, int] = {}
    for far in parts:
        for axis, extents in far.items():
            found[axis] = max(found.get(axis, 0), extents + more)
    return found


class _Reading:
    """One reading of a function: which of its names are arrays, and how its numbers differ from thread to thread."""

    def __init__(
        self,
        program: Program,
        source: FunctionSource,
        arrays: Mapping[str, str],
        given: Mapping[str, _Far],
        within: tuple[FunctionSource, ...],
        left: Iterator[int],
    ) -> None:
        self._program, self._source, self._arrays = program, source, arrays
        self._within, self._left = (*within, source), left
        self._known: dict[str, _Far] = {**given}
        self._values: dict[str, list[ast.expr]] = defaultdict(list)
        self._calls = {id(node): callee for node, callee in program.calls(source)}
        self._indices = {id(node): (kind, count) for node, kind, count in index_uses(source)}
        for node in source.nodes:
            match node:
                case ast.Assign(targets, value):
                    for target in targets:
                        self._assign(target, value)
                case ast.AugAssign(ast.Name(name), _, value):
                    self._values[name].append(value)
                case ast.For(ast.Name(name), iter=head):
                    self._values[name].append(head)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._values[target.id].append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            kind, _ = self._indices.get(id(value), ("", 0))
            parts = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            for axis, (part, named) in enumerate(zip(target.elts, parts, strict=False)):
                if kind in ("tid", "grid") and isinstance(part, ast.Name):
                    self._known[part.id] = {axis: 0}
                else:
                    self._assign(part, named)

    def accesses(self, body: Sequence[ast.stmt], weight: int) -> Iterator[tuple[int, _Far]]:
        """Yield how far apart neighbours find what they access, with how much that counts."""
        for statement in body:
            inner = weight * (_IN_LOOP if isinstance(statement, ast.For | ast.While) else 1)
            for _, value in ast.iter_fields(statement):
                parts = value if isinstance(value, list) else [value]
                if parts and isinstance(parts[0], ast.stmt):
                    yield from self.accesses(parts, inner)
                else:
                    yield from self._within_expressions([p for p in parts if isinstance(p, ast.expr)], weight)

    def _within_expressions(self, expressions: Sequence[ast.expr], weight: int) -> Iterator[tuple[int, _Far]]:
        for node in (part for expression in expressions for part in ast.walk(expression)):
            match node:
                case ast.Subscript(ast.Name(array), place) if array in self._arrays:
                    yield weight, self._apart(place)
                case ast.Call(args=[ast.Name(array), place, *_]) if (
                    array in self._arrays and id(node) not in self._calls
                ):
                    yield weight, self._apart(place)  # an atomic operation
                case ast.Call():
                    yield from self._called(node, weight)

    def _apart(self, place: ast.expr) -> _Far:
        """Return how far apart neighbours find an array's element."""
        places = place.elts if isinstance(place, ast.Tuple) else [place]
        last = len(places) - 1
        return _furthest([_furthest([self._far(part)], last - k) for k, part in enumerate(places)])

    def _called(self, node: ast.Call, weight: int) -> Iterator[tuple[int, _Far]]:
        callee = self._calls.get(id(node))
        if callee is None or callee in self._within or any(isinstance(part, ast.Starred) for part in node.args):
            return
        pairs = list(zip(callee.parameters, node.args, strict=False))
        arrays = {name: a.id for name, a in pairs if isinstance(a, ast.Name) and a.id in self._arrays}
        if not arrays or next(self._left, None) is None:
            return
        given = {name: self._far(argument) for name, argument in pairs}
        reading = _Reading(self._program, callee, arrays, given, self._within, self._left)
        yield from reading.accesses(callee.tree.body, weight)

    def _far(self, node: ast.expr) -> _Far:
        kind, count = self._indices.get(id(node), ("", 0))
        if kind in ("tid", "grid"):
            return {0: 0} if count == 1 else {}
        if kind == "axis":
            found = place_of(self._source, node)
            first = {"threadIdx": 0, "blockIdx": _OF_BLOCKS}.get("" if found is None else found.operation)
            return {} if first is None else {first + count - 1: 0}
        match node:
            case ast.Name(name):
                return self._of_name(name)
            case ast.BinOp(left, ast.Mult(), right):
                # The other factor is an extent, as in `y * width + x`.
                sides = [(left, right), (right, left)]
                return _furthest([_furthest([self._far(a)], not isinstance(b, ast.Constant)) for a, b in sides])
            case ast.Subscript(_, place):
                return _furthest([self._far(place)], _ANYWHERE)
            case ast.Attribute():
                return {}
        return _furthest([self._far(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)])

    def _of_name(self, name: str) -> _Far:
        if name not in self._known:
            self._known[name] = {}  # while its own values are asked
            self._known[name] = _furthest([self._far(value) for value in self._values[name]])
        return self._known[name]
