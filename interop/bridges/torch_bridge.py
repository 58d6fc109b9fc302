"""The room of PyTorch: tensors both ways on the same memory, with their gradients; dtypes, devices and streams.

Torch's DLPack exchange function reads a tensor in compiled code and checks nothing, so a conjugated, negated, sparse, fake
or vmapped tensor would be misread. Compiled code therefore looks at the tensor's dispatch key set first. Where in a tensor
that lies is found once, by probing, and if probing fails every tensor goes through Python, which asks torch itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from numbridge.arrays.array import Array
from numbridge.arrays.gradients import joining
from numbridge.bridges import tensor_probe, torch_backward
from numbridge.bridges.installed import needed
from numbridge.bridges.shared_memory import is_own, keep_lent, read_only
from numbridge.bridges.tensor_room import READ_ONLY_MARK, adopted, exported, join_gradients, wants_gradient
from numbridge.bridges.torch_tracing import keep_dynamo_out
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import CPU, Device, cuda_unavailable, get_device
from numbridge.kernels.errors import BufferAccessError, ConversionError, DeviceError, NumbridgeTypeError
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Reader, exchange_function, record_from_capsule
from numbridge.kernels.scalars import ALL, scalar_of
from numbridge.storage.leases import is_lent, lend
from numbridge.storage.memory import adopt, native
from numbridge.streams.streams import Stream, get_stream

if TYPE_CHECKING:
    import torch

__all__ = [
    "NAME",
    "check_deposit",
    "device_from_torch",
    "device_to_torch",
    "dtype_from_torch",
    "dtype_to_torch",
    "from_torch",
    "gradient_of",
    "reader",
    "requires_grad_of",
    "set_gradient",
    "stream_from_torch",
    "stream_to_torch",
    "to_torch",
    "unwrap_array",
    "wrap_object",
]

NAME = "torch"
_IMPLEMENTATION_SIZE = 192

# Before a compiled function can call anything of numbridge
keep_dynamo_out()


def reader(kind: type) -> Reader | None:
    """Return how compiled code reads `torch.Tensor` and its subclasses; None for torch's other classes."""
    import torch

    if not issubclass(kind, torch.Tensor):
        return None
    if issubclass(kind, torch.nn.parameter.UninitializedTensorMixin):
        return Reader(nb.ADAPTER, protocol="refused", adapter=_refuse_uninitialized)
    exchange = exchange_function(torch.Tensor, dl.EXCHANGE_READ)
    found = _probed() if exchange else None
    if found is None:
        return Reader(
            *(nb.ADAPTER, 0, "DLPack", nb.GUARDED),
            guard=_guard,
            lost_gradient=_lost_gradient(),
            stream=_stream_function(),
            adapter=_through_python,
            inspect=_inspect,
        )
    return replace(found, function=exchange, stream=_stream_function())


@functools.cache
def _stream_function() -> int:
    import torch

    return exchange_function(torch.Tensor, dl.EXCHANGE_STREAM)


def _refuse_uninitialized(tensor: Any) -> Any:
    raise BufferAccessError(f"a {type(tensor).__name__} has no memory before its module has run once; run it first")


@functools.cache
def _probed() -> Reader | None:
    """Return a reader that knows where tensors keep their key set, autograd state and version, or None."""
    return tensor_probe.undisturbed(_probe)


def _probe() -> Reader | None:
    import torch

    make = functools.partial(torch.zeros, 3, device="cpu")
    conjugated = make(dtype=torch.complex64).conj()
    strange = [conjugated, conjugated.imag, make().to_sparse(), torch.zeros(3, device="meta")]
    tensors = [make(), make(requires_grad=True), make(dtype=torch.int32), torch.nn.Parameter(make()), *strange]

    def implementation(tensor: Any) -> int:
        return int(tensor._cdata)

    keys = tensor_probe.where(implementation, [(t, _keys(t)) for t in tensors], _IMPLEMENTATION_SIZE)
    objects = tensor_probe.where(id, [(t, t._cdata) for t in tensors], torch.Tensor.__basicsize__)
    autograd, whole = _autograd_offset(implementation), make().new_zeros(40)
    parts = [whole, whole[5:], whole[7:], whole[11:13]]
    begins = tensor_probe.where(implementation, [(t, t.storage_offset()) for t in parts], _IMPLEMENTATION_SIZE)
    version = tensor_probe.version(
        make, implementation, lambda t: t.add_(1), lambda t: t._version, _IMPLEMENTATION_SIZE
    )
    implementation_at, keys_at, allowed = tensor_probe.only(objects), tensor_probe.only(keys), _ordinary_keys()
    begin_at = tensor_probe.only(begins)
    if implementation_at is None or keys_at is None or autograd is None or version is None or begin_at is None:
        return None
    if not all(_keys(tensor) & ~allowed for tensor in strange):
        return None
    return Reader(
        nb.EXCHANGE,
        protocol="DLPack exchange table, after a look at the key set",
        implementation=implementation_at,
        keys=keys_at,
        allowed=allowed,
        autograd=autograd,
        version=version[0],
        counter=version[1],
        offset=begin_at,
        guard=_guard,
        lost_gradient=_lost_gradient(),
        inspect=_inspect,
        # What `x.data = y`, `x.set_(y)` and `module.double()` take away from a tensor, others may still use.
        keeper=torch.Tensor.untyped_storage,
    )


def _keys(tensor: Any) -> int:
    import torch

    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _ordinary_keys() -> int:
    """Return the key-set bits of tensors whose memory is just what it seems."""
    import torch

    make = functools.partial(torch.zeros, 3, device="cpu")
    dtypes = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
    ordinary = [make(dtype=dtype) for dtype in dtypes]
    leaf = make(requires_grad=True)
    ordinary += [leaf, leaf * 1, leaf.detach(), torch.nn.Parameter(make()), ordinary[0][1:], ordinary[0][0]]
    with torch.inference_mode():
        ordinary.append(make())
    bits = 0
    for tensor in ordinary:
        bits |= _keys(tensor)
    # A tensor on CUDA has the same keys with CUDA's in place of the CPU's; no device is needed to know them.
    key, keys = torch._C.DispatchKey, torch._C.DispatchKeySet
    for found in (key.CUDA, key.AutogradCUDA, key.AutocastCUDA):
        bits |= int(keys(found).raw_repr())
    return bits


def _autograd_offset(implementation: Any) -> int | None:
    """Return where the pointer to the autograd state lies: null before ``requires_grad_()``, and not after."""
    import torch

    found = set(range(0, _IMPLEMENTATION_SIZE, 8))
    for dtype in (torch.float32, torch.float64, torch.complex64):
        tensor = torch.zeros(5, dtype=dtype, device="cpu")
        found = {o for o in found if tensor_probe.peek(implementation(tensor) + o) == 0}
        tensor.requires_grad_()
        found = {o for o in found if tensor_probe.peek(implementation(tensor) + o)}
    return tensor_probe.only(found)


def _through_python(tensor: Any) -> Any:
    """Return a record's capsule of a tensor, after asking torch everything that compiled code cannot.

    A record takes no guard along, so one of a tensor that may not be written now is read-only.
    """
    _inspect(tensor)
    record = record_from_capsule(tensor.detach().__dlpack__(max_version=(dl.MAJOR_VERSION, dl.MINOR_VERSION)))
    if _refusal(tensor) is None:
        return record
    return read_only(record, dl.RECORD_IMMUTABLE if _is_immutable(tensor) else 0)


def _inspect(tensor: Any) -> None:
    """Raise what keeps a tensor's memory from being just what it seems."""
    import torch

    for found, problem, remedy in _oddities(tensor):
        if found:
            raise BufferAccessError(f"a torch tensor that is {problem} cannot be shared; {remedy}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise DeviceError(f"a torch tensor on {tensor.device} cannot be shared: numbridge runs on the CPU and on CUDA")
    if type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        raise BufferAccessError(
            f"a {type(tensor).__name__} decides itself what its memory means (__torch_dispatch__); unwrap it first"
        )
    if tensor.layout != torch.strided:
        raise BufferAccessError(f"a torch tensor of layout {tensor.layout} cannot be shared; use .to_dense()")
    if tensor.dtype not in _dtypes():
        raise ConversionError(
            f"torch dtype {tensor.dtype} has no counterpart; numbridge has {', '.join(row.name for row in ALL)}"
        )
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        raise BufferAccessError("a torch tensor whose storage was resized to 0 has no memory; resize it back first")
    probed = _probed()
    if probed is not None and _keys(tensor) & ~probed.allowed:
        raise BufferAccessError(
            f"a torch tensor with dispatch keys {torch._C._dispatch_keys(tensor)} cannot be shared; pass an ordinary tensor"
        )


def _oddities(tensor: Any) -> list[tuple[bool, str, str]]:
    import torch
    from torch._subclasses import FakeTensor

    functorch = torch._C._functorch
    transformed = functorch.is_batchedtensor(tensor) or functorch.is_gradtrackingtensor(tensor)
    return [
        (isinstance(tensor, FakeTensor), "fake (it has a shape and no data)", "launch on real tensors"),
        (transformed, "inside torch.func.vmap or grad", "launch outside the transform"),
        (functorch.is_functionaltensor(tensor), "functionalized", "launch outside the transform"),
        (tensor.is_meta, "on the meta device (it has no data)", "create it on the CPU"),
        (tensor.is_sparse, "sparse", "use .to_dense()"),
        (tensor.is_nested, "nested", "use torch.nested.to_padded_tensor"),
        (tensor.is_quantized, "quantized", "use .int_repr() or .dequantize()"),
        (tensor.is_mkldnn, "in MKL-DNN's layout", "use .to_dense()"),
        (bool(tensor.is_conj()), "lazily conjugated", "use .resolve_conj()"),
        (bool(tensor.is_neg()), "lazily negated", "use .resolve_neg()"),
        (bool(tensor._is_zerotensor()), "a lazy zero without memory", "use torch.zeros_like(tensor)"),
    ]


def _guard(tensor: Any) -> None:
    """Raise if a kernel may not write to a tensor now."""
    refusal = _refusal(tensor)
    if refusal is not None:
        raise BufferAccessError(refusal)


def _refusal(tensor: Any) -> str | None:
    """Return why a kernel may not write to a tensor now, or None if it may."""
    import torch
    from torch.autograd import forward_ad

    if _is_immutable(tensor):
        return "this torch tensor shares the memory of an immutable JAX array; write to tensor.clone()"
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        return (
            "it is a dual tensor of forward-mode autograd, whose tangent would not follow; pass unpack_dual(x).primal"
        )
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return None
    what = "a leaf tensor that requires grad" if tensor.is_leaf else "a tensor that autograd tracks (requires grad)"
    return f"it is {what}, and autograd would not see the write; launch under torch.no_grad(), or pass tensor.detach()"


@functools.cache
def _lost_gradient() -> Callable[[Any], str | None]:
    """Return a function that says why a gradient is lost if a kernel reads a tensor now, or None."""
    from torch import is_grad_enabled

    # Compiled code calls this before launches under no_grad(), so it looks up as little as possible.
    def lost_gradient(tensor: Any) -> str | None:
        if not (is_grad_enabled() and tensor.requires_grad):
            return None
        return (
            "this torch tensor requires grad, and the gradient will not flow: torch sees nothing of a direct launch; make an "
            "operator of the kernel (nb.torch_op), record launches (nb.Tape), or, if no gradient is wanted, pass "
            "tensor.detach() or launch under torch.no_grad()"
        )

    return lost_gradient


def _is_immutable(tensor: Any) -> bool:
    base = tensor._base
    marked = getattr(tensor, READ_ONLY_MARK, False) or (base is not None and getattr(base, READ_ONLY_MARK, False))
    return bool(marked) or is_lent(tensor.data_ptr())


def from_torch(
    t: torch.Tensor,
    dtype: Any = None,
    requires_grad: bool | None = None,
    grad: Any = None,
    return_ctype: bool = False,
    retain_grad: bool = False,
) -> Any:
    """Return an Array that shares a tensor's memory and keeps it alive.

    Parameters
    ----------
    t : torch.Tensor
        Strided, on the CPU or on CUDA, of any rank. Launches on the array follow torch's current stream.
    dtype : dtype_like, optional
        Must be the tensor's; sharing does not convert. Integers may be those of the other sign, and booleans integers of 8 bits.
    requires_grad : bool, optional
        By default the array follows the tensor, now and later, unless `grad` is given, which implies it.
    grad : torch.Tensor or Array, optional
        The gradient, which becomes the tensor's own; by default that, which torch allocates when it is first needed.
    return_ctype : bool
        Return a light descriptor instead: kernels take it, and nothing else does.
    retain_grad : bool
        Whether a tape's gradient is that of what the array holds last; see `Array.retain_grad`.

    Raises
    ------
    BufferAccessError, DeviceError
        If the memory is not just what it seems (sparse, conjugated, fake, ...), or on another kind of device.
    """
    return keep_lent(adopted(t, "torch", _tensor, dtype, requires_grad, grad, return_ctype, retain_grad))


def _tensor(t: Any) -> Any:
    torch = needed("torch")

    if not isinstance(t, torch.Tensor):
        raise NumbridgeTypeError(
            f"t is of type {type(t).__name__}; it must be a torch.Tensor (nb.asarray takes others)"
        )
    return t


@functools.cache
def _export_function() -> int:
    torch = needed("torch")

    return exchange_function(torch.Tensor, dl.EXCHANGE_TO_OBJECT)


@functools.cache
def _export() -> Any:
    return native().exporter(_export_function(), _stream_function())


def to_torch(a: Array, requires_grad: bool | None = None) -> Any:
    """Return a `torch.Tensor` that shares an Array's memory and keeps it alive.

    An Array that was adopted from a tensor gives that very tensor back, so autograd and identity survive. A tensor made of
    an Array that requires grad is a leaf that requires grad; from then on the Array's ``grad`` is the tensor's, which is
    allocated when it is first needed. One made of a view of such an Array is a view of the Array's tensor, to which torch
    carries its gradient.

    Parameters
    ----------
    a : Array
        On CUDA, torch's current stream waits for what was launched on it so far. Read-only memory is refused, except a JAX
        array's, which JAX itself hands out so; numbridge's kernels then refuse to write to the tensor, and torch's own
        operations must not.
    requires_grad : bool, optional
        By default the array's.

    Raises
    ------
    BufferAccessError
        If the memory is read-only, or has negative strides, which torch cannot express; `a.clone()` copies.
    NumbridgeTypeError
        If `requires_grad` is asked of integers, which have no gradient.
    """
    # Compiled code takes what needs no thought: a writable array that no tensor and no gradient belongs to, of torch's stream.
    made = None if requires_grad else _export()(a)
    if made is not None:
        return made
    if not isinstance(a, Array):
        raise NumbridgeTypeError(f"a is of type {type(a).__name__}; it must be an nb.Array (see nb.asarray)")
    return _to_torch(a, requires_grad)


def _to_torch(array: Array, requires_grad: bool | None) -> Any:
    wanted = wants_gradient(array, requires_grad)
    with joining if wanted else nullcontext():
        return _joined(array, wanted)


def _joined(array: Array, wanted: bool) -> Any:
    import torch

    source = array._source
    if isinstance(source, torch.Tensor) and is_own(array, source):
        return source if wanted == source.requires_grad else source.detach().requires_grad_(wanted)
    made, immutable = exported(array, _export_function(), "a torch tensor", _stream_function())
    if immutable:
        lend(array)
        setattr(made, READ_ONLY_MARK, True)
        made = made.view_as(made)  # a view carries autograd state, so compiled code asks the guard before it writes
        setattr(made, READ_ONLY_MARK, True)
    return join_gradients(array, made, wanted, lambda tensor: tensor.requires_grad_(True), to_torch, _part)


def _part(whole: Any, made: Any) -> Any:
    """Return the view of a tensor that lies where another one does."""
    begin = whole.storage_offset() + (made.data_ptr() - whole.data_ptr()) // made.itemsize
    return whole.as_strided(made.shape, made.stride(), begin)


@functools.cache
def _dtypes() -> dict[Any, Any]:
    torch = needed("torch")

    return {getattr(torch, row.name): row for row in ALL if hasattr(torch, row.name)}


def dtype_from_torch(torch_dtype: Any) -> Any:
    """Return numbridge's dtype, which is the scalar type, of a torch dtype."""
    row = _dtypes().get(torch_dtype)
    if row is None:
        raise ConversionError(
            f"torch dtype {torch_dtype!r} has no counterpart; numbridge has {', '.join(r.name for r in ALL)}"
        )
    return row.numpy.type


def dtype_to_torch(dtype: Any) -> torch.dtype:
    """Return the torch dtype of a numbridge dtype."""
    row = scalar_of(dtype)
    for found, known in _dtypes().items():
        if known is row:
            return found
    raise ConversionError(f"this torch has no dtype {row.name}")


def device_from_torch(torch_device: Any) -> Device:
    """Return the device of a `torch.device` or its name.

    Raises
    ------
    DeviceError
        If it is neither the CPU nor a CUDA device, or torch knows no such device.
    """
    torch = needed("torch")

    if not isinstance(torch_device, torch.device | str | int):
        raise NumbridgeTypeError(
            f"torch_device is of type {type(torch_device).__name__}; it must be a torch.device or its name, such as 'cuda:0'"
        )
    try:
        given = torch.device(torch_device)
    except RuntimeError as error:
        raise DeviceError(f"torch_device is {torch_device!r}, which torch refuses: {error}") from None
    if given.type == "cpu":
        return CPU
    if given.type == "cuda":
        return Device("cuda", given.index or 0)
    raise DeviceError(f"torch device {given} has no counterpart; numbridge has 'cpu' and 'cuda'")


def device_to_torch(device: Device | str | None = None) -> str:
    """Return torch's name for a device."""
    return device.name if isinstance(device, Device) else get_device(device).name


def stream_from_torch(stream_or_device: Any = None) -> Stream:
    """Return the stream of a `torch.cuda.Stream`, or torch's current one on a device.

    Parameters
    ----------
    stream_or_device : torch.cuda.Stream, torch.device or str, optional
        torch's current stream on its current device by default.
    """
    torch = needed("torch")

    if not cuda_driver.driver_count():
        raise cuda_unavailable("stream_from_torch")
    found = stream_or_device
    if not isinstance(found, torch.Stream):
        found = torch.cuda.current_stream(found)
    return Stream(f"cuda:{found.device_index}", cuda_stream=found)


def stream_to_torch(stream_or_device: Any = None) -> Any:
    """Return a `torch.cuda.ExternalStream` of a stream, which must outlive it, or of a device's current stream.

    Parameters
    ----------
    stream_or_device : Stream, Device or str, optional
        The current stream of the current CUDA device by default.
    """
    torch = needed("torch")

    if not cuda_driver.driver_count():
        raise cuda_unavailable("stream_to_torch")
    found = stream_or_device if isinstance(stream_or_device, Stream) else get_stream(stream_or_device)
    made = torch.cuda.ExternalStream(found.cuda_stream, device=found.device.name)
    made.numbridge_stream = found  # torch does not own what it stands for
    return made


def wrap_object(obj: Any) -> Array:
    """Return `from_torch` of a tensor."""
    made: Array = from_torch(obj)
    return made


def unwrap_array(array: Array) -> Any:
    """Return `to_torch` of an array."""
    return to_torch(array)


def requires_grad_of(obj: Any) -> bool:
    """Tell whether a tensor requires grad."""
    return bool(obj.requires_grad)


def gradient_of(obj: Any, create: bool) -> Array | None:
    """Return a tensor's ``.grad``, made of zeros by torch's allocator if there is none and `create` is true.

    While torch goes back, it is what the running backward returns for the tensor: see `torch_backward`.
    """
    import torch

    # Reading .grad of a tensor that is no leaf makes torch warn, since it is never filled in.
    if not obj.is_leaf and not obj.retains_grad:
        return None
    if torch_backward.is_returned(obj):
        gradient = torch_backward.gradient_to_return(obj, create)
        return None if gradient is None else adopt(gradient)
    if obj.grad is None:
        if not create:
            return None
        obj.grad = torch.zeros_like(obj)
    return adopt(obj.grad)


def set_gradient(obj: Any, gradient: Array | None) -> None:
    """Make an array, or nothing, a tensor's ``.grad``, or what the running backward returns for it."""
    tensor = None if gradient is None else to_torch(gradient, requires_grad=False)
    if obj.is_leaf and torch_backward.is_returned(obj):
        torch_backward.set_gradient_to_return(obj, tensor)
    else:
        obj.grad = tensor


def check_deposit(obj: Any) -> None:
    """Refuse a tape's gradient where torch is about to add another one."""
    torch_backward.check_deposit(obj)
