"""A call as the handler reads it: the words of its call site (see `words_layout`). Pure; makes no JAX values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.plan import Call, buffer_scalar, by_reference
from numbridge.kernels.block_dims import block_axes, cuda_block_of, cuda_shapes
from numbridge.kernels.parameter_types import ArrayType
from numbridge.operators.element_dims import inner_extents

__all__ = ["words"]

_CODES = dict(xla.DATA_TYPES)


def _cuda_grid(call: Call, *, is_symbolic: bool) -> tuple[int, ...]:
    """Return the hardware's grid and block on CUDA, with zeros for what only the extents tell."""
    if is_symbolic:
        block = cuda_block_of(call.kernel, call.options.block_dim, len(call.dims))
        return (0, 0, 0, *(block or (0, 0, 0)))
    grid, block = cuda_shapes(call.kernel, call.dims, call.options.block_dim)
    return (*grid, *block)


def words(call: Call, references: Sequence[int] = ()) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the words of a call site.

    Parameters
    ----------
    call : Call
        The call.
    references : sequence of int
        For symbolic dimensions, the words that say where the handler finds the launch dimensions.
    """
    size = nb.SLOT_SIZE // 8
    tail = nb.WORD_PARAMETERS // 8 + len(call.slots) * size
    # The values of static vectors and matrices come last.
    long = [
        slot.value.ljust(-(-len(slot.value) // 8) * 8, b"\0") if kind.element is not None else b""
        for slot, kind in zip(call.slots, call.types, strict=True)
    ]
    made = np.concatenate([np.zeros(tail, np.int64), np.frombuffer(b"".join(long), np.int64)])
    dims = references or call.dims
    head = {
        nb.WORD_MAGIC: nb.WORDS_MAGIC,
        nb.WORD_KEY: call.key[0],
        nb.WORD_KEY_HIGH: call.key[1],
        nb.WORD_LEVELS: len(call.batch),
        nb.WORD_COUNT: len(call.slots),
        nb.WORD_OPERANDS: call.operands + bool(references),
        nb.WORD_RESULTS: len(call.results),
        nb.WORD_RANK: len(dims),
        nb.WORD_WEAK: targets.WEAK.index(call.weak),
        nb.WORD_LENGTH: len(made),
        nb.WORD_UNKNOWN: nb.BLOCKS_BIT | targets.number_bits(call.types, by_reference(call.types, call.slots)),
    }
    for offset, value in head.items():
        made[offset // 8] = value
    made[nb.WORD_DIMS // 8 : nb.WORD_DIMS // 8 + len(dims)] = dims
    block = block_axes(call.options.block_dim)
    made[nb.WORD_BLOCK // 8 : nb.WORD_BLOCK // 8 + 3] = block
    # An axis that the launch does not have is one block wide; one whose extent is not known is left to the handler.
    extents = [*(0 if extent < 0 else extent for extent in dims), 1, 1, 1][:3]
    grid = [-(-extent // size) for extent, size in zip(extents, block, strict=True)]
    made[nb.WORD_GRID // 8 : nb.WORD_GRID // 8 + 3] = grid
    made[nb.WORD_CUDA_GRID // 8 : nb.WORD_CUDA_BLOCK // 8 + 3] = _cuda_grid(call, is_symbolic=bool(references))
    for k, (slot, kind) in enumerate(zip(call.slots, call.types, strict=True)):
        ndim = kind.ndim if isinstance(kind, ArrayType) else 0
        itemsize = kind.scalar.itemsize if kind.element is None else kind.element.bytes
        ranks = ndim | len(inner_extents(kind.element)) << nb.INNER_SHIFT
        row = [slot.kind, slot.index, _CODES[buffer_scalar(kind).name], ranks, itemsize, slot.alias, slot.fill]
        if kind.element is None:
            number = np.frombuffer(slot.value.ljust(nb.SCALAR_ROOM, b"\0"), np.int64)
        else:
            number, tail = np.array([8 * tail, 0]), tail + len(long[k]) // 8
        start = nb.WORD_PARAMETERS // 8 + k * size
        made[start : start + size] = [*row, *number]
    return made
