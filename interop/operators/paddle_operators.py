"""Kernels as PyLayers of Paddle: a kernel or a tangent of it, and the adjoint of either, with derivatives of every order.

`paddle.grad` leaves out what it was not asked for, and then refuses what a PyLayer gives for an argument that it has left out,
which a layer cannot know. It does not look into an argument that is a list, so the tensors that gradients go to come as one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numbridge.bridges.paddle_bridge import dtype_to_paddle
from numbridge.kernels.errors import NumbridgeError
from numbridge.kernels.language.dependencies import Dependency, check_unchanged
from numbridge.kernels.variant import variants_of
from numbridge.operators import operator_launches
from numbridge.operators.operator_levels import Level, detached, returned

__all__ = ["Launches", "Operator"]


class Launches(operator_launches.Launches):
    """Runs an operator's kernel and its adjoint on tensors of Paddle's."""

    def outputs(self, values: Sequence[Any]) -> list[Any]:
        """Return new tensors of zeros for an operator's inputs."""
        import paddle

        self.refuse_truncation(values)
        like, shapes = self._like(values), self.plan.output_shapes(values)
        place = paddle.CPUPlace() if like is None else like.place
        named = zip(self.plan.outputs, self.dtypes(values), strict=True)
        return [paddle.zeros(shapes[name], dtype=dtype).to(place) for name, dtype in named]

    def dtypes(self, values: Sequence[Any]) -> list[Any]:
        """Return the dtype of each output for an operator's inputs."""
        import paddle

        like, rows = self._like(values), map(self.plan.dtype, self.plan.outputs)
        first = paddle.float32 if like is None else like.dtype
        return [first if row is None else dtype_to_paddle(row) for row in rows]

    def _like(self, values: Sequence[Any]) -> Any:
        """Return the tensor that outputs are like, or None."""
        named = zip(self.plan.inputs, values, strict=True)
        arrays = [value for name, value in named if self.plan.kinds[name] == "array"]
        return values[self.first] if self.first >= 0 else arrays[0] if arrays else None

    def zeros(self, tensor: Any) -> Any:
        """Return contiguous zeros like a tensor."""
        import paddle

        return paddle.zeros_like(tensor)

    def empty(self, tensor: Any) -> Any:
        """Return contiguous memory like a tensor's, which holds anything."""
        import paddle

        return paddle.empty_like(tensor)

    def contiguous(self, tensor: Any) -> Any:
        """Return a tensor, or a copy of it that is contiguous."""
        # Paddle's own `contiguous` gives the very tensor other memory, which ends what it shares, and counts as a change of it.
        return tensor if tensor.is_contiguous() else tensor.clone()

    def strides(self, tensor: Any) -> Sequence[int]:
        """Return how many numbers lie from one to the next along each dimension of a tensor."""
        found: Sequence[int] = tensor.strides
        return found

    def copied(self, tensor: Any) -> Any:
        """Return a contiguous copy of a tensor."""
        return tensor.clone()

    def has_gradient(self, tensor: Any) -> bool:
        """Tell whether a tensor holds floating-point numbers, real or complex."""
        return _has_gradient(tensor)


def _has_gradient(tensor: Any) -> bool:
    # Paddle's own question takes longer than a launch.
    return tensor.dtype in _inexact_dtypes()


@functools.cache
def _inexact_dtypes() -> frozenset[Any]:
    import paddle

    names = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128")
    return frozenset(getattr(paddle, name) for name in names)


class _Held:
    """Values that Paddle must not look into; a PyLayer does not notice by itself when one is changed in place.

    `dependencies` are the variables that the kernel was compiled with, `left` outputs that the adjoint takes as they were left.
    """

    def __init__(self, name: str, values: Sequence[Any], tracked: Sequence[int], rest: Any = None) -> None:
        self.tracked, self.rest = list(tracked), rest
        self.dependencies: tuple[Dependency, ...] = ()
        self._left: dict[str, tuple[Any, int]] = {}
        self._name = name
        self._values = [None if k in self.tracked else value for k, value in enumerate(values)]
        self._versions = [(v, v.inplace_version) for v in values if hasattr(v, "inplace_version")]

    def together(self, tensors: Sequence[Any]) -> list[Any]:
        """Return all values, given those that gradients go to."""
        made = list(self._values)
        for k, tensor in zip(self.tracked, tensors, strict=True):
            made[k] = tensor
        return made

    def unchanged(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the same, or refuse."""
        check_unchanged(f"backward through operator {self._name}", self.dependencies)
        if any(tensor.inplace_version != version for tensor, version in self._versions):
            raise NumbridgeError(
                f"operator {self._name}: a tensor that it was given has been changed in place before its gradient was asked "
                "for; change a copy, x.clone()"
            )
        return self.together(tensors)

    def leave(self, outputs: Mapping[str, Any]) -> None:
        """Keep outputs, by other tensors of the same memory: they lead here themselves."""
        self._left = {name: (output.detach(), output.inplace_version) for name, output in outputs.items()}

    def left(self) -> dict[str, Any]:
        """Return the outputs that were kept; those that have been changed meanwhile are to be computed again."""
        return {name: output for name, (output, version) in self._left.items() if output.inplace_version == version}


class Operator:
    """A level's operator and its adjoint's, as Paddle's autograd follows them.

    Parameters
    ----------
    level : Level
        What it runs.
    name : str
        What messages call it.
    """

    def __init__(self, level: Level, name: str) -> None:
        self.level, self.name = level, name
        self._tangents: dict[Any, Operator] = {}
        self._run, self._adjoint = _layers(self)

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Return the outputs."""
        tracked = _tracked(values)
        if not tracked:
            return self.level.run([detached(value) for value in values])
        made = self._run.apply(_Held(self.name, values, tracked), [values[k] for k in tracked])
        return list(made) if isinstance(made, tuple | list) else [made]

    def adjoint(
        self, values: Sequence[Any], grads: Sequence[Any], wanted: Sequence[str], left: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return the gradients by the `wanted` inputs, given those by all outputs, and outputs that are as they were `left`."""
        everything = [*values, *grads]
        tracked = _tracked(everything)
        if not tracked:
            return self.level.adjoint([detached(v) for v in values], [detached(g) for g in grads], wanted, left)
        made = self._adjoint.apply(
            _Held(self.name, everything, tracked, tuple(wanted)), [everything[k] for k in tracked]
        )
        return list(made) if isinstance(made, tuple | list) else [made]

    def tangent(self, moved: Sequence[str], floats: Sequence[str]) -> Operator:
        """Return the operator of the tangent by some inputs, of some outputs."""
        key = (tuple(moved), tuple(floats))
        if key not in self._tangents:
            self._tangents[key] = Operator(self.level.tangent(moved, floats), self.name)
        return self._tangents[key]

    def run_backward(self, held: _Held, tensors: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """Return the gradients by the tensors that gradients go to."""
        wanted = [self.level.inputs[k] for k in held.tracked]
        return self.adjoint(held.unchanged(tensors), grads, wanted, held.left())

    def adjoint_backward(self, held: _Held, tensors: Sequence[Any], seconds: Sequence[Any]) -> list[Any]:
        """Return the gradients of the adjoint: by inputs the adjoint of the tangent, by gradients of outputs the tangent."""
        everything, count = held.unchanged(tensors), len(self.level.inputs)
        values, grads = everything[:count], everything[count:]
        floats = [n for n, grad in zip(self.level.outputs, grads, strict=True) if _has_gradient(grad)]
        tangent, moved = self.tangent(held.rest, floats), [*values, *seconds]
        by_inputs = [self.level.inputs[k] for k in held.tracked if k < count]
        made = []
        if by_inputs:
            made += tangent.adjoint(moved, [grad for grad in grads if _has_gradient(grad)], by_inputs)
        if len(made) < len(held.tracked):
            by_grads = dict(zip(floats, tangent(moved), strict=True))
            made += [by_grads[self.level.outputs[k - count]] for k in held.tracked if k >= count]
        return made


def _tracked(values: Sequence[Any]) -> list[int]:
    """Return the places of the tensors that gradients go to."""
    import paddle

    if not paddle.is_grad_enabled():
        return []
    tensors = ((k, value) for k, value in enumerate(values) if isinstance(value, paddle.Tensor))
    return [k for k, tensor in tensors if not tensor.stop_gradient and _has_gradient(tensor)]


def _layers(operator: Operator) -> tuple[Any, Any]:
    """Return PyLayers of a level and of its adjoint."""
    import paddle

    def layer(name: str, run: Callable[..., list[Any]], back: Callable[..., list[Any]]) -> Any:
        def forward(ctx: Any, held: _Held, tensors: Sequence[Any]) -> Any:
            ctx.held = held
            ctx.save_for_backward(*tensors)
            made = run(held, tensors)
            held.dependencies = variants_of(operator.level.launches.plan.kernel).dependencies
            integers = [output for output in made if not _has_gradient(output)]
            if integers:
                ctx.mark_non_differentiable(*integers)
            return returned(made)

        def backward(ctx: Any, *grads: Any) -> Any:
            return back(ctx.held, ctx.saved_tensor(), grads)

        parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(name, (paddle.autograd.PyLayer,), parts)

    def run(held: _Held, tensors: Sequence[Any]) -> list[Any]:
        values = [detached(value) for value in held.together(tensors)]
        made = operator.level.run(values)
        held.leave(operator.level.left(values, made))
        return copied(made) if operator.level.spare else made

    def adjoint(held: _Held, tensors: Sequence[Any]) -> list[Any]:
        values, count = [detached(value) for value in held.together(tensors)], len(operator.level.inputs)
        return copied(operator.level.adjoint(values[:count], values[count:], held.rest))

    def copied(made: list[Any]) -> list[Any]:
        # If the last that Paddle did before it goes on with the nodes of a graph was to tell where a tensor lies, by the function
        # through which kernels read tensors, it leaves the way back out of the next: third derivatives lacked terms. Any of its
        # operations in between helps. These layers run for derivatives of derivatives alone.
        return [*map(operator.level.launches.copied, made)]

    return layer("Run", run, operator.run_backward), layer("Adjoint", adjoint, operator.adjoint_backward)
