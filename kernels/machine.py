"""The compiled functions as Python sees them: built-in functions, addresses, and the process-wide native state.

`machine()` loads them once, from the object cache or by compiling `numbridge.kernels.native`. What they do is said there. What
exchanges memory with others is loaded when it is first asked for: the first launch of a process does not wait for it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.cpu_backend.bounds import FOUND
from numbridge.kernels.cpu_backend.printing import print_line
from numbridge.kernels.cpu_backend.raised import RAISED
from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.native import object_layout as layout
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.object_cache import Compiled, add_symbol, compiled_or_stored, digest, load, machine_fingerprint

__all__ = [
    "EXCHANGE_MODULES",
    "MODULES",
    "Machine",
    "builtin",
    "capsule_pointer",
    "check_objects",
    "compile_functions",
    "front",
    "machine",
    "open_fronts",
]

MODULES = ("entry", "front", "records", "lent", "stacks")
EXCHANGE_MODULES = ("dlpack", "exchange_table", "checksum")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_keep: list[Any] = []
# What stands before Python functions, by the symbol of its native code, in the order of `table_layout.STATE_FRONT`; and what else
# that code must know, once somebody has said it.
# How many types the reader table has room for at first, and a quarter
_TABLE_SLOTS = 2048
_FRONTS = ("numbridge_front_launch", "numbridge_front_forall", "numbridge_front_configure")
_fronts: dict[str, tuple[layout.MethodDef, Callable[..., Any]]] = {}
_known_to_fronts: list[tuple[Any, ...]] = []
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
_new_function_of_module = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
_new_method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("PyInstanceMethod_New", ctypes.pythonapi))


@functools.cache
def _method(name: str, address: int, flags: int) -> int:
    definition = layout.MethodDef(name.encode(), address, flags, None)
    _keep.append(definition)
    return ctypes.addressof(definition)


def builtin(name: str, address: int, self_object: Any = None, *, one: bool = False, named: bool = False) -> Any:
    """Return a built-in function on native code.

    Parameters
    ----------
    name : str
        Its ``__name__``.
    address : int
        Native code ``(self, object)`` if `one`, ``(self, arguments, count, names)`` if `named`, else
        ``(self, arguments, count)``; it returns a new reference.
    self_object : object
        What it gets as ``self``; kept alive by the function.
    """
    flags = layout.METH_FASTCALL | layout.METH_KEYWORDS if named else layout.METH_FASTCALL
    return _new_function(_method(name, address, layout.METH_O if one else flags), self_object, None)


class _Front(ModuleType):
    """The ``self`` of a function that stands before a Python function, which it runs while there is no compiled code.

    To Python it is a module, so that the function is shown, copied and pickled as one of that module.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function.__module__)
        self.function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


def front(symbol: str, *, is_method: bool = False) -> Callable[[_Function], _Function]:
    """Decorate a Python function before which compiled code stands, which answers the usual calls.

    The result is a built-in function with the function's name, signature and docstring. It may be made, and called, before
    there is compiled code: until then it runs the function.

    Parameters
    ----------
    symbol : str
        The native code ``(self, arguments, count, names)`` of `numbridge.kernels.native.front`.
    is_method : bool
        Whether it is a method, which is passed the object that it is asked of.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
        shown = signature.replace(parameters=bare, return_annotation=signature.empty)
        text = f"{function.__name__}{shown}\n--\n\n{inspect.getdoc(function)}"
        # ``PyObject_Vectorcall(self, arguments, count, names)`` takes what such a function takes, and calls `_Front`.
        first = ctypes.cast(ctypes.pythonapi.PyObject_Vectorcall, ctypes.c_void_p).value
        flags = layout.METH_FASTCALL | layout.METH_KEYWORDS
        definition = layout.MethodDef(function.__name__.encode(), first, flags, text.encode())
        _fronts[symbol] = definition, function
        made = _new_function_of_module(ctypes.addressof(definition), _Front(function), function.__module__)
        answer: _Function = _new_method(made) if is_method else made
        return answer

    return decorate


def open_fronts(*known: Any) -> None:
    """Let compiled code answer for all fronts: at once if there is any, or when there is.

    Parameters
    ----------
    *known
        What it must know, in the order of `table_layout.STATE_FRONT`; without the functions, which come first.
    """
    _known_to_fronts.append(known)
    if _started:
        _started[0].take_fronts()


def compile_functions(exports: dict[str, tuple[Any, str]]) -> Compiled:
    """Compile Python functions to object code with Numba.

    Parameters
    ----------
    exports : dict
        Public name -> (function, Numba signature).
    """
    from numbridge.kernels.compilation.native_code import native_library, typed_exports

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


def _compile_modules(names: Sequence[str]) -> Compiled:
    exports: dict[str, tuple[Any, str]] = {}
    for name in names:
        module = importlib.import_module(f"numbridge.kernels.native.{name}")
        exports |= {symbol: (getattr(module, function), kind) for symbol, (function, kind) in module.EXPORTS.items()}
    return compile_functions(exports)


class _Exchanging:
    """A built-in function of a `Machine` that is made when it is first asked for."""

    def __init__(self, *, one: bool = False) -> None:
        self._one = one
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Machine, owner: type) -> Any:
        made = builtin(self._name, instance.exchange[f"numbridge_{self._name}"], one=self._one)
        # From now on it is found there first.
        return vars(instance).setdefault(self._name, made)


def _free_slot(table: np.ndarray[Any, np.dtype[np.int64]], address: int) -> int:
    """Return the place of a type's entry in a table that does not have it: where `reading.entry_of` looks last."""
    slot = (address >> 4) % len(table)
    while table[slot, nb.ENTRY_TYPE // 8]:
        slot = (slot + 1) % len(table)
    return slot


class Machine:
    """The native state of the process and the functions that work on it."""

    consume = _Exchanging(one=True)
    export_legacy = _Exchanging(one=True)
    export_versioned = _Exchanging(one=True)
    export_to = _Exchanging()
    checksum = _Exchanging()

    def __init__(self) -> None:
        self.state = np.zeros(nb.STATE_SIZE // 8, np.int64)
        self._tables = [np.zeros((_TABLE_SLOTS, nb.ENTRY_SIZE // 8), np.int64)]
        self._types = 0
        self.numpy_tags = _numpy_tags()
        self._publish_table()
        self._set(nb.STATE_NUMPY_TAGS, self.numpy_tags.ctypes.data)
        self._set(nb.STATE_NUMPY_TAG_COUNT, len(self.numpy_tags))
        self.addresses = self._load()
        at = self.addresses
        self.capture = builtin("capture", at["numbridge_capture"], one=True)
        self.adopt = builtin("adopt", at["numbridge_adopt"], one=True)
        self.describe = builtin("describe", at["numbridge_describe"], one=True)
        self.word = builtin("word", at["numbridge_word"], one=True)
        self.owner = builtin("owner", at["numbridge_owner"], one=True)
        self.hold = builtin("hold", at["numbridge_hold"])
        self.written = builtin("written", at["numbridge_written"], one=True)
        self.new_record = builtin("new_record", at["numbridge_new_record"])
        self.allocate = builtin("allocate", at["numbridge_allocate"])
        self.lend = builtin("lend", at["numbridge_lend"])
        self.end_lease = builtin("end_lease", at["numbridge_end_lease"])
        self.lent_at = builtin("lent_at", at["numbridge_lent_at"], one=True)
        self.to_numpy = builtin("to_numpy", at["numbridge_to_numpy"], _numpy_api(), one=True)

    def _set(self, offset: int, value: int) -> None:
        self.state[offset // 8] = value

    def enter_type(self, address: int, fields: Mapping[int, int]) -> None:
        """Enter how objects of a new type are read into the table; one thread at a time may do so."""
        table = self._tables[-1]
        if 4 * self._types >= 3 * len(table):
            self._widen_table()
            table = self._tables[-1]
        slot = _free_slot(table, address)
        for offset, value in fields.items():
            table[slot, offset // 8] = np.uint64(value & 0xFFFFFFFFFFFFFFFF).astype(np.int64)
        # The type comes last: from here on compiled code finds the entry.
        table[slot, nb.ENTRY_TYPE // 8] = address
        self._types += 1

    def _widen_table(self) -> None:
        """Give the table twice the room. Readings and records may point into the old ones, which are kept."""
        old = self._tables[-1]
        wide = np.zeros((2 * len(old), old.shape[1]), np.int64)
        for entry in old[old[:, nb.ENTRY_TYPE // 8] != 0]:
            wide[_free_slot(wide, int(entry[nb.ENTRY_TYPE // 8]))] = entry
        self._tables.append(wide)
        self._publish_table()

    def _publish_table(self) -> None:
        """Let compiled code find the last table, by two words that lie side by side.

        They are written in one go, which NumPy does with the GIL held, so that no reader meets one of each table.
        """
        table, first = self._tables[-1], nb.STATE_TABLE // 8
        self.state[first : first + 2] = np.array([table.ctypes.data, len(table) - 1], np.int64)

    def _load(self) -> dict[str, int]:
        add_symbol("numbridge_state", self.state.ctypes.data)
        add_symbol("numbridge_print", id(print_line))
        add_symbol("numbridge_bounds", FOUND.ctypes.data)
        add_symbol("numbridge_raised", RAISED.ctypes.data)
        add_symbol("numbridge_BufferError", id(BufferError))
        add_symbol("numbridge_KeyboardInterrupt", id(KeyboardInterrupt))
        add_symbol("numbridge_TypeError", id(TypeError))
        compiled, _ = compiled_or_stored(digest("machine", machine_fingerprint()), lambda: _compile_modules(MODULES))
        return load(compiled)

    @property
    def exchange(self) -> dict[str, int]:
        """The addresses of what exchanges memory with others, by their symbols."""
        with _starting:
            return _load_exchange()

    def take_fronts(self) -> None:
        """Put compiled code in the place of Python functions, once what it must know has been said."""
        for known in _known_to_fronts:
            everything = (*(_fronts[symbol][1] for symbol in _FRONTS), *known)
            _keep.append(everything)
            self._set(nb.STATE_FRONT, id(everything))
            for symbol in _FRONTS:
                _fronts[symbol][0].function = self.addresses[symbol]

    def exporter(self, address: int, stream: int) -> Any:
        """Return ``export_plain(array)`` for a framework's ``managed_tensor_to_py_object_no_sync``, and what knows its stream."""
        return builtin("export_plain", self.exchange["numbridge_export_plain"], (address, stream), one=True)

    def aligned_exporter(self, tags: dict[int, bool]) -> Any:
        """Return ``export_aligned(array)``: a legacy capsule of an array whose dtype's tag is in `tags`, or None."""
        return builtin("export_aligned", self.exchange["numbridge_export_aligned"], (tags,), one=True)

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
        self.state[nb.STATE_WATCHED // 8] = watched

    def release_later(self) -> None:
        """Let exported memory that a consumer deletes be given back outside of the consumer (see `native.dlpack`)."""
        self.state[nb.STATE_RELEASES_LATER // 8] = True

    def set_lender(self, lender: Callable[[Any], None]) -> None:
        """Name the function that is told of each read-only array before compiled code hands it on."""
        _keep.append(lender)
        self._set(nb.STATE_LENDER, id(lender))

    def start_threads(self, parallel_for: int, thread_count: int, lock: int) -> None:
        """Tell the compiled code where the threading layer's functions are; `lock` is 0 if it allows concurrent use."""
        self._set(nb.STATE_THREAD_COUNT, thread_count)
        self._set(nb.STATE_LOCK, lock)
        self._set(nb.STATE_PARALLEL_FOR, parallel_for)


@functools.cache
def _load_exchange() -> dict[str, int]:
    key = digest("exchange", machine_fingerprint())
    compiled, _ = compiled_or_stored(key, lambda: _compile_modules(EXCHANGE_MODULES))
    return load(compiled)


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
            _started[0].take_fronts()
        return _started[0]
