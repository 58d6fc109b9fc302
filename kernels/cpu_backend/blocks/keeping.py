"""What a thread keeps from one part of its text to the next, and what it computes again; parts become functions.

This module compiles nothing.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Mapping, Sequence

from numbridge.kernels.cpu_backend.blocks.order import Order
from numbridge.kernels.cpu_backend.blocks.parts import Kept, Part
from numbridge.kernels.cpu_backend.blocks.source import THREAD
from numbridge.kernels.cpu_backend.blocks.steps import Steps
from numbridge.kernels.cpu_backend.blocks.syntax import (
    AT,
    FROM,
    NUMBER,
    OWN_NAMES,
    ROW,
    SLOT,
    STACK,
    TOLD,
    NoPartsError,
    called_name,
    calls_in,
    is_of_thread,
    loaded_names,
    mentioned,
    places_of,
    read_first,
    statement,
    stored_here,
)
from numbridge.kernels.cpu_backend.lanes import ATOMIC, Lanes, indices, local_array_name, stored

__all__ = ["Keeper"]

# A name is computed again in another part if that takes no more statements.
_FEW = 6


class _OwnElements(ast.NodeTransformer):
    """Puts elements of an array of all threads in the place of those of a thread's own."""

    def __init__(self, name: str, extents: Sequence[int]) -> None:
        self._own = name
        self._extents = extents

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        match node:
            case ast.Assign([ast.Subscript(ast.Name(name), ast.Constant(value))]) if name == self._own and value is ...:
                return self._filled(node.value)
        self.generic_visit(node)
        return node

    def _filled(self, value: ast.expr) -> ast.stmt:
        """Return loops that store a number in all of a thread's elements."""
        places = [f"_nb_fill{axis}_{self._own}" for axis in range(len(self._extents))]
        filled = f"{Kept(self._own).array}[{', '.join([*places, SLOT])}] = {ast.unparse(value)}"
        heads = [
            f"{'    ' * axis}for {place} in range({extent}):"
            for axis, (place, extent) in enumerate(zip(places, self._extents, strict=True))
        ]
        return statement("\n".join([*heads, "    " * len(heads) + filled]))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if not isinstance(node.value, ast.Name) or node.value.id != self._own:
            self.generic_visit(node)
            return node
        return ast.Subscript(self._array(), self._index(indices(node)), node.ctx)

    def _array(self) -> ast.expr:
        return ast.Name(Kept(self._own).array, ast.Load())

    def _index(self, places: Sequence[ast.expr]) -> ast.expr:
        made = [self.visit(place) for place in places]
        if len(made) != len(self._extents) or any(
            isinstance(place, ast.Constant | ast.Slice) and not _is_integer(place) for place in made
        ):
            raise NoPartsError
        return ast.Tuple([*made, ast.Name(SLOT, ast.Load())], ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(ast.Name("_nb_crew_stack_undo"), [log, ast.Name(name), mark]) if name == self._own:
                # Of the array nothing counts but its type.
                return ast.Call(node.func, [self.visit(log), self._array(), self.visit(mark)], [])
            case ast.Call(ast.Name("_nb_crew_stack_remember"), [log, ast.Name(name), index]) if name == self._own:
                return ast.Call(node.func, [self.visit(log), self._array(), self._index(places_of(index))], [])
            case ast.Call(ast.Name(called), [ast.Name(name), index, *rest]) if name == self._own:
                if called.startswith(ATOMIC) and not called.startswith(TOLD):
                    return ast.Call(
                        node.func, [self._array(), self._index(places_of(index)), *map(self.visit, rest)], []
                    )
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == self._own:
            raise NoPartsError
        return node


def _is_integer(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


class Keeper:
    """Makes functions of parts.

    Parameters
    ----------
    tree : ast.FunctionDef
        The text of a thread.
    lanes, steps, order
        What is known of it.
    once : set of str
        Names that are assigned in one place and used after it, in the same block.
    own : mapping of str to tuple of int
        The arrays of a thread's own, with their extents.
    kept : set of str
        What is kept in any case; gets what is kept besides.
    rooms, told : collection of str
        Names of memory for the stacks of all threads, and for what threads tell others.
    """

    def __init__(
        self,
        tree: ast.FunctionDef,
        lanes: Lanes,
        steps: Steps,
        order: Order,
        *,
        once: Collection[str],
        own: Mapping[str, tuple[int, ...]],
        kept: set[str],
        rooms: Collection[str],
        told: Collection[str],
    ) -> None:
        self._tree, self._lanes, self._steps, self._order = tree, lanes, steps, order
        self._once, self._own, self._kept, self._memory = once, own, kept, {*rooms, *told}

    def finish(self, parts: Sequence[Part], axis: int, given: Collection[str]) -> None:
        """Make functions of the parts, which go through a block along an axis."""
        for part in parts:
            part.in_order = self._order.must_be_in_order(part, axis)
            part.in_turns = part.in_turns and any(map(self._order.changes, part.body))
            beside, lying = self._steps.cost(part.body, axis)
            stacks = any(called_name(call).startswith(STACK) for node in part.body for call in calls_in(node))
            part.side_by_side = not part.in_order and not part.in_turns and not stacks and beside >= lying
        self._place_own_arrays(parts)
        read = {part: read_first(part.body, set()) & self._lanes.varying for part in parts}
        again = {part: self._again(read[part]) for part in parts}
        threads = {name for name in self._lanes.varying if is_of_thread(name)}
        for part in parts:
            made = {name for node in again[part] for name in stored(node)}
            needed = read[part] | {name for node in again[part] for name in loaded_names(node) & self._lanes.varying}
            read[part] = needed - made - threads
            self._kept |= read[part]
        self._kept -= threads
        self._names = (
            {name for node in ast.walk(self._tree) for name in stored_here(node)} | self._kept | {*given, *OWN_NAMES}
        )
        self._names |= {Kept(name).array for name in self._kept} | self._memory
        for part in parts:
            self._make(part, read[part], again[part], axis)

    def _again(self, names: Collection[str]) -> list[ast.stmt]:
        """Return statements that compute some of a thread's numbers again."""
        found: dict[str, ast.stmt] = {}
        for name in sorted(names):
            steps = self._few(name)
            for inner, node in steps or ():
                found.setdefault(inner, node)
        return list(found.values())

    def _few(self, name: str) -> list[tuple[str, ast.stmt]] | None:
        """Return what computes a name again, or None if that is much, or may be something else by now."""
        if name not in self._steps.definers or not self._is_plain(self._steps.definers[name]):
            return None
        found: list[tuple[str, ast.stmt]] = []
        for inner in sorted(loaded_names(self._steps.definers[name]) & self._lanes.varying):
            if not is_of_thread(inner):
                steps = self._few(inner)
                if steps is None:
                    return None
                found += [step for step in steps if step not in found]
        value = self._steps.definers[name]
        made = ast.Assign([ast.Name(name, ast.Store())], value)
        return [*found, (name, made)] if len(found) < _FEW else None

    def _is_plain(self, node: ast.expr) -> bool:
        """Tell whether an expression is arithmetic on what does not change while it may be computed again."""
        for part in ast.walk(node):
            match part:
                case ast.Name(name):
                    fixed = name in self._once or is_of_thread(name)
                    if not fixed or name in self._lanes.arrays | self._lanes.private:
                        return False
                case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult()):
                    pass
                case ast.Compare() | ast.Constant() | ast.UnaryOp() | ast.cmpop() | ast.operator() | ast.unaryop():
                    pass
                case ast.expr_context():
                    pass
                case _:
                    return False
        return True

    def _place_own_arrays(self, parts: Sequence[Part]) -> None:
        """Give arrays of a thread's own memory of the block's, or leave them to the one part that has to do with them."""
        for name in sorted(self._own):
            users = [part for part in parts if any(name in mentioned(node) for node in part.body)]
            if len(users) == 1 and not users[0].in_loop:
                made = next(node for node in ast.walk(self._tree) if local_array_name(node) == name)
                assert isinstance(made, ast.stmt)
                users[0].body.insert(0, made)
            elif users:
                for part in users:
                    part.body = [_OwnElements(name, self._own[name]).visit(copy.deepcopy(node)) for node in part.body]
                self._kept.add(name)

    def _make(self, part: Part, read: Collection[str], again: Sequence[ast.stmt], axis: int) -> None:
        known: set[str] = set()
        read_first(part.body, known)
        written = {name for node in part.body for name in stored(node)} & self._kept - self._own.keys()
        part.does_something = bool(written) or any(map(self._lanes.changes_memory, part.body))
        load = (set(read) | (written - known)) & self._kept - self._own.keys()
        body: list[ast.stmt] = [
            *(statement(f"{name} = {Kept(name).array}[{SLOT}]") for name in sorted(load)),
            *map(copy.deepcopy, again),
            *part.body,
            *(statement(f"{Kept(name).array}[{SLOT}] = {name}") for name in sorted(written)),
        ]
        numbers = {
            f"_nb_t{axis}": AT,
            f"_nb_i{axis}": f"{FROM}{axis} + {AT}",
            SLOT: f"{ROW} + {AT}",
            THREAD: " * ".join([f"{NUMBER} + {AT}", *(f"_nb_b{k}" for k in range(axis))]),
        }
        used = read_first(body, set())
        body = [*(statement(f"{name} = {text}") for name, text in numbers.items() if name in used), *body]
        part.body = body
        free = read_first(body, set())
        part.parameters = [AT, *sorted(name for name in free if name != AT and name in self._names)]
        made = statement(f"def {part.name}({', '.join(part.parameters)}):\n    pass")
        assert isinstance(made, ast.FunctionDef)
        made.body = body
        part.tree = ast.fix_missing_locations(made)
