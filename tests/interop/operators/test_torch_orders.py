"""Derivatives of PyTorch operators beyond the second, in every order of forward and reverse mode."""

from __future__ import annotations

import concurrent.futures
import itertools
import math

import pytest
import torch

import numbridge as nb

DOUBLE = torch.float64
# torch's own decompositions for forward mode are scripted when they are first needed.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@nb.kernel
def waves(x, w, y, z):
    i = nb.tid()
    y[i] = math.sin(x[i]) * w[i] * w[i]
    z[i] = x[i] * x[i] * x[i] * w[i]


@nb.kernel
def summed_up(x, a, y):
    i = nb.tid()
    for k in range(3):
        y[i] = y[i] * x[i] + a * x[i] * k


@nb.kernel
def gathered(x, index, y):
    i = nb.tid()
    y[i] = x[index[i]] * x[index[i]] * x[i]


@nb.kernel
def counted(x, y, n: nb.array1d[nb.int32]):
    i = nb.tid()
    y[i] = x[i] * x[i] * x[i]
    n[i] = i


wave = nb.torch_op(waves, ["y", "z"], name="orders_waves")
summed = nb.torch_op(summed_up, "y", name="orders_summed")
gather = nb.torch_op(gathered, "y", name="orders_gathered")
count = nb.torch_op(counted, ["y", "n"], name="orders_counted")


def leaf(n=3, seed=0):
    return torch.randn(n, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def derived(function, values):
    """Return a weighted sum of gradients that can be differentiated again."""
    results = function(*values)
    total = sum((r * torch.cos(torch.arange(r.numel()).reshape(r.shape))).sum() for r in results)
    return torch.autograd.grad(total, values, create_graph=True)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (wave, (leaf(), leaf(seed=1))),
        (lambda x: (summed(x, 0.5),), (leaf(),)),
        (lambda x: (gather(x, torch.tensor([2, 0, 0])),), (leaf(),)),
    ],
    ids=["wave", "summed", "gather"],
)
def test_third_derivatives_against_differences(function, values):
    def second(*values):
        return derived(lambda *v: derived(function, v), values)

    assert torch.autograd.gradcheck(second, values, nondet_tol=0.0)


def test_derivatives_of_orders_three_and_four():
    x, w = leaf(), leaf(seed=1)
    found, expected = (wave(x, w)[0],), (torch.sin(x) * w**2,)
    for order in range(1, 5):
        # By x and w in turn, so that mixed ones are seen, too.
        found = torch.autograd.grad(
            found[0].sum(), (x, w) if order % 2 else (w, x), create_graph=True, allow_unused=True
        )
        expected = torch.autograd.grad(
            expected[0].sum(), (x, w) if order % 2 else (w, x), create_graph=True, allow_unused=True
        )
        torch.testing.assert_close(found, expected)


def by_reverse(function):
    return torch.func.grad(lambda x: function(x).sum())


def by_forward(function):
    return lambda x: torch.func.jvp(function, (x,), (torch.linspace(1, 2, 3, dtype=DOUBLE),))[1]


@pytest.mark.parametrize(
    "steps", [*itertools.product([by_reverse, by_forward], repeat=3)], ids=lambda s: "".join(f.__name__[3] for f in s)
)
@pytest.mark.parametrize(
    ("op", "reference"),
    [
        (lambda x: wave(x, x)[0], lambda x: torch.sin(x) * x**2),
        (lambda x: summed(x, 0.5), lambda x: 0.5 * x**2 + x),
    ],
    ids=["wave", "summed"],
)
def test_forward_and_reverse_mode_in_every_order(op, reference, steps):
    x = leaf().detach()
    for step in steps:
        op, reference = step(op), step(reference)
    torch.testing.assert_close(op(x), reference(x))


def test_forward_mode_over_gradients_with_integers_among_the_inputs():
    index = torch.tensor([2, 0, 0])
    x = leaf().detach()
    for derive in (torch.func.hessian, lambda f: torch.func.jacfwd(torch.func.hessian(f))):
        got = derive(lambda x: gather(x, index).sin().sum())(x)
        torch.testing.assert_close(got, derive(lambda x: (x[index] ** 2 * x).sin().sum())(x))


def test_tensors_of_third_derivatives():
    x = leaf().detach()
    function = torch.func.jacfwd(torch.func.hessian(lambda x: wave(x, x)[1].sum()))
    torch.testing.assert_close(function(x), torch.func.jacfwd(torch.func.hessian(lambda x: (x**4).sum()))(x))
    rows = torch.vmap(by_reverse(by_forward(by_reverse(lambda x: wave(x, x)[1]))))(torch.stack([x, 2 * x]))
    expected = torch.linspace(1, 2, 3, dtype=DOUBLE) * 24 * x
    torch.testing.assert_close(rows, torch.stack([expected, 2 * expected]))


def test_torch_s_own_functionals():
    x, v = leaf(), torch.ones(3, dtype=DOUBLE)
    torch.testing.assert_close(
        torch.autograd.functional.hvp(lambda x: wave(x, x)[1].sum(), x, v)[1], 12 * x.detach() ** 2
    )


def test_outputs_that_are_no_floats_have_no_derivative():
    x = leaf()
    torch.testing.assert_close(derived(lambda x: derived(lambda x: count(x)[:1], (x,)), (x,))[0].shape, x.shape)
    y, tangent = torch.func.jvp(lambda x: count(x)[0], (x.detach(),), (torch.ones(3, dtype=DOUBLE),))
    torch.testing.assert_close((y, tangent), (x.detach() ** 3, 3 * x.detach() ** 2))
    torch.testing.assert_close(
        by_forward(by_forward(lambda x: count(x)[0]))(x.detach()),
        6 * x.detach() * torch.linspace(1, 2, 3, dtype=DOUBLE) ** 2,
    )


@nb.kernel
def stretched(a: nb.array1d[nb.vec3d], s, out: nb.array1d[nb.vec3d]):
    i = nb.tid()
    v = a[i]
    out[i] = v * (nb.dot(v, v) * s[i])


def test_vectors():
    op, values = nb.torch_op(stretched, "out"), (leaf(6).detach().reshape(2, 3).requires_grad_(), leaf(2))
    functions = [lambda *v: (op(*v),), lambda a, s: (a * ((a * a).sum(-1) * s)[:, None],)]
    for _ in range(3):
        functions = [lambda *v, f=f: derived(f, v) for f in functions]
    torch.testing.assert_close(*(function(*values) for function in functions))


def test_what_a_first_derivative_saved_may_not_be_changed():
    inner = leaf() * 1
    (g,) = torch.autograd.grad(summed(inner, 0.5).sum(), inner, create_graph=True)
    with torch.no_grad():
        inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(g.sum(), inner)


def test_names_of_derivatives_give_way():
    nb.torch_op(counted, ["y", "n"], name="orders_name_adjoint")
    op, x = nb.torch_op(waves, ["y", "z"], name="orders_name"), leaf()
    assert op._operators._adjoint.name() == "numbridge::orders_name_adjoint_2"
    (by_x,) = torch.autograd.grad(op(x, x)[1].sum(), x)
    torch.testing.assert_close(by_x, 4 * x.detach() ** 3)


def test_threads_ask_for_a_tangent_at_the_same_time():
    op = nb.torch_op(waves, ["y", "z"], name="orders_threads")

    def work(seed):
        x = leaf(seed=seed)
        (g,) = torch.autograd.grad(op(x, x)[1].sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        torch.testing.assert_close(h, 12 * x.detach() ** 2)
        return True

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
