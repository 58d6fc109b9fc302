"""`jax_callable`: a Python function that launches several kernels, as a JAX function.

By default the function is traced: it runs once for given shapes, on arrays that stand for JAX values (`recording`), and what
it launches becomes one JAX program. In `GraphMode.NONE` it is called each time instead, on XLA's memory (`callback`).
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from numbridge.arrays.array import Array
from numbridge.arrays.creation import making
from numbridge.bridges.installed import needed
from numbridge.jax_ffi import targets
from numbridge.jax_ffi.alone import run_eagerly
from numbridge.jax_ffi.asked_dims import asked, given_dims
from numbridge.jax_ffi.callback import CallContext, register_function
from numbridge.jax_ffi.noticed import notice, watching
from numbridge.jax_ffi.plan import (
    Number,
    Operand,
    Options,
    argument_row,
    deciding_rows,
    is_array,
    number_of,
    output_row,
)
from numbridge.jax_ffi.recording import Run, TracedArray
from numbridge.jax_ffi.replay import DEFAULT_GRAPH_CACHE_MAX, GraphCache, bind_replayed, can_stay_together
from numbridge.jax_ffi.signature import Dims, Signature, check_fuse, check_vmap_method, signature
from numbridge.jax_ffi.values import jax_value, named, operand
from numbridge.jax_ffi.widths import all_kept, widths
from numbridge.kernels.annotations import ScalarAnnotation, annotation_of
from numbridge.kernels.element_types.elements import Element, ElementType
from numbridge.kernels.errors import KernelUnsupportedError, NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.kernel import Parameter
from numbridge.kernels.scalars import scalar_of
from numbridge.operators.element_dims import element_of, inner_dims, outer_shape, refuse_records, value_of
from numbridge.operators.remade import Remade, made_once
from numbridge.storage.element_views import packed

__all__ = ["GraphMode", "JaxCallable", "jax_callable"]

_MAX_CALLS = 256
_OPTIONS = ("output_dims", "vmap_method")


class GraphMode(enum.Enum):
    """How a function that launches kernels runs.

    Attributes
    ----------
    NONE
        The function is called each time. It may look at values and do whatever Python does, except to wait for JAX's own
        computations: the threads that would do these may all be waiting for such functions.
    JAX
        It is traced once for given shapes; on CUDA, XLA captures its launches into a graph.
    NUMBRIDGE
        As `JAX`; launches that follow each other are one custom call, for which numbridge replays a CUDA graph of its own.
        XLA's operations between launches (views that are written, arithmetic) separate graphs. Within a program for several
        devices that JAX partitions, it is the same as `JAX`; within `jax.shard_map` and `jax.pmap` each device has its graphs.
    """

    NONE = 0
    JAX = 1
    NUMBRIDGE = 2


def jax_callable(
    func: Callable[..., None],
    num_outputs: int = 1,
    graph_mode: GraphMode = GraphMode.JAX,
    vmap_method: str = "broadcast_all",
    output_dims: Any = None,
    in_out_argnames: Sequence[str] | None = None,
    enable_backward: bool = False,
    graph_cache_max: int | None = DEFAULT_GRAPH_CACHE_MAX,
    has_side_effect: bool = False,
    fuse: bool | None = None,
) -> JaxCallable:
    """Return a Python function that launches kernels as a function of JAX arrays.

    Parameters
    ----------
    func : callable
        Its parameters are annotated like a kernel's; inputs come first, then outputs, which it writes by launching kernels. It
        returns None. It may make temporaries with `nb.zeros` and its siblings, and take views.
    num_outputs : int
        How many arrays are returned, in-out arguments included.
    graph_mode : GraphMode
        Whether ``func`` is traced (the default) or called each time.
    vmap_method : str
        As for `jax_kernel`.
    output_dims : int, tuple of int, dict or callable, optional
        Shape of the outputs that are no in-out arguments, or a shape for each name; by default that of the first array argument.
        A callable gets a call's inputs and returns one of the others, as for `jax_kernel`.
    in_out_argnames : sequence of str, optional
        Inputs that ``func`` changes; each becomes an output, before the other outputs. The caller's array never changes.
    enable_backward : bool
        Whether calls have derivatives, as for `jax_kernel`: each launch of the trace has, and what lies between them. Not in
        `GraphMode.NONE`.
    graph_cache_max : int, optional
        In `GraphMode.NUMBRIDGE`, how many CUDA graphs to keep on each device for one traced function: XLA's buffers may lie
        elsewhere from one execution to the next. The graph that was not used for the longest time is made to fit the new
        buffers. 32 by default; None keeps all; 0 makes no graphs.
    has_side_effect : bool
        Whether to run the kernels, or call ``func``, even if nobody uses the outputs.
    fuse : bool, optional
        In `GraphMode.JAX`, whether the launches of pointwise kernels become operations of XLA, as for `jax_kernel`.

    Returns
    -------
    JaxCallable
        ``f(*inputs, output_dims=..., vmap_method=...)``, which returns a tuple of arrays. Inputs may be passed by name.
        In `GraphMode.NONE` the same call returns the same object, unless dims are said by a function; a traced function is
        traced anew for each call.

    Notes
    -----
    Outputs and temporaries start as zeros. A traced function sees static numbers as Python numbers, and others as JAX values
    without dimensions, which it may compute with and pass on; extents may be symbolic dimensions of `jax.export`. For JAX's own
    operations ``jnp.asarray(array)`` is what an array holds now, and what they make may be passed to launches and assigned; in
    `jax.lax.scan` and its like, arrays can be written that are made there. A launch that reads an array under one name and writes
    it under another one reads what was there before the launch. In `GraphMode.NONE` launches share XLA's memory as they do
    outside of JAX: there such a launch may read what another of its threads has written.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numbridge as nb
    >>> @nb.kernel
    ... def scale(x: nb.array[float], a: float, out: nb.array[float]):
    ...     i = nb.tid()
    ...     out[i] = a * x[i]
    >>> def twice(x: nb.array[float], a: float, out: nb.array[float]):
    ...     half = nb.zeros(x.shape)
    ...     nb.launch(scale, x.shape, [x, a], [half])
    ...     nb.launch(scale, x.shape, [half, a], [out])
    >>> f = jax.jit(nb.jax_callable(twice))
    >>> f(jnp.arange(3.0), 3.0)[0].tolist()
    [0.0, 9.0, 18.0]
    """
    if not callable(func):
        raise NumbridgeTypeError(f"jax_callable: wanted a function, got {func!r}")
    needed("jax")
    what = f"function {getattr(func, '__name__', type(func).__name__)!r}"
    if not isinstance(graph_mode, GraphMode):
        raise NumbridgeTypeError(f"{what}: graph_mode is {graph_mode!r}; it must be a GraphMode, such as GraphMode.JAX")
    found = signature(what, _parameters(func, what), num_outputs, in_out_argnames)
    method = check_vmap_method(what, vmap_method)
    _check_cache_max(what, graph_cache_max)
    if enable_backward and graph_mode is GraphMode.NONE:
        raise KernelUnsupportedError(
            f"{what}: in GraphMode.NONE Python runs it each time, so there is nothing to differentiate; use GraphMode.JAX, or "
            "wrap it with jax.custom_vjp"
        )
    if graph_mode is GraphMode.NONE:
        # Their Arrays would be of bytes, which nothing views as records on every device.
        refuse_records(f"{what} in GraphMode.NONE", _parameters(func, what))
    chosen = check_fuse(what, fuse, has_side_effect=bool(has_side_effect))
    if chosen and graph_mode is not GraphMode.JAX:
        raise NumbridgeValueError(
            f"{what}: fuse=True is for GraphMode.JAX, and graph_mode is {graph_mode}, which runs compiled kernels; leave one out"
        )
    dims = given_dims(found, "output_dims", output_dims)
    options = Options(None, dims, method, 256, bool(has_side_effect), None, bool(enable_backward), chosen)
    if graph_mode is GraphMode.NUMBRIDGE:
        return _Replayed(func, found, options, graph_cache_max)
    if graph_mode is GraphMode.JAX:
        return JaxCallable(func, found, options)
    # What functions say of dims is in a trace, and may be something else by now.
    if options.ask:
        return _Called(func, found, options)
    # Nothing of what the function reads is in a trace, so one target of XLA's is enough.
    made: JaxCallable = made_once(_Called, func, found, options)
    return made


def _check_cache_max(what: str, value: Any) -> None:
    # Graphs are counted in 64 bits.
    if value is not None and (type(value) is not int or not 0 <= value < 2**63):
        raise NumbridgeValueError(f"{what}: graph_cache_max is {value!r}; it must be an int of at least 0, or None")


def _parameters(func: Callable[..., Any], what: str) -> tuple[Parameter, ...]:
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):
        raise NumbridgeTypeError(
            f"jax_callable: {func!r} does not say its parameters; wrap it in a function whose parameters are annotated"
        ) from None
    # A partial and an object with `__call__` have no annotations of their own; their signature has those of what they call.
    annotations = _annotations(func, what)
    made = []
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            is_bound = isinstance(func, functools.partial) and parameter.kind is parameter.KEYWORD_ONLY
            hint = "let the partial bind the first ones by position" if is_bound else "write it without * and **"
            raise NumbridgeTypeError(f"{what}: parameter {name!r} cannot be passed by position; {hint}")
        made.append(
            Parameter(name, annotation_of(annotations.get(name, inspect.Parameter.empty), f"{name!r} of {what}"))
        )
    return tuple(made)


def _annotations(func: Callable[..., Any], what: str) -> dict[str, Any]:
    """Return the annotations of a function's parameters, with those that are text evaluated."""
    try:
        parameters = inspect.signature(func, eval_str=True).parameters
        found = {name: parameter.annotation for name, parameter in parameters.items()}
        # A `__signature__` that somebody has set is taken as it is, text and all.
        written = [name for name, annotation in found.items() if isinstance(annotation, str)]
        evaluated = inspect.get_annotations(func, eval_str=True) if written else {}
    except Exception as error:  # evaluating a user's string runs a user's code
        raise NumbridgeTypeError(
            f"{what}: its annotations cannot be evaluated: {type(error).__name__}: {error}; name in them what its module has"
        ) from error
    return found | {name: evaluated.get(name, found[name]) for name in written}


class JaxCallable(Remade):
    """A Python function that launches kernels, as a JAX function; made by `jax_callable`."""

    def __init__(self, func: Callable[..., None], found: Signature, options: Options, *more: Any) -> None:
        self._func, self._signature, self._options = func, found, options
        self.made_by(type(self), func, found, options, *more)
        self._lock = threading.Lock()
        self._calls: dict[Any, Callable[..., Any]] = {}
        # What the kernels that were launched read elsewhere, as it was when their launches were traced.
        self._dependencies: dict[Any, tuple[Any, ...]] = {}
        # Not what is in its namespace: an object's attributes may be named as ours are.
        functools.update_wrapper(self, func, updated=())
        self.__signature__ = found.shown(_OPTIONS)

    def __call__(
        self, *arguments: Any, output_dims: Any = None, vmap_method: str | None = None, **named: Any
    ) -> tuple[Any, ...]:
        """Run the function; inputs go by position or by name, and each option given here replaces that of `jax_callable`."""
        import jax

        if named:
            arguments = self._signature.ordered(arguments, named)
        options = self._options
        if output_dims is not None:
            options = replace(options, output_dims=given_dims(self._signature, "output_dims", output_dims))
        if vmap_method is not None:
            options = replace(options, vmap_method=check_vmap_method(self._signature.what, vmap_method))
        self._signature.check_count(arguments)
        if options.ask:
            options = asked(self._signature, options, arguments)
        if any(isinstance(argument, jax.core.Tracer) for argument in arguments):
            return self._run(options, *arguments)
        return self._eager(options, arguments)

    def __repr__(self) -> str:
        """Return the function's name."""
        return f"<JAX function of {self._signature.what}>"

    def _eager(self, options: Options, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Run without a surrounding program; numbers are static, so that Python code may look at them."""
        given = [number_of(argument) for argument in arguments]
        for place, (argument, number) in enumerate(zip(arguments, given, strict=True)):
            if number is None:
                jax_value(self._signature, place, argument)
        for dependencies in list(self._dependencies.values()):
            if not all(dependency.holds() for dependency in dependencies):
                self._forget()
                break
        key = (options, *(None if number is None else number.key for number in given))
        call = self._calls.get(key)
        if call is None:
            with self._lock:
                if len(self._calls) >= _MAX_CALLS:
                    self._calls.clear()
                call = self._calls[key] = self._with_numbers(options, arguments, given)
        operands = [a for a, number in zip(arguments, given, strict=True) if number is None]
        result: tuple[Any, ...] = run_eagerly(call, operands)
        # Within a function that is traced, this is a part of its program, also where it was traced before.
        for kernel in list(self._dependencies):
            notice(kernel)
        return result

    def _forget(self) -> None:
        """Drop what was traced with other globals."""
        with self._lock:
            self._dependencies, self._calls = {}, {}

    def _launched(self, kernel: Any) -> None:
        # The first trace counts: what is traced later with other globals must not hide that it is out of date.
        if kernel not in self._dependencies:
            self._dependencies.setdefault(kernel, kernel.source.dependencies())

    def _with_numbers(
        self, options: Options, arguments: Sequence[Any], given: Sequence[Number | None]
    ) -> Callable[..., tuple[Any, ...]]:
        """Return a function of the arguments that are no numbers, which runs at once."""
        import jax

        fixed = [None if number is None else a for a, number in zip(arguments, given, strict=True)]
        is_fixed = [number is not None for number in given]

        # JAX compares static arguments by ==, which takes -0.0 for 0.0; so they are none of its arguments.
        def run(*operands: Any) -> tuple[Any, ...]:
            rest = iter(operands)
            return self._run(options, *(a if known else next(rest) for a, known in zip(fixed, is_fixed, strict=True)))

        names = [p.name for p, known in zip(self._signature.inputs, is_fixed, strict=True) if not known]
        named(run, getattr(self._func, "__name__", type(self._func).__name__), names)
        made: Callable[..., tuple[Any, ...]] = jax.jit(run)
        return made

    def _described(self, arguments: Sequence[Any]) -> list[Operand | Number]:
        numbers = [number_of(argument) for argument in arguments]
        return [
            operand(self._signature, place, jax_value(self._signature, place, argument)) if number is None else number
            for place, (argument, number) in enumerate(zip(arguments, numbers, strict=True))
        ]

    def _results(self, options: Options, described: Sequence[Operand | Number]) -> list[tuple[Dims, Any]]:
        """Return shape and dtype of each output that is no input, with all arguments checked."""
        given = list(zip(self._signature.inputs, described, strict=True))
        rows = [argument_row(self._signature, parameter, argument) for parameter, argument in given]
        what = self._signature.what
        first = next(
            (
                outer_shape(f"{what} under JAX, argument {p.name!r}", p, a.shape)
                for p, a in given
                if isinstance(a, Operand) and is_array(p, a)
            ),
            None,
        )
        shapes = self._signature.output_dims(options.output_dims, first)
        deciding = deciding_rows(given, rows)
        pure = zip(self._signature.pure, shapes, strict=True)
        return [((*shape, *inner_dims(p)), output_row(self._signature, p, shape, deciding).numpy) for p, shape in pure]

    def _run(self, options: Options, *arguments: Any) -> tuple[Any, ...]:
        """Trace the function: run it on arrays that stand for the arguments, and return what its outputs stand for then."""
        import jax.numpy as jnp

        found, described = self._signature, self._described(arguments)
        run = Run()
        passed = [
            TracedArray(jnp.asarray(a), p.name, options, run, writable=p.name in found.in_out, element=element_of(p))
            if is_array(p, d)
            else a
            for p, a, d in zip(found.inputs, arguments, described, strict=True)
        ]
        results = zip(found.pure, self._results(options, described), strict=True)
        with all_kept():
            zeros = [(p, jnp.zeros(*kind)) for p, kind in results]
        made = [TracedArray(value, p.name, options, run, writable=True, element=element_of(p)) for p, value in zeros]
        maker = TracedArray(jnp.zeros(()), "the maker of temporaries", options, run, writable=False)
        try:
            with making(maker.new), watching(self._launched):
                self._finish(self._func(*passed, *made))
        finally:
            run.is_over = True
        in_out = [array for p, array in zip(found.inputs, passed, strict=True) if p.name in found.in_out]
        return tuple(array.value for array in (*in_out, *made))

    def _finish(self, returned: Any) -> None:
        if returned is not None:
            raise NumbridgeTypeError(
                f"{self._signature.what} returned {returned!r}; it must write its outputs by launching kernels, and return None"
            )


class _Replayed(JaxCallable):
    """The same in `GraphMode.NUMBRIDGE`: what is traced is kept together, up to where it is lowered."""

    def __init__(
        self, func: Callable[..., None], found: Signature, options: Options, graph_cache_max: int | None
    ) -> None:
        super().__init__(func, found, options, graph_cache_max)
        # Also for programs that were exported elsewhere.
        targets.register_plans()
        self._graphs = GraphCache(graph_cache_max)

    @property
    def graph_cache_max(self) -> int | None:
        """How many CUDA graphs are kept for each traced function and device; a smaller number destroys the others."""
        return self._graphs.capacity

    @graph_cache_max.setter
    def graph_cache_max(self, value: int | None) -> None:
        _check_cache_max(self._signature.what, value)
        self._graphs.capacity = value

    @property
    def graph_cache_size(self) -> int:
        """How many CUDA graphs there are."""
        return self._graphs.size

    def clear_graph_cache(self) -> None:
        """Destroy the CUDA graphs; the next execution captures anew."""
        self._graphs.clear()

    def _run(self, options: Options, *arguments: Any) -> tuple[Any, ...]:
        import jax

        run, described = super()._run, self._described(arguments)
        is_value = [isinstance(d, Operand) for d in described]
        values = [jax.numpy.asarray(a) for a, traced in zip(arguments, is_value, strict=True) if traced]

        def function(*operands: Any) -> tuple[Any, ...]:
            rest = iter(operands)
            return run(options, *(next(rest) if t else a for a, t in zip(arguments, is_value, strict=True)))

        jaxpr = jax.jit(function).trace(*values).jaxpr
        if len(jaxpr.in_avals) != len(values) or not can_stay_together(jaxpr):
            # The function uses what is traced outside of it, or what only JAX's own operations can.
            return run(options, *arguments)
        return tuple(bind_replayed(jaxpr, self._graphs, values))


class _Called(JaxCallable):
    """The same in `GraphMode.NONE`: XLA calls the Python function each time."""

    def __init__(self, func: Callable[..., None], found: Signature, options: Options) -> None:
        super().__init__(func, found, options)
        # Nobody else has this name, so no exported program can call a function that it was not made with.
        self._target = f"numbridge_call_{getattr(func, '__name__', 'function')}_{secrets.token_hex(16)}"
        register_function(self._target, self._answer)

    def _run(self, options: Options, *arguments: Any) -> tuple[Any, ...]:
        import jax

        found, described = self._signature, self._described(arguments)
        results = self._results(options, described)
        given = [
            (p, a, d) for p, a, d in zip(found.inputs, arguments, described, strict=True) if isinstance(d, Operand)
        ]
        values = [jax.numpy.asarray(argument) for _, argument, _ in given]
        in_out = [k for k, (parameter, *_) in enumerate(given) if parameter.name in found.in_out]
        shapes = [jax.ShapeDtypeStruct(values[k].shape, values[k].dtype) for k in in_out]
        shapes += [jax.ShapeDtypeStruct(*kind) for kind in results]
        # With anything but a call for each element, all arguments get the batch axes in front, and `_answer` strips them.
        one_by_one = options.vmap_method.startswith("sequential")
        made = jax.ffi.ffi_call(
            self._target,
            shapes,
            has_side_effect=options.has_side_effect,
            vmap_method=options.vmap_method if one_by_one else "broadcast_all",
            input_output_aliases={k: place for place, k in enumerate(in_out)},
        )(*values, numbers=_spelled(described), ndim=len(shapes[0].shape), x64=bool(jax.config.jax_enable_x64))
        return tuple(made)

    def _answer(self, inputs: list[Array], outputs: list[Array], attrs: dict[str, Any], ctx: CallContext) -> None:
        """Call the function for a frame, once for each element of the batch."""
        places = [k for k, name in enumerate(_in_out_operands(self._signature, attrs["numbers"])) if name]
        for output, place in zip(outputs, places, strict=False):
            if output.ptr != inputs[place].ptr:
                output.assign(inputs[place])
        for output in outputs[len(places) :]:
            output.zero_()
        batch = outputs[0].shape[: outputs[0].ndim - attrs["ndim"]]
        # `jax.enable_x64` holds in a thread, and this is one of XLA's.
        with widths(attrs["x64"]):
            for index in np.ndindex(batch):
                self._once([x[index] for x in inputs], [x[index] for x in outputs], attrs["numbers"])

    def _once(self, inputs: list[Array], outputs: list[Array], numbers: str) -> None:
        operands, written = iter(inputs), iter(outputs)
        passed: list[Any] = []
        for parameter, spelled in zip(self._signature.inputs, json.loads(numbers), strict=True):
            if spelled is not None:
                passed.append(_number(spelled, value_of(parameter)))
                continue
            value = next(operands)
            if parameter.name in self._signature.in_out:
                passed.append(_packed(parameter, next(written)))
            elif is_array(parameter, Operand(value.shape, value.dtype, False)):
                passed.append(_packed(parameter, value))
            elif (element := value_of(parameter)) is not None:
                passed.append(element(value.numpy()))
            else:
                annotation = parameter.annotation
                wanted = annotation.scalar.numpy if isinstance(annotation, ScalarAnnotation) else value.dtype
                passed.append(value.numpy().astype(wanted)[()])
        outputs = [_packed(p, x) for p, x in zip(self._signature.pure, written, strict=True)]
        self._finish(self._func(*passed, *outputs))


def _packed(parameter: Parameter, array: Array) -> Array:
    """Return an array of scalars as one of the elements that a parameter is annotated with."""
    element = element_of(parameter)
    return array if element is None else packed(array, element)


def _in_out_operands(found: Signature, numbers: str) -> list[bool]:
    """Return for each operand whether it is an in-out argument."""
    spelled = json.loads(numbers)
    return [p.name in found.in_out for p, number in zip(found.inputs, spelled, strict=True) if number is None]


def _spelled(arguments: Sequence[Operand | Number]) -> str:
    """Return the static numbers among some arguments as text; None stands for an operand."""
    return json.dumps([_spell(argument) if isinstance(argument, Number) else None for argument in arguments])


def _spell(number: Number) -> list[str]:
    if isinstance(number.value, Element):
        return [number.kind.name, number.value.numpy().tobytes().hex()]
    if isinstance(number.kind, np.dtype):
        return [number.kind.name, number.value.tobytes().hex()]
    # Python does not write down integers of thousands of digits, but in hexadecimal.
    return [number.kind.__name__, hex(number.value) if number.kind is int else repr(number.value)]


def _number(spelled: Sequence[str], element: ElementType | None) -> Any:
    kind, text = spelled
    if element is not None:
        return element(np.frombuffer(bytes.fromhex(text), element.scalar.numpy).reshape(element.extents))
    if kind == "bool":
        return text == "True" if text in ("True", "False") else np.frombuffer(bytes.fromhex(text), np.bool_)[0]
    if kind == "int":
        return int(text, 16)
    python = {"float": float, "complex": complex}.get(kind)
    return python(text) if python else np.frombuffer(bytes.fromhex(text), scalar_of(kind).numpy)[0]
