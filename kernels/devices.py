"""Devices: what they are called, and which one is current.

This version computes on the CPU. A `Device` can name CUDA memory that another library holds, but everything that would
use CUDA raises the one error of `cuda_unavailable`, and nothing here pretends otherwise. Imports no framework.
"""

from __future__ import annotations

import contextvars
import ctypes
import importlib.util
import re
from typing import Any, NoReturn

from numbridge.kernels.errors import DeviceError, NumbridgeTypeError, NumbridgeValueError

__all__ = [
    "CPU",
    "Device",
    "Event",
    "ScopedDevice",
    "ScopedStream",
    "Stream",
    "cuda_unavailable",
    "device_count",
    "get_device",
    "get_devices",
    "set_device",
    "synchronize",
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

    Examples
    --------
    >>> get_device("cpu") == "cpu"
    True
    """

    __slots__ = ("kind", "ordinal")

    kind: str
    ordinal: int

    def __init__(self, kind: str, ordinal: int = 0) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "ordinal", ordinal)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: a device is a value."""
        raise AttributeError(f"a Device cannot be changed: {name!r} is read-only")

    @property
    def name(self) -> str:
        """``"cpu"``, or such as ``"cuda:0"``."""
        return self.kind if self.is_cpu else f"{self.kind}:{self.ordinal}"

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
_current: contextvars.ContextVar[Device] = contextvars.ContextVar("numbridge_device", default=CPU)


def cuda_unavailable(what: str) -> DeviceError:
    """Return the error for whatever needs CUDA: what is missing on this machine, and how to get it.

    Parameters
    ----------
    what : str
        The operation or object that was asked for, such as ``"nb.Stream"``.
    """
    missing = _missing_for_cuda()
    here = f"Missing on this machine: {'; '.join(missing)}. " if missing else ""
    return DeviceError(
        f"{what} needs CUDA, which numbridge uses from a later version on; this version computes on the CPU. {here}"
        'CUDA will need an NVIDIA driver, and what `pip install "numbridge[cuda13]"` brings (numbridge[cuda12] for an '
        "older driver)"
    )


def _missing_for_cuda() -> list[str]:
    missing = []
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        missing.append("the NVIDIA driver (libcuda.so.1)")
    if not (_installed("cuda.bindings") and _installed("cuda.core")):
        missing.append("the CUDA toolkit wheels (cuda-bindings, cuda-core)")
    if not _installed("cupy"):
        missing.append("CuPy")
    return missing


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def get_device(name: Device | str | None = None) -> Device:
    """Return a device by its name, or the current one.

    Parameters
    ----------
    name : Device or str, optional
        ``"cpu"``, ``"cuda"`` or such as ``"cuda:1"``; None is the current device.

    Raises
    ------
    DeviceError
        If it is a CUDA device, which this version does not use.
    NumbridgeValueError
        If nothing is called so.
    """
    if name is None:
        return _current.get()
    if not isinstance(name, Device | str):
        raise NumbridgeTypeError(f"device is {name!r}; it must be a Device, a name such as 'cpu', or None")
    if name == CPU:
        return CPU
    if _NAME.fullmatch(str(name)):
        raise cuda_unavailable(f"device {str(name)!r}")
    raise NumbridgeValueError(f"there is no device {name!r}; numbridge knows 'cpu' and 'cuda:<ordinal>'")


def set_device(name: Device | str) -> Device:
    """Make a device the current one of this context (thread or task), and return it."""
    device = get_device(name)
    _current.set(device)
    return device


def get_devices() -> list[Device]:
    """Return every device that kernels can run on."""
    return [CPU]


def device_count() -> int:
    """Return how many devices kernels can run on, the CPU included."""
    return len(get_devices())


def synchronize(device: Device | str | None = None) -> None:
    """Wait until a device has done its work; the CPU always has, since a launch returns when it is done."""
    get_device(device)


class ScopedDevice:
    """Make a device current within a ``with`` block.

    Examples
    --------
    >>> with ScopedDevice("cpu") as device:
    ...     device
    Device('cpu')
    """

    def __init__(self, device: Device | str | None) -> None:
        self.device = get_device(device)
        self._tokens: list[contextvars.Token[Device]] = []

    def __enter__(self) -> Device:
        """Make the device current."""
        self._tokens.append(_current.set(self.device))
        return self.device

    def __exit__(self, *exception: object) -> None:
        """Make the previous device current again."""
        _current.reset(self._tokens.pop())


class _NeedsCuda:
    """What exists only on CUDA: constructing it raises."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise cuda_unavailable(f"nb.{type(self).__name__}")


class Stream(_NeedsCuda):
    """A CUDA stream; not in this version."""


class Event(_NeedsCuda):
    """A CUDA event; not in this version."""


class ScopedStream(_NeedsCuda):
    """Makes a CUDA stream current within a ``with`` block; not in this version."""
