"""JAX arrays: read-only views of concrete arrays, what is refused and why, and memory handed to JAX without a copy."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numbridge as nb
from numbridge.bridges import jax_bridge

DTYPES = [jnp.float32, jnp.int32, jnp.uint8, jnp.bool_, jnp.complex64, jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn]


@nb.kernel
def fill(out):
    i = nb.tid()
    out[i] = 5.0


@pytest.fixture
def wide():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("shape", [(7,), (2, 3), (), (0,), (0, 3)])
def test_arrays_are_read_only_views(dtype, shape):
    x = jnp.ones(shape, dtype)
    a = nb.from_jax(x)
    assert a.read_only and a.shape == shape and a.dtype == nb.dtype_from_jax(x.dtype)
    assert not a.size or a.ptr == x.unsafe_buffer_pointer()
    assert (a.numpy() == np.asarray(x)).all() and not a.numpy().flags.writeable
    assert not a.requires_grad and a.grad is None
    assert nb.to_jax(a) is x


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["buffer", "dlpack"])
def test_what_is_still_being_computed_is_waited_for(dtype):
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda i, y: (y @ y) * 0 + y + 1, x))
    zeros = jnp.zeros((300, 300), dtype)
    slow(zeros).block_until_ready()
    for _ in range(5):
        assert (nb.from_jax(slow(zeros)).numpy() == 30).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["buffer", "dlpack"])
def test_memory_outlives_deletion_and_donation(dtype):
    values = np.arange(200)
    deleted, donated = jnp.array(values, dtype), jnp.array(values, dtype)
    views = [nb.from_jax(deleted), nb.from_jax(donated)[:]]
    deleted.delete()
    jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(donated).block_until_ready()
    filler = [jnp.zeros(200, dtype).block_until_ready() for _ in range(50)]
    for view in views:
        assert (view.numpy().astype(np.int64) == values).all()
    again = nb.to_jax(views[0])
    assert not again.is_deleted() and again.unsafe_buffer_pointer() == views[0].ptr
    del views, deleted, donated
    gc.collect()
    assert (np.asarray(again).astype(np.int64) == values).all() and filler


def test_writes_are_refused_by_everything_of_ours():
    x = jnp.zeros(8)
    a = nb.from_jax(x)
    for argument in (x, a, a[2:], a.numpy()):
        with pytest.raises(nb.BufferAccessError, match=r"parameter 'out'.*(immutable|read-only)"):
            nb.launch(fill, 4, [], [argument])
    for write in (lambda: a.fill_(1), a.zero_, lambda: a.__setitem__(0, 1), lambda: a.assign(np.ones(8))):
        with pytest.raises(nb.BufferAccessError, match=r"read-only.*clone\(\)"):
            write()
    assert not np.asarray(x).any()


def test_arrays_without_memory_are_refused():
    gone = jnp.ones(4)
    gone.delete()
    with pytest.raises(nb.BufferAccessError, match=r"deleted or donated.*copy"):
        nb.from_jax(gone)
    with pytest.raises(nb.ConversionError, match=r"key<fry>.*key_data"):
        nb.from_jax(jax.random.key(0))
    with pytest.raises(nb.NumbridgeTypeError, match=r"must be a jax\.Array"):
        nb.from_jax(jax.ShapeDtypeStruct((3,), jnp.float32))
    with pytest.raises(nb.NumbridgeError, match=r"S4|no counterpart"):
        nb.from_jax(jnp.zeros(4, jnp.int4))
    with pytest.raises(nb.ConversionError, match="no counterpart; numbridge has bool"):
        nb.from_jax(jnp.zeros(4, jnp.float8_e4m3fnuz))


@pytest.mark.parametrize("dtype", ["int4", "float4_e2m1fn", "float8_e4m3fnuz"])
def test_dtypes_that_numbridge_does_not_have_are_named(dtype):
    with pytest.raises(
        nb.ConversionError, match=rf"a JAX array of dtype {dtype} has no counterpart; .*; use array.astype"
    ):
        nb.asarray(jnp.zeros(4, dtype))


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, jax.make_jaxpr], ids=lambda t: t.__name__)
def test_tracers_are_explained(transform):
    seen = []

    def inside(x):
        for read in (nb.from_jax, nb.asarray, nb.explain, lambda t: nb.launch(fill, 1, [], [t])):
            with pytest.raises(
                nb.NumbridgeError,
                match=r"tracer.*inside jax\.jit or another transform; .*nb\.jax_kernel\(kernel\).*concrete arrays",
            ):
                read(x)
            seen.append(True)
        return x.sum()

    transform(inside)(jnp.ones(3))
    assert len(seen) == 4


def test_arrays_on_several_devices(run_python):
    printed = run_python(
        """
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        import numbridge as nb

        mesh = Mesh(np.array(jax.devices()), ("x",))
        for spec in (PartitionSpec("x"), PartitionSpec()):
            x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, spec))
            try:
                nb.from_jax(x)
            except nb.BufferAccessError as error:
                print("2 devices" in str(error), "addressable_shards" in str(error))
            print(nb.from_jax(x.addressable_shards[1].data).list()[-2:])
        print(nb.from_jax(jax.device_put(jnp.arange(3.0), jax.devices()[1])).list())
        """
    )
    assert printed == "True True\n[6.0, 7.0]\nTrue True\n[6.0, 7.0]\n[0.0, 1.0, 2.0]\n"


@pytest.mark.parametrize("name", ["float32", "int8", "uint16", "bool", "complex64", "bfloat16", "float8_e5m2"])
def test_memory_is_handed_over_without_a_copy(name):
    a = nb.zeros((3, 4), dtype=name)
    x = nb.to_jax(a)
    assert isinstance(x, jax.Array) and x.shape == (3, 4) and x.unsafe_buffer_pointer() == a.ptr
    a = nb.ones(64)
    x = nb.to_jax(a)
    del a
    gc.collect()
    filler = [nb.zeros(64) for _ in range(50)]
    assert (x == 1).all() and filler


def test_what_jax_would_copy_is_refused():
    a = nb.zeros((4, 16))
    for view in (a[:, ::2], a.T, a[::-1], nb.from_numpy(np.broadcast_to(np.float32(1), (4, 4)))):
        with pytest.raises(nb.BufferAccessError, match=r"C-contiguous.*strides.*contiguous\(\) copies"):
            nb.to_jax(view)
    with pytest.raises(nb.BufferAccessError, match=r"aligned to 64 bytes.*clone\(\) copies"):
        nb.to_jax(a.reshape(64)[1:])
    assert nb.to_jax(a[1:]).unsafe_buffer_pointer() == a[1:].ptr
    assert nb.to_jax(a.T.contiguous()).shape == (16, 4) and nb.to_jax(a.reshape(64)[1:].clone()).shape == (63,)


@pytest.mark.parametrize("name", ["int64", "uint64", "float64", "complex128"])
def test_what_jax_would_narrow_is_refused(name):
    a = nb.zeros(8, dtype=name)
    for _ in range(2):
        with pytest.raises(nb.ConversionError, match=f"narrow {name}; .*jax_enable_x64"):
            nb.to_jax(a)


def test_wide_dtypes_where_jax_has_them(wide):
    for name in ("int64", "uint64", "float64", "complex128"):
        a = nb.zeros(8, dtype=name)
        x = nb.to_jax(a)
        assert x.dtype == name and x.unsafe_buffer_pointer() == a.ptr and nb.from_jax(x).ptr == a.ptr


def test_an_empty_array_proves_nothing_about_sharing(monkeypatch):
    monkeypatch.setattr(jax_bridge, "_shared", set())
    jax_bridge._never_narrowed.clear()
    assert nb.to_jax(nb.zeros((0, 3))).shape == (0, 3)
    assert not jax_bridge._shared
    nb.to_jax(nb.zeros(3))
    assert len(jax_bridge._shared) == 1

    class Copying:
        def unsafe_buffer_pointer(self):
            return 0

    monkeypatch.setattr(jax_bridge, "_importer", lambda: lambda export: Copying())
    with pytest.raises(nb.BufferAccessError, match="copies memory of dtype int8"):
        nb.to_jax(nb.zeros(3, dtype=nb.int8))


def test_what_needs_a_thought_is_not_exported_without_one():
    a = nb.zeros((4, 16))
    nb.to_jax(a)
    export = jax_bridge._export_aligned()
    assert "dltensor" in repr(export(a)) and "dltensor" in repr(export(a[2:]))
    frozen = np.zeros(16, np.float32)
    frozen.setflags(write=False)
    wide, vectors = nb.zeros(4, dtype=nb.float64), nb.zeros(4, dtype=nb.vec3)
    for other in (a[:, 1:], a[:, 3], nb.from_numpy(frozen), wide, vectors, nb.from_jax(nb.to_jax(a)), a.numpy(), None):
        assert export(other) is None
    moved = nb.zeros(64)[1:17]
    assert export(moved) is None
    with pytest.raises(nb.BufferAccessError, match="aligned to 64 bytes"):
        nb.to_jax(moved)


def test_jax_is_imported_when_it_is_first_needed(run_python):
    printed = run_python(
        """
        import sys
        import numpy as np
        import numbridge as nb

        a = nb.from_numpy(nb.zeros(16).numpy())
        print("jax" in sys.modules, nb.to_jax(a).shape)
        """
    )
    assert printed == "False (16,)\n"


def test_dtypes_and_devices():
    assert nb.dtype_from_jax(jnp.bfloat16) is nb.bfloat16 and nb.dtype_to_jax(nb.float32) is jnp.float32
    with pytest.raises(nb.ConversionError, match="not a scalar type"):
        nb.dtype_from_jax("float7")
    assert nb.device_to_jax("cpu").platform == "cpu" and nb.device_from_jax(jax.devices("cpu")[0]) == "cpu"
    gpu = {"platform": "gpu", "local_hardware_id": 1}
    assert nb.device_from_jax(SimpleNamespace(**gpu)) == "cuda:1"
    for device, text in (
        (SimpleNamespace(platform="tpu"), "has no counterpart; numbridge has 'cpu' and 'cuda'"),
        (SimpleNamespace(**gpu | {"local_hardware_id": None}), "belongs to another process"),
    ):
        with pytest.raises(nb.DeviceError, match=text):
            nb.device_from_jax(device)
    with pytest.raises(nb.NumbridgeTypeError, match=r"jax_device is of type str; .* such as jax.devices\(\)\[0\]"):
        nb.device_from_jax("cpu")
    with pytest.raises(nb.ConversionError, match="cannot be shared as another dtype"):
        nb.from_jax(jnp.ones(3), dtype=nb.int32)
    unsigned = nb.from_jax(jnp.arange(3), dtype=nb.uint32)
    assert unsigned.list() == [0, 1, 2] and unsigned.read_only
    with pytest.raises(nb.BufferAccessError, match="read-only"):
        unsigned.fill_(1)
    with pytest.raises(nb.NumbridgeTypeError, match=r"must be an nb\.Array"):
        nb.to_jax(jnp.ones(3))


def test_no_reference_is_kept():
    x = jnp.ones((16,), jnp.bfloat16)
    before = sys.getrefcount(x)
    for _ in range(500):
        nb.from_jax(x)
        nb.to_jax(nb.from_jax(x))
    gc.collect()
    assert sys.getrefcount(x) == before
