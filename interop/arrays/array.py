"""Array: numbridge's own view of memory, which every protocol can read and every framework can share.

An Array is three slots around a native record (see `numbridge.kernels.native.records`), so that compiled code makes and
reads one without Python. This module may not import a framework: what it must ask one, it asks through `bridge`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, final

import numpy as np

from numbridge.arrays import gradients
from numbridge.arrays.capsules import copied_for, legacy_capsule, marked_copy, pair, prepare_for_consumers
from numbridge.arrays.contents import as_source, as_values, at_address, copied, moved, shared
from numbridge.arrays.exchange import ExchangeTable
from numbridge.arrays.gradients import GradientState
from numbridge.kernels import scalars
from numbridge.kernels.annotations import ArrayAnnotation
from numbridge.kernels.devices import CPU, Device, get_device, get_devices
from numbridge.kernels.element_types.elements import Element, ElementType, dtype_of, record_type
from numbridge.kernels.errors import (
    BufferAccessError,
    DeviceError,
    NumbridgeError,
    NumbridgeIndexError,
    NumbridgeTypeError,
    NumbridgeValueError,
    shown,
)
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.readers import describe, expanded_text
from numbridge.kernels.scalars import scalar_of
from numbridge.kernels.watching import is_watched, watchers
from numbridge.storage import cupy_memory, stream_order, strided
from numbridge.storage.element_views import as_records, packed, regrouped, scalar_shape, unpacked
from numbridge.storage.leases import lend
from numbridge.storage.memory import allocate, array_class, element_of, native, row_of, wrap
from numbridge.storage.memory_views import ViewedMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Array"]

_DEVICE_KINDS = {dl.CUDA: "cuda", dl.CUDA_MANAGED: "cuda"}


@array_class
@final
class Array:
    """A typed, strided view of memory, or a kernel annotation when it is called with no data, shape or address.

    Parameters
    ----------
    data : array_like, optional
        Nested lists, or anything that has DLPack, an array interface, the buffer protocol or ``__array__``.
    dtype : dtype_like, optional
        `float` is float32 and `int` is int32; a vector or matrix type such as `vec3`, whose dimensions are the last ones of
        `data`, and which `shape` and `strides` leave out. By default that of `data`, where Python's own numbers become float32,
        int32 and complex64; float32 where there is no data.
    shape : int or tuple of int, optional
        A new shape for `data`, or that of new memory, which is zero, or that of the memory at `ptr`.
    strides : tuple of int, optional
        Bytes from one element to the next along each axis; only with `ptr`.
    ptr : int, optional
        The address of memory that the caller keeps alive as long as this array or anything made from it.
    device : Device or str, optional
        Where the array lies; the current device by default.
    copy : bool
        Whether `data` is copied (the default), or its memory shared. Sharing raises where it is impossible.
    ndim : int, optional
        Checked against the array's rank.
    requires_grad : bool
        Whether kernels are differentiated with respect to this array.
    grad : array_like, optional
        The gradient, of the same shape and dtype; implies `requires_grad`.
    retain_grad : bool
        Whether a tape's gradient is that of what the array holds last; see the attribute.

    Examples
    --------
    >>> import numbridge as nb
    >>> a = nb.array([[1, 2, 3], [4, 5, 6]], dtype=float)
    >>> a[1, ::2]
    array([4., 6.], shape=(2,), dtype=float32, device='cpu')
    >>> nb.array(dtype=float, ndim=2)
    array2d[float32]
    """

    __slots__ = ("__weakref__", "_extra", "_record", "_source")

    __dlpack_c_exchange_api__ = ExchangeTable()

    _record: Any
    _source: Any
    _extra: GradientState | None

    # The class itself, as an annotation, is an array of any dtype and rank.
    __kernel_annotation__ = ArrayAnnotation(None, None)

    def __new__(
        cls,
        data: Any = None,
        dtype: Any = None,
        shape: Any = None,
        *,
        strides: Any = None,
        ptr: int | None = None,
        device: Device | str | None = None,
        copy: bool = True,
        ndim: int | None = None,
        requires_grad: bool = False,
        grad: Any = None,
        retain_grad: bool = False,
    ) -> Any:
        """Return an array, or an annotation."""
        if dtype is Any:
            dtype = None
        if data is None and shape is None and ptr is None:
            # As in Warp, an annotation that names no rank means one dimension.
            return ArrayAnnotation(None if dtype is None else dtype_of(dtype), 1 if ndim is None else ndim)
        if strides is not None and ptr is None:
            raise NumbridgeValueError("strides come with ptr only; slice or transpose an array for a strided view")
        if ptr is not None:
            if data is not None or shape is None:
                raise NumbridgeValueError("ptr comes with shape, and without data")
            made = at_address(ptr, shape, strides, scalars.float32 if dtype is None else dtype, device)
        elif data is None:
            made = allocate(shape, scalars.float32 if dtype is None else dtype, device, zeroed=True)
        else:
            made = copied(data, dtype, device) if copy else _placed(shared(data, dtype), device)
            made = made if shape is None else made.reshape(shape)
        if ndim is not None and made.ndim != ndim:
            raise NumbridgeTypeError(f"ndim is {shown(ndim)}, and the array has {made.ndim} dimensions")
        if requires_grad or grad is not None:
            made.requires_grad = True
        if grad is not None:
            made.grad = grad
        if retain_grad:
            made.retain_grad = True
        return made

    def __init_subclass__(cls) -> None:
        """Refuse: compiled code knows this class by identity."""
        raise NumbridgeTypeError("Array cannot be subclassed; hold an Array in an attribute instead")

    def __class_getitem__(cls, dtype: Any) -> ArrayAnnotation:
        """Return the annotation of a one-dimensional array, as in ``nb.array[float]``."""
        return ArrayAnnotation(None if dtype is Any else dtype_of(dtype), 1)

    # What it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each axis."""
        shape: tuple[int, ...] = native().describe(self)[2]
        return shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        strides: tuple[int, ...] = native().describe(self)[3]
        return strides

    @property
    def ptr(self) -> int:
        """Address of the first element."""
        address: int = native().describe(self)[1]
        return address

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._bits(nb.WORD_NDIM)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        """The element type: a NumPy dtype, equal to the scalar type (``a.dtype == nb.float32``), or such as `vec3`."""
        return element_of(self) or row_of(self).numpy

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        element = element_of(self)
        return row_of(self).itemsize if element is None else element.bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def device(self) -> Device:
        """Where the memory lies."""
        kind = self._bits(nb.WORD_DEVICE)
        return CPU if kind == dl.CPU else Device(_DEVICE_KINDS.get(kind, f"dlpack{kind}"), native().describe(self)[4])

    @property
    def is_pinned(self) -> bool:
        """Whether this is page-locked host memory, which CUDA devices copy from and to by themselves."""
        return self._has(nb.PINNED)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie densely in C order."""
        return self._has(nb.CONTIGUOUS)

    @property
    def read_only(self) -> bool:
        """Whether the memory must not be written."""
        return self._has(nb.READ_ONLY)

    @property
    def writable(self) -> bool:
        """Whether the memory may be written."""
        return not self.read_only

    def _has(self, bit: int) -> bool:
        return bool(native().word(self) & bit)

    def _bits(self, position: int) -> int:
        word: int = native().word(self)
        return word >> position & 0xFF

    def __len__(self) -> int:
        """Return the extent of the first axis."""
        shape = self.shape
        if not shape:
            raise NumbridgeTypeError("a 0-d array has no length; use item() for its value")
        return shape[0]

    def __repr__(self) -> str:
        """Return values, shape, dtype and device."""
        here = self.device in get_devices()
        values = np.array2string(self.numpy(), separator=", ", prefix="array(") if here else f"<at {self.ptr:#x}>"
        dtype = element_of(self) or row_of(self)
        facts = [values, f"shape={self.shape}", f"dtype={dtype.name}", f"device='{self.device}'"]
        if self.read_only:
            facts.append("read_only=True")
        if self.requires_grad:
            facts.append("requires_grad=True")
        return f"array({', '.join(facts)})"

    # Views

    def __getitem__(self, key: Any) -> Array:
        """Return a view: ints, slices with any step, ``...`` and None, as in NumPy.

        An integer drops its axis, so that a full index gives a 0-d view of the element, which `item` turns into a
        number. Anything that would copy raises.
        """
        memory = ViewedMemory(self)
        shape, strides, offset = strided.indexed(key, memory.shape, memory.strides)
        return self._view(memory.record(shape, strides, offset), lambda other: other[key])

    def __iter__(self) -> Iterator[Array]:
        """Iterate over views along the first axis."""
        return (self[place] for place in range(len(self)))

    def reshape(self, *shape: Any) -> Array:
        """Return a view with another shape; one extent may be -1.

        Raises
        ------
        BufferAccessError
            If the strides allow no view; ``contiguous().reshape(...)`` copies.
        """
        memory = ViewedMemory(self)
        target = strided.resolved(shape[0] if len(shape) == 1 else shape, math.prod(memory.shape))
        strides = strided.restrided(memory.shape, memory.strides, target)
        if strides is None:
            raise BufferAccessError(
                f"an array of shape {memory.shape} with strides {self.strides} bytes has no view of shape {target}; "
                "use array.contiguous().reshape(...), which copies"
            )
        return self._view(memory.record(target, strides), lambda other: other.contiguous().reshape(target))

    def flatten(self) -> Array:
        """Return a 1-d view; raises like `reshape` where there is none."""
        return self.reshape(-1)

    def view(self, dtype: Any) -> Array:
        """Return the same bytes as elements of another type; the last axis takes up a difference in size.

        A vector or matrix type takes its components from those of as many in each element, else from the last dimensions, or
        from runs along the last one; a scalar type shows components as last dimensions. Bytes become records, for a
        structured dtype, as components become vectors. Gradients do not follow: the view has none.
        """
        if isinstance(dtype, np.dtype) and dtype.names is not None:
            records = record_type(dtype)
            return wrap(regrouped(self.view(records.scalar.numpy), records)._record)
        if isinstance(dtype, ElementType):
            return wrap(regrouped(self, dtype)._record)
        row, memory = scalar_of(dtype), ViewedMemory(unpacked(self))
        shape, strides = strided.retyped(memory.shape, memory.strides, memory.itemsize, row.itemsize)
        return wrap(memory.record(shape, strides, tag=row.tag))

    def transpose(self, *axes: Any) -> Array:
        """Return a view with the axes in the given order, reversed by default or for None."""
        given = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], Iterable)) else axes
        order = None if given is None or not len(tuple(given)) else tuple(given)
        memory = ViewedMemory(self)
        shape, strides = strided.permuted(order, memory.shape, memory.strides)
        return self._view(memory.record(shape, strides), lambda other: other.transpose(order))

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        """The view with the axes reversed."""
        return self.transpose()

    def _view(self, record: Any, step: Callable[[Array], Array]) -> Array:
        """Return a view whose gradient, if there is one, is the same view (`step`) of this array's gradient."""
        made = wrap(record)
        if self._extra is not None or self._source is not None:
            gradients.inherit_gradient(made, self, step)
        return made

    # Values

    def numpy(self) -> NDArray[Any]:
        """Return a NumPy array: on the same memory on the CPU, read-only where this array is; a copy from CUDA.

        The components of vectors and matrices are its last dimensions; records are those of their structured dtype.

        A copy waits for the stream that the array is used on, and for no other.

        Raises
        ------
        DeviceError
            If the memory is neither the host's nor CUDA's.
        """
        values = native().to_numpy(self)
        if values is None:
            row_of(self)  # raises for a dtype that numbridge does not have
            if self.device not in get_devices():
                raise DeviceError(
                    f"NumPy cannot read memory on {self.device}; copy it to the host with its own framework"
                )
            values = cupy_memory.to_host(self)
        made: NDArray[Any] = as_records(self, values) if values.dtype.kind == "u" else values
        return made

    def list(self) -> Any:
        """Return the values as nested lists of Python numbers."""
        return self.numpy().tolist()

    def item(self) -> Any:
        """Return the only element as a Python number, as a vector or matrix, or as a record: NumPy's, of its own memory."""
        if self.size != 1:
            raise NumbridgeValueError(f"item() needs exactly one element, and the array has {self.size}")
        element, values = element_of(self), self.numpy()
        if element is None:
            return values.item()
        return element(values.reshape(element.extents)) if element.fields is None else values.reshape(1).copy()[0]

    def __float__(self) -> float:
        """Return the only element."""
        return float(self.item())

    def __int__(self) -> int:
        """Return the only element, cut to an integer."""
        return int(self.item())

    def __complex__(self) -> complex:
        """Return the only element."""
        return complex(self.item())

    def __bool__(self) -> bool:
        """Return the truth of the only element."""
        return bool(self.item())

    def __index__(self) -> int:
        """Return the only element of a 0-d integer array."""
        if self.ndim or element_of(self) is not None or row_of(self).code not in (scalars.INT, scalars.UINT):
            raise NumbridgeTypeError(f"only a 0-d array of integers is an index; this is {self!r}")
        return int(self.item())

    def _write(self, operation: str, key: Any, values: Any, source: Any = None) -> Array:
        """Write values into part of the array, converted to its dtype and broadcast, and return the array.

        `source` is what whoever watches is told that the values come from.
        """
        word = native().word(self)
        if word & nb.READ_ONLY:
            raise BufferAccessError(f"{operation} would write to a read-only Array; write to a copy, array.clone()")
        if word & nb.REPEATED:
            raise BufferAccessError(
                f"{operation} would write to {expanded_text(describe(self))}; write to a contiguous copy, array.clone()"
            )
        key = self._own_key(key)
        told = [watcher.changing(self, operation, source) for watcher in watchers()] if is_watched() else []
        if word >> nb.WORD_DEVICE & 0xFF in _DEVICE_KINDS:
            cupy_memory.assign(self, key, as_source(values))
        else:
            self._write_here(operation, key, as_values(values))
        native().written(self._record)
        for record in told:
            if record is not None:
                record()
        return self

    def _own_key(self, key: Any) -> Any:
        """Return an index of this array as one of its scalars, where the dimensions of vectors and matrices come last."""
        element = element_of(self)
        if key is ... or element is None or element.fields is not None:
            return key
        parts, ndim = list(key) if isinstance(key, tuple) else [key], self.ndim
        used = sum(map(strided.consumed, parts))
        if used > ndim:
            raise NumbridgeIndexError(
                f"{used} indices for an array of {element.name} with {ndim} dimensions; array.view(nb.{element.scalar.name}) "
                "shows the components as last dimensions"
            )
        gaps = [place for place, part in enumerate(parts) if part is Ellipsis]
        if len(gaps) == 1:
            parts[gaps[0] : gaps[0] + 1] = [slice(None)] * (ndim - used)
        return tuple(parts)

    def _write_here(self, operation: str, key: Any, values: Any) -> None:
        """Let NumPy write values, which says neither which array it is nor what it takes."""
        target = self.numpy()
        if isinstance(values, np.ndarray) and np.may_share_memory(target, values):
            # NumPy's own assignment overwrites what it has not read yet where one step is longer than the other.
            values = values.copy()
        try:
            target[key] = values
        except NumbridgeError:
            raise
        except IndexError as error:
            raise NumbridgeIndexError(f"{operation}: the array has shape {self.shape}: {error}") from None
        except (TypeError, ValueError, OverflowError) as error:
            raise NumbridgeValueError(
                f"{operation}: an array of {row_of(self).name} with shape {scalar_shape(self)} does not take these values: "
                f"{error}"
            ) from None

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write values, broadcast as in NumPy; any NumPy index will do on the CPU, and CuPy's on CUDA."""
        self._write("array[...] = value", key, value, value)

    def fill_(self, value: Any) -> Array:
        """Set every element, and return this array."""
        return self._write("fill_", ..., value, value)

    def zero_(self) -> Array:
        """Set every element to zero, and return this array."""
        return self._write("zero_", ..., 0)

    def assign(self, values: Any) -> Array:
        """Copy values of the same shape, from any device, into this array, converted to its dtype; return this array."""
        given = as_source(values)
        shape = scalar_shape(given) if isinstance(given, Array) else np.shape(given)
        element = element_of(self)
        fields = None if element is None else element.fields
        if element is not None and fields is not None and isinstance(given, np.ndarray) and given.dtype == fields:
            shape = (*shape, *element.extents)
        if shape != scalar_shape(self):
            raise NumbridgeValueError(f"assign got values of shape {shape} for an array of shape {self.shape}")
        return self._write("assign", ..., given, values)

    def clone(self) -> Array:
        """Return a contiguous copy on the same device, with memory of its own; it requires a gradient if this one does."""
        return self.to(self.device, copy=True)

    def contiguous(self) -> Array:
        """Return this array if it is C-contiguous, else a contiguous copy."""
        return self if self.is_contiguous else self.clone()

    def to(self, device: Device | str, copy: bool = False, requires_grad: bool | None = None) -> Array:
        """Return this array if it lies on `device` and ``copy`` is false, else a copy there.

        The copy requires a gradient if this array does, or as `requires_grad` says. Copies are ordered on the current streams
        of the devices. One to the CPU has ended when this returns; one from page-locked memory, or between CUDA devices, has
        not.
        """
        target = get_device(device)
        if self.device == target and not copy:
            return self
        made = moved(self, row_of(self), target)
        element = element_of(self)
        if element is not None:
            made = packed(made, element)
        if self.requires_grad:
            made.requires_grad = True
        if is_watched():
            for watcher in watchers():
                watcher.copied(self, made)
        if requires_grad is not None:
            made.requires_grad = requires_grad
        return made

    def __copy__(self) -> Array:
        """Return a copy of the values."""
        return self.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        """Return a copy of the values."""
        made = self.clone()
        memo[id(self)] = made
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values; what the array was adopted from, and its gradient, stay behind."""
        element = element_of(self)
        return _restored, (
            np.array(unpacked(self).numpy()),
            self.requires_grad,
            element and (element.fields or element()),
        )

    # Gradients

    @property
    def requires_grad(self) -> bool:
        """Whether kernels are differentiated with respect to this array; follows the adopted tensor unless set."""
        return gradients.is_required(self)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        gradients.require_gradient(self, value)

    @property
    def grad(self) -> Array | None:
        """The gradient: the adopted tensor's own if it has one, made of zeros on first use if one is required."""
        return gradients.gradient_of(self, self.requires_grad)

    @grad.setter
    def grad(self, value: Any) -> None:
        gradients.set_gradient(self, value)

    @property
    def retain_grad(self) -> bool:
        """Whether a tape's gradient of this array is that of what it holds last, not of what launches overwrote.

        So that of an intermediate result can be looked at, which is zero otherwise: what the array held first had no part
        in it. Where launches write to the array one after the other, it is that of what the array, or the part of it that the
        launch was passed, held after the last one. A view has what its array has.

        Raises
        ------
        NumbridgeValueError
            If it is set to True and the array requires no gradient.

        Examples
        --------
        >>> import numbridge as nb
        >>> @nb.kernel
        ... def square(x, y):
        ...     i = nb.tid()
        ...     y[i] = x[i] * x[i]
        >>> x = nb.array([1.0, 2.0], requires_grad=True)
        >>> y = nb.zeros(2, requires_grad=True, retain_grad=True)
        >>> z = nb.zeros(2)
        >>> with nb.Tape() as tape:
        ...     nb.launch(square, 2, [x], [y])
        ...     nb.launch(square, 2, [y], [z])
        >>> tape.backward(grads={z: [1.0, 1.0]})
        >>> y.grad.list()
        [2.0, 8.0]
        """
        return gradients.retains_gradient(self)

    @retain_grad.setter
    def retain_grad(self, value: bool) -> None:
        gradients.retain_gradient(self, value)

    def __launch_gradient__(self) -> Array | None:
        """Return the gradient that a launched adjoint reads or adds to where none is passed; None if there is none."""
        return self.grad

    # Protocols

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the values for NumPy: the same memory, unless `dtype` or `copy` asks for a copy.

        Raises
        ------
        DeviceError
            If the array lies on CUDA and `copy` is not true: copies between devices are asked for, as by ``numpy()``.
        """
        if self.device.is_cuda and not copy:
            raise DeviceError(
                f"this array lies on {self.device}, and NumPy's memory is the host's; array.numpy() copies"
            )
        values = self.numpy()
        if dtype is None or np.dtype(dtype) == values.dtype:
            return values.copy() if copy else values
        if copy is False:
            raise NumbridgeValueError(f"{values.dtype} cannot become {np.dtype(dtype)} without a copy; drop copy=False")
        return values.astype(dtype)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array interface, version 3.

        Absent off the CPU, for records, and for ml_dtypes' types, which have no type string of their own
        (``np.dtype(bfloat16).str`` is ``'<V2'``, two opaque bytes): NumPy then asks ``__array__``, which knows them.
        """
        row, element = row_of(self), element_of(self)
        if element is not None and element.fields is not None:
            raise AttributeError(f"the records of {element.name} have no type string; use __array__")
        if row.numpy.isbuiltin != 1:
            raise AttributeError(f"dtype {row.name} has no type string of its own; use __array__ or DLPack")
        if not self.device.is_cpu:
            raise AttributeError(f"__array_interface__ describes host memory, and this array lies on {self.device}")
        _, data, shape, strides, _ = native().describe(unpacked(self))
        interface = {"version": 3, "typestr": row.numpy.str, "shape": shape, "data": (data, self.read_only)}
        # Left out rather than None where dense: NumPy 2.4 leaks a reference to a None that it finds here.
        return interface if self.is_contiguous else {**interface, "strides": strides}

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """numba.cuda's array interface, version 3, with the stream on which the array is used.

        Absent on the CPU, and for ml_dtypes' types, which have no type string.
        """
        row, place = row_of(self), self.device
        if not place.is_cuda:
            raise AttributeError(f"__cuda_array_interface__ is for CUDA memory, and this array lies on {place}")
        if row.numpy.isbuiltin != 1:
            raise AttributeError(f"dtype {row.name} has no type string of its own; use DLPack")
        _, data, shape, strides, _ = native().describe(unpacked(self))
        return {
            "version": 3,
            "typestr": row.numpy.str,
            "shape": shape,
            "strides": None if self.is_contiguous else strides,
            "data": (data if self.size else 0, self.read_only),
            # 0 would be ambiguous; 1 is the legacy default stream.
            "stream": stream_order.producer_stream(self) or 1,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLPack device type and ordinal."""
        word, _, _, _, ordinal = native().describe(self)
        return dl.CUDA_HOST if word & nb.PINNED else word >> nb.WORD_DEVICE & 0xFF, ordinal

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule: versioned if `max_version` is at least 1.0, legacy otherwise.

        Parameters
        ----------
        stream : int, optional
            The consumer's CUDA stream, which waits for this array: None or 1 is the legacy default stream, 2 the per-thread
            one, -1 asks for no order. The CPU has none.
        max_version : (int, int), optional
            The newest DLPack that the consumer knows.
        dl_device : (int, int), optional
            Where the consumer wants the tensor: DLPack's device type and ordinal. Elsewhere it is a copy.
        copy : bool, optional
            True for a copy, False to refuse one.

        Raises
        ------
        BufferAccessError
            If a legacy capsule is asked of a read-only array, which it could not say, if a stride is negative, or if a copy is
            needed and refused.
        ConversionError
            If the array holds records, which DLPack does not have.
        NumbridgeTypeError
            If `max_version` or `dl_device` is no pair of ints.
        """
        given: Any = max_version
        # A plain pair is what consumers pass, and needs no look.
        if not (type(given) is tuple and len(given) == 2 and type(given[0]) is int):
            max_version = pair("max_version", given)
        if dl_device is not None:
            dl_device = pair("dl_device", dl_device)
        here = self.__dlpack_device__()
        if here[0] in (dl.CPU, dl.CUDA_HOST) and stream not in (None, -1):
            raise BufferAccessError(f"stream is {stream!r}, and the CPU has none; it must be None")
        exported = self
        if dl_device == (dl.CPU, 0) and here[0] == dl.CUDA_HOST and not copy:
            # Page-locked memory is host memory.
            exported = wrap(ViewedMemory(unpacked(self)).record_on(dl.CPU))
        elif dl_device is not None and dl_device != here:
            exported, copy = copied_for(self, dl_device, copy), True
        elif copy:
            exported = self.clone()
        if exported.device.is_cuda and stream != -1:
            stream_order.hand_over(exported, stream)
        prepare_for_consumers(exported)
        if max_version is not None and max_version[0] >= dl.MAJOR_VERSION:
            if not copy:
                lend(exported)
            return native().export_versioned(marked_copy(exported) if copy else exported._record)
        return native().export_legacy(exported._record) if copy else legacy_capsule(exported)


def _placed(array: Array, device: Device | str | None) -> Array:
    """Return a shared array if it lies where that was asked for, else raise: sharing does not copy."""
    if device is not None and array.device != get_device(device):
        raise BufferAccessError(
            f"data lies on {array.device}, and device is {str(device)!r}; drop copy=False, which forbids the copy"
        )
    return array


def _restored(values: NDArray[Any], requires_grad: bool, sample: Any = None) -> Any:
    # An element type may have no name to be found by, and a value of it is restored by what it is; records by their dtype.
    dtype = type(sample) if isinstance(sample, Element) else None if sample is None else dtype_of(sample)
    return Array(values, dtype, requires_grad=requires_grad)
