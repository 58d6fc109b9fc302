"""What all threads add to one element is added up by each worker, and added to the element once."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from numbridge.kernels.cpu_backend.totals import Total, total_array

N = 10_007
random = np.random.default_rng(5)


def texts(kernel, *arguments):
    return kernel.explain(*arguments).source


def is_totalled(kernel, *arguments):
    return "_nb_add_to_total" in texts(kernel, *arguments)


def is_subtracted(kernel, *arguments):
    return "_nb_sub_from_total" in texts(kernel, *arguments)


@nb.kernel
def loss(x, y, total):
    i = nb.tid()
    d = x[i] - y[i]
    nb.atomic_add(total, 0, d * d)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_of_squares(dtype):
    x, y = random.normal(size=(2, N)).astype(dtype)
    total = np.array([2.0, 7.0], dtype)
    assert is_totalled(loss, x, y, total.copy())
    nb.launch(loss, N, [x, y, total])
    np.testing.assert_allclose(total[0], 2 + np.square(x.astype(np.float64) - y).sum(), rtol=2e-6)
    assert total[1] == 7


@nb.kernel
def counts(x, found):
    i, j = nb.tid()
    if x[i, j] < 0:
        return
    nb.atomic_add(found, (1, 2), 1)
    if x[i, j] > 100:
        cuda.atomic.add(found, (0, 1), x[i, j])
        nb.atomic_add(found, (1, 2), 2)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_integers_wrap_around(dtype):
    x, found = random.integers(-100, 200, (53, 67)), np.full((2, 3), 5, dtype)
    assert is_totalled(counts, x, found.copy())
    nb.launch(counts, x.shape, [x, found])
    wanted = np.full((2, 3), 5, np.int64)
    wanted[1, 2] += (x >= 0).sum() + 2 * (x > 100).sum()
    wanted[0, 1] += x[x > 100].sum()
    assert np.array_equal(found, wanted.astype(dtype))


@nb.kernel
def truncated(x, found):
    i = nb.tid()
    nb.atomic_add(found, 0, int(x[i]))


def test_each_value_is_converted_by_itself():
    x, found = np.full(1000, 1.75), np.zeros(1, np.int32)
    nb.launch(truncated, 1000, [x, found])
    assert found[0] == 1000
    tenth, single = np.full(1000, 0.1), np.zeros(1, np.float32)
    nb.launch(loss, 1000, [tenth, np.zeros(1000), single])
    assert single[0] == np.float32(1000 * float(np.float32(0.1 * 0.1)))


@nb.kernel
def in_loops(x, sums, n):
    i = nb.tid()
    s = x[i]
    for k in range(n):
        s = s * 0.5 + k
        nb.atomic_add(sums, 0, s)
        if s > 3.0:
            nb.atomic_add(sums, 1, 1.0)
    while s > 0.5:
        s *= 0.7
        nb.atomic_add(sums, 2, 1.0)
    nb.atomic_add(sums, -1, s)


@pytest.mark.parametrize("simd", [False, None, True])
def test_in_loops_and_in_lanes(simd):
    x, sums = random.uniform(0, 9, N).astype(np.float32), np.zeros(4, np.float64)
    kernel = nb.kernel(simd=simd)(in_loops.source.function)
    nb.launch(kernel, N, [x, sums, 6])
    assert is_totalled(kernel, x, sums.copy(), 6)
    wanted, s = np.zeros(4), x.astype(np.float64)
    for k in range(6):
        s = s * 0.5 + k
        wanted[0] += s.sum()
        wanted[1] += (s > 3.0).sum()
    while (s > 0.5).any():
        wanted[2] += (s > 0.5).sum()
        s = np.where(s > 0.5, s * 0.7, s)
    wanted[3] = s.sum()
    np.testing.assert_allclose(sums, wanted, rtol=1e-9)


@nb.kernel
def never(x, total):
    i = nb.tid()
    if x[i] > 1e30:
        nb.atomic_add(total, 1 << 40, 1.0)


def test_where_nothing_is_added_nothing_is_touched():
    total = np.array([-0.0], np.float32)
    nb.launch(never, N, [np.ones(N, np.float32), total])
    assert math.copysign(1, total[0]) == -1


def test_what_is_not_a_number_is_added():
    x, total = np.ones(N), np.zeros(1)
    x[17] = np.nan
    nb.launch(loss, N, [x, np.zeros(N), total])
    assert math.isnan(total[0])
    x[17], total[0] = np.inf, 0
    nb.launch(loss, N, [x, np.zeros(N), total])
    assert total[0] == np.inf


def reads_it(x, total):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i])
    x[i] = total[0]


def uses_the_result(x, total):
    i = nb.tid()
    x[i] = nb.atomic_add(total, 0, x[i])


def at_its_own_place(x, total):
    i = nb.tid()
    nb.atomic_add(total, i, x[i])


def other_operation(x, total):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i])
    nb.atomic_max(total, 1, x[i])


@nb.func
def adds(total, value):
    nb.atomic_add(total, 0, value)


def passed_on(x, total):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i])
    adds(total, x[i])


@pytest.mark.parametrize("function", [reads_it, uses_the_result, at_its_own_place, other_operation, passed_on])
def test_what_somebody_may_see_is_added_at_once(function):
    kernel, x, total = nb.kernel(function), np.ones(50), np.zeros(50)
    assert not is_totalled(kernel, x, total)
    nb.launch(kernel, 50, [x, total])
    assert total[0] == {at_its_own_place: 1, passed_on: 100}.get(function, 50)
    if function is uses_the_result:
        assert sorted(x) == list(range(50))


@nb.kernel
def vectors(x: nb.array1d[nb.vec3], total: nb.array1d[nb.vec3]):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i])


@pytest.mark.parametrize(
    ("kernel", "arguments", "error"),
    [
        (loss, [np.ones(3), np.ones(3), np.zeros((2, 2))], "tuple of 2 integers"),
        (loss, [np.ones(3), np.ones(3), np.zeros(2, np.float16)], "use an array of float32"),
        (loss, [np.ones(3, complex), np.ones(3), np.zeros(2)], "convert it first"),
    ],
)
def test_errors_name_the_line(kernel, arguments, error):
    with pytest.raises(nb.KernelError, match=rf"(?s)test_totals\.py:\d+:.*nb\.atomic_add.*|{error}") as raised:
        nb.launch(kernel, 3, arguments)
    assert error in str(raised.value)
    assert "nb.atomic_add(total, 0, d * d)" in str(raised.value)


def test_vectors_are_added_up():
    x, total = np.full((N, 3), [0.1, 1, 0], np.float32), np.array([[2, 0, -0.0], [5, 5, 5]], np.float32)
    assert is_totalled(vectors, x, total)
    nb.launch(vectors, N, [x, total])
    assert total[0].tolist() == [np.float32(2 + N * float(np.float32(0.1))), N, 0] and total[1].tolist() == [5, 5, 5]
    assert np.signbit(total[0, 2])  # to which nothing but zeros was added


@nb.kernel
def moments(x: nb.array[nb.vec3d], inertia: nb.array[nb.mat33d], cells: nb.array[nb.vec3i], last: nb.array2d[nb.vec3d]):
    i = nb.tid()
    nb.atomic_add(inertia, 1, nb.outer(x[i], x[i]))
    for k in range(2):
        nb.atomic_sub(last, (-1, 0), float(k) * x[i])
    if x[i][0] > 0.0:
        nb.atomic_sub(cells, 0, nb.vec3i(1, int(x[i][1]), 2000000000))


@pytest.mark.parametrize("simd", [False, None, True])
def test_matrices_and_subtractions_are_added_up(simd):
    kernel = nb.kernel(simd=simd)(moments.source.function)
    x = random.integers(-5, 6, (N, 3)).astype(np.float64)
    inertia, cells, last = np.zeros((2, 3, 3)), np.full((1, 3), 7, np.int32), np.ones((2, 1, 3))
    source = texts(kernel, x, inertia, cells, last)
    assert source.count("_nb_sub_from_total(") >= 2 and "_nb_add_to_total(" in source
    nb.launch(kernel, N, [x, inertia, cells, last])
    assert np.array_equal(inertia, [np.zeros((3, 3)), x.T @ x])
    assert np.array_equal(last[:, 0], [np.ones(3), 1 - x.sum(axis=0)])
    right = x[x[:, 0] > 0].astype(np.int64)
    wanted = [7 - len(right), 7 - right[:, 1].sum(), 7 - 2_000_000_000 * len(right)]
    assert np.array_equal(cells[0], np.array(wanted).astype(np.int32))


@nb.kernel
def taken_away(x, total):
    i = nb.tid()
    nb.atomic_sub(total, 0, x[i])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint64, np.float32, np.float64])
def test_numbers_are_subtracted_from_a_total(dtype):
    x, total = random.integers(0, 5, N).astype(dtype), np.full(2, 3, dtype)
    assert is_subtracted(taken_away, x, total)
    nb.launch(taken_away, N, [x, total])
    assert np.array_equal(total, np.array([3 - int(x.sum()), 3]).astype(dtype))


@nb.kernel
def number_for_a_vector(x: nb.array[nb.vec3], total: nb.array[nb.vec3]):
    nb.atomic_add(total, nb.tid(), 1.0)


@nb.kernel
def vector_for_another(x: nb.array[nb.vec3], total: nb.array[nb.vec3]):
    nb.atomic_max(total, nb.tid(), nb.vec2(1.0, 2.0))


@pytest.mark.parametrize(
    ("kernel", "error"),
    [
        (number_for_a_vector, "atomic_add takes a vec3 for an array of vec3, not float32; make one, such as vec3"),
        (vector_for_another, "atomic_max takes a vec3 for an array of vec3, not vec2; make one, such as vec3"),
    ],
)
def test_errors_name_the_element(kernel, error):
    with pytest.raises(nb.KernelError) as raised:
        nb.launch(kernel, 3, [np.ones((3, 3), np.float32), np.zeros((3, 3), np.float32)])
    assert error in str(raised.value).splitlines()[0]


def test_launches_of_several_threads_add_to_one_element():
    x, y, total = np.ones(50_000), np.zeros(50_000), np.zeros(1)
    workers = [
        threading.Thread(target=lambda: [nb.launch(loss, 50_000, [x, y, total]) for _ in range(20)]) for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert total[0] == 8 * 20 * 50_000


def test_the_gradient_stays():
    x, y = random.normal(size=(2, 100))
    by_x, by_y, by_total = np.zeros(100), np.zeros(100), np.ones(1)
    nb.launch(loss, 100, [x, y, np.zeros(1)], adj_inputs=[by_x, by_y, by_total], adjoint=True)
    np.testing.assert_allclose(by_x, 2 * (x - y))
    np.testing.assert_allclose(by_y, 2 * (y - x))


def test_names_of_totals():
    assert total_array(Total("_nb_total3_my_sum", "my_sum", (0,)).name) == "my_sum"
    assert total_array("_nb_i0") is None


@nb.kernel
def into_one_of_two(x, y, z):
    i = nb.tid()
    if x[i] < 0:
        z = y
    nb.atomic_add(z, 0, 1)


def test_what_a_name_stands_for_later_is_added_to():
    x = random.normal(size=N)
    y, z = np.zeros(1, np.int64), np.zeros(1, np.int64)
    assert not is_totalled(into_one_of_two, x, y.copy(), z.copy())
    nb.launch(into_one_of_two, N, [x, y, z])
    assert y[0] == (x < 0).sum() and y[0] + z[0] == N


@nb.kernel
def far_away(x, z):
    i = nb.tid()
    nb.atomic_add(z, 1180591620717411303424, x[i])


def test_an_index_that_no_integer_holds_is_refused_where_it_stands():
    with pytest.raises(nb.KernelError, match=r"(?s)test_totals\.py:\d+:.*nb\.atomic_add\(z, 11805"):
        nb.launch(far_away, 3, [np.ones(3), np.zeros(2)])


@nb.func
def energy(a, b):
    return 0.5 * (a - b) ** 2 + a * b * b


@nb.kernel
def slopes(x, y, total, bins):
    i = nb.tid()
    by_a, by_b = nb.grad(energy)(x[i], y[i])
    nb.atomic_add(total, 0, by_a)
    nb.atomic_add(bins, i % 3, by_b)


def expected_slopes(x, y):
    x, y = x.astype(np.float64), y.astype(np.float64)
    by_b = y - x + 2 * x * y
    return (x - y + y * y).sum(), [by_b[k::3].sum() for k in range(3)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_gradients(dtype):
    x, y = random.normal(size=(2, N)).astype(dtype)
    total, bins = np.array([2.0], dtype), np.ones(3, dtype)
    assert is_totalled(slopes, x, y, total.copy(), bins.copy())
    assert "_nb_add_either" in texts(slopes, x, y, total.copy(), bins.copy())
    nb.launch(slopes, N, [x, y, total, bins])
    by_a, by_b = expected_slopes(x, y)
    tolerance = {"rtol": 2e-6, "atol": 2e-3} if dtype == np.float32 else {"rtol": 1e-12}
    np.testing.assert_allclose(total, [2 + by_a], **tolerance)
    np.testing.assert_allclose(bins, 1 + np.array(by_b), **tolerance)


def test_sums_of_tangents():
    x, y = random.normal(size=(2, N))
    total, tangent = np.zeros(1), np.zeros(1)
    dx, dy = random.normal(size=(2, N))
    derivative = loss.tangent(["x", "y", "total"])
    given = [x, y, total, dx, dy, tangent]
    assert is_totalled(derivative, *given)
    derivative.forall(N)(*given)
    np.testing.assert_allclose(tangent, [(2 * (x - y) * (dx - dy)).sum()], rtol=1e-10)
    np.testing.assert_allclose(total, [np.square(x - y).sum()], rtol=1e-12)
