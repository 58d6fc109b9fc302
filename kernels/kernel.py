"""What a user declares: kernels and device functions. Declaring compiles nothing and imports no Numba.

A `Kernel` is an ordinary Python function with a name, annotated parameters and options; the back ends find everything that
they need in its `source`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar, overload

import numpy as np

from numbridge.kernels.annotations import (
    ArrayAnnotation,
    ElementAnnotation,
    ScalarAnnotation,
    annotation_of,
    is_own_annotation,
)
from numbridge.kernels.config import config
from numbridge.kernels.errors import KernelError, NumbridgeError, NumbridgeTypeError
from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.language.kernel_syntax import check_returns
from numbridge.kernels.language.loaded_source import file_of
from numbridge.kernels.language.njit_functions import conversions_on_cuda
from numbridge.kernels.language.source import FunctionSource, Role, Sourced
from numbridge.kernels.language.static_names import is_cuda_dispatcher
from numbridge.kernels.language.tuple_parameters import Spread, Structure, is_record, leaves, structure_of
from numbridge.kernels.machine import front
from numbridge.kernels.numpy_arrays import array_of_record

__all__ = ["Boxed", "Flattened", "Function", "Kernel", "Parameter", "func", "func_grad", "kernel"]

# Of how many structures of tuples a kernel keeps what it becomes
_MAX_STRUCTURES = 256
# What launches take apart, or take for arrays: records of NumPy's
_TAKEN_APART = (tuple, np.void)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: its name, and what its annotation asks for (None: anything)."""

    name: str
    annotation: ArrayAnnotation | ElementAnnotation | ScalarAnnotation | None

    def may_be(self, argument: Any) -> bool:
        """Tell whether the kernel may become one for such a tuple, or for None: in place of an array, whatever is asked of it.

        A tuple for what is annotated as something else is refused with all else that does not fit.
        """
        return self.annotation is None or (argument is None and isinstance(self.annotation, ArrayAnnotation))


class Kernel(Sourced):
    """A function to be run by many threads; made by `kernel`.

    Attributes
    ----------
    function : function
        The Python function.
    name : str
        Its name.
    parameters : tuple of Parameter
        Its parameters.
    options : dict
        The options given to `kernel`.
    """

    role: ClassVar[Role] = "kernel"
    # How those of its parameters are built that are tuples, if it takes their elements
    structures: Mapping[str, Structure] = MappingProxyType({})
    # Its numbers that come as arrays without dimensions
    _boxed: tuple[str, ...] = ()

    def __init__(self, function: FunctionType, options: dict[str, Any], *, dispatcher: Any = None) -> None:
        # Not what is in its namespace: attributes that somebody has set may be named as ours are.
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = options.pop("name", None) or function.__name__
        self.options = options
        self.file = self.file or file_of(function)
        self.parameters = _parameters(function, self.name) if dispatcher is None else _hinted(dispatcher, self.name)
        self.source.parameters  # noqa: B018 - what cannot be a kernel is refused where it is declared
        self.variants: Any = None
        # By block, and then by extents (see `native.front`), as long as the program asks this of its threads
        self.launchers: dict[Any, dict[Any, Any]] = {}
        self.threads: Any = None
        self.derivatives: dict[Any, Any] = {}
        self._flattened: dict[tuple[Structure | None, ...], Kernel] = {}

    @functools.cached_property
    def source(self) -> FunctionSource:
        """The parsed source."""
        return FunctionSource(self.function, self.role, self.name, self._boxed, self.file, self.structures)

    def label(self, name: str) -> str:
        """Return what messages call a parameter."""
        return self.source.labels.get(name, name)

    def flattened(self, arguments: Sequence[Any]) -> tuple[Kernel, Sequence[Any]]:
        """Return the kernel that takes what tuples among its arguments hold one by one, and these; or both as they are."""
        for argument in arguments:
            if argument is None or isinstance(argument, _TAKEN_APART):
                break
        else:
            return self, arguments
        if len(arguments) != len(self.parameters):
            return self, arguments
        pairs = zip(self.parameters, arguments, strict=True)
        key = tuple(structure_of(argument, records=True) if p.may_be(argument) else None for p, argument in pairs)
        if not any(key):
            return self, arguments
        taken: list[Any] = []
        for argument, structure in zip(arguments, key, strict=True):
            if structure is None:
                taken.append(argument)
            else:
                taken.extend(array_of_record(leaf) if is_record(leaf) else leaf for leaf in leaves(argument))
        return self.flattened_for(key), taken

    def flattened_for(self, structures: tuple[Structure | None, ...]) -> Kernel:
        """Return the kernel that takes one by one what tuples hold, given how each parameter is built; None is no tuple."""
        kernel = self._flattened.get(structures)
        if kernel is None:
            if len(self._flattened) >= _MAX_STRUCTURES:
                self._flattened.clear()
            pairs = zip(self.parameters, structures, strict=True)
            made = Flattened(self, {p.name: structure for p, structure in pairs if structure is not None})
            kernel = self._flattened.setdefault(structures, made)
        return kernel

    def new_variants(self) -> Any:
        """Return an empty collection of variants."""
        from numbridge.kernels.variant import Variants

        return Variants(self)

    @property
    def checks_bounds(self) -> bool:
        """Whether its compiled code checks indices, and says which is wrong."""
        return bool(self.options.get("check_bounds"))

    @property
    def checks_races(self) -> bool:
        """Whether its compiled code notes what threads do to each element, and says which of them race."""
        return bool(self.options.get("check_races"))

    def dependencies(self) -> tuple[Dependency, ...]:
        """Return every global and closure value that the compiled code depends on."""
        return self.source.dependencies()

    def adjoint(
        self,
        wanted: Sequence[str],
        kept: Sequence[str] = (),
        unused: Sequence[str] = (),
        fresh: Sequence[str] = (),
        *,
        restores: bool = True,
        left: Sequence[str] = (),
    ) -> Any:
        """Return the kernel that carries adjoints back through this one.

        Parameters
        ----------
        wanted : sequence of str
            Floating parameters: arrays and scalars. The adjoint takes this kernel's arguments, with arrays as they were
            before the launch, then for each of these an array of the same shape and dtype (one element for a scalar).
            Gradients are added to it; where this kernel overwrote an element, the element's adjoint ends as that of what
            it held before. For arrays of float16 and bfloat16 it may also be of float32, and on CUDA must be: there is
            no atomic addition to 16 bits, so gradients are added up in float32. One of 16 bits is copied to float32 for
            the launch, and rounded once after it.
        kept : sequence of str
            Those of the `wanted` arrays whose adjoints must only be read.
        unused : sequence of str
            Arrays that must be neither read nor written, so that any of their type and shape may stand for them.
        fresh : sequence of str
            Those of the `wanted` arrays whose adjoints are stored instead of added to, whatever they hold: every thread must load
            its own element of the array, whichever way it takes, and no other. What no thread has keeps what it holds.
        restores : bool
            Whether this kernel's arrays end as they were. Else those that it writes may hold anything after it, which spares
            remembering what loops overwrite and nobody reads again.
        left : sequence of str
            Those of this kernel's arrays that the adjoint takes as the launch has left them, and does not change. What it reads
            of one must be there to the end: a thread stores only to elements that no other thread touches, and to none that it
            has loaded before, unless that load has no part in the gradient.

        Returns
        -------
        Derivative

        Raises
        ------
        KernelError
            If the kernel was declared with ``enable_backward=False``.
        """
        return self._derived("adjoint", wanted, kept, unused, fresh, restores=restores, left=tuple(left))

    def tangent(self, wanted: Sequence[str]) -> Any:
        """Return the kernel that carries tangents forward, next to this one's own work.

        It takes this kernel's arguments, then a tangent for each of the `wanted` parameters: an array of the same shape
        and dtype, or a number for a scalar. What this kernel writes, it writes too, and its tangent.
        """
        return self._derived("tangent", wanted)

    def _derived(self, mode: str, wanted: Sequence[str], *more: Sequence[str], **how: Any) -> Any:
        from numbridge.kernels.adjoint.derive import derived

        return derived(self, mode, tuple(wanted), *map(tuple, more), **how)

    @property
    def adjoint_source(self) -> str:
        """The text of the adjoint, for the types of the last launch, or of the annotations if there was none."""
        from numbridge.kernels.adjoint.adjoint_text import adjoint_source

        return adjoint_source(self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Refuse: a kernel is launched."""
        raise NumbridgeError(
            f"kernel {self.name!r} cannot be called; launch it: nb.launch({self.name}, dim, [arguments]), "
            f"{self.name}.forall(dim)(arguments) or {self.name}[blocks, threads](arguments)"
        )

    def __repr__(self) -> str:
        """Return the kernel as its declaration reads."""
        shown = [p.name if p.annotation is None else f"{p.name}: {p.annotation!r}" for p in self.parameters]
        return f"<kernel {self.name}({', '.join(shown)})>"

    @front("numbridge_front_forall", is_method=True)
    def forall(self, dim: int | tuple[int, ...], block_dim: int | tuple[int, ...] = 256) -> Callable[..., None]:
        """Return a function of the kernel's arguments that runs it over `dim` threads; the fastest way to launch.

        Parameters
        ----------
        dim : int or tuple of int
            Extents of the launch, up to four; threads beyond them do not run, and 0 runs nothing.
        block_dim : int or tuple of int
            Threads per block: along the first axis, or along each of up to three, in the order of `dim`. On the CPU it matters to
            kernels whose threads work together or ask for their block. On CUDA, kernels that do not ask leave it to an int how
            its threads are laid out.
        """
        from numbridge.kernels import launch

        run: Callable[..., None] = launch.remembered(self, dim, block_dim)
        return run

    @front("numbridge_front_configure", is_method=True)
    def __getitem__(self, configuration: Any) -> Callable[..., None]:
        """Return the launcher of ``kernel[blocks, threads]``, numba.cuda's form: nothing is masked."""
        from numbridge.kernels import launch

        run: Callable[..., None] = launch.configure(self, configuration)
        return run

    def ptx(self, *arguments: Any, capability: tuple[int, int] | None = None, plain: bool = False) -> str:
        """Return the PTX that arguments of these types run on CUDA; needs no GPU.

        Parameters
        ----------
        *arguments
            Examples of the kernel's arguments, on any device.
        capability : (int, int), optional
            The compute capability, such as ``(9, 0)``; by default that of the current CUDA device.
        plain : bool
            For ``kernel[blocks, threads]`` rather than `launch`.
        """
        return str(self._cuda_code(arguments, capability, plain=plain).facts["ptx"])

    def cubin(self, *arguments: Any, capability: tuple[int, int] | None = None, plain: bool = False) -> bytes:
        """Return the machine code that arguments of these types run on CUDA; parameters as in `ptx`."""
        code: bytes = self._cuda_code(arguments, capability, plain=plain).objects[0]
        return code

    def _cuda_code(self, arguments: Sequence[Any], capability: tuple[int, int] | None, *, plain: bool) -> Any:
        from numbridge.kernels import variant

        return variant.compile_for(self, arguments, capability, "plain" if plain else "masked").compiled

    def explain(self, *arguments: Any) -> Any:
        """Return what the kernel becomes for these arguments: types, float64 arithmetic that remains, generated source."""
        from numbridge.kernels.explanation import explain

        return explain(self, arguments)


class Boxed(Kernel):
    """A kernel some of whose numbers come as arrays without dimensions: as what a framework has gradients of.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    names : sequence of str
        Which of its parameters; those that are annotated as numbers come as arrays of such.
    """

    def __init__(self, kernel: Kernel, names: Sequence[str]) -> None:
        self._boxed, self.file, self.structures = tuple(names), kernel.file, kernel.structures
        super().__init__(kernel.function, {**kernel.options, "name": kernel.name})
        self.parameters = tuple(_boxed(p) if p.name in names else p for p in kernel.parameters)


class Flattened(Kernel):
    """A kernel that takes what tuples among its parameters hold, one by one.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    structures : mapping of str to Structure
        How the tuples are built, by the parameters.
    """

    def __init__(self, kernel: Kernel, structures: Mapping[str, Structure]) -> None:
        self.structures, self.file = structures, kernel.file
        super().__init__(kernel.function, {**kernel.options, "name": kernel.name})
        given = self.source.spread
        taken = ([p] if p.name not in given else _of_leaves(given[p.name]) for p in kernel.parameters)
        self.parameters = tuple(p for parameters in taken for p in parameters)


def _of_leaves(spread: Spread) -> Iterable[Parameter]:
    return (Parameter(leaf.name, None) for leaf in spread.leaves())


def _boxed(parameter: Parameter) -> Parameter:
    scalar = parameter.annotation.scalar if isinstance(parameter.annotation, ScalarAnnotation) else None
    return Parameter(parameter.name, ArrayAnnotation(scalar, 0))


class Function(Sourced):
    """A device function, called by kernels; made by `func`. Called from Python it runs as Python."""

    role: ClassVar[Role] = "func"

    def __init__(self, function: FunctionType, name: str | None = None) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = name or function.__name__
        # It may be edited before a kernel calls the function.
        self.file = file_of(function)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the Python function."""
        return self.function(*arguments, **named)

    def __repr__(self) -> str:
        """Return the function's name."""
        return f"<device function {self.name}>"


def func_grad(function: Function) -> Callable[[Callable[..., Any]], Function]:
    """Decorate the derivative by hand of a device function, which adjoints and tangents of kernels use from then on.

    Parameters
    ----------
    function : Function
        A device function of numbers, which returns a number or a tuple of numbers.

    Returns
    -------
    callable
        A decorator of a function that takes the arguments of `function`, then one cotangent for each floating result, and
        returns one number for each argument: the gradients. What it returns for an integer argument is ignored. It must
        be linear in the cotangents.

    Raises
    ------
    NumbridgeTypeError
        If `function` is no device function.
    KernelError
        If it has a derivative already, if JAX has differentiated it without, or if it takes more arguments than the derivative.

    Examples
    --------
    >>> import numbridge as nb
    >>> @nb.func
    ... def cube(x):
    ...     return x * x * x
    >>> @nb.func_grad(cube)
    ... def cube_grad(x, cotangent):
    ...     return 3.0 * x * x * cotangent
    """
    if not isinstance(function, Function):
        raise NumbridgeTypeError(f"func_grad: wanted a function decorated with @nb.func, got {function!r}")

    def register(derivative: Callable[..., Any]) -> Function:
        made = func(derivative) if not isinstance(derivative, Function) else derivative
        if function.source.gradient is not None:
            raise KernelError(f"{function.name} has a derivative already: {function.source.gradient.name}")
        if function.source.is_sealed:
            raise KernelError(
                f"{function.name} has been differentiated by JAX, which keeps the derivative that it traced; enter one by hand "
                "before that, or define the function anew"
            )
        if len(made.source.parameters) <= len(function.source.parameters):
            raise KernelError(
                f"{made.name}, the derivative of {function.name}, must take the function's arguments and then one cotangent "
                "for each floating result"
            )
        check_returns(made.source)
        function.source.gradient = made.source
        return made

    return register


def _parameters(function: FunctionType, name: str) -> tuple[Parameter, ...]:
    try:
        annotations = inspect.get_annotations(function, eval_str=True)
    except Exception as error:  # evaluating a user's string runs a user's code
        raise _unreadable(function, name, error) from error
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    where = f"of kernel {name!r}"
    return tuple(
        Parameter(n, annotation_of(annotations.get(n, inspect.Parameter.empty), f"{n!r} {where}")) for n in names
    )


def _unreadable(function: FunctionType, name: str, error: Exception) -> KernelError:
    written = {key: value for key, value in function.__annotations__.items() if isinstance(value, str)}
    return KernelError(
        f"kernel {name!r}: the annotations of {', '.join(map(repr, written))} cannot be evaluated: "
        f"{type(error).__name__}: {error}"
    )


def _hinted(dispatcher: Any, name: str) -> tuple[Parameter, ...]:
    """Return the parameters of a function of `cuda.jit`, whose annotations may be hints for a reader, which numba.cuda ignores.

    Numbers keep their own types then: `dt: float` says nothing of float32; or they have those of its signature, if it has
    one. Where an annotation is numbridge's own, all of them are meant for numbridge.
    """
    function, conversions = dispatcher.py_func, conversions_on_cuda(dispatcher)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    try:
        given = [_evaluated(function, function.__annotations__.get(n)) for n in names]
    except Exception as error:  # as above
        raise _unreadable(function, name, error) from error
    if any(map(is_own_annotation, given)):
        return _parameters(function, name)
    declared = (None,) * len(names) if conversions is None else conversions.parameters
    return tuple(
        Parameter(n, _hint(annotation) if kind is None else annotation_of(kind))
        for n, annotation, kind in zip(names, given, declared, strict=True)
    )


def _evaluated(function: FunctionType, annotation: Any) -> Any:
    """Return an annotation, or None for one that has a name in it which only a type checker knows."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, function.__globals__)  # as `inspect.get_annotations` does
    except NameError:
        return None


def _hint(annotation: Any) -> ArrayAnnotation | ElementAnnotation | ScalarAnnotation | None:
    """Return what a hint asks for, or None if it asks for nothing of an array or a number of one type."""
    if annotation is None or annotation in (float, int, bool):
        return None
    try:
        return annotation_of(annotation)
    except NumbridgeTypeError:
        return None


def _function_of(value: Any, decorator: str) -> FunctionType:
    """Return the Python function that a decorator was applied to; `@cuda.jit` functions are looked through."""
    if is_cuda_dispatcher(value):
        value = value.py_func
    if isinstance(value, staticmethod | classmethod):
        raise NumbridgeTypeError(
            f"@nb.{decorator} decorates a function, got a {type(value).__name__}; write @staticmethod above @nb.{decorator}"
        )
    if not isinstance(value, FunctionType):
        raise NumbridgeTypeError(f"@nb.{decorator} decorates a function, got {value!r}")
    return value


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    *,
    name: str | None = None,
    fastmath: bool | None = None,
    enable_backward: bool | None = None,
    check_bounds: bool | None = None,
    check_races: bool | None = None,
    simd: bool | None = None,
) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    fastmath: bool | None = None,
    enable_backward: bool | None = None,
    check_bounds: bool | None = None,
    check_races: bool | None = None,
    simd: bool | None = None,
) -> Any:
    """Declare a kernel: ``@nb.kernel``, or ``nb.kernel(f)`` on an existing ``@cuda.jit`` function.

    Parameters
    ----------
    function : function
        An ordinary numba.cuda kernel. Its parameters may be annotated (`nb.array2d[float]`, `float`, `nb.int64`).
    name : str, optional
        What messages call it.
    fastmath : bool, optional
        Let the compiler reassociate floating-point arithmetic; by default as `nb.config` says, which is not to.
    enable_backward : bool, optional
        Whether the kernel has derivatives; asking for one that it has not is an error. By default as `nb.config` says,
        which is that it has.
    check_bounds : bool, optional
        Whether an index that an array has not ends a launch on the CPU with an error that shows it, instead of reading or
        writing other memory. Slower, and for debugging. By default as `nb.config` says, which is not to. On CUDA, and in
        derivatives, nothing is checked.
    check_races : bool, optional
        Whether a launch on the CPU runs its threads one after the other, notes what each does to elements of arrays and of
        shared memory, and ends with a `DataRaceError` that shows where two threads do what nothing orders: one stores into an
        element that another reads, or they store different values. The arrays are written then. It takes about 1 µs for each
        access and up to 500 bytes for each element that is touched, and is for debugging. By default as `nb.config` says, which
        is not to. On CUDA, and in derivatives, nothing is checked.
    simd : bool, optional
        On the CPU, whether neighbouring threads of a kernel with loops, and of its derivatives, run their trips together in
        the lanes of SIMD instructions. By default they do where that is faster; True is wherever it is possible, False is never.
        The results are the same to the last bit, but for what threads add up together and, in loops where each trip waits for
        the last, functions such as `math.tanh`: where threads run together these are numbridge's own, otherwise the C
        library's, which is quicker for one number at a time. They differ by three units in the last place at most. With False
        the threads of a block that wait for each other are coroutines, which compile faster and run slower. On CUDA, it keeps a
        thread of a large grid from taking several ids at once.

    Returns
    -------
    Kernel

    Raises
    ------
    KernelError
        If the function holds something that no kernel can; the message shows file, line and column.

    Examples
    --------
    >>> import numpy as np, numbridge as nb
    >>> @nb.kernel
    ... def scale(x: nb.array[float], a: float):
    ...     i = nb.tid()
    ...     x[i] = a * x[i]
    >>> x = np.ones(3, np.float32)
    >>> nb.launch(scale, 3, [x, 2.0])
    >>> x.tolist()
    [2.0, 2.0, 2.0]
    """
    options = {
        "name": name,
        "fastmath": config.fastmath if fastmath is None else fastmath,
        "enable_backward": config.enable_backward if enable_backward is None else enable_backward,
        "check_bounds": config.check_bounds if check_bounds is None else check_bounds,
        "check_races": config.check_races if check_races is None else check_races,
        "simd": config.simd if simd is None else simd,
    }
    if function is None:
        return lambda decorated: _declared(decorated, dict(options))
    return _declared(function, options)


def _declared(function: Any, options: dict[str, Any]) -> Kernel:
    dispatcher = function if is_cuda_dispatcher(function) else None
    return Kernel(_function_of(function, "kernel"), options, dispatcher=dispatcher)


@overload
def func(function: Callable[..., Any], /) -> Function: ...
@overload
def func(*, name: str | None = None) -> Callable[[Callable[..., Any]], Function]: ...


def func(function: Any = None, /, *, name: str | None = None) -> Any:
    """Declare a device function, which kernels and other device functions may call.

    Parameters
    ----------
    function : function
        Called from Python it runs as Python.
    name : str, optional
        What messages call it.

    Returns
    -------
    Function
        What kernels call; compiled into each of them, with its derivative.

    Examples
    --------
    >>> import numbridge as nb
    >>> @nb.func
    ... def clamp(x, low, high):
    ...     return min(max(x, low), high)
    >>> clamp(2.0, 0.0, 1.0)
    1.0
    """
    if function is None:
        return lambda decorated: Function(_function_of(decorated, "func"), name)
    return Function(_function_of(function, "func"), name)
