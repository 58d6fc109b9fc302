"""Divisions within what Numba makes of an operation on the CPU: infinities and NaN there, as in the kernel itself.

Of ``x ** -1`` Numba makes a function, and compiles it with Python's errors whatever its caller has: at zero it raised,
and ended a launch that CUDA and NumPy finish. The remainder of the least integer by -1, of which the code for NumPy's functions
alone does not take care, ended the process. What else differs there from NumPy and Python is put right, too. Importing this
module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import targetconfig
from numba.core.compiler import Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np.ufunc_db import get_ufunc_info

from numbridge.kernels.arithmetic.float_divisions import (
    any_exponent,
    expm1,
    in_all_digits,
    of_operation,
    spacing,
    zero_powers,
)
from numbridge.kernels.arithmetic.replaced_code import (
    INTEGER_LOOPS,
    INTEGER_OPERATIONS,
    Change,
    Generate,
    always,
    loops_replaced,
    replaced,
)

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
                flags = _flags(nrt=_may_allocate())
            return original(self, builder, impl, sig, locals=locals, flags=flags)

        owner._compile_subroutine_no_cache, context.cached_internal_func = compile_subroutine, _compiled
        try:
            with (
                replaced(context, INTEGER_OPERATIONS | _OPERATIONS),
                loops_replaced(get_ufunc_info, _LOOPS),
                # What is asked for outside of a function that Numba compiles has no caller.
                targetconfig.ConfigStack().enter(_flags(nrt=False)),
            ):
                yield
        finally:
            owner._compile_subroutine_no_cache, context.cached_internal_func = original, kept


def _flags(*, nrt: bool) -> Flags:
    """Return Numba's flags for a function with NumPy's errors, which may allocate or not."""
    flags = Flags()
    flags.error_model = "numpy"
    flags.nrt = nrt
    return flags


def _may_allocate() -> bool:
    """Tell whether the function that is compiled may allocate."""
    stack = targetconfig.ConfigStack()
    return bool(stack and stack.top().is_set("nrt") and stack.top().nrt)


def _of_neighbours(generate: Generate) -> Generate:
    """Return code for remainders of sums that divides where it must: most are indices next to the end, as in ``(i + 1) % n``."""

    def remainder(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = signature.return_type
        number, divisor = (
            context.cast(builder, value, given, kind) for value, given in zip(values, signature.args, strict=True)
        )
        is_sum = isinstance(number, ir.Instruction) and number.opname in ("add", "sub")
        if not kind.signed or not is_sum or isinstance(divisor, ir.Constant):
            return generate(context, builder, signature, values)
        zero = number.type(0)
        is_less = builder.icmp_unsigned("<", number, divisor)
        moved = builder.select(
            builder.icmp_signed("<", number, zero), builder.add(number, divisor), builder.sub(number, divisor)
        )
        is_near = builder.or_(is_less, builder.icmp_unsigned("<", moved, divisor))
        is_near = builder.and_(is_near, builder.icmp_signed(">", divisor, zero))
        with builder.if_else(is_near, likely=True) as (near, far):
            with near:
                found, after_near = builder.select(is_less, number, moved), builder.block
            with far:
                divided, after_far = generate(context, builder, signature, values), builder.block
        result = builder.phi(found.type)
        result.add_incoming(found, after_near)
        result.add_incoming(divided, after_far)
        return result

    return remainder


_COMPLEX = (types.Complex, types.Complex)
_INTEGERS = (types.Integer, types.Integer)
_OPERATIONS: dict[tuple[Any, ...], Change] = {
    (round, types.Float, types.Integer): in_all_digits,
    **{(operation, *_INTEGERS): _of_neighbours for operation in (operator.mod, operator.imod)},
    **{(operation, *_COMPLEX): zero_powers for operation in (operator.pow, operator.ipow, pow)},
}
_LOOPS: dict[Any, dict[str, Change]] = INTEGER_LOOPS | {
    np.remainder: INTEGER_LOOPS[np.remainder] | {"fd": always(of_operation(operator.mod))},
    np.floor_divide: INTEGER_LOOPS[np.floor_divide] | {"fd": always(of_operation(operator.floordiv))},
    np.divmod: INTEGER_LOOPS[np.divmod] | {"fd": always(of_operation(divmod))},
    np.power: {"FD": always(of_operation(operator.pow))},
    np.spacing: {"fd": always(spacing)},
    np.expm1: {"FD": always(expm1)},
    np.ldexp: {"fd": any_exponent},
}
