"""Which rows of its arrays a kernel touches, where integers that are passed by value decide: `x[t, i] = f(x[t - 1, i])`.

States of a simulation are often the rows of one array, and a launch goes from one of them to the next. What a launch leaves
alone is not changed by it, and no adjoint of it reads that: who knows the rows need neither copy nor look at the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from numbridge.kernels.adjoint.ir import Array, Atomic, Custom, Load, Op, Program, Store, Value, walk
from numbridge.kernels.adjoint.settled import Settled
from numbridge.kernels.adjoint.survey import Survey

__all__ = ["Row", "Rows", "touched_rows"]

Row: TypeAlias = tuple[int, tuple[tuple[str, int], ...]]
"""A known number, and multiples of parameters, by their names."""

Rows: TypeAlias = tuple[Row, ...] | None
"""The rows in question, or None if these are not all, or nothing else is known of them."""

_MOST = 64
"""How many rows of an array are told apart."""


def touched_rows(program: Program) -> dict[str, tuple[Rows, Rows]]:
    """Return the rows that are loaded, and those that are stored or added to, of each array of which either is known.

    An index that the launch finds negative counts from the end.
    """
    settled = Settled(program, Survey(program), ())
    numbers = {p.item: p.name for p in program.parameters if isinstance(p.item, Value)}
    loaded: dict[str, set[Row] | None] = {p.name: set() for p in program.parameters if isinstance(p.item, Array)}
    stored: dict[str, set[Row] | None] = {name: set() for name in loaded}
    for op in _accesses(program):
        name = op.array.parameter
        row = _row(settled, op.index, numbers)
        for kind, rows in ((Load, loaded), (Store, stored)):
            if name in rows and isinstance(op, kind | Atomic):
                rows[name] = _with(rows[name], row)
    found = {name: (_sorted(loaded[name]), _sorted(stored[name])) for name in loaded}
    return {name: both for name, both in found.items() if any(both)}


def _accesses(program: Program) -> list[Load | Store | Atomic]:
    ops: list[Op] = [*walk(program.body)]
    for op in ops[:]:
        if isinstance(op, Custom):
            ops += walk(op.pullback)
    return [op for op in ops if isinstance(op, Load | Store | Atomic) and op.array.kind == "parameter"]


def _row(settled: Settled, index: Sequence[Value], numbers: Mapping[Value, str]) -> Row | None:
    found = settled.sum_of(index[0]) if index else None
    if found is None or any(term not in numbers for term in found.terms):
        return None
    return found.known, tuple(sorted((numbers[term], factor) for term, factor in found.terms.items()))


def _with(rows: set[Row] | None, row: Row | None) -> set[Row] | None:
    if rows is None or row is None or len(rows) >= _MOST:
        return None
    return rows | {row}


def _sorted(rows: set[Row] | None) -> Rows:
    return None if rows is None else tuple(sorted(rows))
