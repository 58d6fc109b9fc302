"""The JAX primitives that stand for one call of a kernel, and for one derivative of a call: shapes, lowering, and `jax.vmap`.

A call carries a *body*, the JAX program that it is lowered to: a custom call of the handler. Transformations act on the call and
make a new body; the rules for derivatives are in `differentiation`. Where a call is lowered, `fused` may have operations of XLA
for it instead. Only public names of JAX are used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.alone import run_alone
from numbridge.jax_ffi.call_words import words
from numbridge.jax_ffi.derivative import Form, operand_types, planned
from numbridge.jax_ffi.differentiation import differentiate, pull_jvp, pull_transpose
from numbridge.jax_ffi.fused import fused
from numbridge.jax_ffi.identity import spelled
from numbridge.jax_ffi.measured_calls import MEASURED_TARGET, is_measured, register
from numbridge.jax_ffi.plan import Call, by_reference
from numbridge.jax_ffi.sharding import can_be_cut, explicit_mesh, partitionable, partitioned, with_explicit_axes
from numbridge.jax_ffi.signature import is_symbolic
from numbridge.jax_ffi.values import named
from numbridge.jax_ffi.widths import all_kept
from numbridge.kernels.errors import KernelUnsupportedError

__all__ = ["alike", "axes_of", "bind_call", "bind_form", "primitive"]

_BODIES = 1024


def bind_call(call: Call, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Run a call, or add it to the program that is being traced; return its results."""
    import jax

    values = [
        _converted(operand, dtype)
        if dtype is not None
        else operand
        if isinstance(operand, jax.Array)
        else jax.numpy.asarray(operand)
        for operand, dtype in zip(operands, call.casts, strict=True)
    ]
    mesh = explicit_mesh(values)
    if mesh is None:
        return tuple(_bind(call, values))
    return tuple(with_explicit_axes(call, mesh, values, lambda *inside: tuple(_bind(call, inside))))


def _converted(operand: Any, dtype: Any) -> Any:
    """Return a value as another dtype."""
    import jax

    with all_kept():
        return jax.lax.convert_element_type(operand, dtype)


def _bind(call: Call, operands: Sequence[Any]) -> Any:
    operands = alike(operands)
    return primitive().bind(*operands, call=call, body=_runner(call).trace(*operands).jaxpr)


def bind_form(form: Form, operands: Sequence[Any]) -> Any:
    """Run a derivative, or add it to the program that is being traced; return its results."""
    operands = alike(operands)
    return _derivative().bind(*operands, form=form, outline=_outline(form).trace(*operands).jaxpr)


def alike(operands: Sequence[Any]) -> list[Any]:
    """Return values that all vary over the same axes within `jax.shard_map`, as one call needs them."""
    import jax

    varying = [axes_of(jax.typeof(x)) for x in operands]
    union = frozenset().union(*varying)
    return [
        x if union == own else jax.lax.pcast(x, tuple(union - own), to="varying")
        for x, own in zip(operands, varying, strict=True)
    ]


@functools.lru_cache(maxsize=_BODIES)
def _runner(call: Call) -> Any:
    """Return the jitted function of a call's operands; its jaxpr is the call's body."""
    import jax

    register()

    def numbridge_launch(*operands: Any) -> list[Any]:
        return partitioned(call, custom_call)(*operands) if can_be_cut(call) else custom_call(call, operands)

    return jax.jit(numbridge_launch)


@functools.lru_cache(maxsize=_BODIES)
def _measured_runner(call: Call) -> Any:
    """Return the same of a call that Python launches on CUDA."""
    import jax

    measured = functools.partial(custom_call, target=MEASURED_TARGET)

    def numbridge_launch(*operands: Any) -> list[Any]:
        return partitioned(call, measured)(*operands) if can_be_cut(call) else measured(call, operands)

    return jax.jit(numbridge_launch)


def _run_alone(*operands: Any, call: Call, body: Any) -> Any:
    return run_alone(f"kernel {call.kernel.name!r}", _alone(call), operands)


def _run_form_alone(*operands: Any, form: Form, outline: Any) -> Any:
    what = f"kernel {form.call.kernel.name!r}"
    return run_alone(f"{what}, {'tangent' if form.given is None else 'gradient'},", _form_runner(form), operands)


@functools.lru_cache(maxsize=_BODIES)
def _alone(call: Call) -> Any:
    """Return the jitted function that is one call."""
    import jax

    def run(*operands: Any) -> Any:
        return _bind(call, operands)

    named(run, call.kernel.name, _operand_names(call))
    return jax.jit(run)


def _operand_names(call: Call) -> list[str]:
    found = operand_types(call)
    return [found[k].name if k in found else "numbers" for k in range(call.operands)]


def _form_names(form: Form) -> list[str]:
    """Return what messages call the operands of a derivative."""
    primals = _operand_names(form.call)
    slots = {
        slot.index: kind.name
        for slot, kind in zip(form.call.slots, form.call.types, strict=True)
        if slot.kind == nb.RESULT
    }
    found = []
    for kind, k in form.sources:
        name = slots[k] if kind in ("left", "cotangent") else primals[k]
        found.append(name if kind in ("primal", "left") else f"{kind}_of_{name}")
    return found


@functools.lru_cache(maxsize=_BODIES)
def _outline(form: Form) -> Any:
    """Return a function with the results of a derivative, which needs no kernel and never runs."""
    import jax

    results = [jax.ShapeDtypeStruct((*form.batch, *shape), dtype) for shape, dtype in form.results]
    made = jax.ffi.ffi_call(targets.TARGET, results)
    return jax.jit(partitionable(made) if jax.device_count() > 1 else made)


@functools.lru_cache(maxsize=_BODIES)
def _form_runner(form: Form) -> Any:
    """Return the jitted function of a derivative's operands."""
    import jax

    plan = planned(form)

    def numbridge_derivative(*operands: Any) -> list[Any]:
        taken = zip(plan.operands, plan.call.casts, strict=True)
        values = [operands[k] if kind is None else _converted(operands[k], kind) for k, kind in taken]
        results = _bind(plan.call, values)
        return [_converted(results[k], dtype) for k, (_, dtype) in zip(plan.chosen, form.results, strict=True)]

    named(numbridge_derivative, "numbridge_derivative", _form_names(form))
    return jax.jit(numbridge_derivative)


def custom_call(call: Call, operands: Sequence[Any], target: str = targets.TARGET) -> list[Any]:
    """Return the results of the handler's custom call, or of that of another target."""
    import jax

    if call.batch and target == targets.TARGET:
        targets.enter(call.kernel, call.types, call.weak, by_reference(call.types, call.slots), len(call.batch))
    grid, references = _grid(call)
    results = [jax.ShapeDtypeStruct((*call.batch, *shape), dtype) for shape, dtype in call.results]
    made = jax.ffi.ffi_call(
        target, results, has_side_effect=call.options.has_side_effect, input_output_aliases=call.aliases
    )(*operands, *grid, kernel=spelled(call.kernel), words=words(call, references))
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
    """Return the primitive of calls, with its rules registered."""
    # The cache alone would let two threads that come first make two.
    with _starting:
        return _primitive()


@functools.cache
def _primitive() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    made = Primitive("numbridge_launch")
    made.multiple_results = True
    made.def_impl(_run_alone)
    made.def_effectful_abstract_eval(lambda *avals, call, body: (_varying(avals, body.out_avals), body.effects))
    mlir.register_lowering(made, mlir.lower_fun(functools.partial(_lowered, on_cpu=False), multiple_results=True))
    on_cpu = mlir.lower_fun(functools.partial(_lowered, on_cpu=True), multiple_results=True)
    mlir.register_lowering(made, on_cpu, platform="cpu")
    batching.primitive_batchers[made] = _batch
    ad.primitive_jvps[made] = _jvp
    ad.primitive_transposes[made] = _no_transpose
    return made


def _derivative() -> Any:
    with _starting:
        return _derivative_primitive()


@functools.cache
def _derivative_primitive() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    made = Primitive("numbridge_derivative")
    made.multiple_results = True
    made.def_impl(_run_form_alone)
    made.def_abstract_eval(lambda *operands, form, outline: _varying(operands, outline.out_avals))
    mlir.register_lowering(
        made, mlir.lower_fun(lambda *operands, form, outline: _form_runner(form)(*operands), multiple_results=True)
    )
    batching.primitive_batchers[made] = _batch_form
    ad.primitive_jvps[made] = _form_jvp
    ad.primitive_transposes[made] = lambda cotangents, *operands, form, outline: pull_transpose(
        form, cotangents, operands
    )
    return made


def _varying(operands: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
    """Return results that vary over the axes over which the operands do, within `jax.shard_map`."""
    if not operands or not axes_of(operands[0]):
        return tuple(results)
    known = {"manual_axis_type": operands[0].mat} if hasattr(operands[0], "mat") else {"vma": operands[0].vma}
    return tuple(aval.update(**known) for aval in results)


def axes_of(aval: Any) -> frozenset[Any]:
    """Return the axes of `jax.shard_map` over which a value varies; how a type says that depends on the version of JAX."""
    found: frozenset[Any] = aval.mat.varying if hasattr(aval, "mat") else getattr(aval, "vma", frozenset())
    return found


def _lowered(*operands: Any, call: Call, body: Any, on_cpu: bool) -> Any:
    from jax.extend.core import jaxpr_as_fun

    if not on_cpu and is_measured(call):
        return _measured_runner(call)(*operands)
    return (fused(call, on_cpu=on_cpu) or jaxpr_as_fun(body))(*operands)


# --------------------------------------------------------------------------------------------------------------------
# Derivatives


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call, body: Any) -> Any:
    results = primitive().bind(*primals, call=call, body=body)
    return results, differentiate(call, primals, tangents, results)


def _form_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, form: Form, outline: Any) -> Any:
    import jax
    from jax.interpreters import ad

    results = _derivative().bind(*primals, form=form, outline=outline)
    made = pull_jvp(form, primals, tangents)
    return results, made or [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]


def _no_transpose(cotangents: Any, *operands: Any, call: Call, body: Any) -> Any:
    raise KernelUnsupportedError(
        f"{call.signature.what} under JAX is not linear as far as JAX knows, so it cannot be transposed; transpose its jax.jvp, "
        "or, where a rule of jax.custom_jvp calls it, write one of jax.custom_vjp"
    )


# --------------------------------------------------------------------------------------------------------------------
# Batches


def _batch(operands: Sequence[Any], axes: Sequence[Any], *, call: Call, body: Any) -> tuple[Any, Any]:
    # An operand that a result takes over must have room for the whole batch.
    return _batched(call, frozenset(call.aliases), call.options.vmap_method, operands, axes)


def _batch_form(operands: Sequence[Any], axes: Sequence[Any], *, form: Form, outline: Any) -> tuple[Any, Any]:
    return _batched(form, form.taken_over, form.call.options.vmap_method, operands, axes)


def _batched(
    work: Call | Form, taken_over: frozenset[int], method: str, operands: Sequence[Any], axes: Sequence[Any]
) -> tuple[Any, Any]:
    import jax

    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    moved = [x if axis is None else jax.numpy.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    batched = [axis is not None for axis in axes]
    if method in ("sequential", "sequential_unrolled"):
        results = _one_by_one(work, moved, batched, unroll=method == "sequential_unrolled")
    else:
        results = _all_at_once(work, taken_over, moved, batched, size)
    return results, [0] * len(results)


def _again(work: Call | Form, operands: Sequence[Any]) -> Any:
    return bind_form(work, operands) if isinstance(work, Form) else _bind(work, operands)


def _one_by_one(work: Call | Form, operands: Sequence[Any], batched: Sequence[bool], *, unroll: bool) -> list[Any]:
    """Return results of one call per batch element."""
    import jax

    def step(_: Any, some: Sequence[Any]) -> tuple[Any, Any]:
        rest = iter(some)
        values = [next(rest) if is_batched else x for x, is_batched in zip(operands, batched, strict=True)]
        return (), _again(work, values)

    moving = [x for x, is_batched in zip(operands, batched, strict=True) if is_batched]
    return list(jax.lax.scan(step, (), moving, unroll=unroll)[1])


def _all_at_once(
    work: Call | Form, taken_over: frozenset[int], operands: Sequence[Any], batched: Sequence[bool], size: Any
) -> list[Any]:
    """Return results of one call, in which the handler goes through the batch; what is not batched stays where it is."""
    import jax

    whole = [is_batched or k in taken_over for k, is_batched in enumerate(batched)]
    values = [
        x if is_batched or flags is None else jax.lax.broadcast(x, (size if is_whole else 1,))
        for x, is_batched, is_whole, flags in zip(operands, batched, whole, work.spread, strict=True)
    ]
    spread = tuple(flags if flags is None else (w, *flags) for w, flags in zip(whole, work.spread, strict=True))
    return list(_again(replace(work, batch=(size, *work.batch), spread=spread), values))
