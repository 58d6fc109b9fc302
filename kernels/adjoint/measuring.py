"""How high the stacks of an adjoint become: the text of a function that counts it, thread by thread.

Where stacks cannot grow, an adjoint is given their memory, and how much that must be depends on what its threads do. The
function here is what is left of the adjoint's forward sweep when only that is asked for: loops and branches around what is
put on stacks, and whatever decides how often they run. Stores are among it where a decision reads what they stored; then
the function must be given copies of these arrays, as it brings nothing back.

A loop that is reversed while an outer one is has its entries on top of those of the outer trips that are still to come, so
the height is followed as the trips go by: each begins where the reversal of the one before it would have ended.
"""

from __future__ import annotations

from collections.abc import Collection

from numbridge.kernels.adjoint.activity import Sweep
from numbridge.kernels.adjoint.checkpoint import MOST_SLOTS, Checkpoints
from numbridge.kernels.adjoint.element_program import places
from numbridge.kernels.adjoint.emit import Lines, field_views, operation, own_array
from numbridge.kernels.adjoint.forward_sweep import FIRST, INTERVALS, STEP, ForwardSweep, log_name, scalar_places
from numbridge.kernels.adjoint.ir import Atomic, If, Load, Loop, Op, Program, Raise, Store, is_float, walk
from numbridge.kernels.adjoint.measured import NEEDS, Measured

__all__ = ["measure"]

_ENTRIES = 2  # for each element that is remembered: its address and its contents


def measure(
    program: Program, wanted: Collection[str], name: str, *, restores: bool = True, left: Collection[str] = ()
) -> Measured:
    """Return what counts the entries on the stacks of a program's adjoint, which must have some.

    Parameters
    ----------
    program : Program
        What is reversed.
    wanted : collection of str
        The floating parameters whose adjoints are passed.
    name : str
        What to call the function.
    restores, left
        As for `reverse`.
    """
    return _Measuring(program, wanted, restores, left).run(name)


class _Trips(Checkpoints):
    """Follows the height of the stack of trips through the trips of one loop."""

    entries = "0"

    def start(self, lines: Lines) -> None:
        """Prepare for the loop: its trips begin at the height that there is."""

    def keep(self, lines: Lines) -> None:
        """Count what a trip puts on the stack at its start; it is gone again when loops in the trip are reversed."""
        lines.add(f"{self.name('mark')} = _nb_height")
        lines.add(f"_nb_need0 = max(_nb_need0, _nb_height + {self.entries})")

    def end_trip(self, lines: Lines) -> None:
        """Forget what loops in the trip have put there."""
        lines.add(f"_nb_height = {self.name('mark')} + {self.entries}")


class _Measuring(ForwardSweep):
    def __init__(self, program: Program, wanted: Collection[str], restores: bool, left: Collection[str]) -> None:
        super().__init__(program, wanted, MOST_SLOTS, True, restores, left)
        raises = [op for op in walk(program.body) if isinstance(op, Raise)]
        again = [op for op in walk(program.body) if op in self.needs.replayed]
        self._undone = [op for op in again if self._is_kept(op)]
        # Whoever notes what was stored before a barrier does so at every barrier.
        noting = [op for loop in self.needs.loops if self._between_barriers(loop) for op in self.needs.meetings(loop)]
        self._noting = {op for op in noting if op.of_block}
        decided, self._stored = self.needs.deciding([*self._undone, *raises, *self._noting])
        self.needs.replayed = {*self._undone, *self._stored}
        self.needs.values = Sweep(decided, (op for op in self.needs.replayed if isinstance(op, Store)))
        # Loops whose trips are done again by themselves, and what they put on the stacks is gone when they have been reversed
        self._alone: dict[Loop, list[int]] = {}
        for number, array in enumerate(self._logged, len(self._stacks) - len(self._logged)):
            for loop in self.needs.filling(array):
                self._alone.setdefault(loop, []).append(number)

    def run(self, name: str) -> Measured:
        """Write everything."""
        self._forward(self.program.body, self.needs.values, save=True)
        self._release()
        head = [v.name for v in self.program.hidden] + [p.name for p in self.program.parameters]
        source, node = self._undone[0].place
        return Measured(
            "\n".join(
                [
                    f"# What the stacks of the adjoint of {self.program.name} take",
                    "@_nb_device",
                    f"def {name}({', '.join([*head, NEEDS])}):",
                    *self._declarations().lines,
                    *self.lines.lines,
                ]
            ),
            name,
            len(self._stacks),
            frozenset(op.array.parameter for op in self._stores() if op.array.kind == "parameter"),
            any(is_float(value) for value in self.needs.values),
            source.excerpt(node),
        )

    def _is_kept(self, op: Op) -> bool:
        """Tell whether something is put on a stack so that an operation can be undone."""
        if not isinstance(op, Store | Atomic):
            return False
        again = any(self.needs.is_brought_back(op.array, outer) for outer in self.needs.survey.loops(op))
        return again or self.needs.is_restored_after(op.array, op)

    def _stores(self) -> list[Store]:
        return [op for op in walk(self.program.body) if isinstance(op, Store) and op in self._stored]

    def _declarations(self) -> Lines:
        lines = Lines()
        field_views(lines, self.program.fields)
        loads = [op for op in walk(self.program.body) if isinstance(op, Load) and op.result in self.needs.values]
        used = {op.array for op in loads} | {op.array for op in self._stores()}
        for array in self.program.locals:
            if array in used:
                own_array(lines, array.name, array)
        for number in range(len(self._stacks)):
            lines.add(f"_nb_need{number} = 0")
            lines.add(f"_nb_logged{number} = 0")
        lines.add("_nb_height = 0")
        if any(self._kept_whole(op) for op in self._plans):
            self._share_out(lines)
        return lines

    def _plan(self, most: int) -> dict[Loop, Checkpoints]:
        made: dict[Loop, Checkpoints] = {}
        for number, (op, needs) in enumerate(self.needs.loops.items(), 1):
            if needs.stacked or self.needs.restored_after(op):
                made[op] = trips = _Trips(op, needs, number, most, exact=False)
            if needs.stacked:
                own = sum(len(places(c.phi)) for c in needs.saved) + len(self._logged_in(op))
                own += bool(self._between_barriers(op))
                shares = (_share_of(self._numbers(array)) for array in self._kept_whole(op))
                trips.entries = " + ".join([str(own), *shares])
        return made

    def _plan_of(self, op: Loop, *, save: bool) -> Checkpoints | None:
        return self._plans.get(op)

    def _keeps(self, op: Loop) -> bool:
        return op in self._plans

    def _keep(self, plan: Checkpoints) -> None:
        plan.keep(self.lines)

    def _begin_whole(self, op: Loop) -> None:
        marks = len(self.needs.restored_after(op))
        if marks:
            self.lines.add(f"_nb_height += {marks}")
            self.lines.add("_nb_need0 = max(_nb_need0, _nb_height)")

    def _logs(self, op: Store) -> bool:
        # Loops within one that its trips run again by themselves log nothing of what that one restores, and are followed here.
        return super()._logs(op) or self.needs.is_restored_after(op.array, op)

    def _forward_body(self, op: Loop, values: Sweep) -> None:
        heights = [f"_nb_logged{number}" for number in self._alone.get(op, [])]
        if op not in self._plans and any(inner in self._plans for inner in walk(op.body)):
            heights.append("_nb_height")
        before = {height: self.program.names.fresh("_nb_before") for height in heights}
        for height, kept in before.items():
            self.lines.add(f"{kept} = {height}")
        super()._forward_body(op, values)
        for height, kept in before.items():
            self.lines.add(f"{height} = {kept}")

    def _forward_store(self, op: Store, *, save: bool) -> None:
        # Outside of loops what is overwritten lies in a variable.
        if not save and self._remembers(op):
            self._count(log_name(op.array), _ENTRIES * len(scalar_places(op.array, op.array.name, op.index)))
        if op in self._stored:
            self.lines.add(operation(op))

    def _count(self, stack: str, entries: int) -> None:
        """Count some entries that go to a stack and stay there."""
        number = self._stacks.index(stack)
        self.lines.add(f"_nb_logged{number} += {entries}")
        self.lines.add(f"_nb_need{number} = max(_nb_need{number}, _nb_logged{number})")

    def _end_interval(self) -> None:
        if self._between:
            self._count(INTERVALS, len(self._between))

    def _serves_itself(self, op: If, values: Sweep) -> bool:
        # What is put off until a branch is reversed finds the stacks as high as they are before it.
        return False

    def _has_work(self, op: Op, values: Sweep, *, save: bool) -> bool:
        noting = bool(self._between) and any(inner in self._noting for inner in walk([op]))
        return noting or super()._has_work(op, values, save=save)

    def _forward_atomic(self, op: Atomic) -> None:
        if op in self._stored:
            self.lines.add(operation(op))

    def _release(self) -> None:
        for number in range(len(self._stacks)):
            self.lines.add(f"_nb_stack_measured({NEEDS}, {number}, {len(self._stacks)}, _nb_need{number})")


def _share_of(count: int) -> str:
    """Return how many of so many numbers of shared memory are this thread's to handle."""
    return f"({count} - 1 - {FIRST}) // {STEP} + 1"
