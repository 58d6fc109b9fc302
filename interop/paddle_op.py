"""A kernel as a Paddle operator: a PyLayer with its gradient, and that gradient's own.

The derivatives are those of `torch_op`: the kernel's adjoint, which has by its cotangents the tangent, and by the inputs the
adjoint of the tangent. Paddle 3.3 refuses a second `paddle.grad` by only some of what a PyLayer got ("should return None at ...
position"), whatever the layer does; ``backward()`` gives the same derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.adjoint.prefixes import TANGENT
from numbridge.kernels.dependencies import check_unchanged
from numbridge.kernels.errors import KernelError, NumbridgeError, NumbridgeTypeError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.variant import variants_of
from numbridge.operators import Dims, OperatorPlan
from numbridge.paddle_bridge import dtype_to_paddle

__all__ = ["PaddleOp", "paddle_op"]


def paddle_op(
    kernel: Kernel,
    outputs: str | Sequence[str] = (),
    launch_dims: Dims = None,
    output_dims: Dims = None,
    name: str | None = None,
) -> PaddleOp:
    """Return a Paddle operator that runs a kernel.

    Parameters
    ----------
    kernel : Kernel
        What runs. Arrays that it writes and that are no outputs are changed in place; they have no gradient then.
    outputs : str or sequence of str
        The array parameters that the operator returns: new tensors, zero before the kernel runs, of the annotated dtype or
        that of the first tensor.
    launch_dims, output_dims : int, tuple of int, callable or None
        None is the shape of the first tensor. A callable gets the operator's inputs and returns one of the others.
        `output_dims` may also be a dict by output name. Vectors and matrices are the last dimensions of tensors; dims may
        include theirs or not.
    name : str, optional
        What messages call it; the kernel's name by default.

    Returns
    -------
    PaddleOp
        Called with the remaining parameters, in order, it returns a tensor, a tuple for several outputs, or None for none.

    Raises
    ------
    NumbridgeError
        If `outputs` does not name array parameters that the kernel writes.
    """
    if not isinstance(kernel, Kernel):
        raise NumbridgeTypeError(f"paddle_op: wanted a kernel, got {kernel!r}; decorate the function with @nb.kernel")
    return PaddleOp(OperatorPlan(kernel, outputs, launch_dims, output_dims), name or kernel.name)


class PaddleOp:
    """A kernel as an operator of Paddle; made by `paddle_op`.

    Attributes
    ----------
    plan : OperatorPlan
        What goes in and comes out.
    name : str
        What messages call it.
    """

    def __init__(self, plan: OperatorPlan, name: str) -> None:
        self.plan, self.kernel, self.name = plan, plan.kernel, name
        self._layers: tuple[Any, Any] | None = None

    def __call__(self, *values: Any) -> Any:
        """Run the kernel on the operator's inputs, and return its outputs."""
        import paddle

        if len(values) != len(self.plan.inputs):
            raise NumbridgeTypeError(
                f"operator {self.name} takes {len(self.plan.inputs)} arguments ({', '.join(self.plan.inputs)}), got "
                f"{len(values)}"
            )
        tracked = paddle.is_grad_enabled() and any(not a.stop_gradient for a in self._arrays(values))
        if not tracked:
            return _returned(self._run(values))
        if self.plan.mutated or not self.plan.outputs:
            raise NumbridgeError(
                f"operator {self.name} changes {', '.join(self.plan.mutated) or 'nothing it returns'} in place and has no "
                "gradient; make what it writes an output, or call it under paddle.no_grad()"
            )
        if self._layers is None:
            self._layers = _layers(self)
        numbers = tuple(v for n, v in zip(self.plan.inputs, values, strict=True) if not self._is_array(n))
        return self._layers[0].apply(numbers, *self._arrays(values))

    def __repr__(self) -> str:
        """Return name, inputs and outputs."""
        return f"<PaddleOp {self.name}({', '.join(self.plan.inputs)}) -> {', '.join(self.plan.outputs)}>"

    def _is_array(self, name: str) -> bool:
        return self.plan.kinds[name] == "array"

    def _arrays(self, values: Sequence[Any]) -> list[Any]:
        return [v for n, v in zip(self.plan.inputs, values, strict=True) if self._is_array(n)]

    def values(self, numbers: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        """Return the operator's inputs, put together from its numbers and its tensors."""
        rest = {True: iter(arrays), False: iter(numbers)}
        return [next(rest[self._is_array(name)]) for name in self.plan.inputs]

    def _outputs(self, values: Sequence[Any]) -> list[Any]:
        import paddle

        shapes, arrays = self.plan.output_shapes(values), self._arrays(values)
        first = arrays[0].dtype if arrays else paddle.float32
        place = arrays[0].place if arrays else paddle.CPUPlace()
        made = []
        for name in self.plan.outputs:
            row = self.plan.dtype(name)
            made.append(paddle.zeros(shapes[name], dtype=first if row is None else dtype_to_paddle(row)).to(place))
        return made

    def _launch(self, kernel: Kernel, values: Sequence[Any], outputs: Sequence[Any], more: Sequence[Any] = ()) -> None:
        by_name = {
            **dict(zip(self.plan.inputs, values, strict=True)),
            **dict(zip(self.plan.outputs, outputs, strict=True)),
        }
        run: Callable[..., None] = kernel.forall(tuple(map(int, self.plan.launch_shape(values))))
        run(*(_detached(by_name[parameter.name]) for parameter in self.kernel.parameters), *more)

    def _run(self, values: Sequence[Any]) -> list[Any]:
        outputs = self._outputs(values)
        self._launch(self.kernel, values, outputs)
        return outputs

    def differentiable(self, tensors: Sequence[Any], names: Sequence[str]) -> list[tuple[str, Any]]:
        """Return the floating ones among tensors, with their parameters."""
        return [(n, t) for n, t in zip(names, tensors, strict=True) if t.is_floating_point()]

    def adjoint(self, values: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """Return the gradients by the input tensors; None for integers."""
        import paddle

        inputs = self.differentiable(self._arrays(values), self.plan.arrays)
        outputs = self.differentiable(grads, self.plan.outputs)
        made = {name: paddle.zeros_like(tensor) for name, tensor in inputs}
        derivative = self.kernel.adjoint([*made, *(name for name, _ in outputs)])
        scratch = [paddle.zeros_like(g) for g in grads]
        self._launch(derivative, values, scratch, [*made.values(), *(_copied(g) for _, g in outputs)])
        return [made.get(name) for name in self.plan.arrays]

    def tangent(self, values: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the outputs, for a tangent of each floating input."""
        import paddle

        moved = self.differentiable(
            tangents, [n for n, _ in self.differentiable(self._arrays(values), self.plan.arrays)]
        )
        outputs = self._outputs(values)
        made = {name: paddle.zeros_like(tensor) for name, tensor in self.differentiable(outputs, self.plan.outputs)}
        kernel = self.kernel.tangent([*(name for name, _ in moved), *made])
        self._launch(kernel, values, outputs, [*(_copied(t) for _, t in moved), *made.values()])
        return [made.get(name, output) for name, output in zip(self.plan.outputs, outputs, strict=True)]

    def second(self, values: Sequence[Any], grads: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return the gradients by the input tensors of what the tangent gives, weighted with `grads`."""
        import paddle

        inputs = self.differentiable(self._arrays(values), self.plan.arrays)
        outputs = self.differentiable(grads, self.plan.outputs)
        kernel = self.kernel.tangent([*(name for name, _ in inputs), *(name for name, _ in outputs)])
        # A kernel may read what it wrote, so that gradients go through its outputs too.
        wanted = [*(name for name, _ in inputs), *(name for name, _ in outputs)]
        derivative = kernel.adjoint([*wanted, *(f"{TANGENT}{name}" for name, _ in outputs)])
        made = {name: paddle.zeros_like(tensor) for name, tensor in inputs}
        scratch = [paddle.zeros_like(g) for g in grads]
        results, through = ([paddle.zeros_like(g) for _, g in outputs] for _ in range(2))
        adjoints = [*made.values(), *through, *(_copied(g) for _, g in outputs)]
        more = [*(_copied(t) for t in tangents), *results, *adjoints]
        self._launch(derivative, values, scratch, more)
        return [made.get(name) for name in self.plan.arrays]


def _returned(made: Sequence[Any]) -> Any:
    return made[0] if len(made) == 1 else tuple(made) or None


def _detached(value: Any) -> Any:
    """Return a tensor as kernels may use it: none that would have to be protected from them."""
    return value.detach() if hasattr(value, "detach") else value


def _copied(tensor: Any) -> Any:
    return tensor.detach().clone()


def _tracked(made: Sequence[Any], tracked: Sequence[bool]) -> tuple[Any, ...]:
    """Return gradients as Paddle wants them: None for a tensor with ``stop_gradient=True``."""
    return tuple(gradient if asked else None for gradient, asked in zip(made, tracked, strict=True))


def _layers(op: PaddleOp) -> tuple[Any, Any]:
    """Return PyLayers of the kernel and of its adjoint."""
    import paddle

    class Adjoint(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, numbers: Any, *tensors: Any) -> Any:
            count = len(op.plan.arrays)
            ctx.save_for_backward(*tensors)
            ctx.numbers, ctx.tracked = numbers, [not t.stop_gradient for t in tensors]
            made = op.adjoint(op.values(numbers, tensors[:count]), tensors[count:])
            return tuple(g for g in made if g is not None)

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            if any(not t.stop_gradient for t in tangents) and paddle.is_grad_enabled():
                raise KernelError(f"operator {op.name} has first and second derivatives, and a third was asked for")
            count, tensors = len(op.plan.arrays), ctx.saved_tensor()
            values, grads = op.values(ctx.numbers, tensors[:count]), tensors[count:]
            by_grads = op.tangent(values, tangents)
            by_inputs = op.second(values, grads, tangents)
            return _tracked([*by_inputs, *by_grads], ctx.tracked)

    class Run(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, numbers: Any, *arrays: Any) -> Any:
            ctx.save_for_backward(*arrays)
            ctx.numbers, ctx.tracked = numbers, [not a.stop_gradient for a in arrays]
            made = _returned(op._run(op.values(numbers, arrays)))
            ctx.dependencies = variants_of(op.plan.kernel).dependencies
            return made

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            check_unchanged(f"backward through kernel {op.plan.kernel.name!r}", ctx.dependencies)
            arrays = ctx.saved_tensor()
            made = Adjoint.apply(ctx.numbers, *arrays, *grads)
            given = iter(made if isinstance(made, tuple | list) else (made,))
            return _tracked([next(given) if a.is_floating_point() else None for a in arrays], ctx.tracked)

    return Run, Adjoint
