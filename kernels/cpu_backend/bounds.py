"""What a kernel that checks its indices on the CPU has found: `cpu_bounds` writes it down, and this says it."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from numbridge.kernels.errors import NumbridgeIndexError

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel
    from numbridge.kernels.language.source import FunctionSource

__all__ = ["AXIS", "EXTENT", "FOUND", "INDEX", "SITE", "first_site", "out_of_range"]

# The first index of the process that was out of range and is not told yet: where, or 0; which axis, which index, what extent.
FOUND = np.zeros(4, np.int64)
SITE, AXIS, INDEX, EXTENT = 0, 1, 2, 3
_SITES = 1 << 20


def first_site(source: FunctionSource) -> int:
    """Return the number of a kernel's first place where an index is checked; the others follow."""
    return zlib.crc32(ast.dump(source.tree).encode()) * _SITES + 1


def out_of_range(kernels: Iterable[Kernel]) -> NumbridgeIndexError | None:
    """Return the error of the one of some kernels that has ended because of an index, or None if none has."""
    from numbridge.kernels.language.rewriting import rewrite

    site, axis, index, extent = FOUND.tolist()
    FOUND[SITE] = 0
    for kernel in kernels:
        number = site - first_site(kernel.source)
        if 0 <= number < _SITES:
            gradients = kernel.source.differentiates
            rewritten = rewrite(
                kernel.source, "float32", gradients=gradients, elements=not gradients, check_bounds=True
            )
            source, node, array = rewritten.sites[number]
            return NumbridgeIndexError(
                f"kernel {kernel.name!r}: index {index} is out of range for axis {axis} of {array}, whose extent is {extent}; "
                f"the arrays that the kernel writes may be partly written\n  {source.excerpt(node)}"
            )
    return None
