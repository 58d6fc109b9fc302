"""Elements for Numba, on the CPU and on CUDA alike: one type, a few intrinsics, and operations built from the table.

An element is the LLVM array ``[n x T]``, in memory and in registers, so that an array of elements is the scalars of its
trailing dimensions. There is no heap and no Python object. What an operation computes is in `element_operations`; nothing
here knows one. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin, lower_constant, lower_getattr_generic
from numba.core.typing import signature as signature_of
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer, infer_getattr
from numba.extending import intrinsic, register_model, typeof_impl

from numbridge.kernels.arithmetic.narrow_floats import NarrowFloat, narrow_float
from numbridge.kernels.compilation.built_calls import Body, built
from numbridge.kernels.element_types.element_functions import FUNCTIONS, inner
from numbridge.kernels.element_types.element_operations import constants, expand, implementation
from numbridge.kernels.element_types.elements import (
    Element,
    ElementType,
    complex_parts,
    component,
    element_types,
    sliced,
    vector,
)
from numbridge.kernels.scalars import Scalar, by_name

__all__ = [
    "ElementIterator",
    "NumbaElement",
    "at",
    "complex_pair",
    "declare",
    "maker",
    "numba_element",
    "numba_scalar",
    "place_of",
    "with_component",
    "wrap",
]

# Elements with more components are indexed by a variable through the stack: comparing each place would take longer.
_COMPARED = 16
# What LLVM can load in one piece and take apart for several elements at once.
_INTERLEAVED = 8


class NumbaElement(types.IterableType):
    """The Numba type of an element type; one looks through its components, or the rows of a matrix."""

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

    @property
    def part(self) -> Any:
        """The Numba type of what an index selects: of a component, or of a row of a matrix."""
        extents = self.element.extents
        return self.dtype if len(extents) == 1 else numba_element(vector(extents[1], self.element.scalar))

    @property
    def iterator_type(self) -> Any:
        """The Numba type of what a loop over an element keeps."""
        return ElementIterator(self)


class ElementIterator(types.SimpleIteratorType):
    """The Numba type of what a loop over an element keeps: the element as it was at its beginning, and how far it has come."""

    def __init__(self, element: NumbaElement) -> None:
        self.container = element
        super().__init__(f"iter({element.name})", element.part)


def numba_scalar(scalar: Scalar) -> Any:
    """Return the Numba type of an element's components."""
    return narrow_float(scalar) or getattr(types, scalar.numba or "")


@functools.cache
def numba_element(element: ElementType) -> Any:
    """Return the Numba type of an element type."""
    return NumbaElement(element)


def complex_pair(kind: Any) -> Any:
    """Return the Numba type of the pairs of real numbers that complex numbers of a type are."""
    return numba_element(complex_parts(by_name(str(kind.underlying_float))))


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


@typeof_impl.register(Element)
def _typeof(value: Element, context: Any) -> Any:
    """Return the type of a value that a parameter has by default."""
    return numba_element(type(value))


@lower_constant(NumbaElement)
def _constant(context: Any, builder: Any, kind: NumbaElement, value: Element) -> Any:
    part = context.get_value_type(kind.dtype)
    parts = [ir.Constant(part, number) for number in value.numpy().reshape(-1).tolist()]
    return ir.Constant(context.get_value_type(kind), parts)


def _unknown(builder: Any, pointer: Any) -> Any:
    """Return a pointer of which LLVM knows nothing; it takes no instruction.

    LLVM would vectorise a loop over large elements by gathering the same component of several, which takes twice as long as
    one element after the other. What goes through assembly it leaves in order, and vectorises within an element.
    """
    kind = ir.FunctionType(pointer.type, [pointer.type])
    return builder.asm(kind, "", "=r,0", [pointer], side_effect=False)


def _packed(builder: Any, kind: Any, parts: Any) -> Any:
    """Return an element of the value type `kind`, of its components."""
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
        return _component_of(builder, value, _wrapped(builder, place, count), count)

    return element.dtype(element, types.intp), generate


def _component_of(builder: Any, value: Any, place: Any, count: int) -> Any:
    """Return the component at a place, which is not negative; one that there is not for a place outside."""
    if count > _COMPARED:
        memory = cgutils.alloca_once_value(builder, value)
        return builder.load(cgutils.gep_inbounds(builder, memory, 0, _clamped(builder, place, count)))
    found = builder.extract_value(value, 0)
    for k in range(1, count):
        found = builder.select(builder.icmp_signed("==", place, place.type(k)), builder.extract_value(value, k), found)
    return found


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
    place = place_of(element.element, index)
    if place is not None:
        return Body(f"def implementation(element, index): return at(element, {place})", {"at": at, "wrap": wrap})
    if isinstance(index, types.Integer) and len(element.element.extents) == 2:
        rows, columns = element.element.extents
        parts = ", ".join(f"at(element, row + {k})" for k in range(columns))
        text = (
            f"def implementation(element, index):\n    row = wrap(index, {rows}) * {columns}\n    return make({parts})"
        )
        row = vector(columns, element.element.scalar)
        return Body(text, {"at": at, "make": maker(row), "wrap": wrap})
    return None


def place_of(element: ElementType, index: Any) -> str | None:
    """Return the place of the component that an index names, as an expression of `index`, or None."""
    if isinstance(index, types.Integer) and len(element.extents) == 1:
        return "index"
    pair = isinstance(index, types.BaseTuple) and len(index) == 2
    if pair and len(element.extents) == 2 and all(isinstance(part, types.Integer) for part in index):
        rows, columns = element.extents
        return f"wrap(index[0], {rows}) * {columns} + wrap(index[1], {columns})"
    return None


@intrinsic
def wrap(typing_context: Any, index: Any, extent: Any) -> Any:
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


# ---------------------------------------------------------------------------------------------------------------------
# Loops over parts, of which unpacking is one, and slices. What comes out are values of their own, as an element is one. How
# many names an element is unpacked into is checked by `component_range`.


@register_model(ElementIterator)
class _IteratorModel(models.StructModel):
    """The element, and the place of the number of its next part."""

    def __init__(self, manager: Any, kind: ElementIterator) -> None:
        members = [("number", types.EphemeralPointer(types.intp)), ("element", kind.container)]
        super().__init__(manager, kind, members)


@lower_builtin("getiter", NumbaElement)
def _begun(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    state = context.make_helper(builder, signature.return_type)
    state.element = arguments[0]
    state.number = cgutils.alloca_once_value(builder, context.get_constant(types.intp, 0))
    return state._getvalue()


@lower_builtin("iternext", ElementIterator)
def _next(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    # `iternext_impl` would make a function of Numba's own of this, and numba.cuda leaves out what is Numba's.
    result = context.make_helper(builder, signature.return_type)
    kind = signature.args[0]
    element = kind.container.element
    state = context.make_helper(builder, kind, value=arguments[0])
    number = builder.load(state.number)
    is_there = builder.icmp_unsigned("<", number, number.type(element.extents[0]))
    result.second = is_there
    with builder.if_then(is_there):
        builder.store(builder.add(number, number.type(1)), state.number)
        columns = element.count // element.extents[0]
        first = builder.mul(number, number.type(columns))
        places = [builder.add(first, first.type(k)) for k in range(columns)]
        parts = [_component_of(builder, state.element, place, element.count) for place in places]
        is_row = len(element.extents) == 2
        result.first = _packed(builder, context.get_value_type(kind.yield_type), parts) if is_row else parts[0]
    return result._getvalue()


@infer
class _Slice(AbstractTemplate):
    """The types of slices that are written with constants, as in ``v[1:]`` and ``m[:2, 0]``."""

    key = "static_getitem"

    def generic(self, given: Any, named: Any) -> Any:
        """Return the type of a slice, or None if the index is none, or leaves nothing."""
        kind, index = given
        found = sliced(kind.element, index) if isinstance(kind, NumbaElement) else None
        return None if found is None else signature_of(numba_element(found[1]), kind, index)


@lower_builtin("static_getitem", NumbaElement, types.Any)
def _slice(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    element, index = arguments
    found = sliced(signature.args[0].element, index)
    if found is None:
        raise NotImplementedError  # by which Numba goes on to what any index does
    parts = [builder.extract_value(element, place) for place in found[0]]
    return _packed(builder, context.get_value_type(signature.return_type), parts)


_register_operations()
