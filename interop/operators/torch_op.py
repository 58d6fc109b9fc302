"""A kernel as a PyTorch operator: torch.library with fake tensors, autograd of every order, vmap, and torch.compile.

The kernel and its adjoint are custom operators, each of which allocates what it returns and launches once, so that torch sees
nothing of them but tensors. Their own derivatives are the tangent's operators: see `operator_levels`. These are made when they
are first asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import NoneType
from typing import Any

import numpy as np

from numbridge.bridges.installed import needed
from numbridge.bridges.torch_bridge import dtype_to_torch
from numbridge.kernels.arguments import by_position
from numbridge.kernels.errors import BufferAccessError, NumbridgeValueError
from numbridge.kernels.kernel import Kernel
from numbridge.kernels.language.tuple_parameters import is_named_tuple
from numbridge.operators.kernel_op import KernelOp, name_of
from numbridge.operators.operator_levels import Level, returned
from numbridge.operators.operators import Dims, OperatorPlan
from numbridge.operators.torch_eager import Launches, plain_numbers, quick_way
from numbridge.operators.torch_operators import NAMESPACE, Operator
from numbridge.operators.torch_sharding import has_dtensor

__all__ = ["TorchOp", "run_by_name", "torch_op"]


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
        tensors and numbers. DTensors are cut along axes that thread indices only select along, and gathered otherwise; an
        operator that changes some in place refuses them.

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
    called = name_of("torch_op", kernel, name)
    return TorchOp(OperatorPlan(kernel, outputs, launch_dims, output_dims, block_dim), called)


class TorchOp(KernelOp):
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
        torch = needed("torch")

        super().__init__(plan, name)
        self._tensor: type = torch.Tensor
        # What stands for tensors where `torch.fx.symbolic_trace` runs a module
        self._proxy: Any = torch.fx.Proxy
        self._count, self._numbers = len(plan.inputs), plan.numbers
        self._is_compiling = torch.compiler.is_dynamo_compiling
        rows = {place: plan.number_type(place) for place in plan.numbers}
        self._types = {place: None if row is None else dtype_to_torch(row) for place, row in rows.items()}
        launches = Launches(plan)
        # The kernel itself needs no gradient to be an operator; one that changes its inputs, or takes no tensor, has none here.
        self._is_differentiable = bool(plan.outputs and plan.arrays) and not plan.mutated
        self._operators = Operator(Level.first(launches), name, plan.mutated, differentiable=self._is_differentiable)
        self.name = self._called = f"{NAMESPACE}::{self._operators.name}"
        self.op = self._operators.op
        _alive[self.name] = self
        for constant in (_in_its_place, _is_cut):
            torch.compiler.assume_constant_result(constant)
        if self._is_differentiable:
            self._operators.cast()
            self._quick = quick_way(launches, self._operators.gradients, self._otherwise)
        else:
            self._quick = quick_way(launches, None, self._in_place)
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
                return self._in_another(places, values)
        if self._is_compiling():
            return self._in_graph(values) if self._is_differentiable else self._in_place(values)
        if not self._is_differentiable:
            return self._quick(values)
        try:
            return self._quick(values)
        except (TypeError, AttributeError, ValueError, RuntimeError):
            if _have(self._proxy, values):
                return self.op(*values)
            if _have(_SPREAD, values):
                raise  # the operator of what the tuples hold has looked at that
            self.plan.refuse_other_arrays(self._called, values, self._tensor, "torch")
            self._refuse_layouts(values)
            raise

    def _in_graph(self, values: Sequence[Any]) -> Any:
        """Run the operator as one node of the graph that torch.compile traces."""
        import torch

        if _have(_SPREAD, values):
            return self._in_another((), values)
        # To torch.compile numbers of NumPy's are arrays, which it knows as tensors only.
        if _have(np.ndarray, values):
            return self(*[torch.as_tensor(value) if isinstance(value, np.ndarray) else value for value in values])
        _is_cut(self.name, tuple([type(value) for value in values if isinstance(value, self._tensor)]))
        return self.op(*values)

    def _name_for(self, plan: OperatorPlan) -> str:
        return "_".join([self._operators.name, *plan.in_boxes])

    def _in_another(self, places: tuple[int, ...], values: Sequence[Any]) -> Any:
        """Run the operator that takes what tuples hold, and tensors for the numbers in some places."""
        import torch

        if places:
            values = self._as_numbers(places, values)
        if self._is_compiling():
            # By its name: torch.compile traces no more of how an operator is made.
            name = _in_its_place(self.name, tuple([_described(value) for value in values]))
            return getattr(getattr(torch.ops, NAMESPACE), name).default(*_taken_together(values))
        if not _have(_SPREAD, values):
            return self.boxed(places)(*values)
        proxies = [leaf for value in values for leaf in _leaves(value) if isinstance(leaf, self._proxy)]
        if proxies:
            return proxies[0].tracer.create_proxy("call_function", run_by_name, (self.name, *values), {})
        operator, values = self.flattened(values)
        return operator(*values)

    def _as_numbers(self, places: Sequence[int], values: Sequence[Any]) -> list[Any]:
        """Return the operator's inputs with tensors for numbers in the types of these numbers, beside the arrays."""
        made, plan = list(values), self.plan
        device = None if plan.first is None else getattr(values[plan.inputs.index(plan.first)], "device", None)
        for place in places:
            made[place] = made[place].to(device=device, dtype=self._types[place])
        return made

    def _refuse_layouts(self, values: Sequence[Any]) -> None:
        """Refuse tensors without strides or with numbers in code, of which PyTorch says only that it makes no such outputs."""
        import torch

        for parameter, value in zip(self.plan.inputs, values, strict=True):
            if not isinstance(value, torch.Tensor):
                continue
            kinds = (
                (value.is_nested, "that is nested", "use .values() if it is jagged, or torch.nested.to_padded_tensor"),
                (value.is_quantized, "that is quantized", "use .int_repr() or .dequantize()"),
                (value.layout != torch.strided, f"of layout {value.layout}", "use .to_dense()"),
            )
            for is_one, called, way in kinds:
                if is_one:
                    raise BufferAccessError(
                        f"operator {self._called}, parameter {parameter!r}: a torch tensor {called} cannot be shared; {way}"
                    ) from None

    def __repr__(self) -> str:
        """Return the schema."""
        return f"<TorchOp {self.op._schema}>"

    def _in_place(self, values: Sequence[Any]) -> Any:
        import torch

        if _have(_SPREAD, values):
            return self._in_another((), values)  # which changes nothing if all that the kernel changes is None
        if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in values):
            raise self.plan.lost_gradient(self._called, "torch.no_grad()")
        if not self._is_compiling() and has_dtensor(map(type, values)):
            changed = ", ".join(self.plan.mutated)
            raise BufferAccessError(
                f"operator {self._called} changes {changed} in place, and a DTensor's shards might be changed in copies; make it "
                "an output, or call the operator on the shards, x.to_local()"
            )
        self.plan.refuse_other_arrays(self._called, values, self._tensor, "torch")
        return self.op(*plain_numbers(values))

    def _otherwise(self, values: Sequence[Any]) -> Any:
        return (
            self._in_another((), values) if _have(_SPREAD, values) else returned(self._operators(plain_numbers(values)))
        )


def run_by_name(name: str, *values: Any) -> Any:
    """Run an operator, given its qualified name: what `torch.fx.symbolic_trace` cannot tell of tuples is known by then."""
    operator = _alive.get(name)
    if operator is None:
        raise NumbridgeValueError(
            f"operator {name}, which a traced module calls, is not there; make it before, and keep what nb.torch_op returns"
        )
    return operator(*values)


def _have(kind: type | tuple[type, ...], values: Sequence[Any]) -> bool:
    return any(isinstance(value, kind) for value in values)


def _leaves(value: Any) -> list[Any]:
    """Return what a tuple holds that is no tuple, in order; None holds nothing. torch.compile traces this."""
    if value is None:
        return []
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, tuple) else [value]


def _taken_together(values: Sequence[Any]) -> list[Any]:
    """Return what inputs hold, with tensors for numbers in tuples beside the arrays. torch.compile traces this."""
    import torch

    pairs = [(leaf, isinstance(value, tuple)) for value in values for leaf in _leaves(value)]
    devices = [leaf.device for leaf, _ in pairs if isinstance(leaf, torch.Tensor) and leaf.ndim]
    return [
        leaf.to(devices[0]) if is_within and devices and isinstance(leaf, torch.Tensor) and not leaf.ndim else leaf
        for leaf, is_within in pairs
    ]


def _described(value: Any) -> Any:
    """Return what decides which operator takes an input, as constants. torch.compile traces this."""
    import torch

    if isinstance(value, tuple):
        return (type(value), *[_described(item) for item in value])
    return value.ndim if isinstance(value, torch.Tensor) else None if value is None else _NUMBER


def _standing_for(described: Any) -> Any:
    """Return what may stand for a value that was described."""
    import torch

    if isinstance(described, tuple):
        kind, *items = described
        made = map(_standing_for, items)
        return kind._make(made) if is_named_tuple(kind) else tuple(made)
    return described if described in (None, _NUMBER) else torch.empty((1,) * described, device="meta")


# What an operator takes whose kernel is launched without it
_SPREAD = (tuple, NoneType)
# What describes an input that is neither a tensor nor a tuple
_NUMBER = -1
_alive: weakref.WeakValueDictionary[str, TorchOp] = weakref.WeakValueDictionary()


def _is_cut(name: str, kinds: tuple[type, ...]) -> bool:
    """Let an operator take DTensors, if there is one of such a type; torch.compile runs this as it is, once."""
    return has_dtensor(kinds) and _alive[name]._operators.let_be_cut()


def _in_its_place(name: str, described: tuple[Any, ...]) -> str:
    """Return the name of the operator that runs for such inputs; torch.compile runs this as it is, once."""
    operator, values = _alive[name], [_standing_for(each) for each in described]
    while True:
        places = operator.plan.tensors_as_numbers(name, values, operator._tensor)
        if _have(_SPREAD, values):
            operator, values = operator.flattened(values)
        elif places:
            operator = operator.boxed(places)
        else:
            return operator.name.partition("::")[2]
