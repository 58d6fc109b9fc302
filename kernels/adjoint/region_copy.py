"""Copies of parts of a program, which run again with other inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.ir import (
    Carried,
    Compute,
    Custom,
    Effect,
    If,
    Load,
    Loop,
    Merge,
    Op,
    Region,
    Shape,
    Store,
    Value,
)

__all__ = ["RegionCopy"]


class RegionCopy:
    """Copies regions into a program, with values of their own and some values replaced."""

    def __init__(self, construct: Construct, replaced: Mapping[Value, Value]) -> None:
        self._construct = construct
        self._values = dict(replaced)

    def value(self, value: Value) -> Value:
        """Return what stands for a value in the copy."""
        return self._values.get(value, value)

    def _new(self, value: Value) -> Value:
        self._values[value] = made = self._construct.value(value.name.removeprefix("_nb_"), value.type)
        return made

    def region(self, region: Region) -> None:
        """Add a copy of a region to the program."""
        for op in region:
            self._construct.add(self._op(op))

    def _inner(self, region: Region) -> Region:
        outer, self._construct.region = self._construct.region, []
        self.region(region)
        made, self._construct.region = self._construct.region, outer
        return made

    def _op(self, op: Op) -> Op:
        match op:
            case Compute():
                arguments = [self.value(a) for a in op.arguments]
                return replace(op, result=self._new(op.result), arguments=arguments)
            case Load():
                index = [self.value(v) for v in op.index]
                return replace(op, result=self._new(op.result), index=index)
            case Store():
                return replace(op, index=[self.value(v) for v in op.index], value=self.value(op.value))
            case Shape():
                return replace(op, result=self._new(op.result))
            case Effect():
                return replace(op, arguments=[self.value(a) for a in op.arguments])
            case If():
                then, orelse = self._inner(op.then), self._inner(op.orelse)
                merges = [Merge(self._new(m.result), self.value(m.then), self.value(m.orelse)) for m in op.merges]
                return replace(op, condition=self.value(op.condition), then=then, orelse=orelse, merges=merges)
            case Loop():
                return self._loop(op)
            case Custom():
                return self._custom(op)
        return replace(op)

    def _loop(self, op: Loop) -> Loop:
        initials = [self.value(c.initial) for c in op.carried]
        bounds = [self.value(bound) for bound in op.bounds]
        index = None if op.index is None else self._new(op.index)
        phis = [self._new(c.phi) for c in op.carried]
        test, body = self._inner(op.test), self._inner(op.body)
        carried = [
            Carried(phi, initial, self.value(c.following), self._new(c.result))
            for phi, initial, c in zip(phis, initials, op.carried, strict=True)
        ]
        condition = None if op.condition is None else self.value(op.condition)
        leave = None if op.leave is None else self.value(op.leave)
        return Loop(index, bounds, test, condition, body, carried, leave, place=op.place)

    def _custom(self, op: Custom) -> Custom:
        arguments = [self.value(a) for a in op.arguments]
        body = self._inner(op.body)
        inner = [self.value(v) for v in op.inner]
        cotangents = [self._new(c) for c in op.cotangents]
        pullback = self._inner(op.pullback)
        gradients = [None if g is None else self.value(g) for g in op.gradients]
        results = [self._new(r) for r in op.results]
        return replace(
            op,
            arguments=arguments,
            results=results,
            body=body,
            inner=inner,
            cotangents=cotangents,
            pullback=pullback,
            gradients=gradients,
        )
