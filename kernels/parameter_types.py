"""The types that a kernel is compiled for: one per parameter, and where each lies in the argument block.

Plain values that key caches; they know neither Numba nor any framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numbridge.kernels.element_types.elements import ElementType, number_fields
from numbridge.kernels.scalars import COMPLEX, INT, Scalar

__all__ = [
    "ArrayType",
    "ParameterType",
    "ScalarType",
    "block_offsets",
    "have_complex",
    "is_signed",
    "kernel_places",
    "read_for_a_gradient",
]

_FEW = 8  # components
_SCALAR_ROOM = 16  # bytes: the widest scalar, complex128


@dataclass(frozen=True)
class ArrayType:
    """An array parameter.

    Attributes
    ----------
    name : str
        The parameter's name.
    scalar : Scalar
        Its elements.
    ndim : int
        Its rank.
    contiguous : bool
        Whether the variant is for C-contiguous arrays, which vectorises better.
    written : bool
        Whether the kernel may write to it.
    element : ElementType or None
        What `scalar` is a component of, for arrays of vectors or matrices; `ndim` does not count its dimensions.
    beside_written : bool
        Whether it was passed in a tuple with another that is written: loops over the tuple need one type for both.
    """

    name: str
    scalar: Scalar
    ndim: int
    contiguous: bool
    written: bool
    element: ElementType | None = None
    beside_written: bool = False

    @property
    def is_read_only(self) -> bool:
        """Whether the array has Numba's type of arrays that are read-only."""
        return not (self.written or self.beside_written)

    @property
    def has_large_elements(self) -> bool:
        """Whether the elements are matrices of more than a few numbers."""
        return self.element is not None and self.element.fields is None and self.element.count > _FEW

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.element.bytes if self.element is not None else self.scalar.itemsize

    def __str__(self) -> str:
        """Return such as ``float32[:, ::1] (written)``."""
        axes = [":"] * self.ndim
        if self.contiguous and axes:
            axes[-1] = "::1"
        return f"{(self.element or self.scalar).name}[{', '.join(axes)}]" + (" (written)" if self.written else "")


@dataclass(frozen=True)
class ScalarType:
    """A scalar parameter, converted to `scalar` at the launch; or an element by value, with components of `scalar`."""

    name: str
    scalar: Scalar
    element: ElementType | None = None

    def __str__(self) -> str:
        """Return such as ``float32``."""
        return (self.element or self.scalar).name


ParameterType = ArrayType | ScalarType


def is_signed(parameter: ParameterType) -> bool:
    """Tell whether a parameter is a signed integer, passed by value: Numba takes unsigned ones beside these for floats."""
    return isinstance(parameter, ScalarType) and parameter.element is None and parameter.scalar.code == INT


def block_offsets(parameters: Sequence[ParameterType]) -> list[int]:
    """Return the offset in bytes of each parameter in the argument block, and the block's size at the end."""
    offsets = [0]
    for parameter in parameters:
        if isinstance(parameter, ArrayType):
            size = 8 * (5 + 2 * parameter.ndim)
        else:
            size = _SCALAR_ROOM if parameter.element is None else parameter.element.bytes
        offsets.append(offsets[-1] + (size + 15) // 16 * 16)
    return offsets


def kernel_places(parameters: Sequence[ParameterType]) -> list[int]:
    """Return where in the argument block each parameter of the CUDA kernel lies that numba.cuda gives it, as an offset in bytes.

    numba.cuda flattens an array into meminfo, parent, item count, item size, data, shape and strides, 64 bits each, which
    is how the block holds it, and complex numbers and elements into their parts.
    """
    places: list[int] = []
    for parameter, offset in zip(parameters, block_offsets(parameters), strict=False):
        if isinstance(parameter, ArrayType):
            places += [offset + 8 * k for k in range(5 + 2 * parameter.ndim)]
        elif parameter.element is not None:
            places += [offset + parameter.scalar.itemsize * k for k in range(parameter.element.count)]
        elif parameter.scalar.code == COMPLEX:
            places += [offset, offset + parameter.scalar.itemsize // 2]
        else:
            places.append(offset)
    return places


def have_complex(parameters: Sequence[ParameterType]) -> bool:
    """Tell whether any of the parameters, or a field of its records, is of complex numbers."""
    dtypes = [p.element.fields for p in parameters if p.element is not None and p.element.fields is not None]
    kinds = [kind for dtype in dtypes for _, kind in number_fields(dtype)]
    return any(p.scalar.code == COMPLEX for p in parameters) or any(kind.kind == "c" for kind in kinds)


def read_for_a_gradient(parameters: Sequence[ParameterType]) -> frozenset[str]:
    """Return the arrays that are only read, and through which a gradient would go back from what is written."""
    arrays = [p for p in parameters if isinstance(p, ArrayType) and (p.scalar.is_float or p.scalar.code == COMPLEX)]
    return frozenset(p.name for p in arrays if not p.written) if any(p.written for p in arrays) else frozenset()
