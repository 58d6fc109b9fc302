"""Kernels as PyTorch operators: what torch itself checks of one, every transform, compile, export, and every refusal."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

import numbridge as nb
from block_dim_cases import factors, product_dims, products
from block_gradient_cases import softmax

DOUBLE = torch.float64


@nb.kernel
def two(x, w, y, z):
    i = nb.tid()
    y[i] = w[i] * x[i] * x[i] * x[i]
    z[i] = x[i] * w[i] * w[i]


@nb.kernel
def scaled(x, a, n, y):
    i = nb.tid()
    y[i] = a * math.sin(x[i]) + n


@nb.kernel
def gathered(x, index, y):
    i = nb.tid()
    y[i] = x[index[i]] * x[index[i]]


@nb.kernel
def row_sums(x, y):
    i = nb.tid()
    s = 0.0
    for j in range(x.shape[1]):
        s += x[i, j] * x[i, j]
    y[i] = s


@nb.kernel
def in_place(x, y):
    i = nb.tid()
    y[i] = y[i] + x[i]


pair = nb.torch_op(two, outputs=["y", "z"], name="test_two")
scale = nb.torch_op(scaled, outputs="y", name="test_scaled")
gather = nb.torch_op(
    gathered, "y", launch_dims=lambda x, i: i.shape, output_dims=lambda x, i: i.shape, name="test_gathered"
)
rows = nb.torch_op(row_sums, "y", launch_dims=lambda x: x.shape[0], output_dims={"y": (4,)}, name="test_row_sums")


def leaves(count=5, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(count, dtype=DOUBLE, requires_grad=True) for _ in range(2)]


def test_values_and_gradients():
    x, w = leaves()
    y, z = pair(x, w)
    torch.testing.assert_close(y, w * x**3)
    torch.testing.assert_close(z, x * w**2)
    (y.sum() + 2 * z.sum()).backward()
    torch.testing.assert_close(x.grad, (3 * w * x**2 + 2 * w**2).detach())
    torch.testing.assert_close(w.grad, (x**3 + 4 * x * w).detach())


@nb.kernel
def scaled_by_annotated(x: nb.array[nb.float64], a: nb.float64, y: nb.array[nb.float64]):
    i = nb.tid()
    y[i] = a * x[i]


scale_by_annotated = nb.torch_op(scaled_by_annotated, outputs="y", name="test_scaled_by_annotated")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", [DOUBLE, torch.float32])
@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        (scale_by_annotated, lambda x, a: a * x),
        (lambda x, a: scale(x, a, 1), lambda x, a: a * x.sin() + 1),
        (lambda x, a: scale(x, a, a), lambda x, a: a * x.sin() + a),
        (lambda x, a: scale(x, 2.0, a), lambda x, a: 2 * x.sin() + a),
    ],
)
def test_a_tensor_for_a_number_has_its_gradient(operator, wanted, kind):
    (x, _), a = leaves(), torch.tensor(2.0, dtype=kind, requires_grad=True)

    def total(f):
        return lambda a: (f(x, a) ** 2).sum()

    def same(found, expected):
        assert found.dtype == kind
        torch.testing.assert_close(found, expected)

    torch.testing.assert_close(operator(x, a), wanted(x, a))
    for of in (a, x):
        (found,), (expected,) = (torch.autograd.grad(total(f)(a), of) for f in (operator, wanted))
        torch.testing.assert_close(found, expected)
    for transform in (torch.func.grad, torch.func.hessian):
        same(transform(total(operator))(a), transform(total(wanted))(a))
    a = a.detach()
    torch.testing.assert_close(torch.func.jacfwd(total(operator))(a), torch.func.jacfwd(total(wanted))(a))
    several = torch.stack([a, 3 * a])
    torch.testing.assert_close(
        torch.func.vmap(lambda a: operator(x, a))(several), torch.stack([wanted(x, a) for a in several])
    )
    # The number itself is none of the tensor's, and goes on as it is.
    torch.testing.assert_close(operator(x, 2.0), wanted(x, 2.0))


@nb.kernel
def multiples(a: float, n: int, y: nb.array[float]):
    i = nb.tid()
    a_number = 1.0
    if a > 10.0:
        a = 10.0
    y[i] = a * a_number * i + n


@pytest.mark.parametrize("compiled_first", [False, True])
def test_an_operator_of_numbers_alone(compiled_first):
    multiply = nb.torch_op(multiples, "y", launch_dims=3, output_dims=3)
    assert multiply(2.0, 1).tolist() == [1, 3, 5]
    a = torch.tensor(2.0, requires_grad=True)

    def run(a):
        return (multiply(a, 1) * multiply(a * 2.0, 0)).sum()

    ways = [run, torch.compile(run, fullgraph=True, backend="aot_eager")]
    for way in reversed(ways) if compiled_first else ways:
        (found,) = torch.autograd.grad(way(a), a)
        # Of (a i + 1) 2 a i by a at 2: 4 a i² + 2 i
        assert found == sum(8 * i * i + 2 * i for i in range(3))
    (found,) = torch.autograd.grad(multiply(a * 20, 1).sum(), a)
    assert found == 0


@nb.kernel
def of_a_pair(x, ab, y):
    i = nb.tid()
    y[i] = x[i] * ab[0][i] * ab[1][i]


def test_an_error_of_torchs_is_its_own_where_inputs_are_tuples():
    op, x = nb.torch_op(of_a_pair, "y", name="test_of_a_pair"), torch.ones(3, dtype=DOUBLE, requires_grad=True)
    with torch.inference_mode():
        inferred = torch.ones(3, dtype=DOUBLE)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        op(x, (inferred, inferred))
    with pytest.raises(nb.NumbridgeTypeError, match=r"wanted a torch\.Tensor, got numpy\.ndarray"):
        op(np.ones(3), (x, x))


def test_what_is_no_tensor_of_one_number():
    (x, _), a = leaves(), torch.tensor(2.0, dtype=DOUBLE)
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"parameter 'a': wanted a number, got a tensor of shape \(1,\); pass one w"
    ):
        scale_by_annotated(x, a[None])
    multiply = nb.torch_op(multiples, "y", launch_dims=3, output_dims=3)
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"parameter 'n': wanted a number, got a tensor for int32; pass tensor.i"
    ):
        multiply(2.0, torch.tensor(3))


def test_an_operator_of_a_tensor_for_a_number_passes_torchs_own_check():
    (x, _), a = leaves(), torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    torch.library.opcheck(scale_by_annotated.boxed((1,)).op, (x, a))
    assert scale_by_annotated.boxed((1,)) is scale_by_annotated.boxed((1,))


def test_an_output_that_nothing_depends_on():
    x, w = leaves()
    pair(x, w)[1].sum().backward()
    torch.testing.assert_close(x.grad, (w**2).detach())


def test_only_what_requires_a_gradient_gets_one():
    x, w = leaves()
    pair(x, w.detach())[0].sum().backward()
    torch.testing.assert_close(x.grad, (3 * w * x**2).detach())
    assert w.grad is None
    assert not pair(x.detach(), w.detach())[0].requires_grad


@pytest.mark.parametrize(
    ("op", "arguments"), [(pair, leaves), (gather, lambda: (leaves()[0], torch.tensor([0, 4, 0, -1])))]
)
def test_torch_s_own_checks(op, arguments):
    values = tuple(arguments())
    torch.library.opcheck(op.op, values)
    torch.library.opcheck(op.op, tuple(v.detach() for v in values))


@pytest.mark.parametrize("op", [pair, rows], ids=["pair", "rows"])
def test_gradcheck_to_second_order(op):
    values = tuple(leaves()) if op is pair else (torch.randn(4, 3, dtype=DOUBLE, requires_grad=True),)
    assert torch.autograd.gradcheck(op, values, nondet_tol=0.0)
    assert torch.autograd.gradgradcheck(op, values)


def test_gather_adds_up_repeated_indices():
    x = torch.arange(5, dtype=DOUBLE, requires_grad=True)
    gather(x, torch.tensor([1, 3, 1, -1])).sum().backward()
    assert x.grad.tolist() == [0, 4, 0, 6, 8]


def test_numbers():
    x = leaves()[0]
    y = scale(x, 2.0, 3)
    torch.testing.assert_close(y, 2 * x.sin() + 3)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (2 * x.cos()).detach())


@nb.kernel
def times_any(x, a, y):
    i = nb.tid()
    y[i] = x[i] * x[i] * a


@nb.kernel
def times_whole(x, a: int, y):
    i = nb.tid()
    y[i] = x[i] * a


@nb.kernel
def add_times(x, a, y):
    i = nb.tid()
    y[i] += x[i] * a


TIMES, WHOLE, ADD = nb.torch_op(times_any, "y"), nb.torch_op(times_whole, "y"), nb.torch_op(add_times)


# torch's own decompositions for forward mode are scripted when they are first needed.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("number", [np.float32(2.5), np.float64(2.5), np.int64(3), np.bool_(True), np.float16(0.5)])
def test_numbers_of_numpys_are_taken_in_every_way(number):
    x, value = leaves()[0], number.item()
    wanted = (x * x * value).detach()
    torch.testing.assert_close(TIMES(x, number).detach(), wanted)
    torch.testing.assert_close(torch.vmap(lambda x: TIMES(x, number))(x.detach()[None])[0], wanted)
    torch.testing.assert_close(torch.func.jvp(lambda x: TIMES(x, number), (x.detach(),), (x.detach(),))[1], 2 * wanted)
    (gradient,) = torch.autograd.grad(TIMES(x, number).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, torch.full_like(x, 2 * value))
    compiled = torch.compile(lambda x: TIMES(x, number), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x.detach()), wanted)
    y = torch.ones_like(x)
    ADD(x.detach(), number, y)
    torch.testing.assert_close(y, (1 + x * value).detach())


def test_a_float_of_numpys_is_not_cut_to_an_integer():
    x = leaves()[0].detach()
    with pytest.raises(nb.NumbridgeTypeError, match="wanted int32, got the float"):
        WHOLE(x, np.float32(2.5))
    with pytest.raises(
        RuntimeError, match="Expected a value of type 'int' for argument 'a' but instead found type 'float'"
    ):
        torch.vmap(lambda x: WHOLE(x, np.float32(2.5)))(x[None])
    assert torch.equal(torch.vmap(lambda x: WHOLE(x, np.int64(2)))(x[None])[0], 2 * x)


# torch's own decompositions for forward mode are scripted when they are first needed.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_transforms():
    x, w = (v.detach() for v in leaves())
    first = lambda x: pair(x, w)[0]  # noqa: E731
    torch.testing.assert_close(torch.func.grad(lambda x: first(x).sum())(x), 3 * w * x**2)
    torch.testing.assert_close(torch.func.vjp(first, x)[1](torch.ones_like(x))[0], 3 * w * x**2)
    torch.testing.assert_close(torch.func.jvp(first, (x,), (torch.ones_like(x),)), (w * x**3, 3 * w * x**2))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(jacobian(first)(x), torch.diag(3 * w * x**2))
    torch.testing.assert_close(torch.func.hessian(lambda x: first(x).sum())(x), torch.diag(6 * w * x))
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacfwd(first))(x).sum((1, 2)), 6 * w * x)


def test_vmap():
    x, w = torch.randn(3, 5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)
    torch.testing.assert_close(torch.vmap(lambda x: pair(x, w)[1])(x), x * w**2)
    torch.testing.assert_close(torch.vmap(lambda x, w: pair(x, w)[1], in_dims=(1, None))(x.T, w), x * w**2)
    per_sample = torch.vmap(torch.func.grad(lambda x: pair(x, w)[0].sum()))
    torch.testing.assert_close(per_sample(x), 3 * w * x**2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_in_one_graph(dynamic):
    compiled = torch.compile(lambda x, w: pair(2 * x, w)[0].sum(), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for count in (5, 7):
        x, w = leaves(count)
        compiled(x, w).backward()
        torch.testing.assert_close(x.grad, (24 * w * x**2).detach())


def test_export():
    class Module(torch.nn.Module):
        def forward(self, x, w):
            return pair(x, w)[1] + 1

    x, w = (v.detach() for v in leaves())
    program = torch.export.export(Module(), (x, w))
    assert "numbridge.test_two" in str(program.graph)
    torch.testing.assert_close(program.module()(x, w), x * w**2 + 1)


def test_autocast_computes_in_float32():
    x = torch.randn(5, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = pair(x, x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, x.float() ** 4)


def test_fake_tensors_and_symbolic_shapes():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        y, z = pair(torch.empty(6), torch.empty(6))
        assert (y.shape, z.dtype) == ((6,), torch.float32)


def test_an_operator_that_changes_its_inputs_says_so():
    op = nb.torch_op(in_place, name="test_in_place")
    assert "Tensor(a!) y" in str(op.op._schema)
    x, y = torch.ones(4), torch.ones(4)
    assert op(x, y) is None
    assert y.tolist() == [2] * 4
    torch.library.opcheck(op.op, (torch.ones(4), torch.ones(4)))
    with pytest.raises(nb.NumbridgeError, match="changes y in place and has no gradient"):
        op(torch.ones(4, requires_grad=True), y)


def test_names_are_stable_and_unique():
    first, second = (nb.torch_op(scaled, "y", name="test again") for _ in range(2))
    assert (first.name, second.name) == ("numbridge::test_again", "numbridge::test_again_2")
    assert str(first.op._schema).startswith("numbridge::test_again(Tensor x, Scalar a, Scalar n) -> Tensor")


def test_a_copy_of_a_module_uses_the_operator():
    module = torch.nn.Linear(1, 1)
    module.op = pair
    assert copy.deepcopy(module).op is pair


def test_messages_name_the_operator_that_was_asked_for():
    op = nb.torch_op(scaled, "y", name="asked::for")
    number = torch.tensor(2.0)
    assert op(torch.ones(3), number, 1).shape == (3,)
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"^operator numbridge::asked__for, parameter 'x': wanted a torch.Tensor"
    ):
        op(np.ones(3, np.float32), number, 1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nb.torch_op(two, "q"), r"wanted some of its parameters \(x, w, y, z\), each once, got 'q'"),
        (lambda: nb.torch_op(two, ["x", "y"]), "x is no array that the kernel writes; it writes y, z"),
        (lambda: nb.torch_op(scaled, ["y", "y"]), "each once"),
        (lambda: nb.torch_op(lambda x: x, "x"), "torch_op: wanted a kernel"),
        (
            lambda: pair(torch.ones(3), [1.0]),
            r"parameter 'w': wanted a torch.Tensor, got list; use torch.tensor\(x\); a kernel takes tuples as well, tuple\(x\)",
        ),
        (lambda: pair(torch.ones(3), 1.0), r"'w': wanted a torch.Tensor, got float; use torch.tensor\(\[x\]\)"),
        (lambda: pair(None, torch.ones(3)), "parameter 'x' is None, and the kernel uses it here; pass an array"),
        (lambda: pair(nb.vec3(1.0), torch.ones(3)), r"got numbridge.vec3; use torch.tensor\(x.numpy\(\)\)$"),
        (
            lambda: pair(np.ones(3), torch.ones(3)),
            r"'x': .*got numpy.ndarray; use nb.convert\(x, 'torch'\), which shares",
        ),
        (lambda: pair(nb.ones(3), torch.ones(3)), r"parameter 'x': wanted a torch.Tensor, got numbridge\.Array"),
        (lambda: pair(torch.ones(3)), r"takes 2 arguments \(x, w\), got 1"),
        (lambda: nb.torch_op(scaled, "y", output_dims={"z": 3})(torch.ones(3), 1.0, 1), "a shape for each of y, got z"),
        (lambda: nb.torch_op(scaled, "y", output_dims="x")(torch.ones(3), 1.0, 1), "wanted an int or a tuple of ints"),
    ],
)
def test_refusals(make, text):
    with pytest.raises(nb.NumbridgeError, match=text):
        make()


@nb.kernel
def outputs_first(z, x, y, w):
    i = nb.tid()
    y[i] = w[i] * x[i] * x[i]
    z[i] = math.sin(x[i]) * w[i] * w[i]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_outputs_may_come_before_inputs():
    op = nb.torch_op(outputs_first, ["z", "y"])
    x, w = leaves()
    z, y = op(x, w)
    torch.testing.assert_close((z, y), (torch.sin(x) * w**2, w * x**2))
    assert torch.autograd.gradcheck(op, (x, w)) and torch.autograd.gradgradcheck(op, (x, w))
    tangents = torch.randn(5, dtype=DOUBLE), torch.randn(5, dtype=DOUBLE)
    values = x.detach(), w.detach()
    got = torch.func.jvp(op, values, tangents)[1]
    torch.testing.assert_close(got, torch.func.jvp(lambda x, w: (torch.sin(x) * w**2, w * x**2), values, tangents)[1])


@nb.kernel
def summed_up(x, y):
    i = nb.tid()
    for k in range(3):
        y[i] = y[i] * x[i] + x[i] * k


sums = nb.torch_op(summed_up, "y", name="test_summed_up")


@pytest.mark.parametrize("op", [pair, sums])
def test_a_gradient_that_comes_in_is_left_as_it_is(op):
    x = torch.randn(4, dtype=DOUBLE, requires_grad=True)
    y = op(x, x.detach())[0] if op is pair else op(x)
    for by_y in (torch.ones(4, dtype=DOUBLE), torch.ones((), dtype=DOUBLE).expand(4), torch.ones(8, dtype=DOUBLE)[::2]):
        before = by_y.clone()
        (by_x,) = torch.autograd.grad(y, x, by_y, retain_graph=True)
        assert (by_y == before).all()
        expected = 3 * x**3 if op is pair else 2 * x + 2
        torch.testing.assert_close(by_x, expected.detach())


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes which operators are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names.append(str(function))
        return function(*arguments, **(keywords or {}))


def test_modes_see_the_operator():
    x, w = leaves()
    with Seen() as seen:
        y, _ = pair(x, w)
        y.sum().backward()
    assert {"numbridge.test_two.default", "numbridge.test_two_adjoint.default"} <= set(seen.names)
    y, _ = pair(x, w)
    with Seen() as seen:
        y.sum().backward()
    assert "numbridge.test_two_adjoint.default" in seen.names
    with torch._subclasses.FakeTensorMode() as mode:
        assert pair(mode.from_tensor(x), mode.from_tensor(w))[0].shape == (5,)
    assert pair(x.to("meta"), w.to("meta"))[0].is_meta
    with torch.autocast("cpu", torch.bfloat16):
        assert pair(x.bfloat16(), w.bfloat16())[0].dtype == torch.float32


def test_what_is_saved_and_then_changed_is_noticed():
    x = torch.ones(4, dtype=DOUBLE, requires_grad=True)
    inner = x * 2
    y, _ = pair(inner, torch.ones(4, dtype=DOUBLE))
    with torch.no_grad():
        inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_without_a_gradient_nothing_is_kept():
    x, w = leaves()
    with torch.no_grad():
        y, z = pair(x, w)
    assert not y.requires_grad and not z.requires_grad
    assert not pair(x.detach(), w.detach())[0].requires_grad
    assert pair(torch.nn.Parameter(x.detach()), w.detach())[0].requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_have_gradients_of_their_own_dtype(dtype):
    @nb.kernel
    def weighted(x, w, y):
        i = nb.tid()
        y[i] = x[i] * x[i] * w[0]

    op = nb.torch_op(weighted, outputs="y")
    x, w = torch.full((4096,), 0.125, dtype=dtype, requires_grad=True), torch.ones(1, dtype=dtype, requires_grad=True)
    op(x, w).sum().backward()
    assert x.grad.dtype == w.grad.dtype == dtype
    # 4096 parts of 1/64: in 16 bits the sum would have stopped growing on the way.
    assert w.grad.item() == 64 and (x.grad == 0.25).all()


@nb.kernel
def grown(x, a: float):
    i = nb.tid()
    x[i] = a * x[i]


def test_an_operator_that_changes_its_input_refuses_what_is_no_tensor():
    x = np.ones(3, np.float32)
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"parameter 'x': wanted a torch\.Tensor, got numpy\.ndarray; use nb\.convert"
    ):
        nb.torch_op(grown)(x, 2.0)
    assert x.tolist() == [1, 1, 1]


def test_graphs_and_profiles_show_the_kernel_by_its_name():
    op = nb.torch_op(gathered, outputs="y", name="shown")
    x, index = torch.ones(3, requires_grad=True), torch.tensor([2, 1, 0])
    assert type(op(x, index).grad_fn).__name__ == "gatheredBackward"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        op(x.detach(), index)
        op(x, index).sum().backward()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["numbridge::shown"] == 2 and counts["numbridge::shown_adjoint"] == 1
    assert x.grad.tolist() == [2, 2, 2]


class OfAKernel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.op = nb.torch_op(scaled, outputs="y", name="traced_by_fx")

    def forward(self, x):
        return self.op(x * 2, 3.0, 4)


def test_torch_fx_traces_a_module_that_holds_an_operator():
    module, x = OfAKernel(), torch.linspace(0, 1, 3, dtype=DOUBLE)
    traced = torch.fx.symbolic_trace(module)
    assert torch.ops.numbridge.traced_by_fx.default in [node.target for node in traced.graph.nodes]
    assert torch.equal(traced(x), module(x)) and torch.autograd.gradcheck(traced, x.requires_grad_())


def test_threads_of_a_block_work_together_in_blocks_of_the_given_size():
    rows = nb.torch_op(softmax, outputs="y", block_dim=64)
    x = torch.rand(128, dtype=DOUBLE, requires_grad=True)
    assert torch.allclose(rows(x), torch.softmax(x.reshape(2, 64), 1).reshape(-1))
    assert torch.autograd.gradcheck(rows, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(rows, (x,), fast_mode=True)
    many = torch.rand(3, 128, dtype=DOUBLE)
    assert torch.allclose(torch.func.vmap(rows)(many), torch.softmax(many.reshape(3, 2, 64), 2).reshape(3, 128))
    compiled = torch.compile(lambda x: rows(x).square().sum(), fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad(compiled(x), x)
    (expected,) = torch.autograd.grad(torch.softmax(x.reshape(2, 64), 1).square().sum(), x)
    assert torch.allclose(found, expected)
    with pytest.raises(
        nb.NumbridgeValueError, match="block_dim of kernel 'softmax': wanted an int from 1 to 1024, got 2000"
    ):
        nb.torch_op(softmax, outputs="y", block_dim=2000)


def test_blocks_of_a_given_shape():
    product = nb.torch_op(products, outputs="c", launch_dims=product_dims, output_dims=product_dims, block_dim=[4, 4])
    a, b = (torch.tensor(factor, requires_grad=True) for factor in factors())
    weights = torch.rand(8, 16)
    assert torch.allclose(product(a, b), a @ b, atol=1e-5)
    expected = torch.autograd.grad((a @ b * weights).sum(), (a, b))
    for call in (product, torch.compile(product, fullgraph=True, backend="aot_eager")):
        found = torch.autograd.grad((call(a, b) * weights).sum(), (a, b))
        assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, expected, strict=True))
    # The adjoint of the adjoint, in blocks of the same shape
    (first,) = torch.autograd.grad((product(a, b) ** 2).sum(), a, create_graph=True)
    (wanted,) = torch.autograd.grad(((a @ b) ** 2).sum(), a, create_graph=True)
    found, expected = (torch.autograd.grad(by.square().sum(), b)[0] for by in (first, wanted))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-2)
    assert torch.equal(copy.deepcopy(product)(a, b), product(a, b))


def test_blocks_that_there_are_not():
    for block_dim, error, text in (
        ((4, 4, 4), nb.NumbridgeValueError, r"a tuple of 1 to 2 ints, since the launch has 2 dimension\(s\)"),
        ((64, 64), nb.NumbridgeValueError, r"wanted up to 1024 threads in all, got \(64, 64\)"),
        ((4, True), nb.NumbridgeTypeError, "up to 3 ints, got"),
    ):
        with pytest.raises(error, match=f"block_dim of kernel 'products': .*{text}"):
            nb.torch_op(products, outputs="c", block_dim=block_dim)


@pytest.mark.parametrize(
    ("dims", "text"),
    [(None, r"the shape \(2, 3\) of x, and"), ((2, 1), r"\(2, 1\), and")],
)
def test_launch_dimensions_of_another_number_than_the_kernel_has_indices(dims, text):
    sums = nb.torch_op(row_sums, "y", launch_dims=dims, output_dims=2)
    with pytest.raises(
        nb.NumbridgeValueError, match=f"its launch dimensions are {text} it asks for 1 .*; give launch_dims"
    ):
        sums(torch.ones(2, 3))
