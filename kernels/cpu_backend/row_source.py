"""The loops over a row of threads, as source: for those that do anything, one by one or several at once.

A row is what lies along the last dimension of a launch's geometry. What comes around it is written by `range_source`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from numbridge.kernels.cpu_backend.active_range import ActiveRange, Stride
from numbridge.kernels.cpu_backend.interior import ROW, Interior, remainder_text
from numbridge.kernels.cpu_backend.lanes import FEW

__all__ = ["LANES", "Lane", "Row", "Threads", "Widths", "across", "lane_name", "turns"]

LANES = "_nb_lanes_"
_SHORT_ROW = 16


class Lane(NamedTuple):
    """How many threads a function runs at once, and how many bytes it is given for that; None if it takes no memory."""

    width: int
    memory: int | None


Widths = Mapping[str, Sequence[Lane]]
"""What stands before a body's name in that of another which runs several threads at once."""


def lane_name(entry: str, takes: Lane) -> str:
    """Return the name of the function that runs a body for several threads at once."""
    return f"{LANES}{takes.width}{'' if takes.memory is None else 'm'}_{entry}"


def across(entry: str) -> str:
    """Return the name of a body that divides for a thread's block and place: several threads at once may be of several blocks."""
    return f"_nb_across_{entry}"


@dataclass(frozen=True)
class Threads:
    """How threads are numbered and added up: the rank, the hidden parameters, how many sums, who runs in lanes, and who at all.

    Where they are noted, each is told to `native.accesses` before it runs. A body that is analysed by Numba has arrays with
    numbers of elements, which promises are given in extents, and asks whether an index is negative.
    """

    rank: int
    hidden: Sequence[str]
    sums: int
    lanes: Widths
    active: ActiveRange
    is_analysed: bool
    interior: Interior | None
    are_noted: bool = False


class Row:
    """Writes the loops over parts of a row for a body, which takes `names` after its hidden parameters; see `range_source`.

    Its `strides` are the loops that have been taken out of the body whose trips go along a row, within a block.
    """

    def __init__(self, entry: str, names: Sequence[str], threads: Threads, ahead: Sequence[str]) -> None:
        self._entry, self._names, self._threads, self._ahead = entry, names, threads, ahead
        self._rank = threads.rank
        self._block, self._size = f"_nb_k{self._rank - 1}", f"_nb_b{self._rank - 1}"
        strides = threads.active.strides
        self.strides = [stride for stride in strides if stride.in_block and stride.axis == self._rank - 1]

    def run(self, first: str, last: str) -> list[str]:
        """Return the lines that run the threads of a part of a row, block by block if they are told theirs."""
        if self._block not in self._threads.hidden:
            return self._run_active(first, last)
        begin, end, turn = "_nb_begin", "_nb_block_end", f"_nb_turn{self._rank - 1}"
        moved = f" + {turn}" if self.strides else ""
        lines = self._run_active(begin + moved, end + moved)
        for stride in self.strides:
            lines = turns(turn, stride, lines)
        lines = [
            f"{begin} = {first}",
            f"_nb_row_end = {last}",
            f"{self._block} = {begin} // {self._size}",
            f"while {begin} < _nb_row_end:",
            f"    {end} = _nb_min({self._block} * {self._size} + {self._size}, _nb_row_end)",
            *(f"    {line}" for line in lines),
            f"    {begin} = {end}",
            f"    {self._block} += 1",
        ]
        if self._threads.active.strides or across(self._entry) not in self._threads.lanes:
            return lines  # what ends a loop that has been taken out is asked for each block
        return [
            f"if {self._size} < {FEW}:",
            *(f"    {line}" for line in self._run_all(first, last, divides=True)),
            "else:",
            *(f"    {line}" for line in lines),
        ]

    def _of_thread(self, last: str) -> dict[str, str]:
        """Return what hidden parameters are that differ within a row."""
        return {f"_nb_i{self._rank - 1}": last, f"_nb_t{self._rank - 1}": f"{last} - {self._block} * {self._size}"}

    def _call(
        self, last: str, entry: str = "", result: str = "_nb_result", more: Sequence[str] = (), *, divides: bool = False
    ) -> list[str]:
        own = self._of_thread(last)
        if divides:
            own |= {self._block: f"{last} // {self._size}", f"_nb_t{self._rank - 1}": f"{last} % {self._size}"}
        passed = [
            f"_nb_nonnegative({own.get(name, name)})" if name[4] in "ikt" else name for name in self._threads.hidden
        ]
        text = f"{entry or self._entry}({', '.join([*passed, *self._names, *more])})"
        added = [f"_nb_sum{k} = _nb_accumulate(_nb_sum{k}, {result}[{k}])" for k in range(self._threads.sums)]
        call = [f"{result} = {text}", *added] if self._threads.sums else [text]
        return ["_nb_next_thread()", *call] if self._threads.are_noted else call

    def _run_active(self, first: str, last: str) -> list[str]:
        """Return the lines that run those threads of a part of a row that have anything to do."""
        active, within = self._threads.active, self._run_all if self._threads.interior is None else self._run_apart
        lines = []
        if active.starts or not first.isidentifier():
            lines.append(f"_nb_start = _nb_nonnegative({_extreme('_nb_max', [first, *active.starts])})")
            first = "_nb_start"
        if active.stops:
            lines.append(f"_nb_stop = {_extreme('_nb_min', [last, *active.stops])}")
            last = "_nb_stop"
        lines += within(first, last)
        if not active.rows:
            return lines
        return [f"if {' and '.join(active.rows)}:", *(f"    {line}" for line in lines)]

    def _promised(self) -> list[str]:
        """Return the lines that promise what holds for a thread."""
        active = self._threads.active
        sizes = [f"{size} == {extents}" for size, extents in active.sizes] if self._threads.is_analysed else []
        promises = [*active.promises]
        for name, text in self._of_thread("_nb_k").items():
            promises = [promise.replace(name, f"({text})") for promise in promises]
        return [f"_nb_assume({promise})" for promise in (*sizes, *promises)]

    def _run_apart(self, first: str, last: str) -> list[str]:
        """Return the lines that run one body inside of a row, and the other one on both sides of that."""
        interior = self._threads.interior
        assert interior is not None
        if interior.width:
            return self._run_split(first, last, interior)
        # In a short row there is more to do around the loops than in them.
        rows = [f"{last} - {first} >= {_SHORT_ROW}", *interior.rows]
        inside = [*self._promised(), *self._call("_nb_k", interior.entry)]
        return [
            f"if {' and '.join(rows)}:",
            *(f"    {line}" for line in self._between(first, last, interior.starts, interior.stops, inside)),
            "else:",
            *(f"    {line}" for line in self._run_all(first, last)),
        ]

    def _run_split(self, first: str, last: str, interior: Interior) -> list[str]:
        """Return the lines that run an only index row by row, of what it is split into."""
        width, base = interior.width, "_nb_column0"
        promises = [f"{ROW} >= 0", f"{remainder_text('_nb_k', width)} >= 0"]
        told = [*self._promised(), *(f"_nb_assume({promise})" for promise in promises)]
        inside = [*told, *self._call("_nb_k", interior.entry, more=[name for name, _ in interior.told])]
        lines = [
            f"{ROW} = _nb_next // ({width})",
            f"{base} = {ROW} * ({width})",
            *(f"{name} = {text}" for name, text in interior.told if name != ROW),
            f"_nb_until = _nb_min({base} + {width}, {last})",
        ]
        if interior.stops:
            starts, stops = ([f"{base} + {place}" for place in places] for places in (interior.starts, interior.stops))
            lines += self._between("_nb_next", "_nb_until", starts, stops, inside)
        else:
            lines += self._each("_nb_next", "_nb_until", inside)
        return [
            f"if {' and '.join(f'{factor} > 0' for factor in (width, *interior.factors))}:",
            f"    _nb_next = {first}",
            f"    while _nb_next < {last}:",
            *(f"        {line}" for line in lines),
            "        _nb_next = _nb_until",
            "else:",
            *(f"    {line}" for line in self._run_all(first, last)),
        ]

    def _between(
        self, first: str, last: str, starts: Sequence[str], stops: Sequence[str], inside: Sequence[str]
    ) -> list[str]:
        """Return the lines that run `inside` from the last of some starts to the first of some stops, and the body elsewhere."""
        return [
            f"_nb_inner = _nb_min({_extreme('_nb_max', [first, *starts])}, {last})",
            f"_nb_outer = _nb_max({_extreme('_nb_min', [last, *stops])}, _nb_inner)",
            "for _nb_side in range(2):",
            f"    _nb_from = _nb_outer if _nb_side else {first}",
            f"    _nb_to = {last} if _nb_side else _nb_inner",
            *(f"    {line}" for line in self._run_all("_nb_from", "_nb_to")),
            *self._each("_nb_inner", "_nb_outer", inside),
        ]

    def _each(self, first: str, last: str, body: Sequence[str]) -> list[str]:
        """Return the lines that run a thread's lines for all of a row."""
        if not self._threads.is_analysed:
            return [f"for _nb_k in range({first}, {last}):", *(f"    {line}" for line in body)]
        # An index that counts the trips is never negative if the first one is not: so LLVM takes what is promised of each, and
        # forgets it before it comes to the body. It is made a vector of as a variable of its own.
        lines = [f"_nb_k = {first}", f"for _nb_count in range({last} - {first}):", *(f"    {line}" for line in body)]
        return [*lines, "    _nb_k += 1"]

    def _run_all(self, first: str, last: str, *, divides: bool = False) -> list[str]:
        own = ", ".join([*(f"_nb_i{k}" for k in range(self._rank - 1)), "_nb_k"])
        asked = [f"_nb_prefetch({name}, ({own},))" for name in self._ahead]
        # What is promised of a thread goes by its block.
        one = [*asked, *([] if divides else self._promised()), *self._call("_nb_k", divides=divides)]
        lines, begin = [], first
        together = across(self._entry) if divides else self._entry
        for takes in self._threads.lanes.get(together, ()):
            width, memory = takes
            more = [] if memory is None else ["_nb_memory_of_lanes" if memory else "0"]
            end = f"_nb_whole{width}{'' if memory is None else 'm'}"
            count = f"_nb_max({last} - {begin}, 0) // {width} * {width}"
            lines += [
                f"{end} = {begin} + {f'_nb_has_memory * ({count})' if memory else count}",
                f"for _nb_lane in range({begin}, {end}, {width}):",
                *(
                    f"    {line}"
                    for line in self._call("_nb_lane", lane_name(together, takes), "_nb_results", more, divides=divides)
                ),
            ]
            begin = end
        return [*lines, *self._each(begin, last, one)]


def _extreme(name: str, parts: Sequence[str]) -> str:
    return f"{name}({', '.join(parts)})" if len(parts) > 1 else parts[0]


def turns(name: str, stride: Stride, lines: Sequence[str]) -> list[str]:
    """Return the lines of a loop that has been taken out, around its trip."""
    head = [f"{name} = {stride.start}", f"while {name} < {stride.stop}:"]
    return [*head, *(f"    {line}" for line in lines), f"    {name} += {stride.step}"]
