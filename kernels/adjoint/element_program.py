"""Operations on vectors and matrices in a program: which stay whole, and which become the scalars of `element_operations`.

An operation that is linear in each of its operands stays whole, as do quotients and inverses of matrices: their rules, in
`element_rules`, are operations of the same kind. Any other is written out in scalars, whose rules are in `rules`. No rule
of a derivative is here.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Sequence
from typing import Any

from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.construct import ARITHMETIC, Construct
from numbridge.kernels.adjoint.ir import Array, Compute, Function, Value
from numbridge.kernels.element_types.element_functions import FUNCTIONS, inner
from numbridge.kernels.element_types.element_operations import Expansion, expand
from numbridge.kernels.element_types.elements import ElementType, component
from numbridge.kernels.element_types.elements import vector as vector_type
from numbridge.kernels.element_types.numba_elements import numba_element
from numbridge.kernels.language.parsing import parsed_expression

__all__ = [
    "COMPONENT",
    "MAKE",
    "REPLACED",
    "component_at",
    "components",
    "construct_element",
    "known",
    "made_of",
    "named_part",
    "operate",
    "part",
    "places",
    "replaced",
    "with_component_at",
    "with_named_part",
]

COMPONENT, MAKE, REPLACED = "element_component", "element_make", "element_replaced"
_INFIX = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "matmul": ("@", operator.matmul),
    "truediv": ("/", operator.truediv),
    "floordiv": ("//", operator.floordiv),
    "mod": ("%", operator.mod),
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
}
_BUILTINS = {"min": min, "max": max, "abs": abs}
_WHOLE = frozenset(
    {"add", "sub", "neg", "mul", "matmul", "truediv", "dot", "inner", "cross", "outer", "transpose", "trace", "cw_mul"}
    | {"inverse", "eq", "ne"}
)


def operate(construct: Construct, name: str, *operands: Value) -> Value | None:
    """Return the result of an operation of `element_operations`, or None where there is none for these operands."""
    kinds = tuple(inference.element_of(operand.type) for operand in operands)
    expansion = expand(name, *kinds)
    numbers = [operand for operand, kind in zip(operands, kinds, strict=True) if kind is None]
    if expansion is None or not all(_fits(number, expansion) for number in numbers):
        return None
    if name == "pos":
        return operands[0]
    if not expansion.scalar.is_float:
        return _integers(construct, name, expansion, operands)
    is_whole = _is_whole(name, kinds)
    if expansion.scalar.numba is None and not (
        is_whole and None not in kinds and (expansion.result or expansion.is_bool)
    ):
        # Numba has no type for the numbers that come into it or out of it.
        raise construct.no_derivative_of(expansion.scalar.name)
    scalar = inference.scalar_type(expansion.scalar)
    given = [o if k is not None else construct.cast(o, scalar) for o, k in zip(operands, kinds, strict=True)]
    if is_whole:
        result = _result_type(expansion, scalar)
        return _add(construct, Function(f"element_{name}", _text(construct, name, len(given)), None), result, given)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(construct, *given)
    return _written_out(construct, expansion, given)


def _fits(number: Value, expansion: Expansion) -> bool:
    """Tell whether a number loses no fraction on the way to the components' type."""
    kind = number.type
    return isinstance(kind, types.Integer | types.Boolean) or (
        isinstance(kind, types.Float) and expansion.scalar.is_float
    )


def _is_whole(name: str, kinds: Sequence[ElementType | None]) -> bool:
    families = {kind.family for kind in kinds if kind is not None}
    if name == "mul" and None not in kinds:
        return families <= {"matrix", "vector"}
    return name in _WHOLE and not (name == "inverse" and families == {"quaternion"})


def _result_type(expansion: Expansion, scalar: Any) -> Any:
    if expansion.result is not None:
        return numba_element(expansion.result)
    return types.boolean if expansion.is_bool else scalar


def _integers(construct: Construct, name: str, expansion: Expansion, operands: Sequence[Value]) -> Value | None:
    """Return an operation without a derivative: it stays as it is, and Numba knows which integer a number becomes."""
    if expansion.result is not None or expansion.is_bool:
        result = _result_type(expansion, None)
    else:
        found = inference.result_type(_primitive(name), operands)
        if found is None:
            return None
        result = found[0]
    return _add(
        construct, Function(f"integer_{name}", _text(construct, name, len(operands)), None), result, list(operands)
    )


def _primitive(name: str) -> Any:
    if name in _INFIX:
        return _INFIX[name][1]
    return _BUILTINS.get(name) or FUNCTIONS.get(name) or getattr(operator, name)


def _text(construct: Construct, name: str, count: int) -> str:
    if name in _INFIX:
        return f"{{0}} {_INFIX[name][0]} {{1}}"
    if name == "neg":
        return "-{0}"
    places = ", ".join(f"{{{k}}}" for k in range(count))
    if name in _BUILTINS:
        return f"{name}({places})"
    construct.namespace[f"_nb_{name}"] = inner if name == "inner" else FUNCTIONS[name]
    return f"_nb_{name}({places})"


def _add(construct: Construct, function: Function, kind: Any, arguments: list[Value]) -> Value:
    made = construct.value("p" if construct.prefix else "value", kind)
    construct.add(Compute(made, function, arguments))
    return made


# Parts and construction


def _place_text(element: ElementType, k: int) -> str:
    """Return the index of the component at a place in row-major order, as it is written in brackets."""
    return str(k) if len(element.extents) == 1 else f"{k // element.extents[1]}, {k % element.extents[1]}"


def places(item: Array | Value) -> list[str]:
    """Return the components of an element as they are indexed, such as ``[0]``; of a number, the number itself."""
    element = inference.element_of(item.dtype if isinstance(item, Array) else item.type)
    return [""] if element is None else [f"[{_place_text(element, k)}]" for k in range(element.count)]


def part(construct: Construct, value: Value, index: Sequence[Value]) -> Value | None:
    """Return a component, or a row of a matrix, or None for an index that does not fit."""
    element = inference.element_of(value.type)
    assert element is not None
    if not 1 <= len(index) <= len(element.extents) or not all(isinstance(k.type, types.Integer) for k in index):
        return None
    text = f"{{0}}[{', '.join(f'{{{k + 1}}}' for k in range(len(index)))}]"
    whole = len(index) == len(element.extents)
    kind = value.type.dtype if whole else numba_element(vector_type(element.extents[1], element.scalar))
    return _add(construct, Function(COMPONENT, text, None), kind, [value, *index])


def replaced(construct: Construct, value: Value, index: Sequence[Value], new: Value) -> Value | None:
    """Return an element with a component or a row replaced, or None for what does not fit."""
    element = inference.element_of(value.type)
    assert element is not None
    new_element = inference.element_of(new.type)
    if not 1 <= len(index) <= len(element.extents) or not all(isinstance(k.type, types.Integer) for k in index):
        return None
    if len(index) == len(element.extents):
        if new_element is not None:
            return None
        new = construct.cast(new, value.type.dtype)
    elif new_element is not vector_type(element.extents[1], element.scalar):
        return None
    place = ", ".join(f"{{{k + 1}}}" for k in range(len(index)))
    text = f"_nb_replaced({{0}}, {place if len(index) == 1 else f'({place})'}, {{{len(index) + 1}}})"
    return _add(construct, Function(REPLACED, text, None), value.type, [value, *index, new])


def components(construct: Construct, value: Value) -> list[Value]:
    """Return all components in row-major order."""
    element = inference.element_of(value.type)
    assert element is not None
    return [component_at(construct, value, k) for k in range(element.count)]


def component_at(construct: Construct, value: Value, k: int) -> Value:
    """Return the component at a place in row-major order."""
    return known(part(construct, value, _index_of(construct, value, k)))


def with_component_at(construct: Construct, value: Value, k: int, number: Value) -> Value:
    """Return an element with the component at a place in row-major order replaced."""
    return known(replaced(construct, value, _index_of(construct, value, k), number))


def _index_of(construct: Construct, value: Value, k: int) -> list[Value]:
    element = inference.element_of(value.type)
    assert element is not None
    extents = element.extents
    return [construct.constant(i) for i in ([k] if len(extents) == 1 else divmod(k, extents[1]))]


def named_part(construct: Construct, value: Value, name: str) -> Value | None:
    """Return a part of an element by its name, such as ``x`` or a transform's ``p``, or None."""
    element = inference.element_of(value.type)
    assert element is not None
    found = component(element, name)
    if found is None:
        return None
    first, kind = found
    if kind is None:
        return component_at(construct, value, first)
    return made_of(construct, kind, [component_at(construct, value, first + k) for k in range(kind.count)])


def with_named_part(construct: Construct, value: Value, name: str, new: Value) -> Value | None:
    """Return an element with a part of a name replaced, or None for what does not fit."""
    element = inference.element_of(value.type)
    assert element is not None
    found = component(element, name)
    if found is None or inference.element_of(new.type) is not found[1]:
        return None
    parts = [new] if found[1] is None else components(construct, new)
    for k, number in enumerate(parts):
        made = replaced(construct, value, [construct.constant(found[0] + k)], number)
        assert made is not None
        value = made
    return value


def made_of(construct: Construct, element: ElementType, parts: Sequence[Value]) -> Value:
    """Return an element of as many numbers as it has components."""
    kind = numba_element(element)
    given = [construct.cast(number, kind.dtype) for number in parts]
    text = f"{construct.type_name(kind)}({', '.join(f'{{{k}}}' for k in range(len(given)))})"
    return _add(construct, Function(MAKE, text, None), kind, given)


def construct_element(construct: Construct, element: ElementType, given: Sequence[Value]) -> Value | None:
    """Return what a call of an element type makes, or None for arguments that do not fit."""
    kind = numba_element(element)
    if not given:
        return construct.zero(kind)
    kinds = [inference.element_of(value.type) for value in given]
    if len(given) == 1:
        if given[0].type == kind:
            return given[0]
        if kinds[0] is None and element.family in ("vector", "matrix"):
            return made_of(construct, element, [given[0]] * element.count)
        if kinds[0] is not None and kinds[0].extents == element.extents:
            return made_of(construct, element, components(construct, given[0]))
    if any(found is not None and (len(found.extents) > 1 or len(element.extents) > 1) for found in kinds):
        return None
    if sum(1 if found is None else found.count for found in kinds) != element.count:
        return None
    parts = [
        number
        for value, found in zip(given, kinds, strict=True)
        for number in ([value] if found is None else components(construct, value))
    ]
    return made_of(construct, element, parts)


# Operations in scalars


def _length_squared(construct: Construct, a: Value) -> Value:
    return known(operate(construct, "dot", a, a))


def _length(construct: Construct, a: Value) -> Value:
    """The root is only taken of what is not zero, where its slope is infinite."""
    square = _length_squared(construct, a)
    zero, one = construct.constant(0.0, square.type), construct.constant(1.0, square.type)
    is_zero = construct.apply("eq", square, zero)
    root = construct.apply("sqrt", construct.select(is_zero, one, square))
    return construct.select(is_zero, zero, root)


def _normalize(construct: Construct, a: Value) -> Value:
    square = _length_squared(construct, a)
    zero, one = construct.constant(0.0, square.type), construct.constant(1.0, square.type)
    has_direction = construct.apply("gt", square, zero)
    root = construct.apply("sqrt", construct.select(has_direction, square, one))
    scale = construct.select(has_direction, construct.apply("div", one, root), zero)
    return known(operate(construct, "mul", a, scale))


def known(value: Value | None) -> Value:
    """Return a value that there is, because what it is made of was checked."""
    assert value is not None
    return value


_SPECIAL = {"length_sq": _length_squared, "length": _length, "normalize": _normalize}


def _written_out(construct: Construct, expansion: Expansion, operands: Sequence[Value]) -> Value:
    scalars = _Scalars(construct, expansion, operands)
    for name, text in expansion.steps:
        scalars.names[name] = scalars.of(text)
    parts = [scalars.of(text) for text in expansion.components]
    return parts[0] if expansion.result is None else made_of(construct, expansion.result, parts)


class _Scalars:
    """Adds the expressions of an expansion to a program."""

    def __init__(self, construct: Construct, expansion: Expansion, operands: Sequence[Value]) -> None:
        kind = inference.scalar_type(expansion.scalar)
        self._construct = construct
        self._operands = dict(zip("abcdef", operands, strict=False))
        self.names = {name: construct.constant(x, kind) for name, x in (("zero", 0.0), ("one", 1.0), ("two", 2.0))}

    def of(self, text: str) -> Value:
        """Return the value of an expression."""
        return self._value(parsed_expression(text))

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Name():
                return self._name(node.id)
            case ast.UnaryOp(op=ast.USub()):
                return self._construct.apply("neg", self._value(node.operand))
            case ast.BinOp():
                key = _KEYS[type(node.op)]
                return self._construct.apply(key, self._value(node.left), self._value(node.right))
            case ast.Call():
                function = _CALLED[ast.unparse(node.func)]
                return known(self._construct.compute(function, [self._value(a) for a in node.args]))
        raise TypeError(f"{ast.unparse(node)} is no expression of an operation on elements")

    def _name(self, name: str) -> Value:
        found = self.names.get(name)
        if found is None:
            operand = self._operands[name[0]]
            found = component_at(self._construct, operand, int(name[1:])) if len(name) > 1 else operand
            self.names[name] = found
        return found


_KEYS: dict[Any, str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}
_CALLED = {
    **{name: ARITHMETIC[name] for name in ("sqrt", "sin", "cos")},
    **{name: Function(name, f"{name}({{0}}, {{1}})", _BUILTINS[name]) for name in ("min", "max")},
    "abs": Function("abs", "abs({0})", math.fabs),
}
