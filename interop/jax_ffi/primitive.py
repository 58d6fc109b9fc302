"""The JAX primitive that stands for one call of a kernel: its shapes, its lowering, and what `jax.vmap` makes of it.

A call carries a *body*, the JAX program that it is lowered to (a custom call of the handler). Transformations act on the call and
make a new body; so a rule for derivatives is a rule that makes other calls. Only public names of JAX are used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.plan import Call, words
from numbridge.jax_ffi.sharding import can_be_cut, partitioned
from numbridge.jax_ffi.signature import is_symbolic
from numbridge.kernels.errors import KernelUnsupportedError

__all__ = ["bind_call", "primitive"]

_BODIES = 1024


def bind_call(call: Call, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Run a call, or add it to the program that is being traced; return its results."""
    import jax

    values = [
        jax.numpy.asarray(operand) if dtype is None else jax.lax.convert_element_type(operand, dtype)
        for operand, dtype in zip(operands, call.casts, strict=True)
    ]
    return tuple(_bind(call, values))


def _bind(call: Call, operands: Sequence[Any]) -> Any:
    return primitive().bind(*operands, call=call, body=_runner(call).trace(*operands).jaxpr)


@functools.lru_cache(maxsize=_BODIES)
def _runner(call: Call) -> Any:
    """Return the jitted function of a call's operands; its jaxpr is the call's body."""
    import jax

    targets.register()

    def numbridge_launch(*operands: Any) -> list[Any]:
        return partitioned(call, custom_call)(*operands) if can_be_cut(call) else custom_call(call, operands)

    return jax.jit(numbridge_launch)


def custom_call(call: Call, operands: Sequence[Any]) -> list[Any]:
    """Return the results of the handler's custom call."""
    import jax

    grid, references = _grid(call)
    results = [jax.ShapeDtypeStruct((*call.batch, *shape), dtype) for shape, dtype in call.results]
    made = jax.ffi.ffi_call(
        targets.TARGET, results, has_side_effect=call.options.has_side_effect, input_output_aliases=call.aliases
    )(*operands, *grid, kernel=call.kernel.name, words=words(call, references))
    return list(made)


def _grid(call: Call) -> tuple[list[Any], list[int]]:
    """Return what tells the handler symbolic launch dimensions: an operand of no bytes that has them as its shape."""
    import jax

    if not any(is_symbolic(extent) for extent in call.dims):
        return [], []
    empty = jax.numpy.zeros((*call.dims, 0), jax.numpy.uint8)
    return [empty], [-1 - (call.operands << nb.REFERENCE_SHIFT | axis) for axis in range(len(call.dims))]


_starting = threading.RLock()


def primitive() -> Any:
    """Return the primitive, with its rules registered."""
    # The cache alone would let two threads that come first make two.
    with _starting:
        return _primitive()


@functools.cache
def _primitive() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    made = Primitive("numbridge_launch")
    made.multiple_results = True
    made.def_impl(lambda *operands, call, body: _runner(call)(*operands))
    made.def_effectful_abstract_eval(lambda *avals, call, body: (body.out_avals, body.effects))
    mlir.register_lowering(made, mlir.lower_fun(_lowered, multiple_results=True))
    batching.primitive_batchers[made] = _batch
    ad.primitive_jvps[made] = _no_derivative
    ad.primitive_transposes[made] = _no_transpose
    return made


def _lowered(*operands: Any, call: Call, body: Any) -> Any:
    from jax.extend.core import jaxpr_as_fun

    return jaxpr_as_fun(body)(*operands)


def _no_derivative(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, body: Any) -> Any:
    raise KernelUnsupportedError(
        f"kernel {call.kernel.name!r} under JAX has no derivative; wrap it with jax.custom_jvp or jax.custom_vjp, or pass "
        "jax.lax.stop_gradient(x) for its arguments"
    )


def _no_transpose(cotangents: Any, *operands: Any, call: Call, body: Any) -> Any:
    raise KernelUnsupportedError(f"kernel {call.kernel.name!r} under JAX is not linear, so it cannot be transposed")


def _batch(operands: Sequence[Any], axes: Sequence[Any], *, call: Call, body: Any) -> tuple[Any, Any]:
    import jax

    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    moved = [x if axis is None else jax.numpy.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    batched = [axis is not None for axis in axes]
    if call.options.vmap_method in ("sequential", "sequential_unrolled"):
        results = _one_by_one(call, moved, batched)
    else:
        results = _all_at_once(call, moved, batched, size)
    return results, [0] * len(results)


def _one_by_one(call: Call, operands: Sequence[Any], batched: Sequence[bool]) -> list[Any]:
    """Return results of one call per batch element."""
    import jax

    def step(_: Any, some: Sequence[Any]) -> tuple[Any, Any]:
        rest = iter(some)
        return (), _bind(
            call, [next(rest) if is_batched else x for x, is_batched in zip(operands, batched, strict=True)]
        )

    moving = [x for x, is_batched in zip(operands, batched, strict=True) if is_batched]
    unroll = call.options.vmap_method == "sequential_unrolled"
    return list(jax.lax.scan(step, (), moving, unroll=unroll)[1])


def _all_at_once(call: Call, operands: Sequence[Any], batched: Sequence[bool], size: Any) -> list[Any]:
    """Return results of one call, in which the handler goes through the batch; what is not batched stays where it is."""
    import jax

    # An operand that a result takes over must have room for the whole batch.
    whole = [is_batched or k in call.aliases for k, is_batched in enumerate(batched)]
    values = [
        x if is_batched or flags is None else jax.lax.broadcast(x, (size if is_whole else 1,))
        for x, is_batched, is_whole, flags in zip(operands, batched, whole, call.spread, strict=True)
    ]
    spread = tuple(flags if flags is None else (w, *flags) for w, flags in zip(whole, call.spread, strict=True))
    return list(_bind(replace(call, batch=(size, *call.batch), spread=spread), values))
