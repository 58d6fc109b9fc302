"""What a case of the tables of kernels is that work together in warps and blocks (`warp_operations`, `block_kernels`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A launch: the last of its arguments must hold what `expected` returns, and the others what they held before.

    Attributes
    ----------
    name : str
        What the case is called; no other is.
    kernel : Kernel
        What is launched, as ``kernel[blocks, threads, 0, shared]``.
    blocks, threads : int or tuple of int
        The configuration.
    shared : int
        Bytes of dynamic shared memory.
    arguments : callable
        Makes the arguments, new ones each time.
    expected : callable
        Gets arguments as they are before the launch, and returns what the last ones of them hold after it: one array for each.
    """

    name: str
    kernel: Any
    blocks: int | tuple[int, ...]
    threads: int | tuple[int, ...]
    arguments: Callable[[], list[Any]]
    expected: Callable[..., list[np.ndarray]]
    shared: int = 0

    @property
    def configuration(self) -> tuple[Any, ...]:
        """What stands between the brackets of the launch."""
        return self.blocks, self.threads, 0, self.shared

    def check(self, arguments: Sequence[Any]) -> None:
        """Check what a launch left in the arguments."""
        before = self.arguments()
        wanted = self.expected(*before)
        kept = before[: len(before) - len(wanted)]
        for k, (found, want) in enumerate(zip(arguments, [*kept, *wanted], strict=True)):
            if isinstance(want, np.ndarray):
                assert found.dtype == want.dtype, (self.name, k, found.dtype, want.dtype)
                np.testing.assert_array_equal(found, want, f"{self.name}, argument {k}")


def numbers(count: int, dtype: Any = np.int32, high: int = 1000) -> np.ndarray:
    """Return whole numbers, some of them negative, whose sums are exact in every type; of bool, some of either."""
    made = np.random.default_rng(count).integers(-high, high, count)
    return made > 0 if dtype is np.bool_ else made.astype(dtype)


def typed(kernel: Any, of: Callable[..., np.ndarray], count: int, results: int) -> list[Case]:
    """Return a case for each type that numba.cuda shuffles."""
    return [
        Case(
            f"{kernel.name}, {np.dtype(dtype).name}",
            kernel,
            2,
            count // 2,
            lambda dtype=dtype: [numbers(count, dtype), np.zeros(results, dtype)],
            lambda x, out: [of(x).astype(x.dtype)],
        )
        for dtype in (np.int32, np.int64, np.float32, np.float64)
    ]


def of_count(count: int, *results: tuple[int, ...], high: int = 1000, dtype: Any = np.int32) -> Callable[[], list[Any]]:
    """Return what makes an array of numbers and arrays of zeros of a type."""
    return lambda: [numbers(count, dtype, high), *(np.zeros(shape, dtype) for shape in results)]


def rows(x: np.ndarray) -> np.ndarray:
    """Return an array with a row for each warp."""
    return x.reshape(-1, 32)
