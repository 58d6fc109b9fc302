"""A CUDA driver that records what it is asked to do, and arrays that seem to lie in CUDA memory.

It stands in for libcuda where there is no GPU: launches go through the real compiled entry and end in C callbacks here, which
read the kernel's parameters as the driver would: those that it has, which its PTX tells.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from numbridge.kernels import variant
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.scalars import scalar_of

CONTEXTS = 0xC0000
# The PTX that each cubin was made of
PTX: dict[bytes, str] = {}
_DECLARED = re.compile(r"\.param (?:\.align \d+ )?\.[bfsu](\d+) (?:\.ptr \.align \d+ )?[\w$]+_param_(\d+)")
_Int, _Pointer, _Unsigned = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint


def remember_ptx() -> None:
    """Remember from now on which PTX each cubin was made of."""
    compiled = variant._cuda_code

    def remembering(*given: Any) -> Any:
        code = compiled(*given)
        PTX[code.compiled.objects[0]] = code.compiled.facts["ptx"]
        return code

    variant._cuda_code = remembering


@functools.cache
def parameters_of(ptx: str) -> list[tuple[int, int]]:
    """Return a kernel's parameters: the number of each among those that numba.cuda gave it, and its size in bytes."""
    start = ptx.index(".visible .entry")
    head = ptx[start : ptx.index(")", start)]
    found = [(int(number), int(bits) // 8) for bits, number in _DECLARED.findall(head)]
    assert len(found) == head.count(".param ")
    return found


@dataclass
class Launched:
    """One recorded launch.

    `parameters` holds the bytes at each parameter's place, copied during the call, and `numbers` which ones these are of those
    that numba.cuda gave the kernel.
    """

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    context: int
    cooperative: bool
    extra: int | None
    parameters: list[bytes]
    numbers: list[int]

    def values(self, kinds: list[Any]) -> list[Any]:
        """Return all that numba.cuda gave the kernel, given their C types; what it does not read is equal to anything."""
        found = [mock.ANY] * len(kinds)
        for number, data in zip(self.numbers, self.parameters, strict=True):
            assert ctypes.sizeof(kinds[number]) == len(data), number
            found[number] = kinds[number].from_buffer_copy(data).value
        return found

    @property
    def first_address(self) -> int:
        """Where the first of the kernel's arrays lies, which must be its first argument."""
        return int.from_bytes(self.parameters[self.numbers.index(4)], "little")


class FakeDriver:
    """Implements `cuda_driver.Driver`; `calls` lists what compiled code called, in order."""

    def __init__(self, count: int = 2, capability: tuple[int, int] = (9, 0)) -> None:
        self._count, self._capability = count, capability
        self.loaded: dict[int, tuple[bytes, str]] = {}
        self.ready: set[tuple[int, int]] = set()
        self._events = 0
        # Names the function (device ordinal -> stream) that knows the current stream, by its address
        self.follow: Callable[[int], None]
        self.forget()
        self._functions = {
            "cuCtxGetCurrent": ctypes.CFUNCTYPE(_Int, ctypes.POINTER(_Pointer))(self._get),
            "cuCtxPushCurrent_v2": ctypes.CFUNCTYPE(_Int, _Pointer)(self._push),
            "cuCtxPopCurrent_v2": ctypes.CFUNCTYPE(_Int, ctypes.POINTER(_Pointer))(self._pop),
            "cuEventRecord": ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer)(self._record),
            "cuStreamWaitEvent": ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer, _Unsigned)(self._wait),
            "cuMemcpyDtoDAsync_v2": ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer, ctypes.c_size_t, _Pointer)(self._copy),
            "cuMemcpyHtoDAsync_v2": ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer, ctypes.c_size_t, _Pointer)(self._copy),
            "cuMemcpyDtoHAsync_v2": ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer, ctypes.c_size_t, _Pointer)(self._copy),
            "cuStreamSynchronize": ctypes.CFUNCTYPE(_Int, _Pointer)(self._synchronize_stream),
            "cuMemAllocAsync": ctypes.CFUNCTYPE(_Int, ctypes.POINTER(_Pointer), ctypes.c_size_t, _Pointer)(
                self._allocate
            ),
            "cuMemFreeAsync": ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer)(self._free),
            "cuMemsetD8Async": ctypes.CFUNCTYPE(_Int, _Pointer, ctypes.c_ubyte, ctypes.c_size_t, _Pointer)(self._fill),
            "cuKernelGetFunction": ctypes.CFUNCTYPE(_Int, ctypes.POINTER(_Pointer), _Pointer)(self._get_function),
            "cuStreamIsCapturing": ctypes.CFUNCTYPE(_Int, _Pointer, ctypes.POINTER(_Int))(self._is_capturing),
            "cuStreamCreate": ctypes.CFUNCTYPE(_Int, ctypes.POINTER(_Pointer), _Unsigned)(self._create_stream),
            "cuStreamDestroy_v2": ctypes.CFUNCTYPE(_Int, _Pointer)(self._destroy_stream),
            "cuStreamBeginCapture_v2": ctypes.CFUNCTYPE(_Int, _Pointer, _Int)(self._begin_capture),
            "cuStreamEndCapture": ctypes.CFUNCTYPE(_Int, _Pointer, ctypes.POINTER(_Pointer))(self._end_capture),
            "cuGraphInstantiateWithFlags": ctypes.CFUNCTYPE(
                _Int, ctypes.POINTER(_Pointer), _Pointer, ctypes.c_ulonglong
            )(self._instantiate),
            "cuGraphExecUpdate_v2": ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer, _Pointer)(self._update),
            "cuGraphExecDestroy": ctypes.CFUNCTYPE(_Int, _Pointer)(self._destroy_exec),
            "cuGraphDestroy": ctypes.CFUNCTYPE(_Int, _Pointer)(self._destroy_graph),
            "cuGraphLaunch": ctypes.CFUNCTYPE(_Int, _Pointer, _Pointer)(self._launch_graph),
            "cuLaunchKernel": ctypes.CFUNCTYPE(
                _Int, _Pointer, *[_Unsigned] * 7, _Pointer, ctypes.POINTER(_Pointer), _Pointer
            )(self._launch),
            "cuLaunchCooperativeKernel": ctypes.CFUNCTYPE(
                _Int, _Pointer, *[_Unsigned] * 7, _Pointer, ctypes.POINTER(_Pointer)
            )(self._launch_cooperative),
        }

    def forget(self) -> None:
        """Forget what was recorded, and what was set up."""
        self.calls: list[tuple[Any, ...]] = []
        self.launches: list[Launched] = []
        self.shared: list[tuple[int, int, int]] = []
        self._threads = threading.local()
        self.fail: dict[str, int] = {}
        self._next_address = 0x6000_0000
        # What launches, copies and memory come to, where they come to something (`emulated_cuda`)
        self.emulation: Any = None
        self.capturing: set[int] = set()
        self.done: set[int] = set()
        self.page_locked: set[int] = set()
        self.streams: set[int] = set()
        # What each stream's capture, each graph and each executable graph holds
        self.captures: dict[int, list[Any]] = {}
        self.graphs: dict[int, list[Any]] = {}
        self.executables: dict[int, list[Any]] = {}

    # What Python asks

    def count(self) -> int:
        return self._count

    def capability(self, ordinal: int) -> tuple[int, int]:
        return self._capability

    def name(self, ordinal: int) -> str:
        return f"Fake {ordinal}"

    def context(self, ordinal: int) -> int:
        return CONTEXTS + ordinal

    def event(self, context: int) -> int:
        self._events += 1
        return 0xE000 + self._events

    def ordinal_of(self, address: int) -> int:
        return 0 if self.emulation else address >> 40

    def is_page_locked(self, address: int) -> bool:
        return address in self.page_locked

    def record(self, event: int, context: int, stream: int) -> bool:
        if stream in self.capturing:
            return False
        self.calls.append(("keep", event, stream))
        return True

    def is_done(self, event: int) -> bool:
        return event in self.done

    def synchronize(self, ordinal: int) -> None:
        self.calls.append(("synchronize", ordinal))

    def load(self, cubin: bytes, symbol: str) -> int:
        handle = 0xF000 + len(self.loaded)
        self.loaded[handle] = (cubin, symbol)
        return handle

    def make_ready(self, kernel: int, context: int) -> None:
        self.ready.add((kernel, context))

    def allow_shared(self, kernel: int, ordinal: int, size: int) -> None:
        self.shared.append((kernel, ordinal, size))

    def address(self, function: str) -> int:
        return ctypes.cast(self._functions[function], ctypes.c_void_p).value or 0

    def describe(self, code: int) -> tuple[str, str]:
        return {719: ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure")}.get(code, ("CUDA_ERROR", "no text"))

    # What compiled code calls

    def _get(self, out: Any) -> int:
        out[0] = self.stack[-1] if self.stack else None
        return self.fail.get("get", 0)

    def _push(self, context: int) -> int:
        self.calls.append(("push", context))
        if self.fail.get("push"):
            return self.fail["push"]
        self.stack.append(context)
        return 0

    def _pop(self, out: Any) -> int:
        out[0] = self.stack.pop()
        self.calls.append(("pop", out[0]))
        return self.fail.get("pop", 0)

    def _record(self, event: int, stream: int | None) -> int:
        self.calls.append(("record", event, stream or 0))
        return self.fail.get("record", 0)

    def _wait(self, stream: int | None, event: int, flags: int) -> int:
        self.calls.append(("wait", stream or 0, event))
        return self.fail.get("wait", 0)

    def _copy(self, target: int, source: int, size: int, stream: int | None) -> int:
        self.calls.append(("copy", target, source, size, stream or 0))
        self._does(stream or 0, "copy", target, source, size)
        return self.fail.get("copy", 0)

    def _allocate(self, out: Any, size: int, stream: int | None) -> int:
        self._next_address += 0x10000
        out[0] = self.emulation.allocate(size) if self.emulation else self._next_address
        self.calls.append(("allocate", out[0], size, stream or 0))
        return self.fail.get("allocate", 0)

    def _free(self, address: int, stream: int | None) -> int:
        self.calls.append(("free", address, stream or 0))
        if self.emulation:
            self.emulation.free(address)
        return self.fail.get("free", 0)

    def _fill(self, target: int, value: int, size: int, stream: int | None) -> int:
        self.calls.append(("fill", target, value, size, stream or 0))
        self._does(stream or 0, "fill", target, value, size)
        return self.fail.get("fill", 0)

    def _synchronize_stream(self, stream: int | None) -> int:
        self.calls.append(("synchronize_stream", stream or 0))
        return self.fail.get("synchronize_stream", 0)

    def _does(self, stream: int, *what: Any) -> int:
        """Do work, or put it into the capture of a stream, if there is one; return a CUresult."""
        if stream in self.captures:
            self.captures[stream].append(what)
            return 0
        if what[0] == "launch":
            self.launches.append(what[1])
        return self.emulation.does(*what) if self.emulation else 0

    def _get_function(self, out: Any, kernel: int) -> int:
        out[0] = kernel
        self.calls.append(("load", kernel))
        return self.fail.get("load", 0)

    def _is_capturing(self, stream: int | None, out: Any) -> int:
        out[0] = 1 if (stream or 0) in self.capturing else 0
        return self.fail.get("is_capturing", 0)

    def _create_stream(self, out: Any, flags: int) -> int:
        self._events += 1
        out[0] = 0x5A000 + self._events
        self.calls.append(("create_stream", flags))
        if not self.fail.get("create_stream"):
            self.streams.add(out[0])
        return self.fail.get("create_stream", 0)

    def _destroy_stream(self, stream: int) -> int:
        self.calls.append(("destroy_stream",))
        self.streams.remove(stream)
        return self.fail.get("destroy_stream", 0)

    def _begin_capture(self, stream: int, mode: int) -> int:
        self.calls.append(("begin", mode))
        if not self.fail.get("begin"):
            self.captures[stream] = []
        return self.fail.get("begin", 0)

    def _end_capture(self, stream: int, out: Any) -> int:
        work = self.captures.pop(stream)
        self.calls.append(("end",))
        if self.fail.get("end") or self.fail.get("launch"):
            # A capture in which something was refused is invalid: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            out[0] = None
            return self.fail.get("end", 901)
        self._events += 1
        out[0] = 0x6A000 + self._events
        self.graphs[out[0]] = work
        return 0

    def _instantiate(self, out: Any, graph: int, flags: int) -> int:
        self.calls.append(("instantiate", flags))
        if self.fail.get("instantiate"):
            return self.fail["instantiate"]
        self._events += 1
        out[0] = 0x6E000 + self._events
        self.executables[out[0]] = self.graphs[graph]
        return 0

    def _update(self, executable: int, graph: int, result: int) -> int:
        self.calls.append(("update", executable))
        if not self.fail.get("update"):
            self.executables[executable] = self.graphs[graph]
        return self.fail.get("update", 0)

    def _destroy_exec(self, executable: int) -> int:
        self.calls.append(("destroy_exec", executable))
        # A graph of an earlier test may end only now.
        known = self.executables.pop(executable, None) is not None
        return self.fail.get("destroy_exec", 0 if known else 400)

    def _destroy_graph(self, graph: int) -> int:
        self.calls.append(("destroy_graph",))
        del self.graphs[graph]
        return self.fail.get("destroy_graph", 0)

    def _launch_graph(self, executable: int, stream: int | None) -> int:
        self.calls.append(("graph", executable, stream or 0))
        failed = [self._does(0, *what) for what in self.executables[executable]]
        return self.fail.get("graph", 0) or max(failed, default=0)

    def _launch(self, *a: Any) -> int:
        return self._note(a[0], a[1:4], a[4:7], a[7], a[8], a[9], a[10], cooperative=False)

    def _launch_cooperative(self, *a: Any) -> int:
        return self._note(a[0], a[1:4], a[4:7], a[7], a[8], a[9], None, cooperative=True)

    @property
    def stack(self) -> list[int]:
        """The contexts that the calling thread has pushed; each thread has its own, as in the driver."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        found: list[int] = self._threads.stack
        return found

    def _note(self, kernel, grid, block, shared, stream, places, extra, *, cooperative) -> int:
        self.calls.append(("launch", stream or 0))
        declared = parameters_of(PTX[self.loaded[kernel][0]])
        found = [ctypes.string_at(places[k], size) for k, (_, size) in enumerate(declared)]
        where = (tuple(grid), tuple(block), shared, stream or 0, self.stack[-1])
        noted = (kernel, *where, cooperative, extra, found, [number for number, _ in declared])
        done = self._does(stream or 0, "launch", Launched(*noted))
        return self.fail.get("launch", 0) or done


@functools.cache
def _fake() -> FakeDriver:
    # One for good: what kernels were specialised with holds the addresses of its callbacks.
    return FakeDriver()


@contextlib.contextmanager
def fake_cuda() -> Iterator[FakeDriver]:
    """Let this process have two CUDA devices of a recording driver, within a ``with`` block."""
    fake = _fake()
    fake.forget()
    cuda_driver.install(fake)
    devices: Any = cuda_driver.devices()
    fake.follow = type(devices).set_current_stream.__get__(devices)
    # CuPy's own function would ask a runtime that has no device.
    devices.set_current_stream = lambda function: None
    try:
        yield fake
    finally:
        fake.follow(0)
        cuda_driver.install(None)


def cuda_array(
    shape: tuple[int, ...],
    dtype: Any = np.float32,
    *,
    address: int = 0x7000_0000,
    strides: tuple[int, ...] | None = None,
    ordinal: int = 0,
    flags: int = 0,
    stream: int | None = None,
    device: int = dl.CUDA,
) -> Any:
    """Return a record that says that it lies in CUDA memory; strides in elements."""
    extra = () if stream is None else (stream,)
    return machine().new_record(None, address, scalar_of(dtype).tag, device, ordinal, shape, strides, flags, *extra)


class ExchangeTable:
    """A DLPack exchange table of C callbacks, for a tensor class that knows its stream."""

    def __init__(self, stream: int, fails: int = 0, *, reads: bool = True) -> None:
        read = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
        ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
        self.asked: list[tuple[int, int]] = []

        def read_tensor(obj, out):
            if not reads:
                return -1
            extent = (ctypes.c_int64 * 1)(obj.extent)
            obj.kept = extent
            ctypes.c_int64.from_address(out + dl.DATA).value = obj.address
            ctypes.c_int32.from_address(out + dl.DEVICE_TYPE).value = dl.CUDA
            ctypes.c_int32.from_address(out + dl.DEVICE_ID).value = obj.ordinal
            ctypes.c_int32.from_address(out + dl.NDIM).value = 1
            ctypes.c_uint32.from_address(out + dl.DTYPE).value = scalar_of(np.float32).tag
            ctypes.c_int64.from_address(out + dl.SHAPE).value = ctypes.addressof(extent)
            ctypes.c_int64.from_address(out + dl.STRIDES).value = 0
            ctypes.c_int64.from_address(out + dl.BYTE_OFFSET).value = 0
            return 0

        def ask_stream(kind, ordinal, out):
            self.asked.append((kind, ordinal))
            out[0] = stream
            return fails

        self.functions = read(read_tensor), ask(ask_stream)
        table = np.zeros(dl.EXCHANGE_SIZE // 8, np.int64)
        table[0] = dl.MAJOR_VERSION | 3 << 32
        table[dl.EXCHANGE_READ // 8] = ctypes.cast(self.functions[0], ctypes.c_void_p).value
        table[dl.EXCHANGE_STREAM // 8] = ctypes.cast(self.functions[1], ctypes.c_void_p).value
        self.table = table
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.capsule = new(("PyCapsule_New", ctypes.pythonapi))(table.ctypes.data, b"dlpack_exchange_api", None)


def tensor_class(table: ExchangeTable) -> type:
    """Return a framework's class of one-dimensional float32 tensors, which are read by an exchange table."""

    class Tensor:
        __dlpack_c_exchange_api__ = table.capsule
        # The reader table keeps the class, and with it the callbacks, for good.
        functions = table

        def __init__(self, extent, ordinal=0, address=0x7000_0000):
            self.extent, self.ordinal, self.address = extent, ordinal, address

    return Tensor


def parameter_kinds(arrays: list[int], scalars: list[Any], dims: int) -> list[Any]:
    """Return the C types of a kernel's parameters: arrays by rank, then scalars, then dimensions."""
    kinds: list[Any] = []
    for rank in arrays:
        kinds += [ctypes.c_int64] * (5 + 2 * rank)
    return [*kinds, *scalars, *[ctypes.c_int64] * dims]
