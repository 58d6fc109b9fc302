"""Threads of the CPU that ask for their block and their place in it, without waiting for others, get what they would on CUDA."""

import re
from types import FunctionType, SimpleNamespace

import numpy as np
import numpy.testing as npt
import pytest
from numba import cuda

import numbridge as nb

X = np.random.default_rng(7).random((12, 23))
LARGE, WEIGHTS = np.random.default_rng(9).random((2, 700, 1000), np.float32)
ROW, COLUMN = np.indices(LARGE.shape)


@nb.kernel
def rows(x, y):
    row, column = cuda.blockIdx.x, cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        y[row, column] = x[row, column] * (1 + row) + column


@nb.kernel
def turns(x, y):
    row = cuda.blockIdx.x
    if row >= x.shape[0]:
        return
    for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        y[row, column] = x[row, column] * (1 + row) + column


@nb.kernel
def turns_while(x, y):
    row = cuda.blockIdx.x
    if row >= x.shape[0]:
        return
    column = cuda.threadIdx.x + 1
    while column < x.shape[1]:
        y[row, column] = 2 * x[row, column]
        column += cuda.blockDim.x


@nb.kernel
def turns_of_both(x, y):
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        for column in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            y[row, column] = x[row, column] + 10 * row + column


@nb.kernel
def triangle(x, y):
    row = cuda.blockIdx.x
    if row < x.shape[0]:
        for column in range(cuda.threadIdx.x, row + 1, cuda.blockDim.x):
            y[row, column] = x[row, column]


@nb.kernel
def tiles(x, y):
    i = cuda.blockIdx.y * 3 + cuda.threadIdx.y
    j = cuda.blockIdx.x * 4 + cuda.threadIdx.x
    if i < x.shape[0] and j < x.shape[1]:
        y[i, j] = x[i, j] + i


@nb.kernel
def tiles_in_turns(x, y):
    for i in range(cuda.threadIdx.y, x.shape[0], cuda.blockDim.y):
        for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            if cuda.blockIdx.x == 0 and cuda.blockIdx.y == 0:
                y[i, j] = x[i, j] + i * j


@nb.kernel
def tiles_over_the_grid(x, y):
    for i in range(cuda.blockIdx.y, x.shape[0], cuda.gridDim.y):
        for j in range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, x.shape[1], cuda.gridsize(1)):
            if cuda.threadIdx.y == 0:
                y[i, j] = x[i, j] + i * j


@nb.kernel
def both_ways(x, y):
    for start in range(cuda.grid(1), x.shape[1], cuda.gridsize(1)):
        for j in range(start, x.shape[1], cuda.gridsize(1)):
            cuda.atomic.add(y, (0, j), x[0, j])


@nb.kernel
def place_in_turns(x, y):
    t = cuda.threadIdx.x
    for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        if cuda.blockIdx.x == 0:
            y[0, j] = x[0, j] + t


@nb.kernel
def block_over_the_grid(x, y):
    b = cuda.blockIdx.x
    for j in range(cuda.grid(1), x.shape[1], cuda.gridsize(1)):
        y[1, j] = x[1, j] + b + cuda.threadIdx.x


@nb.kernel
def guarded_turns(x, y):
    if cuda.threadIdx.x < 2 and cuda.blockIdx.x < x.shape[0]:
        for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            y[cuda.blockIdx.x, j] = x[cuda.blockIdx.x, j]


@nb.kernel
def first_of_blocks(x, y):
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x < x.shape[1]:
        y[0, cuda.blockIdx.x] = x[0, cuda.blockIdx.x]


@nb.kernel
def last_of_blocks(x, y):
    block, thread = cuda.blockIdx.x, cuda.threadIdx.x
    if thread == cuda.blockDim.x - 1 and block < x.shape[1]:
        y[0, block] = x[0, block] + thread


@nb.kernel
def own_spelled(x, y):
    tx, bx, width = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockDim.x
    base = bx * width
    j = base + tx
    if j < x.shape[1]:
        y[3, j] = 3 * x[3, j] + tx


@nb.kernel
def summed(x, y):
    row, s = cuda.blockIdx.x, 0.0
    if row < x.shape[0]:
        for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            s += x[row, j]
        cuda.atomic.add(y, (row, 0), s)


@nb.kernel
def summed_up(x, y):
    for i in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            cuda.atomic.add(y, (0, 0), x[i, j] * (i + 1) + j)


@nb.kernel
def with_a_loop(x, y):
    row, column = cuda.blockIdx.x, cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        s = 0.0
        for k in range(x.shape[0]):
            s += x[k, column] * (k + row)
        y[row, column] = s


@nb.kernel
def rows_with_a_loop(x, y):
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        column = cuda.threadIdx.x
        if column < x.shape[1]:
            s = 0.0
            for k in range(row + 1):
                s += x[k, column]
            y[row, column] = s


@nb.func
def place(scale):
    return scale * cuda.threadIdx.x + cuda.blockIdx.x


@nb.kernel
def by_function(x, y):
    row, column = cuda.blockIdx.x, cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        y[row, column] = x[row, column] + place(100)


@nb.kernel
def neighbours(x, y):
    row, column, n = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    if row < x.shape[0] and n <= x.shape[1]:
        y[row, column] = x[row, (column + 1) % n] - x[row, (column + n - 1) % n]


@nb.kernel
def backwards(x, y):
    row, column = cuda.blockIdx.x, x.shape[1] - 1 - cuda.threadIdx.x
    if row < x.shape[0] and column >= 0:
        y[row, column] = x[row, column] + cuda.gridDim.x


@nb.kernel
def deep(x, y):
    i, j = cuda.blockIdx.z * cuda.blockDim.y + cuda.threadIdx.y, cuda.threadIdx.x * cuda.gridDim.x + cuda.blockIdx.x
    if i < x.shape[0] and j < x.shape[1] and cuda.threadIdx.z == 0 and cuda.blockIdx.y == 0:
        y[i, j] = x[i, j] + cuda.threadIdx.z


@nb.kernel
def summed_by_rows(x, y):
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        s = 0.0
        for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            s += x[row, j] + 0.5 * x[row, j] * x[row, j]
        cuda.atomic.add(y, (row, 0), s)


@nb.kernel
def with_the_next(x, y):
    row = cuda.blockIdx.x
    for j in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        y[row, j] = x[row, j]
        if j + 1 < x.shape[1]:
            y[row, j] += 2 * x[row, j + 1]


ALL = [
    rows,
    turns,
    turns_while,
    turns_of_both,
    triangle,
    tiles,
    tiles_in_turns,
    tiles_over_the_grid,
    both_ways,
    place_in_turns,
    block_over_the_grid,
    guarded_turns,
    first_of_blocks,
    last_of_blocks,
    own_spelled,
    summed,
    summed_up,
    with_a_loop,
    rows_with_a_loop,
    by_function,
    neighbours,
    backwards,
    deep,
]
LAUNCHES = [
    ((1,), (1,)),
    ((12,), (23,)),
    ((15,), (32,)),
    ((5,), (4,)),
    ((24,), (1,)),
    ((6, 4), (4, 3)),
    ((2, 5), (16, 2)),
    ((3, 2, 4), (8, 3, 2)),
    ((12, 1, 1), (1, 2, 3)),
]


class _Memory(SimpleNamespace):
    @staticmethod
    def add(array, index, value):
        array[index] += value


def as_python(kernel, blocks, threads, *arguments):
    """Run a kernel's function in Python, thread by thread."""
    blocks, threads = ((*shape, 1, 1)[:3] for shape in (blocks, threads))
    for block in np.ndindex(*blocks):
        for thread in np.ndindex(*threads):
            at = [SimpleNamespace(x=p[0], y=p[1], z=p[2]) for p in (thread, block, threads, blocks)]
            names = dict(zip(("threadIdx", "blockIdx", "blockDim", "gridDim"), at, strict=True))
            own, size = block[0] * threads[0] + thread[0], threads[0] * blocks[0]
            stand_in = SimpleNamespace(
                **names, atomic=_Memory, grid=lambda _, own=own: own, gridsize=lambda _, n=size: n
            )
            found = {"cuda": stand_in, "range": range}
            found["place"] = FunctionType(place.__wrapped__.__code__, found)
            FunctionType(kernel.source.function.__code__, found)(*arguments)


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_threads_are_told_their_block_and_place(kernel, launch):
    launch = [shape[: kernel.source.index_rank] for shape in launch]
    expected, found = np.zeros((2, *X.shape))
    as_python(kernel, *launch, X, expected)
    kernel[*launch](X, found)
    npt.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_gradients_of_what_threads_do_at_their_place(kernel, launch):
    launch = [shape[: kernel.source.index_rank] for shape in launch]
    moved, still = np.zeros((2, *X.shape))
    step, weights = np.random.default_rng(8).random((2, *X.shape))
    as_python(kernel, *launch, X + step, moved)
    as_python(kernel, *launch, X, still)
    x, y = nb.array(X, requires_grad=True), nb.zeros(X.shape, dtype=nb.float64, requires_grad=True)
    with nb.Tape() as tape:
        kernel[*launch](x, y)
    tape.backward(grads={y: nb.array(weights)})
    npt.assert_allclose((x.grad.numpy() * step).sum(), (weights * (moved - still)).sum(), rtol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "count"),
    [
        (turns, 1),
        (turns_while, 1),
        (turns_of_both, 2),
        (triangle, 1),
        (tiles_in_turns, 2),
        (summed_up, 2),
        (guarded_turns, 0),  # what the guard asks of the place is not asked in every trip
        (place_in_turns, 0),
        (block_over_the_grid, 0),
        (tiles_over_the_grid, 2),
        (both_ways, 1),  # the inner loop starts where the outer one is
        (summed, 0),
    ],
    ids=lambda part: getattr(part, "name", None),
)
def test_loops_of_blocks_and_of_their_threads_are_taken_out(kernel, count):
    text = str(kernel.explain(X, np.zeros_like(X)).source)
    assert len(re.findall(r"while _nb_(?:base|turn)\d", text)) == count


@pytest.mark.parametrize(
    ("kernel", "launch", "expected"),
    [
        (rows, (700, 1000), WEIGHTS * (1 + ROW)),
        (turns, (700, 96), WEIGHTS * (1 + ROW)),
        (turns_of_both, (33, 224), WEIGHTS),
        (summed, (700, 64), np.repeat(WEIGHTS[:, :1], 1000, axis=1)),
        (summed_by_rows, (40, 64), WEIGHTS[:, :1] * (1 + LARGE)),
        (with_the_next, (700, 64), WEIGHTS + np.hstack([0 * WEIGHTS[:, :1], 2 * WEIGHTS[:, :-1]])),
        (tiles, ((250, 234), (4, 3)), WEIGHTS),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_gradients_of_blocks_at_once(kernel, launch, expected):
    x, y = nb.array(LARGE, requires_grad=True), nb.zeros(LARGE.shape, dtype=nb.float32, requires_grad=True)
    with nb.Tape() as tape:
        kernel[launch](x, y)
    for _ in range(5):
        tape.zero()
        tape.backward(grads={y: nb.array(WEIGHTS)})
        npt.assert_allclose(x.grad.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", [k for k in ALL if k is not own_spelled], ids=lambda k: k.name)
def test_nobody_divides_for_a_place(kernel):
    text = str(kernel.explain(X, np.zeros_like(X)).source)
    assert not re.search(r"_nb_i\d (?://|%) _nb_b\d", text)


@pytest.mark.parametrize(
    ("kernel", "launch", "expected"),
    [
        (rows, (700, 1000), LARGE * (1 + ROW) + COLUMN),
        (turns, (700, 96), LARGE * (1 + ROW) + COLUMN),
        (turns_of_both, (33, 224), LARGE + 10 * ROW + COLUMN),
        (triangle, (700, 64), LARGE * (COLUMN <= ROW)),
        (tiles, ((250, 234), (4, 3)), LARGE + ROW),
        (tiles_over_the_grid, ((10, 30), (32, 2)), LARGE + ROW * COLUMN),
        (first_of_blocks, (1000, 33), LARGE * (ROW == 0)),
        (by_function, (700, 1000), LARGE + 100 * COLUMN + ROW),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_ranges_of_workers_begin_and_end_within_blocks(kernel, launch, expected):
    found = np.zeros_like(LARGE)
    kernel[launch](LARGE, found)
    npt.assert_allclose(found, expected, rtol=1e-5)


def test_a_launch_that_ends_within_a_block_runs_those_threads():
    found = np.zeros((3, 8))
    nb.launch(rows, 20, [X, found], block_dim=8)
    expected = X[:3, :8] * (1 + np.arange(3)[:, None]) + np.arange(8)
    expected[2, 4:] = 0
    npt.assert_allclose(found, expected)
