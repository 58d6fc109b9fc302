"""Shapes and strides: what a view of an array looks like, worked out on numbers alone.

Strides and offsets count elements, not bytes. Nothing here touches memory or knows an array class, so the same rules
hold wherever an array lies.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numbridge.kernels.errors import (
    BufferAccessError,
    NumbridgeIndexError,
    NumbridgeTypeError,
    NumbridgeValueError,
    shown,
)

__all__ = [
    "MAX_RANK",
    "Strides",
    "consumed",
    "contiguous",
    "extents",
    "indexed",
    "permuted",
    "resolved",
    "restrided",
    "retyped",
]

Strides = tuple[int, ...]
MAX_RANK = 64  # NumPy's own limit


def extents(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple: an int is one dimension.

    Raises
    ------
    NumbridgeTypeError, NumbridgeValueError
        If an extent is no integer or is negative, or there are more than 64.
    """
    given = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    try:
        result = tuple(operator.index(extent) for extent in given)
    except TypeError:
        raise NumbridgeTypeError(f"shape is {shown(shape)}; it must be an int or a tuple of ints") from None
    if any(extent < 0 for extent in result):
        raise NumbridgeValueError(f"shape is {shown(result)}; extents must not be negative")
    if len(result) > MAX_RANK:
        raise NumbridgeValueError(f"shape has {len(result)} dimensions; an array has at most {MAX_RANK}")
    return result


def contiguous(shape: Sequence[int]) -> Strides:
    """Return the strides of a C-contiguous array."""
    result, step = [], 1
    for extent in reversed(shape):
        result.append(step)
        step *= max(extent, 1)
    return tuple(reversed(result))


def _tidy(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """Give axes without a meaningful stride (extent 0 or 1) the contiguous one, which every consumer accepts."""
    if min(shape, default=2) > 1:
        return tuple(strides)
    plain = contiguous(shape)
    return tuple(own if extent > 1 else usual for extent, own, usual in zip(shape, strides, plain, strict=True))


def indexed(key: Any, shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], Strides, int]:
    """Return shape, strides and offset of a basic index: ints, slices, Ellipsis and None, as in NumPy.

    Raises
    ------
    NumbridgeIndexError
        If an integer is out of range, there are too many indices, or one is of a kind that would copy.
    """
    new_shape: list[int] = []
    new_strides: list[int] = []
    offset, axis = 0, 0
    for part in _spelled_out(key, len(shape)):
        if part is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        if isinstance(part, slice):
            start, stop, step = _slice(part, shape[axis])
            new_shape.append(len(range(start, stop, step)))
            new_strides.append(strides[axis] * step)
        else:
            start = _position(part, axis, shape[axis])
        offset += start * strides[axis]
        axis += 1
    return tuple(new_shape), _tidy(new_shape, new_strides), offset


def consumed(part: Any) -> int:
    """Return how many dimensions one part of an index of any kind that NumPy takes stands for."""
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, slice) or type(part) is int:
        return 1
    try:
        mask = part if hasattr(part, "dtype") and hasattr(part, "ndim") else np.asarray(part)
    except ValueError:
        return 1  # which NumPy refuses
    return int(mask.ndim) if str(mask.dtype).endswith("bool") else 1


def _slice(part: slice, extent: int) -> tuple[int, int, int]:
    try:
        return part.indices(extent)
    except TypeError as error:
        raise NumbridgeIndexError(f"{part!r} is no slice of an array: {error}") from None
    except ValueError as error:
        raise NumbridgeValueError(f"{part!r} is no slice of an array: {error}") from None


def _spelled_out(key: Any, ndim: int) -> list[Any]:
    """Return one part per axis, and None for each new one: what Ellipsis or the end of the key left out is ``:``."""
    parts = list(key) if isinstance(key, tuple) else [key]
    used = sum(part is not None and part is not Ellipsis for part in parts)
    gaps = [place for place, part in enumerate(parts) if part is Ellipsis]
    if len(gaps) > 1:
        raise NumbridgeIndexError("an index may have one Ellipsis ('...'), and this one has more")
    if used > ndim:
        raise NumbridgeIndexError(f"{used} indices for an array with {ndim} dimensions")
    place = gaps[0] if gaps else len(parts)
    parts[place : place + 1] = [slice(None)] * (ndim - used)
    return parts


def _position(part: Any, axis: int, extent: int) -> int:
    try:
        if isinstance(part, bool | np.bool_):
            raise TypeError
        position = operator.index(part)
    except TypeError:
        raise NumbridgeIndexError(
            f"an index of type {type(part).__name__} would copy; an Array takes ints, slices, '...' and None, which "
            "give views: use array.numpy()[index] for a copy"
        ) from None
    if not -extent <= position < extent:
        raise NumbridgeIndexError(f"index {shown(position)} is out of range for axis {axis} with extent {extent}")
    return position + extent if position < 0 else position


def resolved(shape: Any, size: int) -> tuple[int, ...]:
    """Return a new shape for `size` elements; one extent may be -1, and is worked out.

    Raises
    ------
    NumbridgeValueError
        If the elements do not fit.
    """
    given = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    unknown = [place for place, extent in enumerate(given) if extent == -1]
    known = extents(tuple(extent for extent in given if extent != -1))
    rest = math.prod(known)
    if len(unknown) > 1 or (unknown and (rest == 0 or size % rest)) or (not unknown and rest != size):
        raise NumbridgeValueError(f"an array of {size} elements cannot have the shape {shown(given)}")
    if not unknown:
        return known
    return (*known[: unknown[0]], size // rest, *known[unknown[0] :])


def restrided(shape: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> Strides | None:
    """Return the strides that give the same elements the shape `target`, or None where there are none.

    Both shapes must have the same number of elements.
    """
    if 0 in shape:
        return contiguous(target)
    blocks = _blocks(shape, strides)
    extent, step = blocks.pop()
    result: list[int] = []
    for wanted in reversed(target):
        while extent == 1 and blocks and wanted != 1:
            extent, step = blocks.pop()
        if extent % wanted:
            return None
        result.append(step)
        extent, step = extent // wanted, step * wanted
    return _tidy(target, result[::-1])


def _blocks(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return (elements, innermost stride) of each run of axes that one axis could replace."""
    blocks = [(1, 1)]
    for extent, step in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        count, outer = blocks[-1]
        if len(blocks) > 1 and outer == extent * step:
            blocks[-1] = (count * extent, step)
        else:
            blocks.append((extent, step))
    return blocks


def retyped(shape: Sequence[int], strides: Sequence[int], old: int, new: int) -> tuple[tuple[int, ...], Strides]:
    """Return shape and strides of the same bytes with elements of another size; the last axis takes up the difference.

    Raises
    ------
    BufferAccessError, NumbridgeValueError
        If the last axis is not contiguous or does not divide up, or another axis steps by fractions of an element.
    """
    if old == new:
        return tuple(shape), tuple(strides)
    if not shape:
        raise NumbridgeValueError(f"a 0-d array of {old}-byte elements cannot be viewed as {new}-byte elements")
    if shape[-1] * old % new:
        raise NumbridgeValueError(
            f"the last axis has {shape[-1]} elements of {old} bytes, which are no whole number of {new}-byte elements"
        )
    target = (*shape[:-1], shape[-1] * old // new)
    if 0 in shape:
        return target, contiguous(target)
    outer = [step * old for extent, step in zip(shape[:-1], strides[:-1], strict=True) if extent > 1]
    if (shape[-1] > 1 and strides[-1] != 1) or any(step % new for step in outer):
        raise BufferAccessError(
            f"an array with strides {tuple(step * old for step in strides)} bytes cannot be viewed as {new}-byte "
            "elements: the last axis must be contiguous, and the others must step by whole elements; use "
            "array.contiguous() first"
        )
    return target, _tidy(target, [*(step * old // new for step in strides[:-1]), 1])


def permuted(
    axes: Sequence[int] | None, shape: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, ...], Strides]:
    """Return shape and strides with the axes in another order; None reverses them.

    Raises
    ------
    NumbridgeTypeError, NumbridgeValueError
        If `axes` does not name each axis once.
    """
    ndim = len(shape)
    try:
        given = range(ndim - 1, -1, -1) if axes is None else [operator.index(axis) for axis in axes]
    except TypeError:
        raise NumbridgeTypeError(f"axes are {axes!r}; they must be ints, one for each of the {ndim} axes") from None
    order = [axis + ndim if axis < 0 else axis for axis in given]
    if sorted(order) != list(range(ndim)):
        raise NumbridgeValueError(f"axes {shown(tuple(given))} do not name each of the {ndim} axes once")
    target = tuple(shape[axis] for axis in order)
    return target, _tidy(target, [strides[axis] for axis in order])
