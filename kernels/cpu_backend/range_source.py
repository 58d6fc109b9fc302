"""The loop around a kernel's body on the CPU, as source.

The generated function is ``run(block, geometry, first, last)``: `block` holds the arguments as Numba values, `geometry` the
launch's dimensions, in the order of `loop_order`, and threads are numbered along the last of them first. The inner loop runs over
that alone (see `row_source`), with plain increments, so LLVM sees what it needs for SIMD; outer indices are carried, not
divided. This module compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numbridge.kernels.cpu_backend.active_range import Stride
from numbridge.kernels.cpu_backend.interior import Interior
from numbridge.kernels.cpu_backend.row_source import Row, Threads, Widths, turns
from numbridge.kernels.cpu_backend.totals import PRIVATE, Total
from numbridge.kernels.native import table_layout as nb

if TYPE_CHECKING:
    from numbridge.kernels.language.emission import Emitted

__all__ = ["RUN", "WORK", "LaneSource", "Private", "range_source"]

RUN, WORK = "_nb_run", "_nb_work"
_BLOCK_DIMS, _GRID_DIMS = nb.PLAN_BLOCK - nb.PLAN_DIMS, nb.PLAN_GRID - nb.PLAN_DIMS
# The extents of a launch whose kernel asks for no index: of any number of axes, or all in one; 0 for axes that it has not
_ANY_EXTENTS = [f"_nb_max(_nb_load(_nb_geometry, {8 * k}), 1)" for k in range(nb.MAX_DIMS)]


@dataclass(frozen=True)
class Private:
    """A body that may touch elements without regard to other threads, and for which threads that is right.

    It is right for all where one call runs the whole launch, unless other launches may add to the same arrays `meanwhile`.
    With a `distance`, it is also right within a range for rows that are far enough from its ends: each thread then only
    touches rows of `arrays` at most so far from its own index along the first dimension. It is right for every range
    where that has copies of the arrays `added`, if there are any, to which the body only adds.

    If `entry` is the other body too, it takes a last argument that says which it shall be.
    """

    entry: str
    distance: int | None = None
    arrays: tuple[str, ...] = ()
    meanwhile: bool = False
    added: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaneSource:
    """What to make bodies of that run several neighbouring threads at once.

    Attributes
    ----------
    text : str
        Generated text of the bodies, for one thread.
    namespace : mapping
        Its globals.
    along : frozenset of str
        The parameters that are one more for the next thread.
    around : callable
        Takes text to stand before the loop, and how many threads each body runs; returns all of the variant's source.
    always : bool
        Whether to run several threads at once where nothing is gained.
    """

    text: str
    namespace: Mapping[str, Any]
    along: frozenset[str]
    around: Callable[[str, Widths], str]
    always: bool


def range_source(
    emitted: Emitted,
    names: Sequence[str],
    rank: int,
    *,
    ahead: Sequence[str],
    totals: Sequence[Total],
    lanes: Widths,
    additions: int | str,
    interior: Interior | None,
) -> str:
    """Return the source of the loop around a kernel's body.

    Numba compiles generated text without its analysis. Then nothing but ``raise``, ``assert`` and a stack that cannot grow ends
    the loop, which returns 1; else Numba's own code may, as a range does whose step is zero.

    Parameters
    ----------
    emitted : Emitted
        The body. One with sums returns a tuple of numbers, one for each, whose sums over all threads are added to the elements
        of parameters that it does not get.
    names : sequence of str
        The kernel's parameters.
    rank : int
        How many thread indices the body takes, 0 to 4.
    ahead : sequence of str
        Arrays of which every thread reads its own element, to be asked for some way ahead.
    totals : sequence of Total
        What the body takes after its parameters, and adds to.
    lanes : mapping of str to sequence of Lane
        Bodies of which there are others that run several neighbouring threads at once, the most first: see `lane_name`.
    additions : int or str
        How often a thread is taken to add to elements, which tells whether copies are worth their while; or an expression of
        parameters.
    interior : Interior or None
        Another body for threads inside of a row.
    """
    entry, hidden, sums, private, order = emitted.entry, emitted.hidden, emitted.sums, emitted.private, emitted.order
    lines = [f"def {RUN}(_nb_block, _nb_geometry, _nb_first, _nb_last):"]
    lines += [f"    {name} = _nb_argument_{k}(_nb_block)" for k, name in enumerate(names)]
    for name in hidden:
        base = {"b": _BLOCK_DIMS, "g": _GRID_DIMS}.get(name[4])
        if base is not None:
            number = int(name[5:])
            lines.append(
                f"    {name} = _nb_load(_nb_geometry, {base + 8 * (order[number] if number < len(order) else number)})"
            )
    lines += [f"    _nb_n{k} = _nb_load(_nb_geometry, {8 * (order[k] if order else k)})" for k in range(rank)]
    threads = Threads(
        rank, hidden, len(sums), lanes, emitted.active, not emitted.generated, interior, emitted.checks_races
    )
    passed = [name for name in names if name not in {summed for summed, _ in sums}]
    before = ""
    if private is not None and (threads.active.strides or rank == 0):
        # A range of threads has indices all over the launch, or none, so that those near its ends are not those near others'.
        private = replace(private, distance=None)
    if private is None:
        loop = _loop(entry, [*passed, *(total.name for total in totals)], threads, ahead)
    else:
        bodies = dict.fromkeys((entry, private.entry))
        passed += [total.name for total in totals]
        before = "".join(_function(body, passed, threads, either=len(bodies) == 1) for body in bodies)
        loop = _parts(entry, private, passed, threads, additions)
    loop = [
        *(f"    _nb_sum{k} = 0.0" for k in range(len(sums))),
        *(f"    {total.name} = _nb_total_of({total.array})" for total in totals),
        *loop,
        *(f"    _nb_atomic_add({_summed(*pair)}, _nb_sum{k})" for k, pair in enumerate(sums)),
        *(f"    _nb_add_total({total.array}, {total.index}, {total.name})" for total in totals),
    ]
    if emitted.generated and not (emitted.may_raise or emitted.grows):
        return before + "\n".join([*lines, *loop, "    return 0", ""])
    head, call = lines[0], "_nb_block, _nb_geometry, _nb_first, _nb_last"
    lines[:1] = ["@_nb_device", f"def {WORK}({call}):"]
    guarded = [head, f"    return _nb_ended({WORK}, {call})"]
    # Numba compiles no call of more than 30 arguments within `try`, so that stands around a function of few.
    caught = [head, "    try:", f"        {WORK}({call})", "    except Exception:", "        return 1", "    return 0"]
    end = ["    return 0", "\n", *caught] if emitted.generated else ["\n", *guarded]
    return before + "\n".join([*lines, *loop, *end, ""])


def _summed(name: str, place: str) -> str:
    return f"_nb_components({name}), ({place},)" if place else f"{name}, ()"


def _function(entry: str, names: Sequence[str], threads: Threads, *, either: bool) -> str:
    """Return the loop as a function of its own, which returns the sums."""
    names = [*names, PRIVATE] if either else names
    parameters = ", ".join([*_sizes(threads), *names, "_nb_first", "_nb_last"])
    totals = "".join(f"_nb_sum{k}, " for k in range(threads.sums)).strip()
    lines = [
        "@_nb_device",
        f"def _nb_loop_{entry}({parameters}):",
        *(f"    _nb_sum{k} = 0.0" for k in range(threads.sums)),
    ]
    return "\n".join([*lines, *_loop(entry, names, threads), f"    return ({totals})", "\n\n"])


def _sizes(threads: Threads) -> list[str]:
    return [*(f"_nb_n{k}" for k in range(threads.rank)), *(name for name in threads.hidden if name[4] in "bg")]


def _parts(entry: str, private: Private, names: Sequence[str], threads: Threads, additions: int | str) -> list[str]:
    """Return the lines that run a range in up to three parts: threads near its ends may meet those of other ranges."""
    extents = [f"_nb_n{k}" for k in range(threads.rank)]
    total, row = " * ".join(extents or _ANY_EXTENTS), " * ".join(extents[1:]) or "1"
    whole = f"_nb_first == 0 and _nb_last == {total}"

    def run(body: str, start: str, stop: str, *, alone: bool, copies: bool = False) -> list[str]:
        which = [str(alone)] if private.entry == entry else []
        passed = [f"_nb_copy_{name}" if copies and name in private.added else name for name in names]
        given = ", ".join([*_sizes(threads), *passed, *which, start, stop])
        added = [f"_nb_sum{k} += _nb_part[{k}]" for k in range(threads.sums)]
        return [f"    {line}" for line in (f"_nb_part = _nb_loop_{body}({given})", *added)]

    lines = _on_copies(private, whole, additions, threads.active.strides, run) if private.added else []
    if private.meanwhile:
        lines += ["if _nb_first < _nb_last:", *run(entry, "_nb_first", "_nb_last", alone=False)]
        return [f"    {line}" for line in lines]
    lines += ["_nb_low = _nb_first", "_nb_high = _nb_first", f"if {whole}:", "    _nb_high = _nb_last"]
    if private.distance is not None:
        reach = 2 * private.distance
        lengths = [f"{name}.shape[0] - 1" for name in private.arrays] if private.distance else []
        lines += [
            "elif _nb_first < _nb_last:",
            f"    _nb_last_row = _nb_min({', '.join([f'(_nb_last - 1) // ({row})', *lengths])}) - {reach}",
            f"    _nb_low = _nb_min((_nb_first // ({row}) + {reach + 1}) * ({row}), _nb_last)",
            f"    _nb_high = _nb_max(_nb_min(_nb_last_row * ({row}), _nb_last), _nb_low)",
        ]
    for body, start, stop in (
        (entry, "_nb_first", "_nb_low"),
        (private.entry, "_nb_low", "_nb_high"),
        (entry, "_nb_high", "_nb_last"),
    ):
        lines += [f"if {start} < {stop}:", *run(body, start, stop, alone=start == "_nb_low")]
    return [f"    {line}" for line in lines]


def _on_copies(
    private: Private, whole: str, additions: int | str, strides: Sequence[Stride], run: Callable[..., list[str]]
) -> list[str]:
    """Return the lines that run a whole range on copies of the arrays that are added to, if that is worth its while."""
    rooms = [f"_nb_room_of({name})" for name in private.added]
    extents = " + ".join(f"_nb_extent_of({name})" for name in private.added)
    known = [s for s in strides if not s.in_block or not re.search(r"_nb_[ik]\d", s.stop)]
    trips = "".join(f" * _nb_max(({s.stop} - {s.start}) // ({s.step}) + 1, 1)" for s in known)
    ask = f"_nb_copies = _nb_memory({' + '.join(rooms)}, {extents}, (_nb_last - _nb_first) * ({additions}){trips})"
    lines = [ask] if private.meanwhile else ["_nb_copies = 0", f"if not ({whole}):", f"    {ask}"]
    lines.append("if _nb_copies != 0:")
    for k, name in enumerate(private.added):
        lines.append(f"    _nb_copy_{name} = _nb_copy_at({name}, {' + '.join(['_nb_copies', *rooms[:k]])})")
    return [
        *lines,
        *run(private.entry, "_nb_first", "_nb_last", alone=True, copies=True),
        *(f"    _nb_add_copy({name}, _nb_copy_{name})" for name in private.added),
        "    _nb_free(_nb_copies)",
        "    _nb_first = _nb_last",
    ]


def _loop(entry: str, names: Sequence[str], threads: Threads, ahead: Sequence[str] = ()) -> list[str]:
    row = Row(entry, names, threads, ahead)
    around = [stride for stride in threads.active.strides if stride not in row.strides]
    lines = _rows(threads.rank, threads.hidden, around, row.run)
    memory = max((takes.memory or 0 for takes in threads.lanes.get(entry, ())), default=0)
    for stride in reversed(around):
        lines = turns(_moved_by(stride), stride, lines)
    if memory:
        asked = [
            f"_nb_memory_of_lanes = _nb_allocate({memory})",
            "_nb_has_memory = 1 if _nb_memory_of_lanes != 0 else 0",
        ]
        lines = [*asked, *lines, "_nb_free(_nb_memory_of_lanes)"]
    return [f"    {line}" for line in lines]


def _moved_by(stride: Stride) -> str:
    """Return the name of what is added to an index in a loop that has been taken out."""
    return f"_nb_{'turn' if stride.in_block else 'base'}{stride.axis}"


def _rows(
    rank: int, hidden: Sequence[str], strides: Sequence[Stride], run: Callable[[str, str], list[str]]
) -> list[str]:
    """Return the lines that go through a range of threads, row by row.

    Where there are loops over the grid around them, a thread's index is another in every trip.
    """
    moved, in_block = dict[int, str](), dict[int, str]()
    for stride in strides:
        shifts = in_block if stride.in_block else moved
        shifts[stride.axis] = f" + {_moved_by(stride)}"
    told = [k for k in range(rank - 1) if f"_nb_k{k}" in hidden]
    shift = moved.get(rank - 1, "")
    if rank < 2:
        return run(f"_nb_first{shift}", f"_nb_last{shift}")
    at = [f"_nb_at{k}" if k in {*moved, *in_block} else f"_nb_i{k}" for k in range(rank)]
    done = "_nb_done" if strides else "_nb_first"
    lines = [f"{done} = _nb_first"] if strides else []
    lines.append("_nb_rest = _nb_first")
    for k in range(rank - 1, 0, -1):
        lines += [f"{at[k]} = _nb_rest % _nb_n{k}", f"_nb_rest //= _nb_n{k}"]
    lines += [f"{at[0]} = _nb_rest", f"while {done} < _nb_last:"]
    lines += [
        f"    _nb_end = _nb_min(_nb_n{rank - 1}, {at[-1]} + _nb_last - {done})",
        *(f"    _nb_k{k} = ({at[k]}{moved.get(k, '')}) // _nb_b{k}" for k in told),
        *(
            f"    _nb_i{k} = {at[k]}{moved.get(k, '')}{in_block.get(k, '')}"
            for k in range(rank - 1)
            if k in {*moved, *in_block}
        ),
        *(f"    _nb_t{k} = _nb_i{k} - _nb_k{k} * _nb_b{k}" for k in told),
        *(f"    {line}" for line in run(f"{at[-1]}{shift}", f"_nb_end{shift}")),
        f"    {done} += _nb_end - {at[-1]}",
        f"    {at[-1]} = 0",
    ]
    indent = "    "
    for k in range(rank - 2, -1, -1):
        lines.append(f"{indent}{at[k]} += 1")
        if k > 0:
            lines += [f"{indent}if {at[k]} == _nb_n{k}:", f"{indent}    {at[k]} = 0"]
            indent += "    "
    return lines
