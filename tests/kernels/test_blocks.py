"""Kernels whose threads work together in warps and blocks, on the CPU: the answers of CUDA, errors, and every way to launch."""

import enum
import re
import threading

import numpy as np
import pytest
from numba import cuda, njit

import block_kernels
import numbridge as nb
from emulated_cuda import emulated_cuda

FULL = 0xFFFFFFFF
random = np.random.default_rng(11)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", block_kernels.CASES, ids=lambda case: case.name)
def test_the_cpu_gives_the_answers_of_cuda(case):
    arguments = case.arguments()
    case.kernel[case.configuration](*arguments)
    case.check(arguments)


def integers(n):
    return np.random.default_rng(n).integers(-1000, 1000, n).astype(np.int32)


@nb.kernel
def reversed_blocks(x, y):
    i = nb.tid()
    k, size = cuda.threadIdx.x, min(cuda.blockDim.x, x.size - cuda.blockIdx.x * cuda.blockDim.x)
    shared = cuda.shared.array(1024, np.int32)
    shared[k] = x[i]
    cuda.syncthreads()
    y[i] = shared[size - 1 - k]


def reversed_in(x, size):
    return np.concatenate([x[k : k + size][::-1] for k in range(0, len(x), size)])


@pytest.mark.parametrize(("dim", "block_dim"), [(1, 256), (600, 256), (1024, 1024), (100_003, 96), (7, 3)])
def test_threads_beyond_the_launch_do_not_run_and_are_not_waited_for(dim, block_dim):
    x, y = integers(dim), np.full(dim + 5, -7, np.int32)
    nb.launch(reversed_blocks, dim, [x, y[:dim]], block_dim=block_dim)
    assert np.array_equal(y[:dim], reversed_in(x, block_dim)) and (y[dim:] == -7).all()


def test_launches_that_are_shared_out_and_several_at_once():
    x = integers(1 << 16)
    found = [np.zeros_like(x) for _ in range(8)]
    threads = [
        threading.Thread(
            target=lambda y=y: [nb.launch(reversed_blocks, len(x), [x, y], block_dim=64) for _ in range(20)]
        )
        for y in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(y, reversed_in(x, 64)) for y in found)


def test_a_launch_of_nothing():
    reversed_blocks.forall(0)(integers(3), np.zeros(3, np.int32))


@nb.kernel
def placed2(out):
    i, j = nb.tid()
    cuda.syncthreads()
    out[i, j] = ((cuda.blockIdx.x * 100 + cuda.blockIdx.y) * 100 + cuda.threadIdx.x) * 100 + cuda.threadIdx.y


@nb.kernel
def placed4(out):
    i, j, k, m = nb.tid()
    cuda.syncthreads()
    out[i, j, k, m] = ((i * 10 + j) * 10 + k) * 10 + m


def test_indices_of_several_dimensions():
    out = np.zeros((7, 6), np.int64)
    nb.launch(placed2, out.shape, [out], block_dim=4)
    i, j = np.indices(out.shape)
    assert np.array_equal(out, ((i // 4 * 100 + j) * 100 + i % 4) * 100)
    out = np.zeros((8, 6), np.int64)
    placed2[(2, 3), (4, 2)](out)
    i, j = np.indices(out.shape)
    assert np.array_equal(out, ((i // 4 * 100 + j // 2) * 100 + i % 4) * 100 + j % 2)
    out = np.zeros((5, 4, 3, 2), np.int64)
    nb.launch(placed4, out.shape, [out], block_dim=2)
    i, j, k, m = np.indices(out.shape)
    assert np.array_equal(out, ((i * 10 + j) * 10 + k) * 10 + m)


@nb.kernel
def unnumbered(count, lanes):
    if cuda.syncthreads_count(1) > 32 and cuda.laneid == cuda.warpsize - 1:
        nb.atomic_add(lanes, 0, 1)
    nb.atomic_add(count, 0, 1)


def test_a_kernel_that_does_not_ask_for_its_number():
    count, lanes = np.zeros(1, np.int32), np.zeros(1, np.int32)
    nb.launch(unnumbered, 100, [count, lanes], block_dim=64)
    # Of two blocks, of 64 and of 36 threads, three warps are whole.
    assert (count[0], lanes[0]) == (100, 3)
    unnumbered[2, 32](count, lanes)
    assert (count[0], lanes[0]) == (164, 3)


@nb.kernel
def left_early(x, out, limit):
    i = nb.tid()
    if i >= limit:
        return
    for trip in range(4):
        if x[i] < 0:
            out[i] = -1
            return
        out[i] += cuda.syncthreads_count(1 if x[i] > trip else 0)


def test_threads_that_return_are_not_waited_for():
    x = np.array([3, -1, 1, 2, 0, 5, -1, 9], np.int32)
    out = np.zeros(8, np.int32)
    left_early[1, 8](x, out, 7)
    counts = [np.count_nonzero(x[:7] > trip) for trip in range(4)]
    expected = np.where(x < 0, -1, sum(counts))
    expected[7] = 0
    assert np.array_equal(out, expected)


@nb.func
def halved(x, limit):
    for _ in range(10):
        if cuda.syncthreads_and(int(x < limit)):
            return x
        x //= 2
        cuda.syncthreads()
    return -1


@njit
def plus(a, b):
    return a + b


@nb.func
def of_block(x, scratch):
    scratch[cuda.threadIdx.x] = halved(x, 100)
    cuda.syncthreads()
    return plus(scratch[cuda.blockDim.x - 1 - cuda.threadIdx.x], halved(x, 10))


@nb.kernel
def through_functions(x, out):
    i = nb.tid()
    scratch = cuda.shared.array(32, np.int64)
    out[i] = of_block(x[i], scratch) + of_block(x[i] // 2, scratch)


def test_device_functions_that_wait_and_return_early():
    x = np.abs(integers(64)).astype(np.int64)
    out = np.zeros_like(x)
    through_functions[2, 32](x, out)

    def halved_in_python(x, limit):
        while not (x < limit).all():
            x = x // 2
        return x

    def part(x):
        return halved_in_python(x, 100)[::-1] + halved_in_python(x, 10)

    expected = np.concatenate([part(block) + part(block // 2) for block in x.reshape(2, 32)])
    assert np.array_equal(out, expected)


@nb.func
def turned(x, k):
    shared = cuda.shared.array(16, x.dtype)
    shared[k] = x[k]
    cuda.syncthreads()
    return shared[15 - k]


@nb.kernel
def of_two_types(a, b, out):
    k = cuda.threadIdx.x
    out[k] = turned(a, k) + turned(b, k)


def test_each_type_of_a_function_has_shared_memory_of_its_own():
    # Were it shared, thread 0 would write its b before thread 15 has read its a, and that beyond the end.
    a, b, out = np.arange(16, dtype=np.int8), np.arange(16) / 4.0, np.zeros(16)
    for one, other in ((a, b), (b, a), (a, a.astype(np.uint8))):
        of_two_types[1, 16](one, other, out)
        assert np.array_equal(out, one[::-1] + other[::-1].astype(np.float64))


@nb.func
def kept_if_positive(value, k):
    value = float(value)
    kept = cuda.shared.array(16, np.float64)
    if value > 0.0:
        kept[k] = value
    return kept[k]


@nb.func
def kept_of_pairs(pair, k):
    return kept_if_positive(pair[0], k) + kept_if_positive(pair[1], k)


@nb.kernel
def of_one_type_for_two(x, out):
    k = cuda.threadIdx.x
    of_numbers, of_integers = kept_of_pairs((x[k], k + 1), k), kept_if_positive(k + 2, k)
    out[k] = 100.0 * kept_if_positive(-x[k], k) + kept_if_positive(-k, k) + 0.0 * (of_numbers + of_integers)


def test_memory_is_that_of_the_arguments_types():
    """On CUDA each function that Numba compiles has shared arrays of its own, whatever is in them."""
    x, out = np.arange(1.0, 17.0), np.zeros(16)
    of_one_type_for_two[1, 16](x, out)
    assert np.array_equal(out, 100.0 * x + np.arange(16) + 2)
    # Which the kernel comes to by two ways each
    ptx = of_one_type_for_two.ptx(x, out, capability=(9, 0), plain=True)
    assert len(set(re.findall(r"\.shared .*?(_cudapy_smem\w*)\[", ptx))) == 2


PARTICLE = np.dtype([("x", np.float32), ("n", np.int32)], align=True)


@nb.kernel
def kept_across(p, v: nb.array[nb.vec3], out):
    i = nb.tid()
    own = cuda.local.array((2, 3), np.float32)
    for k in range(3):
        own[0, k] = v[i][k]
        own[1, k] = i
    u, q = 2.0 * v[i], p[i]
    cuda.syncthreads()
    v[i] = u + nb.vec3(own[1, 0], own[1, 1], own[0, 2])
    cuda.syncwarp()
    out[i] = own[0, 0] + own[0, 1] + u[2] + q.x * q.n


def test_what_a_thread_has_of_its_own_is_kept_where_it_waits():
    p = np.zeros(40, PARTICLE)
    p["x"], p["n"] = np.arange(40), 3
    v = np.random.default_rng(0).random((40, 3), np.float32)
    held, out = v.copy(), np.zeros(40, np.float32)
    nb.launch(kept_across, 40, [p, v, out], block_dim=32)
    np.testing.assert_allclose(out, held[:, 0] + held[:, 1] + 2 * held[:, 2] + 3 * np.arange(40), rtol=1e-6)
    added = np.stack([np.arange(40), np.arange(40), held[:, 2]], 1)
    np.testing.assert_allclose(v, 2 * held + added, rtol=1e-6)


@nb.kernel
def who_is_there(out):
    i = cuda.threadIdx.x
    if i % 3 == 0:
        out[i] = cuda.ballot_sync(cuda.activemask(), i > 5)
    else:
        out[i] = cuda.activemask()


def test_lanes_that_run_together():
    out = np.zeros(40, np.int64)
    who_is_there[1, 40](out)

    def mask(lanes, which):
        return sum(1 << k % 32 for k in lanes if which(k))

    for first, last in ((0, 32), (32, 40)):
        lanes = range(first, last)
        third = mask(lanes, lambda k: k % 3 == 0 and k > 5)
        assert {int(out[k]) & 0xFFFFFFFF for k in lanes if k % 3 == 0} == {third}
        assert {int(out[k]) for k in lanes if k % 3} == {mask(lanes, lambda k: k % 3 != 0)}


@nb.kernel
def grouped(x, out):
    i = cuda.threadIdx.x
    out[i] = cuda.match_any_sync(FULL, x[i])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "uint32", "uint64", "float16", "float32"])
def test_what_numba_cuda_converts_is_compared(dtype):
    x = np.array([3, 0, -3, 3, 1, 0, -1, 7]).astype(dtype)
    out = np.zeros(8, np.int64)
    grouped[1, 8](x, out)
    assert np.array_equal(out, [sum(1 << k for k in range(8) if x[k] == x[i]) for i in range(8)])


def test_floats_are_compared_by_their_bits():
    x = np.array([0.0, -0.0, np.nan, np.nan, 0.0, -np.nan, np.inf, -0.0])
    out = np.zeros(8, np.int64)
    grouped[1, 8](x, out)
    bits = x.view(np.int64)
    assert np.array_equal(out, [sum(1 << k for k in range(8) if bits[k] == bits[i]) for i in range(8)])


@nb.kernel
def heat(x, y, steps):
    i = cuda.grid(1)
    grid = cuda.cg.this_grid()
    for step in range(steps):
        if 0 < i < x.size - 1:
            if step % 2 == 0:
                y[i] = (x[i - 1] + 2 * x[i] + x[i + 1]) // 4
            else:
                x[i] = (y[i - 1] + 2 * y[i] + y[i + 1]) // 4
        grid.sync()


@nb.func
def after_all(grid, value, x):
    if value < 0:
        return 0
    grid.sync()
    return x[x.size - 1 - value]


@nb.kernel
def doubled_and_turned(x, y):
    i, j = nb.tid()
    shared = cuda.shared.array(4, np.int64)
    shared[cuda.threadIdx.x] = x[i * 5 + j]
    cuda.syncthreads()
    x[i * 5 + j] = 2 * shared[cuda.threadIdx.x]
    y[i, j] = after_all(cuda.cg.this_grid(), i * 5 + j if i != 3 else -1, x)


def test_blocks_that_wait_for_each_other():
    x = random.integers(0, 1000, 1000).astype(np.int64)
    wanted = x.copy()
    for _ in range(12):
        wanted[1:-1] = (wanted[:-2] + 2 * wanted[1:-1] + wanted[2:]) // 4
    heat[8, 128](x, x.copy(), 12)
    assert np.array_equal(x, wanted)
    x, y = np.arange(35), np.zeros((7, 5), np.int64)
    nb.launch(doubled_and_turned, (7, 5), [x, y], block_dim=4)
    wanted = 2 * np.arange(35)[::-1].reshape(7, 5)
    wanted[3] = 0
    assert np.array_equal(y, wanted) and np.array_equal(x, 2 * np.arange(35))


@nb.kernel
def at_two_barriers(x):
    if cuda.grid(1) > 70:
        cuda.syncthreads()
    else:
        cuda.cg.this_grid().sync()
    x[0] = 1


@nb.kernel
def raising_between(x):
    cuda.cg.this_grid().sync()
    assert cuda.grid(1) != 70
    cuda.cg.this_grid().sync()
    x[0] = 1


def test_blocks_that_wait_for_each_other_in_vain():
    x = np.zeros(1, np.int32)
    with pytest.raises(nb.KernelError, match="in block 1, thread 0 waits for all blocks of the grid, and others"):
        at_two_barriers[2, 64](x)
    with pytest.raises(nb.KernelError, match="raised an exception"):
        raising_between[2, 64](x)
    assert x[0] == 0


# --------------------------------------------------------------------------------------------------------------------
# Errors


@nb.kernel
def of_much_memory(x):
    huge = cuda.shared.array((1099511627776, 4096), np.float64)
    huge[0, cuda.threadIdx.x] = x[0]
    cuda.syncthreads()
    x[0] = huge[0, 0]


@nb.kernel
def of_given_memory(x):
    given = cuda.shared.array(0, np.float64)
    cuda.syncthreads()
    x[0] = given.size


def test_memory_that_there_is_not():
    x = np.zeros(1)
    with pytest.raises(nb.KernelError, match=r"'of_much_memory': there is no memory for \d+ bytes"):
        of_much_memory[1, 32](x)
    with pytest.raises(nb.KernelError, match=rf"'of_given_memory': there is no memory for {1 << 60} bytes"):
        of_given_memory[1, 32, 0, 1 << 60](x)
    assert x[0] == 0
    of_given_memory[1, 32, 0, 2047](x)
    assert x[0] == 255


@nb.kernel
def waiting_for_others(x):
    i = cuda.threadIdx.x
    if i < 40:
        cuda.syncthreads()
    else:
        cuda.syncwarp()
    x[i] = 1


@nb.kernel
def of_different_opinions(x):
    i = cuda.threadIdx.x
    x[i] = cuda.shfl_sync(FULL if i % 2 else FULL - 1, x[i], 0)


def test_threads_that_wait_for_each_other_in_vain():
    x = np.zeros(128, np.int32)
    with pytest.raises(nb.KernelError, match=r"'waiting_for_others': in block 0, thread 40 waits for lanes 0xffffffff"):
        waiting_for_others[2, 64](x)
    with pytest.raises(nb.KernelError, match=r"thread \d+ waits for lanes 0xfffffff.*same mask"):
        of_different_opinions[1, 32](x)
    with pytest.raises(nb.KernelError, match="raised an exception") as caught:
        raising[1, 32](x, 0)
    assert "waits for lanes" not in str(caught.value)


@nb.func
def refused(x):
    if x > 20:
        raise ValueError("too large")
    cuda.syncthreads()
    return x


@nb.kernel
def raising(x, how):
    i = cuda.threadIdx.x
    cuda.syncthreads()
    assert i < 100
    if how == 0 and i == 5:
        raise ValueError("five")
    if how == 1:
        x[i] = refused(i)
    cuda.syncthreads()
    for k in range(i, x.size, 1 - min(how, 1) + 1):
        if k > 1000:
            return
    x[i] += 100


@nb.kernel(check_bounds=True)
def out_of_bounds(x):
    i = cuda.threadIdx.x
    cuda.syncthreads()
    shared = cuda.shared.array(8, np.int32)
    shared[i % 8] = i
    x[i + 20] = shared[i % 8]


def test_a_thread_that_raises_ends_the_launch():
    x = np.zeros(32, np.int32)
    raising[1, 32](x, 2)
    assert (x == 100).all()
    for how, place in ((0, 'raise ValueError("five")'), (1, 'raise ValueError("too large")')):
        x[:] = 0
        with pytest.raises(nb.KernelError, match="raised an exception in one of its threads") as caught:
            raising[1, 32](x, how)
        assert place in str(caught.value) and (x < 100).all()
    with pytest.raises(nb.NumbridgeIndexError, match="index 32 is out of range for axis 0 of x, whose extent is 32"):
        out_of_bounds[1, 32](x)


@nb.kernel
def of_bytes(x):
    x[0] = cuda.shfl_sync(FULL, x[0], 0)


@nb.kernel
def of_truth(x):
    x[0] = cuda.syncthreads_count(x[0] > 0)


@nb.kernel
def of_any_size(x, n):
    shared = cuda.shared.array(n, np.int32)
    shared[0] = x[0]


@nb.func
def counted_down(n):
    cuda.syncwarp()
    return n if n <= 0 else counted_down(n - 1)


@nb.kernel
def of_itself(x):
    x[0] = counted_down(3)


@pytest.mark.parametrize(
    ("kernel", "arguments", "text"),
    [
        (of_itself, [np.zeros(1, np.int32)], "counted_down comes back to itself"),
        (of_bytes, [np.zeros(1, np.uint8)], "lanes exchange int32, int64, float32 and float64"),
        (of_truth, [np.zeros(1, np.int32)], "takes an integer as the predicate of a block"),
        (of_any_size, [np.zeros(1, np.int32), 3], "needs a constant shape"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_cannot_run_is_refused_with_its_place(kernel, arguments, text):
    with pytest.raises(nb.KernelError, match=text) as caught:
        nb.launch(kernel, 1, arguments)
    assert f"{__file__}:" in str(caught.value) and "^" in str(caught.value)


@nb.func
def is_done(done, i):
    return cuda.atomic.cas(done, i, 0, 0) != 0


@nb.kernel
def one_after_another(done, total):
    # Each thread waits for the next one, which comes later to where it is run from the first to the last.
    i, b = cuda.threadIdx.x, cuda.blockIdx.x
    for _ in range(1000):
        if i == cuda.blockDim.x - 1 or cuda.atomic.add(done, (b, i + 1), 0) != 0:
            break
    total[b, i] = 1.0 if i == cuda.blockDim.x - 1 else total[b, i + 1] + 1
    cuda.atomic.add(done, (b, i), 1)


@nb.kernel
def one_after_another_by_function(done, total):
    i, n = nb.tid(), cuda.blockDim.x
    tries = 0
    while i < n - 1 and tries < 1000 and not is_done(done, i + 1):
        tries += 1
    total[0, i] = 1.0 if i == n - 1 else total[0, i + 1] + 1
    cuda.threadfence()
    nb.atomic_exch(done, i, 1)
    cuda.syncthreads()
    total[1, i] = total[0, 0]


def test_threads_that_ask_memory_for_what_others_do_let_them_run():
    done, total = np.zeros((3, 70), np.int32), np.zeros((3, 70))
    one_after_another[3, 70](done, total)
    assert (total == 70 - np.arange(70)).all() and (done == 1).all()
    done, total = np.zeros(70, np.int32), np.zeros((2, 70))
    one_after_another_by_function[1, 70](done, total)
    assert (total[0] == 70 - np.arange(70)).all() and (total[1] == 70).all()


def test_what_threads_wait_for_in_memory_has_no_gradient():
    by_total = np.ones((1, 4))
    adjoints = {"adj_inputs": [None], "adj_outputs": [by_total], "adjoint": True}
    with pytest.raises(nb.KernelUnsupportedError, match=r"asks here what another has done.*\n.*\n +if i == "):
        nb.launch(one_after_another, 4, [np.zeros((1, 4), np.int32)], [np.zeros((1, 4))], block_dim=4, **adjoints)


SIZE = 8


@cuda.jit(device=True)
def turned_within(x, n, dtype):
    s = cuda.shared.array(n, dtype)
    i = cuda.threadIdx.x
    s[i] = x[i]
    cuda.syncthreads()
    return s[n - 1 - i]


@cuda.jit(device=True)
def turned_and_added(x, n, extra=2):
    t = cuda.local.array((n, extra), np.float32)
    t[0, 1] = 5
    return turned_within(x, n, np.float32) + t[0, 1]


@nb.kernel
def of_given_size(x, y):
    y[cuda.grid(1)] = turned_and_added(x, SIZE, 2)


@nb.kernel
def of_two_sizes(x, y):
    y[cuda.grid(1)] = turned_within(x, 8, np.float32) + turned_within(x, 16, np.float32)


@nb.kernel
def of_no_size(x, y):
    y[cuda.grid(1)] = turned_within(x, 0, np.float32)


def test_a_device_function_makes_memory_of_the_size_that_it_is_given(monkeypatch):
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    of_given_size[1, 8](x, y)
    assert y.tolist() == [12, 11, 10, 9, 8, 7, 6, 5]
    assert ".shared .align 4 .b8" in of_given_size.ptx(x, y, capability=(9, 0))
    a, b = (nb.array(array, device="cpu", requires_grad=True) for array in (x, y))
    with nb.Tape() as tape:
        nb.launch(of_given_size, 8, [a, b], block_dim=8)
    tape.backward(grads={b: nb.array(x, device="cpu")})
    assert a.grad.list() == [7, 6, 5, 4, 3, 2, 1, 0]
    monkeypatch.setitem(globals(), "SIZE", 4)
    with pytest.raises(nb.NumbridgeValueError, match=r"shared memory 's': its shape is \(4,\).*must have 8 elements"):
        of_given_size[1, 8](x, y)


class Extent(enum.IntEnum):
    ROWS = 4
    COLUMNS = 3


def of_shapes(rows, shape):
    @nb.kernel
    def squared(x, y):
        tile = cuda.shared.array(shape, np.float64)
        row = cuda.local.array(rows, np.float64)
        wide = cuda.local.array((rows + 1, Extent.COLUMNS), nb.float64)
        i, j = cuda.grid(1), cuda.threadIdx.x
        row[j] = x[i] * x[i]
        wide[rows, 2] = row[j] * 2.0
        tile[j, 1] = wide[rows, 2]
        cuda.syncthreads()
        y[i] = tile[rows - 1 - j, 1] * x[i]

    return squared


@pytest.mark.parametrize(
    ("rows", "shape"),
    [
        (np.int64(4), (np.int64(4), Extent.COLUMNS)),
        (np.int8(4), (np.uint8(4), np.uint64(3))),
        (Extent.ROWS, (Extent.ROWS, 3)),
    ],
    ids=["int64", "unsigned", "enumeration"],
)
def test_shapes_are_integers_of_any_kind(rows, shape):
    kernel, x, y = of_shapes(rows, shape), np.arange(1.0, 9.0), np.zeros(8)
    kernel[2, 4](x, y)
    other = np.concatenate([x[3::-1], x[:3:-1]])
    assert (y == 2 * other**2 * x).all()
    made = np.zeros(8)
    nb.launch(kernel, 8, [x], [y], adj_inputs=[made], adj_outputs=[np.ones(8)], adjoint=True, block_dim=4)
    assert np.allclose(made, 2 * other**2 + 4 * x * other)
    with emulated_cuda() as device:
        there = np.zeros(8)
        kernel[2, 4](device.on_device(x), device.on_device(there))
        assert (there == y).all()


def test_a_shape_that_changes_compiles_anew(monkeypatch):
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    for size in (np.int32(8), np.int64(16)):
        monkeypatch.setitem(globals(), "SIZE", size)
        y[:] = 0
        of_given_size[1, 8](x, y)
        assert size == 16 or y.tolist() == [12, 11, 10, 9, 8, 7, 6, 5]
        assert f"[{4 * size}]" in of_given_size.ptx(x, y, capability=(9, 0))
    monkeypatch.setitem(globals(), "SIZE", np.int64(4))
    with pytest.raises(nb.NumbridgeValueError, match=r"shared memory 's': its shape is \(4,\).*must have 8 elements"):
        of_given_size[1, 8](x, y)


def test_memory_of_sizes_that_are_not_one():
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    with pytest.raises(nb.KernelError, match="needs a constant shape"):
        of_two_sizes[1, 8](x, y)
    with pytest.raises(nb.KernelError, match=r"uses dynamic shared memory.*and this launch brings none"):
        of_no_size[1, 8](x, y)
