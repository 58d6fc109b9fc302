"""The rows of arrays that one launch touches, as places of their own, where its integers decide them.

The states of a simulation may be the rows of one array, which each launch is passed as a whole. What is kept, looked at
and compared is then what a launch touches, not the states of all times at each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Description
from numbridge.tape.places import Place, Places

if TYPE_CHECKING:
    from numbridge.kernels.adjoint.touched_rows import Row, Rows

__all__ = ["RowPlaces"]

_NO_NUMBERS: dict[str, int] = {}


class RowPlaces:
    """Which arrays of a kernel may be narrowed for a launch, and to what.

    Parameters
    ----------
    names : sequence of str
        The kernel's parameters.
    rows : mapping of str to (Rows, Rows)
        What is known of its arrays: the rows that it loads, and those that it stores.
    """

    def __init__(self, names: Sequence[str], rows: Mapping[str, tuple[Rows, Rows]]) -> None:
        self._arrays = [(names.index(name), loaded, stored) for name, (loaded, stored) in rows.items()]
        known = [part for _, *both in self._arrays for part in both if part]
        self._numbers = {name: names.index(name) for part in known for _, terms in part for name, _ in terms}

    def narrow(
        self, places: Places, at: Sequence[Place | None], arguments: Sequence[Any]
    ) -> tuple[list[Place | None], list[Place | None]]:
        """Return where each argument is loaded from, and where it is stored to, for arguments that lie `at` some places."""
        loaded, stored = list(at), list(at)
        numbers = self._read(arguments)
        for k, *both in self._arrays if numbers is not None else ():
            place = at[k]
            if place is None or not (place.found.word & nb.CONTIGUOUS and place.found.shape) or place.is_empty:
                continue
            for rows, narrowed in zip(both, (loaded, stored), strict=True):
                between = None if rows is None else _between(rows, numbers, place.found.shape[0])  # type: ignore[arg-type]
                if between is not None:
                    narrowed[k] = _narrowed(places, place, *between)
            # Where it does only one of both, nothing more is touched.
            if both[0] == ():
                loaded[k] = stored[k]
            elif both[1] == ():
                stored[k] = loaded[k]
        return loaded, stored

    def _read(self, arguments: Sequence[Any]) -> dict[str, int] | None:
        """Return the integers that decide rows, or None if one of them is something else."""
        if not self._numbers:
            return _NO_NUMBERS
        found = {name: arguments[k] for name, k in self._numbers.items()}
        if not all(isinstance(value, int | np.integer) for value in found.values()):
            return None
        return {name: int(value) for name, value in found.items()}


def _between(rows: Iterable[Row], numbers: Mapping[str, int], count: int) -> tuple[int, int] | None:
    """Return the first and the last of some rows of an array of `count`, or None if one of them is none."""
    found = [known + sum(factor * numbers[name] for name, factor in terms) for known, terms in rows]
    # A negative index counts from the end.
    found = [row + count if row < 0 else row for row in found]
    return (min(found), max(found)) if found and all(0 <= row < count for row in found) else None


def _narrowed(places: Places, place: Place, first: int, last: int) -> Place:
    """Return the place of some rows of an array, which is known from now on."""
    found = place.found
    if (first, last) == (0, found.shape[0] - 1):
        return place
    row = math.prod(found.shape[1:]) * found.itemsize
    shape = (last - first + 1, *found.shape[1:])
    made = places.keep(Description(found.word, found.data + first * row, shape, found.strides, found.device_id))
    if made.holder is None:
        made.holder = place.holder
    return made
