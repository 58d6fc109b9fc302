"""Mathematical functions of float64, without branches, tables or calls: as `float_math`, in the arithmetic of their own type.

Each result lies within 2.5 units in the last place of the true value, and those of the most frequent functions within 0.9;
tests/kernels/test_double_math.py has the bound of each. Circular functions of numbers beyond 2**30 are called, see `rare_calls`.

Polynomials are minimax approximations on the intervals that are named. Logarithms and inverse tangents are put together so that
the largest part is added last, as by W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.arithmetic.double_circular import acos, asin, atan, atan2, cos, sin, tan
from numbridge.kernels.arithmetic.double_errors import erf, erfc
from numbridge.kernels.arithmetic.double_exponentials import cosh, exp, exp2, expm1, sinh, tanh
from numbridge.kernels.arithmetic.double_logarithms import acosh, asinh, atanh, log, log1p, log2, log10
from numbridge.kernels.arithmetic.double_powers import cbrt, hypot, known_power, pow
from numbridge.kernels.arithmetic.llvm_numbers import Real, known_number

__all__ = ["FUNCTIONS", "SLOW_ALONE", "evaluate"]

FUNCTIONS: dict[str, Callable[..., Real]] = {
    function.__name__: function
    for function in (
        *(sin, cos, tan, asin, acos, atan, atan2),
        *(exp, exp2, expm1, sinh, cosh, tanh),
        *(log, log2, log10, log1p, asinh, acosh, atanh),
        *(pow, cbrt, hypot),
        *(erf, erfc),
    )
}

SLOW_ALONE = frozenset(("log", "log2", "log10", "exp2", "pow"))
"""Those that a C library computes sooner where a loop is not vectorised: it looks up more, and waits less."""


def evaluate(name: str, builder: Any, arguments: Sequence[Any]) -> Any:
    """Append a function of `FUNCTIONS` to an LLVM function.

    Parameters
    ----------
    name : str
        Which function.
    builder : llvmlite.ir.IRBuilder
        Where the code goes.
    arguments : sequence of llvmlite.ir.Value
        The arguments, of type double.

    Returns
    -------
    llvmlite.ir.Value
        The result, of type double.
    """
    numbers = [Real(builder, argument) for argument in arguments]
    exponent = known_number(arguments[1]) if name == "pow" else None
    known = None if exponent is None else known_power(numbers[0], exponent)
    return (known or FUNCTIONS[name](*numbers)).value
