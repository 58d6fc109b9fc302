"""The loop around a kernel's body on the CPU, as source.

The generated function is ``run(block, geometry, first, last)``: `block` holds the arguments as Numba values, `geometry` the
launch's dimensions, and threads are numbered along the last dimension first. The inner loop runs over the last dimension
alone, with plain increments, so LLVM sees what it needs for SIMD; outer indices are carried, not divided. This module
compiles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numbridge.kernels.native import table_layout as nb

__all__ = ["RUN", "range_source"]

RUN = "_nb_run"
_BLOCK_DIMS, _GRID_DIMS = nb.PLAN_BLOCK - nb.PLAN_DIMS, nb.PLAN_GRID - nb.PLAN_DIMS


def range_source(
    entry: str,
    names: Sequence[str],
    rank: int,
    hidden: Sequence[str],
    *,
    may_raise: bool,
    sums: Mapping[str, str] | None = None,
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
    sums : mapping of str to str, optional
        Parameters that the body does not get, and the index of an element of each: the body returns a tuple of numbers,
        one for each of them, whose sums over all threads are added there.
    """
    sums = sums or {}
    lines = [f"def {RUN}(_nb_block, _nb_geometry, _nb_first, _nb_last):"]
    lines += [f"    {name} = _nb_argument_{k}(_nb_block)" for k, name in enumerate(names)]
    for name in hidden:
        base = {"b": _BLOCK_DIMS, "g": _GRID_DIMS}.get(name[4])
        if base is not None:
            lines.append(f"    {name} = _nb_load(_nb_geometry, {base + 8 * int(name[5:])})")
    lines += [f"    _nb_n{k} = _nb_load(_nb_geometry, {8 * k})" for k in range(rank)]
    passed = [name for name in names if name not in sums]
    loop = _loop(entry, passed, rank, hidden, len(sums))
    loop = [
        *(f"    _nb_sum{k} = 0.0" for k in range(len(sums))),
        *loop,
        *(f"    _nb_atomic_add({name}, {index}, _nb_sum{k})" for k, (name, index) in enumerate(sums.items())),
    ]
    if may_raise:
        loop = ["    try:", *(f"    {line}" for line in loop), "    except Exception:", "        return 1"]
    return "\n".join([*lines, *loop, "    return 0", ""])


def _loop(entry: str, names: Sequence[str], rank: int, hidden: Sequence[str], sums: int) -> list[str]:
    def call(last: str) -> list[str]:
        passed = [
            f"_nb_nonnegative({last if name == f'_nb_i{rank - 1}' else name})" if name[4] == "i" else name
            for name in hidden
        ]
        text = f"{entry}({', '.join([*passed, *names])})"
        added = [f"_nb_sum{k} = _nb_accumulate(_nb_sum{k}, _nb_result[{k}])" for k in range(sums)]
        return [f"_nb_result = {text}", *added] if sums else [text]

    if rank < 2:
        return ["    for _nb_k in range(_nb_first, _nb_last):", *(f"        {line}" for line in call("_nb_k"))]
    lines = ["    _nb_rest = _nb_first"]
    for k in range(rank - 1, 0, -1):
        lines += [f"    _nb_i{k} = _nb_rest % _nb_n{k}", f"    _nb_rest //= _nb_n{k}"]
    lines += ["    _nb_i0 = _nb_rest", "    while _nb_first < _nb_last:"]
    inner, bound = f"_nb_i{rank - 1}", f"_nb_n{rank - 1}"
    lines += [
        f"        _nb_end = min({bound}, {inner} + _nb_last - _nb_first)",
        f"        for _nb_k in range({inner}, _nb_end):",
        *(f"            {line}" for line in call("_nb_k")),
        f"        _nb_first += _nb_end - {inner}",
        f"        {inner} = 0",
    ]
    indent = "        "
    for k in range(rank - 2, -1, -1):
        lines.append(f"{indent}_nb_i{k} += 1")
        if k > 0:
            lines += [f"{indent}if _nb_i{k} == _nb_n{k}:", f"{indent}    _nb_i{k} = 0"]
            indent += "    "
    return lines
