"""The derivatives of operations that take vectors and matrices whole; they are part of the table in `rules`.

A partial derivative by an element is a linear map, and so two functions: `along` takes a tangent of the argument to what
it adds to that of the result, and `times`, its transpose, an adjoint of the result to what it adds to that of the argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.element_program import (
    COMPONENT,
    MAKE,
    REPLACED,
    component_at,
    known,
    made_of,
    operate,
    replaced,
)
from numbridge.kernels.adjoint.element_program import part as part_of
from numbridge.kernels.adjoint.ir import Value

__all__ = ["ELEMENT_RULES", "JOINTLY_LINEAR", "Linear", "Part"]

Map = Callable[[Construct, Value], Value]


@dataclass(frozen=True, slots=True)
class Linear:
    """A partial derivative that is a linear map; `reads` are the kernel's values that the map uses."""

    along: Map
    times: Map
    reads: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """The partial derivative of a component or a row by the element: only that part of its adjoint grows."""

    index: tuple[Value, ...]

    @property
    def reads(self) -> tuple[Value, ...]:
        """The kernel's values that this uses."""
        return self.index

    def along(self, construct: Construct, tangent: Value) -> Value:
        """Return the same part of a tangent."""
        return known(part_of(construct, tangent, self.index))


def _apply(construct: Construct, name: str, *operands: Value) -> Value:
    return known(operate(construct, name, *operands))


def _symmetric(name: str, other: Value) -> Linear:
    """``name(argument, other)``, of which the map is its own transpose."""

    def same(construct: Construct, x: Value) -> Value:
        return _apply(construct, name, x, other)

    return Linear(same, same, (other,))


def _same(construct: Construct, x: Value) -> Value:
    return x


def _negative(construct: Construct, x: Value) -> Value:
    return construct.apply("neg", x) if inference.element_of(x.type) is None else _apply(construct, "neg", x)


_ONE, _MINUS_ONE = Linear(_same, _same), Linear(_negative, _negative)


def _inner(construct: Construct, a: Value, b: Value) -> Value:
    """Return the sum of the products of components."""
    element = inference.element_of(a.type)
    is_vector = element is not None and element.family in ("vector", "quaternion")
    return _apply(construct, "dot" if is_vector else "inner", a, b)


def _factor(element: Value) -> Linear:
    """The partial derivative of ``element * number`` by the number."""
    return Linear(lambda c, x: _apply(c, "mul", element, x), lambda c, x: _inner(c, x, element), (element,))


def _scalar_product(a: Value, b: Value, r: Value) -> tuple[Any, ...]:
    def by(other: Value) -> Linear:
        return Linear(lambda c, x: _inner(c, x, other), lambda c, x: _apply(c, "mul", other, x), (other,))

    return by(b), by(a)


def _is_element(value: Value, *families: str) -> bool:
    element = inference.element_of(value.type)
    return element is not None and (not families or element.family in families)


def _mul(a: Value, b: Value, r: Value) -> tuple[Any, ...]:
    if _is_element(a) and _is_element(b):
        return _matmul(a, b, r)
    if _is_element(a):
        return _symmetric("mul", b), _factor(a)
    return _factor(b), _symmetric("mul", a)


def _matmul(a: Value, b: Value, r: Value) -> tuple[Any, ...]:
    def by_left(c: Construct, x: Value) -> Value:
        if _is_element(a, "vector"):
            return _apply(c, "matmul", b, x)
        if _is_element(b, "vector"):
            return _apply(c, "outer", x, b)
        return _apply(c, "matmul", x, _apply(c, "transpose", b))

    def by_right(c: Construct, x: Value) -> Value:
        if _is_element(b, "vector"):
            return _apply(c, "matmul", x, a)
        if _is_element(a, "vector"):
            return _apply(c, "outer", a, x)
        return _apply(c, "matmul", _apply(c, "transpose", a), x)

    return (
        Linear(lambda c, x: _apply(c, "matmul", x, b), by_left, (b,)),
        Linear(lambda c, x: _apply(c, "matmul", a, x), by_right, (a,)),
    )


def _truediv(a: Value, b: Value, r: Value) -> tuple[Any, ...]:
    def along(c: Construct, x: Value) -> Value:
        return _negative(c, _apply(c, "mul", r, c.apply("div", x, b)))

    def times(c: Construct, x: Value) -> Value:
        return c.apply("neg", c.apply("div", _inner(c, x, r), b))

    return _symmetric("truediv", b), Linear(along, times, (r, b))


def _cross(a: Value, b: Value, r: Value) -> tuple[Any, ...]:
    return (
        Linear(lambda c, x: _apply(c, "cross", x, b), lambda c, x: _apply(c, "cross", b, x), (b,)),
        Linear(lambda c, x: _apply(c, "cross", a, x), lambda c, x: _apply(c, "cross", x, a), (a,)),
    )


def _outer(a: Value, b: Value, r: Value) -> tuple[Any, ...]:
    return (
        Linear(lambda c, x: _apply(c, "outer", x, b), lambda c, x: _apply(c, "matmul", x, b), (b,)),
        Linear(lambda c, x: _apply(c, "outer", a, x), lambda c, x: _apply(c, "matmul", a, x), (a,)),
    )


def _transpose(a: Value, r: Value) -> tuple[Any, ...]:
    def transposed(construct: Construct, x: Value) -> Value:
        return _apply(construct, "transpose", x)

    return (Linear(transposed, transposed),)


def _trace(a: Value, r: Value) -> tuple[Any, ...]:
    element = inference.element_of(a.type)
    assert element is not None
    rows = element.extents[0]

    def times(c: Construct, x: Value) -> Value:
        return made_of(c, element, [x if k % (rows + 1) == 0 else c.zero(x.type) for k in range(element.count)])

    return (Linear(lambda c, x: _apply(c, "trace", x), times),)


def _inverse(a: Value, r: Value) -> tuple[Any, ...]:
    def along(c: Construct, x: Value) -> Value:
        return _negative(c, _apply(c, "matmul", _apply(c, "matmul", r, x), r))

    def times(c: Construct, x: Value) -> Value:
        turned = _apply(c, "transpose", r)
        return _negative(c, _apply(c, "matmul", _apply(c, "matmul", turned, x), turned))

    return (Linear(along, times, (r,)),)


def _component(a: Value, *rest: Value) -> tuple[Any, ...]:
    index = rest[:-1]
    return Part(tuple(index)), *(None for _ in index)


def _replaced(a: Value, *rest: Value) -> tuple[Any, ...]:
    """Nothing of what an element held at a place comes through; the part that is put there does."""
    *index, new, _ = rest

    def by_element(c: Construct, x: Value) -> Value:
        return known(replaced(c, x, index, c.zero(new.type)))

    def by_part(c: Construct, x: Value) -> Value:
        return known(replaced(c, c.zero(a.type), index, x))

    return (
        Linear(by_element, by_element, tuple(index)),
        *(None for _ in index),
        Linear(by_part, lambda c, x: known(part_of(c, x, index)), tuple(index)),
    )


def _make(*arguments: Value) -> tuple[Any, ...]:
    *given, r = arguments
    element = inference.element_of(r.type)
    assert element is not None

    def by(k: int) -> Linear:
        def along(c: Construct, x: Value) -> Value:
            return made_of(c, element, [x if j == k else c.zero(x.type) for j in range(element.count)])

        return Linear(along, lambda c, x: component_at(c, x, k))

    return tuple(by(k) for k in range(len(given)))


ELEMENT_RULES: dict[str, Callable[..., tuple[Any, ...]]] = {
    "element_add": lambda a, b, r: (_ONE, _ONE),
    "element_sub": lambda a, b, r: (_ONE, _MINUS_ONE),
    "element_neg": lambda a, r: (_MINUS_ONE,),
    "element_mul": _mul,
    "element_matmul": _matmul,
    "element_truediv": _truediv,
    "element_dot": _scalar_product,
    "element_inner": _scalar_product,
    "element_cross": _cross,
    "element_outer": _outer,
    "element_cw_mul": lambda a, b, r: (_symmetric("cw_mul", b), _symmetric("cw_mul", a)),
    "element_transpose": _transpose,
    "element_trace": _trace,
    "element_inverse": _inverse,
    COMPONENT: _component,
    REPLACED: _replaced,
    MAKE: _make,
}
"""Key → the partial derivatives by each argument, given the arguments and the result."""

JOINTLY_LINEAR = frozenset({MAKE, REPLACED})
"""Operations whose tangent is the same operation on the tangents."""
