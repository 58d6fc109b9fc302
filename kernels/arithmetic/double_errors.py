"""The error function of float64, for `double_math`: a polynomial near zero, else exp(-x**2) times one of (x - 4) / (x + 4).

The latter as by M. M. Shepherd and J. G. Laframboise, Mathematics of Computation 36 (1981).
"""

from __future__ import annotations

from numbridge.kernels.arithmetic.double_exponentials import exp_in_two, scaled
from numbridge.kernels.arithmetic.llvm_numbers import Real, constant, ordered_sum, product

__all__ = ["ERFCX_RANGE", "erf", "erfc", "erfcx"]

_NEAR = 0.625
ERFCX_RANGE = (_NEAR, 27.5)
_SLOPE = (1.1283791670955126, 1.533545961316588e-17)  # of the error function at zero


def _bend(x: Real) -> Real:
    """Return what x times the first of `_SLOPE` lacks of the error function, near zero."""
    z = x * x
    # (erf(x) / x - erf'(0)) / x**2, error 2**-56.6 up to 1
    p = z.polynomial(
        *(-0.37612638903183615, 0.11283791670947081, -0.02686617064349997, 0.005223977608935061),
        *(-0.0008548326051849328, 0.00012055296957794711, -1.4924772890721487e-05, 1.644783460274349e-06),
        *(-1.621140830062562e-07, 1.373193383615524e-08, -7.816808626168803e-10),
    )
    return x * z.fma(p, _SLOPE[1])


def _ratio(a: Real) -> tuple[Real, Real]:
    """Return exp(a**2) erfc(a) of what lies in `ERFCX_RANGE`, and what that has lost."""
    t = (a - 4.0) / (a + 4.0)
    # ((1 + 2 a) exp(a**2) erfc(a) - p(0)) / t, error 2**-59
    q = t.polynomial(
        *(-0.13962111684056253, 0.015379652102619676, 0.06809705425469538, -0.1010390660363008),
        *(0.0937328349982534, -0.06633036581229243, 0.037167515539046396, -0.016197734056954658),
        *(0.005031969964014438, -0.0007577732946025529, -0.0001992566192227714, 0.0001506217066035495),
        *(-2.4399469710925355e-05, -1.122214838958846e-05, 5.710269712859478e-06, 2.9413007223636163e-07),
        *(-8.260807691007899e-07, 7.409496996950106e-08, 1.1042744281213011e-07, -1.7424501630341907e-08),
        *(-1.4097608003107149e-08, 1.6510095419982054e-09, 1.192493875516179e-09),
    )
    above, above_lost = ordered_sum(1.2329951186255526, t * q)
    below = a.fma(2.0, 1.0)
    below_lost = 1.0 - (below - 2.0 * a)
    inverse = 1.0 / below
    ratio = above * inverse
    return ratio, inverse * ((-ratio).fma(below, above) + (-ratio).fma(below_lost, above_lost))


def erfcx(a: Real) -> Real:
    """Return exp(a**2) erfc(a) of what lies in `ERFCX_RANGE`."""
    return _ratio(a)[0]


def _tail(a: Real) -> Real:
    """Return the complementary error function of what is not near zero."""
    # From here on it is zero.
    a = constant(a, ERFCX_RANGE[1]).if_(a > ERFCX_RANGE[1], a)
    ratio, ratio_lost = _ratio(a)
    square, lost = product(a, -a)
    power, power_lost, k = exp_in_two(square, lost)
    size, size_lost = product(power, ratio)
    return scaled(size + power.fma(ratio_lost, power_lost.fma(ratio, size_lost)), k)


def erfc(x: Real) -> Real:
    a = x.magnitude()
    first, lost = product(x, _SLOPE[0])
    total, more = ordered_sum(1.0, -first)
    near = total + (more - (lost + _bend(x)))
    tail = _tail(a)
    return near.if_(a < _NEAR, (2.0 - tail).if_(x < 0.0, tail))


def erf(x: Real) -> Real:
    a = x.magnitude()
    return a.fma(_SLOPE[0], _bend(a)).if_(a < _NEAR, 1.0 - _tail(a)).signed_as(x)
