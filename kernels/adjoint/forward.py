"""Forward mode, from program to program: every value that depends on an input gets a tangent next to it.

What comes out is an ordinary program with more parameters, so that it can be written as text, or reversed: the adjoint of
a tangent is a second derivative. The rules are those of reverse mode.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.activity import Activity
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.element_program import made_of, operate
from numbridge.kernels.adjoint.element_rules import JOINTLY_LINEAR
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Carried,
    Compute,
    Custom,
    Effect,
    If,
    Load,
    Loop,
    Meet,
    Merge,
    Op,
    Parameter,
    Program,
    Raise,
    Region,
    Shape,
    Store,
    Value,
    is_float,
    walk,
)
from numbridge.kernels.adjoint.prefixes import TANGENT
from numbridge.kernels.adjoint.region_copy import RegionCopy
from numbridge.kernels.adjoint.rules import partials

__all__ = ["Facts", "facts", "forward"]


def forward(program: Program, wanted: Collection[str], prefix: str = TANGENT) -> Program:
    """Return the tangent of a program: its own work, and tangents carried along.

    Parameters
    ----------
    program : Program
        What to differentiate; it must not be used afterwards.
    wanted : collection of str
        The floating parameters that have a tangent; it is passed in a parameter of its own after all others.
    prefix : str
        What the names of these parameters begin with.

    Raises
    ------
    KernelUnsupportedError
        If the tangents would not be exact; the message shows where, and what to do.
    """
    return _Forward(program, wanted, prefix).run()


@dataclass(frozen=True)
class Facts:
    """What a program does to its array parameters, and whether it raises or loops."""

    reads: frozenset[str]
    writes: frozenset[str]
    may_raise: bool
    has_loop: bool


def facts(program: Program) -> Facts:
    """Return what launching a program needs to know."""
    ops = list(walk(program.body))
    parameters = {part for p in program.parameters if isinstance(p.item, Array) for part in program.parts(p.item)}
    return Facts(
        frozenset(op.array.parameter for op in ops if isinstance(op, Load) and op.array in parameters),
        frozenset(op.array.parameter for op in ops if isinstance(op, Store | Atomic) and op.array in parameters),
        any(isinstance(op, Raise) or (isinstance(op, Effect) and op.may_raise) for op in ops),
        any(isinstance(op, Loop) for op in ops),
    )


class _Forward(Construct):
    def __init__(self, program: Program, wanted: Collection[str], prefix: str) -> None:
        super().__init__(program.names, program.namespace, "_nb_")
        self._program, self._prefix = program, prefix
        self._activity = Activity(program, wanted)
        self._tangents: dict[Value, Value] = {}
        self._arrays: dict[Array, Array] = {}
        self._added: list[Parameter] = []
        self._fields: list[Array] = []
        parameters = {parameter.name: parameter for parameter in program.parameters}
        for name in wanted:
            self._add_parameter(parameters[name])
        self._locals = [self._local(array) for array in program.locals if array in self._activity.arrays]

    def _add_parameter(self, parameter: Parameter) -> None:
        name, item = self.names.claim(f"{self._prefix}{parameter.name}"), parameter.item
        if isinstance(item, Array):
            tangent = replace(item, name=name)
            self._added.append(Parameter(name, tangent))
            if self._program.parts(item) == [item]:
                self._arrays[item] = tangent
            else:
                self._add_fields(item, tangent)
        else:
            self._tangents[item] = value = Value(name, item.type)
            self._added.append(Parameter(name, value))

    def _add_fields(self, records: Array, tangent: Array) -> None:
        for part in self._program.parts(records):
            if is_float(part):
                label = f"the tangent of {part.label}"
                self._arrays[part] = made = replace(part, name=self._name(part.name), owner=tangent, label=label)
                self._fields.append(made)

    def _name(self, name: str) -> str:
        return self.names.claim(f"{TANGENT}{name}")

    def _local(self, array: Array) -> Array:
        shared = array.kind == "shared"
        place = self._program.free_place + array.place if shared else array.place
        tangent = replace(array, name=self._name(array.name), zeroed=not shared, place=place)
        self._arrays[array] = tangent
        return tangent

    def run(self) -> Program:
        """Return the new program."""
        program = self._program
        body = self._region(program.body)
        return replace(
            program,
            parameters=[*program.parameters, *self._added],
            locals=[*program.locals, *self._locals],
            fields=[*program.fields, *self._fields],
            body=body,
        )

    def _region(self, region: Region) -> Region:
        outer, self.region = self.region, []
        for op in region:
            self.place = op.place
            self._op(op)
        made, self.region = self.region, outer
        return made

    def _tangent(self, value: Value) -> Value:
        return self._tangents.get(value) or self.zero(value.type)

    def _in(self, region: Region, value: Value, kind: object) -> Value:
        """Return a value's tangent, converted at the end of a region."""
        outer, self.region = self.region, region
        made = self.cast(self._tangent(value), kind)
        self.region = outer
        return made

    def _op(self, op: Op) -> None:
        match op:
            case Compute():
                self.add(op)
                self._compute(op)
            case Load():
                self.add(op)
                if op.array in self._arrays and op.result in self._activity.values:
                    tangent = Value(self._name(op.result.name), op.result.type)
                    self._tangents[op.result] = tangent
                    self.add(Load(tangent, self._arrays[op.array], op.index))
            case Store():
                self.add(op)
                if op.array in self._arrays:
                    self.add(Store(self._arrays[op.array], op.index, self._tangent(op.value)))
            case Atomic():
                self._atomic(op)
            case Meet():
                self._meet(op)
            case If():
                self._if(op)
            case Loop():
                self._loop(op)
            case Custom():
                self._custom(op)
            case Shape() | Effect() | Raise():
                self.add(op)

    def _compute(self, op: Compute) -> None:
        if op.result not in self._activity.values:
            return
        if op.function.key in JOINTLY_LINEAR:
            given = [self._tangent(argument) if is_float(argument) else argument for argument in op.arguments]
            self._tangents[op.result] = made = self.value("p", op.result.type)
            self.add(Compute(made, op.function, given))
            return
        total: Value | None = None
        for argument, partial in zip(op.arguments, partials(self, op), strict=True):
            if partial is None or argument not in self._tangents:
                continue
            tangent = self._tangents[argument]
            scalars = inference.is_float_type(tangent.type) and inference.is_float_type(op.result.type)
            part = partial.along(self, self.cast(tangent, op.result.type) if scalars else tangent)
            total = part if total is None else self._sum(total, part)
        if total is not None:
            self._tangents[op.result] = total

    def _sum(self, a: Value, b: Value) -> Value:
        if inference.element_of(a.type) is None:
            return self.apply("add", a, b)
        made = operate(self, "add", a, b)
        assert made is not None
        return made

    def _atomic(self, op: Atomic) -> None:
        self.add(op)
        if op.array in self._arrays:
            held = Value(self._name(op.result.name), op.result.type)
            tangents = [self._tangent(value) for value in op.values]
            self.add(Atomic(held, op.operation, self._arrays[op.array], op.index, tangents))

    def _meet(self, op: Meet) -> None:
        self.add(op)
        if op.result is not None and op.result in self._activity.values:
            told = Value(self._name(op.result.name), op.result.type)
            self._tangents[op.result] = told
            mask, given, *which = op.arguments
            self.add(replace(op, result=told, arguments=[mask, self._tangent(given), *which]))

    def _if(self, op: If) -> None:
        then, orelse = self._region(op.then), self._region(op.orelse)
        merges = list(op.merges)
        for m in op.merges:
            if m.result in self._activity.values:
                result = Value(self._name(m.result.name), m.result.type)
                kind = result.type
                merges.append(Merge(result, self._in(then, m.then, kind), self._in(orelse, m.orelse, kind)))
                self._tangents[m.result] = result
        self.add(replace(op, then=then, orelse=orelse, merges=merges))

    def _loop(self, op: Loop) -> None:
        moving = [c for c in op.carried if c.phi in self._activity.values]
        initials = {c: self._tangent(c.initial) for c in moving}
        for c in moving:
            for value in (c.phi, c.result):
                self._tangents[value] = Value(self._name(value.name), value.type)
        test, body = self._region(op.test), self._region(op.body)
        carried = list(op.carried)
        for c in moving:
            following = self._in(body, c.following, c.phi.type)
            carried.append(Carried(self._tangents[c.phi], initials[c], following, self._tangents[c.result]))
        self.add(replace(op, test=test, body=body, carried=carried))

    def _custom(self, op: Custom) -> None:
        self.add(op)
        if not any(argument in self._tangents for argument in op.arguments):
            return
        floats = [result for result in op.results if is_float(result)]
        for result, own in zip(floats, op.cotangents, strict=True):
            element = inference.element_of(result.type)
            if element is None:
                self._tangents[result] = self._custom_tangent(op, own, self.constant(1.0, own.type))
                continue
            units = [element(*(float(j == k) for j in range(element.count))) for k in range(element.count)]
            parts = [self._custom_tangent(op, own, self.constant(unit, own.type)) for unit in units]
            self._tangents[result] = made_of(self, element, parts)

    def _custom_tangent(self, op: Custom, own: Value, unit: Value) -> Value:
        """Return the tangent of a result, or of one component: the pullback of one there, times the tangents."""
        copied = RegionCopy(self, {c: unit if c is own else self.zero(c.type) for c in op.cotangents})
        copied.region(op.pullback)
        kind = getattr(own.type, "dtype", own.type)
        total = self.zero(kind)
        for argument, gradient in zip(op.arguments, op.gradients, strict=True):
            if gradient is not None and argument in self._tangents:
                part = self._product(copied.value(gradient), self._tangents[argument])
                total = self.apply("add", total, self.cast(part, kind))
        return total

    def _product(self, gradient: Value, tangent: Value) -> Value:
        if inference.element_of(tangent.type) is None:
            return self.apply("mul", gradient, tangent)
        made = operate(self, "inner", gradient, tangent)
        assert made is not None
        return made
