"""Ranges take integers, as in Python; Numba cuts floats off."""

from __future__ import annotations

import numpy as np
import pytest

import numbridge as nb


@nb.func
def count(n):
    found = 0.0
    for _ in range(n):
        found += 1.0
    return found


@nb.kernel
def over_half(x, n):
    for _ in range(x.shape[0] / 2):
        x[0] += 1.0


@nb.kernel
def in_steps(x, n):
    for _ in range(0, 4, n):
        x[0] += 1.0


@nb.kernel
def in_a_function(x, n):
    x[0] = count(n)


@nb.kernel
def beside_an_array(x, n):
    for k, weight in zip(range(n), x):  # noqa: B905 - Numba takes no `strict`
        x[0] += k * weight


@nb.kernel
def raised(x, n, y):
    power = 1.0
    for _ in range(n):
        power *= x[0]
    y[0] = power


@pytest.mark.parametrize("kernel", [over_half, in_steps, in_a_function, beside_an_array])
def test_floats_are_refused(kernel):
    x = np.zeros(3)
    text = r"range takes integers, and this is a float64; divide with //, or convert with int\(\.\.\.\)\n.*range\("
    with pytest.raises(nb.KernelError, match=rf"(?s){kernel.name}.*{text}"):
        nb.launch(kernel, 1, [x, 2.0])
    with pytest.raises(nb.KernelError, match=rf"(?s){kernel.name}.*{text}"):
        kernel.ptx(x, 2.0, capability=(9, 0))
    with pytest.raises(nb.KernelError, match=rf"(?s){text}"):
        nb.launch(kernel.adjoint(["x"]), 1, [x, 2.0, x.copy()])
    assert not x.any()


def test_integers_of_any_kind_are_taken():
    for n in (3, np.int8(3), np.uint64(3), True):
        x = np.zeros(3)
        nb.launch(in_a_function, 1, [x, n])
        assert x[0] == int(n)
        gradient = np.zeros(1)
        nb.launch(raised.adjoint(["x", "y"]), 1, [np.full(1, 3.0), n, np.ones(1), gradient, np.ones(1)])
        assert gradient[0] == n * 3.0 ** (int(n) - 1)
