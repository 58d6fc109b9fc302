"""Arrays to and from every framework: named conversions, DLPack in its three forms, array interfaces, dtypes and devices.

Whatever it goes through, the memory stays where it is.
"""

from __future__ import annotations

import jax
import numpy as np
import paddle
import torch

import numbridge as nb


def named_conversions() -> None:
    """`from_*` and `to_*` for each framework, and dtypes and devices beside them."""
    w = nb.array([1.0, 2.0, 3.0], dtype=float, device="cpu")
    t, p = nb.to_torch(w), nb.to_paddle(w)
    t += 1.0
    assert np.array_equal(w.numpy(), [2.0, 3.0, 4.0]) and p.tolist() == [2.0, 3.0, 4.0]
    assert nb.from_torch(t).ptr == nb.from_paddle(p).ptr == w.ptr
    assert nb.from_jax(jax.numpy.ones(3)).shape == (3,) and nb.to_jax(w).tolist() == [2.0, 3.0, 4.0]
    for name, dtype in (("numpy", np.dtype("float32")), ("torch", torch.float32), ("paddle", paddle.float32)):
        assert getattr(nb, f"dtype_to_{name}")(nb.float32) == dtype
        assert getattr(nb, f"dtype_from_{name}")(dtype) == nb.float32
    assert nb.device_from_torch(nb.device_to_torch("cpu")) == "cpu"
    assert nb.device_from_jax(nb.device_to_jax("cpu")) == "cpu"
    print("named conversions:", t.tolist())


def through_dlpack() -> None:
    """The consumer's `from_dlpack`, ours, and capsules, where no stream is waited for."""
    w = nb.array([1.0, 2.0, 3.0], dtype=float, device="cpu")
    consumers = {
        "numpy": np.from_dlpack,
        "torch": torch.utils.dlpack.from_dlpack,
        "paddle": paddle.utils.dlpack.from_dlpack,
        "jax": jax.dlpack.from_dlpack,
    }
    for name, consume in consumers.items():
        theirs = consume(w)
        assert nb.from_dlpack(theirs).ptr == w.ptr, name
    assert torch.utils.dlpack.from_dlpack(nb.to_dlpack(w)).data_ptr() == w.ptr
    t = torch.ones(3)
    assert nb.from_dlpack(torch.utils.dlpack.to_dlpack(t)).ptr == t.data_ptr()
    print("through DLPack:", ", ".join(consumers))


def through_array_interfaces() -> None:
    """Objects that have `__array_interface__` only, and arrays of numbridge's that NumPy reads."""
    w = nb.array([1.0, 2.0, 3.0], dtype=float, device="cpu")
    assert np.asarray(w).ctypes.data == w.ptr
    x = np.arange(3, dtype=np.float32)

    class Holder:
        __array_interface__ = x.__array_interface__

    assert nb.asarray(Holder()).ptr == x.ctypes.data
    print("through array interfaces:", np.array(w))


if __name__ == "__main__":
    named_conversions()
    through_dlpack()
    through_array_interfaces()
