"""What kernels call on the CPU that work with the other threads of their block: barriers, lanes of a warp, shared memory.

Such a kernel's body is a coroutine (LLVM's "switched-resume lowering", https://llvm.org/docs/Coroutines.html), which suspends
itself where its thread waits; `native.crew` says who goes on when. What waits must therefore stand in the body itself: device
functions that wait are put in the place of their calls. Types and results are numba.cuda's. Importing this module imports
Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import callconv, cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbridge.kernels.cpu_backend.blocks.source import ASKED
from numbridge.kernels.cpu_backend.cpu_intrinsics import array_at, constant_extents, keep_exception, memory_dtype
from numbridge.kernels.cpu_backend.cpu_races import NotingBuilder
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import external, load_i64, native
from numbridge.kernels.object_cache import digest

__all__ = ["NAMES"]

_POINTER, _BIT, _BYTE = ir.IntType(8).as_pointer(), ir.IntType(1), ir.IntType(8)
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WARP = nb.WARP_SIZE
# Set on the LLVM function that is a coroutine: the block in which it leaves for whoever resumed it.
_COROUTINE = "_nb_coroutine"
# Likewise, how many places it has at which lanes wait for whoever comes.
_PLACES = "_nb_places"
# More bytes than any memory has
_MOST = 1 << 62
_EXCHANGED = {types.int32: _I32, types.int64: _I64, types.float32: _I32, types.float64: _I64}


class _Token(ir.Type):
    """LLVM's type `token`, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "token"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Token)

    def __hash__(self) -> int:
        return hash(_Token)


_TOKEN = _Token()
_NO_TOKEN = ir.Constant(_TOKEN, "none")
_NULL = ir.Constant(_POINTER, None)


def _function(module: Any, name: str, result: Any, *arguments: Any) -> Any:
    return cgutils.get_or_insert_function(module, ir.FunctionType(result, arguments), name)


def _place(builder: Any, address: Any, offset: int) -> Any:
    return builder.inttoptr(builder.add(address, _I64(offset)), _I64.as_pointer())


def _record(builder: Any, crew: Any, thread: Any) -> Any:
    """Return the address of a thread's record."""
    return builder.add(builder.add(crew, _I64(nb.CREW_SIZE)), builder.mul(thread, _I64(nb.THREAD_SIZE)))


def _end(builder: Any, handle: Any) -> None:
    # It returned a bit up to LLVM 21.
    result = ir.VoidType() if llvm.llvm_version_info[0] >= 22 else _BIT
    end = _function(builder.module, "llvm.coro.end", result, _POINTER, _BIT, _TOKEN)
    builder.call(end, [handle, _BIT(0), _NO_TOKEN])


def _suspend(builder: Any) -> None:
    """Leave the coroutine; what is built next is where it goes on."""
    function = builder.function
    if not hasattr(function, _COROUTINE):
        raise TypingError("this waits for other threads, and so must stand in a kernel or in a function that it calls")
    suspend = _function(builder.module, "llvm.coro.suspend", _BYTE, _TOKEN, _BIT)
    answer = builder.call(suspend, [_NO_TOKEN, _BIT(0)])
    onwards = builder.append_basic_block("coroutine.onwards")
    # 0: resumed; 1: destroyed, which nobody does, since frames hold nothing that must be given back; else: suspended.
    builder.switch(answer, getattr(function, _COROUTINE)).add_case(_BYTE(0), onwards)
    builder.position_at_end(onwards)


@intrinsic
def start(typing_context: Any, crew: Any, thread: Any) -> Any:
    """Make this function the coroutine of a thread; what follows runs up to where it first waits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        module, function = builder.module, builder.function
        # llvmlite's own `add` knows the attributes of older LLVMs alone.
        set.add(function.attributes, "presplitcoroutine")
        leave = builder.append_basic_block("coroutine.leave")
        identify = _function(module, "llvm.coro.id", _TOKEN, _I32, _POINTER, _POINTER, _POINTER)
        identity = builder.call(identify, [_I32(0), _NULL, _NULL, _NULL])
        size = builder.call(_function(module, "llvm.coro.size.i64", _I64), [])
        memory = builder.call(
            _function(module, "numbridge_crew_frame", _I64, _I64, _I64, _I64), [arguments[0], arguments[1], size]
        )
        record = _record(builder, *arguments)
        builder.store(_I64(nb.IS_THROUGH), _place(builder, record, nb.THREAD_WAITS))
        with builder.if_then(builder.icmp_unsigned("==", memory, _I64(0)), likely=False):
            builder.ret(_I32(0))
        begin = _function(module, "llvm.coro.begin", _POINTER, _TOKEN, _POINTER)
        handle = builder.call(begin, [identity, builder.inttoptr(memory, _POINTER)])
        builder.store(builder.ptrtoint(handle, _I64), _place(builder, record, nb.THREAD_HANDLE))
        setattr(function, _COROUTINE, leave)
        left = ir.IRBuilder(leave)
        _end(left, handle)
        left.ret(_I32(0))
        if isinstance(builder, NotingBuilder):
            builder.begin_coroutine()
        # Numba leaves a function in which something raises by a return, wherever that is; a coroutine knows no returns.
        builder.ret = functools.partial(_ended, builder, arguments[0], record)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _ended(builder: Any, crew: Any, record: Any, code: Any) -> None:
    """Build what takes the place of a return: the thread and the launch end if the code says that something raised."""
    if _is_success(code):
        builder.unreachable()  # behind what ends the thread
        return
    with builder.if_then(builder.icmp_signed(">=", code, callconv.RETCODE_USEREXC)):
        keep_exception(builder, builder.load(builder.function.args[1]))
    builder.store(_I64(nb.CREW_RAISED), _place(builder, crew, nb.CREW_FAILED))
    _finish(builder, record)


def _is_success(code: Any) -> bool:
    return isinstance(code, ir.Constant) and code.constant in (
        callconv.RETCODE_OK.constant,
        callconv.RETCODE_NONE.constant,
    )


def _finish(builder: Any, record: Any) -> None:
    # No suspension: LLVM takes but one final one in a coroutine, which may end in many places.
    builder.store(_I64(nb.IS_THROUGH), _place(builder, record, nb.THREAD_WAITS))
    builder.branch(getattr(builder.function, _COROUTINE))


@intrinsic
def finish(typing_context: Any, crew: Any, thread: Any) -> Any:
    """End this thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _finish(builder, _record(builder, *arguments))
        # Numba goes on to build the return.
        builder.position_at_end(builder.append_basic_block("coroutine.never"))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def skip(typing_context: Any, crew: Any, thread: Any) -> Any:
    """Have a thread not run at all, in a block that is only partly inside the launch."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(_I64(nb.IS_THROUGH), _place(builder, _record(builder, *arguments), nb.THREAD_WAITS))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _wait(builder: Any, record: Any, waits: int, mask: Any, given: Any) -> None:
    """Say what a thread waits for, and with which lanes, tell them a word, and wait."""
    for offset, value in (
        (nb.THREAD_WAITS, _I64(waits)),
        (nb.THREAD_MASK, mask),
        (nb.THREAD_GIVEN, given),
    ):
        builder.store(value, _place(builder, record, offset))
    _suspend(builder)
    if isinstance(builder, NotingBuilder):
        builder.resume_coroutine(waits, _place(builder, record, nb.THREAD_GROUP))


# --------------------------------------------------------------------------------------------------------------------
# The numbers that threads tell each other, as words


def _exchanged(kind: Any) -> Any:
    kind = types.unliteral(kind)
    if kind not in _EXCHANGED:
        raise TypingError(
            f"lanes exchange int32, int64, float32 and float64, as in numba.cuda, and this is {kind.name}"
        )
    return kind


def _compared(kind: Any) -> Any:
    # numba.cuda takes other numbers as the first of these types that holds them, or all of their bits.
    kind = types.unliteral(kind)
    if isinstance(kind, types.Boolean):
        return types.int32
    if isinstance(kind, types.Integer) and kind not in _EXCHANGED:
        return types.int32 if kind.bitwidth < _I32.width else types.int64
    return types.float32 if isinstance(kind, types.Float) and kind.bitwidth < _I32.width else _exchanged(kind)


def _word_of_number(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    bits = builder.bitcast(value, _EXCHANGED[kind])
    return builder.zext(bits, _I64) if bits.type.width < _I64.width else bits


def _number_of_word(context: Any, builder: Any, kind: Any, word: Any) -> Any:
    bits = _EXCHANGED[kind]
    cut = builder.trunc(word, bits) if bits.width < _I64.width else word
    return builder.bitcast(cut, context.get_value_type(kind))


def _of_truth(kind: Any) -> Any:
    kind = types.unliteral(kind)
    if not isinstance(kind, types.Integer | types.Boolean):
        raise TypingError(f"a predicate is an integer or a truth value, and this is {kind}")
    return kind


def _word_of_truth(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return builder.zext(context.cast(builder, value, kind, types.boolean), _I64)


def _of_block(kind: Any) -> Any:
    kind = types.unliteral(kind)
    if not isinstance(kind, types.Integer):
        raise TypingError(f"numba.cuda takes an integer as the predicate of a block, and this is {kind}; use 1 or 0")
    return kind


def _word_of_integer(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    # numba.cuda's is int32: of a wider integer the low half counts.
    low = context.cast(builder, value, kind, types.int32)
    return builder.zext(builder.icmp_signed("!=", low, low.type(0)), _I64)


def _mask(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return builder.and_(context.cast(builder, value, kind, types.int64), _I64((1 << _WARP) - 1))


def _integer(kind: Any) -> Any:
    kind = types.unliteral(kind)
    if not isinstance(kind, types.Integer):
        raise TypingError(f"masks and lanes are integers, and this is {kind}")
    return kind


# --------------------------------------------------------------------------------------------------------------------
# What threads learn once they are let through


@native
def _record_of(crew: Any, thread: Any) -> Any:
    return crew + nb.CREW_SIZE + thread * nb.THREAD_SIZE


@native
def _told(crew: Any, thread: Any, lane: Any) -> Any:
    """Return what a lane told this thread's; of one that was not among them, or of none, what this thread told itself."""
    own = _record_of(crew, thread)
    group = load_i64(own, nb.THREAD_GROUP)
    if lane < 0 or lane >= _WARP or (group >> lane) & 1 == 0:
        return load_i64(own, nb.THREAD_TOLD)
    return load_i64(own + (lane - thread % _WARP) * nb.THREAD_SIZE, nb.THREAD_TOLD)


@native
def _telling(crew: Any, thread: Any, word: Any) -> Any:
    """Return which of this thread's lanes told a word."""
    own = _record_of(crew, thread)
    first, group = own - thread % _WARP * nb.THREAD_SIZE, load_i64(own, nb.THREAD_GROUP)
    found = 0
    for lane in range(_WARP):
        if (group >> lane) & 1 != 0 and load_i64(first + lane * nb.THREAD_SIZE, nb.THREAD_TOLD) == word:
            found |= 1 << lane
    return found


@native
def _group(crew: Any, thread: Any) -> Any:
    """Return which lanes this thread was last let through with."""
    return load_i64(_record_of(crew, thread), nb.THREAD_GROUP)


@native
def _like_this(crew: Any, thread: Any) -> Any:
    """Return which of this thread's lanes told what it told."""
    return _telling(crew, thread, load_i64(_record_of(crew, thread), nb.THREAD_TOLD))


# Of a lane beyond the warp, `_told` gives a thread its own word: PTX ISA, "shfl.sync".
_SHUFFLES = {
    "shfl_sync": lambda crew, thread, lane: _told(crew, thread, lane & (_WARP - 1)),
    "shfl_up_sync": lambda crew, thread, delta: _told(crew, thread, thread % _WARP - (delta & (_WARP - 1))),
    "shfl_down_sync": lambda crew, thread, delta: _told(crew, thread, thread % _WARP + (delta & (_WARP - 1))),
    "shfl_xor_sync": lambda crew, thread, mask: _told(crew, thread, thread % _WARP ^ (mask & (_WARP - 1))),
}
_VOTES = {
    "ballot_sync": (types.int32, lambda crew, thread: types.int32(_telling(crew, thread, 1))),
    "all_sync": (types.boolean, lambda crew, thread: _telling(crew, thread, 0) == 0),
    "any_sync": (types.boolean, lambda crew, thread: _telling(crew, thread, 1) != 0),
    "eq_sync": (types.boolean, lambda crew, thread: _like_this(crew, thread) == _group(crew, thread)),
}
_MATCHES = {
    "match_any_sync": (types.int32, lambda crew, thread: types.int32(_like_this(crew, thread))),
    "match_all_sync": (
        types.Tuple((types.int32, types.boolean)),
        lambda crew, thread: (
            types.int32(_group(crew, thread) if _like_this(crew, thread) == _group(crew, thread) else 0),
            _like_this(crew, thread) == _group(crew, thread),
        ),
    ),
}
_COUNTS = {
    "syncthreads_count": lambda crew, thread: types.int32(load_i64(crew, nb.CREW_TRUE)),
    "syncthreads_and": lambda crew, thread: types.int32(
        load_i64(crew, nb.CREW_TRUE) == load_i64(crew, nb.CREW_ARRIVED)
    ),
    "syncthreads_or": lambda crew, thread: types.int32(load_i64(crew, nb.CREW_TRUE) != 0),
}


def _learned(context: Any, builder: Any, function: Any, result: Any, *arguments: Any) -> Any:
    return context.compile_internal(builder, function, result(*[types.int64] * len(arguments)), arguments)


# --------------------------------------------------------------------------------------------------------------------
# What kernels call; each takes its crew and its thread first


def _barrier(waits: int) -> Any:
    @intrinsic
    def wait(typing_context: Any, crew: Any, thread: Any) -> Any:
        """Wait for the block, or for all blocks."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _wait(builder, _record(builder, *arguments), waits, _I64(0), _I64(0))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return wait


@intrinsic
def _asked(typing_context: Any, crew: Any, thread: Any, value: Any) -> Any:
    """Let the other threads run, and return what memory held before: see `FunctionSource.asks_memory`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _wait(builder, _record(builder, *arguments[:2]), nb.WAITS_FOR_TURN, _I64(0), _I64(0))
        return arguments[2]

    return value(types.int64, types.int64, value), generate


def _counting(function: Any) -> Any:
    @intrinsic
    def count(typing_context: Any, crew: Any, thread: Any, predicate: Any) -> Any:
        """Wait for the block, and learn for how many threads a predicate holds."""
        kind = _of_block(predicate)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            crew, thread, value = arguments
            word = _word_of_integer(context, builder, kind, value)
            _wait(builder, _record(builder, crew, thread), nb.WAITS_FOR_BLOCK, _I64(0), word)
            return _learned(context, builder, function, types.int32, crew, thread)

        return types.int32(types.int64, types.int64, kind), generate

    return count


@intrinsic
def _syncwarp(typing_context: Any, crew: Any, thread: Any, mask: Any) -> Any:
    lanes = _integer(mask)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        named = _mask(context, builder, lanes, arguments[2])
        _wait(builder, _record(builder, *arguments[:2]), nb.WAITS_FOR_LANES, named, _I64(0))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, lanes), generate


def _shuffling(function: Any) -> Any:
    @intrinsic
    def shuffle(typing_context: Any, crew: Any, thread: Any, mask: Any, value: Any, lane: Any) -> Any:
        """Wait for lanes, and take what one of them told."""
        lanes, kind, which = _integer(mask), _exchanged(value), _integer(lane)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            crew, thread, mask, value, lane = arguments
            named, word = _mask(context, builder, lanes, mask), _word_of_number(context, builder, kind, value)
            _wait(builder, _record(builder, crew, thread), nb.WAITS_FOR_LANES, named, word)
            chosen = context.cast(builder, lane, which, types.int64)
            found = _learned(context, builder, function, types.int64, crew, thread, chosen)
            return _number_of_word(context, builder, kind, found)

        return kind(types.int64, types.int64, lanes, kind, which), generate

    return shuffle


def _asking(result: Any, function: Any, checked: Any, as_word: Any) -> Any:
    @intrinsic
    def ask(typing_context: Any, crew: Any, thread: Any, mask: Any, value: Any) -> Any:
        """Wait for lanes, and learn which of them told what."""
        lanes, kind = _integer(mask), checked(value)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            crew, thread, mask, value = arguments
            named, word = _mask(context, builder, lanes, mask), as_word(context, builder, kind, value)
            _wait(builder, _record(builder, crew, thread), nb.WAITS_FOR_LANES, named, word)
            return _learned(context, builder, function, result, crew, thread)

        return result(types.int64, types.int64, lanes, kind), generate

    return ask


@intrinsic
def _activemask(typing_context: Any, crew: Any, thread: Any) -> Any:
    """Wait for those lanes that come here, whichever these are, and learn it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.function
        # Counted as code is built, since a device function is built anew at each of its calls.
        place = getattr(function, _PLACES, 0)
        setattr(function, _PLACES, place + 1)
        _wait(builder, _record(builder, *arguments), nb.WAITS_AT_PLACE, _I64(place), _I64(0))
        group = _learned(context, builder, _group.py_func, types.int64, *arguments)
        return builder.trunc(group, _I32)

    return types.uint32(types.int64, types.int64), generate


@native
def _lanemask_lt(crew: Any, thread: Any) -> Any:
    """Return the lanes before this thread's."""
    return types.uint32((1 << thread % _WARP) - 1)


# --------------------------------------------------------------------------------------------------------------------
# Shared memory


@intrinsic(prefer_literal=True)
def shared(typing_context: Any, crew: Any, place: Any, given: Any, shape: Any, dtype: Any) -> Any:
    """Return the array of a block at a place in the source, with whatever its memory holds.

    A device function may be compiled for arguments of several types: what it has been `given` tells for which. Each has memory of
    its own, as on CUDA.
    """
    element, extents = memory_dtype(dtype), constant_extents(shape)  # in this order: see `local_array`
    kind = types.Array(element, len(extents), "C")
    types_given = ", ".join(str(types.unliteral(kind)) for kind in given)
    key = int(digest(f"{place.literal_value} {types_given}")[:15], 16)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = min(max(math.prod(extents), 1) * context.get_abi_sizeof(context.get_data_type(element)), _MOST)
        function = _function(builder.module, "numbridge_crew_memory", _I64, _I64, _I64, _I64)
        address = builder.call(function, [arguments[0], _I64(key), _I64(size)])
        with builder.if_then(builder.icmp_unsigned("==", address, _I64(0)), likely=False):
            context.call_conv.return_user_exc(builder, MemoryError, ("shared memory",))
        if isinstance(builder, NotingBuilder):
            builder.watch_shared(address, _I64(size), kind.dtype)
        memory = builder.inttoptr(address, _POINTER)
        return array_at(context, builder, kind, memory, [_I64(extent) for extent in extents])

    return kind(types.int64, place, given, shape, dtype), generate


@intrinsic
def dynamic(typing_context: Any, crew: Any, dtype: Any) -> Any:
    """Return the array that lies over all of the block's dynamic shared memory."""
    kind = types.Array(memory_dtype(dtype), 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        address, size = (
            builder.load(_place(builder, arguments[0], at)) for at in (nb.CREW_DYNAMIC, nb.CREW_DYNAMIC_SIZE)
        )
        if isinstance(builder, NotingBuilder):
            builder.watch_shared(address, size, kind.dtype)
        memory = builder.inttoptr(address, _POINTER)
        return array_at(context, builder, kind, memory, [builder.udiv(size, _I64(itemsize))])

    return kind(types.int64, dtype), generate


_OPERATIONS = {
    "syncthreads": _barrier(nb.WAITS_FOR_BLOCK),
    "grid_sync": _barrier(nb.WAITS_FOR_GRID),
    **{name: _counting(function) for name, function in _COUNTS.items()},
    "syncwarp": _syncwarp,
    ASKED: _asked,
    **{name: _shuffling(function) for name, function in _SHUFFLES.items()},
    **{name: _asking(*row, _of_truth, _word_of_truth) for name, row in _VOTES.items()},
    **{name: _asking(*row, _compared, _word_of_number) for name, row in _MATCHES.items()},
    "activemask": _activemask,
    "lanemask_lt": _lanemask_lt,
}
# What text for blocks on the CPU refers to: what `source` needs, and the operations of numba.cuda by their names.
NAMES: dict[str, Any] = {
    "_nb_start": start,
    "_nb_finish": finish,
    "_nb_skip": skip,
    "_nb_crew_begin": external("numbridge_crew_begin", types.int64, types.int64, types.int64),
    "_nb_crew_run": external("numbridge_crew_run", types.int64, types.int64, types.int64),
    "_nb_crew_end": external("numbridge_crew_end", types.void, types.int64),
    "_nb_grid_begin": external("numbridge_grid_begin", types.int64, types.int64),
    "_nb_grid_add": external("numbridge_grid_add", types.int64, *[types.int64] * 4),
    "_nb_grid_run": external("numbridge_grid_run", types.int64, types.int64, types.int64),
    "_nb_grid_end": external("numbridge_grid_end", types.void, types.int64, types.int64),
    "_nb_in_place": njit(inline="always"),
    "_nb_shared": shared,
    "_nb_dynamic": dynamic,
    **{f"_nb_block_{name}": function for name, function in _OPERATIONS.items()},
}
