"""A PyTorch operator's launches, and the quick way to them: ordinary tensors, run eagerly, with first derivatives.

torch.library's way through dispatcher, schema and autograd in Python takes several times as long as a small kernel with its
adjoint. Where nothing but autograd looks at what happens, an `autograd.Function` that launches by itself gives the same.
Everything else (transforms, modes, tracing, autocast, second derivatives) goes to the operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import numpy as np

from numbridge.bridges.torch_bridge import dtype_to_torch
from numbridge.kernels.errors import BufferAccessError, KernelUnsupportedError
from numbridge.kernels.language.dependencies import check_unchanged
from numbridge.operators import operator_launches
from numbridge.operators.operators import OperatorPlan

__all__ = ["Launches", "forward_mode_check", "has_gradient", "named", "plain_numbers", "quick_way"]


_PLAIN_WAYS = 2  # those of `WAYS` that take the outputs' gradients as they are, also for the outputs


def has_gradient(tensor: Any) -> bool:
    """Tell whether a tensor holds floating-point numbers, real or complex."""
    return bool(tensor.is_floating_point() or tensor.is_complex())


def plain_numbers(values: Sequence[Any]) -> list[Any]:
    """Return inputs with Python's numbers for NumPy's: torch's dispatcher takes few of those, and cuts floats to integers."""
    return [value.item() if isinstance(value, np.generic) else value for value in values]


class Launches(operator_launches.Launches):
    """Runs an operator's kernel and its adjoint on tensors of torch's, with little between a small kernel and its caller."""

    def __init__(self, plan: OperatorPlan) -> None:
        import torch

        super().__init__(plan)
        self._dtypes = [None if row is None else dtype_to_torch(row) for row in map(plan.dtype, plan.outputs)]
        self._outputs = plan.outputs
        self._is_sure = not plan.may_truncate()
        self._likes = (torch.zeros_like, torch.empty_like)
        self._zeros = zeros_maker()
        self._empty = functools.partial(torch.empty_like, memory_format=torch.contiguous_format)

    def outputs(self, values: Sequence[Any]) -> list[Any]:
        """Return new tensors of zeros for an operator's inputs."""
        import torch

        self.refuse_truncation(values)
        if self.plan.like_first and self.first >= 0:
            return [self._zeros(values[self.first], dtype=kind) for kind in self._dtypes]
        first = torch.empty(0) if self.first < 0 else values[self.first]
        shapes = self.plan.output_shapes(values)
        named = zip(self.plan.outputs, self._dtypes, strict=True)
        return [first.new_zeros(shapes[name], dtype=kind) for name, kind in named]

    def zeros(self, tensor: Any) -> Any:
        """Return contiguous zeros like a tensor."""
        return self._zeros(tensor)

    def empty(self, tensor: Any) -> Any:
        """Return contiguous memory like a tensor's, which holds anything."""
        return self._empty(tensor)

    def contiguous(self, tensor: Any) -> Any:
        """Return a tensor, or a copy of it that is contiguous."""
        return tensor.contiguous()

    def has_gradient(self, tensor: Any) -> bool:
        """Tell whether a tensor holds floating-point numbers, real or complex."""
        return has_gradient(tensor)

    def strides(self, tensor: Any) -> Sequence[int]:
        """Return how many numbers lie from one to the next along each dimension of a tensor."""
        found: Sequence[int] = tensor.stride()
        return found

    def copied(self, tensor: Any) -> Any:
        """Return a contiguous copy of a tensor."""
        import torch

        return tensor.clone(memory_format=torch.contiguous_format)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Return an operator's outputs for its inputs."""
        if self.plain:
            # The same, without a call that could be spared: a small kernel takes less time than each.
            first = values[self.first]
            launcher = self._launchers.get(first.shape)
            if launcher is not None and first.is_contiguous() and (self._is_sure or first.is_floating_point()):
                like = self._likes[self._is_covered]
                made = []
                for _ in self._outputs:
                    made.append(like(first))  # noqa: PERF401 - a comprehension takes longer, here in Python 3.11
                launcher(*values, *made)
                return made
        return super().run(values)

    def new_adjoint(self, wanted: tuple[str, ...], coming: tuple[str, ...], left: tuple[str, ...]) -> _Adjoint:
        """Return what runs the adjoint by some inputs, from the gradients by some outputs, and from outputs as they were left."""
        return _Adjoint(self, wanted, coming, left)


class _Adjoint(operator_launches.Adjoint):
    """Runs the adjoint of an operator's kernel, by some inputs."""

    def __init__(
        self, launches: Launches, wanted: tuple[str, ...], coming: tuple[str, ...], left: tuple[str, ...]
    ) -> None:
        import torch

        super().__init__(launches, wanted, coming, left)
        self._first, self._plain = launches.first, launches.plain and coming == launches.plan.outputs
        # For each way: an input's place, what makes memory for its gradient, and whether only where the launch covers the tensor
        fresh = zip(self.by, self.is_fresh, strict=True)
        makers = (torch.zeros_like, torch.empty_like)
        stored = [(k, makers[is_fresh], is_fresh and k != self._first) for k, is_fresh in fresh]
        self._likes = (stored, [(k, torch.zeros_like, False) for k in self.by])

    def run(self, values: Sequence[Any], grads: Sequence[Any], left: Sequence[Any] = ()) -> list[Any]:
        """Return the gradients by the inputs, given those by all outputs, which stay the same, and outputs as they were left."""
        way = self.way  # another thread may change it
        if self._plain and way < _PLAIN_WAYS:
            # As in `Launches.run`.
            shape = values[self._first].shape
            launcher = self.launchers[way].get(shape)
            if launcher is not None:
                made = []
                for k, like, is_whole in self._likes[way]:
                    tensor = values[k]
                    if not tensor.is_contiguous() or (is_whole and tensor.shape != shape):
                        made = self.memory(way, shape, [values[k] for k in self.by])
                        break
                    made.append(like(tensor))
                given = grads
                for grad in grads:
                    if not grad.is_contiguous():
                        given = [grad.contiguous() for grad in grads]
                        break
                outputs = self.standing(given, left) if left else given
                try:
                    launcher(*values, *outputs, *made, *given)
                except KernelUnsupportedError:
                    self.way = way + 1
                else:
                    return made
        return super().run(values, grads, left)


def _version_of(tensor: Any) -> Any:
    """Return a tensor without memory that counts the changes of another."""
    counted = tensor.detach()
    counted.data = counted.new_empty(0)
    return counted


@functools.cache
def zeros_maker() -> Callable[..., Any]:
    """Return a function that returns contiguous zeros like a tensor, perhaps of another dtype."""
    import torch

    return functools.partial(torch.zeros_like, memory_format=torch.contiguous_format)


@functools.cache
def forward_mode_check() -> Callable[[], bool]:
    """Return a function that tells whether forward mode is at work, and none of torch.func's transforms."""
    import torch
    from torch.autograd import forward_ad

    peek: Any = torch._C._functorch.peek_interpreter_stack
    return lambda: forward_ad._current_level >= 0 and peek() is None


def named(function: Any, name: str) -> Any:
    """Return an `autograd.Function` under the name of what it runs, which graphs show."""
    return type(function)(name, (function,), {})


def quick_way(
    launches: Launches, general: Callable[..., list[Any]] | None, otherwise: Callable[[Sequence[Any]], Any]
) -> Callable[[Sequence[Any]], Any]:
    """Return a function of an operator's inputs that returns its outputs with their gradients; it is not to be traced.

    Parameters
    ----------
    launches : Launches
        What runs.
    general : callable
        ``general(inputs, grads, wanted)`` returns the gradients by all inputs as the operator's own derivative does; None for an
        operator that has none, since it changes its inputs.
    otherwise : callable
        Called with the inputs instead, where more than autograd looks on, or for unusual tensors and tuples.
    """
    import torch
    from torch.autograd import forward_ad, profiler

    state: Any = torch._C
    peek, dispatching = state._functorch.peek_interpreter_stack, state._len_torch_dispatch_stack
    overriding, casting, tracing = state._len_torch_function_stack, state._is_any_autocast_enabled, state._is_tracing
    plain, parameter, tracked, run = torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled, launches.run
    usual = (float, int, bool)
    special: tuple[Any, ...] = (plain, tuple, NoneType)
    if general is not None:
        apply = _function(launches, general)
    else:
        special = (object,)  # what is no tensor of torch's is not to be changed

        def apply(*values: Any) -> Any:
            return otherwise(values)

    def call(values: Sequence[Any]) -> Any:
        requires_grad = False
        for value in values:
            kind = type(value)
            if kind is plain or kind is parameter:
                if value.requires_grad:
                    requires_grad = True
            elif kind not in usual and isinstance(value, special):
                return otherwise(values)
        if (
            dispatching()
            or overriding()
            or casting()
            or tracing()
            or peek() is not None
            or forward_ad._current_level >= 0
            or profiler._is_profiler_enabled
        ):
            return otherwise(values)
        try:
            if requires_grad and tracked():
                return apply(*values)
            made = run(values)
        except BufferAccessError:
            if any(map(_is_left_to_torch, values)):
                return otherwise(values)
            raise
        return made[0] if len(made) == 1 else tuple(made) or None

    return call


def _is_left_to_torch(value: Any) -> Any:
    """Tell whether a value is a tensor that torch's dispatcher makes an ordinary one of, or knows what to do with.

    Such are tensors without data, those around others (inside a transform, or left over from one), and those whose sign,
    conjugate or zeros are yet to be computed. All are plain tensors to Python. Launchers refuse them before anything has run, so
    nobody has to ask beforehand.
    """
    import torch

    functorch: Any = torch._C._functorch
    if not isinstance(value, torch.Tensor):
        return False
    # `is_grads_batched` has a kind of batches of its own.
    is_around = functorch.is_functorch_wrapped_tensor(value) or functorch.is_legacy_batchedtensor(value)
    return value.is_meta or is_around or value.is_neg() or value.is_conj() or value._is_zerotensor()


def _function(launches: Launches, general: Callable[..., list[Any]]) -> Callable[..., Any]:
    """Return the `apply` of an `autograd.Function` for inputs that only autograd sees."""
    import torch

    plan, run, kernel = launches.plan, launches.run, launches.kernel
    state: Any = torch._C
    peek, dispatching = state._functorch.peek_interpreter_stack, state._len_torch_dispatch_stack
    overriding, tracing = state._len_torch_function_stack, state._is_tracing
    tracked, is_compiling = torch.is_grad_enabled, torch.compiler.is_dynamo_compiling
    without_versions = torch.is_inference_mode_enabled
    plain, parameter, strided, numbers = torch.Tensor, torch.nn.Parameter, torch.strided, plan.numbers
    arrays = [k for k, name in enumerate(plan.inputs) if plan.kinds[name] == "array"]
    several, loads_outputs = len(plan.outputs) > 1, launches.loads_outputs
    # (inputs that need a gradient, whether each output's gradient is floating, outputs that are kept)
    # -> what their adjoint runs, and other inputs
    known: dict[Any, tuple[Callable[..., list[Any]], list[int]]] = {}

    def adjoint(
        key: Any, needed: tuple[bool, ...], grads: Sequence[Any], left: tuple[str, ...]
    ) -> tuple[Callable[..., list[Any]], list[int]]:
        wanted = tuple(plan.inputs[k] for k in arrays if needed[k])
        coming = tuple(n for n, grad in zip(plan.outputs, grads, strict=True) if has_gradient(grad))
        others = [k for k, name in enumerate(plan.inputs) if name not in wanted]
        found = known[key] = launches.adjoint_by(wanted, coming, left).run, others
        return found

    def at_length(inputs: Sequence[Any], grads: Sequence[Any], needed: tuple[bool, ...]) -> Any:
        return tuple(general(plain_numbers(inputs), grads, [needed[k] for k in arrays]))

    class Quick(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            made, kept = run(values), values
            if numbers:
                kept = tuple([values[k] for k in arrays])
                ctx.numbers = [(k, values[k]) for k in numbers]
            # What is made in inference mode counts no changes, and may not be saved.
            if loads_outputs and not without_versions():
                left = launches.left(values, made)
                ctx.left = tuple(left)
                # With versions of their own: who changes an output has it computed again, and is not refused.
                kept += tuple([output.data for output in left.values()])
                ctx.versions = [(_version_of(output), output._version) for output in left.values()]
            ctx.save_for_backward(*kept)
            if kernel.variants.dependencies:
                ctx.dependencies = kernel.variants.dependencies
            return tuple(made) if several else made[0]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if ctx.dependencies:
                check_unchanged(f"backward through kernel {kernel.name!r}", ctx.dependencies)
            tensors, names, left = ctx.saved_tensors, ctx.left, ()
            if names:
                tensors, left = tensors[: -len(names)], tensors[-len(names) :]
                if any(tensor._version != version for tensor, version in ctx.versions):
                    names = left = ()
            inputs = tensors
            if numbers:
                inputs = [*tensors]
                for k, number in ctx.numbers:
                    inputs.insert(k, number)
            needed = ctx.needs_input_grad
            # With create_graph the gradients are differentiated in turn.
            if is_compiling() or tracked() or dispatching() or overriding() or tracing() or peek() is not None:
                return at_length(inputs, grads, needed)
            # Hooks on saved tensors, and whoever calls backward, may bring tensors of any kind.
            for tensor in tensors + left + grads:
                kind = type(tensor)
                if kind is not plain and kind is not parameter:
                    return at_length(inputs, grads, needed)
            key = (needed, names, *map(has_gradient, grads)) if several or names else needed
            back, others = known.get(key) or adjoint(key, needed, grads, names)
            try:
                made = back(inputs, grads, left)
            except (BufferAccessError, RuntimeError):
                # Of a sparse gradient torch itself refuses to say whether it is contiguous.
                if any(map(_is_left_to_torch, (*tensors, *left, *grads))) or any(
                    grad.layout != strided for grad in grads
                ):
                    return at_length(inputs, grads, needed)
                raise
            for k in others:
                made.insert(k, None)
            return tuple(made)

    function = named(Quick, kernel.name)
    # The node in torch's graph: it has no dependencies and keeps no outputs unless some are set, and looks for its backward at
    # every call.
    node = function._backward_cls
    node.dependencies, node.left, node.apply = (), (), function.backward
    # `Quick.apply` would look for transforms, and for tensors that have outlived theirs, once more.
    found: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return found
