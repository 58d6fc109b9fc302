"""Arrays on CUDA devices, which are emulated: made, filled, assigned, copied and viewed as those on the CPU are.

Of CuPy, NumPy takes the place: what is tested is what numbridge asks of it.
"""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

import numbridge as nb
from emulated_cupy import emulated_devices
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import exchange_function
from numbridge.storage.memory import native

BFLOAT16 = ml_dtypes.bfloat16
GIVEN = np.arange(12, dtype=np.float32).reshape(3, 4)


def set_to(key, value, dtype=nb.float32):
    def work(place):
        a = nb.array(GIVEN, dtype=dtype, device=place)
        a[key] = value if not callable(value) else value(place)
        return a

    return work


def on(place, values):
    return nb.array(values, device=place)


WORK = {
    "zeros": lambda place: nb.zeros((2, 3), dtype=nb.int16, device=place),
    "ones": lambda place: nb.ones(5, dtype=nb.bfloat16, device=place),
    "full": lambda place: nb.full((2, 2), 2.5, device=place),
    "full of vectors": lambda place: nb.full(3, nb.vec3(1, 2, 3), dtype=nb.vec3, device=place),
    "a list": lambda place: nb.array([[1, 2], [3, 4]], device=place),
    "a NumPy array": lambda place: nb.array(GIVEN.T, device=place),
    "bfloat16": lambda place: nb.array(GIVEN.astype(BFLOAT16), device=place),
    "vectors": lambda place: nb.array(GIVEN[:, :3], dtype=nb.vec3, device=place),
    "another dtype": lambda place: nb.array(on(place, GIVEN), dtype=nb.int32, device=place),
    "a number into an element": set_to((1, 2), 7.0),
    "a number into a bfloat16": set_to((1, 2), 7.0, nb.bfloat16),
    "a number into a row": set_to(1, 7),
    "a number into all": set_to(..., True),
    "a number of NumPy's": set_to((0, 0), np.float64(3.5)),
    "an array of rank 0": set_to((0, 0), np.array(3.5)),
    "a list into a row": set_to(0, [4.0, 5.0, 6.0, 7.0]),
    "an array into columns": set_to((slice(None), slice(None, None, 2)), GIVEN[:, :2] + 20),
    "a row into all": set_to(..., GIVEN[2]),
    "an array of the device": set_to(1, lambda place: on(place, GIVEN[0] + 0.5)),
    "an array of the host": set_to(1, lambda place: nb.array(GIVEN[0] + 0.5, device="cpu")),
    "bfloat16 of the device": set_to(1, lambda place: on(place, GIVEN[0].astype(BFLOAT16))),
    "into bfloat16": set_to(1, lambda place: on(place, GIVEN[2]), nb.bfloat16),
    "a view reversed": lambda place: on(place, GIVEN)[::-1, 1:3],
    "a view of a view": lambda place: on(place, GIVEN)[1:][0, ::2],
    "an element": lambda place: on(place, GIVEN)[1, 1],
    "a reshaped view": lambda place: on(place, GIVEN).reshape((2, 6)),
    "bytes": lambda place: on(place, GIVEN).view(nb.uint32),
    "filled": lambda place: on(place, GIVEN).fill_(3),
    "zeroed in part": lambda place: (a := on(place, GIVEN), a[0].zero_())[0],
    "assigned": lambda place: on(place, GIVEN).assign(GIVEN + 1),
    "a clone of a view": lambda place: nb.clone(on(place, GIVEN)[:, 1]),
    "like another": lambda place: nb.zeros_like(on(place, GIVEN)),
    "empty": lambda place: nb.array(GIVEN[:0], device=place),
}


@pytest.fixture
def devices():
    with emulated_devices() as emulation:
        yield emulation


@pytest.mark.parametrize("work", WORK)
def test_arrays(devices, work):
    wanted = WORK[work]("cpu")
    found = WORK[work]("cuda:1")
    if wanted is None:
        assert found is None
        return
    assert found.device == nb.get_device("cuda:1") and found.dtype == wanted.dtype and found.shape == wanted.shape
    assert np.array_equal(found.numpy(), wanted.numpy()) and found.list() == wanted.list()
    assert found.is_contiguous == wanted.is_contiguous


def test_assigning_a_number_touches_one_element(devices):
    a = nb.zeros((3, 4), device="cuda")
    a[1, 2] = 5
    assert a.numpy().sum() == 5 and a[1, 2].numpy() == 5


def test_copies_between_host_and_devices(devices):
    host = nb.array(GIVEN, device="cpu")
    there = host.to("cuda:0")
    other = there[:, ::2].to("cuda:1")
    back = other.to("cpu")
    assert [a.device for a in (there, other, back)] == [nb.get_device(name) for name in ("cuda:0", "cuda:1", "cpu")]
    assert np.array_equal(back.numpy(), GIVEN[:, ::2])
    there[0, 0] = 9
    assert host[0, 0].numpy() == 0 and there.to("cuda:0") is there


def test_the_current_device_is_where_arrays_are_made(devices):
    assert nb.zeros(3).device == nb.get_device("cuda:0")
    with nb.ScopedDevice("cuda:1"):
        assert nb.array([1.0]).device == nb.get_device("cuda:1")
    with nb.ScopedDevice("cpu"):
        assert nb.zeros(3).device == nb.get_device("cpu")


def test_what_cannot_be_assigned_changes_nothing(devices):
    a = nb.array(GIVEN, device="cuda")
    for key, value in (((0, 9), 1.0), (0, GIVEN), ((slice(None), 1), [1.0, 2.0]), (0, "text")):
        with pytest.raises((nb.NumbridgeError, ValueError, TypeError, IndexError)):
            a[key] = value
    assert np.array_equal(a.numpy(), GIVEN)


def test_compiled_code_hands_on_only_what_is_in_order_with_the_consumer_s_stream(devices):
    """Another stream, or a framework that does not know its own, is for Python, which orders or refuses."""
    asked = []

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    def current(kind, ordinal, out):
        asked.append((kind, ordinal))
        ctypes.c_int64.from_address(out).value = stream
        return failed

    to_array = exchange_function(nb.Array, dl.EXCHANGE_TO_OBJECT)
    export = native().exporter(to_array, ctypes.cast(current, ctypes.c_void_p).value)
    there, (stream, failed) = on("cuda:1", GIVEN), (0, 0)
    found = export(there)
    assert (found.ptr, found.shape, found.device) == (there.ptr, there.shape, there.device) and asked == [(dl.CUDA, 1)]
    stream = 5
    assert export(there) is None
    stream, failed = 0, -1
    assert export(there) is None
    assert export(on("cpu", GIVEN)) is not None and len(asked) == 3
