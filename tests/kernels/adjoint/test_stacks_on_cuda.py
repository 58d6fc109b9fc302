"""Adjoints on CUDA that remember what loops overwrite: how much memory they get, when, and what happens where there is none.

They run on emulated devices, and must give what the CPU's give. What the text counts is tested in `test_measuring`.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import random

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from adjoint_as_python import floats_of, program_of, run_adjoint
from adjoint_cases import CASES, in_place_nested, name_of, prefix_products, squares_in_a_loop
from adjoint_programs import Writer, arguments, declared
from adjoint_slice_cases import stored_in_the_loop, written_slices
from emulated_cuda import emulated_cuda
from fake_cuda import cuda_array, fake_cuda
from numbridge.kernels.adjoint import stacks_on_cuda
from numbridge.kernels.adjoint.reverse import reverse
from numbridge.kernels.adjoint.stack_kernels import measuring, with_memory
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.errors import DeviceError, KernelUnsupportedError
from numbridge.kernels.geometry import geometry_of
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import configure, launch
from ptx_emulator.execution import BadAccessError

STACKED = (squares_in_a_loop, prefix_products, in_place_nested, written_slices, stored_in_the_loop)


@pytest.fixture
def device():
    with emulated_cuda() as emulation:
        yield emulation


@pytest.fixture
def driver():
    with fake_cuda() as fake:
        yield fake


def copied(values):
    return [v.copy() if isinstance(v, np.ndarray) else v for v in values]


def random_like(values, seed=1):
    normal = np.random.default_rng(seed).normal
    return [normal(size=v.shape).astype(v.dtype) if isinstance(v, np.ndarray) else None for v in values]


def on_both(device, kernel, dim, values, run=None, **tolerance):
    """Launch an adjoint on the CPU and on the device, check that both give the same, and return by what gradients changed."""
    given = [g if g is None or g.dtype.kind != "i" else None for g in random_like(values)]
    made = []
    for place in (lambda v: v, device.on_device):
        inputs, adjoints = copied(values), copied(given)
        arguments, by = ([place(v) if isinstance(v, np.ndarray) else v for v in each] for each in (inputs, adjoints))
        known = len(device._memory)
        if run is None:
            launch(kernel, dim, arguments, adj_inputs=by, adjoint=True)
        else:
            run(*arguments, *(b for b in by if b is not None))
        assert len(device._memory) == known and all(np.array_equal(a, b) for a, b in zip(inputs, values, strict=True))
        made.append([a for a in adjoints if a is not None])
    for here, there in zip(*made, strict=True):
        assert np.allclose(here, there, **{"rtol": 1e-9, "atol": 1e-9} | tolerance), (here, there)
    return sum(
        np.abs(a.astype(float) - b).sum() for a, b in zip(made[1], (g for g in given if g is not None), strict=True)
    )


# --------------------------------------------------------------------------------------------------------------------
# Code


@pytest.mark.one_in(3)
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0)])
@pytest.mark.parametrize("case", [c for c in CASES if c[0] in STACKED], ids=name_of)
def test_both_kernels_compile(case, capability):
    base, _, *values = case
    adjoint = base.adjoint(
        [p.name for p, v in zip(base.parameters, values, strict=True) if np.asarray(v).dtype.kind == "f"]
    )
    by = [np.zeros_like(v) for v in values if isinstance(v, np.ndarray)]
    words = np.zeros(1, np.int64)
    whole = adjoint.ptx(*values, *by, capability=capability)
    assert adjoint.cubin(*values, *by, capability=capability).startswith(b"\x7fELF")
    assert whole == with_memory(adjoint).ptx(*values, *by, words, words.copy(), capability=capability)
    assert "trap" in whole
    counting = measuring(adjoint)
    assert counting.cubin(*values, words, capability=capability).startswith(b"\x7fELF")
    text = counting.ptx(*values, words, capability=capability)
    assert "atom.global.max.s64" in text
    # What the loops of the others store does not decide how often they run.
    assert ("st.global" in text) == (base is in_place_nested)


@kernel
def until_small(y, x):
    i = tid()
    while y[i] > 0.1:
        y[i] = y[i] * x[i] - 0.01


def test_where_rounding_decides_on_trips_both_kernels_round_alike():
    y = np.ones(3)
    adjoint, words = until_small.adjoint(["y", "x"]), np.zeros(1, np.int64)
    texts = [
        adjoint.ptx(y, y, y, y, capability=(9, 0)),
        measuring(adjoint).ptx(y, y, words, capability=(9, 0)),
    ]
    assert not any("fma" in text for text in texts) and all(".f64" in text for text in texts)
    fused = squares_in_a_loop.adjoint(["y"]).ptx(y, 3, y, capability=(9, 0))
    assert "fma.rn.f64" in fused


# --------------------------------------------------------------------------------------------------------------------
# Gradients


@kernel
def triangle(y, x):
    i = tid()
    for k in range(i + 1):
        for m in range(k % 3):
            y[i] = y[i] * x[m] + math.sin(y[i])


@pytest.mark.parametrize(("dim", "threads"), [(5, 1 << 18), (300, 1 << 18), (300, 64), (70, 1)])
def test_threads_of_different_heights_and_several_ids(device, monkeypatch, dim, threads):
    monkeypatch.setattr(stacks_on_cuda, "_MOST_THREADS", threads)
    values = [np.random.default_rng(2).uniform(0.1, 0.9, dim), np.array([0.4, 0.3, 0.2])]
    assert on_both(device, triangle, dim, values)


def test_blocks_that_are_no_whole_groups(device):
    values = [np.random.default_rng(2).uniform(0.1, 0.9, 100), np.array([0.4, 0.3, 0.2])]
    geometry = geometry_of(triangle, 100, 33, max_blocks=2)
    assert geometry.cuda_grid[0] * geometry.cuda_block[0] == 66
    assert on_both(device, triangle, 100, values, triangle.adjoint(["y", "x"]).over(geometry))


@kernel
def planes(y, n):
    i, j, k = tid()
    for _ in range(n + i):
        y[k, i, j] = y[k, i, j] * y[k, i, j] + 0.1


def test_three_dimensions(device, monkeypatch):
    monkeypatch.setattr(stacks_on_cuda, "_MOST_THREADS", 512)
    assert on_both(device, planes, (3, 40, 11), [np.random.default_rng(2).uniform(0.1, 0.9, (11, 3, 40)), 2])


@kernel
def own_stride(y, n):
    for i in range(cuda.grid(1), y.shape[0], cuda.gridsize(1)):
        for _ in range(n):
            y[i] = y[i] * y[i]


@pytest.mark.parametrize("form", ["plain", "masked"])
def test_kernels_that_ask_for_the_grid_get_the_one_that_was_asked_for(device, monkeypatch, form):
    monkeypatch.setattr(stacks_on_cuda, "_MOST_THREADS", 32)
    y = np.random.default_rng(2).uniform(0.1, 0.9, 300)
    adjoint = own_stride.adjoint(["y"])
    geometry = geometry_of(own_stride, 128, 64)
    if form == "plain":
        configure(own_stride, (2, 64))
        geometry = next(g for g in own_stride.variants.launchers if g.place.form == "plain")
    assert on_both(device, own_stride, 128, [y, 2], adjoint.over(geometry))


@kernel
def as_often_as_it_says(y, x, counts):
    i = tid()
    for k in range(3):
        for _ in range(counts[i, k]):
            y[i, k] = y[i, k] * x[i]
            counts[i, (k + 1) % 3] = (counts[i, (k + 1) % 3] + 1) % 4


def test_what_decides_is_measured_on_a_copy(device):
    rng = np.random.default_rng(2)
    y, x, counts = rng.uniform(0.5, 1.5, (40, 3)), rng.uniform(0.5, 1.5, 40), rng.integers(0, 4, (40, 3))
    adjoint = as_often_as_it_says.adjoint(["y", "x"])
    assert on_both(device, as_often_as_it_says, 40, [y, x, counts])
    assert on_both(device, as_often_as_it_says, 40, [y, x, np.asfortranarray(counts)[::-1]])
    assert on_both(device, until_small, 40, [x, rng.uniform(0.1, 0.9, 40)])
    (plan,) = (known[0] for key, known in adjoint._plans.items() if key[2] == "cuda")
    assert plan.measured.changes == {"counts"}


@kernel
def turned(v: nb.array1d[nb.vec3], m, n):
    i = tid()
    for k in range(n):
        if v[i][k % 3] > 0.0:
            v[i] = nb.cross(v[i], v[k]) * m[i] + v[i]


def test_vectors_that_decide(device):
    rng = np.random.default_rng(4)
    values, m, by_v, by_m = (rng.normal(size=s).astype(np.float32) for s in ((7, 3), 7, (7, 3), 7))
    made = []
    for place in (lambda v: v, device.on_device):
        inputs, by = copied([values, m]), copied([by_v, by_m])
        vectors = [nb.asarray(place(a), dtype=nb.vec3) for a in (inputs[0], by[0])]
        # Elements of other threads are read: one thread at a time.
        launch(turned, 1, [vectors[0], place(inputs[1]), 5], adj_inputs=[vectors[1], place(by[1]), None], adjoint=True)
        assert np.array_equal(inputs[0], values)
        made.append(by)
    assert all(np.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(*made, strict=True))
    assert not np.array_equal(made[1][0], by_v)


COUNTED = np.dtype([("x", np.float64), ("n", np.int64)])


@kernel
def counted(p, a):
    i = tid()
    k = 0
    while k < p[i].n:
        p[i].x = p[i].x * a[i] + p[i].x * p[i].x
        k += 1
        if k == 2:
            p[i].n = p[i].n + 1


def test_records_that_decide(device):
    rng = np.random.default_rng(4)
    p, by_p = np.zeros(40, COUNTED), np.zeros(40, COUNTED)
    p["x"], p["n"], by_p["x"] = rng.uniform(0.1, 0.9, 40), rng.integers(0, 5, 40), 1.0
    a, by_a = rng.uniform(0.1, 0.5, (2, 40))
    made = []

    def records(values):
        return nb.asarray(device.on_device(values.view(np.uint64).reshape(-1, 2)), dtype=COUNTED)

    for place, of in ((lambda v: v, lambda v: v), (device.on_device, records)):
        inputs, by = copied([p, a]), copied([by_p, by_a])
        launch(counted, 40, [of(inputs[0]), place(inputs[1])], adj_inputs=[of(by[0]), place(by[1])], adjoint=True)
        assert np.array_equal(inputs[0], p)
        made.append(by)
    assert np.allclose(made[0][0]["x"], made[1][0]["x"], rtol=1e-12) and np.allclose(made[0][1], made[1][1], rtol=1e-12)
    assert not np.allclose(made[1][1], by_a)


def test_second_derivatives(device):
    tangent = squares_in_a_loop.tangent(["y"])
    adjoint = tangent.adjoint(["y", "_nb_tan_y"])
    rng = np.random.default_rng(2)
    given = [rng.uniform(0.2, 0.9, 5) for _ in range(4)]
    made = []
    for place in (lambda v: v, device.on_device):
        y, moved, by_y, by_moved = arrays = copied(given)
        adjoint.forall(5)(place(y), 3, *map(place, (moved, by_y, by_moved)))
        assert np.array_equal(y, given[0]) and np.array_equal(moved, given[1])
        made.append(arrays)
    assert all(np.allclose(a, b, rtol=1e-12) for a, b in zip(*made, strict=True))
    assert not np.allclose(made[1][2:], given[2:])


def with_stacks(count):
    """Yield random programs whose adjoints have stacks, with arguments."""
    found = 0
    for number in itertools.count():
        choices = random.Random(number)
        made, values = declared(Writer(choices.randrange).program()), arguments(number)
        wanted = floats_of(made, values)
        if reverse(program_of(made, values), wanted, "adjoint", bounded=True).stacks:
            found += 1
            yield made, values
        if found == count:
            return


def test_random_programs(device):
    for made, values in with_stacks(5):
        names = [p.name for p in made.parameters]
        given = {k: g for k, g in zip(names, random_like(values), strict=True) if g is not None and g.dtype.kind == "f"}
        given["a"] = np.zeros(())
        here, there = ({k: v.copy() for k, v in given.items()} for _ in range(2))
        inputs = copied(values)
        run_adjoint(made, (2,), copied(values), here)
        launch(
            made,
            2,
            [device.on_device(v) if isinstance(v, np.ndarray) else v for v in inputs],
            adj_inputs=[device.on_device(there[name]) if name in there else None for name in names],
            adjoint=True,
        )
        assert all(np.allclose(here[k], there[k], rtol=1e-9, atol=1e-9, equal_nan=True) for k in given), made
        assert all(np.array_equal(a, b) for a, b in zip(inputs, values, strict=True))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_arrays_of_16_bits(device, name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    y = np.random.default_rng(5).uniform(0.5, 1.5, 40).astype(dtype)
    assert on_both(device, squares_in_a_loop, 40, [y, 3], rtol=2e-2, atol=2e-2)


@kernel
def nothing_or_much(y, n):
    i = tid()
    for _ in range(n):
        y[i] = y[i] * y[i]


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_no_trips_and_many(device, count):
    assert bool(on_both(device, nothing_or_much, 3, [np.array([0.999, 0.9999, 1.0]), count])) == bool(count)
    assert not on_both(device, nothing_or_much, 0, [np.zeros(0), count])


def test_a_push_beyond_what_was_measured_ends_the_kernel():
    y = np.full(4, 0.5)
    by, words, places = y.copy(), np.zeros(32 * 5, np.int64), np.array([0, 32, 96], np.int64)

    def run(trips):
        with emulated_cuda() as device:
            arrays = [device.on_device(a) for a in (y, by, words, places)]
            geometry = geometry_of(squares_in_a_loop, 4)
            whole = with_memory(squares_in_a_loop.adjoint(["y"]))
            whole.unchecked_over(geometry, apart=True)(arrays[0], trips, *arrays[1:])

    run(1)
    assert (by == 0.5 * 2 * 0.5 * 0.7).all() and not words[96:].any()
    with pytest.raises(BadAccessError, match="trap"):
        run(2)
    assert not words[96:].any()


# --------------------------------------------------------------------------------------------------------------------
# Memory and streams


def arrays(*shapes, **more):
    return [cuda_array(shape, address=0x7000_0000 + (k << 20), **more) for k, shape in enumerate(shapes)]


def told(driver, *whats):
    return [call for call in driver.calls if call[0] in whats]


class Counts:
    """Answers what the first launch counted, in place of a device."""

    def __init__(self, driver, *counts):
        self.counts, self._allocated = counts, driver

    def allocate(self, size):
        self._allocated._next_address += 0x10000
        return self._allocated._next_address

    def free(self, address):
        pass

    def sizes(self, cubin, symbol):
        return [8] * 5

    def does(self, what, *given):
        if what == "copy" and given[2] == 8 * len(self.counts):
            ctypes.memmove(given[0], np.array(self.counts, np.int64).ctypes.data, given[2])
        return 0


@pytest.fixture
def counting(driver):
    """A driver that finds 3 entries on the first stack, and 10 on the second."""
    driver.emulation = Counts(driver, 3, 10)
    return driver


def test_memory_is_what_was_measured(counting):
    y, by = arrays((20,), (20,))
    launch(squares_in_a_loop, 20, [y, 3], adj_inputs=[by, None], adjoint=True, block_dim=32)
    happened = ("allocate", "fill", "launch", "copy", "synchronize_stream", "free")
    calls = told(counting, *happened)
    needs, memory, places = (call[1] for call in calls if call[0] == "allocate")
    assert [call[0] for call in calls] == [
        *("allocate", "fill", "launch", "copy", "synchronize_stream"),
        *("allocate", "allocate", "copy", "launch", "free", "free", "free"),
    ]
    # One group of 32 threads has 2 stacks, of 3 and 10 entries for each thread.
    sizes = [call[2] for call in calls if call[0] == "allocate"]
    assert sizes == [8 * 2, 8 * 32 * 13, 8 * 3]
    assert {call[1] for call in calls if call[0] == "free"} == {needs, memory, places}
    assert {call[-1] for call in calls} == {0}


def test_the_streams_of_arrays_are_ordered_around(driver):
    y, by = arrays((20,), (20,), stream=0x77)
    launch(squares_in_a_loop, 20, [y, 3], adj_inputs=[by, None], adjoint=True)
    work = told(driver, "allocate", "fill", "launch", "copy", "synchronize_stream", "free")
    assert {call[-1] for call in work} == {0x77} and not told(driver, "wait")


def test_an_array_of_another_stream_is_copied_after_what_was_queued_there(driver):
    y, by_y = arrays((20, 3), (20, 3), stream=0x77)
    x, by_x = (cuda_array((20,), address=a, stream=0x77) for a in (0x7800_0000, 0x7900_0000))
    counts = cuda_array((20, 3), np.int64, address=0x7A00_0000, stream=0x55)
    launch(as_often_as_it_says, 20, [y, x, counts], adj_inputs=[by_y, by_x, None], adjoint=True)
    calls = told(driver, "record", "wait", "copy", "launch")
    at = next(k for k, call in enumerate(calls) if call[0] == "copy")
    assert calls[at][2] == 0x7A00_0000 and calls[at][3:] == (20 * 3 * 8, 0x77)
    assert calls[at - 2][0] == "record" and calls[at - 2][2] == 0x55 and calls[at - 1][:2] == ("wait", 0x77)


def test_a_named_stream(driver):
    y, by = arrays((20,), (20,), stream=0x77)
    geometry = geometry_of(squares_in_a_loop, 20, stream=0x99)
    squares_in_a_loop.adjoint(["y"]).over(geometry)(y, 3, by)
    work = told(driver, "allocate", "fill", "launch", "copy", "synchronize_stream", "free")
    assert {call[-1] for call in work} == {0x99} and not told(driver, "wait")


@pytest.mark.parametrize("named", [False, True])
def test_a_capture_is_refused_before_anything_runs(driver, named):
    y, by = arrays((20,), (20,), stream=0x77)
    driver.capturing = {0x77}
    geometry = geometry_of(squares_in_a_loop, 20, stream=0x77 if named else None)
    with pytest.raises(KernelUnsupportedError, match=r"that no graph captures.*\n.*adjoint_cases.py:\d+:\d+\n.*\n +\^"):
        squares_in_a_loop.adjoint(["y"]).over(geometry)(y, 3, by)
    assert not told(driver, "allocate", "launch", "copy", "fill")


def test_too_little_memory_is_said_before_anything_is_written(device, monkeypatch):
    allocate = cuda_driver.CudaDevices.allocate

    def scarce(self, ordinal, size, stream):
        if size > 50_000:
            raise DeviceError("the CUDA driver refused cuMemAllocAsync: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
        return allocate(self, ordinal, size, stream)

    monkeypatch.setattr(cuda_driver.CudaDevices, "allocate", scarce)
    y = np.random.default_rng(2).uniform(0.1, 0.9, 100)
    before, by = y.copy(), np.ones(100)
    given = [device.on_device(y), device.on_device(by)]
    # 4 groups of 32 threads, with 40 entries for trips and 80 for elements
    needed = 4 * 32 * (40 + 80) * 8
    message = rf"adjoint of squares_in_a_loop needs {needed} bytes of memory on cuda:0.*nothing has been written.*OUT_OF_MEMORY"
    with pytest.raises(DeviceError, match=message):
        launch(squares_in_a_loop, 100, [given[0], 40], adj_inputs=[given[1], None], adjoint=True)
    assert np.array_equal(y, before) and (by == 1).all() and len(device._memory) == 2
    launch(squares_in_a_loop, 100, [given[0], 4], adj_inputs=[given[1], None], adjoint=True)
    assert not (by == 1).any()


def test_kernels_without_stacks_are_launched_once(driver):
    @kernel
    def twice(x, y):
        i = tid()
        for k in range(3):
            y[i] = x[i] * k

    x, y, by_x, by_y = arrays(*[(20,)] * 4)
    twice.adjoint(["x", "y"]).forall(20)(x, y, by_x, by_y)
    assert len(driver.launches) == 1 and not told(driver, "allocate", "synchronize_stream")
    assert not any(key in twice.adjoint(["x", "y"]).derivatives for key in [("_nb_needs",)])
