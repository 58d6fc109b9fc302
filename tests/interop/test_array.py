"""Array: what it is made from, its views, values, gradients and protocols, and how long its memory lives."""

from __future__ import annotations

import numpy as np
import pytest

import numbridge as nb
from numbridge.kernels.annotations import ArrayAnnotation
from numbridge.kernels.scalars import scalar_of

MIB = 1 << 20


def read_only(values):
    made = np.array(values)
    made.flags.writeable = False
    return made


class TestConstruction:
    @pytest.mark.parametrize(
        ("data", "dtype"),
        [
            ([1.5, 2], nb.float32),
            ([1, 2], nb.int32),
            ([True], nb.bool),
            ([1j], nb.complex64),
            ([], nb.float32),
            (2.5, nb.float32),
            (7, nb.int32),
            ([np.float64(1)], nb.float64),
            (np.int64(1), nb.int64),
            ([np.arange(2)], nb.int64),
        ],
    )
    def test_dtype_without_asking(self, data, dtype):
        assert nb.array(data).dtype is dtype
        np.testing.assert_array_equal(nb.array(data).numpy(), np.array(data))

    def test_dtype_asked_for(self, row):
        a = nb.array([[0, 1], [1, 0]], dtype=row.name)
        assert a.dtype is row.numpy.type
        assert a.itemsize == row.itemsize
        assert a.nbytes == 4 * row.itemsize
        assert a.numpy().dtype == row.numpy
        assert a.list() == [[0, 1], [1, 0]]

    def test_python_types_are_narrow(self):
        assert [nb.array([0], dtype=kind).dtype for kind in (float, int, bool, complex)] == [
            nb.float32,
            nb.int32,
            nb.bool,
            nb.complex64,
        ]

    def test_wide_integers_must_be_asked_for(self):
        with pytest.raises(nb.NumbridgeValueError, match=r"int32 cannot hold; ask for dtype=nb\.int64"):
            nb.array([2**40])
        assert nb.array([2**40], dtype=nb.int64).item() == 2**40

    @pytest.mark.parametrize("data", [[[1], [1, 2]], [300]])
    def test_impossible_lists(self, data):
        with pytest.raises(nb.NumbridgeValueError, match="data cannot become an array"):
            nb.array(data, dtype=nb.uint8)

    def test_strings_are_no_elements(self):
        with pytest.raises(nb.ConversionError, match="is not a scalar type; numbridge has bool, int8"):
            nb.array(["a"])

    def test_copy_is_the_default(self):
        x = np.arange(3.0)
        a = nb.array(x)
        a[0] = 9
        assert x[0] == 0
        assert a.dtype is nb.float64
        assert nb.array(x, dtype=int).list() == [0, 1, 2]
        assert nb.array(a).ptr != a.ptr

    def test_sharing(self):
        x = np.arange(3.0)
        a = nb.array(x, copy=False)
        a[0] = 9
        assert x[0] == 9
        assert nb.array(a, copy=False).ptr == a.ptr

    @pytest.mark.parametrize("data", [[1.0], (1,), 3, np.float32(1)])
    def test_lists_and_numbers_cannot_be_shared(self, data):
        with pytest.raises(nb.BufferAccessError, match=r"has no memory to share; nb\.array\(data\) copies it"):
            nb.array(data, copy=False)

    def test_sharing_does_not_convert(self):
        with pytest.raises(nb.ConversionError, match=r"dtype is float32, and the data is float64.*\.view\(dtype\)"):
            nb.array(np.zeros(2), dtype=float, copy=False)

    def test_shape_and_rank(self):
        assert nb.array([1, 2, 3, 4], shape=(2, -1)).list() == [[1, 2], [3, 4]]
        assert nb.array([[1]], ndim=2).ndim == 2
        with pytest.raises(nb.NumbridgeTypeError, match="ndim is 1, and the array has 2 dimensions"):
            nb.array([[1]], ndim=1)
        with pytest.raises(nb.NumbridgeValueError, match=r"4 elements cannot have the shape \(3,\)"):
            nb.array([1, 2, 3, 4], shape=3)

    def test_shape_alone_is_new_zeroed_memory(self):
        a = nb.array(shape=(2, 3))
        assert a.dtype is nb.float32
        assert not a.numpy().any()

    def test_address(self):
        x = np.arange(12, dtype=np.int32)
        a = nb.array(ptr=x.ctypes.data, dtype=int, shape=(3, 2), strides=(16, 8))
        np.testing.assert_array_equal(a.numpy(), x.reshape(3, 4)[:, ::2])
        assert nb.array(ptr=x.ctypes.data, dtype=int, shape=12).strides == (4,)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"ptr": 64}, "ptr comes with shape, and without data"),
            ({"ptr": 64, "shape": 1, "data": [1]}, "ptr comes with shape, and without data"),
            ({"ptr": 0, "shape": 1}, "ptr is 0, which is no address"),
            ({"ptr": 64, "shape": 2, "strides": (3,)}, r"strides are \(3,\) bytes; they must be multiples"),
            ({"ptr": 64, "shape": 2, "strides": (4, 4)}, "one for each of the 1 axes"),
            ({"data": [1], "strides": (4,)}, "strides come with ptr only"),
        ],
    )
    def test_impossible_addresses(self, options, message):
        with pytest.raises(nb.NumbridgeValueError, match=message):
            nb.array(**options)

    @pytest.mark.parametrize("shape", [-1, (2, -3)])
    def test_negative_extents(self, shape):
        with pytest.raises(nb.NumbridgeValueError, match="extents must not be negative"):
            nb.zeros(shape)

    def test_shapes_that_are_none(self):
        with pytest.raises(nb.NumbridgeTypeError, match=r"shape is 2\.5; it must be an int or a tuple of ints"):
            nb.zeros(2.5)
        with pytest.raises(nb.NumbridgeValueError, match="at most 64"):
            nb.zeros((1,) * 65)
        with pytest.raises(nb.NumbridgeValueError, match="too large to address"):
            nb.zeros((2**40, 2**40))

    def test_annotations(self):
        assert nb.array(dtype=float) == ArrayAnnotation(scalar_of(float), None)
        assert nb.array(dtype=nb.int64, ndim=2) == ArrayAnnotation(scalar_of(np.int64), 2)
        assert nb.array[float] == nb.array(dtype=float)
        assert nb.array is nb.Array

    def test_devices(self):
        assert nb.array([1.0], device="cpu").device == "cpu"
        with pytest.raises(nb.DeviceError, match=r"device 'cuda:0' needs CUDA.*numbridge\[cuda13\]"):
            nb.array([1.0], device="cuda:0")

    def test_no_subclasses(self):
        with pytest.raises(nb.NumbridgeTypeError, match="Array cannot be subclassed"):
            type("Mine", (nb.Array,), {})


class TestCreation:
    @pytest.mark.parametrize("shape", [(), 5, (2, 3), (0,), (3, 0, 2), (1,) * 16])
    def test_new_memory(self, shape, row):
        a = nb.zeros(shape, row.name)
        assert a.shape == ((shape,) if isinstance(shape, int) else shape)
        assert a.is_contiguous
        assert a.ptr % 64 == 0
        assert not a.numpy().any()
        assert nb.ones(shape, row.name).numpy().all()
        assert nb.empty(shape, row.name).shape == a.shape

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [(2.5, nb.float32), (2, nb.int32), (True, nb.bool), (1j, nb.complex64), (np.int8(3), nb.int8)],
    )
    def test_full_takes_the_dtype_of_its_value(self, value, dtype):
        a = nb.full(3, value)
        assert a.dtype is dtype
        assert a.list() == [value] * 3

    def test_full_needs_a_number(self):
        with pytest.raises(nb.NumbridgeTypeError, match="value is 'x', which has no dtype"):
            nb.full(3, "x")

    @pytest.mark.parametrize("like", [nb.zeros_like, nb.empty_like, nb.ones_like, lambda a: nb.full_like(a, 1)])
    def test_likes(self, like):
        source = nb.zeros((2, 3), nb.float64, requires_grad=True)
        assert (like(source).shape, like(source).dtype, like(source).requires_grad) == ((2, 3), nb.float64, True)
        assert like(np.zeros((4, 2), np.int8).T).shape == (2, 4)
        assert like(np.zeros((4, 2), np.int8).T).is_contiguous

    def test_likes_with_a_dtype_that_has_no_gradient(self):
        assert not nb.zeros_like(nb.zeros(2, requires_grad=True), dtype=int).requires_grad

    def test_clone(self):
        x = np.arange(6.0).reshape(2, 3)
        a = nb.clone(x[:, ::-1])
        assert a.is_contiguous
        np.testing.assert_array_equal(a.numpy(), x[:, ::-1])
        assert nb.clone(a, requires_grad=True).requires_grad
        assert nb.clone(nb.zeros(1, requires_grad=True)).requires_grad

    def test_copy(self):
        dest, src = np.zeros(5), nb.array([1, 2, 3])
        nb.copy(dest, src, dest_offset=1, src_offset=1)
        np.testing.assert_array_equal(dest, [0, 2, 3, 0, 0])
        nb.copy(dest, [1, 2, 3, 4, 5])
        np.testing.assert_array_equal(dest, [1, 2, 3, 4, 5])
        nb.copy(dest, dest, dest_offset=1, count=4)
        np.testing.assert_array_equal(dest, [1, 1, 2, 3, 4])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, r"src has shape \(3,\), and dest \(2,\)"),
            ({"count": 3}, "3 elements from 0 on in src, which has 3, do not fit into dest, which has 2"),
            ({"src_offset": 4}, "do not fit"),
            ({"dest_offset": -1, "count": 1}, "do not fit"),
        ],
    )
    def test_copies_that_do_not_fit(self, options, message):
        with pytest.raises(nb.NumbridgeValueError, match=message):
            nb.copy(np.zeros(2), np.ones(3), **options)

    def test_copy_respects_read_only(self):
        dest = read_only(np.zeros(2))
        with pytest.raises(nb.BufferAccessError, match="copy would write to dest, a read-only ndarray"):
            nb.copy(dest, np.ones(2))
        assert not dest.any()
