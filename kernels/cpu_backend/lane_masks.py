"""The code of loops that lanes leave at different times: those that have left wait until the last one has.

A mask says which lanes are still in the loop. What only computes is computed for all of them, and lanes that wait keep what they
hold; memory is read and written, and what could trap is done, for the others alone. A lane's values are those of a thread alone.
Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from numbridge.kernels.arithmetic.cpu_math import is_few_instructions
from numbridge.kernels.compilation.generated_code import Typed, as_typed
from numbridge.kernels.compilation.typed_text import Expression, Frame, Step, looping
from numbridge.kernels.cpu_backend.lane_code import GIVEN_MEMORY, LaneText, lane_place, lane_value, set_lane_value
from numbridge.kernels.cpu_backend.lanes import FEW, MOST, NoLanesError, has_stack, range_start
from numbridge.kernels.cpu_backend.row_source import Lane

__all__ = ["Together", "in_lanes"]

_WORD = ir.IntType(64)
_MOST_TRIPS = (1 << 63) - 1
_TRAPPING = (ast.FloorDiv, ast.Mod, ast.Pow)
_PLAIN = (builtins.abs, builtins.bool, builtins.float, builtins.int, builtins.max, builtins.min)


class Together(NamedTuple):
    """A function that runs several threads at once, and what it takes."""

    function: Typed
    takes: Lane


def in_lanes(
    tree: ast.FunctionDef,
    kinds: Sequence[Any],
    along: frozenset[str],
    names: Mapping[str, Any],
    *,
    fastmath: bool,
    always: bool,
    most: int = MOST,
    nonnegative: Collection[str] = (),
) -> Together | None:
    """Return a function that runs several threads at once, or None if that is impossible, or no gain.

    One of more than `FEW` takes the address of memory as its last argument.

    Parameters
    ----------
    tree : ast.FunctionDef
        The function for one thread.
    kinds : sequence of Numba types
        The types of its parameters.
    along : frozenset of str
        The parameters that are one more for each of the threads; the function takes the first thread's.
    names : mapping
        The globals of its text.
    fastmath : bool
        Whether LLVM may reassociate floating-point arithmetic.
    always : bool
        Whether to return it where nothing is gained, too.
    most : int
        How many threads may run at once.
    nonnegative : collection of str
        Integers that are known not to be negative.
    """
    tree = copy.deepcopy(tree)
    if most > FEW:
        tree.args.args.append(ast.arg(GIVEN_MEMORY))
        kinds = [*kinds, types.int64]
    how = {"always": always, "most": most, "nonnegative": nonnegative}
    text = MaskedText(tree, kinds, along, names, fastmath=fastmath, **how)
    try:
        made = as_typed(text)
    except NoLanesError:
        return None
    return None if made is None else Together(made, Lane(text.width, text.memory if most > FEW else None))


class MaskedText(LaneText):
    """A function's text while it is read for several lanes, with loops that they leave at different times."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._counters: dict[
            str, int | None
        ] = {}  # what counts from another start in every lane, and how much higher in the next

    # Loops

    def _statement(self, node: ast.stmt) -> list[Step]:
        if self._apart or id(node) not in self._lanes.staggered:
            return super()._statement(node)
        if isinstance(node, ast.For) and self._lanes.varies(node.iter):
            return [self._counting(node)]
        if isinstance(node, ast.While):
            return [self._waiting(node)]
        return [self._masked(super()._statement(node))]

    def _masked(self, steps: Sequence[Step]) -> Step:
        """Return the step of a loop that lanes enter together."""

        def build(frame: Frame) -> None:
            around, active = frame.active, self._room(frame, types.boolean)
            self._narrow(frame, active, lambda frame: ir.IntType(1)(1))
            frame.active = active
            for step in steps:
                step(frame)
            frame.active = around

        return build

    def _if(self, node: ast.If) -> Step:
        return super()._if(node) if self._apart or id(node) not in self._lanes.forked else self._forked(node)

    def _mixed(self, node: ast.If) -> Step:
        if not has_stack(node):
            return super()._mixed(node)
        if any(map(has_stack, node.body)) and any(map(has_stack, node.orelse)):
            raise NoLanesError  # on the way back, what the one side put there last would come after what the other did
        return self._forked(node)

    def _forked(self, node: ast.If) -> Step:
        """Return the step of a branch of which lanes on the one side wait for those on the other."""
        yes = self._lane_condition(node.test)
        sides = [self._block(side) for side in (node.body, node.orelse) if side]

        def build(frame: Frame) -> None:
            around, masks = frame.active, [self._room(frame, types.boolean) for _ in sides]

            def no(frame: Frame) -> Any:
                return frame.builder.not_(lane_value(frame, types.boolean, masks[0]))

            some = [self._narrow(frame, mask, goes) for mask, goes in zip(masks, (yes, no), strict=False)]
            for mask, there, steps in zip(masks, some, sides, strict=True):
                frame.active = mask
                with frame.builder.if_then(there):
                    for step in steps:
                        step(frame)
            frame.active = around

        return build

    def _break(self, node: ast.If) -> Step:
        if self._apart or not self._lanes.varies(node.test):
            return super()._break(node)
        leaves = self._lane_condition(node.test)

        def build(frame: Frame) -> None:
            some = self._narrow(frame, frame.active, lambda frame: frame.builder.not_(leaves(frame)))
            stay = frame.builder.append_basic_block("stay")
            frame.builder.cbranch(some, stay, frame.leave[-1])
            frame.builder.position_at_end(stay)

        return build

    def _waiting(self, node: ast.While) -> Step:
        """Return the step of a loop of which lanes may have to see whether they go on."""
        varies = self._lanes.varies(node.test)
        goes_on = self._lane_condition(node.test) if varies else self._condition(node.test)
        steps = self._loop_body(node.body)

        def build(frame: Frame) -> None:
            builder, before = frame.builder, frame.builder.block
            with looping(frame) as (inside, after):
                # LLVM would take the head of a loop that is not counted for that of the loop over lanes in it.
                trip = builder.phi(_WORD)
                trip.add_incoming(_WORD(0), before)
                some = self._narrow(frame, frame.active, goes_on) if varies else goes_on(frame)
                ends = builder.icmp_signed("==", trip, _WORD(_MOST_TRIPS))
                builder.cbranch(builder.and_(some, builder.not_(ends)), inside, after)
                builder.position_at_end(inside)
                for step in steps:
                    step(frame)
                trip.add_incoming(builder.add(trip, _WORD(1)), builder.block)

        return self._masked([build])

    def _counting(self, node: ast.For) -> Step:
        """Return the step of a loop of which lanes have their own range."""
        match node:
            case ast.For(ast.Name(name), ast.Call(args=bounds)) if name in self._constant:
                pass
            case _:
                raise NoLanesError
        with self._one_lane():
            start, stop, step = self._range(bounds)
        begin = range_start(node)
        ahead = self._lanes.step(begin)
        self._declared(name, types.int64)
        if step > 0 and self._counts_up(begin):
            self._nonnegative.add(name)
        self._counters[name] = ahead
        steps = self._loop_body(node.body)
        counter = self._name(name)
        del self._counters[name]
        sign = "<" if step > 0 else ">"

        def build(frame: Frame) -> None:
            builder, around = frame.builder, frame.active
            active, stops = self._room(frame, types.boolean), self._room(frame, types.int64)
            first = _WORD(0)
            limits = [(stops, stop)]
            if ahead is None:
                frame.places[name] = self._room(frame, types.int64)
                limits.append((frame.places[name], start))
            else:
                first = self._first(frame, start, ahead)

            def goes_on(frame: Frame) -> Any:
                return builder.icmp_signed(sign, counter.build(frame), lane_value(frame, types.int64, stops))

            def goes_further(frame: Frame) -> Any:
                # What comes next may be more than an integer holds, but how far it is to the end is not.
                ends = counter.build(frame), lane_value(frame, types.int64, stops)
                left = builder.sub(*(ends[::-1] if step > 0 else ends))
                return builder.icmp_unsigned(">", left, _WORD(abs(step)))

            def begins(frame: Frame) -> Any:
                made = [(place, frame.cast(b.build(frame), b.type, types.int64)) for place, b in limits]
                mask, frame.mask = frame.mask, None
                for place, number in made:
                    set_lane_value(frame, types.int64, place, number)
                frame.values[name], frame.mask = first, mask
                return goes_on(frame)

            entered = self._narrow(frame, active, begins)
            frame.active = active
            before = builder.block
            with looping(frame) as (inside, after):
                counted, some = builder.phi(_WORD), builder.phi(ir.IntType(1))
                counted.add_incoming(first, before)
                some.add_incoming(entered, before)
                builder.cbranch(some, inside, after)
                builder.position_at_end(inside)
                frame.values[name] = counted
                for inner in steps:
                    inner(frame)
                still = self._narrow(frame, active, goes_further)
                following = builder.add(counted, _WORD(step))
                counted.add_incoming(following, builder.block)
                some.add_incoming(still, builder.block)
            frame.active = around

        return build

    def _first(self, frame: Frame, start: Expression, ahead: int) -> Any:
        """Return where the first lane begins to count, of lanes that begin at numbers which lie evenly apart.

        A lane that waits may hold another number, so that any other is asked.
        """
        builder = frame.builder
        if frame.active is None:
            frame.lane = _WORD(0)
            first = frame.cast(start.build(frame), start.type, types.int64)
            frame.lane = None
            return first

        def each(frame: Frame) -> Any:
            number = frame.cast(start.build(frame), start.type, types.int64)
            return builder.sub(number, builder.mul(frame.lane, _WORD(ahead)))

        return self._any(frame, each, _WORD)  # lanes that do not wait find the same number

    def _room(self, frame: Frame, kind: Any) -> Any:
        """Make room for a value of every lane."""
        with frame.builder.goto_entry_block():
            return lane_place(frame, kind, self.width)

    def _narrow(self, frame: Frame, mask: Any, stays: Callable[[Frame], Any]) -> Any:
        """Set a mask: lanes that are in the loop around, and that stay; return whether there are any."""

        def each(frame: Frame) -> Any:
            stay = stays(frame)
            if frame.mask is not None:
                stay = frame.builder.select(frame.mask, stay, ir.IntType(1)(0))
            frame.mask = None
            set_lane_value(frame, types.boolean, mask, stay)
            return stay

        return self._any(frame, each)

    def _lane_condition(self, node: ast.expr) -> Callable[[Frame], Any]:
        with self._one_lane():
            return self._condition(node)

    # What waiting lanes must not do

    def _name(self, name: str) -> Expression:
        ahead = self._counters.get(name, 0)
        if ahead == 0:
            return super()._name(name)

        def build(frame: Frame) -> Any:
            builder = frame.builder
            if ahead is None:
                own = lane_value(frame, types.int64, frame.places[name])
            else:
                own = builder.mul(frame.lane, _WORD(ahead), flags=("nsw",))
            return builder.add(frame.values[name], own)

        return Expression(types.int64, build)

    def _condition(self, node: ast.expr) -> Callable[[Frame], Any]:
        condition = super()._condition(node)

        def build(frame: Frame) -> Any:
            made = condition(frame)
            return made if frame.mask is None else _frozen(frame.builder, made)

        return build

    def _element(self, node: ast.Subscript) -> Expression:
        return _guarded(super()._element(node))

    def _store(self, target: ast.Subscript, value: Expression) -> Step:
        store = super()._store(target, value)

        def build(frame: Frame) -> None:
            if frame.mask is None:
                store(frame)
                return
            mask, frame.mask = frame.mask, None
            with frame.builder.if_then(mask):
                store(frame)
            frame.mask = mask

        return build

    def _binary(self, node: Any, op: ast.AST, left: Expression, right_node: ast.expr) -> Expression:
        made = super()._binary(node, op, left, right_node)
        return _guarded(made) if isinstance(op, _TRAPPING) else made

    def _call(self, node: ast.Call) -> Expression:
        made = super()._call(node)
        function = self._object(node.func)
        plain = function in _PLAIN or (isinstance(function, type) and issubclass(function, np.generic))
        return made if plain or is_few_instructions(function) else _guarded(made)


def _frozen(builder: Any, value: Any) -> Any:
    """Return a value that is some value, if not the same each time, where what a lane that waits computes has none."""
    made = ir.Instruction(builder.block, value.type, "freeze", [value])
    builder.block.instructions.append(made)
    builder.position_at_end(builder.block)
    return made


def _guarded(value: Expression) -> Expression:
    """Return a value that is computed only for lanes that do not wait."""

    def build(frame: Frame) -> Any:
        if frame.mask is None:
            return value.build(frame)
        builder, mask = frame.builder, frame.mask
        before = builder.block
        frame.mask = None
        with builder.if_then(mask):
            made = value.build(frame)
            there = builder.block
        frame.mask = mask
        result = builder.phi(made.type)
        result.add_incoming(made, there)
        result.add_incoming(ir.Constant(made.type, None), before)
        return result

    return Expression(value.type, build, value.number)
