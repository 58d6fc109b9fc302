"""Copies of arrays that a range of threads only adds to, on the CPU: made of zeros, and added to the array atomically at the end.

Everything here runs without the GIL and without Numba's runtime. Importing this module imports Numba, so only code that is
about to compile does.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from numbridge.kernels.compilation.built_calls import Body, built
from numbridge.kernels.cpu_backend.cpu_atomics import atomic_add
from numbridge.kernels.cpu_backend.cpu_intrinsics import array_at
from numbridge.kernels.element_types.numba_element_memory import numbers_of
from numbridge.kernels.element_types.numba_elements import NumbaElement
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.native.memory import external, indirect, load_i64, symbol

__all__ = ["NAMES"]

_I64 = ir.IntType(64)
# Copies must cost less than they save: adding an element to the array takes about as long as an atomic addition. Those of all
# workers together shall not take more memory than is worth the time; small ones each may have. With many workers atomic additions
# are shared out to as many, too.
_SMALL_BYTES, _MOST_BYTES = 1 << 23, 1 << 28
_ADDITIONS_PER_NUMBER = 2
_ALIGNMENT = 64

_allocate = external("calloc", types.int64, types.int64, types.int64)
_allocate_aligned = external("aligned_alloc", types.int64, types.int64, types.int64)
_free = external("free", types.void, types.int64)
_thread_count = indirect(types.int32, 0)


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


def _memory(room: Any, extent: Any, additions: Any) -> Any:
    """Return memory of zeros for copies of so many bytes and numbers, or 0 if so many additions are not worth it."""
    raise NotImplementedError


@built(_memory)
def _memory_body(room: Any, extent: Any, additions: Any) -> Body:
    text = """def implementation(room, extent, additions):
        found = 0
        if (extent != 0) & (room <= most) & (extent * additions_per_number <= additions):
            every = room
            if room > small:
                counter = load(state(), thread_count_at)
                if counter != 0:
                    every = room * thread_count(counter)
            if every <= most:
                found = allocate(room, 1)
        return found
    """
    names = {"small": _SMALL_BYTES, "most": _MOST_BYTES, "additions_per_number": _ADDITIONS_PER_NUMBER}
    names |= {"state": symbol("numbridge_state"), "load": load_i64, "thread_count_at": nb.STATE_THREAD_COUNT}
    return Body(text, {**names, "thread_count": _thread_count, "allocate": _allocate})


def _allocate_lines(size: Any) -> Any:
    """Return so many bytes of memory that begin at a cache line, or 0 if there are not so many."""
    raise NotImplementedError


@built(_allocate_lines)
def _allocate_lines_body(size: Any) -> Body:
    text = "def implementation(size): return allocate(alignment, size)"
    return Body(text, {"allocate": _allocate_aligned, "alignment": _ALIGNMENT})


def _release(memory: Any) -> None:
    """Give back what `_memory` or `_allocate_lines` returned."""
    raise NotImplementedError


@built(_release)
def _release_body(memory: Any) -> Body:
    return Body("def implementation(memory): free(memory)", {"free": _free})


@intrinsic
def _copy_at(typing_context: Any, array: Any, address: Any) -> Any:
    """Return an array like another, in C order, at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        memory = builder.inttoptr(arguments[1], ir.IntType(8).as_pointer())
        return array_at(context, builder, array, memory, cgutils.unpack_tuple(builder, view.shape, array.ndim))

    return array(array, types.int64), generate


@intrinsic
def _in_order(typing_context: Any, array: Any) -> Any:
    """Return an array in C order as one of a single dimension."""
    flat = array.copy(ndim=1)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        return array_at(context, builder, flat, view.data, [view.nitems])

    return flat(array), generate


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


def _add_copy(array: Any, copy: Any) -> None:
    """Add to each element of an array what its copy holds, where that is not zero: there nothing may have been added."""
    raise NotImplementedError


@built(_add_copy)
def _add_copy_body(array: Any, copy: Any) -> Body:
    def one(*index: str) -> str:
        at = ", ".join(index)
        return f"if added[{at or ()}] != 0: add(numbers, ({''.join(f'{k}, ' for k in index)}), added[{at or ()}])"

    kind = array.dtype.dtype if isinstance(array.dtype, NumbaElement) else array.dtype
    if array.layout != "C":
        index = [f"k{axis}" for axis in range(array.ndim + (kind is not array.dtype))]
        lines = ["numbers = numbers_of(array)", "added = numbers_of(copy)"]
        lines += [f"{' ' * axis}for {k} in range(numbers.shape[{axis}]):" for axis, k in enumerate(index)]
        lines.append(" " * len(index) + one(*index))
    else:
        lines = ["numbers = in_order(numbers_of(array))", "added = in_order(numbers_of(copy))"]
        lines.append("extent = extent_of(numbers)")
        if kind == types.float32:
            # Two that lie side by side are exchanged in one operation.
            lines += ["first = before_pairs(numbers) if extent > 0 else 0", "last = first + (extent - first) // 2 * 2"]
            lines += ["for pair in range(first, last, 2):", " add_pair(numbers, added, pair)"]
            lines += ["for before in range(first):", f" {one('before')}"]
            lines += ["for after in range(last, extent):", f" {one('after')}"]
        else:
            lines += ["for k in range(extent):", f" {one('k')}"]
    names = {"numbers_of": numbers_of, "in_order": _in_order, "extent_of": _extent_of, "add": atomic_add}
    names |= {"before_pairs": _before_pairs, "add_pair": _add_pair}
    return Body("\n ".join(["def implementation(array, copy):", *lines]), names)


NAMES: dict[str, Any] = {
    "_nb_extent_of": _extent_of,
    "_nb_room_of": _room_of,
    "_nb_memory": _memory,
    "_nb_copy_at": _copy_at,
    "_nb_add_copy": _add_copy,
    "_nb_free": _release,
    "_nb_allocate": _allocate_lines,
}
