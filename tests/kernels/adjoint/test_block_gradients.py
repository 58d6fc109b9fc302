"""Derivatives of kernels whose threads work together: barriers, shared memory and lanes of a warp, forth and back."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import resource
from collections import Counter

import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from block_adjoint_as_python import check as check_thread_by_thread
from block_adjoint_as_python import check_text
from block_gradient_cases import (
    CASES,
    ON_CUDA,
    check,
    check_on_cuda,
    check_second,
    name_of,
    stepped,
    sums_of_squares,
    uniform,
    zeros,
)
from block_gradient_programs import case, check_program
from emulated_cuda import emulated_cuda
from emulated_cupy import emulated_devices
from numbridge.kernels.adjoint.forward_sweep import INTERVALS


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_derivatives_are_those_of_differences(case):
    check(case)


# An adjoint of a tangent, both of which the other tests have of every case
@pytest.mark.one_in(3, first=2)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_second_derivatives_are_differences_of_gradients(case):
    check_second(case)


# Of the first, those that compile in seconds; some take a minute or two.
FEW = (1, 5, 6, 7)


@pytest.mark.parametrize("seed", range(int(count)) if (count := os.environ.get("NUMBRIDGE_BLOCK_GRADIENTS")) else FEW)
def test_random_programs(seed, tmp_path):
    check_program(seed, tmp_path)


def test_random_programs_thread_by_thread():
    """Adjoints do not race, and are right in whatever order threads come between barriers."""
    checked = Counter()
    for seed in range(int(os.environ.get("NUMBRIDGE_BLOCK_GRADIENTS", "45"))):
        found = check_thread_by_thread(seed)
        if found is not None:
            text, stacks = found
            checked.update(
                kernels=1,
                stacks=stacks > 0,
                intervals=INTERVALS in text,
                alike="_nb_exchanged" in text or "_nb_stack_remember_other" in text,
            )
    assert min(checked[what] for what in ("stacks", "intervals", "alike")) >= 4, checked


ALIKE = """def generated(x, y, e, n):
    t, i, k = cuda.threadIdx.x, cuda.grid(1), 1
    total = x[i]
    s = cuda.shared.array(6, float64)
    s[t] = x[t]
    cuda.syncthreads()
    for k in range(n):
        cuda.syncthreads()
        total = 0.9 * total + math.sin(s[0] * total)
        cuda.syncthreads()
        {}
    cuda.syncthreads()
    y[i] = total * s[0]
"""
STORED_ALIKE = {
    "by all": "s[0] = x[1] * (k + 1)",
    "by some": "if t < 4: s[0] = x[1] * (k + 1)",
    "in each trip of a loop of their own": "for j in range(3): s[0] = x[2]",
    "in memory that is logged": "e[3] = math.sin(x[2]); cuda.syncthreads(); total += e[3]",
}


@pytest.mark.parametrize("store", STORED_ALIKE.values(), ids=STORED_ALIKE)
def test_threads_that_store_alike_bring_back_what_was_there(store):
    """In whatever order they take their steps: one must not store the number again that another has just undone."""
    for seed in (3, 5, 11):
        assert check_text(ALIKE.format(store), seed) is not None


@pytest.fixture
def device():
    with emulated_cuda() as emulation:
        yield emulation


def check_emulated(device, case):
    memory = {}

    def there(array):
        made = device.on_device(array)
        memory[id(made)] = made, array
        return made

    check_on_cuda(case, there, lambda made: memory[id(made)][1])


@pytest.mark.one_in(3, first=1)
@pytest.mark.parametrize("case", ON_CUDA, ids=name_of)
def test_cuda_gives_the_gradients_of_the_cpu(device, case):
    check_emulated(device, case)


@pytest.mark.parametrize("seed", [23])
def test_random_programs_on_cuda(device, seed, tmp_path):
    check_emulated(device, case(seed, tmp_path))


@nb.kernel
def through_memory(y, out, n):
    """Threads that meet in an array of the launch."""
    i, t = cuda.grid(1), cuda.threadIdx.x
    other = i - t + (t + 1) % 32
    for _ in range(n):
        value = math.sin(y[i] * y[other]) + 0.3 * y[i]
        cuda.syncthreads()
        y[i] = value
        cuda.syncthreads()
    out[i] = y[i] * y[other]


def test_threads_may_meet_in_an_array_of_the_launch():
    made = (through_memory, 64, 32, [uniform(64), zeros(64), 5])
    check(made)
    check_second(made)


@nb.kernel
def scaled_by_another(x, y):
    """Each thread stores to what it has read before, and what others of the block read of it is in shared memory."""
    tile = cuda.shared.array(32, np.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i]
    cuda.syncthreads()
    y[i] = y[i] * tile[31 - t]


@pytest.mark.parametrize("device_name", ["cpu", "cuda:0"])
def test_tapes_give_adjoints_of_blocks_what_these_have_read(device_name):
    x, y = (uniform(64).astype(np.float32) for _ in range(2))
    with contextlib.nullcontext() if device_name == "cpu" else emulated_devices():
        given = nb.array(x, device=device_name, requires_grad=True)
        changed = nb.array(y, device=device_name)
        with nb.Tape() as tape:
            scaled_by_another[2, 32](given, changed)
        tape.backward(grads={changed: np.ones_like(y)})
        found = given.grad.numpy()
    np.testing.assert_allclose(found, y.reshape(2, 32)[:, ::-1].ravel())


@nb.kernel
def lanes_in_turn(x, y, n):
    """Lanes that wait for each other in a loop, in which each changes its own element alone."""
    i = cuda.grid(1)
    for _ in range(n):
        x[i] = x[i] * cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 3)
        cuda.syncwarp()
    y[i] = math.sin(x[i])


def test_lanes_may_wait_for_each_other_in_a_loop():
    check((lanes_in_turn, 64, 32, [uniform(64), zeros(64), 4]))


@nb.kernel
def ordered_elsewhere(x, y, n):
    """Stores and loads that only barriers order of which nothing else is left in the adjoint."""
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    for _ in range(n):
        if n > 1:
            cuda.syncthreads()
    y[i] = shared[31 - t] * shared[31 - t]


def test_barriers_order_what_is_stored_before_them_wherever_they_stand():
    check((ordered_elsewhere, 64, 32, [uniform(64), zeros(64), 3]))


@nb.kernel
def only_lanes_wait_in_memory(x, y):
    i, t = cuda.grid(1), cuda.threadIdx.x
    for _ in range(3):
        value = math.sin(x[i - t + (t ^ 1)])
        cuda.syncwarp()
        x[i - t + (t ^ 1)] = value
        cuda.syncwarp()
    y[i] = x[i]


@nb.kernel
def only_lanes_wait(x, y):
    shared = cuda.shared.array(64, np.float64)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncthreads()
    for _ in range(3):
        value = shared[t] * shared[t ^ 1]
        cuda.syncwarp()
        shared[t] = value
        cuda.syncwarp()
    y[t] = shared[t]


@nb.kernel
def some_leave(x, y):
    shared = cuda.shared.array(64, np.float64)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncthreads()
    if t >= 32:
        return
    shared[t] *= shared[t + 32]
    cuda.syncthreads()
    y[t] = shared[t]


@nb.kernel
def unequally_often(x, y):
    t = cuda.threadIdx.x
    for _ in range(t):
        cuda.syncthreads()
    y[t] = x[t]


@nb.kernel
def guarded_in_a_loop(x, y):
    t = cuda.threadIdx.x
    for k in range(3):
        if t > k:
            cuda.syncthreads()
    y[t] = x[t]


@nb.kernel
def until_it_differs(x, y):
    t = cuda.threadIdx.x
    value = x[t]
    while value > 0.1:
        cuda.syncthreads()
        value *= 0.5
    y[t] = value


@nb.kernel
def dynamic(x, y):
    shared = cuda.shared.array(0, np.float64)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncthreads()
    y[t] = shared[t]


@nb.kernel
def added_twice(x, y):
    total = cuda.shared.array(1, np.float64)
    t = cuda.threadIdx.x
    value = x[t]
    if t == 0:
        total[0] = 0.0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, value)
    cuda.syncthreads()
    for _ in range(3):
        value = math.sin(value * total[0])
    cuda.syncthreads()
    cuda.atomic.add(total, 0, value)
    cuda.syncthreads()
    y[t] = total[0]


@nb.kernel
def largest(x, y):
    best = cuda.shared.array(1, np.float64)
    t = cuda.threadIdx.x
    if t == 0:
        best[0] = 0.0
    cuda.syncthreads()
    cuda.atomic.max(best, 0, x[t])
    cuda.syncthreads()
    y[t] = best[0]


@nb.kernel
def whoever_is_here(x, y):
    y[cuda.grid(1)] = x[cuda.grid(1)] * cuda.activemask()


@nb.kernel
def all_blocks(x, y):
    grid = cuda.cg.this_grid()
    y[cuda.grid(1)] = x[cuda.grid(1)]
    grid.sync()


@nb.kernel
def all_the_same(x, y):
    mask, _ = cuda.match_all_sync(0xFFFFFFFF, 1)
    y[cuda.grid(1)] = x[cuda.grid(1)] * mask


@nb.func
def waited(value):
    cuda.syncwarp()
    return value * value


@nb.func_grad(waited)
def waited_back(value, cotangent):
    return 2.0 * value * cotangent


@nb.kernel
def by_hand(x, y):
    i = cuda.grid(1)
    y[i] = waited(x[i])


@nb.kernel
def added_after_an_own_loop(x, y):
    shared = cuda.shared.array(128, np.float64)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    shared[64 + t] = x[t] * x[t]
    cuda.syncthreads()
    for _ in range(3):
        shared[t] = math.sin(shared[t] * shared[64 + t])
    cuda.syncthreads()
    cuda.atomic.add(shared, 64 + (t + 1) % 64, x[t])
    cuda.syncthreads()
    y[t] = shared[t] * shared[64 + t]


@nb.kernel
def added_on_the_other_side(x, y):
    shared = cuda.shared.array(16, np.float64)
    t = cuda.threadIdx.x
    value = x[t]
    if t < 16:
        shared[t] = value
    cuda.syncthreads()
    if t % 32 < 16:
        cuda.syncwarp()
        cuda.atomic.add(shared, (t + 1) % 16, value * value)
    else:
        for j in range(3):
            value = math.sin(value * shared[(t + j) % 16])
        cuda.syncwarp()
    cuda.syncthreads()
    y[t] = value * shared[t % 16]


@nb.kernel
def lanes_unequally_often(x, y):
    t = cuda.threadIdx.x
    value = x[t]
    for k in range(5 if t % 32 < 16 else 70):
        value = math.sin(value * 1.3)
        if k < 5:
            value = value * cuda.shfl_xor_sync(0xFFFFFFFF, value, 16) + 0.7
    y[t] = value


@nb.kernel
def given_elsewhere(x, y):
    t = cuda.threadIdx.x
    value = x[t] * x[t]
    if t % 32 < 16:
        y[t] = math.sin(cuda.shfl_sync(0xFFFFFFFF, value, t % 32 + 16)) * value
    else:
        cuda.shfl_sync(0xFFFFFFFF, value, 0)
        y[t] = value


@nb.kernel
def voted_elsewhere(x, y):
    t = cuda.threadIdx.x
    if x[t] > 1.0:
        y[t] = x[t] * x[t] * (cuda.ballot_sync(0xFFFFFFFF, 1) & 7)
    else:
        cuda.ballot_sync(0xFFFFFFFF, 1)
        y[t] = x[t] * x[t]


@nb.kernel
def lanes_asked_in_the_condition(x, y):
    i, n = cuda.grid(1), 3
    mask = cuda.ballot_sync(0xFFFFFFFF, n > 0)
    while cuda.any_sync(mask, n > 0):
        n -= 1
    y[i] = x[i]


@nb.kernel
def lanes_wait_under_a_condition(x, y):
    shared = cuda.shared.array(64, np.float64)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncthreads()
    total = 0.5
    for _ in range(3):
        total = math.sin(total * shared[t ^ 1])
        if t < 32:
            cuda.syncwarp()
        else:
            cuda.syncwarp()
    shared[t] = total
    cuda.syncthreads()
    y[t] = shared[t ^ 1]


@pytest.mark.parametrize(
    ("kernel", "message", "line"),
    [
        (only_lanes_wait_in_memory, "'x' as it was .*, in which only lanes of a warp wait", "x[i - t + (t ^ 1)] ="),
        (only_lanes_wait, "in which only lanes of a warp wait for each other; wait for the block", "shared[t] = value"),
        (lanes_wait_under_a_condition, "let them wait under no condition in the loop", "cuda.syncwarp()"),
        (some_leave, "under a condition that may hold for some threads of a block only", "cuda.syncthreads()"),
        (unequally_often, "in a loop that threads of a block may run through unequally often", "cuda.syncthreads()"),
        (guarded_in_a_loop, "under a condition that may hold for some threads", "cuda.syncthreads()"),
        (until_it_differs, "in a loop that threads of a block may run through unequally", "cuda.syncthreads()"),
        (dynamic, "dynamic shared memory has no derivative.*; give the array a constant shape", "cuda.shared.array(0,"),
        (added_twice, "element of 'total', which the kernel changes atomically; keep it in a variable", "total[0])"),
        (largest, "atomic_max on 'best' has no derivative", "cuda.atomic.max(best"),
        (whoever_is_here, "cuda.activemask has no derivative; name the lanes", "cuda.activemask()"),
        (all_blocks, "waiting for all blocks of a grid has no derivative; let what follows", "grid.sync()"),
        (all_the_same, "cuda.match_all_sync has no derivative; use", "cuda.match_all_sync"),
        (
            added_after_an_own_loop,
            "element of 'shared', which the kernel changes atomically; keep it",
            "shared[64 + t])",
        ),
        (added_on_the_other_side, "element of 'shared', which the kernel changes atomically; keep it", "% 16])"),
        (
            lanes_unequally_often,
            "lanes of a warp wait for each other in a loop that they may run through unequally",
            "shfl_xor",
        ),
        (given_elsewhere, "lanes of a warp may come to this cuda.shfl_sync while others come to another", "value, 0)"),
        (voted_elsewhere, "lanes of a warp may come to this cuda.ballot_sync while others come to another", "_sync"),
        (by_hand, "waited has a derivative by hand, and such functions do not wait", "waited(x[i])"),
        (lanes_asked_in_the_condition, "lanes that a while condition names must be a constant", "while cuda.any_sync"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_has_no_derivative_is_refused_with_its_place(kernel, message, line):
    x, y, by_x, by_y = (np.ones(64) for _ in range(4))
    with pytest.raises(nb.KernelUnsupportedError, match=message) as caught:
        nb.launch(kernel, 64, [x], [y], adj_inputs=[by_x], adj_outputs=[by_y], adjoint=True, block_dim=64)
    assert f"{__file__}:" in str(caught.value) and line in str(caught.value) and "^" in str(caught.value)
    assert all((a == 1).all() for a in (x, y, by_x, by_y))


@pytest.mark.parametrize(("stored", "takes"), [("0, 0", True), ("0, t % 16", True), ("t // 8, t % 8", False)])
def test_one_of_the_threads_that_store_alike_hands_on_the_adjoint(stored, takes, tmp_path):
    """On a GPU, lanes read at once, before any of them has left zero: in PTX it must be one instruction."""
    path = tmp_path / f"alike_{len(stored)}.py"
    path.write_text(
        "import numpy as np\nfrom numba import cuda\nimport numbridge as nb\n@nb.kernel\ndef stores(x, y):\n"
        "    shared, t = cuda.shared.array((8, 16), np.float64), cuda.threadIdx.x\n"
        f"    shared[{stored}] = x[0]\n    cuda.syncthreads()\n    y[cuda.grid(1)] = shared[0, 0]\n"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, y, by_x, by_y = (zeros(64) for _ in range(4))
    ptx = module.stores.adjoint(["x", "y"]).ptx(x, y, by_x, by_y, capability=(9, 0))
    assert bool(re.search(r"atom(\.\w+)*\.exch\.b64", ptx)) == takes


def test_the_adjoint_reads_as_numba_cuda_does():
    nb.launch(sums_of_squares, 64, [uniform(64)], [zeros(1)], block_dim=64)
    text = sums_of_squares.adjoint_source
    assert "cuda.shared.array(64, _nb_float64)" in text and "cuda.syncthreads()" in text
    assert "crew" not in text and "_nb_start" not in text
    compile(text, "adjoint", "exec")


@nb.kernel
def raises_late(x, y, n):
    shared = cuda.shared.array(32, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i]
    cuda.syncthreads()
    for _ in range(n):
        value = shared[t] * shared[31 - t]
        cuda.syncthreads()
        shared[t] = value
        cuda.syncthreads()
    if t == 31:
        raise ValueError("late")
    y[i] = shared[t]


def test_what_threads_keep_is_given_back_when_another_ends_the_launch():
    x, y = uniform(32), zeros(32)
    run = raises_late.adjoint(["x", "y"]).forall(32, 32)
    for k in range(600):
        if k == 50:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(nb.KernelError, match="raised an exception"):
            run(x, y, 1000, zeros(32), zeros(32))
    # What one launch keeps, of all threads, is more than 256 KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KiB


def test_a_tape_goes_back_through_blocks():
    x0 = uniform(96)
    x, y, z = (nb.array(v, dtype=nb.float64, device="cpu", requires_grad=True) for v in (x0, zeros(96), zeros(96)))
    with nb.Tape() as tape:
        stepped[2, 48](x, y, 4)
        stepped[2, 48](y, z, 3)
        stepped[2, 48](z, y, 2)
    tape.backward(grads=[(y, np.ones(96))])

    def result(values):
        a, b, c = values.copy(), zeros(96), zeros(96)
        stepped[2, 48](a, b, 4)
        stepped[2, 48](b, c, 3)
        stepped[2, 48](c, b, 2)
        return b.sum()

    direction = np.random.default_rng(1).normal(size=96)
    h = 1e-6
    expected = (result(x0 + h * direction) - result(x0 - h * direction)) / (2 * h)
    assert abs((x.grad.numpy() * direction).sum() - expected) < 1e-6 * max(abs(expected), 1)


@nb.kernel
def nearly_all_of_shared_memory(x, y):
    shared = cuda.shared.array(4500, np.float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i] * x[i]
    cuda.syncthreads()
    y[i] = shared[31 - t] * x[i]


def test_an_adjoint_may_need_more_shared_memory_than_cuda_has():
    x = np.ones(32)
    assert nearly_all_of_shared_memory.cubin(x, x, capability=(9, 0))
    with pytest.raises(
        nb.KernelError, match="shared memory take 72000 bytes, and those of constant shape may take 49152"
    ):
        nearly_all_of_shared_memory.adjoint(["x", "y"]).cubin(x, x, x, x, capability=(9, 0))


@nb.kernel
def weighted_sums(x, y, out):
    own = cuda.shared.array(8, np.float64)
    weights = cuda.shared.array(8, np.float64)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i < x.shape[0]:
        own[t] = x[i]
    weights[t] = y[t]
    cuda.syncthreads()
    total = 0.0
    for k in range(8):
        total += own[t] * weights[k]
    if i < x.shape[0]:
        out[i] = total


def test_what_nobody_stored_does_not_reach_a_gradient(device):
    """Threads beyond the end compute with what lies in shared memory by chance, here NaN, and drop it."""
    x, y, out, by_x, by_y = np.arange(5.0), np.arange(8.0), np.zeros(5), np.zeros(5), np.zeros(8)
    arrays, adjoints = ([device.on_device(v) for v in group] for group in ((x, y, out), (by_x, by_y, np.ones(5))))
    nb.launch(weighted_sums, 8, arrays, adj_inputs=adjoints, adjoint=True, block_dim=8)
    assert by_x.tolist() == [28] * 5
    assert by_y.tolist() == [10] * 8


@nb.kernel
def left_out(x, w, y):
    i, t = cuda.grid(1), cuda.threadIdx.x
    cuda.shfl_sync(0xFFFFFFFF, x[i], (t + 5) % 32)
    kind = 2
    if kind == 1 and w[i] > 0.5:  # noqa: SIM102 - each its own condition
        if t < 2:
            y[i] = math.sin(x[i])
            return
    if w[i] > 0.3:
        y[i] = 2.0 * x[i]


def test_conditions_that_are_constants_may_leave_branches_out():
    """Numba, which leaves such branches out, took what they decide for undefined on the way back."""
    w = np.linspace(0, 1, 32)
    x, y, by_x, by_y = np.ones(32), np.zeros(32), np.zeros(32), np.ones(32)
    nb.launch(left_out, 32, [x, w, y], block_dim=32)
    left_out.adjoint(["x", "y"]).forall(32, block_dim=32)(x, w, y, by_x, by_y)
    assert by_x.tolist() == y.tolist() == np.where(w > 0.3, 2.0, 0.0).tolist()
