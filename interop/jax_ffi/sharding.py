"""How a call is cut up over devices: which axes belong together, and what one device computes of it.

Batch axes may always be cut. Of the others those that a free thread index selects along, as `numbridge.kernels.language.indexing`
tells, so that elementwise launches, and a matrix product along its rows and columns, run on the shards that are there. All other
axes are gathered, unless the user's rule says better. Adjoints and tangents are cut as what they belong to; a gradient to which
threads of other shards contribute is summed over these. Decides names of axes and specs; the partitioner of JAX does the rest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numbridge.jax_ffi import words_layout as nb
from numbridge.jax_ffi.plan import Call
from numbridge.jax_ffi.signature import Dims, Signature, is_symbolic
from numbridge.kernels.adjoint.prefixes import ADJOINT, origin_of
from numbridge.kernels.errors import NumbridgeTypeError, NumbridgeValueError
from numbridge.kernels.language.indexing import indexing_of
from numbridge.kernels.parameter_types import ArrayType

__all__ = [
    "Factors",
    "can_be_cut",
    "explicit_mesh",
    "factors_of",
    "parse_rule",
    "partitionable",
    "partitioned",
    "with_explicit_axes",
]

Axes = tuple[str | None, ...]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Factors:
    """Names for the axes of a call; axes of one name are cut together, and those without a name are not cut.

    Attributes
    ----------
    operands, results : tuple of tuple
        The axes of each, batch axes included.
    launch, batch : tuple
        The launch dimensions and the batch axes.
    summed : tuple of tuple of str
        For each result, the names along which shards of the launch compute parts of it that are to be added.
    """

    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]
    launch: Axes
    batch: Axes
    summed: tuple[Names, ...]

    def __bool__(self) -> bool:
        """Tell whether anything may be cut."""
        return any(name is not None for name in (*self.launch, *self.batch))


def factors_of(call: Call) -> Factors:
    """Return the names of a call's axes."""
    batch = tuple(f"batch{level}" for level in range(len(call.batch)))
    launch, inner = _inner(call)
    operands: list[Axes] = [(None,)] * call.operands
    results: list[Axes] = [()] * len(call.results)
    summed: list[Names] = [()] * len(call.results)
    for slot, kind in zip(call.slots, call.types, strict=True):
        if slot.kind in (nb.STATIC, nb.PACKED):
            continue
        axes = inner[kind.name]
        if slot.kind == nb.RESULT:
            results[slot.index] = (*batch, *axes)
            if kind.name.startswith(ADJOINT):
                summed[slot.index] = tuple(name for name in launch if name is not None and name not in axes)
        if slot.kind != nb.RESULT or slot.alias >= 0:
            k = slot.alias if slot.kind == nb.RESULT else slot.index
            # A batch axis of extent 1 stays where it is when its batch is cut.
            flags = call.spread[k] or ()
            operands[k] = (*(name if flag else None for name, flag in zip(batch, flags, strict=True)), *axes)
    return Factors(tuple(operands), tuple(results), launch, batch, tuple(summed))


def _inner(call: Call) -> tuple[Axes, Mapping[str, Axes]]:
    """Return the names of the launch dimensions and of each parameter's axes, without the batch."""
    shapes = _shapes(call)
    if call.options.sharding_rule is not None:
        launch, ruled = _ruled(call, {name: shape for name, shape in shapes.items() if origin_of(name) == name})
        return launch, {name: ruled[origin_of(name)] if shape else () for name, shape in shapes.items()}
    indexing = indexing_of(call.kernel)
    # An index may be cut only if all axes that it selects along have the launch's extent, so that shards fit together.
    free = {
        number
        for number in indexing.free
        if number < len(call.dims)
        and all(
            shape[axis] == call.dims[number]
            for name, shape in shapes.items()
            for axis, bound in enumerate(indexing.bound.get(origin_of(name), ()))
            if bound == number and axis < len(shape)
        )
    }
    launch = tuple(f"index{number}" if number in free else None for number in range(len(call.dims)))
    named = {}
    for name, shape in shapes.items():
        bound = indexing.bound.get(origin_of(name), ())
        numbers = [bound[axis] if axis < len(bound) else None for axis in range(len(shape))]
        named[name] = tuple(None if number is None else launch[number] for number in numbers)
    return launch, named


def _shapes(call: Call) -> dict[str, Dims]:
    """Return the shape of each parameter that comes from a buffer, without the batch."""
    return {
        kind.name: call.results[slot.index][0] if slot.kind == nb.RESULT else call.shapes[slot.index]
        for slot, kind in zip(call.slots, call.types, strict=True)
        if slot.kind not in (nb.STATIC, nb.PACKED)
    }


# --------------------------------------------------------------------------------------------------------------------
# A user's rule


def parse_rule(rule: str, signature: Signature) -> tuple[Names, tuple[Names, ...], tuple[Names, ...]]:
    """Return a rule such as ``"i k, k j -> i j"`` as lists of names.

    Parameters
    ----------
    rule : str
        One entry for each array input, and one for each output; ``; i j`` at the end names the launch dimensions, which are those
        of the first output otherwise.
    signature : Signature
        What the rule is for.

    Raises
    ------
    NumbridgeError
        If it cannot be read.
    """
    if not isinstance(rule, str):
        raise NumbridgeTypeError(
            f'{signature.what}: sharding_rule is {rule!r}; it must be a string such as "i k, k j -> i j"'
        )
    body, _, launch = rule.partition(";")
    left, arrow, right = body.partition("->")
    if not arrow:
        raise NumbridgeValueError(
            f'{signature.what}: sharding_rule {rule!r} has no "->"; write such as "i k, k j -> i j"'
        )
    for name in [name for part in (*left.split(","), *right.split(","), launch) for name in part.split()]:
        if not name.isidentifier():
            raise NumbridgeValueError(
                f"{signature.what}: sharding_rule {rule!r} names an axis {name!r}; names are such as i and rows"
            )
    inputs, outputs = (tuple(tuple(entry.split()) for entry in side.split(",")) for side in (left, right))
    for entry in (*inputs, *outputs, tuple(launch.split())):
        if len(set(entry)) != len(entry):
            raise NumbridgeValueError(
                f"{signature.what}: sharding_rule {rule!r} names an axis twice in {' '.join(entry)!r}; a device would "
                "have parts of the diagonal only, so give one of the two another name"
            )
    if len(outputs) != len(signature.outputs):
        raise NumbridgeValueError(
            f"{signature.what}: sharding_rule {rule!r} names {len(outputs)} output(s), and there are {len(signature.outputs)}"
        )
    return tuple(launch.split()) or outputs[0], inputs, outputs


def _ruled(call: Call, shapes: Mapping[str, Dims]) -> tuple[Axes, Mapping[str, Axes]]:
    launch, inputs, outputs = parse_rule(call.options.sharding_rule or "", call.signature)
    arrays = [k.name for k in call.types if isinstance(k, ArrayType) and origin_of(k.name) == k.name]
    results = [parameter.name for parameter in call.signature.outputs]
    given = [name for name in arrays if name not in [p.name for p in call.signature.pure]]
    if len(inputs) != len(given) and not (inputs == ((),) and not given):
        raise NumbridgeValueError(_rule_error(call, f"names {len(inputs)} array input(s), and there are {len(given)}"))
    entries = {**dict(zip(given, inputs, strict=False)), **dict(zip(results, outputs, strict=True))}
    # What no output has is summed over or looked up, so each device needs all of it.
    kept = {name for entry in outputs for name in entry}
    extents: dict[str, Any] = dict(zip(launch, call.dims, strict=False))
    if len(launch) != len(call.dims):
        raise NumbridgeValueError(
            _rule_error(call, f"names {len(launch)} launch dimension(s), and there are {len(call.dims)}")
        )
    named: dict[str, Axes] = {name: (None,) * len(shape) for name, shape in shapes.items()}
    for name, entry in entries.items():
        if len(entry) != len(shapes[name]):
            raise NumbridgeValueError(
                _rule_error(call, f"gives {name!r} {len(entry)} axes, and it has {len(shapes[name])}")
            )
        for axis, extent in zip(entry, shapes[name], strict=True):
            if extents.setdefault(axis, extent) != extent:
                raise NumbridgeValueError(
                    _rule_error(call, f"gives {axis!r} to axes of {extents[axis]} and {extent} elements ({name!r})")
                )
        named[name] = tuple(axis if axis in kept else None for axis in entry)
    return tuple(axis if axis in kept else None for axis in launch), named


def _rule_error(call: Call, complaint: str) -> str:
    return f"{call.signature.what}: sharding_rule {call.options.sharding_rule!r} {complaint}"


# --------------------------------------------------------------------------------------------------------------------
# JAX's partitioner


def partitioned(call: Call, run: Callable[[Call, Sequence[Any]], list[Any]]) -> Callable[..., list[Any]]:
    """Return ``run(call, operands)`` as a function of the operands that JAX's partitioner can cut up.

    Parameters
    ----------
    call : Call
        The call, without symbolic dimensions.
    run : callable
        Adds a call to the program.
    """
    from jax.experimental.custom_partitioning import custom_partitioning

    factors = factors_of(call)

    def numbridge_partitioned(*operands: Any) -> list[Any]:
        return run(call, operands)

    def partition(mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        specs = _specs(mesh, factors, operands, results)
        shards = {name: _shards(mesh, spec) for name, spec in specs.items()}
        local = _local(call, factors, shards)
        sums = [[axis for name in names for axis in _mesh_axes(specs.get(name))] for names in factors.summed]
        return (
            mesh,
            lambda *values: _summed(run(local, values), sums),
            [_sharding(mesh, specs, axes) for axes in factors.results],
            tuple(_sharding(mesh, specs, axes) for axes in factors.operands),
        )

    def infer(mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        specs = _specs(mesh, factors, operands, ())
        return [_sharding(mesh, specs, axes) for axes in factors.results]

    made = custom_partitioning(numbridge_partitioned)
    made.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=_rule(factors))
    cut: Callable[..., list[Any]] = made
    return cut


def explicit_mesh(operands: Sequence[Any]) -> Any:
    """Return the mesh whose axes are part of the operands' types (`AxisType.Explicit`); None if there is none."""
    import jax

    meshes = (getattr(getattr(jax.typeof(x), "sharding", None), "mesh", None) for x in operands)
    return next((mesh for mesh in meshes if getattr(mesh, "explicit_axes", ())), None)


def with_explicit_axes(call: Call, mesh: Any, operands: Sequence[Any], run: Callable[..., Any]) -> Any:
    """Return the results of a call whose operands have types that say how they are cut, with such types.

    Other operations of JAX's have rules for these types, and a call has none: within it the axes are left to JAX's partitioner,
    and its results are as `partitioned` cuts them.
    """
    import jax

    factors = factors_of(call)
    specs = _specs(mesh, factors, [jax.typeof(x) for x in operands], ())
    shardings = tuple(_sharding(mesh, specs, axes) for axes in factors.results)
    return jax.sharding.auto_axes(run, axes=mesh.explicit_axes, out_sharding=shardings)(*operands)


def partitionable(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that never runs, from whose trace JAX sees that lowering needs to know the devices."""
    from jax.experimental.custom_partitioning import custom_partitioning

    def numbridge_outline(*operands: Any) -> Any:
        return run(*operands)

    def unused(*arguments: Any) -> Any:
        raise AssertionError("an outline is not lowered")

    made = custom_partitioning(numbridge_outline)
    made.def_partition(unused, infer_sharding_from_operands=unused, sharding_rule=unused)
    outline: Callable[..., Any] = made
    return outline


def _specs(mesh: Any, factors: Factors, operands: Sequence[Any], results: Sequence[Any]) -> dict[str, Any]:
    """Return how each name is cut: as the first array says that has it, outputs before inputs, no mesh axis twice.

    Shards of different extents are padded by JAX with anything, which kernels would take for indices and add to gradients; such
    an axis is gathered.
    """
    found: dict[str, Any] = {}
    taken: set[str] = set()
    for axes, value in [*zip(factors.results, results, strict=False), *zip(factors.operands, operands, strict=True)]:
        spec = getattr(value.sharding, "spec", ())
        for name, part, extent in zip(axes, spec, value.shape, strict=False):
            if name is None or part is None or name in found or taken & set(_mesh_axes(part)):
                continue
            if extent % _shards(mesh, part):
                continue
            found[name] = part
            taken |= set(_mesh_axes(part))
    return found


def _mesh_axes(part: Any) -> tuple[Any, ...]:
    return () if part is None else part if isinstance(part, tuple) else (part,)


def _shards(mesh: Any, part: Any) -> int:
    return math.prod(mesh.shape[axis] for axis in _mesh_axes(part))


def _summed(results: list[Any], axes: Sequence[Sequence[Any]]) -> list[Any]:
    """Return results of which each device has a part, added up over some axes of the mesh."""
    return [
        _sum().bind(result, axes=tuple(over)) if over else result for result, over in zip(results, axes, strict=True)
    ]


@functools.cache
def _sum() -> Any:
    """Return the primitive of `jax.lax.psum` as it is where no mesh is set.

    Since 0.12, JAX gives the addition of two numbers, to which it lowers a sum, a sharding on the mesh that is set, if that has
    explicit axes. XLA does not take such an addition.
    """
    import jax
    from jax.core import ShapedArray
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    def lowered(context: Any, value: Any, *, axes: tuple[str, ...]) -> Any:
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            kinds = [ShapedArray(kind.shape, kind.dtype) for kind in context.avals_in]
            run = mlir.lower_fun(lambda x: jax.lax.psum(x, axes), multiple_results=False)
            return run(context.replace(avals_in=kinds, avals_out=kinds), value)

    made = Primitive("numbridge_sum")
    made.def_abstract_eval(lambda value, *, axes: value)
    mlir.register_lowering(made, lowered)
    return made


def _sharding(mesh: Any, specs: Mapping[str, Any], axes: Axes) -> Any:
    import jax

    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(specs.get(name or "") for name in axes)))


def _local(call: Call, factors: Factors, shards: Mapping[str, int]) -> Call:
    """Return what one device computes."""

    def cut(extents: Dims, axes: Axes) -> Dims:
        return tuple(extent // shards.get(name or "", 1) for extent, name in zip(extents, axes, strict=True))

    levels = len(call.batch)
    results = tuple(
        (cut(shape, axes[levels:]), dtype) for (shape, dtype), axes in zip(call.results, factors.results, strict=True)
    )
    shapes = tuple(
        shape if flags is None else cut(shape, axes[levels:])
        for shape, flags, axes in zip(call.shapes, call.spread, factors.operands, strict=True)
    )
    dims, batch = cut(call.dims, factors.launch), cut(call.batch, factors.batch)
    return replace(call, dims=dims, batch=batch, results=results, shapes=shapes)


def _rule(factors: Factors) -> Any:
    """Return the names as Shardy's rule; an axis without a name gets one of its own, which is replicated."""
    from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule

    whole: list[str] = []

    def mapping(axes: Axes) -> Any:
        names = []
        for name in axes:
            if name is None:
                whole.append(name := f"whole{len(whole)}")
            names.append(name)
        return ArrayMapping(*names)

    operands = tuple(mapping(axes) for axes in factors.operands)
    results = tuple(mapping(axes) for axes in factors.results)
    return SdyShardingRule(operands, results, need_replication_factors=tuple(whole))


def can_be_cut(call: Call) -> bool:
    """Tell whether a call may be cut up over the devices of this program at all."""
    import jax

    if jax.device_count() == 1 or call.options.has_side_effect:
        return False
    shapes = (call.dims, call.batch, *(shape for shape, _ in call.results))
    return not any(is_symbolic(extent) for shape in shapes for extent in shape) and bool(factors_of(call))
