"""The room of Paddle: tensors both ways on the same memory, with their gradients; dtypes, devices and streams.

Paddle's DLPack exchange function reads a dense tensor in compiled code, and crashes on some others (a sparse gradient, a
tensor after ``_clear()``). Compiled code therefore looks first at what class the tensor's implementation is of. Where that
lies is found once, by probing, and if probing fails every tensor goes through Python, which asks Paddle itself. Whether a
kernel may write to a tensor is asked of Paddle before each such write.
"""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import FrameType
from typing import Any

from numbridge.arrays.array import Array
from numbridge.arrays.gradients import joining
from numbridge.bridges import tensor_probe
from numbridge.bridges.installed import needed
from numbridge.bridges.shared_memory import is_own, keep_lent, read_only
from numbridge.bridges.tensor_room import READ_ONLY_MARK, adopted, exported, join_gradients, wants_gradient
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import CPU, Device, cuda_unavailable, get_device
from numbridge.kernels.errors import BufferAccessError, ConversionError, DeviceError, NumbridgeError, NumbridgeTypeError
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Reader, exchange_function, record_from_capsule
from numbridge.kernels.scalars import ALL, scalar_of
from numbridge.storage.leases import is_lent, lend
from numbridge.storage.memory import adopt, native, row_of
from numbridge.streams.streams import Stream, get_stream

__all__ = [
    "NAME",
    "check_deposit",
    "device_from_paddle",
    "device_to_paddle",
    "dtype_from_paddle",
    "dtype_to_paddle",
    "from_paddle",
    "gradient_of",
    "reader",
    "requires_grad_of",
    "set_gradient",
    "stream_from_paddle",
    "stream_to_paddle",
    "to_paddle",
    "unwrap_array",
    "wrap_object",
]

NAME = "paddle"
_IMPLEMENTATION_SIZE = 512
# Paddle's uint16 is another name for bfloat16. It holds uint32 and uint64, though few of its operations compute in them.
_LACKING = frozenset({"uint16"})


def reader(kind: type) -> Reader | None:
    """Return how compiled code reads `paddle.Tensor`; values of programs get a reader that explains, others None."""
    import paddle

    if issubclass(kind, paddle.pir.Value):
        return Reader(nb.ADAPTER, protocol="refused", adapter=_refuse_value)
    if not issubclass(kind, paddle.Tensor):
        return None
    exchange = exchange_function(paddle.Tensor, dl.EXCHANGE_READ)
    found = _probed() if exchange else None
    if found is None:
        return Reader(
            *(nb.ADAPTER, 0, "DLPack", nb.GUARDED),
            guard=_guard,
            lost_gradient=_lost_gradient,
            stream=_stream_function(),
            adapter=_through_python,
            inspect=_inspect,
        )
    # What `x.set_(y)`, `x.cast_(dtype)` and `Layer.to(dtype=...)` take away from a tensor, others may use on.
    exporter = exchange_function(paddle.Tensor, dl.EXCHANGE_FROM_OBJECT)
    return replace(found, function=exchange, stream=_stream_function(), exporter=exporter)


def _refuse_value(value: Any) -> Any:
    raise BufferAccessError(
        f"a value of shape {list(value.shape)} in a program of Paddle's has no memory: this is inside paddle.jit.to_static or "
        "static mode; make the kernel an operator, nb.paddle_op(kernel, outputs), or launch outside"
    )


@functools.cache
def _stream_function() -> int:
    import paddle

    return exchange_function(paddle.Tensor, dl.EXCHANGE_STREAM)


@functools.cache
def _probed() -> Reader | None:
    """Return a reader that knows where tensors keep their implementation and its class, or None."""
    return tensor_probe.undisturbed(_probe)


def _probe() -> Reader | None:
    import paddle

    def make() -> Any:
        return paddle.zeros([3], dtype="float32")

    cleared = make()
    cleared._clear()
    dense = [make(), paddle.zeros([2, 3], dtype="int64"), paddle.zeros([], dtype="bool"), paddle.zeros([0, 3])]
    # What is null in a cleared tensor, and otherwise points to an object that starts with the address of its class.
    places = [
        place
        for place in range(16, paddle.Tensor.__basicsize__, 8)
        if tensor_probe.peek(id(cleared) + place) == 0
        and len({_class_at(tensor, place) for tensor in dense} - {None}) == 1
    ]
    if not places:
        return None
    place = places[0]
    known = _class_at(dense[0], place) or 0
    # Compiled code compares bits, so a class that is no tensor in memory must have one that the known class lacks.
    if any((_class_at(tensor, place) or 0) & ~known == 0 for tensor in _strange()):
        return None

    def implementation(tensor: Any) -> int:
        return tensor_probe.peek(id(tensor) + place) or 0

    version = tensor_probe.version(
        make,
        implementation,
        lambda tensor: tensor._bump_inplace_version(),
        lambda tensor: tensor.inplace_version,
        _IMPLEMENTATION_SIZE,
    )
    whole = paddle.zeros([40], dtype="float32")
    parts = [whole, whole[5:], whole[7:], whole[11:13]]
    begin_at = tensor_probe.only(
        tensor_probe.where(implementation, [(t, t._offset()) for t in parts], _IMPLEMENTATION_SIZE)
    )
    if version is None or begin_at is None:
        return None
    return Reader(
        nb.EXCHANGE,
        protocol="DLPack exchange table, after a look at the implementation's class",
        flags=nb.GUARDED,
        implementation=place,
        allowed=known,
        version=version[0],
        counter=version[1],
        offset=begin_at,
        offset_bytes=1,
        guard=_guard,
        lost_gradient=_lost_gradient,
        inspect=_inspect,
    )


def _class_at(tensor: Any, place: int) -> int | None:
    """Return the first word of what a tensor's word at `place` points to."""
    return tensor_probe.peek(tensor_probe.peek(id(tensor) + place) or 0)


def _strange() -> list[Any]:
    """Return tensors that are no dense memory: sparse ones, and a sparse gradient."""
    import paddle

    types = paddle.base.core.VarDesc.VarType
    gradient = paddle.base.core.eager.Tensor(types.FP32, [3], "numbridge_probe", types.SELECTED_ROWS, False)
    some = paddle.ones([2, 2], dtype="float32")
    return [gradient, some.to_sparse_coo(2), some.to_sparse_csr()]


def _through_python(tensor: Any) -> Any:
    """Return a record's capsule of a tensor, after asking Paddle everything that compiled code cannot.

    A record takes no guard along, so one of a tensor that may not be written now is read-only.
    """
    _inspect(tensor)
    record = record_from_capsule(tensor.detach().__dlpack__())
    if _refusal(tensor) is None:
        return record
    return read_only(record, dl.RECORD_IMMUTABLE if _is_immutable(tensor) else 0)


def _inspect(tensor: Any) -> None:
    """Raise what keeps a tensor's memory from being shared."""
    if tensor.is_selected_rows():
        raise BufferAccessError(
            "a sparse gradient of Paddle (SelectedRows) cannot be shared; use a layer with sparse=False"
        )
    if tensor.is_dist():
        raise BufferAccessError("a distributed Paddle tensor cannot be shared; use its part here, ._local_value()")
    if not tensor._is_initialized() and tensor.size:
        raise BufferAccessError("a Paddle tensor that has no memory yet cannot be shared; give it a value first")
    if not tensor.is_dense():
        raise BufferAccessError("a sparse Paddle tensor cannot be shared; use .to_dense()")
    if not (tensor.place.is_cpu_place() or tensor.place.is_gpu_place()):
        raise DeviceError(
            f"a Paddle tensor on {tensor.place} cannot be shared: numbridge runs on the CPU and on CUDA; use .cpu()"
        )


def _guard(tensor: Any) -> None:
    """Raise if a kernel may not write to a tensor now."""
    refusal = _refusal(tensor)
    if refusal is not None:
        raise BufferAccessError(refusal)


def _refusal(tensor: Any) -> str | None:
    """Return why a kernel may not write to a tensor now, or None if it may."""
    import paddle

    if _is_immutable(tensor):
        return "this Paddle tensor shares the memory of an immutable JAX array; write to tensor.clone()"
    if tensor.stop_gradient or not paddle.is_grad_enabled():
        return None
    return (
        "it is a tensor with stop_gradient=False (it requires grad), and autograd would not see the write; launch under "
        "paddle.no_grad(), or pass tensor.detach()"
    )


def _lost_gradient(tensor: Any) -> str | None:
    """Return why a gradient is lost if a kernel reads a tensor now, or None."""
    import paddle

    if not (not tensor.stop_gradient and paddle.is_grad_enabled()):
        return None
    return (
        "this Paddle tensor has stop_gradient=False (it requires grad), and the gradient will not flow: Paddle sees nothing of "
        "a direct launch; make an operator of the kernel (nb.paddle_op), record launches (nb.Tape), or, if no gradient is "
        "wanted, pass tensor.detach() or launch under paddle.no_grad()"
    )


def _is_immutable(tensor: Any) -> bool:
    return bool(getattr(tensor, READ_ONLY_MARK, False)) or is_lent(tensor.data_ptr() or 0)


def from_paddle(
    t: Any,
    dtype: Any = None,
    requires_grad: bool | None = None,
    grad: Any = None,
    return_ctype: bool = False,
    retain_grad: bool = False,
) -> Any:
    """Return an Array that shares a Paddle tensor's memory and keeps it alive.

    Parameters
    ----------
    t : paddle.Tensor
        Dense, on the CPU or on CUDA, of any rank. Launches on the array follow Paddle's current stream.
    dtype : dtype_like, optional
        Must be the tensor's; sharing does not convert. Integers may be those of the other sign, and booleans integers of 8 bits.
    requires_grad : bool, optional
        By default the array follows the tensor's ``stop_gradient``, now and later, unless `grad` is given, which implies it.
    grad : paddle.Tensor or Array, optional
        What kernels add the gradient to; the tensor's own stays as it is, into which Paddle would copy. By default it is the
        tensor's own, which Paddle allocates when it is first needed.
    return_ctype : bool
        Return a light descriptor instead: kernels take it, and nothing else does.
    retain_grad : bool
        Whether a tape's gradient is that of what the array holds last; see `Array.retain_grad`.

    Raises
    ------
    BufferAccessError, DeviceError
        If the tensor is sparse, has no memory, or lies on another kind of device.
    """
    made = adopted(t, "paddle", _tensor, dtype, requires_grad, grad, return_ctype, retain_grad, holds_gradients=False)
    return keep_lent(made)


def _tensor(t: Any) -> Any:
    paddle = needed("paddle")

    if isinstance(t, paddle.pir.Value):
        _refuse_value(t)
    if not isinstance(t, paddle.Tensor):
        raise NumbridgeTypeError(
            f"t is of type {type(t).__name__}; it must be a paddle.Tensor (nb.asarray takes others)"
        )
    return t


@functools.cache
def _export_function() -> int:
    import paddle

    native().release_later()
    return exchange_function(paddle.Tensor, dl.EXCHANGE_TO_OBJECT)


def to_paddle(a: Array, requires_grad: bool | None = None) -> Any:
    """Return a Paddle tensor that shares an Array's memory and keeps it alive.

    An Array that was adopted from a Paddle tensor gives that very tensor back. A tensor made of an Array that requires grad
    has ``stop_gradient=False``; from then on the Array's ``grad`` is the tensor's. One made of a view of such an Array is a
    view of the Array's tensor, to which Paddle carries its gradient, and lasts for one ``backward``.

    Parameters
    ----------
    a : Array
        On CUDA, Paddle's current stream waits for what was launched on it so far. Read-only memory is refused, except a
        JAX array's, which JAX itself hands out so; numbridge's kernels then refuse to write to the tensor, and Paddle's own
        operations must not.
    requires_grad : bool, optional
        By default the array's.

    Raises
    ------
    ConversionError
        If Paddle lacks the dtype.
    BufferAccessError
        If the memory is read-only, or has negative strides; `a.clone()` copies.
    NumbridgeTypeError
        If `requires_grad` is asked of integers, which have no gradient.
    """
    needed("paddle")
    if not isinstance(a, Array):
        raise NumbridgeTypeError(f"a is of type {type(a).__name__}; it must be an nb.Array (see nb.asarray)")
    row = row_of(a)
    if row.name in _LACKING:
        raise ConversionError(f"Paddle has no dtype {row.name}; use a signed one, or a.view of one of the same width")
    wanted = wants_gradient(a, requires_grad)
    with joining if wanted else nullcontext():
        return _joined(a, wanted)


def _joined(a: Array, wanted: bool) -> Any:
    import paddle

    source = a._source
    if isinstance(source, paddle.Tensor) and is_own(a, source) and wanted == (not source.stop_gradient):
        return source
    made, immutable = exported(a, _export_function(), "a Paddle tensor", _stream_function())
    if immutable:
        lend(a)
        setattr(made, READ_ONLY_MARK, True)
    return join_gradients(a, made, wanted, _require, to_paddle, _part)


def _part(whole: Any, made: Any) -> Any:
    """Return the view of a tensor that lies where another one does; None where Paddle would lay its gradient out wrongly."""
    if whole._offset() or not whole.is_contiguous():
        return None
    # Paddle counts in bytes from the beginning of the memory.
    return whole.as_strided(made.shape, made.strides, made.data_ptr() - whole.data_ptr())


def _require(tensor: Any) -> None:
    tensor.stop_gradient = False


@functools.cache
def _dtypes() -> dict[Any, Any]:
    paddle = needed("paddle")

    return {getattr(paddle, row.name): row for row in ALL if hasattr(paddle, row.name) and row.name not in _LACKING}


def dtype_from_paddle(paddle_dtype: Any) -> Any:
    """Return numbridge's dtype, which is the scalar type, of a Paddle dtype."""
    row = _dtypes().get(paddle_dtype)
    if row is None:
        raise ConversionError(
            f"Paddle dtype {paddle_dtype!r} has no counterpart; numbridge has {', '.join(r.name for r in ALL)}"
        )
    return row.numpy.type


def dtype_to_paddle(dtype: Any) -> Any:
    """Return the Paddle dtype of a numbridge dtype."""
    row = scalar_of(dtype)
    for found, known in _dtypes().items():
        if known is row:
            return found
    raise ConversionError(f"Paddle has no dtype {row.name}")


def device_from_paddle(paddle_device: Any) -> Device:
    """Return the device of a Paddle place or its name; page-locked memory is the CPU's.

    Raises
    ------
    DeviceError
        If it is neither the CPU nor a CUDA device.
    """
    name = str(paddle_device).removeprefix("Place(").removesuffix(")")
    if name in ("cpu", "gpu_pinned"):
        return CPU
    kind, _, ordinal = name.partition(":")
    if kind == "gpu" and (not ordinal or ordinal.isdecimal()):
        return Device("cuda", int(ordinal or 0))
    raise DeviceError(f"Paddle place {paddle_device} has no counterpart; numbridge has 'cpu' and 'cuda'")


def device_to_paddle(device: Device | str | None = None) -> str:
    """Return Paddle's name for a device: ``"cpu"`` or ``"gpu:0"``."""
    found = device if isinstance(device, Device) else get_device(device)
    return "cpu" if found.is_cpu else f"gpu:{found.ordinal}"


def stream_from_paddle(stream_or_device: Any = None) -> Stream:
    """Return the stream of a `paddle.device.Stream`, or Paddle's current one on a device.

    Parameters
    ----------
    stream_or_device : paddle.device.Stream, place or str, optional
        Paddle's current stream on its current device by default.
    """
    paddle = needed("paddle")

    if not cuda_driver.driver_count():
        raise cuda_unavailable("stream_from_paddle")
    found = stream_or_device
    if not isinstance(found, paddle.device.Stream):
        found = paddle.device.current_stream(found)
    base = found.stream_base
    return Stream(device_from_paddle(found.device), cuda_stream=getattr(base, "cuda_stream", base))


def stream_to_paddle(stream_or_device: Any = None) -> Any:
    """Return a Paddle stream on the same CUDA stream, which must outlive it.

    Parameters
    ----------
    stream_or_device : Stream, Device or str, optional
        The current stream of the current CUDA device by default.
    """
    paddle = needed("paddle")

    if not cuda_driver.driver_count():
        raise cuda_unavailable("stream_to_paddle")
    found = stream_or_device if isinstance(stream_or_device, Stream) else get_stream(stream_or_device)
    base = paddle.device.cuda.get_stream_from_external(found.cuda_stream)
    return paddle.device.Stream(device=device_to_paddle(found.device), stream_base=base)


def wrap_object(obj: Any) -> Array:
    """Return `from_paddle` of a tensor."""
    made: Array = from_paddle(obj)
    return made


def unwrap_array(array: Array) -> Any:
    """Return `to_paddle` of an array."""
    return to_paddle(array)


def requires_grad_of(obj: Any) -> bool:
    """Tell whether a tensor requires grad."""
    return not obj.stop_gradient


def gradient_of(obj: Any, create: bool) -> Array | None:
    """Return a tensor's ``.grad``, made of zeros by Paddle's allocator if there is none and `create` is true.

    Raises
    ------
    NumbridgeError
        If Paddle goes back, and will add to that what the running backward returns.
    """
    import paddle

    if create:
        check_deposit(obj)
    if obj.grad is None:
        # Paddle takes none for a tensor that is no leaf: the array keeps it.
        if not create or not obj.is_leaf:
            return None
        obj.grad = paddle.zeros_like(obj)
    return adopt(obj.grad)


def set_gradient(obj: Any, gradient: Array | None) -> None:
    """Make an array, or nothing, a tensor's ``.grad``."""
    if obj.is_leaf:
        obj.grad = None if gradient is None else to_paddle(gradient, requires_grad=False)


def check_deposit(obj: Any) -> None:
    """Refuse a gradient on a tensor to which Paddle is about to add what the running backward returns.

    Raises
    ------
    NumbridgeError
        If it would count twice.
    """
    if obj.is_leaf and not obj.stop_gradient and _is_going_back():
        raise NumbridgeError(
            "a tensor's gradient is Paddle's own while its backward runs: it adds what the running backward returns to .grad; "
            "let kernels add to paddle.zeros_like(x), or to the gradient of an array of x.detach(), and return that"
        )


# What Paddle's own functions that go back are called.
_BACKWARD = frozenset({"backward", "grad"})


def _is_going_back() -> bool:
    """Tell whether this thread is in a backward pass of Paddle's, which has no name for that: by who called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _BACKWARD and str(frame.f_globals.get("__name__")).startswith("paddle."):
            return True
        frame = frame.f_back
    return False
