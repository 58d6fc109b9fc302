"""How long a call takes: medians, so that one interruption does not count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

__all__ = ["median_microseconds", "timed"]


def timed(run: Callable[[], object], count: int) -> float:
    """Return the seconds that one of `count` calls takes."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def median_microseconds(run: Callable[[], object], rounds: int = 7, seconds: float = 0.005) -> float:
    """Return the median over rounds of about `seconds` each, after a call that does not count."""
    run()
    count = max(1, min(100_000, int(seconds / max(timed(run, 1), 1e-8))))
    return statistics.median(timed(run, count) for _ in range(rounds)) * 1e6
