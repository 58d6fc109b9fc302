"""Leases: read-only memory that was handed on to a framework whose tensors cannot say that they must not be written.

Its addresses are remembered here: those of immutable memory as long as its owner lives, and those of memory that is merely
read-only, which others may write to, as long as somebody has it from us. Compiled code then reads whatever lies in immutable
memory as immutable, under any name: as a slice, detached, as a parameter, or through a third framework; and tensors in memory
that is merely read-only as read-only. Names no framework.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from numbridge.kernels.native import table_layout as nb
from numbridge.storage.memory import native

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = ["any_lent", "is_lent", "lend"]

# What is lent: by the owner's id and the bits of the word, the first address of each piece and the address behind its last.
# Pieces are sorted and apart from each other, so that there are never more of them than an owner's memory has gaps.
_lent: dict[tuple[int, int], list[tuple[int, int]]] = {}
# Finalizers run whenever they please, also inside it; but never that of an owner whose memory is being lent.
_lending = threading.RLock()


class _Watched:
    """What lives as long as the record that holds it."""

    __slots__ = ("__weakref__",)


def any_lent() -> bool:
    """Tell whether there is any lease."""
    return bool(_lent)


def lend(array: Array) -> None:
    """Remember that an array's memory was handed on to something that cannot say, or may not heed, that it is read-only.

    Nothing happens if the memory is writable. READ_ONLY alone counts for readings that cannot tell by themselves, IMMUTABLE
    for all. Takes time that grows with the logarithm of what the owner has lent, and a move of all pieces in memory.
    """
    bits = native().word(array._record) & (nb.READ_ONLY | nb.IMMUTABLE)
    if not bits:
        return
    first, behind = _span(array)
    if first == behind:
        return
    # Whoever uses the memory keeps the array's record alive. Once nobody does, who owns memory that is merely read-only here may
    # hand it on as writable; of immutable memory there may be names that we do not know. A capsule, a tuple or an object with
    # slots cannot be watched.
    owner = native().owner(array._record)
    if not bits & nb.IMMUTABLE or not type(owner).__weakrefoffset__:
        held = native().hold(array._record, _Watched())
        owner = held if type(held).__weakrefoffset__ else owner
    key = id(owner), bits
    with _lending:
        if key not in _lent:
            _lent[key] = []
            weakref.finalize(owner, _end, key).atexit = False
        _add(_lent[key], first, behind, bits)


def _add(pieces: list[tuple[int, int]], first: int, behind: int, bits: int) -> None:
    """Add a piece to those of one owner, and tell compiled code; it becomes one with those that it touches."""
    start = bisect_left(pieces, first, key=lambda piece: piece[1])
    stop = bisect_right(pieces, behind, key=lambda piece: piece[0])
    touched = pieces[start:stop]
    whole = min([first, *(piece[0] for piece in touched)]), max([behind, *(piece[1] for piece in touched)])
    if touched == [whole]:
        return
    native().lend(*whole, bits)  # before the others end, so that there is no moment between
    pieces[start:stop] = [whole]
    for piece in touched:
        native().end_lease(*piece, bits)


def _end(key: tuple[int, int]) -> None:
    for piece in _lent.pop(key):
        native().end_lease(*piece, key[1])


def _span(array: Array) -> tuple[int, int]:
    """Return the lowest address of an array's elements and the address behind the highest."""
    _, data, shape, strides, _ = native().describe(array)
    if 0 in shape:
        return data, data
    reach = [step * (extent - 1) for extent, step in zip(shape, strides, strict=True)]
    return data + sum(r for r in reach if r < 0), data + sum(r for r in reach if r > 0) + array.itemsize


def is_lent(address: int) -> bool:
    """Tell whether an address lies in immutable memory that was lent."""
    return bool(native().lent_at(address))
