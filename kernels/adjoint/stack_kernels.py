"""The two kernels that an adjoint with stacks is on CUDA: one counts what the stacks take, the other is given that memory.

How they are launched, one after the other, is said in `stacks_on_cuda`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.adjoint.derive import Derivative
from numbridge.kernels.adjoint.measured import MEMORY, NEEDS, PLACES
from numbridge.kernels.kernel import Parameter
from numbridge.kernels.language.emission import Emitted
from numbridge.kernels.language.rewriting import Target
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.parameter_types import ArrayType, ParameterType
from numbridge.kernels.readers import Description
from numbridge.kernels.variant import Variants, variants_of

__all__ = ["StackKernel", "compiled_with_memory", "measuring", "with_memory"]


class StackKernel(Derivative):
    """An adjoint that is given memory for its stacks, or what counts how much they take.

    Attributes
    ----------
    original : Derivative
        The adjoint; its arguments come first.
    given : tuple of str
        The parameters behind those, arrays of int64.
    measures : bool
        Whether this counts; then it does not take the adjoints.
    """

    def __init__(self, adjoint: Derivative, given: tuple[str, ...]) -> None:
        super().__init__(adjoint.base, adjoint.mode, adjoint.wanted, **adjoint.options_of_its_own)
        self.original, self.given = adjoint, given
        self.measures = given == (NEEDS,)
        first = adjoint.base.parameters if self.measures else adjoint.parameters
        self.parameters = (*first, *(Parameter(name, None) for name in given))

    def new_variants(self) -> Any:
        """Return an empty collection of variants."""
        return _StackVariants(self)

    def emitted(self, parameters: tuple[ParameterType, ...], weak: str, target: Target) -> Emitted:
        """Return the text to compile, for types of the base's parameters."""
        plan = self.original.plan(parameters, weak, target)
        assert plan.measured is not None
        made = self.original.emitted_as_planned(plan, parameters, weak, target)
        made = dataclasses.replace(made, repeatable=plan.measured.compares_floats)
        if not self.measures:
            return made
        return dataclasses.replace(made, text=plan.measured.text, entry=plan.measured.name, sums=())


class _StackVariants(Variants):
    """The variants of an adjoint with stacks: the adjoint's, with what is given."""

    kernel: StackKernel

    def __init__(self, kernel: StackKernel) -> None:
        super().__init__(kernel)
        self.warns = False  # as for the adjoint

    def types(self, arguments: Sequence[Any], found: Sequence[Description]) -> tuple[tuple[ParameterType, ...], str]:
        """Return the types of all parameters; raises if an argument does not fit."""
        kernel, count = self.kernel, len(arguments) - len(self.kernel.given)
        of_adjoint = self._measured_types if kernel.measures else variants_of(kernel.original).types
        types, weak = of_adjoint(arguments[:count], found[:count])
        row = scalars.by_name("int64")
        given = (ArrayType(name, row, 1, True, written=name in (NEEDS, MEMORY)) for name in kernel.given)
        return (*types, *given), weak

    def _measured_types(
        self, arguments: Sequence[Any], found: Sequence[Description]
    ) -> tuple[tuple[ParameterType, ...], str]:
        adjoint = self.kernel.original
        variants: Any = variants_of(adjoint)
        types, weak = variants.base_types(adjoint.base, arguments, found)
        measured = adjoint.plan(types, weak, "cuda").measured
        assert measured is not None
        contiguous = all(d.has(nb.CONTIGUOUS) for d in found if d.is_array)
        arrays = {
            p.name: dataclasses.replace(p, contiguous=contiguous, written=p.name in measured.changes)
            for p in types
            if isinstance(p, ArrayType)
        }
        return tuple(arrays.get(p.name, p) for p in types), weak

    def emitted(self, parameters: tuple[ParameterType, ...], weak: str, target: Target) -> Emitted:
        """Return the kernel's text."""
        return self.kernel.emitted(parameters[: len(self.kernel.base.parameters)], weak, target)


def measuring(adjoint: Derivative) -> StackKernel:
    """Return what counts the entries on an adjoint's stacks."""
    return _stack_kernel(adjoint, (NEEDS,))


def with_memory(adjoint: Derivative) -> StackKernel:
    """Return an adjoint that is given memory for its stacks."""
    return _stack_kernel(adjoint, (MEMORY, PLACES))


def _stack_kernel(adjoint: Derivative, given: tuple[str, ...]) -> StackKernel:
    made: StackKernel | None = adjoint.derivatives.get(given)
    if made is None:
        made = adjoint.derivatives[given] = StackKernel(adjoint, given)
    return made


def compiled_with_memory(
    adjoint: Derivative, arguments: Sequence[Any], capability: tuple[int, int] | None, *, plain: bool
) -> Any:
    """Return the code of an adjoint that is given memory, for arguments of the adjoint."""
    words = np.zeros(1, np.int64)
    return with_memory(adjoint)._cuda_code([*arguments, words, words.copy()], capability, plain=plain)
