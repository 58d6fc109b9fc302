"""The code of a generated function that runs several neighbouring threads at once, each in a lane; see `lanes`.

What varies and is kept lies in arrays on the stack, one number for each lane. LLVM makes vectors of the loops over lanes, and
registers of those arrays. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ast
import builtins
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target

from numbridge.kernels.arithmetic.cpu_math import is_library_call
from numbridge.kernels.compilation.typed_text import Expression, Frame, Step, Text, UnknownError, looping
from numbridge.kernels.cpu_backend.lanes import (
    ATOMIC,
    FEW,
    MOST,
    Group,
    Lanes,
    NoLanesError,
    local_array_name,
    needed_for,
    read_lanes,
    stored,
)
from numbridge.kernels.cpu_backend.stack_runs import COUNTED, PLACED, PUT_PLACE, moves_stack
from numbridge.kernels.element_types.numba_elements import NumbaElement
from numbridge.kernels.language.rewriting import CUDA_FUNCTION, CUDA_MODULE

__all__ = ["GIVEN_MEMORY", "LaneText", "lane_place", "lane_value", "only_computes", "set_lane_value"]

# What all lanes together may take of a thread's stack, and what arrays of theirs may of memory that they are given.
_ROOM, _MEMORY = 1 << 18, 1 << 22
GIVEN_MEMORY = "_nb_lane_memory"
"""The parameter that is the address of such memory."""
_LINE = 64
_LEAST = 8  # lanes whose numbers LLVM keeps in registers one by one
_ADDS = (
    "_nb_add",
    "_nb_add_private",
    "_nb_add_either",
    "_nb_add_to_total",
    "_nb_sub_either",
    "_nb_sub_from_total",
)
_REFUSED = ("_nb_crew_stack_", "_nb_print", "_nb_checked", "_nb_having", CUDA_MODULE)
# Each is an instruction or two, and adjoints of `asin`, `acos` and `atanh` call the first.
_OF_CUDA = frozenset(f"{CUDA_FUNCTION}{name}" for name in ("fma", "selp", "popc", "clz", "ffs", "brev"))
_STACK = "_nb_stack_"
_BIT = ir.IntType(1)
_MODULES = ("builtins", "cmath", "math", "numba.core", "numbridge", "numpy", "operator")


def only_computes(name: str, function: Callable[[], Any]) -> bool:
    """Tell whether a function, as a text calls it, only computes.

    Raises
    ------
    NoLanesError
        If threads that run together must not call it.
    """
    if name in _OF_CUDA:
        return True
    if name.startswith(_REFUSED):
        raise NoLanesError
    if name.startswith((*ATOMIC, _STACK)):
        return False
    value = function()
    value = getattr(value, "_defn", getattr(value, "py_func", value))
    module = getattr(value, "__module__", None) or type(value).__module__
    return value is not builtins.print and f"{module}.".startswith(tuple(f"{known}." for known in _MODULES))


class LaneText(Text):
    """A function's text while it is read for several lanes."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        kinds: Sequence[Any],
        along: frozenset[str],
        names: Mapping[str, Any],
        *,
        fastmath: bool,
        always: bool,
        nonnegative: Collection[str] = (),
        most: int = MOST,
    ) -> None:
        super().__init__(tree, kinds, names, fastmath=fastmath, nonnegative=nonnegative)
        self.symbol += f".lanes{most}"
        self.width = self.memory = 0
        self._fast, self._always, self._at_most = fastmath, always, most
        self._along = along
        self._lanes: Lanes
        self._totals: list[str] = []
        self._private: dict[str, _Private] = {}
        self._apart = False  # whether what is read now runs for one lane after another

    def read(self) -> None:
        """Type everything, and choose how many lanes there are."""
        arrays = frozenset(name for name, kind in self._types.items() if isinstance(kind, types.Array))
        self._lanes = read_lanes(self.tree, self._along, arrays, self._constant, self._computes)
        super().read()
        asked = (FEW if self._lanes.staggered else _LEAST) * self._always
        gained = self._lanes.width(self._is_float, self._is_serial, fastmath=self._fast)
        self.width = min(gained, self._at_most) or asked
        room = _MEMORY if GIVEN_MEMORY in self._types else _ROOM
        while self.width > 1 and self.width * self._bytes() > room:
            self.width //= 2
        if self.width < 2 or (self._lanes.is_long and self.width <= FEW):
            raise NoLanesError
        if self.width * self._bytes() > _ROOM:
            for private in self._private.values():
                private.offset, self.memory = self.memory, self.memory + private.bytes_for(self.width)

    def _computes(self, function: ast.expr) -> bool:
        return only_computes(ast.unparse(function), lambda: self._object(function))

    def _is_float(self, name: str) -> bool:
        kind = self._types.get(name)
        return isinstance(kind.dtype if isinstance(kind, NumbaElement) else kind, types.Float | types.Complex)

    def _is_serial(self, call: ast.Call) -> bool:
        return is_library_call(self._object(call.func), [self._expression(argument).type for argument in call.args])

    def _bytes(self) -> int:
        """Return how much memory one lane takes."""
        kept = sum(_itemsize(self._types[name]) for name in self._lanes.kept)
        return kept + sum(private.bytes_for(1) for private in self._private.values())

    # Places

    def _make_place(self, frame: Frame, name: str, kind: Any) -> None:
        if name in self._private:
            frame.places[name] = self._private[name].memory(frame, self.width)
        elif name in self._lanes.kept:
            frame.places[name] = lane_place(frame, kind, self.width)
        else:
            super()._make_place(frame, name, kind)

    def _name(self, name: str) -> Expression:
        kind = self._types.get(name)
        if name in self._along:
            return Expression(
                kind, lambda frame: frame.builder.add(frame.values[name], frame.lane, flags=("nsw", "nuw"))
            )
        if name in self._private:
            return Expression(kind, lambda frame: self._private[name].view(frame, frame.places[name], self.width))
        if name in self._lanes.kept:
            if kind is None:
                raise UnknownError
            return Expression(kind, lambda frame: self._own(frame, name, kind))
        return super()._name(name)

    def _own(self, frame: Frame, name: str, kind: Any) -> Any:
        """Return what the lane holds."""
        near = frame.near.get(name)
        return lane_value(frame, kind, frame.places[name]) if near is None else frame.builder.load(near)

    def _assign(self, name: str, value: Expression) -> Step:
        if isinstance(value.type, types.Array) and name not in self._lanes.arrays:
            raise UnknownError
        if name not in self._lanes.kept:
            return super()._assign(name, value)
        kind = self._declared(name, value.type)

        def build(frame: Frame) -> None:
            made = frame.cast(value.build(frame), value.type, kind)
            if name in frame.near:
                frame.builder.store(made, frame.near[name])
            else:
                set_lane_value(frame, kind, frame.places[name], made)

        return build

    # Statements

    def _statement(self, node: ast.stmt) -> list[Step]:
        name = local_array_name(node)
        if name is not None:
            assert isinstance(node, ast.Assign)
            self._declare_private(name, node.value)
            return []
        if isinstance(node, ast.Return) and node is self.tree.body[-1]:
            return self._summed(node)
        return super()._statement(node)

    def _declare_private(self, name: str, value: ast.expr) -> None:
        made = self._expression(value).type
        assert isinstance(value, ast.Call)
        extents = ast.literal_eval(value.args[0])
        self._private[name] = _Private(made, extents if isinstance(extents, tuple) else (extents,))
        self._declared(name, self._private[name].kind)

    def _block(self, body: Sequence[ast.stmt]) -> list[Step]:
        return super()._block(body) if self._apart else self._parts(body, self._statement)

    def _loop_body(self, body: Sequence[ast.stmt]) -> list[Step]:
        if self._apart:
            return super()._loop_body(body)
        return self._parts(body, lambda node: super(LaneText, self)._loop_body([node]))

    def _parts(self, body: Sequence[ast.stmt], once: Any) -> list[Step]:
        """Return the steps of a block; `once` gives those of a statement that runs once."""
        steps: list[Step] = []
        for part in self._lanes.parts(body):
            if isinstance(part, Group):
                if any(isinstance(inner, ast.For | ast.While) for node in part.body for inner in ast.walk(node)):
                    raise NoLanesError  # every lane has a loop of its own, in which nothing is gained
                steps += self._added_up(part.body[0]) or [self._group(part.body)]
            else:
                steps += once(part)
        return steps

    def _added_up(self, node: ast.stmt) -> list[Step]:
        """Return the steps of adding to one element from all lanes: once, what they add up to; none for other statements."""
        match node:
            case ast.Expr(ast.Call(ast.Name(called), [*before, array, index, value])) if called in _ADDS:
                named = {inner.id for inner in ast.walk(array) if isinstance(inner, ast.Name)}
                if named & self._lanes.private or self._lanes.varies(index):
                    return []
            case _:
                return []
        with self._one_lane():
            part = self._expression(value)
        if not isinstance(part.type, types.Float):
            return []
        total = f"_nb_total{len(self._totals)}"
        self._totals.append(total)
        self._types[total] = part.type
        self._constant.add(total)
        add = self._for_each_lane([lambda frame: _accumulate(frame, frame.places[total], part.build(frame))])

        def build(frame: Frame) -> None:
            zero = frame.context.get_constant(part.type, 0)
            with frame.builder.goto_entry_block():
                frame.places[total] = frame.builder.alloca(zero.type)
            frame.builder.store(zero, frame.places[total])
            add(frame)
            frame.values[total] = frame.builder.load(frame.places[total])

        once = ast.Expr(
            ast.Call(ast.Name(called, ast.Load()), [*before, array, index, ast.Name(total, ast.Load())], [])
        )
        return [build, *super()._statement(ast.fix_missing_locations(ast.copy_location(once, node)))]

    def _group(self, body: Sequence[ast.stmt]) -> Step:
        """Return the step of statements for one lane after another.

        An index that may be negative counts from the end then, each lane for itself, which keeps LLVM from loading what lies side
        by side at once. So it is looked at in the first lane: where it is not negative there, it is not in those that follow.
        Where lanes may wait, and hold anything then, it is looked at in all that do not.
        """
        general = self._for_each_lane(self._alone(body))
        unsure = {
            n for n in self._lanes.places(body) & self._constant if self._types[n] == types.int64
        } - self._nonnegative
        if not unsure:
            return general
        first = self._alone(needed_for(unsure, body))
        looked_at = [self._name(name) for name in sorted(unsure)]
        known = self._nonnegative
        # What follows from it holds there alone, too.
        self._nonnegative = known | unsure
        usual = self._for_each_lane(self._alone(body))
        self._nonnegative = known

        def negative(frame: Frame) -> Any:
            for step in first:
                step(frame)
            values = [name.build(frame) for name in looked_at]
            return functools.reduce(frame.builder.or_, [frame.builder.icmp_signed("<", v, v.type(0)) for v in values])

        def build(frame: Frame) -> None:
            builder = frame.builder
            if frame.active is None:
                frame.lane = ir.IntType(64)(0)
                counts_up = builder.not_(negative(frame))
                frame.lane = None
            else:
                counts_up = builder.not_(self._any(frame, negative))
            with builder.if_else(counts_up) as (yes, no):
                with yes:
                    usual(frame)
                with no:
                    general(frame)

        return build

    def _any(self, frame: Frame, each: Callable[[Frame], Any], kind: Any = _BIT) -> Any:
        """Return the bits that are set in any of the integers of lanes that do not wait."""
        builder = frame.builder
        with builder.goto_entry_block():
            found = builder.alloca(kind)
        builder.store(kind(0), found)

        def add(frame: Frame) -> None:
            made = each(frame)
            if frame.mask is not None:
                # A lane that waits may have computed what has no value, which an `and` would pass on.
                made = builder.select(frame.mask, made, kind(0))
            builder.store(builder.or_(builder.load(found), made), found)

        self._for_each_lane([add])(frame)
        return builder.load(found)

    def _alone(self, body: Sequence[ast.stmt]) -> list[Step]:
        """Return the steps of statements of one lane.

        What branches assign lies by itself until they are through, for LLVM to choose from with a mask.
        """
        with self._one_lane():
            steps = self._block(body)
        near = {name for node in body if not isinstance(node, ast.Assign) for name in stored(node)} & self._lanes.kept
        kinds = {name: self._types[name] for name in sorted(near)}

        def build(frame: Frame) -> None:
            for name, kind in kinds.items():
                held = self._own(frame, name, kind)
                with frame.builder.goto_entry_block():
                    place = frame.builder.alloca(held.type)
                frame.builder.store(held, place)
                frame.near[name] = place
            for step in steps:
                step(frame)
            for name, kind in kinds.items():
                set_lane_value(frame, kind, frame.places[name], frame.builder.load(frame.near.pop(name)))

        return [build]

    @contextmanager
    def _one_lane(self) -> Iterator[None]:
        """Read what runs for one lane after another."""
        before, self._apart = self._apart, True
        yield
        self._apart = before

    def _for_each_lane(self, steps: Sequence[Step]) -> Step:
        word = ir.IntType(64)

        def build(frame: Frame) -> None:
            builder = frame.builder
            before = builder.block
            with looping(frame, rolled=self.width > _LEAST) as (inside, after):
                lane = builder.phi(word)
                lane.add_incoming(word(0), before)
                builder.cbranch(builder.icmp_unsigned("<", lane, word(self.width)), inside, after)
                builder.position_at_end(inside)
                frame.lane = lane
                if frame.active is not None:
                    frame.mask = lane_value(frame, types.boolean, frame.active)
                for step in steps:
                    step(frame)
                frame.lane = frame.mask = None
                lane.add_incoming(builder.add(lane, word(1), flags=("nsw", "nuw")), builder.block)

        return build

    def _if(self, node: ast.If) -> Step:
        if self._apart or id(node) not in self._lanes.agreed:
            return super()._if(node)
        with self._one_lane():
            condition = self._condition(node.test)
        both = self._block(node.body), self._block(node.orelse)
        mixed = self._mixed(node)

        def build(frame: Frame) -> None:
            builder = frame.builder
            word = ir.IntType(32)
            with builder.goto_entry_block():
                count = builder.alloca(word)
            builder.store(word(0), count)
            self._for_each_lane([lambda frame: _count(frame, count, condition(frame))])(frame)
            found = builder.load(count)
            blocks = {name: builder.append_basic_block(f"lanes.{name}") for name in ("all", "none", "mixed", "after")}
            choice = builder.switch(found, blocks["mixed"])
            choice.add_case(word(self.width), blocks["all"])
            choice.add_case(word(0), blocks["none"])
            for name, steps in (("all", both[0]), ("none", both[1]), ("mixed", [mixed])):
                builder.position_at_end(blocks[name])
                for step in steps:
                    step(frame)
                builder.branch(blocks["after"])
            builder.position_at_end(blocks["after"])

        return build

    def _mixed(self, node: ast.If) -> Step:
        """Return the step of a branch of which some lanes take the one side and some the other."""
        return self._for_each_lane(self._alone([node]))

    def _call(self, node: ast.Call) -> Expression:
        match node:
            case ast.Call(ast.Name(called), [top, *given]) if called in PLACED:
                placed = PLACED[called]
                places = [self._lane_entry(place) for place in given[:placed]]
                rest = [*map(self._index if called == PUT_PLACE else self._expression, given[placed:])]
                return self._resolved(self._object(node.func), [self._expression(top), *places, *rest])
            case ast.Call() if moves_stack(node):
                if self._apart:
                    raise NoLanesError
                match node:
                    case ast.Call(ast.Name(called), [stack, ast.Constant(int(count))]) if called in COUNTED:
                        moved = Expression(types.int64, lambda frame: ir.IntType(64)(count * self.width))
                        return self._resolved(self._object(node.func), [self._expression(stack), moved])
        return super()._call(node)

    def _lane_entry(self, node: ast.expr) -> Expression:
        """Return where the lane's own of the numbers lies that all lanes have in an entry of a stack."""
        assert isinstance(node, ast.Constant) and isinstance(node.value, int)
        place = node.value

        def build(frame: Frame) -> Any:
            return frame.builder.add(ir.IntType(64)(place * self.width), frame.lane, flags=("nsw",))

        return Expression(types.int64, build)

    def _summed(self, node: ast.Return) -> list[Step]:
        """Return numbers that are the sums over all lanes."""
        if not isinstance(node.value, ast.Tuple):
            raise UnknownError
        with self._one_lane():
            parts = [self._expression(part) for part in node.value.elts]
        if not all(isinstance(part.type, types.Float) for part in parts):
            raise UnknownError
        sums = [f"{part}" for part in range(len(parts))]
        kind = types.Tuple.from_types([types.float64] * len(parts))

        def add(frame: Frame) -> None:
            for name, part in zip(sums, parts, strict=True):
                _accumulate(frame, frame.places[name], frame.cast(part.build(frame), part.type, types.float64))

        each = self._for_each_lane([add])

        def build(frame: Frame) -> None:
            double = ir.DoubleType()
            for name in sums:
                with frame.builder.goto_entry_block():
                    frame.places[name] = frame.builder.alloca(double)
                frame.builder.store(double(0.0), frame.places[name])
            each(frame)

        def result(frame: Frame) -> Any:
            values = [frame.builder.load(frame.places[name]) for name in sums]
            return frame.context.make_tuple(frame.builder, kind, values)

        self._returned, self.result = Expression(kind, result), kind
        return [build]


def _itemsize(kind: Any) -> int:
    context = cpu_target.target_context
    size: int = context.get_abi_sizeof(context.get_data_type(kind))
    return size


def lane_place(frame: Frame, kind: Any, width: int) -> Any:
    """Make room for a value of every lane; the components of an element lie apart."""
    held = frame.context.get_data_type(kind)
    room = ir.ArrayType(held, width)
    if isinstance(held, ir.ArrayType):
        room = ir.ArrayType(ir.ArrayType(held.element, width), held.count)
    place = frame.builder.alloca(room)
    place.align = 64
    return place


def _addresses(frame: Frame, place: Any) -> list[Any]:
    """Return where the parts of the lane's value lie."""
    word = ir.IntType(64)
    room = place.type.pointee
    if not isinstance(room.element, ir.ArrayType):
        return [frame.builder.gep(place, [word(0), frame.lane], inbounds=True)]
    return [frame.builder.gep(place, [word(0), word(k), frame.lane], inbounds=True) for k in range(room.count)]


def lane_value(frame: Frame, kind: Any, place: Any) -> Any:
    model = frame.context.data_model_manager[kind]
    parts = [frame.builder.load(address) for address in _addresses(frame, place)]
    held = parts[0]
    if isinstance(model.get_data_type(), ir.ArrayType):
        held = ir.Constant(model.get_data_type(), ir.Undefined)
        for k, part in enumerate(parts):
            held = frame.builder.insert_value(held, part, k)
    return model.from_data(frame.builder, held)


def set_lane_value(frame: Frame, kind: Any, place: Any, value: Any) -> None:
    model = frame.context.data_model_manager[kind]
    held = model.as_data(frame.builder, value)
    addresses = _addresses(frame, place)
    whole = not isinstance(model.get_data_type(), ir.ArrayType)
    for k, address in enumerate(addresses):
        part = held if whole else frame.builder.extract_value(held, k)
        if frame.mask is not None:
            part = frame.builder.select(frame.mask, part, frame.builder.load(address))
        frame.builder.store(part, address)


def _accumulate(frame: Frame, place: Any, number: Any) -> None:
    """Add to a number in memory, in any order."""
    builder = frame.builder
    if frame.mask is not None:
        number = builder.select(frame.mask, number, number.type(0.0))
    builder.store(builder.fadd(builder.load(place), number, flags=("reassoc", "nsz")), place)


def _count(frame: Frame, count: Any, condition: Any) -> None:
    builder = frame.builder
    builder.store(builder.add(builder.load(count), builder.zext(condition, ir.IntType(32))), count)


class _Private:
    """An array of which every lane has its own; the same element of all lanes lies side by side."""

    def __init__(self, made: Any, extents: tuple[int, ...]) -> None:
        self.kind = types.Array(made.dtype, made.ndim, "A")
        self.extents = extents
        self.offset: int | None = None  # in the memory that the function is given; on the stack, if there is none

    def bytes_for(self, width: int) -> int:
        """Return how many bytes the arrays of so many lanes take; those of several begin at cache lines."""
        size = math.prod(self.extents) * _itemsize(self.kind.dtype) * width
        return size if width == 1 else (size + _LINE - 1) // _LINE * _LINE

    def memory(self, frame: Frame, width: int) -> Any:
        """Make room for all lanes."""
        held = frame.context.get_data_type(self.kind.dtype)
        if self.offset is not None:
            address = frame.builder.add(frame.values[GIVEN_MEMORY], ir.IntType(64)(self.offset))
            room = frame.builder.inttoptr(address, held.as_pointer())
            return frame.builder.bitcast(room, ir.ArrayType(held, max(math.prod(self.extents), 1) * width).as_pointer())
        place = frame.builder.alloca(ir.ArrayType(held, max(math.prod(self.extents), 1) * width))
        place.align = _LINE
        return place

    def view(self, frame: Frame, place: Any, width: int) -> Any:
        """Return the lane's array."""
        context, builder, word = frame.context, frame.builder, ir.IntType(64)
        itemsize = context.get_abi_sizeof(context.get_data_type(self.kind.dtype))
        strides = [itemsize * width * math.prod(self.extents[axis + 1 :]) for axis in range(len(self.extents))]
        array = context.make_array(self.kind)(context, builder)
        context.populate_array(
            array,
            data=builder.gep(place, [word(0), frame.lane], inbounds=True),
            shape=[word(extent) for extent in self.extents],
            strides=[word(stride) for stride in strides],
            itemsize=word(itemsize),
            meminfo=None,
        )
        return array._getvalue()
