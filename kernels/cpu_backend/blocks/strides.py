"""Loops in which the threads of a block take turns, such as ``range(i, n, cuda.gridsize(1))``, as ranges that count by one.

Most trips of such a loop all threads of a block make, and only in the last one some do not come: where that can be told, the loop
becomes two, the first of which is the same for all of them. A ``while`` that counts likewise is such a loop, too.

This module changes a thread's text, and compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from numbridge.kernels.cpu_backend.blocks.syntax import AXES, blocks_of, expression, mentioned, statement, waits
from numbridge.kernels.cpu_backend.lanes import REST, is_break, stored

__all__ = ["take_turns"]

_DEEPEST = 32


def take_turns(tree: ast.FunctionDef, integers: Collection[str]) -> None:
    """Rewrite the loops of a thread's text in which threads take turns.

    Parameters
    ----------
    tree : ast.FunctionDef
        The text of a thread, changed in place.
    integers : collection of str
        The parameters that are integers, of which sums with others are signed and have 64 bits.
    """
    turns = _Turns(tree, integers)
    tree.body = turns.block(tree.body)


@dataclass
class _Counting:
    """A loop that counts.

    Attributes
    ----------
    start, stop, step : ast.expr
        What it counts from, up to, and by.
    last : str or None
        A number that no thread of the block begins to count above, if one is known.
    counter : str
        The name of what counts.
    body : list of ast.stmt
        What a trip does.
    """

    start: ast.expr
    stop: ast.expr
    step: ast.expr
    last: str | None
    counter: str
    body: list[ast.stmt]


class _Turns:
    def __init__(self, tree: ast.FunctionDef, integers: Collection[str]) -> None:
        self._times = Counter(stored(tree))
        self._loaded = _loads(tree)
        given = {argument.arg for argument in tree.args.args}
        self._given = {name for name in given if name not in self._times}
        self._integers = self._given & {*integers}
        self._definers = {
            name: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for name in stored(node)
            if self._times[name] == 1
        }
        self._count = 0

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a block."""
        found: list[ast.stmt] = []
        for node in body:
            for inner in blocks_of(node):
                inner[:] = self.block(inner)
            match node:
                case ast.For(ast.Name(counter), ast.Call(args=[start, stop, step])) if self._is_positive(step):
                    last = self._last_start(start)
                    found += self._turned(_Counting(start, stop, step, last, counter, node.body), node)
                case ast.While() if (counting := self._counted(node, found)) is not None:
                    found += self._turned(counting, None)
                case _:
                    found.append(node)
        return found

    def _turned(self, loop: _Counting, as_it_was: ast.For | None) -> list[ast.stmt]:
        """Return a loop that counts by one, or two of them; one with a number for a step as it was."""
        known = self._expanded(loop.step)
        stop = self._expanded(loop.stop)
        is_split = loop.last is not None and stop is not None and known is not None and not _leaves(loop.body)
        if as_it_was is not None and not isinstance(loop.step, ast.Name) and not is_split:
            return [as_it_was]
        self._count += 1
        first, turn, trips, common = (f"_nb_{part}_of_{self._count}" for part in ("begin", "turn", "trips", "common"))
        rest = f"{REST}_of_{self._count}"
        step = ast.unparse(loop.step) if isinstance(loop.step, ast.Name) else f"({ast.unparse(loop.step)})"
        made = [
            statement(f"{first} = {ast.unparse(loop.start)}"),
            statement(f"{trips} = ({ast.unparse(loop.stop)} - {first} - 1) // {step} + 1"),
        ]
        ranges = [(turn, f"range({trips})")]
        if is_split:
            made.append(statement(f"{common} = max(({stop} - ({loop.last}) - 1) // ({known}) + 1, 0)"))
            ranges = [(turn, f"range({common})"), (rest, f"range({common}, {trips})")]
        for number, text in ranges:
            body = [statement(f"{loop.counter} = {first} + {number} * {step}"), *copy.deepcopy(loop.body)]
            made.append(ast.For(ast.Name(number, ast.Store()), expression(text), body, [], lineno=1))
        if as_it_was is None:
            made.append(statement(f"{loop.counter} = {first} + max({trips}, 0) * {step}"))
        return made

    # A `while` that counts

    def _counted(self, node: ast.While, before: Sequence[ast.stmt]) -> _Counting | None:
        """Return a loop that counts as long as it is below a number, given the statements before it."""
        at = next((k for k, inner in enumerate(node.body) if is_break(inner)), None)
        if at is None or not _is_true(node.test) or waits(node) or any(map(is_break, node.body[at + 1 :])):
            return None
        head, (end, *body) = node.body[:at], node.body[at:]
        assert isinstance(end, ast.If)
        bounds = self._bounds(end.test)
        if bounds is None or not all(isinstance(inner, ast.Assign) for inner in head):
            return None
        counter, stop = bounds
        update = self._update(body, counter)
        start = _last_value(before, counter)
        inside = Counter(stored(node))
        last = None if start is None else self._last_start(start)
        if update is None or last is None or inside[counter] != 1:
            return None
        # What is computed before the loop ends is computed once more than the trips are.
        loads = _loads(node)
        told = {name for inner in head for name in stored(inner)}
        if any(self._loaded[name] != loads[name] for name in told):
            return None
        place, step = update
        if any(counter in mentioned(inner) for inner in body[place + 1 :]):
            return None
        trip = [*head, *body[:place], *body[place + 1 :]]
        return _Counting(ast.Name(counter, ast.Load()), stop, step, last, counter, trip)

    def _bounds(self, test: ast.expr) -> tuple[str, ast.expr] | None:
        """Return what counts, and up to which number, where a loop ends that no longer counts below that."""
        match test:
            case ast.UnaryOp(ast.Not(), ast.Name(name)) if name in self._definers:
                test = self._definers[name]
            case _:
                return None
        match test:
            case ast.Compare(ast.Name(counter), [ast.Lt()], [stop]) | ast.Compare(
                stop, [ast.Gt()], [ast.Name(counter)]
            ):
                known = self._expanded(stop)
                return None if known is None or counter in self._definers else (counter, expression(known))
        return None

    def _update(self, body: Sequence[ast.stmt], counter: str) -> tuple[int, ast.expr] | None:
        """Return which statement counts further, and by how much."""
        for place, node in enumerate(body):
            match node:
                case ast.Assign([ast.Name(name)], value) if name == counter:
                    value = self._definers.get(value.id, value) if isinstance(value, ast.Name) else value
                    match value:
                        case ast.BinOp(ast.Name(one), ast.Add(), step) | ast.BinOp(step, ast.Add(), ast.Name(one)):
                            known = self._expanded(step) if one == counter and self._is_positive(step) else None
                            return None if known is None else (place, expression(known))
        return None

    # Numbers

    def _is_positive(self, node: ast.expr, depth: int = 0) -> bool:
        match node:
            case ast.Name(name):
                if _is_size(name):
                    return True
                return (
                    depth < _DEEPEST and name in self._definers and self._is_positive(self._definers[name], depth + 1)
                )
            case ast.Constant(int() as number):
                return type(number) is int and number > 0
            case ast.BinOp(left, ast.Mult(), right):
                return self._is_positive(left, depth) and self._is_positive(right, depth)
        return False

    def _expanded(self, node: ast.expr, depth: int = 0, *, of_thread: bool = False) -> str | None:
        """Return an integer as a text of what a launch is given, the same for all threads unless it is `of_thread`; or None."""
        match node:
            case ast.Constant(number) if type(number) is int:
                return str(number)
            case ast.Subscript(ast.Attribute(ast.Name(array), "shape"), ast.Constant()) if array in self._given:
                return ast.unparse(node)
            case ast.Name(name):
                if _is_size(name) or _is_number(name, "k") or name in self._integers:
                    return name
                if of_thread and (_is_number(name, "i") or _is_number(name, "t")):
                    return name
                if depth < _DEEPEST and name in self._definers:
                    return self._expanded(self._definers[name], depth + 1, of_thread=of_thread)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() as op, right):
                parts = [self._expanded(part, depth, of_thread=of_thread) for part in (left, right)]
                if None not in parts:
                    sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}[type(op)]
                    return f"({parts[0]} {sign} {parts[1]})"
        return None

    def _last_start(self, node: ast.expr) -> str | None:
        """Return a number that no thread of the block begins to count above; None if it is not known, or all begin alike."""
        text = self._expanded(node, of_thread=True)
        if text is None or text == self._expanded(node):
            return None
        made = expression(text)
        if not all(isinstance(part, ast.expr_context | ast.operator) or self._grows(part) for part in ast.walk(made)):
            return None
        return ast.unparse(_LastThread().visit(made))

    def _grows(self, node: ast.AST) -> bool:
        """Tell whether a part of a number is none that would make it less where a thread's own number is greater."""
        match node:
            case ast.BinOp(op=ast.Add() | ast.Mult()):
                return True
            case ast.Constant(int() as number):
                return number >= 0
            case ast.Name(name):
                return _is_size(name) or any(_is_number(name, letter) for letter in "kit")
        return False


class _LastThread(ast.NodeTransformer):
    """Puts the numbers of the block's last thread in the place of a thread's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        axis = node.id[5:]
        if _is_number(node.id, "i"):
            return expression(f"_nb_k{axis} * _nb_b{axis} + _nb_b{axis} - 1")
        return expression(f"_nb_b{axis} - 1") if _is_number(node.id, "t") else node


def _is_number(name: str, letter: str) -> bool:
    return name in {f"_nb_{letter}{axis}" for axis in range(AXES)}


def _is_size(name: str) -> bool:
    """Tell whether a name is how many threads a block has along an axis, or blocks the grid."""
    return _is_number(name, "b") or _is_number(name, "g")


def _loads(node: ast.AST) -> Counter[str]:
    """Return how often each name is loaded."""
    return Counter(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Tell whether a trip may be the last, or waits for others."""
    return any(is_break(node) or waits(node) for node in body)


def _last_value(before: Sequence[ast.stmt], name: str) -> ast.expr | None:
    """Return what a name was assigned last, in a block, or None."""
    for node in reversed(before):
        if name in stored(node):
            match node:
                case ast.Assign([ast.Name()], value):
                    return value
            return None
    return None
