"""CUDA graphs: launches recorded once on a stream, replayed as one. The graphs are CuPy's.

A graph holds addresses, not arrays: what it reads and writes must be kept alive, and in place, as long as it is launched.
"""

from __future__ import annotations

import warnings
from typing import Any

from numbridge.cupy_memory import cupy
from numbridge.kernels import cuda_driver
from numbridge.kernels.devices import Device, cuda_unavailable, get_device
from numbridge.kernels.errors import DeviceError, NumbridgeTypeError
from numbridge.streams import ScopedStream, Stream, get_stream, own_stream

__all__ = ["Graph", "ScopedCapture", "capture_begin", "capture_end", "capture_launch"]


class Graph:
    """A recorded sequence of CUDA work; made by `capture_end` or `ScopedCapture`."""

    def __init__(self, graph: Any, device: Device) -> None:
        self._graph = graph
        self.device = device

    def launch(self, stream: Any = None) -> None:
        """Queue everything that was recorded on a stream: the current one by default."""
        own = get_stream(self.device) if stream is None else own_stream(stream, self.device)
        with cupy().cuda.Device(self.device.ordinal):
            self._graph.launch(own._stream)

    def __repr__(self) -> str:
        """Return the device."""
        return f"<Graph on {self.device}>"


def capture_begin(device: Device | str | None = None, stream: Any = None) -> None:
    """Begin to record what a stream is given, instead of running it.

    Parameters
    ----------
    device : Device or str, optional
        Whose current stream is meant; the current CUDA device by default.
    stream : Stream, optional
        The stream to record; the current one by default. The default stream cannot be recorded: use `ScopedStream`, or
        `ScopedCapture`, which brings a stream of its own.

    Raises
    ------
    DeviceError
        If it is the default stream.
    """
    own = get_stream(device) if stream is None else own_stream(stream)
    if own.cuda_stream in (0, 1, 2):
        raise DeviceError(
            "capture_begin: the default stream cannot be recorded into a graph; make another current with nb.ScopedStream, "
            "or use nb.ScopedCapture"
        )
    with cupy().cuda.Device(own.device.ordinal):
        own._stream.begin_capture()


def capture_end(device: Device | str | None = None, stream: Any = None) -> Graph:
    """End what `capture_begin` began, and return the graph; parameters as there.

    Raises
    ------
    DeviceError
        If something was done that a graph cannot hold, such as waiting; nothing was run.
    """
    own = get_stream(device) if stream is None else own_stream(stream)
    module = cupy()
    with module.cuda.Device(own.device.ordinal), warnings.catch_warnings():
        # CuPy calls its graphs experimental each time that one is made.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            graph = own._stream.end_capture()
        except module.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"capture_end: the recorded work cannot be a graph: {error}") from error
    return Graph(graph, own.device)


def capture_launch(graph: Graph, stream: Any = None) -> None:
    """Queue a graph on a stream: the current one by default."""
    if not isinstance(graph, Graph):
        raise NumbridgeTypeError(
            f"capture_launch: wanted a graph, of capture_end() or ScopedCapture.graph, got {graph!r}"
        )
    graph.launch(stream)


class ScopedCapture:
    """Record what is launched within a ``with`` block into a graph, on a stream of its own that is current meanwhile.

    Parameters
    ----------
    device : Device or str, optional
        The current CUDA device by default.
    stream : Stream, optional
        The stream to record instead.

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

    def __init__(self, device: Device | str | None = None, stream: Any = None) -> None:
        if not cuda_driver.driver_count():
            raise cuda_unavailable("nb.ScopedCapture")
        place = get_device("cuda" if device is None else device)
        self._stream = Stream(place) if stream is None else own_stream(stream, place)
        self._scope = ScopedStream(self._stream)
        self.graph: Graph | None = None

    def __enter__(self) -> ScopedCapture:
        """Begin to record."""
        self._scope.__enter__()
        try:
            capture_begin(stream=self._stream)
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
