"""A kernel, its tangent, the tangent of that, and so on, as functions of tensors; and the adjoint of each.

That is all that derivatives of any order take. The adjoint J(x)ᵀȳ has by ȳ the tangent, and by x the adjoint of the tangent
with ȳ on its result; the tangent is a kernel like any other, whose adjoint has derivatives in the same way. No adjoint is
differentiated itself. No framework is named here: `operator_launches.Launches` is what one brings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.kernel import Kernel
from numbridge.operators.operator_launches import Launches

__all__ = ["Level", "detached", "returned"]


@dataclass(frozen=True, eq=False)
class Level:
    """What a kernel or a tangent of it takes and gives.

    Attributes
    ----------
    launches : Launches
        Those of the kernel itself.
    kernel : Kernel
        It, or the tangent.
    inputs, outputs : tuple of str
        Its parameters, in the order in which tensors are passed and returned.
    kinds : mapping
        Input -> as in `OperatorPlan`.
    spare : tuple of str
        Arrays that it writes besides, from what it is the tangent of.
    smooth : tuple of str
        Those of them that are floating: what is written may be read again, so gradients go through them too.
    elements : mapping
        Input -> as in `OperatorPlan`.
    like : mapping
        Output or spare array -> the kernel's output that it has the shape of.
    """

    launches: Launches
    kernel: Kernel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kinds: Mapping[str, str]
    spare: tuple[str, ...]
    smooth: tuple[str, ...]
    elements: Mapping[str, int]
    like: Mapping[str, str]

    @classmethod
    def first(cls, launches: Launches) -> Level:
        """Return the level of a kernel itself."""
        plan = launches.plan
        return cls(
            *(launches, plan.kernel, plan.inputs, plan.outputs, plan.kinds),
            *((), (), plan.elements, {name: name for name in plan.outputs}),
        )

    @property
    def arrays(self) -> list[str]:
        """The inputs that are tensors."""
        return [name for name in self.inputs if self.kinds[name] == "array"]

    def tangent(self, moved: Sequence[str], floats: Sequence[str]) -> Level:
        """Return the tangent by some inputs, of the outputs that are floating."""
        kernel = self.kernel.tangent([*moved, *self.smooth, *floats])

        def prefixed(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(f"{kernel.prefix}{name}" for name in names)

        return Level(
            self.launches,
            kernel,
            (*self.inputs, *prefixed(moved)),
            prefixed(floats),
            {**self.kinds, **dict.fromkeys(prefixed(moved), "array")},
            (*self.spare, *self.outputs, *prefixed(self.smooth)),
            (*self.smooth, *floats, *prefixed(self.smooth)),
            {**self.elements, **{f"{kernel.prefix}{n}": self.elements[n] for n in moved if n in self.elements}},
            {**self.like, **{f"{kernel.prefix}{name}": self.like[name] for name in (*self.smooth, *floats)}},
        )

    def blank(self, values: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Return new zeros for outputs and spare arrays."""
        plan = self.launches.plan
        first = dict(zip(plan.outputs, self.launches.outputs(values[: len(plan.inputs)]), strict=True))
        return [self.launches.zeros(first[self.like[name]]) for name in names]

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Return the outputs."""
        if not self.spare:
            return self.launches.run(values)
        outputs = self.blank(values, self.outputs)
        self._launch(self.kernel, values, outputs, ())
        return outputs

    def left(self, values: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
        """Return outputs that spare the adjoint work if it is given them as they are; see `Launches.left`."""
        return {} if self.spare else self.launches.left(values, outputs)

    def adjoint(
        self, values: Sequence[Any], grads: Sequence[Any], wanted: Sequence[str], left: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return the gradients by the `wanted` inputs, given those by the outputs, and outputs that are as they were `left`."""
        if not self.spare:
            return self.launches.adjoint(values, grads, wanted, left)
        given = dict(zip(self.inputs, values, strict=True))
        made = [self.launches.zeros(given[name]) for name in wanted]
        derivative = self.kernel.adjoint([*wanted, *self.smooth, *self.outputs], restores=False)
        adjoints = [*made, *self.blank(values, self.smooth), *map(self.launches.copied, grads)]
        self._launch(derivative, values, self.blank(values, self.outputs), adjoints)
        return made

    def _launch(self, kernel: Any, values: Sequence[Any], outputs: Sequence[Any], more: Sequence[Any]) -> None:
        names = (*self.inputs, *self.outputs, *self.spare)
        given = dict(zip(names, (*values, *outputs, *self.blank(values, self.spare)), strict=True))
        for name, rank in self.elements.items():
            given[name] = self.launches.dense(given[name], rank)
        dims = tuple(self.launches.dims(values[: len(self.launches.plan.inputs)]))
        kernel.forall(dims, self.launches.plan.block_dim, checked=False)(
            *[given[p.name] for p in self.kernel.parameters], *more
        )


def detached(value: Any) -> Any:
    """Return a tensor as kernels may use it: none that would have to be protected from them; anything else as it is."""
    return value.detach() if hasattr(value, "detach") else value


def returned(made: Sequence[Any]) -> Any:
    """Return tensors as an operator does: one by itself, several as a tuple, none as None."""
    return made[0] if len(made) == 1 else tuple(made) or None
