"""The functions of `numba.cuda.libdevice` for kernels on the CPU, with their types there: one table of what each is.

What they mean is NVIDIA's "Libdevice User's Guide". Approximate functions (``fast_...``) are the accurate ones. Nothing of this
is imported before a kernel calls one. Importing this module imports Numba and numba.cuda's signatures.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.cuda import libdevicefuncs
from numba.extending import intrinsic

from numbridge.kernels.arithmetic import (
    bessel_functions,
    cuda_integers,
    directed_rounding,
    float_parts,
    special_functions,
)
from numbridge.kernels.arithmetic.called_code import code_of
from numbridge.kernels.arithmetic.scalar_code import of_numbers, own, taking
from numbridge.kernels.errors import KernelUnsupportedError

__all__ = ["Signature", "function", "signature"]

# What a library function is, of float32 if the name ends in f, else of float64.
_MATHEMATICAL: dict[str, Any] = {
    **{name: getattr(math, name) for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign")},
    **{name: getattr(math, name) for name in ("cos", "cosh", "erf", "erfc", "exp", "expm1", "fabs", "fmod", "hypot")},
    **{name: getattr(math, name) for name in ("log", "log10", "log1p", "log2", "pow", "sin", "sinh", "sqrt", "tan")},
    "tanh": math.tanh,
    **{name: getattr(np, name) for name in ("cbrt", "exp2", "floor", "ceil", "trunc", "rint", "nextafter")},
    "nearbyint": np.rint,
}
_FAST = ("cos", "exp", "log", "log2", "log10", "pow", "sin", "tan")


def _either() -> dict[str, Any]:
    """Return the functions that compute in the type that they are declared with."""
    found = {f"{name}{end}": own(function) for name, function in _MATHEMATICAL.items() for end in ("", "f")}
    found |= {f"fast_{name}f": found[name] for name in _FAST}
    for name, function in special_functions.EITHER.items():
        found |= {name: function} if name.startswith("fast_") else {name: function, f"{name}f": function}
    for end, kind in (("", "double"), ("f", "float")):
        found[f"llrint{end}"] = directed_rounding.CONVERSIONS[f"{kind}2ll_rn"]
        cut_off = directed_rounding.CONVERSIONS[f"{kind}2ll_rz"]
        found[f"llround{end}"] = _then(float_parts.FUNCTIONS["round"], cut_off)
    return found | cuda_integers.FUNCTIONS | directed_rounding.OPERATIONS | directed_rounding.CONVERSIONS


def _wide() -> dict[str, Any]:
    """Return the functions that compute in float64, whatever they are declared with."""
    found: dict[str, Any] = {}
    for name, function in (float_parts.FUNCTIONS | special_functions.FUNCTIONS | bessel_functions.FUNCTIONS).items():
        found[name] = found[f"{name}f"] = function
    return found


def _then(first: Any, second: Any) -> Any:
    return of_numbers(lambda x: second(first(x)))


@dataclass(frozen=True)
class Signature:
    """What a function is declared with: Numba's types of its arguments, and of its results, of which some have several."""

    arguments: tuple[Any, ...]
    results: tuple[Any, ...]

    @property
    def returned(self) -> Any:
        """The type of the result, or of the tuple of results."""
        return self.results[0] if len(self.results) == 1 else types.Tuple(self.results)


def signature(name: str) -> Signature:
    """Return what a function of libdevice takes and returns."""
    returned, declared = libdevicefuncs.functions[f"__nv_{name}"]
    results = [] if returned == types.void else [returned]
    results += [each.ty for each in declared if each.is_ptr]
    return Signature(tuple(each.ty for each in declared if not each.is_ptr), tuple(results))


@functools.cache
def _table() -> dict[str, tuple[Any, bool]]:
    """Return what each name is on the CPU, and whether it computes in float64 always."""
    found = {name: (made, True) for name, made in _wide().items()}
    return found | {name: (made, False) for name, made in _either().items()}


@functools.cache
def function(name: str) -> Any:
    """Return a function of libdevice as kernels on the CPU call it; its arguments are converted to the types of its signature.

    Raises
    ------
    KernelUnsupportedError
        If it is not in the table, as what another numba-cuda may have.
    """
    if name not in _table():
        text = f"cuda.libdevice.{name} exists only on CUDA; launch this kernel on CUDA arrays, or leave it out"
        raise KernelUnsupportedError(text)
    declared = signature(name)
    made, in_double = _table()[name]
    inner = declared.arguments
    if in_double:
        inner = tuple(types.float64 if kind == types.float32 else kind for kind in inner)

    def called(typing_context: Any, *arguments: Any) -> Any:
        numbers = (types.Float, types.Integer, types.Boolean)
        if not all(isinstance(types.unliteral(kind), numbers) for kind in arguments):
            return None
        kind = typing_context.resolve_value_type(made)
        found = typing_context.resolve_function_type(kind, inner, {})

        def generate(context: Any, builder: Any, chosen: Any, values: Any) -> Any:
            pairs = zip(values, declared.arguments, found.args, strict=True)
            given = [context.cast(builder, value, given_as, wanted) for value, given_as, wanted in pairs]
            result = code_of(context, kind, found.args)(builder, given)
            return context.cast(builder, result, found.return_type, declared.returned)

        return declared.returned(*declared.arguments), generate

    taken = taking(len(inner), called)
    taken.__name__ = f"libdevice.{name}"  # as messages call it
    return intrinsic(taken)
