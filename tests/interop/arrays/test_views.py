"""Views of an Array are those of NumPy, by random search: same shapes, strides, addresses and values, or an error."""

from __future__ import annotations

import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import numbridge as nb

ARRAYS = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5).map(
    lambda shape: np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
)


def strided(data, x):
    """Draw a view of `x` with other strides: slices with steps of both signs, transposed, broadcast."""
    steps = st.sampled_from([slice(None), slice(None, None, 2), slice(None, None, -1), slice(1, None), slice(2, 2)])
    x = x[(*(data.draw(steps) for _ in x.shape), ...)]
    x = x.transpose(data.draw(st.permutations(range(x.ndim))))
    return np.broadcast_to(x, (2, *x.shape)) if data.draw(st.booleans()) else x


def with_ellipsis(key):
    """Return the same index with an Ellipsis, with which NumPy gives a 0-d view where it would give a number."""
    parts = key if isinstance(key, tuple) else (key,)
    return parts if any(part is Ellipsis for part in parts) else (*parts, ...)


def assert_same_memory(a, x):
    """Same shape, values and address; same strides wherever a stride means something."""
    assert a.shape == x.shape
    np.testing.assert_array_equal(a.numpy(), x)
    if x.size:
        assert a.ptr == x.__array_interface__["data"][0]
        steps = zip(x.shape, a.strides, x.strides, strict=True)
        assert all(mine == numpys for extent, mine, numpys in steps if extent > 1)
    assert a.is_contiguous == x.flags.c_contiguous


class TestViewsAgainstNumPy:
    @given(st.data())
    @settings(max_examples=300, deadline=None)
    def test_index(self, data):
        x = strided(data, data.draw(ARRAYS))
        key = data.draw(hnp.basic_indices(x.shape, allow_newaxis=True, allow_ellipsis=True, max_dims=6))
        assert_same_memory(nb.from_numpy(x)[key], x[with_ellipsis(key)])

    @given(st.data())
    @settings(max_examples=300, deadline=None)
    def test_reshape(self, data):
        x = strided(data, data.draw(ARRAYS))
        target = data.draw(shapes_of_size(x.size))
        try:
            wanted = np.reshape(x, target, copy=False)
        except ValueError:
            with pytest.raises(nb.BufferAccessError, match=r"has no view of shape .*contiguous\(\)\.reshape"):
                nb.from_numpy(x).reshape(target)
        else:
            assert_same_memory(nb.from_numpy(x).reshape(target), wanted)

    @given(st.data())
    @settings(max_examples=100, deadline=None)
    def test_transpose(self, data):
        x = strided(data, data.draw(ARRAYS))
        axes = data.draw(st.permutations(range(x.ndim)))
        assert_same_memory(nb.from_numpy(x).transpose(axes), x.transpose(axes))
        assert_same_memory(nb.from_numpy(x).T, x.T)

    @given(st.data())
    @settings(max_examples=200, deadline=None)
    def test_view(self, data):
        x = strided(data, data.draw(ARRAYS))
        dtype = data.draw(st.sampled_from([np.int8, np.int16, np.float32, np.complex64, np.complex128]))
        try:
            wanted = x.view(dtype)
        except ValueError:
            with pytest.raises((nb.BufferAccessError, nb.NumbridgeValueError)):
                nb.from_numpy(x).view(dtype)
        else:
            steps = zip(wanted.shape, wanted.strides, strict=True)
            if wanted.size and any(step % wanted.itemsize for extent, step in steps if extent > 1):
                with pytest.raises(nb.BufferAccessError, match="must step by whole elements"):
                    nb.from_numpy(x).view(dtype)
            else:
                assert_same_memory(nb.from_numpy(x).view(dtype), wanted)


@st.composite
def shapes_of_size(draw, size):
    """Draw a shape with `size` elements, ones included."""
    if size == 0:
        return draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(lambda shape: 0 in shape).map(tuple))
    shape, rest = [], size
    while rest > 1:
        factor = draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
        shape.append(factor)
        rest //= factor
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


class TestIndexing:
    def test_an_element_is_a_0d_view(self):
        a = nb.array([1, 2, 3])
        last = a[-1]
        assert isinstance(last, nb.Array)
        assert (last.shape, last.item(), float(last), int(last)) == ((), 3, 3.0, 3)
        last.fill_(7)
        assert a.list() == [1, 2, 7]

    def test_numpy_integers_and_0d_arrays_are_indices(self):
        a = nb.array([1, 2, 3])
        assert a[np.int8(1)].item() == a[nb.array(1)].item() == a[np.array(1)].item() == 2

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            (3, "index 3 is out of range for axis 0 with extent 3"),
            ((0, -5), "index -5 is out of range for axis 1 with extent 4"),
            ((0, 0, 0), "3 indices for an array with 2 dimensions"),
            ((..., ...), "an index may have one Ellipsis"),
            ([0, 1], r"an index of type list would copy.*use array\.numpy\(\)\[index\] for a copy"),
            (np.array([True, False, True]), "an index of type ndarray would copy"),
            (True, "an index of type bool would copy"),
            (1.0, "an index of type float would copy"),
            (nb.float32(1), "an index of type float32 would copy"),
            (slice("a", None), "is no slice of an array"),
        ],
    )
    def test_bad_indices(self, key, message):
        with pytest.raises(nb.NumbridgeIndexError, match=message) as caught:
            nb.zeros((3, 4))[key]
        assert isinstance(caught.value, IndexError)

    def test_a_step_of_zero(self):
        with pytest.raises(nb.NumbridgeValueError, match="slice step cannot be zero"):
            nb.zeros(3)[::0]

    def test_iteration(self):
        a = nb.array([[1, 2], [3, 4]])
        assert [line.list() for line in a] == [[1, 2], [3, 4]]
        assert len(a) == 2
        with pytest.raises(nb.NumbridgeTypeError, match="a 0-d array has no length"):
            iter(nb.array(1)).__next__()

    def test_views_are_read_only_where_the_array_is(self):
        x = np.arange(6)
        x.flags.writeable = False
        a = nb.from_numpy(x)
        assert all(view.read_only for view in (a[1:], a.reshape(2, 3), a.T, a.view(nb.int8), a[0]))


class TestShapes:
    @pytest.mark.parametrize("shape", [(-1,), (2, -1), (-1, 3), (3, 2), (1, 6, 1)])
    def test_unknown_extents(self, shape):
        assert nb.zeros(6).reshape(*shape).shape == np.zeros(6).reshape(shape).shape
        assert nb.zeros(6).reshape(shape).shape == np.zeros(6).reshape(shape).shape

    @pytest.mark.parametrize("shape", [(4,), (-1, -1), (-1, 4), (0, -1)])
    def test_impossible_shapes(self, shape):
        with pytest.raises(nb.NumbridgeValueError, match="an array of 6 elements cannot have the shape"):
            nb.zeros(6).reshape(shape)

    def test_flatten(self):
        a = nb.array([[1, 2], [3, 4]])
        assert a.flatten().list() == [1, 2, 3, 4]
        with pytest.raises(nb.BufferAccessError, match="has no view of shape"):
            a.T.flatten()

    @pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2)])
    def test_impossible_axes(self, axes):
        with pytest.raises(nb.NumbridgeValueError, match="do not name each of the 2 axes once"):
            nb.zeros((2, 3)).transpose(axes)

    def test_views_of_another_type(self):
        a = nb.array([1.0, 2.0])
        assert a.view(nb.int32).list() == [0x3F800000, 0x40000000]
        assert a.view(nb.uint8).shape == (8,)
        assert a.view(nb.uint8).view(nb.float32).ptr == a.ptr
        assert a.view(nb.bfloat16).list() == [0.0, 1.0, 0.0, 2.0]

    @pytest.mark.parametrize(
        ("shape", "dtype", "message"),
        [((), nb.int8, "a 0-d array of 4-byte elements"), (3, nb.int64, "no whole number of 8-byte elements")],
    )
    def test_impossible_types(self, shape, dtype, message):
        with pytest.raises(nb.NumbridgeValueError, match=message):
            nb.zeros(shape).view(dtype)

    def test_contiguous(self):
        a = nb.array([[1, 2], [3, 4]])
        assert a.contiguous() is a
        assert a.T.contiguous().list() == [[1, 3], [2, 4]]
        assert a.T.contiguous().is_contiguous
        assert not a.T.is_contiguous


class TestOwners:
    def test_a_view_keeps_the_owner_and_not_the_array(self):
        x = np.arange(6.0)
        a = nb.from_numpy(x)
        view = a[1:].reshape(5, 1)[::2].T
        gone, count = weakref.ref(a), sys.getrefcount(x)
        del a
        assert gone() is None
        assert sys.getrefcount(x) == count - 2  # the array's source, and its record
        address = x.ctypes.data
        del x
        assert view.list() == [[1.0, 3.0, 5.0]]
        assert view.ptr == address + 8

    def test_a_long_chain_of_views_ends_without_recursion(self):
        a = nb.zeros(200_001, nb.int8)
        for _ in range(200_000):
            a = a[1:]
        assert a.shape == (1,)
        del a

    def test_views_outlive_memory_of_our_own(self):
        view = nb.full(1000, 3)[::100]
        others = [nb.full(1000, 9) for _ in range(20)]
        assert view.list() == [3] * 10
        assert len(others) == 20
