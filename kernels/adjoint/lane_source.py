"""A kernel's own body as generated text, for the back end to run several threads of at once."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from numbridge.kernels.adjoint.build import build
from numbridge.kernels.adjoint.emit import program_text
from numbridge.kernels.errors import KernelError
from numbridge.kernels.parameter_types import ArrayType, ParameterType
from numbridge.kernels.rewriting import rewrite
from numbridge.kernels.source import FunctionSource

__all__ = ["lane_source"]

_HALF, _SINGLE = 2, 4  # bytes


def lane_source(
    source: FunctionSource, parameters: Sequence[ParameterType], weak: str
) -> tuple[str, Mapping[str, Any]] | None:
    """Return a kernel's body as generated text with its globals, or None if that does not say all that the kernel does."""
    for parameter in parameters:
        # A program rounds to float32 before it stores fewer bits, and knows no floats of 8 bits.
        written = isinstance(parameter, ArrayType) and parameter.written
        if parameter.scalar.is_float and parameter.scalar.itemsize < (_SINGLE if written else _HALF):
            return None
    try:
        rewritten = rewrite(source, weak, gradients=True)
        trees = rewritten.trees.values()
        if any(isinstance(node, ast.Name) and node.id == "_nb_print" for tree in trees for node in ast.walk(tree)):
            return None
        program = build(rewritten, parameters)
    except KernelError:
        return None
    return program_text(program, program.name), program.namespace
