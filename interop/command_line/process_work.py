"""What a new process costs that launches one kernel: with nothing kept from before, and with everything.

Each contestant keeps its compiled code in a folder that is made for it, so that nobody's own is looked into.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from numbridge.bridges.installed import is_there
from numbridge.command_line.work import Row

__all__ = ["FIRST_LAUNCH", "FirstLaunch", "with_bytecode"]

FIRST_LAUNCH = "first launch of a process"

_OURS = """
import numbridge as nb

@nb.kernel
def first(x):
    i = nb.tid()
    x[i] = x[i] + 1

def launch(x):
    nb.launch(first, 10, [x])
"""

_WARP = """
import warp as wp
wp.config.log_level = wp.LOG_ERROR

@wp.kernel
def first(x: wp.array(dtype=wp.float64)):
    i = wp.tid()
    x[i] = x[i] + wp.float64(1.0)

def launch(x):
    wp.launch(first, 10, [x], device="cpu")
"""

_NUMBA = """
import numba

@numba.njit(parallel=True, cache=True)
def first(x):
    for i in numba.prange(x.size):
        x[i] = x[i] + 1

launch = first
"""

_MEASURED = """
import json
import time
from pathlib import Path

import numpy as np

x = np.zeros(10)
start = time.perf_counter()
launch(x)
seconds = time.perf_counter() - start
assert x.tolist() == [1.0] * 10
# Not `ru_maxrss`, which begins with the peak of the process that started this one.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([seconds * 1e6, int(status["VmHWM"].split()[0])]))
"""

# contestant → program, variable that names the folder of its compiled code, package
_PROGRAMS = {
    "numbridge": (_OURS, "NUMBRIDGE_CACHE_DIR", "numbridge"),
    "Warp": (_WARP, "WARP_CACHE_PATH", "warp"),
    "Numba prange": (_NUMBA, "NUMBA_CACHE_DIR", "numba"),
}


def with_bytecode() -> dict[str, str]:
    """Return the environment of a process that keeps Python's bytecode, which installed packages have from the start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class FirstLaunch:
    """The first launch of a process: its time, cold and warm, and the memory of the process."""

    name: str = FIRST_LAUNCH
    missing: str | None = None
    contestants: tuple[str, ...] = tuple(_PROGRAMS)

    def rows(self, rounds: int) -> list[Row]:
        """Return the times of one cold process, and medians of at most three warm ones."""
        runs = {name: self._runs(name, 1 + min(rounds, 3)) for name in self.contestants if is_there(_PROGRAMS[name][2])}
        return [
            Row(f"{self.name}, nothing compiled before", {name: found[0][0] for name, found in runs.items()}),
            Row(
                f"{self.name}, compiled code on disk",
                {name: statistics.median(time for time, _ in found[1:]) for name, found in runs.items()},
            ),
            Row(
                "memory: peak of a process with one launch, compiled code on disk",
                {name: statistics.median(peak for _, peak in found[1:]) for name, found in runs.items()},
                "KiB",
            ),
        ]

    @staticmethod
    def _runs(name: str, count: int) -> list[tuple[float, float]]:
        program, folder_of, _ = _PROGRAMS[name]
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "first.py"
            script.write_text(program + _MEASURED)
            environment = with_bytecode() | {folder_of: str(Path(folder) / "cache")}
            command = [sys.executable, "-W", "ignore", str(script)]
            done = [
                subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                for _ in range(count)
            ]
        return [tuple(json.loads(one.stdout.splitlines()[-1])) for one in done]
