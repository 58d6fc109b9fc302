"""NumPy's functions of numbers on CUDA, as far as numba.cuda types them and has no code for them: ``np.exp``, ``np.sqrt``...

So is `math.gcd`.

Imported by the CUDA back end alone.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, types
from numba.cuda import ufuncs
from numba.cuda.extending import overload
from numba.cuda.np import ufunc_db

from numbridge.kernels.arithmetic.float_divisions import any_exponent, expm1, of_operation, spacing

__all__ = ["register"]

_libdevice = cuda.libdevice
# NumPy function → libdevice's for float32 and for float64 (NVIDIA, "Libdevice User's Guide")
_OF_LIBDEVICE: dict[np.ufunc, tuple[Any, Any]] = {
    np.exp: (_libdevice.expf, _libdevice.exp),
    np.exp2: (_libdevice.exp2f, _libdevice.exp2),
    np.expm1: (_libdevice.expm1f, _libdevice.expm1),
    np.log1p: (_libdevice.log1pf, _libdevice.log1p),
    np.sqrt: (_libdevice.sqrtf, _libdevice.sqrt),
    np.cbrt: (_libdevice.cbrtf, _libdevice.cbrt),
    np.floor: (_libdevice.floorf, _libdevice.floor),
    np.ceil: (_libdevice.ceilf, _libdevice.ceil),
    np.trunc: (_libdevice.truncf, _libdevice.trunc),
    np.rint: (_libdevice.rintf, _libdevice.rint),
    np.fabs: (_libdevice.fabsf, _libdevice.fabs),
    np.copysign: (_libdevice.copysignf, _libdevice.copysign),
    np.nextafter: (_libdevice.nextafterf, _libdevice.nextafter),
}
_ROUND = {32: "__nv_rintf", 64: "__nv_rint"}
# Loops whose code calls Numba's helpers in C, which CUDA has not: the compiler then says that there is no such operation.
_OF_THE_CPU = {np.expm1: "FD", np.log1p: "FD", np.power: "FD", np.float_power: "FD", np.spacing: "fd", np.rint: "FD"}
_OF_THE_CPU |= {np.ldexp: "fd"}


def register() -> None:
    """Add what is missing to numba.cuda's table of NumPy functions.

    What does not end in a function of the C library is as numba.cuda's copy of Numba's CPU code has it; that copy is complete,
    and numba.cuda's CUDA table takes a part of it.
    """
    table = ufuncs.ufunc_db()
    for ufunc in ufunc_db.get_ufuncs():
        if ufunc not in table:
            table[ufunc] = _loops(ufunc)
    overload(math.gcd)(_common_divisor)
    # The code of np.round calls an intrinsic of LLVM's by its name, which NVVM does not have.
    rounding: Any = importlib.import_module("numba.cuda.np.arraymath")
    rounding._np_round_intrinsic = lambda kind: _ROUND[kind.bitwidth]


def _loops(ufunc: np.ufunc) -> dict[str, Any]:
    missing = _OF_THE_CPU.get(ufunc, "")
    loops = {loop: made for loop, made in ufunc_db.get_ufunc_info(ufunc).items() if loop[0] not in missing}
    for kind, function in zip("fd", _OF_LIBDEVICE.get(ufunc, ()), strict=False):
        loops[f"{kind * ufunc.nin}->{kind}"] = _calls(function, ufunc.nin)
    return loops | _own_loops(ufunc)


def _own_loops(ufunc: np.ufunc) -> dict[str, Any]:
    """Return the loops of a function that are not a call of one of libdevice's."""
    if ufunc in (np.power, np.float_power):
        return dict.fromkeys(("FF->F", "DD->D"), of_operation(operator.pow))
    if ufunc is np.spacing:
        return dict.fromkeys(("f->f", "d->d"), spacing)
    if ufunc is np.ldexp:
        scaled = any_exponent(_generates(_scaled))
        return {f"{kind}{whole}->{kind}": scaled for kind in "fd" for whole in "ilq"}
    of_complex = {np.log1p: _generates(_log1p), np.expm1: expm1, np.rint: _generates(_rounded)}
    return dict.fromkeys(("F->F", "D->D"), of_complex[ufunc]) if ufunc in of_complex else {}


def _generates(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an implementation, as Numba's tables hold them, that is a function in Python."""
    return lambda context, builder, signature, arguments: context.compile_internal(
        builder, function, signature, arguments
    )


def _scaled(x: Any, exponent: Any) -> Any:
    shortened: Any = np.int32(exponent)
    return math.ldexp(x, shortened)


def _log1p(z: Any) -> Any:
    real = np.float32(1) + z.real
    return complex(math.log(math.hypot(real, z.imag)), math.atan2(z.imag, real))


def _rounded(z: Any) -> Any:
    return complex(np.rint(z.real), np.rint(z.imag))


def _common_divisor(a: Any, b: Any) -> Any:
    def divisor(a: Any, b: Any) -> Any:
        return np.gcd(a, b)

    return divisor if isinstance(a, types.Integer) and isinstance(b, types.Integer) else None


def _calls(function: Any, count: int) -> Callable[..., Any]:
    """Return an implementation, as Numba's tables hold them, that calls a function of libdevice."""

    def unary(x: Any) -> Any:
        return function(x)

    def binary(x: Any, y: Any) -> Any:
        return function(x, y)

    return _generates(unary if count == 1 else binary)
