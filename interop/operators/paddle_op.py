"""A kernel as a Paddle operator, with derivatives of every order: the public face of `paddle_operators`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbridge.bridges.installed import needed
from numbridge.bridges.paddle_bridge import dtype_to_paddle
from numbridge.kernels.arguments import by_position
from numbridge.kernels.kernel import Kernel
from numbridge.operators.kernel_op import KernelOp, name_of
from numbridge.operators.operator_levels import Level, returned
from numbridge.operators.operators import Dims, OperatorPlan
from numbridge.operators.paddle_operators import Launches, Operator
from numbridge.operators.paddle_programs import Programs, are_in_program

__all__ = ["PaddleOp", "paddle_op"]


def paddle_op(
    kernel: Kernel,
    outputs: str | Sequence[str] = (),
    launch_dims: Dims = None,
    output_dims: Dims = None,
    name: str | None = None,
    block_dim: int | tuple[int, ...] = 256,
) -> PaddleOp:
    """Return a Paddle operator that runs a kernel.

    Parameters
    ----------
    kernel : Kernel
        What runs. Arrays that it writes and that are no outputs are changed in place; they have no gradient then.
    outputs : str or sequence of str
        The array parameters that the operator returns: new tensors, zero before the kernel runs, of the annotated dtype or
        that of the first tensor, which is refused where that holds integers and others are floating-point numbers.
    launch_dims, output_dims : int, tuple of int, callable or None
        None is the shape of the first tensor. A callable gets the operator's inputs and returns one of the others.
        `output_dims` may also be a dict by output name. Vectors and matrices are the last dimensions of tensors; dims may
        include theirs or not.
    name : str, optional
        What messages call it; the kernel's name by default.
    block_dim : int or tuple of int
        Threads per block, for kernels whose threads work together: along the first axis of the launch, or along each of up to
        three.

    Returns
    -------
    PaddleOp
        Called with the remaining parameters, in order, it returns a tensor, a tuple for several outputs, or None for none. A
        floating-point number may be given as a tensor without dimensions, which has a gradient then.

    Raises
    ------
    NumbridgeError
        If `outputs` does not name array parameters that the kernel writes.
    """
    called = name_of("paddle_op", kernel, name)
    return PaddleOp(OperatorPlan(kernel, outputs, launch_dims, output_dims, block_dim), called)


class PaddleOp(KernelOp):
    """A kernel as an operator of Paddle; made by `paddle_op`.

    Attributes
    ----------
    plan : OperatorPlan
        What goes in and comes out.
    name : str
        What messages call it.
    """

    def __init__(self, plan: OperatorPlan, name: str) -> None:
        paddle = needed("paddle")
        from paddle.jit.sot import psdb

        super().__init__(plan, name)
        self._tensor: Any = (paddle.Tensor, paddle.pir.Value)
        self.name, launches = name, Launches(plan)
        self._operator, self._programs = Operator(Level.first(launches), name), Programs(launches, name)

        # `paddle.jit.to_static` leaves such a function as it is, and, with its first line, all that it calls. Its tracers call it
        # with a program's values, or, if it would change some, between two programs.
        def run(*values: Any) -> Any:
            psdb.fallback(recursive=True)
            return self._run(values)

        is_within = bool(plan.outputs) and not plan.mutated
        self._function = paddle.jit.marker.unified(run, for_sot=is_within)
        self.made_by(paddle_op, *plan.arguments, name, plan.block_dim)

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Run the kernel on the operator's inputs, and return its outputs."""
        if named:
            raise by_position(f"operator {self.name}", self.plan.inputs, named)
        return self._function(*values)

    def _run(self, values: Sequence[Any]) -> Any:
        if len(values) != len(self.plan.inputs):
            raise self.plan.wrong_count(self.name, len(values))
        if any(value is None or isinstance(value, tuple) for value in values):
            operator, taken = self.flattened(values)
            return operator(*taken)
        places = self.plan.tensors_as_numbers(self.name, values, self._tensor)
        if places:
            return self.boxed(places)(*self._as_numbers(places, values))
        self.plan.refuse_other_arrays(self.name, values, self._tensor, "paddle")
        if are_in_program(values):
            return returned(self._programs(values))
        if (self.plan.mutated or not self.plan.outputs) and self._is_followed(values):
            raise self.plan.lost_gradient(self.name, "paddle.no_grad()")
        return returned(self._operator(values))

    def _as_numbers(self, places: Sequence[int], values: Sequence[Any]) -> list[Any]:
        """Return the operator's inputs with tensors for numbers in the types of these numbers, beside the arrays."""
        made, plan = list(values), self.plan
        is_placed = plan.first is not None and not are_in_program(values)
        place_of = getattr(values[plan.inputs.index(plan.first)], "place", None) if is_placed else None
        for place in places:
            row = plan.number_type(place)
            if row is not None and made[place].dtype != dtype_to_paddle(row):
                made[place] = made[place].astype(dtype_to_paddle(row))
            if place_of is not None and made[place].place != place_of:
                made[place] = made[place].to(place_of)
        return made

    def _is_followed(self, values: Sequence[Any]) -> bool:
        import paddle

        return paddle.is_grad_enabled() and any(not getattr(value, "stop_gradient", True) for value in values)

    def __repr__(self) -> str:
        """Return name, inputs and outputs."""
        return f"<PaddleOp {self.name}({', '.join(self.plan.inputs)}) -> {', '.join(self.plan.outputs)}>"
