"""Operators of PyTorch where torch's dispatcher meets them by itself: transforms in graphs; dual, lazy and sparse tensors."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import numbridge as nb

DOUBLE = torch.float64
# torch's own decompositions for forward mode are scripted when they are first needed.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@nb.kernel
def cubed(x, w, y):
    i = nb.tid()
    y[i] = x[i] * x[i] * x[i] * w[i]


@nb.kernel
def doubled(x):
    i = nb.tid()
    x[i] = 2.0 * x[i]


@nb.kernel
def cubed_columns(x, y):
    i, j = nb.tid()
    y[i, j] = x[i, j] * x[i, j] * x[i, j]


cube = nb.torch_op(cubed, "y", name="transforms_cubed")
column = nb.torch_op(cubed_columns, "y", name="transforms_columns")
double = nb.torch_op(doubled, name="transforms_doubled")
X, W, T = (torch.linspace(*ends, 4, dtype=DOUBLE) for ends in ((1, 2), (3, 1), (-1, 1)))


def by(op):
    return lambda x: op(x, W)


def reference(x):
    return x**3 * W


def derivatives(function):
    """Return functions that transform one, by every transform and some of their compositions."""
    func = torch.func
    return {
        "jvp": lambda x: func.jvp(function, (x,), (T,)),
        "grad": func.grad(lambda x: function(x).sum()),
        "vmap": lambda x: func.vmap(function)(torch.stack([x, T])),
        "vmap of grad": lambda x: func.vmap(func.grad(lambda x: function(x).sum()))(torch.stack([x, T])),
        "hessian": func.hessian(lambda x: function(x).sum()),
        "jvp of grad": lambda x: func.jvp(func.grad(lambda x: function(x).sum()), (x,), (T,)),
        "third": func.jacfwd(func.jacrev(func.jacrev(function))),
        "functionalize": func.functionalize(function),
        "grad of functionalize": func.grad(func.functionalize(lambda x: function(x).sum())),
    }


@pytest.mark.parametrize("name", derivatives(reference))
def test_the_operator_itself_is_transformed(name):
    torch.testing.assert_close(derivatives(by(cube.op))[name](X), derivatives(reference)[name](X))


@pytest.mark.parametrize("name", ["jvp", "grad", "vmap", "vmap of grad", "hessian", "jvp of grad"])
def test_transforms_are_compiled_in_one_graph(name):
    torch._dynamo.reset()
    compiled = torch.compile(derivatives(by(cube))[name], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), derivatives(reference)[name](X))


def interrupted(function):
    """Return a function within which torch.compile ends a graph and begins another."""

    def interrupted(x):
        y = function(x)
        torch._dynamo.graph_break()
        return function(y) + y

    return interrupted


@pytest.mark.parametrize("name", ["jvp", "grad", "vmap", "vmap of grad"])
def test_transforms_that_are_compiled_in_several_graphs(name):
    torch._dynamo.reset()
    compiled = torch.compile(derivatives(interrupted(by(cube)))[name], backend="aot_eager")
    torch.testing.assert_close(compiled(X), derivatives(interrupted(reference))[name](X))


@nb.kernel
def summed(x, a, y):
    i = nb.tid()
    nb.atomic_add(y, (), a * x[i] * x[i])


total = nb.torch_op(summed, "y", output_dims=(), name="transforms_total")


def test_tangents_of_numbers_that_torch_has_made_wider():
    x, a = X.float(), torch.tensor(0.5)
    assert torch.func.jacfwd(lambda a: 0.9 * a)(a).dtype == torch.float64, "what this is about is gone"
    for derive in (torch.func.jacfwd, torch.func.hessian, lambda f: torch.func.jacfwd(torch.func.jacfwd(f))):
        got = derive(lambda a: 0.9 * total(x, 0.9 * a * a))(a)
        expected = derive(lambda a: 0.9 * (0.9 * a * a * x**2).sum())(a)
        torch.testing.assert_close(got, expected, check_dtype=False, rtol=1e-5, atol=1e-5)


def unrecorded(function):
    def unrecorded(x):
        y = x.sin()
        with torch.no_grad():
            z = function(y)
        return y + z

    return unrecorded


def primal_of_jvp(function):
    return torch.func.jacrev(lambda x: torch.func.jvp(function, (x,), (T,))[0])


@pytest.mark.parametrize("op", [cube, cube.op], ids=["op", "overload"])
@pytest.mark.parametrize("inner", [torch.func.jacfwd, torch.func.jacrev, primal_of_jvp])
@pytest.mark.parametrize("outer", [lambda derived: derived, torch.func.jacfwd, torch.func.jacrev])
def test_no_grad_holds_for_every_transform_around_it(outer, inner, op):
    got, expected = (outer(inner(unrecorded(function)))(X) for function in (by(op), reference))
    torch.testing.assert_close(got, expected)


def test_an_exported_graph_is_transformed():
    class Module(torch.nn.Module):
        def forward(self, x):
            return cube(x, W)

    module = torch.export.export(Module(), (X,)).module()
    for name in ("jvp", "grad", "hessian"):
        torch.testing.assert_close(derivatives(module)[name](X), derivatives(reference)[name](X))


def test_a_batch_of_no_rows():
    nothing = torch.zeros(4, 0, dtype=DOUBLE)
    for op in (cube, cube.op):
        assert torch.vmap(op, in_dims=(1, None))(nothing, W).shape == (0, 4)
        gradient = torch.func.grad(lambda x, op=op: op(x, W).sum())
        assert torch.vmap(gradient, in_dims=-1, out_dims=1)(nothing).shape == (4, 0)
        assert torch.vmap(op, in_dims=(1, None))(nothing.float(), W).dtype == torch.float32


def tangent(function):
    def derived(x, t):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(x, t))).tangent

    return derived


def test_dual_tensors_have_tangents_whoever_calls_the_operator():
    expected = tangent(reference)(X, T)
    torch._dynamo.reset()
    for function in (by(cube), by(cube.op), torch.compile(by(cube), backend="aot_eager")):
        torch.testing.assert_close(tangent(function)(X, T), expected)
    torch.testing.assert_close(torch.compile(tangent(by(cube)), backend="aot_eager")(X, T), expected)


def test_what_cannot_follow_tangents_in_a_graph_refuses():
    torch._dynamo.reset()
    compiled = torch.compile(tangent(by(cube)), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"within forward_ad.dual_level its tangents cannot be compiled"):
        compiled(X, T)


def changed(op):
    def function(x):
        y = x.clone()
        op(y)
        return y

    return function


@pytest.mark.parametrize("op", [double, double.op], ids=["op", "overload"])
def test_no_derivative_is_lost_where_an_operator_changes_its_inputs(op):
    function = changed(op)
    for derived in (lambda x: torch.func.jvp(function, (x,), (T,)), lambda x: tangent(function)(x, T)):
        with pytest.raises(nb.NumbridgeError, match="changes x in place, and tangents would not follow; make what it"):
            derived(X)
    for derived in (torch.func.grad(lambda x: function(x).sum()), lambda x: function(x.clone().requires_grad_())):
        with pytest.raises(nb.NumbridgeError, match="changes x in place and has no gradient"):
            derived(X)
    with torch.no_grad():
        assert torch.equal(function(X.clone().requires_grad_()), 2 * X)
    with forward_ad.dual_level():
        assert torch.equal(function(forward_ad.unpack_dual(forward_ad.make_dual(X, T)).primal), 2 * X)


@nb.kernel
def averaged(x, mean):
    i = nb.tid()
    mean[i] = 0.5 * mean[i] + 0.5 * x[i]


average = nb.torch_op(averaged, name="transforms_averaged")


class Tracked(torch.nn.Module):
    """A layer that keeps an average of what passes it, as batch normalisation does."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(W.clone())
        self.register_buffer("mean", torch.zeros_like(W))

    def forward(self, x):
        y = x * self.weight
        with torch.no_grad():
            average(y, self.mean)
        return y * self.mean


# torch copies its own specifications of trees when it decomposes a program.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_buffers_that_an_operator_changes_go_into_graphs():
    # Modules of one program share its buffers.
    exported = torch.export.export(Tracked(), (X,)).module()
    decomposed = torch.export.export(Tracked(), (X,)).run_decompositions().module()
    for module in (exported, decomposed, torch.compile(Tracked(), backend="aot_eager")):
        eager = Tracked()
        for _ in range(2):
            torch.testing.assert_close(module(X), eager(X))


def negated(x):
    """Return a tensor that is `x`, but for a sign that is yet to be computed."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


@pytest.mark.parametrize("make", [negated, lambda x: torch._neg_view(-x)], ids=["strided", "dense"])
def test_tensors_whose_sign_is_yet_to_be_computed(make):
    assert make(X).is_neg()
    found, expected = X.clone().requires_grad_(), X.clone().requires_grad_()
    cube(make(found), make(W)).backward(make(T))
    reference(expected).backward(T)
    torch.testing.assert_close(found.grad, expected.grad)
    with torch.no_grad():
        assert torch.equal(cube(make(X), W), cube(X, W))


@pytest.mark.parametrize("count", [1, 4])
def test_gradients_whose_sign_or_zeros_are_yet_to_be_computed(count):
    for gradient in (negated(T[:count]), torch._neg_view(T[:count]), torch._efficientzerotensor(count, dtype=DOUBLE)):
        x = X[:count].clone().requires_grad_()
        cube(x, W[:count]).backward(gradient)
        torch.testing.assert_close(x.grad, 3 * X[:count] ** 2 * W[:count] * gradient)


def test_complex_tensors_whose_conjugate_is_yet_to_be_computed():
    z = torch.complex(X, T)
    torch.testing.assert_close(cube(z.conj(), z), z.conj().resolve_conj() ** 3 * z)


def test_a_sign_that_is_yet_to_be_computed_is_not_written():
    z = torch.complex(X, T)
    with pytest.raises(nb.BufferAccessError, match=r"transforms_doubled writes to x, of which a sign.*resolve_neg\(\)"):
        double(z.conj().imag)
    assert torch.equal(z, torch.complex(X, T))


def test_sparse_gradients():
    index = torch.tensor([1, 3, 1])

    def gradient(function):
        x = X.clone().reshape(4, 1).requires_grad_()
        table = function(x)
        torch.nn.functional.embedding(index, table, sparse=True).square().sum().backward()
        return x.grad

    torch.testing.assert_close(gradient(column), gradient(lambda x: x**3).to_dense())
    x = X.clone().requires_grad_()
    cube(x, W).backward(T.to_sparse())
    torch.testing.assert_close(x.grad, 3 * X**2 * W * T)


@nb.kernel
def added(x, total):
    i = nb.tid()
    total[i] += x[i]


@nb.kernel
def added_and_doubled(x, total, y):
    i = nb.tid()
    total[i] += x[i]
    y[i] = 2.0 * total[i]


add, add_and_double = nb.torch_op(added), nb.torch_op(added_and_doubled, "y")


def after(x, total):
    add(x, total)
    return total


@pytest.mark.parametrize("dims", [(0, 0), (0, 1), (1, 0), (None, 0)])
def test_batches_of_what_is_changed_in_place(dims):
    rows = torch.arange(12.0, dtype=DOUBLE).reshape(3, 4)
    given = X if dims[0] is None else rows.movedim(0, dims[0]).contiguous()
    total = torch.ones(3, 4, dtype=DOUBLE).movedim(0, dims[1]).contiguous()
    version = total._version
    made = torch.vmap(after, dims, out_dims=dims[1])(given, total)
    wanted = 1 + (X.expand(3, 4) if dims[0] is None else rows)
    assert torch.equal(total.movedim(dims[1], 0), wanted) and torch.equal(made, total) and total._version > version
    total = torch.ones(3, 4, dtype=DOUBLE)
    doubled = torch.vmap(add_and_double, (dims[0], 0))(given, total)
    assert torch.equal(total, wanted) and torch.equal(doubled, 2 * wanted)


def changed_too_late(x):
    """Change what the derivative of a product needs, after the product."""
    factor = x.detach().clone()
    made = cube(factor, x)
    double(factor)
    return made.sum()


def test_what_is_saved_in_a_transform_and_then_changed_is_noticed():
    rows, text = torch.stack([X, W]), "modified by an inplace operation"
    with pytest.raises(RuntimeError, match=text):
        torch.func.grad(changed_too_late)(X)
    with pytest.raises(RuntimeError, match=text):
        torch.func.vjp(changed_too_late, X)[1](torch.ones((), dtype=DOUBLE))
    with pytest.raises(RuntimeError, match=text):
        torch.func.vmap(torch.func.grad(changed_too_late))(rows)
    with pytest.raises(RuntimeError, match=text):
        torch.func.grad(lambda x: torch.func.vmap(changed_too_late)(x).sum())(rows)


def test_batches_of_batches_and_of_no_rows_in_place():
    rows = torch.arange(24.0, dtype=DOUBLE).reshape(2, 3, 4)
    assert torch.equal(torch.vmap(torch.vmap(lambda x: after(x, x * 0)))(rows), rows)
    assert torch.vmap(add_and_double)(rows[0, :0], torch.zeros(0, 4, dtype=DOUBLE)).shape == (0, 4)
    assert torch.vmap(after)(rows[0, :0], torch.zeros(0, 4, dtype=DOUBLE)).shape == (0, 4)
    compiled = torch.compile(torch.vmap(lambda x: after(x, x * 0)), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(rows[0]), rows[0])


def test_what_all_rows_share_is_not_changed_in_place():
    total = torch.zeros(4, dtype=DOUBLE)
    with pytest.raises(
        nb.KernelUnsupportedError, match=r"changes total in place, which within torch\.vmap is the same for all"
    ):
        torch.vmap(after, (0, None))(torch.ones(3, 4, dtype=DOUBLE), total)
    assert not total.any()


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (X.to_sparse, r"of layout torch.sparse_coo cannot be shared; use .to_dense\(\)"),
        (lambda: torch.nested.nested_tensor([X, X[:2]]), "that is nested cannot be shared; use .*to_padded_tensor"),
        (
            lambda: torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged),
            r"that is nested cannot be shared; use .values\(\) if it is jagged",
        ),
        (
            lambda: torch.quantize_per_tensor(X.float(), 0.1, 0, torch.qint8),
            r"that is quantized cannot be shared; use .int_repr\(\) or .dequantize\(\)",
        ),
    ],
    ids=["sparse", "nested", "jagged", "quantized"],
)
# torch says so of nested and quantized tensors, when the first ones are made.
@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors:UserWarning", "ignore:torch.quantize_per_tensor:UserWarning"
)
def test_tensors_whose_memory_is_not_their_numbers_are_refused(tensor, text):
    made = tensor()
    with pytest.raises(nb.BufferAccessError, match=rf"parameter 'x': a torch tensor {text}"):
        cube(made, W)
    with pytest.raises(nb.BufferAccessError, match=r"parameter 'w': a torch tensor .* cannot be shared"):
        cube(X, made)
