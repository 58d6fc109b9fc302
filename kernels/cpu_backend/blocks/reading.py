"""How a thread's text is taken apart at its barriers: what differs between threads, and what a thread must keep or do in order.

What the parts become is said in `parts`. This module compiles nothing.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Collection, Sequence

from numbridge.kernels.cpu_backend.blocks.branches import ARRIVES, PASSES, every_statement, first_waits, waits_for_lanes
from numbridge.kernels.cpu_backend.blocks.exchange import COME, ORDER, PART, TURNS, WARPS, WHICH, Exchange, warps_of
from numbridge.kernels.cpu_backend.blocks.keeping import Keeper
from numbridge.kernels.cpu_backend.blocks.order import Order
from numbridge.kernels.cpu_backend.blocks.parts import Around, Block, Border, Kept, Node, Once, Part, WarpLanes
from numbridge.kernels.cpu_backend.blocks.source import CREW, NOW, THREAD
from numbridge.kernels.cpu_backend.blocks.steps import Steps
from numbridge.kernels.cpu_backend.blocks.syntax import (
    AT,
    AXES,
    BARRIER,
    COUNTS,
    DYNAMIC,
    LIVE,
    MEETING,
    MEMORY,
    NUMBER,
    REFUSED,
    REST,
    ROW,
    SLOT,
    NoPartsError,
    blocks_of,
    called_name,
    calls_in,
    changed_arrays,
    heads_of,
    is_barrier,
    is_count,
    is_exchange,
    loaded_names,
    made_in_block,
    mentioned,
    new_stack,
    own_extents,
    statement,
    used_otherwise,
    waits,
)
from numbridge.kernels.cpu_backend.lanes import (
    Lanes,
    is_break,
    local_array_name,
    read_names,
    stored,
    touched_arrays,
    without_unread,
)
from numbridge.kernels.native.table_layout import WARP_SIZE

__all__ = ["apart"]


_INTEGERS = ("array(int", "array(uint")


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
            part = Part(len(self._reader.parts), body, self._in_loop, in_turns=self._reader.in_turns)
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
    type_of: Callable[[str], str],
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
    type_of : callable
        Returns what the type of a name is called.

    Raises
    ------
    NoPartsError
        If threads may come to a barrier unequally often, wait for anything but their block, or do what nobody here knows.
    """
    if not 0 < rank <= AXES:
        raise NoPartsError
    reader = _Reader(tree, arrays, once, nonnegative, computes, type_of)
    nodes = reader.nodes()
    axis = reader.best_axis(rank)
    keeper = Keeper(
        tree,
        reader.lanes,
        reader.steps,
        reader.order,
        once=reader.once,
        own=reader.own,
        kept=reader.kept,
        rooms=reader.rooms,
        told=reader.warps.arrays,
    )
    keeper.finish(reader.parts, axis, {*hidden, *names})
    kept = [Kept(name, reader.own.get(name, ())) for name in sorted(reader.kept)]
    known = {*nonnegative, AT, ROW, NUMBER, *(f"_nb_{letter}{k}" for letter in "ti" for k in range(AXES))}
    return Block(
        name, list(hidden), list(names), rank, axis, nodes, reader.parts, kept, reader.rooms, reader.warps, known
    )


class _Reader:
    """Takes a thread's text apart."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        arrays: Collection[str],
        once: Collection[str],
        nonnegative: Collection[str],
        computes: Callable[[ast.expr], bool],
        type_of: Callable[[str], str],
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
        of_block = dict(made for node in every if (made := made_in_block(node)) is not None)
        touched, dynamic = (
            touched_arrays(every, shared),
            {name for name, memory in of_block.items() if memory == DYNAMIC},
        )
        # What is written to one array of dynamic memory is read from another.
        touched |= dynamic if touched & dynamic else frozenset()
        self.lanes = Lanes(tree, frozenset({THREAD}), shared, private, touched, computes, threads)
        without_unread(self.lanes, tree.body, read_names(self.lanes, every))
        self.once = set(once)
        self.steps = Steps(tree, self.lanes, self.once, nonnegative)
        self.own = {name: own_extents(node) for name, node in own.items()}
        self.order = Order(self.lanes, self.steps, of_block, lambda name: type_of(name).startswith(_INTEGERS))
        self.parts: list[Part] = []
        self.rooms: list[str] = []
        self.kept: set[str] = set()
        self.warps = WarpLanes()
        self._type_of = type_of
        # Of guards, those for which the others that run wait elsewhere, with the guard of these
        self._running: dict[str, str | None] = {}
        # Whether threads go on that have waited for lanes, and others that have not
        self.in_turns = False
        self._count = 0
        self._needed = self._deciding()

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
        # What comes after the block that is being read, the innermost first
        self._after: list[Sequence[ast.stmt]] = []
        found = self._block(self.tree.body, None, in_loop=False)
        self.order.check(found, set())
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
            elif is_exchange(node):
                self._exchanged(made, node, guard)
            elif self._is_once(node):
                made.once(node)
            elif self._is_frame(node):
                self._frame(made, node, guard, body[place + 1 :], in_loop=in_loop)
            elif isinstance(node, ast.If) and waits(node):
                self._guarded(made, node, guard, body[place + 1 :], in_loop=in_loop)
            elif waits(node) or is_break(node) or isinstance(node, ast.Return):
                raise NoPartsError
            else:
                made.add(node, guard)
        made.flush()
        return made.nodes

    def _frame(
        self, made: _Nodes, node: ast.stmt, guard: str | None, following: Sequence[ast.stmt], *, in_loop: bool
    ) -> None:
        assert isinstance(node, ast.If | ast.For | ast.While)
        if isinstance(node, ast.For) and self.lanes.varying & {*stored(node.target)}:
            raise NoPartsError
        made.flush()
        repeats = not isinstance(node, ast.If)
        head = copy.copy(node)
        head.body, head.orelse = [ast.Pass()], []
        self._after.insert(0, [node, *following] if repeats else following)
        body, orelse = (self._block(block, guard, in_loop=in_loop or repeats) for block in (node.body, node.orelse))
        del self._after[0]
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
        """Add what only some threads of a block come to: with all barriers that follow, or with none and no end before one."""
        inner, other = (node.body, node.orelse) if any(map(waits, node.body)) else (node.orelse, node.body)
        rest = [*other, *following, *itertools.chain(*self._after)]
        others_wait = in_loop or any(map(waits, rest))
        if any(map(waits, other)):
            raise NoPartsError
        orders = not others_wait and any(map(self.order.changes, rest))
        if orders and not self._take_turns(inner, other):
            raise NoPartsError
        if others_wait and not (waits_for_lanes(inner) and self._come_to_block([*other, *following])):
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
        if others_wait:
            self._running[holds] = guard
        if any(is_exchange(part) for part in every_statement(inner)):
            self._find_lanes(made, holds)
            if orders:
                self.warps.arrays[ORDER] = "int64"
                made.nodes.append(Once(f"{TURNS}({ORDER}, {warps_of(holds)}, {self._lanes_of(None)}, {WARPS})"))
        some = self._fresh("any")
        made.nodes += map(Once, (f"{some} = False", _of_all(Kept(holds).array, "if {}:", f"    {some} = True")))
        self._after.insert(0, following)
        made.nodes.append(Around(f"if {some}:", self._block(inner, holds, in_loop=in_loop)))
        del self._after[0]
        self.in_turns = orders

    def _take_turns(self, inner: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> bool:
        """Tell whether it is known in which order threads go on behind a branch of which some wait, and only for lanes."""
        apart = (node for node in every_statement(inner) if isinstance(node, ast.If) and waits(node))
        return (
            waits_for_lanes(inner)
            and all(map(self._is_frame, apart))
            and not any(map(self.order.changes, [*other, *itertools.chain(*self._after)]))
        )

    def _come_to_block(self, following: Sequence[ast.stmt]) -> bool:
        """Tell whether threads next wait for their block, whatever they find, and do nothing before that has its order."""
        for body in (following, *self._after):
            found = first_waits(body, self.order.changes)
            if found == {ARRIVES}:
                return True
            if found - {ARRIVES, PASSES}:
                return False
        return False

    # What lanes of a warp tell each other

    def _find_lanes(self, made: _Nodes, guard: str) -> None:
        """Add what finds the lanes for which a guard holds."""
        made.flush()
        warps = self._lanes_of(guard)
        sizes = ", ".join(["_nb_b0", "_nb_b1", *(f"_nb_e{k}" for k in range(AXES))])
        made.nodes.append(Once(f"{COME}({warps}, {Kept(guard).array}, {WARPS}, {sizes})"))

    def _lanes_of(self, guard: str | None) -> str:
        """Return the name of the array of those lanes of each warp for which a guard holds, or that run."""
        self.warps.arrays.setdefault(warps_of(None), "int64")
        self.warps.arrays.setdefault(warps_of(guard), "int64")
        return warps_of(guard)

    def _exchanged(self, made: _Nodes, node: ast.stmt, guard: str | None) -> None:
        """Add an operation of warps, to which all threads come for which the guard holds."""
        call = node.value if isinstance(node, ast.Assign | ast.Expr) else None
        assert isinstance(call, ast.Call)
        operation, given = called_name(call).removeprefix(MEETING), call.args[2:]
        if given and self.lanes.varies(given[0]):
            raise NoPartsError  # lanes that name others may wait for each other in any way
        named = ast.unparse(given[0]) if given else "-1"
        mask = f"({named}) & {(1 << WARP_SIZE) - 1}"
        warps, running = self._lanes_of(guard), guard
        while running in self._running:
            running = self._running[running]
        together = [] if running == guard else [f"{PART}({warps}, {self._lanes_of(running)}, {WARPS}, {mask}, {NOW})"]
        if not isinstance(node, ast.Assign):
            made.flush()
            made.nodes += map(Once, together)
            return
        (name,) = stored(node)
        exchange = self._exchange(operation, given, name)
        self.warps.exchanges[exchange.name] = exchange
        self.warps.arrays |= exchange.arrays
        told, got = list(exchange.arrays)[:2]
        value = ast.unparse(given[1])
        made.add(statement(f"{told}[{THREAD}] = {f'({value}) != 0' if exchange.told == 'boolean' else value}"), guard)
        which = f"({ast.unparse(given[2])}) & {WARP_SIZE - 1}" if len(given) > 2 else None
        if exchange.each:
            made.add(statement(f"{WHICH}[{THREAD}] = {which}"), guard)
        made.flush()
        made.nodes += map(Once, [*together, exchange.call(warps, mask, which)])
        made.add(statement(f"{name} = {got}[{THREAD}]"), guard)

    def _exchange(self, operation: str, given: Sequence[ast.expr], name: str) -> Exchange:
        if len(given) < 3:
            return Exchange(operation, "boolean", "int32" if operation == "ballot_sync" else "boolean")
        kind = self._type_of(name)
        return Exchange(operation, kind, kind, self.lanes.varies(given[2]))

    def best_axis(self, rank: int) -> int:
        """Return along which axis threads find most side by side; the first of several."""
        costs = [
            sum(self.steps.cost(part.body, axis)[1] * 8**part.in_loop for part in self.parts) for axis in range(rank)
        ]
        return costs.index(min(costs))
