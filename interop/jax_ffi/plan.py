"""One call of a kernel under JAX, decided purely: parameter types, where each parameter comes from, launch and output shapes.

A `Call` is a hashable value; `call_words` writes it down for the handler. This module decides from shapes, dtypes and static
values alone, and raises whatever is wrong with them while the program is traced. It runs nothing and makes no JAX values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.identity import Key
from numbridge.jax_ffi.signature import Dims, Signature, as_dims, is_shorter, is_symbolic
from numbridge.jax_ffi.widths import is_kept
from numbridge.kernels import scalars
from numbridge.kernels.annotations import ArrayAnnotation, ElementAnnotation, ScalarAnnotation
from numbridge.kernels.block_dims import BlockDim, block_dim_of
from numbridge.kernels.element_types.elements import Element, ElementType
from numbridge.kernels.errors import ConversionError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.geometry import dimensions
from numbridge.kernels.kernel import Kernel, Parameter
from numbridge.kernels.language.clashes import Clash
from numbridge.kernels.language.dynamic_memory import check_dynamic_memory
from numbridge.kernels.language.indexing import indexing_of
from numbridge.kernels.language.reaches import reaches_of
from numbridge.kernels.parameter_types import ArrayType, ParameterType, is_signed
from numbridge.kernels.scalars import Scalar
from numbridge.operators.element_dims import component_of, element_of, inner_dims, inner_extents, outer_shape

__all__ = [
    "Call",
    "Number",
    "Operand",
    "Options",
    "Slot",
    "argument_row",
    "buffer_scalar",
    "by_reference",
    "is_array",
    "number_of",
    "output_row",
    "packed",
    "plan_call",
]

_CLASSES = {bool: 0, int: 1, float: 2, complex: 3}
_KINDS = {scalars.BOOL: 0, scalars.INT: 1, scalars.UINT: 1, scalars.FLOAT: 2, scalars.COMPLEX: 3}


@dataclass(frozen=True)
class Operand:
    """A JAX value that is passed for a parameter; its shape has the dimensions of elements."""

    shape: Dims
    dtype: Any
    weak: bool

    def __str__(self) -> str:
        """Return such as ``float32[3, 4]``."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Number:
    """A number that is known when the program is traced, or (`packed`) one that an eager call passes beside its operands.

    Attributes
    ----------
    kind : type, numpy.dtype or ElementType
        `bool`, `int`, `float` or `complex` for Python's own numbers, which are weak; else a dtype, or that of a vector or matrix.
    value : object
        The number, vector or matrix; None if it is packed.
    packed : bool
        Whether the value comes with the call.
    """

    kind: Any
    value: Any = None
    packed: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this number from others; those that are equal may differ (0.0 and -0.0, 1 and True), and NaN equals none."""
        return (self.kind, self.packed, _exact(self.value))


def _exact(value: Any) -> Any:
    """Return a number such that only the same bits are equal."""
    if isinstance(value, Element):
        return value.numpy().tobytes()
    # Integers of Python's may be larger than anything that has bytes.
    return np.asarray(value).tobytes() if isinstance(value, float | complex | np.generic) else value


@dataclass(frozen=True)
class _Traced:
    """What a trace knows of a launch, as `launch_sizes.Known` asks for it; extents may be symbolic."""

    dims: Dims
    shapes: Mapping[str, Dims]
    numbers: Mapping[str, int]

    def along(self, kind: str, axis: int) -> Any:
        return self.dims[axis] if kind == "dim" and axis < len(self.dims) else None

    def shape(self, parameter: str) -> Any:
        return self.shapes.get(parameter)

    def number(self, parameter: str) -> Any:
        return self.numbers.get(parameter)

    def choose(self, of: Callable[..., Any], left: Any, right: Any) -> Any:
        if not (is_symbolic(left) or is_symbolic(right)):
            return of(left, right)
        import jax.core

        return jax.core.min_dim(left, right) if of is min else jax.core.max_dim(left, right)


@dataclass(frozen=True)
class Options:
    """What a user may say about a call; dims may be functions until `asked_dims` has asked them."""

    launch_dims: Any
    output_dims: Any
    vmap_method: str
    block_dim: BlockDim
    has_side_effect: bool
    sharding_rule: str | None = None
    enable_backward: bool = False
    fuse: bool | None = None

    @property
    def ask(self) -> bool:
        """Whether dims are said by functions of the inputs."""
        return callable(self.launch_dims) or callable(self.output_dims)


@dataclass(frozen=True)
class Slot:
    """Where one parameter comes from: see `words_layout`."""

    kind: int
    index: int = 0
    alias: int = -1
    fill: bool = False
    value: bytes = b""


@dataclass(frozen=True)
class Call:
    """One call site, without its batch axes.

    Attributes
    ----------
    kernel, signature, key, types, weak
        What runs: the kernel, which of its parameters are outputs, its key, its parameter types and floating type.
    slots : tuple of Slot
        Where each parameter comes from.
    dims : tuple
        Launch dimensions, ints or symbolic.
    results : tuple
        Shape and dtype of each result.
    shapes, casts : tuple
        Shape of each operand, without batch axes, and the dtype that it is converted to, or None.
    batch : tuple
        Extents of the batch axes, outermost first, which results have in front.
    spread : tuple
        For each operand, whether it has the extent of each batch axis, or 1; None if it has no batch axes at all.
    options : Options
        What the user said.
    """

    kernel: Kernel
    signature: Signature
    key: Key
    types: tuple[ParameterType, ...]
    weak: str
    slots: tuple[Slot, ...]
    dims: Dims
    results: tuple[tuple[Dims, Any], ...]
    shapes: tuple[Dims, ...]
    casts: tuple[Any, ...]
    batch: Dims
    spread: tuple[tuple[bool, ...] | None, ...]
    options: Options

    @property
    def operands(self) -> int:
        """How many operands the call has."""
        return len(self.casts)

    @property
    def aliases(self) -> dict[int, int]:
        """Which operand shares its memory with which result."""
        return {slot.alias: slot.index for slot in self.slots if slot.kind == nb.RESULT and slot.alias >= 0}


def number_of(value: Any) -> Number | None:
    """Return a Python or NumPy number, or a vector or matrix of numbridge's, as a static value; None for anything else."""
    if isinstance(value, Element):
        return Number(type(value), value)
    if isinstance(value, np.generic):
        return Number(value.dtype, value)
    # JAX hands on numbers of its own, which are subclasses of Python's.
    kind = next((kind for kind in _CLASSES if isinstance(value, kind)), None)
    return None if kind is None else Number(kind, kind(value))


def plan_call(kernel: Kernel, signature: Signature, options: Options, arguments: Sequence[Operand | Number]) -> Call:
    """Return the call of a kernel for some arguments.

    Raises
    ------
    NumbridgeError
        If an argument or dimension does not fit; the message names it.
    """
    signature.check_count(arguments)
    return _Planner(kernel, signature, options, arguments).call()


class _Planner:
    """Decides one call."""

    def __init__(
        self, kernel: Kernel, signature: Signature, options: Options, arguments: Sequence[Operand | Number]
    ) -> None:
        self.kernel, self.signature, self.options = kernel, signature, options
        self.given = list(zip(signature.inputs, arguments, strict=True))
        self.rows = [argument_row(signature, parameter, argument) for parameter, argument in self.given]
        self.weak = _weak_float([row for row in self.rows if row is not None])

    def call(self) -> Call:
        """Return the call."""
        check_dynamic_memory(self.kernel, 0, "a program of JAX")
        dims = self._launch_dims()
        if isinstance(self.options.block_dim, tuple):
            block_dim_of(self.kernel, self.options.block_dim, len(dims))
        rows = self._input_rows()
        shapes = self.signature.output_dims(self.options.output_dims, dims)
        deciding = deciding_rows(self.given, self.rows)
        pure = zip(self.signature.pure, shapes, strict=True)
        outputs = [(output_row(self.signature, p, shape, deciding), len(shape)) for p, shape in pure]
        types = targets.types_of(self.kernel, [*rows, *outputs], self.weak)
        self._check_written(types)
        self._check_extents(types, dims, shapes)
        slots, operands, results = self._slots(types, dims, shapes)
        key = targets.enter(self.kernel, types, self.weak, by_reference(types, slots))
        return Call(
            self.kernel,
            self.signature,
            key,
            types,
            self.weak,
            slots,
            dims,
            results,
            tuple(shape for shape, _ in operands),
            tuple(cast for _, cast in operands),
            (),
            tuple(None if shape is None else () for shape, _ in operands),
            self.options,
        )

    # Types

    def _input_rows(self) -> list[tuple[Scalar, int | None]]:
        return [
            (
                row or _weak_row(argument, self.weak),
                len(argument.shape) - len(inner_dims(parameter)) if is_array(parameter, argument) else None,
            )
            if isinstance(argument, Operand)
            else (row or _weak_row(argument, self.weak), None)
            for (parameter, argument), row in zip(self.given, self.rows, strict=True)
        ]

    def _check_written(self, types: Sequence[ParameterType]) -> None:
        outputs = {parameter.name for parameter in self.signature.outputs}
        for kind in types:
            written = isinstance(kind, ArrayType) and kind.written
            if written and kind.name not in outputs:
                raise NumbridgeTypeError(
                    f"{self.signature.what} under JAX, argument {kind.name!r}: the kernel writes to it, and a JAX array is "
                    f"immutable; name it in in_out_argnames, or make it an output (num_outputs={len(outputs)})"
                )
            if not written and kind.name in self.signature.in_out:
                raise NumbridgeTypeError(
                    f"{self.signature.what} under JAX, argument {kind.name!r}: in_out_argnames names it, and the kernel never "
                    f"writes to it; leave it out there, and of num_outputs={len(outputs)}"
                )
            if not written and kind.name in outputs:
                raise NumbridgeTypeError(
                    f"{self.signature.what} under JAX, output {kind.name!r}: the kernel never writes to it; outputs come last "
                    f"(num_outputs={len(outputs)})"
                )

    def _check_extents(self, types: Sequence[ParameterType], dims: Dims, shapes: Sequence[Dims]) -> None:
        """Refuse arrays that some thread is sure to overrun, and elements that several threads are sure to change at once."""
        ranks = {t.name: t.ndim for t in types if isinstance(t, ArrayType)}
        given = {p.name: a.shape[: ranks[p.name]] for p, a in self.given if isinstance(a, Operand) and p.name in ranks}
        pure = {p.name: shape for p, shape in zip(self.signature.pure, shapes, strict=True)}
        numbers = {
            p.name: int(a.value)
            for (p, a), kind in zip(self.given, types, strict=False)
            if isinstance(a, Number) and not a.packed and is_signed(kind)
        }
        launch = _Traced(dims, {**given, **pure}, numbers)
        for reach in () if 0 in dims else reaches_of(self.kernel):
            is_short = reach.missing(launch, is_shorter)
            if isinstance(reach, Clash):
                if is_short:
                    raise NumbridgeValueError(
                        f"{self.signature.what} under JAX, {reach.memory or 'argument'} {reach.array!r}: {reach.refusal(dims)}"
                    )
            elif is_short is not False:
                kind, option = ("output", "output_dims") if reach.array in pure else ("argument", "launch_dims")
                kind = reach.memory or kind
                way = f"make it longer, as jnp.broadcast_to does, or pass {option}"
                unknown = "JAX cannot tell whether it has: use the same symbol for both, or name a constraint"
                raise NumbridgeValueError(
                    f"{self.signature.what} under JAX, {kind} {reach.array!r}: "
                    f"{reach.refusal(launch, dims, way if is_short else unknown)}"
                )

    # Dimensions

    def _launch_dims(self) -> Dims:
        given = self.options.launch_dims
        dims = self._inferred_dims() if given is None else as_dims(given, f"{self.signature.what}: launch_dims")
        if not any(is_symbolic(extent) for extent in dims):
            return dimensions(self.kernel, dims)
        rank = self.kernel.source.index_rank
        if not 1 <= len(dims) <= nb_max_dims() or rank not in (0, len(dims)):
            raise NumbridgeValueError(
                f"{self.signature.what}: launch_dims {dims} has {len(dims)} dimension(s), and the kernel asks for {rank} thread "
                "index(es)"
            )
        return dims

    def _inferred_dims(self) -> Dims:
        for parameter, argument in self.given:
            if isinstance(argument, Operand) and is_array(parameter, argument):
                where = where_of(self.signature, parameter)
                return self._fitting(parameter, outer_shape(where, parameter, argument.shape))
        raise NumbridgeValueError(
            f"{self.signature.what} under JAX: no launch dimensions: there is no array argument to infer them from; pass "
            "launch_dims"
        )

    def _fitting(self, parameter: Parameter, shape: Dims) -> Dims:
        rank = self.kernel.source.index_rank
        if rank not in (0, len(shape)) or not shape:
            raise NumbridgeValueError(
                f"{where_of(self.signature, parameter)}: its shape {shape} would be the launch dimensions, and the kernel "
                f"asks for {rank} thread index(es); pass launch_dims"
            )
        return shape

    # Slots

    def _slots(
        self, types: Sequence[ParameterType], dims: Dims, shapes: Sequence[Dims]
    ) -> tuple[tuple[Slot, ...], list[tuple[Any, Any]], tuple[tuple[Dims, Any], ...]]:
        """Return where parameters come from, shape and cast of each operand, and shape and dtype of each result."""
        slots: list[Slot] = []
        numbers = 0
        has_packed = any(isinstance(argument, Number) and argument.packed for _, argument in self.given)
        # The numbers of an eager call come first, in one operand that has no batch axes.
        operands: list[tuple[Any, Any]] = [(None, None)] if has_packed else []
        results: list[tuple[Dims, Any]] = []
        for (parameter, argument), kind in zip(self.given, types[: len(self.given)], strict=True):
            if isinstance(argument, Number):
                value = (
                    b"" if argument.packed else _bytes_of(where_of(self.signature, parameter), argument, kind.scalar)
                )
                slots.append(Slot(nb.PACKED, numbers) if argument.packed else Slot(nb.STATIC, value=value))
                numbers += argument.packed
                continue
            is_array = isinstance(kind, ArrayType)
            if parameter.name in self.signature.in_out:
                slots.append(Slot(nb.RESULT, len(results), len(operands)))
                results.append((argument.shape, buffer_scalar(kind).numpy))
            else:
                slots.append(Slot(nb.OPERAND if is_array else nb.TRACED, len(operands)))
            scalar = buffer_scalar(kind)
            cast = None if argument.dtype == scalar.numpy else scalar.numpy
            operands.append((argument.shape, cast))
        covered = indexing_of(self.kernel).covered
        for parameter, kind, shape in zip(self.signature.pure, types[len(self.given) :], shapes, strict=True):
            fill = parameter.name not in covered or shape != dims
            slots.append(Slot(nb.RESULT, len(results), fill=fill))
            results.append(((*shape, *inner_dims(parameter)), buffer_scalar(kind).numpy))
        return tuple(slots), operands, tuple(results)


def by_reference(types: Sequence[ParameterType], slots: Sequence[Slot]) -> list[str]:
    """Return the scalars that are data of the program."""
    return [kind.name for kind, slot in zip(types, slots, strict=True) if slot.kind in (nb.TRACED, nb.PACKED)]


def where_of(signature: Signature, parameter: Parameter) -> str:
    """Return what messages call an argument."""
    return f"{signature.what} under JAX, argument {parameter.name!r}"


def argument_row(signature: Signature, parameter: Parameter, argument: Operand | Number) -> Scalar | None:
    """Return the element type that a parameter takes; None for a number that follows the kernel's floating type.

    Raises
    ------
    NumbridgeError
        If the argument does not fit the parameter; the message names it.
    """
    where, annotation = where_of(signature, parameter), parameter.annotation
    if parameter.name in signature.in_out and (isinstance(argument, Number) or not is_array(parameter, argument)):
        raise NumbridgeTypeError(f"{where}: an in-out argument must be an array of at least one dimension")
    if isinstance(argument, Number):
        return _number_row(where, annotation, argument)
    if isinstance(annotation, ScalarAnnotation):
        return _traced_row(where, annotation.scalar, argument)
    if isinstance(annotation, ElementAnnotation):
        return _traced_row(where, annotation.element.scalar, argument, annotation.element)
    if is_array(parameter, argument):
        return _array_row(where, parameter, argument)
    found = _scalar(where, argument.dtype)
    return None if argument.weak and _class_of(found) > 1 else _by_value(found)


def _by_value(row: Scalar) -> Scalar:
    """Return the type of a number of some type that comes by value: narrow floats are computed with as float32."""
    return scalars.by_name("float32") if row.is_float and row.itemsize < 4 else row


def deciding_rows(
    given: Sequence[tuple[Parameter, Operand | Number]], rows: Sequence[Scalar | None]
) -> AbstractSet[Scalar]:
    """Return the element types that an output without annotation might have: those of the arrays.

    Where these hold integers, those of floating numbers, too; `rows` has None for weak ones.
    """
    pairs = [(is_array(*argument), row) for argument, row in zip(given, rows, strict=True)]
    arrays = {row for is_one, row in pairs if is_one and row is not None}
    if any(row.is_inexact for row in arrays):
        return arrays
    numbers = {row or scalars.by_name("float32") for is_one, row in pairs if not is_one}
    return arrays | {row for row in numbers if row.is_inexact}


def output_row(signature: Signature, parameter: Parameter, shape: Dims, rows: AbstractSet[Scalar]) -> Scalar:
    """Return the element type of an output that is no input.

    Parameters
    ----------
    signature : Signature
        What it is an output of.
    parameter : Parameter
        The output.
    shape : tuple
        Its shape, without the dimensions of its elements.
    rows : set of Scalar
        What `deciding_rows` returns; if there is only one, an output without annotation has it too.
    """
    where, annotation = f"{signature.what} under JAX, output {parameter.name!r}", parameter.annotation
    if isinstance(annotation, ScalarAnnotation | ElementAnnotation):
        raise NumbridgeTypeError(f"{where}: an output must be an array, and it is annotated as {annotation!r}")
    if isinstance(annotation, ArrayAnnotation) and annotation.ndim not in (None, len(shape)):
        raise NumbridgeTypeError(
            f"{where}: it is annotated as {annotation!r}, of {annotation.ndim} dimension(s), and would have shape "
            f"{shape}; pass output_dims"
        )
    if isinstance(annotation, ArrayAnnotation) and annotation.dtype is not None:
        element = element_of(parameter)
        return _checked_result(where, scalars.scalar_of(annotation.dtype) if element is None else component_of(element))
    if len(rows) != 1:
        listed = f" ({', '.join(sorted(row.name for row in rows))})" if rows else ""
        raise NumbridgeTypeError(
            f"{where}: its dtype cannot be inferred, because the arguments have {len(rows)} different dtypes{listed}; annotate "
            f"it, as in {parameter.name}: nb.array[float]"
        )
    return next(iter(rows))


def nb_max_dims() -> int:
    """Return how many dimensions a launch may have."""
    return (nb.WORD_BLOCK - nb.WORD_DIMS) // 8


def is_array(parameter: Parameter, argument: Operand | Number) -> bool:
    """Tell whether an operand is an array to its kernel: JAX's scalars are arrays without dimensions, and count as numbers."""
    if isinstance(argument, Number) or isinstance(parameter.annotation, ScalarAnnotation | ElementAnnotation):
        return False
    return bool(argument.shape) or isinstance(parameter.annotation, ArrayAnnotation)


def _scalar(where: str, dtype: Any) -> Scalar:
    try:
        return scalars.scalar_of(dtype)
    except ConversionError as error:
        raise ConversionError(f"{where}: {error}; {_way_to_scalars(dtype)}") from None


def _way_to_scalars(dtype: Any) -> str:
    """Return what to do about a dtype of JAX's that numbridge does not have."""
    import jax

    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return "pass the numbers of the keys, jax.random.key_data(x)"
    kinds = {
        np.floating: "float32",
        np.complexfloating: "complex64",
        np.unsignedinteger: "uint8",
        np.signedinteger: "int8",
    }
    # To NumPy a span of time is an integer.
    is_number = np.dtype(dtype).kind != "m"
    wider = next((name for kind, name in kinds.items() if is_number and jax.dtypes.issubdtype(dtype, kind)), None)
    return "pass a number, or an array of numbers" if wider is None else f"use x.astype({wider!r})"


def _class_of(dtype: Any) -> int:
    """Return 0 to 3 for truth values, integers, floats and complex numbers."""
    row = scalars.scalar_of(dtype)
    return 2 if row.is_float else _KINDS[row.code]


def _array_row(where: str, parameter: Parameter, operand: Operand) -> Scalar:
    row, annotation, element = _scalar(where, operand.dtype), parameter.annotation, element_of(parameter)
    if isinstance(annotation, ArrayAnnotation):
        outer = outer_shape(where, parameter, operand.shape)
        if annotation.ndim not in (None, len(outer)):
            beside = "" if element is None else f" beside the last {len(element.extents)} of {element.name}"
            raise NumbridgeTypeError(
                f"{where}: wanted {annotation!r}, of {annotation.ndim} dimension(s){beside}, got {operand}; reshape it, or use "
                "jax.vmap"
            )
        wanted = annotation.dtype if element is None else component_of(element)
        if wanted is not None and wanted != row:
            raise NumbridgeTypeError(f"{where}: wanted {annotation!r}, got {operand}; {_as_wanted(element, wanted)}")
    return row


def _as_wanted(element: ElementType | None, wanted: Any) -> str:
    """Return how to come by an array of what a parameter asks for."""
    if element is not None and element.fields is not None:
        return "pass its bytes, records.view(np.uint8)"
    # Without 64 bits JAX makes such an array one of 32, and only warns.
    first = "" if is_kept(wanted.numpy) else "set jax.config.update('jax_enable_x64', True) before, and "
    return f"{first}use x.astype({wanted.name!r})"


def _traced_row(where: str, wanted: Scalar, operand: Operand, element: ElementType | None = None) -> Scalar:
    if operand.shape != inner_extents(element):
        what = f"a scalar {wanted.name}" if element is None else f"a {element.name}"
        hint = "without dimensions" if element is None else f"of shape {element.extents}"
        raise NumbridgeTypeError(f"{where}: wanted {what}, got {operand}; pass an array {hint}")
    found = _scalar(where, operand.dtype)
    if _class_of(found) > _class_of(wanted):
        raise NumbridgeTypeError(
            f"{where}: wanted {wanted.name}, got {operand}, which would lose part of its value; convert it explicitly"
        )
    # JAX gives a Python integer that it traces the default type, and converts it to any other.
    if _class_of(wanted) == 1 and not operand.weak and not np.can_cast(found.numpy, wanted.numpy):
        raise NumbridgeTypeError(
            f"{where}: wanted {wanted.name}, got {operand}, of which what does not fit would wrap around; if all values fit, "
            f"{_as_wanted(element, wanted)}"
        )
    return wanted


def _number_row(where: str, annotation: Any, number: Number) -> Scalar | None:
    if isinstance(annotation, ArrayAnnotation):
        shown = "a number" if number.packed else repr(number.value)
        raise NumbridgeTypeError(f"{where}: wanted {annotation!r}, got {shown}; pass an array")
    if isinstance(annotation, ElementAnnotation) or isinstance(number.kind, ElementType):
        return _value_row(where, annotation, number)
    weak = number.kind in _CLASSES
    if annotation is None:
        return (
            (None if number.kind in (float, complex) else scalars.scalar_of("int64" if number.kind is int else "bool"))
            if (weak)
            else _by_value(_scalar(where, number.kind))
        )
    wanted: Scalar = annotation.scalar
    rank = _CLASSES[number.kind] if weak else _class_of(_scalar(where, number.kind))
    if wanted.code not in _KINDS:
        raise ConversionError(
            f"{where}: scalars of {wanted.name} are not supported; annotate float and convert in the kernel"
        )
    if rank > _KINDS[wanted.code]:
        raise NumbridgeTypeError(
            f"{where}: wanted {wanted.name}, got a {getattr(number.kind, '__name__', number.kind)}"
            f"{'' if number.packed else f' ({number.value!r})'}, which would lose part of its value; convert it explicitly"
        )
    return wanted


def _value_row(where: str, annotation: Any, number: Number) -> Scalar:
    """Return the components of a vector or matrix by value."""
    if isinstance(annotation, ElementAnnotation) and number.kind is annotation.element:
        found: Scalar = annotation.element.scalar
        return found
    shown = "a number" if number.packed else repr(number.value)
    if annotation is None:
        raise NumbridgeTypeError(
            f"{where}: got {shown}, and it has no annotation; annotate it as nb.{number.kind.name}"
        )
    hint = f"pass nb.{annotation!r}(...)" if isinstance(annotation, ElementAnnotation) else "pass a number"
    raise NumbridgeTypeError(f"{where}: wanted {annotation!r}, got {shown}; {hint}")


def _weak_row(argument: Operand | Number, weak: str) -> Scalar:
    kind = argument.kind if isinstance(argument, Number) else None
    if (isinstance(argument, Operand) and _class_of(argument.dtype) == 3) or kind is complex:
        return scalars.by_name("complex128" if weak == "float64" else "complex64")
    return scalars.by_name(weak)


def _weak_float(rows: Sequence[Scalar]) -> str:
    """Return the kernel's floating type: the widest among its arguments, float32 if there is none."""
    widths = [row.itemsize * (4 if row.code == scalars.COMPLEX else 8) for row in rows if row.is_inexact]
    return "float64" if max(widths, default=32) > 32 else "float32"


def _checked_result(where: str, row: Scalar) -> Scalar:
    if not is_kept(row.numpy):
        raise ConversionError(
            f"{where}: JAX would narrow {row.name}; set jax.config.update('jax_enable_x64', True) before, or annotate 32 bits"
        )
    return row


def packed(where: str, value: Any, row: Scalar) -> bytes:
    """Return a number as the 16 bytes that stand for a parameter of its type.

    Raises
    ------
    NumbridgeValueError
        If an integer does not fit.
    """
    if row.code in (scalars.INT, scalars.UINT):
        limits = np.iinfo(row.numpy)
        if not limits.min <= int(value) <= limits.max:
            shown = repr(value) if abs(int(value)) < 1 << 128 else f"an integer of {int(value).bit_length()} bits"
            raise NumbridgeValueError(f"{where}: {shown} does not fit into {row.name} ({limits.min} to {limits.max})")
    # A NumPy scalar is converted by C's rules, as a launch does; a Python float that is too large becomes infinite.
    try:
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(row.numpy).tobytes().ljust(nb.SCALAR_ROOM, b"\0")
    except OverflowError:
        raise NumbridgeValueError(
            f"{where}: an integer of {int(value).bit_length()} bits does not fit into {row.name}"
        ) from None


def _bytes_of(where: str, number: Number, row: Scalar) -> bytes:
    """Return what stands for a static parameter."""
    if isinstance(number.value, Element):
        return number.value.numpy().tobytes()
    return packed(where, number.value, row)


def buffer_scalar(kind: ParameterType) -> Scalar:
    """Return the scalars that a parameter's buffer has."""
    return kind.scalar if kind.element is None else component_of(kind.element)
