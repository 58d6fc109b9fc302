"""What kernels call in place of some of NumPy's functions of arrays, on the CPU and on CUDA alike.

Numba's `np.max`, `np.min`, `np.nanmax`, `np.nanmin` and `np.count_nonzero` do not take arrays that a kernel only reads. Its
products of rows are BLAS's, for contiguous rows of one type, and not on CUDA; for others it wants memory for a copy.
Here such calls are loops. Importing this module imports Numba, so only code that is about to compile does.
"""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import types
from numba.core.errors import TypingError
from numba.extending import overload
from numba.np.numpy_support import as_dtype

__all__ = ["NAMES", "register"]

_OF_BLAS = (types.float32, types.float64, types.complex64, types.complex128)

_Implementation = TypeVar("_Implementation", bound=Callable[..., Any])


def _marker(name: str) -> Any:
    """Return a function that stands in text for another, and that messages call by its name."""

    def called(*given: Any) -> Any:
        raise NotImplementedError("for kernels only")

    called.__name__ = called.__qualname__ = name
    return called


_max, _min, _dot, _vdot, _matmul = map(_marker, ("max", "min", "dot", "vdot", "matmul"))
_nanmax, _nanmin, _count_nonzero = map(_marker, ("nanmax", "nanmin", "count_nonzero"))


def _extreme(name: str, better: Any, of_numpy: Any) -> Callable[[Any], Any]:
    message = f"zero-size array to reduction operation {name}, which has no identity"

    def implementation(a: Any) -> Any:
        if isinstance(a, types.Number | types.Boolean):
            return lambda a: of_numpy(a)  # noqa: PLW0108 - Numba compiles a function of Python's
        if not isinstance(a, types.Array) or not isinstance(a.dtype, types.Integer | types.Float | types.Boolean):
            return None
        start = as_dtype(a.dtype).type(_end(a.dtype, least=better is operator.gt))

        def of_row(a):  # type: ignore[no-untyped-def]
            if a.size == 0:
                raise ValueError(message)
            best = start
            for k in range(a.size):
                item = a[k]
                if better(item, best) or item != item:  # nothing is better than NaN, which stays
                    best = item
            return best

        def of_array(a):  # type: ignore[no-untyped-def]
            if a.size == 0:
                raise ValueError(message)
            best = start
            for view in np.nditer(a):
                item = view.item()  # type: ignore[attr-defined]
                if better(item, best) or item != item:
                    best = item
            return best

        return of_row if a.ndim == 1 else of_array

    return _without_annotations(implementation)


def _extreme_of_numbers(name: str, better: Any, of_all: Any) -> Callable[[Any], Any]:
    """Return the implementation of the greatest or the least of what is no NaN, which is NaN where there is nothing else."""
    message = f"zero-size array to reduction operation {name}, which has no identity"

    def implementation(a: Any) -> Any:
        if not isinstance(a, types.Array) or not isinstance(a.dtype, types.Float):
            return of_all(a)
        start = as_dtype(a.dtype).type(np.nan)

        def of_array(a):  # type: ignore[no-untyped-def]
            if a.size == 0:
                raise ValueError(message)
            best = start
            for view in np.nditer(a):
                item = view.item()  # type: ignore[attr-defined]
                if item == item and not better(best, item):
                    best = item
            return best

        return of_array

    return _without_annotations(implementation)


def _nonzero(a: Any) -> Any:
    if not isinstance(a, types.Array) or not isinstance(a.dtype, types.Number | types.Boolean):
        return None

    def of_array(a):  # type: ignore[no-untyped-def]
        count = 0
        for view in np.nditer(a):
            if view.item():  # type: ignore[attr-defined]
                count += 1
        return count

    return of_array


def _end(kind: Any, *, least: bool) -> Any:
    """Return the least or the greatest number of a type."""
    if isinstance(kind, types.Boolean):
        return not least
    if isinstance(kind, types.Integer):
        return kind.minval if least else kind.maxval
    return -np.inf if least else np.inf


def _product(of_numpy: Any, *, blas: bool) -> Callable[[Any, Any], Any]:
    def implementation(a: Any, b: Any) -> Any:
        both = isinstance(a, types.Array) and isinstance(b, types.Array)
        if both and max(a.ndim, b.ndim) > 1:
            raise TypingError("NRT required but not enabled: a product of matrices is an array")  # in Numba's words
        if not both or not _are_numbers(a.dtype, b.dtype) or (blas and _is_of_blas(a, b)):
            return lambda a, b: of_numpy(a, b)  # noqa: PLW0108 - Numba compiles a function of Python's
        conjugated = of_numpy is np.vdot and isinstance(a.dtype, types.Complex)
        first, second = (as_dtype(kind).type(0) for kind in (a.dtype, b.dtype))

        def of_rows(a, b):  # type: ignore[no-untyped-def]
            if a.size != b.size:
                raise ValueError("incompatible array sizes for np.dot(a, b) (vector * vector)")
            total = first * second
            for k in range(a.size):
                left = a[k]
                total += (left.conjugate() if conjugated else left) * b[k]
            return total

        return of_rows

    return _without_annotations(implementation)


def _without_annotations(function: _Implementation) -> _Implementation:
    """Return a function without those of its parameters, which Numba compares with what it makes."""
    function.__annotations__.clear()
    return function


def _are_numbers(*kinds: Any) -> bool:
    return all(isinstance(kind, types.Number) for kind in kinds)


def _is_of_blas(a: Any, b: Any) -> bool:
    """Tell whether Numba's own product of two rows needs no memory for copies, and has the library that it calls."""
    contiguous = a.layout in "CF" and b.layout in "CF"
    return a.dtype == b.dtype and a.dtype in _OF_BLAS and contiguous and importlib.util.find_spec("scipy") is not None


_PRODUCTS = ((_dot, np.dot), (_vdot, np.vdot), (_matmul, operator.matmul))
_greatest, _least = _extreme("maximum", operator.gt, np.max), _extreme("minimum", operator.lt, np.min)
overload(_max)(_greatest)
overload(_min)(_least)
overload(_nanmax)(_extreme_of_numbers("fmax", operator.gt, _greatest))
overload(_nanmin)(_extreme_of_numbers("fmin", operator.lt, _least))
overload(_count_nonzero)(_without_annotations(_nonzero))
for _function, _of_numpy in _PRODUCTS:
    overload(_function, target="cpu")(_product(_of_numpy, blas=True))


def register(overload_on_cuda: Any) -> None:
    """Enter the products of rows for CUDA, given numba.cuda's decorator, which compiling for the CPU does not import."""
    for function, of_numpy in _PRODUCTS:
        overload_on_cuda(function)(_product(of_numpy, blas=False))


NAMES: dict[str, Any] = {
    "_nb_max_of": _max,
    "_nb_min_of": _min,
    "_nb_nanmax_of": _nanmax,
    "_nb_nanmin_of": _nanmin,
    "_nb_count_nonzero_of": _count_nonzero,
    "_nb_dot_of": _dot,
    "_nb_vdot_of": _vdot,
    "_nb_matmul_of": _matmul,
}
"""What text calls them."""
