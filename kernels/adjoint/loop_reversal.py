"""The reverse of loops: trips in the opposite order, each run forward once more from what was kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.accumulation import Accumulation
from numbridge.kernels.adjoint.activity import refused
from numbridge.kernels.adjoint.checkpoint import Checkpoints
from numbridge.kernels.adjoint.element_program import places
from numbridge.kernels.adjoint.emit import Values, meeting, moves
from numbridge.kernels.adjoint.forward_sweep import INTERVALS, STACK, log_name
from numbridge.kernels.adjoint.ir import Array, Carried, If, Loop, Meet, Op, Region, Store, walk
from numbridge.kernels.adjoint.prefixes import ADJOINT

__all__ = ["LoopReversal"]


class LoopReversal(Accumulation, ABC):
    """Writes the reverse of loops."""

    @abstractmethod
    def _reverse(self, region: Region) -> None:
        """Write the reverse of a region."""

    @abstractmethod
    def _prepare(self, op: Op) -> None:
        """Begin the adjoints that the reverse of a branch or a loop adds to from within."""

    @abstractmethod
    def _turn(self, region: Region) -> None:
        """Wait, where that must be, between what runs forward once more and its reverse."""

    def _reverse_loop(self, op: Loop) -> None:
        plan = self._plans[op]
        active = [c for c in op.carried if c.phi in self.active]
        self._prepare(op)
        for c in active:
            held = self._adjoint(c.result) if self._has(c.result) else self.construct.zero(c.phi.type).name
            self.lines.add(f"{ADJOINT}{c.phi.name} = {held}")
        self._meet_again(op.test)
        if self.needs.reads_undone(op):
            self._wait_before(op)
        trips = plan.start_reverse(self.lines)
        counter = plan.name("at")
        with self._summed(op), self.lines.block(f"for {counter} in range({trips} - 1, -1, -1):"):
            self._restore(plan, counter)
            self._set_index(op, counter, self.needs.loops[op].values)
            with self._done(op):
                self._forward(op.body, self.needs.loops[op].values, save=True)
            self._turn(op.body)
            outer = set(self._started), dict(self._held)
            moved = self._start_trip_adjoints(op, active)
            self._reverse(op.body)
            self._meet_again(op.test)
            for c in moved:
                self._begin(c.phi)
            self._started, self._held = outer
        for array in reversed(self.needs.restored_after(op)):
            self._undo(array, STACK)
        self._started.update(c.phi for c in active)
        for c in active:
            self._add(c.initial, self._adjoint(c.phi))

    def _wait_before(self, op: Loop) -> None:
        """Wait for those that wait in a loop, before its last trip runs again."""
        meetings = self.needs.meetings(op)
        if any(met.of_block for met in meetings):
            self.lines.add(meeting("syncthreads"))
            return
        for met in (met for met in meetings if met.operation == "syncwarp"):
            around = self.needs.survey.ancestors(met)
            if met.arguments[0].constant is None or any(isinstance(o, If) for o in around[: around.index(op)]):
                raise refused(
                    met,
                    "the adjoint needs what lanes of a warp read in this loop and store to after it, and they must wait before "
                    "they read it again; let them wait under no condition in the loop, and name them by a constant",
                )
            self.lines.add(meeting("syncwarp", met.arguments[0].name))

    @contextmanager
    def _done(self, op: Loop) -> Iterator[None]:
        """Run a trip of a loop again, in which additions to shared memory are not repeated unless that was brought back."""
        before, self._is_done = self._is_done, self._is_done or not self._kept_whole(op)
        yield
        self._is_done = before

    def _meet_again(self, test: Region) -> None:
        """Wait where the condition of a loop did; what lanes ask of each other there orders nothing."""
        if any(isinstance(op, Meet) and op.of_block for op in walk(test)):
            self.lines.add(meeting("syncthreads"))

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
        if self.needs.fills(plan.op):
            # Nobody may still read what the trip after this one filled.
            self.lines.add(meeting("syncthreads"))
        if plan.needs.stacked:
            self._restore_stacked(plan)
        elif plan.exact:
            for c in plan.needs.saved:
                self.lines.add(plan.restored(c, plan.kept(c), counter))
        elif plan.needs.saved:
            self._restore_segment(plan, counter)

    def _restore_stacked(self, plan: Checkpoints) -> None:
        # Nobody may still read what is brought back, nor already read what is not.
        together = any(a.kind != "local" for a in self.needs.stored_in(plan.op)) and any(
            met.of_block for met in self.needs.meetings(plan.op)
        )
        if together:
            self.lines.add(meeting("syncthreads"))
        self._restore_whole(plan.op)
        self._restore_between_barriers(plan.op)
        for array in reversed(self._logged_in(plan.op)):
            self._undo(array, STACK)
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
        if together:
            self.lines.add(meeting("syncthreads"))

    def _undo(self, array: Array, marks: str) -> None:
        """Bring back what was stored in an array since its log was as high as the uppermost entry of a stack tells."""
        memory = array.name if inference.element_of(array.dtype) is None else f"_nb_components({array.name})"
        among_others = not self.in_turn and any(isinstance(op, Store) and op.array is array for op in self._alike)
        undo = f"_nb_stack_undo{'_among_others' * among_others}"
        self.lines.add(f"{undo}({log_name(array)}, {memory}, _nb_stack_pop({marks}, 0))")

    def _restore_between_barriers(self, op: Loop) -> None:
        """Bring back what the threads stored behind each barrier of a trip; what they stored before the first is left."""
        arrays = self._between_barriers(op)
        if not arrays:
            return
        self.lines.add(f"_nb_before = _nb_stack_pop({STACK}, 0)")
        with self.lines.block(f"while _nb_stack_height({INTERVALS}) > _nb_before:"):
            for array in reversed(arrays):
                self._undo(array, INTERVALS)
            self.lines.add(meeting("syncthreads"))

    def _restore_whole(self, op: Loop) -> None:
        """Bring back the shared memory that threads keep together."""
        for array in reversed(self._kept_whole(op)):
            zero = self.construct.zero(getattr(array.dtype, "dtype", array.dtype)).name
            with self._each_share(self.lines, array, backwards=True):
                self.lines.add(f"{self._share_of(array)} = _nb_stack_pop({STACK}, {zero})")

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
                with self._done(plan.op):
                    self._forward(plan.op.body, plan.needs.again, save=False)
                moves(lines, [(c.phi, c.following) for c in saved])
