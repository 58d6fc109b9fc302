"""What takes part in a derivative: which values and arrays, and what of the kernel must be computed again for it.

A value is *active* if it depends on an input that is differentiated and something that carries a gradient depends on
it. What the reverse sweep reads of the kernel's own values is *needed*; loops are looked at one by one, because their
bodies run again, trip by trip, while they are reversed.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numbridge.kernels.adjoint.construct import BITS, Construct
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Carried,
    Compute,
    Custom,
    If,
    Load,
    Loop,
    Meet,
    Op,
    Program,
    Raise,
    Region,
    Store,
    Value,
    control,
    defined_by,
    is_float,
    nested,
    operands,
    read_for,
    regions,
    walk,
)
from numbridge.kernels.adjoint.renewed import Renewed
from numbridge.kernels.adjoint.rules import AnyPartial, has_rule, partials
from numbridge.kernels.adjoint.settled import Settled
from numbridge.kernels.adjoint.survey import Survey
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.language.rewriting import LIBDEVICE

__all__ = [
    "Activity",
    "LoopNeeds",
    "Needs",
    "Pullback",
    "Sweep",
    "check_bits",
    "refused",
    "reversed_by_rules",
    "spread",
]

_STEPS = frozenset({"floor", "ceil", "trunc", "rint", "sign", "round", "floordiv", "round2"})


def refused(op: Op, message: str) -> KernelError:
    """Return the error that refuses what an operation asks of the derivative, with its place in the source."""
    source, node = op.place
    error: KernelError = source.error(node, message, KernelUnsupportedError)
    return error


class Activity:
    """Which values and arrays are active.

    Parameters
    ----------
    program : Program
        The kernel.
    wanted : collection of str
        The parameters whose gradients are passed on: arrays and floating scalars.

    Attributes
    ----------
    values : set of Value
        The active ones.
    arrays : set of Array
        Those with an adjoint: wanted parameters, and local arrays that carry gradients.

    Raises
    ------
    KernelUnsupportedError
        If something active has no derivative, or passes through an array without an adjoint.
    """

    def __init__(self, program: Program, wanted: Iterable[str]) -> None:
        self.program = program
        items = {p.name: p.item for p in program.parameters}
        self.wanted: set[Any] = set()
        for name in wanted:
            item = items[name]
            parts = program.parts(item) if isinstance(item, Array) else [item]
            self.wanted.update(part for part in parts if part is item or is_float(part))
        self._ops = list(walk(program.body))
        varied, carrying = self._varied()
        check_bits(program.body, varied)
        useful, read = self._useful()
        self.values = {v for v in varied & useful if is_float(v)}
        parameters = {part for i in items.values() if isinstance(i, Array) for part in program.parts(i)}
        self.arrays = {a for a in self.wanted if isinstance(a, Array)} | {
            a for a in carrying & read if a not in parameters
        }
        self._check(carrying & read & parameters, carrying)

    def _varied(self) -> tuple[set[Value], set[Array]]:
        """Return what depends on a wanted input: values, and arrays by what is stored into them."""
        values: set[Any] = {item for item in self.wanted if isinstance(item, Value)}
        arrays: set[Any] = {item for item in self.wanted if isinstance(item, Array)}
        before = -1
        while before != (before := len(values) + len(arrays)):
            for op in self._ops:
                spread(op, values, arrays)
        return values, arrays

    def _useful(self) -> tuple[set[Value], set[Array]]:
        """Return what a gradient may come back to: values, and arrays by what is read from them."""
        values: set[Any] = set()
        arrays: set[Any] = {item for item in self.wanted if isinstance(item, Array)}
        before = -1
        while before != (before := len(values) + len(arrays)):
            for op in reversed(self._ops):
                _spread_back(op, values, arrays)
        return values, arrays

    def _check(self, through: set[Array], carrying: set[Array]) -> None:
        unwanted = through - self.wanted
        for op in self._ops:
            if isinstance(op, Store | Atomic) and op.array in unwanted:
                raise refused(
                    op,
                    f"a gradient passes through the array {op.array.called!r}, for which no adjoint is given; pass one "
                    "(an array of zeros of the same shape)",
                )
            if isinstance(op, Atomic):
                self._check_atomic(op, carrying)
            if isinstance(op, Compute) and op.result in self.values and not has_rule(op.function.key):
                raise refused(
                    op, f"{op.function.text.partition('(')[0]} has no derivative here; give one with @nb.func_grad"
                )

    def _check_atomic(self, op: Atomic, carrying: set[Array]) -> None:
        concerned = is_float(op.array) and (op.array in self.arrays or op.array in carrying)
        if concerned and op.operation not in ("add", "sub"):
            raise refused(
                op,
                f"atomic_{op.operation} on {op.array.called!r} has no derivative; use atomic_add, or leave this array "
                "without a gradient",
            )
        if op.result in self.values:
            raise refused(
                op, "the value that an atomic operation returns carries no gradient; read the element in another kernel"
            )


def reversed_by_rules(region: Region) -> Iterator[Op]:
    """Yield the operations of a region but those of functions with a derivative by hand, which nobody reverses."""
    by_hand = {inner for op in walk(region) if isinstance(op, Custom) for inner in walk(op.body)}
    return (op for op in walk(region) if op not in by_hand)


def check_bits(region: Region, varied: Container[Value]) -> None:
    """Refuse what reads the bits of a number that depends on an input.

    Raises
    ------
    KernelUnsupportedError
        If an operation of a region does.
    """
    for op in reversed_by_rules(region):
        if isinstance(op, Compute) and op.function.key == BITS and any(value in varied for value in op.arguments):
            name = op.function.text.partition("(")[0].removeprefix(LIBDEVICE)
            raise refused(
                op,
                f"cuda.libdevice.{name} has no derivative: it reads the bits of a number that a gradient is asked of; put it "
                "into a function that has one by hand (@nb.func_grad)",
            )


def spread(op: Op, values: set[Any], arrays: set[Any]) -> None:
    """Add to some values and arrays that depend on an input what an operation makes depend on it, too."""
    match op:
        case Compute():
            if op.function.key not in _STEPS and is_float(op.result) and not values.isdisjoint(op.arguments):
                values.add(op.result)
        case Load() if op.array in arrays and is_float(op.result):
            values.add(op.result)
        case Meet(result=Value() as told) if is_float(told) and op.arguments[1] in values:
            values.add(told)
        case Atomic():
            if not values.isdisjoint(op.values):
                arrays.add(op.array)
            if op.array in arrays and is_float(op.result):
                values.add(op.result)
        case Store() if op.value in values:
            arrays.add(op.array)
        case If():
            values.update(m.result for m in op.merges if m.then in values or m.orelse in values)
        case Loop():
            for c in op.carried:
                if c.initial in values or c.following in values:
                    values.update((c.phi, c.result))
        case Custom() if not values.isdisjoint(op.arguments):
            values.update(result for result in op.results if is_float(result))


def _spread_back(op: Op, values: set[Any], arrays: set[Any]) -> None:
    """Add what an operation passes a gradient back to."""
    match op:
        case Compute() if op.result in values and op.function.key not in _STEPS:
            values.update(op.arguments)
        case Load() if op.result in values:
            arrays.add(op.array)
        case Meet(result=Value() as told) if told in values and is_float(told):
            values.add(op.arguments[1])
        case Atomic():
            if op.array in arrays:
                values.update(op.values)
            if op.result in values:
                arrays.add(op.array)
        case Store() if op.array in arrays:
            values.add(op.value)
        case If():
            for m in op.merges:
                if m.result in values:
                    values.update((m.then, m.orelse))
        case Loop():
            for c in op.carried:
                if c.result in values or c.phi in values:
                    values.update((c.phi, c.initial, c.following))
        case Custom() if not values.isdisjoint(op.results):
            values.update(op.arguments)


@dataclass(eq=False)
class Pullback:
    """The reverse of one operation: what to compute first, and the partial derivatives by the active arguments."""

    region: Region
    partials: list[tuple[Value, AnyPartial]]

    @property
    def reads(self) -> set[Value]:
        """The kernel's values that this uses."""
        made = {value for op in self.region for value in defined_by(op)}
        used = {value for op in self.region for value in operands(op)}
        for _, partial in self.partials:
            used.update(partial.reads)
        return {value for value in used - made if value.constant is None}


class Sweep(set[Value]):
    """The values that are computed when something runs again, and the `stores` that are done for them."""

    def __init__(self, values: Iterable[Value] = (), stores: Iterable[Store] = ()) -> None:
        super().__init__(values)
        self.stores = set(stores)


@dataclass(eq=False)
class LoopNeeds:
    """What reversing a loop takes.

    `values` are needed by the reverse of a trip, `saved` are the variables kept for each trip, `again` is what running
    trips again from kept variables computes. `stacked` tells that the body stores into arrays that are undone.
    """

    values: Sweep = field(default_factory=Sweep)
    saved: list[Carried] = field(default_factory=list)
    again: Sweep = field(default_factory=Sweep)
    stacked: bool = False


class Needs:
    """What of a kernel its reverse sweep computes again.

    Attributes
    ----------
    survey : Survey
        Where the operations of the kernel stand.
    values : Sweep
        What the forward sweep outside of loops' reversal computes.
    loops : dict of Loop to LoopNeeds
        What each loop's reversal takes.
    live : set of Op
        Operations with something to reverse, or that hold such.
    pullbacks : dict of Op to Pullback
        For each active computation.
    replayed : set of Op
        Stores that are done again, because what they store is read again, and undone; and atomic additions to shared memory,
        which are not undone.
    read : set of Array
        Arrays whose contents the adjoint reads.
    left : frozenset of str
        The parameters that it takes as the kernel has left them.

    Parameters
    ----------
    activity : Activity
        Which values and arrays are active.
    restores : bool
        Whether arrays of the kernel end as they were.
    left : collection of str
        Array parameters that hold what the kernel has left in them, and no longer what they held before.

    Raises
    ------
    KernelUnsupportedError
        If the kernel's atomic operations, or what it has left, cannot tell what the adjoint reads.
    """

    def __init__(self, activity: Activity, *, restores: bool = True, left: Collection[str] = ()) -> None:
        self.activity = activity
        self.program = activity.program
        self.survey = Survey(self.program)
        self._ops = self.survey.ops
        self._renewed = Renewed(self.survey, self.program.locals)
        self.pullbacks = {op: self._pullback(op) for op in self._ops if self._is_active_compute(op)}
        renewed = [array for array in self.program.locals if array in self._renewed]
        self._settled = Settled(self.program, self.survey, renewed)
        self.left = frozenset(left)
        self._work_out_all()
        self._unrestored = {
            array: self._settled.left(array) for array in self._settled if array.kind == "local" or not restores
        }
        self._check_atomics()
        for op in self._overtaken():
            raise refused(
                op, f"the kernel stores to what the adjoint reads of {op.array.called!r} here, after it has read it"
            )

    def _is_active_compute(self, op: Op) -> bool:
        return isinstance(op, Compute) and op.result in self.activity.values

    def _pullback(self, op: Any) -> Pullback:
        construct = Construct(self.program.names, self.program.namespace, "_nb_")
        construct.place = op.place
        found = [
            (argument, partial)
            for argument, partial in zip(op.arguments, partials(construct, op), strict=True)
            if partial is not None and argument in self.activity.values
        ]
        wanted = {v for _, p in found for v in p.reads}
        kept: Region = []
        for made in reversed(construct.region):
            if not wanted.isdisjoint(defined_by(made)):
                wanted.update(operands(made))
                kept.append(made)
        return Pullback(kept[::-1], found)

    def lasting(self) -> frozenset[str]:
        """Return the parameters of the `snapshot` that may as well be as the kernel leaves them.

        What each load finds of them that the adjoint repeats is there to the end.
        """
        other = copy.copy(self)  # what an adjoint needs that is given them so
        other._settled = self._settled.copied()
        other.left |= {array.parameter for array in self.snapshot}
        while True:
            other._work_out_all()
            overtaken = {op.array.parameter for op in other._overtaken()}
            if not overtaken:
                return other.left - self.left
            other.left -= overtaken

    def _overtaken(self) -> list[Load]:
        """Return loads of arrays that are as the kernel leaves them, which may find there what was stored after them."""
        every = self._every()
        arrays = dict.fromkeys(op.array for op in self._ops if isinstance(op, Load) and self._is_as_left(op.array))
        found = (self._settled.overtaken(array, every) for array in arrays)
        return [op for op in found if op is not None]

    def _is_as_left(self, array: Array) -> bool:
        return array.kind == "parameter" and array.parameter in self.left

    def _every(self) -> set[Value]:
        """Return everything that is computed again."""
        return self.values.union(*(needs.values | needs.again for needs in self.loops.values()))

    def _work_out_all(self) -> None:
        """Work everything out, and take out of the settled arrays those that are not."""
        self._work_out()
        while self._settled.narrow({op: needs.values | needs.again for op, needs in self.loops.items()}):
            self._work_out()

    def _work_out(self) -> None:
        self.replayed: set[Op] = set()
        before = -1
        while before != (before := len(self.replayed)):
            self._once()

    def _once(self) -> None:
        """Work everything out for the stores that are known to be replayed, and look for more of these."""
        self.live = self._live()
        self.loops: dict[Loop, LoopNeeds] = {}
        for op in reversed(self._ops):  # inner loops first
            if isinstance(op, Loop) and op in self.live:
                self.loops[op] = self._loop(op)
        raises = {v for op in self._ops if isinstance(op, Raise) for v in self._controls(op, None)}
        orders = self._orders(self.program.body, None)
        self.values = self._sweep(self._seeds(self.program.body) | raises | orders, None)
        every = self._every()
        loads = [op for op in self._ops if isinstance(op, Load) and op.result in every]
        self.read = {op.array for op in loads if op.array.kind == "parameter"}
        self.replayed |= self._stores_before(loads)

    def _stores_before(self, loads: Iterable[Load]) -> set[Op]:
        """Return the stores of which some loads may read what was stored."""
        by_array: dict[Array, list[Load]] = {}
        for load in loads:
            if not self._is_as_left(load.array):
                by_array.setdefault(load.array, []).append(load)
        stores = [op for op in self._ops if isinstance(op, Store | Atomic)]
        stores = [op for op in stores if isinstance(op, Store) or op.array.kind == "shared"]
        return {op for op in stores if any(self._reaches(op, load) for load in by_array.get(op.array, ()))}

    def deciding(self, ops: Iterable[Op]) -> tuple[set[Value], set[Op]]:
        """Return what decides how often some operations run: values, and the stores that these read from."""
        seeds = {value for op in ops for value in self._controls(op, None)}
        stores: set[Op] = set()
        while True:
            values = self._closed(seeds, None)
            more = self._stores_before(op for op in self._ops if isinstance(op, Load) and op.result in values)
            if more <= stores:
                return values, stores
            stores |= more
            seeds |= {value for op in more for value in (*operands(op), *self._controls(op, None))}

    def _live(self) -> set[Op]:
        live: set[Op] = set()
        for op in self._ops:
            works = op in self.pullbacks or self._is_reversed(op) or self._touches_adjoint(op)
            node: Op | None = op if works else None
            while node is not None and node not in live:
                live.add(node)
                node = self.survey.parents[node]
        return live

    def _is_reversed(self, op: Op) -> bool:
        """Tell whether an operation is done again and then undone, or not undone because nobody could."""
        return op in self.replayed and (not isinstance(op, Store) or self._renewed.is_brought_back(op.array, op))

    def is_undone(self, op: Store) -> bool:
        """Tell whether a store is done again where it is reversed, and undone by its reverse."""
        if not self._is_reversed(op):
            return False
        loops = self.survey.loops(op)
        return op in (self.loops[loops[0]].values if loops else self.values).stores

    def _touches_adjoint(self, op: Op) -> bool:
        values, arrays = self.activity.values, self.activity.arrays
        match op:
            case Meet():
                return True  # whoever waited waits on the way back, too
            case Load():
                return op.result in values
            case Store():
                return op.array in arrays
            case Atomic():
                return op.array in arrays and not values.isdisjoint(op.values)
            case If():
                return any(m.result in values for m in op.merges)
            case Loop():
                return any(c.result in values or c.phi in values for c in op.carried)
            case Custom():
                return not values.isdisjoint(op.results) and not values.isdisjoint(op.arguments)
        return False

    def _seeds(self, region: Region) -> set[Value]:
        """Return what reversing a region reads, apart from what its loops read of their own."""
        seeds: set[Value] = set()
        for op in nested(region):
            if op not in self.live:
                continue
            match op:
                case Compute():
                    seeds |= self.pullbacks[op].reads
                case Load():
                    seeds.update(op.index)
                case Atomic():
                    seeds.update(operands(op) if op in self.replayed else op.index)
                case Meet():
                    # The lanes that it names, and which of these gave what; not what this one gave.
                    seeds.update(a for k, a in enumerate(op.arguments) if k != 1 and not op.of_block)
                case Store():
                    seeds.update(op.index)
                case If():
                    seeds.add(op.condition)
                case Loop():
                    seeds |= self._loop_seeds(op)
                case Custom():
                    seeds.update(op.arguments)
        return seeds

    def _loop_seeds(self, op: Loop) -> set[Value]:
        """Return what reversing a loop reads of what was computed before it, and what it keeps of each trip."""
        needs = self.loops[op]
        outside = {v for v in needs.values | needs.again if not self.survey.is_within(self.survey.definers.get(v), op)}
        kept = {carried.phi for carried in needs.saved}
        return {*outside, *kept, *control(op), *self._added(op)}

    def _orders(self, region: Region, within: Loop | None) -> set[Value]:
        """Return what decides whether lanes wait for each other to have stored, and for which."""
        waits = [op for op in walk(region) if isinstance(op, Meet) and op.operation == "syncwarp"]
        return {value for op in waits for value in (*op.arguments, *self._controls(op, within))}

    def _added(self, op: Loop) -> set[Value]:
        """Return what the atomic additions in a loop read that are done again, and what decides whether they run."""
        return self._read_by((inner for inner in walk(op.body) if isinstance(inner, Atomic)), op)

    def _read_by(self, ops: Iterable[Op], within: Loop | None) -> set[Value]:
        """Return what those of some operations read that are done again, and what decides whether they run."""
        again = [op for op in ops if op in self.replayed]
        return {value for op in again for value in (*operands(op), *self._controls(op, within))}

    def _loop(self, op: Loop) -> LoopNeeds:
        needs = LoopNeeds(stacked=bool(self.stored_in(op)))
        seeds = self._seeds(op.body) | self._orders(op.body, op)
        if needs.stacked:
            seeds |= self._added(op)
        needs.values = self._sweep(seeds, op)
        kept = {c for c in op.carried if c.phi in needs.values}
        if not needs.stacked:
            before = -1
            while before != (before := len(kept)):
                needs.again = self._sweep({c.following for c in kept}, op, reverses=False)
                kept |= {c for c in op.carried if c.phi in needs.again}
        needs.saved = [c for c in op.carried if c in kept]
        return needs

    def _sweep(self, seeds: set[Value], within: Loop | None, *, reverses: bool = True) -> Sweep:
        """Return what must be computed for some values, starting a trip of a loop or at the beginning, and stored for that.

        `reverses` tells that the trip is reversed afterwards, with all loops in it.
        """
        stores = [op for op in self._ops if isinstance(op, Store) and op in self.replayed]
        stores = [op for op in stores if within is None or self.survey.is_within(op, within)]
        inner = [needs for op, needs in self.loops.items() if within is not None and self.survey.is_within(op, within)]
        later: set[Value] = set().union(*(n.values | n.again for n in inner)) if reverses else set()
        while True:
            values = self._closed(seeds, within)
            done = [op for op in stores if self._is_done(op, within, values, later)]
            more = self._read_by(done, within)
            if more <= seeds:
                return Sweep(values, done)
            seeds |= more

    def _is_done(self, op: Store, within: Loop | None, values: set[Value], later: set[Value]) -> bool:
        """Tell whether a store is done again in a trip of a loop, or from the beginning.

        Parameters
        ----------
        op : Store
            The store.
        within : Loop or None
            The loop.
        values : set of Value
            What is computed meanwhile.
        later : set of Value
            What loops in the trip compute when they are reversed afterwards.
        """
        settling = self._settled.loop(op.array, op)
        if settling is not None and within is not None and self.survey.is_within(within, settling):
            return False
        if op.array not in self._renewed:
            return within is None or self._settled.is_read_after(op, within, values | later)
        filling = self._renewed.loop(op.array, op)
        if filling is None:
            return within is None
        if within is not None and within is not filling and self.survey.is_within(within, filling):
            return self._renewed.is_brought_back(op.array, within)
        read = values | later if within is filling else values
        return any(load.result in read for load in self._renewed.loads(op.array))

    def _closed(self, seeds: set[Value], within: Loop | None) -> set[Value]:
        """Return everything that must be computed for some values, starting a trip of a loop, or at the beginning."""
        found: set[Value] = set()
        waiting = [v for v in seeds if v.constant is None]
        while waiting:
            value = waiting.pop()
            if value in found:
                continue
            found.add(value)
            op = self.survey.definers.get(value)
            if op is None or op is within or not (within is None or self.survey.is_within(op, within)):
                continue
            more = [*read_for(op, value), *self._controls(op, within)]
            waiting.extend(v for v in more if v.constant is None)
        return found

    def _controls(self, op: Op, within: Loop | None) -> list[Value]:
        found: list[Value] = []
        parent = self.survey.parents[op]
        while parent is not None and parent is not within:
            found.extend(control(parent))
            parent = self.survey.parents[parent]
        return found

    def _reaches(self, store: Store | Atomic, load: Load) -> bool:
        """Tell whether a load may come after a store: later in the source, in a loop around both, or by another thread."""
        if self.survey.may_precede(store, load) or store.array.kind == "shared":
            return True
        loops = self.survey.loops(store)
        return any(loop in self.survey.ancestors(load) for loop in loops)

    def _check_atomics(self) -> None:
        every = self._every()
        for op in self._ops:
            if not isinstance(op, Atomic):
                continue
            if op.result in every:
                raise refused(
                    op,
                    "the adjoint needs the value that this atomic operation returned, which it cannot get again; store it "
                    "in an array and use it in another kernel",
                )
            loads = [o for o in self._ops if isinstance(o, Load) and o.array is op.array and o.result in every]
            way = (
                "read it in another kernel, or through another parameter: on a tape an array may be passed for two, if each "
                "touches other rows, which constants and integers by value decide"
            )
            if op.array.kind == "shared":
                loads = [load for load in loads if self._runs_again_before(load, op)]
                way = (
                    "keep it in a variable before it changes, or let each thread store to an element of its own instead"
                )
            if loads:
                raise refused(
                    loads[0],
                    f"the adjoint needs this element of {op.array.called!r}, which the kernel changes atomically; {way}",
                )

    def _runs_again_before(self, load: Load, atomic: Atomic) -> bool:
        """Tell whether a load is done again, on the way back, where an atomic addition that comes after it is not undone.

        What is loaded outside of loops is known from the way forth, and a loop in which memory changes brings it all back.
        """
        loops = self.survey.loops(load)
        around = self.survey.ancestors(atomic)
        inner = [op for op in loops if op not in around]
        common = next((op for op in loops if op in around), None)
        if common is not None and not any(met.of_block for met in self.meetings(common)):
            return True
        kept = any(load.array in self.stored_in(op) and self.meetings(op) for op in inner)
        return bool(inner) and not kept and self.survey.may_precede(load, atomic)

    @property
    def meets(self) -> bool:
        """Whether what is computed again reads what other threads of the block stored, and so must wait for them."""
        stored = {op.array.kind for op in self.replayed if isinstance(op, Store | Atomic)}
        return bool(stored - {"local"})

    def stored_in(self, op: Loop) -> list[Array]:
        """Return the arrays whose contents the trips of a loop change when they run again, and which must be brought back."""
        together = bool(self.meetings(op))
        stores = [inner for inner in walk(op.body) if inner in self.replayed]
        changing = Store | Atomic if together else Store
        changed = dict.fromkeys(inner.array for inner in stores if isinstance(inner, changing))
        return [array for array in changed if self.is_brought_back(array, op)]

    def is_brought_back(self, array: Array, op: Loop) -> bool:
        """Tell whether an array is to be as it was at the start of each trip of a loop, when the trip runs again."""
        return self._settled.loop(array, op) is None and self._renewed.is_brought_back(array, op)

    def is_restored_after(self, array: Array, op: Op) -> bool:
        """Tell whether what an operation stores to an array is undone when a loop around it has been reversed, all at once."""
        loop = self._settled.loop(array, op)
        return loop is not None and loop not in self._unrestored.get(array, ())

    def restored_after(self, op: Loop) -> list[Array]:
        """Return the arrays that are as they were before a loop only when it has been reversed, all at once."""
        arrays = [array for array in self._settled.arrays(op) if op not in self._unrestored.get(array, ())]
        if not arrays:
            return []
        stored = {inner.array for inner in walk(op.body) if isinstance(inner, Store) and inner in self.replayed}
        return [array for array in arrays if array in stored]

    def filling(self, array: Array) -> list[Loop]:
        """Return the loops whose trips fill an array before they read it, so that it need not be kept for them."""
        return self._renewed.loops(array)

    def fills(self, op: Loop) -> bool:
        """Tell whether trips of a loop, when they run again, fill shared memory that is not brought back."""
        stores = self.loops[op].values.stores
        return any(store.array.kind == "shared" and not self.is_brought_back(store.array, op) for store in stores)

    def reads_undone(self, op: Loop) -> bool:
        """Tell whether a loop, when it runs again, reads what others have just undone: what is stored after it.

        On the way forth they wait in its last trip, after they have read. On the way back that trip reads before they wait.
        """
        after = [o for o in self.replayed if self.survey.may_precede(op, o) and not self.survey.is_within(o, op)]
        undone = {o.array for o in after if isinstance(o, Store) and o.array.kind != "local" and self._is_reversed(o)}
        read = self.loops[op].values | self.loops[op].again
        return any(isinstance(o, Load) and o.array in undone and o.result in read for o in walk([op]))

    def meetings(self, op: Op) -> list[Meet]:
        """Return where threads wait for each other within a branch or a loop."""
        return [inner for region in regions(op) for inner in walk(region) if isinstance(inner, Meet)]

    @property
    def snapshot(self) -> set[Array]:
        """The parameters that the kernel changes and whose contents before the launch the adjoint reads."""
        changed = {op.array for op in self._ops if isinstance(op, Store | Atomic)}
        return {array for array in self.read & changed if not self._is_as_left(array)}
