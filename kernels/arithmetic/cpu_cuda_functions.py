"""What numba.cuda computes of numbers and Numba does not, for kernels on the CPU: bits, roots, selections, remainders.

Types and results are numba.cuda's. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, overload_method

__all__ = ["NAMES"]

_SELECTED = (types.Float, types.Integer)


def _of_integer(name: str, returned: Any, generate: Any) -> Any:
    """Return a function of one integer; `returned` says of which type its result is."""

    def function(typing_context: Any, x: Any) -> Any:
        kind = types.unliteral(x)
        result = returned(kind) if isinstance(kind, types.Integer) else None

        def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return generate(builder, arguments[0], context.get_value_type(signature.return_type))

        return None if result is None else (result(kind), made)

    function.__name__ = name  # as messages call it
    return intrinsic(function)


def _first_set(builder: Any, value: Any, result: Any) -> Any:
    """Return one more than the place of the lowest bit that is set, and 0 if none is."""
    place = builder.add(builder.cttz(value, ir.IntType(1)(0)), value.type(1))
    found = builder.select(builder.icmp_unsigned("==", value, value.type(0)), value.type(0), place)
    if value.type.width < result.width:
        return builder.zext(found, result)
    return builder.trunc(found, result) if value.type.width > result.width else found


def _unsigned(kind: Any) -> Any:
    return kind if kind in (types.uint32, types.uint64) else None


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    kinds = [types.unliteral(kind) for kind in (a, b, c)]
    if not all(isinstance(kind, types.Float | types.Integer) for kind in kinds):
        return None
    wide = types.float32 if all(kind == types.float32 for kind in kinds) else types.float64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = [context.cast(builder, value, kind, wide) for value, kind in zip(arguments, kinds, strict=True)]
        return builder.fma(*given)

    return wide(*kinds), generate


@intrinsic
def selp(typing_context: Any, test: Any, a: Any, b: Any) -> Any:
    kind = types.unliteral(a)
    same = types.unliteral(b) == kind and isinstance(kind, _SELECTED)
    if not (same and isinstance(types.unliteral(test), types.Boolean)):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments)

    return kind(types.boolean, kind, kind), generate


@intrinsic
def _fence(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), generate


def _numbers(*kinds: Any) -> bool:
    return all(isinstance(kind, types.Float | types.Integer | types.Boolean) for kind in kinds)


def _floating(*kinds: Any) -> Any:
    return np.float32 if all(kind == types.float32 for kind in kinds) else np.float64


@overload(math.fmod, target="cpu")
def _fmod(x: Any, y: Any) -> Any:
    if not _numbers(x, y):
        return None
    floating = _floating(x, y)

    def remainder(x: Any, y: Any) -> Any:
        return np.fmod(floating(x), floating(y))

    return remainder


@overload(math.modf, target="cpu")
def _modf(x: Any) -> Any:
    if not _numbers(x):
        return None
    floating = _floating(x)

    def parts(x: Any) -> Any:
        value = floating(x)
        whole = np.trunc(value)
        rest = floating(0.0) if math.isinf(value) else value - whole
        return math.copysign(rest, value), whole

    return parts


@overload(math.remainder, target="cpu")
def _remainder(x: Any, y: Any) -> Any:
    if not _numbers(x, y):
        return None
    floating = _floating(x, y)

    def nearest(x: Any, y: Any) -> Any:
        """Return what the nearest multiple leaves, exactly (fdlibm, e_remainder.c)."""
        number, size = floating(x), np.fabs(floating(y))
        left = np.fmod(np.fabs(number), size + size)
        if size == 0.0 or math.isnan(left):
            return floating(np.nan)
        if left + left > size:
            left -= size
            if left + left >= size:
                left -= size
        return -left if math.copysign(floating(1.0), number) < 0.0 else left

    return nearest


_ones = _of_integer("popc", lambda kind: kind, lambda builder, value, result: builder.ctpop(value))


@overload_method(types.Integer, "bit_count", target="cpu")
def _bit_count(i: Any) -> Any:
    def ones(i: Any) -> Any:
        return _ones(i)

    return ones


# By what follows `cuda.`; those of other names are not for the CPU.
NAMES: dict[str, Any] = {
    "popc": _ones,
    "clz": _of_integer("clz", lambda kind: kind, lambda builder, value, result: builder.ctlz(value, ir.IntType(1)(0))),
    "ffs": _of_integer("ffs", lambda kind: types.uint32, _first_set),
    "brev": _of_integer("brev", _unsigned, lambda builder, value, result: builder.bitreverse(value)),
    "fma": fma,
    "selp": selp,
    "threadfence": _fence,
    "threadfence_block": _fence,
    "threadfence_system": _fence,
}
