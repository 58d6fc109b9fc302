"""Kernels made of kernels: adjoints and tangents, which are typed, cached, compiled and launched like any other.

A `Derivative` has the arguments of the kernel that it comes from, then adjoints or tangents of some of them. What it does
depends on the types, so its text is made when the types are known, and kept on disk with everything that launching it
takes; a process that finds it there imports neither Numba nor the generator.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numbridge.kernels import scalars
from numbridge.kernels.adjoint.measured import Measured, StackMemoryError, without_stacks
from numbridge.kernels.adjoint.narrow_adjoints import NarrowAdjointError, adjoint_scalar, is_narrow, widening
from numbridge.kernels.adjoint.overlap import are_apart, check_overlaps
from numbridge.kernels.adjoint.prefixes import ADJOINT, primal_of, tangent_prefix
from numbridge.kernels.annotations import ArrayAnnotation, ElementAnnotation
from numbridge.kernels.arguments import bound_types, check_array, check_readable, check_writable
from numbridge.kernels.cpu_backend.active_range import EVERYWHERE, ActiveRange
from numbridge.kernels.cpu_backend.blocks.source import CREW, THREAD
from numbridge.kernels.cpu_backend.range_source import Private
from numbridge.kernels.element_types.element_arguments import check_value, full_shape
from numbridge.kernels.element_types.elements import has_gradient
from numbridge.kernels.errors import (
    BufferAccessError,
    KernelError,
    KernelUnsupportedError,
    NumbridgeError,
    NumbridgeTypeError,
    NumbridgeValueError,
)
from numbridge.kernels.geometry import Geometry, geometry_of
from numbridge.kernels.kernel import Kernel, Parameter
from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.language.emission import Emitted, describe_namespace, emit
from numbridge.kernels.language.rewriting import Target, rewrite
from numbridge.kernels.language.source import Program as SourceProgram
from numbridge.kernels.launch import launcher, remembered
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.object_cache import (
    Compiled,
    compiled_or_stored,
    digest,
    generator_fingerprint,
    machine_fingerprint,
)
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType
from numbridge.kernels.readers import Description, describe
from numbridge.kernels.variant import Variants, variants_of

if TYPE_CHECKING:
    from numbridge.kernels.adjoint.ir import Program
    from numbridge.kernels.adjoint.reverse import Reversed
    from numbridge.kernels.adjoint.touched_rows import Rows

__all__ = ["Derivative", "Plan", "check_floats", "derived", "lasting_outputs", "with_gradients"]

_HALF, _SINGLE = 2, 4  # bytes
_LONG = 60


@dataclass(frozen=True)
class Plan:
    """What a derivative is for some types.

    Attributes
    ----------
    text, entry, hidden, may_raise, has_loop, sums, private, grows, fingerprint
        As in `Emitted`.
    reads : frozenset of str
        Arrays of the kernel whose contents the derivative reads.
    snapshot : frozenset of str
        Arrays that the kernel changes and that the derivative needs as they were before it.
    writes : frozenset of str
        Array parameters that the derivative writes.
    lasting : frozenset of str
        Those of the `snapshot` that another derivative could take as the kernel has `left` them.
    spent : frozenset of str
        Wanted arrays that the kernel stores to and never reads, so that an adjoint ends their adjoints.
    rows : mapping of str to (Rows, Rows)
        Of arrays of the kernel, which rows it loads and stores, where that is known.
    measured : Measured or None
        On CUDA, what counts the entries on its stacks, if it has any.
    in_blocks : bool
        As in `Emitted`.
    active : tuple
        What an `ActiveRange` is made of: for which indices the kernel has anything to do, and so a derivative on the CPU.
    order : tuple of int
        As in `Emitted`.
    namespace : mapping or None
        The globals of the text, if it was generated in this process.
    """

    text: str
    entry: str
    hidden: tuple[str, ...]
    may_raise: bool
    has_loop: bool
    sums: tuple[tuple[str, str], ...]
    private: tuple[Any, ...] | None
    fingerprint: bytes
    reads: frozenset[str]
    snapshot: frozenset[str]
    writes: frozenset[str]
    lasting: frozenset[str] = frozenset()
    spent: frozenset[str] = frozenset()
    rows: Mapping[str, tuple[Rows, Rows]] = dataclasses.field(default_factory=dict)
    measured: Measured | None = None
    in_blocks: bool = False
    active: tuple[Any, ...] = dataclasses.astuple(EVERYWHERE)
    order: tuple[int, ...] = ()
    namespace: Mapping[str, Any] | None = None
    grows: bool = False


class _Read:
    """A program with its derivatives by hand, and what it read: a large one takes long to read, and every tape asks."""

    def __init__(self, program: SourceProgram) -> None:
        self.program = program
        self.dependencies = program.dependencies(by_hand=True)

    def holds(self) -> bool:
        """Return whether reading it again would find the same."""
        return all(dependency.holds() for dependency in self.dependencies)


class Derivative(Kernel):
    """The adjoint or tangent of a kernel, by some of its parameters; its tangent by none is the kernel itself.

    Attributes
    ----------
    base : Kernel
        What it is the derivative of; that may be a derivative itself.
    mode : {'adjoint', 'tangent'}
        Which.
    wanted : tuple of str
        The parameters that have an adjoint or a tangent.
    kept : tuple of str
        The wanted arrays whose adjoints are only read.
    unused : tuple of str
        Arrays of the kernel that are neither read nor written, so that any array of the same type and shape may stand for
        them.
    fresh : tuple of str
        The wanted arrays whose adjoints are stored, whatever they hold.
    apart : bool
        Whether no two adjoints share memory, so that a thread need not guard elements that only it touches.
    restores : bool
        Whether arrays that it changes for a while end as they were.
    left : tuple of str
        The arrays of the kernel that it takes as the kernel has left them.
    names : list of str
        Its parameters: the kernel's, and those of adjoints or tangents.
    """

    def __init__(
        self,
        base: Kernel,
        mode: str,
        wanted: tuple[str, ...],
        kept: tuple[str, ...] = (),
        unused: tuple[str, ...] = (),
        fresh: tuple[str, ...] = (),
        *,
        apart: bool = True,
        restores: bool = True,
        left: tuple[str, ...] = (),
    ) -> None:
        self.base, self.mode, self.wanted, self.kept, self.apart = base, mode, wanted, kept, apart
        self.unused, self.fresh, self.restores, self.left = unused, fresh, restores, left
        self.function = base.function
        self.name = f"{mode if wanted else 'program'} of {base.name}"
        self.options = base.options
        level = sum(step[0] == "tangent" for step in self.steps())
        self.prefix = ADJOINT if mode == "adjoint" else tangent_prefix(level)
        self.parameters = (*base.parameters, *(Parameter(f"{self.prefix}{name}", None) for name in wanted))
        self.names = [parameter.name for parameter in self.parameters]
        self.variants: Any = None
        self.launchers: dict[Any, dict[Any, Any]] = {}
        self.threads: Any = None
        self.derivatives: dict[Any, Any] = {}
        # What `direct` has found out for arguments of some looks, as long as all that was read for that holds
        self.ways: tuple[tuple[Dependency, ...], dict[Any, Any]] = (), {}
        self._read: _Read | None = None
        self._plans: dict[Any, tuple[Plan, tuple[Dependency, ...]]] = {}
        self._last_plan: tuple[Any, str, str, Any] = (None, "", "", None)

    @functools.cached_property
    def source(self) -> Any:
        """The source of the kernel at the beginning."""
        return self.base.source

    def new_variants(self) -> Any:
        """Return an empty collection of variants."""
        return _DerivativeVariants(self)

    def label(self, name: str) -> str:
        """Return what messages call a parameter."""
        return self.base.label(name)

    def flattened(self, arguments: Sequence[Any]) -> tuple[Kernel, Sequence[Any]]:
        """Refuse tuples: which of their elements have gradients, `nb.launch` and tapes know."""
        for parameter, argument in zip(self.parameters, arguments, strict=False):
            if isinstance(argument, tuple) and parameter.annotation is None:
                raise NumbridgeTypeError(
                    f"the {self.name}: parameter {parameter.name!r} is a tuple; run it by nb.launch(..., adjoint=True), whose "
                    "adjoints may be tuples, or on a tape"
                )
        return self, arguments

    def plan(self, parameters: tuple[ParameterType, ...], weak: str, target: Target = "cpu") -> Plan:
        """Return what this is for types of the base's parameters: from memory, from disk, or generated."""
        return self.planned(parameters, weak, target)[0]

    def planned(
        self, parameters: tuple[ParameterType, ...], weak: str, target: Target = "cpu"
    ) -> tuple[Plan, tuple[Dependency, ...]]:
        """Return the same, and every global and closure value that decides it, all of which hold."""
        # A variant's types are always the same object, which is found faster than equal ones.
        types, last_weak, last_target, last = self._last_plan
        if types is parameters and (last_weak, last_target) == (weak, target) and _holds(last):
            found: tuple[Plan, tuple[Dependency, ...]] = last
            return found
        bare = tuple(
            dataclasses.replace(p, contiguous=True, written=False) if isinstance(p, ArrayType) else p
            for p in parameters
        )
        known = self._plans.get((bare, weak, target))
        if known is None or not _holds(known):
            known = self._plans[bare, weak, target] = (self._stored_plan(bare, weak, target), self.dependencies())
        self._last_plan = parameters, weak, target, known
        return known

    def _stored_plan(self, parameters: tuple[ParameterType, ...], weak: str, target: Target) -> Plan:
        emitted = emit(self.source, weak, gradients=True)
        checks = target == "cpu" and self.checks_bounds
        key = digest(
            "derivative",
            machine_fingerprint(),
            generator_fingerprint(),
            emitted.text,
            emitted.fingerprint,
            repr([*self.steps()]),
            target,
            str(checks),
            *(f"{p.name} {p}" for p in parameters),
        )

        namespaces = []

        def generate() -> Compiled:
            plan = self._generate_for_all(parameters, weak, target)
            namespaces.append(plan.namespace)
            return Compiled((), {}, (), {"plan": vars(dataclasses.replace(plan, namespace=None))})

        compiled, _ = compiled_or_stored(key, generate)
        return dataclasses.replace(Plan(**compiled.facts["plan"]), namespace=namespaces[0] if namespaces else None)

    def dependencies(self) -> tuple[Dependency, ...]:
        """Return every global and closure value that decides what this is."""
        known = self._read
        if known is None or not known.holds():
            known = self._read = _Read(SourceProgram(self.source, gradients=True))
        known.program.check_kept()
        return known.dependencies

    def steps(self) -> Iterator[tuple[Any, ...]]:
        """Yield what was derived, and by what, from the kernel on."""
        if isinstance(self.base, Derivative):
            yield from self.base.steps()
        yield self.mode, self.wanted, *self.options_of_its_own.values()

    @property
    def options_of_its_own(self) -> dict[str, Any]:
        """What it was made with beside the kernel, the mode and the parameters; for one that differs in little."""
        return {name: getattr(self, name) for name in ("kept", "unused", "fresh", "apart", "restores", "left")}

    def program(
        self,
        parameters: Sequence[ParameterType],
        weak: str,
        target: Target | None = None,
        *,
        check_bounds: bool = False,
    ) -> tuple[Program, Any]:
        """Return this derivative as a program, for a tangent; and the syntax trees that it comes from.

        For the CPU as `target` it is one that runs for the indices that are active.
        """
        from numbridge.kernels.adjoint.forward import forward

        program, rewritten = self._base_program(parameters, weak, target, check_bounds=check_bounds)
        return forward(program, self.wanted, self.prefix), rewritten

    @property
    def checks_bounds(self) -> bool:
        """Whether indices are checked: where this is the kernel itself."""
        return not self.wanted and super().checks_bounds

    def _base_program(
        self, parameters: Sequence[ParameterType], weak: str, target: Target | None, *, check_bounds: bool = False
    ) -> tuple[Program, Any]:
        if isinstance(self.base, Derivative):
            return self.base.program(parameters[: len(self.base.base.parameters)], weak, target)
        from numbridge.kernels.adjoint.build import build
        from numbridge.kernels.adjoint.fence import check_races, check_waits
        from numbridge.kernels.adjoint.thread_sharing import are_trips_apart

        types = parameters if target == "cpu" else None
        rewritten = rewrite(self.source, weak, gradients=True, check_bounds=check_bounds, parameters=types)
        rewritten.program.check_kept()
        if self.wanted or self.mode == "tangent":
            check_waits(rewritten.program.sources)
        program = build(rewritten, parameters, prints=not self.wanted)
        if rewritten.active.strides and not are_trips_apart(program):
            # The loop stays in the body, where its trips are reversed.
            return self._base_program(parameters, weak, None, check_bounds=check_bounds)
        if self.wanted:
            check_races(program)
        return program, rewritten

    def _generate_for_all(self, parameters: Sequence[ParameterType], weak: str, target: Target) -> Plan:
        """Return the plan, of which the CPU's says what a launch anywhere must do."""
        plan = self._generate(parameters, weak, target)
        if target == "cuda" or not ActiveRange.of(plan.active).strides:
            return plan
        try:
            # Loops over the grid are in its text, which may need more than that of one trip.
            other = self._generate(parameters, weak, "cuda")
        except KernelError:
            if self.left:
                raise
            # There is none for CUDA, and who launches it there is told so.
            return dataclasses.replace(plan, lasting=frozenset())
        return dataclasses.replace(
            plan,
            reads=plan.reads | other.reads,
            snapshot=plan.snapshot | other.snapshot,
            lasting=plan.lasting & other.lasting,
            writes=plan.writes | other.writes,
            spent=plan.spent & other.spent,
        )

    def _generate(self, parameters: Sequence[ParameterType], weak: str, target: Target) -> Plan:
        if self.mode == "tangent":
            return self._generate_tangent(parameters, weak, target)
        from numbridge.kernels.adjoint.checkpoint import CUDA_SLOTS
        from numbridge.kernels.adjoint.measuring import measure
        from numbridge.kernels.adjoint.reverse import reverse
        from numbridge.kernels.adjoint.touched_rows import touched_rows
        from numbridge.kernels.adjoint.uniform import check_meetings

        program, rewritten = self._base_program(parameters, weak, target)
        check_meetings(program)
        in_crew = target == "cpu" and program.in_blocks
        limits: dict[str, Any] = {"slots": CUDA_SLOTS, "bounded": True} if target == "cuda" else {"in_turn": True}
        if in_crew:
            # All threads of a block hold their slots at once. What they would return, none of them returns to.
            limits |= {"slots": CUDA_SLOTS, "returns": False}
        if self.fresh and rewritten.active.strides:
            text = f"the {self.name}: threads do not all store their own element of the adjoint of {self.fresh[0]!r}"
            raise KernelUnsupportedError(f"{text}, but run a loop over the grid; pass zeros to add to, and no `fresh`")
        how = {**self.options_of_its_own, **limits}
        del how["unused"]  # `reverse` finds out what is
        rows = touched_rows(program)
        made = reverse(program, self.wanted, f"{program.name}_adjoint", **how)
        self._check_unused(made.reads | made.writes | made.snapshot)
        adjoints = {f"{ADJOINT}{name}" for name in (*made.arrays, *made.scalars)}
        text, private = made.text, None
        if target == "cpu" and not in_crew:
            text, private = _with_private(made)
        measured = None
        if made.stacks and target == "cuda":
            counting = measure(program, self.wanted, f"{program.name}_stacks", restores=self.restores, left=self.left)
            measured = dataclasses.replace(counting, text=_for(target, program, counting.text))
        return Plan(
            _for(target, program, text),
            made.name,
            _hidden(target, program),
            made.may_raise,
            made.has_loop,
            () if in_crew else tuple((f"{ADJOINT}{name}", place) for name, place in made.sums),
            private,
            describe_namespace(program.namespace, rewritten.program),
            made.reads,
            made.snapshot,
            made.writes | (adjoints - {f"{ADJOINT}{name}" for name in made.untouched}),
            made.lasting,
            made.spent,
            rows,
            measured,
            in_crew,
            dataclasses.astuple(rewritten.active),
            rewritten.order,
            program.namespace,
            grows=made.stacks > 0 and target == "cpu",
        )

    def _check_unused(self, used: frozenset[str]) -> None:
        for name in self.unused:
            if name in used:
                raise KernelUnsupportedError(
                    f"the {self.name} uses what parameter {name!r} holds; pass the array as it was before the launch"
                )

    def _generate_tangent(self, parameters: Sequence[ParameterType], weak: str, target: Target) -> Plan:
        from numbridge.kernels.adjoint.emit import program_text
        from numbridge.kernels.adjoint.forward import facts

        program, rewritten = self.program(parameters, weak, target, check_bounds=target == "cpu" and self.checks_bounds)
        name = f"{program.name}_tangent"
        found = facts(program)
        return Plan(
            _for(target, program, program_text(program, name)),
            name,
            _hidden(target, program),
            found.may_raise,
            found.has_loop,
            (),
            None,
            describe_namespace(program.namespace, rewritten.program),
            found.reads,
            found.reads & found.writes,
            found.writes,
            in_blocks=target == "cpu" and program.in_blocks,
            active=dataclasses.astuple(rewritten.active),
            order=rewritten.order,
            namespace=program.namespace,
        )

    def typed(self, parameters: tuple[ParameterType, ...], weak: str) -> tuple[ParameterType, ...]:
        """Return the types of all parameters, of contiguous arrays, for those of the base's.

        Raises
        ------
        NumbridgeError
            If there is no such derivative.
        """
        check_floats(self, parameters)
        plan, by_name = self.plan(parameters, weak), {p.name: p for p in parameters}
        made: list[ParameterType] = []
        for name in self.names:
            primal = by_name.get(name) or by_name[primal_of(name)]
            if isinstance(primal, ArrayType):
                scalar = adjoint_scalar(primal.scalar) if name.startswith(ADJOINT) else primal.scalar
                written = name in plan.writes
                made.append(dataclasses.replace(primal, name=name, scalar=scalar, contiguous=True, written=written))
            elif name.startswith(ADJOINT):
                made.append(ArrayType(name, primal.scalar, 0, True, name in plan.writes, primal.element))
            else:
                made.append(dataclasses.replace(primal, name=name))
        return tuple(made)

    def emitted(self, parameters: tuple[ParameterType, ...], weak: str, target: Target) -> Emitted:
        """Return the text to compile, for types of the base's parameters.

        Raises
        ------
        StackMemoryError
            If a launch must give it memory.
        """
        plan = self.plan(parameters, weak, target)
        if plan.measured is not None:
            raise without_stacks(self.name, plan.measured)
        return self.emitted_as_planned(plan, parameters, weak, target)

    def emitted_as_planned(
        self, plan: Plan, parameters: tuple[ParameterType, ...], weak: str, target: Target
    ) -> Emitted:
        """Return the text of a plan, to compile where it may need memory for stacks."""
        namespace = plan.namespace
        if namespace is None:
            namespace = _Later(lambda: self._generate(parameters, weak, target).namespace or {})
        return Emitted(
            plan.text,
            plan.entry,
            plan.hidden,
            namespace,
            plan.fingerprint,
            plan.may_raise,
            plan.has_loop,
            self.source.asks_for_block,
            sums=plan.sums,
            private=None if plan.private is None else Private(*plan.private),
            grows=plan.grows,
            in_blocks=plan.in_blocks,
            active=ActiveRange.of(plan.active),
            order=plan.order,
        )

    def _cuda_code(self, arguments: Sequence[Any], capability: tuple[int, int] | None, *, plain: bool) -> Any:
        from numbridge.kernels.adjoint.stack_kernels import compiled_with_memory

        try:
            return super()._cuda_code(arguments, capability, plain=plain)
        except StackMemoryError:
            return compiled_with_memory(self, arguments, capability, plain=plain)

    def forall(
        self, dim: int | tuple[int, ...], block_dim: int | tuple[int, ...] = 256, *, checked: bool = True
    ) -> Callable[..., None]:
        """Return a function of the derivative's arguments that checks them and runs it over `dim` threads.

        Without `checked` it takes the caller's word that adjoints have their arguments' shapes, and that no array that is
        written shares memory with another.
        """
        where = functools.partial(geometry_of, self, dim, block_dim)

        def launching(kernel: Derivative) -> Callable[..., None]:
            return kernel._launching(remembered(kernel, dim, block_dim), where)

        run = launching(self)
        return self._checked(run, lambda: launching(self._together())) if checked else run

    def over(self, geometry: Geometry) -> Callable[..., None]:
        """Return the same for the geometry of a launch of the base."""
        run = self.unchecked_over(geometry, apart=True)
        return self._checked(run, lambda: self.unchecked_over(geometry, apart=False))

    def unchecked_over(self, geometry: Geometry, *, apart: bool) -> Callable[..., None]:
        """Return the same without checks, as for `forall`; the caller says whether no two adjoints share memory."""
        kernel = self if apart else self._together()
        return kernel._launching(launcher(kernel, geometry), lambda: geometry, geometry.stream)

    def _launching(
        self, run: Callable[..., None], where: Callable[[], Geometry], stream: int | None = None
    ) -> Callable[..., None]:
        """Return a launcher that takes adjoints of 16-bit floats, too, and gives memory to what needs it."""
        if self.mode != "adjoint":
            return run
        return widening(
            self.name, self.names, run, functools.partial(self._with_stacks, run, where), self._changed, stream
        )

    def _with_stacks(self, run: Callable[..., None], where: Callable[[], Geometry], *arguments: Any) -> None:
        from numbridge.kernels.adjoint.stacks_on_cuda import launch_with_stacks

        launch_with_stacks(self, run, where, arguments)

    def _changed(self, arguments: Sequence[Any]) -> frozenset[str]:
        """Return the arrays that this writes, for some arguments."""
        types, _ = variants_of(self).types(arguments, [describe(argument) for argument in arguments])
        return frozenset(p.name for p in types if isinstance(p, ArrayType) and p.written)

    def _checked(
        self, run: Callable[..., None], make_together: Callable[[], Callable[..., None]]
    ) -> Callable[..., None]:
        """Return a launcher that checks, and takes `run`, or where adjoints share memory another, which few launches need."""
        together = None

        def checked(*arguments: Any) -> None:
            nonlocal together
            if self.check(arguments, [*map(describe, arguments)]):
                run(*arguments)
                return
            if together is None:
                together = make_together()
            together(*arguments)

        return checked

    def _together(self) -> Derivative:
        """Return the adjoint for adjoints that share memory; a tangent is right for all."""
        if self.mode != "adjoint":
            return self
        key = "together"
        if key not in self.derivatives:
            how = {**self.options_of_its_own, "fresh": (), "apart": False}
            self.derivatives[key] = Derivative(self.base, self.mode, self.wanted, **how)
        made: Derivative = self.derivatives[key]
        return made

    def check(self, arguments: Sequence[Any], found: Sequence[Description]) -> bool:
        """Check shapes and overlaps of arguments; return whether no two adjoints share memory.

        Raises
        ------
        NumbridgeError
            If an adjoint has not the shape of its argument, or memory is shared where the gradient would be wrong.
        """
        names, count = self.names, len(self.base.parameters)
        if len(arguments) != len(names):
            raise NumbridgeTypeError(
                f"the {self.name} takes {len(names)} arguments ({', '.join(names)}), got {len(arguments)}"
            )
        self.flattened(arguments)
        items = dict(zip(names, found, strict=True))
        for name, derivative in zip(self.wanted, found[count:], strict=True):
            primal = items[name]
            if not derivative.is_array or full_shape(derivative) != full_shape(primal):
                self._refuse_shape(name, primal, derivative)
        if are_apart([item for item in found if item.is_array]):
            return True
        written = _written(self.base, {p.name: items[p.name] for p in self.base.parameters if items[p.name].is_array})
        apart = check_overlaps(self.name, names[:count], written, names[count:], items)
        if self.fresh and not apart:
            raise BufferAccessError(
                f"the {self.name}: adjoints share memory, so they are added up; pass zeros and no `fresh`"
            )
        return apart

    def _refuse_shape(self, name: str, primal: Description, derivative: Description) -> None:
        """Refuse an adjoint or a tangent that is no array of its argument's shape; a scalar's tangent is a number."""
        if not primal.is_array and self.mode != "adjoint":
            return
        what = "adjoint" if self.mode == "adjoint" else "tangent"
        where = f"the {what} of parameter {name!r} of kernel {self.base.name!r}"
        got = f"shape {full_shape(derivative)}" if derivative.is_array else "no array"
        wanted = full_shape(primal)
        if not primal.is_array:
            kind = "a scalar: wanted a 0-d array" if not wanted else f"a value: wanted an array of shape {wanted}"
            raise NumbridgeValueError(f"{where}, {kind} to which the gradient is added, got {got}")
        raise NumbridgeValueError(f"{where}: wanted shape {wanted}, got {got}")


def _holds(known: tuple[Plan, tuple[Dependency, ...]]) -> bool:
    """Tell whether what a plan depends on is as it was."""
    return all(dependency.holds() for dependency in known[1])


def _with_private(made: Reversed) -> tuple[str, tuple[Any, ...] | None]:
    """Return an adjoint's text with a way to add without atomics, and for which threads that is right.

    A short body is written twice, so that the optimiser sees plain additions; a long one is told which to do.
    """
    if not made.shared:
        return made.text, None
    distance, arrays = made.near or (None, ())
    if made.text.count("\n") > _LONG:
        head, rest = made.text.split("):\n", 1)
        rest = rest.replace("_nb_add(", "_nb_add_either(_nb_private, ")
        return f"{head}, _nb_private):\n{rest}", (made.name, distance, arrays)
    name = f"{made.name}_private"
    second = made.text.replace(f"def {made.name}(", f"def {name}(").replace("_nb_add(", "_nb_add_private(")
    return f"{made.text}\n\n\n{second}", (name, distance, arrays)


def _for(target: Target, program: Program, text: str) -> str:
    """Return a program's generated text for a back end."""
    from numbridge.kernels.adjoint.emit import for_crew, for_cuda

    if target == "cuda":
        return for_cuda(text)
    return for_crew(text) if program.in_blocks else text


def _hidden(target: Target, program: Program) -> tuple[str, ...]:
    """Return the leading parameters of a program's text for a back end."""
    own = tuple(value.name for value in program.hidden)
    return (CREW, THREAD, *own) if target == "cpu" and program.in_blocks else own


class _Later(Mapping[str, Any]):
    """A mapping that is made when it is first looked into."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = functools.cache(make)

    def __getitem__(self, key: str) -> Any:
        """Return a value."""
        return self._make()[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self._make())

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._make())


class _DerivativeVariants(Variants):
    """The variants of a derivative: its base's arguments decide, adjoints and tangents must follow."""

    kernel: Derivative

    def __init__(self, kernel: Derivative) -> None:
        super().__init__(kernel)
        self.warns = False  # who launches one carries gradients by hand

    def types(self, arguments: Sequence[Any], found: Sequence[Description]) -> tuple[tuple[ParameterType, ...], str]:
        """Return the types of the base's arguments, then those of adjoints or tangents; raises if one does not fit."""
        kernel = self.kernel
        count = len(kernel.base.parameters)
        types, weak = self.base_types(kernel.base, arguments[:count], found[:count])
        check_floats(kernel, types)
        plan = kernel.plan(types, weak)
        contiguous = all(d.has(nb.CONTIGUOUS) for d in found if d.is_array)
        by_name = {p.name: p for p in types}
        made: list[ParameterType] = []
        for parameter, argument, description in zip(kernel.parameters, arguments, found, strict=True):
            primal = by_name.get(parameter.name)
            written = parameter.name in plan.writes
            if primal is None:
                primal = self._derivative_type(parameter, by_name, argument, description)
            if isinstance(primal, ArrayType):
                if written:
                    check_writable(f"{kernel.name}, argument {parameter.name!r}", argument, description)
                primal = dataclasses.replace(primal, name=parameter.name, contiguous=contiguous, written=written)
            made.append(primal)
        return tuple(made), weak

    def base_types(
        self, base: Kernel, arguments: Sequence[Any], found: Sequence[Description]
    ) -> tuple[tuple[ParameterType, ...], str]:
        """Return the types of a kernel's arguments, none of which it may write; raises if one does not fit."""
        if isinstance(base, Derivative):
            inner = len(base.base.parameters)
            types, weak = self.base_types(base.base, arguments[:inner], found[:inner])
            by_name = {p.name: p for p in types}
            rest = zip(base.parameters[inner:], arguments[inner:], found[inner:], strict=True)
            return (*types, *(self._derivative_type(p, by_name, a, d) for p, a, d in rest)), weak
        return bound_types(base, arguments, found, frozenset())

    def _derivative_type(
        self, parameter: Parameter, primals: Mapping[str, ParameterType], argument: Any, found: Description
    ) -> ParameterType:
        adjoint = parameter.name.startswith(ADJOINT)
        primal = primals[primal_of(parameter.name)]
        where = f"{self.kernel.name}, argument {parameter.name!r}"
        check_readable(where, argument, found)
        if isinstance(primal, ScalarType) and not adjoint:
            if primal.element is not None:
                check_value(where, ElementAnnotation(primal.element), argument, found)
            return dataclasses.replace(primal, name=parameter.name)
        ndim = primal.ndim if isinstance(primal, ArrayType) else 0
        if primal.element is not None:
            check_array(where, ArrayAnnotation(primal.element, ndim), argument, found)
            return ArrayType(parameter.name, primal.scalar, ndim, True, False, primal.element)
        row, wanted = check_array(where, None, argument, found), primal.scalar
        if adjoint and row == wanted and is_narrow(row):
            raise NarrowAdjointError(f"{where}: it is added up in float32; pass an array of float32")
        wanted = adjoint_scalar(wanted) if adjoint else wanted
        if row != wanted:
            raise NumbridgeTypeError(f"{where}: wanted elements of {wanted.name}, got {row.name}; convert it first")
        return ArrayType(parameter.name, row, found.ndim, True, False)

    def emitted(self, parameters: tuple[ParameterType, ...], weak: str, target: Target) -> Emitted:
        """Return the derivative's text."""
        return self.kernel.emitted(parameters[: len(self.kernel.base.parameters)], weak, target)


def _written(kernel: Kernel, arrays: Mapping[str, Description]) -> frozenset[str]:
    """Return the parameters that a kernel or a tangent writes."""
    if not isinstance(kernel, Derivative):
        found: frozenset[str] = variants_of(kernel).written(arrays)
        return found
    primal = _written(kernel.base, arrays)
    return primal | {f"{kernel.prefix}{name}" for name in kernel.wanted if name in primal}


def check_floats(kernel: Derivative, types: Sequence[ParameterType]) -> None:
    """Refuse derivatives by what is no real number, or has fewer bytes than they are computed for."""
    for parameter in types:
        row = parameter.scalar
        if parameter.element is not None and parameter.element.fields is not None:
            if parameter.name in kernel.wanted and not has_gradient(parameter.element, row):
                raise NumbridgeTypeError(
                    f"the {kernel.name}: parameter {parameter.name!r} has records without fields of float32 or float64, which "
                    "have no gradient; pass None for it"
                )
            continue
        # The components of vectors and matrices are not widened.
        least = _HALF if parameter.element is None else _SINGLE
        if row.is_float and row.itemsize < least:
            kind = row.name if parameter.element is None else f"{parameter.element.name}, of {row.name}"
            raise KernelUnsupportedError(
                f"the {kernel.name}: parameter {parameter.name!r} is {kind}, and derivatives are computed in float32 and "
                "float64; convert it first"
            )
        if parameter.name in kernel.wanted and row.code == scalars.COMPLEX and not isinstance(parameter, ArrayType):
            raise NumbridgeTypeError(
                f"the {kernel.name}: parameter {parameter.name!r} is {row.name} by value, and only arrays of complex numbers "
                "have a gradient; pass an array of one element, or None for it"
            )
        if parameter.name in kernel.wanted and not row.is_inexact:
            raise NumbridgeTypeError(
                f"the {kernel.name}: parameter {parameter.name!r} is {row.name}, which has no gradient; pass None for it"
            )


def derived(
    base: Kernel,
    mode: str,
    wanted: tuple[str, ...],
    kept: tuple[str, ...] = (),
    unused: tuple[str, ...] = (),
    fresh: tuple[str, ...] = (),
    *,
    restores: bool = True,
    left: tuple[str, ...] = (),
) -> Derivative:
    """Return a kernel's adjoint or tangent by some parameters; the same one every time."""
    key = (mode, wanted, kept, unused, fresh, restores, left)
    found = base.derivatives.get(key)
    if found is None:
        if not base.options.get("enable_backward", True):
            raise KernelError(
                f"kernel {base.name!r} was declared with enable_backward=False and has no derivative; leave that out, or "
                "give no adjoints for it"
            )
        names = [parameter.name for parameter in base.parameters]
        for name in (*wanted, *kept, *fresh, *unused, *left):
            if name not in (wanted if name in (*kept, *fresh) else names):
                raise NumbridgeValueError(
                    f"the {mode} of kernel {base.name!r} is asked for by {', '.join(wanted)}, and {name!r} is not among its "
                    f"parameters, {', '.join(names)}"
                )
        found = Derivative(base, mode, wanted, kept, unused, fresh, restores=restores, left=left)
        base.derivatives[key] = found
    made: Derivative = found
    return made


def lasting_outputs(
    kernel: Kernel, outputs: Collection[str], parameters: tuple[ParameterType, ...], weak: str
) -> frozenset[str]:
    """Return those outputs of a kernel that its adjoint, by all arrays, could take as the launch has left them.

    They spare it storing to them again: it reads what the kernel reads back and nothing overwrites, as in a recurrence,
    ``h[t] = f(h[t - 1])``. Of a kernel without an adjoint these are none; who asks for gradients will be told.
    """
    wanted = tuple(p.name for p in parameters if isinstance(p, ArrayType) and p.scalar.is_inexact)
    try:
        return derived(kernel, "adjoint", wanted).plan(parameters, weak).lasting.intersection(outputs)
    except NumbridgeError:
        return frozenset()


def with_gradients(kernel: Kernel) -> Derivative:
    """Return a kernel that calls gradients of functions as its program: a tangent by nothing."""
    key = "program"
    if key not in kernel.derivatives:
        kernel.derivatives[key] = Derivative(kernel, "tangent", ())
    made: Derivative = kernel.derivatives[key]
    return made
