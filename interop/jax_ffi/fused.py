"""Pointwise calls as operations of XLA, which it fuses with what is around them: calling the handler may cost more than its work.

XLA rewrites arithmetic on floating-point numbers: ``x / 3`` becomes a product, ``(x / y) / z`` becomes ``x / (y * z)``, and
``x + 0.0`` is dropped. Barriers around each such operation prevent that, and are gone before operations are fused. What remains
is that XLA's compiler for CPUs makes one operation of a product and a sum; lists in which that can happen are not `exact`. All
that XLA executes on a CPU takes denormal numbers for zero, handlers included.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.plan import Call
from numbridge.jax_ffi.pointwise import Pointwise, Step, is_exact, pointwise_of, shape_of
from numbridge.jax_ffi.widths import all_kept

__all__ = ["MOST_OPERATIONS", "fused"]

# XLA runs a program for the CPU on the calling thread if it has fewer operations than this, one for each element; custom calls do
# not count. More go to another thread, which takes some 20 us, as long as 100 calls of the handler: what is fused without being
# asked for is no reason for that. Measured with jaxlib 0.10.2, where one call of the handler costs 0.1 us more than XLA's own.
MOST_OPERATIONS = 1000
_CALLS = 1024
_FLOATS = ("float32", "float64")


@functools.lru_cache(maxsize=_CALLS)
def fused(call: Call, *, on_cpu: bool) -> Callable[..., list[Any]] | None:
    """Return a function of a call's operands that computes its results with operations of XLA; None if the handler is to run.

    Parameters
    ----------
    call : Call
        The call.
    on_cpu : bool
        Whether this is for the CPU, where small calls are fused that surely give the same results; elsewhere only those are of
        which the user says so.
    """
    chosen = call.options.fuse
    if chosen is False or call.options.has_side_effect or not (on_cpu or chosen):
        return None
    found = pointwise_of(call) if chosen or _is_small(call, 1) else None
    if found is None or not (chosen or (is_exact(found, call) and _is_small(call, found.operations))):
        return None
    return _jitted(call, found, barriers=on_cpu)


def _is_small(call: Call, operations: int) -> bool:
    """Tell whether a call is few operations, given how many it has for each element; symbols are no numbers."""
    extents = (*call.batch, *call.dims)
    return all(isinstance(extent, int) for extent in extents) and math.prod(extents) * operations < MOST_OPERATIONS


def _jitted(call: Call, found: Pointwise, *, barriers: bool) -> Callable[..., list[Any]]:
    import jax

    def numbridge_fused(*operands: Any) -> list[Any]:
        with all_kept():
            return _Evaluation(call, operands, barriers=barriers).results(found)

    made: Callable[..., list[Any]] = jax.jit(numbridge_fused)
    return made


class _Evaluation:
    """Adds the operations of one call to the program that is being traced."""

    def __init__(self, call: Call, operands: Sequence[Any], *, barriers: bool) -> None:
        self._call, self._operands, self._barriers = call, operands, barriers
        self._slots = {kind.name: slot for kind, slot in zip(call.types, call.slots, strict=True)}
        self._levels = len(call.batch)
        self._shape = (*call.batch, *call.dims)

    def results(self, found: Pointwise) -> list[Any]:
        """Return the call's results."""
        values: list[Any] = []
        for step in found.steps:
            made = self._value(step, [values[k] for k in step.operands])
            values.append(self._kept_apart(made) if step.dtype in _FLOATS and step.operation != "select" else made)
        made = {self._slots[name].index: values[number] for name, number in found.results.items()}
        return [made[k] for k in range(len(made))]

    def _kept_apart(self, value: Any) -> Any:
        """Return a value that XLA does not look through when it rewrites arithmetic."""
        import jax

        return jax.lax.optimization_barrier(value) if self._barriers else value

    def _value(self, step: Step, operands: Sequence[Any]) -> Any:
        import jax

        match step.operation:
            case "constant":
                return self._full(np.asarray(step.facts[0], step.dtype), ())
            case "extent":
                return self._full(np.int64(shape_of(self._call, step.facts[0])[step.facts[1]]), ())
            case "index":
                return jax.lax.broadcasted_iota(step.dtype, self._shape, self._levels + step.facts[0])
            case "scalar":
                return self._scalar(step.facts[0], np.dtype(step.dtype))
            case "load":
                return self._load(step.facts[0], step.facts[1])
            case "convert":
                return jax.lax.convert_element_type(operands[0], step.dtype)
        return _functions()[step.operation](*operands)

    def _full(self, value: Any, axes: Sequence[int]) -> Any:
        """Return a value as an array of all threads; its axes are those of the batch that it has, then some of the launch's."""
        import jax

        levels = value.ndim - len(axes)
        return jax.lax.broadcast_in_dim(
            jax.numpy.asarray(value), self._shape, (*range(levels), *(self._levels + axis for axis in axes))
        )

    def _scalar(self, name: str, dtype: np.dtype[Any]) -> Any:
        slot = self._slots[name]
        if slot.kind == nb.STATIC:
            return self._full(np.frombuffer(slot.value, dtype, 1)[0], ())
        if slot.kind == nb.PACKED:
            return self._full(_unpacked(self._operands[0], slot.index, dtype), ())
        return self._full(self._operands[slot.index], ())

    def _load(self, name: str, places: Sequence[tuple[str, int]]) -> Any:
        import jax

        slot = self._slots[name]
        value = self._operands[slot.alias if slot.kind == nb.RESULT else slot.index]
        levels = value.ndim - len(places)
        for axis, (kind, place) in reversed(list(enumerate(places))):
            if kind == "constant":
                value = jax.lax.index_in_dim(value, place, levels + axis, keepdims=False)
        return self._full(value, [place for kind, place in places if kind == "index"])


def _unpacked(words: Any, number: int, dtype: np.dtype[Any]) -> Any:
    """Return one of the numbers that an eager call passes in one operand of 32-bit words."""
    import jax

    start = number * nb.SCALAR_ROOM // 4
    if dtype.itemsize >= 4:
        count = dtype.itemsize // 4
        found = jax.lax.slice(words, (start,), (start + count,))
        return jax.lax.bitcast_convert_type(found.reshape(()) if count == 1 else found, dtype)
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    found = jax.lax.bitcast_convert_type(words[start], unsigned)[0]
    return found != 0 if dtype == np.bool_ else jax.lax.bitcast_convert_type(found, dtype)


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Return what computes each operation."""
    from jax import lax
    from jax import numpy as jnp

    same = (
        *(
            "add",
            "sub",
            "mul",
            "div",
            "neg",
            "abs",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "select",
            "sqrt",
            "floor",
            "ceil",
        ),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("exp", "exp2", "expm1", "log", "log1p", "cbrt", "erf", "erfc", "pow"),
    )
    return {
        **{name: getattr(lax, name) for name in same},
        **{name: getattr(lax, f"bitwise_{name}") for name in ("and", "or", "xor", "not")},
        "hypot": jnp.hypot,
        "rint": functools.partial(lax.round, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN),
    }
