"""Loads and stores with numba.cuda's cache hints, `cuda.ldcg(x, i)` and its siblings, as the loads and stores that they are.

They become ``x[i]`` and ``x[i] = value`` in a function's tree before anything reads it, so that whatever is known of these is
known of them. A node keeps its hint, which the text of a kernel for CUDA says again. A hint that is called by another name stays
a function of numba.cuda's. Nothing is compiled here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import Any

from numbridge.kernels.errors import KernelError

__all__ = ["LOADS", "STORES", "hint_of", "with_plain_accesses"]

LOADS, STORES = ("ldca", "ldcg", "ldcs", "ldlu", "ldcv"), ("stcg", "stcs", "stwb", "stwt")


def hint_of(node: ast.AST) -> str | None:
    """Return the hint of a load or store, without ``cuda.``, or None."""
    found: str | None = getattr(node, "cache_hint", None)
    return found


def with_plain_accesses(
    tree: ast.FunctionDef,
    reached: Callable[[ast.expr], Any],
    refuse: Callable[[ast.AST, str], KernelError],
) -> None:
    """Put subscripts in the place of loads and stores with hints.

    Parameters
    ----------
    tree : ast.FunctionDef
        The function; changed in place.
    reached : callable
        Returns what is called stands for, as far as that is known around the function.
    refuse : callable
        Makes an error of a node and a message.
    """
    if "numba.cuda" in sys.modules:
        replacer = _Replacer(reached, refuse)
        tree.body = [replacer.visit(statement) for statement in tree.body]


class _Replacer(ast.NodeTransformer):
    def __init__(self, reached: Callable[[ast.expr], Any], refuse: Callable[..., KernelError]) -> None:
        self._reached, self._refuse = reached, refuse

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Return an assignment for a store."""
        call = node.value
        hint = self._hint(call) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or hint not in STORES:
            return self.generic_visit(node)
        target = self._element(call, hint, "array, index, value")
        target.ctx = ast.Store()
        return ast.copy_location(ast.Assign([target], self.visit(call.args[2])), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return a subscript for a load."""
        hint = self._hint(node)
        if hint is None:
            return self.generic_visit(node)
        if hint in STORES:
            raise self._refuse(node, f"cuda.{hint}(array, index, value) returns nothing; make a statement of it")
        return self._element(node, hint, "array, index")

    def _element(self, node: ast.Call, hint: str, wanted: str) -> ast.Subscript:
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if node.keywords or starred or len(node.args) != len(wanted.split(", ")):
            raise self._refuse(node, f"cuda.{hint}({wanted}) takes {len(wanted.split(', '))} arguments by position")
        made = ast.Subscript(self.visit(node.args[0]), self.visit(node.args[1]), ast.Load())
        made.cache_hint = hint  # type: ignore[attr-defined]
        return ast.copy_location(made, node)

    def _hint(self, node: ast.Call) -> str | None:
        """Return the hint of a call, or None."""
        called = node.func
        value = self._reached(called)
        name = getattr(value, "__name__", None)
        of_numba = getattr(value, "__module__", None) == "numba.cuda.cache_hints"
        # By another name it is a choice of the user's, which may be another one tomorrow.
        named = isinstance(called, ast.Attribute) or (isinstance(called, ast.Name) and called.id == name)
        return name if of_numba and name in (*LOADS, *STORES) and named else None
