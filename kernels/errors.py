"""The exception tree, and how its messages are put together.

Every error that numbridge raises derives from `NumbridgeError` and from the built-in exception that a user would
expect. This module knows nothing of arrays or kernels; it must not import anything else of the package.
"""

from __future__ import annotations

import sys

__all__ = [
    "BufferAccessError",
    "ConversionError",
    "DataRaceError",
    "DeviceError",
    "FrameworkNotFoundError",
    "KernelError",
    "KernelUnsupportedError",
    "NonFiniteError",
    "NumbridgeError",
    "NumbridgeIndexError",
    "NumbridgeTypeError",
    "NumbridgeValueError",
    "NumbridgeWarning",
    "callers_level",
    "shown",
    "source_excerpt",
]

_PACKAGE = __name__.partition(".")[0]


class NumbridgeError(Exception):
    """Base class of every error that numbridge raises."""


class NumbridgeWarning(UserWarning):
    """Base class of every warning that numbridge issues."""


class NumbridgeTypeError(NumbridgeError, TypeError):
    """An argument has the wrong kind, dtype or rank."""


class NumbridgeValueError(NumbridgeError, ValueError):
    """An argument has the right type and an impossible value."""


class NumbridgeIndexError(NumbridgeError, IndexError):
    """An index is out of range, or of a kind that an array does not take."""


class NonFiniteError(NumbridgeError, FloatingPointError):
    """A result is NaN or infinite where that was to be an error."""


class BufferAccessError(NumbridgeError, BufferError):
    """Memory may not be used as asked: it is read-only, overlapping, misaligned or cannot be shared."""


class ConversionError(NumbridgeError, TypeError):
    """A framework has no counterpart for a dtype, device or layout."""


class DataRaceError(NumbridgeError, RuntimeError):
    """Two threads of a launch that was checked do to one element what nothing orders."""


class DeviceError(NumbridgeError, RuntimeError):
    """A device is missing, or arguments lie on different devices."""


class FrameworkNotFoundError(NumbridgeError, ModuleNotFoundError):
    """A framework was asked for that is not installed."""


class KernelError(NumbridgeError, TypeError):
    """A kernel's source cannot be compiled; the message shows file, line, column and a caret."""


class KernelUnsupportedError(KernelError, NotImplementedError):
    """A kernel uses something that exists but not on this device, or not yet."""


def shown(value: object) -> str:
    """Return a value as messages show it; Python itself refuses to write integers of many thousand digits."""
    try:
        return repr(value)
    except ValueError:
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        if isinstance(value, tuple | list):
            parts = ", ".join(map(shown, value))
            return f"({parts}{',' * (len(value) == 1)})" if isinstance(value, tuple) else f"[{parts}]"
        return f"a {type(value).__name__}"


def source_excerpt(filename: str, line: int, column: int, text: str) -> str:
    """Return ``file:line:column``, the source line and a caret under the column.

    Parameters
    ----------
    filename : str
        The file that holds the source.
    line, column : int
        One-based line, zero-based column, as in `ast` nodes.
    text : str
        The source line.
    """
    shown = text.rstrip("\n").expandtabs(1)
    indent = len(shown) - len(shown.lstrip())
    caret = " " * max(column - indent, 0) + "^"
    return f"{filename}:{line}:{column + 1}\n    {shown.strip()}\n    {caret}"


def callers_level() -> int:
    """Return the stack level of a warning, as seen from the caller: that of the first frame outside the package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    return level
