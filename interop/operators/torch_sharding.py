"""How PyTorch cuts DTensors up for an operator: what each device computes of a call, and of its gradient.

A launch is cut along thread indices that are free, as `numbridge.kernels.language.indexing` tells: elementwise kernels, and
products of matrices along rows and columns, run on the shards that are there. What such an index selects along is cut with it,
and everything else is whole on each device; a gradient by that is the sum of what the devices have. A call that may not be cut
so runs whole on each device. Moving shards is the work of `torch.distributed.tensor`, which is imported only where it is already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from numbridge.kernels.adjoint.prefixes import origin_of
from numbridge.kernels.language.indexing import indexing_of
from numbridge.operators.operator_levels import Level
from numbridge.operators.operators import OperatorPlan

__all__ = ["has_dtensor", "let_be_cut", "with_dtensors"]

_Ways = list[tuple[list[Any], list[Any]]]
_Shape = tuple[int, ...]


def has_dtensor(kinds: Iterable[type]) -> bool:
    """Tell whether there is a DTensor among values of some types."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(issubclass(kind, module.DTensor) for kind in kinds)


def with_dtensors(tensors: Sequence[Any]) -> list[Any]:
    """Return tensors of which some are DTensors, with each of the others as one that is whole on every device.

    Such are the zeros that autograd gives for an output which nothing depends on.
    """
    from torch.distributed.tensor import DTensor, Replicate

    mesh = next(tensor.device_mesh for tensor in tensors if isinstance(tensor, DTensor))
    return [
        tensor
        if isinstance(tensor, DTensor)
        else DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
        for tensor in tensors
    ]


def let_be_cut(level: Level, operator: Any, adjoint: Any) -> None:
    """Tell PyTorch how DTensors are cut for an operator and its adjoint.

    Parameters
    ----------
    level : Level
        What they run. Nothing is changed in place.
    operator, adjoint : torch._ops.OpOverload
        The adjoint takes the gradients of the outputs, too, and which gradients are wanted.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    whole, part = Replicate(), Partial("sum")

    def along(index: int, names: Sequence[str]) -> list[Any]:
        places = [_bound(level, name) for name in names]
        return [Shard(bound.index(index)) if index in bound else whole for bound in places]

    def cut(*values: Any) -> _Ways:
        ways = [([whole] * len(level.outputs), [whole] * len(level.arrays))]
        return ways + [(along(index, level.outputs), along(index, level.arrays)) for index in _free(level, values)]

    def cut_adjoint(*values: Any) -> _Ways:
        count, wanted = len(level.arrays), values[-1]
        ways = [([whole] * count, [whole] * (count + len(level.outputs)))]
        for index in _free(level, values[: len(level.inputs)]):
            given = along(index, level.arrays)
            made = [
                (part if place is whole else place) if want else whole
                for place, want in zip(given, wanted, strict=True)
            ]
            ways.append((made, [*given, *along(index, level.outputs)]))
        return ways

    for one, ways in ((operator, cut), (adjoint, cut_adjoint)):
        register_sharding(one)(ways)
        # What torch has found for a call, it takes for the next one that is alike. By itself it does not look at lists of truth
        # values for that, which say what gradients are wanted, nor at every number, by which dims may go.
        DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[one] = RuntimeSchemaInfo(0, needs_pytree=True)


def _bound(level: Level, name: str) -> tuple[int | None, ...]:
    """Return which thread index selects along each of the first axes of a parameter, or of what it is the derivative of."""
    return indexing_of(level.launches.plan.kernel).bound.get(origin_of(name), ())


def _free(level: Level, values: Sequence[Any]) -> Iterator[int]:
    """Yield the thread indices along which a call may be cut, given its inputs as torch describes them."""
    plan = level.launches.plan
    indexing = indexing_of(plan.kernel)
    inputs = dict(zip(plan.inputs, values, strict=False))
    launch, outputs = _dims(plan, inputs)
    shapes = {name: tuple(inputs[name].shape) for name in plan.arrays} | outputs
    for index in sorted(indexing.free):
        axes = {name: indexing.bound[name].index(index) for name in shapes if index in indexing.bound.get(name, ())}
        if index >= len(launch) or any(indexing.bound[name].count(index) > 1 for name in axes):
            continue
        extents = [shapes[name][axis] if axis < len(shapes[name]) else None for name, axis in axes.items()]
        if all(extent == launch[index] for extent in extents) and all(name in axes for name in outputs):
            sizes = _sizes(launch[index], [value.mesh for value in inputs.values() if hasattr(value, "mesh")])
            if all(_cut(launch, outputs, axes, index, size) == _dims(plan, inputs, axes, size) for size in sizes):
                yield index


def _sizes(extent: int, meshes: Sequence[Any]) -> set[int]:
    """Return how long shards of an axis are, whichever axes of a mesh it is cut over."""
    found = {extent}
    for count in meshes[0].shape if meshes else ():
        for whole in tuple(found):
            size = -(-whole // count)
            found |= {max(0, min(size, whole - k * size)) for k in range(count)}
    return found


def _shortened(shape: _Shape, axis: int | None, size: int) -> _Shape:
    return shape if axis is None else (*shape[:axis], size, *shape[axis + 1 :])


def _cut(
    launch: _Shape, outputs: Mapping[str, _Shape], axes: Mapping[str, int], index: int, size: int
) -> tuple[_Shape, dict[str, _Shape]]:
    """Return what a device is to compute of a launch and of its outputs."""
    shapes = {name: _shortened(shape, axes[name], size) for name, shape in outputs.items()}
    return _shortened(launch, index, size), shapes


def _dims(
    plan: OperatorPlan, inputs: Mapping[str, Any], axes: Mapping[str, int] | None = None, size: int = 0
) -> tuple[_Shape, dict[str, _Shape]]:
    """Return the dims of a launch, and the shapes of the outputs, for inputs as they are, or shards of them along some axes."""
    import torch

    values = []
    for name in plan.inputs:
        value = inputs[name]
        if plan.kinds[name] == "array":
            meta, shape = (
                getattr(value, "tensor_meta", value),
                _shortened(tuple(value.shape), (axes or {}).get(name), size),
            )
            value = torch.empty(shape, dtype=meta.dtype, device="meta")
        values.append(value)
    shapes = plan.output_shapes(values)
    return tuple(plan.launch_shape(values)), {name: tuple(shape) for name, shape in shapes.items()}
