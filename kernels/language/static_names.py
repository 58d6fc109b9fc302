"""What the global names of a kernel stand for: objects that are known before it runs."""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from numbridge.kernels.language.dependencies import Dependency

__all__ = [
    "Static",
    "has_static_members",
    "import_member",
    "import_of_numba_cuda",
    "instance_of",
    "is_cuda_dispatcher",
    "is_dispatcher",
    "known_by",
]

_Said = TypeVar("_Said")


@dataclass(frozen=True, eq=False)
class Static:
    """What a name or an attribute chain stands for before the kernel runs.

    Attributes
    ----------
    value : object
        The object.
    root, root_value, path
        The first name of the chain, what it stands for, and the attributes that follow.
    through_modules : bool
        Whether every attribute but the last was taken from a module.
    builtin : bool
        Whether the root is one of Python's built-in names.
    reached : tuple of Dependency
        The values that were read on the way.
    """

    value: Any
    root: str
    root_value: Any
    path: tuple[str, ...]
    through_modules: bool
    builtin: bool
    reached: tuple[Dependency, ...]


def has_static_members(value: Any, attribute: str) -> bool:
    """Return whether an attribute of a value is known before the kernel runs."""
    if isinstance(value, ModuleType | type | np.ufunc):
        return True
    if isinstance(value, enum.Enum):
        return attribute == "value"
    return isinstance(value, tuple) and attribute in getattr(value, "_fields", ())


def import_member(value: Any, attribute: str) -> None:
    """Import a module of numba.cuda that it imports itself when it first compiles, so that kernels need not."""
    if attribute in ("fp16", "bf16") and value is sys.modules.get("numba.cuda"):
        import_of_numba_cuda(attribute)


def import_of_numba_cuda(name: str) -> None:
    """Import a module of numba.cuda that may import its arrays.

    Until 0.30 these name ``numpy.row_stack``, which NumPy 2.5 does not have any more; it was a name of ``vstack``.
    """
    lacks = not hasattr(np, "row_stack")
    if lacks:
        np.row_stack = np.vstack
    try:
        importlib.import_module(f"numba.cuda.{name}")
    finally:
        if lacks:
            del np.row_stack


def instance_of(value: Any, module: str, name: str) -> bool:
    """Return whether a value is an instance of a class whose module something else has imported."""
    owner = getattr(sys.modules.get(module), name, None)
    return isinstance(owner, type) and isinstance(value, owner)


def is_cuda_dispatcher(value: Any) -> bool:
    """Return whether a value is what `@cuda.jit` makes."""
    return instance_of(value, "numba.cuda.dispatcher", "CUDADispatcher")


def is_dispatcher(value: Any) -> bool:
    """Return whether a value is what `@numba.njit` makes."""
    return instance_of(value, "numba.core.dispatcher", "Dispatcher") and not is_cuda_dispatcher(value)


def known_by(value: Any, table: Mapping[Any, _Said]) -> _Said | None:
    """Return what a table says of an object, which may have no hash, or None."""
    return next((said for known, said in table.items() if known is value), None)
