"""What runs when JAX evaluates a primitive of numbridge's by itself, outside of every program.

That is a jitted function, whatever the user wants to see step by step: how a call runs is decided where it is lowered. JAX's
checks for NaN and infinity evaluate a jitted function again without `jax.jit` to find the operation, which would come back here
without end; so the results are checked here, where the operation is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbridge.kernels.errors import NonFiniteError, NumbridgeValueError

__all__ = ["check_finite", "run_alone", "run_eagerly"]

_REFUSED = "INVALID_ARGUMENT: numbridge: "


def run_alone(what: str, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Return what a jitted function makes of some operands, checked as the user has configured JAX.

    Raises
    ------
    NonFiniteError
        If `jax_debug_nans` or `jax_debug_infs` is set and a result has such a number; the message says `what` made it.
    """
    import jax

    if not (jax.config.jax_debug_nans or jax.config.jax_debug_infs):
        with jax.disable_jit(False):
            return function(*operands)
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        results = function(*operands)
    check_finite(what, results)
    return results


def check_finite(what: str, results: Sequence[Any]) -> None:
    """Raise if results have numbers that the user has told JAX to refuse."""
    import jax

    checks = (("NaN", "jax_debug_nans", np.isnan), ("an infinite number", "jax_debug_infs", np.isinf))
    for text, option, has in checks:
        if getattr(jax.config, option) and any(has(part).any() for result in results for part in _floats(result)):
            raise NonFiniteError(f"{what} under JAX: there is {text} in its results, and {option} is set")


def run_eagerly(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Return what a jitted function makes of a user's arguments.

    Raises
    ------
    NumbridgeValueError
        If the handler refuses a call, of which XLA makes an error of its own.
    """
    try:
        return function(*arguments)
    except (RuntimeError, ValueError) as error:
        before, found, text = str(error).partition(_REFUSED)
        if before or not found:
            raise
        raise NumbridgeValueError(text) from None


def _floats(result: Any) -> list[Any]:
    """Return the floating-point numbers of a result that this process has."""
    import jax

    if not jax.dtypes.issubdtype(result.dtype, np.inexact):
        return []
    return [np.asarray(shard.data) for shard in result.addressable_shards]
