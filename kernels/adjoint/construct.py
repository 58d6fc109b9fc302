"""Adding operations to a program: typed, with the conversions that Numba would make written out."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.ir import Compute, Function, Names, Op, Region, Value
from numbridge.kernels.arithmetic.cpu_cuda_functions import NAMES as CUDA_FUNCTIONS
from numbridge.kernels.element_types.elements import Element
from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.language.rewriting import CUDA_FUNCTION

__all__ = ["ARITHMETIC", "BITS", "CAST", "HELD", "OF_HALVES", "OF_LIBDEVICE", "Construct"]

CAST = "cast"
# What has no derivative, because it cancels out of what is computed with it.
HELD = "held"
# What reads the bits of a number, through which no derivative goes, and which is no step either.
BITS = "bits"
# How the keys of functions of libdevice begin that have rules of their own.
OF_LIBDEVICE = "libdevice."
# And those of functions of numbers of 16 bits.
OF_HALVES = "halves."


def _infix(key: str, symbol: str, primitive: Any) -> Function:
    return Function(key, f"{{0}} {symbol} {{1}}", primitive)


def _math(name: str) -> Function:
    return Function(name, f"_nb_math.{name}({{0}})", getattr(math, name))


# What derivative rules and generated code may use, whatever the kernel itself uses.
ARITHMETIC: dict[str, Function] = {
    **{
        f.key: f
        for f in (
            _infix("add", "+", operator.add),
            _infix("sub", "-", operator.sub),
            _infix("mul", "*", operator.mul),
            _infix("div", "/", operator.truediv),
            _infix("floordiv", "//", operator.floordiv),
            _infix("mod", "%", operator.mod),
            _infix("pow", "**", operator.pow),
            _infix("lt", "<", operator.lt),
            _infix("le", "<=", operator.le),
            _infix("gt", ">", operator.gt),
            _infix("ge", ">=", operator.ge),
            _infix("eq", "==", operator.eq),
            _infix("ne", "!=", operator.ne),
            Function("neg", "-{0}", operator.neg),
            Function("not", "not {0}", operator.not_),
            Function("copysign", "_nb_math.copysign({0}, {1})", math.copysign),
            Function("abs", "_nb_math.fabs({0})", math.fabs),
            Function("fma", f"{CUDA_FUNCTION}fma({{0}}, {{1}}, {{2}})", CUDA_FUNCTIONS["fma"]),
            Function("hypot", "_nb_math.hypot({0}, {1})", math.hypot),
            Function("rint", "_nb_np.rint({0})", np.rint),
            Function("ldexp", "_nb_math.ldexp({0}, {1})", math.ldexp),
        )
    },
    **{
        name: _math(name)
        for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "log", "sqrt", "log1p", "expm1")
    },
}


_MODULES = {"_nb_math": math, "_nb_np": np}


class Construct:
    """Adds operations to a region.

    Parameters
    ----------
    names : Names
        For the values.
    namespace : dict
        The globals of the text, to which what operations refer to is added.
    prefix : str
        What the names of values begin with; with a prefix, they are not made from other names, so that they cannot
        meet those of adjoints and tangents.
    """

    def __init__(self, names: Names, namespace: dict[str, Any], prefix: str = "") -> None:
        self.names = names
        self.namespace = namespace
        self.prefix = prefix
        self.region: Region = []
        # Complex numbers by the parts that they were made of
        self.pairs: dict[Value, tuple[Value, Value]] = {}
        self.place: Any = None

    def add(self, op: Op) -> None:
        """Append an operation."""
        if op.place is None:
            op.place = self.place
        self.region.append(op)

    def value(self, base: str, kind: Any) -> Value:
        """Return a new value, which the caller must define."""
        return Value(self.names.fresh(self.prefix + base), kind)

    def constant(self, number: Any, kind: Any = None, *, literal: bool = False) -> Value:
        """Return a number of a type as a value that needs no operation."""
        kind = inference.constant_type(number) if kind is None else kind
        if isinstance(number, Element):
            numbers = number.numpy().reshape(-1).tolist()
            # What is no number has no literal.
            parts = ", ".join(repr(n) if np.isfinite(n) else self.constant(n, kind.dtype).name for n in numbers)
            return Value(f"{self.type_name(kind)}({parts})", kind, number)
        if isinstance(kind, types.Boolean):
            return Value(repr(bool(number)), kind, bool(number), literal)
        if str(kind) == "float64" and np.isfinite(number):
            return Value(f"{float(number)!r}" if number >= 0 else f"({float(number)!r})", kind, float(number), literal)
        if str(kind) == "int64" and isinstance(number, int):
            return Value(f"{number}" if number >= 0 else f"({number})", kind, number, literal)
        if not np.isfinite(number):
            # What is no number has no literal, and CUDA reads no strings.
            sign = "minus_" if number < 0 else ""
            name = f"_nb_{sign}{'nan' if np.isnan(number) else 'inf'}_{kind}"
            self.namespace[name] = getattr(np, str(kind))(number)
            return Value(name, kind, number)
        number = float(number) if inference.is_float_type(kind) else int(number)
        return Value(f"{self.type_name(kind)}({number!r})", kind, number)

    def zero(self, kind: Any) -> Value:
        """Return zero of a type."""
        element = inference.element_of(kind)
        if element is not None:
            return Value(f"{self.type_name(kind)}()", kind, element())
        return self.constant(0.0 if inference.is_float_type(kind) else 0, kind)

    def type_name(self, kind: Any) -> str:
        """Return how generated source names a type."""
        if isinstance(kind, types.Boolean):
            return "bool"
        element = inference.element_of(kind)
        if element is not None:
            self.namespace[f"_nb_{element.name}"] = element
            return f"_nb_{element.name}"
        if kind == types.float16 and self.place is not None:
            # Numbers of 16 bits are float32 once they are loaded: only components of elements are not.
            raise self.no_derivative_of("float16")
        name = f"_nb_{kind}"
        self.namespace[name] = getattr(np, str(kind))
        return name

    def no_derivative_of(self, scalar: str) -> KernelUnsupportedError:
        """Return the error for vectors and matrices of narrow floats, with its place."""
        source, node = self.place
        message = f"vectors and matrices of {scalar} have no derivative; use those of float32"
        error: KernelUnsupportedError = source.error(node, message, KernelUnsupportedError)
        return error

    def cast(self, value: Value, kind: Any) -> Value:
        """Return a value converted to a type."""
        if value.type == kind:
            return value
        if value.constant is not None and inference.is_float_type(kind):
            return self.constant(_rounded(value), kind)
        made = self.value("p" if self.prefix else _base(value), kind)
        name = self.type_name(kind)
        primitive = bool if name == "bool" else self.namespace[name]
        self.add(Compute(made, Function(CAST, f"{name}({{0}})", primitive), [value]))
        return made

    def compute(self, function: Function, arguments: Sequence[Value], base: str = "value") -> Value | None:
        """Return an operation's result, or None if Numba has no such operation for these types."""
        found = inference.result_type(function.primitive, arguments)
        if found is None:
            return None
        kind, wanted = found
        for name, module in _MODULES.items():
            if name in function.text:
                self.namespace[name] = module
        converted = [
            self.cast(argument, to)
            if inference.is_float_type(argument.type) and inference.is_float_type(to) and argument.type != to
            else argument
            for argument, to in zip(arguments, wanted, strict=True)
        ]
        made = self.value(base, kind)
        self.add(Compute(made, function, converted))
        return made

    def apply(self, key: str, *arguments: Value) -> Value:
        """Return the result of one of the operations of `ARITHMETIC`."""
        made = self.compute(ARITHMETIC[key], arguments, "p" if self.prefix else "value")
        if made is None:
            raise TypeError(f"{key} has no meaning for {', '.join(str(a.type) for a in arguments)}")
        return made

    def select(self, condition: Value, then: Value, orelse: Value) -> Value:
        """Return one of two values of one type."""
        made = self.value("p" if self.prefix else "value", then.type)
        self.add(Compute(made, Function("select", "{1} if {0} else {2}", None), [condition, then, orelse]))
        return made


def _rounded(value: Value) -> float:
    """Return a constant as it is in its own type: float32(0.1) is another number in float64 than 0.1."""
    if not inference.is_float_type(value.type):
        return float(value.constant)
    with np.errstate(over="ignore", under="ignore"):
        return float(getattr(np, str(value.type))(value.constant))


def _base(value: Value) -> str:
    """Return from what a value's name was made, or something neutral for a constant."""
    return value.name.removeprefix("_nb_") if value.constant is None and value.name.isidentifier() else "value"
