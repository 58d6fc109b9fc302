"""A PyTorch operator's launches, and the quick way to them: ordinary tensors, run eagerly, with first derivatives.

torch.library's way through dispatcher, schema and autograd in Python takes several times as long as a small kernel with its
adjoint. Where nothing but autograd looks at what happens, an `autograd.Function` that launches by itself gives the same.
Everything else (transforms, modes, tracing, autocast, second derivatives) goes to the operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.errors import KernelUnsupportedError
from numbridge.kernels.launch import remembered
from numbridge.operators import OperatorPlan
from numbridge.torch_bridge import dtype_to_torch

__all__ = ["Launches", "ordinary_check", "quick_way", "transformed_check"]


_MOST = 256


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
        self._dtypes = [None if row is None else dtype_to_torch(row) for row in map(plan.dtype, plan.outputs)]
        self._first = -1 if plan.first is None else plan.inputs.index(plan.first)
        # Derivatives that must not have the gradients that come in themselves, but copies.
        self._changing: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
        self._adjoints: dict[Any, Any] = {}
        self._plain = plan.like_first and plan.along_first and self._first >= 0

    def arguments(self, values: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Return the kernel's arguments."""
        given = [*values, *outputs]
        return [given[k] for k in self._order]

    def dims(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Return the launch's dimensions."""
        if self.plan.along_first:
            return tuple(values[self._first].shape)
        return tuple(map(int, self.plan.launch_shape(values)))

    def outputs(self, values: Sequence[Any]) -> list[Any]:
        """Return new tensors of zeros for an operator's inputs."""
        import torch

        first = torch.empty(0) if self._first < 0 else values[self._first]
        if self.plan.like_first:
            return [torch.zeros_like(first, dtype=kind, memory_format=torch.contiguous_format) for kind in self._dtypes]
        shapes = self.plan.output_shapes(values)
        named = zip(self.plan.outputs, self._dtypes, strict=True)
        return [first.new_zeros(shapes[name], dtype=kind) for name, kind in named]

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Return an operator's outputs for its inputs."""
        outputs = self.outputs(values)
        dims = tuple(values[self._first].shape) if self._plain else self.dims(values)
        remembered(self.kernel, dims)(*self.arguments(values, outputs))
        return outputs

    def adjoint(self, values: Sequence[Any], grads: Sequence[Any], wanted: Sequence[str]) -> list[Any]:
        """Return the gradients by the `wanted` inputs, given those by all outputs."""
        inputs, outputs, zeros = self.plan.inputs, self.plan.outputs, _zeros()
        made = [zeros(values[inputs.index(name)]) for name in wanted]
        moving = [k for k, grad in enumerate(grads) if grad.is_floating_point()]
        by, kept = tuple(wanted), tuple(outputs[k] for k in moving)
        arguments = [*self.arguments(values, [zeros(grad) for grad in grads]), *made]
        dims, key = self.dims(values), (by, kept)
        if key not in self._changing:
            try:
                self._adjoint(by, kept, kept, dims)(*arguments, *[grads[k].contiguous() for k in moving])
            except KernelUnsupportedError:
                self._changing.add(key)
            else:
                return made
        self._adjoint(by, kept, (), dims)(*arguments, *[_copied(grads[k]) for k in moving])
        return made

    def _adjoint(self, wanted: tuple[str, ...], coming: tuple[str, ...], kept: tuple[str, ...], dims: Any) -> Any:
        """Return the launcher of an adjoint; adjoints of the outputs `kept` are only read."""
        key = (wanted, coming, kept, dims)
        found = self._adjoints.get(key)
        if found is None:
            if len(self._adjoints) >= _MOST:
                self._adjoints.clear()
            found = self.kernel.adjoint((*wanted, *coming), kept).forall(dims, checked=False)
            self._adjoints[key] = found
        return found


def _copied(grad: Any) -> Any:
    """Return a contiguous copy of a gradient, which the adjoint changes."""
    import torch

    return grad.clone(memory_format=torch.contiguous_format)


@functools.cache
def _zeros() -> Callable[[Any], Any]:
    """Return a function that returns contiguous zeros like a tensor."""
    import torch

    return functools.partial(torch.zeros_like, memory_format=torch.contiguous_format)


@functools.cache
def transformed_check() -> Callable[[], bool]:
    """Return a function that tells whether one of torch.func's transforms, or forward mode, is at work."""
    import torch
    from torch.autograd import forward_ad

    peek: Any = torch._C._functorch.peek_interpreter_stack
    return lambda: peek() is not None or forward_ad._current_level >= 0


@functools.cache
def ordinary_check() -> Callable[[Sequence[Any]], bool]:
    """Return a function that tells whether values are plain tensors with data, or none, and only autograd looks on.

    It is not to be asked while torch compiles, or inside its transforms.
    """
    import torch

    state: Any = torch._C
    dispatching, overriding = state._len_torch_dispatch_stack, state._len_torch_function_stack
    casting, tracing = state._is_any_autocast_enabled, state._get_tracing_state
    plain, parameter = torch.Tensor, torch.nn.Parameter

    def ordinary(values: Sequence[Any]) -> bool:
        for value in values:
            kind = type(value)
            if kind is plain or kind is parameter:
                if value.is_meta:
                    return False
            elif isinstance(value, plain):
                return False
        return not (dispatching() or overriding() or casting()) and tracing() is None

    return ordinary


def quick_way(launches: Launches, general: Callable[..., list[Any]]) -> Callable[[Sequence[Any]], Any]:
    """Return a function of an operator's inputs, which must be ordinary, that returns its outputs with their gradients.

    Parameters
    ----------
    launches : Launches
        What runs.
    general : callable
        ``general(inputs, grads, wanted)`` returns the gradients by all inputs as the operator's own derivative does.
    """
    import torch

    plan, is_ordinary = launches.plan, ordinary_check()
    tracked = torch.is_grad_enabled
    arrays = [k for k, name in enumerate(plan.inputs) if plan.kinds[name] == "array"]
    names = [plan.inputs[k] for k in arrays]

    def run(values: Sequence[Any]) -> Any:
        outputs = launches.run(values)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    alone = len(arrays) == len(plan.inputs)

    class Quick(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            # A launch asks of what requires a gradient whether that is lost, which takes longer than the launch.
            if alone:
                ctx.save_for_backward(*values)
                return run([value.detach() for value in values])
            given = list(values)
            ctx.save_for_backward(*[values[k] for k in arrays])
            ctx.others = [None if k in arrays else value for k, value in enumerate(values)]
            for k in arrays:
                given[k] = given[k].detach()
            return run(given)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            tensors = ctx.saved_tensors
            inputs = tensors if alone else list(ctx.others)
            if not alone:
                for k, tensor in zip(arrays, tensors, strict=True):
                    inputs[k] = tensor
            needed = ctx.needs_input_grad
            wanted = [needed[k] and inputs[k].is_floating_point() for k in arrays]
            # With create_graph the gradients are differentiated in turn.
            if tracked() or not is_ordinary((*tensors, *grads)):
                return tuple(general(inputs, grads, wanted))
            made = launches.adjoint(inputs, grads, [name for name, want in zip(names, wanted, strict=True) if want])
            if len(made) == len(inputs):
                return tuple(made)
            found = iter(made)
            by_input: list[Any] = [None] * len(inputs)
            for k, want in zip(arrays, wanted, strict=True):
                by_input[k] = next(found) if want else None
            return tuple(by_input)

    def call(values: Sequence[Any]) -> Any:
        if tracked() and any(values[k].requires_grad for k in arrays):
            return Quick.apply(*values)
        return run(values)

    return call
