"""The compiled functions as Python sees them: built-in functions, addresses, and the process-wide native state.

`machine()` loads them once, from the object cache or by compiling `numbridge.kernels.native`. What they do is said there.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.bounds import FOUND
from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.native import object_layout as layout
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.object_cache import Compiled, add_symbol, compiled_or_stored, digest, load, machine_fingerprint
from numbridge.kernels.printing import print_line

__all__ = ["MODULES", "Machine", "builtin", "capsule_pointer", "check_objects", "compile_functions", "machine"]

MODULES = ("entry", "records", "dlpack", "exchange_table", "lent", "checksum")
_FAST, _ONE = 0x0080, 0x0008  # METH_FASTCALL, METH_O
_keep: list[Any] = []
_starting = threading.RLock()
_started: list[Machine] = []

# Prototypes are classes, which ctypes would make anew at each use.
# ``(capsule, name in bytes or None) -> address``; another name than the capsule's raises.
capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


@functools.cache
def _method(name: str, address: int, flags: int) -> int:
    definition = layout.MethodDef(name.encode(), address, flags, None)
    _keep.append(definition)
    return ctypes.addressof(definition)


def builtin(name: str, address: int, self_object: Any = None, *, one: bool = False) -> Any:
    """Return a built-in function on native code.

    Parameters
    ----------
    name : str
        Its ``__name__``.
    address : int
        Native code ``(self, object)`` if `one`, else ``(self, arguments, count)``; it returns a new reference.
    self_object : object
        What it gets as ``self``; kept alive by the function.
    """
    return _new_function(_method(name, address, _ONE if one else _FAST), self_object, None)


def compile_functions(exports: dict[str, tuple[Any, str]]) -> Compiled:
    """Compile Python functions to object code with Numba.

    Parameters
    ----------
    exports : dict
        Public name -> (function, Numba signature).
    """
    from numbridge.kernels.native_code import native_library, typed_exports

    found = typed_exports(exports)
    if found is None:
        return _compiled_by_numba(exports)
    library = native_library(found)
    return Compiled((library._get_compiled_object(),), {name: name for name in exports}, _externals(library), {})


def _compiled_by_numba(exports: Mapping[str, tuple[Any, str]]) -> Compiled:
    from numba import cfunc

    objects, names, externals = [], {}, set[str]()
    for name, (function, signature) in exports.items():
        compiled = cfunc(signature, error_model="numpy", _nrt=False)(function)
        objects.append(compiled._library._get_compiled_object())
        names[name] = compiled.native_name
        # Numba links what it compiles at once, and the next function may name this one.
        add_symbol(name, compiled.address)
        externals |= {*_externals(compiled._library)}
    return Compiled(tuple(objects), names, tuple(sorted(externals)), {})


def _externals(library: Any) -> tuple[str, ...]:
    """Return the symbols that a library of Numba's expects from outside."""
    module = library._final_module
    declared = [item.name for item in [*module.functions, *module.global_variables] if item.is_declaration]
    return tuple(sorted(name for name in declared if not name.startswith("llvm.")))


def _compile_machine() -> Compiled:
    exports: dict[str, tuple[Any, str]] = {}
    for name in MODULES:
        module = importlib.import_module(f"numbridge.kernels.native.{name}")
        exports |= {symbol: (getattr(module, function), kind) for symbol, (function, kind) in module.EXPORTS.items()}
    return compile_functions(exports)


class Machine:
    """The native state of the process and the functions that work on it."""

    TABLE_SLOTS = 2048

    def __init__(self) -> None:
        self.state = np.zeros(nb.STATE_SIZE // 8, np.int64)
        self.table = np.zeros(self.TABLE_SLOTS * nb.ENTRY_SIZE // 8, np.int64)
        self.numpy_tags = _numpy_tags()
        self._set(nb.STATE_TABLE, self.table.ctypes.data)
        self._set(nb.STATE_TABLE_MASK, self.TABLE_SLOTS - 1)
        self._set(nb.STATE_NUMPY_TAGS, self.numpy_tags.ctypes.data)
        self._set(nb.STATE_NUMPY_TAG_COUNT, len(self.numpy_tags))
        self.addresses = self._load()
        at = self.addresses
        self.capture = builtin("capture", at["numbridge_capture"], one=True)
        self.adopt = builtin("adopt", at["numbridge_adopt"], one=True)
        self.describe = builtin("describe", at["numbridge_describe"], one=True)
        self.word = builtin("word", at["numbridge_word"], one=True)
        self.owner = builtin("owner", at["numbridge_owner"], one=True)
        self.consume = builtin("consume", at["numbridge_consume"], one=True)
        self.export_legacy = builtin("export_legacy", at["numbridge_export_legacy"], one=True)
        self.export_versioned = builtin("export_versioned", at["numbridge_export_versioned"], one=True)
        self.new_record = builtin("new_record", at["numbridge_new_record"])
        self.allocate = builtin("allocate", at["numbridge_allocate"])
        self.export_to = builtin("export_to", at["numbridge_export_to"])
        self.lend = builtin("lend", at["numbridge_lend"])
        self.end_lease = builtin("end_lease", at["numbridge_end_lease"])
        self.lent_at = builtin("lent_at", at["numbridge_lent_at"], one=True)
        self.checksum = builtin("checksum", at["numbridge_checksum"])
        self.to_numpy = builtin("to_numpy", at["numbridge_to_numpy"], _numpy_api(), one=True)

    def _set(self, offset: int, value: int) -> None:
        self.state[offset // 8] = value

    def _load(self) -> dict[str, int]:
        add_symbol("numbridge_state", self.state.ctypes.data)
        add_symbol("numbridge_print", id(print_line))
        add_symbol("numbridge_bounds", FOUND.ctypes.data)
        add_symbol("numbridge_BufferError", id(BufferError))
        add_symbol("numbridge_TypeError", id(TypeError))
        compiled, _ = compiled_or_stored(digest("machine", machine_fingerprint()), _compile_machine)
        return load(compiled)

    def exporter(self, address: int) -> Any:
        """Return ``export_plain(array)`` for a framework's ``managed_tensor_to_py_object_no_sync`` at `address`."""
        return builtin("export_plain", self.addresses["numbridge_export_plain"], (address,), one=True)

    def aligned_exporter(self, tags: dict[int, bool]) -> Any:
        """Return ``export_aligned(array)``: a legacy capsule of an array whose dtype's tag is in `tags`, or None."""
        return builtin("export_aligned", self.addresses["numbridge_export_aligned"], (tags,), one=True)

    def set_array_type(self, array_type: type, record: int, source: int, extra: int) -> None:
        """Tell the compiled code which class its arrays are of, and where in an instance its slots lie (bytes)."""
        _keep.append(array_type)
        self._set(nb.STATE_ARRAY_TYPE, id(array_type))
        self._set(nb.STATE_ARRAY_RECORD, record)
        self._set(nb.STATE_ARRAY_SOURCE, source)
        self._set(nb.STATE_ARRAY_EXTRA, extra)

    def set_driver(self, block: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Tell the compiled code where the CUDA driver's functions and contexts are listed (see `table_layout`)."""
        _keep.append(block)
        self._set(nb.STATE_DRIVER, block.ctypes.data)

    def set_watched(self, watched: bool) -> None:
        """Say whether somebody must be told of every launch."""
        self._set(nb.STATE_WATCHED, int(watched))

    def set_lender(self, lender: Callable[[Any], None]) -> None:
        """Name the function that is told of each read-only array before compiled code hands it on."""
        _keep.append(lender)
        self._set(nb.STATE_LENDER, id(lender))

    def start_threads(self, parallel_for: int, thread_count: int, lock: int) -> None:
        """Tell the compiled code where the threading layer's functions are; `lock` is 0 if it allows concurrent use."""
        self._set(nb.STATE_THREAD_COUNT, thread_count)
        self._set(nb.STATE_LOCK, lock)
        self._set(nb.STATE_PARALLEL_FOR, parallel_for)


def _numpy_tags() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the tag of each NumPy type number; both C types of one width have a number of their own."""
    spellings = [*"?bBhHiIlLqQefdFD", *(row.numpy for row in scalars.ALL)]
    rows = [(np.dtype(spelling).num, scalars.scalar_of(np.dtype(spelling)).tag) for spelling in spellings]
    tags = np.zeros(max(number for number, _ in rows) + 1, np.int64)
    for number, tag in rows:
        tags[number] = tag
    return tags


def _numpy_api() -> tuple[type, int, int, dict[int, np.dtype[Any]]]:
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

    table = capsule_pointer(_multiarray_umath._ARRAY_API, None)

    def slot(index: int) -> int:
        return int(ctypes.c_void_p.from_address(table + 8 * index).value or 0)

    dtypes = {row.tag: row.numpy for row in scalars.ALL}
    return np.ndarray, slot(layout.API_NEW_FROM_DESCR), slot(layout.API_SET_BASE_OBJECT), dtypes


def check_objects() -> None:
    """Check that Python's objects begin as compiled code takes it.

    Raises
    ------
    NumbridgeError
        If they do not.
    """
    if object.__basicsize__ != layout.OBJECT_SIZE:
        raise NumbridgeError(
            "numbridge reads objects as CPython with the global interpreter lock lays them out on 64-bit machines, and "
            f"{sys.executable} is another build, such as the free-threaded python3.14t; use the ordinary build of this version"
        )


@functools.cache
def machine() -> Machine:
    """Return the compiled functions of this process, loading or compiling them on first use."""
    return _started[0] if _started else _start()


def _start() -> Machine:
    check_objects()
    # Two threads that come first must not start two machines: code links to one only.
    with _starting:
        if not _started:
            _started.append(Machine())
        return _started[0]
