"""The room of NumPy: arrays both ways on the same memory, dtypes and devices.

NumPy is what numbridge itself is built on, so its arrays are read from their own structure, in compiled code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.arrays.array import Array
from numbridge.arrays.contents import same_dtype
from numbridge.kernels.devices import CPU, Device, cuda_unavailable, get_device
from numbridge.kernels.errors import ConversionError, DeviceError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.readers import Reader
from numbridge.kernels.scalars import scalar_of
from numbridge.storage.element_views import as_records
from numbridge.storage.memory import adopt, native

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "NAME",
    "check_deposit",
    "device_from_numpy",
    "device_to_numpy",
    "dtype_from_numpy",
    "dtype_to_numpy",
    "from_numpy",
    "gradient_of",
    "reader",
    "requires_grad_of",
    "set_gradient",
    "to_numpy",
    "unwrap_array",
    "wrap_object",
]

NAME = "numpy"


def from_numpy(
    arr: Any,
    dtype: Any = None,
    shape: Any = None,
    device: Device | str | None = None,
    requires_grad: bool = False,
    retain_grad: bool = False,
) -> Array:
    """Return an Array that shares a NumPy array's memory, read-only where that is; or a copy on a CUDA device.

    Parameters
    ----------
    arr : numpy.ndarray
        Of any rank and strides that are multiples of the item size. Kept alive.
    dtype : dtype_like, optional
        Must be that of `arr`; sharing does not convert. Integers may be those of the other sign, and booleans integers of 8 bits.
        For a vector or matrix type the last dimensions are its own; or `arr` is structured, and has its components as fields, in
        order and without gaps. An array of another structured dtype is an Array of records.
    shape : int or tuple of int, optional
        Another shape for the same elements; one extent may be -1. Without the dimensions of a vector or matrix type.
    device : Device or str, optional
        Where the array shall lie. By default, and on the CPU, the memory is shared. On a CUDA device it is a copy, ordered on the
        device's current stream.
    requires_grad : bool
        Whether kernels are differentiated with respect to the array.
    retain_grad : bool
        Whether a tape's gradient is that of what the array holds last; see `Array.retain_grad`.

    Raises
    ------
    ConversionError
        If the dtype has no counterpart (object, datetime, str, another byte order), or is not `dtype`.
    BufferAccessError
        If the strides are no multiples of the item size, or allow no view of the `shape`; or the array is masked.
    DeviceError
        If there is no such device.

    Examples
    --------
    >>> import numpy as np, numbridge as nb
    >>> x = np.zeros(3, np.float32)
    >>> nb.from_numpy(x)[1] = 5
    >>> x
    array([0., 5., 0.], dtype=float32)
    """
    found = native().adopt(arr) if isinstance(arr, np.ndarray) else None
    if found is None:
        found = _explained(arr)
    if dtype is not None:
        found = same_dtype(found, dtype)
    if shape is not None:
        found = found.reshape(shape)
    if device is not None:
        found = found.to(device)
    if requires_grad:
        found.requires_grad = True
    if retain_grad:
        found.retain_grad = True
    made: Array = found
    return made


def _explained(arr: Any) -> Array:
    """Adopt the first array of its class, or say why this one cannot be shared."""
    if not isinstance(arr, np.ndarray):
        raise NumbridgeTypeError(
            f"arr is of type {type(arr).__name__}; it must be a numpy.ndarray (nb.array copies others)"
        )
    if arr.dtype.hasobject:
        raise ConversionError(
            f"a NumPy array of dtype {arr.dtype} holds Python objects; use arr.astype(float) or the like"
        )
    return adopt(arr)


def to_numpy(array: Array) -> NDArray[Any]:
    """Return a NumPy array that shares an Array's memory, and keeps it alive; read-only where that is.

    Raises
    ------
    DeviceError
        If the memory is not the host's.
    """
    values = native().to_numpy(array)
    if values is not None:
        found: NDArray[Any] = as_records(array, values)
        return found
    if not isinstance(array, Array):
        raise NumbridgeTypeError(f"array is of type {type(array).__name__}; it must be an nb.Array (see nb.asarray)")
    if array.device.is_cuda:
        raise DeviceError(
            f"this array lies on {array.device}, and NumPy's memory is the host's; array.numpy() copies it"
        )
    return array.numpy()  # says why there is none


def dtype_from_numpy(numpy_dtype: Any) -> Any:
    """Return numbridge's dtype, which is the scalar type, of a NumPy dtype.

    Examples
    --------
    >>> import numpy as np, numbridge as nb
    >>> nb.dtype_from_numpy(np.dtype("float32")) is np.float32
    True
    """
    return scalar_of(numpy_dtype).numpy.type


def dtype_to_numpy(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of a numbridge dtype; ml_dtypes' for bfloat16 and fp8."""
    return scalar_of(dtype).numpy


def device_from_numpy(device: Any = "cpu") -> Device:
    """Return the device of a NumPy array's ``device`` attribute, which is always ``"cpu"``."""
    if device != "cpu":
        raise NumbridgeValueError(f"device is {device!r}; NumPy has the device 'cpu' only")
    return CPU


def device_to_numpy(device: Device | str) -> str:
    """Return NumPy's name for a device, which exists for the CPU only."""
    if isinstance(device, Device) and not device.is_cpu:
        raise cuda_unavailable(f"a NumPy array on {device}")
    return get_device(device).name


def reader(kind: type) -> Reader | None:
    """Return None: compiled code knows NumPy's structures by itself."""
    return None


def wrap_object(obj: Any) -> Array:
    """Return `from_numpy` of an array; what is no array raises."""
    return from_numpy(obj)


def unwrap_array(array: Array) -> NDArray[Any]:
    """Return `to_numpy` of an array."""
    return array.numpy()


def requires_grad_of(obj: Any) -> bool:
    """Return False: NumPy knows no gradients."""
    return False


def gradient_of(obj: Any, create: bool) -> Array | None:
    """Return None: NumPy has no place for a gradient, so the Array keeps it."""
    return None


def set_gradient(obj: Any, gradient: Array | None) -> None:
    """Do nothing: NumPy has no place for a gradient, so the Array keeps it."""


def check_deposit(obj: Any) -> None:
    """Do nothing: NumPy knows no gradients."""
