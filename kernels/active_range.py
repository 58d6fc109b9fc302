"""Which threads of a row a kernel's guard leaves anything to do, so that a launch on the CPU need not run the others.

A kernel often begins with a test of its thread's index, since on CUDA more threads run than were asked for: ``if i < n:`` around
all that it does, or ``if i >= n: return``. Where the test compares the last index with what all threads of a row share, those
that pass it stand side by side. The loop around the body then goes from the first of them to the last, and LLVM is promised that
they pass: what the guard would make of every store is a masked one, which some machines are slow at. This module reads a
kernel's rewritten tree, and compiles nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from numbridge.kernels.parameter_types import ArrayType, ParameterType

__all__ = ["ActiveRange", "active_range"]

_INVERSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}
# A thread's index, and sums of few numbers as small as extents, are far from where 64 bits end.
_SMALL, _FAR = 1 << 31, 1 << 62
_WORD = 4  # bytes; what has no more is small


@dataclass(frozen=True)
class ActiveRange:
    """Which threads do anything: those of some rows, from a start to a stop along the last index.

    The expressions name the kernel's parameters and hidden parameters.

    Attributes
    ----------
    rows : tuple of str
        What must hold for a row, or for all threads where there is one index.
    starts : tuple of str
        Last indices of which all are at most that of the first such thread.
    stops : tuple of str
        Last indices that are all greater than that of the last such thread.
    promises : tuple of str
        What holds for such a thread.
    sizes : tuple of (str, str)
        Expressions for arrays' numbers of elements, in what Numba compiles and in the promises.
    """

    rows: tuple[str, ...]
    starts: tuple[str, ...]
    stops: tuple[str, ...]
    promises: tuple[str, ...]
    sizes: tuple[tuple[str, str], ...] = ()


def active_range(
    tree: ast.FunctionDef, rank: int, parameters: Sequence[ParameterType], taken: Collection[str]
) -> ActiveRange | None:
    """Return which threads do anything, or None if a kernel's text does not say.

    Parameters
    ----------
    tree : ast.FunctionDef
        The kernel, as `rewriting` writes it for the CPU.
    rank : int
        How many thread indices it takes.
    parameters : sequence of ParameterType
        The kernel's.
    taken : collection of str
        Names of functions and globals in its text, which are no builtins there.
    """
    reading = _Reading(tree, rank, parameters, "len" not in taken)
    if rank:
        reading.read(tree.body)
    return reading.result()


@dataclass(frozen=True)
class _Number:
    """An integer that all threads of a row share, and whether it is small."""

    node: ast.expr
    small: bool


@dataclass
class _Reading:
    tree: ast.FunctionDef
    rank: int
    parameters: Sequence[ParameterType]
    has_len: bool
    values: dict[str, ast.expr] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    promises: list[str] = field(default_factory=list)
    sizes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stored = [n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
        given = {argument.arg for argument in self.tree.args.args}
        self.local = {*stored} - given
        self.once = {name for name in self.local if stored.count(name) == 1}
        self.index = f"_nb_i{self.rank - 1}"
        kept = [p for p in self.parameters if p.name not in stored]
        self.arrays = {p.name: p for p in kept if isinstance(p, ArrayType)}
        numbers = {p.name: p.scalar for p in kept if not isinstance(p, ArrayType) and p.element is None}
        signed = {name: kind for name, kind in numbers.items() if kind.name.startswith("int")}
        self.numbers = {name: kind.itemsize <= _WORD for name, kind in signed.items()}
        hidden = given - {p.name for p in self.parameters}
        self.numbers |= dict.fromkeys(hidden - {self.index}, True)

    def result(self) -> ActiveRange | None:
        if not self.promises:
            return None
        found = (self.rows, self.starts, self.stops, self.promises)
        return ActiveRange(*(tuple(dict.fromkeys(part)) for part in found), tuple(self.sizes.items()))

    def read(self, body: Sequence[ast.stmt]) -> None:
        """Read what stands before a guard, the guard, and what it guards."""
        for position, node in enumerate(body):
            match node:
                case ast.Assign([ast.Name() | ast.Tuple() as target]) if self._assign(target, node.value):
                    continue
                case ast.Pass() | ast.Expr(ast.Constant()):
                    continue
                case ast.If(test=test, body=[ast.Return(None)], orelse=[]):
                    self._guard(test, holds=False)
                    continue
                case ast.If(test=test, orelse=[]) if all(map(_is_nothing, body[position + 1 :])):
                    self._guard(test, holds=True)
                    self.read(node.body)
            return

    def _assign(self, target: ast.Name | ast.Tuple, value: ast.expr) -> bool:
        """Keep what names are, and tell whether that has no effect."""
        if not self._is_pure(value):
            return False
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        parts: Sequence[ast.expr] = value.elts if isinstance(value, ast.Tuple) else [value]
        match value:
            case ast.Attribute(ast.Name(name), "shape") if name in self.arrays and isinstance(target, ast.Tuple):
                parts = [ast.Subscript(value, ast.Constant(axis), ast.Load()) for axis in range(len(targets))]
        if not all(isinstance(part, ast.Name) for part in targets):
            return False
        unknown = self.local - self.values.keys()
        for name, part in zip(targets, parts, strict=False):
            refers = unknown.intersection(n.id for n in ast.walk(part) if isinstance(n, ast.Name))
            if isinstance(name, ast.Name) and name.id in self.once and len(targets) == len(parts) and not refers:
                self.values[name.id] = part
        return True

    def _is_pure(self, node: ast.expr) -> bool:
        """Tell whether an expression surely has no effect: arithmetic with numbers, and extents of arrays."""
        match node:
            case ast.Name() | ast.Constant():
                return True
            case ast.BinOp(left, _, right):
                return self._is_pure(left) and self._is_pure(right)
            case ast.UnaryOp(_, inner):
                return self._is_pure(inner)
            case ast.Tuple(parts):
                return all(map(self._is_pure, parts))
            case ast.Compare(left, _, rights):
                return all(map(self._is_pure, [left, *rights]))
            case ast.Call(ast.Name("_nb_float32" | "_nb_float64"), [argument], []):
                return self._is_pure(argument)
            case ast.Attribute(ast.Name(name), "shape" | "size"):
                return name in self.arrays
        return self._number(node) is not None

    def _guard(self, test: ast.expr, *, holds: bool) -> None:
        """Take from a guard what must hold, or must not, for a thread to come by it."""
        for left, op, right in self._conditions(test, holds=holds):
            self._condition(left, op, right)

    def _conditions(self, test: ast.expr, *, holds: bool) -> Iterator[tuple[ast.expr, type[ast.cmpop], ast.expr]]:
        """Yield comparisons that all hold where a test does, or does not, up to what may have an effect."""
        together = ast.And if holds else ast.Or
        match test:
            case ast.UnaryOp(ast.Not(), inner):
                yield from self._conditions(inner, holds=not holds)
            case ast.BoolOp(op, parts) if isinstance(op, together):
                for part in parts:
                    yield from self._conditions(part, holds=holds)
                    if any(isinstance(inner, ast.Call | ast.NamedExpr) for inner in ast.walk(part)):
                        return
            case ast.Compare(left, ops, rights) if (holds or len(ops) == 1) and all(type(op) in _INVERSE for op in ops):
                for first, op, second in zip([left, *rights], ops, rights, strict=False):
                    yield first, type(op) if holds else _INVERSE[type(op)], second

    def _condition(self, left: ast.expr, op: type[ast.cmpop], right: ast.expr) -> None:
        """Take in a comparison that holds for all threads that do anything."""
        number, other = self._number(left), self._number(right)
        if number is not None and other is not None:
            self.rows.append(_compared(number.node, op, other.node))
            self.promises.append(self.rows[-1])
            return
        if number is not None:
            left, op, other = right, _MIRRORED[op], number
        shift = self._shifted(left)
        if shift is None or other is None or op is ast.NotEq:
            return
        bound, moved = self._bound(other), [f" - ({ast.unparse(part)})" for part in shift]
        least = "".join([bound, *moved])
        if op in (ast.Gt, ast.GtE, ast.Eq):
            self.starts.append(f"{least} + 1" if op is ast.Gt else least)
        if op in (ast.Lt, ast.LtE, ast.Eq):
            self.stops.append(least if op is ast.Lt else f"{least} + 1")
        self.promises.append(_compared(self._written(left), op, other.node))

    def _bound(self, number: _Number) -> str:
        """Return a number as text, no further from zero than what sums of small ones can be compared with."""
        text = ast.unparse(number.node)
        return text if number.small else f"min(max({text}, {-_FAR}), {_FAR})"

    def _shifted(self, node: ast.expr) -> list[ast.expr] | None:
        """Return what is added to the last index, or None if an expression is something else."""
        match node:
            case ast.Name(name) if name == self.index:
                return []
            case ast.Name(name) if name in self.values:
                return self._shifted(self.values[name])
            case ast.BinOp(left, ast.Add(), right):
                for index, other in ((left, right), (right, left)):
                    found, number = self._shifted(index), self._number(other)
                    if found is not None and number is not None and number.small:
                        return [*found, number.node]
            case ast.BinOp(left, ast.Sub(), right):
                found, number = self._shifted(left), self._number(right)
                if found is not None and number is not None and number.small:
                    return [*found, ast.UnaryOp(ast.USub(), number.node)]
        return None

    def _written(self, node: ast.expr) -> ast.expr:
        """Return an index with what is added to it, as the kernel writes it."""
        match node:
            case ast.Name(name) if name in self.values:
                return self._written(self.values[name])
            case ast.BinOp(left, op, right):
                return ast.BinOp(self._written(left), op, self._written(right))
        number = self._number(node)
        return node if number is None else number.node

    def _number(self, node: ast.expr) -> _Number | None:
        """Return an integer that all threads of a row share, or None if an expression may be something else."""
        match node:
            case ast.Constant(int() as value) if type(value) is int and abs(value) < _FAR:
                return _Number(node, abs(value) < _SMALL)
            case ast.Name(name) if name in self.numbers:
                return _Number(node, self.numbers[name])
            case ast.Name(name) if name in self.values:
                return self._number(self.values[name])
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(int() as axis)):
                return self._extent(name, [axis])
            case ast.Call(ast.Name("len"), [ast.Name(name)], []) if self.has_len:
                return self._extent(name, [0])
            case ast.Attribute(ast.Name(name), "size") if name in self.arrays:
                found = self._extent(name, range(self.arrays[name].ndim))
                if found is not None:
                    self.sizes[f"{name}.size"] = ast.unparse(found.node)
                return found
            case ast.UnaryOp(ast.USub(), inner):
                number = self._number(inner)
                return None if number is None else _Number(ast.UnaryOp(node.op, number.node), number.small)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
                parts = self._number(left), self._number(right)
                if parts[0] is None or parts[1] is None:
                    return None
                small = parts[0].small and parts[1].small and not isinstance(node.op, ast.Mult)
                return _Number(ast.BinOp(parts[0].node, node.op, parts[1].node), small)
            case ast.BinOp(left, ast.FloorDiv(), ast.Constant(int() as divisor)) if divisor > 0:
                number = self._number(left)
                return None if number is None else _Number(ast.BinOp(number.node, node.op, node.right), number.small)
        return None

    def _extent(self, name: str, axes: Sequence[int]) -> _Number | None:
        """Return the product of extents of an array."""
        if name not in self.arrays or not all(0 <= axis < self.arrays[name].ndim for axis in axes):
            return None
        return _Number(ast.parse(" * ".join(f"{name}.shape[{axis}]" for axis in axes) or "1", mode="eval").body, True)


def _is_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Return) and node.value is None)


def _compared(left: ast.expr, op: type[ast.cmpop], right: ast.expr) -> str:
    return ast.unparse(ast.Compare(left, [op()], [right]))
