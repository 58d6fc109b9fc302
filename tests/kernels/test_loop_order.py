"""The CPU's inner loop runs along the index by which neighbours lie side by side; every thread keeps its own indices."""

import numpy as np
import numpy.testing as npt
import pytest
from numba import cuda

import numbridge as nb
from numbridge.kernels.cpu_backend.loop_order import loop_order
from numbridge.kernels.parameter_types import ArrayType
from numbridge.kernels.scalars import by_name


@nb.kernel
def image(a, b):
    x, y = cuda.grid(2)
    if y < a.shape[0] and x < a.shape[1]:
        b[y, x] = 2 * a[y, x]


@nb.kernel
def rows(a, b):
    i, j = nb.tid()
    b[i, j] = 2 * a[i, j]


@nb.kernel
def turned(a, b):
    i, j = nb.tid()
    b[j, i] = a[i, j]


@nb.kernel
def gathered(a, places, b):
    i, j = nb.tid()
    b[j] += a[i, j] * a[places[i], j] + a[j, i]


@nb.kernel
def flat(a, b, width):
    x, y = nb.tid()
    place = y * width + x
    b[place] = a[place]


@nb.kernel
def volume(a, b):
    x, y, z = cuda.grid(3)
    b[z, y, x] = a[z, y, x]


@nb.kernel
def channels(a, b):
    x, y, c = nb.tid()
    b[y, x, c] = a[y, x, c]


@nb.func
def doubled(a, row, column):
    return 2 * a[row, column]


@nb.kernel
def by_function(a, b):
    x, y = nb.tid()
    b[0] = doubled(a, y, x)


@nb.kernel
def spelled(a, b):
    x = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    y = cuda.threadIdx.y + cuda.blockDim.y * cuda.blockIdx.y
    b[y, x] = a[y, x]


@nb.kernel
def in_a_loop(a, b):
    i, j = nb.tid()
    s = 0.0
    for k in range(a.shape[0]):
        s += a[j + k, i]
    b[i, j] = s


@nb.kernel
def added(a, b):
    x, y = nb.tid()
    cuda.atomic.add(b, (y, x), a[y, x])


ORDERS = [
    (image, (1, 0), 2),
    (rows, (0, 1), 2),
    (turned, (0, 1), 2),
    (gathered, (0, 1), 2),
    (flat, (1, 0), 1),
    (volume, (2, 1, 0), 3),
    (channels, (1, 0, 2), 3),
    (by_function, (1, 0), 2),
    (spelled, (1, 0), 2),
    (in_a_loop, (1, 0), 2),
    (added, (1, 0), 2),
]


def arrays_of(kernel, ndim, *, contiguous=True):
    return [ArrayType(p.name, by_name("float32"), ndim, contiguous, True) for p in kernel.parameters]


@pytest.mark.parametrize(("kernel", "order", "ndim"), ORDERS, ids=lambda part: getattr(part, "name", None))
def test_the_inner_loop_takes_the_index_along_which_memory_runs(kernel, order, ndim):
    assert loop_order(kernel.source, arrays_of(kernel, ndim)) == order


def test_nothing_is_known_of_arrays_that_do_not_lie_densely():
    assert loop_order(image.source, arrays_of(image, 2, contiguous=False)) == (0, 1)


@nb.kernel
def places(out):
    x, y, z = cuda.grid(3)
    if x < out.shape[2] and y < out.shape[1] and z < out.shape[0]:
        out[z, y, x] = x + 100 * y + 10_000 * z + 1_000_000 * cuda.threadIdx.x + 10_000_000 * cuda.blockIdx.y
        out[z, y, x] += 100_000_000 * cuda.blockDim.z + 1_000_000_000 * cuda.gridDim.x


def test_every_thread_keeps_its_place_in_the_block_and_the_grid():
    out = np.full((5, 6, 7), -1, np.int64)
    places[(2, 3, 4), (4, 2, 3)](out)  # more threads than elements along each axis but y
    z, y, x = np.indices(out.shape)
    expected = (
        x + 100 * y + 10_000 * z + 1_000_000 * (x % 4) + 10_000_000 * (y // 2) + 100_000_000 * 3 + 1_000_000_000 * 2
    )
    npt.assert_array_equal(out, expected)
    assert "_nb_t2" in str(places.explain(out).source)  # cuda.threadIdx.x, along the inner loop


def test_a_launch_that_cuts_blocks_off_runs_the_same_threads():
    a, b = np.random.rand(2, 30, 40).astype(np.float32)
    expected = np.zeros_like(a)
    expected[:20, :33] = 2 * a[:20, :33]
    b[:] = 0
    nb.launch(image, (33, 20), [a, b], block_dim=(16, 4))
    npt.assert_array_equal(b, expected)


@nb.kernel
def strided(a, b):
    x, y = cuda.grid(2)
    for row in range(y, a.shape[0], cuda.gridsize(2)[1]):
        for column in range(x, a.shape[1], cuda.gridDim.x * cuda.blockDim.x):
            b[row, column] += a[row, column] + column


@nb.kernel
def strided_one_way(a, b):
    x, y = cuda.grid(2)
    for column in range(x, a.shape[1], cuda.gridDim.x * cuda.blockDim.x):
        if y < a.shape[0]:
            b[y, column] += a[y, column] + column


@pytest.mark.parametrize(
    ("kernel", "grid"), [(strided, (2, 3)), (strided_one_way, (2, 9))], ids=("both ways", "one way")
)
def test_loops_over_the_grid_take_the_steps_of_their_own_axis(kernel, grid):
    a, b = np.random.rand(2, 33, 50)
    expected = b + (a + np.arange(50))
    kernel[grid, (5, 4)](a, b)
    npt.assert_array_equal(b, expected)


@nb.kernel
def blurred(a: nb.array2d[nb.float64], weights: nb.array[nb.float64], b: nb.array2d[nb.float64]):
    x, y = cuda.grid(2)
    if 0 < x < a.shape[1] - 1 and y < a.shape[0]:
        s = 0.0
        for k in range(3):
            s += weights[k] * nb.sin(a[y, x + k - 1] * a[y, x])
        b[y, x] = s


@nb.kernel
def blurred_in_rows(a: nb.array2d[nb.float64], weights: nb.array[nb.float64], b: nb.array2d[nb.float64]):
    y, x = cuda.grid(2)
    if 0 < x < a.shape[1] - 1 and y < a.shape[0]:
        s = 0.0
        for k in range(3):
            s += weights[k] * nb.sin(a[y, x + k - 1] * a[y, x])
        b[y, x] = s


def test_derivatives_are_those_of_the_kernel_with_its_indices_exchanged():
    a, weights, cotangent = np.random.rand(40, 70), np.random.rand(3), np.random.rand(40, 70)
    found = []
    for kernel, dim in ((blurred, (70, 40)), (blurred_in_rows, (40, 70))):
        b, by_a, by_weights = np.zeros_like(a), np.zeros_like(a), np.zeros_like(weights)
        nb.launch(kernel, dim, [a, weights], [b])
        adjoints = {"adj_inputs": [by_a, by_weights], "adj_outputs": [cotangent], "adjoint": True}
        nb.launch(kernel, dim, [a, weights], [b], **adjoints)
        found.append((b, by_a, by_weights))
    for one, other in zip(*found, strict=True):
        npt.assert_allclose(one, other, rtol=1e-13)
    step = 1e-6 * np.random.rand(40, 70)
    ends = []
    for moved in (a + step, a - step):
        b = np.zeros_like(a)
        nb.launch(blurred, (70, 40), [moved, weights], [b])
        ends.append((b * cotangent).sum())
    npt.assert_allclose((found[0][1] * step).sum(), (ends[0] - ends[1]) / 2, rtol=1e-6)


def test_operators_have_second_derivatives_whichever_index_comes_first():
    torch = pytest.importorskip("torch")
    blur = nb.torch_op(
        blurred,
        outputs="b",
        launch_dims=lambda a, w: a.shape[::-1],
        output_dims=lambda a, w: a.shape,
        name="order::blur",
    )
    a, weights = torch.rand(4, 5, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    given = a.requires_grad_(), weights.requires_grad_()
    assert torch.autograd.gradcheck(blur, given) and torch.autograd.gradgradcheck(blur, given)
