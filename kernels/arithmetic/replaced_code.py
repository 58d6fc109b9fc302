"""Other code than Numba's for operations on numbers, while a kernel is compiled; what others compile keeps Numba's.

Numba looks up the code of an operation by the operation and the types of its operands, in its context for a target. Here an entry
is replaced for a while. What is the same on the CPU and on CUDA about integers is here, too. What Numba has no code for at all,
shifts and bits of uint64 by a plain integer, everybody gets. Importing this module imports Numba, so only code that is about to
compile does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

__all__ = [
    "INTEGER_LOOPS",
    "INTEGER_OPERATIONS",
    "Change",
    "Generate",
    "always",
    "loops_replaced",
    "replaced",
]

Generate = Callable[..., Any]
# Takes what generates the code of an operation, and returns what does instead.
Change = Callable[[Generate], Generate]


def always(generate: Generate) -> Change:
    """Return a change to code that does not depend on Numba's."""
    return lambda _: generate


@contextmanager
def replaced(context: Any, changes: Mapping[tuple[Any, ...], Change]) -> Iterator[None]:
    """Let Numba generate other code for some operations.

    Parameters
    ----------
    context : numba.core.base.BaseContext
        Of the target; its lock is held.
    changes : mapping
        From an operation and the types of its operands, as Numba has them in its registry, to what changes its code.
    """
    context.refresh()
    kept: list[tuple[Any, int, Any]] = []
    try:
        for (operation, *kinds), change in changes.items():
            selector = context._defns[operation]
            # In place: entries that others add meanwhile stay.
            found = [k for k, (formal, _) in enumerate(selector.versions) if formal == tuple(kinds)]
            if not found:
                raise LookupError(f"Numba has no code for {operation} of {kinds}")
            for k in found:
                kept.append((selector, k, selector.versions[k]))
                selector.versions[k] = (tuple(kinds), change(selector.versions[k][1]))
            selector._cache.clear()
        yield
    finally:
        for selector, k, entry in reversed(kept):
            selector.versions[k] = entry
            selector._cache.clear()


@contextmanager
def loops_replaced(
    info: Callable[[Any], dict[str, Any]], changes: Mapping[Any, Mapping[str, Change]]
) -> Iterator[None]:
    """Let Numba generate other code for loops of NumPy's functions.

    Parameters
    ----------
    info : callable
        Returns Numba's table of a function: from loops, such as ``"dd->d"``, to what generates their code.
    changes : mapping
        From functions to the first letters of loops, and what changes these.
    """
    kept = [(info(function), dict(info(function))) for function in changes]
    try:
        for (table, before), rows in zip(kept, changes.values(), strict=True):
            for letters, change in rows.items():
                table.update({loop: change(made) for loop, made in before.items() if loop[0] in letters})
        yield
    finally:
        for table, before in kept:
            table.clear()
            table.update(before)


def _by_one(generate: Generate) -> Generate:
    """Return code for remainders that divides by 1 instead of by -1: nothing remains, and no quotient is too large."""

    def remainder(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return generate(context, builder, signature, _never_negated(builder, signature, values)[1])

    return remainder


def _negated(generate: Generate) -> Generate:
    """Return code for quotients that changes the sign instead of dividing by -1.

    So the least integer wraps around, as in NumPy: a processor refuses to divide it, and Numba takes the quotient for 0.
    """

    def quotient(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        result = signature.return_type
        kind = result.dtype if isinstance(result, types.UniTuple) else result
        negates, safe = _never_negated(builder, signature, values)
        found = generate(context, builder, signature, safe)
        if not kind.signed:
            return found
        number = context.cast(builder, values[0], signature.args[0], kind)
        whole = builder.extract_value(found, 0) if kind is not result else found
        whole = builder.select(negates, builder.neg(number), whole)
        return builder.insert_value(found, whole, 0) if kind is not result else whole

    return quotient


def _never_negated(builder: Any, signature: Any, values: Any) -> tuple[Any, tuple[Any, Any]]:
    """Return whether the divisor is -1, and both operands with a divisor of 1 if it is.

    The dividend is not asked for: where it has overflowed, LLVM may hold it for another number there than where it divides.
    """
    number, divisor = values
    if not signature.args[1].signed:
        return ir.Constant(ir.IntType(1), 0), (number, divisor)
    negates = builder.icmp_signed("==", divisor, divisor.type(-1))
    return negates, (number, builder.select(negates, divisor.type(1), divisor))


def _of_both_signs(part: int, change: Change) -> Change:
    """Return a change to quotients (0) or remainders (1) that takes a uint64 for itself beside a signed integer.

    Numba takes both for signed ones, and large ones for negative. Of the result, it keeps 64 bits as an int64.
    """

    def changed(generate: Generate) -> Generate:
        plain = change(generate)

        def division(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            if not has_both_signs(signature.args):
                return plain(context, builder, signature, values)
            wide = [
                context.cast(builder, value, kind, types.int64 if kind.signed else types.uint64)
                for value, kind in zip(values, signature.args, strict=True)
            ]
            return _divided(builder, *wide, by_signed=signature.args[1].signed)[part]

        return division

    return changed


def has_both_signs(kinds: Any) -> bool:
    """Tell whether one of two types is uint64, and the other one of signed integers."""
    return any(kind.signed for kind in kinds) and any(kind.bitwidth == 64 and not kind.signed for kind in kinds)


def _divided(builder: Any, number: Any, divisor: Any, *, by_signed: bool) -> tuple[Any, Any]:
    """Return the quotient, rounded down, and the remainder of 64 bits each, of which one is signed; zeros by zero."""
    zero, one = number.type(0), number.type(1)
    signed = divisor if by_signed else number
    negative = builder.icmp_signed("<", signed, zero)
    size = builder.select(negative, builder.neg(signed), signed)
    number, divisor = (number, size) if by_signed else (size, divisor)
    by_zero = builder.icmp_unsigned("==", divisor, zero)
    safe = builder.select(by_zero, one, divisor)
    whole, rest = builder.udiv(number, safe), builder.urem(number, safe)
    left = builder.icmp_unsigned("!=", rest, zero)
    below = builder.select(left, builder.not_(whole), builder.neg(whole))
    whole = builder.select(negative, below, whole)
    other = builder.sub(rest, divisor) if by_signed else builder.sub(divisor, rest)
    rest = builder.select(builder.and_(negative, left), other, rest)
    return builder.select(by_zero, zero, whole), builder.select(by_zero, zero, rest)


def _fmod(generate: Generate) -> Generate:
    """Return code for `numpy.fmod` of signed integers, for which Numba has that of unsigned ones."""

    def remainder(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number, divisor = values
        zero, one = number.type(0), number.type(1)
        by_zero = builder.icmp_signed("==", divisor, zero)
        # By 1 and by -1 nothing remains.
        safe = builder.or_(by_zero, builder.icmp_signed("==", divisor, divisor.type(-1)))
        return builder.srem(number, builder.select(safe, one, divisor))

    return remainder


def _sign(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Generate `numpy.sign` of unsigned integers; Numba's takes large ones for negative."""
    (number,) = values
    return builder.zext(builder.icmp_unsigned("!=", number, number.type(0)), number.type)


def _power(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Generate the power of an integer by an integer, modulo its type's range.

    Numba's goes by way of a floating-point number, which has 53 bits, and raises where the exponent is the least one.
    """
    kind = signature.return_type
    least = -1 << (kind.bitwidth - 1)  # of zero by a negative exponent, as Numba has it

    def power(a: Any, b: Any) -> Any:
        if b < 0:
            if a == 0:
                return kind(least)
            odd = kind(b & 1)
            return kind(a == 1) + kind(a == -1) * (kind(1) - odd - odd)
        factor, rest, result = np.uint64(a), np.uint64(b), np.uint64(1)
        while rest != 0:
            if rest & np.uint64(1):
                result *= factor
            rest >>= np.uint64(1)
            factor *= factor
        return kind(result)

    found = context.compile_internal(builder, power, types.int64(*signature.args), values)
    return context.cast(builder, found, types.int64, kind)


def _least_multiple(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """Generate `numpy.lcm` of unsigned integers; Numba's goes by way of a floating-point number."""

    def multiple(a: Any, b: Any) -> Any:
        return a if a == 0 else a * (b // np.gcd(a, b))

    return context.compile_internal(builder, multiple, signature, values)


_INTEGERS = (types.Integer, types.Integer)
INTEGER_OPERATIONS: dict[tuple[Any, ...], Change] = {
    (divmod, *_INTEGERS): _negated,
    **{(operation, *_INTEGERS): _of_both_signs(0, _negated) for operation in (operator.floordiv, operator.ifloordiv)},
    **{(operation, *_INTEGERS): _of_both_signs(1, _by_one) for operation in (operator.mod, operator.imod)},
    **{(operation, *_INTEGERS): always(_power) for operation in (operator.pow, operator.ipow, pow)},
}
"""For `replaced`."""

_SIGNED, _UNSIGNED = "bhilq", "BHILQ"
INTEGER_LOOPS: dict[Any, dict[str, Change]] = {
    np.remainder: {_SIGNED: _by_one},
    **{function: {_SIGNED: _negated} for function in (np.floor_divide, np.divmod)},
    np.fmod: {_SIGNED: _fmod},
    np.sign: {_UNSIGNED: always(_sign)},
    np.lcm: {_UNSIGNED: always(_least_multiple)},
    np.power: {_SIGNED + _UNSIGNED: always(_power)},
}
"""For `loops_replaced`."""


def _add_plain_counts(function: Any) -> None:
    """Let one of NumPy's shifts take a uint64 and a count of another type: there is no signed type that holds both."""

    @overload(function)
    def shifted(a: Any, b: Any) -> Any:
        if a != types.uint64 or not (isinstance(b, types.Integer) and b.signed):
            return None

        def counted(a: Any, b: Any) -> Any:
            return function(a, np.uint64(b))

        return counted


def _add_plain_bits(function: Any) -> None:
    """Let one of NumPy's functions of bits take a uint64 and a number that stands in the source, as NumPy does."""

    @overload(function)
    def masked(a: Any, b: Any) -> Any:
        kinds = (a, b)
        plain = [kind for kind in kinds if isinstance(kind, types.IntegerLiteral) and kind.literal_value >= 0]
        if len(plain) != 1 or types.uint64 not in kinds:
            return None

        def converted(a: Any, b: Any) -> Any:
            return function(np.uint64(a), np.uint64(b))

        return converted


for _shift in (np.left_shift, np.right_shift):
    _add_plain_counts(_shift)
for _of_bits in (np.bitwise_and, np.bitwise_or, np.bitwise_xor):
    _add_plain_bits(_of_bits)
