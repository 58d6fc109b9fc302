"""The kernel around a body on CUDA, as source: how a thread of the grid learns which indices are its own.

Two forms. The *masked* one serves `nb.launch`: every axis is a grid-stride loop up to the launch's dimension, so it is right
for any grid, and ids past a dimension do not run. The dimensions follow the kernel's parameters. The *plain* one serves
``kernel[blocks, threads]``: each thread runs the body once, as in numba.cuda. This module compiles nothing.

The last index runs along x, where neighbouring threads are neighbours in memory, so indices need no division. A body that
asks for its place in the block instead finds its first index along x, as ``cuda.grid`` has it.

A masked kernel may also run a *batch*: the same launch for many elements, whose arrays lie some bytes from those of the first.
Each block takes elements one after the other, along z if no index runs there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from numbridge.kernels.cuda_backend.column_pairs import PAIR_LOADS, PAIR_STORES
from numbridge.kernels.cuda_backend.ids_together import LOADS, READY, STORES, Together
from numbridge.kernels.language.rewriting import CUDA_MODULE
from numbridge.kernels.native import table_layout as nb

__all__ = [
    "BLOCK_LIMITS",
    "GRID",
    "GRID_LIMITS",
    "Form",
    "block_shape",
    "extents",
    "fewer_blocks",
    "grid_shape",
    "grid_source",
    "runs_along",
]

Form = Literal["masked", "plain"]
GRID = "_nb_grid"
_AXES = "xyz"
_WARP = 32
GRID_LIMITS = (nb.MAX_GRID_X, nb.MAX_GRID_Y, nb.MAX_GRID_Z)
BLOCK_LIMITS = (1024, 1024, nb.MAX_BLOCK_Z)


def runs_along(rank: int, *, first_along_x: bool) -> list[list[int]]:
    """Return which indices run along x, y and z; a fourth shares z with its neighbour."""
    order = list(range(rank)) if first_along_x else list(reversed(range(rank)))
    axes = [[index] for index in order[:3]]
    if rank == 4:
        axes[2] = sorted(order[2:])
    return axes


def extents(dims: Sequence[int], *, first_along_x: bool) -> list[int]:
    """Return how far x, y and z run for a launch's dimensions."""
    found = [math.prod(dims[i] for i in axis) for axis in runs_along(len(dims), first_along_x=first_along_x)]
    return [*found, 1, 1][:3]


def block_shape(along: Sequence[int], block_dim: int, *, first_along_x: bool) -> tuple[int, int, int]:
    """Return a block of `block_dim` threads for extents along x, y and z.

    A short x gives its threads to y and z, unless the body wants its block along x.
    """
    if first_along_x:
        return block_dim, 1, 1
    # An axis that no index runs along has extent 1 here and no loop in the kernel, so it must stay 1.
    shape, rest = [1, 1, 1], block_dim
    for axis in range(3):
        size = min(rest, 1 << max(along[axis] - 1, 0).bit_length(), BLOCK_LIMITS[axis])
        shape[axis] = size if rest % size == 0 else 1
        rest //= shape[axis]
    # What no axis could use goes back to x, so that the block has as many threads as were asked for.
    return shape[0] * rest, shape[1], shape[2]


def grid_shape(
    along: Sequence[int], block: Sequence[int], max_blocks: int, *, whole: bool = False
) -> tuple[int, int, int]:
    """Return the grid that covers extents along x, y and z, with at most `max_blocks` blocks if that is not 0.

    A `whole` one has a block for all threads, even where CUDA has not as many: no block may run the threads of several in turn.
    """
    grid = [-(-extent // size) for extent, size in zip(along, block, strict=True)]
    if not whole:
        grid = [min(pair) for pair in zip(grid, GRID_LIMITS, strict=True)]
    return fewer_blocks(grid, max_blocks) if max_blocks else (grid[0], grid[1], grid[2])


def fewer_blocks(grid: Sequence[int], most: int) -> tuple[int, int, int]:
    """Return a grid of at most `most` blocks, shorter along some axes; each block then runs more of a masked kernel's ids."""
    made = [*grid]
    for axis in (2, 1, 0):
        others = math.prod(made) // max(made[axis], 1)
        made[axis] = min(made[axis], max(most // max(others, 1), 1))
    return made[0], made[1], made[2]


def grid_source(
    entry: str,
    names: Sequence[str],
    rank: int,
    hidden: Sequence[str],
    form: Form,
    *,
    first_along_x: bool,
    sums: Sequence[tuple[str, str]] = (),
    by_reference: Collection[str] = (),
    batched: Sequence[str] = (),
    levels: int = 0,
    together: Together | None = None,
) -> str:
    """Return the source of the kernel around a body.

    Parameters
    ----------
    entry : str
        The body's name.
    names : sequence of str
        The kernel's parameters.
    rank : int
        How many thread indices the body takes, 0 to 4; without any the body runs once per thread.
    hidden : sequence of str
        What the body takes before its parameters: indices, then block and grid dimensions.
    form : {'masked', 'plain'}
        Whether ids are compared with the launch's dimensions.
    first_along_x : bool
        Whether the first index runs along x.
    sums : sequence of (str, str)
        Parameters that the body does not get, arrays of rank 0, and the place of a component of its element, or ``""`` for
        a number: it returns a tuple of numbers, one for each pair, and each thread adds its own there.
    by_reference : collection of str
        Scalars of the body that the kernel gets as arrays of one element.
    batched : sequence of str
        The arrays that a batch moves, in a masked kernel.
    levels : int
        How many axes the batch has; 0 if there is none. Behind the dimensions follow how many elements it has, the extents of its
        axes but the first, and for each of `batched` the bytes between neighbours along each axis.
    together : Together or None
        The body in steps, of a masked kernel: a thread then takes several ids along x or y at once, as long as there are as many.
    """
    own = list(names)
    moved = {name: f"_nb_at{k}" for k, name in enumerate(batched)} if levels else {}
    names = [moved.get(name, name) for name in own]
    by_reference, sums = {moved.get(name, name) for name in by_reference}, [(moved.get(n, n), at) for n, at in sums]
    summed = {name for name, _ in sums}
    passed = [f"{name}[0]" if name in by_reference else name for name in names if name not in summed]
    body = [f"{entry}({', '.join([*(_nonnegative(name) for name in hidden), *passed])})"]
    start = [f"    {name} = _nb_nonnegative({_extent(name)})" for name in hidden if not name.startswith("_nb_i")]
    if sums:
        start += [f"    _nb_sum{k} = 0.0" for k in range(len(sums))]
        body = [f"_nb_result = {body[0]}", *(f"_nb_sum{k} += _nb_result[{k}]" for k in range(len(sums)))]
    # Numba's atomics know no arrays of rank 0.
    end = [
        f"    _nb_add({f'_nb_components({name})' if place else f'_nb_row({name})'}, {place or 0}, _nb_sum{k})"
        for k, (name, place) in enumerate(sums)
    ]
    if form == "plain":
        lines = [f"def {GRID}({', '.join(names)}):", *start]
        lines += [f"    _nb_i{k} = {_first(axis)}" for k, axis in enumerate(_AXES[:rank])]
        return "\n".join([*lines, *(f"    {line}" for line in body), *end, ""])
    count = max(rank, 1)
    trailing = [*(f"_nb_n{k}" for k in range(count)), *_batch_parameters(len(moved), levels)]
    head, last = _batch_loop(list(moved), levels, along_z=count < len(_AXES))
    lines, indent = [*start], "    "
    tails: list[str] = []
    rows = together if together is not None and together.along_y else None
    for axis, indices in reversed(list(zip(_AXES, runs_along(count, first_along_x=first_along_x), strict=False))):
        run = f"_nb_{axis}" if len(indices) > 1 else f"_nb_i{indices[0]}"
        bound = " * ".join(f"_nb_n{k}" for k in indices)
        lines.append(f"{indent}{run} = {_first(axis)}")
        goes_on, width = f"{run} < {bound}", f"{CUDA_MODULE}.gridDim.{axis} * {CUDA_MODULE}.blockDim.{axis}"
        if rows is not None and axis == "y":
            # Neighbours in a narrow array would be rows apart.
            many = f"{width} < {bound} and {CUDA_MODULE}.blockDim.x >= {_WARP}"
            lines += [f"{indent}_nb_rows = {rows.count} if {many} else 1", f"{indent}_nb_row = {run} * _nb_rows"]
            body = _rows(rows, rank, hidden, passed, body)
            run, goes_on, width = "_nb_row", f"_nb_row < {bound}", f"{width} * _nb_rows"
        elif rows is not None and rows.pairs and axis == "x":
            aligned = [f"_nb_has_pairs({moved.get(name, name)})" for name in rows.pairs]
            two = " and ".join([f"{width} < {bound}", "_nb_rows > 1", *aligned])
            lines += [f"{indent}_nb_columns = 2 if {two} else 1", f"{indent}{run} *= _nb_columns"]
            width = f"{width} * _nb_columns"
        elif rows is None and together is not None and axis == "x":
            lines += [f"{indent}{line}" for line in _several(together, run, bound, hidden, passed)]
            indent, goes_on = f"{indent}    ", f"{goes_on} and {run} < _nb_next"
        lines.append(f"{indent}while {goes_on}:")
        indent += "    "
        if len(indices) > 1:
            lines += [
                f"{indent}_nb_i{indices[0]} = {run} // _nb_n{indices[1]}",
                f"{indent}_nb_i{indices[1]} = {run} - _nb_i{indices[0]} * _nb_n{indices[1]}",
            ]
        tails.append(f"{indent}{run} += {width}")
    inside = [*lines, *(f"{indent}{line}" for line in body), *reversed(tails), *end]
    deeper = "    " if levels else ""
    text = [f"def {GRID}({', '.join([*own, *trailing])}):", *head, *(f"{deeper}{line}" for line in inside), *last]
    return "\n".join([*text, ""])


def _several(together: Together, run: str, bound: str, hidden: Sequence[str], passed: Sequence[str]) -> list[str]:
    """Return the head of a loop that takes several ids at once, each as far from the next as the grid is wide.

    Those up to `_nb_next` are left to what follows in it, one by one, if there are fewer or one of them is not ready.
    """
    ids = [f"_nb_id{k} = {run} + {k} * _nb_wide" for k in range(together.count)]
    ready, steps = _steps(together, run, hidden, passed)
    steps = [*steps, f"{run} = _nb_next"]
    if ready:
        steps = [f"if {ready}:", *(f"    {line}" for line in steps)]
    return [
        f"_nb_wide = {CUDA_MODULE}.gridDim.x * {CUDA_MODULE}.blockDim.x",
        f"while {run} < {bound}:",
        f"    _nb_next = {run} + {together.count} * _nb_wide",
        f"    if _nb_next - _nb_wide < {bound}:",
        *(f"        {line}" for line in [*ids, *steps]),
    ]


def _rows(
    together: Together, rank: int, hidden: Sequence[str], passed: Sequence[str], body: Sequence[str]
) -> list[str]:
    """Return what a thread does in the `_nb_rows` rows from `_nb_row` on, in one column or two: at once, or one by one.

    One by one it is where the array ends before, or one of them is not ready, or there is but one.
    """
    row, column, count = f"_nb_i{rank - 2}", f"_nb_i{rank - 1}", together.count
    lines = [f"_nb_id{k} = _nb_row + {k}" for k in range(count)]
    all_there = f"_nb_rows > 1 and _nb_row <= _nb_n{rank - 2} - {count}"
    ready, steps = _steps(together, row, hidden, passed)
    in_one = f"{all_there}{f' and {ready}' if ready else ''}"
    alone = _one_by_one(row, f"_nb_n{rank - 2}", "_nb_row", "_nb_rows", body)
    if not together.pairs:
        return [
            *lines,
            f"if {in_one}:",
            *(f"    {line}" for line in steps),
            "else:",
            *(f"    {line}" for line in alone),
        ]
    beside, pairs = _pairs(together, row, column, hidden, passed)
    return [
        *lines,
        f"if _nb_columns > 1 and {column} + 1 < _nb_n{rank - 1} and {in_one}{f' and {beside}' if beside else ''}:",
        *(f"    {line}" for line in pairs),
        f"elif _nb_columns == 1 and {in_one}:",
        *(f"    {line}" for line in steps),
        "else:",
        f"    _nb_column = {column}",
        *(f"    {line}" for line in _one_by_one(column, f"_nb_n{rank - 1}", "_nb_column", "_nb_columns", alone)),
        f"    {column} = _nb_column",
    ]


def _one_by_one(run: str, bound: str, first: str, count: str, body: Sequence[str]) -> list[str]:
    """Return a loop over a number of values of an index, as far as there are as many."""
    ends = f"    {run} += 1"
    return [
        f"{run} = {first}",
        f"while {run} < {bound} and {run} < {first} + {count}:",
        *(f"    {b}" for b in body),
        ends,
    ]


def _taken(hidden: Sequence[str], passed: Sequence[str], ids: Mapping[str, str]) -> str:
    """Return what a step takes, with some indices replaced."""
    return ", ".join([*(_nonnegative(ids.get(name, name)) for name in hidden), *passed])


def _steps(together: Together, run: str, hidden: Sequence[str], passed: Sequence[str]) -> tuple[str, list[str]]:
    """Return whether all ids `_nb_id0`, `_nb_id1`, ... of an index are ready (empty: always), and what is done for them."""
    taken = [_taken(hidden, passed, {run: f"_nb_id{k}"}) for k in range(together.count)]
    ready = " and ".join(f"{READY}({given})" for given in taken) if together.guarded else ""
    steps = [f"_nb_kept{k} = {LOADS}({given})" for k, given in enumerate(taken)]
    return ready, [*steps, *(f"{STORES}({given}, _nb_kept{k})" for k, given in enumerate(taken))]


def _pairs(
    together: Together, row: str, column: str, hidden: Sequence[str], passed: Sequence[str]
) -> tuple[str, list[str]]:
    """Return whether the ids `_nb_id0`, ... of the next column are ready as well (empty: always), and what is done for both."""
    first = [_taken(hidden, passed, {row: f"_nb_id{k}"}) for k in range(together.count)]
    next_ones = [_taken(hidden, passed, {row: f"_nb_id{k}", column: f"{column} + 1"}) for k in range(together.count)]
    ready = " and ".join(f"{READY}({given})" for given in next_ones) if together.guarded else ""
    steps = [f"_nb_kept{k} = {PAIR_LOADS}({given})" for k, given in enumerate(first)]
    return ready, [*steps, *(f"{PAIR_STORES}({given}, _nb_kept{k})" for k, given in enumerate(first))]


def _batch_parameters(count: int, levels: int) -> list[str]:
    """Return the parameters of a batch, for a number of arrays."""
    if levels == 0:
        return []
    steps = [f"_nb_step{k}_{level}" for k in range(count) for level in range(levels)]
    return ["_nb_elements", *(f"_nb_x{level}" for level in range(1, levels)), *steps]


def _batch_loop(names: Sequence[str], levels: int, *, along_z: bool) -> tuple[list[str], list[str]]:
    """Return what stands around the threads of one element of a batch."""
    if levels == 0:
        return [], []
    first, step = (f"{CUDA_MODULE}.blockIdx.z", f"{CUDA_MODULE}.gridDim.z") if along_z else ("0", "1")
    lines = [f"    _nb_e = {first}", "    while _nb_e < _nb_elements:", "        _nb_e0 = _nb_e"]
    for level in range(levels - 1, 0, -1):
        lines += [f"        _nb_e{level} = _nb_e0 % _nb_x{level}", f"        _nb_e0 = _nb_e0 // _nb_x{level}"]
    for k, name in enumerate(names):
        offset = " + ".join(f"_nb_e{level} * _nb_step{k}_{level}" for level in range(levels))
        lines.append(f"        _nb_at{k} = _nb_moved({name}, {offset})")
    return lines, [f"        _nb_e += {step}"]


def _nonnegative(name: str) -> str:
    return f"_nb_nonnegative({name})" if name.startswith("_nb_i") else name


def _extent(name: str) -> str:
    """Return what a block or grid dimension is, such as ``_nb_b0``."""
    return f"{CUDA_MODULE}.{'blockDim' if name[4] == 'b' else 'gridDim'}.{_AXES[int(name[5:])]}"


def _first(axis: str) -> str:
    m = CUDA_MODULE
    return f"{m}.blockIdx.{axis} * {m}.blockDim.{axis} + {m}.threadIdx.{axis}"
