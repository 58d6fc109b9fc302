"""Finds accesses of several threads to one place that nothing orders: what they read, or leave there, is a matter of chance.

All memory of a kernel is looked at, shared and global, but not across the blocks of a grid. Accesses race that touch a common
byte, of which one at least writes, and not both are strong (PTX ISA, "Memory Consistency Model": atomic, volatile, relaxed). What
orders them is a barrier of their block or of the grid, or one of lanes of a warp after the one and before the other. Two that
store the same number do not count: that is what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

# What is noted of an access, as int64 words: the thread's place in its block, the number of its clock, the address and size in
# bytes, 1 for a write plus 2 if it is strong, the line of the PTX text, and the number that is stored.
_THREAD, _CLOCK, _ADDRESS, _SIZE, _HOW, _LINE, _VALUE = range(7)
_WORDS = 8
_ROOM = 1 << 21  # accesses of a block from one barrier to the next
_WRITES, _STRONG = 1, 2


class RaceError(Exception):
    """Threads access one place at once, or in an order that nothing tells."""


class Races:
    """Notes the accesses of one block at a time, and compares those between which all its threads have not met.

    Parameters
    ----------
    line : callable
        Returns a line of the PTX text, for messages.
    """

    def __init__(self, line: Callable[[int], str]) -> None:
        self._line = line
        self._log = np.zeros((_ROOM + 1) * _WORDS, np.int64)
        # Vector clocks: how often each thread has met lanes of its warp (plus one), as far as a thread knows of it.
        self._clocks: list[dict[int, int]] = []

    @property
    def words(self) -> dict[str, int]:
        """The words of a thread's context that tell where to note accesses."""
        return {"log": self._log.ctypes.data, "room": _ROOM}

    def begin(self, places: Sequence[int]) -> dict[int, int]:
        """Return the clocks with which threads begin."""
        return {place: self._clock({place: 1}) for place in places}

    def meet(self, clocks: dict[int, int]) -> dict[int, int]:
        """Return the clocks of threads after they have met, from those before."""
        joined: dict[int, int] = {}
        for clock in clocks.values():
            for place, count in self._clocks[clock].items():
                joined[place] = max(count, joined.get(place, 0))
        return {place: self._clock(joined | {place: joined[place] + 1}) for place in clocks}

    def _clock(self, known: dict[int, int]) -> int:
        self._clocks.append(known)
        return len(self._clocks) - 1

    def compare(self) -> None:
        """Compare the accesses that have been noted with each other, and forget them: all of the block have come this far.

        Raises
        ------
        RaceError
            If two of them race: which threads, what they do, and where.
        """
        count = int(self._log[0])
        self._log[0] = 0
        if count > _ROOM:
            raise NotImplementedError(
                f"{count} accesses of a block from one barrier to the next; {_ROOM} can be compared"
            )
        for group in _together(self._log[_WORDS : (count + 1) * _WORDS].reshape(count, _WORDS)):
            self._compare(group)

    def _compare(self, accesses: np.ndarray) -> None:
        rows = [[int(word) for word in row] for row in accesses]
        for k, one in enumerate(rows):
            for other in rows[:k]:
                if self._race(other, one):
                    told = " and ".join(self._told(row) for row in (other, one))
                    raise RaceError(f"nothing orders what threads do at {one[_ADDRESS]:#x}: {told}")

    def _race(self, one: Sequence[int], other: Sequence[int]) -> bool:
        if one[_THREAD] == other[_THREAD] or not (one[_HOW] | other[_HOW]) & _WRITES:
            return False
        if one[_HOW] & other[_HOW] & _STRONG:
            return False
        same = one[_ADDRESS] == other[_ADDRESS] and one[_SIZE] == other[_SIZE] and one[_VALUE] == other[_VALUE]
        if one[_HOW] == other[_HOW] == _WRITES and same:
            return False
        return not (self._before(one, other) or self._before(other, one))

    def _before(self, one: Sequence[int], other: Sequence[int]) -> bool:
        """Tell whether the other thread has met the one, at whatever distance, after the one's access and before its own."""
        if one[_CLOCK] == other[_CLOCK]:  # nobody meets anybody
            return False
        place = one[_THREAD]
        return self._clocks[other[_CLOCK]].get(place, 0) >= self._clocks[one[_CLOCK]][place]

    def _told(self, row: Sequence[int]) -> str:
        does = ("writes", "reads")[not row[_HOW] & _WRITES]
        return f"thread {row[_THREAD]} {does} {row[_SIZE]} bytes in PTX line {row[_LINE]}, {self._line(row[_LINE])!r}"


def _together(accesses: np.ndarray) -> Iterator[np.ndarray]:
    """Yield accesses of several threads to one byte, one of which at least writes; what a thread repeats is there once."""
    if not len(accesses):
        return
    kept = np.unique(accesses[:, : _WORDS - 1], axis=0)
    sizes = kept[:, _SIZE]
    rows = np.repeat(np.arange(len(kept)), sizes)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    touched = kept[rows, _ADDRESS] + within
    order = np.argsort(touched, kind="stable")
    rows, touched = rows[order], touched[order]
    starts = np.flatnonzero(np.diff(touched, prepend=touched[0] - 1))
    writes = np.maximum.reduceat(kept[rows, _HOW] & _WRITES, starts)
    first, last = (f.reduceat(kept[rows, _THREAD], starts) for f in (np.minimum, np.maximum))
    ends = np.append(starts[1:], len(rows))
    seen: set[bytes] = set()
    for k in np.flatnonzero((writes == 1) & (first != last)):
        group = rows[starts[k] : ends[k]]
        if group.tobytes() not in seen:  # those that touch several bytes in common
            seen.add(group.tobytes())
            yield kept[group]
