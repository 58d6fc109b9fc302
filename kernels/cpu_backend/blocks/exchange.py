"""What lanes of a warp tell each other where a block runs in loops, as source: it comes between two parts.

Each thread tells a number, or whether something holds, in an array of the block's, by its number; then functions go through
the warps, and each thread finds what it got in another such array. A warp's lanes are bits of a number, as in a mask: those that
come to an operation, and those that run. Results are those of `coroutines`. This module compiles nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from numbridge.kernels.native import table_layout as nb

__all__ = [
    "COME",
    "GUARDS",
    "OF_WARPS",
    "ORDER",
    "PART",
    "THERE",
    "TURNS",
    "WARPS",
    "WHICH",
    "Exchange",
    "lanes_texts",
    "warps_of",
]

WARPS = "_nb_warp_count"
"""How many warps a block may have."""
WHICH = "_nb_which"
"""The array in which threads say which lane they name, where these are several."""
THERE, COME, PART = "_nb_lanes_there", "_nb_lanes_come", "_nb_lanes_part"
"""The functions that find a block's lanes, those for which something holds, and lanes that wait in vain for others."""
TURNS = "_nb_lanes_turns"
"""The function that finds in which order threads go on of which some have waited for lanes, and others have not."""
ORDER = "_nb_order"
"""The array of that order."""
_TOLD, _GOT = "_nb_told_", "_nb_got_"
OF_WARPS = ("_nb_warps", "_nb_running")
"""What functions call arrays of the lanes of warps."""
GUARDS = "_nb_guards"
"""What they call that of whether something holds for a thread."""
# The other parameters of functions have names that no text has.
_COUNT, _MASK = "_nb_lanes_count", "_nb_lanes_mask"
_SIZE, _FULL = nb.WARP_SIZE, (1 << nb.WARP_SIZE) - 1
# Which lane's number a lane takes, of those of a warp; its own, if that is beyond the warp.
_SOURCES = {
    "shfl_sync": "which",
    "shfl_up_sync": "lane - which if lane >= which else lane",
    "shfl_down_sync": f"lane + which if lane + which < {_SIZE} else lane",
    "shfl_xor_sync": "lane ^ which",
}
# The same where all lanes of a warp come and name the same lane: what is read side by side, and what is kept.
_MOVES = {
    "shfl_sync": f"""
        for lane in range({_SIZE}):
            here = first + lane
            {{got}}[here] = {{told}}[first + _nb_iwhich]
        """,
    "shfl_up_sync": f"""
        for lane in range({_SIZE} - _nb_iwhich):
            here = first + lane
            there = here + _nb_iwhich
            {{got}}[there] = {{told}}[here]
        for kept in range(_nb_iwhich):
            own = first + kept
            {{got}}[own] = {{told}}[own]
        """,
    "shfl_down_sync": f"""
        for lane in range({_SIZE} - _nb_iwhich):
            here = first + lane
            there = here + _nb_iwhich
            {{got}}[here] = {{told}}[there]
        for kept in range(_nb_iwhich):
            own = _nb_nonnegative(first + {_SIZE} - _nb_iwhich + kept)
            {{got}}[own] = {{told}}[own]
        """,
    "shfl_xor_sync": f"""
        for lane in range({_SIZE}):
            here = first + lane
            {{got}}[here] = {{told}}[_nb_nonnegative(first + (lane ^ _nb_iwhich))]
        """,
}
_VOTES = {
    "ballot_sync": "holds & group",
    "all_sync": "holds & group == group",
    "any_sync": "holds & group != 0",
    "eq_sync": "holds & group == 0 or holds & group == group",
}


@dataclass(frozen=True)
class Exchange:
    """An operation of warps.

    Attributes
    ----------
    operation : str
        What numba.cuda calls it.
    told, got : str
        The types of what a lane tells, and of what it gets.
    each : bool
        Whether each lane names a lane of its own.
    """

    operation: str
    told: str
    got: str
    each: bool = False

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return f"_nb_lanes_{self.operation}_{self.told}{'_each' if self.each else ''}"

    @property
    def arrays(self) -> dict[str, str]:
        """Return the arrays of all threads that it needs, with their types: of what they tell, and of what they get."""
        which = {WHICH: "int64"} if self.each else {}
        return {f"{_TOLD}{self.told}": self.told, f"{_GOT}{self.got}": self.got, **which}

    def call(self, warps: str, mask: str, which: str | None) -> str:
        """Return the statement that lets the lanes of all warps, of which some have come, learn what others told."""
        given = [warps, *self.arrays, WARPS, mask]
        return f"{self.name}({', '.join(given if which is None or self.each else [*given, which])})"

    @property
    def text(self) -> str:
        """Return the source of the function."""
        told, got = list(self.arrays)[:2]
        given = [OF_WARPS[0], *self.arrays, _COUNT, _MASK]
        if self.operation in _VOTES:
            return _function(self.name, given, _votes(self.operation, told, got))
        which = "" if self.each else "_nb_iwhich"
        inner = _shuffle(self.operation, told, got, which or f"{WHICH}[at]")
        if not self.each:
            moves = textwrap.dedent(_MOVES[self.operation].format(told=told, got=got)).strip()
            inner = f"if come & {_MASK} == {_FULL}:\n{_in(moves)}\nelse:\n{_in(inner)}"
        return _function(self.name, [*given, which] if which else given, inner)


def _in(text: str) -> str:
    return textwrap.indent(text, "    ")


def _function(name: str, parameters: list[str], inner: str) -> str:
    """Return a function that goes through the warps of which lanes have come."""
    body = f"come = {OF_WARPS[0]}[warp]\nif come != 0:\n    first = warp * {_SIZE}\n{_in(inner)}"
    return (
        f"@_nb_device\ndef {name}({', '.join(parameters)}):\n    for warp in range({_COUNT}):\n{_in(_in(body))}\n\n\n"
    )


def _shuffle(operation: str, told: str, got: str, which: str) -> str:
    return "\n".join(
        [
            f"for _nb_rest_lane in range({_SIZE}):",
            "    lane = _nb_rest_lane",
            "    if come >> lane & 1 != 0:",
            "        at = first + lane",
            f"        which = {which}",
            f"        other = {_SOURCES[operation]}",
            # A lane takes its own number from one that has not come with it.
            f"        group = come & {_MASK} | 1 << lane",
            "        other = other if group >> other & 1 != 0 else lane",
            f"        {got}[at] = {told}[_nb_nonnegative(first + other)]",
        ]
    )


def _votes(operation: str, told: str, got: str) -> str:
    return "\n".join(
        [
            "holds = 0",
            f"for lane in range({_SIZE}):",
            "    at = first + lane",
            f"    holds = holds | (1 << lane if {told}[at] else 0)",
            "holds = holds & come",
            f"for one in range({_SIZE}):",
            "    own = first + one",
            f"    group = come & {_MASK} | 1 << one",
            f"    {got}[own] = {_VOTES[operation]}",
        ]
    )


def warps_of(guard: str | None) -> str:
    """Return the name of the array of those lanes of each warp for which something holds, or that run."""
    return f"_nb_warps_{guard or 'all'}"


def lanes_texts(axis: int, around: tuple[int, int]) -> Iterator[str]:
    """Yield the source of each of the functions that find lanes.

    Parameters
    ----------
    axis : int
        Along which axis of the block threads keep what they know side by side.
    around : tuple of int
        The other axes, the outermost first.
    """
    outer, inner = around
    yield f"""@_nb_device
def {THERE}({OF_WARPS[0]}, {_COUNT}, _nb_lanes_live, _nb_b0, _nb_b1, _nb_b2, _nb_e0, _nb_e1, _nb_e2):
    size = _nb_b0 * _nb_b1 * _nb_b2
    for warp in range({_COUNT}):
        left = size - warp * {_SIZE}
        there = (1 << (left if left < {_SIZE} else {_SIZE})) - 1
        _nb_warps[warp] = there if _nb_lanes_live == size else 0
    if _nb_lanes_live != size:
        for t2 in range(_nb_e2):
            for t1 in range(_nb_e1):
                for t0 in range(_nb_e0):
                    thread = t0 + _nb_b0 * (t1 + _nb_b1 * t2)
                    _nb_warps[thread >> 5] |= 1 << (thread & {_SIZE - 1})


"""
    yield f"""@_nb_device
def {COME}(_nb_warps, {GUARDS}, {_COUNT}, _nb_b0, _nb_b1, _nb_e0, _nb_e1, _nb_e2):
    for warp in range({_COUNT}):
        _nb_warps[warp] = 0
    for t{outer} in range(_nb_e{outer}):
        for t{inner} in range(_nb_e{inner}):
            row = (t{outer} * _nb_e{inner} + t{inner}) * _nb_e{axis}
            for t{axis} in range(_nb_e{axis}):
                thread = t0 + _nb_b0 * (t1 + _nb_b1 * t2)
                _nb_warps[thread >> 5] |= 1 << (thread & {_SIZE - 1}) if {GUARDS}[row + t{axis}] else 0


"""
    yield f"""@_nb_device
def {PART}(_nb_warps, _nb_running, {_COUNT}, {_MASK}, _nb_lanes_block):
    for warp in range({_COUNT}):
        come = _nb_warps[warp]
        missing = _nb_running[warp] & ~come & {_MASK}
        if come != 0 and missing != 0:
            for lane in range({_SIZE}):
                if come >> lane & 1 != 0:
                    _nb_store(_nb_state(), {nb.STATE_STUCK_THREAD}, warp * {_SIZE} + lane)
                    _nb_store(_nb_state(), {nb.STATE_STUCK_MASK}, {_MASK})
                    _nb_store(_nb_state(), {nb.STATE_STUCK}, _nb_lanes_block + 1)
                    _nb_give_up()


"""
    # Those that have not waited come first.
    yield f"""@_nb_device
def {TURNS}({ORDER}, _nb_warps, _nb_running, {_COUNT}):
    place = 0
    for warp in range({_COUNT}):
        come = _nb_warps[warp]
        for waited in range(2):
            lanes = come if waited == 1 else _nb_running[warp] & ~come
            for _nb_rest_lane in range({_SIZE}):
                lane = _nb_rest_lane
                if lanes >> lane & 1 != 0:
                    {ORDER}[place] = warp * {_SIZE} + lane
                    place += 1


"""
