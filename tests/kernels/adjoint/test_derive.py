"""Adjoints and tangents through the real launch: compiled, cached, threaded, checked."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from numba import cuda

from adjoint_as_python import check, float_arrays, run_adjoint, run_tangent
from adjoint_cases import CASES, long_one, matmul, name_of, norm, prefix_products, saxpy, squares
from numbridge.kernels.annotations import array1d
from numbridge.kernels.errors import (
    BufferAccessError,
    KernelError,
    KernelUnsupportedError,
    NumbridgeTypeError,
    NumbridgeValueError,
)
from numbridge.kernels.geometry import Geometry
from numbridge.kernels.kernel import func, kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_compiled_adjoint(case):
    declared, dim, *values = case
    names = [p.name for p in declared.parameters]
    random = np.random.default_rng(1)
    wanted = {names[k]: random.normal(size=values[k].shape) for k in float_arrays(values)}
    given = {name: value.copy() for name, value in wanted.items()}
    made = run_adjoint(declared, (dim,) if isinstance(dim, int) else dim, values, wanted)
    given.update({name: np.zeros(()) for name in made.scalars})
    before = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    declared.adjoint(list(given)).forall(dim)(*values, *given.values())
    for name, value in wanted.items():
        assert np.allclose(given[name], value, rtol=1e-10, atol=1e-12), name
    assert all(np.array_equal(a, b) for a, b in zip(values, before, strict=True))


@pytest.mark.parametrize("case", [CASES[0], CASES[13], CASES[29]], ids=name_of)
def test_compiled_tangent(case):
    declared, dim, *values = case
    names = [p.name for p in declared.parameters]
    random = np.random.default_rng(2)
    tangents = {}
    for name, value in zip(names, values, strict=True):
        if np.asarray(value).dtype.kind == "f":
            tangents[name] = random.normal(size=np.shape(value)) if np.ndim(value) else 0.7
    expected = run_tangent(declared, (dim,) if isinstance(dim, int) else dim, values, tangents)
    copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    given = [np.array(t) if np.ndim(t) else t for t in tangents.values()]
    declared.tangent(list(tangents)).forall(dim)(*copies, *given)
    for name, got in zip(tangents, given, strict=True):
        assert np.allclose(got, expected[name], rtol=1e-12)


@kernel
def rosenbrock(x, loss):
    i = tid()
    a, b = x[2 * i], x[2 * i + 1]
    loss[i] = (1.0 - a) ** 2 + 100.0 * (b - a * a) ** 2


def test_compiled_hessian_vector_product():
    x, v, loss = np.array([0.3, -0.7]), np.array([1.1, 0.4]), np.zeros(1)
    second = rosenbrock.tangent(["x", "loss"]).adjoint(["x", "_nb_tan_x", "_nb_tan_loss"])
    by_x, by_v = np.zeros(2), np.zeros(2)
    second.forall(1)(x, loss, v, np.zeros(1), by_x, by_v, np.ones(1))
    a, b = x
    hessian = np.array([[2 - 400 * (b - 3 * a * a), -400 * a], [-400 * a, 200.0]])
    assert np.allclose(by_x, hessian @ v)
    assert np.allclose(by_v, [-2 * (1 - a) - 400 * a * (b - a * a), 200 * (b - a * a)])


def test_a_vector_may_be_its_own_tangent():
    x, after = np.array([0.3, 0.7]), np.zeros(2)
    squared.tangent(["x", "y"]).forall(2)(x, np.zeros(2), x, after)
    assert np.allclose(after, 2 * x * x)
    with pytest.raises(BufferAccessError, match="'_nb_tan_y' shares memory with the argument 'x'"):
        squared.tangent(["x", "y"]).forall(2)(x, np.zeros(2), x * 2, x)


@kernel
def squared(x, y):
    i = tid()
    y[i] = x[i] * x[i]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adjoint_of_many_threads(dtype):
    n = 100_000
    x, y = np.linspace(0, 1, n, dtype=dtype), np.ones(n, dtype)
    by_x, by_y, by_a = np.zeros(n, dtype), np.full(n, 3, dtype), np.zeros((), dtype)
    launch(saxpy, n, [x, y, 2.0], adj_inputs=[by_x, by_y, by_a], adjoint=True)
    assert (by_x == 6).all() and (by_y == 3).all()
    assert math.isclose(float(by_a), 1.5 * n, rel_tol=1e-6)


@kernel
def gathers(x, index, y):
    i = tid()
    y[i] = x[index[i]] * 2.0


def test_threads_that_meet_add_atomically():
    n = 300_000
    index = np.zeros(n, np.int64)
    by_x = np.zeros(4)
    launch(gathers, n, [np.ones(4), index, np.zeros(n)], adj_inputs=[by_x, None, np.ones(n)], adjoint=True)
    assert by_x.tolist() == [2 * n, 0, 0, 0]


@kernel
def shifted(a, b, y):
    i = tid()
    y[i] = a[i] * 2.0 + b[i] * 3.0


def test_overlapping_adjoints_of_read_arrays_are_added_up():
    n = 300_000
    whole = np.zeros(n + 1)
    x = np.ones(n + 1)
    adjoints = [whole[:-1], whole[1:], np.ones(n)]
    launch(shifted, n, [x[:-1], x[1:], np.zeros(n)], adj_inputs=adjoints, adjoint=True)
    assert whole[0] == 2 and whole[-1] == 3 and (whole[1:-1] == 5).all()
    both = np.zeros(n)
    launch(shifted, n, [x[:-1], x[:-1], np.zeros(n)], adj_inputs=[both, both, np.ones(n)], adjoint=True)
    assert (both == 5).all()


def test_strided_arguments():
    x, y = np.arange(12.0).reshape(6, 2)[:, 1], np.ones(6)
    by_x, by_y = np.zeros((6, 2))[::-1, 0], np.ones(6)
    launch(saxpy, 6, [x, y, 3.0], adj_inputs=[by_x, by_y, None], adjoint=True)
    assert (by_x == 3).all()


def test_two_dimensions():
    a, b = np.random.default_rng(0).normal(size=(2, 300, 20))
    c = np.zeros((300, 300))
    weight = np.random.default_rng(1).normal(size=c.shape)
    by_a, by_b, by_c = np.zeros_like(a), np.zeros_like(b.T), weight.copy()
    launch(matmul, c.shape, [a, b.T], [c], adj_inputs=[by_a, by_b], adj_outputs=[by_c], adjoint=True)
    assert np.allclose(by_a, weight @ b) and np.allclose(by_b, a.T @ weight) and (by_c == weight).all()


@kernel
def products(x, y, n):
    i = tid()
    s = x[i]
    for _k in range(n):
        s = s + 0.0001 * math.sin(s)
    y[i] = s


def test_a_hundred_thousand_trips():
    x, trips = np.array([0.3, 0.4]), 100_000
    by_x = np.zeros(2)
    launch(products, 2, [x, np.zeros(2), trips], adj_inputs=[by_x, np.ones(2), None], adjoint=True)
    s, derivative = x.copy(), np.ones(2)
    for _ in range(trips):
        derivative *= 1 + 0.0001 * np.cos(s)
        s += 0.0001 * np.sin(s)
    assert np.allclose(by_x, derivative)


def test_in_place_arrays_end_as_they_were():
    n = 2000
    x, y = np.full(n, 1.0001), np.linspace(1, 2, n)
    before = y.copy()
    by_x, by_y = np.zeros(n), np.zeros(n)
    by_y[-1] = 1
    launch(prefix_products, 1, [x, y], adj_inputs=[by_x, by_y], adjoint=True)
    assert (y == before).all()
    assert math.isclose(by_y[0], 1.0001 ** (n - 1), rel_tol=1e-9)


# Refusals


def refused(error, match, *arguments, **named):
    with pytest.raises(error, match=match):
        launch(*arguments, **named, adjoint=True)


def test_wrong_adjoints_are_refused():
    x, y = np.ones(4), np.ones(4)
    refused(NumbridgeValueError, r"parameter 'x'.*wanted shape \(4,\), got shape \(5,\)", saxpy, 4, [x, y, 2.0],
            adj_inputs=[np.zeros(5), y * 0, None])  # fmt: skip
    refused(NumbridgeTypeError, "wanted elements of float64, got float32", saxpy, 4, [x, y, 2.0],
            adj_inputs=[np.zeros(4, np.float32), y * 0, None])  # fmt: skip
    refused(NumbridgeValueError, "a scalar: wanted a 0-d array", saxpy, 4, [x, y, 2.0],
            adj_inputs=[None, y * 0, np.zeros(1)])  # fmt: skip
    refused(NumbridgeValueError, "adj_inputs has 1 entries for 3 arguments", saxpy, 4, [x, y, 2.0], adj_inputs=[x])
    refused(NumbridgeValueError, "was launched without an adjoint", saxpy, 4, [x, y, 2.0])
    refused(NumbridgeValueError, r"without an adjoint of what it writes \(y\), so every gradient would be zero", saxpy, 4,
            [x, y, 2.0], adj_inputs=[x * 0, None, None])  # fmt: skip
    refused(NumbridgeTypeError, "'index' is int64, which has no gradient", gathers, 4, [x, np.arange(4), y],
            adj_inputs=[x * 0, np.zeros(4, np.int64), y * 0])  # fmt: skip
    with pytest.raises(NumbridgeValueError, match="go with adjoint=True"):
        launch(saxpy, 4, [x, y, 2.0], adj_inputs=[x, y, None])


def test_read_only_adjoints_are_refused():
    x, y, locked = np.ones(4), np.ones(4), np.zeros(4)
    locked.flags.writeable = False
    refused(BufferAccessError, "read-only", saxpy, 4, [x, y, 2.0], adj_inputs=[locked, y * 0, None])


def test_shared_memory_is_refused_where_it_matters():
    y = np.ones(5)
    refused(BufferAccessError, "'x' and 'y' share memory, and the kernel writes", saxpy, 4, [y[1:], y[:-1], 2.0],
            adj_inputs=[np.zeros(4), np.zeros(4), None])  # fmt: skip
    refused(BufferAccessError, "'_nb_adj_x' shares memory with the argument 'x'", saxpy, 4, [y[1:], np.ones(4), 2.0],
            adj_inputs=[y[1:], np.zeros(4), None])  # fmt: skip
    both = np.zeros(4)
    refused(BufferAccessError, "share memory, and the kernel writes one", saxpy, 4, [y[1:], np.ones(4), 2.0],
            adj_inputs=[both, both, None])  # fmt: skip
    interleaved = np.ones(8)
    launch(saxpy, 4, [interleaved[::2], interleaved[1::2], 2.0], adj_inputs=[both, np.ones(4), None], adjoint=True)
    assert (both == 2).all()


def test_adjoints_whose_indices_meet_are_refused():
    y, block = np.ones(6), np.zeros(8)
    meeting = np.lib.stride_tricks.as_strided(block, (6,), (4,))
    refused(BufferAccessError, "several indices name one element", saxpy, 6, [y, np.ones(6), 2.0],
            adj_inputs=[meeting, np.ones(6), None])  # fmt: skip
    for view in (np.zeros((6, 2))[:, 1], np.zeros(12)[::-2]):
        launch(saxpy, 6, [y.copy(), np.ones(6), 2.0], adj_inputs=[view, np.ones(6), None], adjoint=True)


def test_arguments_whose_indices_meet_are_refused_where_they_are_written():
    @kernel
    def scaled(x, y):
        i, j = tid()
        y[i, j] = 2.0 * x[i, j]

    meeting, there = np.lib.stride_tricks.as_strided(np.ones(8), (3, 2), (8, 8)), np.ones((3, 2))
    refused(BufferAccessError, "'y' has strides .*, so several indices name one element, and the kernel writes", scaled, (3, 2),
            [there, meeting], adj_inputs=[np.zeros((3, 2)), np.ones((3, 2))])  # fmt: skip
    launch(scaled, (3, 2), [meeting, there], adj_inputs=[np.zeros((3, 2)), np.ones((3, 2))], adjoint=True)


def test_switched_off():
    @kernel(enable_backward=False)
    def off(x):
        x[tid()] = 1.0

    refused(KernelError, "declared with enable_backward=False", off, 2, [np.ones(2)], adj_inputs=[np.ones(2)])


def test_adjoint_source():
    @kernel
    def annotated(x: array1d[np.float64], y: array1d[np.float64], a: float):
        i = tid()
        y[i] = a * x[i] * x[i]

    text = annotated.adjoint_source
    assert "def annotated_adjoint(_nb_i0, x, y, a, _nb_adj_x, _nb_adj_y):" in text and "return (_nb_adj_a,)" in text
    assert annotated.adjoint_source == text

    @kernel
    def free(x):
        x[tid()] *= 2.0

    with pytest.raises(KernelError, match="depends on the type of 'x'; annotate it"):
        free.adjoint_source  # noqa: B018 - reading it raises
    launch(free, 2, [np.ones(2, np.float32)])
    assert "float32" in free.adjoint_source


SCALE = 2.0


@kernel
def scaled(x, y):
    i = tid()
    y[i] = SCALE * x[i]


def test_globals_may_be_rebound(monkeypatch):
    for factor in (2.0, 5.0):
        monkeypatch.setattr(sys.modules[__name__], "SCALE", factor) if __name__ in sys.modules else None
        monkeypatch.setitem(scaled.function.__globals__, "SCALE", factor)
        by_x = np.zeros(3)
        launch(scaled, 3, [np.ones(3), np.ones(3)], adj_inputs=[by_x, np.ones(3)], adjoint=True)
        assert (by_x == factor).all()


WEIGHTS = np.array([1.0, 2.0, 3.0])


@kernel
def weighted(x, y):
    i = tid()
    y[i] = WEIGHTS[i] * x[i]


NUMBER = np.float32


@func
def half(a):
    return 0.5 * a


@kernel
def through_memory(x, y):
    i = tid()
    kept = cuda.local.array(2, NUMBER)
    kept[1] = half(x[i])
    y[i] = kept[1] * kept[1]


def test_a_dtype_that_literals_have_given_a_name_already_is_that_of_memory():
    # The literal of the function is written as a call of float32, and so is `NUMBER` then.
    x, y, by_x, by_y = (np.float32(values) for values in ([3, 4], [0, 0], [0, 0], [1, 2]))
    through_memory.adjoint(["x", "y"]).forall(2)(x, y, by_x, by_y)
    assert by_x.tolist() == [1.5, 4.0]


def test_elements_of_global_arrays_are_the_same_in_every_variant_and_derivative_of_a_kernel():
    x, y = np.ones(3), np.zeros(3)
    launch(weighted, 3, [x, y])
    WEIGHTS[0] = 100.0
    by_x, single = np.zeros(3), np.zeros(3, np.float32)
    launch(weighted, 3, [x, y], adj_inputs=[by_x, np.ones(3)], adjoint=True)
    launch(weighted, 3, [x.astype(np.float32), single])
    launch(weighted, 3, [x, y])
    assert by_x.tolist() == single.tolist() == y.tolist() == [100.0, 2.0, 3.0]


class Detector:
    BORDERS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    TABLES = (np.array([1.0, 2.0, 4.0]), 0.5, np.array([3.0, 5.0]))
    SIZES = (np.int64(2), np.int64(3))


@kernel
def within_borders(x, y):
    i = tid()
    total = 0.0
    for j in range(i + 1):
        if x[i] * j > 1.5:
            continue
        total += x[i] * Detector.BORDERS[j, 1] * Detector.BORDERS[i][0]
    y[i] = total


@kernel
def from_tables(x, y):
    i = tid()
    first, scale, last = Detector.TABLES
    y[i] = x[i] * first[i] * scale + x[i] * Detector.TABLES[2][i % len(last)] * Detector.TABLES[1]


@kernel
def as_far_as(x, y):
    i = tid()
    total = 0.0
    for j in range(5):
        if x[i] * j > 2.5:
            continue
        if j < Detector.SIZES[0] or j == Detector.SIZES[i % 2]:
            total += x[i] * j
    y[i] = total


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        (within_borders, [2.0 * 1.0, (2.0 + 4.0) * 3.0, (2.0 + 4.0) * 5.0]),
        (from_tables, [0.5 * (1.0 + 3.0), 0.5 * (2.0 + 5.0), 0.5 * (4.0 + 3.0)]),
        (as_far_as, [1.0 + 2.0, 1.0 + 0.0, 1.0 + 2.0]),
    ],
    ids=["array", "arrays and numbers in a tuple", "tuple of NumPy's numbers"],
)
def test_what_is_held_by_a_module_or_class_around_the_kernel(declared, wanted):
    x, y, by_x = np.array([0.5, 1.0, 1.25]), np.zeros(3), np.zeros(3)
    launch(declared, 3, [x, y], adj_inputs=[by_x, np.ones(3)], adjoint=True)
    np.testing.assert_allclose(by_x, wanted)
    launch(declared, 3, [x, y])
    np.testing.assert_allclose(y, x * wanted)


def test_a_cached_adjoint_is_not_generated_again(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import sys
        import numpy as np
        import numbridge as nb

        @nb.kernel
        def cubes(x, y):
            i = nb.tid()
            y[i] = x[i] ** 3

        by_x = np.zeros(4)
        nb.launch(cubes, 4, [np.ones(4), np.ones(4)], adj_inputs=[by_x, np.ones(4)], adjoint=True)
        print(by_x.tolist(), "numbridge.kernels.adjoint.reverse" in sys.modules)
        """)
    )
    said = [
        subprocess.run([sys.executable, program], check=True, capture_output=True, text=True).stdout.strip()
        for _ in range(2)
    ]
    assert said[0].startswith("[3.0, 3.0, 3.0, 3.0]") and said[1] == "[3.0, 3.0, 3.0, 3.0] False"


def test_loss_by_atomic_addition_only_reads_its_adjoint():
    n = 100_000
    x, loss = np.linspace(0, 1, n), np.zeros(1)
    by_x, by_loss = np.zeros(n), np.ones(1)
    by_loss.flags.writeable = False
    launch(norm, n, [x], [loss], adj_inputs=[by_x], adj_outputs=[by_loss], adjoint=True)
    assert np.allclose(by_x, 2 * x)


def test_squares_where_there_are_no_threads():
    by_y = np.ones(0)
    launch(squares, 0, [np.ones(0)], adj_inputs=[by_y], adjoint=True)
    assert by_y.shape == (0,)


@kernel
def ring(x, y):
    i = tid()
    if i < y.shape[0]:
        y[i] = x[i - 1] * 2.0 + x[i] * 3.0 + x[i - 2] * 5.0


@pytest.mark.parametrize("extra", [-7, 0, 5])
def test_neighbours_across_the_shares_of_threads(extra):
    """Negative indices wrap, and the array may end before the threads do."""
    n = 200_000
    x, y = np.ones(n + extra), np.zeros(min(n, n + extra))
    weight = np.random.default_rng(0).normal(size=y.shape)
    by_x, expected = np.zeros(n + extra), np.zeros(n + extra)
    for shift, factor in ((1, 2.0), (0, 3.0), (2, 5.0)):
        np.add.at(expected, np.arange(len(y)) - shift, factor * weight)
    launch(ring, n, [x, y], adj_inputs=[by_x, weight.copy()], adjoint=True)
    assert np.allclose(by_x, expected)


@kernel
def five_points(a, out):
    i, j = tid()
    if i > 0 and j > 0 and i < a.shape[0] - 1 and j < a.shape[1] - 1:
        out[i, j] = a[i, j] + a[i - 1, j] * 2.0 + a[i + 1, j] * 3.0 + a[i, j - 1] * 4.0 + a[i, j + 1] * 5.0


@pytest.mark.parametrize("shape", [(700, 300), (3, 70_000), (70_000, 3)])
def test_stencils(shape):
    weight = np.random.default_rng(0).normal(size=shape)
    inner = np.zeros(shape)
    inner[1:-1, 1:-1] = weight[1:-1, 1:-1]
    expected = inner + sum(
        factor * np.roll(inner, shift, axis) for factor, shift, axis in ((2, -1, 0), (3, 1, 0), (4, -1, 1), (5, 1, 1))
    )
    by_a, by_out = np.zeros(shape), weight.copy()
    five_points.adjoint(["a", "out"]).forall(shape)(np.ones(shape), np.zeros(shape), by_a, by_out)
    assert np.allclose(by_a, expected)
    assert np.array_equal(by_out, weight - inner)


@kernel
def row_sums(a, out):
    i = tid()
    s = 0.0
    for k in range(a.shape[1]):
        s += a[i, k] * a[0, k]
    out[i] = s


def test_rows_that_all_threads_read():
    a, out = np.random.default_rng(0).normal(size=(5000, 3)), np.zeros(5000)
    by_a, weight = np.zeros_like(a), np.random.default_rng(1).normal(size=5000)
    launch(row_sums, 5000, [a, out], adj_inputs=[by_a, weight.copy()], adjoint=True)
    expected = weight[:, None] * a[0]
    expected[0] += weight @ a
    assert np.allclose(by_a, expected)


@kernel
def strided(x, y, n):
    start = cuda.grid(1)
    for k in range(start, n, cuda.gridsize(1)):
        y[k] = x[k] * x[k]


def test_grid_stride_loops():
    n = 1000
    x = np.linspace(0, 1, n)
    by_x = np.zeros(n)
    derivative = strided.adjoint(["x", "y"])
    derivative.over(Geometry((64,), (32, 1, 1), (2, 1, 1), (32, 1, 1), (2, 1, 1)))(x, np.zeros(n), n, by_x, np.ones(n))
    assert np.allclose(by_x, 2 * x)


@kernel
def mixed(x, wide, small, index, flags, out, n):
    i = tid()
    s = 0
    for k in range(n):
        s += x[k] * small[k] + (k if flags[k] else 2)
        if s > 3:
            s = s * 0.25
    t = x[i] * 2 + index[i] // 2 - small[i] % 3
    u = wide[i] * x[i] + x[i] ** 2 + x[i] ** small[i]
    out[i, 0] = s
    out[i, 1] = t + min(x[i], small[i]) * max(index[i], x[i], 0.5)
    out[i, 2] = u / (1 + i) + abs(-x[i]) + math.sqrt(index[i] + 1)
    out[i, 3] = (x[i] > 0.5) + float(index[i]) + int(x[i] * 7) * 0.1


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
def test_replayed_values_are_those_of_the_kernel_bit_for_bit(index_type):
    """A tangent writes what the kernel writes, with the types that the generator found."""
    random = np.random.default_rng(5)
    n = 8
    x = random.random(n, dtype=np.float32)
    wide, small = random.random(n), random.integers(0, 9, n).astype(np.uint8)
    index, flags = random.integers(0, 9, n).astype(index_type), random.random(n) > 0.5
    for more in (wide, wide.astype(np.float32)):
        wanted, got = np.zeros((n, 4), np.float32), np.zeros((n, 4), np.float32)
        launch(mixed, n, [x, more, small, index, flags, wanted, n])
        tangents = [np.ones_like(x), np.ones_like(got)]
        mixed.tangent(["x", "out"]).forall(n)(x, more, small, index, flags, got, n, *tangents)
        assert np.array_equal(wanted, got)


def test_adjoints_that_are_only_read():
    x, y, by_x, by_y = np.full(3, 2.0), np.ones(3), np.zeros(3), np.ones(3)
    by_y.flags.writeable = False
    squared.adjoint(["x", "y"], kept=["y"]).forall(3)(x, y, by_x, by_y)
    assert by_x.tolist() == [4, 4, 4]
    with pytest.raises(KernelUnsupportedError, match="the adjoint of 'y' changes on the way back"):
        saxpy.adjoint(["x", "y"], kept=["y"]).forall(3)(x, y, 1.0, by_x, by_y)
    with pytest.raises(NumbridgeValueError, match="'z' is not among its parameters, x, y"):
        squared.adjoint(["x", "z"])


@kernel
def columns(x, y):
    i = tid()
    y[i, 0] = x[i] * x[i]
    if x[i] > 0.0:
        y[i, 1] = 3.0 * x[i]


@kernel
def perhaps_one_column(x, y):
    i = tid()
    y[i, 0] = x[i]
    y[i, -1] = x[i]


def test_adjoints_of_elements_that_are_stored_once_are_only_read():
    x, y, by_x, by_y = np.array([2.0, -2.0]), np.ones((2, 2)), np.zeros(2), np.array([[1.0, 10.0], [2.0, 20.0]])
    by_y.flags.writeable = False
    columns.adjoint(["x", "y"], kept=["y"]).forall(2)(x, y, by_x, by_y)
    assert by_x.tolist() == [34, -8]
    with pytest.raises(KernelUnsupportedError, match="the adjoint of 'y' changes on the way back"):
        perhaps_one_column.adjoint(["x", "y"], kept=["y"]).forall(2)(x, y, by_x, by_y)


def test_arrays_that_are_not_used_may_be_any():
    x, by_x, by_y = np.ones(3), np.zeros(3), np.full(3, 2.0)
    squared.adjoint(["x", "y"], unused=["y"]).forall(3, checked=False)(x, by_y, by_x, by_y)
    assert by_x.tolist() == [4] * 3
    with pytest.raises(
        KernelUnsupportedError, match="the adjoint of saxpy uses what parameter 'x' holds; pass the array"
    ):
        saxpy.adjoint(["x", "y", "a"], unused=["x"]).forall(3)(x, np.zeros(3), 1.0, by_x, by_y, np.zeros(()))
    with pytest.raises(NumbridgeValueError, match="'q' is not among its parameters"):
        squared.adjoint(["x", "y"], unused=["q"])


def test_a_kernel_of_sixty_lines():
    x, a = np.random.default_rng(0).random(6), np.random.default_rng(1).random(4)
    check(long_one, 3, x, a, np.zeros(3), 6)
    by_x, by_a, by_y = np.zeros(6), np.zeros(4), np.ones(3)
    launch(long_one, 3, [x, a, np.zeros(3), 6], adj_inputs=[by_x, by_a, by_y, None], adjoint=True)
    expected = {"x": np.zeros(6), "a": np.zeros(4), "y": np.ones(3)}
    run_adjoint(long_one, (3,), [x, a, np.zeros(3), 6], expected)
    assert np.allclose(by_x, expected["x"]) and np.allclose(by_a, expected["a"])


@kernel
def tripled(x, y):
    i = tid()
    y[i] = 3.0 * x[i]


def test_derivatives_may_be_asked_for_in_any_order():
    by_x, by_y = np.zeros(2), np.ones(2)
    tripled.adjoint(["y", "x"]).forall(2)(np.ones(2), np.zeros(2), by_y, by_x)
    assert by_x.tolist() == [3, 3] and by_y.tolist() == [0, 0]
    after_x, after_y = np.ones(2), np.zeros(2)
    tripled.tangent(["y", "x"]).forall(2)(np.ones(2), np.zeros(2), after_y, after_x)
    assert after_x.tolist() == [1, 1] and after_y.tolist() == [3, 3]


@kernel
def powers(x, y, a):
    i = tid()
    s = a
    for _k in range(3):
        s = s * x[i] * x[i] + math.sin(s)
    y[i] = s


def test_tangents_of_tangents():
    def first(x, v, a, b):
        after = np.zeros(2)
        powers.tangent(["x", "y", "a"]).forall(2)(x, np.zeros(2), a, v, after, b)
        return after

    x, v, a, b = np.array([0.3, 0.7]), np.array([1.0, 0.5]), 0.8, 0.2
    dx, dv, da, db = np.array([0.3, -0.2]), np.array([0.2, 0.1]), 0.4, -0.3
    second = powers.tangent(["x", "y", "a"]).tangent(["x", "y", "_nb_tan_x", "_nb_tan_y", "a", "_nb_tan_a"])
    after = np.zeros(2)
    second.forall(2)(x, np.zeros(2), a, v, np.zeros(2), b, dx, np.zeros(2), dv, after, da, db)
    step = 1e-5
    plus = first(x + step * dx, v + step * dv, a + step * da, b + step * db)
    minus = first(x - step * dx, v - step * dv, a - step * da, b - step * db)
    assert np.allclose(after, (plus - minus) / (2 * step), rtol=1e-7)


@kernel
def generic(x, y, n):
    i = tid()
    half = x.dtype.type(0.5)
    y[i] = x[i] ** 2 * half + x[i] * n.dtype.type(2.9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_of_an_array_s_dtype(dtype):
    x, y, n = np.array([3.0, 5.0], dtype), np.zeros(2, dtype), np.zeros(1, np.int32)
    launch(generic, 2, [x, y, n])
    by_x, by_y = np.zeros(2, dtype), np.array([1.0, 10.0], dtype)
    launch(generic, 2, [x, y, n], adj_inputs=[by_x, by_y, None], adjoint=True)
    assert y.tolist() == [10.5, 22.5] and by_x.tolist() == [5.0, 70.0]
