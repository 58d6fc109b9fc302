"""The quick way to PyTorch operators: nothing that it keeps from call to call may outlive what it was true for."""

from __future__ import annotations

import concurrent.futures
import math

import pytest
import torch

import numbridge as nb

DOUBLE = torch.float64
factor = 2.0
in_two_steps = False


@nb.kernel
def curved(x, w, y):
    i = nb.tid()
    y[i] = math.sin(x[i]) * w[i] * w[i]


@nb.kernel
def times_factor(x, y):
    i = nb.tid()
    y[i] = factor * x[i] * x[i]


@nb.kernel
def perhaps_in_two_steps(x, y):
    i = nb.tid()
    if in_two_steps:
        y[i] = x[i] * x[i]
        y[i] = y[i] * y[i]
    else:
        y[i] = x[i] * x[i] * x[i]


@nb.kernel
def added_up(x, y):
    i = nb.tid()
    y[i] += x[i] * x[i]
    y[i] *= x[i]


@nb.kernel
def cubed(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i] * x[i]


curve, cube = nb.torch_op(curved, "y", name="eager_curved"), nb.torch_op(cubed, "y", name="eager_cubed")


def reference(x, w):
    return torch.sin(x) * w * w


def leaf(*shape, dtype=DOUBLE):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def check(x, w, op=curve, expected=reference):
    """Compare values and gradients with torch's own."""
    got, wanted = op(x, w), expected(x, w)
    torch.testing.assert_close(got, wanted)
    assert got.is_contiguous() and got.requires_grad == wanted.requires_grad
    if got.requires_grad:
        by = [v for v in (x, w) if v.requires_grad]
        cotangent = torch.randn_like(got)
        torch.testing.assert_close(torch.autograd.grad(got, by, cotangent), torch.autograd.grad(wanted, by, cotangent))


def test_shapes_dtypes_strides_and_flags_change_from_call_to_call():
    torch.manual_seed(0)
    for count in (5, 3, 0, 5):
        for dtype in (torch.float32, DOUBLE):
            for needs_x, needs_w in ((True, True), (False, True), (True, False), (False, False)):
                check(
                    torch.randn(count, dtype=dtype).requires_grad_(needs_x),
                    torch.randn(count, dtype=dtype).requires_grad_(needs_w),
                )
    check(leaf(10)[::2], leaf(5))
    check(leaf(5), leaf(1).expand(5))
    check(torch.nn.Parameter(torch.randn(5, dtype=DOUBLE)), leaf(5))


def test_matrices_of_any_order_of_dimensions():
    @nb.kernel
    def squared(x, w, y):
        i, j = nb.tid()
        y[i, j] = x[i, j] * x[i, j] * w[j, i]

    op = nb.torch_op(squared, "y")
    for x, w in ((leaf(3, 4), leaf(4, 3)), (leaf(4, 3).T, leaf(3, 4).T), (leaf(2, 2), leaf(2, 2))):
        check(x, w, op, lambda x, w: x * x * w.T)


def test_gradients_come_in_with_any_strides():
    x = leaf(4)
    y = cube(x)
    for by_y in (torch.ones(4, dtype=DOUBLE), torch.ones((), dtype=DOUBLE).expand(4), torch.ones(8, dtype=DOUBLE)[::2]):
        (by_x,) = torch.autograd.grad(y, x, by_y, retain_graph=True)
        torch.testing.assert_close(by_x, 3 * x.detach() ** 2)


def test_a_global_that_changes_is_noticed_both_ways(monkeypatch):
    op, x = nb.torch_op(times_factor, "y"), leaf(4)
    for value in (2.0, 5.0, 2.0):
        monkeypatch.setitem(globals(), "factor", value)
        y = op(x)
        torch.testing.assert_close(y, value * x**2)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], (2 * value * x).detach())


def test_an_adjoint_may_need_the_output_after_a_global_has_changed(monkeypatch):
    op, x = nb.torch_op(perhaps_in_two_steps, "y"), leaf(4)
    for value, power in ((False, 3), (True, 4), (False, 3)):
        monkeypatch.setitem(globals(), "in_two_steps", value)
        by_y = torch.full((4,), 0.5, dtype=DOUBLE)
        (by_x,) = torch.autograd.grad(op(x), x, by_y)
        torch.testing.assert_close(by_x, (0.5 * power * x ** (power - 1)).detach())
        assert (by_y == 0.5).all()


def test_an_adjoint_that_reads_the_output_finds_it_as_it_was():
    op, x, by_y = nb.torch_op(added_up, "y"), leaf(4), torch.randn(4, dtype=DOUBLE)
    (by_x,) = torch.autograd.grad(op(x), x, by_y)
    torch.testing.assert_close(by_x, 3 * by_y * x.detach() ** 2)


def test_outputs_that_are_no_floats_and_numbers():
    @nb.kernel
    def halves(x, n, y, z: nb.array1d[nb.int32]):
        i = nb.tid()
        y[i] = x[i] * n
        z[i] = i

    op, x = nb.torch_op(halves, ["y", "z"]), leaf(3)
    for n in (2.0, 3.0):
        y, z = op(x, n)
        assert z.dtype == torch.int32 and z.tolist() == [0, 1, 2] and not z.requires_grad
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [n] * 3


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_a_number_between_tensors(wanted):
    @nb.kernel
    def scaled(x, a: float, w, y):
        i = nb.tid()
        y[i] = a * x[i] * w[i] * w[i]

    op = nb.torch_op(scaled, "y")
    for a in (2.0, 0.5):
        x, w = (leaf(4).detach().requires_grad_(want) for want in wanted)
        check(x, w, lambda x, w, a=a: op(x, a, w), lambda x, w, a=a: a * x * w * w)


def test_only_gradients_of_floats_come_back():
    @nb.kernel
    def looked_up(x, table, places, y):
        i = nb.tid()
        y[i] = x[i] * table[places[i]]

    op, x, table = nb.torch_op(looked_up, "y"), leaf(3), leaf(5)
    for places in (torch.tensor([4, 0, 4]), torch.tensor([1, 1, 1])):
        got = torch.autograd.grad(op(x, table, places).sum(), (x, table))
        torch.testing.assert_close(got, torch.autograd.grad((x * table[places]).sum(), (x, table)))


@nb.kernel
def annotated(x: nb.array[nb.float32], w: nb.array[nb.float32], y: nb.array[nb.float32]):
    i = nb.tid()
    y[i] = x[i] * w[i] * w[i]


@nb.kernel
def widened(x: nb.array[nb.float32], y: nb.array[nb.float64]):
    i = nb.tid()
    y[i] = nb.float64(x[i]) * nb.float64(x[i])


def test_annotated_dtypes_are_insisted_on_at_every_call():
    op = nb.torch_op(annotated, "y")
    for _ in range(2):
        check(leaf(4, dtype=torch.float32), leaf(4, dtype=torch.float32), op, lambda x, w: x * w * w)
        for dtypes in ((DOUBLE, DOUBLE), (torch.float32, DOUBLE), (torch.float16, torch.float32)):
            with pytest.raises(nb.NumbridgeTypeError, match="wanted elements of float32"):
                op(*(leaf(4, dtype=dtype) for dtype in dtypes))
    op, x = nb.torch_op(widened, "y"), leaf(4, dtype=torch.float32)
    for _ in range(2):
        y = op(x)
        assert y.dtype == DOUBLE
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 2 * x.detach())


def test_backward_refuses_what_was_compiled_with_another_global(monkeypatch):
    op, x, other = nb.torch_op(times_factor, "y"), leaf(4), leaf(4)
    y = op(x)
    monkeypatch.setitem(globals(), "factor", 3.0)
    with pytest.raises(nb.NumbridgeError, match=r"backward through kernel 'times_factor'.*factor"):
        y.sum().backward()
    torch.testing.assert_close(torch.autograd.grad(op(other).sum(), other)[0], 6 * other.detach())


def test_the_node_in_the_graph_is_called_after_the_kernel_and_has_hooks():
    x, seen = leaf(4), []
    y = cube(x)
    assert y.grad_fn.name() == "cubedBackward"
    y.grad_fn.register_prehook(lambda grads: seen.append("before"))
    y.grad_fn.register_hook(lambda by, grads: seen.append("after"))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 3 * x.detach() ** 2)
    assert seen == ["before", "after"]


def test_without_grad_and_in_inference_mode():
    x, w = leaf(4), leaf(4)
    check(x, w)
    with torch.no_grad():
        assert not curve(x, w).requires_grad
    with torch.inference_mode():
        assert curve(x, w).is_inference()
        made = curve(x.clone(), w)
    torch.testing.assert_close(made.clone(), reference(x, w).detach())
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        curve(made, w)
    check(x, w)


def test_an_input_that_is_changed_between_forward_and_backward():
    for changed in (0, 1):
        inner = [leaf(4) * 1, leaf(4) * 1]
        y = curve(*inner)
        with torch.no_grad():
            inner[changed].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    with torch.no_grad():
        x = leaf(4)
        y = curve(x, x)
        x.add_(1)
    assert y.grad_fn is None


def test_the_output_may_be_changed():
    x = leaf(4)
    y = cube(x)
    y.mul_(2)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 6 * x.detach() ** 2)


def test_backward_again_needs_the_graph():
    x = leaf(4)
    y = cube(x)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), first)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(y.sum(), x)


def test_saved_tensor_hooks_decide_what_backward_gets():
    x, packed = leaf(4), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or len(packed) - 1, lambda k: 2 * packed[k]
    ):
        y = cube(x)
    assert len(packed) == 1
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 12 * x.detach() ** 2)
    with torch.autograd.graph.save_on_cpu():
        y = cube(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 3 * x.detach() ** 2)
    by_x = torch.utils.checkpoint.checkpoint(cube, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(by_x.sum(), x)[0], 3 * x.detach() ** 2)


def test_second_derivatives_of_what_ran_the_quick_way():
    x, w = leaf(4), leaf(4)
    for _ in range(2):
        check(x, w)
        assert torch.autograd.gradcheck(curve, (x, w)) and torch.autograd.gradgradcheck(curve, (x, w))


def test_batches_of_gradients():
    x = leaf(4)
    y = cube(x)
    (rows,) = torch.autograd.grad(y, x, torch.eye(4, dtype=DOUBLE), is_grads_batched=True)
    torch.testing.assert_close(rows, torch.diag(3 * x.detach() ** 2))
    for vectorize in (False, True):
        found = torch.autograd.functional.jacobian(cube, x, vectorize=vectorize)
        torch.testing.assert_close(found, torch.diag(3 * x.detach() ** 2))


def test_a_tensor_that_has_outlived_its_transform():
    left: list[torch.Tensor] = []
    torch.func.grad(lambda x: (left.append(x), (x * x).sum())[1])(torch.arange(4.0, dtype=DOUBLE))
    assert cube(left[0]).tolist() == [0, 1, 8, 27]


def test_tensors_without_data_after_tensors_with_some():
    cube(leaf(4))
    assert cube(leaf(4).to("meta")).is_meta
    with torch._subclasses.FakeTensorMode() as mode:
        assert type(cube(mode.from_tensor(leaf(4)))).__name__ == "FakeTensor"
    check(leaf(4), leaf(4))


def test_compiled_autograd_traces_the_operator():
    from torch._dynamo import compiled_autograd

    x, graphs = leaf(4), []
    y = cube(x).sum()

    def compiler(graph):
        return torch.compile(graph, backend=lambda module, inputs: graphs.append(module.code) or module.forward)

    with compiled_autograd._enable(compiler):
        y.backward()
    assert any("eager_cubed_adjoint" in code for code in graphs)
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)


def test_subclasses_see_the_operator():
    calls = []

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), keywords=None):
            calls.append(str(function))
            return super().__torch_function__(function, types, arguments, keywords or {})

    y = cube(torch.arange(3.0).as_subclass(Named))
    assert isinstance(y, Named) and any("eager_cubed" in call for call in calls)


def test_an_operator_in_a_trace_is_in_the_trace():
    # torch 2.15 has made a FutureWarning of what was a DeprecationWarning.
    with pytest.warns((DeprecationWarning, FutureWarning), match="jit"):
        traced = torch.jit.trace(lambda x: cube(x) + 1, (torch.ones(3),))
    assert "numbridge::eager_cubed" in str(traced.graph)
    assert traced(torch.full((3,), 2.0)).tolist() == [9] * 3


def test_complex_numbers_on_the_way_back():
    x = torch.tensor([1 + 2j, -0.5j, 3], requires_grad=True)
    cube(x).sum().abs().backward()
    found, x.grad = x.grad, None
    (x**3).sum().abs().backward()
    torch.testing.assert_close(found, x.grad)


def test_threads_share_an_operator():
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            count = int(torch.randint(1, 40, (), generator=generator))
            dtype = (torch.float32, DOUBLE)[seed % 2]
            x, w = (torch.randn(count, dtype=dtype, generator=generator).requires_grad_() for _ in range(2))
            check(x, w)
        return True

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


@nb.kernel
def stored_sometimes(x, y):
    i = nb.tid()
    if x[i] > 0:
        y[i] = x[i]


@nb.kernel
def stored_always(x, y):
    i = nb.tid()
    y[i] = x[i]


@nb.kernel
def stored_either_way(x, y):
    i = nb.tid()
    if x[i] > 0:
        y[i] = x[i]
    else:
        y[i] = -x[i]


@nb.kernel
def stored_as_annotated(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i]


@nb.kernel
def added_to(x, y):
    i = nb.tid()
    y[i] += x[i]


def test_outputs_are_zero_wherever_a_kernel_could_tell(monkeypatch):
    made = []
    empty_like = torch.empty_like

    def noted(tensor, **options):
        made.append(tensor)
        return empty_like(tensor, **options).fill_(7)

    monkeypatch.setattr(torch, "empty_like", noted)
    x = torch.tensor([-1.0, 1.0, 2.0])
    for kernel, wanted, is_empty in (
        (stored_sometimes, [0, 1, 2], False),
        (added_to, [-1, 1, 2], False),
        (stored_always, [-1, 1, 2], True),
        (stored_either_way, [1, 1, 2], True),
        (stored_as_annotated, [-1, 1, 2], True),
    ):
        made.clear()
        op = nb.torch_op(kernel, outputs="y")
        assert [op(x).tolist() for _ in range(3)] == [wanted] * 3
        assert len(made) == 3 * is_empty
        assert op(torch.ones(2, 3).mT[0]).tolist() == [1, 1]


@nb.kernel
def weighted(x, w, y):
    i = nb.tid()
    y[i] = x[i] * w[i] * w[i]


@nb.kernel
def chosen(x, w, y):
    i = nb.tid()
    y[i] = x[i] if i > 0 else w[i]


@nb.kernel
def partly_chosen(x, w, y):
    i = nb.tid()
    v = x[i]
    y[i] = v if v > 2.0 else w[i] * v


@nb.kernel
def weighted_as_annotated(x: nb.array[nb.float64], w: nb.array[nb.float64], y: nb.array[nb.float64]):
    i = nb.tid()
    y[i] = x[i] * w[i] * w[i]


@nb.kernel
def rows_of(x, w, y):
    i = nb.tid()
    row = w[i]
    y[i] = x[i] * row[0]


def of_torch(x, w):
    return x * w[: x.shape[0]] ** 2


EXPANDED = torch.ones(1, dtype=torch.float64).expand(4)
PLACES = torch.arange(4.0, dtype=torch.float64) + 1
CALLS = {
    "plain": (weighted, of_torch, (PLACES, PLACES + 1)),
    "longer": (weighted, of_torch, (PLACES, torch.arange(7.0, dtype=torch.float64))),
    "expanded": (weighted, of_torch, (PLACES, EXPANDED)),
    "strided": (weighted, of_torch, (torch.arange(8.0, dtype=torch.float64)[::2], PLACES)),
    "conditional": (chosen, lambda x, w: torch.cat([w[:1], x[1:]]), (PLACES, PLACES + 1)),
    "partly conditional": (partly_chosen, lambda x, w: torch.where(x > 2, x, w * x), (PLACES, PLACES + 1)),
    "annotated": (weighted_as_annotated, of_torch, (PLACES, PLACES + 1)),
    "annotated and longer": (weighted_as_annotated, of_torch, (PLACES, torch.arange(7.0, dtype=torch.float64))),
    "rows": (rows_of, lambda x, w: x * w[:, 0], (PLACES, torch.ones(4, 3, dtype=torch.float64))),
}


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("case", CALLS)
def test_gradients_in_memory_that_held_something(case, wanted, monkeypatch):
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *given, **named: empty_like(*given, **named).fill_(torch.nan))
    kernel, same, values = CALLS[case]
    op = nb.torch_op(kernel, outputs="y")
    for _ in range(3):
        ours = [value.detach().requires_grad_(want) for value, want in zip(values, wanted, strict=True)]
        theirs = [value.detach().requires_grad_(want) for value, want in zip(values, wanted, strict=True)]
        for result in (op(*ours), same(*theirs)):
            (result * PLACES).sum().backward()
        for a, b, want in zip(ours, theirs, wanted, strict=True):
            assert torch.equal(a.grad, b.grad) if want else a.grad is None


def test_one_tensor_for_two_inputs_gets_both_gradients(monkeypatch):
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *given, **named: empty_like(*given, **named).fill_(torch.nan))
    op = nb.torch_op(weighted, outputs="y")
    for _ in range(3):
        x = PLACES.clone().requires_grad_()
        op(x, x).sum().backward()
        assert torch.allclose(x.grad, 3 * PLACES**2)
