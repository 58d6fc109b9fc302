"""Kernels on vectors and matrices as operators of PyTorch and Paddle: shapes, gradients to second order, refusals."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import torch

import numbridge as nb

N = 4


@nb.kernel
def turned(
    m: nb.array1d[nb.mat33d],
    v: nb.array1d[nb.vec3d],
    t: nb.vec3d,
    s: float,
    out: nb.array1d[nb.vec3d],
    size: nb.array1d[nb.float64],
):
    i = nb.tid()
    out[i] = nb.cross(m[i] @ v[i], v[i] + t) * s
    size[i] = nb.length(out[i])


def in_torch(m, v, t, s):
    out = torch.linalg.cross(torch.einsum("nij,nj->ni", m, v), v + t) * s
    return out, torch.linalg.norm(out, dim=-1)


DIMS = [None, N, {"out": (N, 3), "size": N}, {"out": [N], "size": (N,)}, lambda m, v, t, s: v.shape[0]]
torch_ops = [nb.torch_op(turned, ["out", "size"], output_dims=d, name=f"test_turned_{k}") for k, d in enumerate(DIMS)]


def given(make, seed=0):
    random = np.random.default_rng(seed)
    return [make(random.normal(size=shape)) for shape in ((N, 3, 3), (N, 3), (3,))]


@pytest.mark.parametrize("op", torch_ops)
def test_torch_shapes_in_either_convention(op):
    m, v, t = given(torch.from_numpy)
    for got, wanted in zip(op(m, v, t, 2.0), in_torch(m, v, t, 2.0), strict=True):
        torch.testing.assert_close(got, wanted)


def test_torch_gradients_to_second_order():
    m, v, t = (x.requires_grad_() for x in given(torch.from_numpy))
    op = torch_ops[0]
    assert torch.autograd.gradcheck(lambda m, v, t: op(m, v, t, 2.0), (m, v, t))
    assert torch.autograd.gradgradcheck(lambda m, v, t: op(m, v, t, 2.0), (m, v, t))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_torch_checks_and_transforms():
    m, v, t = given(torch.from_numpy)
    op = torch_ops[0]
    torch.library.opcheck(op.op, (m, v.requires_grad_(), t, 2.0))
    v = v.detach()
    batch = torch.stack([v, v + 1])
    got = torch.func.vmap(op, in_dims=(None, 0, None, None))(m, batch, t, 2.0)[0]
    torch.testing.assert_close(got[1], in_torch(m, v + 1, t, 2.0)[0])
    primals, tangents = (m, v, t), tuple(given(torch.from_numpy, 1))
    got = torch.func.jvp(lambda *x: op(*x, 2.0)[0].sum(), primals, tangents)[1]
    by = torch.autograd.grad(in_torch(*(x.requires_grad_() for x in primals), 2.0)[0].sum(), primals)
    torch.testing.assert_close(got, sum((g * t).sum() for g, t in zip(by, tangents, strict=True)))


def test_paddle_gradients_to_second_order():
    arrays = given(np.asarray)
    op = nb.paddle_op(turned, ["out", "size"])
    tensors = [paddle.to_tensor(a, stop_gradient=False) for a in arrays]
    mirror = [torch.from_numpy(a).requires_grad_() for a in arrays]
    made, wanted = op(*tensors, 2.0), in_torch(*mirror, 2.0)
    np.testing.assert_allclose(made[0].numpy(), wanted[0].detach(), rtol=1e-12)
    loss = (made[0] ** 2).sum() + made[1].sum()
    grads = paddle.grad(loss, tensors, create_graph=True)
    of_torch = torch.autograd.grad((wanted[0] ** 2).sum() + wanted[1].sum(), mirror, create_graph=True)
    for got, value in zip(grads, of_torch, strict=True):
        np.testing.assert_allclose(got.numpy(), value.detach(), rtol=1e-9, atol=1e-9)
    sum((g * g).sum() for g in grads).backward()
    sum((g * g).sum() for g in of_torch).backward()
    for got, value in zip(tensors, mirror, strict=True):
        np.testing.assert_allclose(got.grad.numpy(), value.grad, rtol=1e-8, atol=1e-8)


def apart(x):
    """Return a tensor of the same numbers whose components do not lie one after another."""
    return x.movedim(-1, 0).contiguous().movedim(0, -1)


def squares(values):
    """Return the inputs' gradients of the outputs, and those of these gradients' sum, which come in expanded."""
    grads = torch.autograd.grad([out.sin().sum() for out in values[1]], values[0], create_graph=True)
    return [*grads, *torch.autograd.grad(sum(grad.sum() for grad in grads), values[0])]


def test_torch_components_that_lie_apart():
    """A launch would refuse them, and torch makes such tensors by itself: rows of batches, and gradients of sums."""
    op, given_apart = torch_ops[0], [apart(x).requires_grad_() for x in given(torch.from_numpy)[:2]]
    t = torch.stack([given(torch.from_numpy)[2]] * 2, 1)[:, 0].requires_grad_()
    values = (*given_apart, t)
    got, wanted = squares((values, op(*values, 2.0))), squares((values, in_torch(*values, 2.0)))
    torch.testing.assert_close(got, wanted)
    rows = [torch.stack([x.detach(), 2 * x.detach()], -1) for x in values]
    for function in (lambda *x: op(*x, 2.0)[0], lambda *x: torch.func.jacfwd(lambda m: op(m, *x[1:], 2.0)[1])(x[0])):
        got = torch.func.vmap(function, in_dims=-1)(*rows)
        torch.testing.assert_close(got, torch.stack([function(*[x[..., k] for x in rows]) for k in range(2)]))


def test_a_vector_whose_sign_is_yet_to_be_computed():
    m, v, t = given(torch.from_numpy)
    values = [x.requires_grad_() for x in (m, v, torch._neg_view(-t))]
    got, wanted = squares((values, torch_ops[0](*values, 2.0))), squares((values, in_torch(*values, 2.0)))
    torch.testing.assert_close(got, wanted)
    with pytest.raises(nb.BufferAccessError, match=r"'t'.*lazily negated.*resolve_neg"):
        nb.launch(turned, N, [m, v, torch._neg_view(-t), 2.0, torch.zeros_like(v), torch.zeros(N, dtype=torch.float64)])


def test_paddle_components_that_lie_apart():
    """Paddle makes them contiguous itself only where a gradient is wanted."""
    arrays, op = given(np.asarray), nb.paddle_op(turned, ["out", "size"])
    m, v = (paddle.moveaxis(paddle.to_tensor(np.ascontiguousarray(np.moveaxis(a, -1, 0))), 0, -1) for a in arrays[:2])
    assert not (m.is_contiguous() or v.is_contiguous())
    for got, wanted in zip(
        op(m, v, paddle.to_tensor(arrays[2]), 2.0), in_torch(*given(torch.from_numpy), 2.0), strict=True
    ):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12)


def test_wrong_dimensions_are_refused():
    m, v, t = given(torch.from_numpy)
    with pytest.raises(nb.NumbridgeError, match=r"'m'.*\(\.\.\., 3, 3\), got shape \(4, 3\)"):
        torch_ops[0](v, v, t, 2.0)
    with pytest.raises(nb.NumbridgeError, match=r"'v'.*vec3d"):
        torch_ops[0](m, v[:, :2], t, 2.0)
    with pytest.raises(nb.NumbridgeError, match=r"'t': wanted vec3d"):
        torch_ops[0](m, v, t[:2], 2.0)


@nb.kernel
def written_by_components(v: nb.array1d[nb.vec3d], out: nb.array1d[nb.vec3d]):
    i = nb.tid()
    out[i].x = v[i].y * v[i].z
    out[i][1] = v[i][0] * v[i][0]
    out[i][2] = 3.0 * out[i].x


def test_an_output_written_by_components():
    op = nb.torch_op(written_by_components, "out", name="test_by_components")
    v = given(torch.from_numpy)[1].requires_grad_()
    assert torch.autograd.gradcheck(op, (v,)) and torch.autograd.gradgradcheck(op, (v,))


@nb.func
def halved(v, k):
    v[k] *= 0.5
    return v


@nb.kernel
def of_changed_locals(v: nb.array1d[nb.vec3d], t: nb.vec3d, out: nb.array1d[nb.vec3d]):
    i = nb.tid()
    u = v[i]
    u[0] *= u.y
    u += halved(v[i], 2)
    t.z -= u[1]
    out[i] = nb.cross(u, t)


@nb.kernel
def of_changed_rows(v: nb.array, out: nb.array):
    i = nb.tid()
    row = v[i]
    row[0] = 2.0
    out[i, 0] = row[0]


def test_a_vector_that_a_thread_loads_or_is_passed_is_its_own_to_change():
    _, v, t = given(torch.from_numpy)
    op = nb.torch_op(of_changed_locals, "out", name="test_changed_locals")
    before = v.clone(), t.clone()
    u = v * torch.stack([v[:, 1] + 1, torch.full((N,), 2.0), torch.full((N,), 1.5)], 1)
    changed = torch.stack([*t.expand(N, 3).T[:2], t[2] - u[:, 1]], 1)
    torch.testing.assert_close(op(v, t), torch.linalg.cross(u, changed))
    assert torch.autograd.gradcheck(op, (v.requires_grad_(), t.requires_grad_()))
    assert torch.equal(v, before[0]) and torch.equal(t, before[1])


def test_the_row_of_an_array_of_unknown_rank_is_memory():
    op = nb.torch_op(of_changed_rows, "out", launch_dims=N, output_dims=(N, 1), name="test_changed_rows")
    v = torch.zeros(N, 3)
    op(v)
    assert v[:, 0].tolist() == [2.0] * N
    with pytest.raises(nb.NumbridgeError, match="changes v in place and has no gradient"):
        op(v.clone().requires_grad_())
