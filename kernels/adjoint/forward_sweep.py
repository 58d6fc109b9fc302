"""The forward sweep of an adjoint: it computes what the reverses read, and keeps what loops overwrite."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.activity import Activity, Needs, Sweep, refused
from numbridge.kernels.adjoint.alike import Alike
from numbridge.kernels.adjoint.checkpoint import Checkpoints, itemsize, slots_for
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.element_program import places
from numbridge.kernels.adjoint.emit import (
    Lines,
    Primal,
    element,
    index_text,
    loop_head,
    meeting,
    moves,
    operation,
    start_trip,
)
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
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
    defined_by,
    most_trips,
    regions,
    walk,
)
from numbridge.kernels.adjoint.thread_sharing import own_arrays
from numbridge.kernels.adjoint.uniform import check_lanes, is_guarded
from numbridge.kernels.cpu_backend.blocks.source import THREAD

__all__ = ["FIRST", "INTERVALS", "STACK", "STEP", "ForwardSweep", "log_name", "scalar_places"]

STACK = "_nb_stack"
INTERVALS = "_nb_intervals"
"""The name of the stack of how high others were at each barrier."""
FIRST, STEP, SHARE, TURN = "_nb_first", "_nb_step", "_nb_share", "_nb_turn"
"""The names of the first number of shared memory that is a thread's to handle, how far it is to the next, and such a number."""


class ForwardSweep:
    """Writes what of a program the reverse of each operation needs.

    Parameters
    ----------
    program : Program
        What is reversed.
    wanted : collection of str
        The floating parameters whose adjoints are passed.
    slots : int
        How many trips of a loop are kept at once, at most; a power of two.
    bounded : bool
        Whether the function is given the memory of its stacks (see `measuring`), instead of stacks that grow.
    restores : bool
        Whether arrays of the kernel end as they were.
    left : collection of str
        Array parameters that hold what the kernel has left in them.
    in_turn : bool
        Whether the threads of a block run one after the other from one place where they wait to the next.
    """

    def __init__(
        self,
        program: Program,
        wanted: Collection[str],
        slots: int,
        bounded: bool,
        restores: bool,
        left: Collection[str] = (),
        in_turn: bool = True,
    ) -> None:
        self.program, self.bounded, self.in_turn = program, bounded, in_turn
        self.activity = Activity(program, wanted)
        self.needs = Needs(self.activity, restores=restores, left=left)
        self.lines = Lines()
        self.construct = Construct(program.names, program.namespace, "_nb_")
        self._postponed: dict[If, Sweep] = {}
        # The loop whose trips are being kept, and in it the arrays that are brought back from barrier to barrier
        self._keeping: Loop | None = None
        self._between: list[Array] = []
        # The elements that this trip has remembered whatever way it came, which need not be remembered again
        self._remembered_places: set[tuple[Any, ...]] = set()
        # The arrays into which each thread stores at its own index
        self._stored_apart = own_arrays(program, (Store, Atomic))
        # Stores by which several threads may write the same to one element
        alike = Alike(program)
        self._alike = alike.stores
        # Whether the atomic additions of what runs again have been done
        self._is_done = False
        # The loads that were done before the loop around them
        self._read_before: set[Op] = set()
        for op in self.needs.loops:
            self._check_together(op)
        check_lanes(program, self._treated)
        alike.check(self.needs.replayed)
        self._plans = self._plan(slots)

    def _plan(self, most: int) -> dict[Loop, Checkpoints]:
        loops = self.needs.loops
        sizes = [sum(map(itemsize, needs.saved)) for needs in loops.values() if not needs.stacked]
        slots = slots_for(sizes, most)
        made: dict[Loop, Checkpoints] = {}
        for number, op in enumerate(reversed(list(loops)), 1):
            trips = most_trips(op)
            exact = trips is not None and trips <= slots
            made[op] = Checkpoints(op, loops[op], number, max(trips or 0, 1) if exact else slots, exact)
        return made

    def _treated(self, op: Meet) -> tuple[bool, ...]:
        """Return what becomes of an exchange between lanes: whether it is reversed, and whether it is done again, and where."""
        loops = self.needs.loops.values()
        again = (
            any(op.result in part for part in parts)
            for parts in zip(*((n.values, n.again) for n in loops), strict=True)
        )
        return op.result in self.activity.values, op.result in self.needs.values, *again

    def _check_together(self, op: Loop) -> None:
        """Refuse a loop in which only lanes of a warp wait for each other, if they cannot bring back what they store there."""
        meetings = self.needs.meetings(op)
        if not meetings or any(meeting.of_block for meeting in meetings):
            return
        own = own_arrays(self.program)
        for inner in walk(op.body):
            if not isinstance(inner, Store | Atomic) or inner not in self.needs.replayed:
                continue
            if not self.needs.is_brought_back(inner.array, op):
                continue
            if inner.array.kind == "shared" or (inner.array.kind == "parameter" and inner.array not in own):
                what = "shared memory" if inner.array.kind == "shared" else repr(inner.array.called)
                raise refused(
                    inner,
                    f"the adjoint needs {what} as it was before each trip of this loop, in which only lanes of a warp wait "
                    "for each other; wait for the block there (cuda.syncthreads), or exchange numbers between lanes instead",
                )

    def _in_loop(self, op: Op) -> bool:
        return bool(self.needs.survey.loops(op))

    @property
    def _remembered(self) -> list[Store]:
        """The stores that are undone from a stack: those within a loop."""
        stores = [op for op in walk(self.program.body) if isinstance(op, Store)]
        return [op for op in stores if op in self.needs.replayed and self._is_logged(op)]

    def _is_logged(self, op: Store) -> bool:
        """Tell whether a thread by itself undoes a store that may run more than once.

        Where threads wait for each other within each trip of a loop, no thread can bring back shared memory by itself; then all
        of it is kept for each trip.
        """
        loops = self.needs.survey.loops(op)
        if op.array.kind == "shared":
            loops = [outer for outer in loops if not self.needs.meetings(outer)]
        again = any(self.needs.is_brought_back(op.array, outer) for outer in loops)
        return again or self.needs.is_restored_after(op.array, op)

    @property
    def _logged(self) -> list[Array]:
        """The arrays whose stores are undone from a stack."""
        return list(dict.fromkeys(op.array for op in self._remembered))

    def _logged_in(self, op: Loop) -> list[Array]:
        """Return the arrays that a thread by itself brings back to what they were at the start of a trip."""
        together = self.needs.meetings(op)
        return [array for array in self.needs.stored_in(op) if not (together and array.kind == "shared")]

    def _between_barriers(self, op: Loop) -> list[Array]:
        """Return the arrays, of those that a thread brings back, in which others store, too, before or after a barrier.

        The threads bring them back together, from barrier to barrier: between two of them, an element that one thread stores is
        no other thread's.
        """
        if not any(met.of_block for met in self.needs.meetings(op)):
            return []
        return [array for array in self._logged_in(op) if array.kind == "parameter" and array not in self._stored_apart]

    def _kept_whole(self, op: Loop) -> list[Array]:
        """Return the shared memory that threads keep together at the start of each trip."""
        return [array for array in self.needs.stored_in(op) if array not in self._logged_in(op)]

    def _numbers(self, array: Array) -> int:
        """Return how many numbers an array of the thread's or the block's has."""
        return math.prod(array.extents) * len(scalar_places(array, "", ()))

    @contextmanager
    def _each_share(self, lines: Lines, array: Array, *, backwards: bool = False) -> Iterator[None]:
        """Write a loop through the numbers of shared memory that are this thread's to handle; see `_share_of`."""
        # By whole steps: how a loop counts by a number that only the running kernel knows, is asked in each trip.
        last = f"({self._numbers(array)} - 1 - {FIRST}) // {STEP}"
        with lines.block(f"for {TURN} in range({f'{last}, -1, -1' if backwards else f'{last} + 1'}):"):
            lines.add(f"{SHARE} = {FIRST} + {TURN} * {STEP}")
            yield

    def _share_of(self, array: Array, name: str = "") -> str:
        """Return the text of the number of shared memory, or of what is like it, that is handled in a turn of `_each_share`."""
        count = len(scalar_places(array, "", ()))
        extents = (*array.extents, count) if count > 1 else array.extents
        memory = name or array.name
        memory = f"_nb_components({memory})" if count > 1 else memory
        index = []
        rest = self._numbers(array)
        for axis, extent in enumerate(extents):
            rest //= extent
            at = f"{SHARE} // {rest}" if rest > 1 else SHARE
            index.append(f"{at} % {extent}" if axis else at)
        return f"{memory}[{', '.join(index)}]"

    @property
    def _stacks(self) -> list[str]:
        marked = any(needs.stacked or self.needs.restored_after(op) for op, needs in self.needs.loops.items())
        stacked = [STACK] if marked else []
        stacked += [INTERVALS] if any(map(self._between_barriers, self.needs.loops)) else []
        return stacked + [log_name(array) for array in self._logged]

    @property
    def _shares_work(self) -> bool:
        """Whether threads of a block share out the handling of shared memory."""
        return any(array.kind == "shared" and array in self.activity.arrays for array in self.program.locals) or any(
            needs.stacked and self._kept_whole(op) for op, needs in self.needs.loops.items()
        )

    def _share_out(self, lines: Lines) -> None:
        """Write which numbers of shared memory are this thread's to handle: every one, where its block may not be all there."""
        if is_guarded(self.program):
            lines.add(f"{FIRST} = 0")
            lines.add(f"{STEP} = 1")
            return
        lines.add(f"if {meeting('syncthreads_count', '1')} == _nb_b0 * _nb_b1 * _nb_b2:")
        lines.add(f"    {FIRST} = {THREAD}")
        lines.add(f"    {STEP} = _nb_b0 * _nb_b1 * _nb_b2")
        lines.add("else:")
        lines.add(f"    {FIRST} = 0")
        lines.add(f"    {STEP} = 1")

    def _release(self) -> None:
        """Write what ends the stacks, wherever the function ends."""
        for stack in () if self.bounded else self._stacks:
            self.lines.add(f"_nb_stack_free({stack})")

    def _forward(self, region: Region, values: Sweep, *, save: bool) -> None:
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
                        moves(self.lines, list(zip(op.results, op.inner, strict=True)))
                case Store():
                    if op in values.stores:
                        self._forward_store(op, save=save)
                case Raise():
                    if values is self.needs.values:
                        self._release()
                        self.lines.add(op.text)
                case Atomic():
                    if op in self.needs.replayed:
                        self._forward_atomic(op)
                case Meet():
                    self._forward_meet(op, values)
                case _:
                    if op not in self._read_before and any(value in values for value in defined_by(op)):
                        self.lines.add(operation(op))

    def _forward_atomic(self, op: Atomic) -> None:
        # A trip of a loop that is run again to be reversed finds it done, unless shared memory was brought back before.
        if not self._is_done:
            self.lines.add(operation(op))

    def _forward_meet(self, op: Meet, values: Sweep) -> None:
        if op.result in values:
            self.lines.add(operation(op))
            if op.of_block:
                self._end_interval()
        elif self.needs.meets and op.of_block:
            self.lines.add(meeting("syncthreads"))
            self._end_interval()
        elif self.needs.meets and op.operation == "syncwarp":
            self.lines.add(operation(op))

    def _end_interval(self) -> None:
        """Note, at a barrier, what the thread has stored until then."""
        for array in self._between:
            self.lines.add(f"_nb_stack_push({INTERVALS}, _nb_stack_height({log_name(array)}))")

    def _stand_in(self, op: Op) -> None:
        """Write a barrier for those of a branch or a loop that is left out: what is stored before is read behind it."""
        if self.needs.meets and any(met.of_block for met in self.needs.meetings(op)):
            self.lines.add(meeting("syncthreads"))
            self._end_interval()

    def _has_work(self, op: Op, values: Sweep, *, save: bool) -> bool:
        """Tell whether the forward sweep must go into a branch or a loop."""
        if any(value in values for value in defined_by(op) if not isinstance(op, Loop) or value is not op.index):
            return True
        for inner in (o for region in regions(op) for o in walk(region)):
            if any(value in values for value in defined_by(inner)) or inner in values.stores:
                return True
            if isinstance(inner, Atomic) and inner in self.needs.replayed:
                return True
            if isinstance(inner, Raise) and values is self.needs.values:
                return True
            if isinstance(inner, Meet) and inner.operation == "syncwarp" and self.needs.meets:
                return True
            if save and isinstance(inner, Loop) and self._keeps(inner):
                return True
        return False

    def _keeps(self, op: Loop) -> bool:
        plan = self._plans.get(op)
        if plan is None:
            return False
        return plan.counts or bool(plan.needs.saved or self.needs.restored_after(op)) or plan.needs.stacked

    def _forward_if(self, op: If, values: Sweep, *, save: bool) -> None:
        if not self._has_work(op, values, save=save):
            self._stand_in(op)
            return
        if save and self._serves_itself(op, values):
            self._postponed[op] = values
            return
        sides: list[tuple[Region, list[tuple[Value, Value]]]] = [
            (op.then, [(m.result, m.then) for m in op.merges if m.result in values]),
            (op.orelse, [(m.result, m.orelse) for m in op.merges if m.result in values]),
        ]
        heads = [f"if {op.condition.name}:", "else:"]
        for head, (region, pairs) in zip(heads, sides, strict=True):
            with self.lines.optional(head) if head == "else:" else self.lines.block(head), self._perhaps():
                self._forward(region, values, save=save)
                moves(self.lines, pairs)

    def _serves_itself(self, op: If, values: Sweep) -> bool:
        """Tell whether what a branch computes is read by its own reverse only, which may as well compute it.

        One branch instead of two under the same condition is what LLVM turns into vector code.
        """
        if op not in self.needs.live or any(merge.result in values for merge in op.merges):
            return False
        inner = [o for region in regions(op) for o in walk(region)]
        again = [o for o in inner if o in self.needs.replayed]
        if any(isinstance(o, Raise | Meet) for o in inner) or any(isinstance(o, Atomic) for o in again):
            return False
        # What is added is not taken away again on the way back.
        added = {o.array for o in self.needs.replayed if isinstance(o, Atomic)}
        if any(isinstance(o, Load) and o.array in added for o in inner):
            return False
        return not again or self._is_last_to_use(op, {o.array for o in again if isinstance(o, Store)})

    def _is_last_to_use(self, op: If, arrays: Collection[Array]) -> bool:
        """Tell whether nobody loads from some arrays, to which a branch stores, after that."""
        order = self.needs.survey.order
        last = max(order[o] for region in regions(op) for o in walk(region))
        after = [o for o in order if order[o] > last]
        return not self.program.in_blocks and not any(
            isinstance(o, Custom) or (isinstance(o, Load) and o.array in arrays) for o in after
        )

    def _forward_loop(self, op: Loop, values: Sweep, *, save: bool) -> None:
        plan = self._plan_of(op, save=save)
        keeps = plan is not None and self._keeps(op)
        if not keeps and not self._has_work(op, values, save=False):
            self._stand_in(op)
            return
        kept = [c for c in op.carried if c.phi in values or c.result in values]
        moves(self.lines, [(c.phi, c.initial) for c in kept])
        if plan is not None:
            plan.start(self.lines)
            self._begin_whole(op)
        outer = self._keeping, self._between
        self._keeping = self._keeping if plan is None else op
        with self._copy(op), self.lines.block(loop_head(op)), self._perhaps(op, begins=plan is not None):
            start_trip(self.lines, op)
            # Its barriers lie between trips, each of which begins and ends with one when it is brought back.
            self._forward(op.test, values, save=False)
            if plan is not None:
                self._between = list(dict.fromkeys([*self._between, *self._between_barriers(op)]))
            if op.condition is not None:
                self.lines.add(f"if not {op.condition.name}: break")
            if plan is not None:
                self._keep(plan)
            self._forward_body(op, values)
            moves(self.lines, [(c.phi, c.following) for c in kept])
            if plan is not None:
                plan.end_trip(self.lines)
            if op.leave is not None:
                self.lines.add(f"if {op.leave.name}: break")
        self._keeping, self._between = outer
        moves(self.lines, [(c.result, c.phi) for c in kept if c.result in values])

    @contextmanager
    def _perhaps(self, op: Loop | None = None, *, begins: bool = False) -> Iterator[None]:
        """Write what may not run, or more than once: a side of a branch, or a trip, with which what is kept may begin."""
        before = self._remembered_places
        # What a loop logs when it is reversed itself, it logs in the same places now.
        own = [] if op is None else [*self._logged_in(op), *self.needs.restored_after(op)]
        self._remembered_places = set() if begins else {place for place in before if place[0] not in own}
        yield
        self._remembered_places = before

    def _remembers(self, op: Store) -> bool:
        """Tell whether what a store overwrites goes to a log now, and note that it does."""
        if not self._logs(op):
            return False
        place = (op.array, *(v if v.constant is None else (type(v.constant), v.constant) for v in op.index))
        is_new = place not in self._remembered_places
        # Of a store that may be another thread's, only that is remembered which it changes.
        if op not in self._alike:
            self._remembered_places.add(place)
        return is_new

    def _begin_whole(self, op: Loop) -> None:
        """Note how high the logs are of arrays that are restored when a loop has been reversed."""
        for array in self.needs.restored_after(op):
            self.lines.add(f"_nb_stack_push({STACK}, _nb_stack_height({log_name(array)}))")

    def _forward_body(self, op: Loop, values: Sweep) -> None:
        self._forward(op.body, values, save=False)

    def _plan_of(self, op: Loop, *, save: bool) -> Checkpoints | None:
        """Return how a loop's trips are kept, if they are kept now."""
        return self._plans.get(op) if save else None

    @contextmanager
    def _copy(self, op: Loop) -> Iterator[None]:
        """Write a loop's body with names of its own: Numba is slow at variables that are assigned in many places."""
        inside = [o for region in regions(op) for o in walk(region) if o not in self._read_before]
        inner = [value for o in inside for value in defined_by(o)]
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
            self.lines.add(f"_nb_stack_push({STACK}, _nb_stack_height({log_name(array)}))")
        if self._between:
            self.lines.add(f"_nb_stack_push({STACK}, _nb_stack_height({INTERVALS}))")
        whole = self._kept_whole(plan.op)
        if whole:
            self.lines.add(meeting("syncthreads"))
        for array in whole:
            with self._each_share(self.lines, array):
                self.lines.add(f"_nb_stack_push({STACK}, {self._share_of(array)})")
        if whole:
            self.lines.add(meeting("syncthreads"))

    def _logs(self, op: Store) -> bool:
        """Tell whether what a store overwrites now goes to a stack, to be brought back by the thread itself."""
        if self._keeping is None:
            return False
        return op.array in [*self._logged_in(self._keeping), *self.needs.restored_after(self._keeping)]

    def _forward_store(self, op: Store, *, save: bool) -> None:
        undone, remembered = save and self.needs.is_undone(op), not save and self._remembers(op)
        alike = op in self._alike and (undone or remembered)
        if alike and not self.in_turn:
            # At the same time another thread may bring back what it has overwritten by the same number, so whoever finds that
            # number must not store it once more: only one of them may find what was there before, and will bring it back.
            for memory, index, found, new in self._parts_of(op, before=undone):
                place = f"{memory}, {index}, {new}"
                exchange = f"{found} = _nb_exchanged({place})"
                self.lines.add(exchange if undone else f"_nb_stack_remember_other({log_name(op.array)}, {place})")
            return
        if undone:
            self.lines.add(f"{self._old(op)} = {element(op.array.name, op.index)}")
        for memory, index, found, new in self._parts_of(op, before=False) if remembered else ():
            with self.lines.block(f"if _nb_differs({found}, {new}):") if alike else contextlib.nullcontext():
                self.lines.add(f"_nb_stack_remember({log_name(op.array)}, {memory}, {index})")
        self.lines.add(operation(op))

    def _parts_of(self, op: Store, *, before: bool) -> Iterator[tuple[str, str, str, str]]:
        """Yield each scalar of a stored element: its array and index, what was found `before` or lies there, what is stored."""
        parts = zip(scalar_places(op.array, op.array.name, op.index), places(op.value), strict=True)
        for k, ((memory, index), part) in enumerate(parts):
            old = f"{self._old(op)}{part}" if self.in_turn else f"{self._old(op)}_{k}"
            yield memory, index, old if before else f"{memory}[{index}]", f"{op.value.name}{part}"

    def _old(self, op: Store) -> str:
        order = self.needs.survey.order
        return f"_nb_old_{sorted(order[o] for o in self.needs.replayed).index(order[op]) + 1}"


def scalar_places(array: Array, name: str, index: Sequence[Value]) -> list[tuple[str, str]]:
    """Return where an element's scalars lie, each as the text of an array and an index."""
    element = inference.element_of(array.dtype)
    if element is None:
        return [(name, index_text(index))]
    outer = "".join(f"{value.name}, " for value in index)
    return [(f"_nb_components({name})", f"({outer}{k})") for k in range(element.count)]


def log_name(array: Array) -> str:
    """Return what the stack of an array's overwritten elements is called."""
    return f"_nb_log_{array.name}"
