"""What Numba makes integers of without a word, found in what it has typed, and refused as by Python and NumPy.

An integer to a negative constant power is an integer to Numba, so mostly 0, and a float that `range` is given is cut off.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from numba.core import types

from numbridge.kernels.errors import KernelError

__all__ = ["check_integers", "not_an_integer"]

_POWERS = (operator.pow, operator.ipow)


def check_integers(compiled: Iterable[Any], entry: str, origin: Callable[[int], str | None]) -> None:
    """Refuse a kernel that raises an integer to a negative power that is written out, or calls `range` with a float.

    Parameters
    ----------
    compiled : iterable
        What Numba has compiled of the kernel and its device functions.
    entry : str
        The kernel's name.
    origin : callable
        Returns where a line of the generated source comes from, or None.

    Raises
    ------
    KernelError
        With the power, or the float's type, and the place in the source.
    """
    for overload in compiled:
        annotation: Any = getattr(overload, "type_annotation", None)
        for expression in () if annotation is None else annotation.calltypes:
            wrong = _wrong(expression, annotation.typemap)
            if wrong is not None:
                where = origin(expression.loc.line)
                raise KernelError(f"kernel {entry!r}: {wrong}" + ("" if where is None else f"\n  {where}"))


def _wrong(expression: Any, typemap: Any) -> str | None:
    """Return what is wrong with an expression of Numba's, or None."""
    operation = getattr(expression, "op", None)
    if operation in ("binop", "inplace_binop") and expression.fn in _POWERS:
        base, power = (typemap[side.name] for side in (expression.lhs, expression.rhs))
        is_integer = isinstance(base, types.Integer | types.Boolean | types.BooleanLiteral)
        if is_integer and isinstance(power, types.IntegerLiteral) and power.literal_value < 0:
            n = power.literal_value
            return f"an integer to the power {n} is an integer in a kernel, and so mostly 0; write float(...) ** {n}"
    if operation == "call" and getattr(typemap[expression.func.name], "typing_key", None) is range:
        kinds = (typemap[argument.name] for argument in expression.args)
        kind = next((kind for kind in kinds if isinstance(kind, types.Float)), None)
        if kind is not None:
            return not_an_integer(kind)
    return None


def not_an_integer(kind: Any) -> str:
    """Return what to say of a number that `range` was given, by its type."""
    return f"range takes integers, and this is a {kind}; divide with //, or convert with int(...)"
