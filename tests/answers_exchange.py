"""Programs whose answers by tvm-ffi are wrong: each returns what it answers."""

from __future__ import annotations

import numpy as np


def negative_bit_through_tvm_ffi():
    import torch
    import tvm_ffi

    x = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    identity = tvm_ffi.convert(lambda tensor: tensor)
    return np.from_dlpack(identity(x)).tolist()


def immutable_array_through_tvm_ffi():
    import jax.numpy as jnp
    import torch
    import tvm_ffi

    x = jnp.ones(3)
    torch.from_dlpack(tvm_ffi.from_dlpack(x))[:] = 7.0
    return x.tolist()
