"""What ended a launch on the CPU, other than an exception of the kernel's own: whoever notes such a thing is asked here."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from numbridge.kernels.cpu_backend.blocks.crews import ended_in_block
from numbridge.kernels.cpu_backend.bounds import out_of_range
from numbridge.kernels.cpu_backend.races import raced
from numbridge.kernels.errors import NumbridgeError

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = ["ended_by"]


def ended_by(kernels: Collection[Kernel]) -> NumbridgeError | None:
    """Return the error of a launch of one of some kernels, or None; all are asked, so that nothing is told of a later launch."""
    found = [ask(kernels) for ask in (out_of_range, ended_in_block, raced)]
    return next(filter(None, found), None)
