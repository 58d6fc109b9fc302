"""What `numba.njit` and `cuda.jit` make of a function besides what its source says: values kept, types declared, defaults.

Compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.kernels.language.dependencies import Dependency, is_settled
from numbridge.kernels.language.static_names import instance_of

__all__ = ["Conversions", "Declared", "conversions_on_cuda", "declared", "kept_values"]


@dataclass(frozen=True)
class Declared:
    """What a decorator was told of a function's types.

    Attributes
    ----------
    signatures : tuple
        Numba's signatures, one of which each call is converted to; none if each call's own types are compiled for.
    variables : tuple of (str, object)
        Variables with a type of their own, and that.
    """

    signatures: tuple[Any, ...]
    variables: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Conversions:
    """What the numbers are converted to that a function takes and returns.

    Attributes
    ----------
    parameters : tuple of (type or None)
        NumPy's scalar type for each parameter, or None for one that stays what it is.
    result : type, optional
        That of what it returns.
    """

    parameters: tuple[type[np.generic] | None, ...]
    result: type[np.generic] | None


def conversions_on_cuda(dispatcher: Any) -> Conversions | None:
    """Return what numba.cuda converts numbers to for a function with one signature, ``cuda.jit("int32(int32)", device=True)``.

    Of several signatures it takes the nearest for each call, without a signature what a call brings: None for both.
    """
    if dispatcher._can_compile or len(dispatcher.overloads) != 1:
        return None
    ((parameters, compiled),) = dispatcher.overloads.items()
    is_device = dispatcher.targetoptions.get("device")
    return Conversions(
        tuple(map(_number_type, parameters)), _number_type(compiled.signature.return_type) if is_device else None
    )


def _number_type(kind: Any) -> type[np.generic] | None:
    """Return NumPy's scalar type for one of Numba's types, or None if that is not of numbers."""
    is_number = any(instance_of(kind, "numba.core.types", name) for name in ("Number", "Boolean"))
    return np.dtype(kind.name).type if is_number else None


def declared(dispatcher: Any) -> Declared:
    """Return what a decorator was told of a function's types."""
    signatures = () if dispatcher._can_compile else tuple(dispatcher.nopython_signatures)
    return Declared(signatures, tuple(sorted((dispatcher._compiler.locals or {}).items())))


def kept_values(dispatcher: Any) -> Iterator[Dependency]:
    """Yield the global and closure values that code has which Numba has compiled of a function so far."""
    function = dispatcher.py_func
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name, value in _constants(dispatcher):
        if is_settled(name, value):
            continue
        if name in cells:
            yield Dependency(cells[name], None, value)
        elif name in function.__globals__:
            yield Dependency(function.__globals__, name, value)


def _constants(dispatcher: Any) -> Iterator[tuple[str, Any]]:
    for compiled in dispatcher.overloads.values():
        # Code that was loaded from Numba's cache does not say.
        for block in getattr(compiled.type_annotation, "blocks", {}).values():
            for statement in block.body:
                read: Any = getattr(statement, "value", None)
                if any(instance_of(read, "numba.core.ir", kind) for kind in ("Global", "FreeVar")):
                    yield read.name, read.value
