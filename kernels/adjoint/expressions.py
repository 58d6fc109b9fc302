"""Expressions of a kernel as values of a program."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import operator
from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import EllipsisType, ModuleType
from typing import Any, TypeGuard

import numpy as np
from numba import types

from numbridge.kernels.adjoint import complex_program, inference, windows
from numbridge.kernels.adjoint.bindings import (
    UNASSIGNED,
    Binding,
    Missing,
    OfHalves,
    OfLibdevice,
    Static,
    View,
    has_element,
    kind_name,
    kinds,
)
from numbridge.kernels.adjoint.construct import ARITHMETIC
from numbridge.kernels.adjoint.element_program import component_at, made_of, named_part, operate, part
from numbridge.kernels.adjoint.ir import Array, Function, Load, Shape, Value
from numbridge.kernels.adjoint.memory_parts import (
    ComponentRangeError,
    MemoryPart,
    NeedsComponentsError,
    whole_element,
)
from numbridge.kernels.adjoint.record_program import Records, why_no_derivative
from numbridge.kernels.adjoint.rules import KEYS
from numbridge.kernels.adjoint.scope import Scope
from numbridge.kernels.adjoint.windows import Cut, Span, Window
from numbridge.kernels.arithmetic.cpu_cuda_functions import NAMES as CUDA_FUNCTIONS
from numbridge.kernels.element_types.elements import OF_CONSTANTS, ElementType, beyond, sliced
from numbridge.kernels.language.kernel_syntax import RESERVED
from numbridge.kernels.language.rewriting import CUDA_FUNCTION, HALVES, LIBDEVICE
from numbridge.kernels.language.tuple_parameters import is_named_tuple
from numbridge.kernels.language.vector_types import VECTOR_TYPES

__all__ = ["Expressions", "has_slice"]

_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
}
_INTEGER = {
    ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift),
    ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_),
    ast.BitXor: ("^", operator.xor),
}
_COMPARISON = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
# What Python's operators are called in the table of what elements can do.
_ON_ELEMENTS: dict[Any, str] = {**_BINARY, ast.MatMult: "matmul", ast.Div: "truediv"}
_BITS = 63  # of an integer without its sign
# What to write instead of a method of an array
_SWAPPED = "swap the indices of its elements instead, as in a[j, i]"
_ITS_OWN = "index its elements by its own dimensions, as in a[k // n, k % n]"
_LOOP = "write a loop over its elements"
_IN_PLACE_OF = {
    **dict.fromkeys(("transpose", "T"), _SWAPPED),
    **dict.fromkeys(("reshape", "ravel", "flatten", "flat"), _ITS_OWN),
    **dict.fromkeys(("sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax", "dot", "cumsum"), _LOOP),
    "copy": "make an array with cuda.local.array, and copy the elements in a loop",
    "fill": "assign a slice, as in a[:] = value",
}


def _is_word(value: Binding) -> TypeGuard[Static]:
    """Tell whether something is None or a text, which choose between branches before the kernel runs."""
    return isinstance(value, Static) and (value.value is None or type(value.value) is str)


def has_slice(node: ast.expr) -> TypeGuard[ast.Subscript]:
    """Tell whether something is indexed by a slice, or by several indices of which one is."""
    if not isinstance(node, ast.Subscript):
        return False
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return any(isinstance(part, ast.Slice) for part in parts)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


class Expressions(Scope):
    """Reads expressions, but for calls."""

    @abstractmethod
    def _call(self, node: ast.Call) -> Binding:
        """Return what a call stands for."""

    @abstractmethod
    def _as_declared(self, node: ast.AST, name: str, value: Binding) -> Binding:
        """Return what is assigned to a variable, of the type that it is declared with, if it is."""

    @abstractmethod
    def _product_of_rows(self, node: ast.expr, what: str, views: Sequence[View | Window]) -> Value:
        """Return the sum of the products of the elements of two rows."""

    def _scalar(self, node: ast.expr) -> Value:
        value = self._expression(node)
        if isinstance(value, Value) and complex_program.has_complex(value):
            raise self._refused(
                node,
                "a real number is needed here, and this is complex; take a part of it, or compare it, as in z != 0",
            )
        if isinstance(value, Value) and inference.element_of(value.type) is not None:
            raise self._refused(node, "a number is needed here, and this is none; take an element of it")
        return self._as_value(node, value)

    def _value(self, node: ast.expr) -> Value:
        """Return a number, a vector or a matrix."""
        return self._as_value(node, self._expression(node))

    def _as_value(self, node: ast.expr, value: Binding) -> Value:
        if _is_word(value):
            raise self._refused(
                node, f"{value.text} cannot be used in a kernel that is differentiated, but to compare it; use numbers"
            )
        if not isinstance(value, Value):
            raise self._refused(node, "a number is needed here, and this is none; take an element of it")
        return value

    def _expression(self, node: ast.expr) -> Binding:
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Tuple():
                return tuple(self._expression(element) for element in node.elts)
            case ast.Subscript():
                return self._subscript(node)
            case ast.BinOp():
                left, right = self._expression(node.left), self._expression(node.right)
                if (
                    isinstance(node.op, ast.MatMult)
                    and isinstance(left, View | Window)
                    and isinstance(right, View | Window)
                ):
                    return self._product_of_rows(node, "@", (left, right))
                if isinstance(node.op, ast.Add) and isinstance(left, tuple) and isinstance(right, tuple):
                    return (*left, *right)
                return self._binary(node, node.op, self._as_value(node.left, left), self._as_value(node.right, right))
            case ast.UnaryOp():
                return self._unary(node)
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp():
                return self._boolean(node, node.values)
            case ast.IfExp():
                condition = self._scalar(node.test)
                then, orelse = node.body, node.orelse
                return self._choice(node, condition, lambda: self._expression(then), lambda: self._expression(orelse))
            case ast.NamedExpr():
                value = self._as_declared(node, node.target.id, self._expression(node.value))
                self._env[node.target.id] = value
                return value
            case ast.Call():
                return self._call(node)
        raise self._refused(node, f"this expression ({type(node).__name__}) has no derivative; write it with numbers")

    def _constant(self, node: ast.Constant) -> Binding:
        if node.value is None or type(node.value) is str:
            return Static(node.value, repr(node.value))
        if type(node.value) is complex:
            return complex_program.of_number(self, node.value, types.complex128)
        if type(node.value) not in (bool, int, float):
            raise self._refused(node, f"{node.value!r} cannot be used in a kernel that is differentiated; use numbers")
        return self.constant(node.value, literal=True)

    def _name(self, node: ast.Name) -> Binding:
        found = self._env.get(node.id)
        if found is None:
            return self._global(node)
        if isinstance(found, Missing):
            raise self._refused(node, f"{node.id} {found.why}; {found.remedy}")
        if isinstance(found, Value) and found.literal and self._frames[-1].assignments.get(node.id, 0) > 1:
            # Numba takes a variable for a constant only where it is assigned once.
            return Value(found.name, found.type, found.constant)
        return found

    def _global(self, node: ast.Name) -> Binding:
        value = self.namespace.get(node.id, getattr(builtins, node.id, UNASSIGNED))
        local = node.id in self._frames[-1].assignments
        if not local and (node.id in self._functions or not isinstance(value, Missing)):
            return self._known(value, node.id)
        if node.id.startswith("_nb_atomic_"):
            return Static(None, node.id)
        if node.id.startswith(LIBDEVICE):
            return Static(OfLibdevice(node.id.removeprefix(LIBDEVICE)), node.id)
        if node.id.startswith(HALVES):
            return Static(OfHalves(node.id.removeprefix(CUDA_FUNCTION)), node.id)
        if node.id.startswith(CUDA_FUNCTION):
            name = node.id.removeprefix(CUDA_FUNCTION)
            if name in VECTOR_TYPES:
                return Static(VECTOR_TYPES[name], f"cuda.{name}")
            if CUDA_FUNCTIONS[name] in KEYS:
                return Static(CUDA_FUNCTIONS[name], node.id)
            raise self._refused(
                node, f"cuda.{name} has no derivative here; put it into a function that has one by hand (@nb.func_grad)"
            )
        raise self._refused(node, f"{node.id} may not have been assigned here; assign it on every path before this")

    def _known(self, value: Any, text: str) -> Binding:
        if isinstance(value, np.ndarray):
            kind = inference.dtype_of(value.dtype)
            if isinstance(kind, types.Complex):
                return View(self._constant_parts(value, text, inference.parts_of(kind)))
            return View(Array(text, kind, value.ndim, "constant"))
        if isinstance(value, np.generic):
            kind = inference.constant_type(value)
            if isinstance(kind, types.Complex):
                return complex_program.of_number(self, value.item(), kind)
            return Value(text, kind, value.item())
        if type(value) is tuple:
            return tuple(self._held(part, f"{text}[{k}]") for k, part in enumerate(value))
        return Static(value, text)

    def _held(self, value: Any, text: str) -> Binding:
        """Return what a tuple around the kernel holds, where numbers have types of their own, as Numba gives them."""
        return self.constant(value) if type(value) in (bool, int, float) else self._known(value, text)

    def _constant_parts(self, value: np.ndarray, text: str, kind: Any) -> Array:
        """Return a constant array of complex numbers as that of their parts, which are its last dimension."""
        if text not in self._constants:
            name = self.names.fresh(f"{text}_components")
            self.namespace[name] = np.stack([value.real, value.imag], axis=-1)
            ndim = value.ndim + 1
            self._constants[text] = Array(name, kind.dtype, ndim, "constant", label=text, whole=kind)
        return self._constants[text]

    def _static(self, node: ast.expr) -> Any:
        """Return the object that an expression stands for, or None."""
        if isinstance(node, ast.Name) and node.id.startswith(RESERVED) and not self._is_known(node.id):
            return None  # what generated text calls, which is no object of the kernel's
        if isinstance(node, ast.Name | ast.Attribute):
            found = self._expression(node)
            return found.value if isinstance(found, Static) else None
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    def _is_known(self, name: str) -> bool:
        """Tell whether a name stands for something of the kernel's; an object may have the name that numbridge gave it first."""
        return name in self._env or name in self.namespace

    def _attribute(self, node: ast.Attribute) -> Binding:
        found = self._named(node)
        return self._part_loaded(found) if isinstance(found, MemoryPart) else found

    def _named(self, node: ast.Attribute) -> Binding:
        """Return what a name after a point stands for; a part of an element in memory is not loaded."""
        base = self._owner(node.value)
        if isinstance(base, MemoryPart) and base.element is None and node.attr in ("real", "imag"):
            return self._complex_part(node, self._part_loaded(base))
        if isinstance(base, MemoryPart):
            return self._part_in_memory(node, base)
        if isinstance(base, Static) and isinstance(base.value, ModuleType | type):
            return self._known(getattr(base.value, node.attr), f"{base.text}.{node.attr}")
        if isinstance(base, Static) and isinstance(base.value, types.Type) and node.attr == "type":
            return base  # what makes numbers of an array's dtype: x.dtype.type(0)
        if is_named_tuple(type(base)) and node.attr in base._fields:
            return getattr(base, node.attr)
        if isinstance(base, Records) and node.attr in base.type.fields:
            return self._field(node, base, node.attr)
        if isinstance(base, View) and node.attr in ("real", "imag"):
            return self._parts_of_array(node, base)
        if isinstance(base, View | Window | Records):
            return self._property(node, base)
        if isinstance(base, Value) and node.attr in ("real", "imag"):
            return self._complex_part(node, base)
        if isinstance(base, Value) and inference.element_of(base.type) is not None:
            return self._part_named(node, base)
        raise self._refused(node, f"gradients do not follow .{node.attr}; pass it as an argument")

    def _complex_part(self, node: ast.Attribute, number: Value) -> Value:
        """Return the real or the imaginary part of a number, which may be real."""
        if complex_program.has_complex(number):
            return complex_program.parts(self, number)[node.attr == "imag"]
        if inference.element_of(number.type) is not None:
            return self._part_named(node, number)
        return number if node.attr == "real" else self.zero(number.type)

    def _parts_of_array(self, node: ast.Attribute, view: View) -> View:
        """Return the real or the imaginary parts of an array, which threads may change one by one."""
        array = view.array
        if inference.complex_of(array.whole) is not None and view.part is None:
            return dataclasses.replace(view, part=self.constant(int(node.attr == "imag")))
        is_shared = array.kind == "shared" and not array.is_dynamic
        if inference.complex_of(array.dtype) is not None and (array.owner is not None or is_shared):
            raise NeedsComponentsError(array.owner or array)
        if inference.is_float_type(array.dtype) and node.attr == "real":
            return view
        raise self._refused(
            node,
            f"gradients do not follow .{node.attr} of {array.called}; take it of the elements, as in z[i].{node.attr}, and "
            "store whole ones",
        )

    def _part_named(self, node: ast.Attribute, owner: Value) -> Value:
        found = named_part(self, owner, node.attr)
        if found is None:
            raise self._refused(node, f"{kind_name(owner)} has no part {node.attr!r}")
        return found

    def _property(self, node: ast.Attribute, view: View | Window | Records) -> Binding:
        rest = self._extents(view)
        if isinstance(view, Records) and not rest:
            listed = ", ".join(view.type.fields)
            raise self._refused(node, f"{view.name} has no field {node.attr!r}; its fields are {listed}")
        if node.attr == "shape":
            return tuple(extent() for extent in rest)
        if node.attr == "ndim":
            return self.constant(len(rest))
        if node.attr == "size":
            size = self.constant(1)
            for extent in rest:
                size = self.apply("mul", size, extent())
            return size
        array = getattr(view, "array", None)
        if node.attr == "dtype" and isinstance(array, Array) and not array.narrow and array.whole is None:
            return Static(array.dtype, f"{array.called}.dtype")
        way = _IN_PLACE_OF.get(node.attr, "use its elements, shape, ndim, size or dtype")
        raise self._refused(node, f"gradients do not follow .{node.attr} of an array; {way}")

    def _extents(self, view: View | Window | Records) -> Sequence[Callable[[], Value]]:
        """Return what gives the extents of the dimensions that no index has been given for."""
        array = view.array
        if isinstance(view, Window):
            whole = self._extents(View(array))
            return [self._window_extent(view.axes[k], whole[k]) for k in windows.open_axes(view)]
        owner = array if array.owner is None else array.owner
        inner = view.extents if isinstance(view, Records) else ()
        if isinstance(view, View) and array.owner is not None and array.whole is None:
            inner = array.extents
        ndim = view.ndim if array is owner else owner.ndim
        outer = [functools.partial(self._extent, owner, axis) for axis in range(ndim)]
        return [*outer, *(functools.partial(self.constant, extent) for extent in inner)][len(view.index) :]

    def _window_extent(self, axis: windows.Axis, whole: Callable[[], Value]) -> Callable[[], Value]:
        return whole if not isinstance(axis, Span) else lambda: axis.length

    def _extent(self, array: Array, axis: int) -> Value:
        if array.kind == "local":
            return self.constant(array.extents[axis])
        made = self.value(f"{array.name}_shape", types.int64)
        self.add(Shape(made, array, axis))
        return made

    def _subscript(self, node: ast.Subscript) -> Binding:
        base = self._owner(node.value)
        return self._item(node, base) if isinstance(base, tuple) else self._loaded(self._selected(node, base))

    def _item(self, node: ast.Subscript, items: tuple[Binding, ...]) -> Binding:
        if isinstance(node.slice, ast.Slice):
            return self._part_of_tuple(node.slice, items)
        place = self._expression(node.slice)
        if isinstance(place, Value) and type(place.constant) is int and -len(items) <= place.constant < len(items):
            return items[place.constant]
        if not items or not isinstance(place, Value) or place.constant is not None:
            raise self._refused(node, f"a tuple of {len(items)} is indexed by integers within it")
        if not isinstance(types.unliteral(place.type), types.Integer):
            raise self._refused(node, f"a tuple is indexed by integers, and this is {place.type}")
        if any(isinstance(item, View | Window | Records) for item in items):
            raise self._refused(
                node, "an array of a tuple is chosen by a constant; loop over the tuple itself, as in for a in arrays"
            )
        if len({kinds(item) for item in items}) > 1:
            raise self._refused(
                node,
                "the elements of a tuple of several types are chosen by a constant; use if, or make them of one type",
            )
        size = self.constant(len(items))
        below = self.apply("lt", place, self.constant(0))
        at = self._choice(node, below, lambda: self.apply("add", place, size), lambda: place)
        return self._chosen(node, items, at)

    def _part_of_tuple(self, node: ast.Slice, items: tuple[Binding, ...]) -> tuple[Binding, ...]:
        bounds = [self._bound(part) for part in (node.lower, node.upper, node.step)]
        if any(bound is not None and bound.constant is None for bound in bounds):
            raise self._refused(node, "a slice of a tuple is written with constants; loop over the tuple itself")
        return tuple(items)[slice(*(None if bound is None else bound.constant for bound in bounds))]

    def _chosen(self, node: ast.expr, items: Sequence[Binding], at: Value, first: int = 0) -> Binding:
        """Return one of some things by a number that only the running kernel knows."""
        if len(items) == 1:
            return items[0]
        half = len(items) // 2
        return self._choice(
            node,
            self.apply("lt", at, self.constant(first + half)),
            lambda: self._chosen(node, items[:half], at, first),
            lambda: self._chosen(node, items[half:], at, first + half),
        )

    def _selected(self, node: ast.Subscript, base: Binding) -> Binding:
        """Return what an index selects; elements, records and rows in memory are not loaded."""
        of_element = isinstance(base, MemoryPart) or self._iterated(base) is not None
        if of_element and has_slice(node) and isinstance(base, MemoryPart | Value):
            return self._sliced(node, base)
        if isinstance(base, MemoryPart):
            return self._part_in_memory(node, base)
        if isinstance(base, Value) and inference.element_of(base.type) is not None:
            return self._part_at(node, base, self._integers(node))
        if isinstance(base, Records):
            return self._within_records(node, base)
        return self._indexed(node, base)

    def _iterated(self, value: Binding) -> ElementType | None:
        """Return the type of a vector or a matrix; None for anything else, as complex numbers are."""
        element = inference.element_of(value.type) if isinstance(value, Value) else None
        return None if element is None or element.family == "complex" else element

    def _sliced(self, node: ast.Subscript, base: MemoryPart | Value) -> Value:
        """Return a slice of a vector or a matrix, which is one itself; of one in memory, nothing else is loaded."""
        places, kind = self._slice_of(node, base)
        if isinstance(base, MemoryPart):
            views = base.numbers(self)
            return made_of(self, kind, [self._load_number(views[place]) for place in places])
        return made_of(self, kind, [component_at(self, base, place) for place in places])

    def _slice_of(self, node: ast.Subscript, base: MemoryPart | Value) -> tuple[tuple[int, ...], ElementType]:
        """Return the places of the components of a slice, and its type."""
        element = base.element if isinstance(base, MemoryPart) else inference.element_of(base.type)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        index = tuple(self._constant_index(part) for part in parts)
        found = None if element is None or element.family == "complex" else sliced(element, index)
        if found is None:
            raise self._refused(node, f"a slice of a vector or a matrix {OF_CONSTANTS}")
        assert element is not None
        wrong = beyond(element, index)
        if wrong is not None:
            raise self._refused(node, wrong)
        return found

    def _constant_index(self, node: ast.expr) -> Any:
        """Return an index of constants, or a slice of these; None for what is none."""
        if not isinstance(node, ast.Slice):
            value = self._expression(node)
            return value.constant if isinstance(value, Value) else None
        bounds = [self._bound(part) for part in (node.lower, node.upper, node.step)]
        if any(bound is not None and bound.constant is None for bound in bounds):
            return None
        return slice(*(None if bound is None else bound.constant for bound in bounds))

    def _owner(self, node: ast.expr) -> Binding:
        """Return what a part is taken of: of an element in memory only that part is loaded, where it can be."""
        if isinstance(node, ast.Attribute):
            return self._named(node)
        if not isinstance(node, ast.Subscript):
            return self._expression(node)
        base = self._owner(node.value)
        if isinstance(base, tuple):
            return self._item(node, base)
        found = self._selected(node, base)
        part = whole_element(found) if isinstance(found, View) else None
        if part is not None:
            return part
        if not isinstance(found, View) or not found.is_element:
            return found
        if found.array.kind in ("parameter", "shared") and _is_of_components(found.array):
            self._in_parts.add(found.array)
        return self._load_number(found)

    def _loaded(self, found: Binding) -> Binding:
        """Return an element or a part of one; records and rows stay memory."""
        if isinstance(found, MemoryPart):
            return self._part_loaded(found)
        return self._load(found) if isinstance(found, View) and found.is_element else found

    def _part_in_memory(self, node: ast.Subscript | ast.Attribute, owner: MemoryPart) -> MemoryPart:
        """Return a part of an element in memory, or of a part of one."""
        try:
            if isinstance(node, ast.Attribute):
                found = owner.named(self, node.attr)
            else:
                found = owner.at(self, self._integers(node))
        except ComponentRangeError as error:
            raise self._refused(node, str(error)) from None
        if found is None:
            what = "a number" if owner.element is None else owner.element.name
            raise self._refused(node, f"{what} has no such part; index it by integers, within its dimensions")
        return found

    def _part_loaded(self, part: MemoryPart) -> Value:
        numbers = [self._load_number(view) for view in part.numbers(self)]
        return numbers[0] if part.element is None else made_of(self, part.element, numbers)

    # Records

    def _within_records(self, node: ast.Subscript | ast.Attribute, base: Records) -> View | Records:
        """Return the field of a name, or the records of an index."""
        if isinstance(node, ast.Attribute):
            return self._field_place(node, base, node.attr)
        name = self._field_name(node.slice)
        if name is not None:
            return self._field_place(node, base, name)
        index = (*base.index, *self._integers(node))
        if len(index) > base.ndim:
            raise self._refused(node, f"{base.name} has {base.ndim} dimension(s), and more indices are given")
        return dataclasses.replace(base, index=index)

    def _field_name(self, node: ast.expr) -> str | None:
        value = node.value if isinstance(node, ast.Constant) else self._static(node)
        return value if isinstance(value, str) else None

    def _field(self, node: ast.Subscript | ast.Attribute, base: Records, name: str) -> Binding:
        return self._loaded(self._field_place(node, base, name))

    def _field_place(self, node: ast.Subscript | ast.Attribute, base: Records, name: str) -> View | Records:
        found = base.entered(name)
        if found is None:
            listed = ", ".join(base.type.fields)
            raise self._refused(node, f"{base.name} has no field {name!r}; its fields are {listed}")
        if isinstance(found.type, types.Record):
            return found
        return self._leaf(node, found)

    def _leaf(self, node: ast.AST, found: Records) -> View:
        why = why_no_derivative(found)
        if why is not None:
            raise self._refused(node, why)
        return View(self._fields.array(found), found.index)

    def _part_at(self, node: ast.expr, owner: Value, index: Sequence[Value]) -> Value:
        found = part(self, owner, index)
        if found is None:
            raise self._refused(node, f"{kind_name(owner)} has no such component; index it by integers")
        return found

    def _indexed(self, node: ast.Subscript, base: Binding) -> View | Window | MemoryPart:
        if not isinstance(base, View | Window):
            raise self._refused(node, "only arrays and tuples have elements here")
        return self._narrowed(node, base, self._cuts(node))

    def _narrowed(
        self, node: ast.AST, base: View | Window, given: Sequence[Value | Cut | EllipsisType]
    ) -> View | Window | MemoryPart:
        """Return what indices and slices select of an array, of some of its rows, or of a slice."""
        axes, free = list(windows.axes_of(base)), windows.open_axes(base)
        if Ellipsis in given:
            at = given.index(Ellipsis)
            given = [*given[:at], *[Cut(None, None, None)] * (len(free) + 1 - len(given)), *given[at + 1 :]]
        if len(given) > len(free):
            raise self._refused(
                node, f"{base.array.called} has {View(base.array).ndim} dimension(s), and more indices are given"
            )
        extents = self._extents(View(base.array))
        for axis, chosen in zip(free, given, strict=False):
            axes[axis] = self._along(axes[axis], chosen, extents[axis])
        found = windows.window(base.array, axes)
        part = base.part if isinstance(base, View) else None
        if part is None:
            return found
        if isinstance(found, Window):
            raise self._refused(node, "slices of the parts of complex arrays have no derivative; write a loop")
        if found.is_element:
            return MemoryPart(View(found.array, (*found.index, part)), None)
        return dataclasses.replace(found, part=part)

    def _along(self, axis: Any, chosen: Any, extent: Callable[[], Value]) -> windows.Axis:
        if isinstance(chosen, Cut):
            return windows.cut(self, axis, chosen, extent, self._nonnegative)
        return windows.place(self, axis, chosen, nonnegative=chosen in self._nonnegative)

    def _cuts(self, node: ast.Subscript) -> list[Value | Cut | EllipsisType]:
        """Return the indices and slices in brackets."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not any(isinstance(part, ast.Slice) or _is_ellipsis(part) for part in parts):
            return [*self._integers(node)]
        made: list[Value | Cut | EllipsisType] = []
        for written in parts:
            if isinstance(written, ast.Slice):
                made.append(Cut(self._bound(written.lower), self._bound(written.upper), self._step(written.step)))
            elif _is_ellipsis(written):
                made.append(Ellipsis)
            else:
                made.append(self._integer(node, self._expression(written)))
        return made

    def _bound(self, node: ast.expr | None) -> Value | None:
        """Return a part of a slice, or None where there is none."""
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return None
        value = self._expression(node)
        if not isinstance(value, Value) or not isinstance(value.type, types.Integer):
            raise self._refused(node, "the parts of a slice are integers; convert with int(...)")
        made = windows.as_int64(self, value)
        if value in self._nonnegative:
            self._nonnegative[made] = self._nonnegative[value]
        return made

    def _step(self, node: ast.expr | None) -> Value | None:
        value = self._bound(node)
        if node is not None and value is not None and value.constant == 0:
            raise self._refused(node, "the step of a slice is not zero; write another")
        return value

    def _integers(self, node: ast.Subscript) -> list[Value]:
        """Return the indices in brackets."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if any(isinstance(part, ast.Slice) or _is_ellipsis(part) for part in parts):
            raise self._refused(
                node, "slices of records have no derivative, and those of vectors are not stored through; write a loop"
            )
        found = self._expression(node.slice)
        return [self._integer(node, item) for item in (found if isinstance(found, tuple) else (found,))]

    def _integer(self, node: ast.Subscript, item: Binding) -> Value:
        if isinstance(item, Value) and isinstance(item.type, types.Integer | types.Boolean):
            return item
        raise self._refused(
            node, "an index is an integer, or a slice a:b, in a kernel that is differentiated; write a loop for others"
        )

    def _load(self, view: View) -> Value:
        part = whole_element(view)
        if part is not None:
            return self._part_loaded(part)
        self._as_wholes.add(view.array)
        return self._load_number(view)

    def _load_number(self, view: View) -> Value:
        made = self.value(view.array.name, view.array.dtype)
        self.add(Load(made, view.array, list(view.index)))
        return made

    def _binary(self, node: Any, op: ast.operator, left: Value, right: Value) -> Value:
        if complex_program.has_complex(left, right):
            return self._on_complex(node, _BINARY.get(type(op), ""), left, right)
        if has_element(left, right):
            return self._on_elements(node, _ON_ELEMENTS.get(type(op), ""), left, right)
        key = _BINARY.get(type(op))
        if key is not None:
            function = ARITHMETIC[key]
        elif type(op) in _INTEGER:
            symbol, primitive = _INTEGER[type(op)]
            function = Function("integer", f"{{0}} {symbol} {{1}}", primitive)
        else:
            raise self._refused(node, "this operator has no derivative")
        made = self._checked(node, function, [left, right])
        bits, more = self._bits(left), self._bits(right)
        if key in ("add", "mul") and bits is not None and more is not None:
            most = bits + more if key == "mul" else max(bits, more) + 1
            if most < _BITS:
                self._nonnegative[made] = most
        return made

    def _bits(self, value: Value) -> int | None:
        """Return how many bits an integer has that is certainly not negative; None for others."""
        if type(value.constant) is int:
            return value.constant.bit_length() if value.constant >= 0 else None
        return self._nonnegative.get(value)

    def _on_complex(self, node: Any, key: str, *operands: Value) -> Value:
        made = complex_program.operate(self, ARITHMETIC[key], operands) if key in ARITHMETIC else None
        if made is None:
            listed = ", ".join(kind_name(operand) for operand in operands)
            raise self._refused(node, f"there is no such operation for ({listed})")
        return made

    def _on_elements(self, node: Any, name: str, *operands: Value) -> Value:
        made = operate(self, name, *operands)
        if made is None:
            listed = ", ".join(kind_name(operand) for operand in operands)
            raise self._refused(node, f"there is no such operation for ({listed})")
        return made

    def _unary(self, node: ast.UnaryOp) -> Value:
        operand = self._value(node.operand)
        if complex_program.has_complex(operand):
            if isinstance(node.op, ast.UAdd):
                return operand
            return self._on_complex(node, "neg" if isinstance(node.op, ast.USub) else "", operand)
        if has_element(operand):
            return self._on_elements(node, {ast.USub: "neg", ast.UAdd: "pos"}.get(type(node.op), ""), operand)
        match node.op:
            case ast.USub() if operand.literal and not isinstance(operand.type, types.Boolean):
                # Python folds this, so Numba sees a literal.
                return self.constant(-operand.constant, operand.type, literal=True)
            case ast.USub():
                return self._checked(node, ARITHMETIC["neg"], [operand])
            case ast.Not():
                return self._negated(node, operand)
            case ast.UAdd():
                return self._checked(node, Function("pos", "+{0}", operator.pos), [operand])
        return self._checked(node, Function("integer", "~{0}", operator.invert), [operand])

    def _compare(self, node: ast.Compare) -> Value:
        left = self._expression(node.left)
        return self._comparison(node, node.left, left, list(zip(node.ops, node.comparators, strict=True)))

    def _comparison(
        self, node: ast.Compare, left_node: ast.expr, left: Binding, rest: list[tuple[ast.cmpop, ast.expr]]
    ) -> Value:
        (op, right_node), *more = rest
        if isinstance(op, ast.In | ast.NotIn):
            made, right = self._membership(node, left_node, left, right_node), ()
            made = made if isinstance(op, ast.In) else self._negated(node, made)
        else:
            right = self._expression(right_node)
            made = self._compared(node, op, (left_node, left), (right_node, right))
        if not more:
            return made
        if right == ():
            raise self._refused(node, "a tuple cannot be compared with what follows it here; write two comparisons")
        both: Value = self._choice(
            node, made, lambda: self._comparison(node, right_node, right, more), lambda: self.constant(False)
        )
        return both

    def _compared(
        self, node: ast.Compare, op: ast.cmpop, first: tuple[ast.expr, Binding], second: tuple[ast.expr, Binding]
    ) -> Value:
        words = [_is_word(value) for _, value in (first, second)]
        if any(words) if isinstance(op, ast.Is | ast.IsNot) else all(words) and isinstance(op, ast.Eq | ast.NotEq):
            same = all(words) and first[1].value == second[1].value
            return self.constant(same == isinstance(op, ast.Is | ast.Eq), literal=True)
        if type(op) not in _COMPARISON:
            raise self._refused(
                node, f"this comparison ({type(op).__name__}) cannot be used in a kernel that is differentiated"
            )
        if isinstance(first[1], tuple) and isinstance(second[1], tuple) and isinstance(op, ast.Eq | ast.NotEq):
            made = self._same_tuples(node, first, second)
            return made if isinstance(op, ast.Eq) else self._negated(node, made)
        left, right = (self._as_value(part, value) for part, value in (first, second))
        key = _COMPARISON[type(op)]
        if complex_program.has_complex(left, right):
            return self._on_complex(node, key, left, right)
        if has_element(left, right):
            return self._on_elements(node, key, left, right)
        return self._checked(node, ARITHMETIC[key], [left, right])

    def _same_tuples(
        self, node: ast.Compare, first: tuple[ast.expr, Binding], second: tuple[ast.expr, Binding]
    ) -> Value:
        """Return whether two tuples are equal, whose parts are compared in turn."""
        (left_node, left), (right_node, right) = first, second
        if len(left) != len(right) or not left:
            return self.constant(len(left) == len(right), literal=True)
        made = self._compared(node, ast.Eq(), (left_node, left[0]), (right_node, right[0]))
        if len(left) == 1:
            return made
        rest: Value = self._choice(
            node, made, lambda: self._same_tuples(node, (left_node, left[1:]), (right_node, right[1:])), lambda: made
        )
        return rest

    def _negated(self, node: ast.expr, value: Value) -> Value:
        if value.literal:
            return self.constant(not value.constant, literal=True)
        return self._checked(node, ARITHMETIC["not"], [value])

    def _membership(self, node: ast.Compare, left_node: ast.expr, left: Binding, among_node: ast.expr) -> Value:
        """Return whether something equals one in a tuple, which are compared in turn."""
        is_range = isinstance(among_node, ast.Call) and self._static(among_node.func) is range
        among = None if is_range else self._expression(among_node)
        if not isinstance(among, tuple) or not all(isinstance(one, Value) or _is_word(one) for one in among):
            instead = "the ends of the range, as in a <= x < b" if is_range else "each element in a loop"
            raise self._refused(node, f"gradients follow `in` only into a tuple of numbers; compare with {instead}")
        return self._is_one_of(node, (left_node, left), [(among_node, one) for one in among])

    def _is_one_of(
        self, node: ast.Compare, left: tuple[ast.expr, Binding], among: Sequence[tuple[ast.expr, Binding]]
    ) -> Value:
        if not among:
            return self.constant(False)
        first = self._compared(node, ast.Eq(), left, among[0])
        if len(among) == 1:
            return first
        either: Value = self._choice(node, first, lambda: first, lambda: self._is_one_of(node, left, among[1:]))
        return either

    def _boolean(self, node: ast.BoolOp, parts: list[ast.expr]) -> Any:
        first = self._scalar(parts[0])
        if len(parts) == 1:
            return first
        if isinstance(node.op, ast.And):
            return self._choice(node, first, lambda: self._boolean(node, parts[1:]), lambda: first)
        return self._choice(node, first, lambda: first, lambda: self._boolean(node, parts[1:]))


def _is_of_components(array: Array) -> bool:
    """Tell whether the elements of an array are vectors or matrices."""
    return inference.element_of(array.dtype) is not None and inference.complex_of(array.dtype) is None
