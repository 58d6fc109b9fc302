"""What is refused before a derivative is made, although every operation has one: threads that race.

A kernel whose threads read what other threads write gives what the order of the threads makes of it, and has no
derivative. That can be seen where the same threads write at their own index and read next to it; what cannot be seen,
such as indices from memory that collide, is the kernel's author's to know. Syntax is refused by `build`, and operations
by `activity`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numbridge.kernels.adjoint.ir import (
    Compute,
    If,
    Load,
    Loop,
    Op,
    Program,
    Region,
    Store,
    Value,
    defined_by,
    operands,
    walk,
)
from numbridge.kernels.errors import KernelError, KernelUnsupportedError
from numbridge.kernels.language.source import FunctionSource

__all__ = ["check_races", "check_waits", "offset"]

_RANGES = ("lt", "le", "gt", "ge")


def check_waits(sources: Sequence[FunctionSource]) -> None:
    """Refuse a program whose threads wait for each other in loops of their own: a derivative would not know for whom.

    Raises
    ------
    KernelUnsupportedError
        If there is such a wait; the message shows where.
    """
    for source in sources:
        for node in source.nodes:
            if source.asks_memory(node):
                text = (
                    "a thread asks here what another has done, in an order that has no gradient; use cuda.syncthreads()"
                )
                raise source.error(node, text, KernelUnsupportedError)


def check_races(program: Program) -> None:
    """Refuse a kernel whose threads certainly read elements that other threads write.

    Raises
    ------
    KernelUnsupportedError
        If there is such a read; the message shows where.
    """
    definers = {value: op for op in walk(program.body) for value in defined_by(op)}
    threads = program.indices
    placed = list(_placed(program.body, ()))
    stores = [(op, guards) for op, guards in placed if isinstance(op, Store)]
    for load, guards in placed:
        if not isinstance(load, Load):
            continue
        for store, others in stores:
            together = store.array is load.array and {*others} <= {*guards} and _are_ranges(guards, definers, threads)
            if together and any(_apart(store.index, load.index, thread, definers) for thread in threads):
                raise _race(load)


def _race(load: Load) -> KernelError:
    source, node = load.place
    error: KernelError = source.error(
        node,
        f"a thread reads an element of {load.array.called!r} here that another thread writes, so the result depends on which "
        "comes first and has no gradient; read from one array and write to another",
        KernelUnsupportedError,
    )
    return error


Guards = tuple[tuple[Value, bool], ...]


def _placed(region: Region, guards: Guards) -> Iterator[tuple[Op, Guards]]:
    """Yield operations outside of loops, with the conditions under which they run."""
    for op in region:
        yield op, guards
        if isinstance(op, If):
            yield from _placed(op.then, (*guards, (op.condition, True)))
            yield from _placed(op.orelse, (*guards, (op.condition, False)))


def _are_ranges(guards: Guards, definers: dict[Value, Op], threads: list[Value]) -> bool:
    """Tell whether conditions only bound the thread indices, so that neighbours meet them together."""
    return all(_is_range(condition, definers, threads) for condition, _ in guards)


def _is_range(value: Value, definers: dict[Value, Op], threads: list[Value]) -> bool:
    if value.constant is not None:
        return True
    op = definers.get(value)
    if isinstance(op, Compute):
        sides = op.arguments
        return op.function.key in _RANGES and all(_is_plain(side, definers, threads) for side in sides)
    if isinstance(op, If):
        merge = next(m for m in op.merges if m.result is value)
        return all(_is_range(part, definers, threads) for part in (op.condition, merge.then, merge.orelse))
    return False


def _is_plain(value: Value, definers: dict[Value, Op], threads: list[Value]) -> bool:
    """Tell whether a value is a thread index, perhaps moved by a constant, or the same for all threads."""
    if any(offset(value, thread, definers) is not None for thread in threads):
        return True
    op = definers.get(value)
    if op is None:
        return value not in threads
    if isinstance(op, Loop | If | Load):
        return False
    return all(_is_plain(part, definers, threads) and part not in threads for part in operands(op))


def offset(value: Value, thread: Value, definers: dict[Value, Op]) -> int | None:
    """Return how far an index is from a thread index, or None if it is no constant."""
    if value is thread:
        return 0
    op = definers.get(value)
    if not isinstance(op, Compute) or op.function.key not in ("add", "sub"):
        return None
    left, right = op.arguments
    if op.function.key == "add" and right is thread:
        left, right = right, left
    if left is not thread or type(right.constant) is not int:
        return None
    return int(right.constant if op.function.key == "add" else -right.constant)


def _apart(stored: list[Value], loaded: list[Value], thread: Value, definers: dict[Value, Op]) -> bool:
    """Tell whether two indices of an array are moved against each other along a thread index, and are equal else."""
    moved = False
    for a, b in zip(stored, loaded, strict=True):
        if a is b:
            continue
        here, there = offset(a, thread, definers), offset(b, thread, definers)
        if here is None or there is None:
            return False
        moved = moved or here != there
    return moved
