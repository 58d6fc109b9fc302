"""Where gradients start: what `Tape.backward` is given, checked, and as values that adjoints begin with.

Knows arrays and no tape: whether one has been recorded is the tape's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from numbridge.arrays.array import Array
from numbridge.arrays.contents import as_values, copied
from numbridge.bridges.bridge import bridge_for_type
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import Device
from numbridge.kernels.element_types.element_arguments import full_shape
from numbridge.kernels.errors import NumbridgeError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.readers import Description, describe
from numbridge.kernels.scalars import COMPLEX
from numbridge.storage.element_views import packed
from numbridge.storage.memory import allocate
from numbridge.tape.places import has_floats

__all__ = ["ONE", "check_loss", "cotangent_of", "floating", "pairs"]

# Stands for the gradient of a loss by itself.
ONE: Any = object()


def pairs(grads: Any) -> list[tuple[Any, Any]]:
    """Return arrays with the gradients that were given for them."""
    if grads is None:
        return []
    if type(grads) is dict:
        return list(grads.items())
    is_array = isinstance(grads, Array) or bridge_for_type(type(grads)) is not None
    given = grads.items() if isinstance(grads, Mapping) else grads
    try:
        found = [] if is_array else list(given)
    except TypeError:
        is_array = True
    if is_array or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in found):
        raise NumbridgeTypeError(
            f"backward: grads is of type {type(grads).__name__}; wanted {{array: gradient}}, or pairs [(array, gradient)], which "
            "arrays that are no keys need, such as NumPy's"
        )
    return [(array, gradient) for array, gradient in found]


def floating(array: Any, what: str = "an array in grads") -> Description:
    """Return what describes an array that may have a gradient; anything else is refused."""
    found = describe(array)
    if not (found.is_array and has_floats(found.tag)):
        kind = type(array).__name__
        got = (
            repr(array)
            if isinstance(array, str | int | float)
            else f"{kind} of {found.scalar.name}"
            if found.scalar
            else kind
        )
        raise NumbridgeTypeError(
            f"backward: gradients come from arrays of floating-point numbers, and {what} is {got}; pass an array that a recorded "
            "launch has written"
        )
    return found


def check_loss(loss: Any) -> None:
    """Refuse a loss that is not one number."""
    found = floating(loss, "the loss")
    if found.scalar is not None and found.scalar.code == COMPLEX:
        raise NumbridgeTypeError(
            f"backward: the loss is {found.scalar.name}, and must be a real number; pass grads={{array: gradient}}"
        )
    if found.element is not None and found.element.fields is not None:
        raise NumbridgeTypeError("backward: the loss is a record, and must be a number; pass grads={array: gradient}")
    if any(extent != 1 for extent in full_shape(found)):
        raise NumbridgeValueError(
            f"backward: the loss has shape {full_shape(found)}, and must have one element; pass grads={{array: gradient}}"
        )


def cotangent_of(found: Description, value: Any) -> Any:
    """Return the gradient that was given for an array where the array lies: on the host, or on its device."""
    wanted = found.shape if found.element is None else full_shape(found)
    if value is ONE:
        values: Any = _ones(wanted, found)
    elif found.is_on_cuda:
        # What is copied in the array's dtype would not tell.
        if _is_complex(value):
            _refuse_complex(found)
        _refuse_host_values(value, found)
        values = copied(value, found.scalar, Device("cuda", found.device_id))
    else:
        values = value.numpy() if type(value) is Array else np.asarray(as_values(value))
        if values.dtype.kind == "c":
            _refuse_complex(found)
        if values.dtype.kind in "OUSMmT":
            raise NumbridgeTypeError(f"backward: the gradient is an array of {values.dtype}; give one of numbers")
    if found.element is not None and found.element.fields is not None:
        wanted = found.shape
        if values.dtype != found.element.fields:
            raise NumbridgeTypeError(
                f"backward: the gradient has dtype {values.dtype}, and its array has records of {found.element.name}; give "
                "one of the same dtype"
            )
    if values.shape != wanted:
        raise NumbridgeValueError(
            f"backward: the gradient has shape {values.shape}, and its array {wanted}; give one of the same shape"
        )
    return packed(values, found.element) if found.is_on_cuda and found.element is not None else values


def _ones(shape: tuple[int, ...], found: Description) -> Any:
    """Return ones where an array lies; on a device, a kernel writes them, so that a graph can record it."""
    if not found.is_on_cuda:
        # As `np.ones`, in a quarter of the time: it is the gradient of one number.
        return np.array(1.0, ndmin=len(shape))
    from numbridge.storage import cupy_memory

    made = allocate(shape, found.scalar, Device("cuda", found.device_id), zeroed=False)
    cupy_memory.assign(made, ..., 1)
    return made


def _refuse_host_values(value: Any, found: Description) -> None:
    """Refuse what a graph that is being recorded would copy from the host, where it may lie no longer when the graph runs."""
    given = describe(value)
    if given.is_array and given.is_on_cuda:
        return
    if cuda_driver.devices().is_current_captured(found.device_id):
        raise NumbridgeError(
            f"backward: the gradient of an array of shape {full_shape(found)} lies on the host ({type(value).__name__}), and the "
            f"graph that is recorded on cuda:{found.device_id} would read it there whenever it is launched; pass an array on "
            "that device, such as nb.array(gradient, device=...), made before the capture"
        )


def _refuse_complex(found: Description) -> None:
    """Refuse a complex gradient of real numbers."""
    if found.scalar is not None and found.scalar.code != COMPLEX:
        raise NumbridgeTypeError(
            f"backward: the gradient is complex, and its array has real numbers, {found.scalar.name}; give its real part"
        )


def _is_complex(value: Any) -> bool:
    """Tell whether there are complex numbers in an array, or in what can be made one."""
    given = describe(value)
    if not given.is_array:
        return bool(np.iscomplexobj(as_values(value)))
    return given.scalar is not None and given.scalar.code == COMPLEX
