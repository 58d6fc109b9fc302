"""Loops that are an expression, ``sum(x[k] for k in range(n))``: each becomes a function, whose statements are that loop.

Works on `ast`; compiles nothing.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection
from typing import Any

from numbridge.kernels.language.parsing import parsed
from numbridge.kernels.language.static_names import known_by

__all__ = ["GENERATOR", "as_loop"]

GENERATOR = "<genexpr>"
"""What Python calls the code of a generator expression."""

# What Python's functions do with what a generator makes one after the other, `item`
_WAYS: dict[Any, str] = {
    builtins.sum: """
def sum(start=0):
    total = start
    for item in ...:
        total += item
    return total
""",
    builtins.any: """
def any():
    for item in ...:
        if item:
            return True
    return False
""",
    builtins.all: """
def all():
    for item in ...:
        if not item:
            return False
    return True
""",
}


def as_loop(
    call: ast.Call, function: object, taken: Collection[str]
) -> tuple[ast.GeneratorExp, ast.FunctionDef, list[ast.expr]] | None:
    """Return the generator that a function of Python's is called with, what does the same with it, and what that is called with.

    Parameters
    ----------
    call : ast.Call
        The call; the generator's nodes become part of the function.
    function : object
        What is called.
    taken : collection of str
        The variables around, which it may be given as parameters.

    Returns
    -------
    tuple of (ast.GeneratorExp, ast.FunctionDef, list of ast.expr), or None
        None for other calls, and for those that kernels do not have.
    """
    text = known_by(function, _WAYS)
    generator = call.args[0] if call.args else None
    if text is None or not isinstance(generator, ast.GeneratorExp):
        return None
    given = call.args[1:]
    given += [keyword.value for keyword in call.keywords if keyword.arg == "start"]
    most = 1 if function is builtins.sum else 0
    if len(given) > most or len(given) + 1 != len(call.args) + len(call.keywords):
        return None
    if any(part.is_async for part in generator.generators):
        return None
    made = parsed(text).body[0]
    assert isinstance(made, ast.FunctionDef)
    for node in ast.walk(made):
        if "lineno" in node._attributes:
            ast.copy_location(node, call)
    named = {node.id for node in ast.walk(generator) if isinstance(node, ast.Name)} | {*taken}
    _Filled(generator, named).visit(made)
    return generator, made, given


class _Filled(ast.NodeTransformer):
    """Puts a generator into the text of a function, whose variables are no names of it."""

    def __init__(self, generator: ast.GeneratorExp, named: set[str]) -> None:
        self._generator, self._named = generator, named

    def visit_For(self, node: ast.For) -> Any:
        """Return the generator's loops and conditions, around what is done with each of its items."""
        body = [self.visit(statement) for statement in node.body]
        for part in reversed(self._generator.generators):
            for condition in reversed(part.ifs):
                body = [ast.copy_location(ast.If(condition, body, []), condition)]
            loop = ast.For(part.target, part.iter, body, [], lineno=0, col_offset=0)
            body = [ast.copy_location(loop, part.target)]
        return body[0]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the item, or a variable by a name that is free."""
        if node.id == "item":
            return self._generator.elt
        node.id = self._free(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Return a parameter by the same name."""
        node.arg = self._free(node.arg)
        return node

    def _free(self, name: str) -> str:
        while name in self._named:
            name += "_"
        return name
