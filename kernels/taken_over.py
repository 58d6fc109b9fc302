"""Launches that an argument takes over, because it stands for something else and has no memory: arrays of a traced function.

The class of such an argument has a function ``__record_launch__(kernel, geometry, arguments)``. What the extents of its launches
may be besides numbers, whoever brings the class says. Launches nothing itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["are_understood", "taking_over", "understand_extents"]

_tests: list[Callable[[Any], bool]] = []


def taking_over(arguments: Sequence[Any]) -> Any:
    """Return what takes over a launch on these arguments, or None."""
    for argument in arguments:
        record = _taking_over(type(argument))
        if record is not None:
            return record
    return None


def _taken_over(kind: type) -> Any:
    return getattr(kind, "__record_launch__", None)


_taking_over: Callable[[type], Any] = functools.cache(_taken_over)


def understand_extents(test: Callable[[Any], bool]) -> None:
    """Let launches have extents of which ``test(extent)`` is true; what takes them over has to know what to do with these."""
    _tests.append(test)


def are_understood(dim: Any) -> bool:
    """Tell whether some extents are no numbers, and are such."""
    extents = dim if isinstance(dim, tuple | list) else (dim,)
    return any(test(extent) for test in _tests for extent in extents)
