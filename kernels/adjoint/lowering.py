"""Structured control flow: `return`, `break` and `continue` become branches, flags and the ends of loops.

Syntax trees go in and come out. Afterwards a body has no jumps: what would have been skipped stands in the other branch
of the test that jumps, or under a flag where no branch always jumps. A loop that a flag ends has the attribute
``leave``, its name. Nothing is duplicated.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ANSWER", "without_jumps"]

ANSWER = "_nb_result"
_JUMPS = (ast.Return, ast.Break, ast.Continue)


class _Leave(ast.stmt):
    """A return that has happened inside a loop, seen from outside it."""

    _attributes = ast.stmt._attributes


@dataclass
class _Scope:
    """A loop's body or a function's: the flags that a jump out of it sets."""

    broken: str | None = None
    returned: str | None = None
    skipped: list[str] = field(default_factory=list)


def without_jumps(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return a function's body without jumps; the value that it returns is in the variable `ANSWER`."""
    return _Lowering().block(body, _Scope())


class _Lowering:
    def __init__(self) -> None:
        self._count = 0

    def block(self, body: list[ast.stmt], scope: _Scope) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for position, statement in enumerate(body):
            rest = body[position + 1 :]
            if isinstance(statement, (*_JUMPS, _Leave)):
                return made + self._jump(statement, scope)
            if isinstance(statement, ast.Raise):
                return [*made, statement]
            if isinstance(statement, ast.If):
                if _may_jump([statement]):
                    return made + self._branch(statement, rest, scope)
                then, orelse = self.block(statement.body, scope), self.block(statement.orelse, scope)
                made.append(_like(ast.If(statement.test, then, orelse), statement))
                continue
            if isinstance(statement, ast.For | ast.While):
                before, loop, after = self._loop(statement)
                made += [*before, loop]
                if after:
                    return made + self.block([*after, *rest], scope)
                continue
            made.append(statement)
        return made

    def _flag(self, what: str) -> str:
        self._count += 1
        return f"_nb_{what}{self._count}"

    def _jump(self, statement: ast.stmt, scope: _Scope) -> list[ast.stmt]:
        made = []
        leaves = isinstance(statement, ast.Return | _Leave)
        if isinstance(statement, ast.Return) and statement.value is not None:
            made.append(_assign(ANSWER, statement.value, statement))
        flags = list(scope.skipped)
        if leaves and scope.returned is not None:
            flags.append(scope.returned)
        if (leaves or isinstance(statement, ast.Break)) and scope.broken is not None:
            flags.append(scope.broken)
        return made + [_assign(flag, ast.Constant(True), statement) for flag in flags]

    def _branch(self, statement: ast.If, rest: list[ast.stmt], scope: _Scope) -> list[ast.stmt]:
        body, orelse = statement.body, statement.orelse
        if _always_jumps(body) or _always_jumps(orelse) or not rest:
            then = body if _always_jumps(body) else [*body, *rest]
            other = orelse if _always_jumps(orelse) else ([*orelse, *rest] if _always_jumps(body) else orelse)
            made = ast.If(statement.test, self.block(then, scope), self.block(other, scope))
            return [_like(made, statement)]
        flag = self._flag("skip")
        scope.skipped.append(flag)
        tested = ast.If(statement.test, self.block(body, scope), self.block(orelse, scope))
        scope.skipped.pop()
        unless = ast.If(ast.UnaryOp(ast.Not(), _name(flag)), self.block(rest, scope), [])
        return [
            _assign(flag, ast.Constant(False), statement),
            _like(tested, statement),
            _like(unless, statement),
        ]

    def _loop(self, statement: Any) -> tuple[list[ast.stmt], ast.stmt, list[ast.stmt]]:
        """Return what comes before a loop, the loop, and what must be tested or run after it."""
        returns = _contains(statement.body, ast.Return, through_loops=True)
        breaks = returns or _contains(statement.body, ast.Break, through_loops=False)
        scope = _Scope(self._flag("broken") if breaks else None, self._flag("returned") if returns else None)
        body = self.block(statement.body, scope)
        if isinstance(statement, ast.For):
            loop: Any = ast.For(statement.target, statement.iter, body, [])
        else:
            loop = ast.While(statement.test, body, [])
        loop.leave = scope.broken
        before = [_assign(flag, ast.Constant(False), statement) for flag in (scope.broken, scope.returned) if flag]
        after: list[ast.stmt] = []
        if scope.returned:
            leave: Any = _Leave()
            after.append(_like(ast.If(_name(scope.returned), [_like(leave, statement)], []), statement))
        if statement.orelse and scope.broken:
            after.append(_like(ast.If(ast.UnaryOp(ast.Not(), _name(scope.broken)), statement.orelse, []), statement))
        elif statement.orelse:
            after += statement.orelse
        return before, _like(loop, statement), after


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _assign(name: str, value: ast.expr, at: ast.stmt) -> ast.stmt:
    made: ast.stmt = _like(ast.Assign([ast.Name(name, ast.Store())], value), at)
    return made


def _like(made: Any, at: ast.stmt) -> Any:
    """Give new nodes the position of the statement that they come from."""
    ast.copy_location(made, at)
    for child in ast.iter_child_nodes(made):
        if isinstance(child, ast.expr) and not hasattr(child, "lineno"):
            _like(child, at)
    return made


def _always_jumps(body: list[ast.stmt]) -> bool:
    for statement in body:
        if isinstance(statement, (*_JUMPS, _Leave, ast.Raise)):
            return True
        if isinstance(statement, ast.If) and _always_jumps(statement.body) and _always_jumps(statement.orelse):
            return True
    return False


def _may_jump(body: list[ast.stmt]) -> bool:
    """Tell whether a body has a jump out of the loop or function that it stands in."""
    kinds = (ast.Break, ast.Continue, _Leave, ast.Raise)
    return _contains(body, kinds, through_loops=False) or _contains(body, ast.Return, through_loops=True)


def _contains(body: list[ast.stmt], kinds: Any, *, through_loops: bool) -> bool:
    for statement in body:
        if isinstance(statement, kinds):
            return True
        inner: list[ast.stmt] = []
        if isinstance(statement, ast.If) or (through_loops and isinstance(statement, ast.For | ast.While)):
            inner = [*statement.body, *statement.orelse]
        elif isinstance(statement, ast.For | ast.While):
            inner = statement.orelse
        if _contains(inner, kinds, through_loops=through_loops):
            return True
    return False
