"""Adding up adjoints: those of values, which are variables, and those of arrays, which are elements in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.activity import refused
from numbridge.kernels.adjoint.element_program import places
from numbridge.kernels.adjoint.element_rules import Part
from numbridge.kernels.adjoint.emit import element, operation
from numbridge.kernels.adjoint.forward_sweep import ForwardSweep, scalar_places
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Load,
    Loop,
    Op,
    Program,
    Raise,
    Store,
    Value,
    constant_trips,
    same_index,
    walk,
)
from numbridge.kernels.adjoint.loop_sums import LoopSum, repeated_loads
from numbridge.kernels.adjoint.prefixes import ADJOINT
from numbridge.kernels.adjoint.rules import AnyPartial
from numbridge.kernels.adjoint.thread_sharing import own_arrays
from numbridge.kernels.errors import KernelUnsupportedError

__all__ = ["Accumulation"]

# A loop of so few trips is unrolled.
_FEW_TRIPS = 8


def _are_apart(a: Sequence[Value], b: Sequence[Value]) -> bool:
    """Tell whether constants in two indices make them different."""
    pairs = ((x.constant, y.constant) for x, y in zip(a, b, strict=True))
    return any(type(x) is int and type(y) is int and x >= 0 and y >= 0 and x != y for x, y in pairs)


def _within(load: Load) -> str:
    """Return the condition under which an element is there; nothing for an array without dimensions."""
    tests = []
    for axis, index in enumerate(load.index):
        number, extent = index.constant, f"{load.array.name}.shape[{axis}]"
        tests += [] if number is not None and number >= 0 else [f"{index.name} >= -{extent}"]
        tests += [] if number is not None and number < 0 else [f"{index.name} < {extent}"]
    return " and ".join(tests)


class Accumulation(ForwardSweep):
    """Adds to adjoints. An adjoint that one thing is added to, and one that is overwritten at once, need no zero first.

    Parameters
    ----------
    program, wanted, slots, bounded, restores, left, in_turn
        As for `ForwardSweep`.
    apart : bool
        Whether no two adjoints share memory.
    """

    def __init__(
        self,
        program: Program,
        wanted: Collection[str],
        apart: bool,
        slots: int,
        bounded: bool,
        restores: bool,
        left: Collection[str],
        in_turn: bool,
    ) -> None:
        super().__init__(program, wanted, slots, bounded, restores, left, in_turn)
        self.active = self.activity.values
        self._started: set[Value] = set()
        self._held: dict[Value, str] = {}
        self._own = own_arrays(program) if apart else set()
        self._apart = apart
        self._kept: set[Array] = set()
        # Arrays whose adjoints hold nothing yet, with the index of the element that is a thread's own
        self._fresh: dict[Array, list[Value]] = {}
        self._pending: dict[Array, list[Value]] = {}
        # Variables that hold what the element of an adjoint still does whose zero is pending
        self._kept_back: dict[Array, str | None] = {}
        self._added: set[Array] = set()
        self._stored: set[Array] = set()
        self._shared: set[Array] = set()
        # The elements that the loops around read in each trip, outermost first
        self._sums: list[LoopSum] = []

    def keep(self, names: Collection[str]) -> None:
        """Leave the adjoints of some arrays as they are, or refuse to."""
        for name in names:
            for array in self.program.parts(self.program.array(name)):
                self._keep_array(array)

    def _keep_array(self, array: Array) -> None:
        uses = [op for op in walk(self.program.body) if isinstance(op, Load | Store | Atomic) and op.array is array]
        added = all(isinstance(op, Atomic) for op in uses)
        stores = [op for op in uses if isinstance(op, Store) and not self._in_loop(op)]
        once = stores == uses and self._alike.isdisjoint(stores)
        once = once and all(_are_apart(a.index, b.index) for a, b in combinations(stores, 2))
        if not added and not once:
            raise refused(
                uses[-1],
                f"the adjoint of {array.called!r} changes on the way back, since an element may be read, or written again; "
                "pass a copy of it",
            )
        self._kept.add(array)

    def freshen(self, names: Collection[str]) -> None:
        """Store the adjoints of some arrays, whatever they hold, or refuse to."""
        ops = list(walk(self.program.body))
        indices, ends = set(self.program.indices), [op for op in ops if isinstance(op, Raise)]
        for name in names:
            array = self.program.array(name)
            uses = [op for op in ops if isinstance(op, Load | Store | Atomic) and op.array is array]
            loads = [op for op in uses if isinstance(op, Load) and op in self.program.body and set(op.index) == indices]
            parts = self.program.parts(array)
            whole = uses and loads == uses and parts == [array] and len(indices) == array.ndim and array in self._own
            if not whole or ends:
                what = f"threads do not all store their own element of the adjoint of {array.called!r}; pass zeros to add to"
                raise refused((ends or uses)[0], what) if ends or uses else KernelUnsupportedError(what)
            self._fresh[array] = loads[0].index

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
            self._changes(name)
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
        self._changes(name)
        self.lines.add(f"{name} = _nb_replaced({name}, {index}, {name}[{place}] + {text})")

    def _changes(self, name: str) -> None:
        """Say that a variable no longer holds what an element does."""
        self._kept_back = {array: held for array, held in self._kept_back.items() if held != name}

    def _flush(self, read: Array | None = None) -> None:
        """Set the adjoints of overwritten elements to zero, where that was put off and now makes a difference."""
        for array in list(self._pending):
            if read is None or read is array or not self._apart:
                adjoint = element(ADJOINT + array.name, self._pending.pop(array))
                self.lines.add(f"{adjoint} = {self.construct.zero(array.dtype).name}")

    @contextlib.contextmanager
    def _summed(self, op: Loop) -> Iterator[None]:
        """Read before a loop what is the same in each trip, and add to the same elements in each trip when it has ended."""
        outer, read_before, made = self._sums, self._read_before, list[LoopSum]()
        repeated = list(repeated_loads(op, self.needs.survey, apart=self._apart))
        again = self._read_again(op)
        for found in repeated:
            if found.load.result in self.active or found.load in again:
                for part in found.index:
                    self.lines.add(operation(part))
            if found.load.result in self.active and self._sum_of(found.load) is None:
                made.append(LoopSum(found.load, self.program.names.fresh("_nb_sum")))
                self._sums = [*outer, *made]
        self._read_ahead([found.load for found in repeated if found.load in again])
        for one in made:
            self.lines.add(f"{one.name} = {self.construct.zero(one.load.result.type).name}")
        yield
        self._sums, self._read_before = outer, read_before
        for one in made:
            self._add_sum(one)

    def _read_again(self, op: Loop) -> set[Op]:
        """Return the loads that the trips of a loop do when they run again, if it may have more than a few."""
        trips = constant_trips(op)
        if trips is not None and trips <= _FEW_TRIPS:
            return set()
        inner = [self.needs.loops[o] for o in walk([op]) if isinstance(o, Loop) and o in self.needs.loops]
        values = set[Value]().union(*(needs.values | needs.again for needs in inner))
        loads = (o for o in walk(op.body) if isinstance(o, Load) and o.array.kind == "parameter")
        return {o for o in loads if o.result in values and o not in self._read_before}

    def _read_ahead(self, loads: Sequence[Load]) -> None:
        """Do loads before a loop, whose trips store adjoints where LLVM must assume what is loaded."""
        for k, load in enumerate(loads):
            alike = next((o for o in loads[:k] if o.array is load.array and same_index(o.index, load.index)), None)
            if alike is not None:
                self.lines.add(f"{load.result.name} = {alike.result.name}")
                continue
            # No trip may come to the load, and then the element may not be there.
            within = _within(load)
            if within:
                self.lines.add(f"{load.result.name} = {self.construct.zero(load.result.type).name}")
            with self.lines.block(f"if {within}:") if within else contextlib.nullcontext():
                self.lines.add(operation(load))
        self._read_before = self._read_before | set(loads)

    def _add_sum(self, one: LoopSum) -> None:
        """Add what a loop has added up, unless it is zero: where no trip came to the load, the element may not be there."""
        zero = self.construct.zero(getattr(one.load.result.type, "dtype", one.load.result.type)).name
        changed = [f"{one.name}{part} != {zero}" for part in places(one.load.result)]
        if not self._is_private(one.load.array):
            self._add_to(one.load, one.name, where=changed)
            return
        several = len(changed) > 1
        with self.lines.block(f"if {' | '.join(f'({c})' if several else c for c in changed)}:"):
            self._add_to(one.load, one.name)

    def _sum_of(self, op: Load) -> LoopSum | None:
        return next((one for one in self._sums if one.is_of(op.array, op.index)), None)

    def _is_private(self, array: Array) -> bool:
        """Tell whether no other thread adds to the elements of an adjoint to which a thread adds."""
        return array in self._own or array.kind == "local"

    def _add_to(self, op: Load, text: str, where: Sequence[str] = ()) -> None:
        """Add to an element of an adjoint; `where`: the conditions under which its components are added to, if any."""
        array, index = op.array, op.index
        self._added.add(array)
        name, loop_sum = ADJOINT + array.name, self._sum_of(op)
        if loop_sum is not None:
            self.lines.add(f"{loop_sum.name} += {text}")
            return
        private = self._is_private(array)
        is_zero = array in self._pending and same_index(self._pending[array], index)
        if array in self._fresh or (private and is_zero):
            holds = private and is_zero and self._kept_back.get(array) == text
            self._fresh.pop(array, None)
            self._pending.pop(array, None)
            if not holds:
                self.lines.add(f"{element(name, index)} = {text}")
            return
        self._flush(array)
        if private:
            self.lines.add(f"{element(name, index)} += {text}")
        else:
            self._check_aligned(op)
            self._shared.add(array)
            add = "_nb_add_in_block" if array.kind == "shared" else "_nb_add"
            parts = zip(scalar_places(array, name, index), places(array), strict=True)
            for k, ((memory, place), part) in enumerate(parts):
                with self.lines.block(f"if {where[k]}:") if where else contextlib.nullcontext():
                    self.lines.add(f"{add}({memory}, {place}, {text}{part})")

    def _check_aligned(self, op: Load | Store) -> None:
        if op.array.misaligned:
            raise refused(
                op,
                f"threads may change the same adjoint of {op.array.called!r}, which lies at no multiple of its size; use a "
                "dtype of records with align=True",
            )

    def _take(self, op: Store) -> None:
        """Hand on what an element's adjoint holds, and leave zero: one of the threads that stored the element finds it."""
        self._check_aligned(op)
        self._stored.add(op.array)
        zero = self.construct.zero(getattr(op.array.dtype, "dtype", op.array.dtype)).name
        found = scalar_places(op.array, ADJOINT + op.array.name, op.index)
        for k, (memory, place) in enumerate(found):
            self.lines.add(f"_nb_taken_{k} = _nb_atomic_exch({memory}, {place}, {zero})")
        taken = ", ".join(f"_nb_taken_{k}" for k in range(len(found)))
        whole = inference.element_of(op.array.dtype) is None
        text = taken if whole else f"{self.construct.type_name(op.array.dtype)}({taken})"
        self._add(op.value, text, lasting=False)

    def _fill(self) -> None:
        """Store zeros in adjoints that hold nothing, and which nothing has been added to."""
        for array, index in self._fresh.items():
            self._added.add(array)
            self.lines.add(f"{element(ADJOINT + array.name, index)} = {self.construct.zero(array.dtype).name}")

    def _overwritten(self, op: Store, taken: str | None) -> None:
        """Say that nothing depends on what an element held before it was written; `taken` holds what its adjoint does, if any."""
        if op.array in self._kept:
            return
        self._stored.add(op.array)
        self._pending[op.array] = op.index
        self._kept_back[op.array] = taken
        if not self._apart:
            self._flush()
