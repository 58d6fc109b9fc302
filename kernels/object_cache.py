"""Object code on disk: where it lies, what it is keyed on, and how it gets into the process.

What Numba compiled is kept as an object file and loaded by LLVM alone, so a second process needs neither Numba's type
inference nor its code generator. A key covers everything that the code depends on: its source text, the versions of
numbridge's own native sources, Numba, llvmlite and Python, and the CPU. Entries are written whole, under a temporary name,
and renamed; a damaged one is compiled anew. Where the folder takes nothing (it is read-only, the disk is full), what it has is
found all the same, and what is compiled goes to a folder of the process.

The folder holds code that will be executed: it must belong to the user or to root, and nobody else may write to it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib.machinery
import importlib.util
import os
import pickle
import platform
import shutil
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numbridge.kernels.config import config
from numbridge.kernels.errors import NumbridgeError, NumbridgeWarning, callers_level

__all__ = [
    "Compiled",
    "add_symbol",
    "cache_folder",
    "compiled_or_stored",
    "cuda_fingerprint",
    "digest",
    "generator_fingerprint",
    "is_kept",
    "keep_text",
    "load",
    "machine_fingerprint",
    "named_folder",
    "private_folder",
    "remember",
    "stored",
]

_MAGIC = b"numbridge object 2\n"
_lock = threading.RLock()


@dataclass(frozen=True)
class Compiled:
    """Object code for some functions.

    Attributes
    ----------
    objects : tuple of bytes
        Object files: one for each function, or one for all.
    names : mapping of str to str
        The public name of each function, and its symbol.
    externals : tuple of str
        Symbols that the process must supply.
    facts : mapping
        Whatever else the compiler wants to remember with the code.
    """

    objects: tuple[bytes, ...]
    names: Mapping[str, str]
    externals: tuple[str, ...]
    facts: Mapping[str, Any]


def digest(*parts: bytes | str) -> str:
    """Return a short stable name for the parts."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:32]


# Numba's variables that decide about code: somebody who asks for that of another CPU is not to get what was stored for this one.
_CHOICES = tuple(
    f"NUMBA_{name}"
    for name in (
        *("CPU_NAME", "CPU_FEATURES", "ENABLE_AVX", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE"),
        *("DISABLE_INTEL_SVML", "DEBUGINFO", "BOUNDSCHECK"),
    )
)


@functools.cache
def machine_fingerprint() -> str:
    """Return what compiled code depends on besides its source: versions, the CPU, and what Numba is told of how to compile."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features().flatten()
    chosen = [f"{name}={os.environ[name]}" for name in _CHOICES if name in os.environ]
    versions = [_version(name) for name in ("numba", "llvmlite", "numpy")]
    sources = _sources("native", "cpu_backend", *_BOTH_BACK_ENDS)
    return "\n".join([*versions, platform.machine(), sys.version, llvm.get_host_cpu_name(), features, *chosen, sources])


def _version(package: str) -> str:
    """Return the name and version of a package as installed.

    Installers write them into the name of a folder beside the package; `importlib.metadata` takes ten times longer.
    """
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin is not None:
        beside = list(Path(spec.origin).parents[1].glob(f"{package}-*.dist-info"))
        if len(beside) == 1:
            return beside[0].name
    from importlib import metadata

    return f"{package} {metadata.version(package)}"


# Whole folders, so that no room is forgotten: code that is found again, although what makes it has changed, is wrong code.
_BOTH_BACK_ENDS = ("arithmetic", "compilation", "element_types")
_TYPES = ("parameter_types.py", "scalars.py")


def _sources(*folders: str) -> str:
    """Return a digest of the types of parameters, and of every module in some folders of this one, and in theirs."""
    here = Path(__file__).parent
    files = [here / name for name in _TYPES]
    for name in folders:
        files += sorted((here / name).rglob("*.py"))
    return digest(*(file.read_bytes() for file in files))


@functools.cache
def generator_fingerprint() -> str:
    """Return what a program, and text generated from it, depend on besides the kernel: the generator's own source."""
    return _sources("adjoint", "language", "cpu_backend")


@functools.cache
def cuda_fingerprint() -> str:
    """Return what code for CUDA depends on besides its source and architecture: the versions of the compilers."""
    from importlib import metadata

    found = []
    for name in ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-core", "nvidia-nvjitlink", "nvidia-nvvm"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name}, not as a package")
    return "\n".join([*found, sys.version, _sources("cuda_backend", *_BOTH_BACK_ENDS)])


def cache_folder() -> Path:
    """Return the folder of compiled code, private to the user; see `config`."""
    return private_folder(config.kernel_cache_dir)


@functools.cache
def private_folder(chosen: str | None) -> Path:
    """Return a folder for compiled code, the user's usual one by default, and make it if it does not exist.

    Raises
    ------
    NumbridgeError
        If there is no such folder, it belongs to another user, or others may write to it.
    """
    folder = named_folder(chosen) if chosen else _usual_folder()
    if folder is None:
        return _folder_of_process()
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        usable = folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        if chosen:
            raise NumbridgeError(
                f"the cache folder {chosen!r} (NUMBRIDGE_CACHE_DIR or config.kernel_cache_dir) cannot be written to; name another"
            )
        # No home to write to (a container, a service account): code lives as long as the process.
        return _folder_of_process()
    state = folder.stat()
    if hasattr(os, "getuid") and (
        state.st_uid not in (os.getuid(), 0) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise NumbridgeError(
            f"the cache folder {folder} must belong to you and be writable by nobody else, because compiled code in it is "
            f"executed; run `chmod go-w {folder}` or choose another (NUMBRIDGE_CACHE_DIR, config.kernel_cache_dir)"
        )
    return folder


def named_folder(chosen: str) -> Path:
    """Return a folder that was chosen for compiled code.

    Raises
    ------
    NumbridgeError
        If it begins with a home (``~``) that is not known.
    """
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:
        raise NumbridgeError(
            f"the cache folder {chosen!r} (NUMBRIDGE_CACHE_DIR or config.kernel_cache_dir) begins with a home that is not known; "
            "write the whole path"
        ) from error


def _usual_folder() -> Path | None:
    """Return where compiled code is kept if nothing else is chosen; None if there is no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(named) if named else Path.home() / ".cache") / "numbridge"
    except RuntimeError:  # neither HOME nor the system's list of users names one
        return None


def is_kept(folder: Path) -> bool:
    """Tell whether the folder of compiled code outlives the process."""
    return not (_folder_of_process.cache_info().currsize and folder == _folder_of_process())


@functools.cache
def _folder_of_process() -> Path:
    """Return a folder for what the cache does not take, which is removed when the process ends."""
    folder, owner = Path(tempfile.mkdtemp(prefix="numbridge-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a process that was forked has this folder from its parent
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@functools.cache
def _not_kept(folder: Path | None, reason: str | None) -> None:
    """Say once that compiled code does not outlive the process; there is no folder if there is no home."""
    why = f"the cache folder {folder} cannot be written to ({reason})" if folder else "there is no home folder"
    warnings.warn(
        f"compiled code is not kept: {why}, so every process compiles again; name another by NUMBRIDGE_CACHE_DIR or "
        "config.kernel_cache_dir",
        NumbridgeWarning,
        stacklevel=callers_level(),
    )


def _put(name: str, data: bytes, *, is_code: bool) -> Path:
    """Write a file into the cache, or, where that takes nothing, into the folder of this process; return where it lies."""
    folder = cache_folder()
    if is_code and not is_kept(folder):
        _not_kept(_usual_folder(), "it cannot be made, or is not yours to read")
    try:
        _put_into(folder, name, data)
    except OSError as error:
        if is_code:
            _not_kept(folder, error.strerror)
        folder = _folder_of_process()
        # Where there is no room at all, what is loaded already goes on.
        with contextlib.suppress(OSError):
            _put_into(folder, name, data)
    return folder / name


def _put_into(folder: Path, name: str, data: bytes) -> None:
    """Write a file so that no process ever sees half of it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody may have removed it
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, folder / name)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _folders() -> list[Path]:
    """Return where files are: the cache, and the folder of this process if there is one."""
    return [cache_folder(), *([_folder_of_process()] if _folder_of_process.cache_info().currsize else ())]


def _read(name: str) -> bytes | None:
    """Return what a file holds; None if there is none that can be read."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            return (folder / name).read_bytes()
    return None


def stored(key: str) -> Compiled | None:
    """Return what is stored under a key, or None."""
    data = _read(f"{key}.o")
    if data is None:
        return None
    body = data[len(_MAGIC) + 32 :]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : len(_MAGIC) + 32]:
        return None
    compiled: Compiled = pickle.loads(body)
    return compiled


def remember(key: str, compiled: Compiled) -> None:
    """Store object code under a key."""
    body = pickle.dumps(compiled)
    _put(f"{key}.o", _MAGIC + hashlib.sha256(body).digest() + body, is_code=True)


def keep_text(name: str, text: str, *, anew: bool = False) -> str:
    """Keep generated source where a person can read it; return the file. One that is there stays, unless it is made `anew`."""
    for folder in () if anew else _folders():
        with contextlib.suppress(OSError):
            if (folder / name).exists():
                return str(folder / name)
    return str(_put(name, text.encode(), is_code=False))


def add_symbol(name: str, address: int) -> None:
    """Make a name of the process known to code that is loaded from now on."""
    import llvmlite.binding as llvm

    llvm.add_symbol(name, address)


def _supply(externals: Iterable[str]) -> None:
    """Make sure that every external symbol exists, because LLVM ends the process on a missing one."""
    missing = _missing(externals)
    if missing:
        # Numba's C helpers alone first: all of Numba takes a hundred times longer to start.
        for name, address in _numba_helpers().items():
            add_symbol(f"numba_{name}", address)
        missing = _missing(missing)
    if missing:
        from numba.core.registry import cpu_target

        cpu_target.target_context.refresh()
        missing = _missing(missing)
    if missing:
        raise NumbridgeError(f"compiled code needs {', '.join(missing)}, which this process does not have")


def _missing(names: Iterable[str]) -> list[str]:
    import llvmlite.binding as llvm

    process = ctypes.CDLL(None)
    return [name for name in names if llvm.address_of_symbol(name) is None and not hasattr(process, name)]


@functools.cache
def _numba_helpers() -> dict[str, int]:
    """Return the addresses of the C functions that Numba's code may call, without importing the numba package."""
    name = "numba._helperlib"
    module = sys.modules.get(name)
    if module is None:
        package = importlib.util.find_spec("numba")
        locations = package.submodule_search_locations if package else None
        spec = importlib.machinery.PathFinder.find_spec(name, locations)
        if spec is None or spec.loader is None:
            return {}
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    helpers: dict[str, int] = module.c_helpers
    return helpers


@functools.cache
def _target() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()


def load(compiled: Compiled) -> dict[str, int]:
    """Load object code into the process for good; return the address of each of its functions.

    Each function's name becomes a symbol that the functions after it may refer to.
    """
    with _lock:
        _supply(name for name in compiled.externals if name not in compiled.names)
        addresses = {}
        groups = [compiled.names] if len(compiled.objects) == 1 else [{name: of} for name, of in compiled.names.items()]
        for data, names in zip(compiled.objects, groups, strict=True):
            for name, address in _load_object(data, names).items():
                addresses[name] = address
                add_symbol(name, address)
    return addresses


def _load_object(data: bytes, names: Mapping[str, str]) -> dict[str, int]:
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target().create_target_machine(opt=2, jit=True))
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    # Deleters and running kernels may outlive every Python reference, up to the end of the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return {name: int(engine.get_function_address(symbol)) for name, symbol in names.items()}


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Put the garbage collector off, as `_lock` is held.

    It would look again and again at every object that frameworks have made, while next to nothing here is garbage: a quarter of
    the time of compiling.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def compiled_or_stored(key: str, compile: Callable[[], Compiled]) -> tuple[Compiled, bool]:
    """Return the code of a key, and whether it was found; what was not is compiled and stored."""
    with _lock:
        found = stored(key)
        if found is not None:
            return found, True
        with _uncollected():
            made = compile()
        remember(key, made)
        return made, False
