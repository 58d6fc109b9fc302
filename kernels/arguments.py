"""What a kernel's arguments are bound to: the types of its parameters, its floating type, and the device that it runs on.

Every argument is checked here, on the slow road, and what does not fit is refused with a message that names the parameter, what
it got, what it wanted and what to do. Nothing is compiled or launched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels import scalars
from numbridge.kernels.annotations import ArrayAnnotation, ElementAnnotation, ScalarAnnotation
from numbridge.kernels.devices import CPU, Device, get_device
from numbridge.kernels.element_types.element_arguments import check_elements, check_value, outer_rank
from numbridge.kernels.element_types.elements import ElementType, number_fields
from numbridge.kernels.errors import (
    BufferAccessError,
    ConversionError,
    DeviceError,
    NumbridgeTypeError,
    NumbridgeValueError,
    shown,
)
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType
from numbridge.kernels.readers import Description, array_text, expanded_text, reader_of, unreadable

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel, Parameter

__all__ = [
    "bound_types",
    "by_position",
    "check_array",
    "check_count",
    "check_limit",
    "check_readable",
    "check_writable",
    "launch_device",
]

# How many bits an integer has that is written out in messages, and the most of one that float64 takes
_MOST_SHOWN, _LARGEST_EXPONENT = 128, 1023
_SCALAR_NAMES = {
    nb.CLASS_FLOAT: "float",
    nb.CLASS_INT: "int",
    nb.CLASS_BOOL: "bool",
    nb.CLASS_COMPLEX: "complex",
}
_Dtype = scalars.Scalar | ElementType


def by_position(what: str, parameters: Sequence[str], named: Iterable[str]) -> NumbridgeTypeError:
    """Return the error of arguments that were passed by name to what takes them by position."""
    return NumbridgeTypeError(
        f"{what} takes its arguments by position, in the order ({', '.join(parameters)}), and {', '.join(named)} came by name; "
        "leave the names out"
    )


def check_count(kernel: Kernel, arguments: Sequence[Any]) -> None:
    """Check that there is an argument for each of a kernel's parameters.

    Raises
    ------
    NumbridgeTypeError
        If there are more or fewer.
    """
    if len(arguments) == len(kernel.parameters):
        return
    names = [parameter.name for parameter in kernel.parameters]
    why = ""
    if names[:1] in (["self"], ["cls"]):
        why = "; a kernel gets no object that it is a method of: write @staticmethod above @nb.kernel, and pass what it reads"
    elif getattr(kernel.function, "__defaults__", None):
        why = "; the defaults of a kernel's parameters are not used, so pass every argument"
    raise NumbridgeTypeError(
        f"kernel {kernel.name!r} takes {len(names)} arguments ({', '.join(names)}), got {len(arguments)}{why}"
    )


def check_limit(kernel: Kernel) -> None:
    """Check that a launch can take as many arguments as a kernel has parameters.

    Raises
    ------
    NumbridgeTypeError
        If there are more.
    """
    count = len(kernel.parameters)
    if count > nb.MAX_ARGUMENTS:
        raise NumbridgeTypeError(
            f"kernel {kernel.name!r} takes {count} arguments, with what tuples hold counted one by one, and launches take up to "
            f"{nb.MAX_ARGUMENTS}; pass arrays of one shape as one array, and numbers as the elements of one"
        )


def bound_types(
    kernel: Kernel, arguments: Sequence[Any], found: Sequence[Description], written: Collection[str]
) -> tuple[tuple[ParameterType, ...], str]:
    """Return the types that a kernel's arguments are bound to, and its floating type.

    Raises
    ------
    NumbridgeError
        If an argument does not fit its parameter, or one that is `written` may not be.
    """
    checked = [
        _check(kernel, parameter, argument, description, written=parameter.name in written)
        for parameter, argument, description in zip(kernel.parameters, arguments, found, strict=True)
    ]
    weak = _weak_float(checked, found)
    contiguous = all(d.has(nb.CONTIGUOUS) for d in found if d.is_array)
    types = [
        _parameter_type(p, dtype or _weak_scalar(d, weak), d, contiguous=contiguous, written=p.name in written)
        for p, dtype, d in zip(kernel.parameters, checked, found, strict=True)
    ]
    beside = kernel.source.beside(written)
    if beside:
        types = [
            replace(kind, beside_written=True) if isinstance(kind, ArrayType) and kind.name in beside else kind
            for kind in types
        ]
    return tuple(types), weak


def _parameter_type(
    parameter: Parameter, dtype: _Dtype, found: Description, *, contiguous: bool, written: bool
) -> ParameterType:
    element = dtype if isinstance(dtype, ElementType) else None
    scalar = dtype.scalar if isinstance(dtype, ElementType) else dtype
    if not found.is_array or isinstance(parameter.annotation, ElementAnnotation):
        return ScalarType(parameter.name, scalar, element)
    return ArrayType(parameter.name, scalar, outer_rank(parameter.annotation, found), contiguous, written, element)


def launch_device(
    kernel: Kernel, arguments: Sequence[Any], found: Sequence[Description], wanted: Device | None
) -> Device:
    """Return the device that a launch runs on: that of its arrays, which must be one; the current one without arrays.

    Raises
    ------
    DeviceError
        If its arrays lie on several devices, or on another one than is `wanted`.
    """
    arrays = [
        (kernel.label(p.name), a, d) for p, a, d in zip(kernel.parameters, arguments, found, strict=True) if d.is_array
    ]
    # Managed memory may be used on either side.
    fixed = [_device_of(d) for _, _, d in arrays if d.device_type != dl.CUDA_MANAGED]
    others = [_device_of(d) for _, _, d in arrays]
    chosen = wanted or next(iter([*fixed, *others]), None) or get_device()
    if any(device != chosen for device in fixed):
        listed = ", ".join(f"{name}: {_device_of(d)} ({_kind_text(a)})" for name, a, d in arrays)
        asked = f", and device={str(wanted)!r} was asked for" if wanted is not None else ""
        raise DeviceError(
            f"kernel {kernel.name!r}: its arguments lie on different devices ({listed}{asked}); copy them to one first, "
            "such as nb.asarray(x).to('cuda:0')"
        )
    return get_device(chosen)


def _device_of(found: Description) -> Device:
    return CPU if found.device_type == dl.CPU else Device("cuda", found.device_id)


def _check(kernel: Kernel, parameter: Parameter, argument: Any, found: Description, *, written: bool) -> _Dtype | None:
    """Check one argument; return the type that it is bound to, or None for a Python number, which is weak."""
    where = f"kernel {kernel.name!r}, parameter {kernel.label(parameter.name)!r}"
    if found.is_element or isinstance(parameter.annotation, ElementAnnotation):
        if not found.is_element and (found.kind == 0 or found.has(nb.UNSURE)):
            why = unreadable(argument)
            if isinstance(why, BufferAccessError):  # it may be what is wanted, if somebody could read it
                raise _located(where, why)
        return check_value(where, parameter.annotation, argument, found)
    if found.kind == 0 and isinstance(parameter.annotation, ScalarAnnotation) and isinstance(argument, str | None):
        raise NumbridgeTypeError(
            f"{where}: wanted a scalar {parameter.annotation.scalar.name}, got {argument!r}; pass a number"
        )
    check_readable(where, argument, found)
    if not found.is_array:
        return _check_scalar(where, parameter.annotation, argument, found)
    if isinstance(parameter.annotation, ScalarAnnotation):
        raise NumbridgeTypeError(
            f"{where}: wanted a scalar {parameter.annotation.scalar.name}, got {array_text(found)} "
            f"({_kind_text(argument)}); pass a number, such as array.item()"
        )
    dtype = check_array(where, parameter.annotation, argument, found)
    if written:
        check_writable(where, argument, found)
    return dtype


def _located(where: str, error: Exception) -> Exception:
    return type(error)(f"{where}: {error}")


def _kind_text(argument: Any) -> str:
    kind = type(argument)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def check_readable(where: str, argument: Any, found: Description) -> None:
    """Check that anybody can tell what an argument is; `where` begins the message.

    Raises
    ------
    NumbridgeError
        If it is nothing that a kernel takes, or its framework has no memory for it now; the message says why.
    """
    if found.kind == 0 or found.has(nb.UNSURE):
        raise _located(where, unreadable(argument))


def check_array(where: str, annotation: Any, argument: Any, found: Description) -> _Dtype:
    """Return the element type of an array argument.

    Parameters
    ----------
    where : str
        What begins a message: the kernel and its parameter.
    annotation : ArrayAnnotation, ScalarAnnotation or None
        What the parameter wants; None for any array.
    argument : object
        What was passed, as `found` describes it.

    Raises
    ------
    ConversionError, DeviceError, NumbridgeTypeError, BufferAccessError
        If it is of a dtype that numbridge does not have, lies on a device without kernels, is not what the annotation wants,
        or is not aligned to its elements.
    """
    got = f"{array_text(found)} ({_kind_text(argument)})"
    if found.scalar is None:
        own = getattr(argument, "dtype", None)
        named = "" if own is None else f" of dtype {own}"
        raise ConversionError(
            f"{where}: got a {found.ndim}-d array{named} with shape {found.shape} ({_kind_text(argument)}): DLPack type code "
            f"{found.tag & 0xFF}, {found.tag >> 8 & 0xFF} bits, {found.tag >> 16} lanes has no counterpart; numbridge has "
            f"{', '.join(row.name for row in scalars.ALL)}"
        )
    if found.device_type not in (dl.CPU, dl.CUDA, dl.CUDA_MANAGED):
        raise DeviceError(
            f"{where}: {got} lies on DLPack device type {found.device_type}; kernels run on the CPU and on CUDA"
        )
    if isinstance(annotation, ArrayAnnotation) and isinstance(annotation.dtype, ElementType):
        check_elements(where, annotation, got, found)
    elif isinstance(annotation, ArrayAnnotation):
        if annotation.ndim is not None and annotation.ndim != found.ndim:
            plural = "" if annotation.ndim == 1 else "s"
            raise NumbridgeTypeError(
                f"{where}: wanted {annotation!r}, of {annotation.ndim} dimension{plural}, got {got}; reshape it"
            )
        if annotation.dtype is not None and annotation.dtype != (found.element or found.scalar):
            raise NumbridgeTypeError(
                f"{where}: wanted elements of {annotation.dtype.name}, got {got}; pass a copy of that dtype, or leave the dtype "
                "out of the annotation, as in x: nb.array, so that the kernel is compiled for every dtype that comes"
            )
    if isinstance(annotation, ScalarAnnotation):
        raise NumbridgeTypeError(f"{where}: wanted a number, got {got}")
    if found.has(nb.MISALIGNED):
        raise BufferAccessError(
            f"{where}: {got} is not aligned to its elements of {found.scalar.itemsize} bytes; pass an aligned copy, such as "
            "np.require(array, requirements='A')"
        )
    element = annotation.dtype if isinstance(annotation, ArrayAnnotation) else None
    return element if isinstance(element, ElementType) else found.element or found.scalar


def check_writable(where: str, argument: Any, found: Description, writes: str = "the kernel writes to it") -> None:
    """Check that an array may be written to; `where` begins the message, and `writes` says what writes to it.

    Raises
    ------
    BufferAccessError
        If it is immutable, read-only or an expanded view, or if its framework does not let a kernel write to it now.
    """
    if found.has(nb.IMMUTABLE):
        raise BufferAccessError(
            f"{where}: {writes}, and {_kind_text(argument)} is immutable, or shares the memory of an array that "
            "is; pass a copy in an array that may be written, such as nb.clone(nb.asarray(x)) or np.array(x)"
        )
    if found.has(nb.READ_ONLY):
        raise BufferAccessError(
            f"{where}: {writes}, and this {_kind_text(argument)} is read-only (or known only through a copy); "
            "pass a writable array, such as a copy of it"
        )
    if found.has(nb.REPEATED):
        raise BufferAccessError(f"{where}: {writes}, and it is {expanded_text(found)}; pass a contiguous copy")
    guard = reader_of(argument).guard
    if guard is not None and found.has(nb.GUARDED):
        try:
            guard(argument)
        except BufferAccessError as error:
            raise _located(f"{where}: {writes}", error) from None


def _check_scalar(where: str, annotation: Any, argument: Any, found: Description) -> scalars.Scalar | None:
    if isinstance(annotation, ArrayAnnotation):
        raise NumbridgeTypeError(
            f"{where}: wanted {annotation!r}, got the {_SCALAR_NAMES[found.kind]} {shown(argument)}; pass an array"
        )
    if annotation is None:
        weak = not found.has(nb.STRONG)
        if found.has(nb.TOO_BIG) or (weak and found.kind == nb.CLASS_INT and found.tag != scalars.tag_of("int64")):
            raise NumbridgeValueError(
                f"{where}: the integer {_shown(argument)} does not fit into int64; {_other_way(argument)}"
            )
        return found.scalar if found.has(nb.STRONG) else None
    wanted: scalars.Scalar = annotation.scalar
    _check_fits(where, wanted, argument, found)
    return wanted


def _check_fits(where: str, wanted: scalars.Scalar, argument: Any, found: Description) -> None:
    """Check that a number may be converted to its parameter's type: within its kind, and without losing its value."""
    rank = {nb.CLASS_BOOL: 0, nb.CLASS_INT: 1, nb.CLASS_FLOAT: 2, nb.CLASS_COMPLEX: 3}[found.kind]
    accepts = {scalars.BOOL: 0, scalars.INT: 1, scalars.UINT: 1, scalars.FLOAT: 2, scalars.COMPLEX: 3}.get(wanted.code)
    if accepts is None:
        raise ConversionError(
            f"{where}: scalars of {wanted.name} are not supported; annotate float and convert in the kernel"
        )
    if rank > accepts:
        raise NumbridgeTypeError(
            f"{where}: wanted {wanted.name}, got the {_SCALAR_NAMES[found.kind]} {shown(argument)}, which would lose part of its "
            "value; convert it explicitly"
        )
    if accepts == 1:
        limits = np.iinfo(wanted.numpy)
        if not limits.min <= int(argument) <= limits.max:
            raise NumbridgeValueError(
                f"{where}: {shown(argument)} does not fit into {wanted.name} ({limits.min} to {limits.max}); annotate a wider "
                "type"
            )
    elif found.has(nb.TOO_BIG):
        raise NumbridgeValueError(f"{where}: the integer {_shown(argument)} is too large; {_other_way(argument)}")


def _shown(number: int) -> str:
    """Return an integer as messages show it; Python itself refuses to write one of many thousand digits."""
    return repr(number) if number.bit_length() <= _MOST_SHOWN else f"of {number.bit_length()} bits"


def _other_way(number: int) -> str:
    """Return what to pass instead of an integer of more than 64 bits, or one that is too large for int64."""
    if 0 <= number < 1 << 64:
        return "pass np.uint64(value), or float(value)"
    return "pass float(value)" if number.bit_length() <= _LARGEST_EXPONENT else "scale it: float64 ends before it, too"


def _weak_float(checked: Sequence[_Dtype | None], found: Sequence[Description]) -> str:
    """Return the kernel's floating type: the widest among its arguments, float32 if there is none."""
    widths = [32]
    for dtype in checked:
        if isinstance(dtype, ElementType) and dtype.fields is not None:
            widths += [64 for _, kind in number_fields(dtype.fields) if kind.name in ("float64", "complex128")]
            continue
        row = dtype.scalar if isinstance(dtype, ElementType) else dtype
        if row is not None and row.code == scalars.COMPLEX:
            widths.append(row.itemsize * 4)
        elif row is not None and row.is_float:
            widths.append(row.itemsize * 8)
    return "float64" if max(widths) > 32 else "float32"


def _weak_scalar(found: Description, weak: str) -> scalars.Scalar:
    names = {
        nb.CLASS_FLOAT: weak,
        nb.CLASS_INT: "int64",
        nb.CLASS_BOOL: "bool",
        nb.CLASS_COMPLEX: "complex128" if weak == "float64" else "complex64",
    }
    return scalars.by_name(names[found.kind])
