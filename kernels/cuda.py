"""The CUDA back end: generated source becomes a cubin through numba.cuda and nvJitLink, with or without a GPU.

Importing this module imports numba.cuda, so only code that is about to compile does.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from numba import cuda, types
from numba.core.errors import NumbaError
from numba.cuda import dispatcher
from numba.cuda.core.errors import NumbaError as CudaNumbaError

from numbridge.kernels import cuda_intrinsics
from numbridge.kernels.emission import CUDA_MODULE
from numbridge.kernels.errors import KernelError
from numbridge.kernels.grid_source import GRID
from numbridge.kernels.object_cache import Compiled
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType

__all__ = ["compile_cubin", "compile_ptx", "is_cooperative", "link", "numba_type"]

# What a cooperative launch is recognised by: the runtime function behind `cuda.cg.this_grid()`.
_COOPERATIVE = "cudaCGGetIntrinsicHandle"
_ENTRY = re.compile(r"\.visible \.entry (\w+)\(")
_compiling = threading.RLock()


def numba_type(parameter: ParameterType) -> Any:
    """Return the Numba type of a parameter; arrays that the kernel does not write are read-only to Numba too."""
    dtype = getattr(types, parameter.scalar.numba or "", None)
    if dtype is None or (parameter.scalar.numba == "float16" and isinstance(parameter, ScalarType)):
        raise KernelError(
            f"parameter {parameter.name!r} has elements of {parameter.scalar.name}, with which kernels cannot compute on "
            "CUDA in this version; convert it to float32"
        )
    if isinstance(parameter, ArrayType):
        layout = "C" if parameter.contiguous else "A"
        return types.Array(dtype, parameter.ndim, layout, readonly=not parameter.written)
    return dtype


@contextlib.contextmanager
def _for_capability(capability: tuple[int, int]) -> Iterator[None]:
    """Answer numba.cuda's question for the current device, which it asks when it compiles a device function."""
    with _compiling:
        original = dispatcher.get_current_device
        dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
        try:
            yield
        finally:
            dispatcher.get_current_device = original


def compile_ptx(
    text: str,
    filename: str,
    namespace: Mapping[str, Any],
    parameters: Sequence[ParameterType],
    capability: tuple[int, int],
    *,
    entry: str,
    dims: int,
    fastmath: bool = False,
) -> tuple[str, str, tuple[str, ...]]:
    """Compile the generated source of a variant to PTX.

    Parameters
    ----------
    text, filename : str
        The generated source, and the file in which it lies.
    namespace : mapping
        What the source refers to.
    parameters : sequence of ParameterType
        The types to compile for.
    capability : (int, int)
        The compute capability to compile for.
    entry : str
        The name of the kernel's body, which is looked through for float64 arithmetic.
    dims : int
        How many dimensions (int64) follow the parameters.
    fastmath : bool
        Whether the compiler may reassociate floating-point arithmetic.

    Returns
    -------
    ptx : str
    symbol : str
        The kernel's name in it.
    wide : tuple of str
        Source lines on which float64 arithmetic happens.

    Raises
    ------
    KernelError
        If numba.cuda cannot compile the source; its own message follows.
    """
    names: dict[str, Any] = dict(namespace)
    names[CUDA_MODULE] = cuda
    names["_nb_device"] = cuda.jit(device=True, fastmath=fastmath)
    names["_nb_nonnegative"] = cuda_intrinsics.nonnegative
    for operation in cuda_intrinsics.ATOMICS:
        names[f"_nb_{operation}"] = getattr(cuda_intrinsics, operation)
    exec(compile(text, filename, "exec"), names)
    signature = (*(numba_type(p) for p in parameters), *[types.int64] * dims)
    try:
        with _for_capability(capability):
            ptx, _ = cuda.compile_ptx(names[GRID], signature, cc=capability, fastmath=fastmath)
    except (NumbaError, CudaNumbaError, AttributeError) as error:  # the latter for `row += 1` on a read-only row
        listed = ", ".join(f"{p.name}: {p}" for p in parameters)
        raise KernelError(
            f"kernel {entry!r} does not compile for ({listed}) on CUDA:\n{error}\nThe generated source is {filename}"
        ) from error
    symbol = _ENTRY.search(ptx)
    if symbol is None:
        raise KernelError(f"kernel {entry!r}: numba.cuda compiled it to PTX without an entry")
    return ptx, symbol[1], _wide_lines(names, text)


def link(ptx: str, capability: tuple[int, int], kernel: str) -> bytes:
    """Return the cubin of a PTX text, linked by nvJitLink.

    Raises
    ------
    KernelError
        If the PTX uses more than the architecture has, or names something that does not exist.
    """
    from cuda.bindings.nvjitlink import nvJitLinkError
    from cuda.core import Linker, LinkerOptions, ObjectCode

    arch = f"sm_{capability[0]}{capability[1]}"
    objects = [ObjectCode.from_ptx(ptx.encode())]
    if is_cooperative(ptx):
        from cuda.pathfinder import find_static_lib

        objects.append(ObjectCode.from_library(find_static_lib("cudadevrt")))
    try:
        code: bytes = Linker(*objects, options=LinkerOptions(arch=arch)).link("cubin").code
    except (nvJitLinkError, RuntimeError) as error:
        raise KernelError(f"kernel {kernel!r} does not link for {arch}: {error}") from error
    return code


def is_cooperative(ptx: str) -> bool:
    """Tell whether a kernel synchronises its whole grid, and so needs a cooperative launch."""
    return _COOPERATIVE in ptx


def compile_cubin(
    text: str,
    filename: str,
    namespace: Mapping[str, Any],
    parameters: Sequence[ParameterType],
    capability: tuple[int, int],
    *,
    entry: str,
    dims: int,
    fastmath: bool = False,
) -> Compiled:
    """Compile the generated source of a variant to a cubin; parameters and errors as in `compile_ptx` and `link`.

    The cubin is the one object; its kernel stands in `names` as ``kernel``, the PTX among the facts.
    """
    ptx, symbol, wide = compile_ptx(
        text, filename, namespace, parameters, capability, entry=entry, dims=dims, fastmath=fastmath
    )
    facts = {"wide": wide, "ptx": ptx, "cooperative": is_cooperative(ptx)}
    return Compiled((link(ptx, capability, entry),), {"kernel": symbol}, (), facts)


def _wide_lines(names: Mapping[str, Any], text: str) -> tuple[str, ...]:
    """Return the source lines of the kernel and its device functions on which float64 arithmetic happens."""
    found: set[int] = set()
    for value in names.values():
        for overload in getattr(value, "overloads", {}).values():
            annotation = getattr(overload, "type_annotation", None)
            for expression, signature in annotation.calltypes.items() if annotation is not None else ():
                if signature is not None and signature.return_type in (types.float64, types.complex128):
                    found.add(expression.loc.line)
    lines = text.splitlines()
    return tuple(lines[number - 1].strip() for number in sorted(found) if 0 < number <= len(lines))
