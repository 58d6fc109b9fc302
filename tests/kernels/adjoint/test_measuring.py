"""What the stacks of an adjoint take is counted exactly, before it runs: the text of both, run as Python."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from adjoint_as_python import floats_of, function, over, program_of
from adjoint_cases import CASES, name_of
from adjoint_programs import Writer, arguments, declared
from numbridge.kernels.adjoint.measuring import measure
from numbridge.kernels.adjoint.reverse import reverse


def copied(values):
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


def measured_and_taken(kernel, dim, values):
    """Return, for each thread, the entries that are counted on each stack, and those that the adjoint had there; and what
    counts them."""
    wanted = floats_of(kernel, values)
    program = program_of(kernel, values)
    made = reverse(program, wanted, "adjoint", bounded=True)
    if not made.stacks:
        return None
    counting = measure(program, wanted, "counts")
    names = [p.name for p in kernel.parameters]
    adjoints = [np.ones(np.shape(values[names.index(name)])) for name in made.arrays]
    count = function(counting.text, "counts", program.namespace)
    run = function(made.text, "adjoint", program.namespace)
    given, untouched = copied(values), copied(values)
    counted, taken = [], []

    def both(*index):
        index = index[: len(program.hidden)]
        counted.append([])
        count(*index, *given, counted[-1])
        stacks = []
        run(*index, *values, *adjoints, stacks, None)
        # A remembered element is one thing here, and two entries in memory.
        taken.append([stacks[0].highest, *(2 * log.highest for log in stacks[1:])])
        assert not any(stacks)

    over((dim,) if isinstance(dim, int) else dim, both)
    for name, one, other in zip(names, given, untouched, strict=True):
        assert name in counting.changes or np.array_equal(one, other), f"{name} was changed\n{counting.text}"
    return counted, taken, counting


def check(kernel, dim, values):
    found = measured_and_taken(kernel, dim, values)
    if found is not None:
        counted, taken, counting = found
        assert counted == taken, counting.text
    return found


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_cases(case):
    check(case[0], case[1], case[2:])


def test_random_programs():
    with_stacks = changing = 0
    for number in range(400):
        choices = random.Random(number)
        kernel, values = declared(Writer(choices.randrange).program()), arguments(number)
        found = check(kernel, 2, values)
        with_stacks += found is not None
        changing += found is not None and bool(found[2].changes)
    assert with_stacks > 100 and changing > 10, (with_stacks, changing)


def test_the_text_is_the_same_every_time():
    case = next(c for c in CASES if c[0].name == "in_place_nested")
    first, again = (measured_and_taken(case[0], case[1], copied(case[2:]))[2] for _ in range(2))
    assert first == again and first.stacks == 2 and first.compares_floats and first.changes == {"y"}
    assert re.search(r"adjoint_cases.py:\d+:\d+\n.*y\[i, m\] = .*\n +\^", first.place)


def test_what_decides_on_nothing_is_left_out():
    case = next(c for c in CASES if c[0].name == "squares_in_a_loop")
    counting = measured_and_taken(case[0], case[1], copied(case[2:]))[2]
    assert not counting.changes and not counting.compares_floats and "y[" not in counting.text
