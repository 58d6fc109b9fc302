"""Other code than Numba's for operations on numbers, while a kernel is compiled; what others compile keeps Numba's.

Numba looks up the code of an operation by the operation and the types of its operands, in its context for a target. Here an entry
is replaced for a while. What is the same on the CPU and on CUDA about integers is here, too. Importing this module imports Numba,
so only code that is about to compile does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

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
    try:
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
    for (table, before), rows in zip(kept, changes.values(), strict=True):
        for letters, change in rows.items():
            table.update({loop: change(made) for loop, made in before.items() if loop[0] in letters})
    try:
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


_INTEGERS = (types.Integer, types.Integer)
INTEGER_OPERATIONS: dict[tuple[Any, ...], Change] = {
    **{(operation, *_INTEGERS): _negated for operation in (operator.floordiv, operator.ifloordiv, divmod)},
    **{(operation, *_INTEGERS): _by_one for operation in (operator.mod, operator.imod)},
}
"""For `replaced`."""

_SIGNED, _UNSIGNED = "bhilq", "BHILQ"
INTEGER_LOOPS: dict[Any, dict[str, Change]] = {
    np.remainder: {_SIGNED: _by_one},
    **{function: {_SIGNED: _negated} for function in (np.floor_divide, np.divmod)},
    np.fmod: {_SIGNED: _fmod},
    np.sign: {_UNSIGNED: always(_sign)},
}
"""For `loops_replaced`."""
