"""Which kernels become a part of a program that is traced, and who is told of it: functions that keep what they have traced.

What a kernel reads elsewhere, such as a global, is in the program as it was then. Whoever keeps a program must know all kernels
in it, however they came there: launched, as functions of JAX of their own, or within such a function that was traced before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from numbridge.kernels.kernel import Kernel

__all__ = ["notice", "watching"]

_watcher: ContextVar[Callable[[Kernel], None] | None] = ContextVar("numbridge_watcher", default=None)


@contextlib.contextmanager
def watching(watcher: Callable[[Kernel], None]) -> Iterator[None]:
    """Call a function with each kernel that is noticed as long as this context is entered; so are those around it."""
    outer = _watcher.get()

    def both(kernel: Kernel) -> None:
        watcher(kernel)
        if outer is not None:
            outer(kernel)

    token = _watcher.set(both)
    try:
        yield
    finally:
        _watcher.reset(token)


def notice(kernel: Kernel) -> None:
    """Tell whoever traces a program now that a kernel becomes a part of it."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(kernel)
