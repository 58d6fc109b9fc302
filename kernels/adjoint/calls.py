"""Calls in a kernel: functions with a derivative rule, device functions, atomics, memory, and what threads of a block do."""

from __future__ import annotations

import ast
import functools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numba import types

from numbridge.kernels.adjoint import complex_program, inference
from numbridge.kernels.adjoint.bindings import (
    Binding,
    Missing,
    OfHalves,
    OfLibdevice,
    Static,
    View,
    as_argument,
    functions_among,
    has_element,
    kind_name,
)
from numbridge.kernels.adjoint.construct import CAST
from numbridge.kernels.adjoint.element_program import components, construct_element, made_of
from numbridge.kernels.adjoint.function_gradients import add_gradients
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Compute,
    Custom,
    Effect,
    Function,
    Meet,
    Region,
    Value,
    is_float,
    walk,
)
from numbridge.kernels.adjoint.lowering import ANSWER
from numbridge.kernels.adjoint.memory_parts import MemoryPart, whole_element
from numbridge.kernels.adjoint.record_program import Records
from numbridge.kernels.adjoint.reductions import METHODS, REDUCTIONS, Reductions
from numbridge.kernels.adjoint.rules import KEYS
from numbridge.kernels.adjoint.scope import Frame
from numbridge.kernels.adjoint.windows import Window
from numbridge.kernels.cpu_backend.blocks.source import THREAD
from numbridge.kernels.element_types.element_functions import FUNCTIONS
from numbridge.kernels.element_types.elements import ElementType
from numbridge.kernels.element_types.numba_elements import NumbaElement, numba_element
from numbridge.kernels.language.rewriting import GRADIENT
from numbridge.kernels.language.source import FunctionSource
from numbridge.kernels.language.tuple_parameters import is_named_tuple
from numbridge.kernels.language.vector_types import VECTOR_TYPES, scalar_name

__all__ = ["Calls"]

_MAX_INLINED = 32
_MOST_PLACES = 1 << 16  # in the source, where shared memory is made
_EXCHANGED = (types.int32, types.int64, types.float32, types.float64)
# What threads learn from each other, by the operation; lanes that exchange numbers learn one of the type of their own.
_LEARNED: dict[str, Any] = {
    **dict.fromkeys(("syncthreads_count", "syncthreads_and", "syncthreads_or", "ballot_sync"), types.int32),
    **dict.fromkeys(("all_sync", "any_sync", "eq_sync"), types.boolean),
    "match_any_sync": types.int32,
}
_WITHOUT_DERIVATIVE = {
    "grid_sync": ("waiting for all blocks of a grid", "let what follows be a kernel of its own"),
    "activemask": ("cuda.activemask", "name the lanes by a mask of your own"),
    "match_all_sync": ("cuda.match_all_sync", "use cuda.match_any_sync or cuda.all_sync"),
    "lanemask_lt": ("cuda.lanemask_lt", "write (1 << cuda.laneid) - 1"),
}
# The place of all arrays of dynamic shared memory, which begin where that begins.
_DYNAMIC = -2
_NO_GRADIENT = Missing(
    "would be the gradient by an integer or an array, which there is none of here",
    "convert the argument to a floating-point number, or assign this one to _",
)
_MAKE_ARRAYS = (np.zeros, np.ones, np.empty, np.full, np.zeros_like, np.ones_like, np.empty_like, np.full_like, np.copy)
# What functions are called in the table of what elements can do.
_NAMED: dict[Any, str] = {
    **{function: name for name, function in FUNCTIONS.items()},
    min: "min",
    max: "max",
    abs: "abs",
}


class Calls(Reductions):
    """Reads calls. Device functions are inlined."""

    @abstractmethod
    def _read(self, source: FunctionSource, tree: ast.FunctionDef) -> None:
        """Read a function's body, whose parameters are bound."""

    def _call(self, node: ast.Call) -> Binding:
        if isinstance(node.func, ast.Name):
            bound = self._env.get(node.func.id)
            name = self._called_name(node.func)
            if name.startswith("_nb_atomic_"):
                return self._atomic(node, name.removeprefix("_nb_atomic_"))
            if name in ("_nb_local_array", "_nb_shared", "_nb_dynamic", "_nb_elements"):
                return self._memory(node)
            if name == GRADIENT:
                return self._function_gradient(node)
            if name == "_nb_checked":
                return self._checked_index(node)
            if name == "_nb_having":
                return self._checked_array(node)
            if name.startswith("_nb_block_"):
                return self._meet(node, name.removeprefix("_nb_block_"))
            if name in self._functions and (bound is None or isinstance(bound, Static)):
                return self._inline(node, self._functions[name])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "conjugate" and not (node.args or node.keywords):
            owner = self._loaded(self._owner(node.func.value))
            if isinstance(owner, Value) and (complex_program.has_complex(owner) or not has_element(owner)):
                return complex_program.conjugate(self, owner)
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and not node.keywords:
            owner = self._owner(node.func.value)
            if isinstance(owner, View | Window):
                return self._reduced(node, node.func.attr, ast.unparse(node.func), [owner, *self._arguments(node)])
        callee = self._expression(node.func)
        if not isinstance(callee, Static):
            raise self._refused(node, "only functions can be called")
        if any(keyword for keyword in node.keywords):
            raise self._refused(node, f"{callee.text} is called with named arguments; pass them by position")
        return self._apply(node, callee, self._arguments(node))

    def _arguments(self, node: ast.Call) -> list[Binding]:
        """Return what a call gives by position, with what starred tuples hold."""
        given: list[Binding] = []
        for argument in node.args:
            if not isinstance(argument, ast.Starred):
                given.append(self._expression(argument))
                continue
            found = self._expression(argument.value)
            if not isinstance(found, tuple):
                raise self._refused(argument, "only a tuple can be starred here; pass its elements one by one")
            given += found
        return given

    def _called_name(self, node: ast.Name) -> str:
        """Return what the function is called that a name stands for: one that was passed to this function, or a global."""
        bound = self._env.get(node.id)
        return bound.text if isinstance(bound, Static) else node.id

    def _apply(self, node: ast.Call, callee: Static, arguments: list[Binding]) -> Binding:
        if callee.value is len and len(arguments) == 1:
            return self._length(node, arguments[0])
        if callee.value is np.shape and len(arguments) == 1 and isinstance(arguments[0], View | Window | Records):
            return tuple(extent() for extent in self._extents(arguments[0]))
        if is_named_tuple(callee.value) and VECTOR_TYPES.get(callee.value.__name__) is callee.value:
            return self._vector(node, callee, arguments)
        if is_named_tuple(callee.value) and len(arguments) == len(callee.value._fields):
            return callee.value(*arguments)
        if (callee.value is min or callee.value is max) and len(arguments) == 1 and isinstance(arguments[0], tuple):
            arguments = list(arguments[0])
            if len(arguments) == 1:
                return arguments[0]
        reduction = REDUCTIONS.get(callee.value) if _hashable(callee.value) else None
        if reduction is not None and any(isinstance(argument, View | Window) for argument in arguments):
            return self._reduced(node, reduction, callee.text, arguments)
        if (callee.value is min or callee.value is max) and len(arguments) == 1 and self._is_row(arguments[0]):
            return self._extreme(node, callee.text, arguments[0], of_python=True)
        if any(callee.value is made for made in _MAKE_ARRAYS):
            raise self._refused(
                node,
                f"{callee.text} makes an array, for which kernels have no memory here; assign one of a constant shape to a name, "
                "outside of loops, or use cuda.local.array(shape, dtype)",
            )
        if callee.value is sum and 1 <= len(arguments) <= 2 and self._is_sequence(arguments[0]):
            return self._sum_of_python(node, *arguments)
        if not all(isinstance(argument, Value) for argument in arguments):
            raise self._refused(
                node, f"{callee.text} is given an array, through which gradients do not pass; use a loop"
            )
        if isinstance(callee.value, ElementType):
            return self._element(node, callee.value, arguments)
        kind = complex if callee.value is complex else inference.dtype_of(callee.value)
        if kind is complex or isinstance(kind, types.Complex):
            return self._complex_number(node, callee, kind, arguments)
        if complex_program.has_complex(*arguments):
            return self._complex_function(node, callee, arguments)
        if has_element(*arguments):
            return self._element_function(node, callee, arguments)
        if callee.value is divmod and len(arguments) == 2:
            return tuple(self._binary(node, op, *arguments) for op in (ast.FloorDiv(), ast.Mod()))
        if isinstance(callee.value, OfLibdevice):
            return self._of_libdevice(node, callee.value.name, arguments)
        if isinstance(callee.value, OfHalves):
            return self._of_halves(node, callee.value.name, arguments)
        made = complex_program.called_with_real(self, callee.value, arguments) if _hashable(callee.value) else None
        if made is not None:
            return made
        if kind is not None and len(arguments) == 1:
            return self.cast(arguments[0], kind)
        if callee.value in (int, bool) and len(arguments) == 1:
            function = Function("test", f"{callee.text}({{0}})", callee.value)
            return self._checked(node, function, arguments)
        if callee.value is round:
            key = "round2" if len(arguments) == 2 else "round"
            return self._checked(node, Function(key, _call_text(callee, arguments), round), arguments)
        rule = KEYS.get(callee.value) if _hashable(callee.value) else None
        if rule is None:
            raise self._refused(
                node,
                f"{callee.text} has no derivative here; write it as a function decorated with @nb.func, or give its "
                "derivative with @nb.func_grad",
            )
        if rule in ("min", "max") and len(arguments) > 2:
            return self._fold(node, callee, rule, arguments)
        return self._checked(node, Function(rule, _call_text(callee, arguments), callee.value), arguments, rule)

    def _of_libdevice(self, node: ast.Call, name: str, arguments: list[Value]) -> Binding:
        # Rules that are seldom asked for, made of those that all kernels have
        from numbridge.kernels.adjoint import libdevice_rules

        try:
            made = libdevice_rules.called(self, name, arguments)
        except TypeError as error:
            raise self._refused(node, f"cuda.libdevice.{name} {error}") from None
        return made[0] if len(made) == 1 else tuple(made)

    def _vector(self, node: ast.Call, callee: Static, arguments: list[Binding]) -> Binding:
        """Return a vector of numba.cuda's, made of numbers and of vectors."""
        scalar = getattr(types, scalar_name(callee.value))
        numbers: list[Any] = []
        for argument in arguments:
            vector = VECTOR_TYPES.get(type(argument).__name__) is type(argument)
            numbers += argument if vector and isinstance(argument, tuple) else [argument]
        if len(numbers) != len(callee.value._fields) or not all(isinstance(number, Value) for number in numbers):
            wanted = f"{len(callee.value._fields)} numbers, or of vectors with as many components"
            raise self._refused(node, f"{callee.text} is made of {wanted}")
        return callee.value(*(self.cast(number, scalar) for number in numbers))

    def _of_halves(self, node: ast.Call, name: str, arguments: list[Value]) -> Binding:
        from numbridge.kernels.adjoint import half_rules

        try:
            return half_rules.called(self, name, arguments)
        except TypeError as error:
            raise self._refused(node, f"cuda.{name.replace('_', '.', 1)} {error}") from None

    def _element(self, node: ast.Call, element: ElementType, arguments: list[Value]) -> Value:
        made = construct_element(self, element, arguments)
        if made is None:
            listed = ", ".join(kind_name(argument) for argument in arguments)
            raise self._refused(
                node, f"{element.name} has {element.count} components, and cannot be made of ({listed})"
            )
        return made

    def _complex_number(self, node: ast.Call, callee: Static, kind: Any, arguments: list[Value]) -> Value:
        """Return what a complex type makes of a number, or of two real ones."""
        if kind is complex:
            given = [Value("", inference.complex_of(a.type) or a.type) for a in arguments]
            found = inference.result_type(complex, given)
            kind = None if found is None else found[0]
        if kind is None or not arguments or len(arguments) > 2 or has_element(*arguments[1:]):
            raise self._refused(node, f"{callee.text} makes a complex number of one number, or of two real ones")
        wanted = inference.parts_of(kind)
        if len(arguments) == 1:
            return self.cast(arguments[0], wanted)
        real, imag = (self.cast(argument, wanted.dtype) for argument in arguments)
        return complex_program.pair(self, real, imag)

    def _complex_function(self, node: ast.Call, callee: Static, arguments: list[Value]) -> Binding:
        made = complex_program.called(self, callee.value, arguments) if _hashable(callee.value) else None
        if made is None:
            raise self._refused(
                node,
                f"{callee.text} has no derivative for complex numbers here; write it with their parts, z.real and z.imag, or "
                "with cmath.exp, cmath.log, cmath.sqrt and circular functions",
            )
        return made

    def _element_function(self, node: ast.Call, callee: Static, arguments: list[Value]) -> Value:
        name = _NAMED.get(callee.value) if _hashable(callee.value) else None
        if name is None:
            raise self._refused(
                node,
                f"{callee.text} has no derivative for vectors and matrices; write it as a function decorated with @nb.func, "
                "or give its derivative with @nb.func_grad",
            )
        return self._on_elements(node, name, *arguments)

    def _fold(self, node: ast.Call, callee: Static, key: str, arguments: list[Value]) -> Value:
        kind = inference.unified([argument.type for argument in arguments])
        first, *rest = (self.cast(argument, kind) for argument in arguments)
        for other in rest:
            first = self._checked(
                node, Function(key, f"{callee.text}({{0}}, {{1}})", callee.value), [first, other], key
            )
        return first

    def _length(self, node: ast.Call, argument: Binding) -> Value:
        if isinstance(argument, tuple):
            return self.constant(len(argument))
        rest = self._extents(argument) if isinstance(argument, View | Window | Records) else []
        if rest:
            return rest[0]()
        element = inference.element_of(argument.type) if isinstance(argument, Value) else None
        if element is not None:
            return self.constant(element.extents[0])
        raise self._refused(node, "len() needs an array or a tuple")

    def _atomic(self, node: ast.Call, operation: str) -> Value:
        count = 2 if operation == "cas" else 1
        array = self._expression(node.args[0])
        if not isinstance(array, View | Window):
            raise self._refused(node, "an atomic operation needs an array")
        view = self._indexed(ast.copy_location(ast.Subscript(node.args[0], node.args[1], ast.Load()), node), array)
        if isinstance(view, MemoryPart):
            number = view.view.array.dtype
            values = [self.cast(self._scalar(argument), number) for argument in node.args[-count:]]
            return self._update(node, operation, view.view, values)
        if not isinstance(view, View) or not view.is_element:
            raise self._refused(node, "an atomic operation needs one index for each dimension")
        values = [self._atomic_value(node, argument, view.array) for argument in node.args[-count:]]
        part = whole_element(view)
        if part is None or part.element is None:
            return self._update(node, operation, view, values)
        numbers = zip(*(components(self, value) for value in values), strict=True)
        views = part.numbers(self)
        updated = [self._update(node, operation, to, given) for to, given in zip(views, numbers, strict=True)]
        return made_of(self, part.element, updated)

    def _update(self, node: ast.Call, operation: str, view: View, values: Sequence[Value]) -> Value:
        made = self.value(view.array.name, view.array.dtype)
        place = (self._frames[-1].source, node)
        self._as_wholes.add(view.array)
        self.add(Atomic(made, operation, view.array, list(view.index), list(values), place=place))
        return made

    def _atomic_value(self, node: ast.Call, argument: ast.expr, array: Array) -> Value:
        kind = array.whole or array.dtype
        element = inference.element_of(kind)
        if element is None:
            return self.cast(self._scalar(argument), kind)
        value = self._value(argument)
        if inference.complex_of(kind) is not None:
            value = self.cast(value, kind)
        if value.type != kind:
            raise self._refused(node, f"the elements of {array.called} are {element.name}, not {kind_name(value)}")
        return value

    def _checked_index(self, node: ast.Call) -> Binding:
        """Check an index, or several, that an array or an element has from an axis on."""
        array, index = self._expression(node.args[0]), self._expression(node.args[1])
        first, site = (ast.literal_eval(argument) for argument in node.args[2:])
        self._check(array, index, first, site)
        return index

    def _checked_array(self, node: ast.Call) -> Binding:
        """Check that what is indexed by a constant has it, if it is an array or an element."""
        array, index = self._expression(node.args[0]), self._expression(node.args[1])
        axis, site = map(ast.literal_eval, node.args[2:])
        self._check(array, index, axis, site)
        return array

    def _check(self, array: Binding, index: Binding, first: int, site: int) -> None:
        element = inference.element_of(array.type) if isinstance(array, Value) else None
        extents: Sequence[Callable[[], Value]] = ()
        if element is not None:
            extents = [functools.partial(self.constant, extent) for extent in element.extents]
        elif isinstance(array, View | Window | Records):
            extents = self._extents(array)
        for axis, part in enumerate(index if isinstance(index, tuple) else (index,), first):
            if isinstance(part, Value) and isinstance(part.type, types.Integer) and axis < len(extents):
                text = f"_nb_check_index({{0}}, {{1}}, {axis}, {site})"
                self.add(Effect(text, [extents[axis](), part], may_raise=True))

    def _memory(self, node: ast.Call) -> View:
        """Return new memory of the thread's or the block's; that of elements is made of scalars."""
        made = node.args[0] if isinstance(node.args[0], ast.Call) else node
        called, given = ast.unparse(made.func), made.args
        if called == "_nb_dynamic" and (self.derived or _DYNAMIC in self._in_components):
            raise self._refused(
                node,
                "dynamic shared memory has no derivative, for which a launch has no room; give the array a constant shape",
            )
        place = {"_nb_local_array": -1, "_nb_dynamic": _DYNAMIC}.get(called)
        if place is None:
            place = self._place_of(ast.literal_eval(given[1]))
        shape = 0 if place == _DYNAMIC else ast.literal_eval(given[-2])
        dtype = given[-1]
        extents = shape if isinstance(shape, tuple) else (shape,)
        of = "local" if called == "_nb_local_array" else "shared"
        if made is node:
            asked = self._static(dtype)
            kind = inference.dtype_of(asked)
            if isinstance(asked, types.Record) or isinstance(kind, types.Record):
                raise self._refused(node, f"{of} arrays of records have no derivative; use an array for each field")
            kind = inference.parts_of(kind) or kind
        else:
            element = self._static(node.args[1])
            kind, extents = numba_element(element), extents[:-1]
            if element.scalar.is_float and element.scalar.itemsize < 4:
                raise self._refused(node, f"{of} arrays of {element.name} have no derivative; use float32")
        if not isinstance(kind, types.Number | types.Boolean | NumbaElement):
            raise self._refused(node, f"the dtype of a {of} array must be a NumPy scalar type, such as np.float32")
        if kind == types.float16:
            raise self._refused(node, f"{of} arrays of float16 have no derivative; use float32")
        self.type_name(getattr(kind, "dtype", kind))
        # A function that is called twice finds the same shared memory.
        shared = (a for a in self.locals if a.kind == "shared" and a.place == place)
        known = next((a for a in shared if kind in (a.whole, a.dtype)), None)
        if known is not None:
            return View(known)
        in_components = made is not node or inference.complex_of(kind) is not None
        whole = kind if place in self._in_components and in_components else None
        if whole is not None:
            kind, extents = whole.dtype, (*extents, *whole.element.extents)
        text = self._memory_dtype(kind)
        array = Array(self.names.fresh(of), kind, len(extents), of, extents, text, place=place, whole=whole)
        self.locals.append(array)
        return View(array)

    def _place_of(self, place: int) -> int:
        """Return the number of a place in the source where shared memory is made, which is another for arguments of other types.

        Numba compiles a device function for each, and each has memory of its own.
        """
        several = sum(one == place for one, _ in self._places)
        return self._places.setdefault((place, self._given[-1]), place + _MOST_PLACES * several)

    def _memory_dtype(self, kind: Any) -> str:
        """Return how generated source names the dtype of memory."""
        if not isinstance(kind, types.Boolean):
            return self.type_name(kind)
        self.namespace["_nb_bool"] = np.bool_
        return "_nb_bool"

    def _meet(self, node: ast.Call, operation: str) -> Binding:
        """Wait for other threads of the block, and learn something from them."""
        arguments = [self._scalar(argument) for argument in node.args[2:]]  # behind the crew and the thread
        if operation.startswith("shfl_"):
            kind = types.unliteral(arguments[1].type)
            if kind not in _EXCHANGED:
                raise self._refused(node, f"lanes exchange int32, int64, float32 and float64, and this is {kind}")
        elif operation in ("syncthreads", "syncwarp"):
            kind = None
        elif operation in _LEARNED:
            kind = _LEARNED[operation]
        elif operation == "lanemask_lt" and not self.derived:
            kind = types.uint32
        else:
            what, way = _WITHOUT_DERIVATIVE.get(operation, (f"cuda.{operation}", "leave it out"))
            raise self._refused(node, f"{what} has no derivative; {way}")
        made = None if kind is None else self.value("met", kind)
        self.add(Meet(made, operation, arguments, place=(self._frames[-1].source, node)))
        return made

    def _inline(self, node: ast.Call, source: FunctionSource) -> Binding:
        return self._called(node, source, self._bind(node, source, self._rewritten.trees[id(source)]))

    def _called(self, node: ast.Call, source: FunctionSource, given: dict[str, Binding]) -> Binding:
        # What is given another function is another function: a solver may solve for what a solver returns.
        functions = functions_among(given.values())
        if any(frame.source is source and frame.functions == functions for frame in self._frames):
            raise self._refused(node, f"{source.name} calls itself, and has no derivative therefore; write a loop")
        if len(self._frames) >= _MAX_INLINED:
            raise self._refused(node, "device functions are nested too deeply to be differentiated")
        if source.gradient is not None and all(frame.source is not source.gradient for frame in self._frames):
            return self._custom(node, source, source.gradient, given)
        if source.declared.signatures and source.rest is not None:
            raise self._refused(
                node, f"{source.name} takes any number of arguments and has a signature; leave its signature out"
            )
        if not source.declared.signatures:
            return self._run_function(node, source, given)
        signature = self._signature(node, source, list(given.values()))
        converted = {
            name: self._converted(node, source, value, kind)
            for (name, value), kind in zip(given.items(), signature.args, strict=True)
        }
        return self._converted(node, source, self._run_function(node, source, converted), signature.return_type)

    def _signature(self, node: ast.Call, source: FunctionSource, given: Sequence[Binding]) -> Any:
        """Return the one of a function's declared signatures by which Numba calls it, where that is plain."""
        found = source.declared.signatures
        exact = [signature for signature in found if all(map(self._is_of, given, signature.args))]
        if not exact and len(found) > 1:
            raise self._refused(
                node,
                f"{source.name} has several signatures, and none of exactly these types; convert the arguments, or leave the "
                "signatures out",
            )
        return (exact or found)[0]

    def _as_declared(self, node: ast.AST, name: str, value: Binding) -> Binding:
        """Return what is assigned to a variable of the function that is read, of the type that it is declared with, if it is."""
        source = self._frames[-1].source
        kind = dict(source.declared.variables).get(name)
        return value if kind is None else self._converted(node, source, as_argument(value), kind)

    def _converted(self, node: ast.AST, source: FunctionSource, value: Binding, kind: Any) -> Binding:
        """Return what a function with a declared signature takes or returns, as one of its types."""
        if self._is_of(value, kind):
            return value
        if isinstance(value, Value) and isinstance(kind, types.Complex):
            if complex_program.has_complex(value) or not has_element(value):
                return self.cast(value, inference.parts_of(kind))
        elif isinstance(value, Value) and isinstance(kind, types.Number | types.Boolean) and not has_element(value):
            return self.cast(value, kind)
        raise self._refused(
            node, f"{source.name} is declared with {kind} here, and is given something else; leave that declaration out"
        )

    def _is_of(self, value: Binding, kind: Any) -> bool:
        """Tell whether Numba need not convert what is given to a type; arrays only become read-only, or of another layout."""
        if value == ():  # what a function without a result returns
            return bool(kind in (types.none, types.Tuple(())))
        if isinstance(value, tuple):
            return isinstance(kind, types.BaseTuple) and len(kind) == len(value) and all(map(self._is_of, value, kind))
        if isinstance(value, Value):
            return bool((inference.complex_of(value.type) or types.unliteral(value.type)) == kind)
        if isinstance(value, View | Window):
            of = value.array.whole or value.array.dtype
            of = of.dtype if isinstance(value, View) and value.part is not None else inference.complex_of(of) or of
            return isinstance(kind, types.Array) and kind.ndim == len(self._extents(value)) and kind.dtype == of
        return True

    def _run_function(self, node: ast.Call, source: FunctionSource, given: dict[str, Binding]) -> Binding:
        outer, place = self._env, self.place
        self._env = {name: value for name, value in outer.items() if name == THREAD} | given
        self._given.append(tuple(map(_type_of, given.values())))
        self._read(source, self._rewritten.trees[id(source)])
        self._given.pop()
        result = self._env.get(ANSWER)
        self._env, self.place = outer, place
        if isinstance(result, Missing):
            raise self._refused(
                node, f"what {source.name} returns {result.why}; return numbers, of one type on every path"
            )
        return () if result is None else result

    def _custom(
        self, node: ast.Call, source: FunctionSource, gradient: FunctionSource, given: dict[str, Binding]
    ) -> Binding:
        """Call a function whose derivative is written by hand."""
        # Thread indices, which the rewriting puts before them, have no derivative.
        arguments = [given[name] for name in source.parameters]
        if not all(isinstance(argument, Value) for argument in arguments):
            raise self._refused(
                node,
                f"{source.name} has a derivative by hand, and such functions take numbers, vectors and matrices only",
            )
        body: Region = []
        pullback: Region = []
        with self._into(body):
            inner = self._run_function(node, source, given)
        results = inner if isinstance(inner, tuple) else (inner,)
        if not results or not all(isinstance(result, Value) for result in results):
            raise self._refused(
                node,
                f"{source.name} has a derivative by hand, and such functions return numbers, vectors and matrices only",
            )
        made = [self.value(source.name, result.type) for result in results]
        cotangents = [self.value("cotangent", r.type) for r in results if is_float(r)]
        with self._into(pullback):
            gradients = self._gradients(node, source, gradient, arguments, cotangents)
        if any(isinstance(op, Meet) for op in (*walk(body), *walk(pullback))):
            raise self._refused(
                node, f"{source.name} has a derivative by hand, and such functions do not wait for other threads"
            )
        custom = Custom(arguments, made, body, list(results), cotangents, pullback, gradients, source.name)
        self.add(custom)
        return tuple(made) if isinstance(inner, tuple) else made[0]

    def _gradients(
        self,
        node: ast.Call,
        source: FunctionSource,
        gradient: FunctionSource,
        arguments: list[Value],
        cotangents: list[Value],
    ) -> list[Value | None]:
        names, given = gradient.parameters, [*arguments, *cotangents]
        if len(names) != len(given):
            raise self._refused(
                node,
                f"{gradient.name}, the derivative of {source.name}, takes {len(names)} arguments, and gets {len(given)}: "
                "those of the function, then one cotangent for each floating result",
            )
        # It may ask for its thread where the function does not.
        own = {argument.arg for argument in self._rewritten.trees[id(gradient)].args.args}
        hidden = {value.name: value for value in self.hidden if value.name in own}
        found = self._run_function(node, gradient, hidden | dict(zip(names, given, strict=True)))
        parts = found if isinstance(found, tuple) else (found,)
        if len(parts) != len(arguments) or not all(isinstance(part, Value) for part in parts):
            raise self._refused(
                node,
                f"{gradient.name} must return one number for each of the {len(arguments)} arguments of {source.name}",
            )
        return [
            self._gradient(node, gradient, part, argument) if is_float(argument) else None
            for part, argument in zip(parts, arguments, strict=True)
        ]

    def _gradient(self, node: ast.Call, source: FunctionSource, made: Value, argument: Value) -> Value:
        if not has_element(made, argument) or complex_program.has_complex(argument):
            return self.cast(made, argument.type)
        if made.type != argument.type:
            raise self._refused(
                node,
                f"{source.name} returns {kind_name(made)} as the gradient by an argument of {kind_name(argument)}",
            )
        return made

    def _function_gradient(self, node: ast.Call) -> Binding:
        """Return the gradient of a function: one for its only argument, or a tuple with one for each."""
        order, function, *arguments = node.args
        call = ast.copy_location(ast.Call(function, arguments, node.keywords), node)
        source = self._functions.get(self._called_name(function)) if isinstance(function, ast.Name) else None
        run: Callable[[list[Binding]], Binding]
        if source is not None:
            bound = self._bind(call, source, self._rewritten.trees[id(source)])
            if source.rest is not None:
                raise self._refused(node, f"{source.name} takes any number of arguments; nb.grad wants them named")
            names = [name.arg for name in self._rewritten.trees[id(source)].args.args]
            given = [bound[name] for name in names]
            first = len(names) - len(source.parameters)  # behind thread indices
            what = source.name

            def run(values: list[Binding]) -> Binding:
                return self._called(call, source, dict(zip(names, values, strict=True)))

        else:
            callee, first = self._static_function(call), 0
            what = callee.text
            given = list(map(as_argument, self._arguments(call)))

            def run(values: list[Binding]) -> Binding:
                return self._apply(call, callee, values)

        for _ in range(ast.literal_eval(order)):
            run, what = functools.partial(self._gradients_of, node, what, first, run), f"nb.grad({what})"
        return run(given)

    def _static_function(self, call: ast.Call) -> Static:
        callee = self._expression(call.func)
        if not isinstance(callee, Static):
            raise self._refused(call, "nb.grad takes a function that is known before the kernel runs")
        if call.keywords:
            raise self._refused(call, f"{callee.text} is called with named arguments; pass them by position")
        return callee

    def _gradients_of(
        self, node: ast.Call, what: str, first: int, run: Callable[[list[Binding]], Binding], given: list[Binding]
    ) -> Binding:
        """Return the gradient of what `run` computes, by each of the arguments from the `first` on."""
        floats = [k for k in range(first, len(given)) if isinstance(given[k], Value) and is_float(given[k])]
        if not floats:
            raise self._refused(
                node, f"no argument of {what} is a floating-point number, vector or matrix, and so it has no gradient"
            )
        # Variables of its own, for one value may be given twice, or be a constant.
        values = list(given)
        for k in floats:
            values[k] = self.value("at", given[k].type)
            self.add(Compute(values[k], Function(CAST, "{0}", None), [given[k]]))
        region: Region = []
        before = len(self.locals)
        with self._into(region):
            result = run(values)
        if not isinstance(result, Value) or not inference.is_float_type(result.type):
            found = kind_name(result) if isinstance(result, Value) else "no number"
            raise self._refused(
                node, f"{what} returns {found}, and the gradient is that of a function that returns one real number"
            )
        made = add_gradients(self, region, [values[k] for k in floats], result, self.locals, before)
        by_place = dict(zip(floats, made, strict=True))
        answer = tuple(by_place.get(k, _NO_GRADIENT) for k in range(first, len(given)))
        return answer[0] if len(answer) == 1 else answer

    def _default(self, source: FunctionSource, node: ast.expr) -> Binding:
        """Return what a parameter is that a call leaves out; the variables of the caller are not seen there."""
        outer, self._env = self._env, {}
        self._frames.append(Frame(source, {}))
        found = self._expression(node)
        self._frames.pop()
        self._env = outer
        return found

    def _bind(self, node: ast.Call, source: FunctionSource, tree: ast.FunctionDef) -> dict[str, Binding]:
        """Return what a function is given, in the order of its parameters; it is evaluated in that of the call."""
        names = [argument.arg for argument in tree.args.args]
        positional = self._arguments(node)
        given = dict(zip(names, positional, strict=False))
        given |= {str(keyword.arg): self._expression(keyword.value) for keyword in node.keywords}
        for name, default in zip(reversed(names), reversed(tree.args.defaults), strict=False):
            if name not in given:
                given[name] = self._default(source, default)
        if source.rest is not None:
            given[source.rest] = tuple(positional[len(names) :])
            names.append(source.rest)
        if set(given) != set(names) or (source.rest is None and len(positional) > len(names)):
            raise self._refused(node, f"{source.name} takes the arguments {', '.join(source.parameters)}")
        return {name: as_argument(given[name]) for name in names}


def _call_text(callee: Static, arguments: Sequence[Any]) -> str:
    return f"{callee.text}({', '.join(f'{{{k}}}' for k in range(len(arguments)))})"


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _type_of(given: Binding) -> Hashable:
    """Return what Numba compiles a function anew for, of what it is given."""
    if isinstance(given, tuple):
        return tuple(map(_type_of, given))
    if isinstance(given, View):
        return given.array.dtype, given.array.ndim - len(given.index)
    if isinstance(given, Value):
        kind: Hashable = types.unliteral(given.type)
        return kind
    return (type(given).__name__, *functions_among([given]))
