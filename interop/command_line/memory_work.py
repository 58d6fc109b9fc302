"""How memory grows over ten thousand calls, in processes that this module runs.

Linux only: the figures are those of ``/proc/self/status``, and the peak is reset through ``/proc/self/clear_refs``.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from numbridge.command_line.launch_work import conversion, launch
from numbridge.command_line.work import Row, Work

__all__ = ["CALLS", "Memory"]

CALLS = 10_000
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Memory:
    """What the calls of a piece of work leave in memory.

    Attributes
    ----------
    kind : str
        ``"launch"``: results are dropped; ``"from"``: results of a conversion are kept.
    framework : str
        Whose tensors.
    """

    kind: str
    framework: str

    @property
    def name(self) -> str:
        """What is done."""
        calls = f"results of from_{self.framework}, kept" if self._keeps else f"launches, 5 {self.framework} tensors"
        return f"memory: {CALLS:,} {calls}"

    @property
    def missing(self) -> str | None:
        """Why it cannot be measured here."""
        if not sys.platform.startswith("linux"):
            return "is measured on Linux only"
        return _work(self.kind, self.framework).missing

    @property
    def _keeps(self) -> bool:
        return self.kind == "from"

    def rows(self, rounds: int) -> list[Row]:
        """Return by how many KiB a process is larger afterwards, and by how many it was in between."""
        found: dict[str, list[int]] = {}
        names: list[str | None] = [None]
        while len(found) < len(names):
            # What is kept would be used again by the next contestant, which therefore starts in another process.
            chosen = len(found) if self._keeps else None
            code = f"from {__name__} import grow; grow({self.kind!r}, {self.framework!r}, {chosen})"
            command = [sys.executable, "-W", "ignore", "-c", code]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            names, figures = json.loads(done.stdout.splitlines()[-1])
            found.update(figures)
        return [
            Row(f"{self.name}, {what}", {name: figures[k] for name, figures in found.items()}, "KiB")
            for k, what in enumerate(("growth", "peak"))
        ]


def _work(kind: str, framework: str) -> Work:
    return conversion("from", framework) if kind == "from" else launch(framework, 5, "forall")


def grow(kind: str, framework: str, chosen: int | None) -> None:
    """Measure one contestant or all in this process; print the names of all, and the figures of the measured, as JSON."""
    contestants = _contestants(kind, framework)
    names = list(contestants)
    measured = names if chosen is None else [names[chosen]]
    print(json.dumps([names, {name: _growth(contestants[name], kind == "from") for name in measured}]))


def _growth(run: Callable[[], object], keeps: bool) -> tuple[int, int]:
    """Return the growth and the peak, in KiB, over the calls after the first thousand."""
    kept = list[object]()
    keep = kept.append if keeps else _drop
    for _ in range(1000):
        run()
    gc.collect()
    _CLEAR_REFS.write_text("5")
    before = _kibibytes("VmRSS")
    for _ in range(CALLS):
        keep(run())
    peak = _kibibytes("VmHWM") - before
    gc.collect()
    growth = max(_kibibytes("VmRSS") - before, 0)
    # The kernel counts the two in different batches of pages.
    return growth, max(peak, growth)


def _contestants(kind: str, framework: str) -> dict[str, Callable[[], object]]:
    found = dict(_work(kind, framework).prepare())
    if kind == "launch":
        # Warp has its own way to launch only.
        found |= {name: run for name, run in launch(framework, 5, "nb.launch").prepare().items() if name not in found}
    return found


def _drop(result: object) -> None:
    """Keep nothing."""


def _kibibytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} does not say {name}")
