"""What the tests of arrays and converters share: dtypes, values for them, fresh processes, and a measure of leaks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numbridge.kernels import scalars

STATM = Path("/proc/self/statm")
PAGE = 4096


@pytest.fixture(params=scalars.ALL, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> scalars.Scalar:
    """Each row of the dtype table."""
    return request.param


@pytest.fixture
def values() -> Callable[..., np.ndarray]:
    """``values(dtype, shape)``: small whole numbers that every dtype holds exactly."""

    def make(dtype: Any, shape: Any = (3, 4)) -> np.ndarray:
        count = int(np.prod(shape))
        return (np.arange(count) % 5).reshape(shape).astype(scalars.scalar_of(dtype).numpy)

    return make


@pytest.fixture
def growth() -> Callable[..., int]:
    """``growth(work, times)``: bytes of resident memory that many rounds added, after some to warm up."""

    def resident() -> int:
        gc.collect()
        found = []
        for _ in range(10):
            # Other threads, such as JAX's, give some memory back late.
            found.append(int(STATM.read_text().split()[1]) * PAGE)
            time.sleep(0.02)
        return min(found)

    def added(work: Callable[[], Any], times: int) -> int:
        before = resident()
        for _ in range(times):
            work()
        return resident() - before

    def measure(work: Callable[[], Any], times: int = 100_000) -> int:
        for _ in range(1000):
            work()
        first = added(work, times)
        # The arena of a thread grows once. What leaks grows again.
        return first if first < 1 << 20 else min(first, added(work, times))

    return measure
