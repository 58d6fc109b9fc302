"""The handler for CUDA, against call frames made by hand and a driver that records what it is asked to do."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import jax
import numpy as np
import pytest
from numba import cuda

import numbridge as nb
from call_frames import OPTIONS, ORDINAL, STREAM, Elsewhere, Made, accumulate, add, scale
from fake_cuda import CONTEXTS, fake_cuda, parameter_kinds, parameters_of
from numbridge.jax_ffi import call_frame_layout as xla
from numbridge.jax_ffi import callback, targets
from numbridge.jax_ffi import words_layout as wl
from numbridge.jax_ffi.plan import Number, by_reference
from numbridge.jax_ffi.signature import NamedDims
from numbridge.kernels import variant
from numbridge.kernels.cuda_backend import cuda_driver
from numbridge.kernels.parameter_types import ArrayType
from numbridge.kernels.variant import variants_of

I64, I32, F32 = ctypes.c_int64, ctypes.c_int32, ctypes.c_float


@pytest.fixture
def driver():
    with fake_cuda() as found:
        for ordinal in range(found.count()):
            cuda_driver.devices().prepare(ordinal)
        yield found


def at(number, *shape, dtype=np.float32):
    return Elsewhere(number << 20, shape, np.dtype(dtype))


def run(driver, made, *, enter=True):
    """Run a frame through the handler for CUDA."""
    if enter:
        call = made.call
        levels = int(made.words[wl.WORD_LEVELS // 8])
        targets.enter_cuda(call.kernel, call.types, call.weak, by_reference(call.types, call.slots), levels)
    handler = targets.room().cuda_handler
    driver.calls.clear()
    return made.run(handler)


def array(address, *shape, itemsize=4):
    strides = [itemsize * int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
    return [0, 0, int(np.prod(shape)), itemsize, address << 20, *shape, *strides]


def test_a_launch_on_the_stream_and_device_of_the_frame(driver):
    made = Made(add, [at(1, 1000), at(2, 1000)], [at(3, 1000)])
    assert run(driver, made) == 0 and made.errors == []
    (launched,) = driver.launches
    assert launched.values([I64] * 22) == [*array(1, 1000), *array(2, 1000), *array(3, 1000), 1000]
    assert (launched.grid, launched.block) == ((4, 1, 1), (256, 1, 1))
    assert (launched.stream, launched.context) == (STREAM, CONTEXTS + ORDINAL)
    assert [call[0] for call in driver.calls] == ["push", "launch", "pop"]
    assert made.asked == [("stream", 32, 0xC7), ("ordinal", 32, 0xC7)]


def test_a_large_grid_has_fewer_blocks(driver):
    """Each thread of it takes several ids of a light kernel at once: see `ids_together`."""
    made = Made(add, [at(1, 1 << 22), at(2, 1 << 22)], [at(3, 1 << 22)])
    assert run(driver, made) == 0
    assert (driver.launches[-1].grid, driver.launches[-1].block) == ((1 << 12, 1, 1), (256, 1, 1))


def test_a_context_that_is_current_stays(driver):
    made = Made(add, [at(1, 10), at(2, 10)], [at(3, 10)])
    driver.stack.append(CONTEXTS + ORDINAL)
    assert run(driver, made) == 0
    assert [call[0] for call in driver.calls] == ["launch"]


def test_numbers_by_value_and_by_reference(driver):
    """A static number is a parameter; one that is data stays where it lies, and the kernel reads it there."""
    x, s, out = at(1, 6, 300), at(7), at(3, 6, 300)
    made = Made(scale, [x, s, Number(int, 5)], [out])
    assert run(driver, made) == 0
    values = driver.launches[-1].values(parameter_kinds([2, 1], [I32], 0) + [I64] * 11)
    assert values == [*array(1, 6, 300), *array(7, 1), 5, *array(3, 6, 300), 6, 300]
    assert (driver.launches[-1].grid, driver.launches[-1].block) == ((2, 6, 1), (256, 1, 1))
    made = Made(scale, [x, Number(float, 2.5), Number(int, 5)], [out])
    assert run(driver, made) == 0
    assert driver.launches[-1].values([I64] * 9 + [F32, I32] + [I64] * 11)[9:11] == [2.5, 5]


def test_numbers_of_an_eager_call(driver):
    packed = [at(1, 6, 300), Number(float, None, packed=True), Number(int, None, packed=True)]
    made = Made(scale, packed, [at(3, 6, 300)], given=[at(9, 8, dtype=np.uint32), at(1, 6, 300)])
    assert run(driver, made) == 0
    second = [0, 0, 1, 4, (9 << 20) + 16, 1, 4]
    assert driver.launches[-1].values([I64] * 34)[9:23] == [*array(9, 1), *second]
    made = Made(scale, packed, [at(3, 6, 300)], given=[at(9, 4, dtype=np.uint32), at(1, 6, 300)])
    assert run(driver, made) == 77 and "parameter 2: wrong batch extents" in made.errors[0][1]


def test_results_start_as_they_must(driver):
    options = replace(OPTIONS, launch_dims=5)
    made = Made(accumulate, [at(1, 5), at(2, 1)], [at(3, 1), at(4, 5)], in_out=["total"], options=options)
    assert run(driver, made) == 0
    assert driver.calls[1:3] == [("copy", 3 << 20, 2 << 20, 4, STREAM), ("fill", 4 << 20, 0, 20, STREAM)]
    assert driver.launches[-1].values([I64] * 22)[7:14] == array(3, 1)
    made = Made(accumulate, [at(1, 5), at(3, 1)], [at(3, 1), at(4, 5)], in_out=["total"], options=options)
    assert run(driver, made) == 0
    assert [call[0] for call in driver.calls] == ["push", "fill", "launch", "pop"]


def batch(kernel, inputs, results, operands, levels=1, **options):
    """Return the frame of a batch; `operands` are its own, and its results have what `results` say behind `levels` axes."""
    one = [Elsewhere(x.address, x.shape[levels:], x.dtype) for x in results]
    made = Made(kernel, inputs, one, WORD_LEVELS=levels, **options)
    made.frame.args.args, made.frame.rets.rets = made._buffers(operands), made._buffers(results)
    return made


def test_a_batch_is_one_launch(driver):
    made = batch(add, [at(1, 10), at(2, 10)], [at(3, 3, 10)], [at(1, 1, 10), at(2, 3, 10)])
    assert run(driver, made) == 0
    (launched,) = driver.launches
    assert launched.values([I64] * 26) == [*array(1, 10), *array(2, 10), *array(3, 10), 10, 3, 0, 40, 40]
    assert (launched.grid, launched.block) == ((1, 1, 3), (256, 1, 1))


def test_a_batch_of_numbers(driver):
    x, out = at(1, 6, 3), at(3, 2, 6, 3)
    made = batch(scale, [x, at(7), Number(int, 5)], [out], [at(1, 1, 6, 3), at(7, 2)])
    assert run(driver, made) == 0
    (launched,) = driver.launches
    assert launched.values([I64] * 16 + [I32] + [I64] * 15)[-6:] == [6, 3, 2, 0, 4, 72] and launched.grid == (1, 1, 2)
    packed = [x, Number(float, None, packed=True), Number(int, None, packed=True)]
    operands = [at(9, 8, dtype=np.uint32), at(1, 2, 6, 3)]
    made = batch(scale, packed, [out], operands, given=[at(9, 8, dtype=np.uint32), x])
    assert run(driver, made) == 0
    assert driver.launches[-1].values([I64] * 39)[-7:] == [6, 3, 2, 72, 0, 0, 72]


def test_batches_of_batches(driver):
    operands = [at(1, 1, 4, 10), at(2, 3, 1, 10)]
    made = batch(add, [at(1, 10), at(2, 10)], [at(3, 3, 4, 10)], operands, levels=2)
    assert run(driver, made) == 0
    (launched,) = driver.launches
    assert launched.values([I64] * 30)[-8:] == [12, 4, 0, 40, 40, 0, 160, 40] and launched.grid == (1, 1, 12)


def test_batches_longer_than_a_grid_and_empty_ones(driver):
    made = batch(add, [at(1, 10), at(2, 10)], [at(3, 70000, 10)], [at(1, 1, 10), at(2, 70000, 10)])
    assert run(driver, made) == 0
    assert driver.launches[-1].grid == (1, 1, 65535) and driver.launches[-1].values([I64] * 26)[22] == 70000
    driver.launches.clear()
    made = batch(add, [at(1, 10), at(2, 10)], [at(3, 0, 10)], [at(1, 1, 10), at(2, 0, 10)])
    assert run(driver, made) == 0 and driver.launches == []


@nb.kernel
def through_shared(x: nb.array[float], out: nb.array[float]):
    here = cuda.shared.array(256, nb.float32)
    i = nb.tid()
    here[i % 256] = x[i]
    cuda.syncthreads()
    out[i] = here[255 - i % 256]


@nb.kernel
def within_blocks(x: nb.array[float], out: nb.array[float]):
    i = nb.tid()
    out[i] = x[i] * cuda.blockDim.x


@pytest.mark.parametrize("kernel", [through_shared, within_blocks])
def test_what_is_a_blocks_own_is_a_launch_for_each_element(driver, kernel, monkeypatch):
    # Nothing is compiled for the CPU, which has no blocks.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    made = batch(kernel, [at(1, 256)], [at(3, 3, 256)], [at(1, 3, 256)])
    assert run(driver, made) == 0
    found = [launched.values([I64] * 15) for launched in driver.launches]
    assert [(values[4], values[11]) for values in found] == [
        ((1 << 20) + 1024 * k, (3 << 20) + 1024 * k) for k in range(3)
    ]
    driver.fail["launch"] = 719
    assert run(driver, made) == 77 and "(719)" in made.errors[0][1]


def test_what_the_driver_refuses_of_a_batch(driver):
    made = batch(add, [at(1, 10), at(2, 10)], [at(3, 3, 10)], [at(1, 1, 10), at(2, 3, 10)])
    driver.fail["launch"] = 719
    assert run(driver, made) == 77 and "kernel 'add' under JAX" in made.errors[0][1]


@nb.kernel
def everything(m: nb.array3d[nb.mat22], s: float, v: nb.vec2, out: nb.array3d[nb.vec2], total: nb.array[float]):
    i, j, k = nb.tid()
    out[i, j, k] = m[i, j, k] @ v * s
    nb.atomic_add(total, 0, s)


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("capability", [(7, 5), (9, 0), (10, 0)])
def test_batches_compile_for_cuda(levels, capability):
    operands = [at(1, 2, 2, 2, 2, 2), at(2), at(4, 2)]
    options = replace(OPTIONS, launch_dims=(2, 2, 2), output_dims=NamedDims((("out", (2, 2, 2)), ("total", 1))))
    call = Made(everything, operands, [at(3, 2, 2, 2, 2), at(5, 1)], options=options).call
    names = frozenset(by_reference(call.types, call.slots))
    types = tuple(ArrayType(t.name, t.scalar, 1, True, False, t.element) if t.name in names else t for t in call.types)
    emitted = variants_of(everything).emitted(call.types, call.weak, "cuda")
    code = variant._cuda_code(everything, emitted, types, capability, "masked", names, levels)
    arrays = sum(5 + 2 * t.ndim for t in types)
    numbers = [number for number, _ in parameters_of(code.compiled.facts["ptx"])]
    assert numbers[-3 - levels * (1 + len(types)) :] == [*range(arrays, arrays + 3 + levels * (1 + len(types)))]
    assert code.compiled.objects[0][:4] == b"\x7fELF"


def test_dimensions_that_only_the_call_knows(driver):
    made = Made(scale, [at(1, 6, 300), Number(float, 2.0), Number(int, 5)], [at(3, 6, 300)])
    references = (made.call.dims and [-1 - (1 << wl.REFERENCE_SHIFT | axis) for axis in range(2)]) or []
    made.words[wl.WORD_DIMS // 8 : wl.WORD_DIMS // 8 + 2] = references
    made.words[wl.WORD_GRID // 8 : wl.WORD_GRID // 8 + 3] = 0
    made.words[wl.WORD_CUDA_GRID // 8 : wl.WORD_CUDA_GRID // 8 + 6] = 0
    made.words[wl.WORD_OPERANDS // 8] = 2
    made.frame.args.size, made.frame.args.args = 2, made._buffers([at(1, 6, 300), at(8, 6, 300, 0, dtype=np.uint8)])
    assert run(driver, made) == 0
    launched = driver.launches[-1]
    assert launched.values([I64] * 9 + [F32, I32] + [I64] * 11)[-2:] == [6, 300]
    assert (launched.grid, launched.block) == ((2, 6, 1), (256, 1, 1))


def test_nothing_to_run(driver):
    made = Made(add, [at(1, 0), at(2, 0)], [at(3, 0)])
    assert run(driver, made) == 0 and driver.launches == []


def test_code_that_is_missing_is_compiled_when_it_is_asked_for(driver):
    @nb.kernel
    def late(a: nb.array[float], out: nb.array[float]):
        i = nb.tid()
        out[i] = a[i] * 7.0

    made = Made(late, [at(1, 10)], [at(3, 10)])
    assert run(driver, made, enter=False) == 0 and made.errors == []
    assert len(driver.launches) == 1
    made.words[1] ^= 1
    assert run(driver, made, enter=False) == 77
    assert "no kernel that computes the same has been declared" in made.errors[0][1]


@pytest.mark.parametrize("step", ["launch", "push", "pop"])
def test_what_the_driver_refuses_is_an_error(driver, step):
    made = Made(add, [at(1, 10), at(2, 10)], [at(3, 10)])
    driver.fail[step] = 719
    assert run(driver, made) == 77
    ((code, said),) = made.errors
    assert code == xla.INTERNAL and "kernel 'add' under JAX: the CUDA driver refused the launch" in said
    assert "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure" in said


@pytest.mark.parametrize("step", ["copy", "fill"])
def test_a_refusal_before_the_launch(driver, step):
    options = replace(OPTIONS, launch_dims=5)
    made = Made(accumulate, [at(1, 5), at(2, 1)], [at(3, 1), at(4, 5)], in_out=["total"], options=options)
    driver.fail[step] = 719
    assert run(driver, made) == 77 and "(719)" in made.errors[0][1] and driver.launches == []


def test_wrong_buffers_are_refused(driver):
    made = Made(add, [at(1, 10), at(2, 10)], [at(3, 10)])
    made.frame.args.args = made._buffers([at(1, 10), at(2, 10, dtype=np.float64)])
    assert run(driver, made) == 77 and driver.launches == []
    assert "parameter 1: wrong element type: wanted float32" in made.errors[0][1]


def test_other_stages_and_metadata(driver):
    made = Made(add, [at(1, 10), at(2, 10)], [at(3, 10)])
    made.frame.stage = 1
    assert run(driver, made) == 0 and driver.calls == [] and made.asked == []
    metadata = xla.XLA_FFI_Metadata(struct_size=ctypes.sizeof(xla.XLA_FFI_Metadata))
    base = xla.XLA_FFI_InternalExtension(type=xla.EXTENSION_METADATA)
    extension = xla.XLA_FFI_Metadata_Extension(base, ctypes.addressof(metadata))
    made.frame.extension_start = ctypes.addressof(extension)
    assert run(driver, made) == 0 and metadata.traits == xla.COMMAND_BUFFER_COMPATIBLE


def test_a_callback_gets_arrays_on_the_stream_of_the_call(driver):
    made, seen = Made(add, [at(1, 10), at(2, 10)], [at(3, 10)]), {}

    def function(inputs, outputs, attrs, ctx):
        seen["where"] = str(ctx.device), ctx.stream, [str(x.device) for x in (*inputs, *outputs)]
        seen["interface"] = inputs[0].__cuda_array_interface__
        nb.launch(add, 10, [*inputs, *outputs])

    nb.register_ffi_callback("test_on_cuda", function)
    driver.calls.clear()
    handler = callback._handler(("test_on_cuda", "CUDA"))
    assert made.run(ctypes.cast(handler, ctypes.c_void_p).value) == 0 and made.errors == []
    assert seen["where"] == ("cuda:1", STREAM, ["cuda:1"] * 3)
    assert seen["interface"]["data"] == (1 << 20, True) and seen["interface"]["stream"] == STREAM
    (launched,) = driver.launches
    assert launched.values([I64] * 22) == [*array(1, 10), *array(2, 10), *array(3, 10), 10]
    assert (launched.stream, launched.context) == (STREAM, CONTEXTS + ORDINAL)
    assert [call[0] for call in driver.calls] == ["push", "launch", "pop"]


def test_a_callback_may_name_the_stream_of_its_call(driver):
    """XLA takes its arrays back in the order of that stream, so nothing keeps them for a launch on it; on another one it does."""
    made, streams = Made(add, [at(1, 10), at(2, 10)], [at(3, 10)]), []

    def function(inputs, outputs, attrs, ctx):
        nb.launch(add, 10, [inputs[0], inputs[1][:], *outputs], stream=ctx.stream + streams[0])

    nb.register_ffi_callback("test_named_stream", function)
    handler = ctypes.cast(callback._handler(("test_named_stream", "CUDA")), ctypes.c_void_p).value
    streams[:] = [0]
    assert made.run(handler) == 0 and made.errors == [] and driver.launches[-1].stream == STREAM
    streams[:] = [16]
    assert made.run(handler) == 77 and "was kept beyond it" in made.errors[0][1]
