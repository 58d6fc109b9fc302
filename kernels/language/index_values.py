"""What a kernel's expressions are where a launch decides it: sizes, thread indices, loop variables, and what is made of these.

Device functions are read where they are called, with what is known of their arguments.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from numbridge.kernels.language.dynamic_memory import element_bytes, is_dynamic
from numbridge.kernels.language.index_boxes import KINDS, Box, Operation, Value, Variable, ends
from numbridge.kernels.language.indexing import named_parts, own_axis, place_of
from numbridge.kernels.language.inner_gradients import Gradient
from numbridge.kernels.language.intrinsics import intrinsic_of
from numbridge.kernels.language.kernel_syntax import ends_threads, leaves_by
from numbridge.kernels.language.launch_sizes import ZERO, Along, Extent, Number, Size, Total, quotient
from numbridge.kernels.language.source import FunctionSource, Program, call_rank, given_by_name
from numbridge.kernels.language.static_names import Static

__all__ = ["Callees", "Given", "Values", "grid_size"]

# A text in which functions call functions, twice each, is as long as a power of two.
_MOST_CALLS = 2000


@dataclass
class Callees:
    """The device functions of a program, as far as their texts say what they do.

    Attributes
    ----------
    program : Program
        The program.
    calls : iterator of int
        Numbers of the calls that were read.
    """

    program: Program
    calls: Iterator[int] = field(default_factory=itertools.count)

    def callee(self, static: Static | None) -> FunctionSource | None:
        """Return the source of a device function whose text says what it does, or None."""
        if static is None or isinstance(static.value, Gradient):
            return None
        callee = self.program.callee(static.value) or self.program.compiled(static.value)
        if callee is None or callee.role != "func" or callee.rest is not None:
            return None
        if callee.declared.signatures or callee.declared.variables:
            return None
        # Numba's compiled code may have other values than the text reads now.
        return callee if all(dependency.is_unchanged() for dependency in callee.kept or ()) else None


class Memory(NamedTuple):
    """Local or shared memory, or an array that is a constant.

    Attributes
    ----------
    name : str
        The local variable that it is made for, or the constant's name.
    extents : tuple of Size
        Its extents.
    is_shared : bool
        Whether all threads of a block have it, and may write to it.
    is_constant : bool
        Whether the kernel reads it from outside.
    """

    name: str
    extents: tuple[Size, ...]
    is_shared: bool
    is_constant: bool = False


@dataclass(frozen=True)
class Given:
    """What a function's parameters stand for.

    Attributes
    ----------
    arguments : mapping of str to str
        Parameters of the kernel.
    memory : mapping of str to Memory
        Local or shared memory.
    numbers : mapping of str to Value
        What else is known.
    """

    arguments: Mapping[str, str]
    memory: Mapping[str, Memory]
    numbers: Mapping[str, Value]


class Values:
    """What the expressions of a function are: of the kernel, or of a device function in one of its calls.

    Attributes
    ----------
    source : FunctionSource
        The function.
    counting : mapping of int to str
        Its ``while`` loops that count, by their identity, and the variable that each counts in.
    meant : dict of str to ast.expr
        What names that are assigned once have been assigned so far.
    given, memory, numbers
        What its parameters stand for, as far as they are not assigned to: see `Given`. Its own memory is in `memory`, too.
    """

    def __init__(
        self, source: FunctionSource, callees: Callees, given: Given, around: tuple[FunctionSource, ...] = ()
    ) -> None:
        self.source, self.callees, self.around, self._given = source, callees, (*around, source), given
        names = [node.id for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        self._once = once = {name for name in names if names.count(name) == 1}
        self.meant: dict[str, ast.expr] = {}
        self.counting = _counting_in(source, names)
        self.kept = once | {*self.counting.values()}
        # Under a name that is assigned, another array or number may be meant.
        self.given = {name: meant for name, meant in given.arguments.items() if name not in names}
        self.numbers = {name: number for name, number in given.numbers.items() if name not in names}
        own = {name: made for name in once & source.memory if (made := _memory_of(callees.program, source, name))}
        passed = {name: meant for name, meant in given.memory.items() if name not in names}
        self.memory = {**_arrays_from_outside(source), **passed, **own}

    def assigned(self, target: ast.expr, value: ast.expr, context: Box) -> Box:
        """Keep what names stand for from here on."""
        for name, part in named_parts(target, value):
            if name in self._once:
                self.meant[name] = part
            self._alias(name, part)
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        parts = (
            self._parts(value, len(targets), context) if isinstance(target, ast.Tuple) else [self.value(value, context)]
        )
        kept = {
            named.id: part
            for named, part in zip(targets, parts, strict=False)
            if isinstance(named, ast.Name) and named.id in self.kept and part is not None
        }
        return replace(context, names={**context.names, **kept}) if kept else context

    def _alias(self, name: str, value: ast.expr) -> None:
        """Keep that a name that is assigned once stands for an array that has another, if that is what it is given."""
        # A parameter is something else where it is not assigned.
        if name in self._once and name not in self.source.parameters and isinstance(value, ast.Name):
            if value.id in self.given:
                self.given[name] = self.given[value.id]
            elif value.id in self.memory:
                self.memory[name] = self.memory[value.id]

    def changed_whole(self, name: str) -> str | Memory | ast.Subscript | None:
        """Return the array or the row that ``name += b`` changes: a parameter, memory, or how it was chosen; or None.

        Where the name stands for a number, as a row of an array of one dimension is, another number is assigned to it.
        """
        stores, changes, given = 0, 0, []
        for node in self.source.nodes:
            match node:
                case ast.Name(id=stored, ctx=ast.Store()) if stored == name:
                    stores += 1
                case ast.AugAssign(ast.Name(changed)) if changed == name:
                    changes += 1
                case ast.Assign([ast.Name(assigned)], value) if assigned == name:
                    given.append(value)
        if changes + len(given) < stores:
            return None
        if not given:
            return self._given.arguments.get(name) or self._given.memory.get(name)
        match given:
            case [ast.Subscript() as row] if name not in self.source.parameters:
                return row
            case [ast.Call()] if name in self.source.memory:
                return _memory_of(self.callees.program, self.source, name)
        return None

    def behind(self, loop: ast.While, context: Box) -> Box:
        """Return what is known behind a loop: no more where the variable is that it counts in."""
        name = self.counting.get(id(loop))
        return replace(context, names={n: value for n, value in context.names.items() if n != name})

    def _parts(self, node: ast.expr, count: int, context: Box) -> list[Value | None]:
        """Return what so many names are assigned together."""
        match node:
            case ast.Tuple(parts) if len(parts) == count:
                return [self.value(part, context) for part in parts]
            case ast.Attribute(ast.Name(name), "shape") if name in self.given:
                return [Size.of(Extent(self.given[name], axis)) for axis in range(count)]
            case ast.Call():
                found = self._of_threads(node) or self._returned(node, count, context)
                return found if len(found) == count else []
        return []

    def _of_threads(self, node: ast.Call) -> list[Value | None]:
        """Return the numbers of threads that a call gives, or nothing."""
        static = self.source.resolve(node.func)
        called = None if static is None else intrinsic_of(static.value)
        if called is None or called.kind not in ("tid", "grid", "gridsize"):
            return []
        axes = range(call_rank(self.source, node, called))
        if called.kind == "gridsize":
            return [grid_size(axis) for axis in axes]
        return [Variable("own", axis) for axis in axes]

    def called(self, node: ast.Call, context: Box) -> tuple[Values, Box] | None:
        """Return what a device function that is called makes of its arguments, and what is known where it begins."""
        callee = self.callees.callee(self.source.resolve(node.func))
        if callee is None or callee in self.around or next(self.callees.calls) > _MOST_CALLS:
            return None
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            return None
        defaults = callee.function.__defaults__ or ()
        later = callee.parameters[len(callee.parameters) - len(defaults) :]
        given = {name: argument for name, argument in given_by_name(callee.parameters, node).items() if name}
        arguments, memory = {}, {}
        numbers: dict[str, Value] = {}
        for name, default in zip(later, defaults, strict=True):
            if name not in given and isinstance(default, int | np.signedinteger) and not isinstance(default, bool):
                numbers[name] = Size((), int(default))
        for name, argument in given.items():
            match argument:
                case ast.Name(passed) if passed in self.given:
                    arguments[name] = self.given[passed]
                case ast.Name(passed) if passed in self.memory:
                    memory[name] = self.memory[passed]
                case _ if (value := self.value(argument, context)) is not None:
                    numbers[name] = value
        inside = Values(callee, self.callees, Given(arguments, memory, numbers), self.around)
        return inside, replace(context, names=inside.numbers)

    def _returned(self, node: ast.Call, count: int, context: Box) -> list[Value | None]:
        """Return so many values of a device function that has one end, or nothing."""
        called = self.called(node, context)
        if called is None:
            return []
        inside, box = called
        for statement in inside.source.tree.body:
            match statement:
                case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value):
                    box = inside.assigned(target, value, box)
                case ast.Return(ast.expr() as value):
                    return [inside.value(value, box)] if count == 1 else inside._parts(value, count, box)
                case _ if ends_threads(statement):
                    return []
                case ast.While():
                    box = inside.behind(statement, box)
        return []

    def value(self, node: ast.expr, context: Box) -> Value | None:
        """Return what an expression is, or None if it is more than the launch decides."""
        constant = self.source.fold(node)
        # What is unsigned wraps around, and is a float beside what is signed.
        if isinstance(constant, int | np.signedinteger) and not isinstance(constant, bool):
            return Size((), int(constant))
        match node:
            case ast.Name(name) if name in context.names:
                return context.names[name]
            case ast.Name(name) if name in self.given:
                return Size.of(Number(self.given[name]))
            case ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(int() as axis)) if (
                name in self.given
            ):
                return Size.of(Extent(self.given[name], axis)) if axis >= 0 and axis is not True else None
            case ast.Attribute(ast.Name(name), "size") if name in self.given:
                return Size.of(Total(self.given[name]))
            case ast.Call(func, [ast.Name(name)], []) if name in self.given and self.is_builtin(func, len):
                return Size.of(Extent(self.given[name], 0))
            case ast.Call(func, [inner], []) if self.is_builtin(func, int):
                return self.value(inner, context)
            case ast.Call(func, [left, right], []) if self.is_builtin(func, min) or self.is_builtin(func, max):
                chosen = "min" if self.is_builtin(func, min) else "max"
                return self.made(chosen, self.value(left, context), self.value(right, context), context)
            case ast.Call():
                found = self._of_threads(node) or self._returned(node, 1, context)
                return found[0] if len(found) == 1 else None
            case ast.UnaryOp(ast.USub(), inner):
                return self.made("-", ZERO, self.value(inner, context), context)
            case ast.BinOp(left, operation, right):
                own, kind = own_axis(self.source, node), KINDS.get(type(operation))
                if own is not None:
                    return Variable("own", own)
                if kind is None:
                    return None
                return self.made(kind, self.value(left, context), self.value(right, context), context)
        return self._place(node) if isinstance(node, ast.Attribute | ast.Name) else None

    def _place(self, node: ast.expr) -> Value | None:
        """Return what of a thread's place in its block and grid an expression is, or None."""
        place = place_of(self.source, node)
        if place is None:
            return None
        match place.operation:
            case "blockDim" | "gridDim" as kind:
                return Size.of(Along(kind, place.axis))
            case "threadIdx" | "blockIdx" as kind:
                return Variable(kind, place.axis)
        return None

    def made(self, kind: str, left: Value | None, right: Value | None, context: Box) -> Value | None:
        """Return what an operation makes of two values, as a size if the launch decides that, or None."""
        if left is None or right is None:
            return None
        made = Operation(kind, left, right)
        known = ends(made, context.spans)
        return known.least if known is not None and not known.by else made

    def is_builtin(self, node: ast.expr, builtin: Any) -> bool:
        static = self.source.resolve(node) if isinstance(node, ast.Name) else None
        return static is not None and static.value is builtin


def grid_size(axis: int) -> Size:
    """Return how many threads the grid has along an axis."""
    return Size.of(Along("blockDim", axis)) * Size.of(Along("gridDim", axis))


def _counting_in(source: FunctionSource, stored: Sequence[str]) -> dict[int, str]:
    """Return which ``while`` loops count, by their identity, and the variable that each counts in.

    It is assigned by a statement in one list with the loop, and by the loop's last statement, which all trips come to.
    """
    found = {}
    for owner in ast.walk(source.tree):
        for body in (getattr(owner, part, None) for part in ("body", "orelse")):
            begun: set[str] = set()
            for node in body if isinstance(body, list) else ():
                match node:
                    case ast.Assign() | ast.AnnAssign():
                        begun |= {
                            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                        }
                    case ast.While(
                        ast.Compare(left, [_], [right]),
                        [*before, ast.AugAssign(ast.Name(name), ast.Add() | ast.Sub())],
                        [],
                    ):
                        is_tested = any(isinstance(side, ast.Name) and side.id == name for side in (left, right))
                        if (
                            name in begun
                            and is_tested
                            and stored.count(name) == 2
                            and not leaves_by(before, ast.Break | ast.Continue)
                        ):
                            found[id(node)] = name
    return found


def _arrays_from_outside(source: FunctionSource) -> dict[str, Memory]:
    """Return the arrays that are constants of a function, by the names under which it chooses elements of them."""
    found = {}
    for node in source.nodes:
        match node:
            case ast.Subscript(ast.Name(name) as array) if name not in source.locals:
                static = source.resolve(array)
                if static is not None and isinstance(static.value, np.ndarray):
                    found[name] = Memory(name, tuple(Size((), extent) for extent in static.value.shape), False, True)
    return found


def _memory_of(program: Program, source: FunctionSource, name: str) -> Memory | None:
    """Return local or shared memory of extents that are known, or None."""
    for node in source.nodes:
        match node:
            case ast.Assign([ast.Name(target)], ast.Call() as made) if target == name:
                found = program.shape(source, made)
                extents = found if isinstance(found, tuple) else (found,)
                static = source.resolve(made.func)
                intrinsic = None if static is None else intrinsic_of(static.value)
                is_shared = intrinsic is not None and intrinsic.name == "cuda.shared.array"
                if all(type(extent) is int and extent > 0 for extent in extents):
                    return Memory(name, tuple(Size((), extent) for extent in extents), is_shared)
                size = element_bytes(source, made) if is_dynamic(intrinsic.name if intrinsic else "", found) else None
                if size is not None:
                    return Memory(name, (quotient(Size.of(Along("shared", 0)), Size((), size)),), is_shared)
    return None
