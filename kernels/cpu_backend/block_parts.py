"""The text of a thread that waits for its block, taken apart at the barriers: what runs once, and what runs for each thread.

Where all threads of a block come to each barrier together, a barrier is a border between two loops over the threads: all run
up to it, one after another, and then all go on. Control around barriers runs once for the block, and what is the same for all
of its threads is computed once; everything between two borders is a *part*, a function of one thread. What a thread knows
longer than one part lies in memory of the block's, by the thread's number, or is computed again where that is little. Parts
keep the order of a thread's own operations. What threads add to the same memory between two barriers they add in the order
of their numbers, here as everywhere. This module reads generated text, in which every name has one type and control flow is a
handful of statements, and writes such text; it compiles nothing.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from numbridge.kernels.cpu_backend.block_source import CREW, THREAD
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
from numbridge.kernels.cpu_backend.name_webs import split_names

__all__ = ["AT", "LIVE", "REST", "SIZE", "Block", "Kept", "NoPartsError", "Part", "apart", "without_coroutine"]

AT = "_nb_iat"
"""A part's parameter that is one more for the next thread: its place along the axis along which parts go through a block."""
REST = "_nb_rest"
"""What the counter of a loop over threads is called that is to be left as it is."""
LIVE, SIZE = "_nb_live", "_nb_size"
"""How many threads of the block run, and how many it may have."""
_SLOT, _ROW, _FROM = "_nb_slot", "_nb_irow", "_nb_ifrom"
_NUMBER = "_nb_inumber"
_MEETING, _STACK, _NEW_STACK, _PART = "_nb_block_", "_nb_crew_stack_", "_nb_crew_stack_new", "_nb_part_"
_BARRIER, _COUNTS = f"{_MEETING}syncthreads", tuple(f"{_MEETING}syncthreads_{name}" for name in ("count", "and", "or"))
# What threads say, one after another.
_REFUSED = ("_nb_check", "_nb_print")
_MEMORY = ("_nb_shared", "_nb_elements", "_nb_field")
# What changes memory that threads share one after another; the array is the second argument of those that are told how.
_ORDERED, _TOLD = ("_nb_add", "_nb_atomic_"), ("_nb_add_either",)
_AXES = 3
_OWN_NAMES = [AT, _ROW, _NUMBER, *(f"_nb_{letter}{k}" for letter in "bgkit" for k in range(_AXES))]
_OWN_NAMES += [f"{_FROM}{k}" for k in range(_AXES)]
# A name is computed again in another part if that takes no more statements.
_FEW = 6


class NoPartsError(Exception):
    """The text cannot be taken apart at its barriers."""


@dataclass(frozen=True)
class Kept:
    """Memory for something of every thread: a name, with the extents of an array of the thread's own."""

    name: str
    extents: tuple[int, ...] = ()

    @property
    def array(self) -> str:
        """Return the name of the array, whose last index is a thread's number."""
        return f"_nb_kept_{self.name}"


@dataclass(eq=False)
class Part:
    """What a thread does between two borders.

    Attributes
    ----------
    number : int
        Its number in the text.
    body : list of ast.stmt
        Its statements.
    in_loop : bool
        Whether a loop around it comes by several times.
    tree : ast.FunctionDef
        The function.
    parameters : list of str
        What it takes; `AT` comes first.
    in_order : bool
        Whether threads must run in the order of their numbers, one after another.
    side_by_side : bool
        Whether several threads may run at once, and find what they read and write side by side.
    does_something : bool
        Whether anybody learns of it.
    """

    number: int
    body: list[ast.stmt]
    in_loop: bool
    tree: ast.FunctionDef = field(init=False)
    parameters: list[str] = field(init=False)
    in_order: bool = False
    side_by_side: bool = False
    does_something: bool = True

    @property
    def name(self) -> str:
        """Return the function's name."""
        return f"{_PART}{self.number}"


@dataclass(frozen=True, eq=False)
class _Once:
    """A statement that runs once for the block; a line of text, where it has no others in it."""

    text: str


@dataclass(frozen=True, eq=False)
class _Around:
    """Control that runs once for the block."""

    head: str
    body: list[_Node]
    orelse: list[_Node] = field(default_factory=list)
    repeats: bool = False


class _Border:
    """Where all threads wait for each other."""


_Node = Part | _Once | _Around | _Border


@dataclass(eq=False)
class Block:
    """A text that has been taken apart.

    Attributes
    ----------
    axis : int
        Along which axis of the block parts go through it.
    parts : list of Part
        The functions of one thread.
    kept : list of Kept
        What lies in memory of the block's for every thread.
    rooms : list of str
        Names of the addresses of memory for the stacks of all threads.
    nonnegative : set of str
        Integers that are never negative.
    """

    name: str
    hidden: list[str]
    names: list[str]
    rank: int
    axis: int
    nodes: list[_Node]
    parts: list[Part]
    kept: list[Kept]
    rooms: list[str]
    nonnegative: set[str]

    @property
    def parameters(self) -> list[str]:
        """Return what the function for a whole block takes."""
        sizes = [f"_nb_{letter}{k}" for letter in "kbe" for k in range(_AXES)]
        own = [name for name in self.hidden if name not in (CREW, *sizes) and not _is_of_thread(name)]
        return [CREW, *sizes, *own, *self.names]

    def text(self, widths: Mapping[str, int], lanes: str) -> str:
        """Return the source of the parts and of the function for a whole block.

        `widths` says which parts have another function, for so many threads at once, whose name begins with `lanes`.
        """
        parts = [f"@_nb_device\n{ast.unparse(part.tree)}\n\n\n" for part in self.parts if part.does_something]
        lines = [
            f"{LIVE} = _nb_e0 * _nb_e1 * _nb_e2",
            f"{SIZE} = _nb_b0 * _nb_b1 * _nb_b2",
            *(f"{_FROM}{k} = _nb_k{k} * _nb_b{k}" for k in range(min(self.rank, _AXES))),
            *(f"{kept.array} = _nb_keep_{k}({CREW}, {SIZE})" for k, kept in enumerate(self.kept)),
            *(f"{room} = _nb_crew_stack_room_{k}({CREW}, {SIZE})" for k, room in enumerate(self.rooms)),
            *self._lines(self.nodes, widths, lanes),
            "pass",
        ]
        head = f"def {self.name}({', '.join(self.parameters)}):"
        return "".join(parts) + "\n".join(["@_nb_device", head, *(f"    {line}" for line in lines), ""])

    def _lines(self, nodes: Sequence[_Node], widths: Mapping[str, int], lanes: str) -> Iterator[str]:
        for node in nodes:
            match node:
                case Part() if node.does_something:
                    yield from self._calls(node, widths.get(node.name), lanes)
                case _Once():
                    yield from node.text.splitlines()
                case _Around():
                    for head, body in ((node.head, node.body), ("else:", node.orelse)):
                        if body or head != "else:":
                            yield head
                            yield from (f"    {line}" for line in self._lines(body, widths, lanes))
                            yield "    pass"

    def _calls(self, part: Part, width: int | None, lanes: str) -> Iterator[str]:
        """Yield the loops over the threads of a block in which a part runs."""
        axis = 0 if part.in_order else self.axis
        outer, n = _around(axis), part.number
        at = {k: f"_nb_at{k}_{n}" for k in range(_AXES)}
        yield f"for {at[outer[0]]} in range(_nb_e{outer[0]}):"
        yield f"    for {at[outer[1]]} in range(_nb_e{outer[1]}):"
        inner = "        "
        if width is None:
            yield f"{inner}for {at[axis]} in range(_nb_e{axis}):"
            yield f"{inner}    {part.name}({', '.join(self._given(part, at, at[self.axis]))})"
            return
        first, together = f"_nb_whole_{n}", f"_nb_lane_{n}"
        yield f"{inner}{first} = _nb_e{axis} // {width} * {width}"
        yield f"{inner}for {together} in range(0, {first}, {width}):"
        yield f"{inner}    {lanes}{part.name}({', '.join(self._given(part, at, together))})"
        rest = f"{REST}_{n}"
        yield f"{inner}for {rest} in range({first}, _nb_e{axis}):"
        yield f"{inner}    {part.name}({', '.join(self._given(part, at, rest))})"

    def _given(self, part: Part, at: Mapping[int, str], along: str) -> Iterator[str]:
        """Yield the arguments of a part for the thread at a place; only along the axis is it another in the function."""
        outer, inner = _around(self.axis)
        known = {f"_nb_t{k}": at[k] for k in (outer, inner)}
        known |= {f"_nb_i{k}": f"{_FROM}{k} + {at[k]}" for k in (outer, inner)}
        known[_ROW] = f"({at[outer]} * _nb_e{inner} + {at[inner]}) * _nb_e{self.axis}"
        first = {**at, self.axis: "0"}
        known[_NUMBER] = f"{first[0]} + _nb_b0 * ({first[1]} + _nb_b1 * {first[2]})"
        known[AT] = along
        return (known.get(name, name) for name in part.parameters)


def _around(axis: int) -> tuple[int, int]:
    """Return the axes of the loops around one along an axis, the outermost first."""
    return ((2, 1), (2, 0), (1, 0))[axis]


def _is_of_thread(name: str) -> bool:
    """Tell whether a hidden name differs between threads of a block."""
    return name in (THREAD, _SLOT, AT) or (name[:5] in ("_nb_i", "_nb_t") and name[5:].isdigit())


def without_coroutine(tree: ast.FunctionDef) -> ast.FunctionDef:
    """Return a function as `for_crew` made it without what makes a coroutine of it; changed in place."""

    def kept(node: ast.stmt) -> bool:
        match node:
            case ast.Expr(ast.Call(ast.Name("_nb_start" | "_nb_finish"))):
                return False
        return True

    tree.body = [node for node in tree.body if kept(node)]
    return tree


def _loads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _called(node: ast.AST) -> Iterator[ast.Call]:
    return (n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))


def _name(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Name)
    return call.func.id


def _waits(node: ast.AST) -> bool:
    return any(_name(call).startswith(_MEETING) for call in _called(node))


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _value(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _heads(node: ast.stmt) -> list[ast.expr]:
    match node:
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
            return [head]
    return []


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    return [block for name in ("body", "orelse") if (block := getattr(node, name, None))]


class _Indices(ast.NodeTransformer):
    """Puts the thread's and the block's own numbers in the place of what is computed from a thread's index."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.Name(index), ast.FloorDiv() | ast.Mod() as op, ast.Name(extent)):
                number = index.removeprefix("_nb_i")
                if number.isdigit() and index == f"_nb_i{number}" and extent == f"_nb_b{number}":
                    return ast.Name(f"_nb_{'t' if isinstance(op, ast.Mod) else 'k'}{number}", ast.Load())
        return node


class _Meetings(ast.NodeTransformer):
    """Gives what threads count together in a statement a name of its own, before the statement."""

    def __init__(self) -> None:
        self._count = 0

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return a block's statements, with those that count before them."""
        found: list[ast.stmt] = []
        for node in body:
            self._before: list[ast.stmt] = []
            if isinstance(node, ast.While) and _waits(node.test):
                raise NoPartsError
            match node:
                case ast.If(test=test):
                    node.test = self.visit(test)
                case ast.For(iter=head):
                    node.iter = self.visit(head)
                case ast.Assign(value=value) if not self._is_meeting(value):
                    node.value = self.visit(value)
            found += [*self._before, node]
            for inner in _blocks(node):
                inner[:] = self.block(inner)
        return found

    @staticmethod
    def _is_meeting(value: ast.expr) -> bool:
        return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and _name(value) in _COUNTS

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not self._is_meeting(node):
            return node
        name = f"_nb_met_{self._count}"
        self._count += 1
        self._before.append(ast.Assign([ast.Name(name, ast.Store())], node))
        return ast.Name(name, ast.Load())


class _Ranges(ast.NodeTransformer):
    """Puts numbers in the place of names in ranges, whose lengths are known then."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self._known = known
        self._inside = False

    def visit_For(self, node: ast.For) -> ast.For:
        self._inside = True
        node.iter = self.visit(node.iter)
        self._inside = False
        node.body = [self.visit(inner) for inner in node.body]
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self._inside and isinstance(node.ctx, ast.Load) and node.id in self._known:
            return ast.Constant(self._known[node.id])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.Constant(int() as left), ast.Add() | ast.Sub() as op, ast.Constant(int() as right)):
                if self._inside and (number := left + right if isinstance(op, ast.Add) else left - right) >= 0:
                    return ast.Constant(number)
        return node


def _numbers(tree: ast.FunctionDef) -> dict[str, int]:
    """Return the names that are the same small number wherever they are known."""
    given: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value):
                given.setdefault(name, []).append(value)
            case ast.AugAssign(ast.Name(name)) | ast.For(ast.Name(name)):
                given.setdefault(name, []).append(None)
    found = {}
    for name, values in given.items():
        match values:
            case [ast.Constant(int() as number)] if type(number) is int and number >= 0:
                found[name] = number
    return found


class _Strides:
    """Makes ranges whose step is known to be positive, and no number, ranges that count by one."""

    def __init__(self, tree: ast.FunctionDef) -> None:
        made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        names = [name for node in made for name in stored(node)]
        self._definers = {
            name: node.value
            for node in made
            for name in stored(node)
            if names.count(name) == 1 and _is_product(node.value)
        }
        self._count = 0
        tree.body = self._block(tree.body)

    def _is_positive(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(name):
                if name[:5] in ("_nb_b", "_nb_g") and name[5:].isdigit():
                    return True
                return name in self._definers and self._is_positive(self._definers[name])
            case ast.Constant(int() as number):
                return number > 0
            case ast.BinOp(left, ast.Mult(), right):
                return self._is_positive(left) and self._is_positive(right)
        return False

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for node in body:
            for inner in _blocks(node):
                inner[:] = self._block(inner)
            match node:
                case ast.For(target, ast.Call(args=[start, stop, ast.Name() as step])) if self._is_positive(step):
                    self._count += 1
                    first, turn = (f"_nb_{part}_of_{self._count}" for part in ("begin", "turn"))
                    found.append(_statement(f"{first} = {ast.unparse(start)}"))
                    node.iter = _value(f"range(({ast.unparse(stop)} - {first} - 1) // {step.id} + 1)")
                    node.target = ast.Name(turn, ast.Store())
                    node.body.insert(0, _statement(f"{ast.unparse(target)} = {first} + {turn} * {step.id}"))
            found.append(node)
        return found


def _is_product(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult))


def prepared(tree: ast.FunctionDef) -> ast.FunctionDef:
    """Return a thread's text as it is to be typed and taken apart; changed in place."""
    without_coroutine(tree)
    _Indices().visit(tree)
    _Strides(tree)
    tree.body = _Meetings().block(tree.body)
    split_names(tree)
    _Ranges(_numbers(tree)).visit(tree)
    return ast.fix_missing_locations(tree)


def _is_call(node: ast.stmt, called: Collection[str]) -> bool:
    match node:
        case ast.Expr(ast.Call(ast.Name(name))):
            return name in called
    return False


def _is_barrier(node: ast.stmt) -> bool:
    return _is_call(node, (_BARRIER,))


def _is_count(node: ast.stmt) -> bool:
    match node:
        case ast.Assign([ast.Name()], ast.Call(ast.Name(called))):
            return called in _COUNTS
    return False


def _new_stack(node: ast.stmt) -> str | None:
    """Return the name of the stack that a statement makes, or None."""
    match node:
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name(called))) if called == _NEW_STACK:
            return name
    return None


def _made_in_block(node: ast.AST) -> str | None:
    """Return the name of the block's own memory that a statement makes, or None."""
    match node:
        case ast.Assign([ast.Name(name)], ast.Call() as made) if any(_name(c) == "_nb_shared" for c in _called(made)):
            return name
    return None


def _extents(node: ast.AST) -> tuple[int, ...]:
    assert isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    found = ast.literal_eval(node.value.args[0])
    return tuple(found) if isinstance(found, tuple) else (int(found),)


def _changed_arrays(node: ast.AST) -> Iterator[str]:
    """Yield the arrays to which a statement stores elements, or statements in it."""
    for part in ast.walk(node):
        match part:
            case ast.Subscript(ast.Name(name), ctx=ast.Store()):
                yield name


def _used_otherwise(tree: ast.AST) -> set[str]:
    """Return the names that stand for more than one of an array's elements somewhere."""
    found: set[str] = set()
    for node in ast.walk(tree):
        inner = list(ast.iter_child_nodes(node))
        match node:
            case ast.Subscript(ast.Name(), ast.Name() | ast.BinOp() | ast.Tuple()):
                inner = [node.slice]
            case ast.Subscript(ast.Name(), ast.Constant(int())):
                inner = []
        found |= {part.id for part in inner if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    return found


def _mentions(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _stores(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


_Loops = tuple[ast.For | ast.While, ...]


def _with_loops(body: Sequence[ast.stmt], loops: _Loops) -> Iterator[tuple[_Loops, ast.AST]]:
    """Yield simple statements and the heads of others, with the loops around them."""
    for node in body:
        blocks = _blocks(node)
        if not blocks:
            yield loops, node
            continue
        yield from ((loops, head) for head in _heads(node))
        around = (*loops, node) if isinstance(node, ast.For | ast.While) else loops
        for block in blocks:
            yield from _with_loops(block, around)


def _read_first(body: Sequence[ast.stmt], known: set[str]) -> set[str]:
    """Return the names that are read where a block has not surely assigned them yet; `known` gets those that it has."""
    found: set[str] = set()
    for node in body:
        match node:
            case ast.Assign([ast.Name(name)], value):
                found |= _loads(value) - known
                known.add(name)
            case ast.AugAssign(ast.Name(name), _, value):
                found |= (_loads(value) | {name}) - known
                known.add(name)
            case ast.If(test, then, orelse):
                found |= _loads(test) - known
                sides = [set(known), set(known)]
                for side, block in zip(sides, (then, orelse), strict=True):
                    found |= _read_first(block, side)
                known |= sides[0] & sides[1]
            case ast.For(ast.Name(name), head, inner):
                found |= _loads(head) - known
                found |= _read_first(inner, known | {name})
            case ast.While(test, inner):
                found |= _loads(test) - known
                found |= _read_first(inner, set(known))
            case _:
                found |= _loads(node) - known
    return found


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
        filled = f"{Kept(self._own).array}[{', '.join([*places, _SLOT])}] = {ast.unparse(value)}"
        heads = [
            f"{'    ' * axis}for {place} in range({extent}):"
            for axis, (place, extent) in enumerate(zip(places, self._extents, strict=True))
        ]
        return _statement("\n".join([*heads, "    " * len(heads) + filled]))

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
        return ast.Tuple([*made, ast.Name(_SLOT, ast.Load())], ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(ast.Name("_nb_crew_stack_undo"), [log, ast.Name(name), mark]) if name == self._own:
                # Of the array nothing counts but its type.
                return ast.Call(node.func, [self.visit(log), self._array(), self.visit(mark)], [])
            case ast.Call(ast.Name("_nb_crew_stack_remember"), [log, ast.Name(name), index]) if name == self._own:
                return ast.Call(node.func, [self.visit(log), self._array(), self._index(_places(index))], [])
            case ast.Call(ast.Name(called), [ast.Name(name), index, *rest]) if name == self._own:
                if called.startswith(_ORDERED) and not called.startswith(_TOLD):
                    return ast.Call(node.func, [self._array(), self._index(_places(index)), *map(self.visit, rest)], [])
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self._own:
            raise NoPartsError
        return node


def _places(index: ast.expr) -> list[ast.expr]:
    """Return the parts of an index that is handed on."""
    return index.elts if isinstance(index, ast.Tuple) else [index]


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
        self.nodes: list[_Node] = []
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
            if not isinstance(node, _Border):
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
        self.nodes.append(_Border())

    def once(self, node: ast.stmt) -> None:
        """Add a statement that runs once: before those of threads that wait to become a part, where nobody sees that."""
        lanes, waiting = self._reader.lanes, [other for other, _ in self._waiting]
        changed = {*stored(node), *_changed_arrays(node)}
        loads = any(isinstance(part, ast.Subscript) for part in ast.walk(node))
        seen = any(changed & _mentions(other) for other in waiting)
        if is_break(node) or seen or (loads and any(map(lanes.changes_memory, waiting))):
            self.flush()
        self.nodes.append(_Once(ast.unparse(node)))


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
    if not 0 < rank <= _AXES:
        raise NoPartsError
    reader = _Reader(tree, arrays, once, computes)
    nodes = reader.nodes()
    axis = reader.best_axis(rank)
    reader.finish(axis, {*hidden, *names})
    kept = [Kept(name, reader.own.get(name, ())) for name in sorted(reader.kept)]
    known = {*nonnegative, AT, _ROW, _NUMBER, *(f"_nb_{letter}{k}" for letter in "ti" for k in range(_AXES))}
    return Block(name, list(hidden), list(names), rank, axis, nodes, reader.parts, kept, reader.rooms, known)


class _Reader:
    """Takes a thread's text apart."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        arrays: Collection[str],
        once: Collection[str],
        computes: Callable[[ast.expr], bool],
    ) -> None:
        every = list(ast.walk(tree))
        if any(isinstance(node, ast.Name) and node.id.startswith(_REFUSED) for node in every):
            raise NoPartsError
        own = {name: node for node in every if (name := local_array_name(node)) is not None}
        shared = frozenset(arrays) - own.keys()
        threads = {f"_nb_{letter}{k}" for letter in "it" for k in range(_AXES)} | {THREAD}
        self.tree = tree
        # Arrays of a thread's own in which all threads have the same are one.
        self.alike = own.keys() - _used_otherwise(tree)
        private = frozenset(own.keys() - self.alike)
        self.lanes = Lanes(tree, THREAD, shared, private, touched_arrays(every, shared), computes, threads)
        without_unread(self.lanes, tree.body, read_names(self.lanes, every))
        self.once = set(once)
        self.own = {name: _extents(node) for name, node in own.items()}
        self.of_block = {name for node in every if (name := _made_in_block(node)) is not None}
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
            if isinstance(node, ast.stmt) and _waits(node)
            for head in [*_heads(node), *(s.test for block in _blocks(node) for s in block if is_break(s))]
            for name in _loads(head)
        }
        before = -1
        while len(found) > before:
            before = len(found)
            for node in every:
                if isinstance(node, ast.Assign | ast.AugAssign) and found & set(stored(node)):
                    found |= _loads(node.value)
                elif isinstance(node, ast.If | ast.For | ast.While) and found & set(stored(node)):
                    found |= {name for head in _heads(node) for name in _loads(head)}
        return found

    def _is_once(self, node: ast.stmt) -> bool:
        """Tell whether a statement does the same for all threads, and nothing but compute."""
        lanes = self.lanes
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(called))) if called in _COUNTS:
                return False
            case ast.Assign([ast.Name(name)]) | ast.AugAssign(ast.Name(name)):
                return name not in lanes.varying and name not in self.own and not lanes.varies(node.value)
            case ast.Assign([ast.Subscript(ast.Name(name), index)], value) if name in self.alike:
                return not lanes.varies(index) and not lanes.varies(value)
            case ast.Pass() | ast.Break():
                return True
            case ast.If() | ast.For() | ast.While():
                if _waits(node) or any(map(lanes.varies, _heads(node))) or lanes.varying & set(stored(node)):
                    return False
                return all(self._is_once(inner) for block in _blocks(node) for inner in block)
        return False

    def _is_frame(self, node: ast.stmt) -> bool:
        """Tell whether control runs once for the block, around parts."""
        if not isinstance(node, ast.If | ast.For | ast.While) or any(map(self.lanes.varies, _heads(node))):
            return False
        return _waits(node) or bool(self._needed & set(stored(node)))

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
            if self._is_once(node) or self._makes_memory(node) or _is_count(node) or local_array_name(node) is not None:
                continue
            if self._is_frame(node) or (isinstance(node, ast.If) and _waits(node)):
                for block in _blocks(node):
                    if self._is_frame(node) or any(map(_waits, block)):
                        self._mark_block(block)
                    else:
                        self._mark_all(block)
            else:
                self._mark_all([node])

    def _mark_all(self, body: Sequence[ast.stmt]) -> None:
        self.lanes.varying |= {name for node in body for name in stored(node)} - self.own.keys()
        apart = self.alike & {name for node in body for name in _changed_arrays(node)}
        self.alike -= apart
        self.lanes.private |= apart

    def _makes_memory(self, node: ast.stmt) -> bool:
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(called))):
                return called in _MEMORY and name in self.lanes.arrays
        return False

    # Parts, and what is around them

    def nodes(self) -> list[_Node]:
        """Return the text's parts, and what is around them."""
        self._mark()
        self._after: list[ast.stmt] = []
        found = self._block(self.tree.body, None, in_loop=False)
        self._check_order(found, set())
        return found

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"_nb_{stem}_{self._count}"

    def _block(self, body: Sequence[ast.stmt], guard: str | None, *, in_loop: bool) -> list[_Node]:
        made = _Nodes(self, in_loop=in_loop)
        for place, node in enumerate(body):
            if self._makes_memory(node):
                if any(_name(call) == "_nb_local_array" for call in _called(node)):
                    raise NoPartsError
                made.nodes.append(_Once(ast.unparse(node)))
            elif local_array_name(node) is not None:
                if in_loop:
                    raise NoPartsError
                if local_array_name(node) in self.alike:
                    made.nodes.append(_Once(ast.unparse(node)))
            elif (stack := _new_stack(node)) is not None:
                room = self._fresh("room")
                self.rooms.append(room)
                made.add(_statement(f"{stack} = _nb_crew_stack_at({CREW}, {room}, {_SLOT})"), guard)
            elif _is_barrier(node):
                made.border()
            elif _is_count(node):
                self._counted(made, node, guard)
            elif self._is_once(node):
                made.once(node)
            elif self._is_frame(node):
                self._frame(made, node, guard, in_loop=in_loop)
            elif isinstance(node, ast.If) and _waits(node):
                self._guarded(made, node, guard, body[place + 1 :], in_loop=in_loop)
            elif _waits(node) or is_break(node) or isinstance(node, ast.Return):
                raise NoPartsError
            else:
                made.add(node, guard)
        made.flush()
        return made.nodes

    def _frame(self, made: _Nodes, node: ast.stmt, guard: str | None, *, in_loop: bool) -> None:
        made.flush()
        repeats = isinstance(node, ast.For | ast.While)
        head = copy.copy(node)
        assert isinstance(head, ast.If | ast.For | ast.While)
        head.body, head.orelse = [ast.Pass()], []
        blocks = [self._block(block, guard, in_loop=in_loop or repeats) for block in (node.body, node.orelse)]  # type: ignore[attr-defined]
        made.nodes.append(_Around(ast.unparse(head).splitlines()[0], *blocks, repeats=repeats))

    def _counted(self, made: _Nodes, node: ast.stmt, guard: str | None) -> None:
        """Add what counts the threads of which something holds."""
        assert isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        told, holds = self._fresh("told"), ast.unparse(node.value.args[-1])
        if guard is not None:
            made.add(_statement(f"{told} = 0"), None)
        # numba.cuda's is int32: of a wider integer the low half counts.
        made.add(_statement(f"{told} = 3 if ({holds}) & 4294967295 != 0 else 1"), guard)
        self.kept.add(told)
        self.lanes.varying.add(told)
        made.border()
        counted = _name(node.value).removeprefix(f"{_BARRIER}_")
        made.nodes += map(_Once, _learned(counted, ast.unparse(node.targets[0]), Kept(told).array))

    def _guarded(
        self, made: _Nodes, node: ast.If, guard: str | None, following: Sequence[ast.stmt], *, in_loop: bool
    ) -> None:
        """Add what only some threads of a block come to, with all barriers that follow."""
        inner, other = (node.body, node.orelse) if any(map(_waits, node.body)) else (node.orelse, node.body)
        rest = [*other, *following, *self._after]
        if in_loop or any(map(_waits, rest)) or any(self._orders(part) for part in rest):
            raise NoPartsError
        holds, passes = self._fresh("guard"), ast.unparse(node.test)
        yes = inner is node.body
        if guard is not None and any(isinstance(part, ast.Call | ast.Subscript) for part in ast.walk(node.test)):
            raise NoPartsError
        comes = f"({yes} if {passes} else {not yes})"
        made.add(_statement(f"{holds} = {comes if guard is None else f'{comes} if {guard} else False'}"), None)
        if not all(isinstance(part, ast.Pass) for part in other):
            made.add(ast.If(ast.Name(holds, ast.Load()), [ast.Pass()], list(other)), guard)
        self.kept.add(holds)
        self.lanes.varying.add(holds)
        made.flush()
        some = self._fresh("any")
        made.nodes += map(_Once, (f"{some} = False", _of_all(Kept(holds).array, "if {}:", f"    {some} = True")))
        self._after, before = [*following, *self._after], self._after
        made.nodes.append(_Around(f"if {some}:", self._block(inner, holds, in_loop=False)))
        self._after = before

    # What threads do to the same memory, in their order

    def _orders(self, node: ast.AST) -> list[tuple[str, ast.Call]]:
        """Return what changes memory that threads share one after another, and which that is."""
        found = []
        for call in _called(node):
            called = _name(call)
            if called.startswith(_ORDERED):
                array = call.args[called.startswith(_TOLD)]
                if not isinstance(array, ast.Name):
                    raise NoPartsError
                if array.id not in self.lanes.private:
                    # Arguments may share memory; what a block makes does not.
                    found.append((array.id if array.id in self.of_block else "", call))
            elif not called.startswith((_STACK, _MEETING, *_MEMORY)) and self.lanes.has_effect(call):
                raise NoPartsError
        return found

    def _check_order(self, nodes: Sequence[_Node], since: set[str]) -> set[str]:
        """Refuse what threads would do in another order than one after another up to each barrier; return what is open."""
        for node in nodes:
            match node:
                case _Border():
                    since = set()
                case Part():
                    changed = {memory for part in node.body for memory, _ in self._orders(part)}
                    if changed & since:
                        raise NoPartsError
                    since = since | changed
                case _Around():
                    inside = self._check_order(node.body, since)
                    if node.repeats:
                        inside = self._check_order(node.body, inside)
                    since = since | inside | self._check_order(node.orelse, since)
        return since

    def _must_be_in_order(self, part: Part, axis: int) -> bool:
        """Tell whether threads that run together along an axis would change an element in another order than by number."""
        seen: set[str] = set()
        for loops, node in _with_loops(part.body, ()):
            for memory, call in self._orders(node):
                told = _name(call).startswith(_TOLD)
                places = _places(call.args[1 + told])
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
        same = all(self.step(bound, axis) == 0 for bound in loop.iter.args for axis in range(_AXES))
        return same and any(self._alias(place) == loop.target.id for place in places)

    def _alias(self, node: ast.expr) -> str | None:
        while isinstance(node, ast.Name):
            if node.id not in self._definers:
                return node.id
            node = self._definers[node.id]
        return None

    def _tells_thread(self, place: ast.expr) -> bool:
        """Tell whether an index tells one of a thread's first two coordinates."""
        return (self.step(place, 0), self.step(place, 1)) in ((0, 1), (1, 0))

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
        for loops, node in _with_loops(body, ()):
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
            stacks = any(_name(call).startswith(_STACK) for node in part.body for call in _called(node))
            part.side_by_side = not part.in_order and not stacks and beside >= lying
        self._place_own_arrays()
        read = {part: self._read_first(part.body) & self.lanes.varying for part in self.parts}
        again = {part: self._again(read[part]) for part in self.parts}
        threads = {name for name in self.lanes.varying if _is_of_thread(name)}
        for part in self.parts:
            made = {name for node in again[part] for name in stored(node)}
            needed = read[part] | {name for node in again[part] for name in _loads(node) & self.lanes.varying}
            read[part] = needed - made - threads
            self.kept |= read[part]
        self.kept -= threads
        self._names = (
            {name for node in ast.walk(self.tree) for name in _stores(node)} | self.kept | {*given, *_OWN_NAMES}
        )
        self._names |= {Kept(name).array for name in self.kept} | {*self.rooms}
        for part in self.parts:
            self._make(part, read[part], again[part], axis)

    def _read_first(self, body: Sequence[ast.stmt]) -> set[str]:
        return _read_first(body, set())

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
        for inner in sorted(_loads(self._definers[name]) & self.lanes.varying):
            if not _is_of_thread(inner):
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
                    fixed = name in self.once or _is_of_thread(name)
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
            users = [part for part in self.parts if any(name in _mentions(node) for node in part.body)]
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
        _read_first(part.body, known)
        written = {name for node in part.body for name in stored(node)} & self.kept - self.own.keys()
        part.does_something = bool(written) or any(map(self.lanes.changes_memory, part.body))
        load = (set(read) | (written - known)) & self.kept - self.own.keys()
        body: list[ast.stmt] = [
            *(_statement(f"{name} = {Kept(name).array}[{_SLOT}]") for name in sorted(load)),
            *map(copy.deepcopy, again),
            *part.body,
            *(_statement(f"{Kept(name).array}[{_SLOT}] = {name}") for name in sorted(written)),
        ]
        numbers = {
            f"_nb_t{axis}": AT,
            f"_nb_i{axis}": f"{_FROM}{axis} + {AT}",
            _SLOT: f"{_ROW} + {AT}",
            THREAD: " * ".join([f"{_NUMBER} + {AT}", *(f"_nb_b{k}" for k in range(axis))]),
        }
        used = _read_first(body, set())
        body = [*(_statement(f"{name} = {text}") for name, text in numbers.items() if name in used), *body]
        part.body = body
        free = _read_first(body, set())
        part.parameters = [AT, *sorted(name for name in free if name != AT and name in self._names)]
        arguments = ast.arguments([], [ast.arg(name) for name in part.parameters], None, [], [], None, [])
        part.tree = ast.FunctionDef(part.name, arguments, body, [], None, None, type_params=[])
        ast.fix_missing_locations(part.tree)
