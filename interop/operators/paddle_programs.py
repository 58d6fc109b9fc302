"""Calls of a kernel in the programs that `paddle.jit.to_static` makes: operators of Paddle's that run Python, with gradients.

Paddle registers such operators itself (`paddle.static.register_op`); a kernel and its adjoint are one each, of the tensors of a
call, whose numbers are constants. In a program a tensor is a value without data, whose unknown extents are -1. Gradients are
first ones: what Paddle makes of a layer in a program has no derivatives itself.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numbridge.kernels.errors import NumbridgeError
from numbridge.operators.operator_levels import Level, detached
from numbridge.operators.paddle_operators import Launches

__all__ = ["Programs", "are_in_program"]

_UNKNOWN = -1
# Paddle finds operators by name in the whole process.
_numbers = itertools.count(1)


def are_in_program(values: Sequence[Any]) -> bool:
    """Tell whether some inputs are values of a program."""
    import paddle

    return any(isinstance(value, paddle.pir.Value) for value in values)


@dataclass(frozen=True)
class _Tensor:
    """What is known of a tensor in a program."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class _Call:
    """The inputs of a call: the places among them of each value of the program, and the numbers elsewhere."""

    level: Level
    launches: Launches
    values: tuple[Any, ...]
    places: tuple[tuple[int, ...], ...]

    def together(self, tensors: Sequence[Any]) -> list[Any]:
        """Return all inputs, given what stands for the values."""
        made = list(self.values)
        for places, tensor in zip(self.places, tensors, strict=True):
            for place in places:
                made[place] = tensor
        return made

    def run(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the outputs."""
        return self.level.run([detached(value) for value in self.together(tensors)])

    def results(self, tensors: Sequence[Any]) -> list[_Tensor]:
        """Return what is known of the outputs."""
        launches, plan = self.launches, self.launches.plan
        known = [_Tensor(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        is_unknown = any(_UNKNOWN in tensor.shape for tensor in known) and plan.asks_inputs
        if is_unknown:
            # Whatever a function would say of -1; how many extents it says is all that is taken from it.
            known = [_Tensor(tuple(2 if n == _UNKNOWN else n for n in t.shape), t.dtype) for t in known]
        inputs = self.together(known)
        launches.refuse_truncation(inputs)
        shapes, dtypes = plan.output_shapes(inputs), launches.dtypes(inputs)
        return [
            _Tensor(tuple(_UNKNOWN if is_unknown else n for n in shapes[name]), dtype)
            for name, dtype in zip(plan.outputs, dtypes, strict=True)
        ]


def _places(values: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Return the places of each value of a program: a layer that Paddle makes takes no value twice."""
    import paddle

    found: list[list[int]] = []
    for k, value in enumerate(values):
        if isinstance(value, paddle.pir.Value):
            same = next((places for places in found if values[places[0]].is_same(value)), None)
            if same is None:
                found.append([k])
            else:
                same.append(k)
    return tuple(map(tuple, found))


def _forget_values() -> None:
    """Let Python find young cycles, in which values of earlier programs may lie.

    What Paddle's `Block.kwargs` returns points into the block's own memory, and is kept in a cycle by the function that collects
    values of a program. Until Python finds it, Paddle hands out one of these old objects for a new value that happens to be
    made where the block had its own: the program is not what was written, or the process crashes. Such a cycle is garbage as soon
    as it is made, so it is young still, or has been found; to look only there takes a small part of what an operator takes.
    """
    gc.collect(1)


class Programs:
    """Calls of a kernel in programs.

    Parameters
    ----------
    launches : Launches
        Those of the kernel.
    name : str
        What messages and programs call it.
    """

    def __init__(self, launches: Launches, name: str) -> None:
        self._launches, self._name = launches, name
        self._level = Level.first(launches)

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Add a call to the program that is being made, and return its outputs.

        Raises
        ------
        NumbridgeError
            If the kernel changes its inputs.
        """
        import paddle
        from paddle.jit.dy2static.py_layer import StaticPyLayerContext

        _forget_values()
        level, launches, plan = self._level, self._launches, self._launches.plan
        if plan.mutated or not plan.outputs:
            raise NumbridgeError(
                f"operator {self._name} changes {', '.join(plan.mutated) or 'nothing it returns'} in place, and programs of "
                "paddle.jit.to_static would not know; make what it writes an output, or call it outside of the program"
            )
        values = [self._without_gradient(value) for value in values]
        places = _places(values)
        call = _Call(level, launches, tuple(values), places)
        tensors = [values[first] for first, *_ in places]
        run = self._operator("", len(places), call.run, call.results(tensors))
        by = [k for k, tensor in enumerate(tensors) if not tensor.stop_gradient and launches.has_gradient(tensor)]
        if not by:
            return run(tensors)
        context, wanted = StaticPyLayerContext(), [level.inputs[place] for k in by for place in places[k]]

        def forward(*given: Any) -> list[Any]:
            context.save_for_backward(*given)
            return run(given)

        def backward(*grads: Any) -> list[Any]:
            come = [k for k, grad in enumerate(grads) if grad is not None]

            def adjoint(everything: Sequence[Any]) -> list[Any]:
                inputs = [detached(value) for value in call.together(everything[: len(places)])]
                coming = dict(zip(come, map(detached, everything[len(places) :]), strict=True))
                # Of an output that nothing depends on the gradient is zero.
                zeros = launches.outputs(inputs) if len(come) < len(grads) else [None] * len(grads)
                made = iter(level.adjoint(inputs, [coming.get(k, zero) for k, zero in enumerate(zeros)], wanted))
                return [functools.reduce(operator.add, itertools.islice(made, len(places[k]))) for k in by]

            run_back = self._operator("_adjoint", len(places) + len(come), adjoint, [tensors[k] for k in by])
            made = dict(zip(by, run_back([*context.saved_tensor(), *(grads[k] for k in come)]), strict=True))
            return [made.get(k) for k in range(len(places))]

        made = paddle.static.nn.static_pylayer(forward, tensors, backward)
        return list(made) if isinstance(made, list | tuple) else [made]

    def _without_gradient(self, value: Any) -> Any:
        """Return a value, or a copy of integers made of what has a gradient, for theirs Paddle would ask the layer."""
        import paddle

        if not isinstance(value, paddle.pir.Value) or value.stop_gradient or self._launches.has_gradient(value):
            return value
        copy = paddle.assign(value)
        copy.stop_gradient = True
        return copy

    def _operator(
        self, suffix: str, inputs: int, run: Callable[..., list[Any]], results: Sequence[Any]
    ) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a function of values that adds an operator to the program, which calls a function of tensors each time."""
        import paddle

        # Known already: an exception in a function that Paddle asks for them would end the process.
        known = [(list(result.shape), result.dtype) for result in results]

        def runs(*tensors: Any) -> Any:
            with paddle.no_grad():
                return tuple(run(tensors))

        def says(*_: Any) -> Any:
            made = [paddle.static.MetaTensor(shape=shape, dtype=dtype) for shape, dtype in known]
            return made[0] if len(made) == 1 else tuple(made)

        names = [f"x{k}" for k in range(inputs)]
        # Paddle asks the functions for their parameters, one for each tensor.
        taken = ", ".join(names)
        function, infer = (eval(f"lambda {taken}: of({taken})", {"of": of}) for of in (runs, says))
        registered = paddle.static.register_op(
            function,
            name=f"numbridge_{re.sub(r'[^0-9A-Za-z]', '_', self._name)}{suffix}_{next(_numbers)}",
            infer_meta=infer,
            input_names=names,
            output_names=[f"y{k}" for k in range(len(known))],
        )

        def call(values: Sequence[Any]) -> list[Any]:
            made = registered(*values)
            return list(made) if len(known) > 1 else [made]

        return call
