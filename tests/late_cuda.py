"""Emulated CUDA devices whose streams run late: nothing that a stream is given is done before it is asked for, or waited for.

`late_cuda` has a CuPy whose arrays lie in host memory, whose pool gives a freed block to the next who asks on the same stream, as
CuPy's does, and whose streams are queues; kernels run from their PTX when their turn comes. What no event orders shows.
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

from emulated_cuda import Emulation
from fake_cuda import fake_cuda
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.storage import cupy_memory
from numbridge.streams import graphs, streams


class Late:
    """What the streams have been given and have not done: work, events that are reached, and events that are waited for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.queues: dict[int, list[tuple[str, Any]]] = {}
        self.recorded: dict[int, list[tuple[str, Any]]] = {}
        self.free: dict[tuple[int, int, int], list[np.ndarray]] = {}
        self.current: dict[int, Any] = {}
        self.device = 0

    def put(self, stream: int, kind: str, what: Any) -> None:
        """Give a stream something; into a graph if one records it."""
        queue = self.recorded[stream] if stream in self.recorded else self.queues.setdefault(stream, [])
        queue.append((kind, what))

    def step(self, stream: int) -> None:
        """Do what comes next on a stream."""
        kind, what = self.queues[stream].pop(0)
        if kind == "reached":
            what.is_done = True
        elif kind == "wait":
            while not what.is_done and self.queues.get(what.stream):
                self.step(what.stream)
        else:
            what()

    def run(self, *chosen: int) -> None:
        """Do all that some streams were given, one after the other; then what the others were."""
        for stream in (*chosen, *self.queues):
            while self.queues.get(stream):
                self.step(stream)


class _Calls(list):  # type: ignore[type-arg]
    """What the driver is asked to do, of which events order the late streams."""

    def __init__(self, late: Late) -> None:
        self._late, self._events = late, {}  # type: ignore[var-annotated]

    def append(self, call: Any) -> None:
        super().append(call)
        if call[0] == "record":
            self._events[call[1]] = event = SimpleNamespace(stream=call[2], is_done=False)
            self._late.put(call[2], "reached", event)
        elif call[0] == "wait":
            self._late.put(call[1], "wait", self._events[call[2]])


def _bytes(address: int, size: int) -> Any:
    return (ctypes.c_uint8 * max(size, 1)).from_address(address)


def _cupy(late: Late, emulation: Emulation) -> Any:
    """Return what numbridge uses of CuPy."""
    handles = itertools.count(0x51000, 16)

    class Stream:
        def __init__(self, ptr: int, ordinal: int = 0) -> None:
            self.ptr, self.ordinal = ptr, ordinal

        def use(self) -> None:
            late.current[late.device] = self

        def record(self) -> Event:
            event = Event()
            event.record(self)
            return event

        def wait_event(self, event: Event) -> None:
            late.put(self.ptr, "wait", event.mark)

        def synchronize(self) -> None:
            while late.queues.get(self.ptr):
                late.step(self.ptr)

        def is_capturing(self) -> bool:
            return self.ptr in late.recorded

        def begin_capture(self) -> None:
            if self.is_capturing():
                raise RuntimeError("cudaErrorIllegalState")
            late.recorded[self.ptr] = []
            late.driver.capturing.add(self.ptr)

        def end_capture(self) -> Any:
            late.driver.capturing.discard(self.ptr)
            work = late.recorded.pop(self.ptr)
            return SimpleNamespace(launch=lambda stream: [late.put(stream.ptr, *each) for each in work])

    class External(Stream):
        pass

    class Event:
        def __init__(self, **_: Any) -> None:
            self.mark: Any = None

        def record(self, stream: Stream) -> None:
            self.mark = SimpleNamespace(stream=stream.ptr, is_done=False)
            late.put(stream.ptr, "reached", self.mark)

    default = [Stream(0, 0), Stream(0, 1)]

    def current() -> Stream:
        return late.current.get(late.device, default[late.device])

    def queue(work: Callable[[], Any]) -> None:
        late.put(current().ptr, "work", work)

    class Memory:
        def __init__(self, size: int) -> None:
            self.size = max(size, 1)
            free = late.free.setdefault((late.device, current().ptr, self.size), [])
            block = free.pop() if free else np.zeros(self.size, np.uint8)
            self.ptr = block.ctypes.data
            weakref.finalize(self, free.append, block)
            emulation._memory[self.ptr] = (self.ptr + self.size, True, block)

        def memset_async(self, value: int, size: int) -> None:
            queue(lambda: ctypes.memset(self.ptr, value, size))

    def on_host(array: np.ndarray) -> np.ndarray:
        """Return an array on an address alone: what is read is what lies there when the stream runs."""
        return np.ndarray(array.shape, array.dtype, _bytes(array.ctypes.data, array.nbytes), strides=array.strides)

    class Array(np.ndarray):
        def __new__(cls, shape: Any, dtype: Any, pointer: Any, strides: Any) -> Any:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            made = super().__new__(cls, shape, dtype, _bytes(pointer.ptr, size), 0, strides)
            made.pointer = pointer
            return made

        def __array_finalize__(self, other: Any) -> None:
            self.pointer = getattr(other, "pointer", None)

        def __setitem__(self, key: Any, value: Any) -> None:
            target = on_host(self)
            if isinstance(value, Array):
                if np.may_share_memory(np.asarray(self), np.asarray(value)):  # as CuPy's `_copy_in_args_if_needed`
                    value = value.copy()
                source = on_host(value)
                queue(lambda: target.__setitem__(key, source))
            else:
                held = np.copy(value)
                queue(lambda: target.__setitem__(key, held))

        def set(self, values: np.ndarray) -> None:
            target, held = on_host(self), values.copy()
            queue(lambda: target.__setitem__(..., held))

        def copy(self, order: Any = None) -> Array:
            made = empty(self.shape, self.dtype)
            target, source = on_host(made), on_host(self)
            queue(lambda: target.__setitem__(..., source))
            return made

    def empty(shape: Any, dtype: Any) -> Array:
        memory = Memory(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return Array(shape, dtype, SimpleNamespace(ptr=memory.ptr, memory=memory), None)

    def asarray(values: np.ndarray) -> Array:
        made = empty(values.shape, values.dtype)
        made.set(values)
        return made

    def asnumpy(array: Array) -> np.ndarray:
        current().synchronize()
        return np.array(array, subok=False)

    @contextlib.contextmanager
    def on_device(ordinal: int) -> Iterator[None]:
        before, late.device = late.device, ordinal
        try:
            yield
        finally:
            late.device = before

    asked = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda k: late.current.get(k, default[k]).ptr)
    late.driver.follow(ctypes.cast(asked, ctypes.c_void_p).value)
    cuda = SimpleNamespace(
        Device=on_device,
        alloc=Memory,
        Stream=lambda non_blocking, priority: Stream(next(handles), late.device),
        ExternalStream=External,
        Event=Event,
        UnownedMemory=lambda address, size, owner, ordinal: SimpleNamespace(ptr=address, owner=owner),
        MemoryPointer=lambda memory, offset: SimpleNamespace(ptr=memory.ptr + offset, memory=memory),
        get_current_stream=current,
        runtime=SimpleNamespace(CUDARuntimeError=RuntimeError),
        asked=asked,
    )
    return SimpleNamespace(cuda=cuda, ndarray=Array, asarray=asarray, asnumpy=asnumpy)


@contextlib.contextmanager
def late_cuda() -> Iterator[Late]:
    """Give two devices whose streams run late; no kernel may have read or written other memory by the end."""
    with fake_cuda() as driver:
        for ordinal in range(2):
            cuda_driver.devices().prepare(ordinal)
        late, emulation = Late(driver), Emulation(driver)
        driver.calls = _Calls(late)
        driver._does = lambda stream, *what: late.put(stream, "work", lambda: emulation.does(*what)) or 0
        module = _cupy(late, emulation)
        with contextlib.ExitStack() as stack:
            stack.callback(driver.__dict__.pop, "_does")
            for room in (cupy_memory, streams, graphs):
                stack.callback(setattr, room, "cupy", room.cupy)
                room.cupy = lambda: module
            cupy_memory._lent_stream.cache_clear()
            stack.callback(cupy_memory._lent_stream.cache_clear)
            yield late
            assert not emulation.errors, emulation.errors
