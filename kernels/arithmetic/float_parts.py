"""What libdevice finds in a floating-point number, and what it makes of whole steps, in Python for kernels on the CPU.

Everything is of float64; of float32 it is the same, for nothing is rounded but what float32 has too. Importing this module
imports Numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbridge.kernels.arithmetic.scalar_code import of_numbers, own

__all__ = ["FUNCTIONS"]

_I32: Any = np.int32
_MOST = 1.7976931348623157e308
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_pow: Any = own(math.pow)
_sin: Any = own(math.sin)
_cos: Any = own(math.cos)


@of_numbers
def _is_finite(x):
    return 1 if math.isfinite(x) else 0


@of_numbers
def _is_infinite(x):
    return 1 if math.isinf(x) else 0


@of_numbers
def _is_missing(x):
    return 1 if x != x else 0


@of_numbers
def _has_sign(x):
    return 1 if math.copysign(1.0, x) < 0.0 else 0


@of_numbers
def _exponent(x):
    """Return the exponent of two as an integer; what is zero or no number has the least, infinity the largest."""
    if math.isinf(x):
        return _INT_MAX
    return math.frexp(x)[1] - 1 if x != 0.0 and x == x else _INT_MIN


@of_numbers
def _exponent_of(x):
    if x == 0.0:
        return -math.inf
    return float(math.frexp(x)[1] - 1) if math.isfinite(x) else x * x


@of_numbers
def _split(x):
    fraction, exponent = math.frexp(x)
    return fraction, exponent if math.isfinite(x) else 0


@of_numbers
def _scaled(x, exponent):
    return math.ldexp(x, exponent)


@of_numbers
def _rounded(x):
    """Return the nearest whole number; halves go away from zero."""
    whole = np.trunc(x)
    return math.copysign(whole + math.copysign(1.0, x) if abs(x - whole) >= 0.5 else whole, x)


@of_numbers
def _divided(x, y):
    """Return the remainder by the nearest whole quotient, and the lowest bits of that, with its sign."""
    if not math.isfinite(x) or y == 0.0 or x != x or y != y:
        return math.nan, 0
    rest, by, quotient = abs(x), abs(y), 0
    if by <= _MOST / 8.0:
        rest = np.fmod(rest, 8.0 * by)
    # All that is subtracted leaves an exact result.
    if by <= _MOST / 4.0 and rest >= 4.0 * by:
        rest, quotient = rest - 4.0 * by, quotient + 4
    if by <= _MOST / 2.0 and rest >= 2.0 * by:
        rest, quotient = rest - 2.0 * by, quotient + 2
    if rest >= by:
        rest, quotient = rest - by, quotient + 1
    if rest > by - rest or (rest == by - rest and quotient % 2 == 1):
        rest, quotient = rest - by, quotient + 1
    quotient &= 7
    rest = rest if x >= 0.0 else -rest
    same = math.copysign(1.0, x) == math.copysign(1.0, y)
    return math.copysign(0.0, x) if rest == 0.0 else rest, quotient if same else -quotient


@of_numbers
def _remainder(x, y):
    return _divided(x, y)[0]


@of_numbers
def _excess(x, y):
    return x - y if x > y else (0.0 if x <= y else math.nan)


@of_numbers
def _larger(x, y):
    """Return the larger number; of a number and none, the number."""
    if x != x:
        return y
    if x == y:
        return x if math.copysign(1.0, y) < 0.0 else y
    return y if x < y else x


@of_numbers
def _smaller(x, y):
    if x != x:
        return y
    if x == y:
        return y if math.copysign(1.0, y) < 0.0 else x
    return y if x > y else x


@of_numbers
def _in_unit(x):
    return min(x, 1.0) if x > 0.0 else 0.0


@of_numbers
def _power(x, exponent):
    return _pow(x, float(exponent))


@of_numbers
def _both(x):
    return _sin(x), _cos(x)


FUNCTIONS: dict[str, Any] = {
    **dict.fromkeys(("isfinited", "finitef"), _is_finite),
    **dict.fromkeys(("isinfd", "isinff"), _is_infinite),
    **dict.fromkeys(("isnand", "isnanf"), _is_missing),
    **dict.fromkeys(("signbitd", "signbitf"), _has_sign),
    **dict.fromkeys(("powi", "powif"), _power),
    "ilogb": _exponent,
    "logb": _exponent_of,
    "frexp": _split,
    "ldexp": _scaled,
    "scalbn": _scaled,
    "round": _rounded,
    "remainder": _remainder,
    "remquo": _divided,
    "fdim": _excess,
    "fmax": _larger,
    "fmin": _smaller,
    "saturatef": _in_unit,
    "modf": own(math.modf),
    "sincos": _both,
    "fast_sincosf": _both,
}
