"""The blocks around a kernel's body on the CPU, as source, for kernels whose threads work with others of their block.

The generated function is ``run(block, geometry, first, last)``, as in `range_source`, but runs whole blocks: those whose
first thread is in the range, if threads were shared out to blocks evenly. Threads of a block are numbered along x first, and
32 in a row are a warp. The body is a coroutine for each thread (see `coroutines`), or the block is taken apart at its barriers
(see `parts`). Which indices a thread has is as on CUDA, where the first index runs along x. This module compiles nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numbridge.kernels.cpu_backend.range_source import RUN
from numbridge.kernels.cpu_backend.totals import PRIVATE
from numbridge.kernels.language.parsing import parsed
from numbridge.kernels.native import table_layout as nb

if TYPE_CHECKING:
    from numbridge.kernels.language.emission import Emitted

__all__ = ["ASKED", "CREW", "NOW", "THREAD", "WHOLE", "BlockSource", "as_coroutine", "block_source"]

WHOLE = "_nb_whole_block"
"""The name of the function that runs a whole block, where its threads need no coroutines."""
CREW, THREAD = "_nb_crew", "_nb_thread"
"""The names of a body's first parameters: the block's threads, and which of them runs."""
NOW = "_nb_now"
"""The name of a block's number."""
ASKED = "asked"
"""The operation of a thread that has asked memory for what others do there; only coroutines have it."""
_AXES = 3
_PLACE = (
    "_nb_k0 = _nb_now % _nb_g0",
    "_nb_k1 = _nb_now // _nb_g0 % _nb_g1",
    "_nb_k2 = _nb_now // _nb_g0 // _nb_g1",
)


@dataclass(frozen=True)
class BlockSource:
    """What to make a function of that runs a whole block, without coroutines.

    Attributes
    ----------
    text : str
        Generated text of the body, for one thread.
    namespace : mapping
        Its globals.
    names : sequence of str
        The kernel's parameters, which the body takes last; the gradient of a scalar may have a name of its own in its text.
    rank : int
        How many thread indices there are.
    around : callable
        Takes the text of the function and its parameters; returns all of the variant's source.
    wide : tuple of str
        Source lines of the kernel on which float64 arithmetic happens.
    told : tuple of str
        The body's last parameters, which say of arrays of the kernel whether to add to them plainly: see `totals.with_either`.
    """

    text: str
    namespace: Mapping[str, Any]
    names: Sequence[str]
    rank: int
    around: Callable[[str, Sequence[str]], str]
    wide: tuple[str, ...] | None = None
    told: tuple[str, ...] = ()


def as_coroutine(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a kernel's statements as those of a coroutine, which ends nowhere but where it says so."""
    end = f"_nb_finish({CREW}, {THREAD})"
    return [_statement(f"_nb_start({CREW}, {THREAD})"), *_ending(body, end), _statement(end)]


def _statement(text: str) -> ast.stmt:
    return parsed(text).body[0]


def _ending(body: Sequence[ast.stmt], end: str) -> Iterator[ast.stmt]:
    """Yield statements with what ends a thread before each return."""
    for statement in body:
        if isinstance(statement, ast.Return):
            yield _statement(end)
        for block in ("body", "orelse"):
            if getattr(statement, block, None):
                setattr(statement, block, list(_ending(getattr(statement, block), end)))
        yield statement


def block_source(
    emitted: Emitted, names: Sequence[str], rank: int, *, whole: Sequence[str] | None, added: Mapping[str, int | str]
) -> str:
    """Return the source of the loop around a kernel's blocks; where these wait for each other, the first range runs them all.

    Parameters
    ----------
    emitted : Emitted
        The body, which takes the crew and the thread first.
    names : sequence of str
        The kernel's parameters.
    rank : int
        How many thread indices the body takes, 1 to 4.
    whole : sequence of str or None
        What the function `WHOLE` takes, which then runs each block.
    added : mapping of str to (int or str)
        Parameters of which a worker that runs a part of the blocks has a copy to add to, if that is worth its while, and how
        often a thread is taken to add to elements, or an expression of parameters.
    """
    dims, block, grid, shared = (
        nb_offset - nb.PLAN_DIMS for nb_offset in (nb.PLAN_DIMS, nb.PLAN_BLOCK, nb.PLAN_GRID, nb.PLAN_SHARED)
    )
    dynamic = f"_nb_load(_nb_geometry, {shared})" if "_nb_dynamic(" in emitted.text else "0"
    axes, in_grid = range(_AXES), "_nb_block_grid_sync(" in emitted.text
    lines = [
        *(f"{name} = _nb_argument_{k}(_nb_block)" for k, name in enumerate(names)),
        *(f"_nb_n{k} = _nb_load(_nb_geometry, {dims + 8 * k})" for k in range(rank)),
        *(f"_nb_b{k} = _nb_load(_nb_geometry, {block + 8 * k})" for k in axes),
        *(f"_nb_g{k} = _nb_load(_nb_geometry, {grid + 8 * k})" for k in axes),
        # The last two of four indices share an axis.
        *(["_nb_g2 = (_nb_n2 * _nb_n3 + _nb_b2 - 1) // _nb_b2"] if rank == nb.MAX_DIMS else []),
        f"_nb_total = {' * '.join(f'_nb_n{k}' for k in range(rank))}",
        "_nb_blocks = _nb_g0 * _nb_g1 * _nb_g2",
        *(_copies(added) if added else ()),
        *_runs(whole, _threads(emitted, names, rank, in_grid=in_grid), rank, dynamic, in_grid=in_grid),
    ]
    if added:
        lines[-1:] = [*_added_copies(added), lines[-1]]
    return "\n".join(
        [f"def {RUN}(_nb_block, _nb_geometry, _nb_first, _nb_last):", *(f"    {line}" for line in lines), ""]
    )


def _copies(added: Mapping[str, int | str]) -> list[str]:
    """Return the lines that put copies into the place of arrays, each where it is worth its while.

    Who runs all blocks adds to the arrays themselves, in the order of the threads, as coroutines do.
    """
    lines = ["_nb_part = 0 if _nb_first == 0 and _nb_last == _nb_total else _nb_last - _nb_first"]
    for k, (name, additions) in enumerate(added.items()):
        lines += [
            f"_nb_copy{k} = _nb_memory(_nb_room_of({name}), _nb_extent_of({name}), _nb_part * ({additions}))",
            f"{PRIVATE}{k} = _nb_copy{k} != 0",
            f"_nb_all{k} = {name}",
            f"if {PRIVATE}{k}:",
            f"    {name} = _nb_copy_at(_nb_all{k}, _nb_copy{k})",
        ]
    return lines


def _added_copies(added: Mapping[str, int | str]) -> list[str]:
    return [
        line
        for k, name in enumerate(added)
        for line in (f"if {PRIVATE}{k}:", f"    _nb_add_copy(_nb_all{k}, {name})", f"    _nb_free(_nb_copy{k})")
    ]


def _runs(whole: Sequence[str] | None, threads: list[str], rank: int, dynamic: str, *, in_grid: bool) -> list[str]:
    """Return the lines that run the blocks of a range."""
    if whole is not None:
        return _apart(_whole(whole, rank), dynamic)
    run = f"_nb_failed = _nb_crew_run({CREW}, _nb_now)"
    return _together(threads, dynamic) if in_grid else _apart([*threads, run], dynamic)


def _whole(parameters: Sequence[str], rank: int) -> list[str]:
    """Return the lines that run a block at once: the threads inside the launch, as far as these go along each axis."""
    inside = [f"_nb_e{k} = _nb_min(_nb_b{k}, _nb_n{k} - _nb_k{k} * _nb_b{k})" for k in range(rank)]
    return [
        *_PLACE,
        *inside,
        *(f"_nb_e{k} = _nb_b{k}" for k in range(rank, _AXES)),
        f"if {' and '.join(f'_nb_e{k} > 0' for k in range(_AXES))}:",
        f"    _nb_failed = {WHOLE}({', '.join(parameters)})",
    ]


def _apart(block: list[str], dynamic: str) -> list[str]:
    """Return the lines that run one block of a range after another."""
    return [
        "_nb_each = _nb_max(_nb_total // _nb_blocks, 1)",
        "_nb_now = (_nb_first + _nb_each - 1) // _nb_each",
        "_nb_end = _nb_min((_nb_last + _nb_each - 1) // _nb_each, _nb_blocks)",
        "if _nb_last == _nb_total:",
        "    _nb_end = _nb_blocks",
        "_nb_failed = 0",
        "if _nb_now < _nb_end:",
        f"    {CREW} = _nb_crew_begin(_nb_b0 * _nb_b1 * _nb_b2, {dynamic})",
        f"    if {CREW} == 0:",
        f"        _nb_failed = {nb.CREW_RAISED}",
        "    else:",
        "        while _nb_now < _nb_end and _nb_failed == 0:",
        *(f"            {line}" for line in block),
        "            _nb_now += 1",
        f"        _nb_crew_end({CREW})",
        "return _nb_failed",
    ]


def _together(threads: list[str], dynamic: str) -> list[str]:
    """Return the lines that run all blocks, which wait for each other; the call for the first range does."""
    return [
        "_nb_failed = 0",
        "if _nb_first == 0:",
        "    _nb_now = 0",
        "    _nb_crews = _nb_grid_begin(_nb_blocks)",
        "    if _nb_crews == 0:",
        f"        _nb_failed = {nb.CREW_RAISED}",
        "    else:",
        "        while _nb_now < _nb_blocks and _nb_failed == 0:",
        f"            {CREW} = _nb_grid_add(_nb_crews, _nb_now, _nb_b0 * _nb_b1 * _nb_b2, {dynamic})",
        f"            if {CREW} == 0:",
        f"                _nb_failed = {nb.CREW_RAISED}",
        "            else:",
        *(f"                {line}" for line in threads),
        "            _nb_now += 1",
        "        if _nb_failed == 0:",
        "            _nb_failed = _nb_grid_run(_nb_crews, _nb_blocks)",
        "        _nb_grid_end(_nb_crews, _nb_blocks)",
        "return _nb_failed",
    ]


def _threads(emitted: Emitted, names: Sequence[str], rank: int, *, in_grid: bool) -> list[str]:
    """Return the lines that start the threads of a block, each up to where it first waits."""
    together = "_nb_blocks" if in_grid else "1"
    noted = [f"_nb_next_block({NOW}, _nb_b0 * _nb_b1 * _nb_b2, {together})"] if emitted.checks_races else []
    return [
        *_PLACE,
        *noted,
        f"{THREAD} = 0",
        "for _nb_t2 in range(_nb_b2):",
        "    for _nb_t1 in range(_nb_b1):",
        "        for _nb_t0 in range(_nb_b0):",
        *(f"            {line}" for line in _thread(emitted, names, rank)),
        f"            {THREAD} += 1",
    ]


def _thread(emitted: Emitted, names: Sequence[str], rank: int) -> list[str]:
    """Return the lines that start one thread, if it is inside the launch."""
    made = [f"_nb_i{k} = _nb_k{k} * _nb_b{k} + _nb_t{k}" for k in range(min(rank, _AXES))]
    inside = [f"_nb_i{k} < _nb_n{k}" for k in range(min(rank, _AXES))]
    if rank == nb.MAX_DIMS:
        made += ["_nb_i3 = _nb_i2 % _nb_n3", "_nb_i2 = _nb_i2 // _nb_n3"]
    passed = [f"_nb_nonnegative({name})" if name.startswith("_nb_i") else name for name in emitted.hidden]
    noted = [f"    _nb_thread_of_block({THREAD})"] if emitted.checks_races else []
    return [
        *made,
        f"if {' and '.join(inside)}:",
        *noted,
        f"    {emitted.entry}({', '.join([*passed, *names])})",
        "else:",
        f"    _nb_skip({CREW}, {THREAD})",
    ]
