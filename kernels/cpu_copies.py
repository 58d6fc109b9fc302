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

__all__ = ["NAMES"]

_I64 = ir.IntType(64)
# Copies must stay in a core's cache, and cost less than they save: adding an element to the array takes about as long as
# an atomic addition.
_MOST_BYTES = 1 << 18
_ADDITIONS_PER_ELEMENT = 4
_ALIGNMENT = 64

_allocate = external("calloc", types.int64, types.int64, types.int64)
_free = external("free", types.void, types.int64)


@intrinsic
def _extent_of(typing_context: Any, array: Any) -> Any:
    """Return how many elements an array has."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(array)(context, builder, arguments[0]).nitems

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
    """Return memory of zeros for copies of so many bytes and elements, or 0 if so many additions are not worth it."""
    if extent == 0 or room > _MOST_BYTES or extent * _ADDITIONS_PER_ELEMENT > additions:
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


@njit(_nrt=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _add_copy(array: Any, copy: Any) -> Any:
    """Add to each element of an array what its copy holds, where that is not zero: there nothing may have been added."""
    for index in np.ndindex(array.shape):
        if copy[index] != 0:
            atomic_add(array, index, copy[index])


NAMES: dict[str, Any] = {
    "_nb_extent_of": _extent_of,
    "_nb_room_of": _room_of,
    "_nb_memory": _memory,
    "_nb_copy_at": _copy_at,
    "_nb_add_copy": _add_copy,
    "_nb_free": _release,
}
