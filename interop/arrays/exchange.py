"""The DLPack exchange table of `Array`: how other libraries' compiled code makes and reads our arrays.

The table's functions are compiled; this only puts their addresses where consumers look. Layout: `dlpack_layout`.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.native import dlpack_layout as dl
from numbridge.storage.element_views import refuse_records
from numbridge.storage.leases import lend
from numbridge.storage.memory import native

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = ["ExchangeTable"]

_NAME = dl.NAME_EXCHANGE.encode()
_keep: list[Any] = []


class ExchangeTable:
    """The class attribute ``__dlpack_c_exchange_api__``; the table is made when it is first read."""

    def __get__(self, instance: Any, owner: type) -> Any:
        """Return the capsule ``dlpack_exchange_api``."""
        return _capsule()


def _handed_on(array: Array) -> None:
    """Look at an array that compiled code of a consumer's is about to take: one of elements, or a read-only one."""
    refuse_records(array, "DLPack")
    lend(array)


@functools.cache
def _capsule() -> Any:
    native().set_lender(_handed_on)
    addresses = native().exchange
    fields = {
        dl.EXCHANGE_MAJOR: dl.MAJOR_VERSION | dl.MINOR_VERSION << 32,
        dl.EXCHANGE_ALLOCATE: addresses["numbridge_exchange_allocate"],
        dl.EXCHANGE_FROM_OBJECT: addresses["numbridge_exchange_from_object"],
        dl.EXCHANGE_TO_OBJECT: addresses["numbridge_exchange_to_object"],
        dl.EXCHANGE_READ: addresses["numbridge_exchange_read"],
        dl.EXCHANGE_STREAM: addresses["numbridge_exchange_stream"],
    }
    table = np.zeros(dl.EXCHANGE_SIZE // 8, np.int64)
    for offset, value in fields.items():
        table[offset // 8] = value
    # Consumers keep the table's address for good, and the capsule does not own it.
    _keep.append(table)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(("PyCapsule_New", ctypes.pythonapi))(table.ctypes.data, _NAME, None)
