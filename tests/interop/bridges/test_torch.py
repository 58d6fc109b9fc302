"""PyTorch tensors: what is read natively, what is refused and why, whose write is noticed, and what a tensor still is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import numbridge as nb
from numbridge.bridges import torch_bridge
from numbridge.storage import leases

FALLBACK = "NUMBRIDGE_TEST_TORCH_FALLBACK"
if FALLBACK in os.environ:
    torch_bridge._probed = lambda: None
native_only = pytest.mark.skipif(FALLBACK in os.environ, reason="the way through Python cannot tell")


@nb.kernel
def fill(out):
    i = nb.tid()
    out[i] = 5.0


@nb.kernel
def total(x, out):
    i = nb.tid()
    nb.atomic_add(out, 0, x[i])


class Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), options=None):
        return function(*arguments, **(options or {}))


class Plain(torch.Tensor):
    pass


def fake():
    with FakeTensorMode():
        return torch.ones(4)


ODD = {
    "sparse": (lambda: torch.eye(4).to_sparse(), r"sparse.*to_dense\(\)"),
    "compressed": (lambda: torch.eye(4).to_sparse_csr(), r"sparse_csr.*to_dense\(\)"),
    "meta": (lambda: torch.ones(4, device="meta"), "meta device"),
    "fake": (fake, "fake"),
    "conjugated": (lambda: torch.ones(4, dtype=torch.complex64).conj(), r"conjugated.*resolve_conj\(\)"),
    "negated": (lambda: torch.ones(4, dtype=torch.complex64).conj().imag, r"negated.*resolve_neg\(\)"),
    "conjugated 0-d": (lambda: torch.tensor(1 + 2j).conj(), r"resolve_conj\(\)"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8), "quantized.*int_repr"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested.*to_padded_tensor"),
    "mkldnn": (lambda: torch.ones(4).to_mkldnn(), r"MKL-DNN.*to_dense\(\)"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(4)), "functionalized"),
    "zero": (lambda: torch._efficientzerotensor(4), "lazy zero.*zeros_like"),
    "wrapper": (lambda: TwoTensor(torch.ones(4), torch.ones(4)), "TwoTensor decides itself.*unwrap"),
    "dispatching": (lambda: torch.Tensor._make_subclass(Dispatching, torch.ones(4)), "Dispatching decides itself"),
    "uninitialized": (lambda: torch.nn.LazyLinear(4).weight, "no memory before its module has run"),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ODD)
def test_odd_tensors_are_refused_by_name(name):
    make, text = ODD[name]
    tensor, out = make(), np.zeros(1, np.float32)
    with pytest.raises(nb.BufferAccessError, match=text):
        nb.from_torch(tensor)
    with pytest.raises(nb.BufferAccessError, match=f"parameter 'x'.*({text})"):
        nb.launch(total, 4, [tensor, out])
    assert out[0] == 0


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (lambda f: torch.func.vmap(f)(torch.ones(3, 4)), "vmap or grad.*outside the transform"),
        (lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(4)), "vmap or grad.*outside the transform"),
        (lambda f: torch.func.functionalize(f)(torch.ones(4)), "functionalized.*outside the transform"),
    ],
    ids=["vmap", "grad", "functionalize"],
)
def test_tensors_inside_a_transform_are_refused(transform, text):
    seen, out = [], np.zeros(1, np.float32)

    def inside(x):
        with pytest.raises(nb.BufferAccessError, match=text):
            nb.from_torch(x)
        with pytest.raises(nb.BufferAccessError, match=text):
            nb.launch(total, 4, [x, out])
        seen.append(True)
        return x * 2

    transform(inside)
    assert seen and out[0] == 0


@pytest.mark.parametrize("name", ["bits8", "float8_e8m0fnu", "float8_e4m3fnuz"])
def test_dtypes_without_a_counterpart(name):
    dtype = getattr(torch, name)
    with pytest.raises(nb.ConversionError, match="no counterpart; numbridge has bool, int8"):
        nb.from_torch(torch.empty(2, dtype=dtype))
    with pytest.raises(nb.ConversionError, match=f"{name}.*no counterpart"):
        nb.dtype_from_torch(dtype)


BASE = torch.arange(24, dtype=torch.float32)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE,
        BASE[5],
        BASE[5:],
        BASE[:0],
        BASE[::3],
        BASE.view(4, 6).t(),
        BASE.view(4, 6)[1:3, ::2],
        BASE.view(2, 3, 4).permute(2, 0, 1),
        BASE[2].expand(3),
        BASE.view(1, 24)[:, :1],
        BASE.view(*[1] * 14, 4, 6),
        torch.zeros(0, 3),
        BASE.view(4, 6).as_subclass(Plain),
        torch.nn.Parameter(BASE.clone()),
    ],
    ids=lambda tensor: f"{type(tensor).__name__}-{tuple(tensor.shape)}-{tensor.stride()}",
)
def test_layouts_are_kept(tensor):
    a = nb.from_torch(tensor)
    assert a.shape == tuple(tensor.shape) and (a.ptr == tensor.data_ptr() or not a.size)
    assert (a.numpy() == tensor.detach().numpy()).all()
    moving = [k for k, extent in enumerate(a.shape) if extent > 1 and a.size]
    assert [a.strides[k] for k in moving] == [tensor.stride(k) * 4 for k in moving]
    assert nb.to_torch(a) is tensor
    if a.size and 0 not in a.strides:
        fresh = nb.to_torch(nb.from_numpy(tensor.detach().numpy()))
        assert fresh.data_ptr() == a.ptr and (fresh == tensor).all()


def refused(tensor, text):
    before = tensor.detach().clone()
    with pytest.raises(nb.BufferAccessError, match=f"parameter 'out'.*({text})"):
        nb.launch(fill, tensor.shape[0], [], [tensor])
    assert (tensor.detach() == before).all()


def written(tensor):
    nb.launch(fill, tensor.shape[0], [], [tensor])
    return bool((tensor.detach() == 5).all())


def test_writes_that_autograd_would_not_see_are_refused():
    leaf = torch.ones(4, requires_grad=True)
    refused(leaf, "leaf tensor that requires grad.*no_grad|read-only")
    refused(leaf * 1, "tensor that autograd tracks.*detach|read-only")
    refused(leaf[1:], "tensor that autograd tracks|read-only")
    refused(torch.nn.Parameter(torch.ones(4)), "leaf tensor|read-only")
    out = np.zeros(1, np.float32)
    with torch.no_grad():
        nb.launch(total, 4, [leaf, out])
    assert out[0] == 4


def test_writes_that_torch_allows_are_allowed():
    leaf = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        assert written(leaf)
    assert written(torch.ones(4, requires_grad=True).detach())
    assert written(torch.ones(4).requires_grad_(True).requires_grad_(False))
    with torch.inference_mode():
        assert written(torch.ones(4)) and written(torch.ones(4, requires_grad=True))
        kept = torch.ones(4)
    assert written(kept)


@native_only
def test_every_write_counts_the_version_up_and_nothing_else_does():
    whole = torch.ones(8)
    view, other = whole[2:6], torch.ones(4)
    before = whole._version
    nb.launch(fill, 4, [], [view])
    assert whole._version == view._version == before + 1
    nb.launch(total, 4, [other, view[:1]])
    assert (whole._version, other._version) == (before + 2, 0)
    with pytest.raises(nb.NumbridgeError):
        nb.launch(total, 4, [torch.eye(4).to_sparse(), view[:1]])
    nb.from_torch(whole)
    assert whole._version == before + 2


@native_only
def test_writes_through_arrays_over_a_tensor_count_its_version_up():
    x = torch.ones(8, requires_grad=True)
    y = (2 * x).exp()
    shared, loss = nb.asarray(y.detach()), y.sum()
    writes = [
        lambda: nb.launch(fill, 8, [], [shared]),
        lambda: nb.launch(fill, 4, [], [shared[2:6]]),
        lambda: nb.launch(fill, 2, [], [shared[::2][1:3]]),
        lambda: nb.launch(fill, 8, [], [nb.from_torch(y.detach(), return_ctype=True)]),
        lambda: shared.fill_(2.0),
        lambda: shared[2:].assign(np.ones(6, np.float32)),
        lambda: nb.copy(shared, nb.ones(8, dtype=nb.float32)),
        lambda: shared[1:3].__setitem__(0, 5.0),
    ]
    for count, write in enumerate(writes):
        assert y._version == count
        write()
    nb.launch(total, 4, [shared, np.zeros(1, np.float32)])
    shared.numpy()
    assert y._version == len(writes)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        uncounted = torch.ones(4)  # tensors made here have no versions
        nb.launch(fill, 4, [], [nb.asarray(uncounted)])
    assert (uncounted == 5).all()


def test_immutable_memory_stays_read_only_under_other_names():
    x = jnp.zeros(16)
    shared = nb.convert(x, "torch")
    assert shared._numbridge_read_only and shared.data_ptr() == x.unsafe_buffer_pointer()
    for tensor in (shared, shared[4:], shared.view(4, 4)[1]):
        refused(tensor, "immutable|read-only")
    for array in (
        nb.from_torch(shared),
        nb.asarray(shared[4:]),
        nb.from_torch(shared.detach()),
        nb.from_torch(shared.data),
    ):
        assert array.read_only
        with pytest.raises(nb.BufferAccessError, match="read-only"):
            array.fill_(1)
    with pytest.raises(nb.BufferAccessError, match=r"parameter 'out'.*(immutable|read-only)"):
        nb.launch(fill, 4, [], [nb.from_torch(shared, return_ctype=True)])
    assert not nb.convert(shared, "numpy").flags.writeable
    refused(nb.convert(nb.convert(shared[4:], "paddle"), "torch"), "immutable|read-only")
    assert nb.to_torch(nb.from_torch(shared)) is shared
    assert written(shared.clone()) and not np.asarray(x).any()


def freed(offset):
    tensor = torch.ones(offset + 5)[offset:]
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("offset", [0, 3, 1 << 18])
def test_tensors_whose_storage_was_freed_are_refused(offset):
    tensor, out = torch.ones(8), np.zeros(1, np.float32)
    command = nb.launch(total, 4, [tensor], [out], record_cmd=True)
    command.launch()
    assert out[0] == 4
    command.set_param_at_index(0, freed(offset))
    with pytest.raises(nb.BufferAccessError, match=r"parameter 'x'.*resized to 0"):
        command.launch()
    with pytest.raises(nb.BufferAccessError, match="resized to 0"):
        nb.from_torch(freed(offset))
    assert out[0] == 4
    empty = torch.ones(8)[:0]
    empty.untyped_storage().resize_(0)
    assert nb.from_torch(empty).shape == (0,)


@pytest.mark.parametrize("rank", [65, 256, 300])
def test_ranks_beyond_what_an_array_has_are_refused(rank):
    tensor = torch.ones([1] * rank)
    for use in (nb.explain, nb.from_torch, lambda t: nb.launch(fill, 1, [t])):
        with pytest.raises(nb.BufferAccessError, match=f"{rank} dimensions; at most 64"):
            use(tensor)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_dual_tensors_are_read_and_not_written():
    out = np.zeros(1, np.float32)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(4), torch.ones(4))
        refused(dual, "dual tensor of forward-mode autograd")
        nb.launch(total, 4, [dual], [out])
        assert written(torch.autograd.forward_ad.unpack_dual(dual).primal)
    assert out[0] == 4


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32, jnp.bfloat16])
def test_what_was_lent_is_forgotten_with_its_memory(dtype):
    gc.collect()
    before = set(leases._lent)
    shared = nb.convert(jnp.arange(1000, dtype=dtype), "torch")
    for _ in range(100):
        nb.to_torch(nb.from_torch(shared)[10:])
    part = shared[7:]
    del shared
    gc.collect()
    assert nb.from_torch(part).read_only
    del part
    gc.collect()
    assert set(leases._lent) == before


def test_an_array_gives_its_tensor_back_as_long_as_it_is_the_same_memory():
    t = torch.arange(4.0).reshape(2, 2)
    a = nb.from_torch(t)
    assert nb.to_torch(a) is t
    t.t_()
    assert a.list() == [[0, 1], [2, 3]] and nb.to_torch(a).tolist() == [[0, 1], [2, 3]]
    leaf = torch.ones(3, requires_grad=True)
    b = nb.from_torch(leaf)
    assert nb.to_torch(b) is leaf
    assert not nb.to_torch(b, requires_grad=False).requires_grad and leaf.requires_grad
    assert nb.to_torch(b[1:]).data_ptr() == leaf.data_ptr() + 4
    line = torch.ones(6)[::2].as_strided((1, 3), (17, 2))
    assert nb.to_torch(nb.from_torch(line)) is line


def test_descriptors_keep_the_tensor():
    t = torch.full((1000,), 3.0)
    descriptor, out = nb.from_torch(t, return_ctype=True), np.zeros(1, np.float32)
    del t
    gc.collect()
    filler = [torch.zeros(1000) for _ in range(20)]
    nb.launch(total, 1000, [descriptor, out])
    assert out[0] == 3000 and filler


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        *((torch.int64, nb.uint64), (torch.int32, nb.uint32), (torch.int16, nb.uint16), (torch.int8, nb.uint8)),
        *((torch.uint8, nb.int8), (torch.uint32, nb.int32), (torch.bool, nb.uint8), (torch.bool, nb.int8)),
    ],
)
def test_integers_are_shared_as_those_of_the_other_sign(given, dtype):
    t = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(given)
    t = (0 - t if given not in (torch.bool, torch.uint32) else t).T
    a = nb.from_torch(t, dtype=dtype)
    assert (a.dtype, a.ptr, a.shape) == (dtype, t.data_ptr(), (3, 2))
    assert np.array_equal(a.numpy(), t.numpy().astype(dtype)) and nb.from_torch(t, dtype, return_ctype=True)


def test_a_write_to_integers_of_the_other_sign_is_one_to_the_tensor():
    @nb.kernel
    def increase(x: nb.array[nb.uint32]):
        i = nb.tid()
        x[i] += nb.uint32(1)

    t = torch.tensor([-1, 5], dtype=torch.int32)
    version = t._version
    nb.launch(increase, 2, [nb.from_torch(t, dtype=nb.uint32)])
    assert t.tolist() == [0, 6] and t._version == version + 1
    vectors = nb.from_torch(torch.tensor([[1, 2, 3]]), dtype=nb.vector(3, nb.uint64))
    assert vectors.shape == (1,) and nb.to_torch(vectors).dtype == torch.uint64


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(torch.uint8, nb.bool), (torch.int32, nb.int64), (torch.float32, nb.uint32), (torch.int16, nb.float16)],
)
def test_other_bits_are_not_shared_as_another_dtype(given, dtype):
    with pytest.raises(nb.ConversionError, match="cannot be shared as another dtype"):
        nb.from_torch(torch.ones(3).to(given), dtype=dtype)


def test_what_sharing_cannot_do():
    with pytest.raises(nb.ConversionError, match="cannot be shared as another dtype"):
        nb.from_torch(torch.ones(3), dtype=nb.int32)
    with pytest.raises(nb.NumbridgeTypeError, match="requires_grad needs a floating or complex dtype"):
        nb.from_torch(torch.ones(3, dtype=torch.int32), requires_grad=True)
    for integers in (nb.zeros(3, int), nb.from_torch(torch.arange(3)), nb.zeros(3, nb.vec3i)):
        with pytest.raises(nb.NumbridgeTypeError, match="requires_grad needs a floating or complex dtype"):
            nb.to_torch(integers, requires_grad=True)
        assert not nb.to_torch(integers, requires_grad=False).requires_grad
    with pytest.raises(nb.BufferAccessError, match=r"requires_grad is True, and the memory must not be written.*clone"):
        nb.to_torch(nb.from_jax(jnp.ones(3)), requires_grad=True)
    with pytest.raises(nb.NumbridgeValueError, match="grad has shape"):
        nb.from_torch(torch.ones(3), grad=torch.ones(4))
    with pytest.raises(nb.NumbridgeTypeError, match=r"must be an nb\.Array"):
        nb.to_torch(torch.ones(3))
    with pytest.raises(nb.DeviceError, match="meta has no counterpart"):
        nb.device_from_torch("meta")
    with pytest.raises(nb.NumbridgeTypeError, match="torch_device is of type NoneType; it must be"):
        nb.device_from_torch(None)
    assert nb.device_from_torch("cuda:1") == "cuda:1"


MODES = {
    "fake": "from torch._subclasses import FakeTensorMode as mode",
    "inference": "from torch import inference_mode as mode",
    "meta": "mode = lambda: torch.device('meta')",
    "no_grad": "from torch import no_grad as mode",
}


@pytest.mark.parametrize("mode", MODES)
def test_the_first_tensor_may_come_in_any_mode(mode, run_python):
    printed = run_python(
        f"""
        import torch
        import numbridge as nb
        {MODES[mode]}

        def read(t):
            try:
                return nb.from_torch(t).list()
            except nb.BufferAccessError as error:
                return "refused"

        t = torch.ones(2)
        with mode():
            inside = torch.ones(2)
            print(read(t), read(inside), end=" ")
        print(read(inside), nb.explain(t).protocol)
        """,
        "-Wignore",
    )
    inside = "refused" if mode in ("fake", "meta") else "[1.0, 1.0]"
    assert printed == f"[1.0, 1.0] {inside} {inside} DLPack exchange table, after a look at the key set\n"


def test_the_first_tensor_may_come_inside_a_transform(run_python):
    printed = run_python(
        """
        import torch
        import numbridge as nb

        def inside(x):
            try:
                nb.from_torch(x)
            except nb.BufferAccessError as error:
                print("refused", end=" ")
            return x.sum()

        for transform in (torch.func.vmap, torch.func.grad, torch.func.functionalize):
            transform(inside)(torch.ones(3))
        print(nb.explain(torch.ones(3)).protocol)
        """,
        "-Wignore",
    )
    assert printed == "refused refused refused DLPack exchange table, after a look at the key set\n"


@native_only
def test_probing_that_fails_is_no_error(monkeypatch):
    monkeypatch.setattr(torch_bridge, "_keys", lambda tensor: 0)
    assert torch_bridge._probe() is None
    monkeypatch.setattr(torch_bridge, "_keys", lambda tensor: 1 // 0)
    torch_bridge._probed.cache_clear()
    assert torch_bridge._probed() is None
    made = torch_bridge.reader(torch.Tensor)
    assert made is not None and made.adapter is not None and made.function == 0
    torch_bridge._probed.cache_clear()


@native_only
def test_the_way_through_python_is_as_safe():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", __file__]
    selected = "odd or transform or layouts or writes or immutable or lent or descriptors"
    done = subprocess.run(
        [*command, "-k", f"({selected}) and not first"],
        env={**os.environ, FALLBACK: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rsplit(" passed", 1)[0].split()[-1]) > 35


@nb.kernel
def squared(x, y):
    i = nb.tid()
    y[i] = x[i] * x[i]


def test_a_gradient_that_is_given_is_added_to():
    t, gradient = torch.ones(3), torch.zeros(3)
    x = nb.from_torch(t, grad=gradient)
    assert x.requires_grad and not nb.from_torch(t, requires_grad=False, grad=gradient).requires_grad
    y = nb.zeros(3, device="cpu")
    with nb.Tape() as tape:
        nb.launch(squared, 3, [x, y])
    tape.backward(grads={y: [1.0, 2.0, 3.0]})
    assert gradient.tolist() == [2.0, 4.0, 6.0]


def in_two_threads(function):
    """Return what a function returned in each of two threads that call it at the same time."""
    gate = threading.Barrier(2)

    def call(_):
        gate.wait()
        return function()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(call, range(2)))


def test_threads_that_ask_for_a_gradient_at_once_get_the_same():
    for _ in range(20):
        a = nb.from_torch(torch.zeros(1 << 18, requires_grad=True))
        one, other = in_two_threads(lambda a=a: a.grad)
        assert one.ptr == other.ptr


def test_threads_that_convert_an_array_with_a_gradient_at_once_get_one_tensor():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for convert in (nb.to_torch, nb.to_paddle):
            for _ in range(50):
                a = nb.zeros(8, requires_grad=True)
                one, other = in_two_threads(lambda a=a, convert=convert: convert(a))
                assert one is other
    finally:
        sys.setswitchinterval(interval)
