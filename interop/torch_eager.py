"""A PyTorch operator's launches, and the quick way to them: ordinary tensors, run eagerly, with first derivatives.

torch.library's way through dispatcher, schema and autograd in Python takes several times as long as a small kernel with its
adjoint. Where nothing but autograd looks at what happens, an `autograd.Function` that launches by itself gives the same.
Everything else (transforms, modes, tracing, autocast, second derivatives) goes to the operator.

What is kept from call to call are launchers, by shape. A launcher looks at its arguments and at the kernel's globals each
time, so that none is ever stale; nothing is concluded from a tensor that was seen before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.dependencies import check_unchanged
from numbridge.kernels.errors import BufferAccessError, KernelUnsupportedError
from numbridge.kernels.indexing import indexing_of
from numbridge.kernels.launch import forall
from numbridge.operators import OperatorPlan
from numbridge.torch_bridge import dtype_to_torch

__all__ = ["Launches", "named", "quick_way", "transformed_check"]


_MOST = 256
# How an adjoint gets outputs, their gradients and those of the inputs, the cheapest first: whether anything may stand for the
# outputs, because it neither reads nor writes them; whether it only reads their gradients; and whether it stores those of the
# inputs of which each thread has an element, so that these need no zeros.
_WAYS = ((True, True, True), (True, True, False), (True, False, False), (False, True, False), (False, False, False))
_PLAIN_WAYS = 2  # those that take the outputs' gradients as they are, also for the outputs


class Launches:
    """Runs an operator's kernel and its adjoint on tensors that no kernel has to be kept from.

    Parameters
    ----------
    plan : OperatorPlan
        What goes in and comes out.
    """

    def __init__(self, plan: OperatorPlan) -> None:
        import torch

        self.plan, self.kernel = plan, plan.kernel
        given = (*plan.inputs, *plan.outputs)
        self._order = [given.index(parameter.name) for parameter in plan.kernel.parameters]
        self._dtypes = [None if row is None else dtype_to_torch(row) for row in map(plan.dtype, plan.outputs)]
        self.first = -1 if plan.first is None else plan.inputs.index(plan.first)
        # Whether arguments are inputs and then outputs, and everything has the first tensor's shape.
        self.in_order = self._order == list(range(len(given)))
        self.plain = self.in_order and plan.like_first and plan.along_first and not any(self._dtypes)
        self._alike = len(plan.outputs)
        self._like, self._empty_like, self._zeros = torch.zeros_like, torch.empty_like, zeros_maker()
        self._launchers: dict[Any, Any] = {}
        self._adjoints: dict[Any, _Adjoint] = {}

    def arguments(self, values: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Return the kernel's arguments."""
        given = [*values, *outputs]
        return given if self.in_order else [given[k] for k in self._order]

    def dims(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Return the launch's dimensions."""
        if self.plan.along_first:
            shape: tuple[int, ...] = values[self.first].shape
            return shape
        return tuple(map(int, self.plan.launch_shape(values)))

    def outputs(self, values: Sequence[Any]) -> list[Any]:
        """Return new tensors of zeros for an operator's inputs."""
        import torch

        if self.plan.like_first and self.first >= 0:
            return [self._zeros(values[self.first], dtype=kind) for kind in self._dtypes]
        first = torch.empty(0) if self.first < 0 else values[self.first]
        shapes = self.plan.output_shapes(values)
        named = zip(self.plan.outputs, self._dtypes, strict=True)
        return [first.new_zeros(shapes[name], dtype=kind) for name, kind in named]

    def zeros(self, tensor: Any) -> Any:
        """Return contiguous zeros like a tensor."""
        return self._zeros(tensor)

    def copied(self, tensor: Any) -> Any:
        """Return a contiguous copy of a tensor."""
        return copied(tensor)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Return an operator's outputs for its inputs."""
        if self.plain:
            # What follows, without a call that could be spared: a small kernel takes less time than each.
            first = values[self.first]
            outputs = [*map(self._like, [first] * self._alike)] if first.is_contiguous() else self.outputs(values)
            launcher = self._launchers.get(first.shape)
            if launcher is not None:
                launcher(*values, *outputs)
                return outputs
            if indexing_of(self.kernel).covered.issuperset(self.plan.outputs):
                # Nobody would see the zeros: each element is stored, and none is loaded.
                self._like = self._empty_like
        outputs, dims = self.outputs(values), self.dims(values)
        launcher = self._launchers.get(dims)
        if launcher is None:
            launcher = _kept(self._launchers, dims, forall(self.kernel, tuple(dims)))
        launcher(*self.arguments(values, outputs))
        return outputs

    def adjoint(self, values: Sequence[Any], grads: Sequence[Any], wanted: Sequence[str]) -> list[Any]:
        """Return the gradients by the `wanted` inputs, given those by all outputs."""
        coming = [name for name, grad in zip(self.plan.outputs, grads, strict=True) if grad.is_floating_point()]
        return self.adjoint_by(tuple(wanted), tuple(coming)).run(values, grads)

    def adjoint_by(self, wanted: tuple[str, ...], coming: tuple[str, ...]) -> _Adjoint:
        """Return what runs the adjoint by some inputs, from the gradients by some outputs."""
        found = self._adjoints.get((wanted, coming))
        if found is None:
            found = self._adjoints.setdefault((wanted, coming), _Adjoint(self, wanted, coming))
        return found


class _Adjoint:
    """Runs the adjoint of an operator's kernel, by some inputs."""

    def __init__(self, launches: Launches, wanted: tuple[str, ...], coming: tuple[str, ...]) -> None:
        import torch

        plan = launches.plan
        self._launches, self._names, self._coming = launches, (*wanted, *coming), coming
        self._by = [plan.inputs.index(name) for name in wanted]
        self._moving = [plan.outputs.index(name) for name in coming]
        self._by_all, self._first = wanted == plan.inputs, launches.first
        loaded = indexing_of(launches.kernel).loaded
        self._fresh = tuple(name for name in wanted if name in loaded) if launches.plain else ()
        self._is_fresh = [name in self._fresh for name in wanted]
        self._like, self._zeros = torch.zeros_like, zeros_maker()
        self._empty = functools.partial(torch.empty_like, memory_format=torch.contiguous_format)
        self._is_contiguous, self._contiguous = torch.Tensor.is_contiguous, torch.Tensor.contiguous
        self._plain = launches.plain and coming == plan.outputs
        self._way = 0 if self._fresh else 1
        self._launchers: list[dict[Any, Any]] = [{} for _ in _WAYS]

    def run(self, values: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """Return the gradients by the inputs, given those by all outputs, which are left as they are."""
        if self._plain and self._way < _PLAIN_WAYS:
            # As in `Launches.run`.
            shape = values[self._first].shape
            launcher = self._launchers[self._way].get(shape)
            if launcher is not None:
                by = values if self._by_all else [values[k] for k in self._by]
                if self._way == 0:
                    # What lies beyond the launch no thread stores.
                    fresh = [
                        is_fresh and tensor.shape == shape for is_fresh, tensor in zip(self._is_fresh, by, strict=True)
                    ]
                    made = [
                        (self._empty if whole else self._zeros)(tensor) for whole, tensor in zip(fresh, by, strict=True)
                    ]
                else:
                    made = [*map(self._like if all(map(self._is_contiguous, by)) else self._zeros, by)]
                given = [*map(self._contiguous, grads)]
                try:
                    launcher(*values, *given, *made, *given)
                except KernelUnsupportedError:
                    self._way += 1
                else:
                    return made
        return self._at_length(values, grads)

    def _at_length(self, values: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        dims, way = self._launches.dims(values), self._way
        made = [self._zeros(values[k]) for k in self._by]
        while True:
            launcher = self._launchers[way].get(dims) or self._launcher(way, dims)
            outputs, coming = self._passed(way, grads)
            try:
                launcher(*self._launches.arguments(values, outputs), *made, *coming)
            except KernelUnsupportedError:
                # A kernel that now reads another global may need another way than it did.
                if way == len(_WAYS) - 1:
                    raise
                way = self._way = way + 1
            else:
                return made

    def _passed(self, way: int, grads: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return what is passed for the outputs, and for their gradients."""
        unused, kept, _ = _WAYS[way]
        given = [grad.contiguous() for grad in grads]
        outputs = given if unused else [self._zeros(grad) for grad in grads]
        return outputs, [given[k] if kept else copied(grads[k]) for k in self._moving]

    def _launcher(self, way: int, dims: tuple[int, ...]) -> Any:
        unused, kept, fresh = _WAYS[way]
        outputs, kernel = self._launches.plan.outputs, self._launches.kernel
        more = (self._coming if kept else (), outputs if unused else (), self._fresh if fresh else ())
        derivative = kernel.adjoint(self._names, *more)
        return _kept(self._launchers[way], dims, derivative.forall(tuple(dims), checked=False))


def _kept(known: dict[Any, Any], key: Any, made: Any) -> Any:
    """Keep something that was made, and not too many of its kind."""
    if len(known) >= _MOST:
        known.clear()
    known[key] = made
    return made


def copied(grad: Any) -> Any:
    """Return a contiguous copy of a gradient, which the adjoint changes."""
    import torch

    return grad.clone(memory_format=torch.contiguous_format)


@functools.cache
def zeros_maker() -> Callable[..., Any]:
    """Return a function that returns contiguous zeros like a tensor, perhaps of another dtype."""
    import torch

    return functools.partial(torch.zeros_like, memory_format=torch.contiguous_format)


@functools.cache
def transformed_check() -> Callable[[], bool]:
    """Return a function that tells whether one of torch.func's transforms, or forward mode, is at work."""
    import torch
    from torch.autograd import forward_ad

    peek: Any = torch._C._functorch.peek_interpreter_stack
    return lambda: peek() is not None or forward_ad._current_level >= 0


def named(function: Any, name: str) -> Any:
    """Return an `autograd.Function` under the name of what it runs, which graphs show."""
    return type(function)(name, (function,), {})


def quick_way(
    launches: Launches, general: Callable[..., list[Any]], otherwise: Callable[[Sequence[Any]], Any]
) -> Callable[[Sequence[Any]], Any]:
    """Return a function of an operator's inputs that returns its outputs with their gradients; it is not to be traced.

    Parameters
    ----------
    launches : Launches
        What runs.
    general : callable
        ``general(inputs, grads, wanted)`` returns the gradients by all inputs as the operator's own derivative does.
    otherwise : callable
        Called with the inputs instead, where more than autograd looks on, or for unusual tensors.
    """
    import torch
    from torch.autograd import forward_ad, profiler

    state: Any = torch._C
    peek, dispatching = state._functorch.peek_interpreter_stack, state._len_torch_dispatch_stack
    overriding, casting, tracing = state._len_torch_function_stack, state._is_any_autocast_enabled, state._is_tracing
    plain, parameter, tracked, run = torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled, launches.run
    apply = _function(launches, general)

    def call(values: Sequence[Any]) -> Any:
        requires_grad = False
        for value in values:
            kind = type(value)
            if kind is plain or kind is parameter:
                if value.requires_grad:
                    requires_grad = True
            elif isinstance(value, plain):
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
            if any(map(_is_hollow, values)):
                return otherwise(values)
            raise
        return made[0] if len(made) == 1 else tuple(made)

    return call


def _is_hollow(value: Any) -> Any:
    """Tell whether a value is a tensor without data, or one around another: inside a transform, or left over from one.

    They are plain tensors to Python. Launchers refuse them before anything has run, so nobody has to ask beforehand.
    """
    import torch

    functorch: Any = torch._C._functorch
    if not isinstance(value, torch.Tensor):
        return False
    # `is_grads_batched` has a kind of batches of its own.
    return value.is_meta or functorch.is_functorch_wrapped_tensor(value) or functorch.is_legacy_batchedtensor(value)


def _function(launches: Launches, general: Callable[..., list[Any]]) -> Callable[..., Any]:
    """Return the `apply` of an `autograd.Function` for inputs that only autograd sees."""
    import torch

    plan, run, kernel = launches.plan, launches.run, launches.kernel
    state: Any = torch._C
    peek, dispatching = state._functorch.peek_interpreter_stack, state._len_torch_dispatch_stack
    overriding, tracing = state._len_torch_function_stack, state._is_tracing
    tracked, is_compiling = torch.is_grad_enabled, torch.compiler.is_dynamo_compiling
    plain, parameter = torch.Tensor, torch.nn.Parameter
    arrays = [k for k, name in enumerate(plan.inputs) if plan.kinds[name] == "array"]
    alone, several = len(arrays) == len(plan.inputs), len(plan.outputs) > 1
    # (inputs that need a gradient, whether each output's gradient is floating) -> their adjoint
    known: dict[Any, Callable[..., list[Any]]] = {}

    def adjoint(key: Any, needed: tuple[bool, ...], grads: Sequence[Any]) -> Callable[..., list[Any]]:
        wanted = tuple(plan.inputs[k] for k in arrays if needed[k])
        coming = tuple(n for n, grad in zip(plan.outputs, grads, strict=True) if grad.is_floating_point())
        found = known[key] = launches.adjoint_by(wanted, coming).run
        return found

    def at_length(inputs: Sequence[Any], grads: Sequence[Any], needed: tuple[bool, ...]) -> Any:
        return tuple(general(inputs, grads, [needed[k] for k in arrays]))

    class Quick(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Any) -> Any:
            if alone:
                ctx.save_for_backward(*values)
            else:
                ctx.save_for_backward(*[values[k] for k in arrays])
                ctx.others = [None if k in arrays else value for k, value in enumerate(values)]
            made = run(values)
            ctx.dependencies = kernel.variants.dependencies
            return tuple(made) if several else made[0]

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if ctx.dependencies:
                check_unchanged(f"backward through kernel {kernel.name!r}", ctx.dependencies)
            tensors = inputs = ctx.saved_tensors
            needed = ctx.needs_input_grad
            if not alone:
                inputs = list(ctx.others)
                for k, tensor in zip(arrays, tensors, strict=True):
                    inputs[k] = tensor
            # With create_graph the gradients are differentiated in turn.
            if is_compiling() or tracked() or dispatching() or overriding() or tracing() or peek() is not None:
                return at_length(inputs, grads, needed)
            # Hooks on saved tensors, and whoever calls backward, may bring tensors of any kind.
            for tensor in (*tensors, *grads):
                kind = type(tensor)
                if kind is not plain and kind is not parameter:
                    return at_length(inputs, grads, needed)
            key = (needed, *[grad.is_floating_point() for grad in grads]) if several else needed
            try:
                made = (known.get(key) or adjoint(key, needed, grads))(inputs, grads)
            except BufferAccessError:
                if any(map(_is_hollow, (*tensors, *grads))):
                    return at_length(inputs, grads, needed)
                raise
            if len(made) == len(inputs):
                return tuple(made)
            found = iter(made)
            return tuple([next(found) if need else None for need in needed])

    # `Quick.apply` would look for transforms, and for tensors that have outlived theirs, once more.
    found: Callable[..., Any] = super(torch.autograd.Function, named(Quick, kernel.name)).apply
    return found
