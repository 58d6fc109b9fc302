"""CUDA graphs: launches recorded once on a stream, replayed as one. The graphs are CuPy's.

A graph holds addresses, not arrays: what it reads and writes must be kept alive, and in place, as long as it is launched. What
numbridge has allocated while it was recorded, on that stream or on one that has joined it, the graph itself keeps.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import Device, cuda_unavailable, get_device
from numbridge.kernels.errors import DeviceError, NumbridgeTypeError, NumbridgeValueError
from numbridge.storage.cupy_memory import begin_holding, cupy, end_holding, hold
from numbridge.streams.streams import ScopedStream, Stream, check_place, get_stream, own_stream

__all__ = ["Graph", "ScopedCapture", "capture_begin", "capture_end", "capture_launch"]

# Ordinals and handles of the streams that somebody else records, between `capture_begin` and `capture_end`
_external: set[tuple[int, int]] = set()


class Graph:
    """A recorded sequence of CUDA work; made by `capture_end` or `ScopedCapture`."""

    def __init__(self, graph: Any, device: Device, memory: Sequence[Any] = ()) -> None:
        self._graph = graph
        self.device = device
        self._memory = memory
        self._streams: dict[int, Stream] = {}
        self._end: weakref.finalize[..., Any] | None = None

    def launch(self, stream: Any = None) -> None:
        """Queue everything that was recorded on a stream: the current one by default."""
        own = get_stream(self.device) if stream is None else own_stream(stream, self.device)
        check_place(own, self.device, "Graph.launch")
        with cupy().cuda.Device(self.device.ordinal):
            self._graph.launch(own._stream)
        # The stream may itself be recorded.
        hold(*_key(own), self._memory)
        devices = cuda_driver.devices()
        if own.cuda_stream not in self._streams and not devices.is_capturing(*_key(own)):
            self._streams[own.cuda_stream] = own
            if self._end is None:
                # What was recorded may run after this, when nobody has the graph any more.
                given = devices, self.device.ordinal, self._streams, (self._graph, self._memory)
                self._end = weakref.finalize(self, _keep_until_done, *given)
                self._end.atexit = False

    def __repr__(self) -> str:
        """Return the device."""
        return f"<Graph on {self.device}>"


def _keep_until_done(
    devices: cuda_driver.CudaDevices, ordinal: int, streams: Mapping[int, Stream], what: tuple[Any, ...]
) -> None:
    """Keep what a graph uses that was dropped until the streams on which it was launched have done that."""
    for handle in streams:
        devices.keep(ordinal, handle, what)


def capture_begin(
    device: Device | str | None = None,
    stream: Any = None,
    force_module_load: bool | None = None,
    external: bool = False,
) -> None:
    """Begin to record what a stream is given, instead of running it.

    Parameters
    ----------
    device : Device or str, optional
        Whose current stream is meant; the current CUDA device by default.
    stream : Stream, optional
        The stream to record; the current one by default. The default stream cannot be recorded: use `ScopedStream`, or
        `ScopedCapture`, which brings a stream of its own.
    force_module_load : bool, optional
        Warp's; True is refused: a kernel is compiled for the arguments of a launch, and all of a program's cannot be beforehand.
    external : bool
        Whether somebody else records the stream already, such as ``torch.cuda.graph``, who then also ends that and has the graph:
        nothing is begun, and launches need none of this.

    Raises
    ------
    DeviceError
        If it is the default stream, it is recorded already, or nobody records it and `external` is true.
    """
    _refuse_loading(force_module_load)
    own = get_stream(device) if stream is None else own_stream(stream)
    if external:
        if not own.is_capturing:
            raise DeviceError(
                f"capture_begin: external=True, and nobody records {own!r}; pass the stream that is recorded, such as "
                "torch.cuda.current_stream() within torch.cuda.graph(...), or drop external=True"
            )
        _external.add(_key(own))
        return
    if own.cuda_stream in (0, 1, 2):
        raise DeviceError(
            "capture_begin: the default stream cannot be recorded into a graph; make another current with nb.ScopedStream, "
            "or use nb.ScopedCapture"
        )
    module = cupy()
    with module.cuda.Device(own.device.ordinal):
        try:
            own._stream.begin_capture()
        except module.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"capture_begin: {own!r} cannot be recorded now: {error}; end what records it with nb.capture_end()"
            ) from error
    # Who recorded it before may have been left by an exception.
    _external.discard(_key(own))
    begin_holding(*_key(own))


def _key(stream: Stream) -> tuple[int, int]:
    return stream.device.ordinal, stream.cuda_stream


def _refuse_loading(force_module_load: bool | None) -> None:
    if force_module_load:
        raise NumbridgeValueError(
            "force_module_load=True: a kernel is compiled for the arguments of a launch, so all of a program's cannot be loaded "
            "beforehand; launch what will be recorded once before, and drop force_module_load"
        )


def capture_end(device: Device | str | None = None, stream: Any = None) -> Graph | None:
    """End what `capture_begin` began, and return the graph; parameters as there. None for one of somebody else's.

    Raises
    ------
    DeviceError
        If something was done that a graph cannot hold, such as waiting; nothing was run.
    """
    own = get_stream(device) if stream is None else own_stream(stream)
    if _key(own) in _external:
        _external.discard(_key(own))
        return None
    module, memory = cupy(), end_holding(*_key(own))
    with module.cuda.Device(own.device.ordinal), warnings.catch_warnings():
        # CuPy calls its graphs experimental each time that one is made.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            graph = own._stream.end_capture()
        except module.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"capture_end: the recorded work cannot be a graph: {error}") from error
    return Graph(graph, own.device, memory)


def capture_launch(graph: Graph, stream: Any = None) -> None:
    """Queue a graph on a stream: the current one by default."""
    if not isinstance(graph, Graph):
        raise NumbridgeTypeError(
            f"capture_launch: wanted a graph, of capture_end() or ScopedCapture.graph, got {graph!r}"
        )
    graph.launch(stream)


class ScopedCapture:
    """Record what is launched within a ``with`` block into a graph, on a stream of its own that is current meanwhile.

    A tape's launches and its `backward` may be among it. Memory that numbridge allocates within the block is the graph's as long
    as that is there; other arrays must be kept alive.

    Parameters
    ----------
    device : Device or str, optional
        The current CUDA device by default.
    stream : Stream, optional
        The stream to record instead.
    force_module_load : bool, optional
        Warp's; True is refused, see `capture_begin`.
    external : bool
        Whether somebody else records the stream (the current one by default) already, and has the graph: then it is current
        within the block, and nothing else is done.

    Attributes
    ----------
    graph : Graph or None
        The graph, after the block.

    Examples
    --------
    ::

        with nb.ScopedCapture() as capture:
            nb.launch(kernel, n, [x, y])
        nb.capture_launch(capture.graph)
    """

    def __init__(
        self,
        device: Device | str | None = None,
        stream: Any = None,
        force_module_load: bool | None = None,
        external: bool = False,
    ) -> None:
        if not cuda_driver.driver_count():
            raise cuda_unavailable("nb.ScopedCapture")
        _refuse_loading(force_module_load)
        place = get_device("cuda" if device is None else device)
        self._external = external
        if stream is None:
            self._stream = get_stream(place) if external else Stream(place)
        else:
            self._stream = own_stream(stream, place)
            if device is not None:
                check_place(self._stream, place, "ScopedCapture")
        # An event of a stream that is not recorded is nothing that a graph can wait for.
        self._scope = ScopedStream(self._stream, sync_enter=not external)
        self.graph: Graph | None = None

    def __enter__(self) -> ScopedCapture:
        """Begin to record."""
        self._scope.__enter__()
        try:
            capture_begin(stream=self._stream, external=self._external)
        except BaseException:
            self._scope.__exit__()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """End recording; after an exception what was recorded is dropped."""
        try:
            graph = capture_end(stream=self._stream)
            self.graph = graph if kind is None else None
        except DeviceError:
            # An exception in the block is why; it says more than that the recording is broken.
            if kind is None:
                raise
        finally:
            self._scope.__exit__()
