"""What the threads of a block do to the same memory one after another, in the order of their numbers.

Nothing is changed here, and nothing compiled.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

from numbridge.kernels.cpu_backend.blocks.parts import Around, Border, Node, Part
from numbridge.kernels.cpu_backend.blocks.steps import Steps
from numbridge.kernels.cpu_backend.blocks.syntax import (
    MEETING,
    MEMORY,
    STACK,
    TOLD,
    NoPartsError,
    called_name,
    calls_in,
    loaded_names,
    places_of,
    with_loops,
)
from numbridge.kernels.cpu_backend.lanes import ATOMIC, Lanes

__all__ = ["Order"]

# Additions and the like of integers give the same in any order.
_COMMUTES = tuple(
    f"_nb_atomic_{alone}{name}" for alone in ("", "alone_") for name in ("add", "sub", "and", "or", "xor", "min", "max")
)
# What shows an array in parts; it does nothing to it.
_COMPONENTS = "_nb_components"


class Order:
    """What of a thread's text has its place among what other threads do.

    Parameters
    ----------
    lanes : Lanes
        What is known of the text.
    steps : Steps
        How its expressions differ between threads.
    of_block : mapping of str to str
        Names of memory of the block's own, and which memory that is.
    holds_integers : callable
        Tells whether an array has elements that are integers.
    """

    def __init__(
        self, lanes: Lanes, steps: Steps, of_block: Mapping[str, str], holds_integers: Callable[[str], bool]
    ) -> None:
        self._lanes, self._steps, self._of_block = lanes, steps, of_block
        self._holds_integers = holds_integers
        self._loaded = loaded_names(lanes.tree)

    def changes(self, node: ast.AST) -> list[tuple[str, ast.Call]]:
        """Return what changes memory that threads share one after another, and which that is."""
        if self._commutes(node):
            return []
        found = []
        for call in calls_in(node):
            called = called_name(call)
            if called.startswith(ATOMIC):
                array = call.args[called.startswith(TOLD)]
                if isinstance(array, ast.Call) and ast.unparse(array.func) == _COMPONENTS:
                    (array,) = array.args
                if not isinstance(array, ast.Name):
                    raise NoPartsError
                if array.id not in self._lanes.private:
                    # Arguments may share memory; what a block makes does not.
                    found.append((self._of_block.get(array.id, ""), call))
            elif not called.startswith((STACK, MEETING, _COMPONENTS, *MEMORY)) and self._lanes.has_effect(call):
                raise NoPartsError
        return found

    def _commutes(self, node: ast.AST) -> bool:
        """Tell whether a statement changes an integer as others may before or after it, and nobody learns what was there."""
        match node:
            case ast.Expr(call):
                pass
            case ast.Assign([ast.Name(name)], call) if name not in self._loaded:
                pass
            case _:
                return False
        match call:
            case ast.Call(ast.Name(called), [ast.Name(array), *_]):
                return called in _COMMUTES and self._holds_integers(array)
        return False

    def check(self, nodes: Sequence[Node], since: set[str]) -> set[str]:
        """Refuse what threads would do in another order than one after another up to each barrier; return what is open."""
        for node in nodes:
            match node:
                case Border():
                    since = set()
                case Part():
                    changed = {memory for part in node.body for memory, _ in self.changes(part)}
                    if changed & since:
                        raise NoPartsError
                    since = since | changed
                case Around():
                    inside = self.check(node.body, since)
                    if node.repeats:
                        inside = self.check(node.body, inside)
                    since = since | inside | self.check(node.orelse, since)
        return since

    def must_be_in_order(self, part: Part, axis: int) -> bool:
        """Tell whether threads that run together along an axis would change an element in another order than by number."""
        seen: set[str] = set()
        for loops, node in with_loops(part.body, ()):
            for memory, call in self.changes(node):
                told = called_name(call).startswith(TOLD)
                places = places_of(call.args[1 + told])
                if memory in seen or not all(self._steps.is_told(places, loop) for loop in loops):
                    return True
                seen.add(memory)
                if axis > 0 and not (axis == 1 and any(self._steps.tells_thread(place) for place in places)):
                    return True
        return False
