"""What kernel bodies call on the CPU beyond Numba itself: arrays on the stack, promises to the optimiser, and the ends of calls.

Everything here runs without the GIL: no Python, no heap, no Numba runtime, no exceptions. What does not fit is refused
while Numba infers types. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core import ir as numba_ir
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic

from numbridge.kernels.arithmetic import changed_bits
from numbridge.kernels.arithmetic.narrow_floats import narrow_float
from numbridge.kernels.element_types.numba_records import ReadOnlyRecord
from numbridge.kernels.scalars import scalar_of

__all__ = [
    "NAMES",
    "array_at",
    "assume",
    "constant_extents",
    "differs",
    "end_of",
    "ended",
    "greatest",
    "keep_exception",
    "least",
    "local_array",
    "memory_dtype",
    "nonnegative",
    "on_stack",
    "readonly_violations",
]

MAX_LOCAL_BYTES = 1 << 16  # of one array: the stacks of worker threads are small, and overflowing one kills the process

differs = intrinsic(changed_bits.differs)


@intrinsic
def nonnegative(typing_context: Any, index: Any) -> Any:
    """Return an index and promise the optimiser that it is not negative: indexing with it then needs no wrap-around."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        _assume(builder, builder.icmp_signed(">=", value, value.type(0)))
        return value

    return types.intp(types.intp), generate


@intrinsic
def assume(typing_context: Any, condition: Any) -> Any:
    """Promise the optimiser that a condition holds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _assume(builder, context.is_true(builder, types.boolean, arguments[0]))
        return context.get_dummy_value()

    return types.void(types.boolean), generate


def _assume(builder: Any, condition: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(1)])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.assume"), [condition])


def keep_exception(builder: Any, found: Any) -> None:
    """Build what lets `kernels.raised` tell of an exception, given the pointer to Numba's description of it."""
    word, name = ir.IntType(64), "numbridge_raised"
    known = builder.module.globals.get(name)
    place = known if known is not None else ir.GlobalVariable(builder.module, word, name)
    builder.store_atomic(builder.ptrtoint(found, word), place, "monotonic", 8)


def end_of(builder: Any, status: Any) -> Any:
    """Build what keeps the exception of a call, and return 1 if there was one, else 0."""
    with builder.if_then(status.is_user_exc, likely=False):
        keep_exception(builder, status.excinfoptr)
    return builder.zext(status.is_error, ir.IntType(64))


@intrinsic
def ended(typing_context: Any, function: Any, block: Any, geometry: Any, first: Any, last: Any) -> Any:
    """Run a function of four integers that returns nothing; return 1 if an exception ends it, else 0."""
    kinds = (types.int64,) * 4
    signature = function.get_call_type(typing_context, kinds, {})

    def generate(context: Any, builder: Any, own: Any, arguments: Any) -> Any:
        compiled = function.dispatcher.overloads[kinds]
        context.active_code_library.add_linking_library(compiled.library)
        status, _ = context.call_internal_no_propagate(builder, compiled.fndesc, signature, arguments[1:])
        return end_of(builder, status)

    return types.int64(function, *kinds), generate


@intrinsic
def least(typing_context: Any, first: Any, *others: Any) -> Any:
    """Return the least of some integers."""
    return _extreme("<", others)


@intrinsic
def greatest(typing_context: Any, first: Any, *others: Any) -> Any:
    """Return the greatest of some integers."""
    return _extreme(">", others)


def _extreme(comparison: str, others: Sequence[Any]) -> Any:
    count = len(others) + 1

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = [arguments[0], *cgutils.unpack_tuple(builder, arguments[1], count - 1)]
        name = f"numbridge.{'least' if comparison == '<' else 'greatest'}{count}"
        known = builder.module.globals.get(name)
        return builder.call(
            _define_extreme(builder.module, name, comparison, count) if known is None else known, values
        )

    return types.int64(types.int64, types.StarArgTuple.from_types([types.int64] * (count - 1))), generate


def _define_extreme(module: Any, name: str, comparison: str, count: int) -> Any:
    """Return a function of its own, which LLVM inlines late.

    It would see early that the end of a loop is at most a bound, and forget what is promised of each thread, before it comes to
    the body, where it takes some promise to see it again.
    """
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(word, [word] * count), name)
    function.linkage = "internal"
    function.attributes.add("alwaysinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    found = function.args[0]
    for value in function.args[1:]:
        found = builder.select(builder.icmp_signed(comparison, value, found), value, found)
    builder.ret(found)
    return function


@intrinsic(prefer_literal=True)
def local_array(typing_context: Any, shape: Any, dtype: Any) -> Any:
    """Return a C-contiguous array on this thread's stack, with whatever the memory holds.

    `shape` is a constant, an integer or a tuple of integers; `dtype` is a dtype such as ``np.float32``. The memory ends
    with the function that calls this, so the array must not leave it: Numba refuses to return the array itself, and
    nothing refuses to return it in a tuple. A place in the source has one piece of memory per call of its function: in
    a loop, every trip gets the same, which keeps the stack from growing.
    """
    # The dtype first: without its literal value, Numba asks again without those of the shape, which then is none.
    element = memory_dtype(dtype)
    extents = constant_extents(shape)
    target = cpu_target.target_context
    itemsize, count = target.get_abi_sizeof(target.get_data_type(element)), math.prod(extents)
    if itemsize * count > MAX_LOCAL_BYTES:
        raise TypingError(
            f"a local array of shape {extents} and dtype {element} takes {itemsize * count} bytes of a thread's stack; "
            f"at most {MAX_LOCAL_BYTES} are possible, so pass an array for larger ones"
        )
    array_type = types.Array(element, len(extents), "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return on_stack(context, builder, array_type, extents)

    return array_type(shape, dtype), generate


def on_stack(context: Any, builder: Any, kind: Any, extents: Sequence[int]) -> Any:
    """Return an array of these extents on this thread's stack."""
    data_type = context.get_data_type(kind.dtype)
    # In the entry block it is part of the frame; elsewhere every trip of a loop would take more of the stack.
    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(data_type, max(math.prod(extents), 1)))
    return array_at(context, builder, kind, memory, [context.get_constant(types.intp, extent) for extent in extents])


def array_at(context: Any, builder: Any, kind: Any, memory: Any, extents: Sequence[Any]) -> Any:
    """Return an array in C order over memory that a pointer points to."""
    data_type = context.get_data_type(kind.dtype)
    itemsize = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
    strides = [itemsize]
    for extent in reversed(extents[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    array = context.make_array(kind)(context, builder)
    context.populate_array(
        array,
        data=builder.bitcast(memory, data_type.as_pointer()),
        shape=extents,
        strides=strides[: len(extents)],
        itemsize=itemsize,
        meminfo=None,
    )
    return array._getvalue()


def constant_extents(shape: Any) -> tuple[int, ...]:
    """Return the numbers that a literal shape type stands for."""
    parts = tuple(shape) if isinstance(shape, types.BaseTuple) else (shape,)
    if not all(isinstance(part, types.IntegerLiteral) and part.literal_value >= 0 for part in parts):
        raise TypingError(
            "the shape of a local or shared array must be a constant, an integer or a tuple of integers that are not negative; "
            f"got {shape}: write the numbers out, or take them from a global"
        )
    return tuple(part.literal_value for part in parts)


def memory_dtype(dtype: Any) -> Any:
    """Return what an array that a kernel makes has as its elements."""
    try:
        element = parse_dtype(dtype)
    except TypingError:  # a text that names none
        element = None
    if element is None:
        got = repr(dtype.literal_value) if isinstance(dtype, types.Literal) else dtype
        raise TypingError(f"a local or shared array needs a dtype such as numpy.float32, got {got}")
    return narrow_float(scalar_of(np.float16)) if element == types.float16 else element


def readonly_violations(overload: Any) -> list[str]:
    """Return where a compiled function may write to a read-only array although Numba typed it without complaint.

    Numba refuses stores through read-only arrays and their views, with two exceptions that lose the flag:
    ``array.flat[k] = value``, and ``numpy.nditer``, whose elements are writable 0-d arrays. It knows no read-only records.

    Parameters
    ----------
    overload : CompileResult
        One of the values of a dispatcher's `overloads`; callees have overloads of their own.

    Returns
    -------
    list of str
        One message per place, with the line; empty if there is none.
    """
    annotation = overload.type_annotation
    statements = [statement for block in annotation.blocks.values() for statement in block.body]
    return [
        f"line {statement.loc.line}: {message}"
        for statement in statements
        if (message := _violation(statement, annotation.typemap)) is not None
    ]


def _violation(statement: Any, kinds: Any) -> str | None:
    target = getattr(statement, "target", None)
    kind = kinds.get(target.name) if isinstance(target, numba_ir.Var) else None
    stores = isinstance(statement, numba_ir.SetItem | numba_ir.StaticSetItem)
    if stores and isinstance(kind, types.NumpyFlatType) and not kind.array_type.mutable:
        return f"a store through .flat into {kind.array_type}, which is read-only; pass a writable array for it"
    if isinstance(statement, numba_ir.SetAttr | numba_ir.SetItem | numba_ir.StaticSetItem):
        record = kinds.get(statement.target.name)
        if isinstance(record, ReadOnlyRecord):
            return "a store into a record of an array that is read-only; store into the parameter, as in p[i].x = value"
    called = isinstance(statement, numba_ir.Assign) and isinstance(statement.value, numba_ir.Expr)
    if called and statement.value.op == "call" and isinstance(kind, types.NumpyNdIterType):
        locked = [array for array in kind.arrays if isinstance(array, types.Array) and not array.mutable]
        if locked:
            return f"numpy.nditer hands out writable elements of {locked[0]}, which is read-only; use numpy.ndenumerate"
    return None


# What generated source calls.
NAMES: dict[str, Any] = {
    "_nb_assume": assume,
    "_nb_differs": differs,
    "_nb_ended": ended,
    "_nb_local_array": local_array,
    "_nb_max": greatest,
    "_nb_min": least,
    "_nb_nonnegative": nonnegative,
}
