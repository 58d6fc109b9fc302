"""What compiled code compares before each launch, to know that no global or closure value of a kernel has changed.

Here are only the words that the entry reads, laid out as in `native.table_layout`; what a kernel reads is found elsewhere.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from numbridge.kernels.language.dependencies import MISSING, Dependency
from numbridge.kernels.native import table_layout as nb

__all__ = ["Guards", "guards"]


@dataclass(frozen=True)
class Guards:
    """A row of words for each dependency, and the copies of arrays that the rows point to."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    copies: tuple[np.ndarray[Any, Any] | None, ...]


def guards(dependencies: Sequence[Dependency]) -> Guards:
    """Return the guards of what a kernel was compiled with."""
    copies = tuple(map(_copy, dependencies))
    rows = [_row(dependency, copy) for dependency, copy in zip(dependencies, copies, strict=True)]
    return Guards(np.array(rows, np.int64).reshape(-1), copies)


def _copy(dependency: Dependency) -> np.ndarray[Any, Any] | None:
    """Return what an array held whose elements compiled code can compare."""
    value, held = dependency.value, dependency.contents
    if not isinstance(value, np.ndarray) or not value.flags.forc:
        return None
    copy = np.frombuffer(held.data, np.uint8)
    if value.flags.c_contiguous:
        return copy
    return np.frombuffer(copy.view(value.dtype).reshape(value.shape).tobytes("F"), np.uint8)


def _row(dependency: Dependency, copy: np.ndarray[Any, Any] | None) -> tuple[int, ...]:
    """Return what is compared; without a container, compiled code asks Python."""
    if dependency.container is None or (copy is None and dependency.contents is not None):
        return (0,) * (nb.GLOBAL_SIZE // 8)
    name = 0 if dependency.name is None else id(dependency.name)
    # Where there must be nothing, looking it up gives a null pointer.
    value = 0 if dependency.value is MISSING else id(dependency.value)
    place = (id(_dictionary(dependency.container)), name, value)
    if copy is None or not copy.nbytes:
        return (*place, 0, 0, 0)
    return (*place, copy.nbytes, dependency.value.ctypes.data, copy.ctypes.data)


def _dictionary(container: Any) -> Any:
    """Return what compiled code looks a name up in: a class shows only a proxy of its dictionary."""
    return gc.get_referents(container)[0] if isinstance(container, MappingProxyType) else container
