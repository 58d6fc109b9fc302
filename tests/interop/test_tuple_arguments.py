"""Tuples as arguments of kernels: of numbers and arrays, nested and named, on both devices, with gradients and with messages."""

import collections
import gc
import itertools
import math
import threading
import typing
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch
from numba import cuda

import numbridge as nb
from emulated_cuda import emulated_cuda
from numbridge.kernels.spread_table import SpreadTable
from numbridge.operators.torch_op import run_by_name

Point = collections.namedtuple("Point", "x weight")


class Grid(typing.NamedTuple):
    shape: tuple
    spacing: float


@nb.func
def first_times(pair, factor):
    return pair[0] * factor + len(pair)


@nb.func
def weighed(point, i):
    return point.x[i] * point.weight


@cuda.jit
def unpacked(out, shape, arrays):
    i = cuda.grid(1)
    nx, ny = shape
    a, b = arrays
    if i < nx:
        out[i] = a[i] * ny + b[i] * shape[-1]


@nb.kernel
def looped(out, numbers, arrays):
    i = nb.tid()
    for n in numbers:
        out[i] += n
    for k, a in enumerate(arrays):
        out[i] += (k + 1) * a[i]
    for k in range(len(numbers)):
        out[i] += numbers[k] * arrays[k][i]


@nb.kernel
def named(out, point, grid):
    i = nb.tid()
    out[i] = weighed(point, i) + grid.shape[1] * grid.spacing + point.weight


@nb.kernel
def passed_on(out, pair):
    i = nb.tid()
    out[i] = first_times(pair, 2) + first_times(pair[1:], 1) + max(pair)


@nb.kernel
def written(arrays, values):
    i = nb.tid()
    for a in arrays[:2]:
        a[i] = a[i] + values[0][1]
    cuda.atomic.add(arrays[2], 0, values[1])


@nb.func
def fill(pair, i, value):
    pair.x[i] = value


@nb.kernel
def mixed(arrays, point):
    i = nb.tid()
    total = 0.0
    for a in arrays:
        total += a[i]
    arrays[0][i] = total
    fill(point, i, total + point.weight[i])


@nb.kernel
def assigned(out, shape):
    i = nb.tid()
    if i == 1:
        shape = (shape[1], shape[0])
    out[i] = shape[0] - shape[1] + i


@nb.kernel
def shadowing(out, shape, shape_0):
    i = nb.tid()
    shape_1 = shape[0]
    out[i] = shape_0 + shape_1 + shape[1]


X = np.arange(4.0)
CASES = {
    unpacked: ([np.zeros(4), (3, 2), (X, 10 * X)], [0.0, 22.0, 44.0, 0.0]),
    looped: ([np.zeros(4), (1, 2), (X, 10 * X)], 3 + X + 20 * X + X + 20 * X),
    named: ([np.zeros(4), Point(X, 2.0), Grid((7, 3), 0.5)], 2 * X + 1.5 + 2.0),
    passed_on: ([np.zeros(4), (3, 5, 7)], [6 + 3 + 5 + 2 + 7.0] * 4),
    written: ([(X, 10 * X, X), ((5, 0.5), 1.0)], [X + 0.5, 10 * X + 0.5, [4.0, 1.0, 2.0, 3.0]]),
    mixed: ([(X, 10 * X), Point(X, 5 * X)], [11 * X, 10 * X]),
    assigned: ([np.zeros(4), (5, 3)], [2.0, -1.0, 4.0, 5.0]),
    shadowing: ([np.zeros(4), (1, 2), 10], [13.0] * 4),
}


def mapped(value, change):
    """Return an argument in which arrays have been replaced."""
    if isinstance(value, tuple):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return change(value) if isinstance(value, np.ndarray) else value


def ways(kernel):
    kernel = kernel if isinstance(kernel, nb.Kernel) else nb.kernel(kernel)
    return {
        "launch": lambda arguments: nb.launch(kernel, 4, arguments),
        "forall": lambda arguments: kernel.forall(4)(*arguments),
        "brackets": lambda arguments: kernel[2, 2](*arguments),
        "recorded": lambda arguments: nb.launch(kernel, 4, arguments, record_cmd=True).launch(),
    }


def results(arguments):
    found = arguments[0] if isinstance(arguments[0], tuple) else arguments[:1]
    return [np.asarray(array).tolist() for array in found]


@pytest.mark.parametrize("way", ways(unpacked))
@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_kernels_take_tuples(kernel, way):
    arguments, wanted = CASES[kernel]
    wanted = [list(each) for each in (wanted if kernel in (written, mixed) else [wanted])]
    for make in (np.copy, lambda x: torch.from_numpy(x.copy()), lambda x: nb.array(x, dtype=nb.float64, device="cpu")):
        given = [mapped(argument, make) for argument in arguments]
        ways(kernel)[way](given)
        assert results(given) == wanted


@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_tuples_on_cuda(kernel):
    arguments, _ = CASES[kernel]
    here, there = ([mapped(argument, np.copy) for argument in arguments] for _ in range(2))
    ways(kernel)["launch"](here)
    with emulated_cuda() as emulation:
        ways(kernel)["launch"]([mapped(argument, emulation.on_device) for argument in there])
    assert results(there) == results(here)


def test_only_what_is_written_need_be_writable():
    arrays, point = (X.copy(), read_only(10 * X)), Point(np.zeros(4), jnp.asarray(5 * X))
    nb.launch(mixed, 4, [arrays, point])
    assert arrays[0].tolist() == list(11 * X) and point.x.tolist() == list(16 * X)


def test_arrays_of_several_frameworks_in_one_tuple():
    out = np.zeros(4)
    nb.launch(looped, 4, [out, (1, 2), (torch.from_numpy(X), nb.array(10 * X, dtype=nb.float64, device="cpu"))])
    assert out.tolist() == list(CASES[looped][1])


def test_other_tuples_than_before():
    out = np.zeros(2)
    for given, wanted in (
        ((1, 2, 3), 2 + 3 + 2 + 2 + 3),
        ((4.0, 1.0), 8 + 2 + 1 + 1 + 4),
        (torch.Size([9, 1]), 18 + 2 + 1 + 1 + 9),
    ):
        nb.launch(passed_on, 2, [out, given])
        assert out.tolist() == [wanted] * 2


@nb.kernel
def first_of(out, given):
    i = nb.tid()
    out[i] = given[0] + len(given)


@nb.kernel
def divided(out, given):
    i = nb.tid()
    if given[1] == 0:
        raise ZeroDivisionError
    out[i] = given[0] / given[1]


class OwnWay(tuple):
    """Iterates backwards, which Python code that takes a tuple apart sees."""

    __slots__ = ()

    def __iter__(self):
        return reversed(self[:])


def nested(depth, value):
    return value if depth == 0 else (nested(depth - 1, value),)


@pytest.fixture
def python_calls(monkeypatch):
    """How often Python code took a launch's tuples apart."""
    calls, original = [], nb.Kernel.flattened
    monkeypatch.setattr(nb.Kernel, "flattened", lambda *given: (calls.append(given), original(*given))[1])
    return calls


@pytest.mark.parametrize("way", ["launch", "forall", "brackets"])
@pytest.mark.parametrize("kernel", CASES, ids=lambda kernel: kernel.__name__)
def test_compiled_code_takes_tuples_apart_that_are_built_as_before(kernel, way, python_calls):
    arguments, wanted = CASES[kernel]
    wanted = [list(each) for each in (wanted if kernel in (written, mixed) else [wanted])]
    once, again = ([mapped(argument, np.copy) for argument in arguments] for _ in range(2))
    run = ways(kernel)[way]
    run(once)
    before = len(python_calls)
    run(again)
    assert results(again) == wanted
    assert len(python_calls) == before


def test_other_extents_and_other_numbers_are_known_as_well(python_calls):
    out = np.zeros(9)
    nb.launch(first_of, 9, [out, (1, 2)])
    before = len(python_calls)
    for n in range(1, 9):
        nb.launch(first_of, n, [out], [(n, 0)])
        assert (out[:n] == n + 2).all()
        first_of[1, n](out, (n + 1, 0))
        assert (out[:n] == n + 3).all()
    assert len(python_calls) <= before + 2  # for the first brackets


def test_more_ways_to_build_a_tuple_than_are_remembered():
    out = np.zeros(1)
    for _ in range(2):
        for count in range(1, 13):
            nb.launch(first_of, 1, [out, (10.0, *range(count))])
            assert out[0] == 10 + count + 1


def test_a_class_that_is_gone_is_taken_for_no_other():
    out = np.zeros(1)
    for fields in 5 * ("a b", "b a"):
        pair = collections.namedtuple("Pair", fields)
        nb.launch(by_name, 1, [out, pair(*(1.0 if field == "a" else 2.0 for field in fields.split()))])
        assert out[0] == 12
        del pair
        gc.collect()


@nb.kernel
def by_name(out, pair):
    i = nb.tid()
    out[i] = pair.a * 10 + pair.b


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (OwnWay((3.0, 4.0)), 4.0 + 2),
        (tuple(map(float, range(100))), 100.0),
        (torch.Size([9, 1]), 11.0),
        ((np.float32(2.5), True), 4.5),
    ],
    ids=["own way", "many", "torch.Size", "scalars"],
)
def test_tuples_that_only_python_takes_apart_and_others_give_the_same_each_time(given, wanted):
    for _ in range(3):
        out = np.zeros(1)
        nb.launch(first_of, 1, [out, given])
        assert out[0] == wanted


@nb.kernel
def of_the_innermost(out, given):
    i = nb.tid()
    out[i] = given[0][0][0][0][0][0][0][0][0][0]


def test_tuples_that_are_nested_deep():
    for value in (1.0, 2.0, 3.0):
        out = np.zeros(1)
        nb.launch(of_the_innermost, 1, [out, nested(10, value)])
        assert out[0] == value


def test_what_a_kernel_with_tuples_raises_comes_from_compiled_launches_too():
    out = np.zeros(1)
    for _ in range(2):
        nb.launch(divided, 1, [out, (6.0, 2)])
        assert out[0] == 3
        with pytest.raises(nb.KernelError, match="divided") as caught:
            nb.launch(divided, 1, [out, (6.0, 0)])
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_tuples_that_do_not_fit_any_longer_are_refused():
    out = np.zeros(4)
    for _ in range(2):
        nb.launch(looped, 4, [out, (1, 2), (X, X)])
        with pytest.raises(nb.NumbridgeError, match=r"arrays\[1\]"):
            nb.launch(looped, 4, [out, (1, 2), (X, X[:2])])
        with pytest.raises(nb.NumbridgeError, match="numbers"):
            nb.launch(looped, 4, [out, (1, "2"), (X, X)])
        with pytest.raises(nb.NumbridgeError, match="looped"):
            nb.launch(looped, 4, [out, (1, 2)])


def test_threads_that_launch_with_tuples_while_others_are_forgotten():
    def run(seed):
        numbers, out = np.random.default_rng(seed), np.zeros(2)
        for _ in range(300):
            count = int(numbers.integers(1, 12))
            value = float(numbers.integers(100))
            nb.launch(first_of, 2, [out, (value, *range(count))])
            if not (out == value + count + 1).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))


def test_a_table_points_to_what_it_keeps_whoever_adds_to_it():
    table, others = SpreadTable(), []

    def add(count):
        table.add(["given"], [(0.0,) * count], {"given": None}, np.zeros(1, np.int64), (count,))

    class Interrupted(np.ndarray):
        """Lets another thread add something where the first has been written, if that may."""

        def __setitem__(self, place, value):
            super().__setitem__(place, value)
            if not others:
                others.append(threading.Thread(target=add, args=(2,)))
                others[0].start()
                others[0].join(0.2)

    table.numbers = table.numbers.view(Interrupted)
    add(1)
    others[0].join()
    kept = [spread.numbers.ctypes.data for spread in table._spreads]
    assert len(kept) == 2 and table.numbers[:3].tolist() == [*kept, 0]


def test_kernels_show_what_they_become():
    arguments = [np.zeros(4), (3, 2), (X, X)]
    assert "shape_1: int64" in str(nb.kernel(unpacked).explain(*arguments))
    assert ".visible .entry" in nb.kernel(unpacked).ptx(*arguments, capability=(9, 0))


@nb.kernel
def squares(out, arrays, factors, point):
    i = nb.tid()
    total = weighed(point, i) * arrays[0][i]
    for a, factor in zip(arrays, factors):  # noqa: B905 - Numba's zip takes no `strict`
        total += a[i] * a[i] * factor
    out[i] = total


def gradients():
    a, b, c = np.random.default_rng(5).normal(size=(3, 4))
    return (a, b, c), (6 * a + 2 * c, 4 * b, 2 * a)


def test_gradients_of_arrays_in_tuples_on_a_tape():
    values, wanted = gradients()
    a, b, c = (nb.array(value, dtype=nb.float64, device="cpu", requires_grad=True) for value in values)
    out = nb.zeros(4, dtype=nb.float64, device="cpu", requires_grad=True)
    with nb.Tape() as tape:
        nb.launch(squares, 4, [out, (a, b), (3.0, 2.0), Point(c, 2.0)])
    tape.backward(grads={out: nb.ones(4, dtype=nb.float64, device="cpu")})
    for array, gradient in zip((a, b, c), wanted, strict=True):
        np.testing.assert_allclose(array.grad.numpy(), gradient, rtol=1e-12)


def test_adjoints_beside_tuples():
    (a, b, c), wanted = gradients()
    found = np.zeros((3, 4))
    arguments = [np.zeros(4), (a, b), (3.0, 2.0), Point(c, 2.0)]
    adjoints = [np.ones(4), (found[0], found[1]), None, (found[2], None)]
    nb.launch(squares, 4, arguments, adj_inputs=adjoints, adjoint=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    found[:] = 0
    adjoints[1] = (None, found[1])
    nb.launch(squares, 4, arguments, adj_inputs=adjoints, adjoint=True)
    assert not found[0].any() and found[1].any()


def test_tuples_within_jax():
    def function(a: nb.array, b: nb.array, c: nb.array, out: nb.array):
        nb.launch(squares, 4, [out, (a, b), (3.0, 2.0), Point(c, 2.0)])

    values = [jnp.asarray(value, jnp.float32) for value in gradients()[0]]
    call = nb.jax_callable(function, output_dims=4, enable_backward=True)
    found = jax.grad(lambda *given: call(*given)[0].sum(), (0, 1, 2))(*values)
    for gradient, wanted in zip(found, gradients()[1], strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4)


@nb.kernel
def doubled_in_pairs(outs, ins):
    i = nb.tid()
    for k, (o, a) in enumerate(zip(outs, ins)):  # noqa: B905 - Numba's zip takes no `strict`
        o[i] = a[i] * (k + 2)


def test_what_loops_read_beside_what_they_write_need_not_be_writable():
    outs = np.zeros(4), np.zeros(4)
    nb.launch(doubled_in_pairs, 4, [outs, (read_only(X), read_only(X + 1))])
    assert [out.tolist() for out in outs] == [list(2 * X), list(3 * X + 3)]


def test_pairs_of_inputs_and_outputs_within_jax():
    def function(a: nb.array, b: nb.array, c: nb.array, d: nb.array):
        nb.launch(doubled_in_pairs, 4, [(c, d), (a, b)])

    call = nb.jax_callable(function, num_outputs=2, enable_backward=True)
    given = [jnp.arange(4.0), jnp.ones(4)]
    assert [out.tolist() for out in jax.jit(call)(*given)] == [[0, 2, 4, 6], [3, 3, 3, 3]]
    found = jax.grad(lambda *arrays: sum(out.sum() for out in call(*arrays)), (0, 1))(*given)
    assert [gradient.tolist() for gradient in found] == [[2] * 4, [3] * 4]


@nb.kernel
def annotated(out, v: nb.vec3):
    out[nb.tid()] = v[0]


def test_parameters_may_be_annotated_as_tuples():
    @nb.kernel
    def kernel(out: nb.array, shape: tuple[int, int], grid: Grid, rest: tuple):
        out[nb.tid()] = shape[0] + grid.spacing + rest[1]

    out = np.zeros(2)
    nb.launch(kernel, 2, [out, (1, 2), Grid((1, 1), 0.5), (0, 4)])
    assert out.tolist() == [5.5, 5.5]


@nb.kernel
def beyond(out, shape):
    out[nb.tid()] = shape[2]


@nb.kernel
def pair(out, shape):
    nx, ny = shape
    out[nb.tid()] = nx - ny


@nb.kernel
def unguarded(out, arrays):
    i = nb.tid()
    out[i] = arrays[0][i] + arrays[1][i]


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


REFUSED = {
    "read-only": (
        written,
        [(X.copy(), read_only(X), X.copy()), ((5, 0.5), 1.0)],
        r"parameter 'arrays\[1\]': the kernel writes to it",
    ),
    "read-only field": (
        mixed,
        [(X.copy(), X), Point(read_only(X), X)],
        r"parameter 'point\.x': the kernel writes to it",
    ),
    "text": (
        named,
        [X.copy(), Point("x", 2.0), Grid((7, 3), 0.5)],
        r"parameter 'point\.x': an object of type builtins\.str",
    ),
    "nested": (named, [X.copy(), Point(X, 2.0), Grid((7, "x"), 0.5)], r"parameter 'grid\.shape\[1\]': "),
    "None": (
        named,
        [X.copy(), Point(X, 2.0), Grid((7, None), 0.5)],
        r"'grid\.shape\[1\]' is None, and the kernel uses it here",
    ),
    "long enough": (unguarded, [X.copy(), (X, X[:3])], r"parameter 'arrays\[1\]': its shape is \(3,\)"),
    "vector": (annotated, [X.copy(), (1, 2, 3)], r"wanted vec3, got \(1, 2, 3\); pass nb\.vec3"),
    "beyond": (beyond, [X.copy(), (1, 2)], r"has 2 element\(s\), and none is at 2\n.*\n.*shape\[2\]"),
    "unpacked": (pair, [X.copy(), (1, 2, 3)], r"has 3 element\(s\), and it is unpacked into 2\n.*\n.*nx, ny = shape"),
    "count": (pair, [(1, 2)], r"takes 2 arguments \(out, shape\), got 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_messages_name_the_element(case):
    kernel, arguments, message = REFUSED[case]
    with pytest.raises(nb.NumbridgeError, match=message):
        nb.launch(kernel, 4, arguments)


def test_adjoints_of_tuples_that_do_not_fit():
    arguments, adjoint = [np.zeros(4), (X, X), (3.0, 2.0), Point(X, 2.0)], np.zeros(4)
    for wrong in (adjoint, (adjoint,)):
        with pytest.raises(nb.NumbridgeError, match="adjoint of parameter 'arrays', a tuple, is a tuple of 2"):
            nb.launch(squares, 4, arguments, adj_inputs=[np.ones(4), wrong, None, None], adjoint=True)
    with pytest.raises(nb.NumbridgeError, match="the adjoint of squares: parameter 'arrays' is a tuple"):
        squares.adjoint(["out", "arrays"]).forall(4)(*arguments, np.ones(4), adjoint)


@nb.kernel
def as_operator(x, shape, arrays, point, out):
    i = nb.tid()
    nx, ny = shape
    total = x[i] * ny
    for a in arrays:
        total += a[i] * a[i]
    if i < nx:
        out[i] = total + point.x[i] * point.weight * x[i]


def tensors(count):
    return [torch.from_numpy(array).requires_grad_() for array in np.random.default_rng(7).normal(size=(count, 4))]


def test_torch_operators_take_tuples():
    operator, given = nb.torch_op(as_operator, "out"), tensors(4)

    def function(x, a, b, c):
        return operator(x, (3, 2), (a, b), Point(c, 5.0))

    x, a, b, c = (tensor.detach() for tensor in given)
    wanted = x * 2 + a * a + b * b + c * 5 * x
    wanted[3] = 0
    torch.testing.assert_close(function(*given).detach(), wanted)
    assert torch.autograd.gradcheck(function, given) and torch.autograd.gradgradcheck(function, given)
    torch.testing.assert_close(torch.compile(function, backend="eager")(x, a, b, c), wanted)
    weight = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    operator(x, (3, 2), (a, b), Point(c, weight)).sum().backward()
    torch.testing.assert_close(weight.grad, (c * x)[:3].sum())


@nb.kernel
def with_a_number(x, shape, arrays, scale: float, point, out):
    i = nb.tid()
    nx, ny = shape
    total = x[i] * ny * scale
    for a in arrays:
        total += a[i] * a[i]
    if i < nx:
        out[i] = total + point.x[i] * point.weight * x[i]


WITH_A_NUMBER = nb.torch_op(with_a_number, "out", name="tuples_with_a_number")


@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("boxes", [(), (4,), (5,), (4, 5)])
def test_operators_of_tuples_are_compiled_in_one_graph(dynamic, boxes):
    def function(x, a, b, c, scale, weight, n):
        # Arguments of the function, of the graph, and constants, named and nested
        return WITH_A_NUMBER(x * 1, (n, 2), (a, b * 2), scale, Point(c, weight)).square().sum()

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for extent, n in ((4, 3), (5, 3), (7, 5)):
        arrays = np.random.default_rng(extent).normal(size=(4, extent))
        given = [torch.from_numpy(array).requires_grad_() for array in arrays] + [2.0, 5.0]
        for place in boxes:
            given[place] = torch.tensor(given[place], dtype=torch.float64, requires_grad=True)
        followed = [value for value in given if isinstance(value, torch.Tensor)]
        made, wanted = compiled(*given, n), function(*given, n)
        torch.testing.assert_close(made, wanted)
        gradients = torch.autograd.grad(made, followed), torch.autograd.grad(wanted, followed)
        torch.testing.assert_close(*gradients)


def test_one_graph_serves_tuples_of_other_extents():
    operator, graphs = nb.torch_op(with_a_number, "out"), []

    def backend(module, inputs):
        graphs.append([node.target for node in module.graph.nodes if "numbridge" in str(node.target)])
        return module

    compiled = torch.compile(
        lambda x, n: operator(x, (n, x.shape[0]), (x,), 2.0, Point(x, 3.0)),
        fullgraph=True,
        dynamic=True,
        backend=backend,
    )
    for extent in (4, 6, 9):
        x = torch.arange(float(extent))
        wanted = x * extent * 2 + x * x + 3 * x * x
        wanted[extent - 1 :] = 0
        torch.testing.assert_close(compiled(x, extent - 1), wanted)
    assert len(graphs) == 1 and len(graphs[0]) == 1


class Pair(tuple):
    __slots__ = ()


def test_tuples_of_other_classes_are_compiled_in_one_graph():
    operator, x = nb.torch_op(as_operator, "out"), tensors(1)[0].detach()

    def function(x):
        # A class of the user's, one of torch's own, and a shape
        shape = (*x.shape, 2)[-2:]
        return operator(x, shape, torch.aminmax(torch.stack([x, 2 * x]), dim=0), Point(x, 1.0)) + operator(
            x, torch.Size((2, 2)), Pair((x, x)), Point(x, 1.0)
        )

    torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x))


def test_operators_of_tuples_in_place_are_compiled_in_one_graph():
    operator = nb.torch_op(as_operator)
    x, a, b, c = (tensor.detach() for tensor in tensors(4))

    def function(x, a, b, c, out):
        operator(x, (3, 2), (a, b), Point(c, 5.0), out)
        return 2 * out

    out, wanted = torch.zeros_like(x), nb.torch_op(as_operator, "out")(x, (3, 2), (a, b), Point(c, 5.0))
    doubled = torch.compile(function, fullgraph=True, backend="aot_eager")(x, a, b, c, out)
    assert torch.equal(out, wanted) and torch.equal(doubled, 2 * wanted)


class OfTuples(torch.nn.Module):
    """A module with an operator of tuples."""

    def forward(self, x, a, b, c):
        return WITH_A_NUMBER(x, (x.shape[0], 2), (a, b), 2.0, Point(c, 5.0))


@pytest.mark.parametrize("strict", [False, True])
def test_operators_of_tuples_are_exported(strict):
    given, more = ([torch.from_numpy(a) for a in np.random.default_rng(0).normal(size=(4, n))] for n in (4, 9))
    n = torch.export.Dim("n", min=2)
    made = torch.export.export(OfTuples(), tuple(given), dynamic_shapes=({0: n},) * 4, strict=strict)
    torch.testing.assert_close(made.module()(*more), OfTuples()(*more))


def test_operators_of_tuples_are_traced_as_one_call():
    given = [tensor.detach() for tensor in tensors(4)]
    traced = torch.fx.symbolic_trace(Fixed())
    torch.testing.assert_close(traced(*given), Fixed()(*given))
    assert [node.op for node in traced.graph.nodes].count("call_function") == 2  # the other one makes the named tuple


def test_a_traced_call_says_which_operator_is_gone():
    with pytest.raises(
        nb.NumbridgeValueError, match="operator numbridge::gone, which a traced module calls, is not there"
    ):
        run_by_name("numbridge::gone", torch.ones(3), (1, 2))


class Fixed(torch.nn.Module):
    """The same, of one shape, as `torch.fx.symbolic_trace` needs it."""

    def forward(self, x, a, b, c):
        return WITH_A_NUMBER(x, (3, 2), (a, b), 2.0, Point(c, 5.0))


# torch's own decompositions for forward mode are scripted when they are first needed.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_transforms_of_operators_of_tuples():
    x, a, *_ = (tensor.detach() for tensor in tensors(4))

    def function(x):
        return WITH_A_NUMBER(x, (3, 2), (x, a), 2.0, Point(x, 3.0)).square().sum()

    rows, gradient = torch.stack([x, 2 * x, -x]), torch.func.grad(function)
    of_rows = torch.func.vmap(gradient)
    wanted = torch.stack([gradient(row) for row in rows])
    torch.testing.assert_close(of_rows(rows), wanted)
    torch.testing.assert_close(torch.compile(of_rows, fullgraph=True, backend="aot_eager")(rows), wanted)
    _, tangent = torch.func.jvp(function, (x,), (a,))
    torch.testing.assert_close(tangent, wanted[0] @ a)


def test_dims_are_asked_of_tuples_as_they_are():
    x, a, b, c = tensors(4)
    operator = nb.torch_op(
        as_operator,
        "out",
        launch_dims=lambda x, shape, arrays, point: shape[0],
        output_dims=lambda x, shape, arrays, point: (len(arrays) + point.x.shape[0],),
    )
    assert operator(x, (3, 2), (a, b), Point(c, 5.0)).shape == (6,)


def test_torch_operators_in_place_take_tuples():
    x, a, b, c = (tensor.detach() for tensor in tensors(4))
    out, wanted = torch.zeros_like(x), nb.torch_op(as_operator, "out")(x, (3, 2), (a, b), Point(c, 5.0))
    nb.torch_op(as_operator)(x, (3, 2), (a, b), Point(c, 5.0), out)
    assert torch.equal(out, wanted)


def test_paddle_operators_take_tuples():
    given = [paddle.to_tensor(tensor.detach().numpy(), stop_gradient=False) for tensor in tensors(4)]
    x, a, b, c = given
    nb.paddle_op(as_operator, "out")(x, (3, 2), (a, b), Point(c, 5.0)).sum().backward()
    np.testing.assert_allclose(b.grad.numpy()[:3], 2 * b.numpy()[:3])
    assert b.grad.numpy()[3] == 0


def test_numbers_that_are_tensors_beside_tuples():
    arrays = [tensor.detach().numpy() for tensor in tensors(4)]
    for operator, tensor in (
        (nb.torch_op(with_a_number, "out"), lambda value: torch.tensor(value, requires_grad=True)),
        (nb.paddle_op(with_a_number, "out"), lambda value: paddle.to_tensor(value, stop_gradient=False)),
    ):
        x, a, b, c = map(tensor, arrays)
        scale, weight = map(tensor, (np.float32(2.0), np.float64(5.0)))
        operator(x, (3, 2), (a, b), scale, Point(c, weight)).sum().backward()
        np.testing.assert_allclose(scale.grad.numpy(), 2 * arrays[0][:3].sum(), rtol=1e-6)
        np.testing.assert_allclose(weight.grad.numpy(), (arrays[3] * arrays[0])[:3].sum(), rtol=1e-6)


def test_what_operators_refuse_in_tuples():
    x, a, b, c = tensors(4)
    with pytest.raises(
        nb.NumbridgeTypeError, match=r"parameter 'arrays\[1\]': wanted a torch\.Tensor, got numpy\.ndarray"
    ):
        nb.torch_op(as_operator, "out")(x, (3, 2), (a, b.detach().numpy()), Point(c, 5.0))
    with pytest.raises(nb.NumbridgeTypeError, match="argument 'shape': wanted a JAX array or a number, got tuple"):
        nb.jax_kernel(as_operator)(jnp.ones(3), (1, 2), (3,), (4,))


def test_the_gradient_of_a_tensor_in_a_tuple_is_not_lost_silently():
    t = torch.ones(4, dtype=torch.float64, requires_grad=True)
    kernel = nb.kernel(looped.function)
    with pytest.warns(nb.NumbridgeWarning, match=r"parameter 'arrays\[1\]'"):
        nb.launch(kernel, 4, [np.zeros(4), (1, 2), (X, t)])


@nb.kernel(check_bounds=True)
def checked(out, arrays, k):
    i = nb.tid()
    out[i] = arrays[1][i + k]


def test_bounds_are_checked_in_tuples():
    with pytest.raises(nb.NumbridgeError, match=r"index 4 .*axis 0"):
        nb.launch(checked, 4, [np.zeros(4), (X, X), 1])


@nb.func
def weight(mask, i):
    if mask is None:
        return 1.0
    return mask[i]


@nb.kernel
def optional(x, out, mask: nb.array[nb.float64] | None, scale, pair, extra):
    i = nb.tid()
    if scale is None:
        scale = 1.0 / math.sqrt(x.shape[0])
    v = x[i] * scale
    if mask is not None and mask[i] > 0.0:
        v *= mask[i]
    elif mask is None and not pair is None:  # noqa: E714 - it is another operation
        v += 1.0
    v = v if pair[1] is None else v + x[i] * pair[1][i]
    out[i] = v * weight(mask, i)
    if extra is not None:
        extra[i] = out[i]


def optional_twin(x, mask, scale, other):
    scale = 0.5 if scale is None else scale
    v = x * scale
    v = v + 1.0 if mask is None else torch.where(mask > 0, v * mask, v)
    v = v if other is None else v + x * other
    return v if mask is None else v * mask


MASK, OTHER = np.array([2.0, -1.0, 0.5, 3.0]), np.array([5.0, 4.0, 3.0, 2.0])
ABSENT = list(itertools.product((None, MASK), (None, 3.0), (None, OTHER)))


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("given", ABSENT, ids=lambda given: "".join("01"[one is not None] for one in given))
def test_arguments_that_are_none(given, place):
    mask, scale, other = given
    wanted = optional_twin(*(torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in (X, *given))).numpy()
    for extra in (None, np.zeros(4)):
        out = np.zeros(4)
        arguments = [X.copy(), out, mask, scale, (1, other), extra]
        if place == "cpu":
            nb.launch(optional, 4, arguments)
        else:
            with emulated_cuda() as emulation:
                nb.launch(optional, 4, [mapped(argument, emulation.on_device) for argument in arguments])
        assert out.tolist() == wanted.tolist()
        assert extra is None or extra.tolist() == wanted.tolist()


@pytest.mark.parametrize("given", ABSENT[::3], ids=lambda given: "".join("01"[one is not None] for one in given))
def test_gradients_beside_arguments_that_are_none(given):
    leaves = [torch.tensor(v, requires_grad=True) if isinstance(v, np.ndarray) else v for v in (X + 1, *given)]
    x, mask, scale, other = leaves
    wanted = optional_twin(*leaves)
    cotangent = torch.arange(1.0, 5.0, dtype=torch.float64)
    inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    gradients = torch.autograd.grad(wanted, inputs, cotangent)
    op = nb.torch_op(optional, outputs=["out"])

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(*given):
        return op(*given)

    for run in (op, compiled):
        made = run(x, mask, scale, (1, other), None)
        torch.testing.assert_close(made, wanted)
        torch.testing.assert_close(torch.autograd.grad(made, inputs, cotangent), gradients)
    arrays = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    adjoints = [torch.zeros(4, dtype=torch.float64) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    nb.launch(
        *(optional, 4, [arrays[0], torch.zeros(4, dtype=torch.float64), *arrays[1:3], (1, arrays[3]), None]),
        adj_inputs=[adjoints[0], cotangent.clone(), *adjoints[1:3], (None, adjoints[3]), None],
        adjoint=True,
    )
    torch.testing.assert_close([each for each in adjoints if each is not None], list(gradients))


def test_paddle_operators_and_jax_functions_whose_kernels_are_given_none():
    x = paddle.to_tensor(X, stop_gradient=False)
    op = nb.paddle_op(optional, outputs=["out"])
    op(x, None, 3.0, (1, None), None).sum().backward()
    assert x.grad.tolist() == [3.0] * 4
    assert paddle.jit.to_static(lambda x: op(x, None, None, (1, None), None))(x).tolist() == list(X / 2 + 1)

    def launches(x: nb.array[nb.float64], out: nb.array[nb.float64]):
        nb.launch(optional, x.shape, [x, out, None, 3.0, (1, None), None])

    with jax.enable_x64(True):
        (made,) = jax.jit(nb.jax_callable(launches))(jnp.asarray(X))
    assert made.tolist() == list(3 * X + 1)
    with pytest.raises(nb.NumbridgeTypeError, match=r"argument 'mask': wanted .*, got NoneType, which a kernel"):
        nb.jax_kernel(masked)(jnp.asarray(X), None)


def test_compiled_code_knows_arguments_that_are_none(python_calls):
    launches = [
        [X.copy(), np.zeros(4), mask, scale, (1, other), extra]
        for mask, scale, other in ABSENT[:4]
        for extra in (None, np.zeros(4))
    ]
    for arguments in launches:
        nb.launch(optional, 4, arguments)
    before = len(python_calls)
    for arguments in [*launches, *launches[::-1]]:
        wanted = arguments[1].tolist()
        arguments[1][:] = 0
        nb.launch(optional, 4, arguments)
        assert arguments[1].tolist() == wanted
    assert len(python_calls) == before


@nb.kernel
def masked(x, mask, out):
    i = nb.tid()
    out[i] = x[i] * mask[i]


@nb.kernel
def multiplied(x, mask, out):
    i = nb.tid()
    out[i] = x[i] * mask


@nb.kernel
def counted(x, mask, out):
    i = nb.tid()
    out[i] = x[i] * len(mask)


@nb.kernel
def went_through(x, mask, out):
    i = nb.tid()
    for value in mask:
        out[i] += x[i] * value


@nb.kernel
def compared(x, mask, out):
    i = nb.tid()
    if mask > 0:
        out[i] = x[i]


@nb.kernel
def sometimes(x, mask, out):
    i = nb.tid()
    if i > 2:
        mask = 3.0
    out[i] = x[i] * mask


@nb.kernel
def from_itself(x, mask, out):
    i = nb.tid()
    mask = mask * 2.0
    out[i] = x[i] * mask


@nb.kernel
def of_a_number(x, mask: float, out):
    i = nb.tid()
    out[i] = x[i] * mask


NONE_REFUSED = {
    masked: r"parameter 'mask' is None, and the kernel uses it here; pass an array .* if mask is not None\n.*:\d+:21",
    multiplied: "'mask' is None, and the kernel uses it here",
    counted: "'mask' is None, and the kernel uses it here",
    went_through: "'mask' is None, and the kernel uses it here",
    compared: "'mask' is None, and the kernel uses it here",
    sometimes: r"parameter 'mask' is None, and assigned here under some condition.*\n.*\n    if i > 2",
    from_itself: r"parameter 'mask' is None, and assigned here .*from itself",
    of_a_number: "parameter 'mask': wanted a scalar float32, got None; pass a number",
}


@pytest.mark.parametrize("kernel", NONE_REFUSED, ids=lambda kernel: kernel.__name__)
def test_none_where_the_kernel_needs_something_is_refused(kernel):
    with pytest.raises(nb.NumbridgeError, match=NONE_REFUSED[kernel]):
        nb.launch(kernel, 4, [X.copy(), None, np.zeros(4)])


def test_an_adjoint_of_none_is_refused():
    with pytest.raises(nb.NumbridgeTypeError, match="adjoint of parameter 'mask': the argument is None"):
        nb.launch(
            *(optional, 4, [X.copy(), np.zeros(4), None, None, (1, None), None]),
            adj_inputs=[np.zeros(4), np.ones(4), np.zeros(4), None, None, None],
            adjoint=True,
        )
