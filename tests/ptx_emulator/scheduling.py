"""Runs the threads of blocks by turns, each as far as the next meeting, and lets go on who has met.

Whoever may go on does so in an order that is drawn by lot (the same in each run), so that a kernel without a barrier where it
needs one is found out. A thread that waits for another in a loop of its own, over memory, is not helped: it loops for ever.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ptx_emulator.fibers import BACK, SWAP, Fiber
from ptx_emulator.functions import CONTEXT, ENDED, WARP
from ptx_emulator.meetings import Given, Meeting, MeetingError, answers
from ptx_emulator.races import Races

_AT = {name: place for place, name in enumerate(CONTEXT)}


@dataclass(eq=False)
class Thread:
    """A thread of a grid: its fiber, the words that it shares with it, and its block and place in that."""

    fiber: Fiber
    words: np.ndarray
    block: tuple[int, ...]
    place: int

    @property
    def warp(self) -> tuple[tuple[int, ...], int]:
        return self.block, self.place // WARP

    @property
    def lane(self) -> int:
        return self.place % WARP

    def word(self, name: str) -> int:
        return int(self.words[_AT[name]])

    def given(self) -> Given:
        return Given(self.lane, self.word("mask"), (self.word("first"), self.word("second"), self.word("third")))


class Scheduler:
    """Runs threads that wait for each other.

    Parameters
    ----------
    meetings : sequence of Meeting
        The instructions at which they do, by the numbers that the translation gave them.
    line : callable
        Returns a line of the PTX text, for messages.
    show : callable
        Prints: gets the addresses of a text and of its values.
    races : Races, optional
        What notes and compares their accesses; the threads are those of one block then.
    """

    def __init__(
        self,
        meetings: Sequence[Meeting],
        line: Callable[[int], str],
        show: Callable[[int, int], object],
        races: Races | None = None,
    ) -> None:
        self._meetings, self._line, self._show, self._races = meetings, line, show, races
        self._draw = random.Random(0)

    def run(self, function: int, contexts: Iterable[tuple[np.ndarray, tuple[int, ...], int]]) -> None:
        """Run a function for each context, which comes with its block's place and its own in the block.

        Raises
        ------
        MeetingError
            If threads wait for each other for ever, or meet in a way that PTX does not define.
        """
        threads = []
        for words, block, place in contexts:
            fiber = Fiber(function, words.ctypes.data)
            words[_AT["swap"]], words[_AT["back"]], words[_AT["state"]] = SWAP, BACK, fiber.address
            threads.append(Thread(fiber, words, block, place))
        if self._races is not None:
            _set_clocks(threads, self._races.begin([thread.place for thread in threads]))
        try:
            self._run(threads)
        finally:
            for thread in threads:
                thread.fiber.release()

    def _run(self, threads: list[Thread]) -> None:
        lanes: Counter[Hashable] = Counter()
        for thread in threads:
            lanes[thread.warp] |= 1 << thread.lane
        self._lanes = lanes
        self._there = Counter(thread.block for thread in threads)
        waiting: dict[Hashable, list[Thread]] = defaultdict(list)
        ready = threads
        while ready:
            self._draw.shuffle(ready)
            for thread in ready:
                thread.fiber.resume()
                if thread.word("meeting") == ENDED:
                    self._lanes[thread.warp] &= ~(1 << thread.lane)
                    self._there[thread.block] -= 1
                else:
                    waiting[self._key(thread)].append(thread)
            ready = self._met(waiting)
        if self._races is not None:
            self._races.compare()
        if waiting:
            raise MeetingError(f"the threads wait for each other for ever: {self._who(waiting)}")

    def _key(self, thread: Thread) -> Hashable:
        """Return what threads that meet have in common."""
        number = thread.word("meeting")
        meeting, mask = self._meetings[number], thread.word("mask")
        if meeting.scope == "warp":
            if not mask >> thread.lane & 1:
                text = f"{self._where(number)}: lane {thread.lane} of block {thread.block} is not in the mask {mask:#x}"
                raise MeetingError(f"{text} that it names")
            return meeting.operation, mask, thread.warp
        if meeting.scope == "active":
            return number, thread.warp
        return meeting.operation, {"block": thread.block, "grid": "grid"}.get(meeting.scope, thread)

    def _met(self, waiting: dict[Hashable, list[Thread]]) -> list[Thread]:
        """Answer those for whom nobody is missing, and return them."""
        complete = [key for key, threads in waiting.items() if len(threads) == self._wanted(threads[0])]
        # Which lanes are active together is known when all of them have come as far as they can.
        complete = complete or [key for key, threads in waiting.items() if self._meeting(threads[0]).scope == "active"]
        met = []
        for key in complete:
            threads = waiting.pop(key)
            self._answer(threads)
            met += threads
        return met

    def _wanted(self, thread: Thread) -> int:
        """Return how many threads meet where a thread waits: threads that have ended are not waited for."""
        scope = self._meeting(thread).scope
        if scope == "warp":
            return (self._lanes[thread.warp] & thread.word("mask")).bit_count()
        if scope == "block":
            return self._there[thread.block]
        return {"grid": self._there.total(), "thread": 1, "active": -1}[scope]

    def _answer(self, threads: list[Thread]) -> None:
        meeting = self._meeting(threads[0])
        if meeting.aligned:
            self._check_aligned(threads)
        if meeting.scope == "thread":
            self._show(threads[0].word("first"), threads[0].word("second"))
        if self._races is not None and meeting.scope in ("block", "grid"):
            self._races.compare()
        elif self._races is not None and meeting.scope == "warp":
            _set_clocks(threads, self._races.meet({thread.place: thread.word("clock") for thread in threads}))
        for thread, (word, holds) in zip(threads, answers(meeting, [t.given() for t in threads]), strict=True):
            thread.words[_AT["answer"]], thread.words[_AT["holds"]] = word, holds

    def _check_aligned(self, threads: list[Thread]) -> None:
        """Refuse lanes of one warp at different barriers that all of a warp must execute together (PTX ISA, barrier.cta)."""
        places: dict[Hashable, set[int]] = defaultdict(set)
        for thread in threads:
            places[thread.warp].add(thread.word("meeting"))
        for (block, warp), numbers in places.items():
            if len(numbers) > 1:
                where = " and ".join(self._where(number) for number in sorted(numbers))
                raise MeetingError(f"warp {warp} of block {block} is at different barriers at once: {where}")

    def _meeting(self, thread: Thread) -> Meeting:
        return self._meetings[thread.word("meeting")]

    def _where(self, number: int) -> str:
        line = self._meetings[number].line
        return f"PTX line {line}, {self._line(line)!r}"

    def _who(self, waiting: dict[Hashable, list[Thread]]) -> str:
        found: dict[tuple[tuple[int, ...], int, int], list[int]] = defaultdict(list)
        for thread in (thread for threads in waiting.values() for thread in threads):
            found[thread.block, thread.word("meeting"), thread.word("mask")].append(thread.place)
        return "; ".join(
            f"threads {_ranges(sorted(places))} of block {block} at {self._where(number)}"
            + (f" with the mask {mask:#x}" if self._meetings[number].scope == "warp" else "")
            for (block, number, mask), places in sorted(found.items())
        )


def _set_clocks(threads: list[Thread], clocks: dict[int, int]) -> None:
    for thread in threads:
        thread.words[_AT["clock"]] = clocks[thread.place]


def _ranges(places: list[int]) -> str:
    """Return numbers as text: ``0 to 3, 5``."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
