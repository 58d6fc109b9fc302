"""What tapes keep with a kernel, of how its launches are reversed, and when they find it out anew."""

from __future__ import annotations

import collections
import sys

import numpy as np
import pytest

import numbridge as nb
from numbridge.kernels.adjoint.derive import Derivative
from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.variant import variants_of
from numbridge.tape import tape_launches

FACTOR = 2.0
TABLE = np.array([3.0, 5.0])
SIZE = 3


@nb.func
def scaled(x):
    return x * x * FACTOR


@nb.kernel
def by_global(x, y):
    i = nb.tid()
    y[i] = scaled(x[i])


@nb.kernel
def by_table(x, y):
    i = nb.tid()
    y[i] = x[i] * TABLE[0] + TABLE[1]


@nb.kernel
def square(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


def leaf():
    return nb.full(SIZE, 3.0, dtype=nb.float64, device="cpu", requires_grad=True)


def recorded(kernel, x):
    """Record a launch; return the tape, and what it wrote."""
    y = nb.zeros(SIZE, dtype=nb.float64, device="cpu")
    with nb.Tape() as tape:
        nb.launch(kernel, SIZE, [x], [y])
    return tape, y


def gradient(kernel):
    """Return the gradient of a sum at three, by a tape of its own."""
    x = leaf()
    tape, y = recorded(kernel, x)
    tape.backward(grads={y: np.ones(SIZE)})
    (value,) = set(x.grad.list())
    return value


@pytest.fixture
def plans(monkeypatch):
    """Return a list that grows whenever it is asked how a kernel's launches are reversed."""
    asked = []
    planned = Derivative.planned
    monkeypatch.setattr(
        Derivative, "planned", lambda self, *given: asked.append(self.base.name) or planned(self, *given)
    )
    return asked


def test_a_second_tape_does_not_ask_again(plans):
    for _ in range(2):
        assert gradient(by_global) == 6 * FACTOR
    plans.clear()
    assert gradient(by_global) == 6 * FACTOR
    assert plans == []


def test_a_tape_sees_globals_that_were_rebound_since_the_last(monkeypatch, plans):
    assert gradient(by_global) == 12
    for factor in (10.0, 2.0):
        monkeypatch.setattr(f"{__name__}.FACTOR", factor)
        plans.clear()
        assert gradient(by_global) == 6 * factor
        assert "by_global" in plans
        assert gradient(by_global) == 6 * factor


def test_a_tape_sees_elements_of_global_arrays_that_were_set_since_the_last(monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", TABLE.copy())
    assert gradient(by_table) == 3
    TABLE[0] = 7.0
    assert gradient(by_table) == 7


def test_a_tape_sees_device_functions_that_were_decorated_anew(monkeypatch):
    assert gradient(by_global) == 12
    for factor in (3.0, 5.0):

        @nb.func
        def anew(x):
            return factor * x  # noqa: B023 - it is called before the next

        monkeypatch.setitem(globals(), "scaled", anew)
        assert gradient(by_global) == factor


def test_a_tape_sees_kernels_that_were_decorated_anew():
    assert gradient(square) == 6
    for factor in (2, 3):

        @nb.kernel
        def square_anew(x, y):
            i = nb.tid()
            y[i] = factor * x[i] * x[i]  # noqa: B023 - it is launched before the next

        assert gradient(square_anew) == 6 * factor
        assert gradient(square) == 6


def test_a_derivative_by_hand_says_what_is_read_from_then_on():
    @nb.func
    def inner(x):
        return 4.0 * x

    @nb.kernel
    def outer(x, y):
        i = nb.tid()
        y[i] = inner(x[i])

    def changed_before_going_back():
        x = leaf()
        tape, y = recorded(outer, x)
        np.asarray(x)[:] = 100.0
        tape.backward(grads={y: np.ones(SIZE)})
        return x.grad.list()

    # The derivative reads no x, so nothing is wrong with another.
    assert changed_before_going_back() == [4.0] * SIZE

    @nb.func_grad(inner)
    def inner_grad(x, cotangent):
        return 50.0 * x * cotangent

    assert gradient(outer) == 150
    with pytest.raises(nb.NumbridgeError, match="parameter 'x' of kernel 'outer' has been changed since the launch"):
        changed_before_going_back()


def test_what_a_kernel_reads_is_compared_once_for_a_recorded_launch(monkeypatch):
    x, found = leaf(), collections.Counter()
    recorded(by_global, x)
    holds = Dependency.holds
    monkeypatch.setattr(Dependency, "holds", lambda self: found.update([self.name]) or holds(self))
    recorded(by_global, x)
    # "gradient" is what `func_grad` may have entered, which only the adjoint reads.
    assert found == {"scaled": 1, "FACTOR": 1, "gradient": 1}


def test_a_launch_and_the_way_back_are_few_calls():
    """They are what a tape of small launches costs; counted, since no load of the machine changes that."""
    x = leaf()
    y = nb.zeros(SIZE, dtype=nb.float64, device="cpu")
    seed = nb.ones(SIZE, dtype=nb.float64, device="cpu")

    def calls(launches):
        counted = []
        sys.setprofile(lambda frame, event, argument: counted.append(frame.f_code) if event == "call" else None)
        try:
            with nb.Tape() as tape:
                for _ in range(launches):
                    nb.launch(square, SIZE, [x], [y])
            tape.backward(grads={y: seed})
        finally:
            sys.setprofile(None)
        return len(counted)

    calls(1)
    assert calls(1) <= 125
    assert calls(11) - calls(1) <= 10 * 60


def test_what_is_kept_does_not_grow_with_extents(monkeypatch):
    monkeypatch.setattr(tape_launches, "_MAX_RUNS", 4)
    x, y = nb.ones(40, dtype=nb.float64, device="cpu", requires_grad=True), nb.zeros(40, dtype=nb.float64, device="cpu")
    for n in range(1, 12):
        with nb.Tape() as tape:
            nb.launch(square, n, [x], [y])
        tape.backward(grads={y: np.ones(40)})
        assert np.array_equal(x.grad.numpy(), np.where(np.arange(40) < n, 2.0, 0.0))
        tape.zero()
    (signature,) = [s for s in variants_of(square).recorded.values() if len(s._recipes[0, 1]._runs) > 1]
    assert len(signature._recipes[0, 1]._runs) <= 4
