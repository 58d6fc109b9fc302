"""The fields of Numba's records as arrays of their own: an array of records has one array of numbers for each field.

An array of vectors or matrices has one of their components.

Fields within fields, and dimensions within fields, count as fields and dimensions of the records themselves. Derivatives
are made of these arrays, since a field's adjoint depends on no other field. Importing this module imports Numba.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.element_types.numba_elements import NumbaElement, complex_pair, numba_scalar

__all__ = ["Leaf", "field", "is_aligned", "leaves", "overlap"]


@dataclass(frozen=True)
class Leaf:
    """A field that holds no fields itself.

    Attributes
    ----------
    path : tuple of str
        Its name, after those of the fields that it lies in.
    type : Numba type
        What it holds.
    offset : int
        Where it lies in the record, in bytes.
    extents, strides : tuple of int
        Dimensions within the record; strides in bytes.
    """

    path: tuple[str, ...]
    type: Any
    offset: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]


@functools.cache
def leaves(record: Any) -> tuple[Leaf, ...]:
    """Return the fields of a record, with those within them, in the order in which Numba keeps them."""
    return tuple(_leaves(record, Leaf((), record, 0, (), ())))


def _leaves(kind: Any, outer: Leaf) -> Iterator[Leaf]:
    if isinstance(kind, types.Record):
        for name, part in kind.fields.items():
            place = Leaf((*outer.path, name), part.type, outer.offset + part.offset, outer.extents, outer.strides)
            yield from _leaves(part.type, place)
    elif isinstance(kind, types.NestedArray):
        extents, strides = (*outer.extents, *kind.shape), (*outer.strides, *kind.strides)
        yield from _leaves(kind.dtype, Leaf(outer.path, kind.dtype, outer.offset, extents, strides))
    else:
        yield outer


def _components(element: ElementType) -> Leaf:
    size, scalar = element.scalar.itemsize, numba_scalar(element.scalar)
    inner = (element.extents[1] * size, size) if len(element.extents) == 2 else (size,)
    return Leaf((), scalar, 0, element.extents, inner)


def _parts(kind: Any, *, as_pairs: bool) -> Leaf:
    """Return complex numbers as pairs of real ones, or as one more dimension of real ones."""
    pairs = complex_pair(kind)
    return Leaf((), pairs, 0, (), ()) if as_pairs else _components(pairs.element)


def _itemsize(kind: Any) -> int:
    return max(getattr(kind, "bitwidth", 8) // 8, 1)


def is_aligned(record: Any) -> bool:
    """Tell whether every number in records is at a multiple of its size, where launches have checked the array's address."""
    found = leaves(record)
    unit = max((_itemsize(leaf.type) for leaf in found if isinstance(leaf.type, types.Number)), default=1)
    return bool(record.aligned) or all(step % unit == 0 for step in (record.size, *(leaf.offset for leaf in found)))


@functools.cache
def overlap(record: Any) -> bool:
    """Tell whether fields of a record share bytes."""
    count = np.zeros(record.size, np.uint8)
    for leaf in leaves(record):
        size = min(_itemsize(leaf.type), record.size - leaf.offset)
        taken = np.ndarray((*leaf.extents, size), np.uint8, count.data, leaf.offset, (*leaf.strides, 1))
        taken += 1
    return bool((count > 1).any())


@intrinsic(prefer_literal=True)
def field(typing_context: Any, array: Any, number: Any) -> Any:
    """Return the array of a field, by its number among the `leaves`, on the memory of an array of records or elements.

    Of an array of complex numbers, the array of their parts: number 0 is one of pairs, and 1 of real numbers.
    """
    if not isinstance(array, types.Array) or not isinstance(array.dtype, types.Record | NumbaElement | types.Complex):
        return None
    is_element = not isinstance(array.dtype, types.Record)
    if isinstance(array.dtype, types.Complex):
        leaf = _parts(array.dtype, as_pairs=number.literal_value == 0)
    else:
        leaf = _components(array.dtype.element) if is_element else leaves(array.dtype)[number.literal_value]
    # Numba calls every array of records without align=True unaligned, wherever their fields lie.
    aligned, ndim = array.aligned if is_element else is_aligned(array.dtype), array.ndim + len(leaf.extents)
    layout = "C" if is_element and array.layout == "C" else "A"
    kind = types.Array(leaf.type, ndim, layout, readonly=not array.mutable, aligned=aligned)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = context.make_array(array)(context, builder, arguments[0])
        made = context.make_array(kind)(context, builder)

        def word(number: int) -> Any:
            return context.get_constant(types.intp, number)

        made.meminfo, made.parent, made.itemsize = given.meminfo, given.parent, word(_itemsize(leaf.type))
        made.nitems = builder.mul(given.nitems, word(math.prod(leaf.extents)))
        made.data = cgutils.pointer_add(builder, given.data, word(leaf.offset), return_type=made.data.type)
        for name, inner in (("shape", leaf.extents), ("strides", leaf.strides)):
            parts = cgutils.unpack_tuple(builder, getattr(given, name), array.ndim)
            setattr(made, name, cgutils.pack_array(builder, [*parts, *map(word, inner)], word(0).type))
        return made._getvalue()

    return kind(array, number), generate
