"""Complex numbers in a program: pairs of real ones, so that no rule of a derivative and nothing that writes text knows of them.

The gradient of a real number by a complex one is that by its real part, plus i times that by its imaginary part, as in PyTorch.
Functions are put together from real ones, by the formulas of M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions
(1964), section 4; on branch cuts they take the sides that C99 (annex G) does.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.construct import ARITHMETIC, HELD, Construct
from numbridge.kernels.adjoint.element_program import component_at, made_of
from numbridge.kernels.adjoint.ir import Compute, Function, Value

__all__ = [
    "called",
    "called_with_real",
    "conjugate",
    "converted",
    "has_complex",
    "of_number",
    "operate",
    "pair",
    "parts",
]

# Powers up to this are products.
_MOST_FACTORS = 16
_ATAN2 = Function("angle", "_nb_math.atan2({0}, {1})", math.atan2)


def has_complex(*values: Value) -> bool:
    """Tell whether a complex number is among some values."""
    return any(inference.complex_of(value.type) is not None for value in values)


def pair(construct: Construct, real: Value, imag: Value) -> Value:
    """Return the complex number of two parts of one type."""
    kind = inference.parts_of(types.complex128 if real.type == types.float64 else types.complex64)
    assert kind is not None
    made = made_of(construct, kind.element, [real, imag])
    construct.pairs[made] = real, imag
    return made


def parts(construct: Construct, value: Value) -> tuple[Value, Value]:
    """Return the real and the imaginary part."""
    if value in construct.pairs:
        return construct.pairs[value]
    if value.constant is not None:
        real, imag = (construct.constant(part, value.type.dtype) for part in value.constant)
        return real, imag
    return component_at(construct, value, 0), component_at(construct, value, 1)


def of_number(construct: Construct, number: complex, kind: Any) -> Value:
    """Return a number as a constant of a complex type of Numba's."""
    found = inference.parts_of(kind)
    assert found is not None
    return construct.constant(found.element(number.real, number.imag), found)


def converted(construct: Construct, value: Value, kind: Any) -> Value:
    """Return a number, which may be real, as one of another type of pairs."""
    if value.type == kind:
        return value
    if inference.complex_of(value.type) is None:
        return pair(construct, construct.cast(value, kind.dtype), construct.zero(kind.dtype))
    if value.constant is not None:
        return construct.constant(kind.element(*value.constant), kind)
    real, imag = (construct.cast(part, kind.dtype) for part in parts(construct, value))
    return pair(construct, real, imag)


def conjugate(construct: Construct, value: Value) -> Value:
    """Return the conjugate; a real number is its own."""
    if _is_real(value):
        return value
    real, imag = parts(construct, value)
    return pair(construct, real, construct.apply("neg", imag))


def operate(construct: Construct, function: Function, operands: Sequence[Value]) -> Value | None:
    """Return the result of an operator, or None where Numba has none for these operands."""
    key = function.key
    if key not in _OPERATORS:
        return None
    kinds = [Value(o.name, inference.complex_of(o.type) or o.type, o.constant, o.literal) for o in operands]
    found = inference.result_type(function.primitive, kinds)
    if found is None:
        return None
    of = found[0] if isinstance(found[0], types.Complex) else found[1][0]
    kind = inference.parts_of(of)
    assert kind is not None
    if key == "pow" and type(operands[1].constant) is int and operands[1].literal:
        power = operands[1].constant
        if abs(power) <= _MOST_FACTORS:
            return converted(construct, _whole_power(construct, operands[0], power), kind)
    given = [
        converted(construct, operand, kind) if has_complex(operand) else construct.cast(operand, kind.dtype)
        for operand in operands
    ]
    return _OPERATORS[key](construct, *given)


def called(construct: Construct, function: Any, arguments: Sequence[Value]) -> Any:
    """Return what a function of Python's or NumPy's gives of complex numbers, or None for one that is not known here."""
    key = _OPERATIONS.get(function)
    if key is not None:
        return operate(construct, ARITHMETIC[key], arguments) if len(arguments) == 2 or key == "neg" else None
    if function is cmath.log and len(arguments) == 2:
        both = [called_with_real(construct, function, [a]) if _is_real(a) else _log(construct, a) for a in arguments]
        return operate(construct, ARITHMETIC["div"], both)
    known = _FUNCTIONS.get(function)
    return None if known is None or len(arguments) != 1 else known(construct, arguments[0])


def called_with_real(construct: Construct, function: Any, arguments: Sequence[Value]) -> Any:
    """Return what a function of complex numbers gives of real ones, or None for one that is not known here."""
    if function is cmath.log and len(arguments) == 2:
        return called(construct, function, arguments)
    if function is cmath.rect and len(arguments) == 2:
        found = inference.result_type(function, arguments)
        if found is None:
            return None
        size, angle = (construct.cast(argument, kind) for argument, kind in zip(arguments, found[1], strict=True))
        return pair(construct, *(construct.apply("mul", size, construct.apply(f, angle)) for f in ("cos", "sin")))
    if len(arguments) != 1:
        return None
    if function in _OF_REAL:
        return _OF_REAL[function](construct, arguments[0])
    if function not in _FUNCTIONS or getattr(cmath, function.__name__, None) is not function:
        return None
    found = inference.result_type(function, arguments)
    kind = None if found is None else inference.parts_of(found[1][0])
    return None if kind is None else _FUNCTIONS[function](construct, converted(construct, arguments[0], kind))


# Operators, on numbers of which one may be real


def _is_real(value: Value) -> bool:
    return inference.complex_of(value.type) is None


def _both(construct: Construct, value: Value) -> tuple[Value, Value]:
    return (value, construct.zero(value.type)) if _is_real(value) else parts(construct, value)


def _add(c: Construct, a: Value, b: Value) -> Value:
    (ar, ai), (br, bi) = _both(c, a), _both(c, b)
    return pair(c, c.apply("add", ar, br), ai if _is_real(b) else bi if _is_real(a) else c.apply("add", ai, bi))


def _sub(c: Construct, a: Value, b: Value) -> Value:
    (ar, ai), (br, bi) = _both(c, a), _both(c, b)
    imag = ai if _is_real(b) else c.apply("neg", bi) if _is_real(a) else c.apply("sub", ai, bi)
    return pair(c, c.apply("sub", ar, br), imag)


def _mul(c: Construct, a: Value, b: Value) -> Value:
    if _is_real(b):
        a, b = b, a
    br, bi = parts(c, b)
    if _is_real(a):
        return pair(c, c.apply("mul", a, br), c.apply("mul", a, bi))
    ar, ai = parts(c, a)
    real = c.apply("sub", c.apply("mul", ar, br), c.apply("mul", ai, bi))
    return pair(c, real, c.apply("add", c.apply("mul", ar, bi), c.apply("mul", ai, br)))


def _quotient(c: Construct, a: Value, b: Value) -> Value:
    if _is_real(b):
        ar, ai = parts(c, a)
        return pair(c, c.apply("div", ar, b), c.apply("div", ai, b))
    br, bi = parts(c, b)
    # Scaled by the larger part of the divisor, no square is out of range.
    sizes = [c.apply("abs", part) for part in (br, bi)]
    scale = _held(c, c.select(c.apply("lt", *sizes), sizes[1], sizes[0]))
    unit_r, unit_i = c.apply("div", br, scale), c.apply("div", bi, scale)
    square = c.apply("add", c.apply("mul", br, unit_r), c.apply("mul", bi, unit_i))
    if _is_real(a):
        real, imag = c.apply("mul", a, unit_r), c.apply("neg", c.apply("mul", a, unit_i))
    else:
        ar, ai = parts(c, a)
        real = c.apply("add", c.apply("mul", ar, unit_r), c.apply("mul", ai, unit_i))
        imag = c.apply("sub", c.apply("mul", ai, unit_r), c.apply("mul", ar, unit_i))
    return pair(c, c.apply("div", real, square), c.apply("div", imag, square))


def _held(c: Construct, value: Value) -> Value:
    made = c.value("p" if c.prefix else "scale", value.type)
    c.add(Compute(made, Function(HELD, "{0}", None), [value]))
    return made


def _neg(c: Construct, a: Value) -> Value:
    real, imag = parts(c, a)
    return pair(c, c.apply("neg", real), c.apply("neg", imag))


def _eq(c: Construct, a: Value, b: Value) -> Value:
    (ar, ai), (br, bi) = _both(c, a), _both(c, b)
    return c.select(c.apply("eq", ar, br), c.apply("eq", ai, bi), c.constant(False))


def _ne(c: Construct, a: Value, b: Value) -> Value:
    return c.apply("not", _eq(c, a, b))


def _whole_power(c: Construct, a: Value, power: int) -> Value:
    """Return a power by an integer, by squares, as Numba computes it."""
    if power == 0:
        return converted(c, c.constant(1.0, a.type.dtype), a.type)
    base, made, rest = a, None, abs(power)
    while rest:
        if rest & 1:
            made = base if made is None else _mul(c, made, base)
        rest >>= 1
        base = _mul(c, base, base) if rest else base
    assert made is not None
    return made if power > 0 else _quotient(c, c.constant(1.0, a.type.dtype), made)


def _pow(c: Construct, a: Value, b: Value) -> Value:
    """Return ``exp(b log(a))``, and for a = 0 what the real part of the exponent decides."""
    kind = (a if not _is_real(a) else b).type
    a, b = converted(c, a, kind), converted(c, b, kind)
    real, imag = parts(c, a)
    zero, one = c.zero(kind.dtype), c.constant(1.0, kind.dtype)
    is_zero = _eq(c, a, zero)
    base = pair(c, c.select(is_zero, one, real), imag)
    pr, pi = parts(c, _exp(c, _mul(c, b, _log(c, base))))
    exponent = parts(c, b)[0]
    at_zero = c.select(_eq(c, b, zero), one, c.select(c.apply("gt", exponent, zero), zero, c.apply("div", one, zero)))
    made_r, made_i = c.select(is_zero, at_zero, pr), c.select(is_zero, zero, pi)
    # The first two powers are zero at zero, too, and have slopes there, as in a series of powers.
    for power, known in ((1.0, a), (2.0, _mul(c, a, a))):
        known_r, known_i = parts(c, known)
        is_known = c.select(is_zero, _eq(c, b, c.constant(power, kind.dtype)), c.constant(False))
        made_r, made_i = c.select(is_known, known_r, made_r), c.select(is_known, known_i, made_i)
    return pair(c, made_r, made_i)


_OPERATORS: dict[str, Callable[..., Value]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _quotient,
    "pow": _pow,
    "neg": _neg,
    "eq": _eq,
    "ne": _ne,
}


# Functions of one number


def _abs(c: Construct, a: Value) -> Value:
    return c.apply("hypot", *parts(c, a))


def _angle(c: Construct, a: Value) -> Value:
    real, imag = parts(c, a)
    made = c.compute(_ATAN2, [imag, real])
    assert made is not None
    return made


def _exp(c: Construct, a: Value) -> Value:
    real, imag = parts(c, a)
    size = c.apply("exp", real)
    return pair(c, c.apply("mul", size, c.apply("cos", imag)), c.apply("mul", size, c.apply("sin", imag)))


def _log(c: Construct, a: Value) -> Value:
    return pair(c, c.apply("log", _abs(c, a)), _angle(c, a))


def _log10(c: Construct, a: Value) -> Value:
    return _mul(c, _log(c, a), c.constant(1 / math.log(10), a.type.dtype))


def _sqrt(c: Construct, a: Value) -> Value:
    """The root is only taken of what is not zero, where its slope is infinite."""
    real, imag = parts(c, a)
    kind = a.type.dtype
    zero, one, half = (c.constant(number, kind) for number in (0.0, 1.0, 0.5))
    is_zero = _eq(c, a, zero)
    x = c.select(is_zero, one, real)
    size = c.apply("hypot", x, imag)
    is_right = c.apply("ge", x, zero)
    # Not abs, whose slope is zero at zero, where x and imag each may be.
    sided = c.select(is_right, x, c.apply("neg", x))
    root = c.apply("sqrt", c.apply("mul", half, c.apply("add", sided, size)))
    other = c.apply("div", c.apply("mul", half, imag), root)
    turned = c.apply("copysign", root, imag)
    made_r = c.select(is_right, root, c.apply("mul", c.apply("copysign", one, imag), other))
    made_i = c.select(is_right, other, turned)
    return pair(c, c.select(is_zero, zero, made_r), c.select(is_zero, zero, made_i))


def _circular(c: Construct, real: Value, imag: Value) -> tuple[Value, Value, Value, Value]:
    """Return sine and cosine of one number, and hyperbolic sine and cosine of another."""
    return c.apply("sin", real), c.apply("cos", real), c.apply("sinh", imag), c.apply("cosh", imag)


def _sin(c: Construct, a: Value) -> Value:
    sin, cos, sinh, cosh = _circular(c, *parts(c, a))
    return pair(c, c.apply("mul", sin, cosh), c.apply("mul", cos, sinh))


def _cos(c: Construct, a: Value) -> Value:
    sin, cos, sinh, cosh = _circular(c, *parts(c, a))
    return pair(c, c.apply("mul", cos, cosh), c.apply("neg", c.apply("mul", sin, sinh)))


def _sinh(c: Construct, a: Value) -> Value:
    sin, cos, sinh, cosh = _circular(c, *parts(c, a)[::-1])
    return pair(c, c.apply("mul", sinh, cos), c.apply("mul", cosh, sin))


def _cosh(c: Construct, a: Value) -> Value:
    sin, cos, sinh, cosh = _circular(c, *parts(c, a)[::-1])
    return pair(c, c.apply("mul", cosh, cos), c.apply("mul", sinh, sin))


def _tanh(c: Construct, a: Value) -> Value:
    """``(tanh x (1 + t²) + i t (1 - tanh² x)) / (1 + tanh² x t²)`` with t = tan y, none of which is out of range for large x."""
    real, imag = parts(c, a)
    one = c.constant(1.0, a.type.dtype)
    h, t = c.apply("tanh", real), c.apply("tan", imag)
    hh, tt = c.apply("mul", h, h), c.apply("mul", t, t)
    below = c.apply("add", one, c.apply("mul", hh, tt))
    return pair(
        c,
        c.apply("div", c.apply("mul", h, c.apply("add", one, tt)), below),
        c.apply("div", c.apply("mul", t, c.apply("sub", one, hh)), below),
    )


def _tan(c: Construct, a: Value) -> Value:
    """``-i tanh(i a)``"""
    real, imag = parts(c, a)
    made_r, made_i = parts(c, _tanh(c, pair(c, c.apply("neg", imag), real)))
    return pair(c, made_i, c.apply("neg", made_r))


def _polar(c: Construct, a: Value) -> tuple[Value, Value]:
    return _abs(c, a), _angle(c, a)


def _tested(c: Construct, name: str, value: Value) -> Value:
    made = c.compute(Function("test", f"_nb_math.{name}({{0}})", getattr(math, name)), [value])
    assert made is not None
    return made


def _either(c: Construct, name: str, a: Value) -> Value:
    real, imag = (_tested(c, name, part) for part in parts(c, a))
    return c.select(real, real, imag)


def _is_finite(c: Construct, a: Value) -> Value:
    real, imag = (_tested(c, "isfinite", part) for part in parts(c, a))
    return c.select(real, imag, real)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((abs, np.absolute), _abs),
    **dict.fromkeys((cmath.phase, np.angle), _angle),
    **dict.fromkeys((np.conjugate, np.conj), conjugate),
    np.real: lambda c, a: parts(c, a)[0],
    np.imag: lambda c, a: parts(c, a)[1],
    cmath.polar: _polar,
    **dict.fromkeys((cmath.isnan, np.isnan), lambda c, a: _either(c, "isnan", a)),
    **dict.fromkeys((cmath.isinf, np.isinf), lambda c, a: _either(c, "isinf", a)),
    **dict.fromkeys((cmath.isfinite, np.isfinite), _is_finite),
    np.square: lambda c, a: _mul(c, a, a),
    np.reciprocal: lambda c, a: _quotient(c, c.constant(1.0, a.type.dtype), a),
    **dict.fromkeys((cmath.exp, np.exp), _exp),
    **dict.fromkeys((cmath.log, np.log), _log),
    **dict.fromkeys((cmath.log10, np.log10), _log10),
    **dict.fromkeys((cmath.sqrt, np.sqrt), _sqrt),
    **dict.fromkeys((cmath.sin, np.sin), _sin),
    **dict.fromkeys((cmath.cos, np.cos), _cos),
    **dict.fromkeys((cmath.tan, np.tan), _tan),
    **dict.fromkeys((cmath.sinh, np.sinh), _sinh),
    **dict.fromkeys((cmath.cosh, np.cosh), _cosh),
    **dict.fromkeys((cmath.tanh, np.tanh), _tanh),
}
_OF_REAL: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((np.conjugate, np.conj, np.real), conjugate),
    np.imag: lambda c, a: c.zero(a.type),
}
_OPERATIONS: dict[Any, str] = {
    pow: "pow",
    np.power: "pow",
    np.true_divide: "div",
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.negative: "neg",
    np.equal: "eq",
    np.not_equal: "ne",
}
