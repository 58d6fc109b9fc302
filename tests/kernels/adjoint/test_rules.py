"""Derivative rules keep the digits that there are next to poles, zeros and what rounds to one; so do their own derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest

import numbridge as nb
from emulated_cuda import on_both


@nb.func
def angle(x):
    return math.asin(x)


@nb.func
def other_angle(x):
    return math.acos(x)


@nb.func
def area(x):
    return math.atanh(x)


@nb.func
def saturated(x):
    return math.tanh(x)


@nb.kernel
def curvatures(x, y, out):
    i = nb.tid()
    out[0, i] = nb.grad(nb.grad(angle))(x[i])
    out[1, i] = nb.grad(nb.grad(other_angle))(x[i])
    out[2, i] = nb.grad(nb.grad(area))(x[i])
    out[3, i] = nb.grad(saturated)(y[i])
    out[4, i] = nb.grad(nb.grad(saturated))(y[i])


def slope_of_tanh(x):
    """Return 1 / cosh(x)**2, also where cosh is infinite."""
    small = np.exp(-np.abs(x))
    return (2 * small / (1 + small * small)) ** 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_keep_their_digits(dtype):
    """Where `1 - x * x` is the difference of numbers that are nearly equal, or what is added is."""
    x = np.array([1e-30, 3e-8, -1e-5, 0.3, 0.9998, -0.0, 0.02], dtype)
    y = np.array([1e-30, -7.0, 12.0, 30.0, 0.5, np.inf, -2.0], dtype)
    a, b = x.astype(np.longdouble), y.astype(np.longdouble)
    of_angle = a / ((1 - a) * (1 + a)) ** 1.5
    of_area = 2 * a / ((1 - a) * (1 + a)) ** 2
    slope = slope_of_tanh(b)
    expected = np.stack([of_angle, -of_angle, of_area, slope, -2 * np.tanh(b) * slope])
    for found in on_both(curvatures, len(x), [x, y, np.zeros((5, len(x)), dtype)]):
        assert np.allclose(found, expected, rtol=10 * np.finfo(dtype).eps, atol=0), found / expected


@nb.func
def distance(x, y):
    return math.hypot(x, y)


@nb.func
def direction(x, y):
    return math.atan2(x, y)


@nb.func
def along(x, y):
    by_x, _ = nb.grad(distance)(x, y)
    return by_x


@nb.kernel
def around(x, y, out):
    i = nb.tid()
    out[0, i], out[1, i] = nb.grad(distance)(x[i], y[i])
    out[2, i], out[3, i] = nb.grad(direction)(x[i], y[i])
    out[4, i], out[5, i] = nb.grad(along)(x[i], y[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_at_the_origin_are_zero(dtype):
    """There are none, and NaN would spread: `length` of zeros has derivative 0, too."""
    x, y = np.array([[0.0, -0.0, 0.0, 3.0, 0.0], [0.0, 0.0, -0.0, 4.0, -2.0]], dtype)
    expected = np.zeros((6, 5))
    expected[:, 3] = 0.6, 0.8, 4 / 25, -3 / 25, 16 / 125, -12 / 125
    expected[:, 4] = 0, -1, -0.5, 0, 0.5, 0
    for found in on_both(around, 5, [x, y, np.zeros((6, 5), dtype)]):
        assert np.allclose(found, expected, rtol=1e-6, atol=0), found


@nb.func
def power(x, y):
    return x**y


@nb.func
def line(x):
    return x**1.0


@nb.func
def decade(x):
    return math.log10(x)


@nb.kernel
def powers(x, y, out):
    i = nb.tid()
    out[0, i], _ = nb.grad(power)(x[i], y[i])
    out[1, i] = nb.grad(nb.grad(line))(x[i])
    out[2, i] = nb.grad(decade)(x[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_of_powers(dtype):
    """One less than a large even number may be that number, and zero times the reciprocal of a tiny one no number."""
    info = np.finfo(dtype)
    large = 2.0 ** (info.nmant + 1)
    x = np.array([-1, -1, -1, -1, 1, info.smallest_subnormal, -info.smallest_normal / 8, info.max], dtype)
    y = np.array([large + 2, -large, large, large - 1, large + 2, 0, 0, 1], dtype)
    by_base = [-(large + 2), large, -large, large - 1, large + 2, 0, 0, 1]
    with np.errstate(over="ignore"):
        logarithm = (1 / math.log(10) / x.astype(float)).astype(dtype)
    for found in on_both(powers, len(x), [x, y, np.zeros((3, len(x)), dtype)]):
        assert np.array_equal(found[0], np.array(by_base, dtype)), found[0]
        assert not found[1].any(), found[1]
        assert np.allclose(found[2], logarithm, rtol=1e-6, atol=0), found[2]
