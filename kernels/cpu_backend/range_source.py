"""The loop around a kernel's body on the CPU, as source.

The generated function is ``run(block, geometry, first, last)``: `block` holds the arguments as Numba values, `geometry` the
launch's dimensions, in the order of `loop_order`, and threads are numbered along the last of them first. The inner loop runs over
that alone, with plain increments, so LLVM sees what it needs for SIMD; outer indices are carried, not divided. This module
compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numbridge.kernels.cpu_backend.active_range import EVERYWHERE, ActiveRange, Stride
from numbridge.kernels.cpu_backend.interior import ROW, Interior, remainder_text
from numbridge.kernels.cpu_backend.lanes import FEW
from numbridge.kernels.cpu_backend.totals import PRIVATE, Total
from numbridge.kernels.native import table_layout as nb

__all__ = ["LANES", "RUN", "WORK", "Lane", "LaneSource", "Private", "across", "lane_name", "range_source"]

RUN, WORK = "_nb_run", "_nb_work"
LANES = "_nb_lanes_"


class Lane(NamedTuple):
    """How many threads a function runs at once, and how many bytes it is given for that; None if it takes no memory."""

    width: int
    memory: int | None


Widths = Mapping[str, Sequence[Lane]]
"""What stands before a body's name in that of another which runs several threads at once."""
_SHORT_ROW = 16
_BLOCK_DIMS, _GRID_DIMS = nb.PLAN_BLOCK - nb.PLAN_DIMS, nb.PLAN_GRID - nb.PLAN_DIMS


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


def lane_name(entry: str, takes: Lane) -> str:
    """Return the name of the function that runs a body for several threads at once."""
    return f"{LANES}{takes.width}{'' if takes.memory is None else 'm'}_{entry}"


def across(entry: str) -> str:
    """Return the name of a body that divides for a thread's block and place: several threads at once may be of several blocks."""
    return f"_nb_across_{entry}"


@dataclass(frozen=True)
class _Threads:
    """How threads are numbered and added up: the rank, the hidden parameters, how many sums, who runs in lanes, and who at all.

    A body that is analysed by Numba has arrays with numbers of elements, which promises are given in extents, and asks whether an
    index is negative.
    """

    rank: int
    hidden: Sequence[str]
    sums: int
    lanes: Widths
    active: ActiveRange
    is_analysed: bool
    interior: Interior | None


def range_source(
    entry: str,
    names: Sequence[str],
    rank: int,
    hidden: Sequence[str],
    *,
    may_raise: bool,
    is_typed: bool = False,
    sums: Sequence[tuple[str, str]] = (),
    private: Private | None = None,
    ahead: Sequence[str] = (),
    totals: Sequence[Total] = (),
    lanes: Widths | None = None,
    additions: int | str = 1,
    active: ActiveRange = EVERYWHERE,
    interior: Interior | None = None,
    order: Sequence[int] = (),
) -> str:
    """Return the source of the loop around a kernel's body.

    Parameters
    ----------
    entry : str
        The body's name.
    names : sequence of str
        The kernel's parameters.
    rank : int
        How many thread indices the body takes, 0 to 4.
    hidden : sequence of str
        What the body takes before its parameters: indices, then block and grid dimensions.
    may_raise : bool
        Whether the body has ``raise`` or ``assert``: the loop then stops and returns 1.
    is_typed : bool
        Whether Numba compiles the body without its analysis. Then nothing but ``raise`` and ``assert`` ends it; else Numba's own
        code may, as a range does whose step is zero.
    sums : sequence of (str, str)
        Parameters that the body does not get, arrays of rank 0, and the place of a component of its element, or ``""`` for
        a number: the body returns a tuple of numbers, one for each pair, whose sums over all threads are added there.
    private : Private, optional
        Another body for threads that share no elements with others at work.
    ahead : sequence of str
        Arrays of which every thread reads its own element, to be asked for some way ahead.
    totals : sequence of Total
        What the body takes after its parameters, and adds to.
    lanes : mapping of str to sequence of Lane, optional
        Bodies of which there are others that run several neighbouring threads at once, the most first: see `lane_name`.
    additions : int or str
        How often a thread is taken to add to elements, which tells whether copies are worth their while; or an expression of
        parameters.
    active : ActiveRange, optional
        Which threads do anything; the others are not run.
    interior : Interior, optional
        Another body for threads inside of a row.
    order : sequence of int, optional
        Which of the launch's dimensions each number of an index or a dimension stands for; their own by default.
    """
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
    threads = _Threads(rank, hidden, len(sums), lanes or {}, active, not is_typed, interior)
    passed = [name for name in names if name not in {summed for summed, _ in sums}]
    before = ""
    if private is not None and threads.active.strides:
        # A range of threads has indices all over the launch, so that those near its ends are not those near others'.
        private = replace(private, distance=None)
    if private is None or rank == 0:
        told = ["False"] if private is not None and private.entry == entry else []
        loop = _loop(entry, [*passed, *(total.name for total in totals), *told], threads, ahead)
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
    if is_typed and not may_raise:
        return before + "\n".join([*lines, *loop, "    return 0", ""])
    lines[:1] = ["@_nb_device", f"def {WORK}(_nb_block, _nb_geometry, _nb_first, _nb_last):"]
    head, call = (
        f"def {RUN}(_nb_block, _nb_geometry, _nb_first, _nb_last):",
        "_nb_block, _nb_geometry, _nb_first, _nb_last",
    )
    guarded = [head, f"    return _nb_ended({WORK}, {call})"]
    # Numba compiles no call of more than 30 arguments within `try`, so that stands around a function of few.
    caught = [head, "    try:", f"        {WORK}({call})", "    except Exception:", "        return 1", "    return 0"]
    end = ["    return 0", "\n", *caught] if is_typed else ["\n", *guarded]
    return before + "\n".join([*lines, *loop, *end, ""])


def _summed(name: str, place: str) -> str:
    return f"_nb_components({name}), ({place},)" if place else f"{name}, ()"


def _function(entry: str, names: Sequence[str], threads: _Threads, *, either: bool) -> str:
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


def _extreme(name: str, parts: Sequence[str]) -> str:
    return f"{name}({', '.join(parts)})" if len(parts) > 1 else parts[0]


def _sizes(threads: _Threads) -> list[str]:
    return [*(f"_nb_n{k}" for k in range(threads.rank)), *(name for name in threads.hidden if name[4] in "bg")]


def _parts(entry: str, private: Private, names: Sequence[str], threads: _Threads, additions: int | str) -> list[str]:
    """Return the lines that run a range in up to three parts: threads near its ends may meet those of other ranges."""
    extents = [f"_nb_n{k}" for k in range(threads.rank)]
    total, row = " * ".join(extents), " * ".join(extents[1:]) or "1"
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


def _loop(entry: str, names: Sequence[str], threads: _Threads, ahead: Sequence[str] = ()) -> list[str]:
    rank = threads.rank

    block, size = f"_nb_k{rank - 1}", f"_nb_b{rank - 1}"
    in_row = [stride for stride in threads.active.strides if stride.in_block and stride.axis == rank - 1]

    def of_thread(last: str) -> dict[str, str]:
        """Return what hidden parameters are that differ within a row."""
        return {f"_nb_i{rank - 1}": last, f"_nb_t{rank - 1}": f"{last} - {block} * {size}"}

    def call(
        last: str, entry: str = entry, result: str = "_nb_result", more: Sequence[str] = (), *, divides: bool = False
    ) -> list[str]:
        own = of_thread(last)
        if divides:
            own |= {block: f"{last} // {size}", f"_nb_t{rank - 1}": f"{last} % {size}"}
        passed = [f"_nb_nonnegative({own.get(name, name)})" if name[4] in "ikt" else name for name in threads.hidden]
        text = f"{entry}({', '.join([*passed, *names, *more])})"
        added = [f"_nb_sum{k} = _nb_accumulate(_nb_sum{k}, {result}[{k}])" for k in range(threads.sums)]
        return [f"{result} = {text}", *added] if threads.sums else [text]

    def run(first: str, last: str) -> list[str]:
        """Return the lines that run the threads of a part of a row, block by block if they are told theirs."""
        if block not in threads.hidden:
            return run_active(first, last)
        begin, end, turn = "_nb_begin", "_nb_block_end", f"_nb_turn{rank - 1}"
        moved = f" + {turn}" if in_row else ""
        lines = run_active(begin + moved, end + moved)
        for stride in in_row:
            lines = _turns(turn, stride, lines)
        lines = [
            f"{begin} = {first}",
            f"_nb_row_end = {last}",
            f"{block} = {begin} // {size}",
            f"while {begin} < _nb_row_end:",
            f"    {end} = _nb_min({block} * {size} + {size}, _nb_row_end)",
            *(f"    {line}" for line in lines),
            f"    {begin} = {end}",
            f"    {block} += 1",
        ]
        if threads.active.strides or across(entry) not in threads.lanes:
            return lines  # what ends a loop that has been taken out is asked for each block
        return [
            f"if {size} < {FEW}:",
            *(f"    {line}" for line in run_all(first, last, divides=True)),
            "else:",
            *(f"    {line}" for line in lines),
        ]

    def run_active(first: str, last: str) -> list[str]:
        """Return the lines that run those threads of a part of a row that have anything to do."""
        active, within = threads.active, run_all if threads.interior is None else run_apart
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

    def promised(last: str) -> list[str]:
        """Return the lines that promise what holds for a thread."""
        active = threads.active
        sizes = [f"{size} == {extents}" for size, extents in active.sizes] if threads.is_analysed else []
        promises = [*active.promises]
        for name, text in of_thread(last).items():
            promises = [promise.replace(name, f"({text})") for promise in promises]
        return [f"_nb_assume({promise})" for promise in (*sizes, *promises)]

    def run_apart(first: str, last: str) -> list[str]:
        """Return the lines that run one body inside of a row, and the other one on both sides of that."""
        interior = threads.interior
        assert interior is not None
        if interior.width:
            return run_split(first, last, interior)
        # In a short row there is more to do around the loops than in them.
        rows = [f"{last} - {first} >= {_SHORT_ROW}", *interior.rows]
        inside = [*promised("_nb_k"), *call("_nb_k", interior.entry)]
        return [
            f"if {' and '.join(rows)}:",
            *(f"    {line}" for line in between(first, last, interior.starts, interior.stops, inside)),
            "else:",
            *(f"    {line}" for line in run_all(first, last)),
        ]

    def run_split(first: str, last: str, interior: Interior) -> list[str]:
        """Return the lines that run an only index row by row, of what it is split into."""
        width, base = interior.width, "_nb_column0"
        promises = [f"{ROW} >= 0", f"{remainder_text('_nb_k', width)} >= 0"]
        told = [*promised("_nb_k"), *(f"_nb_assume({promise})" for promise in promises)]
        inside = [*told, *call("_nb_k", interior.entry, more=[name for name, _ in interior.told])]
        lines = [
            f"{ROW} = _nb_next // ({width})",
            f"{base} = {ROW} * ({width})",
            *(f"{name} = {text}" for name, text in interior.told if name != ROW),
            f"_nb_until = _nb_min({base} + {width}, {last})",
        ]
        if interior.stops:
            starts, stops = ([f"{base} + {place}" for place in places] for places in (interior.starts, interior.stops))
            lines += between("_nb_next", "_nb_until", starts, stops, inside)
        else:
            lines += each("_nb_next", "_nb_until", inside)
        return [
            f"if {' and '.join(f'{factor} > 0' for factor in (width, *interior.factors))}:",
            f"    _nb_next = {first}",
            f"    while _nb_next < {last}:",
            *(f"        {line}" for line in lines),
            "        _nb_next = _nb_until",
            "else:",
            *(f"    {line}" for line in run_all(first, last)),
        ]

    def between(
        first: str,
        last: str,
        starts: Sequence[str],
        stops: Sequence[str],
        inside: Sequence[str],
    ) -> list[str]:
        """Return the lines that run `inside` from the last of some starts to the first of some stops, and the body elsewhere."""
        return [
            f"_nb_inner = _nb_min({_extreme('_nb_max', [first, *starts])}, {last})",
            f"_nb_outer = _nb_max({_extreme('_nb_min', [last, *stops])}, _nb_inner)",
            "for _nb_side in range(2):",
            f"    _nb_from = _nb_outer if _nb_side else {first}",
            f"    _nb_to = {last} if _nb_side else _nb_inner",
            *(f"    {line}" for line in run_all("_nb_from", "_nb_to")),
            *each("_nb_inner", "_nb_outer", inside),
        ]

    def each(first: str, last: str, body: Sequence[str]) -> list[str]:
        """Return the lines that run a thread's lines for all of a row."""
        if not threads.is_analysed:
            return [f"for _nb_k in range({first}, {last}):", *(f"    {line}" for line in body)]
        # An index that counts the trips is never negative if the first one is not: so LLVM takes what is promised of each, and
        # forgets it before it comes to the body. It is made a vector of as a variable of its own.
        lines = [f"_nb_k = {first}", f"for _nb_count in range({last} - {first}):", *(f"    {line}" for line in body)]
        return [*lines, "    _nb_k += 1"]

    def run_all(first: str, last: str, *, divides: bool = False) -> list[str]:
        own = ", ".join([*(f"_nb_i{k}" for k in range(rank - 1)), "_nb_k"])
        asked = [f"_nb_prefetch({name}, ({own},))" for name in ahead]
        # What is promised of a thread goes by its block.
        one = [*asked, *([] if divides else promised("_nb_k")), *call("_nb_k", divides=divides)]
        lines, begin = [], first
        together = across(entry) if divides else entry
        for takes in threads.lanes.get(together, ()):
            width, memory = takes
            more = [] if memory is None else ["_nb_memory_of_lanes" if memory else "0"]
            end = f"_nb_whole{width}{'' if memory is None else 'm'}"
            count = f"_nb_max({last} - {begin}, 0) // {width} * {width}"
            lines += [
                f"{end} = {begin} + {f'_nb_has_memory * ({count})' if memory else count}",
                f"for _nb_lane in range({begin}, {end}, {width}):",
                *(
                    f"    {line}"
                    for line in call("_nb_lane", lane_name(together, takes), "_nb_results", more, divides=divides)
                ),
            ]
            begin = end
        return [*lines, *each(begin, last, one)]

    around = [stride for stride in threads.active.strides if stride not in in_row]
    lines = _rows(rank, threads.hidden, around, run)
    memory = max((takes.memory or 0 for takes in threads.lanes.get(entry, ())), default=0)
    for stride in reversed(around):
        lines = _turns(_moved_by(stride), stride, lines)
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


def _turns(name: str, stride: Stride, lines: Sequence[str]) -> list[str]:
    """Return the lines of a loop that has been taken out, around its trip."""
    head = [f"{name} = {stride.start}", f"while {name} < {stride.stop}:"]
    return [*head, *(f"    {line}" for line in lines), f"    {name} += {stride.step}"]


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
