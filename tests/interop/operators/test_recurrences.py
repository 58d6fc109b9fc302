"""Operators whose loops read what they have stored: what the adjoint changes is its own memory."""

from __future__ import annotations

import math

import numpy as np
import paddle
import torch
from numba import float64

import numbridge as nb

STEPS, N = 6, 19


@nb.kernel
def relaxed(x: nb.array2d[float64], y: nb.array2d[float64]):
    i = nb.tid()
    y[0, i] = x[0, i]
    for t in range(1, x.shape[0]):
        y[t, i] = math.tanh(y[t - 1, i]) * x[t, i] + 0.5 * y[t - 1, i]


def of_columns(x):
    return x.shape[1]


X = np.random.default_rng(2).uniform(-1, 1, (STEPS, N))


def test_torch():
    f = nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)
    x = torch.tensor(X, requires_grad=True)
    y = f(x)
    before = y.detach().clone()
    assert torch.autograd.gradcheck(f, x) and torch.autograd.gradgradcheck(f, x)
    ones = torch.ones_like(y)
    first, again = (torch.autograd.grad(y, x, ones, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again) and torch.equal(y.detach(), before)


def test_paddle():
    f = nb.paddle_op(relaxed, outputs="y", launch_dims=of_columns)
    x = paddle.to_tensor(X, stop_gradient=False)
    t = torch.tensor(X, requires_grad=True)
    y = f(x)
    before = y.numpy().copy()
    (got,) = paddle.grad((y * y).sum(), x, retain_graph=True)
    (again,) = paddle.grad((y * y).sum(), x)
    (want,) = torch.autograd.grad((nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)(t) ** 2).sum(), t)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(got.numpy(), again.numpy())
    np.testing.assert_array_equal(y.numpy(), before)
