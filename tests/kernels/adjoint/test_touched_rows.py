"""Which rows of its arrays a kernel touches, as sums of integers that are passed by value."""

from __future__ import annotations

import numpy as np

import numbridge as nb
from adjoint_as_python import program_of
from numbridge.kernels.adjoint.touched_rows import touched_rows


@nb.func
def at(x, t, i):
    return x[t, i] + x[t - 2, i]


@nb.kernel
def steps(x, y, total, t, stride):
    i = nb.tid()
    y[t * 3 + stride, i] = at(x, t, i)
    nb.atomic_add(total, t + 1, x[-1, i])


@nb.kernel
def others(x, y, rows, t):
    i = nb.tid()
    for k in range(2):
        y[t + k, i] = x[rows[t], i] + x[i, 0]


def test_rows():
    program = program_of(steps, [np.zeros((9, 9)), np.zeros((9, 9)), np.zeros(9), 3, 1])
    t = ("t", 1)
    assert touched_rows(program) == {
        "x": (((-2, (t,)), (-1, ()), (0, (t,))), ()),
        "y": ((), ((0, (("stride", 1), ("t", 3))),)),
        "total": (((1, (t,)),), ((1, (t,)),)),
    }


def test_what_integers_by_value_do_not_decide_is_unknown():
    program = program_of(others, [np.zeros((9, 9)), np.zeros((9, 9)), np.arange(9), 3])
    assert touched_rows(program) == {"rows": (((0, (("t", 1),)),), ())}
