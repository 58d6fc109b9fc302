"""`block_dim` as a number of threads, or as the shape of a block: what kernels see, what is refused, on the CPU and on CUDA."""

import copy

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from block_dim_cases import TILE, factors, places, places2, places3, products
from emulated_cuda import emulated_cuda
from fake_cuda import cuda_array, fake_cuda
from numbridge.kernels.block_dims import block_dim_of
from numbridge.kernels.geometry import geometry_of


@pytest.fixture(params=["cpu", "cuda"])
def on(request):
    if request.param == "cpu":
        yield lambda array: array
        return
    with emulated_cuda() as device:
        yield device.on_device


@pytest.mark.parametrize(
    ("dims", "block"),
    [((7, 21), (2, 8)), ((7, 21), (5,)), ((7, 21), 5), ((1, 1), (32, 32)), ((9, 4), [3, 2]), ((6, 0), (2, 2))],
)
def test_what_threads_see_of_their_block(on, dims, block):
    out = np.full((*dims, 8), -1, np.int32)
    nb.launch(places2, dims, [on(out)], block_dim=block)
    assert np.array_equal(out, places(dims, block if isinstance(block, tuple | list) else (block,)))


@pytest.mark.parametrize("block", [(2, 3, 4), (2, 3), (1, 1, 5), np.int64(3)], ids=repr)
def test_blocks_of_three_axes(on, block):
    out = np.full((5, 6, 7, 12), -1, np.int32)
    places3.forall(out.shape[:3], block)(on(out))
    assert np.array_equal(out, places(out.shape[:3], block if isinstance(block, tuple) else (block,)))


@nb.kernel
def waiting4(out):
    i, j, k, m = nb.tid()
    seen = waited_for(1)
    out[i, j, k, m] += ((i * 10 + j) * 10 + k) * 10 + m + 100_000 * seen


@nb.func
def waited_for(one):
    return cuda.syncthreads_count(one)


@pytest.mark.parametrize("block", [(2, 2, 3), (1, 1, 6), (2,)])
def test_the_last_two_of_four_indices_share_an_axis(on, block):
    out = np.zeros((2, 4, 3, 5), np.int64)
    nb.launch(waiting4, out.shape, [on(out)], block_dim=block)
    i, j, k, m = np.indices(out.shape)
    a, b, c = (*block, 1, 1)[:3]
    along = np.minimum(c, 15 - (k * 5 + m) // c * c)
    assert np.array_equal(out, ((i * 10 + j) * 10 + k) * 10 + m + 100_000 * a * b * along)


@nb.kernel
def asking4(out):
    i, j, k, m = nb.tid()
    out[i, j, k, m] = cuda.threadIdx.x * 10 + cuda.threadIdx.y


def test_an_axis_that_two_indices_share_has_blocks_where_threads_wait_alone(on):
    out = np.zeros((3, 4, 2, 5), np.int64)
    nb.launch(asking4, out.shape, [on(out)], block_dim=(2, 3, 1))
    i, j, _, _ = np.indices(out.shape)
    assert np.array_equal(out, i % 2 * 10 + j % 3)
    with pytest.raises(nb.NumbridgeValueError, match="1 thread along axis 2, which the last two of four indices share"):
        nb.launch(asking4, out.shape, [on(out)], block_dim=(2, 3, 2))


@nb.kernel
def asking_beyond(out):
    i, j, k, m = nb.tid()
    out[i, j, k, m] = cuda.blockIdx.z


@nb.kernel
def counting_beyond(out):
    i, j, k, m = nb.tid()
    out[i, j, k, m] = cuda.gridsize(3)[2]


@pytest.mark.parametrize(("kernel", "what"), [(asking_beyond, "cuda.blockIdx.z"), (counting_beyond, "cuda.gridsize")])
def test_the_place_along_an_axis_that_two_indices_share_is_refused_on_the_cpu(kernel, what):
    out = np.zeros((3, 4, 2, 5), np.int64)
    with pytest.raises(nb.KernelUnsupportedError, match=f"{what} of a kernel with four thread indices, whose last two"):
        nb.launch(kernel, out.shape, [out])


def test_a_product_of_matrices_in_tiles_and_its_gradients(on):
    a, b = factors()
    c = np.zeros((8, 16), np.float32)
    nb.launch(products, c.shape, [on(a), on(b)], [on(c)], block_dim=(TILE, TILE))
    assert np.allclose(c, a @ b, atol=1e-5)
    by_c = np.random.default_rng(6).normal(size=c.shape).astype(np.float32)
    by_a, by_b = np.zeros_like(a), np.zeros_like(b)
    adjoints = {"adj_inputs": [on(by_a), on(by_b)], "adj_outputs": [on(by_c.copy())]}
    nb.launch(products, c.shape, [on(a), on(b)], [on(c)], **adjoints, adjoint=True, block_dim=(TILE, TILE))
    assert np.allclose(by_a, by_c @ b.T, atol=1e-5) and np.allclose(by_b, a.T @ by_c, atol=1e-5)


def test_recorded_launches_keep_the_shape_of_their_blocks():
    a, b = factors()
    c = np.zeros((8, 16), np.float32)
    command = nb.launch(products, c.shape, [a, b], [c], block_dim=(TILE, TILE), record_cmd=True)
    command.launch()
    assert np.allclose(c, a @ b, atol=1e-5)
    out = np.full((7, 21, 8), -1, np.int32)
    command = nb.launch(places2, (1, 1), [out], block_dim=(2, 8), record_cmd=True)
    copied = copy.copy(command)
    copied.set_dim(out.shape[:2])
    copied.launch()
    assert np.array_equal(out, places((7, 21), (2, 8)))


def test_a_tape_goes_back_in_blocks_of_the_same_shape():
    a, b = (nb.array(x, requires_grad=True, device="cpu") for x in factors())
    c = nb.zeros((8, 16), np.float32, requires_grad=True, device="cpu")
    with nb.Tape() as tape:
        nb.launch(products, c.shape, [a, b], [c], block_dim=(TILE, TILE))
    tape.backward(grads={c: nb.ones((8, 16), np.float32, device="cpu")})
    ones = np.ones((8, 16), np.float32)
    assert np.allclose(a.grad.numpy(), ones @ b.numpy().T, atol=1e-5)
    assert np.allclose(b.grad.numpy(), a.numpy().T @ ones, atol=1e-5)


@nb.kernel
def numbered2(out):
    i, j = nb.tid()
    out[i, j] += i * 100 + j


@nb.kernel
def counted(total):
    nb.atomic_add(total, 0, 1)


def test_a_kernel_that_does_not_ask_for_its_block_has_its_last_index_along_x():
    with fake_cuda() as driver:
        nb.launch(numbered2, (30, 50), [cuda_array((30, 50))], block_dim=(4, 32))
        nb.launch(counted, (30, 50), [cuda_array((1,), np.int32)], block_dim=(4, 32))
        shapes = [(launched.grid, launched.block) for launched in driver.launches]
    assert shapes == [((2, 8, 1), (32, 4, 1)), ((12, 1, 1), (128, 1, 1))]


def test_every_thread_runs_once(on):
    out, total = np.zeros((30, 50), np.int64), np.zeros(1, np.int32)
    nb.launch(numbered2, out.shape, [on(out)], block_dim=(4, 32), max_blocks=3)
    i, j = np.indices(out.shape)
    assert np.array_equal(out, i * 100 + j)
    nb.launch(counted, out.shape, [on(total)], block_dim=(4, 32))
    assert total[0] == 1500


@nb.kernel
def of_any_rank(x):
    x[0] = 1


REFUSED = [
    (True, nb.NumbridgeTypeError, "wanted an int from 1 to 1024, or a tuple of up to 3 ints, got True"),
    (1.0, nb.NumbridgeTypeError, "wanted an int from 1 to 1024, or a tuple of up to 3 ints, got 1.0"),
    (None, nb.NumbridgeTypeError, "up to 3 ints, got None"),
    ((8, 2.0), nb.NumbridgeTypeError, r"up to 3 ints, got \(8, 2.0\)"),
    ((8, True), nb.NumbridgeTypeError, r"up to 3 ints, got \(8, True\)"),
    ((8, [1]), nb.NumbridgeTypeError, r"up to 3 ints, got \(8, \[1\]\)"),
    (np.array([8, 1]), nb.NumbridgeTypeError, r"up to 3 ints, got array\(\[8, 1\]\)"),
    (0, nb.NumbridgeValueError, "wanted an int from 1 to 1024, got 0"),
    (1025, nb.NumbridgeValueError, "wanted an int from 1 to 1024, got 1025"),
    ((), nb.NumbridgeValueError, r"wanted an int, or a tuple of 1 to 2 ints.*2 dimension\(s\), got \(\)"),
    (
        (1, 2, 3),
        nb.NumbridgeValueError,
        r"a tuple of 1 to 2 ints, since the launch has 2 dimension\(s\), got \(1, 2, 3\)",
    ),
    ((8, 0), nb.NumbridgeValueError, r"wanted 1 thread or more along each axis, got \(8, 0\)"),
    ((-8, -2), nb.NumbridgeValueError, r"wanted 1 thread or more along each axis, got \(-8, -2\)"),
    ((64, 32), nb.NumbridgeValueError, r"wanted up to 1024 threads in all, got \(64, 32\), which are 2048"),
]


@pytest.mark.parametrize(("block", "error", "text"), REFUSED, ids=lambda value: repr(value)[:20])
def test_blocks_that_there_are_not(block, error, text):
    out = np.full((4, 4, 8), -1, np.int32)
    # Those that equal a bool or a float are known already.
    for known in (1, (8, 1), (8, 2)):
        nb.launch(places2, (1, 1), [out], block_dim=known)
    text = f"block_dim of kernel 'places2': .*{text}"
    for way in (
        lambda: nb.launch(places2, (4, 4), [out], block_dim=block),
        lambda: nb.launch(places2, (4, 4), [out], block_dim=block, record_cmd=True),
        lambda: nb.launch(places2, (4, 4), [out], block_dim=block, device="cpu"),
        lambda: places2.forall((4, 4), block),
    ):
        with pytest.raises(error, match=text):
            way()
    assert (out[1:] == -1).all()


def test_an_int_that_is_remembered_is_not_taken_for_a_bool():
    total = np.zeros(1, np.int32)
    nb.launch(counted, 3, [total], block_dim=1)
    with pytest.raises(nb.NumbridgeTypeError, match="got True"):
        nb.launch(counted, 3, [total], block_dim=True)
    assert total[0] == 3


def test_the_limit_along_z_is_that_of_the_axis_which_runs_there():
    with pytest.raises(
        nb.NumbridgeValueError, match=r"wanted up to 64 threads along axis 2, which is z on CUDA, got \(1, 1, 65\)"
    ):
        geometry_of(places3, (4, 4, 4), (1, 1, 65))
    assert geometry_of(places3, (4, 4, 4), (1, 128)).cuda_block == (1, 128, 1)


def test_equal_blocks_are_looked_up():
    assert places2.forall((4, 4), (2, 8)) is places2.forall((4, 4), (2, 8))
    assert places2.forall((4, 4), np.int64(8)) is places2.forall((4, 4), 8)
    assert block_dim_of(of_any_rank, [np.int32(2), 3], 2) == (2, 3)


@nb.kernel
def rows_by_block(out):
    i, j = nb.tid()
    out[i, j] = cuda.blockIdx.y


@nb.kernel
def shared_sums(x, total):
    i, t = nb.tid(), cuda.threadIdx.x
    part = cuda.shared.array(32, np.float64)
    part[t] = x[i]
    cuda.syncthreads()
    if t == 0:
        for k in range(32):
            nb.atomic_add(total, 0, part[k])


@pytest.mark.parametrize("most", [1, 2])
def test_a_block_that_threads_know_is_not_several(on, most):
    total = np.zeros(1)
    text = f"max_blocks of kernel 'shared_sums': wanted 3 blocks or more, as many as the launch has, got {most}: its threads ask"
    with pytest.raises(nb.NumbridgeValueError, match=text):
        nb.launch(shared_sums, 96, [on(np.ones(96)), on(total)], block_dim=32, max_blocks=most)
    assert total[0] == 0
    nb.launch(shared_sums, 96, [on(np.ones(96)), on(total)], block_dim=32, max_blocks=3)
    assert total[0] == 96


def test_more_of_such_blocks_than_cuda_has_are_refused():
    with fake_cuda() as driver:
        large, small = cuda_array((1, 65537)), cuda_array((1, 4))
        with pytest.raises(
            nb.NumbridgeValueError, match="65537 blocks along y, and CUDA has up to 65535 there; put more"
        ):
            nb.launch(rows_by_block, (1, 65537), [large], block_dim=1)
        nb.launch(rows_by_block, (1, 4), [small], block_dim=1)
        # Compiled code, which knows these arguments now, leaves it to the driver.
        nb.launch(rows_by_block, (1, 65537), [large], block_dim=1)
        assert [launched.grid for launched in driver.launches] == [(1, 4, 1), (1, 65537, 1)]
