"""What a launch comes to: how many threads along each index, in which blocks, and where they run. Nothing is started here."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.kernels.block_dims import BlockDim, block_axes, block_dim_of, check_hardware, cuda_block_of, cuda_shapes
from numbridge.kernels.devices import Device
from numbridge.kernels.errors import NumbridgeTypeError, NumbridgeValueError, shown
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.variant import MASKED, Place

__all__ = ["Geometry", "bracketed", "dimensions", "geometry_of", "most_blocks"]

_MAX_COUNT = int(np.iinfo(np.int64).max)
_AXES = 3


@dataclass(frozen=True)
class Geometry:
    """What is launched.

    Attributes
    ----------
    dims : tuple of int
        How many threads along each index.
    block, grid : tuple of int
        Block and grid dimensions per axis, as `cuda.blockDim` and `cuda.gridDim` show them to the kernel on the CPU.
    cuda_block, cuda_grid : tuple of int
        The hardware's, on CUDA.
    place : Place
        How and where it runs.
    stream : int or None
        The handle of the CUDA stream that was asked for.
    is_followed : bool
        Whether a framework's autograd follows the launch, so that it loses no gradient.
    is_shaped : bool
        Whether the hardware's block would be the same for any other dims.
    """

    dims: tuple[int, ...]
    block: tuple[int, ...]
    grid: tuple[int, ...]
    cuda_block: tuple[int, ...]
    cuda_grid: tuple[int, ...]
    place: Place = MASKED
    stream: int | None = None
    is_followed: bool = False
    is_shaped: bool = False


def dimensions(kernel: Kernel, dim: Any) -> tuple[int, ...]:
    """Return a launch's dimensions as a tuple, checked against the kernel's thread indices."""
    try:
        dims = (operator.index(dim),) if not isinstance(dim, tuple | list) else tuple(operator.index(d) for d in dim)
    except TypeError:
        raise NumbridgeTypeError(
            f"dim of kernel {kernel.name!r}: wanted an int or a tuple of up to {nb.MAX_DIMS} ints, got {shown(dim)}"
        ) from None
    if not 1 <= len(dims) <= nb.MAX_DIMS:
        raise NumbridgeValueError(
            f"dim of kernel {kernel.name!r}: wanted 1 to {nb.MAX_DIMS} dimensions, got {shown(dim)}"
        )
    if min(dims) < 0:
        raise NumbridgeValueError(f"dim of kernel {kernel.name!r}: {shown(dim)} has a negative extent")
    _check_count(kernel, dims)
    rank = kernel.source.index_rank
    if rank not in (0, len(dims)):
        raise NumbridgeValueError(
            f"dim of kernel {kernel.name!r}: {shown(dim)} has {len(dims)} dimension(s), and the kernel asks for {rank} thread "
            f"index(es); pass a tuple of {rank}"
        )
    return dims


def _check_count(kernel: Kernel, dims: tuple[int, ...]) -> None:
    """Refuse more threads than compiled code can count."""
    if max(math.prod(dims), *dims) > _MAX_COUNT:
        raise NumbridgeValueError(f"kernel {kernel.name!r}: {shown(dims)} are more threads than 64 bits can count")


def geometry_of(
    kernel: Kernel,
    dim: Any,
    block_dim: BlockDim = 256,
    max_blocks: int = 0,
    stream: int | None = None,
    device: Device | None = None,
) -> Geometry:
    """Return what a launch comes to; parameters as for `forall`."""
    dims = dimensions(kernel, dim)
    max_blocks = most_blocks(kernel, max_blocks)
    chosen = block_dim_of(kernel, block_dim, len(dims))
    block = block_axes(chosen)
    grid = tuple(-(-extent // size) for extent, size in zip((*dims, 1, 1, 1)[:_AXES], block, strict=True))
    cuda_grid, cuda_block = cuda_shapes(kernel, dims, chosen, max_blocks)
    if max_blocks and kernel.source.asks_for_block:
        _check_whole(kernel, cuda_grid, cuda_shapes(kernel, dims, chosen)[0], max_blocks)
    is_shaped = cuda_block_of(kernel, chosen, len(dims)) is not None
    place = Place(device=device)
    return Geometry(dims, block, grid, cuda_block, cuda_grid, place, stream, is_shaped=is_shaped)


def _check_whole(kernel: Kernel, grid: Sequence[int], whole: Sequence[int], max_blocks: int) -> None:
    """Refuse fewer blocks than a launch has where threads know their block: each would be several, one after the other."""
    if math.prod(grid) < math.prod(whole):
        raise NumbridgeValueError(
            f"max_blocks of kernel {kernel.name!r}: wanted {math.prod(whole)} blocks or more, as many as the launch has, got "
            f"{max_blocks}: its threads ask for their block or work together in it, so that none can run the threads of several; "
            "leave max_blocks out, or let the kernel loop over the grid and launch it as kernel[blocks, threads]"
        )


def most_blocks(kernel: Kernel, max_blocks: Any) -> int:
    """Return `max_blocks` as an int."""
    try:
        most = operator.index(max_blocks)
    except TypeError:
        raise NumbridgeTypeError(f"max_blocks of kernel {kernel.name!r}: wanted an int, got {max_blocks!r}") from None
    if most < 0:
        raise NumbridgeValueError(f"max_blocks of kernel {kernel.name!r}: wanted 0 or more, got {max_blocks}")
    return most


def bracketed(kernel: Kernel, blocks: Any, threads: Any, handle: int, shared: Any) -> Geometry:
    """Return what a launch of blocks and threads comes to, on the stream of a handle, if that is not 0."""
    if shared is not None and not (isinstance(shared, int | np.integer) and shared >= 0):
        raise NumbridgeTypeError(
            f"kernel {kernel.name!r}: shared memory is a number of bytes, 0 or more, got {shared!r}"
        )
    grid, block = _axes(kernel, blocks), _axes(kernel, threads)
    extents = tuple(g * b for g, b in zip(grid, block, strict=True))
    _check_count(kernel, extents)
    check_hardware(kernel, grid, block)
    rank = kernel.source.index_rank
    if rank > _AXES:
        raise NumbridgeValueError(
            f"kernel {kernel.name!r} asks for {rank} thread indices, and [blocks, threads] has {_AXES} axes; launch it with "
            "nb.launch or forall"
        )
    if any(extent != 1 for extent in extents[max(rank, 1) :]):
        raise NumbridgeValueError(
            f"kernel {kernel.name!r} asks for {rank} thread index(es), and [{blocks!r}, {threads!r}] has threads along more axes"
        )
    place = Place("plain", None, int(shared or 0))
    return Geometry(extents[: max(rank, 1)], block, grid, block, grid, place, handle or None)


def _axes(kernel: Kernel, item: Any) -> tuple[int, ...]:
    values = item if isinstance(item, tuple | list) else (item,)
    if not 1 <= len(values) <= _AXES or not all(map(_is_number, values)):
        raise NumbridgeTypeError(
            f"kernel {kernel.name!r}: blocks and threads are ints of 0 or more, or tuples of up to {_AXES} of them, got {item!r}"
        )
    return tuple(int(v) for v in (*values, 1, 1)[:_AXES])


def _is_number(value: Any) -> bool:
    """Tell whether a value counts blocks or threads along an axis."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)
