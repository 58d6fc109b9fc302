"""Logarithms of float64, for `double_math`: x = 2**k m with m between the square roots of 1/2 and 2.

With f = m - 1 and s = f / (2 + f), log(m) = f - s (f - r).
"""

from __future__ import annotations

import math
from typing import Any

from numbridge.kernels.arithmetic.double_exponentials import LN2
from numbridge.kernels.arithmetic.llvm_numbers import Real, constant, ordered_sum, product, whole_sum

__all__ = ["log", "log1p", "log2", "log10"]

_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of the square root of 1/2
_MANTISSA = (1 << 52) - 1
_TWO_THIRDS_REST = 3.700743415417188e-17  # what 2 / 3 has beyond its first 53 bits


def _split_normal(x: Real) -> tuple[Real, Real]:
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
    k, f = _split_normal(x)
    s, r = _series(f)
    square = 0.5 * f * f
    small = s.fma(square + r, k.fma(LN2[1], more))
    return k.fma(LN2[0], f - (square - small))


def _special(x: Real, result: Real) -> Real:
    """Return a logarithm of x, given that of a positive and finite one."""
    special = constant(x, -math.inf).if_(x.equals(0.0), x.if_(x > 0.0, math.nan))
    return result.if_(x.builder.and_(x > 0.0, x < math.inf), special)


def split(x: Real) -> tuple[Real, Real]:
    """Return k and f of a positive x."""
    is_subnormal = x < 2.0**-1022
    k, f = _split_normal((x * 2.0**54).if_(is_subnormal, x))
    return (k - 54.0).if_(is_subnormal, k), f


def log(x: Real) -> Real:
    is_subnormal = x < 2.0**-1022
    result = _logarithm((x * 2.0**54).if_(is_subnormal, x), 0.0)
    return _special(x, (result - 54 * math.log(2)).if_(is_subnormal, result))


def _to_base(x: Real, of_two: tuple[float, float], of_e: tuple[float, float]) -> Real:
    """Return the logarithm of x to a base, given those of 2 and of e in two parts; multiples of the first one are exact."""
    k, f = split(x)
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


def log_in_two(x: Real) -> tuple[Real, Real]:
    """Return the logarithm of a positive and finite x as a number and what it has lost: 66 bits of it are right."""
    k, f = split(x)
    # s, z = s**2 and log(m) = 2 s + s z (2/3 + z q(z)), each in two parts.
    below, below_lost = ordered_sum(2.0, f)
    inverse = 1.0 / below
    s = f * inverse
    s_lost = inverse * (-s).fma(below_lost, (-s).fma(below, f))
    z, z_lost = product(s, s)
    z_lost = (2.0 * s).fma(s_lost, z_lost)
    # q, error 2**-58.9
    q = z.polynomial(
        *(0.4, 0.28571428571429375, 0.2222222222165133, 0.18181818336322408),
        *(0.15384594872224233, 0.1333480919529892, 0.1170612507385906, 0.1172425897646252),
    )
    term, term_lost = product(z, q)
    factor, factor_lost = ordered_sum(2 / 3, term)
    factor_lost = factor_lost + (z_lost.fma(q, term_lost) + _TWO_THIRDS_REST)
    cube, cube_lost = product(s, z)
    cube_lost = cube_lost + s.fma(z_lost, s_lost * z)
    third, third_lost = product(cube, factor)
    third_lost = third_lost + cube.fma(factor_lost, cube_lost * factor)
    most, lost = ordered_sum(k * LN2[0], 2.0 * s)
    total, more = ordered_sum(most, third)
    return ordered_sum(total, lost + more + k.fma(LN2[1], s_lost.fma(2.0, third_lost)))


# Inverse hyperbolic functions: log(1 + b), or of twice what is so large that one is nothing beside it.

_LARGE = 2.0**28


def _log1p_of_sum(b: Real, lost: Real) -> tuple[Real, Real]:
    """Return the arguments of `_logarithm` for log(1 + b + lost)."""
    y, more = whole_sum(1.0, b)
    return y, (more + lost) / y


def _of_twice(a: Real, y: Real, more: Real) -> Real:
    """Return log(2 a) where a is large, else log(y) + more."""
    is_large = a > _LARGE
    result = _logarithm(a.if_(is_large, y), constant(a, math.log(2)).if_(is_large, more))
    return result.if_(a < math.inf, a)


def asinh(x: Real) -> Real:
    a = x.magnitude()
    square = a * a
    # sqrt(1 + a**2) - 1
    beyond = square / ((square + 1.0).call("sqrt") + 1.0)
    return _of_twice(a, *_log1p_of_sum(*ordered_sum(a, beyond))).signed_as(x)


def acosh(x: Real) -> Real:
    y = x - 1.0
    root = y.fma(y, 2.0 * y).call("sqrt")
    result = _of_twice(x, *_log1p_of_sum(*ordered_sum(root, y)))
    return result.if_(x >= 1.0, math.nan)


def atanh(x: Real) -> Real:
    a = x.magnitude()
    below, lost = ordered_sum(1.0, -a)
    inverse = 1.0 / below
    b = 2.0 * a * inverse
    left = inverse * (-b).fma(lost, (-b).fma(below, 2.0 * a))
    result = 0.5 * _logarithm(*_log1p_of_sum(b, left))
    return result.if_(a < 1.0, constant(x, math.inf).if_(a.equals(1.0), math.nan)).signed_as(x)
