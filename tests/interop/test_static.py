"""`nb.static`: constants of compiled kernels that Python expressions give, and what happens when their values change."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from compiled_calls import jax_kernel
from numbridge import static
from numbridge.kernels.language.dependencies import Dependency
from numbridge.kernels.language.static_expressions import StaticExpression

WEIGHTS = (1.0, 2.0, 4.0)


@dataclass
class Settings:
    count: int = 3
    factor: float = 0.5


@nb.func
def double(x):
    return 2.0 * x


@nb.func
def negative(x):
    return -x


def ran(kernel: nb.Kernel, count: int = 2, start: float = 1.0) -> list[float]:
    x = nb.full(count, start, float)
    nb.launch(kernel, count, [x])
    return x.list()


def test_a_range_is_one_of_constants():
    settings = Settings(count=3)

    @nb.kernel
    def unrolled(x):
        i = nb.tid()
        for k in nb.static(range(1, settings.count + 1)):
            for _ in nb.static(range(2)):
                x[i] += float(k)

    assert ran(unrolled) == [13.0, 13.0]
    settings.count = 1
    assert ran(unrolled) == [3.0, 3.0]

    several = range(3)

    @nb.kernel
    def of_a_name(x):
        for k in nb.static(several):
            x[k] = 1.0

    with pytest.raises(
        nb.KernelError, match=r"nb.static gave a range; write range\(\.\.\.\) itself, of numbers that are const"
    ):
        nb.launch(of_a_name, 1, [nb.zeros(3)])


def test_an_expression_is_a_constant_of_the_compiled_code() -> None:
    @nb.kernel
    def scale(x: nb.array[float]):
        i = nb.tid()
        x[i] = x[i] * nb.static(sum(weight**2 for weight in WEIGHTS)) + nb.static(math.sqrt(len(WEIGHTS) + 1))

    assert ran(scale) == [23.0, 23.0]
    text = scale.explain(nb.zeros(2)).source
    assert "x[i] * _nb_float32(21.0) + _nb_float32(2.0)" in text


def test_it_is_known_by_any_name_and_within_device_functions() -> None:
    nested = SimpleNamespace(value=3)

    @nb.func
    def times(x):
        return x * static(nested.value)

    @nb.kernel
    def scale(x: nb.array[float]):
        i = nb.tid()
        x[i] = times(x[i])

    assert ran(scale) == [3.0, 3.0]
    nested.value = 4
    assert ran(scale) == [4.0, 4.0]


def test_what_it_read_is_watched() -> None:
    settings, table, chosen = Settings(), {"shift": 1.0, 7: 2.0}, {"function": double}
    factor = 1.0

    @nb.kernel
    def change(x: nb.array[float]):
        i = nb.tid()
        for _ in range(nb.static(settings.count)):
            x[i] = nb.static(chosen["function"])(x[i]) * nb.static(settings.factor * factor)
        x[i] += nb.static(table["shift"] + table[7])

    assert ran(change) == [4.0, 4.0]
    settings.factor = 1.0
    assert ran(change) == [11.0, 11.0]
    settings.count = 1
    assert ran(change) == [5.0, 5.0]
    table[7] = 4.0
    assert ran(change) == [7.0, 7.0]
    chosen["function"] = negative
    assert ran(change) == [4.0, 4.0]
    factor = 3.0
    assert ran(change) == [2.0, 2.0]


def test_what_python_does_not_evaluate_is_not_evaluated() -> None:
    settings, scales = Settings(count=0), (3.0,)

    @nb.kernel
    def scaled(x):
        i = nb.tid()
        x[i] = nb.static(6.0 / settings.count if settings.count != 0 else 7.0)
        x[i] += nb.static(scales[1] if len(scales) > 1 else 10.0)
        x[i] += nb.static(settings.count > 0 and 1.0 / settings.count) + nb.static(settings.count or 100.0)

    assert ran(scaled) == [117.0, 117.0]
    settings.count = 2
    assert ran(scaled) == [15.5, 15.5]
    settings.count = 0
    assert ran(scaled) == [117.0, 117.0]


def test_what_cannot_be_watched_is_evaluated_before_each_launch() -> None:
    numbers, array, calls = [1, 2], np.array([1.0, 2.0], np.float32), []

    def counted(values: list[int]) -> int:
        calls.append(len(values))
        return sum(values)

    @nb.kernel
    def add(x: nb.array[float]):
        i = nb.tid()
        x[i] = nb.static(counted(numbers)) + nb.static(array)[i]

    assert ran(add) == [4.0, 5.0]
    numbers.append(10)
    assert ran(add) == [14.0, 15.0]
    array[0] = 5
    assert ran(add) == [18.0, 15.0]
    launch = add.forall(2)
    x = nb.zeros(2)
    launch(x)
    before = len(calls)
    numbers[0] = 3
    launch(x)
    assert len(calls) > before
    assert x.list() == [20.0, 17.0]


def test_a_property_is_asked_again() -> None:
    class Grid:
        spacing = 2

        @property
        def cells(self) -> int:
            return 10 // self.spacing

    grid = Grid()

    @nb.kernel
    def put(x: nb.array[float]):
        i = nb.tid()
        x[i] = nb.static(grid.cells)

    assert ran(put) == [5.0, 5.0]
    grid.spacing = 5
    assert ran(put) == [2.0, 2.0]


def test_no_thread_sees_an_old_value() -> None:
    shared, wrong = [0], []

    @nb.kernel
    def put(x: nb.array[float]):
        i = nb.tid()
        x[i] = nb.static(shared[0])

    launch, lock = put.forall(1), threading.Lock()

    def work() -> None:
        x = nb.zeros(1)
        for _ in range(20):
            with lock:
                shared[0] = 1 - shared[0]
                launch(x)
                if x.list() != [float(shared[0])]:
                    wrong.append(x.list())

    def disturb() -> None:
        x = nb.zeros(1)
        for _ in range(60):
            launch(x)

    threads = [threading.Thread(target=target) for target in (work, work, disturb)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (True, 1.0),
        (np.float64(0.5), 0.5),
        (nb.vec2(3.0, 4.0), 5.0),
        (float("inf"), math.inf),
        (-0.0, 0.0),
    ],
)
def test_values(value: Any, wanted: float) -> None:
    if isinstance(value, nb.vec2):

        @nb.kernel
        def put(x: nb.array[float]):
            i = nb.tid()
            x[i] = nb.length(nb.static(value))

    else:

        @nb.kernel
        def put(x: nb.array[float]):
            i = nb.tid()
            x[i] = nb.static(value)

    assert ran(put) == [wanted, wanted]


def test_zero_and_minus_zero_differ() -> None:
    values = [0.0]

    @nb.kernel
    def put(x: nb.array[float]):
        i = nb.tid()
        x[i] = math.copysign(1.0, nb.static(values[0]))

    assert ran(put) == [1.0, 1.0]
    values[0] = -0.0
    assert ran(put) == [-1.0, -1.0]


def test_a_float_takes_the_kernels_floating_type() -> None:
    @nb.kernel
    def third(x):
        i = nb.tid()
        x[i] = nb.static(1 / 3)

    wide, narrow = np.zeros(1), np.zeros(1, np.float32)
    nb.launch(third, 1, [wide])
    nb.launch(third, 1, [narrow])
    assert wide[0] == 1 / 3
    assert narrow[0] == np.float32(1 / 3)


def test_gradients_know_the_constant_and_its_change() -> None:
    powers, factors = {"n": 3}, [2.0]

    @nb.kernel
    def raise_to(x: nb.array[float], y: nb.array[float]):
        i = nb.tid()
        made = nb.static(factors[0])
        for _ in range(nb.static(powers["n"])):
            made = made * x[i]
        y[i] = nb.static(double)(made)

    def gradient(at: float) -> float:
        x, y = nb.array([at], requires_grad=True), nb.zeros(1)
        with nb.Tape() as tape:
            nb.launch(raise_to, 1, [x], [y])
        tape.backward(grads={y: [1.0]})
        return float(x.grad.list()[0])

    assert gradient(2.0) == 2 * 2 * 3 * 4.0
    powers["n"] = 2
    assert gradient(2.0) == 2 * 2 * 2 * 2.0
    factors[0] = 5.0
    assert gradient(2.0) == 2 * 5 * 2 * 2.0


def test_inside_jax_the_value_is_that_of_the_tracing() -> None:
    settings, values = Settings(), [1.0]

    @nb.kernel
    def scale(x: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = x[i] * nb.static(settings.factor) * nb.static(values[0])

    f = jax_kernel(scale, enable_backward=True)
    x = jnp.ones(3)
    assert f(x)[0].tolist() == [0.5] * 3
    assert jax.jit(f)(x)[0].tolist() == [0.5] * 3
    settings.factor = 2.0
    assert f(x)[0].tolist() == [2.0] * 3
    assert jax.grad(lambda x: f(x)[0].sum())(x).tolist() == [2.0] * 3
    values[0] = 3.0
    assert f(x)[0].tolist() == [6.0] * 3
    assert jax.jit(lambda x: f(x)[0])(x).tolist() == [6.0] * 3


def test_it_gives_the_shape_of_local_memory() -> None:
    settings = Settings(count=4)

    @nb.kernel
    def sums(x: nb.array[float]):
        i = nb.tid()
        kept = cuda.local.array(nb.static(settings.count), nb.float32)
        for k in range(nb.static(settings.count)):
            kept[k] = k
        total = x[i] * 0.0
        for k in range(nb.static(settings.count)):
            total += kept[k]
        x[i] = total

    assert ran(sums) == [6.0, 6.0]


def test_checked_indices_name_the_expression() -> None:
    @nb.kernel(check_bounds=True)
    def look_up(x: nb.array[float]):
        i = nb.tid()
        x[i] = nb.static(np.array([1.0, 2.0]))[i]

    assert ran(look_up) == [1.0, 2.0]
    with pytest.raises(nb.NumbridgeIndexError, match=r"nb\.static\(np\.array"):
        ran(look_up, 3)


def test_python_evaluates_it_as_it_is() -> None:
    @nb.func
    def scaled(x):
        return x * nb.static(len(WEIGHTS))

    assert scaled(2) == 6
    assert nb.static("text") == "text"


# Refusals


def test_a_variable_of_the_kernel_is_refused_where_it_is_declared() -> None:
    with pytest.raises(nb.KernelError, match=r"'i' is a variable of the kernel(.|\n)*static\(WEIGHTS\[i\]\)(.|\n)*\^"):

        @nb.kernel
        def wrong(x: nb.array[float]):
            i = nb.tid()
            x[i] = nb.static(WEIGHTS[i])


def test_it_takes_one_expression() -> None:
    with pytest.raises(nb.KernelError, match="takes one expression"):

        @nb.kernel
        def wrong(x: nb.array[float]):
            i = nb.tid()
            x[i] = nb.static(1, 2)


def test_an_expression_that_raises_ends_the_launch() -> None:
    settings: dict[str, float] = {}

    @nb.kernel
    def put(x: nb.array[float]):
        i = nb.tid()
        x[i] = nb.static(settings["factor"])

    with pytest.raises(nb.KernelError, match=r"raised KeyError: 'factor'(.|\n)*settings\[.factor.\](.|\n)*\^"):
        ran(put)
    settings["factor"] = 2.0
    assert ran(put) == [2.0, 2.0]
    del settings["factor"]
    with pytest.raises(nb.KernelError, match="KeyError"):
        ran(put)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [([1, 2], "a list, which may change; make it a tuple"), (object(), "an object of type object")],
    ids=["list", "object"],
)
def test_a_value_that_is_no_constant_is_refused(value: Any, wanted: str) -> None:
    @nb.kernel
    def put(x: nb.array[float]):
        i = nb.tid()
        x[i] = nb.static(value)[0]

    with pytest.raises(nb.KernelError, match=wanted):
        ran(put)


def test_a_launch_with_a_watched_value_asks_python_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, values, asked = {"factor": 2.0}, [2.0], []

    @nb.kernel
    def fast(x: nb.array[float]):
        i = nb.tid()
        x[i] = nb.static(plain["factor"])

    @nb.kernel
    def slow(x: nb.array[float]):
        i = nb.tid()
        x[i] = nb.static(values[0])

    x = nb.zeros(1)
    for kernel in (fast, slow):
        kernel.forall(1)(x)
    current = StaticExpression.holds
    monkeypatch.setattr(StaticExpression, "holds", lambda self, value: asked.append(value) or current(self, value))
    holds = Dependency.holds
    monkeypatch.setattr(Dependency, "holds", lambda self: asked.append(self.name) or holds(self))
    fast.forall(1)(x)
    assert asked == []
    slow.forall(1)(x)
    assert 2.0 in asked
