"""Every ordered pair of frameworks and every dtype: zero-copy by pointer, or an error that says which side lacks it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch

import numbridge as nb
from numbridge.kernels.scalars import ALL, by_name

FRAMEWORKS = ("numbridge", "numpy", "torch", "paddle", "jax")
SHAPES = ((5,), (3, 4), (), (0,), (2, 0, 3))
LACKS = {"paddle": {"uint16"}}


@pytest.fixture(autouse=True)
def wide_jax():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def has(framework, row):
    return row.name not in LACKS.get(framework, ())


def values(row, shape):
    return (np.arange(int(np.prod(shape))) % 2 + (0 if row.name == "bool" else 1)).reshape(shape).astype(row.numpy)


def make(framework, row, shape):
    """Return an array of a framework, with memory of its own."""
    base = nb.array(values(row, shape), dtype=row.numpy)
    return nb.convert(base, framework)


def as_numpy(x):
    return nb.to_numpy(nb.asarray(x))


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
@pytest.mark.parametrize("target", FRAMEWORKS)
@pytest.mark.parametrize("source", FRAMEWORKS)
def test_pairs_share_memory(source, target, row):
    for shape in SHAPES:
        if not has(source, row):
            with pytest.raises(nb.ConversionError, match=f"no dtype {row.name}"):
                make(source, row, shape)
            continue
        x = make(source, row, shape)
        if not has(target, row):
            with pytest.raises(nb.ConversionError, match=f"no dtype {row.name}"):
                nb.convert(x, target)
            continue
        y = nb.convert(x, target)
        before, after = nb.explain(x), nb.explain(y)
        if np.prod(shape):
            assert before.ptr == after.ptr
        assert before.shape == after.shape == shape
        assert before.dtype == after.dtype == row.name
        assert (as_numpy(y) == values(row, shape)).all()
        assert not np.prod(shape) or nb.explain(as_numpy(y)).ptr == after.ptr


@pytest.mark.parametrize("target", [name for name in FRAMEWORKS if name != "jax"])
@pytest.mark.parametrize("source", [name for name in FRAMEWORKS if name != "jax"])
def test_writes_are_seen_on_the_other_side(source, target):
    x = make(source, by_name("float32"), (6,))
    y = nb.convert(x, target)
    y[2] = 77
    assert as_numpy(x)[2] == 77
    x[3] = 55
    assert as_numpy(y)[3] == 55


@pytest.mark.parametrize("source", FRAMEWORKS)
def test_the_way_back_is_the_same_object(source):
    x = make(source, by_name("float32"), (6,))
    if source in ("torch", "paddle", "jax"):
        assert nb.convert(nb.asarray(x), source) is x


@pytest.mark.parametrize("target", FRAMEWORKS)
def test_memory_outlives_its_first_owner(target):
    import gc

    for source in FRAMEWORKS:
        y = nb.convert(make(source, by_name("int64"), (1000,)), target)
        gc.collect()
        filler = [np.full(1000, -1, np.int64) for _ in range(20)]
        assert (as_numpy(y) == values(by_name("int64"), (1000,))).all() and filler


def refused(error, text, run):
    with pytest.raises(error, match=text):
        run()


def test_read_only_memory_is_shared_only_where_it_stays_so():
    x = np.ones(16, np.float32)
    aligned = nb.zeros(16).numpy()
    x.flags.writeable = aligned.flags.writeable = False
    a = nb.from_numpy(x)
    assert a.read_only and not nb.to_numpy(a).flags.writeable
    refused(nb.BufferAccessError, r"read-only.*clone\(\)", lambda: nb.to_torch(a))
    refused(nb.BufferAccessError, r"read-only.*clone\(\)", lambda: nb.to_paddle(a))
    assert nb.convert(aligned, "jax").unsafe_buffer_pointer() == aligned.ctypes.data
    b = nb.from_jax(jnp.ones(4, jnp.float32))
    assert b.read_only and not b.numpy().flags.writeable
    assert nb.to_torch(b).tolist() == [1, 1, 1, 1]
    assert nb.to_paddle(b).tolist() == [1, 1, 1, 1]


def test_strides_that_the_other_side_lacks():
    a = nb.zeros((4, 6))
    assert nb.to_torch(a[:, ::2]).stride() == (6, 2)
    refused(nb.BufferAccessError, "negative strides", lambda: nb.to_torch(a[::-1]))
    refused(nb.BufferAccessError, "negative strides", lambda: nb.to_paddle(a[::-1]))
    refused(nb.BufferAccessError, "C-contiguous", lambda: nb.to_jax(a[:, ::2]))
    refused(nb.BufferAccessError, "aligned to 64", lambda: nb.to_jax(a.reshape(24)[1:]))


def test_jax_narrows_nothing_silently():
    jax.config.update("jax_enable_x64", False)
    refused(nb.ConversionError, "jax_enable_x64", lambda: nb.to_jax(nb.zeros(3, dtype=nb.float64)))


def test_a_deleted_jax_array_leaves_its_memory_to_its_views():
    x = jnp.arange(1000.0, dtype=jnp.float32)
    a = nb.from_jax(x)
    x.delete()
    assert (a.numpy() == np.arange(1000)).all()
    refused(nb.BufferAccessError, "deleted or donated", lambda: nb.from_jax(x))


def test_jax_arrays_that_are_no_memory():
    refused(nb.ConversionError, "key_data", lambda: nb.from_jax(jax.random.key(0)))
    seen = []

    def traced(x):
        refused(nb.BufferAccessError, "tracer", lambda: nb.asarray(x))
        seen.append(True)
        return x

    jax.jit(traced)(jnp.ones(3))
    assert seen
    refused(nb.NumbridgeTypeError, "must be a jax.Array", lambda: nb.from_jax(np.ones(3)))


def test_gradients_travel_with_torch():
    t = torch.ones(4, requires_grad=True)
    a = nb.from_torch(t)
    assert a.requires_grad and t.grad is None
    t.grad = torch.full((4,), 3.0)
    assert (a.grad.numpy() == 3).all() and a.grad.ptr == t.grad.data_ptr()
    late = torch.ones(4, requires_grad=True)
    b = nb.from_torch(late)
    assert nb.explain(b).ptr and late.grad is None
    assert b.grad.ptr == late.grad.data_ptr() and (late.grad == 0).all()
    assert not nb.from_torch(torch.ones(2)).requires_grad and nb.from_torch(torch.ones(2)).grad is None
    assert nb.from_torch(torch.ones(2), requires_grad=True).requires_grad
    given = torch.full((2,), 7.0)
    c = nb.from_torch(torch.ones(2), requires_grad=True, grad=given)
    assert c.grad.ptr == given.data_ptr()


def test_gradients_travel_to_torch():
    a = nb.array([1.0, 2.0], dtype=float, requires_grad=True)
    t = nb.to_torch(a)
    assert t.requires_grad and t.is_leaf and t.grad is None and t.data_ptr() == a.ptr
    (t * t).sum().backward()
    assert a.grad.ptr == t.grad.data_ptr() and a.grad.numpy().tolist() == [2, 4]
    optimizer = torch.optim.SGD([t], lr=0.5)
    optimizer.step()
    assert a.numpy().tolist() == [0, 0]
    assert nb.to_torch(a) is t
    b = nb.array([1.0], dtype=float, requires_grad=True)
    b.grad = nb.array([5.0], dtype=float)
    assert nb.to_torch(b).grad.tolist() == [5] and b.grad.numpy().tolist() == [5]
    assert not nb.to_torch(b, requires_grad=False).requires_grad
    assert nb.to_torch(nb.zeros(2), requires_grad=True).requires_grad


def test_gradients_travel_with_paddle():
    t = paddle.ones([4])
    t.stop_gradient = False
    a = nb.from_paddle(t)
    assert a.requires_grad and t.grad is None
    (t * t).sum().backward()
    assert a.grad.numpy().tolist() == [2, 2, 2, 2]
    b = nb.array([1.0, 2.0], dtype=float, requires_grad=True)
    u = nb.to_paddle(b)
    assert not u.stop_gradient and nb.to_paddle(b) is u
    (u * u).sum().backward()
    assert b.grad.numpy().tolist() == [2, 4]


@pytest.mark.parametrize("to", [nb.to_torch, nb.to_paddle])
@pytest.mark.parametrize("had_gradient", [False, True])
def test_gradients_of_a_views_tensor_come_to_the_array(to, had_gradient):
    cases = {
        "slice": ((4,), lambda a: a[1:3]),
        "columns": ((2, 3), lambda a: a[:, ::2]),
        "transposed": ((2, 3), lambda a: a.T[1:]),
        "reshaped, view of a view": ((3, 4), lambda a: a[1:].reshape(4, 2)[::3]),
        "with a new dimension": ((4,), lambda a: a[None, 2:]),
    }
    for shape, view in cases.values():
        values = np.arange(1.0, 1 + math.prod(shape), dtype=np.float32).reshape(shape)
        a = nb.array(values, requires_grad=True)
        if had_gradient:
            a.grad.fill_(0)
        expected = np.zeros(shape, np.float32)
        for _ in range(2):
            part = view(a)
            tensor = to(part)
            assert tensor.data_ptr() == part.ptr and tuple(tensor.shape) == part.shape
            (tensor**3).sum().backward()
            seen = nb.from_numpy(expected)
            view(seen).assign(view(seen).numpy() + 3 * view(nb.from_numpy(values)).numpy() ** 2)
            assert np.array_equal(a.grad.numpy(), expected)
            assert np.array_equal(part.grad.numpy(), view(seen).numpy())


def test_gradients_of_a_views_tensor_come_to_the_tensor_that_was_adopted():
    leaf = torch.arange(6.0)[1:].detach().requires_grad_()
    (nb.to_torch(nb.from_torch(leaf)[2:]) ** 2).sum().backward()
    assert leaf.grad.tolist() == [0, 0, 6, 8, 10]
    other = paddle.arange(5).astype("float32")
    other.stop_gradient = False
    (nb.to_paddle(nb.from_paddle(other)[2:]) ** 2).sum().backward()
    assert other.grad.tolist() == [0, 0, 4, 6, 8]
    # Elements by their numbers, and what needs no gradient
    a = nb.array(np.ones((4, 3), np.float32), dtype=nb.vec3, requires_grad=True)
    nb.to_torch(a[::2]).sum().backward()
    assert a.grad.numpy().tolist() == [[1] * 3, [0] * 3] * 2
    assert nb.to_torch(a[1:], requires_grad=False).is_leaf and nb.to_torch(a[4:]).shape == (0, 3)


def test_a_view_that_paddle_cannot_give_a_gradient_is_refused():
    whole = paddle.ones([6])[2:]
    whole.stop_gradient = False
    with pytest.raises(
        nb.BufferAccessError, match=r"convert the Array and slice the tensor, or pass requires_grad=False"
    ):
        nb.to_paddle(nb.from_paddle(whole)[1:])
    assert nb.to_paddle(nb.from_paddle(whole)[1:], requires_grad=False).shape == [3]


@pytest.mark.parametrize("name", ["torch", "paddle", "jax", "numpy", "cupy"])
def test_dtypes_translate_both_ways(name):
    there, back = getattr(nb, f"dtype_to_{name}"), getattr(nb, f"dtype_from_{name}")
    for row in ALL:
        if has(name, row):
            assert back(there(row.numpy.type)) is row.numpy.type
        else:
            refused(nb.ConversionError, f"no dtype {row.name}", lambda row=row: there(row.numpy.type))


@pytest.mark.parametrize("name", ["torch", "paddle", "jax", "numpy"])
def test_devices_translate_both_ways(name):
    there, back = getattr(nb, f"device_to_{name}"), getattr(nb, f"device_from_{name}")
    assert back(there(nb.get_device("cpu"))) == "cpu"


@pytest.mark.parametrize("name", ["torch", "paddle", "cupy"])
def test_streams_need_cuda(name):
    for way in ("from", "to"):
        refused(nb.DeviceError, "CUDA", getattr(nb, f"stream_{way}_{name}"))


def test_cupy_needs_cuda():
    refused(nb.DeviceError, "CUDA", lambda: nb.to_cupy(nb.zeros(3)))
    refused(nb.DeviceError, "CUDA", lambda: nb.convert(nb.zeros(3), "cupy"))


@pytest.mark.parametrize("name", ["torch", "paddle"])
def test_from_takes_its_own_tensors_only(name):
    convert = getattr(nb, f"from_{name}")
    for other in (np.ones(3), jnp.ones(3), [1.0], None):
        refused(nb.NumbridgeTypeError, "must be a", lambda other=other: convert(other))


def test_torch_without_its_offsets_is_as_safe(monkeypatch):
    from numbridge.bridges import torch_bridge

    monkeypatch.setattr(torch_bridge, "_probed", lambda: None)
    adapter = torch_bridge.reader(torch.Tensor).adapter
    assert adapter is not None
    for odd in (
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.complex64).conj().imag,
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
    ):
        with pytest.raises(nb.BufferAccessError):
            adapter(odd)
    leaf = torch.ones(2, requires_grad=True)
    from numbridge.kernels.readers import describe

    assert describe(adapter(leaf)).data == leaf.data_ptr()


def test_torch_offsets_are_found():
    from numbridge.bridges import torch_bridge

    found = torch_bridge._probed()
    assert (
        found is not None and found.implementation and found.keys and found.autograd and found.version and found.counter
    )
