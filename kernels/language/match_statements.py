"""`match` statements, which become `if` statements before anything else looks at them. Works on `ast`; compiles nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from numbridge.kernels.errors import KernelError, KernelUnsupportedError

__all__ = ["as_conditions"]

_PATTERNS = (
    "patterns in a kernel are constants, such as 1, -0.5 or Kind.FREE, several of them, as in 1 | 2, None, a name, and _; or, "
    "where what is matched is written as a tuple, `match a, b:`, as many of these; write it with if and elif"
)
_TRUTH = (
    "True and False as patterns fit Python's own alone, which a kernel does not have; write 1 and 0, or if and else"
)


def as_conditions(definition: ast.FunctionDef, refuse: Callable[..., KernelError]) -> None:
    """Make an `if` statement of each `match` statement of a function.

    Parameters
    ----------
    definition : ast.FunctionDef
        The function; changed in place.
    refuse : callable
        Makes an error of a node, a message and a kind.
    """
    if any(isinstance(node, ast.Match) for node in ast.walk(definition)):
        names = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        names |= {node.arg for node in ast.walk(definition) if isinstance(node, ast.arg)}
        _Conditions(names, refuse).visit(definition)


class _Conditions(ast.NodeTransformer):
    def __init__(self, names: set[str], refuse: Callable[..., KernelError]) -> None:
        self._names, self._refuse = names, refuse

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        """Return what stands for a statement: what is matched is evaluated once, and the first case that it fits is run."""
        begun: list[ast.stmt] = []
        subject = self._named(node.subject, _assigned(node), begun)
        rest: list[ast.stmt] = []
        for case in reversed(node.cases):
            tests, kept = self._read(case.pattern, subject)
            body = [made for statement in case.body for made in self._statements(statement)]
            if case.guard is not None and kept:
                if tests:
                    message = "a name is given to part of what is matched, and the case has a condition, too"
                    raise self._refuse(case.pattern, f"{message}; write it with if and elif", KernelUnsupportedError)
                rest = [*kept, ast.copy_location(ast.If(case.guard, body, rest), case.guard)]
                continue
            tests += [] if case.guard is None else [case.guard]
            if not tests:
                rest = [*kept, *body]
                continue
            fits = _joined(ast.And(), tests, case.pattern)
            rest = [ast.copy_location(ast.If(fits, [*kept, *body], rest), case.pattern)]
        return [*begun, *(rest or [ast.copy_location(ast.Pass(), node)])]

    def _statements(self, statement: ast.stmt) -> list[ast.stmt]:
        made: Any = self.visit(statement)
        return made if isinstance(made, list) else [made]

    def _named(self, subject: ast.expr, assigned: set[str], begun: list[ast.stmt]) -> ast.expr:
        """Return what is matched as what may be read again and again, which statements before give a name if need be."""
        if isinstance(subject, ast.Tuple):
            parts = [self._named(part, assigned, begun) for part in subject.elts]
            return ast.copy_location(ast.Tuple(parts, ast.Load()), subject)
        if isinstance(subject, ast.Constant) or (isinstance(subject, ast.Name) and subject.id not in assigned):
            return subject
        name = "matched"
        while name in self._names:
            name += "_"
        self._names.add(name)
        begun.append(ast.copy_location(ast.Assign([_name(name, ast.Store(), subject)], subject), subject))
        return _name(name, ast.Load(), subject)

    def _read(self, pattern: ast.pattern, subject: ast.expr) -> tuple[list[ast.expr], list[ast.stmt]]:
        """Return what must hold for a pattern to fit, and what is assigned where it does."""
        match pattern, subject:
            case ast.MatchAs(None, None), _:
                return [], []
            case ast.MatchSequence(patterns), ast.Tuple(parts) if len(patterns) == len(parts):
                found = [self._read(one, part) for one, part in zip(patterns, parts, strict=True)]
                return [test for tests, _ in found for test in tests], [kept for _, of_one in found for kept in of_one]
            case ast.MatchOr(patterns), _:
                several = [self._read(one, subject) for one in patterns]
                if all(tests and not kept for tests, kept in several):
                    fits = [_joined(ast.And(), tests, pattern) for tests, _ in several]
                    return [_joined(ast.Or(), fits, pattern)], []
            case _, ast.Tuple():
                pass
            case ast.MatchAs(inner, str(name)), _:
                tests, kept = ([], []) if inner is None else self._read(inner, subject)
                kept.append(
                    ast.copy_location(ast.Assign([_name(name, ast.Store(), pattern)], _again(subject)), pattern)
                )
                return tests, kept
            case ast.MatchValue(value), _:
                return [ast.copy_location(ast.Compare(_again(subject), [ast.Eq()], [value]), pattern)], []
            case ast.MatchSingleton(None), _:
                nothing = ast.copy_location(ast.Constant(None), pattern)
                return [ast.copy_location(ast.Compare(_again(subject), [ast.Is()], [nothing]), pattern)], []
            case ast.MatchSingleton(), _:
                raise self._refuse(pattern, _TRUTH, KernelUnsupportedError)
        raise self._refuse(pattern, _PATTERNS, KernelUnsupportedError)


def _assigned(node: ast.Match) -> set[str]:
    """Return the variables that may change after what is matched is evaluated, and before a case is found that it fits."""
    looked_at = [
        node.subject,
        *(case.pattern for case in node.cases),
        *(case.guard for case in node.cases if case.guard),
    ]
    parts = [part for one in looked_at for part in ast.walk(one)]
    captured = {part.name for part in parts if isinstance(part, ast.MatchAs) and part.name is not None}
    return captured | {part.target.id for part in parts if isinstance(part, ast.NamedExpr)}


def _joined(by: ast.boolop, tests: list[ast.expr], place: ast.AST) -> ast.expr:
    return tests[0] if len(tests) == 1 else ast.copy_location(ast.BoolOp(by, tests), place)


def _name(name: str, context: ast.expr_context, place: ast.AST) -> ast.Name:
    return ast.copy_location(ast.Name(name, context), place)


def _again(subject: ast.expr) -> ast.expr:
    """Return another node for the same name or constant, since trees hold each node once."""
    if isinstance(subject, ast.Name):
        return _name(subject.id, ast.Load(), subject)
    assert isinstance(subject, ast.Constant)
    return ast.copy_location(ast.Constant(subject.value), subject)
