"""What a kernel parameter's annotation asks for: an array of some dtype and rank, or a scalar.

Annotations are values, compared and hashed like any other; checking an argument against one is the launcher's work.
As in Warp, `float` means float32 and `int` means int32. This module knows no array class.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

from numbridge.kernels.element_types.elements import ElementType, dtype_of
from numbridge.kernels.errors import ConversionError, NumbridgeTypeError
from numbridge.kernels.scalars import Scalar, of_framework, scalar_of

__all__ = [
    "ArrayAnnotation",
    "ElementAnnotation",
    "ScalarAnnotation",
    "annotation_of",
    "array1d",
    "array2d",
    "array3d",
    "array4d",
    "is_own_annotation",
]

_MAX_NAMED_RANK = 4
# By which a class shows that its instances are arrays.
_OF_ARRAYS = ("shape", "dtype", "ndim", "__getitem__")


@dataclass(frozen=True)
class ArrayAnnotation:
    """An array of a given dtype and rank; None leaves either open.

    `array2d` and its siblings are annotations without a dtype: index or call them to give one.

    Attributes
    ----------
    dtype : Scalar, ElementType or None
        What the elements must be. For vectors and matrices, an array of their scalars with their dimensions as its last
        ones will do.
    ndim : int or None
        How many dimensions the array must have, without those of its elements.

    Examples
    --------
    >>> import numpy as np, numbridge as nb
    >>> nb.array2d[float]
    array2d[float32]
    >>> nb.array2d(dtype=np.int64) == nb.array2d[np.int64]
    True
    """

    dtype: Scalar | ElementType | None
    ndim: int | None

    def __post_init__(self) -> None:
        """Refuse numbers of dimensions that no array has."""
        if self.ndim is not None and not (type(self.ndim) is int and self.ndim >= 0):
            raise NumbridgeTypeError(f"ndim is {self.ndim!r}; it must be an int of 0 or more, or None for any")

    def __getitem__(self, dtype: Any) -> ArrayAnnotation:
        """Return this annotation with a dtype; `typing.Any` leaves it open."""
        if self.dtype is not None:
            raise NumbridgeTypeError(f"{self!r} already has a dtype; write it once, as in array2d[float]")
        return ArrayAnnotation(None if dtype is Any else dtype_of(dtype), self.ndim)

    def __call__(self, dtype: Any) -> ArrayAnnotation:
        """Return this annotation with a dtype, as `array2d(dtype=float)`."""
        return self[dtype]

    def __or__(self, other: object) -> ArrayAnnotation:
        """Return this annotation: what is written ``nb.array[float] | None`` takes None, and so does any array's."""
        return self if other is None else NotImplemented

    def __repr__(self) -> str:
        """Return the annotation as a user would write it."""
        dtype = None if self.dtype is None else self.dtype.name
        if self.ndim is not None and not 1 <= self.ndim <= _MAX_NAMED_RANK:
            return f"array(dtype={dtype}, ndim={self.ndim})"
        name = "array" if self.ndim is None else f"array{self.ndim}d"
        return name if dtype is None else f"{name}[{dtype}]"


@dataclass(frozen=True)
class ScalarAnnotation:
    """A number of a given type."""

    scalar: Scalar

    def __repr__(self) -> str:
        """Return the name of the scalar type."""
        return self.scalar.name


@dataclass(frozen=True)
class ElementAnnotation:
    """A vector or matrix by value."""

    element: ElementType

    def __repr__(self) -> str:
        """Return the name of the element type."""
        return self.element.name


array1d = ArrayAnnotation(None, 1)
array2d = ArrayAnnotation(None, 2)
array3d = ArrayAnnotation(None, 3)
array4d = ArrayAnnotation(None, 4)


def annotation_of(
    annotation: Any, parameter: str | None = None
) -> ArrayAnnotation | ElementAnnotation | ScalarAnnotation | None:
    """Return what an annotation asks for, or None where there is no annotation.

    Parameters
    ----------
    annotation : object
        An array annotation, an element type, `float` (float32), `int` (int32), `bool`, a NumPy or ml_dtypes scalar type or
        dtype, a framework's dtype, a type of Numba's (``float64[:, :]`` asks for an array, of any layout), or `typing.Any` or
        `inspect.Parameter.empty`, which are none. A class of arrays, such as `numpy.ndarray`, `torch.Tensor` or
        `numpy.typing.NDArray[numpy.float64]`, asks for an array, perhaps of that dtype, of whatever framework. `tuple`,
        ``tuple[int, int]`` and classes of named tuples are none either: what a tuple holds has types of its own. What may
        be None as well, as in ``nb.array[float] | None``, asks for the rest.
        Strings must have been evaluated by the caller.
    parameter : str, optional
        The parameter that carries it, as a message calls it: ``"'x' of kernel 'f'"``.

    Raises
    ------
    NumbridgeTypeError
        If it is anything else.

    Examples
    --------
    >>> annotation_of(float), annotation_of(array1d[int])
    (float32, array1d[int32])
    """
    if annotation is inspect.Parameter.empty or annotation is Any:
        return None
    owner = get_origin(annotation) or annotation
    if owner is Union or owner is UnionType:
        wanted = [part for part in get_args(annotation) if part is not NoneType]
        if len(wanted) == 1:
            return annotation_of(wanted[0], parameter)
    if isinstance(owner, type) and issubclass(owner, tuple):
        return None
    # An array class may stand for "an array of any dtype and rank".
    annotation = getattr(annotation, "__kernel_annotation__", annotation)
    if isinstance(annotation, ArrayAnnotation | ElementAnnotation | ScalarAnnotation):
        return annotation
    if isinstance(annotation, ElementType):
        return ElementAnnotation(annotation)
    if isinstance(annotation, type | np.dtype | Scalar) or of_framework(annotation) is not None:
        try:
            return ScalarAnnotation(scalar_of(annotation))
        except ConversionError:
            pass
    found = _numba_array(annotation) or _array_class(annotation)
    if found is None:
        raise NumbridgeTypeError(_refusal(annotation, parameter))
    return found


def is_own_annotation(annotation: Any) -> bool:
    """Tell whether an annotation can only be meant for numbridge, such as `nb.array2d[float]` or `nb.vec3`."""
    annotation = getattr(annotation, "__kernel_annotation__", annotation)
    return isinstance(annotation, ArrayAnnotation | ElementAnnotation | ScalarAnnotation | ElementType | Scalar)


def _numba_array(annotation: Any) -> ArrayAnnotation | None:
    """Return what a type of arrays of Numba's asks for, of whatever layout; None for anything else."""
    is_array = type(annotation).__module__.partition(".")[0] == "numba" and hasattr(annotation, "layout")
    dtype = of_framework(annotation.dtype) if is_array else None
    return None if dtype is None else ArrayAnnotation(dtype, annotation.ndim)


def _array_class(annotation: Any) -> ArrayAnnotation | None:
    """Return what a class of arrays asks for, or one with its shape and dtype given as `numpy.typing` does; None for others."""
    owner = get_origin(annotation) or annotation
    # Since NumPy 2.5, `numpy.typing.NDArray` is what ``type NDArray[T] = numpy.ndarray[Any shape, numpy.dtype[T]]`` makes.
    if (alias := getattr(owner, "__value__", None)) is not None:
        return _array_class(alias[get_args(annotation)] if get_args(annotation) else alias)
    if not isinstance(owner, type) or issubclass(owner, np.generic | np.dtype):
        return None
    if not all(hasattr(owner, name) for name in _OF_ARRAYS):
        return None
    shape, kind = (*get_args(annotation), None, None)[:2]
    extents = get_args(shape)
    ndim = len(extents) if extents and Ellipsis not in extents else None
    (scalar,) = get_args(kind) or (Any,)
    try:
        return ArrayAnnotation(scalar_of(scalar), ndim)
    except ConversionError:
        # Any, or an abstract class such as numpy.floating
        return ArrayAnnotation(None, ndim)


def _refusal(annotation: Any, parameter: str | None) -> str:
    where = "" if parameter is None else f"parameter {parameter}: "
    return (
        f"{where}{annotation!r} is not an annotation for a kernel; "
        "use an array (nb.array2d[float]), float, int, bool, a NumPy scalar type (nb.int64) or an element type (nb.vec3)"
    )
