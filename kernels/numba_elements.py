"""Elements for Numba, on the CPU and on CUDA alike: one type, four intrinsics, and overloads generated from the table.

An element is the LLVM array ``[n x T]``, in memory and in registers, so that an array of elements is the scalars of its
trailing dimensions. There is no heap and no Python object. What an operation computes is in `element_operations`; nothing
here knows one. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, overload, register_model

from numbridge.kernels.built_calls import Body, built
from numbridge.kernels.element_functions import FUNCTIONS, inner
from numbridge.kernels.element_operations import constants, expand, implementation
from numbridge.kernels.element_stores import PARTS
from numbridge.kernels.elements import ElementType, component, element_types, vector
from numbridge.kernels.narrow_floats import NarrowFloat, narrow_float
from numbridge.kernels.numba_records import ReadOnlyRecord
from numbridge.kernels.scalars import Scalar

__all__ = ["NAMES", "NumbaElement", "component_atomics", "declare", "numba_element", "part_of"]

# Elements with more components are indexed by a variable through the stack: comparing each place would take longer.
_COMPARED = 16
# What LLVM can load in one piece and take apart for several elements at once.
_INTERLEAVED = 8
_INLINED = {"forceinline": True}


class NumbaElement(types.Type):
    """The Numba type of an element type."""

    def __init__(self, element: ElementType) -> None:
        self.element = element
        self.dtype = numba_scalar(element.scalar)
        super().__init__(f"element({element.__name__})")

    @property
    def key(self) -> Any:
        """What tells types apart."""
        return self.element

    @property
    def bitwidth(self) -> int:
        """Bits in memory, which Numba asks the elements of an array for."""
        return self.element.bytes * 8


def numba_scalar(scalar: Scalar) -> Any:
    """Return the Numba type of an element's components."""
    return narrow_float(scalar) or getattr(types, scalar.numba or "")


@functools.cache
def numba_element(element: ElementType) -> Any:
    """Return the Numba type of an element type."""
    return NumbaElement(element)


@register_model(NumbaElement)
class _ElementModel(models.DataModel):
    """``[n x T]`` throughout; as an argument the components one by one."""

    def __init__(self, manager: Any, kind: NumbaElement) -> None:
        super().__init__(manager, kind)
        self._part, self._count = manager[kind.dtype], kind.element.count

    def get_value_type(self) -> Any:
        return ir.ArrayType(self._part.get_value_type(), self._count)

    def get_data_type(self) -> Any:
        return ir.ArrayType(self._part.get_data_type(), self._count)

    def get_argument_type(self) -> Any:
        return [self._part.get_argument_type()] * self._count

    def as_argument(self, builder: Any, value: Any) -> Any:
        return [self._part.as_argument(builder, builder.extract_value(value, k)) for k in range(self._count)]

    def from_argument(self, builder: Any, value: Any) -> Any:
        parts = [self._part.from_argument(builder, part) for part in value]
        return _packed(builder, self.get_value_type(), parts)

    def as_return(self, builder: Any, value: Any) -> Any:
        return value

    def from_return(self, builder: Any, value: Any) -> Any:
        return value

    def as_data(self, builder: Any, value: Any) -> Any:
        parts = [self._part.as_data(builder, builder.extract_value(value, k)) for k in range(self._count)]
        return _packed(builder, self.get_data_type(), parts)

    def load_from_data_pointer(self, builder: Any, pointer: Any, align: Any = None) -> Any:
        """Load from memory."""
        if self._count > _INTERLEAVED and "nvptx" not in builder.module.triple:
            pointer = _unknown(builder, pointer)
        return self.from_data(builder, builder.load(pointer, align=align))

    def from_data(self, builder: Any, value: Any) -> Any:
        parts = [self._part.from_data(builder, builder.extract_value(value, k)) for k in range(self._count)]
        return _packed(builder, self.get_value_type(), parts)


def _unknown(builder: Any, pointer: Any) -> Any:
    """Return a pointer of which LLVM knows nothing; it takes no instruction.

    LLVM would vectorise a loop over large elements by gathering the same component of several, which takes twice as long as
    one element after the other. What goes through assembly it leaves in order, and vectorises within an element.
    """
    kind = ir.FunctionType(pointer.type, [pointer.type])
    return builder.asm(kind, "", "=r,0", [pointer], side_effect=False)


def _packed(builder: Any, kind: Any, parts: Any) -> Any:
    result = ir.Constant(kind, ir.Undefined)
    for place, part in enumerate(parts):
        result = builder.insert_value(result, part, place)
    return result


@intrinsic
def at(typing_context: Any, element: Any, index: Any) -> Any:
    """Return a component by its place in row-major order; a negative place counts from the end."""
    if not isinstance(element, NumbaElement) or not isinstance(index, types.Integer):
        return None
    count = element.element.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, place = arguments
        if isinstance(place, ir.Constant):
            return builder.extract_value(value, place.constant % count)
        place = _wrapped(builder, place, count)
        if count > _COMPARED:
            memory = cgutils.alloca_once_value(builder, value)
            return builder.load(cgutils.gep_inbounds(builder, memory, 0, _clamped(builder, place, count)))
        found = builder.extract_value(value, 0)
        for k in range(1, count):
            found = builder.select(
                builder.icmp_signed("==", place, place.type(k)), builder.extract_value(value, k), found
            )
        return found

    return element.dtype(element, types.intp), generate


@intrinsic
def with_component(typing_context: Any, element: Any, index: Any, component: Any) -> Any:
    """Return an element with one component replaced; a place outside leaves it as it is."""
    if not isinstance(element, NumbaElement) or not isinstance(index, types.Integer):
        return None
    count = element.element.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, place, new = arguments
        if isinstance(place, ir.Constant):
            return builder.insert_value(value, new, place.constant % count)
        place = _wrapped(builder, place, count)
        for k in range(count):
            here = builder.icmp_signed("==", place, place.type(k))
            value = builder.insert_value(value, builder.select(here, new, builder.extract_value(value, k)), k)
        return value

    return element(element, types.intp, element.dtype), generate


def _wrapped(builder: Any, place: Any, count: int) -> Any:
    negative = builder.icmp_signed("<", place, place.type(0))
    return builder.select(negative, builder.add(place, place.type(count)), place)


def _clamped(builder: Any, place: Any, count: int) -> Any:
    """Return a place inside: an element on the stack has neighbours."""
    inside = builder.icmp_unsigned("<", place, place.type(count))
    return builder.select(inside, place, place.type(0))


@functools.cache
def maker(element: ElementType) -> Any:
    """Return an intrinsic that makes an element of its components, each converted."""
    kind = numba_element(element)

    def build(typing_context: Any, *components: Any) -> Any:
        if not all(isinstance(part, types.Number | types.Boolean) for part in components):
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _packed(builder, context.get_value_type(kind), arguments)

        return kind(*[kind.dtype] * element.count), generate

    # An intrinsic's arity is that of its Python function, so the function is made for the arity.
    names = ", ".join(f"a{k}" for k in range(element.count))
    namespace: dict[str, Any] = {"build": build}
    exec(f"def make(typing_context, {names}): return build(typing_context, {names})", namespace)
    return intrinsic(namespace["make"])


# ---------------------------------------------------------------------------------------------------------------------
# Operations


def _overload(function: Any) -> Callable[[Any], Any]:
    """Return a decorator that overloads a function for both targets.

    Numba compares even the annotations of parameters with those of the implementation, which has none.
    """

    def enter(generated: Any) -> Any:
        generated.__annotations__.clear()
        return overload(function, jit_options=_INLINED)(generated)

    return enter


def _operation(name: str, kinds: tuple[Any, ...], starred: str = "") -> Body | None:
    """Return an operation on operands of these Numba types, or None where there is none.

    With `starred`, it takes its operands as that one starred parameter.
    """
    operands = tuple(kind.element if isinstance(kind, NumbaElement) else None for kind in kinds)
    if not any(operands):
        return None
    expansion = expand(name, *operands)
    if expansion is None or not all(_fits(kind, expansion.scalar) for kind in kinds):
        return None
    names = constants(expansion.scalar) | {"at": at}
    if expansion.result is not None:
        names["make"] = maker(expansion.result)
    return Body(implementation(expansion, operands, starred), names)


def _fits(kind: Any, scalar: Scalar) -> bool:
    """Tell whether an operand may take part: a number must not lose its fraction on the way to integers."""
    if isinstance(kind, NumbaElement):
        return True
    return isinstance(kind, types.Integer | types.Boolean) or (
        isinstance(kind, types.Float | NarrowFloat) and scalar.is_float
    )


def _register(name: str, function: Any, arity: int) -> None:
    def one(a: Any) -> Body | None:
        return _operation(name, (a,))

    def two(a: Any, b: Any) -> Body | None:
        return _operation(name, (a, b))

    enter = built(function)
    if arity == 1:
        enter(one)
    else:
        enter(two)


_OPERATORS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "add": (2, (operator.add, operator.iadd)),
    "sub": (2, (operator.sub, operator.isub)),
    "mul": (2, (operator.mul, operator.imul)),
    "matmul": (2, (operator.matmul, operator.imatmul)),
    "truediv": (2, (operator.truediv, operator.itruediv)),
    "floordiv": (2, (operator.floordiv, operator.ifloordiv)),
    "mod": (2, (operator.mod, operator.imod)),
    "eq": (2, (operator.eq,)),
    "ne": (2, (operator.ne,)),
    "neg": (1, (operator.neg,)),
    "pos": (1, (operator.pos,)),
    "abs": (1, (abs,)),
}
_ONE_OPERAND = (
    *("length", "length_sq", "normalize", "transpose", "trace", "determinant", "inverse"),
    *("quat_inverse", "quat_to_matrix", "transform_inverse"),
)
_ROWS = ("matrix_from_rows", "matrix_from_cols")


def _register_operations() -> None:
    for name, (arity, functions) in _OPERATORS.items():
        for function in functions:
            _register(name, function, arity)
    for name, function in FUNCTIONS.items():
        if name not in _ROWS:
            _register(name, function, 1 if name in _ONE_OPERAND else 2)
    _register("inner", inner, 2)
    for name, function in (("min", min), ("max", max)):
        _register(name, function, 1)
        _register(name, function, 2)
    for name in _ROWS:
        _register_rows(name)


def _register_rows(name: str) -> None:
    """Register a function of any number of vectors."""

    def rows(*vectors: Any) -> Body | None:
        return _operation(name, vectors, "vectors")

    built(FUNCTIONS[name])(rows)


def _made(text: str, names: dict[str, Any]) -> Any:
    exec(text, names)
    return names["implementation"]


# ---------------------------------------------------------------------------------------------------------------------
# Construction


def declare() -> None:
    """Let compiled code call every element type that exists."""
    for element in element_types():
        _declare(element)


@functools.cache
def _declare(element: ElementType) -> None:
    def construct(*components: Any) -> Body | None:
        parts = _parts(element, components)
        if parts is None:
            return None
        text = f"def implementation(*components): return make({', '.join(parts)})"
        return Body(text, {"make": maker(element), "at": at, "zero": constants(element.scalar)["zero"]})

    built(element)(construct)


def _parts(element: ElementType, given: tuple[Any, ...]) -> list[str] | None:
    """Return an expression for each component of a call of an element type, or None for a call that does not fit."""
    if not given:
        return ["zero"] * element.count
    if len(given) == 1:
        if isinstance(given[0], types.Number | types.Boolean) and element.family in ("vector", "matrix"):
            return ["components[0]"] * element.count
        if isinstance(given[0], NumbaElement) and given[0].element.extents == element.extents:
            return [f"at(components[0], {k})" for k in range(element.count)]
    parts: list[str] = []
    for place, kind in enumerate(given):
        if isinstance(kind, types.Number | types.Boolean):
            parts.append(f"components[{place}]")
        elif isinstance(kind, NumbaElement) and len(kind.element.extents) == len(element.extents) == 1:
            parts += [f"at(components[{place}], {k})" for k in range(kind.element.count)]
        else:
            return None
    return parts if len(parts) == element.count else None


# ---------------------------------------------------------------------------------------------------------------------
# Components


@built(len)
def _length(element: Any) -> Body | None:
    if not isinstance(element, NumbaElement):
        return None
    return Body(f"def implementation(element): return {element.element.extents[0]}", {})


@built(operator.getitem)
def _component(element: Any, index: Any) -> Body | None:
    if not isinstance(element, NumbaElement):
        return None
    place = _place(element.element, index)
    if place is not None:
        return Body(f"def implementation(element, index): return at(element, {place})", {"at": at, "wrap": _wrap})
    if isinstance(index, types.Integer) and len(element.element.extents) == 2:
        rows, columns = element.element.extents
        parts = ", ".join(f"at(element, row + {k})" for k in range(columns))
        text = (
            f"def implementation(element, index):\n    row = wrap(index, {rows}) * {columns}\n    return make({parts})"
        )
        row = vector(columns, element.element.scalar)
        return Body(text, {"at": at, "make": maker(row), "wrap": _wrap})
    return None


def _place(element: ElementType, index: Any) -> str | None:
    """Return the place of the component that an index names, as an expression of `index`, or None."""
    if isinstance(index, types.Integer) and len(element.extents) == 1:
        return "index"
    pair = isinstance(index, types.BaseTuple) and len(index) == 2
    if pair and len(element.extents) == 2 and all(isinstance(part, types.Integer) for part in index):
        rows, columns = element.extents
        return f"wrap(index[0], {rows}) * {columns} + wrap(index[1], {columns})"
    return None


@intrinsic
def _wrap(typing_context: Any, index: Any, extent: Any) -> Any:
    """Return an index counted from the start, and one that is out of range as the first."""
    if not isinstance(index, types.Integer) or not isinstance(extent, types.Integer):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, count = arguments
        negative = builder.icmp_signed("<", place, place.type(0))
        place = builder.select(negative, builder.add(place, count), place)
        return builder.select(builder.icmp_unsigned("<", place, count), place, place.type(0))

    return types.intp(types.intp, types.intp), generate


@infer_getattr
class _Parts(AttributeTemplate):
    """The types of an element's parts, as in ``v.x`` and ``t.p``."""

    key = NumbaElement

    def generic_resolve(self, kind: Any, name: str) -> Any:
        """Return the type of a part, or None if there is none of that name."""
        found = component(kind.element, name)
        if found is None:
            return None
        return kind.dtype if found[1] is None else numba_element(found[1])


@lower_getattr_generic(NumbaElement)
def _part(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    found = component(kind.element, name)
    assert found is not None
    first, part = found
    if part is None:
        return builder.extract_value(value, first)
    parts = [builder.extract_value(value, first + k) for k in range(part.count)]
    return _packed(builder, context.get_value_type(numba_element(part)), parts)


# What a store into an element becomes: ``v[k] = x`` is ``v = replaced(v, k, x)``, since elements are values. The same
# text serves where `v` turns out to be an array, which is then written in place.


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
    if not isinstance(target, NumbaElement):
        return None
    element = target.element
    names = {"set": with_component, "wrap": _wrap, "at": at}
    place = _place(element, index)
    if place is not None and isinstance(value, types.Number | types.Boolean):
        return Body(f"def implementation(target, index, value): return set(target, {place}, value)", names)
    rows = len(element.extents) == 2 and isinstance(index, types.Integer) and isinstance(value, NumbaElement)
    if not rows or value.element.extents != element.extents[1:]:
        return None
    extent, columns = element.extents
    lines = [f"    row = wrap(index, {extent}) * {columns}"]
    lines += [f"    target = set(target, row + {k}, at(value, {k}))" for k in range(columns)]
    return Body("\n".join(["def implementation(target, index, value):", *lines, "    return target"]), names)


@_overload(replaced)
def _replaced_in_record(target: Any, index: Any, value: Any) -> Any:
    if not isinstance(target, types.Record) or not isinstance(index, types.StringLiteral):
        return None
    _refuse_read_only(target)
    field = f"target[{index.literal_value!r}]"
    return _made(f"def implementation(target, index, value):\n    {field} = value\n    return target", {})


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


_overload(put_back)(_replaced_in_record)


def put_part(target: Any, way: Any, steps: Any, value: Any) -> Any:
    """Marker: `target` with what a way of names and indices leads to replaced, and nothing else of it.

    The way is written ``"[],p,x"``, and `steps` has what stands in brackets. Other threads may store other components of one
    element of an array, so these are stored by themselves.
    """
    raise NotImplementedError


@_overload(put_part)
def _put_part(target: Any, way: Any, steps: Any, value: Any) -> Any:
    if not isinstance(way, types.StringLiteral):
        return None  # Numba comes back with the literal
    start = _through_tuples(Way("target", target, way.literal_value.split(","), steps_of(steps)))
    found = part_at(start)
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
    if isinstance(start.type, NumbaElement):
        lines += [f"    target = set(target, first + {k}, {part})" for k, part in enumerate(parts)]
    else:
        index = "".join(f"{text}, " for text in found.index)
        lines.append(f"    whole = scalars_of({start.text})")
        lines += [f"    whole[({index}first + {k},)] = {part}" for k, part in enumerate(parts)]
    names = {"scalars_of": _scalars_of, "wrap": _wrap, "at": at, "set": with_component}
    return _made("\n".join([*lines, "    return target"]), names)


@dataclass(frozen=True)
class Way:
    """What lies before a store of several steps: something of a Numba type, as `text`, with names and indices to go."""

    text: str
    type: Any
    names: Sequence[str]
    steps: Sequence[tuple[str, Any]]


def steps_of(kinds: Any) -> list[tuple[str, Any]]:
    """Return the indices of a way, as expressions of `steps`, with their Numba types."""
    return [(f"steps[{k}]", kind) for k, kind in enumerate(kinds)]


def _through_tuples(way: Way) -> Way:
    """Return what is left of a way behind the tuples at its beginning."""
    while isinstance(way.type, types.BaseTuple) and way.names[0] == "[]":
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
    """

    whole: ElementType
    index: list[str]
    element: ElementType | None
    matrix: ElementType | None = None
    offset: int = 0
    inner: list[ComponentIndex] = field(default_factory=list)

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
            if len(found.index) < ndim or not found.enter(name):
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


def _put_through(way: Way, target: Any) -> Any:
    """Return an implementation of `put_part` for what is no element of an array: every owner on the way is replaced."""
    lines, back, number = [f"    owner0 = {way.text}"], [], 0
    for k, name in enumerate(way.names):
        last = k + 1 == len(way.names)
        if name == "[]":
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
    setters = {f"with_{name}": NAMES[f"_nb_with_{name}"] for name in way.names if name != "[]"}
    text = "\n".join(["def implementation(target, way, steps, value):", *lines])
    return _made(text, {"replaced": replaced, "put_back": put_back, **setters})


def _part_setter(name: str) -> Any:
    """Return a marker function ``(target, value)``: `target` with the part of a name replaced."""

    def with_part(target: Any, value: Any) -> Any:
        raise NotImplementedError

    def generated(target: Any, value: Any) -> Body | None:
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

    def in_record(target: Any, value: Any) -> Any:
        if not isinstance(target, types.Record):
            return None
        _refuse_read_only(target)
        return _made(f"def implementation(target, value):\n    target.{name} = value\n    return target", {})

    built(with_part)(generated)
    _overload(with_part)(in_record)
    return with_part


# ---------------------------------------------------------------------------------------------------------------------
# Atomics: each component by itself


@intrinsic
def _scalars_of(typing_context: Any, array: Any) -> Any:
    """Return an array of elements as one of their components, which are its last dimension, on the same memory."""
    if not isinstance(array, types.Array) or not isinstance(array.dtype, NumbaElement):
        return None
    kind = array.dtype
    scalars = types.Array(kind.dtype, array.ndim + 1, "C" if array.layout == "C" else "A", readonly=not array.mutable)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = context.make_array(array)(context, builder, arguments[0])
        made = context.make_array(scalars)(context, builder)
        count, size = (context.get_constant(types.intp, n) for n in (kind.element.count, kind.element.scalar.itemsize))
        made.meminfo, made.parent, made.itemsize = given.meminfo, given.parent, size
        made.nitems = builder.mul(given.nitems, count)
        made.data = builder.bitcast(given.data, context.get_data_type(kind.dtype).as_pointer())
        for name, last in (("shape", count), ("strides", size)):
            parts = cgutils.unpack_tuple(builder, getattr(given, name), array.ndim)
            setattr(made, name, cgutils.pack_array(builder, [*parts, last]))
        return made._getvalue()

    return scalars(array), generate


@intrinsic
def numbers_of(typing_context: Any, array: Any) -> Any:
    """Return an array of numbers as it is, and one of elements as one of their components."""
    if isinstance(array.dtype, NumbaElement):
        return _scalars_of._defn(typing_context, array)
    return array(array), lambda context, builder, signature, arguments: arguments[0]


@intrinsic
def _elements_of(typing_context: Any, array: Any, element: Any) -> Any:
    """Return memory of components, which are its last dimension, as an array of elements; of one dimension, as many as fit."""
    kind = numba_element(element.typing_key)
    count, ndim = kind.element.count, max(array.ndim - 1, 1)
    made_type = types.Array(kind, ndim, "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = context.make_array(array)(context, builder, arguments[0])
        made = context.make_array(made_type)(context, builder)
        size = context.get_constant(types.intp, kind.element.bytes)
        made.meminfo, made.parent, made.itemsize = given.meminfo, given.parent, size
        made.nitems = builder.sdiv(given.nitems, context.get_constant(types.intp, count))
        made.data = builder.bitcast(given.data, context.get_data_type(kind).as_pointer())
        whole, steps = (cgutils.unpack_tuple(builder, part, array.ndim) for part in (given.shape, given.strides))
        made.shape = cgutils.pack_array(builder, [made.nitems] if array.ndim == 1 else whole[:-1])
        made.strides = cgutils.pack_array(builder, [size] if array.ndim == 1 else steps[:-1])
        return made._getvalue()

    return made_type(array, element), generate


def component_atomic(name: str, scalar_atomic: Any) -> Any:
    """Return an atomic operation that takes elements component by component, and scalars as `scalar_atomic` does.

    Each component is updated atomically, and not the element as a whole: another thread may see some components of a sum.
    """

    def atomic(array: Any, index: Any, value: Any) -> Any:
        raise NotImplementedError

    def generated(array: Any, index: Any, value: Any) -> Body:
        names = {"update": scalar_atomic, "at": at, "scalars_of": _scalars_of}
        if not isinstance(array, types.Array) or not isinstance(array.dtype, NumbaElement):
            return Body("def implementation(array, index, value): return update(array, index, value)", names)
        if value != array.dtype:
            raise TypingError(not_an_element(name, array, value))
        element = array.dtype.element
        place = "index + " if isinstance(index, types.BaseTuple) else "(index,) + "
        parts = ", ".join(f"update(whole, {place}({k},), at(value, {k}))" for k in range(element.count))
        lines = [
            "def implementation(array, index, value):",
            "    whole = scalars_of(array)",
            f"    return make({parts})",
        ]
        return Body("\n".join(lines), names | {"make": maker(element)})

    atomic.__name__ = name
    built(atomic)(generated)
    return atomic


def not_an_element(name: str, array: Any, value: Any) -> str:
    """Return the message for an atomic operation that is given something else than an element."""
    kind, wanted = getattr(value, "element", None), array.dtype.element.name
    found = value if kind is None else kind.name
    return f"atomic_{name} takes a {wanted} for an array of {wanted}, not {found}; make one, such as {wanted}(...)"


@functools.cache
def component_atomics(intrinsics: Any) -> dict[str, Any]:
    """Return the atomics that also take elements, under the names of generated source, for a back end's module of them."""
    made = ((name, getattr(intrinsics, f"atomic_{name}")) for name in ("add", "sub", "min", "max"))
    return {f"_nb_atomic_{name}": component_atomic(name, atomic) for name, atomic in made}


# What generated source calls.
NAMES: dict[str, Callable[..., Any]] = {
    "_nb_replaced": replaced,
    "_nb_put_back": put_back,
    "_nb_components": _scalars_of,
    "_nb_elements": _elements_of,
    "_nb_put_part": put_part,
    "_nb_wrap": _wrap,
    **{f"_nb_with_{name}": _part_setter(name) for name in PARTS},
}
_register_operations()
