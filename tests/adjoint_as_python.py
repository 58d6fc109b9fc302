"""Running generated text as plain Python, with NumPy scalars: thousands of programs in the time that Numba needs for one.

What compiled code gets from the back end (atomics, arrays and stacks of the thread) is a few lines of Python here.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import operator
import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numba import types

from numbridge.kernels import scalars
from numbridge.kernels.adjoint.build import build
from numbridge.kernels.adjoint.emit import program_text
from numbridge.kernels.adjoint.forward import forward
from numbridge.kernels.adjoint.ir import Program
from numbridge.kernels.adjoint.measured import Measured
from numbridge.kernels.adjoint.measuring import measure
from numbridge.kernels.adjoint.prefixes import TANGENT
from numbridge.kernels.adjoint.reverse import Reversed, reverse
from numbridge.kernels.element_types.elements import Element
from numbridge.kernels.language.element_stores import sliced_by
from numbridge.kernels.language.emission import emit
from numbridge.kernels.language.rewriting import rewrite
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType


class Stack(list[Any]):
    """A stack that knows how high it was at most."""

    highest = 0

    def push(self, value: Any) -> None:
        self.append(value)
        self.highest = max(self.highest, len(self))


def _remember(log: Stack, array: Any, index: Any) -> None:
    log.push((index, array[index]))


def _remember_other(log: Stack, array: Any, index: Any, value: Any) -> None:
    if RUNTIME["_nb_differs"](array[index], value):
        _remember(log, array, index)
    array[index] = value


def _exchanged(array: Any, index: Any, value: Any) -> Any:
    found, array[index] = array[index], value
    return found


def _undo(log: Stack, array: Any, mark: int) -> None:
    while len(log) > mark:
        index, value = log.pop()
        array[index] = value


def _atomic_add(array: Any, index: Any, value: Any) -> Any:
    held = array[index]
    array[index] = held + value
    return held


def _atomic_sub(array: Any, index: Any, value: Any) -> Any:
    return _atomic_add(array, index, -value)


def _atomic_exch(array: Any, index: Any, value: Any) -> Any:
    held = array[index]
    array[index] = value
    return held


def _replaced(held: Any, index: Any, value: Any) -> Any:
    """Replace a part of a vector or a matrix; what may be one and is an array in these kernels is stored into."""
    made = held.numpy().copy() if isinstance(held, Element) else held
    made[index] = value
    return type(held)(*made.reshape(-1).tolist()) if isinstance(held, Element) else made


def _put_part(held: Any, way: str, steps: Sequence[Any], value: Any) -> Any:
    """Store into a slice of constants, or into what lies behind several steps, of an array."""
    assert not isinstance(held, Element), way
    owner, given = held, iter(steps)
    *before, last = [next(given) if name == "[]" else sliced_by(name) for name in way.split(",")]
    for index in before:
        owner = owner[index]
    owner[last] = value
    return held


_REDUCTION = re.compile(r"\.(sum|prod|mean|var|std)\(|_nb_(v?dot|matmul)_of\(")

RUNTIME: dict[str, Any] = {
    "_nb_device": lambda function: function,
    "_nb_replaced": _replaced,
    "_nb_put_part": _put_part,
    "_nb_view": lambda held: held,
    "_nb_local_array": lambda shape, dtype: np.full(shape, 77, str(dtype) if isinstance(dtype, types.Type) else dtype),
    "_nb_cuda_fma": lambda a, b, c: np.float64(np.longdouble(a) * b + c),
    "_nb_atomic_add": _atomic_add,
    "_nb_atomic_sub": _atomic_sub,
    "_nb_atomic_exch": _atomic_exch,
    "_nb_divide": operator.truediv,
    "_nb_max_of": np.max,
    "_nb_min_of": np.min,
    "_nb_dot_of": np.dot,
    "_nb_vdot_of": np.vdot,
    "_nb_matmul_of": np.matmul,
    "_nb_differs": lambda held, new: np.asarray(held).tobytes() != np.asarray(held).dtype.type(new).tobytes(),
    "_nb_add": _atomic_add,
    "_nb_stack_new": Stack,
    # The memory of stacks is a list of them here, and what they need a list of numbers.
    "_nb_stack_place": lambda stack, memory, places, number, count: memory.append(stack),
    "_nb_stack_measured": lambda needs, number, count, entries: needs.append(entries),
    "_nb_stack_height": len,
    "_nb_stack_free": lambda stack: None,
    "_nb_stack_push": lambda stack, value: stack.push(value),
    "_nb_stack_pop": lambda stack, like: stack.pop(),
    "_nb_stack_remember": _remember,
    "_nb_stack_remember_other": _remember_other,
    "_nb_exchanged": _exchanged,
    "_nb_stack_undo": _undo,
    "_nb_stack_undo_among_others": _undo,
}


def types_of(kernel: Any, arguments: Sequence[Any]) -> list[ParameterType]:
    """Return the parameter types of NumPy arrays and scalars; Python floats are float64."""
    ranks = {p.name: a.ndim for p, a in zip(kernel.parameters, arguments, strict=True) if isinstance(a, np.ndarray)}
    written = kernel.source.written(ranks)
    made: list[ParameterType] = []
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        row = scalars.scalar_of(np.asarray(argument).dtype)
        if isinstance(argument, np.ndarray):
            made.append(ArrayType(parameter.name, row, argument.ndim, True, parameter.name in written))
        else:
            made.append(ScalarType(parameter.name, row))
    return made


def program_of(kernel: Any, arguments: Sequence[Any], weak: str = "float64") -> Program:
    """Return a kernel as a program for some arguments."""
    return build(rewrite(kernel.source, weak, gradients=True), types_of(kernel, arguments))


def floats_of(kernel: Any, arguments: Sequence[Any]) -> list[str]:
    """Return the parameters that could have a gradient."""
    return [p.name for p, a in zip(kernel.parameters, arguments, strict=True) if np.asarray(a).dtype.kind == "f"]


def function(text: str, name: str, namespace: dict[str, Any]) -> Any:
    """Return a function of generated text."""
    names = {**namespace, **RUNTIME}
    exec(compile(text, f"<{name}>", "exec"), names)
    return names[name]


def over(dim: Sequence[int], run: Any) -> list[Any]:
    """Call a function for every thread."""
    return [run(*index) for index in itertools.product(*map(builtins.range, dim))]


def replay(kernel: Any, dim: Sequence[int], arguments: Sequence[Any]) -> None:
    """Run a kernel through its program."""
    program = program_of(kernel, arguments)
    run = function(program_text(program, "replayed"), "replayed", program.namespace)
    over(dim, lambda *index: run(*index[: len(program.hidden)], *arguments))


def adjoint_of(
    kernel: Any, arguments: Sequence[Any], wanted: Sequence[str] | None = None, left: Collection[str] = ()
) -> tuple[Reversed, Program]:
    """Return the adjoint of a kernel."""
    program = program_of(kernel, arguments)
    wanted = floats_of(kernel, arguments) if wanted is None else wanted
    return reverse(program, wanted, "adjoint", left=left), program


def run_adjoint(
    kernel: Any,
    dim: Sequence[int],
    arguments: Sequence[Any],
    adjoints: dict[str, Any],
    wanted: Any = None,
    left: Collection[str] = (),
) -> Reversed:
    """Run the adjoint; `adjoints` are arrays, changed in place, and numbers, of which there are new ones afterwards."""
    made, program = adjoint_of(kernel, arguments, wanted, left)
    run = function(made.text, made.name, program.namespace)
    given = [adjoints[name] for name in made.arrays]
    results = over(dim, lambda *index: run(*index[: len(program.hidden)], *arguments, *given))
    for k, name in enumerate(made.scalars):
        adjoints[name] = adjoints.get(name, 0.0) + sum(float(result[k]) for result in results)
    return made


def tangent_program(kernel: Any, arguments: Sequence[Any], wanted: Sequence[str]) -> Program:
    """Return the tangent of a kernel."""
    return forward(program_of(kernel, arguments), wanted)


def run_program(program: Program, dim: Sequence[int], arguments: Sequence[Any]) -> None:
    """Run a program."""
    run = function(program_text(program, "program"), "program", program.namespace)
    over(dim, lambda *index: run(*index[: len(program.hidden)], *arguments))


def run_tangent(
    kernel: Any, dim: Sequence[int], arguments: Sequence[Any], tangents: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return the tangents of all arrays after a kernel, given those of its floating arguments before it."""
    program = tangent_program(kernel, arguments, list(tangents))
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    moved = {name: t.copy() if isinstance(t, np.ndarray) and t.ndim else t for name, t in tangents.items()}
    order = [p.name for p in kernel.parameters if p.name in moved]
    run_program(program, dim, [*copies, *(moved[name] for name in order)])
    for got, wanted in zip(copies, oracle(kernel, dim, arguments), strict=True):
        assert is_same(kernel, got, wanted)
    return {name: np.asarray(moved[name]) for name in order}


def run_second(
    kernel: Any,
    dim: Sequence[int],
    arguments: Sequence[Any],
    tangents: dict[str, Any],
    cotangents: dict[str, np.ndarray],
) -> dict[str, Any]:
    """Return the gradients, by the arguments, of sum(cotangent * tangent after the kernel)."""
    program = tangent_program(kernel, arguments, list(tangents))
    order = [p.name for p in kernel.parameters if p.name in tangents]
    wanted = [*order, *(f"{TANGENT}{name}" for name in order)]
    made = reverse(program, wanted, "second")
    run = function(made.text, made.name, program.namespace)
    kinds = {name: np.zeros(np.shape(tangents[name])) for name in order}
    adjoints = {name: kinds[name].copy() for name in order}
    adjoints |= {f"{TANGENT}{name}": cotangents.get(name, kinds[name]).copy() for name in order}
    given = [*arguments, *(tangents[name] for name in order), *(adjoints[name] for name in made.arrays)]
    results = over(dim, lambda *index: run(*index[: len(program.hidden)], *given))
    for k, name in enumerate(made.scalars):
        adjoints[name] = sum(float(result[k]) for result in results)
    return adjoints


def oracle(kernel: Any, dim: Sequence[int], arguments: Sequence[Any]) -> list[np.ndarray]:
    """Return what a kernel makes of copies of its arguments: its own emitted text, which no program has touched.

    That of a kernel which calls gradients of functions is no Python, so it is run through its program.
    """
    if kernel.source.differentiates:
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        replay(kernel, dim, copies)
        return [np.asarray(c) for c in copies]
    run, hidden = _emitted(kernel)
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    over(dim, lambda *index: run(*index[:hidden], *copies))
    return [np.asarray(c) for c in copies]


@functools.cache
def _emitted(kernel: Any) -> tuple[Any, int]:
    emitted = emit(kernel.source, "float64")
    return function(emitted.text, emitted.entry, dict(emitted.namespace)), len(emitted.hidden)


def is_same(kernel: Any, got: Any, wanted: Any) -> bool:
    """Tell whether a program computed what `oracle` did; NumPy adds up the numbers of a row in an order of its own."""
    within = 1e-13 if _REDUCTION.search(emit(kernel.source, "float64").text) else 0.0
    return np.allclose(got, wanted, rtol=within, atol=within, equal_nan=True)


def float_arrays(arguments: Sequence[Any]) -> list[int]:
    """Return the positions of floating arrays."""
    return [k for k, a in enumerate(arguments) if isinstance(a, np.ndarray) and a.dtype.kind == "f"]


def differences(
    kernel: Any, dim: Sequence[int], arguments: Sequence[Any], cotangents: dict[int, Any]
) -> dict[int, Any]:
    """Return the gradients of sum(cotangent * final contents) by central differences, by position of the argument."""
    step = 1e-6

    def objective(changed: Sequence[Any]) -> float:
        after = oracle(kernel, dim, changed)
        return float(sum((cotangents[k] * after[k]).sum() for k in cotangents))

    found: dict[int, Any] = {}
    for k, argument in enumerate(arguments):
        if np.asarray(argument).dtype.kind != "f":
            continue
        gradient = np.zeros(np.shape(argument))
        for place in np.ndindex(np.shape(argument)):
            sides = []
            for sign in (1, -1):
                changed = np.array(argument, copy=True)
                changed[place] += sign * step
                value = changed if isinstance(argument, np.ndarray) else float(changed)
                sides.append(objective([*arguments[:k], value, *arguments[k + 1 :]]))
            gradient[place] = (sides[0] - sides[1]) / (2 * step)
        found[k] = gradient
    return found


def check_as_left(
    kernel: Any,
    dim: Sequence[int],
    arguments: Sequence[Any],
    cotangents: dict[str, Any],
    expected: dict[str, Any],
    made: Reversed,
) -> None:
    """Run the adjoint that takes arrays as the kernel has left them, if there is one: to the last bit it gives the same."""
    if not made.lasting:
        return
    names = [p.name for p in kernel.parameters]
    after = oracle(kernel, dim, arguments)
    mixed = [new if name in made.lasting else old for name, new, old in zip(names, after, arguments, strict=True)]
    given, adjoints = copied(mixed), {name: value.copy() for name, value in cotangents.items()}
    other = run_adjoint(kernel, dim, given, adjoints, left=made.lasting)
    assert adjoints.keys() == expected.keys()
    for name, value in adjoints.items():
        assert np.array_equal(value, expected[name], equal_nan=True), (name, value, expected[name], other.text)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(given, mixed, strict=True)), other.text
    assert other.writes.isdisjoint(made.lasting) and other.snapshot <= made.snapshot - made.lasting, other.text


def check(kernel: Any, dim: int | Sequence[int], *arguments: Any, tolerance: float = 2e-5) -> Reversed:
    """Compare a kernel's adjoint, run as Python, with central differences, for random cotangents of all arrays."""
    dim = (dim,) if isinstance(dim, int) else dim
    names = [p.name for p in kernel.parameters]
    random = np.random.default_rng(1)
    cotangents = {k: random.normal(size=arguments[k].shape) for k in float_arrays(arguments)}
    expected = differences(kernel, dim, arguments, cotangents)
    adjoints = {names[k]: value.copy() for k, value in cotangents.items()}
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    made = run_adjoint(kernel, dim, arguments, adjoints)
    for k, value in expected.items():
        got = np.asarray(adjoints.get(names[k], 0.0))
        scale = 1 + np.abs(value).max(initial=0)
        assert np.allclose(got, value, rtol=tolerance, atol=tolerance * scale), (names[k], got, value, made.text)
    for name, old, new in zip(names, before, arguments, strict=True):
        assert np.array_equal(old, new, equal_nan=True), f"{name} was not brought back\n{made.text}"
    check_as_left(kernel, dim, arguments, {names[k]: value for k, value in cotangents.items()}, adjoints, made)
    return made


def check_directions(kernel: Any, dim: int, *arguments: Any, count: int = 3) -> None:
    """Compare directional derivatives of a random program's adjoint with central differences.

    A difference across a kink is no derivative; there, differences of two steps do not agree, and nothing is compared. Nor
    is anything where derivatives are huge: a sine turns many times within a step then, which no difference shows.
    """
    names = [p.name for p in kernel.parameters]
    random = np.random.default_rng(1)
    floats = [k for k, a in enumerate(arguments) if np.asarray(a).dtype.kind == "f"]
    cotangents = {k: random.normal(size=arguments[k].shape) for k in float_arrays(arguments)}
    adjoints = {names[k]: value.copy() for k, value in cotangents.items()}
    before = [np.array(a, copy=True) for a in arguments]
    made = run_adjoint(kernel, (dim,), arguments, adjoints)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(arguments, before, strict=True)), made.text
    check_as_left(kernel, (dim,), arguments, {names[k]: value for k, value in cotangents.items()}, adjoints, made)
    for _ in range(count):
        direction = {k: random.normal(size=np.shape(arguments[k])) for k in floats}
        got = float(sum((adjoints.get(names[k], 0.0) * d).sum() for k, d in direction.items()))
        wanted, finer = (_difference(kernel, dim, arguments, cotangents, direction, step) for step in (1e-6, 2.5e-7))
        close = 1e-4 * (1 + abs(wanted))
        if abs(wanted - finer) < close and max(abs(got), abs(wanted)) < 1e4:
            assert abs(got - wanted) < 3 * close, (got, wanted, finer, made.text)


def _difference(
    kernel: Any, dim: int, arguments: Sequence[Any], cotangents: dict[int, Any], direction: dict[int, Any], step: float
) -> float:
    sides = []
    for sign in (1, -1):
        moved = [
            (a + sign * step * direction[k] if isinstance(a, np.ndarray) else float(a + sign * step * direction[k]))
            if k in direction
            else a
            for k, a in enumerate(arguments)
        ]
        after = oracle(kernel, (dim,), moved)
        sides.append(float(sum((cotangents[k] * after[k]).sum() for k in cotangents)))
    return (sides[0] - sides[1]) / (2 * step)


def copied(values: Sequence[Any]) -> list[Any]:
    """Return arguments with arrays of their own."""
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


def measured_and_taken(
    kernel: Any, dim: int | Sequence[int], values: Sequence[Any]
) -> tuple[list[Any], list[Any], Measured] | None:
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
    counted: list[Any] = []
    taken: list[Any] = []

    def both(*index: int) -> None:
        index = index[: len(program.hidden)]
        counted.append([])
        count(*index, *given, counted[-1])
        stacks: list[Any] = []
        run(*index, *values, *adjoints, stacks, None)
        # A remembered element is one thing here, and two entries in memory.
        taken.append([stacks[0].highest, *(2 * log.highest for log in stacks[1:])])
        assert not any(stacks)

    over((dim,) if isinstance(dim, int) else dim, both)
    for name, one, other in zip(names, given, untouched, strict=True):
        assert name in counting.changes or np.array_equal(one, other), f"{name} was changed\n{counting.text}"
    return counted, taken, counting
