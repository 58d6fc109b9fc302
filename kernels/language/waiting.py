"""Whether threads of a kernel may wait for each other, apart from barriers: by locks, queues, and elements that they ask again.

What such threads change together they may change by turns, which no text tells. Nothing is launched or compiled here.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Sequence
from typing import TypeGuard

from numbridge.kernels.language.indexing import atomic_operation
from numbridge.kernels.language.source import FunctionSource, Program
from numbridge.kernels.language.static_names import instance_of

__all__ = ["is_ordered"]

_LOCKS = ("cas", "compare_and_swap", "exch")
# Packages whose functions wait for no other thread, or have texts that are read.
_KNOWN = ("math", "numba", "numbridge", "numpy")


def is_ordered(program: Program) -> bool:
    """Tell whether threads may let each other change an element by turns, also in code that is not Python."""
    sources = (*program.sources, *program.compiled_sources())
    return any(_lets_wait(program, source, node) for source in sources if source is not None for node in source.nodes)


def _lets_wait(program: Program, source: FunctionSource, node: ast.AST) -> bool:
    match node:
        case ast.Call():
            return atomic_operation(source, node) in _LOCKS or source.asks_memory(node) or _is_foreign(source, node)
        case ast.While() | ast.For():
            return _waits(program, source, node)
    return False


def _is_foreign(source: FunctionSource, node: ast.Call) -> bool:
    """Tell whether a call is of a function whose text is not read: of an extension of Numba's, or in CUDA C++."""
    static = source.resolve(node.func)
    value = None if static is None else static.value
    if isinstance(value, types.FunctionType):
        return (value.__module__ or "").partition(".")[0] not in _KNOWN  # None for what `exec` makes
    return instance_of(value, "numba.cuda.compiler", "ExternFunction") or instance_of(
        value, "numba.core.extending", "_Intrinsic"
    )


def _waits(program: Program, source: FunctionSource, loop: ast.While | ast.For) -> bool:
    """Tell whether another thread may end a loop: what decides that is an atomic operation, or one element each time."""
    nodes = [node for part in loop.body for node in ast.walk(part)]
    kept = {node.id for node in ast.walk(loop) if _is_stored(node)}
    stored = {_array(node) for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)}
    for node in (node for part in _deciding(loop, nodes) for node in ast.walk(part)):
        is_same = not any(isinstance(part, ast.Name) and part.id in kept for part in ast.walk(node))
        match node:
            case ast.Subscript(ast.Attribute(attr="shape")):
                pass
            case ast.Subscript() if is_same and _array(node) not in stored:
                return True
            case ast.Call():
                static = source.resolve(node.func)
                callee = None if static is None else program.callee(static.value) or program.compiled(static.value)
                asked = [(source, node)] if callee is None else [(callee, part) for part in callee.nodes]
                if (is_same and callee is not None) or any(atomic_operation(*part) for part in asked):
                    return True
    return False


def _deciding(loop: ast.While | ast.For, nodes: Sequence[ast.AST]) -> list[ast.expr]:
    """Return the expressions that decide whether a loop goes on, and what in its body these are made of."""
    made: list[tuple[str, ast.expr]] = []
    for node in nodes:
        match node:
            case ast.Assign(targets, value):
                made += [(n.id, value) for target in targets for n in ast.walk(target) if _is_stored(n)]
            case ast.AugAssign(ast.Name(name), _, value) | ast.NamedExpr(ast.Name(name), value):
                made.append((name, value))
            case ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                made.append((name, value))
    branches = [(node.test, {*map(id, ast.walk(node))}) for node in nodes if isinstance(node, ast.If)]
    ends = [id(node) for node in nodes if isinstance(node, ast.Break | ast.Return)]
    found = [loop.test] if isinstance(loop, ast.While) else []
    found += [test for test, within in branches if not within.isdisjoint(ends)]
    names: set[str] = set()
    waiting = [*found]
    while waiting:
        read = {node.id for node in ast.walk(waiting.pop()) if isinstance(node, ast.Name)} - names
        names |= read
        values = [value for name, value in made if name in read]
        more = [*values, *(test for test, within in branches if any(id(value) in within for value in values))]
        found += more
        waiting += more
    return found


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _array(node: ast.expr) -> str:
    """Return the name of the array that an element is of, or nothing."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
