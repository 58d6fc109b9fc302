"""Threads per block, as launches are told them: an int, or a number for each axis of the launch. Compiles nothing.

An int stands for threads along the first index, where the kernel asks for its block, and otherwise for whatever shape suits
the launch on CUDA. A tuple gives the shape: its entries go with the launch's dimensions, in their order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbridge.kernels.cuda_backend.grid_source import (
    BLOCK_LIMITS,
    GRID_LIMITS,
    block_shape,
    extents,
    grid_shape,
    runs_along,
)
from numbridge.kernels.errors import NumbridgeTypeError, NumbridgeValueError, shown
from numbridge.kernels.kernel import Kernel

__all__ = ["BlockDim", "block_axes", "block_dim_of", "check_hardware", "cuda_block_of", "cuda_shapes"]

BlockDim = int | tuple[int, ...]
_AXES = 3
# The most threads of a block, on every device: CUDA C++ Programming Guide, "Compute Capabilities".
_MAX_BLOCK = 1024
_INTS = f"wanted an int from 1 to {_MAX_BLOCK}"


def block_dim_of(kernel: Kernel, block_dim: Any, rank: int | None = None) -> BlockDim:
    """Return `block_dim` as an int or a tuple of ints.

    Parameters
    ----------
    kernel : Kernel
        What is launched.
    block_dim : object
        What was given.
    rank : int, optional
        How many dimensions the launch has, if that is known.

    Raises
    ------
    NumbridgeTypeError
        If it is no int and no tuple of ints.
    NumbridgeValueError
        If CUDA has no such block, or the launch has fewer axes.
    """
    what = f"block_dim of kernel {kernel.name!r}"
    if not isinstance(block_dim, tuple | list):
        size = _int(what, block_dim, block_dim)
        if not 1 <= size <= _MAX_BLOCK:
            raise NumbridgeValueError(f"{what}: {_INTS}, got {shown(block_dim)}")
        return size
    sizes = tuple(_int(what, size, block_dim) for size in block_dim)
    most = _AXES if rank is None else min(rank, _AXES)
    if not 1 <= len(sizes) <= most:
        where = "" if rank is None else f", since the launch has {rank} dimension(s)"
        raise NumbridgeValueError(
            f"{what}: wanted an int, or a tuple of 1 to {most} ints{where}, got {shown(block_dim)}"
        )
    if min(sizes) < 1:
        raise NumbridgeValueError(f"{what}: wanted 1 thread or more along each axis, got {shown(block_dim)}")
    if math.prod(sizes) > _MAX_BLOCK:
        raise NumbridgeValueError(
            f"{what}: wanted up to {_MAX_BLOCK} threads in all, got {shown(block_dim)}, which are {shown(math.prod(sizes))}"
        )
    if rank is not None:
        _check_limits(what, kernel, sizes, rank)
    return sizes


def check_hardware(kernel: Kernel, grid: Sequence[int], block: Sequence[int]) -> None:
    """Refuse blocks and grids along x, y and z that CUDA does not have, on every device.

    Raises
    ------
    NumbridgeValueError
        If there are too many threads in a block, or too many threads or blocks along one axis.
    """
    if math.prod(block) > _MAX_BLOCK:
        raise NumbridgeValueError(
            f"kernel {kernel.name!r}: {tuple(block)} are {math.prod(block)} threads in a block, and CUDA has up to {_MAX_BLOCK}; "
            "take more blocks of fewer threads"
        )
    for what, sizes, limits in (("threads in a block", block, BLOCK_LIMITS), ("blocks", grid, GRID_LIMITS)):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if size > limit:
                way = "take larger blocks" if axis == "x" and what == "blocks" else "put more along x"
                raise NumbridgeValueError(
                    f"kernel {kernel.name!r}: {tuple(sizes)} are {size} {what} along {axis}, and CUDA has up to {limit} "
                    f"there; {way}"
                )


def _int(what: str, size: Any, given: Any) -> int:
    try:
        if not isinstance(size, bool | np.bool_):
            return operator.index(size)
    except TypeError:
        pass
    raise NumbridgeTypeError(f"{what}: {_INTS}, or a tuple of up to {_AXES} ints, got {given!r}")


def _check_limits(what: str, kernel: Kernel, sizes: tuple[int, ...], rank: int) -> None:
    source = kernel.source
    # Without coroutines the CPU tells such a kernel its block from the third index alone.
    if rank > _AXES and sizes[2:] not in ((), (1,)) and source.asks_for_block and not source.works_in_blocks:
        raise NumbridgeValueError(
            f"{what}: wanted 1 thread along axis 2, which the last two of four indices share, got {sizes!r}"
        )
    shape = shaped(sizes, rank, first_along_x=kernel.source.asks_for_block) if kernel.source.index_rank else None
    for axis, size, limit in zip("xyz", shape or (), BLOCK_LIMITS, strict=False):
        if size > limit:
            place = sizes.index(size)
            raise NumbridgeValueError(
                f"{what}: wanted up to {limit} threads along axis {place}, which is {axis} on CUDA, got {sizes!r}"
            )


def block_axes(block_dim: BlockDim) -> tuple[int, int, int]:
    """Return how many threads a block has along each of the launch's first three axes, as the CPU shows it to the kernel."""
    first, second, third = (*(block_dim if isinstance(block_dim, tuple) else (block_dim,)), 1, 1)[:_AXES]
    return first, second, third


def shaped(sizes: tuple[int, ...], rank: int, *, first_along_x: bool) -> tuple[int, int, int] | None:
    """Return the hardware's block of a shape; None if the indices do not have an axis each, and only its size counts."""
    if first_along_x:
        return block_axes(sizes)
    axes = runs_along(rank, first_along_x=False)
    if any(len(indices) != 1 for indices in axes):
        return None
    padded = (*sizes, *[1] * rank)
    x, y, z = (*(padded[index] for (index,) in axes), 1, 1)[:_AXES]
    return x, y, z


def cuda_block_of(kernel: Kernel, block_dim: BlockDim, rank: int) -> tuple[int, int, int] | None:
    """Return the hardware's block if it is known without the extents of a launch of `rank` dimensions, or None."""
    first = kernel.source.asks_for_block
    if kernel.source.index_rank == 0 or not (first or isinstance(block_dim, tuple)):
        return None
    return shaped(block_dim if isinstance(block_dim, tuple) else (block_dim,), rank, first_along_x=first)


def cuda_shapes(
    kernel: Kernel, dims: Sequence[int], block_dim: BlockDim, max_blocks: int = 0
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the hardware's grid and block on CUDA for a launch's dimensions, with at most `max_blocks` blocks if not 0."""
    first = kernel.source.asks_for_block
    # Without thread indices the ids are only counted, along x.
    along = extents(dims if kernel.source.index_rank else (math.prod(dims),), first_along_x=first)
    block = cuda_block_of(kernel, block_dim, len(dims))
    if block is None:
        block = block_shape(along, math.prod(block_axes(block_dim)), first_along_x=first)
    return grid_shape(along, block, max_blocks, whole=first), block
