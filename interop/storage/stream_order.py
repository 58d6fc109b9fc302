"""On which CUDA stream an array's memory is used, and how work of two streams on it is ordered: by events, without waiting.

Memory of a framework's tensor is used on that framework's current stream, memory whose producer named a stream on that one, and
any other on numbridge's, which is CuPy's; views of an array are used where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.argument_streams import argument_stream

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = ["hand_over", "in_order", "producer_stream"]


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
