"""Atomics, arrays on the stack and promises to the optimiser, compiled without Numba's runtime as kernels are."""

from __future__ import annotations

import ctypes
import itertools
import operator
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from llvmlite import binding
from numba import cfunc, njit, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbridge.kernels.cpu_backend import cpu_atomics
from numbridge.kernels.cpu_backend.cpu_atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_dec,
    atomic_exch,
    atomic_inc,
    atomic_max,
    atomic_min,
    atomic_nanmax,
    atomic_nanmin,
    atomic_or,
    atomic_sub,
    atomic_xor,
)
from numbridge.kernels.cpu_backend.cpu_intrinsics import MAX_LOCAL_BYTES, local_array, nonnegative, readonly_violations

SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
ATOMICS = sorted(name for name in cpu_atomics.__all__ if name.startswith("atomic_"))
THREADS = 4

body = njit(_nrt=False, error_model="numpy", nogil=True)


@body
def on_numbers(array, compares, values, old):
    for k in range(values.size):
        old[0, k] = atomic_add(array, 0, values[k])
        old[1, k] = atomic_sub(array, 1, values[k])
        old[2, k] = atomic_min(array, 2, values[k])
        old[3, k] = atomic_max(array, 3, values[k])
        old[4, k] = atomic_nanmin(array, 4, values[k])
        old[5, k] = atomic_nanmax(array, 5, values[k])
        old[6, k] = atomic_exch(array, 6, values[k])
        old[7, k] = atomic_cas(array, 7, compares[k], values[k])


@body
def on_integers(array, values, old):
    for k in range(values.size):
        old[0, k] = atomic_and(array, 0, values[k])
        old[1, k] = atomic_or(array, 1, values[k])
        old[2, k] = atomic_xor(array, 2, values[k])


@body
def on_unsigned(array, values, old):
    for k in range(values.size):
        old[0, k] = atomic_inc(array, 0, values[k])
        old[1, k] = atomic_dec(array, 1, values[k])


def numbers(dtype, count):
    rng = np.random.default_rng(7)
    if np.dtype(dtype).kind == "f":
        return rng.normal(scale=1e3, size=count).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, count, dtype, endpoint=True)


def replay(start, values, step):
    """Return the elements before each step, and after the last one."""
    held = [np.asarray(start, values.dtype)]
    with np.errstate(over="ignore"):
        for k in range(values.size):
            held.append(np.asarray(step(held[-1], k), values.dtype))
    return held[:-1], held[-1]


def check_replay(array, old, start, values, steps):
    for row, step in enumerate(steps):
        before, after = replay(start[row], values, step)
        np.testing.assert_array_equal(old[row], before)
        assert array[row] == after


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED + FLOATS)
def test_operations_on_numbers(dtype):
    values, start = numbers(dtype, 60), numbers(dtype, 68)[60:]
    # Every other comparison succeeds, and finds what the one before the last stored.
    compares = values.copy()
    compares[::2] = np.append(start[7], values[:-2:2])
    array, old = start.copy(), np.zeros((8, 60), dtype)
    on_numbers(array, compares, values, old)
    steps = (
        lambda held, k: held + values[k],
        lambda held, k: held - values[k],
        lambda held, k: min(held, values[k]),
        lambda held, k: max(held, values[k]),
        lambda held, k: min(held, values[k]),
        lambda held, k: max(held, values[k]),
        lambda held, k: values[k],
        lambda held, k: values[k] if held == compares[k] else held,
    )
    check_replay(array, old, start, values, steps)
    assert len(set(old[7].tolist())) > 10


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
def test_operations_on_bits(dtype):
    values, start = numbers(dtype, 40), numbers(dtype, 43)[40:]
    array, old = start.copy(), np.zeros((3, 40), dtype)
    on_integers(array, values, old)
    steps = (
        lambda held, k: held & values[k],
        lambda held, k: held | values[k],
        lambda held, k: held ^ values[k],
    )
    check_replay(array, old, start, values, steps)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_counters_wrap_as_on_cuda(dtype):
    top = np.iinfo(dtype).max
    values = np.array([2, 2, 2, 2, 5, 0, top, top, 1, 3, 0, 0], dtype)
    start = np.array([0, 1], dtype)
    array, old = start.copy(), np.zeros((2, values.size), dtype)
    on_unsigned(array, values, old)
    steps = (
        lambda held, k: 0 if held >= values[k] else held + 1,
        lambda held, k: values[k] if held == 0 or held > values[k] else held - 1,
    )
    check_replay(array, old, start, values, steps)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("name", "held", "value", "after"),
    [
        ("min", np.nan, 1.0, np.nan),
        ("max", np.nan, 1.0, np.nan),
        ("min", 1.0, np.nan, 1.0),
        ("max", 1.0, np.nan, 1.0),
        ("nanmin", np.nan, 1.0, 1.0),
        ("nanmax", np.nan, 1.0, 1.0),
        ("nanmin", 1.0, np.nan, 1.0),
        ("nanmax", 1.0, np.nan, 1.0),
        ("nanmin", np.nan, np.nan, np.nan),
        ("min", np.inf, -np.inf, -np.inf),
        ("max", -np.inf, np.inf, np.inf),
        ("min", 0.0, -0.0, 0.0),
        ("max", -0.0, 0.0, -0.0),
        ("exch", np.nan, -0.0, -0.0),
    ],
)
def test_special_floats(dtype, name, held, value, after):
    rows = {"min": 2, "max": 3, "nanmin": 4, "nanmax": 5, "exch": 6}
    array, old = np.full(8, held, dtype), np.zeros((8, 1), dtype)
    on_numbers(array, np.zeros(1, dtype), np.array([value], dtype), old)
    # Through repr, since -0.0 equals 0.0 and NaN does not equal itself.
    assert repr(float(old[rows[name], 0])) == repr(held)
    assert repr(float(array[rows[name]])) == repr(after)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("held", "compare", "after"), [(0.0, -0.0, 5.0), (-0.0, 0.0, 5.0), (np.nan, np.nan, np.nan), (np.nan, 1.0, np.nan)]
)
def test_floats_are_compared_as_numbers(dtype, held, compare, after):
    array, old = np.full(8, held, dtype), np.zeros((8, 1), dtype)
    on_numbers(array, np.array([compare], dtype), np.array([5], dtype), old)
    assert repr(float(old[7, 0])) == repr(held)
    assert repr(float(array[7])) == repr(after)


@body
def add(array, index, value):
    return atomic_add(array, index, value)


@body
def compare_and_swap(array, index, compare, value):
    return atomic_cas(array, index, compare, value)


LAYOUTS = {
    "C": np.zeros,
    "F": lambda shape: np.zeros(shape, order="F"),
    "strided": lambda shape: np.zeros([2 * extent + 1 for extent in shape])[tuple(slice(1, None, 2) for _ in shape)],
    "reversed": lambda shape: np.zeros(shape)[tuple(slice(None, None, -1) for _ in shape)],
    "permuted": lambda shape: np.moveaxis(np.zeros((*shape[1:], *shape[:1])), -1, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_every_element_is_found(layout, ndim):
    shape = (3, 2, 4, 2)[:ndim]
    array = LAYOUTS[layout](shape)
    assert array.shape == shape
    base = array if array.base is None else array.base
    expected = np.arange(1.0, array.size + 1).reshape(shape)
    for number, place in enumerate(np.ndindex(shape)):
        # Alternately from the front and from the back of each dimension.
        index = tuple(i - n if (number >> d) & 1 else i for d, (i, n) in enumerate(zip(place, shape, strict=True)))
        assert add(array, index, expected[place] - 1) == 0
        assert compare_and_swap(array, index, expected[place] - 1, expected[place]) == expected[place] - 1
    np.testing.assert_array_equal(array, expected)
    assert base.sum() == expected.sum()


@pytest.mark.parametrize("array", [np.array(3.0), np.array(3, np.int16), np.zeros((2, 2))[1, 1:].reshape(())])
def test_an_array_without_dimensions_takes_an_empty_index(array):
    before = array[()]
    assert add(array, (), 4) == before
    assert compare_and_swap(array, (), before + 4, 1) == before + 4
    assert array[()] == 1


@pytest.mark.parametrize(
    ("index", "place"),
    [(1, 1), (-1, 3), (np.int8(-2), 2), (np.uint8(3), 3), (np.int32(-4), 0), (np.uint64(2), 2), ((-3,), 1)],
)
def test_an_index_is_any_integer(index, place):
    array = np.zeros(4, np.int32)
    assert add(array, index, 7) == 0
    assert array.tolist() == [7 if k == place else 0 for k in range(4)]


def test_indices_of_a_tuple_may_differ_in_type():
    array = np.zeros((3, 4), np.int32)
    add(array, (np.uint8(2), np.int64(-1)), 7)
    assert array[2, 3] == array.sum() == 7


@pytest.mark.parametrize(
    ("dtype", "value", "stored"),
    [
        (np.int32, 2.75, 2),
        (np.int32, True, 1),
        (np.uint8, 300, 44),
        (np.int8, np.int64(-129), 127),
        (np.float32, 1 << 24, 16777216.0),
        (np.float32, np.float64(0.1), float(np.float32(0.1))),
        (np.float64, np.uint64(1 << 63), 2.0**63),
    ],
)
def test_a_value_is_converted_as_in_a_store(dtype, value, stored):
    array = np.zeros(1, dtype)
    add(array, 0, value)
    assert array[0] == stored


def numba_array(dtype="float32", ndim=1, **flags):
    return types.Array(getattr(types, dtype), ndim, "C", **flags)


def compile_call(name, *kinds):
    """Compile a function that calls an atomic with arguments of these types."""
    names = {"operation": getattr(cpu_atomics, name)}
    arguments = ", ".join(f"a{k}" for k in range(len(kinds)))
    exec(f"def call({arguments}): return operation({arguments})", names)
    body(names["call"]).compile(kinds)


def refused(name, array, index=types.intp, value=None):
    """Return the message with which typing refuses an atomic; the value has the array's type unless it is given."""
    value = array.dtype if value is None else value
    count = 2 if name == "atomic_cas" else 1
    with pytest.raises(TypingError) as raised:
        compile_call(name, array, index, *[value] * count)
    return str(raised.value)


@pytest.mark.parametrize("name", ATOMICS)
def test_a_read_only_array_is_refused(name):
    compile_call(name, numba_array("uint32"), types.intp, *[types.uint32] * (2 if name == "atomic_cas" else 1))
    message = refused(name, numba_array("uint32", readonly=True))
    assert f"{name} writes to readonly array(uint32, 1d, C), which is read-only; pass a writable array" in message


def test_a_read_only_array_of_numpy_is_refused():
    array = np.zeros(3)
    array.flags.writeable = False
    with pytest.raises(TypingError, match="atomic_add writes to readonly array"):
        add(array, 0, 1)
    assert array.sum() == 0


@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize(
    ("dtype", "hint"),
    [
        ("complex64", "add to the real and the imaginary parts"),
        ("complex128", "in arrays of"),
        ("boolean", "array of uint8"),
    ],
)
def test_complex_and_bool_are_refused(name, dtype, hint):
    message = refused(name, numba_array(dtype))
    assert re.search(rf"{name} works on .*integers.*, not on {'bool' if dtype == 'boolean' else dtype}; ", message)
    assert hint in message


@pytest.mark.parametrize("name", ["atomic_and", "atomic_or", "atomic_xor", "atomic_inc", "atomic_dec"])
def test_bits_and_counters_of_floats_are_refused(name):
    assert re.search(rf"{name} works on (unsigned )?integers, not on float64", refused(name, numba_array("float64")))


@pytest.mark.parametrize("name", ["atomic_inc", "atomic_dec"])
def test_counters_of_signed_integers_are_refused(name):
    assert f"{name} works on unsigned integers, not on int32" in refused(name, numba_array("int32"))


@pytest.mark.parametrize(
    ("array", "index", "wanted"),
    [
        (numba_array(), types.float64, "needs an integer to index array(float32, 1d, C), got float64"),
        (numba_array(), types.boolean, "needs an integer to index array(float32, 1d, C), got bool"),
        (numba_array(), types.UniTuple(types.intp, 2), "needs an integer to index array(float32, 1d, C)"),
        (numba_array(ndim=2), types.intp, "needs a tuple of 2 integers to index array(float32, 2d, C), got int64"),
        (numba_array(ndim=2), types.Tuple((types.intp, types.float32)), "needs a tuple of 2 integers to index"),
        (numba_array(ndim=2), types.Tuple((types.intp, types.slice2_type)), "needs a tuple of 2 integers to index"),
        (numba_array(ndim=0), types.intp, "needs a tuple of 0 integers to index array(float32, 0d, C), got int64"),
    ],
)
def test_an_index_that_names_no_element_is_refused(array, index, wanted):
    assert f"atomic_add {wanted}" in refused("atomic_add", array, index)
    assert f"atomic_cas {wanted}" in refused("atomic_cas", array, index)


@pytest.mark.parametrize("value", [types.complex64, numba_array(), types.unicode_type, types.Optional(types.int32)])
def test_a_value_that_is_no_real_number_is_refused(value):
    for name in ("atomic_add", "atomic_cas"):
        message = refused(name, numba_array(), value=value)
        assert f"{name} cannot store {value} into elements of float32; convert it first" in message


def test_elements_that_are_not_aligned_are_refused():
    message = refused("atomic_add", numba_array(aligned=False))
    assert re.search(r"atomic_add needs aligned elements, which .* does not have; pass a copy", message)


def test_what_is_no_array_is_refused():
    with pytest.raises(TypingError, match="atomic_add needs an array and got int64; pass the array and the index"):
        add(3, 0, 1)


# Threads


def in_threads(function, arguments):
    """Return the results of a function that several threads call at the same time, each with arguments of its own."""
    start = threading.Barrier(len(arguments))

    def run(one):
        start.wait(60)
        return function(*one)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(run, arguments))


@body
def hammer(array, values):
    for value in values:
        atomic_add(array, 0, value)
        atomic_sub(array, 1, value)
        atomic_min(array, 2, value)
        atomic_max(array, 3, value)


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED + FLOATS)
def test_nothing_is_lost_between_threads(dtype):
    values = numbers(dtype, 50_000 * THREADS)
    if dtype in FLOATS:
        # Whole numbers, of which every partial sum is exact.
        values = np.random.default_rng(1).integers(-9, 10, values.size).astype(dtype)
    array = np.array([0, 0, values[0], values[0]], dtype)
    hammer(array.copy(), values[:1])
    in_threads(hammer, [(array, part) for part in np.split(values, THREADS)])
    total = values.sum(dtype=dtype)
    with np.errstate(over="ignore"):
        assert array.tolist() == [total, np.negative(total), values.min(), values.max()]


@body
def add_by_cas(array, count):
    for _ in range(count):
        held = array[0]
        while True:
            expected = held
            held = atomic_cas(array, 0, expected, expected + array.dtype.type(1))
            if held == expected:
                break


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED + FLOATS)
def test_loops_of_compare_and_swap_lose_nothing(dtype):
    count = 20_000
    # From -0.0, which a comparison with 0.0 must find.
    array = np.array([-0.0]).astype(dtype)
    add_by_cas(array.copy(), 1)
    in_threads(add_by_cas, [(array, count)] * THREADS)
    assert array[0] == np.array([THREADS * count]).astype(dtype)[0]


@body
def draw(counter, limit, drawn):
    for k in range(drawn.size):
        drawn[k] = atomic_inc(counter, 0, limit) if limit else atomic_add(counter, 0, 1)


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_every_old_value_is_seen_once(dtype):
    counter = np.zeros(1, dtype)
    drawn = np.zeros((THREADS, 50_000), dtype)
    draw(counter.copy(), 0, drawn[0])
    in_threads(draw, [(counter, 0, row) for row in drawn])
    np.testing.assert_array_equal(np.sort(drawn, axis=None), np.arange(drawn.size))
    assert all(np.all(np.diff(row.astype(np.int64)) > 0) for row in drawn)


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_counters_go_round_together(dtype):
    counter = np.zeros(1, dtype)
    drawn = np.zeros((THREADS, 50_000), dtype)
    in_threads(draw, [(counter, 9, row) for row in drawn])
    assert np.bincount(drawn.ravel().astype(np.intp)).tolist() == [drawn.size // 10] * 10
    assert counter[0] == drawn.size % 10


@body
def trade(array, values):
    for k in range(values.size):
        values[k] = atomic_exch(array, 0, values[k])


@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "float64"])
def test_exchanges_keep_every_value(dtype):
    tokens = np.arange(1, 50_000 * THREADS + 1).astype(dtype)
    array, values = np.zeros(1, dtype), tokens.copy()
    trade(array.copy(), values[:0])
    in_threads(trade, [(array, part) for part in np.split(values, THREADS)])
    np.testing.assert_array_equal(np.sort(np.append(values, array)), np.append(np.zeros(1, dtype), tokens))


# Arrays on the stack


@body
def small_array(out, facts):
    local = local_array((2, 3), out.dtype)
    for i, j in np.ndindex(2, 3):
        local[i, j] = out[i, j]
    local[-1, -1] = local[0, 0]
    local[1][0] = local[0, 2]
    for i, j in np.ndindex(2, 3):
        out[i, j] = local[i, j]
    for axis in range(2):
        facts[0, axis], facts[1, axis] = local.shape[axis], local.strides[axis]
    facts[2, 0], facts[2, 1] = local.size, local.itemsize


@pytest.mark.parametrize("dtype", ["bool", *SIGNED, *UNSIGNED, *FLOATS, "complex64", "complex128"])
def test_a_local_array_is_an_array(dtype):
    out, facts = np.array([[0, 1, 1], [0, 1, 1]]).astype(dtype), np.zeros((3, 2), np.int64)
    small_array(out, facts)
    assert out.tolist() == np.array([[0, 1, 1], [1, 1, 0]]).astype(dtype).tolist()
    size = np.dtype(dtype).itemsize
    assert facts.tolist() == [[2, 3], [3 * size, size], [6, size]]


EXTENT = 3
SHAPE = (2, EXTENT)


@pytest.mark.parametrize("dtype", [np.float32, numba.float32, np.dtype("float32")])
def test_shapes_and_dtypes_come_from_globals(dtype):
    @body
    def sizes():
        constant = 5
        vector, matrix = local_array(EXTENT, dtype), local_array(SHAPE, dtype)
        known = local_array((constant, EXTENT, 1, 2), dtype)
        point, nothing = local_array((), dtype), local_array((2, 0), dtype)
        point[()] = 1.5
        return vector.shape, matrix.shape, known.shape, nothing.size, point[()], matrix.itemsize

    assert sizes() == ((3,), (2, 3), (5, 3, 1, 2), 0, 1.5, 4)


@body
def two_arrays(x, out):
    first, second = local_array(4, np.int64), local_array(4, np.int64)
    for k in range(4):
        first[k], second[k] = x[k], -x[k]
    for k in range(4):
        out[k] = 100 * first[3 - k] + second[k]


def test_two_local_arrays_are_two_arrays():
    out = np.zeros(4, np.int64)
    two_arrays(np.array([1, 2, 3, 4]), out)
    assert out.tolist() == [399, 298, 197, 96]


@body
def scramble(i, x, out):
    # The places depend on the data, so the optimiser cannot keep the array in registers.
    local = local_array(256, np.int64)
    local[x[i % x.size]] = i
    local[x[(i + 1) % x.size]] += 1
    out[i % out.size] = local[x[i % x.size]]


@body
def scramble_many(count, x, out):
    for i in range(count):
        scramble(i, x, out)
        local = local_array((16, 16), np.int64)
        local[x[i % x.size] % 16, x[i % x.size] // 16] = i
        out[(i + 1) % out.size] += local[x[i % x.size] % 16, x[i % x.size] // 16]


def test_a_loop_does_not_grow_the_stack():
    x, out = np.random.default_rng(3).permutation(256), np.zeros(2, np.int64)
    # 4 GB, if each trip took its own memory.
    scramble_many(1_000_000, x, out)
    assert out.tolist() == [999_998 + 999_999, 999_999]


LARGEST = MAX_LOCAL_BYTES // 8


@body
def large_array(number, x, out):
    local = local_array(LARGEST, np.int64)
    for k in range(local.size):
        local[k] = number
    for k in range(x.size):
        out[number] += local[x[k]]


def test_each_thread_has_its_own():
    x, out = np.arange(0, 8192, 8) % 4001, np.zeros(8, np.int64)
    in_threads(large_array, [(number, x, out) for number in range(8)])
    assert out.tolist() == [number * x.size for number in range(8)]


CONSTANT = r"the shape of a local or shared array must be a constant, .* that are not negative; got "


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (types.intp, CONSTANT + "int64: write the numbers out, or take them from a global"),
        (types.UniTuple(types.intp, 2), CONSTANT + r"UniTuple\(int64 x 2\)"),
        (types.float64, CONSTANT + "float64"),
        (types.literal(-1), CONSTANT + r"Literal\[int\]\(-1\)"),
        (
            types.literal(MAX_LOCAL_BYTES // 4 + 1),
            r"shape \(16385,\) and dtype float32 takes 65540 bytes .* at most 65536",
        ),
    ],
)
def test_a_shape_that_the_stack_cannot_take_is_refused(shape, message):
    with pytest.raises(TypingError, match=message):
        body(lambda shape: local_array(shape, np.float32).size).compile((shape,))


def test_a_local_array_is_not_returned():
    with pytest.raises(TypingError, match="Only accept returning of array passed into the function"):
        body(lambda: local_array(3, np.float32))()


@pytest.mark.parametrize("dtype", [3, "zzz", bool])
def test_what_is_no_dtype_is_refused(dtype):
    with pytest.raises(
        TypingError, match=r"a local or shared array needs a dtype such as numpy\.float32, got|Invalid NumPy dtype"
    ):
        body(lambda: local_array(3, dtype).size)()


# Code


@body
def saxpy(i, x, y, a):
    y[i] = a * x[i] + y[i]


def stencil(i, x, y, a):
    local = local_array((2, 2), np.float32)
    for k in range(4):
        local[k // 2, k % 2] = x[i + k]
    y[i] = a * (local[0, 0] + local[0, 1] + local[1, 0] + local[1, 1])


def every_atomic(i, x, y, a):
    atomic_add(y, i, a)
    atomic_sub(y, -1 - i, a)
    atomic_min(y, i, a)
    atomic_max(y, i, a)
    atomic_nanmin(y, i, a)
    atomic_nanmax(y, i, a)
    atomic_exch(y, i, a)
    atomic_cas(y, i, a, x[i])


def every_atomic_of_integers(i, x, y, a):
    atomic_and(y, i, a)
    atomic_or(y, -1 - i, a)
    atomic_xor(y, i, a)
    atomic_inc(y, i, a)
    atomic_dec(y, i, a)
    atomic_nanmin(y, i, x[i])


def argument(kind):
    """Return a compiled function that loads an array's fields from an address."""

    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.load(builder.inttoptr(arguments[0], context.get_value_type(kind).as_pointer()))

        return kind(types.int64), generate

    return load


def fields(array):
    """Return a 1-d array's fields in Numba's order: memory owner, parent, size, itemsize, data, shape, strides."""
    return np.array([0, 0, array.size, array.itemsize, array.ctypes.data, array.size, array.itemsize])


def loop(function, dtype="float32"):
    """Return a C function that calls a body for a range of indices, as the CPU back end does."""
    device, scalar = body(getattr(function, "py_func", function)), getattr(types, dtype)
    load_x, load_y = argument(numba_array(dtype, readonly=True)), argument(numba_array(dtype))

    @cfunc(types.void(types.int64, types.int64, scalar, types.intp, types.intp), _nrt=False, error_model="numpy")
    def run(x, y, a, first, last):
        xs, ys = load_x(x), load_y(y)
        for i in range(first, last):
            device(nonnegative(i), xs, ys, a)

    return run


def loop_function(compiled):
    """Return the optimised LLVM function of the loop; the C entry around it reports exceptions, which needs Python."""
    module = binding.parse_assembly(compiled._library.get_llvm_str())
    (found,) = (f for f in module.functions if not f.is_declaration and not f.name.startswith("cfunc."))
    return module, found


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (saxpy, "float32"),
        (stencil, "float64"),
        *itertools.product([every_atomic], ["int8", "uint64", "float32", "float64"]),
    ]
    + [(every_atomic_of_integers, dtype) for dtype in ("uint8", "uint64")],
)
def test_compiled_bodies_are_inlined_and_call_nothing(function, dtype):
    _module, compiled = loop_function(loop(function, dtype))
    instructions = [i for block in compiled.blocks for i in block.instructions]
    assert len(instructions) > 20
    called = {operand.name for i in instructions if i.opcode == "call" for operand in list(i.operands)[-1:]}
    assert all(name.startswith("llvm.") for name in called), called
    assert "alloca" not in {i.opcode for i in instructions}


@pytest.mark.parametrize("function", [saxpy, stencil])
def test_loops_vectorise(function):
    _module, compiled = loop_function(loop(function))
    assert re.search(r"fmul <\d+ x float>", str(compiled))


def test_nonnegative_returns_its_argument():
    assert [body(lambda i: nonnegative(i) + 1)(i) for i in (0, 1, np.int32(7), 1 << 62)] == [1, 2, 8, (1 << 62) + 1]


def test_c_code_runs_in_threads_without_the_lock_of_python():
    run = loop(lambda i, x, y, a: atomic_add(y, i % 2, x[0]))
    kinds = (ctypes.c_int64, ctypes.c_int64, ctypes.c_float, ctypes.c_int64, ctypes.c_int64)
    call = ctypes.CFUNCTYPE(None, *kinds)(run.address)
    x, y = np.ones(1, np.float32), np.zeros(2, np.float32)
    of_x, of_y = fields(x), fields(y)
    in_threads(call, [(of_x.ctypes.data, of_y.ctypes.data, 0.0, 0, 100_000)] * THREADS)
    assert y.tolist() == [50_000 * THREADS] * 2


# Read-only arrays


def store_through(array, i, value):
    array[i] = value


device_store = body(store_through)

STORES = {
    "element": "a[i, i] = v",
    "row of a row": "row = a[i]; row[i] = v",
    "chained": "a[i][i] = v",
    "augmented element": "a[i, i] += v",
    "augmented row": "row = a[i]; row += v",
    "augmented array": "a += v",
    "fill": "a.fill(v)",
    "fill of a row": "a[i].fill(v)",
    "whole": "a[:] = v",
    "row": "a[i] = v",
    "rows": "for row in a: row[0] = v",
    "augmented rows": "for row in a: row += v",
    "enumerated rows": "for k, row in enumerate(a): row[k] = v",
    "zipped rows": "for row, other in zip(a, a): row[0] = v",
    "transposed": "t = a.T; t[i, i] = v",
    "reshaped": "t = a.reshape(4); t[i] = v",
    "viewed": "t = a.view(np.int32); t[i, i] = 1",
    "new axis": "t = a[None]; t[0, i, i] = v",
    "output of a ufunc": "np.negative(a, a)",
    "operator": "operator.setitem(a, (i, i), v)",
    "tuple": "pair = (a, a); pair[0][i, i] = v",
    "either": "row = a[i] if i > 0 else b; row[i] = v",
    "enumerated elements": "for place, x in np.ndenumerate(a): a[place] = x",
    "device function": "device_store(a, (i, i), v)",
    "device function on a row": "device_store(a[i], i, v)",
    "real part": "c.real[i] = v",
    "imaginary part": "part = c.imag; part[i] = v",
    "atomic": "atomic_add(a, (i, i), v)",
}


def compile_statements(statements, *, readonly):
    """Return the compiled function of some statements over `a` (2-d), `c` (complex), a writable `b`, `i` and `v`."""
    lines = "".join(f"    {line}\n" for line in statements.split("; "))
    names = {"np": np, "device_store": device_store, "atomic_add": atomic_add, "operator": operator}
    exec(f"def stores(a, c, b, i, v):\n{lines}", names)
    dispatcher = body(names["stores"])
    a, c = (numba_array(dtype, ndim, readonly=readonly) for dtype, ndim in (("float32", 2), ("complex64", 1)))
    dispatcher.compile((a, c, numba_array(), types.intp, types.float32))
    (compiled,) = dispatcher.overloads.values()
    return compiled


@pytest.mark.parametrize("statements", STORES.values(), ids=STORES)
def test_numba_refuses_to_store_into_a_read_only_array(statements):
    assert readonly_violations(compile_statements(statements, readonly=False)) == []
    # For `row += v` Numba means to say so, and stumbles over having found no fitting signature.
    with pytest.raises(
        (TypingError, AttributeError), match=r"readonly array|'NoneType' object has no attribute 'args'"
    ):
        compile_statements(statements, readonly=True)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (
            "a.flat[i] = v",
            r"line \d+: a store through \.flat into readonly array\(float32, 2d, C\), which is read-only; pass",
        ),
        ("flat = a.flat; flat[i] = v", r"line 3: a store through \.flat into readonly array"),
        ("a.T.flat[0] += v", r"line 2: a store through \.flat into readonly array\(float32, 2d, F\)"),
        (
            "for x in np.nditer(a): x[()] = v",
            r"numpy\.nditer hands out writable elements of readonly array\(float32, 2d",
        ),
        ("for x, y in np.nditer((b, a)): y[()] = v", r"line 2: numpy\.nditer hands out .*; use numpy\.ndenumerate"),
    ],
)
def test_stores_that_numba_lets_through_are_found(statements, message):
    (found,) = readonly_violations(compile_statements(statements, readonly=True))
    assert re.search(message, found)
    assert readonly_violations(compile_statements(statements, readonly=False)) == []


@pytest.mark.parametrize("statements", ["b[0] = a.flat[i]", "for x in a.flat: b[0] += x", "b.flat[i] = a[i, i]"])
def test_reading_a_read_only_array_is_no_violation(statements):
    assert readonly_violations(compile_statements(statements, readonly=True)) == []
