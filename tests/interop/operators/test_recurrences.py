"""Operators whose loops read what they have stored: what the adjoint changes is its own memory.

Its outputs are there when gradients are asked for, so the adjoint takes them as they are instead of storing them again.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import paddle
import pytest
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


@nb.kernel
def in_two_steps(x: nb.array[float64], scale: float, w: nb.array[float64], y: nb.array[float64], z: nb.array[float64]):
    i = nb.tid()
    y[i] = scale * x[i] * w[i]
    z[i] = math.sin(y[i]) * w[i]


@nb.kernel
def overwritten(x: nb.array[float64], y: nb.array[float64]):
    i = nb.tid()
    y[i] = x[i] * x[i]
    y[i] = y[i] * y[i]


def leaf(values=X):
    return torch.tensor(values, requires_grad=True)


def packed(run):
    """Return what autograd saves meanwhile, and what a function returns."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or len(saved) - 1, lambda k: saved[k]):
        made = run()
    return saved, made


def test_torch_keeps_the_outputs_that_the_adjoint_reads():
    f = nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)
    x = leaf()
    saved, y = packed(lambda: f(x))
    assert [tuple(t.shape) for t in saved] == [tuple(x.shape), tuple(y.shape)]
    expected = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    # That it is read is seen where it is another.
    saved[1] = torch.zeros_like(y)
    (of_zeros,) = torch.autograd.grad(y.sum(), x)
    assert not torch.allclose(expected, of_zeros)
    g = nb.torch_op(overwritten, outputs="y")
    saved, _ = packed(lambda: g(leaf(X[0])))
    assert len(saved) == 1


def test_one_of_several_outputs_is_kept():
    f = nb.torch_op(in_two_steps, outputs=["y", "z"])
    x, w = leaf(X[0]), leaf(X[1])
    saved, (y, z) = packed(lambda: f(x, 0.5, w))
    assert len(saved) == 3
    # Any of the inputs may be the one that is asked for, and any of the outputs the one that is used.
    for of, want in (
        (y, 0.5 * x * w),
        (z, torch.sin(0.5 * x * w) * w),
        (y * z, 0.5 * x * w * torch.sin(0.5 * x * w) * w),
    ):
        for by in (x, w):
            (found,) = torch.autograd.grad(of.sum(), by, retain_graph=True)
            torch.testing.assert_close(found, torch.autograd.grad(want.sum(), by, retain_graph=True)[0])
    second = torch.autograd.grad(torch.autograd.grad(z.sum(), x, create_graph=True)[0].sum(), w)[0]
    want = torch.autograd.grad((torch.sin(0.5 * x * w) * w).sum(), x, create_graph=True)[0]
    torch.testing.assert_close(second, torch.autograd.grad(want.sum(), w)[0])


@pytest.mark.parametrize("change", [lambda y: y.mul_(3), lambda y: y[2:4].zero_(), lambda y: y.detach().add_(1)])
def test_an_output_that_torch_has_changed_is_computed_again(change):
    f = nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)
    x, by_y = leaf(), torch.tensor(X[::-1].copy())
    (want,) = torch.autograd.grad(f(x), x, by_y)
    y = f(x)
    total = (by_y * y).sum()
    change(y)
    torch.testing.assert_close(torch.autograd.grad(total, x)[0], want)


def test_an_output_that_paddle_has_changed_is_computed_again():
    f = nb.paddle_op(relaxed, outputs="y", launch_dims=of_columns)
    x = paddle.to_tensor(X, stop_gradient=False)
    (want,) = paddle.grad(f(x).sum(), x)
    y = f(x)
    total = y.sum()
    with paddle.no_grad():
        y.scale_(3.0)
    (got,) = paddle.grad(total, x)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)


def test_what_is_kept_goes_with_the_graph():
    f = nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)
    x = leaf()
    y = f(x)
    loss = (2 * y).sum()
    memory = weakref.ref(y.untyped_storage())
    del y
    assert memory() is not None
    loss.backward()
    assert memory() is None and loss.grad_fn is not None


def test_checkpoints_and_memory_on_the_host():
    f = nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)
    x = leaf()
    want = torch.autograd.grad(f(x).sum(), x)[0]
    again = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again.sum(), x)[0], want)
    with torch.autograd.graph.save_on_cpu():
        y = f(x)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], want)


def test_batches_of_gradients_of_what_is_kept():
    f = nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)
    x, by_y = leaf(), torch.tensor(np.stack([X[::-1], 2 * X]))
    y = f(x)
    (found,) = torch.autograd.grad(y, x, by_y, is_grads_batched=True, retain_graph=True)
    for got, one in zip(found, by_y, strict=True):
        torch.testing.assert_close(got, torch.autograd.grad(y, x, one, retain_graph=True)[0])


def test_nothing_is_kept_that_counts_no_changes():
    f = nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)
    x = leaf()
    with torch.inference_mode(), torch.enable_grad():
        saved, y = packed(lambda: f(x))
    assert y.is_inference() and len(saved) == 1
    torch.testing.assert_close(y.clone(), f(x).detach())


@pytest.mark.parametrize("seen", [lambda y: y[1:], lambda y: y.view(-1), lambda y: y])
def test_what_a_compiled_function_returns_of_an_output_may_be_changed(seen):
    """Nothing is kept there: torch's graphs return views of what they save, and nobody notices that such are changed."""
    f = nb.torch_op(relaxed, outputs="y", launch_dims=of_columns)
    x = leaf()
    (want,) = torch.autograd.grad((seen(f(x)) ** 2).sum(), x)
    made = torch.compile(lambda x: seen(f(x)), fullgraph=True, backend="aot_eager")(x)
    loss = (made.clone() ** 2).sum()
    with torch.no_grad():
        made.mul_(3)
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], want)
