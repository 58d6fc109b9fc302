"""From the program of a kernel to the list of operations on whole arrays that it is, if every thread keeps to its own element.

A branch becomes a choice between what both sides compute, an array that is written becomes the value that the thread's element
has. Conversions that Numba makes are written out. Whatever needs more than a thread's own element is refused, and so is what XLA
defines otherwise than the compiled kernel (divisions of integers, conversions to integers, shifts). Importing this module imports
Numba.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numbridge.jax_ffi.pointwise import KEPT, READ, SCALAR, UNSET, ZERO, Pointwise, Step, is_denormal
from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.construct import CAST
from numbridge.kernels.adjoint.ir import (
    Array,
    Compute,
    Custom,
    If,
    Load,
    Op,
    Program,
    Raise,
    Region,
    Shape,
    Store,
    Value,
)
from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.language.rewriting import Rewritten

__all__ = ["check_prints", "flattened"]

_FLOATS = ("float32", "float64")
_SIGNED = ("int8", "int16", "int32", "int64")
_DTYPES = frozenset(("bool", *_SIGNED, "uint8", "uint16", "uint32", "uint64", *_FLOATS))
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_ARITHMETIC = frozenset(("add", "sub", "mul"))
_WIDENED = frozenset((*_ARITHMETIC, "pos"))
# What is the same function of floating-point numbers in both, to the last bit.
_ROUNDED = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "rint": "rint", "abs": "abs"}
_BITWISE: dict[Any, str] = {
    operator.and_: "and",
    operator.or_: "or",
    operator.xor: "xor",
    np.bitwise_and: "and",
    np.bitwise_or: "or",
    np.bitwise_xor: "xor",
}
_TESTS: dict[Any, str] = {
    math.isnan: "isnan",
    math.isinf: "isinf",
    math.isfinite: "isfinite",
    np.isnan: "isnan",
    np.isinf: "isinf",
    np.isfinite: "isfinite",
}
# What XLA computes too, but with another last digit.
_INEXACT = frozenset(
    (
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("exp", "exp2", "expm1", "log", "log1p", "cbrt", "erf", "erfc", "pow", "hypot"),
    )
)


def flattened(program: Program, roles: Mapping[str, str], *, fastmath: bool) -> Pointwise:
    """Return the list of operations of a program.

    Parameters
    ----------
    program : Program
        A kernel, or a tangent of one.
    roles : mapping of str to str
        What each of its parameters is to a thread.
    fastmath : bool
        Whether the compiled kernel itself may round otherwise.

    Raises
    ------
    KernelUnsupportedError
        If it is not pointwise; the message shows where, and what to do.
    """
    return _Reader(program, roles, exact=not fastmath).read()


def check_prints(rewritten: Rewritten) -> None:
    """Refuse kernels that print, which a program does not say."""
    name = rewritten.printing()
    if name is not None:
        raise KernelUnsupportedError(f"{name} prints; take that out")


class _Reader:
    """Reads one program."""

    def __init__(self, program: Program, roles: Mapping[str, str], *, exact: bool) -> None:
        self._program, self._roles, self._exact = program, roles, exact
        self._steps: list[Step] = []
        self._numbers: dict[Any, int] = {}
        self._values: dict[int, int] = {}
        # Steps whose results come from a product without rounding in between, and those that are the same for all threads.
        self._products: set[int] = set()
        self._uniform: set[int] = set()
        self._extents: set[tuple[str, int, int]] = set()
        self._constant: set[tuple[str, int, int]] = set()
        self._held: dict[str, int | None] = {}
        self._place: Any = None

    def read(self) -> Pointwise:
        """Return the list."""
        for number, value in enumerate(self._program.indices):
            self._values[id(value)] = self._step("index", (), "int64", (number,))
        written: dict[str, Any] = {
            p.name: p.item for p in self._program.parameters if self._roles[p.name] in (KEPT, ZERO, UNSET)
        }
        for parameter in self._program.parameters:
            if self._roles[parameter.name] == SCALAR:
                self._values[id(parameter.item)] = self._scalar(parameter.item)
        for name, item in written.items():
            self._held[name] = self._initial(name, item)
        self._region(self._program.body)
        return self._result(written)

    def _result(self, written: Mapping[str, Any]) -> Pointwise:
        results = {}
        for name, held in self._held.items():
            if held is None:
                raise self._refused(f"{name} is not stored to on every path; store to it in all of them")
            results[name] = held
        needed = set(results.values())
        for number in reversed(range(len(self._steps))):
            if number in needed:
                needed.update(self._steps[number].operands)
        places = {old: new for new, old in enumerate(sorted(needed))}
        steps = tuple(
            Step(s.operation, tuple(places[k] for k in s.operands), s.dtype, s.facts)
            for s in (self._steps[k] for k in sorted(needed))
        )
        return Pointwise(
            steps,
            {name: places[k] for name, k in results.items()},
            frozenset(self._extents),
            frozenset(self._constant),
            {name: item.ndim for name, item in written.items()},
            self._exact,
        )

    # Steps

    def _refused(self, message: str) -> KernelUnsupportedError:
        if self._place is None:
            return KernelUnsupportedError(message)
        source, node = self._place
        error: KernelUnsupportedError = source.error(node, message, KernelUnsupportedError)
        return error

    def _step(self, operation: str, operands: tuple[int, ...], dtype: str, facts: tuple[Any, ...] = ()) -> int:
        """Return the number of a step, the same for the same step."""
        key = (operation, operands, dtype, repr(facts))
        if key not in self._numbers:
            self._numbers[key] = len(self._steps)
            self._steps.append(Step(operation, operands, dtype, facts))
        return self._numbers[key]

    def _constant_step(self, value: Any, dtype: str) -> int:
        made = self._step("constant", (), dtype, (value,))
        self._uniform.add(made)
        if dtype in _FLOATS and is_denormal(np.dtype(dtype).type(value)):
            self._exact = False
        return made

    def _computed(self, operation: str, operands: tuple[int, ...], dtype: str) -> int:
        """Return a step that computes something, and note whether XLA computes the same."""
        made = self._step(operation, operands, dtype)
        floats = [k for k in operands if self._steps[k].dtype in _FLOATS]
        if self._uniform.issuperset(operands):
            self._uniform.add(made)
            if floats and operation != "select" and not self._widens(operation, operands, dtype):
                # What does not vary a compiler may compute beforehand, and there denormal numbers are not zero.
                self._exact = False
        if operation in ("add", "sub") and not self._products.isdisjoint(floats):
            # XLA's compiler makes one operation of a product and a sum, which rounds once.
            self._exact = False
        is_product = operation == "mul" or not self._products.isdisjoint(floats)
        if dtype in _FLOATS and is_product and operation not in ("div", "sqrt"):
            self._products.add(made)
        return made

    def _dtype(self, kind: Any, what: str) -> str:
        if str(kind) not in _DTYPES:
            raise self._refused(f"{what} is {kind}, and only truth values, integers, float32 and float64 can be fused")
        return str(kind)

    def _widens(self, operation: str, operands: tuple[int, ...], dtype: str) -> bool:
        """Tell whether a given number becomes a float64, which has the same value unless the number is denormal."""
        given = self._steps[operands[0]].operation in ("scalar", "constant")
        return given and operation == "convert" and dtype == "float64"

    def _scalar(self, item: Any) -> int:
        made = self._step("scalar", (), self._dtype(item.type, item.name), (item.name,))
        self._uniform.add(made)
        return made

    def _initial(self, name: str, item: Array) -> int | None:
        """Return what a thread's element of an array that is written holds at first."""
        dtype, role = self._array(item), self._roles[name]
        self._extents |= {(name, axis, axis) for axis in range(item.ndim)}
        if role == KEPT:
            return self._step("load", (), dtype, (name, tuple(("index", axis) for axis in range(item.ndim))))
        return self._constant_step(0, dtype) if role == ZERO else None

    def _array(self, item: Array) -> str:
        """Return the dtype of an array that can be an operand of XLA's."""
        if item.kind != "parameter" or item.owner is not None or item.narrow:
            what = (
                "16-bit floats" if item.narrow else "structures" if item.owner is not None else f"a {item.kind} array"
            )
            raise self._refused(f"{item.called} is of {what}, which cannot be fused; use arrays of numbers")
        return self._dtype(item.dtype, item.name)

    def _of(self, value: Value) -> int:
        """Return the step of a value."""
        found = self._values.get(id(value))
        if found is not None:
            return found
        if value.constant is None:
            raise self._refused("the kernel asks for its block or grid, of which XLA knows nothing; use nb.tid() only")
        return self._constant_step(value.constant, self._dtype(value.type, value.name))

    def _converted(self, number: int, dtype: str) -> int:
        """Return a step converted as Numba converts it."""
        own = self._steps[number].dtype
        if own == dtype:
            return number
        if dtype == "bool":
            return self._computed("ne", (number, self._constant_step(0, own)), "bool")
        if own in _FLOATS and dtype not in _FLOATS:
            raise self._refused(
                f"{own} is converted to {dtype}, which XLA defines otherwise for numbers that do not fit; keep it a float"
            )
        return self._computed("convert", (number,), dtype)

    # Operations

    def _region(self, region: Region) -> None:
        for op in region:
            self._place = op.place or self._place
            self._operation(op)

    def _operation(self, op: Op) -> None:
        match op:
            case Compute():
                self._values[id(op.result)] = self._compute(op)
            case Shape():
                made = self._step("extent", (), "int64", (op.array.name, op.axis))
                self._uniform.add(made)
                self._values[id(op.result)] = made
            case Load():
                self._values[id(op.result)] = self._load(op.array, op.index)
            case Store():
                self._store(op)
            case If():
                self._if(op)
            case Custom():
                self._region(op.body)
                for result, inner in zip(op.results, op.inner, strict=True):
                    self._values[id(result)] = self._of(inner)
            case Raise():
                raise self._refused("the kernel raises an exception, and XLA has none; take that out")
            case _:
                what = {"Loop": "a loop", "Atomic": "an atomic operation"}.get(type(op).__name__, type(op).__name__)
                raise self._refused(f"{what} is more than one operation for each element; write it without")

    def _load(self, array: Array, index: Sequence[Value]) -> int:
        dtype = self._array(array)
        if self._roles[array.name] != READ:
            self._check_own(array, index)
            held = self._held[array.name]
            if held is None:
                raise self._refused(f"{array.name} is read before it is stored to; name it in in_out_argnames")
            return held
        places = [self._axis(array, axis, value) for axis, value in enumerate(index)]
        numbers = [number for kind, number in places if kind == "index"]
        if numbers != sorted(set(numbers)):
            raise self._refused(f"{array.name} is read across the launch; use the thread indices in their order")
        made = self._step("load", (), dtype, (array.name, tuple(places)))
        if not numbers:
            self._uniform.add(made)
        return made

    def _axis(self, array: Array, axis: int, value: Value) -> tuple[str, int]:
        """Return what selects along an axis: a thread index, or a constant place."""
        step = self._steps[self._of(value)]
        if step.operation == "index":
            self._extents.add((array.name, axis, step.facts[0]))
            return "index", step.facts[0]
        if step.operation == "constant" and step.dtype != "bool":
            self._constant.add((array.name, axis, int(step.facts[0])))
            return "constant", int(step.facts[0])
        raise self._refused(
            f"{array.name} is read at an index that is computed; a thread may read its own element, and elements at constant "
            "places"
        )

    def _check_own(self, array: Array, index: Sequence[Value]) -> None:
        steps = [self._steps[self._of(value)] for value in index]
        if [(s.operation, s.facts) for s in steps] != [("index", (axis,)) for axis in range(array.ndim)]:
            raise self._refused(
                f"{array.name} is used at another place than the thread's own element, all thread indices in their order"
            )

    def _store(self, op: Store) -> None:
        dtype = self._array(op.array)
        if op.array.name not in self._held:
            raise self._refused(f"{op.array.name} is stored to, and is no output")
        self._check_own(op.array, op.index)
        self._held[op.array.name] = self._converted(self._of(op.value), dtype)

    def _if(self, op: If) -> None:
        condition = self._converted(self._of(op.condition), "bool")
        known = self._steps[condition]
        if known.operation == "constant":
            self._region(op.then if known.facts[0] else op.orelse)
            for merge in op.merges:
                self._values[id(merge.result)] = self._of(merge.then if known.facts[0] else merge.orelse)
            return
        before = dict(self._held)
        self._region(op.then)
        then, self._held = self._held, dict(before)
        self._region(op.orelse)
        for name, other in self._held.items():
            first = then[name]
            self._held[name] = None if first is None or other is None else self._select(condition, first, other)
        for merge in op.merges:
            self._values[id(merge.result)] = self._select(condition, self._of(merge.then), self._of(merge.orelse))

    def _select(self, condition: int, then: int, orelse: int) -> int:
        if then == orelse:
            return then
        return self._computed("select", (condition, then, orelse), self._steps[then].dtype)

    # Functions

    def _compute(self, op: Compute) -> int:
        key, primitive = op.function.key, op.function.primitive
        dtype = self._dtype(op.result.type, op.result.name)
        given = [self._of(argument) for argument in op.arguments]
        if key == CAST:
            return self._converted(given[0], dtype)
        if key == "select":
            return self._select(self._converted(given[0], "bool"), given[1], given[2])
        found = inference.result_type(primitive, op.arguments)
        if found is None:
            raise self._refused(f"{op.function.text} cannot be fused")
        if key == "pow" and op.arguments[1].literal and op.arguments[1].constant == 2:
            base = self._converted(given[0], dtype)
            return self._computed("mul", (base, base), dtype)
        wanted = [self._dtype(kind, "an operand") for kind in found[1]]
        if dtype in _FLOATS or (dtype != "bool" and (key in _WIDENED or primitive in _BITWISE)):
            # Numba converts to the result's type before it computes, but for what it says is given.
            wanted = [dtype] * len(given)
        arguments = tuple(self._converted(k, to) for k, to in zip(given, wanted, strict=True))
        made = self._applied(key, primitive, arguments, dtype)
        if made is None:
            raise self._refused(
                f"{op.function.text.format(*op.arguments)} cannot be fused: XLA has no operation that surely computes the same"
            )
        return made

    def _applied(self, key: str, primitive: Any, arguments: tuple[int, ...], dtype: str) -> int | None:
        """Return the step of a function of operands that are converted already; None if XLA has none."""
        kinds = {self._steps[k].dtype for k in arguments}
        is_float, same = dtype in _FLOATS, len(kinds) == 1
        alike = kinds == {dtype}
        if key in _COMPARISONS and same:
            return self._compared(key, *arguments)
        if key == "not":
            return self._computed("not", (self._converted(arguments[0], "bool"),), "bool")
        if key == "pos" and alike:
            return arguments[0]
        if key in _ARITHMETIC and alike and dtype != "bool":
            is_size = key == "mul" and self._is_one(arguments[0])
            return arguments[1] if is_size else self._computed(key, arguments, dtype)
        if (key == "neg" or primitive is operator.invert) and "bool" not in kinds:
            # Numba widens what it has negated or inverted: of an unsigned number, that is not the same of the wider one.
            made = self._computed("neg" if key == "neg" else "not", arguments, self._steps[arguments[0]].dtype)
            return self._converted(made, dtype)
        if key in ("min", "max") and alike:
            # As Python: the first unless the second is better.
            first, second = arguments
            return self._select(self._compared("lt" if key == "min" else "gt", second, first), second, first)
        if key == "integer" and alike and primitive in _BITWISE and not is_float:
            return self._computed(_BITWISE[primitive], arguments, dtype)
        if key == "test":
            return self._test(primitive, arguments, dtype)
        return self._of_floats(key, arguments, dtype) if is_float and alike else self._absolute(key, arguments, dtype)

    def _absolute(self, key: str, arguments: tuple[int, ...], dtype: str) -> int | None:
        if key != "abs" or dtype not in _SIGNED or self._steps[arguments[0]].dtype != dtype:
            return None
        (value,) = arguments
        is_negative = self._computed("lt", (value, self._constant_step(0, dtype)), "bool")
        return self._select(is_negative, self._computed("neg", arguments, dtype), value)

    def _of_floats(self, key: str, arguments: tuple[int, ...], dtype: str) -> int | None:
        if key == "div":
            return self._computed("div", arguments, dtype)
        if key == "square":
            return self._computed("mul", arguments * 2, dtype)
        if key == "reciprocal":
            return self._computed("div", (self._constant_step(1.0, dtype), *arguments), dtype)
        if key in _ROUNDED:
            return self._computed(_ROUNDED[key], arguments, dtype)
        if key in _INEXACT:
            self._exact = False
            return self._computed(key, arguments, dtype)
        return None

    def _is_one(self, number: int) -> bool:
        """Tell whether a step is the integer one, by which the size of an array of one dimension is its extent."""
        step = self._steps[number]
        return step.operation == "constant" and step.facts[0] == 1 and step.dtype not in _FLOATS

    def _test(self, primitive: Any, arguments: tuple[int, ...], dtype: str) -> int | None:
        (value,) = arguments
        own = self._steps[value].dtype
        if primitive is bool or primitive is int:
            return self._converted(value, dtype)
        if primitive not in _TESTS or own not in _FLOATS:
            return None
        if _TESTS[primitive] == "isnan":
            return self._computed("ne", (value, value), "bool")
        size, infinity = self._computed("abs", (value,), own), self._constant_step(math.inf, own)
        return self._computed("eq" if _TESTS[primitive] == "isinf" else "lt", (size, infinity), "bool")

    def _compared(self, key: str, first: int, second: int) -> int:
        """Return a comparison; of a thread index with an extent, or with zero, its result is known."""
        a, b = self._steps[first], self._steps[second]
        if b.operation == "index" and key in _MIRRORED:
            first, second, a, b, key = second, first, b, a, _MIRRORED[key]
        if a.operation == "index" and key in ("lt", "ge"):
            if b.operation == "extent":
                # The index is below the extent of its launch dimension, which the array must have therefore.
                self._extents.add((*b.facts, a.facts[0]))
                return self._constant_step(key == "lt", "bool")
            if b.operation == "constant" and b.facts[0] == 0:
                return self._constant_step(key == "ge", "bool")
        return self._computed(key, (first, second), "bool")


_MIRRORED = {"gt": "lt", "le": "ge", "lt": "gt", "ge": "le"}
