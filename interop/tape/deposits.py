"""Where gradients end: added to the ``grad`` of arrays that require one, and looked up by any other array on the same memory.

Adjoints have been computed when this is asked; nothing here reverses anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from numbridge.arrays.array import Array
from numbridge.arrays.gradients import gradient_of, has_shared_gradient, is_required
from numbridge.bridges.bridge import bridge_for_type
from numbridge.kernels.adjoint.overlap import share_memory
from numbridge.kernels.arguments import check_writable
from numbridge.kernels.errors import NumbridgeValueError, NumbridgeWarning
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import Description, describe
from numbridge.storage.memory import native
from numbridge.tape.adjoint_memory import AdjointMemory, Region, add
from numbridge.tape.retained_gradients import RetainedGradients
from numbridge.tape.tape_events import gradient_like

__all__ = ["Gradients", "deposit"]


def deposit(
    arrays: Iterable[Array], ends: Sequence[Array], memory: AdjointMemory, retained: RetainedGradients | None
) -> None:
    """Add the adjoints of arrays that require a gradient to their gradients.

    Parameters
    ----------
    arrays : iterable of Array
        Those that require one.
    ends : sequence of Array
        Those of them on which a framework's own gradient would have gone on to what they were made of.
    memory : AdjointMemory
        After everything that was recorded has been reversed.
    retained : RetainedGradients or None
        What is given in place of the adjoints of arrays that retain their gradients.
    """
    reached: list[tuple[Array, Description, Region]] = []
    for array in arrays:
        found = describe(array)
        region = memory.region(found)
        if region is not None and region.reached:
            reached.append((array, found, region))
            room = None if array._source is None else bridge_for_type(type(array._source))
            if room is not None and not has_shared_gradient(array):
                room.check_deposit(array._source)
    if ends:
        _warn_of_ends(reached, {id(array) for array in ends})
    gradients = [gradient_of(array, create=is_required(array)) for array, _, _ in reached]
    for (_, found, _), gradient in zip(reached, gradients, strict=True):
        if gradient is not None:
            _check_addable(found, gradient)
    for (_, found, region), gradient in zip(reached, gradients, strict=True):
        if gradient is not None:
            kept = None if retained is None else retained.part(found)
            more = memory.part(region, found) if kept is None else kept
            add(gradient if found.is_on_cuda else gradient.numpy(), more)


def _check_addable(found: Description, gradient: Array) -> None:
    """Refuse a gradient that cannot be added to, which frameworks let a user set, or of what its tensor was before."""
    word, _, shape, *_ = native().describe(gradient)
    if word & (nb.READ_ONLY | nb.REPEATED):
        check_writable("the grad of an array that a tape reached", gradient, describe(gradient), "backward adds to it")
    if shape != found.shape:
        raise NumbridgeValueError(
            f"backward: the grad of an array of shape {found.shape} has shape {shape}; its tensor has been given another "
            "shape or other memory since the array was made of it: make the array anew"
        )


def _warn_of_ends(reached: Sequence[tuple[Array, Description, Region]], ends: set[int]) -> None:
    """Say that a gradient ends at a tensor that is no leaf, unless it is a view of a leaf whose gradient it is."""
    leaves = [found for array, found, _ in reached if id(array) not in ends]
    if any(id(a) in ends and not any(share_memory(d, leaf) for leaf in leaves) for a, d, _ in reached):
        warnings.warn(
            "backward: the gradient of a tensor that is no leaf stays in tape.gradients[tensor], and does not flow to what "
            "the tensor was made of; pass it to the tensor's own backward, or make an operator of the kernel (nb.torch_op, "
            "nb.paddle_op), or pass tensor.detach()",
            NumbridgeWarning,
            stacklevel=4,
        )


class Gradients(Mapping[Any, Array]):
    """Array → its gradient, found by memory: views and tensors over the same memory have their own part of it."""

    def __init__(
        self, memory: AdjointMemory | None, objects: Iterable[Any], retained: RetainedGradients | None = None
    ) -> None:
        self._memory, self._retained = memory, retained
        self._objects = [obj for obj in {id(obj): obj for obj in objects}.values() if self._adjoint(obj) is not None]

    def _adjoint(self, array: Any) -> Any:
        found = describe(array)
        if self._memory is None or not found.is_array or found.scalar is None:
            return None
        region = self._memory.region(found)
        if region is None:
            return None
        kept = None if self._retained is None else self._retained.part(found)
        return region.adjoint(found) if kept is None else kept

    def __getitem__(self, array: Any) -> Array:
        """Return an array's gradient, on the tape's own memory."""
        adjoint = self._adjoint(array)
        if adjoint is None:
            raise KeyError("the tape has no gradient of this array")
        return gradient_like(adjoint, describe(array))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the arrays that were recorded."""
        return iter(self._objects)

    def __len__(self) -> int:
        """Return how many arrays were recorded."""
        return len(self._objects)
