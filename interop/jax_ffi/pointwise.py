"""Whether a kernel is pointwise: each thread reads and writes its own element of arrays that have the shape of the launch.

Such a kernel is the same few operations on every element, and therefore a list of operations on whole arrays, which XLA can fuse
with what is around them. This module says what such a list is, finds that of a call, and tells whether the call's shapes fit it;
`flattening` makes it, and `fused` turns it into operations of XLA. Pure values; imports neither JAX nor, at first, Numba: a list
is kept on disk, beside compiled code.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.identity import Key, is_current, root_of
from numbridge.jax_ffi.plan import Call
from numbridge.jax_ffi.signature import is_symbolic
from numbridge.kernels.adjoint.derive import Derivative
from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.object_cache import (
    Compiled,
    compiled_or_stored,
    digest,
    generator_fingerprint,
    machine_fingerprint,
)
from numbridge.kernels.parameter_types import ArrayType, ParameterType

if TYPE_CHECKING:
    from numbridge.kernels.adjoint.ir import Program

__all__ = ["Pointwise", "Step", "check_pointwise", "is_denormal", "is_exact", "pointwise_of", "shape_of"]

# What a parameter is to a thread: an array that is only read, a number, or an array that is written, whose element is at first
# that of an operand (kept), zero, or nothing that may be looked at (unset).
READ, SCALAR, KEPT, ZERO, UNSET = "read", "scalar", "kept", "zero", "unset"
Roles = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Step:
    """One operation on all elements.

    Attributes
    ----------
    operation : str
        What is computed; see `fused`.
    operands : tuple of int
        The steps whose results it takes.
    dtype : str
        Of the result.
    facts : tuple
        What else decides it, such as the value of a constant.
    """

    operation: str
    operands: tuple[int, ...]
    dtype: str
    facts: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Pointwise:
    """A pointwise kernel.

    Attributes
    ----------
    steps : tuple of Step
        What it does, in order.
    results : dict
        For each written parameter, the step that computes it.
    extents : frozenset
        ``(parameter, axis, index)``: the axis must have the extent of that launch dimension.
    constant : frozenset
        ``(parameter, axis, place)``: the axis must have an element at that place.
    ranks : dict
        For each written parameter, how many dimensions the launch must have.
    exact : bool
        Whether XLA on the CPU surely computes what the compiled kernel computes, to the last bit, from numbers that are no
        constants of the program, or not denormal.
    """

    steps: tuple[Step, ...]
    results: dict[str, int]
    extents: frozenset[tuple[str, int, int]]
    constant: frozenset[tuple[str, int, int]]
    ranks: dict[str, int]
    exact: bool

    @property
    def operations(self) -> int:
        """How many operations there are for each element."""
        return sum(bool(step.operands) for step in self.steps)

    def why_not(self, call: Call) -> str:
        """Return why a call of the kernel does not run as this list, or nothing."""
        for name, rank in self.ranks.items():
            if rank != len(call.dims):
                return f"argument {name!r} has {rank} dimension(s), and the launch has {len(call.dims)}"
        for name, axis, index in sorted(self.extents):
            extent = shape_of(call, name)[axis]
            if extent != call.dims[index]:
                return f"axis {axis} of argument {name!r} has {extent} element(s), and the launch {call.dims[index]}"
        for name, axis, place in sorted(self.constant):
            extent = shape_of(call, name)[axis]
            if not -extent <= place < extent:
                return f"axis {axis} of argument {name!r} has {extent} element(s), and element {place} is read"
        return ""


def shape_of(call: Call, name: str) -> tuple[Any, ...]:
    """Return the shape of an array parameter, without batch axes."""
    slot = next(s for s, kind in zip(call.slots, call.types, strict=True) if kind.name == name)
    return call.results[slot.index][0] if slot.kind == nb.RESULT else call.shapes[slot.index]


def is_denormal(value: np.floating[Any]) -> bool:
    """Tell whether a number is so small that the CPU takes it for zero while XLA runs, and compilers do not."""
    return bool(0 < abs(value) < np.finfo(value.dtype).tiny)


def is_exact(found: Pointwise, call: Call) -> bool:
    """Tell whether XLA surely computes the same for the constants of a call, too."""
    constants = (
        np.frombuffer(slot.value, kind.scalar.numpy, 1)[0]
        for slot, kind in zip(call.slots, call.types, strict=True)
        if slot.kind == nb.STATIC and kind.scalar.is_float
    )
    return found.exact and not any(map(is_denormal, constants))


def pointwise_of(call: Call) -> Pointwise | None:
    """Return the list of operations that a call is; None if it is none, or not with its shapes."""
    if _has_symbols(call):
        return None
    found = _found(call.kernel, call.key, call.types, call.weak, _roles(call))
    return found if found is not None and not found.why_not(call) else None


def check_pointwise(call: Call) -> None:
    """Refuse a call that is not pointwise.

    Raises
    ------
    KernelUnsupportedError
        If it is none; the message shows where in the kernel's source, or which argument, and what to do.
    """
    what = f"{call.signature.what} under JAX cannot be fused with XLA's operations (fuse=True)"
    hint = "leave out fuse=True to run the compiled kernel"
    if _has_symbols(call):
        raise KernelUnsupportedError(f"{what}, because its shapes are symbolic dimensions; {hint}")
    try:
        with _reading:
            found = _flat(call.kernel, call.types, call.weak, _roles(call))
    except KernelUnsupportedError as error:
        raise KernelUnsupportedError(f"{what}; {hint}: {error}") from None
    reason = found.why_not(call)
    if reason:
        raise KernelUnsupportedError(f"{what}: {reason}; make them equal, or {hint}")


def _has_symbols(call: Call) -> bool:
    shapes = (call.dims, call.batch, *(shape or () for shape in call.shapes), *(shape for shape, _ in call.results))
    return any(is_symbolic(extent) for shape in shapes for extent in shape)


def _roles(call: Call) -> Roles:
    """Return what each parameter is to a thread."""
    found = []
    for slot, kind in zip(call.slots, call.types, strict=True):
        if slot.kind == nb.RESULT:
            role = KEPT if slot.alias >= 0 else ZERO if slot.fill else UNSET
        else:
            role = READ if isinstance(kind, ArrayType) else SCALAR
        found.append((kind.name, role))
    return tuple(found)


_CALLS = 1024
_reading = threading.RLock()


@functools.lru_cache(maxsize=_CALLS)
def _found(
    kernel: Kernel, key: Key, parameters: tuple[ParameterType, ...], weak: str, roles: Roles
) -> Pointwise | None:
    """Return a kernel's list of operations: from disk, or read from its source; None if it is not pointwise."""
    if not is_current(kernel, parameters, weak, key):
        # A program that was traced before a global changed runs what it was traced with, which only the handler still has.
        return None
    name = digest("pointwise", machine_fingerprint(), generator_fingerprint(), _reader(), repr((key, weak, roles)))

    def read() -> Compiled:
        try:
            found = _flat(kernel, parameters, weak, roles)
        except KernelUnsupportedError:
            found = None
        return Compiled((), {}, (), {"pointwise": found})

    # The front end of adjoints asks Numba for types, which is not made for several threads.
    with _reading:
        made: Pointwise | None = compiled_or_stored(name, read)[0].facts["pointwise"]
    return made


def _flat(kernel: Kernel, parameters: tuple[ParameterType, ...], weak: str, roles: Roles) -> Pointwise:
    """Read a kernel's source; raises if it is not pointwise."""
    from numbridge.jax_ffi.flattening import flattened

    program, fastmath = _program(kernel, parameters, weak), bool(root_of(kernel).options.get("fastmath"))
    return flattened(program, dict(roles), fastmath=fastmath)


def _program(kernel: Kernel, parameters: tuple[ParameterType, ...], weak: str) -> Program:
    from numbridge.jax_ffi.flattening import check_prints
    from numbridge.kernels.adjoint.build import build
    from numbridge.kernels.language.rewriting import rewrite

    if isinstance(kernel, Derivative):
        if kernel.mode == "adjoint":
            raise KernelUnsupportedError(f"the {kernel.name} runs as compiled code")
        program, rewritten = kernel.program(parameters[: len(kernel.base.parameters)], weak)
    else:
        rewritten = rewrite(kernel.source, weak, gradients=True)
        if rewritten.program.reads_njit:
            raise KernelUnsupportedError(f"{kernel.name} calls functions that run as compiled code")
        program = build(rewritten, parameters)
    if program.in_blocks:
        raise KernelUnsupportedError(f"the threads of {kernel.name} work together")
    check_prints(rewritten)
    return program


@functools.cache
def _reader() -> str:
    """Return what a list depends on besides the program: the source of what makes it."""
    folder = Path(__file__).parent
    return digest(*((folder / name).read_bytes() for name in ("pointwise.py", "flattening.py")))
