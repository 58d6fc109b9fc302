"""Doing at once what first uses otherwise wait for: numbridge's own compiled code, its threads, the CUDA driver. No kernels."""

from __future__ import annotations

from numbridge.kernels.cpu_backend.threads import start_threads
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.machine import machine

__all__ = ["init"]


def init() -> None:
    """Start numbridge now, rather than with the first array or launch.

    It loads numbridge's own compiled code, which is compiled once on a machine and takes some seconds then; starts the
    threads of large launches on the CPU; and loads the CUDA driver, if there is one. Calling it is never needed, and
    calling it again does nothing.

    Raises
    ------
    NumbridgeError
        If something of this cannot be done here; the message says what is missing.

    Examples
    --------
    >>> import numbridge as nb
    >>> nb.init()
    """
    machine()
    start_threads()
    if cuda_driver.driver_count():
        cuda_driver.devices()
