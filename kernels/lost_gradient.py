"""The warning that a framework's gradient ends at a launch, because the framework sees nothing of what is launched directly.

Compiled code asks the framework only about tensors with autograd state, and only until the kernel has warned. What is said
is the framework's own: this module names none.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numbridge.kernels.errors import NumbridgeWarning, callers_level
from numbridge.kernels.parameter_types import ParameterType, read_for_a_gradient
from numbridge.kernels.readers import reader_of
from numbridge.kernels.variant import Variants

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = ["warn_of_lost_gradient"]


def warn_of_lost_gradient(
    kernel: Kernel, variants: Variants, types: Sequence[ParameterType], arguments: Sequence[Any]
) -> None:
    """Warn, once per kernel, if a gradient that a framework would carry through a launch is lost."""
    if not variants.warns:
        return
    reads = read_for_a_gradient(types)
    for parameter, argument in zip(types, arguments, strict=True):
        ask = reader_of(argument).lost_gradient if parameter.name in reads else None
        why = None if ask is None else ask(argument)
        if why is not None:
            # Where warnings are errors this one comes back until it is heeded.
            message = f"kernel {kernel.name!r}, parameter {kernel.label(parameter.name)!r}: {why}"
            warnings.warn(message, NumbridgeWarning, stacklevel=callers_level())
            variants.stop_warning()
            return
