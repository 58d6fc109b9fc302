"""The functions of vectors, matrices, quaternions and transforms by name, and every operation on elements outside of kernels.

What they compute is in `element_operations`; kernels compile the same expressions. Nothing here is compiled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbridge.kernels.element_types.element_operations import (
    Operand,
    computing_type,
    constants,
    expand,
    implementation,
)
from numbridge.kernels.element_types.elements import Element
from numbridge.kernels.errors import NumbridgeTypeError

__all__ = [
    "FUNCTIONS",
    "cross",
    "cw_div",
    "cw_mul",
    "determinant",
    "dot",
    "inner",
    "inverse",
    "length",
    "length_sq",
    "matrix_from_cols",
    "matrix_from_rows",
    "normalize",
    "operate",
    "outer",
    "quat_from_axis_angle",
    "quat_inverse",
    "quat_rotate",
    "quat_rotate_inv",
    "quat_to_matrix",
    "taken_by",
    "trace",
    "transform_inverse",
    "transform_point",
    "transform_vector",
    "transpose",
]


@functools.cache
def _in_python(name: str, operands: tuple[Operand, ...]) -> Any:
    """Return an operation on values of these types as a function, or None where there is none."""
    expansion = expand(name, *operands)
    if expansion is None:
        return None
    kind = computing_type(expansion.scalar)
    names = constants(expansion.scalar)
    names |= {
        "at": lambda element, k: kind(element._values.reshape(-1)[k]),
        "make": expansion.result,
        "sqrt": lambda x: kind(math.sqrt(x)),
    }
    exec(implementation(expansion, operands), names)
    function = names["implementation"]
    if expansion.result is not None:
        return function
    return (lambda *given: bool(function(*given))) if expansion.is_bool else lambda *given: function(*given).item()


_INTEGERS = (int, np.integer, np.bool_)
_NUMBERS = (*_INTEGERS, float, np.floating)


def operate(name: str, *operands: Any) -> Any:
    """Return the result of an operation on values; `NotImplemented` for operators that do not fit."""
    kinds = tuple(type(operand) if isinstance(operand, Element) else None for operand in operands)
    numbers = [operand for operand, kind in zip(operands, kinds, strict=True) if kind is None]
    fits = all(isinstance(number, _NUMBERS) for number in numbers)
    function = _in_python(name, kinds) if fits else None
    if function is None:
        return NotImplemented
    kind = next(kind for kind in kinds if kind is not None)
    if not (kind.scalar.is_float or all(isinstance(number, _INTEGERS) for number in numbers)):
        shown = " and ".join(type(operand).__name__ for operand in operands)
        raise NumbridgeTypeError(
            f"there is no {name} of {shown}: the components of {kind.name} are integers, which would lose the number's "
            "fraction; pass int(number), or convert the components first, as in nb.vec3(value)"
        )
    # Components overflow and divide as in a kernel, without a word.
    with np.errstate(all="ignore"):
        return function(*operands)


def _call(name: str, *operands: Any) -> Any:
    found = operate(name, *operands)
    if found is NotImplemented:
        shown = ", ".join(type(operand).__name__ for operand in operands)
        raise NumbridgeTypeError(f"{name}({shown}): there is no such operation; {taken_by(name)}")
    return found


_HINT = "operands must be elements of the same type"
_ROTATED = "it takes a quaternion and a vector of three components"
_MOVED = "it takes a transform and a vector of three components"
_HINTS = {
    "dot": "both must be vectors of one type",
    "cross": "both must be vectors of three components of one type",
    "outer": "both must be vectors",
    "cw_mul": "both must be vectors or matrices of one type",
    "cw_div": "both must be vectors or matrices of one floating type",
    "determinant": "it takes square matrices of up to 4 rows",
    "inverse": "it takes square floating matrices of up to 4 rows, and quaternions",
    **dict.fromkeys(("length", "length_sq", "normalize"), "it takes floating vectors and quaternions"),
    "transpose": "it takes matrices",
    "trace": "it takes square matrices",
    **dict.fromkeys(("quat_rotate", "quat_rotate_inv"), _ROTATED),
    **dict.fromkeys(("quat_inverse", "quat_to_matrix"), "it takes quaternions"),
    "quat_from_axis_angle": "it takes a vector of three components and a number",
    **dict.fromkeys(("transform_point", "transform_vector"), _MOVED),
    "transform_inverse": "it takes transforms",
    **dict.fromkeys(("matrix_from_rows", "matrix_from_cols"), "it takes vectors of one type"),
}


def taken_by(name: str) -> str:
    """Return what one of the functions takes, for messages."""
    return _HINTS.get(name, _HINT)


def dot(a: Any, b: Any) -> Any:
    """Return the scalar product of two vectors."""
    return _call("dot", a, b)


def inner(a: Any, b: Any) -> Any:
    """Return the sum of the products of two elements' components."""
    return _call("inner", a, b)


def cross(a: Any, b: Any) -> Any:
    """Return the vector product of two vectors of three components."""
    return _call("cross", a, b)


def length(a: Any) -> Any:
    """Return the Euclidean length of a vector or quaternion."""
    return _call("length", a)


def length_sq(a: Any) -> Any:
    """Return the squared length of a vector or quaternion."""
    return _call("length_sq", a)


def normalize(a: Any) -> Any:
    """Return a vector or quaternion scaled to length 1; one of length 0 stays zero."""
    return _call("normalize", a)


def outer(a: Any, b: Any) -> Any:
    """Return the matrix of the products of two vectors' components."""
    return _call("outer", a, b)


def transpose(a: Any) -> Any:
    """Return a matrix with rows and columns exchanged."""
    return _call("transpose", a)


def trace(a: Any) -> Any:
    """Return the sum of a square matrix's diagonal."""
    return _call("trace", a)


def determinant(a: Any) -> Any:
    """Return the determinant of a square matrix of up to 4 rows."""
    return _call("determinant", a)


def inverse(a: Any) -> Any:
    """Return the inverse of a square matrix of up to 4 rows, or of a quaternion; infinities where there is none."""
    return _call("inverse", a)


def cw_mul(a: Any, b: Any) -> Any:
    """Return the products of components."""
    return _call("cw_mul", a, b)


def cw_div(a: Any, b: Any) -> Any:
    """Return the quotients of components."""
    return _call("cw_div", a, b)


def quat_from_axis_angle(axis: Any, angle: Any) -> Any:
    """Return the quaternion of a rotation by an angle in radians about an axis of length 1."""
    return _call("quat_from_axis_angle", axis, angle)


def quat_rotate(q: Any, v: Any) -> Any:
    """Return a vector rotated by a quaternion of length 1."""
    return _call("quat_rotate", q, v)


def quat_rotate_inv(q: Any, v: Any) -> Any:
    """Return a vector rotated by the inverse of a quaternion of length 1."""
    return _call("quat_rotate_inv", q, v)


def quat_inverse(q: Any) -> Any:
    """Return the inverse of a quaternion."""
    return _call("quat_inverse", q)


def quat_to_matrix(q: Any) -> Any:
    """Return the rotation matrix of a quaternion of length 1."""
    return _call("quat_to_matrix", q)


def transform_point(t: Any, p: Any) -> Any:
    """Return a point rotated and moved by a transform."""
    return _call("transform_point", t, p)


def transform_vector(t: Any, v: Any) -> Any:
    """Return a vector rotated by a transform."""
    return _call("transform_vector", t, v)


def transform_inverse(t: Any) -> Any:
    """Return the transform that undoes one whose quaternion has length 1."""
    return _call("transform_inverse", t)


def matrix_from_rows(*rows: Any) -> Any:
    """Return the matrix with these vectors, up to six, as rows."""
    return _call("matrix_from_rows", *rows)


def matrix_from_cols(*columns: Any) -> Any:
    """Return the matrix with these vectors, up to six, as columns."""
    return _call("matrix_from_cols", *columns)


# The functions that a kernel calls by name, beside Python's own `min`, `max`, `abs` and operators.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(dot, cross, length, length_sq, normalize, outer, transpose, trace, determinant, inverse, cw_mul, cw_div),
        *(quat_from_axis_angle, quat_rotate, quat_rotate_inv, quat_inverse, quat_to_matrix),
        *(transform_point, transform_vector, transform_inverse, matrix_from_rows, matrix_from_cols),
    )
}
