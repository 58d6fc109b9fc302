"""New arrays: zeros, ones, full, empty and their likes, and copies from one array to another.

New memory is C-contiguous and 64-byte aligned, which is what XLA asks of memory that it shares.
"""

from __future__ import annotations

import contextlib
import contextvars
import operator
from collections.abc import Callable, Iterator
from typing import Any

from numbridge.arrays.array import Array
from numbridge.arrays.contents import copied, is_literal, is_traced
from numbridge.kernels import readers, scalars
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.devices import Device, get_device
from numbridge.kernels.element_types.elements import Element, ElementType, dtype_of, has_gradient
from numbridge.kernels.errors import BufferAccessError, NumbridgeTypeError, NumbridgeValueError, shown
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.watching import is_watched
from numbridge.storage import cupy_memory
from numbridge.storage.element_views import scalar_shape
from numbridge.storage.memory import adopt, allocate, element_of, native, row_of
from numbridge.streams.streams import ScopedStream, check_place, own_stream

__all__ = [
    "clone",
    "copy",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "making",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

_DeviceLike = Device | str | None
# Inside a function that is traced, new arrays stand for values of the tracer's: ``maker(shape, dtype)``.
_maker: contextvars.ContextVar[Callable[[Any, Any], Any] | None] = contextvars.ContextVar(
    "numbridge_maker", default=None
)


@contextlib.contextmanager
def making(maker: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Let ``maker(shape, dtype)`` make the new arrays of this context, all of zeros, while a function is traced."""
    token = _maker.set(maker)
    try:
        yield
    finally:
        _maker.reset(token)


def zeros(
    shape: Any,
    dtype: Any = scalars.float32,
    device: _DeviceLike = None,
    requires_grad: bool = False,
    pinned: bool = False,
    retain_grad: bool = False,
) -> Array:
    """Return a new array of zeros.

    Parameters
    ----------
    shape : int or tuple of int
        Extents.
    dtype : dtype_like
        `float` is float32 and `int` is int32; a vector or matrix type such as `vec3`, whose dimensions `shape` leaves out.
    device : Device or str, optional
        The current device by default.
    requires_grad : bool
        Whether kernels are differentiated with respect to it; its gradient takes no memory until it is read.
    pinned : bool
        Whether host memory shall be page-locked, so that CUDA devices copy from and to it by themselves.
    retain_grad : bool
        Whether a tape's gradient is that of what the array holds last; see `Array.retain_grad`.

    Examples
    --------
    >>> import numbridge as nb
    >>> nb.zeros((2, 2), int)
    array([[0, 0],
           [0, 0]], shape=(2, 2), dtype=int32, device='cpu')
    """
    return _new(shape, dtype, device, requires_grad, zeroed=True, pinned=pinned, retain_grad=retain_grad)


def empty(
    shape: Any,
    dtype: Any = scalars.float32,
    device: _DeviceLike = None,
    requires_grad: bool = False,
    pinned: bool = False,
    retain_grad: bool = False,
) -> Array:
    """Return a new array whose values are whatever the memory held; parameters as in `zeros`."""
    return _new(shape, dtype, device, requires_grad, zeroed=False, pinned=pinned, retain_grad=retain_grad)


def ones(
    shape: Any,
    dtype: Any = scalars.float32,
    device: _DeviceLike = None,
    requires_grad: bool = False,
    pinned: bool = False,
    retain_grad: bool = False,
) -> Array:
    """Return a new array of ones; parameters as in `zeros`."""
    return full(shape, 1, dtype, device, requires_grad, pinned, retain_grad)


def full(
    shape: Any,
    value: Any = 0,
    dtype: Any = None,
    device: _DeviceLike = None,
    requires_grad: bool = False,
    pinned: bool = False,
    retain_grad: bool = False,
) -> Array:
    """Return a new array with every element set to `value`.

    Without a dtype, a Python float gives float32, an int int32, a bool bool and a complex complex64; a NumPy scalar
    keeps its own. Other parameters as in `zeros`.
    """
    wanted = _dtype_of_value(value) if dtype is None else dtype
    made = _new(shape, wanted, device, requires_grad, zeroed=False, pinned=pinned, retain_grad=retain_grad)
    return made.fill_(value)


def _dtype_of_value(value: Any) -> Any:
    if isinstance(value, Element):
        return type(value)
    if hasattr(value, "dtype"):
        return (element_of(value) or row_of(value)) if isinstance(value, Array) else value.dtype
    for kind in (bool, int, float, complex):
        if isinstance(value, kind):
            return kind
    raise NumbridgeTypeError(f"value is {value!r}, which has no dtype; it must be a number, or pass dtype")


def _new(
    shape: Any,
    dtype: Any,
    device: _DeviceLike,
    requires_grad: bool,
    *,
    zeroed: bool,
    pinned: bool = False,
    retain_grad: bool = False,
) -> Array:
    maker = _maker.get()
    if maker is not None:
        made: Array = maker(shape, dtype)
        return made
    made = allocate(shape, dtype, device, zeroed=zeroed, pinned=pinned)
    if requires_grad:
        made.requires_grad = True
    if retain_grad:
        made.retain_grad = True
    return made


def zeros_like(
    src: Any,
    dtype: Any = None,
    device: _DeviceLike = None,
    requires_grad: bool | None = None,
    pinned: bool | None = None,
    retain_grad: bool = False,
) -> Array:
    """Return a new array of zeros with the shape of `src`.

    Parameters
    ----------
    src : array_like
        An Array, or any framework's.
    dtype : dtype_like, optional
        That of `src` by default.
    device : Device or str, optional
        That of `src` by default.
    requires_grad : bool, optional
        As `src` by default.
    pinned : bool, optional
        Whether host memory shall be page-locked; as `src` by default.
    retain_grad : bool
        Whether a tape's gradient is that of what the array holds last; see `Array.retain_grad`.
    """
    return _like(src, dtype, device, requires_grad, pinned, retain_grad, zeroed=True)


def empty_like(
    src: Any,
    dtype: Any = None,
    device: _DeviceLike = None,
    requires_grad: bool | None = None,
    pinned: bool | None = None,
    retain_grad: bool = False,
) -> Array:
    """Return a new array with the shape of `src` and arbitrary values; parameters as in `zeros_like`."""
    return _like(src, dtype, device, requires_grad, pinned, retain_grad, zeroed=False)


def ones_like(
    src: Any,
    dtype: Any = None,
    device: _DeviceLike = None,
    requires_grad: bool | None = None,
    pinned: bool | None = None,
    retain_grad: bool = False,
) -> Array:
    """Return a new array of ones with the shape of `src`; parameters as in `zeros_like`."""
    return full_like(src, 1, dtype, device, requires_grad, pinned, retain_grad)


def full_like(
    src: Any,
    value: Any,
    dtype: Any = None,
    device: _DeviceLike = None,
    requires_grad: bool | None = None,
    pinned: bool | None = None,
    retain_grad: bool = False,
) -> Array:
    """Return a new array with the shape of `src` and one value; parameters as in `zeros_like`."""
    return _like(src, dtype, device, requires_grad, pinned, retain_grad, zeroed=False).fill_(value)


def _taken(src: Any) -> Array:
    """Return an array on the memory of another one, or of a vector or matrix by itself."""
    if isinstance(src, Element):
        return copied(src, device="cpu")
    return src if isinstance(src, Array) else adopt(src)


def _like(
    src: Any,
    dtype: Any,
    device: _DeviceLike,
    requires_grad: bool | None,
    pinned: bool | None,
    retain_grad: bool,
    *,
    zeroed: bool,
) -> Array:
    if is_traced(src):
        return _new(src.shape, src.dtype if dtype is None else dtype, device, False, zeroed=zeroed)
    model = _taken(src)
    kind = (element_of(model) or row_of(model)) if dtype is None else dtype_of(dtype)
    element, row = (kind, kind.scalar) if isinstance(kind, ElementType) else (None, kind)
    # A dtype that cannot have a gradient is asked for only by someone who wants none.
    inherited = model.requires_grad and (has_gradient(element, row) or row.code == scalars.COMPLEX)
    place = model.device if device is None else get_device(device)
    return _new(
        model.shape,
        kind,
        place,
        inherited if requires_grad is None else requires_grad,
        zeroed=zeroed,
        pinned=_pinned(model, place, pinned),
        retain_grad=retain_grad,
    )


def _pinned(model: Array, place: Device, pinned: bool | None) -> bool:
    """Tell whether an array that is made after another one is page-locked; only the host's memory can be."""
    return (model.is_pinned and place.is_cpu) if pinned is None else pinned


def clone(
    src: Any,
    device: _DeviceLike = None,
    requires_grad: bool | None = None,
    pinned: bool | None = None,
    retain_grad: bool = False,
) -> Array:
    """Return a contiguous copy of any framework's array.

    Parameters
    ----------
    src : array_like
        An Array, or any framework's.
    device : Device or str, optional
        That of `src` by default.
    requires_grad : bool, optional
        As `src` by default.
    pinned : bool, optional
        Whether host memory shall be page-locked; as `src` by default. A copy from CUDA into such memory returns before it is
        done.
    retain_grad : bool
        Whether a tape's gradient is that of what the array holds last; see `Array.retain_grad`.
    """
    if is_traced(src):
        made: Array = src.clone()
    else:
        source = _taken(src)
        place = source.device if device is None else get_device(device)
        if _pinned(source, place, pinned):
            made = empty_like(source, device=place, pinned=True)
            copy(made, source)
        else:
            made = source.to(place, copy=True)
    if requires_grad is not None:
        made.requires_grad = requires_grad
    if retain_grad:
        made.retain_grad = True
    return made


def copy(dest: Any, src: Any, dest_offset: int = 0, src_offset: int = 0, count: int = 0, stream: Any = None) -> None:
    """Copy the elements of `src` into `dest`, which may be of any framework and on another device.

    A copy from CUDA into page-locked memory of the same dtype returns before it is done: wait for the stream, or an event.

    Parameters
    ----------
    dest : array_like
        Written; must be writable. Converted to its dtype. Has the shape of `src`, or one dimension, whose first elements are then
        those of `src`, or elements are counted by one of the three numbers.
    src : array_like
        Read; may overlap `dest`.
    dest_offset, src_offset : int
        First element, counted in C order; both arrays must be contiguous if one is not 0.
    count : int
        How many elements; 0 for all of `src` from `src_offset` on.
    stream : Stream, or another library's stream, optional
        Of the device that `dest` lies on, or else `src`, for a copy on CUDA: it waits for what the stream that is current
        there has been given, as for what the arrays' frameworks have. By default the current stream. A copy on the host needs
        none.

    Raises
    ------
    BufferAccessError
        If `dest` is read-only, or its framework forbids writing to it now.
    DeviceError
        If the stream lies on another device.
    NumbridgeValueError
        If the elements do not fit.
    """
    if is_traced(dest):
        _copy_traced(dest, src, dest_offset, src_offset, count)
        return
    target = dest if isinstance(dest, Array) else adopt(dest)
    if target.read_only:
        raise BufferAccessError(
            f"copy would write to dest, a read-only {type(dest).__name__}; copy to a writable array"
        )
    if native().word(target) & nb.REPEATED:
        raise BufferAccessError(
            f"copy would write to dest, {readers.expanded_text(readers.describe(target))}; copy to a contiguous array"
        )
    guard = readers.reader_of(dest).guard
    if guard is not None:
        try:
            guard(dest)
        except BufferAccessError as error:
            raise BufferAccessError(f"copy would write to dest: {error}") from None
    if is_literal(src):
        # On the stream of the copy, where its memory is given back, too
        with _on(stream, target.device):
            source = copied(src, device=target.device)
    else:
        source = src if isinstance(src, Array) else adopt(src)
    numbers = dest_offset, src_offset, count
    if any(numbers) or not _same_numbers(target, source):
        if _is_partial(target, source, *numbers):
            target, source = _parts(target, source, *numbers)
        _check_shapes(target, source)
    place = target.device if target.device.is_cuda else source.device
    with _on(stream, place):
        is_pinned = target.__dlpack_device__()[0] == dl.CUDA_HOST
        # A tape is told of what `assign` does.
        if source.device.is_cuda and is_pinned and _alike(source, target) and not is_watched():
            cupy_memory.to_host(source, target.numpy())
        else:
            target.assign(source)
        if stream is not None and place.is_cuda:
            # Nobody else knows that they are used on this stream, and would give their memory to somebody else.
            cuda_driver.devices().keep_here(place.ordinal, (target, source))


def _same_numbers(target: Array, source: Array) -> bool:
    """Tell whether two arrays have numbers in the same places, those of vectors and matrices among them."""
    held = [element is not None and element.fields is not None for element in map(element_of, (target, source))]
    return held[0] == held[1] and scalar_shape(target) == scalar_shape(source)


def _check_shapes(target: Array, source: Array) -> None:
    if target.shape != source.shape:
        raise NumbridgeValueError(
            f"src has shape {source.shape}, and dest {target.shape}; they must be equal, or pass a count of elements, which are "
            "taken in C order"
        )


def _on(stream: Any, device: Device) -> contextlib.AbstractContextManager[Any]:
    """Make a stream current for a copy on a device."""
    if stream is None or not device.is_cuda:
        return contextlib.nullcontext()
    own = own_stream(stream, device)
    check_place(own, device, "copy")
    return ScopedStream(own)


def _alike(source: Array, target: Array) -> bool:
    return target.is_contiguous and row_of(source) == row_of(target)


def _copy_traced(dest: Any, src: Any, dest_offset: int, src_offset: int, count: int) -> None:
    target, source = dest, src if is_traced(src) else copied(src) if is_literal(src) else adopt(src)
    if _is_partial(target, source, dest_offset, src_offset, count):
        target, source = _parts(target, source, dest_offset, src_offset, count)
    target.assign(source)


def _is_partial(target: Any, source: Any, *numbers: int) -> bool:
    """Tell whether elements are counted: where a number says so, and where others fill the first of one dimension."""
    return any(numbers) or (target.ndim == 1 and target.shape != source.shape and source.size <= target.size)


def _parts(target: Array, source: Array, dest_offset: int, src_offset: int, count: int) -> tuple[Array, Array]:
    to, since, some = (
        _counted(name, number)
        for name, number in (("dest_offset", dest_offset), ("src_offset", src_offset), ("count", count))
    )
    amount = some or source.size - since
    if amount < 0 or since + amount > source.size or to + amount > target.size:
        raise NumbridgeValueError(
            f"{shown(amount)} elements from {shown(since)} on in src, which has {source.size}, do not fit into dest, which has "
            f"{target.size}, from {shown(to)} on"
        )
    return _in_a_row("dest", target)[to : to + amount], _in_a_row("src", source)[since : since + amount]


def _counted(name: str, given: Any) -> int:
    """Return a number of elements."""
    try:
        number = operator.index(given)
    except TypeError:
        raise NumbridgeTypeError(f"copy: {name} is {given!r}; it must be an int") from None
    if number < 0:
        raise NumbridgeValueError(f"copy: {name} is {shown(number)}; it must be 0 or more")
    return number


def _in_a_row(name: str, array: Array) -> Array:
    """Return a view of an array with one dimension."""
    try:
        return array.flatten()
    except BufferAccessError as error:
        raise BufferAccessError(
            f"copy: {name} lies so that its elements cannot be counted ({error}); copy views of one shape"
        ) from None
