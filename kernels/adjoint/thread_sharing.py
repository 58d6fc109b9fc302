"""Which threads touch the same elements of an adjoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from numbridge.kernels.adjoint.fence import offset
from numbridge.kernels.adjoint.ir import Array, Atomic, Compute, Load, Loop, Op, Program, Store, Value, defined_by, walk

__all__ = ["are_trips_apart", "nearness", "own_arrays"]


def own_arrays(program: Program, kinds: tuple[type[Op], ...] = (Load, Store, Atomic)) -> set[Array]:
    """Return the arrays of which each thread only touches elements that no other thread touches, in some kinds of access.

    Every access has at the same places of the index what tells threads apart: each thread index, as it is, or the block and the
    thread's place in it. A loop in which threads take turns, as ``range(i, n, cuda.gridsize(1))``, counts as where it begins.
    """
    turns, tellers = _turns(program), _tellers(program)
    places: dict[Array, set[tuple[int, ...] | None]] = {}
    for op in walk(program.body):
        if isinstance(op, Load | Store | Atomic) and isinstance(op, kinds):
            index = [turns.get(value, value) for value in op.index]
            places.setdefault(op.array, set()).add(_own_places(tellers, index))
    return {array for array, found in places.items() if len(found) == 1 and None not in found}


def _tellers(program: Program) -> dict[Value, list[Value]]:
    """Return the thread indices, each with the block and the place there that tell as much, if they are known."""
    places = program.places.items()
    return {own: [value for value, of in places if of is own] for own in program.indices}


def _own_places(tellers: Mapping[Value, Sequence[Value]], index: Sequence[Value]) -> tuple[int, ...] | None:
    """Return where an index has what tells threads apart, or None if it does not have all of that."""
    found: list[int] = []
    for own, told in tellers.items():
        if own in index:
            found.append(index.index(own))
        elif told and all(value in index for value in told):
            found += [-1 - index.index(value) for value in told]
        else:
            return None
    return tuple(found) or None


def _turns(program: Program) -> dict[Value, Value]:
    """Return the variables of loops in which threads take turns, of the grid or of a block, with where each thread begins."""
    definers = {value: op for op in walk(program.body) for value in defined_by(op)}
    found: dict[Value, Value] = {}
    begins = {*program.indices, *program.places}
    for op in walk(program.body):
        if not isinstance(op, Loop) or op.index is None:
            continue
        first, _, step = op.bounds
        made = definers.get(step)
        factors = made.arguments if isinstance(made, Compute) and made.function.key == "mul" else [step]
        if first in begins:
            letters, axis = {"i": "bg", "k": "g", "t": "b"}[first.name[4]], first.name[5:]
            if sorted(value.name for value in factors) == [f"_nb_{letter}{axis}" for letter in letters]:
                found[op.index] = first
    return found


def are_trips_apart(program: Program) -> bool:
    """Tell whether trips of a loop over the grid, which is around the program, may have their adjoints in any order.

    What a trip stores must be of its own, or another one may read it, or store to it again, before or after. What is only added
    to is nobody's.
    """
    touched = [op for op in walk(program.body) if isinstance(op, Load | Store | Atomic)]
    added = [op for op in touched if isinstance(op, Atomic) and op.operation in ("add", "sub")]
    changed = {op.array.parameter for op in touched if isinstance(op, Store | Atomic) and op.array.kind != "local"}
    tellers = _tellers(program)
    for name in changed:
        ops = [op for op in touched if op.array.parameter == name]
        places = {_own_places(tellers, op.index) for op in ops}
        if not all(op in added for op in ops) and (len(places) != 1 or (tellers and None in places)):
            return False
    return True


def nearness(program: Program, shared: Collection[Array]) -> tuple[int, tuple[str, ...]] | None:
    """Return how far from its own row a thread touches shared arrays, and these, or None."""
    if any(array.owner is not None and array.owner.ndim == 0 for array in shared):
        return None
    definers = {value: op for op in walk(program.body) for value in defined_by(op)}
    first = next((value for value in program.hidden if value.name == "_nb_i0"), None)
    furthest = 0
    for op in walk(program.body):
        if isinstance(op, Load | Store | Atomic) and op.array in shared:
            distance = offset(op.index[0], first, definers) if op.index and first is not None else None
            if distance is None:
                return None
            furthest = max(furthest, abs(distance))
    return furthest, tuple(sorted({array.parameter for array in shared}))
