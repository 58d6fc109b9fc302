"""Calls of operations whose signatures Numba finds once while a kernel is compiled, and not at each call and in each round.

Numba infers types in rounds, until none changes, and asks in each of them for every ``+`` and every element anew what it gives
for its operands: it goes through all that was ever entered for the operation, up to each of NumPy's loops. Importing this module
imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba import types
from numba.core import targetconfig
from numba.core.compiler_lock import global_compiler_lock

__all__ = ["resolved_once"]


@contextmanager
def resolved_once(typing_context: Any) -> Iterator[None]:
    """Let Numba resolve an operation of the same operands once in each function that it compiles.

    Parameters
    ----------
    typing_context : numba.core.typing.BaseContext
        Of the target.
    """
    original = typing_context.resolve_function_type
    known: dict[Any, tuple[Any, Any, Any]] = {}

    def resolve(function: Any, arguments: Any, named: Any) -> Any:
        # What is not an operation may be a function that is compiled for the call, or comes back to itself.
        kind = function if isinstance(function, types.Function) else typing_context._lookup_global(function)
        if not isinstance(kind, types.Function):
            return original(function, arguments, named)
        # The options of the function that is compiled: what an operation does is compiled with these.
        options = targetconfig.ConfigStack.top_or_none()
        key = kind, tuple(arguments), tuple(named.items()), id(options)
        found = known.get(key)
        if found is None:
            signature = original(function, arguments, named)
            if signature is not None and signature.args in kind._impl_keys:
                # With the options, or others could be made where they were.
                known[key] = signature, kind.get_impl_key(signature), options
            return signature
        signature, implementation, _ = found
        # Numba's own note of what implements a signature is that for the options of who asked last.
        kind._impl_keys[signature.args] = implementation
        return signature

    with global_compiler_lock:
        typing_context.resolve_function_type = resolve
        try:
            yield
        finally:
            del typing_context.resolve_function_type
