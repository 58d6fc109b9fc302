"""Structured NumPy dtypes for Numba: an array of such a dtype is an array of Numba's records, on the memory that is there.

A record that is read out of an array stands for its memory, so that what is stored into its fields is stored in the array. So
records of arrays that a kernel does not write have a type of their own, through which nothing can be stored. Importing this
module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import types
from numba.core.datamodel import models
from numba.core.errors import NumbaError
from numba.core.typeconv import Conversion
from numba.extending import lower_cast, register_model
from numba.np.numpy_support import from_dtype

from numbridge.kernels.elements import ElementType
from numbridge.kernels.errors import ConversionError

__all__ = ["ReadOnlyRecord", "numba_record", "register_copies"]


class ReadOnlyNested(types.NestedArray):
    """An array in a record whose elements are only read."""

    def __init__(self, nested: types.NestedArray) -> None:
        super().__init__(nested.dtype, nested.shape)
        self.name: str = f"read-only {types.NestedArray(nested.dtype, nested.shape).name}"
        self.mutable = False

    @property
    def key(self) -> Any:
        """What tells types apart."""
        return self.name


class ReadOnlyRecord(types.Record):
    """A record whose fields are only read."""

    def __init__(self, record: types.Record) -> None:
        self.record = record
        self.fields = {name: field._replace(type=_read_only(field.type)) for name, field in record.fields.items()}
        # Record's own constructor would name it alike, and Numba knows types by their names.
        self.size, self.aligned = record.size, record.aligned
        types.Type.__init__(self, f"read-only {record.name}")
        self.bitwidth = record.bitwidth

    def can_convert_to(self, typing_context: Any, other: Any) -> Any:
        """Store it into a record that may be written, which copies it; no variable becomes one through which it is written."""
        return Conversion.unsafe if other == self.record else None


def register_copies(register: Any) -> None:
    """Let a back end's code store read-only records; `register` is its ``lower_cast``."""

    @register(ReadOnlyRecord, types.Record)
    def copied(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
        return value


register_model(ReadOnlyRecord)(models.RecordModel)
register_copies(lower_cast)
register_model(ReadOnlyNested)(models.NestedArrayModel)


def _read_only(kind: Any) -> Any:
    if isinstance(kind, types.Record):
        return ReadOnlyRecord(kind)
    return ReadOnlyNested(kind) if isinstance(kind, types.NestedArray) else kind


@functools.cache
def numba_record(record: ElementType, *, written: bool) -> Any:
    """Return the Numba type of the records of a structured dtype.

    Raises
    ------
    ConversionError
        If Numba has no type for one of the fields.
    """
    dtype: Any = record.fields
    try:
        kind = from_dtype(dtype)
    except NumbaError as error:
        raise ConversionError(f"{record.name} has fields that Numba does not know: {error}") from None
    return kind if written else ReadOnlyRecord(kind)
