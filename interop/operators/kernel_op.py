"""What a kernel as an operator is in every framework: what it is called, and the operators that run in its place.

Inputs may be tuples, and tensors may come for numbers. Then another operator of the same kernel runs, which takes what the tuples
hold one by one, or takes such tensors; it is made when it is first needed, and kept. Names no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

from numbridge.kernels.errors import NumbridgeTypeError
from numbridge.kernels.kernel import Kernel
from numbridge.operators.operators import OperatorPlan
from numbridge.operators.remade import Remade

__all__ = ["KernelOp", "name_of"]


def name_of(maker: str, kernel: Any, name: Any) -> str:
    """Return what an operator is to be called, given what the user gave to its maker, or refuse that."""
    if not isinstance(kernel, Kernel):
        raise NumbridgeTypeError(f"{maker}: wanted a kernel, got {kernel!r}; decorate the function with @nb.kernel")
    if name is not None and not isinstance(name, str):
        raise NumbridgeTypeError(f"{maker}: name is {name!r}; it must be a string")
    return name or kernel.name


class KernelOp(Remade):
    """A kernel as an operator of some framework.

    Parameters
    ----------
    plan : OperatorPlan
        What goes in and comes out.
    name : str
        What the operator is to be called.
    """

    def __init__(self, plan: OperatorPlan, name: str) -> None:
        self.plan, self.kernel = plan, plan.kernel
        # What messages call it: the operator that was asked for, if this one runs in its place
        self._called = name
        self._others: dict[Hashable, Self] = {}

    def boxed(self, places: tuple[int, ...]) -> Self:
        """Return the operator of the same kernel that takes tensors without dimensions for the numbers in some places."""
        return self._other(places, lambda: self.plan.boxed(places))

    def flattened(self, values: Sequence[Any]) -> tuple[Self, list[Any]]:
        """Return the operator of the same kernel that takes what tuples among inputs hold, and this operator's inputs for it."""
        key, plan, taken = self.plan.flattened(values)
        return self._other(key, plan), taken

    def _other(self, key: Hashable, plan: Callable[[], OperatorPlan]) -> Self:
        """Return the operator that runs in place of this one, which is made only once."""
        found = self._others.get(key)
        if found is None:
            made = plan()
            found = self._others.setdefault(key, type(self)(made, self._name_for(made)))
            found._called = self._called
        return found

    def _name_for(self, plan: OperatorPlan) -> str:
        """Return what an operator of another plan is to be called."""
        return self._called
