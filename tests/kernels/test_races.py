"""Kernels that check for data races on the CPU: what two threads do to one element without an order is an error that shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numba import cuda

import numbridge as nb
from written_kernels import made

NOTHING, READ, STORE, ADD, READ_SHARED, STORE_SHARED, ADD_SHARED = range(7)
ON, BLOCK, WARP = range(3)
LANES = 32
CELLS = 4


@nb.kernel(check_races=True)
def stepped(did, where, value, waits, a, out):
    i = nb.tid()
    s = cuda.shared.array(CELLS, np.int64)
    if cuda.threadIdx.x < CELLS:
        s[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    total = 0
    for phase in range(did.shape[1]):
        for k in range(did.shape[2]):
            d, w, v = did[i, phase, k], where[i, phase, k], value[i, phase, k]
            if d == READ:
                total += a[w]
            elif d == STORE:
                a[w] = v
            elif d == ADD:
                nb.atomic_add(a, w, v)
            elif d == READ_SHARED:
                total += s[w]
            elif d == STORE_SHARED:
                s[w] = v
            elif d == ADD_SHARED:
                nb.atomic_add(s, w, v)
        if waits[phase] == BLOCK:
            cuda.syncthreads()
        elif waits[phase] == WARP:
            cuda.syncwarp()
    out[i] = total


@nb.kernel(check_races=True)
def alone(did, where, value, a, out):
    i = nb.tid()
    total = 0
    for k in range(did.shape[1]):
        d, w, v = did[i, k], where[i, k], value[i, k]
        if d == READ:
            total += a[w]
        elif d == STORE:
            a[w] = v
        elif d == ADD:
            nb.atomic_add(a, w, v)
    out[i] = total


@dataclass
class Access:
    """What a thread did to a cell, and what it had waited for."""

    thread: int
    cell: tuple[int, int]
    does: str
    for_block: int
    for_lanes: int


class Played:
    """A launch of `stepped`, thread by thread as numbridge's own runs them, with everything that is done to an element."""

    def __init__(self, size: int, did: Any, where: Any, value: Any, waits: Any, a: Any) -> None:
        self.size, self.did, self.where, self.value, self.waits = size, did, where, value, waits
        self.memory = {(-1, w): int(v) for w, v in enumerate(a)}
        self.accesses: list[Access] = []
        for first in range(0, len(did), size):
            self.run(first, min(first + size, len(did)))

    def run(self, first: int, last: int) -> None:
        block = first // self.size
        self.memory |= {(block, w): 0 for w in range(CELLS)}
        threads = [self.thread(t) for t in range(first, last)]
        waiting = [next(thread, None) for thread in threads]
        while any(wait is not None for wait in waiting):
            for start in range(0, len(threads), LANES):
                lanes = range(start, min(start + LANES, len(threads)))
                while any(waiting[t] in (ON, WARP) for t in lanes):
                    for t in lanes:
                        if waiting[t] is not None:
                            waiting[t] = next(threads[t], None)
            waiting = [None if wait is None else ON for wait in waiting]

    def thread(self, t: int) -> Iterator[int]:
        for_block, for_lanes, block = 0, 0, t // self.size
        yield BLOCK  # once shared memory has been cleared
        for phase, wait in enumerate(self.waits):
            for d, w, v in zip(self.did[t, phase], self.where[t, phase], self.value[t, phase], strict=True):
                if d == NOTHING:
                    continue
                cell = (-1, int(w)) if d <= ADD else (block, int(w))
                does = {READ: "reads", STORE: "stores into", ADD: "changes atomically"}[(d - 1) % 3 + 1]
                if does == "stores into" and self.memory[cell] == v:
                    does = "stores the same into"
                self.accesses.append(Access(t, cell, does, for_block, for_lanes))
                self.memory[cell] = {READ: self.memory[cell], STORE: v, ADD: self.memory[cell] + v}[(d - 1) % 3 + 1]
            if wait == BLOCK:
                for_block += 1
                yield BLOCK
            elif wait == WARP:
                for_lanes += 1
                yield WARP

    def races(self) -> list[tuple[Access, Access]]:
        pairs = ((first, second) for k, second in enumerate(self.accesses) for first in self.accesses[:k])
        return [pair for pair in pairs if self.race(*pair)]

    def race(self, first: Access, second: Access) -> bool:
        if first.cell != second.cell or first.thread == second.thread:
            return False
        if first.thread // self.size == second.thread // self.size:
            if first.for_block != second.for_block:
                return False
            warps = {access.thread % self.size // LANES for access in (first, second)}
            if len(warps) == 1 and first.for_lanes != second.for_lanes:
                return False
        does = first.does, second.does
        if does[0] == does[1]:
            return does[0] == "stores into"
        if "changes atomically" in does:
            return True
        return does != ("stores into", "stores the same into") and "stores into" in does


def drawn(random: np.random.Generator, threads: int, phases: int, actions: int, kinds: int) -> tuple[Any, ...]:
    """Return what some threads do in some phases, which is mostly nothing."""
    shape = (threads, phases, 2)
    did, where, value = np.zeros(shape, int), random.integers(0, CELLS, shape), random.integers(1, 3, shape)
    likely = random.choice(threads, min(threads, 4), replace=False)
    for _ in range(actions):
        thread = random.choice(likely) if random.random() < 0.5 else random.integers(threads)
        did[thread, random.integers(phases), random.integers(2)] = random.integers(1, kinds)
    return did, where, value


def test_threads_of_random_blocks():
    random, found = np.random.default_rng(5), 0
    for _ in range(400):
        size, blocks, phases = int(random.choice([8, 40, 64])), int(random.integers(1, 4)), int(random.integers(1, 5))
        threads = size * blocks - int(random.integers(0, 4))
        did, where, value = drawn(random, threads, phases, int(random.integers(1, 9)), 7)
        waits = random.integers(0, 3, phases)
        a = random.integers(1, 3, CELLS)
        played = Played(size, did, where, value, waits, a)
        expected = played.races()
        arguments = [did, where, value, waits, a, np.zeros(threads, int)]
        if not expected:
            nb.launch(stepped, threads, arguments, block_dim=size)
            assert {cell[1]: v for cell, v in played.memory.items() if cell[0] < 0} == dict(enumerate(a.tolist()))
            continue
        found += 1
        with pytest.raises(nb.DataRaceError) as caught:
            nb.launch(stepped, threads, arguments, block_dim=size)
        told = re.findall(r"(\d+) of block (\d+)", str(caught.value))
        pair = tuple(int(thread) + size * int(block) for thread, block in told)
        assert pair in [(first.thread, second.thread) for first, second in expected], caught.value
    assert 100 < found < 300


def test_threads_that_are_apart():
    random, found = np.random.default_rng(6), 0
    for _ in range(400):
        threads = int(random.integers(2, 30))
        did, where, value = drawn(random, threads, 1, int(random.integers(2, 7)), 4)
        a = random.integers(1, 3, CELLS)
        played = Played(1, did, where, value, [ON], a)
        expected = [(first.thread, second.thread) for first, second in played.races()]
        arguments = [did[:, 0], where[:, 0], value[:, 0], a, np.zeros(threads, int)]
        if not expected:
            nb.launch(alone, threads, arguments)
            assert [played.memory[-1, w] for w in range(CELLS)] == a.tolist()
            continue
        found += 1
        with pytest.raises(nb.DataRaceError) as caught:
            nb.launch(alone, threads, arguments)
        assert tuple(map(int, re.findall(r"(?:threads?|and) (\d+)\b", str(caught.value)))) in expected
    assert 100 < found < 300


def checked(function: Any) -> Any:
    return nb.kernel(check_races=True)(function)


@checked
def scatter(x, index, y):
    i = nb.tid()
    y[index[i]] = x[i]


@checked
def count(bins, counts):
    i = nb.tid()
    counts[bins[i]] += 1


@checked
def moved(x, y):
    i, j = nb.tid()
    y[i, j] = x[i, (j + 1) % x.shape[1]]


@nb.func
def put(a, k, value):
    a[k] = value


@checked
def by_a_function(a, index):
    i = nb.tid()
    put(a, index[i], i)


@checked
def summed(x, total, y):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i])
    y[i] = total[0]


@checked
def cleared(x, total):
    i = nb.tid()
    nb.atomic_add(total, 0, x[i])
    if i == 2:
        total[0] = 1.0


@checked
def of_slices(a, b):
    i = nb.tid()
    a[i : i + 2] = b[i]


@checked
def without_an_index(x):
    x[0] = x[0] + 1.0


@checked
def of_no_dimension(x, y):
    y[()] = x[nb.tid()]


@checked
def of_vectors(v: nb.array[nb.vec3], index):
    i = nb.tid()
    v[index[i]] += nb.vec3(1.0, 2.0, float(i))


@checked
def of_complex_numbers(z, index):
    i = nb.tid()
    z[index[i]] *= 2j


@checked
def of_fields(r, index):
    i = nb.tid()
    if i % 2 == 0:
        r[index[i]].a = i
    else:
        r[index[i]].b = i


@checked
def of_records(r, q, index):
    i = nb.tid()
    r[index[i]] = q[i]


@checked
def of_tuples(pair, index):
    i = nb.tid()
    a, b = pair
    b[index[i]] = a[i]


@checked
def of_halves(x, halves, y):
    i = nb.tid()
    if i == 0:
        x[2] += 1.5
    else:
        y[i] = halves[5]


@checked
def of_a_union(r, y):
    i = nb.tid()
    if i == 0:
        r[1].whole += 1.5
    else:
        y[i] = r[1].half


UNION = np.dtype({"names": ["whole", "half"], "formats": ["f8", "f4"], "offsets": [0, 4], "itemsize": 8})
EVERY_OTHER = np.arange(8.0).reshape(4, 2).T
WHOLE = np.zeros(4)
COLUMNS = np.arange(12.0).reshape(4, 3)
RECORD = np.dtype([("a", np.float32), ("b", np.int64), ("c", np.float64, (2,))])
LARGE = np.dtype([("a", np.float32, (40,)), ("b", np.int64)])
ONCE, TWICE = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 1])
SQUARE = np.arange(16.0).reshape(4, 4)


def records(dtype: Any) -> Any:
    made = np.zeros(4, dtype)
    made["b"] = np.arange(4)
    return made


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kernel", "dims", "arrays", "text", "lines"),
    [
        (
            scatter,
            4,
            [np.arange(4.0), TWICE, np.zeros(4)],
            "threads 1 and 3 store different values into y[1];",
            1,
        ),
        (count, 4, [TWICE, np.zeros(4, int)], "threads 1 and 3 change counts[1], each as it finds it;", 1),
        (
            moved,
            (4, 4),
            [SQUARE, SQUARE],
            "thread (0, 0) reads x[0, 1], which overlaps y, and thread (0, 1) stores into",
            1,
        ),
        (
            moved,
            (3, 4),
            [SQUARE[1:], SQUARE[:3]],
            "thread (0, 3) reads x[0, 0], which overlaps y, and thread (1, 0)",
            1,
        ),
        (moved, (4, 4), [SQUARE.T, SQUARE.T], "thread (0, 0) reads x[0, 1], which overlaps y, and thread (0, 1)", 1),
        (
            moved,
            (4, 4),
            [SQUARE[::-1, ::-1]] * 2,
            "thread (0, 0) reads x[0, 1], which overlaps y, and thread (0, 1)",
            1,
        ),
        (by_a_function, 4, [np.zeros(4), TWICE], "threads 1 and 3 store different values into a[1];", 1),
        (
            summed,
            4,
            [np.ones(4), np.zeros(1), np.zeros(4)],
            "thread 0 reads total[0], and thread 1 changes it atomically",
            2,
        ),
        (
            cleared,
            4,
            [np.ones(4), np.zeros(1)],
            "thread 1 changes total[0] atomically, and thread 2 stores into it;",
            2,
        ),
        (of_slices, 4, [np.zeros(5), np.arange(4.0)], "threads 0 and 1 store different values into a[1];", 1),
        (without_an_index, 3, [np.zeros(3)], "threads 0 and 1 change x[0], each as it finds it;", 1),
        (
            of_no_dimension,
            3,
            [np.arange(3.0), np.zeros(())],
            "threads 0 and 1 store different values into y[()];",
            1,
        ),
        (of_vectors, 4, [np.ones((4, 3), np.float32), TWICE], "threads 1 and 3 change v[1], each as it finds it;", 1),
        (of_complex_numbers, 4, [np.ones(4, complex), TWICE], "threads 1 and 3 change z[1], each as it", 1),
        (of_fields, 4, [records(RECORD), ONCE * 0], "threads 0 and 2 store different values into r[0];", 1),
        (of_records, 4, [np.zeros(4, RECORD), records(RECORD), TWICE], "store different values into r[1];", 1),
        (of_records, 4, [np.zeros(4, LARGE), records(LARGE), TWICE], "store different values into r[1];", 1),
        (of_tuples, 4, [(np.arange(4.0), np.zeros(4)), TWICE], "store different values into pair[1][1];", 1),
        (scatter, 4, [EVERY_OTHER[0], TWICE, EVERY_OTHER[1]], "store different values into y[1];", 1),
        (scatter, 4, [COLUMNS[:, 0], TWICE, COLUMNS[::-1, 1]], "store different values into y[1];", 1),
        (
            of_halves,
            2,
            [WHOLE, WHOLE.view(np.float32), np.zeros(2)],
            "stores into x[2], which overlaps halves, and thread 1 reads it;",
            2,
        ),
        (of_a_union, 2, [np.zeros(2, UNION), np.zeros(2)], "stores into r[1], and thread 1 reads it;", 2),
    ],
)
def test_a_race_is_told_with_its_element(kernel, dims, arrays, text, lines):
    with pytest.raises(nb.DataRaceError, match=re.escape(text)) as caught:
        nb.launch(kernel, dims, arrays)
    message = str(caught.value)
    assert message.startswith(f"kernel '{kernel.name}': ") and isinstance(caught.value, RuntimeError)
    assert message.count("test_races.py:") == lines
    with pytest.raises(nb.DataRaceError):
        nb.launch(kernel, dims, arrays)


@pytest.mark.parametrize(
    ("kernel", "dims", "arrays"),
    [
        (scatter, 4, [np.arange(4.0), ONCE, np.zeros(4)]),
        (scatter, 4, [np.ones(4), TWICE, np.zeros(4)]),
        (scatter, 0, [np.ones(4), TWICE, np.zeros(4)]),
        (count, 4, [ONCE, np.zeros(4, int)]),
        (moved, (4, 4), [SQUARE, SQUARE.copy()]),
        (moved, (4, 2), [SQUARE[:, :2], SQUARE[:, 2:]]),
        (by_a_function, 4, [np.zeros(4), ONCE]),
        (of_slices, 4, [np.zeros(5), np.zeros(4)]),
        (without_an_index, 1, [np.zeros(3)]),
        (of_vectors, 4, [np.ones((4, 3), np.float32), ONCE]),
        (of_complex_numbers, 4, [np.ones(4, complex), ONCE]),
        (of_fields, 4, [records(RECORD), np.array([0, 0, 3, 3])]),
        (of_records, 4, [np.zeros(4, LARGE), records(LARGE), ONCE]),
        (of_tuples, 4, [(np.arange(4.0), np.zeros(4)), ONCE]),
    ],
)
def test_what_is_apart_or_the_same_is_no_race(kernel, dims, arrays):
    nb.launch(kernel, dims, arrays)


PARTICLE = np.dtype([("x", np.float32), ("p", [("x", np.float64), ("n", np.int16)]), ("v", np.float32, (3,))])


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("annotation", "shape", "statement"),
    [
        ("nb.array[nb.vec3]", (4, 3), "a[k][1] = value"),
        ("nb.array[nb.vec3]", (4, 3), "a[k].z = value"),
        ("nb.array[nb.vec3]", (4, 3), "a[k][1:] = nb.vec2(1.0, value)"),
        ("nb.array[nb.mat33]", (4, 3, 3), "a[k][1, 2] = value"),
        ("nb.array[nb.mat33]", (4, 3, 3), "a[k][1] = nb.vec3(1.0, 2.0, value)"),
        ("nb.array[nb.mat33]", (4, 3, 3), "a[k][1][2] += value"),
        ("nb.array[nb.transform]", (4, 7), "a[k].p.x = value"),
        ("nb.array2d[float]", (4, 3), "row = a[k]; row[1] = value"),
        ("nb.array2d[float]", (4, 3), "row = a[k]; row[1:3] = value"),
        ("nb.array2d[float]", (4, 3), "row = a[k]; row[::2] = value"),
        (None, (4,), "a[k].x = value"),
        (None, (4,), "a[k].p.x = value"),
        (None, (4,), "a[k]['p']['n'] += i"),
        (None, (4,), "r = a[k]; r.p.x = value"),
        (None, (4,), "a[k]['v'][1] = value"),
    ],
)
def test_stores_into_parts_are_seen(annotation, shape, statement):
    head = "a" if annotation is None else f"a: {annotation}"
    body = "".join(f"    {part}\n" for part in statement.split("; "))
    _, plain = made(f"def k({head}, index):\n    i = nb.tid()\n    k = index[i]\n    value = float(i)\n{body}")
    kernel = checked(plain)
    a = np.zeros(shape, np.float32 if annotation else PARTICLE)
    nb.launch(kernel, 4, [a.copy(), ONCE])
    with pytest.raises(nb.DataRaceError, match=r"threads 1 and 3 (store|change) .*a\[1"):
        nb.launch(kernel, 4, [a, TWICE])


def test_results_are_those_of_a_launch_that_is_not_checked():
    random = np.random.default_rng(1)
    x = random.random((70, 65))
    for kernel in (moved, nb.kernel(moved.function)):
        y = np.zeros((70, 65))
        nb.launch(kernel, y.shape, [x, y])
        assert (y == np.roll(x, -1, axis=1)).all()


@checked
def components(v: nb.array[nb.vec3], m: nb.array[nb.mat22], x):
    i = nb.tid()
    v[i // 3][i % 3] = 2.0 * v[i // 3][i % 3] + i
    if i < 4:
        m[i // 2][i % 2, 0] = x[i]
        m[i // 2][i % 2, 1] = m[i // 2][i % 2, 0] * 2.0


@checked
def halves(v: nb.array[nb.vec4], m: nb.array[nb.mat33]):
    i = nb.tid()
    k = i // 2
    if i % 2 == 0:
        v[k][:2] = 2.0 * v[k][:2]
        v[k].y += 1.0
        m[k][0] = m[k][0] + m[k][0, 1] * m[k][0]
        m[k][0, :2] = m[k][0][:2]
    else:
        v[k][2:] = 3.0 * v[k][2:]
        v[k].w += v[k].z
        m[k][1:, 0] = 2.0 * m[k][1:, 0]
        m[k][1:] = m[k][1:] + m[k][1:]


def test_slices_are_elements_of_their_own():
    v, m = np.ones((2, 4), np.float32), np.ones((2, 3, 3), np.float32)
    nb.launch(halves, 4, [v, m])
    assert v.tolist() == [[2, 3, 3, 6]] * 2
    assert m.tolist() == [[[2, 2, 2], [4, 2, 2], [4, 2, 2]]] * 2


@nb.func
def first_two(m, k):
    return m[k][:2]


def parts(x: nb.array[nb.mat33], t: nb.array[nb.transform], y: nb.array[nb.vec4], z: nb.array2d[float], pair):
    i = nb.tid()
    m, q = x[i], t[i]
    a = m[0][:2] + m[1][1:] + first_two(m, i) + first_two(x[i], 2) + x[i][1][::2]
    b = m[:2, 1] + x[i][1:, 0] + x[i][0, ::-2] + t[i].p[:2] + q.p[1:] + t[i].q[2:] + q.q[:2]
    c = pair[0][i][:2] + pair[1][i][2:]
    y[i] = nb.vec4(a[0] + b[0] + m[1][2] + x[i][2, 0], a[1] + b[1] + q.p.x + t[i].q.w, c[0], c[1])
    row = z[i]
    row[-2:0:-1] = z[i][::-1][0] + z[i][-2:][1]
    z[i, 0] = row[1:][0] + z[i][3::-2][1] + row[:-1][1]


def test_parts_are_what_they_are_where_nothing_is_noted():
    found = []
    for kernel in (checked(parts), nb.kernel(parts)):
        random = np.random.default_rng(0)
        x, t, y, z, first, second = (
            random.random(shape).astype(np.float32) for shape in [(3, 3, 3), (3, 7), (3, 4), (3, 5), (3, 4), (3, 4)]
        )
        nb.launch(kernel, 3, [x, t, y, z, tuple(nb.array(one, dtype=nb.vec4) for one in (first, second))])
        found.append((y, z))
    assert all((one == other).all() for one, other in zip(*found, strict=True))
    assert (z[:, 1:4] == 2 * z[:, 4:]).all()


def test_components_are_elements_of_their_own():
    v, m = np.ones((3, 3), np.float32), np.ones((2, 2, 2), np.float32)
    nb.launch(components, 9, [v, m, np.arange(9, dtype=np.float32)])
    assert v.ravel().tolist() == [2.0 + k for k in range(9)]
    assert m.tolist() == [[[0, 0], [1, 2]], [[2, 4], [3, 6]]]


@checked
def with_local_memory(x, y):
    i = nb.tid()
    own = cuda.local.array(8, np.float64)
    for j in range(8):
        own[j] = x[i] * j
    for j in range(8):
        y[i] += own[j]


def test_local_memory_is_no_others():
    y = np.zeros(40)
    nb.launch(with_local_memory, 40, [np.ones(40), y])
    assert (y == 28).all()


@checked
def strided(x, y):
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        y[i] = 2 * x[i]
    for i in range(cuda.threadIdx.x, 4, cuda.blockDim.x):
        if cuda.blockIdx.x == 0:
            y[i] += 1


def test_a_thread_is_one_in_all_trips_of_its_loop():
    y = np.zeros(50)
    with pytest.raises(nb.DataRaceError, match=r"threads 0 and 2 store different values into y\[2\]"):
        strided[2, 2](np.ones(50), y)
    strided[1, 4](np.ones(50), y)
    assert y[:5].tolist() == [3, 3, 3, 3, 2]


@checked
def last_block(x, partial, done, out):
    s = cuda.shared.array(1, np.int64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t == 0:
        partial[cuda.blockIdx.x] = x[i] + x[i + 1]
        cuda.threadfence()
        s[0] = cuda.atomic.inc(done, 0, cuda.gridDim.x - 1)
    cuda.syncthreads()
    if s[0] == cuda.gridDim.x - 1 and t == 0:
        total = 0.0
        for j in range(cuda.gridDim.x):
            total += partial[j]
        out[0] = total


@checked
def locked(lock, a):
    i = nb.tid()
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    a[0] += i
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@checked
def queued(n, out):
    i = nb.tid()
    if i % 2 == 0:
        out[cuda.atomic.add(n, 0, 1)] = i


@checked
def across_blocks(a, b, waits):
    i = cuda.grid(1)
    a[i] = i
    if waits:
        cuda.cg.this_grid().sync()
    else:
        cuda.syncthreads()
    b[i] = a[(i + 3) % a.shape[0]]


def test_fences_locks_and_grids_order():
    out, a = np.zeros(1), np.zeros(1)
    last_block[4, 2](np.ones(8), np.zeros(4), np.zeros(1, np.uint32), out)
    nb.launch(locked, 10, [np.zeros(1, np.int32), a])
    nb.launch(queued, 10, [np.zeros(1, np.int32), np.zeros(10)])
    across_blocks[4, 2](np.ones(8), np.zeros(8), True)
    assert (out[0], a[0]) == (8, 45)
    with pytest.raises(nb.DataRaceError, match=r"thread 1 of block 1 stores into a\[3\], and thread 0 of block 0"):
        across_blocks[4, 2](np.ones(8), np.zeros(8), False)


@checked
def unfinished(x, out):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    step = 32
    while step > 0:
        cuda.syncthreads()
        if t < step:
            s[t] += s[t + step // 2]
        step //= 2
    if t == 0:
        nb.atomic_add(out, 0, s[0])


def test_a_missing_barrier_is_told():
    text = r"thread 0 of block 0 reads one element of shared memory, and thread 16 of block 0 stores .*Put a barrier"
    with pytest.raises(nb.DataRaceError, match=text):
        unfinished[2, 64](np.ones(128, np.float32), np.zeros(1, np.float32))


@checked
def in_part_of_a_warp(out, waits):
    s = cuda.shared.array(32, np.int64)
    t = cuda.threadIdx.x
    if t < 16:
        cuda.syncwarp(0xFFFF)
        s[t] = t + 1
    if waits:
        cuda.syncwarp()
    if t >= 16:
        out[t] = s[t - 16]


@checked
def from_lane_to_lane(a, last):
    t = cuda.threadIdx.x
    if t == 0:
        a[0] = 5
    if t < 2:
        cuda.syncwarp(0b11)
    if 0 < t <= last:
        cuda.syncwarp(0b110)
    if t == 2:
        a[1] = a[0]


def test_lanes_are_ordered_with_those_that_they_have_waited_with():
    out, a = np.zeros(32, int), np.zeros(2, int)
    in_part_of_a_warp[1, 32](out, True)
    from_lane_to_lane[1, 32](a, 2)
    assert (out[16:].tolist(), a.tolist()) == (list(range(1, 17)), [5, 5])
    with pytest.raises(nb.DataRaceError, match=r"thread 16 of block 0 reads .* thread 0 of block 0 stores into it"):
        in_part_of_a_warp[1, 32](out, False)
    with pytest.raises(
        nb.DataRaceError, match=r"thread 0 of block 0 stores into a\[0\], and thread 2 of block 0 reads it"
    ):
        skipping_a_lane[1, 32](np.zeros(2, int))


@checked
def skipping_a_lane(a):
    t = cuda.threadIdx.x
    if t == 0:
        a[0] = 5
    if t < 2:
        cuda.syncwarp(0b11)
    if t == 2:
        cuda.activemask()
        a[1] = a[0]


@checked
def after_the_grid(a, b):
    i = cuda.grid(1)
    b[i] = i
    cuda.cg.this_grid().sync()
    a[b[i] // 3] = i


@pytest.mark.parametrize("blocks", [1, 2])
def test_what_comes_after_a_wait_for_the_grid_is_checked(blocks):
    n = 4 * blocks
    with pytest.raises(
        nb.DataRaceError, match=r"threads 0 of block 0 and 1 of block 0 store different values into a\[0\]"
    ):
        after_the_grid[blocks, 4](np.ones(n), np.zeros(n, int))


@checked
def raising(x, y):
    i = nb.tid()
    if x[i] > 2:
        raise ValueError("too large")
    y[i] = x[i]


def test_a_launch_that_raises_lets_others_be_checked():
    with pytest.raises(nb.KernelError, match="ValueError: too large"):
        nb.launch(raising, 4, [np.arange(4.0), np.zeros(4)])
    nb.launch(raising, 2, [np.arange(4.0), np.zeros(4)])


@nb.kernel(check_races=True, check_bounds=True)
def failing(x, index, y, how):
    i = nb.tid()
    y[index[i]] = x[i]
    if i == 3 and how == 1:
        y[x.shape[0]] = 1.0
    if i == 3 and how == 2:
        raise ValueError("too many")


def test_a_race_that_was_not_told_is_forgotten():
    with pytest.raises(IndexError, match="index 4 is out of range"):
        nb.launch(failing, 4, [np.arange(4.0), TWICE, np.zeros(4), 1])
    with pytest.raises(nb.KernelError, match="ValueError: too many"):
        nb.launch(failing, 4, [np.arange(4.0), ONCE, np.zeros(4), 2])


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="needs fork")
def test_a_forked_process_can_check():
    from numbridge.kernels.cpu_backend.races import STATE
    from numbridge.kernels.native.access_layout import CHECK_LOCK

    nb.launch(scatter, 4, [np.arange(4.0), ONCE, np.zeros(4)])
    with warnings.catch_warnings():
        # Python warns of a fork where there are several threads, as here.
        warnings.simplefilter("ignore")
        STATE[CHECK_LOCK] = 1  # as if another thread were checking a launch
        try:
            child = os.fork()
            if child == 0:
                os._exit(int(STATE[CHECK_LOCK]))
        finally:
            STATE[CHECK_LOCK] = 0
    assert os.waitpid(child, 0)[1] == 0


def test_launches_of_several_threads_are_checked_in_turn():
    def many(index: Any) -> list[int]:
        raced = []
        for k in range(30):
            try:
                nb.launch(scatter, 4, [np.arange(4.0), index, np.zeros(4)])
            except nb.DataRaceError:
                raced.append(k)
        return raced

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(many, [ONCE, ONCE, TWICE, ONCE]))
    assert [len(raced) for raced in found] == [0, 0, 30, 0]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(many, [TWICE] * 4))
    assert [len(raced) for raced in found] == [30] * 4


def test_a_table_that_has_to_grow():
    n = 50_000
    index = np.random.default_rng(2).permutation(n)
    y = np.zeros(n)
    nb.launch(scatter, n, [np.arange(float(n)), index, y])
    assert (y[index] == np.arange(n)).all()
    index[-1] = index[0]
    with pytest.raises(nb.DataRaceError, match=rf"threads 0 and {n - 1} store different values into y\[{index[0]}\]"):
        nb.launch(scatter, n, [np.arange(float(n)), index, y])


def stored(x: nb.array[float], index: nb.array[int], y: nb.array[float]):
    i = nb.tid()
    y[index[i]] = x[i]


def test_frameworks_get_the_error():
    run = nb.jax_kernel(checked(stored), num_outputs=1)
    x, index = jnp.arange(4.0), jnp.asarray(TWICE)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"kernel 'stored' under JAX.*store different values into y\[1\]"
    ):
        jax.block_until_ready(jax.jit(lambda x, index: run(x, index, launch_dims=4))(x, index))
    operator = nb.torch_op(checked(stored), outputs="y")
    with pytest.raises(nb.DataRaceError, match=r"store different values into y\[1\]"):
        operator(torch.arange(4.0, requires_grad=True), torch.asarray(TWICE, dtype=torch.int32))
    x = torch.arange(4.0, requires_grad=True)
    operator(x, torch.asarray(ONCE, dtype=torch.int32)).sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 1]


def test_a_tape_gets_the_error_and_adjoints_are_not_checked():
    x, y = nb.array(np.arange(4.0), requires_grad=True), nb.zeros(4, float, requires_grad=True)
    with nb.Tape(), pytest.raises(nb.DataRaceError):
        nb.launch(scatter, 4, [x, TWICE, y])
    with nb.Tape() as tape:
        nb.launch(scatter, 4, [x, ONCE, y])
    tape.backward(grads={y: nb.array(np.ones(4))})
    assert x.grad.numpy().tolist() == [1, 1, 1, 1]


def test_the_setting():
    def plain(x):
        x[nb.tid()] = 0.0

    assert nb.kernel(plain).options["check_races"] is False
    nb.config.check_races = True
    try:
        assert nb.kernel(plain).options["check_races"] is True
        assert nb.kernel(check_races=False)(plain).options["check_races"] is False
    finally:
        nb.config.check_races = False
    with pytest.raises(nb.NumbridgeTypeError, match=r"config\.check_races: wanted True or False, got 1"):
        nb.config.check_races = 1


PROGRAM = """
import numpy as np, numbridge as nb

@nb.kernel
def scatter(x, index, y):
    i = nb.tid()
    y[index[i]] = x[i]

try:
    nb.launch(scatter, 3, [np.arange(3.0), np.array([0, 1, 1]), np.zeros(3)])
except nb.DataRaceError as error:
    (variant,) = scatter.variants._variants.values()
    print(variant.from_cache, str(error).splitlines()[-2].strip())
"""


def test_another_process_finds_the_code_and_its_places(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    found = []
    for _ in range(2):
        environment = os.environ | {"NUMBRIDGE_CHECK_RACES": "1", "NUMBRIDGE_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
    assert found == ["False y[index[i]] = x[i]", "True y[index[i]] = x[i]"]
