"""The reader table: how an object of each Python type becomes a native reading.

A type is registered once, when its first object arrives; from then on compiled code reads its objects by itself. This
module knows the protocols (DLPack exchange table, buffer, DLPack, array interfaces) and names no framework; what only a
framework knows (its key set, its autograd state, a better way in) comes from resolvers that are registered from outside.
"""

from __future__ import annotations

import ctypes
import functools
import math
import numbers
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.element_types.elements import Element, ElementType, by_number
from numbridge.kernels.errors import BufferAccessError, ConversionError, DeviceError, NumbridgeTypeError
from numbridge.kernels.machine import capsule_pointer, machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.numpy_arrays import check_layout, is_masked, records_of, refuse_mask, why_unreadable

_Value = TypeVar("_Value")

__all__ = [
    "Description",
    "Reader",
    "add_resolver",
    "array_text",
    "ask_stream",
    "capture",
    "cuda_ordinal",
    "describe",
    "exchange_function",
    "expanded_text",
    "read_once",
    "reader_of",
    "record_from_capsule",
    "record_from_interface",
    "stream_of",
    "unreadable",
]

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that was made by a class statement, which may change
_MAX_DESCRIBED = 4096
_BY_INTERFACE = "array interface"
_lock = threading.RLock()
_readers: dict[type, Reader] = {}
# Types of which each reading calls Python, which may answer otherwise the next time
_asked: set[type] = set()
_described: dict[tuple[Any, ...], Description] = {}
_looks: dict[tuple[Any, ...], object] = {}
_resolvers: list[Callable[[type], Reader | None]] = []


@dataclass(frozen=True)
class Reader:
    """How objects of one type are read.

    Attributes
    ----------
    kind : int
        One of the kinds of `table_layout`.
    function : int
        The exchange function's address, the slot's offset, or a NumPy scalar's tag.
    protocol : str
        What `numbridge.explain` calls it.
    flags : int
        Bits that every word of this type carries, such as GUARDED.
    implementation, keys, allowed, autograd, version, counter : int
        The chain object -> implementation -> key set and its harmless bits, the offset of the autograd state, and that
        of the pointer to the version counter with the counter's offset behind it. 0 for none.
    offset, offset_bytes : int
        Where the implementation keeps how far into its memory a view begins, so that a view of memory that was freed is known,
        and in what: 1 for bytes, 0 for elements.
    stream : int
        The address of the DLPack exchange table's ``current_work_stream``; 0: the objects follow numbridge's own stream.
    guard : callable, optional
        ``guard(object)`` raises if a kernel may not write to the object now, and returns None.
    lost_gradient : callable, optional
        ``lost_gradient(object)`` returns why a gradient is lost if a kernel reads the object now, and what to do; or None.
    adapter : callable, optional
        ``adapter(object)`` returns a record's capsule that shares the object's memory, or raises.
    inspect : callable, optional
        ``inspect(object)`` raises what is wrong with an object whose key set has a bit that is not harmless.
    keeper : callable, optional
        ``keeper(object)`` returns what holds the object's memory, if the object may be given other memory.
    exporter : int
        Or the address of ``managed_tensor_from_py_object_no_sync`` of a DLPack exchange table, which makes such a holder.
    """

    kind: int
    function: int = 0
    protocol: str = ""
    flags: int = 0
    implementation: int = 0
    keys: int = 0
    allowed: int = 0
    autograd: int = 0
    version: int = 0
    counter: int = 0
    offset: int = 0
    offset_bytes: int = 0
    stream: int = 0
    guard: Callable[[Any], None] | None = None
    lost_gradient: Callable[[Any], str | None] | None = None
    adapter: Callable[[Any], Any] | None = None
    inspect: Callable[[Any], None] | None = None
    keeper: Callable[[Any], Any] | None = None
    exporter: int = 0

    @property
    def may_move(self) -> bool:
        """Whether objects may be given other memory."""
        return self.keeper is not None or self.exporter != 0


class _once(Generic[_Value]):  # noqa: N801 - used as a decorator, like property
    """A property that is computed once: as `functools.cached_property`, without the lock that it has until Python 3.12."""

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function, self._name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, instance: Any, owner: type) -> _Value:
        value = instance.__dict__[self._name] = self._function(instance)
        return value


@dataclass(frozen=True, init=False)
class Description:
    """What an object turned out to be, as compiled code sees it.

    Attributes
    ----------
    word : int
        The word (see `table_layout`); 0 for what cannot be read.
    data : int
        Address of the first element.
    shape, strides : tuple of int
        Extents, and strides in bytes.
    device_id : int
        Ordinal on the device type.
    """

    word: int
    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device_id: int

    def __init__(
        self,
        word: int,
        data: int = 0,
        shape: tuple[int, ...] = (),
        strides: tuple[int, ...] = (),
        device_id: int = 0,
    ) -> None:
        # Setting attributes of a frozen object one by one takes several times as long.
        self.__dict__.update(word=word, data=data, shape=shape, strides=strides, device_id=device_id)

    @_once
    def kind(self) -> int:
        """CLASS_ARRAY, CLASS_FLOAT, ... or 0."""
        return self.word >> nb.WORD_CLASS & nb.CLASS_MASK

    @_once
    def is_array(self) -> bool:
        """Whether this is an array (of any rank), not a scalar."""
        return self.word >> nb.WORD_CLASS & nb.CLASS_MASK == nb.CLASS_ARRAY

    @_once
    def tag(self) -> int:
        """The packed DLPack data type."""
        return self.word & 0xFFFFFFFF

    @_once
    def scalar(self) -> scalars.Scalar | None:
        """The row in the dtype table of what the array holds, or None for a type that numbridge does not have."""
        element = self.element
        return element.scalar if element is not None else scalars.by_tag(self.tag)

    @_once
    def element(self) -> ElementType | None:
        """The vector or matrix type of the elements, or of an element by itself; None for scalars."""
        return by_number(self.tag >> nb.WORD_ELEMENT)

    @_once
    def is_element(self) -> bool:
        """Whether this is one element, to be passed by value."""
        return self.kind == nb.CLASS_ELEMENT

    @_once
    def ndim(self) -> int:
        """The rank."""
        return self.word >> nb.WORD_NDIM & 0xFF

    @_once
    def device_type(self) -> int:
        """The ``DLDeviceType``; pinned host memory counts as CPU."""
        return self.word >> nb.WORD_DEVICE & 0xFF

    @_once
    def is_on_cuda(self) -> bool:
        """Whether this is an array in CUDA memory."""
        return self.is_array and self.device_type in (dl.CUDA, dl.CUDA_MANAGED)

    @_once
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.element.bytes if self.element is not None else (self.word >> 8 & 0xFF) >> 3

    @_once
    def extent(self) -> tuple[int, int]:
        """The first address that an array occupies, and the one after its last."""
        if self.word & nb.CONTIGUOUS:
            return self.data, self.data + math.prod(self.shape) * self.itemsize
        if 0 in self.shape:
            return self.data, self.data
        low = high = self.data
        for length, step in zip(self.shape, self.strides, strict=True):
            if step > 0:
                high += (length - 1) * step
            else:
                low += (length - 1) * step
        return low, high + self.itemsize

    @_once
    def place(self) -> tuple[Any, ...]:
        """Where and how an array lies: arrays of one place are the same memory, read in the same way."""
        return self.data, self.shape, self.strides, self.tag

    @_once
    def look(self) -> object:
        """Stands for what checks of an argument look at: everything but its address, unless a framework is asked too.

        One object for all that look alike, which is looked up by in less time than what it stands for.
        """
        if len(_looks) >= _MAX_DESCRIBED:
            _looks.clear()
        return _looks.setdefault((self.word, self.shape, self.strides, self.device_id), object())

    def has(self, bit: int) -> bool:
        """Tell whether a bit of the word is set."""
        return bool(self.word & bit)


def cuda_ordinal(found: Iterable[Description]) -> int | None:
    """Return on which CUDA device the first array lies that lies on one; None if all lie in host memory."""
    return next((description.device_id for description in found if description.is_on_cuda), None)


def array_text(found: Description) -> str:
    """Return what messages say of an array."""
    dtype = found.element or found.scalar
    name = dtype.name if dtype else f"unknown dtype {found.tag:#x}"
    return f"a {found.ndim}-d array of {name} with shape {found.shape}"


def expanded_text(found: Description) -> str:
    """Return what messages say of a view whose strides are zero."""
    where = f"shape {found.shape} and strides {found.strides} bytes"
    return f"an expanded view with {where}, in which several indices name one element"


def add_resolver(resolver: Callable[[type], Reader | None]) -> None:
    """Let `resolver` decide first how objects of a new type are read; it answers None for types not its own."""
    _resolvers.append(resolver)


def reader_of(obj: Any) -> Reader:
    """Return how `obj` is read, registering its type if it is new."""
    kind = type(obj)
    found = _readers.get(kind)
    if found is None:
        with _lock:
            found = _readers.get(kind) or _register(kind, _resolve(kind, obj))
    return found


def read_once(arguments: Sequence[Any]) -> tuple[Sequence[Any], list[Description]]:
    """Return arguments to launch on, and what they are: one whose reading calls Python is the record that it gave.

    What it gives the next time may be something else, which nobody has looked at.
    """
    kinds = {*map(type, arguments)}
    if not kinds <= _readers.keys():
        for argument in arguments:
            reader_of(argument)
    if _asked.isdisjoint(kinds):
        return arguments, [*map(describe, arguments)]
    capture = machine().capture
    records = [capture(argument) if type(argument) in _asked else None for argument in arguments]
    taken = [a if record is None else record for a, record in zip(arguments, records, strict=True)]
    return taken, [*map(describe, taken)]


def describe(obj: Any) -> Description:
    """Return what compiled code reads from `obj`, registering its type if it is new."""
    # What has been said before keeps what has been derived from it. Of a type that is new nothing is read.
    return _described.get(_read(obj)) or _described_anew(obj)


def _read_first(obj: Any) -> Any:
    """Find compiled code, and read an object with it; everything else is read by that alone."""
    global _read  # noqa: PLW0603 - there is one, once it has been compiled
    _read = machine().describe
    return _read(obj)


_read: Callable[[Any], Any] = _read_first


def _described_anew(obj: Any) -> Description:
    if type(obj) not in _readers:
        reader_of(obj)
    read = _read(obj)
    found = _described.get(read)
    if found is None:
        found = Description(*read)
        # What cannot be read is looked at anew each time: it may be of a type that is new.
        if found.word:
            if len(_described) >= _MAX_DESCRIBED:
                _described.clear()
            _described[read] = found
    return found


def capture(obj: Any) -> Any:
    """Return a record's capsule that shares the memory of `obj` and keeps it alive.

    Raises
    ------
    NumbridgeError
        If the object is no array, or its memory cannot be described by DLPack.
    """
    record = machine().capture(obj)
    if record is None:
        reader_of(obj)
        record = machine().capture(obj)
    if record is None:
        raise unreadable(obj)
    return record


def stream_of(obj: Any, ordinal: int) -> int:
    """Return the handle of the CUDA stream on which an object's producer works on a device; 0 is the default stream.

    Raises
    ------
    DeviceError
        If its framework does not know.
    """
    reader = reader_of(obj)
    if reader.stream:
        return ask_stream(reader.stream, ordinal)
    interface = getattr(obj, "__cuda_array_interface__", None) if reader.protocol == _BY_INTERFACE else None
    named = () if interface is None else _interface_stream(interface, obj)
    return named[0] if named else cuda_driver.devices().current_stream(ordinal)


def ask_stream(function: int, ordinal: int) -> int:
    """Return the handle that a framework's ``current_work_stream`` gives for a CUDA device; 0 is the default stream.

    Raises
    ------
    DeviceError
        If the framework does not know.
    """
    out = ctypes.c_void_p()
    if _asking(function)(dl.CUDA, ordinal, ctypes.addressof(out)) != 0:
        raise DeviceError(f"the framework does not know its current stream on cuda:{ordinal}")
    return out.value or 0


@functools.cache
def _asking(function: int) -> Callable[..., int]:
    """Return a framework's ``current_work_stream`` as a function; ctypes takes longer to make one than to call it."""
    return ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(function)


def unreadable(obj: Any) -> Exception:
    """Return the error that says why `obj` cannot be read as an array."""
    if isinstance(obj, type):
        return NumbridgeTypeError(f"{obj!r} is a class and no array; pass an instance of it")
    reader = reader_of(obj)
    if isinstance(obj, np.ndarray) and not is_masked(type(obj)):
        return why_unreadable(obj)
    try:
        ndim = getattr(obj, "ndim", None)
        if type(ndim) is int and ndim > nb.READ_MAX_RANK:
            return _of_many_dimensions(obj, ndim)
        if reader.inspect is not None:
            reader.inspect(obj)
        if reader.adapter is not None:
            reader.adapter(obj)
        elif reader.kind == nb.BUFFER:
            memoryview(obj)
    except Exception as error:  # noqa: BLE001 - whatever the producer says is the reason that the user needs
        return error if isinstance(error, ConversionError | BufferAccessError | DeviceError) else _refused(obj, error)
    if reader.kind == nb.CAPSULE:
        return NumbridgeTypeError(
            f"{obj!r} is no array by itself; nb.from_dlpack(capsule) makes one of a DLPack capsule"
        )
    description = describe(obj)
    if description.is_array and description.scalar is not None:
        return BufferAccessError(
            f"{_name(obj)} has strides {description.strides} bytes, no multiple of its item size, which DLPack cannot "
            "express; pass it to a kernel as it is, or make it contiguous first"
        )
    if isinstance(obj, Element):
        return NumbridgeTypeError(
            f"a {type(obj).__name__} is a value, and an array is wanted here; nb.array(value) makes one of it"
        )
    if isinstance(obj, numbers.Number | np.bool_):
        if description.kind in (nb.CLASS_BOOL, nb.CLASS_INT, nb.CLASS_FLOAT, nb.CLASS_COMPLEX):
            return NumbridgeTypeError(f"{_name(obj)} is a number, and an array is wanted here; pass an array")
        return NumbridgeTypeError(f"{_name(obj)} is a number that kernels do not know; pass float(x) or int(x)")
    if reader.kind == nb.BUFFER and description.word == 0:
        with memoryview(obj) as view:
            return ConversionError(
                f"{_name(obj)} is a buffer of elements of the format {view.format!r}, which has no counterpart; numbridge has "
                f"{', '.join(row.name for row in scalars.ALL)}, in this machine's byte order: pass an array of one of these"
            )
    if description.word & nb.UNSURE:
        return BufferAccessError(f"{_name(obj)} has elements and no memory: its storage was freed, or never made")
    return NumbridgeTypeError(
        f"{_name(obj)} is no array: it has none of __dlpack__, __array_interface__, __cuda_array_interface__, the buffer "
        f"protocol and __array__; {_instead_of(obj)}"
    )


def _instead_of(obj: Any) -> str:
    """Return what to pass in place of an object that is no array."""
    if isinstance(obj, list):
        return "make an array of it, as numpy.asarray(x) does; a kernel takes tuples as well, tuple(x)"
    if isinstance(obj, tuple):
        return "make an array of it, as numpy.asarray(x) does, or pass what it holds one by one"
    if isinstance(obj, np.datetime64):
        return "pass it as an integer, as by x.astype(np.int64)"
    if isinstance(obj, str):
        return "pass an array or a number"
    return "pass an array or a number made of it"


def _refused(obj: Any, error: Exception) -> Exception:
    return BufferAccessError(f"{_name(obj)} cannot be read: {type(error).__name__}: {error}")


def _of_many_dimensions(obj: Any, ndim: int) -> Exception:
    return BufferAccessError(f"{_name(obj)} has {ndim} dimensions; at most {nb.READ_MAX_RANK} can be read: reshape it")


def _name(obj: Any) -> str:
    kind = type(obj)
    return f"an object of type {kind.__module__}.{kind.__qualname__}"


def exchange_function(kind: type, offset: int) -> int:
    """Return an address out of a type's DLPack exchange table, or 0 where it has none.

    Parameters
    ----------
    kind : type
        A tensor class, maybe with ``__dlpack_c_exchange_api__``.
    offset : int
        The field's offset, from `dlpack_layout`.
    """
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if type(capsule).__name__ != "PyCapsule":
        return 0
    table = capsule_pointer(capsule, dl.NAME_EXCHANGE.encode())
    while table and ctypes.c_uint32.from_address(table).value != dl.MAJOR_VERSION:
        table = ctypes.c_void_p.from_address(table + dl.EXCHANGE_PREVIOUS).value
    return int(ctypes.c_void_p.from_address(table + offset).value or 0) if table else 0


def _resolve(kind: type, obj: Any) -> Reader:
    for resolver in _resolvers:
        found = resolver(kind)
        if found is not None:
            return found
    if issubclass(kind, Element):
        return Reader(nb.ADAPTER, protocol="element", adapter=_element_record)
    return _python_scalar(kind) or _numpy_type(kind) or _by_protocol(kind, obj)


def _element_record(value: Element) -> Any:
    """Return a record of an element, which says that it goes by value."""
    kind, parts = type(value), value.numpy()
    flags = dl.RECORD_VALUE | kind.number << dl.RECORD_ELEMENT | len(kind.extents) << dl.RECORD_INNER
    return machine().new_record(parts, parts.ctypes.data, kind.scalar.tag, dl.CPU, 0, kind.extents, None, flags)


# C has two integer types of 64 bits, and NumPy a class for each.
_OTHER_NAMES: dict[type, type] = {np.longlong: np.int64, np.ulonglong: np.uint64}


def _python_scalar(kind: type) -> Reader | None:
    if issubclass(kind, np.generic):
        kind = _OTHER_NAMES.get(kind, kind)
        row = next((row for row in scalars.ALL if row.numpy.type is kind), None)
        # Half floats and smaller have no arithmetic of their own on the CPU: such a number counts as a Python float.
        if row is not None and row.is_float and row.itemsize < 4:
            return Reader(nb.PY_FLOAT, protocol="NumPy scalar, as a Python float")
        return Reader(nb.NUMPY_SCALAR, row.tag if row is not None else 0, "NumPy scalar")
    order = ((bool, nb.PY_BOOL), (int, nb.PY_INT), (float, nb.PY_FLOAT), (complex, nb.PY_COMPLEX))
    for base, number in order:
        if issubclass(kind, base):
            return Reader(number, protocol="Python scalar")
    return None


def _numpy_type(kind: type) -> Reader | None:
    if not issubclass(kind, np.ndarray):
        return None
    if is_masked(kind):
        return Reader(nb.ADAPTER, protocol="refused", adapter=refuse_mask)
    check_layout()
    return Reader(nb.NUMPY, protocol="NumPy's array structure", adapter=records_of)


def _by_protocol(kind: type, obj: Any) -> Reader:
    exchange = exchange_function(kind, dl.EXCHANGE_READ)
    adapter = _adapter(kind, obj)
    if exchange:
        stream = exchange_function(kind, dl.EXCHANGE_STREAM)
        return Reader(nb.EXCHANGE, exchange, "DLPack exchange table", stream=stream, adapter=adapter)
    if hasattr(kind, "__dlpack__") or _has_interface(obj):
        return Reader(nb.ADAPTER, protocol="DLPack" if hasattr(kind, "__dlpack__") else _BY_INTERFACE, adapter=adapter)
    # Whether the type has buffers, not whether this object can give one now.
    if ctypes.pythonapi.PyObject_CheckBuffer(ctypes.py_object(obj)):
        return Reader(nb.BUFFER, protocol="buffer", adapter=adapter)
    if kind.__name__ == "PyCapsule":
        return Reader(nb.CAPSULE, protocol="capsule")
    return Reader(nb.ADAPTER if adapter else nb.UNKNOWN, protocol="__array__" if adapter else "none", adapter=adapter)


def _has_interface(obj: Any) -> bool:
    try:
        return hasattr(obj, "__array_interface__") or hasattr(obj, "__cuda_array_interface__")
    except Exception:  # noqa: BLE001 - it has one, which says why when it is read
        return True


def _adapter(kind: type, obj: Any) -> Callable[[Any], Any] | None:
    if hasattr(kind, "__dlpack__"):
        return _through_dlpack
    return _through_interface if _has_interface(obj) or hasattr(kind, "__array__") else None


def _through_dlpack(obj: Any) -> Any:
    """Return a record's capsule through ``__dlpack__``, versioned where the producer can.

    CUDA memory is made ready for the current stream of its device.
    """
    stream = _wanted_stream(obj)
    try:
        capsule = obj.__dlpack__(**stream, max_version=(dl.MAJOR_VERSION, dl.MINOR_VERSION))
    except TypeError:
        capsule = obj.__dlpack__(**stream)
    record = machine().consume(capsule)
    if record is None:
        raise BufferAccessError(f"{_name(obj)} cannot be read: what its __dlpack__ returned, {_unusable(capsule)}")
    return record


def _wanted_stream(obj: Any) -> dict[str, int]:
    """Return the stream to name to a DLPack producer: the current one of a CUDA device, where 1 is the default stream."""
    kind, ordinal = obj.__dlpack_device__() if hasattr(obj, "__dlpack_device__") else (dl.CPU, 0)
    if kind not in (dl.CUDA, dl.CUDA_MANAGED) or not cuda_driver.driver_count():
        return {}
    return {"stream": cuda_driver.devices().current_stream(int(ordinal)) or 1}


def record_from_capsule(capsule: Any) -> Any:
    """Return a record's capsule that takes a DLPack capsule's tensor over.

    Raises
    ------
    BufferAccessError
        If the capsule was consumed before, is of another kind or version, or holds no tensor that can be read.
    """
    record = machine().consume(capsule)
    if record is None:
        raise BufferAccessError(_unusable(capsule))
    return record


def _unusable(capsule: Any) -> str:
    return (
        f"{capsule!r} is no unused DLPack capsule (named 'dltensor' or 'dltensor_versioned', major version "
        f"{dl.MAJOR_VERSION}) of a tensor with memory and at most {nb.READ_MAX_RANK} dimensions; a capsule can be consumed "
        "once: ask the producer for a new one"
    )


def _through_interface(obj: Any) -> Any:
    """Return a record's capsule through an array interface, or through ``__array__`` (read-only: it may be a copy)."""
    interface = getattr(obj, "__array_interface__", None)
    if interface is not None:
        return record_from_interface(interface, obj, dl.CPU, 0)
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is not None:
        if not cuda_driver.driver_count():
            raise cuda_driver.cuda_unavailable(f"{_name(obj)}, which has __cuda_array_interface__,")
        address = int(interface["data"][0] or 0)
        ordinal = cuda_driver.driver().ordinal_of(address) if address else 0
        return record_from_interface(interface, obj, dl.CUDA, ordinal)
    if not hasattr(obj, "__array__"):
        raise BufferAccessError(
            f"{_name(obj)} has no __array_interface__ now, as others of its type had; pass it when it has its memory"
        )
    array = obj.__array__()
    if is_masked(type(array)):
        refuse_mask(array)
    array = np.asarray(array)
    # What __array__ returns may be a copy, and writes to a copy would be lost.
    if array.dtype.names is not None:
        array = array.view()
        array.flags.writeable = False
        return records_of(array)
    record = capture(array)
    found = describe(record)
    elements = tuple(step // array.itemsize for step in found.strides)
    return machine().new_record(record, found.data, found.tag, dl.CPU, 0, found.shape, elements, dl.FLAG_READ_ONLY)


def record_from_interface(interface: Any, owner: Any, device_type: int, device_id: int) -> Any:
    """Return a record's capsule for an ``__array_interface__`` or ``__cuda_array_interface__`` dictionary.

    The layout is that of NumPy's "The array interface protocol", version 3, and numba.cuda's, version 3.

    Raises
    ------
    ConversionError, BufferAccessError
        If the element type has no counterpart, there is a mask, or strides are no multiples of the item size.
    """
    if interface.get("mask") is not None:
        raise BufferAccessError(
            f"{_name(owner)} has a mask in its array interface, which a kernel would ignore; drop it first"
        )
    if not isinstance(interface["typestr"], str):
        raise BufferAccessError(
            f"{_name(owner)} has the typestr {interface['typestr']!r} in its array interface; it must be text"
        )
    row = scalars.scalar_of(np.dtype(interface["typestr"]))
    shape = _integers(interface["shape"], "shape", owner)
    named, data, (offset,) = owner, interface.get("data"), _integers([interface.get("offset") or 0], "offset", owner)
    if data is None:
        raise BufferAccessError(f"{_name(owner)} has no 'data' in its array interface; use the buffer protocol instead")
    strides = interface.get("strides")
    strides = None if strides is None else _integers(strides, "strides", owner)
    _check_layout(owner, shape, strides)
    ends = None
    if not isinstance(data, tuple):
        record = capture(memoryview(data))
        view = describe(record)
        ends = view.extent
        data, owner = (view.data + offset, view.has(nb.READ_ONLY)), (owner, record)
    elements = None
    if strides is not None:
        if any(step % row.itemsize for step in strides):
            raise BufferAccessError(
                f"strides {strides} bytes of {_name(named)} are no multiples of its item size {row.itemsize}; make it "
                "contiguous first"
            )
        elements = tuple(step // row.itemsize for step in strides)
    flags = dl.FLAG_READ_ONLY if data[1] else 0
    place = (int(data[0] or 0), row.tag, device_type, device_id)
    if 0 not in shape:
        _check_memory(named, place[0], shape, elements, row.itemsize, ends)
    return machine().new_record(owner, *place, shape, elements, flags, *_interface_stream(interface, named))


def _integers(given: Any, what: str, owner: Any) -> tuple[int, ...]:
    """Return extents, strides or an offset, of which those that are no integers would lose what lies behind the point."""
    try:
        return tuple(operator.index(value) for value in given)
    except TypeError as error:
        raise BufferAccessError(
            f"{_name(owner)} has the {what} {given!r} in its array interface; wanted integers"
        ) from error


def _check_layout(owner: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    """Refuse an array interface whose shape and strides do not belong together."""
    if any(extent < 0 for extent in shape) or (strides is not None and len(strides) != len(shape)):
        raise BufferAccessError(
            f"{_name(owner)} has the shape {shape} and the strides {strides} in its array interface; wanted extents of 0 or "
            "more, and as many strides, or None"
        )
    if len(shape) > nb.READ_MAX_RANK:
        raise _of_many_dimensions(owner, len(shape))


def _check_memory(
    owner: Any,
    address: int,
    shape: tuple[int, ...],
    elements: tuple[int, ...] | None,
    itemsize: int,
    ends: tuple[int, int] | None,
) -> None:
    """Refuse an array interface whose elements have no memory, or lie outside of the buffer that it names."""
    steps = elements or tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    reaches = [step * (extent - 1) * itemsize for step, extent in zip(steps, shape, strict=True)]
    low = address + sum(reach for reach in reaches if reach < 0)
    high = address + sum(reach for reach in reaches if reach > 0) + itemsize
    if not address:
        raise BufferAccessError(
            f"{_name(owner)} has elements, of the shape {shape}, and the address 0 in its array interface; it must be that of "
            "the first element"
        )
    if ends is not None and not ends[0] <= low <= high <= ends[1]:
        raise BufferAccessError(
            f"{_name(owner)} has elements in its array interface that lie outside of its buffer of {ends[1] - ends[0]} bytes; "
            "its shape, strides and offset must fit"
        )


def _interface_stream(interface: Any, owner: Any) -> tuple[int, ...]:
    """Return the handle of the stream on which a CUDA producer works, or nothing where the consumer need not wait.

    1 and 2 are the legacy and the per-thread default stream; 0 would be ambiguous and is no stream.
    """
    stream = interface.get("stream")
    if stream is None:
        return ()
    if not isinstance(stream, int) or stream <= 0:
        raise BufferAccessError(
            f"{_name(owner)} has the stream {stream!r} in its __cuda_array_interface__; it must be None or a positive int"
        )
    return (0 if stream == 1 else stream,)


def _register(kind: type, reader: Reader) -> Reader:
    """Enter a type into the native table; the type is kept alive, so that its address stays its own."""
    if reader.kind == nb.UNKNOWN and kind.__flags__ & _HEAP_TYPE:
        # Its next object may have an array interface, or its class by then.
        return reader
    fields = {
        nb.ENTRY_KIND: reader.kind,
        nb.ENTRY_FUNCTION: reader.function,
        nb.ENTRY_FLAGS: reader.flags,
        nb.ENTRY_IMPLEMENTATION: reader.implementation,
        nb.ENTRY_KEYS: reader.keys,
        nb.ENTRY_ALLOWED: reader.allowed,
        nb.ENTRY_AUTOGRAD: reader.autograd,
        nb.ENTRY_VERSION: reader.version,
        nb.ENTRY_COUNTER: reader.counter,
        nb.ENTRY_OFFSET: reader.offset,
        nb.ENTRY_OFFSET_BYTES: reader.offset_bytes,
        nb.ENTRY_GUARD: id(reader.guard) if reader.guard else 0,
        nb.ENTRY_ADAPTER: id(reader.adapter) if reader.adapter else 0,
        nb.ENTRY_STREAM: reader.stream,
        nb.ENTRY_LOST_GRADIENT: id(reader.lost_gradient) if reader.lost_gradient else 0,
        nb.ENTRY_KEEPER: id(reader.keeper) if reader.keeper else 0,
        nb.ENTRY_EXPORTER: reader.exporter,
    }
    machine().enter_type(id(kind), fields)
    if reader.kind == nb.ADAPTER:
        _asked.add(kind)
    _readers[kind] = reader
    return reader
