"""Devices: what they are called, which there are, and which one is current.

Where CUDA cannot be used, everything that asks for it raises the one error of `cuda_unavailable`. Imports no framework.
"""

from __future__ import annotations

import contextvars
import re
from typing import NoReturn

from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.cuda_backend.cuda_driver import cuda_unavailable
from numbridge.kernels.errors import DeviceError, NumbridgeTypeError, NumbridgeValueError

__all__ = [
    "CPU",
    "Device",
    "ScopedDevice",
    "cuda_unavailable",
    "device_count",
    "get_device",
    "get_devices",
    "set_device",
]

_NAME = re.compile(r"cuda(?::(\d+))?")


class Device:
    """A place where arrays lie and kernels run; equal to its name.

    Attributes
    ----------
    kind : str
        ``"cpu"`` or ``"cuda"``.
    ordinal : int
        Which one of its kind; 0 for the CPU.
    name : str
        ``"cpu"``, or such as ``"cuda:0"``.

    Examples
    --------
    >>> import numbridge as nb
    >>> nb.get_device("cpu") == "cpu"
    True
    """

    __slots__ = ("kind", "name", "ordinal")

    kind: str
    ordinal: int
    name: str

    def __init__(self, kind: str, ordinal: int = 0) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "ordinal", ordinal)
        object.__setattr__(self, "name", kind if kind == "cpu" else f"{kind}:{ordinal}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: a device is a value."""
        raise AttributeError(f"a Device cannot be changed: {name!r} is read-only")

    @property
    def is_cpu(self) -> bool:
        """Whether this is the CPU."""
        return self.kind == "cpu"

    @property
    def is_cuda(self) -> bool:
        """Whether this is a CUDA GPU."""
        return self.kind == "cuda"

    def __eq__(self, other: object) -> bool:
        """Compare with another device, or with a device's name."""
        if isinstance(other, Device):
            return self.name == other.name
        return self.name == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        """Hash as the name does."""
        return hash(self.name)

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def __repr__(self) -> str:
        """Return such as ``Device('cpu')``."""
        return f"Device({self.name!r})"

    def __reduce__(self) -> tuple[type[Device], tuple[str, int]]:
        """Pickle as a value."""
        return Device, (self.kind, self.ordinal)


CPU = Device("cpu")
# None: the first CUDA device if there is one, else the CPU
_current: contextvars.ContextVar[Device | None] = contextvars.ContextVar("numbridge_device", default=None)


def get_device(name: Device | str | None = None) -> Device:
    """Return a device by its name, or the current one.

    Parameters
    ----------
    name : Device or str, optional
        ``"cpu"``, such as ``"cuda:1"``, or ``"cuda"`` for the current CUDA device. None is the current device: the one
        that was set, else the first CUDA device if there is one, else the CPU.

    Raises
    ------
    DeviceError
        If it is a CUDA device that does not exist, or CUDA cannot be used here; the message says what is missing.
    NumbridgeValueError
        If nothing is called so.
    """
    if name is None:
        return _current.get() or (Device("cuda", 0) if cuda_driver.driver_count() else CPU)
    if not isinstance(name, Device | str):
        raise NumbridgeTypeError(f"device is {name!r}; it must be a Device, a name such as 'cpu', or None")
    if str(name) == CPU.name:
        return CPU
    named = _NAME.fullmatch(str(name))
    if named is None:
        raise NumbridgeValueError(f"there is no device {name!r}; numbridge knows 'cpu' and 'cuda:<ordinal>'")
    return _cuda(name, named[1])


def _cuda(name: Device | str, ordinal: str | None) -> Device:
    count = cuda_driver.driver_count()
    if not count:
        raise cuda_unavailable(f"device {str(name)!r}")
    if ordinal is None:
        now = _current.get()
        return now if now is not None and now.is_cuda else Device("cuda", 0)
    if int(ordinal) >= count:
        raise DeviceError(f"there is no device {str(name)!r}: this machine has cuda:0 to cuda:{count - 1}")
    return Device("cuda", int(ordinal))


def set_device(name: Device | str) -> Device:
    """Make a device the current one of this context (thread or task), and return it."""
    device = get_device(name)
    _current.set(device)
    return device


def get_devices() -> list[Device]:
    """Return every device that kernels can run on: the CPU, then the CUDA devices."""
    return [CPU, *(Device("cuda", ordinal) for ordinal in range(cuda_driver.driver_count()))]


def device_count() -> int:
    """Return how many devices kernels can run on, the CPU included."""
    return len(get_devices())


class ScopedDevice:
    """Make a device current within a ``with`` block.

    Examples
    --------
    >>> import numbridge as nb
    >>> with nb.ScopedDevice("cpu") as device:
    ...     device
    Device('cpu')
    """

    def __init__(self, device: Device | str | None) -> None:
        self.device = get_device(device)
        self._tokens: list[contextvars.Token[Device | None]] = []

    def __enter__(self) -> Device:
        """Make the device current."""
        self._tokens.append(_current.set(self.device))
        return self.device

    def __exit__(self, *exception: object) -> None:
        """Make the previous device current again."""
        _current.reset(self._tokens.pop())
