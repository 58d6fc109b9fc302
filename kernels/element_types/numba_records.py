"""Structured NumPy dtypes for Numba: an array of such a dtype is an array of Numba's records, on the memory that is there.

A record that is read out of an array stands for its memory, so that what is stored into its fields is stored in the array. So
records of arrays that a kernel does not write have a type of their own, through which nothing can be stored. Importing this
module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import types
from numba.core.datamodel import models
from numba.core.errors import NumbaError, TypingError
from numba.core.typeconv import Conversion
from numba.extending import lower_cast, register_model
from numba.np.numpy_support import as_dtype, from_dtype

from numbridge.kernels.arithmetic.narrow_floats import NarrowFloat, narrow_float
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.errors import ConversionError
from numbridge.kernels.scalars import ALL

__all__ = ["ReadOnlyRecord", "numba_record", "register_copies", "with_own_records"]


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


class OwnRecord(types.Record):
    """A record whose fields may also be narrow floats, and which says what fields there are where one is not."""

    def __init__(self, fields: Any, size: int, aligned: bool) -> None:
        self.fields = dict(self._normalize_fields(fields))
        self.size, self.aligned, self.bitwidth = size, aligned, size * 8
        # Record's own constructor writes narrow floats as float32, and Numba knows types by their names.
        listed = ",".join(f"{name}[type={part.type.name};offset={part.offset}]" for name, part in self.fields.items())
        types.Type.__init__(self, f"Record({listed};{size};{aligned})")

    @property
    def members(self) -> list[tuple[str, Any]]:
        """Names and types for the NumPy dtype that Numba makes of them; narrow floats as integers of their size."""
        return [(name, _stored(part.type)) for name, part in self.fields.items()]

    def typeof(self, key: str) -> Any:
        """Return the type of a field."""
        if key not in self.fields:
            listed = ", ".join(map(repr, self.fields))
            raise TypingError(f"a record has no field {key!r}; the fields are {listed}")
        return self.fields[key].type

    def can_convert_to(self, typing_context: Any, other: Any) -> Any:
        """Nothing but a read-only view of itself: Numba would also take the first fields of a record, with a warning."""
        return Conversion.safe if isinstance(other, ReadOnlyRecord) and other.record == self else None


class ReadOnlyRecord(OwnRecord):
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

    def unify(self, typing_context: Any, other: Any) -> Any:
        """A variable that holds records that may be written on other paths is only read through."""
        return self if other == self.record else None


def _stored(kind: Any) -> Any:
    return getattr(types, f"uint{kind.bitwidth}") if isinstance(kind, NarrowFloat) else kind


def register_copies(register: Any) -> None:
    """Let a back end's code store read-only records, and read through others; `register` is its ``lower_cast``."""

    @register(ReadOnlyRecord, types.Record)
    @register(OwnRecord, ReadOnlyRecord)
    def same_memory(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
        return value


register_model(OwnRecord)(models.RecordModel)
register_model(ReadOnlyRecord)(models.RecordModel)
register_copies(lower_cast)
register_model(ReadOnlyNested)(models.NestedArrayModel)


def _read_only(kind: Any) -> Any:
    if isinstance(kind, types.Record):
        return ReadOnlyRecord(kind)
    return ReadOnlyNested(kind) if isinstance(kind, types.NestedArray) else kind


def _numba_type(dtype: np.dtype[Any]) -> Any:
    """Return the Numba type of a field; that of narrow floats is theirs, which are computed with in float32."""
    if dtype.subdtype is not None:
        inner = _numba_type(dtype.base)
        if isinstance(inner, NarrowFloat):
            raise NumbaError(f"an array of {dtype.base} within a record; use a field for each number, or float32")
        return types.NestedArray(inner, dtype.shape)
    if dtype.fields is not None:
        fields = [
            (name, {"type": _numba_type(kind), "offset": offset, "title": title[0] if title else None})
            for name, (kind, offset, *title) in dtype.fields.items()
        ]
        return OwnRecord(fields, dtype.itemsize, dtype.isalignedstruct)
    row = next((row for row in ALL if row.numpy == dtype), None)
    return (row and narrow_float(row)) or from_dtype(dtype)


def with_own_records(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a text refers to, with the types of arguments' records for structured dtypes and for Numba's records.

    So local and shared memory holds what arguments hold.
    """
    return {name: _own_record(value) for name, value in namespace.items()}


def _own_record(value: Any) -> Any:
    if isinstance(value, types.Record) and not isinstance(value, OwnRecord):
        value = as_dtype(value)
    return _numba_type(value) if isinstance(value, np.dtype) and value.names is not None else value


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
        kind = _numba_type(dtype)
    except NumbaError as error:
        raise ConversionError(f"{record.name} has fields that kernels do not take: {error}") from None
    return kind if written else ReadOnlyRecord(kind)
