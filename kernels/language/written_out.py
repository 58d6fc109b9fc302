"""Functions of arrays that Numba compiles by itself, step by step as there: derivatives are made of their source.

They are read, and never called. They decide as Numba's do, also where an array is not sorted or holds NaN. What they load is
seen, so that a tape keeps it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["WRITTEN_OUT"]


def searchsorted(a: Any, v: Any, side: str = "left") -> Any:
    """Return before which element a number belongs; NaN belongs at the end."""
    low = 0
    high = len(a)
    while low < high:
        middle = low + ((high - low) >> 1)
        found = a[middle]
        if side == "left":
            before = found < v or (v != v and found == found)
        else:
            before = not (v < found or (found != found and v == v))
        if before:
            low = middle + 1
        else:
            high = middle
    return low


WRITTEN_OUT: dict[Any, Any] = {np.searchsorted: searchsorted}
