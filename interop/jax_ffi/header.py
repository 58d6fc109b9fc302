"""Compares `call_frame_layout` with the header that the installed jaxlib ships, before anything relies on it.

Reads the C header's text; compiles nothing. A field that moved, or a major version that is not known, is an error that says so.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.kernels.errors import NumbridgeError

__all__ = ["api_version", "check_header", "offsets"]

_HEADER = Path("xla", "ffi", "api", "c_api.h")
_STRUCT = r"struct {name} \{{(.*?)\n\}}"
# Sizes, which are also alignments, on a 64-bit machine; whatever ends in * is a pointer, and an enum is an int.
_SIZES = {"size_t": 8, "int64_t": 8, "int32_t": 4, "uint32_t": 4, "int": 4, "XLA_FFI_Handler_Traits": 4}
_OLDER = dict(xla.OLDER_NAMES)
_ENUM = re.compile(r"XLA_FFI_(DataType|ExecutionStage|(Internal)?Extension_Type|Error_Code|ArgType|RetType|AttrType)")


def api_version(text: str) -> tuple[int, int]:
    """Return the version of the interface that a header defines."""
    found = [re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    if None in found:
        raise NumbridgeError(
            "jaxlib's c_api.h defines no XLA_FFI_API_MAJOR and XLA_FFI_API_MINOR; install jaxlib 0.10 to 0.12"
        )
    major, minor = (int(match.group(1)) for match in found if match)
    return major, minor


def offsets(text: str, name: str) -> dict[str, int]:
    """Return the offset in bytes of each field of a structure, as the header declares it.

    Parameters
    ----------
    text : str
        The header.
    name : str
        The structure's name, new or old.
    """
    found = _body(text, name) or _body(text, _OLDER.get(name, name))
    if found is None:
        raise NumbridgeError(
            f"jaxlib's c_api.h has no structure {name}; install a jaxlib that numbridge knows (0.10 to 0.12)"
        )
    places, end = {}, 0
    for kind, field in _fields(found):
        size, align = _measure(text, kind)
        end = -(-end // align) * align
        places[field] = end
        end += size
    return places


def _body(text: str, name: str) -> str | None:
    found = re.search(_STRUCT.format(name=re.escape(name)), text, re.DOTALL)
    return found.group(1) if found else None


def _fields(body: str) -> list[tuple[str, str]]:
    body = re.sub(r"//[^\n]*", "", body)
    body = re.sub(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\);", r"void* \1;", body)
    return [(kind, field) for kind, field in re.findall(r"(?:const )?(\w+\**)\s+(\w+);", body)]


def _measure(text: str, kind: str) -> tuple[int, int]:
    """Return size and alignment of a type."""
    if kind.endswith("*"):
        return 8, 8
    if kind in _SIZES:
        return _SIZES[kind], _SIZES[kind]
    if _ENUM.fullmatch(kind):
        return 4, 4
    places = offsets(text, kind)
    last = _fields(_body(text, kind) or "")[-1][0]
    return -(-(max(places.values()) + _measure(text, last)[0]) // 8) * 8, 8


def structures() -> list[type[ctypes.Structure]]:
    """Return every structure of `call_frame_layout`."""
    values: list[Any] = list(vars(xla).values())
    return [value for value in values if isinstance(value, type) and issubclass(value, ctypes.Structure)]


def check_header(text: str) -> tuple[int, int]:
    """Return the header's version if numbridge may rely on it.

    Raises
    ------
    NumbridgeError
        If the major version is not known, or a field that numbridge uses lies elsewhere.
    """
    major, minor = api_version(text)
    if major != xla.KNOWN_MAJOR:
        raise NumbridgeError(
            f"this jaxlib speaks XLA's foreign function interface {major}.{minor}, and numbridge knows {xla.KNOWN_MAJOR}.x; "
            "install a jaxlib that numbridge supports (see tests/constraints.txt), or a newer numbridge"
        )
    for structure in structures():
        places = offsets(text, structure.__name__)
        for name, *_ in structure._fields_:
            wanted = getattr(structure, name).offset
            found = places.get(name, places.get(_OLDER.get(name, name)))
            if found != wanted:
                raise NumbridgeError(
                    f"{structure.__name__}.{name} lies at byte {found} in jaxlib's c_api.h, and numbridge takes it "
                    f"to be at {wanted}; install a jaxlib that numbridge supports (see tests/constraints.txt)"
                )
    return major, minor


@functools.cache
def installed_version() -> tuple[int, int]:
    """Return the checked version of the installed jaxlib's header."""
    import jax

    path = Path(jax.ffi.include_dir()) / _HEADER
    if not path.exists():
        raise NumbridgeError(
            f"jaxlib ships no header {path}, so its call frames cannot be checked; install jaxlib 0.10 to 0.12"
        )
    return check_header(path.read_text())
