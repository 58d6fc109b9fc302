"""Operators of Paddle in the programs of `paddle.jit.to_static`, from a function's text and from its bytecode."""

from __future__ import annotations

import gc
import weakref
from typing import NamedTuple

import numpy as np
import paddle
import pytest
from paddle.jit.sot.utils import min_graph_size_guard
from paddle.static import InputSpec

import numbridge as nb

# Whether all of a function becomes one program, from its text; else parts of it do, from its bytecode.
ways = pytest.mark.parametrize("full", [True, False], ids=["whole", "parts"])


@pytest.fixture(autouse=True, params=[0, 10], ids=["any", "large"])
def _size_of_programs(request):
    # Paddle runs what would be a small program of a part without one.
    with min_graph_size_guard(request.param):
        yield


@nb.kernel
def two(x, w, a, y, z):
    i = nb.tid()
    y[i] = a * w[i] * x[i] * x[i] * x[i]
    z[i] = x[i] * w[i] * w[i]


@nb.kernel
def valid(x: nb.array1d[float], w: nb.array1d[float], y: nb.array1d[float]):
    i = nb.tid()
    total = nb.float32(0.0)
    for k in range(w.shape[0]):
        total += x[i + k] * w[k]
    y[i] = total


@nb.kernel
def moved(points: nb.array1d[nb.vec3], by: nb.vec3, scale: float, out: nb.array1d[nb.vec3]):
    i = nb.tid()
    out[i] = points[i] * scale + by


@nb.kernel
def gathered(x, places, y, found):
    i = nb.tid()
    y[i] = x[places[i]] * x[places[i]]
    found[i] = places[i]


@nb.kernel
def summed(planes, shape, y):
    i = nb.tid()
    y[i] = planes[0][i] * planes[1][i] * shape[0] + shape[1]


@nb.kernel
def summed_by_name(planes, y):
    i = nb.tid()
    y[i] = planes.a[i] * planes.b[i]


@nb.kernel
def doubled(x):
    i = nb.tid()
    x[i] = 2.0 * x[i]


class Planes(NamedTuple):
    a: object
    b: object


def valid_dims(x, w):
    return x.shape[0] - w.shape[0] + 1


TWO = nb.paddle_op(two, ["y", "z"])
VALID = nb.paddle_op(valid, "y", launch_dims=valid_dims, output_dims=valid_dims)
MOVED = nb.paddle_op(moved, "out")
GATHERED = nb.paddle_op(gathered, ["y", "found"], launch_dims=lambda x, i: i.shape, output_dims=lambda x, i: i.shape)
SUMMED = nb.paddle_op(summed, "y", launch_dims=lambda planes, _: planes[0].shape, output_dims=lambda p, _: p[0].shape)
BY_NAME = nb.paddle_op(
    summed_by_name, "y", launch_dims=lambda planes: planes.a.shape, output_dims=lambda planes: planes.a.shape
)
DOUBLED = nb.paddle_op(doubled)


def tensor(*shape, seed=0, dtype="float32"):
    made = np.asarray(np.random.default_rng(seed).normal(size=shape), dtype)
    return paddle.to_tensor(made, stop_gradient=False)


def fresh(value):
    if not isinstance(value, paddle.Tensor):
        return value
    return paddle.to_tensor(value.numpy(), stop_gradient=value.stop_gradient)


def same(function, *calls, **options):
    """Compare a function with what `paddle.jit.to_static` makes of it: results and gradients."""
    compiled = paddle.jit.to_static(function, **options)
    for call in calls:
        given, wanted = map(fresh, call), map(fresh, call)
        given, wanted = list(given), list(wanted)
        made, result = compiled(*given), function(*wanted)
        assert made.shape == result.shape and made.dtype == result.dtype
        np.testing.assert_allclose(made.numpy(), result.numpy(), rtol=1e-5, atol=1e-6)
        made.sum().backward()
        result.sum().backward()
        for a, b in zip(given, wanted, strict=True):
            if isinstance(a, paddle.Tensor) and b.grad is not None:
                np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=1e-6)


def both(x, w, a):
    y, z = TWO(x * 2.0, w, a)
    return y * z + y


def first(x, w, a):
    return TWO(x * 2.0, w, a)[0] + x


def by_one(x, w, a):
    return TWO(x.detach(), w, a)[1] * w


def by_none(x, w, a):
    with paddle.no_grad():
        y, _ = TWO(x * 2.0, w, a)
    return y * x


@ways
@pytest.mark.parametrize("function", [both, first, by_one, by_none])
def test_values_and_gradients(function, full):
    calls = [
        (tensor(n, dtype="float64"), tensor(n, seed=1, dtype="float64"), a) for n, a in ((3, 2.0), (3, -1.5), (5, 2.0))
    ]
    same(function, *calls, full_graph=full)


@ways
def test_a_number_that_is_a_tensor(full):
    same(both, *[(tensor(3), tensor(3, seed=1), tensor(seed=seed)) for seed in (2, 3)], full_graph=full)


def of_one(x, w):
    y, z = TWO(x, x, 2.0)
    return y * z + TWO(w, x, w.sum())[0]


@ways
def test_a_value_given_twice(full):
    same(of_one, *[(tensor(n), tensor(n, seed=1)) for n in (3, 5)], full_graph=full)


def smoothed(x, w):
    return VALID(x * 1.0, w) * 2.0


@ways
def test_shapes_that_a_function_says(full):
    calls = [(tensor(n), tensor(k, seed=1)) for n, k in ((8, 3), (9, 3), (9, 4))]
    same(smoothed, *calls, full_graph=full)


class Cycle:
    """What only the collector of cycles frees."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_values_of_programs_before_are_found_without_the_collector():
    # Paddle leaves them in cycles, and may take them for values of the next program.
    compiled = paddle.jit.to_static(smoothed, full_graph=True)
    compiled(tensor(8), tensor(3))
    cycle = weakref.ref(Cycle())
    compiled(tensor(8), tensor(3))
    assert cycle() is not None  # nothing new is compiled
    compiled(tensor(9), tensor(3))
    assert cycle() is None


def test_extents_that_a_program_does_not_know():
    unknown = InputSpec([None], "float32", stop_gradient=False)
    calls = [(tensor(n), tensor(k, seed=1)) for n, k in ((8, 3), (12, 5))]
    same(smoothed, *calls, full_graph=True, input_spec=[unknown, unknown])
    specs = [InputSpec(shape, "float32", stop_gradient=False) for shape in ([None, 3], [3], [])]
    same(displaced, *[(tensor(n, 3), tensor(3), tensor()) for n in (2, 7)], full_graph=True, input_spec=specs)


def displaced(points, by, scale):
    return MOVED(points * 1.0, by, scale)


@ways
def test_vectors(full):
    same(displaced, *[(tensor(n, 3), tensor(3), tensor()) for n in (2, 7)], full_graph=full)


def taken(x, places):
    y, found = GATHERED(x * 1.0, places)
    return y * found.astype("float32")


@ways
def test_integers(full):
    same(taken, (tensor(5), paddle.to_tensor([4, 1, 4])), full_graph=full)


def of_planes(x, y):
    return SUMMED((x * 1.0, y), (3, 2.0))


@ways
def test_integers_made_of_what_has_a_gradient(full):
    """Paddle would ask for theirs, and a process ended where an operation between had none."""
    gather = nb.paddle_op(gathered, ["y", "found"])

    def chosen(x):
        return gather(x, paddle.floor(paddle.abs(x)).astype("int64") % 2)[0]

    x = paddle.to_tensor([0.5, 1.5, 2.5], stop_gradient=False)
    y = paddle.jit.to_static(chosen, full_graph=full)(x)
    y.sum().backward()
    assert y.tolist() == [0.25, 2.25, 0.25] and x.grad.tolist() == [2.0, 3.0, 0.0]


@ways
def test_tuples(full):
    same(of_planes, (tensor(4), tensor(4, seed=1)), (tensor(6), tensor(6, seed=1)), full_graph=full)


def of_named_planes(x, y):
    return BY_NAME(Planes(x * 1.0, y))


def test_named_tuples():
    # Paddle makes ordinary tuples of them where programs are parts.
    same(of_named_planes, (tensor(4), tensor(4, seed=1)), (tensor(6), tensor(6, seed=1)), full_graph=True)


class Net(paddle.nn.Layer):
    """A layer with an operator between Paddle's own."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([3])
        self.linear = paddle.nn.Linear(4, 8)

    def forward(self, x):
        return VALID(self.linear(x).flatten(), self.weight).tanh()


@ways
def test_training(full):
    paddle.seed(0)
    plain, compiled = Net(), Net()
    compiled.set_state_dict(plain.state_dict())
    compiled = paddle.jit.to_static(compiled, full_graph=full)
    x, losses = tensor(2, 4), {}
    x.stop_gradient = True
    for net in (plain, compiled):
        optimiser, losses[net] = paddle.optimizer.Adam(0.05, parameters=net.parameters()), []
        for _ in range(5):
            loss = ((net(x) - 0.3) ** 2).mean()
            loss.backward()
            optimiser.step()
            optimiser.clear_grad()
            losses[net].append(loss.item())
    np.testing.assert_allclose(losses[compiled], losses[plain], rtol=1e-5)
    assert losses[plain][-1] < losses[plain][0]
    compiled.eval()
    with paddle.no_grad():
        np.testing.assert_allclose(compiled(x).numpy(), plain(x).numpy(), rtol=1e-5)


def changed(x):
    y = x * 1.0
    DOUBLED(y)
    return y + 1.0


def test_what_changes_its_inputs_ends_a_program():
    with paddle.no_grad():
        made = paddle.jit.to_static(changed, full_graph=False)
        assert made(paddle.ones([3])).tolist() == [3, 3, 3]
        assert made(2 * paddle.ones([3])).tolist() == [5, 5, 5]


def test_what_changes_its_inputs_is_refused_in_one_program():
    with (
        paddle.no_grad(),
        pytest.raises(
            nb.NumbridgeError, match=r"operator doubled changes x in place, and programs of paddle\.jit\.to_static"
        ),
    ):
        paddle.jit.to_static(changed, full_graph=True)(paddle.ones([3]))


def too_many(x):
    return VALID(x * 1.0, x, x)


def no_tensor(x):
    return VALID(x * 1.0, [1.0])


def cut_off(x):
    return TWO(x.astype("int64"), x * 1.0, 2.0)[0]


@ways
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (too_many, r"operator valid takes 2 arguments \(x, w\), got 3"),
        (no_tensor, r"parameter 'w': wanted a paddle\.Tensor, got list; use paddle\.to_tensor\(x\)"),
        (cut_off, r"output 'y': its dtype is not annotated, and the first tensor, 'x', holds paddle\.int64"),
    ],
)
def test_mistakes_are_refused_as_without_a_program(function, message, full):
    with pytest.raises(Exception, match=message):  # within programs of parts Paddle makes it an error of its own
        paddle.jit.to_static(function, full_graph=full)(tensor(4))


def launched(x):
    nb.launch(doubled, 3, [x * 1.0])
    return x


def converted(x):
    return x + nb.from_paddle(x * 1.0).shape[0]


@pytest.mark.parametrize("function", [launched, converted])
def test_values_of_programs_have_no_memory(function):
    with pytest.raises(nb.BufferAccessError, match=r"a value of shape \[3\] in a program of Paddle's .*nb\.paddle_op"):
        paddle.jit.to_static(function, full_graph=True)(paddle.ones([3]))


TOO_LONG = nb.paddle_op(valid, "y")


def overrun(x, w):
    return TOO_LONG(x * 1.0, w)


@ways
def test_arrays_that_are_too_short_end_a_call_and_not_the_process(full, capfd):
    compiled = paddle.jit.to_static(overrun, full_graph=full)
    with pytest.raises(SystemError, match="Execution of the Python OP"):
        compiled(tensor(8), tensor(3))
    assert "parameter 'x': its shape is (8,), and a launch over (8,) takes x[i + k]" in capfd.readouterr().err
    assert compiled(tensor(8), tensor(1)).shape == [8]


def with_inner_gradient(x, w):
    y = VALID(x * 1.0, w)
    (gradient,) = paddle.grad(y.sum(), [x], create_graph=True)
    return (gradient * gradient).sum() + y.sum()


@pytest.mark.filterwarnings("ignore:paddle.grad has unsupported parameter in jit:UserWarning")
def test_second_derivatives_within_a_program_are_paddles_error():
    with pytest.raises(ValueError, match="backward function id of pylayer op"):
        paddle.jit.to_static(with_inner_gradient, full_graph=True)(tensor(8), tensor(3))
