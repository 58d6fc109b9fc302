"""Running generated text as plain Python, with NumPy scalars: thousands of programs in the time that Numba needs for one.

What compiled code gets from the back end (atomics, arrays and stacks of the thread) is a few lines of Python here.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.adjoint.build import build
from numbridge.kernels.adjoint.emit import program_text
from numbridge.kernels.adjoint.ir import Program
from numbridge.kernels.adjoint.reverse import Reversed, reverse
from numbridge.kernels.emission import emit, rewrite
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType


class Stack(list):
    """A stack; `stack[2]` is its height, as in compiled code."""

    def __getitem__(self, place: Any) -> Any:
        return len(self) if place == 2 else super().__getitem__(place)


def _remember(log: Stack, array: Any, index: Any) -> None:
    log.append((index, array[index]))


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


RUNTIME: dict[str, Any] = {
    "_nb_device": lambda function: function,
    "_nb_local_array": lambda shape, dtype: np.full(shape, 77, dtype),
    "_nb_atomic_add": _atomic_add,
    "_nb_atomic_sub": _atomic_sub,
    "_nb_add": _atomic_add,
    "_nb_stack_new": Stack,
    "_nb_stack_free": lambda stack: None,
    "_nb_stack_push": lambda stack, value: stack.append(value),
    "_nb_stack_pop": lambda stack, like: stack.pop(),
    "_nb_stack_remember": _remember,
    "_nb_stack_undo": _undo,
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
    return build(rewrite(kernel.source, weak), types_of(kernel, arguments))


def floats_of(kernel: Any, arguments: Sequence[Any]) -> list[str]:
    """Return the parameters that could have a gradient."""
    return [
        p.name
        for p, a in zip(kernel.parameters, arguments, strict=True)
        if np.asarray(a).dtype.kind == "f"
    ]


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


def adjoint_of(kernel: Any, arguments: Sequence[Any], wanted: Sequence[str] | None = None) -> tuple[Reversed, Program]:
    """Return the adjoint of a kernel."""
    program = program_of(kernel, arguments)
    return reverse(program, floats_of(kernel, arguments) if wanted is None else wanted, "adjoint"), program


def run_adjoint(
    kernel: Any, dim: Sequence[int], arguments: Sequence[Any], adjoints: dict[str, Any], wanted: Any = None
) -> Reversed:
    """Run the adjoint; `adjoints` are arrays, changed in place, and numbers, of which there are new ones afterwards."""
    made, program = adjoint_of(kernel, arguments, wanted)
    run = function(made.text, made.name, program.namespace)
    given = [adjoints[name] for name in made.arrays]
    results = over(dim, lambda *index: run(*index[: len(program.hidden)], *arguments, *given))
    for k, name in enumerate(made.scalars):
        adjoints[name] = adjoints.get(name, 0.0) + sum(float(result[k]) for result in results)
    return made


def oracle(kernel: Any, dim: Sequence[int], arguments: Sequence[Any]) -> list[np.ndarray]:
    """Return what a kernel makes of copies of its arguments: its own emitted text, which no program has touched."""
    emitted = emit(kernel.source, "float64")
    run = function(emitted.text, emitted.entry, emitted.namespace)
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    over(dim, lambda *index: run(*index[: len(emitted.hidden)], *copies))
    return [np.asarray(c) for c in copies]


def float_arrays(arguments: Sequence[Any]) -> list[int]:
    """Return the positions of floating arrays."""
    return [k for k, a in enumerate(arguments) if isinstance(a, np.ndarray) and a.dtype.kind == "f"]


def differences(kernel: Any, dim: Sequence[int], arguments: Sequence[Any], cotangents: dict[int, Any]) -> dict[int, Any]:
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
    return made
