"""Mathematical functions of float64, without branches, tables or calls: as `float_math`, in the arithmetic of their own type.

Each result lies within 2.5 units in the last place of the true value, and those of `exp`, `log`, `log1p` and `atan` within 0.9.
What needs many more digits on the way is left to the C library: circular functions, which must reduce any argument, powers, and
the error function.

Polynomials are minimax approximations (Chebyshev's points) on the intervals that are named. Logarithms and inverse tangents are
put together so that the largest part is added last, as by W. J. Cody and W. Waite, Software Manual for the Elementary Functions
(1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.arithmetic.llvm_numbers import ROUND, Bits, Real, constant

__all__ = ["FUNCTIONS", "evaluate"]

_INFINITY, _NAN = math.inf, math.nan
_LARGEST = 709.782712893384  # whose exponential is finite
# log(2): its first 32 bits, so that a multiple by an exponent is exact, and the rest
_LN2 = (0.6931471803691238, 1.9082149292705877e-10)


def _power_of_two(k: Bits) -> Real:
    """Return 2**k, for what is an exponent of normal numbers."""
    return ((k + 1023) << 52).real()


# Exponentials: x = k log(2) + r with |r| <= log(2) / 2, and exp(x) = 2**k exp(r).


def _exponential(x: Real) -> tuple[Bits, Real, Real]:
    """Return k, and exp(r) - 1 as the sum of two numbers, the second of which is little beside the first."""
    rounded = x.fma(1 / math.log(2), ROUND)
    minus_k = ROUND - rounded
    high = minus_k.fma(_LN2[0], x)
    r = minus_k.fma(_LN2[1], high)
    lost = minus_k.fma(_LN2[1], high - r)
    # (exp(r) - 1 - r) / r**2, error 2**-59.3
    q = r.polynomial(
        *(0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326112, 0.001388888888888373),
        *(0.0001984126987490126, 2.4801587325605324e-05, 2.7557255297969643e-06, 2.755727357010214e-07),
        *(2.5105259538448494e-08, 2.0914717341716378e-09),
    )
    tail = (r * r).fma(q, lost)
    return rounded.bits() - constant(x, ROUND).bits(), r, tail


def _scaled_exp(x: Real, twos: int) -> Real:
    """Return exp(x) times 2**twos."""
    x = constant(x, -746.0).if_(x < -746.0, x)
    x = constant(x, 711.0).if_(x > 711.0, x)
    k, first, second = _exponential(x)
    # In two steps: the result may be subnormal, or just below what is infinite.
    k = k + twos
    half = ((k + 2048) >> 1) - 1024
    return (first + second + 1.0) * _power_of_two(half) * _power_of_two(k - half)


def _exp(x: Real) -> Real:
    return _scaled_exp(x, 0)


def _expm1(x: Real) -> Real:
    clamped = constant(x, -40.0).if_(x < -40.0, x)
    clamped = constant(x, _LARGEST).if_(clamped > _LARGEST, clamped)
    k, first, second = _exponential(clamped)
    # Half of it, with what each sum loses: the exponent may be that of what is infinite.
    power = _power_of_two(k - 1)
    size, lost = _sum(first, second)
    total, more = _sum(power - 0.5, power * size)
    return constant(x, _INFINITY).if_(x > _LARGEST, 2.0 * (total + power.fma(lost, more))).signed_as(x)


def _sum(a: Real, b: Real) -> tuple[Real, Real]:
    """Return a sum and what it has lost (Knuth, The Art of Computer Programming, volume 2, 4.2.2)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _sinh(x: Real) -> Real:
    a = x.magnitude()
    e = _expm1(a)
    return _scaled_exp(a, -1).if_(a > 40.0, 0.5 * (e + e / (e + 1.0))).signed_as(x)


def _cosh(x: Real) -> Real:
    half = _scaled_exp(x.magnitude(), -1)
    return half + 0.25 / half


def _tanh(x: Real) -> Real:
    a = x.magnitude()
    e = _expm1(2.0 * constant(x, 20.0).if_(a > 20.0, a))
    return (e / (e + 2.0)).signed_as(x)


# Logarithms: x = 2**k m with m between the square roots of 1/2 and 2, f = m - 1, s = f / (2 + f), log(m) = f - s (f - r).

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
    small = s.fma(square + r, k.fma(_LN2[1], more))
    return k.fma(_LN2[0], f - (square - small))


def _log(x: Real) -> Real:
    b, is_subnormal = x.builder, x < 2.0**-1022
    result = _logarithm((x * 2.0**54).if_(is_subnormal, x), 0.0)
    result = (result - 54 * math.log(2)).if_(is_subnormal, result)
    special = constant(x, -_INFINITY).if_(x.equals(0.0), x.if_(x > 0.0, _NAN))
    return result.if_(b.and_(x > 0.0, x < _INFINITY), special)


def _log1p(x: Real) -> Real:
    b, y = x.builder, x + 1.0
    # What the sum has lost, of the smaller of both
    lost = (1.0 - (y - x)).if_(x > 1.0, x - (y - 1.0)) / y
    result = _logarithm(y, lost)
    special = constant(x, -_INFINITY).if_(y.equals(0.0), y.if_(y > 0.0, _NAN))
    return result.if_(b.and_(y > 0.0, y < _INFINITY), special).signed_as(x)


# Inverse circular functions: the angle of a point in the first quadrant, turned by the angle of (1, 0), (2, 1), (1, 1), (2, 3) or
# (0, 1), each in two parts.

_TURNS = (
    (7 / 16, 0.5, 0.4636476090008061, 2.2698777452961687e-17),
    (11 / 16, 1.0, 0.7853981633974483, 3.061616997868383e-17),
    (19 / 16, 1.5, 0.982793723247329, 1.3903311031230998e-17),
)
_HALF_PI = (math.pi / 2, 6.123233995736766e-17)


def _angle(x: Real, y: Real) -> Real:
    """Return the angle at which a point with x, y >= 0 is seen."""
    slope, high, low = (constant(x, 0.0) for _ in range(3))
    for least, *turn in _TURNS:
        above = y >= least * x
        slope, high, low = (
            constant(x, number).if_(above, other) for number, other in zip(turn, (slope, high, low), strict=True)
        )
    steep = y >= 39 / 16 * x
    above = (-x).if_(steep, (-slope).fma(x, y))
    along = y.if_(steep, slope.fma(y, x))
    high, low = (constant(x, part).if_(steep, other) for part, other in zip(_HALF_PI, (high, low), strict=True))
    t = above / along
    z = t * t
    # (atan(t) - t) / t**3, error 2**-57.8
    p = z.polynomial(
        *(-0.3333333333333333, 0.19999999999999404, -0.14285714285565465, 0.111111110965279),
        *(-0.09090908350382436, 0.07692285419714515, -0.06666239748865294, 0.05876924062763387),
        *(-0.05216532007308444, 0.044916556747777434, -0.033114228762660534, 0.014759380407779155),
    )
    return high + (t + (t * z).fma(p, low))


def _atan(x: Real) -> Real:
    a = x.magnitude()
    # From here on it is a right angle, to the last digit.
    return _angle(constant(x, 1.0), constant(x, 2.0**60).if_(a > 2.0**60, a)).signed_as(x)


FUNCTIONS: dict[str, Callable[..., Real]] = {
    function.__name__[1:]: function for function in (_exp, _expm1, _sinh, _cosh, _tanh, _log, _log1p, _atan)
}


def evaluate(name: str, builder: Any, arguments: Sequence[Any]) -> Any:
    """Append a function of `FUNCTIONS` to an LLVM function.

    Parameters
    ----------
    name : str
        Which function.
    builder : llvmlite.ir.IRBuilder
        Where the code goes.
    arguments : sequence of llvmlite.ir.Value
        The arguments, of type double.

    Returns
    -------
    llvmlite.ir.Value
        The result, of type double.
    """
    return FUNCTIONS[name](*(Real(builder, argument) for argument in arguments)).value
