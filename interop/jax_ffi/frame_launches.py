"""A call of the handler as launches that messages can speak of: one for each element of its batch, read from its frame.

For what is not on the fast road: explanations. Memory is read only while XLA waits for the answer; nothing is written.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.frames import Buffer, Frame
from numbridge.kernels.extent_checks import Launched
from numbridge.kernels.parameter_types import ArrayType, ParameterType, is_signed
from numbridge.operators.element_dims import inner_extents

__all__ = ["counts_of", "launches_of", "numbers_of", "slots_of"]

_AXES = 3


def slots_of(words: Any) -> Any:
    """Return the words of each parameter."""
    first, count, size = nb.WORD_PARAMETERS // 8, int(words[nb.WORD_COUNT // 8]), nb.SLOT_SIZE // 8
    return words[first : first + count * size].reshape(count, size)


def launches_of(frame: Frame, words: Any, parameters: Sequence[ParameterType], first: int) -> Iterator[Launched]:
    """Return what each element of a call's batch knows of itself as a launch, from one of them on.

    Parameters
    ----------
    frame : Frame
        The call.
    words : ndarray of int64
        Those of its call site.
    parameters : sequence of ParameterType
        What its kernel was compiled for.
    first : int
        The element to begin with.
    """
    inputs, outputs, levels = frame.inputs, frame.outputs, int(words[nb.WORD_LEVELS // 8])
    counts, batch = counts_of(words, inputs), outputs[0].shape[:levels]
    shapes: dict[str, Sequence[int]] = {}
    numbers: dict[str, np.ndarray[Any, Any]] = {}
    for slot, kind in zip(slots_of(words), parameters, strict=True):
        if isinstance(kind, ArrayType):
            buffer = (outputs if slot[nb.SLOT_KIND // 8] == nb.RESULT else inputs)[slot[nb.SLOT_INDEX // 8]]
            shapes[kind.name] = buffer.shape[levels : levels + kind.ndim]
        elif is_signed(kind):
            numbers[kind.name] = np.broadcast_to(numbers_of(words, slot, kind, inputs, _read), batch).ravel()
    for element in range(first, math.prod(batch)):
        yield Launched(counts, shapes, {name: int(given[element]) for name, given in numbers.items()})


def counts_of(words: Any, inputs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Return a launch's dimensions, and those of its blocks and grid; of operands that have a shape."""
    dims = [*map(int, words[nb.WORD_DIMS // 8 :][: words[nb.WORD_RANK // 8]])]
    for k, value in enumerate(dims):
        if value < 0:
            operand, axis = divmod(-1 - value, 1 << nb.REFERENCE_SHIFT)
            dims[k] = inputs[operand].shape[axis]
    block = tuple(map(int, words[nb.WORD_BLOCK // 8 :][:_AXES]))
    grid = tuple(-(-extent // size) for extent, size in zip([*dims, 1, 1, 1], block, strict=False))
    return {"dim": tuple(dims), "blockDim": block, "gridDim": grid}


def numbers_of(
    words: Any, slot: Any, kind: ParameterType, inputs: Sequence[Any], read: Callable[[Any, int, int], bytes]
) -> np.ndarray[Any, Any]:
    """Return a number, vector or matrix by value, or one for each element of a batch, whose axes come first.

    Parameters
    ----------
    words : ndarray of int64
        Those of the call site.
    slot, kind
        The parameter's words and its type.
    inputs : sequence
        The operands.
    read : callable
        ``read(operand, start, size)`` returns some of an operand's bytes.
    """
    source, index, dtype = int(slot[nb.SLOT_KIND // 8]), int(slot[nb.SLOT_INDEX // 8]), kind.scalar.numpy
    shape = inputs[index].shape if source == nb.TRACED else inner_extents(kind.element)
    size = math.prod(shape) * dtype.itemsize
    if source == nb.TRACED:
        found = read(inputs[index], 0, size)
    elif source == nb.PACKED:
        found = read(inputs[0], nb.SCALAR_ROOM * index, size)
    elif kind.element is None:
        found = slot[nb.SLOT_VALUE // 8 :].tobytes()[:size]
    else:
        start = int(slot[nb.SLOT_VALUE // 8])
        found = words.tobytes()[start : start + size]
    return np.frombuffer(found, dtype).reshape(shape)


def _read(buffer: Buffer, start: int, size: int) -> bytes:
    return ctypes.string_at(buffer.data + start, size)
