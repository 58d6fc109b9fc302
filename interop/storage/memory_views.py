"""Views: records on the memory of another array, which keep whoever owns it alive. No array is made here, and nothing copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numbridge.kernels.element_types.element_arguments import element_flags
from numbridge.kernels.element_types.elements import by_number
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.storage import strided
from numbridge.storage.memory import native

if TYPE_CHECKING:
    from numbridge.arrays.array import Array

__all__ = ["ViewedMemory"]


class ViewedMemory:
    """What an array's record says, for making another record on the same memory; strides count scalars.

    The dimensions of vectors and matrices stay out of sight, and are those of every record that is made.
    """

    __slots__ = ("address", "capsule", "element", "itemsize", "ordinal", "shape", "strides", "word")

    def __init__(self, array: Array) -> None:
        self.capsule = array._record
        self.word, self.address, self.shape, strides, self.ordinal = native().describe(self.capsule)
        self.itemsize = size = (self.word >> 8 & 0xFF) >> 3
        self.element = by_number(self.word >> nb.WORD_ELEMENT & 0xFFFF)
        self.strides = tuple([step // size for step in strides])

    def record(self, shape: tuple[int, ...], strides: strided.Strides, offset: int = 0, tag: int = 0) -> Any:
        """Return the record of a view, of the same dtype without a tag; it keeps the memory's owner alive."""
        word = self.word
        flags = (dl.FLAG_READ_ONLY if word & nb.READ_ONLY else 0) | (dl.RECORD_IMMUTABLE if word & nb.IMMUTABLE else 0)
        address = self.address + offset * self.itemsize
        device = dl.CUDA_HOST if word & nb.PINNED else word >> nb.WORD_DEVICE & 0xFF
        tag, element = tag or word & 0xFFFFFFFF, self.element
        if element is not None:
            flags |= element_flags(element)
            shape, strides = (*shape, *element.extents), (*strides, *strided.contiguous(element.extents))
            tag = element.scalar.tag
        return native().new_record(self.capsule, address, tag, device, self.ordinal, shape, strides, flags)

    def record_on(self, device: int) -> Any:
        """Return a record of the same memory under another of the device types that it belongs to."""
        flags = dl.FLAG_READ_ONLY if self.word & nb.READ_ONLY else 0
        place = (self.address, self.word & 0xFFFFFFFF, device, self.ordinal)
        return native().new_record(self.capsule, *place, self.shape, self.strides, flags)
