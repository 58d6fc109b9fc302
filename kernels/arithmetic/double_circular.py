"""Circular functions of float64 and their inverses, for `double_math`."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from numbridge.kernels.arithmetic.llvm_numbers import ROUND, Bits, Real, constant, ordered_sum, product
from numbridge.kernels.arithmetic.rare_calls import else_called

__all__ = ["acos", "asin", "atan", "atan2", "cos", "sin", "tan"]

# Circular functions: x = k pi / 2 + r with |r| hardly above pi / 4, as r = high + low.

_FAR = 2.0**30
_MANTISSA = (1 << 52) - 1
# pi / 2 in three parts of 53 bits. What a multiple of the first leaves of x is exact.
_QUARTERS = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)


def _quarter(x: Real) -> tuple[Bits, Real, Real]:
    """Return k, of which two bits matter, and r in two parts, for |x| up to `_FAR`."""
    rounded = x.fma(2 / math.pi, ROUND)
    minus_k = ROUND - rounded
    rest = minus_k.fma(_QUARTERS[0], x)
    second = minus_k * _QUARTERS[1]
    high = rest + second
    # It is a multiple of the last place of `second`, though it may be smaller: so this is exact, too.
    low = second - (high - rest)
    low = minus_k.fma(_QUARTERS[2], low + minus_k.fma(_QUARTERS[1], -second))
    return rounded.bits(), high, low


def _sine(high: Real, low: Real) -> tuple[Real, Real]:
    """Return the sine of high + low as the sum of two numbers, the second of which is smaller."""
    z = high * high
    # (sin(r) - r) / r**3, error 2**-57
    p = z.polynomial(
        *(-0.16666666666666632, 0.008333333333322417, -0.00019841269829810066),
        *(2.7557313692689693e-06, -2.5050758231297642e-08, 1.589680201269066e-10),
    )
    return high, (high * z).fma(p, (-0.5 * low).fma(z, low))


def _cosine(high: Real, low: Real) -> tuple[Real, Real]:
    """Return the cosine of high + low as the sum of two numbers, the second of which is smaller."""
    z = high * high
    # (cos(r) - 1 + r**2 / 2) / r**4, error 2**-60
    p = z.polynomial(
        *(0.0416666666666666, -0.0013888888888874127, 2.4801587289483624e-05),
        *(-2.7557314352748897e-07, 2.0875723329341688e-09, -1.13596506810086e-11),
    )
    half = 0.5 * z
    most = 1.0 - half
    return most, (z * z).fma(p, (1.0 - most - half) - high * low)


def _sin_of(k: Bits, high: Real, low: Real) -> Real:
    """Return the sine of what is k right angles further."""
    (sine, more), (cosine, rest) = _sine(high, low), _cosine(high, low)
    size = (cosine + rest).if_((k & 1).any(), sine + more)
    return (size.bits() ^ ((k & 2) << 62)).real()


def _cos_of(k: Bits, high: Real, low: Real) -> Real:
    return _sin_of(k + 1, high, low)


def _tan_of(k: Bits, high: Real, low: Real) -> Real:
    sine, sine_lost = ordered_sum(*_sine(high, low))
    cosine, cosine_lost = ordered_sum(*_cosine(high, low))
    odd = (k & 1).any()
    above, below = (-cosine).if_(odd, sine), sine.if_(odd, cosine)
    above_lost, below_lost = (-cosine_lost).if_(odd, sine_lost), sine_lost.if_(odd, cosine_lost)
    inverse = 1.0 / below
    t = above * inverse
    left = (-t).fma(below, above) + (-t).fma(below_lost, above_lost)
    return left.fma(inverse, t)


# Beyond _FAR, digits of 2 / pi are chosen that matter there (M. Payne and R. Hanek, SIGNUM Newsletter 18, 1983).

_DIGITS, _TABLE = 1168, "_nb_two_by_pi"
_TWO_BY_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe1d"
    "eb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f118b"
    "5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d085603",
    16,
)


def _digits(builder: Any, skipped: Any, size: Any) -> Any:
    """Return digits of 2 / pi as an integer of some size, without as many of the last ones."""
    word, wide = ir.IntType(64), ir.IntType(256)
    words = ir.ArrayType(word, _DIGITS // 64 + 4)
    if _TABLE not in builder.module.globals:
        table = ir.GlobalVariable(builder.module, words, _TABLE)
        table.linkage, table.global_constant = "internal", True
        table.initializer = words([_TWO_BY_PI >> 64 * k & (1 << 64) - 1 for k in range(words.count)])
    table, first, found = builder.module.globals[_TABLE], builder.lshr(skipped, word(6)), wide(0)
    for k in range(4):
        part = builder.load(builder.gep(table, [word(0), builder.add(first, word(k))]))
        found = builder.or_(found, builder.shl(builder.zext(part, wide), wide(64 * k)))
    return builder.trunc(builder.lshr(found, builder.zext(builder.and_(skipped, word(63)), wide)), size)


def _far_quarter(x: Real) -> tuple[Bits, Real, Real]:
    """Return what `_quarter` does, for |x| of at least 2."""
    b = x.builder
    bits = x.bits()
    size = ir.IntType(192)
    # Two digits before the point, and 190 after it; those further left add whole turns.
    exponent = (bits >> 52) & 0x7FF  # and 1075 more than that of the last place
    skipped = b.sub(ir.Constant(bits.value.type, _DIGITS - 190 + 1075), exponent.value)
    factor = _digits(b, skipped, size)
    turns = b.mul(b.zext(((bits & _MANTISSA) | (1 << 52)).value, size), factor)
    rounded = b.add(turns, ir.Constant(size, 1 << 189))
    k = b.lshr(rounded, ir.Constant(size, 190))
    rest = b.sub(turns, b.shl(k, ir.Constant(size, 190)))
    # Parts of 53 digits, of which the first one has the sign
    parts = [b.ashr(rest, ir.Constant(size, 137))]
    parts += [b.and_(b.lshr(rest, ir.Constant(size, place)), ir.Constant(size, (1 << 53) - 1)) for place in (84, 31)]
    first, second, third = (
        Real(b, b.sitofp(b.trunc(part, bits.value.type), x.value.type)) * 2.0 ** (-53 * place)
        for place, part in enumerate(parts, 1)
    )
    most, lost = ordered_sum(first, second)
    most, lost = ordered_sum(most, lost + third)
    high, low = product(most, _QUARTERS[0])
    low = most.fma(_QUARTERS[1], lost.fma(_QUARTERS[0], low))
    # A negative number is turned backwards.
    whole = Bits(b, b.trunc(k, bits.value.type))
    turned = b.select(x.negative(), b.neg(whole.value), whole.value)
    return Bits(b, turned), (-high).if_(x.negative(), high), (-low).if_(x.negative(), low)


def _far(x: Real, which: Real) -> Real:
    """Return the sine (0), cosine (1) or tangent (2) of |x| of at least 2."""
    k, high, low = _far_quarter(x)
    cosine = _cos_of(k, high, low).if_(which.equals(1.0), _sin_of(k, high, low))
    result = _tan_of(k, high, low).if_(which.equals(2.0), cosine)
    return result.if_(x.magnitude() < math.inf, math.nan)


def _of_any(x: Real, near: Real, which: float) -> Real:
    return else_called(near, x.magnitude() > _FAR, _far, x, constant(x, which))


def sin(x: Real) -> Real:
    return x.if_(x.equals(0.0), _of_any(x, _sin_of(*_quarter(x)), 0.0))


def cos(x: Real) -> Real:
    return _of_any(x, _cos_of(*_quarter(x)), 1.0)


def tan(x: Real) -> Real:
    return x.if_(x.equals(0.0), _of_any(x, _tan_of(*_quarter(x)), 2.0))


# Inverse circular functions: the angle of a point in the first quadrant, turned by the angle of (1, 0), (2, 1), (1, 1), (2, 3) or
# (0, 1), each in two parts.

_TURNS = (
    (7 / 16, 0.5, 0.4636476090008061, 2.2698777452961687e-17),
    (11 / 16, 1.0, 0.7853981633974483, 3.061616997868383e-17),
    (19 / 16, 1.5, 0.982793723247329, 1.3903311031230998e-17),
)
_HALF_PI = (math.pi / 2, 6.123233995736766e-17)
_PI_REST = 1.2246467991473532e-16


def _angle(x: Real, y: Real) -> tuple[Real, Real, Real]:
    """Return the angle at which a point with x, y >= 0 is seen: a number, what is added to it, and what is added to that."""
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
    inverse = 1.0 / along
    t = above * inverse
    lost = inverse.fma((-t).fma(along, above), low)
    z = t * t
    # (atan(t) - t) / t**3, error 2**-57.8
    p = z.polynomial(
        *(-0.3333333333333333, 0.19999999999999404, -0.14285714285565465, 0.111111110965279),
        *(-0.09090908350382436, 0.07692285419714515, -0.06666239748865294, 0.05876924062763387),
        *(-0.05216532007308444, 0.044916556747777434, -0.033114228762660534, 0.014759380407779155),
    )
    return high, t, (t * z).fma(p, lost)


def atan(x: Real) -> Real:
    a = x.magnitude()
    # From here on it is a right angle, to the last digit.
    high, t, rest = _angle(constant(x, 1.0), constant(x, 2.0**60).if_(a > 2.0**60, a))
    return (high + (t + rest)).signed_as(x)


def atan2(y: Real, x: Real) -> Real:
    b, across, along = y.builder, y.magnitude(), x.magnitude()
    larger = across.if_(across > along, along)
    is_infinite = b.or_(across.equals(math.inf), along.equals(math.inf))
    # Of what is infinite, only the direction is left; products with zero keep NaN.
    across, along = (
        constant(x, 1.0).if_(size.equals(math.inf), 0.0 * size).if_(is_infinite, size) for size in (across, along)
    )
    along = constant(x, 1.0).if_(larger.equals(0.0), along)
    # Neither the inverse of the larger one nor what a quotient loses may be too large or too small.
    scale = constant(x, 2.0**300).if_(larger < 1.0, constant(x, 2.0**-300).if_(larger > 2.0**500, 1.0))
    high, t, rest = _angle(along * scale, across * scale)
    # Left of the axis, it is that much less than pi.
    turned, lost = ordered_sum(math.pi, -high)
    left = turned - (t + (rest - (lost + _PI_REST)))
    return left.if_(x.negative(), high + (t + rest)).signed_as(y)


# Up to 1/2, asin(x) = x + x**3 p(x**2); else it is pi / 2 - 2 asin(sqrt((1 - x) / 2)).


def _small_arc(x: Real) -> tuple[Any, Real, Real]:
    """Return whether |x| is large, the sine or twice that of half the complement, and what is added to it for the angle."""
    a = x.magnitude()
    is_large = a > 0.5
    z = (0.5 - 0.5 * a).if_(is_large, a * a)
    sine = (2.0 * z.call("sqrt")).if_(is_large, a)
    # (asin(r) - r) / r**3, error 2**-55.6
    p = z.polynomial(
        *(0.16666666666665383, 0.07500000000343152, 0.04464285682340088, 0.03038195933444072),
        *(0.022371753449496046, 0.017359772196509277, 0.013884587832605927, 0.012173348767920285),
        *(0.006510553875946415, 0.01957472322664955, -0.016295350616451685, 0.03195983624498204),
    )
    return is_large, sine, sine * z * p


def asin(x: Real) -> Real:
    is_large, sine, more = _small_arc(x)
    high, low = (constant(x, part).if_(is_large, 0.0) for part in _HALF_PI)
    total, lost = ordered_sum(high, (-sine).if_(is_large, sine))
    return (total + (lost + low + (-more).if_(is_large, more))).signed_as(x)


def acos(x: Real) -> Real:
    is_large, sine, more = _small_arc(x)
    # 2 a, pi - 2 a or pi / 2 - a, where a has a sign
    twice = constant(x, 2.0).if_(x.negative(), 0.0).if_(is_large, 1.0)
    sign = (-x).if_(is_large, x)
    high, low = (twice * part for part in _HALF_PI)
    total, lost = ordered_sum(high, -sine.signed_as(sign))
    return total + (lost + low - more.signed_as(sign))
