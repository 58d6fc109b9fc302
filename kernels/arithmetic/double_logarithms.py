"""Logarithms of float64, for `double_math`: x = 2**k m with m between the square roots of 1/2 and 2.

With f = m - 1 and s = f / (2 + f), log(m) = f - s (f - r).
"""

from __future__ import annotations

import math
from typing import Any

from numbridge.kernels.arithmetic.double_exponentials import LN2
from numbridge.kernels.arithmetic.llvm_numbers import Real, constant, ordered_sum, product

__all__ = ["log", "log1p", "log2", "log10"]

_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of the square root of 1/2
_MANTISSA = (1 << 52) - 1


def _split(x: Real) -> tuple[Real, Real]:
    """Return k and f of a normal x."""
    offset = x.bits() - _ROOT_HALF + (1024 << 52)  # the exponent's bits hold k + 1024, which is positive
    k = ((offset >> 52) | (1075 << 52)).real() - (2.0**52 + 1024.0)
    return k, ((offset & _MANTISSA) + _ROOT_HALF).real() - 1.0


def _series(f: Real) -> tuple[Real, Real]:
    """Return s and what log(m) / s has besides 2."""
    s = f / (f + 2.0)
    z = s * s
    # (log(m) - 2 s) / s**3, error 2**-58.7
    return s, z * z.polynomial(
        *(0.6666666666666666, 0.4000000000000088, 0.2857142857080323, 0.2222222239180047),
        *(0.18181795630884753, 0.15386240205813478, 0.13268759668560612, 0.13086767009948175),
    )


def _logarithm(x: Real, more: Any) -> Real:
    """Return log(x) + more for a normal x, where `more` is little beside it."""
    k, f = _split(x)
    s, r = _series(f)
    square = 0.5 * f * f
    small = s.fma(square + r, k.fma(LN2[1], more))
    return k.fma(LN2[0], f - (square - small))


def _special(x: Real, result: Real) -> Real:
    """Return a logarithm of x, given that of a positive and finite one."""
    special = constant(x, -math.inf).if_(x.equals(0.0), x.if_(x > 0.0, math.nan))
    return result.if_(x.builder.and_(x > 0.0, x < math.inf), special)


def log(x: Real) -> Real:
    is_subnormal = x < 2.0**-1022
    result = _logarithm((x * 2.0**54).if_(is_subnormal, x), 0.0)
    return _special(x, (result - 54 * math.log(2)).if_(is_subnormal, result))


def _to_base(x: Real, of_two: tuple[float, float], of_e: tuple[float, float]) -> Real:
    """Return the logarithm of x to a base, given those of 2 and of e in two parts; multiples of the first one are exact."""
    is_subnormal = x < 2.0**-1022
    k, f = _split((x * 2.0**54).if_(is_subnormal, x))
    k = (k - 54.0).if_(is_subnormal, k)
    s, r = _series(f)
    square, square_lost = product(0.5 * f, f)
    high, lost = ordered_sum(f, -square)
    low = s.fma(square + r, lost - square_lost)
    first, first_lost = product(high, of_e[0])
    total, more = ordered_sum(k * of_two[0], first)
    rest = k.fma(of_two[1], high.fma(of_e[1], low.fma(of_e[0], first_lost)))
    return _special(x, total + (more + rest))


def log2(x: Real) -> Real:
    return _to_base(x, (1.0, 0.0), (1.4426950408889634, 2.0355273740931033e-17))


def log10(x: Real) -> Real:
    return _to_base(x, (0.3010299955494702, 1.1451100898021838e-10), (0.4342944819032518, 1.098319650216765e-17))


def log1p(x: Real) -> Real:
    y = x + 1.0
    # What the sum has lost, of the smaller of both
    lost = (1.0 - (y - x)).if_(x > 1.0, x - (y - 1.0)) / y
    result = _logarithm(y, lost)
    return _special(y, result).signed_as(x)
