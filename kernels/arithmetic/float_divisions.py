"""Divisions, remainders, powers and rounding of floating-point numbers, where Numba's code differs from NumPy or Python.

What is here serves the CPU and CUDA alike: functions that generate code, and some that take what generates Numba's code and
return what does instead. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

__all__ = [
    "any_exponent",
    "copied_sign",
    "expm1",
    "floored",
    "in_all_digits",
    "of_operation",
    "spacing",
    "zero_powers",
]

Generate = Callable[..., Any]


def of_operation(operation: Any) -> Generate:
    """Return what generates a loop of a NumPy function with the code of an operation."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.get_function(operation, signature)(builder, values)

    return generate


def copied_sign(builder: Any, size: Any, sign: Any) -> Any:
    """Return a number with the sign of another; NVVM does not have LLVM's intrinsic for that."""
    bits = ir.IntType(32 if isinstance(size.type, ir.FloatType) else 64)
    of_sign = ir.Constant(bits, 1 << (bits.width - 1))
    of_size = ir.Constant(bits, (1 << (bits.width - 1)) - 1)
    parts = builder.and_(builder.bitcast(size, bits), of_size), builder.and_(builder.bitcast(sign, bits), of_sign)
    return builder.bitcast(builder.or_(*parts), size.type)


def floored(builder: Any, x: Any, y: Any, rest: Any, floor: Callable[..., Any]) -> tuple[Any, Any]:
    """Return ``x // y`` and ``x % y`` in terms of ``fmod(x, y)``, as Python and NumPy do it."""
    zero, half, one = (ir.Constant(x.type, number) for number in (0.0, 0.5, 1.0))
    # Where the divisor is zero, the remainder is NaN, and the quotient infinite.
    exact = builder.select(builder.fcmp_ordered("==", y, zero), x, builder.fsub(x, rest))
    quotient = builder.fdiv(exact, y)
    left = builder.fcmp_unordered("!=", rest, zero)
    differs = builder.xor(builder.fcmp_ordered("<", rest, zero), builder.fcmp_ordered("<", y, zero))
    corrected = builder.and_(left, differs)
    quotient = builder.select(corrected, builder.fsub(quotient, one), quotient)
    whole = floor(quotient)
    above = builder.fcmp_ordered(">", builder.fsub(quotient, whole), half)
    whole = builder.select(above, builder.fadd(whole, one), whole)
    sign = copied_sign(builder, one, x), copied_sign(builder, one, y)
    none = builder.fmul(zero, builder.fmul(*sign))
    remainder = builder.select(left, rest, copied_sign(builder, zero, y))
    return (
        builder.select(builder.fcmp_unordered("!=", quotient, zero), whole, none),
        builder.select(corrected, builder.fadd(rest, y), remainder),
    )


def in_all_digits(generate: Generate) -> Generate:
    """Return code for ``round(x, n)`` that takes any `n`, and rounds in float64, as Python does.

    Numba's multiplies zeros by powers of ten that are infinite, and makes products that are too large for float32 infinite.
    """

    def rounded(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind, given = signature.args
        if kind == types.float32:
            wide = context.get_function(round, types.float64(types.float64, given))
            found = wide(builder, (context.cast(builder, values[0], kind, types.float64), values[1]))
            return context.cast(builder, found, types.float64, kind)
        x, digits = values
        count = context.cast(builder, digits, given, types.int64)
        # The powers of ten between which doubles lie
        most, least = (ir.Constant(count.type, number) for number in (323, -308))
        many, few = builder.icmp_signed(">", count, most), builder.icmp_signed("<", count, least)
        zero = ir.Constant(x.type, 0.0)
        finite = builder.fcmp_ordered("==", builder.fsub(x, x), zero)
        none = builder.select(finite, copied_sign(builder, zero, x), x)
        found = generate(context, builder, signature, values)
        return builder.select(many, x, builder.select(few, none, found))

    return rounded


def spacing(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Generate `numpy.spacing`: the distance to the next number away from zero, with the number's sign, but not that of zero."""
    (x,) = values
    bits = ir.IntType(32 if isinstance(x.type, ir.FloatType) else 64)
    size = copied_sign(builder, x, ir.Constant(x.type, 0.0))
    following = builder.bitcast(builder.add(builder.bitcast(size, bits), bits(1)), x.type)
    step = builder.fsub(following, size)
    is_zero = builder.fcmp_ordered("==", size, ir.Constant(x.type, 0.0))
    return builder.select(is_zero, step, copied_sign(builder, step, x))


def expm1(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Generate `numpy.expm1` of a complex number as NumPy has it; Numba subtracts one from the exponential."""

    def difference(z: Any) -> Any:
        half = math.sin(z.imag / np.float32(2))
        real = math.expm1(z.real) * math.cos(z.imag) - np.float32(2) * half * half
        return complex(real, math.exp(z.real) * math.sin(z.imag))

    return context.compile_internal(builder, difference, signature, values)


def any_exponent(generate: Generate) -> Generate:
    """Return code for `numpy.ldexp` with exponents of 64 bits, of which Numba drops half."""

    def scaled(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, exponent = values
        # Beyond this every number has become zero or infinite.
        for sign, most in (("<", -9999), (">", 9999)):
            bound = exponent.type(most)
            exponent = builder.select(builder.icmp_signed(sign, exponent, bound), bound, exponent)
        return generate(context, builder, signature, [x, exponent])

    return scaled


def zero_powers(generate: Generate) -> Generate:
    """Return code for powers of complex numbers that has NumPy's powers of zero."""

    def power(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = signature.return_type
        base, exponent, made = (
            context.make_complex(builder, kind, value)
            for value in (*values, generate(context, builder, signature, values))
        )
        zero, one, nan = (ir.Constant(base.real.type, number) for number in (0.0, 1.0, math.nan))

        def is_zero(number: Any) -> Any:
            parts = (builder.fcmp_ordered("==", part, zero) for part in (number.real, number.imag))
            return builder.and_(*parts)

        of_zero = builder.select(builder.fcmp_ordered(">", exponent.real, zero), zero, nan)
        chosen = context.make_complex(builder, kind)
        none, of_nothing = is_zero(exponent), is_zero(base)
        for name, unit in (("real", one), ("imag", zero)):
            part = builder.select(of_nothing, of_zero, getattr(made, name))
            setattr(chosen, name, builder.select(none, unit, part))
        return chosen._getvalue()

    return power
