"""What a function's parameters are by default is what Python keeps: the value of the time when the function was defined."""

from __future__ import annotations

import math

import numpy as np
import pytest

import numbridge as nb


@nb.func
def half(x):
    return x * 0.5


LIMIT, SCALE, NAMES = 3, (2.0, 0.5), {"half": half}


@nb.func
def limited(x, n=LIMIT, scales=SCALE, f=half, g=math.sqrt, v=nb.vec2(1.0, 2.0)):  # noqa: B008
    return f(x) * n + scales[0] * g(x) + scales[1] + v.y


@nb.kernel
def limits(x, y):
    i = nb.tid()
    y[i] = limited(x[i])


def test_numbers_vectors_and_functions_are_kept(monkeypatch):
    for name, other in (("LIMIT", 7), ("SCALE", (0.0, 0.0)), ("half", math.sin)):
        monkeypatch.setitem(globals(), name, other)
    x, y, given = np.array([4.0]), np.zeros(1), np.zeros(1)
    nb.launch(limits, 1, [x, y])
    assert y[0] == 2 * 3 + 2 * 2 + 0.5 + 2
    nb.launch(limits, 1, [x, y], adj_inputs=[given, np.ones(1)], adjoint=True)
    assert given[0] == 0.5 * 3 + 2 * 0.25


def with_default(default):
    """Return a kernel that calls a function with a default, whose name is that of a global, too."""

    @nb.func
    def function(x, given=default):
        return given(x) if callable(given) else given[0] * x

    @nb.kernel
    def calling(x, y):
        i = nb.tid()
        y[i] = function(x[i])

    return calling


def made_in_a_loop():
    made = []
    for act in (math.sin, math.cos):

        @nb.func
        def apply(x, f=act):
            return f(x)

        made.append(apply)
    first, _ = made

    @nb.kernel
    def calling(x, y):
        i = nb.tid()
        y[i] = first(x[i])

    return calling


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: with_default(np.array([2.0])), "the default default of function is an array"),
        (
            lambda: with_default((np.array([2.0]), 1.0)),
            "the default default of function is not what its name stands for now",
        ),
        (lambda: with_default(np.sin), "the default default of function is not what its name stands for now"),
        (made_in_a_loop, "the default act of apply is not what its name stands for now"),
    ],
    ids=["array", "tuple with an array", "function", "loop"],
)
def test_what_a_name_does_not_tell_is_refused(make, text, monkeypatch):
    monkeypatch.setitem(globals(), "default", np.cos)
    monkeypatch.setitem(globals(), "act", math.cos)
    kernel, x, y = make(), np.array([0.5]), np.zeros(1)
    for launch in (
        lambda: nb.launch(kernel, 1, [x, y]),
        lambda: nb.launch(kernel, 1, [x, y], adj_inputs=[x.copy(), y.copy()], adjoint=True),
    ):
        with pytest.raises(nb.KernelError, match=f"{text}.*pass it as an argument"):
            launch()
    assert y[0] == 0
