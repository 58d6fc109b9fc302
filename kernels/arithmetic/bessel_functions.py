"""Bessel functions of whole orders, in Python for kernels on the CPU: `j0`, `j1`, `jn` and `y0`, `y1`, `yn` of float64.

The formulas and coefficients are those of fdlibm's e_j0.c, e_j1.c and e_jn.c ("Copyright (C) 1993 by Sun Microsystems, Inc. All
rights reserved. Developed at SunSoft, a Sun Microsystems, Inc. business. Permission to use, copy, modify, and distribute this
software is freely granted, provided that this notice is preserved."). Below 2 they are quotients of polynomials of the square;
from there on a wave, whose size and phase are such quotients of 1 / x**2. Near zeros of the functions the error is small beside
the wave, not beside the result. Importing this module imports Numba.
"""

from __future__ import annotations

import math
from typing import Any

from numbridge.kernels.arithmetic.scalar_code import of_numbers, own

__all__ = ["FUNCTIONS"]

_sin: Any = own(math.sin)
_cos: Any = own(math.cos)
_log: Any = own(math.log)
_TWO_OVER_PI = 2 / math.pi
_ONE_OVER_ROOT_PI = 1 / math.sqrt(math.pi)
_SHALLOW = 1e9  # of the denominators of a continued fraction, from where it has all digits
_LARGE = 1e100
_UNDERFLOW = -750.0  # whose exponential is zero
# Of polynomials above and below the line, lowest coefficients first
_J0 = (
    (0.0, 0.015624999999999995, -0.00018997929423885472, 1.8295404953270067e-06, -4.618326885321032e-09),
    (1.0, 0.015619102946489001, 0.00011692678466333745, 5.135465502073181e-07, 1.1661400333379e-09),
)
_Y0 = (
    (
        -0.07380429510868723,
        0.17666645250918112,
        -0.01381856719455969,
        0.00034745343209368365,
        -3.8140705372436416e-06,
        1.9559013703502292e-08,
        -3.982051941321034e-11,
    ),
    (1.0, 0.01273048348341237, 7.600686273503533e-05, 2.591508518404578e-07, 4.4111031133267547e-10),
)
_J1 = (
    (0.0, -0.0625, 0.001407056669551897, -1.599556310840356e-05, 4.9672799960958445e-08),
    (
        1.0,
        0.019153759953836346,
        0.00018594678558863092,
        1.1771846404262368e-06,
        5.0463625707621704e-09,
        1.2354227442613791e-11,
    ),
)
_Y1 = (
    (-0.19605709064623894, 0.05044387166398113, -0.0019125689587576355, 2.352526005616105e-05, -9.190991580398789e-08),
    (
        1.0,
        0.01991673182366499,
        0.00020255258102513517,
        1.3560880109751623e-06,
        6.227414523646215e-09,
        1.6655924620799208e-11,
    ),
)
_P0 = (
    (  # from 8
        (0.0, -0.07031249999999004, -8.081670412753498, -257.06310567970485, -2485.216410094288, -5253.043804907295),
        (1.0, 116.53436461966818, 3833.7447536412183, 40597.857264847255, 116752.97256437592, 47627.728414673096),
    ),
    (  # from 4.5455
        (
            -1.141254646918945e-11,
            -0.07031249408735993,
            -4.159610644705878,
            -67.67476522651673,
            -331.23129964917297,
            -346.4333883656049,
        ),
        (1.0, 60.753938269230034, 1051.2523059570458, 5978.970943338558, 9625.445143577745, 2406.058159229391),
    ),
    (  # from 2.8571
        (
            -2.547046017719519e-09,
            -0.07031196163814817,
            -2.409032215495296,
            -21.96597747348831,
            -58.07917047017376,
            -31.44794705948885,
        ),
        (1.0, 35.85603380552097, 361.51398305030386, 1193.6078379211153, 1127.9967985690741, 173.58093081333575),
    ),
    (  # from 2
        (
            -8.875343330325264e-08,
            -0.07030309954836247,
            -1.4507384678095299,
            -7.635696138235278,
            -11.193166886035675,
            -3.2336457935133534,
        ),
        (1.0, 22.22029975320888, 136.2067942182152, 270.4702786580835, 153.87539420832033, 14.65761769482562),
    ),
)
_Q0 = (
    (  # from 8
        (0.0, 0.0732421874999935, 11.76820646822527, 557.6733802564019, 8859.197207564686, 37014.62677768878),
        (
            1.0,
            163.77602689568982,
            8098.344946564498,
            142538.29141912048,
            803309.2571195144,
            840501.5798190605,
            -343899.2935378666,
        ),
    ),
    (  # from 4.5455
        (
            1.8408596359451553e-11,
            0.07324217666126848,
            5.8356350896205695,
            135.11157728644983,
            1027.243765961641,
            1989.9778586460538,
        ),
        (
            1.0,
            82.77661022365378,
            2077.81416421393,
            18847.28877857181,
            56751.11228949473,
            35976.75384251145,
            -5354.342756019448,
        ),
    ),
    (  # from 2.8571
        (
            4.377410140897386e-09,
            0.07324111800429114,
            3.344231375161707,
            42.621844074541265,
            170.8080913405656,
            166.73394869665117,
        ),
        (
            1.0,
            48.75887297245872,
            709.689221056606,
            3704.1482262011136,
            6460.425167525689,
            2516.3336892036896,
            -149.2474518361564,
        ),
    ),
    (  # from 2
        (
            1.5044444488698327e-07,
            0.07322342659630793,
            1.99819174093816,
            14.495602934788574,
            31.666231750478154,
            16.252707571092927,
        ),
        (
            1.0,
            30.36558483552192,
            269.34811860804984,
            844.7837575953201,
            882.9358451124886,
            212.66638851179883,
            -5.3109549388266695,
        ),
    ),
)
_P1 = (
    (  # from 8
        (0.0, 0.11718749999998865, 13.239480659307358, 412.05185430737856, 3874.7453891396053, 7914.479540318917),
        (1.0, 114.20737037567841, 3650.9308342085346, 36956.206026903346, 97602.79359349508, 30804.27206278888),
    ),
    (  # from 4.5455
        (
            1.3199051955624352e-11,
            0.1171874931906141,
            6.802751278684329,
            108.30818299018911,
            517.6361395331998,
            528.7152013633375,
        ),
        (1.0, 59.28059872211313, 991.4014187336144, 5353.26695291488, 7844.690317495512, 1504.0468881036106),
    ),
    (  # from 2.8571
        (
            3.025039161373736e-09,
            0.11718686556725359,
            3.9329775003331564,
            35.11940355916369,
            91.05501107507813,
            48.55906851973649,
        ),
        (1.0, 34.79130950012515, 336.76245874782575, 1046.8713997577513, 890.8113463982564, 103.78793243963928),
    ),
    (  # from 2
        (
            1.0771083010687374e-07,
            0.11717621946268335,
            2.368514966676088,
            12.242610914826123,
            17.693971127168773,
            5.073523125888185,
        ),
        (1.0, 21.43648593638214, 125.29022716840275, 232.2764690571628, 117.6793732871471, 8.364638933716183),
    ),
)
_Q1 = (
    (  # from 8
        (0.0, -0.10253906249999271, -16.271753454459, -759.6017225139501, -11849.806670242959, -48438.512428575035),
        (
            1.0,
            161.3953697007229,
            7825.385999233485,
            133875.33628724958,
            719657.7236832409,
            666601.2326177764,
            -294490.26430383464,
        ),
    ),
    (  # from 4.5455
        (
            -2.089799311417641e-11,
            -0.10253905024137543,
            -8.05644828123936,
            -183.66960747488838,
            -1373.1937606550816,
            -2612.4444045321566,
        ),
        (
            1.0,
            81.27655013843358,
            1991.7987346048596,
            17468.48519249089,
            49851.42709103523,
            27948.075163891812,
            -4719.183547951285,
        ),
    ),
    (  # from 2.8571
        (
            -5.078312264617666e-09,
            -0.10253782982083709,
            -4.610115811394734,
            -57.847221656278364,
            -228.2445407376317,
            -219.21012847890933,
        ),
        (
            1.0,
            47.66515503237295,
            673.8651126766997,
            3380.1528667952634,
            5547.729097207228,
            1903.119193388108,
            -135.20119144430734,
        ),
    ),
    (  # from 2
        (
            -1.7838172751095887e-07,
            -0.10251704260798555,
            -2.7522056827818746,
            -19.663616264370372,
            -42.32531333728305,
            -21.371921170370406,
        ),
        (
            1.0,
            29.533362906052385,
            252.98154998219053,
            757.5028348686454,
            739.3932053204672,
            155.94900333666612,
            -4.959498988226282,
        ),
    ),
)


@of_numbers
def _polynomial(z, coefficients):
    total = coefficients[-1]
    for k in range(len(coefficients) - 2, -1, -1):
        total = total * z + coefficients[k]
    return total


@of_numbers
def _ratio(z, above, below):
    return _polynomial(z, above) / _polynomial(z, below)


def _by_place(table: tuple[Any, ...]) -> Any:
    """Return the quotient of 1 / x**2 that is right where x lies."""
    (above_8, below_8), (above_5, below_5), (above_3, below_3), (above_2, below_2) = table

    @of_numbers
    def found(x):
        z = 1.0 / (x * x)
        if x >= 8.0:
            return _ratio(z, above_8, below_8)
        if x >= 4.5454:
            return _ratio(z, above_5, below_5)
        if x >= 2.8570:
            return _ratio(z, above_3, below_3)
        return _ratio(z, above_2, below_2)

    return found


_p0, _q0, _p1, _q1 = map(_by_place, (_P0, _Q0, _P1, _Q1))
_above_j0, _below_j0 = _J0
_above_j1, _below_j1 = _J1
_above_y0, _below_y0 = _Y0
_above_y1, _below_y1 = _Y1


@of_numbers
def _wave(x):
    """Return the sum and the difference of sine and cosine, neither as a difference of numbers that are nearly the same."""
    s, c = _sin(x), _cos(x)
    total, difference = s + c, s - c
    if x < 8e307:
        of_twice = -_cos(x + x)
        if s * c < 0.0:
            total = of_twice / difference
        else:
            difference = of_twice / total
    return total, difference


@of_numbers
def _wave_0(x):
    """Return what j0 and y0 are, from 2 on."""
    total, difference = _wave(x)
    size, turned = 1.0 + _p0(x), (-0.125 + _q0(x)) / x
    scale = _ONE_OVER_ROOT_PI / math.sqrt(x)
    return scale * (size * total - turned * difference), scale * (size * difference + turned * total)


@of_numbers
def _wave_1(x):
    total, difference = _wave(x)
    size, turned = 1.0 + _p1(x), (0.375 + _q1(x)) / x
    scale = _ONE_OVER_ROOT_PI / math.sqrt(x)
    return scale * (size * difference + turned * total), scale * (turned * difference - size * total)


@of_numbers
def _j0(x):
    x = abs(x)
    if math.isinf(x):
        return 0.0
    if x >= 2.0:
        return _wave_0(x)[0]
    z = x * x
    rest = _ratio(z, _above_j0, _below_j0)
    if x < 1.0:
        return 1.0 + z * (-0.25 + rest)
    return (1.0 + 0.5 * x) * (1.0 - 0.5 * x) + z * rest


@of_numbers
def _y0(x):
    if x == 0.0:
        return -math.inf
    if not x > 0.0 or math.isinf(x):
        return 0.0 if x > 0.0 else math.nan
    if x >= 2.0:
        return _wave_0(x)[1]
    return _ratio(x * x, _above_y0, _below_y0) + _TWO_OVER_PI * (_j0(x) * _log(x))


@of_numbers
def _j1(x):
    a = abs(x)
    if math.isinf(a):
        return math.copysign(0.0, x)
    if a >= 2.0:
        size = _wave_1(a)[0]
        return -size if x < 0.0 else size
    z = x * x
    return x * (0.5 + _ratio(z, _above_j1, _below_j1))


@of_numbers
def _y1(x):
    if x == 0.0:
        return -math.inf
    if not x > 0.0 or math.isinf(x):
        return 0.0 if x > 0.0 else math.nan
    if x >= 2.0:
        return _wave_1(x)[1]
    return x * _ratio(x * x, _above_y1, _below_y1) + _TWO_OVER_PI * (_j1(x) * _log(x) - 1.0 / x)


@of_numbers
def _upward(n, x, before, now):
    """Return what follows of two neighbours, up to order n."""
    for k in range(1, n):
        if now == -math.inf:
            break
        before, now = now, now * (float(2 * k) / x) - before
    return now


@of_numbers
def _fraction(n, x):
    """Return J(n) / J(n - 1) as a continued fraction, of as many terms as it takes."""
    step, term = 2.0 / x, 2.0 * n / x
    before, now = term, term * (term + step) - 1.0
    last, count = term + step, 1
    while now < _SHALLOW:
        count += 1
        last += step
        before, now = now, last * now - before
    found = 0.0
    for k in range(n + count, n - 1, -1):
        found = 1.0 / (2.0 * k / x - found)
    return found


@of_numbers
def _downward(n, x):
    """Return J(n) for n > x, from which smaller orders follow without a loss; j0 and j1 tell the scale."""
    if n * (1.0 + _log(0.5 * x / n)) < _UNDERFLOW:
        return 0.0
    fraction = _fraction(n, x)
    after, now, scale = fraction, 1.0, fraction
    for k in range(n - 1, 0, -1):
        after, now = now, now * (2.0 * k) / x - after
        if now > _LARGE:
            after, scale, now = after / now, scale / now, 1.0
    first, second = _j0(x), _j1(x)
    return scale * first / now if abs(first) >= abs(second) else scale * second / after


@of_numbers
def _tiny(n, x):
    """Return the first term of the series, (x / 2)**n / n!."""
    found = 1.0
    for k in range(1, n + 1):
        found = found * (0.5 * x) / k
        if found == 0.0:
            break
    return found


@of_numbers
def _jn(n, x):
    if n < 0:
        return math.nan  # as CUDA has it
    if n == 0:
        return _j0(x)
    if n == 1:
        return _j1(x)
    a = abs(x)
    if math.isinf(a):
        size = 0.0
    elif a < 1e-8:
        size = _tiny(n, a)
    elif n <= a:
        size = _upward(n, a, _j0(a), _j1(a))
    elif a > 0.0:
        size = _downward(n, a)
    else:
        size = math.nan
    return -size if x < 0.0 and n % 2 == 1 else size


@of_numbers
def _yn(n, x):
    if n < 0:
        return math.nan
    if n == 0:
        return _y0(x)
    if n == 1 or not x > 0.0 or math.isinf(x):
        return _y1(x)
    return _upward(n, x, _y0(x), _y1(x))


FUNCTIONS: dict[str, Any] = {"j0": _j0, "j1": _j1, "jn": _jn, "y0": _y0, "y1": _y1, "yn": _yn}
