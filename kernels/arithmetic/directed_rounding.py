"""Arithmetic whose results are rounded down, up or towards zero, and conversions of numbers, as CUDA's intrinsics have them.

A result that is rounded to the nearest number is compared with the exact one: what it has lost is found without an error, of
float32 in float64, of float64 with fused operations (S. Boldo and J.-M. Muller, IEEE Transactions on Computers 60, 2011), scaled
where that could be out of range. Then the result is the right one or a neighbour of it. Importing this module imports Numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbridge.kernels.arithmetic.scalar_code import fma, of_numbers

__all__ = ["CONVERSIONS", "DIRECTIONS", "OPERATIONS"]

DIRECTIONS = ("rd", "rn", "ru", "rz")
_F32, _F64, _I64 = np.float32, np.float64, np.int64
_U64: Any = np.uint64
_FROM = 2.0**-900  # what a product has lost is in range above
_HALFWAY, _AGAIN = 2.0**500, 2.0**600
_FAR = 300  # binary places, which no two numbers bridge that are added


# Which neighbour: `lost` is what the exact result is more than the rounded one, or has its sign.


@of_numbers
def _down(r, lost):
    return np.nextafter(r, type(r)(-np.inf)) if lost < 0 else r


@of_numbers
def _up(r, lost):
    return np.nextafter(r, type(r)(np.inf)) if lost > 0 else r


@of_numbers
def _in(r, lost):
    return np.nextafter(r, type(r)(0)) if (r > 0 and lost < 0) or (r < 0 and lost > 0) else r


_STEPS = {"rd": _down, "ru": _up, "rz": _in}


# What the operations lose


@of_numbers
def _sum_lost(x, y, total):
    return y - (total - x) if abs(x) >= abs(y) else x - (total - y)


@of_numbers
def _product_lost(x, y, r):
    if r == 0.0:
        return math.copysign(1.0, x) * math.copysign(1.0, y) if x != 0.0 and y != 0.0 else 0.0
    if abs(r) < _FROM:
        small, large = (x, y) if abs(x) < abs(y) else (y, x)
        return fma(small * _AGAIN, large, -(r * _AGAIN))
    return fma(x, y, -r)


@of_numbers
def _quotient_lost(x, y, r):
    if abs(x) >= 1.0 / _HALFWAY or x == 0.0:
        lost = fma(-r, y, x)
    elif abs(y) < 1.0:
        lost = fma(-r, y * _HALFWAY, x * _HALFWAY)
    else:
        lost = fma(-(r * _HALFWAY), y, x * _HALFWAY)
    return -lost if y < 0.0 else lost


@of_numbers
def _root_lost(x, r):
    if x < _FROM:
        r = r * _HALFWAY
        return fma(-r, r, x * _HALFWAY * _HALFWAY)
    return fma(-r, r, x)


@of_numbers
def _two_sum(a, b):
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@of_numbers
def _fused_lost(x, y, z, r):
    """Return a number with the sign of x * y + z - r.

    That is the largest part of an expansion (J. R. Shewchuk, Discrete & Computational Geometry 18, 1997).
    """
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)) or x == 0.0 or y == 0.0:
        return 0.0
    if math.isinf(r):
        return -r
    of_x, at_x = math.frexp(x)
    of_y, at_y = math.frexp(y)
    of_z, at_z = math.frexp(z)
    high = of_x * of_y
    low = fma(of_x, of_y, -high)
    at = at_x + at_y
    away = at_z - at
    if z != 0.0 and away > _FAR:
        return high
    third = math.ldexp(of_z, max(away, -_FAR))
    last, first = _two_sum(third, low)
    last, second = _two_sum(last, high)
    more, first = _two_sum(-math.ldexp(r, -at), first)
    more, second = _two_sum(more, second)
    more, last = _two_sum(more, last)
    if more != 0.0:
        return more
    if last != 0.0:
        return last
    return second if second != 0.0 else first


@of_numbers
def _are_opposite(a, b):
    return math.copysign(1.0, a) != math.copysign(1.0, b)


def _doubles(way: str) -> dict[str, Any]:
    """Return the operations of float64 that are rounded in a direction."""
    step, down = _STEPS[way], way == "rd"

    @of_numbers
    def add(x, y):
        r = x + y
        # Opposite numbers make negative zero when everything is rounded down.
        return -0.0 if down and r == 0.0 and _are_opposite(x, y) else step(r, _sum_lost(x, y, r))

    @of_numbers
    def mul(x, y):
        r = x * y
        return step(r, _product_lost(x, y, r))

    @of_numbers
    def div(x, y):
        r = x / y
        return step(r, _quotient_lost(x, y, r))

    @of_numbers
    def rcp(x):
        return div(1.0, x)

    @of_numbers
    def sqrt(x):
        r = math.sqrt(x)
        return step(r, _root_lost(x, r))

    @of_numbers
    def fused(x, y, z):
        r = fma(x, y, z)
        lost = _fused_lost(x, y, z, r)
        if (
            down
            and r == 0.0
            and lost == 0.0
            and math.copysign(1.0, x) * math.copysign(1.0, y) * math.copysign(1.0, z) < 0.0
        ):
            return -0.0
        return step(r, lost)

    return {f"dadd_{way}": add, f"dmul_{way}": mul, f"ddiv_{way}": div} | {
        f"drcp_{way}": rcp,
        f"dsqrt_{way}": sqrt,
        f"fma_{way}": fused,
    }


def _narrow(way: str) -> Any:
    """Return what rounds the sum of two float64 numbers to float32, of which the second is what the first has lost."""
    step = _STEPS[way]

    @of_numbers
    def narrow(number, more):
        r = _F32(number)
        lost = number - _F64(r)
        return step(r, more if lost == 0.0 else lost)

    return narrow


def _floats(way: str) -> dict[str, Any]:
    """Return the operations of float32 that are rounded in a direction."""
    step, narrow, down = _STEPS[way], _narrow(way), way == "rd"

    @of_numbers
    def fused(x, y, z):
        product, third = _F64(x) * _F64(y), _F64(z)
        total, more = _two_sum(product, third)
        if down and total == 0.0 and _are_opposite(product, third):
            return _F32(-0.0)
        return narrow(total, more)

    @of_numbers
    def add(x, y):
        return fused(x, _F32(1), y)

    @of_numbers
    def sub(x, y):
        return fused(x, _F32(1), -y)

    @of_numbers
    def mul(x, y):
        return narrow(_F64(x) * _F64(y), 0.0)

    @of_numbers
    def div(x, y):
        r = x / y
        lost = _F64(x) - _F64(r) * _F64(y)
        return step(r, -lost if y < 0 else lost)

    @of_numbers
    def rcp(x):
        return div(_F32(1), x)

    @of_numbers
    def sqrt(x):
        r = _F32(math.sqrt(x))
        return step(r, _F64(x) - _F64(r) * _F64(r))

    return {f"fadd_{way}": add, f"fsub_{way}": sub, f"fmul_{way}": mul, f"fdiv_{way}": div} | {
        f"frcp_{way}": rcp,
        f"fsqrt_{way}": sqrt,
        f"fmaf_{way}": fused,
    }


@of_numbers
def _add(x, y):
    return x + y


@of_numbers
def _sub(x, y):
    return x - y


@of_numbers
def _mul(x, y):
    return x * y


@of_numbers
def _div(x, y):
    return x / y


@of_numbers
def _rcp(x):
    return type(x)(1) / x


@of_numbers
def _sqrt(x):
    return math.sqrt(x)


@of_numbers
def _rsqrt(x):
    """Return 1 / sqrt(x) for float32, rounded to the nearest: the middles between neighbours decide."""
    wide = _F64(x)
    r = _F32(1.0 / math.sqrt(wide))
    below, above = _F64(np.nextafter(r, _F32(0))), _F64(np.nextafter(r, _F32(np.inf)))
    under, over = 0.5 * (below + _F64(r)), 0.5 * (above + _F64(r))
    if fma(over * over, wide, -1.0) < 0.0:
        return _F32(above)
    return _F32(below) if fma(under * under, wide, -1.0) > 0.0 else r


_NEAREST = {"add": _add, "sub": _sub, "mul": _mul, "div": _div, "rcp": _rcp, "sqrt": _sqrt}


def _nearest() -> dict[str, Any]:
    """Return the operations that are rounded to the nearest, which is how everything is."""
    found = {f"{kind}{name}_rn": function for kind in "df" for name, function in _NEAREST.items()}
    del found["dsub_rn"]  # which libdevice has not
    return found | {"fma_rn": fma, "fmaf_rn": fma, "fma": fma, "fmaf": fma, "frsqrt_rn": _rsqrt}


OPERATIONS: dict[str, Any] = _nearest()
for _way in _STEPS:
    OPERATIONS |= _doubles(_way) | _floats(_way)


# Conversions


_WHOLE = {"rd": np.floor, "rn": np.rint, "ru": np.ceil, "rz": np.trunc}


def _to_integer(whole: Any, bits: int, *, signed: bool, missing: int) -> Any:
    """Return what makes an integer of a number; too large ones give the largest, and what is no number gives `missing`.

    So it is with PTX's ``cvt`` (PTX ISA, 9.7.9). Unsigned integers are returned as signed ones of the same bits.
    """
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, -1)
    half = 2.0**63

    @of_numbers
    def integer(x):
        number = whole(x)
        if number != number:
            return _I64(missing)
        if number <= low:
            return _I64(least)
        if number >= high:
            return _I64(most)
        # What int64 has not is unsigned.
        return _I64(number - half) ^ _I64(-(2**63)) if number >= half else _I64(number)

    return integer


@of_numbers
def _in_two(high, low):
    return _two_sum(_F64(high) * 4294967296.0, _F64(low))


@of_numbers
def _parts(x):
    """Return a signed integer as the sum of two float64 numbers."""
    return _in_two(_I64(x) >> 32, _I64(x) & 0xFFFFFFFF)


@of_numbers
def _parts_unsigned(x):
    return _in_two((x >> 32) & 0xFFFFFFFF, x & 0xFFFFFFFF)


def _from_integer(way: str, *, narrow: bool, unsigned: int) -> Any:
    """Return what makes a number of an integer, whose bits are an unsigned one's if `unsigned` says how many."""
    parts = _parts_unsigned if unsigned == 64 else _parts
    mask = 0xFFFFFFFF if unsigned == 32 else -1
    if way == "rn":
        kind = _F32 if narrow else _F64
        if unsigned == 64:
            return of_numbers(lambda x: kind(_U64(x)))
        return of_numbers(lambda x: kind(_I64(x) & mask))
    finish = _narrow(way) if narrow else _STEPS[way]

    @of_numbers
    def number(x):
        total, more = parts(_I64(x) & mask)
        return finish(total, more)

    return number


@of_numbers
def _nearest_narrow(number, more):
    return _F32(number)


def _narrowing(way: str) -> Any:
    narrow = _nearest_narrow if way == "rn" else _narrow(way)

    @of_numbers
    def narrowed(x):
        return narrow(x, 0.0)

    return narrowed


def _conversions() -> dict[str, Any]:
    found: dict[str, Any] = {}
    integers = {"int": (32, True), "uint": (32, False), "ll": (64, True), "ull": (64, False)}
    for way in DIRECTIONS:
        found[f"double2float_{way}"] = _narrowing(way)
        for name, (bits, signed) in integers.items():
            for kind in ("float", "double"):
                # Zero if neither is of 64 bits, else only the first bit is set.
                missing = 0 if (kind, bits) == ("float", 32) else -(1 << bits - 1)
                made = _to_integer(_WHOLE[way], bits, signed=signed, missing=missing)
                found[f"{kind}2{name}_{way}"] = made
                unsigned = 0 if signed else bits
                found[f"{name}2{kind}_{way}"] = _from_integer(way, narrow=kind == "float", unsigned=unsigned)
    return found


CONVERSIONS: dict[str, Any] = _conversions()
