"""What kernel bodies call on CUDA beyond numba.cuda itself: atomics by numbridge's names, promises to the optimiser.

The meaning is that of `cpu_atomics`. Adding, subtracting, minimum and maximum are numba.cuda's own; exchanging and
comparing also take floats. Importing this module imports numba.cuda, so only code that is about to compile does.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.cuda import cache_hints, cgutils
from numba.cuda.core.errors import TypingError
from numba.cuda.extending import intrinsic, overload

from numbridge.kernels.arithmetic import changed_bits
from numbridge.kernels.arithmetic.narrow_floats import NarrowFloat
from numbridge.kernels.language.cache_hints import LOADS, STORES

__all__ = [
    "ATOMICS",
    "HINTED",
    "check_numbers",
    "decided",
    "differs",
    "element_pointer",
    "exchanged",
    "has_pairs",
    "moved",
    "nonnegative",
    "pair",
    "put_pair",
    "row",
    "store_strongly",
]

ATOMICS = ("atomic_add", "atomic_sub", "atomic_min", "atomic_max", "atomic_exch", "atomic_cas")
_ADDRESS = ir.IntType(64)
_SMALL = ir.IntType(16)  # the smallest registers
_EXCHANGED = (types.int32, types.int64, types.uint32, types.uint64, types.float32, types.float64)


differs = intrinsic(changed_bits.differs)


@intrinsic
def nonnegative(typing_context: Any, index: Any) -> Any:
    """Return an index and promise the optimiser that it is not negative: indexing with it then needs no wrap-around."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(1)])
        assume = cgutils.get_or_insert_function(builder.module, kind, "llvm.assume")
        builder.call(assume, [builder.icmp_signed(">=", value, value.type(0))])
        return value

    return types.int64(types.int64), generate


@cuda.jit(device=True)
def decided(condition: Any) -> Any:
    """Return a condition, whose value Numba does not look for here."""
    return condition


@intrinsic
def row(typing_context: Any, array: Any) -> Any:
    """Return an array of rank 0 as one of rank 1 on the same memory."""
    made = types.Array(array.dtype, 1, "C", readonly=not array.mutable)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = context.make_array(array)(context, builder, arguments[0])
        view = context.make_array(made)(context, builder)
        for field in ("meminfo", "parent", "nitems", "itemsize", "data"):
            setattr(view, field, getattr(given, field))
        view.shape = cgutils.pack_array(builder, [given.nitems])
        view.strides = cgutils.pack_array(builder, [given.itemsize])
        return view._getvalue()

    return made(array), generate


@intrinsic
def moved(typing_context: Any, array: Any, distance: Any) -> Any:
    """Return an array of the same shape and strides that lies a number of bytes behind another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        place = builder.ptrtoint(view.data, ir.IntType(64))
        view.data = builder.inttoptr(builder.add(place, arguments[1]), view.data.type)
        return view._getvalue()

    return array(array, types.int64), generate


@intrinsic
def has_pairs(typing_context: Any, array: Any) -> Any:
    """Tell whether a contiguous array and each of its rows begin and end where two elements may be accessed at once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        size = array.dtype.bitwidth // 8
        # Rows of a contiguous array lie by its extents; the stride of a single one says nothing of where it ends.
        length = cgutils.unpack_tuple(builder, view.shape, array.ndim)[-1]
        place = builder.ptrtoint(view.data, ir.IntType(64))
        bits = builder.or_(place, builder.mul(length, length.type(size)))
        rest = builder.and_(bits, bits.type(2 * size - 1))
        return builder.icmp_unsigned("==", rest, rest.type(0))

    return types.boolean(array), generate


@intrinsic
def pair(typing_context: Any, array: Any, index: Any) -> Any:
    """Return an element and its neighbour along the last index, by one access; see `has_pairs`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args, arguments)
        both = ir.VectorType(pointer.type.pointee, 2)
        value = builder.load(builder.bitcast(pointer, both.as_pointer()), align=2 * (array.dtype.bitwidth // 8))
        parts = [builder.extract_element(value, ir.IntType(32)(k)) for k in range(2)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(array.dtype, 2)(array, index), generate


# How inline assembly names a register for a number: whether it is floating, and its bits
_REGISTERS = {(True, 32): "f", (True, 64): "d", (False, 32): "r", (False, 64): "l"}


@intrinsic
def put_pair(typing_context: Any, array: Any, index: Any, first: Any, second: Any) -> Any:
    """Store into an element and its neighbour along the last index, by one access, as what is not soon read again.

    PTX ISA, cache operators: ``.cs``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args, arguments)
        kind = pointer.type.pointee
        place = builder.ptrtoint(builder.addrspacecast(pointer, kind.as_pointer(1), "global"), ir.IntType(64))
        values = [
            context.cast(builder, value, given, array.dtype)
            for value, given in zip(arguments[2:], signature.args[2:], strict=True)
        ]
        floating, bits = isinstance(array.dtype, types.Float), array.dtype.bitwidth
        register, suffix = _REGISTERS[floating, bits], f"{'f' if floating else 'b'}{bits}"
        text = f"st.global.cs.v2.{suffix} [$0], {{$1, $2}};"
        shape = ir.FunctionType(ir.VoidType(), [ir.IntType(64), kind, kind])
        builder.call(
            ir.InlineAsm(shape, text, f"l,{register},{register},~{{memory}}", side_effect=True), [place, *values]
        )
        return context.get_dummy_value()

    return types.void(array, index, first, second), generate


def _placed(array: Any, index: Any) -> Any:
    """Return what numba.cuda's atomics take, which have no index for arrays of rank 0, and none that is a tuple of one number."""
    raise NotImplementedError("for kernels only")


@overload(_placed)
def _placed_in(array: Any, index: Any) -> Any:
    def first(array: Any, index: Any) -> Any:
        return row(array), 0

    def given(array: Any, index: Any) -> Any:
        return array, index

    def alone(array: Any, index: Any) -> Any:
        return array, index[0]

    if not isinstance(array, types.Array):
        raise TypingError(
            f"an atomic operation needs an array and got {array}; pass the array and the index of the element"
        )
    parts = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if len(parts) != array.ndim or not all(isinstance(part, types.Integer) for part in parts):
        raise TypingError(f"an atomic operation needs {array.ndim} integer(s) to index {array}, got {index}")
    if not array.ndim:
        return first
    return alone if isinstance(index, types.BaseTuple) and len(index) == 1 else given


@cuda.jit(device=True)
def atomic_add(array: Any, index: Any, value: Any) -> Any:
    """Add to an element."""
    memory, place = _placed(array, index)
    return cuda.atomic.add(memory, place, value)


@cuda.jit(device=True)
def atomic_sub(array: Any, index: Any, value: Any) -> Any:
    """Subtract from an element."""
    memory, place = _placed(array, index)
    return cuda.atomic.sub(memory, place, value)


@cuda.jit(device=True)
def atomic_min(array: Any, index: Any, value: Any) -> Any:
    """Lower an element to a value."""
    memory, place = _placed(array, index)
    return cuda.atomic.min(memory, place, value)


@cuda.jit(device=True)
def atomic_max(array: Any, index: Any, value: Any) -> Any:
    """Raise an element to a value."""
    memory, place = _placed(array, index)
    return cuda.atomic.max(memory, place, value)


@intrinsic
def atomic_exch(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store a value into an element."""
    _check("exch", typing_context, array, index, value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args, arguments)
        return _as_bits(builder, pointer, lambda place, bits: builder.atomic_rmw("xchg", place, bits, "monotonic"))(
            arguments[2]
        )

    return array.dtype(array, index, array.dtype), generate


@intrinsic
def atomic_cas(typing_context: Any, array: Any, index: Any, compare: Any, value: Any) -> Any:
    """Store a value into an element if that equals `compare`; floats are compared as numbers, not as bits."""
    _check("cas", typing_context, array, index, compare, value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args, arguments)
        expected, new = arguments[2:]
        if isinstance(array.dtype, types.Float):
            return _store_while_equal(builder, pointer, expected, new)
        return builder.extract_value(builder.cmpxchg(pointer, expected, new, "monotonic", "monotonic"), 0)

    return array.dtype(array, index, array.dtype, array.dtype), generate


def exchanged(array: Any, index: Any, value: Any) -> Any:
    """Store into an element what other threads store there too, and return what it held: one of them gets what was there before.

    Of numbers of 8 and 16 bits, which CUDA cannot exchange, several may get that; they store only if it is another.
    """
    raise NotImplementedError


@overload(exchanged)
def _exchanged(array: Any, index: Any, value: Any) -> Any:
    def atomic(array: Any, index: Any, value: Any) -> Any:
        return atomic_exch(array, index, value)

    def strong(array: Any, index: Any, value: Any) -> Any:
        return _replaced(array, index, value)

    def plain(array: Any, index: Any, value: Any) -> Any:
        found = array[index]
        if differs(found, value):
            array[index] = value
        return found

    if array.dtype in _EXCHANGED:
        return atomic
    return plain if isinstance(array.dtype, NarrowFloat) else strong


@intrinsic
def _replaced(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store a small integer or flag into an element if that holds another, and return what it held.

    Volatile accesses are strong (PTX ISA, "Memory Consistency Model"): threads that do this at once do not race.
    """
    kind = array.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args, arguments)
        model, bits = context.data_model_manager[kind], pointer.type.pointee
        width, place = bits.width, builder.ptrtoint(pointer, _ADDRESS)
        load = ir.InlineAsm(ir.FunctionType(_SMALL, [_ADDRESS]), f"ld.volatile.u{width} $0, [$1];", "=h,l", True)
        held, new = builder.call(load, [place]), model.as_data(builder, arguments[2])
        with builder.if_then(builder.icmp_unsigned("!=", held, new if width == 16 else builder.zext(new, _SMALL))):
            store_strongly(builder, pointer, new)
        return model.from_data(builder, held if width == 16 else builder.trunc(held, bits))

    return kind(array, index, kind), generate


def store_strongly(builder: Any, pointer: Any, value: Any) -> None:
    """Store bits or a float where other threads may be exchanging numbers of that type, or storing them so."""
    kind = pointer.type.pointee
    width = {ir.HalfType: 16, ir.FloatType: 32, ir.DoubleType: 64}.get(type(kind)) or kind.width
    bits = builder.bitcast(value, ir.IntType(width))
    if width >= 32:
        builder.atomic_rmw("xchg", builder.bitcast(pointer, bits.type.as_pointer()), bits, "monotonic")
        return
    place = builder.ptrtoint(pointer, _ADDRESS)  # of any state space
    kinds = [_ADDRESS, _SMALL]
    store = ir.InlineAsm(ir.FunctionType(ir.VoidType(), kinds), f"st.volatile.u{width} [$0], $1;", "l,h", True)
    builder.call(store, [place, bits if width == 16 else builder.zext(bits, _SMALL)])


def check_numbers(name: str, kind: Any) -> None:
    """Refuse an atomic operation on numbers that CUDA has none for."""
    if kind not in _EXCHANGED:
        found = str(kind.name).removeprefix("stored_")
        raise TypingError(f"atomic_{name} works on arrays of 32- and 64-bit numbers on CUDA, not on {found}")


def _check(name: str, typing_context: Any, array: Any, index: Any, *values: Any) -> None:
    if not isinstance(array, types.Array):
        raise TypingError(f"atomic_{name} works on arrays, not on {array}")
    check_numbers(name, array.dtype)
    if not array.mutable:
        raise TypingError(f"atomic_{name} writes to {array}, which is read-only; pass a writable array for it")
    parts = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if len(parts) != array.ndim or not all(isinstance(part, types.Integer) for part in parts):
        raise TypingError(f"atomic_{name} needs {array.ndim} integer(s) to index {array}, got {index}")
    for value in values:
        if typing_context.can_convert(value, array.dtype) is None:
            raise TypingError(f"atomic_{name} cannot store {value} into elements of {array.dtype}; convert it first")


def element_pointer(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """Return the address of an element, given an array and an index, and their types."""
    array_type, index_type = kinds[:2]
    view = context.make_array(array_type)(context, builder, arguments[0])
    if not array_type.ndim:
        return view.data
    parts, kinds = [arguments[1]], [index_type]
    if isinstance(index_type, types.BaseTuple):
        parts, kinds = cgutils.unpack_tuple(builder, arguments[1], len(index_type)), list(index_type)
    wide = [context.cast(builder, part, kind, types.intp) for kind, part in zip(kinds, parts, strict=True)]
    return cgutils.get_item_pointer(context, builder, array_type, view, wide, wraparound=True)


def _as_bits(builder: Any, pointer: Any, operation: Any) -> Any:
    """Return a function of a value that applies `operation` to the element's bits, and gives a value back."""
    kind = pointer.type.pointee
    bits = kind if isinstance(kind, ir.IntType) else ir.IntType(32 if isinstance(kind, ir.FloatType) else 64)
    place = builder.bitcast(pointer, bits.as_pointer())
    return lambda value: builder.bitcast(operation(place, builder.bitcast(value, bits)), kind)


def _store_while_equal(builder: Any, pointer: Any, expected: Any, new: Any) -> Any:
    """Store a float over an equal one; -0.0 equals 0.0, and NaN equals nothing. Return what was held.

    An ordinary load would race with what other threads do to the element.
    """
    kind = pointer.type.pointee
    bits = ir.IntType(32 if isinstance(kind, ir.FloatType) else 64)
    place = builder.bitcast(pointer, bits.as_pointer())
    held = cgutils.alloca_once(builder, bits)
    builder.store(builder.bitcast(expected, bits), held)
    with builder.if_then(builder.fcmp_unordered("uno", expected, expected)):
        builder.store(builder.atomic_rmw("or", place, bits(0), "monotonic"), held)
    test, swap, done = (builder.append_basic_block(name) for name in ("cas.test", "cas.swap", "cas.done"))
    builder.branch(test)
    builder.position_at_end(test)
    equal = builder.fcmp_ordered("==", builder.bitcast(builder.load(held), kind), expected)
    builder.cbranch(equal, swap, done)
    builder.position_at_end(swap)
    seen = builder.load(held)
    found = builder.cmpxchg(place, seen, builder.bitcast(new, bits), "monotonic", "monotonic")
    builder.store(builder.extract_value(found, 0), held)
    builder.cbranch(builder.extract_value(found, 1), done, test)
    builder.position_at_end(done)
    return builder.bitcast(builder.load(held), kind)


def _hinted(hint: str) -> Any:
    """Return what loads or stores with a hint for the cache, and without one what numba.cuda has no instruction for."""
    operation = getattr(cache_hints, f"{hint}_intrinsic")

    def load(array: Any, index: Any) -> Any:
        raise NotImplementedError

    def store(array: Any, index: Any, value: Any) -> Any:
        raise NotImplementedError

    def choose_load(array: Any, index: Any) -> Any:
        def hinted(array: Any, index: Any) -> Any:
            return operation(array, index)

        def plain(array: Any, index: Any) -> Any:
            return array[index]

        return hinted if _takes_hint(hint, array, index) else plain

    def choose_store(array: Any, index: Any, value: Any) -> Any:
        def hinted(array: Any, index: Any, value: Any) -> None:
            operation(array, index, value)

        def plain(array: Any, index: Any, value: Any) -> None:
            array[index] = value

        return hinted if _takes_hint(hint, array, index) else plain

    made, choose = (load, choose_load) if hint in LOADS else (store, choose_store)
    made.__name__ = f"cuda.{hint}"  # as messages call it
    overload(made)(choose)
    return made


def _takes_hint(hint: str, array: Any, index: Any) -> bool:
    if not isinstance(array, types.Array) or not isinstance(array.dtype, types.Number | types.Boolean):
        raise TypingError(f"cuda.{hint} takes an array of numbers, got {array}")
    parts = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if len(parts) != array.ndim or not all(isinstance(types.unliteral(part), types.Integer) for part in parts):
        raise TypingError(f"cuda.{hint} needs {array.ndim} integer(s) to index {array}, got {index}")
    alike = isinstance(index, types.Integer | types.UniTuple)
    return alike and isinstance(array.dtype, types.Integer | types.Float) and not isinstance(array.dtype, NarrowFloat)


HINTED = {f"_nb_{hint}": _hinted(hint) for hint in (*LOADS, *STORES)}
