"""ScopedTimer: how long a block took, printed, collected, or marked for a profiler."""

from __future__ import annotations

import builtins
import cProfile
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.errors import NumbridgeTypeError, NumbridgeValueError
from numbridge.storage.cupy_memory import cupy
from numbridge.streams.streams import synchronize as synchronize_devices
from numbridge.tape.tape import scope

__all__ = ["ScopedTimer"]

# 0xAARRGGBB; NVIDIA's own are those of its NVTX package.
_COLORS = {
    "black": 0xFF000000,
    "blue": 0xFF0071C5,
    "cyan": 0xFF00FFFF,
    "darkgreen": 0xFF006400,
    "gray": 0xFF808080,
    "green": 0xFF76B900,
    "magenta": 0xFFFF00FF,
    "orange": 0xFFFFA500,
    "purple": 0xFF800080,
    "rapids": 0xFF7400FF,
    "red": 0xFFFF0000,
    "white": 0xFFFFFFFF,
    "yellow": 0xFFFFFF00,
}


class ScopedTimer:
    """Time a ``with`` block.

    Parameters
    ----------
    name : str
        What the block is called.
    active : bool
        False does nothing.
    print : bool
        Print the time at the end, indented by how deep timers are nested.
    detailed : bool
        Print cProfile's table as well.
    dict : dict of str to list of float, optional
        Where to append the milliseconds, under `name`.
    use_nvtx : bool
        On CUDA, mark the block as an NVTX range for a profiler instead of timing it.
    color : int or str
        The range's colour: 0xAARRGGBB, or a name such as ``"cyan"``.
    synchronize : bool
        Wait for all devices at both ends, so that the time holds what was queued within, and nothing else.
    skip_tape : bool
        Whether not to be a scope of the tape that records, which `Tape.visualize` draws.

    Attributes
    ----------
    elapsed : float
        Milliseconds, after the block.
    extra_msg : str
        What is printed after the time, if it is set within the block.
    enabled : bool
        Of the class: False has all timers that are made from then on do nothing.

    Raises
    ------
    NumbridgeValueError
        If there is no colour of that name.
    NumbridgeTypeError
        If `dict` is something else.

    Examples
    --------
    >>> import numbridge as nb
    >>> with nb.ScopedTimer("work", print=False) as timer:
    ...     pass
    >>> timer.elapsed >= 0
    True
    """

    enabled = True
    _depth = 0

    def __init__(
        self,
        name: str,
        active: bool = True,
        print: bool = True,
        detailed: bool = False,
        dict: builtins.dict[str, list[float]] | None = None,
        use_nvtx: bool = False,
        color: int | str = 0xFF76B900,
        synchronize: bool = False,
        skip_tape: bool = False,
    ) -> None:
        if dict is not None and not isinstance(dict, MutableMapping):
            raise NumbridgeTypeError(
                f"dict is {dict!r}; it must be a dictionary, where the milliseconds are appended under the timer's name, or None"
            )
        self.name, self.active, self.print, self.detailed = name, active and self.enabled, print, detailed
        self.dict, self.color, self.synchronize = dict, _color(color), synchronize
        self.use_nvtx = use_nvtx and cuda_driver.driver_count() > 0
        self.elapsed, self.extra_msg = 0.0, ""
        self._skip_tape = skip_tape
        self._end_scope: Callable[[], None] = lambda: None
        self._profile: Any = None
        self._start = 0

    def __enter__(self) -> ScopedTimer:
        """Start."""
        if not self._skip_tape:
            self._end_scope = scope(self.name)
        if not self.active:
            return self
        if self.synchronize:
            synchronize_devices()
        if self.use_nvtx:
            cupy().cuda.nvtx.RangePushC(self.name, self.color)
            return self
        ScopedTimer._depth += 1
        if self.detailed:
            self._profile = cProfile.Profile()
            self._profile.enable()
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop, and report."""
        self._end_scope()
        if not self.active:
            return
        if self.synchronize:
            synchronize_devices()
        if self.use_nvtx:
            cupy().cuda.nvtx.RangePop()
            return
        self.elapsed = (time.perf_counter_ns() - self._start) / 1e6
        ScopedTimer._depth -= 1
        if self._profile is not None:
            self._profile.disable()
            self._profile.print_stats(sort="tottime")
        if self.dict is not None:
            self.dict.setdefault(self.name, []).append(self.elapsed)
        if self.print:
            more = f" {self.extra_msg}" if self.extra_msg else ""
            builtins.print(f"{'  ' * ScopedTimer._depth}{self.name} took {self.elapsed:.2f} ms{more}")


def _color(color: int | str) -> int:
    if not isinstance(color, str):
        return color
    if color not in _COLORS:
        raise NumbridgeValueError(
            f"color is {color!r}; it must be a number, 0xAARRGGBB, or one of {', '.join(_COLORS)}"
        )
    return _COLORS[color]
