"""The CUDA driver: devices, their primary contexts, loaded kernels, and the addresses that compiled code calls.

`driver()` gives the one of this process, or raises the error that says what is missing. What a launch needs lies in a native
block (see `table_layout`), so that launching runs none of this. Tests put a driver of their own in with `install`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from numbridge.kernels.errors import DeviceError, NumbridgeTypeError, shown
from numbridge.kernels.machine import machine
from numbridge.kernels.native import table_layout as nb

__all__ = [
    "CudaDevices",
    "Driver",
    "LibCuda",
    "cuda_unavailable",
    "devices",
    "driver",
    "driver_count",
    "handle_of",
    "install",
    "missing_parts",
    "reset",
]

MAX_DEVICES = 64
_LIBRARY = "libcuda.so.1"
_PARTS = {
    nb.DRIVER_CONTEXT_GET: "cuCtxGetCurrent",
    nb.DRIVER_CONTEXT_PUSH: "cuCtxPushCurrent_v2",
    nb.DRIVER_CONTEXT_POP: "cuCtxPopCurrent_v2",
    nb.DRIVER_EVENT_RECORD: "cuEventRecord",
    nb.DRIVER_STREAM_WAIT: "cuStreamWaitEvent",
    nb.DRIVER_IS_CAPTURING: "cuStreamIsCapturing",
}
_LAUNCH, _LAUNCH_COOPERATIVE = "cuLaunchKernel", "cuLaunchCooperativeKernel"
# CUDA Driver API, cuda.h
_EVENT_WITHOUT_TIME = 2
_MAX_DYNAMIC_SHARED = 8
_lock = threading.RLock()


class Driver(Protocol):
    """What numbridge asks of the CUDA driver; `LibCuda` is the real one."""

    def count(self) -> int:
        """Return how many devices there are."""

    def capability(self, ordinal: int) -> tuple[int, int]:
        """Return a device's compute capability."""

    def name(self, ordinal: int) -> str:
        """Return a device's name."""

    def context(self, ordinal: int) -> int:
        """Return the handle of a device's primary context, which stays retained."""

    def event(self, context: int) -> int:
        """Return the handle of a new event without timing in a context."""

    def ordinal_of(self, address: int) -> int:
        """Return the ordinal of the device on which memory lies."""

    def is_page_locked(self, address: int) -> bool:
        """Tell whether host memory is page-locked, so that devices copy from and to it by themselves."""

    def record(self, event: int, context: int, stream: int) -> bool:
        """Record an event on a stream, and return True; do nothing and return False while a graph captures the stream."""

    def is_done(self, event: int) -> bool:
        """Tell whether the work before an event is done."""

    def synchronize(self, ordinal: int) -> None:
        """Wait until a device has done its work, if anybody has used it."""

    def load(self, cubin: bytes, symbol: str) -> int:
        """Return the handle of a kernel in a cubin, good for every context of the architecture."""

    def make_ready(self, kernel: int, context: int) -> None:
        """Bring a kernel's code into a context, which its first launch would do, and would wait for the device for."""

    def allow_shared(self, kernel: int, ordinal: int, size: int) -> None:
        """Let a kernel use `size` bytes of dynamic shared memory on a device."""

    def address(self, function: str) -> int:
        """Return the address of one of the driver's functions."""

    def describe(self, code: int) -> tuple[str, str]:
        """Return CUDA's name and text of a CUresult."""


class LibCuda:
    """The driver library of this machine, through cuda-bindings."""

    def __init__(self) -> None:
        from cuda.bindings import driver as bindings

        self._cuda = bindings
        self._library = ctypes.CDLL(_LIBRARY)
        self._call(bindings.cuInit(0))

    def _call(self, answer: tuple[Any, ...]) -> Any:
        code, *values = answer
        if int(code) != 0:
            name, text = self.describe(int(code))
            raise DeviceError(f"the CUDA driver refused: {name} ({int(code)}): {text}")
        return values[0] if len(values) == 1 else tuple(values)

    def _device(self, ordinal: int) -> Any:
        return self._call(self._cuda.cuDeviceGet(ordinal))

    def count(self) -> int:
        """Return how many devices there are."""
        return int(self._call(self._cuda.cuDeviceGetCount()))

    def capability(self, ordinal: int) -> tuple[int, int]:
        """Return a device's compute capability."""
        kinds = self._cuda.CUdevice_attribute
        major = kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        minor = kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
        found = [self._call(self._cuda.cuDeviceGetAttribute(kind, self._device(ordinal))) for kind in (major, minor)]
        return int(found[0]), int(found[1])

    def name(self, ordinal: int) -> str:
        """Return a device's name."""
        raw: bytes = self._call(self._cuda.cuDeviceGetName(256, self._device(ordinal)))
        return raw.split(b"\0")[0].decode()

    def context(self, ordinal: int) -> int:
        """Return the handle of a device's primary context, which stays retained."""
        return int(self._call(self._cuda.cuDevicePrimaryCtxRetain(self._device(ordinal))))

    def event(self, context: int) -> int:
        """Return the handle of a new event without timing in a context."""
        with self._within(context):
            return int(self._call(self._cuda.cuEventCreate(_EVENT_WITHOUT_TIME)))

    def ordinal_of(self, address: int) -> int:
        """Return the ordinal of the device on which memory lies."""
        kind = self._cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self._call(self._cuda.cuPointerGetAttribute(kind, address)))

    def is_page_locked(self, address: int) -> bool:
        """Tell whether host memory is page-locked, so that devices copy from and to it by themselves."""
        kind = self._cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        code, found = self._cuda.cuPointerGetAttribute(kind, address)
        # The driver does not know other host memory.
        if code == self._cuda.CUresult.CUDA_ERROR_INVALID_VALUE:
            return False
        self._call((code,))
        return int(found) == int(self._cuda.CUmemorytype.CU_MEMORYTYPE_HOST)

    def record(self, event: int, context: int, stream: int) -> bool:
        """Record an event on a stream, and return True; do nothing and return False while a graph captures the stream."""
        handle = self._cuda.CUstream(stream)
        with self._within(context):
            status = self._call(self._cuda.cuStreamIsCapturing(handle))
            if status != self._cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
                return False
            self._call(self._cuda.cuEventRecord(self._cuda.CUevent(event), handle))
        return True

    def is_done(self, event: int) -> bool:
        """Tell whether the work before an event is done."""
        with self._beside_captures():
            (code,) = self._cuda.cuEventQuery(self._cuda.CUevent(event))
        if code != self._cuda.CUresult.CUDA_ERROR_NOT_READY:
            self._call((code,))
        return code == self._cuda.CUresult.CUDA_SUCCESS  # type: ignore[no-any-return]

    def synchronize(self, ordinal: int) -> None:
        """Wait until a device has done its work, if anybody has used it."""
        _, active = self._call(self._cuda.cuDevicePrimaryCtxGetState(self._device(ordinal)))
        if active:
            context = self.context(ordinal)
            with self._within(context):
                self._call(self._cuda.cuCtxSynchronize())
            self._call(self._cuda.cuDevicePrimaryCtxRelease(self._device(ordinal)))

    @contextlib.contextmanager
    def _beside_captures(self) -> Iterator[None]:
        """Let calls through that a graph's capture, of any thread, would refuse and be broken by; they are not part of it."""
        mode = self._cuda.CUstreamCaptureMode
        before = self._call(self._cuda.cuThreadExchangeStreamCaptureMode(mode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            yield
        finally:
            self._call(self._cuda.cuThreadExchangeStreamCaptureMode(before))

    @contextlib.contextmanager
    def _within(self, context: int) -> Iterator[None]:
        self._call(self._cuda.cuCtxPushCurrent(self._cuda.CUcontext(context)))
        try:
            yield
        finally:
            self._call(self._cuda.cuCtxPopCurrent())

    def load(self, cubin: bytes, symbol: str) -> int:
        """Return the handle of a kernel in a cubin, good for every context of the architecture."""
        with self._beside_captures():
            library = self._call(self._cuda.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
            return int(self._call(self._cuda.cuLibraryGetKernel(library, symbol.encode())))

    def make_ready(self, kernel: int, context: int) -> None:
        """Bring a kernel's code into a context, which its first launch would do, and would wait for the device for."""
        with self._beside_captures(), self._within(context):
            self._call(self._cuda.cuKernelGetFunction(self._cuda.CUkernel(kernel)))

    def allow_shared(self, kernel: int, ordinal: int, size: int) -> None:
        """Let a kernel use `size` bytes of dynamic shared memory on a device."""
        attribute = self._cuda.CUfunction_attribute(_MAX_DYNAMIC_SHARED)
        handle = self._cuda.CUkernel(kernel)
        self._call(self._cuda.cuKernelSetAttribute(attribute, size, handle, self._device(ordinal)))

    def address(self, function: str) -> int:
        """Return the address of one of the driver's functions."""
        return ctypes.cast(getattr(self._library, function), ctypes.c_void_p).value or 0

    def describe(self, code: int) -> tuple[str, str]:
        """Return CUDA's name and text of a CUresult."""
        try:
            result = self._cuda.CUresult(code)
        except ValueError:
            return "a CUresult that cuda-bindings does not know", "the driver is newer than cuda-bindings"
        texts = [self._cuda.cuGetErrorName(result)[1], self._cuda.cuGetErrorString(result)[1]]
        name, text = ((part or b"unknown error").decode() for part in texts)
        return name, text


class CudaDevices:
    """The devices of a driver, and the native block through which compiled code launches on them."""

    def __init__(self, found: Driver) -> None:
        self.driver = found
        self.count = min(found.count(), MAX_DEVICES)
        self._contexts = np.zeros(MAX_DEVICES, np.int64)
        self._events = np.zeros(MAX_DEVICES, np.int64)
        self._block = np.zeros(nb.DRIVER_SIZE // 8, np.int64)
        # The events above are compiled code's, which holds the GIL from recording one to waiting for it; these need the lock.
        self._own_events: dict[int, int] = {}
        self._kernels: dict[tuple[bytes, str], int] = {}
        # How much dynamic shared memory each kernel may use on a device
        self._shared: dict[tuple[int, int], int] = {}
        # What launches on streams of the caller's choice use, until the event after each is reached; events to use again
        self._kept: list[tuple[int, int, Any, int]] = []
        self._spare: dict[int, list[int]] = {}
        for offset, function in _PARTS.items():
            self._block[offset // 8] = found.address(function)
        self._block[nb.DRIVER_CONTEXTS // 8] = self._contexts.ctypes.data
        self._block[nb.DRIVER_EVENTS // 8] = self._events.ctypes.data

    def connect(self) -> None:
        """Make this the driver that compiled code calls."""
        machine().set_driver(self._block)

    def set_current_stream(self, function: int) -> None:
        """Name the function (``device ordinal -> stream handle``) that knows the current stream of our own arrays."""
        self._block[nb.DRIVER_CURRENT_STREAM // 8] = function

    def current_stream(self, ordinal: int) -> int:
        """Return the handle of the current stream of our own arrays on a device; 0 is the default stream."""
        function = int(self._block[nb.DRIVER_CURRENT_STREAM // 8])
        return _asking(function)(ordinal) if function else 0

    def order(self, ordinal: int, first: int, second: int) -> None:
        """Let what comes next on stream `second` wait for what stream `first` was given; returns at once.

        A graph's capture of `second` cannot wait for what is not captured: that must be done when the graph is launched.
        """
        if first == second:
            return
        if self.is_outside_capture(ordinal, first, second):
            return
        with self._within(ordinal):
            event = self._own_events[ordinal]
            self._checked("cuEventRecord", event, first)
            self._checked("cuStreamWaitEvent", second, event, 0)

    def is_outside_capture(self, ordinal: int, other: int, stream: int) -> bool:
        """Tell whether a graph captures `stream`, and none captures `other`, so that they cannot be ordered."""
        if other == stream:
            return False
        with self._within(ordinal):
            return self._is_capturing(stream) and not self._is_capturing(other)

    def _is_capturing(self, stream: int) -> bool:
        status = ctypes.c_int()
        ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
            self.driver.address("cuStreamIsCapturing")
        )
        # The default stream may be refused an answer while another one is captured; no graph captures it.
        return ask(stream, ctypes.addressof(status)) == 0 and status.value != 0

    @contextlib.contextmanager
    def _within(self, ordinal: int) -> Iterator[None]:
        """Make a device's context current; one thread at a time."""
        with _lock, self._current(ordinal):
            yield

    @contextlib.contextmanager
    def _current(self, ordinal: int) -> Iterator[None]:
        """Make a device's context current in this thread."""
        self.prepare(ordinal)
        popped = ctypes.c_void_p()
        self._checked("cuCtxPushCurrent_v2", int(self._contexts[ordinal]))
        try:
            yield
        finally:
            self._checked("cuCtxPopCurrent_v2", ctypes.addressof(popped))

    def allocate(self, ordinal: int, size: int, stream: int) -> int:
        """Return the address of `size` bytes of new device memory, which may be used by what comes next on a stream."""
        address = ctypes.c_void_p()
        with self._within(ordinal):
            self._checked("cuMemAllocAsync", ctypes.addressof(address), size, stream)
        return address.value or 0

    def free(self, ordinal: int, address: int, stream: int) -> None:
        """Give back memory of `allocate` when a stream has done what it was given."""
        with self._within(ordinal):
            self._checked("cuMemFreeAsync", address, stream)

    def clear(self, ordinal: int, address: int, size: int, stream: int) -> None:
        """Fill device memory with zeros; queued."""
        with self._within(ordinal):
            self._checked("cuMemsetD8Async", address, 0, size, stream)

    def copy(self, ordinal: int, target: int, source: int, size: int, stream: int) -> None:
        """Copy within device memory; queued."""
        with self._within(ordinal):
            self._checked("cuMemcpyDtoDAsync_v2", target, source, size, stream)

    def copy_in(self, ordinal: int, target: int, source: np.ndarray[Any, Any], stream: int) -> None:
        """Copy a contiguous array to device memory; queued, but the array may be changed when this returns."""
        with self._within(ordinal):
            self._checked("cuMemcpyHtoDAsync_v2", target, source.ctypes.data, source.nbytes, stream)

    def copy_out(self, ordinal: int, target: np.ndarray[Any, Any], source: int, stream: int) -> None:
        """Copy device memory to a contiguous array, and wait until the stream has done that, and whatever came before."""
        # Other threads launch meanwhile.
        with self._current(ordinal):
            self._checked("cuMemcpyDtoHAsync_v2", target.ctypes.data, source, target.nbytes, stream)
            self._checked("cuStreamSynchronize", stream)

    def is_capturing(self, ordinal: int, stream: int) -> bool:
        """Tell whether a graph captures a stream."""
        with self._within(ordinal):
            return self._is_capturing(stream)

    def is_current_captured(self, ordinal: int) -> bool:
        """Tell whether a graph captures the current stream of our own arrays on a device."""
        return self.is_capturing(ordinal, self.current_stream(ordinal))

    def _checked(self, function: str, *arguments: int) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * len(arguments))
        code = kind(self.driver.address(function))(*arguments)
        if code:
            name, text = self.driver.describe(code)
            raise DeviceError(f"the CUDA driver refused {function}: {name} ({code}): {text}")

    def prepare(self, ordinal: int) -> None:
        """Make a device ready for launches: retain its primary context and make its event."""
        with _lock:
            if self._contexts[ordinal] == 0:
                context = self.driver.context(ordinal)
                self._events[ordinal], self._own_events[ordinal] = (
                    self.driver.event(context),
                    self.driver.event(context),
                )
                self._contexts[ordinal] = context

    def capability(self, ordinal: int) -> tuple[int, int]:
        """Return a device's compute capability."""
        return self.driver.capability(ordinal)

    def load(self, cubin: bytes, symbol: str, ordinal: int) -> int:
        """Return the handle of a kernel in a cubin, which is loaded once in the process, and then once on each device.

        A graph's capture, in which the kernel may be launched first, could not do the latter.
        """
        with _lock:
            self.prepare(ordinal)
            found = self._kernels.get((cubin, symbol))
            if found is None:
                found = self._kernels[cubin, symbol] = self.driver.load(cubin, symbol)
            self.driver.make_ready(found, int(self._contexts[ordinal]))
            return found

    def launch_function(self, cooperative: bool) -> int:
        """Return the address of the driver function that launches a kernel."""
        return self.driver.address(_LAUNCH_COOPERATIVE if cooperative else _LAUNCH)

    def allow_shared(self, kernel: int, ordinal: int, size: int) -> None:
        """Let a kernel use so much dynamic shared memory; what it was allowed before, it still is.

        Unasked, a device grants 48 KiB less what the kernel has in arrays of constant shape.
        """
        with _lock:
            if size > self._shared.get((kernel, ordinal), 0):
                self.driver.allow_shared(kernel, ordinal, size)
                self._shared[kernel, ordinal] = size

    def keep(self, ordinal: int, stream: int, what: Any) -> None:
        """Keep objects alive until a stream has done what it was given. In a graph's capture that is the graph's business."""
        with _lock:
            self.release()
            spare, context = self._spare.setdefault(ordinal, []), int(self._contexts[ordinal])
            event = spare.pop() if spare else self.driver.event(context)
            if self.driver.record(event, context, stream):
                self._kept.append((ordinal, event, what, stream))
            else:
                spare.append(event)

    def keep_here(self, ordinal: int, what: Any) -> None:
        """Keep objects alive until the current stream of our own arrays has done what it was given."""
        self.keep(ordinal, self.current_stream(ordinal), what)

    def let_go(self, ordinal: int, stream: int, is_back: Callable[[Any], bool]) -> None:
        """Keep those arguments of launches on a stream no longer that go back to an owner who uses them in its order."""
        with _lock:
            kept, self._kept = self._kept, []
            for where, event, what, used in kept:
                is_there = (where, used) == (ordinal, stream) and isinstance(what, tuple)
                left = tuple(argument for argument in what if not is_back(argument)) if is_there else what
                self._kept.append((where, event, left, used))

    def release(self) -> None:
        """Let go of what `keep` keeps and nothing on a device uses any more."""
        with _lock:
            # What is let go of, here or by the garbage collector at any time, may want something else to be kept.
            kept, self._kept = self._kept, []
            for ordinal, event, what, stream in kept:
                if self.driver.is_done(event):
                    self._spare[ordinal].append(event)
                else:
                    self._kept.append((ordinal, event, what, stream))

    def failed(self, kernel: str, code: int) -> NoReturn:
        """Raise the error of a CUresult that a launch gave."""
        name, text = self.driver.describe(code)
        raise DeviceError(
            f"kernel {kernel!r}: the CUDA driver refused the launch, or reports what an earlier one did: {name} ({code}): {text}"
        )


_installed: list[Driver] = []
# Specialisations hold handles of the devices that they were made for, so these are made once for each driver.
_made: dict[int, CudaDevices] = {}


def install(found: Driver | None) -> None:
    """Use this driver from now on, or with None the machine's own.

    Kernels keep what they were specialised with, so a driver that was used must live, and be the only other one.
    """
    with _lock:
        _installed[:] = [] if found is None else [found]
        reset()


def reset() -> None:
    """Forget the devices that were found, so that the next question looks again."""
    _devices.cache_clear()
    driver_count.cache_clear()


def driver() -> Driver:
    """Return the CUDA driver.

    Raises
    ------
    DeviceError
        If something is missing; the message says what, and how to get it.
    """
    return devices().driver


def devices() -> CudaDevices:
    """Return the CUDA devices of this process, ready to launch on; raises as `driver` does."""
    with _lock:
        return _devices()


@functools.cache
def _devices() -> CudaDevices:
    if _installed:
        found: Driver = _installed[0]
    elif missing_parts():
        raise cuda_unavailable("this")
    else:
        found = LibCuda()
    made = _made.setdefault(id(found), CudaDevices(found))
    if made.count == 0:
        raise cuda_unavailable("this", ("a CUDA device",))
    made.connect()
    return made


@functools.cache
def _asking(function: int) -> Callable[[int], int]:
    """Return the function that knows the current stream; ctypes takes longer to make one than to call it."""
    return ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(function)


@functools.cache
def driver_count() -> int:
    """Return how many CUDA devices can be used: 0 where anything is missing. Imports nothing heavy."""
    if _installed:
        return _installed[0].count()
    if missing_parts():
        return 0
    library, count = ctypes.CDLL(_LIBRARY), ctypes.c_int()
    usable = library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(count)) == 0
    return min(count.value, MAX_DEVICES) if usable else 0


def handle_of(stream: Any) -> int:
    """Return the handle of a CUDA stream of any library.

    Parameters
    ----------
    stream : object
        Anything with ``__cuda_stream__`` (cuda.core's protocol), or with an int `cuda_stream`, `ptr` or `handle`, as torch's,
        CuPy's and Numba's streams have; an int is a handle.

    Raises
    ------
    NumbridgeTypeError
        If it is nothing of the kind.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if not -1 <= stream < 1 << 63:
            raise NumbridgeTypeError(f"stream is {shown(stream)}, which is no handle of a stream")
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # cuda.core first had a property here, and now has a method.
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        value = getattr(value, "value", value)  # Numba's handle is a ctypes number
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    raise NumbridgeTypeError(
        f"stream is {stream!r}; it must be an nb.Stream, a stream of another library with __cuda_stream__, or a handle"
    )


def missing_parts() -> list[str]:
    """Return what CUDA needs and this machine lacks."""
    if _installed:
        return []
    missing = []
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        missing.append(f"the NVIDIA driver ({_LIBRARY})")
    if not (_has("cuda.bindings") and _has("cuda.core")):
        missing.append("the CUDA toolkit wheels (cuda-bindings, cuda-core)")
    if not _has("cupy"):
        missing.append("CuPy")
    return missing


def _has(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def cuda_unavailable(what: str, parts: Sequence[str] = ()) -> DeviceError:
    """Return the one error for everything that needs CUDA where something is missing: it says what, and the way to it.

    Parameters
    ----------
    what : str
        What was asked for, such as ``"device 'cuda:0'"``.
    parts : sequence of str
        What is missing; by default everything that is looked for.
    """
    missing = [*parts] or missing_parts() or ["a CUDA device"]
    return DeviceError(
        f"{what} needs CUDA; missing here: {', '.join(missing)}. Install an NVIDIA driver of CUDA 12 or newer, then "
        "`pip install 'numbridge[cuda13]'` (or cuda12, as `nvidia-smi` says); `python -m numbridge info` shows the rest"
    )
