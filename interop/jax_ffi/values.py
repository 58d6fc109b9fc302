"""What an argument of a call is to JAX: whether JAX can take it at all, how `plan` sees it, and what JAX's messages call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbridge.jax_ffi.plan import Operand
from numbridge.jax_ffi.signature import Signature
from numbridge.kernels.errors import NumbridgeTypeError

__all__ = ["described", "jax_value", "named", "operand"]


def jax_value(found: Signature, place: int, argument: Any) -> Any:
    """Return an argument that is no number as JAX takes it.

    Raises
    ------
    NumbridgeTypeError
        If JAX has no such values; the message names the argument.
    """
    import jax

    if isinstance(argument, jax.Array):
        return argument
    where = _where(found, place)
    if isinstance(argument, np.ma.MaskedArray):
        raise NumbridgeTypeError(
            f"{where}: JAX has no masked arrays; pass x.filled(value), and x.mask as an argument of its own"
        )
    if isinstance(argument, np.ndarray):
        if argument.dtype.fields is not None:
            raise NumbridgeTypeError(
                f"{where}: JAX has no records but as bytes; pass records.view(np.uint8).reshape(*records.shape, -1)"
            )
        if not argument.dtype.isnative or argument.dtype.kind in "OSUMm":
            raise NumbridgeTypeError(f"{where}: JAX has no dtype {argument.dtype.str!r}; convert the array with astype")
        return argument
    if getattr(type(argument), "__is_traced__", False):
        raise NumbridgeTypeError(
            f"{where}: got {argument!r}, which stands for an array within a function that launches kernels; launch kernels on "
            "it, or call a Python function that does"
        )
    if argument is None or isinstance(argument, tuple):
        raise NumbridgeTypeError(
            f"{where}: wanted a JAX array or a number, got {type(argument).__name__}, which a kernel takes where a function of "
            "nb.jax_callable launches it; write one that does"
        )
    raise NumbridgeTypeError(
        f"{where}: wanted a JAX array or a number, got {type(argument).__name__}; convert it with jnp.asarray, or share its "
        "memory by nb.convert(x, 'jax')"
    )


def _where(found: Signature, place: int) -> str:
    return f"{found.what} under JAX, argument {found.inputs[place].name!r}"


def operand(found: Signature, place: int, value: Any) -> Operand:
    """Return what `jax_value` has returned as a call sees it.

    Raises
    ------
    NumbridgeTypeError
        If it does not lie where kernels run; the message names the argument.
    """
    import jax

    if getattr(getattr(jax.typeof(value), "memory_space", None), "name", "") == "Host":
        raise NumbridgeTypeError(
            f"{_where(found, place)}: it is in JAX's memory space for the host, and kernels run on what is in the device's; "
            "move it with jax.device_put(x, jax.memory.Space.Device)"
        )
    return described(value)


def described(value: Any) -> Operand:
    """Return shape and dtype of a value, as JAX will have it."""
    import jax

    aval = jax.typeof(value)
    # What JAX has made already keeps its width.
    is_made = isinstance(value, jax.Array) or not isinstance(aval.dtype, np.dtype)
    dtype = aval.dtype if is_made else jax.dtypes.canonicalize_dtype(aval.dtype)
    return Operand(tuple(aval.shape), dtype, bool(aval.weak_type))


def named(function: Callable[..., Any], name: str, arguments: Sequence[str]) -> None:
    """Let JAX's messages and profiles call a function and its positional arguments what the user calls them."""
    # An input may have the name that something beside the inputs goes by.
    unique = [f"{each}_{place}" if each in arguments[:place] else each for place, each in enumerate(arguments)]
    shown = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_ONLY) for each in unique]
    function.__name__ = function.__qualname__ = name
    function.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
