"""Constant indices that a vector or a matrix does not have, and too many or too few names for its parts, found in what Numba
has typed.

Numba types an index that stands in the source as any int, so that nothing can refuse it before, and does not tell what is
unpacked how many names there are. An index that is computed is checked where the kernel checks its bounds, by `cpu_bounds`.
Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numba import types

from numbridge.kernels.element_types.elements import ElementType, beyond
from numbridge.kernels.element_types.numba_element_stores import NAMES, part_of
from numbridge.kernels.element_types.numba_elements import NumbaElement
from numbridge.kernels.errors import KernelError

__all__ = ["check_components", "unpacked_wrongly"]

# What stores into components have become: functions whose second argument is the index, and one that is told the way.
_STORES = (NAMES["_nb_replaced"], NAMES["_nb_put_back"])
_PUT_PART = NAMES["_nb_put_part"]


def check_components(compiled: Iterable[Any], entry: str, origin: Callable[[int], str | None]) -> None:
    """Refuse a kernel that indexes a vector or a matrix by a constant beyond its extent, or unpacks it into other than its parts.

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
        With the index or the number of names, the element, and the place in the source.
    """
    for overload in compiled:
        annotation = getattr(overload, "type_annotation", None)
        for kind, count, line in _unpacked(annotation) if annotation is not None else ():
            if count != kind.extents[0]:
                raise _error(entry, unpacked_wrongly(kind, count), origin(line))
        for kind, index, line in _indexed(annotation) if annotation is not None else ():
            wrong = beyond(kind, index)
            if wrong is not None:
                raise _error(entry, wrong, origin(line))


def _error(entry: str, wrong: str, where: str | None) -> KernelError:
    return KernelError(f"kernel {entry!r}: {wrong}" + ("" if where is None else f"\n  {where}"))


def unpacked_wrongly(kind: ElementType, count: int) -> str:
    """Return what is wrong where an element is unpacked into a number of names that is not that of its parts."""
    parts = "components" if len(kind.extents) == 1 else "rows"
    return f"a {kind.name} has {kind.extents[0]} {parts}, and is unpacked into {count} name{'' if count == 1 else 's'}"


def _unpacked(annotation: Any) -> Iterator[tuple[ElementType, int, int]]:
    """Yield the elements that are unpacked, into how many names, and in which line."""
    for block in annotation.blocks.values():
        for statement in block.body:
            expression: Any = getattr(statement, "value", None)
            if getattr(expression, "op", None) == "exhaust_iter":
                kind = annotation.typemap[expression.value.name]
                if isinstance(kind, NumbaElement):
                    yield kind.element, expression.count, expression.loc.line


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
        if operation == "static_getitem":  # a slice of an element has no signature of `getitem`, which this is of
            kind, index = annotation.typemap[expression.value.name], expression.index
            if isinstance(kind, NumbaElement):
                yield kind.element, index if isinstance(index, tuple) else (index,), expression.loc.line
            continue
        if not arguments or not isinstance(arguments[0], NumbaElement):
            continue
        if called in _STORES:
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
