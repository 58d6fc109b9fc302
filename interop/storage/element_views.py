"""Arrays of vectors and matrices as views: scalars whose last dimensions become an element's, and back.

Both are the same memory; nothing is copied. This module knows no framework.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from numbridge.kernels.element_types.element_arguments import has_components, inner_strides
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.errors import BufferAccessError, ConversionError
from numbridge.storage.memory import element_of, packed_record, row_of, wrap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from numbridge.arrays.array import Array

__all__ = ["as_records", "packed", "refuse_records", "regrouped", "scalar_shape", "unpacked"]


def _way_to(element: ElementType, found: str) -> str:
    """Return how to come by an array of vectors or matrices from one that has another shape or dtype."""
    if found != element.scalar.name:
        return "sharing does not convert, nb.array(data, dtype=...) copies"
    return (
        f"reshape it so that its last {'dimensions are' if len(element.extents) > 1 else 'dimension is'} an element's"
    )


def packed(array: Array, element: ElementType) -> Array:
    """Return an array of vectors or matrices on the memory of an array of their scalars, of the same source.

    Raises
    ------
    ConversionError
        If the last dimensions or the dtype are not the element's; the message has both shapes.
    BufferAccessError
        If the components do not lie densely one after another.
    """
    held, row, inner = element_of(array), row_of(array), element.extents
    if held is element:
        return array
    if held is not None and held.fields is not None and has_components(held.fields, element):
        return wrap(packed_record(array._record, element), array._source)
    outer = array.ndim - len(inner)
    if held is not None or row != element.scalar or outer < 0 or array.shape[outer:] != inner:
        found = row.name if held is None else held.name
        if element.fields is not None:
            raise ConversionError(
                f"dtype is {element.name}, and the data is {found} with shape {array.shape}; nb.array(data, dtype=...) copies "
                "records and converts them, .view(dtype) shows bytes as records"
            )
        raise ConversionError(
            f"dtype is {element.name}, which is {element.scalar.name} with shape (..., {', '.join(map(str, inner))}), and the "
            f"data is {found} with shape {array.shape}; {_way_to(element, found)}"
        )
    steps = zip(inner, array.strides[outer:], inner_strides(element), strict=True)
    if 0 not in array.shape and any(extent > 1 and step != wanted for extent, step, wanted in steps):
        raise BufferAccessError(
            f"dtype is {element.name}, whose components lie densely one after another, and the data of shape {array.shape} "
            f"has strides {array.strides} bytes; nb.array(data, dtype=...) copies"
        )
    return wrap(packed_record(array._record, element), array._source)


def unpacked(array: Array) -> Array:
    """Return an array of scalars on the memory of an array of vectors or matrices; one of scalars as it is."""
    if element_of(array) is None:
        return array
    return wrap(packed_record(array._record, None), array._source)


def as_records(array: Array, values: NDArray[Any]) -> NDArray[Any]:
    """Return an array's values as NumPy shows them: records as those of their structured dtype, on the same memory."""
    element = element_of(array) if values.dtype.kind == "u" else None
    return values if element is None or element.fields is None else values.view(element.fields)[..., 0]


def refuse_records(array: Array, framework: str) -> None:
    """Refuse to hand on an array of records, whose bytes would come out as the words that they are counted in.

    Raises
    ------
    ConversionError
        If the array is one.
    """
    held = element_of(array)
    if held is not None and held.fields is not None:
        raise ConversionError(f"{framework} has no records, such as {held.name}; convert one of the fields")


def scalar_shape(array: Array) -> tuple[int, ...]:
    """Return an array's shape with the dimensions of its elements."""
    element = element_of(array)
    return array.shape if element is None else (*array.shape, *element.extents)


def regrouped(array: Array, element: ElementType) -> Array:
    """Return the memory of an array as vectors or matrices.

    Each element of as many numbers becomes one; else they are of the last dimensions, or of runs along the last one.
    """
    plain, held = unpacked(array), element_of(array)
    inner = element.extents
    if held is not None and row_of(plain) == element.scalar and math.prod(held.extents) == math.prod(inner):
        return packed(plain.reshape(*array.shape, *inner), element)
    fits = row_of(plain) == element.scalar and plain.ndim >= 1 and plain.shape[plain.ndim - len(inner) :] != inner
    if fits and plain.shape[-1] % math.prod(inner) == 0:
        plain = plain.reshape(*plain.shape[:-1], plain.shape[-1] // math.prod(inner), *inner)
    return packed(plain, element)
