"""Dims that a function of a call's inputs says: asked before anything else is decided, so that all else sees extents only.

The function gets the inputs as the call has them: arrays or tracers, without the batch axes of `jax.vmap`, and numbers. It runs
each time, so nothing is concluded from what it said before. Nothing is planned or run here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numbridge.jax_ffi.plan import Options, number_of
from numbridge.jax_ffi.signature import Signature, frozen_dims
from numbridge.jax_ffi.values import jax_value
from numbridge.kernels.errors import NumbridgeTypeError

__all__ = ["asked", "given_dims"]


def given_dims(found: Signature, option: str, dims: Any) -> Any:
    """Return dims as a user gives them, checked: a function of the inputs, or in a form that can be hashed.

    Raises
    ------
    NumbridgeError
        If these are no dimensions, or the function does not take the inputs; the message says what was given.
    """
    what = f"{found.what}: {option}"
    if not callable(dims):
        return frozen_dims(dims, what, named=option == "output_dims")
    names = [parameter.name for parameter in found.inputs]
    try:
        signature = inspect.signature(dims)
    except (TypeError, ValueError):  # Python does not say
        return dims
    try:
        signature.bind(*names)
    except TypeError:
        raise NumbridgeTypeError(
            f"{what} is a function whose parameters are {signature}; it is called with the inputs ({', '.join(names)}), by "
            "position"
        ) from None
    return dims


def asked(found: Signature, options: Options, arguments: Sequence[Any]) -> Options:
    """Return options in which what functions say about a call's arguments stands for the functions.

    Raises
    ------
    NumbridgeError
        If an argument is none that JAX takes, or a function says no dimensions or asks for what JAX traces.
    """
    found.check_count(arguments)
    for place, argument in enumerate(arguments):
        if number_of(argument) is None:
            jax_value(found, place, argument)
    dims = {option: getattr(options, option) for option in ("launch_dims", "output_dims")}
    return replace(
        options,
        **{option: _said(found, option, given, arguments) for option, given in dims.items() if callable(given)},
    )


def _said(found: Signature, option: str, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    import jax

    what = f"{found.what}: {option}"
    try:
        dims = function(*arguments)
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        names = [p.name for p, a in zip(found.inputs, arguments, strict=True) if isinstance(a, jax.core.Tracer)]
        raise NumbridgeTypeError(
            f"{what}: the function asks for a value of {' or '.join(names)}, which JAX traces; dimensions come from what is "
            "known then, such as x.shape, and from numbers that are static (static_argnames)"
        ) from error
    except Exception as error:
        error.add_note(f"in the function that is {option} of {found.what} under JAX")
        raise
    return frozen_dims(dims, what, named=option == "output_dims")
