"""The functions of `numba.cuda.fp16` and `numba.cuda.bf16` in a program: which rule each has, that of an operation in float32.

Rounding to 16 bits changes no derivative. Nothing of this is imported before a kernel that is differentiated calls one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numba import types

from numbridge.kernels.adjoint.construct import OF_HALVES, OF_LIBDEVICE, Construct
from numbridge.kernels.adjoint.ir import Compute, Function, Value
from numbridge.kernels.arithmetic.cpu_halves import signature
from numbridge.kernels.language.rewriting import CUDA_FUNCTION, LIBDEVICE

__all__ = ["RULES", "called"]

_SAME = f"{OF_LIBDEVICE}same"
_AS_OTHERS = {
    "tanh_approx": "tanh",
    "max": "fmax",
    "min": "fmin",
    "max_nan": "maximum",
    "min_nan": "minimum",
}
# What is done last, as an operation of its own: how it is written, the key of its rule, and with what it is done
_LAST = {
    "_sat": (f"{LIBDEVICE}saturatef({{0}})", f"{OF_LIBDEVICE}saturate", False),
    "_relu": ("{module}hmax_nan({0}, {1})", "maximum", True),
}


def called(construct: Construct, name: str, arguments: Sequence[Value]) -> Value:
    """Add a call to a program, and return its result.

    Raises
    ------
    TypeError
        If it takes another number of arguments.
    """
    declared = signature(name)
    if len(arguments) != declared.count:
        raise TypeError(f"takes {declared.count} argument{'s' * (declared.count > 1)}, and is given {len(arguments)}")
    module, _, plain = name.partition("_")
    given = [_rounded(construct, module, value) for value in arguments]
    end = next((end for end in _LAST if plain.endswith(end)), "")
    first = _compute(construct, f"{module}_{plain.removesuffix(end)}", given)
    if not end:
        return first
    text, key, with_zero = _LAST[end]
    made = construct.value("p" if construct.prefix else name, types.float32)
    text = text.replace("{module}", f"{CUDA_FUNCTION}{module}_")
    construct.add(Compute(made, Function(key, text, None), [first, *[construct.zero(types.float32)] * with_zero]))
    return made


def _compute(construct: Construct, name: str, given: Sequence[Value]) -> Value:
    made = construct.value("p" if construct.prefix else name, signature(name).returned)
    text = f"{CUDA_FUNCTION}{name}({', '.join(f'{{{k}}}' for k in range(len(given)))})"
    construct.add(Compute(made, Function(_key(name), text, None), [*given]))
    return made


def _rounded(construct: Construct, module: str, value: Value) -> Value:
    """Return an argument as float32, rounded once to what 16 bits hold if that was not its type."""
    if value.type == types.float32:
        return value
    if value.constant is not None and isinstance(value.type, types.Integer | types.Boolean):
        return construct.cast(value, types.float32)
    return _compute(construct, f"{module}_double2{'half' if module == 'fp16' else 'bfloat16'}", [value])


def _key(name: str) -> str:
    """Return the key of the rule of a function that is one operation."""
    if signature(name).returned != types.float32:
        return "test"
    plain = name.partition("_")[2]
    if ("2" in plain and not plain.startswith("h")) or plain.startswith("half2"):
        return _SAME
    base = plain.removeprefix("h").removesuffix("_rn")
    return f"{OF_HALVES}{base}" if f"{OF_HALVES}{base}" in RULES else _AS_OTHERS.get(base, base)


# The results have few digits, so that derivatives are not made of them.
_OWN: dict[str, Callable[..., tuple[Any, ...]]] = {
    "div": lambda a, b, r: (1 / b, -(a / b / b)),
    "rcp": lambda a, r: (-((1 / a) / a),),
    "exp": lambda a, r: (a.call("exp"),),
    "exp2": lambda a, r: (math.log(2) * (math.log(2) * a).call("exp"),),
    "exp10": lambda a, r: (math.log(10) * (math.log(10) * a).call("exp"),),
    "sqrt": lambda a, r: (0.5 / a.call("sqrt"),),
    "rsqrt": lambda a, r: (-0.5 / a.call("sqrt") / a,),
}
RULES = {f"{OF_HALVES}{name}": rule for name, rule in _OWN.items()}
"""Key → the partial derivatives by each argument, as in `rules.RULES`."""
