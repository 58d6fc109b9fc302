"""Two neighbouring columns of an array at once on CUDA: what a stencil loads and stores of both is one access of twice the width.

Each access takes as long however wide it is, and the elements beside one's own lie in two lines of memory for the threads of a
warp. Of three accesses for each element of a row, a thread that has two columns is left with two for each. Kernels in C++ had 85
percent of a copy's bandwidth on an H200 without that, and 97 with it, where what they store also leaves the L2 cache first (PTX
ISA, cache operators, ``.cs``).

The steps of a body (see `ids_together`) are written down for two columns. Loads at a constant distance along the last index
become pairs where the pair is aligned and both of its elements are loaded in any case; others stay, once for each column. This
reads and writes source; it compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numbridge.kernels.language.parsing import parsed, parsed_expression
from numbridge.kernels.parameter_types import ArrayType, ParameterType
from numbridge.kernels.scalars import FLOAT, INT, UINT

__all__ = ["PAIR_LOADS", "PAIR_STEPS", "PAIR_STORES", "column_pairs"]

PAIR_LOADS, PAIR_STORES = PAIR_STEPS = ("_nb_pair_loads", "_nb_pair_stores")
# What loads a pair, and what stores one
_PAIR, _PUT_PAIR = "_nb_pair", "_nb_put_pair"
# In these nodes some expressions may not be evaluated.
_CONDITIONAL = (ast.IfExp, ast.BoolOp, ast.Compare)
# Where an element lies: the array, its other indices, and the distance along the last one
_Place = tuple[str, str, int]


def column_pairs(
    loading: Sequence[ast.stmt],
    rest: Sequence[ast.stmt],
    kept: Sequence[str],
    ids: Sequence[str],
    parameters: Sequence[ParameterType],
) -> tuple[list[tuple[str, str, list[ast.stmt]]], tuple[str, ...]] | None:
    """Return the steps for two columns, or None where nothing is loaded or stored in pairs.

    Parameters
    ----------
    loading, rest : sequence of ast.stmt
        What a body does before its first store, without conditions, and from there on.
    kept : sequence of str
        The variables of the first that the second reads.
    ids : sequence of str
        The body's indices.
    parameters : sequence of ParameterType
        The kernel's.

    Returns
    -------
    steps : list of (str, str, list of ast.stmt)
        Functions: name, what each takes beside the body's parameters, and statements. The first returns what the second takes.
    arrays : tuple of str
        Those whose memory and rows must be aligned to two elements.
    """
    arrays = {p.name: p.ndim for p in parameters if isinstance(p, ArrayType) and _has_pairs(p)}
    if any(_stored_names(statement) & {*ids, *(p.name for p in parameters)} for statement in [*loading, *rest]):
        return None
    columns = _Columns(ids[-1], arrays)
    loads = columns.loads(loading)
    # Their variables are another function's, and an effect may come between.
    columns.pairs.clear()
    store = columns.store(rest)
    if store is None or not columns.loaded:
        return None
    listed = [f"({', '.join(_renamed(name, column) for name in kept)},)" for column in (0, 1)]
    made = [
        (PAIR_LOADS, "", [*loads, *parsed(f"return {', '.join(listed)}").body]),
        (PAIR_STORES, "_nb_kept", [*parsed(f"{', '.join(listed)} = _nb_kept").body, store]),
    ]
    return made, tuple(sorted(columns.loaded | {columns.stored}))


def _has_pairs(array: ArrayType) -> bool:
    """Tell whether two elements of an array can be loaded at once."""
    plain = array.element is None and array.contiguous and array.ndim > 1
    return plain and array.scalar.code in (FLOAT, INT, UINT) and array.itemsize in (4, 8)


def _renamed(name: str, column: int) -> str:
    return f"_nb_col{column}_{name}"


class _Columns:
    """Writes statements down for two columns.

    Parameters
    ----------
    index : str
        The last index, of the first of both columns.
    arrays : mapping of str to int
        The ranks of the arrays of which pairs may be loaded.

    Attributes
    ----------
    pairs : dict
        The variables of pairs that hold what is in memory, by the place of their first element.
    loaded : set of str
        The arrays that pairs are loaded from.
    stored : str
        The array that a pair is stored into.
    """

    def __init__(self, index: str, arrays: Mapping[str, int]) -> None:
        self._index, self._arrays = index, arrays
        self._own: set[str] = set()
        # Names of the last index, and names that depend on it otherwise
        self._same, self._varying = {index}, {index}
        self.pairs: dict[_Place, tuple[str, str]] = {}
        self.loaded: set[str] = set()
        self.stored = ""
        self._count = 0

    def loads(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return statements for both columns, and remember the pairs that are loaded."""
        first, second = list[ast.stmt](), list[ast.stmt]()
        for statement in statements:
            self._own |= _stored_names(statement)
            is_plain = isinstance(statement, ast.Assign | ast.AugAssign)
            if not is_plain:
                # What is read in it may be what it has made itself.
                self._learn(statement)
            first += self._new_pairs(statement)
            first.append(self.written(statement, 0))
            second.append(self.written(statement, 1))
            if is_plain:
                self._learn(statement)
        return [*first, *second]

    def store(self, statements: Sequence[ast.stmt]) -> ast.stmt | None:
        """Return a store for both columns, or None where statements are anything but one in the column itself."""
        match [statement for statement in statements if not isinstance(statement, ast.Pass)]:
            case [ast.Assign([ast.Subscript(ast.Name(name), ast.Tuple(index))], value)]:
                place = self._place(name, index)
                if place is None or place[2] != 0:
                    return None
                self.stored = name
                at, values = self.written(ast.Tuple(index, ast.Load()), 0), [self.written(value, c) for c in (0, 1)]
                return ast.Expr(_call(_PUT_PAIR, ast.Name(name, ast.Load()), at, *values))
        return None

    def written(self, node: Any, column: int) -> Any:
        """Return a node as it is for a column: with variables of its own, and pairs for what they hold."""
        return _Written(self, column).visit(copy.deepcopy(node))

    def found(self, name: str, index: Sequence[ast.expr], column: int) -> str | None:
        """Return the variable that holds an element in a column, or None."""
        place = self._place(name, index)
        if place is None:
            return None
        at = place[2] + column
        pair = self.pairs.get((*place[:2], at - at % 2))
        return None if pair is None else pair[at % 2]

    def name(self, name: str, column: int) -> ast.expr | None:
        """Return what a name is called in a column, or None if it is the same in both."""
        if name == self._index and column:
            return ast.BinOp(ast.Name(name, ast.Load()), ast.Add(), ast.Constant(column))
        return ast.Name(_renamed(name, column), ast.Load()) if name in self._own else None

    def _learn(self, statement: ast.stmt) -> None:
        """Learn which of the names that a statement makes are the last index or depend on it, and forget what they were."""
        match statement:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                parts = list(zip(targets, values, strict=True))
            case ast.Assign(targets, value):
                parts = [(target, value) for target in targets]
            case _:
                parts = []
        changed = _stored_names(statement)
        same = {t.id for t, v in parts if isinstance(t, ast.Name) and isinstance(v, ast.Name) and v.id in self._same}
        varying = {name for target, value in parts if self._varies(value) for name in _stored_names(target)}
        self._same = self._same - changed | same
        self._varying = self._varying - changed | (varying if parts else changed)
        self.pairs = {place: pair for place, pair in self.pairs.items() if not changed & _names_of(place[1])}

    def _varies(self, node: ast.AST) -> bool:
        return any(isinstance(inner, ast.Name) and inner.id in self._varying | self._same for inner in ast.walk(node))

    def _place(self, name: str, index: Sequence[ast.expr]) -> _Place | None:
        """Return where an element lies whose other indices are the same in both columns, or None."""
        if self._arrays.get(name) != len(index) or any(
            self._varies(part) or not _is_number(part) for part in index[:-1]
        ):
            return None
        distance = self._distance(index[-1])
        others = ", ".join(ast.unparse(part) for part in index[:-1])
        return None if distance is None else (name, others, distance)

    def _distance(self, index: ast.expr) -> int | None:
        """Return how far an index is from the last index itself, or None."""
        match index:
            case ast.Name(name) if name in self._same:
                return 0
            case ast.BinOp(ast.Name(name), ast.Add(), ast.Constant(int(by))) if name in self._same:
                return by
            case ast.BinOp(ast.Name(name), ast.Sub(), ast.Constant(int(by))) if name in self._same:
                return -by
            case ast.BinOp(ast.Constant(int(by)), ast.Add(), ast.Name(name)) if name in self._same:
                return by
        return None

    def _new_pairs(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the loads of pairs both elements of which a statement loads in any case, in one column or the other."""
        needed: dict[_Place, Sequence[ast.expr]] = {}
        for name, index in _loaded_in_any_case(statement):
            place = self._place(name, index)
            if place is not None:
                for column in (0, 1):
                    needed.setdefault((*place[:2], place[2] + column), index)
        for (name, others, at), index in list(needed.items()):
            place = (name, others, at)
            # Below zero indices count from the end, where a pair is aligned as well.
            if at % 2 or place in self.pairs or (name, others, at + 1) not in needed:
                continue
            pair = (f"_nb_pair{self._count}_0", f"_nb_pair{self._count}_1")
            self._count += 1
            self.loaded.add(name)
            last = parsed_expression(f"{self._index} + {at}" if at else self._index)
            where = ast.Tuple([*(self.written(part, 0) for part in index[:-1]), last], ast.Load())
            self.pairs[place] = pair
            target = ast.Tuple([ast.Name(variable, ast.Store()) for variable in pair], ast.Store())
            yield ast.Assign([target], _call(_PAIR, ast.Name(name, ast.Load()), where))


class _Written(ast.NodeTransformer):
    """Writes a node down for a column."""

    def __init__(self, columns: _Columns, column: int) -> None:
        self._columns, self._column = columns, column

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Tuple):
            found = self._columns.found(node.value.id, node.slice.elts, self._column)
            if found is not None:
                return ast.Name(found, ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Store):
            return ast.Name(_renamed(node.id, self._column), node.ctx)
        return self._columns.name(node.id, self._column) or node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [*arguments], [])


def _is_number(index: ast.expr) -> bool:
    """Tell whether a part of an index is not, as it stands, a slice or one of the constants that have another meaning."""
    return not isinstance(index, ast.Slice | ast.Starred | ast.Tuple) and (
        not isinstance(index, ast.Constant) or type(index.value) is int
    )


def _names_of(text: str) -> set[str]:
    return {node.id for node in ast.walk(parsed_expression(f"({text},)")) if isinstance(node, ast.Name)}


def _stored_names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)}


def _loaded_in_any_case(statement: ast.stmt) -> Iterator[tuple[str, Sequence[ast.expr]]]:
    """Yield the array and the index of each element that a statement loads whatever else is the case."""
    if not isinstance(statement, ast.Assign):
        return
    left: list[ast.AST] = [statement.value]
    while left:
        node = left.pop()
        match node:
            case ast.Subscript(ast.Name(name), ast.Tuple(index), ast.Load()):
                yield name, index
        if not isinstance(node, _CONDITIONAL):
            left += ast.iter_child_nodes(node)
