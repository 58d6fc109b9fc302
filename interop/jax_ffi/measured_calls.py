"""Calls that XLA has Python launch on CUDA: adjoints that must be measured before it is known how much memory they need.

Compiled code can neither wait for the stream nor allocate. So where such a call is lowered for CUDA it is one of another target
with the same operands, results and words, whose answer is a Python function (see `callback`). XLA does not take it into a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from numbridge.arrays.array import Array
from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.callback import CallContext, register_function
from numbridge.jax_ffi.frame_launches import counts_of, numbers_of, slots_of
from numbridge.jax_ffi.plan import Call
from numbridge.kernels import watching
from numbridge.kernels.adjoint.derive import Derivative
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.parameter_types import ArrayType, ParameterType
from numbridge.operators.element_dims import inner_extents

__all__ = ["MEASURED_TARGET", "is_measured", "launch_measured", "register", "register_measured"]

MEASURED_TARGET = "numbridge_measured"


def is_measured(call: Call) -> bool:
    """Tell whether a call's kernel must be measured on CUDA, and can be launched from Python: records are bytes to JAX."""
    kernel = call.kernel
    if not isinstance(kernel, Derivative) or any(
        p.element is not None and p.element.fields is not None for p in call.types
    ):
        return False
    return kernel.plan(call.types[: len(kernel.base.parameters)], call.weak, "cuda").measured is not None


def register() -> None:
    """Register what answers calls of kernels with JAX, once per process."""
    targets.register()
    if cuda_driver.driver_count():
        register_measured()


@functools.cache
def register_measured() -> None:
    """Register the target of this module with JAX, once per process."""
    register_function(MEASURED_TARGET, launch_measured)


def launch_measured(
    inputs: Sequence[Array], outputs: Sequence[Array], attributes: Mapping[str, Any], context: CallContext
) -> None:
    """Launch a call's kernel for each element of its batch, in the order of the call's stream.

    Parameters
    ----------
    inputs, outputs : sequence of Array
        The operands and results, on XLA's memory.
    attributes : mapping
        ``kernel`` and ``words``, as at every call of a kernel.
    context : CallContext
        The device and the stream, which the arrays know as well.
    """
    words = attributes["words"]
    kernel, types = targets.declared_kernel(attributes["kernel"], words)
    assert isinstance(kernel, Derivative)
    slots, counts = slots_of(words), counts_of(words, inputs)
    levels = int(words[nb.WORD_LEVELS // 8])
    _prepare(slots, inputs, outputs)
    batch = outputs[0].shape[:levels]
    block = counts["blockDim"]
    block_dim = block[0] if block[1:] == (1, 1) else block[: len(counts["dim"])]
    given = [
        _array(slot, kind, inputs, outputs)
        if isinstance(kind, ArrayType)
        else numbers_of(words, slot, kind, inputs, _read)
        for slot, kind in zip(slots, types, strict=True)
    ]
    run = kernel.forall(counts["dim"], block_dim, checked=False)
    with watching.unrecorded():
        for place in np.ndindex(*batch):
            # On the stream of the arrays
            run(*_elements(given, types, place))


def _prepare(slots: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Give results their first contents: an operand's, zeros, or none."""
    for slot in slots:
        if slot[nb.SLOT_KIND // 8] != nb.RESULT:
            continue
        result, alias = outputs[slot[nb.SLOT_INDEX // 8]], int(slot[nb.SLOT_ALIAS // 8])
        if alias >= 0 and inputs[alias].ptr != result.ptr:
            result.assign(inputs[alias])
        elif alias < 0 and slot[nb.SLOT_FILL // 8]:
            result.zero_()


def _array(slot: Any, kind: ArrayType, inputs: Sequence[Array], outputs: Sequence[Array]) -> Array:
    found: Array = (outputs if slot[nb.SLOT_KIND // 8] == nb.RESULT else inputs)[slot[nb.SLOT_INDEX // 8]]
    return found


def _read(operand: Array, start: int, size: int) -> bytes:
    """Return some bytes of an array, which are copied from the device."""
    return operand.numpy().tobytes()[start : start + size]


def _elements(given: Sequence[Any], types: Sequence[ParameterType], place: Sequence[int]) -> Iterator[Any]:
    """Yield the arguments of one element of a batch."""
    for value, kind in zip(given, types, strict=True):
        own = len(inner_extents(kind.element)) + (kind.ndim if isinstance(kind, ArrayType) else 0)
        leading = len(value.shape) - own
        # What is not mapped has extent 1 there; a number that is the same for all has no such axes.
        at = tuple(min(k, extent - 1) for k, extent in zip(place, value.shape[:leading], strict=False))
        one = value[at] if at else value
        if isinstance(kind, ArrayType):
            yield one
        else:
            yield kind.scalar.numpy.type(one) if kind.element is None else kind.element(*one.ravel())
