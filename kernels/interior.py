"""Threads that are not next to the ends of a grid, for which a kernel's body is simpler: their neighbours are just beside them.

On a grid with periodic boundaries a kernel asks for its neighbours by ``x[(i + 1) % n]``. But for the last of a row that is
``x[i + 1]``, of which LLVM makes vectors. So there is another body for threads whose indices are far enough from both ends for
all such remainders, and the loop around the body runs it for them. This module writes that body, and compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from numbridge.kernels.active_range import IndexReading

__all__ = ["INSIDE", "Interior", "with_interior"]

INSIDE = "_nb_inside_"
"""What stands before a body's name in that of another for threads inside of a row."""


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
    """

    entry: str
    rows: tuple[str, ...]
    starts: tuple[str, ...]
    stops: tuple[str, ...]


def with_interior(tree: ast.FunctionDef, reading: IndexReading) -> tuple[ast.FunctionDef, Interior] | None:
    """Return a simpler body for threads inside of a row, and which these are; None if no remainder says so.

    Parameters
    ----------
    tree : ast.FunctionDef
        The body, without loops.
    reading : IndexReading
        What has read it.
    """
    inside = _Inside(reading)
    made = inside.visit(copy.deepcopy(tree))
    if not inside.stops:
        return None
    made.name = INSIDE + tree.name
    rows, starts, stops = (tuple(dict.fromkeys(part)) for part in (inside.rows, inside.starts, inside.stops))
    return ast.fix_missing_locations(made), Interior(made.name, rows, starts, stops)


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
        if end is None or not end.small:
            return node
        for index in self.reading.indices:
            added = self.reading.shifted(node.left, index)
            if added is not None:
                return ast.copy_location(self._beside(index, added, ast.unparse(end.node)), node)
        return node

    def _beside(self, index: str, added: Sequence[ast.expr], end: str) -> ast.expr:
        """Return an index with what is added to it, which for threads inside is less than the end."""
        rest, is_above = [], False
        for part in added:
            # `(i - 1 + n) % n` is that of n less.
            if not is_above and ast.unparse(part) == end:
                is_above = True
            else:
                rest.append(part)
        shift = "".join(f" - ({ast.unparse(part)})" for part in rest)
        if index == self.reading.index:
            self.starts.append(f"0{shift}")
            self.stops.append(f"{end}{shift}")
        else:
            self.rows += [f"{index} >= 0{shift}", f"{index} < {end}{shift}"]
        made: ast.expr = ast.Name(index, ast.Load())
        for part in rest:
            made = ast.BinOp(made, ast.Add(), part)
        return made
