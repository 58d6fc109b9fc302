"""The forward sweep of an adjoint: it computes what the reverses read, and keeps what loops overwrite."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.activity import Activity, Needs
from numbridge.kernels.adjoint.checkpoint import Checkpoints, constant_trips, itemsize, slots_for
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.element_program import places
from numbridge.kernels.adjoint.emit import (
    Lines,
    Primal,
    Values,
    element,
    index_text,
    loop_head,
    moves,
    operation,
    start_trip,
)
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Custom,
    If,
    Loop,
    Op,
    Program,
    Raise,
    Region,
    Store,
    Value,
    defined_by,
    regions,
    walk,
)

__all__ = ["STACK", "ForwardSweep", "log_name", "scalar_places"]

STACK = "_nb_stack"


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
    """

    def __init__(self, program: Program, wanted: Collection[str], slots: int, bounded: bool) -> None:
        self.program, self.bounded = program, bounded
        self.activity = Activity(program, wanted)
        self.needs = Needs(self.activity)
        self.lines = Lines()
        self.construct = Construct(program.names, program.namespace, "_nb_")
        self._postponed: dict[If, Values] = {}
        self._plans = self._plan(slots)

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

    def _in_loop(self, op: Op) -> bool:
        return any(isinstance(outer, Loop) for outer in self.needs.ancestors(op))

    @property
    def _remembered(self) -> list[Store]:
        """The stores that are undone from a stack: those within a loop."""
        stores = [op for op in walk(self.program.body) if isinstance(op, Store)]
        return [op for op in stores if op in self.needs.replayed and self._in_loop(op)]

    @property
    def _logged(self) -> list[Array]:
        """The arrays whose stores are undone from a stack."""
        return list(dict.fromkeys(op.array for op in self._remembered))

    def _logged_in(self, op: Loop) -> list[Array]:
        stores = [inner for inner in walk(op.body) if inner in self.needs.replayed]
        return list(dict.fromkeys(inner.array for inner in stores if isinstance(inner, Store)))

    @property
    def _stacks(self) -> list[str]:
        stacked = [STACK] if any(needs.stacked for needs in self.needs.loops.values()) else []
        return stacked + [log_name(array) for array in self._logged]

    def _release(self) -> None:
        """Write what ends the stacks, wherever the function ends."""
        for stack in () if self.bounded else self._stacks:
            self.lines.add(f"_nb_stack_free({stack})")

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
                        moves(self.lines, list(zip(op.results, op.inner, strict=True)))
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
        if save and self._serves_itself(op, values):
            self._postponed[op] = values
            return
        sides: list[tuple[Region, list[tuple[Value, Value]]]] = [
            (op.then, [(m.result, m.then) for m in op.merges if m.result in values]),
            (op.orelse, [(m.result, m.orelse) for m in op.merges if m.result in values]),
        ]
        heads = [f"if {op.condition.name}:", "else:"]
        for head, (region, pairs) in zip(heads, sides, strict=True):
            with self.lines.optional(head) if head == "else:" else self.lines.block(head):
                self._forward(region, values, save=save)
                moves(self.lines, pairs)

    def _serves_itself(self, op: If, values: Values) -> bool:
        """Tell whether what a branch computes is read by its own reverse only, which may as well compute it.

        One branch instead of two under the same condition is what LLVM turns into vector code.
        """
        if op not in self.needs.live or any(merge.result in values for merge in op.merges):
            return False
        inner = [o for region in regions(op) for o in walk(region)]
        return not any(isinstance(o, Raise) or o in self.needs.replayed for o in inner)

    def _forward_loop(self, op: Loop, values: Values, *, save: bool) -> None:
        plan = self._plan_of(op, save=save)
        keeps = plan is not None and self._keeps(op)
        if not keeps and not self._has_work(op, values, save=False):
            return
        kept = [c for c in op.carried if c.phi in values or c.result in values]
        moves(self.lines, [(c.phi, c.initial) for c in kept])
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
            moves(self.lines, [(c.phi, c.following) for c in kept])
            if plan is not None:
                plan.end_trip(self.lines)
            if op.leave is not None:
                self.lines.add(f"if {op.leave.name}: break")
        moves(self.lines, [(c.result, c.phi) for c in kept if c.result in values])

    def _plan_of(self, op: Loop, *, save: bool) -> Checkpoints | None:
        """Return how a loop's trips are kept, if they are kept now."""
        return self._plans.get(op) if save else None

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
            self.lines.add(f"_nb_stack_push({STACK}, _nb_stack_height({log_name(array)}))")

    def _forward_store(self, op: Store, *, save: bool) -> None:
        if save:
            self.lines.add(f"{self._old(op)} = {element(op.array.name, op.index)}")
        else:
            for memory, index in scalar_places(op.array, op.array.name, op.index):
                self.lines.add(f"_nb_stack_remember({log_name(op.array)}, {memory}, {index})")
        self.lines.add(operation(op))

    def _old(self, op: Store) -> str:
        return f"_nb_old_{sorted(self.needs.order[o] for o in self.needs.replayed).index(self.needs.order[op]) + 1}"


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
