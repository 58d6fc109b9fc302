"""Another body for most of the threads, in which what a kernel computes of its index is simpler.

On a grid with periodic boundaries a kernel asks for its neighbours by ``x[(i + 1) % n]``. But for the last of a row that is
``x[i + 1]``, of which LLVM makes vectors. So there is another body for threads whose indices are far enough from both ends for
all such remainders, and the loop around the body runs it for them.

A kernel of one index may make several of it: ``i // w`` and ``i % w``, a row and a column. Threads of one row stand side by side,
and the other body is told it, so that the column is a difference; and what is divided of a row is divided once for all of them.

This module writes these bodies, and compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from numbridge.kernels.cpu_backend.active_range import IndexReading
from numbridge.kernels.language.parsing import parsed_expression

__all__ = ["INSIDE", "ROW", "Interior", "remainder_text", "with_interior"]

INSIDE = "_nb_inside_"
"""What stands before a body's name in that of another for threads inside of a row."""
ROW = "_nb_row"
"""What the row is called that threads are in, if their only index is split."""


@dataclass(frozen=True)
class Interior:
    """Which threads a body's simpler form is right for.

    Attributes
    ----------
    entry : str
        The other body's name.
    rows : tuple of str
        What must hold for their row.
    starts : tuple of str
        Last indices of which none is greater than those of such threads.
    stops : tuple of str
        Last indices that are all greater than those of such threads.
    width : str
        What the only index is divided by, if it is split into rows and columns; that must be positive. Starts and stops are
        columns then.
    factors : tuple of str
        What must be positive, too: the width times such a factor divides the index.
    told : tuple of (str, str)
        What the body takes after its parameters, and what that is in a row.
    """

    entry: str
    rows: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    width: str = ""
    told: tuple[tuple[str, str], ...] = ()
    factors: tuple[str, ...] = ()


def with_interior(tree: ast.FunctionDef, reading: IndexReading) -> tuple[ast.FunctionDef, Interior] | None:
    """Return a simpler body, and which threads it is for; None if no quotient or remainder of an index makes one.

    Parameters
    ----------
    tree : ast.FunctionDef
        The body, without loops.
    reading : IndexReading
        What has read it.
    """
    name = INSIDE + tree.name
    width = _width(tree, reading)
    if width is not None:
        split = _Split(reading, width)
        made = split.visit(copy.deepcopy(tree))
        made.name = name
        told = ((ROW, ROW), *((known, text) for text, known in split.told.items()))
        made.args.args += [ast.arg(known) for known, _ in told]
        starts, stops, factors = (tuple(dict.fromkeys(part)) for part in (split.starts, split.stops, split.factors))
        return ast.fix_missing_locations(made), Interior(name, (), starts, stops, width, told, factors)
    inside = _Inside(reading)
    made = inside.visit(copy.deepcopy(tree))
    if not inside.stops:
        return None
    made.name = name
    rows, starts, stops = (tuple(dict.fromkeys(part)) for part in (inside.rows, inside.starts, inside.stops))
    return ast.fix_missing_locations(made), Interior(name, rows, starts, stops)


def _width(tree: ast.FunctionDef, reading: IndexReading) -> str | None:
    """Return what the only index is divided by, or None if it is by nothing, or by numbers that are written out."""
    found: list[str] = []
    for node in ast.walk(tree) if len(reading.indices) == 1 else ():
        match node:
            case ast.BinOp(left, ast.FloorDiv() | ast.Mod(), right) if reading.shifted(left, reading.index) == []:
                divisor = reading.number(right)
                if divisor is not None and divisor.small and not isinstance(divisor.node, ast.Constant):
                    found.append(ast.unparse(divisor.node))
    return min(found, key=len, default=None)  # not a product of it


@dataclass
class _Split(ast.NodeTransformer):
    """Writes rows, columns and their neighbours by what is known of them."""

    reading: IndexReading
    width: str
    starts: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    factors: list[str] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Replace a quotient or a remainder."""
        made = self._of_rows(node) or self._of_columns(node)
        if made is None:
            self.generic_visit(node)
            return node
        return ast.copy_location(made, node)

    def _of_rows(self, node: ast.BinOp) -> ast.expr | None:
        """Return the name of a quotient or a remainder that all threads of a row share, or None if it is something else."""
        row = self._row(node) if isinstance(node.op, ast.FloorDiv | ast.Mod) else None
        if row is None:
            return None
        text = ast.unparse(row)
        name = ROW if text == ROW else self.told.setdefault(text, f"{ROW}{len(self.told)}")
        return ast.Name(name, ast.Load())

    def _row(self, node: ast.expr) -> ast.expr | None:
        """Return an expression by the row and numbers that all threads share, or None if it is made of something else."""
        values = self.reading.values
        match node:
            case ast.Name(name) if name in values:
                return self._row(values[name])
            case ast.BinOp(left, ast.FloorDiv() as op, right) if self._is_index(left):
                factors = self._without_width(right)
                row: ast.expr = ast.Name(ROW, ast.Load())
                if not factors:
                    return None if factors is None else row
                self.factors.append(ast.unparse(factors[0]))
                return ast.BinOp(row, op, factors[0])
            case ast.BinOp(left, op, right):
                sides = [self._row(side) or self._number(side) for side in (left, right)]
                of_row = any(side is not None and ROW in ast.unparse(side) for side in sides)
                if of_row and sides[0] is not None and sides[1] is not None and isinstance(op, _EXACT):
                    return ast.BinOp(sides[0], op, sides[1])
        return None

    def _without_width(self, divisor: ast.expr) -> list[ast.expr] | None:
        """Return what a divisor is beside the width: nothing, or a factor; None if it has another one."""
        number = self._number(divisor)
        if number is None:
            return None
        if ast.unparse(number) == self.width:
            return []
        if isinstance(number, ast.BinOp) and isinstance(number.op, ast.Mult):
            for one, other in ((number.left, number.right), (number.right, number.left)):
                if ast.unparse(one) == self.width:
                    return [other]
        return None

    def _number(self, node: ast.expr) -> ast.expr | None:
        number = self.reading.number(node)
        return None if number is None else number.node

    def _is_index(self, node: ast.expr) -> bool:
        return self.reading.shifted(node, self.reading.index) == []

    def _of_columns(self, node: ast.BinOp) -> ast.expr | None:
        """Return a column, or a neighbouring one."""
        added = self._column(node) if isinstance(node.op, ast.Mod) else None
        if added is None:
            number = self._number(node.right) if isinstance(node.op, ast.Mod) else None
            added = self._column(node.left) if number is not None and ast.unparse(number) == self.width else None
            if added is None:
                return None
            added = _beside(added, self.width, self.starts, self.stops)
        return _sum_of(parsed_expression(remainder_text(self.reading.index, self.width)), added)

    def _column(self, node: ast.expr) -> list[ast.expr] | None:
        """Return what is added to the column, or None if an expression is something else."""
        return self.reading.added_to(self._is_column, node)

    def _is_column(self, node: ast.expr) -> bool:
        match node:
            case ast.BinOp(left, ast.Mod(), right):
                return self._is_index(left) and self._without_width(right) == []
        return False


_EXACT = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def _beside(added: Sequence[ast.expr], end: str, starts: list[str], stops: list[str]) -> list[ast.expr]:
    """Return what is added to an index so that it is within a ring, and enter from where and up to where it is."""
    rest, is_above = [], False
    for part in added:
        # `(i - 1 + n) % n` is that of n less.
        if not is_above and ast.unparse(part) == end:
            is_above = True
        else:
            rest.append(part)
    shift = "".join(f" - ({ast.unparse(part)})" for part in rest)
    starts.append(f"0{shift}")
    stops.append(f"{end}{shift}")
    return rest


def _sum_of(first: ast.expr, added: Sequence[ast.expr]) -> ast.expr:
    for part in added:
        first = ast.BinOp(first, ast.Add(), part)
    return first


def remainder_text(index: str, width: str) -> str:
    """Return the remainder of an index by a width, given the quotient."""
    return f"{index} - {ROW} * ({width})"


@dataclass
class _Inside(ast.NodeTransformer):
    """Writes remainders of a thread's index, with what is added to it, without dividing."""

    reading: IndexReading
    rows: list[str] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Replace a remainder."""
        self.generic_visit(node)
        end = self.reading.number(node.right) if isinstance(node.op, ast.Mod) else None
        if end is None or not end.small or isinstance(end.node, ast.Constant):
            return node  # a division by a number that is written out is none
        for index in self.reading.indices:
            added = self.reading.shifted(node.left, index)
            if added is not None:
                return ast.copy_location(self._within(index, added, ast.unparse(end.node)), node)
        return node

    def _within(self, index: str, added: Sequence[ast.expr], end: str) -> ast.expr:
        """Return an index with what is added to it, which for threads inside is less than the end."""
        starts, stops = list[str](), list[str]()
        rest = _beside(added, end, starts, stops)
        if index == self.reading.index:
            self.starts += starts
            self.stops += stops
        else:
            self.rows += [f"{index} >= {starts[0]}", f"{index} < {stops[0]}"]
        return _sum_of(ast.Name(index, ast.Load()), rest)
