"""The room of CuPy, by its interface: CuPy's arrays lie in CUDA memory, which this version does not use.

dtypes translate; everything that needs a device raises the one error that says what is missing and how to get it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbridge.array import Array
from numbridge.kernels.devices import Device, cuda_unavailable
from numbridge.kernels.readers import Reader
from numbridge.kernels.scalars import scalar_of

__all__ = [
    "NAME",
    "device_from_cupy",
    "device_to_cupy",
    "dtype_from_cupy",
    "dtype_to_cupy",
    "from_cupy",
    "gradient_of",
    "reader",
    "requires_grad_of",
    "set_gradient",
    "stream_from_cupy",
    "stream_to_cupy",
    "to_cupy",
    "unwrap_array",
    "wrap_object",
]

NAME = "cupy"


def reader(kind: type) -> Reader | None:
    """Return None: the array interfaces say all that there is to say here."""
    return None


def from_cupy(x: Any, dtype: Any = None) -> Array:
    """Raise: CuPy's arrays lie in CUDA memory, which this version does not use."""
    raise cuda_unavailable("from_cupy")


def to_cupy(array: Array) -> Any:
    """Raise: CuPy's arrays lie in CUDA memory, which this version does not use."""
    raise cuda_unavailable("to_cupy")


def dtype_from_cupy(dtype: Any) -> Any:
    """Return numbridge's dtype, which is the scalar type, of a CuPy dtype; CuPy's are NumPy's."""
    return scalar_of(dtype).numpy.type


def dtype_to_cupy(dtype: Any) -> np.dtype[Any]:
    """Return the CuPy dtype of a numbridge dtype; CuPy's are NumPy's."""
    return scalar_of(dtype).numpy


def device_from_cupy(device: Any) -> Device:
    """Return the device of a `cupy.cuda.Device`."""
    return Device("cuda", int(device.id))


def device_to_cupy(device: Device | str | None = None) -> Any:
    """Raise: CuPy has CUDA devices only, and this version does not use them."""
    raise cuda_unavailable("device_to_cupy")


def stream_from_cupy(stream: Any = None) -> Any:
    """Raise: streams need CUDA, which this version does not use."""
    raise cuda_unavailable("stream_from_cupy")


def stream_to_cupy(stream: Any = None) -> Any:
    """Raise: streams need CUDA, which this version does not use."""
    raise cuda_unavailable("stream_to_cupy")


def wrap_object(obj: Any) -> Array:
    """Return `from_cupy` of an array."""
    return from_cupy(obj)


def unwrap_array(array: Array) -> Any:
    """Return `to_cupy` of an array."""
    return to_cupy(array)


def requires_grad_of(obj: Any) -> bool:
    """Return False: CuPy knows no gradients."""
    return False


def gradient_of(obj: Any, create: bool) -> Array | None:
    """Return None: CuPy has no place for a gradient, so the Array keeps it."""
    return None


def set_gradient(obj: Any, gradient: Array | None) -> None:
    """Do nothing: CuPy has no place for a gradient, so the Array keeps it."""
