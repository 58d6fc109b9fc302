"""The gradient of a function within a program: operations that follow the function's own, and are ordinary ones themselves.

A function's operations are reversed one by one. Those of a branch are reversed under the same condition, where they run again.
Where loops carry what depends on an input, or local arrays hold it, nothing is kept to go back with: the derivative by each
component of each input is carried forward instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.activity import check_bits, refused, reversed_by_rules, spread
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.element_program import known, made_of, operate, part, replaced
from numbridge.kernels.adjoint.element_rules import Part
from numbridge.kernels.adjoint.forward import forward
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Carried,
    Compute,
    Custom,
    Effect,
    If,
    Loop,
    Meet,
    Merge,
    Op,
    Parameter,
    Program,
    Region,
    Store,
    Value,
    defined_by,
    is_float,
    walk,
)
from numbridge.kernels.adjoint.region_copy import RegionCopy
from numbridge.kernels.adjoint.rules import AnyPartial, has_rule, partials
from numbridge.kernels.element_types.elements import ElementType

__all__ = ["add_gradients"]

# So many operations take LLVM some seconds, and ten times as many take minutes.
_MOST_UNROLLED = 1000


def add_gradients(
    construct: Construct, region: Region, inputs: Sequence[Value], result: Value, local: list[Array], first: int
) -> list[Value]:
    """Add operations that compute the gradient of a function; return it by each input.

    Parameters
    ----------
    construct : Construct
        To whose region they are added.
    region : Region
        The function's operations, which are in no program yet; they must not be used afterwards.
    inputs : sequence of Value
        What the gradient is by: numbers and elements, which are defined before.
    result : Value
        The real number that the function returns.
    local : list of Array
        The arrays on the thread's stack, to which tangents of the function's are added.
    first : int
        From which of them on they are the function's own.

    Raises
    ------
    KernelUnsupportedError
        If the gradient would not be exact, or the function does more than to compute; the message shows where, and what to do.
    """
    own = local[first:]
    for op in walk(region):
        _check(op, own)
    varied: set[Any] = set(inputs)
    arrays: set[Any] = set()
    _spread_over(region, varied, arrays)
    check_bits(region, varied)
    if any(isinstance(op, Store) or _carries(op, varied) for op in reversed_by_rules(region)):
        return [_carried_forward(construct, region, given, result, own, local) for given in inputs]
    construct.region.extend(region)
    return _Reversal(construct, varied).run(region, inputs, result)


def _check(op: Op, own: Sequence[Array]) -> None:
    """Refuse what a function may not do whose gradient is taken within a kernel."""
    if isinstance(op, Atomic) or (isinstance(op, Store) and op.array not in own):
        raise refused(
            op,
            f"the function whose gradient is taken here writes to {op.array.called!r}, which would happen more than once; let it "
            "return a number and write to nothing but local arrays of its own",
        )
    if isinstance(op, Effect) and not op.may_raise:
        raise refused(
            op,
            "the function whose gradient is taken here prints, which would happen more than once; print in the kernel",
        )
    if isinstance(op, Meet):
        raise refused(
            op,
            "the function whose gradient is taken here waits for other threads; let it compute from what it is given",
        )


def _carries(op: Op, varied: set[Any]) -> bool:
    """Tell whether a loop carries what depends on an input."""
    return isinstance(op, Loop) and any(c.phi in varied for c in op.carried)


def _spread_over(region: Region, values: set[Any], arrays: set[Any]) -> None:
    """Add to what depends on the inputs all that a region makes depend on them."""
    ops, before = list(walk(region)), -1
    while before != (before := len(values) + len(arrays)):
        for op in ops:
            spread(op, values, arrays)


# Forward


def _carried_forward(
    construct: Construct, region: Region, given: Value, result: Value, own: Sequence[Array], local: list[Array]
) -> Value:
    """Return the derivative by one input, of which each component is a direction of its own."""
    element = inference.element_of(given.type)
    template, direction, answer = _tangent(construct, region, given, result, own, local)
    if element is None:
        return _in_direction(construct, template, direction, construct.constant(1.0, given.type), answer)
    if element.count * sum(1 for _ in walk(template)) > _MOST_UNROLLED:
        return made_of(construct, element, _one_after_the_other(construct, template, element, direction, answer))
    units = [element(*(float(j == k) for j in range(element.count))) for k in range(element.count)]
    parts = [
        _in_direction(construct, template, direction, construct.constant(unit, given.type), answer) for unit in units
    ]
    return made_of(construct, element, [construct.cast(number, given.type.dtype) for number in parts])


def _one_after_the_other(
    construct: Construct, template: Region, element: ElementType, direction: Value, answer: Value
) -> list[Value]:
    """Return the derivatives by the components of an element from a loop over them, which is compiled once for all."""
    kind, count = direction.type.dtype, element.count
    outer, construct.region = construct.region, []
    index = construct.value("direction", types.int64)
    here = [construct.apply("eq", index, construct.constant(k)) for k in range(count)]
    one, zero = construct.constant(1.0, kind), construct.constant(0.0, kind)
    unit = known(made_of(construct, element, [construct.select(is_here, one, zero) for is_here in here]))
    found = construct.cast(_in_direction(construct, template, direction, unit, answer), kind)
    carried = []
    for is_here in here:
        before, after = construct.value("part", kind), construct.value("part", kind)
        carried.append(Carried(before, zero, construct.select(is_here, found, before), after))
    body, construct.region = construct.region, outer
    bounds = [construct.constant(bound) for bound in (0, count, 1)]
    construct.add(Loop(index, bounds, [], None, body, carried))
    return [c.result for c in carried]


def _in_direction(construct: Construct, template: Region, direction: Value, unit: Value, answer: Value) -> Value:
    copied = RegionCopy(construct, {direction: unit})
    copied.region(template)
    return construct.cast(copied.value(answer), getattr(unit.type, "dtype", unit.type))


def _tangent(
    construct: Construct, region: Region, given: Value, result: Value, own: Sequence[Array], local: list[Array]
) -> tuple[Region, Value, Value]:
    """Return a function's operations with tangents along, the tangent of the input, and that of the result."""
    names = construct.names
    copied, outer = RegionCopy(construct, {}), construct.region
    construct.region = []
    copied.region(region)
    out = Array(names.fresh("out"), result.type, 0)
    construct.add(Store(out, [], copied.value(result)))
    body, construct.region = construct.region, outer
    parameters = [Parameter(given.name, given), Parameter(out.name, out)]
    program = Program("function", [], parameters, [*own], [], body, construct.namespace, names)
    made = forward(program, (given.name, out.name))
    local.extend(made.locals[len(own) :])
    *ops, _, last = made.body
    direction = made.parameters[2].item
    assert isinstance(direction, Value) and isinstance(last, Store)
    return ops, direction, last.value


# Backward


class _Reversal:
    """Adds the reverse of operations behind them."""

    def __init__(self, construct: Construct, varied: set[Any]) -> None:
        self._construct = construct
        self._varied = varied
        self._adjoints: dict[Value, Value] = {}

    def run(self, region: Region, inputs: Sequence[Value], result: Value) -> list[Value]:
        """Return the gradient by each input."""
        self._adjoints[result] = self._construct.constant(1.0, result.type)
        self._reverse(region)
        return [self._adjoint(given) for given in inputs]

    def _adjoint(self, value: Value) -> Value:
        return self._adjoints.get(value) or self._construct.zero(value.type)

    def _reverse(self, region: Region) -> None:
        for op in reversed(region):
            self._construct.place = op.place
            match op:
                case Compute() if op.result in self._adjoints and op.result in self._varied:
                    self._compute(op)
                case If():
                    self._branch(op)
                case Custom():
                    self._custom(op)

    def _compute(self, op: Compute) -> None:
        if not has_rule(op.function.key):
            raise refused(
                op, f"{op.function.text.partition('(')[0]} has no derivative here; give one with @nb.func_grad"
            )
        adjoint = self._adjoints[op.result]
        for argument, partial in zip(op.arguments, partials(self._construct, op), strict=True):
            if partial is not None and argument in self._varied:
                self._contribute(argument, partial, adjoint)

    def _contribute(self, value: Value, partial: AnyPartial, adjoint: Value) -> None:
        """Add a partial derivative times the adjoint of a result to the adjoint of an argument."""
        construct = self._construct
        if isinstance(partial, Part):
            held = self._adjoint(value)
            if value in self._adjoints:
                adjoint = self._sum(known(part(construct, held, partial.index)), adjoint)
            self._adjoints[value] = known(replaced(construct, held, partial.index, adjoint))
        else:
            self._add(value, construct.cast(partial.times(construct, adjoint), value.type))

    def _add(self, value: Value, more: Value) -> None:
        self._adjoints[value] = self._sum(self._adjoints[value], more) if value in self._adjoints else more

    def _sum(self, a: Value, b: Value) -> Value:
        if inference.element_of(a.type) is None:
            return self._construct.apply("add", a, b)
        return known(operate(self._construct, "add", a, b))

    @contextmanager
    def _into(self, region: Region) -> Iterator[None]:
        outer, self._construct.region = self._construct.region, region
        yield
        self._construct.region = outer

    def _branch(self, op: If) -> None:
        """Reverse a branch in a branch of the same condition; what other adjoints it adds to are merged behind it."""
        merges = [merge for merge in op.merges if merge.result in self._adjoints]
        if not merges:
            return
        before = dict(self._adjoints)
        then, after_then = self._side(op.then, [(m.then, before[m.result]) for m in merges], before)
        orelse, after_else = self._side(op.orelse, [(m.orelse, before[m.result]) for m in merges], before)
        self._adjoints = before
        made: list[Merge] = []
        for value in {**after_then, **after_else}:
            sides = [side.get(value) or self._construct.zero(value.type) for side in (after_then, after_else)]
            if sides[0] is not sides[1]:
                made.append(Merge(self._construct.value("p", value.type), *sides))
            self._adjoints[value] = made[-1].result if sides[0] is not sides[1] else sides[0]
        self._construct.place = op.place
        self._construct.add(If(op.condition, then, orelse, made))

    def _side(
        self, region: Region, results: Sequence[tuple[Value, Value]], before: dict[Value, Value]
    ) -> tuple[Region, dict[Value, Value]]:
        """Return one side of the reverse of a branch, and the adjoints of values from outside behind it."""
        self._adjoints = dict(before)
        made: Region = []
        with self._into(made):
            copied = RegionCopy(self._construct, {})
            copied.region(region)
            again = list(made)
            _spread_over(again, self._varied, set())
            for value, adjoint in results:
                found = copied.value(value)
                if found in self._varied:
                    self._add(found, adjoint)
            self._reverse(again)
        inside = {value for op in walk(made) for value in defined_by(op)}
        return made, {value: adjoint for value, adjoint in self._adjoints.items() if value not in inside}

    def _custom(self, op: Custom) -> None:
        """Run the derivative by hand."""
        if self._adjoints.keys().isdisjoint(op.results):
            return
        floats = [result for result in op.results if is_float(result)]
        copied = RegionCopy(
            self._construct, {own: self._adjoint(r) for r, own in zip(floats, op.cotangents, strict=True)}
        )
        copied.region(op.pullback)
        for argument, gradient in zip(op.arguments, op.gradients, strict=True):
            if gradient is not None and argument in self._varied:
                self._add(argument, self._construct.cast(copied.value(gradient), argument.type))
