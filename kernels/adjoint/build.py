"""From a kernel's rewritten syntax trees to a program, when the types of its arguments are known.

Device functions are inlined. What the derivatives do not cover is refused here, with its place in the source, before
anything runs. The rooms build on each other: `bindings`, `scope`, `expressions`, `reductions`, `calls`, `assignments`,
`iteration`, and the statements here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.bindings import UNASSIGNED, Binding, Missing, View, functions_among, memory, readable
from numbridge.kernels.adjoint.ir import (
    Array,
    Carried,
    Compute,
    Effect,
    Function,
    If,
    Loop,
    Merge,
    Program,
    Raise,
    Region,
    Store,
    Value,
    same_index,
)
from numbridge.kernels.adjoint.iteration import Elements, Iteration
from numbridge.kernels.adjoint.lowering import without_jumps
from numbridge.kernels.adjoint.memory_parts import NeedsComponentsError, memory_key
from numbridge.kernels.adjoint.record_program import Records
from numbridge.kernels.adjoint.scope import COUNTED, Frame
from numbridge.kernels.adjoint.thread_sharing import own_arrays
from numbridge.kernels.adjoint.windows import Window
from numbridge.kernels.cpu_backend.blocks.source import THREAD
from numbridge.kernels.errors import KernelError
from numbridge.kernels.language.rewriting import GIVEN, Rewritten
from numbridge.kernels.language.source import FunctionSource
from numbridge.kernels.language.tuple_parameters import remade
from numbridge.kernels.parameter_types import ParameterType

__all__ = ["build"]


def build(
    rewritten: Rewritten, parameters: Sequence[ParameterType], *, prints: bool = False, derived: bool = True
) -> Program:
    """Return the program of a kernel.

    Parameters
    ----------
    rewritten : Rewritten
        The kernel's syntax trees.
    parameters : sequence of ParameterType
        The types of its arguments.
    prints : bool
        Whether the program prints what the kernel does, as one that runs in its place.
    derived : bool
        Whether the program may be differentiated; some of what has no derivative is in programs that may not.

    Raises
    ------
    KernelUnsupportedError
        If something in the kernel has no derivative here; the message shows where, and what to do.
    """
    in_components: set[str | int] = set()
    while True:
        builder = _Builder(rewritten, parameters, in_components)
        builder.prints, builder.derived = prints, derived
        try:
            program = builder.run()
        except KernelError:
            if not builder.needed:  # what went wrong after a statement that was left out may be no error at all
                raise
        if builder.needed:  # which is seen where the first part is stored, after other accesses
            in_components |= builder.needed
            continue
        # Threads that read a component of another's element add to the adjoint of that component alone.
        more = builder.read_in_parts(own_arrays(program))
        if not more:
            return program
        in_components |= more


class _Builder(Iteration):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # Memory of which parts are stored, that was not known by its components: this reading is only for finding all of it.
        self.needed: set[str | int] = set()

    def run(self) -> Program:
        """Read the kernel."""
        tree = self._rewritten.trees[id(self._root)]
        self._env = {value.name: value for value in self.hidden}
        self._nonnegative |= dict.fromkeys(self.hidden, COUNTED)
        if self._rewritten.in_blocks:
            self._env[THREAD] = Value(THREAD, types.int64)
        for parameter in self.parameters:
            item = parameter.item
            self._env[parameter.name] = self._argument(item)
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
            self._rewritten.in_blocks,
        )

    def read_in_parts(self, own: Collection[Array]) -> set[str | int]:
        """Return the arrays of elements of which only parts are read, by threads whose `own` they are not."""
        return {memory_key(array) for array in self._in_parts - self._as_wholes - set(own)}

    def _argument(self, item: Array | Value) -> Binding:
        if isinstance(item, Value):
            return self._in_parts_of(item)
        if memory_key(item) in self._in_components:
            return View(self._fields.components(item))
        return View(self._fields.parts(item)) if isinstance(item.dtype, types.Complex) else memory(item)

    def _in_parts_of(self, number: Value) -> Value:
        """Return a number that is passed by value; a complex one as its parts."""
        kind = inference.parts_of(number.type)
        if kind is None:
            return number
        made = self.value(number.name, kind)
        self.add(Compute(made, Function("parts", f"{self.type_name(kind)}({{0}}.real, {{0}}.imag)", None), [number]))
        return made

    def _read(self, source: FunctionSource, tree: ast.FunctionDef) -> None:
        stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        functions = functions_among(self._env.values())
        declared = dict(source.declared.variables)
        self._frames.append(Frame(source, {name: stored.count(name) for name in stored}, functions))
        self._env |= {
            name: self._as_declared(tree, name, self._env[name]) for name in self._env.keys() & declared.keys()
        }
        body = [s for s in tree.body if not (isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == GIVEN)]
        self._block(without_jumps(body))
        self._frames.pop()

    # Statements

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.place = (self._frames[-1].source, statement)
            region, env, depth = self.region, self._env, len(self._frames)
            try:
                self._statement(statement)
            except NeedsComponentsError as found:
                if not self.needed or isinstance(found.memory, str):  # shared memory is counted, and some was left out
                    self.needed.add(found.memory)
                self.region, self._env = region, env
                del self._frames[depth:]

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
            case ast.Expr(value=ast.Call(func=ast.Name(id="_nb_print")) as call):
                self._print(call)
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
                    said = ast.unparse(node.msg) if isinstance(node.msg, ast.Constant) else ""
                    self.add(Raise(f"raise AssertionError({said})"))
                    failed = self.region
                self.add(If(condition, [], failed, []))
            case ast.Pass() | ast.AnnAssign():
                pass
            case _:
                raise self._refused(node, f"this statement ({type(node).__name__}) has no derivative; use simpler ones")

    def _print(self, call: ast.Call) -> None:
        """Print what the kernel prints, if this runs in its place."""
        if not self.prints:
            return
        text, numbers = ast.unparse(call.args[0]), call.args[1]
        assert isinstance(numbers, ast.Call)
        (values,) = numbers.args
        assert isinstance(values, ast.Tuple)
        given = [self._value(value) for value in values.elts]
        escaped = text.replace("{", "{{").replace("}", "}}")
        places = "".join(f"{{{k}}}, " for k in range(len(given)))
        self.add(Effect(f"_nb_print({escaped}, _nb_numbers(({places})))", given))

    # Branches

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
        self._merge_variables(after_then, after_else, then, orelse, merges)
        stores = self._sunk_stores(then, orelse, merges)
        self.add(If(condition, then, orelse, merges))
        for store in stores:
            self.add(store)

    def _sunk_stores(self, then: Region, orelse: Region, merges: list[Merge]) -> list[Store]:
        """Take stores to one element out of the ends of both branches: one store of either value vectorises better."""
        stores: list[Store] = []
        while then and orelse:
            a, b = then[-1], orelse[-1]
            if not (isinstance(a, Store) and isinstance(b, Store) and a.array is b.array):
                break
            if not same_index(a.index, b.index):
                break
            merge = Merge(self.value(a.array.name, a.array.dtype), a.value, b.value)
            merges.append(merge)
            stores.insert(0, Store(a.array, a.index, merge.result, place=then.pop().place))
            orelse.pop()
        return stores

    # Loops

    def _loop(self, node: Any) -> None:
        bounds, elements = self._trips(node) if isinstance(node, ast.For) else ([], None)
        if elements is not None and elements.apart:
            self._write_out(node, elements)
            return
        before = dict(self._env)
        parts = [name for name in _assigned_in_part(node) if isinstance(before.get(name), Value)]
        assigned = list(dict.fromkeys([*_assigned(node), *parts]))
        at_first = {n: _carried_kind(before.get(n, UNASSIGNED)) for n in assigned}
        kinds: dict[str, Any] = {n: kind for n, kind in at_first.items() if kind is not None}
        others: dict[str, Missing] = {}
        mixed: dict[str, Missing] = {}
        count = len(self.locals)
        while True:
            del self.locals[count:]  # those that the last reading of the body made
            carried, loop, after = self._trip(node, bounds, elements, assigned, kinds, before | others | mixed)
            grown = self._carried_types(kinds, [n for n in assigned if n not in mixed], after)
            # What else there is than numbers and tuples of them is not carried: no trip knows what the one before has left.
            left = {
                n: others.get(n, _lost(after[n]))
                for n in assigned
                if n not in grown and n not in mixed and before.get(n, UNASSIGNED) == UNASSIGNED
            }
            if grown == kinds and left == others:
                # Nor is what a trip leaves as something else than it was: no use of it can mean both.
                found = {n: _mixed(kind) for n, kind in kinds.items() if not _fits(after[n], kind)}
                if not found:
                    break
                mixed |= found
                grown = {n: kind for n, kind in kinds.items() if n not in found}
            kinds, others = grown, left
        self._finish_loop(loop, carried, kinds, before, after)
        self._env |= mixed

    def _write_out(self, node: ast.For, elements: Elements) -> None:
        """Read a loop as its trips, one after the other."""
        count = elements.count.constant
        if count is None or node.leave:  # type: ignore[attr-defined]
            raise self._refused(
                node,
                "a loop over a tuple of arrays has no derivative if it is left by break or return, or ends with something of "
                "unknown length beside the tuple; write its trips out",
            )
        for k in range(count):
            self._assign(node.target, elements.element(self.constant(k)))
            self._block(node.body)

    def _trips(self, node: ast.For) -> tuple[list[Value], Elements | None]:
        """Return the bounds of a loop over a range, or what else it goes through and how often."""
        call = node.iter
        if not isinstance(call, ast.Call) or self._static(call.func) is not range or call.keywords:
            elements = self._elements(call)
            return [elements.count], elements
        if not isinstance(node.target, ast.Name):
            raise self._refused(node.target, "the variable of a loop over range(...) is a name")
        return self._bounds(call), None

    def _trip(
        self,
        node: Any,
        bounds: list[Value],
        elements: Elements | None,
        assigned: list[str],
        kinds: Mapping[str, Any],
        before: dict[str, Binding],
    ) -> tuple[dict[str, Binding], Loop, dict[str, Binding]]:
        """Read the body once, given the types of the carried variables; return them, the loop and what it leaves."""
        test: Region = []
        body: Region = []
        index = condition = None
        self._env = dict(before)
        carried = {name: self._carried_value(name, kind) for name, kind in kinds.items()}
        for name in assigned:
            self._env[name] = carried.get(name, _lost(before.get(name, UNASSIGNED)))
        if isinstance(node, ast.For):
            index = self.value("trip" if elements else _loop_variable(node), inference.range_type(bounds))
            self.type_name(index.type)
            bounds = [self._cast_in(self.region, bound, types.int64) for bound in _three(bounds, self.constant)]
            self._note_sign(index, bounds)
        outer = self.region
        if index is None:
            if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test)):
                raise self._refused(
                    node.test, "a while condition that assigns (:=) has no derivative; assign in the body"
                )
            self.region = test
            condition = self._scalar(node.test)
        self.region = body
        if index is not None:
            self.place = (self._frames[-1].source, node)
            self._assign(node.target, index if elements is None else elements.element(index))
        self._block(node.body)
        after = self._env
        self.region, self._env = outer, before
        leave = after[node.leave] if node.leave else None
        return carried, Loop(index, bounds, test, condition, body, [], leave), after

    def _note_sign(self, index: Value, bounds: Sequence[Value]) -> None:
        """Note that the variable of a loop is never negative, if it begins so and grows."""
        start, _, step = bounds
        if step.constant is not None and step.constant > 0 and self._bits(start) is not None:
            self._nonnegative[index] = 1 + max(self._bits(start) or 0, COUNTED + step.constant.bit_length() - 1)

    def _carried_types(
        self, kinds: Mapping[str, Any], assigned: Sequence[str], after: Mapping[str, Binding]
    ) -> dict[str, Any]:
        grown = dict(kinds)
        for name in assigned:
            kind = _carried_kind(after.get(name, UNASSIGNED))
            if kind is not None:
                grown[name] = _grown_kind(kinds.get(name, kind), kind)
        return grown

    def _carried_value(self, name: str, kind: Any) -> Binding:
        """Return new values for what a loop carries from trip to trip: a number, or a tuple of them."""
        if isinstance(kind, tuple):
            return remade(kind, (self._carried_value(name, inner) for inner in kind))
        return self.value(readable(name), kind)

    def _carry(self, loop: Loop, name: str, kind: Any, phi: Binding, start: Binding, following: Binding) -> Binding:
        """Let a loop carry a number, or those of a tuple, and return what they are after it."""
        if isinstance(kind, tuple):
            starts = start if isinstance(start, tuple) else [start] * len(kind)
            parts = zip(kind, phi, starts, following, strict=True)
            return remade(kind, (self._carry(loop, name, *part) for part in parts))
        initial = self.cast(start, kind) if isinstance(start, Value) else self.zero(kind)
        variable = Carried(phi, initial, self._cast_in(loop.body, following, kind), self.value(readable(name), kind))
        loop.carried.append(variable)
        return variable.result

    def _finish_loop(
        self,
        loop: Loop,
        carried: Mapping[str, Binding],
        kinds: Mapping[str, Any],
        before: dict[str, Binding],
        after: Mapping[str, Binding],
    ) -> None:
        env = dict(before)
        for name, binding in after.items():
            if name in kinds:
                start = before.get(name, UNASSIGNED)
                env[name] = self._carry(loop, name, kinds[name], carried[name], start, binding)
            elif before.get(name) is not binding:
                env[name] = _lost(binding)
        self._env = env
        self.add(loop)


def _three(bounds: list[Value], constant: Callable[[int], Value]) -> list[Value]:
    """Return start, stop and step."""
    if len(bounds) == 1:
        return [constant(0), bounds[0], constant(1)]
    return bounds if len(bounds) == 3 else [*bounds, constant(1)]


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


def _carried_kind(binding: Binding) -> Any:
    """Return the type of a number, those of a tuple of numbers as such a tuple, and None for what no loop carries."""
    if isinstance(binding, tuple):
        kinds = [_carried_kind(item) for item in binding]
        return None if None in kinds else remade(binding, iter(kinds))
    return binding.type if isinstance(binding, Value) else None


def _grown_kind(kind: Any, other: Any) -> Any:
    """Return the type of what is of one type before a trip and of another after it."""
    if isinstance(kind, tuple) or isinstance(other, tuple):
        if type(kind) is not type(other) or len(kind) != len(other):
            return kind  # which does not fit
        return remade(kind, map(_grown_kind, kind, other))
    unified = inference.unified([kind, other])
    return kind if unified is None else unified


def _fits(binding: Binding, kind: Any) -> bool:
    """Tell whether a loop can carry something as what it carries."""
    if isinstance(kind, tuple):
        return type(binding) is type(kind) and len(binding) == len(kind) and all(map(_fits, binding, kind))
    return isinstance(binding, Value) and (binding.type == kind or inference.unified([kind, binding.type]) is not None)


def _mixed(kind: Any) -> Missing:
    at_first = "a tuple" if isinstance(kind, tuple) else "a number"
    return Missing(f"is {at_first} at first and something else later in this loop", "rename one")


def _loop_variable(node: ast.For) -> str:
    name: str = node.target.id  # type: ignore[attr-defined]
    return name


def _lost(binding: Binding) -> Missing:
    if isinstance(binding, Missing):
        return binding
    if isinstance(binding, View | Window | Records):
        return Missing(
            "may be another array in every trip of this loop",
            "give one array a dimension more, and choose by an index: both[trip % 2, i]",
        )
    return Missing(
        "is assigned in a loop, and is neither a number nor a tuple of numbers there, or may not have been assigned"
    )
