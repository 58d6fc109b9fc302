"""Constant indices that a vector or a matrix does not have, found in what Numba has typed.

Numba types an index that stands in the source as any int, so that nothing can refuse it before. An index that is computed is
checked where the kernel checks its bounds, by `cpu_bounds`. Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numba import types

from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.element_types.numba_element_stores import NAMES, part_of
from numbridge.kernels.element_types.numba_elements import NumbaElement
from numbridge.kernels.errors import KernelError

__all__ = ["check_components"]

# What stores into components have become: functions whose second argument is the index, and one that is told the way.
_STORES = (NAMES["_nb_replaced"], NAMES["_nb_put_back"])
_PUT_PART = NAMES["_nb_put_part"]


def check_components(compiled: Iterable[Any], entry: str, origin: Callable[[int], str | None]) -> None:
    """Refuse a kernel that indexes a vector or a matrix by a constant beyond its extent.

    Parameters
    ----------
    compiled : iterable
        What Numba has compiled of the kernel and its device functions.
    entry : str
        The kernel's name.
    origin : callable
        Returns where a line of the generated source comes from, or None.

    Raises
    ------
    KernelError
        With the index, the element, and the place in the source.
    """
    for overload in compiled:
        annotation = getattr(overload, "type_annotation", None)
        for kind, index, line in _indexed(annotation) if annotation is not None else ():
            extents = kind.extents
            for axis, (place, extent) in enumerate(zip(index, extents, strict=False)):
                if type(place) is int and not -extent <= place < extent:
                    where = origin(line)
                    raise KernelError(
                        f"kernel {entry!r}: index {place} is out of range for axis {axis} of a {kind.name}, whose extent "
                        f"is {extent}" + ("" if where is None else f"\n  {where}")
                    )


def _indexed(annotation: Any) -> Iterator[tuple[ElementType, tuple[Any, ...], int]]:
    """Yield the elements that are indexed, by what, and in which line; None for an index that is computed."""
    for expression, signature in annotation.calltypes.items():
        arguments = () if signature is None else signature.args
        operation = getattr(expression, "op", None)
        called = _called(annotation, expression) if operation == "call" else None
        if called is _PUT_PART:
            target, way, steps = (annotation.typemap[given.name] for given in expression.args[:3])
            yield from _on_the_way(target, way, steps, expression.loc.line)
            continue
        if not arguments or not isinstance(arguments[0], NumbaElement):
            continue
        if operation == "static_getitem":
            index = expression.index
        elif called in _STORES:
            index = _constant(annotation.typemap[expression.args[1].name])
        else:
            continue
        yield arguments[0].element, index if isinstance(index, tuple) else (index,), expression.loc.line


def _on_the_way(target: Any, way: Any, steps: Any, line: int) -> Iterator[tuple[ElementType, tuple[Any, ...], int]]:
    """Yield the elements that a store of several steps indexes."""
    found = part_of(target, way.literal_value.split(","), steps)
    for index in found.inner if found is not None else ():
        yield index.element, (*(None for _ in range(index.axis)), _constant(index.type)), line


def _constant(kind: Any) -> Any:
    """Return the value of an index of which Numba knows it from its type, or None."""
    if isinstance(kind, types.BaseTuple):
        return tuple(_constant(part) for part in kind)
    return kind.literal_value if isinstance(kind, types.IntegerLiteral) else None


def _called(annotation: Any, call: Any) -> Any:
    """Return the function that is called, or None."""
    return getattr(annotation.typemap.get(call.func.name), "typing_key", None)
