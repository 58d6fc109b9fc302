"""A kernel, specialised: which types it is compiled for, found in memory, on disk, or compiled.

A *variant* is native code for one combination of parameter types. A *specialisation* is how the compiled entry recognises
that a launch's arguments are for a variant: a masked word per argument, and the global values that the code was compiled
with. Several specialisations may share a variant. Arguments are checked on the slow road, in `arguments`; by the time that a
specialisation exists, comparing words is all that a launch needs.
"""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.arguments import bound_types, check_count, check_limit, launch_device
from numbridge.kernels.cpu_backend.blocks.crews import load_crews
from numbridge.kernels.cpu_backend.blocks.source import ASKED, BlockSource, block_source
from numbridge.kernels.cpu_backend.races import Races, load_accesses, remember
from numbridge.kernels.cpu_backend.range_source import LaneSource, Private, range_source
from numbridge.kernels.cpu_backend.row_source import Widths
from numbridge.kernels.cpu_backend.totals import (
    PRIVATE,
    Total,
    additions_of,
    greater,
    has_even_trips,
    only_added,
    with_either,
    with_totals,
)
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.grid_source import Form, grid_source
from numbridge.kernels.cuda_backend.ids_together import Together, ids_together
from numbridge.kernels.devices import CPU, Device, get_device
from numbridge.kernels.element_types.element_arguments import outer_rank, record_dtype
from numbridge.kernels.errors import DeviceError, KernelError, NumbridgeTypeError
from numbridge.kernels.language.dynamic_memory import check_dynamic_memory
from numbridge.kernels.language.emission import Emitted, emit
from numbridge.kernels.language.indexing import indexing_of
from numbridge.kernels.language.reaches import reaches_of
from numbridge.kernels.language.rewriting import Target
from numbridge.kernels.language.source import Program
from numbridge.kernels.language.waiting import is_ordered
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.object_cache import (
    Compiled,
    compiled_or_stored,
    cuda_fingerprint,
    digest,
    generator_fingerprint,
    keep_text,
    load,
    machine_fingerprint,
)
from numbridge.kernels.parameter_types import ArrayType, ParameterType, block_offsets, have_complex
from numbridge.kernels.readers import Description, describe
from numbridge.kernels.specialisation import Specialisation, mask, specialisation
from numbridge.kernels.spread_table import SpreadTable

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = [
    "MASKED",
    "Place",
    "Variant",
    "Variants",
    "compile_for",
    "variants_of",
]

# Below this many threads a launch runs on the calling thread: waking others costs about 2 us. A body with a loop is taken
# to be a hundred times as heavy as one without.
_SERIAL_BELOW, _SERIAL_BELOW_WITH_LOOP = 1 << 16, 1 << 8
_GRAIN = 1 << 13
_PIECES, _FEW_PIECES = 8, 3
# Below this many threads a body without loops is over in a microsecond or so, and keeps the GIL.
_BRIEF_BELOW = 1 << 10
# How often a thread with a loop is taken to add to elements.
_ADDITIONS_WITH_LOOP = 16
_MAX_CHECKED = 256
_look = operator.attrgetter("look")

_Types = tuple[tuple[ParameterType, ...], str]


@dataclass(frozen=True)
class Place:
    """How and where launches of one kind run.

    Attributes
    ----------
    form : {'masked', 'plain'}
        Whether ids past the launch's dimensions are masked; the CPU's loop never runs them.
    device : Device or None
        The device that was asked for; None: that of the arguments.
    shared : int
        Bytes of dynamic shared memory per block.
    """

    form: Form = "masked"
    device: Device | None = None
    shared: int = 0

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """What tells places apart, to be looked up by in less time."""
        return self.form, None if self.device is None else str(self.device), self.shared


MASKED = Place()


@dataclass(frozen=True)
class Variant:
    """Native code of a kernel for one combination of types.

    Attributes
    ----------
    parameters : tuple of ParameterType
        What it was compiled for.
    weak_float : str
        The type of float literals and Python floats.
    device : Device
        Where it runs.
    address : int
        The native ``run`` function, or the handle of the CUDA kernel.
    source_file : str
        Where the generated source lies.
    from_cache : bool
        Whether the code came from disk.
    wide : tuple of str
        Source lines on which float64 arithmetic happens.
    has_loop : bool
        Whether the body has a loop.
    launch_function : int
        On CUDA, the address of the driver function that launches it; 0 on the CPU.
    places : tuple of int
        On CUDA, where in the argument block each of the kernel's parameters lies, of those that it reads.
    dims : int
        On CUDA, how many of the launch's dimensions follow its parameters.
    levels : int
        On CUDA, how many axes of a batch one launch of it runs.
    together : int
        How many threads it runs at once: on the CPU neighbouring ones, on CUDA those that one thread of a large grid takes,
        as SPEC_TOGETHER has it.
    adds : bool
        On the CPU, whether a worker may add to copies of arrays.
    is_even : bool
        On the CPU, whether its threads make the same trips of their loops.
    strides : bool
        On the CPU, whether a loop over the grid is around the body, so that a thread may take long without a loop in it.
    in_loops : bool
        On the CPU, whether the threads of a block, which wait for each other, run in loops from barrier to barrier and not as
        coroutines.
    """

    parameters: tuple[ParameterType, ...]
    weak_float: str
    device: Device
    address: int
    source_file: str
    from_cache: bool
    wide: tuple[str, ...]
    has_loop: bool
    launch_function: int = 0
    places: tuple[int, ...] = ()
    dims: int = 0
    levels: int = 0
    together: int = 1
    adds: bool = False
    is_even: bool = False
    strides: bool = False
    in_loops: bool = False

    @property
    def block_size(self) -> int:
        """Bytes of the argument block; at least one parameter's room, so that there is always something to point to."""
        return max(block_offsets(self.parameters)[-1], 16)

    @property
    def serial_below(self) -> int:
        """With fewer threads than this, a launch on the CPU runs on the calling thread."""
        return _SERIAL_BELOW_WITH_LOOP if self.has_loop or self.strides else _SERIAL_BELOW

    @functools.cached_property
    def types(self) -> _Types:
        """The parameters' types, with that of floating literals."""
        return self.parameters, self.weak_float

    @functools.cached_property
    def threads_from(self) -> float:
        """From how many threads on a launch wants the threading layer, which serves the CPU alone."""
        return self.serial_below if self.device.is_cpu else math.inf

    @property
    def brief_below(self) -> int:
        """With fewer threads than this, a launch on the CPU keeps the GIL."""
        return 0 if self.has_loop or self.strides else _BRIEF_BELOW

    @property
    def pieces(self) -> int:
        """How many pieces of a launch each worker on the CPU takes about.

        Enough for the threading layer to balance what takes threads unequally long, and few enough to cost nothing. Copies that a
        worker adds to cost the same for each piece; and with loops over the grid, so do the trips.
        """
        if self.has_loop and not (self.adds and self.is_even):
            return _FEW_PIECES if self.adds else _PIECES
        return 1 if self.adds or self.strides else _PIECES

    @property
    def grain(self) -> int:
        """How many threads a worker takes at least, and how many pieces: see `table_layout`."""
        least = self.together if self.has_loop or self.adds or self.strides else _GRAIN
        return least | self.pieces << nb.GRAIN_PIECES


class Variants:
    """All variants of one kernel, and the tables through which the compiled entry finds them, one per place."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._tables: dict[Place, np.ndarray[Any, np.dtype[np.int64]]] = {}
        self._spreads: dict[Place, SpreadTable] = {}
        self._lock = threading.RLock()
        self._variants: dict[Any, Variant] = {}
        self._specialisations: dict[Any, Specialisation] = {}
        # By what arguments look like, where they have been checked and compiled for
        self._checked: dict[Any, Variant] = {}
        # What the code that was last asked for depends on outside of its source
        self.dependencies: tuple[Any, ...] = ()
        self._dependencies: tuple[Any, ...] | None = None
        self._written: dict[tuple[Any, ...], frozenset[str]] = {}
        # Code and tables that another thread may be running on are never freed.
        self._kept: list[Any] = []
        self.launchers: dict[Any, Any] = {}
        # What whoever watches launches has found out of them, as long as what the kernel reads holds
        self.recorded: dict[Any, Any] = {}
        # Whether it is still to be said, once, that a framework's gradient is lost: see `lost_gradient`.
        self.warns = True
        self.last: tuple[tuple[ParameterType, ...], str] | None = None

    def table(self, place: Place) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the table of specialisations for launches in a place."""
        with self._lock:
            return self._tables.setdefault(place, np.zeros(nb.MAX_VARIANTS + 1, np.int64))

    def spreads(self, place: Place) -> SpreadTable:
        """Return how tuples among the arguments of launches in a place are recognised."""
        with self._lock:
            return self._spreads.setdefault(place, SpreadTable())

    def checked(self, found: Sequence[Description], place: Place) -> Variant | None:
        """Return the variant that arguments like these were checked for, or None; a number may still not fit."""
        if self._dependencies != ():
            self.refresh()
        variant = self._checked.get((place.key, *map(_look, found)))
        if variant is not None:
            self.last = variant.types
        return variant

    def specialise(
        self, arguments: Sequence[Any], place: Place = MASKED, found: Sequence[Description] | None = None
    ) -> Variant:
        """Make the compiled entry recognise these arguments, and return the variant that they run.

        `found` is what they are, where somebody has read them.

        Raises
        ------
        NumbridgeError
            If an argument does not fit; the message names the parameter, what it is, what was wanted and what to do.
        """
        kernel = self.kernel
        check_count(kernel, arguments)
        check_limit(kernel)
        if found is None:
            found = [*map(describe, arguments)]
        with self._lock:
            dependencies = self._forget_old_globals()
            types = self.last = self.types(arguments, found)
            device = launch_device(kernel, arguments, found, place.device)
            variant = self._variant(types, device, place.form)
            check_dynamic_memory(kernel, place.shared)
            if device.is_cuda:
                cuda_driver.devices().allow_shared(variant.address, device.ordinal, place.shared)
            self._install(variant, found, self.table(place), dependencies)
            if not any(d.is_element or d.kind == 0 or d.has(nb.GUARDED | nb.UNSURE) for d in found):
                if len(self._checked) >= _MAX_CHECKED:
                    self._checked.clear()
                self._checked[place.key, *map(_look, found)] = variant
            return variant

    def variant_of(self, parameters: tuple[ParameterType, ...], weak: str) -> Variant:
        """Return the variant for parameter types that are known without arguments; `weak` is the kernel's floating type."""
        with self._lock:
            self._forget_old_globals()
            return self._variant((parameters, weak), CPU, MASKED.form)

    def by_reference(
        self, parameters: tuple[ParameterType, ...], weak: str, names: frozenset[str], levels: int = 0
    ) -> Variant:
        """Return the variant for CUDA in which some scalars lie in device memory, each an array of one element.

        With `levels` it runs a batch of that many axes, if that needs nothing that is a block's own.
        """
        types = tuple(
            ArrayType(p.name, p.scalar, 1, True, False, p.element) if p.name in names else p for p in parameters
        )
        key = (parameters, weak, names, levels)
        with self._lock:
            self._forget_old_globals()
            if key not in self._variants:
                emitted = self.emitted(parameters, weak, "cuda")
                device, form = get_device("cuda"), MASKED.form
                self._variants[key] = _cuda_variant(self.kernel, emitted, types, weak, device, form, names, levels)
            return self._variants[key]

    def _forget_old_globals(self) -> tuple[Any, ...]:
        """Start anew if a global value that the kernel read has changed; return those that it reads."""
        known = self._dependencies
        if known is None or not all(dependency.holds() for dependency in known):
            self._kept.extend((self._specialisations, self._variants, known))
            self._variants, self._specialisations, self._written, self._checked = {}, {}, {}, {}
            self.recorded = {}
            self.dependencies = self._dependencies = known = self.kernel.dependencies()
        return known

    def refresh(self) -> None:
        """Look whether a global value that the kernel read has changed, and start anew if it has."""
        with self._lock:
            self._forget_old_globals()

    def written(self, found: Mapping[str, Description]) -> frozenset[str]:
        """Return the parameters that the kernel may write, given its arrays."""
        annotations = {p.name: p.annotation for p in self.kernel.parameters if p.name in found}
        ranks = {name: outer_rank(annotation, found[name]) for name, annotation in annotations.items()}
        kinds = {name: record_dtype(annotation, found[name]) for name, annotation in annotations.items()}
        records = {name: dtype for name, dtype in kinds.items() if dtype is not None}
        key = (*ranks.items(), *records.items())
        with self._lock:
            self._forget_old_globals()
            if key not in self._written:
                self._written[key] = self.kernel.source.written(ranks, records)
            return self._written[key]

    def types(self, arguments: Sequence[Any], found: Sequence[Description]) -> _Types:
        """Return the types that a variant for these arguments has, and its floating type; raises if one does not fit."""
        arrays = {p.name: d for p, d in zip(self.kernel.parameters, found, strict=True) if d.is_array}
        return bound_types(self.kernel, arguments, found, self.written(arrays))

    def emitted(self, parameters: tuple[ParameterType, ...], weak: str, target: Target) -> Emitted:
        """Return the text that a variant is compiled from."""
        if self.kernel.source.differentiates:
            from numbridge.kernels.adjoint.derive import check_floats, with_gradients

            program = with_gradients(self.kernel)
            check_floats(program, parameters)
            return program.emitted(parameters, weak, target)
        return emit(
            self.kernel.source,
            weak,
            target,
            check_bounds=self.kernel.checks_bounds,
            check_races=self.kernel.checks_races,
            has_complex=have_complex(parameters),
            parameters=parameters,
        )

    def _variant(self, types: _Types, device: Device, form: Form) -> Variant:
        key = (*types, device, form if device.is_cuda else None)
        if key not in self._variants:
            if device.is_cuda:
                emitted = self.emitted(*types, "cuda")
                self._variants[key] = _cuda_variant(self.kernel, emitted, *types, device, form)
            else:
                self._variants[key] = _cpu_variant(self.kernel, self.emitted(*types, "cpu"), *types)
        return self._variants[key]

    def _install(
        self,
        variant: Variant,
        found: Sequence[Description],
        table: np.ndarray[Any, np.dtype[np.int64]],
        dependencies: Sequence[Any],
    ) -> None:
        words = (d.word & mask(p, d) for p, d in zip(variant.parameters, found, strict=True))
        key = (*words, variant.address, variant.device)
        made = self._specialisations.get(key)
        if made is None:
            made = specialisation(variant, found, dependencies, reaches_of(self.kernel), self.warns)
            self._specialisations[key] = made
            self._kept.append(made)
        others = [other for other in table[: nb.MAX_VARIANTS].tolist() if other and other != made.address]
        current = {part.address for part in self._specialisations.values()}
        row = [made.address, *(other for other in others if other in current)][: nb.MAX_VARIANTS]
        table[:] = row + [0] * (nb.MAX_VARIANTS + 1 - len(row))

    def stop_warning(self) -> None:
        """Let compiled code ask no more whether a gradient is lost where an array is read."""
        with self._lock:
            self.warns = False
            for made in self._specialisations.values():
                made.stop_asking()


def variants_of(kernel: Kernel) -> Variants:
    """Return a kernel's variants, which live as long as it does."""
    if kernel.variants is None:
        kernel.variants = kernel.new_variants()
    found: Variants = kernel.variants
    return found


def _cpu_variant(kernel: Kernel, emitted: Emitted, parameters: tuple[ParameterType, ...], weak: str) -> Variant:
    """Return native code for a kernel's emitted text, from disk or from Numba."""
    if emitted.in_blocks:
        return _block_variant(kernel, emitted, parameters, weak)
    if emitted.checks_races:
        return _checked_variant(kernel, emitted, parameters, weak)
    rank, simd = kernel.source.index_rank, kernel.options.get("simd")
    large = [p.name for p in parameters if isinstance(p, ArrayType) and p.ndim == rank and p.has_large_elements]
    is_in_order = not emitted.generated and emitted.order == tuple(range(rank))
    ahead = [name for name in large if is_in_order and name in indexing_of(kernel).loaded]
    emitted, totals = _added_up(emitted, parameters, rank)

    added = () if emitted.private is None else emitted.private.added
    additions = additions_of(emitted.text, emitted.entry, parameters, added) if added else 0
    together = (emitted.has_loop or bool(simd)) and simd is not False and rank > 0 and not emitted.may_raise
    # What takes more than its parameters, and what runs in lanes, has no other body.
    is_plain = not together and not totals and emitted.private is None

    def source(more: str, lanes: Widths) -> str:
        loop = range_source(
            emitted,
            [p.name for p in parameters],
            rank,
            ahead=ahead,
            totals=totals,
            lanes=lanes,
            additions=greater(_ADDITIONS_WITH_LOOP if emitted.has_loop else 1, additions),
            interior=emitted.interior if is_plain else None,
        )
        return _generated_source(kernel, parameters, emitted, f"{more}{loop}", "the CPU")

    text = source("", {})
    fastmath = bool(kernel.options.get("fastmath"))
    how = "alone" if not together else "always together" if simd else "together"
    generator = generator_fingerprint() if together and not emitted.generated else ""
    key = _key("variant", f"{machine_fingerprint()} {how}{generator}", text, emitted, parameters, fastmath=fastmath)

    def more() -> dict[str, Any]:
        bodies = _bodies_for_lanes(kernel, emitted, parameters, weak, totals) if together else None
        along = frozenset({f"_nb_i{rank - 1}", f"_nb_t{rank - 1}"} & {*emitted.hidden})
        lanes = None if bodies is None else LaneSource(*bodies, along, source, always=bool(simd))
        return {"generated": emitted.generated, "lanes": lanes}

    return _loaded(kernel, emitted, parameters, weak, key, text, more)


def _checked_variant(kernel: Kernel, emitted: Emitted, parameters: tuple[ParameterType, ...], weak: str) -> Variant:
    """Return native code on the CPU that runs one thread after another, and checks them for data races."""
    loop = range_source(
        emitted,
        [p.name for p in parameters],
        kernel.source.index_rank,
        ahead=[],
        totals=[],
        lanes={},
        additions=0,
        interior=None,
    )
    text = _generated_source(kernel, parameters, emitted, loop, "the CPU, checked for data races")
    fastmath = bool(kernel.options.get("fastmath"))
    key = _key("checked", machine_fingerprint(), text, emitted, parameters, fastmath=fastmath)
    return _loaded(kernel, emitted, parameters, weak, key, text, dict)


def _added_up(emitted: Emitted, parameters: tuple[ParameterType, ...], rank: int) -> tuple[Emitted, tuple[Total, ...]]:
    """Return a text in which a range of threads adds up by itself what nobody can see before its end, and its totals."""
    if emitted.may_raise:
        return emitted, ()
    if emitted.private is not None:
        # An adjoint: what it adds to gradients goes to copies that it has anyway.
        added = only_added(emitted.text, emitted.entry, parameters)
        return replace(emitted, private=replace(emitted.private, added=added)), ()
    text, totals = with_totals(emitted.text, emitted.entry, parameters)
    text, arrays = with_either(text, emitted.entry, parameters) if rank else (text, ())
    private = Private(emitted.entry, meanwhile=True, added=arrays) if arrays else None
    return replace(emitted, text=text, private=private), totals


def _loaded(
    kernel: Kernel,
    emitted: Emitted,
    parameters: tuple[ParameterType, ...],
    weak: str,
    key: str,
    text: str,
    more: Callable[[], dict[str, Any]],
) -> Variant:
    """Return the variant of a text, from disk or from Numba, to which `more` tells what else it must know."""
    symbol, source_file = f"numbridge_{key}", keep_text(f"{emitted.entry}_{key}.py", text)
    origin = _origins(emitted, text)
    if emitted.checks_races:
        load_accesses()
        remember(symbol, kernel.name, [kernel.label(p.name) for p in parameters], origin)

    def compile() -> Compiled:
        from numbridge.kernels.cpu_backend.cpu import compile_run

        return compile_run(
            symbol,
            text,
            source_file,
            emitted.namespace,
            parameters,
            entry=emitted.entry,
            origin=origin,
            fastmath=bool(kernel.options.get("fastmath")),
            races=_races(kernel) if emitted.checks_races else None,
            **more(),
        )

    compiled, from_cache = compiled_or_stored(key, compile)
    facts, private = compiled.facts, emitted.private
    adds = private is not None and (private.meanwhile or (bool(private.added) and private.distance is None))
    return Variant(
        parameters,
        weak,
        CPU,
        load(compiled)[symbol],
        source_file,
        from_cache,
        tuple(facts.get("wide", ())),
        emitted.has_loop,
        together=int(facts.get("together", 1)),
        adds=adds or bool(facts.get("adds")),
        is_even=adds and emitted.has_loop and has_even_trips(emitted.text, emitted.entry, parameters),
        strides=bool(emitted.active.strides),
        in_loops=bool(facts.get("in_loops")),
    )


def _races(kernel: Kernel) -> Races:
    return Races(kernel.source.index_rank, is_ordered(Program(kernel.source)))


def _block_variant(kernel: Kernel, emitted: Emitted, parameters: tuple[ParameterType, ...], weak: str) -> Variant:
    """Return native code on the CPU for a kernel whose threads work with others of their block."""
    load_crews()
    names, rank = [p.name for p in parameters], kernel.source.index_rank

    added: dict[str, int | str] = {}

    def source(functions: str = "", whole: Sequence[str] | None = None) -> str:
        around = block_source(emitted, names, rank, whole=whole, added={} if whole is None else added)
        body = emitted if whole is None else replace(emitted, text=functions.rstrip())
        return _generated_source(kernel, parameters, body, around, "the CPU, in blocks")

    text = source()
    fastmath = bool(kernel.options.get("fastmath"))
    # What raises has its place in the user's own text; that an adjoint's stack has no memory has none.
    raises = emitted.may_raise and not emitted.generated
    asks = f"_nb_block_{ASKED}(" in emitted.text
    simd = kernel.options.get("simd") is not False and not emitted.checks_races
    apart = 0 < rank < nb.MAX_DIMS and not raises and not asks and simd
    how = f"apart {generator_fingerprint()}" if apart else "in coroutines"
    how = f"{how}, checked for data races" if emitted.checks_races else how
    key = _key("blocks", f"{machine_fingerprint()} {how}", text, emitted, parameters, fastmath=fastmath)

    def more() -> dict[str, Any]:
        found = _body_of_block(kernel, emitted, parameters, weak) if apart else None
        if found is None:
            return {"generated": emitted.generated, "in_blocks": True}
        body, namespace, wide = found
        body, arrays = with_either(body, emitted.entry, parameters, of_each=True)
        added.update((array, additions_of(body, emitted.entry, parameters, [array])) for array in arrays)
        told = tuple(f"{PRIVATE}{k}" for k in range(len(arrays)))
        block = BlockSource(body, namespace, [*names, *told], rank, source, wide, told)
        return {"generated": emitted.generated, "in_blocks": True, "block": block}

    return _loaded(kernel, emitted, parameters, weak, key, text, more)


def _body_of_block(
    kernel: Kernel, emitted: Emitted, parameters: tuple[ParameterType, ...], weak: str
) -> tuple[str, Mapping[str, Any], tuple[str, ...] | None] | None:
    """Return what one thread of a block does, as `BlockSource` wants it, or None if there is no such text."""
    if emitted.generated:
        return emitted.text, emitted.namespace, None
    from numbridge.kernels.adjoint.lane_source import block_text

    return block_text(kernel.source, parameters, weak, emitted.active)


def _bodies_for_lanes(
    kernel: Kernel, emitted: Emitted, parameters: tuple[ParameterType, ...], weak: str, totals: Sequence[Total]
) -> tuple[str, Mapping[str, Any]] | None:
    """Return what one thread does as generated text with its globals, or None if there is no such text."""
    if emitted.generated:
        return emitted.text, emitted.namespace
    from numbridge.kernels.adjoint.lane_source import lane_source

    found = lane_source(kernel.source, parameters, weak, emitted.active)
    if found is None:
        return None
    text, namespace = found
    if totals:
        text, made = with_totals(text, emitted.entry, parameters, totals)
        if not made:
            return None
    if emitted.private is not None:
        text, arrays = with_either(text, emitted.entry, parameters, emitted.private.added)
        if not arrays:
            return None
    return text, namespace


def _origins(emitted: Emitted, text: str) -> Callable[[int], str | None]:
    """Return what tells where a line of a generated file comes from, for messages."""
    before = text[: text.index(emitted.text)].count("\n")
    return lambda line: emitted.origin(line - before)


@dataclass(frozen=True)
class CudaCode:
    """A kernel's code for CUDA: the compiled cubin with its facts, where its source lies, and its trailing dimensions."""

    compiled: Compiled
    source_file: str
    from_cache: bool
    dims: int
    has_loop: bool

    @property
    def together(self) -> int:
        """How many ids a thread takes at once, so that a large grid may have so many times fewer blocks; see SPEC_TOGETHER."""
        return int(self.compiled.facts["together"])


def _how_many_together(together: Together) -> int:
    """Return what SPEC_TOGETHER says of a body in steps."""
    rows = together.count | bool(together.pairs) << nb.TOGETHER_COLUMNS
    return -rows if together.along_y else together.count


def _cuda_code(
    kernel: Kernel,
    emitted: Emitted,
    parameters: tuple[ParameterType, ...],
    capability: tuple[int, int],
    form: Form,
    by_reference: frozenset[str] = frozenset(),
    levels: int = 0,
) -> CudaCode:
    """Return a cubin of a kernel's emitted text, from disk or from numba.cuda; needs no GPU."""
    batched = [p.name for p in parameters if isinstance(p, ArrayType)]
    rank = kernel.source.index_rank
    masked = form == "masked" and rank > 0 and kernel.options.get("simd") is not False
    together = ids_together(emitted, parameters) if masked else None

    def source(together: Together | None) -> str:
        around = grid_source(
            emitted.entry,
            [p.name for p in parameters],
            rank,
            emitted.hidden,
            form,
            first_along_x=emitted.asks_for_block,
            sums=emitted.sums,
            by_reference=by_reference,
            batched=batched,
            levels=levels,
            together=together,
        )
        return around if together is None else f"{together.text}\n\n\n{around}"

    where = f"compute capability {capability}, {form}{', without fused operations' if emitted.repeatable else ''}"
    fastmath = bool(kernel.options.get("fastmath")) and not emitted.repeatable
    dims = max(rank, 1) if form == "masked" else 0

    def named(together: Together | None) -> tuple[str, str, str]:
        text = _generated_source(kernel, parameters, emitted, source(together), where)
        key = _key("cubin", cuda_fingerprint(), text, emitted, parameters, fastmath=fastmath)
        return text, key, keep_text(f"{emitted.entry}_{key}.py", text)

    def compile(text: str, source_file: str, together: int) -> Compiled:
        from numbridge.kernels.cuda_backend.cuda import compile_cubin

        return compile_cubin(
            text,
            source_file,
            emitted.namespace,
            parameters,
            capability,
            entry=emitted.entry,
            origin=_origins(emitted, text),
            dims=dims + (levels * (1 + len(batched))),
            fastmath=fastmath,
            fused=not emitted.repeatable,
            together=together,
        )

    text, key, source_file = named(together)

    def compile_either() -> Compiled:
        if together is None:
            return compile(text, source_file, 1)
        try:
            return compile(text, source_file, _how_many_together(together))
        except KernelError:
            # The whole body may compile where a step of it does not, as one that hands on what no tuple holds. If it does not
            # either, its error is about what the user wrote.
            alone, _, file = named(None)
            return compile(alone, file, 1)

    compiled, from_cache = compiled_or_stored(key, compile_either)
    return CudaCode(compiled, source_file, from_cache, dims, emitted.has_loop)


def _cuda_variant(
    kernel: Kernel,
    emitted: Emitted,
    parameters: tuple[ParameterType, ...],
    weak: str,
    device: Device,
    form: Form,
    by_reference: frozenset[str] = frozenset(),
    levels: int = 0,
) -> Variant:
    """Return a kernel that is loaded for a CUDA device."""
    there = cuda_driver.devices()
    capability = there.capability(device.ordinal)
    if not (kernel.source.index_rank and not emitted.asks_for_block):
        levels = 0
    code = _cuda_code(kernel, emitted, parameters, capability, form, by_reference, levels)
    if levels and _is_a_blocks_own(code.compiled.facts):
        levels = 0
        code = _cuda_code(kernel, emitted, parameters, capability, form, by_reference)
    compiled = code.compiled
    return Variant(
        parameters,
        weak,
        device,
        there.load(compiled.objects[0], compiled.names["kernel"], device.ordinal),
        code.source_file,
        code.from_cache,
        tuple(compiled.facts["wide"]),
        code.has_loop,
        there.launch_function(compiled.facts["cooperative"]),
        tuple(compiled.facts["places"]),
        code.dims,
        levels,
        code.together,
    )


def _is_a_blocks_own(facts: Mapping[str, Any]) -> bool:
    """Tell whether a kernel has what a block must not do twice: shared memory, or threads that wait for each other."""
    return bool(facts["cooperative"]) or any(word in facts["ptx"] for word in (".shared", "bar.sync", "barrier."))


def compile_for(kernel: Kernel, arguments: Sequence[Any], capability: Any, form: Form = "masked") -> CudaCode:
    """Return a kernel's code on CUDA for arguments of the types of these, wherever they lie; needs no GPU.

    Parameters
    ----------
    kernel : Kernel
        What to compile.
    arguments : sequence
        Examples of its arguments.
    capability : (int, int) or None
        The compute capability; None is the current CUDA device's.
    form : {'masked', 'plain'}
        For `nb.launch`, or for ``kernel[blocks, threads]``.
    """
    if capability is None:
        if not cuda_driver.driver_count():
            raise DeviceError(
                f"kernel {kernel.name!r}: capability is that of the current CUDA device by default, and there is none here; pass "
                "one, such as capability=(9, 0) for sm_90, which needs no GPU"
            )
        capability = cuda_driver.devices().capability(get_device("cuda").ordinal)
    elif not (
        isinstance(capability, tuple | list) and len(capability) == 2 and all(type(n) is int for n in capability)
    ):
        raise NumbridgeTypeError(f"capability is {capability!r}; it must be two ints, such as (9, 0) for sm_90")
    kernel, arguments = kernel.flattened(arguments)
    found = [describe(argument) for argument in arguments]
    variants = variants_of(kernel)
    types, weak = variants.types(arguments, found)
    return _cuda_code(kernel, variants.emitted(types, weak, "cuda"), types, tuple(capability), form)


def _key(
    kind: str,
    fingerprint: str,
    text: str,
    emitted: Emitted,
    parameters: Sequence[ParameterType],
    *,
    fastmath: bool,
) -> str:
    """Return the name under which a variant's code lies on disk: everything that it depends on."""
    types = (f"{p.name} {p}" for p in parameters)
    return digest(kind, fingerprint, text, emitted.fingerprint, str(fastmath), *types)


def _generated_source(
    kernel: Kernel, parameters: Sequence[ParameterType], emitted: Emitted, around: str, target: str
) -> str:
    listed = ", ".join(f"{p.name}: {p}" for p in parameters)
    head = f"# Generated from kernel {kernel.name!r} for ({listed}) on {target}.\n\n"
    return f"{head}{emitted.text}\n\n\n{around}"
