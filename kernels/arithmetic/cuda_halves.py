"""The functions of `numba.cuda.fp16` and `numba.cuda.bf16` for kernels on CUDA: numba.cuda's own, with results of float32.

Numba.cuda's own types of 16 bits would round every sum of results, where sums of what is read of arrays are float32. Nothing of
this is imported before a kernel calls one. Importing this module imports numba.cuda.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from numba import types
from numba.cuda.extending import intrinsic
from numba.cuda.types import bfloat16

from numbridge.kernels.arithmetic.called_code import code_of
from numbridge.kernels.arithmetic.cpu_halves import as_stored, signature
from numbridge.kernels.arithmetic.narrow_floats import number_of
from numbridge.kernels.arithmetic.scalar_code import taking

__all__ = ["function"]

_KINDS = {"fp16": types.float16, "bf16": bfloat16}


@functools.cache
def function(name: str) -> Any:
    """Return a function as kernels on CUDA call it; its arguments are real numbers of any type."""
    declared = signature(name)
    module, _, plain = name.partition("_")
    kind = _KINDS[module]
    home = importlib.import_module(f"numba.cuda._internal.cuda_{module}")
    operation = getattr(home, f"__{plain}", None) or getattr(home, plain)
    converts = "2" in plain and not plain.startswith("h")

    def called(typing_context: Any, *arguments: Any) -> Any:
        if not all(
            isinstance(types.unliteral(given), types.Float | types.Integer | types.Boolean) for given in arguments
        ):
            return None
        found = None
        if not converts:
            of = typing_context.resolve_value_type(operation)
            found = typing_context.resolve_function_type(of, (kind,) * declared.count, {})

        def generate(context: Any, builder: Any, chosen: Any, values: Any) -> Any:
            pairs = zip(values, chosen.args, strict=True)
            given = [as_stored(context, builder, value, given_as, declared) for value, given_as in pairs]
            if found is None:  # to 16 bits, or from there
                return number_of(builder, given[0], declared.stored)
            result = code_of(context, of, found.args)(builder, given)
            if declared.returned == types.float32:
                return number_of(builder, result, declared.stored)
            return context.cast(builder, result, found.return_type, declared.returned)

        return declared.returned(*map(types.unliteral, arguments)), generate

    taken = taking(declared.count, called)
    taken.__name__ = f"cuda.{module}.{plain}"  # as messages call it
    return intrinsic(taken)
