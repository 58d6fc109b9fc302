"""Functions of NumPy's and Python's that kernels have from `kernels.language.written_out`: what they give, and derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest

import numbridge as nb
from emulated_cuda import emulated_cuda, on_both

random = np.random.default_rng(11)
INF, NAN = math.inf, math.nan
POINTS = np.array([-1.0, -0.5, 0.25, 1.0, 4.0])
VALUES = np.array([2.0, -1.0, 0.5, 3.0, 1.0])
NUMBERS = np.array([-2.0, -1.0, -0.75, 0.25, 0.3, 3.9, 4.0, 4.5, -INF, INF, NAN])


@nb.kernel
def between(x, xp, fp, y):
    i = nb.tid()
    y[i, 0] = np.interp(x[i], xp, fp)
    y[i, 1] = np.interp(x[i], xp, fp, left=-7.0, right=9.0)
    y[i, 2] = np.interp(x[i], xp, fp, right=9.0)


@pytest.mark.parametrize(
    ("points", "values"),
    [
        (POINTS, VALUES),
        (POINTS[:1], VALUES[:1]),
        (POINTS[:2], VALUES[:2]),
        (np.array([-1.0, -1.0, 0.25, 0.25, 4.0]), VALUES),
        (POINTS, np.array([INF, 1.0, 1.0, -INF, -INF])),
        (np.array([-INF, 0.0, 1.0, 2.0, INF]), np.array([1.0, 1.0, 2.0, NAN, 3.0])),
    ],
)
def test_the_lines_between_points_are_those_of_numpy(points, values):
    numbers = NUMBERS if len(points) > 1 else NUMBERS[:-1]  # of NaN NumPy makes a number there
    with np.errstate(all="ignore"):
        ways = ({}, {"left": -7.0, "right": 9.0}, {"right": 9.0})
        wanted = np.array([np.interp(numbers, points, values, **way) for way in ways]).T
    for made in on_both(between, len(numbers), [numbers, points, values, np.zeros((len(numbers), 3))]):
        np.testing.assert_allclose(made, wanted, rtol=1e-15)


def test_random_points():
    x, xp, fp = random.normal(size=500), np.sort(random.normal(size=60)), random.normal(size=60)
    y = np.zeros((500, 3), np.float32)
    nb.launch(between, 500, [*(array.astype(np.float32) for array in (x, xp, fp)), y])
    assert np.abs(y[:, 0] - np.interp(x, xp, fp)).max() < 1e-3


@pytest.mark.parametrize(
    ("points", "text"), [(4, "fp and xp are not of the same length"), (0, "array of sample points is empty")]
)
def test_points_without_values_are_not_read(points, text):
    values = VALUES if points else VALUES[:0]
    with pytest.raises(nb.KernelError, match=rf"ValueError: np.interp: {text}"):
        nb.launch(between, 2, [NUMBERS[:2], POINTS[:points], values, np.zeros((2, 3))])
    # On CUDA the threads end without a word.
    y = np.zeros((2, 3))
    with emulated_cuda() as device:
        nb.launch(between, 2, [device.on_device(array) for array in (NUMBERS[:2], POINTS[:points], values, y)])
        assert not device.errors and not y.any()


@nb.kernel
def of_numbers(x, z, y):
    i = nb.tid()
    y[i, 0] = np.clip(x[i], -0.5, 0.75)
    y[i, 1] = np.clip(x[i], None, z[i])
    y[i, 2] = np.clip(x[i], a_max=z[i], a_min=0.0)
    y[i, 3] = np.clip(x[i], min=0.25)
    y[i, 4] = np.where(x[i] > z[i], x[i], 2.0 * z[i])
    y[i, 5] = np.heaviside(x[i], z[i])
    y[i, 6] = np.sinc(x[i])
    y[i, 7] = np.polyval((1.0, -2.0, 0.5), x[i])
    y[i, 8] = math.isclose(x[i], z[i])
    y[i, 9] = math.isclose(x[i], z[i], rel_tol=0.5)
    y[i, 10] = math.isclose(x[i], z[i], abs_tol=0.5)


def of_numbers_by_numpy(x, z):
    close = [
        [math.isclose(a, b, **how) for a, b in zip(x, z, strict=True)]
        for how in ({}, {"rel_tol": 0.5}, {"abs_tol": 0.5})
    ]
    return np.array(
        [
            np.clip(x, -0.5, 0.75),
            np.clip(x, None, z),
            np.clip(x, 0.0, z),
            np.clip(x, 0.25, None),
            np.where(x > z, x, 2.0 * z),
            np.heaviside(x, z),
            np.sinc(x),
            np.polyval([1.0, -2.0, 0.5], x),
            *close,
        ]
    ).T


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
def test_functions_of_numbers_are_those_of_numpy(dtype):
    x = np.array([-2.0, -0.0, 0.0, 0.5, 1.0, 3.0, 1e-5, *([NAN, INF, -INF, 1.0, INF] if dtype is not np.int32 else [])])
    z = np.array([-1.0, 0.5, -2.0, 0.75, 1.0, 2.0, 1e-5, *([1.0, 0.0, 1.0, NAN, INF] if dtype is not np.int32 else [])])
    with np.errstate(all="ignore"):
        wanted = of_numbers_by_numpy(x.astype(dtype), z.astype(dtype))
    for made in on_both(of_numbers, len(x), [x.astype(dtype), z.astype(dtype), np.zeros((len(x), 11))]):
        np.testing.assert_allclose(made, wanted, rtol=1e-6 if dtype is np.float32 else 1e-14, atol=1e-7)


@nb.kernel
def of_rows(x, z, coefficients, y):
    i = nb.tid()
    y[i, 0] = np.linalg.norm(x[i])
    y[i, 1] = math.dist(x[i], z[i, ::-1])
    y[i, 2] = np.polyval(coefficients, x[i, 0])


def test_functions_of_rows_are_those_of_numpy():
    x, z, coefficients = random.normal(size=(6, 5)), random.normal(size=(6, 5)), random.normal(size=4)
    x[3] = 0.0
    x[4, 2] = NAN
    wanted = [np.linalg.norm(x, axis=1), np.linalg.norm(x - z[:, ::-1], axis=1), np.polyval(coefficients, x[:, 0])]
    for made in on_both(of_rows, 6, [x, z, coefficients, np.zeros((6, 3))]):
        np.testing.assert_allclose(made, np.array(wanted).T, rtol=1e-14)


@nb.kernel
def of_orders(x, y):
    i = nb.tid()
    y[i, 0], y[i, 1], y[i, 2] = np.linalg.norm(x[i], 1), np.linalg.norm(x[i], ord=2), np.linalg.norm(x[i], math.inf)
    y[i, 3], y[i, 4], y[i, 5] = np.linalg.norm(x[i], -np.inf), np.linalg.norm(x[i], 0), np.linalg.norm(x[i], 3)


def test_norms_of_other_orders_are_those_of_numpy():
    x = random.normal(size=(4, 5))
    x[0, 1], x[1, 2], x[2] = 0.0, NAN, 0.0
    wanted = [[np.linalg.norm(row, order) for order in (1, 2, INF, -INF, 0, 3)] for row in x]
    for made in on_both(of_orders, 4, [x, np.zeros((4, 6))]):
        np.testing.assert_allclose(made, wanted, rtol=1e-14)


@nb.kernel
def of_vectors(x: nb.array[nb.vec3], y: nb.array[float]):
    i = nb.tid()
    y[i] = np.linalg.norm(x[i]) + math.dist(x[i], x[0]) + math.dist((x[i][0], 2.0), (0.0, 1.0))


def test_vectors_and_tuples_have_lengths():
    x = random.normal(size=(4, 3)).astype(np.float32)
    wanted = np.linalg.norm(x, axis=1) + np.linalg.norm(x - x[0], axis=1) + np.hypot(x[:, 0], 1)
    for made in on_both(of_vectors, 4, [x, np.zeros(4, np.float32)]):
        np.testing.assert_allclose(made, wanted, rtol=1e-6)


def adjoints(kernel, n, given, emulation=None):
    """Return the adjoints of what goes in, all numbers that come out being asked for as much as they are."""
    copies, seeds = [a.copy() for a in given], [np.zeros_like(a) for a in given]
    seeds[-1][...] = np.linspace(1.0, 2.0, seeds[-1].size).reshape(seeds[-1].shape)
    weights = seeds[-1].copy()
    there = (lambda array: array) if emulation is None else emulation.on_device
    nb.launch(kernel, n, [*map(there, copies)], adj_inputs=[*map(there, seeds)], adjoint=True)
    return seeds[:-1], weights


def differences(kernel, n, given, weights, step=1e-6):
    for k, array in enumerate(given[:-1]):
        found = np.zeros_like(array)
        for index in np.ndindex(*array.shape):
            totals = []
            for sign in (1, -1):
                moved = [a.copy() for a in given]
                moved[k][index] += sign * step
                nb.launch(kernel, n, moved)
                totals.append((moved[-1] * weights).sum())
            found[index] = (totals[0] - totals[1]) / (2 * step)
        yield found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("kernel", "given"),
    [
        (between, [random.uniform(-2, 5, 9), POINTS, VALUES, np.zeros((9, 3))]),
        (of_numbers, [random.normal(size=9), random.normal(size=9), np.zeros((9, 11))]),
        (of_rows, [*random.normal(size=(2, 5, 4)), random.normal(size=3), np.zeros((5, 3))]),
        (of_orders, [random.normal(size=(3, 4)), np.zeros((3, 6))]),
    ],
    ids=["lines", "numbers", "rows", "orders"],
)
def test_derivatives_are_differences(kernel, given, target):
    n = len(given[-1])
    if target == "cuda":
        with emulated_cuda() as emulation:
            found, weights = adjoints(kernel, n, given, emulation)
    else:
        found, weights = adjoints(kernel, n, given)
    for one, other in zip(found, differences(kernel, n, given, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_a_row_of_zeros_has_a_gradient():
    x = np.zeros((2, 3))
    found, _ = adjoints(of_rows, 2, [x, x, np.ones(2), np.zeros((2, 3))])
    assert np.array_equal(found[0][:, 1:], np.zeros((2, 2))) and np.array_equal(found[1], x)


@nb.kernel
def of_integers(x, points, values, y):
    i = nb.tid()
    y[i, 0] = np.interp(x[i], points, values)
    y[i, 1] = np.linalg.norm(values)
    y[i, 2] = np.linalg.norm(values, -1)
    y[i, 3] = math.dist(points, values)
    y[i, 4] = math.isclose(x[i], x[i] + x[0], abs_tol=1.5)


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.uint64, np.int64])
def test_integers_are_made_floats_before_they_are_subtracted_or_squared(kind):
    most = 5_000_000_000 if kind in (np.uint64, np.int64) else 200
    x, points, values = (np.array(a, kind) for a in ([1, 2, 5, 7], [0, 2, 6, 7], [most, 20, most - 3, 1]))
    wanted = [
        np.interp(x, points, values),
        *(np.full(4, np.linalg.norm(values, *order)) for order in ((), (-1,))),
        np.full(4, math.dist(points.tolist(), values.tolist())),
        np.ones(4),
    ]
    for made in on_both(of_integers, 4, [x, points, values, np.zeros((4, 5))]):
        np.testing.assert_allclose(made.T, wanted, rtol=1e-14)


@nb.kernel
def near_zero(x, y):
    i = nb.tid()
    y[i] = np.sinc(x[i])


def test_derivatives_of_sinc_near_zero():
    x = np.array([0.0, 1e-15, -1e-8, 1e-4, 0.079, 0.08, 1.5])
    y, seed = np.zeros_like(x), np.zeros_like(x)
    nb.launch(near_zero, len(x), [x, y])
    np.testing.assert_allclose(y, np.sinc(x), rtol=4e-16)
    nb.launch(near_zero, len(x), [x, y], adj_inputs=[seed, np.ones_like(x)], adjoint=True)
    small = np.abs(x) < 0.01
    exact = np.where(small, -(math.pi**2) * x / 3 + math.pi**4 * x**3 / 30, 0.0)
    far = x[~small]
    exact[~small] = (np.cos(math.pi * far) - np.sinc(far)) / far
    np.testing.assert_allclose(seed, exact, rtol=1e-12)


@nb.func
def within_zero_and_one(limited, x):
    return limited(x, 0.0, 1.0)


@nb.func
def at_least(x, low=None):
    return np.clip(x, low, 2.0)


@nb.kernel
def that_passes_clip(x, y):
    y[nb.tid()] = within_zero_and_one(np.clip, x[0])


@nb.kernel
def that_passes_none(x, y):
    y[nb.tid()] = at_least(x[0])


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (
            that_passes_clip,
            r"clip does not take \(float64, float64, float64\); call np.clip\(x, low, high\) by its name, with ",
        ),
        (
            that_passes_none,
            r"maximum does not take \(float64, none\); as a limit of np.clip, None is written at the call",
        ),
    ],
)
def test_clip_is_called_by_its_name_with_limits_that_are_known(kernel, text):
    with pytest.raises(nb.KernelError, match=text):
        nb.launch(kernel, 1, [np.ones(1), np.zeros(1)])
