"""DLPack in and out: both kinds of capsule, hand-made tensors, the exchange table, and what other libraries make of us."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading

import jax
import numpy as np
import paddle
import pytest
import torch
import tvm_ffi

import numbridge as nb
from numbridge.kernels.native import dlpack_layout as dl
from numbridge.kernels.readers import exchange_function
from numbridge.kernels.scalars import tag_of

MIB = 1 << 20
LEGACY, VERSIONED, USED = b"dltensor", b"dltensor_versioned", b"used_by_the_test"
api = ctypes.pythonapi
capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", api)
)
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
FLOAT32 = 2 | 32 << 8 | 1 << 16


def int64_at(address):
    return ctypes.c_int64.from_address(address).value


def name_of(capsule):
    return repr(capsule).split('"')[1]


def flags_of(capsule):
    return int64_at(capsule_pointer(capsule, VERSIONED) + dl.MANAGED_FLAGS)


def frozen(values):
    values.flags.writeable = False
    return values


class HandMade:
    """A producer in Python: a managed tensor of either kind whose every field the test chooses."""

    def __init__(
        self, *, tag=FLOAT32, shape=(4,), strides=None, byte_offset=0, device=(1, 0), flags=0, major=1, versioned=True
    ):
        self.memory = np.arange(64, dtype=np.float32)
        self.deleted = 0
        self.shape = np.array(shape, np.int64)
        self.strides = None if strides is None else np.array(strides, np.int64)
        self.block = np.zeros(dl.MANAGED_SIZE // 8, np.int64)
        self.deleter = DELETER(self.delete)
        self.name = VERSIONED if versioned else LEGACY
        start = dl.MANAGED_TENSOR if versioned else dl.LEGACY_TENSOR
        if versioned:
            self.put(dl.MANAGED_MAJOR, major | 3 << 32)
            self.put(dl.MANAGED_FLAGS, flags)
        self.put(
            dl.MANAGED_DELETER if versioned else dl.LEGACY_DELETER,
            ctypes.cast(self.deleter, ctypes.c_void_p).value,
        )
        self.put(start + dl.DATA, self.memory.ctypes.data)
        self.put(start + dl.DEVICE_TYPE, device[0] | device[1] << 32)
        self.put(start + dl.NDIM, len(shape) | tag << 32)
        self.put(start + dl.SHAPE, self.shape.ctypes.data)
        self.put(start + dl.STRIDES, 0 if strides is None else self.strides.ctypes.data)
        self.put(start + dl.BYTE_OFFSET, byte_offset)

    def put(self, offset, value):
        self.block[offset // 8] = value

    def delete(self, managed):
        assert managed == self.block.ctypes.data
        self.deleted += 1

    def capsule(self):
        return new_capsule(self.block.ctypes.data, self.name, None)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.capsule()

    def __dlpack_device__(self):
        return (1, 0)


@pytest.fixture(params=[False, True], ids=["legacy", "versioned"])
def versioned(request):
    return request.param


class TestCapsulesIn:
    def test_a_capsule_is_taken_over(self, versioned):
        made = HandMade(versioned=versioned, shape=(2, 3))
        capsule = made.capsule()
        a = nb.from_dlpack(capsule)
        assert name_of(capsule) == "used_" + made.name.decode()
        assert (a.shape, a.strides, a.dtype, a.ptr) == ((2, 3), (12, 4), nb.float32, made.memory.ctypes.data)
        view = a[1]
        del a, capsule
        assert made.deleted == 0
        assert view.list() == [3, 4, 5]
        del view
        assert made.deleted == 1

    def test_strides_and_byte_offset(self, versioned):
        made = HandMade(versioned=versioned, shape=(2, 3), strides=(8, -2), byte_offset=20)
        a = nb.from_dlpack(made.capsule())
        assert a.strides == (32, -8)
        assert a.ptr == made.memory.ctypes.data + 20
        assert a.list() == [[5, 3, 1], [13, 11, 9]]

    def test_byte_offset_through_the_protocol(self, versioned):
        made = HandMade(versioned=versioned, byte_offset=8)
        assert nb.from_dlpack(made).list() == [2, 3, 4, 5]
        assert nb.asarray(made).list() == [2, 3, 4, 5]
        gc.collect()
        assert made.deleted == 2

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,) * 16])
    def test_every_rank(self, shape, versioned):
        a = nb.from_dlpack(HandMade(versioned=versioned, shape=shape).capsule())
        assert a.shape == shape
        assert a.is_contiguous
        assert a.numpy().shape == shape

    def test_read_only(self):
        a = nb.from_dlpack(HandMade(flags=dl.FLAG_READ_ONLY).capsule())
        assert a.read_only
        with pytest.raises(nb.BufferAccessError, match="fill_ would write to a read-only Array"):
            a.fill_(1)

    def test_a_capsule_is_used_once(self, versioned):
        made = HandMade(versioned=versioned)
        capsule = made.capsule()
        first = nb.from_dlpack(capsule)
        with pytest.raises(
            nb.BufferAccessError, match="a capsule can be consumed once: ask the producer for a new one"
        ):
            nb.from_dlpack(capsule)
        assert first.list() == [0, 1, 2, 3]
        del first, capsule
        assert made.deleted == 1

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (
                {"tag": 2 | 32 << 8 | 4 << 16},
                r"\(code 2, 32 bits, 4 lanes\) has no counterpart; numbridge has bool, int8",
            ),
            ({"tag": 1 | 4 << 8 | 1 << 16}, r"\(code 1, 4 bits, 1 lanes\) has no counterpart"),
            ({"tag": 17 | 4 << 8 | 2 << 16}, r"\(code 17, 4 bits, 2 lanes\)"),
            ({"tag": 7 | 8 << 8 | 1 << 16}, r"\(code 7, 8 bits, 1 lanes\)"),
            ({"tag": 2 | 128 << 8 | 1 << 16}, r"\(code 2, 128 bits, 1 lanes\)"),
        ],
    )
    @pytest.mark.parametrize("through", [HandMade.capsule, lambda made: made], ids=["capsule", "object"])
    def test_unknown_data_types(self, fields, message, through, versioned):
        made = HandMade(versioned=versioned, **fields)
        with pytest.raises(nb.ConversionError, match=message):
            nb.from_dlpack(through(made))
        gc.collect()
        assert made.deleted >= 1

    @pytest.mark.parametrize(
        ("device", "message"),
        [
            ((2, 1), "from_dlpack of memory on cuda:1 needs CUDA"),
            ((10, 0), "lies on device type 10, and numbridge reads"),
        ],
    )
    def test_foreign_devices(self, device, message, versioned):
        made = HandMade(versioned=versioned, device=device)
        with pytest.raises(nb.DeviceError, match=message):
            nb.from_dlpack(made.capsule())
        gc.collect()
        assert made.deleted == 1

    def test_pinned_memory_is_host_memory(self, versioned):
        a = nb.from_dlpack(HandMade(versioned=versioned, device=(dl.CUDA_HOST, 0)).capsule())
        assert a.device == "cpu"
        assert a.list() == [0, 1, 2, 3]

    def test_a_future_major_version(self):
        made = HandMade(major=2)
        capsule = made.capsule()
        with pytest.raises(nb.BufferAccessError, match="major version 1"):
            nb.from_dlpack(capsule)
        assert name_of(capsule) == "dltensor_versioned"
        assert made.deleted == 0

    def test_other_capsules(self):
        with pytest.raises(nb.BufferAccessError, match="is no unused DLPack capsule"):
            nb.from_dlpack(nb.Array.__dlpack_c_exchange_api__)

    @pytest.mark.parametrize("how", [nb.from_dlpack, nb.asarray])
    @pytest.mark.parametrize("field", [{"memory": 0}, {"rank": -1}, {"shape": (1,) * 65}, {"shape": (4, -1)}])
    def test_tensors_that_cannot_be(self, versioned, field, how):
        made = HandMade(versioned=versioned, shape=field.get("shape", (4,)))
        start = dl.MANAGED_TENSOR if versioned else dl.LEGACY_TENSOR
        if "memory" in field:
            made.put(start + dl.DATA, 0)
        if "rank" in field:
            made.put(start + dl.NDIM, field["rank"] & 0xFFFFFFFF | FLOAT32 << 32)
        with pytest.raises(nb.BufferAccessError, match="of a tensor with memory and at most 64 dimensions"):
            how(made)
        assert made.deleted == 0

    @pytest.mark.parametrize("source", [3.0, [1.0], "x", None])
    def test_what_has_no_dlpack(self, source):
        with pytest.raises(nb.NumbridgeTypeError, match="has no __dlpack__ and is no DLPack capsule"):
            nb.from_dlpack(source)

    def test_a_dtype_is_checked(self):
        assert nb.from_dlpack(HandMade().capsule(), dtype=float).dtype == nb.float32
        with pytest.raises(nb.ConversionError, match=r"dtype is int32, and the data is float32.*\.view\(dtype\)"):
            nb.from_dlpack(HandMade().capsule(), dtype=int)

    def test_a_producer_that_refuses(self):
        class Refuses:
            def __dlpack__(self, **options):
                raise RuntimeError("not today")

        with pytest.raises(nb.BufferAccessError, match="Refuses cannot be read: RuntimeError: not today"):
            nb.from_dlpack(Refuses())

    def test_producers_of_every_framework(self):
        for x in (
            np.arange(3.0),
            torch.arange(3.0),
            paddle.arange(3.0),
            jax.numpy.arange(3.0),
            tvm_ffi.from_dlpack(np.ones(3)),
        ):
            a = nb.from_dlpack(x)
            np.testing.assert_array_equal(a.numpy(), np.from_dlpack(x))
            assert a.ptr == np.from_dlpack(x).ctypes.data


class TestCapsulesOut:
    def test_legacy(self, row, values):
        x = values(row)
        a = nb.from_numpy(x[::2])
        capsule = nb.to_dlpack(a)
        managed = capsule_pointer(capsule, LEGACY)
        assert int64_at(managed + dl.DATA) == x.ctypes.data
        assert int64_at(managed + dl.NDIM) == 2 | tag_of(row) << 32
        assert name_of(a.__dlpack__()) == name_of(a.__dlpack__(max_version=(0, 8))) == "dltensor"
        assert name_of(nb.to_dlpack(x)) == "dltensor"

    def test_versioned(self):
        a = nb.zeros(3)
        capsule = a.__dlpack__(max_version=(1, 3))
        assert name_of(capsule) == "dltensor_versioned"
        assert int64_at(capsule_pointer(capsule, VERSIONED)) & 0xFFFFFFFF == 1
        assert flags_of(capsule) == 0

    def test_read_only(self):
        a = nb.from_numpy(frozen(np.zeros(3)))
        assert flags_of(a.__dlpack__(max_version=(1, 0))) == dl.FLAG_READ_ONLY
        for refused in (lambda: nb.to_dlpack(a), a.__dlpack__):
            with pytest.raises(nb.BufferAccessError, match=r"cannot say that memory is read-only.*array\.clone\(\)"):
                refused()
        assert nb.from_dlpack(a.__dlpack__(copy=True)).writable

    def test_copies(self):
        a = nb.array([1.0, 2.0])[::-1]
        for options in ({}, {"max_version": (1, 0)}):
            b = nb.from_dlpack(a.__dlpack__(copy=True, **options))
            assert b.list() == [2, 1]
            assert b.ptr not in (a.ptr, a.ptr - 4)
            strided = nb.array([1.0, 2.0, 3.0])[::2]
            assert nb.from_dlpack(strided.__dlpack__(copy=False, **options)).ptr == strided.ptr
            # torch 2.13 ends the process where it is given such a tensor.
            for copy in (False, None):
                with pytest.raises(
                    nb.BufferAccessError, match=r"negative strides \(-4,\).*not all consumers.*clone\(\)"
                ):
                    a.__dlpack__(copy=copy, **options)
        with pytest.raises(nb.BufferAccessError, match="negative strides"):
            nb.to_dlpack(a)
        assert flags_of(a.__dlpack__(copy=True, max_version=(1, 0))) == dl.FLAG_COPIED

    def test_devices_and_streams(self):
        a = nb.zeros(2)
        assert a.__dlpack_device__() == (1, 0)
        assert nb.from_dlpack(a.__dlpack__(dl_device=(1, 0), stream=None)).ptr == a.ptr
        with pytest.raises(nb.BufferAccessError, match=r"dl_device is \(2, 0\), and the array lies on \(1, 0\)"):
            a.__dlpack__(dl_device=(2, 0))
        with pytest.raises(nb.BufferAccessError, match="stream is 1, and the CPU has none"):
            a.__dlpack__(stream=1)

    def test_an_unused_capsule_gives_everything_back(self):
        x = np.zeros(3)
        a = nb.from_numpy(x)
        counts = sys.getrefcount(x), sys.getrefcount(a._record)
        for _ in range(100):
            nb.to_dlpack(a)
            a.__dlpack__(max_version=(1, 0))
            a.__dlpack__(copy=True, max_version=(1, 0))
        assert (sys.getrefcount(x), sys.getrefcount(a._record)) == counts

    def test_a_deleter_runs_on_a_thread_that_python_does_not_know(self, versioned):
        """Called through `ctypes.CDLL`'s kind of function, which lets go of the GIL as a foreign consumer would."""
        x = np.zeros(3)
        count = sys.getrefcount(x)
        capsule = nb.from_numpy(x).__dlpack__(max_version=(1, 0) if versioned else None)
        name = VERSIONED if versioned else LEGACY
        managed = capsule_pointer(capsule, name)
        rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", api))
        rename(capsule, USED)
        del capsule
        assert sys.getrefcount(x) == count + 1
        deleter = DELETER(int64_at(managed + (dl.MANAGED_DELETER if versioned else dl.LEGACY_DELETER)))
        thread = threading.Thread(target=deleter, args=(managed,))
        thread.start()
        thread.join()
        assert sys.getrefcount(x) == count


class TestConsumers:
    @pytest.mark.parametrize(
        ("consume", "address"),
        [
            (np.from_dlpack, lambda x: x.ctypes.data),
            (torch.from_dlpack, torch.Tensor.data_ptr),
            (paddle.from_dlpack, lambda x: x.data_ptr()),
            (jax.dlpack.from_dlpack, lambda x: x.unsafe_buffer_pointer()),
            (tvm_ffi.from_dlpack, lambda x: x.data_ptr()),
            (torch.as_tensor, torch.Tensor.data_ptr),
        ],
        ids=["numpy", "torch", "paddle", "jax", "tvm_ffi", "torch.as_tensor"],
    )
    def test_others_share_our_memory(self, consume, address):
        a = nb.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        x = consume(a)
        assert address(x) == a.ptr
        assert tuple(x.shape) == (2, 3)
        expected = a.ptr
        del a
        gc.collect()
        assert nb.asarray(x).ptr == expected
        assert nb.asarray(x).list() == [[1, 2, 3], [4, 5, 6]]

    def test_integers_and_booleans_of_the_same_bits(self):
        x = np.array([True, False, True])
        for source in (x, nb.to_dlpack(nb.from_numpy(x))):
            a = nb.from_dlpack(source, dtype=nb.int8)
            assert (a.ptr, a.dtype, a.list()) == (x.ctypes.data, nb.int8, [1, 0, 1])

    @pytest.mark.parametrize("dtype", [nb.bfloat16, nb.float8_e4m3fn])
    def test_dtypes_that_numpy_lacks(self, dtype):
        a = nb.array([1.0, 2.0], dtype=dtype)
        assert torch.from_dlpack(a).float().tolist() == [1, 2]
        assert jax.dlpack.from_dlpack(a).tolist() == [1, 2]


class TestExchangeTable:
    def test_it_is_a_capsule_of_the_class(self):
        table = nb.Array.__dlpack_c_exchange_api__
        assert name_of(table) == dl.NAME_EXCHANGE
        assert nb.zeros(1).__dlpack_c_exchange_api__ is table
        address = capsule_pointer(table, dl.NAME_EXCHANGE.encode())
        assert int64_at(address) == dl.MAJOR_VERSION | dl.MINOR_VERSION << 32
        assert int64_at(address + dl.EXCHANGE_PREVIOUS) == 0

    def read(self, obj):
        function = exchange_function(nb.Array, dl.EXCHANGE_READ)
        call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(function)
        tensor = np.zeros(dl.DLTENSOR_SIZE // 8, np.int64)
        return call(obj, tensor.ctypes.data), tensor

    def test_reading(self):
        a = nb.zeros((2, 3), nb.int16)
        status, tensor = self.read(a)
        assert status == 0
        assert tensor[0] == a.ptr
        assert tensor[dl.NDIM // 8] == 2 | tag_of(nb.int16) << 32

    def test_reading_refuses_what_a_plain_tensor_cannot_say(self):
        with pytest.raises(BufferError, match="read-only Array cannot be read through a DLTensor"):
            self.read(nb.from_numpy(frozen(np.zeros(3))))

    def test_reading_refuses_other_objects(self):
        with pytest.raises(TypeError, match=r"this is not a numbridge\.Array"):
            self.read(np.zeros(3))

    def wrap(self, made):
        function = exchange_function(nb.Array, dl.EXCHANGE_TO_OBJECT)
        out = np.zeros(1, np.int64)
        call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(function)
        assert call(made.block.ctypes.data, out.ctypes.data) == 0
        a = ctypes.cast(int(out[0]), ctypes.py_object).value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(a))
        return a

    def test_wrapping(self):
        made = HandMade(shape=(2, 2), flags=dl.FLAG_READ_ONLY)
        a = self.wrap(made)
        assert isinstance(a, nb.Array)
        assert (a.list(), a.read_only, a.requires_grad) == ([[0, 1], [2, 3]], True, False)
        del a
        assert made.deleted == 1

    def test_wrapping_an_unknown_dtype(self):
        a = self.wrap(HandMade(tag=7 | 8 << 8 | 1 << 16))
        for use in (lambda: a.dtype, a.numpy, lambda: nb.to_numpy(a), a.clone):
            with pytest.raises(nb.ConversionError, match=r"\(code 7, 8 bits, 1 lanes\) has no counterpart"):
                use()

    def test_wrapping_foreign_memory(self):
        a = self.wrap(HandMade(device=(dl.CUDA, 1)))
        assert a.device == "cuda:1"
        assert a.__dlpack_device__() == (dl.CUDA, 1)
        assert "<at 0x" in repr(a)
        assert not hasattr(a, "__array_interface__")
        with pytest.raises(nb.DeviceError, match="NumPy cannot read memory on cuda:1; copy it to the host"):
            a.numpy()
        with pytest.raises(nb.DeviceError, match=r"lies on cuda:1, and NumPy's memory is the host's; array\.numpy\(\)"):
            nb.to_numpy(a)
        for use in (a.clone, lambda: a.fill_(1)):
            with pytest.raises(nb.DeviceError, match="missing here"):
                use()

    def test_allocating(self):
        function = exchange_function(nb.Array, dl.EXCHANGE_ALLOCATE)
        call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(function)
        _, prototype = self.read(nb.zeros((2, 3)))
        shape = np.array([2, 3], np.int64)
        prototype[dl.SHAPE // 8] = shape.ctypes.data
        out = ctypes.c_void_p()
        assert call(prototype.ctypes.data, ctypes.addressof(out), None, None) == 0
        a = nb.from_dlpack(new_capsule(out.value, VERSIONED, None))
        assert (a.shape, a.dtype, a.ptr % 64) == ((2, 3), nb.float32, 0)
        assert a.fill_(1).list() == [[1, 1, 1]] * 2

    def test_allocating_elsewhere_is_refused(self):
        function = exchange_function(nb.Array, dl.EXCHANGE_ALLOCATE)
        call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(function)
        said = []
        report = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)(
            lambda context, kind, message: said.append((kind, message))
        )
        _, prototype = self.read(nb.zeros(1))
        prototype[dl.DEVICE_TYPE // 8] = dl.CUDA
        out = ctypes.c_void_p()
        assert call(prototype.ctypes.data, ctypes.addressof(out), None, ctypes.cast(report, ctypes.c_void_p)) == -1
        assert said == [(b"NotImplementedError", b"numbridge allocates for others on the CPU")]

    def test_tvm_ffi_reads_arguments_natively(self):
        shape_of = tvm_ffi.convert(lambda x: (x.shape[0], x.ptr if isinstance(x, nb.Array) else x.data_ptr()))
        a = nb.zeros((5, 2))
        assert tuple(shape_of(a)) == (5, a.ptr)


class TestNothingGrows:
    @pytest.mark.parametrize(
        "work",
        [
            lambda x, a: nb.from_dlpack(x),
            lambda x, a: nb.to_dlpack(a),
            lambda x, a: nb.from_dlpack(nb.to_dlpack(a)),
            lambda x, a: nb.from_dlpack(a.__dlpack__(max_version=(1, 0))),
            lambda x, a: np.from_dlpack(a),
            lambda x, a: tvm_ffi.from_dlpack(a),
            lambda x, a: torch.from_dlpack(a),
        ],
        ids=["from_object", "unused", "legacy", "versioned", "numpy", "tvm_ffi", "torch"],
    )
    def test_over_many_rounds(self, work, growth):
        x = np.zeros(1000)
        a = nb.from_numpy(x)
        counts = sys.getrefcount(x), sys.getrefcount(a), sys.getrefcount(a._record)
        grown = growth(lambda: work(x, a))
        assert (sys.getrefcount(x), sys.getrefcount(a), sys.getrefcount(a._record)) == counts
        assert grown < 4 * MIB
