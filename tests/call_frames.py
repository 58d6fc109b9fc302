"""XLA call frames made by hand, for the handlers of the CPU and of CUDA, and kernels that they call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

import numbridge as nb
from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as wl
from numbridge.jax_ffi.call_words import words
from numbridge.jax_ffi.plan import Number, Operand, Options, plan_call
from numbridge.jax_ffi.signature import signature

OPTIONS = Options(None, None, "broadcast_all", 256, False)
STREAM, ORDINAL = 0x5EED, 1


@nb.kernel
def add(a: nb.array[float], b: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = a[i] + b[i]


@nb.kernel
def scale(x: nb.array2d[float], s: float, n: int, out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = x[i, j] * s + n


@nb.kernel
def accumulate(x: nb.array[float], total: nb.array[float], seen: nb.array[float]):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i])
    if i > 0:
        seen[i] = x[i]


@dataclass(frozen=True)
class Elsewhere:
    """An array in the memory of a device."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self):
        return len(self.shape)


class Framed:
    """A call frame made by hand, with functions of XLA's that write down what they are given."""

    def __init__(self, name, words, arrays, results):
        self.words, self.arrays, self.results, self.errors, self.asked = words, arrays, results, [], []
        self.keep, self.ordinal_of_the_call = [], ORDINAL
        self.create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self._create)
        self.stream = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self._stream)
        self.ordinal = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self._ordinal)
        self.api = xla.XLA_FFI_Api(
            XLA_FFI_Error_Create=ctypes.cast(self.create, ctypes.c_void_p).value,
            XLA_FFI_Stream_Get=ctypes.cast(self.stream, ctypes.c_void_p).value,
            XLA_FFI_DeviceOrdinal_Get=ctypes.cast(self.ordinal, ctypes.c_void_p).value,
        )
        self.frame = xla.XLA_FFI_CallFrame(stage=xla.STAGE_EXECUTE, api=ctypes.addressof(self.api))
        self.frame.struct_size, self.frame.ctx = ctypes.sizeof(self.frame), 0xC7
        self.frame.args.size, self.frame.args.args = len(arrays), self._buffers(arrays)
        self.frame.rets.size, self.frame.rets.rets = len(results), self._buffers(results)
        self._attributes(name)

    def _create(self, address):
        made = xla.XLA_FFI_Error_Create_Args.from_address(address)
        self.errors.append((made.errc, made.message.decode()))
        return 77

    def _stream(self, address):
        asked = xla.XLA_FFI_Stream_Get_Args.from_address(address)
        self.asked.append(("stream", asked.struct_size, asked.ctx))
        asked.stream = STREAM
        return

    def _ordinal(self, address):
        asked = xla.XLA_FFI_DeviceOrdinal_Get_Args.from_address(address)
        self.asked.append(("ordinal", asked.struct_size, asked.ctx))
        asked.device_ordinal = self.ordinal_of_the_call
        return

    def _kept(self, value):
        self.keep.append(value)
        return ctypes.addressof(value)

    def _buffers(self, arrays):
        codes = dict(xla.DATA_TYPES)
        places = [
            self._kept(
                xla.XLA_FFI_Buffer(
                    48,
                    None,
                    codes[a.dtype.name],
                    a.ctypes.data if isinstance(a, np.ndarray) else a.address,
                    a.ndim,
                    self._kept((ctypes.c_int64 * a.ndim)(*a.shape)),
                )
            )
            for a in arrays
        ]
        return self._kept((ctypes.c_void_p * len(places))(*places))

    def _attributes(self, name):
        texts = [self._kept(ctypes.create_string_buffer(text.encode())) for text in ("kernel", "words", name)]
        sizes = (6, 5, len(name.encode()))
        spans = [self._kept(xla.XLA_FFI_ByteSpan(at, size)) for at, size in zip(texts, sizes, strict=True)]
        array = self._kept(xla.XLA_FFI_Array(xla.CODE_INT64, len(self.words), self.words.ctypes.data))
        attributes = self.frame.attrs
        attributes.size = 2
        attributes.types = self._kept((ctypes.c_int * 2)(xla.ATTRIBUTE_STRING, xla.ATTRIBUTE_ARRAY))
        attributes.names = self._kept((ctypes.c_void_p * 2)(*spans[:2]))
        attributes.attrs = self._kept((ctypes.c_void_p * 2)(spans[2], array))

    def run(self, handler=None):
        call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(handler or targets.room().handler)
        return call(ctypes.addressof(self.frame))


class Made(Framed):
    """The frame of a kernel's call.

    `inputs` are the kernel's, arrays or numbers; `given` are the frame's own arguments where these are others. With
    `symbolic`, its dimensions are those of one more argument, as where JAX does not know them.
    """

    def __init__(self, kernel, inputs, results, given=None, in_out=None, options=OPTIONS, symbolic=False, **changes):
        found = signature(f"kernel {kernel.name!r}", kernel.parameters, len(results), in_out)
        described = [a if isinstance(a, Number) else Operand(a.shape, a.dtype, False) for a in inputs]
        self.call = plan_call(kernel, found, options, described)
        given = given or [a for a in inputs if not isinstance(a, Number)]
        dims, references = self.call.dims, ()
        if symbolic:
            references = [-1 - (self.call.operands << wl.REFERENCE_SHIFT | axis) for axis in range(len(dims))]
            given = [*given, np.zeros((*dims, 0), np.uint8)]
        made = words(self.call, references)
        for offset, value in changes.items():
            made[getattr(wl, offset) // 8] = value
        super().__init__(kernel.name, made, given, results)
