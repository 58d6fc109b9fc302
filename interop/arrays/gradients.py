"""The gradient state of arrays: whose gradient it is, and when it comes into being.

An array adopted from a framework's tensor follows that tensor. Any other keeps its gradient itself, and a view's is the
same view of its parent's. Memory for a gradient is taken when it is first read, not before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from numbridge.bridges import bridge
from numbridge.kernels.adjoint.overlap import share_memory
from numbridge.kernels.arguments import check_writable
from numbridge.kernels.element_types.elements import has_gradient
from numbridge.kernels.errors import BufferAccessError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.readers import describe
from numbridge.kernels.scalars import COMPLEX
from numbridge.storage.element_views import packed
from numbridge.storage.memory import adopt, allocate, element_of, row_of

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = [
    "GradientState",
    "check_differentiable",
    "existing_gradient",
    "gradient_of",
    "has_shared_gradient",
    "inherit_gradient",
    "is_required",
    "joining",
    "require_gradient",
    "retain_gradient",
    "retains_gradient",
    "root_of",
    "set_gradient",
    "share_gradient",
]

joining = threading.RLock()
"""Held while a gradient is made, or an array and a tensor come to share one; of two, what one thread adds would be lost."""


class GradientState:
    """What an array says of its gradient itself; most arrays have no such state."""

    __slots__ = ("gradient", "parent", "required", "retained", "step")

    def __init__(self) -> None:
        self.required: bool | None = None
        self.gradient: Array | None = None
        self.parent: Array | None = None
        self.step: Callable[[Array], Array] | None = None
        self.retained = False


def _state(array: Array) -> GradientState:
    if array._extra is None:
        array._extra = GradientState()
    return array._extra


def _room(array: Array) -> bridge.Room | None:
    return None if array._source is None else bridge.bridge_for_type(type(array._source))


def is_required(array: Array) -> bool:
    """Tell whether kernels are differentiated with respect to an array."""
    state = array._extra
    if state is not None and state.required is not None:
        return state.required
    if array._source is None:
        return False
    room = _room(array)
    return room is not None and room.requires_grad_of(array._source)


def check_differentiable(array: Array) -> None:
    """Raise NumbridgeTypeError for an array of numbers that have no gradient."""
    row, element = row_of(array), element_of(array)
    if not (has_gradient(element, row) or row.code == COMPLEX):
        found = row if element is None else element
        raise NumbridgeTypeError(f"requires_grad needs a floating or complex dtype; this array is {found.name}")


def require_gradient(array: Array, required: bool) -> None:
    """Say whether kernels are differentiated with respect to an array, whatever its tensor says."""
    if required:
        check_differentiable(array)
    state = _state(array)
    state.required = bool(required)
    if not required:
        state.gradient, state.retained = None, False


def retains_gradient(array: Array) -> bool:
    """Tell whether a tape keeps the gradient of what an array, or the one that it is a view of, holds last."""
    state = root_of(array)._extra
    return state is not None and state.retained


def retain_gradient(array: Array, retained: bool) -> None:
    """Say whether a tape keeps the gradient of what an array, or the one that it is a view of, holds last."""
    root = root_of(array)
    if retained and not is_required(root):
        raise NumbridgeValueError(
            "retain_grad=True of an array that requires no gradient, and has none to keep; pass requires_grad=True, too"
        )
    if retained or root._extra is not None:
        _state(root).retained = bool(retained)


def inherit_gradient(view: Array, parent: Array, step: Callable[[Array], Array]) -> None:
    """Let a view's gradient be the same view (`step`) of its parent's, if the parent requires one."""
    if is_required(parent):
        state = _state(view)
        state.required, state.parent, state.step = True, parent, step


def root_of(array: Array) -> Array:
    """Return the array whose gradient a view's is a part of."""
    while array._extra is not None and array._extra.parent is not None:
        array = array._extra.parent
    return array


def existing_gradient(array: Array) -> Array | None:
    """Return an array's gradient if there is one already; never makes one."""
    return gradient_of(array, create=False)


def gradient_of(array: Array, create: bool) -> Array | None:
    """Return an array's gradient, made of zeros first if there is none and `create` is true."""
    state = array._extra
    if state is not None and state.gradient is not None:
        return state.gradient
    room = _room(array)
    if state is not None and state.parent is not None and state.step is not None:
        whole = gradient_of(state.parent, create)
        return None if whole is None else state.step(whole)
    with joining if create else nullcontext():
        found = None if room is None else room.gradient_of(array._source, create)
    if found is None:
        return _own_gradient(array) if create else None
    element = element_of(array)
    return found if element is None else packed(found, element)


def _own_gradient(array: Array) -> Array:
    with joining:
        state = _state(array)
        if state.gradient is None:
            state.gradient = allocate(array.shape, element_of(array) or row_of(array), array.device, zeroed=True)
        return state.gradient


def set_gradient(array: Array, value: Any) -> None:
    """Make `value`, or nothing, an array's gradient: on its tensor, in its parent's gradient, or its own."""
    gradient = None if value is None else _checked(array, value)
    state, room = array._extra, _room(array)
    if gradient is not None and (state is None or state.parent is None):
        _check_own(array, gradient, value)
    if state is not None and state.parent is not None:
        part = gradient_of(array, create=True)
        assert part is not None
        part.fill_(0) if gradient is None else part.assign(gradient)
        return
    if room is not None:
        room.set_gradient(array._source, gradient)
        # A framework without a place for gradients leaves it to the array.
        gradient = None if room.gradient_of(array._source, False) is not None else gradient
    if state is not None or gradient is not None:
        _state(array).gradient = gradient


def share_gradient(array: Array, value: Any) -> None:
    """Make `value` what kernels add an array's gradient to, and leave that of its tensor, which would be a copy, as it is."""
    gradient = _checked(array, value)
    _check_own(array, gradient, value)
    _state(array).gradient = gradient


def has_shared_gradient(array: Array) -> bool:
    """Tell whether an array, or the one that it is a view of, has a gradient apart from its tensor's."""
    state = root_of(array)._extra
    return state is not None and state.gradient is not None


def _checked(array: Array, value: Any) -> Array:
    gradient, element = adopt(value) if type(value) is not type(array) else value, element_of(array)
    if element is not None and element_of(gradient) is None:
        gradient = packed(gradient, element)
    if gradient.shape != array.shape or row_of(gradient) != row_of(array) or element_of(gradient) is not element:
        raise NumbridgeValueError(
            f"grad has shape {gradient.shape} and dtype {row_of(gradient).name}; it must have the array's, "
            f"{array.shape} and {row_of(array).name}"
        )
    made: Array = gradient
    return made


def _check_own(array: Array, gradient: Array, value: Any) -> None:
    """Refuse a gradient that cannot be added to, or that is, or lies in, what it is the gradient of."""
    check_writable("grad", value, describe(value), "gradients are added to it")
    if share_memory(describe(array), describe(gradient)):
        raise BufferAccessError(
            "grad: gradients are added to it, and it shares memory with the array whose gradient it is to be; pass one with "
            "memory of its own, such as nb.zeros_like(array)"
        )
