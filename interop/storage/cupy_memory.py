"""Memory on CUDA: CuPy's pools, copies and fills, behind numbridge's arrays.

New memory comes from CuPy's pool on the current stream, and goes back there with its last owner. Everything that is not a
launch (copying, filling, casting) is CuPy's work. The current stream is CuPy's: whoever sets one, both libraries follow.
CuPy is imported when CUDA memory is first asked for, and only here.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.adjoint.overlap import share_memory
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import Device, cuda_unavailable
from numbridge.kernels.errors import DeviceError
from numbridge.kernels.machine import capsule_pointer
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import describe
from numbridge.kernels.scalars import Scalar
from numbridge.storage.element_views import scalar_shape, unpacked
from numbridge.storage.memory import native, row_of, wrap
from numbridge.storage.stream_order import in_order

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = [
    "allocate",
    "as_cupy",
    "assign",
    "begin_holding",
    "cupy",
    "end_holding",
    "filled",
    "hold",
    "holds_memory",
    "lent_stream",
    "pinned",
    "to_device",
    "to_host",
]

# CuPy has no elements of ml_dtypes' kinds that it computes with; their bits are moved as unsigned integers.
_CARRIERS = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}

# What is allocated while a stream is recorded, by the ordinal of its device and its handle
_held: dict[tuple[int, int], list[Any]] = {}


@functools.cache
def cupy() -> Any:
    """Return the module cupy, whose current stream compiled code follows from now on.

    Raises
    ------
    DeviceError
        If CUDA cannot be used here; the message says what is missing.
    """
    if not cuda_driver.driver_count():
        raise cuda_unavailable("CUDA memory")
    import cupy as module
    import cupy_backends.cuda.stream as streams

    cuda_driver.devices().set_current_stream(_c_function(streams, "get_stream_ptr", "intptr_t (int)"))
    return module


def lent_stream(handle: int, ordinal: int) -> Any:
    """Return a CuPy stream on a device for the handle of a stream that somebody else owns, and keeps."""
    return _lent_stream()(handle, ordinal)


@functools.cache
def _lent_stream() -> Any:
    external = cupy().cuda.ExternalStream

    class LentStream(external):  # type: ignore[misc, valid-type]
        """CuPy's class without its warning, which names what takes objects with ``__cuda_stream__``, and no handles."""

        def __init__(self, handle: int, ordinal: int) -> None:
            super(external, self).__init__(handle, ordinal)

    return LentStream


def _c_function(module: Any, name: str, signature: str) -> int:
    """Return the address of a C function that a Cython module exports."""
    capsule = getattr(module, "__pyx_capi__", {}).get(name)
    if capsule is None:
        raise DeviceError(f"this CuPy does not export {name}, which numbridge needs to follow its streams")
    # The capsule's name is the signature.
    return int(capsule_pointer(capsule, signature.encode()) or 0)


def allocate(extents: tuple[int, ...], row: Scalar, size: int, device: Device, *, zeroed: bool) -> Array:
    """Return a new C-contiguous array of CuPy's pool on a device, ordered on its current stream."""
    module = cupy()
    cuda_driver.devices().prepare(device.ordinal)
    with module.cuda.Device(device.ordinal):
        memory = module.cuda.alloc(size)
        if zeroed and size:
            memory.memset_async(0, size)
    if _held:
        _hold_here(device.ordinal, memory)
    address = int(memory.ptr)
    return wrap(native().new_record(memory, address, row.tag, dl.CUDA, device.ordinal, extents, None, 0))


def begin_holding(ordinal: int, stream: int) -> None:
    """Hold the memory that is allocated on a stream from now on: a graph that records the stream goes on using it."""
    _held[ordinal, stream] = []


def hold(ordinal: int, stream: int, kept: Any) -> None:
    """Hold something as long as the graph that records a stream, if one of ours does."""
    if not (_held and cuda_driver.devices().is_capturing(ordinal, stream)):
        # Somebody else may have ended what was begun.
        _held.pop((ordinal, stream), None)
        return
    own = _held.get((ordinal, stream))
    # A stream that has joined a recording does not tell which.
    for held in [own] if own is not None else [*_held.values()]:
        held.append(kept)


def _hold_here(ordinal: int, kept: Any) -> None:
    """Hold something as long as the graph that records a device's current stream."""
    hold(ordinal, cuda_driver.devices().current_stream(ordinal), kept)


def end_holding(ordinal: int, stream: int) -> list[Any]:
    """Return what has been allocated on a stream since `begin_holding`, and hold no more."""
    return _held.pop((ordinal, stream), [])


def holds_memory(ordinal: int) -> bool:
    """Tell whether what is allocated on a device's current stream is held."""
    return (ordinal, cuda_driver.devices().current_stream(ordinal)) in _held


def pinned(extents: tuple[int, ...], row: Scalar, size: int, *, zeroed: bool) -> Array:
    """Return a new C-contiguous array in page-locked host memory, which devices copy from and to by themselves."""
    module = cupy()
    cuda_driver.devices().release()  # which may be page-locked memory, to be used again
    memory = module.cuda.alloc_pinned_memory(max(size, 1))
    address = int(memory.ptr)
    if zeroed:
        ctypes.memset(address, 0, size)
    return wrap(native().new_record(memory, address, row.tag, dl.CUDA_HOST, 0, extents, None, 0))


def as_cupy(array: Array) -> Any:
    """Return a CuPy array on an array's CUDA memory, writable whether or not the array is: for reading, or after a check.

    ml_dtypes' elements become unsigned integers of their width.
    """
    module = cupy()
    _, address, shape, strides, ordinal = native().describe(unpacked(array))
    row = row_of(array)
    dtype = row.numpy if row.numpy.isbuiltin == 1 else _CARRIERS[row.itemsize]
    low, high = _span(shape, strides, row.itemsize)
    memory = module.cuda.UnownedMemory(address + low, high - low, array, ordinal)
    return module.ndarray(shape, dtype, module.cuda.MemoryPointer(memory, -low), strides)


def _span(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return the bytes that an array reaches below and above its first element's address."""
    if 0 in shape:
        return 0, 0
    reach = [step * (extent - 1) for extent, step in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + itemsize


def _carried(values: Any, row: Scalar) -> Any:
    """Return host values as CuPy takes them: converted to a dtype, then as bits where CuPy lacks the dtype."""
    made = np.asarray(values).astype(row.numpy, order="C", copy=False)
    return made if row.numpy.isbuiltin == 1 else made.view(_CARRIERS[row.itemsize])


def assign(target: Array, key: Any, values: Any) -> None:
    """Write values into part of a CUDA array, broadcast and converted to its dtype, on the current stream.

    Parameters
    ----------
    target : Array
        Whether it may be written has been checked.
    key : index
        As CuPy takes it.
    values : number, NumPy array or Array
        An Array may lie on any device.
    """
    row, module = row_of(target), cupy()
    given = [values] if isinstance(values, type(target)) else []
    with in_order(target, *given), module.cuda.Device(target.device.ordinal):
        there = _there(values, row, target.device)
        if _held and hasattr(there, "copy"):
            # A graph reads it when it is launched. What overlaps CuPy would copy into memory that it gives back.
            if given and share_memory(describe(target), describe(values)):
                there = there.copy()
            _hold_here(target.device.ordinal, there)
        as_cupy(target)[key] = there


def _there(values: Any, row: Scalar, device: Device) -> Any:
    """Return values as CuPy on a device takes them, in a dtype or its carrier."""
    if isinstance(values, np.ndarray | np.generic | bool | int | float | complex):
        carried = _carried(values, row)
        return cupy().asarray(carried) if carried.ndim else carried.item()
    if not values.device.is_cuda:
        return cupy().asarray(_carried(values.numpy(), row))
    if row_of(values) == row or (row.numpy.isbuiltin == 1 and row_of(values).numpy.isbuiltin == 1):
        return _from_other(as_cupy(values), values.device.ordinal, device.ordinal)
    # CuPy does not convert ml_dtypes' elements, so the host does.
    return cupy().asarray(_carried(to_host(values), row))


def filled(values: np.ndarray[Any, Any], row: Scalar, device: Device) -> Array:
    """Return a new CUDA array with host values, converted to a dtype, copied on the current stream."""
    made = allocate(values.shape, row, values.size * row.itemsize, device, zeroed=False)
    if values.size:
        carried = _carried(values, row)
        with cupy().cuda.Device(device.ordinal):
            as_cupy(made).set(carried)
        _keep_while_copied(carried, device)
    return made


def _keep_while_copied(values: np.ndarray[Any, Any], device: Device) -> None:
    """Keep host memory alive, and out of its pool, while a device copies from or to it by itself."""
    devices = cuda_driver.devices()
    if devices.driver.is_page_locked(values.ctypes.data):
        devices.keep_here(device.ordinal, values)


def to_host(array: Array, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    """Return a copy of a CUDA array's values in host memory, after waiting for its device's current stream only.

    Parameters
    ----------
    array : Array
        In CUDA memory.
    out : ndarray, optional
        Where to write instead: page-locked memory of the same shape and dtype, C-contiguous. Then nothing is waited for.
    """
    row, module = row_of(array), cupy()
    with in_order(array), module.cuda.Device(array.device.ordinal):
        source = as_cupy(array)
        if out is not None:
            source.get(out=out.view(source.dtype), blocking=False)
            _keep_while_copied(out, array.device)
            return out
        found = module.asnumpy(source)
    made: np.ndarray[Any, Any] = found if row.numpy.isbuiltin == 1 else found.view(row.numpy)
    return made


def to_device(array: Array, device: Device) -> Array:
    """Return a contiguous copy of an array (host, pinned, or on any CUDA device) on a device, on its current stream.

    A copy from page-locked memory or between devices returns before it is done.
    """
    if not array.device.is_cuda:
        return filled(array.numpy(), row_of(array), device)
    row, module = row_of(array), cupy()
    made = allocate(scalar_shape(array), row, array.nbytes, device, zeroed=False)
    if array.size:
        with in_order(array), module.cuda.Device(device.ordinal):
            as_cupy(made)[...] = _from_other(as_cupy(array), array.device.ordinal, device.ordinal)
    return made


def _from_other(source: Any, here: int, there: int) -> Any:
    """Return a CuPy array on device `there`; between devices, the source's current stream is waited for by an event."""
    module = cupy()
    if here == there:
        return source
    with module.cuda.Device(here):
        source = module.ascontiguousarray(source)
        ready = module.cuda.get_current_stream().record()
    with module.cuda.Device(there):
        module.cuda.get_current_stream().wait_event(ready)
        made = module.empty(source.shape, source.dtype)
        made.data.copy_from_device_async(source.data, source.nbytes)
        _hold_here(there, made)
        done = module.cuda.get_current_stream().record()
    with module.cuda.Device(here):
        # The source's pool may hand its memory out again only after the copy.
        module.cuda.get_current_stream().wait_event(done)
    return made
