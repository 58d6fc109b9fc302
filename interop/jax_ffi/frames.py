"""A call frame as Python sees it: buffers, attributes, context, and how an error is handed back.

For what is not on the fast road: callbacks and explanations. Everything is valid only while XLA waits for the answer.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.kernels import scalars
from numbridge.kernels.errors import ConversionError

__all__ = ["Buffer", "Frame", "error_in"]

_NAMES = {code: name for name, code in xla.DATA_TYPES}
_OTHER_NAMES = {code: name for name, code in xla.OTHER_DATA_TYPES}
_CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True)
class Buffer:
    """An argument or result: address, shape, and the element's row, None for a type that numbridge does not have."""

    data: int
    shape: tuple[int, ...]
    scalar: scalars.Scalar | None
    code: int

    def __str__(self) -> str:
        """Return such as ``float32[3, 4]``."""
        name = self.scalar.name if self.scalar else _OTHER_NAMES.get(self.code, f"XLA type {self.code}")
        return f"{name}[{', '.join(map(str, self.shape))}]"


class Frame:
    """One call of a handler, read from the frame at an address."""

    def __init__(self, address: int) -> None:
        self.address = address
        self._frame = xla.XLA_FFI_CallFrame.from_address(address)

    @property
    def stage(self) -> int:
        """The execution stage."""
        return int(self._frame.stage)

    @property
    def api(self) -> xla.XLA_FFI_Api:
        """XLA's functions."""
        return xla.XLA_FFI_Api.from_address(self._frame.api)

    @property
    def inputs(self) -> list[Buffer]:
        """The arguments."""
        return _buffers(self._frame.args.size, self._frame.args.args)

    @property
    def outputs(self) -> list[Buffer]:
        """The results."""
        return _buffers(self._frame.rets.size, self._frame.rets.rets)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes: numbers, strings, NumPy arrays (copies) and dictionaries of such."""
        return _attributes(self._frame.attrs)

    @property
    def metadata(self) -> xla.XLA_FFI_Metadata | None:
        """What XLA asks about the handler, if this call is such a question."""
        place = self._frame.extension_start
        while place:
            base = xla.XLA_FFI_InternalExtension.from_address(place)
            if base.type == xla.EXTENSION_METADATA:
                found = xla.XLA_FFI_Metadata_Extension.from_address(place)
                return xla.XLA_FFI_Metadata.from_address(found.metadata)
            place = base.next
        return None

    def stream(self) -> int | None:
        """Return the address of the platform's stream, or None where there is none."""
        arguments = xla.XLA_FFI_Stream_Get_Args(ctypes.sizeof(xla.XLA_FFI_Stream_Get_Args), None, self._frame.ctx, None)
        return arguments.stream if self._ask(self.api.XLA_FFI_Stream_Get, arguments) else None

    def device_ordinal(self) -> int | None:
        """Return the number of the device among its kind, or None where XLA does not say."""
        size = ctypes.sizeof(xla.XLA_FFI_DeviceOrdinal_Get_Args)
        arguments = xla.XLA_FFI_DeviceOrdinal_Get_Args(size, None, self._frame.ctx, 0)
        return arguments.device_ordinal if self._ask(self.api.XLA_FFI_DeviceOrdinal_Get, arguments) else None

    def _ask(self, function: int, arguments: Any) -> bool:
        error = _CREATE(function)(ctypes.addressof(arguments))
        if error:
            # An XLA_FFI_Error_Destroy_Args is struct_size, extension_start, error.
            destroy = (ctypes.c_uint64 * 3)(24, 0, error)
            _CREATE(self.api.XLA_FFI_Error_Destroy)(ctypes.addressof(destroy))
        return not error


def _buffers(count: int, array: int) -> list[Buffer]:
    places = (ctypes.c_void_p * count).from_address(array) if count else ()
    return [_buffer(xla.XLA_FFI_Buffer.from_address(place or 0)) for place in places]


def _buffer(found: xla.XLA_FFI_Buffer) -> Buffer:
    shape = tuple((ctypes.c_int64 * found.rank).from_address(found.dims)) if found.rank else ()
    name = _NAMES.get(found.dtype)
    return Buffer(found.data or 0, shape, scalars.by_name(name) if name else None, found.dtype)


def _attributes(found: xla.XLA_FFI_Attrs) -> dict[str, Any]:
    if not found.size:
        return {}
    kinds = (ctypes.c_int * found.size).from_address(found.types)
    names = (ctypes.c_void_p * found.size).from_address(found.names)
    values = (ctypes.c_void_p * found.size).from_address(found.attrs)
    return {_string(name or 0): _value(kind, at or 0) for kind, name, at in zip(kinds, names, values, strict=True)}


def _string(place: int) -> str:
    span = xla.XLA_FFI_ByteSpan.from_address(place)
    return ctypes.string_at(span.ptr, span.len).decode() if span.len else ""


def _value(kind: int, place: int) -> Any:
    if kind == xla.ATTRIBUTE_STRING:
        return _string(place)
    if kind == xla.ATTRIBUTE_SCALAR:
        scalar = xla.XLA_FFI_Scalar.from_address(place)
        return _elements(scalar.dtype, scalar.value, 1)[0].item()
    if kind == xla.ATTRIBUTE_ARRAY:
        array = xla.XLA_FFI_Array.from_address(place)
        return _elements(array.dtype, array.data, array.size)
    return _attributes(xla.XLA_FFI_Attrs.from_address(place))


def _elements(code: int, address: int, count: int) -> np.ndarray[Any, Any]:
    name = _NAMES.get(code)
    if name is None:
        raise ConversionError(
            f"an attribute of XLA's type {code} has no counterpart; numbridge has {', '.join(_NAMES.values())}"
        )
    dtype = scalars.by_name(name).numpy
    return np.frombuffer(ctypes.string_at(address, count * dtype.itemsize), dtype) if count else np.zeros(0, dtype)


def error_in(frame: Frame, message: str, code: int = xla.INVALID_ARGUMENT) -> int:
    """Return a new XLA error with a text, which XLA takes over."""
    # The text ends at a zero, and what UTF-8 cannot say must not raise here, where nothing can be raised.
    text = message.replace("\0", "\\0").encode(errors="backslashreplace")
    arguments = xla.XLA_FFI_Error_Create_Args(ctypes.sizeof(xla.XLA_FFI_Error_Create_Args), None, text, code)
    return int(_CREATE(frame.api.XLA_FFI_Error_Create)(ctypes.addressof(arguments)) or 0)
