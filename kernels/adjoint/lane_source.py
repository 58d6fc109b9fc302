"""A kernel's own body as generated text, for the back end to run several threads of at once."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from numba import types

from numbridge.kernels.adjoint.build import build
from numbridge.kernels.adjoint.emit import program_text
from numbridge.kernels.adjoint.ir import Compute, Op, Program, walk
from numbridge.kernels.cpu_backend.active_range import ActiveRange
from numbridge.kernels.errors import KernelError
from numbridge.kernels.language.rewriting import rewrite
from numbridge.kernels.language.source import FunctionSource
from numbridge.kernels.parameter_types import ArrayType, ParameterType

__all__ = ["block_text", "lane_source"]

_HALF, _SINGLE = 2, 4  # bytes
_WIDE = (types.float64, types.complex128)


def lane_source(
    source: FunctionSource, parameters: Sequence[ParameterType], weak: str, active: ActiveRange
) -> tuple[str, Mapping[str, Any]] | None:
    """Return a kernel's body as generated text with its globals, or None if that does not say all that the kernel does.

    It is a body for the indices that are `active`.
    """
    program = _program(source, parameters, weak, active)
    return None if program is None else (program_text(program, program.name), program.namespace)


def _program(
    source: FunctionSource, parameters: Sequence[ParameterType], weak: str, active: ActiveRange
) -> Program | None:
    narrow = [p for p in parameters if p.scalar.is_float and p.scalar.itemsize < _SINGLE]
    if any(p.scalar.itemsize < _HALF or p.element is not None for p in narrow):
        return None  # a program knows no floats of 8 bits, and no elements of narrow ones
    try:
        rewritten = rewrite(source, weak, gradients=True, parameters=parameters)
        if rewritten.printing() is not None or rewritten.program.reads_njit or rewritten.active != active:
            return None
        program = build(rewritten, parameters, derived=False)
    except KernelError:
        return None
    stored = any(isinstance(p, ArrayType) and p.written for p in narrow) or any(a.narrow for a in program.locals)
    if stored and any(map(_narrows, walk(program.body))):
        return None  # a program would round to float32 before it stores fewer bits
    return program


def block_text(
    source: FunctionSource, parameters: Sequence[ParameterType], weak: str, active: ActiveRange
) -> tuple[str, Mapping[str, Any], tuple[str, ...]] | None:
    """Return the same for a kernel whose threads work together, with the lines of its source that have float64 arithmetic."""
    found = _program(source, parameters, weak, active)
    if found is None:
        return None
    places = [op.place for op in walk(found.body) if isinstance(op, Compute) and op.result.type in _WIDE]
    lines = dict.fromkeys(ast.unparse(place[1]).splitlines()[0] for place in places if place is not None)
    return program_text(found, found.name), found.namespace, tuple(lines)


def _narrows(op: Op) -> bool:
    """Tell whether an operation makes a float32 of a float64."""
    return (
        isinstance(op, Compute) and op.result.type == types.float32 and types.float64 in [a.type for a in op.arguments]
    )
