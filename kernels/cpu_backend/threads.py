"""The threads that large CPU launches are shared out to: Numba's threading layer, on TBB where it is installed.

TBB allows launches from several Python threads and in forked children. Without it, Numba's workqueue layer is used behind
a lock, because it ends the process when two threads enter it at once.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.machine import machine

__all__ = ["count", "has_tbb", "layer", "native_lock", "start_threads"]

_lock = threading.Lock()
_started: list[str] = []


def layer() -> str:
    """Return which layer runs large launches: ``tbb``, ``omp``, ``workqueue``, or ``not started``."""
    return _started[0] if _started else "not started"


def has_tbb() -> bool:
    """Tell whether TBB can be loaded, so that several launches may run at once."""
    return _load_tbb()


def count() -> int:
    """Return how many threads a large launch is shared out to."""
    return _thread_count()


def start_threads() -> None:
    """Start the threading layer, once per process."""
    if _started:
        return
    with _lock:
        if not _started:
            name, parallel_for, count = _start()
            guard = 0 if name in ("tbb", "omp") else native_lock()
            machine().start_threads(parallel_for, count, guard)
            _started.append(name)


@functools.cache
def _load_tbb() -> bool:
    """Load PyPI's tbb, which lies where the dynamic linker does not look."""
    for folder in (Path(sys.prefix) / "lib", Path(sys.base_prefix) / "lib"):
        try:
            ctypes.CDLL(str(folder / "libtbb.so.12"), ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False


def _start() -> tuple[str, int, int]:
    if "numba" not in sys.modules and _load_tbb() and "NUMBA_THREADING_LAYER" not in os.environ:
        pool = _pool()
        if pool is not None:
            _call(pool.launch_threads, _thread_count())
            return "tbb", pool.parallel_for, pool.get_num_threads
    return _start_through_numba()


def _pool() -> Any:
    """Return Numba's TBB layer without importing the numba package, or None if it cannot be loaded."""
    name = "numba.np.ufunc.tbbpool"
    package = importlib.util.find_spec("numba")
    if package is None or not package.submodule_search_locations:
        return None
    folder = Path(package.submodule_search_locations[0]) / "np" / "ufunc"
    spec = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
    if spec is None or spec.loader is None:
        return None
    try:
        pool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(pool)
    except ImportError:
        return None
    # Numba itself finds the same pool if it starts later.
    sys.modules[name] = pool
    return pool


def _thread_count() -> int:
    chosen = os.environ.get("NUMBA_NUM_THREADS")
    return int(chosen) if chosen else len(os.sched_getaffinity(0))


def _call(address: int, value: int) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_int)(address)(value)


def _start_through_numba() -> tuple[str, int, int]:
    import llvmlite.binding as llvm
    import numba
    from numba.np.ufunc import parallel

    if not parallel._is_initialized and numba.config.THREADING_LAYER not in ("workqueue", "omp"):
        found = _load_tbb()
        if numba.config.THREADING_LAYER == "default":
            numba.config.THREADING_LAYER = "tbb" if found else "workqueue"
    parallel._launch_threads()
    parallel_for = llvm.address_of_symbol("numba_parallel_for")
    count = llvm.address_of_symbol("get_num_threads")
    if not parallel_for or not count:
        raise NumbridgeError(
            "Numba's threading layer did not start; install the package tbb, or set NUMBA_THREADING_LAYER"
        )
    return str(numba.threading_layer()), parallel_for, count


def native_lock() -> int:
    """Return the address of a new lock of Python's, which compiled code takes without the GIL; it lives for good."""
    allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThread_allocate_lock", ctypes.pythonapi))
    return int(allocate() or 0)
