"""From a kernel's rewritten syntax trees to a program, when the types of its arguments are known.

Device functions are inlined. What the derivatives do not cover is refused here, with its place in the source, before
anything runs.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.construct import ARITHMETIC, Construct
from numbridge.kernels.adjoint.element_program import (
    construct_element,
    named_part,
    operate,
    part,
    replaced,
    with_named_part,
)
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Carried,
    Custom,
    Function,
    If,
    Load,
    Loop,
    Merge,
    Names,
    Parameter,
    Program,
    Raise,
    Region,
    Shape,
    Store,
    Value,
    is_float,
    is_records,
)
from numbridge.kernels.adjoint.lowering import ANSWER, without_jumps
from numbridge.kernels.adjoint.narrow_adjoints import is_narrow
from numbridge.kernels.adjoint.record_program import (
    MOST_COPIED,
    Fields,
    Records,
    copied_parts,
    inner_places,
    same_record,
    why_no_derivative,
)
from numbridge.kernels.adjoint.rules import KEYS
from numbridge.kernels.element_operations import FUNCTIONS
from numbridge.kernels.element_stores import PARTS
from numbridge.kernels.elements import ElementType
from numbridge.kernels.emission import Rewritten
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.numba_elements import numba_element
from numbridge.kernels.parameter_types import ArrayType, ParameterType
from numbridge.kernels.source import FunctionSource

__all__ = ["build"]

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
_MAX_INLINED = 32
# What Python's operators and functions are called in the table of what elements can do.
_ON_ELEMENTS: dict[Any, str] = {**_BINARY, ast.MatMult: "matmul", ast.Div: "truediv"}
_NAMED: dict[Any, str] = {
    **{function: name for name, function in FUNCTIONS.items()},
    min: "min",
    max: "max",
    abs: "abs",
}


@dataclass(frozen=True)
class Static:
    """Something that is known before the kernel runs and is no number: a function, a module, a dtype."""

    value: Any
    text: str


@dataclass(frozen=True)
class View:
    """An array, or the part of one that leading indices select."""

    array: Array
    index: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A variable that has no usable value here, and why."""

    why: str


Binding = Any  # Value | View | Records | Static | Missing | tuple of bindings
_UNASSIGNED = Missing("may not have been assigned here")


@dataclass
class _Frame:
    """A function that is being read: its source and how often each of its variables is assigned."""

    source: FunctionSource
    assignments: Mapping[str, int]


def build(rewritten: Rewritten, parameters: Sequence[ParameterType]) -> Program:
    """Return the program of a kernel.

    Parameters
    ----------
    rewritten : Rewritten
        The kernel's syntax trees.
    parameters : sequence of ParameterType
        The types of its arguments.

    Raises
    ------
    KernelUnsupportedError
        If something in the kernel has no derivative here; the message shows where, and what to do.
    """
    return _Builder(rewritten, parameters).run()


class _Builder(Construct):
    def __init__(self, rewritten: Rewritten, parameters: Sequence[ParameterType]) -> None:
        self._rewritten = rewritten
        self._root = rewritten.program.root
        taken = {*rewritten.namespace, *rewritten.names.values(), *(p.name for p in parameters), *dir(builtins)}
        super().__init__(Names(taken), dict(rewritten.namespace))
        self._functions = {rewritten.names[id(s)]: s for s in rewritten.program.sources}
        self._frames: list[_Frame] = []
        self._env: dict[str, Binding] = {}
        self.locals: list[Array] = []
        self._fields = Fields(self.names)
        self.hidden = [Value(name, types.int64) for name in rewritten.hidden]
        self.parameters = [Parameter(p.name, _item(p)) for p in parameters]
        self.type_name(types.float32)  # in which elements of fewer bits are loaded

    def run(self) -> Program:
        """Read the kernel."""
        tree = self._rewritten.trees[id(self._root)]
        self._env = {value.name: value for value in self.hidden}
        for parameter in self.parameters:
            item = parameter.item
            self._env[parameter.name] = _memory(item) if isinstance(item, Array) else item
        self._read(self._root, tree)
        name = self._rewritten.names[id(self._root)]
        return Program(
            name,
            self.hidden,
            self.parameters,
            self.locals,
            self._fields.arrays,
            self.region,
            self.namespace,
            self.names,
        )

    def _read(self, source: FunctionSource, tree: ast.FunctionDef) -> None:
        stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._frames.append(_Frame(source, {name: stored.count(name) for name in stored}))
        self._block(without_jumps(tree.body))
        self._frames.pop()

    def _refused(self, node: Any, message: str) -> KernelError:
        return self._frames[-1].source.error(node, message, KernelUnsupportedError)

    # Statements

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.place = (self._frames[-1].source, statement)
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                value = self._expression(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AugAssign():
                self._augment(node)
            case ast.AnnAssign(value=ast.expr() as assigned):
                self._assign(node.target, self._expression(assigned))
            case ast.Expr(value=ast.Call(func=ast.Name(id="print" | "_nb_print"))):
                pass  # the kernel has printed it
            case ast.Expr():
                if not isinstance(node.value, ast.Constant):
                    self._expression(node.value)
            case ast.If():
                self._if(node)
            case ast.For() | ast.While():
                self._loop(node)
            case ast.Raise():
                self.add(Raise(ast.unparse(node)))
            case ast.Assert():
                condition = self._scalar(node.test)
                with self._into([]):
                    self.add(Raise("raise AssertionError"))
                    failed = self.region
                self.add(If(condition, [], failed, []))
            case ast.Pass() | ast.AnnAssign():
                pass
            case _:
                raise self._refused(node, f"this statement ({type(node).__name__}) has no derivative; use simpler ones")

    def _assign(self, target: ast.expr, value: Binding) -> None:
        match target:
            case ast.Name():
                self._env[target.id] = value
            case ast.Tuple():
                if not isinstance(value, tuple) or len(value) != len(target.elts):
                    raise self._refused(
                        target, "only a tuple of as many values can be unpacked here; assign them one by one"
                    )
                for element, part in zip(target.elts, value, strict=True):
                    self._assign(element, part)
            case ast.Subscript() | ast.Attribute():
                self._place(target)[1](value)
            case _:
                raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")

    def _place(self, target: ast.expr) -> tuple[Callable[[], Binding], Callable[[Binding], None]]:
        """Return what reads and what writes a variable, an element of an array, or a part of a vector or matrix."""
        if isinstance(target, ast.Name):
            name = ast.copy_location(ast.Name(target.id, ast.Load()), target)
            return lambda: self._name(name), lambda value: self._env.update({target.id: value})
        if not isinstance(target, ast.Subscript | ast.Attribute):
            raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")
        read, write = self._place(target.value) if self._is_place(target.value) else (None, None)
        owner = self._expression(target.value) if read is None else read()
        if isinstance(owner, Value) and inference.element_of(owner.type) is not None and write is not None:
            return self._part_place(target, owner, write)
        if isinstance(owner, Records):
            return self._memory_place(target, self._within_records(target, owner))
        if isinstance(target, ast.Attribute):
            raise self._refused(target, "gradients do not follow this assignment; assign to a name or an element")
        return self._memory_place(target, self._indexed(target, owner))

    def _memory_place(
        self, target: ast.expr, found: View | Records
    ) -> tuple[Callable[[], Binding], Callable[[Binding], None]]:
        if len(found.index) != (found.array.ndim if isinstance(found, View) else found.ndim):
            return lambda: found, lambda value: self._whole_row(target)
        if isinstance(found, Records):
            return lambda: found, lambda value: self._copy_record(target, found, value)
        return lambda: self._load(found), lambda value: self._store(target, found, value)

    def _is_place(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in PARTS
        return isinstance(node, ast.Subscript) or (isinstance(node, ast.Name) and node.id in self._env)

    def _whole_row(self, target: ast.expr) -> None:
        raise self._refused(
            target, "a whole row cannot be assigned to in a kernel that is differentiated; write a loop"
        )

    def _part_place(
        self, target: ast.Subscript | ast.Attribute, owner: Value, write: Callable[[Binding], None]
    ) -> tuple[Callable[[], Binding], Callable[[Binding], None]]:
        """Return what reads and writes a part of an element: to write one is to replace the whole."""
        index = [] if isinstance(target, ast.Attribute) else self._integers(target)

        def put(value: Binding) -> None:
            made = None
            if isinstance(value, Value):
                if isinstance(target, ast.Attribute):
                    made = with_named_part(self, owner, target.attr, value)
                else:
                    made = replaced(self, owner, index, value)
            if made is None:
                raise self._refused(target, f"this does not fit into a part of {_kind_name(owner)}")
            write(made)

        if isinstance(target, ast.Attribute):
            return lambda: self._part_named(target, owner), put
        return lambda: self._part_at(target, owner, index), put

    def _part_named(self, node: ast.Attribute, owner: Value) -> Value:
        found = named_part(self, owner, node.attr)
        if found is None:
            raise self._refused(node, f"{_kind_name(owner)} has no part {node.attr!r}")
        return found

    def _part_at(self, node: ast.expr, owner: Value, index: Sequence[Value]) -> Value:
        found = part(self, owner, index)
        if found is None:
            raise self._refused(node, f"{_kind_name(owner)} has no such component; index it by integers")
        return found

    def _integers(self, node: ast.Subscript) -> list[Value]:
        """Return the indices in brackets."""
        index: list[Value] = []
        for place in self._index_parts(node.slice):
            if not isinstance(place, Value) or not isinstance(place.type, types.Integer | types.Boolean):
                raise self._refused(
                    node, "an index is an integer in a kernel that is differentiated; write a loop for slices"
                )
            index.append(place)
        return index

    def _store(self, target: ast.expr, view: View, value: Binding) -> None:
        if not isinstance(value, Value):
            raise self._refused(target, "only a number can be stored into an element of an array")
        if (inference.element_of(value.type) or inference.element_of(view.array.dtype)) and (
            value.type != view.array.dtype
        ):
            raise self._refused(
                target, f"{_kind_name(value)} cannot be stored into an array of {_kind_name(view.array)}; make one"
            )
        if view.array.kind == "constant":
            raise self._refused(target, f"{view.array.name} is a constant array of the program; pass it as an argument")
        self.add(Store(view.array, list(view.index), self.cast(value, view.array.dtype)))

    def _augment(self, node: ast.AugAssign) -> None:
        read, write = self._place(node.target)
        held = read()
        if isinstance(held, View | Records) and not isinstance(node.target, ast.Name):
            self._whole_row(node.target)
        if not isinstance(held, Value):
            raise self._refused(node, "an augmented assignment needs a number here; assign to the elements one by one")
        write(self._binary(node, node.op, held, self._value(node.value)))

    # Branches

    @contextmanager
    def _into(self, region: Region) -> Iterator[None]:
        """Add operations to another region for a while; assignments there are undone."""
        outer, env, place = self.region, self._env, self.place
        self.region, self._env = region, dict(env)
        yield
        self.region, self._env, self.place = outer, env, place

    def _if(self, node: ast.If) -> None:
        condition = self._scalar(node.test)
        if condition.literal:
            self._block(node.body if condition.constant else node.orelse)
            return
        then: Region = []
        orelse: Region = []
        with self._into(then):
            self._block(node.body)
            after_then = self._env
        with self._into(orelse):
            self._block(node.orelse)
            after_else = self._env
        merges: list[Merge] = []
        for name in {**after_then, **after_else}:
            a, b = after_then.get(name, _UNASSIGNED), after_else.get(name, _UNASSIGNED)
            self._env[name] = self._merged(name, a, b, then, orelse, merges)
        stores = self._sunk_stores(then, orelse, merges)
        self.add(If(condition, then, orelse, merges))
        for store in stores:
            self.add(store)

    def _sunk_stores(self, then: Region, orelse: Region, merges: list[Merge]) -> list[Store]:
        """Take stores to one element out of the ends of both branches: one store of either value vectorises better."""
        stores: list[Store] = []
        while then and orelse:
            a, b = then[-1], orelse[-1]
            if not (isinstance(a, Store) and isinstance(b, Store) and a.array is b.array and a.index == b.index):
                break
            merge = Merge(self.value(a.array.name, a.array.dtype), a.value, b.value)
            merges.append(merge)
            stores.insert(0, Store(a.array, a.index, merge.result, place=then.pop().place))
            orelse.pop()
        return stores

    def _merged(self, name: str, a: Binding, b: Binding, then: Region, orelse: Region, merges: list[Merge]) -> Binding:
        """Return what a variable is after a branch that left it as `a` or as `b`."""
        if a is b or a == b:
            return a
        if isinstance(a, Missing) and isinstance(b, Value):
            a = self.zero(b.type)
        elif isinstance(b, Missing) and isinstance(a, Value):
            b = self.zero(a.type)
        elif isinstance(a, Missing) or isinstance(b, Missing):
            return b if isinstance(a, Missing) else a
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(self._merged(name, x, y, then, orelse, merges) for x, y in zip(a, b, strict=True))
        if not (isinstance(a, Value) and isinstance(b, Value)):
            return Missing("is not the same array, or not a number, on every path to here")
        kind = inference.unified([a.type, b.type])
        if kind is None:
            return Missing(f"is {a.type} on one path to here and {b.type} on another")
        merge = Merge(self.value(_readable(name), kind), self._cast_in(then, a, kind), self._cast_in(orelse, b, kind))
        merges.append(merge)
        return merge.result

    def _cast_in(self, region: Region, value: Value, kind: Any) -> Value:
        with self._into(region):
            return self.cast(value, kind)

    def _choice(self, node: ast.expr, condition: Value, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        """Return the value of an expression of which only one side is evaluated."""
        if condition.literal:
            return then() if condition.constant else orelse()
        regions: tuple[Region, Region] = ([], [])
        sides = []
        for region, side in zip(regions, (then, orelse), strict=True):
            with self._into(region):
                sides.append(side())
        merges: list[Merge] = []
        made = self._merged("value", sides[0], sides[1], *regions, merges)
        if isinstance(made, Missing):
            raise self._refused(node, f"the value of this expression {made.why}; use an if statement")
        self.add(If(condition, *regions, merges))
        return made

    # Loops

    def _loop(self, node: Any) -> None:
        bounds = self._bounds(node) if isinstance(node, ast.For) else []
        before = dict(self._env)
        parts = [name for name in _assigned_in_part(node) if isinstance(before.get(name), Value)]
        assigned = list(dict.fromkeys([*_assigned(node), *parts]))
        kinds: dict[str, Any] = {n: before[n].type for n in assigned if isinstance(before.get(n), Value)}
        while True:
            carried, loop, after = self._trip(node, bounds, assigned, kinds, before)
            grown = self._carried_types(kinds, assigned, after)
            if grown == kinds:
                break
            kinds = grown
        self._finish_loop(node, loop, carried, kinds, before, after)

    def _bounds(self, node: ast.For) -> list[Value]:
        call = node.iter
        if not isinstance(call, ast.Call) or self._static(call.func) is not range or call.keywords:
            raise self._refused(node.iter, "only loops over range(...) have a derivative; loop over the indices")
        if not isinstance(node.target, ast.Name):
            raise self._refused(node.target, "the variable of a loop over range(...) is a name")
        bounds = [self._scalar(argument) for argument in call.args]
        if not all(isinstance(bound.type, types.Integer) for bound in bounds):
            raise self._refused(node.iter, "the bounds of range(...) are integers; convert with int(...)")
        return bounds

    def _trip(
        self, node: Any, bounds: list[Value], assigned: list[str], kinds: Mapping[str, Any], before: dict[str, Binding]
    ) -> tuple[dict[str, Value], Loop, dict[str, Binding]]:
        """Read the body once, given the types of the carried variables; return them, the loop and what it leaves."""
        test: Region = []
        body: Region = []
        index = condition = None
        self._env = dict(before)
        carried = {name: self.value(_readable(name), kind) for name, kind in kinds.items()}
        for name in assigned:
            self._env[name] = carried.get(name, _lost(before.get(name, _UNASSIGNED)))
        if isinstance(node, ast.For):
            index = self.value(_loop_variable(node), inference.range_type(bounds))
            self.type_name(index.type)
            bounds = [self._cast_in(self.region, bound, types.int64) for bound in _three(bounds, self.constant)]
            self._env[_loop_variable(node)] = index
        outer = self.region
        if index is None:
            if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test)):
                raise self._refused(
                    node.test, "a while condition that assigns (:=) has no derivative; assign in the body"
                )
            self.region = test
            condition = self._scalar(node.test)
        self.region = body
        self._block(node.body)
        after = self._env
        self.region, self._env = outer, before
        leave = after[node.leave] if node.leave else None
        return carried, Loop(index, bounds, test, condition, body, [], leave), after

    def _carried_types(
        self, kinds: Mapping[str, Any], assigned: Sequence[str], after: Mapping[str, Binding]
    ) -> dict[str, Any]:
        grown = dict(kinds)
        for name in assigned:
            value = after.get(name)
            if isinstance(value, Value):
                kind = inference.unified([kinds[name], value.type]) if name in kinds else value.type
                grown[name] = kind if kind is not None else value.type
        return grown

    def _finish_loop(
        self,
        node: Any,
        loop: Loop,
        carried: Mapping[str, Value],
        kinds: Mapping[str, Any],
        before: dict[str, Binding],
        after: Mapping[str, Binding],
    ) -> None:
        env = dict(before)
        for name, binding in after.items():
            if name in kinds:
                start = before.get(name)
                initial = self.cast(start, kinds[name]) if isinstance(start, Value) else self.zero(kinds[name])
                following = after[name]
                if not isinstance(following, Value):
                    raise self._refused(
                        node, f"{name} is a number at first and something else later in this loop; rename one"
                    )
                variable = Carried(
                    carried[name],
                    initial,
                    self._cast_in(loop.body, following, kinds[name]),
                    self.value(_readable(name), kinds[name]),
                )
                loop.carried.append(variable)
                env[name] = variable.result
            elif before.get(name) is not binding:
                env[name] = _lost(binding)
        self._env = env
        self.add(loop)

    # Expressions

    def _scalar(self, node: ast.expr) -> Value:
        value = self._expression(node)
        if not isinstance(value, Value) or inference.element_of(value.type) is not None:
            raise self._refused(node, "a number is needed here, and this is none; take an element of it")
        return value

    def _value(self, node: ast.expr) -> Value:
        """Return a number, a vector or a matrix."""
        value = self._expression(node)
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
                return self._binary(node, node.op, self._value(node.left), self._value(node.right))
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
                value = self._expression(node.value)
                self._env[node.target.id] = value
                return value
            case ast.Call():
                return self._call(node)
        raise self._refused(node, f"this expression ({type(node).__name__}) has no derivative; write it with numbers")

    def _constant(self, node: ast.Constant) -> Value:
        if type(node.value) not in (bool, int, float):
            raise self._refused(node, f"{node.value!r} cannot be used in a kernel that is differentiated; use numbers")
        return self.constant(node.value, literal=True)

    def _name(self, node: ast.Name) -> Binding:
        found = self._env.get(node.id)
        if found is None:
            return self._global(node)
        if isinstance(found, Missing):
            raise self._refused(node, f"{node.id} {found.why}; assign it on every path before this")
        if isinstance(found, Value) and found.literal and self._frames[-1].assignments.get(node.id, 0) > 1:
            # Numba takes a variable for a constant only where it is assigned once.
            return Value(found.name, found.type, found.constant)
        return found

    def _global(self, node: ast.Name) -> Binding:
        value = self.namespace.get(node.id, getattr(builtins, node.id, _UNASSIGNED))
        local = node.id in self._frames[-1].assignments
        if not local and (node.id in self._functions or not isinstance(value, Missing)):
            return self._known(value, node.id)
        raise self._refused(node, f"{node.id} may not have been assigned here; assign it on every path before this")

    def _known(self, value: Any, text: str) -> Binding:
        if isinstance(value, np.ndarray):
            kind = inference.dtype_of(value.dtype)
            return View(Array(text, kind, value.ndim, "constant"))
        if isinstance(value, np.generic):
            kind = inference.constant_type(value)
            return Value(text, kind, value.item())
        return Static(value, text)

    def _static(self, node: ast.expr) -> Any:
        """Return the object that an expression stands for, or None."""
        if isinstance(node, ast.Name | ast.Attribute):
            found = self._expression(node)
            return found.value if isinstance(found, Static) else None
        return None

    def _attribute(self, node: ast.Attribute) -> Binding:
        base = self._expression(node.value)
        if isinstance(base, Static) and isinstance(base.value, ModuleType | type):
            return self._known(getattr(base.value, node.attr), f"{base.text}.{node.attr}")
        if isinstance(base, Records) and node.attr in base.type.fields:
            return self._field(node, base, node.attr)
        if isinstance(base, View | Records):
            return self._property(node, base)
        if isinstance(base, Value) and inference.element_of(base.type) is not None:
            return self._part_named(node, base)
        raise self._refused(node, f"gradients do not follow .{node.attr}; pass it as an argument")

    def _property(self, node: ast.Attribute, view: View | Records) -> Binding:
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
        raise self._refused(
            node, f"gradients do not follow .{node.attr} of an array; use its elements, shape, ndim or size"
        )

    def _extents(self, view: View | Records) -> Sequence[Callable[[], Value]]:
        """Return what gives the extents of the dimensions that no index has been given for."""
        array = view.array
        owner = array if array.owner is None else array.owner
        inner = view.extents if isinstance(view, Records) else array.extents if array.owner is not None else ()
        outer = [functools.partial(self._extent, owner, axis) for axis in range(owner.ndim)]
        return [*outer, *(functools.partial(self.constant, extent) for extent in inner)][len(view.index) :]

    def _extent(self, array: Array, axis: int) -> Value:
        if array.kind == "local":
            return self.constant(array.extents[axis])
        made = self.value(f"{array.name}_shape", types.int64)
        self.add(Shape(made, array, axis))
        return made

    def _subscript(self, node: ast.Subscript) -> Binding:
        base = self._expression(node.value)
        if isinstance(base, tuple):
            place = self._expression(node.slice)
            if isinstance(place, Value) and type(place.constant) is int and -len(base) <= place.constant < len(base):
                return base[place.constant]
            raise self._refused(node, "the elements of a tuple are chosen by a constant here; use if, or an array")
        if isinstance(base, Value) and inference.element_of(base.type) is not None:
            return self._part_at(node, base, self._integers(node))
        if isinstance(base, Records):
            return self._loaded(self._within_records(node, base))
        return self._loaded(self._indexed(node, base))

    def _loaded(self, found: View | Records) -> Binding:
        """Return an element; records and rows stay memory."""
        return self._load(found) if isinstance(found, View) and len(found.index) == found.array.ndim else found

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

    def _copy_record(self, target: ast.expr, to: Records, value: Binding) -> None:
        if not isinstance(value, Records) or len(value.index) != value.ndim or not same_record(to.type, value.type):
            raise self._refused(
                target, f"only a record of the same dtype can be stored into {to.name}; store its fields"
            )
        pairs = [
            (self._leaf(target, a), self._leaf(target, b), inner)
            for a, b in zip(copied_parts(to), copied_parts(value), strict=True)
            for inner in inner_places(a.extents[len(to.extents) :])
        ]
        if len(pairs) > MOST_COPIED:
            raise self._refused(
                target, f"a record of {len(pairs)} numbers is copied at once; copy its fields in a loop"
            )
        made = []
        for goal, source, inner in pairs:  # everything is read before anything is written
            index = tuple(self.constant(k) for k in inner)
            made.append(
                (View(goal.array, (*goal.index, *index)), self._load(View(source.array, (*source.index, *index))))
            )
        for view, loaded in made:
            self._store(target, view, loaded)

    def _indexed(self, node: ast.Subscript, base: Binding) -> View:
        if not isinstance(base, View):
            raise self._refused(node, "only arrays and tuples have elements here")
        index = self._integers(node)
        if len(base.index) + len(index) > base.array.ndim:
            raise self._refused(
                node, f"{base.array.name} has {base.array.ndim} dimension(s), and more indices are given"
            )
        return View(base.array, (*base.index, *index))

    def _index_parts(self, node: ast.expr) -> list[Binding]:
        if isinstance(node, ast.Slice) or (
            isinstance(node, ast.Tuple) and any(isinstance(e, ast.Slice) for e in node.elts)
        ):
            raise self._refused(node, "slices have no derivative; write a loop over the elements")
        found = self._expression(node)
        return list(found) if isinstance(found, tuple) else [found]

    def _load(self, view: View) -> Value:
        made = self.value(view.array.name, view.array.dtype)
        self.add(Load(made, view.array, list(view.index)))
        return made

    def _binary(self, node: Any, op: ast.operator, left: Value, right: Value) -> Value:
        if _has_element(left, right):
            return self._on_elements(node, _ON_ELEMENTS.get(type(op), ""), left, right)
        key = _BINARY.get(type(op))
        if key is not None:
            function = ARITHMETIC[key]
        elif type(op) in _INTEGER:
            symbol, primitive = _INTEGER[type(op)]
            function = Function("integer", f"{{0}} {symbol} {{1}}", primitive)
        else:
            raise self._refused(node, "this operator has no derivative")
        return self._checked(node, function, [left, right])

    def _on_elements(self, node: Any, name: str, *operands: Value) -> Value:
        made = operate(self, name, *operands)
        if made is None:
            listed = ", ".join(_kind_name(operand) for operand in operands)
            raise self._refused(node, f"there is no such operation for ({listed})")
        return made

    def _checked(self, node: Any, function: Function, arguments: Sequence[Value], base: str = "value") -> Value:
        made = self.compute(function, arguments, base)
        if made is None:
            listed = ", ".join(str(argument.type) for argument in arguments)
            raise self._refused(node, f"Numba has no such operation for ({listed})")
        return made

    def _unary(self, node: ast.UnaryOp) -> Value:
        operand = self._value(node.operand)
        if _has_element(operand):
            return self._on_elements(node, {ast.USub: "neg", ast.UAdd: "pos"}.get(type(node.op), ""), operand)
        match node.op:
            case ast.USub() if operand.literal and not isinstance(operand.type, types.Boolean):
                # Python folds this, so Numba sees a literal.
                return self.constant(-operand.constant, operand.type, literal=True)
            case ast.USub():
                return self._checked(node, ARITHMETIC["neg"], [operand])
            case ast.Not():
                return self._checked(node, ARITHMETIC["not"], [operand])
            case ast.UAdd():
                return self._checked(node, Function("pos", "+{0}", operator.pos), [operand])
        return self._checked(node, Function("integer", "~{0}", operator.invert), [operand])

    def _compare(self, node: ast.Compare) -> Value:
        left = self._value(node.left)
        return self._comparison(node, left, list(zip(node.ops, node.comparators, strict=True)))

    def _comparison(self, node: ast.Compare, left: Value, rest: list[tuple[ast.cmpop, ast.expr]]) -> Value:
        (op, right_node), *more = rest
        if type(op) not in _COMPARISON:
            raise self._refused(
                node, f"this comparison ({type(op).__name__}) cannot be used in a kernel that is differentiated"
            )
        right, key = self._value(right_node), _COMPARISON[type(op)]
        if _has_element(left, right):
            made = self._on_elements(node, key, left, right)
        else:
            made = self._checked(node, ARITHMETIC[key], [left, right])
        if not more:
            return made
        both: Value = self._choice(
            node, made, lambda: self._comparison(node, right, more), lambda: self.constant(False)
        )
        return both

    def _boolean(self, node: ast.BoolOp, parts: list[ast.expr]) -> Any:
        first = self._scalar(parts[0])
        if len(parts) == 1:
            return first
        if isinstance(node.op, ast.And):
            return self._choice(node, first, lambda: self._boolean(node, parts[1:]), lambda: first)
        return self._choice(node, first, lambda: first, lambda: self._boolean(node, parts[1:]))

    # Calls

    def _call(self, node: ast.Call) -> Binding:
        if isinstance(node.func, ast.Name):
            name = node.func.id
            if name.startswith("_nb_atomic_"):
                return self._atomic(node, name.removeprefix("_nb_atomic_"))
            if name in ("_nb_local_array", "_nb_elements"):
                return self._local_array(node)
            if name in self._functions and name not in self._env:
                return self._inline(node, self._functions[name])
        callee = self._expression(node.func)
        if not isinstance(callee, Static):
            raise self._refused(node, "only functions can be called")
        if any(keyword for keyword in node.keywords):
            raise self._refused(node, f"{callee.text} is called with named arguments; pass them by position")
        return self._apply(node, callee, [self._expression(argument) for argument in node.args])

    def _apply(self, node: ast.Call, callee: Static, arguments: list[Binding]) -> Binding:
        if callee.value is len and len(arguments) == 1:
            return self._length(node, arguments[0])
        if not all(isinstance(argument, Value) for argument in arguments):
            raise self._refused(
                node, f"{callee.text} is given an array, through which gradients do not pass; use a loop"
            )
        if isinstance(callee.value, ElementType):
            return self._element(node, callee.value, arguments)
        if _has_element(*arguments):
            return self._element_function(node, callee, arguments)
        kind = inference.dtype_of(callee.value)
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

    def _element(self, node: ast.Call, element: ElementType, arguments: list[Value]) -> Value:
        made = construct_element(self, element, arguments)
        if made is None:
            listed = ", ".join(_kind_name(argument) for argument in arguments)
            raise self._refused(
                node, f"{element.name} has {element.count} components, and cannot be made of ({listed})"
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
        rest = self._extents(argument) if isinstance(argument, View | Records) else []
        if rest:
            return rest[0]()
        element = inference.element_of(argument.type) if isinstance(argument, Value) else None
        if element is not None:
            return self.constant(element.extents[0])
        raise self._refused(node, "len() needs an array or a tuple")

    def _atomic(self, node: ast.Call, operation: str) -> Value:
        count = 2 if operation == "cas" else 1
        array = self._expression(node.args[0])
        if not isinstance(array, View):
            raise self._refused(node, "an atomic operation needs an array")
        view = self._indexed(ast.copy_location(ast.Subscript(node.args[0], node.args[1], ast.Load()), node), array)
        if len(view.index) != view.array.ndim:
            raise self._refused(node, "an atomic operation needs one index for each dimension")
        values = [self._atomic_value(node, argument, view.array) for argument in node.args[-count:]]
        made = self.value(view.array.name, view.array.dtype)
        self.add(Atomic(made, operation, view.array, list(view.index), values, place=(self._frames[-1].source, node)))
        return made

    def _atomic_value(self, node: ast.Call, argument: ast.expr, array: Array) -> Value:
        if inference.element_of(array.dtype) is None:
            return self.cast(self._scalar(argument), array.dtype)
        value = self._value(argument)
        if value.type != array.dtype:
            raise self._refused(node, f"the elements of {array.name} are {_kind_name(array)}, not {_kind_name(value)}")
        return value

    def _local_array(self, node: ast.Call) -> View:
        if isinstance(node.args[0], ast.Call):  # of elements, made of scalars
            element = self._static(node.args[1])
            kind, extents = numba_element(element), ast.literal_eval(node.args[0].args[0])[:-1]
            if element.scalar.is_float and element.scalar.itemsize < 4:
                raise self._refused(node, f"local arrays of {element.name} have no derivative; use float32")
        else:
            shape, kind = ast.literal_eval(node.args[0]), inference.dtype_of(self._static(node.args[1]))
            extents = shape if isinstance(shape, tuple) else (shape,)
        if kind is None:
            raise self._refused(node, "the dtype of a local array must be a NumPy scalar type, such as np.float32")
        self.type_name(getattr(kind, "dtype", kind))
        array = Array(self.names.fresh("local"), kind, len(extents), "local", extents, self.type_name(kind))
        self.locals.append(array)
        return View(array)

    def _inline(self, node: ast.Call, source: FunctionSource) -> Binding:
        if any(frame.source is source for frame in self._frames):
            raise self._refused(node, f"{source.name} calls itself, and has no derivative therefore; write a loop")
        if len(self._frames) >= _MAX_INLINED:
            raise self._refused(node, "device functions are nested too deeply to be differentiated")
        if source.gradient is not None and all(frame.source is not source.gradient for frame in self._frames):
            return self._custom(node, source, source.gradient)
        return self._run_function(node, source, self._bind(node, source, self._rewritten.trees[id(source)]))

    def _run_function(self, node: ast.Call, source: FunctionSource, given: dict[str, Binding]) -> Binding:
        outer, place = self._env, self.place
        self._env = dict(given)
        self._read(source, self._rewritten.trees[id(source)])
        result = self._env.get(ANSWER)
        self._env, self.place = outer, place
        if isinstance(result, Missing):
            raise self._refused(node, f"{source.name} does not return the same kind of thing on every path")
        return () if result is None else result

    def _custom(self, node: ast.Call, source: FunctionSource, gradient: FunctionSource) -> Binding:
        """Call a function whose derivative is written by hand."""
        given = self._bind(node, source, self._rewritten.trees[id(source)])
        arguments = list(given.values())
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
        found = self._run_function(node, gradient, dict(zip(names, given, strict=True)))
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
        if not _has_element(made, argument):
            return self.cast(made, argument.type)
        if made.type != argument.type:
            raise self._refused(
                node,
                f"{source.name} returns {_kind_name(made)} as the gradient by an argument of {_kind_name(argument)}",
            )
        return made

    def _bind(self, node: ast.Call, source: FunctionSource, tree: ast.FunctionDef) -> dict[str, Binding]:
        names = [argument.arg for argument in tree.args.args]
        given = dict(zip(names, (self._expression(argument) for argument in node.args), strict=False))
        given |= {str(keyword.arg): self._expression(keyword.value) for keyword in node.keywords}
        for name, default in zip(reversed(names), reversed(tree.args.defaults), strict=False):
            if name not in given:
                given[name] = self._expression(default)
        if set(given) != set(names):
            raise self._refused(node, f"{source.name} takes the arguments {', '.join(source.parameters)}")
        return {name: _as_argument(value) for name, value in given.items()}


def _item(parameter: ParameterType) -> Array | Value:
    narrow = parameter.element is None and is_narrow(parameter.scalar)
    kind = types.float32 if narrow else inference.parameter_type(parameter)
    if isinstance(parameter, ArrayType):
        return Array(parameter.name, kind, parameter.ndim, narrow=narrow)
    return Value(parameter.name, kind)


def _memory(array: Array) -> View | Records:
    return Records(array, (), (), array.dtype) if is_records(array) else View(array)


def _has_element(*values: Value) -> bool:
    return any(inference.element_of(value.type) is not None for value in values)


def _kind_name(item: Array | Value) -> str:
    kind = item.dtype if isinstance(item, Array) else item.type
    element = inference.element_of(kind)
    return str(kind) if element is None else element.name


def _three(bounds: list[Value], constant: Callable[[int], Value]) -> list[Value]:
    """Return start, stop and step."""
    if len(bounds) == 1:
        return [constant(0), bounds[0], constant(1)]
    return bounds if len(bounds) == 3 else [*bounds, constant(1)]


def _as_argument(value: Binding) -> Binding:
    """Return what a parameter holds: Numba compiles a function for types, so a literal is none inside."""
    if isinstance(value, tuple):
        return tuple(map(_as_argument, value))
    return Value(value.name, value.type, value.constant) if isinstance(value, Value) and value.literal else value


def _assigned(loop: Any) -> list[str]:
    """Return the variables that a loop assigns, in source order, but not its own."""
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    if isinstance(loop, ast.While):
        nodes += ast.walk(loop.test)
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    if isinstance(loop, ast.For):
        names += [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(names))


def _assigned_in_part(loop: Any) -> Iterator[str]:
    """Yield the names to whose components, elements or fields a loop assigns."""
    for node in (node for statement in loop.body for node in ast.walk(statement)):
        base: Any = node
        while isinstance(base, ast.Subscript | ast.Attribute):
            base = base.value
        if base is not node and isinstance(base, ast.Name) and isinstance(node.ctx, ast.Store):  # type: ignore[attr-defined]
            yield base.id


def _loop_variable(node: ast.For) -> str:
    name: str = node.target.id  # type: ignore[attr-defined]
    return name


def _lost(binding: Binding) -> Missing:
    if isinstance(binding, Missing):
        return binding
    return Missing("is assigned in a loop, and is not a number there or may not have been assigned")


def _readable(name: str) -> str:
    return name.removeprefix("_nb_")


def _call_text(callee: Static, arguments: Sequence[Any]) -> str:
    return f"{callee.text}({', '.join(f'{{{k}}}' for k in range(len(arguments)))})"


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
