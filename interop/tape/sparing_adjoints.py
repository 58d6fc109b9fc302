"""Adjoints of launches on large arrays that need no zeros to add to, and leave none behind.

Where a kernel stores every element of an array and loads none, the adjoint of what the array held before is zero. So its adjoint
is only read, even in memory that is somebody else's, and zeros are made if anybody asks for them. Where each thread loads its own
element of an array, to whose adjoint nothing has been added yet, the adjoint is stored, in memory that may hold anything.

A pass over memory that this spares takes about as long as a simple kernel. Arrays that fit into a cache gain little, and are
reversed in the one way that serves all, so that there is one thing to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.element_types.element_arguments import full_shape
from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.language.indexing import indexing_of
from numbridge.tape.adjoint_memory import AdjointMemory, Region
from numbridge.tape.tape_events import LaunchEvent

if TYPE_CHECKING:
    from numbridge.tape.tape_launches import Recipe

__all__ = ["SparingAdjoint", "reverse_sparingly", "sparing_adjoint"]

# Narrower ones are added up in others.
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


class SparingAdjoint:
    """The adjoint of a kernel, for launches that have the shape of some of its arrays.

    Attributes
    ----------
    derivative : Derivative
        What is launched.
    kept, fresh : tuple of int
        The arrays whose adjoints are only read, and those whose adjoints are stored; as positions among the active parameters.
    """

    def __init__(self, derivative: Any, kept: tuple[int, ...], fresh: tuple[int, ...]) -> None:
        self.derivative, self.kept, self.fresh = derivative, kept, fresh

    def fits(self, event: LaunchEvent, regions: Sequence[Region]) -> bool:
        """Tell whether each element of the arrays in question has a thread, and all there is of an adjoint is theirs."""
        for n in (*self.kept, *self.fresh):
            found, region = event.places[n].found, regions[n]
            if found.shape != event.geometry.dims or region.dtype not in _DTYPES or not region.is_filled_by(found):
                return False
        return all(regions[n].is_untouched for n in self.fresh)


def sparing_adjoint(recipe: Recipe) -> SparingAdjoint | None:
    """Return the sparing adjoint for launches of a recipe, if there is one."""
    signature, indexing = recipe.signature, indexing_of(recipe.signature.kernel)
    names = [signature.names[k] for k in recipe.active]
    kept = tuple(n for n in recipe.written if names[n] in indexing.covered)
    fresh = tuple(n for n, name in enumerate(names) if n not in recipe.written and name in indexing.loaded)
    if not (kept or fresh):
        return None
    stored = [names[n] for n in fresh]
    derivative = signature.kernel.adjoint(names, [names[n] for n in kept], (), stored, left=recipe.adjoint.left)
    try:
        plan = derivative.plan(signature.types, signature.weak)
    except KernelUnsupportedError:
        return None
    # What it changed for a while could be what a gradient starts from, and is read at the same time.
    changes = plan.in_blocks or not plan.writes.isdisjoint(signature.names)
    reads_more = not plan.reads <= {signature.names[k] for k in recipe.reads}
    return None if changes or reads_more else SparingAdjoint(derivative, kept, fresh)


def reverse_sparingly(
    sparing: SparingAdjoint,
    run: Callable[..., None],
    event: LaunchEvent,
    regions: Sequence[Region],
    memory: AdjointMemory,
) -> None:
    """Reverse a launch that the sparing adjoint fits; `run` launches it."""
    adjoints: list[Any] = []
    for n, (region, place) in enumerate(zip(regions, event.places, strict=True)):
        if n in sparing.kept:
            adjoints.append(region.read(place.found))
        elif n in sparing.fresh:
            adjoints.append(np.empty(full_shape(place.found), region.dtype))
        else:
            adjoints.append(memory.part(region, place.found))
    run(*event.arguments, *adjoints)
    # Not before it has run: what a launch that fails has stored is nobody's.
    for n in sparing.kept:
        regions[n].drop()
    for n in sparing.fresh:
        regions[n].take(adjoints[n])
