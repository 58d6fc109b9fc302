"""Arguments that change while they are read, or from one reading to the next, or that others of their type are unlike."""

from __future__ import annotations

import array
import ctypes
import signal
import sys

import ml_dtypes
import numpy as np
import pytest

from numbridge.kernels.element_types.elements import vec3
from numbridge.kernels.errors import BufferAccessError, ConversionError, NumbridgeTypeError
from numbridge.kernels.kernel import kernel
from numbridge.kernels.language.intrinsics import tid
from numbridge.kernels.launch import launch
from numbridge.kernels.machine import machine
from numbridge.kernels.readers import reader_of

N = 32


@kernel
def doubled(x, out):
    i = tid()
    out[i] = 2 * x[i]


@kernel
def negated(out, x):
    i = tid()
    out[i] = -x[i]


@kernel
def first_of(v: vec3, out):
    i = tid()
    out[i] = v[0]


@kernel
def first_row(rows, out):
    i = tid()
    out[i] = rows[0][i]


class Producer:
    """Hands on by DLPack what a function gives, each time that it is asked."""

    def __init__(self, answer):
        self.answer = answer

    def __dlpack__(self, **named):
        answer = self.answer()
        return answer.__dlpack__(**named) if isinstance(answer, np.ndarray) else answer

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("readings", range(1, 5))
@pytest.mark.parametrize("dtype", ["f4", "i2"])
def test_what_is_launched_on_is_what_was_looked_at(readings, dtype):
    """An array that is shorter the next time would be written beyond its end."""

    class Shrinking(Producer):
        """Of its own type, which nobody has read."""

    whole, given = np.zeros(3 * N, dtype), []

    def answer():
        given.append(whole[N : 2 * N] if len(given) < readings else whole[:1])
        return given[-1]

    launch(doubled, N, [np.ones(N, dtype), Shrinking(answer)])
    assert (whole[N : 2 * N] == 2).all() and np.count_nonzero(whole) == N
    # By now compiled code asks, and is told first of an array that is too short.
    given[:] = [None] * readings
    whole[:] = 0
    with pytest.raises(ValueError, match="'out': its shape is \\(1,\\)"):
        launch(doubled, N, [np.ones(N, dtype), Shrinking(answer)])
    assert not whole.any()


def test_what_was_read_before_a_producer_ran_is_read_again():
    x, out = np.ones(4), np.zeros(4)
    launch(negated, 4, [out, Producer(lambda: x)])

    def lock():
        out.flags.writeable = False
        return x

    out[:] = 0
    with pytest.raises(BufferAccessError, match=r"parameter 'out': the kernel writes to it, and .* is read-only"):
        launch(negated, 4, [out, Producer(lock)])
    assert not out.any()


def test_an_interrupt_while_a_producer_runs_ends_the_launch():
    x, out = np.ones(4), np.zeros(4)
    launch(doubled, 4, [Producer(lambda: x), out])
    asked = []

    def interrupted():
        asked.append(1)
        if len(asked) == 1:
            signal.raise_signal(signal.SIGINT)
        return x

    out[:] = 0
    # A shell lets what it starts in the background ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(doubled, 4, [Producer(interrupted), out])
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(asked) == 1 and not out.any()


def test_a_type_may_have_an_interface_later():
    class Late:
        pass

    out = np.zeros(4)
    with pytest.raises(NumbridgeTypeError, match=r"'x': .*Late is no array"):
        launch(doubled, 4, [Late(), out])
    one = Late()
    one.held = np.ones(4)
    one.__array_interface__ = one.held.__array_interface__
    launch(doubled, 4, [one, out])
    assert (out == 2).all()
    with pytest.raises(
        BufferAccessError, match=r"'x': .*Late has no __array_interface__ now, as others of its type had"
    ):
        launch(doubled, 4, [Late(), out])


def test_a_class_may_have_a_protocol_later():
    class Late:
        pass

    out = np.zeros(4)
    with pytest.raises(NumbridgeTypeError, match="Late is no array"):
        launch(doubled, 4, [Late(), out])
    Late.__array__ = lambda self: np.ones(4)
    launch(doubled, 4, [Late(), out])
    assert (out == 2).all()


def test_there_may_be_any_number_of_types(monkeypatch):
    compiled = machine()
    before, out = compiled._tables, np.zeros(4)
    # As if the table were nearly full
    monkeypatch.setattr(compiled, "_types", 3 * len(before[-1]) // 4 - 2)
    tables = len(before)
    kinds = [type(f"Kind{k}", (np.ndarray,), {}) for k in range(4)]
    for k, kind in enumerate(kinds):
        launch(doubled, 4, [np.full(4, k).view(kind), out])
        assert (out == 2 * k).all()
    assert len(compiled._tables) == tables + 1
    for kind in kinds:
        assert reader_of(np.ones(4).view(kind)) is reader_of(np.ones(4).view(kind))
        launch(doubled, 4, [np.ones(4).view(kind), out])


@pytest.mark.parametrize("answer", [5, "text", None, ()])
def test_what_dlpack_returned_is_shown_with_the_type_that_returned_it(answer):
    pattern = r"'x': an object of type .*Producer cannot be read: what its __dlpack__ returned, .* is no unused DLPack capsule"
    with pytest.raises(BufferAccessError, match=pattern):
        launch(doubled, 3, [Producer(lambda: answer), np.zeros(3)])


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_float))


@pytest.mark.parametrize(
    ("buffer", "form"),
    [
        (memoryview(np.ones(3, ">f4")), ">f"),
        (memoryview(b"abc").cast("c"), "c"),
        ((Pair * 3)(), r"T\{<i:a:<f:b:\}"),
        ((ctypes.c_void_p * 3)(1, 2, 3), "<P"),
        # "u" warns from 3.13 on, which brought "w".
        (array.array("u" if sys.version_info < (3, 13) else "w", "abc"), "[uw]"),
    ],
    ids=["swapped", "characters", "structures", "pointers", "text"],
)
def test_buffers_of_other_elements_are_named_by_their_format(buffer, form):
    with pytest.raises(
        ConversionError, match=f"'x': .* is a buffer of elements of the format '{form}', which has no counter"
    ):
        launch(doubled, 3, [buffer, np.zeros(3)])


def test_numbers_that_numbridge_does_not_have_are_converted():
    with pytest.raises(ConversionError, match=r"int4\) has no counterpart; .*; use array.astype\(...\), which copies"):
        launch(doubled, 3, [np.zeros(3, ml_dtypes.int4), np.zeros(3)])


STRIDED, MISALIGNED = np.arange(12, dtype="f4")[::4], np.zeros(16, "u1")[1:13].view("f4")


@pytest.mark.parametrize("values", [STRIDED, MISALIGNED], ids=["strided", "misaligned"])
def test_vectors_by_value_are_dense(values):
    pattern = r"'v': wanted vec3, got a 1-d array of float32 with shape \(3,\) and strides .*; it must be dense and aligned: pass"
    with pytest.raises(NumbridgeTypeError, match=pattern):
        launch(first_of, 1, [values, np.zeros(1)])


def test_more_arguments_than_a_launch_takes():
    pattern = (
        "'first_row' takes 257 arguments, with what tuples hold counted one by one, and launches take up to 256; pass"
    )
    with pytest.raises(NumbridgeTypeError, match=pattern):
        launch(first_row, 1, [(np.ones(1),) * 256, np.zeros(1)])
