"""Operations on numbers on CUDA whose code in numba.cuda gives other numbers than Python, NumPy and the CPU.

Importing this module imports numba.cuda, so only code that is about to compile does.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import cuda, types
from numba.cuda import cgutils, ufuncs
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.descriptor import cuda_target
from numba.cuda.utils import numba_target_override

from numbridge.kernels.arithmetic.float_divisions import floored, in_all_digits, of_operation, zero_powers
from numbridge.kernels.arithmetic.replaced_code import (
    INTEGER_LOOPS,
    INTEGER_OPERATIONS,
    Change,
    Generate,
    always,
    loops_replaced,
    replaced,
)

__all__ = ["as_on_the_cpu"]

_libdevice = cuda.libdevice
# What was compiled so, apart from what numba.cuda keeps for everybody under the same keys.
_compiled: dict[Any, Any] = {}


@contextmanager
def as_on_the_cpu() -> Iterator[None]:
    """Let what numba.cuda compiles give the numbers of the CPU."""
    # Looking at the context fills it, and attributes would go to the CPU if that were the target.
    with global_compiler_lock, numba_target_override():
        context = cuda_target.target_context
        kept, context.cached_internal_func = context.cached_internal_func, _compiled
        try:
            with replaced(context, INTEGER_OPERATIONS | _OPERATIONS), loops_replaced(ufuncs.get_ufunc_info, _LOOPS):
                yield
        finally:
            context.cached_internal_func = kept


def _fmod_of_float64(x: Any, y: Any) -> Any:
    """Return ``math.fmod(x, y)``, by one division where that is exact: libdevice's goes bit by bit."""
    quotient = _libdevice.trunc(_libdevice.ddiv_rn(x, y))
    if not _libdevice.fabs(quotient) < 4503599627370496.0:  # 2 ** 52
        return _libdevice.fmod(x, y)
    if quotient == 0.0:
        return x
    # The quotient may have been rounded up to an integer. Either way the rest has few enough digits to be exact.
    rest = _libdevice.fma(-quotient, y, x)
    if (rest < 0.0 and x > 0.0) or (rest > 0.0 and x < 0.0):
        rest += _libdevice.copysign(y, x)
    return _libdevice.copysign(rest, x)


def _fmod(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    if signature.return_type == types.float32:
        return context.get_function(_libdevice.fmodf, signature)(builder, values)
    return context.compile_internal(builder, _fmod_of_float64, signature, values)


def _divides(choose: Callable[..., Any]) -> Change:
    """Return what generates an operation that is a choice from a quotient and a remainder."""

    def change(before: Generate) -> Generate:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind = signature.args[0]
            if kind not in (types.float32, types.float64):
                return before(context, builder, signature, values)
            one = kind(kind)
            floor = context.get_function(_libdevice.floorf if kind == types.float32 else _libdevice.floor, one)
            rest = _fmod(context, builder, kind(kind, kind), values)
            x, y = values
            return choose(builder, floored(builder, x, y, rest, lambda number: floor(builder, (number,))))

        return generate

    return change


def _extreme(sign: str) -> Change:
    """Return what generates `min` or `max` of two numbers: the first, unless the second is less or greater."""

    def change(_: Generate) -> Generate:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind = signature.return_type
            first, second = (
                context.cast(builder, value, given, kind) for value, given in zip(values, signature.args, strict=True)
            )
            return builder.select(builder.fcmp_ordered(sign, second, first), second, first)

        return generate

    return change


def _in_decimals(x: Any, digits: Any) -> Any:
    """Return ``round(x, digits)`` as Numba does it on the CPU; numba.cuda's goes by way of an integer."""
    if math.isinf(x) or math.isnan(x):
        return x
    if digits < 0:
        power = 10.0 ** (-digits)
        return _libdevice.rint(x / power) * power
    if digits > 22:
        # Neither overflows, which their product might.
        power, more = 10.0 ** (digits - 22), 1e22
    else:
        power, more = 10.0**digits, 1.0
    scaled = (x * power) * more
    if math.isinf(scaled):
        return x
    return (_libdevice.rint(scaled) / more) / power


def _rounded(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    return context.compile_internal(builder, _in_decimals, signature, values)


def _powers(number: Any) -> Change:
    """Return what generates a power of complex numbers: CPython's, in the precision of its operands."""

    def power(a: Any, b: Any) -> Any:
        if b.imag == 0 and b.real == 2:
            return a * a
        size = math.hypot(a.real, a.imag)
        length = math.pow(size, b.real)
        angle = math.atan2(a.imag, a.real)
        phase = angle * b.real
        if b.imag != 0:
            length /= math.exp(angle * b.imag)
            phase += b.imag * math.log(size)
        return number(complex(length * math.cos(phase), length * math.sin(phase)))

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.compile_internal(builder, power, signature, values)

    return always(zero_powers(generate))


_FLOATS = (types.float32, types.float64)
_QUOTIENT = _divides(lambda builder, both: both[0])
_REMAINDER = _divides(lambda builder, both: both[1])
_OPERATIONS: dict[tuple[Any, ...], Change] = {
    **{(operation, types.Float, types.Float): _QUOTIENT for operation in (operator.floordiv, operator.ifloordiv)},
    **{(operation, types.Float, types.Float): _REMAINDER for operation in (operator.mod, operator.imod)},
    (divmod, types.Float, types.Float): _divides(cgutils.pack_array),
    **{(min, one, other): _extreme("<") for one in _FLOATS for other in _FLOATS},
    **{(max, one, other): _extreme(">") for one in _FLOATS for other in _FLOATS},
    **{(round, kind, types.Integer): always(in_all_digits(_rounded)) for kind in _FLOATS},
    **{
        (operation, kind, kind): _powers(kind)
        for operation in (operator.pow, operator.ipow, pow)
        for kind in (types.complex64, types.complex128)
    },
}
_LOOPS: dict[Any, dict[str, Change]] = INTEGER_LOOPS | {
    np.remainder: INTEGER_LOOPS[np.remainder] | {"fd": always(of_operation(operator.mod))},
    np.floor_divide: INTEGER_LOOPS[np.floor_divide] | {"fd": always(of_operation(operator.floordiv))},
    np.divmod: INTEGER_LOOPS[np.divmod] | {"fd": always(of_operation(divmod))},
    np.fmod: INTEGER_LOOPS[np.fmod] | {"fd": always(_fmod)},
}
