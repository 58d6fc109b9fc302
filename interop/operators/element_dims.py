"""Arrays of vectors and matrices in operators and under JAX: their components are a tensor's last dimensions.

Records are bytes to a tensor, and its last dimension is that of a record's bytes. Which parameters hold elements is said by
their annotations. Shapes that a user gives may have those dimensions or not. Pure values; imports no framework.
"""

from __future__ import annotations

from typing import Any

from numbridge.kernels.annotations import ArrayAnnotation, ElementAnnotation
from numbridge.kernels.element_types.element_arguments import record_dtype
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.errors import KernelUnsupportedError, NumbridgeTypeError
from numbridge.kernels.kernel import Parameter
from numbridge.kernels.scalars import Scalar, scalar_of

__all__ = [
    "component_of",
    "element_of",
    "inner_dims",
    "inner_extents",
    "lie_densely",
    "outer_dims",
    "outer_shape",
    "records_of",
    "refuse_records",
    "value_of",
]

Dims = tuple[Any, ...]


def element_of(parameter: Parameter) -> ElementType | None:
    """Return the element type of an array parameter's annotation, or None."""
    annotation = parameter.annotation
    dtype = annotation.dtype if isinstance(annotation, ArrayAnnotation) else None
    return dtype if isinstance(dtype, ElementType) else None


def value_of(parameter: Parameter) -> ElementType | None:
    """Return the element type of a parameter that is a vector or matrix by value, or None."""
    return parameter.annotation.element if isinstance(parameter.annotation, ElementAnnotation) else None


def inner_extents(element: ElementType | None) -> tuple[int, ...]:
    """Return the dimensions of elements in a tensor; none for numbers."""
    if element is None:
        return ()
    return element.extents if element.fields is None else (element.bytes,)


def component_of(element: ElementType) -> Scalar:
    """Return what a tensor of elements has: their components, or the bytes of records."""
    return element.scalar if element.fields is None else scalar_of("uint8")


def inner_dims(parameter: Parameter) -> tuple[int, ...]:
    """Return the dimensions of an array parameter's elements; none for numbers."""
    return inner_extents(element_of(parameter))


def lie_densely(extents: Dims, strides: Dims) -> bool:
    """Tell whether components lie one after another, given an element's dimensions and the strides of a tensor along them."""
    step = 1
    for extent, stride in zip(reversed(extents), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def outer_shape(where: str, parameter: Parameter, shape: Dims) -> Dims:
    """Return the shape of a tensor without the dimensions of its elements.

    Raises
    ------
    NumbridgeTypeError
        If it does not end in them; the message has both.
    """
    inner = inner_dims(parameter)
    outer = len(shape) - len(inner)
    if outer < 0 or tuple(shape[outer:]) != inner:
        raise NumbridgeTypeError(
            f"{where}: wanted {parameter.annotation!r}, whose elements are the last dimensions, (..., "
            f"{', '.join(map(str, inner))}), got shape {tuple(shape)}; reshape it"
        )
    return tuple(shape[:outer])


def outer_dims(parameter: Parameter, dims: Dims) -> Dims:
    """Return an output's shape without the dimensions of its elements, given with them or without.

    The annotation's rank decides which it is. Without one, a shape that ends in the element's dimensions has them, unless nothing
    else would be left.
    """
    inner, annotation = inner_dims(parameter), parameter.annotation
    rank = annotation.ndim if isinstance(annotation, ArrayAnnotation) else None
    outer = len(dims) - len(inner)
    ends = bool(inner) and outer >= 0 and tuple(dims[outer:]) == inner
    if ends and (outer > 0 if rank is None else outer == rank):
        return tuple(dims[:outer])
    return dims


def records_of(parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """Return the structured dtypes of the parameters that have records."""
    found = {parameter.name: record_dtype(parameter.annotation) for parameter in parameters}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


def refuse_records(what: str, parameters: tuple[Parameter, ...]) -> None:
    """Raise for an array parameter of a structured dtype, which tensors do not have.

    Raises
    ------
    KernelUnsupportedError
        With the parameter and its dtype.
    """
    for parameter in parameters:
        element = element_of(parameter)
        if element is not None and element.fields is not None:
            raise KernelUnsupportedError(
                f"{what}: parameter {parameter.name!r} has records of {element.name}, which tensors do not; launch the kernel on "
                "NumPy arrays, or give each field an array of its own"
            )
