"""Exponential and hyperbolic functions of float64, for `double_math`.

With x = k log(2) + r and |r| <= log(2) / 2, exp(x) = 2**k exp(r).
"""

from __future__ import annotations

import math
from typing import Any

from numbridge.kernels.arithmetic.llvm_numbers import ROUND, Bits, Real, constant, ordered_sum, product, whole_sum

__all__ = ["LN2", "cosh", "exp", "exp2", "exp_in_two", "expm1", "scaled", "sinh", "tanh"]

_LARGEST = 709.782712893384  # whose exponential is finite
# log(2): its first 32 bits, so that a multiple by an exponent is exact, and the rest
LN2 = (0.6931471803691238, 1.9082149292705877e-10)
_LN2_REST = 2.3190468138462996e-17  # what log(2) has beyond its first 53 bits


def _power_of_two(k: Bits) -> Real:
    """Return 2**k, for what is an exponent of normal numbers."""
    return ((k + 1023) << 52).real()


def _exponential(x: Real, more: Any = 0.0) -> tuple[Bits, Real, Real]:
    """Return k, and exp(r) - 1 as the sum of two numbers, the second of which is little beside the first.

    It is that of x + more, where `more` is what x has lost.
    """
    rounded = x.fma(1 / math.log(2), ROUND)
    minus_k = ROUND - rounded
    high = minus_k.fma(LN2[0], x)
    low = minus_k.fma(LN2[1], more)
    r = high + low
    lost = low - (r - high)
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
    return scaled(first + second + 1.0, k + twos)


def scaled(x: Real, k: Bits) -> Real:
    """Return x times 2**k, in two steps: the result may be subnormal, or just below what is infinite."""
    half = ((k + 2048) >> 1) - 1024
    return x * _power_of_two(half) * _power_of_two(k - half)


def exp(x: Real) -> Real:
    return _scaled_exp(x, 0)


def exp_in_two(x: Real, more: Real) -> tuple[Real, Real, Bits]:
    """Return two numbers and k: their sum times 2**k is exp(x + more).

    x is in the range of `exp`, and `more` is what it has lost.
    """
    k, first, second = _exponential(x, more)
    total, lost = ordered_sum(1.0, first)
    return total, lost + second, k


def exp2(x: Real) -> Real:
    x = constant(x, -1080.0).if_(x < -1080.0, x)
    x = constant(x, 1030.0).if_(x > 1030.0, x)
    rounded = x + ROUND
    r = x - (rounded - ROUND)
    # (2**r - 1 - r log(2)) / r**2, error 2**-58
    q = r.polynomial(
        *(0.24022650695910072, 0.05550410866482164, 0.00961812910762849, 0.0013333558146401948),
        *(0.00015403530393348256, 1.5252733846887438e-05, 1.321548682822382e-06, 1.0178054646190482e-07),
        *(7.05488978044866e-09, 4.4562045742163423e-10, 2.5739967202518277e-11),
    )
    first, lost = product(r, math.log(2))
    total, more = ordered_sum(1.0, first)
    second = (r * r).fma(q, r.fma(_LN2_REST, lost))
    return scaled(total + (more + second), rounded.bits() - constant(x, ROUND).bits())


def expm1(x: Real) -> Real:
    clamped = constant(x, -40.0).if_(x < -40.0, x)
    clamped = constant(x, _LARGEST).if_(clamped > _LARGEST, clamped)
    k, first, second = _exponential(clamped)
    # Half of it, with what each sum loses: the exponent may be that of what is infinite.
    power = _power_of_two(k - 1)
    size, lost = whole_sum(first, second)
    total, more = whole_sum(power - 0.5, power * size)
    return constant(x, math.inf).if_(x > _LARGEST, 2.0 * (total + power.fma(lost, more))).signed_as(x)


def sinh(x: Real) -> Real:
    a = x.magnitude()
    e = expm1(a)
    return _scaled_exp(a, -1).if_(a > 40.0, 0.5 * (e + e / (e + 1.0))).signed_as(x)


def cosh(x: Real) -> Real:
    half = _scaled_exp(x.magnitude(), -1)
    return half + 0.25 / half


def tanh(x: Real) -> Real:
    a = x.magnitude()
    e = expm1(2.0 * constant(x, 20.0).if_(a > 20.0, a))
    return (e / (e + 2.0)).signed_as(x)
