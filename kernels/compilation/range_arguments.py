"""Ranges of floats, which Numba cuts off to integers: they are refused, as by Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numba.core import types

from numbridge.kernels.errors import KernelError

__all__ = ["check_ranges"]


def check_ranges(compiled: Iterable[Any], entry: str, origin: Callable[[int], str | None]) -> None:
    """Refuse a kernel that calls `range` with a float.

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
        With the float's type, and the place in the source.
    """
    for overload in compiled:
        annotation: Any = getattr(overload, "type_annotation", None)
        for expression in () if annotation is None else annotation.calltypes:
            if getattr(expression, "op", None) != "call":
                continue
            if getattr(annotation.typemap[expression.func.name], "typing_key", None) is not range:
                continue
            for argument in expression.args:
                kind = annotation.typemap[argument.name]
                if isinstance(kind, types.Float):
                    where = origin(expression.loc.line)
                    raise KernelError(
                        f"kernel {entry!r}: range takes integers, and this is a {kind}; divide with //, or convert with int(...)"
                        + ("" if where is None else f"\n  {where}")
                    )
