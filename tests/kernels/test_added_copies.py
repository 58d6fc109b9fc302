"""Arrays that threads only add to, at indices of their own: where they are small, each worker adds to a copy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from numba import config, cuda, njit

import numbridge as nb
from numbridge.kernels.cpu_backend.cpu_copies import NAMES
from numbridge.kernels.cpu_backend.threads import start_threads
from numbridge.kernels.cpu_backend.totals import additions_of, has_even_trips, only_added, with_either
from numbridge.kernels.parameter_types import ArrayType, ScalarType
from numbridge.kernels.scalars import scalar_of

N = 200_003
random = np.random.default_rng(7)


def has_copies(kernel, *arguments):
    return "_nb_copy_at(" in kernel.explain(*arguments).source


@nb.kernel
def histogram(x, w, found):
    i = nb.tid()
    nb.atomic_add(found, x[i], w[i])


DTYPES = [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bins", [1, 100, 70_000])
def test_histograms(dtype, bins):
    # 70,000 elements are more than a copy would pay for.
    x, w = random.integers(-bins, bins, N), random.integers(0, 4, N).astype(dtype)
    found = random.integers(0, 100, bins).astype(dtype)
    wanted = found.astype(np.int64)
    np.add.at(wanted, x, w.astype(np.int64))
    assert has_copies(histogram, x, w, found.copy())
    nb.launch(histogram, N, [x, w, found])
    assert np.array_equal(found, wanted.astype(dtype))


@pytest.mark.parametrize("order", [lambda a: a, np.transpose, lambda a: a[::-1, ::2]])
def test_arrays_of_any_order(order):
    @nb.kernel
    def pairs(x, found):
        i, j = nb.tid()
        cuda.atomic.add(found, (x[i, j], j % 3), 1)
        nb.atomic_add(found, x[i, j], 0, 2)

    x, held = random.integers(0, 5, (400, 300)), np.zeros((5, 6), np.int64)
    found = order(held)
    nb.launch(pairs, x.shape, [x, found])
    wanted = np.zeros(found.shape, np.int64)
    np.add.at(wanted, (x, np.arange(300) % 3 + np.zeros_like(x)), 1)
    np.add.at(wanted, (x, np.zeros_like(x)), 2)
    assert np.array_equal(found, wanted) and held.sum() == wanted.sum()


@nb.kernel
def several(x, first, second, total, last):
    i = nb.tid()
    for k in range(x[i] % 5):
        nb.atomic_add(first, k, 1)
        nb.atomic_add(second, (k, x[i] % 2), x[i])
        nb.atomic_add(total, 0, 1)
    nb.atomic_max(last, x[i] % 3, i)


@pytest.mark.parametrize("simd", [False, None, True])
def test_several_arrays_beside_totals_and_other_operations(simd):
    kernel = nb.kernel(several.source.function, simd=simd)
    x = random.integers(0, 50, N)
    arguments = [np.zeros(5, np.int32), np.zeros((5, 2), np.int64), np.zeros(1, np.int64), np.zeros(3, np.int64)]
    nb.launch(kernel, N, [x, *arguments])
    wanted = [np.zeros_like(a) for a in arguments]
    for k in range(5):
        there = x[x % 5 > k]
        wanted[0][k] += len(there)
        np.add.at(wanted[1][k], there % 2, there)
        wanted[2] += len(there)
    np.maximum.at(wanted[3], x % 3, np.arange(N))
    for got, right in zip(arguments, wanted, strict=True):
        assert np.array_equal(got, right)


def in_order(x, found):
    i = nb.tid()
    x[i] = nb.atomic_add(found, 0 * i, 1)


def read_too(x, found):
    i = nb.tid()
    nb.atomic_add(found, i % 3, 1)
    if found[i % 3] > 0:
        x[i] = 1


def lowered_too(x, found):
    i = nb.tid()
    nb.atomic_add(found, i % 3, 1)
    nb.atomic_min(found, i % 3, 10**9)


@pytest.mark.parametrize("function", [in_order, read_too, lowered_too])
def test_what_somebody_may_see_is_added_at_once(function):
    kernel = nb.kernel(function)
    x, found = np.zeros(N, np.int64), np.zeros(3, np.int64)
    assert not has_copies(kernel, x.copy(), found.copy())
    nb.launch(kernel, N, [x, found])
    assert found.sum() == N


def test_launches_of_several_threads_add_to_one_array():
    x, w, found = random.integers(0, 64, N), np.ones(N, np.int32), np.zeros(64, np.int64)
    run = histogram.forall(N)
    run(x, w, found)
    threads = [threading.Thread(target=lambda: [run(x, w, found) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(found, 41 * np.bincount(x, minlength=64))


def test_nothing_is_lost_or_invented():
    x = np.zeros(N, np.int64)
    w, found = np.full(N, np.inf, np.float32), np.array([1, np.nan, -0.0], np.float32)
    nb.launch(histogram, N, [x, w, found])
    assert found[0] == np.inf and np.isnan(found[1]) and np.signbit(found[2])
    w[:] = 0
    w[-1] = np.nan
    nb.launch(histogram, N, [x, w, found])
    assert np.isnan(found[0])
    nb.launch(histogram, 0, [x, w, np.zeros(0, np.float32)])


@nb.kernel
def dense(x: nb.array2d[float], w: nb.array2d[float], y: nb.array2d[float]):
    i = nb.tid()
    for k in range(w.shape[0]):
        total = 0.0
        for j in range(w.shape[1]):
            total += w[k, j] * x[i, j]
        y[i, k] = total


@nb.kernel
def embedded(table: nb.array[float], which: nb.array[nb.int32], scale: float, y: nb.array[float]):
    i = nb.tid()
    y[i] = scale * table[which[i]] * table[which[i]]


def test_gradients_of_what_all_threads_read():
    x, w = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((3000, 8), (5, 8)))
    y, by_y = np.zeros((3000, 5), np.float32), random.integers(-3, 4, (3000, 5)).astype(np.float32)
    by_x, by_w = np.zeros_like(x), np.ones_like(w)
    nb.launch(dense, 3000, [x, w], [y], adj_inputs=[by_x, by_w], adj_outputs=[by_y], adjoint=True)
    assert np.array_equal(by_w, 1 + by_y.T @ x) and np.array_equal(by_x, by_y @ w)
    table, which = random.integers(-3, 4, 50).astype(np.float32), random.integers(0, 50, N).astype(np.int32)
    y, by_y = np.zeros(N, np.float32), random.integers(-1, 2, N).astype(np.float32)
    by_table, by_scale = np.zeros_like(table), np.zeros((), np.float32)
    adjoints = {"adj_inputs": [by_table, None, by_scale], "adj_outputs": [by_y], "adjoint": True}
    nb.launch(embedded, N, [table, which, 2.0], [y], **adjoints)
    assert np.array_equal(by_table, np.bincount(which, 4 * by_y * table[which], 50).astype(np.float32))
    np.testing.assert_allclose(by_scale, (by_y * table[which] ** 2).sum(), rtol=1e-6)


@nb.kernel
def gathered(x: nb.array[nb.vec3], i: nb.array[nb.int32], y: nb.array[float]):
    k = nb.tid()
    y[k] = nb.dot(x[i[k]], x[i[k]])


def test_gradients_of_vectors_that_all_threads_read():
    x, which = random.integers(-3, 4, (50, 3)).astype(np.float32), random.integers(0, 50, N).astype(np.int32)
    y, by_y, by_x = np.zeros(N, np.float32), random.integers(-1, 2, N).astype(np.float32), np.zeros((50, 3), np.float32)
    adjoints = {"adj_inputs": [by_x, None], "adj_outputs": [by_y], "adjoint": True}
    nb.launch(gathered, N, [x, which], [y], **adjoints)
    assert np.array_equal(by_x, 2 * x * np.bincount(which, by_y, 50)[:, None])


@nb.kernel
def deposit(x: nb.array[nb.vec3], cell: nb.array2d[nb.int32], mass: nb.array[float], momentum: nb.array[nb.vec3]):
    i = nb.tid()
    nb.atomic_add(mass, cell[i, 0], 2.0)
    nb.atomic_sub(momentum, cell[i, 0], x[i])
    nb.atomic_add(momentum, cell[i, 1], x[i])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cells", [1, 2, 501])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_vectors_go_to_copies(cells, offset, dtype):
    # From memory that begins with half a pair on, which numbers are exchanged in, or where nothing lies side by side.
    kernel = deposit
    if dtype == np.float64:
        kernel = deposit_in_64_bits
    x, cell = random.integers(-9, 10, (N, 3)).astype(dtype), random.integers(0, cells, (N, 2)).astype(np.int32)
    held = np.full(3 * cells + 3, 7, dtype)
    momentum, mass = held[offset : offset + 3 * cells].reshape(-1, 3), np.zeros(cells + offset, dtype)[offset:]
    assert has_copies(kernel, x, cell, mass, momentum)
    nb.launch(kernel, N, [x, cell, mass, momentum])
    wanted = np.full((cells, 3), 7)
    np.subtract.at(wanted, cell[:, 0], x.astype(np.int64))
    np.add.at(wanted, cell[:, 1], x.astype(np.int64))
    assert np.array_equal(momentum, wanted) and np.array_equal(mass, 2 * np.bincount(cell[:, 0], minlength=cells))
    assert (held[:offset] == 7).all() and (held[offset + 3 * cells :] == 7).all()
    spread = np.zeros((cells, 2, 3), dtype)[:, 0]
    nb.launch(kernel, N, [x, cell, mass, spread])
    assert np.array_equal(spread, wanted - 7)


@nb.kernel
def deposit_in_64_bits(
    x: nb.array[nb.vec3d], cell: nb.array2d[nb.int32], mass: nb.array[nb.float64], momentum: nb.array[nb.vec3d]
):
    i = nb.tid()
    nb.atomic_add(mass, cell[i, 0], 2.0)
    nb.atomic_sub(momentum, cell[i, 0], x[i])
    nb.atomic_add(momentum, cell[i, 1], x[i])


def test_vectors_of_several_threads_go_to_one_array():
    x, cell = np.ones((N, 3), np.float32), np.zeros((N, 2), np.int32)
    cell[:, 1] = np.arange(N) % 8
    mass, momentum = np.zeros(8, np.float32), np.zeros((8, 3), np.float32)
    threads = [threading.Thread(target=nb.launch, args=(deposit, 8000, [x, cell, mass, momentum])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert momentum.tolist() == [[-140000] * 3] + [[20000] * 3] * 7 and mass[0] == 2 * 20 * 8000


def test_the_neighbour_of_what_is_added_to_stays():
    x, w = np.zeros(N, np.int64), np.ones(N, np.float32)
    found = np.full(8, -0.0, np.float32)
    nb.launch(histogram, N, [x, w, found])
    assert found[0] == N and np.signbit(found[1:]).all()


def test_what_each_thread_adds_is_counted():
    parameters = [ArrayType(name, scalar_of(np.float32), 1, True, True) for name in ("x", "a")]
    parameters.append(ArrayType("b", scalar_of(np.float32), 1, True, True, nb.vec3))
    body = (
        "@_nb_device\ndef body(_nb_i0, x, a, b):\n    _nb_atomic_add(a, 0, x[0])\n    _nb_atomic_sub(b, _nb_i0, x[0])\n"
        "    if x[0] > 0:\n        _nb_atomic_add(a, _nb_i0, 1.0)\n    else:\n        _nb_atomic_add(b, _nb_i0, 1.0)\n"
    )
    text, arrays = with_either(body, "body", parameters)
    assert arrays == ("a", "b") and "_nb_sub_either(_nb_private, b, _nb_i0, x[0])" in text
    assert additions_of(text, "body", parameters, arrays) == 1 + 3 + 3
    assert additions_of(text, "body", parameters, ["a"]) == 1 + 1
    add = "_nb_add_either(_nb_private, _nb_components(b), (_nb_i0, 0), 1.0)"
    for depth, trips in ((0, 1), (1, 16), (2, 16), (3, 64), (4, 64)):
        nest = [f"{'    ' * (k + 1)}for _ in range(int(x[0])):" for k in range(depth)]
        body = "\n".join(["@_nb_device", "def body(_nb_i0, x, a, b):", *nest, f"{'    ' * (depth + 1)}{add}"])
        assert additions_of(body, "body", parameters, ["b"]) == trips


def test_trips_that_a_range_tells_are_counted():
    parameters = [
        ArrayType("x", scalar_of(np.float32), 2, True, True),
        ArrayType("a", scalar_of(np.float32), 1, True, True),
    ]
    parameters += [ScalarType("n", scalar_of(np.int32)), ScalarType("u", scalar_of(np.uint32))]

    def counted(*lines):
        text = "\n    ".join(["def body(_nb_i0, x, a, n, u):", *lines])
        text = f"@_nb_device\n{text}"
        return additions_of(text, "body", parameters, ["a"])

    add = "_nb_add_either(_nb_private, a, _nb_i0, 1.0)"
    extent = "_nb_min(_nb_max(x.shape[1], 0), 1024)"
    assert counted("for k in range(3):", f"    {add}") == 3
    assert counted("for k in range(1, 5):", "    for j in range(int(x[0, 0])):", f"        {add}") == 4 * 16
    assert counted("for k in range(10**6):", f"    {add}") == 16  # no constant, but a guess
    assert counted("for k in range(1000000):", f"    {add}") == 1024
    assert counted("for k in range(x.shape[1]):", f"    {add}", f"    {add}", add) == f"{extent} * (2) + 1"
    assert counted("m = x.shape[1]", "for k in range(m):", f"    {add}") == extent
    assert counted("for k in range(1, n - 2):", f"    {add}") == "_nb_min(_nb_max((n - 2) - 1, 0), 1024)"
    assert counted("if n > 0:", f"    {add}", "else:", "    for k in range(n):", f"        {add}") == (
        "_nb_max(1, _nb_min(_nb_max(n, 0), 1024))"
    )
    for unknown in ("range(u)", "range(x.shape[0] // 2)", "range(0, n, 2)", "range(m)", "range(j)"):
        lines = ("m = x.shape[1]", "m = m + 1", "j = int(x[0, 0])", f"for k in {unknown}:", f"    {add}")
        assert counted(*lines) == 16, unknown
    assert counted("for k in range(n):", "    x[0, 0] = 1.0") == 0
    # As adjoints go back, and behind a guard
    assert counted("t = max(n, 0)", "for k in range(t - 1, -1, -1):", f"    {add}") == (
        "_nb_min(_nb_max((_nb_max(n, 0) - 1) - (-1), 0), 1024)"
    )
    assert (
        counted("if _nb_i0 < n:", "    m = x.shape[1]", "    for k in range(m):", f"        {add}")
        == f"_nb_max({extent}, 0)"
    )
    assert counted("for k in range(n, 0, -2):", f"    {add}") == 16


@pytest.mark.parametrize(
    ("lines", "is_even"),
    [
        (("for k in range(n):", "    for j in range(x.shape[1]):", "        a[k] = 1.0"), True),
        (("t = max(n, 0)", "for k in range(t - 1, -1, -1):", "    if x[0, 0] > 0:", "        a[k] = 1.0"), True),
        (("if _nb_i0 < n:", "    for k in range(n):", "        a[k] = 1.0"), True),
        (("a[0] = 1.0",), True),
        (("for k in range(_nb_i0):", "    a[k] = 1.0"), False),
        (("for k in range(n):", "    while a[k] > 0:", "        a[k] -= 1.0"), False),
        (("if n > 0:", "    a[0] = 1.0", "else:", "    for k in range(_nb_i0):", "        a[k] = 1.0"), False),
    ],
)
def test_threads_that_make_the_same_trips_are_told(lines, is_even):
    parameters = [ArrayType(name, scalar_of(np.float32), rank, True, True) for name, rank in (("x", 2), ("a", 1))]
    parameters.append(ScalarType("n", scalar_of(np.int32)))
    text = "\n    ".join(["@_nb_device\ndef body(_nb_i0, x, a, n):", *lines])
    assert has_even_trips(text, "body", parameters) == is_even
    loops = "@_nb_device\ndef other(n):\n    for k in range(n):\n        pass\n\n\n"
    assert has_even_trips(loops + text, "body", parameters) == is_even
    assert not has_even_trips(f"{loops}{text}\n    other(n)", "body", parameters)


@nb.kernel
def guarded_product(a, b, c):
    i, j = nb.tid()
    if i < c.shape[0] and j < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        c[i, j] = total


@nb.kernel
def triangle(a, y):
    i = nb.tid()
    total = 0.0
    for k in range(i):
        total += a[k] * a[i]
    y[i] = total


@pytest.mark.parametrize(("kernel", "pieces"), [(guarded_product, 1), (triangle, 3)])
def test_workers_take_few_pieces_where_they_add_to_copies(kernel, pieces):
    shape = (40, 40) if kernel is guarded_product else (40,)
    arrays = [np.random.default_rng(k).random(shape, np.float32) for k in range(len(kernel.parameters))]
    derived = kernel.adjoint([p.name for p in kernel.parameters])
    adjoints = [np.zeros_like(array) for array in arrays[:-1]] + [np.ones_like(arrays[-1])]
    assert derived.explain(*arrays, *adjoints).variant.pieces == pieces
    assert kernel.explain(*arrays).variant.pieces == 8
    nb.launch(derived, shape, [*arrays, *adjoints])
    if kernel is guarded_product:
        ones = np.ones(shape)
        wanted = ones @ arrays[1].T, arrays[0].T @ ones
    else:
        sums = np.cumsum(arrays[0]) - arrays[0]
        wanted = (sums + arrays[0][::-1].cumsum()[::-1] - arrays[0],)
    for found, right in zip(adjoints, wanted, strict=False):
        np.testing.assert_allclose(found, right, rtol=1e-4)


@nb.kernel
def add_rows(places, x: nb.array2d[float], n: int, found: nb.array2d[float]):
    i = nb.tid()
    for k in range(x.shape[1]):
        nb.atomic_add(found, places[i], k, x[i, k])
    for k in range(n):
        nb.atomic_add(found, places[i], k, x[i, k])


_memory, _free = NAMES["_nb_memory"], NAMES["_nb_free"]


@njit
def has_memory(room, extent, additions):
    memory = _memory(room, extent, additions)
    _free(memory)
    return memory != 0


MIB = 1 << 20


def test_how_much_memory_copies_may_take():
    start_threads()
    workers = config.NUMBA_NUM_THREADS
    assert has_memory(8 * MIB, 2 * MIB, 4 * MIB) and not has_memory(8 * MIB, 2 * MIB, 4 * MIB - 1)
    # All workers together have so much, but each has small ones.
    each = max(256 // workers, 8) * MIB
    assert has_memory(each, each // 4, each) and not has_memory(each + 64, each // 4, each)
    assert not has_memory(0, 0, 1)


def test_rows_that_are_added_in_a_loop():
    rows = (1 << 14) * config.NUMBA_NUM_THREADS
    places, x, found = (
        np.zeros(rows, np.int64),
        np.zeros((rows, 64), np.float32),
        np.full((1 << 9, 64), -0.0, np.float32),
    )
    nb.launch(add_rows, rows, [places, x, 0, found])
    # Copies that hold nothing leave negative zeros alone; atomic additions of zero would make them positive.
    assert np.signbit(found).all()
    x[:], found[:] = 1, 0
    places[:] = np.arange(rows) % 5
    nb.launch(add_rows, rows, [places, x, 3, found])
    assert found[:5, 0].sum() == 2 * rows and found[:5, 3].sum() == rows and found[:5].sum() == 67 * rows


def test_it_is_the_same_on_one_thread_and_on_several():
    program = (
        "import numpy as np, numbridge as nb, test_added_copies as t\n"
        "r = np.random.default_rng(0)\n"
        "x, w, f = r.integers(0, 99, 300_000), r.integers(0, 9, 300_000), np.zeros(99, np.int64)\n"
        "nb.launch(t.histogram, 300_000, [x, w, f])\n"
        "assert np.array_equal(f, np.bincount(x, w, 99).astype(np.int64))\n"
    )
    paths = [os.path.dirname(__file__), *sys.path]
    for threads in ("1", "2", "5"):
        environment = os.environ | {"NUMBA_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(paths)}
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)


BODY = """@_nb_device
def helper(a):
    _nb_add(a, 0, 1.0)

@_nb_device
def adjoint(_nb_i0, x, a, b):
    _nb_add(a, _nb_i0 % 3, x[_nb_i0]){}
"""


def test_what_a_derivative_only_adds_to():
    parameters = [ArrayType(name, scalar_of(np.float32), 1, True, True) for name in ("x", "a", "b")]
    assert only_added(BODY.format(""), "adjoint", parameters) == ("a",)
    assert only_added(BODY.format("\n    _nb_add(b, 0, 1.0)"), "adjoint", parameters) == ("a", "b")
    assert only_added(BODY.format("\n    _nb_add(_nb_components(b), 0, 1.0)"), "adjoint", parameters) == ("a", "b")
    for more in ("\n    b[0] = a[0]", "\n    _nb_add(b.x, 0, 1.0)", "\n    a = b", "\n    a[1] = 2.0"):
        assert only_added(BODY.format(more), "adjoint", parameters) == ()
    assert only_added(BODY.format(""), "nothing", parameters) == ()
    with_others = with_either(BODY.replace("_nb_add(", "_nb_atomic_add(").format(""), "adjoint", parameters, ["b"])
    assert with_others[1] == ()
