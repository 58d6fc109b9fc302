"""On which CUDA stream an array's memory is used, and how work of two streams on it is ordered: by events, without waiting.

Memory of a framework's tensor is used on that framework's current stream, memory whose producer named a stream on that one, and
any other on numbridge's, which is CuPy's; views of an array are used where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.argument_streams import argument_stream
from numbridge.kernels.readers import cuda_ordinal

if TYPE_CHECKING:
    from numbridge.arrays.array import Array
    from numbridge.kernels.readers import Description

__all__ = ["hand_over", "in_order", "let_launch_wait", "producer_stream", "wait_for_launch"]


def producer_stream(array: Array) -> int:
    """Return the handle of the stream on which an array's memory is used: that of launches on it."""
    return argument_stream(array, array.device.ordinal)


def hand_over(array: Array, stream: Any) -> None:
    """Let a consumer's stream wait for the stream on which an array's memory is used; None and 1 are the default stream."""
    wanted = cuda_driver.handle_of(1 if stream is None else stream)
    cuda_driver.devices().order(array.device.ordinal, producer_stream(array), 0 if wanted == 1 else wanted)


@contextlib.contextmanager
def in_order(*arrays: Any) -> Iterator[None]:
    """Order what is done on the current streams after what each array's producer was given, and that after this."""
    there = [(a.device.ordinal, producer_stream(a)) for a in arrays if a.device.is_cuda]
    devices = cuda_driver.devices()
    pairs = [(ordinal, stream, devices.current_stream(ordinal)) for ordinal, stream in there]
    # What a graph captures starts when the graph is launched, and then its stream orders it.
    pairs = [pair for pair in pairs if not devices.is_outside_capture(*pair)]
    for ordinal, stream, current in pairs:
        devices.order(ordinal, stream, current)
    yield
    for ordinal, stream, current in pairs:
        devices.order(ordinal, current, stream)


def wait_for_launch(stream: int, arrays: Iterable[Description]) -> None:
    """Let the current stream wait for what the stream of a launch on some arrays was given."""
    ordinal = cuda_ordinal(arrays)
    if ordinal is not None:
        devices = cuda_driver.devices()
        current = devices.current_stream(ordinal)
        # Where somebody's graph captures the launch, the current stream must not be drawn into that.
        if not devices.is_outside_capture(ordinal, current, stream):
            devices.order(ordinal, stream, current)


def let_launch_wait(stream: int, arrays: Iterable[Description]) -> None:
    """Let the stream of a launch on some arrays wait for what the current stream was given."""
    ordinal = cuda_ordinal(arrays)
    if ordinal is not None:
        devices = cuda_driver.devices()
        devices.order(ordinal, devices.current_stream(ordinal), stream)
