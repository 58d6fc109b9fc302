"""What arrays held at some time, as checksums: whether something that nobody was told of has changed them since.

NumPy writes to memory without a trace, so the contents themselves are looked at. A checksum costs one pass over the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from numbridge.kernels.adjoint.overlap import on_memory
from numbridge.kernels.machine import machine
from numbridge.kernels.native import table_layout as nb
from numbridge.tape.places import Place

__all__ = ["RememberedContents"]


class RememberedContents:
    """Checksums that places in the CPU's memory had; one that is not watchful remembers nothing.

    Of a place two may be remembered: what adjoints will read there, and what it holds that carries a gradient. Memory is
    looked at once in a round, which ends when it is said that it may have changed.
    """

    def __init__(self, *, watchful: bool = True) -> None:
        self._watchful = watchful
        self._round = 0

    def look_again(self) -> None:
        """Say that any contents may have changed."""
        self._round += 1

    def remember_read(self, place: Place) -> None:
        """Remember what a place holds, for adjoints; what is remembered already stays."""
        if place.read is None and self._watchful and place.is_on_cpu:
            place.read = self._now(place)

    def holds_read(self, place: Place) -> bool:
        """Return whether a place holds what was remembered for adjoints; where nothing is, it does."""
        return place.read is None or place.read == self._now(place)

    def remember_carried(self, places: Iterable[Place], changed: Iterable[Place]) -> None:
        """Remember what places that carry gradients hold after a step, which has changed some."""
        if not self._watchful:
            return
        for place in changed:
            for other in place.links:
                other.looked_at = -1
                if other.carried is not None:
                    other.carried = self._now(other)
        for place in places:
            if place.carried is None and place.is_on_cpu:
                place.carried = self._now(place)

    def are_carried(self, places: Iterable[Place]) -> bool:
        """Tell whether anything is remembered of what shares memory with some places and carries gradients."""
        for place in places:
            for other in place.links:
                if other.carried is not None:
                    return True
        return False

    def renew_carried(self, changed: Place) -> None:
        """Remember what every place that shares memory with one holds now, if it carries a gradient."""
        for place in changed.links:
            if place.carried is not None:
                place.carried = self._now(place)

    def changed(self, places: Iterable[Place]) -> list[Place]:
        """Return what shares memory with places, carries a gradient, and does not hold what was remembered."""
        found: list[Place] = []
        for place in places:
            for other in place.links:
                if other.carried is not None and other.carried != self._now(other) and other not in found:
                    found.append(other)
        return found

    def _now(self, place: Place) -> int:
        if place.looked_at != self._round:
            place.checksum, place.looked_at = _checksum(place), self._round
        return place.checksum


def _checksum(place: Place) -> int:
    found = place.found
    if found.word & nb.CONTIGUOUS:
        low, high = found.extent
        return machine().checksum(low, high - low)  # type: ignore[no-any-return]
    # An expanded array may be far larger than its memory.
    once = tuple(
        0 if step == 0 and length else slice(None) for step, length in zip(found.strides, found.shape, strict=True)
    )
    values: Any = np.ascontiguousarray(on_memory(found)[once])
    return machine().checksum(values.ctypes.data, values.nbytes)  # type: ignore[no-any-return]
