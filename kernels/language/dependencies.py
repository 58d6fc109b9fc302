"""What compiled code depends on outside of its source: the variables that it was compiled with, each by its place and object.

Compiled code compares them itself before each launch. Nothing here parses or evaluates.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from numbridge.kernels.element_types.elements import Element
from numbridge.kernels.errors import KernelError

__all__ = [
    "MISSING",
    "PLAIN_TYPES",
    "Dependency",
    "check_unchanged",
    "is_from_library",
    "is_module",
    "is_same",
    "is_settled",
    "member_dependency",
    "of_library",
    "root_package",
]

_LIBRARIES = frozenset({"builtins", "math", "cmath", "operator", "numpy", "numba", "numbridge", "ml_dtypes"})


class _Missing(enum.Enum):
    MISSING = enum.auto()


MISSING = _Missing.MISSING


@dataclass(frozen=True, eq=False)
class Dependency:
    """A global or closure value that a kernel read.

    Attributes
    ----------
    container : Mapping or CellType or None
        A dictionary (a module's, a class's, an object's or one of the user's), or a closure cell. None if only evaluating
        tells whether the value holds, which compiled code does not do: such a launch goes over Python.
    name : object
        The key in the dictionary; None for a cell.
    value : object
        What was found there; `MISSING` where nothing may be, as what comes earlier would be taken instead.
    contents : object
        What the arrays among it held, as far as that may change; None if there are none.
    """

    container: Any
    name: Any
    value: Any
    contents: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Remember what may be written over."""
        object.__setattr__(self, "contents", _contents(self.value))

    def holds(self) -> bool:
        """Return whether the same object is still there, and holds the same elements if it is an array."""
        return self._now() is self.value and (self.contents is None or _contents(self.value) == self.contents)

    def _now(self) -> Any:
        if self.container is None:
            return MISSING
        if self.name is not None:
            return self.container.get(self.name, MISSING)
        try:
            return self.container.cell_contents
        except ValueError:
            return MISSING

    def is_unchanged(self) -> bool:
        """Return whether the same code would come of it; another object of the same value will do."""
        if self.contents is None:
            return self.holds() or is_same(self._now(), self.value)
        now = self._now()
        return type(now) is type(self.value) and bool(_contents(now) == self.contents)

    def names_same(self) -> bool:
        """Return whether the program reads as it did: what an array holds says nothing of that."""
        now = self._now()
        if now is self.value or (isinstance(now, np.ndarray) and isinstance(self.value, np.ndarray)):
            return True
        return self.contents is None and is_same(now, self.value)

    def __str__(self) -> str:
        """Return what it is called, as far as that is known."""
        return "a variable of an enclosing function" if self.name is None else repr(self.name)


def check_unchanged(what: str, dependencies: Iterable[Dependency]) -> None:
    """Refuse to derive a kernel that has become another one since it ran.

    Raises
    ------
    KernelError
        If something that it depended on has changed.
    """
    for dependency in dependencies:
        if not dependency.is_unchanged():
            raise KernelError(
                f"{what}: {dependency}, which the kernel reads, has changed since the kernel ran, so the gradient would be that "
                "of another function; go back before it changes, or pass it as an argument"
            )


@dataclass(frozen=True)
class _Contents:
    """What an array held."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def _contents(value: Any) -> Any:
    """Return what the arrays among a value hold, with what else a tuple of such has; None if there are none."""
    if isinstance(value, np.ndarray):
        return _Contents(repr(value.dtype), value.shape, value.tobytes())
    if isinstance(value, tuple):
        parts = [_contents(part) for part in value]
        if any(part is not None for part in parts):
            return tuple(repr(v) if part is None else part for v, part in zip(value, parts, strict=True))
    return None


PLAIN_TYPES = (bool, int, float, complex, str, type(None))


def is_same(a: Any, b: Any) -> bool:
    """Return whether two values compile to the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, Element):
        a, b = a.numpy(), b.numpy()
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and bool(a.tobytes() == b.tobytes())
    # 0.0 and -0.0 are equal and differ; nan is the same as nan.
    return repr(a) == repr(b) if type(a) in PLAIN_TYPES else a is b


def is_module(value: Any) -> bool:
    """Return whether a value is a module."""
    return isinstance(value, ModuleType)


def root_package(value: Any) -> str:
    """Return the first part of the name of the module that defines a value, or of a module itself."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name.split(".")[0] if isinstance(name, str) else ""


def is_from_library(value: Any) -> bool:
    """Return whether what defines a value is Python's, NumPy's, Numba's or numbridge's."""
    return root_package(value) in _LIBRARIES


def is_settled(name: str, value: Any) -> bool:
    """Return whether a variable is one that nobody rebinds: a module, or an object of a library by the name that it has there.

    By another name, as in ``activation = math.tanh``, it is a choice of the user's, which may be another one tomorrow.
    """
    return of_library(value) and (isinstance(value, ModuleType) or _own_name(value).rpartition(".")[2] == name)


def _own_name(value: Any) -> Any:
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", None)


def of_library(value: Any) -> bool:
    """Return whether a value is a module, or a named object of a library."""
    if isinstance(value, ModuleType):
        return True
    name = _own_name(value)
    if not is_from_library(value) or not isinstance(name, str):
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def member_dependency(owner: Any, attribute: str) -> tuple[Dependency, ...]:
    """Return what an attribute of a module or class depends on, if it is a user's: also that nothing is found earlier."""
    # What a named tuple or a member of an enumeration holds does not change.
    if is_from_library(owner) or not isinstance(owner, ModuleType | type):
        return ()
    kinds = (owner,) if isinstance(owner, ModuleType) else (*owner.__mro__, *type.mro(type(owner)))
    earlier: list[Dependency] = []
    for values in map(vars, kinds):
        if attribute in values:
            value = values[attribute]
            return (*earlier, *([] if is_settled(attribute, value) else [Dependency(values, attribute, value)]))
        earlier.append(Dependency(values, attribute, MISSING))
    return ()
