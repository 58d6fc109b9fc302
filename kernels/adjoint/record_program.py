"""Records in a program: every field that a kernel touches is an array of its own, whose index begins with the record's.

So whether a field takes part in a derivative does not depend on the other fields, and no operation knows of records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.ir import Array, Names, Value
from numbridge.kernels.arithmetic.narrow_floats import NarrowFloat
from numbridge.kernels.element_types.record_fields import is_aligned, leaves, overlap

__all__ = ["MOST_COPIED", "Fields", "Records", "copied_parts", "inner_places", "same_record", "why_no_derivative"]

MOST_COPIED = 256  # numbers of a record that is copied at once, each of which is written out


@dataclass(frozen=True)
class Records:
    """Records of an array, or a field of theirs that holds fields: those that leading indices select.

    Attributes
    ----------
    array : Array
        Of records.
    index : tuple of Value
        As many of the indices of `extents` as are known.
    path : tuple of str
        The fields that have been entered.
    type : Numba type
        The record type that the path leads to.
    extents : tuple of int
        The dimensions within the fields of the path, which follow those of the array.
    """

    array: Array
    index: tuple[Value, ...]
    path: tuple[str, ...]
    type: Any
    extents: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        """How many indices select one record."""
        return self.array.ndim + len(self.extents)

    @property
    def name(self) -> str:
        """What messages call it."""
        return _label(self.array, self.path)

    def entered(self, name: str) -> Records | None:
        """Return the field of a name, whatever it holds; None if there is none."""
        found = self.type.fields.get(name)
        if found is None:
            return None
        kind, extents = found.type, self.extents
        while isinstance(kind, types.NestedArray):
            kind, extents = kind.dtype, (*extents, *kind.shape)
        return replace(self, path=(*self.path, name), type=kind, extents=extents)


def _label(array: Array, path: tuple[str, ...]) -> str:
    return array.name + "".join(f".{name}" if name.isidentifier() else f"[{name!r}]" for name in path)


class Fields:
    """The fields that a kernel touches."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[tuple[Array, tuple[str, ...]], Array] = {}

    @property
    def arrays(self) -> list[Array]:
        """All of them."""
        return list(self._known.values())

    def array(self, place: Records) -> Array:
        """Return the array of a field that holds no fields."""
        key = (place.array, place.path)
        if key not in self._known:
            record = place.array.dtype
            number = next(k for k, leaf in enumerate(leaves(record)) if leaf.path == place.path)
            self._known[key] = Array(
                self._names.fresh(f"{place.array.name}_{'_'.join(filter(str.isidentifier, place.path))}"),
                place.type,
                place.ndim,
                extents=place.extents,
                owner=place.array,
                leaf=number,
                label=place.name,
                misaligned=not is_aligned(record),
            )
        return self._known[key]

    def parts(self, array: Array) -> Array:
        """Return an array of complex numbers as one of their parts, which are pairs."""
        kind = inference.parts_of(array.dtype)
        made = Array(self._names.fresh(f"{array.name}_parts"), kind, array.ndim, owner=array, label=array.called)
        return self._known.setdefault((array, ()), made)

    def components(self, array: Array) -> Array:
        """Return the components of an array of elements, or of complex numbers."""
        kind = inference.parts_of(array.dtype) or array.dtype
        extents = kind.element.extents
        made = Array(
            self._names.fresh(f"{array.name}_components"),
            kind.dtype,
            array.ndim + len(extents),
            extents=extents,
            owner=array,
            leaf=int(kind is not array.dtype),
            label=array.called,
            whole=kind,
        )
        return self._known.setdefault((array, ()), made)


def why_no_derivative(place: Records) -> str | None:
    """Return what is wrong with a field that holds no fields, and what to do; None if nothing is."""
    if overlap(place.array.dtype):
        return (
            f"fields of {place.array.name} share bytes, through which no gradient can be carried; use a dtype whose fields do "
            "not overlap"
        )
    if isinstance(place.type, NarrowFloat):
        name = place.type.name.removeprefix("stored_")
        return f"{place.name} is {name}, and derivatives are computed in float32 and float64; use a field of float32"
    if isinstance(place.type, types.Complex):
        return f"{place.name} is {place.type}, and complex numbers have no derivative here; use fields for both parts"
    if not isinstance(place.type, types.Integer | types.Boolean) and not inference.is_float_type(place.type):
        return f"{place.name} holds {place.type}, which is no number"
    return None


def copied_parts(place: Records) -> list[Records]:
    """Return the fields of a record that hold no fields themselves."""
    found = []
    for leaf in leaves(place.type):
        part: Records | None = place
        for name in leaf.path:
            part = None if part is None else part.entered(name)
        assert part is not None
        found.append(part)
    return found


def same_record(a: Any, b: Any) -> bool:
    """Tell whether two types of records have the same fields at the same places; one may be read-only."""
    return bool(leaves(a) == leaves(b) and a.size == b.size)


def inner_places(extents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every index of some dimensions."""
    if not extents:
        yield ()
        return
    for k in range(extents[0]):
        yield from ((k, *rest) for rest in inner_places(extents[1:]))
