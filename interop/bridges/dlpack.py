"""DLPack by hand: arrays from producers and from capsules of both kinds, and capsules from arrays.

Frameworks have better ways in, in their own rooms; this is for whatever speaks DLPack and nothing else.
"""

from __future__ import annotations

from typing import Any

from numbridge.arrays.array import Array
from numbridge.arrays.capsules import legacy_capsule, prepare_for_consumers
from numbridge.arrays.contents import same_dtype
from numbridge.kernels import readers
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.cuda_driver import cuda_unavailable
from numbridge.kernels.errors import DeviceError, NumbridgeTypeError
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.storage.memory import adopt, native, row_of, wrap

__all__ = ["from_dlpack", "to_dlpack"]

_HOST = (dl.CPU, dl.CUDA_HOST)
_CUDA = (dl.CUDA, dl.CUDA_MANAGED)


def from_dlpack(source: Any, dtype: Any = None) -> Array:
    """Return an Array that shares the memory of a DLPack producer or capsule.

    Parameters
    ----------
    source : object with ``__dlpack__``, or capsule
        A capsule, legacy or versioned, is consumed: it can be used once. An object's CUDA memory is made ready for the
        current stream; a capsule's is taken to be ready for it.
    dtype : dtype_like, optional
        Must be that of the data; sharing does not convert. Integers may be those of the other sign, and booleans integers of 8
        bits.

    Raises
    ------
    BufferAccessError
        If the capsule was consumed before, or the producer refuses.
    ConversionError
        If the data type has no counterpart, or has several lanes, or is not `dtype`.
    DeviceError
        If the memory is neither the host's nor CUDA's, or CUDA cannot be used here.
    NumbridgeTypeError
        If `source` is neither.

    Examples
    --------
    >>> import numpy as np, numbridge as nb
    >>> x = np.arange(3.0)
    >>> nb.from_dlpack(x).ptr == x.ctypes.data
    True
    """
    kind = type(source)
    if kind.__name__ == "PyCapsule":
        found = _from_capsule(source)
    elif hasattr(kind, "__dlpack__"):
        found = _reachable(adopt(source))
    else:
        raise NumbridgeTypeError(
            f"source is of type {kind.__module__}.{kind.__qualname__}, which has no __dlpack__ and is no DLPack "
            "capsule; nb.asarray takes other arrays"
        )
    return found if dtype is None else same_dtype(found, dtype)


def _from_capsule(capsule: Any) -> Array:
    native()
    found = _reachable(wrap(readers.record_from_capsule(capsule)))
    row_of(found)  # raises for a data type that numbridge does not have
    return found


def _reachable(array: Array) -> Array:
    kind, ordinal = array.__dlpack_device__()
    if kind in _HOST:
        return array
    if kind in _CUDA:
        if not cuda_driver.driver_count():
            raise cuda_unavailable(f"from_dlpack of memory on cuda:{ordinal}")
        return array
    raise DeviceError(
        f"the DLPack tensor lies on device type {kind}, and numbridge reads memory of the host and of CUDA; copy it there "
        "first"
    )


def to_dlpack(array: Any) -> Any:
    """Return a legacy DLPack capsule (``dltensor``) that shares an array's memory; it can be consumed once.

    For a versioned capsule use ``array.__dlpack__(max_version=(1, 0))``.

    Raises
    ------
    BufferAccessError
        If the array is read-only, which a legacy capsule cannot say, or if a stride is negative.
    ConversionError
        If it holds records, which DLPack does not have.
    """
    found = array if isinstance(array, Array) else adopt(array)
    prepare_for_consumers(found)
    return legacy_capsule(found)
