"""`:=` within expressions, which become assignments before the statement where that changes nothing.

Numba loses the type of what is both kept and given. What is assigned on some ways through an expression only, or would come
before what it may change, stays as it is, and is refused later (`check_assignments`). Works on `ast`; compiles nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["assign_before"]


def assign_before(definition: ast.FunctionDef, reached: Callable[[ast.expr], object]) -> None:
    """Take assignments out of the expressions of a function.

    Parameters
    ----------
    definition : ast.FunctionDef
        The function; changed in place.
    reached : callable
        Returns what is called, as far as it is known before the function runs.
    """
    if any(isinstance(node, ast.NamedExpr) for node in ast.walk(definition)):
        _Statements(lambda called: _is_pure(reached(called))).visit(definition)


def _is_pure(function: object) -> bool:
    """Tell whether a function reads and changes nothing but its arguments, which are numbers."""
    if any(function is known for known in _OF_NUMBERS) or isinstance(function, np.ufunc):
        return True
    if isinstance(function, type):
        return issubclass(function, np.generic)
    return getattr(function, "__module__", None) == "math"


_OF_NUMBERS = (int, float, bool, abs, min, max, round, len, range)


class _Statements(ast.NodeTransformer):
    """Puts assignments before the statements in which they stand."""

    def __init__(self, is_pure: Callable[[ast.expr], bool]) -> None:
        self._is_pure = is_pure

    def visit(self, node: ast.AST) -> Any:
        """Return what stands for a statement; expressions are not looked into for others."""
        if isinstance(node, ast.expr):
            return node
        if not isinstance(node, ast.stmt) or isinstance(node, ast.FunctionDef):
            return self.generic_visit(node)
        self.generic_visit(node)
        field = _FIELDS.get(type(node))
        expression = None if field is None else getattr(node, field)
        if field is None or not isinstance(expression, ast.expr):
            return node
        # What is added to is read before.
        taker = _Taker(node.target if isinstance(node, ast.AugAssign) else None, self._is_pure)
        taken = taker.take(expression)
        if not taker.before:
            return node
        if not isinstance(node, ast.While):
            setattr(node, field, taken)
            return [*taker.before, node]
        if any(isinstance(part, ast.Break | ast.Continue) for last in node.orelse for part in ast.walk(last)):
            return node  # these are about a loop around this one
        leave = ast.Break()
        ends = ast.If(ast.UnaryOp(ast.Not(), taken), [*node.orelse, leave], [])
        for made in (ends, ends.test, leave):
            ast.copy_location(made, expression)
        node.test, node.orelse = ast.copy_location(ast.Constant(True), expression), []
        node.body = [*taker.before, ends, *node.body]
        return node


# What a statement evaluates first, and always
_FIELDS: dict[type[ast.stmt], str] = {
    **dict.fromkeys((ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return), "value"),
    **dict.fromkeys((ast.If, ast.While, ast.Assert), "test"),
    ast.For: "iter",
}


class _Taker:
    """Takes assignments out of one expression, in the order in which Python evaluates it."""

    def __init__(self, read_before: ast.expr | None, is_pure: Callable[[ast.expr], bool]) -> None:
        self._is_pure = is_pure
        self.before: list[ast.stmt] = []
        # The names that have been read, whether nothing but names and constants has been evaluated, and whether functions have
        # been called that may be within this one, and read its variables.
        self._read: set[str] = set()
        self._is_simple = True
        self._has_called = False
        self._has_ended = False
        if read_before is not None:
            self._pass_by(read_before)

    def take(self, node: ast.expr) -> ast.expr:
        """Return an expression in which names stand for what was taken out; its nodes are its own, and `node` stays."""
        match node:
            case ast.NamedExpr():
                return self._named(node)
            case ast.BoolOp(op, [first, *others]):
                return self._made(node, ast.BoolOp(op, [self.take(first), *map(self._pass_by, others)]))
            case ast.IfExp(test, body, orelse):
                return self._made(node, ast.IfExp(self.take(test), self._pass_by(body), self._pass_by(orelse)))
            case ast.Compare(left, ops, [first, *others]):
                sides = self.take(left), self.take(first)
                return self._made(node, ast.Compare(sides[0], ops, [sides[1], *map(self._pass_by, others)]))
            case ast.BinOp(left, op, right):
                sides = self.take(left), self.take(right)
                return self._made(node, ast.BinOp(sides[0], op, sides[1]))
            case ast.UnaryOp(op, operand):
                return self._made(node, ast.UnaryOp(op, self.take(operand)))
            case ast.Tuple(parts, context):
                return self._made(node, ast.Tuple([*map(self.take, parts)], context))
            case ast.Attribute(value, name, context) if isinstance(value, ast.NamedExpr):
                return self._made(node, ast.Attribute(self.take(value), name, context))
            case ast.Subscript(value, index, context) if not isinstance(index, ast.Slice):
                loaded = ast.Subscript(self.take(value), self.take(index), context)
                self._is_simple = False
                return self._made(node, loaded)
            case ast.Call(function, arguments, keywords) if not any(
                isinstance(argument, ast.GeneratorExp) for argument in arguments
            ):
                given = [*map(self.take, arguments)]
                named = [ast.keyword(keyword.arg, self.take(keyword.value)) for keyword in keywords]
                for made, keyword in zip(named, keywords, strict=True):
                    ast.copy_location(made, keyword)
                self._pass_by(function)
                self._is_simple = self._is_simple and self._is_pure(function)
                self._has_called = self._has_called or not self._is_pure(function)
                return self._made(node, ast.Call(function, given, named))
        return self._pass_by(node)

    def _named(self, node: ast.NamedExpr) -> ast.expr:
        target, acts = node.target, self._acts(node.value)
        # What has been evaluated before the value, which moves as a whole
        may_move = not (self._has_called or target.id in self._read or (acts and not self._is_simple))
        value = self.take(node.value)
        if self._has_ended or not may_move:
            self._has_ended = True
            return self._made(node, ast.NamedExpr(target, value))
        self.before.append(ast.copy_location(ast.Assign([target], value), node))
        return ast.copy_location(ast.Name(target.id, ast.Load()), node)

    def _acts(self, node: ast.expr) -> bool:
        """Tell whether an expression calls a function that may do more than compute."""
        return any(isinstance(part, ast.Call) and not self._is_pure(part.func) for part in ast.walk(node))

    def _pass_by(self, node: ast.expr) -> ast.expr:
        """Return an expression as it is, having noted what later assignments would be moved before."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                self._read.add(part.id)
            elif isinstance(part, ast.NamedExpr):
                self._has_ended = True
        self._has_called = self._has_called or self._acts(node)
        self._is_simple = self._is_simple and isinstance(node, ast.Name | ast.Constant | ast.Attribute)
        return node

    def _made(self, node: ast.expr, made: ast.expr) -> ast.expr:
        return ast.copy_location(made, node)
