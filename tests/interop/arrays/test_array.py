"""Array: what it is made from, its values, protocols and gradients."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import numbridge as nb
from numbridge.arrays.gradients import existing_gradient
from numbridge.kernels.annotations import ArrayAnnotation
from numbridge.kernels.scalars import scalar_of


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
        assert nb.array(data).dtype == dtype
        np.testing.assert_array_equal(nb.array(data).numpy(), np.array(data))

    def test_dtype_asked_for(self, row):
        a = nb.array([[0, 1], [1, 0]], dtype=row.name)
        assert a.dtype == row.numpy.type
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

    def test_large_integers_stay_integers(self):
        for data in ([2**53 + 1, 2**63], [[1], [2**64 - 1]], (np.uint64(2**63), 2**53 + 1)):
            found = nb.array(data)
            assert found.dtype == nb.uint64 and found.list() == list(data)
        for data in ([-1, 2**63], (np.int64(-1), np.uint64(2**63))):
            with pytest.raises(
                nb.NumbridgeValueError, match=r"neither int64 nor uint64 holds together; ask for dtype=nb\.float64"
            ):
                nb.array(data)
        assert nb.array([-1, 2**63], dtype=nb.float64).list() == [-1, 2.0**63]
        assert nb.array([1, 0.5]).dtype == nb.float32

    @pytest.mark.parametrize("data", [[[1], [1, 2]], [300]])
    def test_impossible_lists(self, data):
        with pytest.raises(nb.NumbridgeValueError, match="data cannot become an array"):
            nb.array(data, dtype=nb.uint8)

    def test_strings_are_no_elements(self):
        with pytest.raises(nb.ConversionError, match="data is a list that holds text; pass numbers"):
            nb.array(["a"])

    def test_any_dtype_is_that_of_the_data(self):
        assert nb.array([1, 2], dtype=Any).dtype == nb.int32 and nb.array(np.ones(2), dtype=Any).dtype == nb.float64
        assert nb.array(dtype=Any) == nb.array(ndim=1)

    def test_copy_is_the_default(self):
        x = np.arange(3.0)
        a = nb.array(x)
        a[0] = 9
        assert x[0] == 0
        assert a.dtype == nb.float64
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
        assert a.dtype == nb.float32
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
        with pytest.raises(MemoryError, match=rf"shape \({2**57},\) and dtype float64 needs {2**60} bytes"):
            nb.zeros(2**57, dtype=nb.float64)

    def test_annotations(self):
        assert nb.array(dtype=float) == ArrayAnnotation(scalar_of(float), 1)
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
        assert nb.full(3).list() == [0, 0, 0]
        a = nb.full(3, value)
        assert a.dtype == dtype
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

    def test_copies_of_parts_to_one_dimension(self):
        parts, dest = [np.arange(4.0).reshape(2, 2), np.arange(4.0, 7.0)], np.full(16, -1.0)
        for begin, part in zip((0, 4), parts, strict=True):
            nb.copy(dest[::2], part, dest_offset=begin)
        assert dest[::2].tolist() == [0, 1, 2, 3, 4, 5, 6, -1] and (dest[1::2] == -1).all()
        nb.copy(dest, np.array([[9.0]]))
        assert dest[:2].tolist() == [9, -1]
        with pytest.raises(nb.NumbridgeValueError, match=r"src has shape \(4,\), and dest \(2, 2\).*or pass a count"):
            nb.copy(parts[0], np.ones(4))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, r"src has shape \(3,\), and dest \(2,\)"),
            ({"count": 3}, "3 elements from 0 on in src, which has 3, do not fit into dest, which has 2"),
            ({"src_offset": 4}, "do not fit"),
            ({"dest_offset": -1, "count": 1}, "copy: dest_offset is -1; it must be 0 or more"),
            ({"src_offset": -1}, "copy: src_offset is -1"),
            ({"count": -2}, "copy: count is -2"),
        ],
    )
    def test_copies_that_do_not_fit(self, options, message):
        with pytest.raises(nb.NumbridgeValueError, match=message):
            nb.copy(np.zeros(2), np.ones(3), **options)

    @pytest.mark.parametrize("name", ["dest_offset", "src_offset", "count"])
    def test_elements_are_counted_by_ints(self, name):
        with pytest.raises(nb.NumbridgeTypeError, match=f"copy: {name} is 1.5; it must be an int"):
            nb.copy(np.zeros(3), np.ones(3), **{name: 1.5})
        nb.copy(np.zeros(3), np.ones(3), **{name: np.int64(0)})

    @pytest.mark.parametrize(
        ("dest", "src", "name"), [(False, True, "src"), (True, False, "dest"), (True, True, "dest")]
    )
    def test_elements_that_cannot_be_counted(self, dest, src, name):
        values, columns = np.zeros((4, 4)), np.ones((4, 4))[1::2, 1::2]
        with pytest.raises(
            nb.BufferAccessError, match=f"copy: {name} lies so that its elements cannot be counted .*one shape"
        ):
            nb.copy(columns if dest else values, columns if src else values, count=2)
        assert not values.any() and columns.all()

    @pytest.mark.parametrize(
        "how", [nb.copy, lambda dest, src: dest.assign(src), lambda dest, src: nb.copy(dest.T, src.T)]
    )
    @pytest.mark.parametrize(
        ("to", "since"), [(np.s_[13:23:3], np.s_[14:18]), (np.s_[:4], np.s_[1:11:3]), (np.s_[5::-1], np.s_[:6])]
    )
    def test_copies_between_views_of_one_memory(self, to, since, how):
        x = np.arange(24.0)
        a, wanted = nb.from_numpy(x), x.copy()
        wanted[to] = x[since].copy()
        how(a[to], a[since])
        assert x.tolist() == wanted.tolist()

    def test_copy_respects_read_only(self):
        dest = read_only(np.zeros(2))
        with pytest.raises(nb.BufferAccessError, match="copy would write to dest, a read-only ndarray"):
            nb.copy(dest, np.ones(2))
        assert not dest.any()


class TestValues:
    def test_numpy_shares(self, row, values):
        x = values(row)
        a = nb.array(x)
        assert a.numpy().dtype == row.numpy
        assert a.numpy().ctypes.data == a.ptr
        a.numpy()[0, 0] = 1
        assert a[0, 0].item() == 1

    def test_numpy_outlives_the_array(self):
        x = nb.full(1000, 3).numpy()
        others = [nb.full(1000, 9) for _ in range(20)]
        assert (x == 3).all()
        assert len(others) == 20

    @pytest.mark.parametrize("key", [0, (slice(None), 1), ..., (slice(None, None, -1), None), [2, 0], (0, [1, 3])])
    @pytest.mark.parametrize("value", [7, np.float64(7), [7], nb.array(7)])
    def test_writing(self, key, value):
        a, x = nb.zeros((3, 4)), np.zeros((3, 4), np.float32)
        a[key], x[key] = value, 7
        np.testing.assert_array_equal(a.numpy(), x)

    def test_writing_where_a_mask_says_so(self):
        a = nb.array([1, 2, 3])
        a[a.numpy() > 1] = nb.array([8, 9])
        assert a.list() == [1, 8, 9]

    def test_filling(self):
        a = nb.zeros((2, 2), int)
        assert a.fill_(3) is a
        assert a.T[0].assign([1, 2]).list() == [1, 2]
        assert a.list() == [[1, 3], [2, 3]]
        assert a.zero_().list() == [[0, 0], [0, 0]]
        with pytest.raises(nb.NumbridgeValueError, match=r"values of shape \(2,\) for an array of shape \(2, 2\)"):
            a.assign([1, 2])

    @pytest.mark.parametrize(
        ("write", "name"),
        [
            (lambda a: a.fill_(1), "fill_"),
            (lambda a: a.zero_(), "zero_"),
            (lambda a: a.assign([1, 1]), "assign"),
            (lambda a: a.__setitem__(0, 1), r"array\[...\] = value"),
            (lambda a: a[1:].fill_(1), "fill_"),
        ],
    )
    def test_read_only_memory_stays_as_it_is(self, write, name):
        x = read_only([4.0, 5.0])
        a = nb.from_numpy(x)
        assert (a.read_only, a.writable) == (True, False)
        with pytest.raises(nb.BufferAccessError, match=rf"{name} would write to a read-only Array.*array\.clone\(\)"):
            write(a)
        assert x.tolist() == [4, 5]
        assert not a.numpy().flags.writeable
        assert a.clone().fill_(1).list() == [1, 1]

    def test_numbers(self):
        a = nb.array([2.5])
        assert (a.item(), float(a), int(a), complex(a), bool(a)) == (2.5, 2.5, 2, 2.5 + 0j, True)
        assert range(9)[nb.array(3)] == 3
        with pytest.raises(nb.NumbridgeTypeError, match="only a 0-d array of integers is an index"):
            range(9)[a]
        with pytest.raises(nb.NumbridgeValueError, match=r"item\(\) needs exactly one element, and the array has 2"):
            bool(nb.zeros(2))

    def test_to(self):
        a = nb.zeros(2)
        assert a.to("cpu") is a
        assert a.to("cpu", copy=True).ptr != a.ptr
        assert [a.to("cpu", True, wanted).requires_grad for wanted in (None, True, False)] == [False, True, False]
        with pytest.raises(nb.DeviceError, match="needs CUDA"):
            a.to("cuda")

    def test_repr(self):
        assert repr(nb.array([[1, 2], [3, 4]])) == (
            "array([[1, 2],\n       [3, 4]], shape=(2, 2), dtype=int32, device='cpu')"
        )
        assert repr(nb.zeros(1, requires_grad=True)) == (
            "array([0.], shape=(1,), dtype=float32, device='cpu', requires_grad=True)"
        )
        assert repr(nb.from_numpy(read_only([1.0]))).endswith("device='cpu', read_only=True)")
        assert len(repr(nb.zeros(1_000_000))) < 200

    def test_identity(self):
        a, b = nb.zeros(2), nb.zeros(2)
        assert a == a
        assert a != b
        assert {a: 1, b: 2}[a] == 1

    @pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
    def test_copies(self, again, row, values):
        a = nb.array(values(row))
        b = again(a.T)
        assert b.dtype is a.dtype
        assert b.is_contiguous
        np.testing.assert_array_equal(b.numpy(), a.numpy().T)
        b[0, 1] = 0
        assert a[1, 0].item() == a.numpy()[1, 0] != 0

    def test_copies_require_gradients(self):
        a = nb.zeros(2, requires_grad=True)
        a.grad.fill_(1)
        assert [b.requires_grad for b in (copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)))] == [True] * 3
        assert existing_gradient(copy.deepcopy(a)) is None

    def test_deepcopy_keeps_identity(self):
        a = nb.zeros(2)
        b, c = copy.deepcopy([a, a])
        assert b is c


class TestProtocols:
    def test_array(self, row, values):
        a = nb.array(values(row))
        x = np.asarray(a)
        assert x.dtype == row.numpy
        assert x.ctypes.data == a.ptr
        assert np.array(a).ctypes.data != a.ptr
        assert np.asarray(a, dtype=np.complex128).dtype == np.complex128

    def test_array_without_a_copy(self):
        a = nb.array([1.0])
        assert a.__array__(copy=False).ctypes.data == a.ptr
        assert a.__array__(copy=True).ctypes.data != a.ptr
        with pytest.raises(nb.NumbridgeValueError, match="float32 cannot become int64 without a copy"):
            a.__array__(np.int64, copy=False)

    def test_array_interface(self, values):
        x = values(np.int16)
        interface = nb.from_numpy(x[:, ::-2]).__array_interface__
        assert interface == {
            "version": 3,
            "typestr": "<i2",
            "shape": (3, 2),
            "strides": (8, -4),
            "data": (x.ctypes.data + 6, False),
        }
        assert "strides" not in nb.from_numpy(x).__array_interface__
        assert nb.from_numpy(read_only(x)).__array_interface__["data"][1]

    @pytest.mark.parametrize("dtype", [nb.bfloat16, nb.float8_e4m3fn, nb.float8_e5m2])
    def test_array_interface_is_absent_where_it_would_lie(self, dtype):
        a = nb.zeros(3, dtype)
        assert not hasattr(a, "__array_interface__")
        with pytest.raises(AttributeError, match="has no type string of its own"):
            a.__array_interface__  # noqa: B018
        assert np.asarray(a).dtype.type is dtype

    def test_cuda_array_interface_is_absent_on_the_cpu(self):
        with pytest.raises(AttributeError, match="this array lies on cpu"):
            nb.zeros(1).__cuda_array_interface__  # noqa: B018

    def test_numpy_functions(self):
        a = nb.array([1.0, 2.0])
        assert np.sum(a) == 3
        assert (np.ones(2, np.float32) + a).tolist() == [2, 3]
        assert np.zeros_like(a).dtype == np.float32

    def test_layout_flags(self, values):
        x = values(np.float32)
        assert nb.from_numpy(x).is_contiguous
        assert not nb.from_numpy(x[:, ::2]).is_contiguous
        assert nb.from_numpy(x[:1, :3]).is_contiguous
        assert nb.from_numpy(x[:0, ::2]).is_contiguous


class TestGradients:
    def test_none_is_made_before_it_is_read(self):
        a = nb.zeros(3, requires_grad=True)
        assert existing_gradient(a) is None
        first = a.grad
        assert first.list() == [0, 0, 0]
        assert a.grad is first
        assert existing_gradient(a) is first

    def test_nothing_is_required_unasked(self):
        a = nb.zeros(3)
        assert (a.requires_grad, a.grad) == (False, None)

    def test_setting(self):
        a, g = nb.zeros(3), np.ones(3, np.float32)
        a.grad = g
        assert a.grad.ptr == g.ctypes.data
        assert nb.array([1.0], grad=nb.ones(1)).requires_grad
        a.requires_grad = True
        a.grad = None
        assert existing_gradient(a) is None
        a.grad = g
        a.requires_grad = False
        assert a.grad is None

    @pytest.mark.parametrize(
        ("gradient", "message"),
        [
            (torch.zeros(1).expand(3), "it is an expanded view .* name one element; pass a contiguous copy"),
            (read_only(np.zeros(3, np.float32)), "this numpy.ndarray is read-only"),
            (np.zeros(4, np.float32)[1:], None),
        ],
    )
    def test_a_gradient_must_be_writable_and_have_memory_of_its_own(self, gradient, message):
        a = nb.zeros(3, requires_grad=True)
        if message is None:
            a, message = nb.from_numpy(gradient.base)[:3], "it shares memory with the array whose gradient it is to be"
        for setting in (lambda: setattr(a, "grad", gradient), lambda: nb.array(a, copy=False, grad=gradient)):
            with pytest.raises(nb.BufferAccessError, match=f"^grad: gradients are added to it, and {message}"):
                setting()
        assert existing_gradient(a) is None
        with pytest.raises(nb.BufferAccessError, match="shares memory with the array"):
            a.grad = a

    def test_the_gradient_of_a_view_is_copied_and_need_not_be_writable(self):
        a = nb.zeros(3, requires_grad=True)
        a[1:].grad = torch.ones(1).expand(2)
        assert a.grad.list() == [0, 1, 1]

    @pytest.mark.parametrize("gradient", [np.ones(2, np.float32), np.ones(3)])
    def test_a_gradient_must_fit(self, gradient):
        a = nb.zeros(3, requires_grad=True)
        with pytest.raises(nb.NumbridgeValueError, match=r"it must have the array's, \(3,\) and float32"):
            a.grad = gradient
        assert existing_gradient(a) is None

    def test_integers_have_none(self):
        with pytest.raises(nb.NumbridgeTypeError, match=r"requires_grad needs a floating or complex dtype.*int32"):
            nb.zeros(3, int, requires_grad=True)
        assert nb.zeros(1, nb.bfloat16, requires_grad=True).requires_grad
        assert nb.zeros(1, nb.complex64, requires_grad=True).requires_grad

    @pytest.mark.parametrize(
        "view", [lambda a: a[1:, ::-1], lambda a: a.reshape(6), lambda a: a.T, lambda a: a.transpose(1, 0)[0]]
    )
    def test_a_views_gradient_is_a_view_of_the_gradient(self, view):
        a = nb.zeros((2, 3), requires_grad=True)
        part = view(a)
        assert part.requires_grad
        assert existing_gradient(a) is None
        part.grad.fill_(1)
        expected = np.zeros((2, 3), np.float32)
        view(nb.from_numpy(expected)).fill_(1)
        np.testing.assert_array_equal(a.grad.numpy(), expected)
        part.grad = np.full(part.shape, 5, np.float32)
        assert a.grad.numpy().max() == 5
        part.grad = None
        assert not a.grad.numpy().any()

    def test_views_of_plain_arrays_have_none(self):
        assert nb.zeros(3)[1:].grad is None
        assert nb.zeros(3, requires_grad=True).view(nb.int32).grad is None

    def test_numpy_arrays_leave_the_gradient_to_the_array(self):
        x = np.zeros(2, np.float32)
        a = nb.from_numpy(x, requires_grad=True)
        a.grad.fill_(2)
        assert a[1].grad.item() == 2
        a.grad = np.ones(2, np.float32)
        assert a.grad.list() == [1, 1]


def test_what_others_make_of_the_dtype():
    import jax.numpy as jnp

    a = nb.ones(3)
    assert jnp.asarray(a).tolist() == [1, 1, 1]
    assert np.result_type(a, np.float64) == np.float64
    assert a.dtype == nb.float32 and nb.zeros(2, dtype=a.dtype).dtype == a.dtype
    assert nb.zeros(2, dtype=nb.bfloat16).dtype == nb.bfloat16


def test_annotations_of_any_dtype():
    assert nb.array(dtype=Any) == nb.array[Any] == nb.array1d
    assert nb.array(dtype=Any, ndim=2) == nb.array2d[Any] == nb.array2d


@pytest.mark.parametrize("dtype", [float, np.dtype("f4"), "float32", nb.float32, torch.float32])
def test_annotations_with_a_rank(dtype):
    assert nb.array2d(dtype) == nb.array2d(dtype=dtype) == nb.array2d[float] and repr(nb.array2d) == "array2d"
    assert nb.array2d() is nb.array2d and hash(nb.array2d) == hash(nb.array(dtype=Any, ndim=2))
    assert copy.deepcopy(nb.array3d) is pickle.loads(pickle.dumps(nb.array3d)) is nb.array3d


def test_arrays_with_a_rank():
    made = nb.array2d([[1, 2], [3, 4]], dtype=float, requires_grad=True)
    assert (made.shape, made.dtype, made.requires_grad) == ((2, 2), nb.float32, True)
    t = torch.ones(2, 3)
    assert nb.array2d(t, copy=False).ptr == t.data_ptr() and nb.array1d(t, nb.vec3).shape == (2,)
    assert nb.array3d(shape=(1, 2, 3)).ndim == 3
    assert nb.array2d(ptr=t.data_ptr(), shape=(3, 2), device="cpu").list() == [[1, 1]] * 3
    with pytest.raises(nb.NumbridgeTypeError, match="ndim is 2, and the array has 1 dimensions"):
        nb.array2d([1, 2])


@pytest.mark.parametrize(
    ("operation", "write"),
    [
        ("assign", lambda a: a.assign(np.arange(3.0))),
        (r"array\[\.\.\.\] = value", lambda a: a.__setitem__(0, 5)),
        ("fill_", lambda a: a.fill_(1)),
        ("zero_", lambda a: a.zero_()),
        ("copy", lambda a: nb.copy(a, np.arange(3, dtype=np.float32))),
    ],
)
def test_expanded_views_are_not_written(operation, write):
    base = torch.zeros(1)
    a = nb.from_torch(base.expand(3))
    with pytest.raises(
        nb.BufferAccessError, match=rf"^{operation} would write to .*an expanded view .* strides \(0,\)"
    ):
        write(a)
    assert base.item() == 0 and not nb.explain(a).writable and not nb.explain(base.expand(3)).writable
    assert nb.explain(base.expand(1)).writable


def test_a_leaf_is_not_written_outside_of_no_grad():
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(
        nb.BufferAccessError, match=r"^copy would write to dest: it is a leaf tensor that requires grad"
    ):
        nb.copy(leaf, np.arange(3, dtype=np.float32))
    assert not nb.explain(leaf).writable
    with torch.no_grad():
        assert nb.explain(leaf).writable


def test_the_item_of_an_array_of_records_is_a_record():
    values = np.array([(1.5, 7), (2.5, 8)], [("x", "f4"), ("y", "i4")])
    found = nb.from_numpy(values)[1].item()
    values["x"] = 0
    assert found.dtype == values.dtype and found.tolist() == (2.5, 8)
    with pytest.raises(nb.NumbridgeTypeError, match="only a 0-d array of integers is an index"):
        range(3)[nb.array(np.array(1, [("x", "i4")]))]


RECORDS = np.dtype([("x", "f4"), ("y", "i4")])


def test_records_become_those_of_another_dtype_in_a_copy():
    values = np.array([(1.5, 7), (2.5, 8)], RECORDS)
    wider = np.dtype([("a", "f8"), ("b", "i8")])
    for given in (values, nb.from_numpy(values)):
        made = nb.array(given, dtype=wider)
        assert made.numpy().dtype == wider and made.list() == [(1.5, 7), (2.5, 8)]
    with pytest.raises(nb.ConversionError, match=r"cannot become dtype\(\[\('a', '<f4'\)\]\)"):
        nb.array(values, dtype=np.dtype([("a", "f4")]))


def test_bytes_become_records_in_a_view():
    values = np.array([(1.5, 7), (2.5, 8)], RECORDS)
    shown = torch.from_numpy(values.view(np.uint8).reshape(2, -1))
    for a in (nb.asarray(shown).view(RECORDS), nb.asarray(shown.reshape(-1)).view(RECORDS)):
        assert a.shape == (2,) and a.ptr == values.ctypes.data and a.list() == values.tolist()
    with pytest.raises(nb.NumbridgeValueError, match="no whole number"):
        nb.asarray(shown[:, :7]).view(RECORDS)
    with pytest.raises(nb.ConversionError, match=r"the data is uint8 .*\.view\(dtype\) shows bytes as records"):
        nb.asarray(shown, dtype=RECORDS)
