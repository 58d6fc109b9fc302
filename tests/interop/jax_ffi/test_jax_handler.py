"""XLA's call frames: the layout against jaxlib's header, and the compiled handler against frames that are made by hand."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import numbridge as nb
from call_frames import OPTIONS, Made
from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import header, targets
from numbridge.jax_ffi import words_layout as wl
from numbridge.jax_ffi.plan import Operand, plan_call
from numbridge.jax_ffi.signature import signature
from numbridge.kernels.variant import variants_of


@nb.kernel
def add(a: nb.array[float], b: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = a[i] + b[i]


ADD = signature("kernel 'add'", add.parameters, 1, None)


@nb.kernel
def refuse(a: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    if a[i] < 0:
        raise ValueError("negative")
    out[i] = a[i]


@pytest.fixture(scope="module")
def text():
    return (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()


def test_the_layout_is_the_headers(text):
    major, minor = header.check_header(text)
    assert major == xla.KNOWN_MAJOR and minor in xla.KNOWN_MINORS
    frame = header.offsets(text, "XLA_FFI_CallFrame")
    assert (frame["api"], frame["stage"], frame["args"], frame["rets"]) == (16, 32, 40, 80)
    assert header.offsets(text, "XLA_FFI_Api")["XLA_FFI_Stream_Get"] == 80


def test_the_codes_are_the_headers(text):
    spelled = {"bool": "PRED", "bfloat16": "BF16", "complex64": "C64", "complex128": "C128"}
    spelled |= {"float8_e5m2": "F8E5M2", "float8_e4m3fn": "F8E4M3FN"}
    for name, code in xla.DATA_TYPES:
        short = spelled.get(name) or name.replace("uint", "U").replace("int", "S").replace("float", "F")
        assert f"XLA_FFI_DataType_{short} = {code}," in text
    for name, code in xla.OTHER_DATA_TYPES:
        short = name.replace("uint", "U").replace("int", "S").replace("float", "F").replace("_", "").upper()
        assert f"XLA_FFI_DataType_{short} = {code}," in text
    assert f"XLA_FFI_Extension_Metadata = {xla.EXTENSION_METADATA}," in text
    assert f"XLA_FFI_ExecutionStage_EXECUTE = {xla.STAGE_EXECUTE}," in text
    assert f"XLA_FFI_Error_Code_INVALID_ARGUMENT = {xla.INVALID_ARGUMENT}," in text


def test_an_unknown_major_version_is_refused(text):
    with pytest.raises(nb.NumbridgeError, match=r"interface 1\.\d, and numbridge knows 0\.x; install a jaxlib"):
        header.check_header(text.replace("#define XLA_FFI_API_MAJOR 0", "#define XLA_FFI_API_MAJOR 1"))


def test_names_of_an_older_or_newer_header_are_known(text):
    for new, old in xla.OLDER_NAMES:
        missing, there = (new, old) if re.search(rf"\b{old}\b", text) else (old, new)
        renamed = re.sub(rf"\b{there}\b", missing, text)
        assert renamed != text
        assert header.check_header(renamed) == header.check_header(text)


def test_a_field_that_moved_is_refused(text):
    moved = text.replace("  int64_t rank;\n", "  int64_t strides;\n  int64_t rank;\n")
    with pytest.raises(nb.NumbridgeError, match=r"XLA_FFI_Buffer\.rank lies at byte 40 .* takes it to be at 32"):
        header.check_header(moved)
    with pytest.raises(nb.NumbridgeError, match=r"no structure XLA_FFI_CallFrame"):
        header.check_header(text.replace("struct XLA_FFI_CallFrame {", "struct XLA_FFI_Frame {"))


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_a_frame_is_answered():
    made = Made(add, [ones(5), ones(5) * 2], [np.zeros(5, np.float32)])
    assert made.run() == 0 and made.errors == []
    assert (made.results[0] == 3).all()


def test_other_stages_do_nothing():
    made = Made(add, [ones(5), ones(5)], [np.zeros(5, np.float32)])
    for stage in range(xla.STAGE_EXECUTE):
        made.frame.stage = stage
        assert made.run() == 0
    assert not made.results[0].any()


def test_metadata():
    made = Made(add, [ones(5), ones(5)], [np.zeros(5, np.float32)])
    metadata = xla.XLA_FFI_Metadata(struct_size=ctypes.sizeof(xla.XLA_FFI_Metadata))
    metadata.api_version.major_version = 99
    base = xla.XLA_FFI_InternalExtension(type=xla.EXTENSION_METADATA)
    extension = xla.XLA_FFI_Metadata_Extension(base, ctypes.addressof(metadata))
    other = xla.XLA_FFI_InternalExtension(type=9, next=ctypes.addressof(extension))
    made.frame.extension_start = ctypes.addressof(other)
    assert made.run() == 0 and not made.results[0].any()
    version = metadata.api_version
    assert (version.major_version, version.minor_version) == header.installed_version()
    assert metadata.traits == xla.COMMAND_BUFFER_COMPATIBLE


def test_a_frame_of_another_size_is_refused():
    made = Made(add, [ones(5), ones(5)], [np.zeros(5, np.float32)])
    made.frame.struct_size = 100
    assert made.run() == 77
    assert made.errors == [
        (xla.INTERNAL, "numbridge: XLA's call frame is smaller than the header that numbridge knows")
    ]


@pytest.mark.parametrize(
    ("arrays", "result", "message"),
    [
        (
            (ones(5), ones(5, dtype=np.float64)),
            ones(5),
            "parameter 1: wrong element type: wanted float32 .* got float64[5]",
        ),
        ((ones(5), ones(5, 1)), ones(5), "parameter 1: wrong rank: wanted float32 of 1 .* got float32[5, 1]"),
        ((ones(5), ones(5)), ones(5, dtype=np.int32), "parameter 2: wrong element type"),
        ((ones(5),), ones(5), "XLA passed 1 operands and 1 results"),
    ],
)
def test_wrong_buffers_are_refused_with_a_text(arrays, result, message):
    made = Made(add, [ones(5), ones(5)], [np.zeros(5, np.float32)])
    result[...] = 0
    made.frame.args.size, made.frame.args.args = len(arrays), made._buffers(arrays)
    made.frame.rets.rets = made._buffers([result])
    assert made.run() == 77
    ((code, said),) = made.errors
    assert code == xla.INVALID_ARGUMENT and "kernel 'add' under JAX" in said
    for part in message.split(" .* "):
        assert part in said
    assert not result.any()


def test_wrong_words_are_refused():
    made = Made(add, [ones(5), ones(5)], [np.zeros(5, np.float32)], WORD_MAGIC=1)
    assert made.run() == 77 and "carries no words of this version" in made.errors[0][1]
    made = Made(add, [ones(5), ones(5)], [np.zeros(5, np.float32)], WORD_COUNT=9)
    assert made.run() == 77 and "carries no words of this version" in made.errors[0][1]


def test_an_unknown_kernel_is_refused():
    made = Made(add, [ones(5), ones(5)], [np.zeros(5, np.float32)], WORD_KEY=123)
    assert made.run() == 77
    assert "no kernel that computes the same has been declared" in made.errors[0][1]
    assert "nb.jax_kernel(add)" in made.errors[0][1] and not made.results[0].any()


def test_a_raising_kernel_is_an_error():
    made = Made(refuse, [-ones(5)], [np.zeros(5, np.float32)])
    assert made.run() == 77
    assert made.errors[0][0] == xla.INTERNAL and "raised an exception" in made.errors[0][1]
    assert "in one of its threads, ValueError: negative. On the CPU" in made.errors[0][1]


def test_batches_go_through_the_frame():
    table, rows = ones(1, 4) * 3, np.arange(12, dtype=np.float32).reshape(3, 4)
    made = Made(add, [ones(4), ones(4)], [np.zeros(4, np.float32)], WORD_LEVELS=1)
    out = np.zeros((3, 4), np.float32)
    made.frame.args.args, made.frame.rets.rets = made._buffers([table, rows]), made._buffers([out])
    assert made.run() == 0 and (out == rows + 3).all()
    made.frame.args.args = made._buffers([ones(2, 4), rows])
    assert made.run() == 77 and "parameter 0: wrong batch extents" in made.errors[0][1]


def test_the_table_grows():
    """More kernels than a table has slots for, whatever it held before, and each one is still found."""
    made = Made(add, [ones(5), ones(5)], [np.zeros(5, np.float32)])
    room, parameters = targets.room(), plan_call(add, ADD, OPTIONS, [Operand((5,), np.dtype("f4"), False)] * 2).types
    variant, before = variants_of(add).variant_of(parameters, "float32"), room.state[wl.ROOM_TABLE // 8]
    first = int(made.words[1]) // 2
    entered = 0
    while room.state[wl.ROOM_TABLE // 8] == before:
        assert entered < 1 << 20
        room.codes.enter((first + entered, -entered - 1), *targets._code(variant, []))
        entered += 1
    assert made.run() == 0 and (made.results[0] == 2).all()
    for k in (0, entered // 2, entered - 1):
        made.words[1:3] = first + k, -k - 1
        assert made.run() == 0 and made.errors == []
