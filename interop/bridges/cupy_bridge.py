"""The room of CuPy: arrays both ways on the same CUDA memory; dtypes, devices and streams.

CuPy's arrays have no DLPack exchange table, so compiled code reads the fields of their C++ objects. Where those lie is found
once, on arrays that stand for made-up memory; if anything is not as expected, every array goes through Python instead.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbridge.arrays.array import Array
from numbridge.arrays.contents import same_dtype
from numbridge.bridges import tensor_probe
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import Device, cuda_unavailable, get_device
from numbridge.kernels.errors import BufferAccessError, ConversionError, DeviceError, NumbridgeTypeError
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Reader, describe
from numbridge.kernels.scalars import scalar_of
from numbridge.storage.cupy_memory import as_cupy, cupy, lent_stream
from numbridge.storage.element_views import refuse_records, unpacked
from numbridge.storage.memory import adopt, native, row_of
from numbridge.storage.stream_order import hand_over
from numbridge.streams.streams import Stream, get_stream

__all__ = [
    "NAME",
    "check_deposit",
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
_keep: list[Any] = []


def reader(kind: type) -> Reader | None:
    """Return how objects of a class are read: CuPy's arrays by their fields, other classes as the protocols decide."""
    import cupy as module

    if not issubclass(kind, module.ndarray):
        return None
    if cuda_driver.driver_count():
        cupy()  # from here on compiled code follows CuPy's streams
    table = _fields()
    if table is None:
        return Reader(nb.ADAPTER, protocol="CuPy's memory pointer", adapter=_through_python)
    return Reader(nb.FIELDS, table, "CuPy's array structure", adapter=_through_python)


@functools.cache
def _fields() -> int | None:
    """Return the address of the table of offsets that compiled code reads CuPy's arrays by, or None."""
    found = tensor_probe.undisturbed(_probe)
    if found is None:
        return None
    table = np.array(found, np.int64)
    _keep.append(table)
    return int(table.ctypes.data)


def _sample(shape: tuple[int, ...], dtype: str, ordinal: int, offset: int) -> Any:
    import cupy as module

    memory = module.cuda.UnownedMemory(0x1_2345_0000, 1 << 20, None, ordinal)
    made = module.ndarray(shape, dtype, module.cuda.MemoryPointer(memory, offset))
    return made[::2] if len(shape) > 1 else made


def _probe() -> tuple[int, ...] | None:
    samples = [
        _sample(shape, dtype, ordinal, 64 * ordinal)
        for ordinal, (shape, dtype) in enumerate(
            [((3, 5, 7), "float32"), ((11,), "int8"), ((6, 2), "complex128"), ((4, 9, 2, 3), "float16")], 1
        )
    ]
    size = type(samples[0]).__basicsize__
    memory_size = type(samples[0].data).__basicsize__

    def at(values: Any) -> int | None:
        return tensor_probe.only(tensor_probe.where(id, list(zip(samples, values, strict=True)), size))

    def vector(wanted: Any) -> set[int]:
        return {o for o in range(0, size, 8) if all(_holds(id(s) + o, wanted(s)) for s in samples)}

    shape, strides = vector(lambda s: s.shape), vector(lambda s: s.strides)
    dtype, memory = at([id(s.dtype) for s in samples]), at([id(s.data) for s in samples])
    address = tensor_probe.only(
        tensor_probe.where(lambda s: id(s.data), [(s, s.data.ptr) for s in samples], memory_size)
    )
    ordinals = [
        o
        for o in range(16, memory_size, 4)
        if all(tensor_probe.peek(id(s.data) + o, 4) == s.data.device_id for s in samples)
    ]
    found = (
        tensor_probe.only(shape),
        tensor_probe.only(strides),
        dtype,
        memory,
        address,
        ordinals[0] if ordinals else None,
    )
    if None in found:
        return None
    first = found[0]
    assert first is not None
    ends = all(
        tensor_probe.peek(id(s) + first + 8) == (tensor_probe.peek(id(s) + first) or 0) + 8 * s.ndim for s in samples
    )
    return (first, first + 8, *(f for f in found[1:] if f is not None)) if ends else None


def _holds(place: int, values: tuple[int, ...]) -> bool:
    """Tell whether there is a pointer at `place` to these 64-bit numbers."""
    start = tensor_probe.peek(place)
    return bool(start) and all(
        tensor_probe.peek((start or 0) + 8 * k) == value % (1 << 64) for k, value in enumerate(values)
    )


def _through_python(array: Any) -> Any:
    """Return a record's capsule of a CuPy array, by what it says of itself."""
    row = scalar_of(array.dtype)
    if any(step % row.itemsize for step in array.strides):
        raise BufferAccessError(
            f"a CuPy array with strides {array.strides} bytes, no multiples of its item size {row.itemsize}, cannot be "
            "expressed in DLPack; pass it to a kernel as it is, or use cupy.ascontiguousarray(array), which copies"
        )
    steps = tuple(step // row.itemsize for step in array.strides)
    place = (int(array.data.ptr), row.tag, dl.CUDA, int(array.data.device_id))
    return native().new_record(array, *place, tuple(array.shape), steps, 0)


def from_cupy(x: Any, dtype: Any = None) -> Array:
    """Return an Array that shares a CuPy array's memory and keeps it alive.

    Parameters
    ----------
    x : cupy.ndarray
        Of any shape and strides.
    dtype : dtype_like, optional
        Must be the array's; sharing does not convert. Integers may be those of the other sign, and booleans integers of 8 bits.

    Raises
    ------
    NumbridgeTypeError
        If it is no CuPy array.
    DeviceError
        If CUDA cannot be used here.
    """
    if type(x).__module__.partition(".")[0] != "cupy":
        if not cuda_driver.driver_count():
            raise cuda_unavailable("from_cupy")
        if not isinstance(x, cupy().ndarray):
            raise NumbridgeTypeError(
                f"x is of type {type(x).__name__}; it must be a cupy.ndarray (nb.asarray takes others)"
            )
    made = adopt(x)
    return made if dtype is None else same_dtype(made, dtype)


def to_cupy(array: Array) -> Any:
    """Return a CuPy array that shares an Array's CUDA memory and keeps it alive.

    An Array that was adopted from a CuPy array gives that very array back. CuPy's current stream waits for what was launched
    on the memory so far, if another stream is used on it.

    Raises
    ------
    DeviceError
        If the memory is not on CUDA.
    BufferAccessError
        If it is read-only, which CuPy cannot express; `array.clone()` copies.
    ConversionError
        If CuPy lacks the dtype.
    """
    if not isinstance(array, Array):
        raise NumbridgeTypeError(f"array is of type {type(array).__name__}; it must be an nb.Array (see nb.asarray)")
    refuse_records(array, "CuPy")
    if not array.device.is_cuda:
        if not cuda_driver.driver_count():
            raise cuda_unavailable("to_cupy")
        raise DeviceError(
            f"CuPy's arrays lie on CUDA, and this one on {array.device}; array.to('cuda') copies it there"
        )
    if array.read_only:
        raise BufferAccessError(
            "a read-only Array cannot be a CuPy array, which has no read-only flag; array.clone() copies"
        )
    row, source = row_of(array), array._source
    if row.numpy.isbuiltin != 1:
        raise ConversionError(f"CuPy has no dtype {row.name}; array.view('uint{8 * row.itemsize}') shares its bits")
    if source is not None and isinstance(source, cupy().ndarray) and _is_same(array, source):
        return source
    hand_over(array, cuda_driver.devices().current_stream(array.device.ordinal))
    return as_cupy(array)


def _is_same(array: Array, source: Any) -> bool:
    """Tell whether a CuPy array that an Array came from still is that memory, in the same shape."""
    mine, theirs = describe(unpacked(array)), describe(source)
    return (mine.data, mine.tag, mine.shape, mine.strides) == (theirs.data, theirs.tag, theirs.shape, theirs.strides)


def dtype_from_cupy(dtype: Any) -> Any:
    """Return numbridge's dtype, which is the scalar type, of a CuPy dtype; CuPy's are NumPy's."""
    return scalar_of(dtype).numpy.type


def dtype_to_cupy(dtype: Any) -> np.dtype[Any]:
    """Return the CuPy dtype of a numbridge dtype; CuPy's are NumPy's."""
    return scalar_of(dtype).numpy


def device_from_cupy(device: Any) -> Device:
    """Return the device of a `cupy.cuda.Device`."""
    ordinal = getattr(device, "id", None)
    if not isinstance(ordinal, int):
        raise NumbridgeTypeError(f"device is {device!r}; it must be a cupy.cuda.Device, such as cupy.cuda.Device(0)")
    return Device("cuda", ordinal)


def device_to_cupy(device: Device | str | None = None) -> Any:
    """Return the `cupy.cuda.Device` of a device, which must be CUDA's."""
    if not cuda_driver.driver_count():
        raise cuda_unavailable("device_to_cupy")
    found = get_device(device)
    if not found.is_cuda:
        raise DeviceError(f"CuPy has CUDA devices only, and the device is {found}")
    return cupy().cuda.Device(found.ordinal)


def stream_from_cupy(stream: Any = None) -> Stream:
    """Return the stream of a `cupy.cuda.Stream`; CuPy's current one, which is numbridge's, by default."""
    if not cuda_driver.driver_count():
        raise cuda_unavailable("stream_from_cupy")
    if stream is None:
        return get_stream()
    ordinal = getattr(stream, "device_id", -1)
    return Stream(get_device("cuda") if ordinal < 0 else f"cuda:{ordinal}", cuda_stream=stream)


def stream_to_cupy(stream: Any = None) -> Any:
    """Return a CuPy stream of a stream, which must outlive it; of the current one by default."""
    if not cuda_driver.driver_count():
        raise cuda_unavailable("stream_to_cupy")
    found = get_stream() if stream is None else stream
    return lent_stream(found.cuda_stream, found.device.ordinal)


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


def check_deposit(obj: Any) -> None:
    """Do nothing: CuPy knows no gradients."""
