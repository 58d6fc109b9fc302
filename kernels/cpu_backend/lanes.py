"""Which statements of a kernel's body differ between neighbouring threads, so that several threads can run at once.

A thread with a loop is a chain of operations that wait for each other. The same trips of neighbouring threads are
independent, and their data often lie side by side: run together, one *lane* each, they are what SIMD instructions are for.
Control that is the same for all lanes runs once, and what differs between them runs in short loops over the lanes, of which
LLVM makes vectors. A loop that lanes leave at different times runs until the last has left it; the others wait. Threads are
not ordered among themselves, so their statements may interleave; every thread's own keep their order. This module reads
generated text, in which every name has one type and control flow is a handful of statements; `lane_code` and `lane_masks`
build the code.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from numbridge.kernels.cpu_backend.stack_runs import moves_stack, undoes

__all__ = [
    "ATOMIC",
    "FEW",
    "MOST",
    "REST",
    "Group",
    "Lanes",
    "NoLanesError",
    "has_stack",
    "is_break",
    "local_array_name",
    "needed_for",
    "range_start",
    "read_lanes",
    "read_names",
    "stored",
    "touched_arrays",
    "without_unread",
]

ATOMIC = ("_nb_add", "_nb_sub_", "_nb_atomic_")
"""How the names begin of what adds to memory, or exchanges something there."""
REST = "_nb_rest"
"""How the names of counters begin of loops that do what is left over, which is little: they are to be left as they are."""
_LOCAL_ARRAY, _FIELD = "_nb_local_array", "_nb_field"
# A loop of so few trips is unrolled by LLVM, which then finds vectors by itself.
_FEW_TRIPS = 16
# Of threads that read from memory that lies apart, which each does by itself, few run at once. Of others many do: vectors of
# several registers are several chains of operations, none of which waits for another, and read many neighbours in memory. FEW of
# them run where there are not so many.
MOST, FEW, _NARROW = 64, 16, 8
# LLVM takes long for long texts, and only many threads make up for that, several times over. The adjoint of a Runge-Kutta method
# of four stages has 400 to 1500 statements.
_LONG, _TOO_LONG = 400, 1600


class NoLanesError(Exception):
    """The text cannot run in lanes, or would gain nothing."""


@dataclass(frozen=True, eq=False)
class Group:
    """Statements that run for one lane after another."""

    body: tuple[ast.stmt, ...]


@dataclass(eq=False)
class Lanes:
    """What is known of a function's text.

    Attributes
    ----------
    tree : ast.FunctionDef
        The function.
    along : frozenset of str
        The parameters that are one more for every lane.
    arrays : frozenset of str
        Names of arrays that all threads share.
    private : frozenset of str
        Names of arrays of which every thread has its own.
    touched : frozenset of str
        Shared arrays that the function may write to.
    computes : callable
        Tells of a function, as the text calls it, whether it only computes.
    varying : set of str
        Names that may have another value in every lane.
    agreed : set of int
        The ids of branches that lanes take together where they agree.
    staggered : set of int
        The ids of loops that lanes leave at different times; those that have left wait for the others.
    forked : set of int
        The ids of branches in such loops of which the lanes of the one side wait for those of the other.
    kept : set of str
        Varying names that live longer than one group.
    steps : dict of str to (int or None)
        How much greater names are in the next lane; None is unknown.
    is_long : bool
        Whether the text is so long that only many lanes gain anything.
    """

    tree: ast.FunctionDef
    along: frozenset[str]
    arrays: frozenset[str]
    private: frozenset[str]
    touched: frozenset[str]
    computes: Callable[[ast.expr], bool]
    varying: set[str] = field(default_factory=set)
    agreed: set[int] = field(default_factory=set)
    staggered: set[int] = field(default_factory=set)
    forked: set[int] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    steps: dict[str, int | None] = field(default_factory=dict)
    is_long: bool = False

    def varies(self, node: ast.AST) -> bool:
        """Tell whether something may be another value in every lane, or do something for each."""
        return any(self._differs(inner) for inner in ast.walk(node))

    def _differs(self, node: ast.AST) -> bool:
        match node:
            case ast.Name(name):
                return name in self.varying
            case ast.Subscript(ctx=ast.Store()):
                return True
            case ast.Subscript(ast.Name(name)):
                return name in self.touched or name in self.private
            case ast.Call():
                return self.has_effect(node) and not moves_stack(node)
        return False

    def has_effect(self, call: ast.Call) -> bool:
        """Tell whether a call may do more than compute: it gets an array, or nobody here knows what it does."""
        if _makes_array(call):
            return False
        return bool(_handed(call) & (self.arrays | self.private)) or not self.computes(call.func)

    def changes_memory(self, node: ast.stmt) -> bool:
        """Tell whether a statement, or one in it, may write to an array."""
        return any(
            isinstance(inner.ctx, ast.Store) if isinstance(inner, ast.Subscript) else self.has_effect(inner)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Subscript | ast.Call)
        )

    def touches_memory(self, node: ast.stmt) -> bool:
        """Tell whether a statement, or one in it, may read or write an array that all threads share."""
        named = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        return bool(named & self.arrays) or self.changes_memory(node)

    def is_split(self, node: ast.stmt) -> bool:
        """Tell whether a compound statement runs once, around loops over lanes."""
        match node:
            case ast.If():
                return is_break(node) or id(node) in self.agreed | self.forked or not self.varies(node.test)
        return isinstance(node, ast.For | ast.While)

    def leaves_apart(self, loop: ast.For | ast.While) -> bool:
        """Tell whether some lanes may leave a loop before others."""
        head = loop.iter if isinstance(loop, ast.For) else loop.test
        return self.varies(head) or any(is_break(s) and self.varies(s.test) for s in loop.body)

    def parts(self, body: Sequence[ast.stmt]) -> Iterator[ast.stmt | Group]:
        """Yield a block in parts: statements that run once, and what runs for one lane after another."""
        waiting: list[ast.stmt] = []
        for node in body:
            shared = not self.varies(node)
            if shared and _defines_another(node, waiting) and not moves_stack(node):
                yield node
                continue
            once = shared or isinstance(node, ast.Return) or self.is_split(node)
            # A write to memory beside other work could keep LLVM from making vectors of that.
            alone = once or self.changes_memory(node)
            if waiting and alone:
                yield Group(tuple(waiting))
                waiting = []
            if once:
                yield node
            elif alone:
                yield Group((node,))
            else:
                waiting.append(node)
        if waiting:
            yield Group(tuple(waiting))

    def step(self, node: ast.expr) -> int | None:
        """Return how much greater an expression is in the next lane; None is unknown."""
        if not self.varies(node):
            return 0
        match node:
            case ast.Name(name):
                return 1 if name in self.along else self.steps.get(name)
            case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
                parts = self.step(left), self.step(right)
                if parts[0] is None or parts[1] is None:
                    return None
                return parts[0] + parts[1] if isinstance(op, ast.Add) else parts[0] - parts[1]
            case ast.Call(ast.Name("_nb_int64"), [argument]):
                return self.step(argument)
        return None

    def places(self, body: Sequence[ast.stmt]) -> set[str]:
        """Return the names by which statements index shared arrays that are one more in the next lane; all lanes know them."""
        parts: list[ast.expr] = []
        for inner in (part for node in body for part in ast.walk(node)):
            if isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name) and inner.value.id in self.arrays:
                parts += indices(inner)
        in_branches = {name for node in body if not isinstance(node, ast.Assign) for name in stored(node)}
        return {part.id for part in parts if isinstance(part, ast.Name) and self.step(part) == 1} - in_branches

    def width(self, is_float: Callable[[str], bool], is_serial: Callable[[ast.Call], bool], *, fastmath: bool) -> int:
        """Return how many threads run at once, or 0 if each by itself is as fast.

        Parameters
        ----------
        is_float : callable
            Tells whether a name is a floating-point number, or made of such.
        is_serial : callable
            Tells whether a call is of a function that takes one number at a time.
        fastmath : bool
            Whether LLVM may add up in any order.
        """
        return _Gain(self, is_float, is_serial, fastmath).width()


def read_lanes(
    tree: ast.FunctionDef,
    along: frozenset[str],
    arrays: frozenset[str],
    once: frozenset[str] | set[str],
    computes: Callable[[ast.expr], bool],
) -> Lanes:
    """Return what is known of a function's text.

    Parameters
    ----------
    tree : ast.FunctionDef
        The function; assignments of what nobody reads are taken out of it.
    along : frozenset of str
        The parameters that are one more for every lane.
    arrays : frozenset of str
        The parameters that are arrays.
    once : set of str
        Names that are assigned in one place and used after it, in the same block.
    computes : callable
        Tells of a function, as the text calls it, whether it only computes.

    Raises
    ------
    NoLanesError
        If the text is too long, or a thread may wait for what another one does after a loop.
    """
    nodes = list(ast.walk(tree))
    length = sum(isinstance(node, ast.stmt) for node in nodes)
    if length > _TOO_LONG:
        raise NoLanesError
    arrays |= {name for node in nodes if (name := _assigned_call(node, _FIELD)) is not None}
    private = frozenset(name for node in nodes if (name := local_array_name(node)) is not None)
    touched = touched_arrays(nodes, arrays)
    lanes = Lanes(tree, along, arrays, private, touched, computes, {*along}, is_long=length > _LONG)
    without_unread(lanes, tree.body, read_names(lanes, nodes))
    _Spread(lanes, once).run()
    # A stack moves for all lanes at once, and those that left early would take what others put there last.
    if any(_awaits(lanes, node) or has_stack(node) for node in nodes if id(node) in lanes.staggered):
        raise NoLanesError
    _Kept(lanes, once).run()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                lanes.steps[name] = lanes.step(value) if name in once else None
            case ast.For(ast.Name(name)) if id(node) in lanes.staggered:
                lanes.steps[name] = lanes.step(range_start(node))
    return lanes


def has_stack(node: ast.AST) -> bool:
    """Tell whether a statement, or one in it, moves a stack."""
    return any(map(moves_stack, ast.walk(node)))


def is_break(node: ast.stmt) -> TypeGuard[ast.If]:
    """Tell whether a statement leaves the loop around it, on a condition."""
    return isinstance(node, ast.If) and isinstance(node.body[0], ast.Break)


def range_start(loop: ast.For) -> ast.expr:
    """Return where a loop begins to count."""
    match loop.iter:
        case ast.Call(args=[start, _, *_]):
            return start
    return ast.Constant(0)


def indices(node: ast.Subscript) -> list[ast.expr]:
    """Return the parts of an index."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def needed_for(names: Collection[str], body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return those of some statements that assign names, with what they are computed from."""
    found, wanted = [], set(names)
    for node in reversed(body):
        if wanted & set(stored(node)):
            found.append(node)
            wanted |= set(_loads(node))
    return found[::-1]


def local_array_name(node: ast.AST) -> str | None:
    """Return the name of the array of a thread's own that a statement makes, or None."""
    return _assigned_call(node, _LOCAL_ARRAY)


def _assigned_call(node: ast.AST, function: str) -> str | None:
    match node:
        case ast.Assign(targets=[ast.Name(name)], value=ast.Call(ast.Name(called))) if called == function:
            return name
    return None


def touched_arrays(nodes: Sequence[ast.AST], arrays: frozenset[str]) -> frozenset[str]:
    """Return the arrays that may be written to: those that are stored to, or handed to somebody else."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Subscript(ast.Name(name), ctx=ast.Store()):
                found.add(name)
            case ast.Call() if not _makes_array(node):
                found |= _handed(node)
    return arrays & found


def _makes_array(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in (_LOCAL_ARRAY, _FIELD)


def _handed(call: ast.Call) -> set[str]:
    """Return the names that a call gets as they are."""
    return {argument.id for argument in call.args if isinstance(argument, ast.Name)}


def _loads(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.Name(name, ctx=ast.Load()) | ast.AugAssign(ast.Name(name)):
                yield name


def stored(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement assigns, or statements in it."""
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store))


def _mentions(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _defines_another(node: ast.stmt, waiting: Sequence[ast.stmt]) -> bool:
    """Tell whether a statement assigns a name that no statement before it mentions, so that it may run before them."""
    match node:
        case ast.Assign(targets=[ast.Name(name)]):
            return not any(name in _mentions(other) for other in waiting)
    return False


def _awaits(lanes: Lanes, loop: ast.AST) -> bool:
    """Tell whether memory that may change meanwhile decides when a thread leaves a loop.

    A lane that has left would wait for one that waits for it, as with a lock.
    """
    decided: set[str] = set()

    def is_decided(node: ast.AST) -> bool:
        return any(
            (isinstance(part, ast.Name) and part.id in decided)
            or (isinstance(part, ast.Subscript | ast.Call) and _reads_what_changes(lanes, part))
            for part in ast.walk(node)
        )

    def spread(body: Sequence[ast.stmt], *, all_of_it: bool) -> None:
        for node in body:
            match node:
                case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
                    inside = all_of_it or is_decided(head) or any(is_break(s) and is_decided(s.test) for s in node.body)
                    if isinstance(node, ast.For) and inside:
                        decided.update(stored(node.target))
                    spread(node.body, all_of_it=inside)
                    spread(node.orelse, all_of_it=inside)
                case ast.Assign(value=value) | ast.AugAssign(value=value) if all_of_it or is_decided(value):
                    decided.update(stored(node))

    assert isinstance(loop, ast.For | ast.While)
    before = -1
    while len(decided) > before:
        before = len(decided)
        spread(loop.body, all_of_it=False)
    heads = [loop.test] if isinstance(loop, ast.While) else []  # a range is what it is when the loop begins
    return any(map(is_decided, heads + [s.test for s in loop.body if is_break(s)]))


def _reads_what_changes(lanes: Lanes, node: ast.Subscript | ast.Call) -> bool:
    if isinstance(node, ast.Call):
        return lanes.has_effect(node)
    return isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and node.value.id in lanes.touched


def read_names(lanes: Lanes, nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that anything but assignments reads, and those that these are computed from.

    A loop carries variables that nobody reads after it, and which only hand on to themselves what they hold.
    """
    found: set[str] = set()
    sources: dict[str, set[str]] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value) if not lanes.changes_memory(node):
                sources.setdefault(name, set()).update(_loads(value))
            case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
                found.update(_loads(head))
            case ast.stmt() if not isinstance(node, ast.FunctionDef):
                found.update(_loads(node))
    waiting = list(found)
    while waiting:
        new = sources.pop(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def without_unread(lanes: Lanes, body: list[ast.stmt], read: set[str]) -> None:
    """Take out assignments of what nobody reads, such as loops' variables after them."""
    before = list(body)
    for node in before:
        match node:
            case ast.Assign(targets=[ast.Name(name)]) if name not in read and not lanes.changes_memory(node):
                body.remove(node)
            case ast.For() | ast.While() | ast.If():
                without_unread(lanes, node.body, read)
                if isinstance(node, ast.If):
                    without_unread(lanes, node.orelse, read)
    if before and not body:
        body.append(ast.Pass())


@dataclass
class _Spread:
    """Finds what varies: the index, what is computed from it, and what is assigned where only some lanes come by."""

    lanes: Lanes
    once: frozenset[str] | set[str]
    changed: bool = True
    around_loops: list[ast.If] = field(init=False)
    on_memory: list[ast.If] = field(init=False)

    def __post_init__(self) -> None:
        loops = [node for node in ast.walk(self.lanes.tree) if isinstance(node, ast.For | ast.While)]
        branches = [node for node in ast.walk(self.lanes.tree) if isinstance(node, ast.If) and not is_break(node)]
        self.around_loops = [
            n for n in branches if any(isinstance(inner, ast.For | ast.While) for inner in ast.walk(n))
        ]
        # LLVM makes no vectors of what reads or writes memory under a condition.
        in_loops = {id(inner) for loop in loops for inner in ast.walk(loop)}
        self.on_memory = [
            n for n in branches if id(n) in in_loops and n not in self.around_loops and self._touches_memory(n)
        ]

    def _touches_memory(self, node: ast.If) -> bool:
        body = [*node.body, *node.orelse]
        return any(self.lanes.touches_memory(inner) for inner in body)

    def run(self) -> None:
        together = [*self.around_loops, *self.on_memory]
        self.lanes.agreed |= {id(node) for node in together}
        while self.changed:
            self.changed = False
            self._block(self.lanes.tree.body, apart=False, staggered=False)
        # Which tests are the same for all lanes is only known now: a loop may bring round what varies.
        self.lanes.agreed -= {id(node) for node in together if not self.lanes.varies(node.test)}

    def _add(self, names: Iterator[str]) -> None:
        new = set(names) - self.lanes.varying - self.lanes.private
        self.lanes.varying |= new
        self.changed |= bool(new)

    def _block(self, body: Sequence[ast.stmt], *, apart: bool, staggered: bool) -> None:
        """Go through a block, by which not all lanes may come (`apart`), or not all as often (`staggered`)."""
        for node in body:
            self._statement(node, apart=apart, staggered=staggered)

    def _statement(self, node: ast.stmt, *, apart: bool, staggered: bool) -> None:
        lanes = self.lanes
        match node:
            case ast.Assign(targets=[ast.Name(name)]) | ast.AugAssign(ast.Name(name)):
                # What a lane holds that does not come by is not what the others go on with; within a trip it does not matter.
                if lanes.varies(node.value) or ((apart or staggered) and name not in self.once):
                    self._add(stored(node))
            case ast.If():
                self._if(node, apart=apart, staggered=staggered)
            case ast.For() | ast.While():
                if not apart and lanes.leaves_apart(node):
                    lanes.staggered.add(id(node))
                    staggered = True
                if isinstance(node, ast.For) and (apart or lanes.varies(range_start(node))):
                    self._add(stored(node.target))
                self._block(node.body, apart=apart, staggered=staggered)

    def _if(self, node: ast.If, *, apart: bool, staggered: bool) -> None:
        lanes = self.lanes
        if apart or staggered:
            lanes.agreed.discard(id(node))
            if not apart and node in self.around_loops and lanes.varies(node.test):
                lanes.forked.add(id(node))
        elif lanes.varies(node.test) and id(node) in lanes.agreed:
            # What is known nowhere else need not vary: all lanes come by together, or each by itself from end to end.
            inside = {id(inner) for inner in ast.walk(node)}
            elsewhere = {n.id for n in ast.walk(lanes.tree) if isinstance(n, ast.Name) and id(n) not in inside}
            self._add(name for name in stored(node) if name in elsewhere)
        apart = apart or not lanes.is_split(node)
        self._block(node.body, apart=apart, staggered=staggered)
        self._block(node.orelse, apart=apart, staggered=staggered)


@dataclass
class _Kept:
    """Finds the varying names that live longer than one group."""

    lanes: Lanes
    once: frozenset[str] | set[str]
    places: dict[str, set[int]] = field(default_factory=dict)
    groups: int = 0

    def run(self) -> None:
        self._block(self.lanes.tree.body, in_loop=False)
        self.lanes.kept |= {name for name, places in self.places.items() if len(places) > 1}
        staggered = (node for node in ast.walk(self.lanes.tree) if id(node) in self.lanes.staggered)
        counters = {name for node in staggered if isinstance(node, ast.For) for name in stored(node.target)}
        self.lanes.kept &= self.lanes.varying - self.lanes.along - counters

    def _group(self, nodes: Sequence[ast.AST]) -> None:
        self.groups += 1
        for node in nodes:
            for name in _mentions(node):
                self.places.setdefault(name, set()).add(self.groups)

    def _block(self, body: Sequence[ast.stmt], *, in_loop: bool) -> None:
        lanes = self.lanes
        for part in lanes.parts(body):
            match part:
                case Group():
                    self._group(part.body)
                    if in_loop:
                        lanes.kept |= set(carried(part.body)) - self.once
                case ast.Return():
                    self._group([part])
                case ast.If():
                    self._group([part.test])
                    self._block(part.body, in_loop=in_loop)
                    self._block(part.orelse, in_loop=in_loop)
                case ast.For() | ast.While():
                    self._group([part.iter if isinstance(part, ast.For) else part.test])
                    self._block(part.body, in_loop=True)


def carried(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements assign, and of which they may read before what they held until then."""
    changed = {name for node in body for name in stored(node)}
    fresh: set[str] = set()
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                yield from (changed & set(_loads(value))) - fresh
                fresh.add(name)
            case _:
                yield from (changed & {*_loads(node), *stored(node)}) - fresh


def _read_first(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that statements may read before they assign them."""
    found: set[str] = set()

    def after(body: Sequence[ast.stmt], assigned: set[str]) -> set[str]:
        for node in body:
            match node:
                case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
                    found.update(set(_loads(head)) - assigned)
                    inside = assigned | set(stored(node.target)) if isinstance(node, ast.For) else assigned
                    ways = after(node.body, inside), after(node.orelse, assigned)
                    if isinstance(node, ast.If):
                        assigned = ways[1] if is_break(node) else ways[0] & ways[1]
                case _:
                    found.update(set(_loads(node)) - assigned)
                    assigned = assigned | set(stored(node))
        return assigned

    after(body, set())
    return found


@dataclass
class _Gain:
    """Tells what lanes gain: chains that are broken, and memory that is read side by side."""

    lanes: Lanes
    is_float: Callable[[str], bool]
    is_serial: Callable[[ast.Call], bool]
    fastmath: bool

    def width(self) -> int:
        staggered = (n for n in ast.walk(self.lanes.tree) if id(n) in self.lanes.staggered and not _is_rest(n))
        if any(self._adds_apart(ast.walk(node)) or self._only_stores_apart(ast.walk(node)) for node in staggered):
            return 0  # what each does by itself, and waits for, is not made up for by the loops within
        return min(map(self._of_loop, self._telling(self.lanes.tree.body)), default=0)

    def _telling(self, body: Sequence[ast.stmt]) -> list[Any]:
        """Return the loops of `_loops` that may gain or lose: others, such as one that fills a lane's own array, do neither."""
        return [
            node
            for node in self._loops(body)
            if self._is_chained(node) or self._elements([*ast.walk(node)]) or self._calls_serial(ast.walk(node))
        ]

    def _calls_serial(self, nodes: Iterable[ast.AST]) -> bool:
        return any(self.is_serial(node) for node in nodes if isinstance(node, ast.Call))

    def _of_loop(self, node: Any) -> int:
        inner = list(ast.walk(node))
        if self._calls_serial(inner):
            return 0
        chained, elements = self._is_chained(node), self._elements(inner)
        apart = [part for part in elements if not self._is_beside(part)]
        if id(node) in self.lanes.staggered and (apart or not chained):
            return 0  # lanes that wait cost what the others gain
        if apart:
            # One after another, numbers are read from memory that lies apart, but never written to it.
            reads = all(isinstance(part.ctx, ast.Load) for part in apart)
            return _NARROW if chained and reads and not self.fastmath else 0
        return MOST if chained or any(self.lanes.varies(part) for part in elements) else 0

    def _is_chained(self, node: Any) -> bool:
        """Tell whether each trip of a loop waits for floating-point numbers of the one before."""
        waited_for = _read_first(node.body) & set(itertools.chain(*map(stored, node.body)))
        return any(self.is_float(name) for name in waited_for & self.lanes.varying)

    def _elements(self, nodes: Sequence[ast.AST]) -> list[ast.Subscript]:
        return [part for part in nodes if isinstance(part, ast.Subscript) and self._is_shared_memory(part)]

    def _adds_apart(self, nodes: Iterable[ast.AST]) -> bool:
        """Tell whether lanes add to elements that lie apart, one after another."""
        for node in nodes:
            match node:
                case ast.Call(ast.Name(name), args) if name.startswith(ATOMIC):
                    places = itertools.pairwise(args)
                    added = [ast.Subscript(array, index) for array, index in places if self._is_shared_array(array)]
                    if not all(map(self._is_beside, added)):
                        return True
        return False

    def _only_stores_apart(self, nodes: Iterable[ast.AST]) -> bool:
        """Tell whether lanes store into arrays of their own, each at another place, one after another.

        Quotients, powers and functions, which take long, are worth more together than the stores cost.
        """
        stores = False
        for node in nodes:
            match node:
                case ast.BinOp(op=ast.Div() | ast.Pow()) | ast.Call(ast.Attribute()):
                    return False
                case ast.Subscript(array, index, ast.Store()):
                    private = any(name in self.lanes.private for name in _mentions(array))
                    stores = stores or (private and self.lanes.varies(index))
        return stores

    def _is_shared_memory(self, node: ast.Subscript) -> bool:
        return self._is_shared_array(node.value)

    def _is_shared_array(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.lanes.arrays

    def _loops(self, body: Sequence[ast.stmt]) -> Iterator[Any]:
        """Yield the innermost loops of more than a few trips that lanes run together, and in which they do different things."""
        lanes = self.lanes
        for part in lanes.parts(body):
            if isinstance(part, ast.If):
                yield from self._loops(part.body)
                yield from self._loops(part.orelse)
            elif (
                isinstance(part, ast.For | ast.While) and lanes.varies(part) and not undoes(part) and not _is_rest(part)
            ):
                yield from self._telling(part.body) or ([part] if _trips(part) > _FEW_TRIPS else [])

    def _is_beside(self, node: ast.Subscript) -> bool:
        """Tell whether lanes find an element side by side, or the same one."""
        steps = [self.lanes.step(part) for part in indices(node)]
        return all(step == 0 for step in steps[:-1]) and (not steps or steps[-1] in (0, 1))


def _is_rest(node: ast.AST) -> bool:
    return isinstance(node, ast.For) and any(name.startswith(REST) for name in stored(node.target))


def _trips(node: ast.For | ast.While) -> float:
    """Return how often the innermost statements of a loop run, with those of loops in it; infinity where that is unknown."""
    inner = [_trips(loop) for loop in ast.walk(node) if isinstance(loop, ast.For | ast.While) and loop is not node]
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call):
        return math.inf
    try:
        own = len(range(*(ast.literal_eval(bound) for bound in node.iter.args)))
    except ValueError:
        return math.inf
    return own * max(inner, default=1)
