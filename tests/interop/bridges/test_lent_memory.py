"""Read-only memory that a framework without a read-only flag got from us: kernels write it under none of its names."""

from __future__ import annotations

import gc

import jax.numpy as jnp
import numpy as np
import paddle
import pytest
import torch
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st

import numbridge as nb
from numbridge.kernels.native import table_layout as nb_layout
from numbridge.storage import leases
from numbridge.storage.memory import native


@nb.kernel
def fill(out):
    i = nb.tid()
    out[i] = 5.0


def from_jax_to_torch(x):
    return nb.to_torch(nb.from_jax(x))


NAMES = {
    "detached": lambda x: from_jax_to_torch(x).detach(),
    "data": lambda x: from_jax_to_torch(x).data,
    "numpy": lambda x: from_jax_to_torch(x).numpy(),
    "numpy of a slice": lambda x: from_jax_to_torch(x)[2:6].detach().numpy(),
    "array of that": lambda x: nb.from_numpy(from_jax_to_torch(x).numpy()),
    "buffer": lambda x: memoryview(from_jax_to_torch(x).numpy()),
    "parameter": lambda x: torch.nn.Parameter(from_jax_to_torch(x), requires_grad=False),
    "another class": lambda x: from_jax_to_torch(x).detach().as_subclass(torch.nn.Buffer),
    "torch to numpy": lambda x: np.from_dlpack(from_jax_to_torch(x).detach()),
    "paddle to torch": lambda x: torch.from_dlpack(nb.to_paddle(nb.from_jax(x))),
    "torch.from_dlpack": lambda x: torch.from_dlpack(nb.from_jax(x)),
    "torch.as_tensor": lambda x: torch.as_tensor(nb.from_jax(x)),
    "paddle.from_dlpack": lambda x: paddle.from_dlpack(nb.from_jax(x)),
    "tvm_ffi.from_dlpack": lambda x: tvm_ffi.from_dlpack(nb.from_jax(x)),
    "bfloat16": lambda x: from_jax_to_torch(x.astype(jnp.bfloat16)).detach().view(torch.int16),
}


class Producer:
    """An object that nothing but DLPack tells of, as a capsule does that is asked of it."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **how):
        return self.x.__dlpack__(**how)

    def __dlpack_device__(self):
        return 1, 0


class Slots:
    """An object with an array interface that cannot be watched by weak references."""

    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x

    @property
    def __array_interface__(self):
        return self.x.__array_interface__


class Bytes:
    """An object whose array interface names another object's buffer."""

    def __init__(self, x):
        self.__array_interface__ = {"version": 3, "shape": (4,), "typestr": "<f4", "data": x.base}


OWNERS = {
    "array": nb.from_numpy,
    "capsule": lambda x: nb.from_dlpack(x.__dlpack__(max_version=(1, 0))),
    "producer": lambda x: nb.asarray(Producer(x)),
    "slots": lambda x: nb.asarray(Slots(x)),
    "bytes": lambda x: nb.asarray(Bytes(x)),
    "slice of a capsule": lambda x: nb.from_dlpack(x.__dlpack__(max_version=(1, 0)))[::1],
}


@pytest.mark.parametrize("share", [torch.from_dlpack, paddle.from_dlpack], ids=["torch", "paddle"])
@pytest.mark.parametrize("name", OWNERS)
def test_read_only_memory_of_any_owner_is_not_written(name, share):
    gc.collect()
    before = set(leases._lent)
    x = np.frombuffer(bytes(16), np.float32)
    tensor = share(OWNERS[name](x))
    gc.collect()
    with pytest.raises(nb.BufferAccessError, match=r"parameter 'out'.*(immutable|read-only)"):
        nb.launch(fill, 4, [tensor])
    part = tensor[1:]
    del tensor
    gc.collect()
    assert not x.any() and nb.asarray(part).read_only
    del part
    gc.collect()
    if share is torch.from_dlpack:  # Paddle lets go of memory when it pleases
        assert set(leases._lent) == before


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_of_a_jax_array_is_not_written(name):
    x = jnp.arange(8, dtype=jnp.float32)
    held = NAMES[name](x)
    for _ in range(2):  # the second launch finds a compiled variant
        nb.launch(fill, 4, [nb.zeros(8)])
        with pytest.raises(nb.BufferAccessError, match=r"parameter 'out'.*(immutable|read-only)"):
            nb.launch(fill, 4, [held])
    assert np.asarray(x).tolist() == list(range(8))


@pytest.mark.parametrize("consumer", [torch, paddle, tvm_ffi], ids=lambda module: module.__name__)
def test_what_is_merely_read_only_may_be_written_under_its_own_name(consumer):
    gc.collect()
    before = set(leases._lent)
    x = np.zeros(8, np.float32)
    locked = x.view()
    locked.flags.writeable = False
    tensor = consumer.from_dlpack(nb.from_numpy(locked))
    with pytest.raises(nb.BufferAccessError, match=r"parameter 'out'.*read-only"):
        nb.launch(fill, 8, [tensor])
    assert not x.any()
    nb.launch(fill, 8, [x])
    assert x.tolist() == [5.0] * 8
    del tensor
    gc.collect()
    assert set(leases._lent) == before


@pytest.mark.parametrize("consumer", [torch, tvm_ffi], ids=lambda module: module.__name__)
def test_what_is_merely_read_only_may_be_written_under_any_name_once_nobody_has_it(consumer):
    x = np.zeros(8, np.float32)
    locked = x.view()
    locked.flags.writeable = False
    held = consumer.from_dlpack(nb.from_numpy(locked))
    part = nb.asarray(held)[2:]
    del held
    gc.collect()
    with pytest.raises(nb.BufferAccessError, match="read-only"):  # a name that cannot be told from the one that is lent
        nb.launch(fill, 8, [torch.from_numpy(x)])
    del part
    gc.collect()
    nb.launch(fill, 8, [torch.from_numpy(x)])
    assert x.tolist() == [5.0] * 8 and not nb.from_numpy(locked).writable


def test_memory_may_be_written_once_the_lease_has_ended():
    x = jnp.arange(8, dtype=jnp.float32)
    held = from_jax_to_torch(x).detach()
    assert nb.explain(held).writable is False
    held = held.clone()
    gc.collect()
    nb.launch(fill, 8, [held])
    assert held.tolist() == [5.0] * 8


def test_views_of_one_owner_share_their_leases():
    gc.collect()
    before = set(leases._lent)
    x = jnp.zeros((6, 4), jnp.float32)
    whole = nb.from_jax(x)
    held = [nb.to_torch(whole[row]) for row in (0, 2, 4, 2)]
    (added,) = (pieces for key, pieces in leases._lent.items() if key not in before)
    assert [behind - first for first, behind in added] == [16, 16, 16]
    held += [nb.to_torch(whole[1:4]), nb.to_torch(whole[:, 1:2])]
    assert [behind - first for first, behind in added] == [88]
    assert leases.is_lent(held[0].data_ptr())
    address = held[0].data_ptr()
    del held, whole, x, added
    gc.collect()
    assert set(leases._lent) == before
    assert not leases.is_lent(address)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.booleans(), st.integers(0, 60)), max_size=80))
def test_compiled_code_finds_every_lent_address(steps):
    """Pieces that overlap, repeat, and end in any order, against a plain list; all lie in memory of our own."""
    memory, lent = np.zeros(128, np.uint8), []
    base, compiled = memory.ctypes.data, native()
    for first, length, immutable, ended in steps:
        piece = first, first + length, nb_layout.READ_ONLY | (nb_layout.IMMUTABLE if immutable else 0)
        compiled.lend(base + piece[0], base + piece[1], piece[2])
        lent.append(piece)
        if ended < len(lent):
            gone = lent.pop(ended)
            compiled.end_lease(base + gone[0], base + gone[1], gone[2])
    try:
        for at in range(80):
            found = any(first <= at < behind and bits & nb_layout.IMMUTABLE for first, behind, bits in lent)
            assert leases.is_lent(base + at) == found
    finally:
        for first, behind, bits in lent:
            compiled.end_lease(base + first, base + behind, bits)
