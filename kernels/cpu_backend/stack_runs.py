"""What generated text puts on its stacks and takes from them, for a run of statements at once.

Asking whether there is room, and counting, costs more than storing a number. So a run of statements, between two that are more
than one, makes the room for all that it pushes at its beginning, and each of them stores at its place there. What it pops it
likewise takes from a part that the stack has given up. Threads that run at once have one stack of which every entry holds one
number of each (see `lanes`): what moves it is done once for all of them, and what stores or loads by each for itself. How high a
stack was is the same for all, and goes to a stack of its own.

A thread that has its stacks alone makes the room for all trips of a simple loop before it, and brings back what a log remembers
in one call: a stack that moves in every trip would be waited for from one to the next.

Nothing is compiled here, and no types are inferred.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["COUNTED", "MOVES", "PLACED", "PUT_PLACE", "moves_stack", "undoes", "with_runs"]

_MARKS = "_marks"
_NEW, _PUSH, _POP, _HEIGHT = (f"_nb_stack_{name}" for name in ("new", "push", "pop", "height"))
_REMEMBER, _UNDO, _FREE = (f"_nb_stack_{name}" for name in ("remember", "undo", "free"))
_RESERVE, _RELEASE = "_nb_stack_reserve", "_nb_stack_release"
_PUT, PUT_PLACE, _TAKE, _RESTORE = (f"_nb_stack_{name}" for name in ("put", "put_place", "take", "restore"))
_BRING_BACK, _BEYOND, _TRIPS = (f"_nb_stack_{name}" for name in ("bring_back", "beyond", "trips"))
_SIMPLE = ast.Assign | ast.AugAssign | ast.Expr | ast.Pass
COUNTED = frozenset({_RESERVE, _RELEASE})
"""What moves a stack by a number of entries, the second argument."""
MOVES = COUNTED | {_NEW, _PUSH, _POP, _HEIGHT, _FREE}
"""What is done to a stack once, for all threads that have it together."""
PLACED = {_PUT: 1, PUT_PLACE: 1, _TAKE: 1, _RESTORE: 2}
"""What each of these threads does for itself, and in how many entries of the stack; they are the arguments after the first."""


def moves_stack(node: ast.AST) -> bool:
    """Tell whether a call, or a statement that is one or assigns one, is of `MOVES`."""
    match node:
        case ast.Expr(value) | ast.Assign(value=value):
            return moves_stack(value)
        case ast.Call(ast.Name(name)):
            return name in MOVES
    return False


def undoes(node: ast.AST) -> bool:
    """Tell whether a statement is a loop that brings back what a stack remembers."""
    return isinstance(node, ast.While) and any(map(moves_stack, ast.walk(node.test)))


def with_runs(tree: ast.Module, *, alone: bool = False) -> ast.Module:
    """Return a text in which stacks move once for a run of statements; it is changed in place.

    `alone` tells that a thread has its stacks for itself.
    """
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and any(
            isinstance(node, ast.Name) and node.id == _NEW for node in ast.walk(function)
        ):
            _Function(function, alone=alone).rewrite()
            ast.fix_missing_locations(function)
    return tree


@dataclass
class _Open:
    """What a run of statements has put on a stack so far, or taken from it.

    Attributes
    ----------
    pushes : bool
        Which of the two.
    top : str
        The name of the address of the first entry of them.
    moved : ast.Call
        What moves the stack by as many.
    count : int
        How many there are.
    """

    pushes: bool
    top: str
    moved: ast.Call
    count: int = 0

    def another(self) -> int:
        """Count one more; return its place from the top, which is behind all that is taken."""
        place = self.count if self.pushes else -1 - self.count
        self.count += 1
        self.moved.args[1] = ast.Constant(self.count)
        return place


class _Function:
    def __init__(self, tree: ast.FunctionDef, *, alone: bool) -> None:
        self._tree, self.alone = tree, alone
        self._tops = 0
        # The stacks that heights are pushed to, as well as numbers
        self._marked = {
            call.args[0].id
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and _is_height(call) and isinstance(call.args[0], ast.Name)
        }

    def rewrite(self) -> None:
        self._tree.body = self._block(self._tree.body)

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        run = _Run(self)
        for node in body:
            run.add(node)
        return run.made

    def inner(self, node: ast.stmt) -> list[ast.stmt]:
        """Rewrite the blocks of a statement; return what stands before it now."""
        if isinstance(node, ast.If | ast.For | ast.While):
            node.body = self._block(node.body)
            node.orelse = self._block(node.orelse)
        return self._ahead(node) if self.alone and isinstance(node, ast.For) else []

    def _ahead(self, loop: ast.For) -> list[ast.stmt]:
        """Let a loop whose trips push the same number of entries find the room for all of them; return what makes it."""
        trips = _trips(loop)
        if trips is None or not all(isinstance(node, _SIMPLE) for node in loop.body):
            return []
        names = [part.id for node in loop.body for part in ast.walk(node) if isinstance(part, ast.Name)]
        made: list[ast.stmt] = []
        for k, node in enumerate([*loop.body]):
            match node:
                # Nothing else in a trip may move the stack, or ask how high it is.
                case ast.Assign([ast.Name(top)], ast.Call(ast.Name(called), [ast.Name(stack), count])) if (
                    called == _RESERVE and names.count(stack) == 1
                ):
                    room = self.top()
                    every = ast.BinOp(count, ast.Mult(), trips)
                    made.append(_assign(room, _call(_RESERVE, _name(stack), every)))
                    loop.body[k] = _assign(top, _name(room))
                    loop.body.append(_assign(room, _call(_BEYOND, _name(top), count)))
        return made

    def marked(self, stack: str) -> bool:
        return stack in self._marked

    def top(self) -> str:
        self._tops += 1
        return f"_nb_top_{self._tops}"


class _Run:
    """Writes a block; `made` is what has been written."""

    def __init__(self, function: _Function) -> None:
        self._function = function
        self.made: list[ast.stmt] = []
        self._start = 0  # where the run began
        self._open: dict[str, _Open] = {}

    def add(self, node: ast.stmt) -> None:
        """Write a statement."""
        match node:
            case ast.Assign(targets=[ast.Name(stack)], value=ast.Call(ast.Name(called))) if called == _NEW:
                self._write(node)
                if self._function.marked(stack):
                    self._write(_assign(stack + _MARKS, _call(_NEW)))
                self._end()
            case ast.Expr(ast.Call(ast.Name(called), [ast.Name(stack)])) if called == _FREE:
                self._end()
                self._write(node)
                if self._function.marked(stack):
                    self._write(_expression(_FREE, _name(stack + _MARKS)))
                self._end()
            case ast.Expr(ast.Call(ast.Name(called), [ast.Name(stack), value]) as call) if called == _PUSH:
                if _is_height(call):
                    # It is that of what has been pushed until now.
                    self._end()
                    self._write(_expression(_PUSH, _name(stack + _MARKS), value))
                    self._end()
                else:
                    self._write(self._placed(_PUT, stack, value, pushes=True))
            case ast.Expr(ast.Call(ast.Name(called), [ast.Name(stack), memory, index])) if called == _REMEMBER:
                self._write(self._placed(PUT_PLACE, stack, memory, index, pushes=True))
                held = ast.Subscript(memory, index, ast.Load())
                self._write(self._placed(_PUT, stack, held, pushes=True))
            case ast.Assign(targets=[ast.Name(name)], value=ast.Call(ast.Name(called), [ast.Name(stack), like])) if (
                called == _POP
            ):
                taken = self._placed(_TAKE, stack, like, pushes=False)
                self._write(_assign(name, taken.value))
            case ast.Expr(ast.Call(ast.Name(called), [ast.Name(log), memory, ast.Call(_, [ast.Name(marks), _])])) if (
                called == _UNDO
            ):
                self._undo(log, memory, marks)
            case ast.If() | ast.For() | ast.While():
                for ahead in self._function.inner(node):
                    self._write(ahead)
                self._write(node)
                self._end()
            case _:
                self._write(node)

    def _write(self, node: ast.stmt) -> None:
        self.made.append(node)

    def _end(self) -> None:
        """End the run: what comes next may not be put off, nor what is written already be done later."""
        self._start = len(self.made)
        self._open = {}

    def _placed(self, what: str, stack: str, *given: ast.expr, pushes: bool) -> ast.Expr:
        """Return what stores or loads the next entry."""
        at = self._open.get(stack)
        if at is None or at.pushes != pushes:
            if at is not None:
                self._end()
            moved = _call(_RESERVE if pushes else _RELEASE, _name(stack), ast.Constant(0))
            at = self._open[stack] = _Open(pushes, self._function.top(), moved)
            self.made.insert(self._start, _assign(at.top, moved))
        return _expression(what, _name(at.top), ast.Constant(at.another()), *given)

    def _undo(self, log: str, memory: ast.expr, marks: str) -> None:
        self._end()
        mark, top = self._function.top(), self._function.top()
        self._write(_assign(mark, _call(_POP, _name(marks + _MARKS), ast.Constant(0))))
        if self._function.alone:
            self._write(_expression(_BRING_BACK, _name(log), memory, _name(mark)))
            self._end()
            return
        higher = ast.Compare(_call(_HEIGHT, _name(log)), [ast.Gt()], [_name(mark)])
        taken = _call(_RELEASE, _name(log), ast.Constant(2))
        places = ast.Constant(-2), ast.Constant(-1)
        self._write(ast.While(higher, [_assign(top, taken), _expression(_RESTORE, _name(top), *places, memory)], []))
        self._end()


def _is_height(call: ast.Call) -> bool:
    """Tell whether a call pushes how high a stack is."""
    match call:
        case ast.Call(ast.Name(called), [_, ast.Call(ast.Name(asked))]):
            return called == _PUSH and asked == _HEIGHT
    return False


def _trips(loop: ast.For) -> ast.expr | None:
    """Return how many trips a loop over a range of known step makes, whose bounds may be worked out twice; or None."""
    start: ast.expr = ast.Constant(0)
    match loop.iter:
        case ast.Call(ast.Name("range"), [stop]):
            step = 1
        case ast.Call(ast.Name("range"), [start, stop]):
            step = 1
        case ast.Call(ast.Name("range"), [start, stop, ast.Constant(int(step))]) if step > 0:
            pass
        case ast.Call(ast.Name("range"), [start, stop, ast.UnaryOp(ast.USub(), ast.Constant(int(down)))]) if down > 0:
            start, stop, step = stop, start, down
        case _:
            return None
    if any(isinstance(part, ast.Call) for bound in (start, stop) for part in ast.walk(bound)):
        return None
    return _call(_TRIPS, start, stop, ast.Constant(step))


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _call(function: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_name(function), [*arguments], [])


def _expression(function: str, *arguments: ast.expr) -> ast.Expr:
    return ast.Expr(_call(function, *arguments))


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)
