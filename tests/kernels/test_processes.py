"""Launches across processes and threads: the cache on disk, forked children, concurrent launches, interpreter exit, growth."""

from __future__ import annotations

import ast
import errno
import gc
import os
import re
import resource
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import numba
import numpy as np
import pytest

from numbridge.command_line import cache_files
from numbridge.kernels import object_cache
from numbridge.kernels.config import config
from numbridge.kernels.errors import NumbridgeError, NumbridgeWarning
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.language.loaded_source import file_of, is_of, lines_of
from numbridge.kernels.launch import launch

PRELUDE = """
import sys, threading
import numpy as np
from numbridge.kernels.kernel import kernel, func
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch
"""


@kernel
def increment(x):
    i = tid()
    x[i] = x[i] + 1


@kernel
def slow(x):
    i = tid()
    for _ in range(200):
        x[i] = x[i] * 0.5 + 1


def run(path: Path, body: str, **environment: str) -> str:
    """Run a script made of the prelude and `body`; return what it prints."""
    path.write_text(PRELUDE + textwrap.dedent(body))
    variables = os.environ | environment
    done = subprocess.run(
        [sys.executable, str(path)], env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


ADD = """
CONSTANT = {constant}

@func
def helper(v):
    return v + {inner}

@kernel
def add(x):
    i = tid()
    x[i] = helper(x[i]) + CONSTANT {more}

x = np.zeros(4)
launch(add, 4, [x])
print(x[0], add.explain(x).variant.from_cache, "numba" in sys.modules)
"""


def test_the_cache_is_valid_across_processes_and_knows_what_changed(tmp_path):
    script = tmp_path / "cached.py"
    unique = os.getpid() + 0.25  # no earlier run has compiled this
    first = run(script, ADD.format(constant=unique, inner=1, more=""))
    assert first == f"{unique + 1} False True"
    # The second process needs nothing of Numba's to launch.
    assert run(script, ADD.format(constant=unique, inner=1, more="")) == f"{unique + 1} True False"
    assert run(script, ADD.format(constant=unique, inner=2, more="")) == f"{unique + 2} False True"
    assert run(script, ADD.format(constant=unique + 1, inner=1, more="")) == f"{unique + 2} False True"
    assert run(script, ADD.format(constant=unique, inner=1, more="+ 1")) == f"{unique + 2} False True"
    assert run(script, ADD.format(constant=unique, inner=1, more="")) == f"{unique + 1} True False"


FOR_ANOTHER_CPU = """
import math

@kernel
def sines(x):
    i = tid()
    x[i] = math.sin(x[i] + {unique})

x = np.zeros(100)
launch(sines, 100, [x])
assert abs(x - math.sin({unique})).max() < 1e-15
print(sines.explain(x).variant.from_cache)
"""


def test_code_for_another_cpu_is_its_own(tmp_path):
    script, body = tmp_path / "another.py", FOR_ANOTHER_CPU.format(unique=os.getpid() + 0.25)
    assert run(script, body) == "False"
    assert run(script, body, NUMBA_CPU_NAME="generic") == "False"
    assert run(script, body, NUMBA_CPU_NAME="generic") == "True"
    assert run(script, body) == "True"


OF_NUMBA = """
import ctypes
import enum
import numba
from numba.extending import intrinsic, overload, register_jitable
import {helpers} as helpers

@numba.vectorize
def of_vectorize(v):
    return v * {factor}

@register_jitable
def of_jitable(v):
    return v * {factor}

def of_overload(v):
    raise NotImplementedError

@overload(of_overload)
def _of_overload(v):
    return lambda v: v * {factor}

@numba.njit
def of_njit(v):
    return of_overload(v)

@intrinsic
def of_intrinsic(context, v):
    def generate(context, builder, signature, arguments):
        return builder.fmul(arguments[0], context.get_constant(v, {factor}))
    return v(v), generate

@numba.cfunc("float64(float64)")
def of_cfunc(v):
    return v * {factor}

made = {{"factor": {factor}}}
exec("def without_source(v): return v * factor", made)
of_exec = numba.njit(made["without_source"])

of_c = ctypes.CDLL("libm.so.6").fabs
of_c.argtypes, of_c.restype = [ctypes.c_double], ctypes.c_double

class Kind(enum.Enum):
    FACTOR = {factor}

@func
def of_enum(v):
    return v * Kind.FACTOR.value

@func
def of_module(v):
    return helpers.multiplied(v) / helpers.TABLE[0] * helpers.vectorised(v)

@kernel
def through(x, y):
    i = tid()
    y[0, i] = of_vectorize(x[i])
    y[1, i] = of_jitable(x[i])
    y[2, i] = of_overload(x[i])
    y[3, i] = of_njit(x[i])
    y[4, i] = of_intrinsic(x[i])
    y[5, i] = of_cfunc(x[i])
    y[6, i] = of_exec(x[i])
    y[7, i] = of_enum(x[i])
    y[8, i] = of_module(x[i])
    y[9, i] = of_c(-x[i]) * {factor}

y = np.zeros((10, 1))
launch(through, 1, [np.ones(1), y])
print(*y[:, 0])
"""
HELPERS = """
import numba
import numpy as np

@numba.njit
def multiplied(v):
    return v * {factor}

@numba.vectorize
def vectorised(v):
    return v * {factor}

TABLE = np.array([{factor}.0])
"""


def test_what_numba_alone_knows_is_what_it_is_now(tmp_path):
    helpers = f"helpers_{os.getpid()}"  # no earlier run has compiled this
    for factor in (2, 3):
        (tmp_path / f"{helpers}.py").write_text(HELPERS.format(factor=factor))
        printed = run(
            tmp_path / "of_numba.py", OF_NUMBA.format(factor=factor, helpers=helpers), PYTHONDONTWRITEBYTECODE="1"
        )
        assert printed.split() == [f"{factor}.0"] * 10


def multiplying(factor):
    made = {"factor": factor}
    exec("def multiplied(v): return v * factor", made)
    multiplied = numba.njit(made["multiplied"])

    @kernel
    def through(x):
        i = tid()
        x[i] = multiplied(x[i])

    return through


def test_functions_of_one_name_are_told_apart():
    x = np.ones(1)
    for factor, product in ((2, 2), (5, 10), (2, 20)):
        launch(multiplying(factor), 1, [x])
        assert x[0] == product


EDITED = """
import numba
from numbridge.kernels.kernel import func

@numba.njit
def by_numba(v):
    return v * {factor}

@func
def by_us(v):
    return v * {factor}
"""
CALLS_EDITED = """
import {module} as edited
if {edits}:
    with open(edited.__file__) as file:
        text = file.read()
    with open(edited.__file__, "w") as file:
        file.write(text.replace("2.5", "3.5"))

@kernel
def through(x, y):
    i = tid()
    y[0, i] = edited.by_numba(x[i])
    y[1, i] = edited.by_us(x[i])

y = np.zeros((2, 1))
launch(through, 1, [np.ones(1), y])
print(*y[:, 0])
"""


def test_a_file_that_is_edited_while_a_process_runs_changes_the_next_process(tmp_path):
    module = f"edited_{os.getpid()}"  # no earlier run has compiled this
    (tmp_path / f"{module}.py").write_text(EDITED.format(factor=2.5))
    for edits, printed in ((True, "2.5 2.5"), (False, "3.5 3.5")):
        script = CALLS_EDITED.format(module=module, edits=edits)
        assert run(tmp_path / "edits.py", script, PYTHONDONTWRITEBYTECODE="1") == printed


LOADED = """
import math

def outer(a, b):
    c = a + b

    def closure(x, *, y: int = 3) -> "float":
        'A function of two variables around it.'
        z: float = x * c
        return z + a + y

    return closure

closure = outer(1, 2)

def recursive(x):
    return 1 if x < 1 else x * recursive(x - math.floor(1))

def inner(x):
    def deeper(y):
        return x * y + 0.0
    return [deeper(y) for y in range(3) if y in {1, 2}], lambda y: deeper(-0.0)
"""


def test_a_definition_is_compared_with_the_code_that_was_loaded(tmp_path):
    """The file is younger than this process, so every definition is compiled."""
    path = tmp_path / "loaded.py"
    path.write_text(LOADED)
    loaded = {}
    exec(compile(LOADED, str(path), "exec", dont_inherit=True), loaded)
    for name in ("outer", "closure", "recursive", "inner"):
        file = file_of(loaded[name])
        assert _is_loaded(loaded[name], file)
        for old, new in ((" * ", " + "), ("-0.0", "0.0"), ("(x", "(v"), ("math", "cmath")):
            edited = "".join(file).replace(old, new).splitlines(keepends=True)
            one, other = (lines_of(loaded[name].__code__, f).lines for f in (file, edited))
            touched = one != other
            assert _is_loaded(loaded[name], edited) is not touched, (name, old)


def _is_loaded(function, file):
    code = function.__code__
    text = textwrap.dedent("".join(lines_of(code, file).lines))
    definition = ast.parse(text).body[0] if text.lstrip().startswith("def") else None
    return isinstance(definition, ast.FunctionDef) and is_of(definition, code, file)


def test_a_file_of_the_same_size_and_time_is_read_again(tmp_path):
    path = tmp_path / "again.py"
    for value in ("2.0", "3.0"):
        text = f"import numbridge as nb\n\n@nb.kernel\ndef fill(x):\n    i = nb.tid()\n    x[i] = {value}\n"
        path.write_text(text)
        os.utime(path, (1e9, 1e9))
        loaded = {}
        exec(compile(text, str(path), "exec", dont_inherit=True), loaded)
        x = np.zeros(1)
        loaded["fill"].forall(1)(x)
        assert x[0] == float(value)


def test_a_damaged_entry_is_compiled_anew(tmp_path):
    key = object_cache.digest("damaged", str(tmp_path))
    made = object_cache.Compiled((b"",), {"f": "f"}, (), {})
    object_cache.remember(key, made)
    assert object_cache.stored(key) == made
    path = object_cache.cache_folder() / f"{key}.o"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert object_cache.stored(key) is None
    path.write_bytes(b"")
    assert object_cache.stored(key) is None
    path.unlink()
    assert object_cache.stored(key) is None


def test_the_cache_folder_is_private(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("NUMBRIDGE_CACHE_DIR", str(shared))
    object_cache.private_folder.cache_clear()
    try:
        with pytest.raises(NumbridgeError, match="writable by nobody else"):
            object_cache.cache_folder()
        monkeypatch.setenv("NUMBRIDGE_CACHE_DIR", str(tmp_path / "new"))
        object_cache.private_folder.cache_clear()
        folder = object_cache.cache_folder()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        monkeypatch.undo()
        object_cache.private_folder.cache_clear()


def test_without_a_home_code_lives_as_long_as_the_process(tmp_path, monkeypatch):
    def homeless(_=None):
        raise RuntimeError("Could not determine home directory.")

    made = object_cache.Compiled((b"",), {"f": "f"}, (), {})
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NUMBRIDGE_CACHE_DIR", raising=False)
    monkeypatch.setattr(config, "_kernel_cache_dir", None)
    monkeypatch.setattr(Path, "home", homeless)
    object_cache.private_folder.cache_clear()
    try:
        with pytest.warns(NumbridgeWarning, match="not kept: there is no home folder, .*_CACHE_DIR"):
            object_cache.remember("1" * 32, made)
        assert object_cache.stored("1" * 32) == made and not object_cache.is_kept(object_cache.cache_folder())
        with pytest.raises(NumbridgeError, match="no folder that keeps compiled code"):
            cache_files.contents()
        # A folder that is named needs no home, but where its name begins with one.
        monkeypatch.setenv("NUMBRIDGE_CACHE_DIR", str(tmp_path / "named"))
        assert object_cache.cache_folder() == tmp_path / "named" and object_cache.is_kept(tmp_path / "named")
        assert cache_files.contents()["files"] == 0
        monkeypatch.setattr(Path, "expanduser", homeless)
        with pytest.raises(
            NumbridgeError, match=r"cache folder '~/it' .*a home that is not known; write the whole path"
        ):
            config.kernel_cache_dir = "~/it"
    finally:
        monkeypatch.undo()
        object_cache.private_folder.cache_clear()


@kernel
def halved(x):
    i = tid()
    x[i] = 0.5 * x[i]


@kernel
def thirds(x):
    i = tid()
    x[i] = x[i] / 3.0


def _refusing(folder, number):
    """Return a `mkstemp` of a folder that takes nothing."""
    real = tempfile.mkstemp

    def mkstemp(**options):
        if Path(options["dir"]) == folder:
            raise OSError(number, os.strerror(number))
        return real(**options)

    return mkstemp


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_cache_that_takes_nothing_costs_a_warning_and_no_launch(tmp_path, monkeypatch, number):
    folder = tmp_path / "cache"
    monkeypatch.setattr(config, "kernel_cache_dir", folder)
    monkeypatch.setattr(tempfile, "mkstemp", _refusing(folder, number))
    x = np.ones(3, [np.float32, np.float64][number == errno.EROFS])
    with pytest.warns(
        NumbridgeWarning, match=rf"not kept: the cache folder {folder} .*{os.strerror(number)}.*_CACHE_DIR"
    ):
        launch(halved, 3, [x])
    launch(thirds, 3, [x])  # without another warning
    np.testing.assert_allclose(x, 0.5 / 3)
    report = thirds.explain(x)
    assert list(folder.iterdir()) == [] and Path(report.variant.source_file).read_text() == report.source
    # What could not be kept is found by the process that compiled it
    again = kernel(thirds.function)
    assert again.explain(x).variant.from_cache


def test_a_cache_that_is_read_only_is_read(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(config, "kernel_cache_dir", folder)
    x = np.ones(3, np.int32)
    launch(halved, 3, [x])
    monkeypatch.setattr(tempfile, "mkstemp", _refusing(folder, errno.EROFS))
    assert kernel(halved.function).explain(x).variant.from_cache


def test_nothing_unfinished_stays_in_a_full_cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(config, "kernel_cache_dir", folder)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(NumbridgeWarning, match="No space left"):
        object_cache.remember("0" * 32, object_cache.Compiled((b"",), {"f": "f"}, (), {}))
    assert list(folder.iterdir()) == []


def test_a_cache_that_somebody_removed_is_made_again(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(config, "kernel_cache_dir", folder)
    folder.rmdir()
    key, made = object_cache.digest("removed"), object_cache.Compiled((b"",), {"f": "f"}, (), {})
    object_cache.remember(key, made)
    assert object_cache.stored(key) == made and stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_generated_source_is_on_disk():
    x = np.zeros(3, np.float32)
    report = increment.explain(x)
    text = Path(report.variant.source_file).read_text()
    assert text == report.source and "def increment(_nb_i0, x):" in text and "def _nb_run(" in text


@pytest.mark.parametrize("size", [4, 300_000])
def test_launches_from_eight_threads(size):
    arrays = [np.zeros(size, np.float32) for _ in range(8)]
    errors = []

    def work(x):
        try:
            for _ in range(30):
                launch(increment, size, [x])
        except BaseException as error:  # noqa: BLE001 - whatever happened in the thread fails the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all((x == 30).all() for x in arrays)


def test_threads_that_compile_at_once_agree():
    @kernel
    def fresh(x):
        i = tid()
        x[i] = x[i] + 5

    types = [np.float32, np.float64, np.int32, np.int64, np.int16, np.uint8, np.int8, np.uint16]
    arrays = [np.zeros(10, dtype) for dtype in types]

    def work(x):
        for _ in range(5):
            launch(fresh, 10, [x])

    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((x == 25).all() for x in arrays)


def test_the_gil_is_released_while_a_kernel_runs():
    x = np.zeros(3_000_000)
    launch(slow, 10, [x])
    ticks, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            ticks[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    before = ticks[0]
    launch(slow, x.size, [x])
    during = ticks[0] - before
    stop.set()
    counter.join()
    assert during > 100


def test_a_forked_child_launches(tmp_path):
    printed = run(
        tmp_path / "forked.py",
        """
        import os, warnings
        warnings.simplefilter("ignore")  # Python 3.12 warns of forking a process with threads, which is what is tested

        @kernel
        def add(x):
            i = tid()
            x[i] = x[i] + 1

        x = np.zeros(300_000)
        launch(add, x.size, [x])
        child = os.fork()
        if child == 0:
            launch(add, x.size, [x])
            os._exit(0 if (x == 2).all() else 1)
        assert os.waitpid(child, 0)[1] == 0
        launch(add, x.size, [x])
        print(x[0], x[-1])
        """,
    )
    assert printed == "2.0 2.0"


@pytest.mark.parametrize("layer", ["workqueue", "tbb", "omp"])
def test_other_threading_layers_serve_several_threads(tmp_path, layer):
    printed = run(
        tmp_path / "layers.py",
        """
        from numbridge.kernels.cpu_backend import threads

        @kernel
        def add(x):
            i = tid()
            x[i] = x[i] + 1

        arrays = [np.zeros(200_000) for _ in range(4)]

        def work(x):
            for _ in range(20):
                launch(add, x.size, [x])

        workers = [threading.Thread(target=work, args=(x,)) for x in arrays]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(threads.layer(), all((x == 20).all() for x in arrays))
        """,
        NUMBA_THREADING_LAYER=layer,
    )
    assert printed == f"{layer} True"


def test_launches_while_the_interpreter_ends(tmp_path):
    printed = run(
        tmp_path / "ending.py",
        """
        import atexit

        @kernel
        def add(x):
            i = tid()
            x[i] = x[i] + 1

        x = np.zeros(200_000)
        run = add.forall(x.size)
        run(x)

        class Late:
            def __del__(self):
                run(x)

        late = sys.late = Late()
        atexit.register(lambda: (run(x), print(x[0])))

        def forever():
            y = np.zeros(200_000)
            while True:
                run(y)

        for _ in range(2):
            threading.Thread(target=forever, daemon=True).start()
        """,
    )
    assert printed == "2.0"


def test_what_makes_code_is_in_the_keys_of_the_cache(monkeypatch):
    folder = Path(object_cache.__file__).parent
    compilers = re.compile(r"^\s*(from|import) (numba|llvmlite)\b", re.M)
    # These call the compilers, and make nothing of their own.
    callers = {"machine", "object_cache"}
    assert {path.stem for path in folder.glob("*.py") if compilers.search(path.read_text())} == callers
    found: set[str] = set()
    monkeypatch.setattr(object_cache, "_sources", lambda *folders: found.update(folders) or "")
    for fingerprint in (
        object_cache.machine_fingerprint,
        object_cache.generator_fingerprint,
        object_cache.cuda_fingerprint,
    ):
        fingerprint.__wrapped__()
    assert found == {path.parent.name for path in folder.glob("*/__init__.py")}


def test_folders_in_a_folder_are_in_the_keys_of_the_cache(monkeypatch):
    folder = Path(object_cache.__file__).parent / "cpu_backend"
    monkeypatch.setattr(object_cache, "digest", lambda *parts: parts)
    inner = list(folder.glob("*/*.py"))
    assert inner and {path.read_bytes() for path in inner} <= set(object_cache._sources("cpu_backend"))


def test_no_growth_over_a_hundred_thousand_launches():
    x, a = np.zeros(4, np.float32), 1.5
    run_it = increment.forall(4)
    run_it(x)
    # What earlier tests have left in cycles holds None too.
    gc.collect()
    dtype_references = sys.getrefcount(x.dtype)
    references = sys.getrefcount(x), sys.getrefcount(a), sys.getrefcount(None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100_000):
        run_it(x)
    for _ in range(100_000):
        launch(increment, 4, [x])
    assert (sys.getrefcount(x), sys.getrefcount(a)) == references[:2]
    # The garbage collector may run meanwhile; a leak would count 200,000.
    assert abs(sys.getrefcount(None) - references[2]) < 50_000
    assert sys.getrefcount(x.dtype) <= dtype_references + 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096


def test_many_dimensions_do_not_grow_the_table_of_launchers():
    x = np.zeros(4, np.float32)
    for size in range(600):
        launch(increment, size % 5, [x])
        increment.forall(size)
        increment.forall(3, size % 200 + 1)
    assert len(increment.launchers) <= 64 and len(increment.variants.launchers) <= 256
    assert all(len(table) <= 256 for table in increment.launchers.values())


def test_buffers_and_arrays_of_other_kinds():
    import array

    values = array.array("f", [1, 2, 3])
    launch(increment, 3, [values])
    assert list(values) == [2, 3, 4]
    raw = bytearray(4)
    launch(increment, 4, [raw])
    assert raw == b"\1\1\1\1"
    with pytest.raises(NumbridgeError, match="read-only"):
        launch(increment, 4, [b"abcd"])

    class Interface:
        def __init__(self, held, **more):
            self.held = held
            self.__array_interface__ = held.__array_interface__ | more

    held = np.zeros(4)
    launch(increment, 4, [Interface(held)])
    assert (held == 1).all()
    with pytest.raises(NumbridgeError, match="mask"):
        launch(increment, 4, [Interface(held, mask=held)])

    class Copies:
        def __array__(self, dtype=None, copy=None):
            return np.zeros(4)

    with pytest.raises(NumbridgeError, match=r"'increment', parameter 'x'.*read-only"):
        launch(increment, 4, [Copies()])
