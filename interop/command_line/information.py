"""What there is: versions, devices, the cache, threads, and what is missing with the line that brings it."""

from __future__ import annotations

import platform
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from numbridge.bridges.installed import FRAMEWORK_PACKAGES, is_there, version
from numbridge.command_line import cache_files
from numbridge.kernels.cpu_backend import threads
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.errors import NumbridgeError

__all__ = ["information", "show"]

_OURS = ("numbridge", "numba", "numba-cuda", "llvmlite", "numpy", "ml_dtypes", "tbb")
_TOOLKIT = ("cuda-bindings", "cuda-core", "nvidia-nvjitlink", "nvidia-nvvm")
_PIP = "pip install 'numbridge[cuda13]'"


def information() -> dict[str, Any]:
    """Return what there is, as plain values that JSON can hold; imports no framework."""
    frameworks = {name: _framework(name) for name in FRAMEWORK_PACKAGES}
    cuda = _cuda()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in _OURS},
        "frameworks": frameworks,
        "cuda toolkit": {name: version(name) for name in _TOOLKIT},
        "cuda": cuda,
        "cache": _cache(),
        "threads": {
            "layer": "tbb" if threads.has_tbb() else "workqueue, one launch at a time",
            "count": threads.count(),
        },
        "missing": _missing(frameworks, cuda),
    }


def _framework(name: str) -> str | None:
    if not is_there(name):
        return None
    return next(filter(None, map(version, FRAMEWORK_PACKAGES[name][0])), "of unknown version")


def _cuda() -> dict[str, Any]:
    missing = cuda_driver.missing_parts()
    if missing:
        return {"usable": False, "missing": missing, "install": _PIP}
    count = cuda_driver.driver_count()
    if not count:
        return {"usable": False, "missing": ["a CUDA device"], "install": None}
    driver = cuda_driver.driver()
    devices = [
        {"device": f"cuda:{k}", "name": driver.name(k), "capability": ".".join(map(str, driver.capability(k)))}
        for k in range(count)
    ]
    return {"usable": True, "devices": devices}


def _cache() -> dict[str, Any]:
    try:
        return cache_files.contents()
    except NumbridgeError as error:
        return {"error": str(error)}


def _missing(frameworks: dict[str, Any], cuda: dict[str, Any]) -> list[dict[str, str | None]]:
    """Return what is missing, what for, and what brings it."""
    found: list[dict[str, str | None]] = [
        {"what": name, "why": f"tensors of {name}", "install": FRAMEWORK_PACKAGES[name][1]}
        for name, there in frameworks.items()
        if there is None and name != "cupy"
    ]
    found += [
        {
            "what": part,
            "why": "arrays and kernels on a GPU",
            "install": None if "driver" in part or "device" in part else cuda["install"],
        }
        for part in cuda.get("missing", ())
    ]
    if not threads.has_tbb():
        found.append({"what": "tbb", "why": "several large launches at once", "install": "pip install tbb"})
    return found


def show(console: Console, found: dict[str, Any]) -> None:
    """Print what `information` returned."""
    version = found["packages"]["numbridge"] or "(not installed)"
    console.print(f"[bold]numbridge {version}[/], Python {found['python']}, {found['platform']}")
    console.print(Group(*map(_grid, _sections(found))))
    if found["missing"]:
        table = Table("missing", "needed for", "what brings it", title_justify="left", header_style="bold yellow")
        for item in found["missing"]:
            table.add_row(*map(escape, (item["what"], item["why"], item["install"] or "the system's administrator")))
        console.print(table)


def _sections(found: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    cuda, cache, threads_ = found["cuda"], found["cache"], found["threads"]
    devices = [
        (d["device"], f"{escape(d['name'])}, compute capability {d['capability']}") for d in cuda.get("devices", ())
    ]
    return [
        ("packages", _versions(found["packages"])),
        ("frameworks", _versions(found["frameworks"])),
        ("CUDA toolkit", _versions(found["cuda toolkit"])),
        ("devices", [("cpu", f"{threads_['count']} threads, layer {threads_['layer']}"), *devices]),
        ("cache", _cache_lines(cache)),
    ]


def _cache_lines(cache: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [("cannot be used", cache["error"])] if "error" in cache else cache_files.lines(cache)
    return [(name, escape(text)) for name, text in lines]


def _versions(versions: dict[str, str | None]) -> list[tuple[str, str]]:
    return [(name, "[dim]not installed[/]" if found is None else escape(found)) for name, found in versions.items()]


def _grid(section: tuple[str, list[tuple[str, str]]]) -> Table:
    title, rows = section
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=14, style="bold")
    grid.add_column(min_width=16, style="cyan")
    grid.add_column(overflow="fold")
    for k, (name, text) in enumerate(rows):
        grid.add_row("" if k else title, name, text)
    return grid
