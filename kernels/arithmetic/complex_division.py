"""Division where a number may be complex, on the CPU and on CUDA alike: by zero it gives infinities and NaN, as NumPy's does.

Numba's raises there, which ends a launch on the CPU, and its thread on CUDA, without a word. For other divisors the numbers are
those of Numba. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from numbridge.kernels.arithmetic.called_code import code_of

__all__ = ["NAMES"]


@intrinsic
def divide(typing_context: Any, dividend: Any, divisor: Any) -> Any:
    """Return ``dividend / divisor``."""
    return _typed(typing_context, operator.truediv, dividend, divisor)


@intrinsic
def divide_in_place(typing_context: Any, dividend: Any, divisor: Any) -> Any:
    """Return what ``dividend /= divisor`` gives the name of the dividend, which is the dividend itself if that is an array."""
    return _typed(typing_context, operator.itruediv, dividend, divisor)


def _typed(typing_context: Any, division: Any, *kinds: Any) -> tuple[Any, Callable[..., Any]] | None:
    """Return the signature of a division, and what generates its code: that of Numba, unless it is one of complex numbers."""
    function = typing_context.resolve_value_type(division)
    found = typing_context.resolve_function_type(function, kinds, {})
    if found is None:
        return None
    result = found.return_type

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if not isinstance(result, types.Complex):
            return code_of(context, function, found.args)(builder, values)
        parts = [
            part
            for kind, value in zip(found.args, values, strict=True)
            for part in _parts(context.make_complex(builder, result, context.cast(builder, value, kind, result)))
        ]
        quotient = context.make_complex(builder, result)
        quotient.real, quotient.imag = _quotient(builder, *parts)
        return quotient._getvalue()

    return result(*found.args), generate


def _parts(number: Any) -> tuple[Any, Any]:
    return number.real, number.imag


def _quotient(builder: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """Return both parts of ``(a + b i) / (c + d i)`` by Smith's algorithm, divided by the larger of c and d first.

    There are no branches, so that LLVM may make vectors of it.
    """
    multiplied, divided = builder.fmul, builder.fdiv
    zero = ir.Constant(c.type, 0.0)
    c_size, d_size = _magnitude(builder, c), _magnitude(builder, d)
    wide = builder.fcmp_ordered(">=", c_size, d_size)

    def if_wide(one: Any, other: Any) -> Any:
        return builder.select(wide, one, other)

    ratio = divided(if_wide(d, c), if_wide(c, d))
    scale = builder.fadd(if_wide(c, d), multiplied(if_wide(d, c), ratio))
    real = builder.fadd(if_wide(a, b), multiplied(if_wide(b, a), ratio))
    imaginary = builder.fsub(if_wide(b, multiplied(b, ratio)), if_wide(multiplied(a, ratio), a))
    by_zero = builder.and_(builder.fcmp_ordered("==", c_size, zero), wide)
    return tuple(
        builder.select(by_zero, divided(part, c_size), divided(scaled, scale))
        for part, scaled in ((a, real), (b, imaginary))
    )


def _magnitude(builder: Any, number: Any) -> Any:
    """Return a number without its sign bit; NVVM does not have LLVM's intrinsic for that."""
    bits = ir.IntType(32 if isinstance(number.type, ir.FloatType) else 64)
    without_sign = ir.Constant(bits, (1 << (bits.width - 1)) - 1)
    return builder.bitcast(builder.and_(builder.bitcast(number, bits), without_sign), number.type)


NAMES: dict[str, Any] = {"_nb_divide": divide, "_nb_divide_in_place": divide_in_place}
"""What text calls them."""
