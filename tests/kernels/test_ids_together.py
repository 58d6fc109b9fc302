"""Several ids of one thread at once on CUDA: which bodies, how many, in which grids, and that they give what one by one gives."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from emulated_cuda import emulated_cuda
from fake_cuda import cuda_array, fake_cuda
from numbridge.kernels.cuda_backend.ids_together import ids_together
from numbridge.kernels.launch import launch
from numbridge.kernels.native.table_layout import LARGE_GRID
from numbridge.kernels.readers import describe
from numbridge.kernels.variant import variants_of


@nb.func
def halved(a):
    b = a
    if a > 0:
        b = 0.5 * a
    return b


@nb.func
def noted(x, a):
    x[0] = a
    return a


@nb.kernel
def saxpy(x, y, a):
    i = nb.tid()
    y[i] = a * x[i] + y[i]


@nb.kernel
def guarded(x, y, a):
    i = nb.tid()
    if i >= a:
        return
    t = x[i]
    if t < 0:
        return
    if i > 2:
        t = halved(t)
        t += math.sqrt(t)
    y[i] += t
    y[i] = y[i] * 2.0


@nb.kernel
def stencil(x, y, a):
    i, j = nb.tid()
    if i > 0 and j > 0 and i < x.shape[0] - 1 and j < x.shape[1] - 1:
        up, down = x[i - 1, j], x[i + 1, j]
        y[i, j] = a * (up + down + x[i, j - 1] + x[i, j + 1])


@nb.kernel
def clamped(x, y, a):
    i, j = nb.tid()
    up, down = max(i - 1, 0), min(i + 1, x.shape[0] - 1)
    y[i, j] = a * (x[up, j] - 2.0 * x[i, j] + x[down, j])


@nb.kernel
def in_space(x, y, a):
    i, j, k = nb.tid()
    if 0 < j < x.shape[1] - 1:
        y[i, j, k] = a * (x[i, j - 1, k] + x[i, j + 1, k])


@nb.kernel
def far_off(x, y, a):
    i, j = nb.tid()
    t = x[i + 1 if i + 1 < x.shape[0] else 0, j] - x[i, j - 2] + x[i, 2 + j]
    k = j
    y[i, k] = t + a * x[i, k + 1] - x[i - 1, j + 2]


@nb.kernel
def of_other_rows(x, y, a):
    """Names that say where in memory something is come to say something else."""
    i, j = nb.tid()
    r = i
    t = x[r, j] + x[r, j + 1]
    r = r + 1
    u = x[r, j] - x[r, j + 1]
    k = j
    v = x[r, k] * x[r, k + 1]
    k = k + a
    w = x[r, k] + x[r, k + 1]
    if u > 0.0:
        r = r - 1
        u = u + x[r, j + 1]
    y[i, j] = t + u * v + w + x[i + 1, j]


@nb.kernel
def stored_beside(x, y, a):
    i, j = nb.tid()
    if j < y.shape[1] - 1:
        y[i, j + 1] = x[i, j] + a * x[i + 1, j]


@nb.kernel
def of_rows_that_columns_choose(x, y, a):
    i, j = nb.tid()
    r = (i + j) % a
    t = x[r, j] - x[r, j + 1]
    q = i
    if x[i + 1, j] > 0.0:
        q = i + 2
    y[i, j] = t * (x[q, j] + x[q, j + 1])


@nb.kernel
def of_a_number_that_changes(x, y, a):
    i, j = nb.tid()
    t = x[i + a, j] * x[i, j + 1]
    a = a + 1
    if x[i, j] > 0:
        a = 0
    y[i, j] = t + x[i + a, j]


@nb.kernel
def in_some_cases(x, y, a):
    i, j = nb.tid()
    up = x[i - 1, j] if i > 0 else x[i, j]
    right = x[i, j + 1] if j + 1 < x.shape[1] else 0.0
    y[i, j] = up + right + x[i, j] + (x[i, j - 1] > 0 and x[i, j - a] > 0)


@nb.kernel
def of_one_row(x, y):
    i, j = nb.tid()
    t = x[0, j - 2] + x[0, j - 1]
    y[i, j] = t + x[min(i, 0), j]


@nb.kernel
def of_what_is_counted(x, y, p):
    i, j = nb.tid()
    t = x[i, j] + x[i + 1, j]
    y[i, j] = t * x[i, j] + 0 * nb.atomic_add(p, 0, 1)


@nb.kernel
def in_four(x, y, a):
    i, j, k, m = nb.tid()
    above = (k + 1) % x.shape[2]
    y[i, j, k, m] = x[i, j, k, m] + a * x[i, j, above, m]


@nb.kernel
def between_planes(x, y):
    i, j, k = nb.tid()
    y[i, j, k] = x[0, j, k] + x[i, j, k] + x[2, j, k]


@nb.kernel
def transposed(x, y):
    i, j = nb.tid()
    y[i, j] = x[j, i]


@nb.kernel
def scattered(x, y, p):
    i = nb.tid()
    y[p[i]] = 3.0 * x[i]


@nb.kernel
def counted(p, y):
    i = nb.tid()
    nb.atomic_add(y, p[i] % 7, 1)


@nb.kernel
def one_or_other(x, y, a):
    i = nb.tid()
    if x[i] > a:
        y[i] = x[i]
    else:
        y[i] = -x[i]


@nb.kernel
def last_else(x, y, a):
    i = nb.tid()
    if x[i] > a:
        pass
    else:
        y[i] = min(x[i], abs(y[i]))


@nb.kernel
def moved(x: nb.array[nb.vec3], v: nb.array[nb.vec3], a: float):
    i = nb.tid()
    x[i] = x[i] + a * nb.cross(v[i], x[i])


@nb.kernel
def turned(x: nb.array[nb.vec3], y: nb.array[float]):
    i = nb.tid()
    y[i] = nb.length(x[i])


@cuda.jit
def shifted(x, y):
    i = cuda.grid(1)
    if i < x.shape[0] - 1:
        y[i] = np.sqrt(x[i + 1]) - np.float32(1)


@nb.kernel
def looped(x, y):
    i = nb.tid()
    for k in range(2):
        y[i] += x[i] * k


@nb.kernel
def checked(x, y):
    i = nb.tid()
    assert x[i] == x[i]
    y[i] = x[i]


@nb.kernel
def filled(y):
    i = nb.tid()
    y[i] = 1.0


@nb.kernel
def in_block(x, y):
    i = nb.tid()
    y[i] = x[i] + cuda.threadIdx.x


@nb.kernel
def voted(x, y):
    i = nb.tid()
    y[i] = cuda.ballot_sync(0xFFFFFFFF, x[i] > 0)


@nb.kernel
def writes_first(x, y):
    i = nb.tid()
    t = noted(y, x[i])
    y[i] = t


@nb.kernel
def computed(x, y):
    i = nb.tid()
    t = x[i]
    y[i] = math.sin(t) + math.cos(t) * math.exp(-t) + math.sqrt(t)


@nb.kernel
def computed_much(x, y):
    i = nb.tid()
    t = math.sin(x[i]) * math.cos(x[i])
    u = math.exp(t) + math.log(t) * math.tan(t)
    y[i] = math.atan(u) + math.erf(t) - math.tanh(u)


@nb.kernel
def of_many(a, b, c, d, y):
    i = nb.tid()
    y[i] = a[i] * b[i] + c[i] * d[i]


def together(kernel, *arguments):
    variants, found = variants_of(kernel), [describe(a) for a in arguments]
    types, weak = variants.types(arguments, found)
    return ids_together(variants.emitted(types, weak, "cuda"), types)


F, D, H, P = (np.ones(4, dtype) for dtype in (np.float32, np.float64, np.float16, np.int32))
V = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("kernel", "arguments", "count"),
    [
        (saxpy, (F, F.copy(), 2.0), 4),
        (saxpy, (D, D.copy(), 2.0), 2),
        (saxpy, (H, H.copy(), 2.0), 8),
        (guarded, (F, F.copy(), 2), 4),
        # Rows, of two columns each if there are pairs.
        (stencil, (np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), 0.25), 4),
        (stencil, (np.ones((4, 4), np.float16), np.ones((4, 4), np.float16), 0.25), 8),
        (between_planes, (np.ones((3, 4, 4), np.float32), np.ones((3, 4, 4), np.float32)), 8),
        (transposed, (np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)), 8),
        (scattered, (F, F.copy(), P), 4),
        (counted, (P, P.copy()), 8),
        (last_else, (F, F.copy(), 0.5), 4),
        (turned, (V, F.copy()), 2),
        (nb.kernel(shifted), (F, F.copy()), 8),
        # Each id loads enough by itself.
        (moved, (V, V.copy(), 0.5), None),
        (of_many, (D, D, D, D, D.copy()), None),
        (of_many, (F, F, F, F, F.copy()), 2),
        # So it does where it computes much.
        (computed, (F, F.copy()), 2),
        (computed_much, (F, F.copy()), None),
        (looped, (F, F.copy()), None),
        (checked, (F, F.copy()), None),
        (filled, (F,), None),
        (in_block, (F, F.copy()), None),
        (voted, (F, P.copy()), None),
        (writes_first, (F, F.copy()), None),
        (one_or_other, (F, F.copy(), 0.5), None),
    ],
)
def test_which_bodies_take_how_many(kernel, arguments, count):
    found = together(kernel, *arguments)
    assert (None if found is None else found.count) == count


@pytest.mark.parametrize(
    ("kernel", "shape", "along_y"),
    [
        (stencil, (4, 4), True),
        (clamped, (4, 4), True),
        (in_space, (3, 4, 4), True),
        (in_four, (2, 3, 4, 4), True),
        (between_planes, (3, 4, 4), False),
        (transposed, (4, 4), False),
    ],
)
def test_which_bodies_share_rows(kernel, shape, along_y):
    numbers = [0.25] * (len(kernel.parameters) - 2)
    found = together(kernel, *(np.ones(shape, np.float32) for _ in range(2)), *numbers)
    assert found is not None and found.along_y == along_y


def test_a_row_that_neighbours_share_is_loaded_once():
    x = np.ones((4, 4), np.float32)
    ptx = stencil.ptx(x, x.copy(), 0.25, capability=(9, 0))
    order = re.findall(r"(ld|st)\.global", ptx)
    # Of four rows and those around them a pair of columns each, and of the four what is beside the pair.
    first = order.index("st")
    assert order[:first] == ["ld"] * (6 + 8) and order[first : first + 4] == ["st"] * 4
    assert len(re.findall(r"ld\.global\.v2\.f32", ptx)) == 6 and len(re.findall(r"st\.global\.cs\.v2\.f32", ptx)) == 4


def test_loads_come_before_stores():
    ptx = saxpy.ptx(F, F.copy(), 2.0, capability=(9, 0))
    order = re.findall(r"(ld|st)\.global", ptx)
    assert order[:12] == ["ld"] * 8 + ["st"] * 4
    alone = nb.kernel(saxpy.function, simd=False).ptx(F, F.copy(), 2.0, capability=(9, 0))
    assert re.findall(r"(ld|st)\.global", alone) == ["ld", "ld", "st"]


def normal(*shape):
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


N = 533


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kernel", "dim", "arguments"),
    [
        (saxpy, N, (normal(N), normal(N), 2.0)),
        (saxpy, N, (normal(N).astype(ml_dtypes.bfloat16), normal(N).astype(ml_dtypes.bfloat16), 2.0)),
        (guarded, N, (normal(N), normal(N), N - 40)),
        (guarded, N, (np.abs(normal(N)), normal(N), N)),
        (stencil, (5, N), (normal(5, N), normal(5, N), 0.25)),
        (stencil, (41, 70), (normal(41, 70), normal(41, 70), 0.25)),
        (clamped, (41, 33), (normal(41, 33), normal(41, 33), 0.25)),
        (clamped, (70, 3), (normal(70, 3), normal(70, 3), 0.25)),
        (in_space, (3, 19, 33), (normal(3, 19, 33), normal(3, 19, 33), 0.25)),
        (in_space, (3, 19, 66), (normal(3, 19, 66), normal(3, 19, 66), 0.25)),
        (in_four, (2, 3, 17, 33), (normal(2, 3, 17, 33), normal(2, 3, 17, 33), 0.25)),
        (in_four, (2, 3, 17, 34), (normal(2, 3, 17, 34), normal(2, 3, 17, 34), 0.25)),
        (far_off, (21, 40), (normal(21, 44).astype(float), normal(21, 40).astype(float), 1)),
        (far_off, (21, 38), (np.arange(22 * 40).reshape(22, 40), np.zeros((21, 38), np.int64), 3)),
        (of_other_rows, (18, 64), (normal(20, 70), normal(18, 64), 3)),
        (stored_beside, (18, 64), (normal(20, 64), normal(18, 64), 3)),
        (of_rows_that_columns_choose, (18, 64), (normal(20, 70), normal(18, 64), 3)),
        (of_a_number_that_changes, (18, 64), (normal(20, 70), normal(18, 64), 1)),
        (in_some_cases, (18, 64), (normal(18, 64), normal(18, 64), 5)),
        (scattered, N, (normal(N), normal(N), np.random.default_rng(3).permutation(N).astype(np.int32))),
        (counted, N, (np.arange(N, dtype=np.int32), np.zeros(7, np.int32))),
        (last_else, N, (normal(N), normal(N), 0.1)),
        (turned, N, (normal(N, 3), normal(N))),
        (nb.kernel(shifted), N, (np.abs(normal(N)), normal(N))),
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.parametrize("blocks", [1, 3, 0])
def test_they_give_what_one_by_one_gives(kernel, dim, arguments, blocks):
    """Grids of one block, of three, and of one id for each thread; the CPU's threads take no steps."""
    here, emulated = [[np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments] for _ in range(2)]
    launch(kernel, dim, here)
    with emulated_cuda() as device:
        there = [device.on_device(a) if isinstance(a, np.ndarray) else a for a in emulated]
        launch(kernel, dim, there, block_dim=32, max_blocks=blocks)
    for one, other in zip(here, emulated, strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_allclose(other.astype(float), one.astype(float), rtol=1e-6, atol=1e-6)


def test_a_single_row_may_end_at_an_odd_element():
    """Its stride says nothing of that, and indices below zero count from there."""
    rows, made = normal(3, 72), np.zeros((8, 64), np.float32)
    x = rows[:1, :67]
    with emulated_cuda() as device:
        launch(of_one_row, made.shape, [device.on_device(x), device.on_device(made)], block_dim=32, max_blocks=1)
    columns = np.arange(64)
    np.testing.assert_array_equal(made, np.tile(x[0, columns - 2] + x[0, columns - 1] + x[0, :64], (8, 1)))


def test_what_is_loaded_beside_an_effect_is_in_no_pair():
    x, y, p = normal(9, 64), np.zeros((8, 64), np.float32), np.zeros(1, np.int32)
    ptx = of_what_is_counted.ptx(x, y, p, capability=(9, 0))
    assert len(re.findall(r"ld\.global\.v2\.f32", ptx)) == 5 and len(re.findall(r"st\.global\.cs\.v2", ptx)) == 4
    with emulated_cuda() as device:
        there = [device.on_device(a) for a in (x, y, p)]
        launch(of_what_is_counted, y.shape, there, block_dim=32, max_blocks=1)
    assert p[0] == y.size
    np.testing.assert_allclose(y, (x[:-1] + x[1:]) * x[:-1], rtol=1e-6)


@pytest.fixture
def driver():
    with fake_cuda() as fake:
        yield fake


@pytest.mark.parametrize(
    ("blocks", "options", "x"),
    [
        (LARGE_GRID, {}, LARGE_GRID // 4),
        (LARGE_GRID + 1, {}, LARGE_GRID // 4 + 1),
        (LARGE_GRID - 1, {}, LARGE_GRID - 1),
        (10 * LARGE_GRID, {"max_blocks": 264}, 264),
    ],
)
def test_large_grids_have_fewer_blocks(driver, blocks, options, x):
    size = 256 * blocks
    launch(saxpy, size, [cuda_array((size,)), cuda_array((size,), address=0x9000_0000), 2.0], **options)
    assert driver.launches[-1].grid == (x, 1, 1)


def test_blocks_along_y_count(driver):
    shape = (LARGE_GRID // 4, 256 * 6)
    launch(transposed, shape, [cuda_array(shape[::-1]), cuda_array(shape, address=0x9000_0000)])
    assert driver.launches[-1].grid == (1, LARGE_GRID // 4, 1)


@pytest.mark.parametrize(
    ("rows", "y"), [(LARGE_GRID // 2, LARGE_GRID // 16), (LARGE_GRID // 2 + 1, LARGE_GRID // 16 + 1)]
)
def test_large_grids_have_fewer_rows_of_blocks(driver, rows, y):
    shape = (rows, 512)
    arrays = [cuda_array(shape, dtype=np.float16), cuda_array(shape, dtype=np.float16, address=0x9000_0000)]
    launch(stencil, shape, [*arrays, 2.0])
    assert driver.launches[-1].grid == (2, y, 1)
    # A pair of columns, and half as many rows
    launch(stencil, shape, [cuda_array(shape), cuda_array(shape, address=0x9000_0000), 2.0])
    assert driver.launches[-1].grid == (1, -(-rows // 4), 1)


def test_who_asks_for_one_by_one_has_all_blocks(driver):
    alone, size = nb.kernel(saxpy.function, simd=False), 256 * LARGE_GRID
    launch(alone, size, [cuda_array((size,)), cuda_array((size,), address=0x9000_0000), 2.0])
    assert driver.launches[-1].grid == (LARGE_GRID, 1, 1)
    # Nor is anything taken from a grid that was said.
    saxpy[LARGE_GRID, 256](cuda_array((size,)), cuda_array((size,), address=0x9000_0000), 2.0)
    assert driver.launches[-1].grid == (LARGE_GRID, 1, 1)
