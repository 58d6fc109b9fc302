"""`array1d` to `array4d`: annotations of arrays with so many dimensions, which make such arrays where they are given data."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbridge.arrays.array import Array
from numbridge.kernels.annotations import ArrayAnnotation
from numbridge.kernels.scalars import Scalar, of_framework

__all__ = ["array1d", "array2d", "array3d", "array4d"]


def _is_dtype(data: Any) -> bool:
    if isinstance(data, type | np.dtype | str | Scalar):
        return True
    # Asking costs the text of what is asked about.
    return not hasattr(data, "shape") and of_framework(data) is not None


class _RankedArray:
    """An annotation as it is, with a dtype as ``array2d[float]`` or ``array2d(dtype=float)``; else a constructor."""

    def __init__(self, ndim: int) -> None:
        # Kernels take this for the annotation.
        self.__kernel_annotation__ = ArrayAnnotation(None, ndim)

    def __getitem__(self, dtype: Any) -> ArrayAnnotation:
        """Return the annotation with a dtype; `typing.Any` leaves it open."""
        return self.__kernel_annotation__[dtype]

    def __call__(self, data: Any = None, dtype: Any = None, shape: Any = None, **options: Any) -> Any:
        """Return an annotation if there is only a dtype, else the array that `Array` makes, of so many dimensions."""
        if dtype is None and _is_dtype(data):
            data, dtype = None, data
        if data is None and shape is None and not options:
            return self if dtype is None else self[dtype]
        return Array(data, dtype, shape, ndim=self.__kernel_annotation__.ndim, **options)

    def __eq__(self, other: object) -> bool:
        """Compare as the annotation."""
        return bool(self.__kernel_annotation__ == getattr(other, "__kernel_annotation__", other))

    def __hash__(self) -> int:
        """Hash as the annotation."""
        return hash(self.__kernel_annotation__)

    def __repr__(self) -> str:
        """Return the name."""
        return repr(self.__kernel_annotation__)

    def __reduce__(self) -> str:
        """Copy and pickle as the name."""
        return repr(self)


array1d, array2d, array3d, array4d = map(_RankedArray, range(1, 5))
