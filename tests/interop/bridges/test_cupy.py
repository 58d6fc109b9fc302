"""CuPy by its interface: dtypes translate; whatever needs a device says that CUDA is missing and how to get it."""

from __future__ import annotations

import types

import numpy as np
import pytest

import numbridge as nb
from numbridge.bridges import cupy_bridge
from numbridge.kernels.scalars import ALL

NEEDS_CUDA = {
    "from_cupy": lambda: nb.from_cupy(np.ones(3)),
    "to_cupy": lambda: nb.to_cupy(nb.zeros(3)),
    "convert": lambda: nb.convert(nb.zeros(3), "cupy"),
    "device_to_cupy": lambda: nb.device_to_cupy("cpu"),
    "stream_from_cupy": lambda: nb.stream_from_cupy(object()),
    "stream_to_cupy": nb.stream_to_cupy,
    "wrap_object": lambda: cupy_bridge.wrap_object(object()),
    "unwrap_array": lambda: cupy_bridge.unwrap_array(nb.zeros(3)),
}


@pytest.mark.parametrize("name", NEEDS_CUDA)
def test_what_needs_a_device_says_what_is_missing(name):
    with pytest.raises(nb.DeviceError, match=r"CUDA"):
        NEEDS_CUDA[name]()


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_dtypes_are_numpys(row):
    assert nb.dtype_to_cupy(row.numpy.type) == row.numpy
    assert nb.dtype_from_cupy(row.numpy) is row.numpy.type


def test_devices_have_ordinals():
    assert nb.device_from_cupy(types.SimpleNamespace(id=3)) == "cuda:3"


def test_cupy_has_no_gradients():
    assert not cupy_bridge.requires_grad_of(object()) and cupy_bridge.gradient_of(object(), create=True) is None
    assert cupy_bridge.set_gradient(object(), None) is None and cupy_bridge.reader(object) is None


def test_nothing_here_imports_cupy(run_python):
    printed = run_python(
        """
        import sys
        import numbridge as nb

        print(nb.dtype_to_cupy(nb.float32), "cupy" in sys.modules)
        """
    )
    assert printed == "float32 False\n"
