"""Stacks that move once for a run of statements hold what those hold that every statement moves: both texts, run as Python."""

from __future__ import annotations

import ast
import random

import numpy as np

from adjoint_as_python import RUNTIME, adjoint_of, copied, float_arrays, function
from adjoint_programs import ScratchWriter, Writer, arguments, declared
from numbridge.kernels.cpu_backend.stack_runs import with_runs
from recurrence_programs import recurrence

THREADS = 2


class Memory(list):
    """A stack as entries, and what has been given up of it until something else is put there."""

    def reserve(self, count):
        first = len(self)
        self.extend([None] * count)
        return lambda place: (self, first + place)

    def release(self, count):
        given_up = self[len(self) - count :]
        del self[len(self) - count :]
        return lambda place: (given_up, count + place)


def put(top, place, value):
    memory, at = top(place)
    assert memory[at] is None
    memory[at] = value


def take(top, place, like):
    memory, at = top(place)
    return memory[at]


def restore(top, place, held, array):
    index, value = take(top, place, 0), take(top, held, 0)
    array[index] = value


RUNS = {
    "_nb_stack_new": Memory,
    "_nb_stack_push": lambda stack, value: stack.append(value),
    "_nb_stack_reserve": Memory.reserve,
    "_nb_stack_release": Memory.release,
    "_nb_stack_put": put,
    "_nb_stack_put_place": lambda top, place, array, index: put(top, place, index),
    "_nb_stack_take": take,
    "_nb_stack_restore": restore,
}


def results(made, text, program, values, runs):
    adjoints = [np.random.default_rng(5).normal(size=a.shape) for a in (values[k] for k in float_arrays(values))]
    names = [p.name for p in program.parameters]
    given = [adjoints[[names[k] for k in float_arrays(values)].index(name)] for name in made.arrays]
    before = RUNTIME.copy()
    RUNTIME.update(runs)
    run = function(text, made.name, program.namespace)
    RUNTIME.clear()
    RUNTIME.update(before)
    inputs = copied(values)
    sums = [run(*[index] * len(program.hidden), *inputs, *given) for index in range(THREADS)]
    return [*given, *inputs, *(np.asarray(part) for part in sums if part is not None)]


def bring_back(log, array, mark):
    while len(log) > mark:
        value, index = log.pop(), log.pop()
        array[index] = value


def trips(low, high, step):
    return len(range(low, high, step))


ALONE = {
    "_nb_stack_trips": trips,
    "_nb_stack_beyond": lambda top, count: lambda place: top(place + count),
    "_nb_stack_bring_back": bring_back,
}


def check(kernel, values):
    """Compare both, and return whether anything was moved, and whether loops make room for all their trips."""
    made, program = adjoint_of(kernel, values)
    if not made.stacks:
        return False, False
    wanted = results(made, made.text, program, values, {})
    for alone, names in ((False, RUNS), (True, RUNS | ALONE)):
        text = ast.unparse(with_runs(ast.parse(made.text), alone=alone))
        assert not any(f"_nb_stack_{name}" in text for name in ("remember", "undo"))
        for one, other in zip(wanted, results(made, text, program, values, names), strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), text
    return True, "_nb_stack_beyond" in text


def test_random_programs():
    found = []
    for number in range(120):
        choices = random.Random(number)
        writer = (Writer, ScratchWriter)[number % 2]
        found.append(check(declared(writer(choices.randrange).program()), arguments(number)))
    moved, ahead = np.sum(found, axis=0)
    assert moved > 40 and ahead > 0, (moved, ahead)


def test_random_recurrences():
    made = filter(None, (recurrence(number, THREADS) for number in range(200)))
    moved, ahead = np.sum([check(kernel, values) for _, kernel, values in made], axis=0)
    assert moved > 30 and ahead > 10, (moved, ahead)


def moved(text):
    return ast.unparse(with_runs(ast.parse(text))).splitlines()


def test_the_room_of_a_run_is_made_at_its_beginning():
    lines = moved(
        "def f(a):\n s = _nb_stack_new()\n b = a + 1\n _nb_stack_push(s, a)\n c = b + 1\n _nb_stack_push(s, c)"
    )
    assert lines[2:] == [
        "    _nb_top_1 = _nb_stack_reserve(s, 2)",
        "    b = a + 1",
        "    _nb_stack_put(_nb_top_1, 0, a)",
        "    c = b + 1",
        "    _nb_stack_put(_nb_top_1, 1, c)",
    ]


def test_what_was_popped_is_taken_before_anything_is_put_there():
    popped = " x = _nb_stack_pop(s, 0.0)\n y = _nb_stack_pop(s, 0.0)\n"
    lines = moved(f"def f(a):\n s = _nb_stack_new()\n{popped} _nb_stack_push(s, x + y)")
    assert lines[2:] == [
        "    _nb_top_1 = _nb_stack_release(s, 2)",
        "    x = _nb_stack_take(_nb_top_1, -1, 0.0)",
        "    y = _nb_stack_take(_nb_top_1, -2, 0.0)",
        "    _nb_top_2 = _nb_stack_reserve(s, 1)",
        "    _nb_stack_put(_nb_top_2, 0, x + y)",
    ]


def test_a_height_is_that_before_what_comes_next():
    lines = moved(
        "def f(a):\n s = _nb_stack_new()\n t = _nb_stack_new()\n _nb_stack_push(t, a)\n"
        " _nb_stack_push(s, _nb_stack_height(t))\n _nb_stack_push(t, a)\n _nb_stack_free(s)"
    )
    assert lines[1:] == [
        "    s = _nb_stack_new()",
        "    s_marks = _nb_stack_new()",
        "    t = _nb_stack_new()",
        "    _nb_top_1 = _nb_stack_reserve(t, 1)",
        "    _nb_stack_put(_nb_top_1, 0, a)",
        "    _nb_stack_push(s_marks, _nb_stack_height(t))",
        "    _nb_top_2 = _nb_stack_reserve(t, 1)",
        "    _nb_stack_put(_nb_top_2, 0, a)",
        "    _nb_stack_free(s)",
        "    _nb_stack_free(s_marks)",
    ]


def ahead(loop, *trip):
    """Return a loop's lines, of which each trip pushes, as a thread alone runs them."""
    text = "".join(f"\n  {line}" for line in trip)
    tree = ast.parse(f"def f(a, n):\n s = _nb_stack_new()\n for {loop}:{text}")
    return ast.unparse(with_runs(tree, alone=True)).splitlines()[2:]


def test_a_simple_loop_makes_the_room_of_all_its_trips():
    assert ahead("k in range(1, n)", "_nb_stack_push(s, a)", "_nb_stack_push(s, k)") == [
        "    _nb_top_2 = _nb_stack_reserve(s, 2 * _nb_stack_trips(1, n, 1))",
        "    for k in range(1, n):",
        "        _nb_top_1 = _nb_top_2",
        "        _nb_stack_put(_nb_top_1, 0, a)",
        "        _nb_stack_put(_nb_top_1, 1, k)",
        "        _nb_top_2 = _nb_stack_beyond(_nb_top_1, 2)",
    ]
    assert "_nb_stack_trips(0, n, 1)" in ahead("k in range(n)", "_nb_stack_push(s, a)")[0]
    assert "_nb_stack_trips(-1, n - 1, 1)" in ahead("k in range(n - 1, -1, -1)", "_nb_stack_push(s, a)")[0]
    assert "_nb_stack_trips(a, n, 3)" in ahead("k in range(a, n, 3)", "_nb_stack_push(s, a)")[0]


def test_other_loops_make_room_in_every_trip():
    push = "_nb_stack_push(s, a)"
    for loop, *trip in (
        ("k in range(a, n, n)", push),
        ("k in range(g(n))", push),
        ("k in range(n)", "if k > a:", f" {push}"),
        ("k in range(n)", push, "if k > a: break"),
        ("k in range(n)", "b = _nb_stack_pop(s, 0.0)", push),
        ("k in range(n)", push, "_nb_stack_push(t, _nb_stack_height(s))"),
        ("k in range(n)", push, "g(s)"),
    ):
        lines = ahead(loop, *trip)
        assert lines[0].startswith("    for ") and not any("_nb_stack_trips" in line for line in lines), lines
