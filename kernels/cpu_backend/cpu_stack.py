"""Stacks of a thread that grow on the heap, for what adjoints must remember of loops that change arrays.

A stack is the address of four words (`table_layout.STACK_MEMORY`): memory, capacity, height, and the crew of the thread's block.
Every entry takes eight bytes. What a thread pushes it pops, and `free` gives the memory back; a crew gives back what those of its
threads still have that another one has ended. Everything runs without the GIL and without Numba's runtime; a push for which there
is no memory raises. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from numbridge.kernels.cpu_backend.cpu_atomics import element_address
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import external, load_i64, store_i64
from numbridge.kernels.native.stacks import FIRST

__all__ = ["STACK"]

_ENTRY = 8
_MEMORY, _CAPACITY, _HEIGHT, _CREW = nb.STACK_MEMORY, nb.STACK_CAPACITY, nb.STACK_HEIGHT, nb.STACK_CREW
_WORDS = nb.STACK_SIZE // 8

_release = external("numbridge_stack_free", types.void, types.int64)
_more = external("numbridge_stack_grow", types.int64, types.int64)
_lend_more = external("numbridge_crew_lend", types.int64, types.int64, types.int64, types.int64)
_take_back = external("numbridge_crew_take_back", types.void, types.int64, types.int64)
# Nothing calls these from Python, which knows no floats of 16 bits.
_inside = {
    "_nrt": False,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "fastmath": False,
}
# Numba would take what is not said here from who calls the function first, for everybody after that.
_function = njit(**_inside, forceinline=False)
_inlined = njit(**_inside, forceinline=True)


def _empty_stack(builder: Any, crew: Any) -> Any:
    """Build an empty stack, which ends with the function in which it is built."""
    word = ir.IntType(64)
    with builder.goto_entry_block():
        block = builder.alloca(ir.ArrayType(word, _WORDS))
    builder.store(ir.Constant(ir.ArrayType(word, _WORDS), [0] * _WORDS), block)
    address = builder.ptrtoint(block, word)
    if crew is not None:
        builder.store(crew, builder.inttoptr(builder.add(address, word(_CREW)), word.as_pointer()))
    return address


@intrinsic
def new(typing_context: Any) -> Any:
    """Return an empty stack, which ends with the function that calls this."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _empty_stack(builder, None)

    return types.int64(), generate


@intrinsic
def _new_in_crew(typing_context: Any, crew: Any) -> Any:
    """Return an empty stack of a thread of a crew."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _empty_stack(builder, arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def _put(typing_context: Any, address: Any, value: Any) -> Any:
    """Store a number of any type at an address."""
    kind = types.unliteral(value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], context.get_data_type(kind).as_pointer())
        context.pack_value(builder, kind, arguments[1], pointer)
        return context.get_dummy_value()

    return types.void(types.int64, kind), generate


def _taker(kind_of: Any) -> Any:
    @intrinsic
    def take(typing_context: Any, address: Any, like: Any) -> Any:
        kind = kind_of(like)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], context.get_data_type(kind).as_pointer())
            return context.unpack_value(builder, kind, pointer)

        return kind(types.int64, like), generate

    return take


_take = _taker(types.unliteral)
_take_element = _taker(lambda array: array.dtype)


@_function
def _grow(stack: int) -> None:
    """Double a stack's memory, at least."""
    if _more(stack) == 0:
        raise MemoryError


@_function
def _grow_in_crew(stack: int) -> None:
    """Double a stack's memory, which its crew knows of."""
    capacity = max(2 * load_i64(stack, _CAPACITY), FIRST)
    memory = _lend_more(load_i64(stack, _CREW), load_i64(stack, _MEMORY), capacity)
    if memory == 0:
        raise MemoryError
    store_i64(stack, _MEMORY, memory)
    store_i64(stack, _CAPACITY, capacity)


def _pushing(grow: Any) -> Any:
    @_inlined
    def push(stack: Any, value: Any) -> None:
        """Put a number on a stack."""
        height = load_i64(stack, _HEIGHT)
        if height == load_i64(stack, _CAPACITY):
            grow(stack)
        _put(load_i64(stack, _MEMORY) + height, value)
        store_i64(stack, _HEIGHT, height + _ENTRY)

    return push


push, _push_in_crew = _pushing(_grow), _pushing(_grow_in_crew)


@_inlined
def pop(stack: Any, like: Any) -> Any:
    """Take a number of the type of `like` from a stack."""
    height = load_i64(stack, _HEIGHT) - _ENTRY
    store_i64(stack, _HEIGHT, height)
    return _take(load_i64(stack, _MEMORY) + height, like)


@_inlined
def height(stack: Any) -> Any:
    """Return how high a stack is."""
    return load_i64(stack, _HEIGHT)


@_inlined
def reserve(stack: Any, count: Any) -> Any:
    """Make room for so many entries that are put on a stack; return the address of the first."""
    while load_i64(stack, _HEIGHT) + _ENTRY * count > load_i64(stack, _CAPACITY):
        _grow(stack)
    height = load_i64(stack, _HEIGHT)
    store_i64(stack, _HEIGHT, height + _ENTRY * count)
    return load_i64(stack, _MEMORY) + height


@_inlined
def release(stack: Any, count: Any) -> Any:
    """Give up the uppermost entries of a stack; return the address behind them, where they lie until others are put there."""
    height = load_i64(stack, _HEIGHT)
    store_i64(stack, _HEIGHT, height - _ENTRY * count)
    return load_i64(stack, _MEMORY) + height


@_inlined
def put(top: Any, place: Any, value: Any) -> None:
    """Store a number in an entry, that many from an address."""
    _put(top + _ENTRY * place, value)


@_inlined
def put_place(top: Any, place: Any, array: Any, index: Any) -> None:
    """Store the address of an element of an array in an entry."""
    _put(top + _ENTRY * place, element_address(array, index))


@_inlined
def take(top: Any, place: Any, like: Any) -> Any:
    """Return the number of the type of `like` in an entry."""
    return _take(top + _ENTRY * place, like)


@_inlined
def restore(top: Any, place: Any, held: Any, array: Any) -> None:
    """Bring back the element of an array whose address is in one entry, and what it held in another one."""
    _put(load_i64(top + _ENTRY * place, 0), _take_element(top + _ENTRY * held, array))


@_inlined
def beyond(top: Any, count: Any) -> Any:
    """Return the address that many entries from another."""
    return top + _ENTRY * count


@_inlined
def trips(low: Any, high: Any, step: Any) -> Any:
    """Return how many trips a range makes, of integers of any type, by a step that is positive."""
    # The bounds of an empty range may be so far apart that no integer tells how far.
    if not low < high:
        return 0
    # Unsigned numbers that are out of range here have the same difference.
    return (types.int64(high) - types.int64(low) + step - 1) // step


@_inlined
def bring_back(log: Any, array: Any, mark: Any) -> None:
    """Bring back everything that was remembered since a stack was as high as `mark`."""
    memory, height = load_i64(log, _MEMORY), load_i64(log, _HEIGHT)
    while height > mark:
        height -= 2 * _ENTRY
        _put(load_i64(memory + height, 0), _take_element(memory + height + _ENTRY, array))
    store_i64(log, _HEIGHT, height)


@_inlined
def remember(log: Any, array: Any, index: Any) -> None:
    """Put an element's address and contents on a stack of a crew's thread, before something else is stored there."""
    _push_in_crew(log, element_address(array, index))
    _push_in_crew(log, array[index])


@_inlined
def free(stack: Any) -> None:
    """Give a stack's memory back."""
    _release(stack)


@_inlined
def _free_in_crew(stack: Any) -> None:
    _take_back(load_i64(stack, _CREW), load_i64(stack, _MEMORY))
    store_i64(stack, _MEMORY, 0)
    store_i64(stack, _CAPACITY, 0)
    store_i64(stack, _HEIGHT, 0)


_SAME = {"pop": pop, "height": height}
_OWN = {"new": new, "push": push, "free": free}
_RUNS = {"reserve": reserve, "release": release, "put": put, "put_place": put_place, "take": take, "restore": restore}
_ALONE = {"trips": trips, "beyond": beyond, "bring_back": bring_back}
_IN_CREW = {"new": _new_in_crew, "push": _push_in_crew, "remember": remember, "undo": bring_back, "free": _free_in_crew}
STACK = {
    **{f"_nb_stack_{name}": function for name, function in (_SAME | _OWN | _RUNS | _ALONE).items()},
    **{f"_nb_crew_stack_{name}": function for name, function in (_SAME | _IN_CREW).items()},
}
"""What generated text calls these functions, those of a thread of a crew by names of their own; see `stack_runs`."""
