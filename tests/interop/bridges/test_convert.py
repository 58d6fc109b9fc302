"""asarray, convert and explain: named frameworks, what is shared, and what is said of it."""

from __future__ import annotations

import array

import numpy as np
import pytest

import numbridge as nb
from numbridge.bridges.bridge import bridge_for_type, bridge_named


class Interface:
    """A producer with an array interface and nothing else."""

    def __init__(self, **fields):
        self.memory = np.arange(4, dtype=np.float32)
        own = {"version": 3, "typestr": "<f4", "shape": (4,), "data": (self.memory.ctypes.data, False)}
        self.__array_interface__ = {**own, **fields}


class Unwilling:
    """An object whose attributes raise what no protocol expects."""

    def __getattr__(self, name):
        raise RuntimeError(f"there is no {name}")


class OnlyArray:
    """A producer with ``__array__`` and nothing else."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(3.0)


class TestAsarray:
    def test_arrays_are_themselves(self):
        a = nb.zeros(2)
        assert nb.asarray(a) is a
        assert nb.asarray(a, dtype=float) is a

    @pytest.mark.parametrize("make", [lambda x: x, memoryview, lambda x: x.reshape(2, 2)[:, 1]])
    def test_memory_is_shared(self, make):
        x = np.arange(4.0)
        a = nb.asarray(make(x))
        a.fill_(7)
        assert 7 in x

    def test_buffers(self):
        x = array.array("f", [1, 2, 3])
        a = nb.asarray(x)
        a[0] = 9
        assert x[0] == 9
        assert nb.asarray(b"ab").read_only
        assert nb.asarray(b"ab").list() == [97, 98]

    def test_lists_are_copied(self):
        assert nb.asarray([[1, 2]], dtype=nb.int8).dtype == nb.int8
        assert nb.asarray(2.5).list() == 2.5

    def test_nothing_is_converted(self):
        with pytest.raises(nb.ConversionError, match=r"dtype is int32, and the data is float64"):
            nb.asarray(np.zeros(2), dtype=int)

    def test_array_interfaces_of_little_memory(self):
        assert nb.asarray(Interface(data=(0, False), shape=(0, 3))).shape == (0, 3)
        values = np.arange(4, dtype=np.float32)
        assert nb.asarray(Interface(data=values.tobytes(), shape=(2,), strides=(-8,), offset=12)).list() == [3, 1]
        assert nb.asarray(Interface(data=values[:1].tobytes(), shape=())).list() == 0

    def test_array_interface(self):
        x = Interface()
        assert nb.asarray(x).ptr == x.memory.ctypes.data
        assert nb.asarray(Interface(shape=(2,), strides=(8,))).list() == [0, 2]
        assert nb.asarray(Interface(data=(x.memory.ctypes.data, True))).read_only

    def test_what_is_only_a_copy_is_read_only(self):
        assert nb.asarray(OnlyArray()).list() == [0, 1, 2]
        assert nb.asarray(OnlyArray()).read_only

    def test_an_interface_that_raises(self):
        class Failing:
            @property
            def __array_interface__(self):
                raise ZeroDivisionError("not today")

        with pytest.raises(nb.BufferAccessError, match="Failing cannot be read: ZeroDivisionError: not today"):
            nb.asarray(Failing())

    @pytest.mark.parametrize(
        ("shape", "element", "message"),
        [
            ((4, 4), nb.mat22, r"mat22.*shape \(4, 4\); reshape it so that its last dimensions are an element's"),
            ((6,), nb.vec3, r"vec3.*shape \(6,\); reshape it so that its last dimension is an element's"),
        ],
    )
    def test_components_that_do_not_lie_in_the_last_dimensions(self, shape, element, message):
        for make in (nb.array, nb.from_numpy):
            with pytest.raises(nb.ConversionError, match=message):
                make(np.ones(shape, np.float32), dtype=element)
        assert nb.array(np.ones((2, *element.extents)), dtype=element).shape == (2,)

    @pytest.mark.parametrize(
        ("x", "error", "message"),
        [
            (
                object(),
                nb.NumbridgeTypeError,
                "an object of type builtins.object is no array: it has none of __dlpack__",
            ),
            ({}, nb.NumbridgeTypeError, "builtins.dict is no array"),
            ("text", nb.NumbridgeTypeError, "builtins.str is no array"),
            (Interface(strides=(6,)), nb.BufferAccessError, r"strides \(6,\) bytes.*no multiples of its item size 4"),
            (
                Interface(strides=(4.5,)),
                nb.BufferAccessError,
                r"the strides \(4.5,\) in its array interface; wanted int",
            ),
            (Interface(shape=("4",)), nb.BufferAccessError, r"the shape \('4',\) in its array interface; wanted int"),
            (Interface(data=bytes(16), offset=0.5), nb.BufferAccessError, "the offset .* interface; wanted integers"),
            (Interface(mask=object()), nb.BufferAccessError, "has a mask in its array interface"),
            (Interface(shape=(-1,)), nb.BufferAccessError, r"the shape \(-1,\) and the strides None"),
            (Interface(strides=(4, 4)), nb.BufferAccessError, "as many strides"),
            (Interface(data=(0, False)), nb.BufferAccessError, r"the shape \(4,\), and the address 0"),
            (Interface(data=bytes(12)), nb.BufferAccessError, "outside of its buffer of 12 bytes"),
            (Interface(data=bytes(16), offset=4), nb.BufferAccessError, "outside of its buffer of 16 bytes"),
            (Interface(data=bytes(16), strides=(-4,)), nb.BufferAccessError, "outside of its buffer of 16 bytes"),
            (Interface(typestr="<M8[s]"), nb.ConversionError, "is not a scalar type"),
            (Interface(typestr=None), nb.BufferAccessError, "the typestr None"),
            (Interface(shape=(1,) * 65), nb.BufferAccessError, "has 65 dimensions; at most 64"),
            (Unwilling(), nb.BufferAccessError, "cannot be read: RuntimeError: there is no ndim"),
        ],
        ids=[
            *(
                "object",
                "dict",
                "str",
                "strides",
                "fractions",
                "text",
                "fraction",
                "mask",
                "negative",
                "too many strides",
                "no address",
                "too small",
            ),
            *("offset", "backwards", "typestr", "no typestr", "too many dimensions", "unwilling"),
        ],
    )
    def test_what_is_no_array(self, x, error, message):
        with pytest.raises(error, match=message):
            nb.asarray(x)


class TestConvert:
    @pytest.mark.parametrize("to", ["numpy", np, np.ndarray, "numpy.ndarray"])
    def test_ways_to_name_a_framework(self, to):
        a = nb.array([1.0, 2.0])
        x = nb.convert(a, to)
        assert isinstance(x, np.ndarray)
        assert x.ctypes.data == a.ptr

    @pytest.mark.parametrize("to", ["numbridge", nb, nb.Array])
    def test_to_numbridge(self, to):
        x = np.arange(3.0)
        assert nb.convert(x, to).ptr == x.ctypes.data

    def test_what_is_there_already_is_returned(self):
        x, a = np.arange(3.0), nb.zeros(1)
        assert nb.convert(x, "numpy") is x
        assert nb.convert(a, "numbridge") is a
        assert isinstance(nb.convert(np.float32(1), "numpy"), np.ndarray)

    @pytest.mark.parametrize("to", ["tensorflow", list, 3, "array"])
    def test_unknown_frameworks(self, to):
        with pytest.raises(
            nb.NumbridgeValueError, match="it must name one of numpy, torch, paddle, jax, cupy, numbridge"
        ):
            nb.convert(nb.zeros(1), to)

    def test_lists(self):
        assert nb.convert([1, 2], "numpy").dtype == np.int32


class TestExplain:
    def test_numpy(self):
        x = np.zeros((3, 4), np.float32)[:, ::2]
        x.flags.writeable = False
        found = nb.explain(x)
        assert (found.framework, found.protocol, found.dtype) == ("numpy", "NumPy's array structure", "float32")
        assert (found.ptr, found.shape, found.strides) == (x.ctypes.data, (3, 2), (16, 8))
        assert (found.device, found.writable, found.contiguous, found.aligned) == ("cpu", False, False, True)

    def test_misaligned(self):
        x = np.zeros(9, np.uint8)[1:].view(np.float32)
        assert not nb.explain(x).aligned

    @pytest.mark.parametrize(
        ("x", "protocol"),
        [
            (nb.zeros(1), "numbridge record"),
            (Interface(), "array interface"),
            (OnlyArray(), "__array__"),
            (array.array("d", [1]), "buffer"),
        ],
    )
    def test_protocols(self, x, protocol):
        assert nb.explain(x).protocol == protocol

    def test_owners(self):
        x = np.zeros(3)
        assert nb.explain(x).owner == "the object itself"
        assert nb.explain(nb.from_numpy(x)[1:]).owner == "a numpy.ndarray"
        assert nb.explain(nb.zeros(3)).owner.startswith("numbridge's own memory")
        assert nb.explain(nb.zeros(3)[1:]).owner == "an array of numbridge"

    def test_text(self):
        found = nb.explain(nb.zeros((2, 3), nb.bfloat16))
        text = str(found)
        assert repr(found) == text  # what prompts and notebooks show
        lines = dict(line.split(None, 1) for line in text.splitlines())
        assert lines["shape"] == "(2, 3)"
        assert lines["strides"] == "(6, 2) bytes"
        assert lines["dtype"] == "bfloat16"
        assert lines["writable"] == "yes"
        assert lines["pointer"].startswith("0x")

    def test_what_is_no_array(self):
        with pytest.raises(nb.NumbridgeTypeError, match=r"x is 3\.5, a Python scalar, which kernels take by value"):
            nb.explain(3.5)
        with pytest.raises(nb.NumbridgeTypeError, match="is no array"):
            nb.explain(object())


class TestBridges:
    def test_classes_are_recognised_without_an_import(self, run_python):
        printed = run_python("""
            import sys
            from numbridge.bridges.bridge import bridge_for_type

            class Tensor: pass
            Tensor.__module__ = "torch._tensor"
            class Parameter(Tensor): pass
            class Other: pass
            Other.__module__ = "torchvision"
            print(bridge_for_type(Parameter).NAME, bridge_for_type(Other), "torch" in sys.modules)
        """)
        assert printed == "torch None False\n"

    def test_unknown_names(self):
        with pytest.raises(nb.NumbridgeValueError, match="numbridge has no bridge to 'mxnet'"):
            bridge_named("mxnet")

    @pytest.mark.parametrize("name", ["numpy", "torch", "paddle", "jax", "cupy"])
    def test_every_room_is_complete(self, name):
        room = bridge_named(name)
        uniform = ("reader", "wrap_object", "unwrap_array", "requires_grad_of", "gradient_of", "set_gradient")
        own = (f"{kind}_{way}_{name}" for kind in ("dtype", "device") for way in ("from", "to"))
        assert [n for n in (*uniform, *own, f"from_{name}", f"to_{name}") if not callable(getattr(room, n, None))] == []
        assert name == room.NAME
        assert bridge_for_type(int) is None
