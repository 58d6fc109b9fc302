"""Copies of arrays that a range of threads only adds to, on the CPU: made of zeros, and added to the array atomically at the end.

Everything here runs without the GIL and without Numba's runtime. Importing this module imports Numba, so only code that is
about to compile does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from numbridge.kernels.cpu_intrinsics import array_at, atomic_add
from numbridge.kernels.native.memory import external, native
from numbridge.kernels.numba_elements import NumbaElement, numbers_of

__all__ = ["NAMES"]

_I64 = ir.IntType(64)
# Copies must cost less than they save: adding an element to the array takes about as long as an atomic addition. Beyond the
# caches, and by as many workers as there may be, they would take more memory than time is worth.
_MOST_BYTES = 1 << 23
_ADDITIONS_PER_NUMBER = 2
_ALIGNMENT = 64

_allocate = external("calloc", types.int64, types.int64, types.int64)
_free = external("free", types.void, types.int64)


@intrinsic
def _extent_of(typing_context: Any, array: Any) -> Any:
    """Return how many numbers an array has."""
    count = array.dtype.element.count if isinstance(array.dtype, NumbaElement) else 1

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.mul(context.make_array(array)(context, builder, arguments[0]).nitems, _I64(count))

    return types.int64(array), generate


@intrinsic
def _room_of(typing_context: Any, array: Any) -> Any:
    """Return how many bytes a copy of an array takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        size = builder.mul(view.nitems, view.itemsize)
        return builder.and_(builder.add(size, _I64(_ALIGNMENT - 1)), _I64(-_ALIGNMENT))

    return types.int64(array), generate


@native
def _memory(room: Any, extent: Any, additions: Any) -> Any:
    """Return memory of zeros for copies of so many bytes and numbers, or 0 if so many additions are not worth it."""
    if extent == 0 or room > _MOST_BYTES or extent * _ADDITIONS_PER_NUMBER > additions:
        return 0
    return _allocate(room, 1)


@native
def _release(memory: Any) -> None:
    _free(memory)


@intrinsic
def _copy_at(typing_context: Any, array: Any, address: Any) -> Any:
    """Return an array like another, in C order, at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        memory = builder.inttoptr(arguments[1], ir.IntType(8).as_pointer())
        return array_at(context, builder, array, memory, cgutils.unpack_tuple(builder, view.shape, array.ndim))

    return array(array, types.int64), generate


@intrinsic
def _has_pairs(typing_context: Any, array: Any) -> Any:
    """Return whether two neighbours of an array are exchanged in one operation: where float32 numbers lie side by side."""
    fits = array.layout == "C" and array.dtype == types.float32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.boolean, fits)

    return types.boolean(array), generate


@intrinsic
def _before_pairs(typing_context: Any, array: Any) -> Any:
    """Return how many float32 numbers, none or one, stand before those that lie in pairs at multiples of their size."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.ptrtoint(context.make_array(array)(context, builder, arguments[0]).data, _I64)
        return builder.and_(builder.lshr(address, _I64(2)), _I64(1))

    return types.int64(array), generate


@intrinsic
def _add_pair(typing_context: Any, array: Any, copy: Any, first: Any) -> Any:
    """Add two neighbours to two neighbours of float32, each unless it is zero, in one atomic operation."""
    pair = ir.VectorType(ir.FloatType(), 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if array.dtype != types.float32:
            return context.get_dummy_value()  # never run: see `_has_pairs`
        ours, theirs = (
            builder.gep(context.make_array(kind)(context, builder, value).data, [arguments[2]])
            for kind, value in ((array, arguments[0]), (copy, arguments[1]))
        )
        new = builder.load(builder.bitcast(theirs, pair.as_pointer()), align=4)
        is_added = builder.fcmp_unordered("!=", new, ir.Constant(pair, None))
        with builder.if_then(builder.icmp_signed("!=", builder.bitcast(is_added, ir.IntType(2)), ir.IntType(2)(0))):
            _exchange(builder, builder.bitcast(ours, _I64.as_pointer()), new, is_added)
        return context.get_dummy_value()

    return types.void(array, copy, types.int64), generate


def _exchange(builder: Any, place: Any, new: Any, is_added: Any) -> None:
    """Add to the pair of numbers at a place, and try again if another thread was quicker."""
    first, before = builder.load_atomic(place, "monotonic", 8), builder.block
    attempt, done = builder.append_basic_block("pair.attempt"), builder.append_basic_block("pair.done")
    builder.branch(attempt)
    builder.position_at_end(attempt)
    bits = builder.phi(_I64)
    bits.add_incoming(first, before)
    held = builder.bitcast(bits, new.type)
    wanted = builder.bitcast(builder.select(is_added, builder.fadd(held, new), held), _I64)
    exchanged = builder.cmpxchg(place, bits, wanted, "monotonic", "monotonic")
    bits.add_incoming(builder.extract_value(exchanged, 0), attempt)
    builder.cbranch(builder.extract_value(exchanged, 1), done, attempt)
    builder.position_at_end(done)


@njit(_nrt=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _add_copy(array: Any, copy: Any) -> Any:
    """Add to each element of an array what its copy holds, where that is not zero: there nothing may have been added."""
    numbers, added = numbers_of(array), numbers_of(copy)
    first, end = 0, 0
    if _has_pairs(numbers):
        extent, first = _extent_of(numbers), _before_pairs(numbers)
        end = first + max(extent - first, 0) // 2 * 2
        for k in range(first, end, 2):
            _add_pair(numbers, added, k)
        if end == extent and first == 0:
            return
    for at, index in enumerate(np.ndindex(numbers.shape)):
        if not first <= at < end and added[index] != 0:
            atomic_add(numbers, index, added[index])


NAMES: dict[str, Any] = {
    "_nb_extent_of": _extent_of,
    "_nb_room_of": _room_of,
    "_nb_memory": _memory,
    "_nb_copy_at": _copy_at,
    "_nb_add_copy": _add_copy,
    "_nb_free": _release,
}
