"""Device memory that a launch on CUDA needs for itself: allocated, filled, copied and given back in the order of its stream."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.argument_streams import argument_stream
from numbridge.kernels.element_types.element_arguments import element_flags, full_shape, full_strides
from numbridge.kernels.errors import DeviceError
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import Description, describe

__all__ = ["LaunchMemory"]

_WORD = scalars.by_name("int64")
_Words = np.ndarray[Any, np.dtype[np.int64]]


class LaunchMemory(contextlib.ExitStack):
    """Memory for the time that a stream needs it: what leaving this queues there gives it back.

    Parameters
    ----------
    name : str
        What is launched, for messages.
    ordinal, stream : int
        The device, and the stream on which all work is queued.
    is_ordered : bool
        Whether the caller has named the stream, and ordered others with it.
    """

    def __init__(self, name: str, ordinal: int, stream: int, *, is_ordered: bool) -> None:
        super().__init__()
        self._name, self._ordinal, self._stream, self._is_ordered = name, ordinal, stream, is_ordered
        self._devices = cuda_driver.devices()

    def words(self, count: int, *, zeroed: bool = False) -> Any:
        """Return a new array of int64; what it holds is undefined unless it is `zeroed`."""
        size = _WORD.itemsize * count
        address = self._allocate(size)
        if zeroed:
            self._devices.clear(self._ordinal, address, size, self._stream)
        return self._record(address, _WORD, (count,), (1,), 0)

    def copy_of(self, argument: Any, found: Description) -> Any:
        """Return a copy of an array in CUDA memory, with its strides."""
        if not self._is_ordered:
            self._devices.order(self._ordinal, argument_stream(argument, self._ordinal), self._stream)
        low, high = found.extent
        address, scalar = self._allocate(high - low), found.scalar
        assert scalar is not None
        self._devices.copy(self._ordinal, address, low, high - low, self._stream)
        strides = tuple(step // scalar.itemsize for step in full_strides(found))
        return self._record(
            address + found.data - low, scalar, full_shape(found), strides, element_flags(found.element)
        )

    def copy_in(self, words: Any, values: _Words) -> None:
        """Copy from host memory into an array of `words`."""
        self._devices.copy_in(self._ordinal, describe(words).data, values, self._stream)

    def copied_out(self, words: Any, count: int) -> _Words:
        """Return what such an array holds when the stream has come here, which this waits for."""
        values = np.zeros(count, np.int64)
        self._devices.copy_out(self._ordinal, values, describe(words).data, self._stream)
        return values

    def _allocate(self, size: int) -> int:
        try:
            address = self._devices.allocate(self._ordinal, max(size, 1), self._stream)
        except DeviceError as error:
            raise DeviceError(
                f"{self._name} needs {size} bytes of memory on cuda:{self._ordinal} beside its arguments, and did not get them; "
                f"nothing has been written. Free memory, or launch over fewer elements at a time ({error})"
            ) from error
        self.callback(self._devices.free, self._ordinal, address, self._stream)
        return address

    def _record(
        self, address: int, scalar: scalars.Scalar, shape: tuple[int, ...], strides: tuple[int, ...], flags: int
    ) -> Any:
        place = (address, scalar.tag, dl.CUDA, self._ordinal)
        return machine().new_record(None, *place, shape, strides, flags, self._stream)
