"""A gradient of what a kernel was when it ran: what has changed since is refused, and what only looks so is not."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch

import numbridge as nb
from compiled_calls import jax_kernel

CHANGED = r"'factor'.*has changed since the kernel ran"
factor = 2.0


@nb.kernel
def scale(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * factor


@pytest.fixture(autouse=True)
def _factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "factor", 2.0)


def change(value: float) -> None:
    globals()["factor"] = value


def taped(kernel: nb.Kernel, between: Any) -> list[float]:
    x, y = nb.ones(1, requires_grad=True), nb.zeros(1)
    with nb.Tape() as tape:
        nb.launch(kernel, 1, [x], [y])
    between()
    tape.backward(grads={y: [1.0]})
    found: list[float] = x.grad.list()
    return found


def test_a_tape_refuses_a_kernel_that_has_changed() -> None:
    assert taped(scale, lambda: None) == [2.0]
    with pytest.raises(nb.KernelError, match=CHANGED):
        taped(scale, lambda: change(5.0))
    assert taped(scale, lambda: None) == [5.0]


def test_an_equal_value_is_no_change() -> None:
    assert taped(scale, lambda: change(float("2.0"))) == [2.0]


def test_static_expressions_likewise() -> None:
    settings, numbers = SimpleNamespace(factor=3.0), [1.0]

    @nb.kernel
    def both(x: nb.array[float], y: nb.array[float]):
        i = nb.tid()
        y[i] = x[i] * nb.static(settings.factor) + x[i] * nb.static(numbers[0])

    assert taped(both, lambda: None) == [4.0]
    with pytest.raises(nb.KernelError, match=CHANGED):
        taped(both, lambda: setattr(settings, "factor", 4.0))
    with pytest.raises(nb.KernelError, match=r"nb\.static\(numbers\[0\]\), which the kernel reads, has changed"):
        taped(both, lambda: numbers.__setitem__(0, 2.0))
    assert taped(both, lambda: numbers.__setitem__(0, 2.0)) == [6.0]


class Meta(type):
    weight = 3.0


class Base(metaclass=Meta):
    share = 2.0


class Derived(Base):
    pass


@nb.kernel
def inherits(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * Derived.share * Derived.weight * nb.static(Derived.share)


def launched(kernel: nb.Kernel) -> float:
    y = nb.zeros(1)
    nb.launch(kernel, 1, [nb.ones(1)], [y])
    return float(y.numpy()[0])


def test_attributes_that_come_to_be_found_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(inherits) == 12.0
    with pytest.raises(nb.KernelError, match=r"'share'.*has changed since the kernel ran"):
        taped(inherits, lambda: monkeypatch.setattr(Derived, "share", 5.0, raising=False))
    assert launched(inherits) == 75.0
    monkeypatch.setattr(Meta, "weight", 1.0)
    assert launched(inherits) == 25.0
    monkeypatch.setattr(Base, "weight", 2.0, raising=False)
    assert launched(inherits) == 50.0
    assert taped(inherits, lambda: None) == [50.0]
    monkeypatch.undo()
    assert launched(inherits) == 12.0


class Pair(NamedTuple):
    first: float
    second: float


class Kind(IntEnum):
    ONE = 1
    TWO = 2


class Holder:
    pair = Pair(0.5, 0.25)


@nb.kernel
def held(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * pair.first + Holder.pair.second + Kind.TWO.value + nb.static(Holder.pair.first)


pair = Pair(8.0, 16.0)


def test_what_tuples_and_enumerations_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(held) == 10.75
    monkeypatch.setattr(Holder, "pair", Pair(1.5, 1.25))
    assert launched(held) == 12.75
    monkeypatch.setitem(globals(), "pair", Pair(4.0, 16.0))
    assert launched(held) == 8.75


def test_operators_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    op = nb.torch_op(scale, outputs="y", name="test_changed_globals::scale")
    x = torch.ones(1, requires_grad=True)
    y = op(x)
    change(5.0)
    with pytest.raises(nb.KernelError, match=CHANGED):
        y.sum().backward()
    assert x.grad is None
    op(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [5.0]


def test_operators_of_torch_under_a_mode() -> None:
    op = nb.torch_op(scale, outputs="y", name="test_changed_globals::scale_again")
    x = torch.ones(1, requires_grad=True)
    y = op.op(x)
    change(5.0)
    with pytest.raises(nb.KernelError, match=CHANGED):
        y.sum().backward()


def test_derivatives_inside_jax() -> None:
    numbers = [1.0]

    @nb.kernel
    def scaled(x: nb.array[float], y: nb.array[float]):
        i = nb.tid()
        y[i] = x[i] * x[i] * factor * nb.static(numbers[0])

    f = jax_kernel(scaled, enable_backward=True)
    x = jnp.ones(1)
    _, pull = jax.vjp(lambda x: f(x)[0], x)
    change(5.0)
    with pytest.raises(nb.KernelError, match="has changed since JAX traced it"):
        pull(x)
    change(2.0)
    assert pull(x)[0].tolist() == [4.0]
    jitted = jax.jit(lambda x: f(x)[0].sum())
    assert float(jitted(x)) == 2.0
    numbers[0] = 3.0
    with pytest.raises(nb.KernelError, match="has changed since JAX traced it"):
        jax.jvp(jitted, (x,), (3 * x,))
    assert jax.grad(lambda x: f(x)[0].sum())(x).tolist() == [12.0]
    numbers[0] = 1.0
    # What was made while it had this value is still right.
    assert jax.grad(jitted)(x).tolist() == [4.0]


def test_operators_of_paddle() -> None:
    op = nb.paddle_op(scale, outputs="y")
    x = paddle.ones([1])
    x.stop_gradient = False
    y = op(x)
    change(5.0)
    with pytest.raises(OSError, match="has changed since the kernel ran"):  # what Paddle makes of an exception
        y.sum().backward()
    op(x).sum().backward()
    assert x.grad.tolist() == [5.0]


WEIGHTS = np.array([2.0, 3.0], np.float32)


@nb.kernel
def weigh(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * WEIGHTS[i]


def test_a_tape_refuses_a_kernel_whose_global_array_was_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WEIGHTS", np.array([2.0, 3.0], np.float32))
    assert taped(weigh, lambda: None) == [2.0]
    assert taped(weigh, lambda: WEIGHTS.__setitem__(0, WEIGHTS[0])) == [2.0]
    with pytest.raises(nb.KernelError, match=r"'WEIGHTS'.*has changed since the kernel ran"):
        taped(weigh, lambda: WEIGHTS.__setitem__(0, 7.0))
    assert taped(weigh, lambda: None) == [7.0]


EAGER_FACTOR = 2.0


@nb.kernel
def eager_kernel(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = EAGER_FACTOR * x[i]


@pytest.mark.parametrize("mode", list(nb.GraphMode))
def test_a_callable_outside_of_programs_sees_what_has_changed(mode, monkeypatch) -> None:
    def function(x: nb.array[float], out: nb.array[float]):
        between = nb.zeros(x.shape)
        nb.launch(eager_kernel, x.shape, [x], [between])
        nb.launch(eager_kernel, x.shape, [between], [out])

    f = nb.jax_callable(function, graph_mode=mode)
    x = jnp.ones(3)
    for factor in (2.0, 5.0, 2.0):
        monkeypatch.setitem(globals(), "EAGER_FACTOR", factor)
        assert f(x)[0].tolist() == [factor * factor] * 3
