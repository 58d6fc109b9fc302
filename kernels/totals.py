"""Atomic additions to one element that all threads add to: a range of threads adds up by itself, and adds to the element once.

Threads that add to the same element wait for each other, however short the rest of their work is. Between the beginning and the
end of a launch nobody can see what a kernel has added to an element at a constant index, if it does nothing else with the array.
This module rewrites generated text, and compiles nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.parameter_types import ArrayType, ParameterType

__all__ = ["Total", "total_array", "with_totals"]

_ADD, _ADD_TO_TOTAL, _PREFIX = "_nb_atomic_add", "_nb_add_to_total", "_nb_total"
_MOST = (1 << 63) - 1  # what an index may be
# What atomics add to
_ADDED = frozenset(("float32", "float64", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))))


@dataclass(frozen=True)
class Total:
    """What a range of threads adds to one element.

    Attributes
    ----------
    name : str
        What it is called, as a parameter of the body after its own.
    array : str
        The array's parameter.
    index : tuple of int
        Where the element is.
    """

    name: str
    array: str
    index: tuple[int, ...]


def total_array(parameter: str) -> str | None:
    """Return the array of which a body's parameter is a total, or None if it is none."""
    return parameter.split("_", 3)[3] if parameter.startswith(_PREFIX) else None


def with_totals(
    text: str, entry: str, parameters: Sequence[ParameterType], wanted: Sequence[Total] | None = None
) -> tuple[str, tuple[Total, ...]]:
    """Return a text whose body adds to totals where it added to elements, with these totals.

    Parameters
    ----------
    text : str
        Decorated functions, the body last. Every statement of the result stands in the line in which it stood.
    entry : str
        The body's name.
    parameters : sequence of ParameterType
        The kernel's.
    wanted : sequence of Total, optional
        The totals of another text of the same kernel, whose parameters the result takes.
    """
    start = text.rindex("@", 0, text.rindex(f"def {entry}("))
    tree = ast.parse(text[start:]).body[0]
    assert isinstance(tree, ast.FunctionDef)
    names = _names(tree)
    additions = [found for node in ast.walk(tree) if (found := _addition(node, names)) is not None]
    rebound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    rank = {p.name: p.ndim for p in parameters if isinstance(p, ArrayType) and _has_totals(p) and p.name not in rebound}
    # Whatever else is done with the array, somebody might see what is in it.
    counts = Counter(array for array, _, _ in additions)
    places = dict.fromkeys(
        (a, index) for a, index, _ in additions if counts[a] == names[a] and rank.get(a) == len(index)
    )
    totals = tuple(Total(f"{_PREFIX}{k}_{array}", array, index) for k, (array, index) in enumerate(places))
    totals = totals if wanted is None else tuple(wanted)
    if not totals or not places.keys() <= {(total.array, total.index) for total in totals}:
        return text, ()
    made = _Adder({(total.array, total.index): total.name for total in totals}, names).visit(tree)
    made.args.args += [ast.arg(total.name) for total in totals]
    return text[:start] + ast.unparse(ast.fix_missing_locations(made)), totals


def _names(tree: ast.FunctionDef) -> Counter[str]:
    """Return how often names are read."""
    return Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _has_totals(parameter: ArrayType) -> bool:
    return parameter.element is None and parameter.scalar.name in _ADDED


def _addition(node: ast.AST, names: Counter[str]) -> tuple[str, tuple[int, ...], ast.expr] | None:
    """Return the array, the index and the value of an atomic addition at a constant index whose result nobody reads."""
    match node:
        case ast.Assign([ast.Name(result)]) if names[result]:
            return None
        case ast.Expr(ast.Call(ast.Name(called), [ast.Name(array), place, value], [])) | ast.Assign(
            [ast.Name()], ast.Call(ast.Name(called), [ast.Name(array), place, value], [])
        ) if called == _ADD:
            index = _constant(place)
            return None if index is None else (array, index, value)
    return None


def _constant(place: ast.expr) -> tuple[int, ...] | None:
    """Return an index that is written out as one or several integers."""
    try:
        found = ast.literal_eval(place)
    except ValueError:
        return None
    index = found if isinstance(found, tuple) else (found,)
    return index if all(type(part) is int and abs(part) <= _MOST for part in index) else None


class _Adder(ast.NodeTransformer):
    """Makes additions to elements additions to totals."""

    def __init__(self, totals: Mapping[tuple[str, tuple[int, ...]], str], names: Counter[str]) -> None:
        self.totals = totals
        self.names = names

    def visit(self, node: ast.AST) -> Any:
        found = _addition(node, self.names)
        if found is None or found[:2] not in self.totals:
            return super().visit(node)
        array, index, value = found
        given = [ast.Name(array, ast.Load()), ast.Name(self.totals[array, index], ast.Load()), value]
        return ast.copy_location(ast.Expr(ast.Call(ast.Name(_ADD_TO_TOTAL, ast.Load()), given, [])), node)
