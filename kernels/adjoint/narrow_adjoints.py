"""Adjoints of arrays of 16-bit floats: added up in float32, and rounded once for each launch.

An adjoint as it is compiled takes float32 for the adjoint of such an array. One that is given in the array's own dtype is
copied to float32 for the launch and rounded back after it, however many threads add to one element. So an array of many
small parts does not stop growing where the 16 bits end. How that is done in CUDA memory is said in `narrow_on_cuda`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.adjoint.measured import StackMemoryError
from numbridge.kernels.adjoint.overlap import on_memory, share_memory
from numbridge.kernels.adjoint.prefixes import ADJOINT
from numbridge.kernels.arguments import check_writable
from numbridge.kernels.errors import KernelUnsupportedError, NumbridgeTypeError
from numbridge.kernels.readers import Description, describe

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
    name: str,
    names: Sequence[str],
    run: Callable[..., None],
    general: Callable[..., None],
    writes: Callable[[Sequence[Any]], frozenset[str]],
    stream: int | None = None,
) -> Callable[..., None]:
    """Return a function that launches an adjoint, whether its adjoints are of 16-bit floats or of what they are added up in.

    Parameters
    ----------
    name : str
        What it is called in messages.
    names : sequence of str
        Its parameters.
    run : callable
        Launches it with adjoints of float32, if it needs no memory for stacks.
    general : callable
        Does so whatever it needs.
    writes : callable
        Returns which of the parameters are written, for such arguments.
    stream : int, optional
        The CUDA stream that `run` was told to launch on.
    """
    is_plain = True

    def widened(*arguments: Any) -> None:
        nonlocal is_plain
        if is_plain:
            try:
                run(*arguments)
            except (NarrowAdjointError, StackMemoryError):
                is_plain = False
            else:
                return
        found = {k: describe(arguments[k]) for k, given in enumerate(names) if given.startswith(ADJOINT)}
        narrow = {k: f for k, f in found.items() if f.is_array and is_narrow(f.scalar)}
        where = {
            k: f"{name}, argument {names[k]!r}, an array of {description.scalar.name}"  # type: ignore[union-attr]
            for k, description in narrow.items()
        }
        _check(where, narrow, found)
        on_cuda = any(description.is_on_cuda for description in narrow.values())
        converted = _converted_on_cuda(where, arguments, narrow, stream) if on_cuda else _converted(arguments, narrow)
        with converted as (wide, back):
            written = writes(wide) if narrow else frozenset()
            for k in narrow:
                if names[k] in written:
                    check_writable(f"{name}, argument {names[k]!r}", arguments[k], narrow[k])
            general(*wide)
            back([k for k in narrow if names[k] in written])

    return widened


_Converted = tuple[list[Any], Callable[[Sequence[int]], None]]


@contextlib.contextmanager
def _converted(arguments: Sequence[Any], narrow: dict[int, Description]) -> Iterator[_Converted]:
    """Give arguments of float32, and what rounds some of them back."""
    wide = list(arguments)
    for k, found in narrow.items():
        wide[k] = on_memory(found, found.scalar.numpy).astype(np.float32)  # type: ignore[union-attr]

    def back(places: Sequence[int]) -> None:
        for k in places:
            on_memory(narrow[k], narrow[k].scalar.numpy)[...] = wide[k]  # type: ignore[union-attr]

    yield wide, back


@contextlib.contextmanager
def _converted_on_cuda(
    where: dict[int, str], arguments: Sequence[Any], narrow: dict[int, Description], stream: int | None
) -> Iterator[_Converted]:
    """Do the same in CUDA memory; everything is queued."""
    from numbridge.kernels.adjoint.narrow_on_cuda import wide_copy  # which has a kernel of its own

    wide, copies = list(arguments), {}
    with contextlib.ExitStack() as stack:
        for k, found in narrow.items():
            copies[k] = stack.enter_context(wide_copy(where[k], arguments[k], found, stream))
            copies[k].widen()
            wide[k] = copies[k].wide

        def back(places: Sequence[int]) -> None:
            for k in places:
                copies[k].round()

        yield wide, back


def _check(where: dict[int, str], narrow: dict[int, Description], found: dict[int, Description]) -> None:
    for k, description in narrow.items():
        if any(share_memory(description, other) for place, other in found.items() if place != k and other.is_array):
            raise KernelUnsupportedError(
                f"{where[k]}: it shares memory with another adjoint; pass arrays of their own, or of float32"
            )
