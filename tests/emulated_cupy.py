"""What numbridge asks of CuPy, by NumPy: the memory of emulated devices is the CPU's.

It allocates, fills and copies, so that arrays can be made on emulated devices. Nothing of CuPy itself is tested by this.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from emulated_cuda import Emulation, emulated_cuda
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.storage import cupy_memory


class _Memory:
    """Memory of an emulated device's, for as long as this is held."""

    def __init__(self, emulation: Emulation, size: int) -> None:
        self.ptr = emulation.allocate(max(size, 1))
        weakref.finalize(self, emulation.free, self.ptr)

    def memset_async(self, value: int, size: int) -> None:
        ctypes.memset(self.ptr, value, size)


class _Array(np.ndarray):
    """An array on memory that a pointer names."""

    def __new__(cls, shape: Any, dtype: Any, pointer: SimpleNamespace, strides: Any) -> _Array:
        item = np.dtype(dtype).itemsize
        reach = [0 if 0 in shape else step * (extent - 1) for extent, step in zip(shape, strides, strict=True)]
        low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + item
        memory = (ctypes.c_uint8 * (high - low)).from_address(pointer.ptr + low)
        made = super().__new__(cls, shape, dtype, memory, -low, strides)
        made.pointer = pointer
        return made

    def __array_finalize__(self, other: Any) -> None:
        self.pointer = getattr(other, "pointer", None)

    @property
    def data(self) -> Any:
        address = self.ctypes.data
        return SimpleNamespace(
            ptr=address, copy_from_device_async=lambda source, size: ctypes.memmove(address, source.ptr, size)
        )

    def set(self, values: np.ndarray) -> None:
        self[...] = values

    def get(self, out: np.ndarray, blocking: bool) -> None:
        out[...] = self


def _stream() -> Any:
    return SimpleNamespace(record=lambda: None, wait_event=lambda event: None)


@contextlib.contextmanager
def emulated_devices() -> Iterator[Emulation]:
    """Let this process have CUDA devices whose kernels run, and arrays on them."""
    with emulated_cuda() as emulation:
        for ordinal in range(cuda_driver.devices().driver.count()):
            cuda_driver.devices().prepare(ordinal)
        cuda = SimpleNamespace(
            Device=lambda ordinal: contextlib.nullcontext(),
            alloc=lambda size: _Memory(emulation, size),
            UnownedMemory=lambda address, size, owner, ordinal: SimpleNamespace(ptr=address, owner=owner),
            MemoryPointer=lambda memory, offset: SimpleNamespace(ptr=memory.ptr + offset, memory=memory),
            get_current_stream=_stream,
        )
        made = SimpleNamespace(
            cuda=cuda,
            ndarray=_Array,
            asarray=np.asarray,
            asnumpy=lambda array: np.array(array, order="C", subok=False),
            ascontiguousarray=lambda array: np.array(array, order="C", subok=True),
            empty=lambda shape, dtype: np.empty(shape, dtype).view(_Array),
        )
        real, cupy_memory.cupy = cupy_memory.cupy, lambda: made
        try:
            yield emulation
        finally:
            cupy_memory.cupy = real
