"""Random programs of launches: a few kernels, each launched again and again, on arrays of every framework and on numbers.

Each array lies in memory that the program has made, between bytes that belong to nobody, and has a twin, a view of NumPy's of the
same memory. After every launch all bytes must be what the twins say: what the kernel was to write has been written, and nothing
else. A launch that is refused must have a reason, must name the parameter, and changes nothing. No launch may keep a reference.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import enum
import gc
import math
import mmap
import random
import sys
import tempfile
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import paddle
import torch
import tvm_ffi

import numbridge as nb

NARROW = tuple(map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)))
OF_NUMPY = ("f4", "f8", "i4", "i8", "u1", "?", "f2", "c8", "i2", "c16", "i1", "u2", "u4", "u8")
DTYPES = (*map(np.dtype, OF_NUMPY), *NARROW)
OF_TORCH = {
    ml_dtypes.bfloat16: torch.bfloat16,
    ml_dtypes.float8_e4m3fn: torch.float8_e4m3fn,
    ml_dtypes.float8_e5m2: torch.float8_e5m2,
}
MARGIN = 64
Pair = namedtuple("Pair", "first second")


@nb.kernel
def copied(x, out):
    """Copy elements one by one, in the order in which they are counted, whatever the number of dimensions."""
    i = nb.tid()
    if x.ndim == 0:
        out[()] = x[()]
    elif x.ndim == 1:
        out[i] = x[i]
    elif x.ndim == 2:
        out[i // x.shape[1], i % x.shape[1]] = x[i // x.shape[1], i % x.shape[1]]
    elif x.ndim == 3:
        a = i // x.shape[2]
        out[a // x.shape[1], a % x.shape[1], i % x.shape[2]] = x[a // x.shape[1], a % x.shape[1], i % x.shape[2]]
    else:
        a = i // x.shape[3]
        b = a // x.shape[2]
        out[b // x.shape[1], b % x.shape[1], a % x.shape[2], i % x.shape[3]] = x[
            b // x.shape[1], b % x.shape[1], a % x.shape[2], i % x.shape[3]
        ]


@nb.kernel
def rows(x, out):
    i = nb.tid()
    out[i] = x[i]


@nb.kernel
def planes(x, out):
    i, j = nb.tid()
    out[i, j] = x[i, j]


@nb.kernel
def boxes(x, out):
    i, j, k = nb.tid()
    out[i, j, k] = x[i, j, k]


@nb.kernel
def floats(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i]


@nb.kernel
def planes_of_floats(x: nb.array2d[float], out: nb.array2d[float]):
    i, j = nb.tid()
    out[i, j] = x[i, j]


@nb.kernel
def vectors(x: nb.array[nb.vec3], out: nb.array[nb.vec3]):
    i = nb.tid()
    out[i] = x[i]


@nb.kernel
def swapped(x, out):
    """Both are written."""
    i = nb.tid()
    kept = x[i]
    x[i] = out[i]
    out[i] = kept


@nb.kernel
def merged(pair, out):
    i = nb.tid()
    if i % 2 == 0:
        out[i] = pair[0][i]
    else:
        out[i] = pair[1][i]


@nb.kernel
def told(number, out):
    i = nb.tid()
    out[i] = number


@nb.kernel
def told_all(i: int, j: nb.int64, u: nb.uint8, w: nb.uint64, f: float, d: nb.float64, b: bool, ints, words, reals):
    k = nb.tid()
    ints[k] = i
    ints[k + 1] = j
    words[k] = u
    words[k + 1] = w
    reals[k] = f
    reals[k + 1] = d
    words[k + 2] = 1 if b else 0


KERNELS = (copied, copied, rows, planes, boxes, floats, planes_of_floats, vectors, swapped, merged, told, told_all)
OF_FLOATS, OF_NUMBERS = (floats, planes_of_floats, vectors), (told, told_all)
RANKS = {rows: 1, planes: 2, boxes: 3, floats: 1, planes_of_floats: 2, vectors: 1, swapped: 1, merged: 1}


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 200


class Number(int):
    """A subclass of int."""


class Rows(np.ndarray):
    """A subclass of NumPy's arrays."""


class Tensor(torch.Tensor):
    """A subclass of torch's tensors that changes nothing."""


class Wrapped(torch.Tensor):
    """A tensor that decides itself what its memory means."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), named=None):
        raise NotImplementedError


class Dispatched(torch.Tensor):
    """A tensor with memory that decides itself what it means."""

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), named=None):
        return super().__torch_dispatch__(function, kinds, arguments, named or {})


class Producer:
    """Hands memory of NumPy's on by DLPack alone."""

    def __init__(self, held):
        self.held = held

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.held.__dlpack__(max_version=max_version)

    def __dlpack_device__(self):
        return 1, 0


class OldProducer:
    """A producer from before versions."""

    def __init__(self, held):
        self.held = held

    def __dlpack__(self, stream=None):
        return self.held.__dlpack__()

    def __dlpack_device__(self):
        return 1, 0


class Interface:
    """Hands memory of NumPy's on by ``__array_interface__`` alone, which each object has by itself."""

    def __init__(self, held, **other):
        self.held = held
        self.__array_interface__ = held.__array_interface__ | other


class Asked:
    """Hands memory of NumPy's on by an ``__array_interface__`` that is a property."""

    def __init__(self, held):
        self.held = held

    @property
    def __array_interface__(self):
        return self.held.__array_interface__


class Copies:
    """Has nothing but ``__array__``."""

    def __init__(self, held):
        self.held = held

    def __array__(self, dtype=None, copy=None):
        return self.held.copy()


class Fickle:
    """A producer whose answers change from call to call; what it answers wrongly must be refused."""

    def __init__(self, held):
        self.held, self.answer = held, None

    def __dlpack__(self, **named):
        if isinstance(self.answer, type):
            raise self.answer("no")
        if self.answer is not None:
            return self.answer
        return self.held.__dlpack__(**named)

    def __dlpack_device__(self):
        return 1, 0


class Changing:
    """Its ``__array_interface__`` is there, or not, or nonsense."""

    def __init__(self, held):
        self.held, self.answer = held, None

    @property
    def __array_interface__(self):
        if isinstance(self.answer, type):
            raise self.answer("no")
        return self.held.__array_interface__ if self.answer is None else self.answer


@dataclass
class Held:
    """An argument.

    Attributes
    ----------
    made : object
        What is passed.
    base : ndarray
        All bytes of its memory, with those around it.
    twin : ndarray
        The same elements, as NumPy has them.
    kind : str
        What made it.
    unreadable, unwritable : str
        Why it is to be refused, if it is, whatever is done with it, and when it is written.
    tensor : object
        What `made` is a view of, if it is one of another argument's memory.
    """

    made: Any
    base: np.ndarray
    twin: np.ndarray
    kind: str
    unreadable: str = ""
    unwritable: str = ""
    tensor: Any = None


def repeats(twin):
    """Tell whether a stride of 0 lets several indices name one element."""
    return any(step == 0 and extent > 1 for step, extent in zip(twin.strides, twin.shape, strict=True))


def is_aligned(twin):
    alignment = twin.dtype.itemsize // (2 if twin.dtype.kind == "c" else 1)
    steps = [step for step, extent in zip(twin.strides, twin.shape, strict=True) if extent != 1]
    return not twin.size or all(place % alignment == 0 for place in (twin.__array_interface__["data"][0], *steps))


def extent_of(shape, strides, itemsize):
    """Return how many bytes lie before and behind the first element, itself included."""
    reaches = [step * (extent - 1) for step, extent in zip(strides, shape, strict=True) if extent]
    return -sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0) + itemsize


def counted(objects):
    return [sys.getrefcount(one) for one in objects]


def version_of(held, tensor):
    """Return the version that torch counts of a tensor, or None where it counts none."""
    counts = isinstance(tensor, torch.Tensor) and not held.unreadable and not tensor.is_inference()
    return tensor._version if counts else None


class Launches:
    """One program."""

    def __init__(self, number, kernels=KERNELS, dtypes=DTYPES):
        self.choices = random.Random(number)
        self.kernels, self.dtypes = kernels, self.choices.sample(dtypes, 2)
        self.kinds = tuple(name.removeprefix("of_") for name in dir(self) if name.startswith("of_"))
        self.steps = []
        self.messages = []
        self.held = []
        # What was prepared for a kernel: launchers by extents, and recorded launches
        self.prepared = {}
        self.is_taped = self.choices.random() < 0.1

    # Memory

    def layout(self, shape, dtype, *, plain):
        """Draw strides in bytes."""
        choices, size = self.choices, dtype.itemsize
        order = [*range(len(shape))]
        if not plain and choices.random() < 0.4:
            choices.shuffle(order)
        strides, step = [0] * len(shape), size
        gaps = not plain and choices.random() < 0.5
        for k in reversed(order):
            if gaps and choices.random() < 0.4:
                step *= choices.choice((2, 3))
            strides[k] = step
            step *= max(shape[k], 1)
        if not plain:
            if choices.random() < 0.2:
                strides = [-s if choices.random() < 0.5 else s for s in strides]
            if choices.random() < 0.15:
                strides = [0 if choices.random() < 0.5 else s for s in strides]
            if strides and choices.random() < 0.06:
                strides[choices.randrange(len(strides))] += choices.choice((1, size // 2 or 1, size))
        return tuple(strides)

    def memory(self, shape, dtype, *, plain=False):
        """Make memory with guards around it; return its bytes and the twin."""
        choices = self.choices
        strides = self.layout(shape, dtype, plain=plain)
        before, behind = extent_of(shape, strides, dtype.itemsize)
        offset = MARGIN + before + (-before) % 16
        if not plain and choices.random() < 0.1:
            offset += choices.choice((1, 2, 4, 8))
        base = np.random.default_rng(choices.randrange(1 << 30)).integers(
            0, 256, offset + behind + MARGIN + 16, np.uint8
        )
        start = -base.ctypes.data % 16
        base = base[start : start + offset + behind + MARGIN]
        twin = np.ndarray(shape, dtype, base.data, offset, strides)
        self.fill(twin)
        return base, twin, offset

    def fill(self, twin):
        values = [self.choices.choice((0, 1, 2, 3, 5, 7)) for _ in range(twin.size)]
        twin[...] = np.array(values, np.int64).reshape(twin.shape).astype(twin.dtype)

    def shape(self, rank=None):
        choices = self.choices
        rank = choices.choice((0, 1, 1, 1, 2, 2, 3, 4)) if rank is None else rank
        return tuple(choices.choice((0, 1)) if choices.random() < 0.12 else choices.randint(1, 5) for _ in range(rank))

    def argument(self, shape, dtype, kind=None):
        """Make an argument of this shape, of whatever kind."""
        for _ in range(50):
            chosen = kind or self.choices.choice(self.kinds)
            made = getattr(self, "of_" + chosen)(shape, dtype)
            if made is not None:
                made.kind = chosen
                return made
        return self.of_numpy(shape, dtype)

    def described(self, base, twin, made, **more):
        held = Held(made, base, twin, "", **more)
        if not held.unreadable and not is_aligned(twin):
            held.unreadable = "not aligned"
        if not held.unwritable and repeats(twin) and twin.size:
            held.unwritable = "expanded"
        return held

    # NumPy

    def of_numpy(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype)
        return self.described(base, twin, twin[...])

    def of_plain(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype, plain=True)
        return self.described(base, twin, twin[...])

    def of_readonly(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype)
        made = twin[...]
        made.flags.writeable = False
        return self.described(base, twin, made, unwritable="read-only")

    def of_subclass(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype)
        return self.described(base, twin, twin.view(Rows))

    def of_matrix(self, shape, dtype):
        if len(shape) != 2:
            return None
        base, twin, _ = self.memory(shape, dtype)
        return self.described(base, twin, twin.view(np.matrix))

    def of_masked(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype, plain=True)
        return self.described(base, twin, np.ma.masked_array(twin, copy=False), unreadable="mask")

    def of_swapped(self, shape, dtype):
        if dtype.itemsize == 1 or dtype in NARROW:
            return None
        base, twin, _ = self.memory(shape, dtype)
        return self.described(base, twin, twin.view(dtype.newbyteorder()), unreadable="byte order")

    def of_other(self, shape, dtype):
        base, twin, _ = self.memory(shape, np.dtype("i8"), plain=True)
        made = {
            "time": lambda: twin.view("M8[s]"),
            "objects": lambda: np.full(shape, None),
            "text": lambda: twin.view("S8"),
            "long": lambda: np.zeros(shape, np.longdouble),
            "string": lambda: np.full(shape, "a", np.dtypes.StringDType()),
        }
        return self.described(base, twin, made[self.choices.choice([*made])](), unreadable="dtype")

    def of_memmap(self, shape, dtype):
        if 0 in shape:
            return None
        mode = self.choices.choice(("r", "r+", "c"))
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(range(MARGIN)))
            size = math.prod(shape) * dtype.itemsize
            values = np.ones(math.prod(shape), dtype)
            file.write(values.tobytes() + bytes(MARGIN))
            file.flush()
            made = np.memmap(file.name, np.uint8, mode)
        whole = np.asarray(made)
        twin = np.ndarray(shape, dtype, whole, MARGIN)
        assert size == twin.nbytes
        given = made[MARGIN : MARGIN + size].view(dtype).reshape(shape)
        return self.described(whole, twin, given, unwritable="read-only" if mode == "r" else "")

    # Torch

    def torchs(self, base, twin, offset):
        """Return a tensor on the twin's memory, or None where there is none."""
        dtype, size = twin.dtype, twin.dtype.itemsize
        if any(step < 0 or step % size for step in twin.strides) or twin.base is None:
            return None
        kind = OF_TORCH.get(dtype.type)
        if kind is None:
            kind = torch.from_numpy(np.zeros(1, dtype)).dtype
        whole = torch.frombuffer(
            base.data, dtype=kind, offset=offset % size, count=(base.nbytes - offset % size) // size
        )
        return whole.as_strided(twin.shape, [step // size for step in twin.strides], offset // size)

    def tensor(self, shape, dtype, *, plain=False):
        base, twin, offset = self.memory(shape, dtype, plain=plain)
        return base, twin, self.torchs(base, twin, offset)

    def of_torch(self, shape, dtype):
        base, twin, made = self.tensor(shape, dtype)
        return None if made is None else self.described(base, twin, made)

    of_torch2 = of_torch

    def of_leaf(self, shape, dtype):
        base, twin, made = self.tensor(shape, dtype)
        if made is None or not made.dtype.is_floating_point or dtype.itemsize == 1:
            return None
        made = torch.nn.Parameter(made) if self.choices.random() < 0.5 else made.detach().requires_grad_()
        return self.described(base, twin, made, unwritable="requires grad")

    def of_tracked(self, shape, dtype):
        base, twin, made = self.tensor(shape, dtype)
        if made is None or dtype not in (np.float32, np.float64, np.complex64):
            return None
        return self.described(base, twin, made.requires_grad_().view(shape), unwritable="requires grad")

    def of_torchsub(self, shape, dtype):
        base, twin, made = self.tensor(shape, dtype)
        return None if made is None else self.described(base, twin, made.as_subclass(Tensor))

    def of_dispatched(self, shape, dtype):
        base, twin, made = self.tensor(shape, dtype)
        if made is None:
            return None
        kind = self.choices.choice((Wrapped, Dispatched))
        return self.described(
            *(base, twin), Wrapped(made) if kind is Wrapped else made.as_subclass(Dispatched), unreadable="dispatch"
        )

    def of_conjugated(self, shape, dtype):
        if dtype.kind != "c":
            return None
        base, twin, made = self.tensor(shape, dtype)
        if made is None:
            return None
        if self.choices.random() < 0.5:
            return self.described(base, twin, made.conj(), unreadable="conjugated")
        return self.described(base, twin, made.conj().imag, unreadable="negated")

    def of_inference(self, shape, dtype):
        with torch.inference_mode():
            base, twin, made = self.tensor(shape, dtype)
        return None if made is None else self.described(base, twin, made)

    def of_strange(self, shape, dtype):
        base, twin, made = self.tensor(shape, dtype, plain=True)
        if made is None:
            return None
        from torch._subclasses import FakeTensorMode

        ways = {
            "meta": lambda: made.to("meta"),
            "sparse": lambda: torch.ones(shape or (1,)).to_sparse(),
            "quantised": lambda: torch.quantize_per_tensor(torch.ones(shape), 0.1, 0, torch.quint8),
            "fake": lambda: FakeTensorMode().from_tensor(torch.ones(shape)),
            "zero": lambda: torch._efficientzerotensor(shape),
            "functional": lambda: torch._to_functional_tensor(torch.ones(shape)),
            "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "csr": lambda: torch.ones(3, 3).to_sparse_csr(),
        }
        way = self.choices.choice([*ways])
        return self.described(base, twin, ways[way](), unreadable=way)

    def of_freed(self, shape, dtype):
        if 0 in shape or dtype in NARROW:
            return None
        made = torch.from_numpy(np.zeros(shape, dtype)).clone()
        made.untyped_storage().resize_(0)
        base, twin, _ = self.memory(shape, dtype)
        return self.described(base, twin, made, unreadable="freed")

    # Others

    def of_paddle(self, shape, dtype):
        if dtype in (np.dtype("u2"), np.dtype("u4"), np.dtype("u8")):
            return None
        base, twin, made = self.tensor(shape, dtype)
        if made is None:
            return None
        made = paddle.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(made))
        if tuple(made.strides) != tuple(s // dtype.itemsize for s in twin.strides) and twin.size > 1:
            return None
        if twin.size and made.data_ptr() != twin.__array_interface__["data"][0]:
            return None
        return self.described(base, twin, made)

    of_paddle2 = of_paddle

    def of_tracking(self, shape, dtype):
        held = self.of_paddle(shape, dtype)
        if held is not None and dtype in (np.float32, np.float64):
            held.made.stop_gradient = False
            held.unwritable = "requires grad"
        return held

    def of_jax(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype, plain=True)
        made = jnp.asarray(twin.copy())
        if made.dtype != dtype:
            return None
        return self.described(base, twin, made, unwritable="immutable")

    def of_deleted(self, shape, dtype):
        made = self.of_jax(shape, dtype)
        if made is None:
            return None
        made.made.delete()
        made.unreadable = "deleted"
        return made

    def of_numbridge(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype)
        if any(step % dtype.itemsize for step in twin.strides):
            return None
        made = nb.from_numpy(twin)
        if self.choices.random() < 0.3 and shape and twin.shape[0]:
            return self.described(base, twin[::-1], made[::-1])
        return self.described(base, twin, made)

    of_numbridge2 = of_numbridge

    def of_lentarray(self, shape, dtype):
        """An array of numbridge's on memory that may not be written."""
        held = self.of_readonly(shape, dtype)
        if any(step % dtype.itemsize for step in held.twin.strides):
            return None
        held.made = nb.from_numpy(held.made)
        return held

    def of_descriptor(self, shape, dtype):
        base, twin, made = self.tensor(shape, dtype)
        return None if made is None else self.described(base, twin, nb.from_torch(made, return_ctype=True))

    def of_tvm(self, shape, dtype):
        base, twin, made = self.tensor(shape, dtype)
        return None if made is None else self.described(base, twin, tvm_ffi.from_dlpack(made))

    def produced(self, shape, dtype, kind):
        base, twin, _ = self.memory(shape, dtype)
        if any(step % dtype.itemsize for step in twin.strides) or dtype in NARROW:
            return None
        return self.described(base, twin, kind(twin))

    def of_producer(self, shape, dtype):
        return self.produced(shape, dtype, Producer)

    def of_oldproducer(self, shape, dtype):
        return self.produced(shape, dtype, OldProducer)

    def of_interface(self, shape, dtype):
        return self.produced(shape, dtype, Interface)

    def of_asked(self, shape, dtype):
        return self.produced(shape, dtype, Asked)

    def of_copies(self, shape, dtype):
        held = self.of_plain(shape, dtype)
        held.made, held.unwritable = Copies(held.twin), "known by a copy"
        return held

    def of_fickle(self, shape, dtype):
        held = self.produced(shape, dtype, Fickle)
        if held is not None and self.choices.random() < 0.5:
            used = held.twin.__dlpack__()
            nb.from_dlpack(used)
            answers = (ValueError, KeyError, TypeError, BufferError, 5, "text", (), used)
            held.made.answer = self.choices.choice(answers)
            held.unreadable = "nonsense"
        return held

    def of_changing(self, shape, dtype):
        held = self.produced(shape, dtype, Changing)
        if held is not None and self.choices.random() < 0.5:
            good = held.twin.__array_interface__
            answers = (
                *(AttributeError, ValueError, 5, "text", {}, [1], {"shape": (1,)}),
                *(good | {"shape": 3}, good | {"typestr": 4}, good | {"typestr": "<f3"}, good | {"data": 3}),
                *(good | {"shape": (-1,)}, good | {"strides": (1, 2, 3, 4, 5)}, good | {"data": (0, False)}),
                *(
                    good | {"shape": ("a",)},
                    good | {"typestr": "|O"},
                    good | {"data": ("x", False)},
                    good | {"data": ()},
                ),
            )
            held.made.answer = self.choices.choice(answers)
            held.unreadable = "nonsense"
            if isinstance(held.made.answer, dict) and held.made.answer.get("data") == (0, False) and not held.twin.size:
                return None
        return held

    def of_memoryview(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype)
        if dtype in NARROW:
            return None
        try:
            view = memoryview(twin)
        except (BufferError, ValueError):
            return None
        return self.described(base, twin, view)

    def of_buffer(self, shape, dtype):
        if len(shape) != 1 or 0 in shape:
            return None
        made = {
            "f4": lambda: array.array("f", bytes(4 * shape[0])),
            "i8": ctypes.c_int64 * shape[0],
            "u1": lambda: bytearray(shape[0]),
            "i4": ctypes.c_int32 * shape[0],
            "f8": lambda: array.array("d", bytes(8 * shape[0])),
        }.get(dtype.str[1:])
        if made is None:
            return None
        made = made()
        twin = np.frombuffer(made, dtype)
        base = twin.view(np.uint8)
        self.fill(twin)
        # A bytearray with exported buffers cannot be resized, which is no matter here.
        return self.described(base, twin, made)

    def of_bytes(self, shape, dtype):
        if len(shape) != 1 or dtype != np.uint8:
            return None
        made = bytes(self.choices.randrange(256) for _ in range(shape[0]))
        twin = np.frombuffer(made, np.uint8)
        return self.described(twin, twin, made, unwritable="read-only")

    def of_mmap(self, shape, dtype):
        if len(shape) != 1 or dtype != np.uint8 or 0 in shape:
            return None
        made = mmap.mmap(-1, shape[0])
        twin = np.frombuffer(made, np.uint8)
        return self.described(twin, twin, made)

    def of_nonsense(self, shape, dtype):
        base, twin, _ = self.memory(shape, dtype, plain=True)
        values = ("text", [1.0, 2.0], {}, object(), np.float32, nb, int, lambda: 0, slice(3), np.datetime64(3, "s"))
        return self.described(base, twin, self.choices.choice(values), unreadable="no array")

    # Running

    def run(self):
        for _ in range(self.choices.randint(3, 12)):
            step = self.choices.choice((self.launch,) * 6 + (self.number_launch,) * 2 + (self.change, self.let_go))
            step()

    def drawn(self, shape, dtype):
        """Return an argument of a shape and dtype: one that is held already, or a new one."""
        fitting = [h for h in self.held if h.twin.shape == shape and h.twin.dtype == dtype]
        if fitting and self.choices.random() < 0.5:
            return self.choices.choice(fitting)
        if fitting and self.choices.random() < 0.3:
            made = self.alias(self.choices.choice(fitting))
        else:
            made = self.argument(shape, dtype)
        if made is None:
            made = self.argument(shape, dtype)
        self.held.append(made)
        del self.held[:-8]
        return made

    def alias(self, held):
        """Return another argument on the memory of one, or None."""
        if held.kind not in ("torch", "torch2", "torchsub", "paddle", "numpy", "plain", "tvm", "producer", "interface"):
            return None
        if (
            held.unreadable
            or held.unwritable == "requires grad"
            or any(s % held.twin.itemsize for s in held.twin.strides)
        ):
            return None
        if isinstance(held.made, torch.Tensor) and self.choices.random() < 0.5:
            made = held.made.view(held.made.shape)
        else:
            made = nb.asarray(held.made)
        return Held(made, held.base, held.twin, "alias", unwritable=held.unwritable, tensor=held.made)

    def launch(self):
        choices = self.choices
        kernel = choices.choice([kernel for kernel in self.kernels if kernel not in OF_NUMBERS])
        dtype = choices.choice(self.dtypes)
        if kernel in OF_FLOATS and choices.random() < 0.8:
            dtype = np.dtype("f4")
        rank = RANKS.get(kernel)
        inner = (3,) if kernel is vectors else ()
        shape = (*self.shape(rank), *inner)
        if kernel in OF_FLOATS and choices.random() < 0.06:
            shape = self.shape()
        x, out = self.drawn(shape, dtype), self.drawn(self.other(kernel, shape), dtype)
        arguments = [x, out]
        if kernel is merged:
            arguments = [x, self.drawn(shape, dtype), out]
        self.check_launch(kernel, arguments, shape, dtype)

    def other(self, kernel, shape):
        """Return a shape like this one, now and then with axes that are longer or shorter."""
        if kernel in (copied, merged) or self.choices.random() > 0.15:
            return shape
        kept = 1 if kernel is vectors else 0
        changed = [max(n + self.choices.choice((-1, 0, 1, 2)), 0) for n in shape[: len(shape) - kept]]
        return (*changed, *shape[len(shape) - kept :])

    def reasons(self, kernel, arguments, shape, dtype, written):
        found = [f"{a.kind} {a.unreadable}" for a in arguments if a.unreadable]
        found += [f"{a.kind} {a.unwritable}" for a in written if a.unwritable]
        if kernel in OF_FLOATS and dtype != np.float32:
            found.append("dtype")
        rank = RANKS.get(kernel)
        if rank is not None and len(shape) - (kernel is vectors) != rank:
            found.append("rank")
        if kernel is vectors:
            if shape[-1:] != (3,):
                found.append("no vectors")
            elif any(a.twin.size and a.twin.strides[-1] != 4 for a in arguments):
                found.append("vectors in pieces")
        return found

    def dims_of(self, kernel, shape):
        rank = RANKS.get(kernel, 1)
        if kernel is copied:
            total = math.prod(shape)
            return (self.choices.choice((total, total, self.choices.randint(0, total))),)
        dims = (*shape, 1, 1, 1)[:rank]
        if self.choices.random() < 0.2:
            dims = tuple(self.choices.randint(0, d) for d in dims)
        return dims

    def dim(self, dims):
        """Return extents in one of the ways in which they may be written."""
        choices = self.choices
        ways = [dims, [*dims], torch.Size(dims), tuple(map(np.int64, dims)), tuple(map(np.uint16, dims))]
        if len(dims) == 1:
            ways += [dims[0], dims[0], dims[0], np.int32(dims[0]), Number(dims[0])]
        return choices.choice([dims, dims, *ways])

    def sent(self, kernel, dims, given):
        """Launch, in one of the ways to do it."""
        choices = self.choices
        ways = ("launch", "outputs", "forall", "block", "device", "recorded", "named", "max", "kept", "set", "brackets")
        way = choices.choice(ways)
        dim = self.dim(dims)
        self.steps[-1] += f" by {way} over {dim!r}"
        split = choices.randint(0, len(given))
        if way == "launch":
            nb.launch(kernel, dim, given)
        elif way == "outputs":
            nb.launch(kernel, dim, given[:split], tuple(given[split:]))
        elif way == "forall":
            kernel.forall(dim)(*given)
        elif way == "block":
            nb.launch(kernel, dim, inputs=given, block_dim=choices.choice((1, 32, 64, 1024)))
        elif way == "device":
            nb.launch(kernel, dim, given, device=choices.choice(("cpu", nb.get_device("cpu"))))
        elif way == "named":
            nb.launch(kernel=kernel, dim=dim, outputs=given)
        elif way == "max":
            nb.launch(kernel, dim, given, max_blocks=choices.choice((1, 3)))
        elif way == "recorded":
            nb.launch(kernel, dim, given, record_cmd=True).launch()
        elif way == "set":
            command = self.prepared.get((kernel, "command"))
            if command is None:
                command = self.prepared[kernel, "command"] = nb.launch(kernel, dim, given, record_cmd=True)
            command.set_dim(dim)
            if choices.random() < 0.5:
                command.set_params(given)
            else:
                for k, value in enumerate(given):
                    command.set_param_at_index(k, value)
            try:
                command.launch()
            finally:
                command.set_params([None] * len(given))
        elif way == "brackets" and len(dims) == 1 and dims[0]:
            kernel[dims[0], 1](*given)
        else:
            known = self.prepared.setdefault((kernel, dims), kernel.forall(dims))
            known(*given)

    def check_launch(self, kernel, arguments, shape, dtype):
        written = [arguments[0], arguments[-1]] if kernel is swapped else arguments[-1:]
        if any(a.base is w.base and a.twin.strides != w.twin.strides for a in arguments for w in written):
            return  # What a thread reads depends on which others have run.
        dims = self.dims_of(kernel, shape)
        if kernel is merged and dims == (0,):
            dims = (min(1, shape[0]),) if shape else dims
        reasons = self.reasons(kernel, arguments, shape, dtype, written)
        is_short = all(dims) and any(n < d for a in arguments for n, d in zip(a.twin.shape, dims, strict=False))
        if kernel not in (copied, merged) and is_short:
            reasons.append("short")
        texts = (f"{a.kind} {a.twin.dtype}{a.twin.shape}{a.twin.strides}" for a in arguments)
        self.steps.append(f"{kernel.name}({', '.join(texts)}) over {dims}")
        tensors = [a.made if a.tensor is None else a.tensor for a in arguments]
        versions = [version_of(a, tensor) for a, tensor in zip(arguments, tensors, strict=True)]
        wanted = {id(a.base): np.frombuffer(bytearray(a.base.tobytes()), np.uint8) for a in arguments}
        # What Python itself keeps one of is counted by others, too.
        objects = [a.made for a in arguments if a.kind not in ("nonsense", "bytes")]
        counts = counted(objects)
        done = self.is_done(kernel, dims, [a.made for a in arguments], reasons)
        if self.choices.random() < 0.01:
            gc.collect()
        # A tape keeps what it records.
        assert counted(objects) == counts or self.is_taped, f"reference counts {counts} became {counted(objects)}"
        if done:
            self.apply(kernel, arguments, dims, wanted)
        for a in arguments:
            np.testing.assert_array_equal(a.base, wanted[id(a.base)], f"memory of {a.kind}, done={done}")
        changed = {id(a.base) for a in written} if done else set()
        for a, tensor, version in zip(arguments, tensors, versions, strict=True):
            if version is not None and id(a.base) not in changed:
                assert tensor._version == version, "the version was counted up"
            elif version is not None and all(dims) and any(a is w for w in written):
                assert tensor._version > version, "the version was not counted up"

    def is_done(self, kernel, dims, given, reasons):
        """Launch; return whether it was done, as it must be if there are no reasons to refuse it."""
        if kernel is merged:
            pair, out = given[:2], given[2]
            given = [self.choices.choice((tuple(pair), Pair(*pair))), out]
        try:
            self.sent(kernel, dims, given)
        except nb.NumbridgeError as error:
            if not reasons or f"kernel {kernel.name!r}, parameter '" not in str(error):
                raise
            self.messages.append(str(error))
            self.steps.append(f"refused: {reasons}")
            return False
        assert not reasons, f"not refused, although {reasons}"
        return True

    def apply(self, kernel, arguments, dims, wanted):
        """Do on copies of the memory what the kernel does."""

        def copy_of(held):
            place = held.twin.__array_interface__["data"][0] - held.base.__array_interface__["data"][0]
            if not held.twin.size:
                return held.twin.copy()
            return np.ndarray(held.twin.shape, held.twin.dtype, wanted[id(held.base)].data, place, held.twin.strides)

        twins = [copy_of(a) for a in arguments]
        out = twins[-1]
        if kernel is copied:
            for k in range(dims[0]):
                at = np.unravel_index(k, out.shape) if out.ndim else ()
                out[at] = twins[0][at]
            return
        for at in np.ndindex(*dims):
            if kernel is swapped:
                twins[0][at], out[at] = out[at].copy(), twins[0][at].copy()
            elif kernel is merged:
                out[at] = twins[at[0] % 2][at]
            else:
                out[at] = twins[0][at]

    # Numbers

    def drawn_number(self):
        choices = self.choices
        edge = choices.choice((0, 1, -1, 127, 128, 255, 256, -128, -129, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1))
        edge = choices.choice(
            (edge, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30, 5)
        )
        kind = choices.choice(
            ("int", "int", "float", "bool", "complex", "numpy", "numpy", "enum", "sub", "big", "none")
        )
        if kind == "int":
            return edge
        if kind == "float":
            return choices.choice(
                (0.0, -0.0, 1.5, float("inf"), float("nan"), 1e300, 1e-310, 3.0, float(np.float32(0.1)), 0.1)
            )
        if kind == "bool":
            return choices.choice((True, False))
        if kind == "complex":
            return choices.choice((1j, 2 + 3j, complex(0.1, float("inf")), 3 + 0j))
        if kind == "numpy":
            dtype = choices.choice(DTYPES)
            if dtype.kind in "iu":
                info = np.iinfo(dtype)
                return dtype.type(choices.choice((info.min, info.max, 0, 1)))
            if dtype.kind == "f" and dtype not in NARROW:
                return dtype.type(choices.choice((1.5, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, -0.0)))
            return dtype.type(choices.choice((1, 0)))
        if kind == "enum":
            return choices.choice((Colour.RED, Colour.BLUE))
        if kind == "sub":
            return Number(edge)
        if kind == "big":
            return choices.choice(
                (10**400, -(10**400), np.longdouble(1.5), np.timedelta64(3), np.str_("a"), np.bytes_(b"x"))
            )
        return choices.choice((None, "3", [1], np.array(3), np.array(2.5, np.float32), b"1", object(), (1.0).__class__))

    def number_launch(self):
        kernels = [kernel for kernel in self.kernels if kernel in OF_NUMBERS]
        if self.choices.choice(kernels) is told:
            self.told_launch()
            return
        names = ("i", "j", "u", "w", "f", "d", "b")
        limits = {"i": np.int32, "j": np.int64, "u": np.uint8, "w": np.uint64}
        values = {"i": 3, "j": -4, "u": 5, "w": 6, "f": 0.5, "d": 0.25, "b": True}
        name, value = self.choices.choice(names), self.drawn_number()
        values[name] = value
        self.steps.append(f"told_all with {name}={value!r} ({type(value).__name__})")
        is_bool = isinstance(value, bool | np.bool_)
        is_int = not is_bool and isinstance(value, int | np.integer) and not isinstance(value, np.timedelta64)
        is_float = isinstance(value, float | np.floating) and not isinstance(value, np.longdouble)
        is_float |= isinstance(value, ml_dtypes.bfloat16 | ml_dtypes.float8_e4m3fn | ml_dtypes.float8_e5m2)
        if name in limits:
            info = np.iinfo(limits[name])
            fits = is_bool or (is_int and info.min <= int(value) <= info.max)
        elif name == "b":
            fits = is_bool
        else:
            fits = is_bool or is_float or (is_int and -(2**63) <= int(value) < 2**64)
        ints, words, reals = np.zeros(2, np.int64), np.zeros(3, np.uint64), np.zeros(2, np.float64)
        self.attempt(told_all, 1, [*values.values(), ints, words, reals], fits, name)
        if not fits:
            assert not ints.any() and not words.any() and not reals.any()
            return
        with np.errstate(all="ignore"):
            wanted = [int(values["i"]), int(values["j"])], [int(values["u"]), int(values["w"]), int(values["b"])]
            real = [float(np.float32(float(values["f"]))), float(values["d"])]
        assert ints.tolist() == wanted[0] and words.tolist() == wanted[1], (ints, words, wanted)
        np.testing.assert_array_equal(reals, real)

    def attempt(self, kernel, dim, given, fits, name):
        arrays = [a for a in given if isinstance(a, np.ndarray)]
        counts = counted(arrays)
        try:
            self.sent(kernel, (dim,), given)
        except nb.NumbridgeError as error:
            if fits:
                raise
            if f"kernel {kernel.name!r}, parameter {name!r}" not in str(error):
                raise
            self.messages.append(str(error))
        else:
            assert fits, "was not refused"
        assert counted(arrays) == counts

    def told_launch(self):
        value = self.drawn_number()
        out = np.zeros(2, self.choice_of_out(value))
        self.steps.append(f"told({value!r} ({type(value).__name__}), {out.dtype})")
        is_number = isinstance(value, int | float | complex | np.number | np.bool_) and not isinstance(
            value, np.timedelta64 | np.longdouble | np.bytes_
        )
        is_number |= isinstance(value, ml_dtypes.bfloat16 | ml_dtypes.float8_e4m3fn | ml_dtypes.float8_e5m2)
        fits = is_number and not (isinstance(value, int) and not -(2**63) <= value < 2**63)
        if value is None or isinstance(value, np.ndarray | bytes):
            return
        self.attempt(told, 2, [value, out], fits, "number")
        if fits:
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(out, np.array([value, value]).astype(out.dtype))
        else:
            assert not out.any()

    def choice_of_out(self, value):
        if isinstance(value, int | np.bool_ | np.integer) and not isinstance(value, np.timedelta64):
            return np.uint64 if isinstance(value, np.uint64) else np.int64
        if isinstance(value, complex | np.complexfloating):
            return np.complex128
        return np.float64

    # Changes between launches

    def change(self):
        if not self.held:
            return
        held = self.choices.choice(self.held)
        ways = {
            "torch": self.change_tensor,
            "torch2": self.change_tensor,
            "torchsub": self.change_tensor,
            "numpy": self.change_numpy,
        }
        ways |= {
            "jax": self.change_jax,
            "fickle": self.change_fickle,
            "plain": self.change_numpy,
            "readonly": self.change_numpy,
        }
        way = ways.get(held.kind)
        if way is not None:
            with torch.no_grad():
                way(held)

    def change_tensor(self, held):
        way = self.choices.choice(("data", "set", "transpose", "unsqueeze", "grad"))
        self.steps.append(f"{held.kind} {way}")
        tensor, twin = held.made, held.twin
        if way in ("data", "set"):
            base, other, offset = self.memory(self.shape(), twin.dtype)
            made = self.torchs(base, other, offset)
            if made is None:
                return
            if way == "data":
                tensor.data = made
            else:
                tensor.set_(made)
            self.replaced(held, base, other)
        elif way == "transpose" and twin.ndim > 1:
            tensor.transpose_(0, 1)
            self.replaced(held, held.base, twin.swapaxes(0, 1))
        elif way == "unsqueeze" and twin.ndim < 4:
            tensor.unsqueeze_(0)
            held.twin = (
                np.ndarray((1, *twin.shape), twin.dtype, held.base.data, self.offset(held), (8, *twin.strides))
                if twin.size
                else twin[None]
            )
        elif way == "grad" and twin.dtype in (np.float32, np.float64):
            tensor.requires_grad_()
            held.unwritable = held.unwritable or "requires grad"

    @staticmethod
    def offset(held):
        return held.twin.__array_interface__["data"][0] - held.base.__array_interface__["data"][0]

    def replaced(self, held, base, twin):
        again = self.described(base, twin, held.made)
        held.base, held.twin, held.unreadable = base, twin, again.unreadable
        held.unwritable = again.unwritable or ("requires grad" if held.made.requires_grad else "")

    def change_numpy(self, held):
        way = self.choices.choice(("flags", "shape", "dtype"))
        self.steps.append(f"numpy {way}")
        if way == "flags":
            made = held.made
            if made.flags.writeable:
                made.flags.writeable = False
                held.unwritable = "read-only"
            else:
                made.flags.writeable = True
                held.unwritable = "expanded" if repeats(held.twin) else ""
        elif way == "shape" and held.twin.flags.c_contiguous and held.twin.size:
            for one in (held.made, held.twin):
                one.shape = (1, held.twin.size) if one.ndim < 2 else (-1,)

    def change_jax(self, held):
        self.steps.append("delete")
        held.made.delete()
        held.unreadable = "deleted"

    def change_fickle(self, held):
        held.made.answer, held.unreadable = None, "" if is_aligned(held.twin) else "not aligned"

    def let_go(self):
        self.steps.append("let go")
        self.held = self.held[self.choices.randint(0, len(self.held)) :]
        if self.choices.random() < 0.03:
            gc.collect()
        [np.full(64, 255, np.uint8) for _ in range(5)]


def run(number, **named):
    program = Launches(number, **named)
    try:
        with nb.Tape() if program.is_taped else contextlib.nullcontext():
            program.run()
    except BaseException as error:
        error.add_note(f"in program {number}: " + "\n  ".join(program.steps))
        raise
    return program
