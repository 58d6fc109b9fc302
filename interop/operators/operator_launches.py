"""The launches of an operator: its kernel, and the kernel's adjoint in the cheapest way that it has.

No framework is named here; each brings the makers of its tensors. What is kept from call to call are launchers, by shape. A
launcher looks at its arguments and at the kernel's globals each time, so that none is ever stale; nothing is concluded from a
tensor that was seen before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from numbridge.kernels.adjoint.derive import lasting_outputs
from numbridge.kernels.errors import KernelUnsupportedError, NumbridgeValueError
from numbridge.kernels.geometry import geometry_of
from numbridge.kernels.language.indexing import indexing_of, loaded_names
from numbridge.kernels.launch import launcher
from numbridge.kernels.readers import describe
from numbridge.kernels.variant import variants_of
from numbridge.operators.element_dims import lie_densely
from numbridge.operators.operators import OperatorPlan

__all__ = ["WAYS", "Adjoint", "Launches"]

_MOST = 256
# How an adjoint gets outputs, their gradients and those of the inputs, the cheapest first: whether it stores to no output again,
# so that anything may stand for those that it is not given as the kernel has left them; whether it only reads their gradients;
# and whether it stores those of the inputs of which each thread has an element, so that these need no zeros.
WAYS = ((True, True, True), (True, True, False), (True, False, False), (False, True, False), (False, False, False))


class Launches:
    """Runs an operator's kernel and its adjoint on tensors that no kernel has to be kept from.

    Parameters
    ----------
    plan : OperatorPlan
        What goes in and comes out.
    """

    def __init__(self, plan: OperatorPlan) -> None:
        self.plan, self.kernel = plan, plan.kernel
        given = (*plan.inputs, *plan.outputs)
        self._order = [given.index(parameter.name) for parameter in plan.kernel.parameters]
        self.first = -1 if plan.first is None else plan.inputs.index(plan.first)
        # Whether arguments are inputs and then outputs, and everything has the first tensor's shape.
        self.in_order = self._order == list(range(len(given)))
        dtypes = (None, plan.first and plan.dtype(plan.first))  # a first tensor of another dtype is refused
        alike = plan.like_first and all(plan.dtype(name) in dtypes for name in plan.outputs)
        self._elements = [(plan.inputs.index(name), rank) for name, rank in plan.elements.items()]
        self.plain = self.in_order and alike and plan.along_first and not self._elements
        self._may_truncate = plan.may_truncate()
        # Whether each element of each output is stored, and none is loaded, so that nobody would see zeros
        self._is_covered = False
        self.loads_outputs = not loaded_names(plan.kernel.source).isdisjoint(plan.outputs)
        self._launchers: dict[Any, Any] = {}
        self._adjoints: dict[Any, Adjoint] = {}
        self._left: dict[Any, frozenset[str]] = {}

    def outputs(self, values: Sequence[Any]) -> list[Any]:
        """Return new tensors of zeros for an operator's inputs."""
        raise NotImplementedError

    def refuse_truncation(self, values: Sequence[Any]) -> None:
        """Refuse to make an output of the first tensor's integers where others are floating-point numbers, or hold such."""
        if not self._may_truncate or not self.is_integral(values[self.first]):
            return
        for name, value in zip(self.plan.inputs, values, strict=True):
            if self._is_inexact(name, value):
                raise self.plan.truncates(
                    self._may_truncate, self.plan.inputs[self.first], name, values[self.first].dtype
                )

    def _is_inexact(self, name: str, value: Any) -> bool:
        kind = self.plan.kinds[name]
        if kind == "array":
            return not self.is_integral(value)
        return kind == "float" or isinstance(value, float | complex | np.inexact)

    def zeros(self, tensor: Any) -> Any:
        """Return contiguous zeros like a tensor."""
        raise NotImplementedError

    def empty(self, tensor: Any) -> Any:
        """Return contiguous memory like a tensor's, which holds anything."""
        raise NotImplementedError

    def contiguous(self, tensor: Any) -> Any:
        """Return a tensor, or a copy of it that is contiguous."""
        raise NotImplementedError

    def strides(self, tensor: Any) -> Sequence[int]:
        """Return how many numbers lie from one to the next along each dimension of a tensor."""
        raise NotImplementedError

    def dense(self, tensor: Any, rank: int) -> Any:
        """Return a tensor of elements, or a copy of it if their components, its last dimensions, do not lie densely.

        A framework makes such tensors, too: rows of batches, and gradients of sums.
        """
        is_dense = lie_densely(tuple(tensor.shape)[-rank:], tuple(self.strides(tensor))[-rank:])
        return tensor if is_dense else self.contiguous(tensor)

    def copied(self, tensor: Any) -> Any:
        """Return a contiguous copy of a tensor."""
        raise NotImplementedError

    def has_gradient(self, tensor: Any) -> bool:
        """Tell whether a tensor holds floating-point numbers, real or complex."""
        raise NotImplementedError

    def is_integral(self, tensor: Any) -> bool:
        """Tell whether a tensor holds integers or booleans."""
        return not self.has_gradient(tensor)

    def arguments(self, values: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Return the kernel's arguments."""
        given = [*values, *outputs]
        for place, rank in self._elements:
            given[place] = self.dense(given[place], rank)
        return given if self.in_order else [given[k] for k in self._order]

    def dims(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Return the launch's dimensions."""
        return tuple(values[self.first].shape if self.plan.along_first else map(int, self.plan.launch_shape(values)))

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Return an operator's outputs for its inputs."""
        dims = self.dims(values)
        launcher = self._launchers.get(dims) or self._launcher(dims)
        if self.plain and self._is_covered:
            self.refuse_truncation(values)
            outputs = [self.empty(values[self.first]) for _ in self.plan.outputs]
        else:
            outputs = self.outputs(values)
        launcher(*self.arguments(values, outputs))
        return outputs

    def _launcher(self, dims: tuple[int, ...]) -> Any:
        rank = self.kernel.source.index_rank
        if rank not in (0, len(dims)):
            whose = f"the shape {dims} of {self.plan.first}" if self.plan.along_first else f"{dims}"
            raise NumbridgeValueError(
                f"kernel {self.kernel.name!r} as an operator: its launch dimensions are {whose}, and it asks for {rank} thread "
                "index(es); give launch_dims where the operator is made"
            )
        self._is_covered = indexing_of(self.kernel).covered.issuperset(self.plan.outputs)
        geometry = replace(geometry_of(self.kernel, dims, self.plan.block_dim), is_followed=True)
        return _kept(self._launchers, dims, launcher(self.kernel, geometry))

    def left(self, values: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        """Return those of the outputs that spare the adjoint storing to them again, if it is given them as they are now."""
        if not self.loads_outputs:
            return {}
        key = tuple([(tensor.dtype, tensor.ndim) for tensor in (*values, *outputs) if hasattr(tensor, "dtype")])
        names = self._left.get(key)
        if names is None:
            arguments = self.arguments(values, outputs)
            types = variants_of(self.kernel).types(arguments, [*map(describe, arguments)])
            names = _kept(self._left, key, lasting_outputs(self.kernel, self.plan.outputs, *types))
        return {name: output for name, output in zip(self.plan.outputs, outputs, strict=True) if name in names}

    def adjoint(
        self, values: Sequence[Any], grads: Sequence[Any], wanted: Sequence[str], left: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return the gradients by the `wanted` inputs, given those by all outputs, and outputs that are as they were `left`."""
        left = left or {}
        coming = [name for name, grad in zip(self.plan.outputs, grads, strict=True) if self.has_gradient(grad)]
        adjoint = self.adjoint_by(tuple(wanted), tuple(coming), tuple(left))
        return adjoint.run(values, grads, tuple(left.values()))

    def adjoint_by(self, wanted: tuple[str, ...], coming: tuple[str, ...], left: tuple[str, ...] = ()) -> Adjoint:
        """Return what runs the adjoint by some inputs, from the gradients by some outputs, and from outputs as they were left."""
        found = self._adjoints.get((wanted, coming, left))
        if found is None:
            found = self._adjoints.setdefault((wanted, coming, left), self.new_adjoint(wanted, coming, left))
        return found

    def new_adjoint(self, wanted: tuple[str, ...], coming: tuple[str, ...], left: tuple[str, ...]) -> Adjoint:
        """Return the same, which has not been asked for."""
        return Adjoint(self, wanted, coming, left)


class Adjoint:
    """Runs the adjoint of an operator's kernel, by some inputs."""

    def __init__(
        self, launches: Launches, wanted: tuple[str, ...], coming: tuple[str, ...], left: tuple[str, ...]
    ) -> None:
        plan = launches.plan
        self.launches, self._names, self._coming = launches, (*wanted, *coming), coming
        self.by = [plan.inputs.index(name) for name in wanted]
        self._moving = [plan.outputs.index(name) for name in coming]
        self._left, self._left_at = left, [plan.outputs.index(name) for name in left]
        loaded = indexing_of(launches.kernel).loaded if launches.plain else ()
        self._fresh = tuple(name for name in wanted if name in loaded)
        self.is_fresh = [name in self._fresh for name in wanted]
        self.way = 0 if self._fresh else 1
        self.launchers: list[dict[Any, Any]] = [{} for _ in WAYS]

    def run(self, values: Sequence[Any], grads: Sequence[Any], left: Sequence[Any] = ()) -> list[Any]:
        """Return the gradients by the inputs, given those by all outputs, which stay the same, and outputs as they were left."""
        dims, way = self.launches.dims(values), self.way
        while True:
            launcher = self.launchers[way].get(dims) or self._launcher(way, dims)
            made = self.memory(way, dims, [values[k] for k in self.by])
            outputs, coming = self._passed(way, grads, left)
            try:
                launcher(*self.launches.arguments(values, outputs), *made, *coming)
            except KernelUnsupportedError:
                # A kernel that now reads another global may need another way than it did.
                if way == len(WAYS) - 1:
                    raise
                way = self.way = way + 1
            else:
                return made

    def memory(self, way: int, dims: tuple[int, ...], by: Sequence[Any]) -> list[Any]:
        """Return memory for the gradients by some inputs: zeros, but for what is stored."""
        zeros, empty = self.launches.zeros, self.launches.empty
        if not WAYS[way][2]:
            return [*map(zeros, by)]
        # What lies beyond the launch no thread stores.
        whole = [is_fresh and tuple(tensor.shape) == dims for is_fresh, tensor in zip(self.is_fresh, by, strict=True)]
        return [(empty if is_whole else zeros)(tensor) for is_whole, tensor in zip(whole, by, strict=True)]

    def _passed(self, way: int, grads: Sequence[Any], left: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return what is passed for the outputs, and for their gradients."""
        unused, kept, _ = WAYS[way]
        given = [self.launches.contiguous(grad) for grad in grads]
        outputs = self.standing(given, left) if unused else [self.launches.zeros(grad) for grad in grads]
        return outputs, [given[k] if kept else self.launches.copied(grads[k]) for k in self._moving]

    def standing(self, given: Sequence[Any], left: Sequence[Any]) -> list[Any]:
        """Return what stands for outputs that are not stored to: they as they were left, and anything of their kind."""
        outputs = list(given)
        for place, output in zip(self._left_at, left, strict=True):
            outputs[place] = self.launches.contiguous(output)
        return outputs

    def _launcher(self, way: int, dims: tuple[int, ...]) -> Any:
        unused, kept, fresh = WAYS[way]
        plan = self.launches.plan
        ignored = tuple(name for name in plan.outputs if name not in self._left) if unused else ()
        more = (self._coming if kept else (), ignored, self._fresh if fresh else ())
        # What it changes is memory made for it.
        derivative = plan.kernel.adjoint(self._names, *more, restores=False, left=self._left if unused else ())
        return _kept(self.launchers[way], dims, derivative.forall(dims, plan.block_dim, checked=False))


def _kept(known: dict[Any, Any], key: Any, made: Any) -> Any:
    """Keep something that was made, and not too many of its kind."""
    if len(known) >= _MOST:
        known.clear()
    known[key] = made
    return made
