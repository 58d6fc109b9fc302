"""Elements as arguments: which arrays may stand for arrays of vectors and matrices, and what may be passed by value.

An array of scalars fits if its last dimensions are the element's, dense in C order. Nothing here compiles or launches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numbridge.kernels.annotations import ArrayAnnotation, ElementAnnotation
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.errors import BufferAccessError, NumbridgeTypeError, shown
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.parameter_types import ParameterType
from numbridge.kernels.readers import Description, array_text

__all__ = [
    "check_elements",
    "check_value",
    "element_flags",
    "full_shape",
    "full_strides",
    "has_components",
    "inner_dimensions",
    "inner_strides",
    "outer_rank",
    "record_dtype",
]


def outer_rank(annotation: Any, found: Description) -> int:
    """Return the rank of an array parameter, without the dimensions of the elements that its annotation asks for."""
    element = annotation.dtype if isinstance(annotation, ArrayAnnotation) else None
    if isinstance(element, ElementType) and found.element is None:
        return max(found.ndim - len(element.extents), 0)
    return found.ndim


def record_dtype(annotation: Any, found: Description | None = None) -> np.dtype[Any] | None:
    """Return the structured dtype of the records that a parameter has, by its annotation and what is passed; or None."""
    if isinstance(annotation, ArrayAnnotation) and annotation.dtype is not None:
        return annotation.dtype.fields if isinstance(annotation.dtype, ElementType) else None
    return None if found is None or found.element is None else found.element.fields


def full_shape(found: Description) -> tuple[int, ...]:
    """Return a value's shape with the dimensions of its elements."""
    return found.shape if found.element is None else (*found.shape, *found.element.extents)


def full_strides(found: Description) -> tuple[int, ...]:
    """Return an array's strides in bytes with those of its elements."""
    return found.strides if found.element is None else (*found.strides, *inner_strides(found.element))


def inner_strides(element: ElementType) -> tuple[int, ...]:
    """Return the bytes from one component to the next along each dimension of an element."""
    return np.empty(element.extents, element.scalar.numpy).strides


def element_flags(element: ElementType | None) -> int:
    """Return the flags of a record whose last dimensions are those of an element."""
    if element is None:
        return 0
    return element.number << dl.RECORD_ELEMENT | len(element.extents) << dl.RECORD_INNER


def check_elements(where: str, annotation: ArrayAnnotation, got: str, found: Description) -> None:
    """Check that an array is one of elements, or may stand for one.

    Raises
    ------
    NumbridgeTypeError
        If its dtype, rank or last dimensions are others; the message has both shapes.
    BufferAccessError
        If its last dimensions are not dense.
    """
    element = annotation.dtype
    assert isinstance(element, ElementType)
    if found.element is not None and found.element.fields is not None and _is_in(found.element, element):
        if annotation.ndim not in (None, found.ndim):
            raise NumbridgeTypeError(f"{where}: wanted {annotation!r}, got {got}; reshape it first")
        return
    if found.element is not None or element.fields is not None:
        if found.element is not element or annotation.ndim not in (None, found.ndim):
            raise NumbridgeTypeError(f"{where}: wanted {annotation!r}, got {got}; convert or reshape it first")
        return
    inner, outer = element.extents, found.ndim - len(element.extents)
    wanted = f"(..., {', '.join(map(str, inner))})"
    if found.scalar != element.scalar or outer < 0 or found.shape[outer:] != inner:
        raise NumbridgeTypeError(
            f"{where}: wanted {annotation!r}, which is an array of {element.scalar.name} with shape {wanted}, got {got}; "
            "convert or reshape it first"
        )
    if annotation.ndim not in (None, outer):
        raise NumbridgeTypeError(
            f"{where}: wanted {annotation!r}, of {annotation.ndim} dimension(s) beside the last {len(inner)} of "
            f"{element.name}, got {got}, which has {outer}; reshape it"
        )
    if not _is_dense(element, found):
        raise BufferAccessError(
            f"{where}: wanted {annotation!r}, whose components {wanted} lie densely one after another, got {got} with "
            f"strides {found.strides} bytes; pass a contiguous copy"
        )


def _is_in(record: ElementType, element: ElementType) -> bool:
    return record is element if element.fields is not None else has_components(record.fields, element)


def has_components(dtype: Any, element: ElementType) -> bool:
    """Tell whether the fields of a structured dtype, in their order, are an element's components and nothing else."""
    parts = list((dtype.fields or {}).values())
    components = [kind.base for kind, *_ in parts for _ in range(kind.itemsize // kind.base.itemsize)]
    places = [offset for _, offset, *_ in parts]
    dense = dtype.itemsize == element.bytes and places == sorted(places)
    return bool(dense and components == [element.scalar.numpy] * element.count)


def _is_dense(element: ElementType, found: Description) -> bool:
    if found.has(nb.CONTIGUOUS):
        return True
    step = element.scalar.itemsize
    for extent, stride in zip(reversed(element.extents), reversed(found.strides), strict=False):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def check_value(where: str, annotation: Any, argument: Any, found: Description) -> ElementType:
    """Check what is passed for an element by value; return the element's type.

    Raises
    ------
    NumbridgeTypeError
        If it is no such element, and no array of its shape and dtype in host memory.
    """
    wanted = annotation.element if isinstance(annotation, ElementAnnotation) else found.element
    if found.is_element and annotation is None:
        assert found.element is not None
        return found.element
    if isinstance(annotation, ElementAnnotation):
        if found.is_element and found.element is wanted:
            return annotation.element
        if found.is_array and not found.has(nb.UNSURE) and _is_value(annotation.element, found):
            return annotation.element
    name = annotation.element.name if isinstance(annotation, ElementAnnotation) else repr(annotation)
    got = array_text(found) if found.is_array else shown(argument)
    hint = f"pass nb.{name}(...)" if isinstance(annotation, ElementAnnotation) else "pass what the annotation says"
    if isinstance(annotation, ElementAnnotation) and _is_laid_out_otherwise(annotation.element, found):
        got += f" and strides {found.strides} bytes at the address {found.data:#x}"
        hint = f"it must be dense and aligned: pass a contiguous copy, or nb.{name}(...)"
    raise NumbridgeTypeError(f"{where}: wanted {name}, got {got}; {hint}")


def _is_laid_out_otherwise(element: ElementType, found: Description) -> bool:
    """Tell whether an array that is no element has its shape and dtype nevertheless, in host memory."""
    return (
        found.is_array
        and found.device_type == dl.CPU
        and (found.scalar, found.shape) == (element.scalar, element.extents)
    )


def _is_value(element: ElementType, found: Description) -> bool:
    """Tell whether an array is one element: of its very shape and dtype, dense, aligned, in host memory."""
    dense = found.has(nb.CONTIGUOUS) and not found.has(nb.MISALIGNED) and found.device_type == dl.CPU
    if found.element is not None:
        return dense and found.element is element and found.ndim == 0
    return dense and found.scalar == element.scalar and found.shape == element.extents


def inner_dimensions(parameter: ParameterType, found: Description) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return what the compiled entry compares an array's last dimensions with, or None where there is nothing to compare."""
    element = parameter.element
    if element is None or found.element is not None or not found.is_array:
        return None
    return np.array([len(element.extents), element.scalar.itemsize, *element.extents], np.int64)
