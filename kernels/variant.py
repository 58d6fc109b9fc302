"""A kernel, specialised: which types it is compiled for, found in memory, on disk, or compiled.

A *variant* is native code for one combination of parameter types. A *specialisation* is how the compiled entry recognises
that a launch's arguments are for a variant: a masked word per argument, and the global values that the code was compiled
with. Several specialisations may share a variant. Arguments are checked here, on the slow road, with full messages; by the
time that a specialisation exists, comparing words is all that a launch needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.kernels import cuda_driver, scalars
from numbridge.kernels.annotations import ArrayAnnotation, ElementAnnotation, ScalarAnnotation
from numbridge.kernels.devices import CPU, Device, get_device
from numbridge.kernels.element_arguments import check_elements, check_value, inner_dimensions, outer_rank, record_dtype
from numbridge.kernels.elements import ElementType
from numbridge.kernels.emission import Emitted, Target, emit
from numbridge.kernels.errors import (
    BufferAccessError,
    ConversionError,
    DeviceError,
    NumbridgeTypeError,
    NumbridgeValueError,
)
from numbridge.kernels.global_guards import guards
from numbridge.kernels.grid_source import Form, grid_source
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.native import table_layout as nb
from numbridge.kernels.object_cache import (
    Compiled,
    cache_folder,
    compiled_or_stored,
    cuda_fingerprint,
    digest,
    load,
    machine_fingerprint,
)
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType, block_offsets, kernel_places
from numbridge.kernels.range_source import range_source
from numbridge.kernels.readers import Description, array_text, describe, reader_of, unreadable

if TYPE_CHECKING:
    from numbridge.kernels.kernel import Kernel, Parameter

__all__ = [
    "MASKED",
    "Place",
    "Variant",
    "Variants",
    "bound_types",
    "check_array",
    "check_writable",
    "compile_for",
    "read_for_a_gradient",
    "variants_of",
]

# Below this many threads a launch runs on the calling thread: waking others costs about 2 us. A body with a loop is taken
# to be a hundred times as heavy as one without.
SERIAL_BELOW, SERIAL_BELOW_WITH_LOOP = 1 << 16, 1 << 8
GRAIN, GRAIN_WITH_LOOP = 1 << 13, 1
# Below this many threads a body without loops is over in a microsecond or so, and keeps the GIL.
BRIEF_BELOW = 1 << 10
_MAX_CHECKED = 256

_ARRAY_MASK = (
    0xFFFFFFFF | 0xFF << nb.WORD_NDIM | nb.CLASS_MASK << nb.WORD_CLASS | 0xFF << nb.WORD_DEVICE | nb.CONTIGUOUS
)
_ARRAY_MASK |= nb.UNSURE | nb.MISALIGNED
_SCALAR_MASK = 0xFFFFFFFF | nb.CLASS_MASK << nb.WORD_CLASS | nb.TOO_BIG | nb.STRONG
_ELEMENT_MASK = 0xFFFFFFFF | nb.CLASS_MASK << nb.WORD_CLASS
_WRITTEN_MASK = nb.READ_ONLY | nb.REPEATED
_SCALAR_NAMES = {
    nb.CLASS_FLOAT: "float",
    nb.CLASS_INT: "int",
    nb.CLASS_BOOL: "bool",
    nb.CLASS_COMPLEX: "complex",
}


_Dtype = scalars.Scalar | ElementType
_Types = tuple[tuple[ParameterType, ...], str]


@dataclass(frozen=True)
class Place:
    """How and where launches of one kind run.

    Attributes
    ----------
    form : {'masked', 'plain'}
        Whether ids past the launch's dimensions are masked; the CPU's loop never runs them.
    device : Device or None
        The device that was asked for; None: that of the arguments.
    shared : int
        Bytes of dynamic shared memory per block.
    """

    form: Form = "masked"
    device: Device | None = None
    shared: int = 0


MASKED = Place()


@dataclass(frozen=True)
class Variant:
    """Native code of a kernel for one combination of types.

    Attributes
    ----------
    parameters : tuple of ParameterType
        What it was compiled for.
    weak_float : str
        The type of float literals and Python floats.
    device : Device
        Where it runs.
    address : int
        The native ``run`` function, or the handle of the CUDA kernel.
    source_file : str
        Where the generated source lies.
    from_cache : bool
        Whether the code came from disk.
    wide : tuple of str
        Source lines on which float64 arithmetic happens.
    has_loop : bool
        Whether the body has a loop.
    launch_function : int
        On CUDA, the address of the driver function that launches it; 0 on the CPU.
    dims : int
        On CUDA, how many of the launch's dimensions follow its parameters.
    levels : int
        On CUDA, how many axes of a batch one launch of it runs.
    """

    parameters: tuple[ParameterType, ...]
    weak_float: str
    device: Device
    address: int
    source_file: str
    from_cache: bool
    wide: tuple[str, ...]
    has_loop: bool
    launch_function: int = 0
    dims: int = 0
    levels: int = 0


class Variants:
    """All variants of one kernel, and the tables through which the compiled entry finds them, one per place."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._tables: dict[Place, np.ndarray[Any, np.dtype[np.int64]]] = {}
        self._lock = threading.RLock()
        self._variants: dict[Any, Variant] = {}
        self._specialisations: dict[Any, Any] = {}
        # By what arguments look like, where they have been checked and compiled for
        self._checked: dict[Any, Variant] = {}
        self._dependencies: tuple[Any, ...] | None = None
        self._written: dict[tuple[Any, ...], frozenset[str]] = {}
        # Code and tables that another thread may be running on are never freed.
        self._kept: list[Any] = []
        self.launchers: dict[Any, Any] = {}
        # Whether it is still to be said, once, that a framework's gradient is lost: see `lost_gradient`.
        self.warns = True
        self.last: tuple[tuple[ParameterType, ...], str] | None = None

    def table(self, place: Place) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the table of specialisations for launches in a place."""
        with self._lock:
            return self._tables.setdefault(place, np.zeros(nb.MAX_VARIANTS + 1, np.int64))

    def checked(self, found: Sequence[Description], place: Place) -> Variant | None:
        """Return the variant that arguments like these were checked for, or None; a number may still not fit."""
        with self._lock:
            self._forget_old_globals()
            variant = self._checked.get((place, *map(_look, found)))
            if variant is not None:
                self.last = variant.parameters, variant.weak_float
            return variant

    def specialise(self, arguments: Sequence[Any], place: Place = MASKED) -> Variant:
        """Make the compiled entry recognise these arguments, and return the variant that they run.

        Raises
        ------
        NumbridgeError
            If an argument does not fit; the message names the parameter, what it is, what was wanted and what to do.
        """
        kernel = self.kernel
        names = [parameter.name for parameter in kernel.parameters]
        if len(arguments) != len(names):
            raise NumbridgeTypeError(
                f"kernel {kernel.name!r} takes {len(names)} arguments ({', '.join(names)}), got {len(arguments)}"
            )
        found = [describe(argument) for argument in arguments]
        with self._lock:
            dependencies = self._forget_old_globals()
            types = self.last = self.types(arguments, found)
            device = _device(kernel, arguments, found, place.device)
            variant = self._variant(types, device, place.form)
            if device.is_cuda:
                cuda_driver.devices().allow_shared(variant.address, device.ordinal, place.shared)
            self._install(variant, found, self.table(place), dependencies)
            if not any(d.is_element or d.kind == 0 or d.has(nb.GUARDED | nb.UNSURE) for d in found):
                if len(self._checked) >= _MAX_CHECKED:
                    self._checked.clear()
                self._checked[place, *map(_look, found)] = variant
            return variant

    def variant_of(self, parameters: tuple[ParameterType, ...], weak: str) -> Variant:
        """Return the variant for parameter types that are known without arguments; `weak` is the kernel's floating type."""
        with self._lock:
            self._forget_old_globals()
            return self._variant((parameters, weak), CPU, MASKED.form)

    def by_reference(
        self, parameters: tuple[ParameterType, ...], weak: str, names: frozenset[str], levels: int = 0
    ) -> Variant:
        """Return the variant for CUDA in which some scalars lie in device memory, each an array of one element.

        With `levels` it runs a batch of that many axes, if that needs nothing that is a block's own.
        """
        types = tuple(
            ArrayType(p.name, p.scalar, 1, True, False, p.element) if p.name in names else p for p in parameters
        )
        key = (parameters, weak, names, levels)
        with self._lock:
            self._forget_old_globals()
            if key not in self._variants:
                emitted = self.emitted(parameters, weak, "cuda")
                device, form = get_device("cuda"), MASKED.form
                self._variants[key] = _cuda_variant(self.kernel, emitted, types, weak, device, form, names, levels)
            return self._variants[key]

    def _forget_old_globals(self) -> tuple[Any, ...]:
        """Start anew if a global value that the kernel read has changed; return those that it reads."""
        known = self._dependencies
        if known is None or not all(dependency.holds() for dependency in known):
            self._kept.extend((self._specialisations, self._variants, known))
            self._variants, self._specialisations, self._written, self._checked = {}, {}, {}, {}
            self._dependencies = known = self.kernel.dependencies()
        return known

    def refresh(self) -> None:
        """Look whether a global value that the kernel read has changed, and start anew if it has."""
        with self._lock:
            self._forget_old_globals()

    @property
    def dependencies(self) -> tuple[Any, ...]:
        """What the code that was last asked for depends on outside of its source."""
        return self._dependencies or ()

    def written(self, found: Mapping[str, Description]) -> frozenset[str]:
        """Return the parameters that the kernel may write, given its arrays."""
        annotations = {p.name: p.annotation for p in self.kernel.parameters if p.name in found}
        ranks = {name: outer_rank(annotation, found[name]) for name, annotation in annotations.items()}
        kinds = {name: record_dtype(annotation, found[name]) for name, annotation in annotations.items()}
        records = {name: dtype for name, dtype in kinds.items() if dtype is not None}
        key = (*ranks.items(), *records.items())
        with self._lock:
            self._forget_old_globals()
            if key not in self._written:
                self._written[key] = self.kernel.source.written(ranks, records)
            return self._written[key]

    def types(self, arguments: Sequence[Any], found: Sequence[Description]) -> _Types:
        """Return the types that a variant for these arguments has, and its floating type; raises if one does not fit."""
        arrays = {p.name: d for p, d in zip(self.kernel.parameters, found, strict=True) if d.is_array}
        return bound_types(self.kernel, arguments, found, self.written(arrays))

    def emitted(self, parameters: tuple[ParameterType, ...], weak: str, target: Target) -> Emitted:
        """Return the text that a variant is compiled from."""
        return emit(self.kernel.source, weak, target, check_bounds=bool(self.kernel.options.get("check_bounds")))

    def _variant(self, types: _Types, device: Device, form: Form) -> Variant:
        key = (*types, device, form if device.is_cuda else None)
        if key not in self._variants:
            if device.is_cuda:
                emitted = self.emitted(*types, "cuda")
                self._variants[key] = _cuda_variant(self.kernel, emitted, *types, device, form)
            else:
                self._variants[key] = _cpu_variant(self.kernel, self.emitted(*types, "cpu"), *types)
        return self._variants[key]

    def _install(
        self,
        variant: Variant,
        found: Sequence[Description],
        table: np.ndarray[Any, np.dtype[np.int64]],
        dependencies: Sequence[Any],
    ) -> None:
        words = (d.word & _mask(p, d) for p, d in zip(variant.parameters, found, strict=True))
        key = (*words, variant.address, variant.device)
        spec = self._specialisations.get(key)
        if spec is None:
            spec = self._specialisations[key] = _specialisation(variant, found, dependencies, self.warns)
            self._kept.append(spec)
        address = spec[0].ctypes.data
        others = [other for other in table[: nb.MAX_VARIANTS].tolist() if other and other != address]
        current = {part[0].ctypes.data for part in self._specialisations.values()}
        row = [address, *(other for other in others if other in current)][: nb.MAX_VARIANTS]
        table[:] = row + [0] * (nb.MAX_VARIANTS + 1 - len(row))

    def stop_warning(self) -> None:
        """Let compiled code ask no more whether a gradient is lost where an array is read."""
        with self._lock:
            self.warns = False
            words, first = nb.PARAM_SIZE // 8, nb.SPEC_PARAMETERS // 8
            for spec, *_ in self._specialisations.values():
                asks = spec[first + nb.PARAM_ASKS // 8 :: words]
                asks[asks == nb.TRACKED] = 0


def read_for_a_gradient(parameters: Sequence[ParameterType]) -> frozenset[str]:
    """Return the arrays that are only read, and through which a gradient would go back from what is written."""
    arrays = [
        p for p in parameters if isinstance(p, ArrayType) and (p.scalar.is_float or p.scalar.code == scalars.COMPLEX)
    ]
    return frozenset(p.name for p in arrays if not p.written) if any(p.written for p in arrays) else frozenset()


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
        _check(kernel.name, parameter, argument, description, written=parameter.name in written)
        for parameter, argument, description in zip(kernel.parameters, arguments, found, strict=True)
    ]
    weak = _weak_float(checked, found)
    contiguous = all(d.has(nb.CONTIGUOUS) for d in found if d.is_array)
    types = [
        _parameter_type(p, dtype or _weak_scalar(d, weak), d, contiguous=contiguous, written=p.name in written)
        for p, dtype, d in zip(kernel.parameters, checked, found, strict=True)
    ]
    return tuple(types), weak


def _look(found: Description) -> tuple[Any, ...]:
    """Return what checks of an argument look at, which is everything but its address, unless a framework is asked too."""
    return found.word, found.shape, found.strides, found.device_id


def variants_of(kernel: Kernel) -> Variants:
    """Return a kernel's variants, which live as long as it does."""
    if kernel.variants is None:
        kernel.variants = kernel.new_variants()
    found: Variants = kernel.variants
    return found


def _parameter_type(
    parameter: Parameter, dtype: _Dtype, found: Description, *, contiguous: bool, written: bool
) -> ParameterType:
    element = dtype if isinstance(dtype, ElementType) else None
    scalar = dtype.scalar if isinstance(dtype, ElementType) else dtype
    if not found.is_array or isinstance(parameter.annotation, ElementAnnotation):
        return ScalarType(parameter.name, scalar, element)
    return ArrayType(parameter.name, scalar, outer_rank(parameter.annotation, found), contiguous, written, element)


def _mask(parameter: ParameterType, found: Description) -> int:
    if isinstance(parameter, ScalarType):
        if found.is_array:
            return _ARRAY_MASK
        return _ELEMENT_MASK if parameter.element is not None else _SCALAR_MASK
    return _ARRAY_MASK | (_WRITTEN_MASK if parameter.written else 0)


def _specialisation(
    variant: Variant, found: Sequence[Description], dependencies: Sequence[Any], warns: bool
) -> tuple[Any, ...]:
    """Return the native structure of a specialisation, and what must live as long as it."""
    count, words = len(found), nb.PARAM_SIZE // 8
    spec = np.zeros(nb.SPEC_PARAMETERS // 8 + max(count, 1) * words, np.int64)
    offsets = block_offsets(variant.parameters)
    seen = guards(dependencies)
    places = np.array(kernel_places(variant.parameters), np.int64)
    inner = [inner_dimensions(p, d) for p, d in zip(variant.parameters, found, strict=True)]
    head = {
        nb.SPEC_COUNT: count,
        nb.SPEC_RUN: variant.address,
        nb.SPEC_SERIAL_BELOW: SERIAL_BELOW_WITH_LOOP if variant.has_loop else SERIAL_BELOW,
        nb.SPEC_BLOCK_SIZE: max(offsets[-1], 16),
        nb.SPEC_GLOBALS: seen.rows.ctypes.data,
        nb.SPEC_GLOBAL_COUNT: len(dependencies),
        nb.SPEC_BRIEF_BELOW: 0 if variant.has_loop else BRIEF_BELOW,
        nb.SPEC_GRAIN: GRAIN_WITH_LOOP if variant.has_loop else GRAIN,
        nb.SPEC_LAUNCH: variant.launch_function,
        nb.SPEC_HANDLE: variant.address,
        nb.SPEC_DEVICE: variant.device.ordinal,
        nb.SPEC_PLACES: places.ctypes.data,
        nb.SPEC_PLACE_COUNT: len(places),
        nb.SPEC_DIM_COUNT: variant.dims,
    }
    for offset, value in head.items():
        spec[offset // 8] = value
    reads: frozenset[str] = read_for_a_gradient(variant.parameters) if warns else frozenset()
    for k, (parameter, description) in enumerate(zip(variant.parameters, found, strict=True)):
        mask = _mask(parameter, description)
        start = nb.SPEC_PARAMETERS // 8 + k * words
        written = isinstance(parameter, ArrayType) and parameter.written
        asks = nb.GUARDED if written else nb.TRACKED if parameter.name in reads else 0
        known = [_signed(mask), _signed(description.word & mask), offsets[k], _tag(parameter), written, asks]
        shape = inner[k]
        known += [*_layout(parameter), 0 if shape is None else shape.ctypes.data]
        spec[start : start + words] = known
    return spec, seen, places, inner, tuple(dependencies)


def _tag(parameter: ParameterType) -> int:
    """Return what the compiled entry knows a parameter's kind by."""
    if isinstance(parameter, ArrayType):
        return 0
    return parameter.scalar.tag if parameter.element is None else nb.ELEMENT_TAG


def _layout(parameter: ParameterType) -> tuple[int, int]:
    """Return a parameter's rank and the bytes of an element."""
    if isinstance(parameter, ArrayType):
        return parameter.ndim, parameter.itemsize
    return 0, 0 if parameter.element is None else parameter.element.bytes


def _signed(word: int) -> int:
    """Return a 64-bit word as the signed integer of the same bits."""
    return word - (1 << 64) if word >> 63 else word


def _device(kernel: Kernel, arguments: Sequence[Any], found: Sequence[Description], wanted: Device | None) -> Device:
    """Return the device that a launch runs on: that of its arrays, which must be one."""
    arrays = [(p.name, a, d) for p, a, d in zip(kernel.parameters, arguments, found, strict=True) if d.is_array]
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


def _check(kernel: str, parameter: Parameter, argument: Any, found: Description, *, written: bool) -> _Dtype | None:
    """Check one argument; return the type that it is bound to, or None for a Python number, which is weak."""
    where = f"kernel {kernel!r}, parameter {parameter.name!r}"
    if found.is_element or isinstance(parameter.annotation, ElementAnnotation):
        return check_value(where, parameter.annotation, argument, found)
    if found.kind == 0 or found.has(nb.UNSURE):
        raise _located(where, unreadable(argument))
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


def check_array(where: str, annotation: Any, argument: Any, found: Description) -> _Dtype:
    """Return the element type of an array argument, or raise what is wrong with it; `where` begins the message."""
    got = f"{array_text(found)} ({_kind_text(argument)})"
    if found.scalar is None:
        raise ConversionError(
            f"{where}: got {got}: DLPack type code {found.tag & 0xFF}, {found.tag >> 8 & 0xFF} bits, {found.tag >> 16} lanes "
            f"has no counterpart; numbridge has {', '.join(row.name for row in scalars.ALL)}"
        )
    if found.device_type not in (dl.CPU, dl.CUDA, dl.CUDA_MANAGED):
        raise DeviceError(
            f"{where}: {got} lies on DLPack device type {found.device_type}; kernels run on the CPU and on CUDA"
        )
    if isinstance(annotation, ArrayAnnotation) and isinstance(annotation.dtype, ElementType):
        check_elements(where, annotation, got, found)
    elif isinstance(annotation, ArrayAnnotation):
        if annotation.ndim is not None and annotation.ndim != found.ndim:
            raise NumbridgeTypeError(
                f"{where}: wanted {annotation!r}, of {annotation.ndim} dimensions, got {got}; reshape it"
            )
        if annotation.dtype is not None and annotation.dtype != (found.element or found.scalar):
            raise NumbridgeTypeError(
                f"{where}: wanted elements of {annotation.dtype.name}, got {got}; convert it first"
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


def check_writable(where: str, argument: Any, found: Description) -> None:
    """Raise if an array may not be written to."""
    if found.has(nb.IMMUTABLE):
        raise BufferAccessError(
            f"{where}: the kernel writes to it, and {_kind_text(argument)} is immutable, or shares the memory of an array that "
            "is; pass a copy in an array that may be written, such as nb.clone(nb.asarray(x)) or np.array(x)"
        )
    if found.has(nb.READ_ONLY):
        raise BufferAccessError(
            f"{where}: the kernel writes to it, and this {_kind_text(argument)} is read-only (or known only through a copy); "
            "pass a writable array, such as a copy of it"
        )
    if found.has(nb.REPEATED):
        raise BufferAccessError(
            f"{where}: the kernel writes to it, and it is an expanded view with shape {found.shape} and strides "
            f"{found.strides} bytes, in which several indices name one element; pass a contiguous copy"
        )
    guard = reader_of(argument).guard
    if guard is not None and found.has(nb.GUARDED):
        try:
            guard(argument)
        except BufferAccessError as error:
            raise _located(f"{where}: the kernel writes to it", error) from None


def _check_scalar(where: str, annotation: Any, argument: Any, found: Description) -> scalars.Scalar | None:
    if isinstance(annotation, ArrayAnnotation):
        raise NumbridgeTypeError(
            f"{where}: wanted {annotation!r}, got the {_SCALAR_NAMES[found.kind]} {argument!r}; pass an array"
        )
    if annotation is None:
        weak = not found.has(nb.STRONG)
        if found.has(nb.TOO_BIG) or (weak and found.kind == nb.CLASS_INT and found.tag != scalars.tag_of("int64")):
            raise NumbridgeValueError(f"{where}: the integer {argument!r} does not fit into int64")
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
            f"{where}: wanted {wanted.name}, got the {_SCALAR_NAMES[found.kind]} {argument!r}, which would lose part of its "
            "value; convert it explicitly"
        )
    if accepts == 1:
        limits = np.iinfo(wanted.numpy)
        if not limits.min <= int(argument) <= limits.max:
            raise NumbridgeValueError(
                f"{where}: {argument!r} does not fit into {wanted.name} ({limits.min} to {limits.max}); annotate a wider type"
            )
    elif found.has(nb.TOO_BIG):
        raise NumbridgeValueError(f"{where}: the integer {argument!r} is too large; pass float({argument!r})")


def _weak_float(checked: Sequence[_Dtype | None], found: Sequence[Description]) -> str:
    """Return the kernel's floating type: the widest among its arguments, float32 if there is none."""
    widths = [32]
    for dtype in checked:
        if isinstance(dtype, ElementType) and dtype.fields is not None:
            widths += [64 for name in _leaves(dtype.fields) if name in ("float64", "complex128")]
            continue
        row = dtype.scalar if isinstance(dtype, ElementType) else dtype
        if row is not None and row.code == scalars.COMPLEX:
            widths.append(row.itemsize * 4)
        elif row is not None and row.is_float:
            widths.append(row.itemsize * 8)
    return "float64" if max(widths) > 32 else "float32"


def _leaves(dtype: Any) -> Iterator[str]:
    """Yield the names of the dtypes of all fields, also of those within fields."""
    for kind, *_ in (dtype.fields or {}).values():
        if kind.base.fields is None:
            yield kind.base.name
        yield from _leaves(kind.base)


def _weak_scalar(found: Description, weak: str) -> scalars.Scalar:
    names = {
        nb.CLASS_FLOAT: weak,
        nb.CLASS_INT: "int64",
        nb.CLASS_BOOL: "bool",
        nb.CLASS_COMPLEX: "complex128" if weak == "float64" else "complex64",
    }
    return scalars.by_name(names[found.kind])


def _cpu_variant(kernel: Kernel, emitted: Emitted, parameters: tuple[ParameterType, ...], weak: str) -> Variant:
    """Return native code for a kernel's emitted text, from disk or from Numba."""
    loop = range_source(
        emitted.entry,
        [p.name for p in parameters],
        kernel.source.index_rank,
        emitted.hidden,
        may_raise=emitted.may_raise,
        sums=emitted.sums,
        private=emitted.private,
    )
    text = _generated_source(kernel, parameters, emitted, loop, "the CPU")
    fastmath = bool(kernel.options.get("fastmath"))
    key = _key("variant", machine_fingerprint(), text, emitted, parameters, fastmath=fastmath)
    symbol, source_file = f"numbridge_{key}", _source_file(emitted.entry, key, text)

    def compile() -> Compiled:
        from numbridge.kernels.cpu import compile_run

        return compile_run(
            symbol,
            text,
            source_file,
            emitted.namespace,
            parameters,
            entry=emitted.entry,
            origin=_origins(emitted, text),
            fastmath=fastmath,
            generated=emitted.generated,
        )

    compiled, from_cache = compiled_or_stored(key, compile)
    address = load(compiled)[symbol]
    wide = tuple(compiled.facts.get("wide", ()))
    return Variant(parameters, weak, CPU, address, source_file, from_cache, wide, emitted.has_loop)


def _origins(emitted: Emitted, text: str) -> Callable[[int], str | None]:
    """Return what tells where a line of a generated file comes from, for messages."""
    before = text[: text.index(emitted.text)].count("\n")
    return lambda line: emitted.origin(line - before)


@dataclass(frozen=True)
class CudaCode:
    """A kernel's code for CUDA: the compiled cubin with its facts, where its source lies, and its trailing dimensions."""

    compiled: Compiled
    source_file: str
    from_cache: bool
    dims: int
    has_loop: bool


def _cuda_code(
    kernel: Kernel,
    emitted: Emitted,
    parameters: tuple[ParameterType, ...],
    capability: tuple[int, int],
    form: Form,
    by_reference: frozenset[str] = frozenset(),
    levels: int = 0,
) -> CudaCode:
    """Return a cubin of a kernel's emitted text, from disk or from numba.cuda; needs no GPU."""
    batched = [p.name for p in parameters if isinstance(p, ArrayType)]
    rank = kernel.source.index_rank
    around = grid_source(
        emitted.entry,
        [p.name for p in parameters],
        rank,
        emitted.hidden,
        form,
        first_along_x=emitted.asks_for_block,
        sums=emitted.sums,
        by_reference=by_reference,
        batched=batched,
        levels=levels,
    )
    text = _generated_source(kernel, parameters, emitted, around, f"compute capability {capability}, {form}")
    fastmath = bool(kernel.options.get("fastmath"))
    dims = max(rank, 1) if form == "masked" else 0
    key = _key("cubin", cuda_fingerprint(), text, emitted, parameters, fastmath=fastmath)
    source_file = _source_file(emitted.entry, key, text)

    def compile() -> Compiled:
        from numbridge.kernels.cuda import compile_cubin

        return compile_cubin(
            text,
            source_file,
            emitted.namespace,
            parameters,
            capability,
            entry=emitted.entry,
            origin=_origins(emitted, text),
            dims=dims + (levels * (1 + len(batched))),
            fastmath=fastmath,
        )

    compiled, from_cache = compiled_or_stored(key, compile)
    return CudaCode(compiled, source_file, from_cache, dims, emitted.has_loop)


def _cuda_variant(
    kernel: Kernel,
    emitted: Emitted,
    parameters: tuple[ParameterType, ...],
    weak: str,
    device: Device,
    form: Form,
    by_reference: frozenset[str] = frozenset(),
    levels: int = 0,
) -> Variant:
    """Return a kernel that is loaded for a CUDA device."""
    there = cuda_driver.devices()
    there.prepare(device.ordinal)
    capability = there.capability(device.ordinal)
    if not (kernel.source.index_rank and not emitted.asks_for_block):
        levels = 0
    code = _cuda_code(kernel, emitted, parameters, capability, form, by_reference, levels)
    if levels and _is_a_blocks_own(code.compiled.facts):
        levels = 0
        code = _cuda_code(kernel, emitted, parameters, capability, form, by_reference)
    compiled = code.compiled
    return Variant(
        parameters,
        weak,
        device,
        there.load(compiled.objects[0], compiled.names["kernel"]),
        code.source_file,
        code.from_cache,
        tuple(compiled.facts["wide"]),
        code.has_loop,
        there.launch_function(compiled.facts["cooperative"]),
        code.dims,
        levels,
    )


def _is_a_blocks_own(facts: Mapping[str, Any]) -> bool:
    """Tell whether a kernel has what a block must not do twice: shared memory, or threads that wait for each other."""
    return bool(facts["cooperative"]) or any(word in facts["ptx"] for word in (".shared", "bar.sync", "barrier."))


def compile_for(kernel: Kernel, arguments: Sequence[Any], capability: Any, form: Form = "masked") -> CudaCode:
    """Return a kernel's code for CUDA and the types of these arguments, wherever they lie; needs no GPU.

    Parameters
    ----------
    kernel : Kernel
        What to compile.
    arguments : sequence
        Examples of its arguments.
    capability : (int, int) or None
        The compute capability; None is the current CUDA device's.
    form : {'masked', 'plain'}
        For `nb.launch`, or for ``kernel[blocks, threads]``.
    """
    if capability is None:
        capability = cuda_driver.devices().capability(get_device("cuda").ordinal)
    found = [describe(argument) for argument in arguments]
    variants = variants_of(kernel)
    types, weak = variants.types(arguments, found)
    return _cuda_code(kernel, variants.emitted(types, weak, "cuda"), types, tuple(capability), form)


def _key(
    kind: str,
    fingerprint: str,
    text: str,
    emitted: Emitted,
    parameters: Sequence[ParameterType],
    *,
    fastmath: bool,
) -> str:
    """Return the name under which a variant's code lies on disk: everything that it depends on."""
    types = (f"{p.name} {p}" for p in parameters)
    return digest(kind, fingerprint, text, emitted.fingerprint, str(fastmath), *types)


def _source_file(entry: str, key: str, text: str) -> str:
    """Keep generated source where a person can read it; return the file."""
    path = cache_folder() / f"{entry}_{key}.py"
    if not path.exists():
        path.write_text(text)
    return str(path)


def _generated_source(
    kernel: Kernel, parameters: Sequence[ParameterType], emitted: Emitted, around: str, target: str
) -> str:
    listed = ", ".join(f"{p.name}: {p}" for p in parameters)
    head = f"# Generated from kernel {kernel.name!r} for ({listed}) on {target}.\n\n"
    return f"{head}{emitted.text}\n\n\n{around}"
