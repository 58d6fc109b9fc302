"""Floating types of 8 and 16 bits for Numba: stored narrow, computed with in float32, rounded to nearest even when stored.

A value in a register is a float32; only loads and stores convert, by integer arithmetic that is the same on every CPU and on
CUDA. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typeconv import Conversion
from numba.extending import NativeValue, box, lower_cast, register_model, unbox

from numbridge.kernels.scalars import Scalar

__all__ = ["NarrowFloat", "bits_of", "narrow_float", "number_of", "register"]

_I32, _FLOAT, _DOUBLE, _I64 = ir.IntType(32), ir.FloatType(), ir.DoubleType(), ir.IntType(64)
_NAN, _INFINITY = 0x7FC00000, 0x7F800000


@dataclass(frozen=True)
class _Format:
    """How a number lies in its bits: how many there are, how many of them are mantissa, the bias, and whether there is inf."""

    bits: int
    mantissa: int
    bias: int
    has_infinity: bool


_FORMATS = {
    "float16": _Format(16, 10, 15, True),
    "bfloat16": _Format(16, 7, 127, True),
    "float8_e4m3fn": _Format(8, 3, 7, False),
    "float8_e5m2": _Format(8, 2, 15, True),
}


class NarrowFloat(types.Float):
    """A floating type that is only stored."""

    def __init__(self, name: str, form: _Format) -> None:
        self.form = form
        # Float's own constructor reads the width out of the name.
        types.Type.__init__(self, f"stored_{name}")
        self.bitwidth = form.bits

    def __str__(self) -> str:
        """Return what Numba asks NumPy for when it looks for a type that holds this number and another."""
        return "float32"

    def can_convert_to(self, typing_context: Any, other: Any) -> Any:
        """Arithmetic takes the number as a float32; anything wider will do."""
        if other == types.float32:
            return Conversion.promote
        # numba.cuda has functions of its float16, which would be taken, and compute with three digits and up to 65504.
        if str(other) == "float16":
            return None
        return Conversion.safe if isinstance(other, types.Float | types.Complex) else _unsafe(other)

    def can_convert_from(self, typing_context: Any, other: Any) -> Any:
        """Any real number may be stored."""
        return None if isinstance(other, types.Complex) else _unsafe(other)


def _unsafe(kind: Any) -> Any:
    return Conversion.unsafe if isinstance(kind, types.Number | types.Boolean) else None


def _named_and(attribute: str) -> Any:
    return property(lambda self: (self.name, getattr(self, attribute)))


# Numba tells what loops keep apart by names, in which all of these are float32: one array was read as another's type.
types.ArrayIterator.key = _named_and("array_type")
types.EnumerateType.key = _named_and("source_type")
types.ZipType.key = _named_and("source_types")
_TYPES = {name: NarrowFloat(name, form) for name, form in _FORMATS.items()}


def narrow_float(scalar: Scalar) -> Any:
    """Return the Numba type of a scalar of the dtype table that is only stored, or None for any other."""
    return _TYPES.get(scalar.name)


@register_model(NarrowFloat)
class _NarrowModel(models.DataModel):
    """A float in registers, an integer in memory."""

    def get_value_type(self) -> Any:
        return _FLOAT

    def get_data_type(self) -> Any:
        return ir.IntType(self._fe_type.form.bits)

    def as_data(self, builder: Any, value: Any) -> Any:
        return _encoded(builder, value, self._fe_type.form)

    def from_data(self, builder: Any, value: Any) -> Any:
        return _decoded(builder, value, self._fe_type.form)

    def as_argument(self, builder: Any, value: Any) -> Any:
        return value

    def from_argument(self, builder: Any, value: Any) -> Any:
        return value

    def as_return(self, builder: Any, value: Any) -> Any:
        return value

    def from_return(self, builder: Any, value: Any) -> Any:
        return value


@unbox(NarrowFloat)
def _unboxed(kind: Any, value: Any, c: Any) -> Any:
    """Take one from Python, which Numba compiles for every function of `njit` that a kernel calls with such a number."""
    wide = c.unbox(types.float64, value)
    return NativeValue(c.context.cast(c.builder, wide.value, types.float64, kind), is_error=wide.is_error)


@box(NarrowFloat)
def _boxed(kind: Any, value: Any, c: Any) -> Any:
    return c.box(types.float64, c.context.cast(c.builder, value, kind, types.float64))


def _decoded(builder: Any, stored: Any, form: _Format) -> Any:
    """Return the float32 of stored bits; every one is exact."""
    wide = builder.zext(stored, _I32)
    if form.bias == 127:
        return builder.bitcast(builder.shl(wide, _I32(16)), _FLOAT)
    magnitude = builder.and_(wide, _I32((1 << (form.bits - 1)) - 1))
    sign = builder.shl(builder.xor(wide, magnitude), _I32(32 - form.bits))
    shifted = builder.shl(magnitude, _I32(23 - form.mantissa))
    # The product corrects the exponent's bias, and normalises what was subnormal.
    scaled = builder.fmul(builder.bitcast(shifted, _FLOAT), _FLOAT(2.0 ** (127 - form.bias)))
    bits = builder.bitcast(scaled, _I32)
    highest = (1 << (form.bits - 1)) - (1 << form.mantissa) if form.has_infinity else (1 << (form.bits - 1)) - 1
    special = builder.or_(shifted, _I32(_INFINITY)) if form.has_infinity else _I32(_NAN)
    bits = builder.select(builder.icmp_unsigned(">=", magnitude, _I32(highest)), special, bits)
    return builder.bitcast(builder.or_(bits, sign), _FLOAT)


def _encoded(builder: Any, value: Any, form: _Format) -> Any:
    """Return the bits of a float32, rounded to nearest even; beyond the largest lies infinity, or NaN without one."""
    bits = builder.bitcast(value, _I32)
    magnitude = builder.and_(bits, _I32(0x7FFFFFFF))
    drop = 23 - form.mantissa
    odd = builder.and_(builder.lshr(magnitude, _I32(drop)), _I32(1))
    rounded = builder.lshr(builder.add(builder.add(magnitude, _I32((1 << (drop - 1)) - 1)), odd), _I32(drop))
    if form.bias != 127:
        rounded = builder.sub(rounded, _I32((127 - form.bias) << form.mantissa))
        # Adding a number whose last place is that of the subnormals lets the addition round.
        magic = _I32((127 + 24 - form.bias - form.mantissa) << 23)
        small = builder.fadd(builder.bitcast(magnitude, _FLOAT), builder.bitcast(magic, _FLOAT))
        subnormal = builder.sub(builder.bitcast(small, _I32), magic)
        is_small = builder.icmp_unsigned("<", magnitude, _I32((128 - form.bias) << 23))
        rounded = builder.select(is_small, subnormal, rounded)
    top = (1 << (form.bits - 1)) - (1 << form.mantissa) if form.has_infinity else (1 << (form.bits - 1)) - 1
    over = builder.icmp_unsigned(">", rounded, _I32(top))
    rounded = builder.select(over, _I32(top), rounded)
    nan = top | 1 << (form.mantissa - 1) if form.has_infinity else top
    is_nan = builder.icmp_unsigned(">", magnitude, _I32(_INFINITY))
    rounded = builder.select(is_nan, _I32(nan), rounded)
    sign = builder.lshr(builder.and_(bits, _I32(0x80000000)), _I32(32 - form.bits))
    return builder.trunc(builder.or_(rounded, sign), ir.IntType(form.bits))


def bits_of(builder: Any, value: Any, kind: NarrowFloat) -> Any:
    """Return the bits of a float32 or float64, rounded once to nearest even."""
    near = _rounded_to_odd(builder, value) if value.type == _DOUBLE else value
    return _encoded(builder, near, kind.form)


def number_of(builder: Any, bits: Any, kind: NarrowFloat) -> Any:
    """Return the float32 that such bits are."""
    return _decoded(builder, bits, kind.form)


def _to_number(context: Any, builder: Any, kind: Any, wanted: Any, value: Any) -> Any:
    return context.cast(builder, value, types.float32, wanted)


def _to_narrow(context: Any, builder: Any, kind: Any, wanted: Any, value: Any) -> Any:
    if kind == types.float32 or isinstance(kind, NarrowFloat):
        return value
    return _rounded_to_odd(builder, context.cast(builder, value, kind, types.float64))


def _rounded_to_odd(builder: Any, value: Any) -> Any:
    """Return the float32 of a float64 whose last bit tells that it is inexact: rounding once more is then right."""
    near = builder.fptrunc(value, _FLOAT)
    bits = builder.bitcast(near, _I32)
    back = builder.fpext(near, _DOUBLE)
    inexact = builder.and_(builder.fcmp_ordered("!=", back, value), builder.fcmp_ordered("ord", back, value))
    clear = _I64(0x7FFFFFFFFFFFFFFF)
    size, given = (builder.and_(builder.bitcast(v, _I64), clear) for v in (back, value))
    above = builder.zext(builder.icmp_unsigned(">", size, given), _I32)
    odd = builder.or_(builder.sub(bits, above), _I32(1))
    return builder.bitcast(builder.select(inexact, odd, bits), _FLOAT)


def register(lower: Any, kinds: Any) -> None:
    """Let a target convert, by its `lower_cast`, and give such numbers to NumPy's functions, by its module of types."""
    kinds.number_domain |= frozenset(_TYPES.values())
    for kind in (types.Float, types.Integer, types.Complex, types.Boolean):
        lower(NarrowFloat, kind)(_to_number)
        if kind is not types.Complex:
            lower(kind, NarrowFloat)(_to_narrow)
    # numba.cuda converts its own float16, as a Float, to and from every other: of two that fit, neither would be taken.
    for narrow in (NarrowFloat, types.float16), (types.float16, NarrowFloat):
        lower(*narrow)(_to_number if narrow[0] is NarrowFloat else _to_narrow)
    lower(NarrowFloat, NarrowFloat)(_to_narrow)


register(lower_cast, types)
