"""The operations that exist only inside a kernel, and how each is told by object rather than by spelling.

`tid` and the atomics are markers: a kernel's source names them, the code generator replaces them. The operations of
numba.cuda are recognised by identity, and only when something else has already imported numba.cuda. Nothing here
parses or generates code. The mathematical functions are the `math` module's own objects, under one roof.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import acos, asin, atan, atan2, cos, cosh, exp, log, log2, log10, pow, sin, sinh, sqrt, tan, tanh
from types import ModuleType
from typing import Any, Literal, NoReturn

from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.language.vector_types import VECTOR_TYPES

__all__ = [
    "Intrinsic",
    "acos",
    "asin",
    "atan",
    "atan2",
    "atomic_add",
    "atomic_cas",
    "atomic_exch",
    "atomic_max",
    "atomic_min",
    "atomic_sub",
    "axis_of",
    "cos",
    "cosh",
    "exp",
    "intrinsic_of",
    "log",
    "log2",
    "log10",
    "pow",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tid",
]

Kind = Literal["tid", "grid", "gridsize", "dim3", "axis", "atomic", "local_array", "function", "block", "cuda"]


@dataclass(frozen=True)
class Intrinsic:
    """What a kernel operation is.

    Attributes
    ----------
    kind : str
        ``tid``, ``grid``, ``gridsize``; ``dim3`` (`cuda.threadIdx` and its siblings) and ``axis`` (one coordinate of
        one); ``atomic``; ``local_array``; ``function`` for one of numbers, which the CPU has too; ``block`` for what
        needs a block of threads, ``cuda`` for everything else that only CUDA has.
    name : str
        How messages call it, such as ``cuda.atomic.add``.
    operation : str
        For an atomic, the operation: ``add``, ``sub``, ``min``, ``max``, ``exch``, ``cas``, ``compare_and_swap`` or
        one that only CUDA has. For a function, its name; for what needs a block, that without ``cuda.``, and ``cg`` for all of
        cooperative groups. For a dim3 or an axis: ``threadIdx``, ``blockIdx``,
        ``blockDim`` or ``gridDim``.
    axis : int
        For an axis: 0, 1 or 2.
    """

    kind: Kind
    name: str
    operation: str = ""
    axis: int = 0

    @property
    def of_halves(self) -> bool:
        """Whether this is a function of `cuda.fp16` or `cuda.bf16` that both targets have."""
        return self.operation.startswith(("fp16_", "bf16_"))

    @property
    def from_cuda(self) -> bool:
        """Whether this is an operation of numba.cuda rather than of numbridge."""
        return self.name.startswith("cuda.")


def tid() -> Any:
    """Return the index of this thread in the launch: ``i = tid()``, or ``i, j = tid()`` up to four.

    The launch's `dim` decides how far each index runs. Only for kernels and the device functions that they call.
    """
    _refuse("tid")


def atomic_add(array: Any, *index_and_value: Any) -> Any:
    """Add to an element atomically and return what it held: ``atomic_add(array, i, j, value)``."""
    _refuse("atomic_add")


def atomic_sub(array: Any, *index_and_value: Any) -> Any:
    """Subtract from an element atomically and return what it held: ``atomic_sub(array, i, value)``."""
    _refuse("atomic_sub")


def atomic_min(array: Any, *index_and_value: Any) -> Any:
    """Lower an element to a value atomically and return what it held: ``atomic_min(array, i, value)``."""
    _refuse("atomic_min")


def atomic_max(array: Any, *index_and_value: Any) -> Any:
    """Raise an element to a value atomically and return what it held: ``atomic_max(array, i, value)``."""
    _refuse("atomic_max")


def atomic_exch(array: Any, *index_and_value: Any) -> Any:
    """Exchange an element atomically and return what it held: ``atomic_exch(array, i, value)``."""
    _refuse("atomic_exch")


def atomic_cas(array: Any, *index_compare_value: Any) -> Any:
    """Store a value if the element equals `compare`; return what it held: ``atomic_cas(array, i, compare, value)``."""
    _refuse("atomic_cas")


def _refuse(name: str) -> NoReturn:
    raise NumbridgeError(f"{name}() belongs in a kernel: call it from a function decorated with @nb.kernel or @nb.func")


_ATOMICS: dict[str, Callable[..., Any]] = {
    "add": atomic_add,
    "sub": atomic_sub,
    "min": atomic_min,
    "max": atomic_max,
    "exch": atomic_exch,
    "cas": atomic_cas,
}
_OWN: dict[int, Intrinsic] = {
    id(tid): Intrinsic("tid", "nb.tid"),
    **{id(function): Intrinsic("atomic", f"nb.atomic_{name}", name) for name, function in _ATOMICS.items()},
}

_DIM3 = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_FUNCTIONS: tuple[str, ...] = ("popc", "clz", "ffs", "brev", "fma", "cbrt", "selp")
_FUNCTIONS += ("threadfence", "threadfence_block", "threadfence_system")
# Those of `cuda.fp16` and `cuda.bf16` that compute with numbers, as they are called without underscores
_HALVES = frozenset(
    (
        *("hadd", "hsub", "hmul", "hdiv", "hfma", "hneg", "habs", "hadd_rn", "hsub_rn", "hmul_rn"),
        *("hadd_sat", "hsub_sat", "hmul_sat", "hfma_sat", "hfma_relu", "hmax", "hmin", "hmax_nan", "hmin_nan"),
        *("heq", "hne", "hge", "hgt", "hle", "hlt", "hequ", "hneu", "hgeu", "hgtu", "hleu", "hltu", "hisinf", "hisnan"),
        *("htrunc", "hceil", "hfloor", "hrint", "hsqrt", "hrsqrt", "hrcp", "hlog", "hlog2", "hlog10", "hcos", "hsin"),
        *("hexp", "hexp2", "hexp10", "htanh", "htanh_approx"),
        *("half2float", "float2half", "double2half", "float2half_rn"),
        *("bfloat162float", "float2bfloat16", "double2bfloat16", "float2bfloat16_rn"),
    )
)
_NEEDS_BLOCK = (
    "syncthreads",
    "syncthreads_and",
    "syncthreads_count",
    "syncthreads_or",
    "syncwarp",
    "shfl_sync",
    "shfl_up_sync",
    "shfl_down_sync",
    "shfl_xor_sync",
    "all_sync",
    "any_sync",
    "eq_sync",
    "ballot_sync",
    "match_all_sync",
    "match_any_sync",
    "activemask",
    "lanemask_lt",
    "laneid",
    "warpsize",
    "shared",
)


def intrinsic_of(value: Any) -> Intrinsic | None:
    """Return what a value is as a kernel operation, or None for an ordinary object."""
    own = _OWN.get(id(value))
    if own is not None:
        return own
    if isinstance(value, Intrinsic):
        return value
    cuda = sys.modules.get("numba.cuda")
    if cuda is None:
        return None
    return _cuda_intrinsics(cuda).get(id(value)) or _other_cuda(value)


def axis_of(value: Any, attribute: str) -> Intrinsic | None:
    """Return the axis that an attribute of `cuda.threadIdx` or a sibling names, or None."""
    dim3 = intrinsic_of(value)
    if dim3 is None or dim3.kind != "dim3" or attribute not in ("x", "y", "z"):
        return None
    return replace(dim3, kind="axis", name=f"{dim3.name}.{attribute}", axis="xyz".index(attribute))


@functools.cache
def _cuda_intrinsics(cuda: ModuleType) -> dict[int, Intrinsic]:
    # Keyed by identity: the objects live as long as the module, which the cache keeps.
    found = {
        id(cuda.grid): Intrinsic("grid", "cuda.grid"),
        id(cuda.gridsize): Intrinsic("gridsize", "cuda.gridsize"),
        id(cuda.local.array): Intrinsic("local_array", "cuda.local.array"),
        id(cuda.shared.array): Intrinsic("block", "cuda.shared.array", "shared.array"),
    }
    for name in _DIM3:
        found[id(getattr(cuda, name))] = Intrinsic("dim3", f"cuda.{name}", name)
    for name, operation in vars(cuda.atomic).items():
        if isinstance(operation, type):
            found[id(operation)] = Intrinsic("atomic", f"cuda.atomic.{name}", name)
    for name in _FUNCTIONS:
        found[id(getattr(cuda, name))] = Intrinsic("function", f"cuda.{name}", name)
    for name in _NEEDS_BLOCK:
        if hasattr(cuda, name):
            found[id(getattr(cuda, name))] = Intrinsic("block", f"cuda.{name}", name)
    return found


def _other_cuda(value: Any) -> Intrinsic | None:
    """Recognise the rest of numba.cuda by the module that defines it."""
    home = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if home == "numba.cuda.compiler" and type(value).__name__ == "ExternFunction":
        return Intrinsic("cuda", f"cuda.declare_device({value.name!r})")
    if isinstance(value, ModuleType) or not isinstance(home, str) or not isinstance(name, str):
        return None
    if home == "numba.cuda.random" and hasattr(value, "py_func"):
        return None  # made with @numba.jit, for every target
    if home == "numba.cuda.cg":
        return Intrinsic("block", f"cuda.cg.{name}", "cg")
    if home == "numba.cuda.libdevice":
        return Intrinsic("function", f"cuda.libdevice.{name}", f"libdevice_{name}")
    if home in ("numba.cuda._internal.cuda_fp16", "numba.cuda._internal.cuda_bf16"):
        return _of_half(home[-4:], name)
    if home == "numba.cuda.stubs" and name in VECTOR_TYPES:
        return Intrinsic("function", f"cuda.{name}", name)
    return Intrinsic("cuda", f"cuda.{name}") if home.split(".")[:2] == ["numba", "cuda"] else None


def _of_half(module: str, name: str) -> Intrinsic:
    """Recognise an operation on numbers of 16 bits, which has one name in C++ and often another one without underscores."""
    plain = name.lstrip("_")
    known = getattr(sys.modules.get(f"numba.cuda.{module}"), plain, None) is not None
    called = f"cuda.{module}.{plain if known else name}"
    return Intrinsic("function", called, f"{module}_{plain}") if plain in _HALVES else Intrinsic("cuda", called)
