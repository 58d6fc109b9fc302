"""What the global names of a kernel stand for: objects that are known before it runs, and which of them may be rebound."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

__all__ = [
    "LIBRARIES",
    "MISSING",
    "Dependency",
    "Static",
    "has_static_members",
    "instance_of",
    "is_cuda_dispatcher",
    "is_dispatcher",
    "is_module",
    "member_dependency",
    "of_library",
    "root_package",
]

LIBRARIES = frozenset({"builtins", "math", "cmath", "operator", "numpy", "numba", "numbridge", "ml_dtypes"})


@dataclass(frozen=True, eq=False)
class Dependency:
    """A global or closure value that a kernel read.

    Attributes
    ----------
    container : Mapping or CellType
        A module's dictionary, a class's, or a closure cell.
    name : str or None
        The key in the dictionary; None for a cell.
    value : object
        What was found there.
    """

    container: Any
    name: str | None
    value: Any

    def holds(self) -> bool:
        """Return whether the same object is still there."""
        if self.name is not None:
            return self.container.get(self.name, MISSING) is self.value
        try:
            return self.container.cell_contents is self.value
        except ValueError:
            return False


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


class _Missing(enum.Enum):
    MISSING = enum.auto()


MISSING = _Missing.MISSING


def is_module(value: Any) -> bool:
    """Return whether a value is a module."""
    return isinstance(value, ModuleType)


def has_static_members(value: Any, attribute: str) -> bool:
    """Return whether an attribute of a value is known before the kernel runs."""
    if isinstance(value, ModuleType | type | np.ufunc):
        return True
    return isinstance(value, tuple) and attribute in getattr(value, "_fields", ())


def root_package(value: Any) -> str:
    """Return the name of the package that a value comes from, or an empty string."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name.split(".")[0] if isinstance(name, str) else ""


def of_library(value: Any) -> bool:
    """Return whether a value is a module, or a named object of a library, which no user rebinds."""
    if isinstance(value, ModuleType):
        return True
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if root_package(value) not in LIBRARIES or not isinstance(name, str):
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def member_dependency(owner: Any, attribute: str) -> tuple[Dependency, ...]:
    """Return where an attribute of a module or class is held, if a user may rebind it."""
    if root_package(owner) in LIBRARIES:
        return ()
    holders = (owner,) if isinstance(owner, ModuleType) else getattr(owner, "__mro__", ())
    for holder in holders:
        values = vars(holder)
        if attribute in values:
            return () if of_library(values[attribute]) else (Dependency(values, attribute, values[attribute]),)
    return ()


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
