"""Reverse mode: the text of a function that carries adjoints from what a kernel wrote back to what it read.

The function runs what is needed of the kernel again, then every operation's reverse in the opposite order. Names that
begin with ``_nb_`` are the generator's; no program has such names of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.activity import Activity, Needs, refused
from numbridge.kernels.adjoint.checkpoint import MOST_SLOTS, Checkpoints, constant_trips, itemsize, slots_for
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.element_program import places
from numbridge.kernels.adjoint.element_rules import Part
from numbridge.kernels.adjoint.emit import (
    Lines,
    Primal,
    Values,
    element,
    field_views,
    index_text,
    local_array,
    loop_head,
    moves,
    operation,
    start_trip,
)
from numbridge.kernels.adjoint.fence import offset
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Carried,
    Compute,
    Custom,
    If,
    Load,
    Loop,
    Op,
    Parameter,
    Program,
    Raise,
    Region,
    Store,
    Value,
    defined_by,
    regions,
    walk,
)
from numbridge.kernels.adjoint.prefixes import ADJOINT
from numbridge.kernels.adjoint.rules import AnyPartial, Partial

__all__ = ["Reversed", "reverse"]

STACK = "_nb_stack"


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
    writes : frozenset of str
        Arrays of the kernel that the adjoint changes for a while; they end as they were.
    untouched : frozenset of str
        Arrays whose adjoint is only read.
    shared : bool
        Whether threads may add to the same elements of an adjoint.
    near : (int, tuple of str) or None
        If each thread only touches rows of those shared adjoints that are at most so many away from its own index along
        the first dimension: how many, and the arrays. None if that is not known.
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
    writes: frozenset[str]
    untouched: frozenset[str]
    shared: bool
    near: tuple[int, tuple[str, ...]] | None
    may_raise: bool
    has_loop: bool


def reverse(
    program: Program,
    wanted: Collection[str],
    name: str,
    *,
    apart: bool = True,
    kept: Collection[str] = (),
    slots: int = MOST_SLOTS,
    stacks: bool = True,
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
    slots : int
        How many trips of a loop are kept at once, at most; a power of two.
    stacks : bool
        Whether the target has stacks that grow, for loops that store into arrays.

    Raises
    ------
    KernelUnsupportedError
        If the gradient would not be exact; the message shows where, and what to do.
    """
    made = _Reverse(program, wanted, apart, slots, stacks)
    made.keep(kept)
    return made.run(name)


class _Reverse:
    def __init__(self, program: Program, wanted: Collection[str], apart: bool, slots: int, stacks: bool) -> None:
        self.program = program
        self.activity = Activity(program, wanted)
        self.needs = Needs(self.activity)
        self.lines = Lines()
        self.construct = Construct(program.names, program.namespace, "_nb_")
        self.active = self.activity.values
        parameters = {parameter.name: parameter for parameter in program.parameters}
        self._wanted = [parameters[name] for name in wanted]
        self._inside: dict[Op, set[Value]] = {}
        self._started: set[Value] = set()
        self._held: dict[Value, str] = {}
        self._plans = self._plan(slots)
        if not stacks:
            self._refuse_stacks()
        self._own = _own_arrays(program) if apart else set()
        self._apart = apart
        self._kept: set[Array] = set()
        self._pending: dict[Array, list[Value]] = {}
        self._added: set[Array] = set()
        self._stored: set[Array] = set()
        self._shared: set[Array] = set()

    def keep(self, names: Collection[str]) -> None:
        """Leave the adjoints of some arrays as they are, or refuse to."""
        for name in names:
            for array in self.program.parts(self.program.array(name)):
                self._keep_array(array)

    def _keep_array(self, array: Array) -> None:
        uses = [op for op in walk(self.program.body) if isinstance(op, Load | Store | Atomic) and op.array is array]
        added = all(isinstance(op, Atomic) for op in uses)
        if not added and (len(uses) > 1 or not isinstance(uses[0], Store) or self._in_loop(uses[0])):
            raise refused(
                uses[-1],
                f"the adjoint of {array.called!r} changes on the way back, since an element may be read, or written again; "
                "pass a copy of it",
            )
        self._kept.add(array)

    def _refuse_stacks(self) -> None:
        for op in walk(self.program.body):
            if op in self.needs.replayed and self._in_loop(op):
                raise refused(
                    op,
                    "the adjoint on CUDA would have to remember every element that this loop overwrites, which it cannot yet; "
                    "launch on CPU arrays, or store into another array than the loop reads",
                )

    def _plan(self, most: int) -> dict[Loop, Checkpoints]:
        loops = self.needs.loops
        sizes = [sum(map(itemsize, needs.saved)) for needs in loops.values() if not needs.stacked]
        slots = slots_for(sizes, most)
        made: dict[Loop, Checkpoints] = {}
        for number, op in enumerate(reversed(list(loops)), 1):
            trips = constant_trips(op)
            exact = trips is not None and trips <= slots
            made[op] = Checkpoints(op, loops[op], number, max(trips or 0, 1) if exact else slots, exact)
        return made

    def run(self, name: str) -> Reversed:
        """Write everything."""
        body = self.program.body
        self._forward(body, self.needs.values, save=True)
        scalars = [p for p in self._wanted if isinstance(p.item, Value)]
        self._reverse(body)
        for parameter in scalars:
            if isinstance(parameter.item, Value):
                self._begin(parameter.item)
        self._release()
        returned = "".join(f"{ADJOINT}{p.name}{place}, " for p in scalars for place in places(p.item))
        self.lines.add(f"return ({returned.strip()})" if scalars else "pass")
        arrays = tuple(p.name for p in self._wanted if isinstance(p.item, Array))
        head = [v.name for v in self.program.hidden] + [p.name for p in self.program.parameters]
        head += [f"{ADJOINT}{array}" for array in arrays]
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
        return Reversed(
            text,
            name,
            arrays,
            tuple(p.name for p in scalars),
            tuple((p.name, str(k) if part else "") for p in scalars for k, part in enumerate(places(p.item))),
            reads=frozenset(a.parameter for a in self.needs.read),
            snapshot=frozenset(a.parameter for a in self.needs.snapshot),
            writes=frozenset(a.parameter for a in replayed if a.kind == "parameter"),
            untouched=frozenset(set(arrays) - changed),
            shared=bool(self._shared),
            near=_nearness(self.program, self._shared) if self._apart else None,
            may_raise=any(isinstance(op, Raise) for op in ops) or bool(self._stacks),
            has_loop=any(isinstance(op, Loop) for op in ops),
        )

    # What stands at the beginning and the end

    @property
    def _logged(self) -> list[Array]:
        """The arrays whose stores are undone from a stack: those stored into within a loop."""
        stores = [op for op in walk(self.program.body) if op in self.needs.replayed and self._in_loop(op)]
        return list(dict.fromkeys(op.array for op in stores if isinstance(op, Store)))

    def _in_loop(self, op: Op) -> bool:
        return any(isinstance(outer, Loop) for outer in self.needs.ancestors(op))

    @property
    def _stacks(self) -> list[str]:
        stacked = [STACK] if any(needs.stacked for needs in self.needs.loops.values()) else []
        return stacked + [_log(array) for array in self._logged]

    def _declarations(self) -> Lines:
        lines = Lines()
        field_views(lines, self.program.fields)
        field_views(lines, [array for array in self.program.fields if array in self.activity.arrays], ADJOINT)
        for array in self.program.locals:
            local_array(lines, array.name, array)
            if array in self.activity.arrays:
                local_array(lines, ADJOINT + array.name, array, self.construct.zero(array.dtype).name)
        for plan in self._plans.values():
            plan.declare(lines, [self._kind(c.phi) for c in plan.needs.saved])
        for stack in self._stacks:
            lines.add(f"{stack} = _nb_stack_new()")
        return lines

    def _kind(self, value: Value) -> str:
        name = self.construct.type_name(getattr(value.type, "dtype", value.type))
        if name == "bool":
            self.program.namespace["_nb_bool"] = np.bool_
            return "_nb_bool"
        return name

    def _release(self) -> None:
        for stack in self._stacks:
            self.lines.add(f"_nb_stack_free({stack})")

    # The forward sweep

    def _forward(self, region: Region, values: Values, *, save: bool) -> None:
        """Write what of a region computes some values; `save` if the region is reversed right afterwards."""
        for op in region:
            match op:
                case If():
                    self._forward_if(op, values, save=save)
                case Loop():
                    self._forward_loop(op, values, save=save)
                case Custom():
                    if any(result in values for result in op.results):
                        Primal(self.program, self.lines).region(op.body)
                        moves(self.lines, list(zip(op.results, op.inner, strict=True)), "_nb_move")
                case Store():
                    if op in self.needs.replayed:
                        self._forward_store(op, save=save)
                case Raise():
                    if values is self.needs.values:
                        self._release()
                        self.lines.add(op.text)
                case Atomic():
                    pass
                case _:
                    if any(value in values for value in defined_by(op)):
                        self.lines.add(operation(op))

    def _has_work(self, op: Op, values: Values, *, save: bool) -> bool:
        """Tell whether the forward sweep must go into a branch or a loop."""
        if any(value in values for value in defined_by(op) if not isinstance(op, Loop) or value is not op.index):
            return True
        for inner in (o for region in regions(op) for o in walk(region)):
            if any(value in values for value in defined_by(inner)) or inner in self.needs.replayed:
                return True
            if isinstance(inner, Raise) and values is self.needs.values:
                return True
            if save and isinstance(inner, Loop) and self._keeps(inner):
                return True
        return False

    def _keeps(self, op: Loop) -> bool:
        plan = self._plans.get(op)
        return plan is not None and (plan.counts or bool(plan.needs.saved) or plan.needs.stacked)

    def _forward_if(self, op: If, values: Values, *, save: bool) -> None:
        if not self._has_work(op, values, save=save):
            return
        sides: list[tuple[Region, list[tuple[Value, Value]]]] = [
            (op.then, [(m.result, m.then) for m in op.merges if m.result in values]),
            (op.orelse, [(m.result, m.orelse) for m in op.merges if m.result in values]),
        ]
        heads = [f"if {op.condition.name}:", "else:"]
        for head, (region, pairs) in zip(heads, sides, strict=True):
            with self.lines.optional(head) if head == "else:" else self.lines.block(head):
                self._forward(region, values, save=save)
                moves(self.lines, pairs, "_nb_move")

    def _forward_loop(self, op: Loop, values: Values, *, save: bool) -> None:
        plan = self._plans.get(op) if save else None
        keeps = plan is not None and self._keeps(op)
        if not keeps and not self._has_work(op, values, save=False):
            return
        kept = [c for c in op.carried if c.phi in values or c.result in values]
        moves(self.lines, [(c.phi, c.initial) for c in kept], "_nb_move")
        if plan is not None:
            plan.start(self.lines)
        with self._copy(op), self.lines.block(loop_head(op)):
            start_trip(self.lines, op)
            self._forward(op.test, values, save=False)
            if op.condition is not None:
                self.lines.add(f"if not {op.condition.name}: break")
            if plan is not None:
                self._keep(plan)
            self._forward(op.body, values, save=False)
            moves(self.lines, [(c.phi, c.following) for c in kept], "_nb_move")
            if plan is not None:
                plan.end_trip(self.lines)
            if op.leave is not None:
                self.lines.add(f"if {op.leave.name}: break")
        moves(self.lines, [(c.result, c.phi) for c in kept if c.result in values], "_nb_move")

    @contextmanager
    def _copy(self, op: Loop) -> Iterator[None]:
        """Write a loop's body with names of its own: Numba is slow at variables that are assigned in many places."""
        inner = [value for region in regions(op) for o in walk(region) for value in defined_by(o)]
        if op.index is not None:
            inner.append(op.index)
        before = [(value, value.name) for value in inner]
        for value in inner:
            value.name = self.program.names.fresh(value.name)
        yield
        for value, name in before:
            value.name = name

    def _keep(self, plan: Checkpoints) -> None:
        if not plan.needs.stacked:
            plan.keep(self.lines)
            return
        for carried in plan.needs.saved:
            for place in places(carried.phi):
                self.lines.add(f"_nb_stack_push({STACK}, {carried.phi.name}{place})")
        for array in self._logged_in(plan.op):
            self.lines.add(f"_nb_stack_push({STACK}, _nb_stack_height({_log(array)}))")

    def _logged_in(self, op: Loop) -> list[Array]:
        stores = [inner for inner in walk(op.body) if inner in self.needs.replayed]
        return list(dict.fromkeys(inner.array for inner in stores if isinstance(inner, Store)))

    def _forward_store(self, op: Store, *, save: bool) -> None:
        if save:
            self.lines.add(f"{self._old(op)} = {element(op.array.name, op.index)}")
        else:
            for memory, index in _scalar_places(op.array, op.array.name, op.index):
                self.lines.add(f"_nb_stack_remember({_log(op.array)}, {memory}, {index})")
        self.lines.add(operation(op))

    def _old(self, op: Store) -> str:
        return f"_nb_old_{sorted(self.needs.order[o] for o in self.needs.replayed).index(self.needs.order[op]) + 1}"

    # The reverse sweep

    def _has(self, value: Value) -> bool:
        """Tell whether something has been added to an adjoint."""
        return value in self._started or value in self._held

    def _adjoint(self, value: Value) -> str:
        """Return what an adjoint is: its variable, or the one thing that has been added to it so far."""
        return self._held.get(value, ADJOINT + value.name)

    def _begin(self, value: Value) -> None:
        """Make sure that an adjoint has a variable from here on."""
        if value not in self._started:
            held = self._held.pop(value, self.construct.zero(value.type).name)
            self._started.add(value)
            self.lines.add(f"{ADJOINT}{value.name} = {held}")

    def _add(self, value: Value, text: str, *, lasting: bool = True) -> None:
        """Add to an adjoint; `lasting` tells that `text` stays the same for as long as the adjoint is used."""
        if value not in self.active:
            return
        name = ADJOINT + value.name
        if value in self._started:
            self.lines.add(f"{name} += {text}")
        elif value in self._held:
            self.lines.add(f"{name} = {self._held.pop(value)} + {text}")
            self._started.add(value)
        elif lasting:
            self._held[value] = text
        else:
            self.lines.add(f"{name} = {text}")
            self._started.add(value)

    def _contribute(self, value: Value, partial: AnyPartial, adjoint: Value) -> None:
        """Add a partial derivative times the adjoint of a result to the adjoint of an argument."""
        if isinstance(partial, Part):
            self._add_part(value, partial, adjoint.name)
            return
        self.construct.region = []
        made = self.construct.cast(partial.times(self.construct, adjoint), value.type)
        for op in self.construct.region:
            self.lines.add(operation(op))
        self._add(value, made.name)

    def _add_part(self, value: Value, part: Part, text: str) -> None:
        """Add to a component or a row of an element's adjoint."""
        self._begin(value)
        name, place = ADJOINT + value.name, ", ".join(index.name for index in part.index)
        index = place if len(part.index) == 1 else f"({place})"
        self.lines.add(f"{name} = _nb_replaced({name}, {index}, {name}[{place}] + {text})")

    def _flush(self, read: Array | None = None) -> None:
        """Set the adjoints of overwritten elements to zero, where that was put off and now makes a difference."""
        for array in list(self._pending):
            if read is None or read is array or not self._apart:
                adjoint = element(ADJOINT + array.name, self._pending.pop(array))
                self.lines.add(f"{adjoint} = {self.construct.zero(array.dtype).name}")

    def _reverse(self, region: Region) -> None:
        for op in reversed(region):
            if op not in self.needs.live:
                continue
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

    def _add_to(self, op: Load, text: str) -> None:
        array, index = op.array, op.index
        self._added.add(array)
        name = ADJOINT + array.name
        private = array in self._own or array.kind == "local"
        if private and self._pending.get(array) == list(index):
            del self._pending[array]
            self.lines.add(f"{element(name, index)} = {text}")
            return
        self._flush(array)
        if private:
            self.lines.add(f"{element(name, index)} += {text}")
        else:
            if array.misaligned:
                raise refused(
                    op,
                    f"threads may add to the same adjoint of {array.called!r}, which lies at no multiple of its size; use a "
                    "dtype of records with align=True",
                )
            self._shared.add(array)
            for (memory, place), part in zip(_scalar_places(array, name, index), places(array), strict=True):
                self.lines.add(f"_nb_add({memory}, {place}, {text}{part})")

    def _reverse_store(self, op: Store) -> None:
        if op.array in self.activity.arrays:
            adjoint = element(ADJOINT + op.array.name, op.index)
            self._add(op.value, adjoint, lasting=False)
            self._overwritten(op)
        if op in self.needs.replayed:
            self.lines.add(f"{element(op.array.name, op.index)} = {self._old(op)}")

    def _overwritten(self, op: Store) -> None:
        """Say that nothing depends on what an element held before it was written."""
        if op.array in self._kept:
            return
        self._stored.add(op.array)
        self._pending[op.array] = op.index
        if not self._apart:
            self._flush()

    def _reverse_atomic(self, op: Atomic) -> None:
        adjoint = element(ADJOINT + op.array.name, op.index)
        self._add(op.values[0], adjoint if op.operation == "add" else f"-{adjoint}", lasting=False)

    def _reverse_if(self, op: If) -> None:
        self._prepare(op)
        live = [m for m in op.merges if self._has(m.result)]
        started, held = set(self._started), dict(self._held)
        for head, side in ((f"if {op.condition.name}:", 0), ("else:", 1)):
            with self.lines.optional(head) if side else self.lines.block(head):
                self._started, self._held = set(started), dict(held)
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
        for cotangent, result in zip(op.cotangents, op.results, strict=True):
            text = self._adjoint(result) if self._has(result) else self.construct.zero(result.type).name
            self.lines.add(f"{cotangent.name} = {text}")
        Primal(self.program, self.lines).region(op.pullback)
        for argument, gradient in zip(op.arguments, op.gradients, strict=True):
            if gradient is not None and argument in self.active:
                self._contribute(argument, Partial(), gradient)

    # Loops in reverse

    def _reverse_loop(self, op: Loop) -> None:
        plan = self._plans[op]
        active = [c for c in op.carried if c.phi in self.active]
        self._prepare(op)
        for c in active:
            held = self._adjoint(c.result) if self._has(c.result) else self.construct.zero(c.phi.type).name
            self.lines.add(f"{ADJOINT}{c.phi.name} = {held}")
        trips = plan.start_reverse(self.lines)
        counter = plan.name("at")
        with self.lines.block(f"for {counter} in range({trips} - 1, -1, -1):"):
            self._restore(plan, counter)
            self._set_index(op, counter, self.needs.loops[op].values)
            self._forward(op.body, self.needs.loops[op].values, save=True)
            outer = set(self._started), dict(self._held)
            moved = self._start_trip_adjoints(op, active)
            self._reverse(op.body)
            for c in moved:
                self._begin(c.phi)
            self._started, self._held = outer
        self._started.update(c.phi for c in active)
        for c in active:
            self._add(c.initial, self._adjoint(c.phi))

    def _start_trip_adjoints(self, op: Loop, active: list[Carried]) -> list[Carried]:
        """Hand the adjoints of the variables, as they are after the trip, to what computed them; return those moved."""
        phis = {c.phi for c in op.carried}
        moving = [c for c in active if c.following is not c.phi]
        self._started.update(c.phi for c in active if c.following is c.phi)
        held = [self._adjoint(c.phi) for c in moving]
        if any(c.following in phis for c in moving):
            for k, name in enumerate(held):
                self.lines.add(f"_nb_after_{k} = {name}")
            held = [f"_nb_after_{k}" for k in range(len(moving))]
        for c, name in zip(moving, held, strict=True):
            self._add(c.following, name, lasting=False)
        return moving

    def _set_index(self, op: Loop, trip: str, values: Values) -> None:
        if op.index is None or op.index not in values:
            return
        start, _, step = op.bounds
        text = trip if step.constant == 1 else f"{trip} * {step.name}"
        text = text if start.constant == 0 else f"{start.name} + {text}"
        self.lines.add(f"{op.index.name} = {text if op.index.type == types.int64 else f'_nb_{op.index.type}({text})'}")

    def _restore(self, plan: Checkpoints, counter: str) -> None:
        """Bring the variables back to what they were at the start of a trip."""
        if plan.needs.stacked:
            self._restore_stacked(plan)
        elif plan.exact:
            for c in plan.needs.saved:
                self.lines.add(plan.restored(c, plan.kept(c), counter))
        elif plan.needs.saved:
            self._restore_segment(plan, counter)

    def _restore_stacked(self, plan: Checkpoints) -> None:
        for array in reversed(self._logged_in(plan.op)):
            memory = array.name if inference.element_of(array.dtype) is None else f"_nb_components({array.name})"
            self.lines.add(f"_nb_stack_undo({_log(array)}, {memory}, _nb_stack_pop({STACK}, 0))")
        for c in reversed(plan.needs.saved):
            zero = self.construct.zero(getattr(c.phi.type, "dtype", c.phi.type)).name
            popped = f"_nb_stack_pop({STACK}, {zero})"
            if inference.element_of(c.phi.type) is None:
                self.lines.add(f"{c.phi.name} = {popped}")
                continue
            parts = [f"_nb_popped_{k}" for k in range(len(places(c.phi)))]
            for part in reversed(parts):
                self.lines.add(f"{part} = {popped}")
            self.lines.add(f"{c.phi.name} = {self.construct.type_name(c.phi.type)}({', '.join(parts)})")

    def _restore_segment(self, plan: Checkpoints, counter: str) -> None:
        lines, saved = self.lines, plan.needs.saved
        shift, segment, again_shift = plan.name("shift"), plan.name("segment"), plan.name("again_shift")
        place, first, again = plan.name("place"), plan.name("first"), plan.name("again")
        with lines.block(f"if {shift} == 0:"):
            for c in saved:
                lines.add(plan.restored(c, plan.kept(c), counter))
        with lines.block("else:"):
            lines.add(f"{place} = {counter} & ((1 << {shift}) - 1)")
            with lines.block(f"if {counter} >> {shift} != {segment}:"):
                lines.add(f"{segment} = {counter} >> {shift}")
                lines.add(f"{again_shift} = max({shift} - {plan.slots.bit_length() - 1}, 0)")
                lines.add(f"{first} = 0")
                for c in saved:
                    lines.add(plan.restored(c, plan.kept(c), segment))
            with lines.block("else:"):
                lines.add(f"{first} = {place} >> {again_shift} << {again_shift}")
                for c in saved:
                    lines.add(plan.restored(c, plan.again(c), f"{place} >> {again_shift}"))
            with self._copy(plan.op), lines.block(f"for {again} in range({first}, {place}):"):
                with lines.block(f"if {again} & ((1 << {again_shift}) - 1) == 0:"):
                    for c in saved:
                        plan.put(lines, c, plan.again(c), f"{again} >> {again_shift}")
                self._set_index(plan.op, f"(({segment} << {shift}) + {again})", plan.needs.again)
                self._forward(plan.op.body, plan.needs.again, save=False)
                moves(lines, [(c.phi, c.following) for c in saved], "_nb_move")


def _scalar_places(array: Array, name: str, index: Sequence[Value]) -> list[tuple[str, str]]:
    """Return where an element's scalars lie, each as the text of an array and an index."""
    element = inference.element_of(array.dtype)
    if element is None:
        return [(name, index_text(index))]
    outer = "".join(f"{value.name}, " for value in index)
    return [(f"_nb_components({name})", f"({outer}{k})") for k in range(element.count)]


def _log(array: Array) -> str:
    return f"_nb_log_{array.name}"


def _nearness(program: Program, shared: Collection[Array]) -> tuple[int, tuple[str, ...]] | None:
    """Return how far from its own row a thread touches shared arrays, and these, or None."""
    if any(array.owner is not None and array.owner.ndim == 0 for array in shared):
        return None
    definers = {value: op for op in walk(program.body) for value in defined_by(op)}
    first = next((value for value in program.hidden if value.name == "_nb_i0"), None)
    furthest = 0
    for op in walk(program.body):
        if isinstance(op, Load | Store | Atomic) and op.array in shared:
            distance = offset(op.index[0], first, definers) if op.index and first is not None else None
            if distance is None:
                return None
            furthest = max(furthest, abs(distance))
    return furthest, tuple(sorted({array.parameter for array in shared}))


def _own_arrays(program: Program) -> set[Array]:
    """Return the arrays of which each thread only touches elements that no other thread touches.

    Every access has each thread index, as it is, at one and the same place of the index.
    """
    indices = [value for value in program.hidden if value.name.startswith("_nb_i")]
    places: dict[Array, set[tuple[int, ...] | None]] = {}
    for op in walk(program.body):
        if isinstance(op, Load | Store | Atomic):
            found = tuple(op.index.index(i) if i in op.index else -1 for i in indices)
            places.setdefault(op.array, set()).add(None if -1 in found or not indices else found)
    return {array for array, found in places.items() if len(found) == 1 and None not in found}
