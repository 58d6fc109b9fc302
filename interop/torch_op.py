"""A kernel as a PyTorch operator: torch.library with fake tensors, autograd to second order, vmap, and torch.compile.

An operator is four custom operators: the kernel, its adjoint, its tangent, and the adjoint of its tangent. Each allocates what
it returns and launches once, so that torch sees nothing of them but tensors. Their derivatives are each other's:

- the kernel's is the adjoint (reverse mode) or the tangent (forward mode);
- the adjoint J(x)ᵀȳ has by ȳ the tangent, and by x the adjoint of the tangent, with ȳ on the tangent's result;
- the tangent J(x)ẋ has by ẋ the adjoint, and by x the adjoint of the tangent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from numbridge.kernels.adjoint.prefixes import TANGENT
from numbridge.kernels.errors import KernelError, NumbridgeError, NumbridgeTypeError
from numbridge.kernels.kernel import Kernel
from numbridge.operators import Dims, OperatorPlan
from numbridge.torch_eager import Launches, quick_way, transformed_check

__all__ = ["TorchOp", "torch_op"]

_NAMESPACE = "numbridge"
_SCHEMA = {"array": "Tensor", "int": "SymInt", "bool": "bool", "float": "float", "number": "Scalar"}
_taken: dict[str, int] = {}


def torch_op(
    kernel: Kernel,
    outputs: str | Sequence[str] = (),
    launch_dims: Dims = None,
    output_dims: Dims = None,
    name: str | None = None,
) -> TorchOp:
    """Return a PyTorch operator that runs a kernel.

    Parameters
    ----------
    kernel : Kernel
        What runs. Arrays that it writes and that are no outputs are changed in place; the operator's schema says so.
    outputs : str or sequence of str
        The array parameters that the operator returns: new tensors, zero before the kernel runs, of the annotated dtype or
        that of the first tensor.
    launch_dims, output_dims : int, tuple of int, callable or None
        None is the shape of the first tensor. A callable gets the operator's inputs and returns one of the others; it also runs
        on tensors without data. `output_dims` may also be a dict by output name. Vectors and matrices are the last dimensions of
        tensors; dims may include theirs or not.
    name : str, optional
        The operator's name in ``torch.ops.numbridge``; the kernel's by default. One that is taken gets a number.

    Returns
    -------
    TorchOp
        Called with the remaining parameters, in order, it returns a tensor, a tuple for several outputs, or None for none.

    Raises
    ------
    NumbridgeError
        If `outputs` does not name array parameters that the kernel writes.

    Examples
    --------
    ::

        square = nb.torch_op(square_kernel, outputs="y")
        loss = square(x).sum()
        loss.backward()
    """
    if not isinstance(kernel, Kernel):
        raise NumbridgeTypeError(f"torch_op: wanted a kernel, got {kernel!r}; decorate the function with @nb.kernel")
    return TorchOp(OperatorPlan(kernel, outputs, launch_dims, output_dims), name or kernel.name)


def _free_name(name: str) -> str:
    wanted = re.sub(r"\W", "_", name)
    _taken[wanted] = _taken.get(wanted, 0) + 1
    return wanted if _taken[wanted] == 1 else f"{wanted}_{_taken[wanted]}"


class TorchOp:
    """A kernel as an operator of PyTorch; made by `torch_op`.

    Attributes
    ----------
    plan : OperatorPlan
        What goes in and comes out.
    name : str
        The qualified name, such as ``"numbridge::saxpy"``.
    op : torch._ops.OpOverload
        The operator itself, as ``torch.library.opcheck`` takes it.
    """

    def __init__(self, plan: OperatorPlan, name: str) -> None:
        import torch

        self.plan, self.kernel = plan, plan.kernel
        self._launches, self._is_transformed = Launches(plan), transformed_check()
        self._is_compiling, self._count = torch.compiler.is_dynamo_compiling, len(plan.inputs)
        self._library = torch.library.Library(_NAMESPACE, "FRAGMENT")
        base = _free_name(name)
        self.name = f"{_NAMESPACE}::{base}"
        # The kernel itself needs no gradient to be an operator; one that changes its inputs has none here.
        self._inputs = [f"{self._type(n)} {n}" for n in plan.inputs]
        self._results = len(plan.outputs)
        self.op = self._define(base, self._inputs, self._results, self._forward, self._forward_fake)
        if plan.mutated or not plan.outputs:
            self._is_differentiable = False
            return
        grads = [f"Tensor grad_{n}" for n in plan.outputs]
        tangents = [f"Tensor tangent_{n}" for n in plan.arrays]
        count, mask = len(plan.arrays), ["bool[] wanted"]
        self._adjoint = self._define(
            f"{base}_adjoint", [*self._inputs, *grads, *mask], count, self._run_adjoint, self._like_inputs
        )
        self._tangent = self._define(
            f"{base}_tangent", [*self._inputs, *tangents, *mask], self._results, self._run_tangent, self._tangent_fake
        )
        self._second = self._define(
            f"{base}_second",
            [*self._inputs, *grads, *tangents, "bool[] moved", *mask],
            count,
            self._run_second,
            self._like_inputs,
        )
        self._register_derivatives()
        self._is_differentiable, self._functions = True, _functions(self)
        self._quick = quick_way(self._launches, self.adjoint, self._otherwise)

    def __call__(self, *values: Any) -> Any:
        """Run the kernel on the operator's inputs, and return its outputs."""
        if len(values) != self._count:
            raise NumbridgeTypeError(
                f"operator {self.name} takes {len(self.plan.inputs)} arguments ({', '.join(self.plan.inputs)}), got "
                f"{len(values)}"
            )
        if not self._is_differentiable:
            return self._in_place(values)
        return self.op(*values) if self._is_compiling() else self._quick(values)

    def __repr__(self) -> str:
        """Return the schema."""
        return f"<TorchOp {self.op._schema}>"

    def _in_place(self, values: Sequence[Any]) -> None:
        import torch

        if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in values):
            raise NumbridgeError(
                f"operator {self.name} changes {', '.join(self.plan.mutated) or 'nothing it returns'} in place and has no "
                "gradient; make what it writes an output, or call it under torch.no_grad()"
            )
        self.op(*values)

    def _otherwise(self, values: Sequence[Any]) -> Any:
        if not self._is_transformed():
            return self.op(*values)
        # torch's custom operators know neither forward mode nor torch.func; an autograd.Function does.
        made = self._functions[0].apply(*values)
        return made if self._results > 1 else made[0]

    # Schemas

    def _type(self, name: str) -> str:
        kind = _SCHEMA[self.plan.kinds[name]]
        if name not in self.plan.mutated:
            return kind
        return f"Tensor({chr(ord('a') + self.plan.mutated.index(name))}!)"

    def _define(
        self, name: str, arguments: Sequence[str], results: int, run: Callable[..., Any], fake: Callable[..., Any]
    ) -> Any:
        import torch

        returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        self._library.define(f"{name}({', '.join(arguments)}) -> {returned}", tags=(torch.Tag.pt2_compliant_tag,))
        self._library.impl(name, run, "CompositeExplicitAutograd")
        qualified = f"{_NAMESPACE}::{name}"
        torch.library.register_fake(qualified, fake, lib=self._library)
        if not self.plan.mutated:
            torch.library.register_vmap(qualified, self._batched(name), lib=self._library)
        return getattr(getattr(torch.ops, _NAMESPACE), name).default

    def _batched(self, name: str) -> Callable[..., Any]:
        import torch

        def rule(info: Any, in_dims: Any, *values: Any) -> Any:
            operator = getattr(getattr(torch.ops, _NAMESPACE), name).default
            rows = []
            for k in range(info.batch_size):
                row = [v.select(d, k) if isinstance(d, int) else v for v, d in zip(values, in_dims, strict=True)]
                made = operator(*row)
                rows.append(made if isinstance(made, tuple) else (made,))
            stacked = tuple(torch.stack(column) for column in zip(*rows, strict=True))
            return (stacked[0], 0) if len(stacked) == 1 else (stacked, (0,) * len(stacked))

        return rule

    # What runs

    def _arrays(self, values: Sequence[Any]) -> list[Any]:
        return [v for n, v in zip(self.plan.inputs, values, strict=True) if self.plan.kinds[n] == "array"]

    def _forward(self, *values: Any) -> Any:
        return _returned(self._launches.run([_detached(value) for value in values]))

    def _forward_fake(self, *values: Any) -> Any:
        return _returned(self._launches.outputs(values))

    def _split(self, values: Sequence[Any], *counts: int) -> list[list[Any]]:
        """Split an operator's arguments into its inputs, then groups of tensors, and what is left."""
        parts, start = [], 0
        for count in (len(self.plan.inputs), *counts, len(values)):
            parts.append(list(values[start : start + count]))
            start += count
        return parts

    def _differentiable(self) -> list[str]:
        return list(self.plan.outputs)

    def _run_adjoint(self, *values: Any) -> Any:

        inputs, grads, (wanted,) = self._split(values, len(self.plan.outputs))
        names = [name for name, want in zip(self.plan.arrays, wanted, strict=True) if want]
        found = self._launches.adjoint([_detached(v) for v in inputs], [_detached(g) for g in grads], names)
        made = dict(zip(names, found, strict=True))
        return _returned([made[n] if n in made else _nothing(a) for n, a in self._named(inputs)])

    def _named(self, inputs: Sequence[Any]) -> list[tuple[str, Any]]:
        return list(zip(self.plan.arrays, self._arrays(inputs), strict=True))

    def _like_inputs(self, *values: Any) -> Any:
        import torch

        inputs, wanted = values[: len(self.plan.inputs)], values[-1]
        made = [
            torch.empty_like(a, memory_format=torch.contiguous_format) if want else _nothing(a)
            for (_, a), want in zip(self._named(inputs), wanted, strict=True)
        ]
        return _returned(made)

    def _run_tangent(self, *values: Any) -> Any:
        inputs, tangents, (moved,) = self._split(values, len(self.plan.arrays))
        outputs = self._launches.outputs(inputs)
        names, given = self._moved(tangents, moved)
        floats = [
            (n, o.new_zeros(o.shape)) for n, o in zip(self.plan.outputs, outputs, strict=True) if o.is_floating_point()
        ]
        kernel = self.kernel.tangent([*names, *(n for n, _ in floats)])
        run = kernel.forall(self._launches.dims(inputs), checked=False)
        run(*map(_detached, self._launches.arguments(inputs, outputs)), *given, *(t for _, t in floats))
        made = dict(floats)
        return _returned([made.get(n, o) for n, o in zip(self.plan.outputs, outputs, strict=True)])

    def _tangent_fake(self, *values: Any) -> Any:
        return _returned(self._launches.outputs(values[: len(self.plan.inputs)]))

    def _moved(self, tangents: Sequence[Any], moved: Sequence[bool]) -> tuple[list[str], list[Any]]:
        pairs = [(n, t) for n, t, m in zip(self.plan.arrays, tangents, moved, strict=True) if m]
        return [n for n, _ in pairs], [_detached(t) for _, t in pairs]

    def _run_second(self, *values: Any) -> Any:
        import torch

        inputs, grads, tangents, (moved, wanted) = self._split(values, len(self.plan.outputs), len(self.plan.arrays))
        names, given = self._moved(tangents, moved)
        floats = [(n, g) for n, g in zip(self.plan.outputs, grads, strict=True) if g.is_floating_point()]
        tangent = self.kernel.tangent([*names, *(n for n, _ in floats)])
        by = [name for name, want in zip(self.plan.arrays, wanted, strict=True) if want]
        # A kernel may read what it wrote, so that gradients go through its outputs too.
        derivative = tangent.adjoint([*by, *(n for n, _ in floats), *(f"{TANGENT}{n}" for n, _ in floats)])
        made = {
            n: torch.zeros_like(a, memory_format=torch.contiguous_format) for n, a in self._named(inputs) if n in by
        }
        scratch = [torch.zeros_like(g, memory_format=torch.contiguous_format) for g in grads]
        results, through = (
            [torch.zeros_like(g, memory_format=torch.contiguous_format) for _, g in floats] for _ in range(2)
        )
        run = derivative.forall(self._launches.dims(inputs), checked=False)
        adjoints = [*(made[n] for n in by), *through, *(_copied(g) for _, g in floats)]
        run(*map(_detached, self._launches.arguments(inputs, scratch)), *given, *results, *adjoints)
        return _returned([made[n] if n in made else _nothing(a) for n, a in self._named(inputs)])

    # Derivatives

    def _register_derivatives(self) -> None:
        import torch

        rules = (
            (self.op, self._backward),
            (self._adjoint, self._adjoint_backward),
            (self._tangent, self._tangent_backward),
            (self._second, self._third),
        )
        for operator, rule in rules:
            torch.library.register_autograd(operator.name(), rule, setup_context=_keep, lib=self._library)
        for device in ("cpu", "cuda"):
            torch.library.register_autocast(self.op.name(), device, torch.float32, lib=self._library)

    def _mask(self, needs: Sequence[bool], inputs: Sequence[Any]) -> list[bool]:
        pairs = zip(self.plan.inputs, needs, inputs, strict=False)
        return [bool(n) and v.is_floating_point() for name, n, v in pairs if self.plan.kinds[name] == "array"]

    def _spread(self, made: Any, wanted: Sequence[bool]) -> list[Any]:
        """Return gradients for the inputs: None for numbers and for what is not wanted."""
        given = iter(
            g if w else None for g, w in zip(made if isinstance(made, tuple) else (made,), wanted, strict=True)
        )
        return [next(given) if self.plan.kinds[name] == "array" else None for name in self.plan.inputs]

    def adjoint(self, inputs: Sequence[Any], grads: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        """Return the gradients by the inputs."""
        if not any(wanted):
            return [None] * len(inputs)
        if not self._is_compiling() and self._is_transformed():
            return self._spread(self._functions[1].apply(*inputs, *grads, _coded(wanted)), wanted)
        return self._spread(self._adjoint(*inputs, *grads, list(wanted)), wanted)

    def tangent(self, inputs: Sequence[Any], tangents: Sequence[Any], moved: Sequence[bool]) -> tuple[Any, ...]:
        """Return the tangents of the outputs."""
        made = self._tangent(*inputs, *tangents, list(moved))
        return made if isinstance(made, tuple) else (made,)

    def second(
        self, inputs: Sequence[Any], grads: Sequence[Any], tangents: Sequence[Any], moved: Any, wanted: Sequence[bool]
    ) -> list[Any]:
        """Return the gradients by the inputs of what the tangent gives, weighted with `grads`."""
        if not any(wanted):
            return [None] * len(inputs)
        return self._spread(self._second(*inputs, *grads, *tangents, list(moved), list(wanted)), wanted)

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        inputs = _kept(ctx)
        wanted = self._mask(ctx.needs_input_grad, inputs)
        return tuple(self.adjoint(inputs, self._given(grads, ctx), wanted))

    def _given(self, grads: Sequence[Any], ctx: Any) -> list[Any]:
        """Return gradients of all outputs: zero for one that nothing depends on."""
        import torch

        return [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(grads, ctx.results, strict=True)
        ]

    def _tangents(self, given: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        arrays = self._arrays(inputs)
        moved = [
            t is not None and t.numel() == a.numel() and a.is_floating_point()
            for t, a in zip(given, arrays, strict=True)
        ]
        return [t if m else _nothing(a) for t, m, a in zip(given, moved, arrays, strict=True)], moved

    def _adjoint_backward(self, ctx: Any, *seconds: Any) -> Any:
        inputs, grads, (coded,) = self._split(_kept(ctx), len(self.plan.outputs))
        wanted = _mask_of(coded)
        asked = [s if w else None for s, w in zip(seconds, wanted, strict=True)]
        tangents, moved = self._tangents(asked, inputs)
        if not any(moved):
            return (*[None] * (len(inputs) + len(grads)), None)
        by = self._mask(ctx.needs_input_grad, inputs)
        back = self.tangent(inputs, tangents, moved)
        forward = [t if g.is_floating_point() else None for t, g in zip(back, grads, strict=True)]
        return (*self.second(inputs, grads, tangents, moved, by), *forward, None)

    def _tangent_backward(self, ctx: Any, *grads: Any) -> Any:
        inputs, tangents, (coded,) = self._split(_kept(ctx), len(self.plan.arrays))
        moved = _mask_of(coded)
        given = self._given(grads, ctx)
        by = self._mask(ctx.needs_input_grad, inputs)
        first = self.second(inputs, given, tangents, moved, by)
        back = [
            g for n, g in zip(self.plan.inputs, self.adjoint(inputs, given, moved), strict=True) if self._is_array(n)
        ]
        return (*first, *back, None)

    def _is_array(self, name: str) -> bool:
        return self.plan.kinds[name] == "array"

    def _third(self, ctx: Any, *grads: Any) -> Any:
        raise KernelError(f"operator {self.name} has first and second derivatives, and a third was asked for")


def _detached(value: Any) -> Any:
    """Return a tensor as kernels may use it: no leaf that would have to be protected from them."""
    return value.detach() if hasattr(value, "detach") else value


def _copied(grad: Any) -> Any:
    """Return a contiguous copy of a gradient, which the adjoint changes."""
    import torch

    return grad.detach().clone(memory_format=torch.contiguous_format)


def _nothing(array: Any) -> Any:
    return array.new_empty(0)


def _returned(made: Sequence[Any]) -> Any:
    """Return tensors as an operator does: one by itself, several as a tuple, none as None."""
    return made[0] if len(made) == 1 else tuple(made) or None


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    """Keep an operator's arguments for its derivatives: tensors through autograd, and the rest."""
    import torch

    ctx.save_for_backward(*(v for v in inputs if isinstance(v, torch.Tensor)))
    ctx.others = [None if isinstance(v, torch.Tensor) else (v,) for v in inputs]
    outputs = output if isinstance(output, tuple | list) else (output,)
    ctx.results = [(o.shape, o.dtype, o.device) for o in outputs]


def _kept(ctx: Any) -> list[Any]:
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if other is None else other[0] for other in ctx.others]


def _coded(mask: Sequence[bool]) -> str:
    """Return a mask as text, which torch's transforms take for one value and not for a list of some."""
    return "".join("1" if item else "0" for item in mask)


def _mask_of(coded: Any) -> list[bool]:
    return [item == "1" for item in coded] if isinstance(coded, str) else list(coded)


def _functions(op: TorchOp) -> tuple[Any, Any, Any]:
    """Return `autograd.Function`s of the kernel, its adjoint and its tangent, which know forward mode."""
    import torch

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        _keep(ctx, inputs, output)
        ctx.save_for_forward(*(v for v in inputs if isinstance(v, torch.Tensor)))

    class Run(torch.autograd.Function):
        generate_vmap_rule = True
        setup_context = staticmethod(keep)

        @staticmethod
        def forward(*values: Any) -> Any:
            made = op.op(*values)
            return made if isinstance(made, tuple) else (made,)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            inputs = _kept(ctx)
            wanted = op._mask(ctx.needs_input_grad, inputs)
            return tuple(_back(inputs, op._given(grads, ctx), wanted))

        @staticmethod
        def jvp(ctx: Any, *given: Any) -> Any:
            inputs = _kept(ctx)
            tangents, moved = op._tangents(
                [t for n, t in zip(op.plan.inputs, given, strict=True) if op._is_array(n)], inputs
            )
            made = Tangent.apply(*inputs, *tangents, _coded(moved))
            return made if isinstance(made, tuple) else (made,)

    class Adjoint(torch.autograd.Function):
        generate_vmap_rule = True
        setup_context = staticmethod(keep)

        @staticmethod
        def forward(*values: Any) -> Any:
            made = op._adjoint(*values[:-1], _mask_of(values[-1]))
            return made if isinstance(made, tuple) else (made,)

        @staticmethod
        def backward(ctx: Any, *seconds: Any) -> Any:
            return op._adjoint_backward(ctx, *seconds)

        @staticmethod
        def jvp(ctx: Any, *given: Any) -> Any:
            inputs, grads, (coded,) = op._split(_kept(ctx), len(op.plan.outputs))
            wanted = _mask_of(coded)
            of_inputs, of_grads, _ = op._split(given, len(op.plan.outputs))
            by_grads = [torch.zeros_like(g) if t is None else t for t, g in zip(of_grads, grads, strict=True)]
            first = op._adjoint(*inputs, *by_grads, wanted)
            total = list(first if isinstance(first, tuple) else (first,))
            tangents, moved = op._tangents(
                [t for n, t in zip(op.plan.inputs, of_inputs, strict=True) if op._is_array(n)], inputs
            )
            if any(moved):
                more = op._second(*inputs, *grads, *tangents, moved, wanted)
                total = [a + b for a, b in zip(total, more if isinstance(more, tuple) else (more,), strict=True)]
            return tuple(total)

    class Tangent(torch.autograd.Function):
        generate_vmap_rule = True
        setup_context = staticmethod(keep)

        @staticmethod
        def forward(*values: Any) -> Any:
            made = op._tangent(*values[:-1], _mask_of(values[-1]))
            return made if isinstance(made, tuple) else (made,)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return op._tangent_backward(ctx, *grads)

        @staticmethod
        def jvp(ctx: Any, *given: Any) -> Any:
            raise KernelError(
                f"operator {op.name}: a forward derivative of a forward derivative was asked for; use torch.func.jacrev for one "
                "of the two"
            )

    def _back(inputs: Sequence[Any], grads: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        if not any(wanted):
            return [None] * len(inputs)
        return op._spread(Adjoint.apply(*inputs, *grads, _coded(wanted)), wanted)

    return Run, Adjoint, Tangent
