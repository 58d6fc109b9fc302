"""Arrays on a real GPU: memory, copies, every protocol, every pair of frameworks."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

import numbridge as nb

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def of(framework, shape=(4, 6), dtype="float32"):
    values = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
    if framework == "numbridge":
        return nb.array(values, device="cuda")
    if framework == "cupy":
        import cupy

        return cupy.asarray(values)
    if framework == "torch":
        import torch

        return torch.from_numpy(values).cuda()
    import jax

    return jax.device_put(values, jax.devices("cuda")[0])


@pytest.fixture(autouse=True)
def wide_in_jax():
    """Let JAX have 64 bits, which it would narrow, and neither share nor give back; other files' tests go without."""
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def pointer(x):
    return nb.explain(x).ptr


def values_of(x):
    return nb.asarray(x).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("here", "there"), list(itertools.permutations(["numbridge", "cupy", "torch", "jax"], 2)))
def test_every_pair_shares_memory(here, there, dtype):
    x = of(here, dtype=dtype)
    if (here, there) == ("jax", "cupy"):
        # What may not be written is nothing that CuPy could say.
        with pytest.raises(nb.BufferAccessError, match="a read-only Array cannot be a CuPy array"):
            nb.convert(x, there)
        return
    y = nb.convert(x, there)
    assert pointer(y) == pointer(x)
    assert (values_of(y) == values_of(x)).all()
    assert values_of(y).dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_cross_to_torch_and_jax(dtype):
    a = nb.zeros((4, 4), dtype=getattr(nb, dtype), device="cuda").fill_(1)
    for name in ("torch", "jax"):
        x = nb.convert(a, name)
        assert pointer(x) == a.ptr
        assert (values_of(x).astype(np.float32) == 1).all()


def test_memory_comes_from_cupy_s_pool_and_goes_back():
    import cupy

    pool = cupy.get_default_memory_pool()
    gc.collect()  # what earlier tests left in cycles would go back meanwhile
    pool.free_all_blocks()
    before = pool.used_bytes()
    a = nb.zeros(1 << 20, device="cuda")
    assert pool.used_bytes() >= before + (4 << 20)
    address = a.ptr
    view = a[5:]
    del a
    assert pool.used_bytes() > before
    del view
    assert pool.used_bytes() == before
    assert nb.empty(1 << 20, device="cuda").ptr == address


def test_copies_between_host_pinned_and_device():
    values = np.arange(1000, dtype=np.float32)
    a = nb.array(values, device="cuda")
    assert (a.device, a.to("cpu").device) == ("cuda:0", "cpu")
    assert (a.numpy() == values).all()
    assert (a[::-2].numpy() == values[::-2]).all()
    pinned = nb.empty(1000, dtype=float, pinned=True)
    assert pinned.is_pinned
    nb.copy(pinned, a)
    nb.synchronize()
    assert (pinned.numpy() == values).all()
    assert (pinned.to("cuda").numpy() == values).all()
    assert (a.clone().numpy() == values).all()
    with pytest.raises(nb.DeviceError, match=r"array\.numpy\(\) copies"):
        np.asarray(a)


def test_filling_and_assigning():
    a = nb.full((3, 4), 7, dtype=nb.float64, device="cuda")
    a[1, ::2] = 5
    a[2] = np.arange(4)
    expected = np.full((3, 4), 7.0)
    expected[1, ::2] = 5
    expected[2] = np.arange(4)
    assert (a.numpy() == expected).all()
    a.assign(nb.ones((3, 4), dtype=nb.int32, device="cuda"))
    assert (a.numpy() == 1).all()
    a.zero_()
    assert (a.numpy() == 0).all()
    b = nb.zeros(4, dtype=nb.bfloat16, device="cuda").fill_(1.5)
    b[2] = 3
    assert b.numpy().astype(np.float32).tolist() == [1.5, 1.5, 3, 1.5]
    assert "1.5" in repr(b)


def test_others_read_ours():
    import cupy
    import torch

    a = nb.array(np.arange(12, dtype=np.float32).reshape(3, 4), device="cuda")
    assert cupy.asarray(a).data.ptr == a.ptr
    assert torch.as_tensor(a, device="cuda").data_ptr() == a.ptr
    assert torch.from_dlpack(a).data_ptr() == a.ptr
    assert cupy.from_dlpack(a).data.ptr == a.ptr
    assert cupy.asarray(a[1:, ::2]).get().tolist() == [[4, 6], [8, 10]]
    assert nb.from_dlpack(a.__dlpack__(dl_device=(1, 0), max_version=(1, 1))).list() == a.list()


def test_gradients_travel_with_torch_s_tensors():
    import torch

    t = torch.ones(5, device="cuda", requires_grad=True)
    a = nb.from_torch(t)
    assert a.requires_grad
    assert t.grad is None
    a.grad.fill_(3)
    assert t.grad.tolist() == [3] * 5


@nb.kernel
def write(x):
    i = nb.tid()
    x[i] = 1.0


def test_what_must_not_be_written_is_not():
    import torch

    for x in (
        of("jax", (6,)),
        torch.ones(6, device="cuda", requires_grad=True),
        torch.ones(1, device="cuda").expand(6),
    ):
        before = values_of(x).copy()
        with pytest.raises(nb.BufferAccessError, match="parameter 'x': the kernel writes to it"):
            nb.launch(write, 6, [x])
        assert (values_of(x) == before).all()
    negated = torch.zeros(3, dtype=torch.complex64, device="cuda").conj().imag
    with pytest.raises(nb.BufferAccessError, match="lazily negated"):
        nb.launch(write, 3, [negated])
    with pytest.raises(nb.DeviceError, match=r"x: cuda:0.*y: cpu"):
        nb.launch(add, 6, [torch.ones(6, device="cuda"), torch.ones(6)])


@nb.kernel
def add(x, y):
    i = nb.tid()
    y[i] = y[i] + x[i]


@pytest.mark.parametrize(
    "names", list(itertools.product(["cupy", "torch", "jax", "numbridge"], ["cupy", "torch", "numbridge"]))
)
def test_frameworks_mix_in_one_launch(names):
    x, y = (of(name, (6,)) for name in names)
    nb.launch(add, 6, [x, y])
    nb.synchronize()
    assert values_of(y).tolist() == [0, 2, 0, 2, 0, 2]
