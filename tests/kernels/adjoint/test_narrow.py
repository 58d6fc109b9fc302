"""Derivatives of kernels on arrays of 16-bit floats: computed and added up in float32, rounded once per launch."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from numbridge.kernels.errors import BufferAccessError, KernelUnsupportedError, NumbridgeTypeError
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch

HALVES = [np.float16, ml_dtypes.bfloat16]


@kernel
def curved(x, w, y):
    i = tid()
    t = x[i]
    if t > 0.5:
        t = t * t
    y[i] = math.sin(t) * w[0] + t * x[i] ** 2


@kernel
def in_place(x, y, n):
    i = tid()
    for k in range(n):
        y[i] = y[i] * x[k] + math.sin(x[i])


@kernel
def spread(w, y):
    i = tid()
    y[i] = w[0]


def wide(values):
    return values.astype(np.float64)


def differences(run, arguments, weight):
    """Return the gradients of sum(weight * last argument afterwards) by central differences, in float64."""
    found = []
    for k, argument in enumerate(arguments):
        gradient = np.zeros(argument.shape)
        for place in np.ndindex(argument.shape):
            sides = []
            for sign in (1, -1):
                copies = [a.copy() for a in arguments]
                copies[k][place] += sign * 1e-6
                run(*copies)
                sides.append((weight * copies[-1]).sum())
            gradient[place] = (sides[0] - sides[1]) / 2e-6
        found.append(gradient)
    return found


def compare(dtype, run, adjoint, arrays, weight):
    """Compare an adjoint with differences, to the precision of the 16 bits, given in them and in float32."""
    precision = float(ml_dtypes.finfo(dtype).eps)
    expected = differences(run, [wide(a) for a in arrays], wide(weight))
    for kind, tolerance in ((dtype, 2 * precision), (np.float32, precision / 2)):
        adjoints = [np.zeros(a.shape, kind) for a in arrays]
        adjoints[-1][...] = weight
        adjoint(arrays, adjoints)
        for got, wanted in zip(adjoints, expected, strict=True):
            assert got.dtype == kind
            assert np.allclose(wide(got), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", HALVES)
def test_against_differences(dtype):
    random = np.random.default_rng(0)
    x, w = random.random(7).astype(dtype), np.array([1.5], dtype)
    weight = random.normal(size=7).astype(dtype)
    compare(
        dtype,
        lambda *arrays: launch(curved, 7, [*arrays]),
        lambda arrays, adjoints: curved.adjoint(["x", "w", "y"]).forall(7)(*arrays, *adjoints),
        [x, w, np.zeros(7, dtype)],
        weight,
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_elements_that_are_overwritten_in_a_loop(dtype):
    # Powers of two, so that rounding what is stored on the way changes nothing.
    x, y = np.array([0.5, 2.0, 0.25], dtype), np.zeros(3, dtype)
    weight = np.array([1.0, -2.0, 0.5], dtype)
    by_x, by_y = np.zeros(3, dtype), weight.copy()
    launch(in_place, 3, [x, y, 2], adj_inputs=[by_x, by_y, None], adjoint=True)
    by_single = [np.zeros(3, np.float32), weight.astype(np.float32)]
    single = [x.astype(np.float32), y.astype(np.float32)]
    launch(in_place, 3, [*single, 2], adj_inputs=[*by_single, None], adjoint=True)
    for got, wanted in zip((by_x, by_y), by_single, strict=True):
        assert np.allclose(wide(got), wanted, rtol=2e-2)
    assert not y.any()


@pytest.mark.parametrize("dtype", HALVES)
def test_many_small_parts_add_up(dtype):
    """In 16 bits, the sum would stop growing long before."""
    part = dtype(1e-3)
    by_w, by_y = np.zeros(1, dtype), np.full(4096, part)
    given = [np.ones(1, dtype), np.zeros(4096, dtype)]
    launch(spread, 4096, given, adj_inputs=[by_w, by_y], adjoint=True)
    assert by_w[0] == dtype(4096 * float(part)) and (by_y == part).all()
    launch(spread, 4096, given, adj_inputs=[by_w, np.full(4096, part)], adjoint=True)
    assert float(by_w[0]) == pytest.approx(2 * 4096 * float(part), rel=1e-2)


def test_strided_adjoints():
    x, w, y = np.linspace(0, 1, 6).astype(np.float16), np.ones(1, np.float16), np.zeros(6, np.float16)
    block = np.zeros((6, 2), np.float16)
    launch(curved, 6, [x, w, y], adj_inputs=[block[::-1, 1], None, np.ones(6, np.float16)], adjoint=True)
    straight = np.zeros(6, np.float16)
    launch(curved, 6, [x, w, y], adj_inputs=[straight, None, np.ones(6, np.float16)], adjoint=True)
    assert not block[:, 0].any() and np.array_equal(block[::-1, 1], straight)


@pytest.mark.parametrize("dtype", HALVES)
def test_tangents(dtype):
    x, w, y = np.array([0.25, 0.75], dtype), np.array([2.0], dtype), np.zeros(2, dtype)
    moved, by_y = np.array([1.0, -1.0], dtype), np.zeros(2, dtype)
    curved.tangent(["x", "y"]).forall(2)(x, w, y, moved, by_y)
    single = [a.astype(np.float32) for a in (x, w, y, moved, by_y)]
    curved.tangent(["x", "y"]).forall(2)(*single)
    assert np.allclose(wide(by_y), single[-1], rtol=float(ml_dtypes.finfo(dtype).eps))


def test_refusals():
    x, y = np.ones(3, np.float16), np.zeros(3, np.float16)
    by = np.zeros(3, np.float16)
    with pytest.raises((KernelUnsupportedError, BufferAccessError), match="share"):
        launch(curved, 3, [x, x, y], adj_inputs=[by, by, np.ones(3, np.float16)], adjoint=True)
    fixed = np.zeros(3, np.float16)
    fixed.flags.writeable = False
    with pytest.raises(BufferAccessError, match="read-only"):
        launch(curved, 3, [x, x, y], adj_inputs=[fixed, None, np.ones(3, np.float16)], adjoint=True)
    with pytest.raises(NumbridgeTypeError, match="wanted elements of float32, got float64"):
        launch(curved, 3, [x, x, y], adj_inputs=[np.zeros(3), None, np.ones(3, np.float16)], adjoint=True)
    tiny = [np.ones(3, ml_dtypes.float8_e5m2) for _ in range(5)]
    with pytest.raises(KernelUnsupportedError, match="float8_e5m2"):
        launch(curved, 3, tiny[:3], adj_inputs=[tiny[3], None, tiny[4]], adjoint=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cubins(dtype):
    kind = np.dtype(dtype if dtype == "float16" else ml_dtypes.bfloat16)
    derivative = curved.adjoint(["x", "w", "y"])
    halves, singles = [np.ones(3, kind) for _ in range(3)], [np.ones(3, np.float32) for _ in range(3)]
    assert derivative.cubin(*halves, *singles, capability=(9, 0))
