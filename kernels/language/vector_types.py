"""The vector types of numba.cuda, `cuda.float32x2` and its siblings, where numba.cuda is not: named tuples of numbers.

Those of CUDA itself stay numba.cuda's. Nothing is compiled here, and numba.cuda is not imported.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

__all__ = ["VECTOR_TYPES", "scalar_name"]

_SCALARS = (*(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float32", "float64")

VECTOR_TYPES: dict[str, Any] = {
    f"{scalar}x{count}": namedtuple(f"{scalar}x{count}", ["x", "y", "z", "w"][:count])
    for scalar in _SCALARS
    for count in range(1, 5)
}
"""Name → the class of its values."""


def scalar_name(vector: Any) -> str:
    """Return the name of the type of a vector's components."""
    name: str = vector.__name__
    return name.rpartition("x")[0]
