"""CUDA memory in and out by every protocol, against a recording driver; CuPy's arrays stand for made-up memory.

What moves or fills memory needs a GPU: see tests/gpu.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

import numbridge as nb
from fake_cuda import CONTEXTS, cuda_array, fake_cuda, parameter_kinds
from numbridge.bridges import cupy_bridge, jax_bridge
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.machine import machine
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import describe, reader_of
from numbridge.storage import cupy_memory
from numbridge.storage.memory import wrap

X = 0x7000_0000


@pytest.fixture
def driver():
    with fake_cuda() as fake:
        yield fake


@pytest.fixture
def stream(driver):
    """The current stream of our own arrays: 0x90 on device 0, 0x91 on device 1."""
    function = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(lambda ordinal: 0x90 + ordinal)
    driver.follow(ctypes.cast(function, ctypes.c_void_p).value)
    return function


def ours(shape=(10,), dtype=np.float32, **options):
    return wrap(cuda_array(shape, dtype, **options))


def cupy_array(shape, dtype="float32", ordinal=0, offset=0):
    memory = cupy.cuda.UnownedMemory(X, 1 << 24, None, ordinal)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, offset))


@nb.kernel
def add(x, y):
    i = nb.tid()
    y[i] = y[i] + x[i]


def ordered(driver):
    """Return the pairs (first, second) of streams that were ordered, in order."""
    records = [c for c in driver.calls if c[0] in ("record", "wait")]
    assert [c[0] for c in records] == ["record", "wait"] * (len(records) // 2)
    return [(r[2], w[1]) for r, w in zip(records[::2], records[1::2], strict=True)]


# The array interface


def test_the_array_interface_out(stream):
    a = ours((2, 3), np.float64, strides=(5, 1), flags=dl.FLAG_READ_ONLY)
    assert a.__cuda_array_interface__ == {
        "version": 3,
        "typestr": "<f8",
        "shape": (2, 3),
        "strides": (40, 8),
        "data": (X, True),
        "stream": 0x90,
    }
    assert ours((2, 3)).__cuda_array_interface__["strides"] is None
    assert ours((0,)).__cuda_array_interface__["data"] == (0, False)
    assert not hasattr(a, "__array_interface__")
    assert not hasattr(ours(dtype=nb.bfloat16), "__cuda_array_interface__")
    assert not hasattr(nb.zeros(3, device="cpu"), "__cuda_array_interface__")


def test_the_default_stream_is_spelled_1(driver):
    assert ours().__cuda_array_interface__["stream"] == 1


def producer(**changes):
    interface = {"version": 3, "typestr": "<f4", "shape": (10,), "data": (X, False), "strides": None}
    return SimpleNamespace(__cuda_array_interface__={**interface, **changes})


class Producer:
    def __init__(self, **changes):
        self.__cuda_array_interface__ = producer(**changes).__cuda_array_interface__


def test_an_array_interface_in_is_honoured_by_its_stream(driver):
    nb.launch(add, 10, [Producer(stream=0x55), Producer(stream=0x55)])
    nb.launch(add, 10, [Producer(stream=2), ours(stream=0x66)])
    nb.launch(add, 10, [Producer(stream=1), Producer()])
    assert [d.stream for d in driver.launches] == [0x55, 2, 0]
    assert ordered(driver) == [(0x66, 2), (2, 0x66)]


def test_a_mapped_pointer_names_its_device(driver):
    nb.launch(add, 10, [Producer(data=((1 << 40) + 64, False)), Producer(data=((1 << 40) + 128, False))])
    assert driver.launches[-1].context == CONTEXTS + 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stream": 0}, "the stream 0 in its __cuda_array_interface__; it must be None or a positive int"),
        ({"stream": "x"}, "the stream 'x'"),
        ({"mask": np.ones(10)}, "has a mask"),
        ({"data": (X, True)}, "parameter 'y': the kernel writes to it.*read-only"),
        ({"strides": (6,)}, r"strides \(6,\) bytes"),
    ],
)
def test_array_interfaces_that_are_refused(driver, changes, text):
    with pytest.raises((nb.BufferAccessError, nb.ConversionError), match=text):
        nb.launch(add, 10, [Producer(), Producer(**changes)])
    assert driver.launches == []


def test_without_cuda_an_array_interface_says_what_is_missing():
    with pytest.raises(nb.DeviceError, match="which has __cuda_array_interface__, needs CUDA; missing here"):
        nb.launch(add, 10, [Producer(), Producer()])


# DLPack


@pytest.mark.parametrize(("given", "waits"), [(None, 0), (1, 0), (2, 2), (0x77, 0x77)])
def test_dlpack_out_makes_the_consumer_s_stream_wait(driver, stream, given, waits):
    a = ours()
    assert a.__dlpack_device__() == (dl.CUDA, 0)
    capsule = a.__dlpack__(stream=given, max_version=(1, 1))
    assert ordered(driver) == [(0x90, waits)]
    assert nb.from_dlpack(capsule).ptr == X
    assert driver.stack == []


def test_dlpack_out_without_order(driver, stream):
    ours().__dlpack__(stream=-1)
    ours().__dlpack__(stream=0x90)
    assert not driver.calls


class Tensor:
    """A DLPack producer that notes how it was asked."""

    def __init__(self, array):
        self.array, self.asked = array, []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        self.asked.append(options)
        return self.array.__dlpack__(stream=-1, max_version=options["max_version"])


def test_dlpack_in_names_the_current_stream(driver, stream):
    tensor = Tensor(ours(ordinal=1))
    assert nb.from_dlpack(tensor).device == "cuda:1"
    assert tensor.asked[0]["stream"] == 0x91
    host = Tensor(nb.zeros(3, device="cpu"))
    nb.from_dlpack(host)
    assert "stream" not in host.asked[0]


def test_dlpack_in_names_the_default_stream_as_1(driver):
    tensor = Tensor(ours())
    nb.from_dlpack(tensor)
    assert tensor.asked[0]["stream"] == 1


def test_page_locked_memory_is_kept_while_a_device_copies(driver):
    plain, locked = np.zeros(10), np.zeros(10)
    driver.page_locked.add(locked.ctypes.data)
    before = sys.getrefcount(plain), sys.getrefcount(locked)
    cuda_driver.devices().prepare(0)
    cupy_memory._keep_while_copied(plain, nb.get_device("cuda:0"))
    cupy_memory._keep_while_copied(locked, nb.get_device("cuda:0"))
    ((_, event, stream),) = [call for call in driver.calls if call[0] == "keep"]
    assert stream == 0
    assert (sys.getrefcount(plain), sys.getrefcount(locked)) == (before[0], before[1] + 1)
    cuda_driver.devices().release()
    assert sys.getrefcount(locked) == before[1] + 1
    driver.done.add(event)
    cuda_driver.devices().release()
    assert sys.getrefcount(locked) == before[1]


def test_compiled_code_and_python_order_with_events_of_their_own(driver):
    """Python may be interrupted between recording an event and waiting for it, by a launch in another thread."""
    nb.launch(add, 10, [cuda_array((10,), stream=0x70), cuda_array((10,), stream=0x71)])
    (launched,) = {call[1] for call in driver.calls if call[0] == "record"}
    del driver.calls[:]
    cuda_driver.devices().order(0, 0x70, 0x71)
    assert launched not in {call[1] for call in driver.calls if call[0] == "record"}


def test_xla_s_memory_is_held_until_the_stream_that_reads_it_is_done(driver):
    class Memory:
        pass

    memory = Memory()
    alive = weakref.ref(memory)
    held = jax_bridge._HeldOnCuda(memory, 1, 0x55)
    del memory, held
    gc.collect()
    ((_, event, stream),) = [call for call in driver.calls if call[0] == "keep"]
    assert stream == 0x55 and alive() is not None
    driver.done.add(event)
    cuda_driver.devices().release()
    assert alive() is None


def test_what_is_let_go_of_may_want_something_else_kept(driver):
    class Chain:
        def __init__(self, following):
            self.following = following

        def __del__(self):
            cuda_driver.devices().keep(0, 0x66, self.following)

    devices, last = cuda_driver.devices(), Chain(None)
    alive = weakref.ref(last)
    devices.prepare(0)
    devices.keep(0, 0x66, Chain(last))
    del last
    driver.done.update(range(0xE000, 0xF000))
    while alive() is not None:
        devices.release()
    devices.release()
    assert devices._kept == []


def test_pinned_and_managed_memory(driver):
    host = np.zeros(10, np.float32)
    pinned = wrap(machine().new_record(host, host.ctypes.data, 0x12002, dl.CUDA_HOST, 0, (10,), None, 0))
    assert (pinned.device, pinned.is_pinned, pinned.__dlpack_device__()) == ("cpu", True, (dl.CUDA_HOST, 0))
    assert pinned[2:].__dlpack_device__() == (dl.CUDA_HOST, 0)
    nb.launch(add, 10, [np.ones(10, np.float32), pinned])
    assert host.tolist() == [1.0] * 10
    again = nb.from_dlpack(pinned.__dlpack__(max_version=(1, 1)))
    assert (again.is_pinned, again.ptr) == (True, pinned.ptr)
    plain = nb.from_dlpack(pinned.__dlpack__(max_version=(1, 1), dl_device=(dl.CPU, 0)))
    assert (plain.is_pinned, plain.ptr) == (False, pinned.ptr)
    managed = ours(device=dl.CUDA_MANAGED)
    assert (managed.device, managed.__dlpack_device__()) == ("cuda:0", (dl.CUDA_MANAGED, 0))


def test_copies_to_devices_that_do_not_exist_are_refused(driver):
    with pytest.raises(nb.BufferAccessError, match=r"dl_device is \(2, 7\).*numbridge copies to cpu, cuda:0, cuda:1"):
        ours().__dlpack__(dl_device=(dl.CUDA, 7))
    with pytest.raises(nb.BufferAccessError, match="copy=False forbids the copy"):
        ours().__dlpack__(dl_device=(dl.CPU, 0), copy=False)


def test_numpy_does_not_copy_from_a_device_unasked(driver):
    with pytest.raises(nb.DeviceError, match=r"this array lies on cuda:0.*array\.numpy\(\) copies"):
        np.asarray(ours())
    with pytest.raises(nb.DeviceError, match=r"array\.numpy\(\) copies it"):
        nb.to_numpy(ours())
    with pytest.raises(nb.BufferAccessError, match=r"data lies on cuda:0, and device is 'cpu'; drop copy=False"):
        nb.array(ours(), copy=False, device="cpu")


# CuPy


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"])
def test_compiled_code_reads_cupy_s_arrays(driver, dtype):
    base = cupy_array((4, 5, 6), dtype, ordinal=1, offset=64)
    assert reader_of(base).protocol == "CuPy's array structure"
    for x in (base, base[::2, 1:, ::-1], base.T, base[1, 2, 3], base[:, None], base[:0], cupy_array((), dtype)):
        found = describe(x)
        assert (found.data, found.shape, found.strides) == (x.data.ptr, x.shape, x.strides)
        assert (found.scalar.numpy, found.device_id, found.device_type) == (x.dtype, x.data.device_id, dl.CUDA)


def test_cupy_s_arrays_go_straight_into_a_kernel(driver):
    x, y = cupy_array((10,)), cupy_array((10,), offset=1024)
    nb.launch(add, 10, [x, y])
    values = driver.launches[-1].values(parameter_kinds([1, 1], [], 1))
    assert values == [0, 0, 10, 4, X, 10, 4, 0, 0, 10, 4, X + 1024, 10, 4, 10]
    assert ordered(driver) == []


def test_cupy_s_arrays_without_known_fields_go_through_python(driver, monkeypatch):
    monkeypatch.setattr(cupy_bridge, "_fields", lambda: None)

    class Other(cupy.ndarray):
        pass

    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(X, 1 << 20, None, 1), 0)
    x = Other((3, 4), "float64", memory)
    assert reader_of(x).protocol == "CuPy's memory pointer"
    found = describe(x)
    assert (found.data, found.shape, found.strides, found.device_id) == (X, (3, 4), (32, 8), 1)


def test_from_cupy_and_back(driver, stream):
    x = cupy_array((3, 4), "float64", ordinal=1)
    a = nb.from_cupy(x)
    assert (a.ptr, a.shape, a.dtype, a.device) == (X, (3, 4), nb.float64, "cuda:1")
    assert nb.to_cupy(a) is x
    view = nb.to_cupy(a[1:, ::2])
    assert (view.data.ptr, view.shape, view.strides) == (X + 32, (2, 2), (32, 16))
    assert view.data.device_id == 1
    with pytest.raises(nb.ConversionError, match="which cannot be shared as another dtype"):
        nb.from_cupy(x, dtype=nb.float32)
    with pytest.raises(nb.NumbridgeTypeError, match=r"x is of type ndarray; it must be a cupy\.ndarray"):
        nb.from_cupy(np.zeros(3))


def test_to_cupy_waits_for_a_producer_s_stream(driver, stream):
    made = nb.to_cupy(ours((4,)))
    assert made.data.ptr == X
    assert ordered(driver) == []
    owner = Producer(shape=(4,), stream=0x55)
    made = nb.to_cupy(nb.asarray(owner))
    assert ordered(driver) == [(0x55, 0x90)]


def test_to_cupy_refuses(driver):
    with pytest.raises(nb.BufferAccessError, match=r"read-only Array cannot be a CuPy array.*array\.clone\(\)"):
        nb.to_cupy(ours(flags=dl.FLAG_READ_ONLY))
    with pytest.raises(nb.ConversionError, match=r"CuPy has no dtype bfloat16; array\.view\('uint16'\)"):
        nb.to_cupy(ours(dtype=nb.bfloat16))
    with pytest.raises(nb.DeviceError, match=r"this one on cpu; array\.to\('cuda'\) copies"):
        nb.to_cupy(nb.zeros(3, device="cpu"))


def test_negative_strides_keep_the_memory_below(driver):
    view = nb.to_cupy(nb.from_cupy(cupy_array((10,)))[::-1])
    assert (view.data.ptr, view.strides) == (X + 36, (-4,))
    assert view.data.mem.ptr == X


# The exchange table


def test_others_learn_our_stream_from_the_exchange_table(driver, stream):
    from numbridge.kernels.readers import exchange_function

    out = ctypes.c_void_p(1)
    ask = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(
        exchange_function(nb.Array, dl.EXCHANGE_STREAM)
    )
    assert (ask(dl.CUDA, 1, ctypes.addressof(out)), out.value) == (0, 0x91)
    assert (ask(dl.CPU, 0, ctypes.addressof(out)), out.value) == (0, None)


def test_views_and_facts(driver):
    a = ours((4, 6))
    assert a[1, ::2].ptr == X + 24
    assert a.T.shape == (6, 4)
    assert (a.device, a.is_contiguous, a.T.is_contiguous) == ("cuda:0", True, False)
    assert a.to("cuda:0") is a
    at = nb.array(ptr=X, shape=(3,), dtype=float, device="cuda:1")
    assert (at.device, at.ptr) == ("cuda:1", X)
