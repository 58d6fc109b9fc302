"""Leases: read-only memory that was handed on to a framework whose tensors cannot say that they must not be written.

Its addresses are remembered here as long as the memory lives. Compiled code then reads whatever lies in immutable memory as
immutable, under any name: as a slice, detached, as a parameter, or through a third framework; and tensors in memory that is
merely read-only, which others may write to, as read-only. Names no framework.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from numbridge.kernels.native import table_layout as nb
from numbridge.memory import native

if TYPE_CHECKING:
    from numbridge.array import Array

__all__ = ["any_lent", "is_lent", "lend"]

# (id of the owner, first address, address behind the last, bits of the word) of everything lent
_Lease = tuple[int, int, int, int]
_lent: dict[_Lease, None] = {}


def any_lent() -> bool:
    """Tell whether there is any lease."""
    return bool(_lent)


def lend(array: Array) -> None:
    """Remember that an array's memory was handed on to something that cannot say, or may not heed, that it is read-only.

    Nothing happens if the memory is writable.
    """
    bits = native().word(array._record) & (nb.READ_ONLY | nb.IMMUTABLE)
    if not bits:
        return
    owner = native().owner(array._record)
    lease = (id(owner), *_span(array), bits)
    # A capsule cannot be watched. It holds a tensor whose memory was lent before, and that lease lives as long as it does.
    if lease in _lent or not type(owner).__weakrefoffset__:
        return
    _lent[lease] = None
    weakref.finalize(owner, _end, lease).atexit = False
    _publish()


def _end(lease: _Lease) -> None:
    _lent.pop(lease, None)
    _publish()


def _publish() -> None:
    """Tell compiled code what is lent; what changes meanwhile, on another thread or in a finalizer, is told once more."""
    told = None
    while told != (now := list(_lent)):
        native().set_lent([lease[1:] for lease in now])
        told = now


def _span(array: Array) -> tuple[int, int]:
    """Return the lowest address of an array's elements and the address behind the highest."""
    _, data, shape, strides, _ = native().describe(array)
    if 0 in shape:
        return data, data
    reach = [step * (extent - 1) for extent, step in zip(shape, strides, strict=True)]
    return data + sum(r for r in reach if r < 0), data + sum(r for r in reach if r > 0) + array.itemsize


def is_lent(address: int) -> bool:
    """Tell whether an address lies in immutable memory that was lent."""
    # A copy, since leases end whenever their memory does.
    return any(first <= address < behind and bits & nb.IMMUTABLE for _, first, behind, bits in list(_lent))
