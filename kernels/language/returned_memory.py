"""Memory that a device function makes for itself ends with it: what returns some, also within a tuple, is refused.

Numba refuses to return an array that it sees, but not a tuple of one, whose elements would then be anybody's. Nothing is compiled
here, and what only the types tell is left to Numba.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from numbridge.kernels.language.intrinsics import intrinsic_of
from numbridge.kernels.language.source import ARRAYS_OF_NUMPY, FunctionSource, Program, given_by_name
from numbridge.kernels.language.static_names import known_by

__all__ = ["check_returned_memory"]

_VIEWS = frozenset({"T", "flat", "ravel", "reshape", "transpose", "view", "real", "imag"})


def check_returned_memory(source: FunctionSource, program: Program) -> None:
    """Refuse a device function that returns memory of its own.

    Raises
    ------
    KernelError
        If it does; the message shows where.
    """
    own = {
        node.targets[0].id
        for node in source.nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _makes_memory(source, node.value)
    }
    reading = _Reading(source, program, own, ())
    for node in source.nodes:
        if own and isinstance(node, ast.Return) and node.value is not None and reading.holds(node.value):
            raise source.error(
                node,
                f"{source.name} returns memory that it has made, which ends with the function; make it where the function is "
                "called, and pass it",
            )


def _makes_memory(source: FunctionSource, node: ast.expr) -> bool:
    static = source.resolve(node.func) if isinstance(node, ast.Call) else None
    if static is None:
        return False
    found = intrinsic_of(static.value)
    return (found is not None and found.kind == "local_array") or known_by(static.value, ARRAYS_OF_NUMPY) is not None


class _Reading:
    """What of a function's expressions holds certain variables, as they are or as views."""

    def __init__(
        self, source: FunctionSource, program: Program, names: Collection[str], around: tuple[FunctionSource, ...]
    ) -> None:
        self._source = source
        self._program = program
        self._around = (*around, source)
        self._names = set(names)
        before = -1
        while before != len(self._names):
            before = len(self._names)
            for node in source.nodes:
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        self._assign(target, node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(name), _ if self.holds(value):
                self._names.add(name)
            case ast.Tuple(targets), ast.Tuple(values) if len(targets) == len(values):
                for pair in zip(targets, values, strict=True):
                    self._assign(*pair)

    def holds(self, node: ast.expr) -> bool:
        """Tell whether an expression surely holds one of the variables, or a part of one that is memory."""
        match node:
            case ast.Name(name):
                return name in self._names
            case ast.Tuple(parts):
                return any(map(self.holds, parts))
            case ast.IfExp(_, then, orelse):
                return self.holds(then) or self.holds(orelse)
            case ast.Subscript(base, index):
                parts = index.elts if isinstance(index, ast.Tuple) else [index]
                return any(isinstance(part, ast.Slice) for part in parts) and self.holds(base)
            case ast.Attribute(base, name):
                return name in _VIEWS and self.holds(base)
            case ast.Call(ast.Attribute(base, name)) if self._source.resolve(node.func) is None:
                return name in _VIEWS and self.holds(base)
            case ast.Call():
                return self._returned(node)
        return False

    def _returned(self, node: ast.Call) -> bool:
        """Tell whether a device function returns one of the variables that it is given."""
        static = self._source.resolve(node.func)
        callee = None if static is None else self._program.callee(static.value)
        if callee is None or callee in self._around or any(isinstance(part, ast.Starred) for part in node.args):
            return False
        given = given_by_name(callee.parameters, node)
        names = [name for name, argument in given.items() if name and self.holds(argument)]
        if not names:
            return False
        inside = _Reading(callee, self._program, names, self._around)
        return any(isinstance(part, ast.Return) and part.value and inside.holds(part.value) for part in callee.nodes)
