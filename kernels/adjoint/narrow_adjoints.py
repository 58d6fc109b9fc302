"""Adjoints of arrays of 16-bit floats: added up in float32, and rounded once for each launch.

An adjoint as it is compiled takes float32 for the adjoint of such an array. One that is given in the array's own dtype is
copied to float32 for the launch and rounded back after it, however many threads add to one element. So an array of many
small parts does not stop growing where the 16 bits end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.adjoint.overlap import on_memory, share_memory
from numbridge.kernels.adjoint.prefixes import ADJOINT
from numbridge.kernels.errors import KernelUnsupportedError, NumbridgeTypeError
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import Description, describe
from numbridge.kernels.variant import check_writable

__all__ = ["NarrowAdjointError", "adjoint_scalar", "is_narrow", "widening"]

_NARROW = frozenset({"float16", "bfloat16"})


class NarrowAdjointError(NumbridgeTypeError):
    """An adjoint of 16-bit floats has come to a launch that takes it in float32."""


def is_narrow(row: scalars.Scalar | None) -> bool:
    """Tell whether numbers of a type are stored in 16 bits."""
    return row is not None and row.name in _NARROW


def adjoint_scalar(primal: scalars.Scalar) -> scalars.Scalar:
    """Return what the adjoint of an array is added up in."""
    return scalars.by_name("float32") if is_narrow(primal) else primal


def widening(
    name: str, names: Sequence[str], run: Callable[..., None], writes: Callable[[Sequence[Any]], frozenset[str]]
) -> Callable[..., None]:
    """Return a function that launches an adjoint, whether its adjoints are of 16-bit floats or of float32.

    Parameters
    ----------
    name : str
        What it is called in messages.
    names : sequence of str
        Its parameters.
    run : callable
        Launches it with adjoints of float32.
    writes : callable
        Returns which of the parameters are written, for such arguments.
    """
    seen = False

    def widened(*arguments: Any) -> None:
        nonlocal seen
        if not seen:
            try:
                run(*arguments)
            except NarrowAdjointError:
                seen = True
            else:
                return
        found = {k: describe(arguments[k]) for k, given in enumerate(names) if given.startswith(ADJOINT)}
        narrow = {k: f for k, f in found.items() if f.is_array and is_narrow(f.scalar)}
        _check(name, names, narrow, found)
        wide = list(arguments)
        for k, description in narrow.items():
            wide[k] = on_memory(description, description.scalar.numpy).astype(np.float32)  # type: ignore[union-attr]
        written = writes(wide) if narrow else frozenset()
        back = [k for k in narrow if names[k] in written]
        for k in back:
            check_writable(f"{name}, argument {names[k]!r}", arguments[k], narrow[k])
        run(*wide)
        for k in back:
            on_memory(narrow[k], narrow[k].scalar.numpy)[...] = wide[k]  # type: ignore[union-attr]

    return widened


def _check(name: str, names: Sequence[str], narrow: dict[int, Description], found: dict[int, Description]) -> None:
    for k, description in narrow.items():
        where = f"{name}, argument {names[k]!r}, an array of {description.scalar.name}"  # type: ignore[union-attr]
        if description.device_type != dl.CPU:
            raise KernelUnsupportedError(
                f"{where}: on CUDA, pass an adjoint of float32, in which it is added up, and convert that afterwards"
            )
        if any(share_memory(description, other) for place, other in found.items() if place != k and other.is_array):
            raise KernelUnsupportedError(
                f"{where}: it shares memory with another adjoint; pass arrays of their own, or of float32"
            )
