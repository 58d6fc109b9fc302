"""The JAX primitive of a traced function in `GraphMode.NUMBRIDGE`: its launches become plans, which CUDA replays as graphs.

The primitive carries the function's jaxpr, and transforms as that does. Where it is lowered for one device, neighbouring launches
become one custom call; elsewhere each stays its own, so that JAX's partitioner can cut it up. Only public names of JAX are used.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from numbridge.jax_ffi import targets
from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.alone import check_finite, run_alone
from numbridge.jax_ffi.grouping import Group, group_words, grouped
from numbridge.jax_ffi.primitive import alike, axes_of
from numbridge.kernels.errors import NonFiniteError

__all__ = ["DEFAULT_GRAPH_CACHE_MAX", "GraphCache", "bind_replayed", "can_stay_together"]

DEFAULT_GRAPH_CACHE_MAX = 32
# What a part of a program may do wherever it is: JAX has no public names for the classes
_ANYWHERE = {"BufferCallbackEffect", "DebugEffect", "FfiEffect", "IOEffect", "OrderedDebugEffect", "OrderedIOEffect"}


class GraphCache:
    """The CUDA graphs of one function, of which the device keeps a number for each plan; destroyed with it.

    Parameters
    ----------
    capacity : int or None
        How many graphs to keep for each plan and device; None for all.
    """

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._plans: dict[tuple[int, int], Any] = {}
        weakref.finalize(self, _forget, self._plans, 0).atexit = False

    @property
    def capacity(self) -> int | None:
        """How many graphs to keep for each plan and device; None for all."""
        return self._capacity

    @capacity.setter
    def capacity(self, value: int | None) -> None:
        self._capacity = value
        for graphs in list(self._plans.values()):
            graphs[nb.GRAPHS_CAPACITY // 8] = _native(value)
        if value is not None:
            _forget(self._plans, value)

    @property
    def size(self) -> int:
        """How many graphs there are."""
        return sum(int(graphs[nb.GRAPHS_COUNT // 8]) for graphs in list(self._plans.values()))

    def clear(self) -> None:
        """Destroy the graphs; the next execution captures anew."""
        _forget(self._plans, 0)

    def words(self, group: Group) -> tuple[str, Any]:
        """Return the attributes of a plan's call site, and remember the plan."""
        names, made = group_words(group, _native(self._capacity))
        self._plans[int(made[nb.PLAN_KEY // 8]), int(made[nb.PLAN_KEY_HIGH // 8])] = targets.graphs_of(made)
        return names, made


def _native(capacity: int | None) -> int:
    return -1 if capacity is None else capacity


def _forget(plans: dict[tuple[int, int], Any], keep: int) -> None:
    for graphs in list(plans.values()):
        if graphs[nb.GRAPHS_COUNT // 8]:
            # Not a Python function of the C API: a thread that has the lock may need the GIL to give it back.
            function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
            function(targets.room().cuda_plans["numbridge_xla_forget_graphs"])(graphs.ctypes.data, keep)


def can_stay_together(jaxpr: Any) -> bool:
    """Tell whether a traced function may be one primitive, up to where it is lowered.

    Not where it talks to the other elements of a `jax.vmap` with an axis name, which only JAX's own operations know when they are
    batched, nor where it has a `jax.Ref`, which JAX must see to keep reads and writes in order. The axes of `jax.shard_map` and
    `jax.pmap` are there until the end.
    """
    import jax

    lasting = set(jax.sharding.get_abstract_mesh().manual_axes)
    return all(
        getattr(effect, "name", None) in lasting
        if type(effect).__name__ == "NamedAxisEffect"
        else type(effect).__name__ in _ANYWHERE
        for effect in jaxpr.effects
    )


def bind_replayed(jaxpr: Any, graphs: GraphCache, operands: Sequence[Any]) -> list[Any]:
    """Run a traced function, or add it to the program that is being traced; return its results."""
    results: list[Any] = _primitive().bind(*operands, jaxpr=jaxpr, graphs=graphs)
    return results


_starting = threading.RLock()


def _primitive() -> Any:
    with _starting:
        return _made()


@functools.cache
def _made() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    made = Primitive("numbridge_replay")
    made.multiple_results = True
    made.def_impl(_run_alone)
    made.def_effectful_abstract_eval(lambda *avals, jaxpr, graphs: (jaxpr.out_avals, jaxpr.effects))
    together = mlir.lower_fun(_evaluated, multiple_results=True)
    apart = mlir.lower_fun(lambda *operands, jaxpr, graphs: _function(jaxpr)(*operands), multiple_results=True)
    mlir.register_lowering(
        made, lambda ctx, *values, **rest: (together if _is_for_one(ctx) else apart)(ctx, *values, **rest)
    )
    batching.primitive_batchers[made] = _batch
    ad.primitive_jvps[made] = _jvp
    ad.primitive_transposes[made] = _transpose
    return made


def _run_alone(*operands: Any, jaxpr: Any, graphs: GraphCache) -> Any:
    try:
        return run_alone("a jax_callable", _runner(jaxpr, graphs), operands)
    except NonFiniteError:
        _check_launches(jaxpr, operands)
        raise


def _check_launches(jaxpr: Any, operands: Sequence[Any]) -> None:
    """Raise for the first launch of a traced function whose results are not finite."""
    inner = jaxpr.jaxpr
    values = _given(jaxpr, operands)
    for equation in inner.eqns:
        inputs, outputs = _ends([equation])
        results = _function(_closed(inner, inputs, outputs, [equation]))(*(values[id(v)] for v in inputs))
        values |= {id(v): x for v, x in zip(outputs, results, strict=True)}
        if "call" in equation.params:
            check_finite(f"kernel {equation.params['call'].kernel.name!r}", results)


def _is_for_one(context: Any) -> bool:
    """Tell whether a program is lowered for one device, or for each device by itself (`jax.shard_map`)."""
    axes = getattr(getattr(context, "module_context", None), "axis_context", None)
    if getattr(axes, "num_devices", None) == 1:
        return True
    mesh, manual = getattr(axes, "mesh", None), getattr(axes, "manual_axes", None)
    return mesh is not None and manual is not None and set(mesh.axis_names) <= set(manual)


def _function(jaxpr: Any) -> Any:
    from jax.extend.core import jaxpr_as_fun

    return jaxpr_as_fun(jaxpr)


@functools.lru_cache(maxsize=256)
def _runner(jaxpr: Any, graphs: GraphCache) -> Any:
    import jax

    return jax.jit(lambda *operands: _primitive().bind(*operands, jaxpr=jaxpr, graphs=graphs))


def _evaluated(*operands: Any, jaxpr: Any, graphs: GraphCache) -> list[Any]:
    """Return the results of a traced function, with one custom call for each group of its launches."""
    inner = jaxpr.jaxpr
    values = _given(jaxpr, operands)

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else values[id(variable)]

    for part in grouped(inner):
        if isinstance(part, Group):
            results = _custom_call(part, graphs, [read(v) for v in part.operands])
            values |= {id(v): _varying_as(v, results[k]) for v, k in part.made}
            continue
        inputs, outputs = _ends(part)
        results = _function(_closed(inner, inputs, outputs, part))(*map(read, inputs))
        values |= {id(v): x for v, x in zip(outputs, results, strict=True)}
    return [read(v) for v in inner.outvars]


def _given(jaxpr: Any, operands: Sequence[Any]) -> dict[int, Any]:
    """Return the values of a jaxpr's variables, by their identity, before it runs."""
    names = (*jaxpr.jaxpr.constvars, *jaxpr.jaxpr.invars)
    return {id(v): x for v, x in zip(names, (*jaxpr.consts, *operands), strict=True)}


def _ends(equations: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the variables that equations take from elsewhere, and those that they make."""
    made = {id(v): v for e in equations for v in e.outvars}
    taken = {id(v): v for e in equations for v in e.invars if not hasattr(v, "val") and id(v) not in made}
    return list(taken.values()), list(made.values())


def _closed(jaxpr: Any, inputs: Sequence[Any], outputs: Sequence[Any], equations: Sequence[Any]) -> Any:
    """Return some equations of a jaxpr as one of their own."""
    from jax.extend.core import ClosedJaxpr

    return ClosedJaxpr(jaxpr.replace(constvars=[], invars=inputs, outvars=outputs, eqns=equations), ())


def _custom_call(group: Group, graphs: GraphCache, operands: Sequence[Any]) -> Any:
    import jax

    names, words = graphs.words(group)
    return jax.ffi.ffi_call(
        targets.PLAN_TARGET,
        [jax.ShapeDtypeStruct(*kind) for kind in group.buffers],
        has_side_effect=group.has_side_effect,
        input_output_aliases=group.aliases,
    )(*alike([*map(jax.numpy.asarray, operands)]), kernel=names, words=words)


def _varying_as(variable: Any, result: Any) -> Any:
    """Return the result of a custom call, varying over the axes of `jax.shard_map` over which its variable does."""
    import jax

    missing = axes_of(variable.aval) - axes_of(jax.typeof(result))
    return jax.lax.pcast(result, tuple(missing), to="varying") if missing else result


# --------------------------------------------------------------------------------------------------------------------
# Transformations


def _batch(operands: Sequence[Any], axes: Sequence[Any], *, jaxpr: Any, graphs: GraphCache) -> tuple[Any, Any]:
    import jax

    traced = jax.jit(jax.vmap(_function(jaxpr), tuple(axes))).trace(*operands).jaxpr
    return bind_replayed(traced, graphs, operands), [0] * len(traced.out_avals)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, graphs: GraphCache) -> tuple[Any, Any]:
    import jax
    from jax.interpreters import ad

    moving = [k for k, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def function(*some: Any) -> Any:
        values = list(primals)
        for k, value in zip(moving, some, strict=True):
            values[k] = value
        return _function(jaxpr)(*values)

    results, made = jax.jvp(function, [primals[k] for k in moving], [tangents[k] for k in moving])
    pairs = zip(results, made, strict=True)
    return results, [ad.Zero(jax.typeof(r).to_tangent_aval()) if t.dtype == jax.dtypes.float0 else t for r, t in pairs]


def _transpose(cotangents: Sequence[Any], *operands: Any, jaxpr: Any, graphs: GraphCache) -> list[Any]:
    """Return the cotangents of the operands in which a function is linear; launches say there that they are not."""
    import jax
    from jax.interpreters import ad

    linear = [k for k, operand in enumerate(operands) if ad.is_undefined_primal(operand)]
    # JAX transposes floats to floats: a result without a cotangent may be of another kind.
    given = {k: value for k, value in enumerate(cotangents) if not isinstance(value, ad.Zero)}
    if not given:
        return [None] * len(operands)

    def function(*some: Any) -> Any:
        values = list(operands)
        for k, value in zip(linear, some, strict=True):
            values[k] = value
        results = _function(jaxpr)(*values)
        return [results[k] for k in given]

    transposed = jax.linear_transpose(function, *(operands[k].aval for k in linear))
    made = dict(zip(linear, transposed([*given.values()]), strict=True))
    return [made.get(k) for k in range(len(operands))]
