"""Array: numbridge's own view of memory, which every protocol can read and every framework can share.

An Array is three slots around a native record (see `numbridge.kernels.native.records`), so that compiled code makes and
reads one without Python. This module may not import a framework: what it must ask one, it asks through `bridge`. Nothing
native is loaded before the first array exists.
"""

from __future__ import annotations

import copyreg
import ctypes
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from numbridge import bridge, strided
from numbridge.kernels import readers, scalars
from numbridge.kernels.annotations import ArrayAnnotation
from numbridge.kernels.devices import CPU, Device, get_device
from numbridge.kernels.errors import (
    BufferAccessError,
    ConversionError,
    DeviceError,
    NumbridgeTypeError,
    NumbridgeValueError,
)
from numbridge.kernels.machine import Machine, machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import object_layout as layout
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.scalars import Scalar, scalar_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Array", "adopt", "allocate", "array", "existing_gradient", "native", "scalar_row", "wrap"]

_starting = threading.RLock()
_creating_gradient = threading.RLock()
_DTYPES = {row.tag: row.numpy for row in scalars.ALL}
_DEVICE_KINDS = {dl.CPU: "cpu", dl.CUDA: "cuda", dl.CUDA_MANAGED: "cuda"}
_PYTHON_NUMBERS = (bool, int, float, complex)
# What Python's own numbers become where no dtype is asked for: as in annotations, nothing is silently 64 bits wide.
_NARROW = {"float64": "float32", "int64": "int32", "complex128": "complex64"}


@functools.cache
def native() -> Machine:
    """Return the compiled functions, which by then know the class `Array`.

    Everything in `numbridge` above the kernels uses this, not `machine`.
    """
    # The cache alone would let two threads that come first both start.
    with _starting:
        return _start()


@functools.cache
def _start() -> Machine:
    compiled = machine()
    sample = wrap(compiled.allocate((), scalars.tag_of("uint8"), 1, True))
    compiled.set_array_type(Array, _slot(sample, "_record"), _slot(sample, "_source"), _slot(sample, "_extra"))
    readers.reader_of(sample)
    readers.reader_of(sample._record)
    return compiled


def _slot(sample: Array, name: str) -> int:
    """Return the offset in bytes of a slot in an instance, read from its descriptor and checked on a live one."""
    definition = ctypes.c_void_p.from_address(id(Array.__dict__[name]) + layout.MEMBER_DESCR_DEF).value or 0
    offset = ctypes.c_int64.from_address(definition + layout.MEMBER_OFFSET).value
    if ctypes.c_void_p.from_address(id(sample) + offset).value != id(getattr(sample, name)):
        raise NumbridgeTypeError("this Python lays its objects out in a way that numbridge does not know")
    return offset


def _resolve(kind: type) -> readers.Reader | None:
    if kind is not Array:
        return None
    return readers.Reader(nb.RECORD, _slot(native_sample(), "_record"), "numbridge record")


def native_sample() -> Array:
    """Return some array; its memory is one byte of its own."""
    return wrap(machine().allocate((), scalars.tag_of("uint8"), 1, True))
