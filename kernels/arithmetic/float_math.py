"""Mathematical functions of float32 in float64 arithmetic, without branches, tables or calls.

A C library's functions keep LLVM from vectorising the loop that calls them; these are arithmetic, so it vectorises them
with the loop. An element's result is the same in a vector, in the loop's remainder and in any thread. Arguments are
float32 numbers; each result lies within 0.52 units in the last place of the true value, also where that is subnormal.

Polynomials are minimax approximations (Remez) on the intervals that are named; what is said of their errors is absolute.
Nothing here is compiled, and no types are inferred: `cpu_math` gives these functions to kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from numbridge.kernels.arithmetic.llvm_numbers import ROUND, Bits, Real, constant, known_number

__all__ = ["FUNCTIONS", "evaluate"]

_DOUBLE = ir.DoubleType()
_INFINITY, _NAN = math.inf, math.nan


# Exponentials: x = k log(2) + r with |r| <= log(2) / 2, and exp(x) = 2**k exp(r).


def _exponential(x: Real) -> tuple[Real, Real]:
    """Return 2**k and exp(r) - 1, the latter with a small relative error."""
    x = constant(x, -110.0).if_(x < -110.0, x)
    x = constant(x, 100.0).if_(x > 100.0, x)
    rounded = x.fma(1 / math.log(2), ROUND)
    r = (ROUND - rounded).fma(math.log(2), x)
    power = ((rounded.bits() + 1023) << 52).real()
    # (exp(r) - 1 - r) / r**2, error 2**-29.5
    q = r.polynomial(
        *(0.5000000013469981, 0.1666666675648286, 0.04166646489833958),
        *(0.008333285998777588, 0.0013933652234362252, 0.00019907590040187388),
    )
    return power, (r * r).fma(q, r)


def _exp(x: Real) -> Real:
    power, rest = _exponential(x)
    return power.fma(rest, power)


def _expm1(x: Real) -> Real:
    power, rest = _exponential(x)
    return power.fma(rest, power - 1.0).signed_as(x)


def _exp2(x: Real) -> Real:
    return _exp(x * math.log(2))


def _sinh(x: Real) -> Real:
    e = _expm1(x.magnitude())
    return (0.5 * (e + e / (e + 1.0))).signed_as(x)


def _cosh(x: Real) -> Real:
    e = _exp(x.magnitude())
    return 0.5 * (e + 1.0 / e)


def _tanh(x: Real) -> Real:
    e = _expm1(2.0 * x.magnitude())
    return (e / (e + 2.0)).signed_as(x)


# The error function: a polynomial near zero, else exp(-x**2) times one of (x - 2) / (x + 2) (Shepherd and Laframboise 1981).


def _erfc(x: Real) -> Real:
    a = x.magnitude()
    a = constant(x, 12.0).if_(a > 12.0, a)
    # (1 + 2 a) exp(a**2) erfc(a), error 2**-29.7
    p = ((a - 2.0) / (a + 2.0)).polynomial(
        *(1.276978382603974, -0.09276382103153288, -0.16603051506111485, 0.16405104858243502),
        *(-0.05421791752464497, -0.008030940538587304, 0.008709525314504035, 0.0012530079664293647),
        *(-0.001421647872331481, -0.0004013769565622392, 0.0001699972682686436, 7.990782131752203e-05),
    )
    tail = _exp(-(a * a)) * p / a.fma(2.0, 1.0)
    return (2.0 - tail).if_(x < 0.0, tail)


def _erf(x: Real) -> Real:
    a = x.magnitude()
    # erf(a) / a, error 2**-29.7
    p = (a * a).polynomial(
        *(1.1283791659137878, -0.3761262713622375, 0.11283600179083497, -0.026854444711682822),
        *(0.005189535572180888, -0.0008020843363827594, 7.889126493882801e-05),
    )
    return (a * p).if_(a < 1.0, 1.0 - _erfc(a)).signed_as(x)


# Logarithms: x = 2**k m with m between the square roots of 1/2 and 2, s = (m - 1) / (m + 1), log(m) = 2 atanh(s).

_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of the square root of 1/2
_MANTISSA = (1 << 52) - 1


def _log(x: Real) -> Real:
    offset = x.bits() - _ROOT_HALF + (1024 << 52)  # the exponent's bits hold k + 1024, which is positive
    exponent = (offset >> 52) | (1075 << 52)
    k = exponent.real() - (2.0**52 + 1024.0)
    m = ((offset & _MANTISSA) + _ROOT_HALF).real()
    f = m - 1.0
    s = f / (m + 1.0)
    z = s * s
    # (log(m) - 2 s) / s**3, error 2**-37
    p = z.polynomial(0.66666666667388, 0.3999999878231223, 0.2857175725556994, 0.22191243941953742, 0.19365472062006076)
    result = k.fma(math.log(2), s * z.fma(p, 2.0))
    special = constant(x, -_INFINITY).if_(x.equals(0.0), x.if_(x > 0.0, _NAN))
    return result.if_(x.builder.and_(x > 0.0, x < _INFINITY), special)


def _log2(x: Real) -> Real:
    return _log(x) * (1 / math.log(2))


def _log10(x: Real) -> Real:
    return _log(x) * (1 / math.log(10))


def _log1p(x: Real) -> Real:
    y = x + 1.0
    lost = x - (y - 1.0)
    # Beyond two, what the sum loses is nothing beside the logarithm, and may be a whole number.
    return (_log(y) + lost.if_(y < 2.0, 0.0)).signed_as(x)


def _asinh(x: Real) -> Real:
    a = x.magnitude()
    b = a + a * a / (1.0 + a.fma(a, 1.0).call("sqrt"))
    return _log1p(b.if_(a < _INFINITY, a)).signed_as(x)


def _acosh(x: Real) -> Real:
    y = x - 1.0
    result = _log1p(y + (y * (y + 2.0)).call("sqrt"))
    return result.if_(x >= 1.0, _NAN)


def _atanh(x: Real) -> Real:
    a = x.magnitude()
    return (0.5 * _log1p(2.0 * a / (1.0 - a))).signed_as(x)


def _pow(x: Real, y: Real) -> Real:
    """Return x**y as C and IEEE 754 define it."""
    b, a = x.builder, x.magnitude()
    exponent = y * _log(a)
    exponent = constant(x, 0.0).if_(b.and_(a.equals(1.0), y.equals(y)), exponent)
    size = _exp(exponent)
    whole = y.call("rint").equals(y)
    half = 0.5 * y
    odd = b.and_(whole, b.not_(half.call("rint").equals(half)))
    size = (-size).if_(b.and_(odd, x.negative()), size)
    impossible = b.and_(b.and_(x < 0.0, x > -_INFINITY), b.not_(b.or_(whole, b.not_(y.equals(y)))))
    size = constant(x, _NAN).if_(impossible, size)
    return constant(x, 1.0).if_(b.or_(x.equals(1.0), y.equals(0.0)), size)


_SQUARINGS = 4  # exponents of less than 2**4 are multiplied out: one rounding to float32, whatever the rest loses


def _whole_power(x: Real, exponent: int) -> Real:
    """Return x to the power of an integer that is known."""
    result = constant(x, 1.0)
    for k in range(_SQUARINGS):
        if abs(exponent) >> k & 1:
            result = result * x
        x = x * x
    return 1.0 / result if exponent < 0 else result


def _hypot(x: Real, y: Real) -> Real:
    x, y = x.magnitude(), y.magnitude()
    length = x.fma(x, y * y).call("sqrt")
    return constant(x, _INFINITY).if_(x.builder.or_(x.equals(_INFINITY), y.equals(_INFINITY)), length)


# Circular functions: x = k pi / 2 + r with |r| hardly above pi / 4. Up to 2**45, k times pi / 2 is subtracted exactly in
# two parts (Cody and Waite). What is larger is an integer of 45 bits times 2**22, 2**44, 2**66 or 2**88, and these are
# replaced by their remainders of 2 pi, which are known to 106 bits.

_LARGE = 2.0**45
_HALF_PI = (math.pi / 2, 6.123233995736766e-17)
_REMAINDERS = (
    (2.0**22, 1.3473041101248473, 8.79909131076527e-17),
    (2.0**44, 0.4008153755084947, 2.0728621145807084e-17),
    (2.0**66, 6.188782504187955, -5.848744157133731e-17),
    (2.0**88, 6.000674138953824, 1.4274215619100522e-16),
)


def _quarter(x: Real) -> tuple[Bits, Real, Real]:
    """Return k, of which two bits matter, and sin(r) and cos(r)."""
    size = x.magnitude()
    scale, high, low = (constant(x, number) for number in (1.0, 1.0, 0.0))
    for unit, *remainder in _REMAINDERS:
        above = size >= unit * (_LARGE / 2**22)
        scale, high, low = (
            constant(x, number).if_(above, other)
            for number, other in zip((1 / unit, *remainder), (scale, high, low), strict=True)
        )
    x = x * scale
    y = x * high
    lost = (-x).fma(high, y)
    rounded = y.fma(2 / math.pi, ROUND)
    minus_k = -(rounded - ROUND)
    # Each of these keeps the sign of a zero.
    r = minus_k.fma(_HALF_PI[0], y) + minus_k.fma(_HALF_PI[1], x.fma(low, -lost))
    z = r * r
    # (sin(r) - r) / r**3, error 2**-34.5, and (cos(r) - 1 + r**2 / 2) / r**4, error 2**-28.5
    s = z.polynomial(-0.16666666662562732, 0.00833333139579, -0.0001983984023384347, 2.7219461594383815e-06)
    c = z.polynomial(0.041666664003858496, -0.0013888181292586322, 2.452284298727097e-05)
    return rounded.bits(), r * z.fma(s, 1.0), z.fma(z.fma(c, -0.5), 1.0)


def _turned(k: Bits, sine: Real, cosine: Real) -> Real:
    """Return the sine of what is k right angles further."""
    size = cosine.if_((k & 1).any(), sine)
    return (size.bits() ^ ((k & 2) << 62)).real()


def _sin(x: Real) -> Real:
    return _turned(*_quarter(x))


def _cos(x: Real) -> Real:
    k, sine, cosine = _quarter(x)
    return _turned(k + 1, sine, cosine)


def _tan(x: Real) -> Real:
    k, sine, cosine = _quarter(x)
    odd = (k & 1).any()
    return (-cosine).if_(odd, sine) / sine.if_(odd, cosine)


# Inverse circular functions: the angle of a point in the first quadrant, turned by 0, pi / 4 or pi / 2.


def _angle(x: Real, y: Real) -> Real:
    """Return the angle at which a point with x, y >= 0 is seen."""
    near = y <= (math.sqrt(2) - 1) * x
    middle = y <= (math.sqrt(2) + 1) * x
    above = y.if_(near, (y - x).if_(middle, -x))
    along = x.if_(near, (y + x).if_(middle, y))
    turned = constant(x, 0.0).if_(near, constant(x, math.pi / 4).if_(middle, math.pi / 2))
    t = above / along
    z = t * t
    # (atan(t) - t) / t**3, error 2**-30.9
    p = z.polynomial(
        *(-0.33333333282570354, 0.19999978199757645, -0.14284194043956225),
        *(0.11072048616463759, -0.08629129339938854, 0.05058293450034018),
    )
    return turned + t * z.fma(p, 1.0)


def _atan(x: Real) -> Real:
    return _angle(constant(x, 1.0), x.magnitude()).signed_as(x)


def _atan2(y: Real, x: Real) -> Real:
    b, across, along = y.builder, y.magnitude(), x.magnitude()
    same = b.and_(across.equals(_INFINITY), along.equals(_INFINITY))
    across, along = (constant(y, 1.0).if_(same, number) for number in (across, along))
    along = constant(y, 1.0).if_(b.and_(across.equals(0.0), along.equals(0.0)), along)
    angle = _angle(along, across)
    return (math.pi - angle).if_(x.negative(), angle).signed_as(y)


def _complement(x: Real) -> Real:
    return ((1.0 - x) * (1.0 + x)).call("sqrt")


def _asin(x: Real) -> Real:
    return _angle(_complement(x), x.magnitude()).signed_as(x)


def _acos(x: Real) -> Real:
    angle = _angle(x.magnitude(), _complement(x))
    return (math.pi - angle).if_(x.negative(), angle)


FUNCTIONS: dict[str, Callable[..., Real]] = {
    function.__name__[1:]: function
    for function in (
        *(_sin, _cos, _tan, _asin, _acos, _atan, _atan2, _sinh, _cosh, _tanh, _asinh, _acosh, _atanh),
        *(_exp, _exp2, _expm1, _log, _log2, _log10, _log1p, _pow, _hypot),
        *(_erf, _erfc),
    )
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
        The arguments, of type float.

    Returns
    -------
    llvmlite.ir.Value
        The result, of type float.
    """
    wide = [Real(builder, builder.fpext(argument, _DOUBLE)) for argument in arguments]
    exponent = known_number(arguments[1]) if name == "pow" else None
    if exponent is not None and exponent.is_integer() and abs(exponent) < 2**_SQUARINGS:
        return builder.fptrunc(_whole_power(wide[0], int(exponent)).value, ir.FloatType())
    return builder.fptrunc(FUNCTIONS[name](*wide).value, ir.FloatType())
