"""Which stores several threads may make alike: CUDA allows them to store the same number into one element at the same time.

The way back must know. Only one of these threads hands on the adjoint of the element, and what a thread overwrites is what others
have just stored, unless it is the first. So it is the threads that are told apart here, as far as the indices of the stores say.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator

from numbridge.kernels.adjoint.activity import refused
from numbridge.kernels.adjoint.ir import (
    Compute,
    If,
    Loop,
    Meet,
    Op,
    Program,
    Region,
    Store,
    Value,
    defined_by,
    operands,
    read_for,
    regions,
    walk,
)
from numbridge.kernels.adjoint.uniform import Uniform

__all__ = ["Alike"]


class Alike:
    """The stores by which several threads may write one and the same element between two barriers.

    Where threads of a block wait for each other, these are all stores but those whose index tells the threads apart by how it is
    written. Elsewhere, these are stores whose index does not depend on all thread indices of the kernel, or only on the block.

    Parameters
    ----------
    program : Program
        What is reversed.

    Attributes
    ----------
    stores : set of Op
        These stores.
    """

    def __init__(self, program: Program) -> None:
        ops = list(walk(program.body))
        stores = [op for op in ops if isinstance(op, Store) and op.array.kind != "local"]
        self._body = program.body
        self._sources: _Sources | None = None
        self.stores: set[Op]
        if any(isinstance(op, Meet) for op in ops):
            apart = _Apart(program)
            self.stores = {op for op in stores if not apart.holds(op, [o for o in stores if o.array is op.array])}
            return
        known, self._sources = Uniform(program), _Sources(program)
        missing = self._sources.missing
        self.stores = {op for op in stores if missing(op) or (program.indices and all(map(known.holds, op.index)))}

    def check(self, again: Collection[Op]) -> None:
        """Refuse threads that store alike and read that again, without waiting: none may bring back what another still reads.

        Parameters
        ----------
        again : collection of Op
            The stores that are done again, because what they store is read, and undone.

        Raises
        ------
        KernelUnsupportedError
            If there is such a store; the message shows it.
        """
        sources = self._sources
        if sources is None or self.stores.isdisjoint(again):
            return
        for op, guards in _guarded(self._body, ()):
            if not isinstance(op, Store) or op not in self.stores or op not in again:
                continue
            missing = sources.missing(op)
            if any(not any(index in sources.of(guard) for guard in guards) for index in missing):
                raise refused(
                    op,
                    f"several threads store into this element of {op.array.called!r}, which the kernel reads as well, and on the "
                    "way back one would bring it back while another still reads it; keep the number in a variable and read that",
                )


def _guarded(region: Region, guards: tuple[Value, ...]) -> Iterator[tuple[Op, tuple[Value, ...]]]:
    """Yield operations with the conditions under which they run."""
    for op in region:
        yield op, guards
        for inner in regions(op):
            yield from _guarded(inner, (*guards, op.condition) if isinstance(op, If) else guards)


class _Sources:
    """Which thread indices values depend on, memory left aside."""

    def __init__(self, program: Program) -> None:
        ops = list(walk(program.body))
        used = {value for op in ops for value in operands(op)}
        places = {value: index for value, index in program.places.items() if value in used}
        self._indices = {value for value in program.indices if value in used} | {*places.values()}
        self._found: dict[Value, set[Value]] = {value: {value} for value in self._indices}
        self._found |= {value: {index} for value, index in places.items()}
        before = -1
        while before != (before := sum(map(len, self._found.values()))):
            for op in ops:
                for value in defined_by(op):
                    self._found[value] = set().union(*map(self.of, read_for(op, value)))

    def of(self, value: Value) -> set[Value]:
        """Return the thread indices that a value depends on."""
        return self._found.get(value, set())

    def missing(self, op: Store) -> set[Value]:
        """Return the thread indices of the kernel that do not matter for where a store goes."""
        return self._indices.difference(*map(self.of, op.index))


class _Apart:
    """Tells threads of a block apart by the indices of what they store."""

    def __init__(self, program: Program) -> None:
        ops = list(walk(program.body))
        self._uniform = Uniform(program)
        self._definers = {value: op for op in ops for value in defined_by(op)}
        used = {value for op in ops for value in operands(op)}
        self._indices = {value for value in program.indices if value in used}
        free = [op for op in ops if isinstance(op, Loop) and not any(isinstance(o, Meet) for o in walk([op]))]
        # What may change while nobody waits
        self._moving = {value for loop in free for op in walk([loop]) for value in defined_by(op)}
        self._forms: dict[Value, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[Store, dict[Value, Hashable]] = {}

    def holds(self, op: Store, stores: list[Store]) -> bool:
        """Tell whether no two threads store into one element by a store, nor by another of the same array."""
        told = self._told(op)
        if not self._indices or not self._indices <= set(told):
            return False
        return all(other is op or self._told(other) == told or self._is_elsewhere(op, other) for other in stores)

    def _told(self, op: Store) -> dict[Value, Hashable]:
        """Return the thread indices that differ only if a store's indices do, with what says so and where."""
        if op not in self._known:
            self._known[op] = self._found(op)
        return self._known[op]

    def _found(self, op: Store) -> dict[Value, Hashable]:
        terms = [self._term(value) for value in op.index]
        told: dict[Value, Hashable] = {}
        for k, term in enumerate(terms):
            if (axis := self._axis(term)) is not None:
                told.setdefault(axis, (k, self._form(op.index[k])))
        for j, high in enumerate(terms):
            for k, low in enumerate(terms):
                axis = self._divided(self._definers.get(high), self._definers.get(low))
                if axis is not None and axis not in told:
                    told[axis] = (j, k, self._form(op.index[j]), self._form(op.index[k]))
        return told

    def _divided(self, high: Op | None, low: Op | None) -> Value | None:
        """Return the thread index of a number of which two values are the quotient and the remainder."""
        match high, low:
            case Compute(), Compute() if (high.function.key, low.function.key) == ("floordiv", "mod"):
                if [*map(self._form, high.arguments)] == [*map(self._form, low.arguments)]:
                    number, by = high.arguments
                    return self._axis(number) if self._is_steady(by) else None
        return None

    def _term(self, value: Value) -> Value:
        """Return what is left of a sum without the terms that are the same for all threads until they wait."""
        op = self._definers.get(value)
        if not isinstance(op, Compute) or op.function.key not in ("add", "sub"):
            return value
        one, other = op.arguments
        return self._term(one) if self._is_steady(other) else self._term(other) if self._is_steady(one) else value

    def _axis(self, value: Value, *, scaled: bool = True) -> Value | None:
        """Return the thread index that differs between threads only if a value does; `scaled` if a multiple of it will do."""
        value = self._term(value)
        if value in self._indices:
            return value
        op = self._definers.get(value)
        match op:
            case Compute() if op.function.key == "mul" and scaled:
                factors = [one for one in op.arguments if type(one.constant) is int and one.constant]
                others = [one for one in op.arguments if one not in factors]
                return self._axis(others[0]) if factors and others else None
            case Compute() if op.function.key == "mod" and self._uniform.is_index_and_extent(*op.arguments):
                return op.arguments[0]
            case Loop() if value is op.index:
                # Threads take turns: each has elements that are as far apart as there are threads, or a multiple of that.
                start, _, step = op.bounds
                axis = self._axis(start, scaled=False)
                return axis if axis is not None and self._is_turn(axis, step) else None
        return None

    def _is_steady(self, value: Value) -> bool:
        return self._uniform.holds(value) and (value.constant is not None or value not in self._moving)

    def _is_turn(self, axis: Value, step: Value) -> bool:
        op = self._definers.get(step)
        if isinstance(op, Compute) and op.function.key == "mul":
            return any(self._is_turn(axis, factor) for factor in op.arguments)
        return self._uniform.is_index_and_extent(axis, step)

    def _is_elsewhere(self, op: Store, other: Store) -> bool:
        """Tell whether constants in two indices make them different."""
        pairs = zip(op.index, other.index, strict=True)
        numbers = [(a.constant, b.constant) for a, b in pairs if type(a.constant) is type(b.constant) is int]
        return any(a != b and min(a, b) >= 0 for a, b in numbers)

    def _form(self, value: Value) -> int:
        """Return a number for how a value is computed; values of one are the same at the same time, or of one thread's turns."""
        if value not in self._forms:
            form = self._form_of(value, self._definers.get(value))
            self._forms[value] = self._numbers.setdefault(form, len(self._numbers))
        return self._forms[value]

    def _form_of(self, value: Value, op: Op | None) -> Hashable:
        if value.constant is not None:
            return "constant", value.constant
        match op:
            case Compute():
                return op.function.key, *map(self._form, op.arguments)
            case Loop() if value is op.index and self._axis(value) is not None:
                return "turns", self._form(op.bounds[0]), self._form(op.bounds[2])
        return value
