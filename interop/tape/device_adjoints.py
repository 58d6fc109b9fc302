"""Adjoints in CUDA memory: made, and added up by a kernel, which knows every dtype, in the order of the device's streams.

What `adjoint_memory` does with NumPy in the CPU's memory. Nothing here waits for a device.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from numbridge.kernels import watching
from numbridge.kernels.devices import Device
from numbridge.kernels.element_types.element_arguments import element_flags, full_shape, full_strides
from numbridge.kernels.kernel import Kernel, kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import forall
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import Description
from numbridge.kernels.scalars import COMPLEX
from numbridge.storage.memory import allocate, native, row_of, wrap

if TYPE_CHECKING:
    from numbridge.arrays.array import Array
    from numbridge.kernels.scalars import Scalar

__all__ = ["add", "like", "zeros"]

_RANK = 4


# Arrays of fewer axes have axes of one element in front.
def _added(target, more):  # type: ignore[no-untyped-def]  # any array is meant
    i, j, k, n = tid()
    target[i, j, k, n] = target[i, j, k, n] + more[i, j, k, n]


def _added_real(target, more):  # type: ignore[no-untyped-def]
    i, j, k, n = tid()
    target[i, j, k, n] = target[i, j, k, n] + more[i, j, k, n].real


@functools.cache
def _adder(*, of_real: bool) -> Kernel:
    return kernel(_added_real if of_real else _added)


def zeros(size: int, row: Scalar, ordinal: int) -> Array:
    """Return `size` zeros in the memory of a device."""
    return allocate((size,), row, Device("cuda", ordinal), zeroed=True)


def like(block: Array, offset: int, found: Description) -> Array:
    """Return part of a block, `offset` bytes from its beginning, with the shape, strides and elements of an array."""
    row = row_of(block)
    steps = tuple(stride // row.itemsize for stride in full_strides(found))
    place = (block.ptr + offset, row.tag, dl.CUDA, found.device_id)
    return wrap(native().new_record(block._record, *place, full_shape(found), steps, element_flags(found.element)))


def add(target: Array, more: Array) -> None:
    """Add one array to another of its shape and dtype, or the real parts to an array of real numbers."""
    of_real = row_of(more).code == COMPLEX and row_of(target).code != COMPLEX
    first, second = (array[(None,) * (_RANK - array.ndim)] for array in (target, more))
    with watching.unrecorded():
        forall(_adder(of_real=of_real), first.shape)(first, second)
