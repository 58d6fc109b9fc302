"""The functions of `numba.cuda.fp16` and `numba.cuda.bf16` for kernels on the CPU.

What they mean is NVIDIA's "CUDA Math API", Half and Bfloat16 Precision Intrinsics. Each rounds its arguments to 16 bits, computes
in float64, and rounds the result once; functions that are approximate on CUDA are the accurate ones. Results are float32, as what
kernels read of arrays of 16 bits is. Nothing of this is imported before a kernel calls one. Importing this module imports Numba.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from numbridge.kernels.arithmetic.called_code import code_of
from numbridge.kernels.arithmetic.narrow_floats import NarrowFloat, bits_of, narrow_float, number_of
from numbridge.kernels.arithmetic.scalar_code import from_bits, of_numbers, own, taking, to_bits
from numbridge.kernels.scalars import by_name

__all__ = ["Signature", "as_stored", "function", "signature"]

_STORED = {"fp16": narrow_float(by_name("float16")), "bf16": narrow_float(by_name("bfloat16"))}


@dataclass(frozen=True)
class Signature:
    """What a function takes and returns: the type of 16 bits of its arguments, how many, and the type of its result."""

    stored: NarrowFloat
    count: int
    returned: Any
    # By way of which type an argument becomes one of 16 bits, if not directly
    through: Any = None


@functools.cache
def signature(name: str) -> Signature:
    """Return what a function takes and returns; its name has that of its module before it, as in ``fp16_hadd``."""
    module, _, plain = name.partition("_")
    count, returned, _ = _table()[plain]
    return Signature(_STORED[module], count, returned, types.float32 if plain.startswith("float2") else None)


def as_stored(context: Any, builder: Any, value: Any, kind: Any, declared: Signature) -> Any:
    """Return the bits of an argument of any real type."""
    if kind == declared.stored:
        return bits_of(builder, value, declared.stored)
    wanted = types.float32 if types.float32 in (kind, declared.through) else types.float64
    return bits_of(builder, context.cast(builder, value, kind, wanted), declared.stored)


@functools.cache
def function(name: str) -> Any:
    """Return a function as kernels on the CPU call it; its arguments are real numbers of any type."""
    declared = signature(name)
    *_, made = _table()[name.partition("_")[2]]
    inner = (types.float64,) * declared.count

    def called(typing_context: Any, *arguments: Any) -> Any:
        if not all(
            isinstance(types.unliteral(kind), types.Float | types.Integer | types.Boolean) for kind in arguments
        ):
            return None
        kind = typing_context.resolve_value_type(made)
        found = typing_context.resolve_function_type(kind, inner, {})

        def generate(context: Any, builder: Any, chosen: Any, values: Any) -> Any:
            given = []
            for value, given_as in zip(values, chosen.args, strict=True):
                near = number_of(builder, as_stored(context, builder, value, given_as, declared), declared.stored)
                given.append(context.cast(builder, near, types.float32, types.float64))
            result = code_of(context, kind, found.args)(builder, given)
            if declared.returned != types.float32:
                return context.cast(builder, result, found.return_type, declared.returned)
            return number_of(builder, bits_of(builder, result, declared.stored), declared.stored)

        return declared.returned(*map(types.unliteral, arguments)), generate

    taken = taking(declared.count, called)
    taken.__name__ = f"cuda.{name.replace('_', '.', 1)}"  # as messages call it
    return intrinsic(taken)


# What they are of float64


@of_numbers
def _fused(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c such that rounding it once more is rounding it once: a sum that is not exact has an odd last bit."""
    product = a * b  # exact
    total = product + c
    of_c = total - product
    lost = (product - (total - of_c)) + (c - of_c)
    if lost == 0.0 or not math.isfinite(lost):
        return total
    bits = to_bits(total)
    if bits & 1:
        return total
    return from_bits(bits + 1 if (lost > 0.0) == (total > 0.0) else bits - 1)


@of_numbers
def _saturated(x: Any) -> Any:
    """Return the nearest number of 0 to 1; what is no number is zero."""
    if not x > 0.0:
        return 0.0
    return 1.0 if x > 1.0 else x


@of_numbers
def _without_negative(x: Any) -> Any:
    return 0.0 if x <= 0.0 else x


@of_numbers
def _larger(a: Any, b: Any) -> Any:
    if math.isnan(a):
        return b
    if a == b:
        return b if math.copysign(1.0, a) < 0.0 else a
    return b if b > a else a


@of_numbers
def _smaller(a: Any, b: Any) -> Any:
    if math.isnan(a):
        return b
    if a == b:
        return a if math.copysign(1.0, a) < 0.0 else b
    return b if b < a else a


@of_numbers
def _is_infinite(x: Any) -> Any:
    if not math.isinf(x):
        return 0
    return 1 if x > 0.0 else -1


def _with_none(choose: Any) -> Any:
    """Return a choice of two numbers that is none if one of them is none."""
    return of_numbers(lambda a, b: a + b if math.isnan(a + b) and (math.isnan(a) or math.isnan(b)) else choose(a, b))


def _then(finish: Any, first: Any, count: int) -> Any:
    if count == 2:
        return of_numbers(lambda a, b: finish(first(a, b)))
    return of_numbers(lambda a, b, c: finish(first(a, b, c)))


@functools.cache
def _table() -> dict[str, tuple[int, Any, Any]]:
    """Return how many arguments each takes, of which type its result is, and what it is of float64."""
    one = {f"h{name}": own(getattr(np, name)) for name in ("trunc", "ceil", "floor", "rint", "exp2")}
    one |= {
        f"h{name}": own(getattr(math, name)) for name in ("sqrt", "log", "log2", "log10", "cos", "sin", "exp", "tanh")
    }
    one |= {"habs": own(math.fabs), "htanh_approx": own(math.tanh)}
    root, power = own(math.sqrt), own(math.pow)
    more = {
        "hneg": lambda x: -x,
        "hrcp": lambda x: 1.0 / x,
        "hrsqrt": lambda x: 1.0 / root(x),
        "hexp10": lambda x: power(10.0, x),
    }
    conversions: tuple[str, ...] = ("half2float", "float2half", "double2half", "float2half_rn")
    conversions += ("bfloat162float", "float2bfloat16", "double2bfloat16", "float2bfloat16_rn")
    more |= dict.fromkeys(conversions, lambda x: x)
    one |= {name: of_numbers(made) for name, made in more.items()}
    found = {name: (1, types.float32, made) for name, made in one.items()}
    found["hisnan"] = 1, types.boolean, own(math.isnan)
    found["hisinf"] = 1, types.int32, _is_infinite
    operations = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}
    for name, operation in operations.items():
        plain = of_numbers(operation)
        found |= {f"h{name}{end}": (2, types.float32, plain) for end in ("", "_rn")}
        found[f"h{name}_sat"] = 2, types.float32, _then(_saturated, plain, 2)
    found["hdiv"] = 2, types.float32, of_numbers(lambda a, b: a / b)
    for name, choose in (("hmax", _larger), ("hmin", _smaller)):
        found[name] = 2, types.float32, choose
        found[f"{name}_nan"] = 2, types.float32, _with_none(choose)
    found["hfma"] = 3, types.float32, _fused
    found["hfma_sat"] = 3, types.float32, _then(_saturated, _fused, 3)
    found["hfma_relu"] = 3, types.float32, _then(_without_negative, _fused, 3)
    return found | {name: (2, types.boolean, of_numbers(made)) for name, made in _comparisons().items()}


def _comparisons() -> dict[str, Any]:
    """Return the comparisons: of what is no number those with u are true, and the others are not."""
    return {
        "heq": lambda a, b: a == b,
        "hge": lambda a, b: a >= b,
        "hgt": lambda a, b: a > b,
        "hle": lambda a, b: a <= b,
        "hlt": lambda a, b: a < b,
        "hne": lambda a, b: a < b or a > b,
        "hequ": lambda a, b: not (a < b or a > b),
        "hneu": lambda a, b: a != b,
        "hgeu": lambda a, b: not a < b,
        "hgtu": lambda a, b: not a <= b,
        "hleu": lambda a, b: not a > b,
        "hltu": lambda a, b: not a >= b,
    }
