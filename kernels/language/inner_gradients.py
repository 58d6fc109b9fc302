"""Gradients of functions within kernels: what ``nb.grad(f)`` is before a kernel that calls it is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from numbridge.kernels.errors import NumbridgeError, NumbridgeTypeError
from numbridge.kernels.language.dependencies import of_library
from numbridge.kernels.language.static_names import is_cuda_dispatcher, is_dispatcher

__all__ = ["Gradient", "Passed", "grad"]


@dataclass(frozen=True)
class Passed:
    """A function that a device function is given, by the name of the parameter."""

    name: str


@dataclass(frozen=True, repr=False)
class Gradient:
    """The gradient of a function, to be called within kernels; made by `grad`.

    Attributes
    ----------
    function : object
        What it is the gradient of: a device function, a function of a library, a gradient, or a `Passed` function.
    """

    function: Any

    @property
    def innermost(self) -> Any:
        """The function that is no gradient."""
        inner = self.function
        return inner.innermost if isinstance(inner, Gradient) else inner

    @property
    def order(self) -> int:
        """How many times that function is differentiated."""
        return 1 + (self.function.order if isinstance(self.function, Gradient) else 0)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Refuse: a gradient is made of a kernel's source."""
        _refuse(self)

    def __repr__(self) -> str:
        """Return the gradient as it is written."""
        inner = repr(self.function) if isinstance(self.function, Gradient) else _name(self.function)
        return f"nb.grad({inner})"


def grad(function: Any) -> Gradient:
    """Return the gradient of a function, to be called within kernels and device functions.

    ``nb.grad(f)(x)`` is the derivative of ``f(x)`` by `x`; that of a function of several arguments, ``nb.grad(f)(x, y)``, is a
    tuple with a derivative for each. It is made of the source of `f` when the kernel is compiled, costs a small multiple of
    what `f` costs, and is an ordinary part of the kernel: tapes, operators and JAX differentiate it again, exactly.

    Parameters
    ----------
    function : callable
        A function decorated with `nb.func`, ``cuda.jit(device=True)`` or ``numba.njit``, one of `math`, NumPy or numbridge, or a
        gradient; in a device function also a parameter that such a function is passed for. It takes numbers, vectors, matrices
        and arrays, and returns one real number. It may have branches, loops, local arrays and derivatives by hand
        (`nb.func_grad`), and reads what arrays it likes.

    Returns
    -------
    Gradient
        It is called as the function is. The derivative by a vector or a matrix is one of the same type. By an integer or an array
        there is none: its place in the tuple must not be used.

    Raises
    ------
    NumbridgeTypeError
        If `function` is a kernel, or nothing whose source or derivative is known.

    Notes
    -----
    A kernel that calls a gradient is refused where it is compiled if the function writes to memory that is not its own, waits for
    other threads, or has no derivative; the message shows where.

    Examples
    --------
    >>> import numbridge as nb
    >>> @nb.func
    ... def energy(r):
    ...     return 1.0 / r**12 - 1.0 / r**6
    >>> @nb.kernel
    ... def force(r, f):
    ...     i = nb.tid()
    ...     f[i] = -nb.grad(energy)(r[i])
    """
    role = getattr(function, "role", None)
    if role == "kernel":
        raise NumbridgeTypeError(
            f"nb.grad: {_name(function)} is a kernel, and gradients within kernels are those of device functions; for that of a "
            "kernel record its launch on an nb.Tape, or use nb.torch_op or nb.jax_kernel"
        )
    known = (
        role == "func"
        or isinstance(function, Gradient | Passed)
        or is_cuda_dispatcher(function)
        or is_dispatcher(function)
    )
    if not known and (isinstance(function, type) or not callable(function) or not _is_named(function)):
        raise NumbridgeTypeError(
            f"nb.grad: wanted a function decorated with @nb.func, or one of math, NumPy or numbridge, got {function!r}"
        )
    return Gradient(function)


def _is_named(function: Any) -> bool:
    """Tell whether a function is a library's, NumPy's universal functions among them."""
    return of_library(function) or type(function).__name__ == "ufunc"


def _name(function: Any) -> str:
    """Return what a function is called."""
    return function.name if isinstance(function, Passed) else str(getattr(function, "__name__", repr(function)))


def _refuse(gradient: Gradient) -> NoReturn:
    raise NumbridgeError(
        f"{gradient!r} belongs in a kernel: call it from a function decorated with @nb.kernel or @nb.func"
    )
