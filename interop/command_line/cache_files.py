"""The folder of compiled code: where it is, how large, and how to empty it. Only numbridge's own files are removed."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.object_cache import cache_folder, is_kept

__all__ = ["clear", "contents", "described", "lines"]

# Object files and generated sources; somebody may have named a folder that holds files of their own.
_OURS = re.compile(r"(\w+_)?[0-9a-f]{32}\.(o|py)")
_UNFINISHED, _HOUR = re.compile(r"tmp\w+\.tmp"), 3600.0


def contents() -> dict[str, Any]:
    """Return where compiled code is kept, and how much.

    Raises
    ------
    NumbridgeError
        If the folder cannot be used.
    """
    folder = cache_folder()
    if not is_kept(folder):
        raise NumbridgeError(
            "there is no folder that keeps compiled code: this user has no home that can be written to, so every process "
            "compiles again; name one by NUMBRIDGE_CACHE_DIR"
        )
    files = _files(folder)
    return {"folder": str(folder), "files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def clear() -> dict[str, Any]:
    """Remove what numbridge has stored; return what there was. Running processes keep the code that they have loaded."""
    found = contents()
    for file in _files(Path(found["folder"])):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise NumbridgeError(f"{file} cannot be removed: {error.strerror}") from error
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if _is_ours(file) and file.is_file())


def _is_ours(file: Path) -> bool:
    # An unfinished file that is young is being written by another process.
    old = bool(_UNFINISHED.fullmatch(file.name)) and time.time() - file.stat().st_mtime > _HOUR
    return old or bool(_OURS.fullmatch(file.name))


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what `contents` returned, for people."""
    return [
        ("folder", described(found["folder"])),
        ("files", f"{found['files']}, {found['bytes'] / 1e6:.1f} MB"),
    ]


def described(folder: str) -> str:
    """Return a folder, with whether it takes nothing."""
    takes_nothing = os.path.isdir(folder) and not os.access(folder, os.W_OK)
    return f"{folder}, which cannot be written to" if takes_nothing else folder
