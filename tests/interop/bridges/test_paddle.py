"""Paddle tensors: what is read natively, what is refused and why, whose write is noticed, and what a tensor still is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import paddle
import pytest

import numbridge as nb
from numbridge.bridges import paddle_bridge
from numbridge.kernels.scalars import ALL
from numbridge.storage import leases

FALLBACK = "NUMBRIDGE_TEST_PADDLE_FALLBACK"
if FALLBACK in os.environ:
    paddle_bridge._probed = lambda: None
native_only = pytest.mark.skipif(FALLBACK in os.environ, reason="the way through Python cannot tell")


@nb.kernel
def fill(out):
    i = nb.tid()
    out[i] = 5.0


@nb.kernel
def total(x, out):
    i = nb.tid()
    nb.atomic_add(out, 0, x[i])


def sparse_gradient():
    embedding = paddle.nn.Embedding(10, 4, sparse=True)
    embedding(paddle.to_tensor([1, 2])).sum().backward()
    return embedding.weight.grad


def emptied(method):
    tensor = paddle.ones([4])
    getattr(tensor, method)()
    return tensor


ODD = {
    "coordinates": (lambda: paddle.eye(4).to_sparse_coo(2), r"sparse.*to_dense\(\)"),
    "compressed": (lambda: paddle.eye(4).to_sparse_csr(), r"sparse.*to_dense\(\)"),
    "gradient": (sparse_gradient, "sparse gradient.*sparse=False"),
    "without memory": (lambda: emptied("_clear_data"), "no memory yet"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tensors_are_refused_by_name(name):
    make, text = ODD[name]
    tensor, out = make(), np.zeros(1, np.float32)
    with pytest.raises(nb.BufferAccessError, match=text):
        nb.from_paddle(tensor)
    with pytest.raises(nb.BufferAccessError, match=f"parameter 'x'.*({text})"):
        nb.launch(total, 4, [tensor, out])
    assert out[0] == 0


def test_a_tensor_without_an_implementation_is_refused():
    out = np.zeros(1, np.float32)
    with pytest.raises(nb.NumbridgeError, match=r"no memory|cannot be read"):
        nb.from_paddle(emptied("_clear"))
    with pytest.raises(nb.NumbridgeError, match="parameter 'x'"):
        nb.launch(total, 4, [emptied("_clear"), out])
    assert out[0] == 0


def test_a_distributed_tensor_is_refused(run_python):
    printed = run_python(
        """
        import paddle
        import numbridge as nb

        mesh = paddle.distributed.ProcessMesh([0], dim_names=["x"])
        tensor = paddle.distributed.shard_tensor(paddle.ones([4]), mesh, [paddle.distributed.Replicate()])
        try:
            nb.from_paddle(tensor)
        except nb.BufferAccessError as error:
            print(error)
        print(nb.from_paddle(tensor._local_value()).list())
        """,
        "-Wignore",
    )
    assert "distributed Paddle tensor" in printed and "_local_value()" in printed
    assert printed.endswith("[1.0, 1.0, 1.0, 1.0]\n")


BASE = paddle.arange(24, dtype="float32")


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE[5],
        BASE[5:],
        BASE[::3],
        BASE.reshape([4, 6]).t(),
        BASE.reshape([4, 6])[1:3, ::2],
        paddle.zeros([0, 3]),
        paddle.zeros([]),
        paddle.Tensor(),
        paddle.nn.Linear(2, 3).weight,
    ],
    ids=lambda tensor: f"{type(tensor).__name__}-{tensor.shape}-{tensor.strides}",
)
def test_layouts_are_kept(tensor):
    with paddle.no_grad():
        a = nb.from_paddle(tensor)
        assert list(a.shape) == tensor.shape and (a.ptr == tensor.data_ptr() or not a.size)
        assert (a.numpy() == tensor.numpy()).all()
        assert not a.size or [step // 4 for step in a.strides] == tensor.strides
        assert nb.to_paddle(a) is tensor


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_every_dtype_that_paddle_has_is_shared(row):
    if row.name == "uint16":
        with pytest.raises(nb.ConversionError, match="Paddle has no dtype uint16"):
            nb.to_paddle(nb.zeros(4, dtype=row.numpy))
        return
    a = nb.zeros(4, dtype=row.numpy)
    t = nb.to_paddle(a)
    assert t.dtype == nb.dtype_to_paddle(row.numpy) and t.data_ptr() == a.ptr
    b = nb.from_paddle(t)
    assert b.ptr == a.ptr and b.dtype == row.numpy


def refused(tensor, text):
    before = tensor.numpy().copy()
    with pytest.raises(nb.BufferAccessError, match=f"parameter 'out'.*({text})"):
        nb.launch(fill, tensor.shape[0], [], [tensor])
    assert (tensor.numpy() == before).all()


def written(tensor):
    nb.launch(fill, tensor.shape[0], [], [tensor])
    return bool((tensor.numpy() == 5).all())


def trained(tensor):
    tensor.stop_gradient = False
    return tensor


def test_writes_that_autograd_would_not_see_are_refused():
    leaf = trained(paddle.ones([4]))
    refused(leaf, "stop_gradient=False.*no_grad|read-only")
    refused(leaf * 1, "stop_gradient=False.*detach|read-only")
    refused(leaf[1:], "stop_gradient=False|read-only")
    refused(paddle.nn.Linear(4, 4).bias, "stop_gradient=False|read-only")
    out = np.zeros(1, np.float32)
    with paddle.no_grad():
        nb.launch(total, 4, [leaf, out])
    assert out[0] == 4


def test_writes_that_paddle_allows_are_allowed():
    leaf = trained(paddle.ones([4]))
    with paddle.no_grad():
        assert written(leaf)
    assert written(trained(paddle.ones([4])).detach()) and written(paddle.ones([4]))


@native_only
def test_every_write_counts_the_version_up_so_that_autograd_notices():
    x, weight = paddle.ones([4]), trained(paddle.ones([4]))
    loss = (weight * x).sum()
    assert written(x) and x.inplace_version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(nb.NumbridgeError):
        nb.launch(total, 4, [paddle.eye(4).to_sparse_csr(), x])
    nb.launch(total, 4, [x, np.zeros(1, np.float32)])
    nb.from_paddle(x)
    assert x.inplace_version == 1
    nb.asarray(x)[1:].fill_(0.0)
    assert written(nb.asarray(x)[:2]) and x.inplace_version == 3


def test_immutable_memory_stays_read_only_under_other_names():
    x = jnp.zeros(16)
    shared = nb.convert(x, "paddle")
    assert shared._numbridge_read_only and shared.data_ptr() == x.unsafe_buffer_pointer()
    for tensor in (shared, shared[4:], shared.detach(), shared.reshape([4, 4])[1]):
        refused(tensor, "immutable|read-only")
        assert nb.from_paddle(tensor).read_only
    assert not nb.convert(shared, "numpy").flags.writeable
    refused(nb.convert(nb.convert(shared[4:], "torch"), "paddle"), "immutable|read-only")
    with pytest.raises(nb.BufferAccessError, match=r"parameter 'out'.*(immutable|read-only)"):
        nb.launch(fill, 4, [], [nb.from_paddle(shared[4:], return_ctype=True)])
    assert written(shared.clone()) and not np.asarray(x).any()


def test_what_was_lent_is_forgotten_with_its_memory():
    gc.collect()
    before = set(leases._lent)
    shared = nb.convert(jnp.arange(1000), "paddle")
    part = shared[7:]
    del shared
    gc.collect()
    assert nb.from_paddle(part).read_only
    del part
    gc.collect()
    assert set(leases._lent) == before


def test_an_array_gives_its_tensor_back_as_long_as_it_is_the_same_memory():
    t = paddle.arange(4, dtype="float32").reshape([2, 2])
    a = nb.from_paddle(t)
    assert nb.to_paddle(a) is t
    assert nb.to_paddle(a.T) is not t and nb.to_paddle(a.T).numpy().tolist() == [[0, 2], [1, 3]]
    t.reshape_([4])
    assert nb.to_paddle(a).shape == [2, 2]


def test_descriptors_keep_the_tensor():
    t = paddle.full([1000], 3.0)
    descriptor, out = nb.from_paddle(t, return_ctype=True), np.zeros(1, np.float32)
    del t
    gc.collect()
    filler = [paddle.zeros([1000]) for _ in range(20)]
    nb.launch(total, 1000, [descriptor, out])
    assert out[0] == 3000 and filler


def test_integers_are_shared_as_those_of_the_other_sign():
    t = paddle.to_tensor([[-1, 2, 3]])
    assert nb.from_paddle(t, dtype=nb.uint64).list() == [[2**64 - 1, 2, 3]]
    assert nb.from_paddle(t, dtype=nb.vector(3, nb.uint64)).ptr == t.data_ptr()


def test_what_sharing_cannot_do():
    with pytest.raises(nb.ConversionError, match="cannot be shared as another dtype"):
        nb.from_paddle(paddle.ones([3]), dtype=nb.int32)
    with pytest.raises(nb.NumbridgeTypeError, match="requires_grad needs a floating or complex dtype"):
        nb.from_paddle(paddle.ones([3], dtype="int32"), requires_grad=True)
    for integers in (nb.zeros(3, int), nb.from_paddle(paddle.arange(3))):
        with pytest.raises(nb.NumbridgeTypeError, match="requires_grad needs a floating or complex dtype"):
            nb.to_paddle(integers, requires_grad=True)
        assert nb.to_paddle(integers, requires_grad=False).stop_gradient
    with pytest.raises(nb.NumbridgeValueError, match="grad has shape"):
        nb.from_paddle(paddle.ones([3]), grad=paddle.ones([4]))
    with pytest.raises(nb.NumbridgeTypeError, match=r"must be an nb\.Array"):
        nb.to_paddle(paddle.ones([3]))
    for place in "xpu:0", "gpu:first", paddle.base.libpaddle.Place():
        with pytest.raises(nb.DeviceError, match=f"Paddle place .*{str(place)[:3]}.* has no counterpart"):
            nb.device_from_paddle(place)
    assert nb.device_from_paddle("gpu_pinned") == "cpu"
    assert nb.device_from_paddle("gpu:1") == "cuda:1" and nb.device_from_paddle(paddle.ones([1]).place) == "cpu"


@native_only
def test_probing_that_fails_is_no_error(monkeypatch):
    known = paddle_bridge._class_at(paddle.ones([3]), paddle_bridge._probe().implementation)
    assert paddle_bridge._probe().allowed == known
    # A class whose bits the known one has would pass for it.
    monkeypatch.setattr(paddle_bridge, "_strange", lambda: [paddle.ones([2])])
    assert paddle_bridge._probe() is None
    monkeypatch.setattr(paddle_bridge, "_strange", lambda: 1 // 0)
    paddle_bridge._probed.cache_clear()
    assert paddle_bridge._probed() is None
    made = paddle_bridge.reader(paddle.Tensor)
    assert made is not None and made.adapter is not None and made.function == 0
    paddle_bridge._probed.cache_clear()


@native_only
def test_the_way_through_python_is_as_safe():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", __file__]
    selected = "odd or implementation or layouts or writes or immutable or lent or descriptors or dtype"
    done = subprocess.run(
        [*command, "-k", selected], env={**os.environ, FALLBACK: "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rsplit(" passed", 1)[0].split()[-1]) > 30


@nb.kernel
def square_of(x: nb.array[float], y: nb.array[float]):
    i = nb.tid()
    y[i] = x[i] * x[i]


def _layer(own_gradient):
    """Return a layer whose backward lets the adjoint add to the tensor's gradient, or to one of its own."""

    class Square(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.x = nb.from_paddle(x if own_gradient else x.detach(), requires_grad=True)
            y = paddle.zeros_like(x)
            ctx.y = nb.from_paddle(y)
            nb.launch(square_of, x.shape, [ctx.x], [ctx.y])
            return y

        @staticmethod
        def backward(ctx, by_y):
            adjoints = {"adj_inputs": [ctx.x.grad], "adj_outputs": [by_y.clone()], "adjoint": True}
            nb.launch(square_of, ctx.x.shape, [ctx.x], [ctx.y], **adjoints)
            return nb.to_paddle(ctx.x.grad)

    return Square


def test_a_layers_gradient_counts_once_or_is_refused():
    x = paddle.to_tensor([1.0, 2.0, 3.0], stop_gradient=False)
    with pytest.raises(OSError, match=r"Paddle's own while its backward runs"):  # what Paddle makes of an exception
        _layer(own_gradient=True).apply(x).sum().backward()
    assert x.grad is None
    for _ in range(2):
        _layer(own_gradient=False).apply(x).sum().backward()
    assert x.grad.tolist() == [4, 8, 12]
    assert nb.from_paddle(x).grad.list() == [4, 8, 12]


@nb.kernel
def squared(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


def test_a_gradient_that_is_given_is_added_to():
    t, gradient = paddle.ones([3]), paddle.zeros([3])
    x = nb.from_paddle(t, grad=gradient)
    assert x.requires_grad and not nb.from_paddle(t, requires_grad=False, grad=gradient).requires_grad
    y = nb.zeros(3, device="cpu")
    with nb.Tape() as tape:
        nb.launch(squared, 3, [x, y])
    tape.backward(grads={y: [1.0, 2.0, 3.0]})
    assert x.grad.list() == gradient.tolist() == [2.0, 4.0, 6.0]
    assert nb.explain(x.grad).ptr == gradient.data_ptr()
    assert t.grad is None  # Paddle would copy what becomes a tensor's gradient


@pytest.mark.parametrize("on_tape", [False, True])
def test_a_gradient_that_is_given_is_what_a_layers_backward_returns(on_tape):
    class Square(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            y = paddle.zeros_like(x)
            ctx.x, ctx.y = x, y
            nb.launch(square_of, x.shape, [nb.from_paddle(x.detach())], [nb.from_paddle(y)])
            return y

        @staticmethod
        def backward(ctx, by_y):
            by_x = paddle.zeros_like(ctx.x)
            x, y = nb.from_paddle(ctx.x, grad=by_x), nb.from_paddle(ctx.y.detach(), grad=by_y.clone())
            if on_tape:
                with nb.Tape() as tape:
                    nb.launch(square_of, x.shape, [x], [y])
                tape.backward(grads={y: by_y.clone()})
            else:
                nb.launch(square_of, x.shape, [x], [y], adj_inputs=[None], adj_outputs=[None], adjoint=True)
            return by_x

    x = paddle.to_tensor([1.0, 2.0, 3.0], stop_gradient=False)
    for _ in range(2):
        Square.apply(x).sum().backward()
    assert x.grad.tolist() == [4, 8, 12]
