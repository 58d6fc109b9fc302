"""The source of functions as Python has loaded them: a file may be edited while its functions run. Compiles no kernel."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import time
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from numbridge.kernels.language.parsing import parsed

__all__ = [
    "LAMBDA",
    "Lines",
    "as_definition",
    "file_of",
    "is_of",
    "lambda_of",
    "lines_of",
    "place_of_expression",
    "runs_within",
]

LAMBDA = "<lambda>"

_BEGAN = time.time()
_FACTS = ("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")


class Lines(NamedTuple):
    """The lines of a function's source, and the number of the first in its file."""

    lines: list[str]
    first: int


def file_of(function: FunctionType) -> list[str] | None:
    """Return the lines of a function's file, or notebook cell, as they are now; None where there are none."""
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    # It goes by size and time of change, which `cp -p` and the like set back.
    if _is_young(filename):
        linecache.cache.pop(filename, None)
    return linecache.getlines(filename, function.__globals__) or None


def lines_of(code: CodeType, file: list[str] | None) -> Lines | None:
    """Return a function's source out of the lines of its file; None where it cannot be read."""
    try:
        if file is not None and code.co_firstlineno <= len(file):
            return Lines(inspect.getblock(file[code.co_firstlineno - 1 :]), code.co_firstlineno)
        # The code object, not the function: a __wrapped__ attribute would lead to another function's source.
        return Lines(*inspect.getsourcelines(code))
    except (OSError, TypeError):
        return None


def lambda_of(code: CodeType, file: list[str]) -> ast.FunctionDef | None:
    """Return a lambda as the definition of a function, out of the lines of its file; None where it is not there.

    Of several that begin on one line it is the one whose expression stands where the code says that it does.
    """
    try:
        tree = parsed("".join(file))
    except SyntaxError:
        return None
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno]
    if len(found) > 1:
        place = place_of_expression(code)
        found = [
            n for n in found if (n.body.lineno, n.body.col_offset, n.body.end_lineno, n.body.end_col_offset) == place
        ]
    if len(found) != 1:
        return None
    return as_definition(found[0], LAMBDA)


def as_definition(node: ast.Lambda, name: str) -> ast.FunctionDef:
    """Return a lambda as the definition of a function."""
    answer = ast.copy_location(ast.Return(node.body), node.body)
    return ast.copy_location(ast.FunctionDef(name, node.args, [answer], []), node)


def place_of_expression(code: CodeType) -> tuple[int, int, int, int] | None:
    """Return where the expression of a lambda begins and ends, by lines and columns; None if the code does not say."""
    # What Python puts around the expression has a line and no columns.
    known = [
        (first, last, begin, end)
        for first, last, begin, end in code.co_positions()
        if first is not None and last is not None and begin is not None and end
    ]
    if not known:
        return None
    (line, column), (last, end) = min((p[0], p[2]) for p in known), max((p[1], p[3]) for p in known)
    return line, column, last, end


def has_columns(code: CodeType) -> bool:
    """Tell whether Python has kept at which columns code stands, and not at which lines alone."""
    return any(column is not None for _, _, column, _ in code.co_positions())


def runs_within(code: CodeType, node: ast.expr) -> bool:
    """Tell whether any of a function's code, rather than of those within it, stands where an expression does."""
    begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return any(
        column is not None and begin <= (line, column) and (last, last_column) <= end
        for line, last, column, last_column in code.co_positions()
    )


def is_of(definition: ast.FunctionDef, code: CodeType, file: list[str] | None) -> bool:
    """Tell whether a definition that was read from the lines of a file is that of a function's code.

    A file that has been written since this process began is compiled, to compare all that the function does.
    """
    arguments = definition.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    count = code.co_argcount + code.co_kwonlyargcount
    if definition.name != code.co_name or tuple(names) != code.co_varnames[:count]:
        return False
    if file is None or not _is_young(code.co_filename):
        return True
    made = (part for part in _compiled("".join(file), code.co_filename) if part.co_firstlineno == code.co_firstlineno)
    return any(_is_alike(part, code) for part in made)


def _is_young(filename: str) -> bool:
    try:
        found = os.stat(filename)
        return max(found.st_mtime, found.st_ctime) > _BEGAN
    except OSError:
        return False  # a cell of a notebook, which stays as it was


@functools.lru_cache(maxsize=8)
def _compiled(text: str, filename: str) -> tuple[CodeType, ...]:
    """Return the code of all functions of a file; what one does may depend on what the file imports elsewhere."""
    try:
        return tuple(_functions(compile(text, filename, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return ()


def _functions(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _functions(part)


def _is_alike(made: Any, loaded: Any) -> bool:
    """Tell whether two constants of code are the same, or do the same."""
    if not isinstance(made, CodeType):
        return type(made) is type(loaded) and (
            made == loaded if isinstance(made, frozenset) else repr(made) == repr(loaded)
        )
    if not isinstance(loaded, CodeType) or len(made.co_consts) != len(loaded.co_consts):
        return False
    same = all(getattr(made, fact) == getattr(loaded, fact) for fact in _FACTS)
    return same and all(map(_is_alike, made.co_consts, loaded.co_consts))
