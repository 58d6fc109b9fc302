"""What threads find out when they meet: the operations for which those of a warp, a block or a grid wait for each other.

PTX ISA, "Data Movement and Conversion Instructions: shfl.sync" and "Parallel Synchronization and Communication Instructions". Who
waits for whom is told by `Meeting.scope`; this module runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Scope = Literal["warp", "block", "grid", "active", "thread"]
ONES = 0xFFFFFFFF
# "Results are undefined" where a lane reads what no lane has given: bits that are nobody's value
NOBODY = 0xA5A5A5A5


class MeetingError(Exception):
    """Threads wait for each other for ever, or meet in a way that PTX does not define."""


@dataclass(frozen=True)
class Meeting:
    """One instruction at which threads meet.

    Attributes
    ----------
    operation : str
        The operation with its qualifiers, such as ``shfl.sync.up.b32``. Threads meet at any instruction with the same one.
    line : int
        Its line in the text.
    scope : str
        ``warp`` for the lanes that the first operand, a mask, names; ``block`` and ``grid`` for all their threads; ``active``
        for the lanes of a warp that happen to be at this instruction together; ``thread`` if nobody waits.
    aligned : bool
        Whether all lanes of a warp must be at the same instruction.
    """

    operation: str
    line: int
    scope: Scope
    aligned: bool = False

    @property
    def parts(self) -> list[str]:
        return self.operation.split(".")


@dataclass(frozen=True)
class Given:
    """What a thread brought along: its lane, the mask that it named (without a scope of lanes, zero), and its operands."""

    lane: int
    mask: int
    operands: tuple[int, int, int]


# A word of result, and a predicate
Answer = tuple[int, int]
_Answering = Callable[[Meeting, list[Given]], list[Answer]]


def answers(meeting: Meeting, given: list[Given]) -> list[Answer]:
    """Return what each thread of a meeting gets."""
    first, second, *_ = [*meeting.parts, ""]
    if meeting.scope == "active":
        return _for_all(given, _mask(given), 0)
    return _ANSWERS.get(f"{first}.{second}", _nothing)(meeting, given)


def _nothing(meeting: Meeting, given: list[Given]) -> list[Answer]:
    return _for_all(given, 0, 0)


def _for_all(given: list[Given], word: int, holds: int) -> list[Answer]:
    return [(word, int(holds))] * len(given)


def _mask(given: list[Given]) -> int:
    return sum(1 << each.lane for each in given)


def _shuffled(meeting: Meeting, given: list[Given]) -> list[Answer]:
    """Follow the pseudocode of shfl.sync; the operands are a, b and c."""
    sources = {each.lane: each.operands[0] for each in given}
    found = []
    for each in given:
        source, inside = _source_lane(meeting.parts[2], each.lane, *each.operands[1:])
        found.append((sources.get(source, NOBODY), int(inside)))
    return found


def _source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Return the lane that is read, and whether that is another than the own for lack of one."""
    value, clamp, segment = b & 31, c & 31, c >> 8 & 31
    lowest = lane & segment
    highest = lowest | clamp & ~segment
    if mode == "up":
        source = lane - value
        inside = source >= highest
    else:
        steps = {"down": lane + value, "bfly": lane ^ value, "idx": lowest | value & ~segment}
        source = steps[mode]
        inside = source <= highest
    return (source if inside else lane), inside


def _voted(meeting: Meeting, given: list[Given]) -> list[Answer]:
    votes = [each.operands[0] for each in given]
    ballot = sum(1 << each.lane for each in given if each.operands[0])
    holds = {"all": all(votes), "any": any(votes), "uni": len(set(votes)) == 1, "ballot": False}[meeting.parts[2]]
    return _for_all(given, ballot, holds)


def _matched(meeting: Meeting, given: list[Given]) -> list[Answer]:
    values = [each.operands[0] for each in given]
    if meeting.parts[1] == "all":
        same = len(set(values)) == 1
        return _for_all(given, _mask(given) if same else 0, same)
    masks = {value: _mask([each for each in given if each.operands[0] == value]) for value in set(values)}
    return [(masks[value], 0) for value in values]


def _reduced(meeting: Meeting, given: list[Given]) -> list[Answer]:
    """Return what bar.red finds of a predicate."""
    votes = [each.operands[0] for each in given]
    if "popc" in meeting.parts:
        return _for_all(given, sum(votes), 0)
    return _for_all(given, 0, all(votes) if "and" in meeting.parts else any(votes))


_ANSWERS: dict[str, _Answering] = {
    "shfl.sync": _shuffled,
    "vote.sync": _voted,
    "match.any": _matched,
    "match.all": _matched,
    "bar.red": _reduced,
    "barrier.red": _reduced,
}
