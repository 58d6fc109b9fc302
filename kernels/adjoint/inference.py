"""Types as Numba infers them, for one operation at a time.

The derivative of a kernel replays it, so every value must have the type that it has in the kernel itself; Numba's own
typing context is asked, and nothing is decided here. Importing this module imports Numba.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import typeof, types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.np.numpy_support import from_dtype

from numbridge.kernels.adjoint.ir import Value
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.element_types.numba_elements import NumbaElement, complex_pair, numba_element
from numbridge.kernels.element_types.numba_records import numba_record
from numbridge.kernels.parameter_types import ParameterType
from numbridge.kernels.scalars import Scalar

__all__ = [
    "FLOAT_NAMES",
    "complex_of",
    "constant_type",
    "dtype_of",
    "element_of",
    "is_float_type",
    "parameter_type",
    "parts_of",
    "range_type",
    "result_type",
    "scalar_type",
    "unified",
]

FLOAT_NAMES = ("float16", "float32", "float64")


@functools.cache
def _context() -> Any:
    context = cpu_target.typing_context
    context.refresh()
    return context


def is_float_type(kind: Any) -> bool:
    """Tell whether a type is a real floating type."""
    return str(kind) in FLOAT_NAMES


def scalar_type(scalar: Scalar) -> Any:
    """Return the Numba type of a row of the dtype table."""
    return getattr(types, scalar.numba or "none")


def parameter_type(parameter: ParameterType) -> Any:
    """Return the Numba type of a scalar or an element by value, or of what an array holds."""
    if parameter.element is not None and parameter.element.fields is not None:
        return numba_record(parameter.element, written=False)
    return scalar_type(parameter.scalar) if parameter.element is None else numba_element(parameter.element)


def element_of(kind: Any) -> ElementType | None:
    """Return the element type that a Numba type is that of, or None."""
    return kind.element if isinstance(kind, NumbaElement) else None


def parts_of(kind: Any) -> Any:
    """Return the type of the pairs of real numbers that complex numbers of a type are in a program, or None for another type."""
    return complex_pair(kind) if isinstance(kind, types.Complex) else None


def complex_of(kind: Any) -> Any:
    """Return the complex type that a type of pairs stands for, or None for another type."""
    element = element_of(kind)
    if element is None or element.family != "complex":
        return None
    return types.complex64 if element.scalar.name == "float32" else types.complex128


def dtype_of(value: Any) -> Any:
    """Return the type that a NumPy scalar type, dtype, Numba type or its name stands for, or None."""
    if isinstance(value, str):
        value = getattr(types, value, None)
    if isinstance(value, types.Number | types.Boolean):
        return value
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        try:
            return from_dtype(np.dtype(value))
        except NumbaError:
            return None
    return None


def constant_type(value: Any) -> Any:
    """Return the type of a number as it stands in a program."""
    return types.boolean if isinstance(value, bool) else typeof(value)


def unified(kinds: Sequence[Any]) -> Any:
    """Return the type of a variable that holds values of several types, or None if there is none."""
    found = _context().unify_types(*(complex_of(kind) or kind for kind in kinds))
    if isinstance(found, types.Complex):
        return parts_of(found)
    return found if isinstance(found, types.Number | types.Boolean | NumbaElement) else None


def result_type(primitive: Any, arguments: Sequence[Value]) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the type of an operation's result and those that its arguments are converted to, or None."""
    return _resolved(primitive, tuple(types.literal(a.constant) if _is_literal(a) else a.type for a in arguments))


@functools.cache
def _resolved(primitive: Any, kinds: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    context = _context()
    function: Any = primitive
    try:
        if not isinstance(primitive, types.Type) and getattr(primitive, "__module__", "") != "_operator":
            function = context.resolve_value_type(primitive)
        signature = context.resolve_function_type(function, kinds, {})
    except (NumbaError, ValueError):  # the latter for functions of which Numba knows nothing
        return None
    if signature is None or not isinstance(signature.return_type, types.Number | types.Boolean):
        return None
    wanted = signature.args
    if len(wanted) == 1 and isinstance(wanted[0], types.BaseTuple):
        wanted = (signature.return_type,) * len(kinds)  # min and max take all of their arguments as a tuple
    return signature.return_type, tuple(getattr(kind, "literal_type", kind) for kind in wanted)


def range_type(bounds: Sequence[Value]) -> Any:
    """Return the type of the variable of a loop over a range, whose bounds Numba converts to it."""
    context = _context()
    signature = context.resolve_function_type(context.resolve_value_type(range), tuple(b.type for b in bounds), {})
    return signature.return_type.dtype


def _is_literal(value: Value) -> bool:
    return value.literal and type(value.constant) in (int, bool)
