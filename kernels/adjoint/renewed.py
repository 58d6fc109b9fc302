"""Which arrays of a thread or a block every trip of a loop fills before it reads them, and which so need not be kept.

The reverse of a loop runs each trip again from what its variables were. What arrays held must be brought back, too, unless the
trip stores all of what it reads by itself: scratch memory of a thread, tiles in shared memory. Whether it does is not asked of
the indices that it reads, which nobody may know, but of those that it stores: if each trip stores to the same elements, and to
all of them before its first load, then whatever it reads was stored by the trip itself, or by no trip at all.

The elements that a store goes to are told from its text (`Reach`): an index is made of what is known before all loops, and of
the variables of loops within the trip over ranges that are known before all loops. Threads of a block each store to the same
elements in each trip, so all of them together do, too; that they wait before they read what others stored is the kernel's affair.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from numbridge.kernels.adjoint.ir import (
    Array,
    Atomic,
    Compute,
    Custom,
    If,
    Load,
    Loop,
    Meet,
    Op,
    Region,
    Shape,
    Store,
    Value,
    constant_trips,
    walk,
)
from numbridge.kernels.adjoint.survey import Survey

__all__ = ["Renewed"]

Text = int
"""The number of a text: how a value is computed from what is known before all loops. Equal texts have one number."""

_DEEPEST = 64
"""How many operations in a row are followed."""


@dataclass(frozen=True)
class Reach:
    """The elements that a store, or a load, goes to in a trip.

    Attributes
    ----------
    index : tuple of (Text or None)
        The index, by axis; None where it may differ from trip to trip.
    conditions : frozenset of (Text, bool)
        The conditions between the loop and the operation, as far as they are the same in each trip, and which side it stands on.
    loops : tuple of Loop
        The loops in the trip around it.
    whole : frozenset of int
        The axes along which one of these loops goes through the whole array.
    """

    index: tuple[Text | None, ...]
    conditions: frozenset[tuple[Text, bool]]
    loops: tuple[Loop, ...]
    whole: frozenset[int] = frozenset()


class _Texts:
    """Writes values as texts, in which variables of loops stand for themselves."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._of: dict[Value, Text | None] = {}
        self._numbers: dict[tuple[Any, ...], Text] = {}
        # What each text is made of, with the texts in it, and the loops whose variables or ranges it names
        self._parts: list[tuple[tuple[Any, ...], tuple[Text, ...]]] = []
        self.trips: list[frozenset[Loop]] = []

    def loop(self, text: Text) -> Loop | None:
        """Return the loop whose variable a text is."""
        (kind, *what), _ = self._parts[text]
        return what[0] if kind == "trip" else None

    def of(self, value: Value, depth: int = 0) -> Text | None:
        """Return the text of a value; None if it may differ from trip to trip other than by variables of such loops."""
        if value not in self._of:
            self._of[value] = self._write(value, depth)
        return self._of[value]

    def within(self, value: Value, loops: tuple[Loop, ...]) -> Text | None:
        """Return the text of a value if it names the variables of no other loops than these."""
        text = self.of(value)
        return text if text is not None and self.trips[text] <= set(loops) else None

    def numbered(self, text: Text, numbers: dict[Loop, int]) -> Text:
        """Return a text in which each loop is its range, and a number that tells it from others."""
        if not self.trips[text]:
            return text
        head, inner = self._parts[text]
        loop = self.loop(text)
        if loop is not None:
            head = ("numbered", numbers.setdefault(loop, len(numbers)))
        return self._made(head, tuple(self.numbered(part, numbers) for part in inner))

    def _made(self, head: tuple[Any, ...], inner: tuple[Text, ...] = ()) -> Text:
        key = (head, inner)
        if key not in self._numbers:
            self._numbers[key] = len(self._parts)
            self._parts.append(key)
            own = {head[1]} if head[0] == "trip" else set()
            self.trips.append(frozenset(own.union(*(self.trips[part] for part in inner))))
        return self._numbers[key]

    def _write(self, value: Value, depth: int) -> Text | None:
        if value.constant is not None:
            return self._made(("constant", str(value.type), repr(value.constant)))
        op = self._survey.definers.get(value)
        if op is None:
            return self._made(("value", value))
        if isinstance(op, Shape):
            return self._made(("shape", op.array, op.axis))
        if isinstance(op, Loop):
            bounds = self._all(op.bounds, depth) if value is op.index else None
            return None if bounds is None else self._made(("trip", op), bounds)
        if isinstance(op, Compute) and depth < _DEEPEST:
            inner = self._all(op.arguments, depth)
            if inner is not None:
                return self._made((op.function.key, op.function.text, str(value.type)), inner)
        return None if self._survey.loops(op) else self._made(("value", value))

    def _all(self, values: Iterable[Value], depth: int) -> tuple[Text, ...] | None:
        texts = [self.of(value, depth + 1) for value in values]
        known = tuple(text for text in texts if text is not None)
        return known if len(known) == len(texts) else None


class Renewed:
    """The arrays of a thread or a block that need not be kept.

    Parameters
    ----------
    survey : Survey
        Where the operations of the program stand.
    arrays : iterable of Array
        The local arrays and the shared memory of the program.
    """

    def __init__(self, survey: Survey, arrays: Iterable[Array]) -> None:
        self._survey = survey
        self._texts = _Texts(survey)
        self._uses: dict[Array, list[Load | Store | Atomic]] = {}
        for op in survey.ops:
            if isinstance(op, Load | Store | Atomic):
                self._uses.setdefault(op.array, []).append(op)
        customs = [op for op in survey.ops if isinstance(op, Custom)]
        by_hand = {
            inner.array
            for op in customs
            for inner in (*walk(op.body), *walk(op.pullback))
            if isinstance(inner, Load | Store | Atomic)
        }
        self._loops: dict[Array, list[Loop]] = {}
        for array in arrays:
            found = None if array in by_hand or array.owner is not None else self._renewing(array)
            if found is not None:
                self._loops[array] = found

    def __contains__(self, array: Array) -> bool:
        """Tell whether every load of an array in a loop finds what its trip stored."""
        return array in self._loops

    def loops(self, array: Array) -> list[Loop]:
        """Return the loops whose trips fill an array before they read it."""
        return self._loops.get(array, [])

    def loop(self, array: Array, op: Op) -> Loop | None:
        """Return the loop around an operation whose trips fill an array before they read it, or None."""
        around = self._survey.loops(op)
        return next((loop for loop in self.loops(array) if loop in around), None)

    def loads(self, array: Array) -> list[Load]:
        """Return the loads of an array."""
        return [op for op in self._uses.get(array, ()) if isinstance(op, Load)]

    def _stores(self, array: Array) -> list[Store]:
        return [op for op in self._uses.get(array, ()) if isinstance(op, Store)]

    def is_brought_back(self, array: Array, op: Loop | Store) -> bool:
        """Tell whether what a loop or a store changes of an array is undone on the way back.

        Within a trip that fills the array, that is for loads which are done again after it: loads in loops and branches that come
        before, or that share a loop with it. Elsewhere all loads find what their trip stores.
        """
        if array not in self:
            return True
        filling = self.loop(array, op)
        if filling is None:
            return False
        around = self._between(op, filling)
        return any(
            self._survey.may_precede(load, op)
            or (isinstance(op, Loop) and self._survey.is_within(load, op))
            or any(isinstance(outer, Loop) and outer in around for outer in self._between(load, filling))
            for load in self.loads(array)
            if self.loop(array, load) is filling and self._between(load, filling)
        )

    def _between(self, op: Op, loop: Loop) -> list[Op]:
        """Return the branches and loops around an operation that are within a loop around it."""
        around = self._survey.ancestors(op)
        return around[: around.index(loop)]

    def _renewing(self, array: Array) -> list[Loop] | None:
        """Return the loops that hold all loads of an array in loops and fill it before, or None if there are others."""
        if any(isinstance(op, Atomic) for op in self._uses.get(array, ())):
            return None
        found: dict[Loop, list[Reach]] = {}
        for load in self.loads(array):
            loops = self._survey.loops(load)
            if loops and found.keys().isdisjoint(loops):
                filled = ((loop, self._filled(array, loop)) for loop in reversed(loops))
                filling = next(((loop, reaches) for loop, reaches in filled if reaches is not None), None)
                if filling is None:
                    return None
                found[filling[0]] = filling[1]
            elif not loops and self._survey.ancestors(load) and not self._is_last(array, load):
                # It may be done on the way back only, with its branch.
                return None
        return list(found) if self._get_along(array, found) else None

    def _is_last(self, array: Array, load: Load) -> bool:
        """Tell whether nothing is stored to an array after a load."""
        return not any(self._survey.may_precede(load, store) for store in self._stores(array))

    def _get_along(self, array: Array, found: dict[Loop, list[Reach]]) -> bool:
        """Tell whether loops find the elements that they do not store as they were, in whatever order they run again."""
        stores = self._stores(array)
        for loop, filled in found.items():
            around = self._survey.loops(loop)
            for store in stores:
                other = next((outer for outer in self._survey.loops(store) if outer in found), None)
                if other is None:
                    before = self._survey.order[store] < self._survey.order[loop]
                    if not before or not set(self._survey.loops(store)).isdisjoint(around):
                        return False
                elif other is not loop:
                    same_guard = self._survey.sides(other) == self._survey.sides(loop)
                    if not same_guard or not self._is_covered(self._reach(store, other), filled):
                        return False
        return True

    def _filled(self, array: Array, loop: Loop) -> list[Reach] | None:
        """Return what each trip of a loop stores to before it loads, if that is all that it stores to; else None."""
        inside = list(walk([loop]))
        stores = [op for op in inside if isinstance(op, Store) and op.array is array]
        meets = any(isinstance(op, Meet) and op.of_block for op in inside)
        if array.kind == "shared" and stores and not meets:
            return None
        reaches: list[Reach] = []
        if not self._reads_more(array, loop, loop.test, reaches):
            self._collect(array, loop, loop.body, Reach((), frozenset(), ()), reaches)
        return reaches if all(self._is_covered(self._reach(store, loop), reaches) for store in stores) else None

    def _reads_more(self, array: Array, loop: Loop, region: Region, reaches: list[Reach]) -> bool:
        """Tell whether a region may load what the trip has not stored before."""
        loads = (op for op in walk(region) if isinstance(op, Load) and op.array is array)
        return not all(self._is_covered(self._reach(load, loop), reaches) for load in loads)

    def _collect(self, array: Array, loop: Loop, region: Region, here: Reach, reaches: list[Reach]) -> bool:
        """Collect what a region certainly stores to before it loads anything else; return whether it came to such a load."""
        for op in region:
            match op:
                case Load() if op.array is array:
                    if self._reads_more(array, loop, [op], reaches):
                        return True
                case Store() if op.array is array:
                    index = tuple(self._texts.within(value, here.loops) for value in op.index)
                    reaches.append(self._settled(array, replace(here, index=index)))
                case If():
                    if self._collect_branch(array, loop, op, here, reaches):
                        return True
                case Loop():
                    if self._reads_more(array, loop, [op], reaches):
                        return True
                    if op.index is not None and op.leave is None and self._texts.within(op.index, (*here.loops, op)):
                        self._collect(array, loop, op.body, replace(here, loops=(*here.loops, op)), reaches)
        return False

    def _collect_branch(self, array: Array, loop: Loop, op: If, here: Reach, reaches: list[Reach]) -> bool:
        """Collect from both sides of a branch: under its condition, or what both store to."""
        if self._reads_more(array, loop, [op], reaches):
            return True
        text = self._texts.within(op.condition, here.loops)
        sides: list[list[Reach]] = [[], []]
        for region, side, collected in ((op.then, True, sides[0]), (op.orelse, False, sides[1])):
            self._collect(array, loop, region, here, collected)
            if text is not None:
                reaches += [replace(r, conditions=r.conditions | {(text, side)}, whole=frozenset()) for r in collected]
        # In each trip of the loops around, not in all of them together: one side's trips are not the other's.
        reaches += [one for one in sides[0] if any(self._are_same(one, other, here.loops) for other in sides[1])]
        return False

    def _settled(self, array: Array, reach: Reach) -> Reach:
        """Return a reach with the axes along which it goes through the whole array."""
        texts = [text for text in reach.index if text is not None]
        texts += [text for loop in reach.loops for bound in loop.bounds if (text := self._texts.of(bound)) is not None]
        whole: set[int] = set()
        for axis, text in enumerate(reach.index):
            loop = None if text is None else self._texts.loop(text)
            if loop is not None and len(array.extents) == len(reach.index):
                goes_through = [bound.constant for bound in loop.bounds] == [0, array.extents[axis], 1]
                if goes_through and sum(loop in self._texts.trips[other] for other in texts) == 1:
                    whole.add(axis)
        return replace(reach, whole=frozenset(whole))

    def _reach(self, op: Load | Store, loop: Loop) -> Reach:
        """Return the elements that a load or a store in a loop goes to, or more."""
        between = self._between(op, loop)
        loops = tuple(outer for outer in reversed(between) if isinstance(outer, Loop))
        branches = [(outer, side) for outer, side in self._survey.sides(op) if outer in between]
        conditions = [(self._texts.within(branch.condition, loops), side) for branch, side in branches]
        known = frozenset((text, side) for text, side in conditions if text is not None)
        return Reach(tuple(self._texts.within(value, loops) for value in op.index), known, loops)

    def _is_covered(self, reach: Reach, filled: list[Reach]) -> bool:
        return any(self._covers(other, reach) for other in filled)

    def _are_same(self, one: Reach, other: Reach, loops: tuple[Loop, ...]) -> bool:
        """Tell whether two stores go to the same elements in every single trip of some loops around both."""
        return self._covers(one, other, loops) and self._covers(other, one, loops)

    def _covers(self, filled: Reach, reach: Reach, common: tuple[Loop, ...] = ()) -> bool:
        """Tell whether a store that certainly runs in each trip goes to all elements that another may go to.

        Where both stand in `common` loops, that is for every single trip of these.
        """
        texts = self._texts
        own = {loop: number for number, loop in enumerate(common)}
        others = dict(own)
        whole: set[Loop | None] = set()
        for axis, (one, other) in enumerate(zip(filled.index, reach.index, strict=True)):
            if one is not None and axis in filled.whole and texts.loop(one) not in common:
                whole.add(texts.loop(one))
            elif one is None or other is None or texts.numbered(one, own) != texts.numbered(other, others):
                return False
        if not all(constant_trips(loop) for loop in filled.loops if loop not in own and loop not in whole):
            return False
        given = {(texts.numbered(t, others), side) for t, side in reach.conditions if texts.trips[t] <= others.keys()}
        return all(
            texts.trips[text] <= own.keys() and (texts.numbered(text, own), side) in given
            for text, side in filled.conditions
        )
