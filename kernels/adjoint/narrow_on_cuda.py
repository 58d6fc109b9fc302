"""Adjoints of 16-bit floats in CUDA memory: converted to float32 for a launch and back, on the launch's stream.

The memory in between is the driver's, given and taken back in the order of the stream, so that nothing waits for a device.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from numbridge.kernels import scalars
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.argument_streams import argument_stream
from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import forall
from numbridge.kernels.machine import machine
from numbridge.kernels.readers import Description

__all__ = ["WideCopy", "wide_copy"]


@kernel
def convert_0d(source, target):  # type: ignore[no-untyped-def]
    target[()] = source[()]


@kernel
def convert_1d(source, target):  # type: ignore[no-untyped-def]
    i = tid()
    target[i] = source[i]


@kernel
def convert_2d(source, target):  # type: ignore[no-untyped-def]
    i, j = tid()
    target[i, j] = source[i, j]


@kernel
def convert_3d(source, target):  # type: ignore[no-untyped-def]
    i, j, k = tid()
    target[i, j, k] = source[i, j, k]


@kernel
def convert_4d(source, target):  # type: ignore[no-untyped-def]
    i, j, k, m = tid()
    target[i, j, k, m] = source[i, j, k, m]


_CONVERT = (convert_0d, convert_1d, convert_2d, convert_3d, convert_4d)


class WideCopy:
    """An adjoint of 16-bit floats, and float32 memory of the same shape.

    Attributes
    ----------
    wide : record
        The array of float32.
    """

    def __init__(self, argument: Any, found: Description, wide: Any, stream: int | None) -> None:
        self._narrow, self.wide = argument, wide
        self._run = forall(_CONVERT[found.ndim], found.shape or 1, stream=stream)

    def widen(self) -> None:
        """Copy the adjoint into the float32 memory."""
        self._run(self._narrow, self.wide)

    def round(self) -> None:
        """Copy the float32 memory back, rounded to nearest even."""
        self._run(self.wide, self._narrow)


@contextlib.contextmanager
def wide_copy(where: str, argument: Any, found: Description, stream: int | None) -> Iterator[WideCopy]:
    """Give float32 memory to an adjoint of 16-bit floats, for as long as work is queued.

    Parameters
    ----------
    where : str
        What messages call the adjoint.
    argument, found
        The adjoint, and what was read from it.
    stream : int or None
        The stream of the launch, if the caller named one; else the adjoint's own, around which a launch is ordered.

    Raises
    ------
    KernelUnsupportedError
        If the adjoint has more dimensions than a launch.
    """
    if found.ndim >= len(_CONVERT):
        raise KernelUnsupportedError(f"{where}: on CUDA it may have up to 4 dimensions; pass an array of float32")
    devices, ordinal = cuda_driver.devices(), found.device_id
    queue = argument_stream(argument, ordinal) if stream is None else stream
    address = devices.allocate(ordinal, 4 * max(math.prod(found.shape), 1), queue)
    # Launches are ordered with what is queued on this stream, wherever the adjoint itself is used.
    place = (scalars.by_name("float32").tag, found.device_type, ordinal, found.shape, None, 0, queue)
    try:
        yield WideCopy(argument, found, machine().new_record(None, address, *place), stream)
    finally:
        devices.free(ordinal, address, queue)
