"""How kernel bodies update elements of arrays on the CPU: atomics, additions where no other thread is, and totals of a thread.

Everything here runs without the GIL: no Python, no heap, no Numba runtime, no exceptions. What does not fit is refused
while Numba infers types. Importing this module imports Numba, so only code that is about to compile does.

Atomics take ``(array, index, value)``. The index is an integer, or a tuple of one integer per dimension (``()`` for a
0-d array); negative ones wrap as in NumPy, and none is checked against the shape. The value is converted to the array's
dtype as in ``array[index] = value``. What the element held is returned. As on CUDA they are relaxed (``monotonic`` in
LLVM): they order no other loads and stores. Where numba.cuda has an operation and a dtype, the meaning is the same;
8- and 16-bit integers, and exchanging or comparing floats, are on the CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.arrayobj import fix_integer_index

from numbridge.kernels.cpu_backend.cpu_intrinsics import on_stack
from numbridge.kernels.element_types.numba_element_memory import not_an_element
from numbridge.kernels.element_types.numba_elements import NumbaElement

__all__ = [
    "NAMES",
    "accumulate",
    "add",
    "add_either",
    "add_to_total",
    "add_total",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_dec",
    "atomic_exch",
    "atomic_inc",
    "atomic_max",
    "atomic_min",
    "atomic_nanmax",
    "atomic_nanmin",
    "atomic_or",
    "atomic_sub",
    "atomic_xor",
    "check_numbers",
    "element_address",
    "prefetch",
    "sub_either",
    "sub_from_total",
    "total_of",
    "total_type",
]

_NUMBERS = "integers, float32 and float64"
_INTEGERS = "integers"
_UNSIGNED = "unsigned integers"
_DTYPES = {
    "and": _INTEGERS,
    "or": _INTEGERS,
    "xor": _INTEGERS,
    "inc": _UNSIGNED,
    "dec": _UNSIGNED,
}
# The names of LLVM's atomicrmw, for signed integers, unsigned integers and floats; None where floats need a loop.
_INSTRUCTIONS: dict[str, tuple[str, str, str | None]] = {
    "add": ("add", "add", "fadd"),
    "sub": ("sub", "sub", "fsub"),
    "min": ("min", "umin", None),
    "max": ("max", "umax", None),
    "nanmin": ("min", "umin", None),
    "nanmax": ("max", "umax", None),
    "and": ("and", "and", None),
    "or": ("or", "or", None),
    "xor": ("xor", "xor", None),
    "inc": ("uinc_wrap", "uinc_wrap", None),
    "dec": ("udec_wrap", "udec_wrap", None),
}
# How far ahead memory is asked for, in bytes; a few more or less make no difference.
_AHEAD = 2048


# Elements of numbers and of vectors and matrices, which are taken component by component


def _count(array: Any) -> int:
    """Return how many numbers an element of an array is."""
    count: int = array.dtype.element.count if isinstance(array.dtype, NumbaElement) else 1
    return count


def _number(array: Any) -> Any:
    """Return the type of the numbers that an array's elements are or consist of."""
    return array.dtype.dtype if isinstance(array.dtype, NumbaElement) else array.dtype


def _parts(builder: Any, array: Any, value: Any) -> list[Any]:
    """Return the numbers that a value for an element of an array is or consists of."""
    if not isinstance(array.dtype, NumbaElement):
        return [value]
    return [builder.extract_value(value, k) for k in range(_count(array))]


def _component(builder: Any, array: Any, pointer: Any, k: int) -> Any:
    """Return where a number of the element lies to which a pointer points."""
    if not isinstance(array.dtype, NumbaElement):
        return pointer
    word = ir.IntType(32)
    return builder.gep(pointer, [word(0), word(k)], inbounds=True)


def _combined(name: str, builder: Any, held: Any, new: Any, flags: Sequence[str] = ()) -> Any:
    """Return the sum or the difference of two numbers."""
    if isinstance(new.type, ir.FloatType | ir.DoubleType):
        combine = builder.fadd if name == "add" else builder.fsub
        return combine(held, new, flags=flags)
    return builder.add(held, new) if name == "add" else builder.sub(held, new)


def _add_atomically(name: str, builder: Any, pointer: Any, new: Any) -> None:
    """Add to a number in memory, or subtract from it."""
    floating = isinstance(new.type, ir.FloatType | ir.DoubleType)
    builder.atomic_rmw(f"f{name}" if floating else name, pointer, new, "monotonic")


@intrinsic
def add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to an element that no other thread touches; index and value are as for the atomics."""
    _check("add", typing_context, array, index, value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, new = element_pointer(context, builder, signature, arguments), arguments[2]
        builder.store(_combined("add", builder, builder.load(pointer), new), pointer)
        return context.get_dummy_value()

    return types.void(array, index, array.dtype), generate


@intrinsic
def add_either(typing_context: Any, private: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to an element: plainly if `private` says that no other thread touches it, else atomically."""
    return _either("add", typing_context, array, index, value)


@intrinsic
def sub_either(typing_context: Any, private: Any, array: Any, index: Any, value: Any) -> Any:
    """Subtract from an element: plainly if `private` says that no other thread touches it, else atomically."""
    return _either("sub", typing_context, array, index, value)


def _either(name: str, typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    _check(name, typing_context, array, index, value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        inner = array.dtype(*signature.args[1:])
        pointer = element_pointer(context, builder, inner, arguments[1:])
        parts = _parts(builder, array, arguments[3])
        places = [_component(builder, array, pointer, k) for k in range(len(parts))]
        with builder.if_else(context.is_true(builder, types.boolean, arguments[0])) as (alone, shared):
            with alone:
                for place, part in zip(places, parts, strict=True):
                    builder.store(_combined(name, builder, builder.load(place), part), place)
            with shared:
                for place, part in zip(places, parts, strict=True):
                    _add_atomically(name, builder, place, part)
        return context.get_dummy_value()

    return types.void(types.boolean, array, index, array.dtype), generate


@intrinsic
def atomic_add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to an element; integers wrap around."""
    return _modify("add", typing_context, array, index, value)


@intrinsic
def atomic_sub(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Subtract from an element; integers wrap around."""
    return _modify("sub", typing_context, array, index, value)


@intrinsic
def alone_add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to an element that only this worker touches, and return what it was."""
    return _alone("add", typing_context, array, index, value)


@intrinsic
def alone_sub(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Subtract from an element that only this worker touches, and return what it was."""
    return _alone("sub", typing_context, array, index, value)


@intrinsic
def alone_exch(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Replace an element that only this worker touches, and return what it was."""
    return _alone("exch", typing_context, array, index, value)


def _alone(name: str, typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    _check(name, typing_context, array, index, value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature, arguments)
        held, new = builder.load(pointer), arguments[2]
        builder.store(new if name == "exch" else _combined(name, builder, held, new), pointer)
        return held

    return array.dtype(array, index, array.dtype), generate


@intrinsic
def atomic_min(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Lower an element to a value; nothing changes if either is NaN."""
    return _modify("min", typing_context, array, index, value)


@intrinsic
def atomic_max(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Raise an element to a value; nothing changes if either is NaN."""
    return _modify("max", typing_context, array, index, value)


@intrinsic
def atomic_nanmin(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Lower an element to a value, where NaN stands for a missing number: a number replaces it, it replaces none."""
    return _modify("nanmin", typing_context, array, index, value)


@intrinsic
def atomic_nanmax(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Raise an element to a value, where NaN stands for a missing number: a number replaces it, it replaces none."""
    return _modify("nanmax", typing_context, array, index, value)


@intrinsic
def atomic_and(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Keep the bits of an integer element that are set in a value."""
    return _modify("and", typing_context, array, index, value)


@intrinsic
def atomic_or(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Set the bits of an integer element that are set in a value."""
    return _modify("or", typing_context, array, index, value)


@intrinsic
def atomic_xor(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Flip the bits of an integer element that are set in a value."""
    return _modify("xor", typing_context, array, index, value)


@intrinsic
def atomic_inc(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Count an unsigned element up by one; from `value`, or from above it, to 0."""
    return _modify("inc", typing_context, array, index, value)


@intrinsic
def atomic_dec(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Count an unsigned element down by one; from 0, or from above `value`, to `value`."""
    return _modify("dec", typing_context, array, index, value)


@intrinsic
def atomic_exch(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store a value into an element."""
    _check("exch", typing_context, array, index, value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature, arguments)
        bits = ir.IntType(array.dtype.bitwidth)
        place, new = builder.bitcast(pointer, bits.as_pointer()), builder.bitcast(arguments[2], bits)
        return builder.bitcast(builder.atomic_rmw("xchg", place, new, "monotonic"), pointer.type.pointee)

    return array.dtype(array, index, array.dtype), generate


@intrinsic
def atomic_cas(typing_context: Any, array: Any, index: Any, compare: Any, value: Any) -> Any:
    """Store a value into an element if that equals `compare`; it was stored exactly if the result equals `compare`.

    Floats are compared as numbers, not as bits: -0.0 equals 0.0, and NaN equals nothing, so nothing is stored over it.
    """
    _check("cas", typing_context, array, index, compare, value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature, arguments)
        expected, new = arguments[2:]
        if isinstance(array.dtype, types.Float):
            return _store_while(builder, pointer, new, lambda held: builder.fcmp_ordered("==", held, expected))
        return builder.extract_value(builder.cmpxchg(pointer, expected, new, "monotonic", "monotonic"), 0)

    return array.dtype(array, index, array.dtype, array.dtype), generate


def _modify(name: str, typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Return the signature and the code generator of an operation of an element and one value."""
    _check(name, typing_context, array, index, value)
    signed, unsigned, floating = _INSTRUCTIONS[name]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature, arguments)
        new = arguments[2]
        if isinstance(array.dtype, types.Integer):
            return builder.atomic_rmw(signed if array.dtype.signed else unsigned, pointer, new, "monotonic")
        if floating is not None:
            return builder.atomic_rmw(floating, pointer, new, "monotonic")
        return _store_while(builder, pointer, new, lambda held: _replaces(name, builder, held, new))

    return array.dtype(array, index, array.dtype), generate


def _check(name: str, typing_context: Any, array: Any, index: Any, *values: Any) -> None:
    """Refuse, before any code is generated, what an atomic operation cannot do."""
    if not isinstance(array, types.Array):
        raise TypingError(f"atomic_{name} needs an array and got {array}; pass the array and the index of the element")
    check_numbers(name, _number(array))
    if not array.mutable:
        raise TypingError(f"atomic_{name} writes to {array}, which is read-only; pass a writable array for it")
    if not array.aligned:
        raise TypingError(f"atomic_{name} needs aligned elements, which {array} does not have; pass a copy of it")
    indices = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if len(indices) != array.ndim or not all(isinstance(part, types.Integer) for part in indices):
        wanted = "an integer" if array.ndim == 1 else f"a tuple of {array.ndim} integers"
        way = "; pass the components, as in (v[0], v[1])" if isinstance(index, NumbaElement) else ""
        raise TypingError(f"atomic_{name} needs {wanted} to index {array}, got {index}{way}")
    if isinstance(array.dtype, NumbaElement):
        for value in values:
            if value != array.dtype:
                raise TypingError(not_an_element(name, array, value))
        return
    for value in values:
        number = isinstance(value, types.Number | types.Boolean)
        if not number or typing_context.can_convert(value, array.dtype) is None:
            raise TypingError(f"atomic_{name} cannot store {value} into elements of {array.dtype}; convert it first")


def check_numbers(name: str, dtype: Any) -> None:
    """Refuse an atomic operation on numbers that there is none for."""
    wanted = _DTYPES.get(name, _NUMBERS)
    fits = isinstance(dtype, types.Integer) and not (wanted == _UNSIGNED and dtype.signed)
    if wanted == _NUMBERS:
        fits = fits or dtype in (types.float32, types.float64)
    if fits:
        return
    hint = "use an array of such a type"
    if isinstance(dtype, types.Complex):
        hint = "add to the real and the imaginary parts, in arrays of their own"
    elif isinstance(dtype, types.Boolean):
        hint = "use an array of uint8"
    elif isinstance(dtype, types.Float) and wanted == _NUMBERS:
        hint = "use an array of float32, and convert it afterwards"
    # A narrow float calls itself float32.
    raise TypingError(f"atomic_{name} works on {wanted}, not on {dtype.name.removeprefix('stored_')}; {hint}")


def element_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return the address of the element that an atomic operation works on."""
    array_type, index_type = signature.args[:2]
    view = context.make_array(array_type)(context, builder, arguments[0])
    index, kinds = [arguments[1]], [index_type]
    if isinstance(index_type, types.BaseTuple):
        index, kinds = cgutils.unpack_tuple(builder, arguments[1], len(index_type)), list(index_type)
    extents = cgutils.unpack_tuple(builder, view.shape, array_type.ndim)
    wrapped = [
        fix_integer_index(context, builder, kind, part, extent)
        for kind, part, extent in zip(kinds, index, extents, strict=True)
    ]
    return cgutils.get_item_pointer(context, builder, array_type, view, wrapped, wraparound=False)


@intrinsic
def element_address(typing_context: Any, array: Any, index: Any) -> Any:
    """Return the address of an element, given an index as for the atomics."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(element_pointer(context, builder, signature, arguments), ir.IntType(64))

    return types.int64(array, index), generate


def _replaces(name: str, builder: Any, held: Any, new: Any) -> Any:
    """Return whether the new one of two floats takes the element's place in a minimum or a maximum."""
    relation = ">" if name.endswith("min") else "<"
    if name in ("min", "max"):
        return builder.fcmp_ordered(relation, held, new)
    is_number = builder.fcmp_ordered("ord", new, new)
    return builder.and_(is_number, builder.fcmp_unordered(relation, held, new))


def _store_while(builder: Any, pointer: Any, new: Any, wanted: Callable[[Any], Any]) -> Any:
    """Store into a float unless `wanted`, given what it holds, says no; try again if another thread was quicker.

    The bits are exchanged, since LLVM compares no floats; `wanted` sees the number. Returns what the element held.
    """
    width = 64 if isinstance(new.type, ir.DoubleType) else 32
    bits = ir.IntType(width)
    place, new_bits = builder.bitcast(pointer, bits.as_pointer()), builder.bitcast(new, bits)
    first = builder.load_atomic(place, "monotonic", width // 8)
    before = builder.block
    look, attempt, done = (builder.append_basic_block(f"atomic.{name}") for name in ("look", "attempt", "done"))
    builder.branch(look)
    builder.position_at_end(look)
    held = builder.phi(bits)
    held.add_incoming(first, before)
    number = builder.bitcast(held, new.type)
    builder.cbranch(wanted(number), attempt, done)
    builder.position_at_end(attempt)
    exchanged = builder.cmpxchg(place, held, new_bits, "monotonic", "monotonic")
    held.add_incoming(builder.extract_value(exchanged, 0), attempt)
    builder.cbranch(builder.extract_value(exchanged, 1), done, look)
    builder.position_at_end(done)
    return number


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the memory that a thread some way behind an element's will read, so that it is in the cache by then.

    The CPU finds out by itself that memory is read in order, but starts late where several arrays of large elements are.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        parts = cgutils.unpack_tuple(builder, arguments[1], len(index))
        element = cgutils.get_item_pointer(context, builder, array, view, parts, wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        place = builder.gep(builder.bitcast(element, byte), [ir.IntType(64)(_AHEAD)])
        builder.call(call, [place, word(0), word(3), word(1)])  # for reading, to be kept, data
        return context.get_dummy_value()

    return types.void(array, index), generate


# Totals


@intrinsic
def accumulate(typing_context: Any, total: Any, value: Any) -> Any:
    """Return the sum of a float64 and a number; the order of several such sums is left to the optimiser."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fadd(*arguments, flags=("reassoc", "nsz"))

    return types.float64(types.float64, types.float64), generate


@intrinsic
def total_of(typing_context: Any, array: Any) -> Any:
    """Return numbers on this thread's stack: the total, zero so far, of what is added to an element, or to its components."""
    kind = total_type(array)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total = on_stack(context, builder, kind, (_count(array),))
        for place in _totals(context, builder, array, total):
            builder.store(context.get_constant(kind.dtype, 0), place)
        return total

    return kind(array), generate


@intrinsic
def add_to_total(typing_context: Any, array: Any, total: Any, value: Any) -> Any:
    """Add to a total what would be added to an element of an array, in whatever order the optimiser likes.

    A number is not rounded to those of the array before: it may be of a sum, and only the sum is rounded.
    """
    return _to_total("add", typing_context, array, total, value)


@intrinsic
def sub_from_total(typing_context: Any, array: Any, total: Any, value: Any) -> Any:
    """Subtract from a total what would be subtracted from an element of an array."""
    return _to_total("sub", typing_context, array, total, value)


def _to_total(name: str, typing_context: Any, array: Any, total: Any, value: Any) -> Any:
    _check(name, typing_context, array, types.UniTuple(types.intp, array.ndim), value)
    given = total.dtype if isinstance(array.dtype, types.Float) else array.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = _totals(context, builder, array, arguments[1])
        for place, part in zip(places, _parts(builder, array, arguments[2]), strict=True):
            new = part if given is total.dtype else context.cast(builder, part, _number(array), total.dtype)
            builder.store(_combined(name, builder, builder.load(place), new, flags=("reassoc", "nsz")), place)
        return context.get_dummy_value()

    return types.void(array, total, given), generate


@intrinsic
def add_total(typing_context: Any, array: Any, index: Any, total: Any) -> Any:
    """Add a total to an element atomically, each number unless it is zero: then nothing may have been added, to no element."""
    _check("add", typing_context, array, index, array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        floating = isinstance(total.dtype, types.Float)
        differs = builder.fcmp_unordered if floating else builder.icmp_signed
        for k, place in enumerate(_totals(context, builder, array, arguments[2])):
            held = builder.load(place)
            with builder.if_then(differs("!=", held, held.type(0))):
                new = context.cast(builder, held, total.dtype, _number(array))
                pointer = element_pointer(context, builder, signature, arguments)
                _add_atomically("add", builder, _component(builder, array, pointer, k), new)
        return context.get_dummy_value()

    return types.void(array, index, total), generate


def total_type(array: Any) -> Any:
    """Return the type of a total: floats are added up in float64, integers in 64 bits, which wrap around as theirs do."""
    kind = _number(array)
    wide = types.float64 if isinstance(kind, types.Float) else types.int64 if kind.signed else types.uint64
    return types.Array(wide, 1, "C")


def _totals(context: Any, builder: Any, array: Any, total: Any) -> list[Any]:
    """Return where the numbers of a total lie, one for each component."""
    data = context.make_array(total_type(array))(context, builder, total).data
    return [builder.gep(data, [ir.IntType(64)(k)]) for k in range(_count(array))]


# What generated source calls.
NAMES: dict[str, Any] = {
    "_nb_accumulate": accumulate,
    "_nb_add": atomic_add,
    "_nb_add_either": add_either,
    "_nb_add_private": add,
    "_nb_add_to_total": add_to_total,
    "_nb_add_total": add_total,
    "_nb_atomic_add": atomic_add,
    "_nb_atomic_alone_add": alone_add,
    "_nb_atomic_alone_exch": alone_exch,
    "_nb_atomic_alone_sub": alone_sub,
    "_nb_atomic_and": atomic_and,
    "_nb_atomic_cas": atomic_cas,
    "_nb_atomic_dec": atomic_dec,
    "_nb_atomic_exch": atomic_exch,
    "_nb_atomic_inc": atomic_inc,
    "_nb_atomic_max": atomic_max,
    "_nb_atomic_min": atomic_min,
    "_nb_atomic_nanmax": atomic_nanmax,
    "_nb_atomic_nanmin": atomic_nanmin,
    "_nb_atomic_or": atomic_or,
    "_nb_atomic_sub": atomic_sub,
    "_nb_atomic_xor": atomic_xor,
    "_nb_prefetch": prefetch,
    "_nb_sub_either": sub_either,
    "_nb_sub_from_total": sub_from_total,
    "_nb_total_of": total_of,
}
