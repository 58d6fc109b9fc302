"""Powers of float64, for `double_math`: exp(y log(x)) with the logarithm in two parts.

So powers are right to the last digit, too, where they are large: there y log(x) is large, and its error that of the result.
"""

from __future__ import annotations

import math

from numbridge.kernels.arithmetic.double_exponentials import exp_in_two, scaled
from numbridge.kernels.arithmetic.double_logarithms import log_in_two, split
from numbridge.kernels.arithmetic.llvm_numbers import ROUND, Real, constant, product

__all__ = ["cbrt", "hypot", "known_power", "pow"]


def _size(a: Real, y: Real) -> Real:
    """Return a**y for a >= 0 where neither is 1 or 0."""
    most, rest = log_in_two(a)
    special = constant(a, -math.inf).if_(a.equals(0.0), a)
    most = most.if_(a.builder.and_(a > 0.0, a < math.inf), special)
    exponent, lost = product(y, most)
    lost = y.fma(rest, lost)
    # Beyond these, it is zero or infinite.
    for is_beyond, end in ((exponent < -746.0, -746.0), (exponent > 711.0, 711.0)):
        exponent = constant(a, end).if_(is_beyond, exponent)
        lost = constant(a, 0.0).if_(is_beyond, lost)
    total, more, k = exp_in_two(exponent, lost)
    return scaled(total + more, k)


def pow(x: Real, y: Real) -> Real:
    """Return x**y as C and IEEE 754 define it."""
    b, a = x.builder, x.magnitude()
    size = constant(x, 1.0).if_(b.and_(a.equals(1.0), y.equals(y)), _size(a, y))
    whole = y.call("rint").equals(y)
    half = 0.5 * y
    odd = b.and_(whole, b.not_(half.call("rint").equals(half)))
    size = (-size).if_(b.and_(odd, x.negative()), size)
    impossible = b.and_(b.and_(x < 0.0, x > -math.inf), b.not_(b.or_(whole, b.not_(y.equals(y)))))
    size = constant(x, math.nan).if_(impossible, size)
    return constant(x, 1.0).if_(b.or_(x.equals(1.0), y.equals(0.0)), size)


def known_power(x: Real, exponent: float) -> Real | None:
    """Return the power to a number that is known, if a few instructions give it as well as `pow` does."""
    match exponent:
        case 0.0:
            return constant(x, 1.0)
        case 1.0:
            return x
        case 2.0:
            return x * x
        case 3.0:
            square, lost = product(x, x)
            return square.fma(x, (x * lost).if_(x.magnitude() < 2.0**342, 0.0))
        case 0.5:
            # Of negative zero it is zero, and of what is infinite it is infinite.
            return (x + 0.0).call("sqrt").if_(x > -math.inf, math.inf).if_(x.equals(x), x)
        case -1.0:
            return 1.0 / x
    return None


_ROOTS = (0.7937005259840998, 1.2599210498948732)  # cube roots of 1/2 and 2


def cbrt(x: Real) -> Real:
    a = x.magnitude()
    k, f = split(a)
    rounded = k.fma(1 / 3, ROUND)
    third = rounded - ROUND
    rest = third.fma(-3.0, k)  # -1, 0 or 1
    above, below = rest > 0.5, rest < -0.5
    m = (f + 1.0) * constant(x, 2.0).if_(above, constant(x, 0.5).if_(below, 1.0))
    # (1 + f)**(-1/3), relative error 2**-20
    start = f.polynomial(
        *(1.0000007549383358, -0.3333432026075879, 0.22207587928723801, -0.17206989800372083),
        *(0.1478661336119082, -0.14134496027457602, 0.09328682375480273),
    )
    inverse = start * constant(x, _ROOTS[0]).if_(above, constant(x, _ROOTS[1]).if_(below, 1.0))
    # Newton's method for the inverse, and for the root with what its square has lost
    inverse = inverse.fma((1.0 - m * inverse * (inverse * inverse)) * (1 / 3), inverse)
    square = inverse * inverse
    root = m * square
    power, lost = product(root, root)
    root = (power.fma(root, -m) + lost * root).fma(square * (-1 / 3), root)
    result = root * (((rounded.bits() - constant(x, ROUND).bits()) + 1023) << 52).real()
    return result.if_(x.builder.and_(a > 0.0, a < math.inf), a).signed_as(x)


def hypot(x: Real, y: Real) -> Real:
    b, x, y = x.builder, x.magnitude(), y.magnitude()
    larger, smaller = x.if_(x > y, y), y.if_(x > y, x)
    # No square may be too large, nor lose what counts because it is too small.
    scale = constant(x, 2.0**600).if_(larger < 2.0**-400, constant(x, 2.0**-600).if_(larger > 2.0**400, 1.0))
    larger, smaller = larger * scale, smaller * scale
    length = larger.fma(larger, smaller * smaller).call("sqrt")
    return constant(x, math.inf).if_(b.or_(x.equals(math.inf), y.equals(math.inf)), length / scale)
