"""Whether all threads of a block wait for each other together, which the way back needs as much as the way forth.

On the way back a thread waits as often as on the way forth, in the opposite order. So it meets the others where it met them if
all of them wait equally often, or never. A barrier must therefore stand where every thread of the block comes equally often:
under conditions and in loops that are decided by what all of them know. What only some threads do at all may be guarded as
usual, ``if i < n``, as long as all barriers stand under the guard. Lanes of a warp name each other, and are free.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from numbridge.kernels.adjoint.activity import refused
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
    Program,
    Region,
    Shape,
    Store,
    Value,
    defined_by,
    regions,
    walk,
)
from numbridge.kernels.cpu_backend.blocks.source import THREAD

__all__ = ["Uniform", "check_lanes", "check_meetings", "is_guarded"]

_COUNTED = ("syncthreads_count", "syncthreads_and", "syncthreads_or")


def check_meetings(program: Program) -> None:
    """Refuse a kernel in which some threads of a block may wait for it more often than others.

    Raises
    ------
    KernelUnsupportedError
        If there is such a barrier; the message shows where.
    """
    for op in walk(program.body):
        for inner in walk(op.test) if isinstance(op, Loop) else ():
            if isinstance(inner, Meet) and not inner.of_block and inner.arguments[0].constant is None:
                raise refused(
                    inner, "lanes that a while condition names must be a constant; ask them in the loop's body"
                )
    known = Uniform(program)
    for lanes, around in _placed(program.body, (), of_block=False):
        for op, side in around:
            if isinstance(op, Loop) and side is op.body and not known.is_decided(op):
                raise refused(
                    lanes,
                    "lanes of a warp wait for each other in a loop that they may run through unequally often, and such a kernel "
                    "has no derivative; let the loop depend on what all threads of the block know",
                )
    barriers = _barriers(program.body)
    for barrier, around in _placed(program.body, ()):
        for depth, (op, side) in enumerate(around):
            if isinstance(op, Loop):
                if not known.is_decided(op):
                    raise _apart(barrier, "in a loop that threads of a block may run through unequally often")
            elif not known.holds(op.condition):
                alone = all(other in _barriers(side) for other in barriers)
                if not alone or any(isinstance(outer, Loop) for outer, _ in around[:depth]):
                    raise _apart(barrier, "under a condition that may hold for some threads of a block only")


def is_guarded(program: Program) -> bool:
    """Tell whether barriers stand under a condition that may hold for some threads of a block only."""
    known = Uniform(program)
    around = [ops for _, ops in _placed(program.body, ())]
    return any(isinstance(op, If) and not known.holds(op.condition) for ops in around for op, _ in ops)


def check_lanes(program: Program, treated: Callable[[Meet], Hashable]) -> None:
    """Refuse lanes that may exchange numbers at different places of the source, of which an adjoint drops one.

    Parameters
    ----------
    program : Program
        What is reversed.
    treated : callable
        Returns what the adjoint does with an exchange or a vote; what lanes do together it must do with all of them.

    Raises
    ------
    KernelUnsupportedError
        If there are such places; the message shows one.
    """
    known = Uniform(program)
    found = [
        (met, frozenset((op, id(side)) for op, side in around if isinstance(op, If) and not known.holds(op.condition)))
        for met, around in _placed(program.body, (), of_block=False)
        if met.result is not None
    ]
    for k, (one, ways) in enumerate(found):
        for other, others in found[:k]:
            apart = not (ways <= others or others <= ways) and one.operation == other.operation
            if apart and _may_be_same(one.arguments[0], other.arguments[0]) and treated(one) != treated(other):
                raise refused(
                    one,
                    f"lanes of a warp may come to this cuda.{one.operation} while others come to another in the kernel, of "
                    "which the gradient needs one only; let all of them call it at one place",
                )


def _may_be_same(mask: Value, other: Value) -> bool:
    return mask.constant is None or other.constant is None or mask.constant == other.constant


def _barriers(region: Region) -> list[Op]:
    """Return the barriers of a region and of what it holds."""
    return [op for op in walk(region) if isinstance(op, Meet) and op.of_block]


def _apart(op: Op, where: str) -> Exception:
    return refused(
        op,
        f"this barrier stands {where}, and such a kernel has no derivative; let all threads of a block come to it, and put what "
        "only some of them do between barriers",
    )


Around = tuple[tuple[If | Loop, Region], ...]


def _placed(region: Region, around: Around, *, of_block: bool = True) -> Iterator[tuple[Meet, Around]]:
    """Yield the barriers of a region, or what lanes do, with the branches and loops around it and on which side it stands."""
    for op in region:
        if isinstance(op, Meet) and op.of_block == of_block:
            yield op, around
        if isinstance(op, If | Loop):
            for inner in regions(op):
                yield from _placed(inner, (*around, (op, inner)), of_block=of_block)


class Uniform:
    """Which values are the same for all threads of a block that compute them: all that do not come to depend on the thread."""

    def __init__(self, program: Program) -> None:
        self._indices = set(program.indices)
        self._definers = {value: op for op in walk(program.body) for value in defined_by(op)}
        # Memory in which a thread may find what no other finds at the same place and time
        self._changed: set[Array] = {
            op.array for op in walk(program.body) if isinstance(op, Store | Atomic) and op.array.kind == "parameter"
        }
        self._differing: set[Value] = {value for value in program.places if value.name.startswith("_nb_t")}
        before = -1
        while before != (before := len(self._differing)):
            for op in walk(program.body):
                self._differing.update(v for v in defined_by(op) if not self._is_same(op, v))

    def holds(self, value: Value | None) -> bool:
        """Tell whether a value is the same for all threads of a block."""
        if value is None or value.constant is not None:
            return True
        if value in self._indices or value in self._differing:
            return False
        # The number of the thread is no parameter, and nothing defines it.
        return value.name != THREAD

    def is_decided(self, op: Loop) -> bool:
        """Tell whether all threads of a block run through a loop equally often."""
        return all(map(self.holds, (*op.bounds, op.condition, op.leave)))

    def _is_same(self, op: Op, value: Value) -> bool:
        match op:
            case Compute():
                return self._is_block(op) or all(map(self.holds, op.arguments))
            case Shape():
                return True
            case Load():
                return op.array.kind != "local" and op.array not in self._changed and all(map(self.holds, op.index))
            case Meet():
                return op.operation in _COUNTED
            case If():
                merge = next(m for m in op.merges if m.result is value)
                return all(map(self.holds, (op.condition, merge.then, merge.orelse)))
            case Loop():
                if value is op.index:
                    return all(map(self.holds, op.bounds))
                carried = next(c for c in op.carried if value in (c.phi, c.result))
                decided = value is carried.phi or self.is_decided(op)
                return decided and all(map(self.holds, (carried.initial, carried.following)))
            case Custom():
                return all(map(self.holds, op.arguments))
        return False

    def _is_block(self, op: Compute) -> bool:
        """Tell whether this computes the number of the block along an axis: the thread's index by the extent of the block."""
        return op.function.key == "floordiv" and self.is_index_and_extent(*op.arguments)

    def is_index_and_extent(self, index: Value, extent: Value) -> bool:
        """Tell whether two values are a thread index and the extent of the block along its axis."""
        return index in self._indices and extent.name == index.name.replace("_nb_i", "_nb_b")
