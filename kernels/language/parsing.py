"""Parsing Python's text while other threads do. Decides nothing about what the text says."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeVar

__all__ = ["parsed", "parsed_expression"]

Parsed = TypeVar("Parsed")


def parsed(text: str) -> ast.Module:
    """Return the tree of statements."""
    return _undisturbed(lambda: ast.parse(text))


def parsed_expression(text: str) -> ast.expr:
    """Return the tree of an expression."""
    return _undisturbed(lambda: ast.parse(text, mode="eval")).body


def _undisturbed(parse: Callable[[], Parsed]) -> Parsed:
    """Return what is parsed, again if another thread has disturbed it.

    Before 3.11.8 and 3.12.2 CPython has one count of how deep trees are that it hands out, for all threads, and drops a tree if
    the count differs from what it was before (https://github.com/python/cpython/issues/106905): another thread may be at it
    where collecting garbage hands over the GIL. A lock would not do, since others parse, too.
    """
    while True:
        try:
            return parse()
        except SystemError as error:
            if not str(error).startswith("AST constructor recursion depth mismatch"):
                raise
