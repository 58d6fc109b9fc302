"""On which CUDA streams a launch's arguments are used, and which of them the launch goes to: what `cuda_entry` decides.

For what is done around a launch from Python. It launches nothing and orders nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.machine import capsule_pointer
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Description, ask_stream, reader_of, stream_of

__all__ = ["argument_stream", "launch_streams"]

_RECORD = b"numbridge.record"


def argument_stream(argument: Any, ordinal: int) -> int:
    """Return the handle of the stream on which the memory of an array in CUDA memory is used; 0 is the default stream."""
    reader, record = reader_of(argument), argument
    if reader.kind == nb.RECORD:
        record = ctypes.py_object.from_address(id(argument) + reader.function).value
    elif reader.kind != nb.CAPSULE:
        return stream_of(argument, ordinal)
    address = int(capsule_pointer(record, _RECORD) or 0)
    flags, stream = (ctypes.c_int64.from_address(address + at).value for at in (dl.RECORD_FLAGS, dl.RECORD_STREAM))
    if flags & dl.RECORD_HAS_STREAM:
        return stream
    if flags & dl.RECORD_ASKS_STREAM:
        return ask_stream(ctypes.c_int64.from_address(stream + nb.ENTRY_STREAM).value, ordinal)
    return cuda_driver.devices().current_stream(ordinal)


def launch_streams(arguments: Sequence[Any], found: Sequence[Description]) -> tuple[int, list[int]]:
    """Return the stream of a launch that is not told one, and those of its arguments in CUDA memory.

    Parameters
    ----------
    arguments, found : sequence
        The arguments, of which at least one lies in CUDA memory, and what was read from them.
    """
    there = [(a, d.device_id) for a, d in zip(arguments, found, strict=True) if d.is_on_cuda]
    streams = [argument_stream(argument, ordinal) for argument, ordinal in there]
    return cuda_driver.devices().current_stream(there[0][1]) or streams[0], streams
