"""How a thread's text is taken apart at its barriers: what differs between threads, and what a thread must keep or do in order.

What the parts become is said in `block_parts`. This module compiles nothing.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Collection, Sequence

from numbridge.kernels.cpu_backend.block_parts import Around, Block, Border, Kept, Node, Once, Part
from numbridge.kernels.cpu_backend.block_source import CREW, THREAD
from numbridge.kernels.cpu_backend.block_syntax import (
    AT,
    AXES,
    BARRIER,
    COUNTS,
    FROM,
    LIVE,
    MEETING,
    MEMORY,
    NUMBER,
    ORDERED,
    OWN_NAMES,
    REFUSED,
    REST,
    ROW,
    SLOT,
    STACK,
    TOLD,
    NoPartsError,
    blocks_of,
    called_name,
    calls_in,
    changed_arrays,
    heads_of,
    is_barrier,
    is_count,
    is_of_thread,
    loaded_names,
    made_in_block,
    mentioned,
    new_stack,
    own_extents,
    places_of,
    read_first,
    statement,
    stored_here,
    used_otherwise,
    waits,
    with_loops,
)
from numbridge.kernels.cpu_backend.lanes import (
    Lanes,
    indices,
    is_break,
    local_array_name,
    read_names,
    stored,
    touched_arrays,
    without_unread,
)

__all__ = ["apart"]

# What shows an array in parts; it does nothing to it.
_COMPONENTS = "_nb_components"
# A name is computed again in another part if that takes no more statements.
_FEW = 6


class _OwnElements(ast.NodeTransformer):
    """Puts elements of an array of all threads in the place of those of a thread's own."""

    def __init__(self, name: str, extents: Sequence[int]) -> None:
        self._own = name
        self._extents = extents

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        match node:
            case ast.Assign([ast.Subscript(ast.Name(name), ast.Constant(value))]) if name == self._own and value is ...:
                return self._filled(node.value)
        self.generic_visit(node)
        return node

    def _filled(self, value: ast.expr) -> ast.stmt:
        """Return loops that store a number in all of a thread's elements."""
        places = [f"_nb_fill{axis}_{self._own}" for axis in range(len(self._extents))]
        filled = f"{Kept(self._own).array}[{', '.join([*places, SLOT])}] = {ast.unparse(value)}"
        heads = [
            f"{'    ' * axis}for {place} in range({extent}):"
            for axis, (place, extent) in enumerate(zip(places, self._extents, strict=True))
        ]
        return statement("\n".join([*heads, "    " * len(heads) + filled]))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if not isinstance(node.value, ast.Name) or node.value.id != self._own:
            self.generic_visit(node)
            return node
        return ast.Subscript(self._array(), self._index(indices(node)), node.ctx)

    def _array(self) -> ast.expr:
        return ast.Name(Kept(self._own).array, ast.Load())

    def _index(self, places: Sequence[ast.expr]) -> ast.expr:
        made = [self.visit(place) for place in places]
        if len(made) != len(self._extents) or any(
            isinstance(place, ast.Constant | ast.Slice) and not _is_integer(place) for place in made
        ):
            raise NoPartsError
        return ast.Tuple([*made, ast.Name(SLOT, ast.Load())], ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(ast.Name("_nb_crew_stack_undo"), [log, ast.Name(name), mark]) if name == self._own:
                # Of the array nothing counts but its type.
                return ast.Call(node.func, [self.visit(log), self._array(), self.visit(mark)], [])
            case ast.Call(ast.Name("_nb_crew_stack_remember"), [log, ast.Name(name), index]) if name == self._own:
                return ast.Call(node.func, [self.visit(log), self._array(), self._index(places_of(index))], [])
            case ast.Call(ast.Name(called), [ast.Name(name), index, *rest]) if name == self._own:
                if called.startswith(ORDERED) and not called.startswith(TOLD):
                    return ast.Call(
                        node.func, [self._array(), self._index(places_of(index)), *map(self.visit, rest)], []
                    )
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self._own:
            raise NoPartsError
        return node


def _is_integer(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _of_all(array: str, *lines: str) -> str:
    """Return a loop over what all threads have said in an array."""
    at = f"{REST}{array}"
    body = [f"    {line.format(f'{array}[{at}]')}" for line in lines]
    return "\n".join([f"for {at} in range({LIVE}):", *body])


def _learned(counted: str, name: str, told: str) -> tuple[str, ...]:
    """Return lines by which all learn what threads have told: 0 who did not come, else 1, and 2 more if it holds."""
    found = f"{name}_found"
    if counted == "and":
        lines = f"{found} = 1", _of_all(told, "if {} == 1:", f"    {found} = 0")
    elif counted == "or":
        lines = f"{found} = 0", _of_all(told, "if {} == 3:", f"    {found} = 1")
    else:
        lines = f"{found} = 0", _of_all(told, f"{found} += {{}} >> 1")
    return *lines, f"{name} = _nb_told({found})"


class _Nodes:
    """What a block becomes: parts, and what is between them."""

    def __init__(self, reader: _Reader, *, in_loop: bool) -> None:
        self.nodes: list[Node] = []
        self._reader = reader
        self._in_loop = in_loop
        self._waiting: list[tuple[ast.stmt, str | None]] = []

    def add(self, node: ast.stmt, guard: str | None) -> None:
        """Add a statement of each thread, or of those for which `guard` holds."""
        self._waiting.append((node, guard))

    def flush(self) -> None:
        """End a part."""
        body: list[ast.stmt] = []
        for guard, group in itertools.groupby(self._waiting, lambda pair: pair[1]):
            nodes = [node for node, _ in group]
            body += nodes if guard is None else [ast.If(ast.Name(guard, ast.Load()), nodes, [])]
        self._waiting = []
        before = self._before_border()
        if before is not None and all(map(self._only_moves, body)):
            before.body += body
        elif body:
            part = Part(len(self._reader.parts), body, self._in_loop)
            self._reader.parts.append(part)
            self.nodes.append(part)

    def _before_border(self) -> Part | None:
        """Return the part after which nothing has come but borders."""
        for node in reversed(self.nodes):
            if not isinstance(node, Border):
                return node if isinstance(node, Part) else None
        return None

    def _only_moves(self, node: ast.stmt) -> bool:
        """Tell whether a statement only moves or computes numbers of a thread, which nobody else sees."""
        match node:
            case ast.Assign([ast.Name()], value):
                return not any(isinstance(part, ast.Subscript | ast.Call) for part in ast.walk(value))
        return False

    def border(self) -> None:
        """Let all threads wait for each other."""
        self.flush()
        self.nodes.append(Border())

    def once(self, node: ast.stmt) -> None:
        """Add a statement that runs once: before those of threads that wait to become a part, where nobody sees that."""
        lanes, waiting = self._reader.lanes, [other for other, _ in self._waiting]
        changed = {*stored(node), *changed_arrays(node)}
        loads = any(isinstance(part, ast.Subscript) for part in ast.walk(node))
        seen = any(changed & mentioned(other) for other in waiting)
        if is_break(node) or seen or (loads and any(map(lanes.changes_memory, waiting))):
            self.flush()
        self.nodes.append(Once(ast.unparse(node)))


def apart(
    name: str,
    tree: ast.FunctionDef,
    hidden: Sequence[str],
    names: Sequence[str],
    rank: int,
    arrays: Collection[str],
    once: Collection[str],
    nonnegative: Collection[str],
    computes: Callable[[ast.expr], bool],
) -> Block:
    """Return a thread's text taken apart at its barriers.

    Parameters
    ----------
    name : str
        What the function for a whole block is called.
    tree : ast.FunctionDef
        The function of a thread, `prepared`; changed in place.
    hidden, names : sequence of str
        What the function takes: of its thread and block, then the kernel's parameters.
    rank : int
        How many thread indices there are.
    arrays : collection of str
        Names that are arrays.
    once : collection of str
        Names that are assigned in one place and used after it, in the same block.
    nonnegative : collection of str
        Integers that are never negative.
    computes : callable
        Tells of a function, as the text calls it, whether it only computes.

    Raises
    ------
    NoPartsError
        If threads may come to a barrier unequally often, wait for anything but their block, or do what nobody here knows.
    """
    if not 0 < rank <= AXES:
        raise NoPartsError
    reader = _Reader(tree, arrays, once, nonnegative, computes)
    nodes = reader.nodes()
    axis = reader.best_axis(rank)
    reader.finish(axis, {*hidden, *names})
    kept = [Kept(name, reader.own.get(name, ())) for name in sorted(reader.kept)]
    known = {*nonnegative, AT, ROW, NUMBER, *(f"_nb_{letter}{k}" for letter in "ti" for k in range(AXES))}
    return Block(name, list(hidden), list(names), rank, axis, nodes, reader.parts, kept, reader.rooms, known)


class _Reader:
    """Takes a thread's text apart."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        arrays: Collection[str],
        once: Collection[str],
        nonnegative: Collection[str],
        computes: Callable[[ast.expr], bool],
    ) -> None:
        every = list(ast.walk(tree))
        if any(isinstance(node, ast.Name) and node.id.startswith(REFUSED) for node in every):
            raise NoPartsError
        own = {name: node for node in every if (name := local_array_name(node)) is not None}
        shared = frozenset(arrays) - own.keys()
        threads = {f"_nb_{letter}{k}" for letter in "it" for k in range(AXES)} | {THREAD}
        self.tree = tree
        # Arrays of a thread's own in which all threads have the same are one.
        self.alike = own.keys() - used_otherwise(tree)
        private = frozenset(own.keys() - self.alike)
        self.lanes = Lanes(tree, THREAD, shared, private, touched_arrays(every, shared), computes, threads)
        without_unread(self.lanes, tree.body, read_names(self.lanes, every))
        self.once = set(once)
        self._nonnegative = set(nonnegative)
        self.own = {name: own_extents(node) for name, node in own.items()}
        self.of_block = {name for node in every if (name := made_in_block(node)) is not None}
        self.parts: list[Part] = []
        self.rooms: list[str] = []
        self.kept: set[str] = set()
        self._count = 0
        self._needed = self._deciding()
        self._definers: dict[str, ast.expr] = {}
        self._counters: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Assign([ast.Name(name)], value) if name in self.once:
                    self._definers[name] = value
                case ast.For(ast.Name(name), iter=head) if name in self.once:
                    self._counters[name] = head
        self._steps: dict[tuple[str, int], int | None] = {}

    # What runs once

    def _deciding(self) -> set[str]:
        """Return the names on which control around barriers depends."""
        every = list(ast.walk(self.tree))
        found = {
            name
            for node in every
            if isinstance(node, ast.stmt) and waits(node)
            for head in [*heads_of(node), *(s.test for block in blocks_of(node) for s in block if is_break(s))]
            for name in loaded_names(head)
        }
        before = -1
        while len(found) > before:
            before = len(found)
            for node in every:
                if isinstance(node, ast.Assign | ast.AugAssign) and found & set(stored(node)):
                    found |= loaded_names(node.value)
                elif isinstance(node, ast.If | ast.For | ast.While) and found & set(stored(node)):
                    found |= {name for head in heads_of(node) for name in loaded_names(head)}
        return found

    def _is_once(self, node: ast.stmt) -> bool:
        """Tell whether a statement does the same for all threads, and nothing but compute."""
        lanes = self.lanes
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(called))) if called in COUNTS:
                return False
            case ast.Assign([ast.Name(name)]) | ast.AugAssign(ast.Name(name)):
                return name not in lanes.varying and name not in self.own and not lanes.varies(node.value)
            case ast.Assign([ast.Subscript(ast.Name(name), index)], value) if name in self.alike:
                return not lanes.varies(index) and not lanes.varies(value)
            case ast.Pass() | ast.Break():
                return True
            case ast.If() | ast.For() | ast.While():
                if waits(node) or any(map(lanes.varies, heads_of(node))) or lanes.varying & set(stored(node)):
                    return False
                return all(self._is_once(inner) for block in blocks_of(node) for inner in block)
        return False

    def _is_frame(self, node: ast.stmt) -> bool:
        """Tell whether control runs once for the block, around parts."""
        if not isinstance(node, ast.If | ast.For | ast.While) or any(map(self.lanes.varies, heads_of(node))):
            return False
        return waits(node) or bool(self._needed & set(stored(node)))

    def _mark(self) -> None:
        """Find the names that differ between threads: also what is assigned where only some come by, or within a part."""
        before = -1
        while len(self.lanes.varying) + len(self.lanes.private) > before:
            before = len(self.lanes.varying) + len(self.lanes.private)
            self._mark_block(self.tree.body)
        for name in self.alike:
            del self.own[name]

    def _mark_block(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            if self._is_once(node) or self._makes_memory(node) or is_count(node) or local_array_name(node) is not None:
                continue
            if self._is_frame(node) or (isinstance(node, ast.If) and waits(node)):
                if not self._is_frame(node):
                    self._mark_left(node)
                for block in blocks_of(node):
                    if self._is_frame(node) or any(map(waits, block)):
                        self._mark_block(block)
                    else:
                        self._mark_all(block)
            else:
                self._mark_all([node])

    def _mark_all(self, body: Sequence[ast.stmt]) -> None:
        self.lanes.varying |= {name for node in body for name in stored(node)} - self.own.keys()
        apart = self.alike & {name for node in body for name in changed_arrays(node)}
        self.alike -= apart
        self.lanes.private |= apart

    def _mark_left(self, node: ast.stmt) -> None:
        """Mark what differs after a branch with barriers, as threads that do not take it have not what it assigns."""
        inside = {id(part) for part in ast.walk(node)}
        outside = (part for part in ast.walk(self.tree) if id(part) not in inside)
        seen = {part.id for part in outside if isinstance(part, ast.Name)}
        self.lanes.varying |= ({*stored(node)} & seen) - self.own.keys()
        apart = self.alike & {*changed_arrays(node)} & seen
        self.alike -= apart
        self.lanes.private |= apart

    def _makes_memory(self, node: ast.stmt) -> bool:
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(called))):
                return called in MEMORY and name in self.lanes.arrays
        return False

    # Parts, and what is around them

    def nodes(self) -> list[Node]:
        """Return the text's parts, and what is around them."""
        self._mark()
        self._after: list[ast.stmt] = []
        found = self._block(self.tree.body, None, in_loop=False)
        self._check_order(found, set())
        return found

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"_nb_{stem}_{self._count}"

    def _block(self, body: Sequence[ast.stmt], guard: str | None, *, in_loop: bool) -> list[Node]:
        made = _Nodes(self, in_loop=in_loop)
        for place, node in enumerate(body):
            if self._makes_memory(node):
                if any(called_name(call) == "_nb_local_array" for call in calls_in(node)):
                    raise NoPartsError
                made.nodes.append(Once(ast.unparse(node)))
            elif local_array_name(node) is not None:
                if in_loop:
                    raise NoPartsError
                if local_array_name(node) in self.alike:
                    made.nodes.append(Once(ast.unparse(node)))
            elif (stack := new_stack(node)) is not None:
                room = self._fresh("room")
                self.rooms.append(room)
                made.add(statement(f"{stack} = _nb_crew_stack_at({CREW}, {room}, {SLOT})"), guard)
            elif is_barrier(node):
                made.border()
            elif is_count(node):
                self._counted(made, node, guard)
            elif self._is_once(node):
                made.once(node)
            elif self._is_frame(node):
                self._frame(made, node, guard, in_loop=in_loop)
            elif isinstance(node, ast.If) and waits(node):
                self._guarded(made, node, guard, body[place + 1 :], in_loop=in_loop)
            elif waits(node) or is_break(node) or isinstance(node, ast.Return):
                raise NoPartsError
            else:
                made.add(node, guard)
        made.flush()
        return made.nodes

    def _frame(self, made: _Nodes, node: ast.stmt, guard: str | None, *, in_loop: bool) -> None:
        assert isinstance(node, ast.If | ast.For | ast.While)
        if isinstance(node, ast.For) and self.lanes.varying & {*stored(node.target)}:
            raise NoPartsError
        made.flush()
        repeats = not isinstance(node, ast.If)
        head = copy.copy(node)
        head.body, head.orelse = [ast.Pass()], []
        body, orelse = (self._block(block, guard, in_loop=in_loop or repeats) for block in (node.body, node.orelse))
        made.nodes.append(Around(ast.unparse(head).splitlines()[0], body, orelse, repeats))

    def _counted(self, made: _Nodes, node: ast.stmt, guard: str | None) -> None:
        """Add what counts the threads of which something holds."""
        assert isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if self.lanes.varying & {*stored(node)}:
            raise NoPartsError  # some threads have learned something else, or nothing
        told, holds = self._fresh("told"), ast.unparse(node.value.args[-1])
        if guard is not None:
            made.add(statement(f"{told} = 0"), None)
        # numba.cuda's is int32: of a wider integer the low half counts.
        made.add(statement(f"{told} = 3 if ({holds}) & 4294967295 != 0 else 1"), guard)
        self.kept.add(told)
        self.lanes.varying.add(told)
        made.border()
        counted = called_name(node.value).removeprefix(f"{BARRIER}_")
        made.nodes += map(Once, _learned(counted, ast.unparse(node.targets[0]), Kept(told).array))

    def _guarded(
        self, made: _Nodes, node: ast.If, guard: str | None, following: Sequence[ast.stmt], *, in_loop: bool
    ) -> None:
        """Add what only some threads of a block come to, with all barriers that follow."""
        inner, other = (node.body, node.orelse) if any(map(waits, node.body)) else (node.orelse, node.body)
        rest = [*other, *following, *self._after]
        if in_loop or any(map(waits, rest)) or any(self._orders(part) for part in rest):
            raise NoPartsError
        holds, passes = self._fresh("guard"), ast.unparse(node.test)
        yes = inner is node.body
        if guard is not None and any(isinstance(part, ast.Call | ast.Subscript) for part in ast.walk(node.test)):
            raise NoPartsError
        comes = f"({yes} if {passes} else {not yes})"
        made.add(statement(f"{holds} = {comes if guard is None else f'{comes} if {guard} else False'}"), None)
        if not all(isinstance(part, ast.Pass) for part in other):
            made.add(ast.If(ast.Name(holds, ast.Load()), [ast.Pass()], list(other)), guard)
        self.kept.add(holds)
        self.lanes.varying.add(holds)
        made.flush()
        some = self._fresh("any")
        made.nodes += map(Once, (f"{some} = False", _of_all(Kept(holds).array, "if {}:", f"    {some} = True")))
        self._after, before = [*following, *self._after], self._after
        made.nodes.append(Around(f"if {some}:", self._block(inner, holds, in_loop=False)))
        self._after = before

    # What threads do to the same memory, in their order

    def _orders(self, node: ast.AST) -> list[tuple[str, ast.Call]]:
        """Return what changes memory that threads share one after another, and which that is."""
        found = []
        for call in calls_in(node):
            called = called_name(call)
            if called.startswith(ORDERED):
                array = call.args[called.startswith(TOLD)]
                if isinstance(array, ast.Call) and ast.unparse(array.func) == _COMPONENTS:
                    (array,) = array.args
                if not isinstance(array, ast.Name):
                    raise NoPartsError
                if array.id not in self.lanes.private:
                    # Arguments may share memory; what a block makes does not.
                    found.append((array.id if array.id in self.of_block else "", call))
            elif not called.startswith((STACK, MEETING, _COMPONENTS, *MEMORY)) and self.lanes.has_effect(call):
                raise NoPartsError
        return found

    def _check_order(self, nodes: Sequence[Node], since: set[str]) -> set[str]:
        """Refuse what threads would do in another order than one after another up to each barrier; return what is open."""
        for node in nodes:
            match node:
                case Border():
                    since = set()
                case Part():
                    changed = {memory for part in node.body for memory, _ in self._orders(part)}
                    if changed & since:
                        raise NoPartsError
                    since = since | changed
                case Around():
                    inside = self._check_order(node.body, since)
                    if node.repeats:
                        inside = self._check_order(node.body, inside)
                    since = since | inside | self._check_order(node.orelse, since)
        return since

    def _must_be_in_order(self, part: Part, axis: int) -> bool:
        """Tell whether threads that run together along an axis would change an element in another order than by number."""
        seen: set[str] = set()
        for loops, node in with_loops(part.body, ()):
            for memory, call in self._orders(node):
                told = called_name(call).startswith(TOLD)
                places = places_of(call.args[1 + told])
                if memory in seen or not all(self._is_told(places, loop) for loop in loops):
                    return True
                seen.add(memory)
                if axis > 0 and not (axis == 1 and any(self._tells_thread(place) for place in places)):
                    return True
        return False

    def _is_told(self, places: Sequence[ast.expr], loop: ast.For | ast.While) -> bool:
        """Tell whether an element's place tells in which trip of a loop it is changed."""
        if (
            not isinstance(loop, ast.For)
            or not isinstance(loop.target, ast.Name)
            or not isinstance(loop.iter, ast.Call)
        ):
            return False
        if any(is_break(node) for node in loop.body):
            return False
        same = all(self.step(bound, axis) == 0 for bound in loop.iter.args for axis in range(AXES))
        return same and any(self._alias(place) == loop.target.id and self._counts_up(place) for place in places)

    def _alias(self, node: ast.expr) -> str | None:
        while isinstance(node, ast.Name):
            if node.id not in self._definers:
                return node.id
            node = self._definers[node.id]
        return None

    def _tells_thread(self, place: ast.expr) -> bool:
        """Tell whether an index tells one of a thread's first two coordinates."""
        return (self.step(place, 0), self.step(place, 1)) in ((0, 1), (1, 0)) and self._counts_up(place)

    def _counts_up(self, place: ast.expr) -> bool:
        """Tell whether an index is never negative; one that counts from the end may be the same place as another."""
        match place:
            case ast.Name(name) if name in self._definers:
                return name in self._nonnegative or self._counts_up(self._definers[name])
            case ast.Name(name):
                return name in self._nonnegative or name in OWN_NAMES or is_of_thread(name)
            case ast.Constant(int() as number):
                return number >= 0
            case ast.BinOp(left, ast.Add() | ast.Mult(), right):
                return self._counts_up(left) and self._counts_up(right)
        return False

    # Steps

    def step(self, node: ast.expr, axis: int) -> int | None:
        """Return how much greater an expression is for the next thread along an axis; None is unknown."""
        match node:
            case ast.Name(name):
                if name[:5] in ("_nb_i", "_nb_t") and name[5:].isdigit():
                    return int(name[5:] == str(axis))
                if name == THREAD:
                    return 1 if axis == 0 else None
                if name not in self.lanes.varying:
                    return 0
                if (name, axis) not in self._steps:
                    self._steps[name, axis] = None
                    self._steps[name, axis] = self._step_of_name(name, axis)
                return self._steps[name, axis]
            case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
                parts = self.step(left, axis), self.step(right, axis)
                if parts[0] is not None and parts[1] is not None:
                    return parts[0] + parts[1] if isinstance(op, ast.Add) else parts[0] - parts[1]
                return None
            case ast.Call(ast.Name("_nb_int64"), [argument]):
                return self.step(argument, axis)
            case ast.Subscript(ast.Attribute(_, "shape")) | ast.Constant():
                return 0
            case ast.Subscript() | ast.Call():
                return 0 if not self.lanes.varies(node) else None
        inner = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return 0 if all(self.step(part, axis) == 0 for part in inner) else None

    def _step_of_name(self, name: str, axis: int) -> int | None:
        if name in self._definers:
            return self.step(self._definers[name], axis)
        head = self._counters.get(name)
        if isinstance(head, ast.Call) and all(self.step(bound, axis) == 0 for bound in head.args):
            return 0
        return None

    def _cost(self, body: Sequence[ast.stmt], axis: int) -> tuple[int, int]:
        """Return how many elements threads find side by side along an axis, and how many apart; those in loops count more."""
        beside = lying = 0
        for loops, node in with_loops(body, ()):
            weight = 8 ** len(loops)
            for part in ast.walk(node):
                if (
                    isinstance(part, ast.Subscript)
                    and isinstance(part.value, ast.Name)
                    and part.value.id in self.lanes.arrays
                ):
                    steps = [self.step(place, axis) for place in indices(part)]
                    if all(step == 0 for step in steps[:-1]) and (not steps or steps[-1] in (0, 1)):
                        beside += weight
                    else:
                        lying += weight
        return beside, lying

    def best_axis(self, rank: int) -> int:
        """Return along which axis threads find most side by side; the first of several."""
        costs = [sum(self._cost(part.body, axis)[1] * 8**part.in_loop for part in self.parts) for axis in range(rank)]
        return costs.index(min(costs))

    # What is kept from part to part

    def finish(self, axis: int, given: Collection[str]) -> None:
        """Make functions of the parts, which go through a block along an axis."""
        for part in self.parts:
            part.in_order = self._must_be_in_order(part, axis)
            beside, lying = self._cost(part.body, axis)
            stacks = any(called_name(call).startswith(STACK) for node in part.body for call in calls_in(node))
            part.side_by_side = not part.in_order and not stacks and beside >= lying
        self._place_own_arrays()
        read = {part: read_first(part.body, set()) & self.lanes.varying for part in self.parts}
        again = {part: self._again(read[part]) for part in self.parts}
        threads = {name for name in self.lanes.varying if is_of_thread(name)}
        for part in self.parts:
            made = {name for node in again[part] for name in stored(node)}
            needed = read[part] | {name for node in again[part] for name in loaded_names(node) & self.lanes.varying}
            read[part] = needed - made - threads
            self.kept |= read[part]
        self.kept -= threads
        self._names = (
            {name for node in ast.walk(self.tree) for name in stored_here(node)} | self.kept | {*given, *OWN_NAMES}
        )
        self._names |= {Kept(name).array for name in self.kept} | {*self.rooms}
        for part in self.parts:
            self._make(part, read[part], again[part], axis)

    def _again(self, names: Collection[str]) -> list[ast.stmt]:
        """Return statements that compute some of a thread's numbers again."""
        found: dict[str, ast.stmt] = {}
        for name in sorted(names):
            steps = self._few(name)
            for inner, node in steps or ():
                found.setdefault(inner, node)
        return list(found.values())

    def _few(self, name: str) -> list[tuple[str, ast.stmt]] | None:
        """Return what computes a name again, or None if that is much, or may be something else by now."""
        if name not in self._definers or not self._is_plain(self._definers[name]):
            return None
        found: list[tuple[str, ast.stmt]] = []
        for inner in sorted(loaded_names(self._definers[name]) & self.lanes.varying):
            if not is_of_thread(inner):
                steps = self._few(inner)
                if steps is None:
                    return None
                found += [step for step in steps if step not in found]
        value = self._definers[name]
        made = ast.Assign([ast.Name(name, ast.Store())], value)
        return [*found, (name, made)] if len(found) < _FEW else None

    def _is_plain(self, node: ast.expr) -> bool:
        """Tell whether an expression is arithmetic on what does not change while it may be computed again."""
        for part in ast.walk(node):
            match part:
                case ast.Name(name):
                    fixed = name in self.once or is_of_thread(name)
                    if not fixed or name in self.lanes.arrays | self.lanes.private:
                        return False
                case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult()):
                    pass
                case ast.Compare() | ast.Constant() | ast.UnaryOp() | ast.cmpop() | ast.operator() | ast.unaryop():
                    pass
                case ast.expr_context():
                    pass
                case _:
                    return False
        return True

    def _place_own_arrays(self) -> None:
        """Give arrays of a thread's own memory of the block's, or leave them to the one part that has to do with them."""
        for name in sorted(self.own):
            users = [part for part in self.parts if any(name in mentioned(node) for node in part.body)]
            if len(users) == 1 and not users[0].in_loop:
                made = next(node for node in ast.walk(self.tree) if local_array_name(node) == name)
                assert isinstance(made, ast.stmt)
                users[0].body.insert(0, made)
            elif users:
                for part in users:
                    part.body = [_OwnElements(name, self.own[name]).visit(copy.deepcopy(node)) for node in part.body]
                self.kept.add(name)

    def _make(self, part: Part, read: Collection[str], again: Sequence[ast.stmt], axis: int) -> None:
        known: set[str] = set()
        read_first(part.body, known)
        written = {name for node in part.body for name in stored(node)} & self.kept - self.own.keys()
        part.does_something = bool(written) or any(map(self.lanes.changes_memory, part.body))
        load = (set(read) | (written - known)) & self.kept - self.own.keys()
        body: list[ast.stmt] = [
            *(statement(f"{name} = {Kept(name).array}[{SLOT}]") for name in sorted(load)),
            *map(copy.deepcopy, again),
            *part.body,
            *(statement(f"{Kept(name).array}[{SLOT}] = {name}") for name in sorted(written)),
        ]
        numbers = {
            f"_nb_t{axis}": AT,
            f"_nb_i{axis}": f"{FROM}{axis} + {AT}",
            SLOT: f"{ROW} + {AT}",
            THREAD: " * ".join([f"{NUMBER} + {AT}", *(f"_nb_b{k}" for k in range(axis))]),
        }
        used = read_first(body, set())
        body = [*(statement(f"{name} = {text}") for name, text in numbers.items() if name in used), *body]
        part.body = body
        free = read_first(body, set())
        part.parameters = [AT, *sorted(name for name in free if name != AT and name in self._names)]
        made = statement(f"def {part.name}({', '.join(part.parameters)}):\n    pass")
        assert isinstance(made, ast.FunctionDef)
        made.body = body
        part.tree = ast.fix_missing_locations(made)
