"""Who is told of launches before they run: tapes, which record them, and keep what they overwrite.

While nobody watches, a launch costs nothing extra. While somebody does, every launch goes over the slow road, whatever
form it has, so that nothing escapes. Watchers are kept by weak reference.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numbridge.kernels.machine import machine

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel
    from numbridge.kernels.parameter_types import ParameterType
    from numbridge.kernels.readers import Description

__all__ = ["Watcher", "announce", "is_recorded", "is_watched", "recorded", "unrecorded", "unwatch", "watch", "watchers"]

_lock = threading.Lock()
_watchers: list[weakref.ref[Any]] = []


class _Local(threading.local):
    """Whether a thread launches without being recorded."""

    unrecorded = False


_local = _Local()


class Watcher(Protocol):
    """What is told of launches."""

    def launching(
        self,
        kernel: Kernel,
        geometry: Any,
        arguments: Sequence[Any],
        types: Sequence[ParameterType],
        weak: str,
        found: Sequence[Description],
    ) -> Callable[..., None] | None:
        """Prepare for a launch whose arguments have been checked, or refuse it.

        What is returned is called once the launch has run, with ``has_raised=True`` if it ended with an exception.
        """


def watch(watcher: Watcher) -> None:
    """Tell a watcher of every launch from now on."""
    with _lock:
        _watchers[:] = [*_others(watcher), weakref.ref(watcher)]
        machine().set_watched(True)


def unwatch(watcher: Watcher) -> None:
    """Tell a watcher of no more launches."""
    with _lock:
        _watchers[:] = _others(watcher)
        machine().set_watched(bool(_watchers))


def _others(watcher: Watcher | None) -> list[weakref.ref[Any]]:
    others = []
    for known in _watchers:
        other = known()
        if other is not None and other is not watcher:
            others.append(known)
    return others


def is_watched() -> bool:
    """Tell whether somebody watches."""
    return bool(_watchers) and any(known() is not None for known in tuple(_watchers))


def watchers() -> list[Any]:
    """Return who watches."""
    found = []
    for known in tuple(_watchers):
        watcher = known()
        if watcher is not None:
            found.append(watcher)
    if not found:
        with _lock:
            _watchers[:] = _others(None)
            machine().set_watched(bool(_watchers))
    return found


def is_recorded() -> bool:
    """Tell whether launches of this thread may be recorded."""
    return not _local.unrecorded


class unrecorded:  # noqa: N801 - a function in all but speed
    """Launch without being recorded; what is overwritten is still kept."""

    __slots__ = ("_before",)
    _is_said = True

    def __enter__(self) -> None:
        """Record no launches of this thread from here on; or do, for `recorded`."""
        self._before = _local.unrecorded
        _local.unrecorded = self._is_said

    def __exit__(self, *raised: object) -> None:
        """Go on as before."""
        _local.unrecorded = self._before


class recorded(unrecorded):  # noqa: N801 - as above
    """Launch as a user does, in the midst of what is not recorded."""

    __slots__ = ()
    _is_said = False


def announce(
    kernel: Kernel,
    geometry: Any,
    arguments: Sequence[Any],
    types: Sequence[ParameterType],
    weak: str,
    found: Sequence[Description],
) -> list[Callable[..., None]]:
    """Tell everybody of a launch, and what its arguments are; return what to do once it has run: see `Watcher`."""
    told: list[Callable[..., None]] = []
    for watcher in watchers() if _watchers else ():
        action = watcher.launching(kernel, geometry, arguments, types, weak, found)
        if action is not None:
            told.append(action)
    return told
