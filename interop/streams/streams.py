"""Streams and events: nb.Stream and nb.Event around CuPy's, which stream is current, and waiting.

numbridge and CuPy share one current stream per thread and device, so arrays of both are ordered alike, and CuPy's pool
gives memory back in the order of that stream. Every class of stream that says `__cuda_stream__` is taken.
"""

from __future__ import annotations

from typing import Any

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import Device, cuda_unavailable, get_device
from numbridge.kernels.errors import DeviceError, NumbridgeTypeError
from numbridge.storage.cupy_memory import cupy, lent_stream

__all__ = [
    "Event",
    "ScopedStream",
    "Stream",
    "check_place",
    "get_event_elapsed_time",
    "get_stream",
    "own_stream",
    "record_event",
    "set_stream",
    "synchronize",
    "synchronize_device",
    "synchronize_event",
    "synchronize_stream",
    "wait_event",
    "wait_stream",
]


def _cuda_device(device: Device | str | None, what: str) -> Device:
    """Return a CUDA device: the current one by default."""
    if device is not None and get_device(device).is_cpu:
        raise DeviceError(
            f"{what} is CUDA's, and the device is {str(device)!r}, where a launch is done when it returns; launches need "
            "no stream there, and nb.ScopedStream(None) changes nothing"
        )
    if not cuda_driver.driver_count():
        raise cuda_unavailable(what)
    found = get_device(device)
    return found if found.is_cuda else get_device("cuda")


def _place_of(stream: Any) -> Device | None:
    """Return the device that another library's stream says it lies on, or None."""
    # PyTorch's streams have a device with an index, CuPy's an ordinal (-1 for the current one), cuda.core's a device with an id.
    given = getattr(stream, "device_index", getattr(stream, "device_id", None))
    if given is None:
        place = getattr(stream, "device", None)
        given = (
            place.ordinal if isinstance(place, Device) else getattr(place, "device_id", getattr(place, "index", None))
        )
    return Device("cuda", given) if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else None


class Stream:
    """A CUDA stream: work in one runs in order, work in two may overlap.

    Parameters
    ----------
    device : Device or str, optional
        By default where `cuda_stream` says that it lies, by its ``device``, ``device_index`` or ``device_id``, else the current
        CUDA device.
    priority : int
        Lower numbers run first, within the device's range.
    cuda_stream : object, optional
        An existing stream to stand for: another library's, or a handle. It is kept alive, and not destroyed.

    Examples
    --------
    ::

        stream = nb.Stream()
        with nb.ScopedStream(stream):
            nb.launch(kernel, n, [x, y])
        stream.synchronize()
    """

    def __init__(self, device: Device | str | None = None, priority: int = 0, cuda_stream: Any = None) -> None:
        self.device = _cuda_device(_place_of(cuda_stream) if device is None else device, "nb.Stream")
        self._source = cuda_stream
        cuda = cupy().cuda
        cuda_driver.devices().prepare(self.device.ordinal)
        with cuda.Device(self.device.ordinal):
            if cuda_stream is None:
                self._stream = cuda.Stream(non_blocking=True, priority=priority)
            else:
                self._stream = lent_stream(cuda_driver.handle_of(cuda_stream), self.device.ordinal)

    @property
    def cuda_stream(self) -> int:
        """The handle (``CUstream``)."""
        return int(self._stream.ptr)

    @property
    def ptr(self) -> int:
        """The handle, by CuPy's name."""
        return self.cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return (version of the protocol, handle), as cuda.core defines it."""
        return 0, self.cuda_stream

    @property
    def is_complete(self) -> bool:
        """Whether everything that the stream was given is done."""
        return bool(self._stream.done)

    @property
    def priority(self) -> int:
        """Lower numbers run first."""
        return int(self._stream.priority)

    @property
    def is_blocking(self) -> bool:
        """Whether the legacy default stream and this one wait for each other."""
        return not self._stream.is_non_blocking

    @property
    def is_capturing(self) -> bool:
        """Whether what the stream is given is recorded into a graph, by whomever, instead of running."""
        return bool(self._stream.is_capturing())

    def synchronize(self) -> None:
        """Wait until everything that the stream was given is done."""
        self._stream.synchronize()

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event (a new one by default) after what the stream was given, and return it."""
        made = Event(self.device) if event is None else _event(event)
        with cupy().cuda.Device(self.device.ordinal):
            made._event.record(self._stream)
        return made

    def wait_event(self, event: Event) -> None:
        """Let what the stream is given from now on wait for an event; returns at once."""
        self._stream.wait_event(_event(event)._event)

    def wait_stream(self, other_stream: Any, event: Event | None = None) -> None:
        """Let what the stream is given from now on wait for what another one was given; returns at once."""
        self.wait_event(own_stream(other_stream).record_event(event))

    def __eq__(self, other: object) -> bool:
        """Compare handles and devices."""
        if not isinstance(other, Stream):
            return NotImplemented
        return self.cuda_stream == other.cuda_stream and self.device == other.device

    def __hash__(self) -> int:
        """Hash as the handle does."""
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        """Return handle and device."""
        return f"<Stream {self.cuda_stream:#x} on {self.device}>"


class Event:
    """A mark in a stream, to be waited for or timed.

    Parameters
    ----------
    device : Device or str, optional
        The current CUDA device by default.
    enable_timing : bool
        Whether the time between two events can be asked for.
    interprocess : bool
        Whether another process may open it.
    """

    def __init__(
        self, device: Device | str | None = None, enable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.device = _cuda_device(device, "nb.Event")
        self.enable_timing = enable_timing
        with cupy().cuda.Device(self.device.ordinal):
            self._event = cupy().cuda.Event(disable_timing=not enable_timing, interprocess=interprocess)

    @property
    def cuda_event(self) -> int:
        """The handle (``CUevent``)."""
        return int(self._event.ptr)

    @property
    def is_complete(self) -> bool:
        """Whether the work before the event is done."""
        return bool(self._event.done)

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        self._event.synchronize()

    def __repr__(self) -> str:
        """Return handle and device."""
        return f"<Event {self.cuda_event:#x} on {self.device}>"


def get_stream(device: Device | str | None = None) -> Stream:
    """Return the current stream of a device (the current CUDA device by default)."""
    found = _cuda_device(device, "get_stream")
    with cupy().cuda.Device(found.ordinal):
        current = cupy().cuda.get_current_stream()
    return Stream(found, cuda_stream=current)


def set_stream(stream: Any, device: Device | str | None = None, sync: bool = False) -> None:
    """Make a stream of any library the current one of this thread, for numbridge and CuPy; prefer `ScopedStream`.

    Parameters
    ----------
    stream : Stream, or another library's stream
        The stream.
    device : Device or str, optional
        Where it lies, if it does not say.
    sync : bool
        Let it wait first for what the stream that was current has been given.
    """
    own = own_stream(stream, device)
    if sync:
        _follow(own, get_stream(own.device))
    with cupy().cuda.Device(own.device.ordinal):
        own._stream.use()


def _follow(stream: Stream, previous: Stream) -> None:
    """Let a stream wait for what another one has been given, unless they are one."""
    if previous != stream:
        stream.wait_stream(previous)


def own_stream(stream: Any, device: Device | str | None = None) -> Stream:
    """Return a stream of any library as one of ours; `device` is where it lies if the stream does not say.

    Raises
    ------
    NumbridgeTypeError
        If it is None, which `Stream` would take for a new one.
    """
    if stream is None:
        raise NumbridgeTypeError(
            "the stream is None; it must be an nb.Stream, another library's or a handle; nb.get_stream() is the current one"
        )
    return stream if isinstance(stream, Stream) else Stream(_place_of(stream) or device, cuda_stream=stream)


def check_place(stream: Stream, device: Device, what: str) -> None:
    """Refuse a stream that lies on another device than what it is to do."""
    if stream.device != device:
        raise DeviceError(
            f"{what}: the stream lies on {stream.device}, and this is work of {device}; pass a stream of that device"
        )


def _event(event: Any, name: str = "event") -> Event:
    """Return an event, of which it is checked that it is one of ours."""
    if isinstance(event, Event):
        return event
    raise NumbridgeTypeError(f"{name} is {event!r}; it must be an nb.Event, such as nb.record_event() returns")


class ScopedStream:
    """Make a stream current within a ``with`` block: launches on our own and CuPy's arrays, copies and allocations use it.

    Parameters
    ----------
    stream : Stream, another library's stream, or None
        None changes nothing, and needs no CUDA: such as a stream that a function was given, or not.
    sync_enter : bool
        Let the stream wait first for what the stream that was current has been given.
    sync_exit : bool
        Let the previous stream wait at the end for what this one was given.
    """

    def __init__(self, stream: Any, sync_enter: bool = True, sync_exit: bool = False) -> None:
        self.stream = None if stream is None else own_stream(stream)
        self.sync_enter, self.sync_exit = sync_enter, sync_exit
        self._previous: list[Stream] = []

    def __enter__(self) -> Stream | None:
        """Make the stream current."""
        if self.stream is not None:
            previous = get_stream(self.stream.device)
            if self.sync_enter:
                _follow(self.stream, previous)
            with cupy().cuda.Device(self.stream.device.ordinal):
                self.stream._stream.use()
            self._previous.append(previous)
        return self.stream

    def __exit__(self, *exception: object) -> None:
        """Make the previous stream current again."""
        if self.stream is not None:
            previous = self._previous.pop()
            try:
                if self.sync_exit:
                    _follow(previous, self.stream)
            finally:
                with cupy().cuda.Device(self.stream.device.ordinal):
                    previous._stream.use()


def synchronize(device: Device | str | None = None) -> None:
    """Wait until a device has done all its work; every device by default. The CPU always has."""
    if device is not None and get_device(device).is_cpu:
        return
    ordinals = range(cuda_driver.driver_count()) if device is None else [get_device(device).ordinal]
    for ordinal in ordinals:
        cuda_driver.driver().synchronize(ordinal)
    if ordinals:
        cuda_driver.devices().release()


def synchronize_device(device: Device | str | None = None) -> None:
    """Wait until a device (the current one by default) has done all its work."""
    synchronize(get_device(device))


def synchronize_stream(stream_or_device: Any = None) -> None:
    """Wait until a stream, or a device's current stream (the current device's by default), has done all its work."""
    given = stream_or_device
    (get_stream(given) if given is None or isinstance(given, Device | str) else own_stream(given)).synchronize()


def synchronize_event(event: Event) -> None:
    """Wait until the work before an event is done."""
    _event(event).synchronize()


def record_event(event: Event | None = None) -> Event:
    """Record an event on the current stream, and return it."""
    return get_stream(None if event is None else _event(event).device).record_event(event)


def wait_event(event: Event) -> None:
    """Let what the current stream is given from now on wait for an event; returns at once."""
    get_stream(_event(event).device).wait_event(event)


def wait_stream(other_stream: Any, event: Event | None = None) -> None:
    """Let what the current stream is given from now on wait for what another one was given; returns at once."""
    own = own_stream(other_stream)
    get_stream(own.device).wait_stream(own, event)


def get_event_elapsed_time(start_event: Event, end_event: Event, synchronize: bool = True) -> float:
    """Return the milliseconds between two events with timing; waits for the second if ``synchronize``."""
    if not (_event(start_event, "start_event").enable_timing and _event(end_event, "end_event").enable_timing):
        raise NumbridgeTypeError("both events must be made with enable_timing=True")
    if synchronize:
        end_event.synchronize()
    return float(cupy().cuda.get_elapsed_time(start_event._event, end_event._event))
