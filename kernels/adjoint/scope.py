"""The state of reading a kernel: the functions on the way, what each variable stands for, and how branches merge."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numba import types

from numbridge.kernels.adjoint import inference
from numbridge.kernels.adjoint.bindings import Binding, Missing, parameter_item, readable
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.ir import Array, Function, If, Merge, Names, Parameter, Region, Value
from numbridge.kernels.adjoint.record_program import Fields
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.parameter_types import ParameterType
from numbridge.kernels.rewriting import Rewritten
from numbridge.kernels.source import FunctionSource

__all__ = ["Frame", "Scope"]


@dataclass
class Frame:
    """A function that is being read: its source and how often each of its variables is assigned."""

    source: FunctionSource
    assignments: Mapping[str, int]


class Scope(Construct):
    """Where a kernel is being read.

    Parameters
    ----------
    rewritten : Rewritten
        The kernel's syntax trees.
    parameters : sequence of ParameterType
        The types of its arguments.
    in_components : set
        The arrays of elements that are their components, by their `memory_key`.
    """

    def __init__(
        self, rewritten: Rewritten, parameters: Sequence[ParameterType], in_components: Set[str | int]
    ) -> None:
        self._rewritten = rewritten
        self._root = rewritten.program.root
        taken = {*rewritten.namespace, *rewritten.names.values(), *(p.name for p in parameters), *dir(builtins)}
        super().__init__(Names(taken), dict(rewritten.namespace))
        self._functions = {rewritten.names[id(s)]: s for s in rewritten.program.sources}
        self._frames: list[Frame] = []
        self._env: dict[str, Binding] = {}
        self.locals: list[Array] = []
        self._fields = Fields(self.names)
        self._in_components = in_components
        # Arrays of elements of which a part is taken where they are loaded, and those with other accesses
        self._in_parts: set[Array] = set()
        self._as_wholes: set[Array] = set()
        self.hidden = [Value(name, types.int64) for name in rewritten.hidden]
        self.parameters = [Parameter(p.name, parameter_item(p)) for p in parameters]
        self.type_name(types.float32)  # in which elements of fewer bits are loaded

    def _refused(self, node: Any, message: str) -> KernelError:
        return self._frames[-1].source.error(node, message, KernelUnsupportedError)

    @contextmanager
    def _into(self, region: Region) -> Iterator[None]:
        """Add operations to another region for a while; assignments there are undone."""
        outer, env, place = self.region, self._env, self.place
        self.region, self._env = region, dict(env)
        yield
        self.region, self._env, self.place = outer, env, place

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
        merge = Merge(self.value(readable(name), kind), self._cast_in(then, a, kind), self._cast_in(orelse, b, kind))
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

    def _checked(self, node: Any, function: Function, arguments: Sequence[Value], base: str = "value") -> Value:
        made = self.compute(function, arguments, base)
        if made is None:
            listed = ", ".join(str(argument.type) for argument in arguments)
            raise self._refused(node, f"Numba has no such operation for ({listed})")
        return made
