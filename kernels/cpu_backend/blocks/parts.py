"""The text of a thread that waits for its block, taken apart at the barriers: what runs once, and what runs for each thread.

Where all threads of a block come to each barrier together, a barrier is a border between two loops over the threads: all run
up to it, one after another, and then all go on. Control around barriers runs once for the block, and what is the same for all
of its threads is computed once; everything between two borders is a *part*, a function of one thread. What a thread knows
longer than one part lies in memory of the block's, by the thread's number, or is computed again where that is little. Parts
keep the order of a thread's own operations. What threads add to the same memory between two barriers they add in the order
of their numbers, here as everywhere. This module reads generated text, in which every name has one type and control flow is a
handful of statements, and writes such text; it compiles nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from numbridge.kernels.cpu_backend.blocks.exchange import ORDER, THERE, WARPS, Exchange, lanes_texts, warps_of
from numbridge.kernels.cpu_backend.blocks.source import CREW, NOW
from numbridge.kernels.cpu_backend.blocks.syntax import AT, AXES, FROM, LIVE, NUMBER, REST, ROW, SIZE, is_of_thread
from numbridge.kernels.native.table_layout import WARP_SIZE

__all__ = ["Around", "Block", "Border", "Kept", "Node", "Once", "Part", "WarpLanes"]


@dataclass(frozen=True)
class Kept:
    """Memory for something of every thread: a name, with the extents of an array of the thread's own."""

    name: str
    extents: tuple[int, ...] = ()

    @property
    def array(self) -> str:
        """Return the name of the array, whose last index is a thread's number."""
        return f"_nb_kept_{self.name}"


@dataclass(eq=False)
class Part:
    """What a thread does between two borders.

    Attributes
    ----------
    number : int
        Its number in the text.
    body : list of ast.stmt
        Its statements.
    in_loop : bool
        Whether a loop around it comes by several times.
    tree : ast.FunctionDef
        The function.
    parameters : list of str
        What it takes; `AT` comes first.
    in_order : bool
        Whether threads must run in the order of their numbers, one after another.
    side_by_side : bool
        Whether several threads may run at once, and find what they read and write side by side.
    does_something : bool
        Whether anybody learns of it.
    in_turns : bool
        Whether threads must run in the order of `ORDER`.
    """

    number: int
    body: list[ast.stmt]
    in_loop: bool
    tree: ast.FunctionDef = field(init=False)
    parameters: list[str] = field(init=False)
    in_order: bool = False
    side_by_side: bool = False
    does_something: bool = True
    in_turns: bool = False

    @property
    def name(self) -> str:
        """Return the function's name."""
        return f"_nb_part_{self.number}"


@dataclass(frozen=True, eq=False)
class Once:
    """A statement that runs once for the block; a line of text, where it has no others in it."""

    text: str


@dataclass(frozen=True, eq=False)
class Around:
    """Control that runs once for the block."""

    head: str
    body: list[Node]
    orelse: list[Node] = field(default_factory=list)
    repeats: bool = False


class Border:
    """Where all threads wait for each other."""


Node = Part | Once | Around | Border


@dataclass(eq=False)
class WarpLanes:
    """What lanes of the warps of a block tell each other.

    Attributes
    ----------
    exchanges : dict of str to Exchange
        The operations, by the names of their functions.
    arrays : dict of str to str
        Arrays of all threads, by their numbers, and of all warps; with their types.
    """

    exchanges: dict[str, Exchange] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """Tell whether there is any operation of warps."""
        return bool(self.arrays)

    def lines(self) -> Iterator[str]:
        """Yield the lines by which a block begins."""
        if not self.is_used:
            return
        yield f"{WARPS} = ({SIZE} + {WARP_SIZE - 1}) // {WARP_SIZE}"
        for k, name in enumerate(self.arrays):
            yield f"{name} = _nb_tell_{k}({CREW}, {WARPS} * {WARP_SIZE})"
        sizes = ", ".join(f"_nb_{letter}{k}" for letter in "be" for k in range(AXES))
        yield f"{THERE}({warps_of(None)}, {WARPS}, {LIVE}, {sizes})"

    def functions(self, axis: int, calls: str) -> Iterator[str]:
        """Yield the source of the functions that a text calls."""
        if self.is_used:
            texts = (*lanes_texts(axis, axes_around(axis)), *(exchange.text for exchange in self.exchanges.values()))
            yield from (text for text in texts if f"{text.split('def ')[1].split('(')[0]}(" in calls)


@dataclass(eq=False)
class Block:
    """A text that has been taken apart.

    Attributes
    ----------
    axis : int
        Along which axis of the block parts go through it.
    parts : list of Part
        The functions of one thread.
    kept : list of Kept
        What lies in memory of the block's for every thread.
    rooms : list of str
        Names of the addresses of memory for the stacks of all threads.
    lanes : Lanes
        What lanes of warps tell each other.
    nonnegative : set of str
        Integers that are never negative.
    """

    name: str
    hidden: list[str]
    names: list[str]
    rank: int
    axis: int
    nodes: list[Node]
    parts: list[Part]
    kept: list[Kept]
    rooms: list[str]
    lanes: WarpLanes
    nonnegative: set[str]

    @property
    def parameters(self) -> list[str]:
        """Return what the function for a whole block takes."""
        sizes = [f"_nb_{letter}{k}" for letter in "kbe" for k in range(AXES)]
        own = [name for name in self.hidden if name not in (CREW, *sizes) and not is_of_thread(name)]
        return [CREW, *sizes, NOW, *own, *self.names]

    def text(self, widths: Mapping[str, int], lanes: str) -> str:
        """Return the source of the parts and of the function for a whole block.

        `widths` says which parts have another function, for so many threads at once, whose name begins with `lanes`.
        """
        parts = [f"@_nb_device\n{ast.unparse(part.tree)}\n\n\n" for part in self.parts if part.does_something]
        lines = [
            f"{LIVE} = _nb_e0 * _nb_e1 * _nb_e2",
            f"{SIZE} = _nb_b0 * _nb_b1 * _nb_b2",
            *(f"{FROM}{k} = _nb_k{k} * _nb_b{k}" for k in range(min(self.rank, AXES))),
            *(f"{kept.array} = _nb_keep_{k}({CREW}, {SIZE})" for k, kept in enumerate(self.kept)),
            *(f"{room} = _nb_crew_stack_room_{k}({CREW}, {SIZE})" for k, room in enumerate(self.rooms)),
            *self.lanes.lines(),
            *self._lines(self.nodes, widths, lanes),
            "pass",
        ]
        head = f"def {self.name}({', '.join(self.parameters)}):"
        parts += self.lanes.functions(self.axis, "\n".join(lines))
        return "".join(parts) + "\n".join(["@_nb_device", head, *(f"    {line}" for line in lines), ""])

    def _lines(self, nodes: Sequence[Node], widths: Mapping[str, int], lanes: str) -> Iterator[str]:
        for node in nodes:
            match node:
                case Part() if node.does_something:
                    yield from self._calls(node, widths.get(node.name), lanes)
                case Once():
                    yield from node.text.splitlines()
                case Around():
                    for head, body in ((node.head, node.body), ("else:", node.orelse)):
                        if body or head != "else:":
                            yield head
                            yield from (f"    {line}" for line in self._lines(body, widths, lanes))
                            yield "    pass"

    def _calls(self, part: Part, width: int | None, lanes: str) -> Iterator[str]:
        """Yield the loops over the threads of a block in which a part runs."""
        axis = 0 if part.in_order else self.axis
        outer, n = axes_around(axis), part.number
        at = {k: f"_nb_at{k}_{n}" for k in range(AXES)}
        if part.in_turns:
            turn, thread = f"_nb_turn_{n}", f"{ORDER}[_nb_turn_{n}]"
            yield f"for {turn} in range({LIVE}):"
            yield f"    {at[0]} = {thread} % _nb_b0"
            yield f"    {at[1]} = {thread} // _nb_b0 % _nb_b1"
            yield f"    {at[2]} = {thread} // _nb_b0 // _nb_b1"
            yield f"    {part.name}({', '.join(self._given(part, at, at[self.axis]))})"
            return
        yield f"for {at[outer[0]]} in range(_nb_e{outer[0]}):"
        yield f"    for {at[outer[1]]} in range(_nb_e{outer[1]}):"
        inner = "        "
        if width is None:
            yield f"{inner}for {at[axis]} in range(_nb_e{axis}):"
            yield f"{inner}    {part.name}({', '.join(self._given(part, at, at[self.axis]))})"
            return
        first, together = f"_nb_whole_{n}", f"_nb_lane_{n}"
        yield f"{inner}{first} = _nb_e{axis} // {width} * {width}"
        yield f"{inner}for {together} in range(0, {first}, {width}):"
        yield f"{inner}    {lanes}{part.name}({', '.join(self._given(part, at, together))})"
        rest = f"{REST}_{n}"
        yield f"{inner}for {rest} in range({first}, _nb_e{axis}):"
        yield f"{inner}    {part.name}({', '.join(self._given(part, at, rest))})"

    def _given(self, part: Part, at: Mapping[int, str], along: str) -> Iterator[str]:
        """Yield the arguments of a part for the thread at a place; only along the axis is it another in the function."""
        outer, inner = axes_around(self.axis)
        known = {f"_nb_t{k}": at[k] for k in (outer, inner)}
        known |= {f"_nb_i{k}": f"{FROM}{k} + {at[k]}" for k in (outer, inner)}
        known[ROW] = f"({at[outer]} * _nb_e{inner} + {at[inner]}) * _nb_e{self.axis}"
        first = {**at, self.axis: "0"}
        known[NUMBER] = f"{first[0]} + _nb_b0 * ({first[1]} + _nb_b1 * {first[2]})"
        known[AT] = along
        return (known.get(name, name) for name in part.parameters)


def axes_around(axis: int) -> tuple[int, int]:
    """Return the axes of the loops around one along an axis, the outermost first."""
    return ((2, 1), (2, 0), (1, 0))[axis]
