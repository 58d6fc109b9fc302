"""Reverse mode: the text of a function that carries adjoints from what a kernel wrote back to what it read.

The function runs what is needed of the kernel again, then every operation's reverse in the opposite order. Names that
begin with ``_nb_`` are the generator's; no program has such names of its own. The rooms build on each other:
`forward_sweep`, `accumulation`, `loop_reversal`, and the reverses of the other operations here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.kernels.adjoint.checkpoint import MOST_SLOTS
from numbridge.kernels.adjoint.element_program import places
from numbridge.kernels.adjoint.emit import Lines, Primal, element, field_views, meeting, operation, own_array
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Compute,
    Custom,
    If,
    Load,
    Loop,
    Meet,
    Op,
    Parameter,
    Program,
    Raise,
    Region,
    Store,
    Value,
    defined_by,
    is_float,
    nested,
    regions,
    walk,
)
from numbridge.kernels.adjoint.loop_reversal import LoopReversal
from numbridge.kernels.adjoint.measured import MEMORY, PLACES
from numbridge.kernels.adjoint.prefixes import ADJOINT
from numbridge.kernels.adjoint.rules import AnyPartial, Partial
from numbridge.kernels.adjoint.thread_sharing import nearness
from numbridge.kernels.adjoint.warps import BACK, lanes_back

__all__ = ["Reversed", "reverse"]

_TOTAL = "_nb_total_"


@dataclass(frozen=True)
class Reversed:
    """The adjoint of a program.

    Attributes
    ----------
    text : str
        A function of the program's parameters, then of the adjoint of each active array. It returns a tuple of the
        gradients of the active scalars.
    name : str
        Its name.
    arrays : tuple of str
        The parameters with an adjoint, in order, that are arrays.
    scalars : tuple of str
        Those that are numbers or elements by value.
    sums : tuple of (str, str)
        For each number that is returned, the parameter whose adjoint it is added to, and the place of the component in
        row-major order, or nothing for a number.
    reads : frozenset of str
        Arrays whose contents the adjoint reads.
    snapshot : frozenset of str
        Arrays that the kernel changes and whose contents before the launch the adjoint reads.
    lasting : frozenset of str
        Those of them that another adjoint could take as the kernel has left them.
    writes : frozenset of str
        Arrays of the kernel that the adjoint changes for a while; they end as they were if it `restores` them.
    untouched : frozenset of str
        Arrays whose adjoint is only read.
    spent : frozenset of str
        Arrays that are stored to and used in no other way.
    shared : bool
        Whether threads may add to the same elements of an adjoint.
    near : (int, tuple of str) or None
        If each thread only touches rows of those shared adjoints that are at most so many away from its own index along
        the first dimension: how many, and the arrays. None if that is not known.
    stacks : int
        How many stacks it has.
    may_raise, has_loop : bool
        As in `Emitted`.
    """

    text: str
    name: str
    arrays: tuple[str, ...]
    scalars: tuple[str, ...]
    sums: tuple[tuple[str, str], ...]
    reads: frozenset[str]
    snapshot: frozenset[str]
    lasting: frozenset[str]
    writes: frozenset[str]
    untouched: frozenset[str]
    spent: frozenset[str]
    shared: bool
    near: tuple[int, tuple[str, ...]] | None
    stacks: int
    may_raise: bool
    has_loop: bool


def reverse(
    program: Program,
    wanted: Collection[str],
    name: str,
    *,
    apart: bool = True,
    kept: Collection[str] = (),
    fresh: Collection[str] = (),
    restores: bool = True,
    left: Collection[str] = (),
    slots: int = MOST_SLOTS,
    bounded: bool = False,
    in_turn: bool = False,
    returns: bool = True,
) -> Reversed:
    """Return the adjoint of a program.

    Parameters
    ----------
    program : Program
        What to reverse. Its namespace and names grow.
    wanted : collection of str
        The floating parameters whose adjoints are passed.
    name : str
        What to call the function.
    apart : bool
        Whether no two adjoints share memory.
    kept : collection of str
        Arrays whose adjoints are only read. The kernel must write each of their elements at most once, and not read it.
    fresh : collection of str
        Arrays whose adjoints are stored, whatever they hold. Each thread must load its own element, in whatever way it goes on,
        and no other thread's; elements that no thread has keep what they hold.
    restores : bool
        Whether arrays of the kernel end as they were, or may hold what the kernel stores where that needs nothing remembered.
    left : collection of str
        Arrays that hold what the kernel has left in them, and no longer what they held before.
    slots : int
        How many trips of a loop are kept at once, at most; a power of two.
    bounded : bool
        Whether the function is given the memory of its stacks, as last parameters, instead of stacks that grow.
    in_turn : bool
        Whether the threads of a block run one after the other from one place where they wait to the next, as on the CPU. Else
        they run at the same time, and wait once more where one would bring back what another may still read.
    returns : bool
        Whether the function returns the gradients of the active scalars. Else it adds them to arrays, which it takes in the order
        of the parameters.

    Raises
    ------
    KernelUnsupportedError
        If the gradient would not be exact; the message shows where, and what to do.
    """
    made = _Reverse(program, wanted, apart, slots, bounded, restores, left, in_turn)
    made.keep(kept)
    made.freshen(fresh)
    return made.run(name, returns=returns)


class _Reverse(LoopReversal):
    def __init__(self, program: Program, wanted: Collection[str], *how: Any) -> None:
        super().__init__(program, wanted, *how)
        parameters = {parameter.name: parameter for parameter in program.parameters}
        self._wanted = [parameters[name] for name in wanted]
        self._inside: dict[Op, set[Value]] = {}

    def run(self, name: str, *, returns: bool) -> Reversed:
        """Write everything."""
        body = self.program.body
        self._forward(body, self.needs.values, save=True)
        self._turn(body)
        scalars = [p for p in self._wanted if isinstance(p.item, Value)]
        self._reverse(body)
        self._fill()
        for parameter in scalars:
            if isinstance(parameter.item, Value):
                self._begin(parameter.item)
        self._release()
        arrays = tuple(p.name for p in self._wanted if isinstance(p.item, Array))
        head = [v.name for v in self.program.hidden] + [p.name for p in self.program.parameters]
        if returns:
            returned = "".join(f"{ADJOINT}{p.name}{place}, " for p in scalars for place in places(p.item))
            self.lines.add(f"return ({returned.strip()})" if scalars else "pass")
            head += [f"{ADJOINT}{array}" for array in arrays]
        else:
            for p in scalars:
                self._add_total(p)
            head += [f"{_TOTAL if p in scalars else ADJOINT}{p.name}" for p in self._wanted]
        head += [MEMORY, PLACES] if self.bounded and self._stacks else []
        text = [
            f"# The adjoint of {self.program.name}",
            "@_nb_device",
            f"def {name}({', '.join(head)}):",
            *self._declarations().lines,
            *self.lines.lines,
        ]
        return self._result("\n".join(text), name, arrays, scalars)

    def _result(self, text: str, name: str, arrays: tuple[str, ...], scalars: Sequence[Parameter]) -> Reversed:
        changed = {a.parameter for a in self._stored | self._added if a.kind == "parameter"}
        replayed = {op.array for op in self.needs.replayed if isinstance(op, Store)}
        ops = list(walk(self.program.body))
        reads = frozenset(a.parameter for a in self.needs.read)
        snapshot = frozenset(a.parameter for a in self.needs.snapshot)
        writes = frozenset(a.parameter for a in replayed if a.kind == "parameter")
        return Reversed(
            text,
            name,
            arrays,
            tuple(p.name for p in scalars),
            tuple((p.name, str(k) if part else "") for p in scalars for k, part in enumerate(places(p.item))),
            reads=reads,
            snapshot=snapshot,
            writes=writes,
            untouched=frozenset(set(arrays) - changed),
            spent=frozenset(set(arrays) & self._only_stored(ops)),
            shared=bool(self._shared),
            near=nearness(self.program, self._shared) if self._apart else None,
            stacks=len(self._stacks),
            may_raise=any(isinstance(op, Raise) for op in ops),
            has_loop=any(isinstance(op, Loop) for op in ops),
            lasting=self.needs.lasting() if snapshot else frozenset(),
        )

    def _only_stored(self, ops: Sequence[Op]) -> set[str]:
        """Return the parameters that are stored to and used in no other way."""
        stored = {op.array.parameter for op in ops if isinstance(op, Store)}
        return stored - {op.array.parameter for op in ops if isinstance(op, Load | Atomic)}

    def _add_total(self, parameter: Parameter) -> None:
        """Add a gradient to an array of one element."""
        parts = places(parameter.item)
        for k, part in enumerate(parts):
            where = (
                f"{_TOTAL}{parameter.name}, ()"
                if len(parts) == 1
                else f"_nb_components({_TOTAL}{parameter.name}), ({k},)"
            )
            self.lines.add(f"_nb_add({where}, {ADJOINT}{parameter.name}{part})")

    def _declarations(self) -> Lines:
        lines = Lines()
        field_views(lines, self.program.fields)
        field_views(lines, [array for array in self.program.fields if array in self.activity.arrays], ADJOINT)
        shared = [array for array in self.program.locals if array.kind == "shared"]
        for array in self.program.locals:
            own_array(lines, array.name, array)
            if array in self.activity.arrays:
                zero = "" if array in shared else self.construct.zero(array.dtype).name
                place = self.program.free_place + array.place
                own_array(lines, ADJOINT + array.name, array, zero=zero, place=place)
        for plan in self._plans.values():
            plan.declare(lines, [self._kind(c.phi) for c in plan.needs.saved])
        for number, stack in enumerate(self._stacks):
            lines.add(f"{stack} = _nb_stack_new()")
            if self.bounded:
                lines.add(f"_nb_stack_place({stack}, {MEMORY}, {PLACES}, {number}, {len(self._stacks)})")
        if self._shares_work:
            self._share_out(lines)
            self._clear(lines, [array for array in shared if array in self.activity.arrays])
        return lines

    def _clear(self, lines: Lines, arrays: Sequence[Array]) -> None:
        """Write what sets the adjoints of shared memory to zero, which threads do together, and the memory itself to a number.

        A thread beyond the end may compute with what nobody stored, and drop the result: its adjoint is zero, and zero times
        what lies there by chance must not become NaN in a sum with others. At a half, most functions have a derivative.
        """
        for array in arrays:
            kind = getattr(array.dtype, "dtype", array.dtype)
            with self._each_share(lines, array):
                lines.add(f"{self._share_of(array, ADJOINT + array.name)} = {self.construct.zero(kind).name}")
                lines.add(f"{self._share_of(array)} = {self.construct.constant(0.5, kind).name}")
        if arrays:
            lines.add(meeting("syncthreads"))

    def _kind(self, value: Value) -> str:
        self.construct.type_name(value.type)  # what an element that was kept is made again with
        name = self.construct.type_name(getattr(value.type, "dtype", value.type))
        if name == "bool":
            self.program.namespace["_nb_bool"] = np.bool_
            return "_nb_bool"
        return name

    def _reverse(self, region: Region) -> None:
        for op in reversed(region):
            if op not in self.needs.live:
                continue
            self.construct.place = op.place
            if not isinstance(op, Compute | Load):
                self._flush(op.array if isinstance(op, Store | Atomic) else None)
            match op:
                case Compute():
                    self._reverse_compute(op)
                case Load():
                    if self._has(op.result):
                        self._add_to(op, self._adjoint(op.result))
                case Store():
                    self._reverse_store(op)
                case Atomic():
                    self._reverse_atomic(op)
                case If():
                    self._reverse_if(op)
                case Loop():
                    self._reverse_loop(op)
                case Custom():
                    self._reverse_custom(op)
                case Meet():
                    self._reverse_meet(op)
        self._flush()

    def _reverse_compute(self, op: Compute) -> None:
        if not self._has(op.result):
            return
        pullback = self.needs.pullbacks[op]
        for made in pullback.region:
            self.lines.add(operation(made))
        adjoint = Value(self._adjoint(op.result), op.result.type)
        for argument, partial in pullback.partials:
            self._contribute(argument, partial, adjoint)

    def _reverse_store(self, op: Store) -> None:
        if op.array in self.activity.arrays and op in self._alike and op.value in self.active:
            self._take(op)
        elif op.array in self.activity.arrays:
            adjoint = element(ADJOINT + op.array.name, op.index)
            alone = op.value in self.active and not self._has(op.value)
            self._add(op.value, adjoint, lasting=False)
            self._overwritten(op, ADJOINT + op.value.name if alone else None)
        if self.needs.is_undone(op):
            self._undo_store(op)

    def _undo_store(self, op: Store) -> None:
        """Bring back what a store overwrote: of several threads that stored the same, those that found it there do nothing."""
        old, place = self._old(op), element(op.array.name, op.index)
        if op not in self._alike:
            self.lines.add(f"{place} = {old}")
            return
        parts = [*self._parts_of(op, before=True)]
        if self.in_turn:
            with self.lines.block(f"if {' or '.join(f'_nb_differs({found}, {new})' for *_, found, new in parts)}:"):
                self.lines.add(f"{place} = {old}")
            return
        for memory, index, found, new in parts:
            # Without a barrier in between, others may still be storing.
            with self.lines.block(f"if _nb_differs({found}, {new}):"):
                self.lines.add(f"_nb_exchanged({memory}, {index}, {found})")

    def _turn(self, region: Region) -> None:
        """Wait between what runs forward once more and its reverse, if threads store alike there after they waited last.

        Else one thread would bring back an element that another, which has stored the same there, has yet to read.
        """
        if self.in_turn or not any(isinstance(op, Meet) and op.of_block for op in walk(region)):
            return
        for op in reversed(region):
            if isinstance(op, Meet) and op.of_block:
                return
            stores = [inner for inner in nested([op]) if isinstance(inner, Store)]
            if any(inner in self._alike and self.needs.is_undone(inner) for inner in stores):
                self.lines.add(meeting("syncthreads"))
                return

    def _reverse_atomic(self, op: Atomic) -> None:
        adjoint = element(ADJOINT + op.array.name, op.index)
        self._add(op.values[0], adjoint if op.operation == "add" else f"-{adjoint}", lasting=False)

    def _reverse_meet(self, op: Meet) -> None:
        if op.of_block:
            self.lines.add(meeting("syncthreads"))
        elif op.result is not None and self._has(op.result):
            for line in lanes_back(op, self._adjoint(op.result), self.construct.zero(op.result.type).name):
                self.lines.add(line)
            self._add(op.arguments[1], BACK, lasting=False)
        else:
            self.lines.add(meeting("syncwarp", op.arguments[0].name))

    def _reverse_if(self, op: If) -> None:
        self._prepare(op)
        live = [m for m in op.merges if self._has(m.result)]
        started, held = set(self._started), dict(self._held)
        for head, side in ((f"if {op.condition.name}:", 0), ("else:", 1)):
            with self.lines.optional(head) if side else self.lines.block(head):
                self._started, self._held = set(started), dict(held)
                if op in self._postponed:
                    self._forward((op.then, op.orelse)[side], self._postponed[op], save=True)
                for merge in live:
                    self._add((merge.then, merge.orelse)[side], self._adjoint(merge.result))
                self._reverse((op.then, op.orelse)[side])
        self._started, self._held = started, held

    def _prepare(self, op: Op) -> None:
        """Begin the adjoints that the reverse of a branch or a loop adds to from within."""
        for value in self._touched(op):
            self._begin(value)

    def _touched(self, op: Op) -> list[Value]:
        """Return the active values from outside an operation that its reverse adds to from within."""
        found: dict[Value, None] = {}
        inside = self._defined_inside(op)
        for inner in (op, *(o for region in regions(op) for o in walk(region))):
            for value in self._receivers(inner, inner is op):
                if value in self.active and value not in inside:
                    found[value] = None
        return list(found)

    def _receivers(self, op: Op, outermost: bool) -> Iterator[Value]:
        match op:
            case Compute():
                yield from (argument for argument, _ in self._partials(op))
            case Store():
                yield op.value
            case Atomic():
                yield from op.values
            case Meet() if op.result in self.active:
                yield op.arguments[1]
            case If():
                for m in op.merges:
                    yield from (m.then, m.orelse)
            case Loop():
                for c in op.carried:
                    yield c.following
                    if not outermost:
                        yield c.initial
            case Custom():
                yield from op.arguments

    def _partials(self, op: Compute) -> list[tuple[Value, AnyPartial]]:
        pullback = self.needs.pullbacks.get(op)
        return [] if pullback is None else pullback.partials

    def _defined_inside(self, op: Op) -> set[Value]:
        if op not in self._inside:
            values = set(defined_by(op)) if isinstance(op, Loop) else set()
            values.update(v for region in regions(op) for o in walk(region) for v in defined_by(o))
            self._inside[op] = values
        return self._inside[op]

    def _reverse_custom(self, op: Custom) -> None:
        if not any(self._has(result) for result in op.results):
            return
        for cotangent, result in zip(op.cotangents, filter(is_float, op.results), strict=True):
            text = self._adjoint(result) if self._has(result) else self.construct.zero(result.type).name
            self.lines.add(f"{cotangent.name} = {text}")
        Primal(self.program, self.lines).region(op.pullback)
        for argument, gradient in zip(op.arguments, op.gradients, strict=True):
            if gradient is not None and argument in self.active:
                self._contribute(argument, Partial(), gradient)
