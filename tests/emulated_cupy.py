"""What numbridge asks of CuPy, by NumPy: the memory of emulated devices is the CPU's.

It allocates, fills and copies, so that arrays can be made on emulated devices, and has streams that run everything at once, or
capture it. Nothing of CuPy itself is tested by this.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from emulated_cuda import Emulation, emulated_cuda
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.storage import cupy_memory
from numbridge.streams import graphs
from numbridge.streams import streams as streams_module


class _Streams:
    """The streams of an emulation's devices: the one that is current, and what those do that are captured."""

    def __init__(self, emulation: Emulation) -> None:
        self.driver = emulation._driver
        self.current = _Stream(0, 0, streams=self)
        self.asked = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda ordinal: self.current.ptr)

    @property
    def captures(self) -> bool:
        return self.current.is_capturing()

    def do(self, work: Callable[[], Any]) -> None:
        """Do something, or let a capture of the current stream do it whenever its graph is launched."""
        if self.captures:
            self.driver._does(self.current.ptr, "call", work)
        else:
            work()


_streams: list[_Streams] = []


class _Stream:
    def __init__(self, ptr: int, ordinal: int, *, streams: Any = None) -> None:
        self.ptr, self._streams = ptr, streams or _streams[-1]

    def use(self) -> None:
        self._streams.current = self

    def record(self, event: Any = None) -> None:
        """Everything before is done."""

    def wait_event(self, event: Any) -> None:
        """Everything before is done."""

    def is_capturing(self) -> bool:
        return self.ptr in self._streams.driver.capturing

    def begin_capture(self) -> None:
        self._streams.driver._begin_capture(self.ptr, 2)
        self._streams.driver.capturing.add(self.ptr)

    def end_capture(self) -> Any:
        self._streams.driver.capturing.discard(self.ptr)
        work = self._streams.driver.captures.pop(self.ptr)
        return SimpleNamespace(launch=lambda stream: [self._streams.driver._does(0, *what) for what in work])


class _ExternalStream(_Stream):
    """What CuPy warns of when it is made, and numbridge derives a class from that does not."""


class _Memory:
    """Memory of an emulated device's, for as long as this is held."""

    def __init__(self, emulation: Emulation, size: int) -> None:
        self.ptr = emulation.allocate(max(size, 1))
        weakref.finalize(self, emulation.free, self.ptr)

    def memset_async(self, value: int, size: int) -> None:
        address = self.ptr
        _streams[-1].do(lambda: ctypes.memset(address, value, size))


def _refuse_capture() -> None:
    if _streams[-1].captures:
        raise RuntimeError("the current stream is capturing, so synchronous API calls are disallowed")


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

        def copy(source: Any, size: int) -> None:
            _streams[-1].do(lambda: ctypes.memmove(address, source.ptr, size))

        return SimpleNamespace(ptr=address, copy_from_device_async=copy)

    def __setitem__(self, key: Any, value: Any) -> None:
        _streams[-1].do(lambda: super(_Array, self).__setitem__(key, value))

    def set(self, values: np.ndarray) -> None:
        _refuse_capture()
        self[...] = values

    def get(self, out: np.ndarray, blocking: bool) -> None:
        _refuse_capture()
        out[...] = self


def _to_host(array: Any) -> np.ndarray:
    _refuse_capture()
    return np.array(array, order="C", subok=False)


@contextlib.contextmanager
def emulated_devices(*, has_streams: bool = True) -> Iterator[Emulation]:
    """Let this process have CUDA devices whose kernels run, and arrays on them; streams may be somebody else's."""
    with emulated_cuda() as emulation:
        for ordinal in range(cuda_driver.devices().driver.count()):
            cuda_driver.devices().prepare(ordinal)
        _streams.append(streams := _Streams(emulation))
        emulation._driver.follow(ctypes.cast(streams.asked, ctypes.c_void_p).value or 0)
        handles = itertools.count(0x51000, 16)
        cuda = SimpleNamespace(
            Device=lambda ordinal: contextlib.nullcontext(),
            alloc=lambda size: _Memory(emulation, size),
            UnownedMemory=lambda address, size, owner, ordinal: SimpleNamespace(ptr=address, owner=owner),
            MemoryPointer=lambda memory, offset: SimpleNamespace(ptr=memory.ptr + offset, memory=memory),
            get_current_stream=lambda: streams.current,
            Stream=lambda non_blocking, priority: _Stream(next(handles), 0),
            ExternalStream=_ExternalStream,
            Event=lambda **options: SimpleNamespace(record=lambda stream: None, ptr=1),
        )
        made = SimpleNamespace(
            cuda=cuda,
            ndarray=_Array,
            asarray=np.asarray,
            asnumpy=_to_host,
            ascontiguousarray=lambda array: np.array(array, order="C", subok=True),
            empty=lambda shape, dtype: np.empty(shape, dtype).view(_Array),
        )
        with contextlib.ExitStack() as undone:
            for module in (cupy_memory, *((streams_module, graphs) if has_streams else ())):
                undone.callback(setattr, module, "cupy", module.cupy)
                module.cupy = lambda: made
            undone.callback(_streams.pop)
            # It makes a class of its own of CuPy's.
            cupy_memory._lent_stream.cache_clear()
            undone.callback(cupy_memory._lent_stream.cache_clear)
            yield emulation
