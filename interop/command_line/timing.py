"""How long a call takes: medians, so that one interruption does not count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["alternating", "median_microseconds", "timed"]

_MOST_CALLS = 100_000


def timed(run: Callable[[], object], count: int) -> float:
    """Return the seconds that one of `count` calls takes."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def _calls_within(run: Callable[[], object], seconds: float) -> int:
    """Return how many calls take about `seconds`, told from the later ones: the first may take several times as long."""
    run()
    count, taken = 1, timed(run, 1)
    while count * taken < seconds / 2 and count < _MOST_CALLS:
        count = min(2 * count, _MOST_CALLS)
        taken = timed(run, count)
    return max(1, min(_MOST_CALLS, int(seconds / max(taken, 1e-8))))


def median_microseconds(run: Callable[[], object], rounds: int = 7, seconds: float = 0.005) -> float:
    """Return the median over rounds of about `seconds` each."""
    return alternating({"": run}, rounds, seconds)[""]


def alternating(
    contestants: Mapping[str, Callable[[], object]], rounds: int, seconds: float = 0.01
) -> dict[str, float]:
    """Return each contestant's median microseconds; they take turns, so that all of them see the same machine."""
    counts = {name: _calls_within(run, seconds) for name, run in contestants.items()}
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            found[name].append(timed(run, counts[name]))
    return {name: statistics.median(times) * 1e6 for name, times in found.items()}
