"""What is measured: pieces of work, and who does them. A row is defined here and in the rooms ``*_work``, and nowhere else.

The repository's benchmarks take the same rows, and add the limits that they must keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from numbridge.bridges.installed import absent
from numbridge.command_line.timing import alternating

__all__ = ["Contestants", "Measurement", "Row", "Work"]

Contestants = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Row:
    """What was measured of one piece of work.

    Attributes
    ----------
    work : str
        What is done.
    values : mapping
        The figure of each contestant; the first one is ours. Less is better.
    unit : str
        ``"us"`` or ``"KiB"``.
    """

    work: str
    values: Mapping[str, float]
    unit: str = "us"


class Measurement(Protocol):
    """What can be measured: it has a name, may be missing here, and gives rows."""

    @property
    def name(self) -> str: ...

    @property
    def missing(self) -> str | None: ...

    def rows(self, rounds: int) -> list[Row]: ...


@dataclass(frozen=True)
class Work:
    """A piece of work that is timed, and who does it; the first contestant is ours.

    Attributes
    ----------
    name : str
        What is done.
    prepare : callable
        Makes the contestants, each a function of nothing. What is not installed is not among them.
    frameworks : tuple of str
        What must be installed.
    """

    name: str
    prepare: Callable[[], Contestants]
    frameworks: tuple[str, ...] = ()

    @property
    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""
        return next((why for name in self.frameworks if (why := absent(name)) is not None), None)

    def rows(self, rounds: int) -> list[Row]:
        """Return the median microseconds of each contestant."""
        return [Row(self.name, alternating(self.prepare(), rounds))]
