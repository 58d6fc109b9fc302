"""Derivatives of kernels that call functions which Numba compiles by itself (`numba.njit`)."""

from __future__ import annotations

import math
from types import FunctionType

import numba
import numpy as np
import pytest
import torch
from numba.cuda import random as cuda_random

import numbridge as nb
from emulated_cuda import emulated_cuda, on_both

STRETCH = 2.0


@numba.njit
def stretched(a):
    return a * STRETCH


@numba.njit
def summed(a, weight=0.5):
    total = 0.0
    for j in range(3):
        total += math.sin(stretched(a) * j) * weight
    if total < 0:
        return -total
    return total


@numba.njit(fastmath=True)
def stored(a, y, i):
    y[i] = a * a * 2.0


@nb.kernel
def sums(x, y):
    i = nb.tid()
    y[i] = summed(x[i]) + summed(x[i], weight=2.0) * 1.5


@nb.kernel
def stores(x: nb.array1d[nb.float64], y: nb.array1d[nb.float64]):
    i = nb.tid()
    stored(x[i] * x[i], y, i)


@numba.njit
def interpolated(grid, values, at):
    (count,) = np.shape(values)
    k = np.searchsorted(grid, at, side="right") - 1
    k = min(max(k, 0), count - 2)
    share = (at - grid[k]) / (grid[k + 1] - grid[k])
    return values[k] ** 2 * (1 - share) + values[k + 1] * share


@numba.njit
def of_three(parameters):
    a, b, c = parameters
    return a * b + math.sin(c)


@nb.kernel
def unpacks(x, y):
    i = nb.tid()
    y[i] = of_three(x[2:5]) * x[i]


@nb.kernel
def looked_up(x, y):
    i = nb.tid()
    y[i] = interpolated(x, x, 0.9 * x[i] ** 2 + 0.05) * (1 + np.searchsorted(x, 0.7 * x[i])) * x[3]


@numba.njit
def line(t, a, b):
    return t * a + b * b


@numba.njit
def solved(f, start, args=()):
    at = start
    for _ in range(3):
        at = at - f(at, *args) / (2.0 + at * at)
    return at


@numba.njit
def all_of(first, *rest):
    s = first
    for number in rest:
        s = s * 0.5 + math.sin(number)
    return s * len(rest) + max(*rest, first) * rest[-1]


@numba.njit
def passed_on(*numbers):
    return all_of(*numbers) * all_of(numbers[0], *numbers[1:], 2.0)


@numba.njit
def of_rows(i, *rows):
    s = 0.0
    for row in rows:
        s += row[i] * row[0]
    return s


@nb.kernel
def starred(x, y):
    i = nb.tid()
    y[i] = solved(line, x[i], (x[i] * 2.0, 0.3)) + passed_on(x[i], x[i] * x[i], 0.7) + solved(math.cos, x[i])


@nb.kernel
def starred_numbers(x: nb.array1d[nb.float64], y: nb.array1d[nb.float64]):
    i = nb.tid()
    y[i] = passed_on(x[i], x[i] * x[i], 0.7)


@nb.kernel
def starred_arrays(x, y):
    i = nb.tid()
    y[i] = of_rows(i, x, x[1:], x) * passed_on(x[i], x[0]) if i < 6 else all_of(x[2], x[i])


def gradient(kernel, x):
    made = np.zeros_like(x)
    y = np.zeros_like(x)
    kernel.forall(len(x))(x, y)
    kernel.adjoint(["x", "y"]).forall(len(x))(x, y, made, np.ones_like(x))
    return made


def difference(kernel, x, step=1e-6):
    ends = []
    for sign in (1, -1):
        y = np.zeros_like(x)
        kernel.forall(len(x))(x + sign * step, y)
        ends.append(y)
    return (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("kernel", [sums, stores, starred], ids=lambda kernel: kernel.name)
def test_gradients_are_differences(kernel):
    x = np.linspace(0.1, 1.1, 7)
    assert np.allclose(gradient(kernel, x), difference(kernel, x), rtol=1e-6)


@pytest.mark.parametrize("kernel", [looked_up, unpacks, starred_arrays], ids=lambda kernel: kernel.name)
def test_gradients_by_elements_that_all_threads_read(kernel):
    x = np.array([0.1, 0.3, 0.4, 0.75, 0.8, 1.0, 1.1])
    wanted = []
    for direction in np.eye(7):
        ends = []
        for step in (1e-6, -1e-6):
            y = np.zeros(7)
            kernel.forall(7)(x + step * direction, y)
            ends.append(y.sum())
        wanted.append((ends[0] - ends[1]) / 2e-6)
    assert np.allclose(gradient(kernel, x), wanted, rtol=1e-6)


def test_second_derivatives_and_operators():
    x = torch.linspace(0.1, 1.1, 7, dtype=torch.float64, requires_grad=True)
    op = nb.torch_op(stores, outputs="y", launch_dims=lambda x: x.shape[0])
    (first,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(first, 8 * x**3) and torch.allclose(second, 24 * x**2)


def test_second_derivatives_through_starred_arguments():
    x = torch.linspace(0.1, 1.1, 7, dtype=torch.float64, requires_grad=True)
    op = nb.torch_op(starred_numbers, outputs="y", launch_dims=lambda x: x.shape[0])
    torch.autograd.gradcheck(op, x)
    torch.autograd.gradgradcheck(op, x)
    x = np.ones(3)
    assert ".visible .entry" in starred.adjoint(["x", "y"]).ptx(x, x, x, x, capability=(9, 0))


def test_only_tuples_are_starred():
    @numba.njit
    def spread(row):
        return line(*row)

    @nb.kernel
    def spreads(x, y):
        i = nb.tid()
        y[i] = spread(x)

    assert starred.source.written({"x": 1, "y": 1}) == starred_arrays.source.written({"x": 1, "y": 1}) == {"y"}
    with pytest.raises(nb.KernelUnsupportedError, match=r"only a tuple can be starred here(.|\n)*line\(\*row\)"):
        spreads.adjoint(["x", "y"]).forall(3)(*(np.ones(3) for _ in range(4)))


def test_numbers_in_such_functions_are_float64():
    """As in the compiled function itself, whose result is rounded once, where it is stored."""

    @numba.njit
    def third(a):
        return a * (1.0 / 3.0) * a

    @nb.kernel
    def thirds(x, y):
        i = nb.tid()
        y[i] = third(x[i])

    x = np.linspace(1.0, 2.0, 50, dtype=np.float32)
    wanted = x.astype(np.float64) * (2.0 / 3.0)
    assert np.allclose(gradient(thirds, x), wanted, rtol=6e-8, atol=0)


def test_the_gradient_on_cuda_is_that_on_the_cpu():
    x = np.linspace(0.1, 1.1, 7)
    expected = gradient(sums, x)
    with emulated_cuda() as emulation:
        made = np.zeros(7)
        there = [emulation.on_device(a) for a in (x.copy(), np.zeros(7), made, np.ones(7))]
        sums.adjoint(["x", "y"]).forall(7)(*there)
    assert np.allclose(made, expected, rtol=1e-12)


def test_a_global_that_changed_is_refused(monkeypatch):
    """Numba's compiled code has the value that it found first, and goes on with it."""
    x = np.linspace(0.1, 1.1, 7)
    expected = np.zeros(7)
    sums.forall(7)(x, expected)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "STRETCH", 3.0)
        y = np.zeros(7)
        sums.forall(7)(x, y)
        assert (y == expected).all()
        with pytest.raises(
            nb.KernelError, match=r"stretched is compiled by Numba, which keeps the value that 'STRETCH' had"
        ):
            gradient(sums, x)
    assert np.allclose(gradient(sums, x), difference(sums, x), rtol=1e-6)


def test_a_global_that_changed_before_a_kernel_called_the_function_is_refused(monkeypatch):
    namespace = globals() | {"FACTOR": 1.5}

    def bent(a):
        return a * FACTOR * a  # noqa: F821

    bent = numba.njit(FunctionType(bent.__code__, namespace))
    assert bent(2.0) == 6.0
    namespace["FACTOR"] = 4.0

    @nb.kernel
    def bends(x, y):
        i = nb.tid()
        y[i] = bent(x[i])

    y = np.zeros(2)
    bends.forall(2)(np.ones(2), y)
    assert y.tolist() == [1.5, 1.5]
    with pytest.raises(nb.KernelError, match=r"bent is compiled by Numba, which keeps the value that 'FACTOR' had"):
        gradient(bends, np.ones(2))
    # Nor is the code found, in this process or another, by a function that has the new value.
    fresh = numba.njit(FunctionType(bent.py_func.__code__, namespace))

    @nb.kernel
    def bends(x, y):
        i = nb.tid()
        y[i] = fresh(x[i])

    bends.forall(2)(np.ones(2), y)
    assert y.tolist() == [4.0, 4.0] and gradient(bends, np.ones(2)).tolist() == [8.0, 8.0]


def multiplied(by):
    weight, single = by, np.float32(by)

    @numba.njit
    def times(a, by=weight):
        return a * by * a

    @nb.func
    def plus(a, weight=weight, b=single):
        return a * weight + b

    @nb.kernel
    def both(x, y):
        i = nb.tid()
        weight = by = x[i]
        y[i] = times(weight) + plus(by)

    return both


def test_defaults_are_those_of_the_time_when_python_made_the_function():
    x, kernels = np.linspace(0.1, 1.1, 7), [multiplied(2.0), multiplied(3.0)]
    for kernel, by in zip(kernels, (2.0, 3.0), strict=True):
        y = np.zeros(7)
        kernel.forall(7)(x, y)
        assert np.allclose(y, x * x * by + x * by + by, rtol=1e-12)
        assert np.allclose(gradient(kernel, x), 2 * x * by + by, rtol=1e-12)


@numba.njit
def by_method(a, method="square", weight=None, also="sine"):
    if method in ("square", "cube"):
        a = a * a if method == "square" else a * a * a
    elif method != "same":
        return -1.0
    if weight is not None:
        a = a * weight
    return a + math.sin(a) if not (also == "none" or method is None) else a


@nb.kernel
def methods(x, y):
    i = nb.tid()
    way = "same"
    y[i] = (
        by_method(x[i]) + by_method(x[i], "cube", x[i]) * by_method(x[i], way, also="none") + by_method(x[i], "other")
    )


@nb.kernel
def unpacks_rows(x, y):
    i = nb.tid()
    y[i] = of_three(x[i])


@pytest.mark.parametrize("count", [0, 2, 4])
def test_an_array_of_another_length_is_not_unpacked_by_an_adjoint_either(count):
    x, y, by_x = np.ones((2, count)), np.zeros(2), np.zeros((2, count))
    with pytest.raises(nb.KernelError, match="ValueError: an array of another length is unpacked"):
        unpacks_rows.adjoint(["x", "y"]).forall(2)(x, y, by_x, np.ones(2))
    assert not by_x.any()


@nb.kernel
def places(x, v, left, right):
    i = nb.tid()
    left[i] = np.searchsorted(x, v[i]) * v[i]
    right[i] = np.searchsorted(x, v[i], "right") * v[i]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_places_in_an_array_are_those_that_numba_finds(dtype):
    """Also where an array is not sorted: the factor of the gradient is the place that the kernel found."""
    numbers = np.random.default_rng(3)
    x = numbers.integers(0, 9, 30).astype(dtype)
    if dtype is not np.int64:
        x[[4, 20, 29]] = np.nan
    for grid in (x, np.sort(x), x[:0]):
        v = np.array([*range(-1, 10), np.inf, np.nan])
        given = [np.zeros_like(v), np.zeros_like(v)]
        places.forall(len(v))(grid, v, *given)
        for side in range(2):
            adjoint, ones = np.zeros_like(v), [np.zeros_like(v), np.zeros_like(v)]
            ones[side][:] = 1
            places.adjoint(["v", "left", "right"]).forall(len(v))(grid, v, *given, adjoint, *ones)
            wanted = np.searchsorted(np.sort(grid), v, ("left", "right")[side])
            finite = np.isfinite(v) & (v != 0)
            assert np.array_equal(adjoint[finite], given[side][finite] / v[finite])
            if np.array_equal(grid, np.sort(grid), equal_nan=dtype is not np.int64):
                assert np.array_equal(adjoint, wanted)


def test_words_and_none_choose_between_branches():
    x = np.linspace(0.1, 1.1, 7)
    assert np.allclose(gradient(methods, x), difference(methods, x), rtol=1e-6)


def test_a_word_that_would_have_to_be_a_number_is_refused_with_its_place():
    @numba.njit
    def optional(a, b="one"):
        return a if a < 0 else b

    @nb.kernel
    def takes(x: nb.array[nb.float64], y: nb.array[nb.float64]):
        i = nb.tid()
        y[i] = optional(x[i])

    with pytest.raises(nb.KernelUnsupportedError, match=r"not a number, on every path(.|\n)*return a if a < 0 else b"):
        takes.adjoint(["x", "y"]).forall(3)(*(np.ones(3) for _ in range(4)))


def declared(*signature, **options):
    @numba.njit(*signature, **options)
    def scaled(a, b):
        s = a * 3.0
        return s * b

    @nb.kernel
    def scales(x, y):
        i = nb.tid()
        y[i] = scaled(x[i] * 2.0, x[i]) * x[i]

    return scales


@pytest.mark.parametrize(
    "signature",
    ["float64(int64, float64)", "int64(float64, float64)", ["int64(int64, int64)", "float64(float64, float64)"]],
    ids=str,
)
def test_numbers_are_converted_as_a_declared_signature_says(signature):
    kernel, x = declared(signature), np.linspace(0.41, 2.13, 7)
    assert np.allclose(gradient(kernel, x), difference(kernel, x), rtol=1e-6)


def test_several_signatures_of_which_none_is_exact_are_refused():
    several = declared(["float64(int64, float64)", "float64(float64, float64)"])
    with pytest.raises(
        nb.KernelUnsupportedError, match="scaled has several signatures, and none of exactly these types"
    ):
        gradient(several, np.ones(3, np.float32))


@pytest.mark.parametrize("kinds", [{"s": numba.int64}, {"a": numba.int32, "b": numba.float64}], ids=str)
def test_variables_of_declared_types(kinds):
    kernel, x = declared(locals=kinds), np.linspace(0.41, 2.13, 7)
    assert np.allclose(gradient(kernel, x), difference(kernel, x), rtol=1e-6)


def test_variables_of_declared_types_on_cuda():
    kernel, x = declared(locals={"s": numba.int64}), np.ones(3)
    with pytest.raises(
        nb.KernelError, match=r"type for s, locals=\{'s': int64\}, which numba.cuda does not know; convert"
    ):
        kernel.ptx(x, x, capability=(9, 0))
    # The derivative, which is made of the source, knows it there, too.
    assert ".visible .entry" in kernel.adjoint(["x", "y"]).ptx(x, x, x, x, capability=(9, 0))


def test_each_assignment_is_to_the_declared_type():
    @numba.njit(locals={"s": numba.int64, "t": numba.float64})
    def stepped(a, n):
        s = t = a
        for k in range(n):
            s += a * 2.5 + k * a
            t = s * a + t * k
        return s + t

    @nb.kernel
    def steps(x, y):
        i = nb.tid()
        y[i] = stepped(x[i], 4)

    x = np.linspace(0.41, 2.13, 7)
    assert np.allclose(gradient(steps, x), difference(steps, x), rtol=1e-6)


@numba.njit("float64(float64[:], int64)")
def squares_of(row, n):
    s = 0.0
    for k in range(n):
        s += row[k] * row[k]
    return s


@numba.njit(["float32(float64[:], float64)", "float64(float64[:, :], float64)"])
def by_rank(a, scale):
    return a.sum() * scale


@numba.njit(locals={"row": numba.float64[:]})
def with_a_row(x, i):
    row = x[i]
    s = row[0] * row[1]
    return s * squares_of(row, 2)


@numba.njit("void(float64[:], float64[:])")
def squared_into(row, y):
    for k in range(row.size):
        y[k] = row[k] * row[k]


@nb.kernel
def calls_declared(x, y):
    i = nb.tid()
    y[i, 0] = squares_of(x[i], 2.9) * 1.5 + with_a_row(x, i)
    y[i, 1] = by_rank(x[i], 2.0) + by_rank(x, x[i, 0]) * squares_of(x[i, ::2], 1)
    squared_into(x[i, 1:], y[i, 2:])


def test_functions_that_are_declared_take_what_a_kernel_only_reads():
    x = np.random.default_rng(3).uniform(0.5, 1.5, (3, 3))
    first = [1.5 * (r[:2] ** 2).sum() + r[0] * r[1] * (r[:2] ** 2).sum() for r in x]
    second = [float(np.float32(2 * r.sum())) + x.sum() * r[0] ** 3 for r in x]
    here, there = on_both(calls_declared, 3, [x, np.zeros((3, 4))])
    for y in (here, there):
        assert np.allclose(y, np.column_stack([first, second, x[:, 1:] ** 2]), rtol=1e-14)
    assert len(squares_of.signatures) == 1 and squares_of.signatures[0][0].mutable

    def total(x):
        y = np.zeros((3, 4))
        nb.launch(calls_declared, 3, [x, y])
        return y.sum()

    made = np.zeros_like(x)
    nb.launch(
        calls_declared, 3, [x], [np.zeros((3, 4))], adj_inputs=[made], adj_outputs=[np.ones((3, 4))], adjoint=True
    )
    step = 1e-3  # for numbers that are rounded to float32
    for place in np.ndindex(x.shape):
        moved = step * (np.arange(x.size).reshape(x.shape) == np.ravel_multi_index(place, x.shape))
        assert math.isclose(made[place], (total(x + moved) - total(x - moved)) / (2 * step), rel_tol=1e-3)


def test_declared_functions_of_any_names():
    def named(lazy, result, implementation=2.0):
        return lazy[0] * result * implementation

    first = numba.njit("float64(float64[:])")(lambda row: row[0])
    both = numba.njit(["float64(float64[:], int64, float64)"])(named)

    @nb.kernel
    def calls(x, y):
        i = nb.tid()
        y[i] = first(x[i]) + both(x[i], 2.7) * both(x[i], 1, implementation=3.0)

    x = np.arange(1.0, 7.0).reshape(3, 2)
    for y in on_both(calls, 3, [x, np.zeros(3)]):
        assert np.array_equal(y, x[:, 0] + 12 * x[:, 0] ** 2)


def test_declared_functions_of_other_types_are_refused():
    x = np.ones((3, 3), np.float32)
    with pytest.raises(
        nb.KernelError, match=r"is compiled for the types that its decorator declares, not for \(array of float32"
    ):
        nb.launch(calls_declared, 3, [x, np.zeros((3, 4))])

    @nb.kernel
    def takes_a_row(x, y):
        i = nb.tid()
        y[i] = with_a_row(x, i)

    with pytest.raises(
        nb.KernelError,
        match=r"row is declared as array of float64, and is assigned array of float32; leave it out of @njit",
    ):
        nb.launch(takes_a_row, 3, [x, np.zeros(3)])


def test_what_was_compiled_with_another_value_is_not_compiled_again():
    scale = 2.0

    @numba.njit("float64(float64[:])")
    def scaled(row):
        return row[0] * scale

    scale = 3.0

    @nb.kernel
    def scales(x, y):
        i = nb.tid()
        y[i] = scaled(x[i])

    with pytest.raises(nb.KernelError, match="scaled is compiled for the types that its decorator declares"):
        nb.launch(scales, 2, [np.ones((2, 2)), np.zeros(2)])


def test_a_declared_function_of_arrays():
    @numba.njit("void(float64[:], int64, float64)")
    def put(y, i, value):
        y[i] = value * value

    @nb.kernel
    def puts(x, y):
        i = nb.tid()
        put(y[:], i, x[i])

    x = np.linspace(0.1, 1.1, 7)
    assert np.allclose(gradient(puts, x), 2 * x)


def test_what_cannot_be_read_is_refused_with_its_place():
    @numba.njit
    def listed(a):
        both = [a, a]
        return both[0]

    @nb.kernel
    def lists(x, y):
        i = nb.tid()
        y[i] = listed(x[i])

    with pytest.raises(nb.KernelUnsupportedError, match=r"a list cannot be used(.|\n)*both = \[a, a\]"):
        lists.adjoint(["x", "y"]).forall(3)(*(np.ones(3) for _ in range(4)))


@nb.kernel
def noisy(states, x, y):
    i = nb.tid()
    y[i] = x[i] * x[i] * cuda_random.xoroshiro128p_uniform_float32(states, i)
    for k in range(3):
        y[i] += x[i] * cuda_random.xoroshiro128p_normal_float64(states, i) * k


def test_random_numbers_are_those_of_the_kernel_on_the_way_back():
    states = np.zeros(5, cuda_random.xoroshiro128p_dtype)
    cuda_random.init_xoroshiro128p_states_cpu(states, 1, 0)
    x, before = np.linspace(0.5, 1.0, 5), states.copy()

    def run(x):
        y = np.zeros(5)
        noisy.forall(5)(before.copy(), x, y)
        return y

    made = np.zeros(5)
    noisy.adjoint(["x", "y"]).forall(5)(states, x, np.zeros(5), made, np.ones(5))
    assert np.allclose(made, (run(x + 1e-6) - run(x - 1e-6)) / 2e-6, rtol=1e-6)
    assert (states == before).all()
