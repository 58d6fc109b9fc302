"""A kernel as a PyTorch operator: torch.library with fake tensors, autograd of every order, vmap, and torch.compile.

The kernel and its adjoint are custom operators, each of which allocates what it returns and launches once, so that torch sees
nothing of them but tensors. Their own derivatives are the tangent's operators: see `operator_levels`. These are made when they
are first asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from numbridge.bridges.torch_bridge import dtype_to_torch
from numbridge.kernels.arguments import by_position
from numbridge.kernels.errors import BufferAccessError, NumbridgeTypeError
from numbridge.kernels.kernel import Kernel
from numbridge.operators.operator_levels import Level, returned
from numbridge.operators.operators import Dims, OperatorPlan
from numbridge.operators.remade import Remade
from numbridge.operators.torch_eager import Launches, quick_way
from numbridge.operators.torch_operators import NAMESPACE, Operator

__all__ = ["TorchOp", "torch_op"]


def torch_op(
    kernel: Kernel,
    outputs: str | Sequence[str] = (),
    launch_dims: Dims = None,
    output_dims: Dims = None,
    name: str | None = None,
    block_dim: int | tuple[int, ...] = 256,
) -> TorchOp:
    """Return a PyTorch operator that runs a kernel.

    Parameters
    ----------
    kernel : Kernel
        What runs. Arrays that it writes and that are no outputs are changed in place; the operator's schema says so.
    outputs : str or sequence of str
        The array parameters that the operator returns: new tensors, zero before the kernel runs, of the annotated dtype or
        that of the first tensor, which is refused where that holds integers and others are floating-point numbers.
    launch_dims, output_dims : int, tuple of int, callable or None
        None is the shape of the first tensor. A callable gets the operator's inputs and returns one of the others; it also runs
        on tensors without data. `output_dims` may also be a dict by output name. Vectors and matrices are the last dimensions of
        tensors; dims may include theirs or not.
    name : str, optional
        The operator's name in ``torch.ops.numbridge``; the kernel's by default. One that is taken gets a number.
    block_dim : int or tuple of int
        Threads per block, for kernels whose threads work together: along the first axis of the launch, or along each of up to
        three.

    Returns
    -------
    TorchOp
        Called with the remaining parameters, in order, it returns a tensor, a tuple for several outputs, or None for none. A
        floating-point number may be given as a tensor without dimensions, which has a gradient then. Inputs may be tuples of
        tensors and numbers; torch.compile runs the operator outside of its graphs then.

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
    if name is not None and not isinstance(name, str):
        raise NumbridgeTypeError(f"torch_op: name is {name!r}; it must be a string")
    return TorchOp(OperatorPlan(kernel, outputs, launch_dims, output_dims, block_dim), name or kernel.name)


class TorchOp(Remade):
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

        self._tensor: type = torch.Tensor
        # What stands for tensors where `torch.fx.symbolic_trace` runs a module
        self._proxy: type = torch.fx.Proxy
        self.plan, self.kernel = plan, plan.kernel
        self._count, self._numbers = len(plan.inputs), plan.numbers
        self._is_compiling = torch.compiler.is_dynamo_compiling
        self._of_tensors: dict[tuple[int, ...], TorchOp] = {}
        self._of_tuples: dict[Any, TorchOp] = {}
        rows = {place: plan.number_type(place) for place in plan.numbers}
        self._types = {place: None if row is None else dtype_to_torch(row) for place, row in rows.items()}
        launches = Launches(plan)
        # The kernel itself needs no gradient to be an operator; one that changes its inputs, or takes no tensor, has none here.
        self._is_differentiable = bool(plan.outputs and plan.arrays) and not plan.mutated
        self._operators = Operator(Level.first(launches), name, plan.mutated, differentiable=self._is_differentiable)
        self.name, self.op = f"{NAMESPACE}::{self._operators.name}", self._operators.op
        # What messages call it: the operator that was asked for, if this one was made in its place
        self._called = self.name
        _alive[self.name] = self
        torch.compiler.assume_constant_result(_boxed)
        if self._is_differentiable:
            self._operators.cast()
            self._quick = quick_way(launches, self._operators.gradients, self._otherwise)
        self.made_by(torch_op, *plan.arguments, self._operators.name, plan.block_dim)

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Run the kernel on the operator's inputs, and return its outputs."""
        if named:
            raise by_position(f"operator {self._called}", self.plan.inputs, named)
        if len(values) != self._count:
            raise self.plan.wrong_count(self._called, len(values))
        if self._numbers:
            places = self.plan.tensors_as_numbers(self._called, values, self._tensor)
            if places:
                return self._run_boxed(places, self._as_numbers(places, values))
        if not self._is_differentiable:
            return self._in_place(values)
        if self._is_compiling():
            return self._run_flattened(values) if _have_tuples(values) else self.op(*values)
        try:
            return self._quick(values)
        except (TypeError, AttributeError, ValueError, RuntimeError):
            if any(isinstance(value, self._proxy) for value in values):
                return self.op(*values)
            if _have_tuples(values):
                return self._run_flattened(values)
            self.plan.refuse_other_arrays(self._called, values, self._tensor, "torch")
            self._refuse_layouts(values)
            raise

    def _run_boxed(self, places: tuple[int, ...], values: Sequence[Any]) -> Any:
        import torch

        if self._is_compiling():
            # By its name: torch.compile traces no more of how an operator is made.
            return getattr(getattr(torch.ops, NAMESPACE), _boxed(self.name, places)).default(*values)
        return self.boxed(places)(*values)

    def boxed(self, places: tuple[int, ...]) -> TorchOp:
        """Return the operator of the same kernel that takes tensors without dimensions for the numbers in some places."""
        found = self._of_tensors.get(places)
        if found is None:
            name = "_".join([self._operators.name, *(self.plan.inputs[place] for place in places)])
            found = self._of_tensors.setdefault(places, TorchOp(self.plan.boxed(places), name))
            found._called = self._called
        return found

    def _run_flattened(self, values: Sequence[Any]) -> Any:
        """Run the operator that takes what tuples among the inputs hold; torch.compile runs that outside of its graphs."""
        import torch

        return torch.compiler.disable(self._flattened)(values)

    def _flattened(self, values: Sequence[Any]) -> Any:
        key, plan, taken = self.plan.flattened(values)
        found = self._of_tuples.get(key)
        if found is None:
            found = self._of_tuples.setdefault(key, TorchOp(plan(), self._operators.name))
            found._called = self._called
        return found(*taken)

    def _as_numbers(self, places: Sequence[int], values: Sequence[Any]) -> list[Any]:
        """Return the operator's inputs with tensors for numbers in the types of these numbers, beside the arrays."""
        made, plan = list(values), self.plan
        device = None if plan.first is None else getattr(values[plan.inputs.index(plan.first)], "device", None)
        for place in places:
            made[place] = made[place].to(device=device, dtype=self._types[place])
        return made

    def _refuse_layouts(self, values: Sequence[Any]) -> None:
        """Refuse tensors without strides, of which PyTorch says only that it makes no such outputs."""
        import torch

        for parameter, value in zip(self.plan.inputs, values, strict=True):
            if isinstance(value, torch.Tensor) and value.layout != torch.strided:
                raise BufferAccessError(
                    f"operator {self._called}, parameter {parameter!r}: a torch tensor of layout {value.layout} cannot be "
                    "shared; use .to_dense()"
                ) from None

    def __repr__(self) -> str:
        """Return the schema."""
        return f"<TorchOp {self.op._schema}>"

    def _in_place(self, values: Sequence[Any]) -> Any:
        import torch

        if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in values):
            raise self.plan.lost_gradient(self._called, "torch.no_grad()")
        if _have_tuples(values):
            return self._run_flattened(values)
        self.plan.refuse_other_arrays(self._called, values, self._tensor, "torch")
        return self.op(*values)

    def _otherwise(self, values: Sequence[Any]) -> Any:
        return returned(self._operators(values))


def _have_tuples(values: Sequence[Any]) -> bool:
    return any(isinstance(value, tuple) for value in values)


_alive: weakref.WeakValueDictionary[str, TorchOp] = weakref.WeakValueDictionary()


def _boxed(name: str, places: tuple[int, ...]) -> str:
    """Return the name of an operator's `boxed`, given its own; torch.compile runs this as it is, once."""
    return _alive[name].boxed(places).name.partition("::")[2]
