"""The room of JAX: arrays both ways on the same memory; dtypes and devices.

A JAX array is immutable: what shares its memory is read-only. On the CPU it is read through the buffer protocol, in compiled
code; bfloat16 and fp8, which that protocol cannot name, go through DLPack. Both wait until the array has been computed.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from numbridge.arrays.array import Array
from numbridge.arrays.contents import is_traced, same_dtype
from numbridge.bridges.installed import needed
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import CPU, Device, cuda_unavailable, get_device
from numbridge.kernels.errors import BufferAccessError, ConversionError, DeviceError, NumbridgeTypeError
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Reader, describe, record_from_capsule
from numbridge.kernels.scalars import ALL, by_name, scalar_of
from numbridge.storage.element_views import refuse_records
from numbridge.storage.memory import adopt, native, row_of
from numbridge.storage.stream_order import hand_over

if TYPE_CHECKING:
    import jax

    from numbridge.jax_ffi.recording import TracedArray

__all__ = [
    "NAME",
    "check_deposit",
    "device_from_jax",
    "device_to_jax",
    "dtype_from_jax",
    "dtype_to_jax",
    "from_jax",
    "gradient_of",
    "reader",
    "requires_grad_of",
    "set_gradient",
    "to_jax",
    "unwrap_array",
    "wrap_object",
]

NAME = "jax"
_WIDE = frozenset(by_name(name).tag for name in ("int64", "uint64", "float64", "complex128"))
_ALIGNMENT = 64  # XLA on the CPU copies what is aligned to less


def reader(kind: type) -> Reader | None:
    """Return how JAX's arrays are read; tracers get a reader that explains."""
    import jax

    if issubclass(kind, jax.core.Tracer):
        return Reader(nb.ADAPTER, protocol="refused", adapter=_refuse_tracer)
    if not issubclass(kind, jax.Array):
        return None
    flags = nb.READ_ONLY | nb.IMMUTABLE
    return Reader(nb.BUFFER, 0, "buffer", flags, adapter=_through_dlpack, inspect=_inspect)


def _refuse_tracer(tracer: Any) -> Any:
    raise BufferAccessError(
        f"a JAX tracer of shape {tracer.shape} has no memory: this is inside jax.jit or another transform; make a function of "
        "JAX of the kernel, nb.jax_kernel(kernel), or of several launches, nb.jax_callable(function), or launch outside, on "
        "concrete arrays; within such a function launches take it as it is, and array.assign(x) writes it"
    )


@functools.cache
def _dtypes() -> frozenset[Any]:
    return frozenset(row.numpy for row in ALL)


def _inspect(array: Any) -> None:
    """Raise what keeps an array's memory from being shared."""
    import jax

    if array.is_deleted():
        raise BufferAccessError("a JAX array that was deleted or donated has no memory any more; keep a copy of it")
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        raise ConversionError(f"a JAX array of dtype {array.dtype} has no counterpart; use jax.random.key_data(key)")
    if array.dtype not in _dtypes():
        raise ConversionError(
            f"a JAX array of dtype {array.dtype} has no counterpart; numbridge has {', '.join(row.name for row in ALL)}; use "
            "array.astype(...), which copies"
        )
    if not array.is_fully_addressable or len(array.devices()) != 1:
        raise BufferAccessError(
            f"a JAX array sharded over {len(array.sharding.device_set)} devices is no one piece of memory; pass its shards, "
            "array.addressable_shards[k].data"
        )
    device = next(iter(array.devices()))
    if device.platform not in ("cpu", "gpu", "cuda"):
        raise DeviceError(f"a JAX array on {device} cannot be shared: numbridge runs on the CPU and on CUDA")
    if device.platform != "cpu" and not cuda_driver.driver_count():
        raise cuda_unavailable(f"a JAX array on {device}")


class _Held:
    """A record as an owner that can be watched: `numbridge.bridges.shared_memory` must know when the memory ends."""

    __slots__ = ("__weakref__", "record")

    def __init__(self, record: Any) -> None:
        self.record = record


class _HeldOnCuda(_Held):
    """The same in CUDA memory, which XLA uses again as soon as nobody holds it: so it is held until `stream` has read it."""

    __slots__ = ("_ordinal", "_stream")

    def __init__(self, record: Any, ordinal: int, stream: int) -> None:
        super().__init__(record)
        self._ordinal, self._stream = ordinal, stream
        cuda_driver.devices().prepare(ordinal)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            cuda_driver.devices().keep(self._ordinal, self._stream, self.record)


def _through_dlpack(array: Any) -> Any:
    """Return a read-only record's capsule of an array whose dtype the buffer protocol cannot name."""
    _inspect(array)
    device = device_from_jax(next(iter(array.devices())))
    # On CUDA the array's pending work is ordered before the current stream; 1 is the default stream.
    stream = cuda_driver.devices().current_stream(device.ordinal) if device.is_cuda else 0
    record = record_from_capsule(array.__dlpack__(stream=(stream or 1) if device.is_cuda else None))
    held = _HeldOnCuda(record, device.ordinal, stream) if device.is_cuda else _Held(record)
    found = describe(record)
    size = (found.tag >> 8 & 0xFF) // 8
    steps = tuple(step // size for step in found.strides)
    flags = dl.FLAG_READ_ONLY | dl.RECORD_IMMUTABLE
    place = (found.data, found.tag, found.device_type, found.device_id)
    return native().new_record(held, *place, found.shape, steps, flags)


def from_jax(x: jax.Array, dtype: Any = None) -> Array:
    """Return a read-only Array that shares a JAX array's memory and keeps it alive.

    Parameters
    ----------
    x : jax.Array
        Concrete, on one device. On the CPU this waits until it has been computed; on CUDA the current stream does.
    dtype : dtype_like, optional
        Must be the array's; sharing does not convert. Integers may be those of the other sign, and booleans integers of 8 bits.

    Raises
    ------
    BufferAccessError, DeviceError
        If it is a tracer, deleted, or sharded over devices.
    """
    made = native().adopt(x)
    if made is None or not native().word(made) & nb.IMMUTABLE:
        made = adopt(_array(x))
    if dtype is not None:
        made = same_dtype(made, dtype)
    found: Array = made
    return found


def _array(x: Any) -> Any:
    jax = needed("jax")

    if not isinstance(x, jax.Array):
        raise NumbridgeTypeError(f"x is of type {type(x).__name__}; it must be a jax.Array (nb.asarray takes others)")
    return x


class _Export:
    """What JAX imports: a record's legacy capsule, the one kind that it takes. JAX never writes, so read-only is safe."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, stream: Any = None) -> Any:
        if self._array.device.is_cuda:
            hand_over(self._array, stream)
        return native().export_legacy(self._array._record)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class _HostExport:
    """The same for memory of the CPU, where nothing waits for a stream: a capsule that is there already."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, stream: Any = None) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST


_HOST = (dl.CPU, 0)


def _export(array: Array, word: int) -> _Export | _HostExport:
    """Return what JAX imports of an array, whose word the caller has read."""
    if word >> nb.WORD_DEVICE & 0xFF == dl.CPU and not word & nb.PINNED:
        return _HostExport(native().export_legacy(array._record))
    return _Export(array)


@functools.cache
def _importer() -> Any:
    from jax.dlpack import from_dlpack

    return from_dlpack


def to_jax(array: Array | TracedArray) -> jax.Array:
    """Return a JAX array that shares an Array's memory and keeps it alive.

    JAX takes the memory to be immutable: whoever writes to it later changes what JAX sees, and may break what it has
    compiled. An Array that was adopted from a JAX array gives that very array back. An array of a function that `jax_callable`
    traces gives the value that it stands for now.

    Raises
    ------
    BufferAccessError
        If the memory is not C-contiguous or not aligned to 64 bytes, which JAX would copy; `array.clone()` does.
    ConversionError
        If JAX would narrow the dtype because ``jax_enable_x64`` is off.
    """
    if not isinstance(array, Array):
        if is_traced(array):
            traced: jax.Array = array.value
            return traced
        raise NumbridgeTypeError(f"array is of type {type(array).__name__}; it must be an nb.Array (see nb.asarray)")
    capsule = _export_aligned()(array)
    if capsule is not None:
        return _importer()(_HostExport(capsule))
    source = array._source
    if source is not None and _is_alive(source):
        return source
    described = native().describe(array)
    word, ptr = described[0], described[1]
    if word & nb.ELEMENTS:
        refuse_records(array, "JAX")
    tag = row_of(array).tag if word & nb.ELEMENTS else word & 0xFFFFFFFF
    unproven = not word & nb.CONTIGUOUS or ptr % _ALIGNMENT or tag not in _shared
    if unproven or (tag in _WIDE and not sys.modules["jax"].config.jax_enable_x64):
        _check_export(array, word, ptr)
    return _importer()(_export(array, word))


# The dtypes of which JAX has been seen to share memory of the layout that it asks for, and those of them that no setting of
# JAX's would make it narrow.
_shared: set[int] = set()
_never_narrowed: dict[int, bool] = {}


@functools.cache
def _export_aligned() -> Any:
    return native().aligned_exporter(_never_narrowed)


def _is_alive(source: Any) -> bool:
    """Tell whether an array was adopted from a JAX array that has not been deleted or donated since."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(source, jax.Array) and not source.is_deleted()


def _check_export(array: Array, word: int, ptr: int) -> None:
    """Raise if JAX would copy or narrow an array instead of sharing it."""
    jax = needed("jax")

    row = row_of(array)
    if row.tag in _WIDE and not jax.config.jax_enable_x64:
        raise ConversionError(
            f"JAX would narrow {row.name}; set jax.config.update('jax_enable_x64', True) before, or convert it to 32 bits"
        )
    if not array.is_contiguous:
        raise BufferAccessError(
            f"JAX shares only C-contiguous memory, and this Array has strides {array.strides}; array.contiguous() copies it"
        )
    if not array.size:
        return
    if ptr % _ALIGNMENT:
        raise BufferAccessError(
            f"JAX shares only memory aligned to {_ALIGNMENT} bytes and would copy this, at {ptr:#x}; array.clone() copies it"
        )
    if _importer()(_export(array, word)).unsafe_buffer_pointer() != ptr:
        raise BufferAccessError(
            f"this JAX copies memory of dtype {row.name} instead of sharing it; jax.numpy.array(array.numpy()) does so openly"
        )
    _shared.add(row.tag)
    if row.tag not in _WIDE:
        _never_narrowed[row.tag] = True


def dtype_from_jax(jax_dtype: Any) -> Any:
    """Return numbridge's dtype, which is the scalar type, of a JAX dtype."""
    return scalar_of(jax_dtype).numpy.type


def dtype_to_jax(dtype: Any) -> Any:
    """Return JAX's scalar type, such as `jax.numpy.float32`, of a numbridge dtype."""
    row = scalar_of(dtype)
    found = getattr(needed("jax").numpy, "bool_" if row.name == "bool" else row.name, None)
    if found is None:
        raise ConversionError(f"this JAX has no dtype {row.name}; numbridge has {', '.join(r.name for r in ALL)}")
    return found


def device_from_jax(jax_device: Any) -> Device:
    """Return the device of a `jax.Device`.

    Raises
    ------
    DeviceError
        If it is neither the CPU nor a CUDA device, or another process's.
    """
    platform = getattr(jax_device, "platform", None)
    if not isinstance(platform, str):
        raise NumbridgeTypeError(
            f"jax_device is of type {type(jax_device).__name__}; it must be a jax.Device, such as jax.devices()[0]"
        )
    if platform == "cpu":
        return CPU
    if platform not in ("gpu", "cuda"):
        raise DeviceError(f"JAX device {jax_device} has no counterpart; numbridge has 'cpu' and 'cuda'")
    if jax_device.local_hardware_id is None:
        raise DeviceError(f"JAX device {jax_device} belongs to another process; jax.local_devices() has this one's")
    return Device("cuda", jax_device.local_hardware_id)


def device_to_jax(device: Device | str | None = None) -> Any:
    """Return the `jax.Device` of a device."""
    jax = needed("jax")

    found = device if isinstance(device, Device) else get_device(device)
    if found.is_cpu:
        return jax.local_devices(backend="cpu")[0]
    devices: list[Any] = jax.local_devices(backend="cuda")
    for candidate in devices:
        if candidate.local_hardware_id == found.ordinal:
            return candidate
    raise DeviceError(f"this JAX has no device {found}")


def wrap_object(obj: Any) -> Array:
    """Return `from_jax` of an array; a tracer is explained."""
    return adopt(obj)


def unwrap_array(array: Array) -> Any:
    """Return `to_jax` of an array."""
    return to_jax(array)


def requires_grad_of(obj: Any) -> bool:
    """Return False: JAX differentiates functions, not arrays."""
    return False


def gradient_of(obj: Any, create: bool) -> Array | None:
    """Return None: a JAX array has no gradient."""
    return None


def set_gradient(obj: Any, gradient: Array | None) -> None:
    """Do nothing: a JAX array has no place for a gradient, so the Array keeps it."""


def check_deposit(obj: Any) -> None:
    """Do nothing: JAX arrays have no place for a gradient."""
