"""Functions that libdevice has and Python has not, in Python for kernels on the CPU: of float64, whose rounding serves float32.

The quantiles of the normal distribution, of which the inverse error functions are others, are by M. J. Wichura, Algorithm AS 241,
Applied Statistics 37 (1988), with the coefficients that Python's `statistics.NormalDist` has, too. Importing this module imports
Numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from numbridge.kernels.arithmetic import double_errors
from numbridge.kernels.arithmetic.llvm_numbers import Real
from numbridge.kernels.arithmetic.scalar_code import fma, of_numbers, own

__all__ = ["EITHER", "FUNCTIONS"]

_exp: Any = own(math.exp)
_log: Any = own(math.log)
_erfc: Any = own(math.erfc)
_sin: Any = own(math.sin)
_cos: Any = own(math.cos)
_pow: Any = own(math.pow)
_cbrt: Any = own(np.cbrt)

_LOG_2 = math.log(2)
_ROOT_HALF, _ROOT_HALF_REST = 0.7071067811865476, -4.833646656726457e-17
_BEGIN, _END = double_errors.ERFCX_RANGE
_PI_REST = 1.2246467991473532e-16
_ONE_OVER_ROOT_PI = 1 / math.sqrt(math.pi)


# Quantiles


@of_numbers
def _middle(q):
    """Return the quantile of 0.5 + q, for what is not far from zero."""
    r = 0.180625 - q * q
    above = 2509.0809287301226727 * r + 33430.575583588128105
    above = ((above * r + 67265.770927008700853) * r + 45921.953931549871457) * r + 13731.693765509461125
    above = ((above * r + 1971.5909503065514427) * r + 133.14166789178437745) * r + 3.3871328727963666080
    below = 5226.4952788528545610 * r + 28729.085735721942674
    below = ((below * r + 39307.895800092710610) * r + 21213.794301586595867) * r + 5394.1960214247511077
    below = ((below * r + 687.18700749205790830) * r + 42.313330701600911252) * r + 1.0
    return above / below * q


@of_numbers
def _near_tail(r):
    above = 7.7454501427834140764e-4 * r + 2.2723844989269184583e-2
    above = ((above * r + 0.24178072517745061177) * r + 1.2704582524523683826) * r + 3.6478483247632046050
    above = ((above * r + 5.7694972214606914055) * r + 4.6303378461565452959) * r + 1.4234371107496835773
    below = 1.0507500716444168432e-9 * r + 5.4759380849953449460e-4
    below = ((below * r + 1.5198666563616457197e-2) * r + 0.14810397642748007459) * r + 0.68976733498510000455
    below = ((below * r + 1.6763848301838038494) * r + 2.0531916266377588219) * r + 1.0
    return above / below


@of_numbers
def _far_tail(r):
    above = 2.0103343992922881327e-7 * r + 2.7115555687434875782e-5
    above = ((above * r + 1.2426609473880784386e-3) * r + 2.6532189526576123093e-2) * r + 0.29656057182850489123
    above = ((above * r + 1.7848265399172913358) * r + 5.4637849111641143699) * r + 6.6579046435011037772
    below = 2.0442631033899397856e-15 * r + 1.4215117583164458887e-7
    below = ((below * r + 1.8463183175100546818e-5) * r + 7.8686913114561325910e-4) * r + 1.4875361290850614853e-2
    below = ((below * r + 0.13692988092273580531) * r + 0.59983220655588793769) * r + 1.0
    return above / below


@of_numbers
def _tail(minus_log):
    """Return the size of the quantile of a probability, of which the logarithm is known."""
    r = math.sqrt(minus_log)
    return _near_tail(r - 1.6) if r <= 5.0 else _far_tail(r - 5.0)


@of_numbers
def _normcdfinv(p):
    if not 0.0 < p < 1.0:
        return math.copysign(math.inf, p - 0.5) if p == 0.0 or p == 1.0 else math.nan
    q = p - 0.5
    if abs(q) <= 0.425:
        return _middle(q)
    size = _tail(-_log(p if q < 0.0 else 1.0 - p))
    return -size if q < 0.0 else size


@of_numbers
def _erfinv(x):
    a = abs(x)
    if not a < 1.0:
        return math.copysign(math.inf, x) if a == 1.0 else math.nan
    if a <= 0.85:
        return _middle(0.5 * x) * _ROOT_HALF
    return math.copysign(_tail(_LOG_2 - _log(1.0 - a)) * _ROOT_HALF, x)


@of_numbers
def _erfcinv(x):
    if not 0.0 < x < 2.0:
        return math.copysign(math.inf, 1.0 - x) if x == 0.0 or x == 2.0 else math.nan
    q = 1.0 - x
    if abs(q) <= 0.85:
        return _middle(0.5 * q) * _ROOT_HALF
    size = _tail(_LOG_2 - _log(x if q > 0.0 else 2.0 - x)) * _ROOT_HALF
    return size if q > 0.0 else -size


# Error functions


@of_numbers
def _exp_of_square(x):
    square = x * x
    found = _exp(square)
    return found if math.isinf(found) else found * (1.0 + fma(x, x, -square))


@intrinsic
def _scaled_tail(typing_context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return double_errors.erfcx(Real(builder, arguments[0])).value

    return types.float64(types.float64), generate


@of_numbers
def _erfcx(x):
    """Return exp(x**2) erfc(x)."""
    a = abs(x)
    if a > _END:
        # Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.23
        z = 0.5 / (a * a)
        series = 1.0 - z * (1.0 - 3.0 * z * (1.0 - 5.0 * z * (1.0 - 7.0 * z * (1.0 - 9.0 * z * (1.0 - 11.0 * z)))))
        found = _ONE_OVER_ROOT_PI / a * series
    elif a < _BEGIN:
        return _exp_of_square(x) * _erfc(x)
    else:
        found = _scaled_tail(a)
    return 2.0 * _exp_of_square(x) - found if x < 0.0 else found


@of_numbers
def _normcdf(x):
    if abs(x) > 40.0:
        return 1.0 if x > 0.0 else 0.0
    # With what the argument loses: far out, the function changes by much more than its argument.
    z = -x * _ROOT_HALF
    lost = fma(-x, _ROOT_HALF, -z) - x * _ROOT_HALF_REST
    return 0.5 * _erfc(z) - _ONE_OVER_ROOT_PI * _exp(-z * z) * lost


# Circular functions of multiples of pi


@of_numbers
def _turn(x):
    """Return the eighth in which x right angles times two lie, and the sine and cosine of the rest."""
    x = x - 2.0 * np.rint(0.5 * x)
    quarter = np.rint(2.0 * x)
    rest = x - 0.5 * quarter
    angle = rest * math.pi
    lost = fma(rest, math.pi, -angle) + rest * _PI_REST
    s, c = _sin(angle), _cos(angle)
    return np.int64(quarter) & 3, s + lost * c, c - lost * s


@of_numbers
def _sinpi(x):
    if not math.isfinite(x):
        return math.nan
    quarter, s, c = _turn(x)
    found = c if quarter & 1 else s
    found = -found if quarter & 2 else found
    return math.copysign(0.0, x) if found == 0.0 else found


@of_numbers
def _cospi(x):
    if not math.isfinite(x):
        return math.nan
    quarter, s, c = _turn(x)
    found = -s if quarter & 1 else c
    found = -found if quarter & 2 else found
    return 0.0 if found == 0.0 else found


@of_numbers
def _both_pi(x):
    return _sinpi(x), _cospi(x)


# Others


@of_numbers
def _exp10(x):
    return _pow(10.0, x)


@of_numbers
def _rsqrt(x):
    return type(x)(1) / math.sqrt(x)


@of_numbers
def _rcbrt(x):
    return type(x)(1) / _cbrt(x)


@of_numbers
def _fdivide(x, y):
    return x / y


FUNCTIONS: dict[str, Any] = {
    "erfinv": _erfinv,
    "erfcinv": _erfcinv,
    "erfcx": _erfcx,
    "normcdf": _normcdf,
    "normcdfinv": _normcdfinv,
    "sinpi": _sinpi,
    "cospi": _cospi,
    "sincospi": _both_pi,
    **dict.fromkeys(("exp10", "fast_exp10f"), _exp10),
    "lgamma": math.lgamma,
    "tgamma": math.gamma,
}
"""Name → a function of float64."""

EITHER: dict[str, Any] = {"rsqrt": _rsqrt, "rcbrt": _rcbrt, "fast_fdividef": _fdivide}
"""Name → a function of float32 and of float64."""
