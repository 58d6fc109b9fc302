"""Dynamic shared memory, ``cuda.shared.array(0, dtype)``: who uses it, how much an element takes, and which launches bring none.

Compiles nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np

from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.language.intrinsics import intrinsic_of
from numbridge.kernels.language.source import FunctionSource, Program, memory_arguments

__all__ = ["check_dynamic_memory", "element_bytes", "is_dynamic"]


def is_dynamic(name: str, shape: Any) -> bool:
    """Tell whether a function of numba.cuda with such a shape stands for the memory that the launch brings."""
    extents = shape if isinstance(shape, tuple) else (shape,)
    return name == "cuda.shared.array" and len(extents) == 1 and type(extents[0]) is int and extents[0] == 0


def element_bytes(source: FunctionSource, node: ast.Call) -> int | None:
    """Return how many bytes an element has of the memory that a call makes, or None where its dtype is not known for sure."""
    given = memory_arguments(node).get("dtype")
    if given is None:
        return None
    static = source.resolve(given)
    dtype: Any = static.value if static is not None else given.value if isinstance(given, ast.Constant) else None
    if isinstance(dtype, ElementType):
        return dtype.bytes
    # Types of Numba's, which need not be imported here, are called as NumPy's are. Python's own stand for other ones in memory.
    is_named = isinstance(dtype, str) or type(dtype).__module__.startswith("numba.")
    if (
        not is_named
        and not isinstance(dtype, np.dtype)
        and not (isinstance(dtype, type) and issubclass(dtype, np.generic))
    ):
        return None
    try:
        return np.dtype(str(dtype) if is_named else dtype).itemsize
    except TypeError:
        return None


def check_dynamic_memory(kernel: Kernel, shared: int, way: str = "this launch") -> None:
    """Refuse a launch without dynamic shared memory of a kernel that uses some: it would read and write other memory.

    Parameters
    ----------
    kernel : Kernel
        What is launched.
    shared : int
        How many bytes each block gets.
    way : str
        What brings them.

    Raises
    ------
    KernelError
        If that is none, and the kernel or a device function that it calls uses some.
    """
    if shared:
        return
    uses = kernel.source.found("dynamic memory", lambda: tuple(_uses(kernel)), Dependency.is_unchanged)
    if uses:
        source, node = uses[0]
        raise source.error(
            node,
            f"kernel {kernel.name!r} uses dynamic shared memory, cuda.shared.array(0, dtype), and {way} brings none; launch it "
            f"by {kernel.name}[blocks, threads, stream, shared_bytes](...), or give the array a constant shape",
            KernelError,
        )


def _uses(kernel: Kernel) -> Iterator[tuple[FunctionSource, ast.Call]]:
    """Yield where a kernel and its device functions use dynamic shared memory."""
    program = Program(kernel.source)
    for source in program.sources:
        for node in source.nodes:
            if not isinstance(node, ast.Call):
                continue
            static = source.resolve(node.func)
            intrinsic = None if static is None else intrinsic_of(static.value)
            if intrinsic is None or intrinsic.name != "cuda.shared.array":
                continue
            if is_dynamic(intrinsic.name, program.shape(source, node)):
                yield source, node
