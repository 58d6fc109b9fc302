"""Numbers and bits that LLVM functions compute, written as Python's arithmetic: what mathematical functions are made of.

Nothing here is compiled, and no types are inferred.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from llvmlite.ir.instructions import FastMathFlags

__all__ = ["ROUND", "Bits", "Real", "constant", "known_number", "ordered_sum", "product", "whole_sum"]

_DOUBLE, _WORD = ir.DoubleType(), ir.IntType(64)
ROUND = 1.5 * 2.0**52
"""A number of less than 2**51 that is added to this is rounded to an integer: the lowest bits."""

# With `fastmath`, Numba lets LLVM reassociate all arithmetic that has no flags yet. What a sum has lost would be zero then. This
# flag is of functions, and says nothing of sums.
_EXACT = ("afn",)


class _NoFlags(FastMathFlags):
    """The flags of a call that keeps its rounding: those that Numba adds are forgotten."""

    def add(self, name: str) -> None:
        pass


class _Value:
    """A float64 number, or 64 bits, that an LLVM function computes."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    def lift(self, other: Any) -> Any:
        """Return the LLVM value of a number of this one's type."""
        return other.value if isinstance(other, _Value) else ir.Constant(self.value.type, other)


class Bits(_Value):
    """Sixty-four bits."""

    def __and__(self, other: Any) -> Bits:
        return Bits(self.builder, self.builder.and_(self.value, self.lift(other)))

    def __or__(self, other: Any) -> Bits:
        return Bits(self.builder, self.builder.or_(self.value, self.lift(other)))

    def __xor__(self, other: Any) -> Bits:
        return Bits(self.builder, self.builder.xor(self.value, self.lift(other)))

    def __add__(self, other: Any) -> Bits:
        return Bits(self.builder, self.builder.add(self.value, self.lift(other)))

    def __sub__(self, other: Any) -> Bits:
        return Bits(self.builder, self.builder.sub(self.value, self.lift(other)))

    def __lshift__(self, count: int) -> Bits:
        return Bits(self.builder, self.builder.shl(self.value, self.lift(count)))

    def __rshift__(self, count: int) -> Bits:
        return Bits(self.builder, self.builder.lshr(self.value, self.lift(count)))

    def any(self) -> Any:
        """Return whether a bit is set."""
        return self.builder.icmp_unsigned("!=", self.value, self.lift(0))

    def real(self) -> Real:
        """Return the number that the bits represent."""
        return Real(self.builder, self.builder.bitcast(self.value, _DOUBLE))


class Real(_Value):
    """A number."""

    def __add__(self, other: Any) -> Real:
        return Real(self.builder, self.builder.fadd(self.value, self.lift(other), flags=_EXACT))

    def __sub__(self, other: Any) -> Real:
        return Real(self.builder, self.builder.fsub(self.value, self.lift(other), flags=_EXACT))

    def __mul__(self, other: Any) -> Real:
        return Real(self.builder, self.builder.fmul(self.value, self.lift(other), flags=_EXACT))

    def __truediv__(self, other: Any) -> Real:
        return Real(self.builder, self.builder.fdiv(self.value, self.lift(other), flags=_EXACT))

    def __rsub__(self, other: Any) -> Real:
        return Real(self.builder, self.builder.fsub(self.lift(other), self.value, flags=_EXACT))

    def __rtruediv__(self, other: Any) -> Real:
        return Real(self.builder, self.builder.fdiv(self.lift(other), self.value, flags=_EXACT))

    def __neg__(self) -> Real:
        return Real(self.builder, self.builder.fneg(self.value))

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Any) -> Any:
        return self.builder.fcmp_ordered("<", self.value, self.lift(other), flags=_EXACT)

    def __le__(self, other: Any) -> Any:
        return self.builder.fcmp_ordered("<=", self.value, self.lift(other), flags=_EXACT)

    def __gt__(self, other: Any) -> Any:
        return self.builder.fcmp_ordered(">", self.value, self.lift(other), flags=_EXACT)

    def __ge__(self, other: Any) -> Any:
        return self.builder.fcmp_ordered(">=", self.value, self.lift(other), flags=_EXACT)

    def equals(self, other: Any) -> Any:
        """Return whether both are the same number, which NaN is not."""
        return self.builder.fcmp_ordered("==", self.value, self.lift(other), flags=_EXACT)

    def bits(self) -> Bits:
        """Return the bits that represent the number."""
        return Bits(self.builder, self.builder.bitcast(self.value, _WORD))

    def negative(self) -> Any:
        """Return whether the sign bit is set."""
        return self.builder.icmp_signed("<", self.bits().value, ir.Constant(_WORD, 0))

    def if_(self, condition: Any, other: Any) -> Real:
        """Return this number if the condition holds, else the other."""
        return Real(self.builder, self.builder.select(condition, self.value, self.lift(other)))

    def call(self, name: str, *others: Any) -> Real:
        """Return what an LLVM intrinsic makes of this number and others."""
        kind = ir.FunctionType(_DOUBLE, [_DOUBLE] * (1 + len(others)))
        function = self.builder.module.declare_intrinsic(f"llvm.{name}", [_DOUBLE], kind)
        made = self.builder.call(function, [self.value, *map(self.lift, others)])
        made.fastmath = _NoFlags()
        return Real(self.builder, made)

    def fma(self, factor: Any, summand: Any) -> Real:
        """Return self * factor + summand, rounded once."""
        return self.call("fma", factor, summand)

    def magnitude(self) -> Real:
        """Return the absolute value."""
        return self.call("fabs")

    def signed_as(self, other: Real) -> Real:
        """Return the number with another's sign."""
        return self.call("copysign", other)

    def polynomial(self, *coefficients: float) -> Real:
        """Return the polynomial with these coefficients, lowest first, of this number."""
        terms = [constant(self, coefficient) for coefficient in coefficients]
        power = self
        # Neighbours are joined in pairs (Estrin): where a loop waits for each result, the wait is shorter.
        while len(terms) > 1:
            pairs = [power.fma(high, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
            terms = [*pairs, *terms[2 * len(pairs) :]]
            power = power * power
        return terms[0]


def constant(like: Real, number: float) -> Real:
    return Real(like.builder, ir.Constant(_DOUBLE, number))


# Numbers of twice the digits: a rounded number, and what it has lost.


def whole_sum(a: Any, b: Real) -> tuple[Real, Real]:
    """Return a sum and what it has lost (Knuth, The Art of Computer Programming, volume 2, 4.2.2)."""
    total = b + a
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def ordered_sum(a: Any, b: Real) -> tuple[Real, Real]:
    """Return a sum and what it has lost, where b is not the larger one."""
    total = b + a
    return total, b - (total - a)


def product(a: Real, b: Any) -> tuple[Real, Real]:
    """Return a product and what it has lost."""
    result = a * b
    return result, a.fma(b, -result)


def known_number(value: Any) -> float | None:
    """Return the number that a value is while it is compiled, if that is known."""
    if isinstance(value, ir.CastInstr) and value.opname in ("fptrunc", "fpext"):
        return known_number(value.operands[0])
    if isinstance(value, ir.Instruction) and value.opname == "fsub":  # which is how Numba negates
        less, more = map(known_number, value.operands)
        return None if less is None or more is None else less - more
    if isinstance(value, ir.Constant) and isinstance(value.constant, int | float):
        return float(value.constant)
    return None
