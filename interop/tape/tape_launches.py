"""Launches as a tape records them: what all of one variant have in common is found out once, and so is how they are reversed.

That is kept with the kernel's variants, for every tape, and goes when they do: when something that the kernel reads has
changed. What a launch alone decides is left to it: where its arrays lie, and which of them carry gradients.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from numbridge.arrays.array import Array
from numbridge.kernels.adjoint.derive import Derivative
from numbridge.kernels.adjoint.overlap import check_overlaps
from numbridge.kernels.element_types.elements import has_gradient
from numbridge.kernels.errors import BufferAccessError, KernelUnsupportedError, NumbridgeError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.language.dependencies import Dependency, check_unchanged
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.parameter_types import ArrayType, ParameterType
from numbridge.kernels.readers import describe, reader_of
from numbridge.kernels.variant import variants_of
from numbridge.storage.stream_order import let_launch_wait, wait_for_launch
from numbridge.tape.adjoint_memory import AdjointMemory, Region
from numbridge.tape.places import Place
from numbridge.tape.remembered_contents import RememberedContents
from numbridge.tape.row_places import RowPlaces
from numbridge.tape.sparing_adjoints import SparingAdjoint, reverse_sparingly, sparing_adjoint
from numbridge.tape.tape_events import LaunchEvent

__all__ = ["Recipe", "Signature", "has_moved", "meet", "reverse_launch", "signature_of", "why_opaque"]

_MAX_SIGNATURES, _MAX_RUNS = 1024, 256


class Signature:
    """What the launches of one variant have in common; parameters are known by their positions.

    Attributes
    ----------
    arrays, written : tuple of int
        The parameters that are arrays, and those of them that the kernel writes.
    are_written : tuple of (int, bool)
        The former, and whether they are of the latter.
    without_floats : tuple of int
        Those that it writes and that have no gradients.
    pairs : tuple of (int, int)
        The arrays of which one is written, which may not share memory.
    is_derivative, is_differentiable : bool
        Whether the kernel is one that carries gradients itself; and whether gradients pass it.
    """

    def __init__(self, kernel: Kernel, types: Sequence[ParameterType], weak: str) -> None:
        self.kernel, self.types, self.weak = kernel, tuple(types), weak
        self.variants = variants_of(kernel)
        self.names = tuple(parameter.name for parameter in kernel.parameters)
        self.arrays = tuple(k for k, kind in enumerate(types) if isinstance(kind, ArrayType))
        self.written = tuple(k for k in self.arrays if getattr(types[k], "written", False))
        self.are_written = tuple((k, k in self.written) for k in self.arrays)
        written = ((k, types[k]) for k in self.written)
        self.without_floats = tuple(k for k, kind in written if not has_gradient(kind.element, kind.scalar))
        pairs = [(a, b) for a in self.arrays for b in self.arrays if a < b]
        self.pairs = tuple((a, b) for a, b in pairs if a in self.written or b in self.written)
        self.is_derivative = isinstance(kernel, Derivative)
        self.is_differentiable = not self.is_derivative and kernel.options.get("enable_backward", True)
        self._recipes: dict[tuple[int, ...], Recipe] = {}

    def called(self, k: int) -> str:
        """Return what messages call a parameter."""
        return f"parameter {self.kernel.label(self.names[k])!r} of kernel {self.kernel.name!r}"

    def writes_repeatedly(self, at: Sequence[Any]) -> bool:
        """Tell whether an array that the kernel writes has elements with several indices."""
        for k in self.written:  # noqa: SIM110 - a generator would take longer
            if at[k].repeats:
                return True
        return False

    def are_apart(self, loaded: Sequence[Any], stored: Sequence[Any]) -> bool:
        """Tell whether a launch stores to nothing that it touches as another array, given which parts it touches.

        Then no thread's part in one array's gradient is another's in that of another array.
        """
        if self.writes_repeatedly(stored):
            return False
        for a, b in self.pairs:
            for one, other in ((stored[a], loaded[b]), (loaded[a], stored[b]), (stored[a], stored[b])):
                if one is other or one.meets(other):
                    return False
        return True

    def refuse_overlaps(self, at: Sequence[Any]) -> None:
        """Refuse arrays that share memory, with each other or themselves, where a gradient would be wrong."""
        found = {self.names[k]: at[k].found for k in self.arrays}
        written = {self.names[k] for k in self.written}
        check_overlaps(f"gradient of kernel {self.kernel.name!r}", list(found), written, (), found)

    def recipe(self, active: tuple[int, ...]) -> Recipe:
        """Return how launches are reversed in which gradients pass through these parameters.

        Raises
        ------
        NumbridgeError
            If the kernel has no such adjoint.
        """
        found = self._recipes.get(active)
        if found is None or not found.holds():
            found = self._recipes[active] = Recipe(self, active)
        return found


class Recipe:
    """How launches of one variant are reversed.

    Attributes
    ----------
    active : tuple of int
        The parameters with an adjoint.
    written : tuple of int
        Which of the active ones the kernel writes, as positions among these.
    pairs : tuple of (int, int)
        Those of the others, as such positions, which may share memory.
    adjoint : Derivative
        The adjoint, which takes what the launch changes as it is after that where it can.
    reads : tuple of int
        The parameters whose contents the adjoint reads, in their order.
    snapshot : frozenset of int
        Those of them that must be as they were before the launch, which changes them.
    stored_again : frozenset of int
        Those of these that the adjoint stores to for a while, which must be nobody else's.
    rows : RowPlaces or None
        The arrays of which a launch may touch some rows only.
    dependencies : tuple of Dependency
        The variables that the kernel was compiled with.
    """

    def __init__(self, signature: Signature, active: tuple[int, ...]) -> None:
        self.signature, self.active = signature, active
        self.written = tuple(n for n, k in enumerate(active) if k in signature.written)
        # Recording has refused what is written and shares memory.
        read = [n for n in range(len(active)) if n not in self.written]
        self.pairs = tuple((a, b) for a in read for b in read if a < b)
        self.adjoint = signature.kernel.adjoint([signature.names[k] for k in active])
        plan, dependencies = self.adjoint.planned(signature.types, signature.weak)
        if plan.lasting:
            # What the launch leaves is there already; what it finds would have to be copied first.
            with contextlib.suppress(KernelUnsupportedError):
                adjoint = signature.kernel.adjoint(self.adjoint.wanted, left=sorted(plan.lasting))
                plan, dependencies = adjoint.planned(signature.types, signature.weak)
                self.adjoint = adjoint
        self.reads = tuple(sorted(map(signature.names.index, plan.reads)))
        self.snapshot = frozenset(map(signature.names.index, plan.snapshot))
        self.stored_again = self.snapshot.intersection(map(signature.names.index, plan.writes & {*signature.names}))
        self.rows = RowPlaces(signature.names, plan.rows) if plan.rows else None
        self.dependencies: tuple[Dependency, ...] = signature.variants.dependencies
        # A launch has looked at the kernel's own already when it comes to be recorded.
        own = {(id(d.container), d.name) for d in self.dependencies if d.container is not None}
        self._more = tuple(d for d in dependencies if (id(d.container), d.name) not in own)
        self._runs: dict[tuple[int, str], tuple[Any, Callable[..., None]]] = {}

    @functools.cached_property
    def sparing(self) -> SparingAdjoint | None:
        """The adjoint that spares passes over memory, if there is one; to be asked while what this depends on holds."""
        return sparing_adjoint(self)

    def holds(self) -> bool:
        """Tell whether all that this depends on is as it was, for a launch whose kernel has just been looked at."""
        if self.signature.variants.dependencies is not self.dependencies:
            return False
        return not self._more or all(dependency.holds() for dependency in self._more)

    def run(self, geometry: Any, way: str) -> Callable[..., None]:
        """Return what launches the adjoint over a launch's geometry.

        The adjoints lie ``apart``, ``together``, or in a way that must be ``checked``; or the ``sparing`` adjoint is launched.
        """
        known = self._runs.get((id(geometry), way))
        if known is None:
            if way == "checked":
                made = self.adjoint.over(geometry)
            elif way == "sparing":
                assert self.sparing is not None
                made = self.sparing.derivative.unchecked_over(geometry, apart=True)
            else:
                made = self.adjoint.unchecked_over(geometry, apart=way == "apart")
            if len(self._runs) >= _MAX_RUNS:
                self._runs.clear()
            # The geometry is kept, so that none of another launch gets its id.
            known = self._runs[id(geometry), way] = geometry, made
        return known[1]


def signature_of(kernel: Kernel, types: Sequence[ParameterType], weak: str) -> Signature:
    """Return the signature of a launch that is about to run; a variant's types are always the same object."""
    recorded = kernel.variants.recorded
    known: Signature | None = recorded.get(id(types))
    if known is None or known.types is not types or known.weak != weak:
        if len(recorded) >= _MAX_SIGNATURES:
            recorded.clear()
        known = recorded[id(types)] = Signature(kernel, types, weak)
    return known


def why_opaque(kernel: Kernel, is_recorded: bool) -> str:
    """Return why no gradient passes what a kernel writes."""
    if not is_recorded:
        return f"kernel {kernel.name!r}, launched with record_tape=False"
    if isinstance(kernel, Derivative):
        return f"the {kernel.name}, which is not differentiated again"
    return f"kernel {kernel.name!r}, declared with enable_backward=False"


def reverse_launch(event: LaunchEvent, memory: AdjointMemory, contents: RememberedContents) -> None:
    """Carry the gradients of what a launch wrote to what it read; nobody may record that."""
    recipe = event.recipe
    regions = memory.of_each(event.places)
    for n in recipe.written:
        if regions[n].reached:
            break
    else:
        return
    stream: int | None = event.geometry.stream
    found = [] if stream is None else [place.found for place in event.places]
    if stream is not None:
        wait_for_launch(stream, found)
    way = _check_unchanged(event, contents)
    try:
        sparing = _sparing(event, regions) if way == "apart" and memory.has_large else None
        if sparing is not None:
            reverse_sparingly(sparing, recipe.run(event.geometry, "sparing"), event, regions, memory)
        else:
            given, run = [*event.arguments, *memory.parts(regions, event.places)], recipe.run(event.geometry, way)
            # All else is done on the current stream, and the adjoint runs on that of the launch.
            if stream is not None:
                let_launch_wait(stream, found)
            run(*given)
            if stream is not None:
                wait_for_launch(stream, found)
    except BufferAccessError:
        _refuse_repeated(event)
        raise
    for region in regions:
        region.reached = True


def _sparing(event: LaunchEvent, regions: Sequence[Region]) -> SparingAdjoint | None:
    """Return the sparing adjoint of a launch on large arrays, if it fits."""
    sparing = event.recipe.sparing if [region for region in regions if region.is_large] else None
    return sparing if sparing is not None and sparing.fits(event, regions) else None


def _refuse_repeated(event: LaunchEvent) -> None:
    """Say of which of a launch's arguments an adjoint, which lies like it, cannot be written."""
    signature = event.recipe.signature
    for k, place in zip(event.recipe.active, event.places, strict=True):
        if place.repeats or place.found.has(nb.REPEATED):
            raise BufferAccessError(
                f"backward: {signature.called(k)} has strides "
                f"{place.found.strides} bytes for shape {place.found.shape}, so several indices name one element; pass a "
                "contiguous array, such as x.contiguous() or nb.clone(x), and record again"
            ) from None


def _check_unchanged(event: LaunchEvent, contents: RememberedContents) -> str:
    """Refuse to go back through a launch whose adjoint would not see what the launch saw; return how to launch it."""
    signature = event.recipe.signature
    if event.dependencies:
        check_unchanged(f"backward through kernel {signature.kernel.name!r}", event.dependencies)
    arguments, at, reads = event.arguments, event.at, event.reads
    wholes = event.wholes
    is_checked = False
    for k in signature.arrays:
        argument = arguments[k]
        if (type(argument) is not Array or argument._source is not None) and at[k] and has_moved(argument, wholes[k]):
            if k in reads:
                raise NumbridgeError(
                    f"backward: the tensor of {signature.called(k)} has been "
                    "given other memory since the launch, as by x.data = y; write into the memory that it has, as by x.copy_(y), "
                    "or record again"
                )
            is_checked = True
    for k in (*event.lost, *reads):
        if k in event.lost or not contents.holds_read(at[k]):  # type: ignore[arg-type]
            raise NumbridgeError(
                f"backward: {signature.called(k)} has been changed since the "
                "launch, by something that the tape is not told of; change it in a launch or by a method of nb.Array, or pass a "
                "copy"
            )
    for place in event.places:
        if place.repeats:
            is_checked = True
    if is_checked:
        return "checked"
    # Adjoints lie like their arrays, in memory of their own: nothing else can be wrong with them.
    return "together" if event.recipe.pairs and meet(event.places, event.recipe.pairs) else "apart"


def meet(at: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> bool:
    """Tell whether one of some pairs of places shares memory."""
    for a, b in pairs:
        place, other = at[a], at[b]
        if (len(place.links) > 1 or place is other) and place.meets(other):
            return True
    return False


def has_moved(argument: Any, place: Place | None) -> bool:
    """Tell whether a framework has given an argument other memory, or another shape, since it was launched with."""
    if place is None:
        return False
    if type(argument) is Array:
        source = argument._source
        return source is not None and reader_of(source).may_move and describe(source).data != place.found.data
    found = describe(argument)
    return found is not place.found and found.place != place.found.place
