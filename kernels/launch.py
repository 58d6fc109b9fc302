"""Launching: dimensions become a native plan, and a plan becomes a function that takes a kernel's arguments.

`forall` returns a built-in function: calling it runs no Python until something new has to be compiled or explained. That is
the slow road, `_Road.slow`: it specialises the kernel for the arguments (or raises) and launches again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.kernels.errors import DeviceError, KernelError, NumbridgeError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.machine import builtin, machine
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.threads import start_threads
from numbridge.kernels.variant import Variant, variants_of

__all__ = ["Explanation", "Geometry", "Launch", "configure", "explain", "forall", "launch", "launcher"]

_MAX_ATTEMPTS = 16
_MAX_LAUNCHERS = 256
_AXES = 3
_missed = object()


@dataclass(frozen=True)
class Geometry:
    """What is launched.

    Attributes
    ----------
    dims : tuple of int
        How many threads along each index.
    block, grid : tuple of int
        Block and grid dimensions per axis, as `cuda.blockDim` and `cuda.gridDim` show them to the kernel.
    """

    dims: tuple[int, ...]
    block: tuple[int, ...]
    grid: tuple[int, ...]


class _Road:
    """A launcher's Python side: its native plan, and what happens when compiled code does not know the arguments."""

    def __init__(self, kernel: Kernel, geometry: Geometry) -> None:
        self.kernel = kernel
        self.variants = variants_of(kernel)
        self.plan = _plan(self.variants.table, geometry, 0)
        self.again_plan = _plan(self.variants.table, geometry, nb.PLAN_GUARDS_PASSED)
        address = machine().addresses["numbridge_launch"]
        self.again = builtin(
            kernel.name, address, (self.again_plan.ctypes.data, _give_up, self.failed, self.again_plan)
        )
        self.launcher = builtin(kernel.name, address, (self.plan.ctypes.data, self.slow, self.failed, self.plan))

    def slow(self, *arguments: Any) -> None:
        """Specialise for these arguments, or raise what is wrong with them, and launch."""
        start_threads()
        # Another thread may install specialisations of its own at the same time; then ours is put in front again.
        for _ in range(_MAX_ATTEMPTS):
            self.variants.specialise(arguments)
            if self.again(*arguments) is not _missed:
                return
        raise NumbridgeError(f"kernel {self.kernel.name!r}: its arguments changed while it was being launched")

    def failed(self, *arguments: Any) -> None:
        """Say that a kernel ended with an exception of its own."""
        raise KernelError(
            f"kernel {self.kernel.name!r} raised an exception in one of its threads; the arrays that it writes may be partly "
            "written. On the CPU a `raise` or `assert` in a kernel ends its launch"
        )


def _give_up(*arguments: Any) -> Any:
    return _missed


def _plan(table: Any, geometry: Geometry, flags: int) -> Any:
    plan = np.zeros(nb.PLAN_SIZE // 8, np.int64)
    plan[nb.PLAN_VARIANTS // 8] = table.ctypes.data
    total = 1
    for extent in geometry.dims:
        total *= extent
    plan[nb.PLAN_TOTAL // 8] = total
    for offset, values in (
        (nb.PLAN_DIMS, geometry.dims),
        (nb.PLAN_BLOCK, geometry.block),
        (nb.PLAN_GRID, geometry.grid),
    ):
        plan[offset // 8 : offset // 8 + len(values)] = values
    plan[nb.PLAN_FLAGS // 8] = flags
    return plan


def dimensions(kernel: Kernel, dim: Any) -> tuple[int, ...]:
    """Return a launch's dimensions as a tuple, checked against the kernel's thread indices."""
    try:
        dims = (operator.index(dim),) if not isinstance(dim, tuple | list) else tuple(operator.index(d) for d in dim)
    except TypeError:
        raise NumbridgeTypeError(
            f"dim of kernel {kernel.name!r}: wanted an int or a tuple of up to {nb.MAX_DIMS} ints, got {dim!r}"
        ) from None
    if not 1 <= len(dims) <= nb.MAX_DIMS:
        raise NumbridgeValueError(f"dim of kernel {kernel.name!r}: wanted 1 to {nb.MAX_DIMS} dimensions, got {dim!r}")
    if min(dims) < 0:
        raise NumbridgeValueError(f"dim of kernel {kernel.name!r}: {dim!r} has a negative extent")
    _count(kernel, dims)
    rank = kernel.source.index_rank
    if rank not in (0, len(dims)):
        raise NumbridgeValueError(
            f"dim of kernel {kernel.name!r}: {dim!r} has {len(dims)} dimension(s), and the kernel asks for {rank} thread "
            f"index(es); pass a tuple of {rank}"
        )
    return dims


def _count(kernel: Kernel, dims: tuple[int, ...]) -> int:
    """Return the number of threads, and raise if it is more than compiled code can count."""
    total = math.prod(dims)
    if max(total, *dims) > np.iinfo(np.int64).max:
        raise NumbridgeValueError(f"kernel {kernel.name!r}: {dims} are more threads than 64 bits can count")
    return total


def launcher(kernel: Kernel, geometry: Geometry) -> Any:
    """Return the built-in function that launches `kernel` over `geometry` with the arguments that it is given."""
    known = variants_of(kernel).launchers
    found = known.get(geometry)
    if found is None:
        if len(known) >= _MAX_LAUNCHERS:
            known.clear()
        found = known[geometry] = _Road(kernel, geometry).launcher
    return found


def forall(kernel: Kernel, dim: Any, block_dim: int = 256) -> Any:
    """Return a function of the kernel's arguments that runs it over `dim` threads.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    dim : int or tuple of int
        Extents of the launch, up to four; 0 runs nothing.
    block_dim : int
        Threads per block, as the kernel sees it.

    Returns
    -------
    callable
        ``launcher(*arguments)``. It checks its arguments, runs the kernel to its end without the GIL and returns None.
    """
    dims = dimensions(kernel, dim)
    if not isinstance(block_dim, int | np.integer) or block_dim < 1:
        raise NumbridgeValueError(f"block_dim of kernel {kernel.name!r}: wanted a positive int, got {block_dim!r}")
    block = (int(block_dim), 1, 1)
    grid = tuple(-(-extent // size) for extent, size in zip((*dims, 1, 1, 1)[:_AXES], block, strict=True))
    return launcher(kernel, Geometry(dims, block, grid))


def configure(kernel: Kernel, configuration: Any) -> Any:
    """Return the launcher of ``kernel[blocks, threads]``: all threads of all blocks run, none is masked."""
    if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
        raise NumbridgeTypeError(
            f"kernel {kernel.name!r}: wanted kernel[blocks, threads] (stream and shared memory are CUDA's), got "
            f"[{configuration!r}]"
        )
    if any(item for item in configuration[2:]):
        raise DeviceError(
            f"kernel {kernel.name!r}: streams and dynamic shared memory need CUDA; launch [blocks, threads] here"
        )
    grid, block = (_axes(kernel, item) for item in configuration[:2])
    threads = tuple(g * b for g, b in zip(grid, block, strict=True))
    _count(kernel, threads)
    rank = kernel.source.index_rank
    if rank > _AXES:
        raise NumbridgeValueError(
            f"kernel {kernel.name!r} asks for {rank} thread indices, and [blocks, threads] has {_AXES} axes; launch it with "
            "nb.launch or forall"
        )
    if any(extent != 1 for extent in threads[max(rank, 1) :]):
        raise NumbridgeValueError(
            f"kernel {kernel.name!r} asks for {rank} thread index(es), and [{configuration!r}] has threads along more axes"
        )
    return launcher(kernel, Geometry(threads[: max(rank, 1)], block, grid))


def _axes(kernel: Kernel, item: Any) -> tuple[int, ...]:
    values = item if isinstance(item, tuple | list) else (item,)
    if not 1 <= len(values) <= _AXES or not all(isinstance(v, int | np.integer) and v >= 0 for v in values):
        raise NumbridgeTypeError(
            f"kernel {kernel.name!r}: blocks and threads are ints or tuples of up to {_AXES} ints, got {item!r}"
        )
    return tuple(int(v) for v in (*values, 1, 1)[:_AXES])


def launch(
    kernel: Kernel,
    dim: Any,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    *,
    device: Any = None,
    stream: Any = None,
    record_cmd: bool = False,
    max_blocks: int = 0,
    block_dim: int = 256,
) -> Launch | None:
    """Run a kernel over `dim` threads.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    dim : int or tuple of int
        Extents of the launch, up to four; threads beyond them do not run, and 0 runs nothing.
    inputs, outputs : sequence
        The kernel's arguments, in order: inputs, then outputs. Arrays of any framework go straight in, share their memory
        with the kernel, and are kept alive until it ends.
    device : Device or str, optional
        Where to run; by default where the arguments lie.
    stream : None
        Streams are CUDA's; on the CPU a launch has ended when it returns.
    record_cmd : bool
        Return a `Launch` that can be launched again, instead of launching now.
    max_blocks : int
        On CUDA, the largest grid; the CPU has no blocks to count.
    block_dim : int
        Threads per block, as the kernel sees it.

    Returns
    -------
    Launch or None
        The recorded launch if `record_cmd`.

    Raises
    ------
    NumbridgeError
        If an argument does not fit; nothing has been written then.
    """
    if device is not None and str(device) != "cpu":
        raise DeviceError(
            f"launch of kernel {kernel.name!r}: device {str(device)!r} needs CUDA, and kernels run on the CPU here"
        )
    if stream is not None:
        raise DeviceError(f"launch of kernel {kernel.name!r}: a stream needs CUDA, and kernels run on the CPU here")
    if not isinstance(kernel, Kernel):
        raise NumbridgeTypeError(f"launch: wanted a kernel, got {kernel!r}; decorate the function with @nb.kernel")
    if record_cmd:
        return Launch(kernel, dim, [*inputs, *outputs], block_dim)
    quick = (dim, block_dim)
    known = kernel.launchers.get(quick) if type(dim) is int or type(dim) is tuple else None
    if known is None:
        known = forall(kernel, dim, block_dim)
        if type(dim) is int or type(dim) is tuple:
            if len(kernel.launchers) >= _MAX_LAUNCHERS:
                kernel.launchers.clear()
            kernel.launchers[quick] = known
    known(*inputs, *outputs)
    return None


class Launch:
    """A recorded launch: a kernel, its dimensions and its arguments, to be changed and launched again.

    Parameters
    ----------
    kernel : Kernel
        What to run.
    dim : int or tuple of int
        Extents of the launch.
    arguments : sequence
        All arguments in order; they are kept alive.
    """

    def __init__(self, kernel: Kernel, dim: Any, arguments: Sequence[Any], block_dim: int = 256) -> None:
        self.kernel = kernel
        self._block_dim = block_dim
        self._arguments = list(arguments)
        names = [parameter.name for parameter in kernel.parameters]
        if len(self._arguments) != len(names):
            raise NumbridgeTypeError(
                f"kernel {kernel.name!r} takes {len(names)} arguments ({', '.join(names)}), got {len(self._arguments)}"
            )
        self.set_dim(dim)

    def set_dim(self, dim: Any) -> None:
        """Set the extents of the launch."""
        self._launcher = forall(self.kernel, dim, self._block_dim)
        self.dim = dim

    def set_param_at_index(self, index: int, value: Any) -> None:
        """Set the argument at a position."""
        if not 0 <= index < len(self._arguments):
            raise NumbridgeValueError(
                f"kernel {self.kernel.name!r} has arguments 0 to {len(self._arguments) - 1}, and there is none at {index}"
            )
        self._arguments[index] = value

    def set_param_by_name(self, name: str, value: Any) -> None:
        """Set the argument of a name."""
        names = [parameter.name for parameter in self.kernel.parameters]
        if name not in names:
            raise NumbridgeValueError(
                f"kernel {self.kernel.name!r} has the parameters {', '.join(names)}, not {name!r}"
            )
        self._arguments[names.index(name)] = value

    def set_params(self, values: Sequence[Any]) -> None:
        """Set all arguments."""
        if len(values) != len(self._arguments):
            raise NumbridgeTypeError(
                f"kernel {self.kernel.name!r} takes {len(self._arguments)} arguments, got {len(values)}"
            )
        self._arguments = list(values)

    def launch(self) -> None:
        """Run the kernel with the arguments as they are now."""
        self._launcher(*self._arguments)


@dataclass(frozen=True)
class Explanation:
    """What a kernel becomes for some arguments.

    Attributes
    ----------
    kernel : str
        Its name.
    variant : Variant
        The native code that the arguments run.
    float64_lines : tuple of str
        Source lines with float64 arithmetic in a kernel whose floating type is float32.
    source : str
        The generated source.
    """

    kernel: str
    variant: Variant
    float64_lines: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        """Return a readable report."""
        kind = "from the cache on disk" if self.variant.from_cache else "compiled now"
        lines = [
            f"kernel {self.kernel!r} on the CPU, {kind}",
            f"floating type of literals and Python floats: {self.variant.weak_float}",
            "parameters:",
            *(f"    {p.name}: {p}" for p in self.variant.parameters),
        ]
        if self.float64_lines:
            lines += ["float64 arithmetic remains in:", *(f"    {line}" for line in self.float64_lines)]
        return "\n".join([*lines, f"generated source ({self.variant.source_file}):", self.source])


def explain(kernel: Kernel, arguments: Sequence[Any]) -> Explanation:
    """Return which variant these arguments run, its types, its generated source, and where float64 arithmetic remains."""
    variant = variants_of(kernel).variant_for(arguments)
    wide = variant.wide if variant.weak_float == "float32" else ()
    with open(variant.source_file, encoding="utf-8") as file:
        return Explanation(kernel.name, variant, wide, file.read())
