"""What the rooms of frameworks with autograd tensors share: adopting a tensor, exporting an array, joining gradients.

It names no framework: each room passes in what only it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbridge.arrays.array import Array
from numbridge.arrays.contents import same_dtype
from numbridge.arrays.gradients import check_differentiable, existing_gradient, root_of, share_gradient
from numbridge.kernels import readers
from numbridge.kernels.errors import BufferAccessError
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.scalars import COMPLEX
from numbridge.storage.element_views import refuse_records, unpacked
from numbridge.storage.memory import adopt, native, row_of
from numbridge.storage.stream_order import hand_over

__all__ = ["READ_ONLY_MARK", "adopted", "exported", "join_gradients", "wants_gradient"]

# The attribute of a tensor over memory that numbridge's kernels must not write to, although the tensor cannot say so.
READ_ONLY_MARK = "_numbridge_read_only"


def adopted(
    t: Any,
    home: str,
    checked: Callable[[Any], Any],
    dtype: Any,
    requires_grad: bool | None,
    grad: Any,
    return_ctype: bool,
    retain_grad: bool = False,
    *,
    holds_gradients: bool = True,
) -> Any:
    """Return an Array, or a kernel's descriptor, on a tensor's memory.

    Parameters
    ----------
    t : object
        The tensor.
    home : str
        The module of the framework's ordinary tensor class: an object of that is not looked at further.
    checked : callable
        Returns a tensor, or raises for what is none.
    dtype, requires_grad, grad, return_ctype, retain_grad
        As the room's `from_` takes them.
    holds_gradients : bool
        Whether the framework takes a tensor for the gradient of another; if it copies that, the array keeps it.
    """
    if return_ctype:
        found = native().capture(t) if dtype is None else None
        return found if found is not None else adopted(t, home, checked, dtype, None, None, False)._record
    made = native().adopt(t)
    if made is None or made._source.__class__.__module__ != home:
        made = adopt(checked(t))
    if dtype is not None:
        made = same_dtype(made, dtype)
    if requires_grad is None and grad is not None:
        requires_grad = True  # or a tape would not carry anything to the gradient that is given
    if requires_grad is not None:
        made.requires_grad = requires_grad
    if grad is not None:
        if holds_gradients:
            made.grad = grad
        else:
            share_gradient(made, grad)
    if retain_grad:
        made.retain_grad = True
    return made


def exported(array: Array, address: int, what: str, stream: int) -> tuple[Any, bool]:
    """Return a framework's tensor on an array's memory, and whether that memory must not be written.

    Parameters
    ----------
    array : Array
        What to export.
    address : int
        The framework's ``managed_tensor_to_py_object_no_sync``.
    what : str
        What messages call the framework's tensor.
    stream : int
        The framework's ``current_work_stream``: on CUDA, its current stream waits for the array's.
    """
    refuse_records(array, what.split()[1])
    word = native().word(array)
    if not word & nb.CONTIGUOUS and any(step < 0 for step in array.strides):
        raise BufferAccessError(
            f"an Array with negative strides {array.strides} cannot be {what}; array.clone() copies it"
        )
    if array.device.is_cuda:
        hand_over(array, readers.ask_stream(stream, array.device.ordinal))
    if not word & nb.READ_ONLY:
        return native().export_to(array._record, address), False
    if not word & nb.IMMUTABLE:
        raise BufferAccessError(
            f"a read-only Array cannot be {what}, which has no read-only flag; array.clone() copies it"
        )
    record, row = unpacked(array)._record, row_of(array)
    _, data, shape, strides, _ = native().describe(record)
    steps = tuple(step // row.itemsize for step in strides)
    place = (data, row.tag, *array.__dlpack_device__())
    return native().export_to(native().new_record(record, *place, shape, steps, 0), address), True


def wants_gradient(array: Array, requires_grad: bool | None) -> bool:
    """Return whether a tensor that is made of an array shall require grad: as `requires_grad` says, or as the array does.

    Raises
    ------
    NumbridgeTypeError, BufferAccessError
        If it shall, and its numbers have no gradient, or its memory must not be written.
    """
    if requires_grad is None:
        return array.requires_grad
    if requires_grad:
        check_differentiable(array)
        if array.read_only:
            raise BufferAccessError(
                "requires_grad is True, and the memory must not be written, as who follows a gradient does; pass array.clone()"
            )
    return bool(requires_grad)


def join_gradients(
    array: Array,
    made: Any,
    wanted: bool,
    require: Callable[[Any], None],
    convert: Callable[[Array, bool], Any],
    part: Callable[[Any, Any], Any],
) -> Any:
    """Let a tensor made of an array require grad if that is wanted, and keep the gradient of both; return the tensor.

    A view's gradient is a part of the gradient of the array that it is a view of. So its tensor is a view of that array's
    tensor, through which the framework itself carries the gradient there.

    Parameters
    ----------
    array, made
        The array, and the tensor on its memory.
    wanted : bool
        Whether the tensor shall require grad; only floating and complex writable memory can.
    require : callable
        Makes the tensor require grad.
    convert : callable
        ``convert(array, requires_grad)`` makes a tensor of another array.
    part : callable
        ``part(whole, made)`` returns the view of a tensor that lies where another one does, as autograd follows it; or None.
    """
    row = row_of(array)
    if not wanted or not (row.is_float or row.code == COMPLEX) or array.read_only:
        return made
    state, whole = array._extra, root_of(array)
    if whole is not array and whole.requires_grad and array.size:
        found = part(convert(whole, True), made)
        if found is None or found.data_ptr() != made.data_ptr():
            raise BufferAccessError(
                "a view of an Array that requires a gradient cannot be a tensor of its own here, and its gradient would not come "
                "to the Array; convert the Array and slice the tensor, or pass requires_grad=False"
            )
        return found
    gradient = existing_gradient(array)
    require(made)
    if array._source is None:
        # From here on the tensor keeps the gradient, wherever it is asked for.
        if state is not None and state.parent is None:
            state.gradient = None
        array._source = made
    if gradient is not None:
        made.grad = convert(gradient, False)
    return made
