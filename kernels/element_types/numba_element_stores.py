"""Stores into parts of elements, as generated source calls them: components, rows, and what lies behind several steps.

``v[k] = x`` is ``v = replaced(v, k, x)``, since elements are values. The same text serves where `v` turns out to be an
array, which is then written in place. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

from numbridge.kernels.compilation.built_calls import Body, built
from numbridge.kernels.element_types.elements import OF_CONSTANTS, ElementType, beyond, component, sliced, vector
from numbridge.kernels.element_types.numba_element_memory import scalars_of
from numbridge.kernels.element_types.numba_elements import NumbaElement, at, maker, place_of, with_component, wrap
from numbridge.kernels.element_types.numba_records import ReadOnlyRecord
from numbridge.kernels.language.element_stores import PARTS, sliced_by

__all__ = ["NAMES", "part_of"]

_INLINED = {"forceinline": True}


def _overload(function: Any) -> Callable[[Any], Any]:
    """Return a decorator that overloads a function for both targets.

    Numba compares even the annotations of parameters with those of the implementation, which has none.
    """

    def enter(generated: Any) -> Any:
        generated.__annotations__.clear()
        return overload(function, jit_options=_INLINED)(generated)

    return enter


def _made(text: str, names: dict[str, Any]) -> Any:
    exec(text, names)
    return names["implementation"]


def replaced(target: Any, index: Any, value: Any) -> Any:
    """Marker: `target` with the component or array element at an index replaced."""
    raise NotImplementedError


def put_back(target: Any, index: Any, value: Any) -> Any:
    """Marker: `target` with an element replaced that was changed itself; views of arrays are there already."""
    raise NotImplementedError


@built(replaced)
def _replaced(target: Any, index: Any, value: Any) -> Body | None:
    if isinstance(target, types.Buffer):
        return Body("def implementation(target, index, value):\n    target[index] = value\n    return target", {})
    if isinstance(target, types.Record) and isinstance(index, types.StringLiteral):
        return _in_record("target, index, value", target, index.literal_value)
    if not isinstance(target, NumbaElement):
        return None
    element = target.element
    names = {"set": with_component, "wrap": wrap, "at": at}
    place = place_of(element, index)
    if place is not None and isinstance(value, types.Number | types.Boolean):
        return Body(f"def implementation(target, index, value): return set(target, {place}, value)", names)
    rows = len(element.extents) == 2 and isinstance(index, types.Integer) and isinstance(value, NumbaElement)
    if not rows or value.element.extents != element.extents[1:]:
        return None
    extent, columns = element.extents
    lines = [f"    row = wrap(index, {extent}) * {columns}"]
    lines += [f"    target = set(target, row + {k}, at(value, {k}))" for k in range(columns)]
    return Body("\n".join(["def implementation(target, index, value):", *lines, "    return target"]), names)


def view(target: Any) -> Any:
    """Marker: `target`, a slice that is stored through, which that of a vector or a matrix cannot be."""
    raise NotImplementedError


@built(view)
def _view(target: Any) -> Body:
    if isinstance(target, NumbaElement):
        raise TypingError(
            f"a slice of a vector or a matrix, here a {target.element.name}, is a value of its own, into which nothing is stored "
            "that anybody keeps; store into the whole, as in m[1][0] = value, or give the slice a name"
        )
    return Body("def implementation(target): return target", {})


@functools.cache
def _with_field(name: str) -> Any:
    """Return a compiled function that stores into a field of a record, and returns the record."""

    @intrinsic
    def with_field(typing_context: Any, target: Any, value: Any) -> Any:
        found = typing_context.resolve_setattr(target, name, value)
        if found is None:
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            context.get_setattr(name, found)(builder, arguments)
            return arguments[0]

        return target(target, found.args[1]), generate

    return with_field


def _in_record(parameters: str, target: Any, name: str) -> Body:
    """Return what stores into a field of a record."""
    _refuse_read_only(target)
    return Body(
        f"def implementation({parameters}): return with_field(target, value)", {"with_field": _with_field(name)}
    )


def _refuse_read_only(target: Any) -> None:
    if isinstance(target, ReadOnlyRecord):
        raise TypingError(
            "a store into a record of an array that is read-only; store into the parameter, as in p[i].x = value"
        )


@built(put_back)
def _put_back(target: Any, index: Any, value: Any) -> Body | None:
    if isinstance(value, types.Buffer | types.Record):
        return Body("def implementation(target, index, value): return target", {})
    return _replaced(target, index, value)


def put_part(target: Any, way: Any, steps: Any, value: Any) -> Any:
    """Marker: `target` with what a way of names and indices leads to replaced, and nothing else of it.

    The way is written ``"[],p,x"``, and `steps` has what stands in brackets. Other threads may store other components of one
    element of an array, so these are stored by themselves.
    """
    raise NotImplementedError


@built(put_part, known=("way", "steps"))
def _put_part(target: Any, way: Any, steps: Any, value: Any) -> Body | None:
    if not isinstance(way, types.StringLiteral):
        return None  # Numba comes back with the literal
    start = _through_tuples(Way.of(target, way, steps))
    is_slice = len(start.names) == 1 and sliced_by(start.names[0]) is not None
    if is_slice and isinstance(start.type, types.Buffer):
        lines = [
            f"    array = {start.text}",
            f"    array[{_index_text(start.names[0], 'array')}] = value",
            "    return target",
        ]
        return Body("\n".join(["def implementation(target, way, steps, value):", *lines]), {})
    if is_slice and not isinstance(start.type, NumbaElement):
        return None
    found = part_at(start)
    if found is None and is_slice:
        raise TypingError(f"a slice of a {start.type.element.name} {OF_CONSTANTS}")
    if found is None:
        return _put_through(start, target)
    if found.element is None and isinstance(value, types.Number | types.Boolean):
        parts = ["value"]
    elif found.element is not None and isinstance(value, NumbaElement) and found.holds(value.element):
        parts = [f"at(value, {k})" for k in range(found.element.count)]
    else:
        wanted = "a number" if found.element is None else found.element.__name__
        given = value.element.__name__ if isinstance(value, NumbaElement) else value
        raise TypingError(f"{wanted} can be stored into this part of a {found.whole.__name__}, and not {given}")
    lines = ["def implementation(target, way, steps, value):", f"    first = {' + '.join(found.terms())}"]
    places = range(len(parts)) if found.places is None else found.places
    if isinstance(start.type, NumbaElement):
        lines += [f"    target = set(target, first + {k}, {part})" for k, part in zip(places, parts, strict=True)]
    else:
        index = "".join(f"{text}, " for text in found.index)
        lines.append(f"    whole = scalars_of({start.text})")
        lines += [f"    whole[({index}first + {k},)] = {part}" for k, part in zip(places, parts, strict=True)]
    names = {"scalars_of": scalars_of, "wrap": wrap, "at": at, "set": with_component}
    return Body("\n".join([*lines, "    return target"]), names)


def _index_text(name: str, array: str) -> str:
    """Return the index of an array that a name of a way is, without colons, which `built` text does not know."""
    parts = []
    for axis, part in enumerate(name.split("/")):
        start, colon, rest = part.partition(":")
        stop, _, step = rest.partition(":")
        extent = f"{array}.shape[{axis}]"
        # Behind the first element, seen from the last one, lies what is one further from the end than there are elements.
        first, last = (f"{extent} - 1", f"-1 - {extent}") if step.startswith("-") else ("0", extent)
        parts.append(f"slice({start or first}, {stop or last}, {step or 1})" if colon else part)
    return ", ".join(parts)


@_overload(put_part)
def _put_part_of_record(target: Any, way: Any, steps: Any, value: Any) -> Any:
    """Return what stores into fields of records, among others, which `built` text does not know."""
    body = _put_part(target, way, steps, value)
    return None if body is None else _made(body.text, dict(body.names))


def load_part(target: Any, way: Any, steps: Any) -> Any:
    """Marker: what a way leads to, as for `put_part`; of an element of an array, nothing else of it is loaded.

    Optimised code loads no more anyway. This is for code that notes what is loaded.
    """
    raise NotImplementedError


@built(load_part, known=("way", "steps"))
def _load_part(target: Any, way: Any, steps: Any) -> Body | None:
    if not isinstance(way, types.StringLiteral):
        return None
    head, whole_way = "def implementation(target, way, steps):", Way.of(target, way, steps)
    start = _through_tuples(whole_way)
    is_one, in_memory = isinstance(start.type, NumbaElement), isinstance(start.type, types.Array)
    is_part = is_one or (in_memory and isinstance(start.type.dtype, NumbaElement))
    found = part_at(start) if is_part and start.names else None
    if found is None or (found.element is not None and found.element.family not in ("vector", "matrix")):
        return _taken_by_steps(head, whole_way)
    index = "".join(f"{text}, " for text in found.index)
    count = 1 if found.element is None else found.element.count
    read = "at(whole, first + {})" if is_one else f"whole[({index}first + {{}},)]"
    parts = [read.format(k) for k in (range(count) if found.places is None else found.places)]
    whole = start.text if is_one else f"scalars_of({start.text})"
    lines = [head, f"    first = {' + '.join(found.terms())}", f"    whole = {whole}"]
    names: dict[str, Any] = {"scalars_of": scalars_of, "wrap": wrap, "at": at}
    if found.element is None:
        return Body("\n".join([*lines, f"    return {parts[0]}"]), names)
    lines.append(f"    return make({', '.join(parts)})")
    return Body("\n".join(lines), names | {"make": maker(found.element)})


def _taken_by_steps(head: str, way: Way) -> Body:
    """Return what takes one step of a way after the other."""
    lines, given = [head, "    owner0 = target"], iter(way.steps)
    for k, name in enumerate(way.names):
        read = f".{name}" if sliced_by(name) is None else f"[{_index_text(name, f'owner{k}')}]"
        if name == "[]":
            text, kind = next(given)
            read = f"[{kind.literal_value if isinstance(kind, types.IntegerLiteral) else text}]"
        lines.append(f"    owner{k + 1} = owner{k}{read}")
    return Body("\n".join([*lines, f"    return owner{len(way.names)}"]), {})


@_overload(load_part)
def _load_part_of_others(target: Any, way: Any, steps: Any) -> Any:
    """Return what takes steps that `built` text does not know."""
    body = _load_part(target, way, steps)
    return None if body is None else _made(body.text, dict(body.names))


@dataclass(frozen=True)
class Way:
    """What lies before a store of several steps: something of a Numba type, as `text`, with names and indices to go."""

    text: str
    type: Any
    names: Sequence[str]
    steps: Sequence[tuple[str, Any]]

    @classmethod
    def of(cls, target: Any, way: Any, steps: Any) -> Way:
        """Return the way from `target` that a text says, with the Numba types of its `steps`."""
        return cls("target", target, way.literal_value.split(","), steps_of(steps))


def steps_of(kinds: Any) -> list[tuple[str, Any]]:
    """Return the indices of a way, as expressions of `steps`, with their Numba types."""
    return [(f"steps[{k}]", kind) for k, kind in enumerate(kinds)]


def _through_tuples(way: Way) -> Way:
    """Return what is left of a way behind the tuples at its beginning."""
    while isinstance(way.type, types.BaseTuple):
        if way.names[0] in getattr(way.type, "fields", ()):
            inner = way.type[way.type.fields.index(way.names[0])]
            way = Way(f"{way.text}.{way.names[0]}", inner, way.names[1:], way.steps)
            continue
        if way.names[0] != "[]":
            break
        (text, kind), *left = way.steps
        if isinstance(kind, types.IntegerLiteral) and -len(way.type) <= kind.literal_value < len(way.type):
            text, inner = str(kind.literal_value), way.type[kind.literal_value]
        elif isinstance(way.type, types.UniTuple) and isinstance(kind, types.Integer):
            inner = way.type.dtype
        else:
            break
        way = Way(f"{way.text}[{text}]", inner, way.names[1:], left)
    return way


@dataclass(frozen=True)
class ComponentIndex:
    """An index of components: as an expression, as a Numba type, along which axis of what, and how far apart they lie."""

    text: str
    type: Any
    element: ElementType
    axis: int
    step: int


@dataclass
class ElementPart:
    """A part of an element.

    Attributes
    ----------
    whole : ElementType
        What the element is.
    index : list of str
        Its index in an array, as expressions of `steps`.
    element : ElementType or None
        What the part is; None for a component.
    matrix : ElementType or None
        What the part is a row of.
    offset : int
        Its first component, but for what is computed.
    inner : list of ComponentIndex
        The indices by which it was found.
    places : tuple of int or None
        Where the components of a slice lie behind the first one; None for others, whose components lie in a row.
    """

    whole: ElementType
    index: list[str]
    element: ElementType | None
    matrix: ElementType | None = None
    offset: int = 0
    inner: list[ComponentIndex] = field(default_factory=list)
    places: tuple[int, ...] | None = None

    def terms(self) -> list[str]:
        """Return expressions whose sum is the place of its first component."""
        found = [f"wrap({i.text}, {i.element.extents[i.axis]}) * {i.step}" for i in self.inner]
        return [*found, str(self.offset)]

    def holds(self, element: ElementType) -> bool:
        """Tell whether something of an element type can be stored there."""
        own = self.element
        return element is own or (self.matrix is not None and own is not None and element.extents == own.extents)

    def enter(self, name: str) -> bool:
        """Go on to the part of a name, if there is one."""
        found = None if self.element is None else component(self.element, name)
        if found is None:
            return False
        self.offset += found[0]
        self.element, self.matrix = found[1], None
        return True

    def cut(self, index: Any) -> bool:
        """Go on to a slice, if there is one."""
        found = None if self.element is None else sliced(self.element, index)
        if found is None or self.element is None:
            return False
        wrong = beyond(self.element, index)
        if wrong is not None:
            raise TypingError(wrong)
        (self.places, self.element), self.matrix = found, None
        return True

    def select(self, given: Sequence[tuple[str, Any]], *, many: bool) -> bool:
        """Go on to the component, or the row of a matrix, of an index or a tuple of `many`, if there is one."""
        if self.element is None or (many and not len(given) == len(self.element.extents) == 2):
            return False
        extents, scalar = self.element.extents, self.element.scalar
        if len(extents) == 1:
            self.inner.append(ComponentIndex(*given[0], self.element, 0, 1))
            self.element = self.matrix = None
            return True
        self.inner += [
            ComponentIndex(*part, self.element, axis, (extents[1], 1)[axis]) for axis, part in enumerate(given)
        ]
        self.element, self.matrix = (None, None) if many else (vector(extents[1], scalar), self.element)
        return True


def part_of(target: Any, names: Sequence[str], steps: Any) -> ElementPart | None:
    """Return the part of an element that a way leads to, or None if it leads to none."""
    return part_at(_through_tuples(Way("target", target, names, steps_of(steps))))


def part_at(way: Way) -> ElementPart | None:
    """Return the part of an element that is left to go to, or None if there is none."""
    whole = way.type.dtype if isinstance(way.type, types.Array) else way.type
    if not isinstance(whole, NumbaElement) or not way.names:
        return None
    found, given = ElementPart(whole.element, [], whole.element), iter(way.steps)
    ndim = way.type.ndim if isinstance(way.type, types.Array) else 0
    for name in way.names:
        if name != "[]":
            index = sliced_by(name)
            if len(found.index) < ndim or not (found.enter(name) if index is None else found.cut(index)):
                return None
            continue
        text, kind = next(given)
        many = isinstance(kind, types.BaseTuple)
        parts = [(f"{text}[{k}]", part) for k, part in enumerate(kind)] if many else [(text, kind)]
        if not all(isinstance(part, types.Integer) for _, part in parts):
            return None
        if len(found.index) < ndim:
            found.index += [text for text, _ in parts]
        elif not found.select(parts, many=many):
            return None
    return found if len(found.index) == ndim else None


def _put_through(way: Way, target: Any) -> Body | None:
    """Return an implementation of `put_part` for what is no element of an array: every owner on the way is replaced."""
    lines, back, number = [f"    owner0 = {way.text}"], [], 0
    for k, name in enumerate(way.names):
        last = k + 1 == len(way.names)
        if sliced_by(name) is not None:
            back.append(f"    value{k} = put_part(owner{k}, {name!r}, (), value{k + 1})")
        elif name == "[]":
            text, kind = way.steps[number]
            text = repr(kind.literal_value) if isinstance(kind, types.IntegerLiteral | types.StringLiteral) else text
            read, put = f"owner{k}[{text}]", "replaced" if last else "put_back"
            back.append(f"    value{k} = {put}(owner{k}, {text}, value{k + 1})")
            number += 1
        else:
            read = f"owner{k}.{name}"
            back.append(f"    value{k} = with_{name}(owner{k}, value{k + 1})")
        if not last:
            lines.append(f"    owner{k + 1} = {read}")
    if isinstance(target, types.BaseTuple) and not isinstance(way.type, types.Buffer | types.Record):
        return None
    made = "target" if isinstance(target, types.Buffer | types.Record | types.BaseTuple) else "value0"
    lines += [f"    value{len(way.names)} = value", *reversed(back), f"    return {made}"]
    setters = {f"with_{name}": NAMES[f"_nb_with_{name}"] for name in way.names if name in PARTS}
    text = "\n".join(["def implementation(target, way, steps, value):", *lines])
    return Body(text, {"replaced": replaced, "put_back": put_back, "put_part": put_part, **setters})


def _part_setter(name: str) -> Any:
    """Return a marker function ``(target, value)``: `target` with the part of a name replaced."""

    def with_part(target: Any, value: Any) -> Any:
        raise NotImplementedError

    def generated(target: Any, value: Any) -> Body | None:
        if isinstance(target, types.Record):
            return _in_record("target, value", target, name)
        if isinstance(target, types.Buffer) and isinstance(value, types.Buffer):
            # A field of all records, as in p.x[i] = value: a view of memory that has been written already.
            return Body("def implementation(target, value): return target", {})
        found = component(target.element, name) if isinstance(target, NumbaElement) else None
        if found is None:
            return None
        first, part = found
        if part is None and isinstance(value, types.Number | types.Boolean):
            text = f"def implementation(target, value): return set(target, {first}, value)"
            return Body(text, {"set": with_component})
        if part is None or not isinstance(value, NumbaElement) or value.element is not part:
            return None
        lines = [f"    target = set(target, {first + k}, at(value, {k}))" for k in range(part.count)]
        text = "\n".join(["def implementation(target, value):", *lines, "    return target"])
        return Body(text, {"set": with_component, "at": at})

    built(with_part)(generated)
    return with_part


# What generated source calls.
NAMES: dict[str, Callable[..., Any]] = {
    "_nb_replaced": replaced,
    "_nb_put_back": put_back,
    "_nb_load_part": load_part,
    "_nb_put_part": put_part,
    "_nb_view": view,
    "_nb_wrap": wrap,
    **{f"_nb_with_{name}": _part_setter(name) for name in PARTS},
}
