"""Adjoints that are launched by hand, with ``launch(..., adjoint=True)``: adjoints side by side with the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numbridge.kernels.arguments import check_count
from numbridge.kernels.errors import NumbridgeValueError
from numbridge.kernels.kernel import Kernel

if TYPE_CHECKING:
    from numbridge.kernels.adjoint.derive import Derivative

__all__ = ["adjoint_of"]


def adjoint_of(
    kernel: Kernel,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    adj_inputs: Sequence[Any],
    adj_outputs: Sequence[Any],
) -> tuple[Derivative, list[Any]]:
    """Return a kernel's adjoint and its arguments, given adjoints side by side with the kernel's; None is no gradient."""
    arguments = [*inputs, *outputs]
    adjoints = [*_filled("adj_inputs", adj_inputs, inputs), *_filled("adj_outputs", adj_outputs, outputs)]
    check_count(kernel, arguments)
    names = [parameter.name for parameter in kernel.parameters]
    given = [(name, adjoint) for name, adjoint in zip(names, adjoints, strict=True) if adjoint is not None]
    if not given:
        raise NumbridgeValueError(
            f"the adjoint of kernel {kernel.name!r} was launched without an adjoint; give some in adj_inputs and adj_outputs"
        )
    written = kernel.source.written()
    if not any(name in written for name, _ in given):
        raise NumbridgeValueError(
            f"the adjoint of kernel {kernel.name!r} was launched without an adjoint of what it writes "
            f"({', '.join(name for name in names if name in written) or 'nothing'}), so every gradient would be zero; give it in "
            "adj_outputs"
        )
    return kernel.adjoint([name for name, _ in given]), [*arguments, *(adjoint for _, adjoint in given)]


def _filled(what: str, adjoints: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    if adjoints and len(adjoints) != len(arguments):
        raise NumbridgeValueError(
            f"{what} has {len(adjoints)} entries for {len(arguments)} arguments; give one for each, None for no gradient"
        )
    return list(adjoints) or [None] * len(arguments)
