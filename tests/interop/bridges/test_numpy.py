"""NumPy's room: both ways on the same memory, for every dtype and layout, or an error that says what to do."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numbridge as nb
from numbridge.kernels.devices import Device

MIB = 1 << 20

LAYOUTS = {
    "dense": lambda x: x,
    "Fortran": np.asfortranarray,
    "sliced": lambda x: x[:, 1:3],
    "stepped": lambda x: x[::2, ::2],
    "reversed": lambda x: x[::-1, ::-1],
    "transposed": lambda x: x.T,
    "broadcast": lambda x: np.broadcast_to(x[0], (7, 4)),
    "0-d": lambda x: x[1, 1, ...],
    "empty": lambda x: x[:0],
    "16-d": lambda x: x.reshape((1, 3) + (1,) * 12 + (4, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_both_ways_share_memory(row, values, layout):
    x = layout(values(row))
    a = nb.from_numpy(x)
    y = nb.to_numpy(a)
    assert (a.dtype, a.shape, a.device) == (row.numpy.type, x.shape, "cpu")
    assert a.ptr == x.ctypes.data == y.ctypes.data
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert a.read_only == (not x.flags.writeable) == (not y.flags.writeable)
    np.testing.assert_array_equal(x, y)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_layout_survives(data):
    x = data.draw(
        hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4), elements=st.just(1))
    )
    key = data.draw(hnp.basic_indices(x.shape, allow_newaxis=True, max_dims=8))
    parts = key if isinstance(key, tuple) else (key,)
    x = x[parts if any(part is ... for part in parts) else (*parts, ...)]
    a = nb.from_numpy(x)
    y = a.numpy()
    assert (y.shape, y.ctypes.data, a.is_contiguous) == (x.shape, x.ctypes.data, x.flags.c_contiguous)
    assert all(got == had for extent, got, had in zip(x.shape, y.strides, x.strides, strict=True) if extent > 1)


def test_writes_are_seen_on_both_sides():
    x = np.zeros(3)
    a = nb.from_numpy(x)
    a[0] = 1
    nb.to_numpy(a)[1] = 2
    x[2] = 3
    assert a.list() == x.tolist() == [1, 2, 3]


def test_read_only_arrays_stay_so():
    x = np.zeros(3)
    x.flags.writeable = False
    a = nb.from_numpy(x)
    assert a.read_only
    assert not nb.to_numpy(a).flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        nb.to_numpy(a)[0] = 1


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.zeros(2, [("a", "f4"), ("b", "O")]), nb.ConversionError, "holds Python objects"),
        (np.array([1, "x"], object), nb.ConversionError, "holds Python objects"),
        (np.zeros(2, "M8[s]"), nb.ConversionError, r"dtype dtype\('<M8\[s\]'\) has no counterpart; numbridge has bool"),
        (np.zeros(2, "U3"), nb.ConversionError, "has no counterpart"),
        (np.zeros(2, "V2"), nb.ConversionError, "has no counterpart"),
        (np.zeros(2, np.longdouble), nb.ConversionError, "has no counterpart"),
        (np.zeros(2, ">f8"), nb.ConversionError, r"'>f8' is not in this machine's byte order; use array\.astype"),
        (
            np.ma.masked_array([1.0, 2.0], [True, False]),
            nb.BufferAccessError,
            r"would lose its mask.*\.filled\(value\)",
        ),
        (np.zeros(3, [("a", "f4"), ("b", "i1")])["a"], nb.BufferAccessError, r"strides \(5,\) bytes, no multiples"),
        ([1.0], nb.NumbridgeTypeError, r"arr is of type list; it must be a numpy\.ndarray"),
        (np.float32(1), nb.NumbridgeTypeError, "arr is of type float32"),
    ],
    ids=[
        "structured",
        "object",
        "datetime",
        "str",
        "void",
        "longdouble",
        "swapped",
        "masked",
        "fractional",
        "list",
        "scalar",
    ],
)
def test_what_cannot_be_shared(x, error, message):
    for _ in range(2):
        with pytest.raises(error, match=message):
            nb.from_numpy(x)


def test_the_machines_own_byte_order_may_be_spelled_out():
    assert nb.from_numpy(np.zeros(2, "<f4")).dtype == nb.float32
    assert nb.from_numpy(np.zeros(2, "=i2")).dtype == nb.int16
    # h5py and zarr make dtypes that NumPy would not: the machine's own order, not written as such.
    spelled = np.dtype("f8").newbyteorder("<" if sys.byteorder == "little" else ">")
    x = np.arange(3.0).view(spelled)
    assert x.dtype.byteorder != "=" and x.dtype.isnative
    assert nb.from_numpy(x).ptr == x.ctypes.data and nb.from_numpy(x).list() == [0, 1, 2]
    assert nb.zeros(2, dtype=spelled).dtype == nb.float64 and nb.dtype_from_numpy(spelled) == nb.float64
    records = np.zeros(2, [("a", spelled), ("b", "i4")])
    assert nb.from_numpy(records).dtype == nb.from_numpy(np.zeros(2, [("a", "f8"), ("b", "i4")])).dtype


def test_both_c_types_of_one_width():
    for letter in "lqLQ":
        x = np.arange(3).astype(letter)
        assert nb.from_numpy(x).list() == [0, 1, 2]
        assert nb.from_numpy(x).itemsize == 8


def test_a_dtype_is_checked_and_not_converted():
    x = np.zeros(2, np.float32)
    assert nb.from_numpy(x, dtype=float).ptr == x.ctypes.data
    with pytest.raises(nb.ConversionError, match=r"dtype is float64, and the data is float32.*nb\.array\(data, dtype"):
        nb.from_numpy(x, dtype=nb.float64)


def test_gradients_are_asked_for():
    assert nb.from_numpy(np.zeros(2), requires_grad=True).requires_grad
    assert not nb.from_numpy(np.zeros(2)).requires_grad
    with pytest.raises(nb.NumbridgeTypeError, match="int64"):
        nb.from_numpy(np.arange(2), requires_grad=True)


def test_another_shape_is_a_view_or_an_error():
    x = np.arange(12, dtype=np.float32)
    a = nb.from_numpy(x, shape=(3, -1))
    assert (a.shape, a.ptr) == ((3, 4), x.ctypes.data)
    assert nb.from_numpy(x.reshape(4, 3), nb.vec3, (2, 2)).shape == (2, 2)
    with pytest.raises(nb.NumbridgeValueError, match=r"12 elements"):
        nb.from_numpy(x, shape=5)
    with pytest.raises(nb.BufferAccessError, match=r"contiguous\(\)\.reshape"):
        nb.from_numpy(x.reshape(3, 4).T, shape=12)


def test_a_device_may_be_named():
    x = np.zeros(2, np.float32)
    assert nb.from_numpy(x, device="cpu").ptr == x.ctypes.data
    assert nb.from_numpy(x, device=nb.get_device("cpu"), requires_grad=True).requires_grad
    with pytest.raises(nb.DeviceError, match="'cuda:0'"):
        nb.from_numpy(x, device="cuda:0")


def test_to_numpy_takes_arrays():
    with pytest.raises(nb.NumbridgeTypeError, match=r"array is of type list; it must be an nb\.Array"):
        nb.to_numpy([1.0])


def test_subclasses(tmp_path):
    mapped = np.memmap(tmp_path / "numbers", np.float32, "w+", shape=(4,))
    a = nb.from_numpy(mapped)
    a.fill_(3)
    assert mapped.tolist() == [3] * 4
    assert a.ptr == mapped.ctypes.data
    assert nb.from_numpy(np.zeros(3).view(np.recarray)).shape == (3,)


def test_dtypes(row):
    assert nb.dtype_from_numpy(row.numpy) is row.numpy.type
    assert nb.dtype_from_numpy(row.numpy.type) is row.numpy.type
    assert nb.dtype_to_numpy(row.numpy.type) == row.numpy
    assert nb.dtype_to_numpy(row.name) == row.numpy
    assert nb.dtype_to_numpy(float) == np.float32


@pytest.mark.parametrize("dtype", [np.dtype("M8[s]"), np.dtype("O"), "nonsense", None.__class__])
def test_dtypes_without_counterpart(dtype):
    with pytest.raises(nb.ConversionError, match="is not a scalar type; numbridge has bool, int8"):
        nb.dtype_from_numpy(dtype)
    with pytest.raises(nb.ConversionError, match=r"dtype '>f4' is not in this machine's byte order; convert"):
        nb.dtype_from_numpy(np.dtype(">f4"))


def test_devices():
    assert nb.device_from_numpy(np.zeros(1).device) == nb.get_device("cpu")
    assert nb.device_to_numpy("cpu") == np.zeros(1).device
    with pytest.raises(nb.NumbridgeValueError, match="NumPy has the device 'cpu' only"):
        nb.device_from_numpy("cuda")
    with pytest.raises(nb.DeviceError, match="a NumPy array on cuda:0 needs CUDA"):
        nb.device_to_numpy(Device("cuda"))


def test_owners_live_as_long_as_anything_made_of_them():
    class Owner(np.ndarray):
        pass

    x = np.arange(3.0).view(Owner)
    gone, count = weakref.ref(x), sys.getrefcount(x)
    y = nb.to_numpy(nb.from_numpy(x))
    assert sys.getrefcount(x) == count + 1
    del x
    gc.collect()
    assert gone() is not None
    assert y.tolist() == [0, 1, 2]
    del y
    assert gone() is None


@pytest.mark.parametrize(
    "work",
    [lambda x, a: nb.from_numpy(x), lambda x, a: nb.to_numpy(a), lambda x, a: nb.to_numpy(nb.from_numpy(x[::2]))],
    ids=["from", "to", "both"],
)
def test_nothing_grows(work, growth):
    x = np.zeros(1000)
    a = nb.from_numpy(x)
    counts = sys.getrefcount(x), sys.getrefcount(a), sys.getrefcount(x.dtype)
    grown = growth(lambda: work(x, a))
    assert (sys.getrefcount(x), sys.getrefcount(a)) == counts[:2]
    assert abs(sys.getrefcount(x.dtype) - counts[2]) < 1000
    assert grown < 4 * MIB


def test_values_that_a_mask_hides_are_not_copied():
    masked, a = np.ma.masked_array([1.0, 2.0], [True, False]), nb.zeros(2, dtype=nb.float64)

    def set_part():
        a[:] = masked

    for write in (lambda: a.assign(masked), lambda: a.fill_(masked), set_part, lambda: nb.copy(a, masked)):
        with pytest.raises(
            nb.BufferAccessError, match=r"masked array would lose its mask; pass .*array.filled\(value\)"
        ):
            write()
    assert a.list() == [0, 0]
    assert a.assign(masked.filled(5)).list() == [5, 2]
