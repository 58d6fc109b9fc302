"""A block's text that is taken apart at its barriers, as functions that need no coroutines.

Of each part there is a function for one thread, and where threads find their data side by side another for several at once, in
SIMD lanes: see `parts` and `lane_code`. Both compute to the last bit what a coroutine for each thread computes. Importing
this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import callconv
from numba.core.errors import NumbaError
from numba.extending import intrinsic

from numbridge.kernels.arithmetic.cpu_math import calls_chosen
from numbridge.kernels.compilation.generated_code import Typed, as_typed
from numbridge.kernels.compilation.typed_text import Step, Text, UnknownError
from numbridge.kernels.cpu_backend.blocks.exchange import GUARDS, OF_WARPS
from numbridge.kernels.cpu_backend.blocks.parts import Block, Kept, Part
from numbridge.kernels.cpu_backend.blocks.preparation import prepared
from numbridge.kernels.cpu_backend.blocks.reading import apart
from numbridge.kernels.cpu_backend.blocks.source import CREW, THREAD, WHOLE, BlockSource
from numbridge.kernels.cpu_backend.blocks.syntax import REST, NoPartsError, made_in_block
from numbridge.kernels.cpu_backend.cpu_intrinsics import array_at
from numbridge.kernels.cpu_backend.lane_code import only_computes
from numbridge.kernels.cpu_backend.lane_masks import MaskedText
from numbridge.kernels.cpu_backend.lanes import FEW, NoLanesError, local_array_name, stored
from numbridge.kernels.cpu_backend.row_source import LANES
from numbridge.kernels.element_types.numba_elements import NumbaElement
from numbridge.kernels.language.parsing import parsed
from numbridge.kernels.language.rewriting import CUDA_FUNCTION
from numbridge.kernels.native.memory import store_i64, symbol
from numbridge.kernels.native.table_layout import STACK_SIZE, WARP_SIZE

__all__ = ["NAMES", "Loops", "in_loops"]

# What stands in the place of atomic operations on memory that nobody else touches
_ALONE = {
    "_nb_add": "_nb_add_private",
    "_nb_atomic_add": "_nb_atomic_alone_add",
    "_nb_atomic_exch": "_nb_atomic_alone_exch",
    "_nb_atomic_sub": "_nb_atomic_alone_sub",
}
_BIT, _HALF, _WORD = (ir.IntType(bits) for bits in (1, 32, 64))


@dataclass(frozen=True)
class Loops:
    """A block's text as functions.

    Attributes
    ----------
    text : str
        Source of the functions for one thread and for a whole block.
    parameters : list of str
        What the function for a whole block takes.
    put : mapping
        What the text refers to: the functions themselves, and what they call.
    width : int
        How many threads run at once, where several do.
    """

    text: str
    parameters: list[str]
    put: Mapping[str, Any]
    width: int


class _LoopsText(Text):
    """A text with loops over threads, some of which are to be left as they are."""

    def _is_short(self, name: str) -> bool:
        return name.startswith(REST) or name in self._extremes

    @functools.cached_property
    def _extremes(self) -> set[str]:
        """The counters of loops that look for an extreme: LLVM takes minutes for such trips, written out for all threads."""
        loops = (node for node in ast.walk(self.tree) if isinstance(node, ast.For))
        return {name for loop in loops if finds_extreme(loop) for name in stored(loop.target)}


class _PartText(MaskedText):
    """A part's text while it is read for several lanes, whose results are those of threads one after another."""

    def _added_up(self, node: ast.stmt) -> list[Step]:
        return []  # a sum depends on the order of its parts


def in_loops(source: BlockSource, kinds: Sequence[Any], names: dict[str, Any], *, fastmath: bool) -> Loops | None:
    """Return a block's text as functions, or None if its threads must be coroutines.

    Parameters
    ----------
    source : BlockSource
        The text of one thread.
    kinds : sequence of Numba types
        The types of the kernel's parameters.
    names : dict
        The globals of the text.
    fastmath : bool
        Whether LLVM may reassociate floating-point arithmetic.
    """
    try:
        return _Maker(source, kinds, names, fastmath=fastmath).made()
    except (NoPartsError, NoLanesError, UnknownError, NumbaError):
        return None


class _Maker:
    def __init__(self, source: BlockSource, kinds: Sequence[Any], names: dict[str, Any], *, fastmath: bool) -> None:
        self._source, self._fast, self._count = source, fastmath, len(kinds)
        self._names = names | NAMES
        chosen = calls_chosen(parsed(source.text), self._names, fastmath=fastmath, lanes=True)
        functions = [node for node in chosen.body if isinstance(node, ast.FunctionDef)]
        if len(functions) != 1:
            raise NoPartsError
        given = [argument.arg for argument in functions[0].args.args]
        integers = (n for n, k in zip(given[-len(kinds) :], kinds, strict=True) if _is_added_as_64_bits(k))
        self._tree = prepared(functions[0], {*integers})
        # The kernel's come last, and the gradient of a scalar has a name of its own there.
        self._hidden, self._arguments = given[: -len(kinds)], given[-len(kinds) :]
        by_name = dict(zip(self._arguments, kinds, strict=True))
        implied = (CREW, THREAD, *(f"_nb_{letter}{k}" for letter in "kt" for k in range(3)))
        extra = [name for name in implied if name not in given]
        self._tree.args.args += [ast.arg(name) for name in extra]
        self._whole = Text(
            copy.deepcopy(self._tree), [by_name.get(name, types.int64) for name in (*given, *extra)], self._names
        )
        self._whole.read()
        self._change_alone()

    def _change_alone(self) -> None:
        """Let threads change the block's own memory plainly, and their own: one worker runs them, one after another."""
        every = list(ast.walk(self._tree))
        made = dict(found for node in every if (found := made_in_block(node)) is not None)
        own = {*made, *(name for node in every if (name := local_array_name(node)) is not None)} & self._whole.constant
        for node in every:
            match node:
                case ast.Call(ast.Name(operation) as called, [ast.Name(name), *_]) if (
                    operation in _ALONE
                    and name in own
                    and not isinstance(self._whole.kinds_of_names[name].dtype, NumbaElement)
                ):
                    called.id = _ALONE[operation]

    def made(self) -> Loops:
        """Return the functions."""
        whole, source = self._whole, self._source
        block = apart(
            WHOLE,
            self._tree,
            self._hidden,
            self._arguments,
            source.rank,
            [name for name, kind in whole.kinds_of_names.items() if isinstance(kind, types.Array)],
            whole.constant,
            whole.nonnegative,
            self._computes,
            lambda name: str(whole.kinds_of_names[name]),
        )
        self._keep(block)
        together = {part.name: lanes for part in block.parts if (lanes := self._together(part, block)) is not None}
        widths = {name: text.width for name, text in together.items()}
        text = block.text(widths, LANES)
        functions = {f"{LANES}{name}": Typed(lanes) for name, lanes in together.items()}
        names = self._names | {name: function.call for name, function in functions.items()}
        trees = {tree.name: tree for tree in parsed(text).body if isinstance(tree, ast.FunctionDef)}
        parts = {part.name for part in block.parts}
        for name, tree in trees.items():
            types_given = [self._kind(argument.arg) for argument in tree.args.args]
            known = block.nonnegative if name in parts else ()
            made = _LoopsText(tree, types_given, names, fastmath=self._fast, nonnegative=known)
            made.read()
            functions[name] = Typed(made)
            names[name] = functions[name].call
        put = self._kept_names | NAMES | {name: function.call for name, function in functions.items()}
        put[WHOLE] = functions[WHOLE].ended
        return Loops(text, [*block.parameters[: -self._count], *source.names], put, max(widths.values(), default=1))

    def _computes(self, function: ast.expr) -> bool:
        text = ast.unparse(function)
        if text.startswith(("_nb_crew_stack_", "_nb_block_")):
            return False
        if text.startswith(CUDA_FUNCTION):
            return not text.startswith(f"{CUDA_FUNCTION}threadfence")  # the others are functions of bits
        return only_computes(text, lambda: self._whole.object_of(function))

    def _keep(self, block: Block) -> None:
        """Find the types of what is kept, and make what gives memory for it."""
        self._arrays: dict[str, Any] = {}
        self._kept_names: dict[str, Any] = {}
        for k, kept in enumerate(block.kept):
            kind = self._kind_of_kept(kept)
            self._arrays[kept.array] = kind
            self._kept_names[f"_nb_keep_{k}"] = _keeping(kind, -1 - k, kept.extents)
        keys = itertools.count(1 + len(block.kept))
        for k in range(len(block.rooms)):
            self._kept_names[f"_nb_crew_stack_room_{k}"] = _stack_room(-next(keys))
        for k, (name, dtype) in enumerate(block.lanes.arrays.items()):
            self._arrays[name] = types.Array(getattr(types, dtype), 1, "C")
            self._kept_names[f"_nb_tell_{k}"] = _keeping(self._arrays[name], -next(keys), ())
        self._arrays |= dict.fromkeys(OF_WARPS, types.Array(types.int64, 1, "C"))
        self._arrays[GUARDS] = types.Array(types.boolean, 1, "C")
        self._names |= self._kept_names

    def _kind_of_kept(self, kept: Kept) -> Any:
        known = self._whole.kinds_of_names.get(kept.name)
        if known is None:
            known = types.boolean if kept.name.startswith("_nb_guard_") else types.int64
        dtype = known.dtype if isinstance(known, types.Array) else known
        if not isinstance(dtype, types.Number | types.Boolean | NumbaElement):
            raise NoPartsError
        return types.Array(dtype, len(kept.extents) + 1, "C")

    def _kind(self, name: str) -> Any:
        return self._arrays.get(name) or self._whole.kinds_of_names.get(name, types.int64)

    def _together(self, part: Part, block: Block) -> _PartText | None:
        """Return a part's text for several threads at once, or None where that is impossible, or no gain."""
        if not part.side_by_side or not part.does_something:
            return None
        kinds = [self._kind(name) for name in part.parameters]
        tree = copy.deepcopy(part.tree)
        text = _PartText(
            tree,
            kinds,
            frozenset(part.parameters[:1]),
            self._names,
            fastmath=self._fast,
            always=False,
            nonnegative=block.nonnegative,
            most=FEW,
        )
        return None if as_typed_or_none(text) is None else text


def _is_added_as_64_bits(kind: Any) -> bool:
    """Tell whether sums of a number and a signed one of 64 bits are such."""
    return isinstance(kind, types.Integer) and (kind.signed or kind.bitwidth < types.int64.bitwidth)


def finds_extreme(loop: ast.For) -> bool:
    """Tell whether a loop computes the greatest or the least of some numbers."""
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in ("max", "min") for node in ast.walk(loop))


def as_typed_or_none(text: _PartText) -> Typed | None:
    """Return a text as something to call, or None if it cannot run in lanes."""
    try:
        return as_typed(text)
    except NoLanesError:
        return None


# --------------------------------------------------------------------------------------------------------------------
# Memory for what threads keep


def _crew_memory(builder: Any, crew: Any, key: int, size: Any) -> Any:
    """Build what returns the address of a crew's memory under a key."""
    kind = ir.FunctionType(_WORD, [_WORD] * 3)
    name = "numbridge_crew_memory"
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, [crew, _WORD(key), size])


def _or_raise(context: Any, builder: Any, address: Any) -> None:
    with builder.if_then(builder.icmp_unsigned("==", address, _WORD(0)), likely=False):
        context.call_conv.return_user_exc(builder, MemoryError, ("memory of a block",))


def _keeping(kind: Any, key: int, extents: Sequence[int]) -> Any:
    """Return what gives an array with a row of elements, one for each thread, for each place in an array of these extents."""

    @intrinsic
    def keep(typing_context: Any, crew: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            crew, count = arguments
            shape = [*(_WORD(extent) for extent in extents), count]
            size = _WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
            for extent in shape:
                size = builder.mul(size, extent)
            address = _crew_memory(builder, crew, key, size)
            _or_raise(context, builder, address)
            memory = builder.inttoptr(address, ir.IntType(8).as_pointer())
            return array_at(context, builder, kind, memory, shape)

        return kind(types.int64, types.int64), generate

    return keep


def _stack_room(key: int) -> Any:
    @intrinsic
    def room(typing_context: Any, crew: Any, count: Any) -> Any:
        """Return the address of memory for the stacks of all threads."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            crew, count = arguments
            address = _crew_memory(builder, crew, key, builder.mul(count, _WORD(STACK_SIZE)))
            _or_raise(context, builder, address)
            return address

        return types.int64(types.int64, types.int64), generate

    return room


@intrinsic
def _stack_at(typing_context: Any, crew: Any, room: Any, slot: Any) -> Any:
    """Return a thread's stack, which is empty."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        crew, room, slot = arguments
        address = builder.add(room, builder.mul(slot, _WORD(STACK_SIZE)))
        words = builder.inttoptr(address, ir.ArrayType(_WORD, STACK_SIZE // 8).as_pointer())
        empty = ir.Constant(words.type.pointee, [0] * words.type.pointee.count)
        builder.store(builder.insert_value(empty, crew, words.type.pointee.count - 1), words)
        return address

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def _give_up(typing_context: Any) -> Any:
    """End the launch, as an exception does; why is known by then."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Numba goes on to build what would follow.
        with builder.if_then(_BIT(1)):
            builder.ret(callconv.RETCODE_EXC)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _lanes_before(typing_context: Any, thread: Any) -> Any:
    """Return the lanes of a warp before a thread's, as a mask."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lane = builder.trunc(builder.urem(arguments[0], _WORD(WARP_SIZE)), _HALF)
        return builder.sub(builder.shl(_HALF(1), lane), _HALF(1))

    return types.uint32(types.int64), generate


NAMES: dict[str, Any] = {
    "_nb_lanes_before": _lanes_before,
    "_nb_crew_stack_at": _stack_at,
    "_nb_give_up": _give_up,
    "_nb_state": symbol("numbridge_state"),
    "_nb_store": store_i64,
    "_nb_told": np.int32,
}
"""What the text of a whole block calls."""
