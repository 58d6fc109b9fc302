"""Integers to negative constant powers, which Numba takes for integers, so mostly for 0: they are refused, as by NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from numba.core import types

from numbridge.kernels.errors import KernelError

__all__ = ["check_powers"]

_POWERS = (operator.pow, operator.ipow)


def check_powers(compiled: Iterable[Any], entry: str, origin: Callable[[int], str | None]) -> None:
    """Refuse a kernel that raises an integer to a negative power that is written out.

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
        With the power, and the place in the source.
    """
    for overload in compiled:
        annotation: Any = getattr(overload, "type_annotation", None)
        for expression in () if annotation is None else annotation.calltypes:
            if getattr(expression, "op", None) not in ("binop", "inplace_binop") or expression.fn not in _POWERS:
                continue
            base, power = (annotation.typemap[side.name] for side in (expression.lhs, expression.rhs))
            if (
                isinstance(base, types.Integer | types.Boolean | types.BooleanLiteral)
                and isinstance(power, types.IntegerLiteral)
                and power.literal_value < 0
            ):
                where, n = origin(expression.loc.line), power.literal_value
                raise KernelError(
                    f"kernel {entry!r}: an integer to the power {n} is an integer in a kernel, and so mostly 0; write "
                    f"float(...) ** {n}" + ("" if where is None else f"\n  {where}")
                )
