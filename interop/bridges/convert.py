"""From anything to anything without copying: `asarray`, `convert`, and `explain`, which tells how an object is read.

Frameworks are named by their name, their module or one of their types; none is imported to find out what an object is.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from numbridge.arrays.array import Array
from numbridge.arrays.contents import copied, is_literal, is_traced, same_dtype
from numbridge.arrays.contents import shared as share
from numbridge.bridges.bridge import FRAMEWORKS, bridge_for_type, bridge_named
from numbridge.kernels import readers
from numbridge.kernels.arguments import check_writable
from numbridge.kernels.devices import Device
from numbridge.kernels.errors import BufferAccessError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.storage.element_views import refuse_records
from numbridge.storage.memory import native

__all__ = ["ArrayExplanation", "asarray", "convert", "explain"]

_OWN = "numbridge"


def asarray(x: Any, dtype: Any = None) -> Array:
    """Return an Array on the memory of `x`: itself if it is one, and a new one only for lists and numbers.

    Parameters
    ----------
    x : array_like
        Any framework's array, anything with DLPack, an array interface or the buffer protocol, or nested lists.
    dtype : dtype_like, optional
        For lists, what they become; anything else must have this dtype already, since sharing does not convert. Integers may be
        those of the other sign, and booleans integers of 8 bits.

    Raises
    ------
    NumbridgeError
        If the memory cannot be shared; the message names the call that copies.

    Examples
    --------
    >>> import numbridge as nb
    >>> a = nb.asarray([1.0, 2.0])
    >>> nb.asarray(a) is a
    True
    """
    if is_literal(x):
        return copied(x, dtype)
    if isinstance(x, Array) or is_traced(x):
        found = x
    else:
        room = bridge_for_type(type(x))
        found = share(x) if room is None else room.wrap_object(x)
    return found if dtype is None else same_dtype(found, dtype)


def convert(x: Any, to: str | ModuleType | type) -> Any:
    """Return `x` as another framework's array, on the same memory.

    Parameters
    ----------
    x : array_like
        As for `asarray`. One that is of that framework already is returned as it is.
    to : str, module or type
        ``"numpy"``, ``"torch"``, ``"paddle"``, ``"jax"``, ``"cupy"`` or ``"numbridge"``; the framework's module, or one
        of its types, such as ``torch.Tensor``.

    Raises
    ------
    NumbridgeError
        If the framework cannot share this memory or has no such dtype; the message says why.

    Examples
    --------
    >>> import numbridge as nb
    >>> nb.convert([[1, 2], [3, 4]], "numpy")
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    name = _framework_named(to)
    if name == _OWN:
        return asarray(x)
    room = bridge_for_type(type(x))
    if room is not None and name == room.NAME and not is_literal(x):
        return x
    if is_traced(x) and name != "jax":
        return x.numpy()  # which says why there is none
    found = asarray(x)
    if name != "numpy" and not is_traced(x):
        refuse_records(found, name)
    return bridge_named(name).unwrap_array(found)


def _framework_named(to: Any) -> str:
    if to is Array:
        return _OWN
    if isinstance(to, type):
        room = bridge_for_type(to)
        name = to.__qualname__ if room is None else room.NAME
    else:
        name = str(getattr(to, "__name__", to)).partition(".")[0]
    if name not in (*FRAMEWORKS, _OWN):
        raise NumbridgeValueError(f"to is {to!r}; it must name one of {', '.join((*FRAMEWORKS, _OWN))}")
    return name


@dataclass(frozen=True, repr=False)
class ArrayExplanation:
    """How an object is read; `repr` and `str` of it are a table.

    Attributes
    ----------
    type_name : str
        The object's class.
    framework : str
        Where the class comes from.
    protocol : str
        What compiled code reads it through.
    ptr : int
        Address of the first element.
    shape, strides : tuple of int
        Extents; bytes from one element to the next.
    dtype : str
        The elements' name, or DLPack's numbers for one that numbridge does not have.
    device : Device
        Where the memory lies.
    writable, contiguous, aligned : bool
        Whether kernels may write to it now; whether it lies densely in C order; whether each element is aligned.
    immutable : bool
        Whether its framework promises that it never changes.
    owner : str
        What keeps the memory alive.
    """

    type_name: str
    framework: str
    protocol: str
    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: Device
    writable: bool
    contiguous: bool
    aligned: bool
    immutable: bool
    owner: str

    def __repr__(self) -> str:
        """Return one line per fact."""
        facts = {
            "type": self.type_name,
            "framework": self.framework,
            "protocol": self.protocol,
            "pointer": f"{self.ptr:#x}",
            "shape": self.shape,
            "strides": f"{self.strides} bytes",
            "dtype": self.dtype,
            "device": self.device,
            "writable": "no, immutable" if self.immutable else _yes(self.writable),
            "contiguous": _yes(self.contiguous),
            "aligned": _yes(self.aligned),
            "owner": self.owner,
        }
        return "\n".join(f"{name:<11} {value}" for name, value in facts.items())


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def explain(x: Any) -> ArrayExplanation:
    """Return how numbridge reads an array: protocol, memory, layout, and who owns it.

    Raises
    ------
    NumbridgeError
        If `x` is no array or cannot be read; the message says why.

    Examples
    --------
    >>> import numpy as np, numbridge as nb
    >>> nb.explain(np.zeros((2, 3), np.float32)).protocol
    "NumPy's array structure"
    """
    native()
    reader, found = readers.reader_of(x), readers.describe(x)
    if not found.is_array:
        if found.word and not found.has(nb.UNSURE):
            raise NumbridgeTypeError(
                f"x is {x!r}, a {reader.protocol}, which kernels take by value; explain takes arrays"
            )
        raise readers.unreadable(x)
    kind = type(x)
    return ArrayExplanation(
        type_name=f"{kind.__module__}.{kind.__qualname__}",
        framework=_framework_of(x),
        protocol=reader.protocol,
        ptr=found.data,
        shape=found.shape,
        strides=found.strides,
        dtype=_dtype_name(found),
        device=_device(found),
        writable=_is_writable(x, found),
        contiguous=found.has(nb.CONTIGUOUS),
        aligned=not found.has(nb.MISALIGNED),
        immutable=found.has(nb.IMMUTABLE),
        owner=_owner(x),
    )


def _is_writable(x: Any, found: readers.Description) -> bool:
    try:
        check_writable("x", x, found)
    except BufferAccessError:
        return False
    return True


def _framework_of(x: Any) -> str:
    room = bridge_for_type(type(x))
    return type(x).__module__.partition(".")[0] if room is None else room.NAME


def _dtype_name(found: readers.Description) -> str:
    dtype = found.element or found.scalar
    if dtype is not None:
        return dtype.name
    return f"DLPack code {found.tag & 0xFF}, {found.tag >> 8 & 0xFF} bits, {found.tag >> 16} lanes"


def _device(found: readers.Description) -> Device:
    kinds = {dl.CPU: "cpu", dl.CUDA: "cuda", dl.CUDA_MANAGED: "cuda"}
    return Device(kinds.get(found.device_type, f"dlpack{found.device_type}"), found.device_id)


def _owner(x: Any) -> str:
    if not isinstance(x, Array):
        return "the object itself"
    owner = native().owner(x._record)
    if owner is None:
        return "numbridge's own memory, a DLPack tensor, or the caller (ptr=)"
    kind = type(owner)
    return "an array of numbridge" if kind.__name__ == "PyCapsule" else f"a {kind.__module__}.{kind.__qualname__}"
