"""Neighbouring threads that run together in SIMD lanes compute, to the last bit, what each computes alone."""

# ruff: noqa: B007 - kernels as users write them

from __future__ import annotations

import math
import os
from random import Random

import numpy as np
import pytest
from numba import cuda, float64, int32, njit

import numbridge as nb
from adjoint_programs import WIDTH, Writer, declared
from lane_checks import TRIPS, Strided, both_ways, check, floats, gradients, integers, is_close, vectors, widths
from numbridge.kernels.native.table_layout import GRAIN_PIECES

RECORD = np.dtype([("flag", np.uint8), ("x", np.float32), ("mass", np.float64), ("kind", np.int16)])
TABLE = np.array([1.0, -2.0, 3.0], np.float32)
# NUMBRIDGE_LANE_PROGRAMS is how many random programs are compared.
PROGRAMS, PARTS = int(os.environ.get("NUMBRIDGE_LANE_PROGRAMS", "6")), 2


@pytest.fixture(autouse=True)
def as_before():
    yield
    nb.config.simd = None


# Kernels, and what makes arguments for n threads


def uniform_breaks(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for k in range(n):
        if k > 7:
            break
        if x[k % x.shape[0]] > 0.8:
            break
        if k % 3 == 1:
            continue
        for j in range(n):
            if j > k:
                break
            s = s * 0.9 + x[j % x.shape[0]]
            if j == 3:
                continue
            s += 0.1
        s = math.cos(s)
    y[i] = s + k


def uniform_while(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    t = 0.0
    w = 0
    while w < n and t < 3.0:
        t += abs(x[w % x.shape[0]])
        s = s * t
        w += 1
        if t > 2.5:
            s += 1.0
            break
    y[i] = s + t + w


def branch_of_what_comes_round(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(n):
        if s > 0.5:
            for j in range(k):
                s = s * 0.7 + x[i] * j
        s += x[i]
    y[i] = s


def branches_around_loops(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    c = 0
    for k in range(n):
        if s > 0.2:
            for j in range(n):
                if j > k:
                    break
                s = s * 0.9 + x[j % x.shape[0]]
                c += j
            s -= 0.3
        elif x[i] < 0.0:
            w = 0
            while w < k:
                w += 1
                if w == 4:
                    break
                s += 0.1 * x[w % x.shape[0]]
                c += w
        s = math.cos(s)
        c += 1
    y[i] = s + c


def branches_in_branches(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    u = 0.0
    for k in range(n):
        if x[i] * k > 0.5:
            v = 0.0
            for j in range(3):
                v += j * 0.5
                if s > v:
                    z = 0.0
                    for q in range(2):
                        z += q + v
                        s = s * 0.9 + z * x[q]
                    v += 0.1
                else:
                    s += 0.2
            s += v
            u = v
        s = math.tanh(s) + u * 0.1
    y[i] = s


def begun_inside(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(n):
        if k == 0 or x[i] * 10 > k:
            if k == 0:
                c = 0.0
            for j in range(5):
                c += 1.0 + x[0]
            s += c
    y[i] = s


def assigned_in_some_lanes(x, y, n):
    a, b = nb.tid()
    i = a + b
    last = -1.0
    count = 0
    flag = 0
    for k in range(n):
        v = x[k % x.shape[0]]
        if v > x[i]:
            last = v
            count = k
            flag = 1
            s = 2.0
        else:
            s = 3.0
        if count > 3:
            last = last * 0.9
        y[i] += s * flag
    y[i] += last + count + flag


def steps_of_ranges(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(n, -n, -3):
        s = s * 0.9 + x[k % x.shape[0]]
    for k in range(n - 1, -1, -1):
        s = s * 0.5 + x[-i - 1] * k
    for k in range(-5, n, 2):
        s += k * x[i]
        j = k
    for m in range(3, 3):
        j = 100
    y[-1 - i] = s + j + k


def guarded_loads(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(n):
        if i + k < x.shape[0] and x[i + k] > 0.0:
            s += x[i + k]
        s += x[i - k] if i - k >= 0 else (1.0 / k if k else 0.5)
        s = s * 0.9 + (x[k] if k < x.shape[0] else 0.0)
    y[i] = s


def functions_of_cuda(x, y, n):
    a, b = nb.tid()
    i = a + b
    s, bits = x[i], i
    for k in range(n):
        bits = (bits * 1103515245 + 12345) & 0x7FFFFFFF
        s = cuda.fma(s, 0.5, x[i]) + 0.01 * float(cuda.popc(bits) - cuda.clz(bits) + cuda.ffs(bits))
        s = cuda.selp(s > x[k % x.shape[0]], s * 0.5, s + 0.1) + 1e-9 * float(cuda.brev(np.uint32(bits)))
    y[i] = s


def index_of_some_lanes(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(n):
        if x[i] > 0.0:
            m = i - 3  # which counts from the end in the first lanes
            s += x[m] * k
        else:
            s += x[i - k]
    y[i] = s


def early_return(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for k in range(n):
        s = s * 0.9 + x[k % x.shape[0]]
        if k == 5:
            y[i] = s
            return
    y[i] = -s


def own_element(x, y, n):
    a, b = nb.tid()
    i = a + b
    for k in range(n):
        v = x[0]
        y[i] = y[i] * 0.5 + x[i] + v * k
        y[i] += x[k % x.shape[0]]


def scan_of_rows(x, y, n):
    a, b = nb.tid()
    i = a + b
    for k in range(n):
        y[i, k + 1] = y[i, k] * 0.5 + x[i]


def local_arrays(x, y, n):
    a, b = nb.tid()
    i = a + b
    grid = cuda.local.array((2, 3), float64)
    few = cuda.local.array(3, int32)
    for k in range(grid.shape[1]):
        grid[0, k] = x[i] * k
        grid[1, k] = k - i
        few[k] = 250 + k + i
    s = 0.0
    for k in range(n):
        s = s * 0.5 + grid[k % 2, (k + i) % 3] + few[-1 - k % 3]
        few[k % 3] += 3
        if grid[0, k % 3] > 0.1:
            for j in range(2):
                grid[j, k % len(few)] = grid[1 - j, -1 - k % 3] * 0.7 - s * 0.01
    y[i] = s


def divisions(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0
    for k in range(n):
        s += (k * 7 - 20) // x[i] + (k - 9) % x[i] + x[i] % (k + 1) + abs(x[i]) ** 2
        s ^= x[-1 - i] >> 1
        if s > 100:
            s -= 7
    y[i] = s


def booleans(x, y, n):
    a, b = nb.tid()
    i = a + b
    flag = False
    count = 0
    for k in range(n):
        flag = flag != x[(i + k) % x.shape[0]]
        if flag and x[k % x.shape[0]]:
            count += 1
        flag = not flag if x[0] else flag or x[i]
    y[i] = count + flag


def narrow(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for k in range(n):
        s = s * x[k % x.shape[0]] + x[-1 - i]
        y[i] = s
        s = y[i] * 0.9


def elements(x: nb.array1d[nb.vec3], y: nb.array1d[nb.vec3], m: nb.array1d[nb.mat33], c: nb.vec3, n):
    a, b = nb.tid()
    i = a + b
    v = x[i]
    r = m[i]
    for k in range(n):
        v = r * v * 0.3 + x[k % x.shape[0]]
        if nb.dot(v, v) > 1.0:
            v = nb.normalize(v) + c
            v.x = v.y + 1.0
    y[i] = v + r * v


def parts_of_elements(x: nb.array1d[nb.vec3], y: nb.array1d[nb.vec3], m: nb.array1d[nb.mat33], c: nb.vec3, n):
    a, b = nb.tid()
    i = a + b
    v = x[i]
    for k in range(n):
        p, q, r = v
        for part in x[k % x.shape[0]]:
            p = p * 0.5 + part * q
            if p > 0.7:
                break
        for row, number in zip(m[i], c):  # noqa: B905 - kernels take no keyword there
            r = r * 0.3 + nb.dot(row[1:], v[:2]) * number
        v[1:] = nb.vec2(p, q) * 0.5
        v[0] = r * 0.25
    y[i][:2] = v[1:]
    y[i][2] = v[0] * v[1]


def records(p, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(n):
        s += p[i].x * p[i].mass
        p[i].kind += k
        if p[i].kind > 20:
            p[i].mass = p[i].mass * 0.9 + p[i].x
    y[i] = s


@nb.func
def bounded(x, n):
    for k in range(n):
        if k == 3:
            return x * 0.5
        x = math.sin(x) + 0.1
    return x


def calls(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(n):
        s = bounded(s + x[i], 4) + TABLE[k % 3] * TABLE[(i + k) % 3] + max(s, x[i], 0.1) ** 2
    y[i] = s


@nb.func
def doubled(a, b):
    for k in range(3):
        a = a * 0.5 + b
    return a


@nb.func_grad(doubled)
def doubled_gradient(a, b, cotangent):
    return 0.125 * cotangent, 1.75 * cotangent


def by_hand(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for k in range(n):
        s = doubled(s, x[0]) * 0.5 + k
    y[i] = s


def made_records(n):
    made = np.zeros(n, RECORD)
    made["x"], made["mass"], made["kind"] = floats(n), floats(n), integers(n, high=9)
    return made


def places_that_follow_from_others(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    m = x.shape[0]
    at = i - m
    same = at + 0
    s = s * 0.5 + x[at] + same
    for k in range(n):
        s = s * 0.7 + x[same] * k
    y[i] = s


def branches_on_memory(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = 0.0
    for k in range(n):
        if k != i:  # nearly always in all lanes
            s += x[i] * x[k % x.shape[0]]
            last = s
        if x[k % x.shape[0]] > 0.2:  # in all lanes or in none
            y[i] += s
        if x[i] > 0.0:  # in some
            if x[(i + k) % x.shape[0]] < 0.5:
                y[i] = y[i] * 0.5 + s
                last = y[i]
            else:
                s -= x[i - k] * 0.1
        elif k > 3:
            last = 0.25
            s += last
    y[i] += s + last


def additions_in_branches(x, y, n):
    a, b = nb.tid()
    i = a + b
    count = 0
    for k in range(n):
        if k != i:
            nb.atomic_add(y, k % y.shape[0], 1.0)
            if x[i] > 0.0:
                nb.atomic_add(y, 0, 2.0)
                nb.atomic_add(y, i, 3.0)
                count += 1
    nb.atomic_add(y, i, float(count))


OF_VECTORS = (
    *(uniform_breaks, uniform_while, branch_of_what_comes_round, branches_around_loops, assigned_in_some_lanes),
    *(begun_inside, steps_of_ranges, guarded_loads, early_return, own_element, local_arrays, calls, by_hand),
    *(places_that_follow_from_others, branches_on_memory, additions_in_branches),
)
CASES = dict.fromkeys(OF_VECTORS, vectors) | {
    branches_in_branches: lambda n: [floats(max(n, 2)), floats(n), TRIPS],
    index_of_some_lanes: lambda n: [floats(max(n, TRIPS)), floats(n), TRIPS],
    scan_of_rows: lambda n: [floats(n), floats(n, TRIPS + 1), TRIPS],
    functions_of_cuda: vectors,
    booleans: lambda n: [integers(n, high=2, dtype=bool), integers(n), TRIPS],
    elements: lambda n: [floats(n, 3), floats(n, 3), floats(n, 3, 3), nb.vec3(0.1, 0.2, 0.3), TRIPS],
    parts_of_elements: lambda n: [floats(n, 3), floats(n, 3), floats(n, 3, 3), nb.vec3(0.1, 0.2, 0.3), TRIPS],
    records: lambda n: [made_records(n), floats(n), TRIPS],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("function", "make"), CASES.items(), ids=[f.__name__ for f in CASES])
def test_together_threads_compute_what_each_computes_alone(function, make):
    check(function, make)


@pytest.mark.parametrize("dtype", [np.int8, np.uint32])
def test_integers_in_lanes(dtype):
    low = -5 if np.dtype(dtype).kind == "i" else 0
    check(divisions, lambda n: [integers(n, low=low, high=5, dtype=dtype), integers(n), TRIPS])


@pytest.mark.parametrize("dtype", [np.float16, nb.bfloat16, np.float64])
def test_floats_in_lanes(dtype):
    check(narrow, lambda n: [floats(n, dtype=dtype), floats(n, dtype=dtype), TRIPS])


def test_arrays_whose_elements_lie_apart():
    check(scan_of_rows, lambda n: [Strided(n), Strided(n, TRIPS + 1), TRIPS])


def test_arrays_that_share_memory():
    kernel = nb.kernel(simd=True)(own_element)
    for first, second in (
        (slice(38, 75), slice(1, 38)),
        (slice(1, 38), slice(38, 75)),
        (slice(0, 37), slice(37, None, -1)),
    ):
        results = []
        for dims in ((1, 37), (37, 1)):
            z = np.linspace(-1, 1, 80).astype(np.float32)
            nb.launch(kernel, dims, [z[first], z[second], TRIPS] if second.step is None else [z[first], z[first], 0])
            results.append(z)
        assert results[0].tobytes() == results[1].tobytes()


def plain_rank(rank):
    """Return a kernel of one to four thread indices."""
    indices = "ijkl"[:rank]
    text = f"""
def ranked(x, y, n):
    {", ".join(indices)} = nb.tid()
    s = x[{", ".join(indices)}]
    for q in range(n):
        s = s * x[{", ".join(f"-1 - {index}" for index in indices)}] + 0.25
    y[{", ".join(indices)}] = s
"""
    return declared(text, nb=nb)


@pytest.mark.parametrize(
    ("rank", "shapes"),
    [
        (1, [(1,), (8,), (37,), (300,)]),
        (2, [(1, 1), (3, 2), (40, 3), (2, 8), (5, 17), (2, 37), (40, 33)]),
        (3, [(1, 1, 1), (2, 3, 4), (3, 2, 17), (2, 2, 40)]),
        (4, [(2, 1, 3, 4), (2, 3, 2, 17), (1, 2, 1, 40)]),
    ],
)
def test_launches_of_every_rank(rank, shapes):
    nb.config.simd = True
    kernel = plain_rank(rank)
    for shape in shapes:
        x, y = floats(*shape), np.zeros(shape, np.float32)
        nb.launch(kernel, shape, [x, y, TRIPS])
        wanted = x.copy()
        flipped = x[(slice(None, None, -1),) * rank]
        for _ in range(TRIPS):
            wanted = wanted * flipped + np.float32(0.25)
        assert np.array_equal(y, wanted), shape
    assert widths(kernel, [x, y, TRIPS])


def chain(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for k in range(n):
        s = s * 0.5 + x[k % x.shape[0]]
    y[i] = s


def many_trips_of_a_local_array(x, y, n):
    a, b = nb.tid()
    i = a + b
    kept = cuda.local.array(3000, float64)
    s = x[i]
    for k in range(n):
        kept[k] = s
        s = s * 0.5 + kept[k // 2]
    y[i] = s


def filled_before(x, y, n):
    """What fills a thread's own array tells nothing of the loop after it."""
    a, b = nb.tid()
    i = a + b
    kept = cuda.local.array(32, float64)
    for k in range(32):
        kept[k] = 0.5 * k
    s = x[i]
    for k in range(n):
        s = s * 0.5 + kept[k % 32] * x[i]
    y[i] = s


@pytest.mark.parametrize("function", [chain, uniform_breaks, many_trips_of_a_local_array, filled_before])
def test_threads_run_together_where_that_is_faster(function):
    kernel = nb.kernel(function)
    values = [floats(4000), floats(4000), TRIPS]
    assert widths(kernel, values) == {function.__name__: 64}
    alone = nb.kernel(simd=False)(function)
    assert not widths(alone, values)
    # Threads that run together are not shared out to different workers.
    assert [k.explain(*values).variant.grain % (1 << GRAIN_PIECES) for k in (kernel, alone)] == [64, 1]


@nb.func
def named_lanes(value):
    return value * 3


def named(x, y, n):
    i = nb.tid()
    s = 0.0
    for k in range(n):
        s = s * 0.5 + named_lanes(x[i])
    y[i] = s


def test_names_of_functions_stay_those_of_the_user():
    kernel, values = nb.kernel(named), [np.ones(40, np.float32), np.zeros(40, np.float32), 3]
    assert widths(kernel, values)
    nb.launch(kernel, 40, values)
    assert values[1].tolist() == [5.25] * 40


def few_trips(x, y, n):
    a, b = nb.tid()
    s = x[a + b]
    for k in range(4):
        s = s * 0.5 + x[k]
    y[a + b] = s


def no_loop(x, y, n):
    a, b = nb.tid()
    y[a + b] = x[a + b] * 2.0


def rows_apart(x, y, n):
    a, b = nb.tid()
    for k in range(n):
        y[(a + b) * n + k] = x[k]


def sorted_by_swaps(x, y, n):
    """LLVM unrolls the loops, and makes vectors of what neighbouring threads swap."""
    a, b = nb.tid()
    kept = cuda.local.array(9, nb.float32)
    for k in range(9):
        kept[k] = x[a + b + k]
    for k in range(9):
        for m in range(8 - k):
            if kept[m] > kept[m + 1]:
                kept[m], kept[m + 1] = kept[m + 1], kept[m]
    y[a + b] = kept[4]


def sorted_by_insertion(x, y, n):
    """Lanes that wait for each other would each store at another place of their arrays."""
    a, b = nb.tid()
    kept = cuda.local.array(9, nb.float32)
    for k in range(9):
        m = k - 1
        while m >= 0 and kept[m] > x[a + b + k]:
            kept[m + 1] = kept[m]
            m -= 1
        kept[m + 1] = x[a + b + k]
    y[a + b] = kept[4]


def history(x, y, n):
    """What takes long is worth more than what each lane stores by itself costs."""
    a, b = nb.tid()
    kept = cuda.local.array(64, nb.float32)
    v, k = abs(x[a + b]), 0
    while v < 30.0 and k < 64:
        v += 0.4 + 0.01 * math.sqrt(v + 1.0)
        kept[k] = v
        k += 1
    y[a + b] = kept[k // 2]


def test_threads_run_together_where_what_they_compute_takes_long():
    assert widths(nb.kernel(history), [floats(400), floats(400), TRIPS])


@pytest.mark.parametrize("function", [few_trips, no_loop, rows_apart, sorted_by_swaps, sorted_by_insertion])
def test_threads_run_alone_where_nothing_is_gained(function):
    values = [floats(400), floats(400), TRIPS]
    assert not widths(nb.kernel(function), values)
    assert widths(nb.kernel(simd=True)(function), values)


def prints(x, y, n):
    a, b = nb.tid()
    s = x[a + b]
    for k in range(n):
        s = s * 0.5 + x[k]
    if s > 1e9:
        print("large", s)
    y[a + b] = s


def refuses(x, y, n):
    a, b = nb.tid()
    s = x[a + b]
    for k in range(n):
        s = s * 0.5 + x[k]
    assert s < 1e9
    y[a + b] = s


@njit
def of_numba(x, n):
    for k in range(n):
        x = x * 0.5 + k
    return x


def calls_numba(x, y, n):
    a, b = nb.tid()
    y[a + b] = of_numba(x[a + b], n)


@pytest.mark.parametrize("function", [prints, refuses, calls_numba])
def test_threads_run_alone_where_they_cannot_run_together(function):
    kernel, values = nb.kernel(simd=True)(function), [floats(37), floats(37), TRIPS]
    assert not widths(kernel, values)
    together, alone = both_ways(kernel, values, 37)
    assert together[1].tobytes() == alone[1].tobytes()


def test_checked_indices_are_checked_one_by_one():
    kernel, values = nb.kernel(simd=True, check_bounds=True)(chain), [floats(37), floats(36), TRIPS]
    assert not widths(kernel, values)
    with pytest.raises(nb.NumbridgeError, match="36"):
        nb.launch(kernel, (1, 37), values)


def counted(x, z, slots, n):
    a, b = nb.tid()
    i = a + b
    for k in range(n):
        at = nb.atomic_add(slots, 0, 1)
        z[at + 1] = i
        nb.atomic_add(x, k % 4, 1.0)
        nb.atomic_add(x, i % 4, 1.0)
        nb.atomic_max(slots, 1, i * k)
    nb.atomic_add(slots, 2, z[0] + 3)


def test_atomics_of_every_lane_happen():
    x, z, slots = np.zeros(4, np.float32), np.zeros(37 * TRIPS + 1, np.int64), np.zeros(3, np.int64)
    kernel = nb.kernel(simd=True)(counted)
    assert widths(kernel, [x, z, slots, TRIPS])
    nb.launch(kernel, (1, 37), [x, z, slots, TRIPS])
    assert slots.tolist() == [37 * TRIPS, 36 * (TRIPS - 1), 37 * 3] and x.sum() == 2 * 37 * TRIPS
    assert np.bincount(z[1:]).tolist() == [TRIPS] * 37


def of_the_first_index(x, z, n):
    i, _ = nb.tid()
    s = 0.0
    for k in range(n):
        s += x[i] * k
    nb.atomic_add(z, 0, s)


def test_lanes_that_all_do_the_same_each_do_it():
    kernel, x, z = nb.kernel(simd=True)(of_the_first_index), np.ones(3, np.float32), np.zeros(1, np.float32)
    assert widths(kernel, [x, z, 5])
    nb.launch(kernel, (3, 37), [x, z, 5])
    assert z[0] == 3 * 37 * 10
    adjoint = np.zeros(3, np.float32)
    nb.launch(kernel, (3, 37), [x, z, 5], adj_inputs=[adjoint, np.ones(1, np.float32), None], adjoint=True)
    assert adjoint.tolist() == [370.0] * 3


# Derivatives


def scalars(x, y, p, q, v: nb.vec3, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for k in range(n):
        if s > p:
            for j in range(3):
                s = s * q + v[j]
        else:
            s += p * k
    y[i] = s


def matrix_product(x, w, y, n):
    a, b = nb.tid()
    i = a + b
    for o in range(y.shape[1]):
        s = 0.0
        for k in range(x.shape[1]):
            s += x[i, k] * w[o, k]
        y[i, o] = math.tanh(s)


def long_recurrence(x, y, n):
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for t in range(n * 10):
        for k in range(4):
            s = math.sin(s + x[k % x.shape[0]]) * s + s * s * 0.1
    y[i] = s


def arcs(x, y, n):
    """Whose adjoint calls `cuda.fma`."""
    a, b = nb.tid()
    i = a + b
    s = x[i]
    for _ in range(n * 10):
        s = 0.3 * math.asin(s) + 0.1 * math.acos(s) + 0.1 * math.atanh(s)
    y[i] = s


def carried_matrix(x: nb.array1d[nb.vec3], y: nb.array1d[nb.vec3], m: nb.array1d[nb.mat33], n):
    a, b = nb.tid()
    i = a + b
    v = x[i]
    r = m[i]
    for k in range(n):
        v = r * v * 0.3 + x[k % x.shape[0]]
        r = r * m[0] * 0.2
    y[i] = v + r * v


DIFFERENTIATED = dict.fromkeys((chain, uniform_breaks, long_recurrence, by_hand, functions_of_cuda), vectors) | {
    scalars: lambda n: [floats(n), floats(n), 0.1, 0.9, nb.vec3(0.1, -0.2, 0.3), TRIPS],
    matrix_product: lambda n: [floats(n, 5), floats(3, 5), floats(n, 3), TRIPS],
    scan_of_rows: CASES[scan_of_rows],
    parts_of_elements: CASES[parts_of_elements],
    carried_matrix: lambda n: [floats(n, 3), floats(n, 3), floats(n, 3, 3), TRIPS],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("function", "make"), DIFFERENTIATED.items(), ids=[f.__name__ for f in DIFFERENTIATED])
def test_gradients_are_those_of_threads_alone(function, make):
    kernel = nb.kernel(simd=True)(function)
    for n in (8, 37):
        values = make(n)
        wanted = gradients(kernel, values, (n, 1))
        for adjoint, other in zip(gradients(kernel, values, (1, n)), wanted, strict=True):
            assert is_close(adjoint, other), (adjoint, other)


@pytest.mark.parametrize("function", [scalars, matrix_product, scan_of_rows])
def test_gradients_are_those_of_code_without_lanes(function):
    values = DIFFERENTIATED[function](37)
    found, wanted = (gradients(nb.kernel(simd=simd)(function), values, (1, 37)) for simd in (True, False))
    assert all(is_close(adjoint, other) for adjoint, other in zip(found, wanted, strict=True))


def test_adjoints_and_tangents_run_together():
    n = 37
    values = [*vectors(n), floats(n), floats(n)]
    adjoints = (nb.kernel(function).adjoint(["x", "y"]) for function in (chain, arcs))
    for derived in (*adjoints, nb.kernel(simd=True)(chain).tangent(["x", "y"])):
        assert widths(derived, values)
        for together, alone in zip(*both_ways(derived, values, n), strict=True):
            assert is_close(together, alone)


@nb.func
def lorenz(state, numbers):
    (x, y, z), (r, s, b) = state, numbers
    return s * (y - x), x * (r - z) - y, x * y - b * z


@nb.func
def moved(state, slope, dt):
    return state[0] + dt * slope[0], state[1] + dt * slope[1], state[2] + dt * slope[2]


def runge_kutta(x, y, trips):
    a, b = nb.tid()
    i = a + b
    numbers, state = (28.0 + x[i], 10.0 - x[i], 2.5 - x[i]), (x[i], 0.5, x[i])
    for _ in range(trips):
        first = lorenz(state, numbers)
        second = lorenz(moved(state, first, 0.005), numbers)
        third = lorenz(moved(state, second, 0.005), numbers)
        third = lorenz(moved(state, third, 0.005), numbers)
        fourth = lorenz(moved(state, third, 0.01), numbers)
        state = moved(moved(moved(moved(state, first, 0.002), second, 0.003), third, 0.003), fourth, 0.002)
    y[i] = state[0] * state[1] - state[2]


def test_a_long_adjoint_runs_many_threads_at_once_or_one():
    kernel, n = nb.kernel(runge_kutta), 70  # of more than 400 statements, with which few threads gain nothing
    values = [floats(n), floats(n), 20]
    assert widths(kernel.adjoint(["x", "y"]), [*values, floats(n), floats(n)]) == {"runge_kutta_adjoint": 64}
    for together, alone in zip(*(gradients(kernel, values, dims) for dims in ((1, n), (n, 1))), strict=True):
        assert is_close(together, alone)


# Random programs


class Shared(Writer):
    """Programs of which more is the same for all threads, as in most kernels that people write."""

    def program(self):
        self.budget = 5  # short ones, of which there are more
        self.line(0, "def generated(x, y, z, index, a, n):")
        for text in (
            *("r, c = tid()", "i = r + c", "s = x[i]", "t = a * x[1]", "u = 0.5", "m = 2", "p = index[1]"),
            *("for trip in range(9):", "    t = t * 0.5 + x[trip % x.shape[0]]"),
        ):
            self.line(1, text)
        for _ in range(1 + self.pick(2)):
            self.statement(1, False, 3)
        self.line(1, f"y[i, {self.place()}] = s * t + math.sin(u) * y[i, 0] + m + p")
        return "\n".join(self.lines).replace("index[i]", "index[m % 4]") + "\n"


def random_arguments(seed, n, dtype):
    random = np.random.default_rng(seed)
    x, y = random.uniform(-1.2, 1.4, max(n, 8)).astype(dtype), random.uniform(-1.2, 1.4, (n, WIDTH)).astype(dtype)
    return [
        x,
        y,
        random.normal(size=WIDTH).astype(dtype),
        random.integers(0, WIDTH, 9),
        0.8,
        int(random.integers(0, 5)),
    ]


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs(part):
    ran_together = 0
    for number in range(part, PROGRAMS, PARTS):
        choices = Random(number)
        text = Shared(choices.randrange).program()
        kernel, n, dtype = declared(text), choices.choice([37, 16, 150, 7]), choices.choice([np.float32, np.float64])
        kernel.options["simd"] = True
        values = random_arguments(number, n, dtype)
        ran_together += bool(widths(kernel, values))
        (_, y, z, _), (_, wanted, sums, _) = both_ways(kernel, values, n)
        assert y.tobytes() == wanted.tobytes(), text
        assert is_close(z, sums), text
        if number // PARTS % 3 == 0:  # adjoints take several times as long to compile
            found, alone = (gradients(kernel, values, dims) for dims in ((1, n), (n, 1)))
            assert all(is_close(adjoint, other) for adjoint, other in zip(found, alone, strict=True)), text
    assert ran_together >= PROGRAMS // PARTS // 3


# Options


def test_options_of_another_type_are_refused():
    with pytest.raises(nb.NumbridgeTypeError, match=r"config\.simd: wanted True, False or None, got 3"):
        nb.config.simd = 3
    assert nb.config.simd is None and "simd=None" in repr(nb.config)


def test_the_default_counts_for_kernels_declared_afterwards():
    before = nb.kernel(chain)
    nb.config.simd = False
    after, said = nb.kernel(chain), nb.kernel(simd=True)(chain)
    assert [kernel.options["simd"] for kernel in (before, after, said)] == [None, False, True]
    values = vectors(37)
    assert [bool(widths(kernel, values)) for kernel in (before, after, said)] == [True, False, True]


def test_code_in_lanes_is_not_code_for_one_thread(tmp_path):
    nb.config.kernel_cache_dir = tmp_path
    values = vectors(37)
    try:
        for simd in (None, False):
            for from_cache in (False, True):
                variant = nb.kernel(simd=simd)(chain).explain(*values).variant
                assert variant.from_cache is from_cache
    finally:
        nb.config.kernel_cache_dir = None
