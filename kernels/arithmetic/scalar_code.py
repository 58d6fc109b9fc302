"""How functions of numbers are written in Python for kernels on the CPU: compiled as kernels are, with numbridge's mathematics.

Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.extending import intrinsic

from numbridge.kernels.arithmetic.cpu_cuda_functions import NAMES
from numbridge.kernels.arithmetic.cpu_math import replacement

__all__ = ["fma", "from_bits", "of_numbers", "own", "taking", "to_bits"]

of_numbers: Any = njit(
    _nrt=False,
    error_model="numpy",
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    # Numba would take what is not said here from who calls the function first, for everybody after that.
    fastmath=False,
    forceinline=False,
)
"""Decorates a function that others compile: division by zero gives what IEEE 754 says, and nothing is reassociated."""

fma: Any = NAMES["fma"]


def own(function: Any) -> Any:
    """Return what kernels call in the place of a function of `math` or NumPy."""
    return replacement(function, alone=False)


_BITS = {types.float32: types.int32, types.float64: types.int64}
_FLOATS = {bits: kind for kind, bits in _BITS.items()}


def _reads_as(found: dict[Any, Any], value: Any) -> Any:
    kind = found.get(types.unliteral(value))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(kind))

    return None if kind is None else (kind(value), generate)


@intrinsic
def to_bits(typing_context: Any, x: Any) -> Any:
    """Return the bits that represent a number, as an integer of its size."""
    return _reads_as(_BITS, x)


@intrinsic
def from_bits(typing_context: Any, x: Any) -> Any:
    """Return the number that 32 or 64 bits represent."""
    return _reads_as(_FLOATS, x)


def taking(count: int, called: Any) -> Any:
    """Return what types a call, for `intrinsic`, with as many parameters: Numba reads how many there are."""

    def one(typing_context: Any, x: Any) -> Any:
        return called(typing_context, x)

    def two(typing_context: Any, x: Any, y: Any) -> Any:
        return called(typing_context, x, y)

    def three(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
        return called(typing_context, x, y, z)

    return (one, two, three)[count - 1]
