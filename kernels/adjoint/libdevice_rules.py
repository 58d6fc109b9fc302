"""The functions of `numba.cuda.libdevice` in a program, and the derivatives of those that no function of Python is.

Which rule each name has is said here once; many have that of a function of `math`. Rounding in a direction changes no derivative:
it is that of the exact result. Nothing of this is imported before a kernel that is differentiated calls one of them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.construct import BITS, HELD, OF_LIBDEVICE, Construct
from numbridge.kernels.adjoint.ir import Compute, Function, Value
from numbridge.kernels.adjoint.rules import ONE, Expression, Partial, when
from numbridge.kernels.arithmetic.cpu_libdevice import signature
from numbridge.kernels.language.rewriting import LIBDEVICE

__all__ = ["RULES", "called"]

_ROOT_PI, _ROOT_TWO_PI = math.sqrt(math.pi), math.sqrt(2 * math.pi)
_FAR = 12  # from where the terms of a series tell more of erfcx than a difference does


def called(construct: Construct, name: str, arguments: Sequence[Value]) -> list[Value]:
    """Add a call of a function of libdevice to a program, with its arguments converted, and return its results.

    Raises
    ------
    TypeError
        If it takes another number of arguments.
    """
    declared = signature(name)
    if len(arguments) != len(declared.arguments):
        count = len(declared.arguments)
        raise TypeError(f"takes {count} argument{'s' * (count > 1)}, and is given {len(arguments)}")
    given = [construct.cast(value, kind) for value, kind in zip(arguments, declared.arguments, strict=True)]
    text = f"{LIBDEVICE}{name}({', '.join(f'{{{k}}}' for k in range(len(given)))})"
    made = []
    for k, (key, kind) in enumerate(zip(_keys(name), declared.results, strict=True)):
        made.append(construct.value("p" if construct.prefix else name, kind))
        part = text if len(declared.results) == 1 else f"{text}[{k}]"
        construct.add(Compute(made[-1], Function(key, part, None), given))
    return made


# Which rule


_AS_OTHERS = {
    "fabs": "abs",
    "nearbyint": "rint",
    "logb": "round",
    "remainder": "fmod",
    "fdivide": "div",
    "rcp": "reciprocal",
    "tgamma": "gamma",
}
_IN_PARTS = {
    "sincos": ("sin", "cos"),
    "sincospi": (f"{OF_LIBDEVICE}sinpi", f"{OF_LIBDEVICE}cospi"),
    "modf": (f"{OF_LIBDEVICE}same", "trunc"),
    "frexp": (f"{OF_LIBDEVICE}frexp", "integer"),
    "remquo": ("fmod", "integer"),
}
_BITS = {"double2hiint", "double2loint", "double_as_longlong", "float_as_int", "float2half_rn"}
_DIRECTED = re.compile(r"(?:[df](add|sub|mul|div|rcp|sqrt|rsqrt)|(fma)f?)_r[dnuz]")


def _keys(name: str) -> tuple[str, ...]:
    """Return the key of the rule of each result."""
    declared = signature(name)
    base = name.removeprefix("fast_")
    if name in _BITS:
        return (BITS,)
    if name.startswith("double2float"):
        return (f"{OF_LIBDEVICE}same",)
    if not any(map(inference.is_float_type, declared.results)) or not any(
        map(inference.is_float_type, declared.arguments)
    ):
        return ("integer",)
    found = _DIRECTED.fullmatch(base)
    if found is not None:
        base = found[1] or found[2]
    elif "float32" in map(str, declared.arguments):
        base = base.removesuffix("f")
    base = {"scalbn": "ldexp"}.get(base, base)
    if base in _IN_PARTS:
        return _IN_PARTS[base]
    return (f"{OF_LIBDEVICE}{base}" if f"{OF_LIBDEVICE}{base}" in RULES else _AS_OTHERS.get(base, base),)


# Derivatives

E = Expression


def _of(name: str, like: E, *arguments: Any) -> E:
    """Return what a function of libdevice makes of some arguments, in the precision of one of them."""
    construct = like.construct
    values = [each.value if isinstance(each, E) else construct.constant(each, like.value.type) for each in arguments]
    (made,) = called(construct, name if like.is_double else f"{name}f", values)
    return E(construct, made)


def _nested(z: E, numbers: Sequence[float]) -> E:
    """Return 1 - n0 z (1 - n1 z (1 - ...))."""
    last, *others = reversed(numbers)
    return functools.reduce(lambda inner, number: 1 - number * z * inner, others, 1 - last * z)


def _erfcx(a: E, r: E) -> tuple[Any, ...]:
    """Far out, what remains of the two terms is a small part of each (Abramowitz and Stegun, 7.1.23, term by term)."""
    far = a > _FAR
    b = far.where(a, _FAR)
    z = 0.5 / (b * b)
    return (far.where(-2 / _ROOT_PI * z * _nested(z, range(3, 20, 2)), 2 * a * r - 2 / _ROOT_PI),)


def _of_order(name: str) -> Callable[..., Any]:
    """Return the rule of a Bessel function (Abramowitz and Stegun, 9.1.27 and 9.1.5)."""

    def rule(n: E, a: E, r: E) -> tuple[Any, ...]:
        below = _of(name, a, n.equals(0).where(1, n - 1), a)
        return None, 0.5 * (n.equals(0).where(-below, below) - _of(name, a, n + 1, a))

    return rule


def _first_order(letter: str) -> Callable[..., Any]:
    def rule(a: E, r: E) -> tuple[Any, ...]:
        two = E(a.construct, a.construct.constant(2, signature(f"{letter}n").arguments[0]))
        return (0.5 * (_of(f"{letter}0", a, a) - _of(f"{letter}n", a, two, a)),)

    return rule


def _powi(a: E, n: E, r: E) -> tuple[Any, ...]:
    return n.cast(r) * _of("powi", a, a, n.equals(0).where(0, n - 1)), None


def _mantissa(a: E, r: E) -> tuple[Any, ...]:
    """A power of two, which stays the same."""
    return (a.equals(0).where(1, r / a).known_as(HELD),)


def _fdim(a: E, b: E, r: E) -> tuple[Any, ...]:
    above = a > b
    return when(above), Partial(negative=True, condition=above.value)


_OWN: dict[str, Callable[..., tuple[Any, ...]]] = {
    "same": lambda a, r: (ONE,),
    "saturate": lambda a, r: (when(r.equals(a)),),
    "fdim": _fdim,
    "frexp": _mantissa,
    "powi": _powi,
    "rsqrt": lambda a, r: (-0.5 * (r / a),),
    "rcbrt": lambda a, r: (-1 / 3 * (r / a),),
    "exp10": lambda a, r: (math.log(10) * r,),
    "sinpi": lambda a, r: (math.pi * _of("cospi", a, a),),
    "cospi": lambda a, r: (-math.pi * _of("sinpi", a, a),),
    "erfinv": lambda a, r: (0.5 * _ROOT_PI * (r * r).call("exp"),),
    "erfcinv": lambda a, r: (-0.5 * _ROOT_PI * (r * r).call("exp"),),
    "erfcx": _erfcx,
    "normcdf": lambda a, r: (1 / _ROOT_TWO_PI * (-0.5 * (a * a)).call("exp"),),
    "normcdfinv": lambda a, r: (_ROOT_TWO_PI * (0.5 * (r * r)).call("exp"),),
    "j0": lambda a, r: (-_of("j1", a, a),),
    "y0": lambda a, r: (-_of("y1", a, a),),
    "j1": _first_order("j"),
    "y1": _first_order("y"),
    "jn": _of_order("jn"),
    "yn": _of_order("yn"),
}
RULES = {f"{OF_LIBDEVICE}{name}": rule for name, rule in _OWN.items()}
"""Key → the partial derivatives by each argument, as in `rules.RULES`."""
