"""Which indices a launch on the CPU runs a kernel's body for, where the kernel decides by its thread's index.

A kernel often begins with a test of its thread's index, since on CUDA more threads run than were asked for: ``if i < n:`` around
all that it does, or ``if i >= n: return``. Where the test compares the last index with what all threads of a row share, those
that pass it stand side by side. The loop around the body then goes from the first of them to the last, and LLVM is promised that
they pass: what the guard would make of every store is a masked one, which some machines are slow at.

Or it is a loop over the grid, ``for i in range(cuda.grid(1), n, cuda.gridsize(1))``, in which a thread's trips lie far apart in
memory. The loop is taken out of the body then, which becomes that of one trip, and neighbouring threads make the same trip one
after another. Threads are not ordered among themselves, so they may, and every thread's own trips keep their order. So are loops
in which the threads of a block take turns, ``for i in range(cuda.threadIdx.x, n, cuda.blockDim.x)``, or all blocks do.

Where threads are told their block, as ``_nb_k0``, and their place in it, as ``_nb_t0``, a row is what they have of it: the loop
around the body then runs block by block.

This module reads a kernel's rewritten tree, and compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from numbridge.kernels.cpu_backend.lanes import stored
from numbridge.kernels.cpu_backend.totals import can_add_up, constant_index
from numbridge.kernels.language.comparisons import INVERSE, MIRRORED
from numbridge.kernels.language.parsing import parsed_expression
from numbridge.kernels.parameter_types import ArrayType, ParameterType, is_signed

__all__ = ["EVERYWHERE", "ActiveRange", "IndexReading", "Stride", "read_indices"]

# A thread's index, and sums of few numbers as small as extents, are far from where 64 bits end.
_SMALL, _FAR = 1 << 31, 1 << 62
_FEW = 1 << 16  # times what is small is far from there, too
_WORD = 4  # bytes; what has no more is small


@dataclass(frozen=True)
class Stride:
    """A loop over the grid that is taken out of the body.

    Attributes
    ----------
    axis : int
        The thread index that it starts from.
    start, stop, step : str
        What is added to that index to begin with, and the rest of the range.
    in_block : bool
        Whether the threads of a block take turns. The block stays the same in all trips then.
    """

    axis: int
    start: str
    stop: str
    step: str
    in_block: bool = False


@dataclass(frozen=True)
class ActiveRange:
    """For which indices there is anything to do: those of some rows, from a start to a stop along the last index.

    Without any of these, it is all indices. The expressions name the kernel's parameters and hidden parameters.

    Attributes
    ----------
    rows : tuple of str
        What must hold for a row, or for all threads where there is one index.
    starts : tuple of str
        Last indices of which all are at most that of the first such thread.
    stops : tuple of str
        Last indices that are all greater than that of the last such thread.
    promises : tuple of str
        What holds for such a thread.
    sizes : tuple of (str, str)
        Expressions for arrays' numbers of elements, in what Numba compiles and in the promises.
    strides : tuple of Stride
        Loops over the grid that are taken out of the body, the outermost first.
    """

    rows: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    promises: tuple[str, ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
    strides: tuple[Stride, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Any]) -> ActiveRange:
        """Return that of which `dataclasses.astuple` has made these parts."""
        rows, starts, stops, promises, sizes, strides = parts
        return cls(rows, starts, stops, promises, sizes, tuple(Stride(*stride) for stride in strides))


EVERYWHERE = ActiveRange()


def read_indices(
    tree: ast.FunctionDef,
    rank: int,
    parameters: Sequence[ParameterType],
    taken: Collection[str],
    *,
    may_raise: bool = False,
) -> IndexReading:
    """Return what a kernel's text says of its thread's indices.

    Parameters
    ----------
    tree : ast.FunctionDef
        The kernel, as `rewriting` writes it for the CPU. Loops over the grid are taken out of it.
    rank : int
        How many thread indices it takes.
    parameters : sequence of ParameterType
        The kernel's.
    taken : collection of str
        Names of functions and globals in its text, which are no builtins there.
    may_raise : bool
        Whether something in the kernel or its functions may end a launch, which then adds nothing up: see `totals`.
    """
    reading = IndexReading(tree, rank, parameters, taken, may_raise)
    if rank:
        reading.read(tree.body)
    return reading


@dataclass(frozen=True)
class _Number:
    """An integer that all threads of a row share, and whether it is small."""

    node: ast.expr
    small: bool


@dataclass
class IndexReading:
    """One reading of a kernel's text: its guards and loops over the grid, and what its first variables are.

    Attributes
    ----------
    index : str
        The last thread index; empty if there is none.
    """

    tree: ast.FunctionDef
    rank: int
    parameters: Sequence[ParameterType]
    taken: Collection[str]
    may_raise: bool
    values: dict[str, ast.expr] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    promises: list[str] = field(default_factory=list)
    sizes: dict[str, str] = field(default_factory=dict)
    strides: list[Stride] = field(default_factory=list)
    # What variables were assigned last, the thread indices that they depend on, and those that conditions ask for
    latest: dict[str, ast.expr] = field(default_factory=dict)
    depends: dict[str, set[str]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    # Blocks and places that are others in each trip of a loop that has been taken out
    moved: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stored = stored = [
            n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
        ]
        given = {argument.arg for argument in self.tree.args.args}
        self.local = {*stored} - given
        self.once = {name for name in self.local if stored.count(name) == 1}
        self.indices = [f"_nb_i{axis}" for axis in range(self.rank)]
        self.index = self.indices[-1] if self.indices else ""
        hidden = given - {p.name for p in self.parameters}
        self.depends |= {name: {name} for name in {*self.indices} | {n for n in hidden if n[4] in "kt"}}
        kept = [p for p in self.parameters if p.name not in stored]
        self.arrays = {p.name: p for p in kept if isinstance(p, ArrayType)}
        self.numbers = {p.name: p.scalar.itemsize <= _WORD for p in kept if is_signed(p)}
        # What differs within a row, too, if it is told, and the index of which it is 0
        self._place, self._start = f"_nb_t{self.rank - 1}", f"_nb_k{self.rank - 1} * _nb_b{self.rank - 1}"
        self.numbers |= dict.fromkeys(hidden - {self.index, self._place}, True)

    def active(self) -> ActiveRange:
        """Return for which indices there is anything to do: for all, if the kernel's text does not say."""
        if not self.promises:
            return EVERYWHERE
        found = (self.rows, self.starts, self.stops, self.promises)
        rows, starts, stops, promises = (tuple(dict.fromkeys(part)) for part in found)
        return ActiveRange(rows, starts, stops, promises, tuple(self.sizes.items()), tuple(self.strides))

    def read(self, body: list[ast.stmt]) -> None:
        """Read what stands before a guard or a loop over the grid, and what that is around."""
        position = 0
        while position < len(body):
            node, is_last = body[position], all(map(_is_nothing, body[position + 1 :]))
            match node:
                case ast.Assign([ast.Name() | ast.Tuple() as target]) if self._assign(target, node.value):
                    pass
                case ast.Pass() | ast.Expr(ast.Constant()):
                    pass
                case ast.If(test=test, body=[ast.Return(None)], orelse=[]):
                    self._guard(test, holds=False)
                    if self._acts(test):
                        return
                case ast.If(test=test, orelse=[]) if is_last:
                    self._guard(test, holds=True)
                    if not self._acts(test):
                        self.read(node.body)
                    return
                case ast.For() | ast.While() if (trip := self._trip(node, body[position + 1 :])) is not None:
                    body[position:] = trip
                    ast.fix_missing_locations(self.tree)
                    continue
                case _:
                    return
            position += 1

    def _trip(self, loop: ast.For | ast.While, after: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        """Return what a loop over the grid does in one trip, or None if it is no such loop.

        What it sums up, and is added to an element `after` it, each trip adds by itself.
        """
        sums = self._sums(loop, after)
        if sums is None:
            return None
        match loop:
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), [start, stop, step], []), body, []):
                if "range" in self.taken or name not in self.once:
                    return None
                begin = start
            case ast.While(
                ast.Compare(ast.Name(name), [ast.Lt()], [stop]),
                [*body, ast.AugAssign(ast.Name(counted), ast.Add(), step)],
                [],
            ) if name == counted and name in self.latest and self.stored.count(name) == 2:  # there, and before the loop
                begin = self.latest[name]
            case _:
                return None
        # What goes on with the next trip leaves out what ends this one.
        has_end = bool(sums) or isinstance(loop, ast.While)
        own = None if has_end and _goes_on(body) else self._stride(name, begin, stop, step, body, {*sums})
        if own is None:
            return None
        self.once.add(name)
        first = ast.Assign([ast.Name(name, ast.Store())], ast.Name(own, ast.Load()))
        self.depends[name] = {own}
        made = [first, *(ast.Assign([ast.Name(s, ast.Store())], copy.deepcopy(zero)) for s, zero in sums.items())]
        return [
            *(ast.copy_location(part, loop) for part in made),
            *map(_OneTrip().visit, body),
            *(after if sums else ()),
        ]

    def _sums(self, loop: ast.For | ast.While, after: Sequence[ast.stmt]) -> dict[str, ast.expr] | None:
        """Return the variables that a loop only adds to and that are added to elements after it, with the zeros that they were.

        None if anything else is done after it. An element is one that no thread sees before the launch ends, see `totals`. Only
        floats are summed up, since every trip rounds to the type of the element. And only where there is a total to add to: what
        each trip added to the element itself would be rounded by each, and seen by trips that read the element by another name.
        """
        sums: dict[str, ast.expr] = {}
        loads = Counter(n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        within = Counter(n.id for part in after for n in ast.walk(part) if isinstance(n, ast.Name))
        for node in after:
            match node:
                case ast.Expr(
                    ast.Call(ast.Name("_nb_atomic_add" | "_nb_atomic_sub"), [ast.Name(array), place, ast.Name(s)])
                ):
                    zero, known = self.latest.get(s), self.arrays.get(array)
                    if known is None or not can_add_up(known) or loads[array] != within[array]:
                        return None
                    index = constant_index(place)
                    if self.may_raise or not known.scalar.is_float or index is None or len(index) != known.ndim:
                        return None
                    if loads[s] != 1 or zero is None or not _is_zero(zero):
                        return None
                    sums[s] = zero
                case _ if not _is_nothing(node):
                    return None
        changed = Counter(self.stored)
        for s in sums:
            # It is set once, before the loop, and added to in it.
            added_to = (
                n for n in ast.walk(loop) if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add | ast.Sub)
            )
            if changed[s] != 1 + sum(isinstance(n.target, ast.Name) and n.target.id == s for n in added_to):
                return None
        return sums

    def _stride(
        self, name: str, start: ast.expr, stop: ast.expr, step: ast.expr, body: Sequence[ast.stmt], sums: set[str]
    ) -> str | None:
        """Keep a loop as one that is taken out of the body, and return what its variable is in a trip; None if it cannot be."""
        end = self.number(stop)
        if end is None or not _is_of_one_trip(body, sums):
            return None
        others = _names(*body) - {name}
        for axis, index in enumerate(self.indices):
            block, place, size, grid = (f"_nb_{letter}{axis}" for letter in "ktbg")
            for own, by, moved in (
                (index, [size, grid], {block, place}),
                (block, [grid], {block}),
                (place, [size], {place}),
            ):
                added = self.added_to(_is_name(own), start)
                if added is None or not all(map(_is_from_zero, added)) or not self._is_product(step, by):
                    continue
                changed = {index, *moved}
                # What else depends on what changes is not what it would be of that of each trip.
                if (
                    changed & self.asked
                    or moved & self.moved
                    or any(changed & self.depends.get(o, set()) for o in others)
                ):
                    return None
                in_block = own == place
                # Where it is within a row, what threads of a row share may end it.
                if self._indices_in(end.node) and not (in_block and index == self.index):
                    return None
                first, last = str(sum(ast.literal_eval(part) for part in added)), ast.unparse(end.node)
                if own == block:
                    first, last = f"{first} * {size}", f"({last}) * {size}"
                self.strides.append(Stride(axis, first, last, size if in_block else f"{size} * {grid}", in_block))
                self.moved |= moved
                self._condition(ast.Name(own, ast.Load()), ast.Lt, end.node)
                return own
        return None

    def _is_product(self, node: ast.expr, factors: Sequence[str]) -> bool:
        """Tell whether an expression is a product of names."""
        while isinstance(node, ast.Name) and node.id in self.values:
            node = self.values[node.id]
        parts = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else [node]
        found = [self.number(part) for part in parts]
        return sorted(ast.unparse(f.node) for f in found if f is not None) == sorted(factors)

    def _indices_in(self, node: ast.expr) -> set[str]:
        """Return the thread indices that an expression depends on."""
        return set().union(*(self.depends.get(name, ()) for name in _names(node)))

    def _assign(self, target: ast.Name | ast.Tuple, value: ast.expr) -> bool:
        """Keep what names are, and tell whether that has no effect."""
        if not self._is_pure(value):
            return False
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        parts: Sequence[ast.expr] = value.elts if isinstance(value, ast.Tuple) else [value]
        match value:
            case ast.Attribute(ast.Name(name), "shape") if name in self.arrays and isinstance(target, ast.Tuple):
                parts = [ast.Subscript(value, ast.Constant(axis), ast.Load()) for axis in range(len(targets))]
        unknown, apart = self.local - self.values.keys(), len(targets) == len(parts)
        for named, part in zip(targets, parts if apart else [value] * len(targets), strict=True):
            if not isinstance(named, ast.Name):
                return False
            self.depends.setdefault(named.id, set()).update(self._indices_in(part))
            if apart:
                self.latest[named.id] = part
            if apart and named.id in self.once and unknown.isdisjoint(_names(part)):
                self.values[named.id] = part
        return True

    def _is_pure(self, node: ast.expr) -> bool:
        """Tell whether an expression surely has no effect: arithmetic with numbers, and extents of arrays."""
        match node:
            case ast.Name() | ast.Constant():
                return True
            case ast.BinOp(left, _, right):
                return self._is_pure(left) and self._is_pure(right)
            case ast.UnaryOp(_, inner):
                return self._is_pure(inner)
            case ast.Tuple(parts) | ast.BoolOp(values=parts):
                return all(map(self._is_pure, parts))
            case ast.Compare(left, _, rights):
                return all(map(self._is_pure, [left, *rights]))
            case ast.Call(ast.Name("_nb_float32" | "_nb_float64"), [argument], []):
                return self._is_pure(argument)
            case ast.Attribute(ast.Name(name), "shape" | "size"):
                return name in self.arrays
        return self.number(node) is not None

    def _acts(self, node: ast.expr) -> bool:
        """Tell whether an expression may have an effect, which it must have in every thread that comes by."""
        calls = (n for n in ast.walk(node) if isinstance(n, ast.Call | ast.NamedExpr))
        return not all(map(self._is_pure, calls))

    def _guard(self, test: ast.expr, *, holds: bool) -> None:
        """Take from a guard what must hold, or must not, for a thread to come by it."""
        # Each thread asks it once, whatever loop over the grid comes after it.
        self.asked |= self._indices_in(test) if self._is_pure(test) else {*self.indices}
        for left, op, right in self._conditions(test, holds=holds):
            self._condition(left, op, right)

    def _conditions(self, test: ast.expr, *, holds: bool) -> Iterator[tuple[ast.expr, type[ast.cmpop], ast.expr]]:
        """Yield comparisons that all hold where a test does, or does not, up to what may have an effect."""
        together = ast.And if holds else ast.Or
        match test:
            case ast.UnaryOp(ast.Not(), inner):
                yield from self._conditions(inner, holds=not holds)
            case ast.BoolOp(joined, parts) if isinstance(joined, together):
                for part in parts:
                    yield from self._conditions(part, holds=holds)
                    if self._acts(part):
                        return
            case ast.BinOp(left, ast.BitAnd() | ast.BitOr() as both, right) if isinstance(both, ast.BitAnd) is holds:
                # Both sides are asked, whatever the other one is.
                if not self._acts(test):
                    yield from self._conditions(left, holds=holds)
                    yield from self._conditions(right, holds=holds)
            case ast.Compare(left, ops, rights) if (holds or len(ops) == 1) and all(type(op) in INVERSE for op in ops):
                for first, op, second in zip([left, *rights], ops, rights, strict=False):
                    if self._acts(first) or self._acts(second):
                        return
                    yield first, type(op) if holds else INVERSE[type(op)], second

    def _condition(self, left: ast.expr, op: type[ast.cmpop], right: ast.expr) -> None:
        """Take in a comparison that holds for all threads that do anything."""
        number, other = self.number(left), self.number(right)
        if number is not None and other is not None:
            self.rows.append(_compared(number.node, op, other.node))
            self.promises.append(self.rows[-1])
            return
        if number is not None:
            left, op, other = right, MIRRORED[op], number
        shift = self.shifted(left, self.index)
        if shift is None or other is None or op is ast.NotEq:
            return
        bound, moved = self._bound(other), [f" - ({ast.unparse(part)})" for part in shift]
        least = "".join([bound, *moved])
        if op in (ast.Gt, ast.GtE, ast.Eq):
            self.starts.append(f"{least} + 1" if op is ast.Gt else least)
        if op in (ast.Lt, ast.LtE, ast.Eq):
            self.stops.append(least if op is ast.Lt else f"{least} + 1")
        self.promises.append(_compared(self._written(left), op, other.node))

    def _bound(self, number: _Number) -> str:
        """Return a number as text, no further from zero than what sums of small ones can be compared with."""
        text = ast.unparse(number.node)
        return text if number.small else f"_nb_min(_nb_max({text}, {-_FAR}), {_FAR})"

    def shifted(self, node: ast.expr, index: str) -> list[ast.expr] | None:
        """Return what is added to a thread index, or None if an expression is something else."""
        found = self.added_to(_is_name(index), node)
        if found is None and index == self.index:
            found = self.added_to(_is_name(self._place), node)
            if found is not None:
                found.append(ast.BinOp(ast.Constant(0), ast.Sub(), parsed_expression(self._start)))
        return found

    def added_to(self, is_first: Callable[[ast.expr], bool], node: ast.expr) -> list[ast.expr] | None:
        """Return what small numbers are added to an expression of a kind, or None if there is more to it."""
        if is_first(node):
            return []
        match node:
            case ast.Name(name) if name in self.values:
                return self.added_to(is_first, self.values[name])
            case ast.BinOp(left, ast.Add(), right):
                for one, other in ((left, right), (right, left)):
                    found, number = self.added_to(is_first, one), self.number(other)
                    if found is not None and number is not None and number.small:
                        return [*found, number.node]
            case ast.BinOp(left, ast.Sub(), right):
                found, number = self.added_to(is_first, left), self.number(right)
                if found is not None and number is not None and number.small:
                    # No negation, which makes of the least integer of few bits what it was.
                    return [*found, ast.BinOp(ast.Constant(0), ast.Sub(), number.node)]
        return None

    def _written(self, node: ast.expr) -> ast.expr:
        """Return an index with what is added to it, as the kernel writes it."""
        match node:
            case ast.Name(name) if name in self.values:
                return self._written(self.values[name])
            case ast.BinOp(left, op, right):
                return ast.BinOp(self._written(left), op, self._written(right))
        number = self.number(node)
        return node if number is None else number.node

    def number(self, node: ast.expr) -> _Number | None:
        """Return an integer that all threads of a row share, or None if an expression may be something else."""
        match node:
            case ast.Constant(int() as value) if type(value) is int and abs(value) < _FAR:
                return _Number(node, abs(value) < _SMALL)
            case ast.Name(name) if name in self.numbers:
                return _Number(node, self.numbers[name])
            case ast.Name(name) if name in self.values:
                return self.number(self.values[name])
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(int() as axis)):
                return self._extent(name, [axis])
            case ast.Call(ast.Name("len"), [ast.Name(name)], []) if "len" not in self.taken:
                return self._extent(name, [0])
            case ast.Attribute(ast.Name(name), "size") if name in self.arrays:
                found = self._extent(name, range(self.arrays[name].ndim))
                if found is not None:
                    self.sizes[f"{name}.size"] = ast.unparse(found.node)
                return found
            case ast.UnaryOp(ast.USub(), inner):
                number = self.number(inner)
                return None if number is None else _Number(ast.UnaryOp(node.op, number.node), number.small)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
                parts = self.number(left), self.number(right)
                if parts[0] is None or parts[1] is None:
                    return None
                made, small = ast.BinOp(parts[0].node, node.op, parts[1].node), parts[0].small and parts[1].small
                if isinstance(node.op, ast.Mult):
                    small = small and (ast.unparse(made) == self._start or any(map(_is_few, (made.left, made.right))))
                return _Number(made, small)
            case ast.BinOp(left, ast.FloorDiv(), ast.Constant(int() as divisor)) if divisor > 0:
                number = self.number(left)
                return None if number is None else _Number(ast.BinOp(number.node, node.op, node.right), number.small)
        return None

    def _extent(self, name: str, axes: Sequence[int]) -> _Number | None:
        """Return the product of extents of an array."""
        if name not in self.arrays or not all(0 <= axis < self.arrays[name].ndim for axis in axes):
            return None
        return _Number(parsed_expression(" * ".join(f"{name}.shape[{axis}]" for axis in axes) or "1"), True)


class _OneTrip(ast.NodeTransformer):
    """Makes what goes on with a loop's next trip end the body."""

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        """Return from the body."""
        return ast.copy_location(ast.Return(None), node)

    def visit_For(self, node: ast.For) -> ast.stmt:
        """Leave what goes on with a loop within."""
        return node

    def visit_While(self, node: ast.While) -> ast.stmt:
        """Leave what goes on with a loop within."""
        return node


def _names(*nodes: ast.AST) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def _goes_on(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Continue) for part in body for n in ast.walk(part))


def _is_of_one_trip(body: Sequence[ast.stmt], sums: set[str]) -> bool:
    """Tell whether a loop's body ends neither loop nor thread, and hands nothing on from one trip to the next but sums."""
    changed = {name for part in body for name in stored(part)}
    return _Trip(changed).block(body, sums, within=False) is not None


@dataclass(frozen=True)
class _Trip:
    """Finds which of the names that a trip changes have been assigned in it wherever they are read."""

    changed: set[str]

    def block(self, body: Sequence[ast.stmt], fresh: set[str], *, within: bool) -> set[str] | None:
        """Return the names that are surely assigned after a block, or None if it reads one before, or leaves the loop."""
        for node in body:
            after = self._statement(node, fresh, within=within)
            if after is None:
                return None
            fresh = after
        return fresh

    def _statement(self, node: ast.stmt, fresh: set[str], *, within: bool) -> set[str] | None:
        match node:
            case ast.Pass() | ast.Continue():
                return fresh
            case ast.Break():
                return fresh if within else None
            case ast.Assign([ast.Name() | ast.Tuple() | ast.Subscript() | ast.Attribute()]) | ast.Expr() | ast.Assert():
                if not self._reads(node, fresh):
                    return None
                return fresh | {*stored(node)}
            case ast.AugAssign(target):
                held = {target.id} if isinstance(target, ast.Name) else set()
                return fresh if self._reads(node, fresh) and not held & self.changed - fresh else None
            case ast.If(test, body, orelse):
                if not self._reads(test, fresh):
                    return None
                sides = [self.block(side, fresh, within=within) for side in (body, orelse)]
                return None if sides[0] is None or sides[1] is None else sides[0] & sides[1]
            case ast.For(ast.Name(name), head, body, []):
                if not self._reads(head, fresh) or self.block(body, fresh | {name}, within=True) is None:
                    return None
                return fresh
            case ast.While(head, body, []):
                if not self._reads(head, fresh) or self.block(body, fresh, within=True) is None:
                    return None
                return fresh
        return None

    def _reads(self, node: ast.AST, fresh: set[str]) -> bool:
        """Tell whether everything that is read has been assigned in this trip, or before all of them."""
        loads = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        return not loads & self.changed - fresh and not any(isinstance(n, ast.NamedExpr) for n in ast.walk(node))


def _is_zero(node: ast.expr) -> bool:
    match node:
        case ast.Call(ast.Name("_nb_float32" | "_nb_float64"), [inner], []):
            return _is_zero(inner)
    return isinstance(node, ast.Constant) and type(node.value) is float and node.value == 0


def _is_from_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 0


def _is_few(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) <= _FEW


def _is_name(name: str) -> Callable[[ast.expr], bool]:
    return lambda node: isinstance(node, ast.Name) and node.id == name


def _is_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Return) and node.value is None)


def _compared(left: ast.expr, op: type[ast.cmpop], right: ast.expr) -> str:
    return ast.unparse(ast.Compare(left, [op()], [right]))
