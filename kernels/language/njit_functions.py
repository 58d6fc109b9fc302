"""What `numba.njit` makes of a function besides what its source says: values kept, types declared, defaults. Compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.language.dependencies import Dependency, is_settled
from numbridge.kernels.language.static_names import instance_of

__all__ = ["Declared", "declared", "kept_values"]


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
