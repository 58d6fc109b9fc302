"""A thread's text before it is taken apart at its barriers: told in names and ranges that show what all threads do alike.

The text computes what it computed before. This module compiles nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from numbridge.kernels.cpu_backend.blocks.name_webs import split_names
from numbridge.kernels.cpu_backend.blocks.source import THREAD
from numbridge.kernels.cpu_backend.blocks.strides import take_turns
from numbridge.kernels.cpu_backend.blocks.syntax import (
    COUNTS,
    MEETING,
    SHUFFLES,
    VOTES,
    NoPartsError,
    blocks_of,
    called_name,
    expression,
    waits,
)
from numbridge.kernels.cpu_backend.lanes import stored

__all__ = ["prepared"]


def without_coroutine(tree: ast.FunctionDef) -> ast.FunctionDef:
    """Return a function as `for_crew` made it without what makes a coroutine of it; changed in place."""

    def kept(node: ast.stmt) -> bool:
        match node:
            case ast.Expr(ast.Call(ast.Name("_nb_start" | "_nb_finish"))):
                return False
        return True

    tree.body = [node for node in tree.body if kept(node)]
    return tree


class _Indices(ast.NodeTransformer):
    """Puts the thread's and the block's own numbers in the place of what is computed from a thread's index, or asked of it."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        # It is no meeting.
        return expression(f"_nb_lanes_before({THREAD})") if ast.unparse(node.func) == f"{MEETING}lanemask_lt" else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.Name(index), ast.FloorDiv() | ast.Mod() as op, ast.Name(extent)):
                number = index.removeprefix("_nb_i")
                if number.isdigit() and index == f"_nb_i{number}" and extent == f"_nb_b{number}":
                    return ast.Name(f"_nb_{'t' if isinstance(op, ast.Mod) else 'k'}{number}", ast.Load())
        return node


class _Meetings(ast.NodeTransformer):
    """Gives what threads learn together in a statement a name of its own, before the statement."""

    def __init__(self) -> None:
        self._count = 0

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return a block's statements, with those that learn before them."""
        found: list[ast.stmt] = []
        for node in body:
            self._before: list[ast.stmt] = []
            if isinstance(node, ast.While) and waits(node.test):
                raise NoPartsError
            match node:
                case ast.If(test=test):
                    node.test = self.visit(test)
                case ast.For(iter=head):
                    node.iter = self.visit(head)
                case ast.Assign(value=value) if not self._is_meeting(value):
                    node.value = self.visit(value)
            found += [*self._before, node]
            for inner in blocks_of(node):
                inner[:] = self.block(inner)
        return found

    @staticmethod
    def _is_meeting(value: ast.expr) -> bool:
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
            return False
        return called_name(value) in (*COUNTS, *SHUFFLES, *VOTES)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not self._is_meeting(node):
            return node
        name = f"_nb_met_{self._count}"
        self._count += 1
        self._before.append(ast.Assign([ast.Name(name, ast.Store())], node))
        return ast.Name(name, ast.Load())


class _Ranges(ast.NodeTransformer):
    """Puts numbers in the place of names in ranges, whose lengths are known then."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self._known = known
        self._inside = False

    def visit_For(self, node: ast.For) -> ast.For:
        self._inside = True
        node.iter = self.visit(node.iter)
        self._inside = False
        node.body = [self.visit(inner) for inner in node.body]
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self._inside and isinstance(node.ctx, ast.Load) and node.id in self._known:
            return ast.Constant(self._known[node.id])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(ast.Constant(int() as left), ast.Add() | ast.Sub() as op, ast.Constant(int() as right)):
                if self._inside and (number := left + right if isinstance(op, ast.Add) else left - right) >= 0:
                    return ast.Constant(number)
        return node


def _numbers(tree: ast.FunctionDef) -> dict[str, int]:
    """Return the names that are the same small number wherever they are known."""
    given: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value):
                given.setdefault(name, []).append(value)
            case ast.AugAssign(ast.Name(name)) | ast.For(ast.Name(name)):
                given.setdefault(name, []).append(None)
    found = {}
    for name, values in given.items():
        match values:
            case [ast.Constant(int() as number)] if type(number) is int and number >= 0:
                found[name] = number
    return found


def _joined(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a block in which branches on the same name that follow each other are one, as around the way forth and back."""
    found: list[ast.stmt] = []
    for node in body:
        for inner in blocks_of(node):
            inner[:] = _joined(inner)
        before = found[-1] if found and waits(found[-1]) and waits(node) else None
        match before, node:
            case ast.If(ast.Name(one)), ast.If(ast.Name(other)) if one == other and one not in stored(before):
                for side in ("body", "orelse"):
                    setattr(before, side, _without_pass([*getattr(before, side), *getattr(node, side)]))
            case _:
                found.append(node)
    return found


def _without_pass(body: list[ast.stmt]) -> list[ast.stmt]:
    return [node for node in body if not isinstance(node, ast.Pass)] or body[:1]


def prepared(tree: ast.FunctionDef, integers: Collection[str]) -> ast.FunctionDef:
    """Return a thread's text as it is to be typed and taken apart; changed in place. For `integers` see `take_turns`."""
    without_coroutine(tree)
    _Indices().visit(tree)
    take_turns(tree, integers)
    tree.body = _joined(_Meetings().block(tree.body))
    split_names(tree)
    _Ranges(_numbers(tree)).visit(tree)
    return ast.fix_missing_locations(tree)
