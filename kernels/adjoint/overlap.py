"""Whether arrays share memory, and which of a derivative's arguments may.

Adjoints are carried through memory by address: two arguments with some of the same memory, one of which is written, would
make a gradient wrong without anybody noticing, so they are refused.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from numbridge.kernels.adjoint.prefixes import ADJOINT, primal_of
from numbridge.kernels.errors import BufferAccessError
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Description

__all__ = ["are_apart", "check_overlaps", "on_memory", "repeats", "share_memory"]

_WORK: Any = 10_000
_extent = operator.attrgetter("extent")


def share_memory(a: Description, b: Description) -> bool:
    """Tell whether two arrays have an element in common; in doubt, they have."""
    (low, high), (other_low, other_high) = a.extent, b.extent
    if low >= other_high or other_low >= high:
        return False
    if a.data == b.data:
        return True
    if a.word & b.word & nb.CONTIGUOUS:
        return low < high and other_low < other_high
    try:
        return np.shares_memory(on_memory(a), on_memory(b), max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


def repeats(found: Description) -> bool:
    """Tell whether several indices name one element, in an array without strides of zero; in doubt, they do."""
    if found.word & nb.CONTIGUOUS:
        return False
    reach = found.itemsize
    steps = sorted((abs(step), length) for step, length in zip(found.strides, found.shape, strict=True) if length > 1)
    for step, length in steps if 0 not in found.shape else ():
        if 0 < step < reach:
            return True
        reach += step * (length - 1)
    return False


def are_apart(arrays: Iterable[Description]) -> bool:
    """Tell whether no array lies in another's reach, and none repeats elements: then `check_overlaps` has nothing to refuse."""
    end = 0
    for found in sorted(arrays, key=_extent):
        low, high = found.extent
        if low < end or repeats(found):
            return False
        end = high
    return True


def on_memory(found: Description, dtype: Any = None) -> Any:
    """Return a NumPy array on an array's memory, which must be the CPU's and must not outlive it; opaque without a dtype."""
    low, high = found.extent
    if low == high:
        return np.empty(found.shape, dtype)
    block: Any = (ctypes.c_char * (high - low)).from_address(low)
    whole = np.frombuffer(block, np.uint8)
    return np.ndarray(found.shape, np.dtype(dtype or f"V{found.itemsize}"), whole, found.data - low, found.strides)


def check_overlaps(
    name: str,
    arguments: Sequence[str],
    written: Collection[str],
    adjoints: Sequence[str],
    found: Mapping[str, Description],
) -> bool:
    """Return whether no two adjoints share memory.

    Raises
    ------
    BufferAccessError
        If an argument that the kernel writes shares memory with another or itself, or an adjoint with an argument or itself.
    """
    arrays = [a for a in arguments if found[a].is_array]
    for argument in arrays:
        if argument in written and repeats(found[argument]):
            raise BufferAccessError(
                f"the {name}: the parameter {argument!r} has strides {found[argument].strides} bytes for shape "
                f"{found[argument].shape}, so several indices name one element, and the kernel writes to it, so a gradient would "
                "be wrong; pass a contiguous array"
            )
    for position, first in enumerate(arrays):
        for second in arrays[position + 1 :]:
            if (first in written or second in written) and share_memory(found[first], found[second]):
                raise BufferAccessError(
                    f"the {name}: the parameters {first!r} and {second!r} share memory, and the kernel writes to it, so a "
                    "gradient would be wrong; pass a copy for one of them"
                )
    derivatives = [a for a in adjoints if found[a].is_array]
    for adjoint in derivatives:
        if adjoint.startswith(ADJOINT) and repeats(found[adjoint]):
            raise BufferAccessError(
                f"the {name}: {adjoint!r} has strides {found[adjoint].strides} bytes for shape {found[adjoint].shape}, so "
                "several indices name one element; pass a contiguous array"
            )
        for argument in arrays:
            changed = adjoint.startswith(ADJOINT) or argument in written or primal_of(adjoint) in written
            if changed and share_memory(found[adjoint], found[argument]):
                raise BufferAccessError(
                    f"the {name}: {adjoint!r} shares memory with the argument {argument!r}; pass an array of its own"
                )
    apart = True
    for position, first in enumerate(derivatives):
        for second in derivatives[position + 1 :]:
            if share_memory(found[first], found[second]):
                apart = False
                if any(primal_of(item) in written for item in (first, second)):
                    raise BufferAccessError(
                        f"the {name}: {first!r} and {second!r} share memory, and the kernel writes one of their arguments; "
                        "pass arrays of their own"
                    )
    return apart
