"""What the stacks of an adjoint take is counted exactly, before it runs: the text of both, run as Python."""

from __future__ import annotations

import random
import re

import pytest

from adjoint_as_python import copied, measured_and_taken
from adjoint_cases import CASES, name_of
from adjoint_programs import Writer, arguments, declared


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
    for number in range(200):
        choices = random.Random(number)
        kernel, values = declared(Writer(choices.randrange).program()), arguments(number)
        found = check(kernel, 2, values)
        with_stacks += found is not None
        changing += found is not None and bool(found[2].changes)
    assert with_stacks > 50 and changing > 10, (with_stacks, changing)


def test_the_text_is_the_same_every_time():
    case = next(c for c in CASES if c[0].name == "in_place_nested")
    first, again = (measured_and_taken(case[0], case[1], copied(case[2:]))[2] for _ in range(2))
    assert first == again and first.stacks == 2 and first.compares_floats and first.changes == {"y"}
    assert re.search(r"adjoint_cases.py:\d+:\d+\n.*y\[i, m\] = .*\n +\^", first.place)


def test_what_decides_on_nothing_is_left_out():
    case = next(c for c in CASES if c[0].name == "squares_in_a_loop")
    counting = measured_and_taken(case[0], case[1], copied(case[2:]))[2]
    assert not counting.changes and not counting.compares_floats and "y[" not in counting.text
