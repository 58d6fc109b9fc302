"""Which arrays a loop leaves as each of its trips read them, so that these run again without bringing anything back.

The reverse of a loop runs its trips again, the last one first, and each must read what it read before. Where no trip stores to an
element that it or an earlier one has read, every element is at the end of the loop what each trip found that read it: recurrences
as ``x[i + 1] = f(x[i])``, steps of time that each have a row of their own. Then nothing is brought back between the trips, stores
are not repeated in them, and what the whole loop has overwritten is restored once, after its reverse.

What is asked is whether a store may come to an element after a load of it that runs again. Indices are sums of integers that are
known and multiples of what is not, as far as they are that (`_Sum`). Two of them differ wherever it can be told which is greater,
given that the store comes in the same trip or in a later one; and where both count with the loop, how far they are apart tells
how many trips lie between them.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import types

from numbridge.kernels.adjoint.construct import CAST
from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Compute,
    Custom,
    Load,
    Loop,
    Op,
    Program,
    Shape,
    Store,
    Value,
    walk,
)
from numbridge.kernels.adjoint.survey import Survey
from numbridge.kernels.adjoint.thread_sharing import own_arrays

__all__ = ["Settled"]

_DEEPEST = 64
"""How many operations in a row are followed."""
_MOST_PAIRS = 4096
"""How many pairs of a load and a store of one array are looked at."""


@dataclass(frozen=True)
class _Sum:
    """A known number, and multiples of other numbers: values of the program, extents, or counters.

    A counter stands here with which of the two it belongs to where a load and a store may do their trips at different times.
    """

    known: int
    terms: Mapping[Any, int]

    def plus(self, other: _Sum, times: int = 1) -> _Sum:
        terms = Counter(self.terms)
        for term, factor in other.terms.items():
            terms[term] += times * factor
        return _Sum(self.known + times * other.known, {term: factor for term, factor in terms.items() if factor})

    def without(self, term: Any) -> _Sum:
        return _Sum(self.known, {other: factor for other, factor in self.terms.items() if other != term})


_NOTHING = _Sum(0, {})


class _Extent(NamedTuple):
    array: Array
    axis: int


class _Counter(NamedTuple):
    loop: Loop
    of_later: bool


class _Later(NamedTuple):
    """How many trips of a loop the later one comes after the earlier one."""

    loop: Loop


class Settled:
    """The arrays that loops leave as their trips read them.

    All that may be are taken to be so at first; `narrow` takes out those that are not.

    Parameters
    ----------
    program : Program
        The program.
    survey : Survey
        Where its operations stand.
    left_out : collection of Array
        Arrays that are not asked about.
    """

    def __init__(self, program: Program, survey: Survey, left_out: Collection[Array]) -> None:
        self._survey = survey
        self._nonnegative = {*program.hidden}
        self._sums: dict[Value, _Sum | None] = {}
        self._stores: dict[Array, list[Store]] = {}
        self._loads: dict[Array, list[Load]] = {}
        self._answers: dict[tuple[Load | Store, Load | Store, Loop], bool] = {}
        self._loops: dict[Array, set[Loop]] = {}
        # Those of which everything that is asked here can be told
        self._known: set[Array] = set()
        self._own = own_arrays(program)
        others: set[Array] = {*left_out}
        for op in survey.ops:
            match op:
                case Store():
                    self._stores.setdefault(op.array, []).append(op)
                case Load():
                    self._loads.setdefault(op.array, []).append(op)
                case Atomic():
                    others.add(op.array)
                case Custom():
                    inner = (*walk(op.body), *walk(op.pullback))
                    others |= {part.array for part in inner if isinstance(part, Load | Store | Atomic)}
        if program.in_blocks:
            return  # what others store, and when, is another matter
        for array, stores in self._stores.items():
            pairs = len(stores) * len(self._loads.get(array, ()))
            if array not in others and array.kind != "shared" and pairs <= _MOST_PAIRS:
                self._known.add(array)
                self._loops[array] = {loop for store in stores for loop in survey.loops(store)}

    def copied(self) -> Settled:
        """Return the same, to be narrowed by itself."""
        made = copy.copy(self)
        made._loops = {array: {*loops} for array, loops in self._loops.items()}
        return made

    def loop(self, array: Array, op: Op) -> Loop | None:
        """Return the outermost loop around an operation, or that itself, which leaves an array as its trips read it; or None."""
        known = self._loops.get(array)
        if not known:
            return None
        around = [*([op] if isinstance(op, Loop) else []), *self._survey.loops(op)]
        return next((loop for loop in reversed(around) if loop in known), None)

    def arrays(self, loop: Loop) -> list[Array]:
        """Return the arrays that this loop, and none around it, leaves as its trips read them."""
        return [array for array in self._loops if self.loop(array, loop) is loop]

    def __iter__(self) -> Iterator[Array]:
        """Yield the arrays of which there may be such loops."""
        return iter(self._loops)

    def left(self, array: Array) -> list[Loop]:
        """Return those of the loops after whose reverse nobody asks what an array held before, if nobody does at the end.

        They are in no loop that would run again, and nothing is loaded before them that may be once more: in a loop, or in a
        branch that may be put off.
        """
        found = []
        for loop in self._loops[array]:
            around = {*self._survey.ancestors(loop)}
            before = [op for op in self._loads.get(array, ()) if self._survey.order[op] < self._survey.order[loop]]
            if not self._survey.loops(loop) and all(around.issuperset(self._survey.ancestors(op)) for op in before):
                found.append(loop)
        return found

    def narrow(self, read: Mapping[Loop, Collection[Value]]) -> bool:
        """Take out what is not so, given what the trips of loops compute when they run again; return whether anything was."""
        wrong: list[tuple[Array, Loop]] = []
        for array, loops in self._loops.items():
            for loop in {self.loop(array, loop) for loop in loops} - {None}:
                assert loop is not None
                inner = [part for part in walk([loop]) if isinstance(part, Loop) and part in read]
                again = {value for part in inner for value in read[part]}
                loads = [
                    op for op in self._loads.get(array, ()) if op.result in again and self._survey.is_within(op, loop)
                ]
                stores = [op for op in self._stores[array] if self._survey.is_within(op, loop)]
                if any(self._may_follow(store, load, loop) for load in loads for store in stores):
                    wrong.append((array, loop))
        for array, loop in wrong:
            self._loops[array].remove(loop)
        return bool(wrong)

    def overtaken(self, array: Array, read: Collection[Value]) -> Load | None:
        """Return a load, of those whose results are read, of an element that may be stored to after it, if there is one.

        Without one, the array holds at the end of the kernel what each of these loads found. Where other threads may store, or
        load what a thread stores, nothing is known.
        """
        loads = [op for op in self._loads.get(array, ()) if op.result in read]
        if not (array in self._known and array in self._own):
            return next(iter(loads), None)
        return next((load for load in loads for store in self._stores[array] if self._may_end(store, load)), None)

    def is_read_after(self, store: Store, loop: Loop, read: Collection[Value]) -> bool:
        """Tell whether a load in a trip of a loop, of those whose results are read, may find what a store of the trip has left.

        Where other threads may store or load, or nobody looks at what does, it may.
        """
        if store.array not in self._known:
            return True
        loads = self._loads.get(store.array, ())
        return any(
            load.result in read and self._survey.is_within(load, loop) and self._may_find(load, store, loop)
            for load in loads
        )

    # What comes after what

    def _may_end(self, store: Store, load: Load) -> bool:
        """Tell whether something may be stored to an element at any time after it was loaded."""
        return self._follows(store, load, self._common(store, load))

    def _may_follow(self, store: Store, load: Load, loop: Loop) -> bool:
        """Tell whether, in a loop around both, something may be stored to an element after it was loaded."""
        key = store, load, loop
        if key not in self._answers:
            common = self._common(store, load)
            self._answers[key] = self._follows(store, load, common[common.index(loop) :])
        return self._answers[key]

    def _may_find(self, load: Load, store: Store, loop: Loop) -> bool:
        """Tell whether, in one trip of a loop around both, a load may find what a store has left."""
        key = load, store, loop
        if key not in self._answers:
            common = self._common(load, store)
            self._answers[key] = self._follows(load, store, common[common.index(loop) + 1 :])
        return self._answers[key]

    def _common(self, one: Load | Store, other: Load | Store) -> list[Loop]:
        """Return the loops around both, each in the one before."""
        around = self._survey.loops(other)
        return [loop for loop in reversed(self._survey.loops(one)) if loop in around]

    def _follows(self, later: Load | Store, earlier: Load | Store, loops: list[Loop]) -> bool:
        """Tell whether one of two may come to an element after the other has, in one trip of all around some loops.

        The loops are around both, each in the one before.
        """
        both = _Both(self, self._survey, later, earlier, loops[0] if loops else None)
        if both.differ():
            return False
        if not loops:
            return self._survey.order[later] > self._survey.order[earlier]
        trips = both.trips_between()
        if any(number % 1 for number in trips):
            return False
        return self._follows(later, earlier, loops[1:]) if 0 in trips else True

    # Numbers

    def sum_of(self, value: Value, depth: int = 0) -> _Sum | None:
        """Return an integer as a sum of what is known of it; None for what is no integer."""
        if type(value.constant) is int:
            return _Sum(value.constant, {})
        if not isinstance(value.type, types.Integer) or value.constant is not None:
            return None
        if value not in self._sums:
            self._sums[value] = self._made(value, depth)
        return self._sums[value]

    def _made(self, value: Value, depth: int) -> _Sum:
        itself = _Sum(0, {value: 1})
        match self._survey.definers.get(value):
            case Shape() as op:
                return _Sum(0, {_Extent(op.array, op.axis): 1})
            # Other integers may be too narrow for the sum.
            case Compute() as op if value.type == types.int64 and depth < _DEEPEST:
                parts = [self.sum_of(argument, depth + 1) for argument in op.arguments]
                match op.function.key, parts:
                    case "add", [_Sum() as one, _Sum() as other]:
                        return one.plus(other)
                    case "sub", [_Sum() as one, _Sum() as other]:
                        return one.plus(other, -1)
                    case "neg", [_Sum() as one]:
                        return _NOTHING.plus(one, -1)
                    case "mul", [_Sum() as one, _Sum(known, terms)] if not terms:
                        return _NOTHING.plus(one, known)
                    case "mul", [_Sum(known, terms), _Sum() as other] if not terms:
                        return _NOTHING.plus(other, known)
                    case key, [_Sum() as one] if key == CAST and op.arguments[0].type != types.uint64:
                        return one
        return itself

    def is_nonnegative(self, term: Any) -> bool:
        """Tell whether something that is no counter is never negative."""
        return isinstance(term, _Extent | _Later) or term in self._nonnegative


@dataclass
class _Both:
    """Two of an array's loads and stores, in the same trip of a loop or one in a later one, in one trip of all loops around it.

    Without a loop, they are in the same trip of all loops around both.
    """

    settled: Settled
    survey: Survey
    later: Load | Store
    earlier: Load | Store
    loop: Loop | None

    def differ(self) -> bool:
        """Tell whether they certainly go to different elements."""
        least = functools.partial(self._at_least, from_earlier=True)
        return any(least(far) > 0 or least(_NOTHING.plus(far, -1)) > 0 for far in self._distances)

    def trips_between(self) -> set[float]:
        """Return how many trips after the earlier one the later one comes to the same element, by each axis that tells."""
        assert self.loop is not None
        trips = _Later(self.loop)
        return {-far.known / far.terms[trips] for far in self._distances if far.terms.keys() == {trips}}

    @functools.cached_property
    def _distances(self) -> list[_Sum]:
        """By how much the later one's index is greater, by axis, where that is known, and neither may count from the end."""
        found = []
        for one, other in zip(self.later.index, self.earlier.index, strict=False):
            last, first = self._seen(one, True), self._seen(other, False)
            if last is not None and first is not None and min(map(self._at_least, (last, first))) >= 0:
                found.append(self._from_earlier(last).plus(first, -1))
        return found

    def _from_earlier(self, found: _Sum) -> _Sum:
        """Return a sum in which the later one counts the loop's trips from that of the earlier one."""
        counter = None if self.loop is None else _Counter(self.loop, True)
        if self.loop is None or counter not in found.terms or self._step(self.loop) is None:
            return found
        after = _Sum(0, {_Counter(self.loop, False): 1, _Later(self.loop): self._step(self.loop)})
        return found.without(counter).plus(after, found.terms[counter])

    def _step(self, loop: Loop) -> Any:
        """Return by how much a loop counts, if that is known."""
        step = loop.bounds[2].constant if loop.index is not None else None
        return step if type(step) is int and step else None

    def _seen(self, value: Value, of_later: bool) -> _Sum | None:
        """Return a number of one of the two as a sum; None if the other may find another number by the same name."""
        found = self.settled.sum_of(value)
        terms: dict[Any, int] = {}
        for term, factor in () if found is None else found.terms.items():
            definer = self.survey.definers.get(term) if isinstance(term, Value) else None
            if definer is None or self._is_alike(definer, term):
                terms[term] = factor
            elif isinstance(definer, Loop) and term is definer.index:
                terms[_Counter(definer, of_later)] = factor
            else:
                return None
        return None if found is None else _Sum(found.known, terms)

    def _is_alike(self, definer: Op, value: Value) -> bool:
        """Tell whether a value is the same for both."""
        if self.loop is not None:
            return not self.survey.is_within(definer, self.loop)
        around = self.survey.loops(definer)
        if isinstance(definer, Loop) and not any(value is carried.result for carried in definer.carried):
            around = [definer, *around]
        both = {*self.survey.loops(self.later)} & {*self.survey.loops(self.earlier)}
        return both.issuperset(around)

    def _at_least(self, found: _Sum, *, from_earlier: bool = False) -> float:
        """Return a number that a sum is not less than; minus infinity if none is known."""
        for _ in range(_DEEPEST):
            counting = [(term, *counter) for term in found.terms if (counter := self._counter(term)) is not None]
            if not counting:
                known = all(factor > 0 and self.settled.is_nonnegative(term) for term, factor in found.terms.items())
                return found.known if known else -math.inf
            # The bounds of inner loops may be made of the counters of outer ones.
            term, loop, of_later = max(counting, key=lambda one: self.survey.order[one[1]])
            factor = found.terms[term]
            bound = self._bound(loop, of_later, lowest=factor > 0)
            if bound is None:
                break
            found = found.without(term).plus(self._from_earlier(bound) if from_earlier else bound, factor)
        return -math.inf

    def _counter(self, term: Any) -> tuple[Loop, bool] | None:
        """Return the loop that a term counts, and whose it is, if both do not have it alike."""
        if isinstance(term, _Counter):
            return term
        definer = self.survey.definers.get(term) if isinstance(term, Value) else None
        return (definer, True) if isinstance(definer, Loop) and term is definer.index else None

    def _bound(self, loop: Loop, of_later: bool, *, lowest: bool) -> _Sum | None:
        """Return what a loop's counter is not less than, or not more than."""
        start, stop, step = loop.bounds
        if self._step(loop) is None:
            return None
        begins = lowest == (step.constant > 0)
        found = self._seen(start if begins else stop, of_later)
        if found is None or begins:
            return found
        return found.plus(_Sum(1 if lowest else -1, {}))
