"""How compiled code recognises tuples among a launch's arguments, and finds the kernel that takes what they hold: a table."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.kernels.native import table_layout as nb

__all__ = ["SpreadTable"]

_Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class _Spread:
    """A spread as compiled code reads it, with how its tuples are built, and what must live as long.

    These are the classes of the tuples, whose addresses would be given to others, and what answers a launch.
    """

    numbers: _Numbers
    nodes: list[int]
    kinds: tuple[Any, ...]
    answers: tuple[Any, ...]


class SpreadTable:
    """The spreads of a kernel's launches in a place, the last one first.

    Compiled code looks through `numbers` with the GIL held, and holds on to what answers a launch while it runs: what is put
    out of the table may be freed.
    """

    def __init__(self) -> None:
        self.numbers: _Numbers = np.zeros(nb.MAX_SPREADS + 1, np.int64)
        self._spreads: list[_Spread] = []
        # What the table points to must be kept by the same thread that writes it there.
        self._lock = threading.Lock()

    def add(
        self,
        names: Sequence[str],
        arguments: Sequence[Any],
        structures: Mapping[str, Any],
        table: _Numbers,
        answers: Any,
    ) -> None:
        """Let compiled code recognise arguments whose tuples are built like these.

        Parameters
        ----------
        names, arguments : sequence
            The kernel's parameters, and arguments that it was launched with.
        structures : mapping
            The parameters whose tuples are spread.
        table : array of int64
            The specialisations of the kernel that takes what they hold.
        answers : tuple
            The ``self`` of that kernel's launcher.
        """
        nodes, kinds, leaves = list[int](), list[Any](), 0
        for name, argument in zip(names, arguments, strict=True):
            for depth, kind, count in _nodes(argument, is_spread=name in structures):
                # What iterates in a way of its own is left to Python, as records are; so is what is nested deeper than compiled
                # code goes.
                if depth > nb.MAX_DEPTH or (count >= 0 and kind is not None and not _iterates_as_tuple(kind)):
                    return
                nodes += [0 if kind is None else id(kind), count]
                if kind is None:
                    leaves += 1
                else:
                    kinds.append(kind)
        if leaves > nb.MAX_LEAVES:
            return
        with self._lock:
            if not any(s.nodes == nodes and s.answers is answers for s in self._spreads):
                self._put_first(nodes, kinds, len(arguments), leaves, table, answers)

    def _put_first(
        self, nodes: list[int], kinds: Sequence[Any], count: int, leaves: int, table: _Numbers, answers: tuple[Any, ...]
    ) -> None:
        head = {
            nb.SPREAD_COUNT: count,
            nb.SPREAD_LEAVES: leaves,
            nb.SPREAD_VARIANTS: table.ctypes.data,
            nb.SPREAD_ANSWERS: id(answers),
        }
        numbers = np.zeros(nb.SPREAD_NODES // 8 + len(nodes), np.int64)
        for offset, value in head.items():
            numbers[offset // 8] = value
        numbers[nb.SPREAD_NODES // 8 :] = nodes
        others = [s for s in self._spreads if s.nodes != nodes]
        kept = [_Spread(numbers, nodes, tuple(kinds), answers), *others][: nb.MAX_SPREADS]
        self.numbers[:] = [s.numbers.ctypes.data for s in kept] + [0] * (nb.MAX_SPREADS + 1 - len(kept))
        self._spreads = kept


def _iterates_as_tuple(kind: type) -> bool:
    return getattr(kind, "__iter__", None) is tuple.__iter__


def _nodes(value: Any, depth: int = 0, *, is_spread: bool) -> Iterator[tuple[int, Any, int]]:
    """Yield how deep each part of an argument lies, its class and how much it holds if it is a tuple that is spread."""
    if is_spread and value is None:
        yield depth, type(value), nb.NODE_OF_NONE
        return
    if is_spread and isinstance(value, np.void):
        yield depth, type(value), 1
        return
    if not is_spread or not isinstance(value, tuple):
        yield depth, None, 0
        return
    yield depth + 1, type(value), len(value)
    for part in value:
        yield from _nodes(part, depth + 1, is_spread=True)
