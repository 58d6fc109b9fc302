"""Logarithms of float64, for `double_math`: x = 2**k m with m between the square roots of 1/2 and 2.

With f = m - 1 and s = f / (2 + f), log(m) = f - s (f - r).
"""

from __future__ import annotations

import math
from typing import Any

from numbridge.kernels.arithmetic.double_exponentials import LN2
from numbridge.kernels.arithmetic.llvm_numbers import Real, constant

__all__ = ["log", "log1p"]

_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of the square root of 1/2
_MANTISSA = (1 << 52) - 1


def _logarithm(x: Real, more: Any) -> Real:
    """Return log(x) + more for a normal x, where `more` is little beside it."""
    offset = x.bits() - _ROOT_HALF + (1024 << 52)  # the exponent's bits hold k + 1024, which is positive
    k = ((offset >> 52) | (1075 << 52)).real() - (2.0**52 + 1024.0)
    f = ((offset & _MANTISSA) + _ROOT_HALF).real() - 1.0
    s = f / (f + 2.0)
    z = s * s
    # (log(m) - 2 s) / s**3, error 2**-58.7
    r = z * z.polynomial(
        *(0.6666666666666666, 0.4000000000000088, 0.2857142857080323, 0.2222222239180047),
        *(0.18181795630884753, 0.15386240205813478, 0.13268759668560612, 0.13086767009948175),
    )
    square = 0.5 * f * f
    small = s.fma(square + r, k.fma(LN2[1], more))
    return k.fma(LN2[0], f - (square - small))


def log(x: Real) -> Real:
    b, is_subnormal = x.builder, x < 2.0**-1022
    result = _logarithm((x * 2.0**54).if_(is_subnormal, x), 0.0)
    result = (result - 54 * math.log(2)).if_(is_subnormal, result)
    special = constant(x, -math.inf).if_(x.equals(0.0), x.if_(x > 0.0, math.nan))
    return result.if_(b.and_(x > 0.0, x < math.inf), special)


def log1p(x: Real) -> Real:
    b, y = x.builder, x + 1.0
    # What the sum has lost, of the smaller of both
    lost = (1.0 - (y - x)).if_(x > 1.0, x - (y - 1.0)) / y
    result = _logarithm(y, lost)
    special = constant(x, -math.inf).if_(y.equals(0.0), y.if_(y > 0.0, math.nan))
    return result.if_(b.and_(y > 0.0, y < math.inf), special).signed_as(x)
