"""How the trips of a loop are kept, so that they can be reversed in bounded memory.

A loop that is reversed keeps the variables that its trips start from. Up to `slots` trips are kept one by one. In longer
loops every 2**shift-th trip is kept; when the reverse sweep enters such a segment, it runs once more and its own trips
are kept in a second set of slots. That costs about one more forward pass for loops of up to slots**2 trips, and never
more memory. Loops that store into arrays which must be undone keep every trip on a stack instead.

This module writes the lines of the text; which variables are kept is decided in `activity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numbridge.kernels.adjoint.activity import LoopNeeds
from numbridge.kernels.adjoint.element_program import places
from numbridge.kernels.adjoint.emit import Lines
from numbridge.kernels.adjoint.inference import element_of
from numbridge.kernels.adjoint.ir import Carried, Loop, constant_trips

__all__ = ["CUDA_SLOTS", "MOST_SLOTS", "Checkpoints", "slots_for", "trips_text"]

MOST_SLOTS, CUDA_SLOTS, _FEWEST_SLOTS = 1024, 32, 32
_ROOM = 1 << 17  # bytes of a thread's stack for all loops of a kernel


def trips_text(op: Loop) -> str:
    """Return an expression for how many trips a loop over a range has."""
    trips = constant_trips(op)
    if trips is not None:
        return str(trips)
    start, stop, step = op.bounds
    if step.constant is None:
        sign = f"(1 if {step.name} > 0 else -1)"
        return f"max(({stop.name} - {start.name} + {step.name} - {sign}) // {step.name}, 0)"
    extent = stop.name
    if start.constant != 0:
        # The bounds of an empty range may be so far apart that no integer tells how far.
        further = "max" if step.constant > 0 else "min"
        extent = f"{further}({stop.name}, {start.name}) - {start.name}"
    if step.constant == 1:
        return f"max({extent}, 0)"
    rounding = step.constant - (1 if step.constant > 0 else -1)
    return f"max(({extent} + ({rounding})) // ({step.constant}), 0)"


def slots_for(kept: Sequence[int], most: int) -> int:
    """Return how many trips each loop may keep, given the bytes per trip of every loop of a kernel."""
    slots = most
    while slots > _FEWEST_SLOTS and 2 * slots * sum(kept) > _ROOM:
        slots //= 2
    return slots


def itemsize(carried: Carried) -> int:
    """Return the bytes that a variable takes in a slot."""
    return max(getattr(carried.phi.type, "bitwidth", 8) // 8, 1)


@dataclass(eq=False)
class Checkpoints:
    """The names in the text that belong to one loop, and what is written with them."""

    op: Loop
    needs: LoopNeeds
    number: int
    slots: int
    exact: bool

    def name(self, what: str) -> str:
        """Return a name of this loop's own."""
        return f"_nb_{what}{self.number}"

    def kept(self, carried: Carried) -> str:
        """Return the array that keeps a variable."""
        return f"_nb_keep{self.number}_{carried.phi.name}"

    def again(self, carried: Carried) -> str:
        """Return the array that keeps a variable within one segment."""
        return f"_nb_again{self.number}_{carried.phi.name}"

    @property
    def counts(self) -> bool:
        """Whether the forward sweep must count the trips."""
        return self.op.index is None or self.op.leave is not None or bool(self.needs.saved and not self.needs.stacked)

    def declare(self, lines: Lines, type_names: Sequence[str]) -> None:
        """Make the arrays, at the beginning of the function."""
        if self.needs.stacked:
            return
        for carried, kind in zip(self.needs.saved, type_names, strict=True):
            count = len(places(carried.phi))
            extents = self.slots if count == 1 else (self.slots, count)
            lines.add(f"{self.kept(carried)} = _nb_local_array({extents}, {kind})")
            if not self.exact:
                lines.add(f"{self.again(carried)} = _nb_local_array({extents}, {kind})")

    def put(self, lines: Lines, carried: Carried, array: str, slot: str) -> None:
        """Write a variable into an array that keeps it; an element is kept as its components."""
        parts = places(carried.phi)
        for k, part in enumerate(parts):
            lines.add(f"{array}[{slot}{f', {k}' if len(parts) > 1 else ''}] = {carried.phi.name}{part}")

    def restored(self, carried: Carried, array: str, slot: str) -> str:
        """Return the line that reads a variable from an array that keeps it."""
        name, count = carried.phi.name, len(places(carried.phi))
        if count == 1:
            return f"{name} = {array}[{slot}]"
        element = element_of(carried.phi.type)
        assert element is not None
        return f"{name} = _nb_{element.name}({', '.join(f'{array}[{slot}, {k}]' for k in range(count))})"

    def start(self, lines: Lines) -> None:
        """Prepare for the forward sweep."""
        if self.counts:
            lines.add(f"{self.name('trip')} = 0")
        if not self.needs.saved or self.needs.stacked or self.exact:
            return
        shift = self.name("shift")
        lines.add(f"{shift} = 0")
        if not self._grows:
            lines.add(f"{self.name('trips')} = {trips_text(self.op)}")
            with lines.block(f"while ({self.name('trips')} - 1) >> {shift} >= {self.slots}:"):
                lines.add(f"{shift} += 1")

    @property
    def _grows(self) -> bool:
        """Whether nobody knows how long the loop will run."""
        return self.op.index is None or self.op.leave is not None

    def keep(self, lines: Lines) -> None:
        """Keep a trip's variables, at its start."""
        if not self.needs.saved or self.needs.stacked:
            return
        trip, shift = self.name("trip"), self.name("shift")
        if self.exact:
            for carried in self.needs.saved:
                self.put(lines, carried, self.kept(carried), trip)
            return
        with lines.block(f"if {trip} & ((1 << {shift}) - 1) == 0:"):
            if self._grows:
                self._double(lines, trip, shift)
            for carried in self.needs.saved:
                self.put(lines, carried, self.kept(carried), f"{trip} >> {shift}")

    def _double(self, lines: Lines, trip: str, shift: str) -> None:
        """Drop every other trip that is kept, when the slots are full."""
        slot = self.name("slot")
        with lines.block(f"if {trip} >> {shift} == {self.slots}:"):
            with lines.block(f"for {slot} in range({self.slots // 2}):"):
                for carried in self.needs.saved:
                    array, count = self.kept(carried), len(places(carried.phi))
                    for k in [""] if count == 1 else [f", {k}" for k in range(count)]:
                        lines.add(f"{array}[{slot}{k}] = {array}[2 * {slot}{k}]")
            lines.add(f"{shift} += 1")

    def end_trip(self, lines: Lines) -> None:
        """Count a trip, at its end."""
        if self.counts:
            lines.add(f"{self.name('trip')} += 1")

    def start_reverse(self, lines: Lines) -> str:
        """Prepare for the reverse sweep; return the expression of how many trips there are."""
        if not self.counts:
            lines.add(f"{self.name('trip')} = {trips_text(self.op)}")
        if self.needs.saved and not self.needs.stacked and not self.exact:
            lines.add(f"{self.name('segment')} = -1")
            lines.add(f"{self.name('again_shift')} = 0")
        return self.name("trip")
