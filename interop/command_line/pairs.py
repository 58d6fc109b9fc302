"""Every pair of frameworks: which dtypes go from one to the other without a copy, why others do not, and what it costs.

Equal pointers mean that memory is shared. numbridge never copies unasked, so a pair and dtype is shared or refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

import numbridge as nb
from numbridge.bridges.bridge import FRAMEWORKS
from numbridge.bridges.installed import absent
from numbridge.command_line.timing import median_microseconds

__all__ = ["DTYPES", "Pair", "cells", "measure", "reasons", "report", "show", "usable"]

DTYPES = (
    *(
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
)


@dataclass
class Pair:
    """What happened between two frameworks.

    Attributes
    ----------
    source, target : str
        From which framework to which.
    shared, copied : list of str
        The dtypes whose memory is shared; those that were copied, which would be a defect.
    refused : dict of str to str
        Dtype → why it cannot be shared.
    microseconds : float or None
        The median time of a conversion of float32.
    """

    source: str
    target: str
    shared: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    microseconds: float | None = None


def usable() -> tuple[list[str], dict[str, str]]:
    """Return the frameworks that can be used here, and why the others cannot."""
    missing = {name: why for name in FRAMEWORKS if (why := absent(name)) is not None}
    return ["numbridge", *(name for name in FRAMEWORKS if name not in missing)], missing


def measure(names: Sequence[str], device: str = "cpu") -> list[Pair]:
    """Convert an array of every dtype from each framework to each other one."""
    if "jax" in names:
        import jax

        # Without it JAX has no 64-bit numbers, and would be found to lack them.
        jax.config.update("jax_enable_x64", True)
    return [_pair(source, target, device) for source in names for target in names]


def _pair(source: str, target: str, device: str) -> Pair:
    found = Pair(source, target)
    for dtype in DTYPES:
        base = nb.zeros(64, dtype=getattr(nb, dtype), device=device)
        try:
            x = nb.convert(base, source)
            y = nb.convert(x, target)
        except nb.NumbridgeError as error:
            found.refused[dtype] = str(error)
            continue
        shared = nb.explain(x).ptr == nb.explain(y).ptr
        (found.shared if shared else found.copied).append(dtype)
        if dtype == "float32":
            found.microseconds = median_microseconds(functools.partial(nb.convert, x, target))
    return found


def report(pairs: Sequence[Pair], missing: dict[str, str], device: str) -> dict[str, Any]:
    """Return everything as plain values that JSON can hold."""
    return {
        "device": device,
        "dtypes": list(DTYPES),
        "pairs": [asdict(pair) for pair in pairs],
        "missing": missing,
        "zero_copy": not any(pair.copied for pair in pairs),
    }


def cells(pairs: Sequence[Pair]) -> list[list[str]]:
    """Return the table's cells: a head, then for each framework its row."""
    names = list(dict.fromkeys(pair.source for pair in pairs))
    texts = {(pair.source, pair.target): _cell(pair) for pair in pairs}
    return [["from \\ to", *names], *([source, *(texts[source, target] for target in names)] for source in names)]


def _cell(pair: Pair) -> str:
    count = f"{len(pair.shared)} of {len(pair.shared) + len(pair.copied)} shared"
    return count if pair.microseconds is None else f"{count}\n{pair.microseconds:.2f} us"


def reasons(pairs: Sequence[Pair]) -> list[str]:
    """Return why dtypes were refused, each reason once, with the dtypes."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        for dtype, why in pair.refused.items():
            listed = found.setdefault(why, [])
            if dtype not in listed:
                listed.append(dtype)
    return [f"{', '.join(dtypes)}: {why}" for why, dtypes in found.items()]


def show(console: Console, found: dict[str, Any], pairs: Sequence[Pair]) -> None:
    """Print the table, and below it what is not shared and why."""
    head, *rows = cells(pairs)
    table = Table(*head, title=f"zero-copy dtypes on {found['device']}, and the time of a conversion (float32)")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in reasons(pairs):
        console.print(line, markup=False, highlight=False)
    for name, why in found["missing"].items():
        console.print(f"{name}: {why}", markup=False, highlight=False)
    console.print(
        "every pair and dtype that both sides have is zero-copy" if found["zero_copy"] else "NOT everything was shared"
    )
