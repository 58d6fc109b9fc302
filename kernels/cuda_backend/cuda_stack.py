"""Stacks of a thread on CUDA, in memory that the launch gives, for what adjoints must remember of loops that change arrays.

Threads of the grid are taken 32 at a time. The stacks of such a group lie entry by entry: the first entries of its threads
one after another, then the second ones, so that threads that do the same touch neighbouring memory. An entry takes eight
bytes. Where the stacks of a group begin, and that the next one's begin behind them, is said by `places`, in entries; how
high each must be has been measured before. A push beyond that would write into the stacks of others, so it ends the kernel:
only a kernel whose threads race can get there.

The meaning is that of `cpu_stack`. Importing this module imports numba.cuda, so only code that is about to compile does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic

from numbridge.kernels.cuda_backend.cuda_intrinsics import differs, element_pointer, exchanged, moved, store_strongly
from numbridge.kernels.cuda_backend.stack_layout import ENTRY, GROUP

__all__ = ["STACK"]

_ROW = ENTRY * GROUP  # bytes from one entry of a thread to its next
# The words of a stack: the address of its next entry, that of its first, and the one behind its last. They are reached by a
# pointer and never by an address, so that they may lie in registers.
_TOP, _BOTTOM, _END = 0, 1, 2
_WORD = ir.IntType(64)
_Words = types.CPointer(types.int64)


@intrinsic
def new(typing_context: Any) -> Any:
    """Return a stack without memory, which ends with the function that calls this."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = cgutils.alloca_once(builder, ir.ArrayType(_WORD, 3))
        return builder.bitcast(words, _WORD.as_pointer())

    return _Words(), generate


@intrinsic
def _address(typing_context: Any, array: Any) -> Any:
    """Return where an array begins."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.make_array(array)(context, builder, arguments[0]).data, _WORD)

    return types.int64(array), generate


@intrinsic
def _word(typing_context: Any, stack: Any, number: Any) -> Any:
    """Return a word of a stack."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]], inbounds=True))

    return types.int64(_Words, types.int64), generate


@intrinsic
def _set_word(typing_context: Any, stack: Any, number: Any, value: Any) -> Any:
    """Change a word of a stack."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], builder.gep(arguments[0], [arguments[1]], inbounds=True))
        return context.get_dummy_value()

    return types.void(_Words, types.int64, types.int64), generate


@intrinsic
def _put(typing_context: Any, address: Any, value: Any) -> Any:
    """Store a number of any type at an address."""
    kind = types.unliteral(value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], context.get_data_type(kind).as_pointer())
        context.pack_value(builder, kind, arguments[1], pointer)
        return context.get_dummy_value()

    return types.void(types.int64, kind), generate


@intrinsic
def _take(typing_context: Any, address: Any, like: Any) -> Any:
    """Return the number at an address that has the type of another."""
    kind = types.unliteral(like)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], context.get_data_type(kind).as_pointer())
        return context.unpack_value(builder, kind, pointer)

    return kind(types.int64, like), generate


@intrinsic
def _note(typing_context: Any, entry: Any, array: Any, index: Any) -> Any:
    """Write an element's address into an entry, and what it holds into the next."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args[1:], arguments[1:])
        first = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store(builder.ptrtoint(pointer, _WORD), first)
        second = builder.add(arguments[0], _WORD(_ROW))
        builder.store(builder.load(pointer), builder.inttoptr(second, pointer.type))
        return context.get_dummy_value()

    return types.void(types.int64, array, index), generate


def _bringing_back(store: Callable[[Any, Any, Any], object]) -> Any:
    """Return what stores what `_note` wrote into two entries where it was; the array tells of what type it is."""

    def bring_back(typing_context: Any, entry: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = context.get_data_type(array.dtype).as_pointer()
            place = builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()))
            held = builder.load(builder.inttoptr(builder.add(arguments[0], _WORD(_ROW)), pointer))
            store(builder, builder.inttoptr(place, pointer), held)
            return context.get_dummy_value()

        return types.void(types.int64, array), generate

    return intrinsic(bring_back)


@intrinsic
def _end_kernel(typing_context: Any) -> Any:
    """End the whole launch with an error of the driver."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        trap = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap")
        builder.call(trap, [])
        return context.get_dummy_value()

    return types.void(), generate


@cuda.jit(device=True)
def _thread() -> Any:
    """Return the number of this thread in the grid."""
    block, size, at = cuda.blockIdx, cuda.blockDim, cuda.threadIdx
    row = types.int64(block.z) * cuda.gridDim.y + block.y
    number = row * cuda.gridDim.x + block.x
    within = (at.z * size.y + at.y) * size.x + at.x
    return number * (size.x * size.y * size.z) + within


@cuda.jit(device=True)
def place(stack: Any, memory: Any, places: Any, number: Any, count: Any) -> None:
    """Give a stack its memory; it is the one of a number, of `count` that each thread has."""
    thread = _thread()
    group = thread // GROUP
    at = group * count + number
    bottom = _address(memory) + ENTRY * (places[at] + thread - group * GROUP)
    _set_word(stack, _TOP, bottom)
    _set_word(stack, _BOTTOM, bottom)
    _set_word(stack, _END, bottom + ENTRY * (places[at + 1] - places[at]))


@cuda.jit(device=True)
def _grow(stack: Any, entries: Any) -> Any:
    """Raise a stack, and return the address of the first new entry."""
    top = _word(stack, _TOP)
    raised = top + entries * _ROW
    if raised > _word(stack, _END):
        _end_kernel()
    _set_word(stack, _TOP, raised)
    return top


@cuda.jit(device=True)
def push(stack: Any, value: Any) -> None:
    """Put a number on a stack."""
    _put(_grow(stack, 1), value)


@cuda.jit(device=True)
def pop(stack: Any, like: Any) -> Any:
    """Take a number of the type of `like` from a stack."""
    top = _word(stack, _TOP) - _ROW
    _set_word(stack, _TOP, top)
    return _take(top, like)


@cuda.jit(device=True)
def height(stack: Any) -> Any:
    """Return how high a stack is."""
    return _word(stack, _TOP) - _word(stack, _BOTTOM)


@cuda.jit(device=True)
def remember(log: Any, array: Any, index: Any) -> None:
    """Put an element's address and contents on a stack, before something else is stored there."""
    _note(_grow(log, 2), array, index)


@intrinsic
def _address_of(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(element_pointer(context, builder, signature.args, arguments), _WORD)

    return types.int64(array, index), generate


@cuda.jit(device=True)
def remember_other(log: Any, array: Any, index: Any, value: Any) -> None:
    """Store a number into an element, and put its address and contents on a stack if these are changed.

    Other threads may be storing that number there.
    """
    found = exchanged(array, index, value)
    if differs(found, value):
        top, address = _grow(log, 2), _address_of(array, index)
        _put(top, address)
        moved(array, top + _ROW - address)[index] = found


def _undoing(store: Callable[[Any, Any, Any], object]) -> Any:
    """Return what brings back everything that was remembered since a stack was as high as `mark`, storing it in a way."""
    bring_back = _bringing_back(store)

    @cuda.jit(device=True)
    def undo(log: Any, array: Any, mark: Any) -> None:
        top, end = _word(log, _TOP), _word(log, _BOTTOM) + mark
        while top > end:
            top -= 2 * _ROW
            bring_back(top, array)
        _set_word(log, _TOP, top)

    return undo


undo = _undoing(lambda builder, pointer, value: builder.store(value, pointer))
# For an array of which other threads may be storing numbers by `remember_other`
undo_among_others = _undoing(store_strongly)


@cuda.jit(device=True)
def measured(needs: Any, number: Any, count: Any, entries: Any) -> None:
    """Note how many entries a stack of this thread takes, for its group."""
    cuda.atomic.max(needs, _thread() // GROUP * count + number, entries)


STACK = {
    "_nb_stack_new": new,
    "_nb_stack_place": place,
    "_nb_stack_push": push,
    "_nb_stack_pop": pop,
    "_nb_stack_height": height,
    "_nb_stack_remember": remember,
    "_nb_stack_remember_other": remember_other,
    "_nb_stack_undo": undo,
    "_nb_stack_undo_among_others": undo_among_others,
    "_nb_stack_measured": measured,
}
"""What generated text calls these functions."""
