"""Python functions called by XLA: `register_ffi_callback`, and the frame-to-arrays step that other callbacks share.

What XLA lends for a call is lent on: buffers become Arrays that must be gone when the function returns. An exception becomes an
XLA error with the traceback's text. Nothing here is fast; that is what kernels are for.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numbridge.arrays.array import Array
from numbridge.bridges.installed import needed
from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi.frames import Buffer, Frame, error_in
from numbridge.jax_ffi.header import installed_version
from numbridge.jax_ffi.targets import PLAN_TARGET, TARGET
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import CPU, Device
from numbridge.kernels.errors import (
    BufferAccessError,
    ConversionError,
    DeviceError,
    NumbridgeTypeError,
    NumbridgeValueError,
)
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.storage.memory import native, wrap

__all__ = ["CallContext", "lent", "register_ffi_callback", "register_function"]

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
Function = Callable[[list[Array], list[Array], dict[str, Any], "CallContext"], Any]
_functions: dict[tuple[str, str], Function] = {}
_kept: list[Any] = []
_lock = threading.Lock()
# A finalizer that takes a second is not waited for; it may also be what called XLA.
_MOST_WAITS = 1000


@dataclass(frozen=True)
class CallContext:
    """Where XLA runs a call.

    Attributes
    ----------
    device : Device
        Where the buffers lie.
    stream : int or None
        The handle of the CUDA stream that the call is ordered on; None on the CPU, where it is done when the function returns.
    """

    device: Device
    stream: int | None


def register_ffi_callback(name: str, func: Function) -> None:
    """Let `jax.ffi.ffi_call` call a Python function.

    Parameters
    ----------
    name : str
        The target's name. Registering a name again replaces the function.
    func : callable
        ``func(inputs, outputs, attrs, ctx)``: `inputs` and `outputs` are lists of Arrays on XLA's memory, inputs read-only,
        outputs to be written, which hold anything at first; `attrs` is a dictionary of Python numbers, strings and NumPy
        arrays; `ctx` is a `CallContext`.
        The Arrays have DLPack and ``__array_interface__`` (on CUDA ``__cuda_array_interface__``), and go into kernels as they
        are; on CUDA these are launched on `ctx.stream`. They must not outlive the call: it is an error if one, or a view of one,
        is still there afterwards. What an exception says becomes the text of XLA's error.

    Raises
    ------
    NumbridgeTypeError
        If `name` is no string, or ``func`` cannot be called with four arguments.
    NumbridgeValueError
        If XLA has a target of that name which is no callback.

    Notes
    -----
    The function runs on whatever thread XLA chooses, with the GIL. It must not wait for JAX's own computations.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numbridge as nb
    >>> def double(inputs, outputs, attrs, ctx):
    ...     outputs[0].numpy()[...] = inputs[0].numpy() * attrs["factor"]
    >>> nb.register_ffi_callback("docs_double", double)
    >>> call = jax.ffi.ffi_call("docs_double", jax.ShapeDtypeStruct((3,), jnp.float32))
    >>> call(jnp.arange(3.0), factor=2.0).tolist()
    [0.0, 2.0, 4.0]
    """
    if type(name) is not str:
        raise NumbridgeTypeError(f"register_ffi_callback: name is {name!r}; it must be a string")
    if name in (TARGET, PLAN_TARGET):
        raise NumbridgeValueError(
            f"register_ffi_callback: name is {name!r}, which is numbridge's own target for kernels; choose another one"
        )
    if not name or "\0" in name or not _is_text(name):
        raise NumbridgeValueError(
            f"register_ffi_callback: name is {name!r}; it must be a string of at least one character, and text, without zeros"
        )
    if not callable(func):
        raise NumbridgeTypeError(f"register_ffi_callback: func is {func!r}; it must be callable")
    _check_parameters(func)
    register_function(name, func)


def _check_parameters(func: Function) -> None:
    """Refuse a function that does not take what a callback is given, before XLA calls it."""
    try:
        signature = inspect.signature(func)
    except ValueError:  # Python does not say
        return
    try:
        signature.bind("inputs", "outputs", "attrs", "ctx")
    except TypeError:
        raise NumbridgeTypeError(
            f"register_ffi_callback: func is {func!r}, whose parameters are {signature}; it is called with four arguments, as "
            "func(inputs, outputs, attrs, ctx)"
        ) from None


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def register_function(name: str, function: Function) -> None:
    """Make a Python function the answer to a target's calls, on the CPU and where there is CUDA."""
    for platform in ("cpu", "CUDA") if cuda_driver.driver_count() else ("cpu",):
        _register((name, platform), function)


def _register(key: tuple[str, str], function: Function) -> None:
    jax = needed("jax")

    with _lock:
        if key not in _functions:
            handler = _handler(key)
            # XLA may have taken over the address even where it refuses.
            _kept.append(handler)
            address = ctypes.cast(handler, ctypes.c_void_p).value
            try:
                jax.ffi.register_ffi_target(key[0], jax.ffi.pycapsule(address), platform=key[1])
            except RuntimeError as error:
                raise NumbridgeValueError(
                    f"register_ffi_callback: name is {key[0]!r}, which XLA refuses, most likely because it has a target "
                    f"of that name already; choose another one ({error})"
                ) from None
        _functions[key] = function


def _handler(key: tuple[str, str]) -> Any:
    version = installed_version()

    def handle(address: int) -> int:
        frame = Frame(address)
        metadata = frame.metadata
        if metadata is not None:
            metadata.api_version.major_version, metadata.api_version.minor_version = version
            return 0
        return answer(frame, key, _functions[key]) if frame.stage == xla.STAGE_EXECUTE else 0

    return _HANDLER(handle)


def answer(frame: Frame, key: tuple[str, str], function: Function) -> int:
    """Call a function for a frame; return 0, or the XLA error of what went wrong."""
    name, platform = key
    try:
        _call(frame, function, CallContext(CPU, None) if platform == "cpu" else _cuda_context(frame))
    except BaseException:  # noqa: BLE001 - no exception may cross into XLA
        text = f"numbridge: the Python function of {name!r} raised an exception:\n{traceback.format_exc()}"
        return error_in(frame, text, xla.INTERNAL)
    return 0


def _cuda_context(frame: Frame) -> CallContext:
    ordinal = frame.device_ordinal()
    if ordinal is None:
        raise DeviceError("XLA does not say on which CUDA device this call runs")
    cuda_driver.devices().prepare(ordinal)
    return CallContext(Device("cuda", ordinal), frame.stream() or 0)


def _call(frame: Frame, function: Function, context: CallContext) -> None:
    lease = Lease() if context.stream is None else CudaLease(context.stream)
    inputs = [lent(x, f"inputs[{k}]", lease, context, read_only=True) for k, x in enumerate(frame.inputs)]
    outputs = [lent(x, f"outputs[{k}]", lease, context, read_only=False) for k, x in enumerate(frame.outputs)]
    function(inputs, outputs, frame.attributes, context)
    if context.stream is not None:
        # What launches named the call's own stream for: XLA takes its memory back in the order of that.
        cuda_driver.devices().let_go(context.device.ordinal, context.stream, functools.partial(_is_of, lease))
    del inputs, outputs
    watched = weakref.ref(lease)
    del lease
    check_returned(watched)


def _is_of(lease: Lease, argument: Any) -> bool:
    """Tell whether an argument is an Array of lent memory, or a view of one."""
    return isinstance(argument, Array) and native().owner(argument._record) is lease


class Lease:
    """What owns lent memory: as long as it lives, somebody still has a view."""

    __slots__ = ("__weakref__", "cycle")
    cycle: Lease


class CudaLease(Lease):
    """The same in CUDA memory, which is used on the stream of the call: array interfaces are how an owner says that."""

    __slots__ = ("_stream",)

    def __init__(self, stream: int) -> None:
        self._stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """No elements, and the stream."""
        # The protocol has no 0; 1 is the default stream.
        return {"shape": (0,), "typestr": "|u1", "data": (0, True), "version": 3, "stream": self._stream or 1}


def check_returned(watched: weakref.ref[Lease]) -> None:
    """Raise if somebody kept a view of memory that XLA takes back now."""
    if watched() is not None:
        _collect_garbage()
    if watched() is not None:
        raise BufferAccessError(
            "an array that XLA lent for this call, or a view of one, was kept beyond it, and its memory is XLA's again; keep a "
            "copy, such as x.clone() or np.array(x)"
        )


def _collect_garbage() -> None:
    """Have all garbage collected. While another thread does that, `gc.collect` does nothing and returns: then wait for it."""
    for _ in range(_MOST_WAITS):
        garbage = Lease()
        garbage.cycle, gone = garbage, weakref.ref(garbage)
        del garbage
        gc.collect()
        if gone() is None:
            return
        time.sleep(0.001)


def lent(buffer: Buffer, where: str, lease: Lease, context: CallContext, *, read_only: bool) -> Array:
    """Return an Array on a buffer's memory, on the stream of its call.

    Raises
    ------
    ConversionError
        If numbridge has no such element type.
    """
    if buffer.scalar is None:
        raise ConversionError(
            f"{where} is {buffer}, which has no counterpart among numbridge's dtypes; convert it with astype, inputs before the "
            "call and outputs behind it"
        )
    flags = dl.FLAG_READ_ONLY if read_only else 0
    kind, ordinal = (dl.CPU, 0) if context.stream is None else (dl.CUDA, context.device.ordinal)
    stream = () if context.stream is None else (context.stream,)
    tag = buffer.scalar.tag
    return wrap(native().new_record(lease, buffer.data, tag, kind, ordinal, buffer.shape, None, flags, *stream))
