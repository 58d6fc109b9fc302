"""Divisions within what Numba makes of an operation on the CPU: infinities and NaN there, as in the kernel itself.

Of ``x ** -1`` Numba makes a function, and compiles it with Python's errors whatever its caller has: at zero it raised,
and ended a launch that CUDA and NumPy finish. The remainder of the least integer by -1, of which the code for NumPy's functions
alone does not take care, ended the process. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import targetconfig
from numba.core.compiler import Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np.ufunc_db import get_ufunc_info

__all__ = ["divided_as_kernels"]

# What was compiled so, apart from what Numba keeps for everybody under the same keys.
_compiled: dict[Any, Any] = {}


@contextmanager
def divided_as_kernels() -> Iterator[None]:
    """Let what Numba compiles for an operation have the error model of its caller, for which Numba has no option."""
    context = cpu_target.target_context
    owner = type(context)
    with global_compiler_lock:
        original, kept = owner._compile_subroutine_no_cache, context.cached_internal_func

        def compile_subroutine(
            self: Any, builder: Any, impl: Any, sig: Any, locals: Any = None, flags: Any = None
        ) -> Any:
            if flags is None and not self.error_model.raise_on_fp_zero_division:
                flags = _flags()
            return original(self, builder, impl, sig, locals=locals, flags=flags)

        owner._compile_subroutine_no_cache, context.cached_internal_func = compile_subroutine, _compiled
        try:
            with _remainders_of_the_least():
                yield
        finally:
            owner._compile_subroutine_no_cache, context.cached_internal_func = original, kept


def _flags() -> Flags:
    """Return Numba's flags for such a function: with NumPy's errors; it may allocate if its caller may."""
    flags = Flags()
    flags.error_model = "numpy"
    stack = targetconfig.ConfigStack()
    if stack and stack.top().is_set("nrt") and stack.top().nrt:
        flags.nrt = True
    return flags


@contextmanager
def _remainders_of_the_least() -> Iterator[None]:
    """Let `numpy.remainder` and `numpy.divmod` of integers take what overflows, which a processor refuses to divide."""
    tables = [get_ufunc_info(function) for function in (np.remainder, np.divmod)]
    kept = [dict(table) for table in tables]
    for table in tables:
        table.update({loop: _in_range(made) for loop, made in table.items() if loop[0] in "bhilq"})
    try:
        yield
    finally:
        for table, made in zip(tables, kept, strict=True):
            table.update(made)


def _in_range(generate: Any) -> Any:
    """Return code that divides the least integer by 1 instead of by -1: the quotient wraps around to it, as in NumPy."""

    def in_range(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number, divisor = values
        least = ir.Constant(number.type, -1 << (number.type.width - 1))
        negative = builder.icmp_signed("==", divisor, divisor.type(-1))
        overflows = builder.and_(negative, builder.icmp_signed("==", number, least))
        return generate(context, builder, signature, (number, builder.select(overflows, divisor.type(1), divisor)))

    return in_range
