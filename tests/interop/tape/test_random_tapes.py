"""Random programs on a tape: their gradients against differences of the whole program, run without one."""

from __future__ import annotations

import os
import random
import re

import numpy as np

import numbridge as nb
from numbridge.tape import adjoint_memory, tape_launches
from recorded_programs import OF_NUMPY, Recorded, RecordedWriter, initial

HIDDEN = re.compile("a gradient comes to an array that was written by|has been changed since the launch, by something")
# Overlaps that are written
REFUSED = re.compile(
    "the parameters .* share memory, and the kernel writes|unless it is a copy .* that share no memory"
)
STEPS = 1e-6, 2.5e-7
PROGRAMS = int(os.environ.get("NUMBRIDGE_TAPE_PROGRAMS", "50"))


def given(values, leaves=(), retained=()):
    """Return a program's arguments, with memory of their own."""
    made = [
        value.copy() if name == OF_NUMPY else nb.array(value, requires_grad=name in leaves, device="cpu")
        for name, value in values.items()
    ]
    for name, array in zip(values, made, strict=True):
        if name in retained:
            array.retain_grad = True
    return made


def held(arrays):
    return [np.array(array) for array in arrays]


class Check:
    """The gradients of one program, for one or two sets of cotangents."""

    def __init__(self, number: int, *, hides: bool = False) -> None:
        choices = random.Random(number)
        self.program: Recorded = RecordedWriter(choices.randrange, hides).program()
        self.run, self.after = self.program.functions()
        self.values = initial(number)
        watches, self.passes = choices.random() < 0.5, choices.randrange(1, 3)
        self.is_disturbed = [choices.random() < 0.4 for _ in range(self.passes)]
        self.normal = np.random.default_rng(number).normal
        self.arguments = given(self.values, self.program.leaves, self.program.retained)
        self.tape = nb.Tape(check_contents=watches or hides)
        with self.tape:
            self.arrays = self.run(*self.arguments, lambda step: None)
        for one, other in zip(held(self.arrays), self.ends({}, 0), strict=True):
            assert np.array_equal(one, other), self.program

    def ends(self, direction, step):
        """Return what the arrays hold at the end, if those leaves were moved by so many steps in a direction.

        Those that retain their gradients are moved where they have been written for the last time.
        """
        program = self.program
        moved = {name: step * way for name, way in direction.items()}
        first = {name: moved.get(name, 0) if name not in program.retained else 0 for name in self.values}
        arguments = given({name: value + first[name] for name, value in self.values.items()})
        arrays = {name: a.numpy() for name, a in zip(self.values, arguments, strict=True) if name in program.retained}

        def move(number: int) -> None:
            for name, array in arrays.items():
                array[...] += np.where(program.written[name] == number, moved.get(name, 0), 0)

        move(0)
        return held(self.run(*arguments, move))

    def gradients(self, cotangents, **options):
        """Return what `backward` adds to the gradients of the leaves."""
        leaves = {name: a for name, a in zip(self.values, self.arguments, strict=True) if name in self.program.leaves}
        before = {name: np.array(leaf.grad) for name, leaf in leaves.items()}
        contents = held([*self.arrays, *self.arguments])
        self.tape.backward(grads=[(self.arrays[k][where], value) for k, where, value in cotangents], **options)
        for one, other in zip(contents, held([*self.arrays, *self.arguments]), strict=True):
            assert np.array_equal(one, other), self.program
        return {name: np.array(leaf.grad) - before[name] for name, leaf in leaves.items()}

    def all_gradients(self):
        """Return cotangents and gradients, of one or two passes, with changes of the arrays before them."""
        found = []
        for number, is_disturbed in enumerate(self.is_disturbed, 1):
            if is_disturbed:
                self.after(*self.arrays)
            seeds = [k for k in self.program.seeds if self.normal() > -0.3] or self.program.seeds[:1]
            places = [(k, ...) for k in seeds] + [(k, slice(None, None, -1)) for k in seeds if self.normal() > 1]
            shapes = [np.empty(self.arrays[k].shape)[where].shape for k, where in places]
            cotangents = [(*place, self.normal(size=shape)) for place, shape in zip(places, shapes, strict=True)]
            found.append((cotangents, self.gradients(cotangents, retain_graph=number < self.passes)))
        return found

    def compare(self, count: int = 2) -> bool:
        """Compare directional derivatives, and return whether that was possible with any that is not zero."""
        compared, passes = False, self.all_gradients()
        for _ in range(count):
            direction = {name: self.normal(size=self.values[name].shape) for name in self.program.leaves}
            ways = [(step, self.ends(direction, step), self.ends(direction, -step)) for step in STEPS]
            for cotangents, gradients in passes:
                got = sum((gradients[name] * direction[name]).sum() for name in direction)
                wanted, finer = (
                    sum((value * (one[k] - other[k])[where]).sum() for k, where, value in cotangents) / (2 * step)
                    for step, one, other in ways
                )
                close = 1e-5 * (1 + abs(wanted))
                # A difference across a kink is no derivative: those of two steps do not agree.
                if abs(wanted - finer) < close and abs(wanted) < 1e4:
                    assert abs(got - wanted) < 3 * close, f"{got} is not {wanted}\n{self.program}"
                    compared |= bool(wanted)
        return compared


def check(numbers, refusals=REFUSED, **how) -> tuple[int, int]:
    """Check programs; return of how many there was something to compare, and how many were refused."""
    compared = refused = 0
    for number in numbers:
        try:
            made = Check(number, **how)
            # Without any, nothing depends on what requires a gradient.
            compared += bool(made.program.seeds) and made.compare()
        except nb.NumbridgeError as error:
            if not refusals.search(str(error)):
                raise
            refused += 1
    return compared, refused


def test_random_programs():
    compared, refused = check(range(PROGRAMS))
    assert compared > 0.8 * PROGRAMS and refused < 0.03 * PROGRAMS, (compared, refused)


def test_random_programs_on_large_arrays(monkeypatch):
    """Where passes over memory are spared."""
    spared, reverse = [], tape_launches.reverse_sparingly
    monkeypatch.setattr(adjoint_memory, "LARGE", 0)
    monkeypatch.setattr(tape_launches, "reverse_sparingly", lambda *given: spared.append(1) or reverse(*given))
    compared, _ = check(range(PROGRAMS, 2 * PROGRAMS))
    assert compared > 0.8 * PROGRAMS and len(spared) > 0.07 * PROGRAMS, (compared, len(spared))


def test_what_tapes_are_not_told_of_is_refused_or_does_no_harm():
    compared, refused = check(range(2 * PROGRAMS), re.compile(f"{REFUSED.pattern}|{HIDDEN.pattern}"), hides=True)
    assert compared > 0.8 * PROGRAMS and refused > 0.4 * PROGRAMS, (compared, refused)
