"""Calls of device functions that Numba has not finished, or finished within a call of themselves: how these are linked.

Numba calls such a function through an address that its own process fills in later, which code that is stored has no use for, and
numba.cuda cannot call it. Here the call is an ordinary one, and what is called is linked with what calls it. It may not change
how other functions are called. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils, imputils
from numba.core.compiler_lock import global_compiler_lock

from numbridge.kernels.object_cache import add_symbol

__all__ = ["linked_calls"]


@contextmanager
def linked_calls(context: Any, overloads: Callable[[], Iterable[Any]], *, in_process: bool) -> Iterator[set[str]]:
    """Make calls of unfinished functions ordinary ones.

    Parameters
    ----------
    context : object
        The target context of Numba or numba.cuda.
    overloads : callable
        Returns what has been compiled of the functions that may be called so.
    in_process : bool
        Whether Numba loads each function as soon as it is compiled, where every name must have an address.

    Yields
    ------
    set of str
        The names that have been called so.
    """
    called: set[str] = set()

    def call(self: Any, builder: Any, name: str, signature: Any, arguments: Any) -> Any:
        called.add(name)
        for overload in overloads():
            if overload.fndesc.mangled_name == name:
                self.active_code_library.add_linking_library(overload.library)
        if in_process:
            # Nothing ever runs what Numba loads of these.
            add_symbol(name, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value or 0)
        # numba.cuda has a convention for each function, of which its context knows the one that is compiled.
        convention = self.call_conv if in_process else self.fndesc.call_conv
        kind = convention.get_function_type(signature.return_type, signature.args)
        known = builder.module.globals.get(name)
        function = ir.Function(builder.module, kind, name) if known is None else known
        status, result = convention.call_function(builder, function, signature.return_type, signature.args, arguments)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return imputils.fix_returning_optional(self, builder, signature, status, result)

    kind = type(context)
    with global_compiler_lock:
        original = kind.call_unresolved
        kind.call_unresolved = call
        try:
            yield called
        finally:
            kind.call_unresolved = original
