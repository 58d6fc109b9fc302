"""What kernels call on the CPU that work with the other threads of their block: barriers, lanes of a warp, shared memory.

Such a kernel's body is a coroutine (LLVM's "switched-resume lowering", https://llvm.org/docs/Coroutines.html), which suspends
itself where its thread waits; `native.crew` says who goes on when. What waits must therefore stand in the body itself: device
functions that wait are put in the place of their calls. Types and results are numba.cuda's. Importing this module imports
Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import math
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic

from numbridge.kernels.cpu_intrinsics import constant_extents
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import external, load_i64, native

__all__ = ["NAMES"]

_POINTER, _BIT, _BYTE = ir.IntType(8).as_pointer(), ir.IntType(1), ir.IntType(8)
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_WARP = nb.WARP_SIZE
# Set on the LLVM function that is a coroutine: its handle, and the block in which it leaves for whoever resumed it.
_COROUTINE = "_nb_coroutine"
# Likewise, how many places it has at which lanes wait for whoever comes.
_PLACES = "_nb_places"
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
    threads = builder.load(_place(builder, crew, nb.CREW_THREADS))
    return builder.add(threads, builder.mul(thread, _I64(nb.THREAD_SIZE)))


def _end(builder: Any, handle: Any) -> None:
    # It returned a bit up to LLVM 21.
    result = ir.VoidType() if llvm.llvm_version_info[0] >= 22 else _BIT
    end = _function(builder.module, "llvm.coro.end", result, _POINTER, _BIT, _TOKEN)
    builder.call(end, [handle, _BIT(0), _NO_TOKEN])


def _suspend(builder: Any, *, finally_: bool) -> None:
    """Leave the coroutine; what is built next is where it goes on."""
    function = builder.function
    if not hasattr(function, _COROUTINE):
        raise TypingError("this waits for other threads, and so must stand in a kernel or in a function that it calls")
    leave = getattr(function, _COROUTINE)
    suspend = _function(builder.module, "llvm.coro.suspend", _BYTE, _TOKEN, _BIT)
    answer = builder.call(suspend, [_NO_TOKEN, _BIT(finally_)])
    onwards = builder.append_basic_block("coroutine.onwards")
    # 0: resumed; 1: destroyed, which nobody does, since frames hold nothing that must be given back; else: suspended.
    builder.switch(answer, leave).add_case(_BYTE(0), onwards)
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
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def finish(typing_context: Any, crew: Any, thread: Any) -> Any:
    """End this thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(_I64(nb.IS_THROUGH), _place(builder, _record(builder, *arguments), nb.THREAD_WAITS))
        _suspend(builder, finally_=True)
        builder.unreachable()
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


@intrinsic
def fail(typing_context: Any, crew: Any) -> Any:
    """Have the launch end with an exception."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(_I64(nb.CREW_RAISED), _place(builder, arguments[0], nb.CREW_FAILED))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _wait(typing_context: Any, crew: Any, thread: Any, waits: Any, mask: Any, given: Any) -> Any:
    """Say what this thread waits for, and with which lanes, tell them a word, and wait."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        record = _record(builder, *arguments[:2])
        for offset, value in zip((nb.THREAD_WAITS, nb.THREAD_MASK, nb.THREAD_GIVEN), arguments[2:], strict=True):
            builder.store(value, _place(builder, record, offset))
        _suspend(builder, finally_=False)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic
def _wait_here(typing_context: Any, crew: Any, thread: Any) -> Any:
    """Wait for those lanes that come here, whichever these are."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        record, function = _record(builder, *arguments), builder.function
        # Counted as code is built, since a device function is built anew at each of its calls.
        place = getattr(function, _PLACES, 0)
        setattr(function, _PLACES, place + 1)
        builder.store(_I64(nb.WAITS_AT_PLACE), _place(builder, record, nb.THREAD_WAITS))
        builder.store(_I64(place), _place(builder, record, nb.THREAD_MASK))
        _suspend(builder, finally_=False)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _exchanged(kind: Any) -> Any:
    kind = types.unliteral(kind)
    if kind not in _EXCHANGED:
        raise TypingError(f"lanes exchange int32, int64, float32 and float64, as in numba.cuda, and this is {kind}")
    return kind


@intrinsic
def _as_word(typing_context: Any, value: Any) -> Any:
    """Return the bits of a number."""
    kind = _exchanged(value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _EXCHANGED[kind])
        return builder.zext(bits, _I64) if bits.type.width < _I64.width else bits

    return types.int64(kind), generate


@intrinsic
def _as_number(typing_context: Any, word: Any, example: Any) -> Any:
    """Return the number of the type of another that has some bits."""
    kind = _exchanged(example)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = _EXCHANGED[kind]
        cut = builder.trunc(arguments[0], bits) if bits.width < _I64.width else arguments[0]
        return builder.bitcast(cut, context.get_value_type(kind))

    return kind(types.int64, kind), generate


@intrinsic
def _predicate(typing_context: Any, value: Any) -> Any:
    """Return whether a predicate of lanes holds, which is an integer or a truth value."""
    kind = types.unliteral(value)
    if not isinstance(kind, types.Integer | types.Boolean):
        raise TypingError(f"a predicate is an integer or a truth value, and this is {kind}")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(context.cast(builder, arguments[0], kind, types.boolean), _I64)

    return types.int64(kind), generate


@intrinsic
def _integer_predicate(typing_context: Any, value: Any) -> Any:
    """Return whether a predicate of a block is not 0."""
    kind = types.unliteral(value)
    if not isinstance(kind, types.Integer):
        raise TypingError(f"numba.cuda takes an integer as the predicate of a block, and this is {kind}; use 1 or 0")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # numba.cuda's is int32: of a wider integer the low half counts.
        low = context.cast(builder, arguments[0], kind, types.int32)
        return builder.zext(builder.icmp_signed("!=", low, low.type(0)), _I64)

    return types.int64(kind), generate


# --------------------------------------------------------------------------------------------------------------------
# What kernels call; each takes its crew and its thread first

_in_place = njit(inline="always", _nrt=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
_ALL_LANES = (1 << _WARP) - 1


@_in_place
def _syncthreads(crew: Any, thread: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_BLOCK, 0, 0)


@_in_place
def _syncthreads_count(crew: Any, thread: Any, predicate: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_BLOCK, 0, _integer_predicate(predicate))
    return types.int32(load_i64(crew, nb.CREW_TRUE))


@_in_place
def _syncthreads_and(crew: Any, thread: Any, predicate: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_BLOCK, 0, _integer_predicate(predicate))
    return types.int32(load_i64(crew, nb.CREW_TRUE) == load_i64(crew, nb.CREW_ARRIVED))


@_in_place
def _syncthreads_or(crew: Any, thread: Any, predicate: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_BLOCK, 0, _integer_predicate(predicate))
    return types.int32(load_i64(crew, nb.CREW_TRUE) != 0)


@_in_place
def _syncwarp(crew: Any, thread: Any, mask: Any = _ALL_LANES) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, 0)


@native
def _told(crew: Any, thread: Any, lane: Any) -> Any:
    """Return what a lane told this thread's; of one that was not among them, or of none, what this thread told itself."""
    own = load_i64(crew, nb.CREW_THREADS) + thread * nb.THREAD_SIZE
    group = load_i64(own, nb.THREAD_GROUP)
    if lane < 0 or lane >= _WARP or (group >> lane) & 1 == 0:
        return load_i64(own, nb.THREAD_TOLD)
    return load_i64(own + (lane - thread % _WARP) * nb.THREAD_SIZE, nb.THREAD_TOLD)


@native
def _telling(crew: Any, thread: Any, word: Any) -> Any:
    """Return which of this thread's lanes told a word."""
    own = load_i64(crew, nb.CREW_THREADS) + thread * nb.THREAD_SIZE
    first, group = own - thread % _WARP * nb.THREAD_SIZE, load_i64(own, nb.THREAD_GROUP)
    found = 0
    for lane in range(_WARP):
        if (group >> lane) & 1 != 0 and load_i64(first + lane * nb.THREAD_SIZE, nb.THREAD_TOLD) == word:
            found |= 1 << lane
    return found


@native
def _group(crew: Any, thread: Any) -> Any:
    """Return which lanes this thread was last let through with."""
    return load_i64(load_i64(crew, nb.CREW_THREADS) + thread * nb.THREAD_SIZE, nb.THREAD_GROUP)


@_in_place
def _shfl_sync(crew: Any, thread: Any, mask: Any, value: Any, src_lane: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, _as_word(value))
    return _as_number(_told(crew, thread, types.int64(src_lane) & (_WARP - 1)), value)


@_in_place
def _shfl_up_sync(crew: Any, thread: Any, mask: Any, value: Any, delta: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, _as_word(value))
    return _as_number(_told(crew, thread, thread % _WARP - (types.int64(delta) & (_WARP - 1))), value)


@_in_place
def _shfl_down_sync(crew: Any, thread: Any, mask: Any, value: Any, delta: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, _as_word(value))
    return _as_number(_told(crew, thread, thread % _WARP + (types.int64(delta) & (_WARP - 1))), value)


@_in_place
def _shfl_xor_sync(crew: Any, thread: Any, mask: Any, value: Any, lane_mask: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, _as_word(value))
    return _as_number(_told(crew, thread, thread % _WARP ^ (types.int64(lane_mask) & (_WARP - 1))), value)


@_in_place
def _ballot_sync(crew: Any, thread: Any, mask: Any, predicate: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, _predicate(predicate))
    return types.int32(_telling(crew, thread, 1))


@_in_place
def _all_sync(crew: Any, thread: Any, mask: Any, predicate: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, _predicate(predicate))
    return _telling(crew, thread, 0) == 0


@_in_place
def _any_sync(crew: Any, thread: Any, mask: Any, predicate: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, _predicate(predicate))
    return _telling(crew, thread, 1) != 0


@_in_place
def _eq_sync(crew: Any, thread: Any, mask: Any, predicate: Any) -> Any:
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, _predicate(predicate))
    return _telling(crew, thread, 1) == 0 or _telling(crew, thread, 0) == 0


@_in_place
def _match_any_sync(crew: Any, thread: Any, mask: Any, value: Any) -> Any:
    word = _as_word(value)
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, word)
    return types.int32(_telling(crew, thread, word))


@_in_place
def _match_all_sync(crew: Any, thread: Any, mask: Any, value: Any) -> Any:
    word = _as_word(value)
    _wait(crew, thread, nb.WAITS_FOR_LANES, types.int64(mask) & _ALL_LANES, word)
    group = _group(crew, thread)
    same = _telling(crew, thread, word) == group
    return types.int32(group if same else 0), same


@_in_place
def _activemask(crew: Any, thread: Any) -> Any:
    _wait_here(crew, thread)
    return types.uint32(_group(crew, thread))


@native
def _lanemask_lt(crew: Any, thread: Any) -> Any:
    """Return the lanes before this thread's."""
    return types.uint32((1 << thread % _WARP) - 1)


def _array(context: Any, builder: Any, kind: Any, address: Any, extents: list[Any]) -> Any:
    """Return a C-contiguous array at an address."""
    data_type = context.get_data_type(kind.dtype)
    itemsize = _I64(context.get_abi_sizeof(data_type))
    strides = [itemsize]
    for extent in reversed(extents[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    array = context.make_array(kind)(context, builder)
    data = builder.inttoptr(address, data_type.as_pointer())
    context.populate_array(array, data=data, shape=extents, strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()


def _element(dtype: Any) -> Any:
    element = parse_dtype(dtype)
    if element is None:
        raise TypingError(f"shared memory needs a dtype such as numpy.float32, got {dtype}")
    return element


@intrinsic
def shared(typing_context: Any, crew: Any, place: Any, shape: Any, dtype: Any) -> Any:
    """Return the array of a block at a place in the source, with whatever its memory holds."""
    extents, element = constant_extents(shape), _element(dtype)
    kind = types.Array(element, len(extents), "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = max(math.prod(extents), 1) * context.get_abi_sizeof(context.get_data_type(element))
        function = _function(builder.module, "numbridge_crew_memory", _I64, _I64, _I64, _I64)
        address = builder.call(function, [arguments[0], arguments[1], _I64(size)])
        return _array(context, builder, kind, address, [_I64(extent) for extent in extents])

    return kind(types.int64, types.int64, shape, dtype), generate


@intrinsic
def dynamic(typing_context: Any, crew: Any, dtype: Any) -> Any:
    """Return the array that lies over all of the block's dynamic shared memory."""
    kind = types.Array(_element(dtype), 1, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        address, size = (
            builder.load(_place(builder, arguments[0], at)) for at in (nb.CREW_DYNAMIC, nb.CREW_DYNAMIC_SIZE)
        )
        return _array(context, builder, kind, address, [builder.udiv(size, _I64(itemsize))])

    return kind(types.int64, dtype), generate


_WAITING = {
    "syncthreads": _syncthreads,
    "syncthreads_count": _syncthreads_count,
    "syncthreads_and": _syncthreads_and,
    "syncthreads_or": _syncthreads_or,
    "syncwarp": _syncwarp,
    "shfl_sync": _shfl_sync,
    "shfl_up_sync": _shfl_up_sync,
    "shfl_down_sync": _shfl_down_sync,
    "shfl_xor_sync": _shfl_xor_sync,
    "ballot_sync": _ballot_sync,
    "all_sync": _all_sync,
    "any_sync": _any_sync,
    "eq_sync": _eq_sync,
    "match_any_sync": _match_any_sync,
    "match_all_sync": _match_all_sync,
    "activemask": _activemask,
}
# What text for blocks on the CPU refers to: what `block_source` needs, and the operations of numba.cuda by their names.
NAMES: dict[str, Any] = {
    "_nb_start": start,
    "_nb_finish": finish,
    "_nb_skip": skip,
    "_nb_fail": fail,
    "_nb_crew_begin": external("numbridge_crew_begin", types.int64, types.int64, types.int64, types.int64),
    "_nb_crew_run": external("numbridge_crew_run", types.int64, types.int64, types.int64),
    "_nb_crew_end": external("numbridge_crew_end", types.void, types.int64),
    "_nb_in_place": _in_place,
    "_nb_shared": shared,
    "_nb_dynamic": dynamic,
    "_nb_block_lanemask_lt": _lanemask_lt,
    **{f"_nb_block_{name}": function for name, function in _WAITING.items()},
}
