"""How far a kernel goes into its arrays whatever they hold, which says how long they must be; and what its threads clash on.

Only what is sure counts: that some thread of the launch comes to an element, since nothing that a launch does not decide leads
around it. What it decides are thread indices, extents, numbers passed by value, guards that compare these, and loops whose trips
are counted by them. Device functions are read where they are called. A launch over an array that is shorter would read or write
what is not the array's, and threads that change one element at once lose what others do: see `clashes`. Nothing is launched or
compiled here.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from numbridge.kernels.language.clashes import Clash, change_of, sharing
from numbridge.kernels.language.comparisons import INVERSE, MIRRORED
from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.language.index_boxes import Box, Operation, Span, Value, Variable, ends, moved, of_threads
from numbridge.kernels.language.index_values import Callees, Given, Memory, Values, grid_size
from numbridge.kernels.language.indexing import atomic_index, elements_of, moves_axes
from numbridge.kernels.language.kernel_syntax import ends_threads, leaves_by, may_raise
from numbridge.kernels.language.launch_sizes import (
    ONE,
    ZERO,
    Along,
    Extent,
    Known,
    Quotient,
    Size,
    are_positive,
    quotient,
)
from numbridge.kernels.language.source import FunctionSource, Program
from numbridge.kernels.language.waiting import is_ordered

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = ["Demand", "Reach", "reaches_of"]


@dataclass(frozen=True)
class Reach:
    """How far some thread of a launch is sure to go along one axis of a parameter.

    Attributes
    ----------
    array : str
        Which parameter; or which local variable, of local or shared memory; or which array from outside.
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
    most_axes : int, optional
        How many axes the array has at most, where it is read: an index into more of them is a view's, which reads nothing.
    extents : tuple of Size, optional
        Those of local or shared memory, or of a constant.
    is_constant : bool
        Whether it is an array from outside the kernel.
    """

    array: str
    axis: int
    least: Size
    needs: tuple[Size, ...]
    index: Size
    written: str
    text: str
    place: str
    by_all: bool
    most_axes: int | None = None
    extents: tuple[Size, ...] | None = None
    is_constant: bool = False

    @property
    def memory(self) -> str:
        """How messages call what is read or written; empty for a parameter."""
        if self.is_constant:
            return "array from outside"
        return "" if self.extents is None else "local or shared memory"

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What decides whether the axis is long enough, besides its length."""
        return self.least, *self.needs

    @property
    def spelling(self) -> str:
        """What a launch asks, as text."""
        return f"{(self.array, self.axis, self.extents, self.most_axes)} {self.least} {[*map(str, self.needs)]}"

    def is_along(self, axes: int) -> bool:
        """Tell whether an array of so many axes is read or written there."""
        return self.axis < axes and (self.most_axes is None or axes <= self.most_axes)

    def shape(self, known: Known) -> Any:
        """Return the array's extents in a launch."""
        if self.extents is None:
            return known.shape(self.array)
        extents = tuple(extent.value(known) for extent in self.extents)
        return None if None in extents else extents

    def missing(self, known: Known, is_shorter: Callable[[Any, Any], bool | None]) -> bool | None:
        """Tell whether an array is too short for a launch; None where symbolic extents do not tell.

        Parameters
        ----------
        known : Known
            The launch.
        is_shorter : callable
            Whether an extent is less than another, or None.
        """
        shape, least = self.shape(known), self.least.value(known)
        if shape is None or not self.is_along(len(shape)) or least is None:
            return False
        is_short = is_shorter(shape[self.axis], least)
        if is_short is False:
            return False
        comes = are_positive(self.needs, known, is_shorter)
        return comes if is_short or comes is False else None

    def refusal(self, known: Known, dims: Sequence[Any], way: str) -> str:
        """Return the end of the message about an array that is shorter; `way` is what to do."""
        takes = f"a launch over {tuple(dims)} takes {self.text}"
        least = self.least.value(known)
        if self.is_constant:
            way = "take a longer array, or launch fewer threads"
        elif self.extents is not None:
            way, blocks = self._memory_way(least), tuple(known.along("blockDim", axis) for axis in range(len(dims)))
            takes = takes if None in blocks else f"a launch over {tuple(dims)} in blocks of {blocks} takes {self.text}"
        if self.written:
            takes = f"{takes} with {self.written} = {self.index.value(known)}"
        elif self.by_all:
            takes = f"each thread of {takes}"
        broadcast = self.by_all and self.extents is None
        return (
            f"its shape is {tuple(self.shape(known))}, and {takes}, so axis {self.axis} must have {least} elements or more"
            f"{'; kernels do not broadcast' if broadcast else ''}: {way}\n  {self.place}"
        )

    def _memory_way(self, least: int) -> str:
        """Return what to do about local or shared memory of which an axis must have so many elements."""
        extent = (self.extents or (ONE,))[self.axis]
        if not extent.terms:
            return "make it larger, or launch smaller blocks"
        [(dynamic,), _], *_ = extent.terms
        size = dynamic.right.constant if isinstance(dynamic, Quotient) else 1
        return f"launch it with {least * size} bytes of shared memory or more, or in smaller blocks"


Demand = Reach | Clash  # what a launch has to keep to


def reaches_of(kernel: Kernel) -> tuple[Demand, ...]:
    """Return how far threads of a kernel are sure to go, with the globals as they are now: what is furthest for each axis.

    And what they clash on. A kernel that checks its indices goes nowhere that it does not look at first.
    """
    source: FunctionSource = kernel.source
    found = source.found("reaches", lambda: _reaches_in(source), Dependency.is_unchanged)
    return tuple(one for one in found if isinstance(one, Clash)) if kernel.checks_bounds else found


def _reaches_in(source: FunctionSource) -> tuple[Demand, ...]:
    program = Program(source)
    if _may_raise(program):
        return ()
    read = _Read(of_threads(source.index_rank))
    values = Values(source, Callees(program), Given({name: name for name in source.parameters}, {}, {}))
    _Reading(values, read).walk(source.tree.body, Box(read.threads, {}, ()))
    furthest: list[Reach] = []
    for reach in read.found:
        if not any(_implies(other, reach) for other in furthest):
            furthest = [other for other in furthest if not _implies(reach, other)]
            furthest.append(reach)
    return *furthest, *(() if read.clashes and is_ordered(program) else dict.fromkeys(read.clashes))


def _implies(one: Reach, other: Reach) -> bool:
    """Tell whether an axis that is long enough for one way to reach it is for another."""
    what = [(reach.array, reach.axis, reach.extents) for reach in (one, other)]
    if what[0] != what[1] or not {*one.needs} <= {*other.needs}:
        return False
    if one.most_axes is not None and (other.most_axes is None or one.most_axes < other.most_axes):
        return False
    return (one.least - other.least).is_never_negative


def _may_raise(program: Program) -> bool:
    """Tell whether a function that the kernel calls may end a thread."""
    called = [function for function in program.sources if function is not program.root]
    functions = (*called, *program.compiled_sources())
    return any(function is None or any(map(may_raise, function.nodes)) for function in functions)


_LEAVES = ast.Return | ast.Break | ast.Continue


@dataclass
class _Read:
    """What the reading of a kernel and that of the functions which it calls share.

    Attributes
    ----------
    threads : mapping of Variable to Span
        Where the indices of all threads run.
    found : list of Reach
        What was found.
    clashes : list of Clash
        Likewise.
    turns : dict of Variable to Variable
        The variables of loops over the grid, or a block, whose trips threads make by turns, with what tells each its own.
    loops : iterator of int
        Numbers of the loops.
    """

    threads: Mapping[Variable, Span]
    found: list[Reach] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    turns: dict[Variable, Variable] = field(default_factory=dict)
    loops: Iterator[int] = field(default_factory=itertools.count)


class _Reading:
    """One reading of where threads of a kernel are sure to come: its own text, or that of a function that it calls."""

    def __init__(self, values: Values, read: _Read) -> None:
        self.values, self.read, self.source = values, read, values.source

    def walk(self, body: Sequence[ast.stmt], context: Box) -> Box | None:
        """Read statements that all threads of a context come to; return the context of those that go on, or None."""
        for statement in body:
            after = self._statement(statement, context)
            if after is None:
                return None
            context = after
        return context

    def _statement(self, node: ast.stmt, context: Box) -> Box | None:
        match node:
            case ast.If(test, body, orelse):
                return self._branch(self._tested(test, context), context, body, orelse)
            case ast.For():
                self._expression(node.iter, context)
                self._loop(node, context)
                return None if ends_threads(node) else context
            case ast.While(test=test):
                self._tested(test, context)
                name = self.values.counting.get(id(node), "")
                if name in context.names:
                    self._while(node, name, context)
                    context = self.values.behind(node, context)
                return None if ends_threads(node) else context
            case ast.Return(value):
                if value is not None:
                    self._expression(value, context)
                return None
            case ast.Break() | ast.Continue() | ast.Assert() | ast.Raise():
                return None
        for part in ast.iter_child_nodes(node):
            self._expression(part, context)
        if ends_threads(node):
            return None
        self._changed(node, context)
        match node:
            case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value):
                return self.values.assigned(target, value, context)
        return context

    def _branch(
        self,
        sides: tuple[Box | None, Box | None],
        context: Box,
        body: Sequence[ast.stmt],
        orelse: Sequence[ast.stmt],
    ) -> Box | None:
        """Read both sides of a branch, each where it is known who takes it."""
        gone = []
        for side, part in zip(sides, (body, orelse), strict=True):
            if side is not None:
                self.walk(part, side)
            gone.append(leaves_by(part, _LEAVES))
        if not any(gone):
            return context
        # Those go on who take the other side, if this one ends for all who take it.
        for here, part, there, leaves in zip(gone, (body, orelse), sides[::-1], gone[::-1], strict=True):
            if here and not leaves and there is not None and isinstance(part[-1], _LEAVES | ast.Raise):
                return replace(there, names=context.names)
        return None

    def _loop(self, node: ast.For, context: Box) -> None:
        """Read a loop's body, if the launch decides its trips, and all of them are made."""
        if leaves_by(node.body, ast.Break):
            return
        if items := self._items(node.iter):
            self._over_items(node, items, context)
            return
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        within = (n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name) and n.id == name)
        if not name or name in context.names or any(isinstance(n.ctx, ast.Store) for n in within):
            return
        match node.iter:
            case ast.Call(func, [_, *_] as arguments, []) if self.values.is_builtin(func, range):
                self._trips(node.body, name, [self.values.value(argument, context) for argument in arguments], context)

    def _items(self, node: ast.expr) -> list[ast.expr]:
        """Return what a loop over tuples that are written out goes through, or nothing."""
        match node:
            case ast.Tuple(parts):
                return parts
            case ast.Call(func, [ast.Tuple(parts)], []) if self.values.is_builtin(func, enumerate):
                return [ast.Tuple([ast.Constant(k), part], ast.Load()) for k, part in enumerate(parts)]
            case ast.Call(func, [*tuples], []) if self.values.is_builtin(func, zip):
                written = [part.elts for part in tuples if isinstance(part, ast.Tuple)]
                if len(written) == len(tuples):
                    return [ast.Tuple([*parts], ast.Load()) for parts in zip(*written, strict=False)]
        return []

    def _over_items(self, node: ast.For, items: Sequence[ast.expr], context: Box) -> None:
        """Read the trips of a loop over tuples, each with what its variables stand for."""
        before = dict(self.values.given), dict(self.values.memory)
        for item in items:
            self.walk(node.body, self.values.assigned(node.target, item, context))
            self.values.given, self.values.memory = dict(before[0]), dict(before[1])

    def _while(self, node: ast.While, name: str, context: Box) -> None:
        """Read the body of a loop that counts as ``range`` does."""
        match node.test, node.body[-1]:
            case ast.Compare(left, [operation], [right]), ast.AugAssign(_, by, step):
                is_before = isinstance(left, ast.Name) and left.id == name
                test = type(operation) if is_before else MIRRORED.get(type(operation))
                stop = self.values.value(right if is_before else left, context)
                moves = self.values.made(
                    "+" if isinstance(by, ast.Add) else "-", ZERO, self.values.value(step, context), context
                )
                if test in (ast.LtE, ast.GtE):
                    stop = self.values.made("+" if test is ast.LtE else "-", stop, ONE, context)
                is_down = isinstance(moves, Size) and (-moves).is_never_negative
                if test in ((ast.Gt, ast.GtE) if is_down else (ast.Lt, ast.LtE)):
                    self._trips(node.body[:-1], name, [context.names[name], stop, moves], context)

    def _trips(self, body: Sequence[ast.stmt], name: str, values: Sequence[Value | None], context: Box) -> None:
        """Read the trips of a loop over ``range(*values)``."""
        variable = Variable("loop", next(self.read.loops))
        trips = self._over(values, context, variable)
        if trips is not None:
            self.walk(body, replace(trips, names={**context.names, name: variable}))

    def _over(self, values: Sequence[Value | None], context: Box, variable: Variable) -> Box | None:
        """Return what is known in a loop over ``range(*values)``, or None."""
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        match known:
            case [Variable("own" | "threadIdx") as own, Size() as stop, Size() as step] if step == _stride(own):
                return self._strided(own, stop, context, variable)
            case [stop]:
                return context.within(variable, ZERO, stop)
            case [start, stop] | [start, stop, Size((), 1)]:
                return context.within(variable, start, stop)
            case [start, stop, Size((), -1)]:
                return context.within(variable, Operation("+", stop, ONE), Operation("+", start, ONE))
            case [Size() as start, Size() as stop, Size((), by)] if by:
                trips = quotient((stop - start if by > 0 else start - stop) - 1, Size((), abs(by)))
                last = start + trips * Size((), by)
                return context.over(variable, Span(*((start, last) if by > 0 else (last, start)), is_dense=False))
        return None

    def _strided(self, own: Variable, stop: Size, context: Box, variable: Variable) -> Box | None:
        """Return what is known in a loop that goes over the grid or block, whose threads together make all trips."""
        if own not in context.spans or context.spans[own] != self.read.threads[own]:
            return None
        # None of them has its own index in each of these trips; and where only some threads of the grid, or of the block, run,
        # some are not made.
        needs = (*context.needs, Size.of(Along("dim", own.number)) - _stride(own) + 1)
        self.read.turns[variable] = own
        return replace(context.without(own).over(variable, Span(ZERO, stop - 1)), needs=needs)

    # What is evaluated

    def _tested(self, test: ast.expr, context: Box) -> tuple[Box | None, Box | None]:
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

    def _joined(self, operation: ast.boolop, parts: Sequence[ast.expr], context: Box) -> tuple[Box | None, Box | None]:
        """Read conditions that are joined: each is come to where those before it did not decide."""
        side = 0 if isinstance(operation, ast.And) else 1
        on: Box | None = context
        for part in parts:
            if on is None:
                break
            on = self._tested(part, on)[side]
        return (on, None) if side == 0 else (None, on)

    def _compared(
        self, left: ast.expr, operations: Sequence[ast.cmpop], rights: Sequence[ast.expr], context: Box
    ) -> tuple[Box | None, Box | None]:
        self._expression(left, context)
        on: Box | None = context
        for first, operation, second in zip((left, *rights), operations, rights, strict=False):
            if on is None:
                break
            self._expression(second, on)
            on = self._where(first, type(operation), second, on)
        otherwise = INVERSE.get(type(operations[0])) if len(operations) == 1 else None
        return on, None if otherwise is None else self._where(left, otherwise, rights[0], context)

    def _where(self, left: ast.expr, operation: type[ast.cmpop], right: ast.expr, context: Box) -> Box | None:
        sides = self.values.value(left, context), self.values.value(right, context)
        return None if sides[0] is None or sides[1] is None else context.where(sides[0], operation, sides[1])

    def _expression(self, node: ast.AST, context: Box) -> None:
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
            case ast.Subscript():
                self._indexed(node, context)
            case ast.Call(args=[ast.Name(name), *_]):
                index = atomic_index(self.source, node)
                if index is not None:
                    self._reached(node, name, index, context)
        for child in ast.iter_child_nodes(node):
            self._expression(child, context)
        called = self.values.called(node, context) if isinstance(node, ast.Call) else None
        if called is not None:
            inside, begins = called
            _Reading(inside, self.read).walk(inside.source.tree.body, begins)

    def _indexed(self, node: ast.Subscript, context: Box) -> None:
        """Read an element, also one of a row, as in ``x[i][j]``; or a view, of which nothing is read."""
        found = self._element(node)
        if found is not None:
            name, index = found
            self._reached(node, name, index, context, len(index) if isinstance(node.ctx, ast.Load) else None)

    def _element(self, node: ast.Subscript) -> tuple[str, list[ast.expr]] | None:
        """Return the array that an element is of, and its index; None for a view that is not indexed from the first axis on."""
        index, array, is_read = elements_of(node.slice), node.value, isinstance(node.ctx, ast.Load)
        moves = any(isinstance(part, ast.Slice) or moves_axes(self.source, part) for part in index) and is_read
        while isinstance(array, ast.Subscript) and not moves:
            before = elements_of(array.slice)
            moves = any(isinstance(part, ast.Slice) or moves_axes(self.source, part) for part in before)
            index, array = [*before, *index], array.value
        return (array.id, index) if isinstance(array, ast.Name) and not moves else None

    def _changed(self, node: ast.stmt, context: Box) -> None:
        """Read a statement that changes an element as it finds it."""
        change = change_of(node, self.values.is_builtin)
        found = None if change is None else self._element_of(change.element)
        if change is None or found is None:
            return
        name, index, meant = found
        memory = meant if isinstance(meant, Memory) else None
        array = meant if memory is None else memory.name if memory.is_shared else None
        values = [value for part in index if (value := self.values.value(part, context)) is not None]
        if not isinstance(array, str) or len(values) < len(index):
            return
        is_whole = isinstance(change.element, ast.Name)
        by = None if change.by is None else [*self._values_in(change.by, context)]
        text = self._text(name, index) if index or not is_whole else self.source.labels.get(name, name)
        said = text, change.way(self.source.labels), self.source.excerpt(node)
        extents = None if memory is None else memory.extents
        for axis, needs in sharing(values, by, context, self.read.turns, is_shared=memory is not None):
            every = tuple(dict.fromkeys((*context.all_needs(), *needs)))
            shape = len(index) + 1 if is_whole else 0, extents
            self.read.clashes.append(Clash(array, memory is not None, axis, every, *said, *shape))

    def _element_of(self, node: ast.Subscript | ast.Name) -> tuple[str, list[ast.expr], str | Memory | None] | None:
        """Return the name and index of what is changed, and the parameter or the memory that it is of."""
        if isinstance(node, ast.Name):
            whole = self.values.changed_whole(node.id)
            if not isinstance(whole, ast.Subscript):
                return node.id, [], whole
            node = whole
        found = self._element(node)
        if found is None:
            return None
        meant = self.values.memory.get(found[0]) or self.values.given.get(found[0])
        return *found, meant

    def _text(self, name: str, index: Sequence[ast.expr]) -> str:
        """Return an element as it is written."""
        return f"{self.source.labels.get(name, name)}[{', '.join(map(ast.unparse, index)) or '()'}]"

    def _values_in(self, node: ast.expr, context: Box) -> Iterator[Value]:
        """Yield what is known of the parts of an expression, and of what names in it are assigned, each name once."""
        waiting, seen = [node], set[str]()
        while waiting:
            for part in ast.walk(waiting.pop()):
                value = self.values.value(part, context) if isinstance(part, ast.expr) else None
                if value is not None:
                    yield value
                elif isinstance(part, ast.Name) and part.id not in seen and part.id in self.values.meant:
                    seen.add(part.id)
                    waiting.append(self.values.meant[part.id])

    def _reached(
        self, node: ast.expr, name: str, index: Sequence[ast.expr], context: Box, most_axes: int | None = None
    ) -> None:
        memory = self.values.memory.get(name)
        array, extents = (self.values.given.get(name), None) if memory is None else (memory.name, memory.extents)
        if array is None:
            return
        text = self._text(name, index)
        place = self.source.excerpt(node)
        by_all = context.spans == self.read.threads and not context.needs
        for axis, part in enumerate(index):
            if moves_axes(self.source, part) or (extents is not None and axis >= len(extents)):
                return
            value = self.values.value(part, context)
            known = None if value is None else ends(value, context.spans)
            if value is None or known is None:
                continue
            own = moved(value)
            is_plain = by_all and own is not None and not own[2].terms and (own[0] is None or own[0].kind == "own")
            is_constant = isinstance(value, Size) and not value.terms
            there = "" if is_plain or is_constant else ast.unparse(part)
            length = Size.of(Extent(array, axis)) if extents is None else extents[axis]
            ways = [(known.greatest, known.greatest + 1)]
            # What is negative counts from the end. Guards are not read for that: where they are right, it does not come to it.
            ways += [(known.least, -known.least)] if not known.least.has_choice else []
            for furthest, least in ways:
                if not (length - least).is_never_negative:
                    far = array, axis, least, context.all_needs(), furthest, there, text, place, by_all
                    is_constant = memory is not None and memory.is_constant
                    self.read.found.append(Reach(*far, most_axes, extents, is_constant))


def _stride(variable: Variable) -> Size:
    """Return how many threads of the grid, or of a block, a thread's index or place is one of."""
    axis = variable.number
    return grid_size(axis) if variable.kind == "own" else Size.of(Along("blockDim", axis))
