"""How expressions differ from one thread of a block to the next, and so where threads find what they read and write.

Nothing is changed here, and nothing compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from numbridge.kernels.cpu_backend.blocks.source import THREAD
from numbridge.kernels.cpu_backend.blocks.syntax import AXES, OWN_NAMES, is_of_thread, with_loops
from numbridge.kernels.cpu_backend.lanes import Lanes, indices, is_break

__all__ = ["Steps"]

_WITH_STEP = 3


class Steps:
    """What is known of the expressions of a thread's text.

    Attributes
    ----------
    definers : dict of str to ast.expr
        What a name is, of those that are assigned in one place.
    """

    def __init__(
        self, tree: ast.FunctionDef, lanes: Lanes, once: Collection[str], nonnegative: Collection[str]
    ) -> None:
        self._lanes, self._nonnegative = lanes, nonnegative
        self.definers: dict[str, ast.expr] = {}
        self._counters: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Assign([ast.Name(name)], value) if name in once:
                    self.definers[name] = value
                case ast.For(ast.Name(name), iter=head) if name in once:
                    self._counters[name] = head
        self._steps: dict[tuple[str, int, bool], int | None] = {}

    def step(self, node: ast.expr, axis: int, *, together: bool = False) -> int | None:
        """Return how much greater an expression is for the next thread along an axis; None is unknown.

        Of threads that run `together`, the next one does the same trip of a loop, of which it may do more or fewer.
        """
        match node:
            case ast.Name(name):
                if name[:5] in ("_nb_i", "_nb_t") and name[5:].isdigit():
                    return int(name[5:] == str(axis))
                if name == THREAD:
                    return 1 if axis == 0 else None
                if name not in self._lanes.varying:
                    return 0
                key = name, axis, together
                if key not in self._steps:
                    self._steps[key] = None
                    self._steps[key] = self._step_of_name(name, axis, together)
                return self._steps[key]
            case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
                parts = self.step(left, axis, together=together), self.step(right, axis, together=together)
                if parts[0] is not None and parts[1] is not None:
                    return parts[0] + parts[1] if isinstance(op, ast.Add) else parts[0] - parts[1]
                return None
            case ast.Call(ast.Name("_nb_int64"), [argument]):
                return self.step(argument, axis, together=together)
            case ast.Subscript(ast.Attribute(_, "shape")) | ast.Constant():
                return 0
            case ast.Subscript() | ast.Call():
                return 0 if not self._lanes.varies(node) else None
        inner = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return 0 if all(self.step(part, axis, together=together) == 0 for part in inner) else None

    def _step_of_name(self, name: str, axis: int, together: bool) -> int | None:
        if name in self.definers:
            return self.step(self.definers[name], axis, together=together)
        head = self._counters.get(name)
        if not isinstance(head, ast.Call):
            return None
        if together and len(head.args) < _WITH_STEP:
            return 0 if len(head.args) == 1 else self.step(head.args[0], axis, together=True)
        return 0 if all(self.step(bound, axis, together=together) == 0 for bound in head.args) else None

    def cost(self, body: Sequence[ast.stmt], axis: int) -> tuple[int, int]:
        """Return how many elements threads find side by side along an axis, and how many apart; those in loops count more."""
        beside = lying = 0
        for loops, node in with_loops(body, ()):
            weight = 8 ** len(loops)
            for part in ast.walk(node):
                if (
                    isinstance(part, ast.Subscript)
                    and isinstance(part.value, ast.Name)
                    and part.value.id in self._lanes.arrays
                ):
                    steps = [self.step(place, axis, together=True) for place in indices(part)]
                    if all(step == 0 for step in steps[:-1]) and (not steps or steps[-1] in (0, 1)):
                        beside += weight
                    else:
                        lying += weight
        return beside, lying

    def is_told(self, places: Sequence[ast.expr], loop: ast.For | ast.While) -> bool:
        """Tell whether an element's place tells in which trip of a loop it is changed."""
        if (
            not isinstance(loop, ast.For)
            or not isinstance(loop.target, ast.Name)
            or not isinstance(loop.iter, ast.Call)
        ):
            return False
        if any(is_break(node) for node in loop.body):
            return False
        same = all(self.step(bound, axis) == 0 for bound in loop.iter.args for axis in range(AXES))
        return same and any(self.alias(place) == loop.target.id and self._counts_up(place) for place in places)

    def alias(self, node: ast.expr) -> str | None:
        while isinstance(node, ast.Name):
            if node.id not in self.definers:
                return node.id
            node = self.definers[node.id]
        return None

    def tells_thread(self, place: ast.expr) -> bool:
        """Tell whether an index tells one of a thread's first two coordinates."""
        return (self.step(place, 0), self.step(place, 1)) in ((0, 1), (1, 0)) and self._counts_up(place)

    def _counts_up(self, place: ast.expr) -> bool:
        """Tell whether an index is never negative; one that counts from the end may be the same place as another."""
        match place:
            case ast.Name(name) if name in self.definers:
                return name in self._nonnegative or self._counts_up(self.definers[name])
            case ast.Name(name):
                return name in self._nonnegative or name in OWN_NAMES or is_of_thread(name)
            case ast.Constant(int() as number):
                return number >= 0
            case ast.BinOp(left, ast.Add() | ast.Mult(), right):
                return self._counts_up(left) and self._counts_up(right)
        return False
