"""What a new array is made from: nested lists, another library's array, or an address; copied, or shared.

Sharing raises where it is impossible; nothing here copies unless its name says so.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.devices import Device, get_device
from numbridge.kernels.element_types.element_arguments import element_flags, inner_strides
from numbridge.kernels.element_types.elements import Element, ElementType, dtype_of
from numbridge.kernels.errors import BufferAccessError, ConversionError, NumbridgeTypeError, NumbridgeValueError, shown
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.numpy_arrays import is_masked
from numbridge.kernels.scalars import Scalar, scalar_of
from numbridge.kernels.watching import is_watched, watchers
from numbridge.storage import strided
from numbridge.storage.element_views import packed, scalar_shape, unpacked
from numbridge.storage.memory import adopt, allocate, element_of, native, row_of, wrap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from numbridge.arrays.array import Array

__all__ = ["as_source", "as_values", "at_address", "copied", "filled", "is_literal", "is_traced", "moved", "shared"]

_LITERALS = (list, tuple, bool, int, float, complex, np.generic, Element)
# What Python's own numbers become where no dtype is asked for: as in annotations, nothing is 64 bits wide unasked.
_NARROW = {"float64": "float32", "int64": "int32", "complex128": "complex64"}


def is_literal(data: Any) -> bool:
    """Tell whether data is a number, a vector or matrix, or a list: values without memory that could be shared."""
    return isinstance(data, _LITERALS)


def is_traced(data: Any) -> bool:
    """Tell whether data stands for an array while a function that launches kernels is traced: it has no memory."""
    return getattr(type(data), "__is_traced__", False)


def _is_whole(data: Any) -> bool:
    """Tell whether data is a NumPy array whose memory says everything; `adopt` refuses one with a mask."""
    return isinstance(data, np.ndarray) and not is_masked(type(data))


def as_values(data: Any) -> Any:
    """Return what NumPy can assign from; other libraries' arrays are read through their own protocol."""
    if isinstance(data, Element):
        return data.numpy()
    return data if is_literal(data) or _is_whole(data) else adopt(data).numpy()


def as_source(data: Any) -> Any:
    """Return what a CUDA array can be assigned from: a number, a NumPy array, or an Array on any device."""
    if isinstance(data, Element):
        return data.numpy()
    if is_literal(data) or _is_whole(data):
        return data if isinstance(data, np.ndarray | np.generic | bool | int | float | complex) else np.asarray(data)
    return adopt(data)


def shared(data: Any, dtype: Any = None) -> Array:
    """Return an Array on the memory of `data`; a dtype must be the one that it has.

    Raises
    ------
    BufferAccessError
        If `data` has no memory to share.
    ConversionError
        If `data` is of another dtype.
    """
    if is_literal(data):
        raise BufferAccessError(f"a {type(data).__name__} has no memory to share; nb.array(data) copies it")
    made = adopt(data)
    return made if dtype is None else same_dtype(made, dtype)


def same_dtype(array: Array, dtype: Any) -> Array:
    """Return the array with this dtype, else raise: sharing does not convert.

    For a vector or matrix type, an array of its scalars becomes one of it, on the same memory. Integers become those of the other
    sign of their width, and booleans integers of 8 bits, whose bits a conversion would leave as they are.
    """
    wanted = dtype_of(dtype)
    if isinstance(wanted, ElementType):
        return packed(_of_other_sign(array, wanted.scalar), wanted)
    array = _of_other_sign(array, wanted)
    found = element_of(array) or row_of(array)
    if wanted != found:
        raise ConversionError(
            f"dtype is {wanted.name}, and the data is {found.name}, which cannot be shared as another dtype; "
            "nb.array(data, dtype=...) copies and converts, .view(dtype) reinterprets the bytes"
        )
    return array


def _of_other_sign(array: Array, wanted: Scalar) -> Array:
    """Return an array of integers as one of those that are wanted, if their bits are the same; any other as it is."""
    found = row_of(array)
    kinds = scalars.BOOL, scalars.INT, scalars.UINT
    same_bits = found.itemsize == wanted.itemsize and found.code in kinds and wanted.code in kinds[1:]
    return array.view(wanted.numpy) if same_bits and found != wanted and element_of(array) is None else array


def filled(values: NDArray[Any], row: Scalar, device: Device | str | None = None) -> Array:
    """Return a new array with the values, converted to a dtype, on a device (the current one by default)."""
    place = get_device(device)
    if place.is_cuda:
        from numbridge.storage import cupy_memory

        return cupy_memory.filled(values, row, place)
    made = allocate(values.shape, row, place, zeroed=False)
    np.copyto(made.numpy(), values, casting="unsafe")
    return made


def _elements(data: Any, element: ElementType, device: Device | str | None) -> Array:
    """Return a new array of vectors, matrices or records with the values of `data`."""
    if element.fields is not None and is_literal(data):
        try:
            data = np.array(data, dtype=element.fields)
        except (TypeError, ValueError, OverflowError) as error:
            raise NumbridgeValueError(f"data cannot become records of {element.name}: {error}") from None
    if not is_literal(data):
        source = adopt(data)
        if element.fields is not None and _holds_records(source) and element_of(source) is not element:
            source = adopt(_converted(source, element.fields))
        if element.fields is not None or _holds_records(source):
            return packed(source, element).to(get_device(device), copy=True)
    if isinstance(data, list | tuple) and not data:
        data = np.empty((0, *element.extents), element.scalar.numpy)  # no elements, whatever these have
    made = copied(data, element.scalar, device)
    return packed(made, element) if element_of(made) is None else made


def _converted(source: Array, fields: np.dtype[Any]) -> NDArray[Any]:
    """Return records as those of another dtype, as NumPy assigns them: field by field, in order."""
    try:
        return source.numpy().astype(fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConversionError(
            f"data holds records of {element_of(source)!r}, which cannot become {fields!r}: {error}"
        ) from None


def _holds_records(array: Array) -> bool:
    held = element_of(array)
    return held is not None and held.fields is not None


def copied(data: Any, dtype: Any = None, device: Device | str | None = None) -> Array:
    """Return a new array with the values of `data`, converted to `dtype` if one is given, on a device.

    Raises
    ------
    NumbridgeValueError
        If nested lists are ragged, or hold numbers that the dtype cannot.
    """
    if is_traced(data):
        traced: Array = data.copied(dtype)
        return traced
    kind = None if dtype is None else dtype_of(dtype)
    if isinstance(data, Element):
        data = packed(filled(data.numpy(), type(data).scalar, "cpu"), type(data))
    if isinstance(kind, ElementType):
        return _elements(data, kind, device)
    if not is_literal(data):
        source = adopt(data)
        if dtype is not None and _holds_records(source):
            raise ConversionError(
                f"data holds records of {element_of(source)!r}, which cannot become {scalar_of(dtype).name}; take a field"
            )
        row, place = row_of(source) if dtype is None else scalar_of(dtype), get_device(device)
        made = moved(source, row, place)
        held = element_of(source)
        made = made if held is None or dtype is not None else packed(made, held)
        for watcher in watchers() if is_watched() else ():
            watcher.copied(data, made)
        return made
    try:
        values = np.array(data) if dtype is None else np.array(data, dtype=scalar_of(dtype).numpy)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # RuntimeError is torch's
        wanted = "" if dtype is None else f" of {scalar_of(dtype).name}"
        raise NumbridgeValueError(f"data cannot become an array{wanted}: {error}") from None
    if values.dtype.kind in "OUS":
        inside = "text" if values.dtype.kind != "O" else "what is no number, or integers of more than 64 bits"
        raise ConversionError(
            f"data is a {type(data).__name__} that holds {inside}; pass numbers, or name a dtype that they fit"
        )
    if dtype is None and values.dtype.kind == "f" and isinstance(data, list | tuple) and _is_of_integers(data):
        values = _of_large_integers(data)
    row = scalar_of(values.dtype)
    return filled(values, _narrowed(values, row) if dtype is None and _is_plain(data) else row, device)


def moved(source: Array, row: Scalar, place: Device) -> Array:
    """Return a contiguous copy of an array's scalars with a dtype, on any device."""
    if not source.device.is_cuda:
        return filled(unpacked(source).numpy(), row, place)
    from numbridge.storage import cupy_memory

    if place.is_cpu:
        return filled(cupy_memory.to_host(source), row, place)
    if row_of(source) == row:
        return cupy_memory.to_device(source, place)
    made = allocate(scalar_shape(source), row, place, zeroed=False)
    cupy_memory.assign(made, ..., source)
    return made


def _is_plain(data: Any) -> bool:
    """Whether nested lists hold Python's own numbers; what has a dtype, such as a NumPy scalar, keeps it."""
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return type(data) in (bool, int, float, complex, list, tuple)


def _is_of_integers(data: list[Any] | tuple[Any, ...]) -> bool:
    """Tell whether nested lists hold integers and nothing else."""
    return bool(data) and all(
        _is_of_integers(part) if isinstance(part, list | tuple) else isinstance(part, int | np.integer) for part in data
    )


def _of_large_integers(data: Any) -> NDArray[Any]:
    """Return integers of which NumPy would make floats, since int64 does not hold all of them."""
    exact = np.array(data, dtype=object)
    if min(exact.flat) < 0:
        raise NumbridgeValueError(
            "data has integers that neither int64 nor uint64 holds together; ask for dtype=nb.float64, which rounds them"
        )
    return exact.astype(np.uint64)


def _narrowed(values: NDArray[Any], row: Scalar) -> Scalar:
    narrow = scalars.by_name(_NARROW.get(row.name, row.name))
    if narrow.code == scalars.INT and values.size:
        limits = np.iinfo(narrow.numpy)
        if values.min() < limits.min or values.max() > limits.max:
            raise NumbridgeValueError("data has integers that int32 cannot hold; ask for dtype=nb.int64")
    return narrow


def _address(ptr: Any) -> int:
    try:
        return operator.index(ptr)
    except TypeError:
        raise NumbridgeTypeError(
            f"ptr is of type {type(ptr).__name__}; it must be an int, such as ctypes.addressof(x) or pointer.value"
        ) from None


def _steps(strides: Any) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, strides)) if isinstance(strides, Iterable) else (operator.index(strides),)
    except TypeError:
        raise NumbridgeTypeError(
            f"strides are {strides!r}; they must be ints, the bytes of a step along each axis"
        ) from None


def at_address(ptr: int, shape: Any, strides: Any, dtype: Any, device: Device | str | None) -> Array:
    """Return an array on memory that the caller keeps alive; strides are in bytes."""
    place = get_device("cpu" if device is None else device)
    extents, kind = strided.extents(shape), dtype_of(dtype)
    element = kind if isinstance(kind, ElementType) else None
    row = kind.scalar if isinstance(kind, ElementType) else kind
    address = _address(ptr)
    if not 0 <= address < 1 << 64 or (address == 0 and 0 not in extents):
        raise NumbridgeValueError(f"ptr is {shown(address)}, which is no address")
    steps = None if strides is None else _steps(strides)
    if steps is not None and (len(steps) != len(extents) or any(step % row.itemsize for step in steps)):
        raise NumbridgeValueError(
            f"strides are {shown(steps)} bytes; they must be multiples of the item size {row.itemsize}, one for each of the "
            f"{len(extents)} axes"
        )
    if element is not None:
        extents = (*extents, *element.extents)
        steps = None if steps is None else (*steps, *inner_strides(element))
    elements = None if steps is None else tuple(step // row.itemsize for step in steps)
    where = (address, row.tag, dl.CUDA if place.is_cuda else dl.CPU, place.ordinal)
    return wrap(native().new_record(None, *where, extents, elements, element_flags(element)))
