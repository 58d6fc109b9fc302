"""What all tests share.

Every kernel that a test launches on the CPU is also compiled for CUDA, to a cubin of one of four architectures: its text decides
which. Of cases that are much alike, one of a few is run: ``@pytest.mark.one_in(3)``. ``nox -s thorough`` runs all cases, and
compiles each kernel for all of these architectures. No GPU is needed for that.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from emulated_cuda import is_emulated
from fake_cuda import remember_ptx
from numbridge.kernels import variant
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.errors import KernelError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.machine import machine
from numbridge.kernels.object_cache import cache_folder, digest, machine_fingerprint

THOROUGH = os.environ.get("NUMBRIDGE_THOROUGH") == "1"
ARCHITECTURES = ((7, 5), (8, 0), (9, 0), (10, 0))
# What only the CPU can: atomics on narrow integers, and NaN-aware ones on them; fields of records that are not aligned; printing
# complex numbers and vectors; functions of numba.njit with a signature, and of numba.vectorize.
ONLY_ON_THE_CPU = (
    "Unimplemented atomic",
    "works on arrays of 32- and 64-bit numbers",
    "is not aligned",
    "printing unimplemented for values of type",
    "using cpu function on device but its compilation is disabled",
    ", which numba.cuda does not know; convert it in the function",
    "is of type numba.np.ufunc.dufunc.DUFunc, which kernels cannot read",
)


# How often Python looks for cycles by default
OFTEN = gc.get_threshold()
# What numba.cuda has lowered last, in each thread
lowered = threading.local()


class Steps(threading.local):
    """Whether bodies are compiled in steps, for threads that take several ids at once, in each thread of Python."""

    wanted = True


STEPS = Steps()


def remember_lowered():
    """Keep what numba.cuda makes PTX of: it is the same for all of these architectures, and takes longer than the rest."""
    from numba.cuda.codegen import CUDACodeLibrary

    original = CUDACodeLibrary.get_asm_strs

    def get_asm_strs(library, cc=None):
        lowered.library = library
        return original(library, cc=cc)

    CUDACodeLibrary.get_asm_strs = get_asm_strs


def compile_for_cuda(kernel, parameters, weak):
    """Compile a kernel to a cubin of one architecture, or of each."""
    from numbridge.kernels.cuda_backend import cuda

    emitted = variant.variants_of(kernel).emitted(parameters, weak, "cuda")
    lowered.library = None
    # The same for a kernel in every run, and as often each of them
    at = zlib.crc32(emitted.text.encode()) % len(ARCHITECTURES)
    first, *others = (*ARCHITECTURES[at:], *ARCHITECTURES[:at])
    # Steps take as long again. What does not compile in steps is compiled without them, so that the body tells whether it does.
    STEPS.wanted = THOROUGH
    try:
        code = variant._cuda_code(kernel, emitted, parameters, first, "masked")
    finally:
        STEPS.wanted = True
    # Its name holds a digest of everything that the code depends on.
    done = Path(code.source_file).with_suffix(".for_all")
    if not THOROUGH or done.exists():
        return
    library = lowered.library
    for capability in others:
        # It was not lowered if its cubin lay on disk; and what it is linked with is made for one architecture.
        if library is None or library._linking_files:
            variant._cuda_code(kernel, emitted, parameters, capability, "masked")
            continue
        with cuda._for_capability(capability), cuda._as_nvvm_wants(fused=not emitted.repeatable):
            (ptx,) = library.get_asm_strs(cc=capability)
        assert cuda.link(ptx, capability, emitted.entry)
    done.touch()


def pytest_collection_modifyitems(config, items):
    """Leave out the cases that ``one_in`` does not take, where they are not asked for by name."""
    if THOROUGH or any("[" in argument for argument in config.args):
        return
    left = [item for item in items if _is_left_out(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        out = {*left}
        items[:] = [item for item in items if item not in out]


def _is_left_out(item):
    mark = item.get_closest_marker("one_in")
    if mark is None:
        return False
    indices, numbers = dict(item.callspec.indices), []
    for parameters in item.iter_markers("parametrize"):
        given = parameters.args[0]
        names = given.split(",") if isinstance(given, str) else given
        # What is given together has one number.
        first, *_ = [indices.pop(name.strip()) for name in names]
        numbers.append(first)
    # With several of them, each one's every value is among the cases that are left.
    return sum([*numbers, *indices.values()]) % mark.args[0] != mark.kwargs.get("first", 0)


def pytest_configure():
    remember_ptx()
    remember_lowered()
    on_the_cpu, has_devices = variant._cpu_variant, cuda_driver.driver_count() > 0
    in_steps = variant.ids_together

    def on_both(kernel, emitted, parameters, weak):
        made = on_the_cpu(kernel, emitted, parameters, weak)
        # Where devices are emulated, or there are some, tests run what CUDA makes of a kernel.
        if type(kernel) is Kernel and not has_devices and not is_emulated():
            try:
                compile_for_cuda(kernel, parameters, weak)
            except KernelError as error:
                if not any(reason in str(error) for reason in ONLY_ON_THE_CPU):
                    # No error of numbridge's, which a test might expect.
                    raise AssertionError(f"{kernel!r}, which runs on the CPU, does not compile for CUDA") from error
        return made

    variant._cpu_variant = on_both
    variant.ids_together = lambda *given: in_steps(*given) if STEPS.wanted else None


@pytest.fixture(scope="module", autouse=True)
def old_objects_are_left_alone(request: pytest.FixtureRequest) -> None:
    """What is alive when a module's tests begin stays out of its collections of garbage.

    Numba allocates millions of objects and keeps them: with what the modules before compiled, more than a third of the tests'
    time went into walking them again and again.
    """
    gc.collect()
    gc.freeze()
    # Compilers make many objects that live long, and few cycles: by default, looking for these takes a tenth of the time.
    # Paddle may take values in cycles that are not found yet for those of a program that it makes, and crash: see
    # `numbridge.operators.paddle_programs`.
    gc.set_threshold(*(OFTEN if "paddle" in request.module.__name__ else (100_000, 20, 20)))


@pytest.fixture
def cache_without_kernels(tmp_path: Path) -> str:
    """A folder, for NUMBRIDGE_CACHE_DIR of the processes that a test starts, of what launches kernels, and of no kernel.

    That code is the same for all of them, and takes longer to compile than everything that such a test does.
    """
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    machine()  # which stores its code, if it was not stored before
    shutil.copy(cache_folder() / f"{digest('machine', machine_fingerprint())}.o", folder)
    return str(folder)


@pytest.fixture
def run_python() -> Callable[..., str]:
    """``run_python(source)``: run it in a fresh process that must end well, and return what it printed."""

    def run(source: str, *options: str) -> str:
        command = [sys.executable, *options, "-c", textwrap.dedent(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
