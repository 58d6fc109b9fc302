"""What ended a launch on the CPU: the exception that one of its threads raised, which Numba keeps as a constant of the code."""

from __future__ import annotations

import ast
import ctypes
import pickle
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.language.source import Program

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = ["RAISED", "raised_at", "raised_by", "says"]

# The address of Numba's description of the last exception that ended a launch of the process and is not told yet, or 0
RAISED = np.zeros(1, np.int64)
# Where the pickled exception is, and how long it is
_PICKLED = "@Pi"


def raised_by(kernels: Iterable[Kernel]) -> BaseException | None:
    """Return the exception that one of some kernels has raised, or None where it is not known.

    Another thread of Python may have launched a kernel that raised meanwhile: what is none of theirs is left out.
    """
    (address,), RAISED[0] = RAISED.tolist(), 0
    if not address:
        return None
    pickled, size = struct.unpack(_PICKLED, ctypes.string_at(address, struct.calcsize(_PICKLED)))
    try:
        kind, arguments, place = pickle.loads(ctypes.string_at(pickled, size))
        error: BaseException = kind(*arguments)
    except Exception:  # noqa: BLE001 - a class of the user's, which may not be found here, and runs code of its own
        return None
    return error if place is None or any(_is_of(kernel, place[1]) for kernel in kernels) else None


def _is_of(kernel: Kernel, filename: str) -> bool:
    """Tell whether a file holds text that was generated for a kernel, or a function that it calls."""
    if Path(filename).name.startswith(f"{kernel.source.name}_"):
        return True
    program = Program(kernel.source)
    return any(source is not None and source.filename == filename for source in program.compiled_sources())


def says(error: BaseException | None) -> str:
    """Return what an exception adds to a sentence: its class and what it says."""
    if error is None:
        return ""
    text = str(error)
    return f", {type(error).__name__}{f': {text}' if text else ''}"


def raised_at(places: Sequence[tuple[Any, ast.AST]], error: BaseException | None) -> Sequence[tuple[Any, ast.AST]]:
    """Return those of some places from which an exception may have come; all of them where that cannot be told."""
    return [place for place in places if error is not None and _raises(*place, error)] or places


def _raises(source: Any, node: ast.AST, error: BaseException) -> bool:
    if isinstance(node, ast.Assert):
        given = [] if node.msg is None else [node.msg]
        return type(error) is AssertionError and _constants(given) == error.args
    if not isinstance(node, ast.Raise) or node.exc is None:
        return False
    found = source.resolve(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
    if found is None or _spelled(found.value) != _spelled(type(error)):
        return False
    return _constants(node.exc.args if isinstance(node.exc, ast.Call) else []) == error.args


def _spelled(kind: Any) -> tuple[str, str]:
    # Numba's cache holds a class of the main program itself, which comes back as another one.
    return getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")


def _constants(nodes: Sequence[ast.expr]) -> tuple[Any, ...] | None:
    """Return the constants that an exception is made of, or None where something else is among them."""
    values = tuple(node.value for node in nodes if isinstance(node, ast.Constant))
    return values if len(values) == len(nodes) else None
