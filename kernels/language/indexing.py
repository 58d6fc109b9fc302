"""Which elements a thread touches, as far as a kernel's source shows it: what may be cut into shards, what is surely stored.

Works on `ast` alone and errs on the safe side: a thread index is *free* only if every use of it selects an element along an axis
that nothing else selects otherwise, so that a kernel which sees one shard of these axes computes one shard of the result.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.language.intrinsics import Intrinsic, intrinsic_of
from numbridge.kernels.language.source import FunctionSource, Program, index_uses

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = [
    "Indexing",
    "apart_places",
    "atomic_index",
    "elements_of",
    "index_names",
    "indexing_of",
    "loaded_names",
    "moves_axes",
    "named_parts",
    "own_axis",
    "place_of",
]


@dataclass(frozen=True)
class Indexing:
    """How a kernel indexes its parameters.

    Attributes
    ----------
    bound : mapping of str to tuple
        For each parameter, which thread index selects along each of its first axes; None for an axis that is used whole. Axes
        beyond the tuple are used whole.
    free : frozenset of int
        The thread indices along which a launch may be cut into independent shards.
    covered : frozenset of str
        Parameters whose every element is stored, and none is loaded, when their shape is that of the launch.
    loaded : frozenset of str
        Parameters whose every element is loaded by its own thread, and by no other, when their shape is that of the launch.
    """

    bound: Mapping[str, tuple[int | None, ...]]
    free: frozenset[int]
    covered: frozenset[str]
    loaded: frozenset[str]


# On CUDA a thread that raises ends, and the launch goes on.
_ENDS = ast.Return | ast.Raise | ast.Assert
_CONDITIONAL = ast.If | ast.IfExp | ast.For | ast.While | ast.BoolOp | ast.Lambda | ast.comprehension

NOTHING = Indexing({}, frozenset(), frozenset(), frozenset())


def indexing_of(kernel: Kernel) -> Indexing:
    """Return how a kernel indexes its parameters, with the globals as they are now."""
    source = kernel.source
    return source.found("indexing", lambda: _indexing_in(source), Dependency.is_unchanged)


def _indexing_in(source: FunctionSource) -> Indexing:
    names = index_names(source)
    return NOTHING if names is None else _Reading(source, names).result()


def loaded_names(source: FunctionSource) -> set[str]:
    """Return the names with which a function does more than store to their elements and ask for their shape."""
    plain = set()
    for node in source.nodes:
        match node:
            case ast.Subscript(ctx=ast.Store()) | ast.Attribute(attr="shape"):
                plain.add(id(node.value))
    for node in source.nodes:
        match node:
            case ast.AugAssign(target=ast.Subscript(value)):
                plain.discard(id(value))
    return {node.id for node in source.nodes if isinstance(node, ast.Name) and id(node) not in plain}


def index_names(source: FunctionSource) -> list[str] | None:
    """Return the names of the thread indices if they are assigned once, at the top, and used nowhere else."""
    uses = [(part, node, kind) for part in Program(source).sources for node, kind, _ in index_uses(part)]
    if len(uses) != 1 or uses[0][0] is not source or uses[0][2] not in ("tid", "grid"):
        return None
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign) and statement.value is uses[0][1] and len(statement.targets) == 1:
            target = statement.targets[0]
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            names = [part.id for part in parts if isinstance(part, ast.Name)]
            stored = [n.id for n in source.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            return names if len(names) == len(parts) and all(stored.count(n) == 1 for n in names) else None
    return None


class _Reading:
    """One reading of a kernel's body: accesses, shapes and stray uses of indices."""

    def __init__(self, source: FunctionSource, names: list[str]) -> None:
        self.source = source
        self.numbers = {name: number for number, name in enumerate(names)}
        self.parents = {id(child): node for node in ast.walk(source.tree) for child in ast.iter_child_nodes(node)}
        self.accesses: dict[str, list[list[ast.expr]]] = {name: [] for name in source.parameters}
        self.escaped: set[str] = set()
        # Which parameter's axis a use of a shape stands for, by the node and by the name that it was given.
        self.shapes: list[tuple[ast.AST, str, int]] = []
        self.shape_names: dict[str, tuple[str, int]] = {}
        for node in source.nodes:
            if isinstance(node, ast.Name) and node.id in self.accesses:
                self._parameter(node)

    def result(self) -> Indexing:
        """Return what was found."""
        bound = {name: self._axes(name) for name in self.source.parameters}
        proper = {id(node) for name in bound for node in self._selecting(name, bound[name])}
        blocked = {
            self.numbers[node.id]
            for node in self.source.nodes
            if isinstance(node, ast.Name) and node.id in self.numbers and isinstance(node.ctx, ast.Load)
            if id(node) not in proper and not self._is_guard(node, bound)
        }
        blocked |= {number for number, _ in self._stray_shapes(bound)}
        for name in self.source.written():
            blocked |= set(self.numbers.values()) - set(bound[name])
        # A shard has other blocks, and other threads in a warp.
        free = () if self.source.asks_for_block else self.numbers.values()
        return Indexing(
            bound,
            frozenset(free) - blocked,
            frozenset(self._stored(self.source.tree.body) - loaded_names(self.source)),
            frozenset(self._loaded(bound)),
        )

    # Parameters

    def _parameter(self, node: ast.Name) -> None:
        name, parent = node.id, self.parents[id(node)]
        atomic = atomic_index(self.source, parent)
        if isinstance(parent, ast.Subscript) and parent.value is node:
            self.accesses[name].append(elements_of(parent.slice))
            if any(moves_axes(self.source, index) for index in elements_of(parent.slice)):
                self.escaped.add(name)
        elif isinstance(parent, ast.Attribute) and parent.attr == "shape":
            self._shape(parent, name)
        elif atomic is not None and isinstance(parent, ast.Call) and parent.args[0] is node:
            self.accesses[name].append(atomic)
        else:
            self.escaped.add(name)

    def _shape(self, shape: ast.Attribute, name: str) -> None:
        """Note what a use of ``name.shape`` stands for."""
        parent = self.parents[id(shape)]
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant):
            axis: Any = parent.slice.value
            target = self._name_of(parent)
            if target is None or not self._named([target], [(name, axis)]):
                self.shapes.append((parent, name, axis))
        elif isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Tuple):
            targets = list(parent.targets[0].elts)
            if not self._named(targets, [(name, axis) for axis in range(len(targets))]):
                self.escaped.add(name)
        else:
            self.escaped.add(name)

    def _name_of(self, value: ast.expr) -> ast.expr | None:
        """Return what a value is assigned to: ``n = value``, or ``n, m = value, other``."""
        above: Any = self.parents[id(value)]
        if isinstance(above, ast.Tuple):
            assignment = self.parents[id(above)]
            targets = getattr(assignment, "targets", [None])
            whole = isinstance(assignment, ast.Assign) and len(targets) == 1 and isinstance(targets[0], ast.Tuple)
            parts = targets[0].elts if whole else []
            return parts[above.elts.index(value)] if len(parts) == len(above.elts) else None
        return above.targets[0] if isinstance(above, ast.Assign) and len(above.targets) == 1 else None

    def _named(self, targets: list[ast.expr], axes: list[tuple[str, int]]) -> bool:
        """Remember names that stand for extents; return False if one of them is assigned elsewhere too."""
        stored = [n.id for n in self.source.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        names = [target.id for target in targets if isinstance(target, ast.Name) and stored.count(target.id) == 1]
        if len(names) != len(targets) or len(names) != len(axes):
            return False
        self.shape_names.update(zip(names, axes, strict=True))
        return True

    # Axes

    def _axes(self, name: str) -> tuple[int | None, ...]:
        """Return which index selects along each axis of a parameter; an axis with more than one meaning is used whole."""
        accesses = self.accesses[name]
        if name in self.escaped or not accesses:
            return ()
        found: list[int | None] = []
        for axis in range(max(len(access) for access in accesses)):
            numbers = {self._number(access[axis]) if axis < len(access) else None for access in accesses}
            found.append(numbers.pop() if len(numbers) == 1 else None)
        return tuple(found)

    def _number(self, index: ast.expr) -> int | None:
        return self.numbers.get(index.id) if isinstance(index, ast.Name) else None

    def _selecting(self, name: str, axes: tuple[int | None, ...]) -> Iterator[ast.expr]:
        """Yield the uses of indices that select an element of a parameter along an axis bound to them."""
        for access in self.accesses[name]:
            for index, number in zip(access, axes, strict=False):
                if number is not None and self._number(index) == number:
                    yield index

    # Extents

    def _is_guard(self, node: ast.Name, bound: Mapping[str, tuple[int | None, ...]]) -> bool:
        """Tell whether an index is only compared with the extent of an axis that it selects: ``i < a.shape[0]``."""
        parent = self.parents[id(node)]
        if not isinstance(parent, ast.Compare) or len(parent.ops) != 1 or not isinstance(parent.ops[0], ast.Lt):
            return False
        if parent.left is not node:
            return False
        return self._bound_extent(parent.comparators[0], bound) == self.numbers[node.id]

    def _bound_extent(self, node: ast.expr, bound: Mapping[str, tuple[int | None, ...]]) -> int | None:
        """Return the index that selects along the axis whose extent an expression is."""
        place = self.shape_names.get(node.id) if isinstance(node, ast.Name) else None
        for shape, name, axis in self.shapes:
            if shape is node:
                place = (name, axis)
        if place is None or not 0 <= place[1] < len(bound[place[0]]):
            return None
        return bound[place[0]][place[1]]

    def _stray_shapes(self, bound: Mapping[str, tuple[int | None, ...]]) -> Iterator[tuple[int, ast.AST]]:
        """Yield the indices of bound axes whose extent is used otherwise than to guard that very index."""
        named = [n for n in self.source.nodes if isinstance(n, ast.Name) and n.id in self.shape_names]
        places: list[Any] = [shape for shape, *_ in self.shapes] + [n for n in named if isinstance(n.ctx, ast.Load)]
        for node in places:
            number = self._bound_extent(node, bound)
            parent: Any = self.parents[id(node)]
            guards = isinstance(parent, ast.Compare) and isinstance(parent.left, ast.Name)
            if number is not None and not (guards and self._is_guard(parent.left, bound)):
                yield number, node
        # A negative axis counts from a rank that the source does not tell.
        for shape, name, axis in [*self.shapes, *((None, *place) for place in self.shape_names.values())]:
            if axis < 0:
                yield from ((number, shape or self.source.tree) for number in bound[name] if number is not None)

    # Stores and loads

    def _stored(self, statements: list[ast.stmt]) -> set[str]:
        """Return the parameters of which each thread that runs these statements stores its own element."""
        found: set[str] = set()
        for statement in statements:
            if isinstance(statement, ast.Assign):
                found.update(filter(None, map(self._own, statement.targets)))
            elif isinstance(statement, ast.If):
                found |= self._stored(statement.body) & self._stored(statement.orelse)
            if any(isinstance(node, _ENDS) for node in ast.walk(statement)):
                break
        return found

    def _own(self, target: ast.expr) -> str | None:
        """Return the parameter whose element at the thread's indices an expression is."""
        if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
            return None
        indices = [part.id if isinstance(part, ast.Name) else None for part in elements_of(target.slice)]
        return target.value.id if indices == list(self.numbers) and target.value.id in self.accesses else None

    def _loaded(self, bound: Mapping[str, tuple[int | None, ...]]) -> Iterator[str]:
        ends = any(isinstance(node, _ENDS) for node in self.source.nodes)
        own = tuple(range(len(self.numbers)))
        for name, axes in bound.items():
            uses = [node for node in self.source.nodes if isinstance(node, ast.Name) and node.id == name]
            if axes == own and not ends and name not in self.source.written() and not any(map(self._is_optional, uses)):
                yield name

    def _is_optional(self, node: ast.AST) -> bool:
        """Tell whether some threads may pass an expression by, or come to it more than once."""
        above = self.parents.get(id(node))
        return above is not None and (isinstance(above, _CONDITIONAL) or self._is_optional(above))


def elements_of(index: ast.expr) -> list[ast.expr]:
    """Return the parts of an index, one for each axis."""
    return list(index.elts) if isinstance(index, ast.Tuple) else [index]


def moves_axes(source: FunctionSource, index: ast.expr) -> bool:
    """Tell whether an index is ``...`` or None, behind which places are no axes."""
    is_plain = isinstance(index, ast.Constant | ast.Name | ast.Attribute)
    return is_plain and any(source.fold(index) is shift for shift in (..., None))


def atomic_index(source: FunctionSource, node: ast.AST) -> list[ast.expr] | None:
    """Return the index of the element that an atomic operation is on, or None for anything else."""
    operation = atomic_operation(source, node)
    if operation is None or not isinstance(node, ast.Call):
        return None
    values = 2 if operation in ("cas", "compare_and_swap") else 1
    return [part for index in node.args[1:-values] for part in elements_of(index)]


def atomic_operation(source: FunctionSource, node: ast.AST) -> str | None:
    """Return which atomic operation a call is, or None for anything else."""
    static = source.resolve(node.func) if isinstance(node, ast.Call) else None
    intrinsic = None if static is None else intrinsic_of(static.value)
    return intrinsic.operation if intrinsic is not None and intrinsic.kind == "atomic" else None


def own_axis(source: FunctionSource, node: ast.BinOp) -> int | None:
    """Return the axis of a thread's index that is written as ``blockIdx.x * blockDim.x + threadIdx.x``, or None."""
    if not isinstance(node.op, ast.Add):
        return None
    sides = source.value_of(node.left), source.value_of(node.right)
    for product, thread in (sides, sides[::-1]):
        place = place_of(source, thread)
        if place is None or place.operation != "threadIdx":
            continue
        match product:
            case ast.BinOp(left, ast.Mult(), right):
                factors = [place_of(source, left), place_of(source, right)]
                if {f and (f.operation, f.axis) for f in factors} == {
                    ("blockIdx", place.axis),
                    ("blockDim", place.axis),
                }:
                    return place.axis
    return None


def apart_places(source: FunctionSource) -> set[tuple[str, int]]:
    """Return what a function asks of its thread's place, other than for the index that `own_axis` finds, each with its axis.

    These are ``threadIdx`` and ``blockIdx``. What names are given that nothing else reads does not count.
    """
    uses = [
        (node, found) for node, kind, _ in index_uses(source) if kind == "axis" and (found := place_of(source, node))
    ]
    asked = [(node, found) for node, found in uses if found.operation in ("threadIdx", "blockIdx")]
    if not asked:
        return set()
    seen: set[int] = set()
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and own_axis(source, node) is not None:
            seen.update(map(id, ast.walk(node)))
    named = [
        (name, part)
        for node in source.nodes
        if isinstance(node, ast.Assign) and len(node.targets) == 1
        for name, part in named_parts(node.targets[0], node.value)
        if not any(isinstance(n, ast.Call | ast.NamedExpr) for n in ast.walk(part))
    ]
    before = -1
    while before != (before := len(seen)):
        names = (
            n for n in source.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in seen
        )
        read = {n.id for n in names}
        for name, part in named:
            if name not in read:
                seen.update(map(id, ast.walk(part)))
    return {(found.operation, found.axis) for node, found in asked if id(node) not in seen}


def named_parts(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield names with what they are assigned."""
    match target, value:
        case ast.Name(name), _:
            yield name, value
        case ast.Tuple(targets), ast.Tuple(values) if len(targets) == len(values):
            for pair in zip(targets, values, strict=True):
                yield from named_parts(*pair)


def place_of(source: FunctionSource, node: ast.expr) -> Intrinsic | None:
    """Return what of a thread's place in its block and grid an expression is, or None."""
    static = source.resolve(source.value_of(node))
    found = None if static is None else intrinsic_of(static.value)
    return found if found is not None and found.kind == "axis" else None
