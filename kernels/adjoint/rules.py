"""The derivatives of everything that a kernel may compute: one table, which reverse and forward mode both read.

A rule takes the arguments and the result of an operation and returns one partial derivative for each argument: an
expression, `ONE`, `when(condition)` or `unless(condition)` (one where the condition holds or does not, and nothing of
the other side is touched), or None where the derivative is zero.

Where a derivative does not exist, NumPy's and Python's conventions are kept: of equal arguments, `min` and `max` return
the first, which gets the whole derivative; that of `abs` at 0 is 0, as are those of `length`, `normalize`, `hypot` and
`atan2` of zeros; steps (`floor`, `//`, `round`) have derivative 0, also on the step; `a % b` has derivative 1 with respect
to `a`.

A rule's expressions are differentiated again for second derivatives, so they are chosen such that these keep their digits:
``(1 - a) * (1 + a)`` is as good as ``1 - a * a`` rounded once, but its derivative is the difference of two numbers near 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.construct import CAST, HELD, OF_HALVES, OF_LIBDEVICE, Construct
from numbridge.kernels.adjoint.element_rules import ELEMENT_RULES, Linear, Part
from numbridge.kernels.adjoint.ir import Compute, Function, Value
from numbridge.kernels.arithmetic.cpu_cuda_functions import NAMES as CUDA_FUNCTIONS

__all__ = ["KEYS", "ONE", "RULES", "AnyPartial", "Expression", "Partial", "has_rule", "partials", "unless", "when"]


class Expression:
    """A value in a rule: arithmetic on it adds operations to a program."""

    __slots__ = ("construct", "value")

    def __init__(self, construct: Construct, value: Value) -> None:
        self.construct = construct
        self.value = value

    def _lift(self, other: Any) -> Value:
        return other.value if isinstance(other, Expression) else self.construct.constant(other, self.value.type)

    def call(self, key: str, *others: Any) -> Expression:
        """Apply an operation to this value and others."""
        return Expression(self.construct, self.construct.apply(key, self.value, *map(self._lift, others)))

    def _reversed(self, key: str, other: Any) -> Expression:
        return Expression(self.construct, self.construct.apply(key, self._lift(other), self.value))

    def __add__(self, other: Any) -> Expression:
        """Add."""
        return self.call("add", other)

    def __radd__(self, other: Any) -> Expression:
        """Add."""
        return self._reversed("add", other)

    def __sub__(self, other: Any) -> Expression:
        """Subtract."""
        return self.call("sub", other)

    def __rsub__(self, other: Any) -> Expression:
        """Subtract."""
        return self._reversed("sub", other)

    def __mul__(self, other: Any) -> Expression:
        """Multiply."""
        return self.call("mul", other)

    def __rmul__(self, other: Any) -> Expression:
        """Multiply."""
        return self._reversed("mul", other)

    def __truediv__(self, other: Any) -> Expression:
        """Divide."""
        return self.call("div", other)

    def __rtruediv__(self, other: Any) -> Expression:
        """Divide."""
        return self._reversed("div", other)

    def __neg__(self) -> Expression:
        """Negate."""
        return self.call("neg")

    def __lt__(self, other: Any) -> Expression:
        """Compare."""
        return self.call("lt", other)

    def __gt__(self, other: Any) -> Expression:
        """Compare."""
        return self.call("gt", other)

    def equals(self, other: Any) -> Expression:
        """Compare."""
        return self.call("eq", other)

    def where(self, then: Any, orelse: Any) -> Expression:
        """Return one of two values; this one is the condition."""
        like = then if isinstance(then, Expression) else orelse
        return Expression(self.construct, self.construct.select(self.value, like._lift(then), like._lift(orelse)))

    def cast(self, like: Expression) -> Expression:
        """Convert to another's type."""
        return Expression(self.construct, self.construct.cast(self.value, like.value.type))

    def known_as(self, key: str, *arguments: Expression) -> Expression:
        """Return this value as that of an operation with a rule of its own, whatever it was computed from.

        Its arguments are this value, by which the rule has no derivative, and those that are given.
        """
        made = self.construct.value("p" if self.construct.prefix else "value", self.value.type)
        operands = [self.value, *(argument.value for argument in arguments)]
        self.construct.add(Compute(made, Function(key, "{0}", None), operands))
        return Expression(self.construct, made)

    @property
    def constant(self) -> Any:
        """The number that this is, or None."""
        return self.value.constant

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point number."""
        return inference.is_float_type(self.value.type)

    @property
    def is_double(self) -> bool:
        """Whether squares of this are in range; those of float32 numbers below 1e-22 are zero, and above 1e19 infinite."""
        return str(self.value.type) == "float64"


@dataclass(frozen=True, slots=True)
class Partial:
    """A partial derivative: a factor (None is one), perhaps negated, perhaps only where a condition is as said."""

    factor: Value | None = None
    negative: bool = False
    condition: Value | None = None
    holds: bool = True

    @property
    def reads(self) -> tuple[Value, ...]:
        """The kernel's values that this uses."""
        return tuple(value for value in (self.factor, self.condition) if value is not None)

    def along(self, construct: Construct, value: Value) -> Value:
        """Return what a tangent adds to that of the result: for numbers the same as `times`."""
        return self.times(construct, value)

    def times(self, construct: Construct, value: Value) -> Value:
        """Return the derivative times a value."""
        if self.factor is not None:
            value = construct.apply("mul", value, construct.cast(self.factor, value.type))
        if self.negative:
            value = construct.apply("neg", value)
        if self.condition is not None:
            zero = construct.zero(value.type)
            value = construct.select(self.condition, *((value, zero) if self.holds else (zero, value)))
        return value


AnyPartial = Partial | Linear | Part
ONE, MINUS_ONE = Partial(), Partial(negative=True)


def when(condition: Expression) -> Partial:
    """One where a condition holds."""
    return Partial(condition=condition.value)


def unless(condition: Expression) -> Partial:
    """One where a condition does not hold."""
    return Partial(condition=condition.value, holds=False)


E = Expression
Rule = Callable[..., tuple[Any, ...]]
_ODD_BELOW = 2**24  # where every floating type has the odd numbers


def _pow(a: E, b: E, r: E) -> tuple[Any, ...]:
    by_exponent = r * _of_logarithm(a, b).call("log").cast(r) if b.is_float and b.constant is None else None
    match b.constant:
        case 0:
            return None, None
        case 1:
            return ONE, None
        case 2:
            return 2 * a.cast(r), None
    return b.cast(r) * _one_less(a, b).cast(r), by_exponent


def _one_less(a: E, b: E) -> E:
    """Return the power with an exponent that is one less."""
    if b.constant is not None and abs(b.constant) < _ODD_BELOW:
        return a.call("pow", _number(b.constant - 1, b))
    power = a.call("pow", _exponent_one_less(a, b))
    if not b.is_float:
        return power
    # Exponents so large that one less is the same number are even, and one less is odd.
    return power * (a < 0).where((b - (b - 1)).equals(1).where(_number(1.0, power), _number(-1.0, power)), 1)


def _exponent_one_less(a: E, b: E) -> E:
    """Return the exponent of a power's derivative: 0 * 0 ** -1 is no number, and the derivative of a constant is zero.

    Nothing is chosen afterwards, where a derivative of this one would still meet the infinity. Where the base has a reciprocal, a
    floating exponent of zero is one less, too: it may be differentiated.
    """
    constant = b.equals(0).where(0, b - 1)
    if not b.is_float:
        return constant
    least = float(np.finfo(str(a.value.type)).smallest_normal) / 4 if a.is_float else 0.0
    return (a.call("abs") > least).where(b - 1, constant)


def _of_logarithm(a: E, b: E) -> E:
    """Return a power's base, but one where it is zero and stays zero, whose logarithm is infinite."""
    return a.equals(0).where((b < 0).where(a, 1), a)


def _abs(a: E, r: E) -> tuple[Any, ...]:
    return ((a > 0).where(1, (a < 0).where(-1, 0 * a)),)


def _number(number: float, like: E) -> E:
    """Return a number of another's type, which is a literal where that is one."""
    return Expression(like.construct, like.construct.constant(number, like.value.type, literal=like.value.literal))


def _copysign(a: E, b: E, r: E) -> tuple[Any, ...]:
    one = _number(1.0, r)
    return one.call("copysign", a) * one.call("copysign", b), None


def _atan2(a: E, b: E, r: E) -> tuple[Any, ...]:
    if not r.is_double:
        return _angle(a, b, r)
    nowhere = a.equals(0).where(b.equals(0), False)
    x, y = nowhere.where(0, b), nowhere.where(0, a)
    square = nowhere.where(1, a * a + b * b)
    return x / square, -y / square


def _angle(a: E, b: E, r: E) -> tuple[Any, ...]:
    """The slopes of atan2, also where squares are out of range: of a complex number the size is asked for mostly, too."""
    nowhere = a.equals(0).where(b.equals(0), False)
    x, y = nowhere.where(0, b), nowhere.where(0, a)
    length = nowhere.where(1, a.call("hypot", b))
    return x / length / length, -(y / length / length)


def _hypot(a: E, b: E, r: E) -> tuple[Any, ...]:
    nowhere = r.equals(0)
    length = nowhere.where(1, r)
    return nowhere.where(0, a) / length, nowhere.where(0, b) / length


def _tanh(a: E, r: E) -> tuple[Any, ...]:
    """The square of 1 / cosh: 1 - r * r has few digits where r is nearly 1."""
    small = (-a.call("abs")).call("exp")
    root = 2 * small / (1 + small * small)
    return ((root * root).known_as("tanh_slope", a),)


def _less_square(a: E) -> E:
    """Return 1 - a * a, rounded once."""
    return (-a).call("fma", a, 1)


def _asinh(a: E, r: E) -> tuple[Any, ...]:
    return (1 / ((a * a + 1).call("sqrt") if r.is_double else a.call("hypot", 1)),)


def _first_if(surely: E, keeps: E) -> tuple[Any, ...]:
    """The first of two arguments, if that is sure or it wins or is equal; else the second."""
    chosen = surely.where(_true(surely), keeps)
    return when(chosen), unless(chosen)


def _of_powers(base: float) -> Rule:
    """The logarithm of a sum of powers, by the share of each; two of nothing have the whole each, rather than no number."""

    def share(x: E, r: E) -> E:
        same = x.equals(r)
        less = same.where(0, x) - same.where(0, r)
        return (less if base == math.e else math.log(base) * less).call("exp")

    return lambda a, b, r: (share(a, r), share(b, r))


_SHIFT = 10  # by which the argument of a logarithm's derivative is larger where its series is used


def _digamma(a: E) -> E:
    """Return the derivative of the logarithm of the gamma function (Abramowitz and Stegun, 6.3.5, 6.3.7 and 6.3.18).

    It is written such that it has derivatives of its own.
    """
    mirrored = a < 0.5
    y = mirrored.where(1 - a, a)
    w = y + _SHIFT
    z = 1 / (w * w)
    series = 1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * (691 / 32760 - z * (1 / 12))))))
    before = functools.reduce(lambda total, k: total + 1 / (y + k), range(1, _SHIFT), 1 / y)
    found = w.call("log") - 0.5 / w - z * series - before
    t = mirrored.where(a, 0.25)
    turned = math.pi * (t - t.call("rint"))
    return mirrored.where(found - math.pi * (turned.call("cos") / turned.call("sin")), found)


def _true(like: E) -> E:
    return Expression(like.construct, like.construct.constant(True))


_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)

RULES: dict[str, Rule] = {
    CAST: lambda a, r: (ONE,),
    HELD: lambda a, r: (None,),
    "pos": lambda a, r: (ONE,),
    "add": lambda a, b, r: (ONE, ONE),
    "sub": lambda a, b, r: (ONE, MINUS_ONE),
    "mul": lambda a, b, r: (b, a),
    "div": lambda a, b, r: (1 / b, -(r / b)),
    "neg": lambda a, r: (MINUS_ONE,),
    "fma": lambda a, b, c, r: (b, a, ONE),
    "pow": _pow,
    "mod": lambda a, b, r: (ONE, -a.call("floordiv", b)),
    # What is not the remainder is a multiple of b, but for its rounding.
    "fmod": lambda a, b, r: (ONE, -((a - r) / b).call("rint").cast(r)),
    "abs": _abs,
    # Python keeps its first argument unless the second is better, also where one is not a number.
    "min": lambda a, b, r: (unless(b < a), when(b < a)),
    "max": lambda a, b, r: (unless(b > a), when(b > a)),
    # Of a number and none, fmin and fmax keep the number, and minimum and maximum what is none.
    "fmin": lambda a, b, r: _first_if(b.call("ne", b), a.call("le", b)),
    "fmax": lambda a, b, r: _first_if(b.call("ne", b), a.call("ge", b)),
    "minimum": lambda a, b, r: _first_if(a.call("ne", a), a.call("le", b)),
    "maximum": lambda a, b, r: _first_if(a.call("ne", a), a.call("ge", b)),
    "select": lambda c, a, b, r: (None, when(c), unless(c)),
    "sin": lambda a, r: (a.call("cos"),),
    "cos": lambda a, r: (-a.call("sin"),),
    "tan": lambda a, r: (1 + r * r,),
    "asin": lambda a, r: (1 / _less_square(a).call("sqrt"),),
    "acos": lambda a, r: (-1 / _less_square(a).call("sqrt"),),
    "atan": lambda a, r: (1 / (1 + a * a),),
    "atan2": _atan2,
    "angle": _angle,
    "sinh": lambda a, r: (a.call("cosh"),),
    "cosh": lambda a, r: (a.call("sinh"),),
    "tanh": _tanh,
    "tanh_slope": lambda x, a, r: (None, -2 * a.call("tanh") * r),
    "asinh": _asinh,
    "acosh": lambda a, r: (1 / ((a - 1).call("sqrt") * (a + 1).call("sqrt")),),
    "atanh": lambda a, r: (1 / _less_square(a),),
    "exp": lambda a, r: (r,),
    "exp2": lambda a, r: (r * math.log(2),),
    "expm1": lambda a, r: (a.call("exp"),),
    "log": lambda a, r: (1 / a,),
    "log2": lambda a, r: (1 / math.log(2) / a,),
    "log10": lambda a, r: (1 / math.log(10) / a,),
    "log1p": lambda a, r: (1 / (1 + a),),
    "logaddexp": _of_powers(math.e),
    "logaddexp2": _of_powers(2),
    "gamma": lambda a, r: (r * _digamma(a),),
    "lgamma": lambda a, r: (_digamma(a),),
    "ldexp": lambda a, n, r: (_number(1.0, r).call("ldexp", n), None),
    "nextafter": lambda a, b, r: (ONE, None),
    "sqrt": lambda a, r: (0.5 / r,),
    "cbrt": lambda a, r: (1 / (3 * r * r),),
    "square": lambda a, r: (2 * a,),
    "reciprocal": lambda a, r: (-(r * r),),
    "hypot": _hypot,
    "copysign": _copysign,
    "erf": lambda a, r: (_TWO_OVER_ROOT_PI * (-(a * a)).call("exp"),),
    "erfc": lambda a, r: (-_TWO_OVER_ROOT_PI * (-(a * a)).call("exp"),),
    "degrees": lambda a, r: (_number(180 / math.pi, r),),
    "radians": lambda a, r: (_number(math.pi / 180, r),),
    **{step: lambda a, r: (None,) for step in ("floor", "ceil", "trunc", "rint", "sign", "round")},
    **{step: lambda a, b, r: (None, None) for step in ("floordiv", "round2")},
}
"""Key → the partial derivatives by each argument."""


def _numpy(*names: str) -> dict[Any, str]:
    return {getattr(np, name): name for name in names}


_MATH = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "hypot", "copysign", "erf", "erfc", "degrees"),
    *("radians", "pow", "fmod", "floor", "ceil", "trunc", "exp2", "cbrt", "gamma", "lgamma"),
    *("ldexp", "nextafter"),
)
_OTHERS: dict[str, tuple[Any, ...]] = {
    "test": (
        *(math.isnan, math.isinf, math.isfinite, np.isnan, np.isinf, np.isfinite, np.less, np.less_equal),
        *(np.greater, np.greater_equal, np.equal, np.not_equal, np.logical_and, np.logical_or, np.logical_xor),
        *(np.logical_not, np.signbit),
    ),
    "integer": (
        *(math.gcd, np.gcd, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert),
        *(CUDA_FUNCTIONS[name] for name in ("popc", "clz", "ffs", "brev")),
    ),
    "fma": (CUDA_FUNCTIONS["fma"],),
    "select": (CUDA_FUNCTIONS["selp"],),
    "asin": (np.arcsin,),
    "acos": (np.arccos,),
    "atan": (np.arctan,),
    "atan2": (np.arctan2,),
    "asinh": (np.arcsinh,),
    "acosh": (np.arccosh,),
    "atanh": (np.arctanh,),
    "radians": (np.deg2rad,),
    "degrees": (np.rad2deg,),
    "pow": (np.power, np.float_power, pow),
    "abs": (np.absolute, np.fabs, math.fabs, abs),
    "neg": (np.negative,),
    "pos": (np.positive,),
    "add": (np.add,),
    "sub": (np.subtract,),
    "mul": (np.multiply,),
    "div": (np.true_divide,),
    "floordiv": (np.floor_divide,),
    "mod": (np.remainder,),
    "fmod": (math.remainder,),
    "min": (min,),
    "max": (max,),
}
KEYS: dict[Any, str] = {
    **{getattr(math, name): name for name in _MATH if hasattr(math, name)},
    **_numpy("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    **_numpy("sqrt", "cbrt", "square", "reciprocal", "hypot", "copysign", "floor", "ceil", "trunc", "rint", "sign"),
    **_numpy("minimum", "maximum", "fmin", "fmax", "fmod", "degrees", "radians", "logaddexp", "logaddexp2"),
    **_numpy("nextafter", "spacing"),
    **{function: key for key, functions in _OTHERS.items() for function in functions},
}
"""What a kernel may call: the function itself → the key of its rule.

Functions without a rule may be called on what no gradient is asked of.
"""


def has_rule(key: str) -> bool:
    """Tell whether there is a rule for an operation."""
    return key in RULES or key in ELEMENT_RULES or key.startswith((OF_LIBDEVICE, OF_HALVES))


def _rule(key: str) -> Rule:
    if not key.startswith((OF_LIBDEVICE, OF_HALVES)):
        return RULES[key]
    # Rules that are seldom asked for, made of these
    from numbridge.kernels.adjoint import half_rules, libdevice_rules

    return (libdevice_rules.RULES | half_rules.RULES)[key]


def partials(construct: Construct, op: Compute) -> list[AnyPartial | None]:
    """Return an operation's partial derivatives by each of its arguments; what they compute is added to `construct`.

    Raises
    ------
    KeyError
        If there is no rule.
    """
    if op.function.key in ELEMENT_RULES:
        return list(ELEMENT_RULES[op.function.key](*op.arguments, op.result))
    given = [Expression(construct, value) for value in (*op.arguments, op.result)]
    found = _rule(op.function.key)(*given)
    return [Partial(p.value) if isinstance(p, Expression) else p for p in found]
