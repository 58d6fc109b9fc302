"""The program that is differentiated: a typed, structured SSA form of a kernel.

A region is a list of operations. Branches and loops are operations that hold regions; the values that leave them are
named in merges and carried variables, so that every value has exactly one place where it is computed. Types are Numba's.
This module only describes programs; it neither reads source nor writes any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from numba import types

__all__ = [
    "Array",
    "Atomic",
    "Carried",
    "Compute",
    "Custom",
    "Effect",
    "Function",
    "If",
    "Load",
    "Loop",
    "Meet",
    "Merge",
    "Names",
    "Op",
    "Parameter",
    "Program",
    "Raise",
    "Region",
    "Shape",
    "Store",
    "Value",
    "constant_trips",
    "control",
    "defined_by",
    "is_float",
    "is_records",
    "most_trips",
    "nested",
    "operands",
    "read_for",
    "regions",
    "same_index",
    "walk",
]


@dataclass(eq=False, slots=True)
class Value:
    """A scalar, a vector or a matrix that is computed once.

    Attributes
    ----------
    name : str
        What it is called in generated source; for a constant, its text.
    type : Numba type
        Its type.
    constant : object
        The number or element, for a constant; None otherwise.
    literal : bool
        Whether Numba, too, sees a constant here: it types ``x ** 2`` by the 2.
    """

    name: str
    type: Any
    constant: Any = None
    literal: bool = False

    def __repr__(self) -> str:
        """Return name and type."""
        return f"{self.name}: {self.type}"


@dataclass(eq=False, slots=True)
class Array:
    """Memory: a parameter, an array on the thread's stack (`extents`, perhaps zero at first), shared memory, or a constant.

    Shared memory has a `place` of its own among that of the kernel; that which `is_dynamic` lies over other such. One that is
    `narrow` is stored in fewer bits than its `dtype`, which is what its elements are computed with in. One that has an
    `owner` is a field of the records of that array: the one of number `leaf`, whose own dimensions are `extents`. One of
    components has them as its last dimensions, and their elements are of the Numba type `whole`.
    """

    name: str
    dtype: Any
    ndim: int
    kind: str = "parameter"
    extents: tuple[int, ...] = ()
    dtype_text: str = ""
    place: int = -1
    zeroed: bool = False
    narrow: bool = False
    owner: Array | None = None
    leaf: int = 0
    label: str = ""
    misaligned: bool = False
    whole: Any = None

    @property
    def is_dynamic(self) -> bool:
        """Whether the array has as many elements as the launch brings memory for."""
        return self.kind == "shared" and self.extents == (0,)

    @property
    def parameter(self) -> str:
        """The name of the parameter that this lies in."""
        return self.name if self.owner is None else self.owner.name

    @property
    def called(self) -> str:
        """What messages call it."""
        return self.label or self.name

    def __repr__(self) -> str:
        """Return name, dtype and rank."""
        return f"{self.name}: {self.dtype}[{self.ndim}]"


@dataclass(frozen=True, slots=True)
class Function:
    """What a `Compute` computes: the key of its derivative rule, and its text, such as ``math.sin({0})``.

    `primitive` is the Python object that Numba types the text by: an operator or a function.
    """

    key: str
    text: str
    primitive: Any


@dataclass(eq=False, slots=True)
class Op:
    """An operation; `place` is where it stands in the source, for messages."""

    place: Any = field(default=None, kw_only=True)


@dataclass(eq=False, slots=True)
class Compute(Op):
    """A pure function of values."""

    result: Value
    function: Function
    arguments: list[Value]


@dataclass(eq=False, slots=True)
class Shape(Op):
    """The extent of an axis."""

    result: Value
    array: Array
    axis: int


@dataclass(eq=False, slots=True)
class Load(Op):
    """An element of an array."""

    result: Value
    array: Array
    index: list[Value]


@dataclass(eq=False, slots=True)
class Store(Op):
    """A store to an element."""

    array: Array
    index: list[Value]
    value: Value


@dataclass(eq=False, slots=True)
class Atomic(Op):
    """An atomic operation on an element; `result` is what the element held."""

    result: Value
    operation: str
    array: Array
    index: list[Value]
    values: list[Value]


@dataclass(eq=False, slots=True)
class Meet(Op):
    """The thread waits for others of its block, and learns a `result` from them, or nothing.

    `operation` is what numba.cuda calls it.
    """

    result: Value | None
    operation: str
    arguments: list[Value]

    @property
    def of_block(self) -> bool:
        """Whether it waits for all threads of the block, and not for lanes that it names."""
        return self.operation.startswith("syncthreads")


@dataclass(eq=False, slots=True)
class Effect(Op):
    """A line that is printed, or an index that is checked; the text of a call with places for its `arguments`.

    Only a program that runs in place of its kernel has them: the derivatives leave them to the kernel.
    """

    text: str
    arguments: list[Value]
    may_raise: bool = False


@dataclass(eq=False, slots=True)
class Raise(Op):
    """The thread ends with an exception."""

    text: str


@dataclass(eq=False, slots=True)
class Merge:
    """A value that is one of two, by the branch that was taken."""

    result: Value
    then: Value
    orelse: Value


@dataclass(eq=False, slots=True)
class Carried:
    """A variable of a loop.

    `phi` is its value during a trip, `following` that at the trip's end, `result` that after the loop.
    """

    phi: Value
    initial: Value
    following: Value
    result: Value


@dataclass(eq=False, slots=True)
class If(Op):
    """A branch."""

    condition: Value
    then: list[Op]
    orelse: list[Op]
    merges: list[Merge]


@dataclass(eq=False, slots=True)
class Loop(Op):
    """A loop over a range (`index` is its variable), or, without an `index`, while `condition` holds.

    `test` computes the condition of a while loop. `leave` is a value of the body that ends the loop after the trip.
    """

    index: Value | None
    bounds: list[Value]
    test: list[Op]
    condition: Value | None
    body: list[Op]
    carried: list[Carried]
    leave: Value | None = None


@dataclass(eq=False, slots=True)
class Custom(Op):
    """A function with a derivative by hand.

    `body` computes `results`; `pullback` computes `gradients` of the `arguments` (None where there is none) from the
    `cotangents` of the results.
    """

    arguments: list[Value]
    results: list[Value]
    body: list[Op]
    inner: list[Value]
    cotangents: list[Value]
    pullback: list[Op]
    gradients: list[Value | None]
    name: str


Region = list[Op]


@dataclass(eq=False)
class Parameter:
    """A parameter of a program, and the array or scalar that it is."""

    name: str
    item: Array | Value


class Names:
    """Hands out names that nothing else in a program has, the same ones every time."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """Return a new name that begins with `base`, which may be a module's array, such as `settings.table`."""
        base = re.sub(r"\W", "_", base)
        base = re.sub(r"_\d+$", "", base) or base
        while True:
            self._next[base] = number = self._next.get(base, 0) + 1
            name = f"{base}_{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def claim(self, name: str) -> str:
        """Return exactly this name, or a numbered one where it is taken."""
        if name in self._taken:
            return self.fresh(name)
        self._taken.add(name)
        return name


@dataclass(eq=False)
class Program:
    """A kernel as a program.

    Attributes
    ----------
    name : str
        What its function is called.
    hidden : list of Value
        The leading parameters: thread indices, then block and grid dimensions.
    parameters : list of Parameter
        The kernel's parameters, then those that a derivative added.
    locals : list of Array
        Arrays on the thread's stack.
    fields : list of Array
        The fields of records that it touches, each as an array of its own, and components of elements whose parts it stores.
    body : Region
        What it does.
    namespace : dict
        The globals that the text of its operations refers to.
    names : Names
        For values to be added.
    in_blocks : bool
        Whether the threads of a block work together.
    """

    name: str
    hidden: list[Value]
    parameters: list[Parameter]
    locals: list[Array]
    fields: list[Array]
    body: Region
    namespace: dict[str, Any]
    names: Names
    in_blocks: bool = False

    @property
    def indices(self) -> list[Value]:
        """The thread indices that it asks for."""
        return [value for value in self.hidden if value.name.startswith("_nb_i")]

    @property
    def places(self) -> dict[Value, Value]:
        """Its blocks along axes, and a thread's places there, each with the thread index that it is computed from."""
        indices = {value.name[5:]: value for value in self.indices}
        return {value: indices[value.name[5:]] for value in self.hidden if value.name.startswith(("_nb_k", "_nb_t"))}

    @property
    def free_place(self) -> int:
        """The first place that no shared memory has; that many further on lies what belongs to each."""
        return max((array.place for array in self.locals if array.kind == "shared"), default=-1) + 1

    def array(self, name: str) -> Array:
        """Return the array parameter of a name."""
        return next(p.item for p in self.parameters if p.name == name and isinstance(p.item, Array))

    def parts(self, item: Array) -> list[Array]:
        """Return the arrays of numbers and elements that a parameter is: the fields of records, components, or the array."""
        found = [f for f in self.fields if f.owner is item]
        return found if found or is_records(item) else [item]


def constant_trips(op: Loop) -> int | None:
    """Return how many trips a loop has, if that is known."""
    return None if op.leave is not None else most_trips(op)


def most_trips(op: Loop) -> int | None:
    """Return how many trips a loop has that nobody leaves, if that is known."""
    if op.index is None or any(type(b.constant) is not int for b in op.bounds):
        return None
    start, stop, step = (bound.constant for bound in op.bounds)
    return len(range(start, stop, step)) if step else None


def is_float(value: Value | Array) -> bool:
    """Tell whether a value, or an array's elements, are real floating-point numbers, or vectors or matrices of such."""
    kind = value.dtype if isinstance(value, Array) else value.type
    if isinstance(kind, types.Record):
        return False
    return str(getattr(kind, "dtype", kind)) in ("float16", "float32", "float64")


def is_records(item: Any) -> bool:
    """Tell whether something is an array of records."""
    return isinstance(item, Array) and isinstance(item.dtype, types.Record)


def regions(op: Op) -> Iterator[Region]:
    """Yield the regions that an operation holds, in the order in which they run."""
    match op:
        case If():
            yield op.then
            yield op.orelse
        case Loop():
            yield op.test
            yield op.body
        case Custom():
            yield op.body


def same_index(a: Sequence[Value], b: Sequence[Value]) -> bool:
    """Tell whether two indices are certainly the same: of the same values, or constants."""
    return len(a) == len(b) and all(
        x is y or (type(x.constant) is int and type(y.constant) is int and x.constant == y.constant)
        for x, y in zip(a, b, strict=True)
    )


def walk(region: Region) -> Iterator[Op]:
    """Yield every operation of a region, with those in branches and loops, in source order."""
    for op in region:
        yield op
        for inner in regions(op):
            yield from walk(inner)


def nested(region: Region) -> Iterator[Op]:
    """Yield the operations of a region and of its branches, but not those within its loops."""
    for op in region:
        yield op
        if not isinstance(op, Loop):
            for inner in regions(op):
                yield from nested(inner)


def operands(op: Op) -> list[Value]:
    """Return the values that an operation itself reads, not counting its regions."""
    match op:
        case Compute():
            return op.arguments
        case Load():
            return op.index
        case Store():
            return [*op.index, op.value]
        case Atomic():
            return [*op.index, *op.values]
        case If():
            return [op.condition]
        case Loop():
            return op.bounds
        case Custom() | Meet() | Effect():
            return op.arguments
    return []


def control(op: Op) -> set[Value]:
    """Return what decides whether, or how often, the operations that an operation holds run."""
    if isinstance(op, If):
        return {op.condition}
    if isinstance(op, Loop):
        found = {*op.bounds, op.condition, op.leave}
        return {value for value in found if value is not None}
    return set()


def read_for(op: Op, value: Value) -> list[Value]:
    """Return what an operation, with what it holds, reads for one of the values that it defines."""
    match op:
        case If():
            merge = next(m for m in op.merges if m.result is value)
            return [op.condition, merge.then, merge.orelse]
        case Loop():
            if value is op.index:
                return list(control(op))
            c = next(c for c in op.carried if value in (c.phi, c.result))
            return [*control(op), c.phi, c.initial, c.following]
        case Custom():
            return [*op.arguments, *(v for inner in walk(op.body) for v in (*defined_by(inner), *operands(inner)))]
    return operands(op)


def defined_by(op: Op) -> list[Value]:
    """Return the values that an operation defines, not counting its regions."""
    match op:
        case Compute() | Load() | Shape() | Atomic():
            return [op.result]
        case If():
            return [merge.result for merge in op.merges]
        case Loop():
            phis = [value for carried in op.carried for value in (carried.phi, carried.result)]
            return phis if op.index is None else [op.index, *phis]
        case Custom():
            return op.results
        case Meet():
            return [] if op.result is None else [op.result]
    return []
