"""``python -m numbridge``: what this installation is and has.

``info`` prints versions, devices, the cache and what is missing; ``info --json`` the same for programs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

from numbridge.kernels import cuda_driver, threads
from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.object_cache import cache_folder

__all__ = ["information", "main"]

_OURS = ("numbridge", "numba", "numba-cuda", "llvmlite", "numpy", "ml_dtypes", "tbb")
_FRAMEWORKS = ("torch", "paddlepaddle", "jax", "cupy-cuda12x", "cupy-cuda13x")
_TOOLKIT = ("cuda-bindings", "cuda-core", "nvidia-nvjitlink", "nvidia-nvvm")
_PIP = "pip install 'numbridge[cuda13]'"


def information() -> dict[str, Any]:
    """Return what there is, as plain values that JSON can hold; imports no framework."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _OURS},
        "frameworks": {name: _version(name) for name in _FRAMEWORKS},
        "cuda toolkit": {name: _version(name) for name in _TOOLKIT},
        "cuda": _cuda(),
        "cache": _cache(),
        "threads": {
            "layer": "tbb" if threads.has_tbb() else "workqueue, one launch at a time",
            "count": threads.count(),
        },
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


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
        folder = cache_folder()
    except NumbridgeError as error:
        return {"error": str(error)}
    files = [file for file in Path(folder).iterdir() if file.is_file()]
    return {"folder": str(folder), "files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def _lines(value: Any, indent: str = "") -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{indent}{key}", *_lines(item, indent + "  ")]
        elif isinstance(item, list):
            lines.append(f"{indent}{key}")
            lines += [
                f"{indent}  " + (", ".join(map(str, i.values())) if isinstance(i, dict) else str(i)) for i in item
            ]
        else:
            lines.append(f"{indent}{key:<16} {'not installed' if item is None else item}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m numbridge", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, devices, cache, and what is missing")
    info.add_argument("--json", action="store_true", help="for programs")
    chosen = parser.parse_args(arguments)
    found = information()
    print(json.dumps(found, indent=2) if chosen.json else "\n".join(_lines(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
