"""Numba intrinsics of kernel bodies on the CPU: atomics, per-thread arrays, and what the optimiser may assume.

They use no heap, no Python and no exceptions, so they run without the GIL. Atomics are relaxed (LLVM ``monotonic``), as on
CUDA, and return the old value; negative indices wrap as in NumPy. Importing this module imports Numba.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

__all__ = [
    "atomic_add",
    "atomic_cas",
    "atomic_exch",
    "atomic_max",
    "atomic_min",
    "atomic_sub",
    "local_array",
    "nonnegative",
]

_I64 = ir.IntType(64)
_MAX_LOCAL_BYTES = 1 << 16


@intrinsic
def nonnegative(typing_context: Any, index: Any) -> Any:
    """Return a thread index, which is never negative: indexing with it needs no wrap-around."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(1)])
        assume = cgutils.get_or_insert_function(builder.module, kind, "llvm.assume")
        builder.call(assume, [builder.icmp_signed(">=", arguments[0], _I64(0))])
        return arguments[0]

    return types.intp(types.intp), generate


def _check(name: str, array: Any, index: Any) -> None:
    if not isinstance(array, types.Array):
        raise TypingError(f"atomic_{name} needs an array, got {array}")
    if not array.mutable:
        raise TypingError(f"atomic_{name} writes to an array that is read-only here")
    if not isinstance(array.dtype, types.Integer | types.Float) or array.dtype == types.float16:
        raise TypingError(f"atomic_{name} works on integers, float32 and float64, not on {array.dtype}")
    given = len(index) if isinstance(index, types.BaseTuple) else 1
    parts = index if isinstance(index, types.BaseTuple) else (index,)
    if given != array.ndim or not all(isinstance(part, types.Integer) for part in parts):
        raise TypingError(f"atomic_{name} needs {array.ndim} integer indices for an array of that rank, got {index}")


def _element(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    if isinstance(index_type, types.BaseTuple):
        pairs = zip(cgutils.unpack_tuple(builder, index, len(index_type)), index_type, strict=True)
    else:
        pairs = zip((index,), (index_type,), strict=True)
    indices = [context.cast(builder, value, kind, types.intp) for value, kind in pairs]
    view = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, view, indices, wraparound=True)


def _operation(name: str, dtype: Any) -> str:
    if isinstance(dtype, types.Float):
        return {"exch": "xchg"}.get(name, f"f{name}")
    signed = {"exch": "xchg"}.get(name, name)
    return f"u{name}" if name in ("min", "max") and not dtype.signed else signed


def _read_modify_write(name: str) -> Any:
    def atomic(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
        _check(name, array, index)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array_type, index_type, _ = signature.args
            pointer = _element(context, builder, array_type, arguments[0], index_type, arguments[1])
            return builder.atomic_rmw(_operation(name, array_type.dtype), pointer, arguments[2], "monotonic")

        return array.dtype(array, index, array.dtype), generate

    return intrinsic(atomic)


atomic_add, atomic_sub = _read_modify_write("add"), _read_modify_write("sub")
atomic_min, atomic_max = _read_modify_write("min"), _read_modify_write("max")
atomic_exch = _read_modify_write("exch")


@intrinsic
def atomic_cas(typing_context: Any, array: Any, index: Any, compare: Any, value: Any) -> Any:
    """Store `value` where the element's bits are those of `compare`; return the old value."""
    _check("cas", array, index)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, index_type = signature.args[:2]
        pointer = _element(context, builder, array_type, arguments[0], index_type, arguments[1])
        kind = pointer.type.pointee
        bits = ir.IntType(array_type.dtype.bitwidth)
        old, new = (builder.bitcast(part, bits) for part in arguments[2:4])
        place = builder.bitcast(pointer, bits.as_pointer())
        result = builder.cmpxchg(place, old, new, "monotonic", "monotonic")
        return builder.bitcast(builder.extract_value(result, 0), kind)

    return array.dtype(array, index, array.dtype, array.dtype), generate


@intrinsic(prefer_literal=True)
def local_array(typing_context: Any, shape: Any, dtype: Any) -> Any:
    """Return an uninitialised array on this thread's stack; it must not leave the function.

    `shape` is a string literal such as ``"3,4"``: the generated source knows it, and the stack needs it at compile time.
    """
    if not isinstance(shape, types.StringLiteral):
        return None
    extents = [int(part) for part in shape.literal_value.split(",") if part]
    element = getattr(dtype, "dtype", None) or getattr(dtype, "instance_type", None)
    if element is None:
        raise TypingError(f"cuda.local.array needs a dtype, got {dtype}")
    array_type = types.Array(element, len(extents), "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data_type = context.get_data_type(element)
        itemsize, count = context.get_abi_sizeof(data_type), reduce(operator.mul, extents, 1)
        if itemsize * count > _MAX_LOCAL_BYTES:
            raise TypingError(f"a local array of {itemsize * count} bytes is too large for a thread's stack")
        memory = cgutils.alloca_once(builder, data_type, size=max(count, 1))
        strides = [itemsize * reduce(operator.mul, extents[k + 1 :], 1) for k in range(len(extents))]
        array = context.make_array(array_type)(context, builder)
        context.populate_array(
            array,
            data=memory,
            shape=[_I64(extent) for extent in extents],
            strides=[_I64(stride) for stride in strides],
            itemsize=_I64(itemsize),
            meminfo=None,
            parent=None,
        )
        return array._getvalue()

    return array_type(shape, dtype), generate
