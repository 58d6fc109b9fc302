"""Arrays that stand for JAX values while a function that launches kernels is traced.

A launch on such an array is not run: it becomes a call in JAX's program, and the array then stands for the call's result. So a
plan of launches is a JAX program, in which XLA decides about temporaries and memory, and which transforms like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from numbridge.arrays.array import Array
from numbridge.arrays.contents import is_literal
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.noticed import notice
from numbridge.jax_ffi.plan import Call, Number, Operand, Options, number_of, plan_call
from numbridge.jax_ffi.pointwise import check_pointwise
from numbridge.jax_ffi.primitive import bind_call
from numbridge.jax_ffi.signature import is_symbolic, signature
from numbridge.jax_ffi.values import described
from numbridge.jax_ffi.widths import all_kept
from numbridge.kernels.arguments import check_count
from numbridge.kernels.block_dims import BlockDim
from numbridge.kernels.devices import CPU, Device, get_device
from numbridge.kernels.element_types.elements import Element, ElementType, dtype_of
from numbridge.kernels.errors import BufferAccessError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.geometry import Geometry
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.language.indexing import indexing_of
from numbridge.kernels.parameter_types import ParameterType
from numbridge.kernels.scalars import scalar_of
from numbridge.kernels.taken_over import understand_extents
from numbridge.operators.element_dims import component_of, element_of, inner_dims, inner_extents, records_of
from numbridge.storage import strided
from numbridge.storage.memory import adopt

__all__ = ["Run", "TracedArray"]

_MAX_EXTENT = 2**31 - 1
Layout = tuple[tuple[int, ...], strided.Strides]
understand_extents(is_symbolic)


class Run:
    """One run of a function that is traced; what its arrays stand for is nothing once it is over."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class TracedArray:
    """An array inside a function that JAX traces: shape, dtype and views, but no memory.

    Parameters
    ----------
    value : jax.Array
        What it stands for now.
    name : str
        What messages call it.
    options : Options
        How its launches transform.
    run : Run
        The run of the function that it is made in.
    writable : bool
        Whether kernels may write to it.
    element : ElementType, optional
        What the last dimensions of the value are the components of.
    """

    __slots__ = (
        "_base",
        "_element",
        "_get",
        "_layout",
        "_name",
        "_options",
        "_put",
        "_run",
        "_trace",
        "_value",
        "_writable",
    )

    # Marks arrays that other parts of numbridge hand over to, instead of looking for memory.
    __is_traced__ = True

    def __init__(
        self, value: Any, name: str, options: Options, run: Run, *, writable: bool, element: ElementType | None = None
    ) -> None:
        from jax.extend.core import get_opaque_trace_state

        self._value, self._name, self._options, self._writable = value, name, options, writable
        self._run, self._element = run, element
        self._base: TracedArray | None = None
        self._get: Callable[[Any], Any] | None = None
        self._put: Callable[[Any, Any], Any] | None = None
        self._layout: Layout | None = None
        self._trace = get_opaque_trace_state()

    # What it is

    @property
    def value(self) -> Any:
        """The JAX value that it stands for now."""
        return self._value if self._base is None or self._get is None else self._get(self._base.value)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Extent of each axis, without those of elements."""
        shape = tuple(self.value.shape)
        return shape[: len(shape) - len(self._inner)]

    @property
    def _inner(self) -> tuple[int, ...]:
        return inner_extents(self._element)

    @property
    def dtype(self) -> Any:
        """The element type."""
        return np.dtype(self.value.dtype) if self._element is None else self._element

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def device(self) -> Device:
        """Where it will lie, as far as that is known: JAX's default device."""
        import jax

        return get_device("cuda") if jax.default_backend() == "gpu" else CPU

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.value.dtype.itemsize) if self._element is None else self._element.bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements would lie densely in C order, if the array that this is a view of had memory."""
        shape, strides = self._laid_out()
        return strides == strided.contiguous(shape)

    @property
    def read_only(self) -> bool:
        """Whether it must not be written."""
        return not self._writable

    @property
    def writable(self) -> bool:
        """Whether it may be written."""
        return self._writable

    def _laid_out(self) -> Layout:
        """Return shape and strides, in which a large number stands for a symbolic extent."""
        if self._layout is None:
            shape = tuple(_MAX_EXTENT if is_symbolic(extent) else extent for extent in self.shape)
            self._layout = shape, strided.contiguous(shape)
        return self._layout

    @property
    def root(self) -> TracedArray:
        """The array that this is a view of, or itself."""
        return self if self._base is None else self._base.root

    def __len__(self) -> int:
        """Return the extent of the first axis."""
        return int(self.shape[0])

    def __repr__(self) -> str:
        """Return name, dtype and shape."""
        return f"<traced array {self._name!r}: {self.dtype}{list(self.shape)}>"

    # Views

    def _view(
        self, get: Callable[[Any], Any], put: Callable[[Any, Any], Any], layout: Layout | None = None
    ) -> TracedArray:
        made = TracedArray(None, self._name, self._options, self._run, writable=self._writable, element=self._element)
        made._base, made._get, made._put, made._layout = self, get, put, layout
        return made

    def __getitem__(self, key: Any) -> TracedArray:
        """Return a view: ints, slices, ``...`` and None."""
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if not (part is None or part is Ellipsis or isinstance(part, int | np.integer | slice)):
                raise NumbridgeTypeError(f"{self!r} is indexed with {part!r}; a view takes ints, slices, ... and None")
        # JAX takes the last element for one beyond it, and drops what is written there.
        layout = self._laid_out()
        shape, strides, offset = strided.indexed(key, *layout)
        # Elements stay whole: an ellipsis stands for axes before theirs.
        place = (*parts, *(slice(None) for _ in self._inner)) if any(part is Ellipsis for part in parts) else key
        if offset == 0 and _long_axes(shape, strides) == _long_axes(*layout):
            # All elements in their order. A scatter of all of them, reversed, ends the process: XLA makes a map of it.
            return self._view(lambda base: base[place], lambda base, new: new.reshape(base.shape), (shape, strides))
        return self._view(lambda base: base[place], lambda base, new: _with_part(base, place, new), (shape, strides))

    def __iter__(self) -> Iterator[TracedArray]:
        """Iterate over views along the first axis."""
        return (self[place] for place in range(len(self)))

    def reshape(self, *shape: Any) -> TracedArray:
        """Return a view with another shape."""
        outer = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        if not any(map(is_symbolic, (*outer, *self.shape))):
            outer = strided.resolved(outer, self.size)
        target = (*outer, *self._inner)
        return self._view(lambda base: base.reshape(target), lambda base, new: new.reshape(base.shape))

    def flatten(self) -> TracedArray:
        """Return a 1-d view."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> TracedArray:
        """Return a view with the axes in the given order, reversed by default."""
        import jax.numpy as jnp

        given = axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes
        layout = strided.permuted(given or None, *self._laid_out())
        outer, inner = len(layout[0]), len(self._inner)
        order = [axis % outer for axis in given] or [*reversed(range(outer))]
        order += range(outer, outer + inner)
        back = [order.index(axis) for axis in range(outer + inner)]
        return self._view(lambda base: jnp.transpose(base, order), lambda base, new: jnp.transpose(new, back), layout)

    @property
    def T(self) -> TracedArray:  # noqa: N802 - NumPy's name
        """The view with the axes reversed."""
        return self.transpose()

    def contiguous(self) -> TracedArray:
        """Return this array if it is C-contiguous, as an Array's views are, else a copy that may be written."""
        return self if self.is_contiguous else self.clone()

    # Changes

    def store(self, new: Any) -> None:
        """Let the array stand for another value of its shape and dtype from now on."""
        if self._base is None or self._put is None:
            self._check_trace()
            self._value = new
        else:
            self._base.store(self._put(self._base.value, new))

    def check_run(self) -> None:
        """Refuse what somebody has kept of a run that is over: nothing would ever run what is written to it."""
        if self._run.is_over:
            raise BufferAccessError(
                f"the traced array {self._name!r} was kept after the function that it was made in was traced, and stands for "
                "nothing any more; return what a function makes as an output, or make an array with nb.zeros"
            )

    def _check_trace(self) -> None:
        """Refuse a write in a loop, a branch or another part that JAX traces by itself: only that would see it, or nobody."""
        from jax.extend.core import get_opaque_trace_state

        if get_opaque_trace_state() != self._trace:
            raise BufferAccessError(
                f"{self!r} is written within a function that JAX traces by itself, such as the body of jax.lax.scan, and comes "
                "from outside of it; use Python's loops and branches, or make the array there and return jnp.asarray(array)"
            )

    def _change(self, new: Any) -> TracedArray:
        if not self._writable:
            raise BufferAccessError(
                f"{self!r} is an input of the function and cannot be written; name it in in_out_argnames"
            )
        self.store(new)
        return self

    def zero_(self) -> TracedArray:
        """Set every element to zero."""
        return self.fill_(0)

    def fill_(self, value: Any) -> TracedArray:
        """Set every element to a value."""
        return self._write("fill_", value)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write values into a view, broadcast as in NumPy."""
        self[key]._write("array[...] = value", value)

    def _write(self, operation: str, value: Any) -> TracedArray:
        import jax.numpy as jnp

        self.check_run()
        given, target = self._given(operation, value), self.value
        try:
            with all_kept():
                made = jnp.broadcast_to(jnp.asarray(given).astype(target.dtype), target.shape)
        except ValueError:
            raise NumbridgeValueError(
                f"{operation}: values of shape {jnp.shape(given)} cannot be broadcast to {self!r}"
            ) from None
        return self._change(made)

    def assign(self, values: Any) -> TracedArray:
        """Copy values of the same shape into the array, converted to its dtype."""
        import jax.numpy as jnp

        self.check_run()
        given = self._given("assign", values)
        if jnp.shape(given) != self.value.shape:
            raise NumbridgeValueError(f"assign got values of shape {jnp.shape(given)} for {self!r}")
        with all_kept():
            made = jnp.asarray(given).astype(self.value.dtype)
        return self._change(made)

    def _given(self, operation: str, values: Any) -> Any:
        """Return values that are to be written."""
        if isinstance(values, Element):
            return values.numpy()
        return self._numbers(operation, values) if is_literal(values) else _constant(values)

    def _numbers(self, operation: str, values: Any) -> np.ndarray[Any, Any]:
        """Return Python's numbers in this array's dtype, or refuse those that it does not have: JAX would wrap them around."""
        made = np.empty(np.shape(values), self.value.dtype)
        try:
            made[...] = values
        except (TypeError, ValueError, OverflowError) as error:
            raise NumbridgeValueError(f"{operation}: {self!r} does not take these values: {error}") from None
        return made

    def clone(self) -> TracedArray:
        """Return a copy that may be written."""
        self.check_run()
        name = f"{self._name}.clone()"
        return TracedArray(self.value, name, self._options, self._run, writable=True, element=self._element)

    def __copy__(self) -> TracedArray:
        """Return a copy of what it stands for now."""
        return self.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedArray:
        """Return a copy of what it stands for now."""
        made = self.clone()
        memo[id(self)] = made
        return made

    def copied(self, dtype: Any = None) -> TracedArray:
        """Return a copy that may be written, converted to a dtype if one is given, as `nb.array` makes of an Array."""
        if dtype is None:
            return self.clone()
        kind, shape = dtype_of(dtype), tuple(self.value.shape)
        inner = inner_extents(kind) if isinstance(kind, ElementType) else ()
        return self.new(shape[: len(shape) - len(inner)], dtype).assign(self)

    def new(self, shape: Any, dtype: Any) -> TracedArray:
        """Return a new array of zeros; XLA allocates it for each run."""
        import jax.numpy as jnp

        kind = dtype_of(dtype)
        element = kind if isinstance(kind, ElementType) else None
        extents = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        if element is not None:
            extents = (*extents, *inner_extents(element))
        with all_kept():
            value = jnp.zeros(extents, (component_of(element) if element is not None else scalar_of(kind)).numpy)
        return TracedArray(value, "a temporary", self._options, self._run, writable=True, element=element)

    def __jax_array__(self) -> Any:
        """Return what it stands for now, for JAX's own operations: ``jnp.asarray(array)``."""
        return self.value

    # What there is not

    def _no_memory(self, *arguments: Any, **options: Any) -> Any:
        raise BufferAccessError(
            f"{self!r} has no memory: the function is traced, and its launches run later; for JAX's own operations take "
            "jnp.asarray(array), and use graph_mode=GraphMode.NONE for a function that looks at values"
        )

    numpy = list = item = view = to = __array__ = __dlpack__ = __dlpack_device__ = _no_memory
    ptr = strides = property(_no_memory)
    __float__ = __int__ = __bool__ = __complex__ = __index__ = _no_memory

    @staticmethod
    def __record_launch__(kernel: Kernel, geometry: Geometry, arguments: Sequence[Any]) -> None:
        """Make a launch a part of the program that is traced."""
        options = next(a._options for a in arguments if isinstance(a, TracedArray))
        _record(kernel, geometry, arguments, options)


def _record(kernel: Kernel, geometry: Geometry, arguments: Sequence[Any], options: Options) -> None:
    check_count(kernel, arguments)
    for argument in arguments:
        if isinstance(argument, TracedArray):
            argument.check_run()
    notice(kernel)
    values = [_launch_value(argument) for argument in arguments]
    given = [value if isinstance(value, Number) else described(value) for value in values]
    _check_elements(kernel, arguments)
    ranks = {
        p.name: len(d.shape) - len(inner_dims(p))
        for p, d in zip(kernel.parameters, given, strict=True)
        if isinstance(d, Operand)
    }
    written = kernel.source.written(ranks, records_of(kernel.parameters))
    targets = [(p.name, a) for p, a in zip(kernel.parameters, arguments, strict=True) if p.name in written]
    _check_targets(kernel, targets)
    order = [name for name, _ in targets]
    found = signature(f"kernel {kernel.name!r}", kernel.parameters, max(len(order), 1), order)
    chosen = replace(options, launch_dims=geometry.dims, output_dims=None, block_dim=_block_dim(geometry))
    call = plan_call(kernel, found, chosen, given)
    if chosen.fuse:
        check_pointwise(call)
    operands = [value for value in values if not isinstance(value, Number)]
    for (_, target), new in zip(targets, bind_call(*_without_old_contents(call, operands)), strict=True):
        target.store(new)


def _block_dim(geometry: Geometry) -> BlockDim:
    """Return the block of a launch as an option; one without threads is that of a launch that runs nothing."""
    if geometry.block[1:] == (1, 1):
        return max(geometry.block[0], 1)
    return tuple(max(size, 1) for size in geometry.block[: len(geometry.dims)])


def _check_elements(kernel: Kernel, arguments: Sequence[Any]) -> None:
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        found = argument._element if isinstance(argument, TracedArray) else None
        if found is not None and found is not element_of(parameter):
            raise NumbridgeTypeError(
                f"kernel {kernel.name!r}, parameter {kernel.label(parameter.name)!r}: got {argument!r}, and under JAX a kernel "
                f"takes vectors and matrices where its annotation says so; annotate it as nb.array[nb.{found.name}]"
            )


def _long_axes(shape: tuple[int, ...], strides: strided.Strides) -> list[tuple[int, int]]:
    """Return extent and stride of the axes that have more than one element, which are all that tells where elements lie."""
    return [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]


def _with_part(base: Any, place: Any, new: Any) -> Any:
    """Return a value in which a part is another one.

    XLA on the CPU moves a reshape of the result, such as `jax.pmap` and `jax.shard_map` make, before the update, which it then
    runs in place without seeing that it reads there what it has written, as in ``out[1:] = out[:-1]``. Nothing is moved across
    the barrier. (https://github.com/openxla/xla/issues/49176)
    """
    import jax

    return jax.lax.optimization_barrier(base.at[place].set(new))


def _launch_value(argument: Any) -> Any:
    """Return what a launch's argument is to JAX: a number, or a value."""
    if isinstance(argument, TracedArray):
        return argument.value
    return number_of(argument) or _constant(argument)


def _constant(argument: Any) -> Any:
    """Return an array from outside as a constant of the program."""
    import jax

    if isinstance(argument, TracedArray):
        return argument.value
    if isinstance(argument, jax.Array | np.ndarray | int | float | complex | np.generic):
        return argument
    return np.array((argument if isinstance(argument, Array) else adopt(argument)).numpy())


def _check_targets(kernel: Kernel, targets: Sequence[tuple[str, Any]]) -> None:
    if not targets:
        raise NumbridgeTypeError(
            f"kernel {kernel.name!r} writes to none of its arguments, so a traced launch of it does nothing"
        )
    roots: list[TracedArray] = []
    for name, target in targets:
        where = f"kernel {kernel.name!r}, parameter {kernel.label(name)!r}"
        if not isinstance(target, TracedArray):
            raise BufferAccessError(
                f"{where}: the kernel writes to it, and a {type(target).__name__} from outside the traced function would be "
                "written only once; make it with nb.zeros or nb.empty inside, or pass it as an in-out argument"
            )
        if not target._writable:
            raise BufferAccessError(
                f"{where}: the kernel writes to it, and {target!r} is an input of the function; name it in in_out_argnames"
            )
        if any(target.root is other for other in roots):
            raise BufferAccessError(
                f"{where}: {target!r} is passed for two parameters that the kernel writes; pass it once"
            )
        roots.append(target.root)


def _outer(kind: ParameterType, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return shape[: len(shape) - len(inner_extents(kind.element))]


def _without_old_contents(call: Call, operands: Sequence[Any]) -> tuple[Call, Sequence[Any]]:
    """Return a call in which a result that is stored as a whole does not start from what was there before."""
    covered = indexing_of(call.kernel).covered
    dropped = {
        slot.alias
        for slot, kind in zip(call.slots, call.types, strict=True)
        if slot.kind == nb.RESULT and kind.name in covered and _outer(kind, call.results[slot.index][0]) == call.dims
    }
    kept = [k for k in range(call.operands) if k not in dropped]
    places = {old: new for new, old in enumerate(kept)}
    slots = [
        replace(slot, alias=places.get(slot.alias, -1))
        if slot.kind == nb.RESULT
        else replace(slot, index=places.get(slot.index, slot.index))
        for slot in call.slots
    ]
    changed = replace(
        call,
        slots=tuple(slots),
        shapes=tuple(call.shapes[k] for k in kept),
        casts=tuple(call.casts[k] for k in kept),
        spread=tuple(call.spread[k] for k in kept),
    )
    return changed, [operands[k] for k in kept]
