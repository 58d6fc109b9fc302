"""Arrays of vectors and matrices, and their way to and from every framework without a copy."""

from __future__ import annotations

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch

import numbridge as nb


def test_new_arrays():
    a = nb.zeros((2, 3), dtype=nb.mat22)
    assert (a.shape, a.ndim, a.dtype, a.itemsize, a.strides, a.nbytes) == ((2, 3), 2, nb.mat22, 16, (48, 16), 96)
    assert a.numpy().shape == (2, 3, 2, 2) and a.size == 6 and len(a) == 2 and a.is_contiguous
    assert nb.array(dtype=nb.vec3) == nb.array[nb.vec3] == nb.array1d[nb.vec3]
    assert nb.array(shape=4, dtype=nb.vec3).shape == (4,)
    assert nb.full(2, nb.vec3(1, 2, 3)).numpy().tolist() == [[1, 2, 3]] * 2
    assert nb.ones(2, nb.vec2i).numpy().tolist() == [[1, 1]] * 2


def test_data_and_addresses():
    a = nb.array([[1, 2, 3], [4, 5, 6]], dtype=nb.vec3)
    assert a.shape == (2,) and a[1].item() == nb.vec3(4, 5, 6)
    b = nb.array(ptr=a.ptr, shape=2, dtype=nb.vec3)
    b[0] = nb.vec3(7, 8, 9)
    assert a.numpy().tolist() == [[7, 8, 9], [4, 5, 6]]
    c = nb.array(ptr=a.ptr + 12, shape=2, strides=(-12,), dtype=nb.vec3)
    assert c.numpy().tolist() == [[4, 5, 6], [7, 8, 9]]
    with pytest.raises(nb.ConversionError, match=r"shape \(\.\.\., 3\), and the data is float32 with shape \(2, 2\)"):
        nb.array([[1, 2], [3, 4]], dtype=nb.vec3)


@pytest.mark.parametrize("kind", [nb.vec3, nb.mat22, nb.quat])
def test_no_data(kind):
    for nothing in ([], ()):
        a = nb.array(nothing, dtype=kind)
        assert a.shape == (0,) and a.dtype is kind
    with pytest.raises(nb.ConversionError, match=r"and the data is float32 with shape \(1, 0\)"):
        nb.array([[]], dtype=kind)


def test_views():
    a = nb.array(np.arange(24).reshape(8, 3), dtype=nb.vec3)
    assert a[2:5].shape == (3,) and a[2:5].ptr == a.ptr + 24 and a[::-2].strides == (-24,)
    assert a[::-2].numpy().tolist() == np.arange(24).reshape(8, 3)[::-2].tolist()
    b = a.reshape(2, 4)
    assert (
        b.shape == (2, 4)
        and b.T.shape == (4, 2)
        and b.T.numpy().tolist() == np.arange(24).reshape(2, 4, 3).transpose(1, 0, 2).tolist()
    )
    assert b.flatten().dtype is nb.vec3 and a[None].shape == (1, 8) and a[3].shape == ()
    assert a.view(nb.float32).shape == (8, 3) and a.view(nb.float32).view(nb.vec3).shape == (8,)
    assert nb.array(np.arange(6, dtype="f4")).view(nb.vec3).numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(nb.ConversionError):
        nb.zeros(7).view(nb.vec3)


def test_a_view_of_elements_of_as_many_numbers_has_the_same_shape():
    vectors = nb.array(np.arange(32, dtype="f4").reshape(2, 4, 4), dtype=nb.vec4)
    matrices = vectors.T.view(nb.mat22)
    assert matrices.shape == (4, 2) and matrices.ptr == vectors.ptr
    assert matrices.numpy().tolist() == vectors.T.numpy().reshape(4, 2, 2, 2).tolist()
    assert (
        np.array_equal(matrices.view(nb.quat).numpy(), vectors.T.numpy()) and vectors[0, 1].view(nb.mat22).shape == ()
    )
    assert nb.zeros((0, 3), nb.vec4).view(nb.mat22).shape == (0, 3)


def test_writing():
    a = nb.zeros(3, nb.vec3)
    a[1] = nb.vec3(1, 2, 3)
    a[2] = [4, 5, 6]
    assert a.numpy().tolist() == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert a.fill_(nb.vec3(7, 8, 9)).numpy().tolist() == [[7, 8, 9]] * 3
    assert a.zero_().assign(np.ones((3, 3))).numpy().tolist() == [[1] * 3] * 3
    a.assign(nb.full(3, nb.vec3(2)))
    assert a.numpy().tolist() == [[2] * 3] * 3
    with pytest.raises(nb.NumbridgeValueError, match="shape"):
        a.assign(np.ones(3))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, nb.clone, lambda a: pickle.loads(pickle.dumps(a))])
def test_copies(duplicate):
    a = nb.array(np.arange(10).reshape(2, 5), dtype=nb.vector(5, np.int64))
    b = duplicate(a)
    assert b.dtype is a.dtype and b.ptr != a.ptr and b.numpy().tolist() == a.numpy().tolist()
    assert nb.zeros_like(a).dtype is a.dtype and nb.empty_like(a, dtype=nb.vec2).dtype is nb.vec2


FRAMEWORKS = {
    "numpy": (lambda x: x, nb.from_numpy, nb.to_numpy),
    "torch": (torch.from_numpy, nb.from_torch, nb.to_torch),
    "paddle": (paddle.to_tensor, nb.from_paddle, nb.to_paddle),
    "jax": (jnp.asarray, nb.from_jax, nb.to_jax),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", [nb.vec3, nb.mat22, nb.quat, nb.vec2i], ids=repr)
def test_frameworks_both_ways(framework, kind):
    make, from_, to = FRAMEWORKS[framework]
    values = np.arange(6 * kind.count).reshape(6, *kind.extents).astype(kind.scalar.numpy)
    tensor = make(values)
    a = from_(tensor, dtype=kind)
    assert a.shape == (6,) and a.dtype is kind and a.ptr == nb.explain(tensor).ptr
    np.testing.assert_array_equal(a.numpy(), values)
    own = nb.array(values, dtype=kind)
    other = to(own)
    assert tuple(other.shape) == values.shape and nb.explain(other).ptr == own.ptr
    np.testing.assert_array_equal(np.asarray(other), values)
    if framework != "numpy":
        assert to(a) is tensor
    assert tuple(nb.convert(own, framework).shape) == values.shape


def test_protocols_show_scalars():
    a = nb.array(np.arange(24).reshape(8, 3), dtype=nb.vec3)[::2]
    for seen in (
        np.asarray(a),
        np.from_dlpack(a),
        torch.from_dlpack(a),
        torch.utils.dlpack.from_dlpack(nb.to_dlpack(a)),
    ):
        assert tuple(seen.shape) == (4, 3) and nb.explain(seen).ptr == a.ptr
    assert a.__array_interface__["strides"] == (24, 4) and a.__array_interface__["typestr"] == "<f4"
    assert nb.from_dlpack(a, dtype=nb.vec3).dtype is nb.vec3 and nb.from_dlpack(
        torch.ones(2, 3), dtype=nb.vec3
    ).shape == (2,)
    assert nb.explain(a).dtype == "vec3" and nb.asarray(a, nb.vec3) is a
    assert np.from_dlpack(a, copy=True).shape == (4, 3)


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (
            torch.zeros(4, 2),
            nb.ConversionError,
            r"float32 with shape \(\.\.\., 3\), and the data is float32 with shape \(4, 2\)",
        ),
        (torch.zeros(4, 3).double(), nb.ConversionError, r"the data is float64 with shape \(4, 3\)"),
        (torch.zeros(3, 4).T, nb.BufferAccessError, r"data of shape \(4, 3\) has strides \(4, 16\) bytes"),
        (torch.zeros(4, 1).expand(4, 3), nb.BufferAccessError, "lie densely"),
    ],
)
def test_tensors_that_do_not_fit(tensor, error, message):
    with pytest.raises(error, match=message):
        nb.from_torch(tensor, dtype=nb.vec3)


def test_tensors_go_straight_into_kernels():
    @nb.kernel
    def cross(a: nb.array[nb.vec3], b: nb.array[nb.vec3], c: nb.array[nb.vec3]):
        i = nb.tid()
        c[i] = nb.cross(a[i], b[i])

    x, y = (np.random.default_rng(k).standard_normal((6, 3)).astype("f4") for k in (1, 2))
    out = nb.zeros(6, nb.vec3)
    nb.launch(cross, 6, [torch.from_numpy(x), paddle.to_tensor(y), out])
    np.testing.assert_allclose(out.numpy(), np.cross(x, y), rtol=1e-5, atol=1e-6)
    nb.launch(cross, 6, [jnp.asarray(x), nb.from_torch(torch.from_numpy(y), dtype=nb.vec3, return_ctype=True), out])
    np.testing.assert_allclose(out.numpy(), np.cross(x, y), rtol=1e-5, atol=1e-6)
    with pytest.raises(nb.BufferAccessError, match="parameter 'c'"):
        nb.launch(cross, 6, [x, y, jnp.asarray(x)])


def test_gradients_are_of_elements():
    leaf = torch.zeros(4, 3, requires_grad=True)
    a = nb.from_torch(leaf, dtype=nb.vec3)
    assert a.requires_grad and a.grad.dtype is nb.vec3 and a.grad.shape == (4,) and leaf.grad.shape == (4, 3)
    assert a[1:].grad.shape == (3,) and a[1:].grad.ptr == leaf.grad.data_ptr() + 12
    b = nb.zeros(4, nb.vec3, requires_grad=True)
    b.grad = torch.ones(4, 3)
    assert b.grad.dtype is nb.vec3 and nb.to_torch(b).grad.tolist() == [[1.0] * 3] * 4


def test_foreign_lanes_are_no_elements():
    """A DLPack tensor whose lanes happen to be an element type's number must not be taken for one."""
    import ctypes

    a = nb.zeros(4, nb.float32)
    capsule = a.__dlpack__()
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )(capsule, b"dltensor")
    ctypes.c_uint16.from_address(pointer + 22).value = nb.vec3.number
    with pytest.raises(nb.ConversionError):
        nb.from_dlpack(capsule)


def test_structured_arrays_with_the_components_as_fields():
    points = np.zeros(4, [("x", "f4"), ("y", "f4"), ("z", "f4")])
    points["y"] = [1, 2, 3, 4]
    a = nb.from_numpy(points, dtype=nb.vec3)
    assert a.shape == (4,) and a.ptr == points.ctypes.data and a[2].item() == nb.vec3(0, 3, 0)
    assert nb.from_numpy(points[::-2], dtype=nb.vec3).numpy().tolist() == [[0, 4, 0], [0, 2, 0]]
    a[0] = nb.vec3(7, 8, 9)
    assert points[0].tolist() == (7, 8, 9)
    points.flags.writeable = False
    assert nb.from_numpy(points, dtype=nb.vec3).read_only
    for fields in ([("x", "f4"), ("y", "f4")], [("x", "f4"), ("y", "f8"), ("z", "f4")]):
        with pytest.raises(nb.ConversionError, match=r"vec3, which is float32 with shape .*, and the data is dtype"):
            nb.from_numpy(np.zeros(4, fields), dtype=nb.vec3)
    gaps = np.dtype({"names": ["x", "y", "z"], "formats": ["f4"] * 3, "offsets": [0, 8, 16]})
    with pytest.raises(nb.ConversionError, match="vec3, which is float32"):
        nb.from_numpy(np.zeros(4, gaps), dtype=nb.vec3)


@pytest.mark.parametrize("make", [nb.asarray, nb.from_numpy, nb.array])
def test_every_constructor_takes_components_as_fields(make):
    points = np.zeros(4, [("x", "f4"), ("y", "f4"), ("z", "f4")])
    points["y"] = [1, 2, 3, 4]
    a = make(points[::2], dtype=nb.vec3)
    assert a.dtype is nb.vec3 and a.numpy().tolist() == [[0, 1, 0], [0, 3, 0]]
    assert np.shares_memory(a.numpy(), points) == (make is not nb.array)
    frames = np.zeros(2, [("m", "f4", (3, 3))])
    frames["m"] = np.arange(18).reshape(2, 3, 3)
    assert (make(frames, dtype=nb.mat33).numpy() == frames["m"]).all()


def test_an_index_is_one_of_elements_in_reading_and_writing():
    a = nb.zeros((2, 2), nb.vec3)
    for key in ((0, 1, 2), (0, 1, ..., 0), (np.ones((2, 2), bool), 0)):
        with pytest.raises(nb.NumbridgeIndexError, match="3 indices for an array of vec3 with 2 dimensions"):
            a[key] = 5
    with pytest.raises(nb.NumbridgeIndexError, match="3 indices for an array with 2 dimensions"):
        a[0, 1, 2]
    a[..., 1] = 5
    assert a.numpy()[..., 0].tolist() == [[0, 5], [0, 5]] and a[..., 1].numpy().tolist() == [[5] * 3] * 2
    a[[True, False]] = nb.vec3(1, 2, 3)
    a[[1, 1], [0, 1]] = nb.vec3(4, 5, 6)
    assert a.numpy().tolist() == [[[1, 2, 3]] * 2, [[4, 5, 6]] * 2]
    a.view(nb.float32)[..., 2] = 0
    assert a[1, 1].item() == nb.vec3(4, 5, 0)


@pytest.mark.parametrize("make", [nb.array, nb.asarray, nb.clone])
def test_a_value_becomes_an_array_without_dimensions(make):
    for value in (nb.vec3(1, 2, 3), nb.mat22(1, 2, 3, 4)):
        a = make(value)
        assert a.shape == () and a.dtype is type(value) and a.item() == value
    assert nb.zeros_like(nb.vec3(1, 2, 3)).item() == nb.vec3() and nb.array(nb.vec2(1, 2), dtype=float).list() == [1, 2]
    assert nb.array(nb.vec3(1, 2, 3), dtype=nb.vec3d).item() == nb.vec3d(1, 2, 3)
    with pytest.raises(nb.BufferAccessError, match="a vec3 has no memory to share"):
        nb.array(nb.vec3(), copy=False)


def test_an_element_of_an_array_fills_another():
    a = nb.full(2, nb.full(1, nb.vec3(1, 2, 3))[0])
    assert a.dtype is nb.vec3 and a.numpy().tolist() == [[1, 2, 3]] * 2


def test_numbers_of_elements_are_copied_from_and_to_their_last_dimensions():
    a, rows = nb.zeros(2, nb.vec3), np.arange(6, dtype=np.float32).reshape(2, 3)
    nb.copy(a, rows)
    back = np.zeros((2, 3), np.float32)
    nb.copy(back, a)
    assert back.tolist() == rows.tolist() == a.numpy().tolist()
    records, words = np.ones(2, [("x", "f4"), ("y", "i4")]), np.zeros((2, 2), np.uint32)
    for dest, src in ((words, records), (records, words)):
        with pytest.raises(nb.NumbridgeValueError, match="they must be equal"):
            nb.copy(dest, src)
