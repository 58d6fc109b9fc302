"""What a name or an expression of a kernel stands for while it is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.ir import Array, Value, is_records
from numbridge.kernels.adjoint.narrow_adjoints import is_narrow
from numbridge.kernels.adjoint.record_program import Records
from numbridge.kernels.language.tuple_parameters import remade
from numbridge.kernels.parameter_types import ArrayType, ParameterType

__all__ = [
    "UNASSIGNED",
    "Binding",
    "Missing",
    "OfHalves",
    "OfLibdevice",
    "Static",
    "View",
    "as_argument",
    "functions_among",
    "has_element",
    "kind_name",
    "kinds",
    "memory",
    "parameter_item",
    "readable",
]


@dataclass(frozen=True)
class Static:
    """Something that is known before the kernel runs and is no number: a function, a module, a dtype."""

    value: Any
    text: str


@dataclass(frozen=True)
class OfLibdevice:
    """What is known of a function of `numba.cuda.libdevice`."""

    name: str


@dataclass(frozen=True)
class OfHalves:
    """What is known of a function of `numba.cuda.fp16` or `numba.cuda.bf16`: its name with that of the module before it."""

    name: str


@dataclass(frozen=True)
class View:
    """An array, or the part of one that leading indices select; of complex numbers perhaps one `part`, 0 or 1."""

    array: Array
    index: tuple[Value, ...] = ()
    part: Value | None = None

    @property
    def ndim(self) -> int:
        """How many indices select one element."""
        return self.array.ndim if self.array.whole is None else self.array.ndim - len(self.array.whole.element.extents)

    @property
    def is_element(self) -> bool:
        """Whether it is one element."""
        return len(self.index) == self.ndim


@dataclass(frozen=True)
class Missing:
    """A variable that has no usable value here, why, and what to do."""

    why: str
    remedy: str = "assign it on every path before this"


Binding = Any  # Value | View | Window | Records | Static | Missing | tuple of bindings, which may be a named one
UNASSIGNED = Missing("may not have been assigned here")


def parameter_item(parameter: ParameterType) -> Array | Value:
    """Return the array or the value that a parameter is."""
    narrow = parameter.element is None and is_narrow(parameter.scalar)
    kind = types.float32 if narrow else inference.parameter_type(parameter)
    if isinstance(parameter, ArrayType):
        return Array(parameter.name, kind, parameter.ndim, narrow=narrow)
    return Value(parameter.name, kind)


def memory(array: Array) -> View | Records:
    """Return what the name of an array stands for."""
    return Records(array, (), (), array.dtype) if is_records(array) else View(array)


def has_element(*values: Value) -> bool:
    """Tell whether a vector or a matrix is among some values."""
    return any(inference.element_of(value.type) is not None for value in values)


def kind_name(item: Array | Value) -> str:
    """Return what a message calls the type of a value, or of an array's elements."""
    kind = item.dtype if isinstance(item, Array) else item.type
    element = inference.element_of(kind)
    return str(inference.complex_of(kind) or kind) if element is None or element.family == "complex" else element.name


def as_argument(value: Binding) -> Binding:
    """Return what a parameter holds: Numba compiles a function for types, so a literal is none inside."""
    if isinstance(value, tuple):
        return remade(value, map(as_argument, value))
    return Value(value.name, value.type, value.constant) if isinstance(value, Value) and value.literal else value


def kinds(item: Binding) -> Any:
    """Return what Numba compares of the elements of a tuple."""
    if isinstance(item, tuple):
        return tuple(map(kinds, item))
    return types.unliteral(item.type) if isinstance(item, Value) else item


def functions_among(given: Iterable[Binding]) -> tuple[str, ...]:
    """Return the functions that a function is given, in order, by what they are called."""
    return tuple(value.text for value in given if isinstance(value, Static))


def readable(name: str) -> str:
    """Return a variable's name for use in generated text, where the prefix is the generator's own."""
    return name.removeprefix("_nb_")
