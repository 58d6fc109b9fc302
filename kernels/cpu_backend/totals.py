"""Atomic additions to elements that many threads add to: a range of threads adds up by itself, and adds to the elements once.

Threads that add to the same element wait for each other, however short the rest of their work is. Between the beginning and the
end of a launch nobody can see what a kernel has added to an array, if it does nothing else with it. So what it adds at constant
indices is summed up in *totals*, and what it adds at others to a *copy* of the array, where that is small (see `range_source`).
This module rewrites generated text, and compiles nothing.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.language.parsing import parsed
from numbridge.kernels.parameter_types import ArrayType, ParameterType, is_signed

__all__ = [
    "PRIVATE",
    "Total",
    "additions_of",
    "can_add_up",
    "constant_index",
    "greater",
    "has_even_trips",
    "only_added",
    "total_array",
    "with_either",
    "with_totals",
]

_PREFIX = "_nb_total"
PRIVATE = "_nb_private"
"""The parameter by which a body is told whether to add plainly to arrays."""
# What stands in the place of an atomic operation.
_TO_TOTAL = {"_nb_atomic_add": "_nb_add_to_total", "_nb_atomic_sub": "_nb_sub_from_total"}
_EITHER = {"_nb_atomic_add": "_nb_add_either", "_nb_atomic_sub": "_nb_sub_either", "_nb_add": "_nb_add_either"}
_MOST = (1 << 63) - 1  # what an index may be
# How derivatives add, and what `_EITHER` has
_ADDING = frozenset(("_nb_add", *_EITHER.values()))
# How often a statement in so many loops is taken to run: two are often those over nine cells, and a third over what is there.
_TRIPS = (1, 16, 16, 64)
_MOST_TRIPS = 1 << 10
_Additions = int | str
_MOST_COMPONENTS = 36  # of an element: larger ones would not stay in registers, and take long to compile
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
    start, tree = _body(text, entry)
    names = _names(tree)
    additions = [found for node in ast.walk(tree) if (found := _addition(node, names)) is not None]
    rank = _ranks(tree, parameters)
    constant = [(array, index) for _, array, place, _ in additions if (index := constant_index(place)) is not None]
    # Whatever else is done with the array, somebody might see what is in it.
    counts = Counter(array for array, _ in constant)
    places = dict.fromkeys((a, index) for a, index in constant if counts[a] == names[a] and rank.get(a) == len(index))
    totals = tuple(Total(f"{_PREFIX}{k}_{array}", array, index) for k, (array, index) in enumerate(places))
    totals = totals if wanted is None else tuple(wanted)
    if not totals or not places.keys() <= {(total.array, total.index) for total in totals}:
        return text, ()
    known = {(total.array, total.index): total.name for total in totals}

    def instead(operation: str, array: str, place: ast.expr, value: ast.expr) -> ast.Call | None:
        index = constant_index(place)
        total = None if index is None else known.get((array, index))
        return None if total is None else _call(_TO_TOTAL[operation], [array, total], value)

    made = _Replacer(names, instead).visit(tree)
    made.args.args += [ast.arg(total.name) for total in totals]
    return text[:start] + ast.unparse(ast.fix_missing_locations(made)), totals


def with_either(
    text: str,
    entry: str,
    parameters: Sequence[ParameterType],
    wanted: Sequence[str] | None = None,
    *,
    of_each: bool = False,
) -> tuple[str, tuple[str, ...]]:
    """Return a text whose body is told, by its last parameter, whether to add plainly, and the arrays where it is.

    Parameters
    ----------
    text, entry, parameters
        As for `with_totals`.
    wanted : sequence of str, optional
        The arrays of another text of the same kernel, which must be those of this one.
    of_each : bool
        Whether it is told that of each array by a parameter of its own, in the order of the arrays.
    """
    start, tree = _body(text, entry)
    names, ranks = _names(tree), _ranks(tree, parameters)
    counts = Counter(found[1] for node in ast.walk(tree) if (found := _addition(node, names, _EITHER)) is not None)
    arrays = tuple(sorted(array for array, count in counts.items() if count == names[array] and array in ranks))
    if not arrays or arrays != (arrays if wanted is None else tuple(wanted)):
        return text, ()

    told = {array: f"{PRIVATE}{k}" if of_each else PRIVATE for k, array in enumerate(arrays)}

    def instead(operation: str, array: str, place: ast.expr, value: ast.expr) -> ast.Call | None:
        return _call(_EITHER[operation], [told[array], array], place, value) if array in told else None

    made = _Replacer(names, instead, _EITHER).visit(tree)
    made.args.args += [ast.arg(name) for name in dict.fromkeys(told.values())]
    return text[:start] + ast.unparse(ast.fix_missing_locations(made)), arrays


def only_added(text: str, entry: str, parameters: Sequence[ParameterType]) -> tuple[str, ...]:
    """Return the arrays to which a derivative's body adds and with which it does nothing else; none if it adds to others.

    Parameters
    ----------
    text, entry, parameters
        The derivative's, which is all that adds.
    """
    found = next((f for f in parsed(text).body if isinstance(f, ast.FunctionDef) and f.name == entry), None)
    if found is None:
        return ()
    names, ranks, counts = _names(found), _ranks(found, parameters), Counter[str]()
    for node in ast.walk(found):
        match node:
            case ast.Call(ast.Name(called), [*_, array, _, _]) if called in _ADDING:
                counts[_owner(array)] += 1
    every = all(count == names[array] and array in ranks for array, count in counts.items())
    return tuple(sorted(counts)) if every else ()


def additions_of(text: str, entry: str, parameters: Sequence[ParameterType], arrays: Sequence[str]) -> _Additions:
    """Return how many numbers each thread is taken to add to arrays, by all branches.

    A loop has as many trips as its range says, where that is made of extents and integers that the kernel is given; else a guess
    stands for them.

    Parameters
    ----------
    text, entry, parameters
        What `with_either` has made, or a derivative's that `only_added` has read.
    arrays : sequence of str
        Those to which it only adds.

    Returns
    -------
    int or str
        The number, or an expression of the kernel's parameters.
    """
    _, tree = _body(text, entry)
    sizes = {p.name: p.element.count for p in parameters if isinstance(p, ArrayType) and p.element is not None}
    known = _given(tree, parameters)

    def added(body: Sequence[ast.stmt], depth: int) -> _Additions:
        found: list[_Additions] = []
        for node in body:
            match node:
                case ast.Expr(ast.Call(ast.Name(called), [*_, array, _, _])) if (
                    called in _ADDING and _owner(array) in arrays
                ):
                    trips = _TRIPS[min(depth, len(_TRIPS) - 1)]
                    found.append(trips * (sizes.get(array.id, 1) if isinstance(array, ast.Name) else 1))
                case ast.For():
                    trips_known = _trips(node.iter, known)
                    inner = added(node.body, depth + (trips_known is None))
                    found.append(inner if trips_known is None else _product(trips_known, inner))
                case ast.While():
                    found.append(added(node.body, depth + 1))
                case ast.If():
                    found.append(greater(added(node.body, depth), added(node.orelse, depth)))
        return _sum(found)

    return added(tree.body, 0)


def has_even_trips(text: str, entry: str, parameters: Sequence[ParameterType]) -> bool:
    """Tell whether all threads make the same trips of all loops, so that equal shares of the threads take about as long.

    Parameters
    ----------
    text, entry, parameters
        What `additions_of` takes.
    """
    functions = {node.name: node for node in parsed(text).body if isinstance(node, ast.FunctionDef)}
    known = _given(functions[entry], parameters)

    def is_even(body: Sequence[ast.stmt]) -> bool:
        for node in body:
            match node:
                case ast.For():
                    if _trips(node.iter, known) is None or not is_even(node.body):
                        return False
                case ast.If():
                    # Guards leave out threads at the ends of a grid.
                    if not is_even(node.body) or not is_even(node.orelse):
                        return False
                case _ if _has_loop(node):
                    return False
        return True

    reached, new = {entry}, [entry]
    while new:
        named = {node.id for node in ast.walk(functions[new.pop()]) if isinstance(node, ast.Name)}
        new += named & functions.keys() - reached
        reached |= named & functions.keys()
    return is_even(functions[entry].body) and not any(_has_loop(functions[name]) for name in reached - {entry})


def _has_loop(node: ast.AST) -> bool:
    return any(isinstance(part, ast.For | ast.While) for part in ast.walk(node))


def _given(tree: ast.FunctionDef, parameters: Sequence[ParameterType]) -> dict[str, str]:
    """Return what is known of a body's names before it runs: integers that it is given, what is made of them, and its arrays."""
    stores = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    known = {p.name: p.name for p in parameters if p.name not in stores and (isinstance(p, ArrayType) or is_signed(p))}
    # What a name is that is assigned once it is wherever it is read, also where that is in a branch.
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda node: node.lineno):
        match node:
            case ast.Assign([ast.Name(name)], value) if stores[name] == 1:
                text = _expression(value, known)
                if text is not None:
                    known[name] = text
    return known


def _expression(node: ast.expr, known: Mapping[str, str]) -> str | None:
    """Return an integer expression of what is known, or None."""
    match node:
        case ast.Constant(int(value)):
            return str(value)
        case ast.Name(name):
            return known.get(name)
        case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(int(axis))) if name in known:
            return f"{known[name]}.shape[{axis}]"
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() as operation, right):
            parts = _expression(left, known), _expression(right, known)
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}[type(operation)]
            return None if None in parts else f"({parts[0]} {sign} {parts[1]})"
        case ast.UnaryOp(ast.USub(), inner):
            text = _expression(inner, known)
            return None if text is None else f"(-{text})"
        case ast.Call(ast.Name("max" | "min" as called), [left, right], []):
            parts = _expression(left, known), _expression(right, known)
            return None if None in parts else f"_nb_{called}({parts[0]}, {parts[1]})"
    return None


def _trips(head: ast.expr, known: Mapping[str, str]) -> _Additions | None:
    """Return how many trips a loop has, up to a number that cannot overflow, or None if that is not known."""
    match head:
        case ast.Call(ast.Name("range"), [_] | [_, _] as arguments):
            pass
        case ast.Call(ast.Name("range"), [first, last, ast.UnaryOp(ast.USub(), ast.Constant(1))]):
            arguments = [last, first]  # as adjoints go back
        case _:
            return None
    ends = [_expression(argument, known) for argument in arguments]
    if None in ends:
        return None
    if all(map(str.isdecimal, map(str, ends))) and arguments == head.args:
        return min(len(range(*map(int, map(str, ends)))), _MOST_TRIPS)
    count = str(ends[0]) if len(ends) == 1 else f"{ends[1]} - {ends[0]}"
    return f"_nb_min(_nb_max({count}, 0), {_MOST_TRIPS})"


def _sum(parts: Sequence[_Additions]) -> _Additions:
    number = sum(part for part in parts if isinstance(part, int))
    texts = [part for part in parts if isinstance(part, str)]
    return " + ".join([*texts, *([str(number)] if number else [])]) if texts else number


def _product(trips: _Additions, additions: _Additions) -> _Additions:
    if isinstance(trips, int) and isinstance(additions, int):
        return trips * additions
    return 0 if additions == 0 else trips if additions == 1 else f"{trips} * ({additions})"


def greater(one: int | str, other: int | str) -> int | str:
    """Return the greater of what `additions_of` returns."""
    return max(one, other) if isinstance(one, int) and isinstance(other, int) else f"_nb_max({one}, {other})"


def _body(text: str, entry: str) -> tuple[int, ast.FunctionDef]:
    """Return where a text's body begins, which is its last function, and its tree."""
    start = text.rindex("@", 0, text.rindex(f"def {entry}("))
    tree = parsed(text[start:]).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return start, tree


def _ranks(tree: ast.FunctionDef, parameters: Sequence[ParameterType]) -> dict[str, int]:
    """Return the ranks of those arrays that a body may add up by itself."""
    rebound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return {p.name: p.ndim for p in parameters if isinstance(p, ArrayType) and can_add_up(p) and p.name not in rebound}


def _names(tree: ast.FunctionDef) -> Counter[str]:
    """Return how often names are read."""
    return Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def can_add_up(parameter: ArrayType) -> bool:
    """Tell whether what is added to an array's elements can be added up first."""
    if parameter.element is not None and (
        parameter.element.fields is not None or parameter.element.count > _MOST_COMPONENTS
    ):
        return False
    return parameter.scalar.name in _ADDED


def _owner(array: ast.expr) -> str:
    """Return the name of an array to which, or to whose components, a derivative adds; of others an empty one."""
    match array:
        case ast.Name(name) | ast.Call(ast.Name("_nb_components"), [ast.Name(name)]):
            return name
    return ""


def _addition(
    node: ast.AST, names: Counter[str], operations: Collection[str] = _TO_TOTAL
) -> tuple[str, str, ast.expr, ast.expr] | None:
    """Return the name, the array, the index and the value of an atomic operation whose result nobody reads."""
    match node:
        case ast.Assign([ast.Name(result)]) if names[result]:
            return None
        case ast.Expr(ast.Call(ast.Name(called), [ast.Name(array), place, value], [])) | ast.Assign(
            [ast.Name()], ast.Call(ast.Name(called), [ast.Name(array), place, value], [])
        ) if called in operations:
            return called, array, place, value
    return None


def constant_index(place: ast.expr) -> tuple[int, ...] | None:
    """Return an index that is written out as one or several integers."""
    try:
        found = ast.literal_eval(place)
    except ValueError:
        return None
    index = found if isinstance(found, tuple) else (found,)
    return index if all(type(part) is int and abs(part) <= _MOST for part in index) else None


class _Replacer(ast.NodeTransformer):
    """Puts calls in the place of atomic additions; `instead` returns one for name, array, index and value, or None."""

    def __init__(
        self,
        names: Counter[str],
        instead: Callable[[str, str, ast.expr, ast.expr], ast.Call | None],
        operations: Collection[str] = _TO_TOTAL,
    ) -> None:
        self.names, self.instead, self.operations = names, instead, operations

    def visit(self, node: ast.AST) -> Any:
        found = _addition(node, self.names, self.operations)
        made = None if found is None else self.instead(*found)
        return super().visit(node) if made is None else ast.copy_location(ast.Expr(made), node)


def _call(function: str, names: Sequence[str], *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), [*(ast.Name(n, ast.Load()) for n in names), *arguments], [])
