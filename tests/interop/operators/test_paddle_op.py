"""Kernels as Paddle operators: values, gradients of any order by any of the inputs, and refusals."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
import torch

import numbridge as nb
from block_dim_cases import factors, product_dims, products
from block_gradient_cases import softmax


@nb.kernel
def two(x, w, y, z):
    i = nb.tid()
    y[i] = w[i] * x[i] * x[i] * x[i]
    z[i] = x[i] * w[i] * w[i]


@nb.kernel
def scaled(x, a, y):
    i = nb.tid()
    y[i] = a * math.sin(x[i])


@nb.kernel
def gathered(x, index, y):
    i = nb.tid()
    y[i] = x[index[i]] * x[index[i]]


@nb.kernel
def in_place(x, y):
    i = nb.tid()
    y[i] = y[i] + x[i]


@pytest.mark.parametrize(
    ("value", "called", "way"),
    [
        (np.ones(3, np.float32), r"numpy\.ndarray", r"use nb\.convert\(x, 'paddle'\)"),
        (torch.ones(3), r"torch\.Tensor", r"use nb\.convert\(x, 'paddle'\)"),
        ([1.0], "list", r"use paddle\.to_tensor\(x\)"),
    ],
)
def test_what_is_no_tensor_of_paddle_is_refused(value, called, way):
    y = paddle.ones([3])
    for operator, values in ((nb.paddle_op(two, ["y", "z"]), (y, value)), (nb.paddle_op(in_place), (value, y))):
        with pytest.raises(nb.NumbridgeTypeError, match=rf"wanted a paddle\.Tensor, got {called}; {way}"):
            operator(*values)
    assert y.tolist() == [1, 1, 1]


@nb.kernel
def scaled_by_annotated(x: nb.array[nb.float64], a: nb.float64, n: int, y: nb.array[nb.float64]):
    i = nb.tid()
    y[i] = a * math.sin(x[i]) * n


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("of", [scaled, scaled_by_annotated], ids=["any", "annotated"])
def test_a_tensor_for_a_number_has_its_gradient(of, kind):
    operator, more = nb.paddle_op(of, outputs="y"), (1,) * (of is scaled_by_annotated)
    x, a = leaves()[0], paddle.to_tensor(2.0, dtype=kind, stop_gradient=False)
    y, sine = operator(x, a, *more), np.sin(x.numpy())
    assert y.dtype == paddle.float64
    np.testing.assert_allclose(y.numpy(), 2 * sine)
    by_x, by_a = paddle.grad((y * y).sum(), [x, a], create_graph=True)
    assert by_a.dtype == a.dtype and not by_a.shape
    np.testing.assert_allclose(by_a.numpy(), (4 * sine**2).sum(), rtol=1e-6)
    np.testing.assert_allclose(by_x.numpy(), 8 * sine * np.cos(x.numpy()))
    (second,) = paddle.grad(by_a, [a])
    np.testing.assert_allclose(second.numpy(), (2 * sine**2).sum(), rtol=1e-6)


@nb.kernel
def multiples(a: float, y: nb.array[float]):
    i = nb.tid()
    y[i] = a * i


def test_an_operator_of_numbers_alone():
    multiply = nb.paddle_op(multiples, "y", launch_dims=3, output_dims=3)
    assert multiply(2.0).tolist() == [0, 2, 4]
    a = paddle.to_tensor(2.0, stop_gradient=False)
    multiply(a).sum().backward()
    assert a.grad.item() == 3


def test_what_is_no_tensor_of_one_number():
    operator, x = nb.paddle_op(scaled_by_annotated, outputs="y"), leaves()[0]
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"parameter 'a': wanted a number, got a tensor of shape \(1,\); pass one w"
    ):
        operator(x, paddle.ones([1]), 1)
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"parameter 'n': wanted a number, got a tensor for int32; pass tensor.i"
    ):
        operator(x, 2.0, paddle.to_tensor(3))


pair = nb.paddle_op(two, outputs=["y", "z"])


def leaves():
    made = [paddle.to_tensor(np.random.default_rng(k).normal(size=5)) for k in range(2)]
    for tensor in made:
        tensor.stop_gradient = False
    return made


def close(a, b):
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


def test_values_and_gradients():
    x, w = leaves()
    y, z = pair(x, w)
    close(y, w * x**3)
    close(z, x * w**2)
    (y.sum() + 2 * z.sum()).backward()
    close(x.grad, 3 * w * x**2 + 2 * w**2)
    close(w.grad, x**3 + 4 * x * w)


def test_numbers_and_integer_tensors():
    x, _ = leaves()
    y = nb.paddle_op(scaled, "y")(x, 2.0)
    y.sum().backward()
    close(x.grad, 2 * paddle.cos(x))
    x, _ = leaves()
    gather = nb.paddle_op(gathered, "y", launch_dims=3, output_dims=3)
    gather(x, paddle.to_tensor([1, 3, 1])).sum().backward()
    close(x.grad, 2 * x.detach() * paddle.to_tensor([0.0, 2, 0, 1, 0], dtype="float64"))


def test_second_derivatives():
    x, w = leaves()
    gx, _ = paddle.grad(pair(x, w)[0].sum(), [x, w], create_graph=True)
    close(gx, 3 * w * x**2)
    gx.sum().backward()
    close(x.grad, 6 * w * x)
    close(w.grad, 3 * x**2)
    x, w = leaves()
    _, gw = paddle.grad(pair(x, w)[1].sum(), [x, w], create_graph=True)
    gw.sum().backward()
    close(x.grad, 2 * w)
    close(w.grad, 2 * x)


def test_a_graph_that_is_kept():
    # Paddle's own backward() forgets a PyLayer after its first call, whether graphs are kept or not.
    x, w = leaves()
    y, z = pair(x, w)
    loss = (y + z).sum()
    grads = [paddle.grad(loss, [x, w], retain_graph=True) for _ in range(2)]
    loss.backward()
    for by_x, by_w in (*grads, (x.grad, w.grad)):
        close(by_x, 3 * w * x**2 + w**2)
        close(by_w, x**3 + 2 * w * x)


def test_only_what_requires_a_gradient_gets_one():
    x, w = leaves()
    w.stop_gradient = True
    (gx,) = paddle.grad(pair(x, w)[0].sum(), [x], create_graph=True)
    close(gx, 3 * w * x**2)
    gx.sum().backward()
    close(x.grad, 6 * w * x)
    assert w.grad is None


@nb.kernel
def quartic(x, w, y):
    i = nb.tid()
    y[i] = w[i] * w[i] * x[i] * x[i] * x[i] * x[i]


fourth = nb.paddle_op(quartic, "y")


def test_gradients_by_some_of_the_inputs_and_of_third_order():
    x, w = leaves()
    g = fourth(x, w)
    for expected in (4 * w**2 * x**3, 12 * w**2 * x**2, 24 * w**2 * x):
        (g,) = paddle.grad(g.sum(), [x], create_graph=True)
        close(g, expected)
    g.sum().backward()
    close(x.grad, 24 * w**2)
    close(w.grad, 48 * w * x)


@nb.kernel
def square(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


squared = nb.paddle_op(square, "y")
AMONG_OPERATIONS = {
    "a product": (lambda x: squared(x) * x, lambda x: x**3),
    "its own product": (lambda x: (lambda y: y * y)(squared(x)), lambda x: x**4),
    "what comes after": (lambda x: paddle.exp(squared(x)), lambda x: torch.exp(x * x)),
    "what comes before": (lambda x: squared(paddle.exp(x)), lambda x: torch.exp(2 * x)),
    "both": (lambda x: paddle.tanh(squared(squared(x)) * x), lambda x: torch.tanh(x**5)),
}


@pytest.mark.parametrize(("made", "wanted"), AMONG_OPERATIONS.values(), ids=AMONG_OPERATIONS)
def test_third_derivatives_among_operations_of_paddle(made, wanted):
    x, same = leaves()[0], torch.tensor(leaves()[0].numpy(), requires_grad=True)
    found, right = made(x), wanted(same)
    for _ in range(3):
        (found,) = paddle.grad(found.sum(), [x], create_graph=True)
        (right,) = torch.autograd.grad(right.sum(), same, create_graph=True)
        close(found, right.detach())


def test_mixed_derivatives():
    x, w = leaves()
    g = fourth(x, w)
    for by, expected in ((w, 2 * w * x**4), (x, 8 * w * x**3), (w, 8 * x**3)):
        (g,) = paddle.grad(g.sum(), [by], create_graph=True)
        close(g, expected)


def test_a_tensor_given_twice():
    x, _ = leaves()
    (g,) = paddle.grad(fourth(x, x).sum(), [x], create_graph=True)
    close(g, 6 * x**5)
    (g,) = paddle.grad(g.sum(), [x])
    close(g, 30 * x**4)


@pytest.mark.parametrize("which", [0, 1])
def test_tensors_changed_in_place_before_the_gradient_are_refused(which):
    given = leaves()
    given[1].stop_gradient = True
    y = fourth(*given)
    with paddle.no_grad():
        given[which].add_(paddle.ones([5], dtype="float64"))
    # Paddle wraps what a layer raises.
    with pytest.raises(OSError, match="NumbridgeError: operator quartic: a tensor that it was given has been changed"):
        y.sum().backward()


def test_without_gradients_nothing_is_recorded():
    x, w = (t.detach() for t in leaves())
    assert pair(x, w)[0].stop_gradient
    x, w = leaves()
    with paddle.no_grad():
        assert pair(x, w)[0].stop_gradient


@nb.kernel
def moved(points: nb.array1d[nb.vec3d], by: nb.vec3d, out: nb.array1d[nb.vec3d]):
    i = nb.tid()
    out[i] = nb.cross(points[i], by)


def test_views_that_an_operator_reads_stay_views():
    operator = nb.paddle_op(moved, "out")
    base, whole = (paddle.to_tensor(np.random.default_rng(k).normal(size=(3, 3))) for k in range(2))
    base.stop_gradient = False
    copy = base * 1.0
    points, by = copy.transpose([1, 0]), (2.0 * base)[:, 1]
    # An operator's gradient may come as a view, too.
    gradient = whole.transpose([1, 0])
    strides = [view.strides for view in (points, by, gradient)]
    made = operator(points, by)
    (found,) = paddle.grad([made], [base], [gradient])
    assert [view.strides for view in (points, by, gradient)] == strides == [[1, 3], [3], [1, 3]]
    by_copy, by_whole = paddle.to_tensor(points.numpy()), paddle.to_tensor(by.numpy())
    by_copy.stop_gradient = by_whole.stop_gradient = False
    wanted = paddle.grad([paddle.cross(by_copy, by_whole.expand([3, 3]), 1)], [by_copy, by_whole], [gradient])
    total = wanted[0].numpy().T + np.outer(2.0 * wanted[1].numpy(), [0, 1, 0])
    np.testing.assert_allclose(found.numpy(), total, rtol=1e-12)
    with paddle.no_grad():
        copy.zero_()
        whole.zero_()
    assert not points.any() and not gradient.any()


@nb.kernel
def parted(x, whole: nb.array1d[nb.int32], part):
    i = nb.tid()
    whole[i] = math.floor(x[i])
    part[i] = x[i] - whole[i]


def test_outputs_that_are_no_floats_have_no_gradient():
    x = leaves()[0]
    whole, part = nb.paddle_op(parted, ["whole", "part"])(x)
    assert whole.stop_gradient and not part.stop_gradient
    first = paddle.grad([part.sum() + whole.astype("float64").sum()], [x], create_graph=True)[0]
    close(first, paddle.ones([5], "float64"))


def test_in_place():
    op, y = nb.paddle_op(in_place), paddle.ones([4])
    assert op(paddle.ones([4]), y) is None
    assert y.tolist() == [2] * 4
    x = paddle.ones([4])
    x.stop_gradient = False
    with pytest.raises(nb.NumbridgeError, match="changes y in place and has no gradient"):
        op(x, y)
    assert y.tolist() == [2] * 4


def test_refusals():
    with pytest.raises(nb.NumbridgeTypeError, match="paddle_op: wanted a kernel"):
        nb.paddle_op(lambda x: x, "x")
    with pytest.raises(nb.NumbridgeTypeError, match=r"takes 2 arguments \(x, w\), got 1"):
        pair(paddle.ones([3]))
    assert repr(pair) == "<PaddleOp two(x, w) -> y, z>"


@nb.kernel
def output_first(y, x, w):
    i = nb.tid()
    y[i] = w[i] * w[i] * x[i]


def test_an_output_may_come_before_inputs():
    op = nb.paddle_op(output_first, "y")
    x, w = (paddle.to_tensor([2.0, 3.0], stop_gradient=False) for _ in range(2))
    op(x, w).sum().backward()
    assert (x.grad.numpy() == [4, 9]).all() and (w.grad.numpy() == [8, 18]).all()


@nb.kernel
def weighted(x, w, y):
    i = nb.tid()
    y[i] = x[i] * w[i] * w[i]


@nb.kernel
def chosen(x, w, y):
    i = nb.tid()
    y[i] = x[i] if i > 0 else w[i]


@nb.kernel
def where_positive(x, w, y):
    i = nb.tid()
    if x[i] > 2.0:
        y[i] += x[i] * w[i]


def numbers(count):
    return paddle.arange(1, count + 1, dtype="float64")


CALLS = {
    "plain": (weighted, lambda x, w: x * w**2, lambda: (numbers(4), numbers(4) + 1)),
    "longer": (weighted, lambda x, w: x * w[:4] ** 2, lambda: (numbers(4), numbers(7))),
    "strided": (weighted, lambda x, w: x * w**2, lambda: (numbers(8)[::2], numbers(4))),
    "conditional": (chosen, lambda x, w: paddle.concat([w[:1], x[1:]]), lambda: (numbers(4), numbers(4) + 1)),
    "not covered": (
        where_positive,
        lambda x, w: (x > 2).astype("float64") * x * w,
        lambda: (numbers(4), numbers(4) + 1),
    ),
}


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("case", CALLS)
def test_results_and_gradients_in_memory_that_held_something(case, wanted, monkeypatch):
    empty_like = paddle.empty_like
    monkeypatch.setattr(paddle, "empty_like", lambda x: paddle.full_like(empty_like(x), float("nan")))
    kernel, same, make = CALLS[case]
    op = nb.paddle_op(kernel, outputs="y")
    for _ in range(3):
        found = []
        for function in (op, same):
            tensors = [tensor.detach() for tensor in make()]
            for tensor, want in zip(tensors, wanted, strict=True):
                tensor.stop_gradient = not want
            result = function(*tensors)
            (result * numbers(4)).sum().backward()
            found.append([result, *[tensor.grad for tensor in tensors]])
        for ours, theirs, want in zip(*found, (True, *wanted), strict=True):
            assert np.array_equal(ours.numpy(), theirs.numpy()) if want else ours is None


def test_threads_of_a_block_work_together_in_blocks_of_the_given_size():
    rows = nb.paddle_op(softmax, outputs="y", block_dim=64)
    x = paddle.rand([128], dtype="float64")
    x.stop_gradient = False
    (found,) = paddle.grad(rows(x).square().sum(), x)
    (expected,) = paddle.grad(paddle.nn.functional.softmax(x.reshape([2, 64]), 1).square().sum(), x)
    assert paddle.allclose(found, expected)


def test_blocks_of_a_given_shape():
    product = nb.paddle_op(products, outputs="c", launch_dims=product_dims, output_dims=product_dims, block_dim=(4, 4))
    a, b = (paddle.to_tensor(factor, stop_gradient=False) for factor in factors())
    assert paddle.allclose(product(a, b), a @ b, atol=1e-5)
    found = paddle.grad(product(a, b).square().sum(), [a, b])
    expected = paddle.grad((a @ b).square().sum(), [a, b])
    assert all(paddle.allclose(*pair, atol=1e-3) for pair in zip(found, expected, strict=True))
    with pytest.raises(nb.NumbridgeValueError, match=r"block_dim of kernel 'products': .*got \(4, 0\)"):
        nb.paddle_op(products, outputs="c", block_dim=(4, 0))
