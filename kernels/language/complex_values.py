"""Whether a program may compute with complex numbers, as far as its source shows. Imports no Numba, and compiles nothing."""

from __future__ import annotations

import ast
import cmath
from typing import Any

import numpy as np

from numbridge.kernels.language.source import Program
from numbridge.kernels.language.static_names import is_dispatcher

__all__ = ["may_have_complex"]

_NAMES = ("complex64", "complex128")


def may_have_complex(program: Program) -> bool:
    """Tell whether a program may have complex numbers that are not its arguments.

    Literals show that, and what it refers to: `complex` and NumPy's types, `cmath`, complex constants, and functions that
    Numba compiles by itself, which may return anything.
    """
    for source in program.sources:
        for node in source.nodes:
            if isinstance(node, ast.Constant) and (type(node.value) is complex or node.value in _NAMES):
                return True
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                static = source.resolve(node)
                if static is not None and _is_complex(static.value):
                    return True
    return False


def _is_complex(value: Any) -> bool:
    """Tell whether a value is complex, or makes complex numbers."""
    if isinstance(value, tuple):
        return any(map(_is_complex, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind == "c"
    if isinstance(value, np.dtype):
        return value.kind == "c"
    if isinstance(value, type):
        return issubclass(value, complex | np.complexfloating)
    of_cmath = value is cmath or getattr(value, "__module__", None) == "cmath"
    # Numba's types alone are asked for their text: that of other objects may take long.
    of_numba = ".types." in type(value).__module__ and str(value) in _NAMES
    return isinstance(value, complex) or of_cmath or is_dispatcher(value) or of_numba
