"""Random programs that hand arrays from framework to framework, with views, writes and launches in between.

The same views and writes on a NumPy array say what every array on the way must hold at the end. Whatever is refused must have a
reason, and changes nothing.
"""

from __future__ import annotations

import gc
import math
import os
import random

import jax
import jax.dlpack
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import paddle
import pytest
import torch

import numbridge as nb

PROGRAMS = int(os.environ.get("NUMBRIDGE_CONVERSION_PROGRAMS", "80"))
FRAMEWORKS = ("numpy", "torch", "paddle", "jax", "numbridge")
DTYPES = tuple(map(np.dtype, ("f4", "f8", "i4", "i8", "u1", "?", "f2", "c8", "i2", ml_dtypes.bfloat16)))
ALIGNMENT = 64


@nb.kernel
def put(x, place: int, value: int):
    i = nb.tid()
    if i == place:
        x[i] = value


@nb.kernel
def put_in_rows(x, row: int, column: int, value: int):
    i, j = nb.tid()
    if i == row and j == column:
        x[i, j] = value


@pytest.fixture(autouse=True)
def wide_jax():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def contents(array):
    """Return what an array holds, read by its own framework."""
    if isinstance(array, torch.Tensor):
        return (array.float() if array.dtype == torch.bfloat16 else array).numpy()
    if isinstance(array, paddle.Tensor):
        return (array.astype("float32") if array.dtype == paddle.bfloat16 else array).numpy()
    return array.numpy() if isinstance(array, nb.Array) else np.asarray(array)


class Conversions:
    """One program: an array, its twin of NumPy's, and all arrays on the way here that still are held."""

    def __init__(self, number):
        self.choices = choices = random.Random(number)
        self.dtype = choices.choice(DTYPES)
        shape = tuple(
            choices.choice((0, 1, 2, 3)) if choices.random() < 0.15 else choices.randint(1, 5)
            for _ in range(choices.choice((0, 1, 1, 2, 2, 2, 3)))
        )
        self.twin = (np.arange(math.prod(shape)) % 7).reshape(shape).astype(self.dtype)
        framework = choices.choice(FRAMEWORKS)
        self.steps = [f"a {framework} array of {self.dtype} and shape {shape}"]
        self.array = self.made(framework)
        # What others must not see changed, or what is no view of the first array any more
        self.is_final = isinstance(self.array, jax.Array)
        self.held = [(self.array, self.twin)]

    def made(self, framework):
        if framework == "numpy":
            return self.twin.copy()
        if framework == "jax":
            return jnp.asarray(self.twin.copy())
        return nb.convert(nb.array(self.twin, dtype=self.dtype), framework)

    def run(self):
        steps = (self.view, self.view, self.view, self.convert, self.convert, self.exchange, self.write, self.launch)
        for _ in range(self.choices.randint(2, 8)):
            step = self.choices.choice((*steps, self.copy, self.let_go))
            step()
            self.held.append((self.array, self.twin))
            self.check()

    def check(self):
        for array, twin in self.held:
            found = contents(array)
            assert tuple(found.shape) == twin.shape
            wide = np.complex128 if twin.dtype.kind == "c" else np.float64
            np.testing.assert_array_equal(found.astype(wide), twin.astype(wide))

    # Steps

    def view(self):
        ways = (self.slice, self.transpose, self.reshape, self.index, self.lengthen, self.flip, self.expand)
        self.choices.choice(ways)()

    def slice(self):
        if not self.twin.ndim:
            return
        key = []
        for extent in self.twin.shape:
            start = self.choices.randint(0, extent)
            stop, step = self.choices.randint(start, extent), self.choices.choice((1, 1, 2, 3))
            if isinstance(self.array, np.ndarray | nb.Array) and self.choices.random() < 0.2:
                start, stop, step = (stop if stop < extent else None), (start - 1 if start else None), -step
            key.append(slice(start, stop, step))
        self.become(f"[{key}]", self.array[tuple(key)], self.twin[tuple(key)])

    def transpose(self):
        axes = [*range(self.twin.ndim)]
        self.choices.shuffle(axes)
        if len(axes) > 1:
            torchs = isinstance(self.array, torch.Tensor)
            turned = self.array.permute(axes) if torchs else self.array.transpose(axes)
            self.become(f"transpose({axes})", turned, self.twin.transpose(axes))

    def reshape(self):
        if self.twin.size and contents(self.array).flags.c_contiguous and self.twin.flags.c_contiguous:
            if isinstance(self.array, paddle.Tensor):
                return  # a copy, or not
            rows = self.choices.choice([k for k in range(1, self.twin.size + 1) if self.twin.size % k == 0])
            shape = (rows, self.twin.size // rows)
            self.become(f"reshape{shape}", self.array.reshape(shape), self.twin.reshape(shape))

    def index(self):
        if self.twin.ndim > 1 and self.twin.shape[0]:
            k = self.choices.randrange(self.twin.shape[0])
            self.become(f"[{k}]", self.array[k], self.twin[k])

    def lengthen(self):
        if self.twin.ndim < 4:
            self.become("[None]", self.array[None], self.twin[None])

    def flip(self):
        if self.twin.ndim and isinstance(self.array, np.ndarray | nb.Array):
            self.become("[::-1]", self.array[::-1], self.twin[::-1])

    def expand(self):
        if isinstance(self.array, torch.Tensor | np.ndarray) and self.twin.ndim < 4:
            shape = (3, *self.twin.shape)
            is_torchs = isinstance(self.array, torch.Tensor)
            wide = self.array.expand(shape) if is_torchs else np.broadcast_to(self.array, shape)
            # Of what is read-only here, a row may be written there.
            strides = (0, *self.twin.strides)
            self.become("expand", wide, np.lib.stride_tricks.as_strided(self.twin, shape, strides))

    def become(self, step, array, twin):
        self.steps.append(step)
        self.array, self.twin = array, twin

    def convert(self):
        to = self.choices.choice(FRAMEWORKS)
        self.shared(f"convert to {to}", lambda: nb.convert(self.array, to), to)

    def exchange(self):
        """Hand the array on by DLPack, as the other framework asks for it."""
        to = self.choices.choice(FRAMEWORKS)
        array = nb.asarray(self.array)
        if self.dtype == ml_dtypes.bfloat16 and to == "numpy":
            return  # which has no such dtype
        ways = {
            "numpy": lambda: np.from_dlpack(array),
            "torch": lambda: torch.from_dlpack(array),
            "paddle": lambda: paddle.from_dlpack(array),
            "jax": lambda: jax.dlpack.from_dlpack(array, copy=False),
            "numbridge": lambda: nb.from_dlpack(self.array),
        }
        self.shared(f"DLPack to {to}", ways[to], to)

    def shared(self, step, run, to):
        """Take what another framework makes of the array, which must be the same memory, or have been refused for a reason."""
        before = nb.explain(self.array)
        self.steps.append(step)
        try:
            made = run()
        except (nb.BufferAccessError, ValueError, RuntimeError):
            if not self.reasons(before, to, by_dlpack="DLPack" in step):
                raise
            self.steps.append("refused")
            return
        assert not self.twin.size or nb.explain(made).ptr == before.ptr
        self.is_final |= isinstance(made, jax.Array)
        self.array = made

    def reasons(self, before, to, *, by_dlpack):
        """Return why memory cannot be shared with a framework."""
        compact = before.strides == contiguous(before.shape, self.dtype.itemsize)
        found = {
            "a stride is negative": any(step < 0 for step in before.strides)
            and (by_dlpack or to in ("torch", "paddle")),
            "it is read-only": not before.writable and (by_dlpack or to in ("torch", "paddle")),
            "JAX shares dense rows only": to == "jax" and not compact,
            "JAX shares aligned memory only": to == "jax" and before.ptr % ALIGNMENT != 0,
        }
        return [reason for reason, holds in found.items() if holds]

    def write(self):
        """Let the framework itself store a number."""
        if self.is_final or not self.twin.size or not self.twin.ndim or repeats(self.twin):
            return
        if isinstance(self.array, np.ndarray) and not self.array.flags.writeable:
            return
        if isinstance(self.array, nb.Array) and self.array.read_only:
            return
        place, value = tuple(map(self.choices.randrange, self.twin.shape)), self.choices.randint(0, 6)
        self.steps.append(f"[{place}] = {value}")
        self.array[place] = value
        self.twin[place] = value

    def launch(self):
        """Let a kernel store a number, or refuse to."""
        if not self.twin.size or self.twin.ndim not in (1, 2):
            return
        place, value = tuple(map(self.choices.randrange, self.twin.shape)), self.choices.randint(0, 1)
        self.steps.append(f"launch at {place} with {value}")
        before = nb.explain(self.array)
        may_write = before.writable and not repeats(self.twin)
        if may_write and self.is_final:
            return
        try:
            nb.launch(put if self.twin.ndim == 1 else put_in_rows, self.twin.shape, [self.array, *place, value])
        except nb.BufferAccessError:
            assert not may_write
            self.steps.append("refused")
        else:
            assert may_write
            self.twin[place] = value

    def copy(self):
        if isinstance(self.array, jax.Array):
            return
        self.steps.append("copy")
        self.array = (
            nb.clone(self.array)
            if isinstance(self.array, nb.Array)
            else (self.array.copy() if isinstance(self.array, np.ndarray) else self.array.clone())
        )
        self.twin, self.is_final = self.twin.copy(), False
        self.held = []

    def let_go(self):
        """Let go of arrays on the way here, and have their memory used again if it should be free."""
        self.steps.append("let go")
        self.held = self.held[-1:] if self.choices.random() < 0.5 else []
        if self.choices.random() < 0.05:
            gc.collect()
        [np.full(max(self.twin.nbytes, 1), 255, np.uint8) for _ in range(3)]


def repeats(twin):
    """Tell whether several indices name one element."""
    return any(step == 0 and extent > 1 for step, extent in zip(twin.strides, twin.shape, strict=True))


def contiguous(shape, itemsize):
    """Return the strides of dense rows."""
    steps, step = [], itemsize
    for extent in reversed(shape):
        steps.append(step)
        step *= max(extent, 1)
    return tuple(reversed(steps))


def test_random_programs_of_conversions():
    refused = 0
    for number in range(PROGRAMS):
        program = Conversions(number)
        try:
            program.run()
        except BaseException as error:
            error.add_note(f"in program {number}: {'; '.join(program.steps)}")
            raise
        refused += program.steps.count("refused")
    assert refused > PROGRAMS // 20
