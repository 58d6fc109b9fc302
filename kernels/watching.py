"""Who is told of launches before they run: tapes, which record them, and keep what they overwrite.

While nobody watches, a launch costs nothing extra. While somebody does, every launch goes over the slow road, whatever
form it has, so that nothing escapes. Watchers are kept by weak reference.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numbridge.kernels.machine import machine

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel
    from numbridge.kernels.parameter_types import ParameterType

__all__ = ["Watcher", "announce", "is_recorded", "is_watched", "unrecorded", "unwatch", "watch", "watchers"]

_lock = threading.Lock()
_watchers: weakref.WeakSet[Any] = weakref.WeakSet()
_local = threading.local()


class Watcher(Protocol):
    """What is told of launches."""

    def launching(
        self, kernel: Kernel, geometry: Any, arguments: Sequence[Any], types: Sequence[ParameterType], weak: str
    ) -> Callable[[], None] | None:
        """Prepare for a launch whose arguments have been checked, or refuse it; return what to do once it has run."""


def watch(watcher: Watcher) -> None:
    """Tell a watcher of every launch from now on."""
    with _lock:
        _watchers.add(watcher)
        machine().set_watched(True)


def unwatch(watcher: Watcher) -> None:
    """Tell a watcher of no more launches."""
    with _lock:
        _watchers.discard(watcher)
        machine().set_watched(bool(_watchers))


def is_watched() -> bool:
    """Tell whether somebody watches."""
    return bool(_watchers)


def watchers() -> list[Any]:
    """Return who watches."""
    with _lock:
        found = list(_watchers)
        if not found:
            machine().set_watched(False)
    return found


def is_recorded() -> bool:
    """Tell whether launches of this thread may be recorded."""
    return not getattr(_local, "unrecorded", False)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Launch without being recorded; what is overwritten is still kept."""
    before = getattr(_local, "unrecorded", False)
    _local.unrecorded = True
    try:
        yield
    finally:
        _local.unrecorded = before


def announce(
    kernel: Kernel, geometry: Any, arguments: Sequence[Any], types: Sequence[ParameterType], weak: str
) -> list[Callable[[], None]]:
    """Tell everybody of a launch; return what to do once it has run."""
    found = [watcher.launching(kernel, geometry, arguments, types, weak) for watcher in watchers()]
    return [action for action in found if action is not None]
