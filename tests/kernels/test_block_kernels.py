"""Kernels whose threads work together in warps and blocks, run on emulated devices and compared with NumPy's answers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numba import cuda, int32

import emulated_cuda
import numbridge as nb
from block_kernels import CASES
from ptx_emulator.execution import BadAccessError
from ptx_emulator.meetings import MeetingError
from ptx_emulator.races import RaceError

FULL = 0xFFFFFFFF


def launched(kernel, configuration, values, *, races=True):
    """Launch a kernel on an emulated device, and return what it printed; the arrays have what it left."""
    with emulated_cuda.emulated_cuda(races=races) as device:
        kernel[configuration](*(device.on_device(v) if isinstance(v, np.ndarray) else v for v in values))
        return "".join(device.printed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case):
    values = case.arguments()
    launched(case.kernel, case.configuration, values)
    case.check(values)


def test_every_case_has_its_name_and_changes_what_it_gets():
    assert len({case.name for case in CASES}) == len(CASES) > 60
    for case in CASES:
        with pytest.raises(AssertionError, match=re.escape(case.name)):
            case.check(case.arguments())


BARRIER = re.compile(r"\bbar\.(?:warp\.)?sync[^;]*;")


# Each barrier of these stands between what one thread writes and another reads, or the other way round.
@pytest.mark.parametrize(
    "name", ["turned in parts", "block scans", "matrix product", "transposed", "histogram", "sorted blocks", "extremes"]
)
def test_a_case_needs_each_of_its_barriers(name, monkeypatch):
    case = next(case for case in CASES if case.name == name)
    whole = emulated_cuda.machine
    count = len(BARRIER.findall(case.kernel.ptx(*case.arguments(), capability=(9, 0), plain=True)))
    assert count

    def without(number):
        def machine(text, symbol):
            found = list(BARRIER.finditer(text))
            assert len(found) == count
            return whole(text[: found[number].start()] + text[found[number].end() :], symbol)

        return machine

    for number in range(count):
        monkeypatch.setattr(emulated_cuda, "machine", without(number))
        values = case.arguments()
        launched(case.kernel, case.configuration, values, races=False)
        with pytest.raises(AssertionError, match="Arrays are not equal"):
            case.check(values)
        with pytest.raises(RaceError, match="nothing orders"):
            launched(case.kernel, case.configuration, case.arguments())


# What goes wrong


@nb.kernel
def half_of_a_block(x):
    shared = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    if t < 32:
        cuda.syncthreads()
    else:
        x[t] = cuda.shfl_sync(FULL, x[t], 3) + cuda.syncthreads_count(1)
    x[t] = shared[63 - t]


def test_a_barrier_that_not_all_reach_ends():
    text = r"for ever: threads 0 to 31 of block \(0, 0, 0\) at PTX line \d+, 'bar\.sync .*; threads 32 to 63 .* 'bar\.red\.popc"
    with pytest.raises(MeetingError, match=text):
        launched(half_of_a_block, (1, 64), [np.zeros(64, np.int32)])


@nb.kernel
def too_many_lanes(x):
    i = cuda.grid(1)
    if i % 2:
        x[i] = cuda.shfl_sync(FULL, x[i], 1)
    else:
        cuda.syncwarp(0x55555555)
        x[i] = cuda.ballot_sync(FULL, x[i])


def test_a_mask_that_names_lanes_which_do_not_come_ends():
    with pytest.raises(MeetingError, match=r"for ever: threads .* 'vote\.sync\.ballot.* with the mask 0xffffffff"):
        launched(too_many_lanes, (1, 32), [np.zeros(32, np.int32)])


@nb.kernel
def beyond_what_the_launch_gave(x):
    shared = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    shared[x[t]] = x[t]
    cuda.syncthreads()
    x[t] = shared[15 - x[t]] * 100 + shared.size


@nb.kernel
def surely_beyond_what_the_launch_gave(x):
    shared = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncthreads()
    x[t] = shared[cuda.blockDim.x - 1 - t]


def test_dynamic_shared_memory_ends_where_the_launch_says():
    x = np.arange(16, dtype=np.int32)
    launched(beyond_what_the_launch_gave, (1, 16, 0, 64), [x])
    assert x.tolist() == [100 * k + 16 for k in range(15, -1, -1)]
    x[:] = np.arange(16)
    with pytest.raises(BadAccessError, match="writes 4 bytes"):
        launched(beyond_what_the_launch_gave, (1, 16, 0, 60), [x])
    with pytest.raises(
        nb.NumbridgeValueError, match=r"'shared': its shape is \(15,\), .* with 64 bytes of shared memory"
    ):
        launched(surely_beyond_what_the_launch_gave, (1, 16, 0, 60), [x])


@nb.kernel
def left_behind(x):
    shared = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        shared[t] = 7
    cuda.syncthreads()
    x[cuda.grid(1)] = shared[t]


def test_a_block_finds_nothing_of_the_block_before_it():
    x = np.zeros(64, np.int32)
    launched(left_behind, (2, 32), [x])
    assert (x[:32] == 7).all() and not np.isin(x[32:], [0, 7]).any()


# Beside memory


@nb.kernel
def told(x):
    i = cuda.grid(1)
    total = cuda.syncthreads_count(int32(x[i] > 1))
    if i == 2:
        print("thread", i, "counts", total)


def test_printing_between_barriers():
    assert launched(told, (1, 5), [np.arange(5)]) == "thread 2 counts 3\n"


@nb.kernel
def passed_on(x, out):
    # Each block reads what the one beside it has written.
    grid = cuda.cg.this_grid()
    i, n = cuda.grid(1), cuda.gridsize(1)
    for _ in range(3):
        value = x[(i + 40) % n] + 1
        grid.sync()
        x[i] = value
        grid.sync()
    out[i] = x[i] + cuda.syncthreads_count(int32(cuda.blockIdx.x == 1))


def test_barriers_of_the_grid():
    x, out = np.arange(120), np.zeros(120, np.int64)
    launched(passed_on, (3, 40), [x, out])
    assert (x == np.arange(120) + 3).all()
    assert (out == x + 40 * (np.arange(120) // 40 == 1)).all()
