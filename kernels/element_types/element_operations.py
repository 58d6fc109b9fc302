"""What elements can do: one table from operations to scalar expressions, component by component.

`expand` says, for the types of the operands, what each component of the result is in terms of the operands' components. CPU,
CUDA and Python all compute by these expressions, and a derivative of them is the derivative of the operation. Operands are
called ``a``, ``b``, ``c``; component ``k`` of an element is ``a0``, ``a1``, ...; a number is ``a`` itself. Beside arithmetic
the expressions use ``sqrt``, ``sin``, ``cos``, ``min``, ``max``, ``abs``, and ``zero``, ``one`` and ``two`` of the scalar type.
Nothing here is compiled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.kernels.element_types.elements import ElementType, matrix, quaternion, vector
from numbridge.kernels.scalars import Scalar

__all__ = ["OPERATIONS", "Expansion", "Operand", "computing_type", "constants", "expand", "implementation"]

# An operand's type: None is a number of any type.
Operand = ElementType | None


@dataclass(frozen=True)
class Expansion:
    """An operation in scalars.

    Attributes
    ----------
    scalar : Scalar
        The type that is computed with.
    result : ElementType or None
        What comes out; None is a number, or a truth value where `is_bool`.
    steps : tuple of (str, str)
        Names and the expressions that they stand for, in order; later ones may use earlier ones.
    components : tuple of str
        One expression for each component of the result; one for a number.
    is_bool : bool
        Whether the result is a truth value.
    """

    scalar: Scalar
    result: ElementType | None
    components: tuple[str, ...]
    steps: tuple[tuple[str, str], ...] = ()
    is_bool: bool = False


Rule = Callable[..., Expansion | None]
OPERATIONS: dict[str, Rule] = {}


def _operation(*names: str) -> Callable[[Rule], Rule]:
    def enter(rule: Rule) -> Rule:
        for name in names:
            OPERATIONS[name] = functools.partial(rule, name) if len(names) > 1 else rule
        return rule

    return enter


def expand(name: str, *operands: Operand) -> Expansion | None:
    """Return an operation on operands of these types in scalars, or None where there is none.

    Examples
    --------
    >>> from numbridge.kernels.element_types.elements import vec2
    >>> expand("dot", vec2, vec2).components
    ('a0 * b0 + a1 * b1',)
    """
    rule = OPERATIONS.get(name)
    if rule is None:
        return None
    try:
        return rule(*operands)
    except _NoneSuchError:
        return None


class _NoneSuchError(Exception):
    """An operation does not take operands of these types."""


def _require(condition: object) -> None:
    if not condition:
        raise _NoneSuchError


def _components(kind: ElementType, letter: str) -> list[str]:
    return [f"{letter}{k}" for k in range(kind.count)]


def _element(kind: Operand, *families: str) -> ElementType:
    if kind is None or (families and kind.family not in families):
        raise _NoneSuchError
    return kind


def _is_float(kind: ElementType) -> bool:
    return kind.scalar.is_float


def _sum(terms: list[str]) -> str:
    return " + ".join(terms)


def _dot(first: list[str], second: list[str]) -> str:
    return _sum([f"{p} * {q}" for p, q in zip(first, second, strict=True)])


_SIGNS = {"add": "+", "sub": "-", "cw_mul": "*", "cw_div": "/", "truediv": "/", "floordiv": "//", "mod": "%"}


@_operation("add", "sub", "cw_mul", "cw_div")
def _both(name: str, a: Operand, b: Operand) -> Expansion | None:
    kind = _element(a)
    _require(a is b and (name != "cw_div" or _is_float(kind)))
    _require(name in ("add", "sub") or kind.family in ("vector", "matrix"))
    parts = zip(_components(kind, "a"), _components(kind, "b"), strict=True)
    return Expansion(kind.scalar, kind, tuple(f"{p} {_SIGNS[name]} {q}" for p, q in parts))


@_operation("truediv", "floordiv", "mod")
def _divided(name: str, a: Operand, b: Operand) -> Expansion | None:
    kind = _element(a, "vector", "matrix", "quaternion")
    _require(b is None and (name != "truediv" or _is_float(kind)))
    return Expansion(kind.scalar, kind, tuple(f"{p} {_SIGNS[name]} b" for p in _components(kind, "a")))


@_operation("mul")
def _multiplied(a: Operand, b: Operand) -> Expansion | None:
    if a is None or b is None:
        kind, number, letter = (_element(a), "b", "a") if b is None else (b, "a", "b")
        _require(kind.family != "transform")
        return Expansion(kind.scalar, kind, tuple(f"{p} * {number}" for p in _components(kind, letter)))
    if a.family == "matrix" or b.family == "matrix":
        return _matrix_product(a, b)
    _require(a is b)
    if a.family == "quaternion":
        return Expansion(a.scalar, a, _quaternion_product(_components(a, "a"), _components(b, "b")))
    _require(a.family == "transform")
    first, second = _components(a, "a"), _components(b, "b")
    steps, moved = _rotation(first[3:], second[:3])
    place = tuple(f"{p} + {m}" for p, m in zip(first[:3], moved, strict=True))
    return Expansion(a.scalar, a, (*place, *_quaternion_product(first[3:], second[3:])), steps)


@_operation("matmul")
def _matrix_product(a: Operand, b: Operand) -> Expansion | None:
    left, right = _element(a, "matrix", "vector"), _element(b, "matrix", "vector")
    _require(left.scalar == right.scalar and "matrix" in (left.family, right.family))
    rows = _rows(left, "a") if left.family == "matrix" else [_components(left, "a")]
    columns = list(zip(*_rows(right, "b"), strict=True)) if right.family == "matrix" else [_components(right, "b")]
    _require(len(rows[0]) == len(columns[0]))
    if left.family == "matrix" and right.family == "matrix":
        result = matrix((len(rows), len(columns)), left.scalar)
    else:
        result = vector(len(rows) if left.family == "matrix" else len(columns), left.scalar)
    return Expansion(left.scalar, result, tuple(_dot(row, list(column)) for row in rows for column in columns))


def _rows(kind: ElementType, letter: str) -> list[list[str]]:
    rows, columns = kind.extents
    return [[f"{letter}{i * columns + j}" for j in range(columns)] for i in range(rows)]


@_operation("neg", "abs")
def _each(name: str, a: Operand) -> Expansion | None:
    kind = _element(a)
    form = "-{}" if name == "neg" else "abs({})"
    return Expansion(kind.scalar, kind, tuple(form.format(p) for p in _components(kind, "a")))


@_operation("pos")
def _same(a: Operand) -> Expansion | None:
    kind = _element(a)
    return Expansion(kind.scalar, kind, tuple(_components(kind, "a")))


@_operation("min", "max")
def _extreme(name: str, a: Operand, b: Operand | str = "") -> Expansion | None:
    kind = _element(a, "vector", "matrix")
    parts = _components(kind, "a")
    if isinstance(b, str):
        return Expansion(kind.scalar, None, (functools.reduce(lambda p, q: f"{name}({p}, {q})", parts),))
    _require(a is b)
    return Expansion(
        kind.scalar,
        kind,
        tuple(f"{name}({p}, {q})" for p, q in zip(parts, _components(kind, "b"), strict=True)),
    )


@_operation("eq", "ne")
def _compared(name: str, a: Operand, b: Operand) -> Expansion | None:
    kind = _element(a)
    _require(a is b)
    sign, joint = ("==", " & ") if name == "eq" else ("!=", " | ")
    parts = zip(_components(kind, "a"), _components(kind, "b"), strict=True)
    return Expansion(kind.scalar, None, (joint.join(f"({p} {sign} {q})" for p, q in parts),), is_bool=True)


@_operation("dot")
def _inner(a: Operand, b: Operand) -> Expansion | None:
    kind = _element(a, "vector", "quaternion")
    _require(a is b)
    return Expansion(kind.scalar, None, (_dot(_components(kind, "a"), _components(kind, "b")),))


@_operation("inner")
def _inner_product(a: Operand, b: Operand) -> Expansion | None:
    """For derivatives: the sum of the products of components, of elements of any family."""
    kind = _element(a)
    _require(a is b)
    return Expansion(kind.scalar, None, (_dot(_components(kind, "a"), _components(kind, "b")),))


@_operation("cross")
def _crossed(a: Operand, b: Operand) -> Expansion | None:
    kind = _element(a, "vector")
    _require(a is b and kind.count == 3)
    return Expansion(kind.scalar, kind, _cross(_components(kind, "a"), _components(kind, "b")))


def _cross(u: list[str], v: list[str]) -> tuple[str, ...]:
    return tuple(f"{u[i]} * {v[j]} - {u[j]} * {v[i]}" for i, j in ((1, 2), (2, 0), (0, 1)))


def _square(kind: ElementType) -> str:
    parts = _components(kind, "a")
    return _dot(parts, parts)


@_operation("length_sq")
def _length_squared(a: Operand) -> Expansion | None:
    kind = _element(a, "vector", "quaternion")
    return Expansion(kind.scalar, None, (_square(kind),))


@_operation("length")
def _norm(a: Operand) -> Expansion | None:
    kind = _element(a, "vector", "quaternion")
    _require(_is_float(kind))
    return Expansion(kind.scalar, None, (f"sqrt({_square(kind)})",))


@_operation("normalize")
def _normalized(a: Operand) -> Expansion | None:
    kind = _element(a, "vector", "quaternion")
    _require(_is_float(kind))
    # A vector of length 0 has no direction, and stays as it is.
    steps = (("n", f"sqrt({_square(kind)})"), ("s", "one / n if n > zero else zero"))
    return Expansion(kind.scalar, kind, tuple(f"{p} * s" for p in _components(kind, "a")), steps)


@_operation("outer")
def _outer(a: Operand, b: Operand) -> Expansion | None:
    left, right = _element(a, "vector"), _element(b, "vector")
    _require(left.scalar == right.scalar)
    parts = tuple(f"{p} * {q}" for p in _components(left, "a") for q in _components(right, "b"))
    return Expansion(left.scalar, matrix((left.count, right.count), left.scalar), parts)


@_operation("transpose")
def _transposed(a: Operand) -> Expansion | None:
    kind = _element(a, "matrix")
    rows, columns = kind.extents
    parts = tuple(part for column in zip(*_rows(kind, "a"), strict=True) for part in column)
    return Expansion(kind.scalar, matrix((columns, rows), kind.scalar), parts)


def _square_matrix(a: Operand, largest: int | None = None) -> ElementType:
    kind = _element(a, "matrix")
    _require(kind.extents[0] == kind.extents[1] and (largest is None or kind.extents[0] <= largest))
    return kind


@_operation("trace")
def _traced(a: Operand) -> Expansion | None:
    kind = _square_matrix(a)
    return Expansion(kind.scalar, None, (_sum([row[i] for i, row in enumerate(_rows(kind, "a"))]),))


@_operation("determinant")
def _determined(a: Operand) -> Expansion | None:
    kind = _square_matrix(a, 4)
    steps, _, determinant = _cofactors(_rows(kind, "a"))
    return Expansion(kind.scalar, None, (determinant,), steps)


@_operation("inverse")
def _inverted(a: Operand) -> Expansion | None:
    if a is not None and a.family == "quaternion":
        return _quaternion_inverse(a)
    kind = _square_matrix(a, 4)
    _require(_is_float(kind))
    steps, adjugate, determinant = _cofactors(_rows(kind, "a"))
    return Expansion(
        kind.scalar, kind, tuple(f"({p}) * s" for p in adjugate), (*steps, ("s", f"one / ({determinant})"))
    )


def _cofactors(m: list[list[str]]) -> tuple[tuple[tuple[str, str], ...], list[str], str]:
    """Return steps, the components of the adjugate and the determinant of a square matrix of up to 4 rows."""
    if len(m) == 1:
        return (), ["one"], m[0][0]
    if len(m) == 2:
        (a, b), (c, d) = m
        return (), [d, f"-{b}", f"-{c}", a], f"{a} * {d} - {b} * {c}"
    if len(m) == 3:
        columns = [_cross(m[1], m[2]), _cross(m[2], m[0]), _cross(m[0], m[1])]
        steps = tuple((f"c{j}{i}", columns[j][i]) for j in range(3) for i in range(3))
        adjugate = [f"c{j}{i}" for i in range(3) for j in range(3)]
        return steps, adjugate, _dot(m[0], ["c00", "c01", "c02"])
    return _cofactors_of_four(m)


def _cofactors_of_four(m: list[list[str]]) -> tuple[tuple[tuple[str, str], ...], list[str], str]:
    """Expand along pairs of rows: twelve determinants of 2 x 2 give everything."""
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    steps = [
        (f"{name}{i}{j}", f"{top[i]} * {low[j]} - {top[j]} * {low[i]}")
        for name, top, low in (("s", m[0], m[1]), ("t", m[2], m[3]))
        for i, j in pairs
    ]
    adjugate = [""] * 16
    for row in range(4):
        # The other row of the same pair, and the determinants of the other pair.
        other, name = m[row ^ 1], "t" if row < 2 else "s"
        for column in range(4):
            p, q, r = (k for k in range(4) if k != column)
            minor = f"{other[p]} * {name}{q}{r} - {other[q]} * {name}{p}{r} + {other[r]} * {name}{p}{q}"
            adjugate[column * 4 + row] = f"{'-' if (row + column) % 2 else ''}({minor})"
    determinant = "s01 * t23 - s02 * t13 + s03 * t12 + s12 * t03 - s13 * t02 + s23 * t01"
    return tuple(steps), adjugate, determinant


# Quaternions are (x, y, z, w), with the real part last.


def _quaternion_product(p: list[str], q: list[str]) -> tuple[str, ...]:
    x, y, z, w = p
    i, j, k, r = q
    return (
        f"{w} * {i} + {x} * {r} + {y} * {k} - {z} * {j}",
        f"{w} * {j} + {y} * {r} + {z} * {i} - {x} * {k}",
        f"{w} * {k} + {z} * {r} + {x} * {j} - {y} * {i}",
        f"{w} * {r} - {x} * {i} - {y} * {j} - {z} * {k}",
    )


def _rotation(q: list[str], v: list[str]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return steps and components of a vector rotated by a unit quaternion: v + 2 w (u x v) + 2 u x (u x v)."""
    first = ["t0", "t1", "t2"]
    steps = [(first[k], f"two * ({part})") for k, part in enumerate(_cross(q[:3], v))]
    second = _cross(q[:3], first)
    return tuple(steps), [f"({v[k]} + {q[3]} * {first[k]} + {second[k]})" for k in range(3)]


def _vector3(kind: Operand, scalar: Scalar) -> ElementType:
    found = _element(kind, "vector")
    _require(found.count == 3 and found.scalar == scalar)
    return found


@_operation("quat_rotate", "quat_rotate_inv")
def _rotated(name: str, a: Operand, b: Operand) -> Expansion | None:
    kind = _element(a, "quaternion")
    result = _vector3(b, kind.scalar)
    q = _components(kind, "a")
    steps, parts = _rotation(q if name == "quat_rotate" else _conjugated(q), _components(result, "b"))
    return Expansion(kind.scalar, result, tuple(parts), steps)


def _conjugated(q: list[str]) -> list[str]:
    return [*(f"(-{part})" for part in q[:3]), q[3]]


@_operation("quat_inverse")
def _quaternion_inverse(a: Operand) -> Expansion | None:
    kind = _element(a, "quaternion")
    _require(_is_float(kind))
    steps = (("s", f"one / ({_square(kind)})"),)
    return Expansion(kind.scalar, kind, tuple(f"{p} * s" for p in _conjugated(_components(kind, "a"))), steps)


@_operation("quat_to_matrix")
def _quaternion_matrix(a: Operand) -> Expansion | None:
    kind = _element(a, "quaternion")
    x, y, z, w = _components(kind, "a")
    parts = (
        f"one - two * ({y} * {y} + {z} * {z})",
        f"two * ({x} * {y} - {w} * {z})",
        f"two * ({x} * {z} + {w} * {y})",
        f"two * ({x} * {y} + {w} * {z})",
        f"one - two * ({x} * {x} + {z} * {z})",
        f"two * ({y} * {z} - {w} * {x})",
        f"two * ({x} * {z} - {w} * {y})",
        f"two * ({y} * {z} + {w} * {x})",
        f"one - two * ({x} * {x} + {y} * {y})",
    )
    return Expansion(kind.scalar, matrix((3, 3), kind.scalar), parts)


@_operation("quat_from_axis_angle")
def _axis_angle(a: Operand, b: Operand) -> Expansion | None:
    kind = _element(a, "vector")
    _require(kind.count == 3 and b is None and _is_float(kind))
    steps = (("h", "b / two"), ("s", "sin(h)"))
    parts = (*(f"{p} * s" for p in _components(kind, "a")), "cos(h)")
    return Expansion(kind.scalar, quaternion(kind.scalar), parts, steps)


@_operation("transform_point", "transform_vector")
def _transformed(name: str, a: Operand, b: Operand) -> Expansion | None:
    kind = _element(a, "transform")
    result, parts = _vector3(b, kind.scalar), _components(kind, "a")
    steps, moved = _rotation(parts[3:], _components(result, "b"))
    if name == "transform_point":
        moved = [f"{p} + {m}" for p, m in zip(parts[:3], moved, strict=True)]
    return Expansion(kind.scalar, result, tuple(moved), steps)


@_operation("transform_inverse")
def _transform_inverse(a: Operand) -> Expansion | None:
    kind = _element(a, "transform")
    parts = _components(kind, "a")
    turned = _conjugated(parts[3:])
    steps, moved = _rotation(turned, parts[:3])
    return Expansion(kind.scalar, kind, (*(f"-{m}" for m in moved), *turned), steps)


@_operation("matrix_from_rows", "matrix_from_cols")
def _gathered(name: str, *operands: Operand) -> Expansion | None:
    kinds = [_element(operand, "vector") for operand in operands]
    _require(kinds and all(kind is kinds[0] for kind in kinds) and len(kinds) <= len(_NAMES))
    rows = [_components(kind, letter) for kind, letter in zip(kinds, _NAMES, strict=False)]
    table = rows if name == "matrix_from_rows" else [list(column) for column in zip(*rows, strict=True)]
    result = matrix((len(table), len(table[0])), kinds[0].scalar)
    return Expansion(result.scalar, result, tuple(part for row in table for part in row))


_NAMES = "abcdef"


def implementation(expansion: Expansion, operands: tuple[Operand, ...], starred: str = "") -> str:
    """Return Python source of an operation as a function ``implementation(a, b, ...)``.

    With `starred`, the operands are one starred parameter of that name. It calls ``at(element, k)`` for a component,
    ``number(x)`` to convert a number, and ``make(*components)`` for its result.
    """
    names = _NAMES[: len(operands)]
    # A number is converted, and a name has one type.
    taken = [f"given_{name}" if kind is None else name for name, kind in zip(names, operands, strict=True)]
    lines = [f"def implementation({f'*{starred}' if starred else ', '.join(taken)}):"]
    if starred:
        lines += [f"    {name} = {starred}[{place}]" for place, name in enumerate(taken)]
    for name, kind in zip(names, operands, strict=True):
        if kind is None:
            lines.append(f"    {name} = number(given_{name})")
        else:
            lines += [f"    {name}{k} = at({name}, {k})" for k in range(kind.count)]
    lines += [f"    {name} = {value}" for name, value in expansion.steps]
    if expansion.result is not None:
        made = f"make({', '.join(expansion.components)})"
    elif expansion.is_bool or expansion.scalar.is_float:
        made = expansion.components[0]
    else:
        # Compiled code computes with wide integers, and Python with those of the type.
        made = f"number({expansion.components[0]})"
    return "\n".join([*lines, f"    return {made}", ""])


def computing_type(scalar: Scalar) -> Any:
    """Return the NumPy type that is computed with: float32 for floating types that are narrower."""
    return np.float32 if scalar.is_float and scalar.itemsize < 4 else scalar.numpy.type


def constants(scalar: Scalar) -> dict[str, Any]:
    """Return what an implementation's source refers to beside `at` and `make`, as far as it is the same everywhere."""
    kind = computing_type(scalar)
    return {
        "number": kind,
        "zero": kind(0),
        "one": kind(1),
        "two": kind(2),
        "sqrt": math.sqrt,
        "sin": math.sin,
        "cos": math.cos,
    }
