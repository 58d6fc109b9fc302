"""`jax_kernel`: a kernel as a JAX function.

A call goes one of two ways. With tracers it becomes part of the program that is being traced, and numbers are attributes.
Without, it runs a jitted function that is kept for the types of its arguments; numbers are then data, so that a new value
compiles nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from numbridge.jax_ffi import targets
from numbridge.jax_ffi.alone import run_eagerly
from numbridge.jax_ffi.asked_dims import asked, given_dims
from numbridge.jax_ffi.measured_calls import register
from numbridge.jax_ffi.noticed import notice
from numbridge.jax_ffi.plan import Call, Number, Operand, Options, argument_row, number_of, packed, plan_call
from numbridge.jax_ffi.pointwise import check_pointwise
from numbridge.jax_ffi.primitive import bind_call
from numbridge.jax_ffi.sharding import parse_rule
from numbridge.jax_ffi.signature import Signature, check_fuse, check_vmap_method, signature
from numbridge.jax_ffi.values import jax_value, named, operand
from numbridge.jax_ffi.widths import all_kept, width_settings
from numbridge.kernels.block_dims import block_dim_of
from numbridge.kernels.element_types.elements import Element
from numbridge.kernels.errors import NumbridgeTypeError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.scalars import Scalar
from numbridge.operators.remade import Remade, made_once

__all__ = ["JaxKernel", "jax_kernel"]

_MAX_CALLS = 256
_OPTIONS = ("launch_dims", "output_dims", "vmap_method", "fuse")


def jax_kernel(
    kernel: Kernel,
    num_outputs: int = 1,
    vmap_method: str = "broadcast_all",
    launch_dims: Any = None,
    output_dims: Any = None,
    in_out_argnames: Sequence[str] | None = None,
    enable_backward: bool = False,
    has_side_effect: bool = False,
    block_dim: int | tuple[int, ...] | None = None,
    sharding_rule: str | None = None,
    fuse: bool | None = None,
) -> JaxKernel:
    """Return a kernel as a function of JAX arrays, for `jax.jit` and the other transformations.

    Parameters
    ----------
    kernel : Kernel
        Its inputs come first, then its outputs. Outputs are arrays; they need an annotation with a dtype unless all array inputs
        have one dtype. An output starts as zeros wherever the kernel does not store to it.
    num_outputs : int
        How many arrays are returned, in-out arguments included.
    vmap_method : str
        How a call transforms under `jax.vmap`: ``"broadcast_all"``, ``"expand_dims"`` and ``"legacy_vectorized"`` run the whole
        batch in one call, ``"sequential"`` and ``"sequential_unrolled"`` make one call for each element. The kernel sees one
        batch element at a time in each case, and what is not batched is the same for all; all give the same results.
    launch_dims : int, tuple of int or callable, optional
        Extents of the launch, without batch axes; by default the shape of the first array argument. A callable gets a call's
        inputs and returns one of the others, each time that the call runs or is traced.
    output_dims : int, tuple of int, dict or callable, optional
        Shape of the outputs that are no in-out arguments, without batch axes, or a shape for each name; by default the launch
        dimensions. A callable, as for `launch_dims`, returns one of the others. Vectors and matrices are the last dimensions of
        JAX's arrays; shapes may include theirs or not.
    in_out_argnames : sequence of str, optional
        Inputs that the kernel changes. Each becomes an output, before the other outputs, and shares the input's memory where JAX
        has no more use for that (in a jitted function, or when it is donated); the caller's array never changes.
    enable_backward : bool
        Whether calls have derivatives, of every order, in forward and reverse mode: by array inputs of floating-point numbers,
        and by numbers that are JAX values. What has no exact derivative is refused when JAX traces the derivative.
    has_side_effect : bool
        Whether to run the kernel even if nobody uses its outputs.
    block_dim : int or tuple of int, optional
        Threads per block, as the kernel sees it: along the first axis of the launch, or each of up to three; 256 by default.
    sharding_rule : str, optional
        How a call may be cut up over devices, where the kernel's source does not show it: names for the axes of each array
        input and each output, such as ``"i k, k j -> i j"``. Axes that some output has are cut alike everywhere; others are
        gathered. The launch dimensions are the first output's axes, or are named at the end: ``"i k -> i; i"``. The kernel must
        compute the same from shards, and use neither its thread index nor an extent along a cut axis for anything but selecting
        elements.
    fuse : bool, optional
        Whether calls become operations of XLA, which fuses them with what is around them, and not a call of the compiled handler.
        That is possible where the kernel is pointwise: each thread reads and writes its own element of arrays with the shape of
        the launch, or reads elements at constant places. By default small calls for the CPU are fused whose results are the same
        bits; True fuses whatever is pointwise, on every platform, and refuses what is not; False never does.

    Returns
    -------
    JaxKernel
        ``f(*inputs, launch_dims=..., output_dims=..., vmap_method=..., fuse=...)``, which returns a tuple of arrays. Inputs may
        be passed by name. The same call returns the same function, with what JAX has traced and compiled for it, unless a global
        that the kernel reads has changed, or dims are said by a function.

    Raises
    ------
    NumbridgeError
        If outputs and in-out arguments contradict each other, or `fuse` and `has_side_effect` do.

    Notes
    -----
    Numbers may be Python or NumPy numbers, which a jitted function holds as attributes, or JAX values without dimensions; vectors
    and matrices by value likewise, such as ``nb.vec3(1, 2, 3)``, or JAX values of their shape. Records are bytes to JAX: an array
    of a structured dtype is a uint8 array with one more dimension, of `itemsize`, such as
    ``records.view(np.uint8).reshape(*records.shape, -1)``; there is no derivative by it. Arrays
    arrive in C order; they are neither copied nor converted. Of integers without dimensions, those of a dtype whose values may
    not fit are refused; a Python integer that JAX traces wraps around where it does not fit, as in JAX's own operations. The
    kernel's globals are those of the time when JAX traces it.

    Over several devices a call is cut up, without moving data, along batch axes and along thread indices that the kernel uses
    only to select elements, as elementwise kernels do. What else the kernel reads is gathered first.

    What is fused with ``fuse=True`` rounds as XLA does: a product and a sum may be one operation, and the last digit of ``exp``
    may differ. By default such kernels are not fused. XLA may still join a product and a sum of which only one is the kernel's,
    as it does with its own. Adjoints run as compiled code.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numbridge as nb
    >>> @nb.kernel
    ... def scale(x: nb.array[float], a: float, out: nb.array[float]):
    ...     i = nb.tid()
    ...     out[i] = a * x[i]
    >>> f = jax.jit(nb.jax_kernel(scale), static_argnums=1)
    >>> f(jnp.arange(3.0), 2.0)[0].tolist()
    [0.0, 2.0, 4.0]
    """
    if not isinstance(kernel, Kernel):
        raise NumbridgeTypeError(f"jax_kernel: wanted a kernel, got {kernel!r}; decorate the function with @nb.kernel")
    what = f"kernel {kernel.name!r}"
    found = signature(what, kernel.parameters, num_outputs, in_out_argnames)
    method = check_vmap_method(what, vmap_method)
    block = 256 if block_dim is None else block_dim_of(kernel, block_dim)
    if sharding_rule is not None:
        parse_rule(sharding_rule, found)
    dims = given_dims(found, "launch_dims", launch_dims), given_dims(found, "output_dims", output_dims)
    chosen = check_fuse(what, fuse, has_side_effect=bool(has_side_effect))
    options = Options(*dims, method, block, bool(has_side_effect), sharding_rule, bool(enable_backward), chosen)
    # What functions say of dims is in a trace, and may be something else by now.
    if options.ask:
        return _made(kernel, found, options)
    made: JaxKernel = made_once(_made, kernel, found, options)
    return made


def _made(kernel: Kernel, found: Signature, options: Options) -> JaxKernel:
    register()
    targets.declare(kernel)
    return JaxKernel(kernel, found, options)


class JaxKernel(Remade):
    """A kernel as a JAX function; made by `jax_kernel`.

    Attributes
    ----------
    kernel : Kernel
        What it runs.
    """

    def __init__(self, kernel: Kernel, found: Signature, options: Options) -> None:
        self.kernel = kernel
        self._signature, self._options = found, options
        self.made_by(_made, kernel, found, options)
        self._lock = threading.Lock()
        # Read with the first call: a global may be defined after the kernel.
        self._dependencies: tuple[Any, ...] = ()
        self._has_changed = False
        self._calls: dict[Any, Callable[..., Any]] = {}
        self._plans: dict[Any, Call] = {}
        # Not what is in its namespace: attributes that somebody has set may be named as ours are.
        functools.update_wrapper(self, kernel.function, updated=())
        self.__signature__ = found.shown(_OPTIONS)

    def __call__(
        self,
        *arguments: Any,
        launch_dims: Any = None,
        output_dims: Any = None,
        vmap_method: str | None = None,
        fuse: bool | None = None,
        **named: Any,
    ) -> tuple[Any, ...]:
        """Run the kernel; inputs go by position or by name, and each option given here replaces that of `jax_kernel`."""
        if named:
            arguments = self._signature.ordered(arguments, named)
        options = self._options
        if launch_dims is not None or output_dims is not None or vmap_method is not None or fuse is not None:
            options = self._chosen(launch_dims, output_dims, vmap_method, fuse)
        if options.ask:
            options = asked(self._signature, options, arguments)
        return self._called(options, arguments)

    def _called(self, options: Options, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Run the kernel with options of which none is a function any more."""
        key: Any = tuple(map(type, arguments))
        if options is not self._options:
            key = (key, options)
        for dependency in self._dependencies:
            if not dependency.holds():
                self._forget()
                break
        call = self._calls.get(key)
        if call is None:
            call = self._remember(key, arguments, options)
        notice(self.kernel)
        result: tuple[Any, ...] = run_eagerly(call, arguments)
        return result

    def __repr__(self) -> str:
        """Return the kernel as its declaration reads."""
        return f"<JAX function of {self.kernel!r}>"

    def is_current(self) -> bool:
        """Tell whether the kernel reads the globals still that it read whenever it was traced."""
        return not self._has_changed and all(dependency.holds() for dependency in self._dependencies)

    def _forget(self) -> None:
        """Drop what was traced with other globals."""
        with self._lock:
            self._has_changed = True
            self._dependencies, self._calls, self._plans = (), {}, {}

    def _chosen(self, launch: Any, output: Any, method: Any, fuse: Any) -> Options:
        """Return the options of a call that has some of its own."""
        options, what = self._options, self._signature.what
        if launch is not None:
            options = replace(options, launch_dims=given_dims(self._signature, "launch_dims", launch))
        if output is not None:
            options = replace(options, output_dims=given_dims(self._signature, "output_dims", output))
        if method is not None:
            options = replace(options, vmap_method=check_vmap_method(what, method))
        if fuse is not None:
            options = replace(options, fuse=check_fuse(what, fuse, has_side_effect=options.has_side_effect))
        return options

    def _remember(self, key: Any, arguments: Sequence[Any], options: Options) -> Any:
        import jax

        self._signature.check_count(arguments)
        if any(isinstance(argument, jax.core.Tracer) for argument in arguments):
            call: Callable[..., tuple[Any, ...]] = functools.partial(self._traced, options)
        elif any(isinstance(argument, Element) for argument in arguments):
            call = functools.partial(self._with_values, options)
        else:
            call = self._eager(options, arguments)
        with self._lock:
            if len(self._calls) >= _MAX_CALLS:
                self._calls.clear()
            self._dependencies = self._dependencies or self.kernel.source.dependencies()
            self._calls[key] = call
        return call

    def _traced(self, options: Options, *arguments: Any) -> tuple[Any, ...]:
        """Add a call to the program that is being traced."""
        given = [number_of(argument) or argument for argument in arguments]
        call, operands = self._plan(options, given)
        return bind_call(call, operands)

    def _with_values(self, options: Options, *arguments: Any) -> tuple[Any, ...]:
        """Run at once; vectors and matrices by value go as arrays, so that another value compiles nothing."""
        import jax

        for parameter, argument in zip(self._signature.inputs, arguments, strict=True):
            number = number_of(argument)
            if number is not None and isinstance(argument, Element):
                argument_row(self._signature, parameter, number)
        with all_kept():
            plain = [jax.numpy.asarray(a.numpy()) if isinstance(a, Element) else a for a in arguments]
        return self._called(options, plain)

    def _plan(self, options: Options, arguments: Sequence[Any]) -> tuple[Call, list[Any]]:
        """Return a call for numbers and JAX values, and its operands."""
        values = [a if isinstance(a, Number) else jax_value(self._signature, k, a) for k, a in enumerate(arguments)]
        given = [a if isinstance(a, Number) else operand(self._signature, k, a) for k, a in enumerate(values)]
        return self._planned(options, given), [a for a in values if not isinstance(a, Number)]

    def _planned(self, options: Options, described: Sequence[Operand | Number]) -> Call:
        """Return the call for such arguments: JAX traces the same one again and again."""
        # What JAX would narrow is refused, unless it is set to 64 bits now.
        key = (options, *width_settings(), *(a.key if isinstance(a, Number) else a for a in described))
        call = self._plans.get(key)
        if call is None:
            call = plan_call(self.kernel, self._signature, options, described)
            if options.fuse:
                check_pointwise(call)
            with self._lock:
                if len(self._plans) >= _MAX_CALLS:
                    self._plans.clear()
                self._plans[key] = call
        return call

    def _eager(self, options: Options, arguments: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
        """Return a function of such arguments that runs at once."""
        import jax

        for place, argument in enumerate(arguments):
            if number_of(argument) is None:
                jax_value(self._signature, place, argument)
        found = [number_of(argument) for argument in arguments]
        numbers = [None if number is None else Number(number.kind, None, packed=True) for number in found]
        has_numbers = any(number is not None for number in numbers)

        def run(*operands: Any) -> tuple[Any, ...]:
            rest = iter(operands[has_numbers:])
            call, values = self._plan(options, [next(rest) if number is None else number for number in numbers])
            return bind_call(call, [*operands[:has_numbers], *values])

        arrays = [p.name for p, number in zip(self._signature.inputs, numbers, strict=True) if number is None]
        named(run, self.kernel.name, ["numbers"] * has_numbers + arrays)
        jitted: Callable[..., tuple[Any, ...]] = jax.jit(run)
        call = _Packing(self, options, numbers, jitted) if has_numbers else jitted
        return functools.partial(self._with_numpy, call) if np.ndarray in map(type, arguments) else call

    def _with_numpy(self, call: Callable[..., tuple[Any, ...]], *arguments: Any) -> tuple[Any, ...]:
        """Run a call at once on arguments of NumPy's, of which JAX does not say which one it cannot take."""
        for place, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                jax_value(self._signature, place, argument)
        return call(*arguments)

    def number_types(self, options: Options, arguments: Sequence[Any]) -> list[tuple[str, Scalar]]:
        """Return what the numbers among some arguments are converted to: for each one, where it stands and its type."""
        call, _ = self._plan(options, arguments)
        inputs = zip(self._signature.inputs, arguments, call.types, strict=False)
        what = self._signature.what
        return [(f"{what} under JAX, argument {p.name!r}", t.scalar) for p, a, t in inputs if isinstance(a, Number)]


class _Packing:
    """Packs the numbers of an eager call into one operand, and runs it."""

    def __init__(
        self, owner: JaxKernel, options: Options, numbers: Sequence[Number | None], jitted: Callable[..., Any]
    ) -> None:
        self._owner, self._options, self._numbers, self._jitted = owner, options, numbers, jitted
        self._places = [k for k, number in enumerate(numbers) if number is not None]
        # A Python float takes the kernel's floating type, which the arrays' dtypes decide, as JAX has them.
        self._types: dict[Any, list[tuple[str, Scalar]]] = {}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the call."""
        arrays = [argument for argument, number in zip(arguments, self._numbers, strict=True) if number is None]
        kinds = ((getattr(array, "dtype", None), getattr(array, "weak_type", False)) for array in arrays)
        key = (*width_settings(), *kinds)
        types = self._types.get(key)
        if types is None:
            given = [a if number is None else number for a, number in zip(arguments, self._numbers, strict=True)]
            types = self._types[key] = self._owner.number_types(self._options, given)
        values = (arguments[place] for place in self._places)
        data = b"".join(packed(where, value, row) for value, (where, row) in zip(values, types, strict=True))
        result: tuple[Any, ...] = self._jitted(np.frombuffer(data, np.uint32), *arrays)
        return result
