"""The CUDA back end: generated source becomes a cubin through numba.cuda and nvJitLink, with or without a GPU.

Importing this module imports numba.cuda, so only code that is about to compile does.
"""

from __future__ import annotations

import contextlib
import operator
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from numba import cuda, types
from numba.core.errors import NumbaError
from numba.cuda import cudadecl, dispatcher
from numba.cuda.compiler import compile_all
from numba.cuda.core.errors import NumbaError as CudaNumbaError
from numba.cuda.cudadrv import nvrtc, nvvm
from numba.cuda.cudadrv.error import CCSupportError
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import lower_cast
from numba.cuda.extending import overload as cuda_overload
from numba.cuda.typing.templates import AbstractTemplate

from numbridge.kernels.arithmetic import complex_division, cuda_ufuncs, row_functions
from numbridge.kernels.arithmetic.cuda_divisions import as_on_the_cpu
from numbridge.kernels.arithmetic.narrow_floats import NarrowFloat, narrow_float, register
from numbridge.kernels.compilation.compile_errors import NO_MEMORY, not_compiled
from numbridge.kernels.compilation.declared_calls import Copies, declared_calls
from numbridge.kernels.compilation.integer_rules import check_integers
from numbridge.kernels.compilation.unfinished_calls import linked_calls
from numbridge.kernels.cuda_backend import cuda_intrinsics, cuda_stack
from numbridge.kernels.cuda_backend.grid_source import GRID
from numbridge.kernels.cuda_backend.ids_together import STEPS
from numbridge.kernels.cuda_backend.linked_code import objects_of
from numbridge.kernels.element_types import numba_element_memory, numba_element_stores, numba_elements
from numbridge.kernels.element_types.component_range import check_components
from numbridge.kernels.element_types.numba_records import numba_record, register_copies, with_own_records
from numbridge.kernels.element_types.record_fields import field
from numbridge.kernels.errors import DeviceError, KernelError
from numbridge.kernels.language.rewriting import CUDA_FUNCTION, CUDA_MODULE, HALVES
from numbridge.kernels.language.static_names import import_of_numba_cuda, is_dispatcher
from numbridge.kernels.object_cache import Compiled
from numbridge.kernels.parameter_types import ArrayType, ParameterType, ScalarType, kernel_places

__all__ = ["compile_cubin", "compile_ptx", "is_cooperative", "link", "numba_type"]

# What a cooperative launch is recognised by: the runtime function behind `cuda.cg.this_grid()`.
_COOPERATIVE = "cudaCGGetIntrinsicHandle"
# The head of a kernel in PTX: its name, and its parameters
_ENTRY = re.compile(r"\.visible \.entry ([\w$]+)\(([^)]*)\)")
_PARAMETER = re.compile(r"([\w$]+)(?:\[\d+\])?\s*$")
# What of the toolkit is not found, and how much shared memory there is
_LIBRARY = re.compile(r"libnv\w+")
_SHARED = re.compile(r"too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)")
# nvJitLink's refusal of PTX that is newer than it
_VERSIONS = re.compile(r"Unsupported \.version ([\d.]+); current version is '([\d.]+)'")
# Of what numba.cuda allocates arrays with, which needs a runtime on the device
_ALLOCATES = "Undefined reference to 'NRT_"
# What Numba's code for .reshape calls in C
_RESHAPES = "numba_attempt_nocopy_reshape"
_compiling = threading.RLock()


# numba.cuda does so by itself when it first compiles.
import_of_numba_cuda("np.arrayobj")
register(lower_cast, cuda.types)


@cudadecl.registry.register_global(operator.setitem)
class _StoredHalf(AbstractTemplate):
    """Stores of narrow floats into memory of numba.cuda's float16, to which they do not convert by themselves."""

    key = operator.setitem

    def generic(self, args: Any, kws: Any) -> Any:
        array, index, value = args
        if not isinstance(value, NarrowFloat) or getattr(array, "dtype", None) != cuda.types.float16:
            return None
        return self.context.resolve_function_type(operator.setitem, (array, index, cuda.types.float32), {})


register_copies(lower_cast)
cuda_ufuncs.register()
row_functions.register(cuda_overload)


def numba_type(parameter: ParameterType) -> Any:
    """Return the Numba type of a parameter; arrays that the kernel does not write are read-only to Numba too."""
    if parameter.element is not None and parameter.element.fields is not None:
        written = isinstance(parameter, ArrayType) and parameter.written
        dtype = numba_record(parameter.element, written=written)
    elif parameter.element is not None:
        dtype = numba_elements.numba_element(parameter.element)
    else:
        dtype = narrow_float(parameter.scalar) or getattr(types, parameter.scalar.numba or "", None)
    if dtype is None or (isinstance(parameter, ScalarType) and isinstance(dtype, NarrowFloat)):
        raise KernelError(
            f"parameter {parameter.name!r} is a scalar of {parameter.scalar.name}, which kernels take in arrays only; annotate "
            "float and convert it to float32"
        )
    if isinstance(parameter, ArrayType):
        layout = "C" if parameter.contiguous or parameter.ndim == 0 else "A"
        return types.Array(dtype, parameter.ndim, layout, readonly=parameter.is_read_only)
    return dtype


def _in_this_thread(own: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what does for this thread what `own` does: numba.cuda compiles for others without a lock, when they launch."""
    this = threading.get_ident()

    def either(*given: Any, **options: Any) -> Any:
        return (own if threading.get_ident() == this else original)(*given, **options)

    return either


@contextlib.contextmanager
def _for_capability(capability: tuple[int, int]) -> Iterator[None]:
    """Answer numba.cuda's question for the current device, which it asks when it compiles a device function."""
    with _compiling:
        original = dispatcher.get_current_device
        here = SimpleNamespace(compute_capability=capability)
        dispatcher.get_current_device = _in_this_thread(lambda: here, original)
        try:
            yield
        finally:
            dispatcher.get_current_device = original


@contextlib.contextmanager
def _as_nvvm_wants(*, fused: bool) -> Iterator[None]:
    """Hand NVVM each module once, and let it fuse products and sums or not: numba.cuda has no option for either.

    It hands over the module of a device function once for each way by which the kernel comes to call it. NVVM lets code be there
    several times, but no shared memory. `_for_capability` is around this.
    """
    original = nvvm.compile_ir

    def compile_ir(modules: Any, **options: Any) -> Any:
        once = modules if isinstance(modules, str) else [*dict.fromkeys(modules)]
        return original(once, **options) if fused else original(once, fma=False, **options)

    nvvm.compile_ir = _in_this_thread(compile_ir, original)
    try:
        yield
    finally:
        nvvm.compile_ir = original


def _nvrtc_errors() -> tuple[type[BaseException], ...]:
    """Return what NVRTC's refusals raise, which cuda.core has no public name for."""
    with contextlib.suppress(ImportError):
        from cuda.core._utils.cuda_utils import NVRTCError

        return (NVRTCError,)
    return ()


@contextlib.contextmanager
def _toolkit_of(kernel: str) -> Iterator[None]:
    """Say what brings the libraries of CUDA's toolkit that compile a kernel, where one is not found."""
    from cuda.pathfinder import DynamicLibNotFoundError

    try:
        yield
    except DynamicLibNotFoundError as error:
        library = _LIBRARY.search(str(error))
        raise DeviceError(
            f"kernel {kernel!r} is compiled for CUDA by {library[0] if library else 'its toolkit'}, which is not found here; "
            "`pip install 'numbridge[cuda13]'` (or cuda12) brings it, and needs no GPU for that"
        ) from error


@contextlib.contextmanager
def _without_driver() -> Iterator[None]:
    """Let NVRTC make code for the linker of CUDA C++: for PTX it asks the driver. `_for_capability` is around this."""
    original = nvrtc.compile

    def compile(*given: Any, **options: Any) -> Any:
        return original(*given, **{**options, "ltoir": True})

    nvrtc.compile = _in_this_thread(compile, original)
    try:
        yield
    finally:
        nvrtc.compile = original


def compile_ptx(
    text: str,
    filename: str,
    namespace: Mapping[str, Any],
    parameters: Sequence[ParameterType],
    capability: tuple[int, int],
    *,
    entry: str,
    origin: Callable[[int], str | None],
    dims: int,
    fastmath: bool = False,
    fused: bool = True,
) -> tuple[str, str, tuple[int, ...], tuple[str, ...], list[Any]]:
    """Compile the generated source of a variant to PTX.

    Parameters
    ----------
    text, filename : str
        The generated source, and the file in which it lies.
    namespace : mapping
        What the source refers to.
    parameters : sequence of ParameterType
        The types to compile for.
    capability : (int, int)
        The compute capability to compile for.
    entry : str
        The name of the kernel's body, which is looked through for float64 arithmetic.
    origin : callable
        Returns where a line of the generated source comes from, for messages, or None.
    dims : int
        How many dimensions (int64) follow the parameters.
    fastmath : bool
        Whether the compiler may reassociate floating-point arithmetic.
    fused : bool
        Whether it may make one operation of a product and a sum, which then is rounded once.

    Returns
    -------
    ptx : str
    symbol : str
        The kernel's name in it.
    places : tuple of int
        Which of `kernel_places` its parameters are: those that it reads.
    wide : tuple of str
        Source lines on which float64 arithmetic happens.
    linked : list of cuda.core.ObjectCode
        What it calls that is not in the source.

    Raises
    ------
    KernelError
        If numba.cuda cannot compile the source: what is wrong, where, and its own message.
    """
    names = with_own_records(namespace)
    names[CUDA_MODULE] = cuda
    names["_nb_device"] = cuda.jit(device=True, fastmath=fastmath)
    names["_nb_nonnegative"] = cuda_intrinsics.nonnegative
    names |= numba_element_memory.NAMES | numba_element_stores.NAMES | complex_division.NAMES | row_functions.NAMES
    numba_elements.declare()
    for operation in cuda_intrinsics.ATOMICS:
        names[f"_nb_{operation}"] = getattr(cuda_intrinsics, operation)
    names |= cuda_intrinsics.HINTED
    names["_nb_add"] = cuda_intrinsics.atomic_add
    names["_nb_differs"] = cuda_intrinsics.differs
    names["_nb_exchanged"] = cuda_intrinsics.exchanged
    names["_nb_field"] = field
    names["_nb_decided"] = cuda_intrinsics.decided
    names["_nb_row"] = cuda_intrinsics.row
    names["_nb_moved"] = cuda_intrinsics.moved
    names["_nb_has_pairs"] = cuda_intrinsics.has_pairs
    names["_nb_pair"] = cuda_intrinsics.pair
    names["_nb_put_pair"] = cuda_intrinsics.put_pair
    names |= numba_element_memory.component_atomics(cuda_intrinsics)
    names |= cuda_stack.STACK | _of_halves(text)
    exec(compile(text, filename, "exec"), names)
    signature = (*(numba_type(p) for p in parameters), *[types.int64] * dims)
    try:
        calls = linked_calls(cuda_target.target_context, lambda: _overloads(names, copies), in_process=False)
        capable = _for_capability(capability)
        declared = declared_calls(cuda_target.typing_context, _copied_on_cuda, everything=True)
        with (
            _toolkit_of(entry),
            as_on_the_cpu(),
            capable,
            _without_driver(),
            _as_nvvm_wants(fused=fused),
            declared as copies,
            calls,
        ):
            codes, _ = compile_all(
                names[GRID], signature, cc=capability, fastmath=fastmath, device=False, abi="numba", output="ptx"
            )
    except CCSupportError as error:
        raise KernelError(
            f"kernel {entry!r} does not compile for the compute capability {capability}: {error}"
        ) from error
    except _nvrtc_errors() as error:
        raise KernelError(f"kernel {entry!r} calls CUDA C++ that does not compile: {error}") from error
    # The others are for `row += 1` on a read-only row, what numba.cuda does not print, and its cache hints on 16-bit floats.
    except (NumbaError, CudaNumbaError, AttributeError, NotImplementedError, TypeError) as error:
        raise not_compiled(error, entry, parameters, filename, origin, " on CUDA") from None
    # Calls with more or fewer arguments than there is code for, or what is wrong in that code
    except (ValueError, LookupError, AssertionError) as error:
        raise not_compiled(error, entry, parameters, filename, origin, " on CUDA") from error
    compiled = _overloads(names, copies)
    check_components(compiled, entry, origin)
    check_integers(compiled, entry, origin)
    ptx, *others = codes
    head = _ENTRY.search(ptx)
    if head is None:
        raise KernelError(f"kernel {entry!r}: numba.cuda compiled it to PTX without an entry")
    # What stands in the steps stands in the whole body, too, as it was written.
    whole = {name: value for name, value in names.items() if name not in STEPS}
    places = kernel_places(parameters)
    ptx, left = _without_unread(ptx, head, len(places))
    wide = _wide_lines(_overloads(whole, copies), text, filename)
    return ptx, head[1], tuple(places[k] for k in left), wide, objects_of(others)


def _copied_on_cuda(function: Any) -> Any:
    """Return what numba.cuda makes of a function of `numba.njit` that a kernel calls, of which nothing is compiled yet."""
    options = {"debug": False, "opt": True, **function.targetoptions, "device": True}
    return dispatcher.CUDADispatcher(function.py_func, options)


def _of_halves(text: str) -> dict[str, Any]:
    """Return what a text calls of `cuda.fp16` and `cuda.bf16`, under the names that it has there."""
    called = set(re.findall(rf"\b(?:{'|'.join(HALVES)})\w+", text))
    if not called:
        return {}
    from numbridge.kernels.arithmetic import cuda_halves

    return {name: cuda_halves.function(name.removeprefix(CUDA_FUNCTION)) for name in called}


def _without_unread(ptx: str, head: re.Match[str], count: int) -> tuple[str, tuple[int, ...]]:
    """Take away those of a kernel's first `count` parameters that it does not read; return which of these are left.

    Of the seven that an array of one dimension comes as, most kernels read its data, and some its extent. The driver copies
    each one at each launch.
    """
    declared = head[2].split(",") if head[2].strip() else []
    named = {*re.findall(r"[\w$]+", ptx[head.end() :])}
    names = [found[1] for found in map(_PARAMETER.search, declared) if found is not None]
    assert len(names) == len(declared) >= count, head[0]
    left = tuple(k for k in range(count) if names[k] in named)
    kept = ",".join(declared[k] for k in (*left, *range(count, len(declared))))
    return f"{ptx[: head.start(2)]}{kept}{ptx[head.end(2) :]}", left


def link(ptx: str, capability: tuple[int, int], kernel: str, linked: Sequence[Any] = ()) -> bytes:
    """Return the cubin of a PTX text and of what is `linked` with it, by nvJitLink.

    Raises
    ------
    KernelError
        If the PTX uses more than the architecture has, or names something that does not exist.
    """
    from cuda.bindings.nvjitlink import nvJitLinkError
    from cuda.core import Linker, LinkerOptions, ObjectCode

    arch = f"sm_{capability[0]}{capability[1]}"
    objects = [ObjectCode.from_ptx(ptx.encode()), *linked]
    late = any(code.code_type == "ltoir" for code in linked)
    if is_cooperative(ptx):
        from cuda.pathfinder import find_static_lib

        objects.append(ObjectCode.from_library(find_static_lib("cudadevrt")))
    try:
        with _toolkit_of(kernel):
            options = LinkerOptions(arch=arch, link_time_optimization=late or None)
            code: bytes = Linker(*objects, options=options).link("cubin").code
    except DeviceError:
        raise
    except (nvJitLinkError, RuntimeError) as error:
        if _ALLOCATES in str(error):
            raise KernelError(f"kernel {kernel!r} does not compile on CUDA: {NO_MEMORY}") from error
        if _RESHAPES in str(error):
            raise KernelError(
                f"kernel {kernel!r} does not compile on CUDA, which has no code for .reshape(...); index the array by its own "
                "dimensions, as in a[k // n, k % n], or reshape it before the launch"
            ) from error
        too_large = _SHARED.search(str(error))
        if too_large:
            size, most = (int(number, 16) for number in too_large.groups())
            raise KernelError(
                f"kernel {kernel!r}: its arrays in shared memory take {size} bytes, and those of constant shape may take {most} "
                "on CUDA; use smaller ones. An adjoint or tangent has a second array for each that carries a gradient"
            ) from error
        raise KernelError(f"kernel {kernel!r} does not link for {arch}: {error}{_older_linker(str(error))}") from error
    return code


def _older_linker(message: str) -> str:
    """Return what to do where nvJitLink is older than the NVVM that wrote the PTX, or nothing."""
    found = _VERSIONS.search(message)
    if found is None:
        return ""
    major, minor = found[2].split(".")
    # PTX ISA, "Release History": PTX 9.0 came with CUDA 13.0, and 9.1 with 13.1
    wanted = (
        f"`pip install 'nvidia-nvvm=={int(major) + 4}.{minor}.*'`"
        if int(major) >= 9
        else "an NVVM of nvJitLink's release"
    )
    return (
        f". The installed NVVM writes PTX {found[1]}, and nvJitLink reads up to {found[2]}: they come from two releases of CUDA, "
        f"as happens when another package brings its own nvJitLink; {wanted} makes them one"
    )


def is_cooperative(ptx: str) -> bool:
    """Tell whether a kernel synchronises its whole grid, and so needs a cooperative launch."""
    return _COOPERATIVE in ptx


def compile_cubin(
    text: str,
    filename: str,
    namespace: Mapping[str, Any],
    parameters: Sequence[ParameterType],
    capability: tuple[int, int],
    *,
    entry: str,
    origin: Callable[[int], str | None],
    dims: int,
    fastmath: bool = False,
    fused: bool = True,
    together: int = 1,
) -> Compiled:
    """Compile the generated source of a variant to a cubin; parameters and errors as in `compile_ptx` and `link`.

    The cubin is the one object; its kernel stands in `names` as ``kernel``; the PTX, how many ids a thread takes at once,
    `together`, and which of `kernel_places` its parameters are, ``places``, among the facts.
    """
    ptx, symbol, places, wide, linked = compile_ptx(
        text,
        filename,
        namespace,
        parameters,
        capability,
        entry=entry,
        origin=origin,
        dims=dims,
        fastmath=fastmath,
        fused=fused,
    )
    facts = {
        "wide": wide,
        "ptx": ptx,
        "cooperative": is_cooperative(ptx),
        "together": together,
        "places": places,
    }
    return Compiled((link(ptx, capability, entry, linked),), {"kernel": symbol}, (), facts)


def _overloads(names: Mapping[str, Any], copies: Copies) -> list[Any]:
    """Return what numba.cuda compiled of the generated functions, and of those that they call."""
    values = (*names.values(), *copies.all)
    # What Numba has compiled of a function for the CPU says nothing here.
    called = [value for value in values if not is_dispatcher(value)]
    return [overload for value in called for overload in getattr(value, "overloads", {}).values()]


def _wide_lines(overloads: Sequence[Any], text: str, filename: str) -> tuple[str, ...]:
    """Return the source lines of the kernel and its device functions on which float64 arithmetic happens."""
    found: set[int] = set()
    for overload in overloads:
        annotation = getattr(overload, "type_annotation", None)
        for expression, signature in annotation.calltypes.items() if annotation is not None else ():
            is_here = expression.loc.filename == filename  # and not in that of a function of `numba.njit`
            if is_here and signature is not None and signature.return_type in (types.float64, types.complex128):
                found.add(expression.loc.line)
    lines = text.splitlines()
    return tuple(lines[number - 1].strip() for number in sorted(found) if 0 < number <= len(lines))
