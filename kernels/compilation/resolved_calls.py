"""What Numba finds once while code is compiled, and not at each call and in each round: signatures, and where intrinsics belong.

Numba infers types in rounds, until none changes, and asks in each of them for every ``+`` and every element anew what it gives
for its operands: it goes through all that was ever entered for the operation, up to each of NumPy's loops. And for each intrinsic
it looks through all that was ever registered for a target. Importing this module imports Numba, so only code that is about to
compile does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba import types
from numba.core import targetconfig
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typing.templates import _TemplateTargetHelperMixin

__all__ = ["resolved_once"]


@contextmanager
def resolved_once(typing_context: Any) -> Iterator[None]:
    """Let Numba resolve an operation of the same operands once in each function that it compiles.

    Parameters
    ----------
    typing_context : numba.core.typing.BaseContext
        Of the target.
    """
    own = vars(typing_context)
    before = own.get("resolve_function_type")
    with global_compiler_lock:
        own["resolve_function_type"] = _remembering(typing_context)
        try:
            with _registries_found_once():
                yield
        finally:
            del own["resolve_function_type"]
            if before is not None:
                own["resolve_function_type"] = before


def _remembering(typing_context: Any) -> Any:
    """Return what resolves a call as a context of Numba's does, but looks for operations first among those that it knows."""
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

    return resolve


@contextmanager
def _registries_found_once() -> Iterator[None]:
    """Let Numba look once where the code of intrinsics is registered; it refreshes all that it knows of a target each time.

    What it does not find when code is built, it refreshes for then.
    """
    known: dict[Any, Any] = {}
    original = _TemplateTargetHelperMixin._get_target_registry

    def find(self: Any, reason: str) -> Any:
        key = self.context, self.metadata.get("target", "generic"), reason
        if key not in known:
            known[key] = original(self, reason)
        return known[key]

    _TemplateTargetHelperMixin._get_target_registry = find
    try:
        yield
    finally:
        _TemplateTargetHelperMixin._get_target_registry = original
