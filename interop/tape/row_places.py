"""The rows of arrays that one launch touches, as places of their own, where its integers decide them.

The states of a simulation may be the rows of one array, which each launch is passed as a whole. What is kept, looked at
and compared is then what a launch touches, not the states of all times at each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Description
from numbridge.tape.places import Place, Places

if TYPE_CHECKING:
    from numbridge.kernels.adjoint.touched_rows import Rows

__all__ = ["RowPlaces"]

_Row: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
_Numbered: TypeAlias = tuple[_Row, ...] | None


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
        known = [part for both in rows.values() for part in both if part]
        deciding = sorted({name for part in known for _, terms in part for name, _ in terms})
        self._deciding = [*map(names.index, deciding)]
        self._arrays = [
            (names.index(name), _numbered(loaded, deciding), _numbered(stored, deciding))
            for name, (loaded, stored) in rows.items()
        ]

    def narrow(
        self, places: Places, at: Sequence[Place | None], arguments: Sequence[Any]
    ) -> tuple[list[Place | None], list[Place | None]]:
        """Return where each argument is loaded from, and where it is stored to, for arguments that lie `at` some places."""
        loaded, stored = list(at), list(at)
        numbers: list[int] = []
        for k in self._deciding:
            number = arguments[k]
            if not isinstance(number, int | np.integer):
                return loaded, stored
            numbers.append(int(number))
        for k, loads, stores in self._arrays:
            place = at[k]
            if place is None or not (place.found.word & nb.CONTIGUOUS and place.found.shape) or place.is_empty:
                continue
            if loads:
                loaded[k] = _part(places, place, loads, numbers)
            if stores:
                stored[k] = _part(places, place, stores, numbers)
            # Where it does only one of both, nothing more is touched.
            if loads == ():
                loaded[k] = stored[k]
            elif stores == ():
                stored[k] = loaded[k]
        return loaded, stored


def _numbered(rows: Rows, deciding: Sequence[str]) -> _Numbered:
    """Return rows with the positions of what decides them in place of names."""
    if rows is None:
        return None
    return tuple((known, tuple((deciding.index(name), factor) for name, factor in terms)) for known, terms in rows)


def _part(places: Places, place: Place, rows: Iterable[_Row], numbers: Sequence[int]) -> Place:
    """Return the place of some rows of an array, from the first to the last; all of it where one of them is none of its rows."""
    count = place.found.shape[0]
    first, last = count, -1
    for row, terms in rows:
        for n, factor in terms:
            row += factor * numbers[n]  # noqa: PLW2901 - a sum
        if row < 0:
            row += count  # noqa: PLW2901 - from the end
        if not 0 <= row < count:
            return place
        first, last = min(first, row), max(last, row)
    if first == 0 and last == count - 1:
        return place
    if place.parts is None:
        place.parts = {}
    known = place.parts.get((first, last))
    if known is None:
        known = place.parts[first, last] = _made(places, place, first, last)
    return known


def _made(places: Places, place: Place, first: int, last: int) -> Place:
    found = place.found
    row = math.prod(found.shape[1:]) * found.itemsize
    shape = (last - first + 1, *found.shape[1:])
    made = places.keep(Description(found.word, found.data + first * row, shape, found.strides, found.device_id))
    if made.holder is None:
        made.holder = place.holder
    return made
