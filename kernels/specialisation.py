"""Specialisations: how the compiled entry recognises that a launch's arguments are for a variant, as native structures.

A specialisation is a masked word per argument, and the global values that the variant was compiled with. Layout: `table_layout`.
Nothing is checked here: arguments have been, when a specialisation is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels.element_types.element_arguments import inner_dimensions
from numbridge.kernels.extent_checks import extent_rows, whole_numbers
from numbridge.kernels.global_guards import guards
from numbridge.kernels.language.reaches import Demand
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.parameter_types import (
    ArrayType,
    ParameterType,
    ScalarType,
    block_offsets,
    read_for_a_gradient,
)
from numbridge.kernels.readers import Description

if TYPE_CHECKING:
    from numbridge.kernels.variant import Variant

__all__ = ["Specialisation", "mask", "specialisation"]

_ARRAY_MASK = (
    0xFFFFFFFF | 0xFF << nb.WORD_NDIM | nb.CLASS_MASK << nb.WORD_CLASS | 0xFF << nb.WORD_DEVICE | nb.CONTIGUOUS
)
_ARRAY_MASK |= nb.UNSURE | nb.MISALIGNED
_SCALAR_MASK = 0xFFFFFFFF | nb.CLASS_MASK << nb.WORD_CLASS | nb.TOO_BIG | nb.STRONG
_ELEMENT_MASK = 0xFFFFFFFF | nb.CLASS_MASK << nb.WORD_CLASS
_WRITTEN_MASK = nb.READ_ONLY | nb.REPEATED


@dataclass(frozen=True, eq=False)
class Specialisation:
    """What the compiled entry compares arguments with, and knows a variant by.

    Attributes
    ----------
    words : ndarray of int64
        The native structure.
    kept : tuple
        What it points to, which must live as long.
    """

    words: np.ndarray[Any, np.dtype[np.int64]]
    kept: tuple[Any, ...]

    @property
    def address(self) -> int:
        """Where the native structure lies."""
        return self.words.ctypes.data

    def stop_asking(self) -> None:
        """Let compiled code ask no more whether a gradient is lost where an array is read."""
        asks = self.words[(nb.SPEC_PARAMETERS + nb.PARAM_ASKS) // 8 :: nb.PARAM_SIZE // 8]
        asks[asks == nb.TRACKED] = 0


def mask(parameter: ParameterType, found: Description) -> int:
    """Return which bits of an argument's word the compiled entry compares."""
    if isinstance(parameter, ScalarType):
        if found.is_array:
            return _ARRAY_MASK
        return _ELEMENT_MASK if parameter.element is not None else _SCALAR_MASK
    return _ARRAY_MASK | (_WRITTEN_MASK if parameter.written else 0)


def specialisation(
    variant: Variant, found: Sequence[Description], dependencies: Sequence[Any], reaches: Sequence[Demand], warns: bool
) -> Specialisation:
    """Return how the compiled entry recognises arguments like these as a variant's.

    Parameters
    ----------
    variant : Variant
        What was compiled for them.
    found : sequence of Description
        The arguments, checked.
    dependencies : sequence
        The global values that the variant was compiled with.
    reaches : sequence of Reach
        How far threads of the kernel are sure to go along axes of its arrays.
    warns : bool
        Whether it is asked if a framework's gradient is lost where an array is read.
    """
    count, words = len(found), nb.PARAM_SIZE // 8
    spec = np.zeros(nb.SPEC_PARAMETERS // 8 + max(count, 1) * words, np.int64)
    offsets = block_offsets(variant.parameters)
    seen = guards(dependencies)
    places = np.array(variant.places, np.int64)
    far = extent_rows(reaches, variant.parameters, whole_numbers(variant.parameters, found))
    inner = [inner_dimensions(p, d) for p, d in zip(variant.parameters, found, strict=True)]
    head = {
        nb.SPEC_COUNT: count,
        nb.SPEC_RUN: variant.address,
        nb.SPEC_SERIAL_BELOW: variant.serial_below,
        nb.SPEC_BLOCK_SIZE: variant.block_size,
        nb.SPEC_GLOBALS: seen.rows.ctypes.data,
        nb.SPEC_GLOBAL_COUNT: len(dependencies),
        nb.SPEC_BRIEF_BELOW: variant.brief_below,
        nb.SPEC_GRAIN: variant.grain,
        nb.SPEC_LAUNCH: variant.launch_function,
        nb.SPEC_HANDLE: variant.address,
        nb.SPEC_DEVICE: variant.device.ordinal,
        nb.SPEC_PLACES: places.ctypes.data,
        nb.SPEC_PLACE_COUNT: len(places),
        nb.SPEC_DIM_COUNT: variant.dims,
        nb.SPEC_TOGETHER: variant.together,
        nb.SPEC_REACHES: far.ctypes.data,
        nb.SPEC_REACH_COUNT: len(far),
    }
    for offset, value in head.items():
        spec[offset // 8] = value
    reads: frozenset[str] = read_for_a_gradient(variant.parameters) if warns else frozenset()
    for k, (parameter, description) in enumerate(zip(variant.parameters, found, strict=True)):
        start, shape = nb.SPEC_PARAMETERS // 8 + k * words, inner[k]
        row = _row(parameter, description, offsets[k], is_read=parameter.name in reads)
        spec[start : start + words] = [*row, 0 if shape is None else shape.ctypes.data]
    return Specialisation(spec, (seen, places, far, inner, tuple(dependencies)))


def _row(parameter: ParameterType, found: Description, offset: int, *, is_read: bool) -> list[int]:
    """Return what stands for a parameter, up to its inner dimensions; `is_read` if a gradient would go through it."""
    compared = mask(parameter, found)
    written = isinstance(parameter, ArrayType) and parameter.written
    asks = nb.GUARDED if written else nb.TRACKED if is_read else 0
    words = _signed(compared), _signed(found.word & compared)
    return [*words, offset, _tag(parameter), written, asks, *_layout(parameter)]


def _tag(parameter: ParameterType) -> int:
    """Return what the compiled entry knows a parameter's kind by."""
    if isinstance(parameter, ArrayType):
        return 0
    return parameter.scalar.tag if parameter.element is None else nb.ELEMENT_TAG


def _layout(parameter: ParameterType) -> tuple[int, int]:
    """Return a parameter's rank and the bytes of an element."""
    if isinstance(parameter, ArrayType):
        return parameter.ndim, parameter.itemsize
    return 0, 0 if parameter.element is None else parameter.element.bytes


def _signed(word: int) -> int:
    """Return a 64-bit word as the signed integer of the same bits."""
    return word - (1 << 64) if word >> 63 else word
