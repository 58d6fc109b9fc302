"""Which threads touch the same elements of an adjoint."""

from __future__ import annotations

from collections.abc import Collection

from numbridge.kernels.adjoint.fence import offset
from numbridge.kernels.adjoint.ir import Array, Atomic, Load, Op, Program, Store, defined_by, walk

__all__ = ["are_trips_apart", "nearness", "own_arrays"]


def own_arrays(program: Program, kinds: tuple[type[Op], ...] = (Load, Store, Atomic)) -> set[Array]:
    """Return the arrays of which each thread only touches elements that no other thread touches, in some kinds of access.

    Every access has each thread index, as it is, at one and the same place of the index.
    """
    indices = program.indices
    places: dict[Array, set[tuple[int, ...] | None]] = {}
    for op in walk(program.body):
        if isinstance(op, Load | Store | Atomic) and isinstance(op, kinds):
            found = tuple(op.index.index(i) if i in op.index else -1 for i in indices)
            places.setdefault(op.array, set()).add(None if -1 in found or not indices else found)
    return {array for array, found in places.items() if len(found) == 1 and None not in found}


def are_trips_apart(program: Program) -> bool:
    """Tell whether trips of a loop over the grid, which is around the program, may have their adjoints in any order.

    What a trip stores must be of its own, or another one may read it, or store to it again, before or after. What is only added
    to is nobody's.
    """
    touched = [op for op in walk(program.body) if isinstance(op, Load | Store | Atomic)]
    added = [op for op in touched if isinstance(op, Atomic) and op.operation in ("add", "sub")]
    changed = {op.array.parameter for op in touched if isinstance(op, Store | Atomic) and op.array.kind != "local"}
    for name in changed:
        ops = [op for op in touched if op.array.parameter == name]
        places = {tuple(op.index.index(i) if i in op.index else -1 for i in program.indices) for op in ops}
        if not all(op in added for op in ops) and (len(places) != 1 or any(-1 in found for found in places)):
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
