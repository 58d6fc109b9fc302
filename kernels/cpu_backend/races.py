"""What a kernel that checks for data races on the CPU has found: compiled code writes it down, and this says it.

Such a launch runs its threads one after the other, in one worker. Each load, store and atomic operation on an array or on shared
memory is noted with its thread and what that has waited for (`native.accesses`), so that what two threads do to one element is a
race where nothing orders them, whether or not it goes wrong this time. What threads of a block do on two sides of a barrier is
ordered, and what lanes do on two sides of an operation of their warp.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from numbridge.kernels.errors import DataRaceError, KernelError, NumbridgeError
from numbridge.kernels.machine import compile_functions
from numbridge.kernels.native import access_layout as at
from numbridge.kernels.object_cache import Compiled, add_symbol, compiled_or_stored, digest, load, machine_fingerprint

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel

__all__ = ["Races", "load_accesses", "place_of", "raced", "remember"]


@dataclass(frozen=True)
class Races:
    """How a kernel is checked: how many thread indices it has, and whether its atomic operations order what threads do."""

    rank: int
    by_turns: bool


STATE = np.zeros(at.CHECK_WORDS, np.int64)
# The programs of this process that check for races: the kernel's name, its parameters, and where lines of their text come from
_programs: dict[int, tuple[str, tuple[str, ...], Callable[[int], str | None]]] = {}


def _compile() -> Compiled:
    from numbridge.kernels.native import accesses

    return compile_functions(
        {symbol: (getattr(accesses, name), kind) for symbol, (name, kind) in accesses.EXPORTS.items()}
    )


@functools.cache
def load_accesses() -> None:
    """Load the functions that note what threads do; once per process."""
    add_symbol("numbridge_races", STATE.ctypes.data)
    compiled, _ = compiled_or_stored(digest("accesses", machine_fingerprint()), _compile)
    load(compiled)
    if hasattr(os, "register_at_fork"):
        # What another thread was checking does not go on in the child, where nobody would let the next check begin.
        os.register_at_fork(after_in_child=_let_begin)


def _let_begin() -> None:
    STATE[at.CHECK_LOCK] = 0


def place_of(symbol: str) -> int:
    """Return the number of a program, which its compiled code has, too."""
    return int(digest(symbol)[:15], 16)


def remember(symbol: str, name: str, parameters: Iterable[str], origin: Callable[[int], str | None]) -> None:
    """Keep what tells of a race in a program: the kernel's name, what its parameters are called, and where lines come from."""
    _programs[place_of(symbol)] = name, tuple(parameters), origin


def raced(kernels: Iterable[Kernel]) -> NumbridgeError | None:
    """Return the error of the one of some kernels in which threads have raced, or None if there is none."""
    names = {kernel.name for kernel in kernels}
    for told in range(at.CHECK_TOLD, at.CHECK_WORDS, at.RACE_WORDS):
        words = dict(enumerate(STATE[told : told + at.RACE_WORDS].tolist(), at.RACE_PROGRAM))
        known = _programs.get(words[at.RACE_PROGRAM])
        if known is not None and known[0] in names:
            STATE[told] = 0
            return _error(words, *known)
    return None


def _error(
    words: dict[int, int], name: str, parameters: tuple[str, ...], origin: Callable[[int], str | None]
) -> NumbridgeError:
    if lacking := words[at.RACE_LACKING]:
        return KernelError(
            f"kernel {name!r}: there is no memory for {lacking} bytes, in which the check for data races notes what threads do "
            "to each element; check a launch over fewer of them"
        )
    sides = [
        (_thread(words, words[who]), words[did], origin(words[line]))
        for who, did, line in (
            (at.RACE_FIRST, at.RACE_FIRST_DID, at.RACE_FIRST_LINE),
            (at.RACE_SECOND, at.RACE_SECOND_DID, at.RACE_SECOND_LINE),
        )
    ]
    (first, did_first, at_first), (second, did_second, at_second) = sides
    element, does = _element(words, parameters), {did_first, did_second}
    what = f"thread {first} {_DOES[did_first].format(element)}, and thread {second} {_DOES[did_second].format('it')}"
    if words[at.RACE_IS_UPDATE]:
        what = f"threads {first} and {second} change {element}, each as it finds it"
    elif does <= {at.CHANGES, at.STORES_THE_SAME}:
        what = f"threads {first} and {second} store different values into {element}"
    places = "".join(f"\n  {place}" for place in dict.fromkeys((at_first, at_second)) if place is not None)
    return DataRaceError(
        f"kernel {name!r}: {what}; nothing orders them, so that the result depends on who comes first. {_advice(words)}; the "
        f"arrays that the kernel writes may be partly written{places}"
    )


_DOES = {
    at.READS: "reads {}",
    at.CHANGES: "stores into {}",
    at.STORES_THE_SAME: "stores into {}",
    at.CHANGES_ATOMICALLY: "changes {} atomically",
}


def _advice(words: dict[int, int]) -> str:
    size, does = words[at.RACE_BLOCK_SIZE], {words[at.RACE_FIRST_DID], words[at.RACE_SECOND_DID]}
    if words[at.RACE_IS_UPDATE] or does <= {at.CHANGES, at.STORES_THE_SAME}:
        return "Let one thread do it, or use nb.atomic_add or its like"
    if size and words[at.RACE_FIRST] // size == words[at.RACE_SECOND] // size:
        return "Put a barrier between the two, such as cuda.syncthreads()"
    if at.CHANGES_ATOMICALLY in does and at.READS not in does:
        return "Let every thread change it atomically"
    return "Let one launch write and another one read, or read from a copy"


def _thread(words: dict[int, int], number: int) -> str:
    """Return what messages call a thread: its index, or its place in its block."""
    size, rank = words[at.RACE_BLOCK_SIZE], words[at.RACE_RANK]
    if size:
        return f"{number % size} of block {number // size}"
    dims = [words[at.RACE_DIMS + k] for k in range(rank)]
    if rank < 2 or 0 in dims:
        return str(number)
    return str(tuple(int(index) for index in np.unravel_index(number, dims)))


def _element(words: dict[int, int], parameters: tuple[str, ...]) -> str:
    """Return what messages call an element: an array's name with its index, and another that lies there; or shared memory."""
    if words[at.RACE_ROW + at.ROW_PARAMETER] == at.IN_SHARED_MEMORY:
        return "one element of shared memory"
    rank, rest, also = words[at.RACE_ROW + at.ROW_NDIM], words[at.RACE_OFFSET], words[at.RACE_ALSO]
    name = parameters[words[at.RACE_ROW + at.ROW_PARAMETER]]
    shared = "" if also == at.IN_SHARED_MEMORY else f", which overlaps {parameters[also]}"
    if rank > at.ROW_MOST_DIMS:
        return f"one element of {name}{shared}"
    axes = [
        (abs(words[at.RACE_ROW + at.ROW_STRIDES + k]), words[at.RACE_ROW + at.ROW_SHAPE + k], k) for k in range(rank)
    ]
    index = [0] * rank
    # Along each axis, those with the longest strides first; where one is negative, the first byte is that of the last index.
    for stride, extent, axis in sorted(axes, reverse=True):
        count = min(rest // stride, extent - 1) if stride else 0
        rest -= count * stride
        index[axis] = count if words[at.RACE_ROW + at.ROW_STRIDES + axis] >= 0 else extent - 1 - count
    return f"{name}[{', '.join(map(str, index)) or '()'}]{shared}"
