"""A CUDA driver that records what it is asked to do, and arrays that seem to lie in CUDA memory.

It stands in for libcuda where there is no GPU: launches go through the real compiled entry and end in C callbacks here, which
read the kernel's parameters as the driver would.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.kernels import cuda_driver
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.scalars import scalar_of

CONTEXTS = 0xC0000
_Int, _Pointer, _Unsigned = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint


@dataclass
class Launched:
    """One recorded launch; `parameters` holds the first 16 bytes at each parameter's place, copied during the call."""

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    context: int
    cooperative: bool
    extra: int | None
    parameters: list[bytes]

    def values(self, kinds: list[Any]) -> list[Any]:
        """Return the parameters, given their C types."""
        return [kind.from_buffer_copy(data).value for kind, data in zip(kinds, self.parameters, strict=True)]


class FakeDriver:
    """Implements `cuda_driver.Driver`; `calls` lists what compiled code called, in order."""

    def __init__(self, count: int = 2, capability: tuple[int, int] = (9, 0)) -> None:
        self._count, self._capability = count, capability
        self.loaded: dict[int, tuple[bytes, str]] = {}
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
            "cuMemsetD8Async": ctypes.CFUNCTYPE(_Int, _Pointer, ctypes.c_ubyte, ctypes.c_size_t, _Pointer)(self._fill),
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
        self.stack: list[int] = []
        self.fail: dict[str, int] = {}
        # How many parameters the next kernel has: a real driver reads that in the cubin
        self.parameters = 0
        self.capturing: set[int] = set()
        self.done: set[int] = set()

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
        return address >> 40

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
        return self.fail.get("copy", 0)

    def _fill(self, target: int, value: int, size: int, stream: int | None) -> int:
        self.calls.append(("fill", target, value, size, stream or 0))
        return self.fail.get("fill", 0)

    def _launch(self, *a: Any) -> int:
        return self._note(a[0], a[1:4], a[4:7], a[7], a[8], a[9], a[10], cooperative=False)

    def _launch_cooperative(self, *a: Any) -> int:
        return self._note(a[0], a[1:4], a[4:7], a[7], a[8], a[9], None, cooperative=True)

    def _note(self, kernel, grid, block, shared, stream, places, extra, *, cooperative) -> int:
        self.calls.append(("launch", stream or 0))
        found = [ctypes.string_at(places[k], 16) for k in range(self.parameters)]
        noted = (kernel, tuple(grid), tuple(block), shared, stream or 0, self.stack[-1], cooperative, extra, found)
        self.launches.append(Launched(*noted))
        return self.fail.get("launch", 0)


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


def parameter_kinds(arrays: list[int], scalars: list[Any], dims: int) -> list[Any]:
    """Return the C types of a kernel's parameters: arrays by rank, then scalars, then dimensions."""
    kinds: list[Any] = []
    for rank in arrays:
        kinds += [ctypes.c_int64] * (5 + 2 * rank)
    return [*kinds, *scalars, *[ctypes.c_int64] * dims]
