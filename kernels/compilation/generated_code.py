"""Generated functions as something to call in text that Numba compiles: what is in `typed_text` needs no analysis of Numba's.

A function with anything else in it is not `typed`, and Numba compiles it the long way. Importing this module imports Numba, so
only code that is about to compile does.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from numba import types
from numba.core import cgutils, typing
from numba.core.errors import NumbaError
from numba.extending import intrinsic

from numbridge.kernels.compilation.typed_text import Text, UnknownError
from numbridge.kernels.cpu_backend.cpu_intrinsics import end_of

__all__ = ["Typed", "as_typed", "typed"]


class Typed:
    """A generated function whose types are known."""

    def __init__(self, text: Text) -> None:
        self._text = text

    @functools.cached_property
    def call(self) -> Any:
        """An intrinsic, to be called instead of the function in text that Numba compiles."""
        return _intrinsic(self._text)

    @functools.cached_property
    def ended(self) -> Any:
        """The same, but that it returns 1 if an exception ends the function, else 0."""
        return _intrinsic(self._text, told=True)

    @property
    def wide(self) -> set[int]:
        """The lines of the text on which float64 arithmetic happens."""
        return self._text.wide


def typed(tree: ast.FunctionDef, kinds: Sequence[Any], names: Mapping[str, Any], *, fastmath: bool) -> Typed | None:
    """Return a generated function as something to call in text that Numba compiles, or None if only Numba can compile it.

    Parameters
    ----------
    tree : ast.FunctionDef
        The function.
    kinds : sequence of Numba types
        The types of its parameters.
    names : mapping
        The globals of its text.
    fastmath : bool
        Whether LLVM may reassociate floating-point arithmetic.
    """
    return as_typed(Text(tree, kinds, names, fastmath=fastmath))


def as_typed(text: Text) -> Typed | None:
    """Return a function's text as something to call, or None if there is something in it that is not known here."""
    try:
        text.read()
    except (UnknownError, NumbaError):
        return None
    return Typed(text)


def _intrinsic(text: Text, *, told: bool = False) -> Any:
    """Return what calls a function, and returns its result, or whether an exception ended it."""
    kinds, result = tuple(text.kinds), text.result

    def typing_of(typing_context: Any, *arguments: Any) -> Any:
        return typing.signature(types.int64 if told else result, *kinds), generate

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.globals.get(text.symbol) or text.define(context, builder.module)
        status, value = context.call_conv.call_function(builder, function, result, kinds, arguments)
        # Within `try`, where the call is of a loop that may raise, Numba keeps nothing of what was raised.
        is_ended = end_of(builder, status)
        if told:
            return is_ended
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return value

    # Numba asks for as many parameters as there will be arguments.
    listed = ", ".join(f"a{k}" for k in range(len(kinds)))
    scope = {"typing_of": typing_of}
    exec(f"def call(typing_context, {listed}):\n    return typing_of(typing_context, {listed})", scope)
    return intrinsic(scope["call"])
