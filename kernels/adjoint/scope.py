"""The state of reading a kernel: the functions on the way, what each variable stands for, and how branches merge."""

from __future__ import annotations

import ast
import builtins
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numba import types

from numbridge.kernels.adjoint import complex_program, inference
from numbridge.kernels.adjoint.bindings import UNASSIGNED, Binding, Missing, View, kind_name, parameter_item, readable
from numbridge.kernels.adjoint.construct import Construct
from numbridge.kernels.adjoint.ir import Array, Function, If, Merge, Names, Parameter, Region, Value, defined_by, walk
from numbridge.kernels.adjoint.record_program import Fields, Records
from numbridge.kernels.adjoint.windows import Window, mapped, united
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.language.rewriting import Rewritten
from numbridge.kernels.language.source import FunctionSource
from numbridge.kernels.language.tuple_parameters import remade
from numbridge.kernels.parameter_types import ParameterType

__all__ = ["COUNTED", "Frame", "Scope"]


_DIFFERENT = Missing(
    "is not the same array, or not a number, on every path to here",
    "use each of them where it is chosen, or put both into one array and choose by an index",
)


COUNTED = 40  # bits of what is counted one by one


@dataclass
class Frame:
    """A function that is being read: its source, how often each of its variables is assigned, and the functions it is given."""

    source: FunctionSource
    assignments: Mapping[str, int]
    functions: tuple[str, ...] = ()


class Scope(Construct, ABC):
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
        # Constant arrays of complex numbers, by their text
        self._constants: dict[str, Array] = {}
        # What the device functions that are being read have been given, and the places of the shared memory of each
        self._given: list[Hashable] = [()]
        self._places: dict[tuple[int, Hashable], int] = {}
        # Integers that are certainly not negative, so that no index counts from the end, and how many bits they have at most
        self._nonnegative: dict[Value, int] = {}
        # Arrays of elements of which a part is taken where they are loaded, and those with other accesses
        self._in_parts: set[Array] = set()
        self._as_wholes: set[Array] = set()
        self.hidden = [Value(name, types.int64) for name in rewritten.hidden]
        self.parameters = [Parameter(p.name, parameter_item(p)) for p in parameters]
        self.type_name(types.float32)  # in which elements of fewer bits are loaded

    @abstractmethod
    def _extents(self, view: View | Window | Records) -> Sequence[Callable[[], Value]]:
        """Return what gives the extents of the dimensions that no index has been given for."""

    def cast(self, value: Value, kind: Any) -> Value:
        """Return a value converted to a type."""
        is_complex = inference.complex_of(kind) is not None
        return complex_program.converted(self, value, kind) if is_complex else super().cast(value, kind)

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
        for missing in (a, b):
            # What has a value on that path, which is not known, has none that is known here.
            if isinstance(missing, Missing) and missing != UNASSIGNED:
                return missing
        if isinstance(a, Missing) and isinstance(b, Value):
            a = self.zero(b.type)
        elif isinstance(b, Missing) and isinstance(a, Value):
            b = self.zero(a.type)
        elif isinstance(a, Missing) or isinstance(b, Missing):
            if isinstance(a, Missing):
                return self._kept(b, orelse, lambda x: self._merge("place", self.zero(x.type), x, merges))
            return self._kept(a, then, lambda x: self._merge("place", x, self.zero(x.type), merges))
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            made = [self._merged(name, x, y, then, orelse, merges) for x, y in zip(a, b, strict=True)]
            return remade(a, iter(made)) if type(a) is type(b) else tuple(made)
        if isinstance(a, View | Window) and isinstance(b, View | Window):
            return self._merged_memory(a, b, then, orelse, merges)
        if not (isinstance(a, Value) and isinstance(b, Value)):
            return _DIFFERENT
        kind = inference.unified([a.type, b.type])
        if kind is None:
            return Missing(f"is {kind_name(a)} on one path to here and {kind_name(b)} on another")
        return self._merge(readable(name), self._cast_in(then, a, kind), self._cast_in(orelse, b, kind), merges)

    def _merge_variables(
        self,
        after_then: Mapping[str, Binding],
        after_else: Mapping[str, Binding],
        then: Region,
        orelse: Region,
        merges: list[Merge],
    ) -> None:
        """Let every variable be what either branch left."""
        for name in {**after_then, **after_else}:
            a, b = after_then.get(name, UNASSIGNED), after_else.get(name, UNASSIGNED)
            self._env[name] = self._merged(name, a, b, then, orelse, merges)

    def _merge(self, name: str, a: Value, b: Value, merges: list[Merge]) -> Value:
        merge = Merge(self.value(name, a.type), a, b)
        merges.append(merge)
        return merge.result

    def _kept(self, found: Binding, region: Region, zero_else: Callable[[Value], Value]) -> Binding:
        """Return what only one branch assigns; the numbers that it computed for it are zero after the other."""
        inner = {value for op in walk(region) for value in defined_by(op)}

        def known(value: Value) -> Value:
            return zero_else(value) if value in inner else value

        if isinstance(found, tuple):
            return remade(found, (self._kept(item, region, zero_else) for item in found))
        if isinstance(found, Records):
            return dataclasses.replace(found, index=tuple(map(known, found.index)))
        if isinstance(found, Value):
            return known(found)
        return mapped(found, known) if isinstance(found, View | Window) else found

    def _merged_memory(
        self, a: View | Window, b: View | Window, then: Region, orelse: Region, merges: list[Merge]
    ) -> Binding:
        """Return the rows or the slice of an array that a variable is after a branch: of the same array on both sides."""

        def merge(x: Value, y: Value) -> Value:
            if x is y or (x.constant is not None and x.constant == y.constant and x.type == y.type):
                return x
            kind = x.type if x.type == y.type else types.int64
            return self._merge("place", self._cast_in(then, x, kind), self._cast_in(orelse, y, kind), merges)

        return united(self, (a, b), self._extents(View(a.array)), merge) or _DIFFERENT

    def _cast_in(self, region: Region, value: Value, kind: Any) -> Value:
        with self._into(region):
            return self.cast(value, kind)

    def _choice(self, node: ast.expr, condition: Value, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        """Return the value of an expression of which only one side is evaluated."""
        if condition.literal:
            return then() if condition.constant else orelse()
        regions: tuple[Region, Region] = ([], [])
        sides, after = [], []
        for region, side in zip(regions, (then, orelse), strict=True):
            with self._into(region):
                sides.append(side())
                after.append(self._env)
        merges: list[Merge] = []
        made = self._merged("value", sides[0], sides[1], *regions, merges)
        if isinstance(made, Missing):
            raise self._refused(node, f"the value of this expression {made.why}; use an if statement")
        self._merge_variables(after[0], after[1], *regions, merges)
        self.add(If(condition, *regions, merges))
        return made

    def _checked(self, node: Any, function: Function, arguments: Sequence[Value], base: str = "value") -> Value:
        made = self.compute(function, arguments, base)
        if made is None:
            listed = ", ".join(map(kind_name, arguments))
            name = function.text.partition("(")[0]
            what = (
                f"{name} does not take" if name.replace(".", "").isidentifier() else "Numba has no such operation for"
            )
            raise self._refused(node, f"{what} ({listed})")
        return made
